// Integer arithmetic of loop bounds.
TW_FN long long tw_min(long long a, long long b) { return a < b ? a : b; }
TW_FN long long tw_max(long long a, long long b) { return a < b ? b : a; }
TW_FN long long tw_floor_div(long long a, long long b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

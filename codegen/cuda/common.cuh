// Integer arithmetic of loop bounds.
TW_FN long long tw_min(long long a, long long b) { return a < b ? a : b; }
TW_FN long long tw_max(long long a, long long b) { return a < b ? b : a; }
TW_FN long long tw_floor_div(long long a, long long b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
// The index of element (x, y) of a tile of swizzle atoms: lines of SPAN 16-bit elements, LINES of them an atom, the 16-byte chunks of
// a line permuted by the line's number (PTX ISA, "Shared memory matrix layout": 128-, 64- and 32-byte swizzling).
template <int SPAN, int LINES> TW_FN u32 tw_swizzle_atom(u32 x, u32 y) {
  const u32 e = (x / SPAN * LINES + y) * SPAN + x % SPAN;
  return e ^ ((e >> 6 & (SPAN / 8 - 1)) << 3);
}

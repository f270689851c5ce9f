// Integer arithmetic of loop bounds.
TW_FN long long tw_min(long long a, long long b) { return a < b ? a : b; }
TW_FN long long tw_max(long long a, long long b) { return a < b ? b : a; }
// What a bound reads, as far as it counts.
TW_FN long long tw_entry(long long x) { return tw_max(-(1 << 30), tw_min(x, 1 << 30)); }
// The same, rounded towards zero; of NaN 0.
TW_FN long long tw_real_entry(float x) {
  return x >= 1073741824.0f ? 1 << 30 : x <= -1073741824.0f ? -(1 << 30) : x == x ? (long long)x : 0;
}
TW_FN long long tw_floor_div(long long a, long long b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
// The index of element (x, y) of a tile of swizzle atoms: lines of SPAN 16-bit elements, LINES of them an atom, the 16-byte chunks of
// a line permuted by the line's number (PTX ISA, "Shared memory matrix layout": 128-, 64- and 32-byte swizzling).
template <int SPAN, int LINES> TW_FN u32 tw_swizzle_atom(u32 x, u32 y) {
  const u32 e = (x / SPAN * LINES + y) * SPAN + x % SPAN;
  return e ^ ((e >> 6 & (SPAN / 8 - 1)) << 3);
}
// The number of the tile that a persistent block takes when it has had TURN others: there and back, clusters of blocks together.
template <int CLUSTER> TW_FN int tw_work_tile(int turn) {
  const int block = blockIdx.x, blocks = gridDim.x;
  const int back = blocks - CLUSTER * (block / CLUSTER + 1) + block % CLUSTER;
  return turn * blocks + (turn % 2 ? back : block);
}
// How many of so many tiles it takes.
template <int CLUSTER> TW_FN int tw_work_tiles(int tiles) {
  const int whole = tiles / (int)gridDim.x;
  return whole + (tw_work_tile<CLUSTER>(whole) < tiles);
}

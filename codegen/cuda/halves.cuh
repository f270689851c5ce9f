// x = high + low: high is the nearest TF32 number, and of low the instruction reads all but the last bits, which are less than 2^-21 of x.
// By integers: the conversion takes twice as many instructions. What is no number is none in low, whatever it is in high.
TW_FN float tw_high(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u); }
TW_FN float tw_low(float x) { return x - tw_high(x); }
// Where the element of an index is whose digits count to COUNT, and so on, lowest first, in steps of STRIDE elements.
template <int COUNT, int STRIDE, int... MORE> TW_FN int tw_digits(int x) {
  if constexpr (sizeof...(MORE) == 0) return x * STRIDE;
  else return x % COUNT * STRIDE + tw_digits<MORE...>(x / COUNT);
}
// Halves of the elements of ROWS rows (or columns) by DEPTH, one row KEPT elements behind the other, and along the depth by these digits: the first
// counts to a multiple of four. They lie
// in swizzle atoms of lines of SPAN elements along the depth, whose 16-byte chunks are permuted as in `tw_swizzle_atom`. Neighbouring threads have
// neighbouring lines: both their reads and their writes meet all banks. THREADS of a block do it, from FIRST on.
template <int ROWS, int DEPTH, int KEPT, int SPAN, int FIRST, int THREADS, int COUNT, int ALONG, int... MORE> TW_FN void tw_halve(const float* from, float* high, float* low) {
  // So many chunks are read before the first of them is written: they are on their way together.
  constexpr int CHUNKS = ROWS * DEPTH / 4, TOGETHER = 4;
#pragma unroll
  for (int done = 0; done < CHUNKS; done += TOGETHER * THREADS) {
    float all[TOGETHER][4];
#pragma unroll
    for (int c = 0; c < TOGETHER; ++c) {
      const int x = done + c * THREADS + (threadIdx.x - FIRST);
      if (x >= CHUNKS) continue;
      const float* p = from + x % ROWS * KEPT + tw_digits<COUNT, ALONG, MORE...>(x / ROWS * 4);
      if constexpr (ALONG == 1) tw_read_f32<4>(all[c], p);
      else {
#pragma unroll
        for (int i = 0; i < 4; ++i) all[c][i] = p[i * ALONG];
      }
    }
#pragma unroll
    for (int c = 0; c < TOGETHER; ++c) {
      const int x = done + c * THREADS + (threadIdx.x - FIRST), row = x % ROWS, depth = x / ROWS * 4;
      if (x >= CHUNKS) continue;
      tw_run<4> h, l;
#pragma unroll
      for (int i = 0; i < 4; ++i) h.x[i] = tw_high(all[c][i]), l.x[i] = tw_low(all[c][i]);
      const u32 e = (depth / SPAN * ROWS + row) * SPAN + depth % SPAN, at = e ^ ((e >> 5 & (SPAN / 4 - 1)) << 2);
      *(tw_run<4>*)(high + at) = h;
      *(tw_run<4>*)(low + at) = l;
    }
  }
}

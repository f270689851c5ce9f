// Vectors of elements in global memory, as f32 in registers.
// What other blocks may read too, what only this one reads, and what another kernel may have written since this one began.
enum tw_reads { TW_COMMON, TW_OWN, TW_DEPENDENT };
template <int WORDS, tw_reads HOW> TW_FN void tw_words(u32* r, const void* p) {
  if constexpr (WORDS == 1) r[0] = HOW == TW_DEPENDENT ? tw_ldw4(p) : tw_ldg4(p);
  if constexpr (WORDS == 2) { if constexpr (HOW == TW_DEPENDENT) tw_ldw8(r, p); else tw_ldg8(r, p); }
  if constexpr (WORDS == 4) {
    if constexpr (HOW == TW_DEPENDENT) tw_ldw16(r, p); else if constexpr (HOW == TW_OWN) tw_ldo16(r, p); else tw_ldg16(r, p);
  }
}
template <int N, tw_reads HOW = TW_COMMON> TW_FN void tw_load_f32(float* d, const float* p) {
  u32 r[N];
  tw_words<N, HOW>(r, p);
#pragma unroll
  for (int i = 0; i < N; ++i) d[i] = __int_as_float((int)r[i]);
}
template <int N, tw_reads HOW = TW_COMMON> TW_FN void tw_load_bf16(float* d, const u16* p) {
  if constexpr (N == 1) { d[0] = tw_float_bf16(HOW == TW_DEPENDENT ? tw_ldw2(p) : tw_ldg2(p)); } else {
    u32 r[N / 2];
    tw_words<N / 2, HOW>(r, p);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      d[2 * i] = __int_as_float((int)(r[i] << 16));
      d[2 * i + 1] = __int_as_float((int)(r[i] & 0xffff0000u));
    }
  }
}
template <int N, tw_reads HOW = TW_COMMON> TW_FN void tw_load_f16(float* d, const u16* p) {
  if constexpr (N == 1) { d[0] = tw_float_f16(HOW == TW_DEPENDENT ? tw_ldw2(p) : tw_ldg2(p)); } else {
    u32 r[N / 2];
    tw_words<N / 2, HOW>(r, p);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      d[2 * i] = tw_float_f16((u16)(r[i] & 0xffffu));
      d[2 * i + 1] = tw_float_f16((u16)(r[i] >> 16));
    }
  }
}
// Integers and booleans.
template <int N, tw_reads HOW = TW_COMMON> TW_FN void tw_load_i32(float* d, const int* p) {
  u32 r[N];
  tw_words<N, HOW>(r, p);
#pragma unroll
  for (int i = 0; i < N; ++i) d[i] = tw_float_i32((int)r[i]);
}
template <int N, tw_reads HOW = TW_COMMON> TW_FN void tw_load_i64(float* d, const long long* p) {
  u32 r[2 * N];
  tw_words<2 * N, HOW>(r, p);
#pragma unroll
  for (int i = 0; i < N; ++i) d[i] = tw_float_i64((long long)((u64)r[2 * i + 1] << 32 | r[2 * i]));
}
template <int N, tw_reads HOW = TW_COMMON> TW_FN void tw_load_bool(float* d, const unsigned char* p) {
  if constexpr (N < 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) d[i] = tw_float_bool(tw_ldg1(p + i));
  } else {
    u32 r[N / 4];
    tw_words<N / 4, HOW>(r, p);
#pragma unroll
    for (int i = 0; i < N; ++i) d[i] = tw_float_bool((unsigned char)(r[i / 4] >> 8 * (i % 4)));
  }
}
// The other way: N registers as words of a vector.
template <int N> TW_FN void tw_narrow_f32(u32* r, const float* d) {
#pragma unroll
  for (int i = 0; i < N; ++i) r[i] = (u32)__float_as_int(d[i]);
}
template <int N> TW_FN void tw_narrow_bf16(u32* r, const float* d) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) r[i] = tw_pack_bf16(d[2 * i], d[2 * i + 1]);
}
template <int N> TW_FN void tw_narrow_f16(u32* r, const float* d) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) r[i] = tw_pack_f16(d[2 * i], d[2 * i + 1]);
}
template <int N> TW_FN void tw_narrow_i32(u32* r, const float* d) {
#pragma unroll
  for (int i = 0; i < N; ++i) r[i] = (u32)tw_round_i32(d[i]);
}
template <int N> TW_FN void tw_narrow_i64(u32* r, const float* d) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const u64 x = (u64)tw_round_i64(d[i]);
    r[2 * i] = (u32)x;
    r[2 * i + 1] = (u32)(x >> 32);
  }
}
template <int N> TW_FN void tw_narrow_bool(u32* r, const float* d) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    r[i / 4] = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) r[i / 4] |= (u32)tw_round_bool(d[i + k]) << 8 * k;
  }
}
template <int WORDS> TW_FN void tw_store_words(void* p, const u32* r) {
  if constexpr (WORDS == 1) *(u32*)p = r[0];
  if constexpr (WORDS == 2) tw_stg8(p, r);
  if constexpr (WORDS == 4) tw_stg16(p, r);
}
template <int N> TW_FN void tw_store_f32(float* p, const float* d) {
  u32 r[N];
  tw_narrow_f32<N>(r, d);
  tw_store_words<N>(p, r);
}
template <int N> TW_FN void tw_store_bf16(u16* p, const float* d) {
  if constexpr (N == 1) { p[0] = tw_round_bf16(d[0]); } else {
    u32 r[N / 2];
    tw_narrow_bf16<N>(r, d);
    tw_store_words<N / 2>(p, r);
  }
}
template <int N> TW_FN void tw_store_f16(u16* p, const float* d) {
  if constexpr (N == 1) { p[0] = tw_round_f16(d[0]); } else {
    u32 r[N / 2];
    tw_narrow_f16<N>(r, d);
    tw_store_words<N / 2>(p, r);
  }
}
template <int N> TW_FN void tw_store_i32(int* p, const float* d) {
  u32 r[N];
  tw_narrow_i32<N>(r, d);
  tw_store_words<N>(p, r);
}
template <int N> TW_FN void tw_store_i64(long long* p, const float* d) {
  u32 r[2 * N];
  tw_narrow_i64<N>(r, d);
  tw_store_words<2 * N>(p, r);
}
template <int N> TW_FN void tw_store_bool(unsigned char* p, const float* d) {
  if constexpr (N < 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = tw_round_bool(d[i]);
  } else {
    u32 r[N / 4];
    tw_narrow_bool<N>(r, d);
    tw_store_words<N / 4>(p, r);
  }
}
// LANES neighbouring lanes hold as many pieces of N words each: afterwards a lane holds one piece, its own number, of each of them.
template <int LANES, int N> TW_FN void tw_exchange(u32* r) {
#pragma unroll
  for (int bit = 1; bit < LANES; bit *= 2) {
    const bool odd = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < LANES * N; ++i) {
      if (i / N & bit) continue;
      u32& low = r[i];
      u32& high = r[i + bit * N];
      const u32 got = __shfl_xor_sync(0xffffffffu, odd ? low : high, bit);
      low = odd ? got : low;
      high = odd ? high : got;
    }
  }
}
// Neighbours in shared memory, read at once.
template <int N> struct __align__(4 * N) tw_run { float x[N]; };
template <int N> TW_FN void tw_read_f32(float* d, const float* p) {
  const tw_run<N> r = *(const tw_run<N>*)p;
#pragma unroll
  for (int i = 0; i < N; ++i) d[i] = r.x[i];
}

// Host twins of the device primitives in codegen/cuda/{base,async,convert,math,mma,block_group,wgmma,tf32,barrier,box,cluster,multicast,dependent_launch}.cuh:
// the same names, the meaning that the PTX manual gives them. Families without inline assembly are not twinned; the driver compiles their own text.
#pragma once
#include "emulate.h"

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define TW_FN inline

inline float __int_as_float(int x) { float f; std::memcpy(&f, &x, 4); return f; }
inline int __float_as_int(float f) { int x; std::memcpy(&x, &f, 4); return x; }
inline float __uint_as_float(unsigned x) { return __int_as_float((int)x); }
inline unsigned __float_as_uint(float f) { return (unsigned)__float_as_int(f); }
inline float exp2f_(float x) { return std::exp2(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }

// base.cuh. Vector accesses check the alignment that the hardware traps on.
inline void emu_aligned(const void* p, unsigned n) { if ((uintptr_t)p % n) emu::fail("misaligned vector access"); }
template <class T> inline T emu_read(const void* p) { emu_aligned(p, sizeof(T)); emu::outside(p); T v; std::memcpy(&v, p, sizeof v); return v; }
TW_FN float tw_inf() { return INFINITY; }
TW_FN void tw_prefetch(const void* p) { if (!p) emu::fail("nothing is asked for"); }
TW_FN unsigned char tw_ldg1(const void* p) { return emu_read<unsigned char>(p); }
TW_FN u16 tw_ldg2(const void* p) { return emu_read<u16>(p); }
TW_FN u32 tw_ldg4(const void* p) { return emu_read<u32>(p); }
TW_FN void tw_ldg8(u32* r, const void* p) { emu_aligned(p, 8); emu::outside(p); std::memcpy(r, p, 8); }
TW_FN void tw_ldg16(u32* r, const void* p) { emu_aligned(p, 16); emu::outside(p); std::memcpy(r, p, 16); }
TW_FN void tw_ldo16(u32* r, const void* p) { tw_ldg16(r, p); }
TW_FN u16 tw_ldw2(const void* p) { return emu_read<u16>(p); }
TW_FN u32 tw_ldw4(const void* p) { return emu_read<u32>(p); }
TW_FN void tw_ldw8(u32* r, const void* p) { tw_ldg8(r, p); }
TW_FN void tw_ldw16(u32* r, const void* p) { tw_ldg16(r, p); }
TW_FN void tw_stg8(void* p, const u32* r) { emu_aligned(p, 8); emu::outside(p); std::memcpy(p, r, 8); }
TW_FN void tw_stg16(void* p, const u32* r) { emu_aligned(p, 16); emu::outside(p); std::memcpy(p, r, 16); }

// async.cuh
template <int BYTES> TW_FN void tw_copy_async(void* to, const void* from, bool exists) {
  emu_aligned(to, BYTES);
  if (exists) emu_aligned(from, BYTES), emu::outside(from);
  emu::copy_async(to, from, BYTES, exists);
}
template <int BYTES> TW_FN void tw_copy_async(void* to, const void* from) { tw_copy_async<BYTES>(to, from, true); }
TW_FN void tw_copy_commit() { emu::copy_commit(); }
template <int PENDING> TW_FN void tw_copy_wait() { emu::copy_wait(PENDING); }

// dependent_launch.cuh. Launches run one after the other; what may not be used yet is watched.
TW_FN void tw_wait_before() { emu::fibers[emu::current].waited = true; }
TW_FN void tw_start_next() {}

// block_group.cuh. What a block stores lands at a grid barrier, never before.
TW_FN u32 tw_count(u32* at, u32 last) { u32 r = *at; *at = r >= last ? 0 : r + 1; return r; }
TW_FN u32 tw_ticket(u32* at, u32 last) { return tw_count(at, last); }
TW_FN void tw_store_partial(float* to, float x) { emu::store_partial(to, x); }
TW_FN float tw_load_partial(const float* from) { return *from; }
TW_FN void tw_grid_barrier(u32* at, u32 size, u32 round, u32 rounds) {
  __syncthreads();
  if (emu::current == 0) {
    emu::partials_land();
    tw_count(at, size * rounds - 1);
    while (*at < size * round && *at != 0) emu::suspend(3);
  }
  __syncthreads();
}
TW_FN bool tw_last(u32* at, u32 size, u32 rounds, int* here) {
  __syncthreads();
  if (emu::current == 0) {
    emu::partials_land();
    *here = tw_count(at, size * rounds - 1) == size * rounds - 1;
  }
  __syncthreads();
  return *here != 0;
}

// convert.cuh
TW_FN float tw_float_bf16(u16 x) { return emu::of_bf16(x); }
TW_FN float tw_float_f16(u16 x) { return emu::of_f16(x); }
TW_FN float tw_float_i32(int x) { return (float)x; }
TW_FN float tw_float_i64(long long x) { return (float)x; }
TW_FN float tw_float_bool(unsigned char x) { return x != 0 ? 1.0f : 0.0f; }
// `cvt` saturates; of NaN it makes 0, but the least integer of 64 bits.
template <class T> inline T emu_whole(float x) {
  const float end = -(float)std::numeric_limits<T>::min();
  if (x != x) return 0;
  return x >= end ? std::numeric_limits<T>::max() : x < -end ? std::numeric_limits<T>::min() : (T)x;
}
TW_FN int tw_round_i32(float x) { return emu_whole<int>(x); }
TW_FN long long tw_round_i64(float x) { return emu_whole<long long>(x); }
TW_FN unsigned char tw_round_bool(float x) { return x != 0.0f; }
TW_FN u16 tw_round_bf16(float x) { return emu::bf16_of(x); }
TW_FN u16 tw_round_f16(float x) { return emu::f16_of(x); }
TW_FN u32 tw_pack_bf16(float lo, float hi) { return emu::bf16_of(lo) | (u32)emu::bf16_of(hi) << 16; }
TW_FN u32 tw_pack_f16(float lo, float hi) { return emu::f16_of(lo) | (u32)emu::f16_of(hi) << 16; }

// math.cuh
TW_FN float tw_exp2(float x) { return (float)std::exp2((double)x); }
TW_FN float tw_within_200(float x) { return x < -200.0f ? -200.0f : x > 200.0f ? 200.0f : x; }
TW_FN float tw_exp2_fast(float x) { return (float)std::exp2((double)x); }
TW_FN float tw_exp_fast(float x) { return tw_exp2_fast(x * 1.4426950408889634f); }
TW_FN float tw_exp_scale(float y, float c) {
  const float s = c * 1.4426950408889634f;
  return std::fabs(y * c) >= 1.4e9f ? __uint_as_float(__float_as_uint(s) & 0xff800000u) : s;
}
TW_FN float tw_log_fast(float x) { return (float)std::log((double)x); }
TW_FN float tw_sqrt_fast(float x) { return std::sqrt(x); }
// An estimate, off by a unit in the last place, without subnormal numbers.
TW_FN float tw_reciprocal(float x) {
  const float r = 1.0f / x * (1.0f - 0x1p-23f);
  return std::fabs(r) < 0x1p-126f ? 0.0f * r : r;
}
TW_FN float tw_div_fast(float x, float y) { return x / y; }

// mma.cuh. ldmatrix.x4: matrix q's row r starts at lane 8q + r's address; lane l receives elements 2(l%4), 2(l%4)+1 of row
// l/4 of each matrix (transposed: of column l/4).
inline void emu_ldmatrix(u32 (&r)[4], const void* row, bool trans) {
  emu_aligned(row, 16);
  const unsigned l = emu::current % 32;
  emu::collective(&row, sizeof row, [&](auto& slot) {
    for (unsigned q = 0; q < 4; ++q) {
      u16 e[2];
      for (unsigned h = 0; h < 2; ++h) {
        const unsigned line = trans ? 2 * (l % 4) + h : l / 4, column = trans ? l / 4 : 2 * (l % 4) + h;
        const unsigned char* p;
        std::memcpy(&p, slot[8 * q + line], sizeof p);
        std::memcpy(&e[h], p + 2 * column, 2);
      }
      r[q] = e[0] | (u32)e[1] << 16;
    }
  });
}
TW_FN void tw_ldmatrix(u32 (&r)[4], const void* row) { emu_ldmatrix(r, row, false); }
TW_FN void tw_ldmatrix_trans(u32 (&r)[4], const void* row) { emu_ldmatrix(r, row, true); }

// D += A·B with A 16xK, B Kx8; E elements in each 32-bit register. Fragment layouts as in the PTX manual, g = lane/4, t = lane%4.
struct emu_operands { u32 a[4], b[2]; };
template <int E, class Widen> inline void emu_mma(float* d, const u32 (&a)[4], u32 b0, u32 b1, Widen widen) {
  constexpr int K = 8 * E;
  emu_operands mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const unsigned l = emu::current % 32, g = l / 4, t = l % 4;
  emu::collective(&mine, sizeof mine, [&](auto& slot) {
    auto element = [&](u32 word, int h) { return E == 2 ? widen(u32(u16(word >> (16 * h)))) : widen(word); };
    auto at = [&](unsigned lane) { emu_operands o; std::memcpy(&o, slot[lane], sizeof o); return o; };
    for (int half = 0; half < 2; ++half)
      for (int c = 0; c < 2; ++c) {
        float sum = d[2 * half + c];
        for (int k = 0; k < K; ++k) {
          // A row g + 8*half: registers half (k < K/2) and half + 2; B column 2t + c: register k / (K/2).
          const int upper = k / (K / 2), within = k % (K / 2);
          const emu_operands left = at(4 * g + within / E), right = at(4 * (2 * t + c) + within / E);
          sum += element(left.a[half + 2 * upper], within % E) * element(right.b[upper], within % E);
        }
        d[2 * half + c] = sum;
      }
  });
}
TW_FN void tw_mma_bf16(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  emu_mma<2>(d, a, b0, b1, [](u32 x) { return emu::of_bf16((u16)x); });
}
TW_FN void tw_mma_f16(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  emu_mma<2>(d, a, b0, b1, [](u32 x) { return emu::of_f16((u16)x); });
}
TW_FN u32 tw_tf32(float x) { u32 b; std::memcpy(&b, &x, 4); return (b + 0x1000) & 0xffffe000u; }
TW_FN void tw_mma_tf32(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  emu_mma<1>(d, a, b0, b1, [](u32 x) { return __uint_as_float(x & 0xffffe000u); });
}

// wgmma.cuh. A product is carried out at the `wait` that covers it, from what shared memory holds then.
extern unsigned char shared[];
// Functions that the four warps of a group call together know the line that calls them.
#define EMU_LINE int line = __builtin_LINE()
TW_FN void tw_wgmma_fence(EMU_LINE) { emu::together("a fence of warpgroup instructions", line); }
TW_FN void tw_proxy_fence() { emu::fenced[emu::current] = ++emu::now; }
template <int N> TW_FN void tw_keep(float*) {}
TW_FN void tw_wgmma_commit(EMU_LINE) {
  emu::together("a commit of warpgroup instructions", line);
  emu::products_commit();
}
template <int PENDING> TW_FN void tw_wgmma_wait(EMU_LINE) {
  emu::together("a wait for warpgroup instructions", line);
  emu::products_wait(PENDING);
}
template <int SPAN> TW_FN u64 tw_descriptor(const void* tile, u32 swizzle_atoms) {
  const u64 s = (const unsigned char*)tile - shared;
  if (s % 1024) emu::fail("a tile that begins inside a pattern");
  const u64 mode = SPAN == 64 ? 1 : SPAN == 32 ? 2 : 3;
  return (s & 0x3ffff) >> 4 | (u64)(swizzle_atoms >> 4) << 16 | (u64)(16 * SPAN >> 4) << 32 | mode << 62;
}
// Where element (kept, depth) of an operand is that a descriptor names; `across`: its lines do not run along the depth; `bytes` of an element.
inline unsigned emu_place(u64 d, bool across, unsigned kept, unsigned depth, unsigned bytes = 2) {
  const unsigned start = (d & 0x3fff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
  const unsigned mode = d >> 62, line = mode == 1 ? 128 : mode == 2 ? 64 : 32, mask = line / 16 - 1;
  unsigned a = start;
  if (across) a += 2 * kept / line * leading + depth / 8 * stride + depth % 8 * line + 2 * kept % line;
  else a += kept / 8 * stride + kept % 8 * line + bytes * depth;
  return a ^ (a >> 7 & mask) << 4;
}
inline u16 emu_described(u64 d, bool across, unsigned kept, unsigned depth) {
  u16 e;
  std::memcpy(&e, shared + emu_place(d, across, kept, depth), 2);
  return e;
}
template <int N, class A, class Widen> inline void emu_wgmma(float* d, A a, u64 b, bool across, u32 add, Widen widen) {
  const unsigned t = emu::current % 4;
  for (unsigned kept = 2 * t; kept < N; kept += kept % 2 ? 7 : 1)
    for (unsigned k = 0; k < 16; ++k) emu::check_proxy(emu_place(b, across, kept, k));
  emu::product([=] {
    for (int n8 = 0; n8 < N / 8; ++n8)
      for (int h = 0; h < 2; ++h)
        for (int c = 0; c < 2; ++c) {
          float& to = d[4 * n8 + 2 * h + c];
          float sum = add ? to : 0.0f;
          for (unsigned k = 0; k < 16; ++k) sum += widen(a(h, k)) * widen(emu_described(b, across, 8 * n8 + 2 * t + c, k));
          to = sum;
        }
  });
}
template <int N, int TA, int TB, class Widen> inline void emu_wgmma_shared(float* d, u64 a, u64 b, u32 add, Widen widen) {
  const unsigned row = 16 * (emu::current / 32 % 4) + emu::current % 32 / 4;
  for (unsigned i = 0; i < 32; ++i) emu::check_proxy(emu_place(a, TA, row + 8 * (i / 16), i % 16));
  emu_wgmma<N>(d, [=](int h, unsigned k) { return emu_described(a, TA, row + 8 * h, k); }, b, TB, add, widen);
}
template <int N, int TB, class Widen> inline void emu_wgmma_held(float* d, const u32 (&a)[4], u64 b, u32 add, Widen widen) {
  struct Quad { u32 a[4][4]; } quad;
  const unsigned g = emu::current % 32 / 4;
  emu::collective(a, sizeof a, [&](auto& slot) { for (unsigned t = 0; t < 4; ++t) std::memcpy(quad.a[t], slot[4 * g + t], 16); });
  emu_wgmma<N>(d, [=](int h, unsigned k) { return u16(quad.a[k % 8 / 2][h + 2 * (k / 8)] >> 16 * (k % 2)); }, b, TB, add, widen);
  // The instruction reads its rows when it is carried out.
  struct Rows { u32 a[4]; } rows;
  std::memcpy(rows.a, a, sizeof a);
  const u32* at = a;
  emu::product([=] {
    if (std::memcmp(at, rows.a, sizeof rows.a)) emu::fail("rows of an instruction under way were changed");
  });
}
// tf32.cuh. The instruction reads the upper 19 bits of an element.
template <int N> TW_FN void tw_wgmma_tf32_held(float* d, const float* a, u64 b, u32 add, EMU_LINE) {
  emu::together("a warpgroup instruction", line);
  const unsigned g = emu::current % 32 / 4, t = emu::current % 4;
  const auto widen = [](u32 x) { return __uint_as_float(x & 0xffffe000u); };
  struct Quad { u32 a[4][4]; } quad;
  emu::collective(a, 16, [&](auto& slot) { for (unsigned t = 0; t < 4; ++t) std::memcpy(quad.a[t], slot[4 * g + t], 16); });
  for (unsigned kept = 2 * t; kept < N; kept += kept % 2 ? 7 : 1)
    for (unsigned k = 0; k < 8; ++k) emu::check_proxy(emu_place(b, false, kept, k, 4));
  struct Rows { float a[4]; } rows;
  std::memcpy(rows.a, a, 16);
  emu::product([=] {
    if (std::memcmp(a, rows.a, 16)) emu::fail("rows of an instruction under way were changed");
    for (int n8 = 0; n8 < N / 8; ++n8)
      for (int h = 0; h < 2; ++h)
        for (int c = 0; c < 2; ++c) {
          float& to = d[4 * n8 + 2 * h + c];
          float sum = add ? to : 0.0f;
          for (unsigned k = 0; k < 8; ++k) {
            u32 e;
            std::memcpy(&e, shared + emu_place(b, false, 8 * n8 + 2 * t + c, k, 4), 4);
            sum += widen(quad.a[k % 4][h + 2 * (k / 4)]) * widen(e);
          }
          to = sum;
        }
  });
}
template <int N, int TA, int TB> TW_FN void tw_wgmma_bf16(float* d, u64 a, u64 b, u32 add, EMU_LINE) {
  emu::together("a warpgroup instruction", line);
  emu_wgmma_shared<N, TA, TB>(d, a, b, add, [](u16 x) { return emu::of_bf16(x); });
}
template <int N, int TA, int TB> TW_FN void tw_wgmma_f16(float* d, u64 a, u64 b, u32 add, EMU_LINE) {
  emu::together("a warpgroup instruction", line);
  emu_wgmma_shared<N, TA, TB>(d, a, b, add, [](u16 x) { return emu::of_f16(x); });
}
template <int N, int TB> TW_FN void tw_wgmma_bf16_held(float* d, const u32 (&a)[4], u64 b, u32 add, EMU_LINE) {
  emu::together("a warpgroup instruction", line);
  emu_wgmma_held<N, TB>(d, a, b, add, [](u16 x) { return emu::of_bf16(x); });
}
template <int N, int TB> TW_FN void tw_wgmma_f16_held(float* d, const u32 (&a)[4], u64 b, u32 add, EMU_LINE) {
  emu::together("a warpgroup instruction", line);
  emu_wgmma_held<N, TB>(d, a, b, add, [](u16 x) { return emu::of_f16(x); });
}

// barrier.cuh. A barrier counts the announcements that its phase still lacks; every phase that ends counts as a barrier of the
// block for the detection of races.
void emu_spin();
void tw_barrier_init(void* p, u32 threads);
void tw_barrier_arrive(void* p);
// Announced copies land when somebody waits for them, or at last when their own thread does.
void tw_copy_arrive(void* p);
void tw_barrier_wait(void* p, u32 parity);
void tw_copies_end();
TW_FN void tw_tile_wait(void* p, u32 parity) {
  tw_barrier_wait(p, parity);
  tw_proxy_fence();
}
template <int COUNT> TW_FN void tw_registers_less(EMU_LINE) { emu::together("registers that move", line); }
template <int COUNT> TW_FN void tw_registers_more(EMU_LINE) { emu::together("registers that move", line); }
template <int THREADS> inline void emu_named_barrier(int barrier, bool ends_epoch) {
  const unsigned at = emu::named[barrier] / THREADS;
  if (++emu::named[barrier] % THREADS == 0 && ends_epoch) ++emu::epoch;
  while (emu::named[barrier] / THREADS == at) emu_spin();
  ++emu::passes;
}
inline bool emu_votes[16][2];  // what threads said at a barrier, in this round and the one before
TW_FN bool tw_any_of_group(int group, bool holds, EMU_LINE) {
  emu::together("a vote", line);
  const unsigned barrier = group + 8, round = emu::named[barrier] / 128;
  bool& any = emu_votes[barrier][round % 2];
  any = holds || (any && emu::named[barrier] % 128);
  emu_named_barrier<128>(barrier, false);
  return any;
}
template <int THREADS> TW_FN void tw_compute_barrier(EMU_LINE) {
  emu::together("a barrier of the threads that compute", line);
  emu_named_barrier<THREADS>(15, true);
}
template <int THREADS> TW_FN void tw_turn_pass(int group, EMU_LINE) {
  emu::together("a turn that is passed on", line);
  ++emu::named[group + 1];
}
template <int THREADS> TW_FN void tw_turn_wait(int group, EMU_LINE) {
  emu::together("a turn that is waited for", line);
  emu_named_barrier<THREADS>(group + 1, false);
}

// box.cuh. Boxes land when somebody waits for their barrier.
struct tw_map { unsigned char* data; unsigned rank, line; u64 extents[5], strides[5], sizes[5]; };
TW_FN void tw_map_fetch(const tw_map&) {}
template <class... At> TW_FN void tw_box_prefetch(const tw_map& map, At...) {
  if (sizeof...(At) != map.rank) emu::fail("a box with another number of coordinates than its tensor has dimensions");
}
void tw_barriers_made();
void tw_box_expect(void* p, u32 bytes);
void emu_box(void* to, const tw_map& map, void* barrier, const long long* from, unsigned rank, bool to_all);
template <class... At> TW_FN void tw_box(void* to, const tw_map& map, void* barrier, At... at) {
  const long long from[] = {(long long)at...};
  emu_box(to, map, barrier, from, sizeof...(At), false);
}

// cluster.cuh.
int emu_cluster_rank(unsigned size);
template <int SIZE> TW_FN int tw_cluster_rank() { return emu_cluster_rank(SIZE); }
void tw_cluster_begins();
void tw_cluster_meets();
float tw_load_peer(const float* at, int rank);

// multicast.cuh. Clusters of two.
void emu_peer_arrive(void* barrier);
template <int SIZE> TW_FN void tw_peers_arrive(void* barrier, int rank) {
  static_assert(SIZE == 2);
  if (rank != tw_cluster_rank<SIZE>()) emu::fail("another rank in the cluster");
  emu_peer_arrive(barrier);
}
template <int SIZE, class... At> TW_FN void tw_box_to_all(void* to, const tw_map& map, void* barrier, At... at) {
  static_assert(SIZE == 2);
  const long long from[] = {(long long)at...};
  emu_box(to, map, barrier, from, sizeof...(At), true);
}

// A stand-in for one GPU on the host: the threads of a block are fibers that a scheduler resumes in turn.
// Background copies happen as late as they may, and shared memory starts as garbage, so that a missing barrier or wait
// changes results; running in the opposite order does so too.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#include <ucontext.h>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) __attribute__((aligned(n)))
#define TW_FN static inline

struct Index { unsigned x; };
static Index threadIdx, blockIdx;
alignas(128) unsigned char shared[240 * 1024];

struct Copy { void* to; const void* from; int bytes; bool exists; };
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
};
struct Barrier { unsigned arrived = 0, generation = 0; };
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static Barrier block_barrier;
static std::vector<Barrier> warp_barriers;
struct Lane { float value; const void* row; u32 a[4]; u32 b[2]; float d[4]; };
static std::vector<Lane> lanes;
static std::function<void()> body;

static void yield() {
  unsigned me = threadIdx.x;
  swapcontext(&fibers[me].context, &scheduler);
}
static void arrive(Barrier& b, unsigned parties) {
  unsigned generation = b.generation;
  if (++b.arrived == parties) { b.arrived = 0; b.generation++; return; }
  while (b.generation == generation) yield();
}
static void __syncthreads() { arrive(block_barrier, fibers.size()); }
static void warp_sync() { arrive(warp_barriers[threadIdx.x / 32], 32); }
static Lane& mine() { return lanes[threadIdx.x]; }
static Lane& other(unsigned lane) { return lanes[threadIdx.x / 32 * 32 + lane]; }

static float __int_as_float(int x) { float r; memcpy(&r, &x, 4); return r; }
static int __float_as_int(float x) { int r; memcpy(&r, &x, 4); return r; }
static float __shfl_xor_sync(unsigned, float v, int mask) {
  mine().value = v;
  warp_sync();
  float r = other((threadIdx.x % 32) ^ mask).value;
  warp_sync();
  return r;
}
TW_FN float tw_inf() { return INFINITY; }
TW_FN u16 tw_ldg2(const void* p) { u16 r; memcpy(&r, p, 2); return r; }
static void aligned(const void* p, unsigned n) {
  if ((uintptr_t)p % n) { fprintf(stderr, "misaligned access of %u bytes\n", n); abort(); }
}
TW_FN u32 tw_ldg4(const void* p) { aligned(p, 4); u32 r; memcpy(&r, p, 4); return r; }
TW_FN void tw_ldg8(u32* r, const void* p) { aligned(p, 8); memcpy(r, p, 8); }
TW_FN void tw_ldg16(u32* r, const void* p) { aligned(p, 16); memcpy(r, p, 16); }
TW_FN void tw_stg8(void* p, const u32* r) { aligned(p, 8); memcpy(p, r, 8); }
TW_FN void tw_stg16(void* p, const u32* r) { aligned(p, 16); memcpy(p, r, 16); }

TW_FN float tw_float_bf16(u16 x) { return __int_as_float((int)((u32)x << 16)); }
TW_FN float tw_float_f16(u16 x) { _Float16 h; memcpy(&h, &x, 2); return (float)h; }
TW_FN u16 tw_round_bf16(float x) {
  if (x != x) return 0x7fff;
  u32 b = (u32)__float_as_int(x);
  return (u16)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
TW_FN u16 tw_round_f16(float x) { _Float16 h = (_Float16)x; u16 r; memcpy(&r, &h, 2); return r; }
TW_FN u32 tw_pack_bf16(float lo, float hi) { return tw_round_bf16(lo) | (u32)tw_round_bf16(hi) << 16; }
TW_FN u32 tw_pack_f16(float lo, float hi) { return tw_round_f16(lo) | (u32)tw_round_f16(hi) << 16; }
TW_FN float tw_exp2_fast(float x) { return exp2f(x); }
TW_FN float tw_exp_fast(float x) { return exp2f(x * 1.4426950408889634f); }
TW_FN float tw_log_fast(float x) { return logf(x); }
TW_FN float tw_sqrt_fast(float x) { return sqrtf(x); }
TW_FN float tw_div_fast(float x, float y) { return x / y; }

static void perform(const std::vector<Copy>& group) {
  for (const Copy& c : group) {
    if (c.exists) memcpy(c.to, c.from, c.bytes); else memset(c.to, 0, c.bytes);
  }
}
template <int BYTES> TW_FN void tw_copy_async(void* to, const void* from, bool exists = true) {
  aligned(to, BYTES);
  if (exists) aligned(from, BYTES);
  if ((unsigned char*)to < shared || (unsigned char*)to + BYTES > shared + sizeof shared) { fprintf(stderr, "copy outside shared memory\n"); abort(); }
  fibers[threadIdx.x].open.push_back({to, from, BYTES, exists});
}
TW_FN void tw_copy_commit() {
  Fiber& f = fibers[threadIdx.x];
  f.groups.push_back(f.open);
  f.open.clear();
}
template <int PENDING> TW_FN void tw_copy_wait() {
  Fiber& f = fibers[threadIdx.x];
  while (f.groups.size() > PENDING) { perform(f.groups[0]); f.groups.erase(f.groups.begin()); }
}

static u16 half_at(const void* row, unsigned i) { u16 r; memcpy(&r, (const char*)row + 2 * i, 2); return r; }
TW_FN void tw_ldmatrix(u32 (&r)[4], const void* row) {
  aligned(row, 16);
  mine().row = row;
  warp_sync();
  unsigned l = threadIdx.x % 32, g = l / 4, t = l % 4;
  for (unsigned i = 0; i < 4; i++) {
    const void* at = other(8 * i + g).row;
    r[i] = half_at(at, 2 * t) | (u32)half_at(at, 2 * t + 1) << 16;
  }
  warp_sync();
}
TW_FN void tw_ldmatrix_trans(u32 (&r)[4], const void* row) {
  aligned(row, 16);
  mine().row = row;
  warp_sync();
  unsigned l = threadIdx.x % 32, g = l / 4, t = l % 4;
  for (unsigned i = 0; i < 4; i++)
    r[i] = half_at(other(8 * i + 2 * t).row, g) | (u32)half_at(other(8 * i + 2 * t + 1).row, g) << 16;
  warp_sync();
}
// PTX ISA, fragments of m16n8k16 (16-bit): a0 (g, 2t..) a1 (g+8, 2t..) a2 (g, 2t+8..) a3 (g+8, 2t+8..); b0 (2t.., g)
// b1 (2t+8.., g); c0,c1 (g, 2t..) c2,c3 (g+8, 2t..).
static void mma16(float* d, const u32 (&a)[4], u32 b0, u32 b1, float (*wide)(u16)) {
  memcpy(mine().a, a, 16);
  mine().b[0] = b0;
  mine().b[1] = b1;
  warp_sync();
  unsigned l = threadIdx.x % 32, g = l / 4, t = l % 4;
  for (unsigned i = 0; i < 4; i++) {
    unsigned row = g + 8 * (i / 2), column = 2 * t + i % 2;
    double sum = d[i];
    for (unsigned k = 0; k < 16; k++) {
      u32 x = other(row % 8 * 4 + k % 8 / 2).a[row / 8 + 2 * (k / 8)];
      u32 y = other(column * 4 + k % 8 / 2).b[k / 8];
      sum += (double)wide((u16)(k % 2 ? x >> 16 : x)) * wide((u16)(k % 2 ? y >> 16 : y));
    }
    d[i] = (float)sum;
  }
  warp_sync();
}
TW_FN void tw_mma_bf16(float* d, const u32 (&a)[4], u32 b0, u32 b1) { mma16(d, a, b0, b1, tw_float_bf16); }
TW_FN void tw_mma_f16(float* d, const u32 (&a)[4], u32 b0, u32 b1) { mma16(d, a, b0, b1, tw_float_f16); }
TW_FN u32 tw_tf32(float x) { return ((u32)__float_as_int(x) + 0x1000u) & 0xffffe000u; }
// m16n8k8: a0 (g, t) a1 (g+8, t) a2 (g, t+4) a3 (g+8, t+4); b0 (t, g) b1 (t+4, g).
TW_FN void tw_mma_tf32(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  memcpy(mine().a, a, 16);
  mine().b[0] = b0;
  mine().b[1] = b1;
  warp_sync();
  unsigned l = threadIdx.x % 32, g = l / 4, t = l % 4;
  for (unsigned i = 0; i < 4; i++) {
    unsigned row = g + 8 * (i / 2), column = 2 * t + i % 2;
    double sum = d[i];
    for (unsigned k = 0; k < 8; k++)
      sum += (double)__int_as_float((int)other(row % 8 * 4 + k % 4).a[row / 8 + 2 * (k / 4)]) *
             __int_as_float((int)other(column * 4 + k % 4).b[k / 4]);
    d[i] = (float)sum;
  }
  warp_sync();
}

static void start() {
  body();
  fibers[threadIdx.x].done = true;
  fibers[threadIdx.x].groups.clear();
  yield();
}
static void launch(unsigned blocks, unsigned threads, bool backwards, std::function<void()> kernel) {
  body = kernel;
  for (unsigned block = 0; block < blocks; block++) {
    blockIdx.x = block;
    memset(shared, 0xff, sizeof shared);
    fibers = std::vector<Fiber>(threads);
    lanes = std::vector<Lane>(threads);
    block_barrier = Barrier();
    warp_barriers = std::vector<Barrier>(threads / 32);
    for (Fiber& f : fibers) {
      f.stack.resize(256 * 1024);
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.data();
      f.context.uc_stack.ss_size = f.stack.size();
      f.context.uc_link = &scheduler;
      makecontext(&f.context, start, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (unsigned i = 0; i < threads; i++) {
        unsigned t = backwards ? threads - 1 - i : i;
        if (fibers[t].done) continue;
        left = true;
        threadIdx.x = t;
        swapcontext(&scheduler, &fibers[t].context);
      }
    }
  }
}
static std::vector<unsigned char> read_file(const char* path) {
  FILE* f = fopen(path, "rb");
  if (!f) { fprintf(stderr, "no %s\n", path); exit(2); }
  fseek(f, 0, SEEK_END);
  size_t n = ftell(f);
  rewind(f);
  void* memory = nullptr;
  std::vector<unsigned char> data(n);
  if (fread(data.data(), 1, n, f) != n) exit(2);
  fclose(f);
  (void)memory;
  return data;
}
static void write_file(const char* path, const unsigned char* data, size_t n) {
  FILE* f = fopen(path, "wb");
  if (!f || fwrite(data, 1, n, f) != n) exit(2);
  fclose(f);
}

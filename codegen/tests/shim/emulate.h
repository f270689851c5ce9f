// A CPU twin of the CUDA execution model, enough to run generated kernels bit by bit without a GPU.
//
// One block runs at a time; a block whose threads all wait for other blocks steps aside, and its shared memory with it: so do the two of a
// cluster by turns, and what one does to the other's shared memory comes when that goes on. Every CUDA
// thread is a fiber (ucontext). A fiber runs until it meets a barrier or a warp
// collective; the scheduler then picks the next one, in an order that the driver varies (forward, backward, shuffled), so that
// a missing barrier shows as a wrong result under some order. Asynchronous copies land as late as the model allows, at the
// `wait` that covers them and never before, or in the shuffled order as early, where they are issued. Reads and writes of shared memory are bounds-checked by a guard region behind it, and
// every one is recorded: two threads that touch a byte, one of them writing, without a barrier between them are a race, whether
// or not some order shows it. What the four warps of a group do together (wgmma and what orders it, named barriers, registers that
// move) they must do from the same lines of the text, in the same order. The compiler reports accesses as it would to ThreadSanitizer, whose place the hooks in machine.cpp take.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
#define __grid_constant__
#define __shared__
#define __align__(n)

struct Dim3 { unsigned x, y, z; };

namespace emu {

// One asynchronous copy that has been issued and not yet waited for.
struct Copy { unsigned char* to; const unsigned char* from; unsigned bytes, take; };

struct Fiber {
  ucontext_t context;            // where it starts
  jmp_buf place;                 // where it goes on
  bool started = false;
  bool done = false;
  bool waited = false;           // for the launches in front
  size_t steps = 0;              // taken of those that its group takes together
  int waits = 0;                 // 0: runnable, 1: block barrier, 2: warp collective, 3: another block
  std::vector<std::pair<float*, float>> partials;  // for other blocks, not landed
  std::vector<Copy> open;        // issued, not committed
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<std::function<void()>> products;  // warpgroup instructions, issued, not committed
  std::vector<std::vector<std::function<void()>>> product_groups;
};

struct Warp { unsigned arrived = 0; unsigned char slot[32][128]; unsigned mask = ~0u; };

// What is no plain number lives in machine.cpp: what would make and end it would be compiled with every kernel.
extern std::vector<Fiber> fibers;
extern std::vector<Warp> warps;
inline unsigned current = 0, at_barrier = 0, live = 0;

inline uint64_t rng = 1;
inline int order = 0;            // 0 forward, 1 backward, 2 shuffled
inline int mutant = 0;           // which fault a test has switched on; 0 none
inline unsigned named[16];       // arrivals at the named barriers of the block
inline uint64_t spins = 0;
inline uint64_t passes = 0;      // counts waits that ended

// What touched a byte of shared memory since the last barrier of the block.
struct Seen {
  unsigned write_epoch, writer, write_sync;               // the last write
  unsigned read_epoch, warps, warp, read_sync, lanes;     // reading warps; of the last of them the lanes since it synchronised
  unsigned block;                                         // whose write it was
  uint64_t written;                                       // when
};
inline Seen seen[232448 + 1024];
inline unsigned char* seen_from = nullptr;  // where shared memory begins
inline unsigned epoch = 1;                  // counts barriers of all blocks, announcements among them
inline unsigned block_barriers = 0;         // counts barriers of all threads of a block
inline unsigned syncs[64];                  // counts __syncwarp of every warp
inline unsigned block = 0;                  // the number of the current block
inline uint64_t now = 0;                    // counts writes to shared memory, and proxy fences
inline uint64_t fenced[2048];               // when each thread told the asynchronous proxy of what was written

[[noreturn]] inline void fail(const char* what) { std::fprintf(stderr, "emulator: %s (thread %u)\n", what, current); std::_Exit(3); }

// Memory that launches in front of this one may still use: nobody may touch it before the thread has waited for them.
// Plain arrays: the hooks look at them.
struct Range { const unsigned char* from; size_t bytes; };
inline Range others[512];
inline unsigned other_count = 0;
inline Fiber* running = nullptr;
void outside(const void* at);
void touch(const void* at, unsigned bytes, bool write);
void check_proxy(unsigned at);
void suspend(int why);
void barrier();
void together(const char* what, int line);
void copy_async(void* to, const void* from, unsigned bytes, bool exists);
void copy_commit();
void copy_wait(unsigned pending);
void product(std::function<void()> carry_out);
void products_commit();
void products_wait(unsigned pending);
void store_partial(float* to, float x);
void partials_land();

// All 32 lanes deposit `bytes`, then every lane sees every deposit. Lanes of one warp must all arrive.
template <class F> inline void collective(const void* in, unsigned bytes, F use) {
  const unsigned w = current / 32, l = current % 32;
  std::memcpy(warps[w].slot[l], in, bytes);
  ++warps[w].arrived;
  suspend(2);
  use(warps[w].slot);
  ++warps[w].arrived;            // nobody may overwrite a slot before all have read
  suspend(2);
}

inline uint16_t bf16_of(float x) {
  uint32_t b; std::memcpy(&b, &x, 4);
  if ((b & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
inline float of_bf16(uint16_t h) { uint32_t b = uint32_t(h) << 16; float x; std::memcpy(&x, &b, 4); return x; }
inline uint16_t f16_of(float x) { _Float16 h = _Float16(x); uint16_t b; std::memcpy(&b, &h, 2); return b; }
inline float of_f16(uint16_t b) { _Float16 h; std::memcpy(&h, &b, 2); return float(h); }

}  // namespace emu

struct CurrentThread { struct X { operator unsigned() const { return emu::current; } } x; unsigned y = 0, z = 0; };
inline CurrentThread threadIdx;
inline Dim3 blockIdx, gridDim, blockDim;

inline void __syncthreads() { emu::barrier(); }
inline void __syncwarp(unsigned = ~0u) {
  int x = 0;
  emu::collective(&x, 4, [](auto&) { if (emu::current % 32 == 0) ++emu::syncs[emu::current / 32]; });
}
template <class T> inline T __shfl_xor_sync(unsigned, T v, int lane_mask) {
  T out; const unsigned l = emu::current % 32;
  emu::collective(&v, sizeof v, [&](auto& slot) { std::memcpy(&out, slot[(l ^ lane_mask) & 31], sizeof v); });
  return out;
}
template <class T> inline T __shfl_up_sync(unsigned, T v, unsigned delta) {
  T out; const unsigned l = emu::current % 32;
  emu::collective(&v, sizeof v, [&](auto& slot) { std::memcpy(&out, slot[l < delta ? l : l - delta], sizeof v); });
  return out;
}
template <class T> inline T __shfl_sync(unsigned, T v, int from) {
  T out;
  emu::collective(&v, sizeof v, [&](auto& slot) { std::memcpy(&out, slot[from & 31], sizeof v); });
  return out;
}

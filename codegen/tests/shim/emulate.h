// A CPU twin of the CUDA execution model, enough to run generated kernels bit by bit without a GPU.
//
// One block runs at a time; a block whose threads all wait for other blocks steps aside, and its shared memory with it. Every CUDA
// thread is a fiber (ucontext). A fiber runs until it meets a barrier or a warp
// collective; the scheduler then picks the next one, in an order that the driver varies (forward, backward, shuffled), so that
// a missing barrier shows as a wrong result under some order. Asynchronous copies land as late as the model allows, at the
// `wait` that covers them and never before, or in the shuffled order as early, where they are issued. Reads and writes of shared memory are bounds-checked by a guard region behind it, and
// every one is recorded: two threads that touch a byte, one of them writing, without a barrier between them are a race, whether
// or not some order shows it. The compiler reports accesses as it would to ThreadSanitizer, whose place the hooks below take.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __grid_constant__
#define __shared__
#define __align__(n)

struct Dim3 { unsigned x, y, z; };

namespace emu {

// One asynchronous copy that has been issued and not yet waited for.
struct Copy { unsigned char* to; const unsigned char* from; unsigned bytes, take; };

// Copies of a thread that a barrier is told of when they have landed; `box`: so many bytes that the hardware copied.
struct Announced { void* barrier; unsigned thread; std::vector<Copy> copies; unsigned box = 0; };

struct Fiber {
  ucontext_t context;
  bool done = false;
  bool waited = false;           // for the launches in front
  int waits = 0;                 // 0: runnable, 1: block barrier, 2: warp collective, 3: another block
  std::vector<std::pair<float*, float>> posts;  // for other blocks, not landed
  std::vector<Copy> open;        // issued, not committed
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<std::function<void()>> products;  // warpgroup instructions, issued, not committed
  std::vector<std::vector<std::function<void()>>> product_groups;
};

struct Warp { unsigned arrived = 0; unsigned char slot[32][128]; unsigned mask = ~0u; };

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
typedef std::vector<std::vector<char>> Stacks;
inline Stacks stacks;
inline std::vector<Stacks> spare;  // of blocks that ended
inline std::vector<Warp> warps;
inline unsigned current = 0, at_barrier = 0, live = 0;


inline uint64_t rng = 1;
inline int order = 0;            // 0 forward, 1 backward, 2 shuffled
inline int mutant = 0;           // which fault a test has switched on; 0 none
inline std::function<void()> body;
inline std::vector<Announced> announced;
inline unsigned named[16];       // arrivals at the named barriers of the block
inline uint64_t spins = 0;

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
inline unsigned meetings = 0;               // counts barriers of all threads of a block
inline unsigned syncs[64];                  // counts __syncwarp of every warp
inline unsigned block = 0;                  // the number of the current block
inline uint64_t now = 0;                    // counts writes to shared memory, and proxy fences
inline uint64_t fenced[2048];               // when each thread told the asynchronous proxy of what was written
// Bytes that the current thread writes though another one did: threads that hold copies of one value may all write it, so
// the byte must stay what it was.
struct Twice { unsigned char* at; unsigned char value; };
inline std::vector<Twice> twice;

[[noreturn]] inline void fail(const char* what) { std::fprintf(stderr, "emulator: %s (thread %u)\n", what, current); std::_Exit(3); }

// Memory that launches in front of this one may still use: nobody may touch it before the thread has waited for them.
// Plain arrays: this runs inside the hooks.
struct Range { const unsigned char* from; size_t bytes; };
inline Range others[512];
inline unsigned other_count = 0;
inline Fiber* running = nullptr;
__attribute__((no_sanitize("thread"))) inline void outside(const void* at) {
  if (!other_count || !running || running->waited) return;
  for (unsigned i = 0; i < other_count; ++i)
    if ((const unsigned char*)at >= others[i].from && (const unsigned char*)at < others[i].from + others[i].bytes)
      fail("memory of the launches in front is used before they are waited for");
}

__attribute__((no_sanitize("thread"))) inline void touch(const void* at, unsigned bytes, bool write) {
  outside(at);
  const size_t first = (const unsigned char*)at - seen_from;
  if (!seen_from || first >= sizeof seen / sizeof *seen) return;
  const unsigned t = current, w = t / 32, l = t % 32;
  for (size_t i = first; i < first + bytes && i < sizeof seen / sizeof *seen; ++i) {
    Seen& s = seen[i];
    if (s.write_epoch == epoch && s.writer != t && (s.writer / 32 != w || s.write_sync == syncs[w])) {
      if (!write) fail("a race: shared memory is read while it is written");
      twice.push_back({seen_from + i, seen_from[i]});
    }
    if (s.read_epoch != epoch) s.warps = s.lanes = 0, s.read_epoch = epoch;
    if (s.warp != w || s.read_sync != syncs[w]) s.lanes = 0;
    if (write && ((s.warps & ~(1u << w)) || (s.lanes & ~(1u << l))))
      fail("a race: shared memory is written while it is read");
    if (write) s.write_epoch = epoch, s.writer = t, s.write_sync = syncs[w], s.block = block, s.written = ++now;
    else s.warps |= 1u << w, s.warp = w, s.read_sync = syncs[w], s.lanes |= 1u << l;
  }
}

// Fails where a byte is read through the asynchronous proxy, which neither its writer nor the reader has told of it.
__attribute__((no_sanitize("thread"))) inline void check_proxy(unsigned at) {
  const Seen& s = seen[at];
  if (s.block == block && fenced[s.writer] < s.written && fenced[current] < s.written)
    fail("a warpgroup instruction before the proxy fence");
}

__attribute__((no_sanitize("thread"))) inline void check_twice() {
  for (const Twice& b : twice)
    if (*b.at != b.value) fail("a race: two threads write the same shared memory");
  twice.clear();
}

inline void suspend(int why) {
  check_twice();
  fibers[current].waits = why;
  swapcontext(&fibers[current].context, &scheduler);
}

inline void entry() {
  body();
  check_twice();
  Fiber& f = fibers[current];
  if (!f.open.empty()) fail("asynchronous copies were issued and never committed");
  if (!f.products.empty() || !f.product_groups.empty()) fail("warpgroup instructions were issued and never waited for");
  f.done = true;
  --live;
  bool waited = !other_count;
  for (const Fiber& g : fibers) waited |= g.waited;
  if (!live && !waited) fail("a block ends before the launches in front have ended");
  swapcontext(&f.context, &scheduler);
}

inline void barrier() { ++at_barrier; suspend(1); }

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

inline void release(unsigned w) {
  warps[w].arrived = 0;
  for (unsigned l = 0; l < 32 && w * 32 + l < fibers.size(); ++l) fibers[w * 32 + l].waits = 0;
}

// A block that stepped aside.
struct Aside { Dim3 index; std::vector<Fiber> fibers; Stacks stacks; std::vector<Warp> warps; unsigned at_barrier, live; std::vector<unsigned char> shared; };

inline void start_block(unsigned threads) {
  fibers.assign(threads, {});
  warps.assign((threads + 31) / 32, {});
  if (!spare.empty()) { stacks = std::move(spare.back()); spare.pop_back(); } else stacks.clear();
  while (stacks.size() < threads) stacks.emplace_back(256 * 1024);
  at_barrier = 0;
  live = threads;
  std::fill(std::begin(named), std::end(named), 0u);
  announced.clear();
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stacks[t].data();
    f.context.uc_stack.ss_size = stacks[t].size();
    f.context.uc_link = &scheduler;
    makecontext(&f.context, entry, 0);
  }
}

// Runs the current block until it ends, or until all that can move wait for other blocks: says whether it ended, and whether
// anything but such a wait happened.
struct Progress { bool ended, moved; };
inline Progress run_block() {
  const unsigned threads = fibers.size();
  ++epoch, ++meetings;  // whatever ran before was another block, or this one before its threads met
  bool any = false;
  std::vector<unsigned> queue(threads);
  while (live) {
    for (unsigned t = 0; t < threads; ++t) queue[t] = order == 1 ? threads - 1 - t : t;
    if (order == 2)
      for (unsigned t = threads; t-- > 1;) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(queue[t], queue[(rng >> 33) % (t + 1)]);
      }
    bool moved = false, spins = false;
    for (unsigned t : queue) {
      Fiber& f = fibers[t];
      const bool waited = f.waits == 3;
      if (f.done || (f.waits && !waited)) continue;
      current = t;
      f.waits = 0;
      running = &f;
      swapcontext(&scheduler, &f.context);
      running = nullptr;
      if (f.waits == 3) spins = true;
      if (f.waits != 3 || !waited) moved = true;
      const unsigned w = t / 32, lanes = std::min(32u, threads - w * 32);
      if (warps[w].arrived == lanes) release(w);
    }
    if (at_barrier && at_barrier == live) {
      at_barrier = 0;
      ++epoch, ++meetings;
      for (Fiber& f : fibers) if (f.waits == 1) f.waits = 0;
      moved = true;
    }
    any |= moved;
    if (!moved && live) {
      if (spins) return {false, any};
      fail("deadlock: threads wait at different barriers");
    }
  }
  return {true, true};
}

inline void land(const std::vector<Copy>& group) {
  for (const Copy& c : group) {
    touch(c.to, c.bytes, true);
    std::memcpy(c.to, c.from, c.take);
    std::memset(c.to + c.take, 0, c.bytes - c.take);
  }
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

#define EMU_HOOK extern "C" __attribute__((no_sanitize("thread"), used)) inline void
#define EMU_HOOKS(n) \
  EMU_HOOK __tsan_read##n(void* p) { emu::touch(p, n, false); } \
  EMU_HOOK __tsan_write##n(void* p) { emu::touch(p, n, true); } \
  EMU_HOOK __tsan_unaligned_read##n(void* p) { emu::touch(p, n, false); } \
  EMU_HOOK __tsan_unaligned_write##n(void* p) { emu::touch(p, n, true); }
EMU_HOOKS(1) EMU_HOOKS(2) EMU_HOOKS(4) EMU_HOOKS(8) EMU_HOOKS(16)
EMU_HOOK __tsan_read_range(void* p, unsigned long n) { emu::touch(p, n, false); }
EMU_HOOK __tsan_write_range(void* p, unsigned long n) { emu::touch(p, n, true); }
EMU_HOOK __tsan_vptr_read(void*) {}
EMU_HOOK __tsan_vptr_update(void*, void*) {}
EMU_HOOK __tsan_func_entry(void*) {}
EMU_HOOK __tsan_func_exit() {}
EMU_HOOK __tsan_init() {}

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
inline int __any_sync(unsigned, int p) {
  int any = 0;
  emu::collective(&p, sizeof p, [&](auto& slot) {
    for (unsigned l = 0; l < 32; ++l) { int q; std::memcpy(&q, slot[l], sizeof q); any |= q; }
  });
  return any;
}
template <class T> inline T __shfl_sync(unsigned, T v, int from) {
  T out;
  emu::collective(&v, sizeof v, [&](auto& slot) { std::memcpy(&out, slot[from & 31], sizeof v); });
  return out;
}

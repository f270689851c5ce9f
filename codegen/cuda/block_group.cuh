// Block groups: blocks that wait for each other at grid barriers. The counters of a split-K workspace are 0 before a launch and after it.
// Counts up to `last`, then starts from 0 again; says what it found.
TW_FN u32 tw_count(u32* at, u32 last) {
  u32 r;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(r) : "l"(at), "r"(last) : "memory");
  return r;
}
// Where in the order of their starts a block is: whoever is waited for has started before, or fits beside those who wait.
TW_FN u32 tw_ticket(u32* at, u32 last) { return tw_count(at, last); }
// Words that other blocks read or wrote: never from a cache of this multiprocessor.
TW_FN void tw_store_partial(float* to, float x) { asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" :: "l"(to), "f"(x) : "memory"); }
TW_FN float tw_load_partial(const float* from) {
  float r;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(r) : "l"(from) : "memory");
  return r;
}
// A grid barrier: waits until all of a block group are here for the `round`-th time; what they stored before is seen after it. The count of the last
// round ends at 0.
TW_FN void tw_grid_barrier(u32* at, u32 size, u32 round, u32 rounds) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    tw_count(at, size * rounds - 1);
    for (;;) {
      u32 here;
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(here) : "l"(at) : "memory");
      if (here >= size * round || here == 0) break;
    }
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  __syncthreads();
}
// Whether this block is the last of a block group that comes to the last round: it alone goes on, and sees what all stored.
TW_FN bool tw_last(u32* at, u32 size, u32 rounds, int* here) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    *here = tw_count(at, size * rounds - 1) == size * rounds - 1;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  __syncthreads();
  return *here != 0;
}

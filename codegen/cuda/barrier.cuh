// Barriers of some of a block's threads: they announce that they came, others wait for all of a phase to have come.
TW_FN void tw_barrier_init(void* barrier, u32 arrivals) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(s), "r"(arrivals) : "memory");
}
TW_FN void tw_barrier_arrive(void* barrier) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}" :: "r"(s) : "memory");
}
// Announces that all of a thread's copies so far have landed, when they have.
TW_FN void tw_copy_arrive(void* barrier) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(s) : "memory");
}
// All of a thread's copies have landed.
TW_FN void tw_copies_end() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Waits until the phase of this parity has ended.
TW_FN void tw_barrier_wait(void* barrier, u32 parity) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("{.reg .pred p;\n"
      "wait: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra wait;}" :: "r"(s), "r"(parity) : "memory");
}
// The same before tiles are read that others copied, by warpgroup instructions too.
TW_FN void tw_tile_wait(void* barrier, u32 parity) {
  tw_barrier_wait(barrier, parity);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Turns: a group of warps waits for its own, and passes it on; THREADS are those of two groups.
template <int THREADS> TW_FN void tw_turn_wait(int group) { asm volatile("bar.sync %0, %1;" :: "r"(group + 1), "n"(THREADS) : "memory"); }
template <int THREADS> TW_FN void tw_turn_pass(int group) { asm volatile("bar.arrive %0, %1;" :: "r"(group + 1), "n"(THREADS) : "memory"); }
// A barrier of the threads that compute, where others only copy.
template <int THREADS> TW_FN void tw_compute_barrier() { asm volatile("bar.sync 15, %0;" :: "n"(THREADS) : "memory"); }
// Registers of a thread from here on; what some give up others take.
template <int COUNT> TW_FN void tw_registers_less() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT)); }
template <int COUNT> TW_FN void tw_registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT)); }

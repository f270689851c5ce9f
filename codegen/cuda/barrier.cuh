// Barriers that threads pass one after another: all announce that they came, each waits for a former announcement.
TW_FN void tw_barrier_init(void* barrier, u32 threads) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(s), "r"(threads) : "memory");
}
TW_FN void tw_barrier_arrive(void* barrier) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}" :: "r"(s) : "memory");
}
// Waits until the phase of this parity has ended.
TW_FN void tw_barrier_wait(void* barrier, u32 parity) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("{.reg .pred p;\n"
      "wait: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra wait;}" :: "r"(s), "r"(parity) : "memory");
}
// Turns: a group of warps waits for its own, and passes it on; THREADS are those of two groups.
template <int THREADS> TW_FN void tw_turn_wait(int group) { asm volatile("bar.sync %0, %1;" :: "r"(group + 1), "n"(THREADS) : "memory"); }
template <int THREADS> TW_FN void tw_turn_pass(int group) { asm volatile("bar.arrive %0, %1;" :: "r"(group + 1), "n"(THREADS) : "memory"); }

// cp.async: copies of 4, 8 or 16 bytes from global to shared memory in the background; zeros where `exists` is false.
template <int BYTES> TW_FN void tw_copy_async(void* to, const void* from, bool exists) {
  u32 s = (u32)__cvta_generic_to_shared(to);
  int n = exists ? BYTES : 0;
  if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(s), "l"(from), "r"(n) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" :: "r"(s), "l"(from), "r"(n), "n"(BYTES) : "memory");
}
template <int BYTES> TW_FN void tw_copy_async(void* to, const void* from) {
  u32 s = (u32)__cvta_generic_to_shared(to);
  if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(s), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(s), "l"(from), "n"(BYTES) : "memory");
}
TW_FN void tw_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING of the newest groups are still under way.
template <int PENDING> TW_FN void tw_copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

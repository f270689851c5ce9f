// Warpgroup matrix instructions: operands in shared memory are named by descriptors, accumulators stay in registers.
TW_FN void tw_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TW_FN void tw_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING of the newest groups are still under way.
template <int PENDING> TW_FN void tw_wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }
// Whether something holds in any thread of a group of four warps: all of them come here, and all get the same answer. Barriers 1 to 7
// are those of turns, 15 is that of all groups, where there are less than eight.
TW_FN bool tw_any_of_group(int group, bool holds) {
  u32 any;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, %2, 128, p; selp.u32 %0, 1, 0, q;}"
      : "=r"(any) : "r"((u32)holds), "r"(group + 8) : "memory");
  return any != 0;
}
// Makes this thread's writes to shared memory visible to instructions that read it through the asynchronous proxy.
TW_FN void tw_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Keeps the compiler from moving accumulators while instructions are under way.
template <int N> TW_FN void tw_keep(float* d) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
// Describes a tile of lines of 2·SPAN bytes: `swizzle_atoms` bytes between swizzle atoms, eight lines follow one another closely.
template <int SPAN> TW_FN u64 tw_descriptor(const void* tile, u32 swizzle_atoms) {
  const u32 s = (u32)__cvta_generic_to_shared(tile);
  const u64 mode = SPAN == 64 ? 1 : SPAN == 32 ? 2 : 3;
  return (u64)((s & 0x3ffff) >> 4) | (u64)(swizzle_atoms >> 4) << 16 | (u64)(16 * SPAN >> 4) << 32 | mode << 62;
}

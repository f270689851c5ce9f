// Boxes of tensors that the hardware copies into shared memory: one thread asks for them, and a barrier counts the bytes that land.
struct __align__(64) tw_map { u64 opaque[16]; };
TW_FN void tw_map_fetch(const tw_map& map) { asm volatile("prefetch.tensormap [%0];" :: "l"((u64)&map) : "memory"); }
// Barriers that were just made are there for the hardware too.
TW_FN void tw_barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Announces that the thread came, and that the phase ends only when so many bytes have landed.
TW_FN void tw_box_expect(void* barrier, u32 bytes) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("{.reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;}" :: "r"(s), "r"(bytes) : "memory");
}
// The box that begins at these coordinates, innermost first.
TW_FN void tw_box(void* to, const tw_map& map, void* barrier, int x, int y) {
  u32 s = (u32)__cvta_generic_to_shared(to), b = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4}], [%2];"
      :: "r"(s), "l"((u64)&map), "r"(b), "r"(x), "r"(y) : "memory");
}
TW_FN void tw_box(void* to, const tw_map& map, void* barrier, int x, int y, int z) {
  u32 s = (u32)__cvta_generic_to_shared(to), b = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4,%5}], [%2];"
      :: "r"(s), "l"((u64)&map), "r"(b), "r"(x), "r"(y), "r"(z) : "memory");
}
TW_FN void tw_box(void* to, const tw_map& map, void* barrier, int x, int y, int z, int u) {
  u32 s = (u32)__cvta_generic_to_shared(to), b = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4,%5,%6}], [%2];"
      :: "r"(s), "l"((u64)&map), "r"(b), "r"(x), "r"(y), "r"(z), "r"(u) : "memory");
}
TW_FN void tw_box(void* to, const tw_map& map, void* barrier, int x, int y, int z, int u, int v) {
  u32 s = (u32)__cvta_generic_to_shared(to), b = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4,%5,%6,%7}], [%2];"
      :: "r"(s), "l"((u64)&map), "r"(b), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v) : "memory");
}
// Asks L2 for the box that begins at these coordinates, innermost first: nobody waits for it.
TW_FN void tw_box_prefetch(const tw_map& map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1,%2}];" :: "l"((u64)&map), "r"(x), "r"(y) : "memory");
}
TW_FN void tw_box_prefetch(const tw_map& map, int x, int y, int z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1,%2,%3}];" :: "l"((u64)&map), "r"(x), "r"(y), "r"(z) : "memory");
}
TW_FN void tw_box_prefetch(const tw_map& map, int x, int y, int z, int u) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1,%2,%3,%4}];" :: "l"((u64)&map), "r"(x), "r"(y), "r"(z), "r"(u) : "memory");
}
TW_FN void tw_box_prefetch(const tw_map& map, int x, int y, int z, int u, int v) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1,%2,%3,%4,%5}];" :: "l"((u64)&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v) : "memory");
}

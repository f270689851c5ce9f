// Blocks of a cluster that copy once what all of them read.
// Announces at the same barrier of every other block of SIZE that this thread came; RANK is the block's own number. What it announces is that
// it has read, and what follows there is a copy by the hardware: nothing that it wrote has to be seen, and a fence for all of the
// cluster would wait for its stores to device memory.
template <int SIZE> TW_FN void tw_peers_arrive(void* barrier, int rank) {
  u32 s = (u32)__cvta_generic_to_shared(barrier);
#pragma unroll
  for (int other = 1; other < SIZE; ++other)
    asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r];}"
        :: "r"(s), "r"((rank + other) % SIZE) : "memory");
}
// The box that begins at these coordinates, innermost first, to the same place of all blocks of a cluster of SIZE; the same barrier of each counts its bytes.
template <int SIZE> TW_FN void tw_box_to_all(void* to, const tw_map& map, void* barrier, int x, int y) {
  u32 s = (u32)__cvta_generic_to_shared(to), b = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4,%5}], [%2], %3;"
      :: "r"(s), "l"((u64)&map), "r"(b), "h"((u16)((1 << SIZE) - 1)), "r"(x), "r"(y) : "memory");
}
template <int SIZE> TW_FN void tw_box_to_all(void* to, const tw_map& map, void* barrier, int x, int y, int z) {
  u32 s = (u32)__cvta_generic_to_shared(to), b = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4,%5,%6}], [%2], %3;"
      :: "r"(s), "l"((u64)&map), "r"(b), "h"((u16)((1 << SIZE) - 1)), "r"(x), "r"(y), "r"(z) : "memory");
}
template <int SIZE> TW_FN void tw_box_to_all(void* to, const tw_map& map, void* barrier, int x, int y, int z, int u) {
  u32 s = (u32)__cvta_generic_to_shared(to), b = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4,%5,%6,%7}], [%2], %3;"
      :: "r"(s), "l"((u64)&map), "r"(b), "h"((u16)((1 << SIZE) - 1)), "r"(x), "r"(y), "r"(z), "r"(u) : "memory");
}
template <int SIZE> TW_FN void tw_box_to_all(void* to, const tw_map& map, void* barrier, int x, int y, int z, int u, int v) {
  u32 s = (u32)__cvta_generic_to_shared(to), b = (u32)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4,%5,%6,%7,%8}], [%2], %3;"
      :: "r"(s), "l"((u64)&map), "r"(b), "h"((u16)((1 << SIZE) - 1)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v) : "memory");
}

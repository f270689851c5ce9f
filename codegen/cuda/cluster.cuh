// Blocks of a cluster, whose shared memory each of them reaches.
// The block's number in its cluster of SIZE.
template <int SIZE> TW_FN int tw_cluster_rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return (int)r; }
// All threads of all its blocks meet: the barriers that each block made (and fenced) are there for all.
TW_FN void tw_cluster_begins() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// All threads of all its blocks meet: what each did to shared memory, its own and that of others, has happened and is there for all.
TW_FN void tw_cluster_meets() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// What lies at this place of the shared memory of another block, or of this one.
TW_FN float tw_load_peer(const float* at, int rank) {
  float r;
  asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.f32 %0, [a];}"
      : "=f"(r) : "r"((u32)__cvta_generic_to_shared(at)), "r"(rank) : "memory");
  return r;
}

// Types, global memory and warp primitives.
// Some values are superseded by a cheaper form of what they were for.
#pragma nv_diag_suppress 550
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define TW_FN __device__ __forceinline__

TW_FN float tw_inf() { return __int_as_float(0x7f800000); }

// Reads through the read-only path: the buffer is not written while the kernel runs.
TW_FN unsigned char tw_ldg1(const void* p) { u16 r; asm("ld.global.nc.u8 %0, [%1];" : "=h"(r) : "l"(p)); return (unsigned char)r; }
TW_FN u16 tw_ldg2(const void* p) { u16 r; asm("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(p)); return r; }
TW_FN u32 tw_ldg4(const void* p) { u32 r; asm("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p)); return r; }
TW_FN void tw_ldg8(u32* r, const void* p) {
  asm("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "l"(p));
}
TW_FN void tw_ldg16(u32* r, const void* p) {
  asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p));
}
// For what no other block reads: past L1, and kept in L2 longer than what is written. Copies of rows are faster for it.
TW_FN void tw_ldo16(u32* r, const void* p) {
  u64 keep;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
  asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p), "l"(keep));
}
// Reads of what another kernel may have written since this one began: never read ahead, nor from a cache that may be old.
TW_FN u16 tw_ldw2(const void* p) { u16 r; asm volatile("ld.global.u16 %0, [%1];" : "=h"(r) : "l"(p) : "memory"); return r; }
TW_FN u32 tw_ldw4(const void* p) { u32 r; asm volatile("ld.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory"); return r; }
TW_FN void tw_ldw8(u32* r, const void* p) {
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "l"(p) : "memory");
}
TW_FN void tw_ldw16(u32* r, const void* p) {
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p) : "memory");
}
TW_FN void tw_stg8(void* p, const u32* r) {
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" :: "l"(p), "r"(r[0]), "r"(r[1]) : "memory");
}
TW_FN void tw_stg16(void* p, const u32* r) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
// Asks L2 for the sector at an address: nobody waits for it.
TW_FN void tw_prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" :: "l"(p)); }

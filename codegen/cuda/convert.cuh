// f16 and bf16 as bit patterns.
TW_FN float tw_float_bf16(u16 x) { return __int_as_float((int)((u32)x << 16)); }
TW_FN float tw_float_f16(u16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
TW_FN u16 tw_round_bf16(float x) { u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
TW_FN u16 tw_round_f16(float x) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
// Integers to the nearest f32, and what is not 0 as 1.
TW_FN float tw_float_i32(int x) { return (float)x; }
TW_FN float tw_float_i64(long long x) { return (float)x; }
TW_FN float tw_float_bool(unsigned char x) { return x != 0 ? 1.0f : 0.0f; }
// Numbers without their fractions, and the outermost integer where there is none; NaN is 0. What is not 0 is true.
TW_FN int tw_round_i32(float x) { int r; asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
TW_FN long long tw_round_i64(float x) { long long r; asm("cvt.rzi.s64.f32 %0, %1;" : "=l"(r) : "f"(x)); return x == x ? r : 0; }
TW_FN unsigned char tw_round_bool(float x) { return x != 0.0f; }
// Two values in one register, the first in the low half.
TW_FN u32 tw_pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
TW_FN u32 tw_pack_f16(float lo, float hi) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }

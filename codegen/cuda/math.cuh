TW_FN float tw_exp2(float x) { float r; asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
// The nearest number within +-200; NaN stays.
TW_FN float tw_within_200(float x) {
  float r;
  asm("{ .reg .f32 t; max.NaN.f32 t, %1, 0fC3480000; min.NaN.f32 %0, t, 0f43480000; }" : "=f"(r) : "f"(x));
  return r;
}
// Special functions to about 2 ulp of f32 relative to the argument's scale: enough for results stored in 16 bits.
TW_FN float tw_exp2_fast(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
TW_FN float tw_exp_fast(float x) { return tw_exp2_fast(x * 1.4426950408889634f); }
// For e^(c (x + y)) = 2^(s x + s y), where s y is rounded: s = c log2 e, unless the rounding may be 2^6 or more and with it the result 0
// or infinite where x = -y. From there on c y is so large that c (x + y) is 0 or at least 80 in magnitude: with the power of two in
// c log2 e instead, by which nothing is rounded, the result is 1, below 2^-57 or above 2^57.
TW_FN float tw_exp_scale(float y, float c) {
  const float s = c * 1.4426950408889634f;
  return fabsf(y * c) >= 1.4e9f ? __uint_as_float(__float_as_uint(s) & 0xff800000u) : s;
}
TW_FN float tw_log_fast(float x) { float r; asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r * 0.6931471805599453f; }
TW_FN float tw_sqrt_fast(float x) { float r; asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
TW_FN float tw_reciprocal(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
TW_FN float tw_div_fast(float x, float y) { float r; asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }

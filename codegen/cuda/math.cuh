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
// For e^(x + y) = 2^(s x + s y), where s y is rounded: log2 e, unless the rounding may be 2^6 or more and with it the result 0 or
// infinite where x = -y. From there on x + y is 0 or at least 128 in magnitude, and 2^(x + y) the same as e^(x + y): 1, 0 or infinite.
TW_FN float tw_exp_scale(float y) { return fabsf(y) < 1.4e9f ? 1.4426950408889634f : 1.0f; }
TW_FN float tw_log_fast(float x) { float r; asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r * 0.6931471805599453f; }
TW_FN float tw_sqrt_fast(float x) { float r; asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
TW_FN float tw_div_fast(float x, float y) { float r; asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }

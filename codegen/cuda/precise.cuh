// e^x to a few ulp of f32: 2^(h + l), where h is x log2 e as it is rounded, and l what that left out. Beyond +-200 it is 0 or infinite
// in any case. Of x of 2.3e7 and more l may be so large that the sign of the result is wrong: up to 1e6 it is none of that. The library's takes more registers.
TW_FN float tw_exp_bounded(float x) {
  const float h = x * 1.4426950408889634f;
  const float l = fmaf(x, 1.925963e-8f, fmaf(x, 1.4426950408889634f, -h));
  return tw_exp2(h) * fmaf(l, 0.6931471805599453f, 1.0f);
}
// The same of what lies between -87.3 and 88.7: the result is a normal number.
TW_FN float tw_exp_normal(float x) {
  const float h = x * 1.4426950408889634f;
  const float l = fmaf(x, 1.925963e-8f, fmaf(x, 1.4426950408889634f, -h));
  return tw_exp2_fast(h) * fmaf(l, 0.6931471805599453f, 1.0f);
}
TW_FN float tw_exp(float x) { return tw_exp_bounded(tw_within_200(x)); }

// x / y to an ulp of f32, or two where x is below 2^-126. The compiler's own takes a branch of a hundred instructions where numbers are of
// extreme sizes, as exponentials often are. Here a power of two brings y to a middling size: what overflows then is infinite, and what is
// lost then is 0. The estimate stands where it is 0, infinite or NaN, for its remainder is NaN.
TW_FN float tw_div_scaled(float x, float y, float scale) {
  x *= scale;
  y *= scale;
  const float r = tw_reciprocal(y), q = x * r;
  const float better = fmaf(fmaf(-q, y, x), r, q);
  return fabsf(better) <= 0x1.fffffep127f ? better : q;
}
TW_FN float tw_div_away_from_zero(float x, float y) { return tw_div_scaled(x, y, fabsf(y) > 0x1p100f ? 0x1p-64f : 1.0f); }
TW_FN float tw_div(float x, float y) {
  const float size = fabsf(y);
  return tw_div_scaled(x, y, size > 0x1p100f ? 0x1p-64f : size < 0x1p-100f ? 0x1p64f : 1.0f);
}
TW_FN float tw_div_bounded(float x, float y) {
  const float r = tw_reciprocal(y), q = x * r;
  return fmaf(fmaf(-q, y, x), r, q);
}

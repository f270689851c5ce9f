// e^x to a few ulp of f32: 2^(h + l), where h is x log2 e as it is rounded, and l what that left out. Beyond +-200 it is 0 or infinite
// in any case. The library's takes more registers.
TW_FN float tw_exp(float x) {
  x = tw_within_200(x);
  const float h = x * 1.4426950408889634f;
  const float l = fmaf(x, 1.925963e-8f, fmaf(x, 1.4426950408889634f, -h));
  return tw_exp2(h) * fmaf(l, 0.6931471805599453f, 1.0f);
}

// x = high + low, two TF32 numbers, but for the last bits of low, which instructions do not read.
TW_FN void tw_split(float x, u32& high, u32& low) {
  high = tw_tf32(x);
  low = __float_as_uint(x - __uint_as_float(high));
}

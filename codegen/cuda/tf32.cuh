// Warpgroup matrix instructions on TF32, rows in registers, columns in lines along the depth. Printed below for the N in use.
template <int N> TW_FN void tw_wgmma_tf32_held(float* d, const float* a, u64 b, u32 add);

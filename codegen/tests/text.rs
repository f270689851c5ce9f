//! The text of one small kernel, and the reasons of what cannot be lowered.

mod common;

use common::*;
use expect_test::expect;
use ir::{Atom, Dtype, Reject};
use tilewright_codegen::{KERNELS_MARK, lower};

#[test]
fn one_small_kernel() {
    let tile = row_norm(Dtype::Bf16, [2, 32], 1, None);
    let cuda = lower(
        &tile,
        &schedule(&tile, Atom::Fma, [1, 1], 1, &[]),
        &target(),
    )
    .expect("lowers");
    let kernel = cuda.source.split_once("extern \"C\"").expect("a kernel").1;
    assert!(cuda.source.contains(KERNELS_MARK));
    expect![[r#"
         __global__ void __launch_bounds__(32, 1) row_norm_0(const u16* __restrict__ p0_x, const u16* __restrict__ p1_w, u16* __restrict__ p2_y) {
          const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
          (void)lane; (void)warp;
          int block = blockIdx.x;
          (void)block;
          const int b_i_0 = (block % 2);
          (void)b_i_0;
          block /= 2;
          const int t0_j_1 = ((lane >> 0) & 31);
          float v0_load0[1];
          {
            const int g = (int)((32) * (b_i_0) + (1) * (t0_j_1));
            tw_load_bf16<1, TW_OWN>(&v0_load0[0], p0_x + (g));
          }
          float v1_map1[1];
          v1_map1[0] = v0_load0[0] * v0_load0[0];
          float v2_reduce2[1];
        #pragma unroll
          for (int x = 0; x < 1; ++x) {
            v2_reduce2[x] = 0.0f;
          }
          v2_reduce2[0] = v2_reduce2[0] + v1_map1[0];
          v2_reduce2[0] = v2_reduce2[0] + __shfl_xor_sync(0xffffffffu, v2_reduce2[0], 1);
          v2_reduce2[0] = v2_reduce2[0] + __shfl_xor_sync(0xffffffffu, v2_reduce2[0], 2);
          v2_reduce2[0] = v2_reduce2[0] + __shfl_xor_sync(0xffffffffu, v2_reduce2[0], 4);
          v2_reduce2[0] = v2_reduce2[0] + __shfl_xor_sync(0xffffffffu, v2_reduce2[0], 8);
          v2_reduce2[0] = v2_reduce2[0] + __shfl_xor_sync(0xffffffffu, v2_reduce2[0], 16);
          float v3_map4[1];
          v3_map4[0] = v2_reduce2[0] * 0.03125f;
          float v4_map6[1];
          v4_map6[0] = v3_map4[0] + 1e-5f;
          float v5_map7[1];
          v5_map7[0] = tw_sqrt_fast(v4_map6[0]);
          float v6_map8[1];
          v6_map8[0] = tw_div_fast(v0_load0[0], v5_map7[0]);
          float v7_load9[1];
          {
            const int g = (int)((1) * (t0_j_1));
            tw_load_bf16<1>(&v7_load9[0], p1_w + (g));
          }
          float v8_map10[1];
          v8_map10[0] = v6_map8[0] * v7_load9[0];
          {
            const int g = (int)((32) * (b_i_0) + (1) * (t0_j_1));
            tw_store_bf16<1>(p2_y + (g), &v8_map10[0]);
          }
        }
    "#]].assert_eq(kernel);
}

#[test]
fn rejects_say_why() {
    let tile = matmul(Dtype::F32, Dtype::F32, [64, 64, 64], [64, 64, 64], true);
    let reject = |s| lower(&tile, &s, &target()).expect_err("rejected");
    let wrong_atom = reject(schedule(&tile, Atom::MmaM16N8K16, [1, 1], 2, &[]));
    assert!(matches!(wrong_atom, Reject::Schedule(_)), "{wrong_atom}");
    let three_warps = reject(schedule(&tile, Atom::Fma, [3, 1], 2, &[]));
    assert!(matches!(three_warps, Reject::Schedule(_)), "{three_warps}");
    let reject = |tiles, warps, stages| {
        let tile = matmul(Dtype::Bf16, Dtype::F32, [512, 512, 512], tiles, true);
        let s = schedule(&tile, Atom::MmaM16N8K16, warps, stages, &[]);
        lower(&tile, &s, &target()).expect_err("rejected")
    };
    let registers = reject([256, 512, 64], [2, 2], 1);
    assert!(matches!(registers, Reject::Registers { .. }), "{registers}");
    let shared = reject([256, 128, 256], [4, 4], 4);
    assert!(matches!(shared, Reject::SharedMemory { .. }), "{shared}");
}

//! The text of one small kernel, and the reasons of what cannot be lowered.

use crate::common::*;
use expect_test::expect;
use ir::{Dtype, Reject, Schedule, TileProgram};
use tilewright_codegen::machine::{Among, Machine, Statement, Sync};
use tilewright_codegen::passes::{multicast, persistent, raster};
use tilewright_codegen::{KERNELS_MARK, lower, machines};

#[test]
fn one_small_kernel() {
    let tile = row_norm(Dtype::Bf16, [2, 32], 1, None);
    let cuda = lower(
        &tile,
        &schedule(&tile, atoms::FMA, [1, 1], 1, &[]),
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
          v2_reduce2[0] = v1_map1[0];
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
    let wrong_atom = reject(schedule(&tile, atoms::MMA_M16N8K16, [1, 1], 2, &[]));
    assert!(matches!(wrong_atom, Reject::Schedule(_)), "{wrong_atom}");
    let three_warps = reject(schedule(&tile, atoms::FMA, [3, 1], 2, &[]));
    assert!(matches!(three_warps, Reject::Schedule(_)), "{three_warps}");
    let reject = |tiles, warps, stages| {
        let tile = matmul(Dtype::Bf16, Dtype::F32, [512, 512, 512], tiles, true);
        let s = schedule(&tile, atoms::MMA_M16N8K16, warps, stages, &[]);
        lower(&tile, &s, &target()).expect_err("rejected")
    };
    let registers = reject([256, 512, 64], [2, 2], 1);
    assert!(matches!(registers, Reject::Registers { .. }), "{registers}");
    let shared = reject([256, 128, 256], [4, 4], 4);
    assert!(matches!(shared, Reject::SharedMemory { .. }), "{shared}");
}

/// Every statement of a kernel that reads, computes and writes.
#[test]
fn one_small_machine_program() {
    let tile = row_norm(Dtype::Bf16, [2, 32], 1, None);
    let schedule = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
    let machines = machines(&tile, &schedule, &target()).expect("lowers");
    expect![[r#"
        (
          name: "row_norm_0",
          axes: {
            0: (name: "i", extent: 2, tile: 1, whole: false),
            1: (name: "j", extent: 32, tile: 32, whole: true),
          },
          buffers: {
            0: (name: "x", dtype: Bf16, written: false, dependent: false),
            1: (name: "w", dtype: Bf16, written: false, dependent: false),
            2: (name: "y", dtype: Bf16, written: true, dependent: false),
          },
          warps: (1, 1),
          blocks_per_sm: 1,
          precise: false,
          fragments: [
            (name: "v0_load0", holds: Floats("|1:32@1|")), // f0
            (name: "v1_map1", holds: Floats("|1:32@1|")), // f1
            (name: "v2_reduce2", holds: Floats("|*32|")), // f2
            (name: "v3_map4", holds: Floats("|*32|")), // f3
            (name: "v4_map6", holds: Floats("|*32|")), // f4
            (name: "v5_map7", holds: Floats("|*32|")), // f5
            (name: "v6_map8", holds: Floats("|1:32@1|")), // f6
            (name: "v7_load9", holds: Floats("|1:32@1|")), // f7
            (name: "v8_map10", holds: Floats("|1:32@1|")), // f8
          ],
          regions: [
          ],
          rings: [
          ],
          scratch: (offset: 0, bytes: 0),
          grid: (coordinates: [(axis: 0, count: 2, descending: false)], raster: None, tiles: 2, persistent: false),
          block_group: None,
          cluster: 1,
          split_workspace: (bytes: 0, counters: 0, together: 0),
          prologue: [],
          producers: [],
          registers: None,
          body: [
            Declare("f0"),
            Load(to: "f0", access: (buffer: 0, dtype: Bf16, coefficients: {0: 32, 1: 1}, offset: 0, checks: [], fill: 0.0, wide: false), axes: [0, 1], width: 1, policy: Own),
            Declare("f1"),
            Map(to: "f1", function: Op(Mul), args: [Fragment("f0"), Fragment("f0")]),
            Declare("f2"),
            Reduce(to: "f2", op: Sum, factors: [Fragment("f1")], from: "|1:32@1|", axes: [1], parts: None),
            AcrossLanes(fragment: "f2", layout: "|*32|", op: Sum, masks: [1, 2, 4, 8, 16]),
            Declare("f3"),
            Map(to: "f3", function: Op(Mul), args: [Fragment("f2"), Constant(0.03125)]),
            Declare("f4"),
            Map(to: "f4", function: Op(Add), args: [Fragment("f3"), Constant(1e-5)]),
            Declare("f5"),
            Map(to: "f5", function: Op(Function(Sqrt)), args: [Fragment("f4")]),
            Declare("f6"),
            Map(to: "f6", function: Op(Div), args: [Fragment("f0"), Fragment("f5")]),
            Declare("f7"),
            Load(to: "f7", access: (buffer: 1, dtype: Bf16, coefficients: {1: 1}, offset: 0, checks: [], fill: 0.0, wide: false), axes: [1], width: 1, policy: Shared),
            Declare("f8"),
            Map(to: "f8", function: Op(Mul), args: [Fragment("f6"), Fragment("f7")]),
            Store(access: (buffer: 2, dtype: Bf16, coefficients: {0: 32, 1: 1}, offset: 0, checks: [], fill: 0.0, wide: false), from: Fragment("f8"), held: "|1:32@1|", gathered: None, width: 1, axes: [0, 1], alone: false),
          ],
          epilogue: [],
          overlaps: false,
        )
    "#]]
    .assert_eq(&machines[0].to_string());
}

/// Products of halves that run while the next halves are made.
#[test]
fn a_small_machine_program_of_split_products() {
    let tile = matmul(Dtype::F32, Dtype::F32, [64, 16, 48], [64, 16, 16], false);
    let schedule = schedule(&tile, atoms::WGMMA_M64K8_TF32X3, [4, 1], 3, &[]);
    let machines = machines(&tile, &schedule, &target()).expect("lowers");
    expect![[r#"
        (
          name: "matmul_0",
          axes: {
            0: (name: "m", extent: 64, tile: 64, whole: false),
            1: (name: "n", extent: 16, tile: 16, whole: false),
            2: (name: "k", extent: 48, tile: 16, whole: false),
          },
          buffers: {
            0: (name: "x", dtype: F32, written: false, dependent: false),
            1: (name: "y", dtype: F32, written: false, dependent: false),
            2: (name: "z", dtype: F32, written: true, dependent: false),
          },
          warps: (4, 1),
          blocks_per_sm: 1,
          precise: true,
          fragments: [
            (name: "v0_phi0", holds: Floats("1:2@1 0:2@8 1:2@8|1:4@2 0:8@1|0:4@16")), // f0
            (name: "v0_phi0_high", holds: Floats("0:2@8 2:2@4 2:2@8|2:4@1 0:8@1|0:4@16")), // f1
            (name: "v0_phi0_low", holds: Floats("0:2@8 2:2@4 2:2@8|2:4@1 0:8@1|0:4@16")), // f2
            (name: "v0_phi0_part", holds: Floats("1:2@1 0:2@8 1:2@8|1:4@2 0:8@1|0:4@16")), // f3
            (name: "v2_load1", holds: Floats("0:2@8 2:2@4 2:2@8|2:4@1 0:8@1|0:4@16")), // f4
          ],
          regions: [
            (name: "load1", dtype: F32, axes: [(2, 16, 1), (0, 64, 20)], elements: 1280, stages: 3, offset: 0, swizzle: None, patch: [], boxes: None), // s0
            (name: "load2", dtype: F32, axes: [(1, 16, 1), (2, 16, 24)], elements: 384, stages: 3, offset: 15360, swizzle: None, patch: [], boxes: None), // s1
            (name: "load2", dtype: F32, axes: [(2, 16, 1), (1, 16, 1)], elements: 256, stages: 2, offset: 20480, swizzle: (span: 16, lines: 16, along: 1, depth: true), patch: [], boxes: None), // s2
            (name: "load2", dtype: F32, axes: [(2, 16, 1), (1, 16, 1)], elements: 256, stages: 2, offset: 22528, swizzle: (span: 16, lines: 16, along: 1, depth: true), patch: [], boxes: None), // s3
          ],
          rings: [
          ],
          scratch: (offset: 24576, bytes: 0),
          grid: (coordinates: [(axis: 1, count: 1, descending: false), (axis: 0, count: 1, descending: false)], raster: None, tiles: 1, persistent: false),
          block_group: None,
          cluster: 1,
          split_workspace: (bytes: 0, counters: 0, together: 0),
          prologue: [],
          producers: [],
          registers: None,
          body: [
            Declare("f0"),
            Map(to: "f0", function: Copy, args: [Constant(0.0)]),
            Range(number: 0, axis: 2, low: [], high: []),
            Declare("f1"),
            Declare("f2"),
            Declare("f3"),
            Map(to: "f3", function: Copy, args: [Constant(0.0)]),
            OpenStages(number: 0, delayed: true),
            OpenStages(number: 0, delayed: false),
            If(condition: Exists(FirstAnd(0, 0)), then: [
              Tile(axis: 2, at: FirstAnd(0, 0)),
              Copy(region: "s0", stage: At(0), access: (buffer: 0, dtype: F32, coefficients: {0: 48, 2: 1}, offset: 0, checks: [], fill: 0.0, wide: false), layout: "2:4@1 0:2@32|2:4@4 0:8@1|0:4@8", width: 4, background: true),
              Copy(region: "s1", stage: At(0), access: (buffer: 1, dtype: F32, coefficients: {1: 1, 2: 16}, offset: 0, checks: [], fill: 0.0, wide: false), layout: "1:4@1|1:4@4 2:8@1|2:2@8 *2", width: 4, background: true),
            ], otherwise: []),
            Sync(CopyCommit),
            If(condition: Exists(FirstAnd(0, 1)), then: [
              Tile(axis: 2, at: FirstAnd(0, 1)),
              Copy(region: "s0", stage: At(1), access: (buffer: 0, dtype: F32, coefficients: {0: 48, 2: 1}, offset: 0, checks: [], fill: 0.0, wide: false), layout: "2:4@1 0:2@32|2:4@4 0:8@1|0:4@8", width: 4, background: true),
              Copy(region: "s1", stage: At(1), access: (buffer: 1, dtype: F32, coefficients: {1: 1, 2: 16}, offset: 0, checks: [], fill: 0.0, wide: false), layout: "1:4@1|1:4@4 2:8@1|2:2@8 *2", width: 4, background: true),
            ], otherwise: []),
            Sync(CopyCommit),
            Loop(number: 0, body: [
              Tile(axis: 2, at: Now(0)),
              Sync(CopyWait(1)),
              If(condition: Exists(NowAnd(0, 2)), then: [
                Tile(axis: 2, at: NowAnd(0, 2)),
                NextStage(counter: (number: 0, delayed: false), stages: 3, ahead: 2),
                Copy(region: "s0", stage: Next(number: 0, delayed: false), access: (buffer: 0, dtype: F32, coefficients: {0: 48, 2: 1}, offset: 0, checks: [], fill: 0.0, wide: false), layout: "2:4@1 0:2@32|2:4@4 0:8@1|0:4@8", width: 4, background: true),
                Copy(region: "s1", stage: Next(number: 0, delayed: false), access: (buffer: 1, dtype: F32, coefficients: {1: 1, 2: 16}, offset: 0, checks: [], fill: 0.0, wide: false), layout: "1:4@1|1:4@4 2:8@1|2:2@8 *2", width: 4, background: true),
              ], otherwise: []),
              Sync(CopyCommit),
              Declare("f4"),
              Sync(Barrier(Block)),
              Fetch(to: "f4", region: "s0", stage: Current(number: 0, delayed: false)),
              Split(from: "s1", stage: Current(number: 0, delayed: false), kept: (count: 16, stride: 1), depth: [(count: 16, stride: 24)], to: ("s2", "s3"), into: Current(number: 0, delayed: true)),
              Sync(ProxyFence),
              Sync(Barrier(Block)),
              Sync(Wait(0)),
              Sync(Keep("f3")),
              Map(to: "f0", function: Op(Add), args: [Fragment("f0"), Fragment("f3")]),
              Sync(Keep("f0")),
              Map(to: "f1", function: Tf32, args: [Fragment("f4")]),
              Map(to: "f2", function: Rest, args: [Fragment("f4")]),
              Scope([
                Sync(Keep("f3")),
                Issue(row: "wgmma.m64k8.3xtf32 f32", into: "f3", fresh: true, groups: 1, counts: (1, 1, 2), columns: 16, a: Fragment("f2"), b: (region: "s2", stage: Current(number: 0, delayed: true), swizzle: (span: 16, lines: 16, along: 1, depth: true), share: None, further: 0)),
                Issue(row: "wgmma.m64k8.3xtf32 f32", into: "f3", fresh: false, groups: 1, counts: (1, 1, 2), columns: 16, a: Fragment("f1"), b: (region: "s3", stage: Current(number: 0, delayed: true), swizzle: (span: 16, lines: 16, along: 1, depth: true), share: None, further: 0)),
                Issue(row: "wgmma.m64k8.3xtf32 f32", into: "f3", fresh: false, groups: 1, counts: (1, 1, 2), columns: 16, a: Fragment("f1"), b: (region: "s2", stage: Current(number: 0, delayed: true), swizzle: (span: 16, lines: 16, along: 1, depth: true), share: None, further: 0)),
                Sync(Commit),
              ]),
              AdvanceStage(counter: (number: 0, delayed: true), stages: 2),
              AdvanceStage(counter: (number: 0, delayed: false), stages: 3),
            ]),
            Sync(Wait(0)),
            Sync(Keep("f3")),
            Map(to: "f0", function: Op(Add), args: [Fragment("f0"), Fragment("f3")]),
            Store(access: (buffer: 2, dtype: F32, coefficients: {0: 16, 1: 1}, offset: 0, checks: [], fill: 0.0, wide: false), from: Fragment("f0"), held: "1:2@1 0:2@8 1:2@8|1:4@2 0:8@1|0:4@16", gathered: (layout: "1:4@1 0:2@8 1:1@16|1:2@8 1:2@4 0:8@1|0:4@16", lanes: 2, piece: 2, digit: 2), width: 4, axes: [0, 1], alone: false),
          ],
          epilogue: [],
          overlaps: false,
        )
    "#]].assert_eq(&machines[0].to_string());
}

fn in_clusters(tile: &TileProgram) -> Schedule {
    let mut schedule = schedule(tile, atoms::WGMMA_M64K16, [4, 1], 4, &[]);
    schedule.kernels[0].extend([raster::step(1), multicast::step(2)]);
    schedule
}

/// What is printed reads back as what it was, for kernels with rings, producers, boxes, groups of blocks and without.
#[test]
fn machine_programs_read_back() {
    let bf16 = Dtype::Bf16;
    let deep = attention(bf16, [2, 300, 300, 64, 64], [64, 64], true, false);
    let wide = matmul(bf16, bf16, [256, 256, 256], [128, 128, 64], true);
    let single = matmul(
        Dtype::F32,
        Dtype::F32,
        [256, 256, 256],
        [128, 128, 32],
        true,
    );
    let rows = row_norm(Dtype::F32, [6, 300], 2, Some(64));
    let cases = [
        (&deep, schedule(&deep, atoms::MMA_M16N8K16, [4, 1], 3, &[])),
        (&deep, schedule(&deep, atoms::WGMMA_M64K16, [4, 1], 3, &[])),
        (&deep, schedule(&deep, atoms::WGMMA_M64K16, [8, 1], 4, &[])),
        (&wide, schedule(&wide, atoms::WGMMA_M64K16, [4, 1], 4, &[])),
        (&wide, schedule(&wide, atoms::FMA, [4, 1], 2, &[])),
        (
            &single,
            schedule(&single, atoms::WGMMA_M64K8_TF32X3, [8, 1], 4, &[]),
        ),
        (&wide, in_clusters(&wide)),
        (&rows, schedule(&rows, atoms::FMA, [2, 2], 2, &[])),
    ];
    for (tile, schedule) in cases {
        for machine in machines(tile, &schedule, &target()).expect("lowers") {
            let text = machine.to_string();
            let read: Machine = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(read, machine);
        }
    }
}

#[test]
fn text_that_is_no_machine_program_has_a_place() {
    let error = "(\n  name: 7,".parse::<Machine>().expect_err("a number");
    expect!["line 2, column 8: Expected string"].assert_eq(&error.to_string());
}

/// The next tile's first turn is given before this one's last was taken, unless a barrier stands between.
#[test]
fn turns_end_with_their_tile() {
    let tile = attention(Dtype::F16, [2, 256, 240, 16, 16], [128, 16], false, false);
    let mut schedule = schedule(&tile, atoms::WGMMA_M64K16, [8, 1], 4, &[true, false]);
    schedule.kernels[0].set(persistent::step());
    let machines = machines(&tile, &schedule, &target()).expect("lowers");
    let text = machines[0].to_string();
    assert!(text.contains("Sync(TurnWait(Own))"), "{text}");
    let tiles = machines[0].body.iter().find_map(|s| {
        if let Statement::Tiles(tile) = s {
            tile.last()
        } else {
            None
        }
    });
    let barrier = Statement::Sync(Sync::Barrier(Among::Computing));
    assert_eq!(tiles, Some(&barrier), "{text}");
}

/// Each kernel is compiled by itself, with nothing but what it calls, and has the text that people see.
#[test]
fn a_unit_is_one_kernel_and_what_it_calls() {
    let tile: TileProgram = "tile two\naxis i = 64, j = 256\nbuffer x = parameter 0 f32 [i, j]\nbuffer w = workspace f32 [i]\nbuffer y = output 0 bf16 [i]\n\
         kernel grid(i: 1) whole(j: 256) {\n  a = load x[i, j]\n  s = reduce_sum(a; j)\n  store w = s\n}\n\
         kernel grid(i: 64) {\n  b = load w[i]\n  t = exp(b)\n  store y = t\n}\n"
        .parse()
        .unwrap_or_else(|e| panic!("{e}"));
    let row = schedule(&tile, atoms::FMA, [1, 1], 1, &[]).kernels[0].clone();
    let schedule = Schedule {
        kernels: vec![row; 2],
    };
    let cuda = lower(&tile, &schedule, &target()).expect("lowers");
    let kernels = |text: &str| text[text.find("extern \"C\"").expect("a kernel")..].to_owned();
    let own: Vec<String> = cuda.units.iter().map(|unit| kernels(unit)).collect();
    assert_eq!(own.join("\n"), kernels(&cuda.source));
    let whole: std::collections::BTreeSet<&str> = cuda.source.lines().collect();
    for (unit, launch) in cuda.units.iter().zip(&cuda.launches) {
        assert_eq!(unit.matches("__global__").count(), 1);
        assert!(unit.contains(&format!(" {}(", launch.entry)), "{unit}");
        assert!(unit.lines().all(|line| whole.contains(line)), "{unit}");
    }
    let [first, second] = [0, 1].map(|n| cuda.units[n].contains("tw_exp_fast("));
    assert!(!first && second, "only one of them has an exponential");
}

/// What each element goes through stands in one loop, up to where elements meet.
#[test]
fn element_wise_statements_share_a_loop() {
    let tile: ir::TileProgram = "tile chain\naxis i = 64, j = 256\nbuffer x = parameter 0 f32 [i, j]\nbuffer y = output 0 f32 [i, j]\n\
         kernel grid(i: 1) whole(j: 256) {\n  a = load x[i, j]\n  b = exp(a)\n  c = add(b, a)\n  s = reduce_sum(c; j)\n  d = mul(c, c)\n  \
         e = div(d, s)\n  store y = e\n}\n"
        .parse()
        .unwrap_or_else(|e| panic!("{e}"));
    let schedule = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
    let text = lower(&tile, &schedule, &target()).expect("lowers").source;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let made = |name: &str| {
        let begins = |l: &&str| l.starts_with(&format!("{name}[")) && l.contains("] = ");
        let at = lines.iter().position(begins);
        at.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    let values = |part: &str| {
        let is = |l: &&&str| l.starts_with("float v") && l.contains(part);
        let line = lines.iter().find(is).expect("it is declared");
        line["float ".len()..line.find('[').expect("an array")].to_string()
    };
    let [b, c, d, e] = ["_b[", "_c[", "_d[", "_e["].map(|part| made(&values(part)));
    assert_eq!((c, e), (b + 1, d + 1), "{text}");
    assert!(d > c + 1, "{text}");
}

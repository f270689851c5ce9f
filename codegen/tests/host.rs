//! Generated text, run on the host with one fiber a thread, against plain formulas in f64.
//!
//! Without a C++ compiler these tests cannot run; they say so and pass.
#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

extern crate tilewright_codegen as codegen;

mod common;
#[path = "shim/mod.rs"]
mod emulator;

use common::*;
use ir::{Dtype, TileProgram};
use proptest::prop_oneof;
use std::collections::BTreeSet;
use tilewright_codegen::passes::{distributed, multicast, persistent, raster, turns};
use tilewright_codegen::{KERNELS_MARK, ReferenceMode, ReferenceProgram, lower, reference};

fn close(label: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            g == w || (g - w).abs() <= tolerance * (1.0 + w.abs()),
            "{label}: element {i} is {g}, should be {w}"
        );
    }
}

fn run(
    label: &str,
    tile: &TileProgram,
    s: &ir::Schedule,
    parameters: &[Vec<f64>],
) -> Option<Vec<f64>> {
    let cuda = lower(tile, s, &target()).unwrap_or_else(|e| panic!("{label}: {e}"));
    if !emulator::available() {
        return None;
    }
    let orders = emulator::run(&cuda, tile, parameters).unwrap_or_else(|e| panic!("{label}: {e}"));
    one_of(label, orders).pop()
}

/// The same bits from a few blocks that go over all tiles, where warps of their own fill rings.
fn persistent(
    label: &str,
    tile: &TileProgram,
    s: &ir::Schedule,
    parameters: &[Vec<f64>],
    want: &[f64],
) {
    let mut s = s.clone();
    let plain = lower(tile, &s, &target()).unwrap_or_else(|e| panic!("{label}: {e}"));
    let tiles = plain.launches[0].grid[0];
    // Clusters come last.
    let cluster = multicast::of(&s.kernels[0]);
    s.kernels[0].extend([
        multicast::step(1),
        persistent::step(),
        multicast::step(cluster),
    ]);
    // One block goes over a few tiles; three have uneven shares of many.
    let sms = if tiles > 3 { 3 } else { 1 };
    let target = ir::Target { sms, ..target() };
    let cuda = lower(tile, &s, &target).unwrap_or_else(|e| panic!("{label}: {e}"));
    let room = (sms / cluster).max(1) * cluster;
    assert_eq!(cuda.launches[0].grid[0], room.min(tiles), "{label}");
    let orders = emulator::run(&cuda, tile, parameters).unwrap_or_else(|e| panic!("{label}: {e}"));
    let got = one_of(label, orders).pop().expect("an output");
    let bits = |all: &[f64]| -> Vec<u64> { all.iter().map(|x| x.to_bits()).collect() };
    assert_eq!(bits(&got), bits(want), "{label} by {sms} blocks");
}

/// What every order of threads gave, bit by bit.
fn one_of(label: &str, mut orders: Vec<Vec<Vec<f64>>>) -> Vec<Vec<f64>> {
    let first = orders.swap_remove(0);
    let bits =
        |all: &[Vec<f64>]| -> Vec<u64> { all.iter().flatten().map(|x| x.to_bits()).collect() };
    for other in &orders {
        assert_eq!(
            bits(&first),
            bits(other),
            "{label}: the order of threads changes a result"
        );
    }
    first
}

fn unit(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => 2e-6,
        Dtype::F16 => 2e-3,
        Dtype::Bf16 => 1e-2,
    }
}

#[test]
fn matrix_products() {
    use Dtype::*;
    use atoms::*;
    // dtype, result, extents, tiles, B by rows, atom, warps, stages, swap
    #[rustfmt::skip]
    let cases = [
        (F32,  F32,  [32, 32, 32], [32, 32, 16], false, FMA,            [1, 1], 2, false),
        (F32,  F32,  [33, 20, 37], [16, 16, 8],  true,  FMA,            [2, 1], 3, true),
        (Bf16, Bf16, [40, 24, 30], [32, 16, 16], false, FMA,            [1, 2], 1, false),
        (Bf16, Bf16, [32, 32, 64], [32, 32, 16], false, MMA_M16N8K16,    [1, 1], 2, false),
        (F16,  F32,  [64, 64, 96], [64, 32, 32], true,  MMA_M16N8K16,    [2, 2], 3, false),
        (Bf16, F32,  [70, 40, 72], [64, 32, 32], true,  MMA_M16N8K16,    [2, 1], 4, false),
        (F16,  F16,  [4, 48, 64],  [4, 48, 32],  false, MMA_M16N8K16,    [1, 2], 1, true),
        (F16,  F16,  [5, 33, 21],  [5, 32, 16],  false, MMA_M16N8K16,    [1, 1], 2, false),
        (Bf16, Bf16, [80, 80, 80], [80, 80, 80], true,  MMA_M16N8K16,    [1, 1], 2, false),
        (F32,  F32,  [32, 32, 48], [32, 32, 24], true,  MMA_M16N8K8_TF32, [2, 1], 2, false),
        (F32,  F32,  [20, 36, 40], [16, 32, 16], false, MMA_M16N8K8_TF32, [1, 2], 1, true),
        (F32,  F32,  [48, 36, 80], [32, 32, 32], true,  MMA_M16N8K8_TF32X3, [2, 1], 3, false),
        (F32,  F32,  [20, 50, 40], [16, 48, 16], false, MMA_M16N8K8_TF32X3, [1, 2], 2, true),
        (Bf16, F32,  [64, 64, 128],   [64, 64, 64],   true,  WGMMA_M64K16,    [4, 1], 2, false),
        (Bf16, Bf16, [64, 48, 96],    [64, 48, 32],   false, WGMMA_M64K16,    [4, 1], 3, false),
        (F16,  F32,  [200, 136, 80],  [128, 128, 64], false, WGMMA_M64K16,    [4, 1], 2, false),
        (F16,  F16,  [128, 300, 112], [128, 300, 112], true, WGMMA_M64K16,    [8, 1], 1, false),
        (Bf16, F32,  [130, 128, 70],  [128, 128, 64], false, WGMMA_M64K16,    [4, 2], 4, true),
        (F16,  F32,  [200, 64, 96],   [192, 64, 32],  false, WGMMA_M64K16,    [12, 1], 3, false),
        (F16,  F32,  [64, 70, 40],    [64, 70, 40],   true,  WGMMA_M64K16,    [4, 1], 1, true),
        (F32,  F32,  [64, 32, 64],    [64, 32, 32],   false, WGMMA_M64K8_TF32X3, [4, 1], 2, false),
        (F32,  F32,  [130, 136, 100], [128, 128, 32], false, WGMMA_M64K8_TF32X3, [8, 1], 3, false),
        (F32,  F32,  [128, 80, 96],   [128, 80, 48],  true,  WGMMA_M64K8_TF32X3, [4, 2], 2, false),
        (F32,  F32,  [100, 72, 200],  [64, 64, 32],   true,  WGMMA_M64K8_TF32X3, [4, 1], 4, false),
        (F32,  F32,  [70, 100, 70],   [64, 48, 16],   true,  WGMMA_M64K8_TF32X3, [4, 1], 1, true),
        (F32,  F32,  [64, 300, 64],   [64, 300, 32],  true,  WGMMA_M64K8_TF32X3, [4, 1], 1, false),
        (Bf16, F32,  [1, 64, 128], [1, 16, 64],  true,  FMA,            [1, 2], 2, false),
        (F32,  F32,  [1, 1, 100],  [1, 1, 64],   true,  FMA,            [1, 1], 2, false),
    ];
    for (n, (dtype, out, extents, tiles, rows, atom, warps, stages, swap)) in
        cases.into_iter().enumerate()
    {
        let tile = matmul(dtype, out, extents, tiles, rows);
        let s = schedule(&tile, atom, warps, stages, &[swap]);
        let [m, cols, k] = extents.map(|x| x as usize);
        let (mut x, mut y) = (inputs(m * k, 1), inputs(k * cols, 2));
        if matches!(atom, MMA_M16N8K8_TF32X3 | WGMMA_M64K8_TF32X3) {
            // Numbers with all 24 bits.
            let fill = |x: &mut f64| *x = f64::from((*x / 3.0) as f32);
            x.iter_mut().chain(&mut y).for_each(fill);
        }
        let mut want = vec![0.0; m * cols];
        for i in 0..m {
            for j in 0..cols {
                want[i * cols + j] = (0..k)
                    .map(|l| x[i * k + l] * if rows { y[j * k + l] } else { y[l * cols + j] })
                    .sum();
            }
        }
        let label = format!("matmul{n}");
        let Some(got) = run(&label, &tile, &s, &[x, y]) else {
            return;
        };
        close(&label, &got, &want, unit(out));
    }
}

/// Products of f32 by groups of warps: two of a loop with the same rows, one whose columns are computed, and one outside loops.
#[test]
fn split_products() {
    let (m, n, k) = (70, 40, 80);
    let text = |body: &str| -> TileProgram {
        let text = format!(
            "tile split\naxis m = {m}, n = {n}, k = {k}\nbuffer a = parameter 0 f32 [m, k]\nbuffer b = parameter 1 f32 [k, n]\n\
             buffer c = parameter 2 f32 [n, k]\nbuffer y = output 0 f32 [m, n]\n{body}"
        );
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    };
    let two = text(
        "kernel grid(m: 64, n: 32) loop(k: 32) {\n  loop k {\n    carry s = 0 over [m, n]\n    carry t = 0 over [m, n]\n    \
         d = load a[m, k]\n    e = load b[k, n]\n    f = load c[n, k]\n    p = contract(d, e; k)\n    q = contract(d, f; k)\n    \
         s2 = add(s, p)\n    t2 = add(t, q)\n    yield s3 = final(s, s2)\n    yield t3 = final(t, t2)\n  }\n  z = mul(s3, t3)\n  \
         store y = z\n}\n",
    );
    let computed = text(
        "kernel grid(m: 64, n: 32) loop(k: 32) {\n  loop k {\n    carry s = 0 over [m, n]\n    d = load a[m, k]\n    \
         e = load b[k, n]\n    f = load c[n, k]\n    g = add(e, f)\n    p = contract(d, g; k)\n    s2 = add(s, p)\n    \
         yield s3 = final(s, s2)\n  }\n  store y = s3\n}\n",
    );
    let scaled = text(
        "kernel grid(m: 64, n: 32) loop(k: 16) {\n  half = 0.5\n  loop k {\n    carry s = 0 over [m, n]\n    d = load a[m, k]\n    \
         e = load b[k, n]\n    p = contract(d, e; k)\n    h = mul(s, half)\n    s2 = add(h, p)\n    yield s3 = final(s, s2)\n  }\n  \
         store y = s3\n}\n",
    );
    let full = |count, seed| -> Vec<f64> {
        let all = inputs(count, seed).into_iter();
        all.map(|x| f64::from((x / 3.0) as f32)).collect()
    };
    let (a, b, c) = (full(m * k, 1), full(k * n, 2), full(n * k, 3));
    let dot = |at: usize, of: &dyn Fn(usize, usize) -> f64| -> f64 {
        let (i, j) = (at / n, at % n);
        (0..k).map(|l| a[i * k + l] * of(l, j)).sum()
    };
    let (of_b, of_c) = (
        |l: usize, j: usize| b[l * n + j],
        |l: usize, j: usize| c[j * k + l],
    );
    let cases: [(&str, &TileProgram, &[u32], Vec<f64>); 3] = [
        (
            "two products",
            &two,
            &[1, 2, 3, 4],
            (0..m * n)
                .map(|at| dot(at, &of_b) * dot(at, &of_c))
                .collect(),
        ),
        (
            "computed columns",
            &computed,
            &[1, 3],
            (0..m * n)
                .map(|at| dot(at, &|l, j| of_b(l, j) + of_c(l, j)))
                .collect(),
        ),
        (
            "scaled sums",
            &scaled,
            &[2, 4],
            (0..m * n)
                .map(|at| {
                    dot(at, &|l, j| {
                        of_b(l, j) * 0.5f64.powi((k - 1 - l) as i32 / 16)
                    })
                })
                .collect(),
        ),
    ];
    for (label, tile, stages, want) in cases {
        for stages in stages {
            let s = schedule(tile, atoms::WGMMA_M64K8_TF32X3, [4, 1], *stages, &[]);
            let label = format!("{label}, {stages} stages");
            let parameters = [a.clone(), b.clone(), c.clone()];
            let Some(got) = run(&label, tile, &s, &parameters) else {
                return;
            };
            close(&label, &got, &want, 4e-6);
        }
    }
}

/// Windows of a part of the source that is held once, copied by the threads that multiply, and by warps of their own. An infinite element reaches
/// the windows that it is in, and none beside them.
#[test]
fn windows_of_split_products() {
    let tile = convolution();
    let plain = source_and_filters();
    let mut infinite = plain.clone();
    infinite[0][100] = f64::INFINITY;
    for (stages, overlap) in [(2, Overlap::None), (3, Overlap::Fed), (2, Overlap::Split)] {
        let fed = overlap != Overlap::None;
        let atom = atoms::WGMMA_M64K8_TF32X3;
        let s = overlapped(&tile, atom, [4, 1], stages, &[], overlap);
        let cuda = lower(&tile, &s, &target()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(cuda.source.contains("tw_copy_arrive("), fed);
        let split = overlap == Overlap::Split;
        assert_eq!(cuda.source.contains("int halves"), split);
        let label = format!("{stages} stages, warps that copy: {fed}, that split: {split}");
        let Some(got) = run(&label, &tile, &s, &plain) else {
            return;
        };
        close(&label, &got, &convolved(&plain), 4e-6);
        if fed {
            persistent(&label, &tile, &s, &plain, &got);
        }
        let got = run(&label, &tile, &s, &infinite).expect("an emulator");
        let want = convolved(&infinite);
        let finite: Vec<usize> = (0..want.len()).filter(|at| want[*at].is_finite()).collect();
        assert!(finite.len() < want.len() && finite.len() > want.len() / 2);
        let of = |all: &[f64]| -> Vec<f64> { finite.iter().map(|at| all[*at]).collect() };
        close(&label, &of(&got), &of(&want), 4e-6);
    }
}

/// What the hardware copies in boxes, and what threads copy because it is no whole box, both under their own warps.
#[test]
fn products_of_boxes() {
    use Dtype::*;
    // dtype, extents, tiles, B by rows, warps, stages, the boxes' sizes
    #[rustfmt::skip]
    let cases = [
        (Bf16, [256, 128, 256], [128, 128, 64], false, [8, 1], 2, vec![vec![64, 128], vec![64, 64]]),
        (F16,  [200, 136, 80],  [128, 128, 64], true,  [4, 1], 3, vec![vec![64, 128], vec![64, 128]]),
        (Bf16, [130, 96, 72],   [64, 96, 32],   false, [4, 1], 4, vec![vec![32, 64], vec![32, 32]]),
        (F16,  [64, 64, 208],   [64, 64, 16],   true,  [4, 1], 2, vec![vec![16, 64], vec![16, 64]]),
        (Bf16, [70, 64, 256],   [64, 64, 64],   true,  [4, 1], 2, vec![vec![64, 64], vec![64, 64]]),
        // Rows of a pitch that is no multiple of 16 bytes.
        (F16,  [64, 64, 100],   [64, 64, 32],   true,  [4, 1], 2, vec![]),
        // Columns are padded.
        (Bf16, [64, 300, 96],   [64, 300, 32],  true,  [4, 1], 2, vec![]),
    ];
    for (n, (dtype, extents, tiles, rows, warps, stages, boxes)) in cases.into_iter().enumerate() {
        let tile = matmul(dtype, F32, extents, tiles, rows);
        let s = in_turns(&tile, warps, stages);
        let cuda = lower(&tile, &s, &target()).expect("lowers");
        let maps = &cuda.launches[0].maps;
        let mut sizes: Vec<Vec<u32>> = maps.iter().map(|m| m.sizes.clone()).collect();
        sizes.sort();
        let mut wanted = boxes;
        wanted.sort();
        assert_eq!(sizes, wanted, "case {n}");
        assert_eq!(cuda.source.contains(" tw_box("), !wanted.is_empty());
        let [m, cols, k] = extents.map(|x| x as usize);
        let (x, y) = (inputs(m * k, 1), inputs(k * cols, 2));
        let b = |l: usize, j: usize| if rows { y[j * k + l] } else { y[l * cols + j] };
        let dot = |i: usize, j: usize| (0..k).map(|l| x[i * k + l] * b(l, j)).sum();
        let want: Vec<f64> = (0..m * cols).map(|at| dot(at / cols, at % cols)).collect();
        let label = format!("boxes{n}");
        let parameters = [x, y];
        let Some(got) = run(&label, &tile, &s, &parameters) else {
            return;
        };
        close(&label, &got, &want, unit(F32));
        persistent(&label, &tile, &s, &parameters, &got);
    }
}

/// Clusters of two blocks, of which each copies a half of what both read: the same bits as without, and no kernel in which they do not wait for
/// each other.
#[test]
fn products_of_clusters() {
    use Dtype::*;
    // dtype, extents, tiles, B by rows, warps, stages, raster, the boxes' sizes
    #[rustfmt::skip]
    let cases = [
        // Blocks with other columns read the same rows, which are one swizzle atom.
        (Bf16, [192, 256, 320], [64, 128, 64], false, [4, 1], 2, 0, vec![vec![64, 32], vec![64, 64]]),
        // With other rows, the same columns, which are three swizzle atoms.
        (Bf16, [256, 192, 160], [64, 96, 32],  false, [4, 1], 4, 2, vec![vec![32, 16], vec![32, 64]]),
        // The same in two.
        (F16,  [200, 256, 80],  [64, 128, 64], false, [4, 2], 3, 4, vec![vec![64, 64], vec![64, 64]]),
    ];
    for (n, (dtype, extents, tiles, rows, warps, stages, raster, boxes)) in
        cases.into_iter().enumerate()
    {
        let tile = matmul(dtype, F32, extents, tiles, rows);
        let mut s = in_turns(&tile, warps, stages);
        s.kernels[0].set(raster::step(raster));
        let label = format!("clusters{n}");
        let [m, cols, k] = extents.map(|x| x as usize);
        let parameters = [inputs(m * k, 1), inputs(k * cols, 2)];
        let Some(alone) = run(&label, &tile, &s, &parameters) else {
            return;
        };
        s.kernels[0].set(multicast::step(2));
        let cuda = lower(&tile, &s, &target()).unwrap_or_else(|e| panic!("{label}: {e}"));
        let maps = &cuda.launches[0].maps;
        let mut sizes: Vec<Vec<u32>> = maps.iter().map(|m| m.sizes.clone()).collect();
        sizes.sort();
        assert_eq!(sizes, boxes, "{label}");
        assert!(cuda.source.contains(" __cluster_dims__(2, 1, 1) "));
        let got = run(&label, &tile, &s, &parameters).expect("it ran before");
        let bits = |all: &[f64]| -> Vec<u64> { all.iter().map(|x| x.to_bits()).collect() };
        assert_eq!(bits(&got), bits(&alone), "{label}");
        persistent(&label, &tile, &s, &parameters, &got);
        if n > 0 {
            continue;
        }
        for (call, with) in [
            ("  tw_cluster_begins();", ""),
            ("  tw_cluster_meets();", ""),
            ("tw_peers_arrive<2>(", "(void)("),
            (" tw_box_to_all<2>(", " tw_box("),
        ] {
            assert!(cuda.source.contains(call), "{call}");
            let faulty = codegen::CudaProgram {
                source: cuda.source.replace(call, with),
                ..cuda.clone()
            };
            let orders = emulator::run(&faulty, &tile, &parameters);
            assert!(orders.is_err(), "without {call}");
        }
    }
}

/// Rings that a loop within another one reads, filled by warps of their own: stages go on where the run before left them.
#[test]
fn rings_of_inner_loops() {
    use Dtype::*;
    // dtype, extents, tiles, warps, stages, whether boxes are copied
    #[rustfmt::skip]
    let cases = [
        (Bf16, [256, 256, 192], [128, 64, 64], [8, 1], 2, true),
        (F16,  [192, 256, 160], [64, 128, 32], [4, 2], 4, true),
        (Bf16, [130, 200, 72],  [64, 64, 32],  [4, 1], 3, true),
        (F16,  [128, 136, 100], [64, 64, 32],  [4, 1], 3, false),
    ];
    for (n, (dtype, extents, tiles, warps, stages, boxes)) in cases.into_iter().enumerate() {
        let tile = largest_products(dtype, extents, tiles);
        let s = in_turns(&tile, warps, stages);
        let cuda = lower(&tile, &s, &target()).expect("lowers");
        assert!(cuda.source.contains("tw_barrier_wait("), "case {n}");
        assert_eq!(cuda.source.contains(" tw_box("), boxes, "case {n}");
        let [m, cols, k] = extents.map(|x| x as usize);
        let (x, y) = (inputs(m * k, 1), inputs(cols * k, 2));
        let dot = |i: usize, j: usize| (0..k).map(|l| x[i * k + l] * y[j * k + l]).sum::<f64>();
        let [rows, columns] = [tiles[0] as usize, tiles[1] as usize];
        let want: Vec<f64> = (0..m)
            .map(|i| {
                let end = ((i / rows + 1) * rows).min(m).next_multiple_of(columns);
                let products = (0..end.min(cols)).map(|j| dot(i, j));
                products.fold(f64::NEG_INFINITY, f64::max)
            })
            .collect();
        let label = format!("inner{n}");
        let parameters = [x, y];
        let Some(got) = run(&label, &tile, &s, &parameters) else {
            return;
        };
        close(&label, &got, &want, unit(F32));
        persistent(&label, &tile, &s, &parameters, &got);
    }
}

#[test]
fn attention_in_tiles() {
    use Dtype::*;
    use atoms::*;
    // dtype, extents, tiles, causal, normalised, atom, warps, stages, swaps
    #[rustfmt::skip]
    let cases = [
        (Bf16, [2, 32, 64, 16, 16], [32, 32], false, false, FMA,         [2, 1], 1, [true, false]),
        (Bf16, [2, 64, 64, 16, 32], [32, 32], true,  false, MMA_M16N8K16, [2, 1], 2, [true, false]),
        (F16,  [1, 40, 72, 32, 16], [32, 32], false, false, MMA_M16N8K16, [2, 1], 1, [true, false]),
        (F16,  [1, 32, 40, 32, 32], [16, 16], true,  true,  MMA_M16N8K16, [1, 2], 2, [true, false]),
        (F16,  [1, 32, 64, 32, 32], [16, 32], false, false, MMA_M16N8K16, [1, 1], 3, [false, true]),
        (F32,  [1, 32, 64, 16, 16], [16, 32], false, true,  FMA,         [1, 2], 2, [true, false]),
        (Bf16, [1, 128, 192, 64, 64], [64, 64],  true,  false, WGMMA_M64K16, [4, 1], 2, [true, false]),
        (F16,  [1, 130, 200, 48, 80], [128, 96], true,  false, WGMMA_M64K16, [8, 1], 3, [true, false]),
        (F16,  [1, 256, 320, 16, 16], [128, 32], true, true,  WGMMA_M64K16, [8, 1], 4, [true, false]),
        (F16,  [1, 128, 64, 16, 32], [128, 16], false, true,  WGMMA_M64K16, [4, 1], 1, [true, false]),
        (Bf16, [1, 64, 96, 64, 128],  [64, 48],  false, false, WGMMA_M64K16, [4, 2], 2, [true, false]),
        (Bf16, [2, 256, 96, 32, 32], [128, 32], false, false, WGMMA_M64K16, [8, 1], 4, [true, false]),
        (Bf16, [1, 200, 96, 32, 32], [192, 32], true, false, WGMMA_M64K16, [12, 1], 3, [true, false]),
    ];
    for (n, (dtype, extents, tiles, causal, norm, atom, warps, stages, swaps)) in
        cases.into_iter().enumerate()
    {
        let [h, i, j, d, e] = extents.map(|x| x as usize);
        let (q, k, v) = (
            inputs(h * i * d, 3),
            inputs(h * j * d, 4),
            inputs(h * j * e, 5),
        );
        let want = attended(extents, causal, norm, [&q, &k, &v]);
        let parameters = [q, k, v];
        // Some of each instruction both ways, the others by turns.
        for late in [n % 2 == 1, n % 2 == 0]
            .into_iter()
            .take(1 + usize::from([0, 1, 6, 7].contains(&n)))
        {
            let tile = attention_scaled(dtype, extents, tiles, [causal, norm, late]);
            let s = schedule(&tile, atom, warps, stages, &swaps);
            let label = format!("attention{n}, scaled late: {late}");
            let Some(got) = run(&label, &tile, &s, &parameters) else {
                return;
            };
            close(&label, &got, &want, 1.5 * unit(dtype));
            if turns::of(&s.kernels[0]) {
                persistent(&label, &tile, &s, &parameters, &got);
            }
        }
    }
}

/// Scores so large that their product with log2 e is rounded by more than an exponential can bear.
#[test]
fn attention_to_far_scores() {
    use Dtype::*;
    let extents = [1, 32, 64, 16, 16];
    for (dtype, atom, power) in [
        (Bf16, atoms::MMA_M16N8K16, 10),
        (Bf16, atoms::MMA_M16N8K16, 15),
        (Bf16, atoms::MMA_M16N8K16, 16),
        (Bf16, atoms::MMA_M16N8K16, 17),
        (Bf16, atoms::FMA, 20),
        (Bf16, atoms::FMA, 62),
    ] {
        let [_, i, j, d, e] = extents.map(|x| x as usize);
        let far = |count, seed| -> Vec<f64> {
            let all = inputs(count, seed);
            all.iter().map(|x| x * 2f64.powi(power)).collect()
        };
        let (q, k, v) = (far(i * d, 3), far(j * d, 4), inputs(j * e, 5));
        let want = attended(extents, true, false, [&q, &k, &v]);
        let parameters = [q, k, v];
        for late in [false, true] {
            let tile = attention_scaled(dtype, extents, [32, 32], [true, false, late]);
            let s = schedule(&tile, atom, [2, 1], 1, &[true, false]);
            let label = format!("far scores, 2^{power}, scaled late: {late}");
            let Some(got) = run(&label, &tile, &s, &parameters) else {
                return;
            };
            close(&label, &got, &want, 1.5 * unit(dtype));
        }
    }
}

/// Exponentials of sums with factors of many sizes, of either sign and of each row, whether their operands are at hand or not.
#[test]
fn exponentials_of_sums() {
    let rows = [0.5, -2.0, 3e-3, 40.0];
    let x: Vec<f64> = (0..4 * 32).map(|k| f64::from(k % 17 - 8) * 0.25).collect();
    let (y, c) = ([0.5, -1.0, 2.0, 0.125].to_vec(), rows.to_vec());
    // What is added to x, and the factor; the former is computed, and so at hand, or only loaded.
    for (narrow, by) in [
        ("y", "half"),
        ("held", "half"),
        ("held", "far"),
        ("held", "kept"),
        ("held", "c"),
        ("y", "kept"),
    ] {
        let text = format!(
            "tile sums\naxis i = 4, j = 32\nbuffer bx = parameter 0 bf16 [i, j]\n\
             buffer by = parameter 1 bf16 [i]\nbuffer bc = parameter 2 bf16 [i]\n\
             buffer out = output 0 bf16 [i, j]\nkernel grid(i: 2) whole(j: 32) {{\n\
             x = load bx[i, j]\n  y = load by[i]\n  c = load bc[i]\n  one = 1\n  half = 0.5\n  far = -1.5\n\
             held = mul(y, one)\n  kept = mul(c, one)\n  wide = mul(x, one)\n\
             sum = add(wide, {narrow})\n  scaled = mul({by}, sum)\n  e = exp(scaled)\n  store out = e\n}}\n"
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let s = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
        let label = format!("e^({by}·(x + {narrow}))");
        let parameters = [x.clone(), y.clone(), c.clone()];
        let want = (0..4 * 32).map(|k| {
            let by = match by {
                "half" => 0.5,
                "far" => -1.5,
                _ => rows[k / 32],
            };
            (by * (x[k] + y[k / 32])).exp().min(1e30)
        });
        let want: Vec<f64> = want.collect();
        let Some(got) = run(&label, &tile, &s, &parameters) else {
            return;
        };
        let got: Vec<f64> = got.into_iter().map(|x| x.min(1e30)).collect();
        for (got, want) in got.iter().zip(&want) {
            let off = (got - want).abs();
            assert!(
                off <= 1.5 * unit(Dtype::Bf16) * want,
                "{label}: {got}, should be {want}"
            );
        }
    }
}

/// Exponentials of sums of which one addend is a contraction: that is accumulated in place, and the exponential of the result taken.
#[test]
fn exponentials_of_accumulated_sums() {
    let text = "tile sums\naxis i = 16, j = 32, d = 16\nbuffer bx = parameter 0 bf16 [i, d]\nbuffer bw = parameter 1 bf16 [j, d]\n\
                buffer by = parameter 2 bf16 [i]\nbuffer out = output 0 bf16 [i, j]\nkernel grid(i: 16) whole(j: 32, d: 16) {\n\
                x = load bx[i, d]\n  w = load bw[j, d]\n  y = load by[i]\n  one = 1\n  half = 0.5\n  row = mul(y, one)\n\
                dot = contract(x, w; d)\n  sum = add(dot, row)\n  scaled = mul(half, sum)\n  e = exp(scaled)\n  store out = e\n}\n";
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let (x, w, y) = (inputs(16 * 16, 3), inputs(32 * 16, 4), inputs(16, 5));
    let want = (0..16 * 32).map(|k| {
        let (i, j) = (k / 32, k % 32);
        let dot: f64 = (0..16).map(|d| x[i * 16 + d] * w[j * 16 + d]).sum();
        (0.5 * (dot + y[i])).exp()
    });
    let want: Vec<f64> = want.collect();
    for atom in [atoms::FMA, atoms::MMA_M16N8K16] {
        let s = schedule(&tile, atom, [1, 1], 1, &[false]);
        let label = format!("accumulated sums, {atom:?}");
        let Some(got) = run(&label, &tile, &s, &[x.clone(), w.clone(), y.clone()]) else {
            return;
        };
        close(&label, &got, &want, 1.5 * unit(Dtype::Bf16));
    }
}

/// As a maximum and a minimum have it: what is no number is the least.
fn between(x: f64, least: f64, most: f64) -> f64 {
    let x = x.max(least);
    x.min(most)
}

/// The exponential of f32: everywhere near e^x, to the ends of its range, and of what is no number.
#[test]
fn exponentials() {
    let mut x: Vec<f64> = (-2100..1780).map(|i| f64::from(i) * 0.05).collect();
    #[rustfmt::skip]
    x.extend([0.0, -0.0, 1e-30, -1e-7, 88.72, 89.0, -87.4, -103.0, -104.5, 1e3, -1e3, 3e38, -3e38]);
    x.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    // To the end of what is taken for bounded.
    x.extend((-500..=500).map(|n| f64::from(n) * 1980.0 + f64::from(n % 7) * 0.3));
    // Of anything, and of what is bounded: NaN is no less than a bound, and so it is that.
    let bounded = |most: &str| {
        format!(
            "  k = -{most}\n  a = max(x, k)\n  s = -1\n  b = mul(s, a)\n  c = max(b, k)\n  t = mul(s, c)\n"
        )
    };
    let all = "  z = 0\n  t = add(x, z)\n".to_string();
    for (function, statements, most) in [
        ("tw_exp(", all, f64::INFINITY),
        ("tw_exp_bounded(", bounded("9.9e5"), 9.9e5),
        ("tw_exp_normal(", bounded("87.29"), 87.29),
    ] {
        let text = format!(
            "tile exponentials\naxis i = {}\nbuffer x = parameter 0 f32 [i]\nbuffer y = output 0 f32 [i]\n\
             kernel grid(i: 128) {{\n  x = load x[i]\n{statements}  e = exp(t)\n  store y = e\n}}\n",
            x.len()
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let s = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
        let cuda = lower(&tile, &s, &target()).unwrap_or_else(|e| panic!("{e}"));
        let body = cuda.source.split("__global__").nth(1);
        assert!(
            body.is_some_and(|body| body.contains(function)),
            "{function}"
        );
        let Some(got) = run("exponentials", &tile, &s, std::slice::from_ref(&x)) else {
            return;
        };
        for (x, got) in x.iter().zip(got) {
            let x = match most.is_finite() {
                true => between(*x, f64::from(-most as f32), f64::from(most as f32)),
                false => *x,
            };
            let want = f64::from((f64::from(x as f32)).exp() as f32);
            // What lies below the least normal number has an absolute error.
            let near = (got - want).abs() <= 4e-7 * want.abs() + 4e-45;
            assert!(
                near || got == want || (got.is_nan() && want.is_nan()),
                "{function}: e^{x} is {got:e}, should be {want:e}"
            );
        }
    }
}

/// A reduction over three tiles, of which the last one is partial: the others have code without conditions.
#[test]
fn tiles_that_are_whole_are_asked_for_no_element() {
    let text = "tile ragged\naxis i = 3, j = 1200\nbuffer x = parameter 0 f32 [i, j]\nbuffer y = output 0 f32 [i]\n\
        kernel grid(i: 1) loop(j: 512) {\n  loop j {\n    carry s0 = 0 over [i]\n    carry m0 = -inf over [i]\n    in = load x[i, j]\n\
        \x20   sum = reduce_sum(in; j)\n    s1 = add(s0, sum)\n    most = reduce_max(in; j)\n    m1 = max(m0, most)\n\
        \x20   yield s2 = final(s0, s1)\n    yield m2 = final(m0, m1)\n  }\n  y = add(s2, m2)\n  store y = y\n}\n";
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let s = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
    let cuda = lower(&tile, &s, &target()).unwrap_or_else(|e| panic!("{e}"));
    let body = cuda.source.split("__global__").nth(1).expect("a kernel");
    assert_eq!(body.matches("== 512) {").count(), 2, "{body}");
    // What lies behind the end would be the maximum, and part of the sum.
    let x: Vec<f64> = (0..3600).map(|n| -1.0 - f64::from(n % 7)).collect();
    let Some(got) = run("ragged", &tile, &s, std::slice::from_ref(&x)) else {
        return;
    };
    let rows = x.chunks(1200);
    let want =
        rows.map(|row| row.iter().sum::<f64>() + row.iter().copied().fold(f64::MIN, f64::max));
    assert_eq!(got, want.collect::<Vec<_>>());
}

/// The division of f32: everywhere near x / y, of numbers of any two sizes, and of what is no number.
#[test]
fn quotients() {
    let mut numbers: Vec<f64> = vec![0.0, 1e-45, 3e38, 1.2e38, f64::INFINITY, f64::NAN];
    numbers.extend((-147..=127).step_by(3).map(|e| 1.2345678 * 2f64.powi(e)));
    for edge in [-126, -101, -100, -99, -64, 64, 99, 100, 101, 126] {
        numbers.push(2f64.powi(edge));
    }
    numbers.extend(numbers.clone().iter().map(|x| -x));
    numbers.iter_mut().for_each(|x| *x = f64::from(*x as f32));
    let pairs = numbers
        .iter()
        .flat_map(|x| numbers.iter().map(|y| (*x, *y)));
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.unzip();
    // Any two; a divisor that is not small; both of middling sizes, a sign and a maximum being how a program says a minimum.
    type Operands = fn(f64, f64) -> [f64; 2];
    let kinds: [(&str, &str, Operands); 3] = [
        ("tw_div(", "  q = div(t, u)\n", |x, y| [x, y]),
        (
            "tw_div_away_from_zero(",
            "  k = 1e-25\n  m = max(u, k)\n  q = div(t, m)\n",
            |x, y| [x, y.max(f64::from(1e-25f32))],
        ),
        (
            "tw_div_bounded(",
            "  k = 1e-25\n  m = max(u, k)\n  s = -1\n  l = -1e25\n  n = mul(s, m)\n  o = max(n, l)\n  p = mul(s, o)\n  c = -1e5\n  \
             d = max(t, c)\n  e = mul(s, d)\n  f = max(e, c)\n  g = mul(s, f)\n  q = div(g, p)\n",
            |x, y| {
                let (least, most) = (f64::from(1e-25f32), f64::from(1e25f32));
                [between(x, -1e5, 1e5), between(y, least, most)]
            },
        ),
    ];
    for (function, statements, operands) in kinds {
        let text = format!(
            "tile quotients\naxis i = {}\nbuffer x = parameter 0 f32 [i]\nbuffer y = parameter 1 f32 [i]\nbuffer z = output 0 f32 [i]\n\
             kernel grid(i: 128) {{\n  t = load x[i]\n  u = load y[i]\n{statements}  store z = q\n}}\n",
            x.len()
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let s = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
        let cuda = lower(&tile, &s, &target()).unwrap_or_else(|e| panic!("{e}"));
        let body = cuda.source.split("__global__").nth(1);
        assert!(
            body.is_some_and(|body| body.contains(function)),
            "{function}"
        );
        let Some(got) = run("quotients", &tile, &s, &[x.clone(), y.clone()]) else {
            return;
        };
        for ((x, y), got) in x.iter().zip(&y).zip(got) {
            let [x, y] = operands(*x, *y);
            let want = f64::from((x / y) as f32);
            // An ulp, two where x is not normal; what lies below the least normal number has an absolute error.
            let ulps = if x.abs() < 2f64.powi(-126) { 2.0 } else { 1.0 };
            let near = (got - want).abs() <= ulps * 2f64.powi(-23) * want.abs() + 1.5e-45;
            // The largest number and infinity are an ulp apart.
            let overflows = want.abs() > 3.402823e38 && got.abs() > 3.402823e38 && got * want > 0.0;
            assert!(
                near || got == want || overflows || (got.is_nan() && want.is_nan()),
                "{function}: {x:e} / {y:e} is {got:e}, should be {want:e}"
            );
        }
    }
}

/// Oracle: `Dtype::round` of what is multiplied, at every width of a store.
#[test]
fn whole_results() {
    #[rustfmt::skip]
    let far = [
        2.999, -2.999, 0.5, -0.5, 16777217.0, 2147483520.0, 2147483648.0, -2147483648.0, 3e9, -3e9, 9.2e18, 9.3e18, -9.3e18,
        3e38, -3e38, 1e-30, 1e-42, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN,
    ];
    let all = [
        (Dtype::I32, "i, j"),
        (Dtype::Bool, "i, j"),
        (Dtype::I64, "i, j"),
        (Dtype::Bool, "j, i"),
    ];
    let mut seen = BTreeSet::new();
    // Beside wider results, and such as lie otherwise, a thread has fewer neighbours.
    for (columns, rows, tile_columns, results) in [(256, 2, 256, 2), (64, 4, 32, 4), (47, 4, 47, 4)]
    {
        let mut x = inputs(rows * columns, 8);
        for (x, far) in x.iter_mut().zip(far) {
            *x = far;
        }
        let results = &all[..results];
        let own = results.iter().enumerate();
        let buffers = own.clone().map(|(n, (dtype, axes))| {
            format!("buffer o{n} = output {n} {} [{axes}]\n", dtype.name())
        });
        let stores = own.clone().map(|(n, _)| format!("  store o{n} = y\n"));
        let text = format!(
            "tile whole\naxis i = {rows}, j = {columns}\nbuffer x = parameter 0 f32 [i, j]\n{}\
             kernel grid(i: 2, j: {tile_columns}) {{\n  t = load x[i, j]\n  one = 1\n  y = mul(t, one)\n{}}}\n",
            buffers.collect::<String>(),
            stores.collect::<String>()
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let s = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
        let cuda = lower(&tile, &s, &target()).unwrap_or_else(|e| panic!("{e}"));
        let kernel = &cuda.source[cuda.source.find("__global__").expect("a kernel")..];
        for (dtype, width) in ["i32", "i64", "bool"]
            .iter()
            .flat_map(|d| [1, 2, 4, 8].map(|w| (d, w)))
        {
            if kernel.contains(&format!("tw_store_{dtype}<{width}>")) {
                seen.insert((*dtype, width));
            }
        }
        if !emulator::available() {
            return;
        }
        let orders = emulator::run(&cuda, &tile, std::slice::from_ref(&x));
        let got = one_of("whole", orders.unwrap_or_else(|e| panic!("{e}")));
        for (n, (dtype, axes)) in own {
            for (at, x) in x.iter().enumerate() {
                let place = match *axes {
                    "j, i" => at % columns * rows + at / columns,
                    _ => at,
                };
                let want = dtype.round(Dtype::F32.round(*x));
                assert_eq!(got[n][place], want, "{x} as {}", dtype.name());
            }
        }
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}

/// A loop that runs over the one coordinate that is read, as whatever number: what is behind the point does not count, and what lies outside is none.
#[test]
fn places_that_are_read() {
    let text = "tile picked
axis t = 9, v = 7, d = 8
buffer at = parameter 0 f32 [t]
buffer table = parameter 1 f32 [v, d]
buffer out = output 0 f32 [t, d]
kernel grid(t: 1, d: 8) loop(v: 1) {
  loop v from at[t] to at[t] + 1 {
    carry sum = 0 over [t, d]
    x = load table[v, d]
    part = reduce_sum(x; v)
    next = add(sum, part)
    yield all = final(sum, next)
  }
  store out = all
}
";
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let at = [
        3.0,
        0.0,
        6.0,
        5.9,
        -1.0,
        7.0,
        1e12,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let places = [
        Some(3),
        Some(0),
        Some(6),
        Some(5),
        None,
        None,
        None,
        None,
        Some(0),
    ];
    let table = inputs(7 * 8, 3);
    let row = |place: &Option<usize>| match place {
        Some(v) => table[v * 8..][..8].to_vec(),
        None => vec![0.0; 8],
    };
    let want: Vec<f64> = places.iter().flat_map(row).collect();
    let s = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
    let Some(got) = run("picked", &tile, &s, &[at.to_vec(), table]) else {
        return;
    };
    close("picked", &got, &want, 1e-6);
}

#[test]
fn rows() {
    use Dtype::*;
    #[rustfmt::skip]
    let cases = [
        (F32,  [5, 100],  1, None,      [1, 2]),
        (Bf16, [4, 1024], 1, None,      [1, 4]),
        (F16,  [9, 96],   4, None,      [2, 1]),
        (F32,  [6, 300],  2, Some(128), [2, 2]),
        (F32,  [3, 7],    3, None,      [1, 1]),
    ];
    for (n, (dtype, extents, tile_rows, looped, warps)) in cases.into_iter().enumerate() {
        let tile = row_norm(dtype, extents, tile_rows, looped);
        let s = schedule(&tile, atoms::FMA, warps, 1, &[]);
        let [i, j] = extents.map(|x| x as usize);
        let (x, w) = (inputs(i * j, 6), inputs(j, 7));
        let want: Vec<f64> = (0..i)
            .flat_map(|r| {
                let row = &x[r * j..][..j];
                let root = (row.iter().map(|a| a * a).sum::<f64>() / j as f64 + 1e-5).sqrt();
                row.iter()
                    .zip(&w)
                    .map(move |(a, b)| a / root * b)
                    .collect::<Vec<_>>()
            })
            .collect();
        let label = format!("rows{n}");
        let Some(got) = run(&label, &tile, &s, &[x, w]) else {
            return;
        };
        close(&label, &got, &want, unit(dtype));
    }
}

/// Rows spread over block groups: softmax with the largest element beside it, with three grid barriers.
#[test]
fn rows_of_block_groups() {
    // extents, tiles, warps
    #[rustfmt::skip]
    let cases = [
        ([3u64, 1000], [1u64, 128], [1, 2]),
        ([4, 300],  [2, 64],  [2, 1]),
        ([2, 70],   [1, 2],   [1, 1]),
        ([5, 12],   [2, 1],   [1, 1]),
    ];
    for (n, ([i, j], [rows, columns], warps)) in cases.into_iter().enumerate() {
        let text = format!(
            "tile block_groups\naxis i = {i}, j = {j}\nbuffer x = parameter 0 f32 [i, j]\nbuffer y = output 0 f32 [i, j]\nbuffer top = output 1 f32 [i]\n\
             kernel grid(i: {rows}, j: {columns}) {{\n  t = load x[i, j]\n  m = reduce_max(t; j)\n  minus = -1\n  back = mul(minus, m)\n  \
             s = add(t, back)\n  e = exp(s)\n  sum = reduce_sum(e; j)\n  r = div(e, sum)\n  store y = r\n  store top = m\n}}\n"
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let s = schedule(&tile, atoms::FMA, warps, 1, &[]);
        let cuda = lower(&tile, &s, &target()).unwrap_or_else(|e| panic!("{e}"));
        let size = j.div_ceil(columns);
        assert_eq!(cuda.launches[0].split_workspace.together, size);
        if !emulator::available() {
            return;
        }
        let x = inputs((i * j) as usize, 8);
        let (mut want, mut tops) = (Vec::new(), Vec::new());
        for row in x.chunks(j as usize) {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|a| (a - top).exp()).sum();
            want.extend(row.iter().map(|a| (a - top).exp() / sum));
            tops.push(top);
        }
        let label = format!("block_groups{n}");
        let right = |label: &str, cuda: &codegen::CudaProgram| {
            let orders = emulator::run(cuda, &tile, std::slice::from_ref(&x));
            let got = one_of(label, orders.unwrap_or_else(|e| panic!("{label}: {e}")));
            close(label, &got[0], &want, 2e-6);
            close(label, &got[1], &tops, 2e-6);
        };
        right(&label, &cuda);
        let mut clusters = s.clone();
        clusters.kernels[0].extend([distributed::step()]);
        match lower(&tile, &clusters, &target()) {
            Err(refused) => assert!(size > 8, "{label}: {refused}"),
            Ok(cuda) => {
                assert_eq!(cuda.launches[0].split_workspace.bytes, 0);
                let dims = format!(" __cluster_dims__({size}, 1, 1) ");
                assert!(cuda.source.contains(&dims));
                right(&format!("{label} in clusters"), &cuda);
            }
        }
    }
    // Blocks that do different iterations store what is theirs.
    let text = "tile block_groups\naxis i = 2, j = 90, part = 3\nbuffer x = parameter 0 f32 [i, j]\nbuffer y = output 0 f32 [i, j]\n\
                kernel grid(i: 1, part: 1) loop(j: 16) {\n  loop j from 32*first(part) to 32*first(part) + 32 {\n    \
                carry s = 0 over [i, part]\n    t = load x[i, j]\n    r = reduce_sum(t; j)\n    s2 = add(s, r)\n    \
                yield own = final(s, s2)\n  }\n  all = reduce_sum(own; part)\n  loop j from 32*first(part) to 32*first(part) + 32 {\n    \
                u = load x[i, j]\n    z = mul(u, all)\n    store y = z\n  }\n}\n";
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let s = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
    let x = inputs(180, 12);
    let want: Vec<f64> = x
        .chunks(90)
        .flat_map(|row| {
            row.iter()
                .map(|a| a * row.iter().sum::<f64>())
                .collect::<Vec<_>>()
        })
        .collect();
    let Some(got) = run("own", &tile, &s, &[x]) else {
        return;
    };
    close("own", &got, &want, 2e-6);
    // A block group that finds no room would wait forever.
    let text = "tile block_groups\naxis j = 4000\nbuffer x = parameter 0 f32 [j]\nbuffer y = output 0 f32 [j]\n\
                kernel grid(j: 16) {\n  t = load x[j]\n  m = reduce_sum(t; j)\n  r = mul(t, m)\n  store y = r\n}\n";
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let s = schedule(&tile, atoms::FMA, [1, 1], 1, &[]);
    assert!(matches!(
        lower(&tile, &s, &target()),
        Err(ir::Reject::Grid(_))
    ));
}

/// A split product whose parts the last block of a group combines, beside a sum of squares that all of the group have alike.
#[test]
fn parts_of_block_groups() {
    // atom, swap, warps, extents (rows, columns, depth), column tile, chunk
    #[rustfmt::skip]
    let cases = [
        (atoms::MMA_M16N8K16, false, [1, 2], [16, 40, 160], 16, 64),
        (atoms::MMA_M16N8K16, true,  [2, 1], [3, 64, 96],   32, 32),
        (atoms::FMA,         false, [1, 1], [5, 24, 128],  8,  32),
        (atoms::MMA_M16N8K16, false, [1, 2], [16, 96, 128], 32, 32),
        (atoms::MMA_M16N8K16, true,  [1, 1], [24, 48, 128], 16, 64),
    ];
    for (n, (atom, swap, warps, [i, c, k], columns, chunk)) in cases.into_iter().enumerate() {
        let parts = usize::div_ceil(k, chunk);
        let text = format!(
            "tile parts\naxis i = {i}, c = {c}, k = {k}, part = {parts}\nbuffer x = parameter 0 f16 [i, k]\nbuffer w = parameter 1 f16 [k, c]\n\
             buffer y = output 0 f32 [i, c]\nkernel grid(i: {i}, c: {columns}, part: 1) loop(k: 32) {{\n  \
             loop k from {chunk}*first(part) to {chunk}*first(part) + {chunk} {{\n    carry d = 0 over [i, c, part]\n    \
             carry q = 0 over [i, part]\n    a = load x[i, k]\n    b = load w[k, c]\n    p = contract(a, b; k)\n    d2 = add(d, p)\n    \
             s = mul(a, a)\n    r = reduce_sum(s; k)\n    q2 = add(q, r)\n    yield d3 = final(d, d2)\n    yield q3 = final(q, q2)\n  }}\n  \
             all = reduce_sum(d3; part)\n  squares = reduce_sum(q3; part)\n  one = 1\n  more = add(one, squares)\n  y2 = div(all, more)\n  \
             store y = y2\n}}\n"
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(tile.kernels[0].grid_barriers().len(), 1);
        let s = schedule(&tile, atom, warps, 2, &[swap]);
        let (x, w) = (inputs(i * k, 9), inputs(k * c, 10));
        let mut want = vec![0.0; i * c];
        for (r, row) in x.chunks(k).enumerate() {
            let squares: f64 = row.iter().map(|a| a * a).sum();
            for l in 0..c {
                let dot: f64 = (0..k).map(|z| row[z] * w[z * c + l]).sum();
                want[r * c + l] = dot / (1.0 + squares);
            }
        }
        let label = format!("parts{n}");
        let parameters = [x, w];
        let Some(got) = run(&label, &tile, &s, &parameters) else {
            return;
        };
        close(&label, &got, &want, unit(Dtype::F16));
        let mut clusters = s.clone();
        clusters.kernels[0].extend([distributed::step()]);
        let label = format!("{label} in clusters");
        let got = run(&label, &tile, &clusters, &parameters).expect("it ran before");
        close(&label, &got, &want, unit(Dtype::F16));
        let cuda = lower(&tile, &clusters, &target()).expect("it lowers");
        // Four or two blocks reduce and store a share each, and of three the first all.
        assert_eq!(
            cuda.source.contains("if (rank == 0) {"),
            parts == 3,
            "{label}"
        );
        let call = "  tw_cluster_meets();";
        let places: Vec<usize> = cuda.source.match_indices(call).map(|m| m.0).collect();
        for at in &places[1..] {
            let mut source = cuda.source.clone();
            source.replace_range(at..&(at + call.len()), "");
            let faulty = codegen::CudaProgram {
                source,
                ..cuda.clone()
            };
            let orders = emulator::run(&faulty, &tile, &parameters);
            assert!(orders.is_err(), "{label}: without one meeting");
        }
    }
}

/// A loop that stores what it has summed so far, and goes on: sums along rows in blocks, without a block's own elements and with them, of which a
/// product with a triangle adds what is in the block in front of an element.
#[test]
fn running_sums() {
    #[rustfmt::skip]
    let cases = [
        (false, atoms::MMA_M16N8K8_TF32X3, [2, 1], 1, [70, 5, 32], 32),
        (false, atoms::WGMMA_M64K8_TF32X3, [4, 1], 3, [130, 7, 32], 64),
        (true,  atoms::FMA,                [1, 2], 2, [9, 4, 16], 4),
        (false, atoms::MMA_M16N8K8_TF32X3, [1, 4], 2, [16, 9, 64], 16),
    ];
    for (n, (own, atom, warps, stages, [i, blocks, u], rows)) in cases.into_iter().enumerate() {
        let (seen, order) = match own {
            true => (
                "c2",
                [
                    "  c2 = add(c, r)\n    y = add(c2, w)\n    store y = y\n",
                    "",
                ],
            ),
            false => (
                "c",
                ["  y = add(c, w)\n    store y = y\n", "  c2 = add(c, r)\n"],
            ),
        };
        let text = format!(
            "tile running\naxis i = {i}, b = {blocks}, u = {u}, v = {u}\nbuffer x = parameter 0 f32 [i, (b v)]\nbuffer y = output 0 f32 [i, (b u)]\n\
             kernel grid(i: {rows}) loop(b: 1) whole(u: {u}, v: {u}) {{\n  zero = 0\n  one = 1\n  minus = -1\n  at = iota(u)\n  to = iota(v)\n  \
             back = mul(minus, to)\n  distance = add(at, back)\n  mask = select(distance, one, zero)\n  loop b {{\n    carry c = 0 over [i]\n    \
             t = load x[i, b, v]\n    r = reduce_sum(t; b, v)\n    w = contract(t, mask; v)\n  {}  {}    \
             yield all = final(c, c2)\n  }}\n}}\n",
            order[0], order[1],
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let s = schedule(&tile, atom, warps, stages, &[]);
        let x = inputs(i * blocks * u, 21);
        let mut want = Vec::new();
        for row in x.chunks(blocks * u) {
            let block = |b: usize| row[b * u..(b + 1) * u].iter().sum::<f64>();
            for at in 0..blocks * u {
                let before: f64 = (0..at / u + usize::from(own)).map(block).sum();
                want.push(before + row[at / u * u..=at].iter().sum::<f64>());
            }
        }
        let label = format!("running{n}, {seen}");
        let Some(got) = run(&label, &tile, &s, &[x]) else {
            return;
        };
        close(&label, &got, &want, 4e-6);
    }
}

#[test]
fn scans_along_an_axis() {
    for (n, scan) in scans().into_iter().enumerate() {
        let label = format!("{scan:?}");
        // Each of a kind; the machine programs of all are checked.
        if n % 5 != 0 {
            continue;
        }
        let (tile, x, want) = scanned(&scan);
        let s = schedule(&tile, atoms::FMA, scan.warps, 1, &[]);
        let Some(got) = run(&label, &tile, &s, &[x]) else {
            return;
        };
        close(&label, &got, &want, 4e-5);
    }
}

/// Compares a chain, under every order of threads, with `ir::eval`: the exact one in two slabs, of which the last may be smaller. `None`
/// where nothing can be emulated.
fn referred(seed: u64, program: &ir::Program, mode: ReferenceMode) -> Option<ReferenceProgram> {
    let (mut data, mut tensors) = (Vec::new(), Vec::new());
    for (_, _, _, dims) in program.parameters() {
        let shape: Vec<usize> = program.shape(dims).iter().map(|x| *x as usize).collect();
        let values = inputs(shape.iter().product(), 11 + seed);
        tensors.push(ir::Tensor::new(shape, values.clone()).expect("a tensor"));
        data.push(values);
    }
    let want = ir::eval(program, &tensors).expect("a value");
    let chain = reference(program, mode).expect("a chain");
    let extent = chain.slab.map_or(1, |s| s.1);
    let (count, tolerance) = match mode {
        ReferenceMode::Exact => (extent.div_ceil(2), 1e-12),
        ReferenceMode::Careful => (extent, 2e-2),
        ReferenceMode::Dithered => (extent, 4e-2),
    };
    let label = format!("reference{seed}{mode:?}{count}");
    if !emulator::available() {
        return None;
    }
    let orders = emulator::run_reference(program, &chain, &data, count)
        .unwrap_or_else(|e| panic!("{label}: {e}\n{program}"));
    let got = one_of(&label, orders);
    for ((g, w), output) in got.iter().zip(&want).zip(&program.outputs) {
        // Nothing is rounded yet, but by chains that are careful.
        let stored = |x: &f64| match output.dtype.is_float() {
            true => *x,
            false => output.dtype.round(*x),
        };
        let [g, w] = [g, &w.data].map(|x| -> Vec<f64> { x.iter().map(stored).collect() });
        // References of 16-bit outputs come in f32.
        let odd = match (mode, output.dtype) {
            (ReferenceMode::Exact, Dtype::F16 | Dtype::Bf16) => 1.2e-7,
            (ReferenceMode::Exact | ReferenceMode::Careful | ReferenceMode::Dithered, _) => 0.0,
        };
        close(&label, &g, &w, tolerance + odd);
    }
    Some(chain)
}

/// Oracle: `ir::eval`.
#[test]
fn random_reference_chains() {
    let both = prop_oneof![3 => strategies::programs(), 1 => strategies::cascades()];
    strategies::check(&both, 0, 10, |program| {
        referred(0, program, ReferenceMode::Exact);
    });
}

/// Oracle: `ir::eval`. Every kind of kernel, at every edge.
#[test]
fn reference_chains() {
    #[rustfmt::skip]
    let programs = [
        "program a\naxis h = 3, i = 5, j = 7, d = 4, e = 6\nq = parameter bf16 [i, (h d)]\nk = parameter bf16 [h, j, d]\nv = parameter f16 [h, j, e]\np = softmax(causal(dot(q, k; d) * 0.5; i, j); j)\nreturn bf16 [i, (h e)] dot(p, v; j), f32 [h, i] sum(p; j)\n",
        "program c\naxis n = 2, ci = 2, h = 6, w = 5, co = 3, oh = 3, ow = 5, kh = 3, kw = 3\nx = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\nreturn f32 [n, co, oh, ow] dot(view(x; h -> 2*oh + kh - 1, w -> ow + kw - 1; fill = 0), f; ci, kh, kw)\n",
        "program n\naxis i = 3, j = 5000\nx = parameter f32 [i, j]\nreturn f32 [i, j] x / sqrt(sum(x * x; j) + 1) + max(x; j)\n",
        "program p\naxis g = 2, i = 66, j = 9, k = 5\nx = parameter bf16 [g, i, k]\ny = parameter f16 [g, j, k]\nreturn f32 [g, j, i] dot(x, exp(y); k)\n",
        "program b\naxis i = 2, a = 1500, c = 3\nx = parameter f32 [i, a, c]\nreturn f32 [i] sum(x; a, c), f32 [i] max(x; a, c)\n",
        "program r\naxis s = 3, t = 2, c = 4\nx = parameter bf16 [s, (t c)]\nreturn bf16 [s, (t c)] x * iota(c) + (2 * iota(t) - 1) * view(view(x; t -> 1 - t); t -> 1 - t)\n",
        // Tiles with edges, of factors that are contiguous along their own axis, along the terms, and of which one is the slab's.
        "program m\naxis i = 130, j = 67, k = 19\nx = parameter bf16 [i, k]\ny = parameter bf16 [j, k]\nreturn f32 [i, j] dot(x, y; k), f32 [j] sum(x; i, k) * iota(j)\n",
        "program s\naxis g = 2, i = 64, j = 129, k = 19\nx = parameter bf16 [g, k, i]\ny = parameter f32 [k, j]\nreturn f32 [g, i, j] dot(x, y; k) - 0.5\n",
        "program t\naxis a = 3, b = 6, c = 5, d = 7, k = 4, l = 9\nx = parameter f32 [l, (b a), k]\ny = parameter f32 [(d k), (c l)]\nreturn f32 [(a c), (d b)] dot(x, y; k, l)\n",
        // Products and folds in parts: few results of many terms.
        "program u\naxis i = 3, j = 30, k = 5003\nx = parameter f32 [i, k]\ny = parameter f32 [k, j]\nreturn f32 [i, j] dot(x, y; k) * 0.125\n",
        "program v\naxis i = 5, j = 3001\nx = parameter f32 [j, i]\nreturn f32 [i] max(x; j) - sum(x * x * 0.01; j)\n",
        "program w\naxis a = 7, b = 4801\nx = parameter f32 [a, b]\nreturn f32 [] sum(x * x; a, b), f32 [] max(exp(x); a, b)\n",
        // What is needed for all of the slab's axis, and what is read elsewhere along it.
        "program x\naxis n = 6, m = 6, c = 9\nx = parameter f32 [n, c]\ny = exp(x) / sum(exp(x); n, c)\nreturn f32 [n, c] y + view(y; n -> 5 - n), f32 [c, n] max(view(y; n -> m) * y; m)\n",
        "program y\naxis i = 9, j = 9, d = 3\nq = parameter bf16 [i, d]\nk = parameter bf16 [j, d]\ndoc = parameter f32 [i]\nsame = select(doc - view(doc; i -> j), dot(q, k; d), -4)\nreturn bf16 [i, j] softmax(same; j)\n",
        // Running folds: in both directions, of steps, along the slab's axis and beside it.
        "program ra\naxis t = 3, i = 70, j = 70\nx = parameter f32 [t, i]\nreturn f32 [t, i] sum(select(iota(i) - iota(j), view(x; i -> j) * 0.5, 0); j)\n",
        "program rb\naxis t = 5, i = 40, j = 80\nx = parameter f32 [j, t]\nreturn f32 [i, t] max(select(iota(j) - 2 * iota(i) + 1, x, -inf); j)\n",
        "program rc\naxis i = 70, j = 65\nx = parameter f32 [j]\nreturn f32 [i] sum(select(60 - iota(i) - iota(j), exp(x), 0); j)\n",
        // Where the largest element of a row is, whether it is one of the first, and what has fractions.
        "program q\naxis i = 7, j = 40\nx = parameter f32 [i, j]\nat = min(select(x - max(x; j), iota(j), size(j)); j)\nreturn i64 [i] at, bool [i] relu(at - 6), i32 [j, i] x * 7\n",
        "program o\naxis i = 7, j = 40\nx = parameter f16 [i, j]\nat = min(select(x - max(x; j), iota(j), size(j)); j)\nreturn i32 [i] at, bool [i, j] x, i64 [j, i] x * -7\n",
        "program z\naxis h = 9, o = 4, k = 3, c = 20\nx = parameter f32 [h, c]\nreturn f32 [o, c] max(view(x * 2; h -> 2*o + k; fill = -inf); k)\n",
    ];
    let (mut seen, mut parts) = (BTreeSet::new(), 0);
    for (n, text) in programs.into_iter().enumerate() {
        let program: ir::Program = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let modes = [
            ReferenceMode::Exact,
            ReferenceMode::Careful,
            ReferenceMode::Dithered,
        ];
        // All print the same kernels: some of the programs are enough for the others.
        for mode in modes.into_iter().take(1 + n % 4) {
            let Some(chain) = referred(n as u64, &program, mode) else {
                return;
            };
            for sign in [
                "tw_each(",
                "tw_fold<1>",
                "tw_fold<32>",
                "tw_fold<256>",
                "tw_running(",
                "tw_product<",
            ] {
                let kernels = chain.source.rsplit(KERNELS_MARK).next();
                seen.extend(kernels.filter(|s| s.contains(sign)).map(|_| sign));
            }
            if mode == ReferenceMode::Exact {
                let of_parts = (chain.launches.iter()).filter(|l| l.entry.ends_with("_parts"));
                parts += of_parts.count();
            }
        }
    }
    assert_eq!((seen.len(), parts), (6, 5), "{seen:?}");
}

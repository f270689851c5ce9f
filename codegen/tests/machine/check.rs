//! Machine programs under the checker: right ones compute what plain formulas say, and faulty ones are refused.

use crate::common::*;
use codegen::check::{Fault, run};
use codegen::machine::{Machine, Scan, Statement, Sync};
use codegen::machines;
use codegen::passes::{
    delayed, distributed, instruction, multicast, persistent, pipeline, raster, roles,
};
use expect_test::expect;
use ir::{Atom, Dtype, Schedule, TileProgram};
use tilewright_codegen as codegen;

/// A kernel, how it is lowered, and what it is to compute.
struct Case {
    label: String,
    tile: TileProgram,
    schedule: Schedule,
    parameters: Vec<Vec<f64>>,
    want: Vec<f64>,
}

impl Case {
    fn machines(&self) -> Vec<Machine> {
        let lowered = machines(&self.tile, &self.schedule, &target());
        lowered.unwrap_or_else(|e| panic!("{}: {e}", self.label))
    }

    /// Whether the case's first output is right where it is computed by these machine programs.
    fn is_right(&self, machines: &[Machine], seed: u64) -> Result<bool, Fault> {
        let got = run(&self.tile, machines, &self.parameters, seed)?;
        let close = |(x, y): (&f64, &f64)| x == y || (x - y).abs() <= 1e-9 * (1.0 + y.abs());
        Ok(got[0].len() == self.want.len() && got[0].iter().zip(&self.want).all(close))
    }
}

fn product(
    label: &str,
    dtype: Dtype,
    extents: [u64; 3],
    tiles: [u64; 3],
    rows: bool,
    schedule: impl Fn(&TileProgram) -> Schedule,
) -> Case {
    let tile = matmul(dtype, Dtype::F32, extents, tiles, rows);
    let [m, n, k] = extents.map(|x| x as usize);
    let (x, y) = (inputs(m * k, 1), inputs(k * n, 2));
    let b = |l: usize, j: usize| if rows { y[j * k + l] } else { y[l * n + j] };
    let dot = |i: usize, j: usize| (0..k).map(|l| x[i * k + l] * b(l, j)).sum();
    Case {
        label: label.into(),
        schedule: schedule(&tile),
        want: (0..m * n).map(|at| dot(at / n, at % n)).collect(),
        parameters: vec![x, y],
        tile,
    }
}

fn attends(
    label: &str,
    dtype: Dtype,
    extents: [u64; 5],
    tiles: [u64; 2],
    causal: bool,
    schedule: impl Fn(&TileProgram) -> Schedule,
) -> Case {
    let tile = attention(dtype, extents, tiles, causal, false);
    let [h, i, j, d, e] = extents.map(|x| x as usize);
    let (q, k, v) = (
        inputs(h * i * d, 3),
        inputs(h * j * d, 4),
        inputs(h * j * e, 5),
    );
    Case {
        label: label.into(),
        schedule: schedule(&tile),
        want: attended(extents, causal, false, [&q, &k, &v]),
        parameters: vec![q, k, v],
        tile,
    }
}

/// A product whose blocks each do a part of the depth, beside a sum that all of a group have alike.
fn parts(label: &str, clusters: bool, part: usize) -> Case {
    let (c, k) = (16, 384);
    // Three blocks of a cluster share out nothing, two the columns, and four the rows as well.
    let (i, columns, atom) = match part {
        3 => (5, 8, atoms::FMA),
        _ => (16, 16, atoms::MMA_M16N8K16),
    };
    let chunk = k / part;
    // What all blocks have alike one of them stores; columns in several tiles would store it several times.
    let z = if columns == c {
        "  store z = squares\n"
    } else {
        ""
    };
    let output = if columns == c {
        "buffer z = output 1 f32 [i]\n"
    } else {
        ""
    };
    let text = format!(
        "tile parts\naxis i = {i}, c = {c}, k = {k}, part = {part}\nbuffer x = parameter 0 f16 [i, k]\nbuffer w = parameter 1 f16 [k, c]\n\
         buffer y = output 0 f32 [i, c]\n{output}kernel grid(i: {i}, c: {columns}, part: 1) loop(k: 16) {{\n  \
         loop k from {chunk}*first(part) to {chunk}*first(part) + {chunk} {{\n    carry d = 0 over [i, c, part]\n    \
         carry q = 0 over [i, part]\n    a = load x[i, k]\n    b = load w[k, c]\n    p = contract(a, b; k)\n    d2 = add(d, p)\n    \
         s = mul(a, a)\n    r = reduce_sum(s; k)\n    q2 = add(q, r)\n    yield d3 = final(d, d2)\n    yield q3 = final(q, q2)\n  }}\n  \
         all = reduce_sum(d3; part)\n  squares = reduce_sum(q3; part)\n  one = 1\n  more = add(one, squares)\n  y2 = div(all, more)\n  \
         store y = y2\n{z}}}\n"
    );
    let tile: TileProgram = text.parse().expect("a tile program");
    let (x, w) = (inputs(i * k, 9), inputs(k * c, 10));
    let mut want = vec![0.0; i * c];
    for (r, row) in x.chunks(k).enumerate() {
        let squares: f64 = row.iter().map(|a| a * a).sum();
        for l in 0..c {
            let dot: f64 = (0..k).map(|z| row[z] * w[z * c + l]).sum();
            want[r * c + l] = dot / (1.0 + squares);
        }
    }
    let schedule = schedule(&tile, atom, [1, 1], 2, &[false]);
    Case {
        label: label.into(),
        schedule: in_clusters(schedule, clusters),
        parameters: vec![x, w],
        want,
        tile,
    }
}

/// Block groups are clusters.
fn in_clusters(mut schedule: Schedule, clusters: bool) -> Schedule {
    schedule.kernels[0].extend(clusters.then(distributed::step));
    schedule
}

/// Rows that a group of blocks normalises, with grid barriers.
fn group(clusters: bool) -> Case {
    let (i, j) = (2, 300);
    let text = format!(
        "tile group\naxis i = {i}, j = {j}\nbuffer x = parameter 0 f32 [i, j]\nbuffer y = output 0 f32 [i, j]\n\
         kernel grid(i: 2, j: 64) {{\n  t = load x[i, j]\n  m = reduce_max(t; j)\n  minus = -1\n  back = mul(minus, m)\n  \
         s = add(t, back)\n  e = exp(s)\n  sum = reduce_sum(e; j)\n  r = div(e, sum)\n  store y = r\n}}\n"
    );
    let tile: TileProgram = text.parse().expect("a tile program");
    let x = inputs(i * j, 8);
    let mut want = Vec::new();
    for row in x.chunks(j) {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|a| (a - top).exp()).sum();
        want.extend(row.iter().map(|a| (a - top).exp() / sum));
    }
    let schedule = schedule(&tile, atoms::FMA, [2, 1], 1, &[]);
    Case {
        label: format!(
            "a {}",
            if clusters {
                "cluster"
            } else {
                "group of blocks"
            }
        ),
        schedule: in_clusters(schedule, clusters),
        parameters: vec![x],
        want,
        tile,
    }
}

/// A product with squares, which threads compute and write to shared memory for others.
fn squares(atom: Atom) -> Case {
    let (i, c, k) = (32, 32, 80);
    let text = format!(
        "tile squares\naxis i = {i}, c = {c}, k = {k}\nbuffer x = parameter 0 f16 [i, k]\nbuffer w = parameter 1 f16 [k, c]\n\
         buffer y = output 0 f32 [i, c]\nkernel grid(i: 32, c: 16) loop(k: 16) {{\n  loop k {{\n    carry d = 0 over [i, c]\n    \
         a = load x[i, k]\n    b = load w[k, c]\n    s = mul(b, b)\n    p = contract(a, s; k)\n    d2 = add(d, p)\n    \
         yield d3 = final(d, d2)\n  }}\n  store y = d3\n}}\n"
    );
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let (x, w) = (inputs(i * k, 13), inputs(k * c, 14));
    let mut want = vec![0.0; i * c];
    for (r, row) in x.chunks(k).enumerate() {
        for l in 0..c {
            want[r * c + l] = (0..k).map(|z| row[z] * w[z * c + l].powi(2)).sum();
        }
    }
    Case {
        label: format!("squares, {}", atom.name()),
        schedule: schedule(&tile, atom, [2, 1], 2, &[false]),
        parameters: vec![x, w],
        want,
        tile,
    }
}

/// Products of 16 bits and of f32 in one loop, both by groups of warps.
fn mixed(overlap: Overlap, stages: u32) -> Case {
    let (i, c, k) = (64, 32, 112);
    let text = format!(
        "tile mixed\naxis i = {i}, c = {c}, k = {k}\nbuffer x = parameter 0 f16 [i, k]\nbuffer w = parameter 1 f16 [k, c]\n\
         buffer u = parameter 2 f32 [i, k]\nbuffer v = parameter 3 f32 [k, c]\nbuffer y = output 0 f32 [i, c]\n\
         kernel grid(i: 64, c: 32) loop(k: 32) {{\n  loop k {{\n    carry s = 0 over [i, c]\n    carry t = 0 over [i, c]\n    \
         a = load x[i, k]\n    b = load w[k, c]\n    d = load u[i, k]\n    e = load v[k, c]\n    p = contract(a, b; k)\n    \
         q = contract(d, e; k)\n    s2 = add(s, p)\n    t2 = add(t, q)\n    yield s3 = final(s, s2)\n    \
         yield t3 = final(t, t2)\n  }}\n  z = mul(s3, t3)\n  store y = z\n}}\n"
    );
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let mut schedule = overlapped(&tile, atoms::WGMMA_M64K16, [4, 1], stages, &[], overlap);
    let (last, mut how) = instruction::all(&schedule.kernels[0])
        .last()
        .expect("a product");
    how.atom = atoms::WGMMA_M64K8_TF32X3;
    schedule.kernels[0].set(instruction::step(last, how));
    let all: Vec<Vec<f64>> = [(i * k, 15), (k * c, 16), (i * k, 17), (k * c, 18)]
        .map(|(count, seed)| inputs(count, seed))
        .to_vec();
    let dot = |a: &[f64], b: &[f64], at: usize| -> f64 {
        let (r, l) = (at / c, at % c);
        (0..k).map(|z| a[r * k + z] * b[z * c + l]).sum()
    };
    Case {
        label: format!("16 bits beside halves, {overlap:?}"),
        schedule,
        want: (0..i * c)
            .map(|at| dot(&all[0], &all[1], at) * dot(&all[2], &all[3], at))
            .collect(),
        parameters: all,
        tile,
    }
}

/// Windows of a part of the source that is held once, along a depth of three axes, with sums that go on through a loop within a loop.
fn windows(overlap: Overlap, stages: u32) -> Case {
    let (tile, parameters) = (convolution(), source_and_filters());
    let atom = atoms::WGMMA_M64K8_TF32X3;
    let schedule = overlapped(&tile, atom, [4, 1], stages, &[], overlap);
    Case {
        label: format!("windows, {overlap:?}"),
        want: convolved(&parameters),
        parameters: parameters.to_vec(),
        schedule,
        tile,
    }
}

/// A product of rows that a kernel in front scaled, with a matrix that no kernel writes.
fn dependent_launches() -> Case {
    let (i, c, k) = (20, 24, 96);
    let text = format!(
        "tile dependent_launches\naxis i = {i}, c = {c}, k = {k}\nbuffer x = parameter 0 f32 [i, k]\nbuffer w = parameter 1 f32 [k, c]\n\
         buffer s = workspace f32 [i, k]\nbuffer y = output 0 f32 [i, c]\nkernel grid(i: 4) whole(k: {k}) {{\n  t = load x[i, k]\n  \
         m = reduce_sum(t; k)\n  r = mul(t, m)\n  store s = r\n}}\nkernel grid(i: 8, c: 8) loop(k: 16) {{\n  loop k {{\n    \
         carry d = 0 over [i, c]\n    a = load s[i, k]\n    b = load w[k, c]\n    p = contract(a, b; k)\n    d2 = add(d, p)\n    \
         yield d3 = final(d, d2)\n  }}\n  store y = d3\n}}\n"
    );
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let (x, w) = (inputs(i * k, 11), inputs(k * c, 12));
    let mut want = vec![0.0; i * c];
    for (r, row) in x.chunks(k).enumerate() {
        let sum: f64 = row.iter().sum();
        for l in 0..c {
            want[r * c + l] = (0..k).map(|z| row[z] * sum * w[z * c + l]).sum();
        }
    }
    Case {
        label: "two dependent launches".into(),
        schedule: schedule(&tile, atoms::FMA, [2, 1], 3, &[false]),
        parameters: vec![x, w],
        want,
        tile,
    }
}

fn normed(looped: Option<u64>, warps: [u32; 2], stages: u32) -> Case {
    let (i, j) = (6, 300);
    let tile = row_norm(Dtype::F32, [i, j], 2, looped);
    let [i, j] = [i, j].map(|x| x as usize);
    let (x, w) = (inputs(i * j, 6), inputs(j, 7));
    let mut want = Vec::new();
    for row in x.chunks(j) {
        let root = (row.iter().map(|a| a * a).sum::<f64>() / j as f64 + 1e-5).sqrt();
        want.extend(row.iter().zip(&w).map(|(a, b)| a / root * b));
    }
    Case {
        label: format!("rows {looped:?} {warps:?} {stages}"),
        schedule: schedule(&tile, atoms::FMA, warps, stages, &[]),
        parameters: vec![x, w],
        want,
        tile,
    }
}

/// Sums in loops within loops, the outermost of which begins with a number: threads carry what each has of them through all loops that begin with nothing.
fn summed(begins: u32, warps: [u32; 2]) -> Case {
    let [r, a, b, c, d] = [6, 2, 3, 5, 40];
    let text = format!(
        "tile summed\naxis r = {r}, a = {a}, b = {b}, c = {c}, d = {d}\nbuffer x = parameter 0 f32 [r, a, b, c, d]\n\
         buffer y = output 0 f32 [r]\nkernel grid(r: 4) loop(a: 1, b: 1, c: 2) whole(d: {d}) {{\n  loop a {{\n    \
         carry s = {begins} over [r]\n    loop b {{\n      carry t = 0 over [r]\n      loop c {{\n        carry u = 0 over [r]\n        \
         v = load x[r, a, b, c, d]\n        p = reduce_sum(v; a, b, c, d)\n        u2 = add(u, p)\n        \
         yield u3 = final(u, u2)\n      }}\n      t2 = add(t, u3)\n      yield t3 = final(t, t2)\n    }}\n    \
         s2 = add(s, t3)\n    yield s3 = final(s, s2)\n  }}\n  store y = s3\n}}\n"
    );
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let x = inputs(r * a * b * c * d, 8);
    let want = x.chunks(a * b * c * d);
    Case {
        label: format!("sums in three loops from {begins}, {warps:?}"),
        schedule: schedule(&tile, atoms::FMA, warps, 2, &[]),
        want: want
            .map(|row| f64::from(begins) + row.iter().sum::<f64>())
            .collect(),
        parameters: vec![x],
        tile,
    }
}

fn running(scan: &Scanned) -> Case {
    let (tile, x, want) = scanned(scan);
    Case {
        label: format!("{scan:?}"),
        schedule: schedule(&tile, atoms::FMA, scan.warps, 1, &[]),
        parameters: vec![x],
        want,
        tile,
    }
}

#[test]
fn scans_compute_what_is_in_front_of_each_coordinate() {
    let mut count = 0;
    for scan in scans() {
        let case = running(&scan);
        let machines = case.machines();
        for seed in 0..2 {
            assert_eq!(case.is_right(&machines, seed), Ok(true), "{}", case.label);
            count += 1;
        }
    }
    assert_eq!(count, 96);
}

/// Threads combine what they have once, as far out as they may.
#[test]
fn sums_of_loops_within_loops_are_combined_once() {
    fn go(list: &mut [Statement], depth: usize, depths: &mut Vec<usize>) {
        for statement in list {
            depths.extend(matches!(statement, Statement::AcrossLanes(_)).then_some(depth));
            for inner in statement.lists_mut() {
                go(inner, depth + 1, depths);
            }
        }
    }
    let depths = |begins: u32| {
        let mut machine = summed(begins, [2, 1]).machines().remove(0);
        let mut depths = Vec::new();
        go(&mut machine.body, 0, &mut depths);
        depths
    };
    // Where the outermost begins with a number, the one within goes on from that, and the innermost is combined there.
    assert_eq!((depths(0), depths(1)), (vec![0], vec![2]));
}

/// A copy whose rows are another buffer's columns, of tiles that reach beyond both.
fn transposed(name: &str, warps: [u32; 2]) -> Case {
    let (a, c, w) = (2, 20, 72);
    let text = format!(
        "tile transposed\naxis a = {a}, c = {c}, w = {w}\nbuffer x = parameter 0 f32 [a, c, w]\n\
         buffer y = output 0 {name} [a, w, c]\nkernel grid(a: 1, c: 16, w: 64) {{\n  v = load x[a, c, w]\n  store y = v\n}}\n"
    );
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
    // Small integers, which bf16 has too.
    let x: Vec<f64> = (0..a * c * w).map(|n| f64::from(n % 251)).collect();
    let at = |n: usize, i: usize, j: usize| x[(n * c as usize + j) * w as usize + i];
    let rows = (0..a as usize).flat_map(|n| (0..w as usize).map(move |i| (n, i)));
    let want = rows.flat_map(|(n, i)| (0..c as usize).map(move |j| (n, i, j)));
    Case {
        label: format!("transposed to {name}, {warps:?}"),
        schedule: schedule(&tile, atoms::FMA, warps, 1, &[]),
        want: want.map(|(n, i, j)| at(n, i, j)).collect(),
        parameters: vec![x],
        tile,
    }
}

/// Every kind of kernel: by threads, by warps, by groups of warps; rings that those who compute fill, and rings that others fill, by boxes
/// and by threads; persistent blocks; contractions that are waited for an iteration later; turns; groups of blocks.
fn cases() -> Vec<Case> {
    use Dtype::*;
    let with = |atom, warps, stages| {
        move |tile: &TileProgram| schedule(tile, atom, warps, stages, &[true, false])
    };
    let plain = |atom, warps, stages| {
        move |tile: &TileProgram| schedule(tile, atom, warps, stages, &[false])
    };
    let fed = |atom, warps, stages, persistent: bool| {
        move |tile: &TileProgram| {
            let mut s = overlapped(tile, atom, warps, stages, &[false], Overlap::Turns);
            s.kernels[0].extend(persistent.then(persistent::step));
            s
        }
    };
    let split = |warps, stages, persistent: bool| {
        move |tile: &TileProgram| {
            let atom = atoms::WGMMA_M64K8_TF32X3;
            let mut s = overlapped(tile, atom, warps, stages, &[false], Overlap::Split);
            s.kernels[0].extend(persistent.then(persistent::step));
            s
        }
    };
    let turns = |warps, stages, persistent| fed(atoms::WGMMA_M64K16, warps, stages, persistent);
    let paired = |warps, stages, persistent, raster| {
        move |tile: &TileProgram| {
            let mut s = turns(warps, stages, persistent)(tile);
            s.kernels[0].extend([raster::step(raster), multicast::step(2)]);
            s
        }
    };
    vec![
        product(
            "threads",
            F32,
            [17, 20, 61],
            [16, 16, 8],
            true,
            plain(atoms::FMA, [2, 1], 3),
        ),
        product(
            "one stage",
            Bf16,
            [32, 24, 50],
            [32, 16, 16],
            false,
            plain(atoms::FMA, [1, 2], 1),
        ),
        product(
            "warps",
            F16,
            [32, 32, 288],
            [32, 32, 32],
            true,
            plain(atoms::MMA_M16N8K16, [2, 1], 3),
        ),
        product(
            "padded",
            F16,
            [5, 40, 104],
            [5, 32, 16],
            false,
            plain(atoms::MMA_M16N8K16, [1, 2], 2),
        ),
        product(
            "split",
            F32,
            [48, 36, 272],
            [32, 32, 32],
            true,
            plain(atoms::MMA_M16N8K8_TF32X3, [2, 1], 3),
        ),
        product(
            "groups",
            Bf16,
            [64, 32, 200],
            [64, 32, 32],
            false,
            plain(atoms::WGMMA_M64K16, [4, 1], 2),
        ),
        product(
            "delayed",
            Bf16,
            [64, 32, 328],
            [64, 32, 32],
            false,
            plain(atoms::WGMMA_M64K16, [4, 1], 3),
        ),
        product(
            "boxes",
            Bf16,
            [70, 32, 264],
            [64, 32, 32],
            false,
            turns([4, 1], 3, false),
        ),
        product(
            "boxes of persistent blocks",
            F16,
            [200, 64, 80],
            [64, 64, 32],
            true,
            turns([4, 1], 2, true),
        ),
        product(
            "clusters that share rows in halves of a swizzle atom",
            Bf16,
            [70, 64, 264],
            [64, 32, 32],
            false,
            paired([4, 1], 3, false, 0),
        ),
        product(
            "clusters that share columns in swizzle atoms, and stay",
            F16,
            [240, 256, 80],
            [64, 128, 32],
            true,
            paired([4, 1], 2, true, 2),
        ),
        product(
            "no boxes",
            F16,
            [64, 32, 228],
            [64, 32, 32],
            true,
            turns([4, 1], 2, false),
        ),
        product(
            "halves",
            F32,
            [64, 48, 72],
            [64, 48, 16],
            true,
            plain(atoms::WGMMA_M64K8_TF32X3, [4, 1], 1),
        ),
        product(
            "halves in place",
            F32,
            [64, 32, 112],
            [64, 32, 32],
            false,
            plain(atoms::WGMMA_M64K8_TF32X3, [4, 1], 2),
        ),
        product(
            "halves of a ring",
            F32,
            [128, 32, 176],
            [128, 32, 32],
            false,
            plain(atoms::WGMMA_M64K8_TF32X3, [8, 1], 3),
        ),
        product(
            "halves, columns by groups",
            F32,
            [64, 64, 160],
            [64, 64, 32],
            true,
            fed(atoms::WGMMA_M64K8_TF32X3, [4, 2], 2, false),
        ),
        product(
            "halves of persistent blocks",
            F32,
            [300, 32, 112],
            [128, 32, 16],
            false,
            fed(atoms::WGMMA_M64K8_TF32X3, [8, 1], 3, true),
        ),
        attends(
            "attention by threads",
            F32,
            [1, 16, 96, 16, 16],
            [16, 16],
            false,
            with(atoms::FMA, [1, 2], 2),
        ),
        attends(
            "attention by warps",
            Bf16,
            [1, 40, 136, 16, 32],
            [32, 16],
            true,
            with(atoms::MMA_M16N8K16, [2, 1], 2),
        ),
        attends(
            "attention, one stage",
            F16,
            [1, 32, 56, 32, 32],
            [32, 16],
            true,
            with(atoms::MMA_M16N8K16, [2, 1], 1),
        ),
        attends(
            "attention, delayed",
            F16,
            [1, 66, 150, 16, 16],
            [64, 16],
            true,
            with(atoms::WGMMA_M64K16, [4, 1], 3),
        ),
        attends(
            "attention in turns",
            Bf16,
            [1, 128, 240, 16, 16],
            [128, 16],
            false,
            with(atoms::WGMMA_M64K16, [8, 1], 4),
        ),
        attends(
            "attention in turns of three",
            Bf16,
            [1, 200, 240, 16, 16],
            [192, 16],
            false,
            with(atoms::WGMMA_M64K16, [12, 1], 4),
        ),
        attends(
            "attention in clusters",
            F16,
            [2, 128, 104, 16, 32],
            [64, 16],
            false,
            |tile: &TileProgram| {
                let mut s = with(atoms::WGMMA_M64K16, [4, 1], 4)(tile);
                s.kernels[0].extend([raster::step(1), multicast::step(2)]);
                s
            },
        ),
        normed(None, [1, 2], 1),
        normed(Some(128), [2, 2], 2),
        transposed("f32", [2, 2]),
        transposed("bf16", [1, 4]),
        parts("parts of a group of blocks", false, 3),
        parts("parts of a cluster", true, 3),
        parts("parts of a cluster of two", true, 2),
        parts("parts of a cluster of four", true, 4),
        group(false),
        group(true),
        dependent_launches(),
        squares(atoms::MMA_M16N8K16),
        squares(atoms::FMA),
        windows(Overlap::None, 2),
        windows(Overlap::Delayed, 3),
        windows(Overlap::Fed, 2),
        windows(Overlap::Split, 2),
        running(&scans()[2]),
        running(&scans()[3]),
        summed(0, [1, 1]),
        summed(0, [1, 4]),
        summed(1, [2, 2]),
        product(
            "split by warps of their own",
            F32,
            [130, 64, 200],
            [128, 32, 32],
            true,
            split([8, 1], 3, false),
        ),
        product(
            "split by warps of their own, tile after tile",
            F32,
            [200, 64, 104],
            [64, 64, 32],
            false,
            split([4, 1], 2, true),
        ),
    ]
}

#[test]
fn right_kernels_compute_what_formulas_say() {
    let mut faults = Vec::new();
    let kinds = [
        (Overlap::None, 1),
        (Overlap::Delayed, 3),
        (Overlap::Turns, 2),
    ];
    // Here some waits do no more than others: no faults are made in these.
    let more = kinds.map(|(overlap, stages)| mixed(overlap, stages));
    // Warps of their own fill rings of one stage, boxes and others, of contractions that are waited for where they stand, and of those that run on.
    let filled = [
        ([70, 32, 264], 1, false),
        ([64, 32, 228], 1, false),
        ([70, 32, 264], 3, false),
        ([70, 32, 264], 1, true),
    ];
    let filled = filled.map(|(extents, stages, late)| {
        let label = format!("roles alone, {extents:?}, {stages} stages, delayed: {late}");
        product(&label, Dtype::F16, extents, [64, 32, 32], true, |tile| {
            let plain = schedule(tile, atoms::WGMMA_M64K16, [4, 1], 1, &[]);
            let mut kernel = plain.kernels[0].clone();
            kernel.extend(late.then(delayed::step));
            kernel.extend([roles::step(), pipeline::step(stages)]);
            Schedule {
                kernels: vec![kernel],
            }
        })
    });
    for case in cases().into_iter().chain(more).chain(filled) {
        let machines = case.machines();
        for seed in 0..3 {
            match case.is_right(&machines, seed) {
                Ok(true) => {}
                Ok(false) => faults.push(format!("{}: wrong numbers", case.label)),
                Err(fault) => faults.push(format!("{}: {fault}", case.label)),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Calls `visit` with every list of statements.
fn lists(machine: &mut Machine, visit: &mut impl FnMut(&mut Vec<Statement>)) {
    fn inside(list: &mut Vec<Statement>, visit: &mut impl FnMut(&mut Vec<Statement>)) {
        visit(list);
        for inner in list.iter_mut().flat_map(Statement::lists_mut) {
            inside(inner, visit);
        }
    }
    inside(&mut machine.prologue, visit);
    for producer in &mut machine.producers {
        inside(&mut producer.body, visit);
    }
    inside(&mut machine.body, visit);
    inside(&mut machine.epilogue, visit);
}

/// What may be done wrong at one statement: nothing in its place, or something else.
fn wrong(statement: &Statement) -> Vec<Option<Statement>> {
    let sync = |s| Some(Statement::Sync(s));
    match statement {
        // What only the compiler, L2, or other kernels, see.
        Statement::Sync(Sync::Keep(_) | Sync::StartNext)
        | Statement::PrefetchBoxes(_)
        | Statement::Prefetch { .. } => vec![],
        Statement::Sync(Sync::CopyWait(n)) => vec![None, sync(Sync::CopyWait(n + 1))],
        Statement::Sync(Sync::Wait(n)) => vec![None, sync(Sync::Wait(n + 1))],
        Statement::Sync(_) => vec![None],
        Statement::OpenRing(ring, parity) => {
            vec![Some(Statement::OpenRing(*ring, 1 - parity))]
        }
        Statement::NextStage {
            counter,
            stages,
            ahead,
        } => {
            let next = |stages, ahead| {
                Some(Statement::NextStage {
                    counter: *counter,
                    stages,
                    ahead,
                })
            };
            vec![
                next(*stages, ahead - 1),
                next(*stages, ahead + 1),
                next(stages + 1, *ahead),
            ]
        }
        Statement::PreviousStage { number, stages } => [stages - 1, stages + 1]
            .map(|stages| {
                Some(Statement::PreviousStage {
                    number: *number,
                    stages,
                })
            })
            .to_vec(),
        Statement::AdvanceStage { counter, stages } => {
            let advance = |stages| {
                Some(Statement::AdvanceStage {
                    counter: *counter,
                    stages,
                })
            };
            vec![None, advance(stages - 1), advance(stages + 1)]
        }
        Statement::Scan(scan) => vec![Some(Statement::Scan(Scan {
            inclusive: !scan.inclusive,
            ..scan.clone()
        }))],
        Statement::AdvanceRing(_)
        | Statement::GridBarrier(_)
        | Statement::LastGoesOn
        | Statement::StorePartial(_)
        | Statement::ReducePartials(_)
        | Statement::CopyBoxes(_)
        | Statement::Copy(_)
        | Statement::Clear(_)
        | Statement::Split(_)
        | Statement::Fetch { .. }
        | Statement::Publish { .. } => vec![None],
        Statement::Declare(_)
        | Statement::Map { .. }
        | Statement::Select { .. }
        | Statement::ExpScale { .. }
        | Statement::Mask { .. }
        | Statement::IsNotOne { .. }
        | Statement::Reduce(_)
        | Statement::AcrossLanes(_)
        | Statement::PutParts(_)
        | Statement::TakeParts(_)
        | Statement::Spill { .. }
        | Statement::Unspill { .. }
        | Statement::Load { .. }
        | Statement::Store(_)
        | Statement::Multiply(_)
        | Statement::Outer(_)
        | Statement::Issue(_)
        | Statement::Pack { .. }
        | Statement::Range { .. }
        | Statement::Tile { .. }
        | Statement::Loop { .. }
        | Statement::Tiles(_)
        | Statement::If { .. }
        | Statement::Scope(_)
        | Statement::OpenStages(_) => vec![],
    }
}

/// Every machine program with one fault, and what was done.
fn mutants(machine: &Machine) -> Vec<(String, Machine)> {
    let mut all = Vec::new();
    let mut places = Vec::new();
    let mut number = 0;
    lists(&mut machine.clone(), &mut |list| {
        for (at, statement) in list.iter().enumerate() {
            for with in wrong(statement) {
                places.push((number, at, statement.to_string(), with));
            }
        }
        number += 1;
    });
    for (list_number, at, old, with) in places {
        let mut mutant = machine.clone();
        let mut number = 0;
        let new = with.as_ref().map_or("nothing".into(), ToString::to_string);
        lists(&mut mutant, &mut |list| {
            if number == list_number {
                match &with {
                    Some(with) => list[at] = with.clone(),
                    None => drop(list.remove(at)),
                }
                number += 1;
                return;
            }
            number += 1;
        });
        all.push((format!("{old} -> {new} (list {list_number}, {at})"), mutant));
    }
    for ring in 0..machine.rings.len() {
        let mut mutant = machine.clone();
        mutant.rings[ring].stages += 1;
        all.push((format!("ring {ring} has a stage more"), mutant));
        if machine.rings[ring].readers > 1 {
            let mut mutant = machine.clone();
            mutant.rings[ring].readers = 1;
            let what = format!("ring {ring} waits for the warps of one block");
            all.push((what, mutant));
        }
    }
    all
}

/// How many faults were made in the kernels of a case, and those that were not found.
fn missed(case: &Case) -> (usize, Vec<String>) {
    let (mut count, mut missed) = (0, Vec::new());
    let machines = case.machines();
    for (number, machine) in machines.iter().enumerate() {
        for (what, mutant) in mutants(machine) {
            let mut all = machines.clone();
            all[number] = mutant;
            count += 1;
            let refused = (0..2).any(|seed| !case.is_right(&all, seed).unwrap_or(false));
            if !refused {
                missed.push(format!("{}: {what}", case.label));
            }
        }
    }
    (count, missed)
}

#[test]
fn faulty_kernels_are_refused() {
    let missed: Vec<(usize, Vec<String>)> = std::thread::scope(|scope| {
        let cases = cases().into_iter();
        let all: Vec<_> = cases
            .map(|case| scope.spawn(move || missed(&case)))
            .collect();
        all.into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect()
    });
    let count: usize = missed.iter().map(|(count, _)| count).sum();
    let missed: Vec<String> = missed.into_iter().flat_map(|(_, missed)| missed).collect();
    assert!(count >= 320, "{count} faults");
    // Each of these does no harm where it stands. Lanes that waited for instructions of a warpgroup have met. A copy that no group closes is
    // waited for with the next group. A wait orders nothing that the next one does not. A block of one warp needs no barrier, and
    // one that takes turns is held together by these. A turn that nobody takes is left over at the end. The first of
    // dependent launches begins when all in front of it has ended.
    expect![[r#"
        boxes: Sync(Warp) -> nothing (list 6, 0)
        boxes of persistent blocks: Sync(Warp) -> nothing (list 8, 0)
        boxes of persistent blocks: Sync(Warp) -> nothing (list 12, 0)
        clusters that share rows in halves of a swizzle atom: Sync(Warp) -> nothing (list 6, 0)
        clusters that share columns in swizzle atoms, and stay: Sync(Warp) -> nothing (list 8, 0)
        clusters that share columns in swizzle atoms, and stay: Sync(Warp) -> nothing (list 12, 0)
        no boxes: Sync(Warp) -> nothing (list 6, 0)
        attention by threads: Sync(CopyCommit) -> nothing (list 1, 1)
        attention by warps: Sync(CopyCommit) -> nothing (list 1, 1)
        attention, one stage: Sync(CopyCommit) -> nothing (list 1, 1)
        attention, one stage: Sync(CopyWait(0)) -> nothing (list 1, 9)
        attention, one stage: Sync(CopyWait(0)) -> Sync(CopyWait(1)) (list 1, 9)
        attention, delayed: Sync(CopyCommit) -> nothing (list 1, 1)
        attention in turns: Sync(Barrier(Computing)) -> nothing (list 3, 15)
        attention in turns: Sync(Warp) -> nothing (list 7, 4)
        attention in turns: Sync(Warp) -> nothing (list 13, 0)
        attention in turns: Sync(TurnWait(First)) -> nothing (list 20, 0)
        attention in turns of three: Sync(Barrier(Computing)) -> nothing (list 3, 15)
        attention in turns of three: Sync(Warp) -> nothing (list 7, 4)
        attention in turns of three: Sync(Warp) -> nothing (list 13, 0)
        attention in turns of three: Sync(TurnWait(First)) -> nothing (list 20, 0)
        attention in clusters: Sync(Barrier(Computing)) -> nothing (list 3, 14)
        attention in clusters: Sync(Warp) -> nothing (list 5, 4)
        attention in clusters: Sync(Warp) -> nothing (list 11, 0)
        parts of a group of blocks: Sync(Barrier(Block)) -> nothing (list 6, 9)
        parts of a group of blocks: Sync(Barrier(Block)) -> nothing (list 6, 18)
        parts of a cluster: Sync(Barrier(Block)) -> nothing (list 6, 9)
        parts of a cluster: Sync(Barrier(Block)) -> nothing (list 6, 18)
        parts of a cluster of two: Sync(Barrier(Block)) -> nothing (list 6, 9)
        parts of a cluster of two: Sync(Barrier(Block)) -> nothing (list 6, 18)
        parts of a cluster of four: Sync(Barrier(Block)) -> nothing (list 6, 9)
        parts of a cluster of four: Sync(Barrier(Block)) -> nothing (list 6, 18)
        two dependent launches: Sync(WaitBefore) -> nothing (list 1, 7)
        windows, Split: Sync(Warp) -> nothing (list 11, 19)
        split by warps of their own: Sync(Warp) -> nothing (list 8, 17)
        split by warps of their own, tile after tile: Sync(Warp) -> nothing (list 11, 17)"#]]
    .assert_eq(&missed.join("\n"));
}

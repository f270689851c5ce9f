//! The gate at the true extents: every wrong tile program is refused, whatever the seed, and no right one is.
//!
//! Oracle: each faulty tile program is interpreted in full at its true extents and compared with the reference; what differs is wrong.

use crate::kinds::program;
use crate::offered;
use crate::random::number;
use ir::{Program, Tensor, TileProgram};
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use verify::{SimulateOptions, TilingOptions, check_tiling};

/// Programs whose tile programs decide something along their axes, large enough to have several tiles of each, and small enough to be
/// interpreted in full.
#[rustfmt::skip]
const PROGRAMS: &[(&str, &str)] = &[
    ("decode_block", // a causal mask that begins far from the start
     "axis h = 2, i = 96, j = 384, d = 16, e = 16\n\
      q = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
      return bf16 [h, i, e] dot(softmax(causal(dot(q, k; d) * 0.25; i, j); j), v; j)"),
    ("window", // each row sees 70 columns
     "axis h = 1, i = 300, j = 300, d = 16, e = 16\n\
      q = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
      s = select(iota(i) - iota(j), select(iota(j) - iota(i) + 69, dot(q, k; d) * 0.25, -inf), -inf)\n\
      return bf16 [h, i, e] dot(softmax(s; j), v; j)"),
    ("prefix", // the first 40 columns are seen by all
     "axis i = 200, j = 200, d = 16, e = 16\n\
      q = parameter bf16 [i, d]\nk = parameter bf16 [j, d]\nv = parameter bf16 [j, e]\n\
      s = select(max(39 - iota(j), iota(i) - iota(j)), dot(q, k; d) * 0.25, -inf)\n\
      return bf16 [i, e] dot(softmax(s; j), v; j)"),
    ("decode", // few rows, many columns: split
     "axis h = 2, g = 4, j = 2000, d = 16, e = 16\n\
      q = parameter bf16 [h, g, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
      return bf16 [h, g, e] dot(softmax(dot(q, k; d) * 0.25; j), v; j)"),
    ("long_product", // a long sum: split
     "axis i = 24, j = 40, k = 5000\nx = parameter bf16 [i, k]\ny = parameter bf16 [k, j]\n\
      return bf16 [i, j] dot(x, y; k)"),
    ("band", // a product with a band
     "axis i = 260, j = 24, k = 260\nx = parameter f32 [i, k]\ny = parameter f32 [k, j]\n\
      return f32 [i, j] dot(select(iota(i) - iota(k) + 31, x, 0), y; k)"),
    ("convolution", // views with offsets and padding
     "axis n = 1, ci = 3, h = 40, w = 41, co = 8, oh = 20, ow = 21, kh = 5, kw = 5\n\
      x = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\n\
      return f32 [n, co, oh, ow] dot(view(x; h -> 2*oh + kh - 2, w -> 2*ow + kw - 2; fill = 0), f; ci, kh, kw)"),
    ("shifted", // element-wise, with an edge in the middle
     "axis i = 90, j = 700\nx = parameter f32 [i, j]\ny = parameter f32 [i, j]\n\
      return f32 [i, j] select(iota(j) - 2*iota(i) - 300, x, y) + view(x; j -> j - 37; fill = 0)"),
    ("rows", // rows that take a block group, or a long loop
     "axis t = 3, m = 40000\nx = parameter f32 [t, m]\nreturn f32 [t, m] softmax(x; m)"),
    ("norm", // two sums over long rows
     "axis t = 3, m = 24000\nx = parameter f32 [t, m]\ng = parameter f32 [m]\n\
      return f32 [t, m] layer_norm(x; m, 1e-5) * g"),
    ("chain", // two kernels, of which the second sums what the first stores
     "axis t = 24, m = 200, n = 1200\nx = parameter f16 [t, m]\nw = parameter f16 [m, n]\nu = parameter f16 [n, m]\n\
      h = silu(dot(x, w; m))\nreturn f16 [t, m] dot(select(1100 - iota(n), h, 0), view(u; m -> m); n)"),
    ("loss", // logits that are never stored
     "axis t = 48, d = 16, v = 3000\nx = parameter bf16 [t, d]\nw = parameter bf16 [v, d]\ny = parameter f32 [t]\n\
      l = dot(x, w; d) * 0.25\nm = max(l; v)\nreturn f32 [t] m + log(sum(exp(l - m); v)) - y"),
];

/// Tile programs of each program, and seeds of each faulty one; `TILEWRIGHT_GATE_SEEDS` asks for more.
const STRUCTURES: usize = 3;
const LOOKED_AT: usize = 40;
const SEEDS: u64 = 2;
/// And of each right one.
const RIGHT_SEEDS: u64 = 2;
/// Of so many faults one is tried.
const ONE_OF: usize = 4;
/// How far the results of a fault differ at least, beside the largest element.
const WRONG: f64 = 1e-3;

/// What the pipeline asks, with a seed.
fn options(seed: u64) -> TilingOptions {
    TilingOptions {
        seed,
        ..TilingOptions::default()
    }
}

struct Subject {
    name: &'static str,
    program: Program,
    tile: TileProgram,
    inputs: Vec<Tensor>,
    reference: Vec<Tensor>,
}

impl Subject {
    /// How far the results of a tile program are off, beside the largest element; none where it has no results.
    fn error(&self, tile: &TileProgram) -> Option<f64> {
        let got = verify::simulate(tile, &self.inputs, SimulateOptions::default()).ok()?;
        let mut worst = 0.0f64;
        for (got, want) in got.iter().zip(&self.reference) {
            let finite = want.data.iter().filter(|x| x.is_finite());
            let top = finite.fold(1e-30f64, |t, x| t.max(x.abs()));
            for (g, w) in got.data.iter().zip(&want.data) {
                let same = g == w || (g.is_nan() && w.is_nan());
                let off = (g - w).abs() / top;
                worst = worst.max(match same {
                    true => 0.0,
                    false if off.is_nan() => f64::INFINITY,
                    false => off,
                });
            }
        }
        Some(worst)
    }
}

/// The tile programs of all programs, made once for all tests.
fn subjects() -> &'static [Subject] {
    static ALL: OnceLock<Vec<Subject>> = OnceLock::new();
    ALL.get_or_init(|| PROGRAMS.par_iter().flat_map_iter(subjects_of).collect())
}

fn subjects_of((name, text): &'static (&'static str, &'static str)) -> Vec<Subject> {
    let target = search::targets::target("h200").expect("a known target");
    let program = program(name, text);
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
    let inputs: Vec<Tensor> = program
        .parameters()
        .map(|(_, _, _, dims)| {
            let shape: Vec<usize> = program.shape(dims).iter().map(|n| *n as usize).collect();
            let count = shape.iter().product();
            let data = (0..count)
                .map(|_| rng.random::<f64>() * 4.0 - 2.0)
                .collect();
            Tensor::new(shape, data).expect("the shape of its data")
        })
        .collect();
    let reference = ir::eval(&program, &inputs).expect("a value");
    let found = offered::as_written(&program, &target).take(LOOKED_AT);
    let subject = |tile| Subject {
        name,
        program: program.clone(),
        tile,
        inputs: inputs.clone(),
        reference: reference.clone(),
    };
    let tiles = offered::different(found, STRUCTURES);
    tiles.into_iter().map(subject).collect()
}

#[test]
fn wrong_ends_are_refused_whatever_the_seed() {
    let subjects = subjects();
    let mutants: Vec<(&Subject, String, TileProgram)> = subjects
        .iter()
        .flat_map(|s| {
            let all = verify::mutants::displaced(&s.tile).into_iter();
            all.map(move |(what, tile)| (s, what, tile))
        })
        .filter(|(_, _, tile)| ir::tile_check::validate(tile).is_ok())
        .step_by(ONE_OF)
        .collect();
    let each = number("TILEWRIGHT_GATE_SEEDS", SEEDS);
    let judged: Vec<(&str, bool, Vec<u64>, String)> = mutants
        .par_iter()
        .enumerate()
        .map(|(n, (s, what, tile))| {
            let wrong = s.error(tile).is_none_or(|e| e > WRONG);
            let passes =
                |seed: &u64| check_tiling(&s.program, &s.program, tile, &options(*seed)).is_ok();
            // Others for the next one.
            let first = n as u64 * each;
            let seeds = if wrong { each } else { 0 };
            let passed: Vec<u64> = (first..first + seeds).filter(passes).collect();
            (s.name, wrong, passed, format!("{}: {what}", s.name))
        })
        .collect();
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (name, wrong, _, _) in &judged {
        let count = counts.entry(name).or_default();
        count.0 += 1;
        count.1 += usize::from(*wrong);
    }
    let wrong = judged.iter().filter(|j| j.1).count();
    let survivors: Vec<String> = judged
        .iter()
        .filter(|j| !j.2.is_empty())
        .map(|j| format!("{} passes with the seeds {:?}", j.3, j.2))
        .collect();
    eprintln!(
        "{} faulty tile programs of {} ({counts:?}, of each all and wrong ones), {wrong} wrong at their true extents, {} of them refused with each of {each} seeds",
        judged.len(),
        subjects.len(),
        wrong - survivors.len()
    );
    assert!(
        survivors.is_empty(),
        "{} of {wrong}:\n{}\n",
        survivors.len(),
        survivors.join("\n")
    );
    assert!(wrong >= 300, "{wrong}");
    assert!(counts.values().all(|c| c.1 >= 5), "{counts:?}");
}

#[test]
fn right_tile_programs_pass_with_all_that_they_decide_met() {
    let all: Vec<(String, usize)> = subjects()
        .par_iter()
        .map(|s| {
            assert!(s.error(&s.tile).is_some_and(|e| e < 1e-9), "{}", s.name);
            let mut unseen = Vec::new();
            for seed in 0..RIGHT_SEEDS {
                let evidence = check_tiling(&s.program, &s.program, &s.tile, &options(seed))
                    .unwrap_or_else(|e| panic!("{}: {e}\n{}", s.name, s.tile));
                assert!(!evidence.slices.is_empty(), "{}", s.name);
                unseen.extend(evidence.unseen);
            }
            (format!("{}: {unseen:?}\n{}", s.name, s.tile), unseen.len())
        })
        .collect();
    for (text, unseen) in &all {
        assert_eq!(*unseen, 0, "{text}");
    }
    assert!(all.len() > PROGRAMS.len(), "{}", all.len());
}

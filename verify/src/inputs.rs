//! Inputs that catch cheats: a table of distributions, deterministic and fast.
//!
//! Values are drawn in chunks, each with its own stream of one generator, so that threads do not change them; then rounded
//! to the parameter's dtype. A *row* is what the last dimension in memory spans.

use crate::domain::{Domain, domains};
use crate::ranges::{masks, reaches, weights};
use crate::tolerance::Roundings;
use ir::random::mix;
use ir::{Dtype, Op, Program};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// One way to draw a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Distribution {
    /// Its name in evidence.
    pub name: &'static str,
    /// What it is there to catch.
    pub catches: &'static str,
    /// Whether every element is of the kind for which programs are usually defined (no rows of zeros).
    pub regular: bool,
    /// Whether it is drawn however large the program.
    pub always: bool,
    /// Whether rounding errors average out on it.
    pub roundings: Roundings,
    /// Which parameters it is drawn for; others are normal.
    pub whose: Whose,
    /// What becomes of weights that further products depend on.
    pub weights: Weights,
    draw: fn(&mut Row<'_>),
}

/// Which parameters may hold the numbers of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All of them.
    All,
    /// Those for which `-inf` gives a defined value.
    Masks,
    /// Those that no exponent depends on and whose magnitude cannot make anything overflow.
    Wide,
}

/// How weights are drawn that further products depend on (`weights` in `ranges.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// As everything else.
    Drawn,
    /// So small that what they give is as large as what they are applied to.
    Scaled,
    /// Normal, and so small: layer behind layer, a few large ones would leave nothing but the largest number.
    Normal,
}

/// The row being drawn.
struct Row<'a> {
    /// The elements, zero at first.
    elements: &'a mut [f64],
    /// The length of the whole row, of which `elements` may be a piece.
    length: usize,
    /// Where in the row `elements` begin.
    start: usize,
    /// How many rows the tensor has.
    rows: usize,
    tensor: &'a Tensor,
    /// The same for every piece of a row.
    row_bits: u64,
    rng: &'a mut ChaCha8Rng,
}

/// What is the same for every row of a tensor.
struct Tensor {
    dtype: Dtype,
    /// Over how many products the program's widest contraction sums; 1 if it has none.
    depth: f64,
    /// The binary exponent up to which magnitudes may go.
    reach: i32,
    bits: u64,
}

/// Every distribution, in the order in which kernels meet them.
#[rustfmt::skip]
pub const DISTRIBUTIONS: &[Distribution] = &[
    Distribution { name: "normal",          catches: "wrong results",                                   regular: true,  always: true,  roundings: Roundings::Spread, whose: Whose::All,   weights: Weights::Scaled, draw: |r| normal(r, 1.0) },
    // Dot products along a row of length n have a deviation of about 1/√n of the normal ones: 16-bit results stay finite.
    Distribution { name: "scaled_normal",   catches: "errors that overflow hides",                      regular: true,  always: false, roundings: Roundings::Spread, whose: Whose::All,   weights: Weights::Drawn,  draw: |r| normal(r, (r.length as f64).powf(-0.5)) },
    Distribution { name: "heavy_tailed",    catches: "accumulators and scales of too little range",     regular: true,  always: false, roundings: Roundings::Spread, whose: Whose::All,   weights: Weights::Normal, draw: heavy_tailed },
    Distribution { name: "large",           catches: "exponentials without a maximum subtracted",       regular: true,  always: true,  roundings: Roundings::Alike,  whose: Whose::All,   weights: Weights::Scaled, draw: large },
    Distribution { name: "nearly_constant", catches: "cancellation",                                    regular: true,  always: false, roundings: Roundings::Alike,  whose: Whose::All,   weights: Weights::Scaled, draw: nearly_constant },
    Distribution { name: "one_hot",         catches: "coordinates that are mixed up",                   regular: true,  always: false, roundings: Roundings::Alike,  whose: Whose::All,   weights: Weights::Scaled, draw: one_hot },
    Distribution { name: "zero_rows",       catches: "divisions by an accumulator that may be zero",    regular: false, always: true,  roundings: Roundings::Alike,  whose: Whose::All,   weights: Weights::Scaled, draw: zero_rows },
    Distribution { name: "masked",          catches: "maxima of nothing but -inf",                      regular: false, always: true,  roundings: Roundings::Alike,  whose: Whose::Masks, weights: Weights::Drawn,  draw: masked },
    Distribution { name: "extremes",        catches: "magnitudes that are lost, and signed zeros",      regular: false, always: false, roundings: Roundings::Few,    whose: Whose::Wide,  weights: Weights::Drawn,  draw: extremes },
    Distribution { name: "subnormal",       catches: "numbers below the smallest normal one",           regular: false, always: false, roundings: Roundings::Alike,  whose: Whose::Wide,  weights: Weights::Drawn,  draw: subnormal },
];

/// The distributions that a program's parameters can be drawn from, with their places in the table.
pub fn distributions(program: &Program) -> impl Iterator<Item = (usize, &'static Distribution)> {
    let (masked, wide) = (
        masks(program).contains(&true),
        reaches(program).iter().any(Option::is_some),
    );
    let all = DISTRIBUTIONS.iter().enumerate();
    all.filter(move |(_, d)| match d.whose {
        Whose::All => true,
        Whose::Masks => masked,
        Whose::Wide => wide,
    })
}

impl PartialEq for Distribution {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Draws every parameter of a program, in declaration order, in memory order. What a root or a logarithm of the program asks of
/// a parameter is kept: numbers outside are mirrored at the ends.
pub fn draw_inputs(program: &Program, distribution: &Distribution, seed: u64) -> Vec<Vec<f64>> {
    let ways = Ways::of(program, distribution);
    (0..ways.0.len()).map(|n| ways.draw(n, seed)).collect()
}

/// How each parameter of a program is drawn from a distribution.
#[derive(Debug)]
struct Ways<'d>(Vec<Way<'d>>);

#[derive(Debug)]
struct Way<'d> {
    shape: Vec<u64>,
    dtype: Dtype,
    /// The one that it is drawn from, which may be another one.
    distribution: &'d Distribution,
    depth: f64,
    reach: i32,
    /// What its numbers are multiplied by.
    scale: f64,
    domain: Domain,
}

impl<'d> Ways<'d> {
    fn of(program: &Program, distribution: &'d Distribution) -> Self {
        let depth = depth(program);
        // Whose exponent may reach how far; nobody's where it isn't asked for.
        let chosen: Vec<Option<i32>> = match distribution.whose {
            Whose::All => vec![Some(0); program.parameters().count()],
            Whose::Masks => masks(program)
                .into_iter()
                .map(|is| is.then_some(0))
                .collect(),
            Whose::Wide => reaches(program),
        };
        let parameters = program.parameters().zip(domains(program));
        let way = |(((_, _, dtype, dims), domain), (chosen, weight)): (_, (Option<i32>, f64))| {
            let is_weight = weight != 1.0;
            let own = match chosen {
                Some(_) if !is_weight || distribution.weights != Weights::Normal => distribution,
                Some(_) | None => &DISTRIBUTIONS[0],
            };
            Way {
                shape: drawn(&program.shape(dims)),
                dtype,
                distribution: own,
                depth,
                reach: chosen.unwrap_or(0),
                scale: match own.weights {
                    Weights::Drawn => 1.0,
                    Weights::Scaled | Weights::Normal => weight,
                },
                domain,
            }
        };
        let all = parameters.zip(chosen.into_iter().zip(weights(program)));
        Self(all.map(way).collect())
    }

    fn draw(&self, parameter: usize, seed: u64) -> Vec<f64> {
        let way = &self.0[parameter];
        let tensor = Tensor {
            // What integers and booleans are drawn from.
            dtype: way.dtype.held().unwrap_or(Dtype::F32),
            depth: way.depth,
            reach: way.reach,
            bits: mix(seed ^ mix(parameter as u64)),
        };
        let mut data = draw_tensor(&way.shape, way.distribution, &tensor);
        if way.scale != 1.0 {
            data.par_iter_mut()
                .for_each(|x| *x = way.dtype.round(*x * way.scale));
        }
        if !way.domain.is_everything() {
            data.par_iter_mut()
                .for_each(|x| *x = way.dtype.round(way.domain.fold(*x)));
        }
        data
    }
}

/// Tensors that are drawn once they are asked for.
type Tensors = Arc<OnceLock<Vec<Vec<f64>>>>;

/// A program's parameters, drawn when their numbers are asked for: who kept what was made of a draw needs them no second time.
#[derive(Debug)]
pub struct DrawnInputs {
    ways: Arc<Ways<'static>>,
    distribution: &'static str,
    /// One a parameter.
    seeds: Vec<u64>,
    tensors: Tensors,
    /// Those that these are but for one parameter.
    others: Option<(usize, Tensors)>,
}

/// What a parameter of a program is drawn from: two of the same draw hold the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Draw {
    distribution: &'static str,
    seed: u64,
    parameter: usize,
}

impl DrawnInputs {
    /// All parameters of a program from one seed.
    pub fn new(program: &Program, distribution: &'static Distribution, seed: u64) -> Self {
        let ways = Arc::new(Ways::of(program, distribution));
        Self {
            distribution: distribution.name,
            seeds: vec![seed; ways.0.len()],
            tensors: Arc::default(),
            others: None,
            ways,
        }
    }

    /// The same, but for one parameter, which is drawn from another seed.
    pub(crate) fn but(&self, parameter: usize, seed: u64) -> Self {
        let mut seeds = self.seeds.clone();
        seeds[parameter] = seed;
        Self {
            ways: Arc::clone(&self.ways),
            distribution: self.distribution,
            seeds,
            tensors: Arc::default(),
            others: Some((parameter, Arc::clone(&self.tensors))),
        }
    }

    /// What each parameter is drawn from.
    pub fn draws(&self) -> impl ExactSizeIterator<Item = Draw> {
        let all = self.seeds.iter().enumerate();
        all.map(|(parameter, seed)| Draw {
            distribution: self.distribution,
            seed: *seed,
            parameter,
        })
    }

    /// One parameter's numbers; the others are not drawn for that.
    pub fn tensor(&self, parameter: usize) -> Cow<'_, [f64]> {
        let others = self.others.as_ref().filter(|(but, _)| *but != parameter);
        let known = self.tensors.get();
        match known.or_else(|| others.and_then(|(_, all)| all.get())) {
            Some(all) => Cow::Borrowed(&all[parameter]),
            None => Cow::Owned(self.ways.draw(parameter, self.seeds[parameter])),
        }
    }

    /// Draws all of them, unless they are others but for one: each is at hand then.
    pub fn draw(&self) {
        if self.others.is_none() {
            let _drawn: &[Vec<f64>] = self;
        }
    }
}

impl Deref for DrawnInputs {
    type Target = [Vec<f64>];

    fn deref(&self) -> &[Vec<f64>] {
        if self.tensors.get().is_none() {
            // Not while others wait for it: all threads draw, and one of those that wait may be wanted for that.
            let all = 0..self.seeds.len();
            let all = all.map(|n| self.tensor(n).into_owned()).collect();
            let _ = self.tensors.set(all);
        }
        self.tensors.get().map_or(&[], Vec::as_slice)
    }
}

/// Most elements of a parameter that are drawn (1 GiB of f64).
pub const DRAWN: u64 = 1 << 27;

/// What is drawn of a parameter of a shape: all of it, or of a larger one a prime number of its rows, which then repeat until it is full. No
/// stride of a program is a multiple of a prime that is not among its extents.
pub fn drawn(shape: &[u64]) -> Vec<u64> {
    let elements = shape.iter().fold(1, |n: u64, e| n.saturating_mul(*e));
    if elements <= DRAWN {
        return shape.to_vec();
    }
    let row = shape.last().copied().unwrap_or(1).max(1);
    let divides = |n: u64| {
        (2..)
            .take_while(|d| d * d <= n)
            .any(|d| n.is_multiple_of(d))
    };
    let prime = |most: u64| (2..=most).rev().find(|n| !divides(*n)).unwrap_or(1);
    match DRAWN / row {
        // Rows so long that few of them are enough: what is drawn repeats within a row.
        0..16 => vec![prime(DRAWN)],
        rows => vec![prime(rows), row],
    }
}

/// Over how many products the widest contraction sums; 1 without any.
pub(crate) fn depth(program: &Program) -> f64 {
    let widest = program.nodes.iter().filter_map(|node| match &node.op {
        Op::Dot { axes } => program.elements(axes),
        Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::View { .. }
        | Op::Map(_)
        | Op::Reduce { .. } => None,
    });
    widest.max().unwrap_or(1) as f64
}

/// Draws one tensor.
fn draw_tensor(shape: &[u64], distribution: &Distribution, tensor: &Tensor) -> Vec<f64> {
    const CHUNK: usize = 1 << 14;
    let length = shape.last().copied().unwrap_or(1).max(1) as usize;
    let elements: u64 = shape.iter().product();
    let mut data = vec![0.0; elements as usize];
    let rows = data.len() / length;
    data.par_chunks_mut(CHUNK)
        .enumerate()
        .for_each(|(c, chunk)| {
            let mut rng = ChaCha8Rng::seed_from_u64(tensor.bits);
            rng.set_stream(c as u64);
            let mut at = c * CHUNK;
            let mut rest = chunk;
            while !rest.is_empty() {
                let start = at % length;
                let (piece, after) = rest.split_at_mut((length - start).min(rest.len()));
                at += piece.len();
                (distribution.draw)(&mut Row {
                    row_bits: mix(tensor.bits ^ mix((at - 1) as u64 / length as u64 + 1)),
                    elements: piece,
                    length,
                    start,
                    rows,
                    tensor,
                    rng: &mut rng,
                });
                for x in piece.iter_mut() {
                    *x = tensor.dtype.round(*x);
                }
                rest = after;
            }
        });
    data
}

/// Box and Muller (1958), in f32: two normal numbers from two uniform ones.
fn normal(row: &mut Row<'_>, scale: f64) {
    for pair in row.elements.chunks_mut(2) {
        let bits: u64 = row.rng.random();
        let u = ((bits >> 40) as f32 + 1.0) * (1.0 / 16_777_216.0);
        let v = (bits & 0xff_ffff) as f32 * (std::f32::consts::TAU / 16_777_216.0);
        let radius = (-2.0 * u.ln()).sqrt();
        let (sin, cos) = v.sin_cos();
        for (x, part) in pair.iter_mut().zip([cos, sin]) {
            *x = f64::from(radius * part) * scale;
        }
    }
}

fn clamp(row: &mut Row<'_>, limit: f64) {
    for x in row.elements.iter_mut() {
        *x = x.clamp(-limit, limit);
    }
}

/// Student's t with about two degrees of freedom: a normal number over the root of an exponential one.
fn heavy_tailed(row: &mut Row<'_>) {
    normal(row, 1.0);
    for x in row.elements.iter_mut() {
        let u = (f64::from(row.rng.random::<u32>()) + 1.0) / 4_294_967_296.0;
        *x /= (-u.ln()).sqrt().max(1e-3);
    }
    clamp(row, 200.0);
}

/// Values whose exponentials overflow: where the program contracts `n` products, operands of deviation `√(30/√n)` give results of
/// deviation 30, and larger operands would only overflow 16-bit results; elsewhere the values themselves.
fn large(row: &mut Row<'_>) {
    let scale = if row.tensor.depth > 1.0 {
        (30.0 / row.tensor.depth.sqrt()).sqrt()
    } else {
        30.0
    };
    normal(row, scale);
    clamp(row, 80.0);
}

fn nearly_constant(row: &mut Row<'_>) {
    normal(row, 1e-3);
    let centre = 0.5 + (row.tensor.bits >> 40) as f64 / 16_777_216.0;
    for x in row.elements.iter_mut() {
        *x += centre;
    }
}

fn one_hot(row: &mut Row<'_>) {
    let hot = (row.row_bits % row.length as u64) as usize;
    let height = 1.0 + (row.row_bits >> 61) as f64 * 0.5;
    if let Some(x) = hot
        .checked_sub(row.start)
        .and_then(|at| row.elements.get_mut(at))
    {
        *x = height;
    }
}

fn zero_rows(row: &mut Row<'_>) {
    if !row.row_bits.is_multiple_of(3) {
        normal(row, 1.0);
    }
}

/// Normal numbers, `-inf` before, after or here and there: of a row some number is left. Masks of causal and of padded sequences, and of
/// documents.
fn masked(row: &mut Row<'_>) {
    normal(row, 1.0);
    // A tensor of one row has some of it masked.
    let kind = row.row_bits % if row.rows == 1 { 3 } else { 4 };
    let edge = (row.row_bits >> 8) as usize % row.length;
    for (at, x) in row.elements.iter_mut().enumerate() {
        let at = row.start + at;
        let gone = match kind {
            0 => at < edge,
            1 => at > edge,
            2 => at != edge && mix(row.row_bits ^ (at as u64 / 16)).is_multiple_of(3),
            _ => false,
        };
        if gone {
            *x = f64::NEG_INFINITY;
        }
    }
}

/// Magnitudes of every size, from what f16 holds at all, and zeros of both signs.
fn extremes(row: &mut Row<'_>) {
    let least = match row.tensor.dtype {
        Dtype::F16 => -24,
        Dtype::F32 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::Bool => -20,
    };
    let width = f64::from(row.tensor.reach - least);
    for x in row.elements.iter_mut() {
        let bits: u64 = row.rng.random();
        let part = (bits >> 32) as f64 / 4_294_967_296.0;
        let size = match bits & 7 {
            0 => 0.0,
            _ => (f64::from(least) + width * part).exp2(),
        };
        *x = if bits & 8 == 0 { size } else { -size };
    }
}

/// Normal numbers, some subnormal ones, and zeros of both signs.
fn subnormal(row: &mut Row<'_>) {
    normal(row, 1.0);
    let (unit, count) = match row.tensor.dtype {
        Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => (2f64.powi(-149), 1 << 23),
        Dtype::F16 => (2f64.powi(-24), 1 << 10),
        Dtype::Bf16 => (2f64.powi(-133), 1 << 7),
    };
    for x in row.elements.iter_mut() {
        let bits: u64 = row.rng.random();
        let sign = if bits & 8 == 0 { 1.0 } else { -1.0 };
        match bits & 7 {
            0 => *x = sign * 0.0,
            1 | 2 => *x = sign * unit * ((bits >> 32) % count) as f64,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the moments and shapes that the distributions are named after.
    use super::*;

    fn named(name: &str) -> &'static Distribution {
        let found = DISTRIBUTIONS.iter().find(|d| d.name == name);
        found.expect("a distribution of the table")
    }

    fn draw(shape: &[u64], dtype: Dtype, distribution: &Distribution, bits: u64) -> Vec<f64> {
        let tensor = Tensor {
            dtype,
            depth: 1.0,
            reach: 12,
            bits,
        };
        draw_tensor(shape, distribution, &tensor)
    }

    fn sample(name: &str) -> Vec<f64> {
        draw(&[300, 333], Dtype::F32, named(name), 5)
    }

    #[test]
    fn moments_are_right() {
        let x = sample("normal");
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let variance = x.iter().map(|v| v * v).sum::<f64>() / n;
        let fourth = x.iter().map(|v| v.powi(4)).sum::<f64>() / n;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02,
            "{mean} {variance}"
        );
        assert!((fourth - 3.0).abs() < 0.2, "{fourth}");
        let top = |name| sample(name).iter().fold(0.0f64, |m, v| m.max(v.abs()));
        assert!(top("heavy_tailed") > 20.0 && top("normal") < 6.0);
        assert!(top("large") == 80.0);
        assert!(top("scaled_normal") < 0.4);
    }

    #[test]
    fn rows_are_what_they_are_called() {
        for row in sample("one_hot").chunks(333) {
            assert_eq!(row.iter().filter(|x| **x != 0.0).count(), 1);
        }
        let zeros = sample("zero_rows")
            .chunks(333)
            .filter(|r| r.iter().all(|x| *x == 0.0))
            .count();
        assert!((60..140).contains(&zeros), "{zeros}");
        let x = sample("nearly_constant");
        assert!(x.iter().all(|v| (v - x[0]).abs() < 0.02) && x.iter().any(|v| *v != x[0]));
    }

    #[test]
    fn large_tensors_repeat() {
        assert_eq!(drawn(&[1 << 13, 1 << 14]), [1 << 13, 1 << 14]);
        assert_eq!(drawn(&[4, 1 << 14, 1 << 14]), [8191, 1 << 14]);
        assert_eq!(drawn(&[1 << 29]), [134_217_689]);
        assert_eq!(drawn(&[1 << 28, 4]), [33_554_393, 4]);
    }

    #[test]
    fn draws_repeat_and_differ() {
        for d in DISTRIBUTIONS {
            let draw = |bits| draw(&[40, 1000], Dtype::F16, d, bits);
            let same = |x: &[f64], y: &[f64]| x.iter().zip(y).all(|(x, y)| x == y);
            assert!(same(&draw(1), &draw(1)), "{}", d.name);
            assert!(!same(&draw(1), &draw(2)), "{}", d.name);
            assert!(
                draw(1).iter().all(|x| Dtype::F16.round(*x) == *x),
                "{}",
                d.name
            );
        }
        // Each parameter has numbers of its own, and so has each seed.
        let program = crate::fixtures::attention([5, 9, 4, 4], None);
        let draw = |seed| draw_inputs(&program, &DISTRIBUTIONS[0], seed);
        let (one, two) = (draw(1), draw(2));
        assert_ne!(one[1], one[2]);
        assert_ne!(one[0], two[0]);
    }

    #[test]
    fn parameters_are_drawn_by_themselves_as_all_together() {
        let program = crate::fixtures::attention([5, 9, 4, 4], None);
        for d in DISTRIBUTIONS {
            let whole = DrawnInputs::new(&program, d, 3);
            let all = draw_inputs(&program, d, 3);
            for (n, own) in all.iter().enumerate() {
                assert_eq!(whole.tensor(n)[..], own[..], "{}", d.name);
            }
            assert_eq!(whole[..], all[..]);
            assert!(matches!(whole.tensor(0), Cow::Borrowed(_)));
            // Of another seed is one of them, and its draw alone has another name.
            let other = whole.but(1, 4);
            let expected = draw_inputs(&program, d, 4);
            assert_eq!(other.tensor(1)[..], expected[1][..]);
            assert_eq!(other[0], all[0]);
            assert_eq!(other[1], expected[1]);
            let same: Vec<bool> = (whole.draws().zip(other.draws()))
                .map(|(x, y)| x == y)
                .collect();
            let wanted: Vec<bool> = (0..all.len()).map(|n| n != 1).collect();
            assert_eq!(same, wanted);
        }
        let names: std::collections::BTreeSet<Draw> = DISTRIBUTIONS
            .iter()
            .flat_map(|d| DrawnInputs::new(&program, d, 3).draws().collect::<Vec<_>>())
            .collect();
        assert_eq!(names.len(), 3 * DISTRIBUTIONS.len());
    }

    /// Any number of threads may be the first to ask, those that draw among them.
    #[test]
    fn nobody_who_draws_is_waited_for() {
        let text = "program p\naxis i = 300, j = 600\nx = parameter f32 [i, j]\ny = parameter f32 [i, j]\nreturn f32 [i, j] x + y\n";
        let program: Program = text.parse().expect("a program");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build();
        pool.expect("threads").install(|| {
            for seed in 0..60 {
                let inputs = DrawnInputs::new(&program, &DISTRIBUTIONS[0], seed);
                let askers = (0..2 + seed as usize % 12).into_par_iter();
                let lengths = askers.map(|n| inputs[n % 2].len());
                assert!(lengths.all(|n| n == 300 * 600));
            }
        });
    }

    #[test]
    fn masks_leave_something() {
        let x = sample("masked");
        for row in x.chunks(333) {
            assert!(row.iter().any(|x| x.is_finite()));
        }
        let starts = |n: usize| {
            x.chunks(333)
                .filter(move |r| r[..n].iter().all(|x| !x.is_finite()))
        };
        let whole_tiles = starts(64).count();
        assert!((30..90).contains(&whole_tiles), "{whole_tiles}");
        // A tensor of one row has some of it masked, unless the edge is at its end.
        let rows = (0..50).map(|bits| draw(&[77], Dtype::F16, named("masked"), mix(bits)));
        let left: Vec<usize> = rows
            .map(|r| r.iter().filter(|x| x.is_finite()).count())
            .collect();
        assert!(left.iter().all(|n| *n > 0), "{left:?}");
        assert!(left.iter().filter(|n| **n == 77).count() < 4, "{left:?}");
    }

    #[test]
    fn extremes_are_as_far_as_they_may() {
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
            let x = draw(&[300, 333], dtype, named("extremes"), 5);
            let top = x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            assert!((3000.0..=4096.0).contains(&top), "{top}");
            let zeros = |minus| {
                x.iter()
                    .filter(move |x| **x == 0.0 && x.is_sign_negative() == minus)
            };
            assert!(zeros(true).count() > 1000 && zeros(false).count() > 1000);
            let x = draw(&[300, 333], dtype, named("subnormal"), 5);
            let least = match dtype {
                Dtype::F16 => 2f64.powi(-14),
                Dtype::Bf16 | Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => {
                    f64::from(f32::MIN_POSITIVE)
                }
            };
            let small = x.iter().filter(|x| **x != 0.0 && x.abs() < least).count();
            assert!((20_000..28_000).contains(&small), "{small}");
        }
    }
}

//! Inputs that catch cheats: a table of distributions, deterministic and fast.
//!
//! Values are drawn in chunks, each with its own stream of one generator, so that threads do not change them; then rounded
//! to the parameter's dtype. A *row* is what the last dimension in memory spans.

use crate::domain::domains;
use ir::{Dtype, Op, Program};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

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
    draw: fn(&mut Row<'_>),
}

/// The row being drawn.
struct Row<'a> {
    /// The elements, zero at first.
    elements: &'a mut [f64],
    /// The length of the whole row, of which `elements` may be a piece.
    length: usize,
    /// Where in the row `elements` begin.
    start: usize,
    /// Over how many products the program's widest contraction sums; 1 if it has none.
    depth: f64,
    /// The same for every piece of a row.
    row_bits: u64,
    /// The same for every row of the tensor.
    tensor_bits: u64,
    rng: &'a mut ChaCha8Rng,
}

/// Every distribution, in the order in which kernels meet them.
#[rustfmt::skip]
pub const DISTRIBUTIONS: &[Distribution] = &[
    Distribution { name: "normal",          catches: "wrong results",                                   regular: true,  always: true,  draw: |r| normal(r, 1.0) },
    // Dot products along a row of length n have a deviation of about 1/√n of the normal ones: 16-bit results stay finite.
    Distribution { name: "scaled_normal",   catches: "errors that overflow hides",                      regular: true,  always: false, draw: |r| normal(r, (r.length as f64).powf(-0.5)) },
    Distribution { name: "heavy_tailed",    catches: "accumulators and scales of too little range",     regular: true,  always: false, draw: heavy_tailed },
    Distribution { name: "large",           catches: "exponentials without a maximum subtracted",       regular: true,  always: true,  draw: large },
    Distribution { name: "nearly_constant", catches: "cancellation",                                    regular: true,  always: false, draw: nearly_constant },
    Distribution { name: "one_hot",         catches: "coordinates that are mixed up",                   regular: true,  always: false, draw: one_hot },
    Distribution { name: "zero_rows",       catches: "divisions by an accumulator that may be zero",    regular: false, always: true,  draw: zero_rows },
];

impl PartialEq for Distribution {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Draws every parameter of a program, in declaration order, in memory order. What a root or a logarithm of the program asks of
/// a parameter is kept: numbers outside are mirrored at the ends.
pub fn draw_inputs(program: &Program, distribution: &Distribution, seed: u64) -> Vec<Vec<f64>> {
    let depth = depth(program);
    program
        .parameters()
        .zip(domains(program))
        .enumerate()
        .map(|(i, ((_, _, dtype, dims), domain))| {
            let shape = drawn(&program.shape(dims));
            let mut data = draw_tensor(&shape, dtype, distribution, depth, seed, i as u64);
            if !domain.is_everything() {
                data.par_iter_mut()
                    .for_each(|x| *x = dtype.round(domain.fold(*x)));
            }
            data
        })
        .collect()
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

/// Draws one tensor; `number` tells the tensors of one program apart, `depth` is what its widest contraction sums over.
pub fn draw_tensor(
    shape: &[u64],
    dtype: Dtype,
    distribution: &Distribution,
    depth: f64,
    seed: u64,
    number: u64,
) -> Vec<f64> {
    const CHUNK: usize = 1 << 14;
    let length = shape.last().copied().unwrap_or(1).max(1) as usize;
    let elements: u64 = shape.iter().product();
    let mut data = vec![0.0; elements as usize];
    let tensor_bits = mix(seed ^ mix(number));
    data.par_chunks_mut(CHUNK)
        .enumerate()
        .for_each(|(c, chunk)| {
            let mut rng = ChaCha8Rng::seed_from_u64(tensor_bits);
            rng.set_stream(c as u64);
            let mut at = c * CHUNK;
            let mut rest = chunk;
            while !rest.is_empty() {
                let start = at % length;
                let (piece, after) = rest.split_at_mut((length - start).min(rest.len()));
                at += piece.len();
                (distribution.draw)(&mut Row {
                    row_bits: mix(tensor_bits ^ mix((at - 1) as u64 / length as u64 + 1)),
                    elements: piece,
                    length,
                    start,
                    tensor_bits,
                    depth,
                    rng: &mut rng,
                });
                for x in piece.iter_mut() {
                    *x = dtype.round(*x);
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
    let scale = if row.depth > 1.0 {
        (30.0 / row.depth.sqrt()).sqrt()
    } else {
        30.0
    };
    normal(row, scale);
    clamp(row, 80.0);
}

fn nearly_constant(row: &mut Row<'_>) {
    normal(row, 1e-3);
    let centre = 0.5 + (row.tensor_bits >> 40) as f64 / 16_777_216.0;
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

/// The finaliser of SplitMix64.
pub(crate) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    // Oracle: the moments and shapes that the distributions are named after.
    use super::*;

    fn named(name: &str) -> &'static Distribution {
        let found = DISTRIBUTIONS.iter().find(|d| d.name == name);
        found.expect("a distribution of the table")
    }

    fn sample(name: &str) -> Vec<f64> {
        draw_tensor(&[300, 333], Dtype::F32, named(name), 1.0, 5, 0)
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
            let draw = |seed, number| draw_tensor(&[40, 1000], Dtype::F16, d, 64.0, seed, number);
            assert_eq!(draw(1, 0), draw(1, 0), "{}", d.name);
            assert_ne!(draw(1, 0), draw(2, 0), "{}", d.name);
            assert_ne!(draw(1, 0), draw(1, 1), "{}", d.name);
            assert!(
                draw(1, 0).iter().all(|x| Dtype::F16.round(*x) == *x),
                "{}",
                d.name
            );
        }
    }
}

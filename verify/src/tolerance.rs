//! How far a kernel's output may be from the f64 reference.
//!
//! The yardstick is the *baseline*: the program executed op by op in its own dtypes with f32 accumulation. With `e` the
//! candidate's error against f64, `b` the baseline's and `u` one unit in the last place of the output's dtype at the largest reference
//! of the row, each row must have
//!
//! ```text
//! max |e| ≤ factor · max |b| + floor · u,
//! ```
//!
//! and each output, with `r` the reference, `rms(e) ≤ factor · rms(b) + floor · ε · rms(r)`. Where the reference is not finite, or
//! overflows the output's dtype, candidate and reference must be of the same kind: NaN, `+∞` or `−∞` after rounding.
//! Where the baseline is not finite, the program itself fails in its own dtypes: the candidate may be not finite either, or right.
//! Where only the candidate is finite, the baseline says nothing, and only the floor counts (eight-fold, as one operation in low
//! precision may cost). Where more than half of a row, or of an output, has no finite value to compare, the rest is a sample of
//! what nearly overflowed, and the same eight-fold room is given.

use crate::block::Block;
use crate::evaluate::evaluate_with;
use crate::interpret::SimulateError;
use crate::scalar::Scalar;
use ir::{Dtype, MapOp, NodeId, Op, Program, Reject};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The constants of the rule; part of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// How many times the baseline's error.
    pub factor: f64,
    /// How many units in the last place of the output, on top.
    pub floor: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self {
            factor: 2.0,
            floor: 4.0,
        }
    }
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Elements compared.
    pub elements: u64,
    /// The largest `max |e| / allowed` over the rows; at most 1 in a pass.
    pub worst: f64,
    /// Relative RMS error of the candidate.
    pub rms: f64,
    /// Relative RMS error of the baseline.
    pub baseline_rms: f64,
}

/// How often more than the floor is allowed where the baseline overflows.
const SILENT_BASELINE: f64 = 8.0;

/// Judges one output. `row` is the length of its last dimension in memory.
pub fn compare(
    got: &[f64],
    reference: &[f64],
    baseline: &[f64],
    row: usize,
    dtype: Dtype,
    tolerance: Tolerance,
) -> Result<Errors, Reject> {
    let lengths = [got.len(), reference.len(), baseline.len()];
    if lengths.iter().any(|n| *n != reference.len()) {
        return Err(Reject::Wrong(format!(
            "the output has {} elements, the reference {}, the baseline {}",
            got.len(),
            reference.len(),
            baseline.len()
        )));
    }
    let row = row.max(1);
    let rows: Vec<RowErrors> = got
        .par_chunks(row)
        .zip(reference.par_chunks(row))
        .zip(baseline.par_chunks(row))
        .with_min_len(1 + 4096 / row)
        .map(|((g, r), b)| judge_row(g, r, b, dtype))
        .collect();
    let usual = rows
        .iter()
        .filter(|r| r.top > 0.0 && !r.is_few())
        .fold(0.0f64, |q, r| q.max(r.base / r.top));
    let mut errors = Errors {
        elements: got.len() as u64,
        ..Errors::default()
    };
    let mut squares = [0.0f64; 3];
    let mut compared = 0;
    for (number, judged) in rows.iter().enumerate() {
        let allowed = judged.allowed(usual, dtype, tolerance);
        if let Some((at, fault)) = judged.fault(allowed) {
            let at = number * row + at;
            return Err(Reject::Wrong(format!(
                "element {at} is {:e}, the reference {:e}: {fault}",
                got[at], reference[at]
            )));
        }
        errors.worst = errors.worst.max(judged.worst.1 / allowed);
        compared += judged.compared;
        for (sum, x) in squares.iter_mut().zip(judged.squares) {
            *sum += x;
        }
    }
    let [e, b, r] = squares.map(f64::sqrt);
    if r > 0.0 {
        errors.rms = e / r;
        errors.baseline_rms = b / r;
    }
    let mut allowed = tolerance.factor * b + tolerance.floor * epsilon(dtype) * r;
    if 2 * compared < got.len() {
        allowed *= SILENT_BASELINE;
    }
    // A subnormal result rounds by an absolute amount.
    let absolute = tolerance.floor * ulp(dtype, 0.0) * (got.len() as f64).sqrt();
    if e > allowed + absolute {
        return Err(Reject::Wrong(format!(
            "the relative RMS error is {:e}, that of the baseline {:e}",
            errors.rms, errors.baseline_rms
        )));
    }
    Ok(errors)
}

/// What one row shows.
#[derive(Default)]
struct RowErrors {
    /// Where the candidate is farthest off, and how far.
    worst: (usize, f64),
    /// The baseline's largest error.
    base: f64,
    /// The largest reference.
    top: f64,
    elements: usize,
    /// Elements whose reference and value are finite.
    compared: usize,
    /// Whether the baseline is not finite somewhere where the reference is.
    silent: bool,
    /// Where the reference overflows the dtype and the candidate does not, and how far they are apart.
    overflows: Vec<(usize, f64)>,
    /// Sums of squares of the candidate's errors, the baseline's, and the references.
    squares: [f64; 3],
    /// The first element of a wrong kind.
    kind: Option<(usize, &'static str)>,
}

impl RowErrors {
    /// Whether what was compared is the lesser part.
    fn is_few(&self) -> bool {
        2 * self.compared < self.elements
    }

    /// How far off an element may be; `usual` is the baseline's worst relative error over all rows.
    fn allowed(&self, usual: f64, dtype: Dtype, tolerance: Tolerance) -> f64 {
        let few = self.is_few();
        let room = |x: f64, wide: bool| if wide { x * SILENT_BASELINE } else { x };
        room(tolerance.factor, few) * self.base.max(usual * self.top)
            + room(tolerance.floor, few || self.silent) * ulp(dtype, self.top)
    }

    fn fault(&self, allowed: f64) -> Option<(usize, &'static str)> {
        let apart = self.overflows.iter().find(|(_, e)| *e > allowed);
        self.kind
            .or(apart.map(|(at, _)| (*at, "they differ in kind")))
            .or((self.worst.1 > allowed)
                .then_some((self.worst.0, "the error is too large for its row")))
    }
}

fn judge_row(got: &[f64], reference: &[f64], baseline: &[f64], dtype: Dtype) -> RowErrors {
    let mut row = RowErrors {
        elements: got.len(),
        ..RowErrors::default()
    };
    let limit = largest(dtype);
    for (at, ((g, r), b)) in got.iter().zip(reference).zip(baseline).enumerate() {
        if !r.is_finite() || !dtype.round(*r).is_finite() {
            // Half a percent below the overflow both outcomes are right.
            let near = r.is_finite() && g.is_finite() && g.signum() == r.signum() && {
                r.abs() < limit * 1.005 && g.abs() > limit * 0.99
            };
            let fails = r.is_finite() && !b.is_finite() && !g.is_finite();
            let same = (r.is_nan() && g.is_nan()) || *g == dtype.round(*r) || near || fails;
            if !same && r.is_finite() && g.is_finite() {
                row.overflows.push((at, (g - r).abs()));
            } else if !same {
                row.kind.get_or_insert((at, "they differ in kind"));
            }
            continue;
        }
        if !g.is_finite() {
            let near = g.is_infinite() && g.signum() == r.signum() && r.abs() > limit * 0.99;
            if !near && b.is_finite() {
                row.kind.get_or_insert((at, "it should be finite"));
            }
            continue;
        }
        let e = (g - r).abs();
        row.compared += 1;
        row.top = row.top.max(r.abs());
        if e > row.worst.1 {
            row.worst = (at, e);
        }
        row.squares[0] += e * e;
        row.squares[2] += r * r;
        if b.is_finite() {
            row.base = row.base.max((b - r).abs());
            row.squares[1] += (b - r) * (b - r);
        } else {
            row.silent = true;
            // What the element-wise rule would allow; so one silent element does not decide the whole output's RMS.
            let room = SILENT_BASELINE * ulp(dtype, r.abs());
            row.squares[1] += room * room;
        }
    }
    row
}

/// The distance between neighbours of a dtype at a magnitude.
pub fn ulp(dtype: Dtype, magnitude: f64) -> f64 {
    let (digits, least) = match dtype {
        Dtype::F32 => (23, -126),
        Dtype::F16 => (10, -14),
        Dtype::Bf16 => (7, -126),
    };
    let exponent = if magnitude > 0.0 {
        (magnitude.log2().floor() as i32).max(least)
    } else {
        least
    };
    2f64.powi(exponent - digits)
}

/// The distance from 1 to its neighbour.
fn epsilon(dtype: Dtype) -> f64 {
    ulp(dtype, 1.0)
}

/// The largest finite number.
fn largest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(f32::MAX),
        Dtype::F16 => 65504.0,
        Dtype::Bf16 => half::bf16::MAX.to_f64(),
    }
}

/// The baseline on the CPU, for small shapes: every operation in f32, its result rounded to the promoted dtype of its operands,
/// the outputs to theirs. Constants and coordinates adapt to what they meet.
pub fn baseline(program: &Program, inputs: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, SimulateError> {
    let dtypes = node_dtypes(program);
    single(program, inputs, |node, mut block| {
        if let Some(dtype) = dtypes[node.index()] {
            for x in &mut block.data {
                *x = x.round(dtype);
            }
        }
        block
    })
}

/// A program with every operation in f32, sums one after the other, and its outputs rounded to their dtypes; every value is passed
/// through `after`.
pub(crate) fn single(
    program: &Program,
    inputs: &[Vec<f64>],
    after: impl FnMut(NodeId, Block<Single>) -> Block<Single>,
) -> Result<Vec<Vec<f64>>, SimulateError> {
    let single: Vec<Vec<Single>> = inputs
        .iter()
        .map(|t| t.iter().map(|x| Single(*x as f32)).collect())
        .collect();
    let outputs = evaluate_with(program, &single, after)?;
    Ok(outputs
        .iter()
        .zip(&program.outputs)
        .map(|(data, o)| data.iter().map(|x| o.dtype.round(f64::from(x.0))).collect())
        .collect())
}

/// The dtype of each value when a program is executed op by op; `None` for what is made of constants alone.
pub fn node_dtypes(program: &Program) -> Vec<Option<Dtype>> {
    let mut all: Vec<Option<Dtype>> = Vec::with_capacity(program.nodes.len());
    for node in &program.nodes {
        let args = match node.op {
            // The condition of a select has no part in its result's dtype.
            Op::Map(MapOp::Select) => node.args.get(1..).unwrap_or_default(),
            Op::Map(_) | Op::View { .. } | Op::Reduce { .. } | Op::Dot { .. } => &node.args,
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) => &[],
        };
        let own = match node.op {
            Op::Parameter { dtype, .. } => Some(dtype),
            Op::Constant(_)
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot { .. } => None,
        };
        let joined = args.iter().fold(own, |joined, arg| {
            let dtype = all.get(arg.index()).copied().flatten();
            match (joined, dtype) {
                (Some(a), Some(b)) => Some(promote(a, b)),
                (a, b) => a.or(b),
            }
        });
        all.push(joined);
    }
    all
}

/// The dtype of an operation on two: the same, or f32.
fn promote(a: Dtype, b: Dtype) -> Dtype {
    if a == b { a } else { Dtype::F32 }
}

/// f32 arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single(pub(crate) f32);

impl Scalar for Single {
    fn constant(value: f64) -> Self {
        Self(value as f32)
    }
    fn integer(value: i64) -> Self {
        Self(value as f32)
    }
    fn add(self, y: Self) -> Self {
        Self(self.0 + y.0)
    }
    fn mul(self, y: Self) -> Self {
        Self(self.0 * y.0)
    }
    fn div(self, y: Self) -> Self {
        Self(self.0 / y.0)
    }
    fn max(self, y: Self) -> Self {
        Self(self.0.max(y.0))
    }
    fn exp(self) -> Self {
        Self(self.0.exp())
    }
    fn log(self) -> Self {
        Self(self.0.ln())
    }
    fn sqrt(self) -> Self {
        Self(self.0.sqrt())
    }
    fn select(self, x: Self, y: Self) -> Self {
        if self.0 >= 0.0 { x } else { y }
    }
    fn holds(&self) -> Option<bool> {
        Some(self.0 >= 0.0)
    }
    fn round(self, dtype: Dtype) -> Self {
        Self(dtype.round(f64::from(self.0)) as f32)
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the inequality of the module documentation, at its edges.
    use super::*;

    fn check(got: &[f64], want: &[f64], base: &[f64]) -> Result<Errors, Reject> {
        compare(got, want, base, 4, Dtype::F16, Tolerance::default())
    }

    #[test]
    fn errors_are_measured_by_row() {
        let want = [1.0, 2.0, 3.0, 4.0, 100.0, 200.0, 300.0, 400.0];
        assert!(check(&want, &want, &want).is_ok());
        let mut off = want;
        // 4 units at 4 are 4 · 2^−8.
        off[0] += 0.99 * 4.0 / 256.0;
        assert!(check(&off, &want, &want).is_ok());
        off[0] += 0.02 * 4.0 / 256.0;
        assert!(check(&off, &want, &want).is_err());
        // The same error is allowed where the baseline has half of it, or in the row of larger numbers.
        let mut base = want;
        base[3] += 0.5 / 256.0;
        assert!(check(&off, &want, &base).is_ok());
        let mut off = want;
        off[4] += 1.01 * 4.0 / 256.0;
        assert!(check(&off, &want, &want).is_ok());
    }

    #[test]
    fn small_errors_everywhere_are_too_many() {
        // Each element is within the floor of its row, which one large element sets; the RMS is of them all.
        let want: Vec<f64> = (0..4000)
            .map(|i| if i % 4 == 0 { 1.99 } else { 1.0 })
            .collect();
        let got: Vec<f64> = want.iter().map(|x| x * (1.0 + 4.5 / 1024.0)).collect();
        let wide = Tolerance {
            factor: 2.0,
            floor: 4.0,
        };
        let row = |g: &[f64]| compare(g, &want, &want, 4000, Dtype::F16, wide);
        assert!(row(&want).is_ok());
        assert!(row(&got).is_err());
    }

    #[test]
    fn kinds_agree() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let one = |got: f64, want: f64| {
            compare(
                &[got],
                &[want],
                &[want],
                1,
                Dtype::F16,
                Tolerance::default(),
            )
            .is_ok()
        };
        for (got, want, pass) in [
            (nan, nan, true),
            (1.0, nan, false),
            (nan, 1.0, false),
            (inf, inf, true),
            (-inf, inf, false),
            (inf, 1e6, true),
            (65504.0, 1e6, false),
            (f64::INFINITY, 1.0, false),
            (inf, 65521.0, true),
            (65504.0, 65521.0, true),
            (inf, 65500.0, true),
            (inf, 60000.0, false),
            (nan, 1e6, false),
        ] {
            assert_eq!(one(got, want), pass, "{got} for {want}");
        }
    }

    #[test]
    fn where_the_program_itself_fails_so_may_the_candidate() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let of = |got: f64, want: f64, base: f64| {
            let fill = |x: f64| [1.0, 2.0, 3.0, x];
            check(&fill(got), &fill(want), &fill(base)).is_ok()
        };
        assert!(of(nan, 1.0, nan) && of(inf, 1.0, nan) && of(nan, 1e9, inf));
        assert!(!of(nan, 1.0, 1.0) && !of(nan, 1e9, 1e9) && !of(2.0, 1.0, nan));
    }

    #[test]
    fn a_silent_baseline_gives_the_same_room_on_either_side_of_zero() {
        // Eight units in each element: within what twice the silent baseline's eight and the floor of four allow the RMS.
        for sign in [1.0, -1.0] {
            let want = [sign; 4];
            let silent = [f64::NAN; 4];
            let off = |units: f64| want.map(|x| x * (1.0 + units / 1024.0));
            assert!(check(&off(8.0), &want, &silent).is_ok());
            assert!(check(&off(24.0), &want, &silent).is_err());
        }
    }

    #[test]
    fn the_baseline_rounds_every_result() {
        let program = crate::fixtures::row_softmax(3, 5);
        let x: Vec<f64> = (0..15).map(|i| f64::from(i) * 0.3).collect();
        let x: Vec<f64> = x.iter().map(|v| Dtype::F32.round(*v)).collect();
        let base = baseline(&program, std::slice::from_ref(&x)).expect("it runs");
        let exact = crate::evaluate::evaluate(&program, &[x]).expect("it runs");
        let worst = base[0]
            .iter()
            .zip(&exact[0])
            .fold(0.0f64, |w, (b, e)| w.max((b - e).abs()));
        assert!(worst > 0.0 && worst < 1e-6, "{worst}");
    }
}

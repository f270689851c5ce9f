//! How far a kernel's output may be from the f64 reference.
//!
//! The yardstick is the *baseline*, the program as a careful kernel computes it ([`baseline`]). With `r` the reference, `e` the
//! candidate's error against it, `b` the baseline's, `ε` the distance from 1 to its neighbour in the output's dtype and `u` the same at
//! the largest `|r|` of a row, four things are asked of an output ([`Limits`] has the numbers):
//!
//! * **each row:** `max |e| / max |r| ≤ factor · (the baseline's worst in any row) + row · u / max |r|`. The worst of any row: a row of the
//!   baseline is accurate by luck now and then, and two independent roundings must not be compared there.
//! * **as a whole:** `rms(e) ≤ factor · rms(b) + (rms + row / √n) · ε · rms(r)`.
//! * **bias:** `|β(e)| ≤ |β(b)| + bias · ε + rms(b)/rms(r) · share + 2 · ε / √n` with `β(e) = Σer / Σr²`, the factor by which the output is
//!   too large. Roundings to nearest have a standard deviation of `ε/√12` at most, and a mean of nothing: the mean of `n` of
//!   them has one of `0.29 ε / √n`, of which 2 is seven.
//! * **each magnitude:** of the elements whose `|r|` is in one binade, if they are 64 or more: `rms(e) ≤ 4 · rms(b) + bin · ε · 2^k`, where
//!   `rms(b)` is the largest of this binade's and of the four above it, with half a unit of f32 more for each binade below
//!   the highest, as exponents are rounded in f32, and `2⁻²⁴ · rms(r)`: what f32 loses beside the other elements. A kernel that drops what is small
//!   is as good as any in the rows above, where what is large decides.
//!
//! Here `n = (Σr²)² / Σr⁴`: as many elements of one size would average as well as these. All four allow what is below
//! the smallest normal number on top (`tiny`): kernels may flush subnormal ones.
//!
//! Where the reference is NaN the program defines no value, and nothing is asked. Where it is infinite, or overflows the output's
//! dtype, the candidate must be the same after rounding.
//!
//! Where the baseline is off by more than a tenth of its row, or not finite, it is no yardstick: f32 overflowed, or digits cancelled.
//! Such rows are *lost*, and have no part in what is said above. There the candidate must be as the baseline is, fail where it fails, or be within
//! eight standard deviations of what f32 arithmetic without limits of range would give (`tolerance/spread.rs`): a baseline in a wide range says how far off
//! it happens to be, and where digits cancel that is a matter of luck. Nothing is assumed of lost rows whose deviation takes long to find: they may
//! be off by `factor` times the baseline's own worst error in the row.
//!
//! Where a small error decides much, as where two numbers are nearly the largest, luck says in which rows, and how far off they are. Of `l` rows that
//! are lost though the baseline is finite there, a candidate may *miss* `2l + 4√l`, others than these by more than a tenth or of these by more than is said
//! above, if they are at most an eighth of the rest. They have no part in what is said above either. Where the baseline loses no row the candidate may miss none.
//!
//! Luck is also what an output of few rows shows: all elements of a row may share one rounding. So what is refused in a row may be eight
//! of the same standard deviations, and an output of at most 64 rows that is refused as a whole is judged once more, with two standard deviations
//! for the baseline.
//!
//! Tensor cores cut off where they add ([Fasi et al. 2021](https://doi.org/10.7717/peerj-cs.330)), 16 products at a time: where the program contracts
//! 16-bit operands, half a unit of f32 for each such step is allowed in all four, of the output's RMS where digits may have cancelled. Outputs in f32
//! notice it, and what is small of others.

mod careful;
mod spread;

#[cfg(test)]
pub(crate) use careful::Careful;
pub use careful::baseline;
pub(crate) use careful::{Single, single};
pub(crate) use spread::deviations;

use ir::{Dtype, Op, Program, Reject};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The constants of the rule for one output; part of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The output's dtype.
    pub dtype: Dtype,
    /// How many times the baseline's error.
    pub factor: f64,
    /// Units in the last place of a row's largest element, on top.
    pub row: f64,
    /// Units, relative to the whole output's RMS, on top.
    pub rms: f64,
    /// What the whole output's bias may be, in units; none where it is not judged.
    pub bias: Option<f64>,
    /// How much of the baseline's RMS its bias may be.
    pub share: f64,
    /// Units of each binade on top; none where magnitudes are not judged.
    pub bin: Option<f64>,
    /// What tensor cores may cut off, and what long sums of equal terms are off by, relative.
    pub cut: f64,
    /// Whether rows are set aside where the baseline is no yardstick.
    pub sets_aside: bool,
}

/// Whether rounding errors of inputs average out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roundings {
    /// The numbers are spread: they do.
    Spread,
    /// Many numbers are equal, or nearly: they round the same way, and what is one rounding for one kernel is none for another. Bias is not
    /// judged, the whole output's error as that of one row, and a sum of `n` terms in f32 may be off by `√n` roundings.
    Alike,
    /// Few large numbers decide, and the baseline's error is what luck makes of a few roundings: as above, and four times as much.
    Few,
}

impl Limits {
    /// For the outputs of a program, in order.
    pub fn of(program: &Program, roundings: Roundings) -> Vec<Self> {
        let outputs = program.outputs.iter();
        let spread = outputs.map(|o| Self::new(o.dtype, cut(program)));
        let alike = |limits: Self| Self {
            rms: limits.row,
            bias: None,
            bin: limits.bin.map(|bin| 2.0 * bin),
            cut: limits.cut + longest_sum(program).sqrt() * ulp(Dtype::F32, 1.0),
            ..limits
        };
        spread
            .map(|limits| match roundings {
                Roundings::Spread => limits,
                Roundings::Alike => alike(limits),
                Roundings::Few => alike(limits).widened(4.0),
            })
            .collect()
    }

    #[rustfmt::skip]
    fn new(dtype: Dtype, cut: f64) -> Self {
        let (row, rms, bias, share, bin) = match dtype {
            Dtype::F32               => (4.0, 2.0,  2.0,   1.0,   4.0),
            Dtype::F16 | Dtype::Bf16 => (1.5, 0.1,  0.125, 0.125, 1.0),
        };
        Self {
            dtype,
            factor: 2.0,
            row,
            rms,
            bias: Some(bias),
            share,
            bin: Some(bin),
            cut,
            sets_aside: true,
        }
    }

    /// With everything that is allowed multiplied.
    pub fn widened(self, by: f64) -> Self {
        Self {
            factor: self.factor * by,
            row: self.row * by,
            rms: self.rms * by,
            bias: self.bias.map(|b| b * by),
            share: self.share * by,
            bin: self.bin.map(|b| b * by),
            cut: self.cut * by,
            ..self
        }
    }
}

/// What tensor cores may cut off of the program's longest contraction of 16-bit operands: `2⁻²⁵` of the sum for each 16 products.
fn cut(program: &Program) -> f64 {
    let dtypes = program.dtypes();
    let products = program
        .nodes
        .iter()
        .zip(dtypes)
        .filter_map(|(node, dtype)| match (&node.op, dtype) {
            (Op::Dot { axes }, Some(Dtype::F16 | Dtype::Bf16)) => program.elements(axes),
            (
                Op::Dot { .. }
                | Op::Parameter { .. }
                | Op::Constant(_)
                | Op::Iota(_)
                | Op::View { .. }
                | Op::Map(_)
                | Op::Reduce { .. },
                _,
            ) => None,
        });
    products.max().unwrap_or(0).div_ceil(16) as f64 * 2f64.powi(-25)
}

/// The terms of the program's longest sum.
fn longest_sum(program: &Program) -> f64 {
    let sums = program.nodes.iter().filter_map(|node| match &node.op {
        Op::Reduce { axes, .. } | Op::Dot { axes } => program.elements(axes),
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => None,
    });
    sums.max().unwrap_or(1) as f64
}

/// The constants of a comparison that looks for the loss of most digits: rows and the whole, and no more.
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

/// How near something came to what is allowed; at most 1 in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// The worst row.
    pub row: f64,
    /// The whole.
    pub rms: f64,
    /// The bias.
    pub bias: f64,
    /// The worst binade.
    pub bin: f64,
}

impl Ratios {
    /// The largest of them.
    pub fn worst(&self) -> f64 {
        self.row.max(self.rms).max(self.bias).max(self.bin)
    }
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Elements of the output.
    pub elements: u64,
    /// Of these, those whose values were compared, and those that are infinite, or overflow, as they should.
    pub compared: u64,
    /// Elements of which the program defines no value.
    pub undefined: u64,
    /// Elements that are not finite where f32 arithmetic overflows.
    pub overflowed: u64,
    /// Elements in rows of which the baseline says nothing.
    pub lost: u64,
    /// Elements in rows that the candidate misses, as the baseline misses others.
    #[serde(default)]
    pub missed: u64,
    /// The largest of `ratios`.
    pub worst: f64,
    /// Of what is allowed.
    pub ratios: Ratios,
    /// Relative RMS error of the candidate.
    pub rms: f64,
    /// Relative RMS error of the baseline.
    pub baseline_rms: f64,
    /// By which part the candidate is too large.
    pub bias: f64,
    /// By which part the baseline is too large.
    pub baseline_bias: f64,
}

/// A row that is farther off than the baseline in any row, or of which the baseline says nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Doubt {
    /// Where its first element is.
    pub(crate) start: usize,
    /// How many there are; all of one row.
    pub(crate) length: usize,
    /// Relative to its largest, how far off an element is beyond the floor.
    beyond: f64,
    /// Whether the baseline says nothing of it.
    lost: bool,
}

/// The verdict on one output.
#[derive(Debug)]
pub(crate) struct Judged {
    errors: Errors,
    /// An element of a wrong kind.
    kind: Option<String>,
    /// What is wrong of all elements, or of a binade.
    whole: Option<String>,
    /// Rows to look at again, the worst first.
    doubts: Vec<Doubt>,
    /// What the baseline loses in the worst row that isn't lost, relative.
    usual: f64,
    /// Rows that are missed, and that may be.
    missed: u64,
    missable: u64,
    limits: Limits,
}

/// Judges one output where nobody can look again at what is in doubt; lost rows pass. `row` is the length of its last dimension in memory.
pub fn screen(
    got: &[f64],
    reference: &[f64],
    baseline: &[f64],
    row: usize,
    limits: Limits,
) -> Result<Errors, Reject> {
    let judged = judge(got, reference, baseline, row, limits)?;
    judged.settle(got, reference, baseline, |doubt| {
        doubt.lost.then(|| vec![f64::INFINITY; doubt.length])
    })
}

/// Judges one output by its rows and as a whole.
pub fn compare(
    got: &[f64],
    reference: &[f64],
    baseline: &[f64],
    row: usize,
    dtype: Dtype,
    tolerance: Tolerance,
) -> Result<Errors, Reject> {
    let limits = Limits {
        dtype,
        factor: tolerance.factor,
        row: tolerance.floor,
        rms: tolerance.floor,
        bias: None,
        share: 0.0,
        bin: None,
        cut: 0.0,
        sets_aside: false,
    };
    screen(got, reference, baseline, row, limits)
}

/// Pieces of longer rows are rows.
const LONGEST: usize = 1 << 16;
/// Tasks for threads: so many sums are added one after the other, the same ones whatever the number of threads.
const TASKS: usize = 512;
/// Elements of a binade that are enough to judge it.
const ENOUGH: u64 = 64;
/// Part of an output's RMS that no element has to be exact to: half a unit of f32.
const SMALL: f64 = 1.0 / 16_777_216.0;
/// Binades above one whose errors it may have.
const ABOVE: usize = 4;
/// How many times the baseline's error in a binade.
const BIN_FACTOR: f64 = 4.0;
/// Where the baseline is off by more than this part of its row, it is no yardstick.
const LOST: f64 = 0.1;
/// Of `l` rows that the baseline loses, so many others may be missed, and of the rest this part at most.
fn missable(lost: u64, kept: u64) -> u64 {
    let lost = lost as f64;
    ((2.0 * lost + 4.0 * lost.sqrt()) as u64).min(kept / 8)
}

/// Rows that are looked at again: of one task, and in all.
const DOUBTS: [usize; 2] = [16, 64];
/// How many standard deviations of f32 arithmetic an error may be.
pub(crate) const DEVIATIONS: f64 = 8.0;
/// Rows of which an output has few.
pub(crate) const FEW: usize = DOUBTS[1];

/// Judges one output; what is in doubt is for [`Judged::settle`].
pub(crate) fn judge(
    got: &[f64],
    reference: &[f64],
    baseline: &[f64],
    row: usize,
    limits: Limits,
) -> Result<Judged, Reject> {
    let lengths = [got.len(), reference.len(), baseline.len()];
    if lengths.iter().any(|n| *n != reference.len()) {
        return Err(Reject::Wrong(format!(
            "the output has {} elements, the reference {}, the baseline {}",
            got.len(),
            reference.len(),
            baseline.len()
        )));
    }
    let row = row.clamp(1, reference.len().max(1));
    let (rows, parts) = (reference.len().div_ceil(row), row.div_ceil(LONGEST));
    let pieces = rows * parts;
    let each = pieces.div_ceil(TASKS).max(LONGEST / row).max(1);
    let found: Vec<Seen> = (0..pieces.div_ceil(each))
        .into_par_iter()
        .map(|task| {
            let mut seen = Seen::default();
            for piece in task * each..((task + 1) * each).min(pieces) {
                let from = piece / parts * row + piece % parts * LONGEST;
                let to = (from + LONGEST)
                    .min(piece / parts * row + row)
                    .min(reference.len());
                let all = from..to;
                let (g, r, b) = (&got[all.clone()], &reference[all.clone()], &baseline[all]);
                seen.row(from, g, r, b, &limits);
            }
            seen.worst_doubts(DOUBTS[0]);
            seen
        })
        .collect();
    let mut all = Seen::default();
    for seen in found {
        all.join(seen);
    }
    Ok(all.verdict(got, reference, limits))
}

/// What a part of an output shows.
#[derive(Default)]
struct Seen {
    errors: Errors,
    /// The first element of a wrong kind.
    kind: Option<(usize, &'static str)>,
    /// The worst relative error of the baseline in any row.
    usual: f64,
    /// The rows whose elements are farthest off: beyond the floor, and relative to what the floor is.
    worst: [Option<Worst>; 2],
    doubts: Vec<Doubt>,
    sums: Sums,
    bins: Vec<Bin>,
    /// Rows that are neither lost nor missed, those of a finite baseline that are lost, and those that are missed, with what they show.
    kept_rows: u64,
    lost_rows: u64,
    missed_rows: u64,
    missed: Option<Box<Seen>>,
}

#[derive(Clone, Copy)]
struct Worst {
    error: f64,
    top: f64,
    /// What it is ranked by.
    rank: f64,
}

/// Sums over elements.
#[derive(Clone, Copy, Default)]
struct Sums {
    elements: u64,
    /// `Σe²`, `Σb²`, `Σr²`
    squares: [f64; 3],
    /// `Σer`, `Σbr`
    along: [f64; 2],
    /// `Σr⁴`
    fourth: f64,
}

/// Elements of one binade.
#[derive(Clone, Copy, Default)]
struct Bin {
    elements: u64,
    /// `Σe²`, `Σb²`
    squares: [f64; 2],
}

/// Binades of all dtypes, from the smallest normal f32 on; smaller numbers are in the first.
const BINADES: usize = 256;
const FIRST_BINADE: i32 = -126;

fn binade(x: f64) -> usize {
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    (exponent - FIRST_BINADE).clamp(0, BINADES as i32 - 1) as usize
}

/// What one row shows at first.
#[derive(Default)]
struct Row {
    worst: f64,
    base: f64,
    top: f64,
    compared: u64,
    /// Whether the baseline is not finite somewhere where the reference is.
    silent: bool,
    /// Where the reference overflows the dtype and the candidate does not, and how far they are apart.
    over: Option<(usize, f64)>,
}

impl Seen {
    fn row(&mut self, start: usize, got: &[f64], reference: &[f64], base: &[f64], limits: &Limits) {
        let row = self.look(start, got, reference, base, limits.dtype);
        let floor = limits.floor(row.top);
        if let Some((at, _)) = row.over.filter(|(_, apart)| *apart > floor) {
            self.kind.get_or_insert((start + at, "they differ in kind"));
        }
        if row.compared == 0 {
            return;
        }
        let lost = limits.sets_aside && (row.silent || row.base > LOST * row.top);
        if lost {
            self.errors.lost += row.compared;
            self.lost_rows += u64::from(!row.silent);
            let worst = unlike(got, reference, base, limits.dtype);
            if worst > floor {
                self.doubt(Doubt {
                    start,
                    length: got.len(),
                    beyond: (worst - floor) / row.top,
                    lost,
                });
            }
            return;
        }
        if limits.sets_aside && row.worst > (LOST * row.top).max(limits.factor * row.base + floor) {
            self.missed_rows += 1;
            let missed = self.missed.get_or_insert_default();
            missed.errors.missed += row.compared;
            missed.counted(start, got, reference, base, &row, limits);
        } else {
            self.kept_rows += 1;
            self.counted(start, got, reference, base, &row, limits);
        }
    }

    /// A row that has a part in what is said of all.
    fn counted(
        &mut self,
        start: usize,
        got: &[f64],
        reference: &[f64],
        base: &[f64],
        row: &Row,
        limits: &Limits,
    ) {
        let (lost, floor) = (false, limits.floor(row.top));
        if row.worst > limits.factor * row.base + floor {
            self.doubt(Doubt {
                start,
                length: got.len(),
                beyond: (row.worst - floor) / row.top,
                lost,
            });
        }
        if row.top > 0.0 {
            self.usual = self.usual.max(row.base / row.top);
        }
        let ranks = [
            if row.worst > floor {
                (row.worst - floor) / row.top
            } else {
                0.0
            },
            row.worst / floor,
        ];
        for (kept, rank) in self.worst.iter_mut().zip(ranks) {
            if kept.is_none_or(|k| rank > k.rank) {
                *kept = Some(Worst {
                    error: row.worst,
                    top: row.top,
                    rank,
                });
            }
        }
        self.add(got, reference, base, limits);
    }

    fn doubt(&mut self, doubt: Doubt) {
        self.doubts.push(doubt);
        if self.doubts.len() > 100 * DOUBTS[0] {
            self.worst_doubts(DOUBTS[0]);
        }
    }

    fn worst_doubts(&mut self, most: usize) {
        self.doubts.sort_by(|x, y| y.beyond.total_cmp(&x.beyond));
        self.doubts.truncate(most);
    }

    /// Kinds, and the largest of everything.
    fn look(
        &mut self,
        start: usize,
        got: &[f64],
        reference: &[f64],
        base: &[f64],
        dtype: Dtype,
    ) -> Row {
        let mut row = Row::default();
        let limit = largest(dtype);
        self.errors.elements += got.len() as u64;
        for (at, ((g, r), b)) in got.iter().zip(reference).zip(base).enumerate() {
            if r.is_nan() {
                self.errors.undefined += 1;
                continue;
            }
            if r.abs() > limit && !dtype.round(*r).is_finite() {
                // Half a percent below the overflow both outcomes are right.
                let near = r.is_finite() && g.is_finite() && g.signum() == r.signum() && {
                    r.abs() < limit * 1.005 && g.abs() > limit * 0.99
                };
                // Where the baseline is infinite too, f32 may have overflowed before the result did.
                let fails = !b.is_finite() && (r.is_finite() || b != r);
                if *g == dtype.round(*r) || near {
                    self.errors.compared += 1;
                } else if !g.is_finite() && fails {
                    self.errors.overflowed += 1;
                } else if r.is_finite() && g.is_finite() {
                    let apart = (g - r).abs();
                    if row.over.is_none_or(|(_, most)| apart > most) {
                        row.over = Some((at, apart));
                    }
                } else {
                    self.kind.get_or_insert((start + at, "they differ in kind"));
                }
                continue;
            }
            if !g.is_finite() {
                let near = g.is_infinite() && g.signum() == r.signum() && r.abs() > limit * 0.99;
                if near {
                    self.errors.compared += 1;
                } else if b.is_finite() {
                    self.kind.get_or_insert((start + at, "it should be finite"));
                } else {
                    self.errors.overflowed += 1;
                }
                continue;
            }
            let e = (g - r).abs();
            row.compared += 1;
            row.top = row.top.max(r.abs());
            row.worst = row.worst.max(e);
            if b.is_finite() {
                row.base = row.base.max((b - r).abs());
            } else {
                row.silent = true;
            }
        }
        self.errors.compared += row.compared;
        row
    }

    /// Adds a row to what is known of the whole.
    fn add(&mut self, got: &[f64], reference: &[f64], base: &[f64], limits: &Limits) {
        if self.bins.is_empty() {
            self.bins = vec![Bin::default(); BINADES];
        }
        let limit = largest(limits.dtype);
        for ((g, r), b) in got.iter().zip(reference).zip(base) {
            let asked = r.abs() <= limit && g.is_finite() && b.is_finite();
            if !asked {
                continue;
            }
            let (e, b, square) = (g - r, b - r, r * r);
            let sums = &mut self.sums;
            sums.elements += 1;
            sums.squares[0] += e * e;
            sums.squares[1] += b * b;
            sums.squares[2] += square;
            sums.along[0] += e * r;
            sums.along[1] += b * r;
            sums.fourth += square * square;
            if *r != 0.0 {
                let bin = &mut self.bins[binade(*r)];
                bin.elements += 1;
                bin.squares[0] += e * e;
                bin.squares[1] += b * b;
            }
        }
    }

    fn join(&mut self, other: Self) {
        self.kept_rows += other.kept_rows;
        self.lost_rows += other.lost_rows;
        self.missed_rows += other.missed_rows;
        match (&mut self.missed, other.missed) {
            (Some(missed), Some(more)) => missed.join(*more),
            (none @ None, more) => *none = more,
            (Some(_), None) => {}
        }
        let (errors, more) = (&mut self.errors, other.errors);
        errors.missed += more.missed;
        errors.elements += more.elements;
        errors.compared += more.compared;
        errors.undefined += more.undefined;
        errors.overflowed += more.overflowed;
        errors.lost += more.lost;
        self.kind = self.kind.or(other.kind);
        self.usual = self.usual.max(other.usual);
        for (kept, more) in self.worst.iter_mut().zip(other.worst) {
            let larger = |more: &Worst| kept.is_none_or(|k| more.rank > k.rank);
            if let Some(more) = more.filter(larger) {
                *kept = Some(more);
            }
        }
        self.doubts.extend(other.doubts);
        self.sums.elements += other.sums.elements;
        self.sums.fourth += other.sums.fourth;
        for (sum, more) in self.sums.squares.iter_mut().zip(other.sums.squares) {
            *sum += more;
        }
        for (sum, more) in self.sums.along.iter_mut().zip(other.sums.along) {
            *sum += more;
        }
        if self.bins.is_empty() {
            self.bins = other.bins;
        } else {
            for (bin, more) in self.bins.iter_mut().zip(other.bins) {
                bin.elements += more.elements;
                bin.squares[0] += more.squares[0];
                bin.squares[1] += more.squares[1];
            }
        }
    }

    fn verdict(mut self, got: &[f64], reference: &[f64], limits: Limits) -> Judged {
        let missable = missable(self.lost_rows, self.kept_rows);
        if let Some(missed) = self.missed.take() {
            if self.missed_rows <= missable {
                self.errors.missed = missed.errors.missed;
            } else {
                self.join(Self {
                    errors: Errors::default(),
                    ..*missed
                });
            }
        }
        let mut errors = self.errors;
        let least = limits.factor * self.usual;
        self.doubts.retain(|d| d.beyond > least);
        self.worst_doubts(DOUBTS[1]);
        for worst in self.worst.into_iter().flatten() {
            let allowed = least * worst.top + limits.floor(worst.top);
            errors.ratios.row = errors.ratios.row.max(worst.error / allowed);
        }
        let whole = self.sums.judge(&limits, &mut errors);
        let typical = (self.sums.squares[2] / self.sums.elements.max(1) as f64).sqrt();
        let bins = limits
            .bin
            .and_then(|units| bins(&self.bins, typical, units, &limits, &mut errors));
        errors.worst = errors.ratios.worst();
        let kind = self.kind.map(|(at, what)| {
            format!(
                "element {at} is {:e}, the reference {:e}: {what}",
                got[at], reference[at]
            )
        });
        Judged {
            errors,
            kind,
            whole: whole.or(bins),
            doubts: self.doubts,
            usual: self.usual,
            missed: self.missed_rows,
            missable,
            limits,
        }
    }
}

impl Sums {
    /// The whole and its bias.
    fn judge(&self, limits: &Limits, errors: &mut Errors) -> Option<String> {
        let [e, b, r] = self.squares.map(f64::sqrt);
        let tiny = tiny(limits.dtype) * (self.elements as f64).sqrt();
        let unit = ulp(limits.dtype, 1.0);
        let many = if self.fourth > 0.0 {
            (self.squares[2] * self.squares[2] / self.fourth).max(1.0)
        } else {
            1.0
        };
        let allowed = limits.factor * b
            + ((limits.rms + limits.row / many.sqrt()) * unit + limits.cut) * r
            + tiny;
        if e > 0.0 {
            errors.ratios.rms = e / allowed;
        }
        if r > 0.0 {
            errors.rms = e / r;
            errors.baseline_rms = b / r;
            [errors.bias, errors.baseline_bias] = self.along.map(|sum| sum / (r * r));
        }
        if e > allowed {
            return Some(format!(
                "the relative RMS error is {:e}, that of the baseline {:e}",
                errors.rms, errors.baseline_rms
            ));
        }
        let bias = limits.bias.filter(|_| r > 0.0)?;
        let allowed = errors.baseline_bias.abs()
            + (bias + 2.0 / many.sqrt()) * unit
            + limits.share * errors.baseline_rms
            + limits.cut
            + tiny / r;
        errors.ratios.bias = errors.bias.abs() / allowed;
        (errors.bias.abs() > allowed).then(|| {
            format!(
                "the output is too large by {:e} of itself, the baseline by {:e}",
                errors.bias, errors.baseline_bias
            )
        })
    }
}

/// Each magnitude; `whole` is the output's RMS.
fn bins(
    bins: &[Bin],
    whole: f64,
    units: f64,
    limits: &Limits,
    errors: &mut Errors,
) -> Option<String> {
    // What is cut off of a sum is so beside its terms, whatever is left of them.
    let beside = whole * (limits.cut + SMALL);
    let rms = |bin: &Bin, which: usize| (bin.squares[which] / bin.elements as f64).sqrt();
    let enough = |bin: &Bin| bin.elements >= ENOUGH;
    let highest = bins.iter().rposition(enough).unwrap_or(0);
    let mut fault = None;
    for (number, bin) in bins.iter().enumerate().filter(|(_, bin)| enough(bin)) {
        // An exponential is off by what its exponent is rounded by: half a unit of f32 for each binade that it is below 1.
        let exponent = (highest - number) as f64 * ulp(Dtype::F32, 1.0) / 2.0;
        let above = &bins[number..(number + 1 + ABOVE).min(bins.len())];
        let base = above
            .iter()
            .filter(|b| enough(b))
            .fold(0.0f64, |m, b| m.max(rms(b, 1)));
        let size = 2f64.powi(number as i32 + FIRST_BINADE);
        let own = units * ulp(limits.dtype, size) + (limits.cut + exponent) * size;
        let allowed = BIN_FACTOR * base + own + beside + tiny(limits.dtype);
        let ratio = rms(bin, 0) / allowed;
        if ratio > errors.ratios.bin {
            errors.ratios.bin = ratio;
            fault = (ratio > 1.0).then(|| {
                format!(
                    "the {} elements of about {size:e} have an RMS error of {:e}, those of the baseline of {:e}",
                    bin.elements,
                    rms(bin, 0),
                    rms(bin, 1)
                )
            });
        }
    }
    fault
}

/// How far a lost row is off where it is not like the baseline.
fn unlike(got: &[f64], reference: &[f64], base: &[f64], dtype: Dtype) -> f64 {
    let asked = got.iter().zip(reference).zip(base).filter(|((g, r), b)| {
        let alike = b.is_finite() && (*g - *b).abs() <= 2.0 * ulp(dtype, b.abs());
        r.is_finite() && g.is_finite() && !alike
    });
    asked.fold(0.0f64, |worst, ((g, r), _)| worst.max((g - r).abs()))
}

impl Limits {
    /// What a row whose largest element is `top` may be off whatever the baseline is.
    fn floor(&self, top: f64) -> f64 {
        self.row * ulp(self.dtype, top) + self.cut * top + tiny(self.dtype)
    }
}

impl Judged {
    /// Looks at what is in doubt: `deviations` gives, for a row, the standard deviations of its elements' errors; none where that would
    /// take long.
    pub(crate) fn settle(
        self,
        got: &[f64],
        reference: &[f64],
        baseline: &[f64],
        deviations: impl Fn(Doubt) -> Option<Vec<f64>>,
    ) -> Result<Errors, Reject> {
        if let Some(fault) = self.kind.or(self.whole) {
            return Err(Reject::Wrong(fault));
        }
        let (mut errors, limits, mut missed) = (self.errors, self.limits, self.missed);
        if !self.doubts.is_empty() {
            errors.ratios.row = 0.0;
        }
        for doubt in self.doubts {
            let all = doubt.start..doubt.start + doubt.length;
            let (g, r, b) = (&got[all.clone()], &reference[all.clone()], &baseline[all]);
            let finite = r.iter().filter(|x| x.is_finite());
            let top = finite.fold(0.0f64, |m, x| m.max(x.abs()));
            let usual = limits.factor * self.usual * top + limits.floor(top);
            let known = deviations(doubt);
            if doubt.lost && known.is_none() && b.iter().all(|b| b.is_finite()) {
                let worst = unlike(g, r, b, limits.dtype);
                let base = r.iter().zip(b).filter(|(r, _)| r.is_finite());
                let base = base.fold(0.0f64, |m, (r, b)| m.max((b - r).abs()));
                if worst <= limits.factor * base + usual {
                    continue;
                }
                missed += 1;
                errors.missed += g.len() as u64;
                if missed <= self.missable {
                    continue;
                }
            }
            for at in 0..g.len() {
                let alike = b[at].is_finite()
                    && (g[at] - b[at]).abs() <= 2.0 * ulp(limits.dtype, b[at].abs());
                if !r[at].is_finite() || !g[at].is_finite() || doubt.lost && alike {
                    continue;
                }
                let own = match &known {
                    Some(deviations) => DEVIATIONS * deviations[at],
                    None if !doubt.lost => 0.0,
                    None if b[at].is_finite() => limits.factor * (b[at] - r[at]).abs(),
                    None => f64::INFINITY,
                };
                let (error, allowed) = ((g[at] - r[at]).abs(), usual + own);
                errors.ratios.row = errors.ratios.row.max(error / allowed);
                if error > allowed {
                    return Err(Reject::Wrong(format!(
                        "element {} is {:e}, the reference {:e}: {}",
                        doubt.start + at,
                        g[at],
                        r[at],
                        if doubt.lost {
                            "f32 loses everything here, and it is neither right nor what f32 gives"
                        } else {
                            "the error is too large for its row"
                        }
                    )));
                }
            }
        }
        errors.worst = errors.ratios.worst();
        Ok(errors)
    }

    /// The rows to look at again.
    pub(crate) fn doubts(&self) -> impl Iterator<Item = &Doubt> {
        self.doubts.iter()
    }

    /// Whether all is wrong but the kinds of elements.
    pub(crate) fn is_off(&self) -> bool {
        self.kind.is_none() && self.whole.is_some()
    }
}

/// The baseline where there is only expectation: off by two standard deviations, and by those of rounding to the output's dtype.
pub(crate) fn expected(reference: &[f64], deviations: &[f64], dtype: Dtype) -> Vec<f64> {
    let all = reference.iter().zip(deviations);
    all.map(|(r, d)| r + 2.0 * d.hypot(ulp(dtype, r.abs()) / 12f64.sqrt()).copysign(*r))
        .collect()
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

/// What may be lost where numbers are flushed to zero: of f32 and bf16, some times the smallest normal number, since what is flushed
/// may have been multiplied before it is seen. Subnormal numbers of f16 are normal in f32 and are not flushed.
fn tiny(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 | Dtype::Bf16 => 2f64.powi(-110),
        Dtype::F16 => 2f64.powi(-24),
    }
}

/// The largest finite number.
fn largest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(f32::MAX),
        Dtype::F16 => 65504.0,
        Dtype::Bf16 => half::bf16::MAX.to_f64(),
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the inequalities of the module documentation, at their edges.
    use super::*;

    const F16: Limits = Limits {
        dtype: Dtype::F16,
        factor: 2.0,
        row: 1.5,
        rms: 0.25,
        bias: Some(0.125),
        share: 0.125,
        bin: Some(1.0),
        cut: 0.0,
        sets_aside: true,
    };

    /// Numbers of one sign and every magnitude of four binades, and roundings of them that average out.
    fn numbers(n: usize) -> (Vec<f64>, Vec<f64>) {
        let want: Vec<f64> = (0..n)
            .map(|i| 2f64.powf(4.0 * (i as f64 * 0.618_033_988_749).fract()))
            .collect();
        let base = want.iter().map(|x| Dtype::F16.round(*x)).collect();
        (want, base)
    }

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
        // Each element is within the floor of its row; the RMS is of them all.
        let (want, base) = numbers(4000);
        let off = |units: f64| -> Vec<f64> {
            let signs = [1.0, -1.0].into_iter().cycle();
            let pairs = want.iter().zip(signs);
            pairs
                .map(|(x, sign)| x * (1.0 + sign * units / 1024.0))
                .collect()
        };
        let judge = |units| screen(&off(units), &want, &base, 4000, F16);
        assert!(judge(0.5).is_ok(), "{:?}", judge(0.5));
        assert!(judge(1.4).is_err(), "{:?}", judge(1.4));
    }

    #[test]
    fn a_factor_shows_as_bias() {
        let (want, base) = numbers(4000);
        let times = |factor: f64| -> Vec<f64> {
            want.iter().map(|x| Dtype::F16.round(x * factor)).collect()
        };
        let judge = |factor| screen(&times(factor), &want, &base, 4000, F16);
        for sign in [1.0, -1.0] {
            let fine = judge(1.0 + sign * 0.1 / 1024.0).expect("a tenth of a unit");
            assert!((fine.bias - sign * 0.1 / 1024.0).abs() < 3e-5, "{fine:?}");
            let Err(Reject::Wrong(what)) = judge(1.0 + sign * 0.3 / 1024.0) else {
                panic!("0.3 of a unit");
            };
            assert!(what.contains("too large by"), "{what}");
        }
        // What the baseline has is allowed, and so is more where few elements average.
        let third = times(1.0 + 0.3 / 1024.0);
        assert!(screen(&third, &want, &third, 4000, F16).is_ok());
        let few = screen(&third[..9], &want[..9], &base[..9], 9, F16);
        assert!(few.is_ok(), "{few:?}");
    }

    #[test]
    fn the_standard_error_of_a_bias_is_what_the_documentation_says() {
        // 0.29 ε / √n, of which 2 is seven: over many draws none comes near, and some come near a third.
        let mut worst = 0.0f64;
        for draw in 0..300u32 {
            let want: Vec<f64> = (0..400)
                .map(|i| 1.0 + (f64::from(draw * 400 + i) * 0.618_033_988_749_895).fract())
                .collect();
            let base: Vec<f64> = want.iter().map(|x| Dtype::F16.round(*x)).collect();
            let errors = screen(&base, &want, &want, 400, F16).expect("a rounding");
            worst = worst.max(errors.bias.abs() * 1024.0 * 20.0);
        }
        assert!(worst < 1.5 && worst > 0.1, "{worst}");
    }

    #[test]
    fn what_is_small_is_judged_by_itself() {
        // One large element decides what its row allows, the many small ones are gone.
        let (want, base) = numbers(400);
        let want: Vec<f64> = want.iter().map(|x| x / 4096.0).chain([1.0]).collect();
        let base: Vec<f64> = base.iter().map(|x| x / 4096.0).chain([1.0]).collect();
        assert!(screen(&base, &want, &base, 401, F16).is_ok());
        let mut gone = base.clone();
        gone[..400]
            .iter_mut()
            .filter(|x| **x < 2.0 / 4096.0)
            .for_each(|x| *x = 0.0);
        let tight = Limits {
            row: 1e3,
            rms: 1e3,
            bias: None,
            ..F16
        };
        let Err(Reject::Wrong(what)) = screen(&gone, &want, &base, 401, tight) else {
            panic!("small elements are gone");
        };
        assert!(what.contains("elements of about 2.44140625e-4"), "{what}");
        // What is below the smallest subnormal number may be gone.
        let scale = |x: &[f64]| -> Vec<f64> { x.iter().map(|x| x / 8192.0).collect() };
        let (want, gone) = (scale(&want), scale(&gone));
        let all_gone: Vec<f64> = gone.iter().map(|_| 0.0).collect();
        let tiny: Vec<f64> = want.iter().map(|x| x / 8192.0).collect();
        assert!(screen(&all_gone, &tiny, &tiny, 401, F16).is_ok());
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
            // The program defines no value.
            (nan, nan, true),
            (1.0, nan, true),
            (nan, 1.0, false),
            (inf, inf, true),
            (-inf, inf, false),
            (nan, inf, false),
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
        let errors = check(
            &[nan, 1.0, inf, 2.0],
            &[nan, 1.0, inf, nan],
            &[nan, 1.0, inf, nan],
        );
        let errors = errors.expect("they agree");
        assert_eq!(
            (errors.elements, errors.compared, errors.undefined),
            (4, 2, 2)
        );
    }

    #[test]
    fn where_f32_overflows_so_may_the_candidate() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let of = |got: f64, want: f64, base: f64| {
            let fill = |x: f64| [1.0, 2.0, 3.0, x];
            check(&fill(got), &fill(want), &fill(base)).is_ok()
        };
        assert!(of(nan, 1.0, nan) && of(inf, 1.0, nan) && of(nan, 1e9, inf));
        assert!(!of(nan, 1.0, 1.0) && !of(nan, 1e9, 1e9) && !of(2.0, 1.0, nan));
    }

    #[test]
    fn lost_rows_are_looked_at_again() {
        let want = [1.0, 2.0, 3.0, 4.0];
        let settle = |got: [f64; 4], base: [f64; 4], deviation: Option<f64>| {
            let judged = judge(&got, &want, &base, 4, F16).expect("the same lengths");
            let deviations = deviation.map(|d| want.map(|x| x * d).to_vec());
            judged.settle(&got, &want, &base, |_| deviations.clone())
        };
        let off = want.map(|x| x * 1.5);
        for base in [[0.0; 4], [f64::NAN; 4]] {
            // Right, or like the baseline.
            let right = settle(want, base, Some(1e-7)).expect("it is right");
            assert_eq!((right.lost, right.compared), (4, 4));
            assert!(settle(base, base, Some(1e-7)).is_ok());
            assert!(settle(off, base, Some(1e-7)).is_err());
            // Cancellation takes digits from everything that f32 computes.
            assert!(settle(off, base, Some(0.1)).is_ok());
        }
        // Where nobody can say, the baseline's error is what there is.
        assert!(settle(off, [0.0; 4], None).is_ok());
        assert!(settle(want.map(|x| x * 4.0), [0.0; 4], None).is_err());
    }

    #[test]
    fn rows_and_pieces_of_rows_are_judged_alike() {
        // Longer than a piece, and so many that threads share them.
        for (rows, row) in [
            (3, LONGEST + 5),
            (1, 3 * LONGEST),
            (300_000, 1),
            (70_001, 3),
        ] {
            let (want, base) = numbers(rows * row);
            let errors = screen(&base, &want, &base, row, F16).expect("it is the baseline");
            assert_eq!(errors.compared, (rows * row) as u64);
            let mut off = base.clone();
            *off.last_mut().expect("an element") += 1.0;
            let Err(Reject::Wrong(what)) = screen(&off, &want, &base, row, F16) else {
                panic!("{rows} rows of {row}");
            };
            assert!(
                what.contains(&format!("element {}", rows * row - 1)),
                "{what}"
            );
        }
    }

    /// Rows in which luck decides: the baseline gets some of them wrong, a candidate others, and nobody can say how far off they may be.
    #[test]
    fn luck_is_counted_in_rows() {
        const ROW: usize = 16;
        let reference: Vec<f64> = (0..400 * ROW)
            .map(|n| (n as f64 * 0.7).sin() + 0.01)
            .collect();
        let with = |off: &[usize], by: f64| {
            let mut values = reference.clone();
            for row in off {
                for x in &mut values[row * ROW..(row + 1) * ROW] {
                    *x = Dtype::F32.round(*x * (1.0 + by));
                }
            }
            values
        };
        let judged = |got: &[f64], baseline: &[f64]| {
            let limits = Limits::new(Dtype::F32, 0.0);
            let judged = judge(got, &reference, baseline, ROW, limits)?;
            judged.settle(got, &reference, baseline, |_| None)
        };
        let few: Vec<usize> = (0..400).step_by(40).collect();
        let baseline = with(&few, 0.15);
        let other = |n: usize| (0..n).map(|k| 40 * (k % 10) + 1 + k / 10);
        let others: Vec<usize> = other(25).collect();
        let errors = judged(&with(&others, -1.9), &baseline).expect("as many as luck gives");
        assert!(
            errors.missed > 0 && errors.lost == 10 * ROW as u64,
            "{errors:?}"
        );
        // The same rows, farther off.
        judged(&with(&few, -1.9), &baseline).expect("ten rows");
        let both = [&few[..], &others].concat();
        let many: Vec<usize> = other(60).collect();
        for (off, of) in [
            (&both, &baseline),
            (&many, &baseline),
            (&others, &reference),
        ] {
            assert!(judged(&with(off, -1.9), of).is_err(), "{} rows", off.len());
        }
        assert!(judged(&with(&few[..1], -1.9), &reference).is_err());
    }
}

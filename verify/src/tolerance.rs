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
//! How far off one careful kernel is may be luck altogether: of a few near ties all may fall right. Where an output is refused and the program rounds
//! operands that it computed, the *dithered* baseline is asked: the same with each such operand rounded to either neighbour, the nearer one more often.
//! What of these two careful kernels is farther off, element by element, is the yardstick then, and all is judged once more.
//!
//! Tensor cores cut off where they add ([Fasi et al. 2021](https://doi.org/10.7717/peerj-cs.330)), 16 products at a time: where the program contracts
//! 16-bit operands, half a unit of f32 for each such step is allowed in all four, of the output's RMS where digits may have cancelled. Outputs in f32
//! notice it, and what is small of others.
//!
//! **Integers and booleans** are right or not (`tolerance/whole.rs`): the candidate's is what the dtype stores of the reference, `t`. Of `l` elements that
//! are another in the baseline, since rounding decided which of two numbers is larger or on which side of an integer a number is, a candidate may have
//! `2l + 4√l` others, if they are at most an eighth of the rest, and none where the baseline has none. Where `|t| ≥ 2²⁴` f32 does not hold every
//! integer: there it may be off as a row of an f32 output may. Of a number of at most `tiny` that is not 0 either boolean is right.

mod careful;
mod limits;
mod spread;
#[cfg(test)]
mod tests;
mod whole;

#[cfg(test)]
pub(crate) use careful::Careful;
pub(crate) use careful::{Single, single};
pub use careful::{baseline, dithered};
pub use limits::{Limits, Roundings};
pub(crate) use limits::{longest_sum, rounds_operands};
pub(crate) use spread::deviations;

use ir::{Dtype, Reject};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

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
    /// Elements in rows of which the baseline says nothing; integers that are others in the baseline.
    pub lost: u64,
    /// Elements in rows that the candidate misses, as the baseline misses others; integers that are others than the reference's and the baseline's.
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
    if !limits.dtype.is_float() {
        return Ok(whole::judge(got, reference, baseline, limits));
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

/// Of two baselines what is farther off, element by element.
pub(crate) fn farther(reference: &[f64], one: &[f64], other: &[f64]) -> Vec<f64> {
    let all = reference.par_iter().zip(one).zip(other);
    let farther = |((r, x), y): ((&f64, &f64), &f64)| {
        if (y - r).abs() > (x - r).abs() {
            *y
        } else {
            *x
        }
    };
    all.map(farther).collect()
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
        Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => (23, -126),
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
        Dtype::F32 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::Bool => 2f64.powi(-110),
        Dtype::F16 => 2f64.powi(-24),
    }
}

/// The largest finite number.
fn largest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => f64::from(f32::MAX),
        Dtype::F16 => 65504.0,
        Dtype::Bf16 => half::bf16::MAX.to_f64(),
    }
}

//! What was compared of a tile program, and what was not.

use super::{TilingOptions, pieces};
use crate::shapes::Agreement;
use ir::Reject;
use serde::{Deserialize, Serialize};

/// Output elements that have to be decided, in one number system or the other, or half of those that were looked at in f64: a
/// program of one output element has two a draw.
pub const LEAST_DECIDED: u64 = 16;

/// What was compared. Made by [`check_tiling`](crate::check_tiling) alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TilingEvidence {
    /// Shapes on which everything agreed.
    pub shapes: usize,
    /// What was interpreted at the true extents.
    pub slices: Vec<SliceEvidence>,
    /// Outcomes of decisions (masks, bounds of loops, partial tiles, loads that may leave their buffer) that there are to meet.
    pub outcomes: u64,
    /// Those that coordinates decide and that were not met, in words.
    pub unseen: Vec<String>,
    /// Those that numbers decide and that no drawn numbers had, in words; there need not be any that have.
    pub undrawn: Vec<String>,
    /// Output elements that are equal in the field.
    pub exact: u64,
    /// Output elements on which the field is silent.
    pub exact_undecided: u64,
    /// Output elements within the error bounds in f64, those at the true extents included.
    pub real: u64,
    /// Output elements that agree within bounds that are conditional: the program compares what is equal but for rounding. Where there
    /// are no others, they speak if all of them agree.
    pub real_conditional: u64,
    /// Output elements that differ where a comparison on the way went within its error.
    pub real_different: u64,
    /// Output elements whose error bound is infinite, and those where the program is undefined.
    pub real_undecided: u64,
    /// The largest `|tile − program| / max(1, |program|)` in f64.
    pub max_error: f64,
    /// Whether the program leaves the field everywhere (an exponential of an exponential), so that only f64 speaks.
    pub leaves_field: bool,
    /// Where the draws started: with [`draws`](Self::draws) and [`work`](Self::work), all that it takes to do the same again.
    pub seed: u64,
    /// How many shapes were to be tried.
    pub draws: usize,
    /// The most work of one evaluation.
    pub work: u64,
    /// The most work at the true extents.
    pub slice_work: u64,
    /// The same where not even a few output elements took so little.
    pub most_slice_work: u64,
    /// Where the expression is the program at some extents only: what was compared with what.
    pub by_expression: Option<ByExpression>,
    /// What was compared of kernels by themselves, each with the expression; empty where the whole was interpreted at the true extents, or what they hand each
    /// other is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<PieceEvidence>,
    /// The extents of every shape.
    pub extents: Vec<String>,
    /// The primes of the fields.
    pub primes: Vec<u64>,
}

/// What was compared of one kernel by itself, or of several that hand each other parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PieceEvidence {
    /// The numbers of the kernels.
    pub kernels: Vec<usize>,
    /// What they store against the expression, as functions of what they read.
    pub found: TilingEvidence,
}

/// Output elements that were compared in f64 at the true extents, or as near to them as there was time for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceEvidence {
    /// The axes that did not have their true extents, with those that they had: no mask, bound or part depends on them.
    pub shortened: Vec<String>,
    /// The coordinates of each axis of the outputs; empty where all were looked at.
    pub coordinates: Vec<String>,
    /// Whether the program was too much work, and its expression was compared with.
    pub with_expression: bool,
    /// Output elements that agree within the error bounds.
    pub elements: u64,
}

/// The expression holds extents as numbers that are too large to interpret a tile program at, or kernels were compared with it by themselves. So the tile
/// program was compared with the expression, and the expression with the program, at these extents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByExpression {
    /// The axes that kept their extents where expression and program were compared.
    pub kept: Vec<String>,
    /// Whether numbers that count elements, as that of a mean does, counted those of the small extents, in program and expression: where extents of
    /// several sums are such numbers, keeping all of them is too much work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recounted: bool,
    /// At how many choices of the other extents.
    pub shapes: u64,
    /// Output elements that agree within the f64 error bounds.
    pub elements: u64,
}

impl From<Agreement> for ByExpression {
    fn from(found: Agreement) -> Self {
        Self {
            kept: found.kept,
            recounted: found.recounted,
            shapes: found.shapes,
            elements: found.elements,
        }
    }
}

/// Differences at thresholds that are no sign of a fault, whatever else was compared.
const FEW_DIFFERENCES: u64 = 2;
/// Difference of the largest errors, which are relative already, that another machine's mathematical functions explain.
const OTHER_MACHINE: f64 = 1e-9;

impl TilingEvidence {
    /// The options that give the same evidence again.
    pub fn options(&self) -> TilingOptions {
        TilingOptions {
            draws: self.draws,
            seed: self.seed,
            work: self.work,
            slice_work: self.slice_work,
            most_slice_work: self.most_slice_work,
        }
    }

    /// Whether every output element was compared with the program at the true extents.
    pub fn is_full_shape(&self) -> bool {
        let whole = |s: &SliceEvidence| !s.with_expression && s.coordinates.is_empty();
        self.slices.iter().any(whole)
    }

    /// What was interpreted at the true extents, in words.
    pub fn at_true_extents(&self) -> String {
        self.at_true_extents_with("the program")
    }

    fn at_true_extents_with(&self, program: &str) -> String {
        if !self.pieces.is_empty() {
            let pieces = self.pieces.iter().map(|piece| {
                let found = piece.found.at_true_extents_with("the expression");
                format!("{}: {found}", pieces::called(&piece.kernels))
            });
            let pieces: Vec<String> = pieces.collect();
            return format!("each kernel by itself, {}", pieces.join("; "));
        }
        if self.slices.is_empty() {
            return "nothing was interpreted at the true extents".to_owned();
        }
        let alike = |x: &SliceEvidence, y: &SliceEvidence| x.shortened == y.shortened;
        let parts = self.slices.chunk_by(alike).map(|slices| {
            let elements: u64 = slices.iter().map(|s| s.elements).sum();
            let what = match slices.iter().any(|s| s.coordinates.is_empty()) {
                true => "every output element".to_owned(),
                false => format!(
                    "{} slices of the outputs, {elements} elements,",
                    slices.len()
                ),
            };
            let with = match slices[0].with_expression {
                true => "its expression",
                false => program,
            };
            let place = match slices[0].shortened.as_slice() {
                [] => String::new(),
                shortened => format!(" but for {}", shortened.join(", ")),
            };
            format!("at the true extents{place}, {what} compared with {with}")
        });
        parts.collect::<Vec<String>>().join("; ")
    }

    /// Output elements that were decided, in the field or in f64.
    pub fn decided(&self) -> u64 {
        self.exact + self.real
    }

    /// Whether what was compared was so in f64 alone: all kernels together, or some by themselves.
    pub(super) fn leaves_field(&self) -> bool {
        match self.pieces.as_slice() {
            [] => self.exact == 0,
            pieces => pieces.iter().any(|piece| piece.found.leaves_field),
        }
    }

    /// Counts the outcomes of decisions in kernels by themselves, if they were looked at: then nothing of the whole was.
    pub(super) fn count_pieces(&mut self) {
        if !self.pieces.is_empty() {
            self.unseen.clear();
        }
        for PieceEvidence { found, .. } in &self.pieces {
            self.outcomes += found.outcomes;
            self.unseen.extend(found.unseen.iter().cloned());
            self.undrawn.extend(found.undrawn.iter().cloned());
        }
    }

    /// Whether enough speaks for the tile program, of what f64 says in particular.
    pub(super) fn is_decided(&self) -> bool {
        let really = self.real > 0 || (self.real_conditional > 0 && self.real_different == 0);
        let in_f64 = self.real + self.real_conditional + self.real_different + self.real_undecided;
        really && (self.decided() >= LEAST_DECIDED || 2 * self.real >= in_f64)
    }

    /// Why it is not, for a person.
    pub(super) fn too_little_decided(&self) -> String {
        let decided = self.decided();
        let asked = format!(
            "{decided} output elements could be decided, at least {LEAST_DECIDED} or half of those in f64 are asked for"
        );
        let looked_at = decided
            + self.exact_undecided
            + self.real_conditional
            + self.real_different
            + self.real_undecided;
        if looked_at == 0 {
            return format!("{asked}: to look at one takes too much work");
        }
        format!(
            "{asked}: of {looked_at} that were looked at {} are undefined, infinite or without a bound of their error, {} at a threshold, and {} outside the field",
            self.real_undecided,
            self.real_conditional + self.real_different,
            self.exact_undecided
        )
    }

    /// Refuses what differs at more than a few thresholds: there, one comparison in many goes the other way, not each.
    pub(super) fn refuse_differences(&self) -> Result<(), Reject> {
        let alike = self.real + self.real_conditional;
        if self.real_different <= FEW_DIFFERENCES + alike / 8 {
            return Ok(());
        }
        Err(Reject::Wrong(format!(
            "in f64, {} output elements differ where a comparison was within its rounding error, and {alike} agree",
            self.real_different
        )))
    }

    /// What differs from evidence that was found with the same options, if anything does.
    pub fn differs(&self, other: &Self) -> Option<String> {
        let [own, others] = [self, other].map(Self::largest_errors);
        let apart = own.iter().zip(&others).map(|(x, y)| (x - y).abs());
        let difference = apart.fold(0.0, f64::max);
        if self.without_errors() != other.without_errors() {
            let facts = |e: &Self| {
                format!(
                    "{} shapes, {} + {} elements in the field, {} + {} + {} + {} in f64",
                    e.shapes,
                    e.exact,
                    e.exact_undecided,
                    e.real,
                    e.real_conditional,
                    e.real_different,
                    e.real_undecided
                )
            };
            let (then, now) = (facts(self), facts(other));
            return Some(if then == now {
                "other shapes, fields or kernels by themselves".to_owned()
            } else {
                format!("{then} were recorded, {now} were found")
            });
        }
        (difference > OTHER_MACHINE).then(|| {
            let largest = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
            format!(
                "a largest error of {:e} was recorded, {:e} was found",
                largest(&own),
                largest(&others)
            )
        })
    }

    /// The largest error of all kernels together, and of each by itself.
    fn largest_errors(&self) -> Vec<f64> {
        let pieces = self.pieces.iter().map(|piece| piece.found.max_error);
        std::iter::once(self.max_error).chain(pieces).collect()
    }

    fn without_errors(&self) -> Self {
        let piece = |piece: &PieceEvidence| PieceEvidence {
            kernels: piece.kernels.clone(),
            found: piece.found.without_errors(),
        };
        Self {
            max_error: 0.0,
            pieces: self.pieces.iter().map(piece).collect(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    // Oracle: evidence that is changed by hand.
    use super::*;

    #[test]
    fn errors_of_another_machine_are_no_difference() {
        let of = |max_error: f64, real: u64| TilingEvidence {
            max_error,
            real,
            ..TilingEvidence::default()
        };
        let whole = |found: TilingEvidence| TilingEvidence {
            pieces: vec![PieceEvidence {
                kernels: vec![0],
                found,
            }],
            ..of(1e-14, 0)
        };
        let own = whole(of(1e-14, 20));
        assert_eq!(own.differs(&whole(of(2e-14, 20))), None);
        let error = own.differs(&whole(of(1e-3, 20))).expect("another error");
        assert!(
            error.contains("1e-14 was recorded, 1e-3 was found"),
            "{error}"
        );
        assert!(own.differs(&whole(of(1e-14, 21))).is_some());
    }
}

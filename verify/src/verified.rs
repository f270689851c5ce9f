//! The gate: nothing is emitted that is not inside a [`Verified`].

use crate::kernel::{KernelEvidence, KernelOptions, Machine, check_kernel};
use crate::tiling::{TilingEvidence, TilingOptions, check_tiling};
use ir::{Program, Reject, TileProgram};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Tile program = expression = program, on small shapes, or each of the two where it holds.
    pub tiling: TilingEvidence,
    /// Compiled candidate = program, on the true shape. Absent: simulated only.
    pub kernel: Option<KernelEvidence>,
}

impl Evidence {
    /// The names of the steps that were taken.
    pub fn steps(&self) -> Vec<&'static str> {
        let mut steps = vec!["tiling"];
        if self.kernel.is_some() {
            steps.push("kernel");
        }
        steps
    }
}

/// One claim a line.
impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.tiling;
        write!(f, "tiling: {}", t.at_true_extents())?;
        write!(
            f,
            "\ntiling: {} of {} outcomes of masks, bounds, tiles and selections were met",
            t.outcomes
                .saturating_sub((t.unseen.len() + t.undrawn.len()) as u64),
            t.outcomes,
        )?;
        for (what, list) in [
            ("not met", &t.unseen),
            ("not met by the numbers that were drawn", &t.undrawn),
        ] {
            if !list.is_empty() {
                write!(f, "; {what}: {}", list.join(", "))?;
            }
        }
        write!(
            f,
            "\ntiling: on {} small shapes and at the true extents, {} output elements equal in the field ({} undecided), {} within the f64 error bounds ({} more where the program is at a threshold, {} undecided), largest error {:.1e}; seed {}",
            t.shapes,
            t.exact,
            t.exact_undecided,
            t.real,
            t.real_conditional,
            t.real_undecided,
            t.max_error,
            t.seed
        )?;
        if t.leaves_field {
            write!(
                f,
                "\ntiling: the program leaves the field: only f64 was compared"
            )?;
        }
        if let Some(by) = &t.by_expression {
            write!(
                f,
                "\ntiling: compared with the expression, which is the program at {} and not at the small extents; there, on {} shapes, {} output elements of the expression are the program's within the f64 error bounds",
                by.kept.join(", "),
                by.shapes,
                by.elements
            )?;
        }
        match &self.kernel {
            None => write!(f, "\nkernel: not run on a GPU"),
            Some(k) => {
                let worst = k
                    .distributions
                    .iter()
                    .flat_map(|d| &d.outputs)
                    .fold(0.0f64, |w, e| w.max(e.worst));
                write!(
                    f,
                    "\nkernel: {} input distributions at full shape, largest error {:.0} % of what is allowed{}\nkernel: {} runs, {} at different addresses equal bit for bit; guards: {}",
                    k.distributions.len(),
                    worst * 100.0,
                    if k.loosened {
                        " (loosened by the user)"
                    } else {
                        ""
                    },
                    k.runs,
                    k.repeats,
                    k.guards.join(", ")
                )
            }
        }
    }
}

/// A value that passed the checks of this crate. There is no other way to make one than [`Verified::tiling`].
#[derive(Clone, Debug, PartialEq)]
pub struct Verified<T> {
    value: T,
    evidence: Evidence,
}

impl Verified<TileProgram> {
    /// Checks a tile program against its program and the expression that it was built from.
    pub fn tiling(
        program: &Program,
        expression: &Program,
        tile: TileProgram,
        options: &TilingOptions,
    ) -> Result<Self, Reject> {
        let tiling = check_tiling(program, expression, &tile, options)?;
        Ok(Self {
            value: tile,
            evidence: Evidence {
                tiling,
                kernel: None,
            },
        })
    }
}

impl<T> Verified<T> {
    /// Adds what realises the verified value: a schedule, a source, a cubin. Evidence about a compiled kernel does not carry over.
    pub fn map<U>(self, realise: impl FnOnce(T) -> U) -> Verified<U> {
        Verified {
            value: realise(self.value),
            evidence: Evidence {
                tiling: self.evidence.tiling,
                kernel: None,
            },
        }
    }

    /// Runs the compiled value on a machine and adds what was found.
    pub fn kernel(
        self,
        machine: &mut dyn Machine,
        program: &Program,
        options: &KernelOptions,
    ) -> Result<Self, Reject> {
        let kernel = check_kernel(machine, program, options)?;
        Ok(self.with_kernel(kernel))
    }

    /// Adds evidence that [`check_kernel`] gave in another process, about this value.
    pub fn with_kernel(mut self, kernel: KernelEvidence) -> Self {
        self.evidence.kernel = Some(kernel);
        self
    }

    /// The value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// What was checked.
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// The value and what was checked.
    pub fn into_parts(self) -> (T, Evidence) {
        (self.value, self.evidence)
    }
}

#[cfg(test)]
mod tests {
    // Oracle: hand-written tile programs, one right and one wrong.
    use super::*;
    use crate::fixtures;

    #[test]
    fn only_right_tile_programs_pass_the_gate() {
        let program = fixtures::row_softmax(5, 7);
        let options = TilingOptions::default();
        let good = Verified::tiling(
            &program,
            &program,
            fixtures::two_pass_softmax(5, 7),
            &options,
        );
        let good = good.expect("it is right").map(|tile| (tile, "source"));
        assert_eq!(good.evidence().steps(), ["tiling"]);
        assert!(good.evidence().to_string().contains("not run on a GPU"));
        let with = good.with_kernel(KernelEvidence::default());
        assert_eq!(with.evidence().steps(), ["tiling", "kernel"]);
        // Another value loses what was found about the compiled one.
        assert_eq!(with.map(|(tile, _)| tile).evidence().steps(), ["tiling"]);
        let (_, bad) = crate::mutants(&fixtures::two_pass_softmax(5, 7)).remove(2);
        let bad = Verified::tiling(&program, &program, bad, &options);
        assert!(matches!(bad, Err(Reject::Wrong(_))), "{bad:?}");
    }
}

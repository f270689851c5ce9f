//! The gate: nothing is emitted that is not inside a [`Verified`].

use crate::kernel::KernelEvidence;
#[cfg(doc)]
use crate::kernel::{Machine, check_kernel};
use crate::tiling::{Known, TilingEvidence, TilingOptions, check};
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
        if t.shapes == 0 && !t.pieces.is_empty() {
            write!(
                f,
                "\ntiling: on no small shape, each of which is too much work for all kernels together; seed {}",
                t.seed
            )?;
        } else {
            write!(
                f,
                "\ntiling: on {} small shapes{}, {} output elements equal in the field ({} undecided), {} within the f64 error bounds ({} more where the program is at a threshold, {} undecided), largest error {:.1e}; seed {}",
                t.shapes,
                match t.slices.is_empty() {
                    true => "",
                    false => " and at the true extents",
                },
                t.exact,
                t.exact_undecided,
                t.real,
                t.real_conditional,
                t.real_undecided,
                t.max_error,
                t.seed
            )?;
        }
        if !t.pieces.is_empty() {
            let found = || t.pieces.iter().map(|piece| &piece.found);
            let sum = |of: fn(&TilingEvidence) -> u64| found().map(of).sum::<u64>();
            write!(
                f,
                "\ntiling: of what kernels store by themselves, as the expression has it of what they read, {} elements equal in the field ({} undecided), {} within the f64 error bounds ({} undecided), largest error {:.1e}",
                sum(|t| t.exact),
                sum(|t| t.exact_undecided),
                sum(|t| t.real),
                sum(|t| t.real_undecided),
                found().fold(0.0f64, |worst, t| worst.max(t.max_error)),
            )?;
        }
        if t.leaves_field {
            write!(
                f,
                "\ntiling: {} the field: only f64 was compared there",
                match t.pieces.is_empty() {
                    true => "the program leaves",
                    false => "some kernels leave",
                }
            )?;
        }
        if let Some(by) = &t.by_expression {
            write!(
                f,
                "\ntiling: compared with the expression{}, on {} shapes, {} output elements of the expression are the program's within the f64 error bounds",
                match by.kept.as_slice() {
                    [] if by.recounted => {
                        "; at small extents, with numbers that count elements counting those there"
                            .to_owned()
                    }
                    [] => "; at small extents".to_owned(),
                    kept => format!(
                        ", which is the program at {} and not at the small extents; there",
                        kept.join(", ")
                    ),
                },
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
                )?;
                for (n, part) in k.parts.iter().enumerate().filter(|(_, p)| **p < 1.0) {
                    let percent = part * 100.0;
                    write!(
                        f,
                        "\nkernel: of output {n}, {percent:.3} % of the elements were compared, in stretches of rows from the first to the last"
                    )?;
                }
                let dithered = k.distributions.iter().filter(|d| d.dithered);
                let dithered: Vec<&str> = dithered.map(|d| d.name.as_str()).collect();
                if !dithered.is_empty() {
                    write!(
                        f,
                        "\nkernel: on {} it is farther off than one careful kernel, and not than the worse of two that round their operands differently",
                        dithered.join(", ")
                    )?;
                }
                let missed = k.distributions.iter().flat_map(|d| &d.outputs);
                match missed.map(|e| e.missed).sum() {
                    0 => Ok(()),
                    missed => write!(
                        f,
                        "\nkernel: {missed} elements are where rounding decides: in rows that are off by more than a tenth, or other integers, as elsewhere those of a careful kernel are"
                    ),
                }
            }
        }
    }
}

/// Something that is made of a tile program: the tile program itself, or its text, machine code and launches.
pub trait Realisation {
    /// The tile program that it is made of.
    fn tile(&self) -> &TileProgram;
    /// A name of what of it runs, as [`Machine::subject`] gives it; none where nothing does.
    fn subject(&self) -> Option<String>;
}

impl Realisation for TileProgram {
    fn tile(&self) -> &TileProgram {
        self
    }

    fn subject(&self) -> Option<String> {
        None
    }
}

/// A value whose tile program passed [`check_tiling`](crate::check_tiling), and, where its evidence says so, whose machine code passed [`check_kernel`].
///
/// There is no other way to make one than [`Verified::tiling`]; what is made of it has the same tile program, and what is said of machine code
/// stays with that machine code.
///
/// ```
/// # use tilewright_verify::{Evidence, KernelEvidence, KernelFindings, Verified};
/// # use ir::{Reject, TileProgram};
/// fn look(held: &Verified<TileProgram>) -> (&TileProgram, &Evidence) {
///     (held.value(), held.evidence())
/// }
/// fn runs(found: &KernelEvidence) -> (u32, &KernelFindings) {
///     (found.runs, found)
/// }
/// fn same(held: Verified<TileProgram>) -> Result<Verified<TileProgram>, Reject> {
///     held.realised(|tile| tile)
/// }
/// ```
///
/// Nobody else puts one together:
///
/// ```compile_fail,E0451
/// # use tilewright_verify::{Evidence, Verified};
/// # use ir::TileProgram;
/// fn forge(value: TileProgram, evidence: Evidence) -> Verified<TileProgram> {
///     Verified { value, evidence }
/// }
/// ```
///
/// Nobody changes what one holds, or what is said of it:
///
/// ```compile_fail,E0594
/// # use tilewright_verify::Verified;
/// # use ir::TileProgram;
/// fn rename(held: &mut Verified<TileProgram>) {
///     held.value().name = String::new();
/// }
/// ```
///
/// ```compile_fail,E0594
/// # use tilewright_verify::Verified;
/// # use ir::TileProgram;
/// fn boast(held: &mut Verified<TileProgram>) {
///     held.evidence().tiling.exact = 1 << 40;
/// }
/// ```
///
/// And nobody writes evidence of a kernel that did not run, or adds to what ran:
///
/// ```compile_fail,E0423
/// # use tilewright_verify::{KernelEvidence, KernelFindings};
/// fn invent(findings: KernelFindings) -> KernelEvidence {
///     KernelEvidence(findings)
/// }
/// ```
///
/// ```compile_fail,E0594
/// # use tilewright_verify::KernelEvidence;
/// fn boast(mut found: KernelEvidence) -> KernelEvidence {
///     found.runs = 1000;
///     found
/// }
/// ```
///
/// Values in which nothing says which tile program they are made of cannot be verified ones:
///
/// ```compile_fail,E0277
/// # use tilewright_verify::Verified;
/// # use ir::TileProgram;
/// fn text(held: Verified<TileProgram>) -> Option<Verified<String>> {
///     held.realised(|tile| tile.to_string()).ok()
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Verified<T> {
    value: T,
    evidence: Evidence,
}

impl Verified<TileProgram> {
    /// Checks a tile program against its program and the expression that it was built from, by what is `known` of its kernels.
    ///
    /// # Errors
    /// As of [`check_tiling`](crate::check_tiling).
    pub fn tiling(
        program: &Program,
        expression: &Program,
        tile: TileProgram,
        options: &TilingOptions,
        known: &Known,
    ) -> Result<Self, Reject> {
        let tiling = check(program, expression, &tile, options, known)?;
        Ok(Self {
            value: tile,
            evidence: Evidence {
                tiling,
                kernel: None,
            },
        })
    }
}

impl<T: Realisation> Verified<T> {
    /// Adds what realises the verified value: a schedule, a source, a cubin, a time. What was found of machine code carries over if it is
    /// the same.
    ///
    /// # Errors
    /// What is made has another tile program.
    pub fn realised<U: Realisation>(
        self,
        realise: impl FnOnce(T) -> U,
    ) -> Result<Verified<U>, Reject> {
        let tile = self.value.tile().clone();
        let value = realise(self.value);
        if *value.tile() != tile {
            return Err(Reject::Fault(
                "what was made of a verified tile program has another one".to_owned(),
            ));
        }
        let subject = value.subject();
        let same = |k: &KernelEvidence| Some(&k.subject) == subject.as_ref();
        Ok(Verified {
            evidence: Evidence {
                tiling: self.evidence.tiling,
                kernel: self.evidence.kernel.filter(same),
            },
            value,
        })
    }

    /// Adds what [`check_kernel`] found of this value, here or in another process.
    ///
    /// # Errors
    /// Evidence of other machine code.
    pub fn ran(mut self, kernel: KernelEvidence) -> Result<Self, Reject> {
        let subject = self.value.subject();
        if subject.as_ref() != Some(&kernel.subject) {
            return Err(Reject::Fault(format!(
                "evidence of `{}` was given for `{}`",
                kernel.subject,
                subject.as_deref().unwrap_or("nothing that runs")
            )));
        }
        self.evidence.kernel = Some(kernel);
        Ok(self)
    }
}

impl<T> Verified<T> {
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

    #[derive(Clone, Debug)]
    struct Compiled {
        tile: TileProgram,
        code: &'static str,
        us: f64,
    }

    impl Realisation for Compiled {
        fn tile(&self) -> &TileProgram {
            &self.tile
        }

        fn subject(&self) -> Option<String> {
            Some(self.code.to_owned())
        }
    }

    impl KernelEvidence {
        fn of_another_process(subject: &str) -> Self {
            let findings = crate::KernelFindings {
                subject: subject.to_owned(),
                ..Default::default()
            };
            let text = serde_json::to_string(&findings).expect("JSON");
            serde_json::from_str(&text).expect("evidence")
        }
    }

    #[test]
    fn only_right_tile_programs_pass_the_gate() {
        let program = fixtures::row_softmax(5, 7);
        let options = TilingOptions::default();
        let good = Verified::tiling(
            &program,
            &program,
            fixtures::two_pass_softmax(5, 7),
            &options,
            &Known::default(),
        );
        let good = good.expect("it is right");
        assert_eq!(good.evidence().steps(), ["tiling"]);
        assert!(good.evidence().to_string().contains("not run on a GPU"));
        let compiled = |code: &'static str| {
            move |tile: TileProgram| Compiled {
                tile,
                code,
                us: 0.0,
            }
        };
        let one = good.clone().realised(compiled("one")).expect("its tile");
        let of = |subject: &str| KernelEvidence::of_another_process(subject);
        let with = one.clone().ran(of("one")).expect("its own");
        assert_eq!(with.evidence().steps(), ["tiling", "kernel"]);
        // Evidence of something else, and of what does not run.
        assert!(matches!(one.ran(of("two")), Err(Reject::Fault(_))));
        assert!(matches!(good.clone().ran(of("one")), Err(Reject::Fault(_))));
        // What is said of it besides changes nothing; other machine code loses what was found of the first.
        let timed = with.clone().realised(|c| Compiled { us: 3.0, ..c });
        let timed = timed.expect("its tile");
        assert_eq!(timed.value().us, 3.0);
        assert_eq!(timed.evidence().steps(), ["tiling", "kernel"]);
        let other = with.clone().realised(|c| Compiled { code: "two", ..c });
        assert_eq!(other.expect("its tile").evidence().steps(), ["tiling"]);
        let another = fixtures::block_group_softmax(5, 7);
        let swapped = with.realised(|c| Compiled { tile: another, ..c });
        assert!(matches!(swapped, Err(Reject::Fault(_))), "{swapped:?}");
        let (_, bad) = crate::mutants(&fixtures::two_pass_softmax(5, 7)).remove(2);
        let bad = Verified::tiling(&program, &program, bad, &options, &Known::default());
        assert!(matches!(bad, Err(Reject::Wrong(_))), "{bad:?}");
    }
}

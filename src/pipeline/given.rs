//! A schedule that somebody gives: it takes the place of those that the search proposes, and has to pass what they have to pass.

use super::history::Whole;
use super::made::with_axes_of;
use super::report::{self, Outcome};
use super::{Candidate, Point, Walk, compile::Compiler, kernels};
use ir::{Program, Reject, Schedule, ScheduleText, Target, TileProgram};
use search::tiling::enumerate::Candidates;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use verify::{Keeper, Verified};

/// A schedule to try instead of the search's.
#[derive(Clone, Debug)]
pub struct Given {
    /// What is tried.
    pub schedule: ScheduleText,
    /// The only tile program that it is tried on, with the expression that it computes; none for those that the search finds.
    pub tiling: Option<(Program, TileProgram)>,
}

/// What a search begins with, in the stead of the plainest tile program: what another one found.
#[derive(Clone, Debug)]
pub struct Seed {
    /// The expression that it computes.
    pub expression: Program,
    /// The tile program.
    pub tile: TileProgram,
    /// The schedule that its kernels are tried under first.
    pub schedule: Schedule,
}

/// How far a tile program got under a schedule that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Got {
    /// The schedule speaks of other kernels or values.
    Named,
    /// It cannot be lowered.
    Lowered,
    /// It is wrong, or cannot be compiled.
    Looked,
}

/// The best tile program, by the model, of those with which a schedule that was given got furthest.
#[derive(Clone, Debug)]
pub struct Furthest {
    /// How it was made, for people.
    pub plan: String,
    /// What the model said of it, in microseconds.
    pub predicted_us: f64,
    /// Why it was refused.
    pub reject: Reject,
    /// How many others were, by reason.
    pub others: BTreeMap<String, u64>,
}

impl fmt::Display for Furthest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<String> = (self.others.iter())
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        let (plan, us, reject) = (self.plan.trim_end(), self.predicted_us, &self.reject);
        if others.is_empty() {
            write!(f, "{reject}\nof the tile program\n{plan}")
        } else {
            write!(
                f,
                "{reject}\nof the tile program\n{plan}\nwhich is the best by the model, with {us:.1} us, of those for which it got furthest; others were refused: {}",
                others.join(", ")
            )
        }
    }
}

/// What was refused under a schedule that was given.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: BTreeMap<String, u64>,
    furthest: Option<(Got, Furthest)>,
}

impl Refusals {
    fn add(&mut self, point: &Point, got: Got, reject: &Reject) {
        *self.counts.entry(reject.reason().to_owned()).or_default() += 1;
        let us = point.predicted.us;
        let further = |(before, than): &(Got, Furthest)| {
            got > *before || (got == *before && us < than.predicted_us)
        };
        if self.furthest.as_ref().is_none_or(further) {
            let furthest = Furthest {
                plan: point.plan_text.clone(),
                predicted_us: us,
                reject: reject.clone(),
                others: BTreeMap::new(),
            };
            self.furthest = Some((got, furthest));
        }
    }

    /// The one that got furthest, and the counts of the others.
    pub(super) fn furthest(&self) -> Option<Furthest> {
        let (_, mut furthest) = self.furthest.clone()?;
        furthest.others = self.counts.clone();
        if let Some(own) = furthest.others.get_mut(furthest.reject.reason()) {
            *own -= 1;
        }
        furthest.others.retain(|_, count| *count > 0);
        Some(furthest)
    }
}

/// The schedule that a text says of a tile program whose kernels can be lowered under it.
fn schedule_of(
    text: &ScheduleText,
    tile: &TileProgram,
    target: &Target,
) -> Result<Schedule, (Got, Reject)> {
    let other = |faults: ir::Diagnostics| (Got::Named, Reject::OtherTiling(faults.to_string()));
    let schedule = text.of(tile).map_err(other)?;
    for (number, kernel) in schedule.kernels.iter().enumerate() {
        // Each alone, so that it is known which one is to blame.
        let one = Schedule {
            kernels: vec![kernel.clone()],
        };
        codegen::lower(&tile.alone(number), &one, target).map_err(|reject| {
            let refused = Reject::InKernel {
                kernel: number,
                reject: Box::new(reject),
            };
            (Got::Lowered, refused)
        })?;
    }
    Ok(schedule)
}

/// Whether two programs take and give the same tensors.
fn alike(program: &Program, expression: &Program) -> bool {
    let outputs = |p: &Program| -> Vec<(ir::Dtype, Vec<ir::Dim>)> {
        let all = p.outputs.iter();
        all.map(|o| (o.dtype, o.dims.clone())).collect()
    };
    let parameters = |p: &Program| -> Vec<(String, ir::Dtype, Vec<ir::Dim>)> {
        let all = p.parameters();
        all.map(|(_, name, dtype, dims)| (name.to_owned(), dtype, dims.to_vec()))
            .collect()
    };
    program.axes == expression.axes
        && parameters(program) == parameters(expression)
        && outputs(program) == outputs(expression)
}

impl Walk<'_, '_> {
    /// The only tile program that is to be looked at, if there is one.
    pub(super) fn given_tiling(&self) -> Option<Result<Point, Reject>> {
        let (expression, tile) = self.options.given.as_ref()?.tiling.as_ref()?;
        Some(self.point_of(expression, tile))
    }

    /// The tile program that the search begins with, whose kernels are tried under its schedule first; equal ones under the last that it has of them.
    pub(super) fn seed(&mut self) -> Option<Result<Point, Reject>> {
        let seed = self.options.seed_from.as_ref()?;
        let point = self.point_of(&seed.expression, &seed.tile);
        if point.is_ok() {
            let kernels = kernels::alone(&seed.tile).into_iter();
            for (kernel, schedule) in kernels.zip(&seed.schedule.kernels) {
                let target = &self.options.target;
                if self.options.wishes.admit(schedule, false) {
                    self.kernels.begin_with(kernel, schedule.clone(), target);
                }
            }
        }
        Some(point)
    }

    /// A tile program that somebody gave, with the expression that it is said to compute.
    fn point_of(&self, expression: &Program, tile: &TileProgram) -> Result<Point, Reject> {
        let program = with_axes_of(self.starts, expression);
        if !alike(program, expression) {
            let what = "the expression has other axes, parameters or outputs than the program";
            return Err(Reject::Wrong(what.to_owned()));
        }
        // As of each form that the search finds.
        let mut keeper = Keeper::new(program, self.options.seed);
        let expression = Arc::new(expression.clone());
        match keeper.keeps(&expression) {
            Ok(_) => Ok(Point::of(expression, tile.clone(), &self.options.target)),
            Err(refused) => Err(refused.reject),
        }
    }

    /// Points under the schedule that was given, interpreted and compiled. A kernel that cannot be lowered under it is refused: no later
    /// point has it.
    pub(super) fn as_given(
        &mut self,
        given: &Given,
        points: &[Point],
        source: &mut Option<Candidates>,
        compiler: &mut Compiler,
    ) -> Vec<Verified<Candidate>> {
        let mut scheduled = Vec::new();
        for point in points {
            match schedule_of(&given.schedule, &point.tile, &self.options.target) {
                Ok(schedule) => scheduled.push((point.clone(), schedule)),
                Err((got, reject)) => {
                    self.refuse(point, None, got, &reject);
                    if let (Some(source), Reject::InKernel { kernel, .. }) = (&mut *source, &reject)
                    {
                        source.refuse(point, &[*kernel], &reject);
                    }
                }
            }
        }
        self.made(scheduled, compiler)
    }

    /// Says and counts that a point is no candidate.
    pub(super) fn refuse(
        &mut self,
        point: &Point,
        schedule: Option<&Schedule>,
        got: Got,
        reject: &Reject,
    ) {
        report::point(point, schedule).becomes(Outcome::Refused(reject));
        if let Some(schedule) = schedule {
            let whole = Whole::of_point(point, schedule, &self.options.target);
            self.notebook.saw(whole.refused(reject));
        }
        self.tally.reject(reject);
        self.refusals.add(point, got, reject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_those_that_got_furthest_says_why() {
        let text = "program p\naxis i = 4\nx = parameter f32 [i]\nreturn f32 [i] exp(x)\n"
            .parse::<Program>();
        let program = Arc::new(text.expect("a program"));
        let target = crate::target("h200").expect("a target");
        let plain = search::tiling::enumerate::plainest(&program, &target).next();
        let plain = plain.expect("one").expect("a tile program");
        let mut refusals = Refusals::default();
        assert!(refusals.furthest().is_none());
        for (got, us, reject) in [
            (Got::Named, 1.0, Reject::OtherTiling("a".to_owned())),
            (Got::Lowered, 5.0, Reject::Schedule("b".to_owned())),
            (Got::Lowered, 4.0, Reject::Schedule("c".to_owned())),
            (Got::Lowered, 4.0, Reject::Schedule("d".to_owned())),
            (Got::Named, 2.0, Reject::OtherTiling("e".to_owned())),
        ] {
            let mut point = plain.clone();
            point.predicted.us = us;
            refusals.add(&point, got, &reject);
        }
        let furthest = refusals.furthest().expect("one");
        assert_eq!(furthest.reject, Reject::Schedule("c".to_owned()));
        let shown = furthest.to_string();
        let ends = "which is the best by the model, with 4.0 us, of those for which it got furthest; others were refused: other_tiling 2, schedule 2";
        assert!(
            shown.starts_with("schedule: c\nof the tile program\nkernel 0: ")
                && shown.ends_with(ends),
            "{shown}"
        );
    }
}

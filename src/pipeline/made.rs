//! From points to candidates: schedules of their kernels, interpreted, lowered and compiled.

use super::compile::Compiler;
use super::given::Got;
use super::held::{LITTLE, MORE};
use super::report::{self, Outcome};
use super::{Candidate, Compilation, Point, Walk, kernels};
use codegen::CudaProgram;
use device::nvrtc::Compiled;
use ir::{Program, Reject, Schedule, Target, TileProgram};
use rayon::prelude::*;
use search::cost::{Cost, cost};
use search::tiling::enumerate::Candidates;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use verify::tiling::Known;
use verify::{TilingOptions, Verified};

/// The program that has the axes of one of its expressions.
pub(super) fn with_axes_of<'p>(starts: &'p [Program], expression: &Program) -> &'p Program {
    let same = starts.iter().find(|p| p.axes == expression.axes);
    same.unwrap_or(&starts[0])
}

/// A point under a schedule of its kernels.
pub(super) type Pick = (Point, Schedule);

/// One that was interpreted and is right, with its text.
pub(super) struct Lowered {
    point: Point,
    tile: Verified<TileProgram>,
    schedule: Schedule,
    pub(super) cuda: CudaProgram,
    /// What the model says of it.
    predicted: Cost,
}

impl Lowered {
    /// It is no candidate, and nothing is wrong with it.
    pub(super) fn passed_over(&self, why: &'static str) {
        report::point(&self.point, Some(&self.schedule)).becomes(Outcome::PassedOver(why));
    }
}

/// One that is none: how far it came, and why.
pub(super) struct Fallen(Pick, Got, Reject);

/// What points are interpreted against, and which target they are lowered for.
pub(super) struct Checker<'a> {
    starts: &'a [Program],
    checks: TilingOptions,
    target: &'a Target,
    known: Arc<Known>,
}

impl Checker<'_> {
    /// Interprets a point and lowers it.
    pub(super) fn look(&self, (point, schedule): Pick) -> Result<Lowered, Box<Fallen>> {
        let fallen = |pick, got, reject| Err(Box::new(Fallen(pick, got, reject)));
        let expression = &point.expression;
        let tile = point.tile.clone();
        let program = with_axes_of(self.starts, expression);
        let tile = match Verified::tiling(program, expression, tile, &self.checks, &self.known) {
            Ok(tile) => tile,
            Err(reject) => return fallen((point, schedule), Got::Looked, reject),
        };
        match codegen::lower(&point.tile, &schedule, self.target) {
            Ok(cuda) => Ok(Lowered {
                predicted: cost(&point.tile, Some(&schedule), self.target),
                point,
                tile,
                schedule,
                cuda,
            }),
            Err(reject) => fallen((point, schedule), Got::Lowered, reject),
        }
    }
}

impl<'a> Walk<'a, '_> {
    /// Points under the best known schedules of their kernels, or under the one that was given, interpreted and compiled. Kernels that
    /// cannot be had are refused: no later point has them.
    pub(super) fn ready(
        &mut self,
        points: &[Point],
        source: &mut Option<Candidates>,
        compiler: &mut Compiler,
    ) -> Vec<Verified<Candidate>> {
        if let Some(given) = &self.options.given {
            return self.as_given(given, points, source, compiler);
        }
        let kernels: Vec<Vec<_>> = points.iter().map(|p| kernels::alone(&p.tile)).collect();
        let all = kernels.concat();
        self.kernels
            .settle(&all, 1, &self.options.target, compiler, &mut self.tally);
        let mut scheduled = Vec::new();
        for (point, kernels) in points.iter().zip(&kernels) {
            match self.kernels.schedule(kernels) {
                Ok(schedule) => scheduled.push((point.clone(), schedule)),
                Err((kernel, reject)) => {
                    report::point(point, None).becomes(Outcome::Refused(&reject));
                    self.tally.reject(&reject);
                    if let Some(source) = source {
                        source.refuse(point, &[kernel], &reject);
                    }
                }
            }
        }
        self.made(scheduled, compiler)
    }

    /// Points under given schedules, interpreted, lowered and compiled.
    pub(super) fn made(
        &mut self,
        picks: Vec<Pick>,
        compiler: &mut Compiler,
    ) -> Vec<Verified<Candidate>> {
        let checker = self.checker();
        let looked: Vec<_> = picks.into_par_iter().map(|p| checker.look(p)).collect();
        tracing::debug!(points = looked.len(), "interpreted");
        let waiting = looked.into_iter().filter_map(|l| self.looked(l));
        let waiting: Vec<Lowered> = waiting.collect();
        let all = waiting.iter().map(|lowered| &lowered.cuda.units[..]);
        let compilations = self.compile(&all.collect::<Vec<_>>(), compiler);
        let ready = waiting.into_iter().zip(compilations);
        ready.filter_map(|(l, c)| self.compiled(l, c)).collect()
    }

    /// What compiling the units of candidates gives; those that are compiled already are not compiled again.
    fn compile(
        &mut self,
        candidates: &[&[String]],
        compiler: &mut Compiler,
    ) -> Vec<Result<Option<Compilation>, Reject>> {
        // A kernel alone has the unit of its tile program.
        let known: Vec<_> = candidates
            .iter()
            .map(|c| self.kernels.compiled(c))
            .collect();
        let unknown = candidates.iter().zip(&known).filter(|(_, k)| k.is_none());
        let units = unknown.flat_map(|(units, _)| units.iter());
        let units = units.filter(|unit| self.kernels.unit(unit).is_none());
        let units: BTreeSet<&str> = units.map(String::as_str).collect();
        let units: Vec<&str> = units.into_iter().collect();
        let mut refused = BTreeMap::new();
        for (unit, result) in units.iter().zip(compiler.compile(&units)) {
            match result {
                Ok(compiled) => compiled
                    .into_iter()
                    .for_each(|c| self.kernels.keep_unit(unit, c)),
                Err(reject) => drop(refused.insert(*unit, reject)),
            }
        }
        let of = |(units, known): (&&[String], Option<Compilation>)| {
            if known.is_some() {
                return Ok(known);
            }
            if let Some(reject) = units.iter().find_map(|unit| refused.get(unit.as_str())) {
                return Err(reject.clone());
            }
            let all = units.iter().map(|unit| self.kernels.unit(unit).cloned());
            let all: Option<Vec<Compiled>> = all.collect();
            Ok(all.map(|all| Compilation::new(all, compiler.version())))
        };
        candidates.iter().zip(known).map(of).collect()
    }

    /// What looks at points: it needs nothing of the search.
    pub(super) fn checker(&self) -> Checker<'a> {
        Checker {
            starts: self.starts,
            checks: self.checks(LITTLE, LITTLE * MORE),
            target: &self.options.target,
            known: Arc::clone(&self.known),
        }
    }

    /// A point was looked at: what is right goes on, but for a text that was tried.
    pub(super) fn looked(&mut self, looked: Result<Lowered, Box<Fallen>>) -> Option<Lowered> {
        match looked {
            // What was found of kernels alone may lead to the same again.
            Ok(lowered) => match self.tried.insert(kernels::hash(&lowered.cuda.units)) {
                true => Some(lowered),
                false => {
                    lowered.passed_over("one before it has the same text");
                    None
                }
            },
            Err(fallen) => {
                let Fallen((point, schedule), got, reject) = *fallen;
                self.refuse(&point, Some(&schedule), got, &reject);
                None
            }
        }
    }

    /// The candidate that was lowered, with what compiling it gave.
    pub(super) fn compiled(
        &mut self,
        lowered: Lowered,
        compilation: Result<Option<Compilation>, Reject>,
    ) -> Option<Verified<Candidate>> {
        let Lowered {
            point,
            tile,
            schedule,
            cuda,
            predicted,
        } = lowered;
        let candidate = match compilation {
            Ok(compilation) => tile.realised(|tile| Candidate {
                expression: point.expression.clone(),
                tile,
                plan: point.plan_text.clone(),
                predicted,
                offered: point.predicted.us,
                schedule,
                cuda,
                compilation,
                measured: None,
                figure: None,
            }),
            Err(reject) => {
                self.refuse(&point, Some(&schedule), Got::Looked, &reject);
                return None;
            }
        };
        match candidate {
            Ok(candidate) => {
                self.realised = true;
                Some(candidate)
            }
            Err(reject) => {
                self.tally.reject(&reject);
                None
            }
        }
    }
}

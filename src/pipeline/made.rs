//! From points to candidates: schedules of their kernels, interpreted, lowered and compiled.

use super::compile::Compiler;
use super::given::Got;
use super::held::{LITTLE, MORE};
use super::report::{self, Outcome};
use super::{Candidate, Compilation, Point, Walk, as_read, kernels};
use codegen::CudaProgram;
use ir::{Reject, Schedule, TileProgram};
use rayon::prelude::*;
use search::tiling::enumerate::Candidates;
use verify::Verified;

/// A tile program that was interpreted and is right, with the text of its kernels under a schedule.
pub(super) struct Lowered {
    /// Its place among those that it came with.
    pub(super) point: usize,
    pub(super) tile: Verified<TileProgram>,
    pub(super) schedule: Schedule,
    pub(super) cuda: CudaProgram,
}

impl Walk<'_, '_> {
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
                Ok(schedule) => scheduled.push((point, vec![schedule])),
                Err((kernel, reject)) => {
                    report::point(point, None).becomes(Outcome::Refused(&reject));
                    self.tally.reject(&reject);
                    if let Some(source) = source {
                        source.refuse(point, kernel, &reject);
                    }
                }
            }
        }
        self.made(&scheduled, compiler)
    }

    /// Points under given schedules, interpreted, lowered and compiled.
    pub(super) fn made(
        &mut self,
        points: &[(&Point, Vec<Schedule>)],
        compiler: &mut Compiler,
    ) -> Vec<Verified<Candidate>> {
        let waiting = self.lowered(points);
        // A kernel alone has the text of its tile program: it is compiled already.
        let known: Vec<Option<Compilation>> = waiting
            .iter()
            .map(|lowered| self.kernels.compiled(&lowered.cuda.source))
            .collect();
        let sources: Vec<&str> = waiting
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none())
            .map(|(lowered, _)| lowered.cuda.source.as_str())
            .collect();
        let mut compiled = compiler.compile(&sources).into_iter();
        let mut ready = Vec::new();
        for (lowered, known) in waiting.into_iter().zip(known) {
            let compilation = match known {
                Some(known) => Some(Ok(Some(known))),
                None => compiled.next(),
            };
            let point = points[lowered.point].0;
            ready.extend(compilation.and_then(|c| self.compiled(point, lowered, c)));
        }
        ready
    }

    /// Points under given schedules, interpreted and lowered; what has a text that was tried is left out.
    pub(super) fn lowered(&mut self, points: &[(&Point, Vec<Schedule>)]) -> Vec<Lowered> {
        let checks = self.checks(LITTLE, LITTLE * MORE);
        // As whoever replays it finds them.
        let program = as_read(self.program);
        let checked: Vec<Result<Verified<TileProgram>, Reject>> = points
            .par_iter()
            .map(|(point, _)| {
                let expression = as_read(&point.expression);
                Verified::tiling(&program, &expression, point.tile.clone(), &checks)
            })
            .collect();
        tracing::debug!(points = points.len(), "interpreted");
        let mut lowered = Vec::new();
        for (at, ((point, schedules), checked)) in points.iter().zip(checked).enumerate() {
            let tile = match checked {
                Ok(tile) => tile,
                Err(reject) => {
                    self.refuse(point, None, Got::Looked, &reject);
                    continue;
                }
            };
            for schedule in schedules {
                match codegen::lower(&point.tile, schedule, &self.options.target) {
                    // What was found of kernels alone may lead to the same again.
                    Ok(cuda) if !self.tried.insert(blake3::hash(cuda.source.as_bytes())) => {
                        let why = "one before it has the same text";
                        report::point(point, Some(schedule)).becomes(Outcome::PassedOver(why));
                    }
                    Ok(cuda) => lowered.push(Lowered {
                        point: at,
                        tile: tile.clone(),
                        schedule: schedule.clone(),
                        cuda,
                    }),
                    Err(reject) => self.refuse(point, Some(schedule), Got::Lowered, &reject),
                }
            }
        }
        lowered
    }

    /// The candidate that was lowered, with what compiling it gave.
    pub(super) fn compiled(
        &mut self,
        point: &Point,
        lowered: Lowered,
        compilation: Result<Option<Compilation>, Reject>,
    ) -> Option<Verified<Candidate>> {
        let Lowered {
            tile,
            schedule,
            cuda,
            ..
        } = lowered;
        let candidate = match compilation {
            Ok(compilation) => tile.realised(|tile| Candidate {
                expression: point.expression.clone(),
                tile,
                plan: point.plan_text.clone(),
                predicted: search::cost::cost(&point.tile, Some(&schedule), &self.options.target),
                offered: point.predicted.us,
                schedule,
                cuda,
                compilation,
                measured: None,
                figure: None,
            }),
            Err(reject) => {
                self.refuse(point, Some(&schedule), Got::Looked, &reject);
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

//! What lines of a schedule are worth on a GPU: an artifact's kernels, and those under its schedule without one line, timed in turns.
//!
//! All of an artifact's kernels are timed together, as users run them: a line that is worth a tenth of one of two equal kernels is worth a twentieth
//! here. What is timed was compiled by one compiler, and gave on one kind of input what the program gives: the check by which a search screens.

use super::{Measured, Ratio, Times, Transformation};
use crate::pipeline::{again, compile};
use crate::replay::Tools;
use crate::worker::{Care, GpuWorker, Job, Setting, WorkerFailure};
use codegen::CudaProgram;
use device::nvrtc::CompileError;
use device::pool::CompilePool;
use device::timing::{Measurement, Timing};
use ir::{Program, Reject, Schedule, Target, TileProgram};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use verify::check_time;

/// Kernels without a line that are timed in turns with the artifact's own: as many contenders as a search's finals have.
const AT_ONCE: usize = 7;
/// What so many may take together: one run of each, or a second one where the clock changed during the first.
const LONG: Duration = Duration::from_secs(40);

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The program that the kernels compute.
    pub program: &'a Program,
    /// Their tile program.
    pub tile: &'a TileProgram,
    /// Its schedule.
    pub schedule: &'a Schedule,
    /// The target, of whose kind the GPU is.
    pub target: &'a Target,
    /// The seed of the drawn inputs.
    pub seed: u64,
}

/// Why nothing was measured.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MeasureError {
    /// There is no compiler.
    #[error("nothing can be compiled: {0}")]
    Compiler(CompileError),
    /// The GPU cannot be used.
    #[error(transparent)]
    Gpu(#[from] WorkerFailure),
    /// The artifact's own kernels are refused.
    #[error("the artifact's own kernels: {0}")]
    Own(Reject),
    /// The GPU times nothing.
    #[error("nothing can be timed: {0}")]
    Timing(Reject),
}

/// Times every kernel that there is without a line, and writes into the transformations what came of it. Gives the time of the artifact's own kernels,
/// beside the first of the others.
///
/// # Errors
/// Where the artifact's own kernels cannot be timed, for whatever reason.
pub fn measure(
    subject: Subject<'_>,
    found: &mut [Transformation],
    tools: &Tools<'_>,
    locks: Option<&Path>,
) -> Result<Measurement, MeasureError> {
    let Subject {
        program,
        tile,
        schedule,
        target,
        seed,
    } = subject;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Without the cache: what is kept there is no compiler's word.
    let mut pool = compile::pool(tools.worker, tools.nvrtc, cores, None, Arc::default());
    pool.version(&target.arch).map_err(MeasureError::Compiler)?;
    let mut compiler = Compiler {
        pool: &mut pool,
        tile,
        target,
    };
    let own = compiler.jobs(&[schedule]).pop();
    let own = own.unwrap_or_else(missing).map_err(MeasureError::Own)?;
    let mut worker = GpuWorker::new(tools.worker);
    again::lock(&mut worker, locks);
    let setting = Setting {
        program: program.clone(),
        seed,
        arch: target.arch.clone(),
        nvrtc: tools.nvrtc.clone(),
    };
    worker.load(setting, false)?;
    worker.screen(own.clone()).map_err(MeasureError::Own)?;
    let floor_us = search::cost::floor::floor_us(tile, target);
    let mut clock = Clock {
        worker,
        own,
        floor_us,
    };
    let (mut lines, schedules): (Vec<&mut Transformation>, Vec<Schedule>) = (found.iter_mut())
        .filter_map(|line| line.rest.clone().map(|rest| (line, rest)))
        .unzip();
    let jobs = compiler.jobs(&schedules.iter().collect::<Vec<_>>());
    let mut sound = Vec::new();
    for (at, job) in jobs.into_iter().enumerate() {
        match job.and_then(|job| clock.worker.screen(job.clone()).map(|()| job)) {
            Ok(job) => sound.push((at, job)),
            Err(reject) => lines[at].measured = Some(Measured::Refused(reject.to_string())),
        }
    }
    let most = LONG * sound.len().div_ceil(AT_ONCE) as u32;
    if most > LONG {
        let (lines, minutes) = (sound.len(), most.as_secs_f64() / 60.0);
        tracing::warn!("{lines} lines are timed, which takes up to {minutes:.1} minutes");
    }
    let mut first = None;
    for batch in sound.chunks(AT_ONCE) {
        let jobs: Vec<Job> = batch.iter().map(|(_, job)| job.clone()).collect();
        let (own, results) = clock.beside(&jobs)?;
        first.get_or_insert(own);
        for ((at, _), result) in batch.iter().zip(results) {
            lines[*at].measured = Some(match result {
                Ok(times) => Measured::Takes(Box::new(times)),
                Err(reject) => Measured::Refused(reject.to_string()),
            });
        }
    }
    first.map_or_else(|| clock.alone(), Ok)
}

/// What compiles kernels of a tile program.
struct Compiler<'a> {
    pool: &'a mut CompilePool,
    tile: &'a TileProgram,
    target: &'a Target,
}

impl Compiler<'_> {
    /// What runs under each schedule, unless it cannot be lowered, does not compile, spills, keeps a stack or serialises.
    fn jobs(&mut self, schedules: &[&Schedule]) -> Vec<Result<Job, Reject>> {
        let lowered: Vec<Result<CudaProgram, Reject>> = (schedules.iter())
            .map(|schedule| codegen::lower(self.tile, schedule, self.target))
            .collect();
        let units = lowered.iter().flatten().map(|cuda| cuda.units.as_slice());
        let units: Vec<&[String]> = units.collect();
        let mut compiled = (self.pool.compile_units(&units, &self.target.arch)).into_iter();
        let mut job = |cuda: CudaProgram| {
            let compiled = compiled.next().ok_or_else(none)?;
            let sound = compiled.into_iter().map(compile::judged);
            let cubins = sound.map(|unit| unit.map(|u| u.cubin));
            let cubins = cubins.collect::<Result<_, _>>()?;
            Ok(Job::new(self.tile, &cuda.launches, cubins))
        };
        let jobs = lowered.into_iter().map(|cuda| cuda.and_then(&mut job));
        jobs.collect()
    }
}

/// What times the artifact's own kernels beside others.
struct Clock {
    worker: GpuWorker,
    own: Job,
    /// No time can be less.
    floor_us: f64,
}

impl Clock {
    /// The time of the artifact's own kernels, and of each other beside it. Where some cannot be timed together each is timed alone beside the
    /// artifact's own.
    fn beside(
        &mut self,
        others: &[Job],
    ) -> Result<(Measurement, Vec<Result<Times, Reject>>), MeasureError> {
        if let Ok((own, times)) = self.run(others) {
            let others = times.into_iter().map(|time| self.times(&own, time));
            return Ok((own.clone(), others.collect()));
        }
        // One of them is to blame, unless the artifact's own cannot be timed either.
        let own = self.alone()?;
        let mut results = Vec::new();
        for other in others {
            let result = match self.run(std::slice::from_ref(other)) {
                Ok((own, mut times)) => {
                    (times.pop().ok_or_else(none)).and_then(|time| self.times(&own, time))
                }
                Err(reject) => {
                    self.alone()?;
                    Err(reject)
                }
            };
            results.push(result);
        }
        Ok((own, results))
    }

    /// The time of the artifact's own kernels.
    fn alone(&mut self) -> Result<Measurement, MeasureError> {
        match self.run(&[]) {
            Ok((own, _)) => Ok(own),
            Err(reject @ Reject::Fault(_)) => Err(MeasureError::Timing(reject)),
            Err(reject) => Err(MeasureError::Own(reject)),
        }
    }

    /// Times the artifact's own kernels and others in turns.
    fn run(&mut self, others: &[Job]) -> Result<(Measurement, Vec<Measurement>), Reject> {
        let mut jobs = vec![self.own.clone()];
        jobs.extend(others.iter().cloned());
        let mut times = self.worker.time(jobs, Care::Thorough(LONG))?;
        if times.len() != others.len() + 1 {
            return Err(none());
        }
        let own = times.remove(0);
        self.possible(&own)?;
        Ok((own, times))
    }

    fn times(&self, own: &Measurement, without: Measurement) -> Result<Times, Reject> {
        self.possible(&without)?;
        Ok(Times {
            warm: ratio(&without.warm, &own.warm),
            cold: ratio(&without.cold, &own.cold),
            own: own.clone(),
            without,
        })
    }

    /// Refuses times that nothing can have.
    fn possible(&self, time: &Measurement) -> Result<(), Reject> {
        for timing in [&time.warm, &time.cold] {
            check_time(timing.median_us, self.floor_us)?;
        }
        Ok(())
    }
}

/// Of two times of one run. Eight tenths of the samples of each lie between the two figures from which an end of the range is made.
fn ratio(without: &Timing, own: &Timing) -> Ratio {
    Ratio {
        median: without.median_us / own.median_us,
        least: without.p10_us / own.p90_us,
        most: without.p90_us / own.p10_us,
    }
}

fn none() -> Reject {
    Reject::Fault("a worker gave no answer".to_owned())
}

fn missing() -> Result<Job, Reject> {
    Err(none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_has_the_spread_of_both() {
        let timing = |[p10_us, median_us, p90_us]: [f64; 3]| Timing {
            median_us,
            p10_us,
            p90_us,
            min_us: p10_us,
            samples: 3,
            replays: 1,
            drift: 0.0,
            steady: true,
        };
        for (without, own, expected, may_be_one) in [
            ([6.0, 8.0, 12.0], [3.0, 4.0, 5.0], [1.2, 2.0, 4.0], false),
            ([3.0, 4.0, 8.0], [4.0, 5.0, 6.0], [0.5, 0.8, 2.0], true),
            ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0], [0.25, 0.5, 0.75], false),
        ] {
            let found = ratio(&timing(without), &timing(own));
            assert_eq!([found.least, found.median, found.most], expected);
            assert_eq!(found.may_be_one(), may_be_one, "{found:?}");
        }
    }
}

//! Kernels alone: which of their schedules can be lowered and compiled, and how long they take.
//!
//! Tile programs share kernels. What is found of one is kept, so that a kernel that cannot be had costs one attempt and not one a
//! tile program that has it.

use super::{Compilation, Tally, compile::Compiler};
use codegen::CudaProgram;
use ir::{KernelSchedule, Reject, Schedule, Target, TileProgram};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

/// Schedules of one kernel that are compiled before it is given up.
const ATTEMPTS: usize = 4;

/// A kernel under a schedule that compiles.
#[derive(Clone, Debug)]
pub(super) struct Scheduled {
    pub(super) schedule: KernelSchedule,
    pub(super) cuda: CudaProgram,
    pub(super) compilation: Option<Compilation>,
    /// How long it takes alone, if it was timed.
    pub(super) us: Option<f64>,
}

/// What is known of one kernel.
#[derive(Debug)]
pub(super) struct Known {
    /// A tile program of it alone.
    pub(super) tile: TileProgram,
    waiting: std::vec::IntoIter<KernelSchedule>,
    attempts: usize,
    /// What was compiled: schedules that differ may come to the same.
    texts: HashSet<String>,
    /// In the order of promise.
    pub(super) good: Vec<Scheduled>,
    /// Why the last schedule was none.
    refusal: Option<Reject>,
}

impl Known {
    /// The fastest schedule; the most promising one where none was timed.
    pub(super) fn best(&self) -> Option<&Scheduled> {
        let timed = self.good.iter().filter(|s| s.us.is_some());
        let us = |s: &&Scheduled| s.us.unwrap_or(f64::INFINITY);
        timed
            .min_by(|x, y| us(x).total_cmp(&us(y)))
            .or_else(|| self.good.first())
    }
}

/// Every kernel that was looked at.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    known: BTreeMap<String, Known>,
    /// When no other schedules are tried any more; never where none.
    pub(super) until: Option<Instant>,
}

/// The name of a kernel: equal for equal kernels, whatever stands beside them.
pub(super) type Key = String;

/// The kernels of a tile program, each alone, with their names.
pub(super) fn alone(tile: &TileProgram) -> Vec<(Key, TileProgram)> {
    (0..tile.kernels.len())
        .map(|k| {
            let alone = tile.alone(k);
            (name(&alone), alone)
        })
        .collect()
}

/// What a kernel is called: its text, with no word of axes that it does not mention, and names of values that say nothing.
fn name(alone: &TileProgram) -> Key {
    let mut alone = alone.clone();
    for kernel in &mut alone.kernels {
        for (number, v) in kernel.values.iter_mut().enumerate() {
            v.name = format!("v{number}");
        }
    }
    let text = alone.to_string();
    let lines = text.lines().filter(|line| !line.starts_with("axis "));
    let mut name: String = lines.flat_map(|line| [line, "\n"]).collect();
    for axis in alone.kernels.iter().flat_map(|k| k.axes.keys()) {
        let axis = &alone.axes[axis.index()];
        name.push_str(&format!("{} = {}\n", axis.name, axis.extent));
    }
    name
}

impl Kernels {
    /// Finds so many schedules of each kernel that lower and compile, where there are as many. Kernels are told from each other by
    /// their names.
    pub(super) fn settle(
        &mut self,
        kernels: &[(Key, TileProgram)],
        wanted: usize,
        target: &Target,
        compiler: &mut Compiler,
        tally: &mut Tally<'_>,
    ) {
        let unknown: BTreeMap<&Key, &TileProgram> = kernels
            .iter()
            .filter(|(key, _)| !self.known.contains_key(key))
            .map(|(key, tile)| (key, tile))
            .collect();
        let unknown: Vec<(Key, Known)> = unknown
            .into_par_iter()
            .map(|(key, tile)| {
                let known = Known {
                    tile: tile.clone(),
                    waiting: search::schedules::ranked(tile, target).into_iter(),
                    texts: HashSet::new(),
                    attempts: 0,
                    good: Vec::new(),
                    refusal: None,
                };
                (key.clone(), known)
            })
            .collect();
        self.known.extend(unknown);
        loop {
            if self.until.is_some_and(|until| Instant::now() > until) || tally.clock.is_stopped() {
                return;
            }
            let asked = |key: &Key| kernels.iter().any(|k| k.0 == *key);
            // All of these would be tried one at a time too.
            let missing = |k: &Known| {
                let left = ATTEMPTS.max(2 * wanted).saturating_sub(k.attempts);
                wanted.saturating_sub(k.good.len()).min(left)
            };
            let mut here: Vec<Attempt<'_>> = self
                .known
                .iter_mut()
                .filter(|(key, k)| missing(k) > 0 && k.waiting.len() > 0 && asked(key))
                .map(|(_, k)| (k, Vec::new(), Vec::new()))
                .collect();
            if here.is_empty() {
                return;
            }
            let each = rayon::current_num_threads().div_ceil(here.len());
            here.par_iter_mut().for_each(|(k, texts, rejects)| {
                let most = missing(k).min(each);
                texts.extend(std::iter::from_fn(|| next(k, target, rejects)).take(most));
            });
            let texts = here.iter().flat_map(|(_, texts, _)| texts);
            let sources: Vec<&str> = texts.map(|t| t.1.source.as_str()).collect();
            let mut compiled = compiler.compile(&sources).into_iter();
            for (k, texts, rejects) in here {
                rejects.iter().for_each(|r| tally.reject(r));
                k.refusal = rejects.into_iter().next_back().or(k.refusal.take());
                k.attempts += texts.len();
                for ((schedule, cuda), compiled) in texts.into_iter().zip(compiled.by_ref()) {
                    match compiled {
                        Ok(compilation) => k.good.push(Scheduled {
                            schedule,
                            cuda,
                            compilation,
                            us: None,
                        }),
                        Err(reject) => {
                            tracing::debug!(%reject, schedule = ?k.waiting.as_slice().len(), kernel = search::tiling::enumerate::describe(&k.tile), "refused");
                            tally.reject(&reject);
                            k.refusal = Some(reject);
                        }
                    }
                }
            }
        }
    }

    /// What compiling this text gave, if it is that of a kernel alone.
    pub(super) fn compiled(&self, source: &str) -> Option<Compilation> {
        let all = self.known.values().flat_map(|k| &k.good);
        let mut same = all.filter(|s| s.cuda.source == source);
        same.next().and_then(|s| s.compilation.clone())
    }

    /// What is known of a kernel that was settled.
    pub(super) fn get(&self, key: &str) -> Option<&Known> {
        self.known.get(key)
    }

    /// As [`Kernels::get`], to add times.
    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Known> {
        self.known.get_mut(key)
    }

    /// The best schedule of every kernel.
    ///
    /// # Errors
    /// The first kernel that has none, by its place, and why.
    pub(super) fn schedule(
        &self,
        kernels: &[(Key, TileProgram)],
    ) -> Result<Schedule, (usize, Reject)> {
        let kernels = kernels.iter().enumerate().map(|(at, (key, _))| {
            let known = self.known.get(key);
            let best = known.and_then(Known::best).map(|s| s.schedule.clone());
            best.ok_or_else(|| {
                let why = known.and_then(|k| k.refusal.clone());
                let why = why.unwrap_or_else(|| Reject::Schedule("there is none".to_owned()));
                let refused = Reject::InKernel {
                    kernel: at,
                    reject: Box::new(why),
                };
                (at, refused)
            })
        });
        Ok(Schedule {
            kernels: kernels.collect::<Result<_, _>>()?,
        })
    }
}

/// A kernel, the schedules that are tried next with their texts, and what could not be lowered before them.
type Attempt<'a> = (
    &'a mut Known,
    Vec<(KernelSchedule, CudaProgram)>,
    Vec<Reject>,
);

/// The next schedule that can be lowered, with its text.
fn next(
    known: &mut Known,
    target: &Target,
    rejects: &mut Vec<Reject>,
) -> Option<(KernelSchedule, CudaProgram)> {
    for schedule in known.waiting.by_ref() {
        let one = Schedule {
            kernels: vec![schedule.clone()],
        };
        match codegen::lower(&known.tile, &one, target) {
            Ok(cuda) if known.texts.insert(cuda.code().to_owned()) => {
                return Some((schedule, cuda));
            }
            Ok(_) => {}
            Err(reject) => rejects.push(reject),
        }
    }
    None
}

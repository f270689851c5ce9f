//! Kernels alone: which of their schedules can be lowered and compiled, and how long they take.
//!
//! Tile programs share kernels. What is found of one is kept, so that a kernel that cannot be had costs one attempt and not one a
//! tile program that has it.

use super::history::{MOST_SCHEDULES, Other};
use super::{Compilation, Tally, compile::Compiler};
use codegen::CudaProgram;
use device::nvrtc::Compiled;
use device::timing::Measurement;
use ir::{KernelSchedule, Reject, Schedule, Target, TileProgram, Wishes};
use rayon::prelude::*;
use search::schedules::Ranked;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Instant;

/// Schedules of one kernel that are compiled before it is given up.
const ATTEMPTS: usize = 4;

/// Behind one that spilled come those that seem to need so many times as many registers, for each that they can have.
const EASED: f64 = 0.8;

/// Timed schedules of a kernel of which machine code is kept: the fastest.
const KEPT: usize = 2;

/// A kernel under a schedule that compiles.
#[derive(Clone, Debug)]
pub(super) struct Scheduled {
    pub(super) schedule: KernelSchedule,
    /// What the clock says of it, in microseconds.
    pub(super) predicted: f64,
    /// By what it was put in order: [`Ranked::rank`].
    pub(super) rank: f64,
    pub(super) cuda: CudaProgram,
    pub(super) compilation: Option<Compilation>,
    /// How long it takes alone, if it was timed, and by which figure it is compared.
    pub(super) timed: Option<(Measurement, f64)>,
}

impl Scheduled {
    /// Microseconds alone.
    pub(super) fn us(&self) -> Option<f64> {
        self.timed.as_ref().map(|(_, us)| *us)
    }
}

/// A schedule that is to be tried, with its text.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) ranked: Ranked,
    pub(super) cuda: CudaProgram,
}

impl Text {
    /// What is compiled: there is one kernel.
    pub(super) fn unit(&self) -> &str {
        self.cuda.units.first().map_or("", String::as_str)
    }

    /// With what compiling it gave.
    pub(super) fn compiled(self, compilation: Option<Compilation>) -> Scheduled {
        Scheduled {
            schedule: self.ranked.schedule,
            predicted: self.ranked.us,
            rank: self.ranked.rank,
            cuda: self.cuda,
            compilation,
            timed: None,
        }
    }
}

/// What is known of one kernel.
#[derive(Debug)]
pub(super) struct Known {
    /// A tile program of it alone.
    pub(super) tile: TileProgram,
    waiting: VecDeque<Ranked>,
    attempts: usize,
    /// The least of what those that spilled seemed to need, [`Ranked::pressure`].
    tight: f64,
    /// Hashes of what was compiled: schedules that differ may come to the same.
    texts: HashSet<blake3::Hash>,
    /// In the order of promise.
    pub(super) good: Vec<Scheduled>,
    /// Why the last schedule was none.
    pub(super) refusal: Option<Reject>,
    /// What became of schedules, for people: the fastest that were timed, and the first that were refused.
    timed: Vec<Other>,
    refused: Vec<Other>,
}

impl Known {
    fn new(tile: TileProgram, ranked: Vec<Ranked>) -> Self {
        Self {
            tile,
            waiting: ranked.into(),
            texts: HashSet::new(),
            attempts: 0,
            tight: f64::INFINITY,
            good: Vec::new(),
            refusal: None,
            timed: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// A schedule cannot be had.
    pub(super) fn refuse(&mut self, ranked: &Ranked, why: &Reject) {
        if let (Reject::Spills { .. }, Some(pressure)) = (why, ranked.pressure) {
            self.tight = self.tight.min(pressure);
        }
        if self.refused.len() < MOST_SCHEDULES {
            self.refused.push(Other {
                schedule: ranked.schedule.clone(),
                clock_us: ranked.us,
                measured_us: None,
                tried: true,
                refused: Some(why.clone()),
            });
        }
    }

    /// What is known of its schedules, those that were not tried too: each once.
    pub(super) fn others(&self) -> Vec<Other> {
        let other = |schedule: &KernelSchedule, clock_us, tried| Other {
            schedule: schedule.clone(),
            clock_us,
            measured_us: None,
            tried,
            refused: None,
        };
        let good = self
            .good
            .iter()
            .map(|s| other(&s.schedule, s.predicted, true));
        let waiting = self.waiting.iter();
        let waiting = waiting.filter(|r| !r.spills()).take(MOST_SCHEDULES);
        let waiting = waiting.map(|r| other(&r.schedule, r.us, false));
        let mut all: Vec<Other> = self.timed.iter().chain(&self.refused).cloned().collect();
        for more in good.chain(waiting) {
            if all.iter().all(|known| known.schedule != more.schedule) {
                all.push(more);
            }
        }
        all
    }

    /// The fastest schedule; the most promising one where none was timed.
    pub(super) fn best(&self) -> Option<&Scheduled> {
        let timed = self.good.iter().filter(|s| s.timed.is_some());
        let us = |s: &&Scheduled| s.us().unwrap_or(f64::INFINITY);
        timed
            .min_by(|x, y| us(x).total_cmp(&us(y)))
            .or_else(|| self.good.first())
    }

    /// By what the schedule that comes next was put in order, in microseconds; none where there is no other that does not seem to spill.
    pub(super) fn next_us(&self) -> Option<f64> {
        let next = self.waiting.get(self.next_at());
        next.filter(|r| !r.spills() || self.good.is_empty())
            .map(|r| r.rank)
    }

    /// Where among those that wait the next one stands. As long as none compiled, and some spilled, it is one that needs far fewer registers, if
    /// there is one: few are tried, and those that the clock puts behind each other are much alike.
    fn next_at(&self) -> usize {
        let is_eased = |r: &Ranked| r.pressure.is_some_and(|p| p <= EASED * self.tight);
        let searched = self.good.is_empty() && self.tight.is_finite();
        let eased = searched.then(|| self.waiting.iter().position(is_eased));
        eased.flatten().unwrap_or(0)
    }

    /// What compiled and was not timed.
    pub(super) fn untimed(&mut self) -> Option<Scheduled> {
        let at = self.good.iter().position(|s| s.timed.is_none())?;
        Some(self.good.remove(at))
    }

    /// Keeps what was timed, if it is among the fastest.
    pub(super) fn keep(&mut self, scheduled: Scheduled) {
        let us = |s: &Scheduled| s.us().unwrap_or(f64::INFINITY);
        let own = us(&scheduled);
        let at = (self.timed).partition_point(|o| o.measured_us.is_some_and(|us| us <= own));
        self.timed.insert(
            at,
            Other {
                schedule: scheduled.schedule.clone(),
                clock_us: scheduled.predicted,
                measured_us: Some(own),
                tried: true,
                refused: None,
            },
        );
        self.timed.truncate(MOST_SCHEDULES);
        let at = self.good.partition_point(|s| us(s) <= us(&scheduled));
        self.good.insert(at, scheduled);
        self.good.truncate(KEPT);
    }
}

/// Every kernel that was looked at.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    known: BTreeMap<String, Known>,
    /// What schedules have to say, and must not.
    wishes: Wishes,
    /// When no other schedules are tried any more; never where none.
    pub(super) until: Option<Instant>,
    /// The kernels of candidates as they compiled, by hashes of their units: mostly not those of kernels alone, for they wait for one in front of them and let one behind them begin.
    units: HashMap<blake3::Hash, Compiled>,
}

/// The name of a kernel: [`TileProgram::kernel_name`].
pub(super) type Key = String;

/// The kernels of a tile program, each alone, with their names.
pub(super) fn alone(tile: &TileProgram) -> Vec<(Key, TileProgram)> {
    (0..tile.kernels.len())
        .map(|k| (tile.kernel_name(k), tile.alone(k)))
        .collect()
}

impl Kernels {
    /// None yet.
    pub(super) fn new(wishes: Wishes) -> Self {
        Self {
            wishes,
            ..Self::default()
        }
    }

    /// What is known of a kernel, whose schedules were put in order if that was not done before.
    pub(super) fn ordered(&mut self, key: Key, tile: TileProgram, ranked: Vec<Ranked>) -> &Known {
        let known = self.known.entry(key);
        known.or_insert_with(|| Known::new(tile, ranked))
    }

    /// A kernel is tried under this schedule first; the last of these comes before those that were said of equal kernels.
    pub(super) fn begin_with(
        &mut self,
        (key, tile): (Key, TileProgram),
        schedule: KernelSchedule,
        target: &Target,
    ) {
        let wishes = &self.wishes;
        let known = (self.known.entry(key)).or_insert_with(|| {
            let ranked = search::schedules::ranked_as(&tile, target, wishes);
            Known::new(tile, ranked)
        });
        let waiting = &mut known.waiting;
        let us = waiting.front().map_or(0.0, |r| r.us);
        let own = waiting.iter().position(|r| r.schedule == schedule);
        let first = own.and_then(|at| waiting.remove(at)).unwrap_or(Ranked {
            schedule,
            pressure: None,
            us,
            rank: us,
        });
        waiting.push_front(first);
    }

    /// Puts the schedules of kernels in order, of those for which that was not done.
    fn rank(&mut self, kernels: &[(Key, TileProgram)], target: &Target) {
        let unknown: BTreeMap<&Key, &TileProgram> = kernels
            .iter()
            .filter(|(key, _)| !self.known.contains_key(key))
            .map(|(key, tile)| (key, tile))
            .collect();
        let ranked = unknown.into_par_iter();
        let ranked = ranked.map(|(key, tile)| {
            let ranked = search::schedules::ranked_as(tile, target, &self.wishes);
            (key.clone(), Known::new(tile.clone(), ranked))
        });
        let ranked: Vec<(Key, Known)> = ranked.collect();
        self.known.extend(ranked);
    }

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
        self.rank(kernels, target);
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
                .filter(|(key, k)| missing(k) > 0 && !k.waiting.is_empty() && asked(key))
                .map(|(_, k)| (k, Vec::new(), Vec::new()))
                .collect();
            if here.is_empty() {
                return;
            }
            let each = rayon::current_num_threads().div_ceil(here.len());
            here.par_iter_mut().for_each(|(k, texts, rejects)| {
                let most = missing(k).min(each);
                texts.extend(std::iter::from_fn(|| k.next(target, rejects)).take(most));
            });
            let texts = here.iter().flat_map(|(_, texts, _)| texts);
            let units: Vec<&str> = texts.map(|t| t.unit()).collect();
            let mut compiled = compiler.compile(&units).into_iter();
            for (k, texts, rejects) in here {
                rejects.iter().for_each(|r| tally.reject(r));
                k.refusal = rejects.into_iter().next_back().or(k.refusal.take());
                k.attempts += texts.len();
                for (text, compiled) in texts.into_iter().zip(compiled.by_ref()) {
                    let ranked = &text.ranked;
                    if let Err(reject) = &compiled {
                        k.refuse(ranked, reject);
                    }
                    match compiled {
                        Ok(compiled) => {
                            let compilation =
                                compiled.map(|c| Compilation::new(vec![c], compiler.version()));
                            k.good.push(text.compiled(compilation));
                        }
                        Err(reject) => {
                            tracing::debug!(%reject, schedule = ?k.waiting.len(), kernel = search::tiling::enumerate::describe(&k.tile), "refused");
                            tally.reject(&reject);
                            k.refusal = Some(reject);
                        }
                    }
                }
            }
        }
    }

    /// What compiling these units gave, if they are those of a kernel alone.
    pub(super) fn compiled(&self, units: &[String]) -> Option<Compilation> {
        self.same(units).and_then(|s| s.compilation.clone())
    }

    /// What compiling a unit of a candidate gave.
    pub(super) fn unit(&self, unit: &str) -> Option<&Compiled> {
        self.units.get(&blake3::hash(unit.as_bytes()))
    }

    /// What was compiled of these units is not what the compiler makes of them.
    pub(super) fn forget(&mut self, units: &[String]) {
        for unit in units {
            self.units.remove(&blake3::hash(unit.as_bytes()));
        }
    }

    /// A unit of a candidate was compiled.
    pub(super) fn keep_unit(&mut self, unit: &str, compiled: Compiled) {
        self.units.insert(blake3::hash(unit.as_bytes()), compiled);
    }

    /// How long these units took, if they are those of a kernel alone which was timed.
    pub(super) fn measured(&self, units: &[String]) -> Option<Measurement> {
        let (measured, _) = self.same(units)?.timed.as_ref()?;
        Some(measured.clone())
    }

    fn same(&self, units: &[String]) -> Option<&Scheduled> {
        let all = self.known.values().flat_map(|k| &k.good);
        all.into_iter().find(|s| s.cuda.units == units)
    }

    /// What is known of a kernel.
    pub(super) fn get(&self, key: &str) -> Option<&Known> {
        self.known.get(key)
    }

    /// The same, to change it.
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

/// Of units, and of where each ends.
pub(super) fn hash(units: &[String]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for unit in units {
        hasher.update(&(unit.len() as u64).to_le_bytes());
        hasher.update(unit.as_bytes());
    }
    hasher.finalize()
}

/// A kernel, the schedules that are tried next with their texts, and what could not be lowered before them.
type Attempt<'a> = (&'a mut Known, Vec<Text>, Vec<Reject>);

impl Known {
    /// The next schedule that can be lowered, with its text.
    pub(super) fn next(&mut self, target: &Target, rejects: &mut Vec<Reject>) -> Option<Text> {
        while let Some(ranked) = self.waiting.remove(self.next_at()) {
            let one = Schedule {
                kernels: vec![ranked.schedule.clone()],
            };
            match codegen::lower(&self.tile, &one, target) {
                Ok(cuda) if self.texts.insert(hash(&cuda.units)) => {
                    return Some(Text { ranked, cuda });
                }
                Ok(_) => {}
                Err(reject) => {
                    self.refuse(&ranked, &reject);
                    rejects.push(reject);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "tile rows\naxis r = 4096, c = 2048\nbuffer x = parameter 0 f32 [r, c]\nbuffer y = output 0 f32 [r]\n\
                        kernel grid(r: 4) whole(c: 2048) {\n  a = load x[r, c]\n  s = reduce_sum(a; c)\n  store y = s\n}\n";

    /// Four attempts would all go to what the clock puts first, and these need nearly the same registers.
    #[test]
    fn behind_what_spilled_comes_what_needs_far_fewer_registers() {
        let tile: TileProgram = ROWS.parse().expect("a tile program");
        let target = search::targets::target("h200").expect("a target");
        let any = search::schedules::ranked(&tile, &target);
        let schedule = any[0].schedule.clone();
        let ranked = |pressure| Ranked {
            schedule: schedule.clone(),
            pressure,
            us: 1.0,
            rank: 1.0,
        };
        let pressures = [1.2, 1.1, 0.95, 0.8, 0.76, 0.5].map(Some);
        let mut known = Known::new(tile.clone(), pressures.map(ranked).into());
        let mut spilled = Vec::new();
        while let Some(next) = known.waiting.remove(known.next_at()) {
            known.refuse(&next, &Reject::Spills { bytes: 8 });
            spilled.push(next.pressure);
        }
        assert_eq!(spilled, [1.2, 0.95, 0.76, 0.5, 1.1, 0.8].map(Some));

        // What else is wrong says nothing of registers, and of what was not looked at nothing is known.
        let unknown = [None, Some(0.9), Some(0.5)];
        let mut known = Known::new(tile, unknown.map(ranked).into());
        known.refuse(&ranked(Some(1.0)), &Reject::Schedule("wrong".to_owned()));
        assert_eq!(known.next_at(), 0);
        known.refuse(&ranked(None), &Reject::Spills { bytes: 8 });
        assert_eq!(known.next_at(), 0);
        known.refuse(&ranked(Some(1.0)), &Reject::Spills { bytes: 8 });
        assert_eq!(known.next_at(), 2);
    }
}

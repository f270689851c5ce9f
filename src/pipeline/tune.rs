//! The search by measurement: kernels alone, compiled ahead of the GPUs and timed as the tuner proposes, and what is fastest of them made a candidate.
//!
//! Beside this thread, which proposes, lowers and looks at what came of it, there are processes that compile, a thread for each GPU, one that enumerates
//! and one that interprets what is to be a candidate. Where there is something to tell of, they go on meanwhile: telling compiles too.

use super::beside::Beside;
use super::compile::{self, Compiler};
use super::enumerator::{Enumerated, Enumerator, TilePrograms, Unordered, Wanted};
use super::gpu::Arms;
use super::judge::{Asked, Judge, Told};
use super::kernels::{Key, Scheduled, Text};
use super::made::Pick;
use super::nearest::Nearest;
use super::picks::{self, Looked, Picks, UnitId};
use super::report::{self, Outcome};
use super::trial::{self, Timed};
use super::{Compilation, Conditions, Event, KernelName, Point, Stage, Trial, TrialKey, Walk};
use crate::worker::Job;
use codegen::CudaProgram;
use device::gpu::{GpuInfo, TimedOn};
use device::nvrtc::{CompileError, Compiled};
use device::pool::{Next, Programs};
use device::timing::Measurement;
use device::worker::WorkerError;
use ir::{AxisId, Buffer, BufferRole, KernelSchedule, Reject, Schedule, TileProgram};
use rayon::prelude::*;
use search::cost::cost;
use search::schedules::{Ranked, Starts};
use search::tiling::enumerate::Candidates;
use search::tune::learned::{Correction, Row};
use search::tune::{KernelId, ProgramId, Tuner};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Tile programs that are looked at before the first trial, and that come to them at a time.
const FIRST: usize = 32;
const FURTHER: usize = 16;
/// Trials after which tile programs beside the fastest are looked at, or one for so many tile programs, and cuts whose neighbours come at a time.
const WIDEN_AFTER: usize = 24;
const POINTS_PER_TRIAL: usize = 8;
const WIDENED: usize = 2;
/// Where what comes next would take so many times as long as the fastest, others are looked for at once.
const PROMISING: f64 = 1.0;
/// Tile programs that take so many times as long as the fastest, as far as it is known, are dropped.
const FAR: f64 = 2.0;
/// Kernels whose schedules are put in order at a time.
const ORDERED: usize = 16;
/// Trials from which it is learned how wrong the clock is, and what kernels like those of this search are fast under: the newest.
const LEARNED_FROM: usize = 2000;
/// The schedules of a kernel that were its fastest in other searches and come first.
const REMEMBERED: usize = 2;
/// Texts under way beside those that can be compiled at a time, and what waits for a GPU.
const AHEAD: usize = 4;
const QUEUE: usize = 6;
/// Tile programs, and their kernels, each once.
#[derive(Default)]
pub(super) struct Pool {
    pub(super) tuner: Tuner,
    /// By the tuner's numbers.
    pub(super) points: Vec<Point>,
    pub(super) kernels: Vec<(Key, TileProgram)>,
    known: BTreeMap<Key, KernelId>,
    groups: BTreeMap<[usize; 2], usize>,
    classes: BTreeMap<Vec<Vec<AxisId>>, usize>,
    seen: HashSet<Vec<KernelId>>,
    /// Where walks over the schedules of kernels begin that are in no order yet.
    starts: BTreeMap<KernelId, Starts>,
    /// The same of kernels that are in no tile program that is tried: a later one may have them.
    spare: BTreeMap<Key, Starts>,
    /// Cuts of tile programs whose neighbours are known.
    widened: BTreeSet<(ProgramId, usize)>,
    /// How many trials there were, and when there were last more tile programs.
    trials: usize,
    grown: usize,
    /// Whether no other tile program is to be had.
    is_dry: bool,
}

/// What is compiled.
pub(super) enum Task {
    /// A kernel alone, under a schedule.
    Kernel(KernelId, Text),
    /// A kernel of a pick, with its text.
    Unit(UnitId, String),
}

/// A search by measurement.
pub(super) struct Tuning<'r, 'scope, 'a, 'o> {
    pub(super) walk: &'r mut Walk<'a, 'o>,
    pub(super) pool: Pool,
    pub(super) picks: Picks,
    pub(super) arms: &'r mut Arms,
    /// Something plain is held.
    held: bool,
    enumerator: Beside<'scope, Wanted, Enumerated>,
    /// Tile programs were asked for.
    is_growing: bool,
    /// Kernels whose schedules are being put in order.
    ordering: usize,
    pub(super) checker: Beside<'scope, (ProgramId, Pick), Looked>,
    /// Makes trials of kernels that were timed: the models are asked again what they say of each.
    writer: Beside<'scope, Timed, Trial>,
    /// All of them time kernels; the first also has the candidates.
    pub(super) gpus: Vec<Beside<'scope, Asked, (Told, Duration)>>,
    pub(super) gpu: &'r GpuInfo,
    timed_on: TimedOn,
    nearest: Nearest,
    /// Nothing is proposed any more.
    is_last: bool,
    /// Nothing more is heard: what waits for a GPU is not looked at, which may take the time in which the result is verified.
    left: Arc<AtomicBool>,
    pub(super) version: String,
}

/// Which kernels there are, and over which axes each runs.
fn structure(tile: &TileProgram) -> Vec<Vec<AxisId>> {
    let axes = |k: &ir::Kernel| k.axes.keys().copied().collect();
    tile.kernels.iter().map(axes).collect()
}

impl Walk<'_, '_> {
    /// Times kernels until the budget for it is spent, or nothing is left to try, and keeps the fastest candidates.
    pub(super) fn tuned(
        &mut self,
        arms: &mut Arms,
        held: bool,
        points: &mut Option<Candidates>,
        compiler: &mut Compiler,
        judge: &mut Judge,
    ) {
        let Some(points) = points else {
            return;
        };
        let mut keys = HashSet::new();
        let mut impossible = HashSet::new();
        let (target, gpu) = (&self.options.target, judge.gpu.clone());
        let (correction, nearest) = self.learned(&gpu);
        let (checker, place) = (self.checker(), self.place(&gpu));
        let mut others = std::mem::take(&mut judge.others);
        let (begun, compiled) = (Instant::now(), compiler.busy());
        std::thread::scope(|scope| {
            let clock = self.clock.clone();
            let enumerator = Enumerator {
                points,
                keys: &mut keys,
                impossible: &mut impossible,
                judge: search::schedules::Judge {
                    target,
                    correction: &correction,
                    wishes: &self.options.wishes,
                },
                clock: clock.clone(),
            };
            let left = Arc::new(AtomicBool::new(false));
            let unheard = left.clone();
            let gpus = std::iter::once(judge).chain(&mut others);
            let gpus = gpus.map(|gpu| {
                let left = left.clone();
                Beside::start(scope, move |asked, answers| {
                    gpu.serve(asked, answers, target, &left)
                })
            });
            let mut tuning = Tuning {
                version: compiler.version().to_owned(),
                pool: Pool::default(),
                picks: Picks::default(),
                arms,
                held,
                enumerator: Beside::start(scope, |asked, answers| enumerator.serve(asked, answers)),
                is_growing: false,
                ordering: 0,
                checker: Beside::start(scope, move |asked, answers| {
                    picks::serve(&checker, asked, answers, || {
                        clock.is_stopped() || unheard.load(Ordering::Relaxed)
                    })
                }),
                gpus: gpus.collect(),
                left,
                writer: Beside::start(scope, move |asked, answers| {
                    trial::write(place, asked, answers)
                }),
                gpu: &gpu,
                timed_on: gpu.timed_on(),
                nearest,
                is_last: false,
                walk: self,
            };
            tuning.run(compiler);
            tuning.end();
        });
        self.work.seconds = begun.elapsed().as_secs_f64();
        self.work.compiling = (compiler.busy() - compiled).as_secs_f64();
    }

    /// By how much more kernels take than the clock says, by what was timed under the same conditions, and under which schedules kernels were fastest.
    fn learned(&self, gpu: &GpuInfo) -> (Correction, Nearest) {
        let memory = self.options.memory.as_ref();
        let trials = memory.map(|memory| memory.newest(&gpu.name, LEARNED_FROM));
        let mut trials = trials.unwrap_or_default();
        // Times of other drivers and power limits are not compared with those of this one.
        trials.retain(|trial| trial.timed_on() == gpu.timed_on());
        let rows = trials.par_iter().filter_map(|trial| trial.row().ok());
        let rows: Vec<Row> = rows.collect();
        let alone: Vec<_> = trials.par_iter().map(Trial::alone).collect();
        let mut nearest = Nearest::default();
        for (trial, alone) in trials.iter().zip(alone) {
            if let Some((tile, schedule)) = alone {
                nearest.add(&tile, schedule, trial.measured.warm.median_us);
            }
        }
        (Correction::fit(&rows), nearest)
    }

    /// Whether there is no more time for trials.
    fn is_tuned(&self, arms: &Arms) -> bool {
        let stage = match arms.is_empty() {
            true => Stage::Walk,
            false => Stage::Deepening,
        };
        self.spent(stage)
    }
}

impl Tuning<'_, '_, '_, '_> {
    /// Tries one thing after another, and tells on the way.
    fn run(&mut self, compiler: &mut Compiler) {
        loop {
            compiler.stream(self);
            let before = self.walk.has_news();
            self.walk.tell(compiler);
            if !before || self.walk.is_tuned(self.arms) {
                break;
            }
        }
        // Once all that was timed is known the fastest are picked for the last time.
        self.is_last = true;
        compiler.stream(self);
        while !self.walk.clock.is_stopped() && !self.is_time_for_result() {
            self.pick(1.0);
            compiler.stream(self);
            let before = self.walk.has_news();
            self.walk.tell(compiler);
            if !before || self.walk.is_tuned(self.arms) {
                break;
            }
        }
    }

    /// Ends the threads; says so where one was lost. What was timed is told of, whatever ended the search.
    fn end(mut self) {
        self.left.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for gpu in std::mem::take(&mut self.gpus) {
            let (rest, busy) = gpu.end();
            all.push(busy);
            for (told, took) in rest {
                match told {
                    Told::Kernel(id, scheduled, answer) => self.timed(id, scheduled, answer),
                    Told::Candidate(_, tried) => {
                        self.walk.tried(self.arms, tried, self.gpu);
                    }
                    Told::Proof(proved) => {
                        self.walk.proving += took;
                        self.walk.clock.verified_in(took);
                        self.walk.proved(self.arms, proved);
                    }
                }
            }
        }
        let (trials, wrote) = self.writer.end();
        trials.iter().for_each(|t| self.walk.tally.timed(t));
        let (_, enumerated) = self.enumerator.end();
        let (_, checked) = self.checker.end();
        all.extend([wrote, enumerated, checked]);
        if all.iter().any(Option::is_none) {
            let remark = "a thread of the search was lost, so the search ended early";
            self.walk.tally.remark(remark.to_owned());
        }
        self.walk.work.enumerating += enumerated.unwrap_or_default().as_secs_f64();
    }

    /// Whether a thread was lost.
    fn is_lost(&self) -> bool {
        let gpus = self.gpus.iter().any(Beside::is_lost);
        gpus || self.enumerator.is_lost() || self.checker.is_lost() || self.writer.is_lost()
    }

    /// Whether what is behind the search has to begin.
    fn is_time_for_result(&self) -> bool {
        !self.arms.is_empty() && self.walk.spent(Stage::FirstPick)
    }

    /// What waits for a GPU or is on one.
    fn on_gpus(&self) -> usize {
        self.gpus.iter().map(Beside::under_way).sum()
    }

    /// Takes what was answered.
    fn hear(&mut self) {
        while let Some(enumerated) = self.enumerator.hear() {
            self.take(enumerated);
        }
        while let Some(trial) = self.writer.hear() {
            self.walk.tally.timed(&trial);
        }
        while let Some(looked) = self.checker.hear() {
            self.looked(looked);
        }
        for n in 0..self.gpus.len() {
            while let Some((told, took)) = self.gpus[n].hear() {
                let work = &mut self.walk.work;
                match told {
                    Told::Kernel(id, scheduled, answer) => {
                        work.timing += took.as_secs_f64();
                        self.timed(id, scheduled, answer);
                    }
                    Told::Candidate(program, tried) => {
                        work.checking += took.as_secs_f64();
                        self.tried(program, tried);
                    }
                    Told::Proof(proved) => {
                        work.checking += took.as_secs_f64();
                        self.walk.proving += took;
                        self.walk.clock.verified_in(took);
                        self.proved(proved);
                    }
                }
            }
        }
    }

    /// Adds tile programs; those that have the kernels of another one are none.
    fn add(&mut self, made: TilePrograms) {
        let TilePrograms {
            points,
            found,
            starts,
            rejects,
            is_dry,
        } = made;
        self.pool.spare.extend(starts);
        self.walk.candidates += rejects.len() as u64;
        rejects.iter().for_each(|r| self.walk.tally.reject(r));
        let fastest = self.pool.tuner.fastest(true);
        let fastest = fastest.first().map_or(f64::INFINITY, |(_, us)| *us);
        for (n, (point, own)) in points.into_iter().enumerate() {
            if n < found {
                self.walk.candidates += 1;
            }
            if self.held && point.is_plain() {
                let why = "the plainest that passed is held already";
                report::point(&point, None).becomes(Outcome::PassedOver(why));
                continue;
            }
            let pool = &mut self.pool;
            let us = |(key, _): &(Key, TileProgram)| match pool.known.get(key) {
                Some(id) => pool.tuner.us(*id),
                None => pool
                    .spare
                    .get(key)
                    .and_then(Starts::us)
                    .unwrap_or(f64::INFINITY),
            };
            if own.iter().map(us).sum::<f64>() > FAR * fastest {
                continue;
            }
            let mut ids = Vec::new();
            for (n, (key, tile)) in own.into_iter().enumerate() {
                let id = match pool.known.get(&key) {
                    Some(id) => *id,
                    None => {
                        let groups = pool.groups.len();
                        let group = point.group(n).unwrap_or([usize::MAX; 2]);
                        let group = *pool.groups.entry(group).or_insert(groups);
                        let begun = pool.spare.remove(&key);
                        let us = begun.as_ref().and_then(Starts::us);
                        let id = pool.tuner.kernel(group, us.unwrap_or(f64::INFINITY));
                        pool.starts.extend(begun.map(|begun| (id, begun)));
                        pool.kernels.push((key.clone(), tile));
                        pool.known.insert(key, id);
                        id
                    }
                };
                ids.push(id);
            }
            if pool.seen.insert(ids.clone()) {
                let classes = pool.classes.len();
                let class = *(pool.classes)
                    .entry(structure(&point.tile))
                    .or_insert(classes);
                pool.tuner.program(class, &ids);
                pool.points.push(point);
                self.walk.candidates += u64::from(n >= found);
            }
        }
        let count = Event::Candidates(self.walk.candidates);
        self.walk.tally.observer.event(&count);
        self.pool.is_dry = is_dry;
    }

    /// Asks for tile programs: some that the search for cuts found, and neighbours of the fastest.
    fn grow(&mut self) {
        let is_first = self.pool.points.is_empty();
        let mut around = Vec::new();
        for _ in 0..if is_first { 0 } else { WIDENED } {
            if let Some((program, cut)) = self.widest() {
                self.pool.widened.insert((program, cut));
                around.push((self.pool.points[program.index()].clone(), cut));
            }
        }
        let count = if is_first { FIRST } else { FURTHER };
        let wanted = Wanted::TilePrograms(count, around);
        self.is_growing = self.enumerator.ask(wanted);
        self.pool.grown = self.pool.trials;
    }

    /// Takes what was enumerated.
    fn take(&mut self, enumerated: Enumerated) {
        match enumerated {
            Enumerated::TilePrograms(made) => {
                self.is_growing = false;
                self.add(made);
            }
            Enumerated::Order(id, ranked) => {
                self.ordering -= 1;
                let (key, tile) = self.pool.kernels[id.index()].clone();
                // What was fast elsewhere is hoped to be no slower here than what the clock puts first.
                let hoped = ranked.iter().find(|r| !r.spills()).map(|r| r.us);
                let ranked = self.best_first(&tile, ranked);
                let known = self.walk.kernels.ordered(key, tile, ranked);
                // An equal one may have been there before: what is timed is what is lowered.
                self.pool.kernels[id.index()].1.clone_from(&known.tile);
                let next = known.next_us();
                let next = next.map(|us| hoped.map_or(us, |hoped| us.min(hoped)));
                self.pool.tuner.offer(id, next);
            }
        }
    }

    /// The schedules of a kernel, those first that were the fastest of it in other searches; where there are none, of the nearest kernel.
    fn best_first(&self, tile: &TileProgram, mut ranked: Vec<Ranked>) -> Vec<Ranked> {
        let memory = self.walk.options.memory.as_ref();
        let known = memory.zip(KernelName::new(tile)).map(|(memory, name)| {
            let known = memory.best_of(&name, &self.gpu.name, REMEMBERED);
            // Kernels of one name number their values alike, whatever they call them.
            let own = known.iter().filter_map(Trial::alone);
            own.map(|(_, schedule)| schedule).collect()
        });
        let mut known: Vec<KernelSchedule> = known.unwrap_or_default();
        if known.is_empty() {
            known = self.nearest.of(tile);
        }
        let wishes = &self.walk.options.wishes;
        known.retain(|s| wishes.admit(s, true) || ranked.iter().any(|r| r.schedule == *s));
        for schedule in known.into_iter().rev() {
            let own = ranked.iter().position(|r| r.schedule == schedule);
            let own = own.map(|at| ranked.remove(at));
            let first = own.unwrap_or_else(|| {
                let alone = Schedule {
                    kernels: vec![schedule],
                };
                let us = cost(tile, Some(&alone), &self.walk.options.target).us;
                Ranked {
                    us,
                    rank: us,
                    schedule: alone.kernels[0].clone(),
                    pressure: None,
                }
            });
            ranked.insert(0, first);
        }
        ranked
    }

    /// The cut whose neighbours come next: of the fastest tile program that has one, that which takes longest.
    fn widest(&self) -> Option<(ProgramId, usize)> {
        for (program, _) in self.pool.tuner.fastest(false) {
            let point = &self.pool.points[program.index()];
            let mut cuts: BTreeMap<usize, f64> = BTreeMap::new();
            for (cut, kernel) in point.origins.iter().zip(self.pool.tuner.kernels(program)) {
                *cuts.entry(*cut).or_default() += self.pool.tuner.us(*kernel);
            }
            let open = cuts.into_iter();
            let open = open.filter(|(cut, _)| !self.pool.widened.contains(&(program, *cut)));
            if let Some((cut, _)) = open.max_by(|x, y| x.1.total_cmp(&y.1)) {
                return Some((program, cut));
            }
        }
        None
    }

    fn is_over(&self) -> bool {
        let walk = &self.walk;
        walk.clock.is_stopped()
            || walk.is_tuned(self.arms)
            || self.pool.trials >= walk.options.effort.trials
            || walk.has_news()
    }

    /// The next schedule of a kernel that the tuner proposes, with its text; none where nothing is left for now.
    fn propose(&mut self) -> Option<(KernelId, Text)> {
        while !self.is_over() {
            let is_first = self.pool.points.is_empty();
            let enough = WIDEN_AFTER.max(self.pool.points.len() / POINTS_PER_TRIAL);
            let stale = self.pool.trials >= self.pool.grown + enough;
            let poor = || self.pool.tuner.promise().is_none_or(|p| p > PROMISING);
            if !self.is_growing
                && !self.pool.is_dry
                && (is_first || stale || self.ordering == 0 && poor())
            {
                self.grow();
            }
            let id = self.pool.tuner.next()?;
            if self.pool.starts.contains_key(&id) {
                if self.ordering >= ORDERED {
                    return None;
                }
                self.order(id);
                continue;
            }
            let target = &self.walk.options.target;
            let known = self
                .walk
                .kernels
                .get_mut(&self.pool.kernels[id.index()].0)?;
            if let Some(scheduled) = known.untimed() {
                self.pool.tuner.began(id, known.next_us());
                match self.recalled(id, &scheduled.cuda) {
                    Some(time) => {
                        self.walk.work.recalled += 1;
                        self.pool.trials += 1;
                        self.known(id, scheduled, time);
                    }
                    None => self.send(id, scheduled),
                }
                continue;
            }
            let begun = Instant::now();
            let mut rejects = Vec::new();
            let text = known.next(target, &mut rejects);
            self.walk.work.lowering += begun.elapsed().as_secs_f64();
            self.pool.tuner.began(id, known.next_us());
            rejects.iter().for_each(|r| self.walk.tally.reject(r));
            match text {
                Some(text) => match self.recalled(id, &text.cuda) {
                    Some(time) => {
                        self.walk.work.recalled += 1;
                        self.pool.trials += 1;
                        self.known(id, text.compiled(None), time);
                    }
                    None => return Some((id, text)),
                },
                None => self.refused(id, rejects.pop()),
            }
        }
        None
    }

    /// Asks for the schedules of a kernel in order.
    fn order(&mut self, id: KernelId) {
        let Some(starts) = self.pool.starts.remove(&id) else {
            return;
        };
        self.pool.tuner.wait(id);
        let tile = self.pool.kernels[id.index()].1.clone();
        let wanted = Wanted::Order(Box::new(Unordered { id, tile, starts }));
        self.ordering += usize::from(self.enumerator.ask(wanted));
    }

    /// A schedule of a kernel is none. What is given up is told to who proposes tile programs.
    fn refused(&mut self, id: KernelId, why: Option<Reject>) {
        let known = self.walk.kernels.get_mut(&self.pool.kernels[id.index()].0);
        let next = known.as_ref().and_then(|known| known.next_us());
        if let (Some(known), Some(why)) = (known, &why) {
            known.refusal = Some(why.clone());
        }
        let is_lost = self.pool.tuner.refused(id, next);
        let Some(why) = why.filter(|_| is_lost) else {
            return;
        };
        for (n, point) in self.pool.points.iter().enumerate() {
            let kernels = self.pool.tuner.kernels(ProgramId::of(n)).iter().enumerate();
            let places: Vec<usize> = kernels
                .filter(|(_, k)| **k == id)
                .map(|(at, _)| at)
                .collect();
            if !places.is_empty() {
                let refused = Box::new((point.clone(), places, why.clone()));
                self.enumerator.tell(Wanted::Refuse(refused));
            }
        }
    }

    /// Lets the GPU that has least to do time a kernel.
    fn send(&mut self, id: KernelId, scheduled: Scheduled) {
        let tile = &self.pool.kernels[id.index()].1;
        let compiled = scheduled.compilation.as_ref();
        let job = compiled.map(|c| Job::new(tile, &scheduled.cuda.launches, c.cubins()));
        let gpu = self.gpus.iter_mut().min_by_key(|gpu| gpu.under_way());
        let sent = job.zip(gpu);
        if !sent.is_some_and(|(job, gpu)| gpu.ask(Asked::Kernel(id, scheduled, job))) {
            self.refused(id, None);
        }
    }

    /// A GPU timed a kernel.
    fn timed(&mut self, id: KernelId, scheduled: Scheduled, answer: Result<Measurement, Reject>) {
        self.pool.trials += 1;
        self.walk.work.trials += 1;
        match answer {
            Ok(time) => {
                let (_, tile) = self.pool.kernels[id.index()].clone();
                let schedule = Schedule {
                    kernels: vec![scheduled.schedule.clone()],
                };
                // A tile program with one kernel is that kernel.
                let outputs = self.walk.original.outputs.len();
                let is_inner = |b: &Buffer| b.role == BufferRole::Workspace;
                let whole = ir::stores(&tile.kernels[0].body).len() >= outputs
                    && !tile.buffers.iter().any(is_inner);
                self.writer.ask(Timed {
                    whole,
                    tile,
                    schedule,
                    cuda: scheduled.cuda.clone(),
                    compilation: scheduled.compilation.clone(),
                    measured: time.clone(),
                });
                self.known(id, scheduled, time);
            }
            Err(reject) => {
                self.walk.faulted(&reject);
                let ranked = Ranked {
                    schedule: scheduled.schedule,
                    pressure: None,
                    us: scheduled.predicted,
                    rank: scheduled.rank,
                };
                self.refuse_schedule(id, &ranked, &reject);
                self.walk.tally.reject(&reject);
                self.refused(id, Some(reject));
            }
        }
    }

    /// Writes down why a schedule of a kernel is none.
    fn refuse_schedule(&mut self, id: KernelId, ranked: &Ranked, why: &Reject) {
        let known = self.walk.kernels.get_mut(&self.pool.kernels[id.index()].0);
        if let Some(known) = known {
            known.refuse(ranked, why);
        }
    }

    /// What a schedule of a kernel takes is known now.
    fn known(&mut self, id: KernelId, mut scheduled: Scheduled, time: Measurement) {
        let us = self.walk.figure(&time);
        let (key, tile) = &self.pool.kernels[id.index()];
        tracing::debug!(
            us,
            predicted = scheduled.predicted,
            kernel = search::tiling::enumerate::describe(tile),
            schedule = ?scheduled.schedule,
            "timed alone"
        );
        let (schedule, warm) = (scheduled.schedule.clone(), time.warm.median_us);
        self.nearest.add(tile, schedule, warm);
        self.pool.tuner.timed(id, scheduled.rank, us);
        scheduled.timed = Some((time, us));
        if let Some(known) = self.walk.kernels.get_mut(key) {
            known.keep(scheduled);
        }
    }

    /// What was measured of a kernel before, by this search or another one under the same conditions.
    fn recalled(&self, id: KernelId, cuda: &CudaProgram) -> Option<Measurement> {
        let memory = self.walk.options.memory.as_ref()?;
        let conditions = Conditions {
            arch: &self.walk.options.target.arch,
            compiler: &self.version,
            timed_on: &self.timed_on,
        };
        let tile = &self.pool.kernels[id.index()].1;
        let trial = memory.recall(&TrialKey::new(tile, cuda, conditions))?;
        Some(trial.measured)
    }
}

impl Programs for Tuning<'_, '_, '_, '_> {
    type Program = Task;

    fn next(&mut self, under_way: usize, at_once: usize) -> Next<Task> {
        self.hear();
        if self.walk.clock.is_stopped() || self.is_lost() {
            return Next::End;
        }
        // What was picked and waits is compiled among the last picks.
        if !self.is_last && self.is_late() {
            return Next::End;
        }
        if !self.is_last && self.picks.is_due() {
            self.pick_again();
        }
        if let Some((task, source)) = self.picks.next() {
            return Next::Program(task, source);
        }
        let busy = self.picks.under_way() + self.on_gpus();
        if self.is_last {
            return if busy == 0 || self.is_time_for_result() {
                Next::End
            } else {
                Next::Wait
            };
        }
        if self.is_over() {
            return Next::End;
        }
        if under_way >= at_once + AHEAD || self.on_gpus() >= QUEUE * self.gpus.len() {
            return Next::Wait;
        }
        match self.propose() {
            Some((id, text)) => {
                let unit = text.unit().to_owned();
                Next::Program(Task::Kernel(id, text), unit)
            }
            None if under_way + busy + self.ordering == 0 && !self.is_growing => Next::End,
            None => Next::Wait,
        }
    }

    /// What takes long to compile would take the time in which the result is verified.
    fn is_late(&self) -> bool {
        let stage = match (self.is_last, self.picks.has_tried()) {
            (true, true) => Stage::Picks,
            (true, false) => Stage::FirstPick,
            (false, _) => Stage::Deepening,
        };
        !self.arms.is_empty() && self.walk.spent(stage)
    }

    fn done(&mut self, task: Task, result: Result<Compiled, CompileError>) {
        // What was dropped says nothing of itself.
        let timeout = matches!(&result, Err(CompileError::Worker(WorkerError::Timeout(_))));
        let dropped = timeout && self.is_late();
        let result = compile::judged(result);
        match task {
            Task::Unit(id, _) if dropped && !self.is_last => self.picks.put_back(id),
            Task::Unit(_, text) if dropped => self.dropped_unit(&text),
            Task::Kernel(id, _) if dropped => self.refused(id, None),
            Task::Unit(_, text) => self.compiled_unit(&text, result),
            Task::Kernel(id, text) => match result {
                Ok(compiled) => {
                    let compilation = Compilation::new(vec![compiled], &self.version);
                    self.send(id, text.compiled(Some(compilation)));
                }
                Err(reject) => {
                    self.refuse_schedule(id, &text.ranked, &reject);
                    self.walk.tally.reject(&reject);
                    self.pool.trials += 1;
                    self.refused(id, Some(reject));
                }
            },
        }
    }
}

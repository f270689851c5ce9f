//! The search by measurement: kernels alone, compiled ahead of the GPU and timed as the tuner proposes, and what is fastest of them made a candidate.
//!
//! Four things run beside each other: processes that compile, GPUs that time what they made, a thread that enumerates, and this one, which proposes, lowers and
//! looks at what came of it. Rounds of this end where there is something to tell of, since telling compiles too.

use super::compile::{self, Compiler};
use super::enumerator::{Enumerated, Enumerator, TilePrograms, Unordered, Wanted};
use super::gpu::{Arms, Judge};
use super::kernels::{Key, Scheduled, Text};
use super::report::{self, Outcome};
use super::{
    Compilation, Conditions, Event, KernelName, Lowered, Point, Stage, Trial, TrialKey, Walk,
};
use crate::worker::Job;
use device::gpu::GpuInfo;
use device::nvrtc::{CompileError, Compiled};
use device::pool::{Next, Programs};
use device::timing::Measurement;
use ir::{AxisId, Buffer, BufferRole, KernelSchedule, Reject, Schedule, TileProgram};
use rayon::prelude::*;
use search::schedules::{Ranked, Starts};
use search::tiling::enumerate::Candidates;
use search::tune::learned::{Correction, Row};
use search::tune::{KernelId, ProgramId, Tuner};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
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
/// Trials from which it is learned how wrong the clock is: the newest.
const LEARNED_FROM: usize = 2000;
/// The schedules of a kernel that were fastest in other searches and come first.
const REMEMBERED: usize = 2;
/// Texts under way beside one a process that compiles, and kernels that wait for the GPU.
const AHEAD: usize = 4;
const QUEUE: usize = 6;
/// The time between two looks at which tile programs are worth a candidate; candidates that are made at a time, what they may take over
/// the fastest, the first of its class and another one, and what they must take of what they took when they were made before.
const LOOK: Duration = Duration::from_millis(700);
const MADE: usize = 3;
const FIRST_BEHIND: f64 = 1.3;
const BEHIND: f64 = 1.05;
const AGAIN: f64 = 0.985;

/// Tile programs, and their kernels, each once.
#[derive(Default)]
struct Pool {
    tuner: Tuner,
    /// By the tuner's numbers.
    points: Vec<Point>,
    kernels: Vec<(Key, TileProgram)>,
    known: BTreeMap<Key, KernelId>,
    groups: BTreeMap<[usize; 3], usize>,
    classes: BTreeMap<Vec<Vec<AxisId>>, usize>,
    seen: HashSet<Vec<KernelId>>,
    /// Where walks over the schedules of kernels begin that are in no order yet.
    starts: BTreeMap<KernelId, Starts>,
    /// Cuts of tile programs whose neighbours are known.
    widened: BTreeSet<(ProgramId, usize)>,
    /// What it was taken for when a tile program last became a candidate, in microseconds, and its schedule.
    made: BTreeMap<ProgramId, (f64, Schedule)>,
    /// Classes of which something was measured as a whole.
    measured: BTreeSet<usize>,
    /// How many trials there were, and when there were last more tile programs.
    trials: usize,
    grown: usize,
    /// Whether no other tile program is to be had.
    is_dry: bool,
}

/// What is compiled.
enum Task {
    Kernel(KernelId, Text),
    Candidate(ProgramId, Box<Lowered>),
}

/// What the GPU is asked, and what it says.
type Timed = (KernelId, Scheduled, Result<Measurement, Reject>, Duration);
type Asked = (KernelId, Scheduled, Job);

/// A round of trials.
struct Round<'r, 'j, 'a, 'o> {
    walk: &'r mut Walk<'a, 'o>,
    pool: &'r mut Pool,
    arms: &'r mut Arms,
    /// Something plain is held.
    held: bool,
    enumerator: Sender<Wanted>,
    enumerated: &'r Receiver<Enumerated>,
    /// Tile programs were asked for.
    is_growing: bool,
    /// Kernels whose schedules are being put in order.
    ordering: usize,
    judge: &'r Mutex<&'j mut Judge>,
    gpu: &'r GpuInfo,
    driver: String,
    to_gpu: Sender<Asked>,
    from_gpu: &'r Receiver<Timed>,
    /// How many there are.
    gpus: usize,
    /// Kernels that wait for a GPU or are on one.
    on_gpu: usize,
    /// Candidates that are to be compiled.
    waiting: VecDeque<(ProgramId, Lowered)>,
    looked: Instant,
    version: String,
    workers: usize,
}

/// Times what is asked until nobody asks any more.
fn serve(
    asked: &Mutex<Receiver<Asked>>,
    answers: &Sender<Timed>,
    time: &mut dyn FnMut(Job) -> Result<Measurement, Reject>,
) {
    loop {
        let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((kernel, scheduled, job)) = next else {
            return;
        };
        let begun = Instant::now();
        let answer = time(job);
        if answers
            .send((kernel, scheduled, answer, begun.elapsed()))
            .is_err()
        {
            return;
        }
    }
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
        let mut pool = Pool::default();
        let mut keys = HashSet::new();
        let target = self.options.target.clone();
        let gpu = judge.gpu.clone();
        let correction = self.learned(&gpu);
        let mut others = std::mem::take(&mut judge.others);
        let gpus = 1 + others.len();
        let (begun, compiled) = (Instant::now(), compiler.busy());
        loop {
            let judge = Mutex::new(&mut *judge);
            let (to_gpu, asked) = channel::<Asked>();
            let asked = Mutex::new(asked);
            let (to_here, from_gpu) = channel::<Timed>();
            let (enumerator, wanted) = channel::<Wanted>();
            let (answers, enumerated) = channel::<Enumerated>();
            let (rest, enumerating) = std::thread::scope(|scope| {
                let thread = Enumerator {
                    points: &mut *points,
                    keys: &mut keys,
                    judge: search::schedules::Judge {
                        target: &target,
                        correction: &correction,
                    },
                    clock: self.clock.clone(),
                };
                let serving = scope.spawn(move || thread.serve(&wanted, &answers));
                let (judge, asked) = (&judge, &asked);
                for other in &mut others {
                    let to_here = to_here.clone();
                    scope.spawn(move || serve(asked, &to_here, &mut |job| other.time_one(job)));
                }
                scope.spawn(move || {
                    serve(asked, &to_here, &mut |job| {
                        let mut judge = judge.lock().unwrap_or_else(PoisonError::into_inner);
                        judge.time_one(job)
                    });
                });
                let mut round = Round {
                    version: compiler.version().to_owned(),
                    workers: compiler.workers(),
                    walk: self,
                    pool: &mut pool,
                    arms,
                    held,
                    enumerator,
                    enumerated: &enumerated,
                    is_growing: false,
                    ordering: 0,
                    judge,
                    gpus,
                    gpu: &gpu,
                    driver: gpu.driver_name(),
                    to_gpu,
                    from_gpu: &from_gpu,
                    on_gpu: 0,
                    waiting: VecDeque::new(),
                    looked: Instant::now(),
                };
                compiler.stream(&mut round);
                let rest = round.rest();
                (rest, serving.join().unwrap_or_default())
            });
            self.work.enumerating += enumerating.as_secs_f64();
            self.late(rest, &mut pool, arms, compiler, &judge);
            let before = self.has_news();
            self.tell(compiler);
            if !before || self.is_tuned(arms) {
                break;
            }
        }
        self.work.seconds = begun.elapsed().as_secs_f64();
        self.work.compiling = (compiler.busy() - compiled).as_secs_f64();
    }

    /// By how much more kernels take than the clock says, by what was timed on such GPUs.
    fn learned(&self, gpu: &GpuInfo) -> Correction {
        let memory = self.options.memory.as_ref();
        let known = memory.map(|memory| memory.newest(&gpu.name, LEARNED_FROM));
        let known = known.unwrap_or_default().into_par_iter();
        let rows: Vec<Row> = known.filter_map(|trial| trial.row().ok()).collect();
        Correction::fit(&rows)
    }

    /// Candidates of a round that has ended.
    fn late(
        &mut self,
        rest: VecDeque<(ProgramId, Lowered)>,
        pool: &mut Pool,
        arms: &mut Arms,
        compiler: &mut Compiler,
        judge: &Mutex<&mut Judge>,
    ) {
        let sources: Vec<&str> = rest.iter().map(|(_, l)| l.cuda.source.as_str()).collect();
        let compiled = compiler.compile(&sources);
        let mut judge = judge.lock().unwrap_or_else(PoisonError::into_inner);
        for ((program, lowered), compilation) in rest.into_iter().zip(compiled) {
            if self.clock.is_stopped() {
                return;
            }
            self.candidate(pool, arms, &mut judge, (program, lowered), compilation);
        }
    }

    /// A candidate was compiled: it is timed, and checked on one kind of input.
    fn candidate(
        &mut self,
        pool: &mut Pool,
        arms: &mut Arms,
        judge: &mut Judge,
        (program, lowered): (ProgramId, Lowered),
        compilation: Result<Option<Compilation>, Reject>,
    ) {
        let point = &pool.points[program.index()];
        let candidate = self.compiled(point, lowered, compilation);
        let us = candidate.and_then(|c| self.try_out(arms, c, judge));
        pool.measured.insert(pool.tuner.class(program));
        match us {
            Some(us) => pool.tuner.whole(program, us),
            None => pool.tuner.refuse(program),
        }
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

impl Round<'_, '_, '_, '_> {
    /// Adds tile programs; those that have the kernels of another one are none.
    fn add(&mut self, made: TilePrograms) {
        let TilePrograms {
            points,
            found,
            mut starts,
            is_dry,
        } = made;
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
            let pool = &mut *self.pool;
            let us = |(key, _): &(Key, TileProgram)| match pool.known.get(key) {
                Some(id) => pool.tuner.us(*id),
                None => starts
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
                        let group = point.group(n).unwrap_or([usize::MAX; 3]);
                        let group = *pool.groups.entry(group).or_insert(groups);
                        let begun = starts.remove(&key);
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
        self.is_growing = self.enumerator.send(wanted).is_ok();
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
                let ranked = self.best_first(&tile, ranked);
                let known = self.walk.kernels.ordered(key, tile, ranked);
                self.pool.tuner.offer(id, known.next_us());
            }
        }
    }

    /// The schedules of a kernel, those first that were the fastest of it before.
    fn best_first(&self, tile: &TileProgram, ranked: Vec<Ranked>) -> Vec<Ranked> {
        let memory = self.walk.options.memory.as_ref();
        let name = KernelName::new(tile);
        let Some((memory, name)) = memory.zip(name) else {
            return ranked;
        };
        let read = |trial: Trial| {
            let schedule =
                Schedule::parse(&trial.schedule, "log", &codegen::language(), tile).ok()?;
            let [schedule] = <[KernelSchedule; 1]>::try_from(schedule.kernels).ok()?;
            let us = trial.clock_us;
            Some(Ranked {
                schedule,
                spills: false,
                us,
            })
        };
        let known = memory.best_of(&name, &self.gpu.name, REMEMBERED);
        let mut first: Vec<Ranked> = known.into_iter().filter_map(read).collect();
        let is_new = |r: &Ranked| first.iter().all(|known| known.schedule != r.schedule);
        let others: Vec<Ranked> = ranked.into_iter().filter(is_new).collect();
        first.extend(others);
        first
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
                self.send(id, scheduled);
                continue;
            }
            let begun = Instant::now();
            let mut rejects = Vec::new();
            let text = known.next(target, &mut rejects);
            self.walk.work.lowering += begun.elapsed().as_secs_f64();
            self.pool.tuner.began(id, known.next_us());
            rejects.iter().for_each(|r| self.walk.tally.reject(r));
            match text {
                Some(text) => match self.recalled(id, &text) {
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
        self.ordering += usize::from(self.enumerator.send(wanted).is_ok());
    }

    /// A schedule of a kernel is none. What is given up is told to who proposes tile programs.
    fn refused(&mut self, id: KernelId, why: Option<Reject>) {
        let known = self.walk.kernels.get_mut(&self.pool.kernels[id.index()].0);
        if let (Some(known), Some(why)) = (known, &why) {
            known.refusal = Some(why.clone());
        }
        let is_lost = self.pool.tuner.refused(id);
        let Some(why) = why.filter(|_| is_lost) else {
            return;
        };
        for (n, point) in self.pool.points.iter().enumerate() {
            let kernels = self.pool.tuner.kernels(ProgramId::of(n));
            if let Some(at) = kernels.iter().position(|k| *k == id) {
                let refused = Box::new((point.clone(), at, why.clone()));
                // Who enumerates may have gone, and then nothing comes of it.
                let _ = self.enumerator.send(Wanted::Refuse(refused));
            }
        }
    }

    /// Lets the GPU time a kernel.
    fn send(&mut self, id: KernelId, scheduled: Scheduled) {
        let tile = &self.pool.kernels[id.index()].1;
        let compiled = scheduled.compilation.as_ref();
        let job = compiled.map(|c| Job::new(tile, &scheduled.cuda.launches, &c.compiled.cubin));
        let sent = job.is_some_and(|job| self.to_gpu.send((id, scheduled, job)).is_ok());
        match sent {
            true => self.on_gpu += 1,
            false => self.refused(id, None),
        }
    }

    /// Takes what the GPU said.
    fn hear(&mut self, (id, scheduled, answer, took): Timed) {
        self.on_gpu -= 1;
        self.pool.trials += 1;
        self.walk.work.trials += 1;
        self.walk.work.timing += took.as_secs_f64();
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
                let subject = (&tile, &schedule, &scheduled.cuda);
                let compilation = scheduled.compilation.as_ref();
                self.walk
                    .tell_time(whole, subject, compilation, &time, self.gpu);
                self.known(id, scheduled, time);
            }
            Err(reject) => {
                self.walk.tally.reject(&reject);
                self.refused(id, Some(reject));
            }
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
        self.pool.tuner.timed(id, scheduled.predicted, us);
        scheduled.timed = Some((time, us));
        if let Some(known) = self.walk.kernels.get_mut(key) {
            known.keep(scheduled);
        }
    }

    /// What was measured of a kernel before, by this search or another one under the same conditions.
    fn recalled(&self, id: KernelId, text: &Text) -> Option<Measurement> {
        let memory = self.walk.options.memory.as_ref()?;
        let conditions = Conditions {
            arch: &self.walk.options.target.arch,
            compiler: &self.version,
            gpu: &self.gpu.name,
            driver: &self.driver,
        };
        let tile = &self.pool.kernels[id.index()].1;
        let trial = memory.recall(&TrialKey::new(tile, &text.cuda, conditions))?;
        Some(trial.measured)
    }

    /// Makes candidates of the fastest tile programs that are none yet, or whose kernels take less than `again` times what they took then.
    fn look(&mut self, again: f64) {
        let begun = Instant::now();
        let fastest = self.pool.tuner.fastest(true);
        let best = fastest.first().map_or(0.0, |(_, us)| *us);
        let mut chosen: Vec<(ProgramId, Schedule)> = Vec::new();
        let mut classes = BTreeSet::new();
        for (program, us) in fastest {
            let class = self.pool.tuner.class(program);
            let is_first = classes.insert(class) && !self.pool.measured.contains(&class);
            if us > best * FIRST_BEHIND || chosen.len() >= MADE {
                break;
            }
            if us > best * BEHIND && !is_first {
                continue;
            }
            let ids = self.pool.tuner.kernels(program);
            let own: Vec<_> = ids
                .iter()
                .map(|k| self.pool.kernels[k.index()].clone())
                .collect();
            let Ok(schedule) = self.walk.kernels.schedule(&own) else {
                continue;
            };
            let before = self.pool.made.get(&program);
            if before
                .is_none_or(|(before, as_it_was)| us < before * again && *as_it_was != schedule)
            {
                self.pool.made.insert(program, (us, schedule.clone()));
                chosen.push((program, schedule));
            }
        }
        let points: Vec<(Point, Vec<Schedule>)> = chosen
            .iter()
            .map(|(p, s)| (self.pool.points[p.index()].clone(), vec![s.clone()]))
            .collect();
        let points: Vec<(&Point, Vec<Schedule>)> =
            points.iter().map(|(p, s)| (p, s.clone())).collect();
        let mut lowered: BTreeMap<usize, Lowered> = (self.walk.lowered(&points).into_iter())
            .map(|l| (l.point, l))
            .collect();
        for (n, (program, _)) in chosen.iter().enumerate() {
            match lowered.remove(&n) {
                // Wrong, or another one has its text.
                None => self.pool.tuner.refuse(*program),
                Some(lowered) => match self.walk.kernels.compiled(&lowered.cuda.source) {
                    Some(known) => self.candidate((*program, lowered), Ok(known)),
                    None => self.waiting.push_back((*program, lowered)),
                },
            }
        }
        self.looked = Instant::now();
        self.walk.work.checking += begun.elapsed().as_secs_f64();
    }

    /// A candidate of this round was compiled.
    fn candidate(
        &mut self,
        candidate: (ProgramId, Lowered),
        compilation: Result<Compilation, Reject>,
    ) {
        let mut judge = self.judge.lock().unwrap_or_else(PoisonError::into_inner);
        let compilation = compilation.map(Some);
        self.walk
            .candidate(self.pool, self.arms, &mut judge, candidate, compilation);
    }

    /// What is left when nothing is compiled any more: answers of the GPU, and candidates of what they say, which are to be compiled.
    fn rest(mut self) -> VecDeque<(ProgramId, Lowered)> {
        while self.on_gpu > 0 {
            let Ok(answer) = self.from_gpu.recv() else {
                break;
            };
            self.hear(answer);
        }
        while self.is_growing || self.ordering > 0 {
            let Ok(enumerated) = self.enumerated.recv() else {
                break;
            };
            self.take(enumerated);
        }
        if !self.walk.clock.is_stopped() {
            self.look(1.0);
        }
        self.waiting
    }
}

impl Programs for Round<'_, '_, '_, '_> {
    type Program = Task;

    fn next(&mut self, under_way: usize) -> Next<Task> {
        while let Ok(answer) = self.from_gpu.try_recv() {
            self.hear(answer);
        }
        while let Ok(enumerated) = self.enumerated.try_recv() {
            self.take(enumerated);
        }
        if self.walk.clock.is_stopped() {
            return Next::End;
        }
        if self.looked.elapsed() >= LOOK {
            self.look(AGAIN);
        }
        if let Some((program, lowered)) = self.waiting.pop_front() {
            let source = lowered.cuda.source.clone();
            return Next::Program(Task::Candidate(program, Box::new(lowered)), source);
        }
        if self.is_over() {
            return Next::End;
        }
        if under_way >= self.workers + AHEAD || self.on_gpu >= QUEUE * self.gpus {
            return Next::Wait;
        }
        match self.propose() {
            Some((id, text)) => {
                let source = text.cuda.source.clone();
                Next::Program(Task::Kernel(id, text), source)
            }
            None if under_way + self.on_gpu + self.ordering == 0 && !self.is_growing => Next::End,
            None => Next::Wait,
        }
    }

    fn done(&mut self, task: Task, result: Result<Compiled, CompileError>) {
        let result = compile::judged(result, &self.version);
        match task {
            Task::Candidate(program, lowered) => {
                let begun = Instant::now();
                self.candidate((program, *lowered), result);
                self.walk.work.checking += begun.elapsed().as_secs_f64();
            }
            Task::Kernel(id, text) => match result {
                Ok(compilation) => self.send(id, text.compiled(Some(compilation))),
                Err(reject) => {
                    self.walk.tally.reject(&reject);
                    self.pool.trials += 1;
                    self.refused(id, Some(reject));
                }
            },
        }
    }
}

//! From a program to the best verified candidate within a budget.
//!
//! The pipeline is a walk over tile programs: the plainest first, before anything is searched, so that something verified
//! is held from the first seconds on, then by the model's time. Each is lowered under its schedules, interpreted against the program, compiled,
//! and, where there is a GPU, verified there and timed. Whatever falls out on the way is a [`Reject`] and counted.
//! A candidate and its evidence are functions of program, options and seed; the clock decides where the search for cuts ends, so which
//! candidates there are and in which order, and how far the walk over them gets.

pub mod again;
mod beside;
mod clock;
pub(crate) mod compile;
mod enumerator;
pub mod given;
mod gpu;
mod held;
pub mod history;
mod judge;
mod kernels;
mod machines;
mod made;
mod memory;
mod nearest;
mod picks;
mod promise;
pub mod report;
mod trial;
mod tune;

use crate::machine::MachineEvidence;
use crate::worker::Job;
pub use clock::Work;
use clock::{Clock, Part, Stage, Stages};
use codegen::CudaProgram;
use compile::Compiler;
use device::gpu::TimedOn;
use device::nvrtc::{Compiled, KernelStats, SearchPath};
use device::remote::RemoteHandle;
use device::timing::Measurement;
use given::{Furthest, Given, Refusals, Seed};
use held::{Held, Sound};
use history::{History, Notebook, Whole};
use ir::{Program, Reject, Schedule, Target, TileProgram, Wishes};
pub use judge::figure;
use kernels::Kernels;
use machines::Machines;
pub use memory::{Memory, MemoryHandle, Notes};
pub use promise::longest;
use report::Outcome;
use search::cost::Cost;
use search::forms::explain::Explanation;
use search::tiling::enumerate::{Candidates, SearchOptions};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
pub use trial::{Conditions, KernelName, Trial, TrialKey, program_hash};
use verify::tiling::Known;
use verify::{Keeper, Realisation, Verified};

/// How much is looked at, in counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Equal forms of the program that go on.
    pub expressions: usize,
    /// Tile programs that are enumerated and ranked.
    pub candidates: usize,
    /// Kernels that are timed alone, each under one schedule.
    pub trials: usize,
}

impl Effort {
    /// For tests and examples: the first thing that works.
    pub const LEAST: Self = Self {
        expressions: 2,
        candidates: 16,
        trials: 32,
    };
    /// What the command line uses.
    pub const NORMAL: Self = Self {
        expressions: 8,
        candidates: 400,
        trials: usize::MAX,
    };
}

/// What to optimise for, and with what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The GPU to optimise for.
    pub target: Target,
    /// How long the search should take, all that belongs to it included: the reference, the verification, the derivation of the
    /// winner's expression. It ends earlier when nothing is left to try, and later, by up to a quarter and some seconds, where nothing
    /// that was searched for has passed yet. Nothing ends it before there is a result but `stop`.
    pub budget: Duration,
    /// Ends the search when it is set: what was found until then is the result.
    pub stop: Arc<AtomicBool>,
    /// The seed of the drawn inputs.
    pub seed: u64,
    /// How much is looked at.
    pub effort: Effort,
    /// The program whose subcommands `compile-worker` and `gpu-worker` are the workers of this crate: the `tilewright`
    /// command. Without one nothing is compiled, and no GPU is used.
    pub worker: Option<PathBuf>,
    /// Where NVRTC may be.
    pub nvrtc: SearchPath,
    /// Where compiled kernels are kept between runs: a folder that nobody else may write to. What is emitted is compiled anew.
    pub cache: Option<PathBuf>,
    /// Whether a GPU of the target's kind is used if there is one; then that it cannot be used is an error.
    pub use_gpu: bool,
    /// The first GPU that is used, as the driver counts.
    pub first_gpu: u32,
    /// How many GPUs of the target's kind time at most, from that one on.
    pub gpus: u32,
    /// Where searches lock the GPU that they time on, so that none does while another one does: a folder that nobody else may write to. Without one
    /// no GPU is locked.
    pub locks: Option<PathBuf>,
    /// The only schedule that is tried; none for those that the search proposes.
    pub given: Option<Given>,
    /// What the search begins with; none for the plainest tile program.
    pub seed_from: Option<Seed>,
    /// What the schedules that the search proposes have to say, and must not.
    pub wishes: Wishes,
    /// Where what is timed is kept, and what was timed before is found.
    pub memory: Option<MemoryHandle>,
    /// Other machines, which compile what this one has no process for.
    pub remote: Option<RemoteHandle>,
}

impl Options {
    /// Half a minute for a target, no worker, no cache.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            budget: Duration::from_secs(30),
            seed: 0,
            effort: Effort::NORMAL,
            worker: None,
            nvrtc: SearchPath::default(),
            cache: None,
            use_gpu: true,
            first_gpu: 0,
            gpus: u32::MAX,
            locks: None,
            given: None,
            seed_from: None,
            wishes: Wishes::default(),
            memory: None,
            remote: None,
            stop: Arc::default(),
        }
    }
}

/// What the search says on its way.
#[derive(Debug)]
pub enum Event<'a> {
    /// A new stage, in one word.
    Stage(&'static str),
    /// How many equal forms of the program go on.
    Expressions(usize),
    /// How many tile programs were looked at so far.
    Candidates(u64),
    /// A point was rejected.
    Rejected(&'a Reject),
    /// Something was timed: a candidate, or a kernel alone.
    Timed(&'a Trial),
    /// There is a new best candidate.
    Best {
        /// It.
        candidate: &'a Verified<Candidate>,
    },
    /// What the result would be if the search ended now; it may be emitted. The first is told at once, further ones now and then.
    Held(&'a Optimized),
    /// Something that a user should know.
    Remark(&'a str),
}

/// Who listens to a search.
pub trait Observer {
    /// Something happened.
    fn event(&mut self, event: &Event<'_>);
}

/// Nobody listens.
impl Observer for () {
    fn event(&mut self, _: &Event<'_>) {}
}

/// What compiling a candidate gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compilation {
    /// Machine code and what the assembler said, of each kernel.
    pub compiled: Vec<Compiled>,
    /// NVRTC's version.
    pub compiler: String,
}

impl Compilation {
    /// What a compiler made of each kernel.
    pub fn new(compiled: Vec<Compiled>, compiler: &str) -> Self {
        Self {
            compiled,
            compiler: compiler.to_owned(),
        }
    }

    /// What the assembler said of each kernel.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelStats> + Clone {
        let all = self.compiled.iter().flat_map(|c| &c.kernels);
        all.filter(|kernel| kernel.entry)
    }

    /// What the assembler said about the registers of each kernel.
    pub fn registers(&self) -> BTreeMap<String, u32> {
        let kernels = self.kernels();
        kernels.map(|k| (k.name.clone(), k.registers)).collect()
    }

    /// The machine code of each kernel.
    pub fn cubins(&self) -> Vec<Vec<u8>> {
        self.compiled.iter().map(|c| c.cubin.clone()).collect()
    }
}

/// A point of the search space.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The form of the program that it computes.
    pub expression: Arc<Program>,
    /// The tile program.
    pub tile: TileProgram,
    /// How its kernels are mapped to the machine.
    pub schedule: Schedule,
    /// How it was made, for people.
    pub plan: String,
    /// What the model says of it under its schedule.
    pub predicted: Cost,
    /// The time in microseconds that the model said before there was a schedule: by these points come in turn.
    offered: f64,
    /// Its text.
    pub cuda: CudaProgram,
    /// Its machine code, if NVRTC was found.
    pub compilation: Option<Compilation>,
    /// Its time, if there was a GPU.
    pub measured: Option<Measurement>,
    /// The figure of it by which candidates are compared, in microseconds.
    figure: Option<f64>,
}

impl Candidate {
    /// What runs, if it was compiled.
    fn job(&self) -> Option<Job> {
        let cubins = self.compilation.as_ref()?.cubins();
        Some(Job::new(&self.tile, &self.cuda.launches, cubins))
    }

    /// The figure by which candidates of one search are compared: measured if there is a measurement.
    fn rank(&self) -> f64 {
        self.figure.unwrap_or(self.predicted.us)
    }
}

/// How far the search was that a result comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Search {
    /// It went on.
    Running,
    /// Somebody ended it.
    Interrupted,
    /// It came to its end.
    Ended,
}

/// Why an expression is equal to its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Derivation {
    /// A proof by rules.
    Found(Explanation),
    /// None was found within the limits.
    NotFound,
    /// The search, or its budget, ended before one was looked for to the end.
    NotSought,
}

impl Realisation for Candidate {
    fn tile(&self) -> &TileProgram {
        &self.tile
    }

    fn subject(&self) -> Option<String> {
        Some(self.job()?.subject())
    }
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Optimized {
    /// The best candidate, and what was checked about it.
    pub best: Verified<Candidate>,
    /// Tile programs looked at.
    pub candidates: u64,
    /// Points that are no candidates, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// How long it took.
    pub seconds: f64,
    /// What the stages of the search took, in seconds: in `measuring` and `verifying` candidates are looked at, `reference` is what was
    /// waited for it, and `verification` what checking in full took, on the way and at the end, but for what ran beside `measuring`.
    pub stages: BTreeMap<String, f64>,
    /// What was timed alone on a GPU, and what that took.
    pub work: Work,
    /// After how many seconds a candidate was held whose tile program was interpreted and is right.
    pub first_held_seconds: f64,
    /// What a user should know, such as that nothing was timed.
    pub remarks: Vec<String>,
    /// What its machine programs did under the checker.
    pub machine: MachineEvidence,
    /// Why the best candidate's expression is equal to the program.
    pub derivation: Derivation,
    /// How far the search was.
    pub search: Search,
    /// What the search went through, for people.
    pub history: History,
    /// Where candidates were timed; none where there is no GPU of the target's kind.
    pub timed_on: Option<TimedOn>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program's own tensors do not fit.
    #[error(
        "the parameters and results take {:.1} GB, and {target} has {:.0} GB of memory: give smaller extents or another target",
        *need as f64 / 1e9, *have as f64 / 1e9
    )]
    Memory {
        /// Bytes needed.
        need: u64,
        /// Bytes of device memory.
        have: u64,
        /// The target's name.
        target: String,
    },
    /// More values than a search can look at.
    #[error(
        "a search takes at most {most} values, found {found} with all sugar expanded: give it parts of the program"
    )]
    Values {
        /// Values of the program.
        found: usize,
        /// The most that are taken.
        most: usize,
    },
    /// A GPU is there, and it could not be used.
    #[error("there is a GPU, and it could not be used: {0}")]
    Gpu(String),
    /// The budget does not suffice for what a GPU has to do.
    #[error(
        "the reference and the verification take about {seconds:.0} s, and half of a budget is for candidates: a budget of {}s would do",
        enough.as_secs()
    )]
    Budget {
        /// What they take.
        seconds: f64,
        /// A budget that suffices.
        enough: Duration,
    },
    /// The search was ended before anything was found.
    #[error("ended before anything was held")]
    Stopped,
    /// No tile program can be had under the schedule that was given.
    #[error("no tile program takes the schedule; looked at {candidates}: {furthest}")]
    NotTaken {
        /// Tile programs looked at.
        candidates: u64,
        /// Why not.
        furthest: Box<Furthest>,
    },
    /// Every point was rejected.
    #[error(
        "no candidate passed; looked at {candidates}, rejected: {}",
        reasons(rejected)
    )]
    NothingVerified {
        /// Tile programs looked at.
        candidates: u64,
        /// Rejected points by reason.
        rejected: BTreeMap<String, u64>,
        /// The last reason of each kind, those first that come last: what was run tells more than what was not built.
        examples: Vec<String>,
    },
}

/// Reasons that what was built may have, the last one first.
const LATE: [&str; 6] = [
    "wrong",
    "fault",
    "undecided",
    "fragile",
    "spills",
    "compiler",
];

fn latest_first(examples: BTreeMap<&'static str, String>) -> Vec<String> {
    let mut all: Vec<(&str, String)> = examples.into_iter().collect();
    all.sort_by_key(|(reason, _)| {
        LATE.iter()
            .position(|late| late == reason)
            .unwrap_or(LATE.len())
    });
    all.into_iter().map(|(_, example)| example).collect()
}

fn reasons(rejected: &BTreeMap<String, u64>) -> String {
    let all: Vec<String> = rejected.iter().map(|(r, n)| format!("{r} {n}")).collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

/// Counts rejects and passes them on.
struct Tally<'o> {
    observer: &'o mut dyn Observer,
    memory: Option<MemoryHandle>,
    clock: Clock,
    rejected: BTreeMap<String, u64>,
    examples: BTreeMap<&'static str, String>,
    remarks: Vec<String>,
}

impl Tally<'_> {
    fn reject(&mut self, reject: &Reject) {
        // What was cut off is no reject.
        if self.clock.is_stopped() {
            return;
        }
        *self.rejected.entry(reject.reason().to_owned()).or_default() += 1;
        self.examples
            .entry(reject.reason())
            .or_insert_with(|| reject.to_string());
        self.observer.event(&Event::Rejected(reject));
    }

    /// Keeps a trial and tells of it.
    fn timed(&mut self, trial: &Trial) {
        self.memory.iter().for_each(|m| m.keep(trial));
        self.observer.event(&Event::Timed(trial));
    }

    fn remark(&mut self, remark: String) {
        self.observer.event(&Event::Remark(&remark));
        self.remarks.push(remark);
    }
}

/// Searches for the fastest verified kernel of a program.
///
/// Reports to the observer as it goes. The result is deterministic but for what the clock decides: which plans the search for cuts
/// finds, how many of them the budget reaches, and measured times.
pub fn optimize(
    program: &Program,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Optimized, Error> {
    let_pool_give_way();
    let clock = Clock::new(options.budget, options.stop.clone());
    search(program, options, &clock, observer)
}

/// Makes the threads of rayon's pool give way ([`give_way`]), if there is none yet.
fn let_pool_give_way() {
    // A pool that somebody else made stays as it is.
    let _ = (rayon::ThreadPoolBuilder::new())
        .start_handler(|_| give_way())
        .build_global();
}

/// Makes this thread, and the process if it has no other one, give way to those that verify and time on a GPU: what searches, checks and compiles has as many threads as
/// there are cores, and a verification short stretches for as many, each of which would wait until the last of its own threads is let in.
pub fn give_way() {
    /// As `nice` counts.
    const STEPS: i32 = 5;
    // Where a thread cannot be told to, all are alike.
    let _ = rustix::process::nice(STEPS);
}

fn search(
    program: &Program,
    options: &Options,
    clock: &Clock,
    observer: &mut dyn Observer,
) -> Result<Optimized, Error> {
    let (need, target) = (tensor_bytes(program), &options.target);
    if need > target.memory_bytes {
        return Err(Error::Memory {
            need,
            have: target.memory_bytes,
            target: target.name.clone(),
        });
    }
    if program.nodes.len() > MOST_VALUES {
        return Err(Error::Values {
            found: program.nodes.len(),
            most: MOST_VALUES,
        });
    }
    let given = options.given.as_ref();
    let starts = match given.and_then(|given| given.tiling.as_ref()) {
        Some((expression, _)) => vec![search::forms::axes::as_in(program, expression)],
        None => search::forms::axes::starts(program),
    };
    let starts: Vec<Program> = starts.iter().map(as_read).collect();
    let mut walk = Walk {
        starts: &starts,
        original: program,
        options,
        clock: clock.clone(),
        tally: Tally {
            observer,
            memory: options.memory.clone(),
            clock: clock.clone(),
            rejected: BTreeMap::new(),
            examples: BTreeMap::new(),
            remarks: Vec::new(),
        },
        candidates: 0,
        first_held: None,
        kernels: Kernels::new(options.wishes.clone()),
        tried: HashSet::new(),
        held: Held::default(),
        machines: Machines::default(),
        notebook: Notebook::default(),
        refusals: Refusals::default(),
        realised: false,
        known: Arc::default(),
        stages: Stages::default(),
        proving: Duration::ZERO,
        work: Work::default(),
        timed_on: None,
        plain_waits: false,
    };
    if given.is_some() {
        let remark = "the schedule was given: the search tried none of its own";
        walk.tally.remark(remark.to_owned());
    }
    if !options.wishes.is_empty() {
        let remark = "schedules were pinned or forbidden: the search did not see all of its own";
        walk.tally.remark(remark.to_owned());
    }
    let mut compiler = Compiler::new(options, clock, &mut walk.tally);
    let judge = judge::Judge::find(options, compiler.absence(), clock, &mut walk.tally);
    let judge = judge.map_err(|e| stopped(clock, e))?;
    if let Some(judge) = &judge {
        walk.timed_on = Some(judge.gpu.timed_on());
        let estimate = promise::verification(program, &options.target)?;
        let us = given.map_or_else(|| walk.quickest_start().1, |_| 0.0);
        walk.plain_waits = promise::waits(estimate, us, options.budget);
        let us = if walk.plain_waits { 0.0 } else { us };
        let estimate = promise::with_runs(estimate, us);
        promise::fits(estimate, options.budget)?;
        walk.clock.keep(promise::kept(estimate));
    }
    let (first, points, judge) = std::thread::scope(|scope| {
        // While the GPU computes the reference there is enough to do here.
        let loading = judge.map(|judge| scope.spawn(|| judge.load(program, options)));
        let first = walk.plainest(&mut compiler);
        if let (None, Some(first)) = (&loading, &first) {
            walk.hold(first.clone());
            walk.tell(&mut compiler);
        }
        walk.clock.begin();
        let points = walk.search(first.as_ref(), loading.is_some());
        if loading.is_some() {
            walk.stage("reference");
        }
        let judge = loading.map(|judge| {
            let lost = |_| {
                Err(Error::Gpu(
                    "the thread that waited for it is lost".to_owned(),
                ))
            };
            judge.join().unwrap_or_else(lost)
        });
        (first, points, judge.transpose())
    });
    let (mut points, mut judge) = (points, judge.map_err(|e| stopped(clock, e))?);
    if first.is_some() || given.is_some() {
        let end = walk.clock.end(Stage::Patience);
        walk.kernels.until = Some(end);
        compiler.end_at(end);
    }
    let best = match &mut judge {
        Some(judge) => walk.measured(first, &mut points, &mut compiler, judge),
        None => walk.predicted(first.is_some(), &mut points, &mut compiler),
    };
    for (reason, count, example) in points.iter().flat_map(|p| p.rejected().iter()) {
        *walk.tally.rejected.entry(reason.to_owned()).or_default() += count;
        let known = walk.tally.examples.entry(reason);
        known.or_insert_with(|| example.to_owned());
    }
    let Some((best, machine)) = best else {
        if clock.is_stopped() {
            return Err(Error::Stopped);
        }
        if let Some(fault) = judge.and_then(judge::Judge::never_ran) {
            return Err(Error::Gpu(fault));
        }
        let furthest = walk.refusals.furthest();
        if let Some(furthest) = furthest.filter(|_| given.is_some() && !walk.realised) {
            return Err(Error::NotTaken {
                candidates: walk.candidates,
                furthest: Box::new(furthest),
            });
        }
        return Err(Error::NothingVerified {
            candidates: walk.candidates,
            rejected: walk.tally.rejected,
            examples: latest_first(walk.tally.examples),
        });
    };
    if !clock.is_stopped() && !compiler.confirms(best.value()) {
        let remark = "the cache, or another machine, had other machine code for the best kernel than NVRTC makes of its source, so the search was done again without them";
        walk.tally.observer.event(&Event::Remark(remark));
        let uncached = Options {
            cache: None,
            remote: None,
            ..options.clone()
        };
        let mut again = self::search(program, &uncached, clock, walk.tally.observer)?;
        again.remarks.insert(0, remark.to_owned());
        return Ok(again);
    }
    for line in options.wishes.unsaid(&best.value().schedule) {
        walk.tally.remark(format!(
            "`{line}` was pinned and no kernel of the result says it: a kernel of which no schedule can say all that is pinned need not"
        ));
    }
    if best.value().measured.is_none() {
        walk.tally.remark(
            "nothing was timed: the ranking is the model's, and the kernel has not run".to_owned(),
        );
    }
    // Only for the winner: it takes as long as finding all expressions did.
    walk.stage("derivation");
    let end = clock.clone();
    let derivation = derive(program, &best.value().expression, &move || {
        end.is_over(Stage::Derivation)
    });
    let search = if clock.is_stopped() {
        Search::Interrupted
    } else {
        Search::Ended
    };
    Ok(walk.result((best, machine), derivation, search))
}

/// A GPU that does not answer because the search was ended is no error of the GPU's.
fn stopped(clock: &Clock, error: Error) -> Error {
    if clock.is_stopped() {
        Error::Stopped
    } else {
        error
    }
}

/// Bytes of all parameters and results.
fn tensor_bytes(program: &Program) -> u64 {
    let parameters = program
        .parameters()
        .map(|(_, _, dtype, dims)| (dtype, dims));
    let results = program.outputs.iter().map(|o| (o.dtype, &o.dims[..]));
    let bytes = |(dtype, dims): (ir::Dtype, &[ir::Dim])| {
        let shape = program.shape(dims).into_iter();
        shape.fold(dtype.bytes(), u64::saturating_mul)
    };
    parameters
        .chain(results)
        .map(bytes)
        .fold(0, u64::saturating_add)
}

/// A program as who reads its text finds it: what a search makes has its values in another order. Tile programs are made of such programs, so that whoever
/// reads both finds the values that buffers are called by.
pub(crate) fn as_read(program: &Program) -> Program {
    let text = program.to_string();
    text.parse().unwrap_or_else(|_| program.clone())
}

/// Why an expression is equal to its program, once the program has the same axes. Both are taken as they are written and read
/// back, so that a reader of an artifact finds the same. `stop` ends it.
pub fn derive(
    program: &Program,
    expression: &Program,
    stop: &(dyn Fn() -> bool + Sync),
) -> Derivation {
    let (program, expression) = (as_read(program), as_read(expression));
    let program = search::forms::axes::as_in(&program, &expression);
    let limits = search::forms::extract::Limits::default();
    match search::forms::explain::explain(&program, &expression, &limits, stop) {
        Some(found) => Derivation::Found(found),
        None if stop() => Derivation::NotSought,
        None => Derivation::NotFound,
    }
}

/// A tile program that was enumerated.
type Point = search::tiling::enumerate::Candidate;

/// Values of a program: with a kernel each, which is the plainest form, their texts take some gigabytes.
const MOST_VALUES: usize = 2048;
/// Points that are looked at together.
const BATCH: usize = 8;
/// Points that are interpreted together where the first that passes is the result.
const FEW: usize = 2;
/// Candidates that are timed against each other at the end.
const FINALISTS: usize = 8;

struct Walk<'a, 'o> {
    /// With the axes that a search begins with, never empty: the plain ones first.
    starts: &'a [Program],
    /// As it was given.
    original: &'a Program,
    options: &'a Options,
    clock: Clock,
    tally: Tally<'o>,
    candidates: u64,
    first_held: Option<Duration>,
    kernels: Kernels,
    /// Hashes of the texts that were tried.
    tried: HashSet<blake3::Hash>,
    held: Held,
    machines: Machines,
    notebook: Notebook,
    /// Points that were refused, and whether any was not.
    refusals: Refusals,
    realised: bool,
    /// What was found of kernels by themselves.
    known: Arc<Known>,
    stages: Stages,
    /// What verifying took that ran beside the stages.
    proving: Duration,
    work: Work,
    /// Where candidates are timed.
    timed_on: Option<TimedOn>,
    /// The plainest is so slow that others are verified first.
    plain_waits: bool,
}

impl Walk<'_, '_> {
    fn result(&self, (best, machine): Sound, derivation: Derivation, search: Search) -> Optimized {
        let elapsed = self.clock.elapsed();
        Optimized {
            machine,
            derivation,
            search,
            candidates: self.candidates,
            rejected: self.tally.rejected.clone(),
            seconds: elapsed.as_secs_f64(),
            stages: self.stages.seconds(),
            work: self.work.clone(),
            first_held_seconds: self.first_held.unwrap_or(elapsed).as_secs_f64(),
            remarks: self.tally.remarks.clone(),
            history: self.history(best.value(), search != Search::Running),
            best,
            timed_on: self.timed_on.clone(),
        }
    }

    /// There is a new best candidate.
    fn improved(&mut self, candidate: &Verified<Candidate>) {
        let after = self.clock.elapsed();
        self.notebook.improves(candidate.value(), after);
        self.tally.observer.event(&Event::Best { candidate });
    }

    fn spent(&self, stage: Stage) -> bool {
        self.clock.is_over(stage)
    }

    fn stage(&mut self, stage: &'static str) {
        tracing::debug!(elapsed = ?self.clock.elapsed(), "stage: {stage}");
        self.stages.begin(stage);
        self.tally.observer.event(&Event::Stage(stage));
    }

    /// Of the programs that the search begins with, the one that is done soonest by the model as it is, and in how many microseconds, as far
    /// as that is known: what is work by the square of a length takes a GPU long enough that nothing else could be timed.
    fn quickest_start(&self) -> (&Program, f64) {
        let target = &self.options.target;
        let us = |program: &Program| {
            let program = Arc::new(program.clone());
            let made = search::tiling::enumerate::plainest(&program, target).find_map(Result::ok);
            made.map(|point| point.predicted.us)
                .filter(|us| us.is_finite())
        };
        let timed = self.starts.iter().filter_map(|p| Some((p, us(p)?)));
        let soonest = timed.min_by(|x, y| x.1.total_cmp(&y.1));
        soonest.unwrap_or((&self.starts[0], 0.0))
    }

    /// The plainest tile program that passes, before anything is searched; where there is to be one alone, that.
    fn plainest(&mut self, compiler: &mut Compiler) -> Option<Verified<Candidate>> {
        self.stage("the plainest");
        let program = Arc::new(self.quickest_start().0.clone());
        let target = &self.options.target;
        let only = self.given_tiling();
        let seed = self.seed();
        let plainest = only
            .is_none()
            .then(|| search::tiling::enumerate::plainest(&program, target));
        let all = only.into_iter().chain(seed);
        for made in all.chain(plainest.into_iter().flatten()) {
            if self.clock.is_stopped() {
                return None;
            }
            let ready = match made {
                Ok(point) => {
                    self.candidates += 1;
                    self.ready(&[point], &mut None, compiler).pop()
                }
                Err(reject) => {
                    self.tally.reject(&reject);
                    None
                }
            };
            if let Some(first) = ready {
                report::candidate(first.value()).becomes(Outcome::Simulated);
                self.improved(&first);
                return Some(first);
            }
        }
        None
    }

    /// The other tile programs in the order in which they are tried, by the model's time, one at a time; none where the budget is
    /// spent and something is held, or where one alone is to be looked at.
    fn search(
        &mut self,
        first: Option<&Verified<Candidate>>,
        measures: bool,
    ) -> Option<Candidates> {
        let alone = (self.options.given.as_ref()).is_some_and(|given| given.tiling.is_some());
        if first.is_some() && self.spent(Stage::Walk) || self.clock.is_stopped() || alone {
            return None;
        }
        let cuts = if measures {
            Part::MeasuredCuts
        } else {
            Part::Cuts
        };
        self.stage("expressions");
        let effort = self.options.effort;
        let mut fragile: Vec<Reject> = Vec::new();
        let mut judging = Duration::ZERO;
        let clock = self.clock.clone();
        let mut expressions: Vec<Program> = Vec::new();
        for program in self.starts {
            let mut keeper = Keeper::new(program, self.options.seed);
            let found = search::forms::extract::judged(
                program,
                &search::forms::extract::Limits::default(),
                effort.expressions,
                &|| clock.is_over(Stage::Forms),
                &mut |form| {
                    let asked = Instant::now();
                    let kept = keeper.keeps(form);
                    judging += asked.elapsed();
                    let kept = kept.map_err(|refused| {
                        tracing::debug!(reject = %refused.reject, %form, "a form is refused");
                        fragile.push(refused.reject);
                        refused.errors
                    })?;
                    if kept.is_none() {
                        tracing::debug!(%form, "not known whether a form is fragile: no extents are small enough");
                    }
                    Ok(kept.is_some())
                },
            );
            expressions.extend(found.into_iter().map(|e| as_read(&e.program)));
        }
        tracing::debug!(
            forms = expressions.len(),
            refused = fragile.len(),
            judging = judging.as_secs_f64(),
            "expressions"
        );
        for reject in &fragile {
            self.tally.reject(reject);
        }
        self.tally
            .observer
            .event(&Event::Expressions(expressions.len()));
        self.stage("tilings");
        let candidates = search::tiling::enumerate::candidates(
            expressions,
            &self.options.target,
            &SearchOptions {
                seed: self.options.seed,
                max_candidates: effort.candidates,
                clocked: true,
                ..SearchOptions::default()
            },
        )
        .until(self.clock.ends(cuts))
        .ordered_until(self.clock.ends(Part::Order));
        Some(candidates)
    }

    /// The next few points; where something plain is `held` already, no other plain one.
    fn next(&mut self, points: &mut Option<Candidates>, held: bool, count: usize) -> Vec<Point> {
        let mut found = Vec::new();
        for point in points.iter_mut().flatten() {
            self.candidates += 1;
            self.tally
                .observer
                .event(&Event::Candidates(self.candidates));
            if held && point.is_plain() {
                let why = "the plainest that passed is held already";
                report::point(&point, None).becomes(Outcome::PassedOver(why));
            } else {
                found.push(point);
            }
            if found.len() >= count {
                break;
            }
        }
        found
    }

    /// Without a GPU: the first that passes, in the model's order; the plainest, which is `held`, where no other passes or is faster by
    /// the model.
    fn predicted(
        &mut self,
        held: bool,
        points: &mut Option<Candidates>,
        compiler: &mut Compiler,
    ) -> Option<Sound> {
        self.stage("verifying");
        let mut searched = false;
        loop {
            let batch = self.next(points, held, FEW);
            let Some(last) = batch.last() else {
                break;
            };
            for candidate in self.ready(&batch, points, compiler) {
                searched = true;
                report::candidate(candidate.value()).becomes(Outcome::Simulated);
                let rank = candidate.value().rank();
                let better = |held: &Verified<Candidate>| rank < held.value().rank();
                if self.held.best().is_none_or(better) {
                    self.improved(&candidate);
                    self.hold(candidate);
                } else {
                    self.notebook.saw(Whole::of(candidate.value()));
                }
            }
            self.tell(compiler);
            let best = self.held.best();
            let settled = best.is_some_and(|b| b.value().offered <= last.predicted.us);
            // The plainest alone is no answer while something that was searched for is at hand.
            let late = if searched {
                Stage::Walk
            } else {
                Stage::Patience
            };
            let enough = best.is_some() || self.options.given.is_some();
            if settled || (enough && self.spent(late)) || self.clock.is_stopped() {
                break;
            }
        }
        self.last(compiler)
    }
}

//! Picks of the search by measurement: the fastest tile programs, which are to be candidates.
//!
//! A pick is interpreted on a thread of its own, compiled among the kernels, then timed, run and verified on the thread of the first GPU. What is decided
//! between these steps is decided here, on the thread that proposes, and takes no time worth counting.

use super::history::Whole;
use super::judge::{Asked, Proved, Tried};
use super::kernels::{Kernels, Key};
use super::made::{Checker, Fallen, Lowered, Pick};
use super::tune::{Task, Tuning};
use super::{Compilation, report};
use device::nvrtc::Compiled;
use ir::{Reject, Schedule, TileProgram};
use rayon::prelude::*;
use search::tune::{KernelId, ProgramId, Tuner};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// The time between two looks at which tile programs are worth a candidate; picks that are made at a time, and that may be under way before it is looked
/// again.
const LOOK: Duration = Duration::from_millis(700);
const PICKED: usize = 3;
const UNDER_WAY: usize = 3;
/// What a pick may take over the fastest, the first of its class and another one, and what it must take of what it took when it was picked before.
const FIRST_BEHIND: f64 = 1.3;
const BEHIND: f64 = 1.05;
const AGAIN: f64 = 0.985;
/// What may differ of a pick and one before it, as a part of what it takes, where it has to be faster than that to be another one.
const NEARLY: f64 = 0.03;

/// What was picked.
pub(super) struct Picks {
    /// What a tile program was taken for when it was last picked, in microseconds, and its schedule.
    made: BTreeMap<ProgramId, (f64, Schedule)>,
    /// Classes of which something was picked that could be had.
    classes: BTreeSet<usize>,
    looked: Instant,
    /// How many are neither refused nor tried.
    under_way: usize,
    /// One could be had.
    has_tried: bool,
    /// The longest that interpreting one took.
    longest: Duration,
    /// Those that are to be compiled, in turn.
    compiling: Vec<Compiling>,
    /// How many there were of these.
    numbered: usize,
    /// A candidate is being verified.
    is_proving: bool,
}

/// A pick that is being compiled.
struct Compiling {
    /// Tells it from other picks of the same tile program.
    number: usize,
    program: ProgramId,
    lowered: Lowered,
    units: Vec<Unit>,
}

/// How far a translation unit of a pick is.
#[derive(Clone)]
enum Unit {
    Waits,
    IsUnderWay,
    Is(Compiled),
}

/// Which pick it is of, by its number, and where it stands there.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnitId(usize, usize);

impl Compiling {
    /// Its units, with their texts.
    fn texts(&self) -> impl Iterator<Item = (UnitId, &str, &Unit)> {
        let all = self.lowered.cuda.units.iter().zip(&self.units).enumerate();
        all.map(|(at, (text, unit))| (UnitId(self.number, at), text.as_str(), unit))
    }

    /// What all its units are, once all are there.
    fn compiled(&self) -> Option<Vec<Compiled>> {
        let compiled = |unit: &Unit| match unit {
            Unit::Is(compiled) => Some(compiled.clone()),
            Unit::Waits | Unit::IsUnderWay => None,
        };
        self.units.iter().map(compiled).collect()
    }
}

impl Default for Picks {
    fn default() -> Self {
        Self {
            made: BTreeMap::new(),
            classes: BTreeSet::new(),
            looked: Instant::now(),
            under_way: 0,
            longest: Duration::ZERO,
            has_tried: false,
            compiling: Vec::new(),
            numbered: 0,
            is_proving: false,
        }
    }
}

impl Picks {
    /// Whether it is time to look for others.
    pub(super) fn is_due(&self) -> bool {
        self.looked.elapsed() >= LOOK && self.under_way <= UNDER_WAY
    }

    /// Whether one could be had.
    pub(super) fn has_tried(&self) -> bool {
        self.has_tried
    }

    /// How many are under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// One is to be compiled, but for units that are.
    fn compile(&mut self, program: ProgramId, lowered: Lowered, kernels: &Kernels) {
        let of = |text: &String| match kernels.unit(text) {
            Some(compiled) => Unit::Is(compiled.clone()),
            None => Unit::Waits,
        };
        self.compiling.push(Compiling {
            number: self.numbered,
            program,
            units: lowered.cuda.units.iter().map(of).collect(),
            lowered,
        });
        self.numbered += 1;
    }

    /// The next unit that is to be compiled, with its text: none that is being compiled for another pick.
    pub(super) fn next(&mut self) -> Option<(Task, String)> {
        let all = || self.compiling.iter().flat_map(Compiling::texts);
        let under_way = all().filter(|(_, _, unit)| matches!(unit, Unit::IsUnderWay));
        let under_way: BTreeSet<&str> = under_way.map(|(_, text, _)| text).collect();
        let waiting = all().filter(|(_, _, unit)| matches!(unit, Unit::Waits));
        let (id, text, _) = waiting
            .into_iter()
            .find(|(_, text, _)| !under_way.contains(text))?;
        let text = text.to_owned();
        self.set(id, Unit::IsUnderWay);
        Some((Task::Unit(id, text.clone()), text))
    }

    /// A unit that was not compiled in time is compiled later.
    pub(super) fn put_back(&mut self, id: UnitId) {
        self.set(id, Unit::Waits);
    }

    /// Says how far a unit is, unless another one of its pick could not be had.
    fn set(&mut self, UnitId(number, at): UnitId, unit: Unit) {
        let pick = self.compiling.iter_mut().find(|c| c.number == number);
        pick.into_iter().for_each(|c| c.units[at] = unit.clone());
    }

    /// A unit was compiled, for every pick that has it.
    fn has(&mut self, text: &str, compiled: &Compiled) {
        for pick in &mut self.compiling {
            for (unit, own) in pick.units.iter_mut().zip(&pick.lowered.cuda.units) {
                if own == text {
                    *unit = Unit::Is(compiled.clone());
                }
            }
        }
    }

    /// Those of which all units are compiled: nothing more is compiled of them.
    fn whole(&mut self) -> Vec<(ProgramId, Lowered, Vec<Compiled>)> {
        let (whole, rest) = std::mem::take(&mut self.compiling)
            .into_iter()
            .partition::<Vec<_>, _>(|pick| pick.compiled().is_some());
        self.compiling = rest;
        let taken = |pick: Compiling| Some((pick.program, pick.compiled()?, pick.lowered));
        let whole = whole.into_iter().filter_map(taken);
        whole
            .map(|(program, compiled, lowered)| (program, lowered, compiled))
            .collect()
    }

    /// Those that have a unit that cannot be had: nothing more is compiled of them.
    fn with(&mut self, text: &str) -> Vec<(ProgramId, Lowered)> {
        let has = |pick: &mut Compiling| pick.lowered.cuda.units.iter().any(|own| own == text);
        let lost = self.compiling.extract_if(.., has);
        lost.map(|pick| (pick.program, pick.lowered)).collect()
    }

    /// Whether it is one that was picked but for kernels that take next to nothing, and no faster.
    fn is_nearly_another(&self, tuner: &Tuner, program: ProgramId, again: f64) -> bool {
        let us = |(kernel, times): (&KernelId, f64)| tuner.us(*kernel) * times;
        // What those kernels take that one has more often than the other.
        let more = |own: &BTreeMap<KernelId, f64>, other: &BTreeMap<KernelId, f64>| -> f64 {
            let more = |(kernel, times): (_, &f64)| {
                let rest = times - other.get(kernel).unwrap_or(&0.0);
                (rest > 0.0).then_some((kernel, rest))
            };
            own.iter().filter_map(more).map(us).sum()
        };
        let all = |program| -> f64 { tuner.kernels(program).iter().map(|k| tuner.us(*k)).sum() };
        let (own, own_us) = (tuner.places(program), all(program));
        self.made.keys().any(|made| {
            *made != program && !tuner.is_refused(*made) && own_us >= all(*made) * again && {
                let other = tuner.places(*made);
                more(own, other).max(more(other, own)) <= NEARLY * own_us
            }
        })
    }

    /// The fastest tile programs that were not picked yet, or that take less than `again` times what they took then.
    fn pick(
        &mut self,
        tuner: &Tuner,
        kernels: (&[(Key, TileProgram)], &Kernels),
        again: f64,
    ) -> Vec<(ProgramId, Schedule)> {
        let fastest = tuner.fastest(true);
        let best = fastest.first().map_or(0.0, |(_, us)| *us);
        let mut chosen = Vec::new();
        let mut seen = BTreeSet::new();
        for (program, us) in fastest {
            let class = tuner.class(program);
            let is_first = seen.insert(class) && !self.classes.contains(&class);
            if us > best * FIRST_BEHIND || chosen.len() >= PICKED {
                break;
            }
            if us > best * BEHIND && !is_first {
                continue;
            }
            let (all, known) = kernels;
            let ids = tuner.kernels(program).iter();
            let own: Vec<_> = ids.map(|k| all[k.index()].clone()).collect();
            let Ok(schedule) = known.schedule(&own) else {
                continue;
            };
            let is_new = |(before, as_it_was): &(f64, Schedule)| {
                us < before * again && *as_it_was != schedule
            };
            if self.made.get(&program).is_none_or(is_new)
                && !self.is_nearly_another(tuner, program, again)
            {
                self.made.insert(program, (us, schedule.clone()));
                self.classes.insert(class);
                chosen.push((program, schedule));
            }
        }
        self.looked = Instant::now();
        self.under_way += chosen.len();
        chosen
    }
}

/// A pick that was looked at, and how long that took.
pub(super) type Looked = (ProgramId, Result<Lowered, Box<Fallen>>, Duration);

/// Looks at picks until nobody asks any more, at several at once. Gives how long it was busy.
pub(super) fn serve(
    checker: &Checker<'_>,
    asked: &Receiver<(ProgramId, Pick)>,
    answers: &Sender<Looked>,
    is_stopped: impl Fn() -> bool + Sync,
) -> Duration {
    let mut busy = Duration::ZERO;
    while let Ok(first) = asked.recv() {
        let begun = Instant::now();
        let rest: Vec<_> = asked.try_iter().collect();
        let look = |answers: &mut Sender<Looked>, (program, pick)| {
            if !is_stopped() {
                let begun = Instant::now();
                let looked = checker.look(pick);
                // Who asked may have gone.
                let _ = answers.send((program, looked, begun.elapsed()));
            }
        };
        // Picks have most of their kernels in common: what is known of those of the first need not be found by others at the same time.
        look(&mut answers.clone(), first);
        rest.into_par_iter().for_each_with(answers.clone(), look);
        busy += begun.elapsed();
    }
    busy
}

impl Tuning<'_, '_, '_, '_> {
    /// Picks the fastest tile programs; see [`Picks::pick`].
    pub(super) fn pick(&mut self, again: f64) {
        // What is interpreted then would take the time in which the result is verified.
        let end = Instant::now() + self.picks.longest;
        if self.picks.has_tried && end > self.walk.clock.last() {
            return;
        }
        let kernels = (&self.pool.kernels[..], &self.walk.kernels);
        for (program, schedule) in self.picks.pick(&self.pool.tuner, kernels, again) {
            let point = self.pool.points[program.index()].clone();
            if !self.checker.ask((program, (point, schedule))) {
                self.picks.under_way -= 1;
            }
        }
    }

    /// The same, where they are a little faster than when they were picked before.
    pub(super) fn pick_again(&mut self) {
        self.pick(AGAIN);
    }

    /// A pick was interpreted.
    pub(super) fn looked(&mut self, (program, looked, took): Looked) {
        self.walk.work.checking += took.as_secs_f64();
        self.picks.longest = self.picks.longest.max(took);
        match self.walk.looked(looked) {
            // Wrong, or another one has its text.
            None => {
                self.picks.classes.remove(&self.pool.tuner.class(program));
                self.settle(program, None);
            }
            Some(lowered) => match self.walk.kernels.compiled(&lowered.cuda.units) {
                Some(known) => self.compiled(program, lowered, Ok(known)),
                None => {
                    self.picks.compile(program, lowered, &self.walk.kernels);
                    self.compiled_whole();
                }
            },
        }
    }

    /// A unit of picks was compiled, or cannot be had.
    pub(super) fn compiled_unit(&mut self, text: &str, result: Result<Compiled, Reject>) {
        match result {
            Ok(compiled) => {
                self.picks.has(text, &compiled);
                self.walk.kernels.keep_unit(text, compiled);
                self.compiled_whole();
            }
            Err(reject) => {
                for (program, lowered) in self.picks.with(text) {
                    self.compiled(program, lowered, Err(reject.clone()));
                }
            }
        }
    }

    /// There was no time to compile a unit of picks.
    pub(super) fn dropped_unit(&mut self, text: &str) {
        for (program, lowered) in self.picks.with(text) {
            lowered.passed_over("there was no time to compile it");
            self.settle(program, None);
        }
    }

    /// Tries those of which all units are compiled.
    fn compiled_whole(&mut self) {
        for (program, lowered, compiled) in self.picks.whole() {
            let compilation = Compilation::new(compiled, &self.version);
            self.compiled(program, lowered, Ok(compilation));
        }
    }

    /// A pick was compiled.
    pub(super) fn compiled(
        &mut self,
        program: ProgramId,
        lowered: Lowered,
        compilation: Result<Compilation, Reject>,
    ) {
        let candidate = self.walk.compiled(lowered, compilation.map(Some));
        let trying = candidate.map(|c| self.walk.trying(self.arms, c));
        let asked = trying.map(|trying| Asked::Candidate(program, trying));
        if !asked.is_some_and(|asked| self.gpus[0].ask(asked)) {
            self.settle(program, None);
        }
    }

    /// A candidate was timed, and checked on one kind of input.
    pub(super) fn tried(&mut self, program: ProgramId, tried: Tried) {
        let us = self.walk.tried(self.arms, tried, self.gpu);
        self.settle(program, us);
        self.prove();
    }

    /// A candidate was verified.
    pub(super) fn proved(&mut self, proved: Proved) {
        self.picks.is_proving = false;
        self.walk.proved(self.arms, proved);
        self.prove();
    }

    /// Has the fastest candidate verified, where that is worth the time.
    fn prove(&mut self) {
        if !self.picks.is_proving
            && let Some(best) = self.walk.worth_proving(self.arms)
        {
            let said = report::candidate(best.value());
            let seen = Box::new(Whole::of(best.value()));
            (self.walk.machines).begin(best.value(), &self.walk.options.target);
            self.picks.is_proving = self.gpus[0].ask(Asked::Proof(said, seen, best));
        }
    }

    /// Nothing more comes of a pick; it took so many microseconds, if it could be had.
    fn settle(&mut self, program: ProgramId, us: Option<f64>) {
        self.picks.under_way -= 1;
        self.picks.has_tried |= us.is_some();
        match us {
            Some(us) => self.pool.tuner.whole(program, us),
            None => self.pool.tuner.refuse(program),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_by_next_to_nothing_is_picked_once() {
        let mut tuner = Tuner::new();
        let [slow, other, small, smaller] = [1000.0, 990.0, 5.0, 4.0].map(|us| {
            let id = tuner.kernel(0, us);
            tuner.timed(id, us, us);
            id
        });
        let made = tuner.program(0, &[small, slow]);
        let alike = tuner.program(0, &[smaller, slow]);
        let another = tuner.program(0, &[small, other]);
        let mut picks = Picks::default();
        let nothing = Schedule {
            kernels: Vec::new(),
        };
        picks.made.insert(made, (1005.0, nothing));
        assert!(picks.is_nearly_another(&tuner, alike, AGAIN));
        assert!(!picks.is_nearly_another(&tuner, another, AGAIN));
        // At the end whatever is faster counts.
        assert!(!picks.is_nearly_another(&tuner, alike, 1.0));
        // One that was refused says nothing of others.
        tuner.refuse(made);
        assert!(!picks.is_nearly_another(&tuner, alike, AGAIN));
    }
}

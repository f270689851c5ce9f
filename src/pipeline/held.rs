//! What is held on the way: candidates that may be emitted, what is asked of them before they are told of, and what of the last one.

use super::compile::Compiler;
use super::history::Whole;
use super::machines::{self, Key};
use super::made::with_axes_of;
use super::report::{self, Outcome};
use super::{Candidate, Derivation, Event, Search, Walk, as_read};
use crate::machine::MachineEvidence;
use ir::Reject;
use search::forms::explain::Explanation;
use std::time::{Duration, Instant};
use verify::{TilingOptions, Verified};

/// The stage in which something is checked in full.
pub(super) const VERIFICATION: &str = "verification";

/// Element operations that a candidate is interpreted with at its true extents, and a result.
pub(super) const LITTLE: u64 = 2_000_000;
const FULL: u64 = 40_000_000;
/// How many times as many where that is not enough for a few output elements.
pub(super) const MORE: u64 = 10;
/// What one of them takes at most, and the share of the time left for the result that all may take.
const ELEMENT_OPERATION: Duration = Duration::from_nanos(25);
const LOOKED_AT: f64 = 0.5;
/// So long after it was told of a result it is told of no other one: each is written by who listens, and where it comes from the
/// cache it is compiled anew before.
const PAUSE: Duration = Duration::from_secs(2);

/// A candidate, and what its machine programs did.
pub(super) type Sound = (Verified<Candidate>, MachineEvidence);

/// What may be emitted.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// When it was told of one, and how many there were.
    told: Option<(Instant, usize)>,
    /// Each better than the one before it, those that were told of included, with the names of their machine programs. They were
    /// looked at as all candidates are, and their evidence says how; more is asked of a result.
    better: Vec<(Verified<Candidate>, Key)>,
}

impl Held {
    pub(super) fn best(&self) -> Option<&Verified<Candidate>> {
        self.better.last().map(|(best, _)| best)
    }
}

impl Walk<'_, '_> {
    /// Holds what may be emitted.
    pub(super) fn hold(&mut self, best: Verified<Candidate>) {
        let key = machines::key(best.value());
        self.held.better.push((best, key));
    }

    /// Whether it is time to tell of something, and nobody is still looking at its machine programs.
    pub(super) fn has_news(&self) -> bool {
        let count = self.held.better.len();
        let soon = |(when, told): (Instant, usize)| when.elapsed() < PAUSE || told == count;
        let newest = self.held.better.last();
        newest.is_some_and(|(_, key)| !self.machines.is_looking(key))
            && !self.held.told.is_some_and(soon)
    }

    /// The best whose machine programs do nothing wrong.
    pub(super) fn sound(&mut self) -> Option<Sound> {
        while let Some((best, key)) = self.held.better.pop() {
            if let Some(machine) = self.machine(&best) {
                self.held.better.push((best.clone(), key));
                return Some((best, machine));
            }
        }
        None
    }

    /// What the machine programs of a candidate do; none where one may go wrong, which is then refused.
    pub(super) fn machine(&mut self, candidate: &Verified<Candidate>) -> Option<MachineEvidence> {
        let outer = self.stages.begin(VERIFICATION);
        let value = candidate.value();
        let found = self.machines.of(value, &self.options.target);
        self.stages.begin(outer.unwrap_or_default());
        match found {
            Ok(machine) => Some(machine),
            Err(reject) => {
                report::candidate(value).becomes(Outcome::Refused(&reject));
                self.notebook.saw(Whole::of(value).refused(&reject));
                self.tally.reject(&reject);
                None
            }
        }
    }

    /// What a result has to pass: candidates are looked at with less. Where there is no time for all of it, with what there is time for; what comes
    /// `behind` it takes its own.
    pub(super) fn in_full(
        &mut self,
        candidate: &Verified<Candidate>,
        behind: Duration,
    ) -> Result<Verified<Candidate>, Reject> {
        let outer = self.stages.begin(VERIFICATION);
        let value = candidate.value();
        let program = with_axes_of(self.starts, &value.expression);
        let tile = value.tile.clone();
        let left = self.clock.left_for_result().saturating_sub(behind);
        let left = left.mul_f64(LOOKED_AT);
        let affordable = (left.as_secs_f64() / ELEMENT_OPERATION.as_secs_f64()) as u64;
        let most = |all: u64, least: u64| all.min(affordable).max(least);
        let checks = self.checks(most(FULL, LITTLE), most(FULL * MORE, LITTLE * MORE));
        let checked = Verified::tiling(program, &value.expression, tile, &checks, &self.known);
        self.stages.begin(outer.unwrap_or_default());
        checked?.realised(|_| value.clone())
    }

    pub(super) fn checks(&self, slice_work: u64, most_slice_work: u64) -> TilingOptions {
        TilingOptions {
            seed: self.options.seed,
            slice_work,
            most_slice_work,
            ..TilingOptions::default()
        }
    }

    /// The result: the best that passes in full; others are refused.
    pub(super) fn last(&mut self, compiler: &mut Compiler) -> Option<Sound> {
        // Looking at it in full may outlast the budget: then the best is the result as it was found.
        let untold = self
            .held
            .told
            .is_none_or(|(_, told)| told < self.held.better.len());
        if untold && !self.clock.is_stopped() && self.sound().is_some() {
            self.held.told = None;
            self.tell(compiler);
        }
        while let Some((best, machine)) = self.sound() {
            self.held.better.pop();
            // Nothing is compiled any more: what came from the cache and was not told of is not known to be right.
            if self.clock.is_stopped() && !compiler.confirms(best.value()) {
                continue;
            }
            // What ran at full size passed more than that.
            if best.evidence().kernel.is_some() {
                return Some((best, machine));
            }
            match self.in_full(&best, Duration::ZERO) {
                Ok(best) => return Some((best, machine)),
                Err(reject) => {
                    report::candidate(best.value()).becomes(Outcome::Refused(&reject));
                    let whole = Whole::of(best.value()).refused(&reject);
                    self.notebook.saw(whole);
                    self.tally.reject(&reject);
                }
            }
        }
        None
    }

    /// Tells of what is held, unless something was told just now.
    pub(super) fn tell(&mut self, compiler: &mut Compiler) {
        if !self.has_news() {
            return;
        }
        let Some((best, machine)) = self.sound() else {
            return;
        };
        let count = self.held.better.len();
        self.held.told = Some((Instant::now(), count));
        // What comes from the cache or from another machine is no compiler's word. If it is wrong the end will find it.
        if !compiler.confirms(best.value()) {
            let remark = "the cache, or another machine, had other machine code for a kernel than NVRTC makes of its source: it was compiled anew";
            self.tally.remark(remark.to_owned());
            self.kernels.forget(&best.value().cuda.units);
            return;
        }
        // A proof of anything but the program itself takes too long for now.
        let own = *best.value().expression == as_read(self.original);
        let derivation = if own {
            Derivation::Found(Explanation::default())
        } else {
            Derivation::NotSought
        };
        self.first_held.get_or_insert_with(|| self.clock.elapsed());
        let held = self.result((best, machine), derivation, Search::Running);
        self.tally.observer.event(&Event::Held(&held));
    }
}

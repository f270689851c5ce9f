//! What a search went through, as its artifact keeps it for people: each improvement, what lost and why, and an example of each kind of reject.
//!
//! Nothing here decides anything, and nothing derives it again: it is what the search wrote down. Lists are bounded by counts, so that an
//! artifact of a long search is not larger than one of a short one.

use super::{Candidate, Point, Walk, kernels};
use codegen::clock::{Part, Parts};
use ir::{Reject, Schedule, Target, TileProgram};
use search::cost::{Cost, cost};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Improvements that are kept; where there are more, those that gained least are left out.
const MOST_IMPROVEMENTS: usize = 64;
/// Losers that an artifact names, and how many of them are whole candidates where kernels have others.
pub const LOSERS: usize = 20;
const WHOLE: usize = LOSERS / 2;
/// Whole candidates that are kept during the search, and schedules of each kernel.
const MOST_WHOLE: usize = 64;
pub(super) const MOST_SCHEDULES: usize = LOSERS + 1;
/// Parts of the clock's time that differ by less, in microseconds, are not said to differ.
const NOTHING_US: f64 = 0.001;

/// What a search went through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// How long it had taken, in seconds.
    pub seconds: f64,
    /// Each candidate that was the best so far, in turn.
    pub improvements: Vec<Improvement>,
    /// How many improvements are not among them.
    pub left_out: u64,
    /// What came closest, that with the least loss first; empty where the search had not come to its end.
    pub losers: Vec<Loser>,
    /// The first rejected point of each reason, as it was said.
    pub examples: BTreeMap<String, String>,
}

/// A candidate under its schedule, in texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Its kernels, and the tile of each axis.
    pub plan: String,
    /// Its schedule.
    pub schedule: String,
    /// Microseconds by the clock.
    pub clock_us: f64,
}

/// A candidate that was better than all before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Improvement {
    /// When it was known, in seconds from the beginning of the search.
    pub seconds: f64,
    /// Its time in microseconds: measured, or the clock's.
    pub us: f64,
    /// Whether it was measured.
    pub measured: bool,
    /// It.
    pub seen: Seen,
}

/// A candidate, or a schedule of one kernel of the winner, that is not the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loser {
    /// It; of one kernel, that kernel's plan and schedule.
    pub seen: Seen,
    /// The kernel of the winner, by its number, where nothing else differs.
    pub kernel: Option<usize>,
    /// Its time in microseconds: measured, or the clock's. A kernel's is that of the kernel alone.
    pub us: f64,
    /// The same of the winner.
    pub best_us: f64,
    /// Whether both were measured.
    pub measured: bool,
    /// Whether it was made: else the clock alone spoke, and others came first.
    pub tried: bool,
    /// Why it is none, where it was not merely slower.
    pub refused: Option<Refusal>,
    /// By how many microseconds each part of the clock's time is more than the winner's.
    pub parts: BTreeMap<String, f64>,
}

impl Loser {
    /// By how much it is slower, in microseconds; less than nothing where it was refused and might have been faster.
    pub fn loss(&self) -> f64 {
        self.us - self.best_us
    }
}

/// Why something is no candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The key under which it is counted.
    pub reason: String,
    /// What was said.
    pub text: String,
}

impl Refusal {
    fn of(reject: &Reject) -> Self {
        Self {
            reason: reject.reason().to_owned(),
            text: reject.to_string(),
        }
    }
}

/// The clock's parts of all kernels together.
fn summed(cost: &Cost) -> Parts {
    let all = cost.kernels.iter().filter_map(|k| k.clock);
    all.fold(Parts::default(), |sum, parts| sum + parts)
}

/// What differs between the clock's parts.
fn differing(own: Parts, best: Parts) -> BTreeMap<String, f64> {
    let parts = Part::ALL.into_iter().filter(|part| *part != Part::All);
    let differing = parts.map(|part| (part, own[part] - best[part]));
    let seen = differing.filter(|(_, us)| us.is_finite() && us.abs() >= NOTHING_US);
    seen.map(|(part, us)| (part.name().to_owned(), us))
        .collect()
}

fn hashed(tile: &TileProgram) -> blake3::Hash {
    blake3::hash(tile.to_string().as_bytes())
}

/// A whole candidate that was looked at.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    /// Of the tile program's text: forms of a program may have the same plan.
    tile: blake3::Hash,
    seen: Seen,
    parts: Parts,
    us: f64,
    measured: bool,
    refused: Option<Refusal>,
}

impl Whole {
    pub(super) fn of(candidate: &Candidate) -> Self {
        Self {
            tile: hashed(&candidate.tile),
            seen: Seen {
                plan: candidate.plan.clone(),
                schedule: candidate.schedule.text(&candidate.tile),
                clock_us: candidate.predicted.us,
            },
            parts: summed(&candidate.predicted),
            us: candidate.rank(),
            measured: candidate.figure.is_some(),
            refused: None,
        }
    }

    /// One that came no further than its schedule.
    pub(super) fn of_point(point: &Point, schedule: &Schedule, target: &Target) -> Self {
        let cost = cost(&point.tile, Some(schedule), target);
        Self {
            tile: hashed(&point.tile),
            seen: Seen {
                plan: point.plan_text.clone(),
                schedule: schedule.text(&point.tile),
                clock_us: cost.us,
            },
            parts: summed(&cost),
            us: cost.us,
            measured: false,
            refused: None,
        }
    }

    /// What is said of it by the clock alone, since it was refused.
    pub(super) fn refused(mut self, reject: &Reject) -> Self {
        self.refused = Some(Refusal::of(reject));
        (self.us, self.measured) = (self.seen.clock_us, false);
        self
    }

    fn is(&self, other: &Self) -> bool {
        (self.tile, &self.seen.schedule) == (other.tile, &other.seen.schedule)
    }
}

/// What is written down while a search goes on.
#[derive(Debug, Default)]
pub(super) struct Notebook {
    improvements: Vec<Improvement>,
    left_out: u64,
    /// The fastest, each once, with what became of it last.
    whole: Vec<Whole>,
}

impl Notebook {
    /// Something is better than all before it.
    pub(super) fn improves(&mut self, candidate: &Candidate, after: Duration) {
        let whole = Whole::of(candidate);
        self.improvements.push(Improvement {
            seconds: after.as_secs_f64(),
            us: whole.us,
            measured: whole.measured,
            seen: whole.seen.clone(),
        });
        self.saw(whole);
        if self.improvements.len() > MOST_IMPROVEMENTS {
            // Neither the first nor the last.
            let gains = self.improvements.windows(2).enumerate();
            let gains = gains.take(MOST_IMPROVEMENTS - 1);
            let gain = |pair: &[Improvement]| pair[0].us - pair[1].us;
            let least = gains.min_by(|x, y| gain(x.1).total_cmp(&gain(y.1)));
            if let Some((before, _)) = least {
                self.improvements.remove(before + 1);
                self.left_out += 1;
            }
        }
    }

    /// Something became of a candidate.
    pub(super) fn saw(&mut self, whole: Whole) {
        self.whole.retain(|other| !other.is(&whole));
        let at = self.whole.partition_point(|other| other.us <= whole.us);
        self.whole.insert(at, whole);
        self.whole.truncate(MOST_WHOLE);
    }

    /// Whole candidates that lost against this one.
    fn losers(&self, best: &Candidate) -> Vec<Loser> {
        let winner = Whole::of(best);
        let others = self.whole.iter().filter(|other| !other.is(&winner));
        // Where times are measured the clock's are no others.
        let alike = others.filter(|w| w.measured == winner.measured || w.refused.is_some());
        alike
            .map(|other| Loser {
                seen: other.seen.clone(),
                kernel: None,
                us: other.us,
                best_us: match other.measured {
                    true => winner.us,
                    false => winner.seen.clock_us,
                },
                measured: other.measured,
                tried: true,
                refused: other.refused.clone(),
                parts: differing(other.parts, winner.parts),
            })
            .collect()
    }
}

/// A schedule of one kernel that is not the winner's.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub(super) schedule: ir::KernelSchedule,
    /// Microseconds by the clock.
    pub(super) clock_us: f64,
    /// Microseconds that the kernel alone took.
    pub(super) measured_us: Option<f64>,
    /// Whether it was lowered.
    pub(super) tried: bool,
    pub(super) refused: Option<Reject>,
}

/// The parts of a kernel alone.
fn alone(tile: &TileProgram, schedule: &ir::KernelSchedule, target: &Target) -> Parts {
    let schedule = Schedule {
        kernels: vec![schedule.clone()],
    };
    summed(&cost(tile, Some(&schedule), target))
}

impl Walk<'_, '_> {
    /// What the search went through until now; with the losers where it has come to its end.
    pub(super) fn history(&self, best: &Candidate, ended: bool) -> History {
        History {
            seconds: self.clock.elapsed().as_secs_f64(),
            improvements: self.notebook.improvements.clone(),
            left_out: self.notebook.left_out,
            losers: match ended {
                true => self.losers(best),
                false => Vec::new(),
            },
            examples: (self.tally.examples.iter())
                .map(|(reason, text)| ((*reason).to_owned(), text.clone()))
                .collect(),
        }
    }

    /// What came closest to the winner: whole candidates, and its kernels under other schedules.
    fn losers(&self, best: &Candidate) -> Vec<Loser> {
        let by_loss = |x: &Loser, y: &Loser| x.loss().total_cmp(&y.loss());
        let mut whole = self.notebook.losers(best);
        whole.sort_by(by_loss);
        let count = best.tile.kernels.len();
        // Kernels that take next to nothing have many schedules that lose next to nothing.
        let each = (LOSERS / count.max(1)).max(3);
        let mut kernels: Vec<Loser> = Vec::new();
        let mut seen = BTreeSet::new();
        for (number, (key, tile)) in kernels::alone(&best.tile).into_iter().enumerate() {
            // Of equal ones the first.
            if !seen.insert(key.clone()) {
                continue;
            }
            let Some(own) = best.schedule.kernels.get(number) else {
                continue;
            };
            let mut others = self.of_kernel(number, &key, &tile, own, best.figure.is_some());
            others.sort_by(by_loss);
            others.truncate(each);
            kernels.extend(others);
        }
        kernels.sort_by(by_loss);
        let room = LOSERS.saturating_sub(kernels.len()).max(WHOLE);
        whole.truncate(room);
        kernels.truncate(LOSERS - whole.len());
        whole.extend(kernels);
        whole.sort_by(by_loss);
        whole
    }

    /// The schedules of a kernel that lost.
    fn of_kernel(
        &self,
        number: usize,
        key: &str,
        tile: &TileProgram,
        own: &ir::KernelSchedule,
        measured: bool,
    ) -> Vec<Loser> {
        let Some(known) = self.kernels.get(key) else {
            return Vec::new();
        };
        let target = &self.options.target;
        let others = known.others();
        let best = others.iter().find(|o| o.schedule == *own);
        let parts = alone(tile, own, target);
        let (clock, time) = (parts[Part::All], best.and_then(|o| o.measured_us));
        let plan = search::tiling::enumerate::describe(tile);
        let mut losers: Vec<(Loser, ir::KernelSchedule)> = Vec::new();
        // What the clock takes for the same mostly is: a line may ask for what the kernel does not have.
        let mut alike = BTreeSet::from([clock.to_bits()]);
        for other in others.into_iter().filter(|o| o.schedule != *own) {
            let is_seen = other.measured_us.is_some() || other.refused.is_some();
            if !alike.insert(other.clock_us.to_bits()) && !is_seen {
                continue;
            }
            let us = match (other.measured_us.zip(time), &other.refused) {
                (Some((us, best)), None) => [us, best],
                // Nothing is known of it but what the clock says.
                (None, None) if measured => continue,
                (None | Some(_), _) => [other.clock_us, clock],
            };
            let alone = Schedule {
                kernels: vec![other.schedule.clone()],
            };
            let loser = Loser {
                seen: Seen {
                    plan: plan.clone(),
                    schedule: alone.text(tile),
                    clock_us: other.clock_us,
                },
                kernel: Some(number),
                us: us[0],
                best_us: us[1],
                measured: other.measured_us.is_some() && other.refused.is_none(),
                tried: other.tried,
                refused: other.refused.as_ref().map(Refusal::of),
                parts: BTreeMap::new(),
            };
            losers.push((loser, other.schedule));
        }
        losers.sort_by(|x, y| x.0.loss().total_cmp(&y.0.loss()));
        losers.truncate(LOSERS);
        for (loser, schedule) in &mut losers {
            loser.parts = differing(alone(tile, schedule, target), parts);
        }
        losers.into_iter().map(|(loser, _)| loser).collect()
    }
}

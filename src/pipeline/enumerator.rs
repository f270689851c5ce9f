//! A thread that enumerates beside the search by measurement: tile programs, and the schedules of their kernels in the clock's order.

use super::Point;
use super::clock::Clock;
use super::kernels::{self, Key};
use ir::{Reject, TileProgram};
use rayon::prelude::*;
use search::schedules::{Judge, Ranked, Starts};
use search::tiling::enumerate::Candidates;
use search::tune::KernelId;
use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// Schedules of a kernel that are tried at most, and what one may take over the fastest, as far as it is known.
const SCHEDULES: usize = 128;
const FAR: f64 = 2.0;
/// How often those behind are looked at where none of the next ones could be tried.
const FURTHER: usize = 64;

/// What it is asked.
pub(super) enum Wanted {
    /// So many tile programs that the search for cuts found, and those that differ from these in how a cut's kernel runs over its axes.
    TilePrograms(usize, Vec<(Point, usize)>),
    /// The schedules of a kernel, in order.
    Order(Box<Unordered>),
    /// A kernel of a tile program, which stands in these places, is of no use.
    Refuse(Box<(Point, Vec<usize>, Reject)>),
}

/// A kernel, and where the walk over its schedules begins.
pub(super) struct Unordered {
    pub(super) id: KernelId,
    pub(super) tile: TileProgram,
    pub(super) starts: Starts,
}

/// What it gives.
pub(super) enum Enumerated {
    TilePrograms(TilePrograms),
    /// The schedules of a kernel.
    Order(KernelId, Vec<Ranked>),
}

/// Tile programs.
#[derive(Default)]
pub(super) struct TilePrograms {
    /// With the kernels of each.
    pub(super) points: Vec<(Point, Vec<(Key, TileProgram)>)>,
    /// How many of them the search for cuts found: they come first.
    pub(super) found: usize,
    /// Of kernels that were in none before, where the walks over their schedules begin.
    pub(super) starts: BTreeMap<Key, Starts>,
    /// Why those are none that have a kernel without any schedule that is worth a trial.
    pub(super) rejects: Vec<Reject>,
    /// Whether there were no more where they come from.
    pub(super) is_dry: bool,
}

/// What it works on.
pub(super) struct Enumerator<'e> {
    pub(super) points: &'e mut Candidates,
    /// Kernels that were seen.
    pub(super) keys: &'e mut HashSet<Key>,
    /// Those of them that have no schedule, or none that does not seem to spill.
    pub(super) impossible: &'e mut HashSet<Key>,
    /// Who says how fast they are.
    pub(super) judge: Judge<'e>,
    /// Where somebody ended the search it does no more than it has to.
    pub(super) clock: Clock,
}

impl Enumerator<'_> {
    /// Answers until nobody asks any more. Orders come before tile programs. Gives what it took.
    pub(super) fn serve(
        mut self,
        asked: &Receiver<Wanted>,
        answers: &Sender<Enumerated>,
    ) -> Duration {
        let mut wanted = None;
        let mut busy = Duration::ZERO;
        while let Ok(first) = asked.recv() {
            let begun = Instant::now();
            let mut orders = Vec::new();
            for want in std::iter::once(first).chain(asked.try_iter()) {
                match want {
                    Wanted::Order(kernel) => orders.push(kernel),
                    Wanted::Refuse(refused) => {
                        let (point, places, why) = *refused;
                        self.points.refuse(&point, &places, &why);
                    }
                    Wanted::TilePrograms(count, around) => wanted = Some((count, around)),
                }
            }
            let (judge, clock) = (self.judge, &self.clock);
            orders
                .into_par_iter()
                .for_each_with(answers.clone(), |answers, kernel| {
                    let Unordered { id, tile, starts } = *kernel;
                    // Who asked may have gone.
                    let mut ranked = match clock.is_stopped() {
                        true => Vec::new(),
                        false => starts.ranked(&tile, judge),
                    };
                    let most = ranked.first().map_or(0.0, |r| FAR * r.us);
                    ranked.retain(|r| r.us <= most);
                    ranked.truncate(SCHEDULES);
                    let _ = answers.send(Enumerated::Order(id, ranked));
                });
            if let Some((count, around)) = wanted.take() {
                let made = self.tile_programs(count, &around);
                let _ = answers.send(Enumerated::TilePrograms(made));
            }
            busy += begun.elapsed();
        }
        busy
    }

    /// Some that could be tried. Where none of those that come next could, those behind them are looked at.
    fn tile_programs(&mut self, count: usize, around: &[(Point, usize)]) -> TilePrograms {
        let mut made = self.next_of(count, around);
        for _ in 0..FURTHER {
            if made.is_dry || !made.points.is_empty() || self.clock.is_stopped() {
                break;
            }
            let before = made;
            made = self.next_of(count, &[]);
            made.rejects.extend(before.rejects);
            made.starts.extend(before.starts);
        }
        made
    }

    fn next_of(&mut self, count: usize, around: &[(Point, usize)]) -> TilePrograms {
        let (all, clock) = (&mut *self.points, &self.clock);
        let goes_on = || !clock.is_stopped();
        let first = all.by_ref().take(count).take_while(|_| goes_on());
        let mut points: Vec<Point> = first.collect();
        let mut found = points.len();
        let is_dry = found == 0 && around.is_empty();
        for (point, cut) in around {
            if goes_on() {
                points.extend(all.alternatives(point, *cut));
            }
            if goes_on() {
                points.extend(all.neighbours(point, *cut));
            }
        }
        let with_kernels = |point: Point| {
            let kernels = kernels::alone(&point.tile);
            (point, kernels)
        };
        let mut points: Vec<(Point, Vec<(Key, TileProgram)>)> =
            points.into_par_iter().map(with_kernels).collect();
        let new: BTreeMap<&Key, &TileProgram> = (points.iter())
            .flat_map(|(_, kernels)| kernels)
            .filter(|(key, _)| !self.keys.contains(key))
            .map(|(key, tile)| (key, tile))
            .collect();
        let judge = self.judge;
        let mut starts: BTreeMap<Key, Starts> = new
            .into_par_iter()
            .map(|(key, tile)| (key.clone(), Starts::of(tile, judge)))
            .collect();
        self.keys.extend(starts.keys().cloned());
        // What seems to spill however it is scheduled would never be tried.
        let none = starts.extract_if(.., |_, starts| starts.us().is_none());
        self.impossible.extend(none.map(|(key, _)| key));
        // A plan goes on with another assignment of such a kernel.
        let (mut place, mut rejects) = (0, Vec::new());
        points.retain(|(point, kernels)| {
            let all = kernels.iter().enumerate();
            let none = all.filter(|(_, (key, _))| self.impossible.contains(key));
            let none: Vec<usize> = none.map(|(at, _)| at).collect();
            if none.is_empty() {
                place += 1;
            } else {
                let why = Reject::Schedule("there is none that would not spill".to_owned());
                self.points.refuse(point, &none, &why);
                rejects.push(why);
                found -= usize::from(place < found);
            }
            none.is_empty()
        });
        tracing::debug!(
            tried = points.len(),
            refused = rejects.len(),
            found,
            is_dry,
            "tile programs"
        );
        TilePrograms {
            rejects,
            is_dry,
            points,
            found,
            starts,
        }
    }
}

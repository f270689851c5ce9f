//! Schedules of a kernel in the order of the clock.
//!
//! A space has thousands of points, and the clock takes up to a millisecond for one. So a walk looks at every way in which warps may stand and at all that
//! may overlap, with the most usual values beside them that are possible, and climbs from the fastest of these: one choice after another takes
//! the value under which the kernel is fastest, until none brings more.

use super::space::{KIND, Point, Space};
use super::{Clocked, Judge, SPILLS, clocked};
use crate::cost::cost;
use crate::tune::learned::Correction;
use ir::{KernelSchedule, Target, TileProgram, Wishes};
use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Points from which a family is climbed.
const STARTS: usize = 6;
/// A family whose fastest start takes so many times as long as the fastest of all is left there.
const BEHIND: f64 = 2.0;
/// How many times as long a further schedule counts for that stands as one before it: others are tried before many that are nearly the same.
const SAMENESS: f64 = 1.02;

/// What the clock said of points so far.
type Looked = BTreeMap<Point, Option<Clocked>>;

/// A walk over the schedules of a kernel.
struct Walk<'a> {
    tile: &'a TileProgram,
    judge: Judge<'a>,
    roofline_us: f64,
    space: Space,
    /// Whether schedules have to say what is pinned.
    needed: bool,
    known: Looked,
}

/// Whether it seems to spill, and what it takes; what cannot be had comes last.
type Order = (bool, f64);

fn compare(x: Order, y: Order) -> Ordering {
    x.0.cmp(&y.0).then(x.1.total_cmp(&y.1))
}

impl<'a> Walk<'a> {
    fn new(tile: &'a TileProgram, judge: Judge<'a>, needed: bool) -> Self {
        Self {
            tile,
            judge,
            roofline_us: cost(tile, None, judge.target).us,
            space: Space::of(tile, &tile.kernels[0], judge.target),
            needed,
            known: BTreeMap::new(),
        }
    }

    fn clocked(&self, point: &Point) -> Option<Clocked> {
        let schedule = self.space.schedule(point)?;
        if !self.judge.wishes.admit(&schedule, self.needed) {
            return None;
        }
        clocked(self.tile, &schedule, self.judge, self.roofline_us)
    }

    /// Asks the clock about those that it was not asked about.
    fn look(&mut self, points: impl IntoIterator<Item = Point>) {
        let new = points.into_iter().filter(|p| !self.known.contains_key(p));
        let new: Vec<Point> = new.collect();
        let clocked = new.into_par_iter().map(|p| (p, self.clocked(&p)));
        let found: Vec<_> = clocked.collect();
        self.known.extend(found);
    }

    fn order(&self, point: &Point) -> Order {
        let clocked = self.known.get(point).copied().flatten();
        clocked.map_or((true, f64::INFINITY), |c| (c.spills(), c.us))
    }

    /// For every way in which warps may stand, and beside each for everything that may overlap, the most usual point that can be lowered; the fastest
    /// first.
    fn starts(&mut self, family: usize) -> Vec<Point> {
        let kinds = self.space.kinds(family);
        let one = |kind: Vec<Point>| -> Vec<(Point, Option<Clocked>)> {
            let mut tried = Vec::new();
            for point in kind {
                let clocked = self.clocked(&point);
                tried.push((point, clocked));
                if clocked.is_some() {
                    break;
                }
            }
            tried
        };
        let found: Vec<_> = kinds.into_par_iter().flat_map_iter(one).collect();
        let mut starts: Vec<Point> = (found.iter())
            .filter(|(_, clocked)| clocked.is_some())
            .map(|(point, _)| *point)
            .collect();
        self.known.extend(found);
        starts.sort_by(|x, y| compare(self.order(x), self.order(y)));
        starts
    }

    /// The fastest point that single choices lead to; what sets a start apart from the others changes last, or all would lead to the same.
    fn climb(&mut self, mut point: Point) {
        let counts = self.space.counts(point.family);
        let mut choices: Vec<(usize, usize)> = counts.into_iter().enumerate().collect();
        choices.sort_by_key(|(choice, _)| KIND.contains(choice));
        loop {
            let before = point;
            for (choice, count) in choices.iter().copied() {
                let others = (0..count).map(|value| {
                    let mut other = point;
                    other.values[choice] = value;
                    other
                });
                let others: Vec<Point> = others.collect();
                self.look(others.iter().copied());
                for other in others {
                    if compare(self.order(&other), self.order(&point)).is_lt() {
                        point = other;
                    }
                }
            }
            if point == before {
                return;
            }
        }
    }

    /// What is possible of what was looked at, the fastest first; of what stands alike each further one counts as a little slower.
    fn ordered(&self) -> Vec<Ranked> {
        let possible = self.known.iter().filter_map(|(p, c)| Some((*p, (*c)?)));
        let mut all: Vec<(Order, Clocked, Point)> =
            possible.map(|(p, c)| ((c.spills(), c.us), c, p)).collect();
        all.sort_by(|x, y| compare(x.0, y.0).then(x.2.cmp(&y.2)));
        let mut alike: BTreeMap<(usize, usize), i32> = BTreeMap::new();
        for ((_, rank), _, point) in &mut all {
            let before = alike.entry((point.family, point.values[0])).or_default();
            *rank *= SAMENESS.powi(*before);
            *before += 1;
        }
        all.sort_by(|x, y| compare(x.0, y.0));
        let schedules = all.into_iter().filter_map(|((_, rank), clocked, p)| {
            let schedule = self.space.schedule(&p)?;
            Some(Ranked {
                schedule,
                pressure: Some(clocked.pressure),
                us: clocked.us,
                rank,
            })
        });
        schedules.collect()
    }
}

/// A schedule of a kernel, and what the clock says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// It.
    pub schedule: KernelSchedule,
    /// Registers that a thread seems to need, for each that it can have; none where the clock did not look.
    pub pressure: Option<f64>,
    /// Microseconds.
    pub us: f64,
    /// What it is put in order by: microseconds, and more for what stands as others before it.
    pub rank: f64,
}

impl Ranked {
    /// Whether the kernel seems to need more registers than it can have: it is refused once it is compiled.
    pub fn spills(&self) -> bool {
        self.pressure.is_some_and(|pressure| pressure > SPILLS)
    }
}

/// Where a walk over the schedules of a kernel begins: what the clock says of the usual ones.
#[derive(Clone, Debug)]
pub struct Starts {
    /// By family, the fastest first.
    starts: Vec<Vec<Point>>,
    needed: bool,
    known: Looked,
}

impl Starts {
    /// Of a kernel that stands alone in a tile program.
    pub fn of(tile: &TileProgram, judge: Judge<'_>) -> Self {
        let needed = Self::which(tile, judge, true);
        match needed.starts.iter().all(Vec::is_empty) && !judge.wishes.is_empty() {
            // A kernel need not have what is pinned: then it is enough that nothing else is said.
            true => Self::which(tile, judge, false),
            false => needed,
        }
    }

    fn which(tile: &TileProgram, judge: Judge<'_>, needed: bool) -> Self {
        let mut walk = Walk::new(tile, judge, needed);
        let families = 0..walk.space.families();
        Self {
            starts: families.map(|f| walk.starts(f)).collect(),
            needed,
            known: walk.known,
        }
    }

    /// Microseconds of the kernel by the clock, where nothing is climbed. None where nothing is possible that does not seem to spill.
    pub fn us(&self) -> Option<f64> {
        let clocked = self.starts.iter().flatten().filter_map(|p| self.known[p]);
        let sound = clocked.filter(|c| !c.spills()).map(|c| c.us);
        sound.min_by(f64::total_cmp)
    }

    /// Schedules that are possible: those first that the clock says are fastest, those that seem to spill behind all others. Deterministic.
    /// The kernel and the judge are those that the walk began with.
    pub fn ranked(self, tile: &TileProgram, judge: Judge<'_>) -> Vec<Ranked> {
        let mut walk = Walk {
            known: self.known,
            ..Walk::new(tile, judge, self.needed)
        };
        let fastest = |walk: &Walk<'_>, starts: &[Point]| {
            let orders = starts.iter().map(|p| walk.order(p));
            orders.min_by(|x, y| compare(*x, *y))
        };
        let firsts = self.starts.iter().map(|s| fastest(&walk, s));
        let firsts: Vec<Option<Order>> = firsts.collect();
        let best = firsts.iter().flatten().min_by(|x, y| compare(**x, **y));
        let limit = best.map_or(f64::INFINITY, |best| BEHIND * best.1);
        for (starts, first) in self.starts.into_iter().zip(firsts) {
            if first.is_some_and(|f| f.1 <= limit) {
                starts.into_iter().take(STARTS).for_each(|p| walk.climb(p));
            }
        }
        walk.ordered()
    }
}

/// Schedules of a kernel that stands alone in a tile program, by the clock alone; see [`Starts::ranked`].
pub fn ranked(tile: &TileProgram, target: &Target) -> Vec<Ranked> {
    ranked_as(tile, target, &Wishes::default())
}

/// The same, as somebody wishes.
pub fn ranked_as(tile: &TileProgram, target: &Target, wishes: &Wishes) -> Vec<Ranked> {
    let correction = &Correction::default();
    let judge = Judge {
        target,
        correction,
        wishes,
    };
    Starts::of(tile, judge).ranked(tile, judge)
}

/// Microseconds of a kernel that stands alone in a tile program, by the clock alone; see [`Starts::us`].
pub fn estimate(tile: &TileProgram, target: &Target) -> Option<f64> {
    let (correction, wishes) = (&Correction::default(), &Wishes::default());
    let judge = Judge {
        target,
        correction,
        wishes,
    };
    Starts::of(tile, judge).us()
}

//! The tile program that is emitted, at its true extents, on slices of its outputs that see what it decides.
//!
//! Where one output element takes too much work, axes that nothing is decided along are shortened first: a sum over four thousand channels is
//! one over three tiles and a part of one. Axes that a mask, a bound, a part of a split or a view with an offset depends on keep their
//! extents, and so does everything that the tile program says of them.

use super::draw::{compare_really, thresholds};
use super::evidence::{SliceEvidence, TilingEvidence};
use super::{extents_of, wrong};
use crate::coverage::Seen;
use crate::decisions::{Decision, decisions, groups};
use crate::demand::{Demand, NodeDemand};
use crate::domain::{Domain, domains};
use crate::evaluate::evaluate_at;
use crate::inputs::depth;
use crate::interpret::{Inputs, SimulateOptions, flat, interpret_at};
use crate::picked::{Picked, Slice};
use crate::scalar::Bounded;
use crate::shapes::{Extents, Shapes, Tiles, program_at};
use crate::simulate_error::SimulateError;
use crate::slices::Queues;
use ir::random::mix;
use ir::{AxisId, AxisSet, Program, Reject, Role, TileProgram};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// The most elements of all values and buffers of one slice: some hundred megabytes, and so many times that where not even one element
/// of the output takes less.
const HELD: u64 = 1 << 23;
const HELD_MORE: u64 = 4;
/// Output elements of a slice, but for those beside the zeros of decisions: of the first ones, and of the others.
const FIRST_ELEMENTS: u64 = 3;
const ELEMENTS: u64 = 48;
/// Slices that are compared side by side.
const TOGETHER: usize = 4;
/// The most slices.
const MOST: usize = 64;
/// How often each coordinate is met, with other numbers: what the largest of several hides shows for some.
const PASSES: usize = 2;
/// Choices of axes that keep their extents, where not all can.
const SUBJECTS: usize = 4;
/// Slices whose work has to fit, or axes are shortened; and where there is more work for want of any that fit.
const FEWEST: u64 = 6;
const FEWEST_LONG: u64 = 3;
/// The largest number that is drawn, but for those beside constants.
const LARGEST: f64 = 2.0;
/// Whole tiles of an axis that is shortened.
const TILES: u64 = 3;

/// What is compared.
pub(super) struct TrueExtents<'a> {
    pub(super) program: &'a Program,
    pub(super) expression: &'a Program,
    pub(super) tile: &'a TileProgram,
    pub(super) shapes: &'a Shapes<'a>,
    pub(super) work: u64,
    /// Where that is not enough for any: seconds that a right answer is worth.
    pub(super) most_work: u64,
}

/// A tile program and what it is compared with, at one choice of extents.
struct Subject {
    reference: Program,
    tile: TileProgram,
    with_expression: bool,
    shortened: Vec<String>,
    decisions: Vec<Decision>,
}

/// How much may be done: element operations of all slices, elements that one slice holds, and how many slices there have to be.
#[derive(Clone, Copy)]
struct Level {
    work: u64,
    held: u64,
    slices: u64,
    /// What each of so many slices may take, though there is no work left.
    each: u64,
    /// Whether it is the last resort: no more is done than has to be.
    is_last: bool,
}

impl Level {
    /// The same, with room for what more of small tiles repeat, where tiles are `small`: of a few axes a few times as much.
    fn with_slack(self, small: bool) -> Self {
        const REPEATED: u64 = 16;
        Self {
            work: self.work.saturating_mul(if small { REPEATED } else { 1 }),
            ..self
        }
    }

    /// The same for a subject, if there is work for enough slices; no more than that many where they take long.
    fn of(self, subject: &Subject, rng: &ChaCha8Rng) -> Result<Option<Self>, Reject> {
        let least = Plan::new(subject, subject.queues(&mut rng.clone()).least())?;
        let enough = least.work(subject).saturating_mul(self.slices);
        // Slices take more than the least where what decides something lies beside them.
        let (work, each) = match self.is_last {
            true => (enough, self.work / self.slices),
            false => (self.work, 0),
        };
        let own = Self { work, each, ..self };
        Ok((least.elements() <= self.held && enough <= self.work).then_some(own))
    }
}

/// A slice, with what it takes.
struct Plan {
    slice: Slice,
    of_program: NodeDemand,
    of_tile: Demand,
}

impl Plan {
    fn new(subject: &Subject, slice: Slice) -> Result<Self, Reject> {
        Ok(Self {
            of_program: NodeDemand::of(&subject.reference, &slice).map_err(wrong)?,
            of_tile: Demand::of(&subject.tile, &slice),
            slice,
        })
    }

    fn work(&self, subject: &Subject) -> u64 {
        let of_program = self.of_program.work(&subject.reference);
        of_program.saturating_add(self.of_tile.work(&subject.tile))
    }

    fn elements(&self) -> u64 {
        self.of_program.elements().max(self.of_tile.elements())
    }
}

impl TrueExtents<'_> {
    /// Compares as much as there is work for; gives what there was to meet.
    pub(super) fn check(
        &self,
        rng: &mut ChaCha8Rng,
        evidence: &mut TilingEvidence,
    ) -> Result<Vec<(TileProgram, Seen)>, Reject> {
        let subjects = self.subjects(rng)?;
        if subjects.is_empty() {
            evidence.unseen.push(
                "nothing was interpreted at the true extents: one output element takes too much work"
                    .to_owned(),
            );
        }
        let check = |(subject, level): (Subject, Level)| {
            let seen = self.check_one(&subject, level, rng, evidence)?;
            Ok((subject.tile, seen))
        };
        subjects.into_iter().map(check).collect()
    }

    fn check_one(
        &self,
        subject: &Subject,
        level: Level,
        rng: &mut ChaCha8Rng,
        evidence: &mut TilingEvidence,
    ) -> Result<Seen, Reject> {
        let mut seen = Seen::new(&subject.tile);
        let constants = thresholds(self.program, &subject.tile, 1e3);
        let domains = domains(self.program);
        let contracted = (6.0 / depth(&subject.reference).sqrt()).sqrt().min(LARGEST);
        let compare = |(number, seed, plan): &(usize, u64, Plan)| {
            let inputs = Drawn {
                seed: *seed,
                // In every other slice contractions are about 1, in the others operands.
                scale: if number % 2 == 0 { contracted } else { LARGEST },
                // Where exponents are taken of them, one such number outweighs all others.
                thresholds: if number % 3 == 2 { &constants } else { &[] },
                domains: &domains,
            };
            subject.compare(plan, &inputs)
        };
        let mut plans = Plans::new(subject, level, rng)?;
        let mut number = 0;
        loop {
            // Side by side, but what is wrong is mostly seen at once.
            let mut some = Vec::new();
            while some.len() < TOGETHER
                && let Some(plan) = plans.next(rng)?
            {
                some.push((number, rng.random(), plan));
                number += 1;
            }
            if some.is_empty() {
                break;
            }
            let results: Vec<_> = some.par_iter().map(compare).collect();
            for result in results {
                let (slice, found, met) = result?;
                evidence.real += found.real;
                evidence.real_conditional += found.real_conditional;
                evidence.real_different += found.real_different;
                evidence.real_undecided += found.real_undecided;
                evidence.max_error = evidence.max_error.max(found.max_error);
                evidence.slices.push(slice);
                seen.merge(&met);
            }
        }
        Ok(seen)
    }

    /// What can be interpreted: the tile program as it is, or with axes shortened along which nothing is decided. Where that is too much
    /// work, several, of which each keeps some of the axes along which something is decided at their extents.
    fn subjects(&self, rng: &ChaCha8Rng) -> Result<Vec<(Subject, Level)>, Reject> {
        let decisions = decisions(&[self.program, self.expression], self.tile);
        let mut groups = groups(&decisions, self.tile);
        let all = groups.iter().fold(AxisSet::default(), |x, y| x.union(y));
        if let Some(found) = self.subject(&all, rng)? {
            return Ok(vec![found]);
        }
        let points = |group: &AxisSet| {
            let extents = group.iter().map(|a| self.tile.extent(a));
            extents.fold(1, u64::saturating_mul)
        };
        groups.sort_by_key(points);
        let mut subjects = Vec::new();
        let mut kept = AxisSet::default();
        for group in &groups {
            if subjects.len() == SUBJECTS || group.iter().all(|a| kept.contains(a)) {
                continue;
            }
            let Some(mut found) = self.subject(group, rng)? else {
                continue;
            };
            let mut own = group.clone();
            for other in &groups {
                let more = own.union(other);
                if more != own
                    && let Some(better) = self.subject(&more, rng)?
                {
                    (own, found) = (more, better);
                }
            }
            kept = kept.union(&own);
            subjects.push(found);
        }
        if subjects.is_empty() {
            subjects.extend(self.subject(&AxisSet::default(), rng)?);
        }
        Ok(subjects)
    }

    /// What can be interpreted where some axes have to keep their extents, and how much work that may be.
    fn subject(
        &self,
        kept: &AxisSet,
        rng: &ChaCha8Rng,
    ) -> Result<Option<(Subject, Level)>, Reject> {
        let as_it_is = |reference: &Program, with_expression| Subject {
            reference: reference.clone(),
            tile: self.tile.clone(),
            with_expression,
            shortened: Vec::new(),
            decisions: decisions(&[self.program, self.expression], self.tile),
        };
        // The longest are shortened first, each to a few of its true tiles; where that is not enough, to a few small ones.
        let levels = [
            Level {
                work: self.work,
                held: HELD,
                slices: FEWEST,
                each: 0,
                is_last: false,
            },
            Level {
                work: self.most_work,
                held: HELD * HELD_MORE,
                slices: FEWEST_LONG,
                each: 0,
                is_last: true,
            },
        ];
        for level in levels {
            for subject in [
                as_it_is(self.program, false),
                as_it_is(self.expression, true),
            ] {
                if let Some(level) = level.of(&subject, rng)? {
                    return Ok(Some((subject, level)));
                }
            }
            for small in [false, true] {
                let free = self.free(kept);
                // Where all axes at their shortest are too much, longer ones are. What cannot be resized says nothing.
                if let Ok(subject) = self.shortened(&free, small)
                    && level.with_slack(small).of(&subject, rng)?.is_none()
                {
                    continue;
                }
                for count in 1..=free.len() {
                    // What cannot be resized cannot be looked at in this way.
                    let Ok(subject) = self.shortened(&free[..count], small) else {
                        continue;
                    };
                    if let Some(level) = level.of(&subject, rng)? {
                        return Ok(Some((subject, level)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The axes that may be shortened, the longest first: one of each group that shares an extent.
    fn free(&self, kept: &AxisSet) -> Vec<AxisId> {
        let shapes = self.shapes;
        let held: Vec<usize> = kept.iter().map(|a| shapes.leader(a.index())).collect();
        let free =
            |i: &usize| shapes.leader(*i) == *i && !held.contains(i) && !shapes.tied_to_pinned(*i);
        let free = (0..self.tile.axes.len()).filter(free);
        // A collapsed axis is as long as what it stands for.
        let mut axes: Vec<AxisId> = free
            .map(|i| AxisId(i as u32))
            .filter(|a| !self.tile.collapsed.contains_key(a))
            .collect();
        axes.sort_by_key(|a| std::cmp::Reverse(self.tile.extent(*a)));
        axes
    }

    /// With these axes shortened.
    fn shortened(&self, axes: &[AxisId], small: bool) -> Result<Subject, Reject> {
        let mut extents = Extents::new();
        let mut tiles = Tiles::new();
        for axis in axes {
            self.shorten(*axis, small, &mut extents, &mut tiles);
        }
        self.resized(&extents, &tiles)
    }

    fn shorten(&self, axis: AxisId, small: bool, extents: &mut Extents, tiles: &mut Tiles) {
        const SMALL: u64 = 4;
        let alike = |a: &AxisId| self.shapes.leader(a.index()) == axis.index();
        let all = (0..self.tile.axes.len() as u32).map(AxisId).filter(alike);
        let all: Vec<AxisId> = all.collect();
        // The axes along which tiles have some of these, each with how many of its coordinates are one of them.
        let within = all.iter().flat_map(|a| self.tile.standing_for(*a));
        let own = all.iter().map(|a| (*a, 1));
        let steps: BTreeMap<AxisId, u64> = within.chain(own).collect();
        let mut longest = 1;
        for (number, kernel) in self.tile.kernels.iter().enumerate() {
            for (a, how) in kernel.axes.iter().filter(|a| a.1.role != Role::Whole) {
                if let Some(step) = steps.get(a) {
                    let size = if small { how.tile.min(SMALL) } else { how.tile };
                    tiles.insert((number, *a), size);
                    longest = longest.max(size.div_ceil(*step));
                }
            }
        }
        let truth = self.tile.extent(axis);
        let part = u64::from(!truth.is_multiple_of(longest)) * longest.div_ceil(2);
        // Of an axis that is whole everywhere, enough for a sum to be one.
        let extent = (longest * TILES + part).max(2 * SMALL + 1).min(truth);
        extents.extend(all.into_iter().map(|a| (a, extent)));
    }

    fn resized(&self, extents: &Extents, tiles: &Tiles) -> Result<Subject, Reject> {
        let tile = self.tile.resized(&extents_of(self.tile, extents), |k, a| {
            tiles.get(&(k, a)).copied()
        });
        let mentioned = |axis: &AxisId| self.tile.kernels.iter().any(|k| k.axes.contains_key(axis));
        let within = |axis: &AxisId| {
            let mut collapsed = self.tile.collapsed.iter();
            collapsed.any(|(c, members)| members.contains(axis) && mentioned(c))
        };
        let used = |axis: &AxisId| mentioned(axis) || within(axis);
        let named = extents.iter().filter_map(|(axis, extent)| {
            let known = self.tile.axes.get(axis.index())?;
            let shortened = known.extent != *extent && used(axis);
            shortened.then(|| format!("{} = {extent}", known.name))
        });
        // A view that then leaves its source needs more axes to be shortened.
        let reference = program_at(self.expression, extents);
        let valid = reference.validate();
        valid.map_err(|faults| Reject::Wrong(faults.join("; ")))?;
        let tile = tile.map_err(Reject::Wrong)?;
        Ok(Subject {
            decisions: decisions(&[&reference], &tile),
            reference,
            tile,
            with_expression: true,
            shortened: named.collect(),
        })
    }
}

/// The slices that there is work for, one after the other: first small ones, since what is wrong is wrong in many places.
struct Plans<'a> {
    subject: &'a Subject,
    /// Where all is little work, everything is one slice.
    whole: Option<Plan>,
    queues: Queues<'a>,
    passes: usize,
    left: Level,
    elements: u64,
    most: u64,
    made: usize,
}

impl<'a> Plans<'a> {
    fn new(subject: &'a Subject, level: Level, rng: &mut ChaCha8Rng) -> Result<Self, Reject> {
        let queues = subject.queues(rng);
        let least = Plan::new(subject, queues.least())?.work(subject);
        let whole = Plan::new(subject, Slice::new())?;
        let affordable = whole.elements() <= level.held && whole.work(subject) <= level.work;
        Ok(Self {
            subject,
            whole: affordable.then_some(whole),
            queues,
            passes: 1,
            left: level,
            elements: FIRST_ELEMENTS,
            most: (level.work / least.max(1) / level.slices).clamp(1, ELEMENTS),
            made: 0,
        })
    }

    fn next(&mut self, rng: &mut ChaCha8Rng) -> Result<Option<Plan>, Reject> {
        let first = self.made < TOGETHER;
        if !first && let Some(whole) = self.whole.take() {
            self.left.work = 0;
            return Ok(Some(whole));
        }
        if self.queues.is_empty() && self.passes < PASSES {
            self.passes += 1;
            self.queues = self.subject.queues(rng);
        }
        while self.left.work > 0 && !self.queues.is_empty() && self.made < MOST {
            let before = self.queues.clone();
            let plan = Plan::new(
                self.subject,
                self.queues.next(self.elements.min(self.most), rng),
            )?;
            let work = plan.work(self.subject);
            let is_one_of_few = (self.made as u64) < self.left.slices && work <= self.left.each;
            let fits = work <= self.left.work || is_one_of_few;
            if fits && plan.elements() <= self.left.held {
                self.left.work = self.left.work.saturating_sub(work);
                self.made += 1;
                if self.made.is_multiple_of(TOGETHER) {
                    self.elements = (self.elements * 4).min(ELEMENTS);
                }
                return Ok(Some(plan));
            }
            if self.elements == 1 {
                break;
            }
            self.elements /= 2;
            self.queues = before;
        }
        Ok(self.whole.take())
    }
}

impl Subject {
    fn queues(&self, rng: &mut ChaCha8Rng) -> Queues<'_> {
        Queues::new(&self.reference, &self.tile, &self.decisions, rng)
    }

    fn compare(
        &self,
        plan: &Plan,
        inputs: &Drawn<'_>,
    ) -> Result<(SliceEvidence, TilingEvidence, Seen), Reject> {
        let mut seen = Seen::new(&self.tile);
        let want = evaluate_at(&self.reference, &plan.of_program, inputs, |node, block| {
            if !self.with_expression {
                seen.condition(&self.reference, node, &block.data);
            }
            block
        });
        let want = want.map_err(wrong)?;
        let options = SimulateOptions::default();
        let got = interpret_at(&self.tile, &plan.of_tile, inputs, options, Some(&mut seen));
        let mut found = TilingEvidence::default();
        got.map_err(wrong)
            .and_then(|got| compare_really(&got, &want, false, &mut found))
            .map_err(|reject| self.explained(reject, &plan.slice))?;
        let slice = SliceEvidence {
            shortened: self.shortened.clone(),
            coordinates: self.coordinates(&plan.slice),
            with_expression: self.with_expression,
            elements: found.real,
        };
        Ok((slice, found, seen))
    }

    /// The coordinates of a slice, in words.
    fn coordinates(&self, slice: &Slice) -> Vec<String> {
        let some = slice.iter().filter_map(|(axis, picked)| match picked {
            Picked::All(_) => None,
            Picked::Some(list) => {
                let all: Vec<String> = list.iter().map(u64::to_string).collect();
                Some(format!(
                    "{} = {}",
                    self.tile.axes[axis.index()].name,
                    all.join(" ")
                ))
            }
        });
        some.collect()
    }

    /// Where it was found: elements are counted among those that were looked at.
    fn explained(&self, reject: Reject, slice: &Slice) -> Reject {
        let mut place = match self.shortened.is_empty() {
            true => "at the true extents".to_owned(),
            false => format!("at the true extents but for {}", self.shortened.join(", ")),
        };
        let coordinates = self.coordinates(slice);
        if !coordinates.is_empty() {
            place.push_str(&format!(", of the elements at {}", coordinates.join(", ")));
        }
        if let Reject::Wrong(what) = &reject {
            Reject::Wrong(format!("{what} ({place})"))
        } else if let Reject::Fragile(what) = &reject {
            Reject::Fragile(format!("{what} ({place})"))
        } else {
            reject
        }
    }
}

/// Numbers that are drawn one by one, where they are: the same at an element, whoever asks for it.
struct Drawn<'a> {
    seed: u64,
    scale: f64,
    thresholds: &'a [f64],
    domains: &'a [Domain],
}

impl Inputs<Bounded> for Drawn<'_> {
    fn elements(
        &self,
        parameter: usize,
        _name: &str,
        extents: &[usize],
        held: Option<&[Picked]>,
    ) -> Result<Vec<Bounded>, SimulateError> {
        let Some(held) = held else {
            return Ok(Vec::new());
        };
        let seed = mix(self.seed ^ mix(parameter as u64));
        let domain = &self.domains[parameter];
        let number = |at: u64| {
            let bits = mix(seed ^ at);
            // Multiples of 1/64 between −1 and 1.
            let mut x = ((bits & 0xff) % 129) as f64 / 64.0 - 1.0;
            x *= self.scale;
            if !self.thresholds.is_empty() && (bits >> 8).is_multiple_of(16) {
                x += self.thresholds[(bits >> 32) as usize % self.thresholds.len()];
            }
            Bounded::exact(domain.fold(x))
        };
        Ok(flat(extents, held).map(number).collect())
    }
}

//! The search over one expression: what is stored between kernels, and how each kernel runs over its axes.

use super::{Rejected, SearchOptions};
use crate::cost;
use crate::tiling::assign::{self, Choice};
use crate::tiling::build::{self, Corrections, Cuts, Outline};
use crate::tiling::cuts;
use ir::{AxisId, Dtype, NodeId, Program, Reject, Role, Target};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// The assignments of one kernel that are remembered, best first. Every cut that has this kernel shares them.
#[derive(Debug)]
pub(super) struct Ranked {
    /// The expression, and the kernel among those seen of it.
    pub(super) id: (usize, usize),
    pub(super) choices: Vec<(Choice, f64)>,
    /// What a block holds under each of them.
    pub(super) held: Vec<Held>,
}

/// Tiles of the axes that no loop runs over.
pub(super) type Held = Vec<(AxisId, u64)>;

/// Points of the search space that are to be built: cheap to hold.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) expression: usize,
    pub(super) cuts: Arc<Cuts>,
    pub(super) kernels: Arc<Vec<Arc<Ranked>>>,
    /// One place in each kernel's list.
    pub(super) picks: Vec<usize>,
    /// Choices of kernels that take the place of those in their lists.
    pub(super) own: BTreeMap<usize, Choice>,
    pub(super) us: f64,
}

impl Plan {
    pub(super) fn choice(&self, kernel: usize) -> Choice {
        let own = self.own.get(&kernel).copied();
        own.unwrap_or_else(|| self.kernels[kernel].choices[self.picks[kernel]].0)
    }

    pub(super) fn choices(&self) -> Vec<Choice> {
        (0..self.picks.len()).map(|k| self.choice(k)).collect()
    }

    /// The same with another place in one kernel's list.
    pub(super) fn with(&self, kernel: usize, pick: usize) -> Self {
        let mut plan = self.clone();
        let list = &self.kernels[kernel].choices;
        plan.us += list[pick].1 - list[self.picks[kernel]].1;
        plan.picks[kernel] = pick;
        plan.own.remove(&kernel);
        plan
    }

    /// The same with a choice for one kernel that its list need not have.
    pub(super) fn with_own(&self, kernel: usize, choice: Choice) -> Self {
        let mut plan = self.clone();
        plan.own.insert(kernel, choice);
        plan
    }
}

/// The first choices that are tried for every kernel, in no particular order.
fn choices(options: &SearchOptions) -> Vec<Choice> {
    #[rustfmt::skip]
    const TILES: [(u64, u64); 10] = [
        (16, 32), (16, 64), (16, 128), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (128, 256),
    ];
    // Sides for three groups of warps: what these are good for the clock knows alone.
    const THREE_GROUPS: [(u64, u64); 2] = [(192, 128), (128, 192)];
    const DEPTHS: [u64; 3] = [64, 32, 128];
    const HELD: [(u64, u64); 4] = [(256, 256), (256, 0), (16, 0), (576, 256)];
    let depths = if options.effort == 0 { 1 } else { DEPTHS.len() };
    let mut all = Vec::new();
    let three = THREE_GROUPS.into_iter().filter(|_| options.clocked);
    for (rows, columns) in TILES.into_iter().chain(three) {
        for depth in &DEPTHS[..depths] {
            for (whole, keep) in HELD {
                // So much of more rows has no room in shared memory.
                if whole > 256 && (rows > 64 || *depth != DEPTHS[0]) {
                    continue;
                }
                all.push(Choice {
                    rows,
                    columns,
                    depth: *depth,
                    whole,
                    keep,
                    elements: rows * columns,
                    lines: 1,
                    across: 1,
                    parts: 1,
                    block_group: false,
                    even: false,
                    along: 0,
                    picks: false,
                });
            }
        }
    }
    all
}

/// The numbers of parts that are tried where a grid does not fill the machine.
const PARTS: [u64; 9] = [2, 4, 8, 16, 32, 64, 128, 256, 512];
/// Assignments that do not fill the machine and are tried with so many parts: those whose work would take least.
const SPREAD: usize = 24;
/// The numbers of lines of element-wise tiles that are tried beside one.
const LINES: [u64; 2] = [4, 16];
/// The numbers of coordinates of the fastest axis that are tried where another one is reduced.
const ACROSS: [u64; 4] = [16, 32, 64, 128];
/// The numbers of coordinates that are tried of a loop that keeps what it has reduced.
const ALONG: [u64; 5] = [1, 128, 256, 512, 1024];
/// Assignments that are remembered for each kernel: so many plain ones, with a split, with block groups, with both, with loops that keep running values, and
/// with loops over coordinates that are picked.
const REMEMBERED: usize = 8;
/// So many of these hold the same tiles.
const ALIKE: usize = 4;
/// Plans of one expression that differ from another one in one kernel's choice, of which so many are kept.
const OTHERS: usize = 4096;
/// So many pairs of kernels are tried as one kernel, of those that share most.
const JOINS: usize = 64;
/// With at most this many points every set of cuts is looked at.
const EXHAUSTIVE: usize = 6;

/// With at most this many points the search for cuts begins where nothing is stored, if that is better than all stored.
const WHOLE: usize = 12;

/// What a kernel stores and what it reads: kernels that agree in this are equal.
type KernelKey = (Vec<NodeId>, Vec<(NodeId, Option<Dtype>)>);

/// The search over one expression.
pub(super) struct Search<'a> {
    program: &'a Program,
    number: usize,
    target: &'a Target,
    options: &'a SearchOptions,
    /// Says that the search has to end.
    stop: &'a (dyn Fn() -> bool + Send + Sync),
    corrections: Corrections,
    ranked: BTreeMap<KernelKey, Arc<Ranked>>,
    tried: BTreeMap<BTreeSet<NodeId>, f64>,
    plans: Vec<(usize, Plan)>,
    /// The same cuts with another choice for one kernel: so many that only the fastest are kept.
    others: Vec<(usize, Plan)>,
    /// Numbers both kinds of plans.
    found: usize,
    rejected: Rejected,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        program: &'a Program,
        number: usize,
        target: &'a Target,
        options: &'a SearchOptions,
        stop: &'a (dyn Fn() -> bool + Send + Sync),
    ) -> Self {
        Self {
            program,
            number,
            target,
            options,
            stop,
            corrections: Corrections::new(),
            ranked: BTreeMap::new(),
            tried: BTreeMap::new(),
            plans: Vec::new(),
            others: Vec::new(),
            found: 0,
            rejected: Rejected::default(),
        }
    }

    pub(super) fn run(&mut self) {
        self.walk();
        self.join();
    }

    /// Whether the search has to end.
    fn is_over(&self) -> bool {
        (self.stop)()
    }

    /// Makes two kernels of the best cuts one as long as that helps.
    fn join(&mut self) {
        let mut seen: HashSet<Vec<Vec<NodeId>>> = HashSet::new();
        loop {
            let best = self.plans.iter().min_by(|x, y| x.1.us.total_cmp(&y.1.us));
            let Some((cuts, us)) = best.map(|p| (p.1.cuts.clone(), p.1.us)) else {
                return;
            };
            let mut better = false;
            for joined in cuts::joins(self.program, &cuts).into_iter().take(JOINS) {
                if self.is_over() {
                    return;
                }
                if !seen.insert(joined.kernels.clone()) {
                    continue;
                }
                match self.plan(joined) {
                    Ok(found) => better = found < us,
                    Err(reject) => self.rejected.count(&reject),
                }
                if better {
                    break;
                }
            }
            if !better {
                return;
            }
        }
    }

    fn walk(&mut self) {
        let points = cuts::points(self.program);
        let mut best = cuts::first(self.program, &points);
        // Where one kernel would be too much there has to be something before it is tried.
        if best.iter().any(|n| !cuts::is_reduction(self.program, *n)) {
            self.evaluate(&best);
        }
        if points.len() <= EXHAUSTIVE {
            for mask in 0..1_u32 << points.len() {
                let set: BTreeSet<NodeId> = points
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| mask & (1 << i) != 0)
                    .map(|(_, n)| *n)
                    .collect();
                self.evaluate(&set);
                if self.is_over() {
                    break;
                }
            }
            return;
        }
        // Greedy: from every reduction and what several views read stored, join kernels while that helps; then take larger steps, and try each point once more.
        let mut best_us = self.evaluate(&best);
        // Where one kernel is the best of all, the steps on the way to it may each be worse than the one before.
        if points.len() <= WHOLE && !self.is_over() {
            let us = self.evaluate(&BTreeSet::new());
            if us < best_us {
                (best, best_us) = (BTreeSet::new(), us);
            }
        }
        for _ in 0..2 + self.options.effort {
            let before = best_us;
            for point in &points {
                if self.is_over() {
                    return;
                }
                let mut set = best.clone();
                if !set.remove(point) {
                    set.insert(*point);
                }
                let us = self.evaluate(&set);
                if us < best_us {
                    best = set;
                    best_us = us;
                }
            }
            for set in cuts::steps(self.program, &points, &best) {
                if self.is_over() {
                    return;
                }
                let us = self.evaluate(&set);
                if us < best_us {
                    best = set;
                    best_us = us;
                }
            }
            if best_us >= before {
                break;
            }
        }
    }

    /// The predicted time with these values stored; infinite when it cannot be built.
    fn evaluate(&mut self, stored: &BTreeSet<NodeId>) -> f64 {
        if let Some(us) = self.tried.get(stored) {
            return *us;
        }
        let mut us = f64::INFINITY;
        let mut all: Vec<Cuts> = Vec::new();
        for wide in [cuts::cut, cuts::grouped, cuts::cut_sharing] {
            let wide = wide(self.program, stored);
            let narrow = cuts::narrowed(self.program, &wide);
            for cuts in [wide, narrow] {
                let cuts = cuts::needed(self.program, cuts);
                if !all.contains(&cuts) {
                    all.push(cuts);
                }
            }
        }
        for cuts in all {
            match self.plan(cuts) {
                Ok(found) => us = us.min(found),
                Err(reject) => self.rejected.count(&reject),
            }
        }
        self.tried.insert(stored.clone(), us);
        us
    }

    fn plan(&mut self, cuts: Cuts) -> Result<f64, Reject> {
        let outline = build::outline(self.program, &cuts)?;
        let mut kernels = Vec::new();
        for (k, roots) in cuts.kernels.iter().enumerate() {
            let dtype = |n: NodeId| (n, cuts.narrow.get(&n).copied());
            let reads = cuts::reads(self.program, roots, &cuts);
            let key = (
                roots.clone(),
                reads
                    .into_iter()
                    .chain(roots.iter().copied())
                    .map(dtype)
                    .collect(),
            );
            let ranked = match self.ranked.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let (choices, held) = self.rank(&outline, k).into_iter().unzip();
                    let ranked = Arc::new(Ranked {
                        id: (self.number, self.ranked.len()),
                        choices,
                        held,
                    });
                    self.ranked.insert(key, ranked.clone());
                    ranked
                }
            };
            if ranked.choices.is_empty() {
                return Err(Reject::Assignment(
                    "no assignment of a kernel's axes can be built".to_owned(),
                ));
            }
            kernels.push(ranked);
        }
        let best: f64 = kernels.iter().map(|k| k.choices[0].1).sum();
        let first = Plan {
            expression: self.number,
            cuts: Arc::new(cuts),
            picks: vec![0; kernels.len()],
            own: BTreeMap::new(),
            kernels: Arc::new(kernels),
            us: best,
        };
        self.found += 1;
        self.plans.push((self.found, first.clone()));
        for (k, ranked) in first.kernels.iter().enumerate() {
            for pick in 1..ranked.choices.len() {
                self.found += 1;
                self.others.push((self.found, first.with(k, pick)));
            }
        }
        if self.others.len() > 2 * OTHERS {
            self.drop_others();
        }
        Ok(best)
    }

    /// Keeps the fastest; of equal ones those that were found first.
    fn drop_others(&mut self) {
        self.others.sort_by(|x, y| x.1.us.total_cmp(&y.1.us));
        self.others.truncate(OTHERS);
    }

    /// What was found, in the order in which it was.
    pub(super) fn into_plans(mut self) -> (Vec<Plan>, Rejected, Corrections) {
        self.drop_others();
        self.plans.append(&mut self.others);
        self.plans.sort_by_key(|p| p.0);
        let plans = self.plans.into_iter().map(|p| p.1).collect();
        (plans, self.rejected, self.corrections)
    }

    /// The assignments of one kernel, best first.
    fn rank(&mut self, outline: &Outline<'_>, k: usize) -> Vec<((Choice, f64), Held)> {
        let mut seen = HashSet::new();
        let mut found: Vec<(Choice, f64)> = Vec::new();
        // What does not fill the machine, with what it would take if it did.
        let mut idle: Vec<(f64, Choice)> = Vec::new();
        for choice in choices(self.options) {
            if let Some((us, spread)) = self.try_choice(outline, k, &choice, &mut seen) {
                found.push((choice, us));
                idle.extend(spread.map(|us| (us, choice)));
            }
        }
        for choice in choices(self.options) {
            for choice in assign::evened(&outline.kernels[k], &outline.axes, &choice) {
                let made = self.try_choice(outline, k, &choice, &mut seen);
                found.extend(made.map(|(us, _)| (choice, us)));
            }
        }
        let windows = assign::has_windows(&outline.kernels[k], &outline.axes);
        for choice in choices(self.options).into_iter().filter(|_| windows) {
            let choice = Choice { whole: 1, ..choice };
            if let Some((us, spread)) = self.try_choice(outline, k, &choice, &mut seen) {
                found.push((choice, us));
                idle.extend(spread.map(|us| (us, choice)));
            }
        }
        let along = match outline.kernels[k].along() {
            None => &[],
            Some(kept) if kept.contractions().is_empty() => &ALONG[..],
            // What is multiplied has tiles of its own: one coordinate at a time.
            Some(_) => &ALONG[..1],
        };
        for along in along {
            for choice in choices(self.options) {
                let choice = Choice {
                    along: *along,
                    ..choice
                };
                let made = self.try_choice(outline, k, &choice, &mut seen);
                found.extend(made.map(|(us, _)| (choice, us)));
            }
        }
        let picked = !outline.kernels[k].picked().is_empty();
        for lines in [1].into_iter().chain(LINES).filter(|_| picked) {
            for choice in choices(self.options) {
                let choice = Choice {
                    picks: true,
                    lines,
                    ..choice
                };
                if let Some((us, spread)) = self.try_choice(outline, k, &choice, &mut seen) {
                    found.push((choice, us));
                    idle.extend(spread.map(|us| (us, choice)));
                }
            }
        }
        let shapes = ACROSS.map(|across| (1, across, false));
        let lines = LINES.map(|lines| (lines, 1, false));
        let others = shapes.into_iter().chain(lines).chain([(1, 1, true)]);
        for (lines, across, block_group) in others {
            for choice in choices(self.options) {
                let choice = Choice {
                    lines,
                    across,
                    block_group,
                    ..choice
                };
                if let Some((us, spread)) = self.try_choice(outline, k, &choice, &mut seen) {
                    found.push((choice, us));
                    idle.extend(spread.filter(|_| across > 1).map(|us| (us, choice)));
                }
            }
        }
        idle.sort_by(|x, y| x.0.total_cmp(&y.0));
        for (_, choice) in idle.into_iter().take(SPREAD) {
            for block_group in [false, true] {
                for parts in PARTS {
                    let choice = Choice {
                        parts,
                        block_group,
                        ..choice
                    };
                    // What cannot be split into so many parts cannot be split into more.
                    let Some((us, _)) = self.try_choice(outline, k, &choice, &mut seen) else {
                        break;
                    };
                    found.push((choice, us));
                }
            }
        }
        // Stable: equal predictions keep the order of `choices`.
        found.sort_by(|x, y| x.1.total_cmp(&y.1));
        let mut groups: BTreeMap<(bool, bool, bool, bool), usize> = BTreeMap::new();
        let mut tiles: BTreeMap<(Held, u64, bool), usize> = BTreeMap::new();
        let mut kept = Vec::new();
        for (choice, us) in found {
            let all = groups
                .entry((
                    choice.parts > 1,
                    choice.block_group,
                    choice.along > 0,
                    choice.picks,
                ))
                .or_default();
            if *all == REMEMBERED {
                continue;
            }
            let assigned = assign::assign(&outline.kernels[k], &outline.axes, &choice);
            let steady = assigned.axes.iter().filter(|a| a.1.role != Role::Loop);
            let held: Held = steady.map(|(a, t)| (*a, t.tile)).collect();
            let alike = (held.clone(), choice.parts, choice.block_group);
            let alike = tiles.entry(alike).or_default();
            if *alike < ALIKE {
                (*all, *alike) = (*all + 1, *alike + 1);
                kept.push(((choice, us), held));
            }
        }
        kept
    }

    /// The predicted time and, of what does not fill the machine, that of its work if it were spread over all of it; nothing when it
    /// was tried before or is rejected.
    fn try_choice(
        &mut self,
        outline: &Outline<'_>,
        k: usize,
        choice: &Choice,
        seen: &mut HashSet<build::Assignment>,
    ) -> Option<(f64, Option<f64>)> {
        // The first cuts are looked at in full; a kernel of later ones may have thousands of loads.
        if !self.plans.is_empty() && self.is_over() {
            return None;
        }
        let assignment = assign::assign(&outline.kernels[k], &outline.axes, choice);
        if !seen.insert(assignment.clone()) || (choice.parts > 1 && assignment.split.is_none()) {
            return None;
        }
        let made =
            build::build_one(outline, k, &assignment, &mut self.corrections).and_then(|tile| {
                let cost = cost::cost(&tile, None, self.target);
                cost::fits(&cost, self.target)?;
                let sms = u64::from(self.target.sms);
                let spread = |k: &cost::KernelCost| {
                    let work = k.tensor_us + k.cuda_us + k.special_us + k.l2_us + k.shared_us;
                    work * (k.blocks as f64 / sms as f64).min(1.0)
                };
                let idle = cost.kernels.iter().any(|k| k.blocks < 2 * sms);
                Ok((cost.us, idle.then(|| cost.kernels.iter().map(spread).sum())))
            });
        match made {
            Ok(found) => Some(found),
            Err(reject) => {
                self.rejected.count(&reject);
                None
            }
        }
    }
}

//! Candidates: tile programs for a list of equal expressions, the plainest first, then the best predicted first.
//!
//! Kernels are independent once the cuts are chosen, so each kernel's assignments are ranked alone, and what is found is remembered by what
//! the kernel is ([`TileProgram::kernel_name`]), for all expressions. Cuts are searched exhaustively where there are few points, greedily where there are
//! many. What is offered depends neither on the order of threads nor on time, but for the moments at which [`Candidates::until`] ends the search
//! for cuts and [`Candidates::ordered_until`] the asking of the clock. Which one of equal kernels an example of what was rejected is of does.

use crate::cost::{self, Cost};
use crate::schedules;
use crate::tiling::assign::{self, Choice};
use crate::tiling::build::{self, Corrections, Cuts, Outline};
use crate::tiling::cuts;
use ir::{Program, Reject, Role, Target, TileProgram};
use lists::Lists;
use plans::{Plan, Search};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

mod choices;
mod lists;
mod moves;
mod plans;
#[cfg(test)]
mod tests;

/// How far to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchOptions {
    /// Orders candidates of equal prediction.
    pub seed: u64,
    /// The most candidates that are offered.
    pub max_candidates: usize,
    /// 0 looks at few cuts and assignments, 1 is the usual, more looks at more.
    pub effort: u32,
    /// Whether the clock says which candidates come first.
    pub clocked: bool,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            max_candidates: 200,
            effort: 1,
            clocked: false,
        }
    }
}

/// A tile program that should compute a program, and where it came from.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The expression that it was built from.
    pub expression: Arc<Program>,
    /// The tile program.
    pub tile: TileProgram,
    /// What was decided, for people.
    pub plan_text: String,
    /// What the model expects of it.
    pub predicted: Cost,
    /// For each kernel the number of the cut that it computes: a split makes two kernels of one.
    pub origins: Vec<usize>,
    /// Where it was found, if it was searched for.
    plan: Option<Plan>,
    /// Whether it counts among those that are offered at most.
    is_offered: bool,
}

impl Candidate {
    /// A tile program of an expression that nobody searched for.
    pub fn of(expression: Arc<Program>, tile: TileProgram, target: &Target) -> Self {
        Self {
            plan_text: describe(&tile),
            predicted: cost::cost(&tile, None, target),
            origins: (0..tile.kernels.len()).collect(),
            expression,
            tile,
            plan: None,
            is_offered: false,
        }
    }

    /// Whether no search was needed to find it.
    pub fn is_plain(&self) -> bool {
        self.plan.is_none()
    }

    /// Equal for kernels of candidates that compute the same, however they run over its axes; none where nobody searched.
    pub fn group(&self, kernel: usize) -> Option<[usize; 2]> {
        let cut = *self.origins.get(kernel)?;
        let list = self.plan.as_ref()?.kernels.get(cut)?.id;
        let before = self.origins[..kernel].iter().filter(|c| **c == cut).count();
        Some([list, before])
    }
}

/// Rejected points by [`Reject::reason`]: how many, and the first of them, as it is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected(BTreeMap<&'static str, (u64, String)>);

impl Rejected {
    fn count(&mut self, reject: &Reject) {
        let known = self.0.entry(reject.reason());
        known.or_insert_with(|| (0, reject.to_string())).0 += 1;
    }

    fn extend(&mut self, others: Self) {
        for (reason, (count, example)) in others.0 {
            self.0.entry(reason).or_insert((0, example)).0 += count;
        }
    }

    /// Each reason, with how many there were and the first of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64, &str)> {
        let all = self.0.iter();
        all.map(|(reason, (count, example))| (*reason, *count, example.as_str()))
    }
}

/// A kernel's list of assignments, and a place in it.
type Pick = (usize, usize);

/// The candidates, one at a time.
#[derive(Debug)]
pub struct Candidates {
    expressions: Vec<Arc<Program>>,
    target: Target,
    options: SearchOptions,
    rejected: Rejected,
    seen: HashSet<Vec<u8>>,
    refused: HashSet<Pick>,
    offered: usize,
    is_begun: bool,
    /// What the search found, with the figure by which it is offered, best last; before it searched, nothing.
    ranked: Option<Vec<(f64, Plan)>>,
    /// One an expression.
    corrections: Vec<Corrections>,
    stop: Stop,
    ordered: Stop,
}

/// Asked now and then whether a search should come to its end.
#[derive(Clone)]
struct Stop(Arc<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stop")
    }
}

/// Tile programs that need no search, made one by one: one kernel a reduction; with every shared value stored as well;
/// one kernel an operation, in small tiles. Each is for where those before it grow too large. `Err` is why one cannot be
/// built.
pub fn plainest<'a>(
    program: &'a Arc<Program>,
    target: &'a Target,
) -> impl Iterator<Item = Result<Candidate, Reject>> + 'a {
    type Made = (fn(&Program) -> Cuts, Choice);
    let all: [Made; 4] = [
        (cuts::plain, PLAIN),
        (cuts::plainest, PLAIN),
        (cuts::plainest, SMALL),
        (cuts::single, SMALL),
    ];
    all.into_iter().map(move |(cuts, choice)| {
        let cuts = cuts(program);
        realise(program, &cuts, |_| choice, target, &mut Corrections::new())
    })
}

/// The candidates for expressions that are equal as functions, the program itself first.
pub fn candidates(
    expressions: Vec<Program>,
    target: &Target,
    options: &SearchOptions,
) -> Candidates {
    Candidates {
        expressions: expressions.into_iter().map(Arc::new).collect(),
        target: target.clone(),
        options: *options,
        rejected: Rejected::default(),
        seen: HashSet::new(),
        refused: HashSet::new(),
        offered: 0,
        is_begun: false,
        ranked: None,
        corrections: Vec::new(),
        stop: Stop(Arc::new(|| false)),
        ordered: Stop(Arc::new(|| false)),
    }
}

impl Candidates {
    /// How many points were rejected so far, by reason.
    pub fn rejected(&self) -> &Rejected {
        &self.rejected
    }

    fn count(&mut self, reject: &Reject) {
        self.rejected.count(reject);
    }

    /// Ends the search for cuts when `stop` says so; what was found until then is offered. What is offered depends on
    /// nothing but how far the search got.
    pub fn until(mut self, stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.stop = Stop(Arc::new(stop));
        self
    }

    /// Ends the asking of the clock when `stop` says so; what it was not asked about comes behind.
    pub fn ordered_until(mut self, stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.ordered = Stop(Arc::new(stop));
        self
    }

    /// Searches for cuts and puts what is found in order, if that was not done: what the first candidate behind the plainest would wait for.
    ///
    /// # Panics
    /// As rayon does, where no more threads can be had.
    pub fn prepare(&mut self) {
        if self.ranked.is_none() {
            self.ranked = Some(self.rank());
        }
    }

    /// The first that can be built.
    fn plainest(&mut self) -> Option<Candidate> {
        let expression = self.expressions.first()?.clone();
        let target = self.target.clone();
        for made in plainest(&expression, &target) {
            match made {
                Ok(candidate) => return Some(candidate),
                Err(reject) => self.count(&reject),
            }
        }
        None
    }

    /// Says that kernels of a candidate, by their places, are of no use, and why, whatever stands beside them: plans that have one go on with the next
    /// best assignment of that kernel alone. Where registers did not suffice that is one with other rows or columns. A candidate with a
    /// kernel that has no schedule was none: it does not count among those that are offered at most.
    pub fn refuse(&mut self, candidate: &Candidate, kernels: &[usize], why: &Reject) {
        if candidate.is_offered && why.reason() == "schedule" {
            self.offered = self.offered.saturating_sub(1);
        }
        let Some(plan) = &candidate.plan else {
            return;
        };
        let cuts = kernels.iter().filter_map(|k| candidate.origins.get(*k));
        // A choice of its own stands in no list, and nothing that is to come has it.
        let listed: BTreeSet<&usize> = cuts.filter(|k| !plan.own.contains_key(k)).collect();
        for k in &listed {
            let (ranked, pick) = (&plan.kernels[**k], plan.picks[**k]);
            self.refused.insert((ranked.id, pick));
            if why.reason() == "spills" {
                let alike = (0..ranked.held.len()).filter(|x| ranked.held[*x] == ranked.held[pick]);
                self.refused.extend(alike.map(|other| (ranked.id, other)));
            }
        }
        if let Some(revised) = self.revised(plan).filter(|_| !listed.is_empty()) {
            self.offer_later(revised.us, revised);
        }
    }

    /// Puts a plan among those that are still to be offered.
    fn offer_later(&mut self, order: f64, plan: Plan) {
        if let Some(plans) = &mut self.ranked {
            let at = plans.partition_point(|p| p.0 > order);
            plans.insert(at, (order, plan));
        }
    }

    /// The plan with every refused assignment replaced by the next one that is not; `None` where a kernel has no other.
    fn revised(&self, plan: &Plan) -> Option<Plan> {
        let mut revised = plan.clone();
        for (k, kernel) in plan.kernels.iter().enumerate() {
            let good = |pick: &usize| !self.refused.contains(&(kernel.id, *pick));
            if !good(&plan.picks[k]) {
                let pick = (plan.picks[k] + 1..kernel.choices.len()).find(good)?;
                revised = revised.with(k, pick);
            }
        }
        Some(revised)
    }

    /// The candidates that differ from this one in how one cut's kernel runs over its axes, by the model's time.
    pub fn alternatives(&mut self, candidate: &Candidate, cut: usize) -> Vec<Candidate> {
        let Some(plan) = &candidate.plan else {
            return Vec::new();
        };
        let Some(kernel) = plan.kernels.get(cut) else {
            return Vec::new();
        };
        let good =
            |pick: &usize| *pick != plan.picks[cut] && !self.refused.contains(&(kernel.id, *pick));
        let others = (0..kernel.choices.len()).filter(good);
        let others = others.map(|pick| plan.with(cut, pick)).collect();
        self.all_built(others)
    }

    /// The candidates whose choice for one cut's kernel differs from that of this one in one budget, by one step.
    pub fn neighbours(&mut self, candidate: &Candidate, cut: usize) -> Vec<Candidate> {
        let Some(plan) = candidate.plan.as_ref().filter(|p| cut < p.picks.len()) else {
            return Vec::new();
        };
        let steps = moves::steps(&plan.choice(cut)).into_iter();
        let plans = steps.map(|choice| plan.with_own(cut, choice)).collect();
        self.all_built(plans)
    }

    /// Those that can be built; the others count as rejected.
    fn all_built(&mut self, plans: Vec<Plan>) -> Vec<Candidate> {
        let mut built = Vec::new();
        for made in self.build_all(plans) {
            match made {
                Ok(candidate) => built.push(candidate),
                Err(reject) => self.count(&reject),
            }
        }
        built
    }

    /// What plans make, in their order: on all cores.
    fn build_all(&self, plans: Vec<Plan>) -> Vec<Result<Candidate, Reject>> {
        plans.into_par_iter().map(|p| self.build(p)).collect()
    }

    fn build(&self, plan: Plan) -> Result<Candidate, Reject> {
        let made = realise(
            &self.expressions[plan.expression],
            &plan.cuts,
            |k| plan.choice(k),
            &self.target,
            &mut self.corrections[plan.expression].clone(),
        )?;
        Ok(Candidate {
            plan: Some(plan),
            ..made
        })
    }

    fn rank(&mut self) -> Vec<(f64, Plan)> {
        let (target, options, stop) = (&self.target, &self.options, &self.stop);
        let threads = rayon::current_num_threads();
        let pool = || ThreadPoolBuilder::new().num_threads(threads).build();
        // Threads that one of rayon's pool starts give way as it does.
        let pool = rayon::scope(|_| pool()).expect("threads");
        let lists = Lists::default();
        let forms = self.expressions.iter().enumerate();
        let mut searches: Vec<(Search<'_>, Option<f64>)> = forms
            .map(|(i, e)| Search::new(e, i, target, options, &*stop.0, (&lists, &pool)))
            .map(|search| (search, None))
            .collect();
        side_by_side(&mut searches, |(search, us)| *us = search.coarse());
        let best = searches.iter().filter_map(|(_, us)| *us);
        let most = LEFT_BEHIND * best.fold(f64::INFINITY, f64::min);
        let worth = searches.iter_mut();
        let worth = worth.filter(|(_, us)| us.is_none_or(|us| us <= most));
        let mut worth: Vec<&mut (Search<'_>, Option<f64>)> = worth.collect();
        // The best comes first, where the time does not suffice for all; of equal ones the first.
        worth.sort_by(|x, y| x.1.unwrap_or(0.0).total_cmp(&y.1.unwrap_or(0.0)));
        side_by_side(&mut worth, |(search, _)| search.fine());
        let mut all = Vec::new();
        for (plans, rejected, corrections) in searches.into_iter().map(|s| s.0.into_plans()) {
            self.corrections.push(corrections);
            all.extend(plans);
            self.rejected.extend(rejected);
        }
        // Equal predictions keep the order of expressions and cuts.
        if self.options.seed % 2 == 1 {
            all.reverse();
        }
        let mut order = varied(all.into_iter().map(|plan| (plan.us, plan)).collect());
        if self.options.clocked {
            order = self.clock(order);
        }
        // Best last.
        order.reverse();
        order
    }

    /// Puts an order into that of the clock. Where the search has to end, the rest of it stays behind.
    fn clock(&mut self, mut order: Vec<(f64, Plan)>) -> Vec<(f64, Plan)> {
        let most = order.len().min(self.options.max_candidates);
        let mut kernels: BTreeMap<String, f64> = BTreeMap::new();
        let mut clocked: Vec<(f64, Plan)> = Vec::new();
        for some in order[..most].chunks(CLOCKED) {
            if self.ordered.0() {
                break;
            }
            let begun = Instant::now();
            let plans = some.iter().map(|(_, plan)| plan.clone());
            let built = self.build_all(plans.collect());
            let alone: Vec<Option<Vec<(String, TileProgram)>>> = built
                .into_par_iter()
                .map(|made| Some(kernels_of(&made.ok()?.tile)))
                .collect();
            let building = begun.elapsed();
            let new = alone.iter().flatten().flatten();
            let new: BTreeMap<&String, &TileProgram> = new
                .filter(|(name, _)| !kernels.contains_key(name))
                .map(|(name, kernel)| (name, kernel))
                .collect();
            let target = &self.target;
            let estimate = |(name, kernel): (&String, &TileProgram)| {
                let us = schedules::estimate(kernel, target);
                (name.clone(), us.unwrap_or(f64::INFINITY))
            };
            let found: Vec<(String, f64)> = new.into_par_iter().map(estimate).collect();
            let (plans, new) = (some.len(), found.len());
            let (all, building) = (begun.elapsed().as_secs_f64(), building.as_secs_f64());
            tracing::debug!(plans, new, all, building, "put in the clock's order");
            kernels.extend(found);
            for ((_, plan), alone) in some.iter().zip(alone) {
                let us = |alone: Vec<(String, TileProgram)>| -> f64 {
                    alone.iter().map(|(name, _)| kernels[name]).sum()
                };
                clocked.push((alone.map_or(f64::INFINITY, us), plan.clone()));
            }
        }
        let rest = order.split_off(clocked.len());
        let mut all = varied(clocked);
        let last = all.last().map_or(0.0, |(us, _)| *us);
        all.extend(rest.into_iter().map(|(us, plan)| (us.max(last), plan)));
        all
    }
}

/// Works on all, on as many at a time as there are threads in rayon's pool.
fn side_by_side<T: Send>(all: &mut [T], work: impl Fn(&mut T) + Sync) {
    let threads = rayon::current_num_threads().min(all.len());
    let left = Mutex::new(all.iter_mut());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    rayon::scope(|_| {
        std::thread::scope(|scope| {
            let own = || std::iter::from_fn(next).for_each(&work);
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(own)).collect();
            for thread in all {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        });
    });
}

/// The kernels of a tile program, each alone, with their names.
fn kernels_of(tile: &TileProgram) -> Vec<(String, TileProgram)> {
    let all = 0..tile.kernels.len();
    all.map(|k| (tile.kernel_name(k), tile.alone(k))).collect()
}

/// Plans by what they take, the fastest first; but different structures before many tiles of one, and different tiles before many forms of
/// one: each further plan of a structure, and each further one of the same tiles, counts as a little slower.
fn varied(mut all: Vec<(f64, Plan)>) -> Vec<(f64, Plan)> {
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let mut ranks: BTreeMap<(usize, usize, usize), u32> = BTreeMap::new();
    let mut forms: BTreeMap<Vec<Choice>, u32> = BTreeMap::new();
    for (us, plan) in &mut all {
        let choices = plan.choices();
        let split = choices.iter().filter(|c| c.parts > 1).count();
        let block_groups = choices.iter().filter(|c| c.block_group).count();
        let rank = ranks
            .entry((choices.len(), split, block_groups))
            .or_default();
        let form = forms.entry(choices).or_default();
        let further = f64::from(*rank) + SAMENESS * f64::from(*form);
        *rank += 1;
        *form += 1;
        *us *= 1.0 + MONOTONY * further;
    }
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    all
}

impl Iterator for Candidates {
    type Item = Candidate;

    fn next(&mut self) -> Option<Candidate> {
        if self.offered >= self.options.max_candidates {
            return None;
        }
        if !self.is_begun {
            self.is_begun = true;
            if let Some(first) = self.plainest() {
                self.seen.insert(fingerprint(&first.tile));
                self.offered += 1;
                return Some(first);
            }
        }
        self.prepare();
        loop {
            let plans = self.ranked.as_mut()?;
            let (order, plan) = plans.pop()?;
            let Some(revised) = self.revised(&plan) else {
                continue;
            };
            if revised.picks != plan.picks {
                // It waits for its turn.
                let order = order * revised.us / plan.us;
                self.offer_later(order, revised);
                continue;
            }
            let made = self.build(plan);
            match made {
                Ok(mut candidate) => {
                    if self.seen.insert(fingerprint(&candidate.tile)) {
                        self.offered += 1;
                        candidate.is_offered = true;
                        return Some(candidate);
                    }
                }
                Err(reject) => self.count(&reject),
            }
        }
    }
}

fn fingerprint(tile: &TileProgram) -> Vec<u8> {
    serde_json::to_vec(&(&tile.kernels.len(), format!("{:?}", tile.kernels))).unwrap_or_default()
}

/// What each further plan of a structure (kernels, splits, block groups) adds to its prediction in the order of offers.
const MONOTONY: f64 = 0.03;
/// How much more a further plan of the same tiles adds.
const SAMENESS: f64 = 2.0;

/// Forms of which the best plan takes so many times as long as that of another one, where few choices were tried, are looked at no further.
const LEFT_BEHIND: f64 = 1.2;

/// Plans of which the clock is asked together, before it is seen whether the search has to end.
const CLOCKED: usize = 32;

/// The choice of the plainest candidate: small tiles, nothing held whole that is not small.
const PLAIN: Choice = Choice {
    rows: 64,
    columns: 64,
    depth: 32,
    whole: 16,
    keep: 16,
    elements: 1024,
    lines: 1,
    across: 1,
    parts: 1,
    block_group: false,
    even: false,
    along: 0,
    picks: false,
};

/// As [`PLAIN`], where that is too large.
const SMALL: Choice = Choice {
    rows: 16,
    columns: 16,
    depth: 16,
    whole: 16,
    keep: 1,
    elements: 128,
    lines: 1,
    across: 1,
    parts: 1,
    block_group: false,
    even: false,
    along: 0,
    picks: false,
};

/// Builds one point.
fn realise(
    expression: &Arc<Program>,
    cuts: &Cuts,
    choice: impl Fn(usize) -> Choice,
    target: &Target,
    corrections: &mut Corrections,
) -> Result<Candidate, Reject> {
    let outline = build::outline(expression, cuts)?;
    let assignments: Vec<_> = outline
        .kernels
        .iter()
        .enumerate()
        .map(|(k, kernel)| assign::assign(kernel, &outline.axes, &choice(k)))
        .collect();
    let tile = build::build(&outline, &assignments, corrections)?;
    let predicted = cost::cost(&tile, None, target);
    Ok(Candidate {
        expression: expression.clone(),
        plan_text: describe(&tile),
        origins: origins(&outline, &tile),
        tile,
        predicted,
        plan: None,
        is_offered: false,
    })
}

/// For each kernel the number of the cut that it computes: the last kernel of a cut stores what the cut stores.
fn origins(outline: &Outline<'_>, tile: &TileProgram) -> Vec<usize> {
    let mut cut = 0;
    let mut found = Vec::new();
    for kernel in &tile.kernels {
        found.push(cut);
        let stored: Vec<_> = ir::stores(&kernel.body).into_iter().map(|s| s.0).collect();
        let last = outline.kernels.get(cut);
        if last.is_some_and(|k| k.stored().any(|b| stored.contains(&b))) {
            cut += 1;
        }
    }
    found
}

/// A line a kernel: how it runs over its axes and what it stores.
pub fn describe(tile: &TileProgram) -> String {
    let mut text = String::new();
    for (i, kernel) in tile.kernels.iter().enumerate() {
        let _ = write!(text, "kernel {i}:");
        for (role, word) in [
            (Role::Grid, "grid"),
            (Role::Loop, "loop"),
            (Role::Whole, "whole"),
        ] {
            let mut axes = kernel
                .axes
                .iter()
                .filter(|(_, t)| t.role == role)
                .peekable();
            if axes.peek().is_some() {
                let _ = write!(text, " {word}");
            }
            for (a, t) in axes {
                let axis = &tile.axes[a.index()];
                let _ = if t.tile == axis.extent {
                    write!(text, " {}:{}", axis.name, t.tile)
                } else {
                    write!(text, " {}:{}/{}", axis.name, t.tile, axis.extent)
                };
            }
        }
        text.push('\n');
    }
    text
}

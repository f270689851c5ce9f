//! Candidates: tile programs for a list of equal expressions, the plainest first, then the best predicted first.
//!
//! Kernels are independent once the cuts are chosen, so each kernel's assignments are ranked alone and remembered by what
//! the kernel stores and reads. Cuts are searched exhaustively where there are few points, greedily where there are
//! many. Nothing here depends on the order of threads, nor on time but for the moment at which [`Candidates::until`] ends the search
//! for cuts.

use crate::assign::{self, Choice};
use crate::build::{self, Corrections, Cuts, Outline};
use crate::cost::{self, Cost};
use crate::cuts;
use ir::{AxisId, Dtype, NodeId, Program, Reject, Role, Target, TileProgram};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;
use std::sync::Arc;

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
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            max_candidates: 200,
            effort: 1,
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
}

impl Candidate {
    /// Whether no search was needed to find it.
    pub fn is_plain(&self) -> bool {
        self.plan.is_none()
    }
}

/// Counts of rejected points by [`Reject::reason`].
pub type Rejected = BTreeMap<&'static str, u64>;

/// The assignments of one kernel that are remembered, best first. Every cut that has this kernel shares them.
#[derive(Debug)]
struct Ranked {
    /// The expression, and the kernel among those seen of it.
    id: (usize, usize),
    choices: Vec<(Choice, f64)>,
    /// What a block holds under each of them.
    held: Vec<Held>,
}

/// Tiles of the axes that no loop runs over.
type Held = Vec<(AxisId, u64)>;

/// Points of the search space that are to be built: cheap to hold.
#[derive(Clone, Debug)]
struct Plan {
    expression: usize,
    cuts: Arc<Cuts>,
    kernels: Arc<Vec<Arc<Ranked>>>,
    /// One place in each kernel's list.
    picks: Vec<usize>,
    us: f64,
}

impl Plan {
    fn choice(&self, kernel: usize) -> Choice {
        self.kernels[kernel].choices[self.picks[kernel]].0
    }

    fn choices(&self) -> Vec<Choice> {
        (0..self.picks.len()).map(|k| self.choice(k)).collect()
    }

    /// The same with another place in one kernel's list.
    fn with(&self, kernel: usize, pick: usize) -> Self {
        let mut plan = self.clone();
        let list = &self.kernels[kernel].choices;
        plan.us += list[pick].1 - list[self.picks[kernel]].1;
        plan.picks[kernel] = pick;
        plan
    }
}

/// A kernel of an expression, and a place in its list of assignments.
type Pick = ((usize, usize), usize);

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
    stage: Stage,
    /// One an expression.
    corrections: Vec<Corrections>,
    stop: Stop,
}

#[derive(Debug)]
enum Stage {
    Plainest,
    /// With the figure by which they are offered, best last.
    Ranked(Vec<(f64, Plan)>),
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
        rejected: Rejected::new(),
        seen: HashSet::new(),
        refused: HashSet::new(),
        offered: 0,
        stage: Stage::Plainest,
        corrections: Vec::new(),
        stop: Stop(Arc::new(|| false)),
    }
}

impl Candidates {
    /// How many points were rejected so far, by reason.
    pub fn rejected(&self) -> &Rejected {
        &self.rejected
    }

    fn count(&mut self, reject: &Reject) {
        *self.rejected.entry(reject.reason()).or_default() += 1;
    }

    /// Ends the search for cuts when `stop` says so; what was found until then is offered. What is offered depends on
    /// nothing but how far the search got.
    pub fn until(mut self, stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.stop = Stop(Arc::new(stop));
        self
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

    /// Says that one kernel of a candidate is of no use, and why, whatever stands beside it: plans that have it go on with the next
    /// best assignment of that kernel alone. Where registers did not suffice that is one with other rows or columns.
    pub fn refuse(&mut self, candidate: &Candidate, kernel: usize, why: &Reject) {
        if let (Some(plan), Some(k)) = (&candidate.plan, candidate.origins.get(kernel)) {
            let (ranked, pick) = (&plan.kernels[*k], plan.picks[*k]);
            self.refused.insert((ranked.id, pick));
            if why.reason() == "spills" {
                let alike = (0..ranked.held.len()).filter(|x| ranked.held[*x] == ranked.held[pick]);
                self.refused.extend(alike.map(|other| (ranked.id, other)));
            }
            if let Some(revised) = self.revised(plan) {
                self.offer_later(revised.us, revised);
            }
        }
    }

    /// Puts a plan among those that are still to be offered.
    fn offer_later(&mut self, order: f64, plan: Plan) {
        if let Stage::Ranked(plans) = &mut self.stage {
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
        let others: Vec<Plan> = (0..kernel.choices.len())
            .filter(good)
            .map(|pick| plan.with(cut, pick))
            .collect();
        let mut made = Vec::new();
        for other in others {
            match self.build(other) {
                Ok(candidate) => made.push(candidate),
                Err(reject) => self.count(&reject),
            }
        }
        made
    }

    /// The candidate with each cut's kernel as the given candidates have it, which differ in their assignments only.
    ///
    /// # Errors
    /// Where the kernels cannot be built together.
    pub fn joined(&mut self, parts: &[&Candidate]) -> Result<Candidate, Reject> {
        let unlike = || Reject::Assignment("the candidates have different cuts".to_owned());
        let first = parts
            .first()
            .and_then(|p| p.plan.as_ref())
            .ok_or_else(unlike)?;
        let mut plan = first.clone();
        if parts.len() != plan.picks.len() {
            return Err(unlike());
        }
        for (k, part) in parts.iter().enumerate() {
            let theirs = part.plan.as_ref().ok_or_else(unlike)?;
            if !Arc::ptr_eq(&theirs.kernels, &plan.kernels) {
                return Err(unlike());
            }
            plan = plan.with(k, theirs.picks[k]);
        }
        self.build(plan)
    }

    fn build(&mut self, plan: Plan) -> Result<Candidate, Reject> {
        let expression = self.expressions[plan.expression].clone();
        let made = realise(
            &expression,
            &plan.cuts,
            |k| plan.choice(k),
            &self.target,
            &mut self.corrections[plan.expression],
        )?;
        Ok(Candidate {
            plan: Some(plan),
            ..made
        })
    }

    fn rank(&mut self) -> Vec<(f64, Plan)> {
        let (target, options, stop) = (&self.target, &self.options, &self.stop);
        let searched: Vec<(Vec<Plan>, Rejected, Corrections)> = self
            .expressions
            .par_iter()
            .enumerate()
            .map(|(i, e)| {
                let mut search = Search::new(e, i, target, options);
                if i == 0 || !stop.0() {
                    search.run(&*stop.0);
                }
                search.into_plans()
            })
            .collect();
        let mut all = Vec::new();
        for (plans, rejected, corrections) in searched {
            self.corrections.push(corrections);
            all.extend(plans);
            for (reason, n) in rejected {
                *self.rejected.entry(reason).or_default() += n;
            }
        }
        // Best last; the sort is stable, so equal predictions keep the order of expressions and cuts.
        if self.options.seed % 2 == 1 {
            all.reverse();
        }
        all.sort_by(|x, y| x.us.total_cmp(&y.us));
        // Different structures before many tiles of one, and different tiles before many forms of one: each further plan of a
        // structure, and each further one of the same tiles, counts as a little slower.
        let mut ranks: BTreeMap<(usize, usize, usize), u32> = BTreeMap::new();
        let mut forms: BTreeMap<Vec<Choice>, u32> = BTreeMap::new();
        let mut order: Vec<(f64, Plan)> = Vec::new();
        for plan in all {
            let choices = plan.choices();
            let split = choices.iter().filter(|c| c.parts > 1).count();
            let teams = choices.iter().filter(|c| c.team).count();
            let rank = ranks.entry((choices.len(), split, teams)).or_default();
            let form = forms.entry(choices).or_default();
            let further = f64::from(*rank) + SAMENESS * f64::from(*form);
            *rank += 1;
            *form += 1;
            order.push((plan.us * (1.0 + MONOTONY * further), plan));
        }
        order.sort_by(|x, y| y.0.total_cmp(&x.0));
        order
    }
}

impl Iterator for Candidates {
    type Item = Candidate;

    fn next(&mut self) -> Option<Candidate> {
        if self.offered >= self.options.max_candidates {
            return None;
        }
        if matches!(self.stage, Stage::Plainest) {
            let first = self.plainest();
            let ranked = Vec::new();
            self.stage = Stage::Ranked(ranked);
            if let Some(first) = first {
                self.seen.insert(fingerprint(&first.tile));
                self.offered += 1;
                return Some(first);
            }
        }
        if self.offered <= 1 && matches!(&self.stage, Stage::Ranked(r) if r.is_empty()) {
            let ranked = self.rank();
            self.stage = Stage::Ranked(ranked);
        }
        loop {
            let Stage::Ranked(plans) = &mut self.stage else {
                return None;
            };
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
                Ok(candidate) => {
                    if self.seen.insert(fingerprint(&candidate.tile)) {
                        self.offered += 1;
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
    team: false,
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
    team: false,
};

/// The first choices that are tried for every kernel, in no particular order.
fn choices(effort: u32) -> Vec<Choice> {
    #[rustfmt::skip]
    const TILES: [(u64, u64); 10] = [
        (16, 32), (16, 64), (16, 128), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (128, 256),
    ];
    const DEPTHS: [u64; 3] = [64, 32, 128];
    const HELD: [(u64, u64); 4] = [(256, 256), (256, 0), (16, 0), (576, 256)];
    let depths = if effort == 0 { 1 } else { DEPTHS.len() };
    let mut all = Vec::new();
    for (rows, columns) in TILES {
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
                    team: false,
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
/// Assignments that are remembered for each kernel: so many plain ones, with a split, with teams, and with both.
const REMEMBERED: usize = 8;
/// So many of these hold the same tiles.
const ALIKE: usize = 4;
/// What each further plan of a structure (kernels, splits, teams) adds to its prediction in the order of offers.
const MONOTONY: f64 = 0.03;
/// How much more a further plan of the same tiles adds.
const SAMENESS: f64 = 2.0;
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
struct Search<'a> {
    program: &'a Program,
    number: usize,
    target: &'a Target,
    options: &'a SearchOptions,
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
    fn new(
        program: &'a Program,
        number: usize,
        target: &'a Target,
        options: &'a SearchOptions,
    ) -> Self {
        Self {
            program,
            number,
            target,
            options,
            corrections: Corrections::new(),
            ranked: BTreeMap::new(),
            tried: BTreeMap::new(),
            plans: Vec::new(),
            others: Vec::new(),
            found: 0,
            rejected: Rejected::new(),
        }
    }

    fn run(&mut self, stop: &dyn Fn() -> bool) {
        self.walk(stop);
        self.join(stop);
    }

    /// Makes two kernels of the best cuts one as long as that helps.
    fn join(&mut self, stop: &dyn Fn() -> bool) {
        let mut seen: HashSet<Vec<Vec<NodeId>>> = HashSet::new();
        loop {
            let best = self.plans.iter().min_by(|x, y| x.1.us.total_cmp(&y.1.us));
            let Some((cuts, us)) = best.map(|p| (p.1.cuts.clone(), p.1.us)) else {
                return;
            };
            let mut better = false;
            for joined in cuts::joins(self.program, &cuts).into_iter().take(JOINS) {
                if stop() {
                    return;
                }
                if !seen.insert(joined.kernels.clone()) {
                    continue;
                }
                match self.plan(joined) {
                    Ok(found) => better = found < us,
                    Err(reject) => *self.rejected.entry(reject.reason()).or_default() += 1,
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

    fn walk(&mut self, stop: &dyn Fn() -> bool) {
        let points = cuts::points(self.program);
        if points.len() <= EXHAUSTIVE {
            for mask in 0..1_u32 << points.len() {
                let set: BTreeSet<NodeId> = points
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| mask & (1 << i) != 0)
                    .map(|(_, n)| *n)
                    .collect();
                self.evaluate(&set);
                if stop() {
                    break;
                }
            }
            return;
        }
        // Greedy: from every reduction stored, join kernels while that helps; then take larger steps, and try each point once more.
        let mut best: BTreeSet<NodeId> = points
            .iter()
            .copied()
            .filter(|n| cuts::is_reduction(self.program, *n))
            .collect();
        let mut best_us = self.evaluate(&best);
        // Where one kernel is the best of all, the steps on the way to it may each be worse than the one before.
        if points.len() <= WHOLE && !stop() {
            let us = self.evaluate(&BTreeSet::new());
            if us < best_us {
                (best, best_us) = (BTreeSet::new(), us);
            }
        }
        for _ in 0..2 + self.options.effort {
            let before = best_us;
            for point in &points {
                if stop() {
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
                if stop() {
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
                Err(reject) => *self.rejected.entry(reject.reason()).or_default() += 1,
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
    fn into_plans(mut self) -> (Vec<Plan>, Rejected, Corrections) {
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
        for choice in choices(self.options.effort) {
            if let Some((us, spread)) = self.try_choice(outline, k, &choice, &mut seen) {
                found.push((choice, us));
                idle.extend(spread.map(|us| (us, choice)));
            }
        }
        let shapes = ACROSS.map(|across| (1, across, false));
        let lines = LINES.map(|lines| (lines, 1, false));
        let others = shapes.into_iter().chain(lines).chain([(1, 1, true)]);
        for (lines, across, team) in others {
            for choice in choices(self.options.effort) {
                let choice = Choice {
                    lines,
                    across,
                    team,
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
            for team in [false, true] {
                for parts in PARTS {
                    let choice = Choice {
                        parts,
                        team,
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
        let mut groups: BTreeMap<(bool, bool), usize> = BTreeMap::new();
        let mut tiles: BTreeMap<(Held, u64, bool), usize> = BTreeMap::new();
        let mut kept = Vec::new();
        for (choice, us) in found {
            let all = groups.entry((choice.parts > 1, choice.team)).or_default();
            if *all == REMEMBERED {
                continue;
            }
            let assigned = assign::assign(&outline.kernels[k], &outline.axes, &choice);
            let steady = assigned.axes.iter().filter(|a| a.1.role != Role::Loop);
            let held: Held = steady.map(|(a, t)| (*a, t.tile)).collect();
            let alike = (held.clone(), choice.parts, choice.team);
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
                *self.rejected.entry(reject.reason()).or_default() += 1;
                None
            }
        }
    }
}

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

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
use ir::{Dtype, NodeId, Program, Reject, Role, Target, TileProgram};
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
}

/// Counts of rejected points by [`Reject::reason`].
pub type Rejected = BTreeMap<&'static str, u64>;

/// Points of the search space that are to be built: cheap to hold.
#[derive(Clone, Debug)]
struct Plan {
    expression: usize,
    cuts: Arc<Cuts>,
    choices: Vec<Choice>,
    us: f64,
}

/// The candidates, one at a time.
#[derive(Debug)]
pub struct Candidates {
    expressions: Vec<Arc<Program>>,
    target: Target,
    options: SearchOptions,
    rejected: Rejected,
    seen: HashSet<Vec<u8>>,
    offered: usize,
    stage: Stage,
    /// One an expression.
    corrections: Vec<Corrections>,
    stop: Stop,
}

#[derive(Debug)]
enum Stage {
    Plainest,
    /// Best last.
    Ranked(Vec<Plan>),
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

    fn rank(&mut self) -> Vec<Plan> {
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
                (search.plans, search.rejected, search.corrections)
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
            let split = plan.choices.iter().filter(|c| c.parts > 1).count();
            let teams = plan.choices.iter().filter(|c| c.team).count();
            let rank = ranks.entry((plan.choices.len(), split, teams)).or_default();
            let form = forms.entry(plan.choices.clone()).or_default();
            let further = f64::from(*rank) + SAMENESS * f64::from(*form);
            *rank += 1;
            *form += 1;
            order.push((plan.us * (1.0 + MONOTONY * further), plan));
        }
        order.sort_by(|x, y| y.0.total_cmp(&x.0));
        order.into_iter().map(|x| x.1).collect()
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
            let plan = plans.pop()?;
            let expression = self.expressions[plan.expression].clone();
            let made = realise(
                &expression,
                &plan.cuts,
                |k| plan.choices[k],
                &self.target,
                &mut self.corrections[plan.expression],
            );
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
                    parts: 1,
                    team: false,
                });
            }
        }
    }
    all
}

/// The numbers of parts that are tried where a grid does not fill the machine.
const PARTS: [u64; 7] = [2, 4, 8, 16, 32, 64, 128];
/// The numbers of lines of element-wise tiles that are tried beside one.
const LINES: [u64; 2] = [4, 16];
/// Assignments that are remembered for each kernel: so many plain ones, with a split, with teams, and with both.
const REMEMBERED: usize = 8;
/// What each further plan of a structure (kernels, splits, teams) adds to its prediction in the order of offers.
const MONOTONY: f64 = 0.03;
/// How much more a further plan of the same tiles adds.
const SAMENESS: f64 = 2.0;
/// With at most this many points every set of cuts is looked at.
const EXHAUSTIVE: usize = 5;

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
    ranked: BTreeMap<KernelKey, Arc<Vec<(Choice, f64)>>>,
    tried: BTreeMap<BTreeSet<NodeId>, f64>,
    plans: Vec<Plan>,
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
            rejected: Rejected::new(),
        }
    }

    fn run(&mut self, stop: &dyn Fn() -> bool) {
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
        // Greedy: from every reduction stored, join kernels while that helps; then try each point once more.
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
        for _ in 0..1 + self.options.effort {
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
        let wide = cuts::cut(self.program, stored);
        let narrow = cuts::narrowed(self.program, &wide);
        let mut us = f64::INFINITY;
        let sharing = cuts::narrowed(self.program, &cuts::cut_sharing(self.program, stored));
        let mut all = vec![wide];
        for other in [narrow, sharing] {
            if !all.contains(&other) {
                all.push(other);
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
                    let ranked = Arc::new(self.rank(&outline, k));
                    self.ranked.insert(key, ranked.clone());
                    ranked
                }
            };
            if ranked.is_empty() {
                return Err(Reject::Assignment(
                    "no assignment of a kernel's axes can be built".to_owned(),
                ));
            }
            kernels.push(ranked);
        }
        let best: f64 = kernels.iter().map(|k| k[0].1).sum();
        let first: Vec<Choice> = kernels.iter().map(|k| k[0].0).collect();
        let cuts = Arc::new(cuts);
        self.plans.push(Plan {
            expression: self.number,
            cuts: cuts.clone(),
            choices: first.clone(),
            us: best,
        });
        for (k, ranked) in kernels.iter().enumerate() {
            for (choice, us) in ranked.iter().skip(1) {
                let mut choices = first.clone();
                choices[k] = *choice;
                self.plans.push(Plan {
                    expression: self.number,
                    cuts: cuts.clone(),
                    choices,
                    us: best - ranked[0].1 + us,
                });
            }
        }
        Ok(best)
    }

    /// The assignments of one kernel, best first.
    fn rank(&mut self, outline: &Outline<'_>, k: usize) -> Vec<(Choice, f64)> {
        let mut seen = HashSet::new();
        let mut found: Vec<(Choice, f64)> = Vec::new();
        let mut idle = Vec::new();
        for choice in choices(self.options.effort) {
            if let Some((us, blocks)) = self.try_choice(outline, k, &choice, &mut seen) {
                found.push((choice, us));
                if blocks < 2 * u64::from(self.target.sms) {
                    idle.push(choice);
                }
            }
        }
        let others = LINES.map(|lines| (lines, false));
        for (lines, team) in others.into_iter().chain([(1, true)]) {
            for choice in choices(self.options.effort) {
                let choice = Choice {
                    lines,
                    team,
                    ..choice
                };
                if let Some((us, _)) = self.try_choice(outline, k, &choice, &mut seen) {
                    found.push((choice, us));
                }
            }
        }
        for choice in idle {
            for (parts, team) in PARTS.iter().flat_map(|p| [(*p, false), (*p, true)]) {
                let choice = Choice {
                    parts,
                    team,
                    ..choice
                };
                if let Some((us, _)) = self.try_choice(outline, k, &choice, &mut seen) {
                    found.push((choice, us));
                }
            }
        }
        // Stable: equal predictions keep the order of `choices`.
        found.sort_by(|x, y| x.1.total_cmp(&y.1));
        let mut groups: BTreeMap<(bool, bool), usize> = BTreeMap::new();
        found.retain(|f| {
            let count = groups.entry((f.0.parts > 1, f.0.team)).or_default();
            *count += 1;
            *count <= REMEMBERED
        });
        found
    }

    /// The predicted time and the smallest grid; nothing when it was tried before or is rejected.
    fn try_choice(
        &mut self,
        outline: &Outline<'_>,
        k: usize,
        choice: &Choice,
        seen: &mut HashSet<build::Assignment>,
    ) -> Option<(f64, u64)> {
        let assignment = assign::assign(&outline.kernels[k], &outline.axes, choice);
        if !seen.insert(assignment.clone()) || (choice.parts > 1 && assignment.split.is_none()) {
            return None;
        }
        let made =
            build::build_one(outline, k, &assignment, &mut self.corrections).and_then(|tile| {
                let cost = cost::cost(&tile, None, self.target);
                cost::fits(&cost, self.target)?;
                let blocks = cost.kernels.iter().map(|k| k.blocks).min().unwrap_or(0);
                Ok((cost.us, blocks))
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
        tile,
        predicted,
    })
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

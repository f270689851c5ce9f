//! The search over one expression: what is stored between kernels, and how each kernel runs over its axes.

use super::choices::{self, Detail};
use super::lists::{Held, List, Lists, Ranked};
use super::{PLAIN, Rejected, SearchOptions};
use crate::cost;
use crate::tiling::assign::{self, Choice};
use crate::tiling::build::{self, Common, Corrections, Cuts, Outline};
use crate::tiling::cuts;
use ir::{Dtype, NodeId, Program, Reject, Target};
use rayon::ThreadPool;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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
    /// How many choices the lists were made of.
    pub(super) detail: Detail,
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

/// Plans of one expression that differ from another one in one kernel's choice, of which so many are kept.
const OTHERS: usize = 4096;
/// So many pairs of kernels are tried as one kernel, of those that share most.
const JOINS: usize = 64;
/// With at most this many points every set of cuts is looked at.
const EXHAUSTIVE: usize = 6;

/// With at most this many points the search for cuts begins where nothing is stored, if that is better than all stored. With more, cuts are compared by a few
/// choices a kernel first.
const WHOLE: usize = 12;
/// So many of the cuts that were the best by few choices are looked at by all.
const BEST: usize = 8;

/// What a kernel stores and what it reads, and how many choices of it are tried: kernels that agree in this are equal.
type KernelKey = (Vec<NodeId>, Vec<(NodeId, Option<Dtype>)>, Detail);

/// How often and for how long a search did what takes long.
#[derive(Debug, Default)]
struct Took {
    /// Lists that it made.
    ranked: usize,
    outlines: Duration,
    ranking: Duration,
    waiting: Duration,
}

/// The search over one expression.
pub(super) struct Search<'a> {
    program: &'a Program,
    number: usize,
    target: &'a Target,
    options: &'a SearchOptions,
    /// Says that the search has to end.
    stop: &'a (dyn Fn() -> bool + Send + Sync),
    corrections: Corrections,
    common: Common,
    lists: &'a Lists,
    /// On which assignments are tried: not that on which searches may be, for what waits there may take up another one.
    pool: &'a ThreadPool,
    ranked: BTreeMap<KernelKey, Arc<Ranked>>,
    took: Took,
    detail: Detail,
    /// What may be stored, and where the walk over cuts begins.
    points: Vec<NodeId>,
    start: BTreeSet<NodeId>,
    tried: BTreeMap<BTreeSet<NodeId>, f64>,
    /// What plans take, by their cuts.
    planned: HashMap<(Arc<Cuts>, Detail), f64>,
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
        (lists, pool): (&'a Lists, &'a ThreadPool),
    ) -> Self {
        let points = cuts::points(program);
        Self {
            start: cuts::first(program, &points),
            points,
            lists,
            pool,
            took: Took::default(),
            detail: Detail::Fine,
            program,
            number,
            target,
            options,
            stop,
            corrections: Corrections::new(),
            common: Common::of(program),
            ranked: BTreeMap::new(),
            tried: BTreeMap::new(),
            planned: HashMap::new(),
            plans: Vec::new(),
            others: Vec::new(),
            found: 0,
            rejected: Rejected::default(),
        }
    }

    /// Looks for cuts by a few choices a kernel, where many cuts are to be compared. Gives what the best plan takes, in microseconds, if this found any.
    pub(super) fn coarse(&mut self) -> Option<f64> {
        if self.points.len() <= WHOLE || !self.has_time() {
            return None;
        }
        self.detail = Detail::Coarse;
        self.walk();
        self.join();
        self.best().map(|best| best.us)
    }

    /// Looks for cuts by all choices, from the best that were found by few.
    pub(super) fn fine(&mut self) {
        if !self.has_time() {
            return;
        }
        let mut best: Vec<&Plan> = self.plans.iter().map(|p| &p.1).collect();
        best.sort_by(|x, y| x.us.total_cmp(&y.us));
        let best = best.into_iter().take(BEST).map(|p| p.cuts.clone());
        let best: Vec<Arc<Cuts>> = best.collect();
        self.detail = Detail::Fine;
        self.tried.clear();
        for cuts in best {
            if self.is_over() {
                return;
            }
            if let Err(reject) = self.plan(cuts) {
                self.rejected.count(&reject);
            }
        }
        self.walk();
        self.join();
    }

    /// The best plan of those of which as many choices were tried as now.
    fn best(&self) -> Option<&Plan> {
        let all = self.plans.iter().map(|p| &p.1);
        all.filter(|p| p.detail == self.detail)
            .min_by(|x, y| x.us.total_cmp(&y.us))
    }

    /// Whether anything may begin: the first expression has a plan in any case.
    fn has_time(&self) -> bool {
        !self.is_over() || self.number == 0 && self.plans.is_empty()
    }

    /// Whether the search has to end.
    fn is_over(&self) -> bool {
        (self.stop)()
    }

    /// Makes two kernels of the best cuts one as long as that helps.
    fn join(&mut self) {
        let mut seen: HashSet<Vec<Vec<NodeId>>> = HashSet::new();
        loop {
            let Some((cuts, us)) = self.best().map(|p| (p.cuts.clone(), p.us)) else {
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
                match self.plan(Arc::new(joined)) {
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

    /// Looks for cuts from where it ended before.
    fn walk(&mut self) {
        let points = std::mem::take(&mut self.points);
        let start = std::mem::take(&mut self.start);
        self.start = self.walk_from(&points, start);
        self.points = points;
    }

    /// Looks for cuts from those where these values are stored. Gives the values of the best.
    fn walk_from(&mut self, points: &[NodeId], mut best: BTreeSet<NodeId>) -> BTreeSet<NodeId> {
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
            return best;
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
            for point in points {
                if self.is_over() {
                    return best;
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
            for set in cuts::steps(self.program, points, &best) {
                if self.is_over() {
                    return best;
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
        best
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
            match self.plan(Arc::new(cuts)) {
                Ok(found) => us = us.min(found),
                Err(reject) => self.rejected.count(&reject),
            }
        }
        self.tried.insert(stored.clone(), us);
        us
    }

    /// What cuts take under the best assignment of each kernel, in microseconds.
    fn plan(&mut self, cuts: Arc<Cuts>) -> Result<f64, Reject> {
        let place = (cuts.clone(), self.detail);
        if let Some(us) = self.planned.get(&place) {
            return Ok(*us);
        }
        let key = |roots: &Vec<NodeId>| {
            let dtype = |n: NodeId| (n, cuts.narrow.get(&n).copied());
            let reads = cuts::reads(self.program, roots, &cuts);
            let all = reads.into_iter().chain(roots.iter().copied());
            (roots.clone(), all.map(dtype).collect(), self.detail)
        };
        let keys: Vec<KernelKey> = cuts.kernels.iter().map(key).collect();
        for ranked in keys.iter().filter_map(|key| self.ranked.get(key)) {
            ranked.is_any()?;
        }
        let is_new = |k: &usize| !self.ranked.contains_key(&keys[*k]);
        let new: Vec<usize> = (0..keys.len()).filter(is_new).collect();
        // The first cuts are looked at in full; a kernel of later ones may have thousands of loads.
        if !new.is_empty() && !self.plans.is_empty() && self.is_over() {
            return Err(Reject::Assignment("there is no time left".to_owned()));
        }
        let begun = Instant::now();
        let wanted = |k| new.contains(&k);
        let outline = build::outline_of(self.program, &self.common, &cuts, wanted)?;
        self.took.outlines += begun.elapsed();
        // What others are about is waited for once all that is one's own is there: nobody waits for who waits.
        let mut promised = Vec::new();
        for (place, k) in new.into_iter().enumerate() {
            let ranked = match self.lists.of(self.name(&outline, place)) {
                List::Is(ranked) => ranked,
                List::Own(own) => {
                    let (ranked, is_whole) = self.rank(&outline, place);
                    let ranked = Arc::new(ranked);
                    own.keep(is_whole.then(|| ranked.clone()));
                    ranked
                }
                List::Others(promise) => {
                    promised.push((place, k, promise));
                    continue;
                }
            };
            self.keep(&keys[k], ranked)?;
        }
        for (place, k, promise) in promised {
            let begun = Instant::now();
            let ranked = promise.wait().clone();
            self.took.waiting += begun.elapsed();
            let ranked = ranked.unwrap_or_else(|| Arc::new(self.rank(&outline, place).0));
            self.keep(&keys[k], ranked)?;
        }
        let kernels: Vec<Arc<Ranked>> = keys.iter().map(|key| self.ranked[key].clone()).collect();
        let best: f64 = kernels.iter().map(|k| k.choices[0].1).sum();
        let first = Plan {
            expression: self.number,
            cuts,
            picks: vec![0; kernels.len()],
            own: BTreeMap::new(),
            detail: self.detail,
            kernels: Arc::new(kernels),
            us: best,
        };
        self.planned.insert(place, best);
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

    /// Keeps the list of a kernel; one without an assignment is a reject of all cuts that have the kernel.
    fn keep(&mut self, key: &KernelKey, ranked: Arc<Ranked>) -> Result<(), Reject> {
        let is_any = ranked.is_any();
        self.ranked.insert(key.clone(), ranked);
        is_any
    }

    /// Keeps the fastest, of which all was tried before others; of equal ones those that were found first.
    fn drop_others(&mut self) {
        (self.others)
            .sort_by(|(_, x), (_, y)| (y.detail.cmp(&x.detail)).then(x.us.total_cmp(&y.us)));
        self.others.truncate(OTHERS);
    }

    /// What was found, in the order in which it was.
    pub(super) fn into_plans(mut self) -> (Vec<Plan>, Rejected, Corrections) {
        let Took { ranked, .. } = self.took;
        let seconds = |took: Duration| took.as_secs_f64();
        let best = |detail| {
            let own = self.plans.iter().filter(|p| p.1.detail == detail);
            own.map(|p| p.1.us).fold(f64::INFINITY, f64::min)
        };
        tracing::debug!(
            form = self.number,
            cuts = self.plans.len(),
            coarse_us = best(Detail::Coarse),
            fine_us = best(Detail::Fine),
            kernels = self.ranked.len(),
            ranked,
            outlines = seconds(self.took.outlines),
            ranking = seconds(self.took.ranking),
            waiting = seconds(self.took.waiting),
            "searched for cuts"
        );
        let fine = self.plans.iter().filter(|p| p.1.detail == Detail::Fine);
        let fine: HashSet<Arc<Cuts>> = fine.map(|p| p.1.cuts.clone()).collect();
        let is_news = |p: &(usize, Plan)| p.1.detail == Detail::Fine || !fine.contains(&p.1.cuts);
        self.plans.retain(is_news);
        self.others.retain(is_news);
        self.drop_others();
        self.plans.append(&mut self.others);
        self.plans.sort_by_key(|p| p.0);
        let plans = self.plans.into_iter().map(|p| p.1).collect();
        (plans, self.rejected, self.corrections)
    }

    /// A name that a kernel shares with those alone of which the same is to be found: what it is in plain loops, in those that keep its running values and in
    /// those over coordinates that are picked. One of its own where nothing plain can be built.
    fn name(&mut self, outline: &Outline<'_>, k: usize) -> String {
        let kernel = &outline.kernels[k];
        let along = kernel.along().map(|_| Choice { along: 1, ..PLAIN });
        let picks = (!kernel.picked().is_empty()).then_some(Choice {
            picks: true,
            ..PLAIN
        });
        let all = [Some(PLAIN), along, picks].into_iter().flatten();
        let mut name = format!("{:?}\n", self.detail);
        for choice in all {
            let assignment = assign::assign(kernel, &outline.axes, &choice);
            match build::build_one(outline, k, &assignment, &mut self.corrections) {
                Ok(tile) => name.push_str(&tile.kernel_name(0)),
                Err(_) => return format!("{} {}", self.number, self.ranked.len()),
            }
        }
        name
    }

    /// The assignments of one kernel, best first, and whether the search left the time to try all.
    fn rank(&mut self, outline: &Outline<'_>, k: usize) -> (Ranked, bool) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let begun = Instant::now();
        let (choices, held) = self.assignments(outline, k).into_iter().unzip();
        self.took.ranking += begun.elapsed();
        self.took.ranked += 1;
        let ranked = Ranked {
            id: NUMBER.fetch_add(1, Ordering::Relaxed),
            choices,
            held,
        };
        (ranked, self.plans.is_empty() || !self.is_over())
    }

    fn assignments(&mut self, outline: &Outline<'_>, k: usize) -> Vec<((Choice, f64), Held)> {
        let all = choices::of_kernel(
            &outline.kernels[k],
            &outline.axes,
            self.options,
            self.detail,
        );
        let mut seen = HashSet::new();
        let mut found: Vec<(Choice, f64)> = Vec::new();
        // What does not fill the machine, with what it would take if it did.
        let mut idle: Vec<(f64, Choice)> = Vec::new();
        let made = self.try_choices(outline, k, all.iter().map(|(choice, _)| choice), &mut seen);
        for ((choice, may_split), made) in all.iter().zip(made) {
            if let Some((us, spread)) = made {
                found.push((*choice, us));
                idle.extend(spread.filter(|_| *may_split).map(|us| (us, *choice)));
            }
        }
        idle.sort_by(|x, y| x.0.total_cmp(&y.0));
        let (parts, spread) = choices::parts(self.detail);
        let idle = idle.into_iter().take(spread);
        let split = idle.flat_map(|(_, choice)| {
            [false, true].map(|block_group| Choice {
                block_group,
                ..choice
            })
        });
        let mut split: Vec<(usize, Choice)> = split.enumerate().collect();
        let mut in_parts: Vec<(usize, Choice, f64)> = Vec::new();
        for parts in parts.iter().copied() {
            split
                .iter_mut()
                .for_each(|(_, choice)| choice.parts = parts);
            let choices = split.iter().map(|(_, choice)| choice);
            let made = self.try_choices(outline, k, choices, &mut seen);
            let made = split.iter().zip(made);
            in_parts.extend(made.filter_map(|((n, choice), made)| Some((*n, *choice, made?.0))));
            // What cannot be split into so many parts cannot be split into more.
            let is_made = |n: &usize| in_parts.iter().any(|m| (m.0, m.1.parts) == (*n, parts));
            split.retain(|(n, _)| is_made(n));
        }
        in_parts.sort_by_key(|(n, ..)| *n);
        found.extend(in_parts.into_iter().map(|(_, choice, us)| (choice, us)));
        // Stable: equal predictions keep the order of `choices`.
        found.sort_by(|x, y| x.1.total_cmp(&y.1));
        choices::remembered(&outline.kernels[k], &outline.axes, found)
    }

    /// Of each choice what [`Search::priced`] says, on all cores; nothing of what was tried before, is rejected, or comes after the search has ended.
    fn try_choices<'c>(
        &mut self,
        outline: &Outline<'_>,
        k: usize,
        choices: impl IntoIterator<Item = &'c Choice>,
        seen: &mut HashSet<build::Assignment>,
    ) -> Vec<Option<(f64, Option<f64>)>> {
        let new = choices.into_iter().map(|choice| {
            let assignment = assign::assign(&outline.kernels[k], &outline.axes, choice);
            let is_none = choice.parts > 1 && assignment.split.is_none();
            (!is_none && seen.insert(assignment.clone())).then_some(assignment)
        });
        let new: Vec<Option<build::Assignment>> = new.collect();
        let is_first = self.plans.is_empty();
        let priced = |assignment: Option<build::Assignment>| {
            let assignment = assignment.filter(|_| is_first || !self.is_over())?;
            Some(self.priced(outline, k, &assignment))
        };
        let made: Vec<Option<Result<_, Reject>>> =
            (self.pool).install(|| new.into_par_iter().map(priced).collect());
        let made = made.into_iter().map(|made| match made? {
            Ok(found) => Some(found),
            Err(reject) => {
                self.rejected.count(&reject);
                None
            }
        });
        made.collect()
    }

    /// The predicted time and, of what does not fill the machine, that of its work if it were spread over all of it.
    fn priced(
        &self,
        outline: &Outline<'_>,
        k: usize,
        assignment: &build::Assignment,
    ) -> Result<(f64, Option<f64>), Reject> {
        let tile = build::build_one(outline, k, assignment, &mut self.corrections.clone())?;
        let cost = cost::cost(&tile, None, self.target);
        cost::fits(&cost, self.target)?;
        let sms = u64::from(self.target.sms);
        let spread = |k: &cost::KernelCost| {
            let work = k.tensor_us + k.cuda_us + k.special_us + k.l2_us + k.shared_us;
            work * (k.blocks as f64 / sms as f64).min(1.0)
        };
        let idle = cost.kernels.iter().any(|k| k.blocks < 2 * sms);
        Ok((cost.us, idle.then(|| cost.kernels.iter().map(spread).sum())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: &str = "program layers
axis i = 512, j = 512, k = 512, l = 512
x = parameter f32 [i, j]
v = parameter f32 [j, k]
w = parameter f32 [k, l]
return f32 [i, l] dot(dot(x, v; j), w; k)
";

    /// In a form that calls its axes something else every kernel is one of the first form.
    #[test]
    fn equal_kernels_of_forms_are_looked_at_once() {
        let renamed = LAYERS.replace('i', "rows").replace("axrowss", "axis");
        let other = LAYERS.replace("axis i = 512", "axis i = 1024");
        let forms = [LAYERS, &renamed, &other].map(|text| {
            let program: Program = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            program
        });
        let target = crate::targets::target("h200").expect("a target");
        let options = SearchOptions::default();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
        let (pool, lists, never) = (pool.expect("threads"), Lists::default(), || false);
        let searched = forms.iter().enumerate().map(|(number, form)| {
            let shared = (&lists, &pool);
            let mut search = Search::new(form, number, &target, &options, &never, shared);
            search.fine();
            let best = search.best().expect("a plan").us;
            (search.plans.len(), search.took.ranked, best)
        });
        let [(plans, made, best), second, third] = searched.collect::<Vec<_>>()[..] else {
            panic!("three forms");
        };
        assert!(made > 1);
        assert_eq!(second, (plans, 0, best));
        assert_eq!((third.0, third.1), (plans, made));
        assert!(third.2 > best);
    }
}

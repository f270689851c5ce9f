//! Rules about reductions: what may move in and out of a sum or a maximum.

use super::{MOST_AXES, WIDEST, few, free, ways, without};
use crate::egraph::enode::{Enode, Kind, Tag};
use crate::egraph::facts::EGraph;
use crate::egraph::{self, constant, product, scaled, sum, unary};
use egg::Id;
use ir::{AxisId, AxisSet};

fn over(n: &Enode) -> AxisSet {
    match &n.kind {
        Kind::Sum(a) | Kind::Maximum(a) | Kind::Product(a) => a.clone(),
        Kind::Symbol(_)
        | Kind::Constant(_)
        | Kind::Iota(_)
        | Kind::View { .. }
        | Kind::Add
        | Kind::Mul
        | Kind::Max
        | Kind::Inv
        | Kind::Function(_)
        | Kind::Select => AxisSet::new(),
    }
}

/// Variable elimination: the order in which a product is contracted. Axes that occur in the same factors go together.
pub(super) fn sum_eliminate(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let axes = over(n);
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Mul) {
        let mut groups: Vec<(Vec<bool>, AxisSet)> = Vec::new();
        for a in axes.iter() {
            let key: Vec<bool> = m.args.iter().map(|x| g[*x].data.axes.contains(a)).collect();
            match groups.iter_mut().find(|(k, _)| *k == key) {
                Some((_, set)) => {
                    set.insert(a);
                }
                None => groups.push((key, [a].into_iter().collect())),
            }
        }
        for (key, group) in groups {
            if key.iter().all(|k| *k) || !key.contains(&true) {
                continue;
            }
            let pick = |want: bool| -> Vec<Id> {
                (0..key.len())
                    .filter(|i| key[*i] == want)
                    .map(|i| m.args[i])
                    .collect()
            };
            let (outside, inside) = (pick(false), pick(true));
            let inside = product(g, inside);
            let inner = unary(g, Kind::Sum(group.clone()), inside);
            let mut factors = outside;
            factors.push(inner);
            let whole = product(g, factors);
            let rest = axes.minus(&group);
            out.push(if rest.is_empty() {
                whole
            } else {
                unary(g, Kind::Sum(rest), whole)
            });
        }
    }
    out
}

pub(super) fn sum_merge(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let outer = over(n);
    let mut out = Vec::new();
    for way in ways(g, n.args[0], Tag::Mul) {
        for (i, x) in way.iter().enumerate() {
            let rest = without(&way, i);
            for s in few(g, *x, Tag::Sum) {
                let inner = over(&s);
                if inner.intersects(&outer) || !rest.iter().all(|f| free(g, *f, &inner)) {
                    continue;
                }
                for body in ways(g, s.args[0], Tag::Mul) {
                    if rest.len() + body.len() > WIDEST {
                        continue;
                    }
                    let mut factors = rest.clone();
                    factors.extend(body);
                    let p = product(g, factors);
                    out.push(unary(g, Kind::Sum(outer.union(&inner)), p));
                }
            }
        }
    }
    out
}

pub(super) fn sum_push(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for (i, x) in n.args.iter().enumerate() {
        let rest = without(&n.args, i);
        for s in few(g, *x, Tag::Sum).into_iter().take(1) {
            if rest.iter().all(|f| free(g, *f, &over(&s))) && rest.len() < 4 {
                let mut factors = rest.clone();
                factors.push(s.args[0]);
                let p = product(g, factors);
                out.push(unary(g, s.kind, p));
            }
        }
    }
    out
}

pub(super) fn sum_split(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Add) {
        let terms = m
            .args
            .iter()
            .map(|t| unary(g, n.kind.clone(), *t))
            .collect();
        out.push(sum(g, terms));
    }
    out
}

pub(super) fn sum_join(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    let firsts: Vec<Enode> = n.args.iter().flat_map(|x| few(g, *x, Tag::Sum)).collect();
    let mut kinds: Vec<Kind> = firsts.into_iter().map(|m| m.kind).collect();
    kinds.sort();
    kinds.dedup();
    for kind in kinds {
        let mut bodies = Vec::new();
        let mut others = Vec::new();
        for x in &n.args {
            match few(g, *x, Tag::Sum).into_iter().find(|m| m.kind == kind) {
                Some(m) => bodies.push(m.args[0]),
                None => others.push(*x),
            }
        }
        if bodies.len() >= 2 {
            let body = sum(g, bodies);
            others.push(unary(g, kind, body));
            out.push(sum(g, others));
        }
    }
    out
}

/// Powers of two between which a part is large enough for its own sums and small enough to be looked at in full when forms are compared.
const HANDY: (f64, f64) = (9.0, 13.0);

/// The most pairs of differences that one product is seen as.
const PAIRS: usize = 4;

/// The axes that make a sum over `axes` one of sums that can be held: some of them, of a handy size if any are, and of those the later
/// ones, which are mostly the inner ones in memory.
pub(super) fn held_part(g: &EGraph, axes: &AxisSet) -> Option<AxisSet> {
    let held = g.analysis.held as f64;
    let all: Vec<AxisId> = axes.iter().collect();
    if g.analysis.elements(axes) <= held || all.len() > MOST_AXES {
        return None;
    }
    let part = |chosen: u32| -> AxisSet {
        let at = (0..all.len()).filter(|i| chosen >> i & 1 == 1);
        at.map(|i| all[i]).collect()
    };
    let unhandy = |part: &AxisSet| {
        let size = g.analysis.elements(part).log2();
        (HANDY.0 - size).max(size - HANDY.1).max(0.0)
    };
    (1..(1u32 << all.len()) - 1)
        .rev()
        .map(part)
        .filter(|part| (2.0..=held).contains(&g.analysis.elements(part)))
        .min_by(|x, y| unhandy(x).total_cmp(&unhandy(y)))
}

/// The ways to see a value as a difference: what varies over some axes, and what does not.
fn differences(g: &EGraph, x: Id, axes: &AxisSet) -> Vec<(Vec<Id>, Vec<Id>)> {
    few(g, x, Tag::Add)
        .into_iter()
        .map(|n| n.args.iter().partition(|t| !free(g, **t, axes)))
        .filter(|(terms, centre): &(Vec<Id>, Vec<Id>)| !terms.is_empty() && !centre.is_empty())
        .collect()
}

/// Products of differences from two numbers are those from the means of the parts, and those of the means: Chan, Golub and LeVeque,
/// "Updating formulae and a pairwise algorithm for computing sample variances", 1979, equation 2.1, for two factors.
pub(super) fn sum_in_parts(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let axes = over(n);
    let Some(part) = held_part(g, &axes) else {
        return Vec::new();
    };
    let count = g.analysis.elements(&part);
    let rest = axes.minus(&part);
    let mut out = Vec::new();
    for factors in few(g, n.args[0], Tag::Mul) {
        let [x, y] = factors.args[..] else {
            continue;
        };
        let same = g.find(x) == g.find(y);
        let (left, right) = (differences(g, x, &axes), differences(g, y, &axes));
        let pairs = left.iter().enumerate().flat_map(|(i, l)| {
            let with = right.iter().enumerate();
            with.filter(move |(j, _)| !same || *j == i)
                .map(move |(_, r)| (l, r))
        });
        for (x, y) in pairs.take(PAIRS) {
            let (mut within, mut between) = (Vec::new(), vec![constant(g, count)]);
            for (terms, centre) in [x, y] {
                let value = sum(g, terms.clone());
                let total = unary(g, Kind::Sum(part.clone()), value);
                let over_count = constant(g, count);
                let over_count = unary(g, Kind::Inv, over_count);
                let mean = product(g, vec![over_count, total]);
                let minus = scaled(g, -1.0, mean);
                within.push(sum(g, vec![value, minus]));
                let mut terms = centre.clone();
                terms.push(mean);
                between.push(sum(g, terms));
                // The sum itself in the same parts, which `sum-merge` finds equal: each part is summed once for both.
                unary(g, Kind::Sum(rest.clone()), total);
            }
            let within = product(g, within);
            let within = unary(g, Kind::Sum(part.clone()), within);
            let between = product(g, between);
            let both = sum(g, vec![within, between]);
            out.push(unary(g, Kind::Sum(rest.clone()), both));
        }
    }
    out
}

/// The axes of a reduction on which its operand depends, and those on which it does not.
fn idle(g: &EGraph, n: &Enode) -> Option<(AxisSet, AxisSet)> {
    let axes = over(n);
    let live = axes.intersection(&g[n.args[0]].data.axes);
    let idle = axes.minus(&live);
    (!idle.is_empty()).then_some((live, idle))
}

pub(super) fn sum_constant(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some((live, idle)) = idle(g, n) else {
        return Vec::new();
    };
    let times = g.analysis.elements(&idle);
    let rest = if live.is_empty() {
        n.args[0]
    } else {
        unary(g, Kind::Sum(live), n.args[0])
    };
    vec![scaled(g, times, rest)]
}

pub(super) fn max_constant(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some((live, _)) = idle(g, n) else {
        return Vec::new();
    };
    vec![if live.is_empty() {
        n.args[0]
    } else {
        unary(g, Kind::Maximum(live), n.args[0])
    }]
}

pub(super) fn max_pull(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let axes = over(n);
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Add) {
        let (mut outside, inside): (Vec<Id>, Vec<Id>) =
            m.args.iter().partition(|x| free(g, **x, &axes));
        if outside.is_empty() || inside.is_empty() {
            continue;
        }
        let body = sum(g, inside);
        outside.push(unary(g, n.kind.clone(), body));
        out.push(sum(g, outside));
    }
    out
}

pub(super) fn max_push(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for (i, x) in n.args.iter().enumerate() {
        let rest = without(&n.args, i);
        for m in few(g, *x, Tag::Maximum).into_iter().take(1) {
            if rest.len() < 4 && rest.iter().all(|t| free(g, *t, &over(&m))) {
                let mut terms = rest.clone();
                terms.push(m.args[0]);
                let body = sum(g, terms);
                out.push(unary(g, m.kind, body));
            }
        }
    }
    out
}

pub(super) fn max_scale(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let axes = over(n);
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Mul) {
        let all_finite = m.args.iter().all(|x| g[*x].data.finite);
        let movable = |g: &EGraph, x: Id| {
            let facts = &g[x].data;
            let sign = (facts.positive() && facts.finite) || (facts.nonnegative() && all_finite);
            sign && free(g, x, &axes)
        };
        let (mut outside, inside): (Vec<Id>, Vec<Id>) =
            m.args.iter().partition(|x| movable(g, **x));
        if outside.is_empty() || inside.is_empty() {
            continue;
        }
        let body = product(g, inside);
        outside.push(unary(g, n.kind.clone(), body));
        out.push(product(g, outside));
    }
    out
}

pub(super) fn max_merge(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let axes = over(n);
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Maximum) {
        if !over(&m).intersects(&axes) {
            out.push(unary(g, Kind::Maximum(axes.union(&over(&m))), m.args[0]));
        }
    }
    out
}

pub(super) fn max_split(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Max) {
        let parts = m
            .args
            .iter()
            .map(|t| unary(g, n.kind.clone(), *t))
            .collect();
        out.push(egraph::maximum(g, parts));
    }
    out
}

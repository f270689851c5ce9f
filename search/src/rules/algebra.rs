//! Element-wise rules. The equations are in the table; here are the ways to find their left sides.

use super::{WIDEST, few, ways, without};
use crate::egraph::enode::{Enode, Kind, Tag};
use crate::egraph::facts::{EGraph, is_held, is_rounding};
use crate::egraph::{self, constant, known, product, scaled, sum, unary};
use egg::Id;
use ir::Function;

pub(super) fn flatten(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for (i, x) in n.args.iter().enumerate() {
        if i > 0 && n.args[i - 1] == *x {
            continue;
        }
        for inner in few(g, *x, n.kind.tag()) {
            // A class that contains itself (x = max(x, x)) would grow for ever.
            if inner.args.iter().any(|a| g.find(*a) == g.find(*x))
                || inner.args.len() + n.args.len() > WIDEST
            {
                continue;
            }
            let mut args = without(&n.args, i);
            args.extend(inner.args);
            out.push(g.add(Enode::new(n.kind.clone(), args)));
        }
    }
    out
}

/// `x = c · base`; a constant has the base 1, written `None`.
fn coefficient(g: &mut EGraph, x: Id) -> (f64, Option<Id>) {
    if let Some(c) = known(g, x) {
        return (c, None);
    }
    for m in few(g, x, Tag::Mul) {
        if let Some(i) = m.args.iter().position(|a| known(g, *a).is_some()) {
            let c = known(g, m.args[i]).unwrap_or(1.0);
            let base = product(g, without(&m.args, i));
            return (c, Some(g.find(base)));
        }
    }
    (1.0, Some(g.find(x)))
}

pub(super) fn like_terms(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut alike: Vec<(Option<Id>, Vec<f64>)> = Vec::new();
    for x in &n.args {
        let (c, base) = coefficient(g, *x);
        match alike.iter_mut().find(|(b, _)| *b == base) {
            Some((_, all)) => all.push(c),
            None => alike.push((base, vec![c])),
        }
    }
    let total = |all: &[f64]| all.iter().sum::<f64>();
    if alike.iter().any(|(_, all)| is_rounding(total(all), all)) {
        return Vec::new();
    }
    let groups: Vec<(Option<Id>, f64)> = (alike.into_iter())
        .map(|(base, all)| (base, total(&all)))
        .collect();
    if groups.len() == n.args.len() && !groups.contains(&(None, 0.0)) {
        return Vec::new();
    }
    let vanishes = |g: &EGraph, base: &Option<Id>| base.is_none_or(|b| g[b].data.finite);
    if groups
        .iter()
        .any(|(b, c)| !c.is_finite() || (*c == 0.0 && !vanishes(g, b)))
    {
        return Vec::new();
    }
    let terms = groups
        .into_iter()
        .filter(|(_, c)| *c != 0.0)
        .map(|(base, c)| match base {
            Some(b) => scaled(g, c, b),
            None => constant(g, c),
        })
        .collect();
    vec![sum(g, terms)]
}

/// The terms that contain a factor, and what is left of each; the terms that do not.
fn grouped(
    g: &EGraph,
    terms: &[Id],
    common: Id,
    tag: Tag,
    all: bool,
) -> Option<(Vec<Vec<Id>>, Vec<Id>)> {
    let mut rests = Vec::new();
    let mut others = Vec::new();
    for t in terms {
        let rest = ways(g, *t, tag)
            .into_iter()
            .find_map(|way| Some(without(&way, way.iter().position(|w| *w == common)?)));
        match rest {
            Some(rest) => rests.push(rest),
            None => others.push(*t),
        }
    }
    (rests.len() >= 2 && (!all || others.is_empty())).then_some((rests, others))
}

/// What the terms of a sum might have in common.
fn candidates(g: &EGraph, terms: &[Id], tag: Tag) -> Vec<Id> {
    let mut all: Vec<Id> = terms
        .iter()
        .flat_map(|t| ways(g, *t, tag))
        .flatten()
        .filter(|f| known(g, *f).is_none())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

pub(super) fn factor(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for common in candidates(g, &n.args, Tag::Mul) {
        let Some((rests, mut others)) = grouped(g, &n.args, common, Tag::Mul, false) else {
            continue;
        };
        let terms = rests.into_iter().map(|r| product(g, r)).collect();
        let inner = sum(g, terms);
        others.push(product(g, vec![common, inner]));
        out.push(sum(g, others));
    }
    out
}

/// Constants of one magnitude, so that what is left of the terms keeps coefficients of 1 and −1. [`factor`] takes out everything else.
pub(super) fn factor_constant(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    // Each term's coefficients, with the products that they stand in and where.
    let mut terms: Vec<Vec<(f64, Enode, usize)>> = Vec::new();
    for x in &n.args {
        let mut ways = Vec::new();
        for m in few(g, *x, Tag::Mul) {
            let at = m.args.iter().position(|a| known(g, *a).is_some());
            if let Some((c, i)) = at.and_then(|i| Some((known(g, m.args[i])?, i))) {
                ways.push((c, m, i));
            }
        }
        terms.push(ways);
    }
    let mut sizes: Vec<f64> = terms.iter().flatten().map(|way| way.0.abs()).collect();
    sizes.retain(|size| size.is_finite() && *size != 0.0 && *size != 1.0);
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let mut out = Vec::new();
    for size in sizes {
        let (mut first, mut inner, mut others) = (None, Vec::new(), Vec::new());
        for (x, ways) in n.args.iter().zip(&terms) {
            match ways.iter().find(|way| way.0.abs() == size) {
                Some((c, m, i)) => inner.push((*c / *first.get_or_insert(*c), m, *i)),
                None => others.push(*x),
            }
        }
        let (Some(c), true) = (first, inner.len() >= 2) else {
            continue;
        };
        let rests = inner.into_iter().map(|(sign, m, i)| {
            let rest = product(g, without(&m.args, i));
            scaled(g, sign, rest)
        });
        let rests = rests.collect();
        let inner = sum(g, rests);
        others.push(scaled(g, c, inner));
        out.push(sum(g, others));
    }
    out
}

pub(super) fn distribute(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    // Products of sums of sums are how an e-graph explodes: short ones only.
    if n.args.len() > 3 {
        return out;
    }
    for (i, x) in n.args.iter().enumerate() {
        for inner in few(g, *x, Tag::Add) {
            if inner.args.len() > 3 {
                continue;
            }
            let terms = inner
                .args
                .iter()
                .map(|t| {
                    let mut factors = without(&n.args, i);
                    factors.push(*t);
                    product(g, factors)
                })
                .collect();
            out.push(sum(g, terms));
        }
    }
    out
}

pub(super) fn fold_product(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let (constants, rest): (Vec<Id>, Vec<Id>) =
        n.args.iter().partition(|a| known(g, **a).is_some());
    let scale: f64 = constants.iter().filter_map(|a| known(g, *a)).product();
    if scale == 0.0 && rest.iter().all(|x| g[*x].data.finite) {
        return vec![constant(g, 0.0)];
    }
    if constants.len() > 1 || (scale == 1.0 && !constants.is_empty()) {
        if scale == 0.0 || !scale.is_finite() {
            return Vec::new();
        }
        if scale == 1.0 || rest.is_empty() {
            let p = product(g, rest);
            return vec![scaled(g, scale, p)];
        }
        let c = constant(g, scale);
        let mut factors = rest;
        factors.push(c);
        return vec![product(g, factors)];
    }
    Vec::new()
}

pub(super) fn fold_maximum(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut kept: Vec<Id> = Vec::new();
    let classes: Vec<Id> = n.args.iter().map(|a| g.find(*a)).collect();
    for (i, x) in classes.iter().enumerate() {
        // Of two operands that bound each other the earlier one stays.
        let beaten = classes.iter().enumerate().any(|(k, y)| {
            let at_most = |x: Id, y: Id| x == y || g[x].data.high <= g[y].data.low;
            k != i && at_most(*x, *y) && (k < i || !at_most(*y, *x))
        });
        if !beaten {
            kept.push(*x);
        }
    }
    if kept.is_empty() || kept.len() == n.args.len() {
        return Vec::new();
    }
    vec![egraph::maximum(g, kept)]
}

pub(super) fn max_of_sums(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for common in candidates(g, &n.args, Tag::Add) {
        let Some((rests, _)) = grouped(g, &n.args, common, Tag::Add, true) else {
            continue;
        };
        let inner = rests.into_iter().map(|r| sum(g, r)).collect();
        let inner = egraph::maximum(g, inner);
        out.push(sum(g, vec![common, inner]));
    }
    out
}

fn drop_two(xs: &[Id], i: usize, j: usize) -> Vec<Id> {
    (0..xs.len())
        .filter(|k| *k != i && *k != j)
        .map(|k| xs[k])
        .collect()
}

pub(super) fn cancel(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    for (i, x) in n.args.iter().enumerate() {
        let facts = &g[*x].data;
        if !(facts.finite && facts.nonzero) {
            continue;
        }
        let inverse = g.lookup(Enode::new(Kind::Inv, vec![*x]));
        let Some(inverse) = inverse.map(|id| g.find(id)) else {
            continue;
        };
        if let Some(j) = (0..n.args.len()).find(|j| *j != i && g.find(n.args[*j]) == inverse) {
            return vec![product(g, drop_two(&n.args, i, j))];
        }
    }
    Vec::new()
}

pub(super) fn square_of_root(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    for i in 1..n.args.len() {
        if n.args[i - 1] != n.args[i] {
            continue;
        }
        let mut rest = drop_two(&n.args, i - 1, i);
        for root in few(g, n.args[i], Tag::Function(Function::Sqrt)) {
            if g[root.args[0]].data.nonnegative() {
                rest.push(root.args[0]);
                return vec![product(g, rest)];
            }
        }
        // ((√x)⁻¹)² = x⁻¹
        for inverse in few(g, n.args[i], Tag::Inv) {
            for root in few(g, inverse.args[0], Tag::Function(Function::Sqrt)) {
                if g[root.args[0]].data.positive() {
                    rest.push(unary(g, Kind::Inv, root.args[0]));
                    return vec![product(g, rest)];
                }
            }
        }
    }
    Vec::new()
}

/// `f(Π x) = Π f(x)`
fn over_factors(g: &mut EGraph, n: &Enode, allowed: fn(&EGraph, Id) -> bool) -> Vec<Id> {
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Mul) {
        if m.args.iter().all(|x| allowed(g, *x)) {
            let factors = m
                .args
                .iter()
                .map(|x| unary(g, n.kind.clone(), *x))
                .collect();
            out.push(product(g, factors));
        }
    }
    out
}

pub(super) fn inverse_product(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    over_factors(g, n, |_, _| true)
}

pub(super) fn inverse_inverse(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    few(g, n.args[0], Tag::Inv)
        .iter()
        .map(|m| m.args[0])
        .filter(|x| g[*x].data.finite && g[*x].data.nonzero)
        .collect()
}

pub(super) fn root_product(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    over_factors(g, n, |g, x| g[x].data.nonnegative())
}

pub(super) fn root_inverse(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Inv) {
        if g[m.args[0]].data.positive() {
            let root = unary(g, Kind::Function(Function::Sqrt), m.args[0]);
            out.push(unary(g, Kind::Inv, root));
        }
    }
    out
}

pub(super) fn exp_gather(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut powers = Vec::new();
    let mut rest = Vec::new();
    for x in &n.args {
        match few(g, *x, Tag::Function(Function::Exp)).first() {
            Some(e) => powers.push(e.args[0]),
            None => rest.push(*x),
        }
    }
    if powers.len() < 2 {
        return Vec::new();
    }
    let power = sum(g, powers);
    rest.push(unary(g, Kind::Function(Function::Exp), power));
    vec![product(g, rest)]
}

pub(super) fn exp_scatter(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for inner in few(g, n.args[0], Tag::Add) {
        // `e^(x − 10⁴)` is small where both of `e^x · e^(−10⁴)` are lost.
        let lost = |t: &Id| known(g, *t).is_some_and(|c| c.is_finite() && !is_held(c.exp()));
        if inner.args.iter().any(lost) {
            continue;
        }
        let factors = inner
            .args
            .iter()
            .map(|t| unary(g, Kind::Function(Function::Exp), *t))
            .collect();
        out.push(product(g, factors));
    }
    out
}

pub(super) fn exp_log(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    few(g, n.args[0], Tag::Function(Function::Log))
        .iter()
        .map(|l| l.args[0])
        .filter(|x| g[*x].data.positive())
        .collect()
}

pub(super) fn exp_inverse(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for e in few(g, n.args[0], Tag::Function(Function::Exp)) {
        let power = scaled(g, -1.0, e.args[0]);
        out.push(unary(g, Kind::Function(Function::Exp), power));
    }
    out
}

pub(super) fn log_exp(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    few(g, n.args[0], Tag::Function(Function::Exp))
        .iter()
        .map(|e| e.args[0])
        .collect()
}

pub(super) fn log_product(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Mul) {
        if m.args.iter().all(|x| g[*x].data.positive()) {
            let terms = m
                .args
                .iter()
                .map(|x| unary(g, Kind::Function(Function::Log), *x))
                .collect();
            out.push(sum(g, terms));
        }
    }
    out
}

pub(super) fn log_inverse(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Inv) {
        if g[m.args[0]].data.positive() {
            let log = unary(g, Kind::Function(Function::Log), m.args[0]);
            out.push(scaled(g, -1.0, log));
        }
    }
    out
}

pub(super) fn select_known(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let [c, x, y] = n.args.as_slice() else {
        return Vec::new();
    };
    let facts = &g[*c].data;
    if facts.nonnegative() || g.find(*x) == g.find(*y) {
        vec![*x]
    } else if facts.high < 0.0 {
        vec![*y]
    } else {
        Vec::new()
    }
}

pub(super) fn select_predicate(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let [c, x, y] = n.args.as_slice() else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for m in few(g, *c, Tag::Mul) {
        let sign: Vec<Id> = m
            .args
            .iter()
            .copied()
            .filter(|f| !(g[*f].data.positive() && g[*f].data.finite))
            .collect();
        if sign.len() < m.args.len() && !sign.is_empty() {
            let c = product(g, sign);
            out.push(g.add(Enode::new(Kind::Select, vec![c, *x, *y])));
        }
    }
    out
}

pub(super) fn select_nested(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let [c, x, y] = n.args.as_slice() else {
        return Vec::new();
    };
    let same = |g: &EGraph, m: &Enode| g.find(m.args[0]) == g.find(*c);
    let mut out = Vec::new();
    for m in few(g, *x, Tag::Select) {
        if same(g, &m) {
            out.push(g.add(Enode::new(Kind::Select, vec![*c, m.args[1], *y])));
        }
    }
    for m in few(g, *y, Tag::Select) {
        if same(g, &m) {
            out.push(g.add(Enode::new(Kind::Select, vec![*c, *x, m.args[2]])));
        }
    }
    out
}

pub(super) fn select_exp(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Select) {
        let Some(k) = known(g, m.args[2]) else {
            continue;
        };
        if k == f64::NEG_INFINITY || is_held(k.exp()) {
            let x = unary(g, Kind::Function(Function::Exp), m.args[1]);
            let y = constant(g, k.exp());
            out.push(g.add(Enode::new(Kind::Select, vec![m.args[0], x, y])));
        }
    }
    out
}

/// Constants alone: what is positive over the reals may be 0 in f32, and 0 times −∞ is no number.
pub(super) fn select_scale(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let [c, x, y] = n.args.as_slice() else {
        return Vec::new();
    };
    let mut out = Vec::new();
    if known(g, *y) != Some(f64::NEG_INFINITY) {
        return out;
    }
    for m in few(g, *x, Tag::Mul) {
        for (i, factor) in m.args.iter().enumerate() {
            if known(g, *factor).is_some_and(|k| k > 0.0 && is_held(k)) {
                let rest = product(g, without(&m.args, i));
                let selected = g.add(Enode::new(Kind::Select, vec![*c, rest, *y]));
                out.push(product(g, vec![*factor, selected]));
            }
        }
    }
    out
}

pub(super) fn select_product(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for (i, x) in n.args.iter().enumerate() {
        let rest = without(&n.args, i);
        if !rest.iter().all(|y| g[*y].data.finite) {
            continue;
        }
        for m in few(g, *x, Tag::Select) {
            if known(g, m.args[2]) == Some(0.0) {
                let mut factors = rest.clone();
                factors.push(m.args[1]);
                let p = product(g, factors);
                out.push(g.add(Enode::new(Kind::Select, vec![m.args[0], p, m.args[2]])));
            }
        }
    }
    out
}

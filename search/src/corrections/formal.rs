//! The rules of formal quotients: every one an identity wherever both sides have a value.
//!
//! They cancel `x · x⁻¹` and `x − x` without proof that `x` is non-zero or finite, so nothing that they derive may be
//! used before it is certified. Sums and products are n-ary, hence no rule permutes or re-associates.

use crate::egraph::enode::{Enode, Kind, Tag};
use crate::egraph::facts::{Algebra, EGraph};
use crate::egraph::{self, Rewriting, known, members, product, sum};
use egg::{Id, Rewrite};
use ir::Function;

/// Name, where it applies, what it does.
type Row = (&'static str, &'static [Tag], Rewriting);

#[rustfmt::skip]
const RULES: &[Row] = &[
    // x + (y + z) = x + y + z, and the same for products and maxima
    ("flatten",        &[Tag::Add, Tag::Mul, Tag::Max], flatten),
    // c₁·x + c₂·x = (c₁ + c₂)·x
    ("like-terms",     &[Tag::Add],                     like_terms),
    // x·y + x·z = x·(y + z)
    ("factor",         &[Tag::Add],                     factor),
    // x·(y + z) = x·y + x·z
    ("distribute",     &[Tag::Mul],                     distribute),
    // c₁·c₂·x = (c₁c₂)·x,  x·x⁻¹ = 1,  √x·√x = x
    ("cancel",         &[Tag::Mul],                     cancel),
    // e^x·e^y = e^(x + y)
    ("exp-gather",     &[Tag::Mul],                     exp_gather),
    // e^(x + y) = e^x·e^y,  e^(ln x) = x
    ("exp-scatter",    &[Tag::Function(Function::Exp)],                     exp_scatter),
    // (xy)⁻¹ = x⁻¹y⁻¹,  (x⁻¹)⁻¹ = x,  (e^x)⁻¹ = e^(−x)
    ("inverse",        &[Tag::Inv],                     inverse),
    // √(xy) = √x·√y,  √(x⁻¹) = (√x)⁻¹
    ("sqrt-scatter",   &[Tag::Function(Function::Sqrt)],                    sqrt_scatter),
    // ln(xy) = ln x + ln y,  ln(x⁻¹) = −ln x,  ln(e^x) = x
    ("log-scatter",    &[Tag::Function(Function::Log)],                     log_scatter),
    // max(x + y, x + z) = x + max(y, z)
    ("max-factor",     &[Tag::Max],                     max_factor),
    // select(c, x, 0) = x·select(c, 1, 0),  select(c, x, x) = x
    ("select-factor",  &[Tag::Select],                  select_factor),
];

/// The table, in the form that egg runs.
pub(super) fn rules(nodes: usize) -> Vec<Rewrite<Enode, Algebra>> {
    RULES
        .iter()
        .filter_map(|(name, roots, f)| egraph::rewrite(name, roots, *f, nodes))
        .collect()
}

/// The members of a class with a tag, at most two: normal forms need no more, and products of sums would explode.
fn few(g: &EGraph, class: Id, tag: Tag) -> Vec<Enode> {
    let mut all: Vec<&Enode> = members(g, class, tag).collect();
    all.sort();
    all.into_iter().take(2).cloned().collect()
}

/// The most operands that a formal sum or product may get: classes that contain themselves in a roundabout way would
/// otherwise grow for ever.
const WIDEST: usize = 10;

fn without(xs: &[Id], at: usize) -> Vec<Id> {
    let mut rest = xs.to_vec();
    rest.remove(at);
    rest
}

fn flatten(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for (i, x) in n.args.iter().enumerate() {
        for inner in few(g, *x, n.kind.tag()) {
            // A class that contains itself (x = x·1·…) would grow for ever.
            if inner.args.iter().any(|a| g.find(*a) == g.find(*x)) {
                continue;
            }
            let mut args = without(&n.args, i);
            args.extend(inner.args);
            if args.len() > WIDEST {
                continue;
            }
            out.push(g.add(Enode::new(n.kind.clone(), args)));
        }
    }
    out
}

/// `x = c · base`
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

fn like_terms(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut groups: Vec<(Option<Id>, f64)> = Vec::new();
    for x in &n.args {
        let (c, base) = coefficient(g, *x);
        match groups.iter_mut().find(|(b, _)| *b == base) {
            Some((_, total)) => *total += c,
            None => groups.push((base, c)),
        }
    }
    let zero = groups.iter().any(|(_, c)| *c == 0.0);
    if (groups.len() == n.args.len() && !zero) || groups.iter().any(|(_, c)| !c.is_finite()) {
        return Vec::new();
    }
    let terms = groups
        .into_iter()
        .filter(|(_, c)| *c != 0.0)
        .map(|(base, c)| match base {
            Some(b) => egraph::scaled(g, c, b),
            None => egraph::constant(g, c),
        })
        .collect();
    vec![sum(g, terms)]
}

/// The ways to see a class as a product.
fn factors(g: &EGraph, x: Id) -> Vec<Vec<Id>> {
    let mut ways: Vec<Vec<Id>> = few(g, x, Tag::Mul).into_iter().map(|m| m.args).collect();
    ways.push(vec![g.find(x)]);
    ways
}

fn factor(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some(first) = n.args.first() else {
        return Vec::new();
    };
    let mut candidates: Vec<Id> = factors(g, *first).into_iter().flatten().collect();
    candidates.sort_unstable();
    candidates.dedup();
    let mut out = Vec::new();
    for f in candidates {
        if known(g, f).is_some() {
            continue;
        }
        let rests: Option<Vec<Vec<Id>>> = n
            .args
            .iter()
            .map(|x| {
                factors(g, *x)
                    .into_iter()
                    .find_map(|way| Some(without(&way, way.iter().position(|w| *w == f)?)))
            })
            .collect();
        if let Some(rests) = rests {
            let terms = rests.into_iter().map(|r| product(g, r)).collect();
            let inner = sum(g, terms);
            out.push(product(g, vec![f, inner]));
        }
    }
    out
}

fn distribute(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    if n.args.len() > 5 {
        return out;
    }
    for (i, x) in n.args.iter().enumerate() {
        for inner in few(g, *x, Tag::Add).into_iter().take(1) {
            if inner.args.len() > 5 {
                continue;
            }
            let terms = inner
                .args
                .iter()
                .map(|t| {
                    let mut fs = without(&n.args, i);
                    fs.push(*t);
                    product(g, fs)
                })
                .collect();
            out.push(sum(g, terms));
        }
    }
    out
}

fn inverse_of(g: &EGraph, x: Id) -> Vec<Id> {
    let inner = members(g, x, Tag::Inv).map(|m| g.find(m.args[0]));
    let outer = g
        .lookup(Enode::new(Kind::Inv, vec![x]))
        .map(|id| g.find(id));
    inner.chain(outer).collect()
}

fn cancel(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let constants: Vec<f64> = n.args.iter().filter_map(|a| known(g, *a)).collect();
    let rest: Vec<Id> = n
        .args
        .iter()
        .copied()
        .filter(|a| known(g, *a).is_none())
        .collect();
    let scale: f64 = constants.iter().product();
    if constants.len() > 1 || (!constants.is_empty() && (scale == 1.0 || scale == 0.0)) {
        if !scale.is_finite() {
            return Vec::new();
        }
        if scale == 0.0 {
            return vec![egraph::constant(g, 0.0)];
        }
        let p = product(g, rest);
        return vec![egraph::scaled(g, scale, p)];
    }
    for i in 0..n.args.len() {
        let inverses = inverse_of(g, n.args[i]);
        if let Some(j) =
            (0..n.args.len()).find(|j| *j != i && inverses.contains(&g.find(n.args[*j])))
        {
            let others = (0..n.args.len()).filter(|k| *k != i && *k != j);
            let others = others.map(|k| n.args[k]).collect();
            return vec![product(g, others)];
        }
        if n.args[i + 1..].contains(&n.args[i])
            && let Some(root) = few(g, n.args[i], Tag::Function(Function::Sqrt)).first()
        {
            let twin = n.args.iter().rposition(|a| *a == n.args[i]);
            let mut others: Vec<Id> = (0..n.args.len())
                .filter(|k| *k != i && Some(*k) != twin)
                .map(|k| n.args[k])
                .collect();
            others.push(root.args[0]);
            return vec![product(g, others)];
        }
    }
    Vec::new()
}

fn exp_gather(g: &mut EGraph, n: &Enode) -> Vec<Id> {
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
    rest.push(egraph::unary(g, Kind::Function(Function::Exp), power));
    vec![product(g, rest)]
}

fn exp_scatter(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out: Vec<Id> = few(g, n.args[0], Tag::Function(Function::Log))
        .iter()
        .map(|l| l.args[0])
        .collect();
    for inner in few(g, n.args[0], Tag::Add) {
        let fs = inner
            .args
            .iter()
            .map(|t| egraph::unary(g, Kind::Function(Function::Exp), *t))
            .collect();
        out.push(product(g, fs));
    }
    out
}

fn inverse(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let x = n.args[0];
    if let Some(c) = known(g, x) {
        let inverse = 1.0 / c;
        return if inverse.is_finite() && inverse != 0.0 {
            vec![egraph::constant(g, inverse)]
        } else {
            Vec::new()
        };
    }
    let mut out: Vec<Id> = few(g, x, Tag::Inv).iter().map(|m| m.args[0]).collect();
    for m in few(g, x, Tag::Mul) {
        let fs = m
            .args
            .iter()
            .map(|f| egraph::unary(g, Kind::Inv, *f))
            .collect();
        out.push(product(g, fs));
    }
    for e in few(g, x, Tag::Function(Function::Exp)) {
        let power = egraph::scaled(g, -1.0, e.args[0]);
        out.push(egraph::unary(g, Kind::Function(Function::Exp), power));
    }
    out
}

fn sqrt_scatter(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let x = n.args[0];
    let mut out = Vec::new();
    if let Some(c) = known(g, x) {
        if c >= 0.0 && c.is_finite() {
            out.push(egraph::constant(g, c.sqrt()));
        }
        return out;
    }
    for m in few(g, x, Tag::Mul) {
        let fs = m
            .args
            .iter()
            .map(|f| egraph::unary(g, Kind::Function(Function::Sqrt), *f))
            .collect();
        out.push(product(g, fs));
    }
    for m in few(g, x, Tag::Inv) {
        let root = egraph::unary(g, Kind::Function(Function::Sqrt), m.args[0]);
        out.push(egraph::unary(g, Kind::Inv, root));
    }
    out
}

fn log_scatter(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let x = n.args[0];
    let mut out: Vec<Id> = few(g, x, Tag::Function(Function::Exp))
        .iter()
        .map(|m| m.args[0])
        .collect();
    for m in few(g, x, Tag::Mul) {
        let terms = m
            .args
            .iter()
            .map(|f| egraph::unary(g, Kind::Function(Function::Log), *f))
            .collect();
        out.push(sum(g, terms));
    }
    for m in few(g, x, Tag::Inv) {
        let log = egraph::unary(g, Kind::Function(Function::Log), m.args[0]);
        out.push(egraph::scaled(g, -1.0, log));
    }
    out
}

fn max_factor(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let ways = |g: &EGraph, x: Id| -> Vec<Vec<Id>> {
        let mut ways: Vec<Vec<Id>> = few(g, x, Tag::Add).into_iter().map(|m| m.args).collect();
        ways.push(vec![g.find(x)]);
        ways
    };
    let Some(first) = n.args.first() else {
        return Vec::new();
    };
    let candidates: Vec<Id> = ways(g, *first).into_iter().flatten().collect();
    let mut out = Vec::new();
    for t in candidates {
        let rests: Option<Vec<Vec<Id>>> = n
            .args
            .iter()
            .map(|x| {
                ways(g, *x)
                    .into_iter()
                    .find_map(|way| Some(without(&way, way.iter().position(|w| *w == t)?)))
            })
            .collect();
        if let Some(rests) = rests {
            let inner = rests.into_iter().map(|r| sum(g, r)).collect();
            let inner = egraph::maximum(g, inner);
            out.push(sum(g, vec![t, inner]));
        }
    }
    out
}

fn select_factor(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let [c, x, y] = n.args.as_slice() else {
        return Vec::new();
    };
    if g.find(*x) == g.find(*y) {
        return vec![*x];
    }
    if known(g, *y) == Some(0.0) && known(g, *x).is_none() {
        let one = egraph::constant(g, 1.0);
        let indicator = g.add(Enode::new(Kind::Select, vec![*c, one, *y]));
        return vec![product(g, vec![*x, indicator])];
    }
    Vec::new()
}

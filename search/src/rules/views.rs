//! Rules about re-indexing.

use super::few;
use crate::egraph::enode::{Enode, Kind, Real, Tag};
use crate::egraph::facts::EGraph;
use crate::egraph::{constant, known, scaled, sum, unary};
use egg::Id;
use ir::{Affine, AxisId, AxisSet, Function, Quotient};

type Map = Vec<(AxisId, Quotient)>;

fn parts(n: &Enode) -> Option<(&Map, Option<Real>)> {
    if let Kind::View { map, fill } = &n.kind {
        Some((map, *fill))
    } else {
        None
    }
}

fn view(g: &mut EGraph, map: Map, fill: Option<Real>, x: Id) -> Id {
    if map.is_empty() {
        return x;
    }
    unary(g, Kind::View { map, fill }, x)
}

fn sources(map: &Map) -> AxisSet {
    map.iter().map(|(a, _)| *a).collect()
}

fn mentioned(map: &[(AxisId, Quotient)]) -> AxisSet {
    map.iter()
        .fold(AxisSet::new(), |all, (_, f)| all.union(&f.axes()))
}

/// Whether no coordinate of a map leaves its source.
fn inside(g: &EGraph, map: &Map) -> bool {
    map.iter().all(|(a, f)| g.analysis.inside(*a, f))
}

/// Without a fill, the entries for axes that `x` carries are all that matters for it.
fn restricted(g: &EGraph, map: &Map, x: Id) -> Map {
    let axes = &g[x].data.axes;
    map.iter()
        .filter(|(a, _)| axes.contains(*a))
        .cloned()
        .collect()
}

pub(super) fn trivial(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some((map, fill)) = parts(n) else {
        return Vec::new();
    };
    let x = n.args[0];
    if fill.is_some() {
        // An entry that cannot leave its source does not decide where the fill is.
        return if inside(g, map) {
            let map = map.clone();
            vec![view(g, map, None, x)]
        } else {
            Vec::new()
        };
    }
    let mut kept = restricted(g, map, x);
    kept.retain(|(a, f)| f.as_axis() != Some(*a));
    if kept.len() == map.len() {
        return Vec::new();
    }
    vec![view(g, kept, None, x)]
}

pub(super) fn compose(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some((outer, outer_fill)) = parts(n) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::View) {
        let Some((inner, inner_fill)) = parts(&m) else {
            continue;
        };
        let fill = match (outer_fill, inner_fill) {
            (None, f) | (f, None) => f,
            (Some(x), Some(y)) if x == y => Some(x),
            (Some(_), Some(_)) => continue,
        };
        let x = m.args[0];
        let made = mentioned(inner);
        // An axis that the source passes through and the inner map also mentions would be re-indexed twice at once.
        let passed = g[x].data.axes.minus(&sources(inner));
        let proven = outer
            .iter()
            .all(|(a, f)| !made.contains(*a) || g.analysis.inside(*a, f));
        if !proven {
            continue;
        }
        // What the inner map mentions is an integer everywhere, as was just proven.
        let by = |a: AxisId| {
            let entry = outer.iter().find(|(b, _)| *b == a);
            entry.and_then(|(_, f)| f.affine().cloned())
        };
        let composed: Option<Map> = inner
            .iter()
            .map(|(a, f)| Some((*a, f.substitute(by)?)))
            .collect();
        let Some(mut map) = composed else {
            continue;
        };
        map.extend(outer.iter().filter(|(a, _)| passed.contains(*a)).cloned());
        // With a fill, an entry of the outer map for an axis that only decides whether the source is left must stay.
        let lost = outer
            .iter()
            .any(|(a, f)| !passed.contains(*a) && !g.analysis.inside(*a, f));
        if lost {
            continue;
        }
        map.sort_by_key(|(a, _)| *a);
        if map.windows(2).any(|w| w[0].0 == w[1].0) {
            continue;
        }
        out.push(view(g, map, fill, x));
    }
    out
}

pub(super) fn iota(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some((map, _)) = parts(n) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::Iota) {
        let Kind::Iota(axis) = m.kind else {
            continue;
        };
        let [(a, f)] = map.as_slice() else {
            continue;
        };
        let Some(f) = f
            .affine()
            .filter(|_| *a == axis && g.analysis.inside(*a, f))
        else {
            continue;
        };
        let mut terms = Vec::new();
        for (c, b) in f.terms() {
            let coordinate = g.add(Enode::new(Kind::Iota(*b), Vec::new()));
            terms.push(scaled(g, *c as f64, coordinate));
        }
        if f.offset != 0 || terms.is_empty() {
            terms.push(constant(g, f.offset as f64));
        }
        out.push(sum(g, terms));
    }
    out
}

/// What has a value at each point for itself.
fn element_wise() -> impl Iterator<Item = Tag> {
    let first = [Tag::Add, Tag::Mul, Tag::Max, Tag::Inv];
    let all = first.into_iter().chain(Function::all().map(Tag::Function));
    all.chain([Tag::Select])
}

pub(super) fn through_map(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some((map, None)) = parts(n) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for tag in element_wise() {
        for m in few(g, n.args[0], tag) {
            let args = m
                .args
                .iter()
                .map(|x| {
                    let map = restricted(g, map, *x);
                    view(g, map, None, *x)
                })
                .collect();
            out.push(g.add(Enode::new(m.kind, args)));
        }
    }
    out
}

/// Only operands that carry every mapped axis: for the others "outside" is no coordinate of theirs.
pub(super) fn through_map_with_fill(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some((map, Some(fill))) = parts(n) else {
        return Vec::new();
    };
    let c = fill.get();
    let mut out = Vec::new();
    for tag in element_wise() {
        let kept = match tag {
            Tag::Add => c == 0.0,
            Tag::Mul => c == 0.0 || c == 1.0,
            Tag::Max => true,
            Tag::Function(function) => {
                c.is_finite() && function.apply(&vec![c; function.arity()]) == c
            }
            Tag::Symbol
            | Tag::Constant
            | Tag::Iota
            | Tag::View
            | Tag::Inv
            | Tag::Select
            | Tag::Sum
            | Tag::Maximum
            | Tag::Product => false,
        };
        if !kept {
            continue;
        }
        let axes = sources(map);
        for m in few(g, n.args[0], tag) {
            if !m.args.iter().all(|x| axes.is_subset(&g[*x].data.axes)) {
                continue;
            }
            let args = m
                .args
                .iter()
                .map(|x| view(g, map.clone(), Some(fill), *x))
                .collect();
            out.push(g.add(Enode::new(m.kind, args)));
        }
    }
    out
}

pub(super) fn hoist(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let mut out = Vec::new();
    for (i, x) in n.args.iter().enumerate() {
        // The constant at the view's own place is its fill.
        let of = |(j, y): (usize, &Id)| if i == j { Some(0.0) } else { known(g, *y) };
        let constants: Option<Vec<f64>> = n.args.iter().enumerate().map(of).collect();
        let Some(mut constants) = constants else {
            continue;
        };
        for m in few(g, *x, Tag::View) {
            let Some((map, fill)) = parts(&m) else {
                continue;
            };
            let mut apply = |c: f64| {
                constants[i] = c;
                let all = constants.iter().copied();
                match n.kind.tag() {
                    Tag::Add => all.sum::<f64>(),
                    Tag::Mul => all.product::<f64>(),
                    Tag::Max => all.fold(f64::NEG_INFINITY, f64::max),
                    Tag::Function(function) => function.apply(&constants),
                    Tag::Symbol
                    | Tag::Constant
                    | Tag::Iota
                    | Tag::View
                    | Tag::Inv
                    | Tag::Select
                    | Tag::Sum
                    | Tag::Maximum
                    | Tag::Product => f64::NAN,
                }
            };
            let fill = fill.map(|c| apply(c.get()));
            if fill.is_some_and(f64::is_nan) {
                continue;
            }
            let mut args = n.args.clone();
            args[i] = m.args[0];
            let inner = g.add(Enode::new(n.kind.clone(), args));
            out.push(view(g, map.clone(), fill.map(Real::new), inner));
        }
    }
    out
}

/// Whether a fill is what a reduction of nothing but fills gives.
fn commutes_with(fill: Option<Real>, reduction: &Kind) -> bool {
    match (fill, reduction) {
        (None, Kind::Sum(_) | Kind::Maximum(_)) | (Some(_), Kind::Maximum(_)) => true,
        (Some(c), Kind::Sum(_)) => c.get() == 0.0,
        (
            _,
            Kind::Symbol(_)
            | Kind::Constant(_)
            | Kind::Iota(_)
            | Kind::View { .. }
            | Kind::Add
            | Kind::Mul
            | Kind::Max
            | Kind::Inv
            | Kind::Function(_)
            | Kind::Select
            | Kind::Product(_),
        ) => false,
    }
}

fn reduced(kind: &Kind) -> AxisSet {
    if let Kind::Sum(a) | Kind::Maximum(a) = kind {
        a.clone()
    } else {
        AxisSet::new()
    }
}

pub(super) fn through_reduce(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let Some((map, fill)) = parts(n) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for tag in [Tag::Sum, Tag::Maximum] {
        for m in few(g, n.args[0], tag) {
            let axes = reduced(&m.kind);
            if axes.intersects(&mentioned(map))
                || axes.intersects(&sources(map))
                || !axes.is_subset(&g[m.args[0]].data.axes)
                || !commutes_with(fill, &m.kind)
            {
                continue;
            }
            let inner = view(g, map.clone(), fill, m.args[0]);
            out.push(unary(g, m.kind, inner));
        }
    }
    out
}

/// Entries that mention none of the reduced axes are read behind the reduction: it is made once for all that read it.
pub(super) fn out_of_reduce(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let axes = reduced(&n.kind);
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::View) {
        let Some((map, fill)) = parts(&m) else {
            continue;
        };
        let x = m.args[0];
        let (within, behind): (Map, Map) = (map.iter().cloned())
            .partition(|entry| mentioned(std::slice::from_ref(entry)).intersects(&axes));
        let moved = sources(&behind);
        let carried = (g[x].data.axes.minus(&sources(&within))).union(&mentioned(&within));
        if behind.is_empty()
            || moved.intersects(&axes)
            || moved.intersects(&mentioned(&within))
            || !axes.is_subset(&carried)
            || !commutes_with(fill, &n.kind)
        {
            continue;
        }
        let inner = view(g, within, fill, x);
        let inner = unary(g, n.kind.clone(), inner);
        out.push(view(g, behind, fill, inner));
    }
    out
}

/// Along an axis that covers one of the source's, once each: the same reduction of the source.
pub(super) fn covered(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let axes = reduced(&n.kind);
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::View) {
        let Some((map, fill)) = parts(&m) else {
            continue;
        };
        let x = m.args[0];
        for (at, (from, f)) in map.iter().enumerate() {
            let terms = f.affine().map(|f| f.terms());
            let Some(&[(1 | -1, along)]) = terms else {
                continue;
            };
            let mut rest = map.clone();
            rest.remove(at);
            let carried = &g[x].data.axes;
            let once = !carried.contains(along) && !mentioned(&rest).contains(along);
            let all =
                g.analysis.extent(*from) == g.analysis.extent(along) && g.analysis.inside(*from, f);
            let kept = axes.contains(along) && carried.contains(*from);
            if !(kept && once && all && commutes_with(fill, &n.kind)) {
                continue;
            }
            out.push(over_source(g, &n.kind, along, (*from, x), rest, fill));
        }
    }
    out
}

/// A reduction with one of its axes replaced by one of a source, which is read by the rest of a view's map.
fn over_source(
    g: &mut EGraph,
    kind: &Kind,
    along: AxisId,
    (from, source): (AxisId, Id),
    rest: Map,
    fill: Option<Real>,
) -> Id {
    let over = |axis: AxisId| -> AxisSet { [axis].into_iter().collect() };
    let of = |axes: AxisSet| {
        if matches!(kind, Kind::Maximum(_)) {
            Kind::Maximum(axes)
        } else {
            Kind::Sum(axes)
        }
    };
    let inner = unary(g, of(over(from)), source);
    let fill = fill.filter(|_| !rest.is_empty());
    let inner = view(g, rest, fill, inner);
    let left = reduced(kind).minus(&over(along));
    if left.is_empty() {
        inner
    } else {
        unary(g, of(left), inner)
    }
}

/// Whether an axis takes a coordinate once to each place along another one, wherever the other axes are that it depends on.
pub(super) fn covers(g: &EGraph, f: &Affine, covered: AxisId, by: AxisId) -> bool {
    let extent = |axis: AxisId| g.analysis.extent(axis) as i64;
    let own = f.terms().iter().find(|(_, axis)| *axis == by);
    let Some((scale @ (1 | -1), _)) = own else {
        return false;
    };
    let others = f.terms().iter().copied().filter(|(_, axis)| *axis != by);
    let others = Affine::new(others, f.offset);
    let Some((least, most)) = others.and_then(|f| f.range(|a| (0, extent(a) - 1))) else {
        return false;
    };
    let (first, last) = (extent(by) - 1, extent(covered) - 1);
    match scale {
        1 => most <= 0 && least + first >= last,
        _ => most - first <= 0 && least >= last,
    }
}

/// What lies outside of its source adds nothing: along an axis that covers one of the source's, the sum of the source.
pub(super) fn covered_with_zeros(g: &mut EGraph, n: &Enode) -> Vec<Id> {
    let axes = reduced(&n.kind);
    let mut out = Vec::new();
    for m in few(g, n.args[0], Tag::View) {
        let Some((map, Some(fill))) = parts(&m).filter(|p| p.1.is_some_and(|c| c.get() == 0.0))
        else {
            continue;
        };
        let x = m.args[0];
        for (at, (from, f)) in map.iter().enumerate() {
            let mut rest = map.clone();
            rest.remove(at);
            let carried = g[x].data.axes.clone();
            let Some(f) = f.affine().filter(|_| carried.contains(*from)) else {
                continue;
            };
            let once =
                |axis: &AxisId| !carried.contains(*axis) && !mentioned(&rest).contains(*axis);
            let by = axes.iter().filter(once);
            let by: Vec<AxisId> = by.filter(|by| covers(g, f, *from, *by)).collect();
            for along in by {
                out.push(over_source(
                    g,
                    &n.kind,
                    along,
                    (*from, x),
                    rest.clone(),
                    Some(fill),
                ));
            }
        }
    }
    out
}

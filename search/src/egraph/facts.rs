//! What is known about every e-class: free axes, constants, range, and whether it is finite and non-zero.
//!
//! Facts are proofs over the extended reals: the intermediate overflow of a floating-point format is the business of
//! extraction's prices. A missing fact means "unknown", and rules treat unknown as no. The facts of a class are those of
//! all its members together: an interval proven for one member holds for all.

use crate::egraph::enode::{Enode, Kind, Real, Tag};
use crate::egraph::union::{FOLD, Found, Union};
use egg::{Analysis, DidMerge, Id};
use ir::interval::slack;
use ir::{AxisId, AxisSet, Fact, Interval, Quotient};

/// An e-graph over [`Enode`] with the facts of this module.
pub type EGraph = egg::EGraph<Enode, Algebra>;

/// The context of an e-graph: what its symbols are.
#[derive(Clone, Debug, Default)]
pub struct Algebra {
    /// The axes of every symbol. Symbols are finite reals of either sign.
    pub symbols: Vec<AxisSet>,
    /// The extent of every axis.
    pub extents: Vec<u64>,
    /// How many elements may be held at once: sums of more are also looked at in parts. With 0 there are no parts.
    pub held: u64,
    /// Whether two different constants were found equal: some rule was wrong, and nothing may be extracted.
    pub contradiction: bool,
    /// Every union so far, where somebody wants to know why classes are equal.
    pub log: Option<Vec<Union>>,
}

impl Algebra {
    /// The extent of an axis; of an unknown axis it is 1.
    pub fn extent(&self, axis: AxisId) -> u64 {
        self.extents.get(axis.index()).copied().unwrap_or(1)
    }

    /// `Π extents`
    pub fn elements(&self, axes: &AxisSet) -> f64 {
        axes.iter().map(|a| self.extent(a) as f64).product()
    }

    /// Whether a coordinate is an integer and stays inside `0 .. extent(axis)` everywhere.
    pub fn inside(&self, axis: AxisId, at: &Quotient) -> bool {
        let Some(at) = at.affine() else {
            return false;
        };
        let last = |a: AxisId| i64::try_from(self.extent(a)).unwrap_or(i64::MAX) - 1;
        matches!(at.range(|a| (0, last(a))), Some((low, high)) if low >= 0 && high <= last(axis))
    }
}

/// What is known about a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The axes on which the value may depend: the intersection over the members, since a value equal to one that does
    /// not mention an axis does not depend on it.
    pub axes: AxisSet,
    /// The value, if it is a known scalar.
    pub constant: Option<Real>,
    /// A lower bound, −∞ if none is known.
    pub low: f64,
    /// An upper bound, ∞ if none is known.
    pub high: f64,
    /// Whether it is proven to be a real number everywhere.
    pub finite: bool,
    /// Whether it is proven to be zero nowhere.
    pub nonzero: bool,
}

impl Facts {
    /// Whether it is proven to be `>= 0` everywhere.
    pub fn nonnegative(&self) -> bool {
        self.low >= 0.0
    }

    /// Whether it is proven to be `> 0` everywhere.
    pub fn positive(&self) -> bool {
        self.low > 0.0 || (self.low >= 0.0 && self.nonzero)
    }
}

impl Analysis<Enode> for Algebra {
    type Data = Facts;

    fn make(g: &mut EGraph, node: &Enode, _id: Id) -> Facts {
        let constant = fold(g, node);
        let r = match constant {
            Some(c) => Interval::exactly(c.get()),
            None => range(g, node),
        };
        Facts {
            axes: axes(g, node),
            constant,
            low: if r.low.is_nan() {
                Interval::ANY.low
            } else {
                r.low
            },
            high: if r.high.is_nan() {
                Interval::ANY.high
            } else {
                r.high
            },
            finite: r.finite,
            nonzero: r.nonzero || r.low > 0.0 || r.high < 0.0,
        }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        if let (Some(x), Some(y)) = (a.constant, b.constant) {
            let (x, y) = (x.get(), y.get());
            // Folding in two orders may round differently, though never to zero: what cancels is not folded.
            if x != y && (x - y).abs() > ROUNDING * (x.abs() + y.abs()) {
                self.contradiction = true;
            }
        }
        let merged = Facts {
            axes: a.axes.intersection(&b.axes),
            constant: match (a.constant, b.constant) {
                // The whole number is the one that rounding missed.
                (Some(x), Some(y)) => Some(match (whole(x.get()), whole(y.get())) {
                    (true, false) => x,
                    (false, true) => y,
                    (true, true) | (false, false) => x.min(y),
                }),
                (x, y) => x.or(y),
            },
            low: tighter(a.low, b.low),
            high: -tighter(-a.high, -b.high),
            finite: a.finite || b.finite,
            nonzero: a.nonzero || b.nonzero,
        };
        let did = DidMerge(merged != *a, merged != b);
        *a = merged;
        did
    }

    fn modify(g: &mut EGraph, id: Id) {
        if let Some(c) = g[id].data.constant {
            let new = g.add(Enode::new(Kind::Constant(c), Vec::new()));
            if g.union(id, new)
                && let Some(log) = &mut g.analysis.log
            {
                log.push(Union {
                    rule: FOLD.into(),
                    found: Found::Class(id),
                    given: new,
                });
            }
        }
    }
}

/// Relative difference of two folded constants that is put down to rounding.
const ROUNDING: f64 = 1e-9;
/// What may be left of terms that cancel: less would be rounded by more than [`ROUNDING`].
const CANCELS: f64 = 1e-6;

fn whole(x: f64) -> bool {
    x.fract() == 0.0
}

/// The better of two lower bounds, where better means that it proves more about the sign or finiteness: merely closer bounds are
/// not taken, because a cycle of e-classes could tighten them for ever.
fn tighter(held: f64, other: f64) -> f64 {
    let proves = |x: f64| match x {
        x if x > 0.0 => 3,
        0.0 => 2,
        x if x > f64::NEG_INFINITY => 1,
        _ => 0,
    };
    if proves(other) > proves(held) {
        other
    } else {
        held
    }
}

/// The axes that one e-node mentions.
pub fn axes(g: &EGraph, node: &Enode) -> AxisSet {
    let operands = node
        .args
        .iter()
        .fold(AxisSet::new(), |all, a| all.union(&g[*a].data.axes));
    match &node.kind {
        Kind::Symbol(s) => g
            .analysis
            .symbols
            .get(*s as usize)
            .cloned()
            .unwrap_or_default(),
        Kind::Constant(_) => AxisSet::new(),
        Kind::Iota(a) => [*a].into_iter().collect(),
        Kind::View { map, fill } => {
            let mut axes = operands.clone();
            for (a, _) in map {
                axes.remove(*a);
            }
            map.iter()
                // A coordinate that the source ignores still decides where the fill is.
                .filter(|(a, _)| fill.is_some() || operands.contains(*a))
                .fold(axes, |all, (_, f)| all.union(&f.axes()))
        }
        Kind::Sum(over) | Kind::Maximum(over) | Kind::Product(over) => operands.minus(over),
        Kind::Add | Kind::Mul | Kind::Max | Kind::Inv | Kind::Function(_) | Kind::Select => {
            operands
        }
    }
}

/// The interval that one e-node alone proves; wider than its class's where the node's form hides what another shows.
pub fn lower_bound(g: &EGraph, node: &Enode) -> f64 {
    match fold(g, node) {
        Some(c) => c.get(),
        None => range(g, node).low,
    }
}

/// The value of an element-wise operation of constants, where it has one.
fn fold(g: &EGraph, node: &Enode) -> Option<Real> {
    if let Kind::Constant(c) = node.kind {
        return Some(c);
    }
    let xs: Option<Vec<f64>> = node
        .args
        .iter()
        .map(|a| g[*a].data.constant.map(Real::get))
        .collect();
    let xs = xs?;
    let value = match node.kind {
        Kind::Add => xs.iter().sum(),
        Kind::Mul => xs.iter().product(),
        Kind::Max => xs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Kind::Inv if xs[0] != 0.0 => 1.0 / xs[0],
        Kind::Function(function) if function.is_defined(&xs) => function.apply(&xs),
        Kind::Select => xs[if xs[0] >= 0.0 { 1 } else { 2 }],
        Kind::Symbol(_)
        | Kind::Constant(_)
        | Kind::Iota(_)
        | Kind::View { .. }
        | Kind::Inv
        | Kind::Function(_)
        | Kind::Sum(_)
        | Kind::Maximum(_)
        | Kind::Product(_) => return None,
    };
    // An overflow of the folding itself is no fact about the reals, nor is an underflow; and what no kernel can hold in f32
    // is no use to it: `exp(x − 1000)` is not `exp(x) · exp(−1000)`.
    let vanishes = value == 0.0
        && match node.kind {
            Kind::Mul => xs.iter().all(|x| *x != 0.0),
            Kind::Inv => true,
            Kind::Function(function) => function.has(Fact::Positive),
            Kind::Symbol(_)
            | Kind::Constant(_)
            | Kind::Iota(_)
            | Kind::View { .. }
            | Kind::Add
            | Kind::Max
            | Kind::Select
            | Kind::Sum(_)
            | Kind::Maximum(_)
            | Kind::Product(_) => false,
        };
    let fits = if value == 0.0 {
        !vanishes
    } else {
        is_held(value)
            && match node.kind {
                Kind::Add => !is_rounding(value, &xs),
                Kind::Function(function) => !is_rounding(value, &[(function.row().cancels)(&xs)]),
                Kind::Mul
                | Kind::Max
                | Kind::Inv
                | Kind::Select
                | Kind::Symbol(_)
                | Kind::Constant(_)
                | Kind::Iota(_)
                | Kind::View { .. }
                | Kind::Sum(_)
                | Kind::Maximum(_)
                | Kind::Product(_) => true,
            }
    };
    (!value.is_nan() && (fits || xs.iter().any(|x| x.is_infinite()))).then(|| Real::new(value))
}

/// Whether what is left of terms that cancel may be nothing but their rounding: then not even its sign is known, and it may be zero.
/// Whole numbers are not rounded.
pub(crate) fn is_rounding(sum: f64, terms: &[f64]) -> bool {
    let size: f64 = terms.iter().map(|x| x.abs()).sum();
    let exact = whole(sum) && terms.iter().all(|x| whole(*x)) && size < 2f64.powi(53);
    !exact && sum != 0.0 && sum.abs() < CANCELS * size
}

/// Whether a kernel can hold a number in f32, as a normal one.
pub(crate) fn is_held(value: f64) -> bool {
    (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&value.abs())
}

fn of(g: &EGraph, id: Id) -> Interval {
    let f = &g[id].data;
    Interval {
        low: f.low,
        high: f.high,
        finite: f.finite,
        nonzero: f.nonzero,
    }
}

/// `0 · ∞ = 0`: the bound of a product whose factor is zero is zero.
fn times(x: f64, y: f64) -> f64 {
    if x == 0.0 || y == 0.0 { 0.0 } else { x * y }
}

fn range(g: &EGraph, node: &Enode) -> Interval {
    let xs: Vec<Interval> = node.args.iter().map(|a| of(g, *a)).collect();
    let all_finite = xs.iter().all(|x| x.finite);
    match &node.kind {
        Kind::Symbol(_) => Interval {
            finite: true,
            ..Interval::ANY
        },
        Kind::Constant(c) => Interval::exactly(c.get()),
        Kind::Iota(a) => Interval {
            low: 0.0,
            high: g.analysis.extent(*a) as f64 - 1.0,
            finite: true,
            nonzero: false,
        },
        Kind::View { fill, .. } => match fill {
            None => xs[0],
            Some(c) => Interval {
                low: xs[0].low.min(c.get()),
                high: xs[0].high.max(c.get()),
                finite: xs[0].finite && c.get().is_finite(),
                nonzero: xs[0].nonzero && c.get() != 0.0,
            },
        },
        Kind::Add => Interval {
            low: xs.iter().map(|x| x.low).sum::<f64>() - slack(xs.iter().map(|x| x.low)),
            high: shifted_bound(g, &node.args, &xs),
            finite: all_finite,
            nonzero: (xs.iter().all(|x| x.low >= 0.0) || xs.iter().all(|x| x.high <= 0.0))
                && xs.iter().any(|x| x.nonzero),
        },
        Kind::Mul => product_range(&node.args, &xs),
        Kind::Max => Interval {
            low: xs.iter().map(|x| x.low).fold(f64::NEG_INFINITY, f64::max),
            high: xs.iter().map(|x| x.high).fold(f64::NEG_INFINITY, f64::max),
            finite: all_finite,
            nonzero: xs.iter().all(|x| x.nonzero),
        },
        Kind::Inv => {
            let x = xs[0];
            let (low, high) = if x.low >= 0.0 && (x.nonzero || x.low > 0.0) {
                (1.0 / x.high, 1.0 / x.low)
            } else if x.high <= 0.0 && (x.nonzero || x.high < 0.0) {
                (-1.0 / -x.high, -1.0 / -x.low)
            } else {
                (Interval::ANY.low, Interval::ANY.high)
            };
            Interval {
                low,
                high,
                finite: x.nonzero,
                nonzero: x.finite,
            }
        }
        Kind::Function(function) => (function.row().interval)(&xs),
        Kind::Select => Interval {
            low: xs[1].low.min(xs[2].low),
            high: xs[1].high.max(xs[2].high),
            finite: xs[1].finite && xs[2].finite,
            nonzero: xs[1].nonzero && xs[2].nonzero,
        },
        Kind::Sum(over) => {
            let n = g.analysis.elements(over);
            Interval {
                low: times(n, xs[0].low),
                high: times(n, xs[0].high),
                finite: xs[0].finite,
                nonzero: xs[0].nonzero && (xs[0].low >= 0.0 || xs[0].high <= 0.0),
            }
        }
        Kind::Maximum(_) => xs[0],
        // Of factors from −1 to 1 the product stays there, of those above 1 it grows: n factors of the same range.
        Kind::Product(over) => {
            let n = g.analysis.elements(over);
            let most = xs[0].low.abs().max(xs[0].high.abs());
            let most = if most <= 1.0 { most } else { most.powf(n) };
            let positive = xs[0].low >= 0.0;
            let least = if xs[0].low >= 1.0 { xs[0].low } else { 0.0 };
            Interval {
                low: if positive { least } else { -most },
                high: most,
                finite: xs[0].finite,
                nonzero: xs[0].nonzero,
            }
        }
    }
}

fn product_range(args: &[Id], xs: &[Interval]) -> Interval {
    let mut low: f64 = 1.0;
    let mut high: f64 = 1.0;
    for x in xs {
        let ends = [
            times(low, x.low),
            times(low, x.high),
            times(high, x.low),
            times(high, x.high),
        ];
        low = ends.iter().copied().fold(f64::INFINITY, f64::min);
        high = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    }
    // Every factor of unknown sign comes an even number of times: a square.
    let square = args
        .iter()
        .zip(xs)
        .all(|(a, x)| x.low >= 0.0 || args.iter().filter(|b| *b == a).count() % 2 == 0);
    Interval {
        low: if square { low.max(0.0) } else { low },
        high,
        finite: xs.iter().all(|x| x.finite),
        nonzero: xs.iter().all(|x| x.nonzero),
    }
}

/// The upper bound of a sum, knowing that `x − max(x; j) <= 0` and `x − max(x, y) <= 0`.
fn shifted_bound(g: &EGraph, args: &[Id], xs: &[Interval]) -> f64 {
    let mut left: Vec<usize> = (0..args.len()).collect();
    let mut bound = 0.0;
    while let Some(i) = left.iter().position(|m| {
        let tops = tops(g, args[*m]);
        left.iter()
            .any(|x| x != m && tops.contains(&g.find(args[*x])))
    }) {
        let m = left.remove(i);
        let tops = tops(g, args[m]);
        left.retain({
            let mut once = true;
            move |x| {
                let hit = once && tops.contains(&g.find(args[*x]));
                once &= !hit;
                !hit
            }
        });
    }
    for i in &left {
        bound += xs[*i].high;
    }
    bound + slack(left.into_iter().map(|i| xs[i].high))
}

/// The classes `x` for which a class is `−max(x; j)` or `−max(x, …)`.
fn tops(g: &EGraph, class: Id) -> Vec<Id> {
    let mut out = Vec::new();
    for m in g[class].nodes.iter().filter(|n| n.kind.tag() == Tag::Mul) {
        let [x, y] = m.args.as_slice() else {
            continue;
        };
        let minus = |id: Id| g[id].data.constant == Some(Real::new(-1.0));
        let top = if minus(*x) {
            *y
        } else if minus(*y) {
            *x
        } else {
            continue;
        };
        for n in &g[top].nodes {
            if matches!(n.kind.tag(), Tag::Maximum | Tag::Max) {
                out.extend(n.args.iter().map(|a| g.find(*a)));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egraph::{constant, sum, unary};
    use ir::Function;

    /// Two ways to fold what is left of constants that cancel give two numbers: none is folded where they would be too far apart.
    #[test]
    fn what_cancels_is_folded_where_enough_digits_are_left() {
        let mut g = EGraph::new(Algebra::default());
        let mut difference = |x: f64| {
            let terms = vec![constant(&mut g, 1.0 + x), constant(&mut g, -1.0)];
            let id = sum(&mut g, terms);
            g[id].data.constant.map(Real::get)
        };
        assert_eq!(difference(0.0), Some(0.0));
        assert_eq!(difference(1e-8), None);
        assert_eq!(difference(f64::EPSILON), None);
        let found = difference(1e-5).expect("a number");
        assert!((found - 1e-5).abs() <= ROUNDING * 1e-5);
        // Extents of millions.
        let whole = [4_194_305.0, -4_194_304.0].map(|x| constant(&mut g, x));
        let id = sum(&mut g, whole.to_vec());
        assert_eq!(g[id].data.constant, Some(Real::new(1.0)));
        let near_one = constant(&mut g, 1.0 + 1e-8);
        let log = unary(&mut g, Kind::Function(Function::Log), near_one);
        assert_eq!(g[log].data.constant, None);
    }
}

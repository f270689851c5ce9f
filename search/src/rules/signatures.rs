//! The signatures of rules, one for each row of the table: well-typed left sides, drawn at random. Some of them do not meet the rule's side conditions:
//! there the rule must not apply, and one that forgot a condition shows.

use crate::egraph::enode::{Enode, Kind};
use crate::egraph::facts::{Algebra, EGraph};
use crate::egraph::{self, constant, map, product, scaled, sum, unary};
use egg::Id;
use ir::{Affine, AxisId, AxisSet, MapOp};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Axes that instances are drawn over.
pub(super) const AXES: u32 = 4;
const ALL: &[u32] = &[0, 1, 2, 3];

/// Draws well-typed operands of a rule's left side.
#[derive(Debug)]
pub struct Draw {
    pub(super) g: EGraph,
    rng: ChaCha8Rng,
}

fn set(axes: &[u32]) -> AxisSet {
    axes.iter().map(|a| AxisId(*a)).collect()
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let extents = (0..AXES)
            .map(|_| [1, 2, 3, 5][rng.random_range(0..4)])
            .collect();
        let g = EGraph::new(Algebra {
            extents,
            ..Algebra::default()
        });
        Self { g, rng }
    }
    fn some(&mut self, of: &[u32]) -> AxisSet {
        of.iter()
            .filter(|_| self.rng.random_bool(0.6))
            .map(|a| AxisId(*a))
            .collect()
    }
    /// A fresh tensor over exactly these axes.
    fn over(&mut self, axes: AxisSet) -> Id {
        self.g.analysis.symbols.push(axes);
        let k = self.g.analysis.symbols.len() as u32 - 1;
        self.g.add(Enode::new(Kind::Symbol(k), Vec::new()))
    }
    /// A tensor over some of these axes.
    fn x(&mut self, of: &[u32]) -> Id {
        let axes = self.some(of);
        self.over(axes)
    }
    /// A tensor over these axes and some of the others.
    fn with(&mut self, must: &[u32], of: &[u32]) -> Id {
        let axes = self.some(of).union(&set(must));
        self.over(axes)
    }
    /// Like `x`, sometimes masked with −∞.
    fn masked(&mut self, of: &[u32]) -> Id {
        let x = self.x(of);
        if self.rng.random_bool(0.7) {
            return x;
        }
        let c = self.x(of);
        let y = constant(&mut self.g, f64::NEG_INFINITY);
        map(&mut self.g, MapOp::Select, &[c, x, y])
    }
    fn positive(&mut self, of: &[u32]) -> Id {
        let x = self.x(of);
        unary(&mut self.g, Kind::Exp, x)
    }
    fn square(&mut self, of: &[u32]) -> Id {
        let x = self.x(of);
        product(&mut self.g, vec![x, x])
    }
    /// Mostly `positive` or `square`, sometimes of any sign, so that a missing side condition shows.
    fn signed(&mut self, of: &[u32]) -> Id {
        match self.rng.random_range(0..5) {
            0 => self.x(of),
            1 => self.square(of),
            _ => self.positive(of),
        }
    }
    fn c(&mut self) -> Id {
        let c = f64::from(self.rng.random_range(-6_i32..7)) * 0.5;
        constant(&mut self.g, c)
    }
    fn inv(&mut self, x: Id) -> Id {
        unary(&mut self.g, Kind::Inv, x)
    }
    fn un(&mut self, kind: Kind, x: Id) -> Id {
        unary(&mut self.g, kind, x)
    }
    fn mul(&mut self, xs: &[Id]) -> Id {
        product(&mut self.g, xs.to_vec())
    }
    fn add(&mut self, xs: &[Id]) -> Id {
        sum(&mut self.g, xs.to_vec())
    }
    fn max(&mut self, xs: &[Id]) -> Id {
        egraph::maximum(&mut self.g, xs.to_vec())
    }
    fn select(&mut self, c: Id, x: Id, y: Id) -> Id {
        map(&mut self.g, MapOp::Select, &[c, x, y])
    }
    fn sum_over(&mut self, axes: &[u32], x: Id) -> Id {
        unary(&mut self.g, Kind::Sum(set(axes)), x)
    }
    fn max_over(&mut self, axes: &[u32], x: Id) -> Id {
        unary(&mut self.g, Kind::Maximum(set(axes)), x)
    }
    /// A map of axis 0 by axis 1 that stays inside if it can (extent of 0 at least that of 1).
    fn inside(&mut self) -> Vec<(AxisId, Affine)> {
        let (a, b) = (AxisId(0), AxisId(1));
        let (m, n) = (self.g.analysis.extent(a), self.g.analysis.extent(b));
        let n = n.min(m);
        self.g.analysis.extents[1] = n;
        let slack = (m - n) as i64;
        let shift = self.rng.random_range(0..=slack);
        let f = if self.rng.random_bool(0.5) {
            Affine::new([(1, b)], shift)
        } else {
            Affine::new([(-1, b)], shift + n as i64 - 1)
        };
        vec![(a, f.expect("small numbers"))]
    }
    fn view(&mut self, m: Vec<(AxisId, Affine)>, fill: Option<f64>, x: Id) -> Id {
        let fill = fill.map(crate::egraph::enode::Real::new);
        unary(&mut self.g, Kind::View { map: m, fill }, x)
    }
    fn sometimes_outside(&mut self) -> Vec<(AxisId, Affine)> {
        if self.rng.random_bool(0.3) {
            self.outside()
        } else {
            self.inside()
        }
    }
    /// What a sum of nothing gives, or now and then something else.
    fn mostly_neutral(&mut self) -> f64 {
        if self.rng.random_bool(0.2) { 0.5 } else { 0.0 }
    }
    /// A map of axis 0 by axes 1 and 2 that may leave the source.
    fn outside(&mut self) -> Vec<(AxisId, Affine)> {
        let c = self.rng.random_range(1..3);
        let off = self.rng.random_range(-2..3);
        let f = Affine::new([(c, AxisId(1)), (1, AxisId(2))], off);
        vec![(AxisId(0), f.expect("small numbers"))]
    }
}

pub(super) fn flatten(d: &mut Draw) -> Id {
    let (x, y, z) = (d.masked(ALL), d.x(ALL), d.x(ALL));
    match d.rng.random_range(0..3) {
        0 => {
            let i = d.add(&[x, y]);
            d.add(&[i, z])
        }
        1 => {
            let i = d.mul(&[x, y]);
            d.mul(&[i, z])
        }
        _ => {
            let i = d.max(&[x, y]);
            d.max(&[i, z])
        }
    }
}

pub(super) fn like_terms(d: &mut Draw) -> Id {
    let (x, y) = (d.masked(ALL), d.x(ALL));
    let a = d.c();
    let b = if d.rng.random_bool(0.2) {
        let opposite = egraph::known(&d.g, a).unwrap_or(0.0);
        constant(&mut d.g, -opposite)
    } else {
        d.c()
    };
    let (ax, bx) = (d.mul(&[a, x]), d.mul(&[b, x]));
    d.add(&[ax, bx, y])
}

pub(super) fn factor(d: &mut Draw) -> Id {
    let (x, y, z, w) = (d.x(ALL), d.masked(ALL), d.x(ALL), d.x(ALL));
    let (p, q) = (d.mul(&[x, y]), d.mul(&[x, z]));
    d.add(&[p, q, w])
}

pub(super) fn distribute(d: &mut Draw) -> Id {
    let (x, y, z) = (d.x(ALL), d.masked(ALL), d.x(ALL));
    let s = d.add(&[y, z]);
    d.mul(&[x, s])
}

pub(super) fn fold_product(d: &mut Draw) -> Id {
    let x = d.masked(ALL);
    let (a, b) = (d.c(), d.c());
    match d.rng.random_range(0..3) {
        0 => {
            let zero = constant(&mut d.g, 0.0);
            let x = if d.rng.random_bool(0.5) { d.x(ALL) } else { x };
            d.mul(&[zero, x])
        }
        1 => {
            let one = constant(&mut d.g, 1.0);
            d.mul(&[one, x])
        }
        _ => d.mul(&[a, b, x]),
    }
}

pub(super) fn fold_maximum(d: &mut Draw) -> Id {
    let x = d.masked(ALL);
    match d.rng.random_range(0..4) {
        0 => d.max(&[x, x]),
        1 => {
            let c = constant(&mut d.g, f64::NEG_INFINITY);
            d.max(&[x, c])
        }
        2 => {
            let (a, b) = (d.c(), d.c());
            let y = d.x(ALL);
            let y = d.max(&[y, a]);
            d.max(&[x, y, b, a])
        }
        _ => {
            let s = d.square(ALL);
            let c = constant(&mut d.g, -0.5);
            d.max(&[s, c])
        }
    }
}

pub(super) fn max_of_sums(d: &mut Draw) -> Id {
    let (x, y, z) = (d.masked(ALL), d.x(ALL), d.masked(ALL));
    let (p, q) = (d.add(&[x, y]), d.add(&[x, z]));
    d.max(&[p, q])
}

pub(super) fn cancel(d: &mut Draw) -> Id {
    let (x, y) = (d.signed(ALL), d.x(ALL));
    let i = d.inv(x);
    d.mul(&[x, i, y])
}

pub(super) fn square_of_root(d: &mut Draw) -> Id {
    let (x, y) = (d.signed(ALL), d.x(ALL));
    let r = d.un(Kind::Sqrt, x);
    let r = if d.rng.random_bool(0.3) { d.inv(r) } else { r };
    d.mul(&[r, r, y])
}

pub(super) fn inverse_product(d: &mut Draw) -> Id {
    let (x, y) = (d.x(ALL), d.x(ALL));
    let p = d.mul(&[x, y]);
    d.inv(p)
}

pub(super) fn inverse_inverse(d: &mut Draw) -> Id {
    let x = d.signed(ALL);
    let i = d.inv(x);
    d.inv(i)
}

pub(super) fn root_product(d: &mut Draw) -> Id {
    let (x, y) = (d.signed(ALL), d.signed(ALL));
    let p = d.mul(&[x, y]);
    d.un(Kind::Sqrt, p)
}

pub(super) fn root_inverse(d: &mut Draw) -> Id {
    let x = d.signed(ALL);
    let i = d.inv(x);
    d.un(Kind::Sqrt, i)
}

pub(super) fn exp_gather(d: &mut Draw) -> Id {
    let (x, y, z) = (d.masked(ALL), d.masked(ALL), d.x(ALL));
    let (p, q) = (d.un(Kind::Exp, x), d.un(Kind::Exp, y));
    d.mul(&[p, q, z])
}

pub(super) fn exp_scatter(d: &mut Draw) -> Id {
    let (x, y) = (d.masked(ALL), d.x(ALL));
    let s = d.add(&[x, y]);
    d.un(Kind::Exp, s)
}

pub(super) fn exp_log(d: &mut Draw) -> Id {
    let x = d.signed(ALL);
    let l = d.un(Kind::Log, x);
    d.un(Kind::Exp, l)
}

pub(super) fn exp_inverse(d: &mut Draw) -> Id {
    let x = d.masked(ALL);
    let e = d.un(Kind::Exp, x);
    d.inv(e)
}

pub(super) fn log_exp(d: &mut Draw) -> Id {
    let x = d.masked(ALL);
    let e = d.un(Kind::Exp, x);
    d.un(Kind::Log, e)
}

pub(super) fn log_product(d: &mut Draw) -> Id {
    let (x, y) = (d.signed(ALL), d.signed(ALL));
    let p = d.mul(&[x, y]);
    d.un(Kind::Log, p)
}

pub(super) fn log_inverse(d: &mut Draw) -> Id {
    let x = d.signed(ALL);
    let i = d.inv(x);
    d.un(Kind::Log, i)
}

pub(super) fn select_known(d: &mut Draw) -> Id {
    let (x, y) = (d.masked(ALL), d.x(ALL));
    match d.rng.random_range(0..3) {
        0 => {
            let c = d.x(ALL);
            d.select(c, x, x)
        }
        1 => {
            let c = d.square(ALL);
            d.select(c, x, y)
        }
        _ => {
            let c = d.positive(ALL);
            let c = scaled(&mut d.g, -1.0, c);
            d.select(c, x, y)
        }
    }
}

pub(super) fn select_predicate(d: &mut Draw) -> Id {
    let (c, x, y) = (d.x(ALL), d.masked(ALL), d.x(ALL));
    let p = d.signed(ALL);
    let pc = d.mul(&[p, c]);
    d.select(pc, x, y)
}

pub(super) fn select_nested(d: &mut Draw) -> Id {
    let (c, x, y, z) = (d.x(ALL), d.masked(ALL), d.x(ALL), d.x(ALL));
    let i = d.select(c, x, y);
    if d.rng.random_bool(0.5) {
        d.select(c, i, z)
    } else {
        d.select(c, z, i)
    }
}

pub(super) fn select_exp(d: &mut Draw) -> Id {
    let (c, x) = (d.x(ALL), d.masked(ALL));
    let k = if d.rng.random_bool(0.5) {
        constant(&mut d.g, f64::NEG_INFINITY)
    } else {
        d.c()
    };
    let s = d.select(c, x, k);
    d.un(Kind::Exp, s)
}

pub(super) fn select_product(d: &mut Draw) -> Id {
    let (c, x, y) = (d.x(ALL), d.x(ALL), d.masked(ALL));
    let zero = constant(&mut d.g, 0.0);
    let s = d.select(c, x, zero);
    d.mul(&[s, y])
}

pub(super) fn sum_eliminate(d: &mut Draw) -> Id {
    let (x, y, z) = (
        d.x(&[0, 1, 2]),
        d.with(&[3], &[0, 1]),
        d.with(&[2, 3], &[0]),
    );
    let p = d.mul(&[x, y, z]);
    d.sum_over(&[2, 3], p)
}

pub(super) fn sum_merge(d: &mut Draw) -> Id {
    let (x, y, z) = (d.x(ALL), d.with(&[2, 3], &[0]), d.x(&[3, 0]));
    let s = d.sum_over(&[2], y);
    let p = d.mul(&[x, s, z]);
    d.sum_over(&[3], p)
}

pub(super) fn sum_push(d: &mut Draw) -> Id {
    let (x, y) = (d.x(ALL), d.with(&[2], &[0, 1, 3]));
    let s = d.sum_over(&[2], y);
    d.mul(&[x, s])
}

pub(super) fn sum_split(d: &mut Draw) -> Id {
    let (x, y) = (d.with(&[2], ALL), d.x(ALL));
    let s = d.add(&[x, y]);
    d.sum_over(&[2], s)
}

pub(super) fn sum_join(d: &mut Draw) -> Id {
    let (x, y, z) = (d.with(&[2], ALL), d.with(&[2], ALL), d.x(&[0, 1]));
    let (p, q) = (d.sum_over(&[2], x), d.sum_over(&[2], y));
    d.add(&[p, q, z])
}

pub(super) fn sum_in_parts(d: &mut Draw) -> Id {
    d.g.analysis.held = d.rng.random_range(1..6);
    let difference = |d: &mut Draw| {
        let centred = d.rng.random_ratio(5, 6);
        let (x, c) = (d.with(&[2], ALL), d.x(if centred { &[0] } else { &[0, 3] }));
        d.add(&[x, c])
    };
    let x = difference(d);
    let y = if d.rng.random() { x } else { difference(d) };
    let both = d.mul(&[x, y]);
    d.sum_over(&[1, 2, 3], both)
}

pub(super) fn sum_constant(d: &mut Draw) -> Id {
    let x = d.x(&[0, 1]);
    d.sum_over(&[1, 2], x)
}

pub(super) fn max_pull(d: &mut Draw) -> Id {
    let (x, y) = (d.masked(&[0, 1]), d.with(&[2], &[0, 1]));
    let s = d.add(&[x, y]);
    d.max_over(&[2], s)
}

pub(super) fn max_push(d: &mut Draw) -> Id {
    let (x, y) = (d.masked(ALL), d.with(&[2], ALL));
    let m = d.max_over(&[2], y);
    d.add(&[x, m])
}

pub(super) fn max_scale(d: &mut Draw) -> Id {
    let (x, y) = (d.signed(&[0, 1, 2]), d.with(&[2], &[0, 1]));
    let p = d.mul(&[x, y]);
    d.max_over(&[2], p)
}

pub(super) fn max_merge(d: &mut Draw) -> Id {
    let x = d.with(&[1, 2], ALL);
    let m = d.max_over(&[1], x);
    d.max_over(&[2], m)
}

pub(super) fn max_split(d: &mut Draw) -> Id {
    let (x, y) = (d.masked(ALL), d.with(&[2], ALL));
    let m = d.max(&[x, y]);
    d.max_over(&[2], m)
}

pub(super) fn max_constant(d: &mut Draw) -> Id {
    let x = d.masked(&[0, 1]);
    d.max_over(&[1, 2], x)
}

pub(super) fn view_trivial(d: &mut Draw) -> Id {
    match d.rng.random_range(0..3) {
        0 => {
            let x = d.x(&[2, 3]);
            let m = d.inside();
            d.view(m, None, x)
        }
        1 => {
            let x = d.x(ALL);
            let m = vec![(AxisId(0), Affine::axis(AxisId(0)))];
            d.view(m, None, x)
        }
        _ => {
            let m = d.sometimes_outside();
            let x = d.with(&[0], &[2, 3]);
            d.view(m, Some(7.0), x)
        }
    }
}

pub(super) fn view_view(d: &mut Draw) -> Id {
    // 0 -> f(1), then 1 -> ±3 + c or another passing axis
    let m = if d.rng.random_bool(0.5) {
        d.inside()
    } else {
        d.outside()
    };
    let fill = if d.g.analysis.inside(AxisId(0), &m[0].1) {
        None
    } else {
        Some(0.5)
    };
    let x = d.with(&[0], &[1, 2, 3]);
    let inner = d.view(m, fill, x);
    let n =
        d.g.analysis
            .extent(AxisId(1))
            .min(d.g.analysis.extent(AxisId(3)));
    let off = d.rng.random_range(0..2);
    d.g.analysis.extents[3] = n;
    let f = Affine::new([(1, AxisId(3))], off).expect("small numbers");
    let fits = d.g.analysis.inside(AxisId(1), &f);
    let outer = if fits { None } else { Some(0.5) };
    d.view(vec![(AxisId(1), f)], outer, inner)
}

pub(super) fn view_iota(d: &mut Draw) -> Id {
    let m = d.sometimes_outside();
    let i = d.g.add(Enode::new(Kind::Iota(AxisId(0)), Vec::new()));
    let fill = (!d.g.analysis.inside(AxisId(0), &m[0].1)).then_some(0.5);
    d.view(m, fill, i)
}

pub(super) fn view_map(d: &mut Draw) -> Id {
    let m = d.inside();
    let (x, y, z) = (d.with(&[0], ALL), d.x(ALL), d.x(ALL));
    let e = match d.rng.random_range(0..4) {
        0 => d.add(&[x, y]),
        1 => d.mul(&[x, y]),
        2 => d.un(Kind::Exp, x),
        _ => d.select(x, y, z),
    };
    d.view(m, None, e)
}

pub(super) fn view_fill_map(d: &mut Draw) -> Id {
    let m = d.outside();
    let x = d.with(&[0], ALL);
    let y = if d.rng.random_bool(0.2) {
        d.x(&[1, 2, 3])
    } else {
        d.with(&[0], ALL)
    };
    let (e, c) = match d.rng.random_range(0..4) {
        0 => (d.add(&[x, y]), 0.0),
        1 => (d.mul(&[x, y]), 1.0),
        2 => (d.mul(&[x, y]), 0.0),
        _ => (d.max(&[x, y]), -0.5),
    };
    let c = if d.rng.random_bool(0.2) { 0.5 } else { c };
    d.view(m, Some(c), e)
}

pub(super) fn view_hoist(d: &mut Draw) -> Id {
    let m = d.outside();
    let x = d.with(&[0], &[3]);
    let which = d.rng.random_range(0..4);
    // e^0 = 1 in every field; other constants have no exponential there.
    let v = d.view(m, Some(if which == 2 { 0.0 } else { 0.25 }), x);
    let c = d.c();
    match which {
        0 => d.add(&[v, c]),
        1 => d.mul(&[v, c]),
        2 => d.un(Kind::Exp, v),
        _ => d.max(&[v, c]),
    }
}

pub(super) fn view_reduce(d: &mut Draw) -> Id {
    let m = d.outside();
    let x = d.with(&[0, 3], &[1, 2]);
    if d.rng.random_bool(0.5) {
        let s = d.sum_over(&[3], x);
        let fill = d.mostly_neutral();
        d.view(m, Some(fill), s)
    } else {
        let s = d.max_over(&[3], x);
        d.view(m, Some(-0.5), s)
    }
}

pub(super) fn reduce_view(d: &mut Draw) -> Id {
    let m = d.outside();
    let x = d.with(&[0, 3], &[1, 2]);
    if d.rng.random_bool(0.5) {
        let fill = d.mostly_neutral();
        let v = d.view(m, Some(fill), x);
        d.sum_over(&[3], v)
    } else {
        let v = d.view(m, Some(-0.5), x);
        d.max_over(&[3], v)
    }
}

//! The signature of every rule: well-typed left sides, drawn at random. Some of them do not meet the rule's side conditions:
//! there the rule must not apply, and one that forgot a condition shows.

use crate::egraph::{self, EGraph, Enode, Kind, constant, map, product, scaled, sum, unary};
use crate::facts::Algebra;
use egg::Id;
use ir::{Affine, AxisId, AxisSet, MapOp};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Axes that instances are drawn over.
pub(super) const AXES: u32 = 4;

/// Draws well-typed operands.
pub(super) struct Draw {
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
        let fill = fill.map(egraph::Real::new);
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

/// The signature of a rule: draws its left side.
pub(super) fn left(rule: &str, d: &mut Draw) -> Option<Id> {
    let all = &[0, 1, 2, 3];
    Some(match rule {
        "flatten" => {
            let (x, y, z) = (d.masked(all), d.x(all), d.x(all));
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
        "like-terms" => {
            let (x, y) = (d.masked(all), d.x(all));
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
        "factor" => {
            let (x, y, z, w) = (d.x(all), d.masked(all), d.x(all), d.x(all));
            let (p, q) = (d.mul(&[x, y]), d.mul(&[x, z]));
            d.add(&[p, q, w])
        }
        "distribute" => {
            let (x, y, z) = (d.x(all), d.masked(all), d.x(all));
            let s = d.add(&[y, z]);
            d.mul(&[x, s])
        }
        "fold-product" => {
            let x = d.masked(all);
            let (a, b) = (d.c(), d.c());
            match d.rng.random_range(0..3) {
                0 => {
                    let zero = constant(&mut d.g, 0.0);
                    let x = if d.rng.random_bool(0.5) { d.x(all) } else { x };
                    d.mul(&[zero, x])
                }
                1 => {
                    let one = constant(&mut d.g, 1.0);
                    d.mul(&[one, x])
                }
                _ => d.mul(&[a, b, x]),
            }
        }
        "fold-maximum" => {
            let x = d.masked(all);
            match d.rng.random_range(0..4) {
                0 => d.max(&[x, x]),
                1 => {
                    let c = constant(&mut d.g, f64::NEG_INFINITY);
                    d.max(&[x, c])
                }
                2 => {
                    let (a, b) = (d.c(), d.c());
                    let y = d.x(all);
                    let y = d.max(&[y, a]);
                    d.max(&[x, y, b, a])
                }
                _ => {
                    let s = d.square(all);
                    let c = constant(&mut d.g, -0.5);
                    d.max(&[s, c])
                }
            }
        }
        "max-of-sums" => {
            let (x, y, z) = (d.masked(all), d.x(all), d.masked(all));
            let (p, q) = (d.add(&[x, y]), d.add(&[x, z]));
            d.max(&[p, q])
        }
        "cancel" => {
            let (x, y) = (d.signed(all), d.x(all));
            let i = d.inv(x);
            d.mul(&[x, i, y])
        }
        "square-of-root" => {
            let (x, y) = (d.signed(all), d.x(all));
            let r = d.un(Kind::Sqrt, x);
            let r = if d.rng.random_bool(0.3) { d.inv(r) } else { r };
            d.mul(&[r, r, y])
        }
        "inverse-product" => {
            let (x, y) = (d.x(all), d.x(all));
            let p = d.mul(&[x, y]);
            d.inv(p)
        }
        "inverse-inverse" => {
            let x = d.signed(all);
            let i = d.inv(x);
            d.inv(i)
        }
        "root-product" => {
            let (x, y) = (d.signed(all), d.signed(all));
            let p = d.mul(&[x, y]);
            d.un(Kind::Sqrt, p)
        }
        "root-inverse" => {
            let x = d.signed(all);
            let i = d.inv(x);
            d.un(Kind::Sqrt, i)
        }
        "exp-gather" => {
            let (x, y, z) = (d.masked(all), d.masked(all), d.x(all));
            let (p, q) = (d.un(Kind::Exp, x), d.un(Kind::Exp, y));
            d.mul(&[p, q, z])
        }
        "exp-scatter" => {
            let (x, y) = (d.masked(all), d.x(all));
            let s = d.add(&[x, y]);
            d.un(Kind::Exp, s)
        }
        "exp-log" => {
            let x = d.signed(all);
            let l = d.un(Kind::Log, x);
            d.un(Kind::Exp, l)
        }
        "exp-inverse" => {
            let x = d.masked(all);
            let e = d.un(Kind::Exp, x);
            d.inv(e)
        }
        "log-exp" => {
            let x = d.masked(all);
            let e = d.un(Kind::Exp, x);
            d.un(Kind::Log, e)
        }
        "log-product" => {
            let (x, y) = (d.signed(all), d.signed(all));
            let p = d.mul(&[x, y]);
            d.un(Kind::Log, p)
        }
        "log-inverse" => {
            let x = d.signed(all);
            let i = d.inv(x);
            d.un(Kind::Log, i)
        }
        "select-known" => {
            let (x, y) = (d.masked(all), d.x(all));
            match d.rng.random_range(0..3) {
                0 => {
                    let c = d.x(all);
                    d.select(c, x, x)
                }
                1 => {
                    let c = d.square(all);
                    d.select(c, x, y)
                }
                _ => {
                    let c = d.positive(all);
                    let c = scaled(&mut d.g, -1.0, c);
                    d.select(c, x, y)
                }
            }
        }
        "select-predicate" => {
            let (c, x, y) = (d.x(all), d.masked(all), d.x(all));
            let p = d.signed(all);
            let pc = d.mul(&[p, c]);
            d.select(pc, x, y)
        }
        "select-nested" => {
            let (c, x, y, z) = (d.x(all), d.masked(all), d.x(all), d.x(all));
            let i = d.select(c, x, y);
            if d.rng.random_bool(0.5) {
                d.select(c, i, z)
            } else {
                d.select(c, z, i)
            }
        }
        "select-exp" => {
            let (c, x) = (d.x(all), d.masked(all));
            let k = if d.rng.random_bool(0.5) {
                constant(&mut d.g, f64::NEG_INFINITY)
            } else {
                d.c()
            };
            let s = d.select(c, x, k);
            d.un(Kind::Exp, s)
        }
        "select-product" => {
            let (c, x, y) = (d.x(all), d.x(all), d.masked(all));
            let zero = constant(&mut d.g, 0.0);
            let s = d.select(c, x, zero);
            d.mul(&[s, y])
        }
        "sum-eliminate" => {
            let (x, y, z) = (
                d.x(&[0, 1, 2]),
                d.with(&[3], &[0, 1]),
                d.with(&[2, 3], &[0]),
            );
            let p = d.mul(&[x, y, z]);
            d.sum_over(&[2, 3], p)
        }
        "sum-merge" => {
            let (x, y, z) = (d.x(all), d.with(&[2, 3], &[0]), d.x(&[3, 0]));
            let s = d.sum_over(&[2], y);
            let p = d.mul(&[x, s, z]);
            d.sum_over(&[3], p)
        }
        "sum-push" => {
            let (x, y) = (d.x(all), d.with(&[2], &[0, 1, 3]));
            let s = d.sum_over(&[2], y);
            d.mul(&[x, s])
        }
        "sum-split" => {
            let (x, y) = (d.with(&[2], all), d.x(all));
            let s = d.add(&[x, y]);
            d.sum_over(&[2], s)
        }
        "sum-join" => {
            let (x, y, z) = (d.with(&[2], all), d.with(&[2], all), d.x(&[0, 1]));
            let (p, q) = (d.sum_over(&[2], x), d.sum_over(&[2], y));
            d.add(&[p, q, z])
        }
        "sum-constant" => {
            let x = d.x(&[0, 1]);
            d.sum_over(&[1, 2], x)
        }
        "max-pull" => {
            let (x, y) = (d.masked(&[0, 1]), d.with(&[2], &[0, 1]));
            let s = d.add(&[x, y]);
            d.max_over(&[2], s)
        }
        "max-push" => {
            let (x, y) = (d.masked(all), d.with(&[2], all));
            let m = d.max_over(&[2], y);
            d.add(&[x, m])
        }
        "max-scale" => {
            let (x, y) = (d.signed(&[0, 1, 2]), d.with(&[2], &[0, 1]));
            let p = d.mul(&[x, y]);
            d.max_over(&[2], p)
        }
        "max-merge" => {
            let x = d.with(&[1, 2], all);
            let m = d.max_over(&[1], x);
            d.max_over(&[2], m)
        }
        "max-split" => {
            let (x, y) = (d.masked(all), d.with(&[2], all));
            let m = d.max(&[x, y]);
            d.max_over(&[2], m)
        }
        "max-constant" => {
            let x = d.masked(&[0, 1]);
            d.max_over(&[1, 2], x)
        }
        "view-trivial" => match d.rng.random_range(0..3) {
            0 => {
                let x = d.x(&[2, 3]);
                let m = d.inside();
                d.view(m, None, x)
            }
            1 => {
                let x = d.x(all);
                let m = vec![(AxisId(0), Affine::axis(AxisId(0)))];
                d.view(m, None, x)
            }
            _ => {
                let m = d.sometimes_outside();
                let x = d.with(&[0], &[2, 3]);
                d.view(m, Some(7.0), x)
            }
        },
        "view-view" => {
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
        "view-iota" => {
            let m = d.sometimes_outside();
            let i = d.g.add(Enode::new(Kind::Iota(AxisId(0)), Vec::new()));
            let fill = (!d.g.analysis.inside(AxisId(0), &m[0].1)).then_some(0.5);
            d.view(m, fill, i)
        }
        "view-map" => {
            let m = d.inside();
            let (x, y, z) = (d.with(&[0], all), d.x(all), d.x(all));
            let e = match d.rng.random_range(0..4) {
                0 => d.add(&[x, y]),
                1 => d.mul(&[x, y]),
                2 => d.un(Kind::Exp, x),
                _ => d.select(x, y, z),
            };
            d.view(m, None, e)
        }
        "view-fill-map" => {
            let m = d.outside();
            let x = d.with(&[0], all);
            let y = if d.rng.random_bool(0.2) {
                d.x(&[1, 2, 3])
            } else {
                d.with(&[0], all)
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
        "view-hoist" => {
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
        "view-reduce" => {
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
        "reduce-view" => {
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
        _ => return None,
    })
}

//! Oracle: the values of the corrected function itself, plus the free axes by construction.

use super::*;
use ir::{Axis, AxisId, Dim, Dtype, Function, Node, Output};

/// A program under construction; axes 0 = i (rows), 1 = j (reduced), 2 = e.
struct Build(Program);

fn set(axes: &[u32]) -> AxisSet {
    axes.iter().map(|a| AxisId(*a)).collect()
}

impl Build {
    fn new() -> Self {
        let axes = ["i", "j", "e"].map(|n| Axis {
            name: n.into(),
            extent: 7,
        });
        Self(Program {
            name: "p".into(),
            axes: axes.into(),
            nodes: Vec::new(),
            outputs: Vec::new(),
        })
    }
    fn push(&mut self, op: Op, args: &[NodeId], axes: AxisSet) -> NodeId {
        let args = args.to_vec();
        self.0.nodes.push(Node {
            op,
            args,
            axes,
            name: None,
        });
        NodeId(self.0.nodes.len() as u32 - 1)
    }
    fn parameter(&mut self, name: &str, axes: &[u32]) -> NodeId {
        let dims = axes.iter().map(|a| Dim(vec![AxisId(*a)])).collect();
        let op = Op::Parameter {
            name: name.into(),
            dtype: Dtype::F32,
            dims,
        };
        self.push(op, &[], set(axes))
    }
    fn constant(&mut self, c: f64) -> NodeId {
        self.push(Op::Constant(c), &[], AxisSet::new())
    }
    fn map(&mut self, op: MapOp, args: &[NodeId]) -> NodeId {
        let axes = args
            .iter()
            .fold(AxisSet::new(), |s, a| s.union(&self.0.node(*a).axes));
        self.push(Op::Map(op), args, axes)
    }
    fn minus(&mut self, x: NodeId, y: NodeId) -> NodeId {
        let m = self.constant(-1.0);
        let y = self.map(MapOp::Mul, &[m, y]);
        self.map(MapOp::Add, &[x, y])
    }
    fn reduce(&mut self, op: ReduceOp, x: NodeId) -> NodeId {
        let axes = self.0.node(x).axes.minus(&set(&[1]));
        self.push(
            Op::Reduce {
                op,
                axes: set(&[1]),
            },
            &[x],
            axes,
        )
    }
    fn dot(&mut self, x: NodeId, y: NodeId) -> NodeId {
        let all = self.0.node(x).axes.union(&self.0.node(y).axes);
        self.push(Op::Dot { axes: set(&[1]) }, &[x, y], all.minus(&set(&[1])))
    }
    fn derive(&mut self, a: NodeId, provisional: &[NodeId]) -> Option<Correction> {
        self.0.outputs = vec![Output {
            dtype: Dtype::F32,
            dims: Vec::new(),
            value: a,
        }];
        derive(&self.0, a, &set(&[1]), provisional)
    }
    /// s, max over j of s, exp(s - max)
    fn shifted(&mut self) -> (NodeId, NodeId, NodeId) {
        let s = self.parameter("s", &[0, 1]);
        let m = self.reduce(ReduceOp::Max, s);
        let d = self.minus(s, m);
        let p = self.map(MapOp::Function(Function::Exp), &[d]);
        (s, m, p)
    }
}

fn value(c: &Correction, old: &[f64], new: &[f64], leaf: f64) -> f64 {
    let mut v: Vec<f64> = Vec::new();
    for t in &c.terms {
        let x = match t {
            Term::Old(k) => old[*k],
            Term::New(k) => new[*k],
            Term::Leaf(_) => leaf,
            Term::Constant(c) => *c,
            Term::Map(op, args) => {
                let a: Vec<f64> = args.iter().map(|t| v[t.0 as usize]).collect();
                match op {
                    MapOp::Add => a[0] + a[1],
                    MapOp::Mul => a[0] * a[1],
                    MapOp::Div => a[0] / a[1],
                    MapOp::Max => a[0].max(a[1]),
                    MapOp::Function(f) => f.apply(&a),
                    MapOp::Select => {
                        if a[0] >= 0.0 {
                            a[1]
                        } else {
                            a[2]
                        }
                    }
                }
            }
        };
        v.push(x);
    }
    v[c.root.0 as usize]
}

fn close(x: f64, y: f64) {
    assert!((x - y).abs() <= 1e-12 * (1.0 + y.abs()), "{x} is not {y}");
}

#[test]
fn the_denominator_of_a_softmax() {
    let mut b = Build::new();
    let (_, m, p) = b.shifted();
    let l = b.reduce(ReduceOp::Sum, p);
    let c = b.derive(l, &[m]).expect("there is a correction");
    assert_eq!(c.op, ReduceOp::Sum);
    close(value(&c, &[0.5], &[2.0], 0.0), (-1.5_f64).exp());
    // one exp of the difference: a quotient of two would overflow for large scores
    close(value(&c, &[2000.0], &[2001.0], 0.0), (-1.0_f64).exp());
}

#[test]
fn the_denominator_of_a_softmax_at_a_temperature_of_each_row() {
    let mut b = Build::new();
    let (s, t) = (b.parameter("s", &[0, 1]), b.parameter("t", &[0]));
    let one = b.constant(1.0);
    let inverse = b.map(MapOp::Div, &[one, t]);
    let m = b.reduce(ReduceOp::Max, s);
    let (cooled, highest) = (b.map(MapOp::Mul, &[inverse, s]), b.map(MapOp::Div, &[m, t]));
    let d = b.minus(cooled, highest);
    let p = b.map(MapOp::Function(Function::Exp), &[d]);
    let l = b.reduce(ReduceOp::Sum, p);
    let c = b.derive(l, &[m]).expect("there is a correction");
    close(value(&c, &[0.5], &[2.0], 3.0), (-1.5_f64 / 3.0).exp());
}

/// Where a quotient is guarded, the body has a value also where the divisor is zero, and a correction by the quotient has none.
#[test]
fn a_guarded_temperature_is_not_divided_by() {
    let mut b = Build::new();
    let (s, t) = (b.parameter("s", &[0, 1]), b.parameter("t", &[0]));
    let m = b.reduce(ReduceOp::Max, s);
    let d = b.minus(s, m);
    let cooled = b.map(MapOp::Div, &[d, t]);
    let (least, nothing) = (b.constant(-0.01), b.constant(0.0));
    let enough = b.map(MapOp::Add, &[t, least]);
    let guarded = b.map(MapOp::Select, &[enough, cooled, nothing]);
    let p = b.map(MapOp::Function(Function::Exp), &[guarded]);
    let l = b.reduce(ReduceOp::Sum, p);
    let body = Body::of(&b.0, l, &set(&[1]), &[m]).expect("a body");
    let map = |op, args: &[u32]| Term::Map(op, args.iter().map(|a| TermId(*a)).collect());
    // e^((old − new)·(1 / t)·select(enough, 1, 0))
    let wrong = Correction {
        op: ReduceOp::Sum,
        terms: vec![
            Term::Old(0),
            Term::New(0),
            Term::Constant(-1.0),
            map(MapOp::Mul, &[2, 1]),
            map(MapOp::Add, &[0, 3]),
            Term::Leaf(t),
            Term::Constant(1.0),
            map(MapOp::Div, &[6, 5]),
            Term::Leaf(enough),
            Term::Constant(0.0),
            map(MapOp::Select, &[8, 6, 9]),
            map(MapOp::Mul, &[4, 7]),
            map(MapOp::Mul, &[11, 10]),
            map(MapOp::Function(Function::Exp), &[12]),
        ],
        root: TermId(13),
        exact: false,
    };
    assert!(!certify::certify(&body, &wrong));
}

#[test]
fn softmax_times_values_with_the_division_inside() {
    let mut b = Build::new();
    let (_, m, p) = b.shifted();
    let l = b.reduce(ReduceOp::Sum, p);
    let w = b.map(MapOp::Div, &[p, l]);
    let v = b.parameter("v", &[1, 2]);
    let o = b.dot(w, v);
    let c = b.derive(o, &[m, l]).expect("there is a correction");
    close(
        value(&c, &[0.5, 3.0], &[2.0, 4.0], 0.0),
        (-1.5_f64).exp() * 3.0 / 4.0,
    );
    assert_eq!(value(&c, &[0.0, 0.0], &[2.0, 4.0], 0.0), 0.0);
}

#[test]
fn a_normalised_row_times_weights() {
    let mut b = Build::new();
    let x = b.parameter("x", &[0, 1]);
    let w = b.parameter("w", &[1, 2]);
    let xx = b.map(MapOp::Mul, &[x, x]);
    let s = b.reduce(ReduceOp::Sum, xx);
    let n = b.constant(7.0);
    let eps = b.constant(1e-5);
    let mean = b.map(MapOp::Div, &[s, n]);
    let shifted = b.map(MapOp::Add, &[mean, eps]);
    let root = b.map(MapOp::Function(Function::Sqrt), &[shifted]);
    let one = b.constant(1.0);
    let r = b.map(MapOp::Div, &[one, root]);
    let y = b.map(MapOp::Mul, &[x, r]);
    let o = b.dot(y, w);
    let c = b.derive(o, &[s]).expect("there is a correction");
    let f = |s: f64| 1.0 / (s / 7.0 + 1e-5).sqrt();
    close(value(&c, &[2.0], &[5.0], 0.0), f(5.0) / f(2.0));
    assert!(value(&c, &[0.0], &[5.0], 0.0).is_finite());
}

#[test]
fn a_variance_about_a_running_mean_has_none() {
    let mut b = Build::new();
    let x = b.parameter("x", &[0, 1]);
    let s = b.reduce(ReduceOp::Sum, x);
    let n = b.constant(7.0);
    let mean = b.map(MapOp::Div, &[s, n]);
    let d = b.minus(x, mean);
    let dd = b.map(MapOp::Mul, &[d, d]);
    let v = b.reduce(ReduceOp::Sum, dd);
    assert_eq!(b.derive(v, &[s]), None);
}

#[test]
fn a_maximum_of_shifted_terms() {
    let mut b = Build::new();
    let (s, m, _) = b.shifted();
    let leaf = b.parameter("t", &[0]);
    let two = b.constant(2.0);
    let shift = b.map(MapOp::Mul, &[two, m]);
    let d = b.minus(s, shift);
    let e = b.map(MapOp::Add, &[d, leaf]);
    let r = b.reduce(ReduceOp::Max, e);
    let c = b.derive(r, &[m]).expect("there is a correction");
    assert_eq!(c.op, ReduceOp::Max);
    close(value(&c, &[0.5], &[2.0], 9.0), -3.0);
}

/// What a mean is scaled by stays as it is: its square would be rounded, and the correction would not be exact.
#[test]
fn constants_are_not_rounded() {
    let scale = 1.0 / 300.0;
    let mut b = Build::new();
    let (x, mask) = (b.parameter("x", &[0, 1]), b.parameter("mask", &[0, 1]));
    let r = b.reduce(ReduceOp::Sum, x);
    let (c, minus) = (b.constant(scale), b.constant(-scale));
    let (half, zero) = (b.constant(0.5), b.constant(0.0));
    let (mean, opposite) = (b.map(MapOp::Mul, &[r, c]), b.map(MapOp::Mul, &[r, minus]));
    let square = b.map(MapOp::Mul, &[mean, opposite]);
    let negative = b.minus(square, half);
    let d = b.map(MapOp::Div, &[x, negative]);
    let kept = b.map(MapOp::Select, &[mask, d, zero]);
    let l = b.reduce(ReduceOp::Sum, kept);
    let correction = b.derive(l, &[r]).expect("there is a correction");
    let given = |c: f64| [scale, 1.0, 0.5].contains(&c.abs());
    for term in &correction.terms {
        assert!(!matches!(term, Term::Constant(c) if !given(*c)), "{term:?}");
    }
    let before = -(2.0 * scale) * (2.0 * scale) - 0.5;
    let after = -(5.0 * scale) * (5.0 * scale) - 0.5;
    // The negative half is a leaf.
    close(value(&correction, &[2.0], &[5.0], -0.5), before / after);
}

#[test]
fn a_leaf_in_the_correction() {
    let mut b = Build::new();
    let s = b.parameter("s", &[0, 1]);
    let t = b.parameter("t", &[0]);
    let m = b.reduce(ReduceOp::Max, s);
    let d = b.minus(s, m);
    let scaled = b.map(MapOp::Mul, &[d, t]);
    let p = b.map(MapOp::Function(Function::Exp), &[scaled]);
    let l = b.reduce(ReduceOp::Sum, p);
    let c = b.derive(l, &[m]).expect("there is a correction");
    close(value(&c, &[0.5], &[2.0], 3.0), (-4.5_f64).exp());
}

#[test]
fn a_masked_sum() {
    let mut b = Build::new();
    let (_, m, p) = b.shifted();
    let mask = b.parameter("mask", &[0, 1]);
    let zero = b.constant(0.0);
    let kept = b.map(MapOp::Select, &[mask, p, zero]);
    let l = b.reduce(ReduceOp::Sum, kept);
    let c = b.derive(l, &[m]).expect("there is a correction");
    close(value(&c, &[0.5], &[2.0], 0.0), (-1.5_f64).exp());
}

#[test]
fn weights_of_scores_shifted_by_a_log_sum() {
    // exp(s - (m + log l)) = softmax, by way of the logarithm
    let mut b = Build::new();
    let (s, m, p) = b.shifted();
    let l = b.reduce(ReduceOp::Sum, p);
    let log = b.map(MapOp::Function(Function::Log), &[l]);
    let lse = b.map(MapOp::Add, &[m, log]);
    let d = b.minus(s, lse);
    let w = b.map(MapOp::Function(Function::Exp), &[d]);
    let v = b.parameter("v", &[1, 2]);
    let o = b.dot(w, v);
    let c = b.derive(o, &[m, l]).expect("there is a correction");
    close(
        value(&c, &[0.5, 3.0], &[2.0, 4.0], 0.0),
        (-1.5_f64).exp() * 3.0 / 4.0,
    );
}

#[test]
fn nothing_provisional_is_corrected_by_one() {
    let mut b = Build::new();
    let s = b.parameter("s", &[0, 1]);
    let v = b.parameter("v", &[1, 2]);
    let o = b.dot(s, v);
    let c = b.derive(o, &[]).expect("nothing to correct");
    close(value(&c, &[], &[], 0.0), 1.0);
}

#[test]
fn near_misses_have_none() {
    // exp((s - m)²) and exp(s·m): the cross term carries j
    let mut b = Build::new();
    let (s, m, _) = b.shifted();
    let d = b.minus(s, m);
    let dd = b.map(MapOp::Mul, &[d, d]);
    let p = b.map(MapOp::Function(Function::Exp), &[dd]);
    let l = b.reduce(ReduceOp::Sum, p);
    assert_eq!(b.derive(l, &[m]), None);
    let sm = b.map(MapOp::Mul, &[s, m]);
    let p = b.map(MapOp::Function(Function::Exp), &[sm]);
    let l = b.reduce(ReduceOp::Sum, p);
    assert_eq!(b.derive(l, &[m]), None);
    // 1 + exp(s - m)
    let (d, one) = (b.minus(s, m), b.constant(1.0));
    let e = b.map(MapOp::Function(Function::Exp), &[d]);
    let f = b.map(MapOp::Add, &[one, e]);
    let l = b.reduce(ReduceOp::Sum, f);
    assert_eq!(b.derive(l, &[m]), None);
    // s·m: c = R/r, singular at the zero start
    let f = b.map(MapOp::Mul, &[s, m]);
    let l = b.reduce(ReduceOp::Sum, f);
    assert_eq!(b.derive(l, &[m]), None);
}

#[test]
fn certification_refuses_what_formal_cancelling_gets_wrong() {
    // √((s - m)²)·√((s - m)²)⁻¹ and friends are fine formally; a guess that is off must be refused by the draws.
    let mut b = Build::new();
    let (_, m, p) = b.shifted();
    let l = b.reduce(ReduceOp::Sum, p);
    let body = Body::of(&b.0, l, &set(&[1]), &[m]).expect("the body is element-wise");
    let right = guess(&body).expect("there is a guess");
    assert!(certify::certify(&body, &right));
    for wrong in [
        vec![Term::Constant(1.0)],
        vec![
            Term::Old(0),
            Term::Map(MapOp::Function(Function::Exp), vec![TermId(0)]),
        ],
        vec![
            Term::Old(0),
            Term::New(0),
            Term::Map(MapOp::Div, vec![TermId(0), TermId(1)]),
        ],
    ] {
        let root = TermId(wrong.len() as u32 - 1);
        let c = Correction {
            op: ReduceOp::Sum,
            terms: wrong,
            root,
            exact: false,
        };
        assert!(!certify::certify(&body, &c), "{c:?}");
    }
}

/// A correction of a program's last reduction, when the ones in front of it have provisional values.
fn of_last(result: &str) -> Option<Correction> {
    let text = format!(
        "program p\naxis i = 3, j = 7\nx = parameter f32 [i, j]\nz = parameter f32 [i]\nreturn f32 [i] {result}\n"
    );
    let p = ir::text::parse(&text, "p").unwrap_or_else(|e| panic!("{e}"));
    let reduces = |n: &&usize| matches!(p.nodes[**n].op, Op::Reduce { .. } | Op::Dot { .. });
    let all: Vec<usize> = (0..p.nodes.len()).collect();
    let mut ids: Vec<NodeId> = all
        .iter()
        .filter(reduces)
        .map(|n| NodeId(*n as u32))
        .collect();
    let last = ids.pop().expect("a reduction");
    let j = p.axes.iter().position(|a| a.name == "j").expect("an axis");
    derive(&p, last, &set(&[j as u32]), &ids)
}

/// Where what a running value is used in can be zero, the running sum has forgotten what it has seen.
#[test]
fn factors_that_may_vanish_on_the_way_have_none() {
    for (result, exists) in [
        // A largest exponential may be one, a mean or a maximum anything.
        ("sum(x * (1 - max(exp(x - z); j)); j)", false),
        ("sum(x / (1 - max(exp(x - z); j)); j)", false),
        ("sum(x * (z - max(x; j)); j)", false),
        ("sum(x * ((z - max(x; j)) * (z - max(x; j))); j)", false),
        ("sum(x * (exp(max(x; j)) - 2); j)", false),
        ("sum(x / (max(x; j) * max(x; j) - 4); j)", false),
        ("max(x + 1 / (1 - max(x; j)); j)", false),
        ("sum(x / sqrt(2 * max(x; j) + 3); j)", false),
        ("max(x + log(2 * max(x; j) + 3); j)", false),
        (
            "sum(x * ((2 * max(x; j) - 3) * (2 * max(x; j) - 3)); j)",
            false,
        ),
        ("sum(x / max(max(x, 0); j); j)", false),
        // Exponentials of what meets a large constant leave floating point, not the reals.
        ("sum(exp((x - max(x; j)) * 100); j)", true),
        ("sum(exp((x - max(x; j)) / 0.03); j)", true),
        ("sum(exp(x - max(max(x; j), -10000)); j)", true),
        // A factor of either sign is no divisor that vanishes on the way.
        ("sum(x / (z * (sum(x * x; j) + 1)); j)", true),
        ("sum(x / max(exp(x); j); j)", true),
        // These are positive at every value that a sum of exponentials or squares has on its way.
        ("sum(x / (sum(exp(x); j) + 0.5); j)", true),
        ("sum(x * (sum(exp(x); j) + 0.5); j)", true),
        ("sum(x * (1 + max(exp(x - z); j)); j)", true),
        ("sum(x / sqrt(sum(x * x; j) + 0.001); j)", true),
        ("sum(x / (max(x; j) * max(x; j) + 1); j)", true),
        ("sum(x / (sum(x * x; j) + exp(z)); j)", true),
        ("sum(exp(x - max(x; j)); j)", true),
        ("max(x - max(x * z; j); j)", true),
    ] {
        assert_eq!(of_last(result).is_some(), exists, "{result}");
    }
}

/// What does not count where a maximum is not is gone when it rises.
#[test]
fn what_counts_at_a_maximum_alone_is_discarded() {
    for (result, exists) in [
        (
            "max(select(-relu(max(x; j) - x), -1 * iota(j), -7); j)",
            true,
        ),
        ("min(select(-relu(max(x; j) - x), iota(j), 7); j)", true),
        ("min(select(-relu(x - min(x; j)), iota(j), 7); j)", true),
        ("min(select(x - max(x; j), iota(j), 7); j)", true),
        ("sum(select(x - max(x; j), 1, 0); j)", true),
        ("sum(x * x * select(x - max(x; j), 1, 0); j)", true),
        ("min(select(2 * x - max(2 * x; j), iota(j), 100); j)", true),
        // Another number than that where the maximum is not may be the result.
        ("max(select(x - max(x; j), iota(j), 3); j)", false),
        ("sum(select(x - max(x; j), iota(j), 1); j)", false),
        // What is less by less than a tenth counts as well, and so may what meets something else.
        ("min(select(x + 0.1 - max(x; j), iota(j), 7); j)", false),
        ("min(select(z - x + max(x; j), iota(j), 7); j)", false),
        ("min(select(-relu(max(x; j) - 3), iota(j), 7); j)", false),
        // It is not the maximum of what is compared.
        ("min(select(x - max(x * x; j), iota(j), 7); j)", false),
        // Infinity times zero is no number.
        ("sum(select(x - max(x; j), 1 / x, 0); j)", false),
    ] {
        let found = of_last(result);
        assert_eq!(found.is_some(), exists, "{result}");
        assert!(found.is_none_or(|c| c.exact), "{result}");
    }
}

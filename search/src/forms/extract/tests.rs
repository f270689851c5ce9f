//! Oracle: `ir::eval` of the program itself on random inputs, in f64; plus the shape of the best form.

use super::*;
use ir::{AxisId, Function, NodeId, Op, Tensor, parse};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn program(text: &str) -> Program {
    parse(text, "test.lax").expect("the test's program should parse")
}

fn inputs(p: &Program, seed: u64) -> Vec<Tensor> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    p.parameters()
        .map(|(_, _, _, dims)| {
            let shape: Vec<usize> = p.shape(dims).iter().map(|e| *e as usize).collect();
            let n = shape.iter().product();
            let data = (0..n).map(|_| rng.random_range(-2.0..2.0)).collect();
            Tensor::new(shape, data).expect("the shape should fit")
        })
        .collect()
}

/// Every expression at these limits, checked against the program by evaluation at small extents.
fn check(text: &str, k: usize) -> Vec<Expression> {
    let p = program(text);
    let all = expressions(&p, &Limits::default(), k);
    assert!(!all.is_empty() && all.len() <= k.max(1));
    assert_eq!(all.iter().filter(|e| e.program == p).count(), 1);
    for w in all.windows(2) {
        assert!(w[0].work <= w[1].work || w[1].program == p);
    }
    for e in &all {
        assert_eq!(e.program.axes, p.axes);
        same(&p, &e.program);
    }
    all
}

fn same(p: &Program, q: &Program) {
    for seed in 0..3 {
        let xs = inputs(p, seed);
        let want = ir::eval(p, &xs).expect("the program should evaluate");
        let got = ir::eval(q, &xs).unwrap_or_else(|e| panic!("{e}\n{q}"));
        for (w, g) in want.iter().zip(&got) {
            assert_eq!(w.shape, g.shape);
            for (x, y) in w.data.iter().zip(&g.data) {
                assert!(
                    (x - y).abs() <= 1e-8 * (1.0 + x.abs()) || (x.is_nan() && y.is_nan()),
                    "{x} became {y} in\n{q}"
                );
            }
        }
    }
}

/// `√½·√½ − ½` is zero, and its bounds in floating point are not: no sign may be proven with them.
#[test]
fn rounded_bounds_prove_no_sign() {
    let text = "program p\naxis a = 5, c = 1\ny = parameter f32 []\nr = sqrt(iota(c) * iota(c) + 0.5)\ns = dot(r, r; c)\n\
        return f16 [c, a] select(iota(c) - iota(a) + 0, sqrt(y * y + 0.5), select(iota(c) - iota(c) + -1, iota(c), iota(c))),\n\
        bf16 [] -s, f16 [] s\n";
    let text = text.replace("iota(c))),\n", "iota(c))), ");
    assert!(check(&text, 8).len() > 1);
}

/// `k − k·k·300` for `k` near 1/300 is zero, or as far from it as it was rounded: its sign is none, or everything equals zero.
#[test]
fn rounded_constants_prove_no_sign() {
    let text = "program p\naxis i = 2, j = 300\nx = parameter f32 [i, j]\ne = select(iota(j) - iota(j), exp(x), 0)\n\
        q = e / (e * e + 1)\nm = sum(q; j) * 0.0033333333333333335\n\
        return f32 [i] sum(q - m; j) * 0.0033333333333333335, f32 [i] m\n";
    assert!(check(text, 8).len() > 1);
}

#[test]
fn no_form_multiplies_by_what_changes_nothing() {
    // Quotients, differences and negations of negations: each is written with constants of its own.
    let start = "program p\naxis i = 4, j = 6\nx = parameter f32 [i, j]\ny = parameter f32 [i]\n\
                n = sum(exp(x); j)\nd = (2 * iota(j) - 1) * (x - y) / n\n";
    let mut forms = Vec::new();
    for result in [
        "1 / (1 + exp(-d)) * d - -x",
        "d - sum(d * (x - y); j)",
        "x * sum(d / (1 + exp(-y)); j) - -d",
        "max(d; j) - exp(x - y) / n",
    ] {
        let text = format!("{start}return f32 [i, j] {result}\n");
        let p = program(&text);
        let all = check(&text, 24).into_iter().map(|e| e.program);
        forms.extend(all.filter(|q| *q != p));
    }
    assert!(forms.len() > 4, "{}", forms.len());
    for q in &forms {
        let constant = |n: NodeId| match q.node(n).op {
            Op::Constant(c) => Some(c),
            Op::Parameter { .. }
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot { .. } => None,
        };
        for node in &q.nodes {
            let neutral = if node.op == Op::Map(ir::MapOp::Mul) {
                1.0
            } else if node.op == Op::Map(ir::MapOp::Add) {
                0.0
            } else {
                continue;
            };
            let known: Vec<f64> = node.args.iter().filter_map(|a| constant(*a)).collect();
            assert!(
                known.len() < 2 && !known.contains(&neutral),
                "{node:?}\n{q}"
            );
            for (own, arg) in known
                .iter()
                .zip(node.args.iter().filter(|a| constant(**a).is_none()))
            {
                let below = q.node(*arg);
                let inner: Vec<f64> = below.args.iter().filter_map(|a| constant(*a)).collect();
                let cancels = below.op == node.op
                    && inner
                        .iter()
                        .any(|c| if neutral == 1.0 { c * own } else { c + own } == neutral);
                assert!(!cancels, "{q}");
            }
        }
    }
}

fn at(text: &str) -> Program {
    let p = program(text);
    let all = expressions(&p, &Limits::default(), 4);
    all[0].program.clone()
}

/// The nodes on which `id` depends.
fn below(p: &Program, id: NodeId) -> Vec<NodeId> {
    let mut seen = vec![id];
    let mut i = 0;
    while i < seen.len() {
        for a in &p.node(seen[i]).args {
            if !seen.contains(a) {
                seen.push(*a);
            }
        }
        i += 1;
    }
    seen
}

fn axis(p: &Program, name: &str) -> AxisId {
    let i = p.axes.iter().position(|a| a.name == name);
    AxisId(i.expect("the axis should exist") as u32)
}

fn dots(p: &Program) -> Vec<NodeId> {
    (0..p.nodes.len())
        .map(|i| NodeId(i as u32))
        .filter(|i| matches!(p.node(*i).op, Op::Dot { .. }))
        .collect()
}

const ATTENTION: &str = "program a
axis b = B, i = I, j = J, d = D, e = D
q = parameter f16 [b, i, d]
k = parameter f16 [b, j, d]
v = parameter f16 [b, j, e]
p = softmax(dot(q, k; d) * 0.125; j)
return f16 [b, i, e] dot(p, v; j)
";

fn sized(text: &str, sizes: &[(&str, u64)]) -> String {
    sizes.iter().fold(text.to_owned(), |t, (name, n)| {
        t.replace(&format!("= {name}"), &format!("= {n}"))
    })
}

#[test]
fn attention_divides_after_the_contraction_and_keeps_its_maximum() {
    check(
        &sized(ATTENTION, &[("B", 2), ("I", 3), ("J", 5), ("D", 2)]),
        6,
    );
    let p = at(&sized(
        ATTENTION,
        &[("B", 2), ("I", 256), ("J", 4096), ("D", 64)],
    ));
    let j = axis(&p, "j");
    let last = dots(&p)
        .into_iter()
        .find(|d| matches!(&p.node(*d).op, Op::Dot { axes } if axes.contains(j)))
        .unwrap_or_else(|| panic!("a dot over j in\n{p}"));
    for n in below(&p, last) {
        assert!(
            !matches!(p.node(n).op, Op::Map(ir::MapOp::Div)),
            "a division below the dot in\n{p}"
        );
    }
    assert!(
        p.nodes.iter().any(|n| matches!(
            &n.op,
            Op::Reduce {
                op: ir::ReduceOp::Max,
                ..
            }
        )),
        "the maximum was lost in\n{p}"
    );
}

/// The largest of scaled scores is the scaled largest score, behind a mask too: no element is multiplied for the maximum's sake, and the
/// exponential has the only factor.
#[test]
fn maxima_are_taken_before_scaling() {
    let text = "program p\naxis i = I, j = J, d = D, e = D\nq = parameter f16 [i, d]\nk = parameter f16 [j, d]\n\
                v = parameter f16 [j, e]\nreturn f16 [i, e] dot(softmax(SCORES; j), v; j)\n";
    let check = |scores: &str, want: expect_test::Expect| {
        let text = text.replace("SCORES", scores);
        check(&sized(&text, &[("I", 3), ("J", 5), ("D", 2)]), 6);
        let p = at(&sized(&text, &[("I", 256), ("J", 4096), ("D", 64)]));
        let text = p.to_string();
        let (_, computed) = text.split_once("v =").expect("the last parameter");
        want.assert_eq(computed);
    };
    check(
        "dot(q, k; d) * 0.3",
        expect_test::expect![[r#"
             parameter f16 [j, e]
            _0 = dot(q, k; d)
            _1 = exp(0.3 * (-max(_0; j) + _0))
            return f16 [i, e] 1 / sum(_1; j) * dot(v, _1; j)
        "#]],
    );
    check(
        "causal(dot(q, k; d) * 0.3; i, j)",
        expect_test::expect![[r#"
             parameter f16 [j, e]
            _0 = select(3840 + iota(i) - iota(j), dot(q, k; d), -inf)
            _1 = exp(0.3 * (-max(_0; j) + _0))
            return f16 [i, e] 1 / sum(_1; j) * dot(v, _1; j)
        "#]],
    );
    // What is scaled first costs a multiplication an element.
    let p = program(
        "program p\naxis i = 4, j = 1000\nx = parameter f32 [i, j]\nreturn f32 [i] max(x * 0.3; j)\n",
    );
    let all = expressions(&p, &Limits::default(), 2);
    assert!(all[1].work - all[0].work > 0.9 * 4000.0, "{all:?}");
}

const NORM: &str = "program n
axis s = S, k = K, n = N
x = parameter f16 [s, k]
g = parameter f16 [k]
w = parameter f16 [k, n]
return f16 [s, n] dot(rms_norm(x; k, 0.001) * g, w; k)
";

#[test]
fn a_norm_is_pulled_out_of_the_projection() {
    check(&sized(NORM, &[("S", 3), ("K", 5), ("N", 2)]), 6);
    let p = at(&sized(NORM, &[("S", 16), ("K", 4096), ("N", 6144)]));
    for d in dots(&p) {
        for n in below(&p, d) {
            assert!(
                !matches!(p.node(n).op, Op::Map(ir::MapOp::Function(Function::Sqrt))),
                "a root below the dot in\n{p}"
            );
        }
    }
}

const LINEAR: &str = "program l
axis b = 2, i = I, j = I, d = D, e = D
q = parameter f16 [b, i, d]
k = parameter f16 [b, j, d]
v = parameter f16 [b, j, e]
return f16 [b, i, e] dot(dot(exp(q), exp(k); d), v; j)
";

#[test]
fn a_chain_of_contractions_is_re_associated_when_it_pays() {
    check(&sized(LINEAR, &[("I", 3), ("D", 2)]), 6);
    let p = at(&sized(LINEAR, &[("I", 4096), ("D", 64)]));
    let (i, j) = (axis(&p, "i"), axis(&p, "j"));
    for n in &p.nodes {
        assert!(
            !(n.axes.contains(i) && n.axes.contains(j)),
            "a score matrix in\n{p}"
        );
    }
    // and not when it does not
    let p = at(&sized(LINEAR, &[("I", 4), ("D", 64)]));
    assert!(
        p.nodes
            .iter()
            .any(|n| n.axes.contains(i) && n.axes.contains(j))
    );
}

const LORA: &str = "program lora
axis s = S, k = K, r = 2, n = K2
x = parameter f16 [s, k]
w = parameter f16 [k, n]
a = parameter f16 [k, r]
b = parameter f16 [r, n]
return f16 [s, n] dot(x, w; k) + dot(dot(x, a; k), b; r)
";

#[test]
fn low_rank_updates_stay_low_rank() {
    check(&sized(LORA, &[("S", 3), ("K2", 4), ("K", 5)]), 6);
    let text = sized(LORA, &[("S", 16), ("K2", 4096), ("K", 4096)]);
    let all = expressions(&program(&text), &Limits::default(), 4);
    let own = all.iter().find(|e| e.numerics == Numerics::Exact);
    assert!(all[0].work <= own.expect("the program is among them").work);
    let p = &all[0].program;
    let (k, n) = (axis(p, "k"), axis(p, "n"));
    for node in &p.nodes {
        let weight = matches!(node.op, Op::Parameter { .. });
        assert!(weight || !(node.axes.contains(k) && node.axes.contains(n)));
    }
}

#[test]
fn a_convolution_stays_one_dot_over_a_view() {
    let all = check(
        "program conv
axis n = 2, ci = 2, h = 7, w = 7, co = 3, oh = 4, ow = 4, kh = 3, kw = 3
x = parameter f32 [n, ci, h, w]
f = parameter f32 [co, ci, kh, kw]
b = parameter f32 [co]
return f32 [n, co, oh, ow] max(dot(view(x; h -> 2*oh + kh - 1, w -> 2*ow + kw - 1; fill = 0), f; ci, kh, kw) + b, 0)
",
        4,
    );
    assert_eq!(dots(&all[0].program).len(), 1);
}

#[test]
fn everyday_programs_keep_their_meaning() {
    let head = "program t\naxis i = 3, j = 5, d = 2, t = 2, c = 2\nx = parameter f32 [i, j]\ny = parameter f32 [j, d]\nz = parameter f32 [i, (t c)]\n";
    for tail in [
        "return f32 [i, j] softmax(causal(x; i, j); j)",
        "return f32 [i, j] layer_norm(x; j, 0.001)",
        "return f32 [i, d] dot(layer_norm(x; j, 0.001), y; j)",
        "return f32 [i, j] silu(x) * x",
        "return f32 [i, j] gelu(x)",
        "return f32 [i] log(sum(exp(x - max(x; j)); j)) + max(x; j)",
        "return f32 [i, j] sigmoid(x)",
        "return f32 [i, t, c] z + (2 * iota(t) - 1) * view(z; t -> 1 - t)",
        "return f32 [i, j] select(iota(i) - iota(j), x, 0) / 3",
        "return f32 [i] sum(x; j), f32 [i, j] x - mean(x; j)",
        "return f32 [i, j] x * 0",
        "return f32 [j] max(max(x; i), sum(y; d))",
        "return f32 [d] sum(dot(x, y; j); i)",
        "return f32 [i, j] view(view(x; j -> 4 - j); j -> 4 - j)",
        "return f32 [i, j] exp(view(x; j -> j + 1; fill = 0)) * 2",
        "return f32 [i] sum(view(x; j -> j + 1; fill = 0); j)",
    ] {
        check(&format!("{head}{tail}\n"), 8);
    }
}

#[test]
fn exponentials_are_not_split_where_a_factor_is_lost() {
    // Neither `e^(−10⁴)` nor `e^(10⁴)` is a number that a machine holds.
    let text = "program t\naxis b = 8, h = 8, i = 100, j = 300, d = 64, e = 64\n\
                q = parameter f32 [b, h, i, d]\nk = parameter f32 [b, h, j, d]\nv = parameter f32 [b, h, j, e]\n\
                mask = parameter f32 [b, j]\n\
                return f32 [b, h, i, e] dot(softmax(dot(q, k; d) * 0.125 + (mask - 1) * 10000; j), v; j)\n";
    for e in expressions(&program(text), &Limits::default(), 8) {
        let p = e.program;
        let constant = |n: &NodeId| match p.node(*n).op {
            Op::Constant(c) => Some(c),
            Op::Parameter { .. }
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot { .. } => None,
        };
        for node in &p.nodes {
            let exp = matches!(node.op, Op::Map(ir::MapOp::Function(Function::Exp)));
            assert!(
                !exp || node.args.iter().all(|a| constant(a).is_none()),
                "{p}"
            );
            let dot = matches!(node.op, Op::Map(ir::MapOp::Mul));
            assert!(
                !dot || node.args.iter().all(|a| constant(a) != Some(0.0)),
                "{p}"
            );
        }
    }
}

#[test]
fn results_repeat() {
    let text = sized(ATTENTION, &[("B", 2), ("I", 64), ("J", 128), ("D", 16)]);
    let (x, y) = (program(&text), program(&text));
    assert_eq!(
        expressions(&x, &Limits::default(), 4),
        expressions(&y, &Limits::default(), 4)
    );
}

#[test]
fn long_programs_stay_within_their_limits() {
    // Thirty layers of normalised, gated projections: three hundred nodes.
    let mut text = "program deep\naxis s = 2, k = 3, l = 3\nx0 = parameter f32 [s, k]\n".to_owned();
    for n in 0..30 {
        text += &format!("w{n} = parameter f32 [k, l]\n");
    }
    for n in 0..30 {
        text += &format!(
            "h{n} = dot(rms_norm(x{n}; k, 0.001), w{n}; k)\nx{} = view(silu(h{n}) * h{n}; l -> k) + x{n}\n",
            n + 1
        );
    }
    text += "return f32 [s, k] x30\n";
    let p = program(&text);
    assert!(p.nodes.len() >= 300, "{}", p.nodes.len());
    let all = expressions(&p, &Limits::default(), 4);
    for e in &all {
        same(&p, &e.program);
    }
}

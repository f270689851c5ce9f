//! Forms that lose the digits that their program keeps: refused, and others found in their place.

use crate::kinds::program;
use crate::offered::kept_forms;
use ir::{AxisSet, NodeId, Op, Program};
use search::forms::extract::{Limits, expressions};

/// Centred columns against each other: what is far from zero cancels before it is squared.
const COVARIANCE: &str = "axis t = 512, a = 8, b = 8\nx = parameter f32 [t, a]\nz = x - mean(x; t)\n\
     return f32 [a, b] dot(z, view(z; a -> b); t) / (size(t) - 1)";
/// Distances, and what is made of them.
const DISTANCE: &str = "axis i = 8, j = 8, d = 16\nx = parameter f32 [i, d]\ny = parameter f32 [j, d]\n\
     return f32 [i, j] sqrt(sum((x - y) * (x - y); d))";
const NEAREST: &str = "axis i = 8, j = 8, d = 16\nx = parameter f32 [i, d]\ny = parameter f32 [j, d]\n\
     return f32 [i, j] softmax(-sum((x - y) * (x - y); d); j)";
const SCORES: &str = "axis i = 8, j = 8, d = 64, e = 4\nx = parameter f32 [i, d]\ny = parameter f32 [j, d]\n\
     v = parameter f32 [j, e]\ns = dot(layer_norm(x; d, 1e-5), layer_norm(y; d, 1e-5); d) * 0.125\n\
     return f32 [i, e] dot(softmax(s; j), v; j)";

/// Whether a value is a parameter, seen through views.
fn is_given(program: &Program, id: NodeId) -> bool {
    let node = program.node(id);
    match &node.op {
        Op::Parameter { .. } => true,
        Op::View { .. } => is_given(program, node.args[0]),
        Op::Constant(_) | Op::Iota(_) | Op::Map(_) | Op::Reduce { .. } | Op::Dot { .. } => false,
    }
}

/// Whether a form contracts what is given, and not what is centred: then it subtracts afterwards.
fn contracts_what_is_given(form: &Program) -> bool {
    form.nodes.iter().any(|node| match &node.op {
        Op::Dot { .. } => {
            let axes: Vec<&AxisSet> = node.args.iter().map(|a| &form.node(*a).axes).collect();
            axes[0] != axes[1] && node.args.iter().all(|a| is_given(form, *a))
        }
        Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::View { .. }
        | Op::Map(_)
        | Op::Reduce { .. } => false,
    })
}

#[test]
fn what_cancels_is_subtracted_first() {
    let mut offered = 0;
    // Of a distance, all others that keep their digits sum what the program sums.
    for (text, least) in [(COVARIANCE, 4), (DISTANCE, 1), (NEAREST, 3), (SCORES, 4)] {
        let p = program("cancels", text);
        offered += (expressions(&p, &Limits::default(), 8).iter())
            .filter(|e| contracts_what_is_given(&e.program))
            .count();
        let kept = kept_forms(&p, &Limits::default(), 8);
        // Refusing is no reason to have nothing.
        assert!(kept.len() >= least, "{}\n{p}", kept.len());
        for form in &kept {
            assert!(!contracts_what_is_given(form), "{form}");
        }
    }
    assert!(
        offered > 4,
        "without a judge there are such forms: {offered}"
    );
}

#[test]
fn what_users_need_is_kept() {
    // A norm whose factor is delayed, attention that is no softmax, a chain of products, a low-rank update.
    for text in [
        "axis t = 16, m = 64, n = 32\nx = parameter f16 [t, m]\ng = parameter f16 [m]\nw = parameter f16 [m, n]\n\
         return f16 [t, n] dot(rms_norm(x; m, 1e-5) * g, w; m)",
        "axis i = 64, j = 64, d = 8, e = 8\nq = parameter f16 [i, d]\nk = parameter f16 [j, d]\n\
         v = parameter f16 [j, e]\nreturn f16 [i, e] dot(dot(q, k; d), v; j)",
        "axis i = 64, j = 64, k = 64, l = 1\na = parameter f32 [i, j]\nb = parameter f32 [j, k]\n\
         c = parameter f32 [k, l]\nreturn f32 [i, l] dot(dot(a, b; j), c; k)",
        "axis t = 16, m = 64, n = 64, r = 4\nx = parameter f16 [t, m]\nw = parameter f16 [m, n]\n\
         a = parameter f16 [m, r]\nb = parameter f16 [r, n]\n\
         return f16 [t, n] dot(x, w; m) + dot(dot(x, a; m), b; r)",
        "axis i = 8, j = 32, d = 8, e = 8\nq = parameter f16 [i, d]\nk = parameter f16 [j, d]\n\
         v = parameter f16 [j, e]\nreturn f16 [i, e] dot(softmax(dot(q, k; d) * 0.35; j), v; j)",
    ] {
        let p = program("needed", text);
        let offered: Vec<Program> = expressions(&p, &Limits::default(), 8)
            .into_iter()
            .map(|e| e.program)
            .collect();
        let kept = kept_forms(&p, &Limits::default(), 8);
        assert!(kept.len() > 1 && kept == offered, "{p}\n{}", kept.len());
    }
}

/// Nobody could hold what this one sums; its form is compared with it where they are smaller.
#[test]
fn what_is_too_large_to_evaluate_is_compared_smaller() {
    let text = "axis i = 3000, j = 3000, k = 3000\na = parameter f32 [i]\nb = parameter f32 [j]\nc = parameter f32 [k]\n\
        return f32 [] sum(a * b * c; i, j, k)";
    let target = search::targets::target("h200").expect("a known target");
    let options = tilewright::Options {
        budget: std::time::Duration::from_secs(2),
        ..tilewright::Options::new(target)
    };
    let found = tilewright::optimize(&program("outer", text), &options, &mut ());
    let found = found.unwrap_or_else(|e| panic!("{e}"));
    let best = found.best.value();
    // Three sums, and no loop over their product.
    assert!(best.predicted.us < 20.0, "{}", best.predicted.us);
    assert!(!found.best.evidence().tiling.is_full_shape());
}

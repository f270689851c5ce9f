//! What the search derives from plain programs, without a rule or a word in the library that names them.

use crate::offered::{all_forms, example};
use crate::structure;
use ir::{AxisId, BufferId, BufferRole, Dtype, Program, Role, Tensor, TileOp, TileProgram};
use search::tiling::enumerate::Candidate;
use std::sync::Arc;
use verify::{SimulateOptions, TilingOptions, check_tiling};

const CHECK: TilingOptions = TilingOptions {
    draws: 3,
    seed: 2,
    work: 100_000,
    slice_work: 4_000_000,
    most_slice_work: 40_000_000,
};

/// The first candidates that the pipeline would see: of the program and of its other forms.
fn offered(program: &Program, count: usize) -> Vec<Candidate> {
    let target = search::targets::target("h200").unwrap();
    all_forms(program, &target).take(count).collect()
}

/// Fails unless the candidate computes the program and can be lowered.
fn assert_right(program: &Program, candidate: &Candidate) {
    let checked = check_tiling(program, &candidate.expression, &candidate.tile, &CHECK);
    assert!(checked.is_ok(), "{checked:?}\n{}", candidate.tile);
    assert!(
        can_be_lowered(candidate),
        "no schedule can be lowered\n{}",
        candidate.tile
    );
}

fn can_be_lowered(candidate: &Candidate) -> bool {
    let target = search::targets::target("h200").unwrap();
    search::schedules::schedules(&candidate.tile, &target)
        .iter()
        .any(|s| codegen::lower(&candidate.tile, s, &target).is_ok())
}

/// Scores of `i` by `j`, softened along `j` and contracted with values, are never in memory: one kernel, one loop
/// that carries a running maximum, a running sum and rescaled results, and in some also what those are relative to.
fn is_one_running_kernel(tile: &TileProgram) -> bool {
    let [kernel] = tile.kernels.as_slice() else {
        return false;
    };
    structure::loops(&kernel.body) == 1
        && (3..=4).contains(&structure::carried(&kernel.body))
        && structure::largest_workspace(tile) == 0
}

#[test]
fn scores_never_reach_memory() {
    for name in [
        "attention_b4h32s4096d128_bf16",
        "attention_causal_b1h32s2048d128_f16",
        "gqa",
        "attention_causal_gqa_b1h32kv8s1024d128_f16",
    ] {
        let program = example(name);
        let all = offered(&program, 250);
        let one = all.iter().find(|c| is_one_running_kernel(&c.tile));
        let one = one.unwrap_or_else(|| panic!("{name}: {}", all[1].plan_text));
        assert_right(&program, one);
        // Whatever else is thought to be better keeps parts of results at most, and never scores.
        let axis = |n: &str| program.axes.iter().find(|a| a.name == n).unwrap().extent;
        let scores = program
            .parameters()
            .map(|(_, _, _, dims)| program.shape(dims)[0])
            .max()
            .unwrap()
            * axis("i")
            * axis("j");
        assert!(
            structure::largest_workspace(&all[1].tile) < scores,
            "{name}: {}",
            all[1].tile
        );
    }
}

/// A program written here, at extents of use.
fn written(text: &str) -> Program {
    format!("program written\n{text}\n")
        .parse()
        .unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_bias_of_more_bits_does_not_keep_scores_out_of_the_kernel() {
    let program = written(
        "axis b = 4, h = 12, i = 512, j = 512, d = 64, e = 64, p = 1023\n\
         q = parameter f16 [b, h, i, d]\nk = parameter f16 [b, h, j, d]\nv = parameter f16 [b, h, j, e]\n\
         bias = parameter f32 [h, p]\n\
         return f16 [b, h, i, e] dot(softmax(dot(q, k; d) * 0.125 + view(bias; p -> j - i + 511); j), v; j)",
    );
    let all = offered(&program, 2);
    assert!(is_one_running_kernel(&all[1].tile), "{}", all[1].plan_text);
    assert_right(&program, &all[1]);
}

/// Products are relative to a maximum that lags behind the running one: rows whose scores rise slowly, fast, or not at all have the program's
/// results, and those of sums that no product is corrected beside see the maximum itself.
#[test]
fn maxima_are_raised_late_where_products_are_corrected_for_them() {
    let program = written(
        "axis i = 64, j = 1024, d = 1, e = 16\nq = parameter f32 [i, d]\nk = parameter f32 [j, d]\nv = parameter f32 [j, e]\n\
         s = dot(q, k; d)\ntop = max(s; j)\np = exp(s - top)\nt = sum(p; j)\n\
         return f32 [i, e] dot(p, v; j) / t, f32 [i] top + log(t)",
    );
    let all = offered(&program, 60);
    let late = |c: &&Candidate| {
        let [kernel] = c.tile.kernels.as_slice() else {
            return false;
        };
        structure::loops(&kernel.body) == 1 && structure::carried(&kernel.body) == 4
    };
    let late = all.iter().find(late);
    let late = late.unwrap_or_else(|| panic!("{}", all[1].tile));
    assert_right(&program, late);
    let slopes = |i: usize| [0.0, 1e-3, 0.02, 0.3, 2.0, -2.0, -0.1][i % 7];
    let tensor = |shape: Vec<usize>, of: &dyn Fn(usize) -> f64| {
        let data = (0..shape.iter().product()).map(of).collect();
        Tensor::new(shape, data).expect("the shape of its data")
    };
    let inputs = [
        tensor(vec![64, 1], &slopes),
        tensor(vec![1024, 1], &|j| j as f64),
        tensor(vec![1024, 16], &|x| ((x * 37) % 101) as f64 / 50.0 - 1.0),
    ];
    let want = ir::eval(&program, &inputs).expect("a value");
    let got = verify::simulate(&late.tile, &inputs, SimulateOptions::default()).expect("a value");
    for (got, want) in got.iter().zip(&want) {
        for (at, (g, w)) in got.data.iter().zip(&want.data).enumerate() {
            assert!(
                (g - w).abs() <= 1e-9 * w.abs().max(1.0),
                "{at}: {g}, not {w}"
            );
        }
    }
    let loss = written(
        "axis t = 64, n = 4096\nx = parameter f32 [t, n]\ntop = max(x; n)\n\
         return f32 [t] top + log(sum(exp(x - top); n))",
    );
    let all = offered(&loss, 60);
    let running = all
        .iter()
        .map(|c| structure::carried(&c.tile.kernels[0].body));
    assert_eq!(running.max(), Some(2));
}

#[test]
fn outputs_that_read_the_same_share_a_kernel() {
    let program = written(
        "axis t = 4096, m = 4096\nx = parameter f32 [t, m]\na = max(x, -x)\n\
         return f32 [t] max(a; m), f32 [t] sum(a; m), f32 [t] sqrt(sum(x * x; m))",
    );
    let all = offered(&program, 2);
    assert_eq!(all[1].tile.kernels.len(), 1, "{}", all[1].plan_text);
    assert_right(&program, &all[1]);
}

#[test]
fn those_of_many_outputs_share_a_kernel_that_gain_by_it() {
    let program = written(
        "axis n = 32, c = 64, h = 112, w = 112, y = 56, z = 56, i = 3, j = 3\n\
         x = parameter f32 [n, c, h, w]\n\
         a = view(x; h -> 2*y + i - 1, w -> 2*z + j - 1; fill = 0)\n\
         b = view(x; h -> 2*y + i - 1, w -> 2*z + j - 1; fill = -inf)\n\
         return f32 [n, c, y, z] sum(a; i, j), f32 [n, c, y, z] max(b; i, j), f32 [n, c] sum(x; h, w)",
    );
    let best = &offered(&program, 2)[1];
    let stored = best.tile.kernels.iter().map(|k| ir::stores(&k.body).len());
    assert_eq!(stored.collect::<Vec<_>>(), [2, 1], "{}", best.plan_text);
    assert_right(&program, best);
}

#[test]
fn logits_of_a_loss_never_reach_memory() {
    let program = written(
        "axis t = 4096, m = 2048, n = 32000\nx = parameter bf16 [t, m]\nw = parameter bf16 [n, m]\n\
         z = dot(x, w; m)\ntop = max(z; n)\nreturn f32 [t] top + log(sum(exp(z - top); n))",
    );
    let best = &offered(&program, 2)[1];
    let logits = 4096 * 32_000;
    let largest = structure::largest_workspace(&best.tile);
    assert!(largest <= logits / 100, "{largest}: {}", best.plan_text);
    assert_right(&program, best);
}

/// What a product makes is summed where it is made, over its rows and columns alike, and softened over two axes of columns.
#[test]
fn products_that_are_reduced_never_reach_memory() {
    let residual = "axis i = 4096, j = 4096, d = 64\na = parameter bf16 [i, d]\nb = parameter bf16 [j, d]\n\
        x = parameter f32 [i, j]\ne = x - dot(a, b; d)\nreturn f32 [] sum(e * e; i, j)";
    let views = "axis t = 2, s = 2, n = 2048, m = 2048, d = 256\nz = parameter f16 [t, n, d]\n\
        x = dot(z, view(z; t -> s, n -> m); d)\ntop = max(x; s, m)\nreturn f32 [t, n] top + log(sum(exp(x - top); s, m))";
    for text in [residual, views] {
        let program = written(text);
        let all = offered(&program, 6);
        assert!(
            structure::largest_workspace(&all[1].tile) < 1 << 16,
            "{}",
            all[1].tile
        );
        assert_right(&program, &all[1]);
    }
}

/// A mean so far, taken from numbers far from zero, would overflow in an exponent: the mean comes first.
#[test]
fn exponents_wait_for_sums() {
    let program = written(
        "axis t = 8, j = 65536\nx = parameter f32 [t, j]\ny = parameter f32 [t, j]\nd = x - mean(x; j)\n\
         return f32 [t] sum(exp(d) * y; j)",
    );
    let all = offered(&program, 60);
    assert!(all.len() > 10, "{}", all.len());
    for candidate in &all {
        let carried = candidate
            .tile
            .kernels
            .iter()
            .map(|k| structure::carried(&k.body));
        let loops = candidate
            .tile
            .kernels
            .iter()
            .map(|k| structure::loops(&k.body));
        assert!(carried.eq(loops), "{}", candidate.tile);
    }
}

/// A result that another kernel needs is read where the caller gets it, if it is not rounded there.
#[test]
fn results_are_read_where_they_are() {
    let text = |dtype: &str| {
        format!(
            "axis n = 16, y = 1024, z = 1024\nx = parameter f32 [n, y, z]\nl = view(x; y -> y + 1; fill = 0) - x\n\
             return {dtype} [n, y, z] l, f32 [n] sum(l * l; y, z)"
        )
    };
    let (exact, rounded) = (written(&text("f32")), written(&text("f16")));
    let all = offered(&exact, 1);
    assert_eq!(
        structure::largest_workspace(&all[0].tile),
        0,
        "{}",
        all[0].tile
    );
    assert_right(&exact, &all[0]);
    let all = offered(&rounded, 1);
    assert_eq!(structure::largest_workspace(&all[0].tile), 16 << 20);
}

#[test]
fn what_is_contracted_over_and_stored_is_held_whole() {
    let program = written(
        "axis b = 4, h = 16, i = 1, j = 4096, c = 512, r = 64\n\
         qc = parameter bf16 [b, h, i, c]\nqr = parameter bf16 [b, h, i, r]\n\
         kc = parameter bf16 [b, j, c]\nkr = parameter bf16 [b, j, r]\n\
         return bf16 [b, h, i, c] dot(softmax((dot(qc, kc; c) + dot(qr, kr; r)) * 0.07; j), kc; j)",
    );
    let all = offered(&program, 2);
    // The keys are read once, by many blocks, and the parts combined.
    assert!(
        structure::is_split(&all[1].tile) && all[1].tile.kernels.len() == 2,
        "{}",
        all[1].plan_text
    );
    assert_right(&program, &all[1]);
}

#[test]
fn tiles_above_the_diagonal_are_skipped() {
    let bounds = |name: &str| {
        let found = offered(&example(name), 8);
        structure::bounds(&found[1].tile.kernels[0].body)
    };
    assert_eq!(bounds("attention_causal_b4h32s4096d128_bf16"), 1);
    assert_eq!(bounds("attention_b4h32s4096d128_bf16"), 0);
}

/// A window is one condition or two, however they are written together.
#[test]
fn tiles_outside_a_window_are_skipped() {
    let attention = |mask: &str| {
        let text = format!(
            "program window\naxis h = 8, i = 4096, j = 4096, d = 64, e = 64\n\
             q = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
             s = dot(q, k; d) * 0.125\nreturn bf16 [h, i, e] dot(softmax({mask}; j), v; j)\n"
        );
        let program: Program = text.parse().expect("a program");
        let found = offered(&program, 3);
        assert_right(&program, &found[1]);
        structure::bounds(&found[1].tile.kernels[0].body)
    };
    for mask in [
        "select(iota(i) - iota(j), select(iota(j) - iota(i) + 255, s, -inf), -inf)",
        "select(min(iota(i) - iota(j), iota(j) - iota(i) + 255), s, -inf)",
        "select(max(iota(j) - iota(i) - 1, iota(i) - iota(j) - 256), -inf, s)",
    ] {
        assert_eq!(attention(mask), 2, "{mask}");
    }
    // A prefix that all see, and a suffix.
    for mask in [
        "select(max(iota(i) - iota(j), 511 - iota(j)), s, -inf)",
        "select(max(iota(j) - iota(i), iota(j) - 3000), s, -inf)",
    ] {
        assert_eq!(attention(mask), 1, "{mask}");
    }
    // Outside of a window there are two sides: no tile that both need can be left out.
    let outside = "select(max(iota(j) - iota(i) - 1, iota(i) - iota(j) - 256), s, -inf)";
    assert_eq!(attention(outside), 0);
}

/// What is summed over an axis and selects a place that is given costs one tile, and a loop ends at a length that is given.
#[test]
fn loops_end_where_parameters_say() {
    let found = |text: &str| {
        let program: Program = text.parse().expect("a program");
        let found = offered(&program, 3);
        assert_right(&program, &found[1]);
        let text = found[1].tile.to_string();
        let loops = text.lines().filter(|l| l.trim().starts_with("loop "));
        loops.map(|l| l.trim().to_owned()).collect::<Vec<_>>()
    };
    let rows = "program rows\naxis t = 300, v = 4096, d = 128\nids = parameter i64 [t]\n\
        table = parameter bf16 [v, d]\n\
        return bf16 [t, d] sum(select(0 - abs(iota(v) - ids), table, 0); v)\n";
    assert_eq!(found(rows), ["loop v from ids[t] to ids[t] + 1 {"]);
    let lengths = "program lengths\naxis b = 64, h = 8, j = 4096, d = 64, e = 64\nn = parameter i32 [b]\n\
        q = parameter bf16 [b, h, d]\nk = parameter bf16 [b, h, j, d]\nv = parameter bf16 [b, h, j, e]\n\
        s = select(n - 1 - iota(j), dot(q, k; d) * 0.125, -inf)\n\
        return bf16 [b, h, e] dot(softmax(s; j), v; j)\n";
    let loops = found(lengths);
    assert!(
        !loops.is_empty() && loops.iter().all(|l| l.starts_with("loop j to n[b] {")),
        "{loops:?}"
    );
    // A number that is no integer is no length.
    let loops = found(&lengths.replace("parameter i32", "parameter f32"));
    assert!(loops.iter().all(|l| !l.contains("n[")), "{loops:?}");
}

/// One result takes all of an image. It is compared at other extents, at which every window stays inside of what it is a window of.
#[test]
fn sums_of_windows_of_windows_are_compared_at_fewer_extents() {
    let program: Program = "program pooled\naxis n = 16, ci = 8, h = 96, w = 96, co = 16, kh = 3, kw = 3, y = 94, x = 94\n\
        axis oh = 23, ow = 23, ph = 4, pw = 4\na = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\n\
        b = parameter f32 [co]\nc = dot(view(a; h -> y + kh, w -> x + kw), f; ci, kh, kw) + b\n\
        m = mean(view(c; y -> 4*oh + ph, x -> 4*ow + pw); ph, pw)\n\
        return f32 [n] sum(sigmoid(m); co, oh, ow)\n"
        .parse()
        .expect("a program");
    let found = offered(&program, 4);
    assert_eq!(found.len(), 4);
    for c in found {
        let checked = check_tiling(&program, &c.expression, &c.tile, &CHECK);
        assert!(checked.is_ok(), "{checked:?}\n{}", c.tile);
    }
}

/// An output that another one is computed from is stored on the way.
#[test]
fn outputs_that_are_read_by_others_share_their_kernel() {
    let program: Program = "program add_norm\naxis t = 4096, m = 1024\nx = parameter bf16 [t, m]\n\
        r = parameter bf16 [t, m]\nw = parameter bf16 [m]\ns = x + r\n\
        return bf16 [t, m] s, bf16 [t, m] rms_norm(s; m, 1e-6) * w\n"
        .parse()
        .expect("a program");
    let found = offered(&program, 12);
    assert_eq!(found[1].tile.kernels.len(), 1, "{}", found[1].plan_text);
    assert_eq!(structure::largest_workspace(&found[1].tile), 0);
    assert_right(&program, &found[1]);
}

#[test]
fn few_rows_are_split_over_the_keys() {
    for name in [
        "decode_gqa_b1h32kv8s8192d128_bf16",
        "decode_b8h32s4096d64_bf16",
    ] {
        let program = example(name);
        let all = offered(&program, 24);
        let split = all[1..]
            .iter()
            .find(|c| structure::is_split(&c.tile) && c.tile.kernels.len() == 2);
        let split = split.unwrap_or_else(|| panic!("{name}: {}", all[1].plan_text));
        assert_right(&program, split);
    }
}

#[test]
fn chains_become_one_kernel() {
    for name in [
        "rmsnorm_linear_t16",
        "lora_m256",
        "gated_mlp_t8",
        "qknorm_gqa_bs8",
    ] {
        let program = example(name);
        let all = offered(&program, 40);
        let one = all.iter().find(|c| c.tile.kernels.len() == 1);
        let one = one.unwrap_or_else(|| panic!("{name}: {}", all[1].plan_text));
        assert_eq!(structure::largest_workspace(&one.tile), 0);
        assert_right(&program, one);
    }
}

/// A product of what is normalised first: its blocks read that in 16 bits, ready for matrix instructions, instead of computing it
/// each for itself.
#[test]
fn what_products_read_may_be_stored_for_them() {
    let program = example("rmsnorm_linear_t16");
    let ready = |c: &Candidate| {
        let [_, product] = c.tile.kernels.as_slice() else {
            return false;
        };
        product.values.iter().any(|v| {
            let TileOp::Contract { a, b, .. } = v.op else {
                return false;
            };
            let mut read = [a, b].into_iter().map(|x| product.value(x).op.loaded());
            let narrow = |b: BufferId| c.tile.buffer(b).dtype == Dtype::F16;
            let stored = |b: BufferId| c.tile.buffer(b).role == BufferRole::Workspace;
            let (first, second) = (read.next().flatten(), read.next().flatten());
            first.is_some_and(narrow)
                && second.is_some_and(narrow)
                && (first.is_some_and(stored) || second.is_some_and(stored))
        })
    };
    let all = offered(&program, 40);
    let found = all.iter().find(|c| ready(c));
    assert_right(&program, found.expect("such a plan should be offered"));
}

#[test]
fn rows_longer_than_a_block_can_hold_are_looped_over() {
    let text = "program rows\naxis t = 3, m = 1000003\nx = parameter f32 [t, m]\nreturn f32 [t, m] softmax(x; m)\n";
    let program = ir::text::parse(text, "rows").unwrap_or_else(|e| panic!("{e}"));
    let target = search::targets::target("h200").unwrap();
    let all = offered(&program, 4);
    assert!(all.len() > 1);
    for c in &all {
        assert_right(&program, c);
        for kernel in &c.tile.kernels {
            for (axis, a) in &kernel.axes {
                let held = a.role != Role::Grid || a.tile > 1;
                let most = target.shared_per_block / 4;
                assert!(!held || a.tile <= most, "{axis:?}: {a:?}\n{}", c.tile);
            }
        }
    }
}

#[test]
fn long_rows_are_spread_over_block_groups_and_read_once() {
    let program = example("softmax_f32");
    let all = offered(&program, 2);
    let best = &all[1];
    let [kernel] = best.tile.kernels.as_slice() else {
        panic!("{}", best.tile);
    };
    assert_eq!(kernel.block_group().len(), 1, "{}", best.tile);
    assert_eq!(structure::loops(&kernel.body), 0, "{}", best.tile);
    let loads = kernel.values.iter();
    let loads = loads.filter(|v| matches!(v.op, ir::TileOp::Load { .. }));
    assert_eq!(loads.count(), 1, "{}", best.tile);
    assert_right(&program, best);
}

#[test]
fn parts_are_combined_without_another_launch() {
    for name in ["rmsnorm_linear_t2", "rmsnorm_linear_t16"] {
        let program = example(name);
        let all = offered(&program, 2);
        let [kernel] = all[1].tile.kernels.as_slice() else {
            panic!("{name}: {}", all[1].tile);
        };
        let part = kernel.block_group().iter().next().expect("a part");
        assert!(
            part.index() >= program.axes.len(),
            "{name}: {}",
            all[1].tile
        );
        // Nobody waits for the sum itself; before it blocks that can be a cluster may meet for what it is relative to.
        let meetings = kernel.grid_barriers().len() - 1;
        let size: u64 = kernel
            .block_group()
            .iter()
            .map(|a| all[1].tile.extent(a))
            .product();
        assert!(
            !kernel.all_go_on() && (meetings == 0 || meetings == 1 && size <= 8),
            "{name}: {}",
            all[1].tile
        );
        assert_eq!(structure::largest_workspace(&all[1].tile), 0, "{name}");
        assert_right(&program, &all[1]);
    }
}

/// Sums of squared differences from a mean are taken in parts that blocks hold: rows of any length are read once for mean and variance, and
/// once more for the result.
#[test]
fn mean_and_variance_of_long_rows_take_one_pass() {
    let picture: Program = "program picture\naxis t = 16, c = 64, h = 256, w = 256\nx = parameter f32 [t, c, h, w]\n\
        g = parameter f32 [c, h, w]\nz = x - sum(x; c, h, w) / (size(c) * size(h) * size(w))\n\
        v = sum(z * z; c, h, w) / (size(c) * size(h) * size(w))\nreturn f32 [t, c, h, w] z * rsqrt(v + 1e-5) * g\n"
        .parse()
        .expect("a program");
    for program in [
        picture,
        search::forms::divide::divided(&example("layernorm_f32")),
    ] {
        let all = offered(&program, 2);
        let best = &all[1].tile;
        let reads = |op: &TileOp| matches!(op, TileOp::Load { buffer, .. } if buffer.index() == 0);
        let read = best.kernels.iter().flat_map(|k| &k.values);
        assert_eq!(read.filter(|v| reads(&v.op)).count(), 2, "{best}");
        // What is the same for all rows is read once for several.
        let last = best.kernels.last().expect("a kernel");
        assert!(last.tile(ir::AxisId(0)) >= 4, "{best}");
        assert_right(&program, &all[1]);
    }
}

/// The same of products of differences from two means: neither parameter is read twice.
#[test]
fn covariance_of_long_rows_takes_one_pass() {
    let program: Program = "program covariance\naxis t = 16, m = 4194304\nx = parameter f32 [t, m]\ny = parameter f32 [t, m]\n\
        return f32 [t] dot(x - mean(x; m), y - mean(y; m); m) / size(m)\n"
        .parse()
        .expect("a program");
    let reads = |program: &Program, parameter: usize| {
        let best = offered(program, 2).remove(1);
        let load =
            |op: &TileOp| matches!(op, TileOp::Load { buffer, .. } if buffer.index() == parameter);
        let all = best.tile.kernels.iter().flat_map(|k| &k.values);
        (all.filter(|v| load(&v.op)).count(), best)
    };
    let divided = search::forms::divide::divided(&program);
    for parameter in 0..2 {
        let (whole, _) = reads(&program, parameter);
        let (in_parts, best) = reads(&divided, parameter);
        assert_eq!((whole, in_parts), (2, 1), "{}", best.tile);
        assert_right(&divided, &best);
    }
}

/// A transposed convolution of stride 2 in two dimensions multiplies three zeros for each product: by residue classes and by phases none.
#[test]
fn transposed_convolutions_multiply_no_zeros() {
    for (extent, kernels) in [(64, 1), (63, 2)] {
        let program: Program = format!(
            "program up\naxis n = 16, c = 256, d = 128, h = 32, w = 32, i = 4, j = 4, oh = {extent}, ow = {extent}\n\
            x = parameter f32 [n, c, h, w]\nf = parameter f32 [c, d, i, j]\n\
            return f32 [n, d, oh, ow] conv_transpose2d(x, f; c, h, oh, i, w, ow, j, 2, 1)\n"
        )
        .parse()
        .expect("a program");
        let starts = search::forms::axes::starts(&program);
        assert_eq!(
            starts.len(),
            kernels,
            "the program itself beside its phases"
        );
        let [plain, other] = [&program, &starts[kernels - 1]].map(|program| {
            let best = offered(program, 2).remove(1);
            assert_right(program, &best);
            best
        });
        let [before, after] = [&plain, &other].map(|best| &best.predicted);
        // Beside what stores a filter in another order.
        let summed = other.tile.kernels.iter().filter(|k| {
            let mut values = k.values.iter();
            values.any(|v| v.op.reduced().is_some())
        });
        assert_eq!(summed.count(), kernels, "{}", other.tile);
        assert!(after.us < before.us, "{} {}", after.us, before.us);
        assert!(3 * after.flops < before.flops);
    }
}

/// A running sum takes work by its length, and not by its square.
#[test]
fn running_sums_are_linear() {
    let program: Program =
        "program running\naxis r = 4096, i = 4096, j = 4096\nx = parameter f32 [r, i]\n\
        return f32 [r, i] sum(select(iota(i) - iota(j), view(x; i -> j), 0); j)\n"
            .parse()
            .expect("a program");
    let [plain, blocked] = &search::forms::axes::starts(&program)[..] else {
        panic!("two programs to begin with");
    };
    let [plain, blocked] = [plain, blocked].map(|program| {
        let best = offered(program, 2).remove(1);
        assert_right(program, &best);
        best.predicted
    });
    // A loop keeps the sum of what it has seen: one kernel reads and writes everything once.
    for best in [&plain, &blocked] {
        assert_eq!((best.kernels.len(), best.bytes), (1, 2 * 4 * 4096 * 4096));
    }
    // A tile is scanned, or a block's triangle multiplied.
    assert!(plain.flops < 4 * 4096 * 4096, "{}", plain.flops);
    assert!(blocked.flops < 150 * 4096 * 4096, "{}", blocked.flops);
}

/// What a result is along is another axis than what is reduced, and the kernel reads the source along it. At small extents the two have one extent too: a
/// maximum or a product minds what lies outside.
#[test]
fn running_maxima_and_products_are_scanned_at_any_extents() {
    for (op, neutral) in [("max", "-inf"), ("prod", "1")] {
        let text = format!(
            "program running\naxis r = 512, i = 4096, j = 4096\nx = parameter f32 [r, j]\n\
             return f32 [r, i] {op}(select(iota(i) - iota(j), x, {neutral}); j)\n"
        );
        let program: Program = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let best = offered(&program, 2).remove(1);
        let kernels = best.tile.kernels.iter();
        let mut values = kernels.flat_map(|k| &k.values);
        assert!(values.any(|v| v.op.scan_axis().is_some()), "{}", best.tile);
        assert_right(&program, &best);
    }
}

#[test]
fn what_rows_share_is_read_once_for_many() {
    let program = example("layernorm_f32");
    let all = offered(&program, 2);
    let last = all[1].tile.kernels.last().expect("a kernel");
    let rows = program.axes.iter().position(|a| a.name == "t").expect("t");
    assert!(last.tile(ir::AxisId(rows as u32)) >= 4, "{}", all[1].tile);
    assert_right(&program, &all[1]);
}

/// A mean over the places of one axis of a convolution: the sum is taken of the source, once for all windows along the other axes.
#[test]
fn sums_over_places_are_taken_before_windows_along_other_axes() {
    let program: Program =
        "program frames\naxis n = 16, c = 16, t = 32, h = 130, w = 130, d = 64, ot = 32, oh = 128, ow = 128, kt = 3, kh = 3, kw = 3\n\
         x = parameter f32 [n, c, t, h, w]\nf = parameter f32 [d, c, kt, kh, kw]\n\
         return f32 [n, d, oh, ow] sum(dot(view(x; t -> ot + kt - 1, h -> oh + kh, w -> ow + kw; fill = 0), f; c, kt, kh, kw); ot)\n"
            .parse()
            .expect("a program");
    let found = offered(&program, 200);
    let all = (found.iter()).filter(|c| !c.is_plain() && can_be_lowered(c));
    let best = all.min_by(|x, y| x.predicted.us.total_cmp(&y.predicted.us));
    let best = best.expect("a candidate");
    assert_right(&program, best);
    // 2·16·64·128²·16·27 for the products, and the sums beside them: a 32nd part of what is written.
    assert!(
        best.predicted.flops < 20_000_000_000,
        "{}",
        best.predicted.flops
    );
    // No window is stored: what is between the kernels is no larger than three sums of the source and a result.
    assert!(
        best.predicted.bytes < 900_000_000,
        "{}",
        best.predicted.bytes
    );
}

/// Behind two convolutions and a norm over the image an element takes all of it, and the image's sides are what the views reach past.
#[test]
fn what_views_pin_is_compared_where_it_is_free() {
    let text = "program p\naxis c = 64, h = 96, w = 96, k = 64, hh = 96, ww = 96, e = 64, kh = 3, kw = 3, lh = 3, lw = 3\n\
                x = parameter bf16 [c, h, w]\nu = parameter bf16 [k, c, kh, kw]\nv = parameter bf16 [e, k, lh, lw]\n\
                y = dot(view(x; h -> hh + kh - 1, w -> ww + kw - 1; fill = 0), u; c, kh, kw)\n\
                z = silu(layer_norm(y; k, hh, ww, 1e-5))\n\
                return bf16 [e, h, w] dot(view(z; hh -> h + lh - 1, ww -> w + lw - 1; fill = 0), v; k, lh, lw)\n";
    let program: Program = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let target = search::targets::target("h200").unwrap();
    let shared = Arc::new(program.clone());
    let plain = search::tiling::enumerate::plainest(&shared, &target);
    let plain = plain.flatten().next().expect("a plain tile program");
    let check = |tile: &TileProgram| check_tiling(&program, &program, tile, &CHECK);
    let evidence = check(&plain.tile).unwrap_or_else(|e| panic!("{e}\n{}", plain.tile));
    assert!(evidence.slices.is_empty(), "{evidence:?}");
    assert!(evidence.decided() >= 16, "{evidence:?}");
    // What is wrong there is not passed.
    let wrong = plain.tile.to_string().replacen("lh - 1", "lh", 1);
    assert_ne!(wrong, plain.tile.to_string());
    let wrong: TileProgram = wrong.parse().unwrap_or_else(|e| panic!("{e}"));
    let refused = check(&wrong);
    assert!(refused.is_err(), "{refused:?}");
}

/// A product over windows goes from place to place of the window with channels beside each other in memory, in both operands, whatever order they are
/// given in; and what is stored between two such products lies so from the start.
#[test]
fn windows_read_what_lies_together() {
    let text = "program p\naxis n = 32, c = 256, h = 14, w = 14, k = 256, kh = 3, kw = 3, oh = 14, ow = 14\n\
                x = parameter bf16 [n, c, h, w]\nv = parameter bf16 [k, c, kh, kw]\n\
                return bf16 [n, k, oh, ow] dot(view(x; h -> oh + kh - 1, w -> ow + kw - 1; fill = 0), v; c, kh, kw)\n";
    let program: Program = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let axis = |name: &str| {
        let at = program.axes.iter().position(|a| a.name == name);
        AxisId(at.expect("an axis") as u32)
    };
    let fastest = |tile: &TileProgram| -> Vec<AxisId> {
        let stored = tile.buffers.iter();
        let stored = stored.filter(|b| b.role == BufferRole::Workspace && b.dtype == Dtype::Bf16);
        stored.filter_map(|b| b.axes().last()).collect()
    };
    let place_by_place = |tile: &TileProgram| {
        tile.kernels.iter().any(|k| {
            [axis("kh"), axis("kw")].iter().all(|a| {
                let how = k.axes.get(a);
                how.is_some_and(|how| how.role == Role::Loop && how.tile == 1)
            })
        })
    };
    let all = offered(&program, 40);
    let both = [axis("c"), axis("c")];
    let found = (all.iter()).find(|c| place_by_place(&c.tile) && fastest(&c.tile) == both);
    let found = found.unwrap_or_else(|| panic!("{}", all[1].plan_text));
    assert_right(&program, found);
    let others = all.iter().filter(|c| !place_by_place(&c.tile));
    let other = others.map(|c| c.predicted.us).fold(f64::INFINITY, f64::min);
    let own = found.predicted.us;
    assert!(own < 0.9 * other, "{own} and {other} us");
}

/// Of an axis that windows do not reach nothing is asked: that is no fault of who evaluates.
#[test]
fn windows_may_lie_outside_of_what_they_go_over() {
    let text = "program p\naxis n = 2, ci = 3, h = 2, w = 6, co = 3, oh = 8, ow = 7, kh = 3, kw = 3, ph = 2, pw = 4, sh = 3, sw = 3\n\
                x = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\n\
                y = exp(dot(view(x; h -> 2*oh + kh - 1, w -> 2*ow + kw - 1; fill = 0), f; ci, kh, kw))\n\
                z = max(view(max(view(y; oh -> 2*ph + sh - 1; fill = -inf); sh); ow -> 2*pw + sw - 1; fill = -inf); sw)\n\
                return f32 [n, co] sum(z; ph, pw)\n";
    let program: Program = text.parse().unwrap_or_else(|e| panic!("{e}"));
    for candidate in offered(&program, 4) {
        for seed in 0..8 {
            let options = TilingOptions { seed, ..CHECK };
            let checked = check_tiling(&program, &candidate.expression, &candidate.tile, &options);
            assert!(checked.is_ok(), "{checked:?}\n{}", candidate.tile);
        }
    }
}

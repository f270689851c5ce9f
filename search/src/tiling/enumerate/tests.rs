//! What is offered for whole programs.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use super::*;
use crate::targets::target;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

/// The programs of the tests.
fn programs() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join("tests/programs");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|f| f.extension().is_some_and(|e| e == "lax"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_program_has_candidates() {
    let h200 = target("h200").unwrap();
    let mut checked = 0;
    // Searches for each of the examples are among the tests of the whole pipeline.
    for file in programs() {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let program = ir::text::parse(&text, &name)
            .map_err(|e| e.to_string())
            .unwrap();
        let start = Instant::now();
        let mut all = candidates(vec![program], &h200, &SearchOptions::default());
        let plainest = all.next().unwrap();
        let first = start.elapsed();
        let rest: Vec<Candidate> = all.by_ref().take(3).collect();
        let best = rest.first().unwrap_or(&plainest);
        eprintln!(
            "{name}: {} kernels {:.1} us after {first:.0?}; {} kernels {:.1} us after {:.1?}; {:?}\n{}",
            plainest.tile.kernels.len(),
            plainest.predicted.us,
            best.tile.kernels.len(),
            best.predicted.us,
            start.elapsed(),
            all.rejected(),
            best.plan_text
        );
        assert!(best.predicted.us.is_finite());
        checked += 1;
    }
    assert!(checked > 40, "{checked} programs");
}

/// Three groups of warps hide special functions behind products as two cannot, at the price of padding: the clock knows it, the roofline does not.
#[test]
fn the_clock_orders_tilings() {
    let h200 = target("h200").unwrap();
    let program = forms("examples/attention_b4h32s4096d64_bf16.lax").swap_remove(0);
    let options = SearchOptions {
        clocked: true,
        ..SearchOptions::default()
    };
    let mut all = candidates(vec![program], &h200, &options);
    let best = all.find(|c| !c.is_plain()).unwrap();
    let rows = best.tile.kernels[0].axes.values().map(|t| t.tile).max();
    assert_eq!(rows, Some(192), "{}", best.plan_text);
}

/// The program of an example, and the forms that the e-graph finds for it.
fn forms(name: &str) -> Vec<Program> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(name);
    let text = std::fs::read_to_string(&file).unwrap();
    let program = ir::text::parse(&text, name)
        .map_err(|e| e.to_string())
        .unwrap();
    let limits = crate::forms::extract::Limits::default();
    let mut all = vec![program.clone()];
    all.extend(
        crate::forms::extract::expressions(&program, &limits, 6)
            .into_iter()
            .map(|e| e.program)
            .filter(|p| *p != program),
    );
    all
}

/// In a running product each level's blocks are read at several places: one kernel for all would read each element hundreds of times, and there is nothing
/// in it that reduces.
#[test]
fn what_several_views_read_is_stored_or_not() {
    let text = "program blocks
axis t = 2048, a = 8, b = 8, c = 8, d = 8
x = parameter f32 [t, (a b c d)]
y = view(x; d -> 0) * view(x; d -> 1) * view(x; d -> 2) * view(x; d -> 3) * view(x; d -> 4) * view(x; d -> 5) * view(x; d -> 6) * view(x; d -> 7)
z = view(y; c -> 0) * view(y; c -> 1) * view(y; c -> 2) * view(y; c -> 3) * view(y; c -> 4) * view(y; c -> 5) * view(y; c -> 6) * view(y; c -> 7)
w = view(z; b -> b - 1; fill = 1) * view(z; b -> b - 2; fill = 1)
v = view(y; c -> c - 1; fill = 1) * view(y; c -> c - 2; fill = 1)
return f32 [t, (a b c d)] w * v * x
";
    let program = ir::text::parse(text, "blocks").unwrap();
    let points = crate::tiling::cuts::points(&program);
    let names = points.iter().map(|n| program.node(*n).name.as_deref());
    assert_eq!(names.collect::<Vec<_>>(), [Some("y"), Some("z")]);
    let h200 = target("h200").unwrap();
    let found = candidates(vec![program], &h200, &SearchOptions::default()).take(12);
    let searched = found.filter(|c| !c.is_plain());
    let kernels: BTreeSet<usize> = searched.map(|c| c.tile.kernels.len()).collect();
    assert!(kernels.len() > 1, "{kernels:?}");
}

fn loops(body: &[ir::Statement]) -> usize {
    body.iter()
        .map(|s| match s {
            ir::Statement::Loop(l) => 1 + loops(&l.body),
            ir::Statement::Let(_) | ir::Statement::Store { .. } => 0,
        })
        .sum()
}

fn bounds(body: &[ir::Statement]) -> usize {
    body.iter()
        .map(|s| match s {
            ir::Statement::Loop(l) => l.low.len() + l.high.len() + bounds(&l.body),
            ir::Statement::Let(_) | ir::Statement::Store { .. } => 0,
        })
        .sum()
}

/// How much is checked of one candidate: the suite's tests of the gate ask for all that the pipeline does.
const CHECKED: verify::TilingOptions = verify::TilingOptions {
    draws: 3,
    seed: 0,
    work: 200_000,
    slice_work: 2_000_000,
    most_slice_work: 20_000_000,
};

/// The first candidates of an example, one of `every` checked against the program by interpretation, and the first that is one kernel.
fn verified(name: &str, count: usize, every: usize) -> Vec<Candidate> {
    let h200 = target("h200").unwrap();
    let all = forms(name);
    let start = Instant::now();
    let found: Vec<Candidate> = candidates(all, &h200, &SearchOptions::default())
        .take(count)
        .collect();
    eprintln!(
        "{name}: {} candidates in {:.1?}",
        found.len(),
        start.elapsed()
    );
    let alone = found.iter().position(|c| c.tile.kernels.len() == 1);
    for (i, c) in found.iter().enumerate() {
        if i % every != 0 && Some(i) != alone {
            continue;
        }
        // The oracle is the expression: one that folds an extent into a constant equals its program at that extent only.
        let verdict = verify::check_tiling(&c.expression, &c.expression, &c.tile, &CHECKED);
        assert!(
            verdict.is_ok(),
            "{name} candidate {i}: {verdict:?}\n{}\n{}\n{}",
            c.expression,
            c.plan_text,
            c.tile
        );
    }
    eprintln!(
        "{:.1} us {}{}",
        found[1].predicted.us,
        found[1].plan_text,
        start.elapsed().as_millis()
    );
    found
}

#[test]
fn attention_becomes_one_kernel_with_a_running_rescale() {
    for name in [
        "examples/attention_b4h32s4096d64_bf16.lax",
        "examples/attention_causal_gqa_b1h32kv8s4096d128_f16.lax",
    ] {
        let found = verified(name, 12, 1);
        let best = &found[1].tile;
        assert_eq!(
            (best.kernels.len(), loops(&best.kernels[0].body)),
            (1, 1),
            "{best}"
        );
        assert!(
            best.buffers
                .iter()
                .all(|b| b.role != ir::BufferRole::Workspace)
        );
        assert_eq!(
            bounds(&best.kernels[0].body),
            usize::from(name.contains("causal")),
            "{best}"
        );
    }
}

#[test]
fn few_query_rows_are_split_over_the_keys() {
    let name = "examples/decode_gqa_b1h32kv8s8192d128_bf16.lax";
    let found = verified(name, 12, 1);
    let split = |c: &Candidate| {
        c.tile.axes.iter().any(|a| a.name.ends_with("_part")) && c.tile.kernels.len() == 2
    };
    assert!(found[1..].iter().any(split), "{}", found[1].plan_text);
}

#[test]
fn normalised_and_gated_programs_become_one_kernel() {
    for name in [
        "rmsnorm_linear_t16",
        "lora_m256",
        "lora_m4096",
        "gated_mlp_prefill",
        "gated_mlp_t8",
        "qknorm_gqa_bs8",
    ] {
        let found = verified(&format!("examples/{name}.lax"), 40, 4);
        assert!(
            found.iter().any(|c| c.tile.kernels.len() == 1),
            "{name}: {}",
            found[1].plan_text
        );
    }
}

#[test]
fn a_refused_kernel_is_replaced_and_nothing_else() {
    let h200 = target("h200").unwrap();
    let program = forms("examples/llama_decode_layer.lax").swap_remove(0);
    let options = SearchOptions {
        max_candidates: 32,
        ..SearchOptions::default()
    };
    let mut all = candidates(vec![program], &h200, &options);
    let first = all.nth(1).unwrap();
    assert!(first.tile.kernels.len() > 4, "{}", first.plan_text);
    // A kernel that is the only one of its cut.
    let alone = |k: &usize| first.origins.iter().filter(|o| *o == k).count() == 1;
    let cut = (0..first.origins.len()).find(alone).unwrap();
    let place = |c: &Candidate| c.origins.iter().position(|o| *o == cut);
    let refused = first.tile.alone(place(&first).unwrap()).to_string();
    let why = Reject::Schedule("there is none".to_owned());
    all.refuse(&first, &[place(&first).unwrap()], &why);
    // It does not count among those that are offered at most, and the plainest does.
    let others: Vec<Candidate> = all.by_ref().collect();
    assert_eq!(others.len(), 31);
    for c in &others {
        let kernels = (0..c.tile.kernels.len()).map(|k| c.tile.alone(k).to_string());
        assert!(kernels.into_iter().all(|k| k != refused), "{}", c.plan_text);
    }
    // What stood beside it is still there, with another tiling of that cut.
    let beside = |c: &Candidate, leave: usize| -> Vec<String> {
        (0..c.tile.kernels.len())
            .filter(|k| c.origins[*k] != leave)
            .map(|k| c.tile.alone(k).to_string())
            // How many parts the other one has is no matter.
            .map(|text| text[text.find("kernel ").unwrap()..].to_owned())
            .collect()
    };
    let wanted = beside(&first, cut);
    assert!(
        others.iter().any(|c| beside(c, cut) == wanted),
        "{}",
        first.plan_text
    );
    let alternatives = all.alternatives(&first, cut);
    let neighbours = all.neighbours(&first, cut);
    assert!(!alternatives.is_empty() && !neighbours.is_empty());
    for other in alternatives.iter().chain(&neighbours) {
        assert_eq!(beside(other, cut), wanted);
    }
}

/// The parameters that a kernel reads.
fn read(tile: &TileProgram, kernel: &ir::Kernel) -> BTreeSet<String> {
    kernel
        .values
        .iter()
        .filter_map(|v| match &v.op {
            ir::TileOp::Load { buffer, .. } => Some(tile.buffer(*buffer)),
            ir::TileOp::Constant(_)
            | ir::TileOp::Iota(_)
            | ir::TileOp::Map(..)
            | ir::TileOp::Reduce { .. }
            | ir::TileOp::Scan { .. }
            | ir::TileOp::Contract { .. }
            | ir::TileOp::Phi { .. }
            | ir::TileOp::Final { .. } => None,
        })
        .filter(|b| matches!(b.role, ir::BufferRole::Parameter(_)))
        .map(|b| b.name.clone())
        .collect()
}

#[test]
fn a_decoder_layer_becomes_few_kernels_that_read_whole_sectors() {
    let h200 = target("h200").unwrap();
    let all = forms("examples/llama_decode_layer.lax");
    let found: Vec<Candidate> = candidates(all, &h200, &SearchOptions::default())
        .take(4)
        .collect();
    let best = &found[1];
    let text = &best.plan_text;
    assert!(best.tile.kernels.len() <= 8, "{text}");
    let reads: Vec<BTreeSet<String>> = best
        .tile
        .kernels
        .iter()
        .map(|k| read(&best.tile, k))
        .collect();
    // What contracts the same value over the same axis shares a kernel.
    for together in [vec!["wg", "wu"], vec!["wq", "wk", "wv"], vec!["kc", "vc"]] {
        let all = |r: &BTreeSet<String>| together.iter().all(|name| r.contains(*name));
        assert!(reads.iter().any(all), "{together:?}: {reads:?}\n{text}");
    }
    // Each weight is read by one kernel, in runs of a sector at least.
    for weight in ["wq", "wk", "wv", "wo", "wg", "wu", "wd"] {
        let count = reads.iter().filter(|r| r.contains(weight)).count();
        assert_eq!(count, 1, "{weight}\n{text}");
    }
    let mut checked = 0;
    for kernel in &best.tile.kernels {
        for v in &kernel.values {
            let ir::TileOp::Load { buffer, .. } = &v.op else {
                continue;
            };
            let buffer = best.tile.buffer(*buffer);
            let elements: u64 = buffer.axes().map(|a| best.tile.extent(a)).product();
            let Some(fastest) = buffer.axes().last().filter(|_| elements >= 1 << 20) else {
                continue;
            };
            let run = kernel.tile(fastest) * buffer.dtype.bytes();
            assert!(run >= 32, "{}: runs of {run} bytes\n{text}", buffer.name);
            checked += 1;
        }
    }
    assert!(checked >= 9, "{checked}");
    let verdict = verify::check_tiling(&best.expression, &best.expression, &best.tile, &CHECKED);
    assert!(verdict.is_ok(), "{verdict:?}\n{text}\n{}", best.tile);
}

#[test]
fn others_are_right_too() {
    for name in [
        "examples/conv2d_relu_pool",
        "examples/softmax_f32",
        "examples/layernorm_f32",
        "examples/expert_mlp",
        "tests/programs/rope",
        "tests/programs/sliding_window",
        "tests/programs/moments",
        "tests/programs/prefix_sum",
        "tests/programs/token_shift",
        "tests/programs/group_norm",
        "tests/programs/softmax_2d",
    ] {
        verified(&format!("{name}.lax"), 6, 1);
    }
}

#[test]
fn a_kernel_that_spills_is_replaced_by_one_with_other_tiles() {
    let h200 = target("h200").unwrap();
    let program = "program three\naxis t = 1024, m = 1024, n = 4096\nx = parameter bf16 [t, m]\n\
        a = parameter bf16 [m, n]\nb = parameter bf16 [m, n]\nu = dot(x, a; m)\nv = dot(x, b; m)\n\
        return bf16 [t, n] silu(u) * v, bf16 [t, n] gelu(u) * v, bf16 [t, n] relu(u) * v\n";
    let program: Program = program.parse().unwrap();
    let mut all = candidates(vec![program], &h200, &SearchOptions::default());
    let first = all.nth(1).unwrap();
    let stored = |c: &Candidate| {
        let kernel = c.tile.kernels.iter().find(|k| k.grid.len() == 2)?;
        Some(
            kernel
                .grid
                .iter()
                .map(|a| kernel.tile(*a))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(first.tile.kernels.len(), 1, "{}", first.plan_text);
    all.refuse(&first, &[0], &Reject::Spills { bytes: 8 });
    let mut others = all.filter(|c| c.tile.kernels.len() == 1);
    let next = others.next().unwrap();
    assert_ne!(stored(&first), stored(&next), "{}", next.plan_text);
}

//! The oracle is `verify`: a tile program must interpret to what the expression evaluates to, in f64 and in the field.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use crate::tiling::assign::{self, Choice};
use crate::tiling::build::{Corrections, Cuts, build, outline};
use crate::tiling::cuts;
use ir::{AxisId, AxisTile, Program, Reject, Role, Statement, TileProgram};
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use verify::evaluate::evaluate;
use verify::interpret::{SimulateOptions, interpret};

const SMALL: Choice = Choice {
    rows: 4,
    columns: 4,
    depth: 4,
    whole: 8,
    keep: 8,
    elements: 16,
    lines: 1,
    across: 1,
    parts: 1,
    block_group: false,
    even: false,
    along: 0,
    picks: false,
};

fn parse(text: &str) -> Program {
    ir::text::parse(text, "test")
        .map_err(|e| e.to_string())
        .unwrap()
}

fn fused(program: &Program) -> Cuts {
    cuts::cut(program, &BTreeSet::new())
}

fn tile(program: &Program, cuts: &Cuts, choice: &Choice) -> Result<TileProgram, Reject> {
    let outline = outline(program, cuts)?;
    let assignments: Vec<_> = outline
        .kernels
        .iter()
        .map(|k| assign::assign(k, &outline.axes, choice))
        .collect();
    build(&outline, &assignments, &mut Corrections::new())
}

/// Interprets on normal-ish inputs and compares with the evaluator.
fn agree(program: &Program, tile: &TileProgram) {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
    let inputs: Vec<Vec<f64>> = program
        .parameters()
        .map(|(_, _, _, dims)| {
            let n: u64 = program.shape(dims).iter().product();
            (0..n).map(|_| rng.random::<f64>() * 4.0 - 2.0).collect()
        })
        .collect();
    agree_on(program, tile, &inputs);
}

fn agree_on(program: &Program, tile: &TileProgram, inputs: &[Vec<f64>]) {
    let wanted = evaluate(program, inputs).unwrap();
    let found = interpret(tile, inputs, SimulateOptions::default()).unwrap();
    assert_eq!(wanted.len(), found.len());
    for (w, f) in wanted.iter().zip(&found) {
        assert_eq!(w.len(), f.len());
        for (i, (x, y)) in w.iter().zip(f).enumerate() {
            let close =
                (x - y).abs() <= 1e-9 * (1.0 + x.abs()) || (x.is_nan() && y.is_nan()) || x == y;
            assert!(close, "element {i}: wanted {x}, found {y}\n{tile:#?}");
        }
    }
}

fn check(text: &str, kernels: usize) -> TileProgram {
    let program = parse(text);
    let plain = tile(&program, &cuts::plain(&program), &SMALL).unwrap();
    agree(&program, &plain);
    let plainest = tile(&program, &cuts::plainest(&program), &SMALL).unwrap();
    agree(&program, &plainest);
    let fused = tile(&program, &fused(&program), &SMALL).unwrap();
    assert_eq!(fused.kernels.len(), kernels);
    agree(&program, &fused);
    fused
}

fn loops(body: &[Statement]) -> usize {
    body.iter()
        .map(|s| match s {
            Statement::Loop(l) => 1 + loops(&l.body),
            Statement::Let(_) | Statement::Store { .. } => 0,
        })
        .sum()
}

const ATTENTION: &str = "program a
axis b = 2, i = 9, j = 13, d = 5, e = 6
q = parameter f16 [b, i, d]
k = parameter f16 [b, j, d]
v = parameter f16 [b, j, e]
s = dot(q, k; d) * 0.5
m = max(s; j)
x = exp(s - m)
return f16 [b, i, e] dot(x, v; j) / sum(x; j)
";

#[test]
fn exponentials_over_a_running_maximum_take_one_loop() {
    let tile = check(ATTENTION, 1);
    assert_eq!(loops(&tile.kernels[0].body), 1, "{tile:#?}");
}

/// Ties and infinities among them, which a running maximum meets in every order.
#[test]
fn the_place_of_a_maximum_takes_one_loop() {
    let text = "program a\naxis i = 40, j = 37\nx = parameter f32 [i, j]\nm = max(x; j)\n\
        return f32 [i] min(select(-relu(m - x), iota(j), size(j)); j) + 100 * sum(select(-relu(m - x), 1, 0); j)\n";
    let program = parse(text);
    let tiles = [
        check(text, 1),
        divided(text, 2, true).unwrap(),
        divided(text, 2, false).unwrap(),
    ];
    assert_eq!(loops(&tiles[0].kernels[0].body), 1, "{tiles:#?}");
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(4);
    for most in [1, 3, 5] {
        let some = [f64::NEG_INFINITY, 1.0, f64::INFINITY, 0.0, -1.0];
        let x = (0..1480).map(|_| some[rng.random_range(0..most)]).collect();
        for tile in &tiles {
            agree_on(&program, tile, std::slice::from_ref(&x));
        }
    }
}

/// Exponentials see a finite value in the place of an infinite maximum, the place of a maximum sees it as it is.
#[test]
fn a_maximum_is_seen_in_one_way() {
    let text = "program a\naxis i = 5, j = 40\nx = parameter f32 [i, j]\nm = max(x; j)\n\
        return f32 [i] min(select(-relu(m - x), iota(j), size(j)); j) + sum(exp(x - m); j)\n";
    let tile = check(text, 1);
    assert_eq!(loops(&tile.kernels[0].body), 2, "{tile:#?}");
}

#[test]
fn a_split_combines() {
    let program = parse(ATTENTION);
    let choice = Choice { parts: 2, ..SMALL };
    let tile = tile(&program, &fused(&program), &choice).unwrap();
    assert_eq!(tile.kernels.len(), 2);
    agree(&program, &tile);
}

/// Weights and weighted sums of the parts are combined at one meeting, and what they are relative to at one before.
#[test]
fn parts_of_attention_are_combined_at_two_meetings() {
    let tile = divided(ATTENTION, 2, true).unwrap();
    let barriers = tile.kernels[0].grid_barriers();
    let counts: Vec<usize> = barriers.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 2], "{tile}");
}

fn divided(text: &str, parts: u64, block_group: bool) -> Result<TileProgram, Reject> {
    let program = parse(text);
    let choice = Choice {
        parts,
        block_group,
        ..SMALL
    };
    let tile = tile(&program, &fused(&program), &choice)?;
    assert_eq!(
        tile.kernels.len(),
        if block_group { 1 } else { 2 },
        "{tile}"
    );
    agree(&program, &tile);
    Ok(tile)
}

#[test]
fn nested_loops_are_divided_from_the_outside() {
    let text = "program a\naxis t = 3, a = 6, b = 7, c = 20\nx = parameter f32 [t, a, b, c]\n\
                y = parameter f32 [t, a, b, c]\n\
                return f32 [] sum((x - y) * (x - y); t, a, b, c) + max(x * y; t, a, b, c)\n";
    for block_group in [false, true] {
        for (parts, expected) in [
            (2, vec![("t_part", 2)]),
            (3, vec![("t_part", 3)]),
            (36, vec![("t_part", 3), ("a_part", 6), ("b_part", 2)]),
        ] {
            let tile = divided(text, parts, block_group).unwrap();
            let added = tile.axes[4..].iter();
            let added: Vec<(&str, u64)> = added.map(|a| (a.name.as_str(), a.extent)).collect();
            assert_eq!(added, expected, "{tile}");
        }
        assert!(divided(text, 10_000, block_group).is_err());
    }
}

#[test]
fn what_else_reduces_over_an_axis_is_not_divided() {
    let text = "program a\naxis a = 6, b = 40\nx = parameter f32 [a, b]\n\
                return f32 [] sum(x * sum(x; b); a, b)";
    let tile = divided(text, 6, false).unwrap();
    assert_eq!(tile.axes[2].name, "a_part");
    // So many parts would take both.
    assert!(divided(text, 12, false).is_err());
}

#[test]
fn plain_programs() {
    check(
        "program a\naxis i = 7, k = 11, n = 5\nx = parameter f32 [i, k]\nw = parameter f32 [k, n]\nreturn f32 [i, n] dot(rms_norm(x; k, 1e-5), w; k)\n",
        1,
    );
    check(
        "program a\naxis i = 7, j = 50\nx = parameter f32 [i, j]\nreturn f32 [i, j] softmax(x; j)\n",
        1,
    );
    check(
        "program a\naxis i = 7\nx = parameter f32 [i]\nreturn f32 [i] view(x; i -> 6 - i) + x\n",
        1,
    );
    check(
        "program a\naxis i = 5, h = 9, o = 4, k = 3\nx = parameter f32 [i, h]\nf = parameter f32 [k]\nreturn f32 [i, o] max(view(dot(view(x; h -> h + k - 1; fill = 0), f; k); h -> 2*o + k; fill = -inf); k)\n",
        1,
    );
}

#[test]
fn a_row_longer_than_a_tile() {
    let program = parse(
        "program a\naxis i = 3, j = 50\nx = parameter f32 [i, j]\nreturn f32 [i, j] softmax(x; j)\n",
    );
    let cuts = fused(&program);
    let outline = outline(&program, &cuts).unwrap();
    let mut assignment = assign::assign(&outline.kernels[0], &outline.axes, &SMALL);
    let j = program.axes.iter().position(|a| a.name == "j").unwrap();
    assignment.axes.insert(
        ir::AxisId(j as u32),
        AxisTile {
            role: Role::Loop,
            tile: 8,
        },
    );
    let tile = build(&outline, &[assignment], &mut Corrections::new()).unwrap();
    assert_eq!(loops(&tile.kernels[0].body), 2, "{tile:#?}");
    agree(&program, &tile);
}

/// Attention under a mask of `i` and `j`, its loop bounds checked and interpreted.
fn masked(mask: &str, low: usize, high: usize) -> TileProgram {
    let text = format!(
        "program a\naxis b = 2, i = 21, j = 23, d = 5, e = 6\nq = parameter f16 [b, i, d]\nk = parameter f16 [b, j, d]\n\
         v = parameter f16 [b, j, e]\nx = dot(q, k; d) * 0.5\ns = {mask}\nm = max(s; j)\np = exp(s - m)\n\
         return f16 [b, i, e] dot(p, v; j) / sum(p; j)\n"
    );
    let tile = check(&text, 1);
    let found = tile.kernels[0].body.iter().find_map(|s| match s {
        Statement::Loop(l) => Some((l.low.len(), l.high.len())),
        Statement::Let(_) | Statement::Store { .. } => None,
    });
    assert_eq!(found, Some((low, high)), "{mask}\n{tile:#?}");
    tile
}

#[test]
fn masks_bound_the_loop() {
    masked("causal(x; i, j)", 0, 1);
    // A window: two predicates, two bounds.
    masked(
        "select(iota(i) - iota(j), select(iota(j) - iota(i) + 6, x, -inf), -inf)",
        1,
        1,
    );
    // The other way round: where the condition holds, nothing is added.
    masked("select(iota(j) - 2 * iota(i) - 3, -inf, x)", 0, 1);
    masked("select(3 * iota(j) - iota(i), x, -inf)", 1, 0);
    // Not a mask: both branches count.
    masked("select(iota(i) - iota(j), x, x + 1)", 0, 0);
    // No coordinates of the loop.
    masked("select(iota(i) - 3, x, 0)", 0, 0);
}

#[test]
fn a_bound_skips_tiles() {
    let tile = masked("causal(x; i, j)", 0, 1);
    let all = crate::cost::cost(&check(ATTENTION, 1), None, &crate::targets::targets()[0]);
    assert!(all.us > 0.0);
    let Some(Statement::Loop(l)) = tile.kernels[0]
        .body
        .iter()
        .find(|s| matches!(s, Statement::Loop(_)))
    else {
        panic!("a loop");
    };
    // j < i_last + (23 - 21) + 1
    assert_eq!(l.high[0].offset, 3);
    assert_eq!(l.high[0].divisor, 1);
}

/// Probabilities instead of weights: the running sum divides, and is 0 where the first tiles are masked.
#[test]
fn a_running_sum_may_divide() {
    let text = ATTENTION
        .replace("dot(x, v; j) / sum(x; j)", "dot(x / sum(x; j), v; j)")
        .replace(
            "s = dot(q, k; d) * 0.5",
            "s = select(iota(j) - 2 * iota(i) + 12, dot(q, k; d), -inf)",
        );
    // The last rows see no key at all before the third tile; every row sees some.
    let program = parse(&text.replace("- 2 * iota(i) + 12", "- iota(i) - 2"));
    for parts in [1, 2] {
        let choice = Choice { parts, ..SMALL };
        let tile = tile(&program, &fused(&program), &choice).unwrap();
        assert_eq!(loops(&tile.kernels[0].body), 1, "{tile}");
        agree(&program, &tile);
    }
}

/// Of the results of a product that are summed a tile has as many less of the others, or no block could hold it.
#[test]
fn what_is_summed_of_the_rows_of_a_product_is_part_of_them() {
    let text = "program a\naxis c = 4, t = 34, w = 128, e = 8, k = 3, o = 32\nx = parameter f32 [c, t, w]\nf = parameter f32 [c, e, k]\n\
        return f32 [e, w] sum(dot(view(x; t -> o + k), f; c, k); o)\n";
    let program = parse(text);
    let choice = Choice { rows: 64, ..SMALL };
    let tile = tile(&program, &fused(&program), &choice).unwrap();
    let of = |name: &str| {
        let at = tile.axes.iter().position(|a| a.name == name).unwrap();
        tile.kernels[0].tile(ir::AxisId(at as u32))
    };
    assert_eq!([of("o"), of("w")], [32, 2], "{tile}");
    agree(&program, &tile);
}

/// As many tiles, and less of them beyond the extent.
#[test]
fn sides_are_as_short_as_they_are_long_enough() {
    let text = "program a\naxis i = 260, j = 512, k = 64\nx = parameter f32 [i, k]\ny = parameter f32 [j, k]\nreturn f32 [i, j] dot(x, y; k)\n";
    let program = parse(text);
    let cut = outline(&program, &fused(&program)).unwrap();
    let evened = |rows: u64, columns: u64| -> Vec<(u64, u64)> {
        let choice = Choice {
            rows,
            columns,
            ..SMALL
        };
        let found = assign::evened(&cut.kernels[0], &cut.axes, &choice);
        found.iter().map(|c| (c.rows, c.columns)).collect()
    };
    // Which of the two is rows is the outline's.
    let mut of_both = evened(128, 128);
    of_both.sort_unstable();
    assert!(
        matches!(of_both[..], [(96, 128)] | [(128, 96)]),
        "{of_both:?}"
    );
    assert!(evened(256, 256).contains(&(144, 256)) || evened(256, 256).contains(&(256, 144)));
    assert_eq!(evened(32, 32), []);
}

/// Of 17 by 17 places a tile has four, and those of as many pictures as there is room for; where powers of two divide the places nothing is gained.
#[test]
fn sides_of_several_axes_may_leave_little_over() {
    let of = |places: u64| {
        let text = format!(
            "program a\naxis n = 64, h = {0}, w = {0}, c = 16, k = 3, o = 32\nx = parameter f32 [n, c, h, w]\nf = parameter f32 [o, c, k]\n\
             return f32 [n, o, h, w] dot(view(x; w -> w + k - 1; fill = 0), f; c, k)\n",
            places
        );
        parse(&text)
    };
    let choice = Choice {
        rows: 64,
        columns: 64,
        ..SMALL
    };
    let even = |program: &ir::Program| {
        let cut = outline(program, &fused(program)).unwrap();
        let found = assign::evened(&cut.kernels[0], &cut.axes, &choice);
        found.into_iter().find(|c| c.even)
    };
    let program = of(17);
    let tile = tile(
        &program,
        &fused(&program),
        &even(&program).expect("an even one"),
    )
    .unwrap();
    let side = |name: &str| {
        let at = tile.axes.iter().position(|a| a.name == name).unwrap();
        tile.kernels[0].tile(ir::AxisId(at as u32))
    };
    assert_eq!([side("n"), side("h"), side("w")], [16, 1, 4], "{tile}");
    agree(&program, &tile);
    assert_eq!(even(&of(16)), None);
}

/// Axes that lie side by side in all that a kernel touches are one, whose tiles end anywhere; others are not, nor those whose tiles leave nothing over.
#[test]
fn axes_that_lie_side_by_side_are_one() {
    let collapsed = |text: &str| -> (TileProgram, Vec<String>) {
        let program = parse(&format!("program a\n{text}\n"));
        let choice = Choice {
            rows: 4,
            columns: 4,
            depth: 4,
            ..SMALL
        };
        let tile = tile(&program, &fused(&program), &choice).unwrap();
        agree(&program, &tile);
        let axes = tile.kernels[0].axes.keys();
        let axes = axes.filter(|a| tile.collapsed.contains_key(a));
        let names = axes.map(|a| tile.axes[a.index()].name.clone()).collect();
        (tile, names)
    };
    let axes = "axis b = 3, t = 5, g = 2, c = 3, n = 4";
    let x = "x = parameter f32 [b, t, (g c)]";
    let product =
        format!("{axes}\n{x}\nw = parameter f32 [n, (g c)]\nreturn f32 [b, t, n] dot(x, w; g, c)");
    let (tile, names) = collapsed(&product);
    assert_eq!(names, ["b_t", "g_c"], "{tile}");
    let rows = tile.axes.iter().position(|a| a.name == "b_t").unwrap();
    assert_eq!(tile.kernels[0].tile(ir::AxisId(rows as u32)), 4, "{tile}");
    // Side by side everywhere but in the result.
    let (tile, names) = collapsed(&product.replace("return f32 [b, t, n]", "return f32 [t, b, n]"));
    assert_eq!(names, ["g_c"], "{tile}");
    // What lacks one of them, or asks for the coordinate of one.
    let biased = product.replace(
        "return",
        "s = parameter f32 [t]
return",
    );
    for text in [
        biased.replace("dot(x, w; g, c)", "dot(x, w; g, c) + s"),
        product.replace("dot(x, w; g, c)", "dot(x, w; g, c) + iota(t)"),
    ] {
        let (tile, names) = collapsed(&text);
        assert_eq!(names, ["g_c"], "{tile}");
    }
    // Longest tiles of the fastest one leave nothing over.
    let whole = product
        .replace("t = 5", "t = 256")
        .replace("b = 3", "b = 2");
    let (tile, names) = collapsed(&whole);
    assert_eq!(names, ["g_c"], "{tile}");
    // What is reduced depends on what is reduced over the same axes.
    let attention = "axis b = 2, i = 3, j = 5, d = 3, e = 4\nq = parameter f32 [b, i, d]\nk = parameter f32 [j, d]\nv = parameter f32 [j, e]\n\
                     return f32 [b, i, e] dot(softmax(dot(q, k; d); j), v; j)";
    let (tile, names) = collapsed(attention);
    assert_eq!(names, Vec::<String>::new(), "{tile}");
}

/// What is stored between kernels keeps axes together that lie side by side in all tensors: another kernel has them as one.
#[test]
fn axes_that_lie_side_by_side_stay_together() {
    let text = "program a\naxis b = 3, t = 5, h = 2, d = 3, n = 4, m = 6\nx = parameter f32 [b, t, n]\nw = parameter f32 [(h d), n]\n\
                o = parameter f32 [m, (h d)]\nreturn f32 [b, t, m] dot(relu(dot(x, w; n)), o; h, d)\n";
    let program = parse(text);
    let cut = cuts::plain(&program);
    let tile = tile(&program, &cut, &SMALL).unwrap();
    let workspace = tile.buffers.last().unwrap();
    let names: Vec<&str> = workspace
        .axes()
        .map(|a| tile.axes[a.index()].name.as_str())
        .collect();
    assert_eq!(names, ["b", "t", "h", "d"], "{tile}");
    let along: Vec<&str> = (tile.kernels.iter().flat_map(|k| k.axes.keys()))
        .filter(|a| tile.collapsed.contains_key(a))
        .map(|a| tile.axes[a.index()].name.as_str())
        .collect();
    assert_eq!(along, ["b_t", "h_d", "b_t", "h_d"], "{tile}");
    agree(&program, &tile);
}

/// Sums, maxima and products up to a coordinate or before it, of what a block holds and of what it reduces first, stored and reduced again: one loop keeps them
/// and reads everything once.
#[test]
fn running_values_are_kept_by_a_loop() {
    let axes =
        "program p\naxis i = 6, b = 7, l = 7, u = 3, v = 3, w = 3\nx = parameter f32 [i, l, v]\n";
    for (body, loads) in [
        (
            "return f32 [i, b, u] sum(select(iota(b) - iota(l) - 1, sum(x; v), 0); l) + dot(view(x; l -> b), select(iota(u) - iota(v), 1, 0); v)",
            1,
        ),
        (
            "return f32 [i, b] sum(select(iota(b) - iota(l), sum(x; v), 0); l)",
            1,
        ),
        (
            "return f32 [b, i] max(select(iota(b) - iota(l), max(x * x; v), -inf); l)",
            1,
        ),
        (
            "return f32 [i, b, w] exp(sum(select(-1 - iota(l) + iota(b), x, 0); l, v)) * view(x; l -> b, v -> w)",
            2,
        ),
        (
            "return f32 [i, b] prod(select(iota(b) - iota(l) - 1, prod(x; v), 1); l) * prod(view(x; l -> b); v)",
            1,
        ),
        (
            "return f32 [b, i] prod(select(iota(b) - iota(l), prod(x; v), 1); l)",
            1,
        ),
        // The shorter triangle, within a block, stays a reduction.
        (
            "return f32 [i, b, u] prod(select(iota(b) - iota(l) - 1, prod(x; v), 1); l) * prod(select(iota(u) - iota(v), view(x; l -> b), 1); v)",
            1,
        ),
        // Reduced again, over the axis that the loop runs along.
        (
            "return f32 [i] max(sum(select(iota(b) - iota(l), sum(x; v), 0); l) * 0.5; b)",
            1,
        ),
        // Where nothing is reduced again there is still something to keep.
        (
            "return f32 [i] sum(select(iota(b) - 4, sum(select(iota(b) - iota(l) - 1, sum(x; v), 0); l), 0); b)",
            1,
        ),
    ] {
        let program = parse(&format!("{axes}{body}\n"));
        // Without it nothing is kept.
        let plain = tile(&program, &fused(&program), &SMALL).unwrap();
        agree(&program, &plain);
        for along in [1, 3] {
            let kept = Choice { along, ..SMALL };
            let found = tile(&program, &fused(&program), &kept).unwrap();
            agree(&program, &found);
            let [kernel] = &found.kernels[..] else {
                panic!("{found}")
            };
            let loops = |body: &[Statement]| {
                body.iter()
                    .filter(|s| matches!(s, Statement::Loop(_)))
                    .count()
            };
            assert_eq!(loops(&kernel.body), 1, "{found}");
            let read = kernel
                .values
                .iter()
                .filter(|v| matches!(v.op, ir::TileOp::Load { .. }));
            assert_eq!(read.count(), loads, "{found}");
            ir::tile_check::validate(&found).unwrap();
            assert_ne!(found, plain);
            let scans = |v: &ir::Value| v.op.scan_axis().is_some();
            assert_eq!(kernel.values.iter().any(scans), along > 1, "{found}");
        }
    }
    // Other directions, other starts, and what is no sum where the condition does not hold.
    for body in [
        "return f32 [i, b] sum(select(iota(l) - iota(b), sum(x; v), 0); l)",
        "return f32 [i, b] sum(select(iota(b) - iota(l) + 1, sum(x; v), 0); l)",
        "return f32 [i, b] sum(select(iota(b) - 2 * iota(l), sum(x; v), 0); l)",
        "return f32 [i, b] sum(select(iota(b) - iota(l), sum(x; v), 1); l)",
        "return f32 [i, b] sum(select(iota(b) - iota(l), sum(x; v) * iota(b), 0); l)",
        // The same at each coordinate: how many there are is no sum along the axis.
        "return f32 [b, i] sum(select(iota(b) - iota(l), 1, 0); l) + sum(x; l, v)",
        "return f32 [i, b] sum(select(iota(b) - iota(l), sum(x; l, v), 0); l)",
    ] {
        let program = parse(&format!("{axes}{body}\n"));
        let outline = outline(&program, &fused(&program)).unwrap();
        assert!(outline.kernels[0].along().is_none(), "{body}");
    }
}

/// Of eight tables each block reads one, the one that a kernel before chose for its row.
#[test]
fn a_computed_place_bounds_a_loop() {
    let program = parse(
        "program chosen
axis b = 4, n = 8, a = 8, k = 24, m = 40
p = parameter f32 [b, n]
w = parameter f32 [a, k, m]
x = parameter f32 [b, m]
place = min(select(p - max(p; n), iota(n), 8); n)
return f32 [b, k] sum(select(-abs(iota(a) - place), w, 0) * x; a, m)",
    );
    let places = super::places(&program);
    assert_eq!(places.len(), 1);
    assert!(cuts::points(&program).iter().any(|n| places.contains(n)));
    let cuts = cuts::cut(&program, &places);
    let outline = outline(&program, &cuts).unwrap();
    let picking = outline.kernels.last().unwrap();
    let [b, a] = [0, 2].map(AxisId);
    let by = picking.picked();
    assert_eq!(by.keys().copied().collect::<Vec<_>>(), [a]);
    assert!(by[&a].contains(b) && by[&a].len() == 1);
    let choice = Choice {
        picks: true,
        ..SMALL
    };
    let made = tile(&program, &cuts, &choice).unwrap();
    agree(&program, &made);
    let kernel = made.kernels.last().unwrap();
    assert_eq!(kernel.entries().len(), 1, "{made}");
    assert_eq!((kernel.tile(a), kernel.tile(b)), (1, 1));
}

/// Neither a parameter nor a result has the axis along which a product repeats: it is slower than what that sums over.
#[test]
fn what_products_sum_over_lies_together() {
    let program = parse(
        "program pair
axis b = 4, g = 2, k = 24, m = 40
x = parameter f32 [b, k]
w = parameter f32 [m, k]
h = x * (1 + iota(g))
return f32 [b, m] sum(dot(h, w * (2 + iota(g)); k); g)",
    );
    let named = |name: &str| {
        let all = (0u32..).map(ir::NodeId).zip(&program.nodes);
        let found = all.filter(|(_, n)| n.name.as_deref() == Some(name));
        found.map(|(id, _)| id).next().unwrap()
    };
    let order = super::memory_order(&program, named("h")).into_iter();
    let order: Vec<&str> = order.map(|dim| program.axis_name(dim.0[0])).collect();
    assert_eq!(order, ["g", "b", "k"]);
}

//! Faults that a gate let pass that drew small shapes alone: what they change lies far from the start.
//!
//! Oracle: each edit makes a right tile program wrong by what it says, at elements that were counted by hand.

use crate::kinds::program;
use crate::offered;
use ir::{Program, TileProgram};
use rayon::prelude::*;
use verify::{TilingOptions, check_tiling};

#[rustfmt::skip]
const BLOCK: &str = // a decode block: row i sees the columns up to i + 3072
    "axis b = 4, h = 8, g = 4, i = 1024, j = 4096, d = 128, e = 128\n\
     q = parameter bf16 [b, h, g, i, d]\nk = parameter bf16 [b, h, j, d]\nv = parameter bf16 [b, h, j, e]\n\
     return bf16 [b, h, g, i, e] dot(softmax(causal(dot(q, k; d) * 0.08838834764831845; i, j); j), v; j)";
#[rustfmt::skip]
const SHORT_BLOCK: &str = // the same, up to i + 1536
    "axis h = 8, i = 512, j = 2048, d = 64, e = 64\n\
     q = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
     return bf16 [h, i, e] dot(softmax(causal(dot(q, k; d) * 0.125; i, j); j), v; j)";
#[rustfmt::skip]
const WINDOW: &str = // row i sees the columns from i - 255 to i
    "axis h = 8, i = 2048, j = 2048, d = 64, e = 64\n\
     q = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
     s = select(iota(i) - iota(j), select(iota(j) - iota(i) + 255, dot(q, k; d) * 0.125, -inf), -inf)\n\
     return bf16 [h, i, e] dot(softmax(s; j), v; j)";
#[rustfmt::skip]
const DECODE: &str =
    "axis h = 8, g = 4, j = 8192, d = 64, e = 64\n\
     q = parameter bf16 [h, g, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
     return bf16 [h, g, e] dot(softmax(dot(q, k; d) * 0.125; j), v; j)";
const PRODUCT: &str = "axis i = 512, j = 512, k = 20000\nx = parameter bf16 [i, k]\ny = parameter bf16 [k, j]\n\
     return bf16 [i, j] dot(x, y; k)";
const SQUARE: &str = "axis i = 4096, j = 4096, k = 4096\nx = parameter bf16 [i, k]\ny = parameter bf16 [k, j]\n\
     return bf16 [i, j] dot(x, y; k)";

/// What a text of a tile program is changed to; the same where it has no place for it.
type Edit = fn(&str) -> String;

/// The load of `x`, zero from column 4000 on.
fn cut_off(text: &str) -> String {
    let load = text.lines().find(|l| l.ends_with("= load x[i, k]"));
    let Some((load, name)) = load.and_then(|l| Some((l, l.trim().split(' ').next()?))) else {
        return text.to_owned();
    };
    let own = format!(
        "    zx = load x[i, k]\n    zk = iota(k)\n    zn = -1\n    zm = mul(zk, zn)\n    zc = 3999\n    zd = add(zm, zc)\n    zz = 0\n    \
         {name} = select(zd, zx, zz)"
    );
    text.replace(load, &own).replace(
        &format!(" {name}, "),
        &format!(" zx, zk, zn, zm, zc, zd, zz, {name}, "),
    )
}

/// Where tiles are so long that an early end lies in the right one, nothing is wrong.
fn in_small_tiles(text: &str, from: &str, to: &str) -> String {
    match text.contains("loop(j: 1024)") {
        true => text.to_owned(),
        false => text.replace(from, to),
    }
}

#[rustfmt::skip]
const CASES: &[(&str, &str, Edit)] = &[
    ("neither mask nor bound", BLOCK, |t| t.replace(" to last(i) + 3073", "").replace("= 4096\n", "= 90000\n")),
    ("no mask", BLOCK, |t| t.replace("= 4096\n", "= 90000\n")),
    ("one column fewer", SHORT_BLOCK, |t| t.replace("= 2048\n", "= 2047\n")),
    ("a mask from 700 on", SHORT_BLOCK, |t| t.replace("= 2048\n", "= 1212\n")),
    ("a bound a tile early", SHORT_BLOCK, |t| in_small_tiles(t, "last(i) + 1537", "last(i) + 1409")),
    ("a bound many tiles early", SHORT_BLOCK, |t| t.replace("last(i) + 1537", "last(i) + 512")),
    ("a bound that no row moves", SHORT_BLOCK, |t| in_small_tiles(t, "to last(i) + 1537", "to 1537")),
    ("without the last 32 of 20000", PRODUCT, |t| t.replace("loop k {", "loop k to 19968 {")),
    ("parts that end early", PRODUCT, |t| t.replace("to 1280*first(k_part)", "to 1260*first(k_part)")),
    ("parts that begin late", PRODUCT, |t| t.replace("from 1280*first(k_part)", "from 1300*first(k_part)")),
    ("parts of a block group that end early", PRODUCT, |t| t.replace("to 2560*first(k_part)", "to 2500*first(k_part)")),
    ("an operand that is zero from 4000 on", SQUARE, cut_off),
    ("5000 of 8192 columns", DECODE, |t| t.replace("loop j {", "loop j to 5000 {")),
    ("7680 of 8192 columns", DECODE, |t| t.replace("loop j {", "loop j to 7680 {")),
    ("parts that end at 63 for 64", DECODE, |t| t.replace("to 64*first(j_part)", "to 63*first(j_part)")),
    ("parts that begin at 65 for 64", DECODE, |t| t.replace("from 64*first(j_part)", "from 65*first(j_part)")),
    ("a window that ends early", WINDOW, |t| t.replace("to last(i) + 1 ", "to last(i) - 255 ")),
    ("a window of 200 columns", WINDOW, |t| t.replace("= 255\n", "= 199\n")),
];

const SEEDS: u64 = 2;
/// Tile programs among which there is one for each edit.
const STRUCTURES: usize = 6;
const LOOKED_AT: usize = 40;

#[test]
fn what_changes_far_from_the_start_is_refused_with_every_seed() {
    let target = search::targets::target("h200").expect("a known target");
    let texts: std::collections::BTreeSet<&str> = CASES.iter().map(|c| c.1).collect();
    let all: Vec<(&str, Program, Vec<TileProgram>)> = texts
        .into_par_iter()
        .map(|text| {
            let program = program("case", text);
            let found = offered::as_written(&program, &target).take(LOOKED_AT);
            let tiles = offered::different(found, STRUCTURES);
            (text, program, tiles)
        })
        .collect();
    let counts: Vec<usize> = CASES
        .par_iter()
        .map(|(what, text, edit)| {
            let (_, program, tiles) = all.iter().find(|c| c.0 == *text).expect("its program");
            let mut edited = 0;
            for tile in tiles {
                let text = tile.to_string();
                let wrong = edit(&text);
                if wrong == text {
                    continue;
                }
                edited += 1;
                let wrong: TileProgram = wrong.parse().unwrap_or_else(|e| panic!("{what}: {e}"));
                for seed in 0..SEEDS {
                    let options = TilingOptions {
                        seed,
                        ..TilingOptions::default()
                    };
                    let judged = check_tiling(program, program, &wrong, &options);
                    assert!(
                        matches!(judged, Err(ir::Reject::Wrong(_) | ir::Reject::Fragile(_))),
                        "{what}, seed {seed}: {judged:?}\n{wrong}"
                    );
                }
            }
            assert!(edited > 0, "{what}: no tile program has a place for it");
            edited
        })
        .collect();
    eprintln!(
        "{} wrong tile programs of {} kinds, each refused with {SEEDS} seeds",
        counts.iter().sum::<usize>(),
        CASES.len()
    );
}

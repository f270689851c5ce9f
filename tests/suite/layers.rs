//! Whole layers and other large examples at small extents: the program, its tile programs interpreted, and the generated
//! CUDA agree. Oracle: `ir::eval`, and the rule of `verify::tolerance`.

use crate::emulator;
use crate::kernels::Case;
use crate::offered::{all_forms, different, example_text};
use ir::{AxisId, Program, Schedule, Target, TileProgram};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Examples, their extents here, and whether they are searched at these too, in f32.
#[rustfmt::skip]
const EXAMPLES: &[(&str, &str, bool)] = &[
    // Each one way: the layers alone take half of the time.
    ("llama_decode_layer",  "h = 2, g = 2, t = 2, c = 8, j = 70, a = 48, o = 48, n = 80", false),
    ("llama_prefill_layer", "s = 37, j = 37, h = 2, g = 2, t = 2, c = 8, a = 48, o = 48, n = 80", true),
    ("linear_attention",    "b = 2, h = 2, i = 37, j = 70, d = 16, e = 16", true),
    ("cross_entropy",       "t = 21, m = 48, n = 203", false),
    ("gated_mlp_prefill",   "t = 37, m = 48, n = 80", true),
];

/// Candidates of different structure that run.
const STRUCTURES: usize = 2;

fn parse(name: &str, change: impl Fn(&str) -> String) -> Program {
    let text = example_text(name);
    let lines: Vec<String> = text.lines().map(change).collect();
    ir::text::parse(&(lines.join("\n") + "\n"), name).unwrap_or_else(|e| panic!("{e}"))
}

/// An example in f32 as the search sees it at small extents, or in its own dtypes with the candidates for its true
/// extents made small: constants keep their values there, as in the interpreted check.
fn case(name: &str, extents: &str, small: bool, target: &Target) -> (Arc<Case>, Vec<TileProgram>) {
    let axes = |line: &str| {
        if line.starts_with("axis ") {
            format!("axis {extents}")
        } else {
            line.to_owned()
        }
    };
    let single = parse(name, |line| {
        axes(line).replace("bf16", "f32").replace("f16", "f32")
    });
    if small {
        let offered = different(all_forms(&single, target), STRUCTURES);
        return (Arc::new(Case::new(single)), offered);
    }
    let whole = parse(name, str::to_owned);
    let small: BTreeMap<AxisId, u64> = (0..)
        .map(AxisId)
        .zip(single.axes.iter().map(|a| a.extent))
        .collect();
    let resized = different(all_forms(&whole, target), STRUCTURES)
        .iter()
        .map(|tile| tile.resized(&small, |_, _| None).unwrap())
        .collect();
    let own = whole.resized(&small).unwrap();
    (Arc::new(Case::new(own)), resized)
}

#[test]
fn every_stage_computes_the_large_examples() {
    let target = search::targets::target("h200").unwrap();
    let runs = emulator::available();
    let work: Vec<(&str, Arc<Case>, TileProgram)> = EXAMPLES
        .par_iter()
        .flat_map_iter(|(name, extents, small)| {
            let (case, tiles) = case(name, extents, *small, &target);
            tiles.into_iter().map(move |t| (*name, case.clone(), t))
        })
        .collect();
    let faults: Vec<String> = work
        .par_iter()
        .filter_map(|(name, case, tile)| {
            let schedules = search::schedules::schedules(tile, &target);
            // What does not fit in shared memory is passed over, as in the search.
            let fits = |s: &&Schedule| codegen::lower(tile, s, &target).is_ok();
            let schedule = schedules.iter().find(fits).unwrap_or(&schedules[0]);
            let fault = case
                .interpreted(tile)
                .or_else(|| runs.then(|| case.fault(tile, schedule, &target)).flatten());
            fault.map(|fault| format!("{name}: {fault}\n{schedule:?}\n{tile}"))
        })
        .collect();
    assert!(
        faults.is_empty(),
        "{} of {} are wrong:\n{}",
        faults.len(),
        work.len(),
        faults.join("\n")
    );
    assert_eq!(work.len(), STRUCTURES * EXAMPLES.len());
}

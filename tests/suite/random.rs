//! Random programs through the search: their candidates compute what the programs do.

use rayon::prelude::*;
use search::enumerate::{SearchOptions, candidates};
use verify::{TilingOptions, check_tiling};

const PROGRAMS: u64 = 160;
/// The plainest candidate, and the next ones.
const CANDIDATES: usize = 3;

#[test]
fn candidates_of_random_programs_are_right() {
    let target = search::targets::target("h200").expect("a known target");
    let options = TilingOptions {
        draws: 3,
        seed: 1,
        work: 60_000,
    };
    let judged: Vec<(usize, Vec<String>)> = (0..PROGRAMS)
        .into_par_iter()
        .map(|seed| {
            let program = ir::testing::random_program(seed, 3 + seed as usize % 12);
            let found: Vec<_> =
                candidates(vec![program.clone()], &target, &SearchOptions::default())
                    .take(CANDIDATES)
                    .collect();
            let mut faults = Vec::new();
            if found.is_empty() {
                faults.push(format!("{seed}: no candidate\n{program}"));
            }
            for c in &found {
                if let Err(reject) = check_tiling(&program, &c.expression, &c.tile, &options) {
                    faults.push(format!(
                        "{seed}: {reject}\n{program}\n{}\n{}",
                        c.plan_text, c.tile
                    ));
                }
            }
            (found.len(), faults)
        })
        .collect();
    let faults: Vec<&String> = judged.iter().flat_map(|j| &j.1).collect();
    for fault in faults.iter().take(3) {
        eprintln!("{fault}\n");
    }
    assert!(faults.is_empty(), "{} candidates are wrong", faults.len());
    let checked: usize = judged.iter().map(|j| j.0).sum();
    assert!(checked > PROGRAMS as usize, "only {checked} candidates");
}

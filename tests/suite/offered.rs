//! The benchmark programs, and what the search offers for a program.

use crate::structure;
use ir::{Program, Target, TileProgram};
use search::forms::extract::{Limits, judged};
use search::tiling::enumerate::{Candidate, Candidates, SearchOptions, candidates};
use std::collections::BTreeSet;
use verify::Keeper;

/// The text of a benchmark program.
pub(crate) fn example_text(name: &str) -> String {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name)
        .with_extension("lax");
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// A benchmark program.
pub(crate) fn example(name: &str) -> Program {
    ir::text::parse(&example_text(name), name).unwrap_or_else(|e| panic!("{e}"))
}

/// The candidates of the program as it is written.
pub(crate) fn as_written(program: &Program, target: &Target) -> Candidates {
    candidates(vec![program.clone()], target, &SearchOptions::default())
}

/// At most so many equal forms of a program, those that lose digits left out; itself among them.
pub(crate) fn kept_forms(program: &Program, limits: &Limits, count: usize) -> Vec<Program> {
    let mut keeper = Keeper::new(program, 0);
    let forms = judged(program, limits, count, &|| false, &mut |form| {
        let kept = keeper.keeps(form).map_err(|f| f.errors)?;
        Ok(kept.is_some())
    });
    forms.into_iter().map(|e| e.program).collect()
}

/// The candidates that the pipeline would see: of the program and of its other forms.
pub(crate) fn all_forms(program: &Program, target: &Target) -> Candidates {
    let mut forms = vec![program.clone()];
    let found = kept_forms(program, &Limits::default(), 3);
    forms.extend(found.into_iter().filter(|p| p != program));
    candidates(forms, target, &SearchOptions::default())
}

/// The first candidates of which no earlier one has the same form and structure.
pub(crate) fn different(
    candidates: impl Iterator<Item = Candidate>,
    count: usize,
) -> Vec<TileProgram> {
    let mut seen = BTreeSet::new();
    candidates
        .filter(|c| seen.insert((c.expression.to_string(), structure::of(&c.tile))))
        .take(count)
        .map(|c| c.tile)
        .collect()
}

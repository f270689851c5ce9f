//! What is offered for whole programs.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use super::*;
use crate::targets::target;
use std::path::PathBuf;
use std::time::Instant;

fn folder(name: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(name);
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
    for file in folder("examples")
        .into_iter()
        .chain(folder("tests/programs"))
    {
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
    assert!(checked > 60, "{checked} programs");
}

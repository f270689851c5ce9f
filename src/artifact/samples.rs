//! Artifacts to test with: the plainest candidate of a small program, under several names.

use super::{Destination, GivesWay};
use crate::emit::{Parts, Record, package};
use crate::pipeline::{Derivation, Search};
use crate::{Effort, Optimized, Options};
use ir::{Program, Target};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

fn program(name: &str) -> Program {
    let text = format!(
        "program {name}\naxis i = 4, j = 8\nx = parameter f32 [i, j]\nreturn f32 [i] sum(x; j)\n"
    );
    text.parse().expect("a program")
}

fn target(name: &str) -> Target {
    crate::target(name).expect("a target")
}

/// The files of an artifact; `n` tells it from others of the same program and target.
pub(crate) fn files(name: &str, target_name: &str, n: u64) -> Vec<(&'static str, Vec<u8>)> {
    static FOUND: OnceLock<Optimized> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let options = Options {
            effort: Effort::LEAST,
            ..Options::new(target("h200"))
        };
        crate::optimize(&program("rows"), &options, &mut ()).expect("a candidate")
    });
    let candidate = found.best.value();
    let parts = Parts {
        program: &program(name),
        target: &target(target_name),
        expression: &candidate.expression,
        tile: &candidate.tile,
        schedule: &candidate.schedule,
        cuda: &candidate.cuda,
        code: None,
        derivation: &Derivation::NotFound,
        evidence: found.best.evidence(),
        machine: &found.machine,
    };
    let record = Record {
        measured_us: None,
        timed_on: None,
        candidates: 1,
        rejected: &BTreeMap::new(),
        seed: n,
        search: Search::Ended,
        history: &found.history,
    };
    package(&parts, &record).expect("sound rules").files
}

/// A place for artifacts of a program and a target.
pub(crate) fn destination(
    path: &Path,
    name: &str,
    target_name: &str,
    gives_way: GivesWay,
) -> Result<Destination, super::ArtifactError> {
    Destination::new(path, &program(name), &target(target_name), gives_way)
}

/// Writes files the plain way.
pub(crate) fn put(path: &Path, files: &[(&'static str, Vec<u8>)]) {
    fs::create_dir_all(path).expect("writable");
    for (name, bytes) in files {
        fs::write(path.join(name), bytes).expect("writable");
    }
}

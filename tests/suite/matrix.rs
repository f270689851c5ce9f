//! The compile matrix: every kind of kernel for every architecture, compiled to machine code by NVRTC.
//!
//! `TILEWRIGHT_NVRTC` names NVRTC (`scripts/test` provides it); without one the test says so and passes, unless
//! `TILEWRIGHT_REQUIRE_NVRTC=1`.

use crate::kinds::{KINDS, program};
use crate::{offered, structure};
use device::nvrtc::{Nvrtc, Options, SearchPath};
use ir::{Program, Schedule, Target, TileProgram};
use rayon::prelude::*;

/// The described target whose limits an architecture has, and the architecture.
const ARCHITECTURES: [(&str, &str, u32); 5] = [
    ("a100", "sm_80", 80),
    ("rtx4090", "sm_86", 86),
    ("l40s", "sm_89", 89),
    ("h200", "sm_90a", 90),
    ("rtx4090", "sm_120", 120),
];

/// Examples at their true extents, where tiles are large.
const EXAMPLES: [&str; 9] = [
    "attention_causal_gqa_b1h32kv8s4096d128_f16",
    "attention_b4h32s4096d64_bf16",
    "decode_gqa_b1h32kv8s8192d128_bf16",
    "matmul_4096_bf16",
    "matmul_4096_f32",
    "rmsnorm_linear_t16",
    "gated_mlp_prefill",
    "layernorm_f32",
    "rmsnorm_bf16",
];

/// Large programs whose best candidate by the model spills, and where; others must not, and these must. The rows of this one
/// are held once by all multiprocessors together, which takes half of the registers of these GPUs.
const SPILLS: [(&str, &str); 3] = [
    ("layernorm_f32", "sm_120"),
    ("layernorm_f32", "sm_86"),
    ("layernorm_f32", "sm_89"),
];

/// How many candidates are looked at for one that does not spill.
const LOOKED_AT: usize = 24;

fn target(base: &str, arch: &str, capability: u32) -> Target {
    let mut target = search::targets::target(base).expect("a known target");
    target.arch = arch.into();
    target.capability = capability;
    if capability == 86 {
        // The one limit in which it differs from sm_89.
        target.blocks_per_sm = 16;
    }
    target
}

/// The plainest candidate, and those of other structures, best first, each made when it is asked for.
fn different(program: &Program, target: &Target) -> impl Iterator<Item = TileProgram> {
    let mut all = offered::as_written(program, target)
        .take(LOOKED_AT)
        .map(|c| c.tile);
    let plainest = all.next().expect("a program has a candidate");
    let own = structure::of(&plainest);
    let others = all.filter(move |tile| structure::of(tile) != own);
    std::iter::once(plainest).chain(others)
}

/// What the assembler found wrong with a candidate, if anything; or why there is no machine code.
type Outcome = Result<Option<String>, String>;

/// Compiles a candidate under its first schedule, and under the first with persistent blocks.
fn compile(nvrtc: &Nvrtc, tile: &TileProgram, target: &Target) -> Outcome {
    let schedules = search::schedules::schedules(tile, target);
    let stays = |s: &&Schedule| s.kernels.iter().any(|k| k.persistent);
    let mut defects = Vec::new();
    let first = schedules.first();
    let persistent = schedules.iter().find(stays).filter(|s| Some(*s) != first);
    for schedule in first.into_iter().chain(persistent) {
        let cuda = codegen::lower(tile, schedule, target).map_err(|e| e.to_string())?;
        let compiled = nvrtc
            .compile(&cuda.source, &target.arch, &Options::default())
            .map_err(|e| e.to_string())?;
        if compiled.log.contains("warning") {
            return Err(format!("warnings:\n{}", compiled.log));
        }
        defects.extend(compiled.defects());
    }
    Ok(defects.first().map(ToString::to_string))
}

/// The compiler, where there is one; its absence is an error if it is required.
pub(crate) fn nvrtc() -> Option<Nvrtc> {
    let search = SearchPath {
        library: std::env::var_os("TILEWRIGHT_NVRTC").map(Into::into),
        ..SearchPath::default()
    };
    match Nvrtc::open(&search) {
        Ok(nvrtc) => Some(nvrtc),
        Err(e) => {
            let required = std::env::var_os("TILEWRIGHT_REQUIRE_NVRTC").is_some_and(|v| v == "1");
            assert!(!required, "{e}");
            eprintln!("skipped: {e}");
            None
        }
    }
}

#[test]
fn every_kind_compiles_for_every_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut programs: Vec<(&str, Program)> = KINDS
        .iter()
        .map(|(name, text)| (*name, program(name, text)))
        .collect();
    programs.extend(EXAMPLES.map(|name| (name, offered::example(name))));
    let mut work = Vec::new();
    for (base, arch, capability) in ARCHITECTURES {
        let target = target(base, arch, capability);
        for (name, program) in &programs {
            work.push((*name, program, target.clone()));
        }
    }
    // The plainest, and others until one is clean: so does the pipeline.
    let compiled: Vec<Vec<(TileProgram, Outcome)>> = work
        .par_iter()
        .map(|(_, program, target)| {
            let mut outcomes = Vec::new();
            for (i, tile) in different(program, target).enumerate() {
                let outcome = compile(&nvrtc, &tile, target);
                let clean = !matches!(outcome, Ok(Some(_)));
                outcomes.push((tile, outcome));
                if i > 0 && clean {
                    break;
                }
            }
            outcomes
        })
        .collect();
    let mut faults = Vec::new();
    let mut spilling = Vec::new();
    for ((name, _, target), outcomes) in work.iter().zip(&compiled) {
        let small = KINDS.iter().any(|k| k.0 == *name);
        for (i, (tile, outcome)) in outcomes.iter().enumerate() {
            match outcome {
                Ok(None) => {}
                // The pipeline drops a large candidate that spills and takes the next; a small one has no excuse.
                Ok(Some(_)) if !small && i > 0 => {
                    if i == 1 {
                        spilling.push((*name, target.arch.as_str()));
                    }
                    // Whoever finds a clean one looks no further: the last one spills where all do.
                    let all = outcomes.len();
                    if i + 1 == all {
                        faults.push(format!("{name} for {}: all of {all} spill", target.arch));
                    }
                }
                Ok(Some(fault)) | Err(fault) => {
                    faults.push(format!("{name} for {}: {fault}\n{tile}", target.arch));
                }
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} failed:\n{}",
        faults.len(),
        faults.join("\n")
    );
    spilling.sort_unstable();
    assert_eq!(spilling, SPILLS);
    let tried: usize = compiled.iter().map(Vec::len).sum();
    assert!(tried > ARCHITECTURES.len() * programs.len(), "{tried}");
}

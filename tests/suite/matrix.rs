//! The compile matrix: kernels of every kind for an H200, and each for one other architecture, compiled to machine code by NVRTC.
//!
//! `TILEWRIGHT_NVRTC` names NVRTC (`scripts/test` provides it); without one the test says so and passes, unless
//! `TILEWRIGHT_REQUIRE_NVRTC=1`.

use crate::kinds::{KINDS, program};
use crate::{offered, structure};
use codegen::passes::{instruction, multicast, persistent, registers};
use device::nvrtc::{Defect, Nvrtc, Options, SearchPath};
use ir::{KernelSchedule, Program, Schedule, Target, TileProgram};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// The described target whose limits an architecture has, and the architecture.
const ARCHITECTURES: [(&str, &str, u32); 5] = [
    ("a100", "sm_80", 80),
    ("rtx4090", "sm_86", 86),
    ("l40s", "sm_89", 89),
    ("h200", "sm_90a", 90),
    ("rtx4090", "sm_120", 120),
];

/// Each of these compiles every fourth program, and each program is compiled for one of them.
const QUARTERS: [u32; 4] = [80, 86, 89, 120];

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

/// Compiles a candidate under its first schedule, under the first with persistent blocks, and under the first in clusters that can be lowered.
fn compile(nvrtc: &Nvrtc, tile: &TileProgram, target: &Target) -> Outcome {
    let schedules = search::schedules::schedules(tile, target);
    let is_persistent = |s: &&Schedule| s.kernels.iter().any(persistent::of);
    let mut defects = Vec::new();
    let first = schedules.first();
    let persistent = schedules
        .iter()
        .find(is_persistent)
        .filter(|s| Some(*s) != first);
    let clustered = schedules.iter().find(|s| {
        let several = s.kernels.iter().any(|k| multicast::of(k) > 1);
        several && codegen::lower(tile, s, target).is_ok()
    });
    for schedule in first.into_iter().chain(persistent).chain(clustered) {
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
fn every_kind_compiles_and_for_every_architecture_some_do() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut programs: Vec<(&str, Program)> = KINDS
        .iter()
        .map(|(name, text)| (*name, program(name, text)))
        .collect();
    programs.extend(EXAMPLES.map(|name| (name, offered::example(name))));
    let mut work = Vec::new();
    for (base, arch, capability) in ARCHITECTURES {
        let target = target(base, arch, capability);
        for (n, (name, program)) in programs.iter().enumerate() {
            let spills = SPILLS.contains(&(*name, arch));
            let quarter = QUARTERS.iter().position(|one| *one == capability);
            if spills || quarter.is_none_or(|quarter| n % 4 == quarter) {
                work.push((*name, program, target.clone()));
            }
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
    assert!(tried > work.len(), "{tried}");
}

/// A product of 4096 rows and as many terms, in tiles of rows, columns and terms; `order` is that of the second operand's axes.
fn product(dtype: &str, columns: u64, [m, n, k]: [u64; 3], order: &str) -> TileProgram {
    let text = format!(
        "tile product\naxis m = 4096, n = {columns}, k = 4096\nbuffer a = parameter 0 {dtype} [m, k]\nbuffer b = parameter 1 {dtype} [{order}]\n\
         buffer y = output 0 {dtype} [m, n]\nkernel grid(m: {m}, n: {n}) loop(k: {k}) {{\n  loop k {{\n    carry s = 0 over [m, n]\n    \
         c = load b[{order}]\n    d = load a[m, k]\n    p = contract(d, c; k)\n    s2 = add(s, p)\n    \
         yield s3 = final(s, s2)\n  }}\n  store y = s3\n}}\n"
    );
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

/// Schedules that a search compiles of a kernel before it gives the kernel up.
const PROMISING: usize = 4;

/// Products of f32 by groups of warps, under the schedules that a search looks at: the assembler serialises nothing, and one of the first few of each
/// product, which a search compiles before it gives a kernel up, does not spill.
#[test]
fn split_products_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    let target = search::targets::target("h200").expect("a known target");
    let mut work = Vec::new();
    for (tiles, columns) in [
        ([128, 128, 32], "k, n"),
        ([128, 128, 16], "n, k"),
        ([64, 128, 32], "n, k"),
        ([64, 64, 64], "k, n"),
        ([128, 48, 32], "k, n"),
    ] {
        let tile = product("f32", 4096, tiles, columns);
        let splits = |s: &KernelSchedule| {
            let mut all = instruction::all(s);
            all.any(|(_, c)| c.atom.name() == "wgmma.m64k8.3xtf32")
        };
        let all = search::schedules::ranked(&tile, &target)
            .into_iter()
            .map(|r| r.schedule);
        let found = all.filter(splits).take(PROMISING);
        work.extend(found.map(|s| (tile.clone(), Schedule { kernels: vec![s] })));
    }
    let sound = Mutex::new(BTreeSet::new());
    let faults: Vec<String> = work
        .par_iter()
        .filter_map(|(tile, schedule)| {
            let cuda = match codegen::lower(tile, schedule, &target) {
                Ok(cuda) => cuda,
                Err(e) => return Some(format!("{}: {e}", schedule.text(tile))),
            };
            let compiled = nvrtc.compile(&cuda.source, &target.arch, &Options::default());
            let compiled = compiled.unwrap_or_else(|e| panic!("{}: {e}", schedule.text(tile)));
            let spills = |d: &Defect| matches!(d, Defect::Spill { .. } | Defect::Stack { .. });
            let (spilled, other): (Vec<_>, Vec<_>) =
                compiled.defects().into_iter().partition(spills);
            if spilled.is_empty() {
                sound
                    .lock()
                    .expect("no panic before")
                    .insert(tile.to_string());
            }
            let text = || format!("{}{tile}: {other:?}", schedule.text(tile));
            (!other.is_empty()).then(text)
        })
        .collect();
    assert!(work.len() >= 16, "{} schedules", work.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let products: BTreeSet<String> = work.iter().map(|(tile, _)| tile.to_string()).collect();
    assert_eq!(sound.into_inner().expect("no panic before"), products);
}

/// The schedules in clusters that a search looks at for these products: none spills, and the hardware copies to both blocks.
#[test]
fn clusters_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    let target = search::targets::target("h200").expect("a known target");
    let mut count = 0;
    for (tiles, columns) in [
        ([128, 256, 64], "k, n"),
        ([128, 256, 64], "n, k"),
        ([256, 128, 64], "k, n"),
        ([128, 192, 32], "n, k"),
    ] {
        let tile = product("bf16", 3072, tiles, columns);
        let all = search::schedules::ranked(&tile, &target).into_iter();
        // Accumulators of these tiles leave no room for a second block: the assembler refuses some of those, as the search finds out.
        let all = all.map(|r| r.schedule).filter(|s| registers::of(s) == 1);
        let clustered = all.filter(|s| multicast::of(s) > 1).take(PROMISING);
        for schedule in clustered.map(|s| Schedule { kernels: vec![s] }) {
            let text = schedule.text(&tile);
            let cuda = codegen::lower(&tile, &schedule, &target);
            let cuda = cuda.unwrap_or_else(|e| panic!("{text}{e}"));
            assert!(cuda.source.contains(" tw_box_to_all<2>("), "{text}");
            let compiled = nvrtc.compile(&cuda.source, &target.arch, &Options::default());
            let compiled = compiled.unwrap_or_else(|e| panic!("{text}{e}"));
            assert!(!compiled.log.contains("warning"), "{text}{}", compiled.log);
            assert!(
                compiled.defects().is_empty(),
                "{text}{:?}",
                compiled.defects()
            );
            count += 1;
        }
    }
    assert!(count >= 12, "{count} schedules");
}

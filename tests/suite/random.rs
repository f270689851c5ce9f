//! Random programs through the search: their expressions, their candidates and their kernels compute what they do.
//!
//! `TILEWRIGHT_FUZZ` says how many programs, `TILEWRIGHT_FUZZ_SEED` from which seed on; without them it is 90 from 0:
//!
//! ```text
//! TILEWRIGHT_FUZZ=20000 TILEWRIGHT_FUZZ_SEED=1000000 cargo test --test suite random -- --nocapture
//! ```
//!
//! One large program is drawn for 90 of these. What fails is printed, and the smallest programs of it are shrunk. A program that was
//! found belongs into `tests/found`: its seed draws another one as soon as the strategies change.

use crate::kernels::Case;
use crate::offered::kept_forms;
use crate::{emulator, structure};
use codegen::atoms::{self, Operands};
use codegen::passes::instruction;
use ir::{Dtype, Function, MapOp, Op, Program, Reject, Schedule, Statement, TileOp, TileProgram};
use petgraph::algo::has_path_connecting;
use petgraph::graphmap::DiGraphMap;
use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::test_runner::{TestCaseError, TestError};
use rayon::prelude::*;
use search::forms::extract::Limits;
use search::tiling::enumerate::{Candidate, SearchOptions, candidates};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use verify::{TilingOptions, check_tiling};

const PROGRAMS: u64 = 90;
/// So many programs of those that fail are shrunk.
const SHRUNK: usize = 3;
/// Equal forms of a program, and candidates of each: the plainest, and the next ones.
const FORMS: usize = 3;
const CANDIDATES: usize = 3;
/// How far candidates are looked for that are interesting in a way that the ones before were not.
const LOOKED_AT: usize = 24;
/// Schedules of each candidate whose machine programs are run.
const MACHINES: usize = 1;
/// One program of so many is also lowered and emulated; of many programs fewer.
const EMULATED: u64 = 16;
const EMULATED_OF_MANY: u64 = 200;
/// Enough for rules to meet, and small enough for many programs.
const LIMITS: Limits = Limits {
    nodes: 1500,
    iterations: 4,
};

/// One program to judge.
struct Drawn {
    /// The seed, or the file of a program that was found.
    name: String,
    /// None of a program that was found.
    seed: Option<u64>,
    program: Program,
    /// Whether one of its candidates is also lowered and emulated.
    emulated: bool,
}

/// What came of one program.
#[derive(Default)]
struct Judged {
    candidates: usize,
    kernels: usize,
    /// Candidates and schedules whose machine programs were run.
    machines: usize,
    /// Candidates that were refused because they overflow where the program does not, and why.
    fragile: Vec<String>,
    /// What was interesting about its candidates.
    marks: BTreeMap<&'static str, usize>,
    faults: Vec<String>,
}

/// What an environment variable says.
pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{variable}: {e}")),
        Err(_) => otherwise,
    }
}

/// The programs of a folder of `tests/found`, by file.
fn found(folder: &str) -> BTreeMap<String, Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/found")
        .join(folder);
    let files = std::fs::read_dir(&folder).expect("a folder of programs");
    files
        .map(|file| {
            let path = file.expect("a file").path();
            let text = std::fs::read_to_string(&path).expect("a text");
            let program = ir::parse(&text, &path.to_string_lossy());
            (
                path.file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned(),
                program.unwrap_or_else(|e| panic!("{e}")),
            )
        })
        .collect()
}

/// One program of four is a cascade.
fn strategy(seed: u64) -> BoxedStrategy<Program> {
    match seed % 4 {
        3 => strategies::cascades().boxed(),
        _ => strategies::programs().boxed(),
    }
}

/// What a seed draws, ready to shrink.
fn tree(seed: u64) -> impl ValueTree<Value = Program> {
    let tree = strategy(seed).new_tree(&mut strategies::runner(seed, 1));
    tree.expect("no choice is refused")
}

#[test]
fn random_programs_are_computed_rightly() {
    let (first, count) = (
        number("TILEWRIGHT_FUZZ_SEED", 0),
        number("TILEWRIGHT_FUZZ", PROGRAMS),
    );
    let many = count > 1000;
    let every = if many { EMULATED_OF_MANY } else { EMULATED };
    let emulated = emulator::available();
    let done = AtomicU64::new(0);
    let found = found("small").into_iter().map(|(name, program)| Drawn {
        name,
        seed: None,
        program,
        emulated,
    });
    let drawn = (first..first + count).into_par_iter().map(|seed| Drawn {
        name: seed.to_string(),
        seed: Some(seed),
        program: tree(seed).current(),
        // One program of either kind.
        emulated: emulated && [0, 3].contains(&(seed % every)),
    });
    let found: Vec<Drawn> = found.collect();
    let judged: Vec<(Judged, Drawn)> = found
        .into_par_iter()
        .chain(drawn)
        .map(|drawn| {
            let judged = judge_without_panic(&drawn);
            let finished = done.fetch_add(1, Ordering::Relaxed) + 1;
            if finished.is_multiple_of(1000) {
                eprintln!("{finished} of {count}");
            }
            for said in judged.fragile.iter().chain(&judged.faults) {
                eprintln!("{said}\n");
            }
            (judged, drawn)
        })
        .collect();
    let mut marks: BTreeMap<&'static str, usize> = BTreeMap::new();
    for (mark, n) in judged.iter().flat_map(|(j, _)| &j.marks) {
        *marks.entry(mark).or_default() += n;
    }
    let sum = |of: fn(&Judged) -> usize| judged.iter().map(|(j, _)| of(j)).sum::<usize>();
    let checked = sum(|j| j.candidates);
    let kernels = sum(|j| j.kernels);
    let machines = sum(|j| j.machines);
    let fragile = sum(|j| j.fragile.len());
    let faults = sum(|j| j.faults.len());
    eprintln!(
        "{count} programs from seed {first}: {checked} candidates, {fragile} fragile, {machines} machine programs run, {kernels} emulated; candidates that {marks:?}"
    );
    eprintln!("{faults} of {checked} right candidates refused");
    let faulty = judged.iter().filter(|(j, _)| !j.faults.is_empty());
    shrink(faulty.map(|(_, drawn)| drawn).collect());
    assert_eq!(faults, 0, "see above");
    assert!(fragile <= 2 + checked / 1000, "{fragile}");
    // Not one right candidate was refused, of so many; and they were worth looking at.
    assert!(checked as u64 >= 5 * count / 2, "{checked}");
    assert!(
        !emulated || kernels as u64 >= count / every / 2,
        "{kernels}"
    );
    for mark in MARKS {
        let found = marks.get(mark).copied().unwrap_or(0);
        assert!(found as u64 >= count / 100, "{mark}: {found}");
    }
}

/// Prints the smallest programs with a fault that proptest makes of the smallest ones that were drawn.
fn shrink(mut faulty: Vec<&Drawn>) {
    faulty.sort_by_key(|drawn| drawn.program.nodes.len());
    let seeds = faulty.iter().filter_map(|drawn| Some((drawn, drawn.seed?)));
    for (drawn, seed) in seeds.take(SHRUNK) {
        let fault = |program: Program, emulated: bool| {
            let judged = judge_without_panic(&Drawn {
                name: drawn.name.clone(),
                seed: drawn.seed,
                program,
                emulated,
            });
            judged.faults.into_iter().next()
        };
        // Kernels are emulated only where nothing else shows the fault: compiling them takes long.
        let emulated = fault(drawn.program.clone(), false).is_none();
        let shrunk = strategies::runner(seed, 1).run_one(tree(seed), |program| {
            fault(program, emulated).map_or(Ok(()), |fault| Err(TestCaseError::fail(fault)))
        });
        match shrunk {
            Err(TestError::Fail(why, shrunk)) => {
                let (from, to) = (drawn.program.nodes.len(), shrunk.nodes.len());
                eprintln!("{from} values shrink to {to}: {why}\n");
            }
            Ok(_) | Err(TestError::Abort(_)) => eprintln!("{seed}: its fault was not seen again\n"),
        }
    }
}

fn judge_without_panic(drawn: &Drawn) -> Judged {
    let judged = catch_unwind(AssertUnwindSafe(|| judge(drawn)));
    judged.unwrap_or_else(|_| Judged {
        faults: vec![format!("{}: it panics\n{}", drawn.name, drawn.program)],
        ..Judged::default()
    })
}

fn judge(drawn: &Drawn) -> Judged {
    let Drawn { name, program, .. } = drawn;
    let seed = drawn.seed.unwrap_or(0);
    let target = search::targets::target("h200").expect("a known target");
    let options = TilingOptions {
        draws: 3,
        seed,
        work: 40_000,
        slice_work: 400_000,
        most_slice_work: 4_000_000,
    };
    let mut judged = Judged::default();
    let forms = kept_forms(program, &LIMITS, FORMS);
    for form in &forms {
        // Buffers are called by the numbers of values: who reads a form finds the same ones.
        let read = |form: &Program| form.to_string().parse::<Program>().ok();
        let once = read(form);
        if once.is_none() || once.as_ref().and_then(read) != once {
            judged
                .faults
                .push(format!("{name}: other when read twice\n{form}"));
        }
        if form != program {
            *judged.marks.entry("another expression").or_default() += 1;
        }
        let mut seen = BTreeSet::new();
        let found: Vec<Candidate> =
            candidates(vec![form.clone()], &target, &SearchOptions::default())
                .take(LOOKED_AT)
                .enumerate()
                .filter(|(n, c)| {
                    let fresh = marks(&c.expression, &c.tile)
                        .into_iter()
                        .filter(|mark| seen.insert(*mark))
                        .count();
                    *n < CANDIDATES || fresh > 0
                })
                .map(|(_, c)| c)
                .collect();
        if found.is_empty() {
            judged.faults.push(format!("{name}: no candidate\n{form}"));
        }
        for c in &found {
            judged.candidates += 1;
            for mark in marks(&c.expression, &c.tile) {
                *judged.marks.entry(mark).or_default() += 1;
            }
            if let Err(reject) = check_tiling(program, &c.expression, &c.tile, &options) {
                let again = |n: u64| {
                    let options = TilingOptions {
                        seed: seed + n,
                        ..options
                    };
                    check_tiling(program, &c.expression, &c.tile, &options)
                };
                let overflows = matches!(reject, Reject::Fragile(_));
                let others: Vec<Result<_, Reject>> = (1..4).map(again).collect();
                // What overflows where the program does not is refused on some inputs; what is wrong, on all. A form that overflows
                // may do so on all, too, but then nothing else is wrong anywhere.
                let passes = (overflows || form != program) && others.iter().any(Result::is_ok);
                let by_itself = overflows
                    && !others.iter().any(|o| matches!(o, Err(Reject::Wrong(_))))
                    && overflows_by_itself(program, form, &c.tile, &options);
                if passes || by_itself {
                    let what = match passes {
                        true => "not so on other inputs",
                        false => "the form overflows by itself",
                    };
                    let text = format!("{name}: {reject}; {what}\n{form}");
                    judged.fragile.push(text);
                    continue;
                }
                let text = format!(
                    "{name}: {reject}\n{program}\n{form}\n{}\n{}",
                    c.plan_text, c.tile
                );
                judged.faults.push(text);
            }
        }
        let case = Case::new(program.clone());
        for c in &found {
            let schedules = search::schedules::schedules(&c.tile, &target);
            let lowered = schedules
                .iter()
                .filter_map(|s| Some((s, codegen::machines(&c.tile, s, &target).ok()?)));
            for (schedule, machines) in lowered.take(MACHINES) {
                judged.machines += 1;
                if let Some(fault) = case.machine_fault(&c.tile, &machines) {
                    let text = format!("{name}: {fault}\n{schedule:?}\n{form}\n{}", c.tile);
                    judged.faults.push(text);
                }
            }
        }
        if drawn.emulated && judged.kernels == 0 {
            let case = Case::new(program.clone());
            for c in found.iter().rev().take(1) {
                let schedules = search::schedules::schedules(&c.tile, &target);
                // Results of 32 bits whose operands were rounded to 16 may miss the tolerance: then others are tried, as by who looks for
                // the fastest.
                let wide = program.outputs.iter().any(|o| o.dtype == Dtype::F32);
                let narrow = |s: &Schedule| {
                    let mut all = s.kernels.iter().flat_map(instruction::all);
                    all.any(|(_, c)| {
                        atoms::instruction(c.atom).is_some_and(|i| i.operands == Operands::Half)
                    })
                };
                let lowered = schedules
                    .iter()
                    .filter(|s| !(wide && narrow(s)))
                    .find(|s| codegen::lower(&c.tile, s, &target).is_ok());
                let Some(schedule) = lowered else { continue };
                judged.kernels += 1;
                if let Some(fault) = case.fault(&c.tile, schedule, &target) {
                    judged
                        .faults
                        .push(format!("{name}: {fault}\n{program}\n{}", c.tile));
                }
            }
        }
    }
    judged
}

/// Whether it is a form that overflows, whatever computes it: its tile program is right if it is compared with the form, which was
/// held against the program on moderate inputs before ([`kept_forms`]).
fn overflows_by_itself(
    program: &Program,
    form: &Program,
    tile: &TileProgram,
    options: &TilingOptions,
) -> bool {
    form != program && check_tiling(form, form, tile, options).is_ok()
}

/// What there must be some of.
const MARKS: [&str; 5] = [
    "fuse a cascade",
    "another expression",
    "split an axis",
    "compute something twice",
    "keep something in memory",
];

/// What is interesting about a tile program.
fn marks(expression: &Program, tile: &TileProgram) -> Vec<&'static str> {
    let mut found = Vec::new();
    if tile.kernels.iter().any(fuses_a_cascade) {
        found.push("fuse a cascade");
    }
    if tile.axes.len() > expression.axes.len() {
        found.push("split an axis");
    }
    let special = |op: &MapOp| {
        matches!(
            op,
            MapOp::Function(Function::Exp)
                | MapOp::Function(Function::Log)
                | MapOp::Function(Function::Sqrt)
        )
    };
    let in_tile = (tile.kernels.iter().flat_map(|k| &k.values))
        .filter(|v| matches!(&v.op, TileOp::Map(op, _) if special(op)))
        .count();
    let in_expression = (expression.nodes.iter())
        .filter(|n| matches!(&n.op, Op::Map(op) if special(op)))
        .count();
    if in_tile > in_expression {
        found.push("compute something twice");
    }
    if structure::largest_workspace(tile) > 0 {
        found.push("keep something in memory");
    }
    found
}

/// Programs that were once judged wrongly, each with an equal form.
const FOUND: [(&str, &str); 9] = [
    // A reduced axis whose name is taken runs in the kernel under another, over the same extent.
    (
        "axis a = 11, b = 3, e = 7\ny = parameter f16 [b, e, a]\nz = parameter bf16 []\n\
         return f32 [e, a] view(dot(z, y; a); b -> 2*a + 2; fill = 0)",
        "axis a = 11, b = 3, e = 7\ny = parameter f16 [b, e, a]\nz = parameter bf16 []\n\
         return f32 [e, a] view(z * sum(y; a); b -> 2*a + 2; fill = 0)",
    ),
    // An extent that a rule made a number is that number at one extent only.
    (
        "axis a = 5, c = 3\nx = parameter f32 [a]\ny = parameter f32 [a, c]\nreturn f32 [a] sum(x + y; c)",
        "axis a = 5, c = 3\nx = parameter f32 [a]\ny = parameter f32 [a, c]\nreturn f32 [a] 3 * x + sum(y; c)",
    ),
    // The number may be a product of extents at which there is more than the usual work.
    (
        "axis a = 1024, b = 96\nx = parameter f32 [a, b]\nreturn f32 [] sum(x + 1; a, b)",
        "axis a = 1024, b = 96\nx = parameter f32 [a, b]\nreturn f32 [] sum(x; a, b) + 98304",
    ),
    // A bound may hold at all extents but the least.
    (
        "axis a = 9\nx = parameter f32 [a]\nreturn f32 [] max(-sum(sqrt(x * x + 0.5); a), -1)",
        "axis a = 9\nx = parameter f32 [a]\nreturn f32 [] -1 + 0 * sum(x; a)",
    ),
    // What a number of an extent changes may be hidden wherever another extent is one.
    (
        "axis b = 2, d = 5, f = 2\nx = parameter bf16 []\nz = parameter bf16 [b]\n\
         w = z + 0 * iota(d)\n\
         return f32 [(b d), f] select(iota(d) - iota(b), iota(f), dot(x / (w * w + 0.5), z; b, d) / (w * w + 0.5))",
        "axis b = 2, d = 5, f = 2\nx = parameter bf16 []\nz = parameter bf16 [b]\n\
         return f32 [(b d), f] select(-iota(b) + iota(d), iota(f), x * (5 * sum(z / (0.5 + z * z); b)) / (0.5 + z * z))",
    ),
    // The same where the extent that is a number is two, as most small ones are.
    (
        "axis b = 2, c = 11, d = 8, e = 2\nx = parameter f16 [b, e]\nw = iota(b) + 0 * iota(e)\n\
         return f16 [c, b, d] select(iota(d) - iota(c) + 1, dot(iota(b), w; e), 2), f16 [b, e] x",
        "axis b = 2, c = 11, d = 8, e = 2\nx = parameter f16 [b, e]\n\
         return f16 [c, b, d] select(1 + iota(d) - iota(c), 2 * iota(b) * iota(b), 2), f16 [b, e] x",
    ),
    // A bound that holds because one extent is large may fail where it is small and another one is not.
    (
        "axis b = 8, c = 11\ny = parameter bf16 [c]\nreturn f16 [b] max(sum(sqrt(y * y + 0.5); c), iota(b))",
        "axis b = 8, c = 11\ny = parameter bf16 [c]\nreturn f16 [b] sum(sqrt(0.5 + y * y); c) + 0 * iota(b)",
    ),
    // A view that stays inside its argument is one with the view of it, but only where it still stays inside.
    (
        "axis a = 1, d = 2, e = 2, f = 11\nz = parameter f32 [e, f]\n\
         return f32 [a, d] view(view(z; f -> a - d + 10; fill = 1); d -> -d + 1, e -> d + 1; fill = 0)",
        "axis a = 1, d = 2, e = 2, f = 11\nz = parameter f32 [e, f]\n\
         return f32 [a, d] view(z; e -> d + 1, f -> a + d + 9; fill = 0)",
    ),
    // The same where the index is an axis alone, but a shorter one.
    (
        "axis f = 3, a = 8, d = 5, b = 2, c = 2\nx = parameter f32 [f, a]\n\
         return f32 [d, b, c] view(view(x; a -> d; fill = 1); f -> b + c + 1; fill = 0), f32 [f, a] x",
        "axis f = 3, a = 8, d = 5, b = 2, c = 2\nx = parameter f32 [f, a]\n\
         return f32 [d, b, c] view(x; f -> b + c + 1, a -> d; fill = 0), f32 [f, a] x",
    ),
];

/// The mean's factor and the sum's number are the same extent, at which no tile program can be interpreted: tile programs are compared
/// with their expression, and the expression with the program where it has to hold.
#[test]
fn large_extents_that_are_numbers_are_no_faults() {
    let target = search::targets::target("h200").expect("a known target");
    let program = "axis t = 262144, a = 4, b = 4\nx = parameter f32 [t, a]\ny = parameter f32 [t, b]\n\
         return f32 [a, b] dot(x - mean(x; t), y - mean(y; t); t)";
    let form = "axis t = 262144, a = 4, b = 4\nx = parameter f32 [t, a]\ny = parameter f32 [t, b]\n\
         return f32 [a, b] dot(x, y; t) - 262144 * (mean(x; t) * mean(y; t))";
    let verdicts = |form: &str| -> Vec<_> {
        let (program, form) = (
            crate::kinds::program("large", program),
            crate::kinds::program("large", form),
        );
        candidates(vec![form], &target, &SearchOptions::default())
            .take(2)
            .map(|c| check_tiling(&program, &c.expression, &c.tile, &TilingOptions::default()))
            .collect()
    };
    let right = verdicts(form);
    assert!(!right.is_empty());
    for verdict in right {
        let evidence = verdict.unwrap_or_else(|e| panic!("{e}"));
        let by = evidence.by_expression.as_ref();
        let by = by.unwrap_or_else(|| panic!("{evidence:?}"));
        assert_eq!(by.kept, ["t = 262144"]);
        assert!(by.elements > 20 && evidence.real > 20, "{evidence:?}");
    }
    for wrong in [
        form.replace("262144 * (", "262143 * ("),
        form.replace("dot(x, y; t)", "dot(x, y; t) * 1.0001"),
    ] {
        let wrong = verdicts(&wrong);
        assert!(
            !wrong.is_empty() && wrong.iter().all(Result::is_err),
            "{wrong:?}"
        );
    }
}

/// What a selection hides may overflow where a form shows it: a factor that is zero with the selection does not hide an infinite one.
#[test]
fn forms_that_overflow_by_themselves_are_refused() {
    let target = search::targets::target("h200").expect("a known target");
    let text = "axis i = 2, j = 5\nx = parameter f32 [j, i]\nw = exp(x * x * 100)\n\
         s = select(iota(i) - iota(j) - 2, w, 0)\nreturn f32 [i] sum(s / (s * s + 1); j)";
    let read = |text: &str| crate::kinds::program("found", text);
    let (program, form) = (read(text), read(&text.replace("s * s", "w * s")));
    let other = read(&text.replace("[i] sum", "[i] 1 + sum"));
    let options = TilingOptions::default();
    let found: Vec<Candidate> = candidates(vec![form.clone()], &target, &SearchOptions::default())
        .take(4)
        .collect();
    assert!(!found.is_empty());
    for c in &found {
        let verdict = check_tiling(&program, &c.expression, &c.tile, &options);
        assert!(matches!(verdict, Err(Reject::Fragile(_))), "{verdict:?}");
        assert!(overflows_by_itself(&program, &form, &c.tile, &options));
    }
    // A tile program that does not compute the form is wrong by itself; nothing is wrong with the program's own.
    let own: Vec<Candidate> = candidates(vec![program.clone()], &target, &SearchOptions::default())
        .take(4)
        .collect();
    assert!(!own.is_empty());
    for c in &own {
        let verdict = check_tiling(&program, &c.expression, &c.tile, &options);
        assert!(verdict.is_ok(), "{verdict:?}");
        assert!(!overflows_by_itself(&program, &other, &c.tile, &options));
    }
}

#[test]
fn what_was_found_stays_right() {
    let target = search::targets::target("h200").expect("a known target");
    let read = |text: &str| crate::kinds::program("found", text);
    let verdicts = |program: &Program, form: &Program| -> Vec<bool> {
        candidates(vec![form.clone()], &target, &SearchOptions::default())
            .take(6)
            .map(|c| {
                let options = TilingOptions::default();
                check_tiling(program, &c.expression, &c.tile, &options).is_ok()
            })
            .collect()
    };
    for (program, form) in FOUND {
        let program = read(program);
        for form in [read(form), program.clone()] {
            let all = verdicts(&program, &form);
            assert!(!all.is_empty() && all.iter().all(|right| *right), "{form}");
        }
    }
    // Another number than the extent is wrong at every extent.
    let (program, form) = FOUND[1];
    let all = verdicts(&read(program), &read(&form.replace("3 * x", "2 * x")));
    assert!(!all.is_empty() && all.iter().all(|right| !right));
}

/// Whatever is asked for: a candidate, verified, however large the program, within what the search is given and the time
/// of one candidate.
#[test]
fn large_random_programs_have_a_verified_candidate() {
    let target = search::targets::target("h200").expect("a known target");
    let options = tilewright::Options {
        budget: std::time::Duration::from_secs(1),
        effort: tilewright::Effort::LEAST,
        ..tilewright::Options::new(target)
    };
    let verified = |program: &Program| {
        let found = tilewright::optimize(program, &options, &mut ());
        let found = found.unwrap_or_else(|e| panic!("{e}\n{program}"));
        assert!(found.first_held_seconds <= found.seconds, "{found:?}");
    };
    // Views that pin large extents, constants with forms without end, copies of reduced axes, many kernels.
    let known = found("large");
    known.values().for_each(verified);
    let nodes = known.values().map(|p| p.nodes.len()).max();
    let outputs = known.values().map(|p| p.outputs.len()).max();
    assert!(
        nodes > Some(250) && outputs == Some(8),
        "{nodes:?} {outputs:?}"
    );
    let first = number("TILEWRIGHT_FUZZ_SEED", 0);
    let count = number("TILEWRIGHT_FUZZ", PROGRAMS) / PROGRAMS;
    strategies::check(&strategies::large_programs(), first, count as u32, verified);
    eprintln!(
        "{} large programs that were found, {count} drawn",
        known.len()
    );
}

/// Whether a loop carries a value whose next one is made from another value that the loop carries.
fn fuses_a_cascade(kernel: &ir::Kernel) -> bool {
    // Within the loop: results of loops before it read their phis.
    let values = kernel.values.iter().zip((0..).map(ir::ValueId));
    let computed = values.filter(|(v, _)| !matches!(v.op, TileOp::Final { .. }));
    let reads: DiGraphMap<ir::ValueId, ()> = computed
        .flat_map(|(v, id)| v.op.operands().into_iter().map(move |read| (id, read)))
        .collect();
    let in_loop = |l: &ir::Loop| {
        let pairs = (l.carries.iter()).flat_map(|a| l.carries.iter().map(move |b| (a, b)));
        pairs
            .filter(|(a, b)| a.phi != b.phi)
            .any(|(a, b)| has_path_connecting(&reads, a.next, b.phi, None))
    };
    let mut stack: Vec<&Statement> = kernel.body.iter().collect();
    while let Some(statement) = stack.pop() {
        if let Statement::Loop(l) = statement {
            if in_loop(l) {
                return true;
            }
            stack.extend(&l.body);
        }
    }
    false
}

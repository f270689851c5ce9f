//! The pipeline with a GPU that pretends: what it says decides what may be emitted. This very program is the worker, under a name
//! that says how it pretends: hence its own `main`.

mod campaigns;
#[allow(
    unused_imports,
    reason = "the tests of the command line run where it is built"
)]
#[path = "../../src/cli/mod.rs"]
mod cli;
mod compiling;
mod explain;
mod pretender;
#[path = "../server/mod.rs"]
mod server;

use libtest_mimic::{Arguments, Trial};
use pretender::{ASKED, WIDE};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tilewright::artifact::{Artifact, Destination, GivesWay, State, read_manifest};
use tilewright::codegen::passes::registers;
use tilewright::device::locks::GpuLocks;
use tilewright::ir::ScheduleText;
use tilewright::log::{Filter, Log};
use tilewright::pipeline::given::Given;
use tilewright::pipeline::{Search, longest};
use tilewright::{
    Conditions, Effort, Error, Event, KernelName, MemoryHandle, Observer, Optimized, Options,
    TrialKey, optimize, program_hash,
};
use tracing_subscriber::layer::SubscriberExt;

const TESTS: [(&str, fn()); 45] = [
    ("the_first_pick_is_waited_for", the_first_pick_is_waited_for),
    (
        "what_was_picked_is_compiled_when_trials_have_ended",
        what_was_picked_is_compiled_when_trials_have_ended,
    ),
    (
        "what_takes_long_to_compile_takes_no_time_of_the_result",
        what_takes_long_to_compile_takes_no_time_of_the_result,
    ),
    (
        "lines_are_worth_what_the_gpu_says",
        explain::lines_are_worth_what_the_gpu_says,
    ),
    (
        "lines_without_which_nothing_runs_have_no_time",
        explain::lines_without_which_nothing_runs_have_no_time,
    ),
    (
        "without_a_gpu_of_the_kind_lines_have_the_clock_alone",
        explain::without_a_gpu_of_the_kind_lines_have_the_clock_alone,
    ),
    (
        "explanations_wait_for_a_gpu",
        explain::explanations_wait_for_a_gpu,
    ),
    (
        "where_a_kernel_has_no_schedule_its_plan_goes_on",
        where_a_kernel_has_no_schedule_its_plan_goes_on,
    ),
    (
        "what_passes_is_emitted_with_its_evidence",
        what_passes_is_emitted_with_its_evidence,
    ),
    ("impossible_times_are_refused", impossible_times_are_refused),
    (
        "a_kernel_that_never_ends_does_not_outlast_the_search",
        a_kernel_that_never_ends_does_not_outlast_the_search,
    ),
    (
        "a_schedule_that_is_given_has_to_pass_too",
        a_schedule_that_is_given_has_to_pass_too,
    ),
    (
        "what_the_gpu_refuses_is_not_emitted",
        what_the_gpu_refuses_is_not_emitted,
    ),
    (
        "the_fastest_that_passes_is_emitted",
        the_fastest_that_passes_is_emitted,
    ),
    (
        "what_becomes_of_candidates_is_said",
        what_becomes_of_candidates_is_said,
    ),
    ("what_is_timed_is_told", what_is_timed_is_told),
    ("what_is_timed_is_in_the_log", what_is_timed_is_in_the_log),
    ("every_gpu_of_the_kind_times", every_gpu_of_the_kind_times),
    (
        "kernels_are_timed_while_a_candidate_is_looked_at",
        kernels_are_timed_while_a_candidate_is_looked_at,
    ),
    ("searches_take_turns_at_a_gpu", searches_take_turns_at_a_gpu),
    (
        "a_gpu_that_somebody_keeps_is_given_up",
        a_gpu_that_somebody_keeps_is_given_up,
    ),
    (
        "what_is_known_of_the_nearest_kernel_is_tried_first",
        what_is_known_of_the_nearest_kernel_is_tried_first,
    ),
    (
        "what_was_timed_is_not_timed_again",
        what_was_timed_is_not_timed_again,
    ),
    (
        "what_was_timed_outlives_a_search_that_is_killed",
        what_was_timed_outlives_a_search_that_is_killed,
    ),
    (
        "a_gpu_that_is_there_and_cannot_be_used_is_an_error",
        a_gpu_that_is_there_and_cannot_be_used_is_an_error,
    ),
    (
        "what_cannot_be_made_ahead_is_made_later",
        what_cannot_be_made_ahead_is_made_later,
    ),
    (
        "without_a_gpu_of_the_kind_it_is_simulated",
        without_a_gpu_of_the_kind_it_is_simulated,
    ),
    (
        "what_was_verified_is_written_before_the_end",
        what_was_verified_is_written_before_the_end,
    ),
    (
        "a_search_takes_its_budget_and_a_quarter_and_five_seconds",
        a_search_takes_its_budget_and_a_quarter_and_five_seconds,
    ),
    (
        "nothing_is_written_before_it_is_verified",
        nothing_is_written_before_it_is_verified,
    ),
    (
        "kernels_that_spill_are_replaced_one_by_one",
        kernels_that_spill_are_replaced_one_by_one,
    ),
    (
        "a_campaign_uses_every_gpu_and_times_nothing_twice",
        campaigns::every_gpu_is_used_and_nothing_is_timed_twice,
    ),
    (
        "a_campaign_that_is_killed_loses_nothing",
        campaigns::what_is_killed_loses_nothing,
    ),
    (
        "a_campaign_that_is_killed_loses_nothing_of_a_server",
        campaigns::what_is_killed_loses_nothing_of_a_server,
    ),
    (
        "ones_own_database_answers",
        campaigns::ones_own_database_answers,
    ),
    (
        "machines_know_what_others_timed",
        campaigns::machines_know_what_others_timed,
    ),
    (
        "machines_share_a_campaign",
        campaigns::machines_share_a_campaign,
    ),
    ("machines_come_and_go", campaigns::machines_come_and_go),
    (
        "machines_compile_for_those_that_search",
        compiling::machines_compile_for_those_that_search,
    ),
    (
        "what_a_machine_that_is_killed_compiled_is_compiled_by_others",
        compiling::what_a_machine_that_is_killed_compiled_is_compiled_by_others,
    ),
    (
        "who_has_another_compiler_is_not_asked",
        compiling::who_has_another_compiler_is_not_asked,
    ),
    (
        "what_a_database_has_is_not_searched_again",
        campaigns::what_a_database_has_is_not_searched_again,
    ),
    (
        "what_was_timed_elsewhere_is_stale",
        campaigns::what_was_timed_elsewhere_is_stale,
    ),
    (
        "a_campaign_gives_up_what_no_gpu_can_run",
        campaigns::what_no_gpu_can_run_is_given_up,
    ),
    (
        "a_campaign_that_is_stopped_goes_on",
        campaigns::what_is_stopped_goes_on,
    ),
];

/// Tests that take too long for each run: `cargo test --test pretend -- --ignored`.
const LONG_TESTS: [(&str, fn()); 2] = [
    (
        "a_campaign_that_is_killed_a_hundred_times_loses_nothing",
        campaigns::what_is_killed_a_hundred_times_loses_nothing,
    ),
    (
        "a_campaign_that_is_killed_a_hundred_times_loses_nothing_of_a_server",
        campaigns::what_is_killed_a_hundred_times_loses_nothing_of_a_server,
    ),
];

/// A path whose last name is a manner: what the command line's workers are called by.
const NAME: &str = "TILEWRIGHT_TEST_NAME";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let name = PathBuf::from(std::env::var_os(NAME).unwrap_or_else(|| (&arguments[0]).into()));
    let manner = (name.file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    if manner == "compiles-slowly" {
        pretender::keep_to_two_cores();
    }
    match arguments.get(1).map(String::as_str) {
        Some("optimize" | "campaign" | "campaign-worker" | "db" | "explain") => return cli::main(),
        Some("compile-worker") => pretender::compiler(&manner, &name),
        Some("gpu-worker") => {
            let device = arguments.get(3).and_then(|n| n.parse().ok());
            pretender::gpu(manner, &name, device.unwrap_or(0));
        }
        Some(_) | None => return test(),
    }
    ExitCode::SUCCESS
}

fn test() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A search uses every core, and waits for processes most of the time.
    arguments.test_threads.get_or_insert(2);
    let keep = tracing_subscriber::registry().with(Keep);
    tracing::subscriber::set_global_default(keep).expect("the first");
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let long = LONG_TESTS.map(|test| trial(test).with_ignored_flag(true));
    let trials = TESTS.into_iter().map(trial).chain(long);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// A search with a GPU that pretends in this manner.
fn search(manner: &str) -> Result<Optimized, Error> {
    search_for(ROWS, manner, Effort::LEAST)
}

const ROWS: &str = "program rows\naxis i = 300, j = 1000\nx = parameter f32 [i, j]\n\
                    return f32 [i, j] softmax(x; j)\n";

fn search_for(text: &str, manner: &str, effort: Effort) -> Result<Optimized, Error> {
    search_by(text, manner, effort, true)
}

fn search_by(text: &str, manner: &str, effort: Effort, use_gpu: bool) -> Result<Optimized, Error> {
    search_with(text, manner, |options| Options {
        effort,
        use_gpu,
        ..options
    })
}

fn search_with(
    text: &str,
    manner: &str,
    change: impl FnOnce(Options) -> Options,
) -> Result<Optimized, Error> {
    search_seen(text, manner, change, &mut ())
}

fn search_seen(
    text: &str,
    manner: &str,
    change: impl FnOnce(Options) -> Options,
    observer: &mut dyn Observer,
) -> Result<Optimized, Error> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    search_in(folder.path(), text, manner, change, observer)
}

fn search_in(
    folder: &Path,
    text: &str,
    manner: &str,
    change: impl FnOnce(Options) -> Options,
    observer: &mut dyn Observer,
) -> Result<Optimized, Error> {
    let worker: PathBuf = folder.join(manner);
    let myself = std::env::current_exe().expect("this program's path");
    // A copy where the system has no links.
    #[cfg(unix)]
    std::os::unix::fs::symlink(&myself, &worker).expect("a link");
    #[cfg(not(unix))]
    std::fs::copy(&myself, &worker).map(|_| ()).expect("a copy");
    let program = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let target = tilewright::target("h200").expect("a known target");
    let options = change(Options {
        worker: Some(worker),
        budget: Duration::from_secs(20),
        effort: Effort::LEAST,
        ..Options::new(target)
    });
    let result = optimize(&program, &options, observer);
    let twice = folder.join(manner).with_extension("compiled").join("twice");
    assert!(!twice.exists(), "{manner}: a text was compiled twice");
    result
}

fn refused(manner: &str) -> Vec<String> {
    match search(manner) {
        Ok(optimized) => panic!("{manner}: emits {:?}", optimized.best),
        Err(Error::NothingVerified { examples, .. }) => examples,
        Err(
            e @ (Error::Memory { .. }
            | Error::Values { .. }
            | Error::Gpu(_)
            | Error::Stopped
            | Error::NotTaken { .. }
            | Error::Budget { .. }),
        ) => {
            panic!("{manner}: {e}")
        }
    }
}

fn what_passes_is_emitted_with_its_evidence() {
    let optimized = search("passes-all").expect("everything passes");
    assert!(optimized.best.value().measured.is_some());
    let runs = optimized.best.evidence().kernel.as_ref().map(|k| k.runs);
    assert_eq!(runs, Some(7));
    assert_eq!(State::of(optimized.best.evidence()), State::Verified);
    assert!(optimized.remarks.is_empty(), "{:?}", optimized.remarks);
    // And a report of it tells what was measured from what was not.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, target) = (folder.path().join("art"), tilewright::target("h200"));
    let (program, target) = (ROWS.parse().expect("a program"), target.expect("a target"));
    let place =
        Destination::new(&path, &program, &target, GivesWay::Same).expect("nothing is there");
    tilewright::emit::emit(&program, &target, 0, &optimized, &place).expect("writable");
    let (artifact, best) = (
        Artifact::read(&path).expect("an artifact"),
        optimized.best.value(),
    );
    let page = tilewright::report::artifact(&tilewright::replay::Claims {
        artifact: &artifact,
        program: &program,
        expression: &best.expression,
        tile: &best.tile,
        schedule: &best.schedule,
        target: &target,
    });
    let warm = best.measured.as_ref().expect("a time").warm.median_us;
    let warm = tilewright::report::words::us(warm);
    for part in [
        format!("<b>{warm}</b><span>measured, inputs in L2 (warm)</span>"),
        "<span class=\"badge verified\">verified</span>".to_owned(),
        format!("Measured is the time of the whole program: warm {warm}"),
        "Measured times of whole candidates".to_owned(),
    ] {
        assert!(page.contains(&part), "{part}");
    }
}

fn a_schedule_that_is_given_has_to_pass_too() {
    let found = search("passes-all").expect("everything passes");
    let best = found.best.value();
    let mut edited = best.schedule.clone();
    for kernel in &mut edited.kernels {
        let other = 3 - registers::of(kernel).min(2);
        kernel.set(registers::step(other));
    }
    assert_ne!(edited, best.schedule);
    let tiling = ((*best.expression).clone(), best.tile.clone());
    let one_kernel = "kernel 0\n  warps 1 x 8\n  registers for 3 blocks per SM\n";
    for (text, tiling) in [
        (edited.text(&best.tile), Some(tiling)),
        (one_kernel.to_owned(), None),
    ] {
        let alone = tiling.is_some();
        let given = |options| Options {
            given: Some(Given {
                schedule: ScheduleText::parse(&text, "mine.txt", &tilewright::codegen::language())
                    .expect("a schedule"),
                tiling: tiling.clone(),
            }),
            ..options
        };
        let (optimized, said) = heard(|| search_with(ROWS, "passes-all", given));
        let optimized = optimized.expect("everything passes");
        let value = optimized.best.value();
        assert_eq!(value.schedule.text(&value.tile), text);
        assert!(value.tile == best.tile || !alone);
        assert_eq!(optimized.candidates == 1, alone);
        assert!(value.measured.is_some());
        assert_eq!(State::of(optimized.best.evidence()), State::Verified);
        // No other one was measured beside it.
        let schedule = format!("{:?}", value.schedule);
        let measured = said.iter().filter(|s| s[1].starts_with("measured"));
        let others = measured.clone().filter(|s| !s[0].contains(&schedule));
        assert_eq!(others.count(), 0, "{said:?}");
        assert_eq!(measured.count() == 1, alone, "{said:?}");
        // The GPU has the last word on it.
        match search_with(ROWS, "verifies-nothing", given) {
            Err(Error::NothingVerified { examples, .. }) => {
                let examples = examples.join("; ");
                assert!(examples.contains("verifies-nothing"), "{examples}");
            }
            other => panic!("{other:?}"),
        }
    }
}

fn impossible_times_are_refused() {
    for manner in ["is-too-fast", "is-too-fast-when-cold", "gives-no-number"] {
        let examples = refused(manner).join("; ");
        assert!(examples.contains("roofline"), "{manner}: {examples}");
    }
}

fn what_the_gpu_refuses_is_not_emitted() {
    for manner in ["screens-nothing", "verifies-nothing"] {
        let examples = refused(manner).join("; ");
        assert!(examples.contains(manner), "{manner}: {examples}");
    }
}

fn a_gpu_that_is_there_and_cannot_be_used_is_an_error() {
    for (manner, why) in [
        ("is-broken", "CUDA_ERROR (999)"),
        ("says-nothing", "the worker was lost"),
        ("compiles-nothing", "NVIDIA H200: NVRTC was not found"),
        ("has-no-room", "OUT_OF_MEMORY"),
        ("dies-of-the-reference", "the worker was lost"),
        ("faults", "CUDA_ERROR (700)"),
    ] {
        match search(manner) {
            Err(Error::Gpu(found)) => assert!(found.contains(why), "{manner}: {found}"),
            other => panic!("{manner}: {other:?}"),
        }
        // Unless it is not to be used.
        let found = search_by(ROWS, manner, Effort::LEAST, false).expect("it is not asked");
        assert_eq!(State::of(found.best.evidence()), State::Simulated);
    }
}

/// What is made ahead of the first verification is made by that where its process dies of it.
fn what_cannot_be_made_ahead_is_made_later() {
    let found = search("dies-of-preparing").expect("it is verified all the same");
    assert_eq!(State::of(found.best.evidence()), State::Verified);
}

fn without_a_gpu_of_the_kind_it_is_simulated() {
    for (manner, remark) in [
        ("is-absent", "nothing ran: no GPU: "),
        (
            "is-another",
            "nothing ran: this machine has NVIDIA H100 80GB HBM3 (compute capability 90), the target is h200",
        ),
    ] {
        let found = search(manner).expect("it is made without");
        assert_eq!(State::of(found.best.evidence()), State::Simulated);
        assert!(
            found.remarks.iter().any(|r| r.starts_with(remark)),
            "{:?}",
            found.remarks
        );
    }
}

/// The command line with a GPU that pretends, ended by SIGINT when `ready` says so: its exit code, its report and its folder.
fn interrupted(
    manner: &str,
    ready: impl Fn(&Path) -> bool,
) -> (Option<i32>, Value, tempfile::TempDir) {
    use rustix::process::{Pid, Signal, kill_process};
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("rows.lax"), ROWS).expect("writable");
    let mut command = std::process::Command::new(std::env::current_exe().expect("a path"));
    command
        .args([
            "optimize", "rows.lax", "--target", "h200", "--budget", "2m", "-o", "art", "--json",
        ])
        .current_dir(folder.path())
        .env(NAME, folder.path().join(manner))
        .env("TILEWRIGHT_CACHE", folder.path().join("cache"))
        .env("XDG_CACHE_HOME", folder.path().join("cache"))
        .env("XDG_DATA_HOME", folder.path().join("data"))
        .stdout(std::process::Stdio::piped());
    let child = command.spawn().expect("it starts");
    let begun = Instant::now();
    while !ready(&folder.path().join("art")) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{manner}");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let begun = Instant::now();
    let output = child.wait_with_output().expect("it ends");
    assert!(begun.elapsed() < Duration::from_secs(5), "{manner}");
    let report = serde_json::from_slice(&output.stdout).expect("one JSON object");
    (output.status.code(), report, folder)
}

fn what_was_verified_is_written_before_the_end() {
    // The GPU is busy with a candidate, or with the finals, when the signal comes.
    for manner in ["times-three", "verifies-one"] {
        let (code, report, folder) = interrupted(manner, |art| {
            std::thread::sleep(Duration::from_millis(700));
            read_manifest(art).is_ok()
        });
        assert_eq!(code, Some(0), "{manner}: {report}");
        assert_eq!(report["state"], "verified", "{manner}");
        let manifest = read_manifest(&folder.path().join("art")).expect("an artifact");
        assert_eq!(manifest.search, Search::Interrupted, "{manner}");
        assert_eq!(manifest.state, State::Verified, "{manner}");
        assert!(manifest.measured_us.is_some(), "{manner}");
    }
}

fn a_kernel_that_never_ends_does_not_outlast_the_search() {
    const BUDGET: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    let found = search_with(ROWS, "screens-never", |options| Options {
        budget: BUDGET,
        ..options
    });
    let took = begun.elapsed();
    let error = found
        .map(|o| o.best.value().plan.clone())
        .expect_err("nothing passed");
    assert!(matches!(error, Error::NothingVerified { .. }), "{error}");
    assert!(took <= longest(BUDGET), "{took:?}");
}

/// Programs whose forms, checks or kernels take long; here, where no other test runs meanwhile.
fn a_search_takes_its_budget_and_a_quarter_and_five_seconds() {
    const BUDGET: Duration = Duration::from_secs(5);
    for name in ["conv_pool_clamp", "causal_decode"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = format!("{}/tests/large/{name}.lax", env!("CARGO_MANIFEST_DIR"));
        let mut command = std::process::Command::new(std::env::current_exe().expect("a path"));
        command
            .args(["optimize", &path, "--target", "h200", "--no-gpu", "--json"])
            .args(["-o", "art", "--budget", &format!("{}s", BUDGET.as_secs())])
            .current_dir(folder.path())
            .env(NAME, folder.path().join("passes-all"))
            .env("TILEWRIGHT_CACHE", folder.path().join("cache"))
            .env("XDG_CACHE_HOME", folder.path().join("cache"))
            .env("XDG_DATA_HOME", folder.path().join("data"));
        let begun = Instant::now();
        let output = command.output().expect("it starts");
        let took = begun.elapsed();
        assert!(output.status.success(), "{name}: {output:?}");
        let most = BUDGET.mul_f64(1.25) + Duration::from_secs(5);
        assert!(took <= most, "{name}: {took:?}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        // At least half of the time is for candidates.
        let first = report["first_held_seconds"].as_f64().expect("a time");
        assert!(first <= took.as_secs_f64() / 2.0, "{name}: {report}");
        let stages = report["stage_seconds"].as_object().expect("stages");
        let sum: f64 = stages.values().filter_map(Value::as_f64).sum();
        let whole = report["search_seconds"].as_f64().expect("a time");
        assert!(sum <= whole && sum > 0.9 * whole - 0.5, "{name}: {report}");
        read_manifest(&folder.path().join("art")).expect("an artifact");
    }
}

fn nothing_is_written_before_it_is_verified() {
    for manner in ["loads-slowly", "screens-nothing"] {
        let begun = Instant::now();
        let (code, report, folder) = interrupted(manner, |_| begun.elapsed().as_secs() >= 1);
        // Where all that runs is refused the search may have come to its end before.
        assert!([Some(130), Some(3)].contains(&code), "{manner}: {report}");
        assert_eq!(report["exit"], code.expect("a code"), "{manner}: {report}");
        assert!(!folder.path().join("art").exists(), "{manner}");
    }
}

/// Three products after each other, with a sum over all rows between: several kernels.
const THREE: &str = "program three\naxis i = 512, j = 512, k = 512, l = 512, m = 512\nx = parameter bf16 [i, j]\n\
                u = parameter bf16 [j, k]\nv = parameter bf16 [k, l]\nw = parameter bf16 [l, m]\n\
                y = dot(x, u; j)\nz = dot(y / sum(y * y; i), v; k)\n\
                return bf16 [i, m] dot(z / sum(z * z; i), w; l)\n";

/// Wide ones do not compile.
fn kernels_that_spill_are_replaced_one_by_one() {
    let effort = Effort {
        candidates: 24,
        ..Effort::LEAST
    };
    let kernels = |manner: &str| {
        let optimized = search_for(THREE, manner, effort).expect("something passes");
        let best = optimized.best.value().clone();
        assert!(best.tile.kernels.len() > 2, "{}", best.plan);
        (best, optimized.rejected.get("spills").copied())
    };
    let (free, none) = kernels("passes-all");
    assert_eq!(none, None);
    assert!(free.cuda.launches.iter().any(|l| l.threads >= WIDE));
    let (narrow, some) = kernels("spills-wide");
    assert!(some > Some(0));
    assert!(narrow.cuda.launches.iter().all(|l| l.threads < WIDE));
    assert_ne!(narrow.plan, "", "{narrow:?}");
}

fn the_fastest_that_passes_is_emitted() {
    let optimized = search("verifies-the-third").expect("the third passes");
    assert_eq!(optimized.rejected.get("wrong"), Some(&2));
    assert!(optimized.best.evidence().kernel.is_some());
    // Its history: the result is the last of those that were measured, and what was wrong lost, or is said to be.
    let (best, history) = (optimized.best.value(), &optimized.history);
    let last = history.improvements.last().expect("an improvement");
    assert!(last.measured && last.seen.plan == best.plan);
    assert_eq!(last.seen.schedule, best.schedule.text(&best.tile));
    assert_eq!(history.examples["wrong"], "wrong: not the third");
    let refused = history.losers.iter().filter(|l| l.refused.is_some());
    let wrong = refused.filter(|l| l.refused.as_ref().is_some_and(|r| r.reason == "wrong"));
    assert_eq!(wrong.count(), 2, "{:#?}", history.losers);
    let measured = history.losers.iter().filter(|l| l.measured);
    assert!(measured.clone().count() > 0, "{:#?}", history.losers);
    // A time of another kind stands beside none.
    let others = history.losers.iter().filter(|l| l.refused.is_none());
    assert!(others.into_iter().all(|l| l.measured && l.tried));
}

/// The first tilings of a sum over a convolution's results hold more than a block can. Channels have weights: with places of the window they are no single axis.
fn where_a_kernel_has_no_schedule_its_plan_goes_on() {
    let text = "program mean\naxis n = 2, c = 16, t = 32, h = 64, w = 64, e = 64, kt = 3, kh = 3, kw = 3, ot = 32, oh = 64, ow = 64\n\
        x = parameter f32 [n, c, t, h, w]\nf = parameter f32 [c, e, kt, kh, kw]\ng = parameter f32 [c]\n\
        y = dot(view(x; t -> ot - kt + 1, h -> oh - kh + 1, w -> ow - kw + 1; fill = 0) * g, f; c, kt, kh, kw)\n\
        return f32 [n, e, oh, ow] sum(y; ot)\n";
    let effort = Effort {
        trials: 4,
        ..Effort::LEAST
    };
    let optimized = search_for(text, "verifies", effort).expect("it passes");
    let none = optimized.rejected.get("schedule");
    assert!(none.is_some_and(|n| *n > 1), "{:?}", optimized.rejected);
    assert!(optimized.rejected["schedule"] < optimized.candidates);
}

/// What is said of a candidate: of which one, and what became of it.
type Said = [String; 2];

thread_local! {
    /// What was said on this thread, where that is kept.
    static SAID: RefCell<Option<Vec<Said>>> = const { RefCell::new(None) };
}

/// Keeps it. There is one for all threads: whether anybody listens is remembered by each place that says something.
struct Keep;

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Keep {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Fields([String; 2]);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                match field.name() {
                    "same" => self.0[0] = format!("{value:?}"),
                    "outcome" => self.0[1] = format!("{value:?}"),
                    _ => {}
                }
            }
        }
        if event.metadata().target() == tilewright::pipeline::report::TARGET {
            let mut fields = Fields(Default::default());
            event.record(&mut fields);
            SAID.with_borrow_mut(|said| said.as_mut().map(|all| all.push(fields.0)));
        }
    }
}

/// What comes of a search, and what it says meanwhile.
fn heard<T>(search: impl FnOnce() -> T) -> (T, Vec<Said>) {
    SAID.set(Some(Vec::new()));
    let found = search();
    (found, SAID.take().expect("it was kept"))
}

fn what_becomes_of_candidates_is_said() {
    let (found, said) = heard(|| search("verifies-the-third"));
    found.expect("the third passes");
    let beginning = |start: &str| said.iter().filter(|s| s[1].starts_with(start)).count();
    assert!(beginning("measured 10") >= 3, "{said:?}");
    assert_eq!(beginning("refused: wrong: not the third"), 2);
    // The plainest is held before anything ran; what is shipped comes last, and was measured before.
    assert_eq!(said[0][1], "simulated");
    let shipped = said.last().expect("something");
    assert!(shipped[1].starts_with("verified, 10"), "{shipped:?}");
    let before = said.iter().filter(|s| s[0] == shipped[0]);
    assert!(
        before.clone().any(|s| s[1].starts_with("measured")),
        "{said:?}"
    );
}

/// Keeps what is told of timings.
#[derive(Default)]
struct Timed(Vec<tilewright::Trial>);

impl Observer for Timed {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Timed(trial) = event {
            self.0.push((*trial).clone());
        }
    }
}

/// When the finals began.
#[derive(Default)]
struct Finals(Option<Instant>);

impl Observer for Finals {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Stage("finals") = event {
            self.0 = Some(Instant::now());
        }
    }
}

fn what_takes_long_to_compile_takes_no_time_of_the_result() {
    const BUDGET: Duration = Duration::from_secs(10);
    let mut finals = Finals::default();
    let change = |options| Options {
        budget: BUDGET,
        ..options
    };
    let begun = Instant::now();
    let found = search_seen(ROWS, "compiles-few", change, &mut finals);
    found.expect("what was compiled passes");
    let began = finals.0.expect("there were finals") - begun;
    // Compiling has 0.85 of the budget, and what is picked of it 0.9; while nothing could be tried it would have 1.1.
    assert!(began < BUDGET.mul_f64(1.1), "{began:?}");
}

/// What is still being compiled when trials end is begun anew: it is told from what nobody wants any more.
fn what_was_picked_is_compiled_when_trials_have_ended() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let manner = "compiles-wholes-again";
    let change = |options| Options {
        budget: Duration::from_secs(30),
        effort: Effort::NORMAL,
        ..options
    };
    let found = search_in(folder.path(), THREE, manner, change, &mut ());
    found.expect("the first that was compiled passes");
    let compiled = folder.path().join(manner).with_extension("compiled");
    let all = std::fs::read_dir(compiled).expect("what was compiled");
    let paths = all.map(|entry| entry.expect("a file").path());
    let (asked, marks): (Vec<_>, Vec<_>) =
        paths.partition(|path| path.extension().is_some_and(|e| e == ASKED));
    assert!(!asked.is_empty());
    let again = |path: &&PathBuf| marks.contains(&path.with_extension(""));
    assert!(asked.iter().any(|path| again(&path)), "{asked:?} {marks:?}");
}

/// Not even within the time that the last picks have: there is nothing but the plainest.
fn the_first_pick_is_waited_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let change = |options| Options {
        budget: Duration::from_secs(30),
        effort: Effort::NORMAL,
        ..options
    };
    let mut timed = Timed::default();
    let found = search_in(
        folder.path(),
        THREE,
        "compiles-wholes-late",
        change,
        &mut timed,
    );
    found.expect("the plainest passes");
    let wholes = timed.0.iter().filter(|t| t.whole && t.kernel.is_none());
    let texts: std::collections::BTreeSet<&str> = wholes.map(|t| t.tile.as_str()).collect();
    assert!(texts.len() > 1, "{texts:?}");
}

fn what_is_timed_is_told() {
    let mut timed = Timed::default();
    let best = search_seen(ROWS, "passes-all", |options| options, &mut timed);
    let best = best.expect("everything passes").best;
    let best = best.value();
    let texts = (best.tile.to_string(), best.schedule.text(&best.tile));
    let mut own = (timed.0.iter()).filter(|t| (&t.tile, &t.schedule) == (&texts.0, &texts.1));
    let told = own.find(|t| Some(&t.measured) == best.measured.as_ref());
    let told = told.expect("the time of the result was told");
    assert_eq!((told.gpu.as_str(), told.whole), ("NVIDIA H200", true));
    assert_eq!(told.clock_us, best.predicted.us);
    assert_eq!(told.registers, vec![32; best.tile.kernels.len()]);
    assert!(timed.0.iter().any(|t| !t.whole), "kernels are timed alone");
    for trial in &timed.0 {
        let line = serde_json::to_string(trial).expect("JSON");
        let read: tilewright::Trial = serde_json::from_str(&line).expect("a trial");
        let again = read.again().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(again, *trial, "the models say the same again");
    }
}

fn what_is_timed_is_in_the_log() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trials.sqlite");
    let begun = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time")
        .as_secs();
    let mut timed = Timed::default();
    let log = Log::open(&path).expect("a log");
    let logged = |options| Options {
        memory: Some(MemoryHandle::new(log)),
        seed: 5,
        ..options
    };
    let best = search_seen(ROWS, "passes-all", logged, &mut timed);
    best.expect("everything passes");
    assert!(timed.0.len() > 3);
    let log = Log::existing(&path).expect("a log");
    assert_eq!(log.list(&Filter::default()).expect("trials"), timed.0);
    let program: tilewright::ir::Program = ROWS.parse().expect("a program");
    let target = tilewright::target("h200").expect("a known target");
    for trial in &timed.0 {
        assert_eq!((trial.seed, trial.program.as_str()), (5, "rows"));
        assert_eq!(trial.program_hash, program_hash(&program));
        assert_eq!(
            (trial.gpu.as_str(), trial.driver.as_str()),
            ("NVIDIA H200", "580.95.05")
        );
        assert!(trial.compiler.ends_with(" 13.0"), "{}", trial.compiler);
        assert!((begun..begun + 600).contains(&trial.when), "{}", trial.when);
        let telemetry = trial.measured.telemetry.expect("the sensors are there");
        assert_eq!(
            (telemetry.sm_mhz, telemetry.power_w),
            (Some(1755.0), Some(512.5))
        );
        // The key can be had of texts alone.
        let tile = tilewright::ir::TileProgram::unchecked(&trial.tile).expect("a tile program");
        let language = tilewright::codegen::language();
        let schedule =
            tilewright::ir::Schedule::parse(&trial.schedule, "schedule", &language, &tile);
        let schedule = schedule.expect("a schedule");
        let cuda = tilewright::codegen::lower(&tile, &schedule, &target).expect("a text");
        let conditions = Conditions {
            arch: &target.arch,
            compiler: &trial.compiler,
            timed_on: &trial.timed_on(),
        };
        assert_eq!(trial.key, TrialKey::new(&tile, &cuda, conditions));
        let newest = timed.0.iter().rfind(|t| t.key == trial.key);
        assert_eq!(log.recall(&trial.key).expect("readable").as_ref(), newest);
        assert_eq!(trial.kernel, KernelName::new(&tile));
        assert!(trial.whole || trial.kernel.is_some());
    }
}

/// Each device has a clock of its own.
fn every_gpu_of_the_kind_times() {
    for (gpus, clocks) in [(u32::MAX, &[1755.0, 1756.0][..]), (1, &[1755.0])] {
        let mut timed = Timed::default();
        let found = search_seen(ROWS, "is-two", |o| Options { gpus, ..o }, &mut timed);
        found.expect("everything passes");
        let telemetry = timed.0.iter().filter_map(|t| t.measured.telemetry);
        let mut seen: Vec<f64> = telemetry.filter_map(|t| t.sm_mhz).collect();
        seen.sort_by(f64::total_cmp);
        seen.dedup();
        assert_eq!(seen, clocks);
    }
}

/// The first GPU is busy with one until the other has timed more kernels than were proposed before.
fn kernels_are_timed_while_a_candidate_is_looked_at() {
    let manner = "screens-beside-two";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let effort = Effort {
        candidates: 100,
        trials: 600,
        ..Effort::LEAST
    };
    let change = |options| Options { effort, ..options };
    let found = search_in(folder.path(), ROWS, manner, change, &mut ());
    found.expect("everything passes");
    let notes = folder.path().join(manner).with_extension("notes");
    assert!(
        notes.join("went-on").exists(),
        "nothing was timed meanwhile"
    );
}

/// Two at once on one GPU, which notes whether it was asked by both at the same moment.
fn searches_take_turns_at_a_gpu() {
    let manner = "times-alone";
    let above = tempfile::tempdir().expect("a temporary folder");
    let notes = above.path().join("notes");
    std::fs::create_dir(&notes).expect("a folder for notes");
    std::thread::scope(|scope| {
        let searches = ["one", "two"].map(|name| {
            let folder = above.path().join(name);
            std::fs::create_dir(&folder).expect("a folder");
            let own = folder.join(manner).with_extension("notes");
            std::os::unix::fs::symlink(&notes, own).expect("a link");
            let locks = Some(above.path().join("locks"));
            scope.spawn(move || {
                let change = |options| Options { locks, ..options };
                search_in(&folder, ROWS, manner, change, &mut ()).map(|found| found.work.trials)
            })
        });
        for search in searches {
            let trials = search.join().expect("no panic").expect("everything passes");
            assert!(trials >= 8, "{trials}");
        }
    });
    assert!(!notes.join("at-once").exists(), "both timed at once");
}

/// Who waits for it gives up when the budget is over, and says why there is no result.
fn a_gpu_that_somebody_keeps_is_given_up() {
    const BUDGET: Duration = Duration::from_secs(3);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let locks = GpuLocks::open(folder.path()).expect("our own");
    let lock = locks.lock("GPU-pretended-0", || false);
    let lock = lock.expect("it can be locked").expect("it is free");
    let change = |options| Options {
        locks: Some(folder.path().to_path_buf()),
        budget: BUDGET,
        ..options
    };
    let begun = Instant::now();
    match search_with(ROWS, "passes-all", change) {
        Err(Error::Gpu(why)) => assert!(why.contains("another process"), "{why}"),
        other => panic!("{:?}", other.map(|found| found.work)),
    }
    let took = begun.elapsed();
    let most = BUDGET.mul_f64(1.25) + Duration::from_secs(5);
    assert!((BUDGET..most).contains(&took), "{took:?}");
    drop(lock);
    search_with(ROWS, "passes-all", change).expect("it is free again");
    // Where nothing can be locked nobody is waited for, and it is said once.
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("writable");
    let change = |options| Options {
        locks: Some(file.clone()),
        ..options
    };
    let remarks = search_with(ROWS, "is-two", change).expect("it goes on without");
    let remarks = remarks.remarks;
    assert!(
        remarks.len() == 1 && remarks[0].starts_with("no GPU is locked"),
        "{remarks:?}"
    );
}

/// Of a program with other extents: what was fastest of its kernels is tried at once, where the clock would put it later.
fn what_is_known_of_the_nearest_kernel_is_tried_first() {
    // What is fastest may come first by itself: in which order kernels are timed depends on which are compiled first.
    let late = (0..5)
        .map(|_| known_of_the_nearest_kernel())
        .find(|n| *n > 0);
    assert!(late.is_some(), "what is fastest came first everywhere");
}

/// Of how many kernels the fastest schedule came late in the first search. In the second it has to come soon.
fn known_of_the_nearest_kernel() -> usize {
    // Kernels under way are timed in about the order in which they were proposed.
    const SOON: usize = 4;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trials.sqlite");
    // The kernels of a search by their texts but for the extent that differs, each with the times of its schedules, in turn. No other is as near.
    let search = |text: &str, trials: usize| {
        let log = Log::open(&path).expect("a log");
        let change = |options| Options {
            memory: Some(MemoryHandle::new(log)),
            effort: Effort {
                trials,
                ..Effort::LEAST
            },
            ..options
        };
        let mut timed = Timed::default();
        let found = search_seen(text, "likes-narrow", change, &mut timed);
        found.expect("everything passes");
        let mut kernels: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for trial in timed.0.iter().filter(|trial| !trial.whole) {
            let like = trial.tile.replace("i = 330", "i = 300");
            let us = trial.measured.warm.median_us;
            kernels.entry(like).or_default().push(us);
        }
        kernels
    };
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let soon = |times: &[f64]| least(&times[..SOON.min(times.len())]);
    let before = search(ROWS, 400);
    let after = search(&ROWS.replace("i = 300", "i = 330"), 100);
    let mut late = 0;
    for (like, times) in &after {
        let known = before.get(like).map(|known| (soon(known), least(known)));
        if let Some((_, best)) = known.filter(|(soon, best)| soon > best) {
            late += 1;
            assert!(soon(times) <= best, "{like}: {best}, then {times:?}");
        }
    }
    late
}

/// Beside what is timed with care in the end, which is measured again whatever is known.
fn what_was_timed_is_not_timed_again() {
    const FINALS: usize = 1 + 8 + 4;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trials.sqlite");
    let search = || {
        let log = Log::open(&path).expect("a log");
        let logged = |options| Options {
            memory: Some(MemoryHandle::new(log)),
            effort: Effort {
                trials: 40,
                ..Effort::LEAST
            },
            ..options
        };
        let mut timed = Timed::default();
        let found = search_seen(ROWS, "passes-all", logged, &mut timed);
        (found.expect("everything passes").work, timed.0)
    };
    let ((first, before), (second, after)) = (search(), search());
    assert!(first.trials >= 20 && first.recalled == 0, "{first:?}");
    assert!(second.recalled >= 8, "{first:?}, then {second:?}");
    let again = |t: &&tilewright::Trial| before.iter().any(|b| b.key == t.key);
    let again = after.iter().filter(again).count();
    assert!(again <= FINALS, "{again} of {}", after.len());
}

/// With SIGKILL, while it waits for the fourth time; the log is the user's own.
fn what_was_timed_outlives_a_search_that_is_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("rows.lax"), ROWS).expect("writable");
    let mut command = std::process::Command::new(std::env::current_exe().expect("a path"));
    command
        .args(["optimize", "rows.lax", "--target", "h200", "--budget", "2m"])
        .current_dir(folder.path())
        .env(NAME, folder.path().join("times-three"))
        .env("TILEWRIGHT_CACHE", folder.path().join("cache"))
        .env("XDG_CACHE_HOME", folder.path().join("cache"))
        .env("XDG_DATA_HOME", folder.path().join("data"));
    let mut child = command.spawn().expect("it starts");
    let begun = Instant::now();
    let path = folder.path().join("data/tilewright/trials.sqlite");
    let trials = || {
        let log = Log::existing(&path).and_then(|log| log.list(&Filter::default()));
        log.unwrap_or_default()
    };
    while trials().len() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it runs");
    child.wait().expect("it ended");
    let left = trials();
    assert_eq!(left.len(), 3);
    // Whoever comes next goes on.
    let mut log = Log::open(&path).expect("a log");
    log.add(&left[0]).expect("it is added");
    assert_eq!(trials().len(), 4);
}

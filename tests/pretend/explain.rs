//! `explain` beside GPUs that pretend: what is said of lines that were left out is what the GPU said.

use super::{NAME, search_in};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tilewright::artifact::{Destination, GivesWay};
use tilewright::device::locks::GpuLocks;
use tilewright::{Effort, Options};

/// Its schedule has lines that can be left out, and others.
const PROGRAM: &str = "program twice\naxis t = 4096, m = 4096, n = 512, o = 512\nx = parameter f16 [t, m]\n\
                       w = parameter f16 [m, n]\nu = parameter f16 [n, o]\nreturn f16 [t, o] dot(dot(x, w; m), u; n)\n";

/// A folder with an artifact `art`.
fn made() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let change = |options| Options {
        use_gpu: false,
        effort: Effort::LEAST,
        ..options
    };
    let made = search_in(folder.path(), PROGRAM, "passes-all", change, &mut ());
    let made = made.expect("everything passes");
    let target = tilewright::target("h200").expect("a known target");
    let program = PROGRAM.parse().expect("a program");
    let path = folder.path().join("art");
    let place = Destination::new(&path, &program, &target, GivesWay::Same);
    let place = place.expect("nothing is there");
    tilewright::emit::emit(&program, &target, 0, &made, &place).expect("writable");
    folder
}

fn command(folder: &Path, manner: &str, options: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command
        .args(["explain", "art"])
        .args(options)
        .current_dir(folder)
        .env(NAME, folder.join(manner))
        .env("TILEWRIGHT_CACHE", folder.join("cache"))
        .env("XDG_CACHE_HOME", folder.join("cache"));
    command
}

fn text(folder: &Path, manner: &str, options: &[&str]) -> String {
    let output = command(folder, manner, options).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{manner}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn explained(folder: &Path, manner: &str) -> Value {
    let text = text(folder, manner, &["--json", "--seed", "3"]);
    serde_json::from_str(&text).expect("one JSON object")
}

/// What came on the GPU of the lines that can be left out.
fn measured(explained: &Value) -> Vec<&Value> {
    let lines = explained["transformations"].as_array().expect("lines");
    let of = |kind| lines.iter().filter(move |l| !l["without"][kind].is_null());
    assert!(of("required").count() > 0 && of("refused").count() > 0);
    assert!(lines.iter().any(|l| l["followers"].is_array()));
    let (found, others): (Vec<_>, Vec<_>) =
        lines.iter().partition(|l| !l["without"]["takes"].is_null());
    assert!(others.iter().all(|l| l["measured"].is_null()), "{others:?}");
    assert!(found.len() > 2, "{explained}");
    found.into_iter().map(|l| &l["measured"]).collect()
}

fn median(measurement: &Value, kind: &str) -> f64 {
    let median = &measurement[kind]["median_us"];
    median.as_f64().expect("a number")
}

/// Later ones take longer: seven were timed in one run, the artifact's own first, and the rest in the next one.
pub(super) fn lines_are_worth_what_the_gpu_says() {
    let folder = made();
    let explained = explained(folder.path(), "passes-all");
    let own = &explained["measured"]["own"];
    assert_eq!((median(own, "warm"), median(own, "cold")), (1001.0, 1011.0));
    assert_eq!(explained["measured"]["timed_on"]["gpu"], "NVIDIA H200");
    assert_eq!(explained["measured"]["seed"], 3);
    let mut said = Vec::new();
    for (n, found) in (0..).zip(measured(&explained)) {
        let takes = &found["takes"];
        for (kind, first) in [("warm", 1001.0), ("cold", 1011.0)] {
            let own = first + f64::from(n / 7 * 8);
            assert_eq!(median(&takes["own"], kind), own);
            let expected = own + f64::from(n % 7 + 1);
            assert_eq!(median(&takes["without"], kind), expected);
            let ratio = expected / own;
            for figure in ["least", "median", "most"] {
                assert_eq!(takes[kind][figure].as_f64(), Some(ratio), "{takes}");
            }
            said.push(format!("{kind} {ratio:.3} ({ratio:.3} to {ratio:.3})"));
        }
    }
    let text = text(folder.path(), "passes-all", &[]);
    for one in said {
        assert!(text.contains(&one), "no {one} in {text}");
    }
    assert!(text.contains("times as long") && !text.contains("nothing was measured"));
    // A run that cannot be is done again by parts, each beside the artifact's own.
    let by_parts = self::explained(folder.path(), "times-two");
    for (n, found) in (0..)
        .map(|n| 1002.0 + 2.0 * f64::from(n))
        .zip(measured(&by_parts))
    {
        let takes = &found["takes"];
        let [own, without] = ["own", "without"].map(|of| median(&takes[of], "warm"));
        assert_eq!((own, without), (n, n + 1.0), "{takes}");
    }
}

/// No time is said of what spills, gives something else or cannot be timed; of what is the artifact's own it is.
pub(super) fn lines_without_which_nothing_runs_have_no_time() {
    let folder = made();
    for (manner, why) in [
        ("screens-one", "wrong: not the first"),
        ("spills-others", "spills: 8 bytes of local memory"),
        ("times-itself", "CUDA_ERROR (700)"),
    ] {
        let explained = explained(folder.path(), manner);
        assert_eq!(median(&explained["measured"]["own"], "warm"), 1001.0);
        for found in measured(&explained) {
            let said = found["refused"].as_str().unwrap_or_default();
            assert!(said.contains(why), "{manner}: {found}");
        }
        // The first texts that are compiled are the artifact's own once more.
        let compiled = folder.path().join(manner).with_extension("compiled");
        std::fs::remove_dir_all(compiled).expect("something was compiled");
        let text = text(folder.path(), manner, &[]);
        assert!(text.contains("; not timed: ") && text.contains(why));
        assert!(!text.contains("; measured: "), "{manner}: {text}");
    }
}

pub(super) fn without_a_gpu_of_the_kind_lines_have_the_clock_alone() {
    let folder = made();
    for (manner, options, why) in [
        ("is-absent", &[][..], "(no GPU: "),
        ("is-another", &[], "this machine has NVIDIA H100"),
        ("is-broken", &["--no-gpu"], "(--no-gpu)"),
    ] {
        let text = text(folder.path(), manner, options);
        let last = text.lines().last().expect("a note");
        assert!(last.contains("nothing was measured") && last.contains(why));
        assert!(text.contains("slower without") && !text.contains("; measured"));
    }
    for (manner, code, why) in [
        ("is-broken", 5, "CUDA_ERROR (999)"),
        ("compiles-nothing", 5, "nvrtc was not found"),
        ("has-no-room", 5, "OUT_OF_MEMORY"),
        ("faults", 5, "CUDA_ERROR (700)"),
        ("screens-nothing", 3, "the artifact's own kernels: wrong"),
        ("is-too-fast", 3, "needed by the roofline"),
        ("is-too-fast-when-cold", 3, "needed by the roofline"),
    ] {
        let output = command(folder.path(), manner, &[]).output();
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{manner}: {said}");
        assert!(said.contains(why), "{manner}: {said}");
        assert_eq!(said.contains("--no-gpu goes on"), code == 5, "{said}");
        assert!(output.stdout.is_empty(), "{manner}: {output:?}");
    }
}

pub(super) fn explanations_wait_for_a_gpu() {
    let folder = made();
    let locks = GpuLocks::open(&folder.path().join("cache/tilewright/gpus")).expect("our own");
    let lock = locks.lock("GPU-pretended-0", || false);
    let lock = lock.expect("it can be locked").expect("it is free");
    let mut command = command(folder.path(), "passes-all", &[]);
    let mut child = command.stdout(Stdio::null()).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(700));
    let ended = child.try_wait().expect("a child");
    drop(lock);
    assert_eq!(ended, None, "it timed on a GPU that is another's");
    assert!(child.wait().expect("it ends").success());
}

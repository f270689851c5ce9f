//! The command line: bad input gives one clear message, the right exit code, and leaves nothing behind; good input gives what
//! the reference says.

use codegen::machine::Machine;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tilewright::npz::{self, Array, Wanted};

const PROGRAM: &str = "\
program rows
axis i = 6, j = 10
x = parameter f32 [i, j]
w = parameter f16 [j]
return f32 [i, j] softmax(x * w; j)
";

/// A folder with `rows.lax` and matching `in.npz`.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    /// The user's data folder.
    data: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let data = tempfile::tempdir().expect("a temporary folder");
        let place = Self { folder, data };
        fs::write(place.path("rows.lax"), PROGRAM).expect("writable");
        npz::write(&place.path("in.npz"), &inputs()).expect("writable");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Names of everything in the folder, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.folder.path())
            .expect("a folder")
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect();
        names.sort();
        names
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .output()
            .expect("the program starts")
    }

    /// The program, in the folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tilewright"));
        let cache = self.folder.path().join("../tilewright-test-cache");
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("TILEWRIGHT_CACHE", cache)
            .env("XDG_DATA_HOME", self.data.path());
        command
    }

    /// Runs, expects success, and gives standard output.
    pub(crate) fn does(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        let message = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{arguments:?}: {message}");
        String::from_utf8(run.stdout).expect("UTF-8")
    }

    /// Runs, expects the exit code and a message with all parts, and that no file came or went.
    pub(crate) fn refuses(&self, arguments: &[&str], code: i32, parts: &[&str]) {
        let before = self.names();
        let output = self.run(arguments);
        let message = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        for part in parts {
            assert!(
                message.contains(part),
                "{arguments:?}: no `{part}` in: {message}"
            );
        }
        assert!(!message.contains("panicked"), "{message}");
        assert_eq!(
            message.lines().filter(|l| l.starts_with("error: ")).count(),
            1,
            "one message: {message}"
        );
        assert!(
            output.stdout.is_empty(),
            "{arguments:?}: standard output is for results"
        );
        assert_eq!(self.names(), before, "{arguments:?}");
    }
}

fn inputs() -> [Array; 2] {
    let wave = |n: usize| (0..n).map(|k| (k as f64 * 0.7).sin()).collect();
    [
        Array {
            name: "x".to_owned(),
            shape: vec![6, 10],
            data: wave(60),
            dtype: ir::Dtype::F32,
        },
        Array {
            name: "w".to_owned(),
            shape: vec![10],
            data: wave(10),
            dtype: ir::Dtype::F32,
        },
    ]
}

fn outputs(path: &Path) -> Vec<f64> {
    let wanted = Wanted {
        name: "out0".to_owned(),
        shape: vec![6, 10],
    };
    npz::read(path, &[wanted])
        .expect("the results")
        .remove(0)
        .data
}

/// The same softmax, written by hand.
fn expected() -> Vec<f64> {
    let [x, w] = inputs();
    let mut all = Vec::new();
    for row in x.data.chunks(10) {
        let e: Vec<f64> = row
            .iter()
            .zip(&w.data)
            .map(|(x, w)| (x * w).exp())
            .collect();
        let sum: f64 = e.iter().sum();
        all.extend(e.iter().map(|e| e / sum));
    }
    all
}

fn assert_close(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (f, w) in found.iter().zip(wanted) {
        assert!((f - w).abs() <= 1e-12, "expected {w}, found {f}");
    }
}

#[test]
fn eval_gives_the_reference() {
    let place = Place::new();
    let output = place.run(&[
        "eval",
        "rows.lax",
        "--inputs",
        "in.npz",
        "--outputs",
        "out.npz",
    ]);
    assert!(output.status.success(), "{output:?}");
    assert_close(&outputs(&place.path("out.npz")), &expected());
}

#[test]
fn optimize_writes_an_artifact_that_simulates_to_the_reference() {
    let place = Place::new();
    let run = place.run(&[
        "optimize", "rows.lax", "--target", "h200", "--budget", "5s", "-o", "art/rows", "--json",
        "--no-gpu",
    ]);
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).expect("one JSON object");
    let seconds = |key: &str| report[key].as_f64().unwrap();
    let first = seconds("first_held_seconds");
    assert!(
        0.0 < first && first <= seconds("search_seconds"),
        "{report}"
    );
    assert_eq!(report["program"], "rows");
    assert_eq!(report["target"], "h200");
    assert!(report["candidates"].as_u64().expect("a count") > 0);
    assert!(report["rejected"].is_object());
    assert!(report["search_seconds"].is_number());
    let best = &report["best"];
    for field in ["kernels", "flops", "bytes", "predicted_us"] {
        assert!(best[field].as_f64().expect(field) > 0.0, "{field}");
    }
    let by_kernel = best["by_kernel"].as_array().expect("an entry a kernel");
    assert_eq!(Some(by_kernel.len() as u64), best["kernels"].as_u64());
    let sum: f64 = by_kernel
        .iter()
        .map(|k| k["predicted_us"].as_f64().expect("a time"))
        .sum();
    assert!(
        (sum - best["predicted_us"].as_f64().expect("a time")).abs() < 1e-9,
        "{sum}"
    );
    assert!(best["measured_us"].is_null(), "nothing ran on a GPU");
    assert!(!best["claims"].as_array().expect("claims").is_empty());
    assert_eq!(report["state"], "simulated");
    for name in [
        "__init__.py",
        "kernel.cu",
        "program.lax",
        "expression.lax",
        "tile.txt",
        "schedule.txt",
        "manifest.json",
    ] {
        assert!(place.path("art/rows").join(name).is_file(), "{name}");
    }

    let run = place.run(&[
        "simulate",
        "art/rows",
        "--inputs",
        "in.npz",
        "--outputs",
        "sim.npz",
    ]);
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    assert_close(&outputs(&place.path("sim.npz")), &expected());
    assert!(run.stderr.is_empty(), "a warning about a whole artifact");
    let tile = place.path("art/rows/tile.txt");
    let changed = format!("{}\n", fs::read_to_string(&tile).expect("a file"));
    fs::write(&tile, changed).expect("a file");
    #[rustfmt::skip]
    let run = place.run(&["simulate", "art/rows", "--inputs", "in.npz", "--outputs", "sim.npz"]);
    let warned = String::from_utf8_lossy(&run.stderr).contains("tile.txt");
    assert!(run.status.success() && warned, "{run:?}");

    let run = place.run(&["show", "art/rows"]);
    let text = String::from_utf8(run.stdout).expect("UTF-8");
    for part in [
        "program rows",
        "kernel grid(",
        "=== schedule ===\nkernel 0\n",
        "=== model ===",
        "launch 0.9",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}

/// `candidate 3: predicted 5.6 us; simulated; plan: …` as number, prediction and outcome.
fn said(line: &str) -> Option<(u64, f64, &str)> {
    let (number, rest) = line
        .strip_prefix("candidate ")?
        .split_once(": predicted ")?;
    let (predicted, rest) = rest.split_once(" us; ")?;
    let (outcome, plan) = rest.split_once("; plan: ")?;
    plan.starts_with("kernel 0: ").then_some(())?;
    Some((number.parse().ok()?, predicted.parse().ok()?, outcome))
}

#[test]
fn verbose_says_what_becomes_of_each_candidate() {
    let place = Place::new();
    let search = |more: &[&str]| {
        let usual = [
            "optimize", "rows.lax", "--target", "h200", "--budget", "5s", "--no-gpu", "--json",
        ];
        let run = place.run(&[&usual, more].concat());
        assert!(run.status.success(), "{run:?}");
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
        let lines = String::from_utf8(run.stderr).expect("UTF-8");
        (report, lines)
    };
    let (report, text) = search(&["--verbose"]);
    let lines: Vec<_> = text
        .lines()
        .map(|line| said(line).unwrap_or_else(|| panic!("no line of a candidate: {line}")))
        .collect();
    // As many as were counted, numbered from 1 on; what comes twice keeps its number.
    assert_eq!(
        Some(lines.len() as u64),
        report["candidates"].as_u64(),
        "{text}"
    );
    let mut most = 0;
    for (number, predicted, outcome) in &lines {
        assert!(
            (1..=most + 1).contains(number) && *predicted > 0.0,
            "{text}"
        );
        most = most.max(*number);
        let known = ["simulated", "refused: ", "passed over: "];
        assert!(known.iter().any(|k| outcome.starts_with(k)), "{text}");
    }
    let best = report["best"]["predicted_us"].as_f64().expect("a time");
    let shipped =
        |line: &&(u64, f64, &str)| (line.1 - best).abs() <= 0.051 && line.2 == "simulated";
    assert!(lines.iter().any(|l| shipped(&l)), "{best}: {text}");

    // Said twice it tells more; said not at all, nothing.
    let (_, text) = search(&["-vv"]);
    assert!(text.lines().any(|l| said(l).is_some()), "{text}");
    assert!(
        text.lines()
            .any(|l| l.contains("DEBUG") && !l.contains("egg")),
        "{text}"
    );
    assert_eq!(search(&[]).1, "");
}

#[test]
fn the_same_search_twice_gives_the_same_files() {
    let place = Place::new();
    let mut texts = Vec::new();
    for folder in ["a", "b"] {
        let run = place.run(&[
            "optimize", "rows.lax", "--target", "h200", "--budget", "20s", "-o", folder,
            "--no-gpu", "--seed", "7",
        ]);
        assert!(
            run.status.success(),
            "{}",
            String::from_utf8_lossy(&run.stderr)
        );
        let text = |name: &str| fs::read_to_string(place.path(folder).join(name)).expect("a file");
        texts.push(["kernel.cu", "tile.txt", "schedule.txt", "expression.lax"].map(text));
    }
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn show_expands_sugar() {
    let place = Place::new();
    let run = place.run(&["show", "rows.lax"]);
    let text = String::from_utf8(run.stdout).expect("UTF-8");
    assert!(
        run.status.success() && text.contains("exp(") && !text.contains("softmax"),
        "{text}"
    );
}

#[test]
fn targets_are_listed() {
    let place = Place::new();
    let run = place.run(&["targets", "--json"]);
    let all: Vec<serde_json::Value> = serde_json::from_slice(&run.stdout).expect("JSON");
    for name in ["h200", "h100", "a100", "l40s", "rtx4090", "b200"] {
        assert!(all.iter().any(|t| t["name"] == name), "{name}");
    }
}

#[test]
fn bad_programs_are_refused() {
    let place = Place::new();
    for (name, text, part) in [
        ("empty.lax", "", "program"),
        (
            "axis.lax",
            "program p\naxis i = 0\nx = parameter f32 [i]\nreturn f32 [i] x\n",
            "i",
        ),
        ("name.lax", "program p\naxis i = 4\nreturn f32 [i] y\n", "y"),
        (
            "dtype.lax",
            "program p\naxis i = 4\nx = parameter f31 [i]\nreturn f32 [i] x\n",
            "f31",
        ),
    ] {
        fs::write(place.path(name), text).expect("writable");
        place.refuses(
            &["optimize", name, "--target", "h200", "-o", "art"],
            1,
            &[name, part],
        );
        place.refuses(&["show", name], 1, &[name, part]);
    }
    fs::write(place.path("latin.lax"), [0x70, 0xff, 0xfe]).expect("writable");
    place.refuses(&["show", "latin.lax"], 1, &["latin.lax", "UTF-8"]);
    place.refuses(&["show", "absent.lax"], 1, &["absent.lax", "No such file"]);
}

#[test]
fn what_can_nowhere_be_compared_is_not_verified() {
    let place = Place::new();
    for (name, value) in [("nan", "x / 0"), ("inf", "exp(exp(x * x + 1000))")] {
        let file = format!("{name}.lax");
        let text =
            format!("program {name}\naxis i = 64\nx = parameter f32 [i]\nreturn f32 [i] {value}\n");
        fs::write(place.path(&file), text).expect("writable");
        #[rustfmt::skip]
        let all = ["optimize", &file, "--target", "h200", "--budget", "2s", "--no-gpu", "-o", "art"];
        place.refuses(
            &all,
            3,
            &["no candidate passed", "output elements could be decided"],
        );
    }
}

#[test]
fn errors_are_json_where_results_are() {
    let place = Place::new();
    fs::create_dir(place.path("mine")).expect("a folder");
    fs::write(place.path("mine/notes.md"), "mine").expect("writable");
    let cases: [(&[&str], i32, &str); 7] = [
        (
            &["optimize", "absent.lax", "--target", "h200"],
            1,
            "absent.lax",
        ),
        (
            &["optimize", "rows.lax", "--target", "h900"],
            1,
            "unknown target",
        ),
        (
            &[
                "optimize", "rows.lax", "--target", "h200", "--no-gpu", "-o", "mine",
            ],
            1,
            "notes.md",
        ),
        (
            &["optimize", "rows.lax", "--budget", "soon"],
            2,
            "expected a time",
        ),
        (&["verify", "mine"], 1, "manifest.json"),
        (&["bench", "mine"], 1, "manifest.json"),
        (&["rules", "--check", "absent.rules"], 1, "absent.rules"),
    ];
    for (words, code, part) in cases {
        let run = place.run(&[words, &["--json"]].concat());
        assert_eq!(run.status.code(), Some(code), "{words:?}");
        let report: serde_json::Value =
            serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}"));
        assert_eq!(report["exit"], code, "{words:?}");
        assert!(
            report["error"].as_str().expect("a text").contains(part),
            "{report}"
        );
    }
}

#[test]
fn a_refused_search_makes_no_folder() {
    let place = Place::new();
    let far =
        "program far\naxis i = 1000000000000\nx = parameter f32 [i]\nreturn f32 [] sum(x; i)\n";
    fs::write(place.path("far.lax"), far).expect("writable");
    place.refuses(
        &["optimize", "far.lax", "--target", "h200", "--no-gpu"],
        1,
        &["4000.0 GB"],
    );
    assert!(!place.path("out").exists());
    // What cannot be made is still refused before the search.
    place.refuses(
        &[
            "optimize",
            "rows.lax",
            "--target",
            "h200",
            "-o",
            "rows.lax/deep/art",
        ],
        1,
        &["rows.lax"],
    );
}

/// The first number in front of `unit`.
fn before(text: &str, unit: &str) -> f64 {
    let (text, _) = text
        .split_once(unit)
        .unwrap_or_else(|| panic!("no `{unit}` in {text}"));
    let number = text.rsplit([' ', '\n']).next().expect("a word");
    number
        .parse()
        .unwrap_or_else(|_| panic!("no number: {number}"))
}

#[test]
fn what_is_printed_is_what_show_says_and_seeds_are_fresh() {
    let place = Place::new();
    let search = |more: &[&str]| {
        let usual = [
            "optimize", "rows.lax", "--target", "h200", "--budget", "20s", "--no-gpu", "-o", "art",
        ];
        let run = place.run(&[&usual, more].concat());
        assert!(run.status.success(), "{run:?}");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (text(run.stdout), text(run.stderr))
    };
    let (report, lines) = search(&[]);
    // A line for each improvement, and the last one is what is shipped.
    let lines: Vec<&str> = lines.lines().collect();
    assert!(
        !lines.is_empty() && lines.iter().all(|l| l.starts_with("after ")),
        "{lines:?}"
    );
    let last = before(lines[lines.len() - 1], " us by the model");
    assert_eq!(last, before(&report, " us by the model"), "{report}");
    let machines = place.does(&["show", "art", "--machine"]);
    for text in machines.split_inclusive("\n)\n") {
        let read: Machine = text.parse().expect("a machine program");
        assert_eq!(read.to_string(), text);
    }
    let schedule = place.does(&["show", "art", "--schedule"]);
    let stored = fs::read_to_string(place.path("art/schedule.txt")).expect("a file");
    assert_eq!(schedule, stored);
    assert!(schedule.starts_with("kernel 0\n"), "{schedule}");
    let shown = place.does(&["show", "art"]);
    let (_, table) = shown.split_once("=== model ===\n").expect("a table");
    let (table, _) = table.split_once("\n\n").expect("an end");
    assert!(
        report.contains(table.trim_end()),
        "no\n{table}\nin\n{report}"
    );
    let rows = table
        .lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok());
    let sum: f64 = rows.sum();
    assert!(
        (sum - last).abs() < 0.06 * table.lines().count() as f64,
        "{sum}, {last}: {table}"
    );
    for part in ["simulated", "seed "] {
        assert!(report.contains(part), "no `{part}` in {report}");
    }
    let seed = |report: &str| {
        let (_, rest) = report.split_once("; seed ").expect("a seed");
        rest.split(['\n', ';'])
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .expect("a number")
    };
    let first = seed(&report);
    let recorded = || tilewright::artifact::read_manifest(&place.path("art")).expect("a manifest");
    assert_eq!(recorded().seed, first);
    assert_eq!(recorded().evidence.tiling.seed, first);
    let replay = place.does(&["verify", "art", "--replay"]);
    assert!(
        replay.contains(&format!("drawn from seed {first}")),
        "{replay}"
    );
    let (report, _) = search(&[]);
    assert_ne!(seed(&report), first);
    let (report, _) = search(&["--seed", "5"]);
    assert_eq!(seed(&report), 5);
}

#[test]
fn bad_arrays_are_refused() {
    let place = Place::new();
    let eval = |inputs: &str, outputs: &str, parts: &[&str]| {
        place.refuses(
            &["eval", "rows.lax", "--inputs", inputs, "--outputs", outputs],
            1,
            parts,
        );
    };
    eval("absent.npz", "out.npz", &["absent.npz", "No such file"]);
    eval(
        "in.npz",
        "no/such/folder/out.npz",
        &["no/such/folder/out.npz"],
    );
    eval("in.npz", ".", &["is no file"]);
    let whole = fs::read(place.path("in.npz")).expect("readable");
    fs::write(place.path("cut.npz"), &whole[..whole.len() / 2]).expect("writable");
    eval(
        "cut.npz",
        "out.npz",
        &["cut.npz", "not a complete .npz file"],
    );
    let [mut x, mut w] = inputs();
    x.shape = vec![10, 6];
    w.name = "weight".to_owned();
    npz::write(&place.path("other.npz"), &[x, w]).expect("writable");
    eval(
        "other.npz",
        "out.npz",
        &[
            "`x`: expected shape [6, 10], found [10, 6]",
            "missing array `w`",
            "unexpected array `weight`",
        ],
    );
}

#[test]
fn bad_places_and_targets_are_refused_before_the_search() {
    let place = Place::new();
    place.refuses(
        &["optimize", "rows.lax", "--target", "h900", "-o", "art"],
        1,
        &["unknown target `h900`, did you mean `h200`?", "rtx4090"],
    );
    let far =
        "program far\naxis i = 1000000000000\nx = parameter f32 [i]\nreturn f32 [] sum(x; i)\n";
    fs::write(place.path("far.lax"), far).expect("writable");
    place.refuses(
        &["optimize", "far.lax", "--target", "h200", "-o", "art"],
        1,
        &[
            "far: the parameters and results take 4000.0 GB",
            "h200 has 151 GB",
        ],
    );
    fs::create_dir(place.path("mine")).expect("a folder");
    place.refuses(
        &[
            "optimize",
            "rows.lax",
            "--target",
            "h200",
            "-o",
            "rows.lax/art",
        ],
        1,
        &["rows.lax"],
    );
    for (budget, why) in [
        ("soon", "expected a time such as 90s, 5m, 1.5h or 1h30m"),
        ("60", "expected a unit (d, h, m, s or ms) behind `60`"),
        ("-5s", "found `-5s`"),
        ("0s", "expected more than no time"),
        ("1h-5m", "found `-5m`"),
        ("99999999999999999h", "expected at most 1000d"),
    ] {
        place.refuses(&["optimize", "rows.lax", "--budget", budget], 2, &[why]);
    }
    // A long one, in several units, for a target in capitals: what is refused is something else.
    place.refuses(
        &[
            "optimize", "far.lax", "--target", "H200", "--budget", "1h 30m", "-o", "art",
        ],
        1,
        &["h200 has 151 GB"],
    );
    place.refuses(
        &[
            "simulate",
            "mine",
            "--inputs",
            "in.npz",
            "--outputs",
            "o.npz",
        ],
        1,
        &["manifest.json"],
    );
}

#[test]
fn help_fits_a_terminal_and_says_where_to_begin() {
    let place = Place::new();
    let commands = [
        "", "optimize", "eval", "simulate", "show", "verify", "bench", "rules", "targets",
    ];
    for command in commands {
        let words: Vec<&str> = [command, "--help"]
            .into_iter()
            .filter(|w| !w.is_empty())
            .collect();
        let run = place.run(&words);
        let text = String::from_utf8(run.stdout).expect("UTF-8");
        assert!(run.status.success() && text.contains("--verbose"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
    }
    let run = place.run(&["--help"]);
    let text = String::from_utf8(run.stdout).expect("UTF-8");
    for part in [
        "optimize examples/gqa.lax --target h200",
        "docs/language.md",
        "docs/schedules.md",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
        let path = part.split(' ').find(|w| w.contains('/')).expect("a path");
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(path).is_file());
    }
}

#[test]
fn rules_are_listed_with_what_their_tests_did() {
    let place = Place::new();
    let run = place.run(&["rules", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
    let rules = report["rules"].as_array().expect("a list");
    assert_eq!(rules.len(), tilewright::search::rules::RULES.len());
    for rule in rules {
        let clause = &rule["equations"][0];
        for side in ["left", "right"] {
            assert!(!clause[side].as_str().expect(side).is_empty(), "{rule}");
        }
        assert!(
            rule["exercised"]["floating"].as_u64() >= Some(300),
            "{rule}"
        );
    }
    let run = place.run(&["rules"]);
    let text = String::from_utf8(run.stdout).expect("UTF-8");
    for part in [
        "sum-eliminate (real)",
        "x·(Σ_k y) = Σ_k x·y   for k ∉ x",
        "points in f64",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}

#[test]
fn rules_of_users_are_checked() {
    let place = Place::new();
    let sound = "# pulls a factor out of a maximum\nrule pull\naxis i, j\nc = positive [i?]\nx = any [i, j]\n\
                 left = max(c * x; j)\nright = c * max(x; j)\n";
    fs::write(place.path("sound.rules"), sound).expect("writable");
    let run = place.run(&["rules", "--check", "sound.rules"]);
    let text = String::from_utf8(run.stdout).expect("UTF-8");
    assert!(run.status.success(), "{run:?}", run = run.stderr);
    assert!(
        text.contains("sound.rules:2: rule `pull`: held on 120 instances"),
        "{text}"
    );
    fs::write(
        place.path("unsound.rules"),
        sound.replace("positive", "any"),
    )
    .expect("writable");
    let refused = [
        "unsound.rules:2: rule `pull` is unsound",
        "c[",
        "x[",
        "left  max(",
        "right ",
    ];
    place.refuses(&["rules", "--check", "unsound.rules"], 3, &refused);
    // Of three rules one holds, one does not, and of one nothing can be said: the report has them all.
    let mixed = format!(
        "{sound}\n{}\nrule nowhere\nx = any []\nleft = log(0 - x * x)\nright = log(0 - x * x)\n",
        sound
            .replace("positive", "any")
            .replace("rule pull", "rule push")
    );
    fs::write(place.path("mixed.rules"), mixed).expect("writable");
    let run = place.run(&["rules", "--check", "mixed.rules", "--json"]);
    let message = String::from_utf8(run.stderr).expect("UTF-8");
    assert_eq!(run.status.code(), Some(3), "{message}");
    for part in ["`push` is unsound", "`nowhere` is undecided"] {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
    let sound: Vec<&serde_json::Value> = (0..3).map(|n| &report["rules"][n]["sound"]).collect();
    assert_eq!(sound, [&json!(true), &json!(false), &json!(null)]);
    assert!(report["rules"][1]["counterexample"].is_string(), "{report}");
    fs::write(
        place.path("bad.rules"),
        "rule a\nx = any []\nleft = x + y\nright = x\n",
    )
    .expect("writable");
    place.refuses(
        &["rules", "--check", "bad.rules"],
        1,
        &["bad.rules:3:12", "`y`"],
    );
    place.refuses(
        &["rules", "--check", "absent.rules"],
        1,
        &["absent.rules", "No such file"],
    );
}

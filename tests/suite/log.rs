//! The log and the command line: what is listed, and where a search may not write.

use crate::command_line::Place;
use std::fs;
use tilewright::log::Log;
use tilewright::{KernelName, Trial, TrialKey};

const LINES: &str = include_str!("../../bench/results/trials-h200-2026-11-24-2/mm16.jsonl");

/// A log of two whole candidates and a kernel alone, timed in the beginning of 1970, at noon.
fn logged(place: &Place, name: &str) -> Vec<Trial> {
    let mut log = Log::open(&place.path(name)).expect("a log");
    let lines = LINES.lines().take(3).enumerate();
    let trials = lines.map(|(n, line)| {
        let mut trial: Trial = serde_json::from_str(line).expect("a trial");
        trial.key = TrialKey::from(format!("{n}"));
        trial.program_hash = "0123456789abcdef".to_owned();
        trial.when = 43_200 + n as u64 * 60;
        trial.whole = n < 2;
        trial.kernel = Some(KernelName::from("fedcba9876543210".to_owned()));
        log.add(&trial).expect("it is added");
        trial
    });
    trials.collect()
}

#[test]
fn what_was_timed_is_listed_and_exported() {
    let place = Place::new();
    let trials = logged(&place, "mine.sqlite");
    let log = |arguments: &[&str]| {
        place.does(&[&["log", "--database", "mine.sqlite"], arguments].concat())
    };
    let table = log(&[]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("when (UTC)        program "),
        "{table}"
    );
    for (n, (line, trial)) in lines[1..].iter().zip(&trials).enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kernel = if n < 2 { "all" } else { "fedcba98" };
        let minute = format!("12:0{n}");
        let expected = ["1970-01-01", &minute, &trial.program, "01234567", kernel];
        assert_eq!(words[..5], expected, "{table}");
        let warm = format!(" {:.1} ", trial.measured.warm.median_us);
        assert!(line.contains(&warm), "{table}");
    }
    let last = format!("3 trials in {}", place.path("mine.sqlite").display());
    assert_eq!(lines[4], last);

    let exported = log(&["--format", "jsonl"]);
    let read = exported
        .lines()
        .map(|line| serde_json::from_str(line).expect("a trial"));
    assert_eq!(read.collect::<Vec<Trial>>(), trials);
    fs::write(place.path("trials.jsonl"), &exported).expect("writable");
    assert_eq!(place.does(&["predict", "trials.jsonl"]).lines().count(), 3);
    let csv = log(&["--format", "csv", "--whole"]);
    assert!(
        csv.starts_with("unix_time,program,program_hash,kernel,whole,"),
        "{csv}"
    );
    assert_eq!(csv.matches("\n432").count(), 2, "{csv}");

    let count = |arguments: &[&str]| {
        log(&[arguments, &["--format", "jsonl"]].concat())
            .lines()
            .count()
    };
    let name = trials[0].program.as_str();
    for (arguments, expected) in [
        (&["--program", name][..], 3),
        (&["--program", "01234567"], 3),
        (&["--program", "nothing"], 0),
        (&["--gpu", "h200"], 3),
        (&["--gpu", "h100"], 0),
        (&["--kernel", "FEDC"], 3),
        (&["--kernel", "0"], 0),
        (&["--since", "2d"], 0),
        (&["--whole"], 2),
        (&["--fastest", "1"], 2),
        (&["--fastest", "1", "--whole"], 1),
    ] {
        assert_eq!(count(arguments), expected, "{arguments:?}");
    }
    assert!(log(&["--since", "2d"]).starts_with("0 trials in "));
}

#[test]
fn a_log_that_is_none_is_refused() {
    let place = Place::new();
    let none = "there is no log; `tilewright optimize` makes one";
    place.refuses(&["log"], 1, &["tilewright/trials.sqlite", none]);
    place.refuses(&["log", "--database", "absent"], 1, &["absent", none]);
    let foreign = "rows.lax: expected a log of trials, found another file";
    place.refuses(&["log", "--database", "rows.lax"], 1, &[foreign]);
    for (words, why) in [
        (
            &["--format", "parquet"][..],
            "possible values: table, csv, jsonl",
        ),
        (&["--kernel", "gqa"], "expected digits of a hash"),
        (&["--since", "0s"], "expected"),
        (&["--kernel", "0", "--whole"], "cannot be used with"),
    ] {
        place.refuses(&[&["log"], words].concat(), 2, &[why]);
    }
    let search = ["optimize", "rows.lax", "--target", "h200", "-o", "art"];
    let with = |words: &[&'static str]| [&search[..], words].concat();
    place.refuses(&with(&["--database", "rows.lax"]), 1, &[foreign]);
    place.refuses(&with(&["--database", "rows.lax/log"]), 1, &["rows.lax"]);
    place.refuses(
        &with(&["--database", "log", "--no-log"]),
        2,
        &["cannot be used with"],
    );
}

#[test]
fn where_nothing_can_be_kept_a_search_goes_on() {
    let place = Place::new();
    let search = |words: &[&str], data: &str| {
        let search = [
            "optimize", "rows.lax", "--target", "h200", "--budget", "1s", "-o", "art", "--json",
        ];
        let mut command = place.command(&[&search[..], words].concat());
        // Kernels are not compiled, so none is timed, whatever GPU is here.
        let nothing = ("TILEWRIGHT_NVRTC", "/nowhere");
        let run = command.envs([nothing, ("XDG_DATA_HOME", data)]).output();
        let run = run.expect("the program starts");
        String::from_utf8(run.stderr).expect("UTF-8")
    };
    let file = place.path("rows.lax");
    let file = file.to_str().expect("UTF-8");
    let warning = "what is timed is not in the log: ";
    let said = search(&[], file);
    assert!(
        said.contains(warning) && said.contains("Not a directory"),
        "{said}"
    );
    for words in [["--no-log"], ["--no-gpu"]] {
        let said = search(&words, file);
        assert!(!said.contains(warning), "{words:?}: {said}");
    }
    let data = place.path("data");
    search(&["--no-log"], data.to_str().expect("UTF-8"));
    assert!(!data.exists());
    search(&[], data.to_str().expect("UTF-8"));
    assert!(data.join("tilewright/trials.sqlite").exists());
    search(&["--no-gpu", "--database", "mine.sqlite"], file);
    Log::existing(&place.path("mine.sqlite")).expect("a log");
}

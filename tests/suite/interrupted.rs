//! Runs that are ended: what was found is there, whole, whenever the signal comes, and says what it is.

use crate::command_line::Place;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tilewright::artifact::{State, read_manifest};
use tilewright::pipeline::Search;

/// A search for it goes on for minutes.
const LONG: &str = include_str!("../large/conv_pool_clamp.lax");

/// A second signal and the process's end are no further apart.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Nor are the first signal and the end.
const SOON: Duration = Duration::from_secs(5);

fn searching(place: &Place, budget: &str) -> Child {
    fs::write(place.path("long.lax"), LONG).expect("writable");
    let mut command = place.command(&[
        "optimize", "long.lax", "--target", "h200", "--budget", budget, "--no-gpu", "-o", "art",
        "--json",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // As a shell starts it: what Ctrl-C ends is a group.
    command.process_group(0);
    command.spawn().expect("the program starts")
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The exit code, and how long it took.
fn ended(mut child: Child) -> (Option<i32>, Duration, String) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        if child.try_wait().expect("a child").is_some() {
            let took = begun.elapsed();
            let output = child.wait_with_output().expect("an ended child");
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            return (output.status.code(), took, text);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("a running child");
    panic!("it does not end");
}

/// Waits until there is an artifact.
fn held(path: &Path) {
    let begun = Instant::now();
    while read_manifest(path).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is held");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What is there is whole, and replays.
fn whole(place: &Place, search: &[Search]) {
    let manifest = read_manifest(&place.path("art")).expect("an artifact");
    assert!(search.contains(&manifest.search), "{:?}", manifest.search);
    assert_eq!(manifest.state, State::Simulated);
    place.does(&["verify", "art", "--replay"]);
    let left: Vec<String> = place
        .names()
        .into_iter()
        .filter(|n| n.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_held_is_written_whenever_a_signal_comes() {
    for (moment, signal) in [(0, Signal::TERM), (1000, Signal::INT)] {
        let place = Place::new();
        let child = searching(&place, "10m");
        held(&place.path("art"));
        // A copy of what is there while the search goes on is an artifact too.
        let manifest = read_manifest(&place.path("art")).expect("an artifact");
        assert_eq!(manifest.search, Search::Running);
        std::thread::sleep(Duration::from_millis(moment));
        kill_process_group(pid(&child), signal).expect("it runs");
        let (code, took, report) = ended(child);
        assert_eq!(code, Some(0), "{moment}: {report}");
        assert!(took < SOON, "{moment}: {took:?}");
        let report: serde_json::Value = serde_json::from_str(&report).expect("one JSON object");
        assert_eq!(report["search"], "interrupted");
        assert_eq!(report["state"], "simulated");
        whole(&place, &[Search::Interrupted]);
    }
}

#[test]
fn a_signal_before_anything_is_held_leaves_nothing() {
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let place = Place::new();
        let child = searching(&place, "10m");
        std::thread::sleep(Duration::from_millis(40));
        kill_process(pid(&child), signal).expect("it runs");
        let (code, took, report) = ended(child);
        assert!(took < SOON, "{took:?}");
        // A machine may be fast, or slow to hear.
        if code == Some(0) {
            whole(&place, &[Search::Interrupted]);
            continue;
        }
        assert!(
            code == Some(expected) || code.is_none(),
            "{code:?}: {report}"
        );
        assert!(!place.path("art").exists());
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let place = Place::new();
    let child = searching(&place, "10m");
    held(&place.path("art"));
    kill_process(pid(&child), Signal::INT).expect("it runs");
    let _ = kill_process(pid(&child), Signal::INT);
    let (code, took, report) = ended(child);
    // Two that come together may be one.
    assert!([Some(130), Some(0)].contains(&code), "{code:?}: {report}");
    assert!(took < AT_ONCE || code == Some(0), "{took:?}");
    // What was left beside the place is cleaned by who comes next.
    let mut again = searching(&place, "10m");
    std::thread::sleep(Duration::from_millis(300));
    again.kill().expect("it runs");
    again.wait().expect("it ended");
    read_manifest(&place.path("art")).expect("a whole artifact");
}

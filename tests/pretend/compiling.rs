//! Machines that only compile, beside one with a GPU that pretends.

use super::campaigns::Place;
use super::server;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::Child;
use std::time::{Duration, Instant};

/// A campaign of so many jobs on a server, for a machine that searches in this manner; none where there is no server.
fn planned(manner: &'static str, jobs: usize) -> Option<(Place, String)> {
    let url = server::database()?;
    let place = Place {
        server: Some(url.clone()),
        ..Place::new(manner, jobs, "1h")
    };
    // Rows that can be tiled in many ways.
    let rows = std::fs::read_to_string(place.path("rows.lax")).expect("a program");
    let rows = rows.replace("j = 10", "j = 40");
    std::fs::write(place.path("rows.lax"), rows).expect("writable");
    let plan = std::fs::read_to_string(place.path("plan.toml")).expect("a plan");
    let plan = plan.replace("i = [1", "i = [4");
    std::fs::write(place.path("plan.toml"), plan).expect("writable");
    let plan = ["campaign", "plan", "plan.toml", "-o", "night", "--journal"];
    let made = place.runs(&[&plan[..], &[&url]].concat());
    assert!(made.status.success(), "{made:?}");
    Some((place, url))
}

/// Another machine, which only compiles, in this manner.
fn helper(place: &Place, url: &str, manner: &'static str) -> (Place, Child) {
    let other = Place {
        manner,
        ..place.beside()
    };
    let join = ["campaign", "join", url, "-o", "help", "--compile-only"];
    let process = other.starts(&[&join[..], &["--workers", "3"]].concat());
    (other, process)
}

fn status(place: &Place, url: &str) -> Value {
    let status = place.runs(&["campaign", "status", url, "--json"]);
    serde_json::from_slice(&status.stdout).expect("JSON")
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until so many machines compile.
fn compile(place: &Place, url: &str, count: usize) {
    until("who compiles is shown", || {
        let compiling = &status(place, url)["compiling"];
        compiling.as_array().map(Vec::len) == Some(count)
    });
}

/// How many programs a machine compiled.
fn compiled(place: &Place) -> usize {
    let notes = place.path(place.manner).with_extension("compiled");
    std::fs::read_dir(notes).map_or(0, Iterator::count)
}

fn ended(mut process: Child) -> Option<i32> {
    process.wait().expect("our own").code()
}

/// Every trial is there once, and what was offered is gone.
fn nothing_is_lost(place: &Place, jobs: usize) {
    place.is_complete(jobs);
    let timed = place.timed();
    assert!(
        timed.len() > jobs && timed.values().all(|n| *n == 1),
        "{timed:?}"
    );
}

pub(super) fn machines_compile_for_those_that_search() {
    const JOBS: usize = 1;
    let Some((place, url)) = planned("compiles-slowly", JOBS) else {
        return;
    };
    let (other, process) = helper(&place, &url, "passes-all");
    compile(&place, &url, 1);
    let report = status(&place, &url);
    assert_eq!(
        (&report["running"], &report["hosts"]),
        (&false.into(), &Value::Array(vec![]))
    );
    assert_eq!(report["compiling"][0]["compiler"], "nvrtc 13.0");
    let said = place.runs(&["campaign", "status", &url]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains(" (compiles with nvrtc 13.0)"), "{said}");
    let found = place.runs(&["campaign", "resume", "night"]);
    assert!(found.status.success(), "{found:?}");
    // Nothing is left to do.
    assert_eq!(ended(process), Some(0));
    nothing_is_lost(&place, JOBS);
    let (here, there) = (compiled(&place), compiled(&other));
    let slices = place.view().jobs.into_iter().flat_map(|job| job.slices);
    let all: i64 = slices.map(|slice| slice.trials).sum();
    assert!(
        there > 0 && (here as i64) < all,
        "{here} of {all} here, {there} there"
    );
    other.keeps_the_password(&[]);
}

/// One machine takes programs and compiles none: it is killed, and what it had is compiled by the others. Another one is asked to leave.
pub(super) fn what_a_machine_that_is_killed_compiled_is_compiled_by_others() {
    const JOBS: usize = 1;
    let Some((place, url)) = planned("compiles-slowly", JOBS) else {
        return;
    };
    let (_other, mut process) = helper(&place, &url, "compiles-never");
    let (_leaving, leaving) = helper(&place, &url, "compiles-never");
    compile(&place, &url, 2);
    let mut searching = place.starts(&["campaign", "join", &url, "-o", "night"]);
    let taken = || {
        let client = postgres::Client::connect(&url, postgres::NoTls);
        let row = client.expect("a server").query_one(
            "SELECT count(DISTINCT taker) FROM offer WHERE state = 'taken'",
            &[],
        );
        row.expect("a row").get::<_, i64>(0)
    };
    until("programs are taken", || taken() == 2);
    let pid = i32::try_from(leaving.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), Signal::TERM).expect("our own");
    assert_eq!(ended(leaving), Some(0));
    process.kill().expect("our own");
    process.wait().expect("our own");
    assert!(searching.wait().expect("our own").success());
    nothing_is_lost(&place, JOBS);
    assert_eq!(taken(), 0);
}

pub(super) fn who_has_another_compiler_is_not_asked() {
    const JOBS: usize = 1;
    let Some((place, url)) = planned("compiles-slowly", JOBS) else {
        return;
    };
    let without = Place {
        manner: "compiles-nothing",
        ..place.beside()
    };
    let refused = without.runs(&["campaign", "join", &url, "-o", "help", "--compile-only"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("this machine cannot compile for others: nvrtc was not found"),
        "{said}"
    );
    let (other, process) = helper(&place, &url, "compiles-newer");
    compile(&place, &url, 1);
    let join = place.runs(&["campaign", "join", &url, "-o", "night"]);
    assert!(join.status.success(), "{join:?}");
    let said = String::from_utf8_lossy(&join.stderr).into_owned();
    assert!(
        said.contains("compiles with nvrtc 13.1, and here is nvrtc 13.0"),
        "{said}"
    );
    assert_eq!(ended(process), Some(0));
    nothing_is_lost(&place, JOBS);
    assert_eq!(compiled(&other), 0);
}

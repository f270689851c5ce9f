//! The log against what was added to it.

use super::*;
use device::telemetry::Telemetry;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const LINE: &str =
    include_str!("../../bench/results/trials-h200-2026-11-24-2/linear_attention.jsonl");

/// A place for a log, in a folder that is not there yet.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("data/tilewright/trials.sqlite");
    (folder, path)
}

/// A trial of a kernel that took so long, as it comes from a file.
fn sample(kernel: &str, schedule: &str, us: f64) -> Trial {
    let line = LINE.lines().next().expect("a line");
    let mut trial: Trial = serde_json::from_str(line).expect("a trial");
    trial.key = TrialKey::from(format!("{kernel} {schedule}"));
    trial.kernel = Some(KernelName::from(kernel.to_owned()));
    trial.program_hash = format!("hash of {}", trial.program);
    trial.whole = false;
    trial.schedule = schedule.to_owned();
    trial.driver = "580.95.05".to_owned();
    trial.measured.warm.median_us = us;
    trial
}

fn times(trials: &[Trial]) -> Vec<f64> {
    trials.iter().map(|t| t.measured.warm.median_us).collect()
}

fn added(path: &Path, trials: &[Trial]) -> Log {
    let mut log = Log::open(path).expect("a log");
    trials.iter().for_each(|t| log.add(t).expect("it is added"));
    log
}

#[test]
fn what_is_added_comes_back() {
    let (_folder, path) = place();
    let mut trials: Vec<Trial> = LINE
        .lines()
        .map(|l| serde_json::from_str(l).expect("a trial"))
        .collect();
    assert!(trials.len() > 10);
    for (n, trial) in trials.iter_mut().enumerate() {
        let x = n as f64 + 0.1;
        let both = [
            (None, None),
            (Some(x), None),
            (None, Some(x)),
            (Some(x), Some(2.0 * x)),
        ];
        let (sm_mhz, power_w) = both[n % 4];
        trial.measured.telemetry = (n % 4 > 0).then_some(Telemetry { sm_mhz, power_w });
        trial.kernel = (n % 2 == 0).then(|| KernelName::from(format!("kernel {n}")));
        trial.seed = u64::MAX - n as u64;
        trial.when = n as u64;
        trial.compiler = "NVRTC, \"13.0\"\n".to_owned();
        trial.measured.cold.steady = n % 3 == 0;
        trial.measured.warm.drift = -x / 7.0;
    }
    drop(added(&path, &trials));
    let log = Log::existing(&path).expect("a log");
    assert_eq!(log.list(&Filter::default()).expect("trials"), trials);
    // Tile programs with several schedules are stored once.
    let texts: BTreeSet<&str> = trials.iter().map(|t| t.tile.as_str()).collect();
    let stored = log
        .database
        .query_row("SELECT count(*) FROM tile_program", [], |row| row.get(0));
    assert_eq!(stored, Ok(texts.len() as i64));
    assert!(texts.len() < trials.len());
}

#[test]
fn the_newest_of_a_key_is_recalled() {
    let (_folder, path) = place();
    let trials = [
        sample("k", "a", 3.0),
        sample("k", "b", 1.0),
        sample("k", "a", 2.0),
    ];
    let mut log = added(&path, &trials);
    assert_eq!(
        log.recall(&trials[0].key).expect("readable"),
        Some(trials[2].clone())
    );
    assert_eq!(
        Memory::recall(&mut log, &trials[1].key),
        Some(trials[1].clone())
    );
    assert_eq!(
        log.recall(&TrialKey::from("k c".to_owned()))
            .expect("readable"),
        None
    );
}

#[test]
fn the_fastest_of_a_kernel_are_found() {
    let (_folder, path) = place();
    let mut elsewhere = sample("k", "e", 0.5);
    elsewhere.gpu = "NVIDIA A100".to_owned();
    let mut trials = vec![elsewhere, sample("other", "a", 0.1)];
    trials
        .extend([("a", 3.0), ("b", 1.0), ("a", 2.0), ("c", 4.0)].map(|(s, us)| sample("k", s, us)));
    let mut log = added(&path, &trials);
    let kernel = KernelName::from("k".to_owned());
    let gpu = trials[2].gpu.clone();
    let found = Memory::best_of(&mut log, &kernel, &gpu, 9);
    assert_eq!(times(&found), [1.0, 2.0, 4.0]);
    assert_eq!(found[0], trials[3]);
    assert_eq!(
        times(&Memory::best_of(&mut log, &kernel, &gpu, 2)),
        [1.0, 2.0]
    );
    assert_eq!(
        times(&Memory::best_of(&mut log, &kernel, "NVIDIA A100", 2)),
        [0.5]
    );
    let all = log.list(&Filter::default()).expect("trials");
    let own = all.iter().rev().filter(|t| t.gpu == gpu).take(2);
    let own: Vec<Trial> = own.cloned().collect();
    assert_eq!(Memory::newest(&mut log, &gpu, 2), own);
    assert_eq!(own.len(), 2);
}

#[test]
fn trials_are_chosen() {
    let (_folder, path) = place();
    let mut trials: Vec<Trial> = [("k", 5.0), ("k", 1.0), ("l", 3.0), ("l", 2.0), ("l", 9.0)]
        .into_iter()
        .zip('a'..)
        .map(|((kernel, us), schedule)| sample(kernel, &schedule.to_string(), us))
        .collect();
    for (n, trial) in trials.iter_mut().enumerate() {
        trial.when = 100 + n as u64;
    }
    // The same once more, and two whole candidates of another program elsewhere.
    trials.push(sample("k", "b", 0.5));
    for us in [7.0, 6.0] {
        let mut whole = sample("w", &us.to_string(), us);
        whole.whole = true;
        whole.program = "another".to_owned();
        whole.program_hash = "0123456789abcdef".to_owned();
        whole.gpu = "NVIDIA A100".to_owned();
        trials.push(whole);
    }
    let log = added(&path, &trials);
    let text = |text: &str| Some(text.to_owned());
    let none = Filter::default;
    #[rustfmt::skip]
    let cases: [(Filter, &[f64]); 13] = [
        (none(), &[5.0, 1.0, 3.0, 2.0, 9.0, 0.5, 7.0, 6.0]),
        (Filter { program: text("another"), ..none() }, &[7.0, 6.0]),
        (Filter { program: text("0123456789"), ..none() }, &[7.0, 6.0]),
        // What is no hash by its length is none.
        (Filter { program: text("0123"), ..none() }, &[]),
        (Filter { program: text("anoth"), ..none() }, &[]),
        (Filter { gpu: text("a100"), ..none() }, &[7.0, 6.0]),
        (Filter { kernel: text("l"), ..none() }, &[3.0, 2.0, 9.0]),
        (Filter { since: Some(103), ..none() }, &[2.0, 9.0]),
        (Filter { whole: true, ..none() }, &[7.0, 6.0]),
        (Filter { fastest: Some(1), ..none() }, &[6.0, 0.5, 2.0]),
        // Of one key the fastest alone.
        (Filter { fastest: Some(2), ..none() }, &[6.0, 7.0, 0.5, 5.0, 2.0, 3.0]),
        (Filter { fastest: Some(1), kernel: text("l"), since: Some(104), ..none() }, &[9.0]),
        (Filter { fastest: Some(0), ..none() }, &[]),
    ];
    for (filter, expected) in cases {
        assert_eq!(
            times(&log.list(&filter).expect("trials")),
            expected,
            "{filter:?}"
        );
    }
}

#[test]
fn tables_have_a_cell_for_each_column() {
    let (_folder, path) = place();
    let mut trial = sample("k", "warps, \"4\"\n", 1.5);
    trial.tile = "tile \"a\"".to_owned();
    let log = added(&path, &[trial]);
    let text = log.csv(&Filter::default()).expect("a table");
    let (head, row) = text.split_once('\n').expect("two lines");
    assert_eq!(head.split(',').count(), COLUMNS.len() + 1);
    assert!(
        head.starts_with("unix_time,program,") && head.ends_with(",key,schedule,tile"),
        "{head}"
    );
    assert!(row.starts_with("0,linear_attention"), "{row}");
    assert!(
        row.ends_with(",\"k warps, \"\"4\"\"\n\",\"warps, \"\"4\"\"\n\",\"tile \"\"a\"\"\"\n"),
        "{row}"
    );
    let none = Filter {
        program: Some("nothing".to_owned()),
        ..Filter::default()
    };
    assert_eq!(log.csv(&none).expect("a table"), format!("{head}\n"));
}

#[test]
fn writers_of_one_log_lose_nothing() {
    const WRITERS: usize = 8;
    const EACH: usize = 40;
    let (_folder, path) = place();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = &path;
            // All of them find no log.
            scope.spawn(move || {
                let mut log = Log::open(path).expect("a log");
                for n in 0..EACH {
                    let trial = sample(&writer.to_string(), &n.to_string(), n as f64);
                    log.add(&trial).expect("it is added");
                }
            });
        }
    });
    let log = Log::existing(&path).expect("a log");
    let found = log.list(&Filter::default()).expect("trials");
    let keys: BTreeSet<&str> = found.iter().map(|t| t.key.as_str()).collect();
    assert_eq!((found.len(), keys.len()), (WRITERS * EACH, WRITERS * EACH));
}

/// Without waiting that fails in most runs: SQLite refuses at once who is second.
#[test]
fn several_may_make_a_log_at_the_same_time() {
    let (folder, _) = place();
    for round in 0..40 {
        let path = folder.path().join(format!("{round}.sqlite"));
        let all = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    all.wait();
                    Log::open(&path).expect("a log");
                });
            }
        });
    }
}

#[test]
fn a_log_is_for_its_user_alone() {
    let (folder, path) = place();
    let _log = added(&path, &[sample("k", "a", 1.0)]);
    let mode = |path: &Path| {
        fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(&folder.path().join("data")), 0o700);
    assert_eq!(mode(path.parent().expect("a folder")), 0o700);
    for name in ["trials.sqlite", "trials.sqlite-wal", "trials.sqlite-shm"] {
        assert_eq!(mode(&path.with_file_name(name)), 0o600, "{name}");
    }
}

#[test]
fn what_is_no_log_is_left_as_it_is() {
    let (folder, log) = place();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("text"), "trials: none\n".repeat(100)).expect("writable");
    let other = Connection::open(at("other")).expect("a database");
    other
        .execute_batch("CREATE TABLE trial (id); PRAGMA user_version = 1")
        .expect("a table");
    drop(other);
    let newer = added(&at("newer"), &[sample("k", "a", 1.0)]);
    newer
        .database
        .pragma_update(None, "user_version", 3)
        .expect("a version");
    drop(newer);
    drop(added(&log, &vec![sample("k", "a", 1.0); 9]));
    let mut bytes = fs::read(&log).expect("readable");
    let pages = 4096..bytes.len();
    bytes[pages].fill(0x5a);
    fs::write(at("damaged"), bytes).expect("writable");
    fs::create_dir(at("folder")).expect("a folder");
    for (name, expected) in [
        ("text", "expected a log of trials, found another file"),
        ("other", "expected a log of trials, found another file"),
        (
            "newer",
            "expected a log of version 2 at most, found version 3, of a newer tilewright",
        ),
        (
            "damaged",
            "the log is damaged (database disk image is malformed)",
        ),
        ("folder", "expected a regular file, found a folder"),
    ] {
        let before = fs::read(at(name)).ok();
        let opened = Log::open(&at(name)).and_then(|log| log.list(&Filter::default()));
        let message = opened.expect_err(name).to_string();
        assert!(message.contains(expected), "{name}: {message}");
        assert!(
            message.contains(&at(name).display().to_string()),
            "{message}"
        );
        assert_eq!(fs::read(at(name)).ok(), before, "{name}");
    }
    let under = Log::open(&at("text/under")).expect_err("text is no folder");
    assert!(under.to_string().contains("text: File exists"), "{under}");
    let missing = Log::existing(&at("missing")).expect_err("it is not there");
    assert!(missing.to_string().contains("No such file"), "{missing}");
    assert!(!at("missing").exists());
}

#[test]
fn a_search_goes_on_where_nothing_can_be_kept() {
    let (_folder, path) = place();
    let trial = sample("k", "a", 1.0);
    let mut log = added(&path, std::slice::from_ref(&trial));
    log.database
        .execute_batch("DROP TABLE trial")
        .expect("it was there");
    for _ in 0..9 {
        log.keep(&trial);
        assert_eq!(Memory::recall(&mut log, &trial.key), None);
    }
    assert_eq!(log.failures, MOST_FAILURES);
}

#[test]
fn older_logs_go_on() {
    let (_folder, path) = place();
    drop(added(&path, &[sample("k", "a", 1.0)]));
    let older = Connection::open(&path).expect("a database");
    let back = "DROP VIEW trials; ALTER TABLE trial DROP COLUMN power_limit_mw; CREATE VIEW trials AS SELECT id FROM trial; PRAGMA user_version = 1";
    older.execute_batch(back).expect("writable");
    drop(older);
    let mut capped = sample("k", "b", 2.0);
    capped.power_limit_mw = Some(500_000);
    let trials = added(&path, &[capped.clone()]).list(&Filter::default());
    assert_eq!(trials.expect("trials"), [sample("k", "a", 1.0), capped]);
}

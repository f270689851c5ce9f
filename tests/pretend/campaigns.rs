//! Campaigns with GPUs that pretend: what is killed, stopped or faulty loses nothing but what was under way.

use super::pretender::BEGUN;
use super::{NAME, server};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tilewright::Trial;
use tilewright::artifact::Artifact;
use tilewright::campaign::Folder;
use tilewright::campaign::journal::{JobState, SliceState, View};
use tilewright::log::{Filter, Log};

const ROWS: &str = "program rows\naxis i = 2, j = 10\nx = parameter f32 [i, j]\n\
                    return f32 [i] sum(x; j) / size(j)\n";

/// A folder with a plan for so many jobs, and GPUs of a manner; and the address of a database without tables, where the journal is to be on a server.
pub(super) struct Place {
    pub(super) folder: tempfile::TempDir,
    pub(super) manner: &'static str,
    pub(super) server: Option<String>,
}

impl Place {
    pub(super) fn new(manner: &'static str, jobs: usize, budget: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("rows.lax"), ROWS).expect("writable");
        let extents: Vec<String> = (1..=jobs).map(|n| n.to_string()).collect();
        let plan = format!(
            "budget = \"{budget}\"\nfirst = \"2s\"\nseed = 3\ntarget = \"h200\"\n\
             [[program]]\nfile = \"rows.lax\"\nextents = {{ i = [{}] }}\n",
            extents.join(", ")
        );
        std::fs::write(folder.path().join("plan.toml"), plan).expect("writable");
        Self {
            folder,
            manner,
            server: None,
        }
    }

    /// The first slices of its plan are this long.
    fn begins_with(&self, first: &str) {
        let plan = std::fs::read_to_string(self.path("plan.toml")).expect("a plan");
        let long = plan.replace("first = \"2s\"", &format!("first = \"{first}\""));
        assert_ne!(plan, long);
        std::fs::write(self.path("plan.toml"), long).expect("writable");
    }

    /// Another machine: its folder is a different one.
    pub(super) fn beside(&self) -> Self {
        Self {
            server: self.server.clone(),
            ..Self::new(self.manner, 1, "1s")
        }
    }

    /// The words that start a campaign.
    fn run(&self) -> Vec<&str> {
        let run = ["campaign", "run", "plan.toml", "-o", "night"];
        let journal = self.server.as_deref().map(|url| ["--journal", url]);
        [&run[..], journal.as_ref().map_or(&[], |words| &words[..])].concat()
    }

    /// Nothing that was written has the password in it, and nothing that was said.
    pub(super) fn keeps_the_password(&self, said: &[Output]) {
        for output in said {
            for text in [&output.stdout, &output.stderr] {
                let text = String::from_utf8_lossy(text);
                assert!(!text.contains("s3cret"), "{text}");
            }
        }
        let (mut folders, mut count) = (vec![self.folder.path().to_path_buf()], 0);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Ok(bytes) = std::fs::read(&path) {
                    let text = String::from_utf8_lossy(&bytes);
                    assert!(!text.contains("s3cret"), "{}", path.display());
                    count += 1;
                }
            }
        }
        assert!(count > 0);
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let folder = self.folder.path();
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command
            .args(arguments)
            .current_dir(folder)
            .env(NAME, folder.join(self.manner))
            .env("TILEWRIGHT_CACHE", folder.join("cache"))
            .env("XDG_CACHE_HOME", folder.join("cache"))
            .env("XDG_DATA_HOME", folder.join("data"))
            .env("PGPASSWORD", server::PASSWORD)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    pub(super) fn starts(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("it starts")
    }

    pub(super) fn runs(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.output().expect("it starts")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn campaign(&self) -> Folder {
        Folder::open(&self.path("night"), |url| {
            url.with_password(Some(server::PASSWORD))
        })
        .expect("a campaign")
    }

    pub(super) fn view(&self) -> View {
        let journal = self.campaign().journal();
        journal.and_then(|mut j| j.view()).expect("readable")
    }

    /// What the log has.
    fn trials(&self) -> Vec<Trial> {
        let log = Log::existing(&self.path("data/tilewright/trials.sqlite"));
        let trials = log.and_then(|log| log.list(&Filter::default()));
        trials.expect("a log")
    }

    /// How often each kernel was timed alone, by its key.
    pub(super) fn timed(&self) -> BTreeMap<String, usize> {
        let mut times = BTreeMap::new();
        for trial in self.trials().iter().filter(|t| !t.whole) {
            *times.entry(trial.key.as_str().to_owned()).or_default() += 1;
        }
        times
    }

    /// How many trials were begun, and are not in the log.
    fn lost(&self) -> usize {
        let path = self.path(self.manner).with_extension("notes").join(BEGUN);
        let notes = std::fs::read_to_string(path).expect("notes");
        let begun: BTreeSet<&str> = notes.lines().collect();
        assert!(!begun.is_empty());
        let trials = self.trials().into_iter();
        let logged: BTreeSet<String> = trials
            .map(|t| format!("{:.8}", t.measured.warm.median_us))
            .collect();
        begun.iter().filter(|us| !logged.contains(**us)).count()
    }

    /// Every job has a whole artifact, which is the one that the journal knows, and nothing is beside them.
    pub(super) fn is_complete(&self, jobs: usize) {
        let (view, folder) = (self.view(), self.campaign());
        assert_eq!(view.jobs.len(), jobs);
        for job in &view.jobs {
            let best = job.best.as_ref().expect("a result");
            assert!(best.verified, "{}", job.name);
            let artifact = folder.whole_artifact(&job.name).expect("an artifact");
            assert_eq!(artifact.manifest().seal, best.seal, "{}", job.name);
        }
        let names = |path: PathBuf| -> BTreeSet<String> {
            let entries = std::fs::read_dir(path).expect("a folder");
            let names = entries.map(|e| e.expect("an entry").file_name().into_string());
            names.map(|n| n.expect("UTF-8")).collect()
        };
        let expected: BTreeSet<String> = view.jobs.iter().map(|j| j.name.clone()).collect();
        assert_eq!(names(self.path("night/artifacts")), expected);
        let copied = self.runs(&["campaign", "best", "night", "-o", "best"]);
        assert!(copied.status.success(), "{copied:?}");
        assert_eq!(names(self.path("best")), expected);
    }
}

/// Two GPUs share the jobs; each kernel is timed once, and going on with what is done times none.
pub(super) fn every_gpu_is_used_and_nothing_is_timed_twice() {
    const JOBS: usize = 6;
    let place = Place::new("is-two", JOBS, "1m");
    let run = place.runs(&["campaign", "run", "plan.toml", "-o", "night"]);
    assert!(run.status.success(), "{run:?}");
    place.is_complete(JOBS);
    let timed = place.timed();
    assert!(timed.len() > JOBS, "{}", timed.len());
    assert!(timed.values().all(|n| *n == 1), "{timed:?}");
    assert_eq!(place.lost(), 0);
    let trials = place.trials();
    let clocks = trials.iter().filter_map(|t| t.measured.telemetry?.sm_mhz);
    let clocks: BTreeSet<u64> = clocks.map(|mhz| mhz as u64).collect();
    assert_eq!(
        clocks,
        [1755, 1756].into(),
        "each GPU has a clock of its own"
    );
    let again = place.runs(&["campaign", "resume", "night"]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(place.trials().len(), trials.len());
}

/// The second search, and the second campaign, time nothing.
pub(super) fn what_a_database_has_is_not_searched_again() {
    const JOBS: usize = 3;
    let place = Place::new("passes-all", JOBS, "1m");
    let trials = || place.trials().len();
    let run = place.runs(&["campaign", "run", "plan.toml", "-o", "night", "--db", "db"]);
    assert!(run.status.success(), "{run:?}");
    let timed = trials();
    assert!(timed > 0);
    let first = place.view();
    std::fs::remove_dir_all(place.path("night")).expect("it was there");
    let run = place.runs(&["campaign", "run", "plan.toml", "-o", "night", "--db", "db"]);
    assert!(run.status.success(), "{run:?}");
    place.is_complete(JOBS);
    assert_eq!(trials(), timed, "something was timed");
    let seals = |view: &View| -> Vec<Option<String>> {
        let best = view.jobs.iter().map(|job| job.best.as_ref());
        best.map(|best| best.map(|b| b.seal.clone())).collect()
    };
    assert_eq!(seals(&first), seals(&place.view()));

    let search = [
        "optimize", "rows.lax", "--target", "h200", "--budget", "2s", "--db", "db",
    ];
    let found = place.runs(&[&search[..], &["-o", "one"]].concat());
    assert!(found.status.success(), "{found:?}");
    // A job of the campaign was this very program.
    let searched = trials();
    assert_eq!(searched, timed, "something was timed");
    let answer = place.runs(&[&search[..], &["-o", "two", "--json"]].concat());
    assert!(answer.status.success(), "{answer:?}");
    assert_eq!(trials(), searched, "something was timed");
    let said: serde_json::Value = serde_json::from_slice(&answer.stdout).expect("JSON");
    assert_eq!(said["state"], "verified");
    assert!(
        said["answered_by"]
            .as_str()
            .is_some_and(|path| path.ends_with("/db"))
    );
    let seal = |name| {
        let artifact = Artifact::read(&place.path(name)).expect("an artifact");
        artifact.check().expect("as it was written");
        artifact.manifest().seal.clone()
    };
    assert_eq!(
        (seal("two"), said["seal"].as_str()),
        (seal("one"), Some(&*seal("one")))
    );
    let fresh = place.runs(&[&search[..], &["-o", "two", "--fresh"]].concat());
    assert!(fresh.status.success(), "{fresh:?}");
    assert!(trials() > searched, "nothing was searched");
    let list = place.runs(&["db", "--db", "db", "ls", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).expect("JSON");
    assert_eq!(list.as_array().map(Vec::len), Some(JOBS + 1));

    // With the artifacts goes what was timed: who has another log knows it.
    let log = place.runs(&["db", "--db", "db", "log"]);
    let log = String::from_utf8(log.stdout).expect("UTF-8");
    let log = log
        .lines()
        .map(|l| serde_json::from_str(l).expect("a trial"));
    let log: Vec<Trial> = log.collect();
    let programs: BTreeSet<&String> = log.iter().map(|t| &t.program_hash).collect();
    assert_eq!(programs.len(), JOBS);
    let other = place.beside();
    std::fs::copy(place.path("db"), other.path("db")).expect("writable");
    let fresh = other.runs(&[&search[..], &["-o", "two", "--fresh"]].concat());
    assert!(fresh.status.success(), "{fresh:?}");
    let own = other.trials();
    let of_it: Vec<&Trial> = log
        .iter()
        .filter(|t| t.program_hash == own[0].program_hash)
        .collect();
    let keys: BTreeSet<&str> = of_it.iter().map(|t| t.key.as_str()).collect();
    let is_taken = |key: &&str| {
        of_it
            .iter()
            .any(|t| t.key.as_str() == *key && own.contains(t))
    };
    assert!(!keys.is_empty() && keys.iter().all(is_taken));
}

/// The user's own database is asked where there is one. That it cannot be used is no reason to search nothing.
pub(super) fn ones_own_database_answers() {
    let place = Place::new("passes-all", 1, "1m");
    let own = place.path("data/tilewright/artifacts.sqlite");
    let searches = |output: &str, more: &[&str]| {
        let words = [
            "optimize", "rows.lax", "--target", "h200", "--budget", "2s", "--json", "-o", output,
        ];
        let found = place.runs(&[&words[..], more].concat());
        assert!(found.status.success(), "{found:?}");
        let said: serde_json::Value = serde_json::from_slice(&found.stdout).expect("JSON");
        let warned = String::from_utf8_lossy(&found.stderr).into_owned();
        (said["answered_by"].as_str().map(PathBuf::from), warned)
    };
    let count = || {
        let list = place.runs(&["db", "ls", "--json"]);
        let list: serde_json::Value = serde_json::from_slice(&list.stdout).expect("JSON");
        list.as_array().map(Vec::len)
    };
    // A search makes none.
    assert_eq!(searches("one", &[]).0, None);
    assert!(!own.exists());
    let made = place.runs(&["db", "import", "one"]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(searches("two", &[]).0.as_deref(), Some(&*own));
    assert_eq!(searches("three", &["--fresh"]).0, None);
    assert_eq!(count(), Some(2));
    // What was never on a GPU is added to what is named alone.
    assert_eq!(searches("four", &["--fresh", "--no-gpu"]).0, None);
    assert_eq!(count(), Some(2));
    let spoilt = rusqlite::Connection::open(&own).expect("a database");
    let damage = "UPDATE content SET bytes = x'6d' WHERE id IN (SELECT content FROM file WHERE name = 'kernel.cu')";
    spoilt.execute_batch(damage).expect("writable");
    drop(spoilt);
    let (answered, warned) = searches("five", &[]);
    assert_eq!(answered, None);
    assert!(warned.contains("is damaged"), "{warned}");
    std::fs::write(&own, "no database").expect("writable");
    let (answered, warned) = searches("six", &[]);
    assert_eq!(answered, None);
    assert!(warned.contains("is left out"), "{warned}");
    assert_eq!(std::fs::read(&own).expect("it is there"), b"no database");
    let artifact = Artifact::read(&place.path("six")).expect("an artifact");
    artifact.check().expect("as it was written");
}

/// Another power limit: what was verified under the other one is shown as stale, compared with nothing, and replaced by what is slower.
pub(super) fn what_was_timed_elsewhere_is_stale() {
    const JOBS: usize = 5;
    let place = Place::new("passes-all", JOBS, "1m");
    let run = ["campaign", "run", "plan.toml", "-o", "night", "--db", "db"];
    let first = place.runs(&run);
    assert!(first.status.success(), "{first:?}");
    let timed = place.timed();
    let capped = Place {
        manner: "is-capped",
        ..place
    };
    let search = [
        "optimize", "rows.lax", "--target", "h200", "--budget", "2s", "--db", "db",
    ];
    let found = capped.runs(&[&search[..], &["-o", "one"]].concat());
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(
        found.status.success() && !said.contains("nothing was searched"),
        "{found:?}"
    );
    let stale =
        "timed on NVIDIA H200, driver 580.95.05, 700 W; here: NVIDIA H200, driver 580.95.05, 500 W";
    assert!(said.contains(stale), "{said}");
    let again = capped.runs(&[&search[..], &["-o", "two"]].concat());
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(said.contains("nothing was searched"), "{said}");
    // Nothing is known of who does not time either, since the two are not compared.
    let without = capped.runs(&[&search[..], &["-o", "three", "--no-gpu", "--json"]].concat());
    let said: serde_json::Value = serde_json::from_slice(&without.stdout).expect("JSON");
    assert_eq!(said["state"], "simulated");
    assert_eq!(said["stale"].as_array().map(Vec::len), Some(2));

    let before = capped.view();
    assert!(
        before
            .jobs
            .iter()
            .all(|job| !job.is_stale && job.state == JobState::Done)
    );
    let resumed = capped.runs(&["campaign", "resume", "night"]);
    assert!(resumed.status.success(), "{resumed:?}");
    capped.is_complete(JOBS);
    for (job, before) in capped.view().jobs.iter().zip(&before.jobs) {
        let [now, then] = [job, before].map(|job| job.best.as_ref().expect("a result"));
        assert_ne!(now.seal, then.seal);
        assert!(
            now.timed_on
                .as_ref()
                .is_some_and(|on| on.ends_with(", 500 W"))
        );
    }
    // The log's times of the other limit were not taken for these.
    let newly = capped.timed();
    assert!(timed.keys().all(|key| newly[key] == timed[key]));
    assert!(!timed.is_empty() && newly.len() > timed.len(), "{timed:?}");
}

pub(super) fn what_is_killed_loses_nothing() {
    killed(24, 16, 11, None);
}

pub(super) fn what_is_killed_a_hundred_times_loses_nothing() {
    killed(60, 100, 12, None);
}

pub(super) fn what_is_killed_loses_nothing_of_a_server() {
    if let Some(url) = server::database() {
        killed(12, 8, 13, Some(url));
    }
}

pub(super) fn what_is_killed_a_hundred_times_loses_nothing_of_a_server() {
    if let Some(url) = server::database() {
        killed(60, 100, 14, Some(url));
    }
}

/// Kills workers and the campaign itself with SIGKILL at moments that follow from a seed, so many times, and lets it end. Of a server each fourth time all
/// connections are lost as well.
fn killed(jobs: usize, kills: usize, seed: u64, server: Option<String>) {
    let database = (server.as_deref()).and_then(|url| Some(url.rsplit_once('/')?.1.to_owned()));
    let place = Place {
        server,
        ..Place::new("is-two", jobs, "1h")
    };
    let there = match place.server {
        Some(_) => "night/journal.url",
        None => "night/journal.sqlite",
    };
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut below = |n: u32| random.next_u32() % n;
    let mut campaign = place.starts(&place.run());
    let begun = Instant::now();
    let (mut of_workers, mut of_campaigns) = (0, 0);
    while of_workers + of_campaigns < kills {
        std::thread::sleep(Duration::from_millis(20 + u64::from(below(80))));
        assert!(begun.elapsed() < Duration::from_secs(300), "it goes on");
        if !place.path(there).exists() {
            continue;
        }
        if (of_workers + of_campaigns) % 4 == 3 {
            if let (Some(server), Some(name)) = (server::server(), &database) {
                server.disconnect(name);
            }
            campaign.kill().expect("our own");
            campaign.wait().expect("our own");
            of_campaigns += 1;
            campaign = place.starts(&["campaign", "resume", "night"]);
            continue;
        }
        let slices = place.view().jobs.into_iter().flat_map(|j| j.slices);
        let leased = slices.filter(|s| s.state == SliceState::Leased);
        let workers: Vec<u32> = leased
            .map(|s| s.pid)
            .filter(|pid| is_worker(*pid))
            .collect();
        if workers.is_empty() {
            let ended = campaign.try_wait().expect("our own");
            assert!(
                ended.is_none(),
                "ended after {of_workers} and {of_campaigns} kills"
            );
            continue;
        }
        let pid = workers[below(u32::try_from(workers.len()).expect("two")) as usize];
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        if kill_process(pid.expect("a process"), Signal::KILL).is_ok() {
            of_workers += 1;
        }
    }
    assert!(of_workers > 0 && of_campaigns > 0);
    campaign.kill().expect("our own");
    campaign.wait().expect("our own");
    let last = place.runs(&["campaign", "resume", "night"]);
    assert!(last.status.success(), "{last:?}");
    place.is_complete(jobs);
    place.keeps_the_password(&[last]);
    for job in place.view().jobs {
        for slice in &job.slices {
            match slice.state {
                SliceState::Ended => {}
                SliceState::Lost => {
                    assert_eq!(slice.reason.as_deref(), Some("signal 9"), "{}", job.name);
                }
                SliceState::Waiting | SliceState::Leased => panic!("{}: {slice:?}", job.name),
            }
            assert!(slice.attempts <= 2, "{}: {slice:?}", job.name);
        }
    }
    // Of each of the two workers that go with a campaign one was under way at most.
    assert!(place.lost() <= of_workers + 2 * of_campaigns);
    let timed = place.timed();
    assert!(timed.len() > jobs, "{}", timed.len());
    let twice: Vec<&String> = timed.iter().filter(|t| *t.1 > 1).map(|t| t.0).collect();
    assert!(
        twice.is_empty(),
        "timed twice: {twice:?} of {}",
        timed.len()
    );
}

/// Two machines, of two GPUs each, work on the jobs of one campaign; each has what it found, and whoever asks has all of it. Then one leaves, and the other one
/// is asked to end by a third.
pub(super) fn machines_share_a_campaign() {
    const JOBS: usize = 24;
    let Some(url) = server::database() else {
        return;
    };
    let shown = url.replace(":s3cret%3Aof%40ann", "");
    let one = Place {
        server: Some(url),
        ..Place::new("is-two", JOBS, "1h")
    };
    // However slow the machine is, a search ends since everything was tried.
    one.begins_with("1m");
    let other = one.beside();
    // Who says no password has it from the environment.
    let made = one.runs(&[
        "campaign",
        "plan",
        "plan.toml",
        "-o",
        "night",
        "--journal",
        &shown,
    ]);
    assert!(made.status.success(), "{made:?}");
    let begins = |place: &Place| place.starts(&["campaign", "join", &shown, "-o", "night"]);
    let mut both = [begins(&one), begins(&other)];
    for process in &mut both {
        assert!(process.wait().expect("our own").success());
    }
    let status = other.runs(&["campaign", "status", &shown, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(report["journal"], shown.as_str());
    assert_eq!(report["running"], false);
    let jobs = report["jobs"].as_array().expect("jobs");
    assert!(jobs.iter().all(|job| job["verified"] == true), "{report}");
    let best = other.runs(&["campaign", "best", &shown, "-o", "best"]);
    assert!(best.status.success(), "{best:?}");
    let mut counts = Vec::new();
    for place in [&one, &other] {
        let entries = std::fs::read_dir(place.path("night/artifacts")).expect("a folder");
        let found: Vec<_> = entries.map(|e| e.expect("an entry").file_name()).collect();
        for name in &found {
            let [own, all] = [place.path("night/artifacts"), other.path("best")]
                .map(|folder| Artifact::read(&folder.join(name)).expect("an artifact"));
            all.check().expect("as it was written");
            assert_eq!(own.manifest().seal, all.manifest().seal);
        }
        counts.push(found.len());
    }
    // Each job was one machine's: there is one slice of each.
    assert!(
        counts.iter().all(|n| *n > 0) && counts.iter().sum::<usize>() == JOBS,
        "{counts:?}"
    );
    assert_eq!(
        std::fs::read_dir(other.path("best"))
            .expect("a folder")
            .count(),
        JOBS
    );
    one.keeps_the_password(&[made]);
    other.keeps_the_password(&[status, best]);
}

/// What a machine timed before it was asked to leave is not timed again by another one, which has a log of its own.
pub(super) fn machines_know_what_others_timed() {
    let Some(url) = server::database() else {
        return;
    };
    let first = Place {
        server: Some(url.clone()),
        ..Place::new("passes-all", 1, "1h")
    };
    first.begins_with("10m");
    std::fs::write(first.path("rows.lax"), super::ROWS).expect("writable");
    let plan = ["campaign", "plan", "plan.toml", "-o", "made", "--journal"];
    let made = first.runs(&[&plan[..], &[&url]].concat());
    assert!(made.status.success(), "{made:?}");
    // Joins, and is asked to leave when its log has more kernels alone than that. Whole programs are timed in each search.
    let works = |place: &Place, known: usize| -> Vec<Trial> {
        let mut joined = place.starts(&["campaign", "join", &url, "-o", "night"]);
        let log = place.path("data/tilewright/trials.sqlite");
        // It may be there and not be made yet.
        let is_made = || Log::existing(&log).is_ok();
        let begun = Instant::now();
        while !is_made() || place.timed().len() <= known {
            assert!(begun.elapsed() < Duration::from_secs(60), "it times");
            std::thread::sleep(Duration::from_millis(20));
        }
        let pid = i32::try_from(joined.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), Signal::TERM).expect("our own");
        assert_eq!(joined.wait().expect("our own").code(), Some(0));
        place.trials().into_iter().filter(|t| !t.whole).collect()
    };
    let second = first.beside();
    let (before, after) = (works(&first, 0), works(&second, first.timed().len()));
    for trial in &before {
        let own: Vec<&Trial> = after.iter().filter(|t| t.key == trial.key).collect();
        assert_eq!(own, [trial]);
    }
    assert!(after.len() > before.len());
}

/// What machines that are no more, or were asked to leave, had is done by the others; what is timed elsewhere is not; who wants it all to end has it.
pub(super) fn machines_come_and_go() {
    let Some(url) = server::database() else {
        return;
    };
    let one = Place {
        server: Some(url.clone()),
        ..Place::new("times-three", 2, "1h")
    };
    // No slice ends by itself before all of this has happened, however slow the machine is.
    one.begins_with("10m");
    let made = one.runs(&[
        "campaign",
        "plan",
        "plan.toml",
        "-o",
        "night",
        "--journal",
        &url,
    ]);
    assert!(made.status.success(), "{made:?}");
    let join = ["campaign", "join", &url, "-o", "night"];
    let until = |what: &str, is_so: &dyn Fn(&View) -> bool| {
        let begun = Instant::now();
        while !is_so(&one.view()) {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{what}: {:?}",
                one.view()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let leased = |view: &View| view.jobs.iter().filter(|job| job.is_leased).count();
    let pids = |view: &View| -> Vec<u32> {
        let slices = view.jobs.iter().flat_map(|job| &job.slices);
        slices.map(|slice| slice.pid).collect()
    };
    let (first, second) = (one.beside(), one.beside());
    let mut first_joined = first.starts(&join);
    until("the first machine begins", &|view| leased(view) == 1);
    // Whoever started the second one may end: its input tells.
    let mut command = second.command(&join);
    command.arg("--until-input-ends").stdin(Stdio::piped());
    let mut second_joined = command.spawn().expect("it starts");
    until("the second machine begins", &|view| leased(view) == 2);
    // Arguments can be read by everybody: those of workers have no password.
    for pid in pids(&one.view()) {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).expect("a worker");
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(
            line.contains("campaign-worker") && !line.contains("s3cret"),
            "{line}"
        );
    }
    // A third one is not like them, and one that is like them finds a campaign that runs.
    let third = Place {
        manner: "is-capped",
        ..one.beside()
    };
    let refused = third.runs(&join);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the campaign times it on NVIDIA H200, driver 580.95.05, 700 W, and here is"),
        "{said}"
    );
    let running = one.runs(&["campaign", "resume", "night"]);
    let said = String::from_utf8_lossy(&running.stderr).into_owned();
    assert!(
        said.contains("this campaign runs on") && said.contains("join"),
        "{said}"
    );
    // The first is asked to leave, as by a scheduler, and the second killed.
    let pid = i32::try_from(first_joined.id())
        .ok()
        .and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), Signal::TERM).expect("our own");
    assert_eq!(first_joined.wait().expect("our own").code(), Some(0));
    until("the first machine left", &|view| leased(view) == 1);
    assert!(!one.view().stopping);
    drop(second_joined.stdin.take());
    assert_eq!(second_joined.wait().expect("our own").code(), Some(0));
    until("the second machine left", &|view| leased(view) == 0);
    let mut second_joined = second.starts(&join);
    until("it begins anew", &|view| leased(view) == 1);
    second_joined.kill().expect("our own");
    second_joined.wait().expect("our own");
    let before = one.view();
    let mut last = second.starts(&join);
    // It has both of their slices, one after the other: what was interrupted counts as no attempt.
    until("another one begins", &|view| {
        let old: Vec<u32> = pids(&before);
        let slices = view.jobs.iter().flat_map(|job| &job.slices);
        let attempts: i64 = slices.map(|slice| slice.attempts).sum();
        attempts == 1 && leased(view) == 1 && pids(view).iter().any(|pid| !old.contains(pid))
    });
    let stopped = third.runs(&["campaign", "stop", &url]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(last.wait().expect("our own").code(), Some(0));
    let again = first.runs(&join);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("this campaign was asked to end"), "{said}");
    // With what is there now, from a folder that only knows where the journal is.
    let fourth = Place {
        manner: "passes-all",
        ..first
    };
    let resumed = fourth.runs(&["campaign", "resume", "night"]);
    assert!(resumed.status.success(), "{resumed:?}");
    let said = String::from_utf8_lossy(&resumed.stdout).into_owned();
    assert!(said.contains("2 results of 2 jobs"), "{said}");
    for place in [&one, &second, &third, &fourth] {
        place.keeps_the_password(&[]);
    }
    fourth.keeps_the_password(&[refused, running, stopped, again, resumed]);
}

/// Whether a process is a worker of a campaign: it may have ended since, and another one have its number.
fn is_worker(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("campaign-worker")
}

/// The reason has what the driver told meanwhile.
pub(super) fn what_no_gpu_can_run_is_given_up() {
    let place = Place::new("faults", 2, "1m");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/device/tests/fake/libnvml.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-DFAULTY", "-o"]);
    cc.arg(place.path("libnvidia-ml.so.1")).arg(source);
    // Where there is no C compiler the driver tells nothing.
    let tells = cc.status().is_ok_and(|status| status.success());
    let mut run = place.command(&["campaign", "run", "plan.toml", "-o", "night"]);
    run.env("LD_LIBRARY_PATH", place.folder.path());
    let run = run.stderr(Stdio::piped()).output().expect("it starts");
    assert_eq!(run.status.code(), Some(3), "{run:?}");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("2 of 2 jobs have no result"), "{said}");
    for job in place.view().jobs {
        assert_eq!(job.state, JobState::Failed);
        let reason = job.reason.expect("a reason");
        assert!(
            reason.contains("fault: ") && reason.contains("700"),
            "{reason}"
        );
        let told = "; meanwhile the driver told of Xid 31 (a page fault of a kernel)";
        assert_eq!(reason.ends_with(told), tells, "{reason}");
        let attempts: i64 = job.slices.iter().map(|s| s.attempts).sum();
        assert_eq!((job.slices.len(), attempts), (3, 6));
    }
}

/// The GPU is busy with its fourth kernel for minutes when it is stopped. What was verified before is there.
pub(super) fn what_is_stopped_goes_on() {
    let place = Place::new("times-three", 1, "1h");
    let mut campaign = place.starts(&["campaign", "run", "plan.toml", "-o", "night"]);
    let begun = Instant::now();
    let held = || {
        let there = place.path("night/journal.sqlite").exists();
        there && place.view().jobs[0].best.is_some()
    };
    while !held() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is held");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Killed, it takes its workers along, whatever they are busy with.
    let worker = place.view().jobs[0].slices[0].pid;
    assert!(is_worker(worker));
    campaign.kill().expect("our own");
    campaign.wait().expect("our own");
    let begun = Instant::now();
    while is_worker(worker) {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "its worker goes on"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut campaign = place.starts(&["campaign", "resume", "night"]);
    while !place.campaign().is_running() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let second = place.runs(&["campaign", "resume", "night"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.contains("another process runs this campaign"),
        "{said}"
    );
    let begun = Instant::now();
    let stopped = place.runs(&["campaign", "stop", "night"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(campaign.wait().expect("our own").code(), Some(0));
    place.is_complete(1);
    let view = place.view();
    // The slice is taken up again, and that counts as no attempt.
    let slice = &view.jobs[0].slices[0];
    assert_eq!((slice.state, slice.attempts), (SliceState::Waiting, 0));
    let other = Place {
        manner: "passes-all",
        ..place
    };
    let resumed = other.runs(&["campaign", "resume", "night"]);
    assert!(resumed.status.success(), "{resumed:?}");
    let job = &other.view().jobs[0];
    assert_eq!(job.slices[0].state, SliceState::Ended);
    assert!(job.slices[0].recalled > 0, "{job:?}");
}

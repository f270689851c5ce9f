//! Journals without searches: what is claimed, ended, lost and repeated, at times that are given. Each test is one of a file and one of a server.

#[path = "../../../tests/server/mod.rs"]
mod server;

/// Tests, each of both kinds.
macro_rules! of_both {
    ($($name:ident),* $(,)?) => {
        mod file {
            $(#[test] fn $name() { super::$name(super::Kind::File) })*
        }
        mod on_a_server {
            $(#[test] fn $name() { super::$name(super::Kind::Server) })*
        }
    };
}

mod offers;

use super::*;
use crate::Trial;
use crate::campaign::plan::Job;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

const HERE: &str = "h200";

/// A plan with jobs of these weights.
fn plan(weights: &[f64], budget: u64, first: u64) -> Plan {
    let job = |(n, weight): (usize, &f64)| {
        let text =
            format!("program p{n}\naxis i = 4\nx = parameter f32 [i]\nreturn f32 [i] x + {n}\n");
        Job {
            name: format!("p{n}"),
            program: text.parse().expect("a program"),
            target: HERE.to_owned(),
            weight: *weight,
        }
    };
    Plan {
        budget: Duration::from_secs(budget),
        first: Some(Duration::from_secs(first)),
        seed: None,
        jobs: weights.iter().enumerate().map(job).collect(),
    }
}

/// Where a test has its journal.
#[derive(Clone, Copy)]
enum Kind {
    File,
    Server,
}

of_both! {
    each_job_has_a_first_slice_and_then_what_promises_most,
    where_nothing_was_tried_yet_comes_first,
    what_is_far_from_its_floor_comes_before_what_is_near,
    a_slice_is_one_workers_and_ends_once,
    what_is_lost_is_repeated_once_and_then_counts_as_lost,
    leases_run_out,
    a_campaign_that_was_killed_goes_on_and_counts_its_time,
    budgets_that_do_not_suffice_are_raised,
    what_slices_are_late_by_is_kept_back,
    what_nobody_here_serves_is_not_claimed,
    many_may_claim_at_once,
    what_was_timed_elsewhere_is_stale,
    artifacts_are_in_it_whole,
    a_claim_whose_answer_was_lost_is_made_again,
    who_leaves_has_nothing_any_more,
    what_was_timed_is_there_for_other_sessions,
}

struct Place {
    _folder: tempfile::TempDir,
    site: Site,
    journal: Journal,
    session: Session,
}

/// A site without a journal; none where there is no server.
fn site(kind: Kind, folder: &tempfile::TempDir) -> Option<Site> {
    match kind {
        Kind::File => Some(Site::File(folder.path().join("j"))),
        Kind::Server => {
            let url = Url::parse(&server::database()?);
            Some(Site::Server(url.expect("an address")))
        }
    }
}

fn place(kind: Kind, plan: &Plan) -> Option<Place> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let site = site(kind, &folder)?;
    let mut journal = Journal::make(&site, plan, 7).expect("a journal");
    let session = journal.begin(1, 0.0).expect("a session");
    Some(Place {
        _folder: folder,
        site,
        journal,
        session,
    })
}

impl Place {
    fn claim(&mut self, worker: u32, now: f64) -> Claim {
        let claim = self
            .journal
            .claim(self.session, worker, &[HERE.to_owned()], now);
        claim.expect("readable")
    }

    fn slice(&mut self, worker: u32, now: f64) -> Lease {
        match self.claim(worker, now) {
            Claim::Slice(lease) => *lease,
            other @ (Claim::Wait | Claim::Nothing) => panic!("{other:?}"),
        }
    }

    /// A slice is taken, finds this time among some, and ends.
    fn ended(&mut self, us: f64, seconds: f64) -> Lease {
        self.tried(9, us, seconds)
    }

    /// The same where so many kernels were timed alone.
    fn tried(&mut self, trials: u64, us: f64, seconds: f64) -> Lease {
        let lease = self.slice(0, 0.0);
        let known = Known {
            seal: format!("{}-{us}", lease.slice),
            us,
            verified: true,
            timed_on: None,
        };
        self.journal
            .hold(&lease, Some(&known), None)
            .expect("writable");
        let outcome = Outcome {
            seconds,
            trials,
            ..Outcome::default()
        };
        assert!(self.journal.end(&lease, &outcome).expect("writable"));
        lease
    }
}

fn each_job_has_a_first_slice_and_then_what_promises_most(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0, 5.0, 2.0], 1000, 10)) else {
        return;
    };
    let first: Vec<String> = (0..3).map(|_| place.ended(100.0, 10.0).name).collect();
    assert_eq!(
        first,
        ["p1", "p2", "p0"],
        "what runs most often comes first"
    );
    let second = place.slice(0, 0.0);
    assert_eq!((second.name.as_str(), second.budget.as_secs()), ("p1", 20));
    // It brought nothing, twice: then others promise more, though it runs more often.
    let mut journal = Journal::open(&place.site).expect("a journal");
    let outcome = Outcome {
        seconds: 20.0,
        trials: 9,
        ..Outcome::default()
    };
    assert!(journal.end(&second, &outcome).expect("writable"));
    let names: Vec<String> = (0..4).map(|_| place.ended(100.0, 20.0).name).collect();
    assert!(
        names.contains(&"p0".to_owned()) && names.contains(&"p2".to_owned()),
        "{names:?}"
    );
}

/// Their first slices had time for the first candidate alone: nothing is known of how their times fall.
fn where_nothing_was_tried_yet_comes_first(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0, 5.0, 2.0], 1000, 10)) else {
        return;
    };
    let first: Vec<String> = [9, 0, 9].map(|n| place.tried(n, 100.0, 10.0).name).into();
    assert_eq!(first, ["p1", "p2", "p0"]);
    let next: Vec<Lease> = (0..3).map(|_| place.tried(0, 100.0, 20.0)).collect();
    let next: Vec<(&str, u64)> = next
        .iter()
        .map(|l| (l.name.as_str(), l.budget.as_secs()))
        .collect();
    // Not for ever.
    assert_eq!(next, [("p2", 20), ("p2", 40), ("p2", 80)]);
    assert_eq!(place.tried(0, 100.0, 20.0).name, "p1");
}

/// What is far from what its program might take has more to gain than what weighs as much and is near.
fn what_is_far_from_its_floor_comes_before_what_is_near(kind: Kind) {
    let mut plan = plan(&[1.0, 1.0], 1000, 10);
    let text = "program p1\naxis i = 1048576\nx = parameter f32 [i]\nreturn f32 [i] x + 1\n";
    plan.jobs[1].program = text.parse().expect("a program");
    let target = search::targets::target(HERE).expect("a target");
    let floor = share::floor_us(&plan.jobs[1].program, &target);
    // Eight megabytes, which L2 holds, and a launch.
    let moved = 8.388608 / target.l2_tb_s;
    assert!((floor - moved - target.launch_us).abs() < 1e-9, "{floor}");
    let Some(mut place) = place(kind, &plan) else {
        return;
    };
    // The far one is the faster one.
    for (name, us) in [("p0", 0.8 * floor), ("p1", floor)] {
        assert_eq!(place.ended(us, 10.0).name, name);
    }
    assert_eq!(place.slice(0, 0.0).name, "p0");
}

fn a_slice_is_one_workers_and_ends_once(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 1000, 10)) else {
        return;
    };
    let lease = place.slice(0, 0.0);
    assert_eq!((lease.name.as_str(), lease.seed, lease.token), ("p0", 7, 1));
    assert_eq!(place.claim(1, 0.0), Claim::Wait);
    assert!(place.journal.renew(&lease, 5.0).expect("writable"));
    // It is taken away, and somebody else has it.
    assert!(
        place
            .journal
            .lose_of(place.session, 0, "signal 9")
            .expect("writable")
    );
    let again = place.slice(1, 6.0);
    assert_eq!((again.slice, again.token), (lease.slice, 2));
    assert!(!place.journal.renew(&lease, 7.0).expect("writable"));
    assert!(
        !place
            .journal
            .end(&lease, &Outcome::default())
            .expect("writable")
    );
    let known = Known {
        seal: "late".to_owned(),
        us: 1.0,
        verified: true,
        timed_on: None,
    };
    place
        .journal
        .hold(&lease, Some(&known), None)
        .expect("writable");
    place.journal.lose(&lease, "late").expect("writable");
    place.journal.give_back(&lease).expect("writable");
    let view = place.journal.view().expect("readable");
    assert_eq!(view.jobs[0].best, None, "it wrote without a lease");
    assert_eq!(view.jobs[0].slices[0].state, SliceState::Leased);
    assert!(
        place
            .journal
            .end(&again, &Outcome::default())
            .expect("writable")
    );
    assert!(
        !place
            .journal
            .end(&again, &Outcome::default())
            .expect("writable")
    );
}

fn what_is_lost_is_repeated_once_and_then_counts_as_lost(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 1000, 10)) else {
        return;
    };
    for slice in 0..3 {
        for attempt in 1..=2 {
            let lease = place.slice(0, 0.0);
            assert_eq!(lease.token, attempt);
            let reason = format!("signal {slice}{attempt}");
            place.journal.lose(&lease, &reason).expect("writable");
        }
        let view = place.journal.view().expect("readable");
        let found = &view.jobs[0].slices[slice];
        assert_eq!(found.state, SliceState::Lost);
        assert_eq!(found.reason, Some(format!("signal {slice}2")));
    }
    // Three behind each other, and nothing came of it.
    assert_eq!(place.claim(0, 0.0), Claim::Nothing);
    let view = place.journal.view().expect("readable");
    assert_eq!(view.jobs[0].state, JobState::Failed);
    assert_eq!(view.jobs[0].reason.as_deref(), Some("signal 22"));
    // It has another chance where somebody asks for it.
    place.journal.reopen().expect("writable");
    assert_eq!(place.ended(50.0, 10.0).name, "p0");
}

fn leases_run_out(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 1000, 10)) else {
        return;
    };
    let lease = place.slice(3, 0.0);
    let late = LEASE.as_secs_f64() + 1.0;
    let overdue =
        |place: &mut Place, now| place.journal.overdue(place.session, now).expect("readable");
    assert_eq!(overdue(&mut place, late - 2.0), Vec::<u32>::new());
    assert_eq!(overdue(&mut place, late), [3]);
    assert!(place.journal.renew(&lease, 5.0).expect("writable"));
    assert_eq!(overdue(&mut place, late), Vec::<u32>::new());
}

fn a_campaign_that_was_killed_goes_on_and_counts_its_time(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 100, 10)) else {
        return;
    };
    place.journal.beat(place.session, 30.0).expect("writable");
    for _ in 0..5 {
        let lease = place.slice(0, 30.0);
        // Nobody ends it; another session begins. That is no fault of the slice's, however often.
        place.session = place.journal.begin(1, 1000.0).expect("a session");
        assert!(
            !place
                .journal
                .end(&lease, &Outcome::default())
                .expect("writable")
        );
    }
    let lease = place.slice(0, 1000.0);
    assert_eq!(lease.budget.as_secs(), 10);
    let view = place.journal.view().expect("readable");
    assert_eq!(
        (view.spent.as_secs(), view.jobs[0].slices[0].attempts),
        (30, 1)
    );
    place.journal.give_back(&lease).expect("writable");
    // What is left is all that a slice may take, and then nothing is.
    assert_eq!(place.slice(0, 1066.0).budget.as_secs(), 4);
    place.journal.beat(place.session, 1070.0).expect("writable");
    assert_eq!(place.claim(1, 1070.0), Claim::Nothing);
    place
        .journal
        .set_budget(Duration::from_secs(200))
        .expect("writable");
    assert_eq!(place.claim(1, 1070.0), Claim::Wait);
}

fn budgets_that_do_not_suffice_are_raised(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 100, 10)) else {
        return;
    };
    let lease = place.slice(0, 0.0);
    let outcome = Outcome {
        least: Some(Duration::from_secs(70)),
        reason: Some("a budget of 70s would do".to_owned()),
        ..Outcome::default()
    };
    assert!(place.journal.end(&lease, &outcome).expect("writable"));
    let lease = place.slice(0, 20.0);
    assert_eq!(lease.budget.as_secs(), 70);
    assert!(place.journal.end(&lease, &outcome).expect("writable"));
    // It never will: there is less left.
    assert_eq!(place.claim(0, 40.0), Claim::Nothing);
}

fn what_slices_are_late_by_is_kept_back(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0, 1.0], 100, 10)) else {
        return;
    };
    let lease = place.ended(50.0, 13.0);
    assert_eq!(lease.budget.as_secs(), 10);
    // Three seconds of the twelve that are left; and no more than a quarter of what is left.
    let lease = place.slice(0, 88.0);
    assert_eq!(lease.budget.as_secs(), 9);
    place.journal.give_back(&lease).expect("writable");
    assert_eq!(place.slice(0, 96.0).budget.as_secs(), 3);
}

fn what_nobody_here_serves_is_not_claimed(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 100, 10)) else {
        return;
    };
    let other = [String::from("h100")];
    let claim = place.journal.claim(place.session, 0, &other, 0.0);
    assert_eq!(claim.expect("readable"), Claim::Nothing);
}

/// Some threads with a connection each, as processes have; every third slice is lost at first.
fn many_may_claim_at_once(kind: Kind) {
    const JOBS: usize = 24;
    let Some(place) = place(kind, &plan(&[1.0; JOBS], 1_000_000, 10)) else {
        return;
    };
    let (ended, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (site, ended, lost) = (&place.site, &ended, &lost);
            scope.spawn(move || {
                let mut journal = Journal::open(site).expect("a journal");
                let here = [HERE.to_owned()];
                loop {
                    let claim = journal.claim(place.session, worker, &here, 1.0);
                    match claim.expect("readable") {
                        Claim::Nothing => return,
                        Claim::Wait => std::thread::yield_now(),
                        Claim::Slice(lease) if lease.slice % 3 == 0 && lease.token == 1 => {
                            journal.lose(&lease, "chance").expect("writable");
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                        Claim::Slice(lease) => {
                            let outcome = Outcome {
                                seconds: 1.0,
                                exhausted: true,
                                ..Outcome::default()
                            };
                            let mine = journal.end(&lease, &outcome).expect("writable");
                            assert!(mine, "somebody else had it too");
                            ended.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(ended.into_inner(), JOBS);
    assert_eq!(lost.into_inner(), JOBS / 3);
    let mut journal = Journal::open(&place.site).expect("a journal");
    let view = journal.view().expect("readable");
    let slices: Vec<&SliceView> = view.jobs.iter().flat_map(|j| &j.slices).collect();
    assert_eq!(slices.len(), JOBS);
    let states: BTreeSet<bool> = slices
        .iter()
        .map(|s| s.state == SliceState::Ended)
        .collect();
    assert_eq!(states, [true].into());
}

/// What stands was timed elsewhere: it is shown, it is searched again before others gain anything, and it gives way to whatever is found.
fn what_was_timed_elsewhere_is_stale(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0, 1.0], 1000, 10)) else {
        return;
    };
    let on = |driver: &str| vec![(HERE.to_owned(), format!("H200, driver {driver}"))];
    let known = |lease: &Lease, us: f64, driver: &str| Known {
        seal: format!("{}-{us}", lease.slice),
        us,
        verified: true,
        timed_on: Some(format!("H200, driver {driver}")),
    };
    place.journal.set_places(&on("1")).expect("writable");
    let done = Outcome {
        seconds: 10.0,
        exhausted: true,
        ..Outcome::default()
    };
    for _ in 0..2 {
        let lease = place.slice(0, 0.0);
        let fast = known(&lease, 5.0, "1");
        place
            .journal
            .hold(&lease, Some(&fast), None)
            .expect("writable");
        assert!(place.journal.end(&lease, &done).expect("writable"));
    }
    let stale = |place: &mut Place| -> Vec<bool> {
        let view = place.journal.view().expect("readable");
        view.jobs.iter().map(|job| job.is_stale).collect()
    };
    assert_eq!(stale(&mut place), [false, false]);
    assert_eq!(place.claim(0, 0.0), Claim::Nothing);
    place.journal.set_places(&on("1")).expect("writable");
    assert_eq!(place.claim(0, 0.0), Claim::Nothing, "nothing changed");
    place.journal.set_places(&on("2")).expect("writable");
    assert_eq!(stale(&mut place), [true, true]);
    let lease = place.slice(0, 0.0);
    assert_eq!((lease.name.as_str(), lease.budget.as_secs()), ("p0", 10));
    let before = place
        .journal
        .held(&lease)
        .expect("readable")
        .expect("what was there");
    let slow = known(&lease, 6.0, "2");
    assert!(slow.is_better_than(&before) && !known(&lease, 6.0, "1").is_better_than(&before));
    place
        .journal
        .hold(&lease, Some(&slow), None)
        .expect("writable");
    assert!(place.journal.end(&lease, &done).expect("writable"));
    assert_eq!(stale(&mut place), [false, true]);
    // What was faster elsewhere is no progress of what is timed here.
    let written = place.journal.written_since(0).expect("readable");
    assert_eq!(written.last().map(|(_, p)| p.before), Some(None));
    let view = place.journal.view().expect("readable");
    assert_eq!(
        view.jobs[0].curve.iter().map(|p| p.us).collect::<Vec<_>>(),
        [6.0]
    );
}

/// A journal as it was before it knew where something was timed.
#[test]
fn older_journals_go_on() {
    let place = place(Kind::File, &plan(&[1.0], 100, 10)).expect("a journal");
    let Site::File(path) = &place.site else {
        panic!("a file");
    };
    drop(place.journal);
    let older = Connection::open(path).expect("a database");
    let back = "DROP TABLE trial; ALTER TABLE job DROP COLUMN floor_us; DROP TABLE offer; ALTER TABLE session DROP COLUMN compiler; DROP TABLE place; DROP TABLE file; DROP TABLE content;
        ALTER TABLE slice DROP COLUMN timed_on; ALTER TABLE artifact DROP COLUMN timed_on;
        ALTER TABLE session DROP COLUMN host; ALTER TABLE session DROP COLUMN stopping; PRAGMA user_version = 1";
    older.execute_batch(back).expect("writable");
    drop(older);
    let mut journal = Journal::open(&place.site).expect("a journal");
    let session = journal.begin(1, 0.0).expect("a session");
    let claim = journal.claim(session, 0, &[HERE.to_owned()], 0.0);
    assert!(matches!(claim, Ok(Claim::Slice(_))), "{claim:?}");
}

/// What is stored comes back; what is not what was stored does not.
fn artifacts_are_in_it_whole(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 100, 10)) else {
        return;
    };
    let files: Files = (crate::artifact::samples::files("rows", "h200", 1).into_iter())
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .collect();
    let manifest = files.iter().find(|(name, _)| name == "manifest.json");
    let manifest = serde_json::from_slice(&manifest.expect("one").1);
    let manifest: crate::artifact::Manifest = manifest.expect("a manifest");
    let known = |seal: &str| Known {
        seal: seal.to_owned(),
        us: 1.0,
        verified: false,
        timed_on: None,
    };
    let lease = place.slice(0, 0.0);
    let journal = &mut place.journal;
    // Twice, as where the answer was lost.
    for _ in 0..2 {
        let own = known(&manifest.seal);
        journal
            .hold(&lease, Some(&own), Some(&files))
            .expect("writable");
    }
    let mut sorted = files.clone();
    sorted.sort();
    assert_eq!(journal.files(&manifest.seal).expect("whole"), Some(sorted));
    journal
        .hold(&lease, Some(&known("other")), None)
        .expect("writable");
    assert_eq!(journal.files("other").expect("readable"), None);
    journal
        .hold(&lease, Some(&known("wrong")), Some(&files))
        .expect("writable");
    let said = journal.files("wrong").expect_err("damaged").to_string();
    assert!(said.contains("the artifact wrong is damaged"), "{said}");
    // Contents are stored once.
    let count = journal.read(|all| all.one::<i64>("SELECT count(*) FROM content", &[]));
    let contents: BTreeSet<&Vec<u8>> = files.iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(count.expect("readable"), contents.len() as i64);
}

/// A trial counts once, whoever tells of it, and is none of those of whoever told.
fn what_was_timed_is_there_for_other_sessions(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 100, 10)) else {
        return;
    };
    let lines =
        include_str!("../../../bench/results/trials-h200-2026-11-24-2/linear_attention.jsonl");
    let mut told: Vec<Trial> = (lines.lines().take(9).enumerate())
        .map(|(n, line)| {
            let trial: Trial = serde_json::from_str(line).expect("a trial");
            let key = crate::TrialKey::from(format!("key {n}"));
            Trial { key, ..trial }
        })
        .collect();
    // Schedules of one tile program, one behind the other and not.
    for other in [1, 3] {
        told[other].tile = told[0].tile.clone();
    }
    let lease = place.slice(0, 0.0);
    let journal = &mut place.journal;
    journal.add_trials(&lease, &[]).expect("writable");
    journal.add_trials(&lease, &told[..3]).expect("writable");
    let slower = Trial {
        clock_us: told[2].clock_us + 1.0,
        ..told[2].clone()
    };
    let again: Vec<Trial> = [slower].into_iter().chain(told[3..].to_vec()).collect();
    journal.add_trials(&lease, &again).expect("writable");
    let own = journal.trials_of_others(&lease, 0, 99).expect("readable");
    assert_eq!(own, []);
    let other = Lease {
        session: journal.join(1, 0.0).expect("writable").expect("a session"),
        ..lease
    };
    let (mut found, mut behind) = (Vec::new(), 0);
    loop {
        let some = journal.trials_of_others(&other, behind, 2);
        let some = some.expect("readable");
        assert!(some.len() <= 2);
        let Some((last, _)) = some.last() else { break };
        behind = *last;
        found.extend(some.into_iter().filter_map(|(_, trial)| trial));
    }
    assert_eq!(found, told);
    // Tile programs with several schedules are stored once.
    let tiles: BTreeSet<&str> = told.iter().map(|t| t.tile.as_str()).collect();
    assert!(tiles.len() < told.len());
    let count = journal.read(|all| all.one::<i64>("SELECT count(*) FROM content", &[]));
    assert_eq!(count.expect("readable"), tiles.len() as i64);
    // What cannot be read is passed over.
    let spoilt = |all: &mut All<'_, '_>| all.execute("UPDATE trial SET body = '{}'", &[]);
    assert_eq!(journal.write(spoilt).expect("writable"), 9);
    let found = journal.trials_of_others(&other, 0, 99).expect("readable");
    assert!(found.len() == 9 && found.iter().all(|(_, trial)| trial.is_none()));
}

fn a_claim_whose_answer_was_lost_is_made_again(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0, 1.0], 100, 10)) else {
        return;
    };
    let first = place.slice(0, 0.0);
    let again = place.slice(0, 1.0);
    assert_eq!((again.slice, again.token), (first.slice, 2));
    assert!(
        !place
            .journal
            .end(&first, &Outcome::default())
            .expect("writable")
    );
    assert!(
        place
            .journal
            .end(&again, &Outcome::default())
            .expect("writable")
    );
    let view = place.journal.view().expect("readable");
    assert_eq!(
        view.jobs[0].slices[0].attempts, 1,
        "it is no fault of the slice's"
    );
}

/// Who was asked to leave gets nothing; the campaign goes on for others, until it ends for all.
fn who_leaves_has_nothing_any_more(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0, 1.0], 100, 10)) else {
        return;
    };
    let stopping = |place: &mut Place| place.journal.is_stopping(place.session).expect("readable");
    assert!(!stopping(&mut place));
    place.journal.leave(place.session).expect("writable");
    assert!(stopping(&mut place));
    assert_eq!(place.claim(0, 0.0), Claim::Nothing);
    place.session = place
        .journal
        .join(1, 0.0)
        .expect("writable")
        .expect("a session");
    assert!(!stopping(&mut place));
    place.slice(0, 0.0);
    place.journal.stop().expect("writable");
    assert!(stopping(&mut place));
    assert_eq!(place.journal.join(1, 0.0).expect("writable"), None);
    place.session = place.journal.begin(1, 0.0).expect("a session");
    place.slice(0, 0.0);
}

/// Two machines at once: their time counts once, each sees the other, and what one had that is no more is the other's at once.
#[test]
fn machines_work_beside_each_other() {
    let Some(mut place) = place(Kind::Server, &plan(&[1.0; 3], 100, 10)) else {
        return;
    };
    let site = place.site.clone();
    let open = || Journal::open(&site).expect("a journal");
    let (mut other, mut third) = (open(), open());
    let joined = other.join(2, 10.0).expect("writable").expect("a session");
    let names = |journal: &mut Journal| -> Vec<i64> {
        let running = journal.running().expect("readable").into_iter();
        running.map(|view| view.session.0).collect()
    };
    assert_eq!(names(&mut third), [place.session.0, joined.0]);
    let (own, theirs) = (place.slice(0, 10.0), {
        let claim = other.claim(joined, 0, &[HERE.to_owned()], 10.0);
        match claim.expect("readable") {
            Claim::Slice(lease) => *lease,
            none @ (Claim::Wait | Claim::Nothing) => panic!("{none:?}"),
        }
    });
    assert_ne!(own.job, theirs.job);
    place.journal.beat(place.session, 30.0).expect("writable");
    other.beat(joined, 40.0).expect("writable");
    let spent = third.view().expect("readable").spent;
    assert_eq!(spent.as_secs(), 40, "from 0 to 30, and from 10 to 40");
    // Nothing is taken from who lives and says so.
    place.journal.sweep(place.session, 29.0).expect("writable");
    assert!(other.renew(&theirs, 29.0).expect("writable"));
    // A machine that is silent, and whose connection is there: the lease has run out.
    place.journal.sweep(place.session, 60.0).expect("writable");
    assert!(!other.renew(&theirs, 60.0).expect("writable"));
    let again = place.slice(1, 60.0);
    assert_eq!((again.slice, again.token), (theirs.slice, 2));
    let view = third.view().expect("readable");
    let slice = view
        .jobs
        .iter()
        .find(|job| job.id == theirs.job)
        .map(|job| &job.slices[0]);
    let reason = slice
        .and_then(|slice| slice.reason.clone())
        .expect("a reason");
    assert!(reason.contains("no word for 20s"), "{reason}");
    // A process that ends takes its connection along.
    assert!(place.journal.renew(&own, 60.0).expect("writable"));
    let mut fourth = open();
    let gone = fourth.join(1, 61.0).expect("writable").expect("a session");
    let claim = fourth
        .claim(gone, 0, &[HERE.to_owned()], 61.0)
        .expect("readable");
    let Claim::Slice(lost) = claim else {
        panic!("{claim:?}");
    };
    drop(fourth);
    let begun = std::time::Instant::now();
    while names(&mut third).contains(&gone.0) {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "its mark is there"
        );
    }
    place.journal.sweep(place.session, 62.0).expect("writable");
    let view = third.view().expect("readable");
    let job = view
        .jobs
        .iter()
        .find(|job| job.id == lost.job)
        .expect("a job");
    assert_eq!(
        (job.slices[0].state, job.slices[0].attempts),
        (SliceState::Waiting, 0)
    );
    // Where all is said and done nobody is there.
    place.journal.finish(place.session, 63.0).expect("writable");
    other.finish(joined, 63.0).expect("writable");
    assert_eq!(names(&mut third), [0; 0]);
}

/// Connections are lost, and the server is away for a while: who uses the journal notices nothing but the time that it takes.
#[test]
fn connections_that_are_lost_are_made_again() {
    let Some(server) = server::Server::start() else {
        return;
    };
    server.ask("CREATE DATABASE night");
    let url = Url::parse(&server.address("night")).expect("an address");
    let site = Site::Server(url);
    let mut journal = Journal::make(&site, &plan(&[1.0], 100, 10), 7).expect("a journal");
    let session = journal.begin(1, 0.0).expect("a session");
    let claim = journal.claim(session, 0, &[HERE.to_owned()], 0.0);
    let Ok(Claim::Slice(lease)) = claim else {
        panic!("{claim:?}");
    };
    assert_eq!(journal.restored(), None);
    server.disconnect("night");
    assert!(journal.renew(&lease, 1.0).expect("it is made again"));
    assert!(journal.restored().is_some());
    let mut other = Journal::open(&site).expect("a journal");
    assert_eq!(
        other.running().expect("readable").len(),
        1,
        "its mark is gone"
    );
    server.control("stop");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            server.control("start");
        });
        assert!(Journal::open(&site).is_err(), "it is away");
        drop(Journal::open_again(&site).expect("it comes again"));
        assert!(journal.renew(&lease, 2.0).expect("it is made again"));
    });
    let outcome = Outcome::default();
    assert!(journal.end(&lease, &outcome).expect("writable"));
    journal.beat(session, 3.0).expect("writable");
    assert_eq!(
        other.running().expect("readable").len(),
        1,
        "its mark is gone"
    );
}

/// What is in the way on a server is left alone, and said without the password.
#[test]
fn what_is_no_journal_on_a_server_is_left_alone() {
    let Some(address) = server::database() else {
        return;
    };
    let site = Site::Server(Url::parse(&address).expect("an address"));
    let plan = plan(&[1.0], 100, 10);
    let said = |result: Result<Journal, DatabaseError>| {
        let said = result.expect_err("none").to_string();
        assert!(
            !said.contains("s3cret") && said.contains("postgres://ann@127.0.0.1:"),
            "{said}"
        );
        said
    };
    let none = said(Journal::open(&site));
    assert!(
        none.contains("expected the journal of a campaign, found none"),
        "{none}"
    );
    let mut client = postgres::Client::connect(&address, postgres::NoTls).expect("our own server");
    client
        .batch_execute("CREATE TABLE mine (id int)")
        .expect("a table");
    let occupied = said(Journal::make(&site, &plan, 7));
    assert!(
        occupied.contains("without tables, found some"),
        "{occupied}"
    );
    // Beside them there is room in a schema of its own.
    client
        .batch_execute("CREATE SCHEMA night")
        .expect("a schema");
    let beside = format!("{address}?options=-csearch_path%3Dnight");
    let beside = Site::Server(Url::parse(&beside).expect("an address"));
    drop(Journal::make(&beside, &plan, 7).expect("a journal"));
    drop(Journal::open(&beside).expect("a journal"));
    let twice = said(Journal::make(&beside, &plan, 7));
    assert!(
        twice.contains("the journal of a campaign is here already"),
        "{twice}"
    );
    client
        .batch_execute("UPDATE night.tilewright SET version = 99")
        .expect("writable");
    let newer = said(Journal::open(&beside));
    assert!(newer.contains("found version 99"), "{newer}");
    let wrong = address.replace("s3cret", "s3cret-no");
    let refused = said(Journal::open(&Site::Server(
        Url::parse(&wrong).expect("an address"),
    )));
    assert!(
        refused.contains("password authentication failed"),
        "{refused}"
    );
}

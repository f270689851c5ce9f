//! Journals without searches: what is claimed, ended, lost and repeated, at times that are given.

use super::*;
use crate::campaign::plan::Job;
use std::collections::BTreeSet;
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

struct Place {
    folder: tempfile::TempDir,
    journal: Journal,
    session: Session,
}

fn place(plan: &Plan) -> Place {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut journal = Journal::make(&folder.path().join("j"), plan, 7).expect("a journal");
    let session = journal.begin(1, 0.0).expect("a session");
    Place {
        folder,
        journal,
        session,
    }
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

    /// A slice is taken, finds this time, and ends.
    fn ended(&mut self, us: f64, seconds: f64) -> Lease {
        let lease = self.slice(0, 0.0);
        let known = Known {
            seal: format!("{}-{us}", lease.slice),
            us,
            verified: true,
            timed_on: None,
        };
        self.journal.hold(&lease, Some(&known)).expect("writable");
        let outcome = Outcome {
            seconds,
            ..Outcome::default()
        };
        assert!(self.journal.end(&lease, &outcome).expect("writable"));
        lease
    }
}

#[test]
fn each_job_has_a_first_slice_and_then_what_promises_most() {
    let mut place = place(&plan(&[1.0, 5.0, 2.0], 1000, 10));
    let first: Vec<String> = (0..3).map(|_| place.ended(100.0, 10.0).name).collect();
    assert_eq!(
        first,
        ["p1", "p2", "p0"],
        "what runs most often comes first"
    );
    let second = place.slice(0, 0.0);
    assert_eq!((second.name.as_str(), second.budget.as_secs()), ("p1", 20));
    // It brought nothing, twice: then others promise more, though it runs more often.
    let mut journal = Journal::open(&place.folder.path().join("j")).expect("a journal");
    let outcome = Outcome {
        seconds: 20.0,
        ..Outcome::default()
    };
    assert!(journal.end(&second, &outcome).expect("writable"));
    let names: Vec<String> = (0..4).map(|_| place.ended(100.0, 20.0).name).collect();
    assert!(
        names.contains(&"p0".to_owned()) && names.contains(&"p2".to_owned()),
        "{names:?}"
    );
}

#[test]
fn a_slice_is_one_workers_and_ends_once() {
    let mut place = place(&plan(&[1.0], 1000, 10));
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
    place.journal.hold(&lease, Some(&known)).expect("writable");
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

#[test]
fn what_is_lost_is_repeated_once_and_then_counts_as_lost() {
    let mut place = place(&plan(&[1.0], 1000, 10));
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

#[test]
fn leases_run_out() {
    let mut place = place(&plan(&[1.0], 1000, 10));
    let lease = place.slice(3, 0.0);
    let late = LEASE.as_secs_f64() + 1.0;
    let overdue = |place: &Place, now| place.journal.overdue(place.session, now).expect("readable");
    assert_eq!(overdue(&place, late - 2.0), Vec::<u32>::new());
    assert_eq!(overdue(&place, late), [3]);
    assert!(place.journal.renew(&lease, 5.0).expect("writable"));
    assert_eq!(overdue(&place, late), Vec::<u32>::new());
}

#[test]
fn a_campaign_that_was_killed_goes_on_and_counts_its_time() {
    let mut place = place(&plan(&[1.0], 100, 10));
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

#[test]
fn budgets_that_do_not_suffice_are_raised() {
    let mut place = place(&plan(&[1.0], 100, 10));
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

#[test]
fn what_nobody_here_serves_is_not_claimed() {
    let mut place = place(&plan(&[1.0], 100, 10));
    let other = [String::from("h100")];
    let claim = place.journal.claim(place.session, 0, &other, 0.0);
    assert_eq!(claim.expect("readable"), Claim::Nothing);
}

/// Some threads with a connection each, as processes have; every third slice is lost at first.
#[test]
fn many_may_claim_at_once() {
    const JOBS: usize = 24;
    let place = place(&plan(&[1.0; JOBS], 1_000_000, 10));
    let path = place.folder.path().join("j");
    let (ended, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (path, ended, lost) = (&path, &ended, &lost);
            scope.spawn(move || {
                let mut journal = Journal::open(path).expect("a journal");
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
    let mut journal = Journal::open(&path).expect("a journal");
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
#[test]
fn what_was_timed_elsewhere_is_stale() {
    let mut place = place(&plan(&[1.0, 1.0], 1000, 10));
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
        place.journal.hold(&lease, Some(&fast)).expect("writable");
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
    place.journal.hold(&lease, Some(&slow)).expect("writable");
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
    let place = place(&plan(&[1.0], 100, 10));
    let path = place.folder.path().join("j");
    drop(place.journal);
    let older = Connection::open(&path).expect("a database");
    let back = "DROP TABLE place; ALTER TABLE slice DROP COLUMN timed_on; ALTER TABLE artifact DROP COLUMN timed_on; PRAGMA user_version = 1";
    older.execute_batch(back).expect("writable");
    drop(older);
    let mut journal = Journal::open(&path).expect("a journal");
    let session = journal.begin(1, 0.0).expect("a session");
    let claim = journal.claim(session, 0, &[HERE.to_owned()], 0.0);
    assert!(matches!(claim, Ok(Claim::Slice(_))), "{claim:?}");
}

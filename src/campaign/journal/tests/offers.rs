//! Offers without compilers: who takes which, at times that are given.

use super::*;

const NVRTC: &str = "nvrtc 13.0";

of_both! {
    an_offer_has_one_answer,
    who_is_silent_is_not_waited_for,
    offers_go_with_their_slice,
    nothing_is_left_to_compile_once_jobs_are_done,
}

fn offer(key: &str) -> Offer {
    Offer {
        key: key.to_owned(),
        compiler: NVRTC.to_owned(),
        arch: "sm_90a".to_owned(),
        source: format!("text of {key}"),
    }
}

impl Place {
    /// Offers programs with these keys.
    fn offers(&mut self, lease: &Lease, keys: &[&str]) -> Vec<i64> {
        let offers: Vec<Offer> = keys.iter().map(|key| offer(key)).collect();
        let numbers = self.journal.offer(lease, &offers).expect("writable");
        numbers.expect("the lease is held")
    }

    fn fates(&mut self, lease: &Lease, now: f64) -> BTreeMap<i64, Fate> {
        let fates = self.journal.fates(lease, now).expect("writable");
        fates.into_iter().collect()
    }

    fn takes(&mut self, session: Session, most: usize, now: f64) -> Vec<i64> {
        let taken = self.journal.take(session, NVRTC, most, now);
        let taken = taken.expect("writable").into_iter();
        taken.map(|taken| taken.offer).collect()
    }

    /// Another session; in a file it need not run.
    fn another(&mut self) -> Session {
        let session = self.journal.join(1, 0.0).expect("writable");
        session.expect("a session")
    }
}

fn an_offer_has_one_answer(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 100, 10)) else {
        return;
    };
    let (one, other) = (place.another(), place.another());
    let lease = place.slice(0, 0.0);
    let all = place.offers(&lease, &["a", "b", "c"]);
    // Said twice it is the same.
    assert_eq!(place.offers(&lease, &["a", "b", "c"]), all);
    let newer = place.journal.take(one, "nvrtc 13.1", 3, 0.0);
    assert_eq!(newer.expect("writable"), []);
    let taken = place.journal.take(one, NVRTC, 1, 0.0).expect("writable");
    let first = Taken {
        offer: all[0],
        key: "a".to_owned(),
        arch: "sm_90a".to_owned(),
        source: "text of a".to_owned(),
    };
    assert_eq!(taken, [first]);
    assert_eq!(place.takes(other, 1, 0.0), [all[1]]);
    // What is open can be had back, and what is taken cannot.
    let back = place.journal.take_back(&all).expect("writable");
    assert_eq!(back, [all[2]]);
    assert_eq!(place.takes(other, 3, 0.0), [0; 0]);
    let mut says = |session, offer, word: &[u8]| {
        let said = place.journal.answer(session, offer, word.to_vec());
        said.expect("writable");
    };
    says(other, all[0], b"not its own");
    says(one, all[0], b"a word");
    says(one, all[0], b"another word");
    let fates = place.fates(&lease, 1.0);
    let expected = [
        (all[0], Fate::Answered(b"a word".to_vec())),
        (all[1], Fate::Taken),
    ];
    assert_eq!(fates, expected.into());
    assert_eq!(place.fates(&lease, 1.0), [(all[1], Fate::Taken)].into());
    place.journal.withdraw(&all).expect("writable");
    assert_eq!(place.fates(&lease, 1.0), [].into());
}

fn who_is_silent_is_not_waited_for(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 100, 10)) else {
        return;
    };
    let one = place.another();
    let lease = place.slice(0, 0.0);
    let all = place.offers(&lease, &["a", "b", "c", "d"]);
    assert_eq!(place.takes(one, 4, 0.0), all);
    place
        .journal
        .renew_taken(one, &all[..1], 15.0)
        .expect("writable");
    place.journal.fail(one, all[1]).expect("writable");
    place.journal.release(one, &all[2..3]).expect("writable");
    let fates = place.fates(&lease, 21.0);
    let expected = [
        (all[0], Fate::Taken),
        (all[1], Fate::Failed),
        (all[2], Fate::Open),
        (all[3], Fate::Failed),
    ];
    assert_eq!(fates, expected.into());
    // What comes too late is about nothing.
    let late = place.journal.answer(one, all[3], b"late".to_vec());
    late.expect("writable");
    let rest = [(all[0], Fate::Taken), (all[2], Fate::Open)];
    assert_eq!(place.fates(&lease, 21.0), rest.into());
    assert_eq!(place.takes(one, 4, 21.0), [all[2]]);
}

fn offers_go_with_their_slice(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0], 1000, 10)) else {
        return;
    };
    let one = place.another();
    let ends: [fn(&mut Journal, &Lease); 4] = [
        |journal, lease| journal.give_back(lease).expect("writable"),
        |journal, lease| journal.lose(lease, "a signal").expect("writable"),
        |journal, lease| {
            let lost = journal.lose_of(lease.session, 0, "a signal");
            assert!(lost.expect("writable"));
        },
        |journal, lease| {
            let outcome = Outcome {
                seconds: 1.0,
                ..Outcome::default()
            };
            assert!(journal.end(lease, &outcome).expect("writable"));
        },
    ];
    for end in ends {
        let lease = place.slice(0, 0.0);
        let all = place.offers(&lease, &["a", "b"]);
        assert_eq!(place.takes(one, 1, 0.0), all[..1]);
        end(&mut place.journal, &lease);
        assert_eq!(place.fates(&lease, 0.0), [].into());
        assert_eq!(place.takes(one, 1, 0.0), [0; 0]);
        // Whose slice it is no more offers nothing.
        let late = place.journal.offer(&lease, &[offer("c")]);
        assert_eq!(late.expect("writable"), None);
    }
    // The answer to a claim was lost: who asks again has nothing offered.
    let lease = place.slice(0, 0.0);
    place.offers(&lease, &["a"]);
    place.slice(0, 0.0);
    assert_eq!(place.takes(one, 1, 0.0), [0; 0]);
}

fn nothing_is_left_to_compile_once_jobs_are_done(kind: Kind) {
    let Some(mut place) = place(kind, &plan(&[1.0, 1.0], 100, 10)) else {
        return;
    };
    let one = place.another();
    let over = |place: &mut Place| place.journal.is_over(one, 0.0).expect("readable");
    assert!(!over(&mut place), "no job has begun");
    let exhausted = Outcome {
        seconds: 1.0,
        exhausted: true,
        ..Outcome::default()
    };
    let first = place.slice(0, 0.0);
    place.journal.end(&first, &exhausted).expect("writable");
    let second = place.slice(0, 0.0);
    assert!(!over(&mut place), "one is searched");
    place.journal.give_back(&second).expect("writable");
    let session = place.session;
    place.journal.beat(session, 99.9).expect("writable");
    assert!(!over(&mut place), "one waits, for the last moment");
    let second = place.slice(0, 0.0);
    place.journal.end(&second, &exhausted).expect("writable");
    assert!(over(&mut place));
    let longer = place.journal.set_budget(Duration::from_secs(1000));
    longer.expect("writable");
    assert!(over(&mut place));
    place.journal.miss(&[first.job]).expect("writable");
    assert!(!over(&mut place), "one is open again");
    place.journal.stop().expect("writable");
    assert!(over(&mut place));
}

/// Who compiles is told from who searches, takes no time of the budget, and what it had is another one's at once when it is no more.
#[test]
fn machines_that_only_compile_are_told_apart() {
    let Some(mut place) = place(Kind::Server, &plan(&[1.0], 100, 10)) else {
        return;
    };
    let site = place.site.clone();
    let open = || Journal::open(&site).expect("a journal");
    let (mut one, mut other, mut newer) = (open(), open(), open());
    let assists = |journal: &mut Journal, compiler, processes| {
        let session = journal.assist(compiler, processes, 0.0).expect("writable");
        session.expect("a session")
    };
    let first = assists(&mut one, NVRTC, 3);
    let second = assists(&mut other, NVRTC, 4);
    assists(&mut newer, "nvrtc 13.1", 5);
    // A worker's connection is not that of the process that has the session.
    let mut worker = open();
    let helpers = worker.helpers(NVRTC).expect("readable");
    assert_eq!((helpers.processes, helpers.searching), (7, 1));
    assert!(matches!(&helpers.others[..], [(_, with)] if with == "nvrtc 13.1"));
    one.beat(first, 90.0).expect("writable");
    let spent = place.journal.view().expect("readable").spent;
    assert_eq!(spent, Duration::ZERO);
    let lease = place.slice(0, 0.0);
    let all = place.offers(&lease, &["a"]);
    assert_eq!(place.takes(first, 1, 0.0), all);
    assert_eq!(place.takes(second, 1, 0.0), [0; 0]);
    drop(one);
    let begun = std::time::Instant::now();
    while worker.helpers(NVRTC).expect("readable").processes > 4 {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "its mark is there"
        );
    }
    other.sweep(second, 1.0).expect("writable");
    assert_eq!(place.takes(second, 1, 1.0), all);
    // Who is asked to leave takes nothing more, and nobody comes to a campaign that is to end.
    other.release(second, &all).expect("writable");
    other.leave(second).expect("writable");
    assert_eq!(place.takes(second, 1, 1.0), [0; 0]);
    place.journal.stop().expect("writable");
    let late = open().assist(NVRTC, 1, 1.0);
    assert_eq!(late.expect("readable"), None);
}

#[test]
fn a_file_has_no_machines_that_only_compile() {
    let mut place = place(Kind::File, &plan(&[1.0], 100, 10)).expect("a journal");
    let refused = place.journal.assist(NVRTC, 1, 0.0).expect_err("a file");
    let said = refused.to_string();
    assert!(said.contains("its journal is a file"), "{said}");
}

/// Many take at once: nobody has what somebody else has.
#[test]
fn many_may_take_at_once() {
    const OFFERS: usize = 40;
    let Some(mut place) = place(Kind::Server, &plan(&[1.0], 100, 10)) else {
        return;
    };
    let lease = place.slice(0, 0.0);
    let keys: Vec<String> = (0..OFFERS).map(|n| n.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let all = place.offers(&lease, &keys);
    // Those that begin at the same moment may not see each other's marks yet.
    let begin = |_| {
        let mut journal = Journal::open(&place.site).expect("a journal");
        let session = journal.assist(NVRTC, 1, 0.0).expect("writable");
        (journal, session.expect("a session"))
    };
    let machines: Vec<(Journal, Session)> = (0..4).map(begin).collect();
    let takes = |(mut journal, session): (Journal, Session)| {
        let mut own = Vec::new();
        loop {
            let taken = journal.take(session, NVRTC, 3, 0.0).expect("writable");
            match taken.is_empty() {
                true => return own,
                false => own.extend(taken.into_iter().map(|taken| taken.offer)),
            }
        }
    };
    let taken: Vec<i64> = std::thread::scope(|scope| {
        let begin = |machine| scope.spawn(|| takes(machine));
        let all: Vec<_> = machines.into_iter().map(begin).collect();
        let all = all.into_iter().map(|t| t.join().expect("no panic"));
        all.flatten().collect()
    });
    assert_eq!(taken.len(), OFFERS);
    assert_eq!(BTreeSet::from_iter(taken), BTreeSet::from_iter(all));
}

//! A search's programs on machines that only compile: the journal's offers, as a compile pool asks for them.
//!
//! A thread of its own talks with the journal, so that no search waits for it. Where the journal is away everything is compiled here.

use super::journal::{Fate, Journal, Lease, Offer, Site};
use crate::database::DatabaseError;
use device::cache::Key;
use device::nvrtc::{CompileError, Compiled};
use device::remote::{self, Answer, Remote, RemoteHandle};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked what became of offers.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is asked who compiles.
const COUNT: Duration = Duration::from_secs(1);
/// Offers for each process of another machine: while it compiles one the next one waits.
const AHEAD: usize = 2;

/// What a machine that only compiles answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Word {
    /// The hash of all that the compilation depended on, as that machine knows it.
    pub(super) key: String,
    /// What came of it.
    pub(super) result: Result<Compiled, CompileError>,
}

/// Offers the programs of a slice.
pub(super) fn offers_of(site: &Site, lease: &Lease) -> RemoteHandle {
    let (asks, asked) = channel();
    let (answers, answered) = channel();
    let room = Arc::new(AtomicUsize::new(0));
    let desk = Desk {
        site: site.clone(),
        lease: lease.clone(),
        answers,
        room: room.clone(),
        compiler: None,
        others: BTreeSet::new(),
        counted: None,
        offered: BTreeMap::new(),
        wanted: BTreeSet::new(),
    };
    std::thread::spawn(move || desk.serve(&asked));
    RemoteHandle(Arc::new(Offers {
        asks,
        answers: Mutex::new(answered),
        room,
    }))
}

/// What the pool says.
enum Ask {
    Compiler(String),
    Offer(Box<remote::Offer>),
    TakeBack(u64),
    Forget(u64),
}

/// The pool's end.
struct Offers {
    asks: Sender<Ask>,
    answers: Mutex<Receiver<(u64, Answer)>>,
    room: Arc<AtomicUsize>,
}

impl Offers {
    fn ask(&self, ask: Ask) {
        // The thread goes on as long as there is this end.
        let _ = self.asks.send(ask);
    }
}

impl Remote for Offers {
    fn compiler(&self, name: &str) {
        self.ask(Ask::Compiler(name.to_owned()));
    }

    fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed)
    }

    fn offer(&self, offer: remote::Offer) {
        self.ask(Ask::Offer(Box::new(offer)));
    }

    fn take_back(&self, number: u64) {
        self.ask(Ask::TakeBack(number));
    }

    fn forget(&self, number: u64) {
        self.ask(Ask::Forget(number));
    }

    fn hear(&self) -> Option<(u64, Answer)> {
        let answers = self.answers.lock();
        answers
            .unwrap_or_else(PoisonError::into_inner)
            .try_recv()
            .ok()
    }
}

/// The journal's end.
struct Desk {
    site: Site,
    lease: Lease,
    answers: Sender<(u64, Answer)>,
    room: Arc<AtomicUsize>,
    compiler: Option<String>,
    /// Machines with another compiler that were told of.
    others: BTreeSet<(String, String)>,
    /// When it was last asked who compiles.
    counted: Option<Instant>,
    /// What is offered, by its number in the journal: its number in the pool, and its key.
    offered: BTreeMap<i64, (u64, Key)>,
    /// What the pool wants back, by its numbers.
    wanted: BTreeSet<u64>,
}

/// Nobody asks any more.
struct Closed;

impl Desk {
    fn serve(mut self, asked: &Receiver<Ask>) {
        let failed = match Journal::open_again(&self.site) {
            Ok(mut journal) => match self.work(&mut journal, asked) {
                Ok(Closed) => return,
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::warn!("other machines are not asked to compile any more: {failed}");
        self.room.store(0, Ordering::Relaxed);
        for (number, _) in std::mem::take(&mut self.offered).into_values() {
            self.answer(number, Answer::Back);
        }
        for ask in asked {
            match ask {
                Ask::Offer(offer) => self.answer(offer.number, Answer::Back),
                Ask::Compiler(_) | Ask::TakeBack(_) | Ask::Forget(_) => {}
            }
        }
    }

    fn work(
        &mut self,
        journal: &mut Journal,
        asked: &Receiver<Ask>,
    ) -> Result<Closed, DatabaseError> {
        loop {
            let pause = match self.offered.is_empty() {
                true => COUNT,
                false => LOOK,
            };
            let first = match asked.recv_timeout(pause) {
                Ok(ask) => Some(ask),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(Closed),
            };
            let asks: Vec<Ask> = first.into_iter().chain(asked.try_iter()).collect();
            self.hear(journal, asks)?;
            self.count(journal)?;
            self.take_back(journal)?;
            self.look(journal)?;
        }
    }

    /// Who does not listen wants no answer.
    fn answer(&self, number: u64, answer: Answer) {
        let _ = self.answers.send((number, answer));
    }

    fn hear(&mut self, journal: &mut Journal, asks: Vec<Ask>) -> Result<(), DatabaseError> {
        let (mut new, mut forgotten) = (Vec::new(), BTreeSet::new());
        for ask in asks {
            match ask {
                Ask::Compiler(name) => self.compiler = Some(name),
                Ask::Offer(offer) => new.push(*offer),
                Ask::TakeBack(number) => drop(self.wanted.insert(number)),
                Ask::Forget(number) => drop(forgotten.insert(number)),
            }
        }
        new.retain(|offer| !forgotten.contains(&offer.number));
        let gone = self
            .offered
            .iter()
            .filter(|(_, o)| forgotten.contains(&o.0));
        let gone: Vec<i64> = gone.map(|(id, _)| *id).collect();
        if !gone.is_empty() {
            journal.withdraw(&gone)?;
            self.offered.retain(|id, _| !gone.contains(id));
        }
        self.wanted.retain(|number| !forgotten.contains(number));
        self.offer(journal, new)
    }

    fn offer(
        &mut self,
        journal: &mut Journal,
        mut new: Vec<remote::Offer>,
    ) -> Result<(), DatabaseError> {
        // The same text twice is one of this machine's the second time.
        let mut keys: BTreeSet<Key> = self.offered.values().map(|o| o.1.clone()).collect();
        let twice = new.extract_if(.., |offer| !keys.insert(offer.key.clone()));
        for offer in twice.collect::<Vec<_>>() {
            self.answer(offer.number, Answer::Back);
        }
        let Some(compiler) = self.compiler.clone().filter(|_| !new.is_empty()) else {
            return Ok(());
        };
        let rows = new.iter().map(|offer| Offer {
            key: offer.key.hash(),
            compiler: compiler.clone(),
            arch: offer.arch.clone(),
            source: offer.source.clone(),
        });
        match journal.offer(&self.lease, &rows.collect::<Vec<_>>())? {
            Some(ids) => {
                let own = new.into_iter().map(|offer| (offer.number, offer.key));
                self.offered.extend(ids.into_iter().zip(own));
            }
            None => {
                let numbers = new.iter().map(|offer| offer.number);
                numbers.for_each(|number| self.answer(number, Answer::Back));
            }
        }
        Ok(())
    }

    /// Asks from time to time who compiles: each worker that searches has its share of them.
    fn count(&mut self, journal: &mut Journal) -> Result<(), DatabaseError> {
        let Some(compiler) = &self.compiler else {
            return Ok(());
        };
        if self.counted.is_some_and(|since| since.elapsed() < COUNT) {
            return Ok(());
        }
        self.counted = Some(Instant::now());
        let helpers = journal.helpers(compiler)?;
        for (host, other) in helpers.others {
            if self.others.insert((host.clone(), other.clone())) {
                tracing::warn!(
                    "{host} compiles with {other}, and here is {compiler}: it is not asked"
                );
            }
        }
        let all = AHEAD * helpers.processes as usize;
        let room = all.div_ceil(helpers.searching.max(1) as usize);
        self.room.store(room, Ordering::Relaxed);
        Ok(())
    }

    /// What is wanted back is nobody's, or is said to be taken; then it is wanted on.
    fn take_back(&mut self, journal: &mut Journal) -> Result<(), DatabaseError> {
        let wanted = (self.offered.iter()).filter(|(_, o)| self.wanted.contains(&o.0));
        let wanted: Vec<i64> = wanted.map(|(id, _)| *id).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let back = journal.take_back(&wanted)?;
        for id in wanted {
            let Some((number, _)) = self.offered.get(&id) else {
                continue;
            };
            let number = *number;
            match back.contains(&id) {
                true => self.settle(id, number, Answer::Back),
                false => self.answer(number, Answer::Taken),
            }
        }
        Ok(())
    }

    fn settle(&mut self, id: i64, number: u64, answer: Answer) {
        self.offered.remove(&id);
        self.wanted.remove(&number);
        self.answer(number, answer);
    }

    /// Passes on what was answered. What is gone without an answer is compiled here.
    fn look(&mut self, journal: &mut Journal) -> Result<(), DatabaseError> {
        if self.offered.is_empty() {
            return Ok(());
        }
        let now = journal.now();
        let mut fates: BTreeMap<i64, Fate> = journal.fates(&self.lease, now)?.into_iter().collect();
        for (id, (number, key)) in self.offered.clone() {
            match fates.remove(&id) {
                Some(Fate::Open | Fate::Taken) => {}
                Some(Fate::Answered(answer)) => self.settle(id, number, word(&answer, &key)),
                Some(Fate::Failed) | None => self.settle(id, number, Answer::Back),
            }
        }
        Ok(())
    }
}

/// What was answered, if it is about this.
fn word(answer: &[u8], key: &Key) -> Answer {
    match serde_json::from_slice::<Word>(answer) {
        Ok(word) if word.key == key.hash() => Answer::Made(Box::new(word.result)),
        Ok(_) | Err(_) => Answer::Back,
    }
}

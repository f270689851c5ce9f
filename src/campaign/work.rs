//! A worker: it takes one slice after another, searches, and writes every better artifact at once.
//!
//! It is a process of its own, which may be killed at any moment: what it wrote is whole, what it timed is in the log, and its slice is somebody else's after that.

use super::engine::with_faults;
use super::journal::{Claim, Journal, Known, Lease, Outcome, Session};
use super::trials::{Seen, Told, take_over_from};
use super::{CampaignError, Folder, Url, remote};
use crate::artifact::{Artifact, ArtifactError, Destination, GivesWay, Manifest, State};
use crate::emit::emit;
use crate::pipeline::{Search, Trial, figure, longest, program_hash};
use crate::store::{self, Files, Store, StoreError};
use crate::{Error, Event, MemoryHandle, Observer, Optimized, Options, optimize};
use device::faults::Faults;
use device::gpu::TimedOn;
use device::nvrtc::SearchPath;
use device::worker::end_process;
use ir::{Program, Target};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a lease is renewed, and it is asked whether the campaign should end.
const BEAT: Duration = Duration::from_millis(500);
/// How often who waits looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long a search that was asked to end is waited for.
const GRACE: Duration = Duration::from_millis(3500);
/// How much later than promised a search may end before it hangs.
const LATE: Duration = Duration::from_secs(10);
/// A search that ended in less of its budget than this has nothing left to try.
const EXHAUSTED: f64 = 0.5;
/// The search's stack: terms nest as deep as programs are long.
const STACK: usize = 64 << 20;

/// What a worker works with.
#[derive(Clone, Debug)]
pub struct Tools {
    /// As [`Options::worker`].
    pub worker: PathBuf,
    /// As [`Options::nvrtc`].
    pub nvrtc: SearchPath,
    /// As [`Options::cache`].
    pub cache: Option<PathBuf>,
    /// As [`Options::locks`].
    pub locks: Option<PathBuf>,
    /// As [`Options::memory`].
    pub memory: Option<MemoryHandle>,
    /// A database of artifacts that is asked before a job is searched, and that what is verified is added to.
    pub store: Option<PathBuf>,
}

/// Which worker it is.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The campaign.
    pub folder: Folder,
    /// When it works.
    pub session: Session,
    /// Its number.
    pub number: u32,
    /// Its GPU, as the driver counts; none where it uses none.
    pub gpu: Option<u32>,
    /// The GPU's identifier.
    pub uuid: Option<String>,
    /// Where that times.
    pub timed_on: Option<TimedOn>,
    /// Names of the targets that it serves.
    pub targets: Vec<String>,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// There is nothing to do any more, or the campaign should end.
    Idle,
    /// Its search does not end: the process has to.
    Hung,
    /// Somebody else has its slice.
    Superseded,
}

/// What a worker keeps from one slice to the next.
struct Desk {
    seen: Seen,
    faults: Option<Faults>,
}

/// Works until there is nothing to do.
///
/// # Errors
/// The journal cannot be used.
pub fn work(worker: &Worker, tools: &Tools) -> Result<Ended, CampaignError> {
    let mut journal = Journal::open_again(worker.folder.site())?;
    let mut desk = Desk {
        seen: Seen::default(),
        faults: (worker.uuid.as_deref()).and_then(|uuid| Faults::open(None, uuid)),
    };
    loop {
        let now = journal.now();
        let claim = journal.claim(worker.session, worker.number, &worker.targets, now)?;
        match claim {
            Claim::Nothing => return Ok(Ended::Idle),
            // A server is asked by many.
            Claim::Wait if journal.is_shared() => std::thread::sleep(BEAT),
            Claim::Wait => std::thread::sleep(BEAT / 10),
            Claim::Slice(lease) => match slice(worker, tools, &mut journal, &lease, &mut desk)? {
                Ended::Idle => {}
                ended @ (Ended::Hung | Ended::Superseded) => return Ok(ended),
            },
        }
    }
}

/// One slice.
fn slice(
    worker: &Worker,
    tools: &Tools,
    journal: &mut Journal,
    lease: &Lease,
    desk: &mut Desk,
) -> Result<Ended, CampaignError> {
    let hopeless = |reason: String| Outcome {
        reason: Some(reason),
        hopeless: true,
        ..Outcome::default()
    };
    let (program, target) = match subject(lease) {
        Ok(subject) => subject,
        Err(reason) => {
            journal.end(lease, &hopeless(reason))?;
            return Ok(Ended::Idle);
        }
    };
    let place = worker.folder.artifact(&lease.name);
    let destination = match Destination::new(&place, &program, &target, GivesWay::Same) {
        Ok(destination) => destination,
        Err(e) => {
            journal.end(lease, &hopeless(e.to_string()))?;
            return Ok(Ended::Idle);
        }
    };
    let mut told = Told::default();
    let options = Options {
        budget: lease.budget,
        seed: lease.seed,
        worker: Some(tools.worker.clone()),
        nvrtc: tools.nvrtc.clone(),
        cache: tools.cache.clone(),
        locks: tools.locks.clone(),
        use_gpu: worker.gpu.is_some(),
        first_gpu: worker.gpu.unwrap_or_default(),
        gpus: 1,
        memory: (tools.memory.clone()).map(|log| told.notes.beside(log)),
        remote: (worker.gpu.is_some() && journal.is_shared())
            .then(|| remote::offers_of(worker.folder.site(), lease)),
        ..Options::new(target)
    };
    let shelf = Shelf {
        journal: Journal::open_again(worker.folder.site())?,
        lease: lease.clone(),
        program,
        options: options.clone(),
        destination,
        before: None,
        holds: None,
        closed: false,
    };
    let mut shelf = shelf.settled(&worker.folder)?;
    let is_of = |here: &&TimedOn| here.gpu.contains(&options.target.device);
    let here = worker.timed_on.as_ref().filter(is_of);
    let begun = Instant::now();
    match shelf.answered(tools.store.as_deref(), here) {
        Ok(false) => {}
        Ok(true) => {
            let outcome = Outcome {
                seconds: begun.elapsed().as_secs_f64(),
                exhausted: true,
                ..Outcome::default()
            };
            journal.end(lease, &outcome)?;
            return Ok(Ended::Idle);
        }
        Err(why) => tracing::warn!("{}: the database has no answer: {why}", lease.name),
    }
    let shelf = Arc::new(Mutex::new(shelf));
    // Nothing is timed without a GPU.
    if let (Some(log), Some(_)) = (&tools.memory, worker.gpu) {
        if !desk.seen.take_over(journal, lease, log)? {
            return Ok(Ended::Superseded);
        }
        let program = with(&shelf, |shelf| program_hash(&shelf.program));
        let known = (tools.store.as_deref()).map(|path| take_over_from(path, &program, log));
        if let Some(Err(why)) = known {
            tracing::warn!("{}: the database's log is left out: {why}", lease.name);
        }
    }
    let faults = desk.faults.as_ref();
    // What was told before is not this slice's.
    faults.and_then(|faults| faults.told(Duration::ZERO));
    let begun = Instant::now();
    let (sender, result) = channel();
    let thread = std::thread::Builder::new().stack_size(STACK).spawn({
        let shelf = shelf.clone();
        move || {
            let (program, options) = with(&shelf, |s| (s.program.clone(), s.options.clone()));
            let found = optimize(&program, &options, &mut Watcher(shelf));
            // Nobody waits any more where it took too long.
            let _ = sender.send(found);
        }
    });
    let thread = thread.map_err(|e| CampaignError::Workers(format!("no thread: {e}")))?;
    let promised = longest(lease.budget) + LATE;
    let mut beat = Instant::now();
    let mut stopped: Option<Instant> = None;
    let found = loop {
        match result.recv_timeout(LOOK) {
            Ok(found) => break Some(found),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => break None,
            },
        }
        if beat.elapsed() > BEAT {
            beat = Instant::now();
            let now = journal.now();
            let is_held = journal.renew(lease, now)?;
            if !(is_held && told.tell(journal, lease, &mut desk.seen)?) {
                return Ok(Ended::Superseded);
            }
            if stopped.is_none() && journal.is_stopping(worker.session)? {
                options.stop.store(true, Ordering::Relaxed);
                stopped = Some(Instant::now());
            }
        }
        if stopped.is_some_and(|since| since.elapsed() > GRACE) {
            break None;
        }
        if begun.elapsed() > promised {
            let reason = format!(
                "hung: a search of {:?} did not end in {promised:?}",
                lease.budget
            );
            told.tell(journal, lease, &mut desk.seen)?;
            journal.lose(lease, &with_faults(reason, faults))?;
            return Ok(Ended::Hung);
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    let is_stopped = stopped.is_some();
    let outcome = with(&shelf, |shelf| {
        shelf.closed = true;
        found.map(|found| shelf.end(found, seconds))
    });
    told.tell(journal, lease, &mut desk.seen)?;
    match outcome {
        _ if is_stopped => journal.give_back(lease)?,
        Some(Ok(outcome)) => {
            journal.end(lease, &outcome)?;
            if let Err(why) = shared(worker, tools, lease, told.trials()) {
                tracing::warn!("{}: it is not in the database: {why}", lease.name);
            }
        }
        Some(Err(fault)) => journal.lose(lease, &with_faults(fault, faults))?,
        None => journal.give_back(lease)?,
    }
    Ok(Ended::Idle)
}

/// Adds what stands at the job's place to the database, if it is verified, and what was timed for it.
fn shared(
    worker: &Worker,
    tools: &Tools,
    lease: &Lease,
    trials: &[Trial],
) -> Result<(), StoreError> {
    let artifact = worker.folder.whole_artifact(&lease.name);
    let artifact = artifact.filter(|a| a.manifest().state == State::Verified);
    if let Some((path, artifact)) = tools.store.as_ref().zip(artifact) {
        let mut store = Store::open(path)?;
        store.add(&artifact)?;
        store.add_trials(trials)?;
    }
    Ok(())
}

/// The program and the target of a lease.
fn subject(lease: &Lease) -> Result<(Program, Target), String> {
    let program = ir::parse(&lease.program, &lease.name).map_err(|e| e.to_string())?;
    let target = crate::target(&lease.target).map_err(|e| e.to_string())?;
    Ok((program, target))
}

/// What an artifact is to the journal.
fn known(manifest: &Manifest, program: &Program, target: &Target) -> Known {
    Known {
        seal: manifest.seal.clone(),
        us: store::us(manifest, program, target),
        verified: manifest.state == State::Verified,
        timed_on: manifest.timed_on.as_ref().map(TimedOn::to_string),
    }
}

/// What it would be as an artifact, but for its seal.
fn offered(found: &Optimized, program: &Program, target: &Target) -> Known {
    let best = found.best.value();
    let measured = best.measured.as_ref();
    let figure = measured.map(|m| figure(m, program.input_bytes(), target));
    Known {
        seal: String::new(),
        us: figure.unwrap_or(best.predicted.us),
        verified: State::of(found.best.evidence()) == State::Verified,
        timed_on: measured
            .and(found.timed_on.as_ref())
            .map(TimedOn::to_string),
    }
}

/// Writes what a search holds, where it is better than what was there before the search.
struct Shelf {
    journal: Journal,
    lease: Lease,
    program: Program,
    options: Options,
    destination: Destination,
    /// What was there before the search.
    before: Option<(Known, Artifact)>,
    /// What the search wrote in its stead.
    holds: Option<Known>,
    closed: bool,
}

fn with<T>(shelf: &Mutex<Shelf>, work: impl FnOnce(&mut Shelf) -> T) -> T {
    work(&mut shelf.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Shelf {
    /// With what is at the place: where the journal does not know it, or knows something else, it is told.
    fn settled(mut self, folder: &Folder) -> Result<Self, CampaignError> {
        if self.journal.is_shared() {
            return self.fetched(folder);
        }
        let there = folder.whole_artifact(&self.lease.name);
        let target = &self.options.target;
        self.before = there.map(|a| (known(a.manifest(), &self.program, target), a));
        let now = self.before.as_ref().map(|(known, _)| known);
        if self.journal.held(&self.lease)?.as_ref() != now {
            self.journal.hold(&self.lease, now, None)?;
        }
        Ok(self)
    }

    /// With what the journal has, which another machine may have found: that is put at the place. What stands there and the journal does not know is no result.
    fn fetched(mut self, folder: &Folder) -> Result<Self, CampaignError> {
        let Some(known) = self.journal.held(&self.lease)? else {
            return Ok(self);
        };
        let name = self.lease.name.clone();
        let is_it = |artifact: &Artifact| artifact.manifest().seal == known.seal;
        let mut there = folder.whole_artifact(&name).filter(is_it);
        if there.is_none() {
            match self.journal.files(&known.seal)? {
                Some(files) => self.write(&files)?,
                None => self.journal.hold(&self.lease, None, None)?,
            }
            there = folder.whole_artifact(&name).filter(is_it);
        }
        self.before = there.map(|artifact| (known, artifact));
        Ok(self)
    }

    fn write(&self, files: &Files) -> Result<(), ArtifactError> {
        let files = (files.iter()).map(|(name, bytes)| (name.as_str(), bytes.clone()));
        self.destination.write(&files.collect::<Vec<_>>())
    }

    /// Where nothing verified is at the place that was timed here, and the database has something, that is put there, and it is the answer.
    fn answered(
        &mut self,
        path: Option<&Path>,
        here: Option<&TimedOn>,
    ) -> Result<bool, StoreError> {
        let place = here.map(TimedOn::to_string);
        let is_own = |known: &Known| place.is_none() || known.timed_on == place;
        let before = self.before.as_ref().map(|(known, _)| known);
        let is_there = before.is_some_and(|known| known.verified && is_own(known));
        let (Some(path), false) = (path, is_there) else {
            return Ok(false);
        };
        let store = Store::open(path)?;
        let target = &self.options.target;
        let answer = store.answer(&self.program, &target.name, here)?;
        let Some(entry) = answer.entry else {
            return Ok(false);
        };
        let files = store.files(&entry.seal)?;
        self.write(&files)?;
        let known = Known {
            seal: entry.seal,
            us: entry.us,
            verified: true,
            timed_on: entry.timed_on,
        };
        let files = self.journal.is_shared().then_some(&files);
        self.journal.hold(&self.lease, Some(&known), files)?;
        Ok(true)
    }

    /// Writes what is better than what was there before. Of what one search found the last is the best: it says so itself.
    fn put(&mut self, found: &Optimized) -> Result<(), String> {
        let Options { target, seed, .. } = &self.options;
        let new = offered(found, &self.program, target);
        let better = |(before, _): &(Known, Artifact)| new.is_better_than(before);
        if !self.before.as_ref().is_none_or(better) {
            return self.restore();
        }
        // Whoever lost the lease writes nothing.
        let now = self.journal.now();
        let held = self.journal.renew(&self.lease, now);
        if !held.map_err(|e| e.to_string())? {
            return Err("somebody else has the slice".to_owned());
        }
        let manifest = emit(&self.program, target, *seed, found, &self.destination);
        let manifest = manifest.map_err(|e| e.to_string())?;
        let new = known(&manifest, &self.program, target);
        self.tell(Some(&new))?;
        self.holds = Some(new);
        Ok(())
    }

    /// Puts back what was there before, where the search wrote something that is no better in the end.
    fn restore(&mut self) -> Result<(), String> {
        if self.holds.take().is_none() {
            return Ok(());
        }
        let Some((known, artifact)) = &self.before else {
            return Ok(());
        };
        let files = artifact.files().map_err(|e| e.to_string())?;
        let written = self.destination.write(&files);
        written.map_err(|e| e.to_string())?;
        let known = known.clone();
        self.tell(Some(&known))
    }

    fn tell(&mut self, known: Option<&Known>) -> Result<(), String> {
        let files = match known {
            Some(_) if self.journal.is_shared() => Some(self.files().map_err(|e| e.to_string())?),
            Some(_) | None => None,
        };
        let told = self.journal.hold(&self.lease, known, files.as_ref());
        told.map_err(|e| e.to_string())
    }

    /// What is at the place.
    fn files(&self) -> Result<Files, ArtifactError> {
        let artifact = Artifact::read(self.destination.path())?;
        let files = artifact.files()?.into_iter();
        Ok(files
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .collect())
    }

    /// What a search came to, once it has ended; an error is a fault that may not come again.
    fn end(&mut self, found: Result<Optimized, Error>, seconds: f64) -> Result<Outcome, String> {
        let mut outcome = Outcome {
            seconds,
            ..Outcome::default()
        };
        match found {
            Ok(found) => {
                self.put(&found)?;
                let share = seconds / self.options.budget.as_secs_f64();
                outcome.exhausted = share < EXHAUSTED && found.search == Search::Ended;
                outcome.trials = found.work.trials;
                outcome.recalled = found.work.recalled;
                return Ok(outcome);
            }
            Err(Error::Stopped) => {}
            Err(Error::Gpu(fault)) => return Err(format!("fault: {fault}")),
            Err(e) => {
                match &e {
                    Error::Budget { enough, .. } => outcome.least = Some(*enough),
                    Error::Memory { .. } | Error::Values { .. } => outcome.hopeless = true,
                    Error::Gpu(_)
                    | Error::Stopped
                    | Error::NotTaken { .. }
                    | Error::NothingVerified { .. } => {}
                }
                outcome.reason = Some(e.to_string());
                if self.holds.is_some() {
                    // What was held was refuted: more is asked of a result.
                    match self.before.is_some() {
                        true => self.restore()?,
                        false => {
                            self.destination.withdraw().map_err(|e| e.to_string())?;
                            self.tell(None)?;
                        }
                    }
                }
            }
        }
        Ok(outcome)
    }
}

/// Passes on what may be emitted.
struct Watcher(Arc<Mutex<Shelf>>);

impl Observer for Watcher {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Held(found) = event {
            with(&self.0, |shelf| {
                if shelf.closed {
                    return;
                }
                if let Err(error) = shelf.put(found) {
                    let job = &shelf.lease.name;
                    tracing::warn!("{job}: what was found so far is not written: {error}");
                }
            });
        }
    }
}

/// The first line of a worker's input: where its journal is, if it is on a server.
///
/// # Errors
/// It is none.
pub fn told_by(input: &mut impl Read) -> Result<Option<Url>, String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while input.read(&mut byte).map_err(|e| e.to_string())? > 0 && byte != *b"\n" {
        line.push(byte[0]);
    }
    let said: Option<(String, Option<String>)> =
        serde_json::from_slice(&line).map_err(|_| "a line that is none of ours".to_owned())?;
    let url = said
        .map(|(url, password)| Url::parse(&url).map(|url| url.with_password(password.as_deref())));
    url.transpose().map_err(|e| e.to_string())
}

/// Ends the process when its input ends, as it does when whoever started it is no more: nobody watches it then.
pub fn end_with(mut input: impl Read + Send + 'static) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(input.read(&mut byte), Ok(n) if n > 0) {}
        end_process();
    });
}

//! The processes of a campaign on one machine: a worker a GPU, or some without one, watched, and replaced when they are lost.
//!
//! Whatever ends this process, the workers end too: they read from a pipe that it holds.

use super::journal::{self, JobView, Journal, Progress, Session, Site, View};
use super::{CampaignError, Folder};
use crate::worker::{GpuWorker, is_of};
use device::faults::Faults;
use device::gpu::TimedOn;
use ir::Target;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often workers are looked at.
const LOOK: Duration = Duration::from_millis(30);
/// How often it is written down how long the session took, and looked what was written: in a file, and on a server, which others ask as well.
const BEAT: Duration = Duration::from_millis(200);
const SHARED_BEAT: Duration = Duration::from_millis(500);
/// Workers that ended one after another before they had anything to do, until it is no use to start further ones.
const MOST_USELESS: u32 = 10;
/// Within so long a server knows that a process on a machine that lives is no more.
const NOTICED: Duration = Duration::from_secs(2);
/// How long a worker is waited for that was asked to end.
const PATIENCE: Duration = Duration::from_secs(15);

/// The subcommand of the worker program that is a worker.
pub const COMMAND: &str = "campaign-worker";

/// A place for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its GPU, as the driver counts.
    pub gpu: Option<u32>,
    /// The GPU's identifier.
    pub uuid: Option<String>,
    /// Where that times.
    pub timed_on: Option<TimedOn>,
    /// Names of the targets that it serves: those of the GPU's kind first.
    pub targets: Vec<String>,
    /// How many are of its kind: for the others it only simulates.
    pub own: usize,
}

/// What workers are started with.
#[derive(Clone, Debug)]
pub struct Engine {
    /// The program that has the subcommand [`COMMAND`].
    pub program: PathBuf,
    /// What else is said to each worker.
    pub arguments: Vec<OsString>,
    /// The workers' places.
    pub seats: Vec<Seat>,
}

/// Places for workers: one for each GPU of a target's kind, at most so many; where there is none, or none is to be used, `workers` without
/// one. What no GPU is of the kind for is made by all of them, and simulated. Times of GPUs that are not alike are not compared: of those that serve a
/// target the ones have places that are like the first, and the others are told.
///
/// # Errors
/// [`CampaignError::Workers`]: there is a GPU, and it cannot be asked.
pub fn seats(
    program: &Path,
    targets: &[Target],
    use_gpu: bool,
    gpus: u32,
    workers: u32,
    told: &mut dyn FnMut(String),
) -> Result<Vec<Seat>, CampaignError> {
    let mut found: Vec<Seat> = Vec::new();
    let mut devices = u32::from(use_gpu);
    let mut device = 0;
    while device < devices && (found.len() as u64) < gpus.into() {
        match GpuWorker::on(program, device).info() {
            Err(e) if e.is_absence() => break,
            Err(e) => return Err(CampaignError::Workers(format!("GPU {device}: {e}"))),
            Ok(info) => {
                devices = info.devices;
                let fits = |t: &&Target| is_of(&info, t);
                let fitting: Vec<String> = (targets.iter().filter(fits))
                    .map(|t| t.name.clone())
                    .collect();
                let here = info.timed_on();
                let alike = |seat: &&Seat| seat.targets.iter().any(|t| fitting.contains(t));
                let other = found.iter().find(alike).and_then(|s| s.timed_on.clone());
                match other.filter(|other| *other != here) {
                    Some(other) => told(format!(
                        "GPU {device} is not used: it is {here}, and what is timed on it is not compared with what is timed on {other}"
                    )),
                    None if fitting.is_empty() => {}
                    None => found.push(Seat {
                        gpu: Some(device),
                        uuid: Some(info.uuid),
                        timed_on: Some(here),
                        own: fitting.len(),
                        targets: fitting,
                    }),
                }
            }
        }
        device += 1;
    }
    let names = targets.iter().map(|t| t.name.clone());
    if found.is_empty() {
        let targets: Vec<String> = names.collect();
        return Ok((0..workers.max(1))
            .map(|_| Seat {
                gpu: None,
                uuid: None,
                timed_on: None,
                own: 0,
                targets: targets.clone(),
            })
            .collect());
    }
    let others = |name: &String| !found.iter().any(|seat| seat.targets.contains(name));
    let others: Vec<String> = names.filter(others).collect();
    for seat in &mut found {
        seat.targets.extend_from_slice(&others);
    }
    Ok(found)
}

/// A worker's process.
struct Running {
    child: Child,
    begun: Instant,
    faults: Option<Faults>,
    /// What the driver told last of its GPU, and when.
    told: Option<(Instant, String)>,
}

/// How a machine comes to a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It runs it: nobody else does. Being asked to end it ends the campaign.
    Start,
    /// It works beside others, if there are any. Being asked to end it leaves the campaign to them.
    Join,
}

/// Runs a campaign until nothing is left to do, or somebody asks it to end: by `is_asked`, or in the journal. Tells what is written on the way.
///
/// # Errors
/// It runs already, its budget is spent, its journal cannot be used, or no worker can do anything.
pub fn run(
    folder: &Folder,
    engine: &Engine,
    entry: Entry,
    is_asked: &dyn Fn() -> bool,
    told: &mut dyn FnMut(&Progress),
) -> Result<(), CampaignError> {
    let _lock = folder.lock()?;
    let (mut journal, view) = folder.unspent()?;
    let beat = match journal.is_shared() {
        true => SHARED_BEAT,
        false => BEAT,
    };
    let mut seen = journal.written_since(0)?.last().map_or(0, |last| last.0);
    let session = engine.enter(folder, &mut journal, &view, entry)?;
    let mut workers: Vec<Option<Running>> = Vec::new();
    for number in 0..engine.seats.len() {
        workers.push(Some(engine.start(folder, session, number)?));
    }
    let (mut beaten, mut useless) = (Instant::now(), 0);
    let mut asked: Option<Instant> = None;
    while workers.iter().any(Option::is_some) {
        std::thread::sleep(LOOK);
        if asked.is_none() && is_asked() {
            match entry {
                Entry::Start => journal.stop()?,
                Entry::Join => journal.leave(session)?,
            }
            asked = Some(Instant::now());
        }
        if beaten.elapsed() > beat {
            beaten = Instant::now();
            let now = journal.now();
            journal.beat(session, now)?;
            journal.sweep(session, now)?;
            if asked.is_none() && journal.is_stopping(session)? {
                asked = Some(Instant::now());
            }
            // Where the journal was away for a while its workers could not renew their leases either.
            let is_back = journal
                .restored()
                .is_none_or(|since| since > journal::LEASE);
            for late in if is_back {
                journal.overdue(session, now)?
            } else {
                Vec::new()
            } {
                if let Some(Some(running)) = workers.get_mut(late as usize) {
                    // Its end is seen below.
                    let _ = running.child.kill();
                }
            }
            for (number, progress) in journal.written_since(seen)? {
                seen = number;
                told(&progress);
            }
            for running in workers.iter_mut().flatten() {
                let faults = running.faults.as_ref();
                let new = faults.and_then(|faults| faults.told(Duration::ZERO));
                let new = new.map(|new| (Instant::now(), new));
                running.told = new.or(running.told.take());
            }
        }
        for (number, place) in workers.iter_mut().enumerate() {
            let Some(running) = place else { continue };
            if asked.is_some_and(|since| since.elapsed() > PATIENCE) {
                let _ = running.child.kill();
            }
            let status = match running.child.try_wait() {
                Ok(None) => continue,
                Ok(Some(status)) => status,
                Err(e) => return Err(CampaignError::Workers(e.to_string())),
            };
            let (began, faults, told) = (running.begun, running.faults.take(), running.told.take());
            *place = None;
            if status.success() {
                continue;
            }
            let told = told.filter(|(when, _)| when.elapsed() < MEANWHILE);
            let newest = faults.and_then(|faults| faults.told(TOLD));
            let why = with_told(said(status), newest.or(told.map(|(_, told)| told)));
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let had_one = journal.lose_of(session, number, &why)?;
            useless = match had_one || began.elapsed() > BEAT * 10 {
                true => 0,
                false => useless + 1,
            };
            if useless >= MOST_USELESS {
                end(&mut workers);
                let now = journal.now();
                journal.finish(session, now)?;
                let why = format!("{useless} ended one after another, the last by {why}");
                return Err(CampaignError::Workers(why));
            }
            if asked.is_none() {
                *place = Some(engine.start(folder, session, number as usize)?);
            }
        }
    }
    for (_, progress) in journal.written_since(seen)? {
        told(&progress);
    }
    let now = journal.now();
    journal.finish(session, now)?;
    Ok(())
}

/// Ends what still runs.
fn end(workers: &mut [Option<Running>]) {
    for running in workers.iter_mut().flatten() {
        let _ = running.child.kill();
        let _ = running.child.wait();
    }
}

/// How a process ended, in words.
fn said(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(101)) => "a panic".to_owned(),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "an unknown cause".to_owned(),
    }
}

/// How long the driver may take to tell of an error, and how long before the end of a worker it may have told of one that has to do with it.
const TOLD: Duration = Duration::from_millis(100);
const MEANWHILE: Duration = Duration::from_secs(10);

/// A reason, with what the driver told of the GPU since that was asked last.
pub(super) fn with_faults(reason: String, faults: Option<&Faults>) -> String {
    with_told(reason, faults.and_then(|faults| faults.told(TOLD)))
}

fn with_told(reason: String, told: Option<String>) -> String {
    match told {
        Some(told) => format!("{reason}; meanwhile the driver told of {told}"),
        None => reason,
    }
}

impl Engine {
    /// Where what is timed for each target is timed.
    fn places(&self) -> Vec<(String, String)> {
        let mut places = BTreeMap::new();
        for (seat, timed_on) in self
            .seats
            .iter()
            .filter_map(|s| Some((s, s.timed_on.as_ref()?)))
        {
            for target in seat.targets.iter().take(seat.own) {
                places.insert(target.clone(), timed_on.to_string());
            }
        }
        places.into_iter().collect()
    }

    /// Begins a session.
    fn enter(
        &self,
        folder: &Folder,
        journal: &mut Journal,
        view: &View,
        entry: Entry,
    ) -> Result<Session, CampaignError> {
        let count = u32::try_from(self.seats.len()).unwrap_or(u32::MAX);
        let (now, places) = (journal.now(), self.places());
        let site = folder.site().to_string();
        if entry == Entry::Join {
            let others = journal.agree_on_places(&places)?;
            if let Some((target, there)) = others.into_iter().next() {
                let here = places.into_iter().find(|(name, _)| *name == target);
                let here = here.unwrap_or_default().1;
                return Err(CampaignError::NotAlike {
                    target,
                    there,
                    here,
                });
            }
            let session = journal.join(count, now)?;
            return session.ok_or(CampaignError::Stopped { site });
        }
        // Of who was killed just now the server may not know it yet.
        let since = Instant::now();
        let hosts: Vec<String> = loop {
            let mut running = journal.running()?;
            // Who only compiles goes on with whoever searches.
            running.retain(|session| session.compiler.is_none());
            if running.is_empty() || since.elapsed() > NOTICED {
                break running.into_iter().map(|session| session.host).collect();
            }
            std::thread::sleep(LOOK);
        };
        if !hosts.is_empty() {
            let hosts = hosts.join(", ");
            return Err(CampaignError::Elsewhere { site, hosts });
        }
        if !journal.is_shared() {
            let is_gone =
                |job: &&JobView| job.best.is_some() && folder.whole_artifact(&job.name).is_none();
            let gone: Vec<i64> = view.jobs.iter().filter(is_gone).map(|job| job.id).collect();
            journal.miss(&gone)?;
        }
        journal.set_places(&places)?;
        Ok(journal.begin(count, now)?)
    }

    fn start(
        &self,
        folder: &Folder,
        session: Session,
        number: usize,
    ) -> Result<Running, CampaignError> {
        let seat = &self.seats[number];
        let mut command = Command::new(&self.program);
        command.arg(COMMAND).arg(folder.path());
        command.args(["--session", &session.0.to_string()]);
        command.args(["--worker", &number.to_string()]);
        if let Some(gpu) = seat.gpu {
            command.args(["--gpu", &gpu.to_string()]);
        }
        if let Some(uuid) = &seat.uuid {
            command.args(["--uuid", uuid]);
        }
        if let Some(timed_on) = &seat.timed_on {
            let text = serde_json::to_string(timed_on).unwrap_or_default();
            command.args(["--timed-on", &text]);
        }
        for target in &seat.targets {
            command.args(["--target", target]);
        }
        command.args(&self.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // What a terminal's Ctrl-C ends is its group: that ends the campaign, which asks its workers to end.
        command.process_group(0);
        let started = command.spawn();
        let mut child = started.map_err(|error| CampaignError::Io {
            path: self.program.clone(),
            error,
        })?;
        // Where the journal is goes by the pipe: what is said in arguments everybody on the machine can read.
        if let Some(pipe) = &mut child.stdin {
            let said = match folder.site() {
                Site::File(_) => None,
                Site::Server(url) => Some((url.to_string(), url.password())),
            };
            let said = serde_json::json!(said).to_string() + "\n";
            // That it ended already is seen later.
            let _ = pipe.write_all(said.as_bytes());
        }
        Ok(Running {
            child,
            begun: Instant::now(),
            faults: (seat.uuid.as_deref()).and_then(|uuid| Faults::open(None, uuid)),
            told: None,
        })
    }
}

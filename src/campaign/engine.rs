//! The processes of a campaign on one machine: a worker a GPU, or some without one, watched, and replaced when they are lost.
//!
//! Whatever ends this process, the workers end too: they read from a pipe that it holds.

use super::journal::{self, JobView, Progress, Session};
use super::{CampaignError, Folder};
use crate::worker::{GpuWorker, is_of};
use device::gpu::TimedOn;
use ir::Target;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often workers are looked at.
const LOOK: Duration = Duration::from_millis(30);
/// How often it is written down how long the session took.
const BEAT: Duration = Duration::from_millis(200);
/// Workers that ended one after another before they had anything to do, until it is no use to start further ones.
const MOST_USELESS: u32 = 10;
/// How long a worker is waited for that was asked to end.
const PATIENCE: Duration = Duration::from_secs(15);

/// The subcommand of the worker program that is a worker.
pub const COMMAND: &str = "campaign-worker";

/// A place for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its GPU, as the driver counts.
    pub gpu: Option<u32>,
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
}

/// Runs a campaign until nothing is left to do, or somebody asks it to end: by `is_asked`, or in the journal. Tells what is written on the way.
///
/// # Errors
/// It runs already, its budget is spent, its journal cannot be used, or no worker can do anything.
pub fn run(
    folder: &Folder,
    engine: &Engine,
    is_asked: &dyn Fn() -> bool,
    told: &mut dyn FnMut(&Progress),
) -> Result<(), CampaignError> {
    let _lock = folder.lock()?;
    let mut journal = folder.journal()?;
    let view = journal.view()?;
    if view.spent >= view.budget {
        let budget = view.budget;
        return Err(CampaignError::Spent { budget });
    }
    let is_gone = |job: &&JobView| job.best.is_some() && folder.whole_artifact(&job.name).is_none();
    let gone: Vec<i64> = view.jobs.iter().filter(is_gone).map(|job| job.id).collect();
    journal.miss(&gone)?;
    journal.set_places(&engine.places())?;
    let mut seen = journal.written_since(0)?.last().map_or(0, |last| last.0);
    let count = u32::try_from(engine.seats.len()).unwrap_or(u32::MAX);
    let session = journal.begin(count, journal::now())?;
    let mut workers: Vec<Option<Running>> = Vec::new();
    for number in 0..engine.seats.len() {
        workers.push(Some(engine.start(folder, session, number)?));
    }
    let (mut beat, mut useless) = (Instant::now(), 0);
    let mut asked: Option<Instant> = None;
    while workers.iter().any(Option::is_some) {
        std::thread::sleep(LOOK);
        if asked.is_none() && (is_asked() || journal.is_stopping()?) {
            journal.stop()?;
            asked = Some(Instant::now());
        }
        if beat.elapsed() > BEAT {
            beat = Instant::now();
            journal.beat(session, journal::now())?;
            for late in journal.overdue(session, journal::now())? {
                if let Some(Some(running)) = workers.get_mut(late as usize) {
                    // Its end is seen below.
                    let _ = running.child.kill();
                }
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
            let began = running.begun;
            *place = None;
            if status.success() {
                continue;
            }
            let why = said(status);
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let had_one = journal.lose_of(session, number, &why)?;
            useless = match had_one || began.elapsed() > BEAT * 10 {
                true => 0,
                false => useless + 1,
            };
            if useless >= MOST_USELESS {
                end(&mut workers);
                journal.finish(session, journal::now())?;
                let why = format!("{useless} ended one after another, the last by {why}");
                return Err(CampaignError::Workers(why));
            }
            if asked.is_none() {
                *place = Some(engine.start(folder, session, number as usize)?);
            }
        }
        for (number, progress) in journal.written_since(seen)? {
            seen = number;
            told(&progress);
        }
    }
    journal.finish(session, journal::now())?;
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
        let child = started.map_err(|error| CampaignError::Io {
            path: self.program.clone(),
            error,
        })?;
        Ok(Running {
            child,
            begun: Instant::now(),
        })
    }
}

//! `campaign`: many programs within one budget.

use crate::cli::slurm::{self, Slurm, Work};
use crate::cli::subject::{Hosts, Subject, address};
use crate::cli::{Failure, compiling, db, log, optimize, place, report, run};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tilewright::artifact::{Destination, GivesWay, Manifest, file};
use tilewright::budget;
use tilewright::campaign::engine::Entry;
use tilewright::campaign::journal::{
    ALONE, JobState, JobView, Journal, Known, Progress, Session, SessionView, Site, SliceState,
    View,
};
use tilewright::campaign::plan::Plan;
use tilewright::campaign::work::{self, Ended, Tools, Worker};
use tilewright::campaign::{CampaignError, Folder, Url, engine, share};
use tilewright::ir::Target;
use tilewright::store::{self, Store};

/// What can be done with a campaign.
#[derive(Subcommand)]
pub(crate) enum Campaign {
    /// Starts a campaign: makes its folder, and works until its budget is spent or nothing is left to try
    Run {
        #[command(flatten)]
        plan: PlanArguments,
        #[command(flatten)]
        machine: MachineArguments,
    },
    /// Goes on with a campaign that was stopped or killed, or that has a longer budget now
    Resume {
        #[command(flatten)]
        place: PlaceArguments,
        /// How long all of it may take, with what it took already [default: as it was]
        #[arg(long, value_parser = budget::budget, allow_hyphen_values = true)]
        budget: Option<Duration>,
        #[command(flatten)]
        machine: MachineArguments,
    },
    /// Works on a campaign whose journal is on a server, beside the machines that work on it already
    Join {
        #[command(flatten)]
        place: PlaceArguments,
        /// Leaves when its standard input ends, as it does when whoever started it is no more
        #[arg(long)]
        until_input_ends: bool,
        /// Compiles for the machines that search, in --workers processes, and does nothing else: it needs NVRTC and no GPU
        #[arg(long, conflicts_with_all = ["gpus", "no_gpu", "database", "no_log", "db"])]
        compile_only: bool,
        #[command(flatten)]
        machine: MachineArguments,
    },
    /// Submits an array job to Slurm whose tasks work on a campaign
    Slurm(Slurm),
    /// Makes the folder of a campaign that `resume` starts; with --dry-run says what it would do
    Plan {
        #[command(flatten)]
        plan: PlanArguments,
        /// Makes nothing: prints the jobs, and how long the first search of each takes
        #[arg(long)]
        dry_run: bool,
        /// For how many workers
        #[arg(long, value_name = "N", default_value_t = 1, requires = "dry_run", value_parser = clap::value_parser!(u32).range(1..))]
        workers: u32,
    },
    /// Says what came of each job so far
    Status {
        /// The campaign's folder, or the address of its journal
        #[arg(value_name = "DIR|URL")]
        campaign: PathBuf,
        /// Prints one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Ends a campaign that runs; it keeps what it has, and `resume` goes on
    Stop {
        /// Its folder, or the address of its journal
        #[arg(value_name = "DIR|URL")]
        campaign: PathBuf,
    },
    /// Puts a copy of each job's best artifact into a folder
    Best {
        /// The campaign's folder, or the address of its journal
        #[arg(value_name = "DIR|URL")]
        campaign: PathBuf,
        /// Where to put them, one folder for each job
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
    },
    /// Writes one HTML file about all jobs, as `tilewright report` does
    Report(report::OfCampaign),
}

/// What a campaign is made of.
#[derive(Args)]
pub(crate) struct PlanArguments {
    /// The plan, a TOML file
    plan: PathBuf,
    /// Where to put the campaign [default: out/<plan's name>]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Keeps the journal on a PostgreSQL server, so that several machines may work on it: postgres://USER@HOST/DATABASE, a database without tables
    #[arg(long, value_name = "URL")]
    journal: Option<String>,
}

/// Which campaign a machine works on.
#[derive(Args)]
pub(crate) struct PlaceArguments {
    /// Its folder, or the address of its journal: postgres://USER@HOST/DATABASE
    #[arg(value_name = "DIR|URL")]
    campaign: PathBuf,
    /// With an address, this machine's folder for it [default: out/<database>]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// What of this machine a campaign uses.
#[derive(Args)]
pub(crate) struct MachineArguments {
    /// How many of this machine's GPUs are used at most, a worker on each [default: all of the targets' kinds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "no_gpu")]
    gpus: Option<u32>,
    /// Does not use a GPU even if there is one: what is found is simulated
    #[arg(long)]
    no_gpu: bool,
    /// How many workers there are where no GPU is used [default: 1; with --compile-only one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    workers: Option<u32>,
    /// The log that what is timed is added to [default: as of `optimize`]
    #[arg(long, value_name = "FILE", conflicts_with = "no_log")]
    database: Option<PathBuf>,
    /// Adds nothing to a log: what a search timed is timed again by the next one
    #[arg(long)]
    no_log: bool,
    /// A database of artifacts: what it has verified is not searched again, and what is verified is added
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
}

/// What a worker is told.
#[derive(Args)]
pub(crate) struct WorkerArguments {
    folder: PathBuf,
    #[arg(long)]
    session: i64,
    #[arg(long)]
    worker: u32,
    #[arg(long)]
    gpu: Option<u32>,
    #[arg(long)]
    uuid: Option<String>,
    /// Where that times, as JSON
    #[arg(long)]
    timed_on: Option<String>,
    #[arg(long)]
    target: Vec<String>,
    #[arg(long)]
    database: Option<PathBuf>,
    #[arg(long)]
    no_log: bool,
    #[arg(long)]
    db: Option<PathBuf>,
}

/// How long `stop` waits for the end.
const PATIENCE: Duration = Duration::from_secs(30);

impl Campaign {
    /// Whether results are JSON.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self, Self::Status { json: true, .. })
    }
}

/// Does what was asked.
pub(crate) fn campaign(what: &Campaign) -> Result<String, Failure> {
    match what {
        Campaign::Run { plan, machine } => {
            // What is wrong with either is said before anything is made.
            Plan::read(&plan.plan).map_err(Failure::refused)?;
            databases(machine)?;
            go(&made(plan)?, machine, Entry::Start, None)
        }
        Campaign::Resume {
            place,
            budget,
            machine,
        } => {
            let folder = folder(place)?;
            databases(machine)?;
            let mut journal = folder.journal().map_err(Failure::refused)?;
            let running = journal.running().map_err(Failure::refused)?;
            let searches = |session: &SessionView| session.compiler.is_none();
            let alone = !folder.is_running() && !running.iter().any(searches);
            if alone {
                // What is refused for its budget changes nothing.
                let view = journal.view().map_err(Failure::refused)?;
                let whole = budget.unwrap_or(view.budget);
                if whole <= view.spent {
                    return Err(Failure::refused(CampaignError::Spent { budget: whole }));
                }
                if let Some(budget) = *budget {
                    journal.set_budget(budget).map_err(Failure::refused)?;
                }
                journal.reopen().map_err(Failure::refused)?;
            }
            drop(journal);
            go(&folder, machine, Entry::Start, None)
        }
        Campaign::Join {
            place,
            until_input_ends,
            compile_only,
            machine,
        } => {
            let folder = folder(place)?;
            if matches!(folder.site(), Site::File(_)) {
                let path = folder.path().display();
                return Err(Failure::refused(format!("{path}: {ALONE}")));
            }
            let input: Option<Box<dyn Read + Send>> =
                until_input_ends.then(|| Box::new(std::io::stdin()) as _);
            if *compile_only {
                let is_asked = asked(input)?;
                return compiling::compiling(&folder, machine.workers, &is_asked);
            }
            go(&folder, machine, Entry::Join, input)
        }
        Campaign::Plan {
            plan,
            dry_run: true,
            workers,
        } => dry(plan, *workers),
        Campaign::Plan { plan, .. } => {
            let folder = made(plan)?;
            Ok(format!(
                "campaign: {}\n`tilewright campaign resume {0}` starts it\n",
                folder.path().display()
            ))
        }
        Campaign::Slurm(arguments) => {
            let subject = Subject::open(&arguments.campaign)?;
            drop(subject.to_read()?);
            let work = match (subject.site(), subject.folder()) {
                (Site::File(_), Some(folder)) => {
                    Work::Folder(std::path::absolute(folder.path()).map_err(Failure::refused)?)
                }
                (site, _) => Work::Server(site.to_string()),
            };
            slurm::slurm(arguments, &work, &place::worker()?)
        }
        Campaign::Status { campaign, json } => status(&Subject::open(campaign)?, *json),
        Campaign::Stop { campaign } => stop(&Subject::open(campaign)?),
        Campaign::Best { campaign, output } => best(&Subject::open(campaign)?, output),
        Campaign::Report(arguments) => report::of_campaign(arguments),
    }
}

/// The folder of this machine.
fn folder(place: &PlaceArguments) -> Result<Folder, Failure> {
    let Some(url) = address(&place.campaign)? else {
        if place.output.is_some() {
            return Err(Failure::refused(
                "-o goes with the address of a journal: a folder of a campaign is where it is",
            ));
        }
        return Folder::open(&place.campaign, place::unlocked).map_err(Failure::refused);
    };
    // Nothing is laid out for what is not there.
    drop(Journal::open(&Site::Server(url.clone())).map_err(Failure::refused)?);
    let output = place.output.clone();
    let output = output.unwrap_or_else(|| Path::new("out").join(url.database()));
    Folder::join(&output, &url).map_err(Failure::refused)
}

/// A worker's process.
pub(crate) fn worker(arguments: &WorkerArguments) -> Result<String, Failure> {
    let mut input = std::io::stdin();
    let server = work::told_by(&mut input).map_err(Failure::refused)?;
    work::end_with(input);
    let timed_on = arguments.timed_on.as_deref();
    let timed_on = timed_on.map(serde_json::from_str);
    let worker = Worker {
        folder: Folder::at(&arguments.folder, server.as_ref()),
        session: Session(arguments.session),
        number: arguments.worker,
        gpu: arguments.gpu,
        uuid: arguments.uuid.clone(),
        timed_on: timed_on.transpose().map_err(Failure::refused)?,
        targets: arguments.target.clone(),
    };
    let none = arguments.no_log || arguments.gpu.is_none();
    let tools = Tools {
        worker: place::worker()?,
        nvrtc: place::nvrtc(),
        cache: place::cache(),
        locks: place::locks(),
        memory: log::chosen(arguments.database.as_deref(), none)?,
        store: arguments.db.clone(),
    };
    match work::work(&worker, &tools).map_err(Failure::refused)? {
        Ended::Idle => Ok(String::new()),
        Ended::Hung => Err(Failure::unverified("a search does not end")),
        Ended::Superseded => Err(Failure::refused("somebody else has the slice")),
    }
}

/// Reads a plan, with `auto` as the target that it is here.
fn read(arguments: &PlanArguments) -> Result<(Plan, String), Failure> {
    let text = place::text(&arguments.plan, 1 << 20)?;
    let mut plan = Plan::read(&arguments.plan).map_err(Failure::refused)?;
    let mut own: Option<Target> = None;
    for job in &mut plan.jobs {
        if job.target == "auto" {
            let target = match own.take() {
                Some(target) => target,
                None => optimize::target("auto")?,
            };
            job.target.clone_from(&target.name);
            own = Some(target);
        }
    }
    Ok((plan, text))
}

/// Lays a campaign out.
fn made(arguments: &PlanArguments) -> Result<Folder, Failure> {
    let (plan, text) = read(arguments)?;
    let stem = arguments.plan.file_stem().unwrap_or_default();
    let output = arguments.output.clone();
    let output = output.unwrap_or_else(|| Path::new("out").join(stem));
    let seed = plan.seed.unwrap_or_else(place::seed);
    let journal = arguments.journal.as_deref();
    let server = journal.map(|text| Url::parse(text).map(place::unlocked));
    let server = server.transpose().map_err(Failure::refused)?;
    Folder::make(&output, server.as_ref(), (&plan, &text), seed).map_err(Failure::refused)
}

/// What a plan comes to.
fn dry(arguments: &PlanArguments, workers: u32) -> Result<String, Failure> {
    let (plan, _) = read(arguments)?;
    let jobs = u32::try_from(plan.jobs.len()).unwrap_or(u32::MAX);
    let first = plan
        .first
        .unwrap_or_else(|| share::first(plan.budget, workers, jobs));
    let rows = plan
        .jobs
        .iter()
        .map(|job| [job.name.clone(), job.target.clone(), job.weight.to_string()]);
    let mut text = table(["job", "target", "weight"], rows);
    let s = if jobs == 1 { "" } else { "s" };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{jobs} job{s} within {:?} on {workers} worker{}; the first search of each takes {first:?}",
        plan.budget,
        if workers == 1 { "" } else { "s" }
    );
    Ok(text)
}

/// Whether this process is asked to end: by a signal, or by the end of an input.
fn asked(input: Option<Box<dyn Read + Send>>) -> Result<impl Fn() -> bool, Failure> {
    let unheard = |e| Failure::refused(format!("signals cannot be heard: {e}"));
    let signal = run::signals().map_err(unheard)?;
    let ended = Arc::new(AtomicBool::new(false));
    if let Some(mut input) = input {
        let ended = ended.clone();
        std::thread::spawn(move || {
            let mut byte = [0];
            while matches!(input.read(&mut byte), Ok(n) if n > 0) {}
            ended.store(true, Ordering::Relaxed);
        });
    }
    Ok(move || signal.load(Ordering::Relaxed) != 0 || ended.load(Ordering::Relaxed))
}

/// Works, with the processes of this machine.
fn go(
    folder: &Folder,
    machine: &MachineArguments,
    entry: Entry,
    input: Option<Box<dyn Read + Send>>,
) -> Result<String, Failure> {
    let is_asked = asked(input)?;
    let mut journal = folder.journal().map_err(Failure::refused)?;
    let view = journal.view().map_err(Failure::refused)?;
    let mut targets: Vec<Target> = Vec::new();
    for job in &view.jobs {
        if targets.iter().all(|t| t.name != job.target) {
            targets.push(tilewright::target(&job.target).map_err(Failure::refused)?);
        }
    }
    let program = place::worker()?;
    let mut told = |line: String| {
        // Who does not read on misses nothing else.
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    let seats = engine::seats(
        &program,
        &targets,
        !machine.no_gpu,
        machine.gpus.unwrap_or(u32::MAX),
        machine.workers.unwrap_or(1),
        &mut told,
    )
    .map_err(|e| Failure::unusable_gpu(format!("{e}; --no-gpu goes on without it")))?;
    let arguments = databases(machine)?;
    let begun = Instant::now();
    let engine = engine::Engine {
        program,
        arguments,
        seats,
    };
    let tell = |line: String| {
        // Who does not read on misses nothing else.
        let _ = writeln!(
            std::io::stderr(),
            "after {:.1} s: {line}",
            begun.elapsed().as_secs_f64()
        );
    };
    engine::run(folder, &engine, entry, &is_asked, &mut |progress| {
        if progress.before.is_none_or(|us| progress.artifact.us < us) {
            tell(improvement(progress));
        }
    })
    .map_err(Failure::refused)?;
    let view = journal.view().map_err(Failure::refused)?;
    let subject = Subject::of(folder.clone());
    let hosts = subject.hosts(&mut journal)?;
    let text = said(&subject, &view, &hosts);
    // Who left, or was the first to have nothing to do, leaves the rest to others.
    if entry == Entry::Join {
        return Ok(text);
    }
    let is_without = |job: &&JobView| job.best.is_none() || job.is_stale;
    let without = view.jobs.iter().filter(is_without).count();
    if without == 0 || view.stopping {
        return Ok(text);
    }
    let jobs = view.jobs.len();
    let failure = Failure::unverified(format!("{without} of {jobs} jobs have no result"));
    Err(failure.after(text))
}

/// What workers are told of databases, which can be used.
fn databases(machine: &MachineArguments) -> Result<Vec<OsString>, Failure> {
    let mut arguments: Vec<OsString> = Vec::new();
    if let Some(database) = &machine.database {
        log::chosen(Some(database), false)?;
        arguments.extend(["--database".into(), database.into()]);
    }
    if let Some(db) = &machine.db {
        Store::open(db).map_err(Failure::refused)?;
        arguments.extend(["--db".into(), db.into()]);
    }
    if machine.no_log {
        arguments.push("--no-log".into());
    }
    Ok(arguments)
}

fn improvement(progress: &Progress) -> String {
    let Progress {
        job,
        artifact,
        before,
    } = progress;
    let before = before.map_or(String::new(), |us| format!(", before {us:.1}"));
    format!("{job}: {}{before}", time(artifact))
}

/// A time, and what it is.
fn time(known: &Known) -> String {
    match known.verified {
        true => format!("{:.1} us, verified", known.us),
        false => format!("{:.1} us by the model", known.us),
    }
}

fn status(subject: &Subject, json: bool) -> Result<String, Failure> {
    let mut journal = subject.to_read()?;
    let view = journal.view().map_err(Failure::refused)?;
    let hosts = subject.hosts(&mut journal)?;
    if json {
        return Ok(as_json(subject, &view, &hosts).to_string() + "\n");
    }
    Ok(said(subject, &view, &hosts))
}

/// What a job is at, in a word or two.
fn word(job: &JobView) -> &'static str {
    match (job.state, job.is_leased) {
        (_, true) => "searching",
        (JobState::Done, _) => "done",
        (JobState::Failed, _) => "given up",
        (JobState::Open, _) => "open",
    }
}

fn said(subject: &Subject, view: &View, hosts: &Hosts) -> String {
    let rows = view.jobs.iter().map(|job| {
        let ended = job.slices.iter().filter(|s| s.state == SliceState::Ended);
        let first = job.curve.first().zip(job.best.as_ref());
        let gain =
            first.map(|(first, best)| format!("{:.1} %", 100.0 * (1.0 - best.us / first.us)));
        let seconds = job.slices.iter().fold(0.0, |all, s| all + s.seconds);
        [
            job.name.clone(),
            job.target.clone(),
            job.weight.to_string(),
            format!("{} of {}", ended.count(), job.slices.len()),
            format!("{seconds:.1}"),
            job.best.as_ref().map_or("none".to_owned(), |best| {
                let stale = if job.is_stale { ", stale" } else { "" };
                time(best) + stale
            }),
            gain.unwrap_or_default(),
            word(job).to_owned(),
        ]
    });
    let titles = [
        "job",
        "target",
        "weight",
        "slices",
        "seconds",
        "best",
        "since first",
        "state",
    ];
    let mut text = table(titles, rows);
    for job in &view.jobs {
        let lost = job
            .slices
            .iter()
            .filter(|s| s.state == SliceState::Lost)
            .count();
        let reason = job.reason.as_deref().unwrap_or_default();
        // Writing to a string does not fail.
        let without = job.best.is_none() || job.state == JobState::Failed;
        let _ = match (without, lost) {
            (_, 1..) => writeln!(text, "{}: {lost} lost, the last by {reason}", job.name),
            (true, 0) if !reason.is_empty() => writeln!(text, "{}: {reason}", job.name),
            _ => Ok(()),
        };
        if let Some(best) = job.best.as_ref().filter(|_| job.is_stale) {
            let there = best.timed_on.as_deref().unwrap_or("nobody knows what");
            let _ = writeln!(text, "{}: stale: it was timed on {there}", job.name);
        }
    }
    let is_result = |job: &&JobView| job.best.is_some() && !job.is_stale;
    let results = view.jobs.iter().filter(is_result).count();
    let _ = writeln!(
        text,
        "{results} results of {} jobs; {:.1} s of {:?}{}; seed {}",
        view.jobs.len(),
        view.spent.as_secs_f64(),
        view.budget,
        match (hosts.is_empty(), view.stopping) {
            (false, false) => format!(", running on {}", hosts.said()),
            (false, true) => format!(", ending on {}", hosts.said()),
            (true, true) => ", stopped".to_owned(),
            (true, false) => String::new(),
        },
        view.seed
    );
    let _ = writeln!(text, "campaign: {}", subject.name());
    if let (Some(_), Site::Server(url)) = (subject.folder(), subject.site()) {
        let _ = writeln!(text, "journal: {url}");
    }
    text
}

fn as_json(subject: &Subject, view: &View, hosts: &Hosts) -> Value {
    let place = |job: &JobView| {
        let folder = subject.folder()?;
        Some(folder.artifact(&job.name).display().to_string())
    };
    let jobs: Vec<Value> = (view.jobs.iter())
        .map(|job| {
            let slices: Vec<Value> = (job.slices.iter())
                .map(|s| {
                    json!({
                        "budget_seconds": s.budget.as_secs_f64(),
                        "state": match s.state {
                            SliceState::Waiting => "waiting",
                            SliceState::Leased => "leased",
                            SliceState::Ended => "ended",
                            SliceState::Lost => "lost",
                        },
                        "attempts": s.attempts,
                        "pid": s.pid,
                        "seconds": s.seconds,
                        "trials": s.trials,
                        "recalled": s.recalled,
                        "reason": s.reason,
                    })
                })
                .collect();
            let curve: Vec<[f64; 2]> = job.curve.iter().map(|p| [p.seconds, p.us]).collect();
            json!({
                "name": job.name,
                "program_hash": job.program_hash,
                "target": job.target,
                "weight": job.weight,
                "state": word(job),
                "reason": job.reason,
                "slices": slices,
                "curve": curve,
                "us": job.best.as_ref().map(|best| best.us),
                "verified": job.best.as_ref().map(|best| best.verified),
                "seal": job.best.as_ref().map(|best| best.seal.clone()),
                "timed_on": job.best.as_ref().and_then(|best| best.timed_on.clone()),
                "stale": job.is_stale,
                "artifact": place(job),
            })
        })
        .collect();
    let compiling = hosts.compile.iter();
    let compiling: Vec<Value> = compiling
        .map(|(host, compiler)| json!({ "host": host, "compiler": compiler }))
        .collect();
    json!({
        "campaign": subject.name(),
        "journal": subject.site().to_string(),
        "budget_seconds": view.budget.as_secs_f64(),
        "spent_seconds": view.spent.as_secs_f64(),
        "seed": view.seed,
        "running": !hosts.search.is_empty(),
        "hosts": hosts.search,
        "compiling": compiling,
        "stopping": view.stopping,
        "jobs": jobs,
    })
}

/// Asks for the end, and waits for it.
fn stop(subject: &Subject) -> Result<String, Failure> {
    let mut journal = subject.journal()?;
    let name = subject.name();
    if subject.hosts(&mut journal)?.is_empty() {
        if !journal.is_shared() {
            return Ok(format!("{name}: it does not run\n"));
        }
        // Machines may be about to come.
        journal.stop().map_err(Failure::refused)?;
        return Ok(format!(
            "{name}: it does not run; who joins is refused until `campaign resume`\n"
        ));
    }
    journal.stop().map_err(Failure::refused)?;
    let begun = Instant::now();
    loop {
        let hosts = subject.hosts(&mut journal)?;
        if hosts.is_empty() {
            break;
        }
        if begun.elapsed() > PATIENCE {
            let hosts = hosts.said();
            let why = format!("was asked to end, and has not within {PATIENCE:?}");
            return Err(Failure::refused(format!("{name}: {hosts} {why}")));
        }
        std::thread::sleep(Duration::from_millis(if journal.is_shared() {
            200
        } else {
            20
        }));
    }
    status(subject, false)
}

/// Copies the artifacts.
fn best(subject: &Subject, output: &Path) -> Result<String, Failure> {
    let mut journal = subject.to_read()?;
    let view = journal.view().map_err(Failure::refused)?;
    let mut rows = Vec::new();
    // Everything that can be refused is refused before anything is written.
    let mut all = Vec::new();
    let mut stale = Vec::new();
    for job in &view.jobs {
        let Some(files) = subject.files(&mut journal, job)? else {
            continue;
        };
        if job.is_stale {
            stale.push(job.name.as_str());
            continue;
        }
        let text = |name| db::text(&files, name);
        let manifest: Manifest =
            serde_json::from_str(&text(file::MANIFEST)?).map_err(Failure::refused)?;
        let program = tilewright::ir::parse(&text(file::PROGRAM)?, &job.name);
        let program = program.map_err(Failure::refused)?;
        let target = tilewright::target(&job.target).map_err(Failure::refused)?;
        let place = output.join(&job.name);
        let destination = Destination::new(&place, &program, &target, GivesWay::Same);
        let us = store::us(&manifest, &program, &target);
        all.push((destination.map_err(Failure::refused)?, files));
        rows.push([
            job.name.clone(),
            format!("{us:.1}"),
            manifest.state.to_string(),
            place.display().to_string(),
        ]);
    }
    let note: String = (stale.iter())
        .map(|job| format!("{job}: not copied: it is stale, `campaign status` says why\n"))
        .collect();
    if rows.is_empty() {
        let name = subject.name();
        let failure = Failure::unverified(format!("{name}: no job has a result yet"));
        return Err(failure.after(note));
    }
    for (destination, files) in &all {
        let files: Vec<(&str, Vec<u8>)> = (files.iter())
            .map(|(name, bytes)| (name.as_str(), bytes.clone()))
            .collect();
        destination.write(&files).map_err(Failure::refused)?;
    }
    Ok(table(["job", "us", "state", "artifact"], rows.into_iter()) + &note)
}

/// Rows below titles, each column as wide as it has to be.
fn table<const N: usize>(titles: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut all = vec![titles.map(str::to_owned)];
    all.extend(rows);
    let mut widths = [0; N];
    for row in &all {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    all.iter().map(line).collect()
}

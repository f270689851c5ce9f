//! `optimize`: a search, its artifact and its report.

use crate::cli::run::Lost;
use crate::cli::{Failure, Optimize, db, log, place, progress::Progress, run, show};
use ir::{Program, Reject, ScheduleText, Target, Wishes};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tilewright::artifact::{Artifact, ArtifactError, Destination, GivesWay, Manifest, State};
use tilewright::codegen;
use tilewright::device::gpu::TimedOn;
use tilewright::emit::{EmitError, summary};
use tilewright::pipeline::Search;
use tilewright::pipeline::given::{Given, Seed};
use tilewright::report::words::meaning;
use tilewright::store::{Entry, Store};
use tilewright::{Error, Notes, Optimized, Options, program_hash, worker};

/// Searches, writes the artifact, and reports. Where `lines` are printed on the way nothing else is.
pub(crate) fn optimize(arguments: &Optimize, lines: bool) -> Result<String, Failure> {
    // Everything that can be refused is refused before the search starts.
    let program = place::program(&arguments.program)?;
    let given = given(arguments, &program)?;
    let (seed_from, wishes) = (seed_from(arguments, &program)?, wishes(arguments)?);
    let target = target(&arguments.target)?;
    let output = match &arguments.output {
        Some(folder) => folder.clone(),
        None => PathBuf::from("out").join(&program.name),
    };
    let gives_way = if arguments.force {
        GivesWay::Any
    } else {
        GivesWay::Same
    };
    let destination = Destination::new(&output, &program, &target, gives_way).map_err(occupied)?;

    let mut shelf = Shelf::of(arguments)?;
    let mut stale = Vec::new();
    let is_asked = !arguments.fresh && given.is_none() && seed_from.is_none() && wishes.is_empty();
    if let Some(shelf) = shelf.as_ref().filter(|_| is_asked) {
        let here = match arguments.no_gpu {
            true => None,
            false => worker::timed_on(&place::worker()?, 0, &target),
        };
        let answer = shelf.store.answer(&program, &target.name, here.as_ref());
        let answer = shelf.got(answer.map_err(Failure::refused))?;
        let answer = answer.unwrap_or_default();
        if let Some(entry) = answer.entry {
            let files = shelf.store.files(&entry.seal).map_err(Failure::refused);
            if let Some(files) = shelf.got(files)? {
                let files = files
                    .iter()
                    .map(|(name, bytes)| (name.as_str(), bytes.clone()));
                let files: Vec<(&str, Vec<u8>)> = files.collect();
                destination.write(&files).map_err(occupied)?;
                return Ok(answered(arguments, &entry, &shelf.store, &output));
            }
        }
        stale = answer.stale;
    }
    let (notes, memory) = (Notes::default(), log::of_search(arguments)?);
    if let Some((shelf, memory)) = shelf.as_ref().zip(memory.as_ref()) {
        let known = shelf.store.trials(&program_hash(&program));
        let known = shelf.got(known.map_err(Failure::refused))?;
        memory.take_over(&known.unwrap_or_default());
    }
    let options = Options {
        budget: arguments.budget,
        seed: arguments.seed.unwrap_or_else(place::seed),
        worker: Some(place::worker()?),
        nvrtc: place::nvrtc(),
        cache: place::cache(),
        locks: place::locks(),
        use_gpu: !arguments.no_gpu,
        gpus: arguments.gpus.unwrap_or(u32::MAX),
        given,
        seed_from,
        wishes,
        memory: memory.map(|memory| notes.beside(memory)),
        ..Options::new(target)
    };
    let progress = Progress::new(!lines, !arguments.json);
    let (manifest, optimized) = run::run(&program, &options, &destination, progress)
        .map_err(|lost| failure(&program, lost))?;
    let is_added = |shelf: &&mut Shelf| shelf.is_named || manifest.state == State::Verified;
    if let Some(shelf) = shelf.as_mut().filter(is_added) {
        let made = Artifact::read(destination.path()).map_err(Failure::refused)?;
        let added = shelf.store.add(&made).map_err(Failure::refused);
        shelf.got(added)?;
        let added = shelf.store.add_trials(&notes.take());
        shelf.got(added.map_err(Failure::refused))?;
    }
    if arguments.json {
        let mut value = summary(&manifest, &optimized, &options.target);
        value["artifact"] = destination.path().display().to_string().into();
        value["stale"] = serde_json::json!(stale);
        Ok(value.to_string() + "\n")
    } else {
        let report = report(&manifest, &optimized, &options.target, &destination);
        Ok(report + &not_compared(&stale, manifest.timed_on.as_ref()))
    }
}

/// The database that is asked for an answer, and that what is found is added to: that of `--db`, else the user's own one where somebody made it.
struct Shelf {
    store: Store,
    /// It was named: without it nothing is done.
    is_named: bool,
}

impl Shelf {
    fn of(arguments: &Optimize) -> Result<Option<Self>, Failure> {
        let made = |store: Result<Store, _>, is_named| {
            let store = store.map_err(Failure::refused)?;
            Ok(Self { store, is_named })
        };
        if arguments.no_db {
            return Ok(None);
        }
        if let Some(path) = &arguments.db {
            return made(Store::open(path), true).map(Some);
        }
        let own = place::artifacts().filter(|own| own.is_file());
        let own = own.map(|own| made(Store::existing(&own), false));
        Ok(own.and_then(told))
    }

    /// What was asked of it; nothing where it cannot be had from the user's own one: no search is refused for what nobody named.
    fn got<T>(&self, asked: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match self.is_named {
            true => asked.map(Some),
            false => Ok(told(asked)),
        }
    }
}

/// What the user's own database gave; where that is nothing it is told why.
fn told<T>(asked: Result<T, Failure>) -> Option<T> {
    asked
        .inspect_err(|why| tracing::warn!("the database of artifacts is left out: {why}"))
        .ok()
}

/// What a database has that was no answer, a line each.
fn not_compared(stale: &[Entry], here: Option<&TimedOn>) -> String {
    let here = here.map_or("nothing was timed".to_owned(), TimedOn::to_string);
    let line = |entry: &Entry| {
        let there = entry.timed_on.as_deref().unwrap_or("nobody knows what");
        let (seal, us) = (&entry.seal[..db::DIGITS], entry.us);
        format!("stale in the database: {seal}, {us:.1} us, timed on {there}; here: {here}\n")
    };
    stale.iter().map(line).collect()
}

/// What is said where a database had the answer.
fn answered(arguments: &Optimize, entry: &Entry, store: &Store, output: &Path) -> String {
    let (from, artifact) = (store.path().display(), output.display());
    if arguments.json {
        let value = serde_json::json!({
            "program": entry.program,
            "target": entry.target,
            "state": State::Verified,
            "us": entry.us,
            "seal": entry.seal,
            "answered_by": from.to_string(),
            "artifact": artifact.to_string(),
        });
        return value.to_string() + "\n";
    }
    format!(
        "{} for {}: verified on a GPU before, {:.1} us; known from {from}, so nothing was searched, whatever the budget (--fresh does)\nartifact: {artifact}\n",
        entry.program, entry.target, entry.us
    )
}

/// The schedule of `--schedule`, with the tile program of `--tiling`.
fn given(arguments: &Optimize, program: &Program) -> Result<Option<Given>, Failure> {
    let Some(file) = &arguments.schedule else {
        return Ok(None);
    };
    let text = place::text(file, ir::limits::MAX_SOURCE)?;
    let schedule = ScheduleText::parse(&text, &file.display().to_string(), &codegen::language());
    let schedule = schedule.map_err(Failure::refused)?;
    let tiling = match &arguments.tiling {
        None => None,
        Some(folder) => {
            let tiling = show::Tiling::read(folder)?;
            is_of(&tiling.program, program, folder, &arguments.program)?;
            Some((tiling.expression, tiling.tile))
        }
    };
    Ok(Some(Given { schedule, tiling }))
}

/// Refuses an artifact of another program; by their texts, as artifacts are told from each other.
fn is_of(found: &Program, program: &Program, folder: &Path, file: &Path) -> Result<(), Failure> {
    if found.to_string() == program.to_string() {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "{}: the artifact is of another program, `{}`, than {}",
        folder.display(),
        found.name,
        file.display()
    )))
}

/// What the artifact of `--seed-from` has.
fn seed_from(arguments: &Optimize, program: &Program) -> Result<Option<Seed>, Failure> {
    let Some(folder) = &arguments.seed_from else {
        return Ok(None);
    };
    let contents = show::Contents::read(folder)?;
    is_of(&contents.program, program, folder, &arguments.program)?;
    Ok(Some(Seed {
        expression: contents.expression,
        tile: contents.tile,
        schedule: contents.schedule,
    }))
}

/// What `--pin` and `--forbid` say.
fn wishes(arguments: &Optimize) -> Result<Wishes, Failure> {
    let (mut wishes, language) = (Wishes::default(), codegen::language());
    for line in &arguments.pin {
        let pinned = wishes.pin(line, &language);
        pinned.map_err(|e| Failure::refused(format!("--pin '{line}': {e}")))?;
    }
    for line in &arguments.forbid {
        let forbidden = wishes.forbid(line, &language);
        forbidden.map_err(|e| Failure::refused(format!("--forbid '{line}': {e}")))?;
    }
    Ok(wishes)
}

/// Whether a reason is that of a check: what was looked at is wrong, or may be.
fn is_of_a_check(reject: &Reject) -> bool {
    match reject {
        Reject::Wrong(_) | Reject::Undecided(_) | Reject::Fragile(_) | Reject::Fault(_) => true,
        Reject::InKernel { reject, .. } => is_of_a_check(reject),
        Reject::SharedMemory { .. }
        | Reject::Registers { .. }
        | Reject::Spills { .. }
        | Reject::Assignment(_)
        | Reject::Schedule(_)
        | Reject::OtherTiling(_)
        | Reject::Target(_)
        | Reject::Grid(_)
        | Reject::Bound { .. }
        | Reject::Compiler(_) => false,
    }
}

/// What to say of a search without an artifact.
fn failure(program: &Program, lost: Lost) -> Failure {
    match lost {
        Lost::Failure(failure) => failure,
        Lost::Emit(EmitError::Artifact(e)) => occupied(e),
        Lost::Emit(e @ EmitError::Unsound { .. }) => Failure::unverified(e),
        Lost::Search(e) => match e {
            Error::Memory { .. } | Error::Values { .. } | Error::Stopped => {
                Failure::refused(format!("{}: {e}", program.name))
            }
            Error::Budget { .. } => Failure::budget(format!(
                "{}: {e}, and --no-gpu goes on without the GPU",
                program.name
            )),
            Error::Gpu(_) => Failure::unusable_gpu(format!("{e}; --no-gpu goes on without it")),
            Error::NotTaken { ref furthest, .. } if is_of_a_check(&furthest.reject) => {
                Failure::unverified(format!("{}: {e}", program.name))
            }
            Error::NotTaken { .. } => Failure::refused(format!("{}: {e}", program.name)),
            Error::NothingVerified { ref examples, .. } => {
                let examples: String = examples.iter().map(|e| format!("\n  {e}")).collect();
                Failure::unverified(format!("{}: {e}{examples}", program.name))
            }
        },
    }
}

/// The target of a name; `auto` is the one whose device is in this machine.
pub(crate) fn target(name: &str) -> Result<Target, Failure> {
    if !name.eq_ignore_ascii_case("auto") {
        return tilewright::target(name).map_err(Failure::refused);
    }
    let info = tilewright::worker::gpu_info(&place::worker()?).map_err(|e| {
        if !e.is_absence() {
            return Failure::unusable_gpu(format!("--target auto: {e}"));
        }
        let known: Vec<String> = tilewright::targets().into_iter().map(|t| t.name).collect();
        Failure::no_gpu(format!(
            "--target auto: {e}; to search without a GPU, name one of {}",
            known.join(", ")
        ))
    })?;
    search::targets::target_for_device(&info.name).map_err(Failure::refused)
}

/// Why there is no place for the artifact, and what to say for it to be one.
fn occupied(error: ArtifactError) -> Failure {
    match error {
        ArtifactError::OtherArtifact { .. } => Failure::refused(format!(
            "{error}; --force replaces it, -o DIR puts the new one elsewhere"
        )),
        ArtifactError::Io { .. }
        | ArtifactError::InTheWay { .. }
        | ArtifactError::Tampered { .. }
        | ArtifactError::OtherFormat { .. }
        | ArtifactError::NoArtifact { .. } => Failure::refused(error),
    }
}

fn report(
    manifest: &Manifest,
    optimized: &Optimized,
    target: &Target,
    destination: &Destination,
) -> String {
    let best = optimized.best.value();
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{} for {}: {}; {} candidates in {:.1} s, the first held after {:.1} s; seed {}{}",
        manifest.program,
        manifest.target.name,
        match manifest.state {
            State::Simulated => "simulated, never ran on a GPU",
            State::Verified => "verified on a GPU",
        },
        optimized.candidates,
        optimized.seconds,
        optimized.first_held_seconds,
        manifest.seed,
        match manifest.search {
            Search::Ended => "",
            Search::Running | Search::Interrupted => "; the search was ended early",
        },
    );
    let rejected: Vec<String> = optimized
        .rejected
        .iter()
        .map(|(reason, count)| match meaning(reason) {
            Some(meaning) => format!("{reason} {count} ({meaning})"),
            None => format!("{reason} {count}"),
        })
        .collect();
    if !rejected.is_empty() {
        let _ = writeln!(text, "rejected: {}", rejected.join(", "));
    }
    let work = &optimized.work;
    if work.trials + work.recalled > 0 {
        let _ = writeln!(
            text,
            "timed: {} kernels in {:.1} s, {:.1} a second, and {} known from before; meanwhile enumerating {:.1} s, lowering {:.1}, compiling {:.1} (all cores), timing {:.1}, candidates {:.1}",
            work.trials,
            work.seconds,
            work.trials as f64 / work.seconds.max(f64::MIN_POSITIVE),
            work.recalled,
            work.enumerating,
            work.lowering,
            work.compiling,
            work.timing,
            work.checking
        );
    }
    let _ = writeln!(
        text,
        "best: {} kernel{}, {:.2} GFLOP, {:.2} MB; {:.1} us by the model",
        manifest.launches.len(),
        if manifest.launches.len() == 1 {
            ""
        } else {
            "s"
        },
        manifest.flops as f64 / 1e9,
        manifest.bytes as f64 / 1e6,
        manifest.predicted_us
    );
    if let Some(m) = &manifest.measured_us {
        let _ = writeln!(
            text,
            "measured: warm {:.1} us ({:.1} to {:.1}), cold {:.1} us ({:.1} to {:.1})",
            m.warm.median_us,
            m.warm.p10_us,
            m.warm.p90_us,
            m.cold.median_us,
            m.cold.p10_us,
            m.cold.p90_us
        );
    }
    let _ = writeln!(
        text,
        "plan: {}",
        best.plan.trim_end().replace('\n', "\n      ")
    );
    text += &show::model(&best.tile, &best.schedule, target);
    for claim in &manifest.claims {
        let _ = writeln!(text, "{}: {claim}", manifest.state);
    }
    for remark in &optimized.remarks {
        let _ = writeln!(text, "note: {remark}");
    }
    let _ = writeln!(text, "artifact: {}", destination.path().display());
    text
}

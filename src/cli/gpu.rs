//! `verify` and `bench`: an artifact again, on this machine's GPU.

use crate::cli::{Failure, OnGpu, place, show::Contents};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;
use tilewright::artifact::{Manifest, State};
use tilewright::pipeline::again;
use tilewright::worker::WorkerFailure;

/// Verifies the artifact's cubin on the GPU.
pub(crate) fn verify(arguments: &OnGpu) -> Result<String, Failure> {
    let (mut recheck, seed) = checked(arguments)?;
    let claims = recheck.verify().map_err(Failure::unverified)?;
    if arguments.json {
        return Ok(
            json!({"state": State::Verified, "seed": seed, "claims": claims}).to_string() + "\n",
        );
    }
    let claims: String = claims.iter().map(|c| format!("verified: {c}\n")).collect();
    Ok(format!("{claims}seed: {seed}\n"))
}

/// Times the artifact's cubin on the GPU.
pub(crate) fn bench(arguments: &OnGpu) -> Result<String, Failure> {
    let (mut recheck, _) = checked(arguments)?;
    let locks = place::locks();
    let m = recheck.time(locks.as_deref());
    let m = m.map_err(Failure::unverified)?;
    if arguments.json {
        return Ok(json!({"measured_us": m}).to_string() + "\n");
    }
    let mut text = String::new();
    for (kind, t) in [("warm", m.warm), ("cold", m.cold)] {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{kind}: {:.2} us ({:.2} to {:.2})",
            t.median_us, t.p10_us, t.p90_us
        );
    }
    Ok(text)
}

/// The steps of a program's reference, a line each: seconds, and the seconds that were predicted.
pub(crate) fn reference(program: &Path, target: &str) -> Result<String, Failure> {
    let program = place::program(program)?;
    let target = tilewright::target(target).map_err(Failure::refused)?;
    let steps = tilewright::worker::measure::measure(&program, &target, place::nvrtc())
        .map_err(Failure::refused)?;
    let line = |(step, took, predicted): (String, Option<f64>, Option<f64>)| {
        let took = took.map_or("not measured".to_owned(), |s| format!("{s:.3} s"));
        let predicted = predicted.map_or(String::new(), |s| format!(" (predicted {s:.3} s)"));
        format!("{step}: {took}{predicted}\n")
    };
    Ok(steps.into_iter().map(line).collect())
}

/// With the seed of the inputs: another one than the search's, unless it is said.
fn checked(arguments: &OnGpu) -> Result<(again::Recheck, u64), Failure> {
    let contents = Contents::checked(&arguments.artifact)?;
    if contents.artifact.manifest().cubin.is_none() {
        return Err(Failure::refused(format!(
            "{}: this artifact holds no compiled kernel, because no NVRTC was found when it was made",
            arguments.artifact.display()
        )));
    }
    fitting(contents.artifact.manifest())?;
    let recorded = contents.artifact.manifest().seed;
    let fresh = || std::iter::repeat_with(place::seed).find(|seed| *seed != recorded);
    let seed = arguments.seed.or_else(fresh).unwrap_or_default();
    Ok((open(&contents, seed)?, seed))
}

/// Whether this machine has a GPU of an artifact's kind.
pub(crate) fn fitting(manifest: &Manifest) -> Result<(), Failure> {
    let info = tilewright::worker::gpu_info(&place::worker()?).map_err(no_info)?;
    let found = info.capability.0 * 10 + info.capability.1;
    if found == manifest.target.capability {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "the artifact is built for {} (compute capability {}), but this machine has {} ({found})",
        manifest.target.name, manifest.target.capability, info.name
    )))
}

/// There is no GPU, or one that does not say what it is.
pub(crate) fn no_info(error: WorkerFailure) -> Failure {
    if error.is_absence() {
        Failure::no_gpu(error)
    } else {
        Failure::unusable_gpu(error)
    }
}

/// Gives the artifact to a worker.
pub(crate) fn open(contents: &Contents, seed: u64) -> Result<again::Recheck, Failure> {
    let manifest = contents.artifact.manifest();
    let cubins = contents.artifact.cubins().map_err(Failure::refused)?;
    again::Recheck::open(again::Subject {
        program: contents.program.clone(),
        expression: contents.expression.clone(),
        tile: contents.tile.clone(),
        launches: manifest.launches.clone(),
        cubins: cubins.into_iter().map(<[u8]>::to_vec).collect(),
        arch: manifest.target.arch.clone(),
        worker: place::worker()?,
        nvrtc: place::nvrtc(),
        seed,
    })
    .map_err(|e| match e {
        WorkerFailure::Gpu(_) => no_info(e),
        WorkerFailure::Reference(_) | WorkerFailure::Worker(_) => Failure::unusable_gpu(e),
    })
}

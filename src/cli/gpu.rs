//! `verify` and `bench`: an artifact again, on this machine's GPU.

use crate::cli::{Failure, OnGpu, place, show::Contents};
use serde_json::json;
use std::fmt::Write;
use tilewright::artifact::{self, file};
use tilewright::pipeline::again;

/// Verifies the artifact's cubin on the GPU.
pub(crate) fn verify(arguments: &OnGpu) -> Result<String, Failure> {
    let claims = verified(arguments)?;
    if arguments.json {
        return Ok(json!({"verified": claims}).to_string() + "\n");
    }
    Ok(claims.iter().map(|c| format!("verified: {c}\n")).collect())
}

/// What was verified, one claim a line.
pub(crate) fn verified(arguments: &OnGpu) -> Result<Vec<String>, Failure> {
    open(arguments)?.verify().map_err(Failure::unverified)
}

/// Times the artifact's cubin on the GPU.
pub(crate) fn bench(arguments: &OnGpu) -> Result<String, Failure> {
    let mut recheck = open(arguments)?;
    let m = recheck.time().map_err(Failure::unverified)?;
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

fn open(arguments: &OnGpu) -> Result<again::Recheck, Failure> {
    let contents = Contents::read(&arguments.artifact)?;
    let manifest = &contents.manifest;
    artifact::check_files(&arguments.artifact, manifest).map_err(Failure::refused)?;
    if manifest.cubin.is_none() {
        return Err(Failure::refused(format!(
            "{}: this artifact holds no compiled kernel, because no NVRTC was found when it was made",
            arguments.artifact.display()
        )));
    }
    let cubin = artifact::read_bytes(&arguments.artifact, file::CUBIN).map_err(Failure::refused)?;
    let worker = place::worker()?;
    let info = tilewright::worker::gpu_info(&worker).map_err(Failure::no_gpu)?;
    let found = info.capability.0 * 10 + info.capability.1;
    if found != manifest.target.capability {
        return Err(Failure::refused(format!(
            "{}: built for {} (compute capability {}), but this machine has {} ({found})",
            arguments.artifact.display(),
            manifest.target.name,
            manifest.target.capability,
            info.name
        )));
    }
    again::Recheck::open(again::Subject {
        program: contents.program,
        expression: contents.expression,
        tile: contents.tile,
        launches: manifest.launches.clone(),
        cubin,
        arch: manifest.target.arch.clone(),
        worker,
        nvrtc: place::nvrtc(),
        seed: arguments.seed,
    })
    .map_err(Failure::unverified)
}

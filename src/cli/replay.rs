//! `verify --replay`: what an artifact's evidence records, done again.

use crate::cli::{Failure, OnGpu, gpu, place, show::Contents};
use serde_json::json;
use tilewright::artifact::{self, file};
use tilewright::pipeline::again::{self, Claims};

/// Replays the evidence; without a GPU all but what needs one.
pub(crate) fn replay(arguments: &OnGpu) -> Result<String, Failure> {
    let folder = &arguments.artifact;
    let manifest = artifact::read_manifest(folder).map_err(Failure::refused)?;
    artifact::check_files(folder, &manifest).map_err(Failure::refused)?;
    let contents = Contents::read(folder)?;
    let evidence = &manifest.evidence;
    let source = artifact::read_text(folder, file::CUDA).map_err(Failure::refused)?;
    let target = tilewright::target(&manifest.target.name).map_err(Failure::refused)?;
    let mut lines = again::replay(&Claims {
        program: &contents.program,
        expression: &contents.expression,
        tile: &contents.tile,
        schedule: &contents.schedule,
        target: &target,
        source: &source,
        launches: &manifest.launches,
        derivation: manifest.derivation.as_ref(),
        evidence,
    })
    .map_err(|e| Failure::unverified(format!("{}: {e}", folder.display())))?;
    let mut missing = Vec::new();
    match &evidence.kernel {
        None => missing.push("kernel: the artifact records no run on a GPU".to_owned()),
        Some(kernel) => match tilewright::worker::gpu_info(&place::worker()?) {
            Err(e) => missing.push(format!("kernel: {e}")),
            Ok(_) => {
                let claims = gpu::verified(&OnGpu {
                    seed: kernel.seed,
                    ..arguments.clone()
                })?;
                lines.extend(claims.into_iter().filter(|c| c.starts_with("kernel: ")));
            }
        },
    }
    if arguments.json {
        let report = json!({ "replayed": lines, "not_replayed": missing });
        return Ok(report.to_string() + "\n");
    }
    let replayed = lines.iter().map(|l| format!("replayed: {l}\n"));
    let missing = missing.iter().map(|l| format!("not replayed: {l}\n"));
    Ok(replayed.chain(missing).collect())
}

//! `verify --replay`: what an artifact's evidence records, done again.

use crate::cli::{Failure, OnGpu, gpu, show::Contents};
use serde_json::json;
use tilewright::artifact::file;
use tilewright::pipeline::again::{self, Claims};

/// Replays the evidence; without a GPU all but what needs one.
pub(crate) fn replay(arguments: &OnGpu) -> Result<String, Failure> {
    let folder = &arguments.artifact;
    let contents = Contents::checked(folder)?;
    let artifact = &contents.artifact;
    artifact.check_alone().map_err(Failure::refused)?;
    let manifest = artifact.manifest();
    let evidence = &manifest.evidence;
    let target = tilewright::target(&manifest.target.name).map_err(Failure::refused)?;
    let mut lines = again::replay(&Claims {
        program: &contents.program,
        expression: &contents.expression,
        tile: &contents.tile,
        schedule: &contents.schedule,
        target: &target,
        source: artifact.text(file::CUDA).map_err(Failure::refused)?,
        launches: &manifest.launches,
        derivation: manifest.derivation.as_ref(),
        evidence,
    })
    .map_err(|e| Failure::unverified(format!("{}: {e}", folder.display())))?;
    let mut missing = Vec::new();
    match &evidence.kernel {
        None => missing.push("kernel: the artifact records no run on a GPU".to_owned()),
        Some(kernel) => match gpu::fitting(manifest) {
            Err(e) => missing.push(format!("kernel: {e}")),
            Ok(()) => {
                let claims = gpu::open(&contents, kernel.seed)?.verify();
                let claims = claims.map_err(Failure::unverified)?;
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

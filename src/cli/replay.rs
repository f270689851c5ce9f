//! `verify --replay`: all that an artifact says, derived again, and what its evidence records, done again.

use crate::cli::{Failure, OnGpu, gpu, place, show::Contents};
use serde_json::json;
use tilewright::replay::{self, Claims, Tools};

/// Replays the artifact; without a GPU all but what needs one.
pub(crate) fn replay(arguments: &OnGpu) -> Result<String, Failure> {
    let folder = &arguments.artifact;
    let contents = Contents::checked(folder)?;
    let artifact = &contents.artifact;
    artifact.check_alone().map_err(Failure::refused)?;
    let manifest = artifact.manifest();
    if manifest.tilewright != env!("CARGO_PKG_VERSION") {
        return Err(Failure::refused(format!(
            "{}: made by tilewright {}, which alone can replay it; this is {}",
            folder.display(),
            manifest.tilewright,
            env!("CARGO_PKG_VERSION")
        )));
    }
    let target = tilewright::target(&manifest.target.name).map_err(Failure::refused)?;
    let wrong = |e| Failure::unverified(format!("{}: {e}", folder.display()));
    let mut replayed = replay::replay(
        &Claims {
            artifact,
            program: &contents.program,
            expression: &contents.expression,
            tile: &contents.tile,
            schedule: &contents.schedule,
            target: &target,
        },
        &Tools {
            worker: &place::worker()?,
            nvrtc: &place::nvrtc(),
        },
    )
    .map_err(wrong)?;
    match &manifest.evidence.kernel {
        None => {
            let none = "kernel: the artifact records no run on a GPU".to_owned();
            replayed.not.push(none);
        }
        Some(recorded) => match gpu::fitting(manifest) {
            Err(e) => replayed.not.push(format!("kernel: {e}")),
            Ok(()) => {
                let mut recheck = gpu::open(&contents, recorded.seed)?;
                let found = recheck.run().map_err(wrong)?;
                replay::same_kernel(recorded, &found).map_err(wrong)?;
                replayed.same.push(format!(
                    "kernel: the same outcome of {} runs on inputs drawn from seed {}",
                    found.runs, found.seed
                ));
            }
        },
    }
    if arguments.json {
        let report = json!({ "replayed": replayed.same, "not_replayed": replayed.not });
        return Ok(report.to_string() + "\n");
    }
    let same = replayed.same.iter().map(|l| format!("replayed: {l}\n"));
    let not = replayed.not.iter().map(|l| format!("not replayed: {l}\n"));
    Ok(same.chain(not).collect())
}

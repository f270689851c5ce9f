//! `report`: an artifact or a campaign as one HTML file.

use crate::cli::show::Contents;
use crate::cli::{Failure, Report, place};
use ir::Target;
use std::path::{Path, PathBuf};
use tilewright::artifact::file;
use tilewright::campaign::Folder;
use tilewright::replay::Claims;
use tilewright::report::{self, Campaign, Job};

/// Writes the report, and says where.
pub(crate) fn report(arguments: &Report) -> Result<String, Failure> {
    let folder = &arguments.folder;
    let output = match &arguments.output {
        Some(file) => file.clone(),
        None => beside(folder)?,
    };
    // Everything that can be refused is refused before anything is done.
    report::may_be_at(&output, arguments.force).map_err(Failure::refused)?;
    let page = match kind(folder)? {
        Kind::Artifact => {
            let contents = Contents::checked(folder)?;
            let target = target(&contents)?;
            report::artifact(&claims(&contents, &target))
        }
        Kind::Campaign(campaign) => of_campaign(&campaign)?,
    };
    report::write(&output, &page, arguments.force).map_err(Failure::refused)?;
    Ok(format!(
        "report: {}, {} kB\n",
        output.display(),
        page.len() / 1000
    ))
}

/// What a folder is.
enum Kind {
    Artifact,
    Campaign(Folder),
}

fn kind(folder: &Path) -> Result<Kind, Failure> {
    if folder.join(file::MANIFEST).symlink_metadata().is_ok() {
        return Ok(Kind::Artifact);
    }
    if let Ok(campaign) = Folder::open(folder, place::unlocked) {
        return Ok(Kind::Campaign(campaign));
    }
    let found = match folder.metadata() {
        Err(e) => e.to_string(),
        Ok(meta) if meta.is_dir() => "a folder with no manifest and no journal in it".to_owned(),
        Ok(meta) => tilewright::files::kind(&meta).to_owned(),
    };
    Err(Failure::refused(format!(
        "{}: expected the folder of an artifact, as `tilewright optimize` makes it, or of a campaign, found {found}",
        folder.display()
    )))
}

/// The file beside a folder, of its name.
fn beside(folder: &Path) -> Result<PathBuf, Failure> {
    let whole = folder
        .canonicalize()
        .unwrap_or_else(|_| folder.to_path_buf());
    let Some(name) = whole.file_name() else {
        return Err(Failure::refused(format!(
            "{}: a folder without a name: say with -o FILE where the report goes",
            folder.display()
        )));
    };
    let mut name = name.to_os_string();
    name.push(".html");
    Ok(whole.with_file_name(name))
}

/// The target of an artifact.
pub(crate) fn target(contents: &Contents) -> Result<Target, Failure> {
    tilewright::target(&contents.artifact.manifest().target.name).map_err(Failure::refused)
}

/// What an artifact says.
pub(crate) fn claims<'a>(contents: &'a Contents, target: &'a Target) -> Claims<'a> {
    Claims {
        artifact: &contents.artifact,
        program: &contents.program,
        expression: &contents.expression,
        tile: &contents.tile,
        schedule: &contents.schedule,
        target,
    }
}

fn of_campaign(folder: &Folder) -> Result<String, Failure> {
    let mut journal = folder.journal().map_err(Failure::refused)?;
    let view = journal.view().map_err(Failure::refused)?;
    let read = |job: &str| -> Result<(Contents, Target), String> {
        let contents = Contents::checked(&folder.artifact(job)).map_err(|e| e.to_string())?;
        let target = target(&contents).map_err(|e| e.to_string())?;
        Ok((contents, target))
    };
    let read: Vec<_> = (view.jobs.iter())
        .map(|job| match &job.best {
            None => Err(job
                .reason
                .clone()
                .unwrap_or_else(|| "it has no result yet".to_owned())),
            Some(_) => read(&job.name),
        })
        .collect();
    let jobs: Vec<Job<'_>> = (read.iter())
        .map(|read| match read {
            Ok((contents, target)) => Ok(claims(contents, target)),
            Err(why) => Err(why.clone()),
        })
        .collect();
    let name = folder.path().canonicalize().ok();
    let name = name
        .as_deref()
        .and_then(Path::file_name)
        .unwrap_or(folder.path().as_os_str());
    Ok(report::campaign(&Campaign {
        name: &name.to_string_lossy(),
        view: &view,
        jobs: &jobs,
        running: folder.is_running(),
    }))
}

//! `report` and `campaign report`: an artifact or a campaign as one HTML file.

use crate::cli::show::Contents;
use crate::cli::subject::{Subject, address};
use crate::cli::{Failure, Report, place};
use clap::Args;
use ir::Target;
use std::path::{Path, PathBuf};
use tilewright::artifact::file;
use tilewright::campaign::Folder;
use tilewright::campaign::journal::{JobView, Journal, Site};
use tilewright::replay::Claims;
use tilewright::report::{self, Campaign, Job};
use tilewright::store::Files;

/// A campaign of which there is to be a report.
#[derive(Args)]
pub(crate) struct OfCampaign {
    /// The campaign's folder, or the address of its journal
    #[arg(value_name = "DIR|URL")]
    campaign: PathBuf,
    #[command(flatten)]
    place: Place,
}

/// Where a report goes.
#[derive(Args)]
pub(crate) struct Place {
    /// Where to put it [default: beside the folder, under its name with `.html`]
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// Replaces any regular file. Without this only a report is replaced
    #[arg(long)]
    force: bool,
}

/// Writes the report, and says where.
pub(crate) fn report(arguments: &Report) -> Result<String, Failure> {
    let of = &arguments.of;
    if of.join(file::MANIFEST).symlink_metadata().is_ok() {
        return put(&arguments.place, beside(of), || {
            let contents = Contents::checked(of)?;
            let target = target(&contents)?;
            Ok(report::artifact(&claims(&contents, &target)))
        });
    }
    written(
        of,
        &arguments.place,
        "an artifact, as `tilewright optimize` makes it, or of a campaign",
    )
}

/// The same of a campaign.
pub(crate) fn of_campaign(arguments: &OfCampaign) -> Result<String, Failure> {
    written(&arguments.campaign, &arguments.place, "a campaign")
}

fn written(campaign: &Path, place: &Place, expected: &str) -> Result<String, Failure> {
    if let Some(url) = address(campaign)? {
        let own = PathBuf::from(format!("{}.html", url.database()));
        return put(place, Ok(own), || all_jobs(&Subject::open(campaign)?));
    }
    let found = match (campaign.metadata(), Folder::open(campaign, place::unlocked)) {
        (_, Ok(folder)) => {
            return put(place, beside(campaign), || all_jobs(&Subject::of(folder)));
        }
        (Err(e), _) => e.to_string(),
        (Ok(meta), Err(_)) if meta.is_dir() => {
            "a folder with no manifest and no journal in it".to_owned()
        }
        (Ok(meta), Err(_)) => tilewright::files::kind(&meta).to_owned(),
    };
    Err(Failure::refused(format!(
        "{}: expected the folder of {expected}, found {found}",
        campaign.display()
    )))
}

/// Makes a page and writes it, and says where.
fn put(
    place: &Place,
    own: Result<PathBuf, Failure>,
    page: impl FnOnce() -> Result<String, Failure>,
) -> Result<String, Failure> {
    let output = match &place.output {
        Some(file) => file.clone(),
        None => own?,
    };
    // Everything that can be refused is refused before anything is done.
    report::may_be_at(&output, place.force).map_err(Failure::refused)?;
    let page = page()?;
    report::write(&output, &page, place.force).map_err(Failure::refused)?;
    Ok(format!(
        "report: {}, {} kB\n",
        output.display(),
        page.len() / 1000
    ))
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

/// A job's best artifact, read back, or what is wrong with it.
fn best(
    subject: &Subject,
    journal: &mut Journal,
    job: &JobView,
) -> Result<Result<(Contents, Target), String>, Failure> {
    let contents = match (journal.is_shared(), subject.folder()) {
        (false, Some(folder)) => Contents::checked(&folder.artifact(&job.name)),
        // A journal on a server has its files.
        (_, _) => match subject.files(journal, job)? {
            Some(files) => unpacked(files)?,
            None => return Ok(Err("the journal does not have its artifact".to_owned())),
        },
    };
    let both = contents.and_then(|contents| {
        let target = target(&contents)?;
        Ok((contents, target))
    });
    Ok(both.map_err(|e| e.to_string()))
}

/// The artifact of these files: whoever reads one reads a folder.
fn unpacked(files: Files) -> Result<Result<Contents, Failure>, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::refused)?;
    for (name, bytes) in files {
        if !file::ALL.contains(&name.as_str()) {
            let why = format!("`{name}` is no file of an artifact");
            return Ok(Err(Failure::refused(why)));
        }
        std::fs::write(folder.path().join(name), bytes).map_err(Failure::refused)?;
    }
    Ok(Contents::checked(folder.path()))
}

/// What a campaign is called: as its folder, or as its database.
fn name(subject: &Subject) -> String {
    let of_folder = |folder: &Folder| {
        let path = folder.path();
        let whole = path.canonicalize();
        let whole = whole.as_deref().unwrap_or(path);
        whole.file_name().unwrap_or(path.as_os_str()).to_os_string()
    };
    match (subject.folder(), subject.site()) {
        (Some(folder), _) => of_folder(folder).to_string_lossy().into_owned(),
        (None, Site::Server(url)) => url.database().to_owned(),
        (None, Site::File(path)) => path.display().to_string(),
    }
}

fn all_jobs(subject: &Subject) -> Result<String, Failure> {
    let mut journal = subject.to_read()?;
    let view = journal.view().map_err(Failure::refused)?;
    let running = !subject.hosts(&mut journal)?.is_empty();
    let mut read = Vec::new();
    for job in &view.jobs {
        read.push(match &job.best {
            None => Err(job
                .reason
                .clone()
                .unwrap_or_else(|| "it has no result yet".to_owned())),
            Some(_) => best(subject, &mut journal, job)?,
        });
    }
    let jobs: Vec<Job<'_>> = (read.iter())
        .map(|read| match read {
            Ok((contents, target)) => Ok(claims(contents, target)),
            Err(why) => Err(why.clone()),
        })
        .collect();
    Ok(report::campaign(&Campaign {
        name: &name(subject),
        view: &view,
        jobs: &jobs,
        running,
    }))
}

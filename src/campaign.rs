//! Campaigns: many programs, one budget, and nothing that is lost when something ends.
//!
//! | module | what it decides |
//! |---|---|
//! | [`plan`] | what is to be optimised, from a TOML file |
//! | [`share`] | which job has time next, and how much |
//! | [`journal`] | who works on what, and what came of it: a database |
//! | [`work`] | how a worker does a slice: a search, whose artifacts are written at once |
//! | [`engine`] | the processes of one machine: a worker a GPU, watched and replaced |
//!
//! A campaign is a folder: its journal, a copy of its plan, and an artifact for each job in `artifacts`. This module lays it out.

pub mod engine;
pub mod journal;
pub mod plan;
pub mod share;
pub mod work;

use crate::artifact::Artifact;
use crate::database::DatabaseError;
use journal::Journal;
use plan::Plan;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The folder of a campaign.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// Why a campaign cannot be made, opened or run.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// Something is at the place of a new one.
    #[error("{}: {found} is here already; `tilewright campaign resume` goes on with a campaign, -o DIR puts a new one elsewhere", path.display())]
    Occupied {
        /// The place.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// There is none.
    #[error("{}: expected the folder of a campaign, as `tilewright campaign run` makes it, found no journal in it", path.display())]
    None {
        /// The place.
        path: PathBuf,
    },
    /// Somebody runs it.
    #[error("{}: another process runs this campaign; `tilewright campaign stop` ends it", path.display())]
    Running {
        /// The place.
        path: PathBuf,
    },
    /// The budget is spent.
    #[error(
        "the budget of {budget:?} is spent; `tilewright campaign resume DIR --budget TIME` gives it a longer one"
    )]
    Spent {
        /// The budget.
        budget: std::time::Duration,
    },
    /// Its journal cannot be used.
    #[error(transparent)]
    Journal(#[from] DatabaseError),
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// Its workers cannot work.
    #[error("no worker can do anything: {0}")]
    Workers(String),
}

impl Folder {
    /// Lays out a campaign: into nothing, or into an empty folder. `text` is that of the plan.
    ///
    /// # Errors
    /// [`CampaignError::Occupied`], and what cannot be written; then nothing is left there.
    pub fn make(path: &Path, plan: &Plan, text: &str, seed: u64) -> Result<Self, CampaignError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |error| CampaignError::Io { path, error }
        };
        let folder = Self(path.to_path_buf());
        let is_empty = |path| fs::read_dir(path).map(|mut found| found.next().is_none());
        match path.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io(path)(e)),
            Ok(_) if folder.journal_path().exists() => {
                let (path, found) = (path.to_path_buf(), "a campaign");
                return Err(CampaignError::Occupied { path, found });
            }
            Ok(_) if path.is_dir() && is_empty(path).map_err(io(path))? => {}
            Ok(_) => {
                let (path, found) = (path.to_path_buf(), "something else");
                return Err(CampaignError::Occupied { path, found });
            }
        }
        let above = match path.parent() {
            Some(above) if above != Path::new("") => above,
            Some(_) | None => Path::new("."),
        };
        fs::create_dir_all(above).map_err(io(above))?;
        // Whole, or not at all: the journal is the last thing that comes, with its folder.
        let staging = tempfile::Builder::new()
            .prefix(".campaign-")
            .tempdir_in(above);
        let staging = staging.map_err(io(above))?;
        let made = Self(staging.path().to_path_buf());
        let plan_path = made.0.join(PLAN);
        fs::write(&plan_path, text).map_err(io(&plan_path))?;
        drop(Journal::make(&made.journal_path(), plan, seed)?);
        fs::rename(staging.path(), path).map_err(io(path))?;
        // It has moved away.
        let _ = staging.keep();
        Ok(folder)
    }

    /// The folder of a campaign that is there.
    ///
    /// # Errors
    /// [`CampaignError::None`].
    pub fn open(path: &Path) -> Result<Self, CampaignError> {
        let folder = Self(path.to_path_buf());
        match folder.journal_path().is_file() {
            true => Ok(folder),
            false => Err(CampaignError::None {
                path: path.to_path_buf(),
            }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its journal, opened.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn journal(&self) -> Result<Journal, DatabaseError> {
        Journal::open(&self.journal_path())
    }

    /// Where the artifact of a job is.
    pub fn artifact(&self, job: &str) -> PathBuf {
        self.0.join(ARTIFACTS).join(job)
    }

    /// The artifact of a job, if there is one that is as it was written.
    pub fn whole_artifact(&self, job: &str) -> Option<Artifact> {
        let artifact = Artifact::read(&self.artifact(job)).ok()?;
        artifact.check().ok()?;
        Some(artifact)
    }

    /// Keeps others from running it, as long as the file is open: however its process ends, that ends too.
    ///
    /// # Errors
    /// [`CampaignError::Running`], and the system's.
    pub fn lock(&self) -> Result<File, CampaignError> {
        let path = self.0.join(LOCK);
        let io = |error| CampaignError::Io {
            path: path.clone(),
            error,
        };
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = file.map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(CampaignError::Running {
                path: self.0.clone(),
            }),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }

    /// Whether somebody runs it.
    pub fn is_running(&self) -> bool {
        let running = File::open(self.0.join(LOCK));
        running.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }

    fn journal_path(&self) -> PathBuf {
        self.0.join(JOURNAL)
    }
}

const PLAN: &str = "plan.toml";
const JOURNAL: &str = "journal.sqlite";
const LOCK: &str = "lock";
const ARTIFACTS: &str = "artifacts";

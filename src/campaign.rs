//! Campaigns: many programs, one budget, and nothing that is lost when something ends.
//!
//! | module | what it decides |
//! |---|---|
//! | [`plan`] | what is to be optimised, from a TOML file |
//! | [`share`] | which job has time next, and how much |
//! | [`journal`] | who works on what, and what came of it: a database |
//! | [`work`] | how a worker does a slice: a search, whose artifacts are written at once |
//! | [`engine`] | the processes of one machine: a worker a GPU, watched and replaced |
//! | [`compile`] | how a machine without a GPU compiles for the searches of others |
//! | `remote` | how a search asks such machines |
//! | `trials` | how machines know what others timed |
//!
//! A campaign is a folder: its journal, a copy of its plan, and an artifact for each job in `artifacts`. This module lays it out. Where the journal is on a
//! server each machine has a folder of its own, which says where that is, and has the artifacts that this machine worked on.

pub mod compile;
pub mod engine;
pub mod journal;
pub mod plan;
mod remote;
pub mod share;
mod trials;
pub mod work;

use crate::artifact::{Artifact, ArtifactError};
use crate::database::DatabaseError;
pub use crate::database::server::{NoUrl, Url};
use crate::files;
use journal::{Journal, Site, View};
use plan::Plan;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The folder of a campaign.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    site: Site,
}

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
    /// Its file says of no server where the journal is.
    #[error("{}: expected the address of a journal: {error}", path.display())]
    NoAddress {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: NoUrl,
    },
    /// Others run it.
    #[error(
        "{site}: this campaign runs on {hosts}; `tilewright campaign join` works beside them, `tilewright campaign stop` ends it"
    )]
    Elsewhere {
        /// The journal.
        site: String,
        /// The machines.
        hosts: String,
    },
    /// Nobody runs it, or it is about to end.
    #[error("{site}: this campaign was asked to end; `tilewright campaign resume` goes on with it")]
    Stopped {
        /// The journal.
        site: String,
    },
    /// What is timed here is not compared with what is timed there.
    #[error(
        "{target}: the campaign times it on {there}, and here is {here}: what is timed on them is not compared; `tilewright campaign resume` starts it anew with what is here"
    )]
    NotAlike {
        /// The target.
        target: String,
        /// Where the others time.
        there: String,
        /// Where this machine does.
        here: String,
    },
    /// An artifact cannot be read or written.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
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
    /// A machine that is to compile cannot.
    #[error("this machine cannot compile for others: {0}")]
    Compiler(String),
    /// Its workers cannot work.
    #[error("no worker can do anything: {0}")]
    Workers(String),
}

impl Folder {
    /// Lays out a campaign: into nothing, or into an empty folder; its journal there, or on a server. `text` is that of the plan.
    ///
    /// # Errors
    /// [`CampaignError::Occupied`], and what cannot be written; then nothing is left there.
    pub fn make(
        path: &Path,
        server: Option<&Url>,
        (plan, text): (&Plan, &str),
        seed: u64,
    ) -> Result<Self, CampaignError> {
        is_free(path)?;
        // Nothing is laid out for a server that is not there.
        server.map_or(Ok(()), Journal::reach)?;
        Self::lay(path, server, |made| {
            let plan_path = made.path.join(PLAN);
            fs::write(&plan_path, text).map_err(io(&plan_path))?;
            drop(Journal::make(&made.site, plan, seed)?);
            Ok(())
        })
    }

    /// The folder of this machine for a campaign whose journal is on a server: one that is there already, or a new one.
    ///
    /// # Errors
    /// [`CampaignError::Occupied`], also by another campaign, and what cannot be written.
    pub fn join(path: &Path, server: &Url) -> Result<Self, CampaignError> {
        match Self::open(path, |url| url) {
            Ok(Self {
                site: Site::Server(url),
                ..
            }) if url.to_string() == server.to_string() => Ok(Self {
                path: path.to_path_buf(),
                site: Site::Server(server.clone()),
            }),
            Ok(_) => Err(CampaignError::Occupied {
                path: path.to_path_buf(),
                found: "another campaign",
            }),
            Err(CampaignError::None { .. }) => {
                is_free(path)?;
                Self::lay(path, Some(server), |_| Ok(()))
            }
            Err(e) => Err(e),
        }
    }

    /// Makes a folder whole, or not at all: it comes to its place with the journal, or the word where that is.
    fn lay(
        path: &Path,
        server: Option<&Url>,
        fill: impl FnOnce(&Self) -> Result<(), CampaignError>,
    ) -> Result<Self, CampaignError> {
        let above = match path.parent() {
            Some(above) if above != Path::new("") => above,
            Some(_) | None => Path::new("."),
        };
        fs::create_dir_all(above).map_err(io(above))?;
        let staging = tempfile::Builder::new()
            .prefix(".campaign-")
            .tempdir_in(above);
        let staging = staging.map_err(io(above))?;
        let made = Self::at(staging.path(), server);
        if let Some(url) = server {
            let address = made.path.join(ADDRESS);
            fs::write(&address, format!("{url}\n")).map_err(io(&address))?;
        }
        fill(&made)?;
        fs::rename(staging.path(), path).map_err(io(path))?;
        // It has moved away.
        let _ = staging.keep();
        Ok(Self::at(path, server))
    }

    /// The folder of a campaign that is there. Where its journal is on a server, `unlock` gives the address its password.
    ///
    /// # Errors
    /// [`CampaignError::None`], and a file that is no address.
    pub fn open(path: &Path, unlock: impl FnOnce(Url) -> Url) -> Result<Self, CampaignError> {
        if path.join(JOURNAL).is_file() {
            return Ok(Self::at(path, None));
        }
        let address = path.join(ADDRESS);
        if !address.is_file() {
            return Err(CampaignError::None {
                path: path.to_path_buf(),
            });
        }
        let text = files::read_text(&address, MOST_ADDRESS).map_err(io(&address))?;
        let url = Url::parse(text.trim()).map_err(|error| CampaignError::NoAddress {
            path: address,
            error,
        })?;
        Ok(Self::at(path, Some(&unlock(url))))
    }

    /// The folder at a place, of which it is known where its journal is.
    pub fn at(path: &Path, server: Option<&Url>) -> Self {
        let site = match server {
            Some(url) => Site::Server(url.clone()),
            None => Site::File(path.join(JOURNAL)),
        };
        let path = path.to_path_buf();
        Self { path, site }
    }

    /// Where its journal is.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its journal, opened.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn journal(&self) -> Result<Journal, DatabaseError> {
        Journal::open(&self.site)
    }

    /// The same where some of the budget is left, and what the journal says.
    ///
    /// # Errors
    /// It cannot be used, or nothing is left.
    fn unspent(&self) -> Result<(Journal, View), CampaignError> {
        let mut journal = self.journal()?;
        let view = journal.view()?;
        if view.spent >= view.budget {
            let budget = view.budget;
            return Err(CampaignError::Spent { budget });
        }
        Ok((journal, view))
    }

    /// Where the artifact of a job is.
    pub fn artifact(&self, job: &str) -> PathBuf {
        self.path.join(ARTIFACTS).join(job)
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
        let path = self.path.join(LOCK);
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
                path: self.path.clone(),
            }),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }

    /// Whether somebody on this machine runs it.
    pub fn is_running(&self) -> bool {
        let running = File::open(self.path.join(LOCK));
        // Shared: whoever looks is in nobody's way who wants to run it.
        running.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

/// Whether a folder can be made at a place: nothing is there, or an empty one.
fn is_free(path: &Path) -> Result<(), CampaignError> {
    let is_empty = |path| fs::read_dir(path).map(|mut found| found.next().is_none());
    let found = match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(path)(e)),
        Ok(_)
            if [JOURNAL, ADDRESS]
                .iter()
                .any(|name| path.join(name).exists()) =>
        {
            "a campaign"
        }
        Ok(_) if path.is_dir() && is_empty(path).map_err(io(path))? => return Ok(()),
        Ok(_) => "something else",
    };
    let path = path.to_path_buf();
    Err(CampaignError::Occupied { path, found })
}

fn io(path: &Path) -> impl FnOnce(io::Error) -> CampaignError {
    let path = path.to_path_buf();
    move |error| CampaignError::Io { path, error }
}

const PLAN: &str = "plan.toml";
const JOURNAL: &str = "journal.sqlite";
/// Where the journal is, if it is on a server: its address, without a password.
const ADDRESS: &str = "journal.url";
const MOST_ADDRESS: u64 = 1 << 12;
const LOCK: &str = "lock";
const ARTIFACTS: &str = "artifacts";

//! A campaign that is looked at, from its own machine or from another one.

use crate::cli::{Failure, place};
use std::path::Path;
use tilewright::campaign::journal::{JobView, Journal, Site};
use tilewright::campaign::{Folder, Url};
use tilewright::store::Files;

/// A campaign that is looked at: by its folder, or by its journal alone.
pub(crate) struct Subject {
    folder: Option<Folder>,
    site: Site,
}

impl Subject {
    /// What is named by the path of a folder or by the address of a journal.
    pub(crate) fn open(campaign: &Path) -> Result<Self, Failure> {
        if let Some(url) = address(campaign)? {
            let (folder, site) = (None, Site::Server(url));
            return Ok(Self { folder, site });
        }
        let folder = Folder::open(campaign, place::unlocked).map_err(Failure::refused)?;
        Ok(Self::of(folder))
    }

    /// One of a folder.
    pub(crate) fn of(folder: Folder) -> Self {
        let site = folder.site().clone();
        let folder = Some(folder);
        Self { folder, site }
    }

    /// Its folder, where it was named by that.
    pub(crate) fn folder(&self) -> Option<&Folder> {
        self.folder.as_ref()
    }

    /// Where its journal is.
    pub(crate) fn site(&self) -> &Site {
        &self.site
    }

    /// Its journal, for whoever only looks.
    pub(crate) fn to_read(&self) -> Result<Journal, Failure> {
        Journal::to_read(&self.site).map_err(Failure::refused)
    }

    /// Its journal.
    pub(crate) fn journal(&self) -> Result<Journal, Failure> {
        Journal::open(&self.site).map_err(Failure::refused)
    }

    /// How a message calls it.
    pub(crate) fn name(&self) -> String {
        let folder = self.folder.as_ref();
        folder.map_or(self.site.to_string(), |f| f.path().display().to_string())
    }

    /// The machines that run it; one that has no name where its journal is a file.
    pub(crate) fn hosts(&self, journal: &mut Journal) -> Result<Hosts, Failure> {
        let mut hosts = Hosts::default();
        if journal.is_shared() {
            for session in journal.running().map_err(Failure::refused)? {
                match session.compiler {
                    None => hosts.search.push(session.host),
                    Some(compiler) => hosts.compile.push((session.host, compiler)),
                }
            }
        } else if self.folder.as_ref().is_some_and(Folder::is_running) {
            hosts.search.push("this machine".to_owned());
        }
        Ok(hosts)
    }

    /// The files of a job's best artifact, if they are as they were written.
    pub(crate) fn files(
        &self,
        journal: &mut Journal,
        job: &JobView,
    ) -> Result<Option<Files>, Failure> {
        if let (true, Some(best)) = (journal.is_shared(), &job.best) {
            return journal.files(&best.seal).map_err(Failure::refused);
        }
        let whole = |folder: &Folder| folder.whole_artifact(&job.name);
        let Some(artifact) = self.folder.as_ref().and_then(whole) else {
            return Ok(None);
        };
        let files = artifact.files().map_err(Failure::refused)?.into_iter();
        Ok(Some(
            files
                .map(|(name, bytes)| (name.to_owned(), bytes))
                .collect(),
        ))
    }
}

/// The machines that work on a campaign.
#[derive(Default)]
pub(crate) struct Hosts {
    /// Those that search.
    pub(crate) search: Vec<String>,
    /// Those that only compile, each with its compiler.
    pub(crate) compile: Vec<(String, String)>,
}

impl Hosts {
    /// Whether nobody does.
    pub(crate) fn is_empty(&self) -> bool {
        self.search.is_empty() && self.compile.is_empty()
    }

    /// All of them, in words.
    pub(crate) fn said(&self) -> String {
        let compile = self.compile.iter();
        let compile = compile.map(|(host, with)| format!("{host} (compiles with {with})"));
        let all: Vec<String> = self.search.iter().cloned().chain(compile).collect();
        all.join(", ")
    }
}

/// The address, if a text is one.
pub(crate) fn address(text: &Path) -> Result<Option<Url>, Failure> {
    match text.to_str().filter(|text| Url::is_meant(text)) {
        None => Ok(None),
        Some(text) => {
            let url = Url::parse(text).map_err(Failure::refused)?;
            Ok(Some(place::unlocked(url)))
        }
    }
}

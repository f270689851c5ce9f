//! Where things are on this machine: NVRTC, caches, the log, the worker program.

use crate::cli::Failure;
use device::nvrtc::SearchPath;
use std::path::{Path, PathBuf};
use tilewright::campaign::Url;
use tilewright::files;
use tilewright::place::Place;

/// What this process knows of the machine, asked for something.
fn ask<T>(what: impl FnOnce(Place<'_>) -> T) -> T {
    what(Place {
        variable: &|name| std::env::var_os(name),
        program: std::env::current_exe().ok().as_deref(),
    })
}

/// As [`Place::nvrtc`].
pub(crate) fn nvrtc() -> SearchPath {
    ask(|place| place.nvrtc())
}

/// As [`Place::cache`].
pub(crate) fn cache() -> Option<PathBuf> {
    ask(|place| place.cache())
}

/// As [`Place::locks`].
pub(crate) fn locks() -> Option<PathBuf> {
    ask(|place| place.locks())
}

/// As [`Place::log`].
pub(crate) fn log() -> Option<PathBuf> {
    ask(|place| place.log())
}

/// As [`Place::artifacts`].
pub(crate) fn artifacts() -> Option<PathBuf> {
    ask(|place| place.artifacts())
}

/// The address of a database on a server, with the password that [`Place::password`] finds.
pub(crate) fn unlocked(url: Url) -> Url {
    let password = ask(|place| place.password(&url));
    url.with_password(password.as_deref())
}

/// This program, which is also its own worker.
pub(crate) fn worker() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|e| Failure::refused(format!("the path of this program is unknown: {e}")))
}

/// A seed that nobody chose, from the system; short enough to be written down.
pub(crate) fn seed() -> u64 {
    rand::random::<u32>().into()
}

/// Reads and parses a program.
pub(crate) fn program(path: &Path) -> Result<ir::Program, Failure> {
    let text = text(path, ir::limits::MAX_SOURCE)?;
    ir::text::parse(&text, &path.display().to_string()).map_err(Failure::refused)
}

/// Reads a text of at most so many bytes.
pub(crate) fn text(path: &Path, most: usize) -> Result<String, Failure> {
    files::read_text(path, most as u64)
        .map_err(|e| Failure::refused(format!("{}: {e}", path.display())))
}

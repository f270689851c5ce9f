//! `campaign join --compile-only`: a machine that compiles for those that search.

use crate::cli::{Failure, place};
use tilewright::campaign::Folder;
use tilewright::campaign::compile::{self, Compilers};

/// Compiles until the campaign is over, or it is asked to end.
pub(crate) fn compiling(
    folder: &Folder,
    processes: Option<u32>,
    is_asked: &dyn Fn() -> bool,
) -> Result<String, Failure> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let processes = processes.unwrap_or_else(|| u32::try_from(cores()).unwrap_or(u32::MAX));
    let compilers = Compilers {
        worker: place::worker()?,
        nvrtc: place::nvrtc(),
        cache: place::cache(),
        processes,
    };
    let handed = compile::run(folder, &compilers, is_asked).map_err(Failure::refused)?;
    let s = if handed == 1 { "" } else { "s" };
    Ok(format!(
        "compiled {handed} program{s} for others\njournal: {}\n",
        folder.site()
    ))
}

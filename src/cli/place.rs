//! Where things are on this machine: NVRTC, caches, the log, the worker program.

use crate::cli::Failure;
use device::nvrtc::SearchPath;
use std::path::{Path, PathBuf};
use tilewright::files;

/// Where to look for NVRTC, in this order: `TILEWRIGHT_NVRTC`; where the system's loader looks; `CUDA_HOME`, `CUDA_PATH`,
/// `/usr/local/cuda`; the Python environments `VIRTUAL_ENV`, `CONDA_PREFIX`, and `.venv` of the checkout that this program was built
/// in. Nothing depends on the current folder, but for `TILEWRIGHT_NVRTC` where it is given as a relative path: that is asked for.
pub(crate) fn nvrtc() -> SearchPath {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let mut toolkits: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(variable)
        .collect();
    toolkits.push(PathBuf::from("/usr/local/cuda"));
    let mut python_prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(variable)
        .collect();
    let program = std::env::current_exe().ok();
    python_prefixes.extend(program.as_deref().and_then(checkout_environment));
    SearchPath {
        library: variable("TILEWRIGHT_NVRTC").map(|p| std::path::absolute(&p).unwrap_or(p)),
        toolkits,
        python_prefixes,
    }
}

/// The environment beside the folder that Cargo builds into. No other folder above the program is looked in: in some everybody may write.
fn checkout_environment(program: &Path) -> Option<PathBuf> {
    let target = program.ancestors().find(|a| a.ends_with("target"))?;
    Some(target.parent()?.join(".venv"))
}

/// Where compiled kernels are kept between runs: `TILEWRIGHT_CACHE`, or `tilewright` in the user's cache folder.
pub(crate) fn cache() -> Option<PathBuf> {
    let chosen = std::env::var_os("TILEWRIGHT_CACHE").filter(|v| !v.is_empty());
    let own = || Some(user_folder("XDG_CACHE_HOME", ".cache")?.join("tilewright"));
    chosen.map(PathBuf::from).or_else(own)
}

/// Where GPUs are locked, in the user's cache folder, wherever compiled kernels are kept: everybody who times for this user finds them there.
pub(crate) fn locks() -> Option<PathBuf> {
    Some(user_folder("XDG_CACHE_HOME", ".cache")?.join("tilewright/gpus"))
}

/// The user's log, in the user's data folder.
pub(crate) fn log() -> Option<PathBuf> {
    let data = user_folder("XDG_DATA_HOME", ".local/share")?;
    Some(data.join("tilewright").join("trials.sqlite"))
}

/// A folder of the XDG base directory specification, by its variable, or where it is below the user's own. The specification says that
/// a relative one is none.
fn user_folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
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

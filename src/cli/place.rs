//! Where things are on this machine: NVRTC, caches, the worker program.

use crate::cli::Failure;
use device::nvrtc::SearchPath;
use std::path::{Path, PathBuf};

/// Where to look for NVRTC, in this order: `TILEWRIGHT_NVRTC`; where the system's loader looks; `CUDA_HOME`, `CUDA_PATH`,
/// `/usr/local/cuda`; the Python environments `VIRTUAL_ENV`, `CONDA_PREFIX`, `.venv` here and above the executable.
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
    python_prefixes.push(PathBuf::from(".venv"));
    if let Ok(program) = std::env::current_exe() {
        python_prefixes.extend(program.ancestors().skip(1).map(|above| above.join(".venv")));
    }
    SearchPath {
        library: variable("TILEWRIGHT_NVRTC"),
        toolkits,
        python_prefixes,
    }
}

/// Where compiled kernels are kept between runs: `TILEWRIGHT_CACHE`, or `tilewright` in the user's cache folder.
pub(crate) fn cache() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    if let Some(chosen) = folder("TILEWRIGHT_CACHE") {
        return Some(PathBuf::from(chosen));
    }
    if let Some(cache) = folder("XDG_CACHE_HOME") {
        return Some(PathBuf::from(cache).join("tilewright"));
    }
    folder("HOME").map(|home| PathBuf::from(home).join(".cache/tilewright"))
}

/// This program, which is also its own worker.
pub(crate) fn worker() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|e| Failure::refused(format!("the path of this program is unknown: {e}")))
}

/// Reads and parses a program.
pub(crate) fn program(path: &Path) -> Result<ir::Program, Failure> {
    ir::text::parse(&text(path)?, &path.display().to_string()).map_err(Failure::refused)
}

/// Reads a text.
pub(crate) fn text(path: &Path) -> Result<String, Failure> {
    let refuse = |e: &dyn std::fmt::Display| Failure::refused(format!("{}: {e}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| refuse(&e))?;
    String::from_utf8(bytes).map_err(|e| refuse(&format!("not UTF-8 text: {}", e.utf8_error())))
}

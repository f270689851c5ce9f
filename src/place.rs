//! Where things are on a machine: NVRTC, the user's caches and log.
//!
//! Environment variables say it, and this module reads none: whoever asks passes a way to look them up, and so decides which count.

use device::nvrtc::SearchPath;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What is known of the machine.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The value of an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The program that runs, if its path is known.
    pub program: Option<&'a Path>,
}

impl Place<'_> {
    /// Where to look for NVRTC, in this order: `TILEWRIGHT_NVRTC`; where the system's loader looks; `CUDA_HOME`, `CUDA_PATH`,
    /// `/usr/local/cuda`; the Python environments `VIRTUAL_ENV`, `CONDA_PREFIX`, and `.venv` of the checkout that the program was built
    /// in. Nothing depends on the current folder, but for `TILEWRIGHT_NVRTC` where it is given as a relative path: that is asked for.
    pub fn nvrtc(&self) -> SearchPath {
        let variable = |name: &str| {
            (self.variable)(name)
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
        python_prefixes.extend(self.program.and_then(checkout_environment));
        SearchPath {
            library: variable("TILEWRIGHT_NVRTC").map(|p| std::path::absolute(&p).unwrap_or(p)),
            toolkits,
            python_prefixes,
        }
    }

    /// Where compiled kernels are kept between runs: `TILEWRIGHT_CACHE`, or `tilewright` in the user's cache folder.
    pub fn cache(&self) -> Option<PathBuf> {
        let chosen = (self.variable)("TILEWRIGHT_CACHE").filter(|v| !v.is_empty());
        let own = || {
            Some(
                self.user_folder("XDG_CACHE_HOME", ".cache")?
                    .join("tilewright"),
            )
        };
        chosen.map(PathBuf::from).or_else(own)
    }

    /// Where GPUs are locked, in the user's cache folder, wherever compiled kernels are kept: everybody who times for this user finds them there.
    pub fn locks(&self) -> Option<PathBuf> {
        let own = self.user_folder("XDG_CACHE_HOME", ".cache")?;
        Some(own.join("tilewright/gpus"))
    }

    /// The user's log, in the user's data folder.
    pub fn log(&self) -> Option<PathBuf> {
        let data = self.user_folder("XDG_DATA_HOME", ".local/share")?;
        Some(data.join("tilewright").join("trials.sqlite"))
    }

    /// The user's database of artifacts, in the user's data folder.
    pub fn artifacts(&self) -> Option<PathBuf> {
        let data = self.user_folder("XDG_DATA_HOME", ".local/share")?;
        Some(data.join("tilewright").join("artifacts.sqlite"))
    }

    /// A folder of the XDG base directory specification, by its variable, or where it is below the user's own. The specification says that
    /// a relative one is none.
    fn user_folder(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let absolute = |name: &str| {
            (self.variable)(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
    }
}

/// The environment beside the folder that Cargo builds into. No other folder above the program is looked in: in some everybody may write.
fn checkout_environment(program: &Path) -> Option<PathBuf> {
    let target = program.ancestors().find(|a| a.ends_with("target"))?;
    Some(target.parent()?.join(".venv"))
}

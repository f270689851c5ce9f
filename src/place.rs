//! Where things are on a machine: NVRTC, the user's caches and log.
//!
//! Environment variables say it, and this module reads none: whoever asks passes a way to look them up, and so decides which count.

use crate::campaign::Url;
use crate::files;
use device::nvrtc::SearchPath;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
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

    /// The password for a database on a server, where its address has none, as PostgreSQL's own programs look for it: `PGPASSWORD`, or the file `PGPASSFILE`, or
    /// `.pgpass` in the user's folder, if nobody else may read it.
    pub fn password(&self, url: &Url) -> Option<String> {
        let variable = |name: &str| (self.variable)(name).filter(|v| !v.is_empty());
        if let Some(password) = variable("PGPASSWORD") {
            return password.into_string().ok();
        }
        let home = variable("HOME").map(PathBuf::from);
        let file = variable("PGPASSFILE").map(PathBuf::from);
        let file = file.or_else(|| Some(home?.join(".pgpass")))?;
        let found = std::fs::metadata(&file).ok()?;
        if found.permissions().mode() & 0o077 != 0 {
            return None;
        }
        let text = files::read_text(&file, MOST_PASSWORDS).ok()?;
        let (host, port) = url.host();
        let asked = [&host, &port.to_string(), url.database(), url.user()];
        text.lines().find_map(|line| password_of(line, &asked))
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

/// A file of passwords that is longer is none.
const MOST_PASSWORDS: u64 = 1 << 20;

/// The password of a line `host:port:database:user:password`, if it is about these; a star is about all. Colons and backslashes have a backslash before them.
fn password_of(line: &str, asked: &[&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ':' if fields.len() <= asked.len() => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(letters.next()),
            letter => fields.last_mut()?.push(letter),
        }
    }
    let password = fields.pop()?;
    let fits = |(field, asked): (&String, &&str)| field == "*" || field == *asked;
    (fields.len() == asked.len() && fields.iter().zip(asked).all(fits)).then_some(password)
}

/// The environment beside the folder that Cargo builds into. No other folder above the program is looked in: in some everybody may write.
fn checkout_environment(program: &Path) -> Option<PathBuf> {
    let target = program.ancestors().find(|a| a.ends_with("target"))?;
    Some(target.parent()?.join(".venv"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_those_of_their_servers() {
        let asked = ["db", "5432", "night", "ann"];
        for (line, password) in [
            ("db:5432:night:ann:secret", Some("secret")),
            ("*:*:*:ann:a\\:b\\\\c:d", Some("a:b\\c:d")),
            ("db:5433:night:ann:secret", None),
            ("# db:5432:night:ann:secret", None),
            ("db:5432:night:ann", None),
            ("", None),
        ] {
            let found = password_of(line, &asked);
            assert_eq!(found.as_deref(), password, "{line}");
        }
    }
}

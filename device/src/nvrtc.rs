//! CUDA text to a cubin, and what the assembler said about each kernel.
//!
//! The options are fixed, apart from the architecture: see [`Options::arguments`]. Fast-math is never among them, because it
//! changes what a kernel computes behind the back of the verifier. This module reads the log; whether a defect is a reason to
//! reject a kernel is its caller's to say.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::nvrtc_ffi::{Api, COMPILATION, Failure};

/// Where to look for NVRTC. The places are tried in the order of the fields, the system's loader between the first two; an explicit
/// library is the only place if given. Relative paths are not looked in: what is in the current folder is not run unasked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SearchPath {
    /// The library itself, or the folder that holds it.
    pub library: Option<PathBuf>,
    /// Roots of CUDA toolkits, with `lib64` or `lib` below.
    pub toolkits: Vec<PathBuf>,
    /// Prefixes of Python installations, with `lib/python3.*/site-packages` below.
    pub python_prefixes: Vec<PathBuf>,
}

/// No NVRTC was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("nvrtc was not found; install it with `pip install nvidia-cuda-nvrtc` or give the path of libnvrtc.so; tried: {}", tried.join("; "))]
pub struct NotFound {
    /// Each place with its reason.
    pub tried: Vec<String>,
}

/// Why a text was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum CompileError {
    /// There is no compiler.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The compiler or the assembler refused the text.
    #[error("the CUDA text does not compile:\n{log}")]
    Refused {
        /// What they said.
        log: String,
    },
    /// The architecture is not a real one (`sm_` and digits, then perhaps `a` or `f`).
    #[error("expected a real architecture such as sm_90a, found `{arch}`")]
    Architecture {
        /// What was given.
        arch: String,
    },
    /// The text holds a zero character.
    #[error("the CUDA text holds a zero character")]
    ZeroCharacter,
    /// A function of the library failed for another reason.
    #[error("{call} failed: {message}")]
    Library {
        /// The function.
        call: String,
        /// The library's words.
        message: String,
    },
    /// The process that compiled was lost.
    #[error("compiling failed: {0}")]
    Worker(#[from] crate::worker::WorkerError),
}

impl CompileError {
    /// Whether it is the text's fault, so that the same compiler says the same anywhere.
    pub fn is_of_text(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::ZeroCharacter => true,
            Self::NotFound(_)
            | Self::Architecture { .. }
            | Self::Library { .. }
            | Self::Worker(_) => false,
        }
    }
}

/// Turns off the cache that NVRTC keeps where a driver is installed.
const NO_CACHE: &str = "--no-cache";
/// Optimises the kernels of a text in so many parts, each on a thread. What becomes of a kernel may depend on the number, so that it is the same everywhere.
const SPLIT: &str = "--split-compile=16";
/// Kernels from which a text is compiled in parts.
const SPLIT_FROM: usize = 4;
/// What a kernel begins with.
const KERNEL: &str = "__global__ void";

/// The few things about a compilation that can be chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Options {
    /// Line numbers in the cubin, for profilers.
    pub line_info: bool,
    /// Whether each operation rounds by itself: no `a * b + c` is contracted that the text does not fuse.
    #[serde(default)]
    pub unfused: bool,
}

impl Options {
    /// The command line that NVRTC sees.
    ///
    /// | option | why |
    /// |---|---|
    /// | `--gpu-architecture=sm_…` | a real architecture: the result is machine code |
    /// | `--std=c++17` | the language of the device headers |
    /// | `-default-device` | functions without an annotation are device functions |
    /// | `--ptxas-options=-v` | registers, spills, stack and shared memory of each kernel in the log |
    /// | `--no-cache` | NVRTC's own cache forgets the log; left out where the library does not know it |
    /// | `--split-compile=16` | a text of four kernels or more in parts, on several cores; left out where the library does not know it |
    /// | `-lineinfo` | if asked for |
    /// | `--fmad=false` | if asked for; else `a * b + c` may be contracted to one operation, the compiler's default |
    pub fn arguments(&self, arch: &str, source: &str) -> Vec<String> {
        let mut arguments: Vec<String> = vec![
            format!("--gpu-architecture={arch}"),
            "--std=c++17".into(),
            "-default-device".into(),
            "--ptxas-options=-v".into(),
            NO_CACHE.into(),
        ];
        if source.matches(KERNEL).count() >= SPLIT_FROM {
            arguments.push(SPLIT.into());
        }
        if self.line_info {
            arguments.push("-lineinfo".into());
        }
        if self.unfused {
            arguments.push("--fmad=false".into());
        }
        arguments
    }
}

/// What the assembler said about one function of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStats {
    /// Its (mangled) name.
    pub name: String,
    /// Whether it can be launched; the others are functions that were not inlined.
    pub entry: bool,
    /// Registers of a thread; zero for functions that are no entries.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Local memory that the text asked for (arrays with a variable index), of a thread, in bytes.
    pub stack_bytes: u32,
    /// Bytes of the stores that spill registers.
    pub spill_stores: u32,
    /// Bytes of the loads that bring them back.
    pub spill_loads: u32,
    /// Named barriers in use.
    pub barriers: u32,
}

/// A compiled program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiled {
    /// Machine code for one architecture: an ELF file.
    #[serde(with = "crate::hex")]
    pub cubin: Vec<u8>,
    /// The whole log.
    pub log: String,
    /// One per function, in the order of the log.
    pub kernels: Vec<KernelStats>,
}

/// A sign in the log that a kernel does not run as its schedule means it to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Defect {
    /// Registers live in memory.
    #[error("`{kernel}` spills registers: {stores} bytes of stores, {loads} bytes of loads")]
    Spill {
        /// Which function.
        kernel: String,
        /// Bytes stored.
        stores: u32,
        /// Bytes loaded.
        loads: u32,
    },
    /// Variables live in memory.
    #[error("`{kernel}` has a stack frame of {bytes} bytes")]
    Stack {
        /// Which function.
        kernel: String,
        /// Its size.
        bytes: u32,
    },
    /// The assembler warns of lost performance (matrix instructions that are serialised are the known case).
    #[error("the assembler warns: {message}")]
    Performance {
        /// The line of the log.
        message: String,
    },
}

impl Compiled {
    /// Reads the statistics from a log.
    pub fn new(cubin: Vec<u8>, log: String) -> Self {
        let kernels = parse_log(&log);
        Self {
            cubin,
            log,
            kernels,
        }
    }

    /// The statistics of an entry point.
    pub fn kernel(&self, entry: &str) -> Option<&KernelStats> {
        self.kernels
            .iter()
            .find(|kernel| kernel.entry && kernel.name == entry)
    }

    /// Spills, stack frames and warnings of lost performance, in the order of the log.
    pub fn defects(&self) -> Vec<Defect> {
        let mut defects = Vec::new();
        for kernel in &self.kernels {
            let name = &kernel.name;
            if kernel.spill_stores > 0 || kernel.spill_loads > 0 {
                defects.push(Defect::Spill {
                    kernel: name.clone(),
                    stores: kernel.spill_stores,
                    loads: kernel.spill_loads,
                });
            }
            if kernel.stack_bytes > 0 {
                defects.push(Defect::Stack {
                    kernel: name.clone(),
                    bytes: kernel.stack_bytes,
                });
            }
        }
        let slow =
            |line: &&str| line.contains("Potential Performance Loss") || line.contains("serializ");
        defects.extend(
            self.log
                .lines()
                .filter(slow)
                .map(|line| Defect::Performance {
                    message: line.trim().to_owned(),
                }),
        );
        defects
    }
}

/// An opened NVRTC.
pub struct Nvrtc {
    api: Api,
    version: (i32, i32),
    path: PathBuf,
    /// Options that it does not know.
    unknown: Vec<&'static str>,
}

impl Nvrtc {
    /// Opens the first library that can be opened.
    pub fn open(search: &SearchPath) -> Result<Self, NotFound> {
        let (candidates, mut tried) = candidates(search);
        for path in candidates {
            let builtins = builtins_beside(&path);
            match Api::open(&path, builtins.as_deref()) {
                Ok(api) => match api.version() {
                    Ok(version) => {
                        let mut unknown = vec![NO_CACHE, SPLIT];
                        unknown.retain(|option| !knows(&api, option));
                        return Ok(Self {
                            api,
                            version,
                            path,
                            unknown,
                        });
                    }
                    Err(Failure { call, code }) => {
                        tried.push(format!("{}: {call} returned {code}", path.display()))
                    }
                },
                Err(error) => tried.push(format!("{}: {error}", path.display())),
            }
        }
        Err(NotFound { tried })
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The path or bare name under which the library was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles one header-free text for one real architecture.
    pub fn compile(
        &self,
        source: &str,
        arch: &str,
        options: &Options,
    ) -> Result<Compiled, CompileError> {
        if !is_real_architecture(arch) {
            return Err(CompileError::Architecture {
                arch: arch.to_owned(),
            });
        }
        let text = CString::new(source).map_err(|_| CompileError::ZeroCharacter)?;
        let arguments: Vec<CString> = options
            .arguments(arch, source)
            .into_iter()
            .filter(|argument| !self.unknown.contains(&argument.as_str()))
            .map(CString::new)
            .collect::<Result<_, _>>()
            .map_err(|_| CompileError::ZeroCharacter)?;
        let program = self
            .api
            .program(&text, c"program.cu")
            .map_err(|failure| self.error(&failure))?;
        let outcome = program.compile(&arguments);
        let log = program.log().map_err(|failure| self.error(&failure))?;
        match outcome {
            Ok(()) => {}
            Err(Failure {
                code: COMPILATION, ..
            }) => return Err(CompileError::Refused { log }),
            Err(failure) => {
                let message = format!("{}\n{log}", self.api.describe(failure.code));
                return Err(CompileError::Library {
                    call: failure.call.to_owned(),
                    message,
                });
            }
        }
        let cubin = program.cubin().map_err(|failure| self.error(&failure))?;
        if !cubin.starts_with(b"\x7fELF") {
            return Err(CompileError::Library {
                call: "nvrtcGetCUBIN".into(),
                message: format!("{} bytes that are no ELF file", cubin.len()),
            });
        }
        let compiled = Compiled::new(cubin, log);
        let said = compiled.kernels.iter().filter(|k| k.entry).count();
        let asked = source.matches(KERNEL).count();
        if said < asked {
            return Err(CompileError::Library {
                call: "nvrtcCompileProgram".into(),
                message: format!("the log tells of {said} of {asked} kernels"),
            });
        }
        Ok(compiled)
    }

    fn error(&self, failure: &Failure) -> CompileError {
        CompileError::Library {
            call: failure.call.to_owned(),
            message: self.api.describe(failure.code),
        }
    }
}

/// Whether the library takes an option.
fn knows(api: &Api, option: &str) -> bool {
    let option = CString::new(option).map(|o| [o]);
    let program = api.program(c"", c"empty.cu");
    matches!((option, program), (Ok(o), Ok(p)) if p.compile(&o).is_ok())
}

/// `sm_` and digits, then perhaps a letter for an architecture's own features.
fn is_real_architecture(arch: &str) -> bool {
    let Some(rest) = arch.strip_prefix("sm_") else {
        return false;
    };
    let digits = rest.strip_suffix(['a', 'f']).unwrap_or(rest);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The files and bare names to try, in order, and what to say of places that are none.
fn candidates(search: &SearchPath) -> (Vec<PathBuf>, Vec<String>) {
    let mut refused = Vec::new();
    let mut refuse = |path: &Path, why: &str| refused.push(format!("{}: {why}", path.display()));
    let relative = "a relative path, expected an absolute one";
    if let Some(library) = &search.library {
        let found = match library {
            path if path.is_relative() => {
                refuse(path, relative);
                Vec::new()
            }
            path if path.is_dir() => {
                let found = libraries_in(path);
                if found.is_empty() {
                    refuse(path, "a folder without libnvrtc.so");
                }
                found
            }
            path if path.is_file() => vec![path.clone()],
            path => {
                refuse(path, "neither a file nor a folder");
                Vec::new()
            }
        };
        return (found, refused);
    }
    let mut absolute = |path: &&PathBuf| {
        if path.is_relative() {
            refuse(path, relative);
        }
        path.is_absolute()
    };
    let mut found: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    for toolkit in search.toolkits.iter().filter(&mut absolute) {
        found.extend(
            ["lib64", "lib", "targets/x86_64-linux/lib"]
                .iter()
                .flat_map(|folder| libraries_in(&toolkit.join(folder))),
        );
    }
    for prefix in search.python_prefixes.iter().filter(&mut absolute) {
        for python in sorted_entries(&prefix.join("lib"), "python3") {
            let nvidia = python.join("site-packages/nvidia");
            found.extend(
                ["cu13/lib", "cuda_nvrtc/lib"]
                    .iter()
                    .flat_map(|folder| libraries_in(&nvidia.join(folder))),
            );
        }
    }
    (found, refused)
}

/// The bare names, newest first; the last is the development link.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    NAMES
        .iter()
        .map(|name| folder.join(name))
        .filter(|path| path.is_file())
        .collect()
}

/// NVRTC's second library, in the same folder and of the same major version where the name says it.
fn builtins_beside(library: &Path) -> Option<PathBuf> {
    let folder = library
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())?;
    let major = library
        .file_name()?
        .to_str()?
        .strip_prefix("libnvrtc.so")
        .unwrap_or("")
        .to_owned();
    let found = sorted_entries(folder, "libnvrtc-builtins.so");
    let same = found.iter().find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().contains(&format!("so{major}.")))
    });
    same.or(found.first()).cloned()
}

fn sorted_entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// Reads the assembler's verbose lines. Unknown lines are passed over: the log also holds the compiler's warnings.
fn parse_log(log: &str) -> Vec<KernelStats> {
    let mut kernels: Vec<KernelStats> = Vec::new();
    // "Used … registers" belongs to the last entry, the line of the stack frame to the last "Function properties".
    let (mut entry, mut function) = (None, None);
    for line in log.lines() {
        if let Some(name) = quoted_after(line, "Compiling entry function '") {
            let index = index_of(&mut kernels, name);
            kernels[index].entry = true;
            entry = Some(index);
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            function = Some(index_of(&mut kernels, name.trim()));
        } else if let (Some(index), Some(stack)) =
            (function, number_before(line, " bytes stack frame"))
        {
            kernels[index].stack_bytes = stack;
            kernels[index].spill_stores = number_before(line, " bytes spill stores").unwrap_or(0);
            kernels[index].spill_loads = number_before(line, " bytes spill loads").unwrap_or(0);
        } else if let (Some(index), Some(registers)) = (entry, number_before(line, " registers")) {
            kernels[index].registers = registers;
            kernels[index].barriers = number_before(line, " barriers").unwrap_or(0);
            kernels[index].shared_bytes = number_before(line, " bytes smem").unwrap_or(0);
        }
    }
    kernels
}

fn index_of(kernels: &mut Vec<KernelStats>, name: &str) -> usize {
    kernels
        .iter()
        .position(|kernel| kernel.name == name)
        .unwrap_or_else(|| {
            kernels.push(KernelStats {
                name: name.to_owned(),
                ..KernelStats::default()
            });
            kernels.len() - 1
        })
}

fn quoted_after<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    line.split_once(marker)?
        .1
        .split_once('\'')
        .map(|(name, _)| name)
}

/// The number that ends just before `marker`.
fn number_before(line: &str, marker: &str) -> Option<u32> {
    let before = line.split_once(marker)?.0;
    let start = before
        .rfind(|character: char| !character.is_ascii_digit())
        .map_or(0, |index| index + 1);
    before.get(start..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_places_are_named_and_not_looked_in() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = folder.path().join("lib64/libnvrtc.so.13");
        std::fs::create_dir_all(folder.path().join("lib64")).expect("writable");
        std::fs::write(&library, "").expect("writable");
        // From here to there, as somebody would write it.
        let depth = std::env::current_dir()
            .expect("a folder")
            .ancestors()
            .count();
        let up = PathBuf::from("../".repeat(depth - 1));
        let relative = up.join(folder.path().strip_prefix("/").expect("absolute"));
        assert!(relative.join("lib64/libnvrtc.so.13").is_file());
        let of = |search: SearchPath| candidates(&search);
        let (found, refused) = of(SearchPath {
            toolkits: vec![relative.clone(), folder.path().to_path_buf()],
            python_prefixes: vec![".venv".into()],
            ..SearchPath::default()
        });
        let bare = NAMES.iter().map(PathBuf::from);
        assert_eq!(
            found,
            bare.chain([library.clone()]).collect::<Vec<PathBuf>>()
        );
        assert_eq!(refused.len(), 2);
        assert!(
            refused[1].starts_with(".venv: a relative path"),
            "{refused:?}"
        );
        for (given, found, refused) in [
            (library.clone(), 1, ""),
            (folder.path().join("lib64"), 1, ""),
            (relative.join("lib64"), 0, "a relative path"),
            ("libnvrtc.so.13".into(), 0, "a relative path"),
            (
                folder.path().to_path_buf(),
                0,
                "a folder without libnvrtc.so",
            ),
            (folder.path().join("none"), 0, "neither a file nor a folder"),
            ("/dev/null".into(), 0, "neither a file nor a folder"),
        ] {
            let (all, why) = of(SearchPath {
                library: Some(given.clone()),
                ..SearchPath::default()
            });
            assert_eq!(all.len(), found, "{}", given.display());
            assert!(why.concat().contains(refused), "{why:?}");
        }
    }
}

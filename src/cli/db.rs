//! `db`: the database of artifacts.

use crate::cli::{Failure, place};
use clap::{Args, Subcommand};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tilewright::artifact::{Artifact, Destination, GivesWay, file};
use tilewright::store::{Entry, Files, Store, Which};

/// Digits of a seal that tell an artifact's folder from others.
pub(crate) const DIGITS: usize = 12;

/// What can be done with a database.
#[derive(Args)]
pub(crate) struct Db {
    /// The database [default: tilewright/artifacts.sqlite in XDG_DATA_HOME or ~/.local/share]
    #[arg(long, value_name = "FILE", global = true)]
    db: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Lists artifacts: of each program and target the verified ones first, then the fastest
    Ls {
        #[command(flatten)]
        which: Meant,
        /// Prints one JSON array instead of text
        #[arg(long)]
        json: bool,
    },
    /// Shows what one artifact says of itself: its manifest
    Show {
        /// The first digits of its seal
        #[arg(value_name = "SEAL")]
        seal: String,
    },
    /// Prints what was timed for the programs of artifacts: a JSON object a line, as `log --format jsonl` does
    Log {
        #[command(flatten)]
        which: Meant,
    },
    /// Adds what other databases have
    Merge {
        /// The others, which stay as they are
        #[arg(required = true)]
        others: Vec<PathBuf>,
    },
    /// Writes artifacts as folders
    Export {
        /// Where to put them, a folder each
        folder: PathBuf,
        #[command(flatten)]
        which: Meant,
    },
    /// Adds artifacts from folders
    Import {
        /// Artifacts, or folders with artifacts in them
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
    /// Removes all but the best of each program and target, of those timed in one place, and of those simulated
    Prune {
        /// So many stay
        #[arg(long, value_name = "N", default_value_t = 1)]
        keep: usize,
    },
}

/// Which artifacts are meant.
#[derive(Args)]
struct Meant {
    /// Of this program alone: its name, or the first digits of its hash, eight at least
    #[arg(long, value_name = "NAME|HASH")]
    program: Option<String>,
    /// For this target alone
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
}

impl Meant {
    fn which(&self) -> Which {
        Which {
            program: self.program.clone(),
            target: self.target.clone(),
            seal: None,
        }
    }
}

impl Db {
    /// Whether results are JSON.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self.what, What::Ls { json: true, .. })
    }
}

/// Does what was asked.
pub(crate) fn db(arguments: &Db) -> Result<String, Failure> {
    let path = arguments.db.clone().or_else(place::artifacts);
    let path = path.ok_or_else(|| {
        Failure::refused(
            "neither XDG_DATA_HOME nor HOME says where the database is: name it by --db",
        )
    })?;
    let there = || Store::to_read(&path).map_err(Failure::refused);
    let s = |n: usize| if n == 1 { "" } else { "s" };
    match &arguments.what {
        What::Ls { which, json } => {
            let found = there()?.list(&which.which()).map_err(Failure::refused)?;
            if *json {
                let text = serde_json::to_string(&found).map_err(Failure::refused)?;
                return Ok(text + "\n");
            }
            let count = found.len();
            let lines: String = found.iter().map(line).collect();
            Ok(format!(
                "{lines}{count} artifact{} in {}\n",
                s(count),
                path.display()
            ))
        }
        What::Show { seal } => {
            let (store, entry) = (there()?, one(&there()?, seal)?);
            let files = store.files(&entry.seal).map_err(Failure::refused)?;
            text(&files, file::MANIFEST)
        }
        What::Log { which } => {
            let store = there()?;
            let found = store.list(&which.which()).map_err(Failure::refused)?;
            let programs: BTreeSet<&String> = found.iter().map(|e| &e.program_hash).collect();
            let mut text = String::new();
            for program in programs {
                for trial in store.trials(program).map_err(Failure::refused)? {
                    text += &serde_json::to_string(&trial).map_err(Failure::refused)?;
                    text.push('\n');
                }
            }
            Ok(text)
        }
        What::Merge { others } => {
            let others: Result<Vec<Store>, _> = others.iter().map(|o| Store::to_read(o)).collect();
            let others = others.map_err(Failure::refused)?;
            let mut store = Store::open(&path).map_err(Failure::refused)?;
            let mut new = 0;
            for other in &others {
                new += store.merge(other).map_err(Failure::refused)?;
            }
            Ok(format!(
                "{new} new artifact{} in {}\n",
                s(new),
                path.display()
            ))
        }
        What::Export { folder, which } => {
            let store = there()?;
            let found = store.list(&which.which()).map_err(Failure::refused)?;
            let place = |entry: &Entry| {
                let digits = &entry.seal[..DIGITS];
                folder.join(format!("{}-{}-{digits}", entry.program, entry.target))
            };
            // Everything that can be refused is refused before anything is written.
            for entry in &found {
                destination(&store, entry, &place(entry), GivesWay::Same)?;
            }
            for entry in &found {
                write(&store, entry, &place(entry), GivesWay::Same)?;
            }
            let count = found.len();
            Ok(format!(
                "{count} artifact{} in {}\n",
                s(count),
                folder.display()
            ))
        }
        What::Import { folders } => {
            let mut all = Vec::new();
            for folder in folders {
                all.extend(artifacts(folder)?);
            }
            let mut store = Store::open(&path).map_err(Failure::refused)?;
            let mut new = 0;
            for artifact in &all {
                new += usize::from(store.add(artifact).map_err(Failure::refused)?);
            }
            Ok(format!(
                "{new} new artifact{} in {}\n",
                s(new),
                path.display()
            ))
        }
        What::Prune { keep } => {
            let gone = there()?.prune(*keep).map_err(Failure::refused)?;
            Ok(format!(
                "{gone} artifact{} removed from {}\n",
                s(gone),
                path.display()
            ))
        }
    }
}

fn line(entry: &Entry) -> String {
    let state = match entry.verified {
        true => "verified",
        false => "simulated",
    };
    let (seal, hash) = (&entry.seal[..DIGITS], &entry.program_hash[..DIGITS]);
    let (program, target, us) = (&entry.program, &entry.target, entry.us);
    let place = (entry.timed_on.iter()).map(|place| format!("  timed on {place}"));
    let place: String = place.collect();
    format!("{seal}  {program} ({hash})  {target}  {us:.1} us  {state}{place}\n")
}

/// The artifact whose seal begins so.
fn one(store: &Store, seal: &str) -> Result<Entry, Failure> {
    let which = Which {
        seal: Some(seal.to_ascii_lowercase()),
        ..Which::default()
    };
    let found = store.list(&which).map_err(Failure::refused)?;
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Failure::refused(format!(
            "no artifact has a seal that begins with `{seal}`"
        ))),
        more => {
            let count = more.len();
            Err(Failure::refused(format!(
                "{count} artifacts have seals that begin with `{seal}`: say more digits"
            )))
        }
    }
}

/// A text of an artifact.
pub(crate) fn text(files: &Files, name: &str) -> Result<String, Failure> {
    let bytes = files.iter().find(|f| f.0 == name).map(|f| f.1.clone());
    String::from_utf8(bytes.unwrap_or_default()).map_err(Failure::refused)
}

/// Writes an artifact of a database.
pub(crate) fn write(
    store: &Store,
    entry: &Entry,
    place: &Path,
    gives_way: GivesWay,
) -> Result<(), Failure> {
    let (destination, files) = destination(store, entry, place, gives_way)?;
    let files: Vec<(&str, Vec<u8>)> =
        (files.iter().map(|(n, b)| (n.as_str(), b.clone()))).collect();
    destination.write(&files).map_err(Failure::refused)
}

/// Where an artifact may be written, and its files.
fn destination(
    store: &Store,
    entry: &Entry,
    place: &Path,
    gives_way: GivesWay,
) -> Result<(Destination, Files), Failure> {
    let files = store.files(&entry.seal).map_err(Failure::refused)?;
    let program = ir::parse(&text(&files, file::PROGRAM)?, &entry.program);
    let program = program.map_err(Failure::refused)?;
    let target = tilewright::target(&entry.target).map_err(Failure::refused)?;
    let destination = Destination::new(place, &program, &target, gives_way);
    Ok((destination.map_err(Failure::refused)?, files))
}

/// The artifact in a folder, or those in the folders of a folder.
fn artifacts(folder: &Path) -> Result<Vec<Artifact>, Failure> {
    if folder.join(file::MANIFEST).exists() {
        return Ok(vec![Artifact::read(folder).map_err(Failure::refused)?]);
    }
    let io = |e: std::io::Error| Failure::refused(format!("{}: {e}", folder.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        paths.push(entry.map_err(io)?.path());
    }
    paths.sort();
    paths.retain(|path| path.join(file::MANIFEST).exists());
    if paths.is_empty() {
        return Err(Failure::refused(format!(
            "{}: no artifact is in it",
            folder.display()
        )));
    }
    let read = paths.iter().map(|path| Artifact::read(path));
    read.collect::<Result<_, _>>().map_err(Failure::refused)
}

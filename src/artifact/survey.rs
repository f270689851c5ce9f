//! What a folder holds: nothing, an artifact and nothing else, or something that must stay.

use super::stored::read_regular;
use super::{FORMAT, Manifest, file, hash};
use crate::files::kind;
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What Python makes of the wrapper when it is imported.
const PYTHON_CACHE: &str = "__pycache__";
/// How often a folder is looked at that is replaced meanwhile.
const ATTEMPTS: usize = 100;

/// What is at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Survey {
    /// Nothing.
    Nothing,
    /// A folder without entries.
    Empty,
    /// An artifact, of this format or another, as it was written, and nothing else.
    Artifact(Identity),
    /// Something else: what, an entry each.
    Other(Vec<String>),
}

/// What an artifact computes, and for which target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The program's name, for people.
    pub(super) name: String,
    /// [`hash`] of the program's text.
    pub(super) program: String,
    /// The target's name.
    pub(super) target: String,
}

impl Identity {
    /// Whether the other is of the same program, by its text, and of the same target.
    pub(super) fn is(&self, other: &Self) -> bool {
        (&self.program, &self.target) == (&other.program, &other.target)
    }

    /// For people, who know the other one.
    pub(super) fn beside(&self, other: &Self) -> String {
        let another = if self.name == other.name && self.program != other.program {
            "another program "
        } else {
            ""
        };
        format!("{another}`{}` for {}", self.name, self.target)
    }
}

/// The entries of a folder.
pub(super) struct Entries {
    /// Regular files with names that an artifact's files have, in order.
    pub(super) ours: Vec<&'static str>,
    /// What an artifact does not have, for people.
    pub(super) others: Vec<String>,
    /// What Python left of the wrapper, within [`PYTHON_CACHE`].
    compiled: Option<Vec<String>>,
}

/// Looks at a place.
///
/// # Errors
/// The system's.
pub(super) fn survey(path: &Path) -> io::Result<Survey> {
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    for _ in 0..ATTEMPTS {
        match fs::symlink_metadata(path) {
            Err(e) if gone(&e) => return Ok(Survey::Nothing),
            Err(e) => return Err(e),
            Ok(meta) if !meta.is_dir() => return Ok(Survey::Other(vec![kind(&meta).to_owned()])),
            Ok(_) => {}
        }
        let found = settled(path, || held(path))?;
        if !found.as_ref().is_err_and(gone) {
            return found;
        }
    }
    Err(restless())
}

/// Looks at a folder that another process may replace meanwhile: again where it did, so that what is seen is of one folder.
///
/// # Errors
/// A folder that is replaced all the time.
pub(super) fn settled<T>(path: &Path, mut look: impl FnMut() -> T) -> io::Result<T> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NONBLOCK;
    for _ in 0..ATTEMPTS {
        // As long as it is open no other folder gets its number.
        let Ok(open) = rustix::fs::open(path, flags, Mode::empty()).map(File::from) else {
            return Ok(look());
        };
        let before = open.metadata()?;
        let found = look();
        let same = |now: fs::Metadata| (now.dev(), now.ino()) == (before.dev(), before.ino());
        if fs::metadata(path).is_ok_and(same) {
            return Ok(found);
        }
    }
    Err(restless())
}

/// What is said of a folder that others replace whenever it is looked at.
pub(super) fn restless() -> io::Error {
    io::Error::other("the folder is replaced all the time")
}

/// What a folder holds.
fn held(path: &Path) -> io::Result<Survey> {
    let Entries {
        ours,
        mut others,
        compiled,
    } = entries(path)?;
    if ours.is_empty() && others.is_empty() && compiled.is_none() {
        return Ok(Survey::Empty);
    }
    let manifest = if ours.contains(&file::MANIFEST) {
        let claims = read_regular(&path.join(file::MANIFEST)).map(|text| claims(&text));
        claims.unwrap_or_else(|e| Err(e.to_string()))
    } else {
        Err("there is none".to_owned())
    };
    match manifest {
        Err(why) => {
            let known = ours.iter().filter(|name| **name != file::MANIFEST);
            others.extend(known.map(|name| format!("`{name}` that no manifest vouches for")));
            others.push(format!("no artifact's `{}`: {why}", file::MANIFEST));
        }
        Ok(claims) => {
            for name in ours.iter().filter(|name| **name != file::MANIFEST) {
                let found = match read_regular(&path.join(name)) {
                    Ok(bytes) => hash(&bytes),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
                    Err(e) => {
                        others.push(format!("`{name}`: {e}"));
                        continue;
                    }
                };
                match claims.files.get(*name) {
                    Some(recorded) if *recorded == found => {}
                    Some(_) => others.push(format!("`{name}` that was changed")),
                    None => others.push(format!("`{name}` that is not of this artifact")),
                }
            }
            let former = file::FORMER.map(|(former, now)| (now, former));
            let there = |name: &str| {
                ours.contains(&name) || former.iter().any(|f| f.0 == name && ours.contains(&f.1))
            };
            // The seal of another format is not known: there all files have to speak for the manifest.
            if !claims.sealed && !file::ALWAYS.into_iter().all(there) {
                let why = "not all files of the artifact are there";
                others.push(format!("`{}`: {why}", file::MANIFEST));
            }
            if others.is_empty() {
                return Ok(Survey::Artifact(claims.identity));
            }
        }
    }
    Ok(Survey::Other(others))
}

/// Removes a folder that [`survey`] calls an artifact or empty: the files by their names, so that nothing else goes with them.
///
/// # Errors
/// The system's; that the folder is not empty where something came to it.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    let found = entries(folder)?;
    for name in found.ours {
        fs::remove_file(folder.join(name))?;
    }
    if let Some(compiled) = found.compiled {
        let cache = folder.join(PYTHON_CACHE);
        for name in compiled {
            fs::remove_file(cache.join(name))?;
        }
        fs::remove_dir(cache)?;
    }
    fs::remove_dir(folder)
}

/// Sorts the entries of a folder.
pub(super) fn entries(folder: &Path) -> io::Result<Entries> {
    let mut found = Entries {
        ours: Vec::new(),
        others: Vec::new(),
        compiled: None,
    };
    for (name, meta) in listed(folder)? {
        let former = file::FORMER.iter().map(|(former, _)| former);
        match file::ALL.iter().chain(former).find(|known| **known == name) {
            Some(known) if meta.is_file() => found.ours.push(known),
            None if name == PYTHON_CACHE && meta.is_dir() => {
                let mut compiled = Vec::new();
                for (inner, meta) in listed(&folder.join(PYTHON_CACHE))? {
                    let wrapper = inner.starts_with("__init__.") && inner.ends_with(".pyc");
                    if wrapper && inner.is_ascii() && meta.is_file() {
                        compiled.push(inner);
                    } else {
                        let other = format!("`{PYTHON_CACHE}/{inner}` ({})", kind(&meta));
                        found.others.push(other);
                    }
                }
                found.compiled = Some(compiled);
            }
            Some(_) | None => found.others.push(format!("`{name}` ({})", kind(&meta))),
        }
    }
    Ok(found)
}

/// Names and kinds of what is in a folder, sorted. Names that are no text are shown as far as they are.
fn listed(folder: &Path) -> io::Result<BTreeMap<String, fs::Metadata>> {
    fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Ok((name, entry.metadata()?))
        })
        .collect()
}

/// What a manifest says that can be held against the files.
struct Claims {
    identity: Identity,
    /// Hashes by name.
    files: BTreeMap<String, String>,
    /// Whether its seal could be checked.
    sealed: bool,
}

/// Reads a manifest of this format or another.
///
/// # Errors
/// Why it is none.
fn claims(text: &[u8]) -> Result<Claims, String> {
    let value: Value = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let format = value.get("format").and_then(Value::as_u64);
    let format = format.ok_or("it has no `format`")?;
    let (name, target, files, sealed) = if format == u64::from(FORMAT) {
        let manifest: Manifest = serde_json::from_value(value).map_err(|e| e.to_string())?;
        if manifest.seal != manifest.sealed() || manifest.text().as_bytes() != text {
            return Err("it does not fit its seal".to_owned());
        }
        let target = manifest.target.name;
        (manifest.program, target, manifest.files, true)
    } else {
        let word = |value: Option<&Value>| Some(value?.as_str()?.to_owned());
        let read = || {
            let files = value.get("files")?.as_object()?.iter();
            let files = files.map(|(name, hash)| Some((name.clone(), word(Some(hash))?)));
            word(value.get("tilewright"))?;
            word(value.get("seal"))?;
            Some((
                word(value.get("program"))?,
                word(value.get("target")?.get("name"))?,
                files.collect::<Option<BTreeMap<String, String>>>()?,
                false,
            ))
        };
        read().ok_or_else(|| format!("of format {format} there is more"))?
    };
    let program = files.get(file::PROGRAM).cloned();
    let identity = Identity {
        name,
        program: program.ok_or_else(|| format!("it has no hash of {}", file::PROGRAM))?,
        target,
    };
    Ok(Claims {
        identity,
        files,
        sealed,
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use serde_json::json;
    use std::path::PathBuf;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("k");
        samples::put(&path, &samples::files("rows", "h200", 0));
        (above, path)
    }

    fn others(path: &Path) -> String {
        match survey(path).expect("readable") {
            Survey::Other(entries) => entries.join(", "),
            found @ (Survey::Nothing | Survey::Empty | Survey::Artifact(_)) => {
                panic!("not in the way: {found:?}")
            }
        }
    }

    #[test]
    fn an_artifact_is_one_with_what_python_leaves_of_it() {
        let (_above, path) = place();
        fs::create_dir(path.join(PYTHON_CACHE)).expect("writable");
        fs::write(path.join("__pycache__/__init__.cpython-311.opt-1.pyc"), "").expect("writable");
        let Ok(Survey::Artifact(found)) = survey(&path) else {
            panic!("it is an artifact")
        };
        assert_eq!(
            (found.name.as_str(), found.target.as_str()),
            ("rows", "h200")
        );
        remove(&path).expect("nothing else is there");
        assert_eq!(survey(&path).expect("readable"), Survey::Nothing);
    }

    #[test]
    fn nothing_and_an_empty_folder_hold_nothing() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("k");
        assert_eq!(survey(&path).expect("readable"), Survey::Nothing);
        fs::create_dir(&path).expect("writable");
        assert_eq!(survey(&path).expect("readable"), Survey::Empty);
    }

    #[test]
    fn whatever_else_is_there_is_in_the_way() {
        let file = |name: &'static str| move |path: &Path| fs::write(path.join(name), "mine");
        let folder = |name: &'static str| move |path: &Path| fs::create_dir_all(path.join(name));
        let link = |path: &Path| std::os::unix::fs::symlink("/", path.join("data"));
        type Change<'a> = &'a dyn Fn(&Path) -> io::Result<()>;
        for (change, part) in [
            (&file("notes.md") as Change<'_>, "`notes.md` (a file)"),
            (&folder(".git"), "`.git` (a folder)"),
            (&link, "`data` (a symbolic link)"),
            (&file("kernel.cu"), "`kernel.cu` that was changed"),
            (
                &file("kernel.cubin"),
                "`kernel.cubin` that is not of this artifact",
            ),
            (&folder("kernel.cubin"), "`kernel.cubin` (a folder)"),
            (&file(PYTHON_CACHE), "`__pycache__` (a file)"),
            (&folder("__pycache__/mine"), "`__pycache__/mine` (a folder)"),
            (
                &|path: &Path| fs::remove_file(path.join(file::MANIFEST)),
                "`program.lax` that no manifest vouches for",
            ),
            (&file("manifest.json"), "no artifact's `manifest.json`"),
        ] {
            let (_above, path) = place();
            change(&path).expect("writable");
            let found = others(&path);
            assert!(found.contains(part), "no `{part}` in: {found}");
        }
        let (above, path) = place();
        let file = path.join(file::TILE);
        assert_eq!(others(&file), "a file");
        std::os::unix::fs::symlink(&path, above.path().join("link")).expect("a link");
        assert_eq!(others(&above.path().join("link")), "a symbolic link");
    }

    #[test]
    fn a_manifest_by_its_look_alone_is_no_artifacts() {
        let hashes = |n: usize| -> Value {
            let names = file::ALWAYS.iter().take(n);
            names
                .map(|name| ((*name).to_owned(), json!(hash(b""))))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let like_ours = |files: Value| {
            let target = json!({"name": "t"});
            json!({
                "format": 1, "tilewright": "0", "seal": "", "program": "p", "target": target, "files": files
            })
        };
        for manifest in [
            json!({"format": 1, "name": "my web app"}),
            json!({"format": 1}),
            json!({"format": "mine"}),
            json!([4]),
            json!({"format": FORMAT, "program": "p"}),
            like_ours(json!({})),
            // All that it lists is there, but not all that an artifact has.
            like_ours(hashes(5)),
        ] {
            let above = tempfile::tempdir().expect("a temporary folder");
            for name in file::ALWAYS.iter().take(5) {
                fs::write(above.path().join(name), "").expect("writable");
            }
            fs::write(above.path().join(file::MANIFEST), manifest.to_string()).expect("writable");
            let found = others(above.path());
            assert!(found.contains("manifest.json"), "{manifest}: {found}");
        }
    }

    /// The same artifact as an older version wrote it.
    fn in_former_format(path: &Path) {
        let at = path.join(file::MANIFEST);
        let text = fs::read_to_string(&at).expect("a file");
        let [(former, now)] = file::FORMER;
        let other = text
            .replacen(&format!("\"format\": {FORMAT}"), "\"format\": 7", 1)
            .replacen(&format!("\"{now}\": \""), &format!("\"{former}\": \""), 1);
        assert!(other.contains(former), "{other}");
        fs::write(&at, other).expect("writable");
        fs::rename(path.join(now), path.join(former)).expect("a file");
    }

    #[test]
    fn an_artifact_with_files_of_a_former_format_is_known() {
        let (_above, path) = place();
        in_former_format(&path);
        assert!(
            matches!(survey(&path), Ok(Survey::Artifact(_))),
            "{:?}",
            survey(&path)
        );
        let [(former, _)] = file::FORMER;
        fs::write(path.join(former), "mine").expect("writable");
        let found = others(&path);
        assert!(
            found.contains("`schedule.json` that was changed"),
            "{found}"
        );
        fs::remove_file(path.join(former)).expect("writable");
        assert!(others(&path).contains("not all files"), "{}", others(&path));

        let (_above, path) = place();
        in_former_format(&path);
        remove(&path).expect("nothing else is there");
        assert_eq!(survey(&path).expect("readable"), Survey::Nothing);

        // In an artifact of this format it is nobody's.
        let (_above, path) = place();
        fs::write(path.join(former), "mine").expect("writable");
        let found = others(&path);
        assert!(
            found.contains("`schedule.json` that is not of this artifact"),
            "{found}"
        );
    }

    #[test]
    fn an_artifact_of_another_format_is_known_by_its_files() {
        let (_above, path) = place();
        let at = path.join(file::MANIFEST);
        let text = fs::read_to_string(&at).expect("a file");
        let other = text
            .replacen(&format!("\"format\": {FORMAT}"), "\"format\": 3", 1)
            .replacen("\"flops\"", "\"operations\"", 1);
        assert_ne!(text, other);
        fs::write(&at, other).expect("writable");
        assert!(
            matches!(survey(&path), Ok(Survey::Artifact(_))),
            "{:?}",
            survey(&path)
        );
        fs::remove_file(path.join(file::CUDA)).expect("writable");
        assert!(others(&path).contains("not all files"), "{}", others(&path));
        fs::write(path.join(file::CUDA), "mine").expect("writable");
        assert!(others(&path).contains("`kernel.cu` that was changed"));
    }
}

//! The files of artifacts in a database, and what else is long: each content once, by its hash.

use super::sql::{All, SqlError, values_of};
use crate::artifact::{Manifest, file, hash};

/// The files of an artifact, by name.
pub type Files = Vec<(String, Vec<u8>)>;

/// The tables, beside a table `artifact` with an `id` and a `seal`.
pub(crate) const TABLES: &str = "
    CREATE TABLE content (id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, bytes BLOB NOT NULL);
    CREATE TABLE file (
       artifact INTEGER NOT NULL REFERENCES artifact (id),
       name TEXT NOT NULL,
       content INTEGER NOT NULL REFERENCES content (id),
       PRIMARY KEY (artifact, name)
    );";

/// Adds the files of an artifact, which is in its table.
pub(crate) fn put(all: &mut All<'_, '_>, artifact: i64, files: &Files) -> Result<(), SqlError> {
    for (name, bytes) in files {
        let own = put_content(all, bytes)?;
        all.execute(
            "INSERT INTO file (artifact, name, content) VALUES (?1, ?2, (SELECT id FROM content WHERE hash = ?3)) ON CONFLICT DO NOTHING",
            values_of![artifact, name, &own],
        )?;
    }
    Ok(())
}

/// Adds a content; its hash.
pub(crate) fn put_content(all: &mut All<'_, '_>, bytes: &[u8]) -> Result<String, SqlError> {
    let own = hash(bytes);
    all.execute(
        "INSERT INTO content (hash, bytes) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        values_of![&own, bytes.to_vec()],
    )?;
    Ok(own)
}

/// The files of the artifact with this seal; none where it has none.
pub(crate) fn get(all: &mut All<'_, '_>, seal: &str) -> Result<Files, SqlError> {
    let rows = all.query(
        "SELECT name, bytes FROM file JOIN content ON content.id = file.content JOIN artifact ON artifact.id = file.artifact
         WHERE seal = ?1 ORDER BY name",
        values_of![seal],
    )?;
    let rows = rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?)));
    rows.collect()
}

/// The files, if they are those that were stored.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn checked(files: Files, seal: &str) -> Result<Files, String> {
    let bytes = |name: &str| files.iter().find(|f| f.0 == name).map(|f| f.1.as_slice());
    let text = bytes(file::MANIFEST).ok_or_else(|| "it has no manifest".to_owned())?;
    let manifest: Manifest = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    if manifest.seal != seal || manifest.sealed() != seal {
        return Err("its manifest does not fit its seal".to_owned());
    }
    for (name, recorded) in &manifest.files {
        if bytes(name).map(hash).as_ref() != Some(recorded) {
            return Err(format!("{name} does not fit its hash"));
        }
    }
    match files.len() == manifest.files.len() + 1 {
        true => Ok(files),
        false => Err("it has files that its manifest does not".to_owned()),
    }
}

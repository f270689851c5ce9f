//! The arrows between the crates, as ARCHITECTURE.md draws them: the manifests are the oracle.

use std::collections::BTreeSet;
use std::path::Path;

/// Folder, and the folders that its manifest may name (`[dependencies]` and `[dev-dependencies]` alike).
#[rustfmt::skip]
const ARROWS: [(&str, &[&str]); 8] = [
    ("ir",      &[]),
    ("strategies", &["ir"]),
    ("search",  &["ir", "codegen"]),
    ("codegen", &["ir"]),
    ("verify",  &["ir"]),
    ("device",  &["codegen"]),
    (".",       &["ir", "search", "codegen", "verify", "device"]),
    ("bench/states", &[]),
];

/// Arrows that tests and benchmarks alone may have: they compile what `codegen` prints, or generate programs.
#[rustfmt::skip]
const TEST_ARROWS: [(&str, &[&str]); 8] = [
    ("ir",      &["strategies"]),
    ("strategies", &[]),
    ("search",  &["verify"]),
    ("codegen", &["device", "strategies"]),
    ("verify",  &[]),
    ("device",  &["ir"]),
    (".",       &["strategies"]),
    ("bench/states", &["ir", "search"]),
];

fn manifest(folder: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(folder)
        .join("Cargo.toml");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The workspace crates that a section of a manifest names.
fn named(manifest: &str, section: &str) -> BTreeSet<String> {
    let members: BTreeSet<&str> = ARROWS.iter().map(|a| a.0).collect();
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        let line = line.trim();
        if line.starts_with('[') {
            inside = line == section;
        } else if inside {
            let name: String = line
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '-' || *c == '_')
                .collect();
            let name = name.strip_prefix("tilewright-").unwrap_or(&name);
            if members.contains(name) {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[test]
fn the_manifests_have_the_drawn_arrows_and_no_others() {
    for ((folder, allowed), (_, in_tests)) in ARROWS.iter().zip(TEST_ARROWS) {
        let text = manifest(folder);
        assert_eq!(named(&text, "[dependencies]"), set(allowed), "{folder}");
        let extra = named(&text, "[dev-dependencies]");
        assert!(
            extra.is_subset(&set(in_tests)),
            "{folder}: its tests name {extra:?}, allowed are {in_tests:?}"
        );
    }
}

#[test]
fn every_member_is_drawn() {
    let root = manifest(".");
    let line = root
        .lines()
        .find(|l| l.starts_with("members"))
        .expect("the workspace lists its members");
    let members: BTreeSet<String> = line
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    let mut drawn: BTreeSet<String> = ARROWS.iter().map(|a| a.0.to_owned()).collect();
    drawn.remove(".");
    assert_eq!(members, drawn);
}

#[test]
fn only_the_device_crate_allows_unsafe_code() {
    for (folder, _) in ARROWS {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(folder)
            .join("src");
        let mut folders = vec![sources];
        while let Some(at) = folders.pop() {
            for entry in std::fs::read_dir(&at).expect("a source folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let text = std::fs::read_to_string(&path).expect("a source file");
                    let allowed = text.contains("allow(unsafe_code")
                        || text.contains("allow(\n    unsafe_code");
                    assert!(!allowed || folder == "device", "{}", path.display());
                }
            }
        }
    }
}

//! The arrows between the crates, as ARCHITECTURE.md draws them, and what is named in one place alone.

use codegen::atoms::INSTRUCTIONS;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folder, and the folders that its manifest may name (`[dependencies]` and `[dev-dependencies]` alike).
#[rustfmt::skip]
const ARROWS: [(&str, &[&str]); 10] = [
    ("ir",      &[]),
    ("strategies", &["ir"]),
    ("search",  &["ir", "codegen"]),
    ("codegen", &["ir"]),
    ("verify",  &["ir"]),
    ("device",  &["codegen"]),
    ("launcher", &[]),
    (".",       &["ir", "search", "codegen", "verify", "device"]),
    ("bench/states", &[]),
    ("python",  &["."]),
];

/// Arrows that tests and benchmarks alone may have: they compile what `codegen` prints, or generate programs.
#[rustfmt::skip]
const TEST_ARROWS: [(&str, &[&str]); 10] = [
    ("ir",      &["strategies"]),
    ("strategies", &[]),
    ("search",  &["verify"]),
    ("codegen", &["device", "strategies"]),
    ("verify",  &[]),
    ("device",  &["ir"]),
    ("launcher", &[]),
    (".",       &["strategies"]),
    ("bench/states", &["ir", "search"]),
    ("python",  &[]),
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
            let name = match name.strip_prefix("tilewright-") {
                Some(name) => name,
                None if name == "tilewright" => ".",
                None => &name,
            };
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

/// The source files of a member, with their texts.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join(folder).join("src")];
    let mut found = Vec::new();
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).expect("a source folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                found.push((path, text));
            }
        }
    }
    found
}

#[test]
fn only_the_device_and_the_launcher_allow_unsafe_code() {
    for (folder, _) in ARROWS {
        for (path, text) in sources(folder) {
            let allowed =
                text.contains("allow(unsafe_code") || text.contains("allow(\n    unsafe_code");
            assert!(
                !allowed || ["device", "launcher"].contains(&folder),
                "{}",
                path.display()
            );
        }
    }
}

/// What of a source file is neither a comment nor a test at its end.
fn code(text: &str) -> Vec<(usize, &str)> {
    let tests = text.find("#[cfg(test)]\nmod tests {");
    let lines = text[..tests.unwrap_or(text.len())].lines().enumerate();
    let lines = lines.filter(|(_, l)| !l.trim_start().starts_with("//"));
    lines.map(|(n, l)| (n + 1, l)).collect()
}

/// The parts of a line's identifiers, in small letters: `mma_async` and `MmaAsync` are `mma` and `async`.
fn parts(line: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for c in line.chars() {
        if !c.is_ascii_alphanumeric() || c.is_ascii_uppercase() {
            all.push(String::new());
        }
        if c.is_ascii_alphanumeric()
            && let Some(last) = all.last_mut()
        {
            last.push(c.to_ascii_lowercase());
        }
    }
    all
}

/// The names of functions that a device text defines or declares.
fn device_functions(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.split("TW_FN ").skip(1);
    behind.filter_map(|t| t[..t.find('(')?].split(' ').next_back())
}

/// Instructions are named in their table alone: by their names, by the first parts of those, and by their device functions.
#[test]
fn no_code_outside_the_table_names_an_instruction() {
    let (mut files, mut words, mut functions) = (0, BTreeSet::new(), BTreeSet::new());
    let mut names = BTreeSet::new();
    for i in INSTRUCTIONS {
        names.insert(format!("\"{}\"", i.atom.name()));
        functions.extend(device_functions(i.text));
        functions.extend(i.forms.iter().map(|row| row.function));
        if i.is_matrix() {
            words.extend(i.atom.name().split('.').next());
            names.extend(i.rate.map(|kind| format!("\"{kind}\"")));
        }
    }
    assert!(
        words.len() >= 2 && functions.len() >= 8,
        "{words:?} {functions:?}"
    );
    let mut faults = Vec::new();
    for (folder, _) in ARROWS {
        for (path, text) in sources(folder) {
            let shown = path.display().to_string();
            if shown.contains("codegen/src/atoms") || shown.ends_with("tests.rs") {
                continue;
            }
            files += 1;
            for (number, line) in code(&text) {
                let said = parts(line).iter().any(|p| words.contains(p.as_str()))
                    || names.iter().any(|n| line.contains(n))
                    || functions.iter().any(|f| line.contains(f));
                if said {
                    faults.push(format!("{shown}:{number}: {}", line.trim()));
                }
            }
        }
    }
    assert!(files > 200, "{files} files");
    assert!(
        faults.is_empty(),
        "named outside the table:\n{}",
        faults.join("\n")
    );
}

/// What a schedule says is asked of the passes: nobody else looks which step is of which form.
#[test]
fn no_code_outside_the_passes_looks_into_schedules() {
    let mut found = BTreeSet::new();
    for (folder, _) in ARROWS {
        for (path, text) in sources(folder) {
            if code(&text).iter().any(|(_, l)| l.contains(".form()")) {
                let root = Path::new(env!("CARGO_MANIFEST_DIR"));
                let path = path.strip_prefix(root).expect("a file of the checkout");
                found.insert(path.display().to_string());
            }
        }
    }
    let expected = [
        "codegen/src/passes.rs",
        "ir/src/schedule/tests.rs",
        "ir/src/schedule/text.rs",
    ];
    assert_eq!(found, set(&expected));
}

/// What the page of places says is to be touched exists, and the page is found from the first one.
#[test]
fn the_files_that_the_page_of_places_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("a page");
    assert!(read("ARCHITECTURE.md").contains("(docs/places.md)"));
    let page = read("docs/places.md");
    let quoted = page.split('`').skip(1).step_by(2);
    let paths: BTreeSet<&str> = quoted.filter(|word| word.contains('/')).collect();
    assert!(paths.len() >= 40, "{} paths", paths.len());
    let missing: Vec<_> = paths.iter().filter(|p| !root.join(p).exists()).collect();
    assert!(missing.is_empty(), "docs/places.md names {missing:?}");
}

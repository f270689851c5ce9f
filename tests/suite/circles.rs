//! Circles between the modules of a crate: two modules that use each other can only be read and changed together.
//!
//! A module is `foo.rs` with everything in its folder `foo/`, and a path that begins at the crate's root and goes on in another
//! module is an arrow. What is compiled for tests alone has no arrows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The root files of the crates, by folder.
#[rustfmt::skip]
const ROOTS: [(&str, &str); 8] = [
    ("ir/src",      "lib.rs"),
    ("strategies/src", "lib.rs"),
    ("search/src",  "lib.rs"),
    ("codegen/src", "lib.rs"),
    ("verify/src",  "lib.rs"),
    ("device/src",  "lib.rs"),
    ("src",         "lib.rs"),
    ("src",         "main.rs"),
];

/// The modules of one crate and the arrows between them.
#[derive(Default)]
struct Modules {
    /// What the root declares.
    names: BTreeSet<String>,
    /// What the root gives another name to: the name, and the module that it comes from.
    given: BTreeMap<String, String>,
    /// From, to, and the files that have such a path.
    arrows: BTreeMap<(String, String), BTreeSet<String>>,
}

/// One file of a crate, and what was found in it.
struct Source {
    /// The modules from the root to this one, by name.
    at: Vec<String>,
    /// The submodules that have files of their own.
    files: Vec<Vec<String>>,
    /// The names that follow the root in its paths.
    used: BTreeSet<String>,
}

impl Source {
    fn read(text: &str, at: Vec<String>) -> Source {
        let mut source = Source {
            at,
            files: Vec::new(),
            used: BTreeSet::new(),
        };
        source.scan(tokens(text.parse().expect("a file that is Rust")));
        source
    }

    fn scan(&mut self, all: Vec<TokenTree>) {
        let mut i = 0;
        while i < all.len() {
            let here = &all[i..];
            i += 1;
            if let Some(inner) = only_for_tests(here) {
                if inner {
                    return;
                }
                i += 1
                    + here[2..]
                        .iter()
                        .take_while(|t| !is(t, ';') && braces(t).is_none())
                        .count()
                    + 1;
                continue;
            }
            match &here[0] {
                TokenTree::Group(group) => self.scan(tokens(group.stream())),
                TokenTree::Ident(word) if word == "mod" => {
                    let [_, TokenTree::Ident(name), body, ..] = here else {
                        continue;
                    };
                    i += 2;
                    self.at.push(name.to_string());
                    match braces(body) {
                        Some(inside) => self.scan(inside),
                        None => self.files.push(self.at.clone()),
                    }
                    self.at.pop();
                }
                TokenTree::Ident(word) if word == "crate" || word == "super" => {
                    let (length, up) = start_of_path(here);
                    let root = word == "crate" || up == self.at.len();
                    if root && length > 0 {
                        self.used
                            .extend(here.get(length).into_iter().flat_map(first_names));
                    }
                    i += length.saturating_sub(1);
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

fn tokens(stream: TokenStream) -> Vec<TokenTree> {
    stream.into_iter().collect()
}

fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(p) if p.as_char() == sign)
}

/// What is between braces.
fn braces(token: &TokenTree) -> Option<Vec<TokenTree>> {
    let TokenTree::Group(group) = token else {
        return None;
    };
    (group.delimiter() == Delimiter::Brace).then(|| tokens(group.stream()))
}

/// Whether `#[cfg(test)]` stands here, or `#![cfg(test)]`: the second is `true`, it is about everything that follows.
fn only_for_tests(here: &[TokenTree]) -> Option<bool> {
    let inner = here.get(1).is_some_and(|t| is(t, '!'));
    let attribute = here.get(if inner { 2 } else { 1 })?;
    let found = is(&here[0], '#') && attribute.to_string().replace(' ', "") == "[cfg(test)]";
    found.then_some(inner)
}

/// How many tokens `crate::` or `super::super::` at the beginning has, and how often it goes up.
fn start_of_path(here: &[TokenTree]) -> (usize, usize) {
    let mut length = 0;
    let mut up = 0;
    while let [TokenTree::Ident(word), a, b, ..] = &here[length..] {
        let goes_up = word == "super";
        let begins = length == 0 && word == "crate";
        if !(is(a, ':') && is(b, ':') && (goes_up || begins)) {
            break;
        }
        up += usize::from(goes_up);
        length += 3;
    }
    (length, up)
}

/// `foo` of `foo::Bar`, and every such name of `{foo::Bar, baz}`.
fn first_names(token: &TokenTree) -> Vec<String> {
    if let TokenTree::Ident(name) = token {
        return vec![name.to_string()];
    }
    let inside = braces(token).unwrap_or_default();
    inside
        .split(|t| is(t, ','))
        .filter_map(|item| item.first())
        .flat_map(first_names)
        .collect()
}

/// The names that `use foo::{a, b as c, d::e}` makes: `a`, `c` and `e`.
fn last_names(path: &[TokenTree]) -> Vec<String> {
    match path.last() {
        Some(TokenTree::Ident(name)) => vec![name.to_string()],
        Some(token) => braces(token)
            .unwrap_or_default()
            .split(|t| is(t, ','))
            .flat_map(last_names)
            .collect(),
        None => Vec::new(),
    }
}

impl Modules {
    /// The modules below a root file; `read` gives the text of a file of the crate, where there is one.
    fn read(root: &str, read: impl Fn(&str) -> Option<String>) -> Modules {
        let mut modules = Modules::default();
        let text = read(root).expect("the root of a crate");
        let mut files = Source::read(&text, Vec::new()).files;
        modules.names = files.iter().map(|at| at[0].clone()).collect();
        modules.given = modules.given_at_the_root(&text);
        while let Some(at) = files.pop() {
            let folder = at.join("/");
            let (path, text) = [format!("{folder}.rs"), format!("{folder}/mod.rs")]
                .into_iter()
                .find_map(|path| read(&path).map(|text| (path, text)))
                .unwrap_or_else(|| panic!("the file of {folder}"));
            let source = Source::read(&text, at);
            files.extend(source.files);
            let from = &source.at[0];
            for name in source.used {
                let to = modules.given.get(&name).unwrap_or(&name);
                if to != from && modules.names.contains(to) {
                    let arrow = (from.clone(), to.clone());
                    let places = modules.arrows.entry(arrow).or_default();
                    places.insert(path.clone());
                }
            }
        }
        modules
    }

    /// What `pub use foo::Bar` at the root lets others call `crate::Bar`.
    fn given_at_the_root(&self, text: &str) -> BTreeMap<String, String> {
        let all = tokens(text.parse().expect("a file that is Rust"));
        let mut given = BTreeMap::new();
        for statement in all.split(|t| is(t, ';')) {
            let Some(start) = statement
                .iter()
                .position(|t| matches!(t, TokenTree::Ident(word) if word == "use"))
            else {
                continue;
            };
            let path = &statement[start + 1..];
            let Some(TokenTree::Ident(module)) = path.first() else {
                continue;
            };
            let module = module.to_string();
            if self.names.contains(&module) {
                for name in last_names(path) {
                    if !self.names.contains(&name) {
                        given.insert(name, module.clone());
                    }
                }
            }
        }
        given
    }

    /// The modules of each circle, by name.
    fn circles(&self) -> BTreeSet<Vec<&str>> {
        let graph: DiGraphMap<&str, ()> = self
            .arrows
            .keys()
            .map(|(from, to)| (from.as_str(), to.as_str(), ()))
            .collect();
        tarjan_scc(&graph)
            .into_iter()
            .filter(|circle| circle.len() > 1)
            .map(|mut circle| {
                circle.sort_unstable();
                circle
            })
            .collect()
    }

    /// The arrows of a circle, one a line, with the files that have them.
    fn described(&self, circle: &[&str]) -> String {
        self.arrows
            .iter()
            .filter(|((from, to), _)| {
                circle.contains(&from.as_str()) && circle.contains(&to.as_str())
            })
            .map(|((from, to), files)| {
                let files: Vec<&str> = files.iter().map(String::as_str).collect();
                format!("  {from} uses {to}, in {}\n", files.join(", "))
            })
            .collect()
    }
}

#[test]
fn the_modules_of_a_crate_use_each_other_in_one_direction() {
    let mut wrong = String::new();
    for (folder, root) in ROOTS {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let modules = Modules::read(root, |path| {
            std::fs::read_to_string(sources.join(path)).ok()
        });
        for circle in modules.circles() {
            wrong += &format!("{folder} has the circle {circle:?}:\n");
            wrong += &modules.described(&circle);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// The arrows between made-up files.
fn arrows_of(files: &[(&str, &str)]) -> Modules {
    Modules::read("lib.rs", |path| {
        let file = files.iter().find(|(name, _)| *name == path);
        file.map(|(_, text)| (*text).to_owned())
    })
}

#[test]
fn a_circle_through_three_modules_is_found() {
    let modules = arrows_of(&[
        (
            "lib.rs",
            "mod a; pub mod b; mod c; mod d; pub use c::{Deep, other as Renamed};",
        ),
        ("a.rs", "use crate::{d::{D, E}, b::B};"),
        (
            "b.rs",
            "mod below; fn f() -> Option<crate::Renamed> { None }",
        ),
        ("b/below.rs", "use super::g; use super::super::d;"),
        ("c/mod.rs", "mod inside { use super::super::a::A; }"),
        ("d.rs", "pub(crate) struct D;"),
    ]);
    assert_eq!(modules.circles(), BTreeSet::from([vec!["a", "b", "c"]]));
    let described = modules.described(&["a", "b", "c"]);
    assert_eq!(
        described,
        "  a uses b, in a.rs\n  b uses c, in b.rs\n  c uses a, in c/mod.rs\n"
    );
    let to_d: Vec<&str> = modules
        .arrows
        .iter()
        .filter(|((_, to), _)| to == "d")
        .flat_map(|(_, files)| files.iter().map(String::as_str))
        .collect();
    assert_eq!(to_d, ["a.rs", "b/below.rs"]);
}

#[test]
fn a_parent_and_its_own_submodules_are_one_module_and_tests_have_no_arrows() {
    let modules = arrows_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "mod below; use below::X; use crate::b::B;"),
        ("a/below.rs", "use super::Y; use crate::a::Z;"),
        (
            "b.rs",
            "//! [`crate::a`]\n /* crate::a::Z */ const S: &str = \"crate::a::Z\";
             #[cfg(test)] use crate::a::X;
             #[cfg(test)] fn t(x: [u8; 2]) { crate::a::t() }
             #[cfg(test)] mod tests;
             #[cfg(test)] mod inline { use super::super::a::X; }
             pub(crate) fn f() {}",
        ),
    ]);
    assert_eq!(
        modules.arrows.keys().cloned().collect::<Vec<_>>(),
        [("a".to_owned(), "b".to_owned())]
    );
    assert!(modules.circles().is_empty());
}

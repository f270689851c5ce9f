//! The text of programs: reading with every fault reported, definitions expanded, and printing; the text of tile
//! programs.
//!
//! `parse ∘ print` is the identity on programs that the parser or the builder made. What an operation accepts is not
//! decided here but by [`Program::infer_axes`], which this module only quotes.
//!
#![doc = include_str!("../../../docs/language.md")]

mod diagnostics;
mod expand;
mod items;
mod lexer;
mod print;
mod read;
mod syntax;
mod tile;

pub use diagnostics::{Diagnostic, Diagnostics};
pub(crate) use diagnostics::{Fault, Span};
pub(crate) use expand::Expander;
pub(crate) use items::Item;
pub(crate) use lexer::{Kind, Token, lex};

use crate::program::Program;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::OnceLock;
use syntax::Definitions;

/// Reads a program; `file` is the name that diagnostics quote.
///
/// ```
/// # use tilewright_ir as ir;
/// let program = ir::parse("program twice\naxis i = 4\nx = parameter f32 [i]\nreturn f32 [i] x + x\n", "twice.lax");
/// assert_eq!(program.expect("a good program").nodes.len(), 2);
/// let faults = ir::parse("program bad\naxis i = 0\nreturn f32 [i] y\n", "bad.lax").expect_err("two faults");
/// assert_eq!(faults.list().len(), 2);
/// ```
pub fn parse(source: &str, file: &str) -> Result<Program, Diagnostics> {
    parse_with(source, file, &BTreeMap::new())
}

/// Reads a program with other extents than its text has, for the axes of these names.
///
/// ```
/// # use tilewright_ir as ir;
/// let text = "program mean\naxis i = 4\nx = parameter f32 [i]\nreturn f32 [] sum(x; i) / size(i)\n";
/// let extents = [("i".to_owned(), 64)].into();
/// let program = ir::text::parse_with(text, "mean.lax", &extents).expect("a good program");
/// assert!(program.to_string().contains("axis i = 64"));
/// let none = [("k".to_owned(), 64)].into();
/// ir::text::parse_with(text, "mean.lax", &none).expect_err("no such axis");
/// ```
pub fn parse_with(
    source: &str,
    file: &str,
    extents: &BTreeMap<String, u64>,
) -> Result<Program, Diagnostics> {
    read::read(source, file, extents)
}

impl FromStr for Program {
    type Err = Diagnostics;

    fn from_str(source: &str) -> Result<Self, Diagnostics> {
        parse(source, "<text>")
    }
}

const PRELUDE_TEXT: &str = include_str!("../prelude.lax");

/// The prelude's definitions.
pub(crate) fn prelude() -> &'static Definitions {
    static PRELUDE: OnceLock<Definitions> = OnceLock::new();
    PRELUDE.get_or_init(|| read::definitions(PRELUDE_TEXT).0)
}

/// The known name that a misspelt one is nearest to, if any is near: at most one edit in three letters, capitals being no edit.
/// Of equally near ones the first.
///
/// ```
/// # use tilewright_ir::text::nearest;
/// assert_eq!(nearest("Sofmax", ["max", "softmax"]), Some("softmax"));
/// assert_eq!(nearest("attention", ["max", "softmax"]), None);
/// ```
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nobody misspells what is longer, and distances take the product of both lengths.
    if name.len() > 40 {
        return None;
    }
    let name = name.to_ascii_lowercase();
    known
        .into_iter()
        .map(|k| (strsim::osa_distance(&name, &k.to_ascii_lowercase()), k))
        .filter(|(distance, k)| *distance <= name.len().max(k.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, k)| k)
}

/// What a name that neither an axis nor a value can have is taken by, if it is.
pub fn taken(name: &str) -> Option<&'static str> {
    syntax::reserved(name).or_else(|| prelude().forms(name).map(|_| "a definition of the prelude"))
}

#[cfg(test)]
mod tests;

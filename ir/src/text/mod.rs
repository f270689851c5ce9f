//! The text of programs: reading with every fault reported, definitions expanded, and printing; the text of tile
//! programs.
//!
//! `parse ∘ print` is the identity on programs that the parser or the builder made. What an operation accepts is not
//! decided here but by [`Program::infer_axes`], which this module only quotes.

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
    read::read(source, file)
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

/// What a name that users cannot take is, if it is one.
pub(crate) fn taken(name: &str) -> Option<&'static str> {
    syntax::reserved(name).or_else(|| prelude().forms(name).map(|_| "a definition of the prelude"))
}

#[cfg(test)]
mod tests;

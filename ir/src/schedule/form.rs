//! How steps are written: one definition for the reader, the printer, and what is said of faults.

use super::{Argument, Atom, Step};
use std::fmt::Write;

/// How a step is written.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// The first word of its line, which no other form has.
    pub word: &'static str,
    /// What follows.
    pub parts: &'static [Part],
    /// Whether each contraction of a kernel needs such a line.
    pub required: bool,
    /// What it does, for who wrote it wrong: a few words that follow on the line.
    pub help: &'static str,
}

/// What stands in a line behind its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A word as it is.
    Word(&'static str),
    /// A number from 1 on. Where all numbers of a line are 1 it says what is so without it.
    Count {
        /// What stands for it where the line is explained.
        name: &'static str,
        /// What it counts.
        of: &'static str,
        /// More there cannot be.
        most: u32,
    },
    /// A noun in the singular, which is that of the number in front.
    Noun(&'static str),
    /// The name of a contraction's value, of which a form has one at most. This stands for it where the line is explained.
    Contraction(&'static str),
    /// The name of an instruction. This stands for it where the line is explained.
    Instruction(&'static str),
    /// A word that may be left out.
    Flag(&'static str),
}

/// All that texts may say.
#[derive(Clone, Debug)]
pub struct Language {
    /// The forms, in the order in which texts of faults list them.
    pub forms: Vec<&'static Form>,
    /// The instructions.
    pub atoms: Vec<Atom>,
    /// What is wrong with the order of a kernel's steps: which of them stands in a wrong place, and what would be right.
    pub misplaced: fn(&[Step]) -> Option<(usize, String)>,
}

/// A noun behind so many.
pub(super) fn counted(noun: &str, number: u32) -> String {
    match number {
        1 => noun.to_owned(),
        _ => format!("{noun}s"),
    }
}

impl Form {
    /// How it is explained: `pipeline N stages`.
    pub fn pattern(&self) -> String {
        let part = |part: &Part| match part {
            Part::Word(word) => (*word).to_owned(),
            Part::Count { name, .. } | Part::Contraction(name) | Part::Instruction(name) => {
                (*name).to_owned()
            }
            Part::Noun(noun) => counted(noun, 0),
            Part::Flag(word) => format!("[{word}]"),
        };
        self.joined(self.parts.iter().map(part))
    }

    /// What has to be said of a contraction.
    pub(super) fn wanted(&self, contraction: &str) -> String {
        let part = |part: &Part| match part {
            Part::Word(word) => Some((*word).to_owned()),
            Part::Count { name, .. } | Part::Instruction(name) => Some((*name).to_owned()),
            Part::Contraction(_) => Some(contraction.to_owned()),
            Part::Noun(noun) => Some(counted(noun, 0)),
            Part::Flag(_) => None,
        };
        self.joined(self.parts.iter().filter_map(part))
    }

    /// The line of a step.
    pub(super) fn line(&self, contraction: Option<&str>, arguments: &[Argument]) -> String {
        let mut arguments = arguments.iter();
        let mut last = 0;
        let part = |part: &Part| match part {
            Part::Word(word) => Some((*word).to_owned()),
            Part::Noun(noun) => Some(counted(noun, last)),
            Part::Contraction(_) => Some(contraction.unwrap_or("?").to_owned()),
            Part::Count { .. } | Part::Instruction(_) | Part::Flag(_) => match arguments.next()? {
                Argument::Count(count) => {
                    last = *count;
                    Some(count.to_string())
                }
                Argument::Instruction(atom) => Some(atom.name().to_owned()),
                Argument::Flag(said) => said.then(|| part.word().to_owned()),
            },
        };
        self.joined(self.parts.iter().filter_map(part))
    }

    fn joined(&self, parts: impl Iterator<Item = String>) -> String {
        parts.fold(self.word.to_owned(), |mut line, part| {
            // Writing to a string does not fail.
            let _ = write!(line, " {part}");
            line
        })
    }
}

impl Part {
    /// What is said of it as it stands.
    fn word(&self) -> &'static str {
        match self {
            Self::Word(word) | Self::Noun(word) | Self::Flag(word) => word,
            Self::Count { name, .. } | Self::Contraction(name) | Self::Instruction(name) => name,
        }
    }
}

impl Language {
    /// The names of all instructions.
    pub(super) fn instructions(&self) -> String {
        let names: Vec<String> = (self.atoms.iter())
            .map(|a| format!("`{}`", a.name()))
            .collect();
        names.join(", ")
    }
}

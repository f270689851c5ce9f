//! What somebody wishes of schedules: lines that they have to say, and lines that they must not.

use super::form::counted;
use super::{Argument, Form, KernelSchedule, Language, Part, Schedule, Step};
use crate::text::nearest;

/// Wishes about every kernel's schedule, in the words of their texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pinned: Vec<Wish>,
    forbidden: Vec<Wish>,
}

/// A line, or how it begins: what is not said may be anything.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    form: &'static Form,
    arguments: Vec<Argument>,
    /// As it was given.
    text: String,
}

impl Wishes {
    /// Wishes that every line of a word says this: `instruction=mma.m16n8k16`, `pipeline=3`, `warps=4 x 2`, `delayed`.
    ///
    /// # Errors
    /// It is no line, nor how one begins.
    pub fn pin(&mut self, text: &str, language: &Language) -> Result<(), String> {
        self.pinned.push(Wish::read(text, language)?);
        Ok(())
    }

    /// Wishes that no line says this: `cluster`, `instruction=fma`.
    ///
    /// # Errors
    /// As [`Wishes::pin`].
    pub fn forbid(&mut self, text: &str, language: &Language) -> Result<(), String> {
        self.forbidden.push(Wish::read(text, language)?);
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pinned.is_empty() && self.forbidden.is_empty()
    }

    /// What was pinned and no kernel of a schedule says.
    pub fn unsaid<'a>(&'a self, schedule: &'a Schedule) -> impl Iterator<Item = &'a str> {
        let says = |wish: &Wish, kernel: &KernelSchedule| match wish.lines(kernel).next() {
            Some(_) => wish.lines(kernel).any(|step| wish.is_said_by(step)),
            None => wish.says_nothing(),
        };
        let said = move |wish: &&Wish| schedule.kernels.iter().any(|k| says(wish, k));
        let unsaid = self.pinned.iter().filter(move |wish| !said(wish));
        unsaid.map(|wish| wish.text.as_str())
    }

    /// Whether a schedule is as wished. Where what is pinned is `needed` it has to be said; else it is enough that nothing else is.
    pub fn admit(&self, schedule: &KernelSchedule, needed: bool) -> bool {
        let says = |wish: &Wish| wish.lines(schedule).any(|step| wish.is_said_by(step));
        let pinned = |wish: &Wish| {
            let there = wish.lines(schedule).next().is_some() || wish.says_nothing();
            wish.lines(schedule).all(|step| wish.is_said_by(step)) && (there || !needed)
        };
        !self.forbidden.iter().any(says) && self.pinned.iter().all(pinned)
    }
}

impl Wish {
    fn read(text: &str, language: &Language) -> Result<Self, String> {
        let spaced = text.replacen('=', " ", 1);
        let mut words = spaced.split_whitespace();
        let first = words.next().unwrap_or_default();
        let Some(form) = language.forms.iter().find(|f| f.word == first) else {
            let known: Vec<&str> = language.forms.iter().map(|f| f.word).collect();
            let near = match nearest(first, known.iter().copied()) {
                Some(near) => format!("; is it `{near}`?"),
                None => String::new(),
            };
            let known = known.join("`, `");
            return Err(format!(
                "expected the first word of a schedule's line, one of `{known}`, found `{first}`{near}"
            ));
        };
        let mut arguments = Vec::new();
        let mut next = words.next();
        for part in form.parts {
            let Some(word) = next else { break };
            let expected = match part {
                Part::Contraction(_) | Part::Word("=") => continue,
                Part::Word(own) if *own == word => None,
                Part::Word(own) => Some(format!("`{own}`")),
                Part::Noun(noun)
                    if [counted(noun, 1), counted(noun, 0)].contains(&word.to_owned()) =>
                {
                    None
                }
                Part::Noun(noun) => Some(format!("`{}`", counted(noun, 0))),
                Part::Count { most, name, .. } => match word.parse() {
                    Ok(count) if (1..=*most).contains(&count) => {
                        arguments.push(Argument::Count(count));
                        None
                    }
                    Ok(_) | Err(_) => Some(format!("a number {name} from 1 to {most}")),
                },
                Part::Instruction(_) => match language.atoms.iter().find(|a| a.name() == word) {
                    Some(atom) => {
                        arguments.push(Argument::Instruction(*atom));
                        None
                    }
                    None => Some(format!("one of {}", language.instructions())),
                },
                Part::Flag(own) if *own == word => {
                    arguments.push(Argument::Flag(true));
                    None
                }
                Part::Flag(own) => Some(format!("`{own}` or nothing")),
            };
            if let Some(expected) = expected {
                return Err(format!(
                    "expected {expected} in a line `{}`, found `{word}`",
                    form.pattern()
                ));
            }
            next = words.next();
        }
        match next {
            Some(word) => Err(format!(
                "expected no more in a line `{}`, found `{word}`",
                form.pattern()
            )),
            None => Ok(Self {
                form,
                arguments,
                text: text.to_owned(),
            }),
        }
    }

    /// The lines of its word.
    fn lines<'s>(&self, schedule: &'s KernelSchedule) -> impl Iterator<Item = &'s Step> + use<'s> {
        let word = self.form.word;
        schedule.steps.iter().filter(move |s| s.form.word == word)
    }

    fn is_said_by(&self, step: &Step) -> bool {
        step.form.word == self.form.word && step.arguments.starts_with(&self.arguments)
    }

    /// Whether it is what is so without a line.
    fn says_nothing(&self) -> bool {
        let one = |a: &Argument| *a == Argument::Count(1);
        !self.arguments.is_empty() && self.arguments.iter().all(one)
    }
}

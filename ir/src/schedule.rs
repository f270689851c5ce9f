//! Schedules: how each kernel of a tile program is mapped to the machine. Annotations only: a schedule never changes
//! what is computed.
//!
//! A schedule is a list of [steps](Step) for each kernel, in the order in which they apply. Which steps there are is not known here: who carries
//! them out hands in a [`Language`] of [forms](Form), from which lines are read, printed and explained.
//!
//! A schedule is stored as a text that names the values of its tile program, and in no other form: [`Schedule::text`] writes it,
//! [`ScheduleText`] reads it. Whether a kernel can be mapped so is not known here either: lowering says it.

mod form;
mod read;
mod text;
mod wishes;

pub use form::{Form, Language, Part};
pub use text::ScheduleText;
pub use wishes::Wishes;

use crate::tile::ValueId;
use std::fmt;

/// The instruction that carries out a contraction, by its name in texts. Which ones there are, and what each of them is, says the table of the
/// crate that lowers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Atom(&'static str);

impl Atom {
    /// The instruction of a name, which is a word without blanks, commas and equals signs.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name in texts.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// What a step says beside its first word and the contraction that it is about: the arguments stand in the order of its form's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Argument {
    /// For a [`Part::Count`].
    Count(u32),
    /// For a [`Part::Instruction`].
    Instruction(Atom),
    /// For a [`Part::Flag`]: whether the word is said.
    Flag(bool),
}

/// One transformation with its parameters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Step {
    form: &'static Form,
    value: Option<ValueId>,
    arguments: Vec<Argument>,
}

impl Step {
    /// A step of this form. Counts begin at 1: 0 is taken for that.
    pub fn new(form: &'static Form, arguments: impl IntoIterator<Item = Argument>) -> Self {
        let least = |argument| match argument {
            Argument::Count(count) => Argument::Count(count.max(1)),
            other @ (Argument::Instruction(_) | Argument::Flag(_)) => other,
        };
        Self {
            form,
            value: None,
            arguments: arguments.into_iter().map(least).collect(),
        }
    }

    /// The same about a contraction.
    #[must_use]
    pub fn about(mut self, contraction: ValueId) -> Self {
        self.value = Some(contraction);
        self
    }

    /// How it is written.
    pub fn form(&self) -> &'static Form {
        self.form
    }

    /// The contraction that it is about, if it is about one.
    pub fn value(&self) -> Option<ValueId> {
        self.value
    }

    /// What it says, in the order of the form's parts.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Its numbers, in the order of the form's parts.
    pub fn counts(&self) -> impl Iterator<Item = u32> {
        self.arguments.iter().filter_map(|a| match a {
            Argument::Count(count) => Some(*count),
            Argument::Instruction(_) | Argument::Flag(_) => None,
        })
    }

    /// The first of its numbers; 1 where it has none.
    pub fn count(&self) -> u32 {
        self.counts().next().unwrap_or(1)
    }

    /// The instruction that it names, if it names one.
    pub fn atom(&self) -> Option<Atom> {
        self.arguments.iter().find_map(|a| match a {
            Argument::Instruction(atom) => Some(*atom),
            Argument::Count(_) | Argument::Flag(_) => None,
        })
    }

    /// Whether one of its flags is said.
    pub fn flag(&self) -> bool {
        self.arguments.contains(&Argument::Flag(true))
    }

    /// Whether it says what is so without it: it has numbers alone, and all of them are 1.
    pub fn says_nothing(&self) -> bool {
        let one = |a: &Argument| *a == Argument::Count(1);
        !self.arguments.is_empty() && self.value.is_none() && self.arguments.iter().all(one)
    }

    /// Whether both are of one form, and about one contraction where they are about any: a list has only one of them.
    fn is_in_place_of(&self, other: &Self) -> bool {
        self.form.word == other.form.word && self.value == other.value
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.value.map(|v| format!("{v:?}"));
        f.write_str(&self.form.line(name.as_deref(), &self.arguments))
    }
}

/// How one kernel is mapped to the machine: steps in the order in which they apply. No two are of one form and about the same, and none says what
/// is so without it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KernelSchedule {
    steps: Vec<Step>,
}

impl KernelSchedule {
    /// The steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Those of a form.
    pub fn of(&self, form: &Form) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|s| s.form.word == form.word)
    }

    /// Whether there is one of a form.
    pub fn says(&self, form: &Form) -> bool {
        self.of(form).next().is_some()
    }

    /// The numbers of the step of a form; 1 each where there is none.
    pub fn counts<const N: usize>(&self, form: &Form) -> [u32; N] {
        let mut all = self.of(form).flat_map(Step::counts);
        std::array::from_fn(|_| all.next().unwrap_or(1))
    }

    /// Puts a step in place of the one of its form that is about the same, or behind all others. One that says nothing is left out.
    pub fn set(&mut self, step: Step) {
        let at = self.steps.iter().position(|s| s.is_in_place_of(&step));
        match (at, step.says_nothing()) {
            (Some(at), true) => drop(self.steps.remove(at)),
            (Some(at), false) => self.steps[at] = step,
            (None, true) => {}
            (None, false) => self.steps.push(step),
        }
    }

    /// As [`set`](Self::set).
    #[must_use]
    pub fn with(mut self, step: Step) -> Self {
        self.set(step);
        self
    }
}

impl Extend<Step> for KernelSchedule {
    fn extend<I: IntoIterator<Item = Step>>(&mut self, steps: I) {
        steps.into_iter().for_each(|s| self.set(s));
    }
}

impl FromIterator<Step> for KernelSchedule {
    fn from_iter<I: IntoIterator<Item = Step>>(steps: I) -> Self {
        let mut all = Self::default();
        all.extend(steps);
        all
    }
}

/// One entry a kernel of the tile program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// In launch order.
    pub kernels: Vec<KernelSchedule>,
}

#[cfg(test)]
mod tests;

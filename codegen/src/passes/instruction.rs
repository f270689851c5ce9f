//! Which instruction carries out each contraction: what plans of kernels begin with (`plan.rs`).

use super::{Apply, Pass};
use ir::{Argument, Atom, Form, KernelSchedule, Part, Step, ValueId};

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "instruction",
        parts: &[
            Part::Contraction("VALUE"),
            Part::Word("="),
            Part::Instruction("NAME"),
            Part::Flag("swapped"),
        ],
        required: true,
        help: "what carries out a contraction; swapped, its second operand gives the rows",
    },
    behind: &[],
    apply: Apply::Plan,
};

/// How one contraction is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contraction {
    /// The instruction.
    pub atom: Atom,
    /// Whether operand `b` plays the instruction's row (M) side: few tokens against a large weight.
    pub swap: bool,
}

/// A contraction is carried out so.
pub fn step(contraction: ValueId, how: Contraction) -> Step {
    let arguments = [Argument::Instruction(how.atom), Argument::Flag(how.swap)];
    Step::new(&PASS.form, arguments).about(contraction)
}

/// The contractions of which a schedule says how they are carried out.
pub fn all(schedule: &KernelSchedule) -> impl Iterator<Item = (ValueId, Contraction)> {
    schedule.of(&PASS.form).filter_map(|s| {
        let (atom, swap) = (s.atom()?, s.flag());
        Some((s.value()?, Contraction { atom, swap }))
    })
}

/// How a contraction is carried out.
pub fn of(schedule: &KernelSchedule, contraction: ValueId) -> Option<Contraction> {
    let own = all(schedule).find(|(v, _)| *v == contraction);
    own.map(|(_, how)| how)
}

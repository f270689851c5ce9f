//! How many registers a thread may have: what plans of kernels begin with (`plan.rs`).

use super::{Apply, Pass};
use ir::{Argument, Form, KernelSchedule, Part, Step};

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "registers",
        parts: &[
            Part::Word("for"),
            Part::Count {
                name: "N",
                of: "blocks per SM",
                // No GPU holds more at a time.
                most: 32,
            },
            Part::Noun("block"),
            Part::Word("per"),
            Part::Word("SM"),
        ],
        required: false,
        help: "the registers of a thread are bounded so that so many blocks find room",
    },
    behind: &[],
    apply: Apply::Plan,
};

/// Registers are bounded so that so many blocks find room on a multiprocessor.
pub fn step(blocks: u32) -> Step {
    Step::new(&PASS.form, [Argument::Count(blocks)])
}

/// Blocks on a multiprocessor that registers are meant for.
pub fn of(schedule: &KernelSchedule) -> u32 {
    let [blocks] = schedule.counts(&PASS.form);
    blocks
}

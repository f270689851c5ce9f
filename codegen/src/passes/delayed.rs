//! Whether contractions may run on into the next iteration: what plans of kernels begin with ([`crate::plan`]).

use super::{Apply, Pass};
use ir::{Form, KernelSchedule, Step};

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "delayed",
        parts: &[],
        required: false,
        help: "contractions that a loop accumulates may run on into its next iteration",
    },
    behind: &[],
    apply: Apply::Plan,
};

/// Asynchronous contractions that a loop accumulates may still run while its next iteration begins, for one stage more of what they read.
pub fn step() -> Step {
    Step::new(&PASS.form, [])
}

/// Whether they may.
pub fn of(schedule: &KernelSchedule) -> bool {
    schedule.says(&PASS.form)
}

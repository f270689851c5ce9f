//! How many warps compute: what plans of kernels begin with (`plan.rs`).

use super::{Apply, Pass};
use ir::{Argument, Form, KernelSchedule, Part, Step};

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "warps",
        parts: &[
            // A block has at most 1024 threads, which are 32 warps, along each side.
            Part::Count {
                name: "ROWS",
                of: "warps along rows",
                most: 32,
            },
            Part::Word("x"),
            Part::Count {
                name: "COLUMNS",
                of: "warps along columns",
                most: 32,
            },
        ],
        required: false,
        help: "the warps that compute, along the rows and columns of contractions",
    },
    behind: &[],
    apply: Apply::Plan,
};

/// So many warps compute along the rows (M) and columns (N) of contractions; in kernels without any, warps that share no row, and warps that share
/// one.
pub fn step([rows, columns]: [u32; 2]) -> Step {
    Step::new(&PASS.form, [rows, columns].map(Argument::Count))
}

/// Warps along rows, and along columns.
pub fn of(schedule: &KernelSchedule) -> [u32; 2] {
    schedule.counts(&PASS.form)
}

//! The table of element-wise functions of one number, as a GPU computes them: CUDA, instructions, time.
//!
//! What they mean, and what is known of them, is [`ir::unary`]'s.

use crate::families::Family;
use ir::Unary;

/// One row of the table.
pub(crate) struct FunctionRow {
    /// The CUDA function of an f32 that gives about as many digits as results of 16 bits have use for.
    pub(crate) fast: &'static str,
    /// The one that is off by a few units in the last place of an f32.
    pub(crate) precise: &'static str,
    /// Device functions that the precise one is made of.
    pub(crate) families: &'static [Family],
    /// The function of CUDA's library for an f64; that for an f32 has an `f` at its end.
    pub(crate) library: &'static str,
    /// What the library's takes, in additions.
    pub(crate) library_work: f64,
    /// Instructions of the fast one beside that of the special-function unit.
    pub(crate) issue: f64,
    /// How many more the precise one takes.
    pub(crate) precise_issue: f64,
    /// Instructions of the special-function unit.
    pub(crate) special: f64,
}

/// The row of a function.
#[rustfmt::skip]
pub(crate) fn row(function: Unary) -> &'static FunctionRow {
    match function {
        Unary::Exp =>  &FunctionRow { fast: "tw_exp_fast",  precise: "tw_exp", families: &[Family::Math, Family::Exp], library: "exp",  library_work: 40.0, issue: 2.0, precise_issue: 6.0, special: 1.0 },
        Unary::Log =>  &FunctionRow { fast: "tw_log_fast",  precise: "logf",   families: &[],                          library: "log",  library_work: 40.0, issue: 3.0, precise_issue: 8.0, special: 1.0 },
        Unary::Sqrt => &FunctionRow { fast: "tw_sqrt_fast", precise: "sqrtf",  families: &[],                          library: "sqrt", library_work: 20.0, issue: 3.0, precise_issue: 6.0, special: 1.0 },
    }
}

//! The table of element-wise operations, as a GPU computes them: CUDA, instructions, time.
//!
//! What they mean, and what is known of them, is [`ir::ops`]'s and [`ir::functions`]'s. Texts of operands are names, numbers or in
//! brackets; there are as many as the operation takes.

use crate::families::Family;
use crate::machine::Bounded;
use ir::{Function, MapOp};

/// One row of the table.
pub(crate) struct Row {
    /// The CUDA of f32 operands that gives about as many digits as results of 16 bits have use for.
    pub(crate) fast: fn(&[String]) -> String,
    /// The one that is off by a few units in the last place of an f32.
    pub(crate) precise: fn(&[String]) -> String,
    /// Device functions that the precise one is made of.
    pub(crate) families: &'static [Family],
    /// The same of f64 operands by CUDA's library; of f32 ones with an `f` at the end of a function's name, which is given.
    pub(crate) library: fn(&[String], &str) -> String,
    /// What the library's takes, in additions.
    pub(crate) library_work: f64,
    /// Instructions of the fast one beside those that follow.
    pub(crate) issue: f64,
    /// How many more the precise one takes.
    pub(crate) precise_issue: f64,
    /// Instructions that half of the lanes carry out.
    pub(crate) half: f64,
    /// Instructions of the special-function unit.
    pub(crate) special: f64,
}

/// The row of an operation.
#[rustfmt::skip]
pub(crate) fn row(op: MapOp) -> &'static Row {
    match op {
        MapOp::Add => &Row { fast: add, precise: add, families: &[], library: |x, _| add(x), library_work: 1.0, issue: 1.0, precise_issue: 0.0, half: 0.0, special: 0.0 },
        MapOp::Mul => &Row { fast: mul, precise: mul, families: &[], library: |x, _| mul(x), library_work: 1.0, issue: 1.0, precise_issue: 0.0, half: 0.0, special: 0.0 },
        MapOp::Div => &Row { fast: |x| call("tw_div_fast", x), precise: |x| call("tw_div", x), families: &[Family::Math, Family::Precise], library: |x, _| div(x), library_work: 20.0, issue: 3.0, precise_issue: 8.0, half: 0.0, special: 1.0 },
        MapOp::Max => &Row { fast: |x| call("fmaxf", x), precise: |x| call("fmaxf", x), families: &[], library: |x, f| call(&format!("fmax{f}"), x), library_work: 1.0, issue: 0.0, precise_issue: 0.0, half: 1.0, special: 0.0 },
        MapOp::Select => &Row { fast: select, precise: select, families: &[], library: |x, _| format!("({} >= 0 ? {} : {})", x[0], x[1], x[2]), library_work: 1.0, issue: 0.0, precise_issue: 0.0, half: 2.0, special: 0.0 },
        MapOp::Function(Function::Exp) => &Row { fast: |x| call("tw_exp_fast", x), precise: |x| call("tw_exp", x), families: &[Family::Math, Family::Precise], library: |x, f| call(&format!("exp{f}"), x), library_work: 40.0, issue: 2.0, precise_issue: 6.0, half: 0.0, special: 1.0 },
        MapOp::Function(Function::Log) => &Row { fast: |x| call("tw_log_fast", x), precise: |x| call("logf", x), families: &[], library: |x, f| call(&format!("log{f}"), x), library_work: 40.0, issue: 3.0, precise_issue: 8.0, half: 0.0, special: 1.0 },
        MapOp::Function(Function::Sqrt) => &Row { fast: |x| call("tw_sqrt_fast", x), precise: |x| call("sqrtf", x), families: &[], library: |x, f| call(&format!("sqrt{f}"), x), library_work: 20.0, issue: 3.0, precise_issue: 6.0, half: 0.0, special: 1.0 },
    }
}

/// A precise function of operands that are bounded.
pub(crate) struct Shorter {
    /// As [`Row::precise`].
    pub(crate) precise: fn(&[String]) -> String,
    /// As [`Row::precise_issue`].
    pub(crate) precise_issue: f64,
}

/// What is left of a precise function of operands that are bounded.
pub(crate) fn shorter(bounded: Bounded) -> Shorter {
    match bounded {
        Bounded::Quotient => Shorter {
            precise: |x| call("tw_div_bounded", x),
            precise_issue: 1.0,
        },
        Bounded::Divisor => Shorter {
            precise: |x| call("tw_div_away_from_zero", x),
            precise_issue: 6.0,
        },
        Bounded::Exponential => Shorter {
            precise: |x| call("tw_exp_bounded", x),
            precise_issue: 4.0,
        },
        Bounded::Normal => Shorter {
            precise: |x| call("tw_exp_normal", x),
            precise_issue: 3.0,
        },
    }
}

fn call(function: &str, x: &[String]) -> String {
    format!("{function}({})", x.join(", "))
}

fn add(x: &[String]) -> String {
    format!("{} + {}", x[0], x[1])
}

fn mul(x: &[String]) -> String {
    format!("{} * {}", x[0], x[1])
}

fn div(x: &[String]) -> String {
    format!("{} / {}", x[0], x[1])
}

fn select(x: &[String]) -> String {
    format!("{} >= 0.0f ? {} : {}", x[0], x[1], x[2])
}

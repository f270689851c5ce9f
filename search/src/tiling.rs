//! From an expression to tile programs: what is stored between kernels, how each kernel runs over its axes, and which of the tile programs
//! that follow are worth a schedule.

pub mod assign;
pub mod build;
pub mod cuts;
pub mod enumerate;

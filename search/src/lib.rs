//! From a program to ranked tile programs.

pub mod corrections;
pub mod cost;
pub mod egraph;
pub mod forms;
pub mod rules;
pub mod schedules;
pub mod targets;
pub mod tiling;
pub mod tune;

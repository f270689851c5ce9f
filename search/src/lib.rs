//! From a program to ranked tile programs.

pub mod assign;
pub mod build;
pub mod convert;
pub mod correction;
pub mod cost;
pub mod cuts;
pub mod divide;
pub mod egraph;
pub mod enode;
pub mod enumerate;
pub mod explain;
pub mod extract;
pub mod facts;
pub mod floor;
pub mod rules;
pub mod schedules;
pub mod targets;
pub mod union;

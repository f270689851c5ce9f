//! From a program to ranked tile programs.

pub mod assign;
mod bounds;
pub mod build;
pub mod correction;
pub mod cuts;
pub mod egraph;
pub mod facts;

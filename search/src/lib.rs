//! From a program to ranked tile programs.

pub mod correction;
pub mod egraph;
pub mod facts;

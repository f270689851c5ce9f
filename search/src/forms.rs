//! The forms of a program: expressions that are equal to it over the reals, and why they are.

pub mod axes;
pub mod blocks;
pub mod divide;
pub mod explain;
pub mod extract;
pub mod phases;
pub mod residues;
mod triangles;
mod writer;

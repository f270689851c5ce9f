//! An offline superoptimizer for tensor programs.

pub mod artifact;
pub mod npz;

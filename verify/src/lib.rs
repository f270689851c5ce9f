//! Evidence that a candidate computes its program.
//!
//! * [`interpret`]: tile programs over any number system; [`evaluate`]: programs, op by op, likewise.
//! * [`scalar`] and [`field`]: the number systems.
//!
//! There is no GPU in this crate: it drives a trait that it owns.

mod block;
pub mod evaluate;
pub mod field;
#[cfg(test)]
mod fixtures;
pub mod interpret;
pub mod scalar;

pub use interpret::{SimulateError, SimulateOptions};

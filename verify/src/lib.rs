//! Evidence that a candidate computes its program.
//!
//! * [`interpret`]: tile programs over any number system; [`evaluate`]: programs, op by op, likewise.
//! * [`scalar`] and [`field`]: the number systems.
//! * [`fragile`]: expressions that lose in f32 what the program keeps.
//! * [`tiling`]: tile program = expression, on small shapes; [`mutants()`]: the faults it is tested with.
//! * [`kernel`]: compiled candidate = program, on a [`Machine`], with guards; [`inputs`] are its input distributions,
//!   [`stored`] what it gives, [`tolerance`] its measure of error.
//! * [`verified`]: the gate that all of it leads to.
//!
//! There is no GPU in this crate: it drives a trait that it owns.

mod block;
mod coverage;
mod decisions;
mod demand;
mod domain;
pub mod evaluate;
pub mod field;
#[cfg(test)]
mod fixtures;
pub mod fragile;
mod functions;
pub mod inputs;
pub mod interpret;
pub mod kernel;
pub mod mutants;
mod picked;
mod ranges;
pub mod scalar;
mod shapes;
mod simulate_error;
mod slices;
pub mod stored;
pub mod tiling;
pub mod tolerance;
pub mod verified;

pub use fragile::{Fragile, Keeper};
pub use inputs::{Draw, DrawnInputs};
pub use interpret::{SimulateOptions, operations, simulate};
pub use kernel::{
    KernelEvidence, KernelFindings, KernelOptions, Machine, Ran, RunOptions, check_kernel,
    check_time, screening_seed,
};
pub use mutants::mutants;
pub use simulate_error::SimulateError;
pub use stored::Stored;
pub use tiling::{TilingEvidence, TilingOptions, check_tiling};
pub use tolerance::Tolerance;
pub use verified::{Evidence, Realisation, Verified};

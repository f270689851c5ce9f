//! Runs machine programs on numbers, and finds what some order of events could make wrong.
//!
//! Warps are *agents* that run one after the other, in an order that a seed draws; a copy or an instruction that is not waited for is an agent of
//! its own. Every access to shared memory is compared with those before it: two that nothing orders, of which one writes, are a race, whichever
//! of them came first here. So one run speaks for every time at which copies may land and at which instructions may read their
//! operands. What only one order of events shows (a turn that is never given) is left to the seeds.
//!
//! Numbers are f64 and nothing is rounded: what comes out is to be what the tile program says, but for the order of sums.

mod agent;
mod clock;
mod contract;
mod elements;
mod memory;
mod run;
mod transfers;
mod waits;

use crate::machine::Machine;
use ir::BufferId;
use std::collections::BTreeMap;

/// What is wrong with a machine program, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}, block {block}, warp {warp}: {what} ({statement})")]
pub struct Fault {
    /// The kernel.
    pub kernel: String,
    /// The block.
    pub block: u64,
    /// The warp in its block.
    pub warp: u64,
    /// The statement that it was found in.
    pub statement: String,
    /// What is wrong.
    pub what: String,
}

/// The elements of buffers, in memory order; none where nothing was written.
pub type Buffers = BTreeMap<BufferId, Vec<Option<f64>>>;

/// Runs kernels one after another on `buffers`, which hold every buffer's elements. `seed` draws the order in which warps run.
///
/// # Errors
/// The first fault.
pub fn run(machines: &[Machine], buffers: &mut Buffers, seed: u64) -> Result<(), Fault> {
    for machine in machines {
        run::kernel(machine, buffers, seed)?;
    }
    Ok(())
}

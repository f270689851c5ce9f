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
use ir::{BufferId, BufferRole, TileProgram};
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
type Buffers = BTreeMap<BufferId, Vec<Option<f64>>>;

/// Runs the machine programs of a tile program's kernels one after another on parameters; gives the outputs. Both are in memory order. `seed`
/// draws the order in which warps run.
///
/// # Errors
/// The first fault; an output element that nothing wrote is one of the last kernel's.
pub fn run(
    tile: &TileProgram,
    machines: &[Machine],
    parameters: &[Vec<f64>],
    seed: u64,
) -> Result<Vec<Vec<f64>>, Fault> {
    let mut buffers = Buffers::new();
    for (number, buffer) in (0..).zip(&tile.buffers) {
        let elements = buffer.axes().map(|a| tile.extent(a)).product::<u64>();
        let elements = match buffer.role {
            BufferRole::Parameter(n) => parameters[n as usize].iter().copied().map(Some).collect(),
            BufferRole::Output(_) | BufferRole::Workspace => vec![None; elements as usize],
        };
        buffers.insert(BufferId(number), elements);
    }
    for machine in machines {
        run::kernel(machine, &mut buffers, seed)?;
    }
    let mut outputs = BTreeMap::new();
    for (number, buffer) in (0..).zip(&tile.buffers) {
        if let BufferRole::Output(n) = buffer.role {
            let elements = buffers.remove(&BufferId(number)).unwrap_or_default();
            let count = elements.len();
            let written: Vec<f64> = elements.into_iter().flatten().collect();
            if written.len() < count {
                return Err(Fault {
                    kernel: tile.name.clone(),
                    block: 0,
                    warp: 0,
                    statement: "the end of the last kernel".into(),
                    what: format!(
                        "{} of {count} elements of {} were not written",
                        count - written.len(),
                        buffer.name
                    ),
                });
            }
            outputs.insert(n, written);
        }
    }
    Ok(outputs.into_values().collect())
}

//! Schedules: how each kernel of a tile program is mapped to the machine. Annotations only: a schedule never changes
//! what is computed.
//!
//! A schedule is stored as a text that names the values of its tile program, and in no other form: [`Schedule::text`] writes it,
//! [`ScheduleText`] reads it. Whether a kernel can be mapped so is not known here: lowering says it.

mod read;
mod text;

pub use text::ScheduleText;

use crate::tile::ValueId;
use std::collections::BTreeMap;

/// The instruction that carries out a contraction, by its name in texts. Which ones there are, and what each of them is, says the table of the
/// crate that lowers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Atom(&'static str);

/// How one contraction is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContractSchedule {
    /// The instruction.
    pub atom: Atom,
    /// Whether operand `b` plays the instruction's row (M) side: few tokens against a large weight.
    pub swap: bool,
}

/// How far instructions that run in the background overlap with other work of their block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Overlap {
    /// Each is waited for where it stands.
    #[default]
    None,
    /// What a loop accumulates may still run while its next iteration begins, at the price of one more stage of its rings.
    Delayed,
    /// Beside that, four more warps fill the rings, so that no barrier an iteration holds the others together; groups of them take
    /// turns at the tensor cores.
    Turns,
}

/// How one kernel is mapped to the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSchedule {
    /// Warps along the rows (M) of contractions; for kernels without contraction, warps that share no row.
    pub warps_m: u32,
    /// Warps along the columns (N) of contractions; for kernels without contraction, warps that share a row.
    pub warps_n: u32,
    /// Stages of each operand ring: 1 is no overlap, 2 to 5 are filled ahead by `cp.async`.
    pub stages: u32,
    /// Blocks an SM that the register budget is meant for.
    pub blocks_per_sm: u32,
    /// What runs beside what, where instructions run in the background.
    pub overlap: Overlap,
    /// Tiles of the second fastest axis of the grid that blocks go over together, before the fastest axis moves on: neighbours in
    /// time then read the same parts of both operands of a product from L2. 0, and 1 too: the fastest axis first.
    pub raster: u32,
    /// Whether only as many blocks are launched as find room, each of which goes over several tiles: those that fill rings begin the next
    /// tile while the others still write the former one. Wants rings that warps of their own fill.
    pub persistent: bool,
    /// Blocks of a cluster, which copy once what all of them read: 1 where each copies for itself. Wants tiles that the hardware copies in boxes
    /// for warps that only fill rings.
    pub cluster: u32,
    /// One entry a contraction.
    pub contracts: BTreeMap<ValueId, ContractSchedule>,
}

/// One entry a kernel of the tile program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// In launch order.
    pub kernels: Vec<KernelSchedule>,
}

impl Atom {
    /// The instruction of a name, which is a word without blanks, commas and equals signs.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name in texts.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl Default for KernelSchedule {
    /// What a text need not say: one warp, one stage, one block an SM, and nothing beside anything else.
    fn default() -> Self {
        Self {
            warps_m: 1,
            warps_n: 1,
            stages: 1,
            blocks_per_sm: 1,
            overlap: Overlap::None,
            raster: 0,
            persistent: false,
            cluster: 1,
            contracts: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests;

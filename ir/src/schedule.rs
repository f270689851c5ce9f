//! Schedules: how each kernel of a tile program is mapped to the machine. Annotations only: a schedule never changes
//! what is computed.

use crate::tile::ValueId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The instruction that carries out a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Atom {
    /// FFMA register tiles on CUDA cores, f32.
    Fma,
    /// `mma.sync.m16n8k16`, f16 or bf16 operands, f32 accumulators.
    MmaM16N8K16,
    /// `mma.sync.m16n8k8`, TF32 operands, f32 accumulators.
    MmaM16N8K8Tf32,
}

/// How one contraction is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContractSchedule {
    /// The instruction.
    pub atom: Atom,
    /// Whether operand `b` plays the instruction's row (M) side: few tokens against a large weight.
    pub swap: bool,
}

/// How one kernel is mapped to the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelSchedule {
    /// Warps along the rows (M) of contractions; for kernels without contraction, warps that share no row.
    pub warps_m: u32,
    /// Warps along the columns (N) of contractions; for kernels without contraction, warps that share a row.
    pub warps_n: u32,
    /// Slots of each operand ring: 1 is no overlap, 2 to 5 are filled ahead by `cp.async`.
    pub stages: u32,
    /// Blocks an SM that the register budget is meant for.
    pub blocks_per_sm: u32,
    /// One entry a contraction.
    pub contracts: BTreeMap<ValueId, ContractSchedule>,
}

/// One entry a kernel of the tile program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schedule {
    /// In launch order.
    pub kernels: Vec<KernelSchedule>,
}

//! Schedules: how each kernel of a tile program is mapped to the machine. Annotations only: a schedule never changes
//! what is computed.

use crate::tile::ValueId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The instruction that carries out a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Atom {
    /// FFMA register tiles on CUDA cores, f32.
    Fma,
    /// `mma.sync.m16n8k16`, f16 or bf16 operands, f32 accumulators.
    MmaM16N8K16,
    /// `mma.sync.m16n8k8`, TF32 operands, f32 accumulators.
    MmaM16N8K8Tf32,
    /// `mma.sync.m16n8k8` thrice: each f32 operand is a sum of two TF32 numbers, and the product of the lesser parts is left out.
    /// As accurate as [`Atom::Fma`] on finite operands; an infinite operand gives NaN.
    MmaM16N8K8Tf32x3,
    /// `wgmma.mma_async.m64nNk16`, f16 or bf16 operands, f32 accumulators: four warps together, one operand or both from
    /// shared memory.
    WgmmaM64K16,
}

/// How one contraction is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContractSchedule {
    /// The instruction.
    pub atom: Atom,
    /// Whether operand `b` plays the instruction's row (M) side: few tokens against a large weight.
    pub swap: bool,
}

/// How far instructions that run in the background overlap with other work of their block.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Overlap {
    /// Each is waited for where it stands.
    #[default]
    None,
    /// What a loop accumulates may still run while its next iteration begins, at the price of one more slot of its rings.
    Delayed,
    /// Beside that, four more warps fill the rings, so that no barrier an iteration holds the others together; groups of them take
    /// turns at the tensor cores.
    Turns,
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
    /// What runs beside what, where instructions run in the background.
    pub overlap: Overlap,
    /// Tiles of the second fastest axis of the grid that blocks go over together, before the fastest axis moves on: neighbours in
    /// time then read the same parts of both operands of a product from L2. 0 and 1: the fastest axis first.
    #[serde(default)]
    pub band: u32,
    /// Whether only as many blocks are launched as find room, each of which goes over several tiles: those that fill rings begin the next
    /// tile while the others still write the former one. Wants rings that warps of their own fill.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub persistent: bool,
    /// One entry a contraction.
    pub contracts: BTreeMap<ValueId, ContractSchedule>,
}

/// One entry a kernel of the tile program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schedule {
    /// In launch order.
    pub kernels: Vec<KernelSchedule>,
}

impl Atom {
    /// The name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fma => "fma",
            Self::MmaM16N8K16 => "mma.m16n8k16",
            Self::MmaM16N8K8Tf32 => "mma.m16n8k8.tf32",
            Self::MmaM16N8K8Tf32x3 => "mma.m16n8k8.3xtf32",
            Self::WgmmaM64K16 => "wgmma.m64k16",
        }
    }
}

impl fmt::Display for Schedule {
    /// One line a kernel, for people. Programs read and write schedules as JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, kernel) in self.kernels.iter().enumerate() {
            let (rows, columns, stages) = (kernel.warps_m, kernel.warps_n, kernel.stages);
            write!(
                f,
                "kernel {at}: warps {rows}x{columns}, stages {stages}, blocks per SM {}",
                kernel.blocks_per_sm
            )?;
            match kernel.overlap {
                Overlap::None => {}
                Overlap::Delayed => write!(f, ", overlapped")?,
                Overlap::Turns => write!(f, ", overlapped in turns")?,
            }
            if kernel.band > 1 {
                write!(f, ", bands of {}", kernel.band)?;
            }
            if kernel.persistent {
                write!(f, ", persistent")?;
            }
            for (value, contract) in &kernel.contracts {
                let swap = if contract.swap { " swapped" } else { "" };
                write!(f, ", value {} by {}{swap}", value.0, contract.atom.name())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_a_line_a_kernel() {
        let contract = ContractSchedule {
            atom: Atom::MmaM16N8K16,
            swap: true,
        };
        let kernel = KernelSchedule {
            warps_m: 4,
            warps_n: 1,
            stages: 2,
            blocks_per_sm: 3,
            overlap: Overlap::Delayed,
            band: 16,
            persistent: true,
            contracts: BTreeMap::from([(ValueId(7), contract)]),
        };
        let schedule = Schedule {
            kernels: vec![kernel],
        };
        let text = "kernel 0: warps 4x1, stages 2, blocks per SM 3, overlapped, bands of 16, persistent, value 7 by mma.m16n8k16 swapped\n";
        assert_eq!(schedule.to_string(), text);
    }
}

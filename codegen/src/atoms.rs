//! The instructions that carry out contractions, as a table.

pub(crate) mod wgmma_tf32x3;

use ir::{Atom, Dtype};

/// One instruction with its operands' element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomRow {
    /// The schedule's name for it.
    pub atom: Atom,
    /// How operand elements are held in shared memory.
    pub operand: Dtype,
    /// Rows, columns and depth of one instruction.
    pub shape: [u64; 3],
    /// The compute capabilities that have it, major · 10 + minor.
    pub capabilities: (u32, u32),
    /// The device function.
    pub function: &'static str,
}

#[rustfmt::skip]
pub(crate) const ATOMS: [AtomRow; 7] = [
    AtomRow { atom: Atom::MmaM16N8K16,    operand: Dtype::Bf16, shape: [16, 8, 16], capabilities: (80, u32::MAX), function: "tw_mma_bf16" },
    AtomRow { atom: Atom::MmaM16N8K16,    operand: Dtype::F16,  shape: [16, 8, 16], capabilities: (80, u32::MAX), function: "tw_mma_f16" },
    AtomRow { atom: Atom::MmaM16N8K8Tf32, operand: Dtype::F32,  shape: [16, 8, 8],  capabilities: (80, u32::MAX), function: "tw_mma_tf32" },
    AtomRow { atom: Atom::MmaM16N8K8Tf32x3, operand: Dtype::F32, shape: [16, 8, 8], capabilities: (80, u32::MAX), function: "tw_mma_tf32" },
    AtomRow { atom: Atom::WgmmaM64K16,    operand: Dtype::Bf16, shape: [64, 8, 16], capabilities: (90, 90), function: "tw_wgmma_bf16" },
    AtomRow { atom: Atom::WgmmaM64K16,    operand: Dtype::F16,  shape: [64, 8, 16], capabilities: (90, 90), function: "tw_wgmma_f16" },
    wgmma_tf32x3::ROW,
];

impl AtomRow {
    /// The warps that issue one instruction together, sixteen rows each.
    pub(crate) fn warps(&self) -> u64 {
        self.shape[0] / 16
    }

    /// Whether it runs beside what its warps do otherwise, and may be waited for an iteration later.
    pub(crate) fn is_apart(&self) -> bool {
        self.warps() > 1 && !self.splits()
    }

    /// Whether operands are split into two parts each.
    pub(crate) fn splits(&self) -> bool {
        matches!(self.atom, Atom::MmaM16N8K8Tf32x3 | Atom::WgmmaM64K8Tf32x3)
    }
}

/// The row of an atom for an operand dtype.
pub(crate) fn row(atom: Atom, operand: Dtype) -> Option<&'static AtomRow> {
    ATOMS
        .iter()
        .find(|r| r.atom == atom && r.operand == operand)
}

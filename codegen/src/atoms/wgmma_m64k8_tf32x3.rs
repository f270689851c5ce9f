//! `wgmma.mma_async.m64nNk8.f32.tf32.tf32`, thrice for the products of f32.
//!
//! Operands are split: `x = high + low`, two TF32 numbers, and `a · b ≈ low · high + high · low + high · high`. The rows' halves are in
//! registers; those of the columns are in shared memory, in lines along the depth, which is the only way in which the instruction
//! reads elements of 32 bits (PTX ISA, "Strides" of wgmma: no transposing of `.tf32`).
//!
//! Sums are truncated by the instruction, so that few terms are summed in fresh accumulators, and their sums are added with rounding.

use super::{AtomRow, Held, Instruction, Operands, Printed, Reads, Rows, Scope, Sums};
use crate::layout::Layout;
use ir::{Atom, Dtype};

pub(super) static INSTRUCTION: Instruction = Instruction {
    atom: Atom::new("wgmma.m64k8.3xtf32"),
    scope: Scope::Warpgroup,
    operands: Operands::Split,
    shape: [64, 8, 8],
    capabilities: (90, 90),
    rate: Some("wgmma.tf32"),
    // Truncations of three products for each eight of them.
    sums: Sums::Apart { terms: 96 },
    rows: Rows::Registers(Held {
        layout: |rows, depth, warps| Layout::held_rows(rows, depth, warps, 4),
        element: row_element,
    }),
    // They split what they read.
    reads: Reads::Threads,
    forms: &[AtomRow {
        instruction: &INSTRUCTION,
        operand: Dtype::F32,
        function: "tw_wgmma_tf32",
    }],
    text: "\
// Warpgroup matrix instructions on TF32, rows in registers, columns in lines along the depth. Printed below for the N in use.
template <int N> TW_FN void tw_wgmma_tf32_held(float* d, const float* a, u64 b, u32 add);
",
    printed: Printed::WithUse,
};

/// Element (row, depth) of sixteen by eight of the rows that a warp holds: which lane has it, and in which of its four registers (PTX ISA,
/// "Register fragments for wgmma.mma_async.m64nNk8").
fn row_element(row: u64, depth: u64) -> (usize, u64) {
    let lane = 4 * (row % 8) + depth % 4;
    (lane as usize, row / 8 + 2 * (depth / 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// a0 is (g, t), a1 is (g + 8, t), a2 is (g, t + 4), a3 is (g + 8, t + 4) of lane 4g + t.
    #[test]
    fn rows_are_what_the_manual_says() {
        let mut seen = BTreeSet::new();
        for (g, t) in (0..8).flat_map(|g| (0..4).map(move |t| (g, t))) {
            for (register, (row, depth)) in [(g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)]
                .into_iter()
                .enumerate()
            {
                assert_eq!(
                    row_element(row, depth),
                    ((4 * g + t) as usize, register as u64)
                );
                seen.insert((row, depth));
            }
        }
        assert_eq!(seen.len(), 16 * 8);
    }
}

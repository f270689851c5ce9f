//! `wgmma.mma_async.m64nNk8.f32.tf32.tf32`, thrice for the products of f32.
//!
//! Operands are split: `x = high + low`, two TF32 numbers, and `a · b ≈ low · high + high · low + high · high`. The rows' halves are in
//! registers; those of the columns are in shared memory, in lines along the depth, which is the only way in which the instruction
//! reads elements of 32 bits (PTX ISA, "Strides" of wgmma: no transposing of `.tf32`).
//!
//! Sums are truncated by the instruction, so that few terms are summed in fresh accumulators, and their sums are added with rounding.

use super::AtomRow;
use ir::{Atom, Dtype};

pub(super) const ROW: AtomRow = AtomRow {
    atom: Atom::WgmmaM64K8Tf32x3,
    operand: Dtype::F32,
    shape: [64, 8, 8],
    capabilities: (90, 90),
    function: "tw_wgmma_tf32",
};

/// Terms along the depth that are summed before the sum is rounded, at most: truncations of three products for each eight of them.
pub const MOST_TERMS: u64 = 64;

/// Bytes of a panel's line, at least and at most.
const LINE_BYTES: (u64, u64) = (32, 128);

/// Elements of a line of halves, of which there are so many along the depth: the longest lines that divide it.
pub(crate) fn line(depth: u64) -> u64 {
    let each = Dtype::F32.bytes();
    let (least, most) = LINE_BYTES;
    let longest = (depth * each).trailing_zeros();
    (1 << longest.clamp(least.trailing_zeros(), most.trailing_zeros())) / each
}

/// Element (row, depth) of sixteen by eight of the rows that a warp holds: which lane has it, and in which of its four registers (PTX ISA,
/// "Register fragments for wgmma.mma_async.m64nNk8").
pub(crate) fn row_element(row: u64, depth: u64) -> (usize, u64) {
    let lane = 4 * (row % 8) + depth % 4;
    (lane as usize, row / 8 + 2 * (depth / 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn lines_divide_the_depth() {
        for (depth, span) in [(16, 16), (32, 32), (48, 16), (64, 32), (24, 8), (8, 8)] {
            assert_eq!(line(depth), span, "depth {depth}");
            assert!(depth.is_multiple_of(span));
        }
    }

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

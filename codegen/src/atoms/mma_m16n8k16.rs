//! `mma.sync.m16n8k16`: f16 or bf16 operands, f32 accumulators.

use super::{AtomRow, Held, Instruction, Operands, Printed, Reads, Rows, Scope, Sums};
use crate::layout::Layout;
use ir::{Atom, Dtype};

pub(super) static INSTRUCTION: Instruction = Instruction {
    atom: Atom::new("mma.m16n8k16"),
    scope: Scope::Warp,
    operands: Operands::Half,
    shape: [16, 8, 16],
    capabilities: (80, u32::MAX),
    rate: Some("mma.16bit"),
    sums: Sums::InPlace,
    rows: Rows::Either(Held {
        layout: |rows, depth, warps| Layout::accumulator(rows, depth, warps, 1, true),
        element: row_element,
    }),
    reads: Reads::Matrices,
    forms: &[
        AtomRow {
            instruction: &INSTRUCTION,
            operand: Dtype::Bf16,
            function: "tw_mma_bf16",
        },
        AtomRow {
            instruction: &INSTRUCTION,
            operand: Dtype::F16,
            function: "tw_mma_f16",
        },
    ],
    text: r#"TW_FN void tw_mma_bf16(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
TW_FN void tw_mma_f16(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
"#,
    printed: Printed::WithScope,
};

/// Element (row, depth) of sixteen by sixteen of the rows that a warp holds: which lane has it, and which of its eight elements it is (PTX ISA,
/// "Matrix fragments for mma.m16n8k16").
pub(super) fn row_element(row: u64, depth: u64) -> (usize, u64) {
    let lane = 4 * (row % 8) + depth % 8 / 2;
    let register = row / 8 + 2 * (depth / 8);
    (lane as usize, 2 * register + depth % 2)
}

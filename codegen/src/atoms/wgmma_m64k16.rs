//! `wgmma.mma_async.m64nNk16`: f16 or bf16 operands, f32 accumulators; four warps together, one operand or both from shared memory.

use super::mma_m16n8k16::row_element;
use super::{AtomRow, Held, Instruction, Operands, Printed, Reads, Rows, Scope, Sums};
use crate::layout::Layout;
use ir::{Atom, Dtype};

pub(super) static INSTRUCTION: Instruction = Instruction {
    atom: Atom::new("wgmma.m64k16"),
    scope: Scope::Warpgroup,
    operands: Operands::Half,
    shape: [64, 8, 16],
    capabilities: (90, 90),
    rate: Some("wgmma.16bit"),
    sums: Sums::InPlace,
    // Each warp holds sixteen rows as those of single warps do (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16").
    rows: Rows::Either(Held {
        layout: |rows, depth, warps| Layout::accumulator(rows, depth, warps, 4, true),
        element: row_element,
    }),
    reads: Reads::SwizzleAtoms,
    forms: &[
        AtomRow {
            instruction: &INSTRUCTION,
            operand: Dtype::Bf16,
            function: "tw_wgmma_bf16",
        },
        AtomRow {
            instruction: &INSTRUCTION,
            operand: Dtype::F16,
            function: "tw_wgmma_f16",
        },
    ],
    text: "\
// One instruction with N columns: TA and TB say which operands lie across the depth. Printed below for the N in use.
template <int N, int TA, int TB> TW_FN void tw_wgmma_bf16(float* d, u64 a, u64 b, u32 add);
template <int N, int TA, int TB> TW_FN void tw_wgmma_f16(float* d, u64 a, u64 b, u32 add);
template <int N, int TB> TW_FN void tw_wgmma_bf16_held(float* d, const u32 (&a)[4], u64 b, u32 add);
template <int N, int TB> TW_FN void tw_wgmma_f16_held(float* d, const u32 (&a)[4], u64 b, u32 add);
",
    printed: Printed::WithScope,
};

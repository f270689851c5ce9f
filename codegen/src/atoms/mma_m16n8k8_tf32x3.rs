//! `mma.sync.m16n8k8` thrice, for the products of f32: each operand is a sum of two TF32 numbers, and the product of the lesser parts is left
//! out. Elements are split as they are read into registers.

use super::mma_m16n8k8_tf32::FUNCTION;
use super::{AtomRow, Instruction, Operands, Printed, Reads, Rows, Scope, Sums};
use ir::{Atom, Dtype};

pub(super) static INSTRUCTION: Instruction = Instruction {
    atom: Atom::new("mma.m16n8k8.3xtf32"),
    scope: Scope::Warp,
    operands: Operands::Split,
    shape: [16, 8, 8],
    capabilities: (80, u32::MAX),
    rate: Some("mma.tf32"),
    sums: Sums::Apart { terms: 32 },
    rows: Rows::Shared,
    reads: Reads::Elements {
        convert: "tw_split",
    },
    forms: &[AtomRow {
        instruction: &INSTRUCTION,
        operand: Dtype::F32,
        function: FUNCTION,
    }],
    text: r"// x = high + low, two TF32 numbers, but for the last bits of low, which instructions do not read.
TW_FN void tw_split(float x, u32& high, u32& low) {
  high = tw_tf32(x);
  low = __float_as_uint(x - __uint_as_float(high));
}
",
    printed: Printed::WithUse,
};

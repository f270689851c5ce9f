//! `mma.sync.m16n8k8`: TF32 operands, f32 accumulators. Operands are rounded to TF32, so that results are no f32 ones: schedules that a person
//! writes may ask for it.

use super::{AtomRow, Instruction, Operands, Printed, Reads, Rows, Scope, Sums};
use ir::{Atom, Dtype};

/// The device function, which other instructions are made of.
pub(super) const FUNCTION: &str = "tw_mma_tf32";

pub(super) static INSTRUCTION: Instruction = Instruction {
    atom: Atom::new("mma.m16n8k8.tf32"),
    scope: Scope::Warp,
    operands: Operands::Rounded,
    shape: [16, 8, 8],
    capabilities: (80, u32::MAX),
    rate: Some("mma.tf32"),
    sums: Sums::InPlace,
    rows: Rows::Shared,
    reads: Reads::Elements { convert: "tw_tf32" },
    forms: &[AtomRow {
        instruction: &INSTRUCTION,
        operand: Dtype::F32,
        function: FUNCTION,
    }],
    text: r#"TW_FN u32 tw_tf32(float x) { u32 r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
TW_FN void tw_mma_tf32(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
"#,
    printed: Printed::WithScope,
};

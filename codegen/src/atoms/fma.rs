//! `fma.rn.f32`: register tiles on CUDA cores.

use super::{Instruction, Operands, Printed, Reads, Rows, Scope, Sums};
use ir::Atom;

pub(super) static INSTRUCTION: Instruction = Instruction {
    atom: Atom::new("fma"),
    scope: Scope::Thread,
    operands: Operands::Single,
    shape: [1, 1, 1],
    capabilities: (0, u32::MAX),
    rate: None,
    sums: Sums::InPlace,
    rows: Rows::Shared,
    reads: Reads::Threads,
    forms: &[],
    text: "",
    printed: Printed::WithUse,
};

//! The instructions that carry out contractions, as a table with one file an instruction. Nothing else in the code names one: what it wants to
//! know of an instruction are the fields and methods here.
//!
//! To add one: its file in this folder, its line in [`INSTRUCTIONS`], and its rate in the targets that have it.

mod fma;
mod mma_m16n8k16;
mod mma_m16n8k8_tf32;
mod mma_m16n8k8_tf32x3;
mod wgmma;
mod wgmma_m64k16;
mod wgmma_m64k8_tf32x3;

pub(crate) use wgmma::{BACKGROUND, Variant};

use crate::layout::{Layout, Space};
use ir::{Atom, Dtype, MatrixRate, Target};
use std::fmt;

/// All instructions, in the order in which texts list them. Of those that can do the same, the search takes the first.
#[rustfmt::skip]
pub static INSTRUCTIONS: [&Instruction; 6] = [
    &fma::INSTRUCTION,
    &mma_m16n8k16::INSTRUCTION,
    &mma_m16n8k8_tf32::INSTRUCTION,
    &mma_m16n8k8_tf32x3::INSTRUCTION,
    &wgmma_m64k16::INSTRUCTION,
    &wgmma_m64k8_tf32x3::INSTRUCTION,
];

/// The instruction that every GPU has and that multiplies whatever there is.
pub static ANY: &Instruction = &fma::INSTRUCTION;

/// An instruction, as schedules name it.
pub struct Instruction {
    /// Its name.
    pub atom: Atom,
    /// Who issues it.
    pub scope: Scope,
    /// What it multiplies.
    pub operands: Operands,
    /// Rows, columns and depth of one instruction; the columns of a warpgroup's are a unit of which it has several.
    pub shape: [u64; 3],
    /// The compute capabilities that have it, major · 10 + minor.
    pub capabilities: (u32, u32),
    /// Which of a target's [`Target::matrix`] it reaches; none where it runs on CUDA cores.
    pub rate: Option<&'static str>,
    /// How long sums are.
    pub sums: Sums,
    /// Where the rows' operand may be. That of the columns is in shared memory.
    pub rows: Rows,
    /// How it reads operands in shared memory.
    pub reads: Reads,
    /// Its forms, one an element type of operands; none where operands are widened one by one.
    pub forms: &'static [AtomRow],
    /// Device functions that its uses call, beside those that all of its scope share.
    pub text: &'static str,
    /// Where that is printed.
    pub printed: Printed,
}

/// Who issues an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Each thread, with operands in its registers.
    Thread,
    /// The threads of a warp together, which wait for the result.
    Warp,
    /// Four warps together. It runs in the background.
    Warpgroup,
}

/// What an instruction multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// Elements of any type, as f32.
    Single,
    /// Elements of 16 bits, as they are.
    Half,
    /// Elements in f32, rounded to TF32: less exact than [`Operands::Single`], so that the search leaves it alone.
    Rounded,
    /// Elements in f32, each as a sum of two TF32 numbers; the product of the lesser parts is left out. As exact as [`Operands::Single`] on
    /// finite operands; an infinite one gives NaN.
    Split,
}

/// How long sums are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// All terms are summed in the accumulators.
    InPlace,
    /// The instruction truncates sums: few terms are summed in fresh accumulators, and their sums are added with rounding.
    Apart {
        /// So many along the depth, at most.
        terms: u64,
    },
}

/// Where the operand of the rows may be when the instruction reads it.
#[derive(Clone, Copy)]
pub enum Rows {
    /// In shared memory.
    Shared,
    /// There, or in registers where it is computed.
    Either(Held),
    /// In registers.
    Registers(Held),
}

/// An operand of rows in registers.
#[derive(Clone, Copy)]
pub struct Held {
    /// How rows and depth are spread over so many warps along the rows and along the columns, in order of registers.
    pub layout: fn(&Space, &Space, (u64, u64)) -> Layout,
    /// Which lane has an element (row, depth) of sixteen rows and the depth of one instruction, and which of the lane's elements it is.
    pub element: fn(u64, u64) -> (usize, u64),
}

/// How operands in shared memory are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Not by itself: threads read elements before.
    Threads,
    /// By single elements in f32.
    Elements {
        /// The device function that makes of one what the instruction multiplies: one number, or two where it is split.
        convert: &'static str,
    },
    /// By rows of 16 bytes, eight at a time.
    Matrices,
    /// By the instruction itself, in swizzle atoms whose lines are permuted.
    SwizzleAtoms,
}

/// Where the text of an instruction is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    /// Wherever any instruction of its scope is used.
    WithScope,
    /// Only where it is used itself.
    WithUse,
}

/// An instruction with its operands' element type.
#[derive(Clone, Copy)]
pub struct AtomRow {
    /// The instruction.
    pub instruction: &'static Instruction,
    /// How operand elements are held in shared memory.
    pub operand: Dtype,
    /// The device function.
    pub function: &'static str,
}

impl Instruction {
    /// Whether it runs on tensor cores.
    pub fn is_matrix(&self) -> bool {
        self.scope != Scope::Thread
    }

    /// Whether a target has it.
    pub fn exists_on(&self, target: &Target) -> bool {
        let (least, most) = self.capabilities;
        let known = self.rate.is_none() || self.tflops(target) > 0.0;
        known && (least..=most).contains(&target.capability)
    }

    /// What it reaches on a target, in TFLOP/s of its own multiplications and additions; 0 where the target has none of its kind.
    pub fn tflops(&self, target: &Target) -> f64 {
        match self.rate {
            Some(_) => self.reached(target).map_or(0.0, |r| r.tflops),
            None => target.f32_tflops,
        }
    }

    /// Clocks from an instruction to its result, or until tensor cores begin where it runs in the background.
    pub(crate) fn latency_clocks(&self, target: &Target) -> f64 {
        self.reached(target).map_or(0.0, |r| r.latency_clocks)
    }

    fn reached<'a>(&self, target: &'a Target) -> Option<&'a MatrixRate> {
        target.matrix.get(self.rate?)
    }

    /// How often it runs for one product of two elements.
    pub fn products(&self) -> u64 {
        match self.operands {
            Operands::Single | Operands::Half | Operands::Rounded => 1,
            Operands::Split => 3,
        }
    }

    /// Bytes of an operand's element in shared memory; those of memory where it is widened later.
    pub fn operand_bytes(&self, memory: Option<Dtype>) -> u64 {
        match self.operands {
            Operands::Single => memory.map_or(4, Dtype::bytes),
            Operands::Half => 2,
            Operands::Rounded | Operands::Split => 4,
        }
    }

    /// Terms that one sum may have along the depth of a tile; none where there may be as many as wanted.
    pub fn most_terms(&self) -> Option<u64> {
        match (self.scope, self.sums) {
            (Scope::Warpgroup, Sums::Apart { terms }) => Some(terms),
            // Sums of a warp end within the depth of a tile.
            (Scope::Thread | Scope::Warp, Sums::Apart { .. }) | (_, Sums::InPlace) => None,
        }
    }

    /// Whether computed rows may stay in registers.
    pub fn takes_computed_rows(&self) -> bool {
        matches!(self.rows, Rows::Either(_))
    }

    /// The warps that issue one instruction together.
    pub fn warps(&self) -> u64 {
        match self.scope {
            Scope::Thread | Scope::Warp => 1,
            Scope::Warpgroup => 4,
        }
    }

    /// The form for operands of a type.
    pub(crate) fn form(&self, operand: Dtype) -> Option<&'static AtomRow> {
        self.forms.iter().find(|r| r.operand == operand)
    }
}

impl Rows {
    /// How they are in registers, where they may be there.
    pub(crate) fn held(&self) -> Option<Held> {
        match self {
            Self::Shared => None,
            Self::Either(held) | Self::Registers(held) => Some(*held),
        }
    }
}

impl AtomRow {
    /// Rows, columns and depth of one instruction.
    pub(crate) fn shape(&self) -> [u64; 3] {
        self.instruction.shape
    }

    /// The warps that issue one instruction together, sixteen rows each.
    pub(crate) fn warps(&self) -> u64 {
        self.instruction.warps()
    }

    /// Whether a warpgroup issues it.
    pub(crate) fn is_grouped(&self) -> bool {
        self.instruction.scope == Scope::Warpgroup
    }

    /// Whether it runs beside what its warps do otherwise, and may be waited for an iteration later.
    pub(crate) fn is_apart(&self) -> bool {
        self.is_grouped() && !self.splits()
    }

    /// Whether operands are split into two parts each.
    pub(crate) fn splits(&self) -> bool {
        self.instruction.operands == Operands::Split
    }

    /// Whether the parts of the columns are in shared memory: it reads nothing else.
    pub(crate) fn has_halves(&self) -> bool {
        self.is_grouped() && self.splits()
    }
}

impl PartialEq for AtomRow {
    fn eq(&self, other: &Self) -> bool {
        (self.instruction.atom, self.operand) == (other.instruction.atom, other.operand)
    }
}

impl fmt::Debug for AtomRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for AtomRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.instruction.atom.name();
        write!(f, "{name} {}", self.operand.name())
    }
}

impl fmt::Debug for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.atom.name())
    }
}

/// The names of all instructions, in the order of the table.
pub fn names() -> [Atom; INSTRUCTIONS.len()] {
    INSTRUCTIONS.map(|i| i.atom)
}

/// The instruction of a name.
pub fn instruction(atom: Atom) -> Option<&'static Instruction> {
    INSTRUCTIONS.into_iter().find(|i| i.atom == atom)
}

/// The instructions of a target that are issued by `scope` and multiply such operands, best first.
pub fn of<'a>(
    scope: Scope,
    operands: Operands,
    target: &'a Target,
) -> impl Iterator<Item = &'static Instruction> + 'a {
    let suits =
        move |i: &&Instruction| i.scope == scope && i.operands == operands && i.exists_on(target);
    INSTRUCTIONS.into_iter().filter(suits)
}

/// What the best of these reaches on a target, in TFLOP/s; 0 where it has none.
pub fn tflops(scope: Scope, operands: Operands, target: &Target) -> f64 {
    of(scope, operands, target)
        .next()
        .map_or(0.0, |i| i.tflops(target))
}

#[cfg(test)]
mod tests;

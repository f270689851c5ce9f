//! What statements say of what they read, write and compute.

use super::{FragmentId, RegionId, Source, Stage, Swizzle};
use crate::access::Access;
use crate::atoms::AtomRow;
use crate::layout::{Gathered, Layout, Space};
use ir::{AxisId, AxisSet, ReduceOp};
use serde::{Deserialize, Serialize};

/// How a load treats caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// Other blocks read the same.
    Shared,
    /// No other block does.
    Own,
    /// A kernel in front may have written it just now.
    Dependent,
}

/// Partial results of one thread's reduction, where it has several.
pub const PARTS: u64 = 4;

/// An operation of operands that are known to be bounded, NaN aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bounded {
    /// A division whose divisor and quotient are far from f32's limits.
    Quotient,
    /// A division by what is bounded away from zero.
    Divisor,
    /// An exponential of what is bounded on both sides.
    Exponential,
    /// An exponential that is neither infinite nor below the least normal number.
    Normal,
}

impl Bounded {
    /// The operation.
    pub fn op(self) -> ir::MapOp {
        match self {
            Self::Quotient | Self::Divisor => ir::MapOp::Div,
            Self::Exponential | Self::Normal => ir::MapOp::Function(ir::Function::Exp),
        }
    }
}

/// A function of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Function {
    /// The operand itself.
    Copy,
    /// An operation of the program.
    Op(ir::MapOp),
    /// The same of operands of which something is known.
    Bounded(Bounded),
    /// `2^(x · s + y)`.
    ExpOfSum,
    /// The nearest TF32 number: the larger half of an operand.
    Tf32,
    /// What that leaves out: the lesser half.
    Rest,
}

impl Function {
    /// The operation of the program that it is.
    pub fn op(self) -> Option<ir::MapOp> {
        match self {
            Self::Op(op) => Some(op),
            Self::Bounded(bounded) => Some(bounded.op()),
            Self::Copy | Self::ExpOfSum | Self::Tf32 | Self::Rest => None,
        }
    }

    /// Whether it only turns the sign of its second operand, which is part of the instruction that reads the result.
    pub fn is_sign(self, args: &[Source]) -> bool {
        self == Self::Op(ir::MapOp::Mul) && args.first() == Some(&Source::Constant(-1.0))
    }
}

/// A copy into a stage of a region: every element of the stage is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// Where it goes.
    pub region: RegionId,
    /// Which stage.
    pub stage: Stage,
    /// What is read.
    pub access: Access,
    /// Which thread copies what.
    pub layout: Layout,
    /// Elements that move together.
    pub width: u64,
    /// Whether it is under way behind the statement: `cp.async`.
    pub background: bool,
}

/// A store of registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// Where it goes.
    pub access: Access,
    /// What is stored.
    pub from: Source,
    /// How that is spread.
    pub held: Layout,
    /// The exchange between lanes in front of it, if there is one.
    pub gathered: Option<Gathered>,
    /// Elements that move together.
    pub width: u64,
    /// The axes of the value.
    pub axes: AxisSet,
    /// Whether the first block of a group does it alone.
    pub alone: bool,
}

/// A reduction inside each thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// Where it goes.
    pub to: FragmentId,
    /// What combines elements.
    pub op: ReduceOp,
    /// The product of these is reduced.
    pub factors: Vec<Source>,
    /// How its elements are spread.
    pub from: Layout,
    /// What is reduced over.
    pub axes: AxisSet,
    /// The register digit that is shared out to partial results and their number, so that an addition need not wait for the one before.
    pub parts: Option<(usize, u64)>,
}

/// What a fragment has reduced along one axis up to each of its elements, of which each warp has all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scan {
    /// Where it goes.
    pub to: FragmentId,
    /// What combines elements.
    pub op: ReduceOp,
    /// What is scanned.
    pub of: Source,
    /// Along which axis.
    pub axis: AxisId,
    /// Whether an element is in its own result.
    pub inclusive: bool,
}

/// Threads that share the elements of a fragment combine what they have of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Across {
    /// The fragment.
    pub fragment: FragmentId,
    /// How it is spread.
    pub layout: Layout,
    /// What combines elements.
    pub op: ReduceOp,
    /// Bits of the lane, or of the warp, in which such threads differ.
    pub masks: Vec<u32>,
}

/// An operand of a matrix instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// A stage of a region.
    Region(RegionId, Stage),
    /// Registers: elements in f32, or rows.
    Fragment(FragmentId),
}

/// A contraction by instructions of single warps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Multiply {
    /// The instruction.
    #[serde(with = "super::text::instruction")]
    pub row: &'static AtomRow,
    /// The accumulators.
    pub into: FragmentId,
    /// Rows' operand, columns' operand.
    pub inputs: [Input; 2],
    /// Rows, columns, depth.
    pub spaces: [Space; 3],
}

/// A contraction by fused multiply-adds of single threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outer {
    /// The accumulators.
    pub into: FragmentId,
    /// Rows' operand, columns' operand.
    pub inputs: [(RegionId, Stage); 2],
    /// What of each operand a thread reads.
    pub parts: [Layout; 2],
    /// The axes that are summed over, with their padded tiles; these are loops.
    pub depth: Vec<(AxisId, u64)>,
    /// All axes that are summed over.
    pub axes: AxisSet,
}

/// Warpgroup instructions that are issued and not waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issue {
    /// The instruction.
    #[serde(with = "super::text::instruction")]
    pub row: &'static AtomRow,
    /// The accumulators.
    pub into: FragmentId,
    /// Whether the first instruction overwrites them.
    pub fresh: bool,
    /// Groups of four warps along the rows.
    pub groups: u64,
    /// Instructions along the rows, along the columns and along the depth.
    pub counts: [u64; 3],
    /// Columns of one instruction.
    pub columns: u64,
    /// Rows' operand.
    pub a: Rows,
    /// Columns' operand.
    pub b: SwizzleAtoms,
}

/// The rows' operand of a warpgroup instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Rows {
    /// In shared memory.
    SwizzleAtoms(SwizzleAtoms),
    /// In registers: rows, or elements in f32 where the instruction reads such ones.
    Fragment(FragmentId),
}

/// An operand in shared memory, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwizzleAtoms {
    /// Where it is.
    pub region: RegionId,
    /// Which stage.
    pub stage: Stage,
    /// How it is permuted.
    pub swizzle: Swizzle,
    /// From what one group of warps reads to what the next one reads; none where all read the same.
    pub share: Option<u64>,
    /// From one instruction to the next along the rows (or columns).
    pub further: u64,
}

/// Makes two halves of each element of an operand of a matrix instruction, whose sum it is: see [`Function::Tf32`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// Where the operand is.
    pub from: RegionId,
    /// Which stage.
    pub stage: Stage,
    /// Rows (or columns).
    pub kept: Side,
    /// The depth, by the digits of its index, lowest first: the first counts at least four.
    pub depth: Vec<Side>,
    /// Where the larger and the lesser halves go, in lines along the depth.
    pub to: [RegionId; 2],
    /// Which stage.
    pub into: Stage,
}

/// A side of an operand in shared memory, or a digit of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// How many there are.
    pub count: u64,
    /// Elements from one to the next.
    pub stride: u64,
}

/// A partial result, which the blocks of a group store and reduce.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partial {
    /// What combines parts.
    pub op: ReduceOp,
    /// What this block has, and then the result.
    pub fragment: FragmentId,
    /// How it is spread.
    pub layout: Layout,
    /// (axis, floats a step) of a part; none where a part lies as threads hold it.
    pub strides: Option<Vec<(AxisId, u64)>>,
    /// Floats of a part.
    pub floats: u64,
    /// Floats that each block stored before.
    pub before: u64,
    /// Where the parts lie.
    pub home: Parts,
    /// Parts that a thread reads before it combines any: all where there are no more.
    pub ahead: u64,
}

/// Where the parts of a partial result lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parts {
    /// In the split-K workspace: those of all block groups one behind the other, from so many bytes on.
    Workspace(u64),
    /// Each in this region of its own block's shared memory, which all blocks of the cluster read.
    Region(RegionId),
}

/// Bytes between the counters of two block groups in the split-K workspace: a sector.
pub const COUNTER_BYTES: u64 = 32;

impl Across {
    /// Floats that a warp writes for each register: lanes that hold the same write one.
    pub fn columns(&self) -> u64 {
        32 >> self.layout.copy_masks().0.count_ones()
    }
}

//! The machine program of one kernel: what each role of a block does, as plain data in tiles and named axes.
//!
//! Memory is *fragments* (registers, with a [`Layout`]), *regions* of shared memory (with strides, a swizzle and stages) and the buffers
//! that the kernel is launched with. Statements work on whole tiles; which thread does what follows from the layouts. What it does not
//! hold is text: that is the printer's, which decides nothing.

mod copy;
pub(crate) mod counts;
pub(crate) mod resources;
mod text;
mod validate;

pub use self::resources::Resources;
pub use self::text::MachineError;
pub use self::validate::Malformed;

pub use crate::axes::{Axes, Axis};

use crate::access::Access;
use crate::atoms::AtomRow;
use crate::layout::{Gathered, Layout, Space};
use crate::{SplitWorkspace, TensorMap};
use ir::{Affine, AxisId, AxisSet, Bound, BufferId, Dtype, ReduceOp};
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

/// Registers of each thread that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FragmentId(pub u32);

/// A region of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RegionId(pub u32);

/// A ring of stages, with barriers that say which are full and which are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RingId(pub u32);

/// A loop, by its number in program order.
pub type LoopId = usize;

/// One kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The entry point.
    pub name: String,
    /// The axes that it mentions.
    pub axes: Axes,
    /// Its arguments, in order.
    pub buffers: BTreeMap<BufferId, Argument>,
    /// Warps that compute, along rows and columns of a contraction.
    pub warps: [u64; 2],
    /// Blocks that an SM is to have room for.
    pub blocks_per_sm: u32,
    /// Whether functions are those that are as accurate as f32 allows.
    pub precise: bool,
    /// Every fragment.
    pub fragments: Vec<Fragment>,
    /// Every region.
    pub regions: Vec<Region>,
    /// The rings that warps of their own fill.
    pub rings: Vec<Ring>,
    /// Memory of a block that is used for one statement after another.
    pub scratch: Scratch,
    /// Where the tiles of the grid are.
    pub grid: Grid,
    /// The blocks that make a result together, if they do.
    pub block_group: Option<BlockGroup>,
    /// Blocks of a cluster: they have neighbouring numbers, run at the same time, and reach each other's shared memory. 1 where blocks are alone.
    pub cluster: u64,
    /// Memory in which these wait for each other.
    pub split_workspace: SplitWorkspace,
    /// What all threads do first: the barriers of rings have been made.
    pub prologue: Vec<Statement>,
    /// The warps that only fill rings.
    pub producer: Option<Producer>,
    /// What the warps do that compute.
    pub body: Vec<Statement>,
    /// What all threads do at the end.
    pub epilogue: Vec<Statement>,
    /// Whether it may begin before the launch in front of it has ended: it waits for that by itself.
    pub overlaps: bool,
}

/// A buffer that the kernel is launched with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argument {
    /// Its name in the program.
    pub name: String,
    /// How elements are held.
    pub dtype: Dtype,
    /// Whether the kernel writes it.
    pub written: bool,
    /// Whether a kernel in front may write it while this one has begun.
    pub dependent: bool,
}

/// Registers of each thread that computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fragment {
    /// A name, once in a kernel.
    pub name: String,
    /// What is in them.
    pub holds: Holds,
}

/// What a fragment holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Holds {
    /// Elements of a tile in f32.
    Floats(Layout),
    /// Rows of a matrix instruction, two elements a register: so many instructions along the rows and along the depth.
    Rows {
        /// Along the rows.
        atoms: u64,
        /// Along the depth.
        steps: u64,
    },
    /// A condition.
    Flag,
}

/// Where elements of an operand come from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Source {
    /// The same everywhere.
    Constant(f64),
    /// The coordinate along an axis.
    Coordinate(AxisId),
    /// Registers.
    Fragment(FragmentId),
}

/// A region of shared memory: element `Σ coordinate · stride`, all coordinates below `size` present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// The name of what it holds.
    pub name: String,
    /// How elements are held.
    pub dtype: Dtype,
    /// (axis, size, stride); the first has stride 1.
    pub axes: Vec<(AxisId, u64, u64)>,
    /// Elements a stage.
    pub elements: u64,
    /// Stages, more than one for a ring.
    pub stages: u64,
    /// Byte offset in the block's shared memory.
    pub offset: u64,
    /// How rows of 16-byte chunks are permuted, where warpgroup instructions read it. Strides of the first [`Swizzle::along`] axes then
    /// count along its lines and those of the others count lines.
    pub swizzle: Option<Swizzle>,
    /// What of a buffer it holds, where it holds a part of it as it stands; empty where it holds a value.
    pub patch: Vec<PatchSide>,
    /// How the hardware copies it by itself, if it does.
    pub boxes: Option<Boxes>,
}

/// Bytes of a swizzle atom's line, at least and at most.
const LINE_BYTES: (u64, u64) = (32, 128);

/// Swizzle atoms of lines: element (x, y) lies at `(x / span · lines + y) · span + x % span`, the 16-byte chunks of a line permuted
/// by the line's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swizzle {
    /// Elements of a swizzle atom's line, which has 128, 64 or 32 bytes.
    pub span: u64,
    /// Lines of a swizzle atom.
    pub lines: u64,
    /// How many of the tile's axes run along lines.
    pub along: usize,
    /// Whether lines run along the depth of the contraction.
    pub depth: bool,
}

impl Swizzle {
    /// Elements of the longest line of which a whole number makes so many elements; of the shortest one if none does.
    pub(crate) fn longest(elements: u64, dtype: Dtype) -> u64 {
        let (least, most): (u64, u64) = LINE_BYTES;
        let lines = (elements * dtype.bytes()).trailing_zeros();
        (1 << lines.clamp(least.trailing_zeros(), most.trailing_zeros())) / dtype.bytes()
    }

    /// Bytes of a swizzle atom's line.
    pub fn line_bytes(self, dtype: Dtype) -> u64 {
        dtype.bytes() * self.span
    }

    /// Bytes of a swizzle atom.
    pub fn swizzle_atom_bytes(self, dtype: Dtype) -> u64 {
        self.lines * self.line_bytes(dtype)
    }
}

/// One dimension of a part of a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PatchSide {
    /// The buffer's axis.
    pub axis: AxisId,
    /// Elements along it.
    pub span: u64,
    /// Elements a step in shared memory.
    pub pitch: u64,
    /// Elements a step in the buffer.
    pub stride: i64,
    /// Where it starts, as a function of where the tile starts.
    pub function: Affine,
    /// The buffer's extent.
    pub extent: i64,
    /// Whether elements may lie outside the buffer.
    pub checked: bool,
}

/// How the hardware copies a region, one box a swizzle atom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boxes {
    /// The tensor and the box.
    pub map: TensorMap,
    /// The axis of each dimension: its coordinate is where the box begins.
    pub axes: Vec<AxisId>,
    /// Elements of a swizzle atom's line, along the first dimension.
    pub span: u64,
    /// How many swizzle atoms there are.
    pub swizzle_atoms: u64,
    /// What of the region each block of a cluster copies to the same place in all of them; none where each copies all of it for itself.
    pub share: Option<Share>,
}

/// How the blocks of a cluster share out a region that they all read: block `r` of `n` copies part `r` of as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// Swizzle atoms.
    SwizzleAtoms,
    /// Coordinates of each swizzle atom along this dimension of the box, outside of which a box has no others: it is as small as a part.
    Dimension(usize),
}

/// The boxes of a region that one block copies, swizzle atom by swizzle atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Swizzle atoms in which the block copies a box.
    pub swizzle_atoms: u64,
    /// Swizzle atoms in front of the first of them, for each block of the cluster in front of this one.
    pub swizzle_atoms_before: u64,
    /// Elements in front of the box in its swizzle atom, for each block of the cluster in front of this one.
    pub before: u64,
    /// The dimension along which it begins so many coordinates later, for each of these blocks.
    pub later: Option<(usize, u64)>,
}

impl Boxes {
    /// Elements of one box.
    pub fn elements(&self) -> u64 {
        self.map.sizes.iter().map(|n| u64::from(*n)).product()
    }

    /// Elements of a swizzle atom, which is one box unless the blocks of a cluster share it.
    pub fn swizzle_atom_elements(&self, cluster: u64) -> u64 {
        match self.share {
            Some(Share::Dimension(_)) => self.elements() * cluster,
            Some(Share::SwizzleAtoms) | None => self.elements(),
        }
    }

    /// Bytes of a region, in a cluster of so many blocks.
    pub fn bytes(&self, cluster: u64) -> u64 {
        const ELEMENT: u64 = 2;
        self.swizzle_atom_elements(cluster) * self.swizzle_atoms * ELEMENT
    }

    /// What one block of a cluster copies.
    pub fn part(&self, cluster: u64) -> Part {
        let all = Part {
            swizzle_atoms: self.swizzle_atoms,
            swizzle_atoms_before: 0,
            before: 0,
            later: None,
        };
        match self.share {
            None => all,
            Some(Share::SwizzleAtoms) => Part {
                swizzle_atoms: self.swizzle_atoms / cluster,
                swizzle_atoms_before: self.swizzle_atoms / cluster,
                ..all
            },
            Some(Share::Dimension(d)) => Part {
                before: self.elements(),
                later: Some((d, u64::from(self.map.sizes[d]))),
                ..all
            },
        }
    }
}

/// The stages of one kind, and the regions that have them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Which variable counts its stages.
    pub counter: Counter,
    /// What it is made of.
    pub regions: Vec<RegionId>,
    /// How many there are.
    pub stages: u64,
    /// Blocks whose warps have to be done with a stage before it is filled again: all of a cluster where these share out what fills it.
    pub readers: u64,
    /// Where the barriers of full stages begin in shared memory, in bytes; those of empty stages follow.
    pub barriers: u64,
}

/// What counts the stages of a loop's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Counter {
    /// The loop.
    pub number: LoopId,
    /// Whether stages are still read in the iteration after their own, and so are one more.
    pub delayed: bool,
}

/// A stage of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// This one.
    At(u64),
    /// The one that the iteration reads.
    Current(Counter),
    /// The one that [`Statement::NextStage`] found.
    Next(Counter),
    /// The one that [`Statement::PreviousStage`] found.
    Previous(LoopId),
}

/// Scratch memory in shared memory, for one statement after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scratch {
    /// Where it begins.
    pub offset: u64,
    /// How much of it is used.
    pub bytes: u64,
}

/// Where the tiles of a grid are: a block's number counts them, the first coordinate fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// The axes, fastest first.
    pub coordinates: Vec<GridAxis>,
    /// How tiles of the two fastest axes are gone over, if not one axis after the other.
    pub raster: Option<Raster>,
    /// All of them.
    pub tiles: u64,
    /// Whether blocks are persistent: each goes over several tiles.
    pub persistent: bool,
}

/// The number of the tile that a persistent block, one of so many, takes when it has had `turn` others. They go over the tiles there and back: who had
/// one of the last of a turn has one of the first of the next, so that all have as much to do where tiles take longer and longer. Blocks of a cluster
/// stay together.
pub(crate) fn work_tile(turn: u64, block: u64, blocks: u64, cluster: u64) -> u64 {
    let (number, rank) = (block / cluster, block % cluster);
    let place = match turn % 2 {
        0 => block,
        _ => blocks - cluster * (number + 1) + rank,
    };
    turn * blocks + place
}

/// One axis of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridAxis {
    /// The axis.
    pub axis: AxisId,
    /// Tiles along it.
    pub count: u64,
    /// Whether the last tile comes first.
    pub descending: bool,
}

/// Grouped launch order: some tiles of the slow axis are gone over before the fast one moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raster {
    /// Tiles along the fastest axis that has several.
    pub fast: u64,
    /// And along the next.
    pub slow: u64,
    /// Tiles along the slow one that are gone over together.
    pub height: u64,
}

/// Blocks that combine what they have: through the split-K workspace, or as a cluster, if it is of so many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockGroup {
    /// Blocks of a group.
    pub size: u64,
    /// Whether blocks wait for others, and so take their numbers in the order in which they begin.
    pub waits: bool,
    /// Grid barriers of the group.
    pub grid_barriers: u64,
}

/// Warps that only fill rings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Producer {
    /// Its threads.
    pub threads: u64,
    /// Whether one thread asks the hardware for boxes; else all copy.
    pub boxed: bool,
    /// Registers that its threads keep and those that the others have then, where any move.
    pub registers: Option<(u64, u64)>,
    /// What they do.
    pub body: Vec<Statement>,
}

/// Which threads a barrier holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Among {
    /// All of a block.
    Block,
    /// Those that compute.
    Computing,
}

/// An iteration of a loop, which may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum At {
    /// The first one.
    First(LoopId),
    /// So many behind the first.
    FirstAnd(LoopId, u64),
    /// The current one.
    Now(LoopId),
    /// So many behind the current one.
    NowAnd(LoopId, u64),
}

impl At {
    /// Its loop.
    pub fn number(self) -> LoopId {
        match self {
            Self::First(n) | Self::FirstAnd(n, _) | Self::Now(n) | Self::NowAnd(n, _) => n,
        }
    }
}

/// A condition of a branch, alike for all threads of a warp unless it names threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// An iteration exists.
    Exists(At),
    /// The iteration is not its loop's first.
    NotFirst(LoopId),
    /// A loop has an iteration.
    NotEmpty(LoopId),
    /// The group of four warps has this number.
    Group(u64),
    /// A flag is set.
    Flag(FragmentId),
    /// One thread of each warp.
    Lane0,
    /// The block is the first of its cluster.
    FirstBlock,
}

/// A group of four warps that takes turns with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Turn {
    /// The thread's own.
    Own,
    /// The first.
    First,
    /// The one behind the thread's own, or the first behind the last.
    Next,
}

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

/// A function of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Function {
    /// The operand itself.
    Copy,
    /// An operation of the program.
    Op(ir::MapOp),
    /// `2^(x · s + y)`.
    ExpOfSum,
    /// The nearest TF32 number: the larger half of an operand.
    Tf32,
    /// What that leaves out: the lesser half.
    Rest,
}

/// What a barrier, a vote or a queue of copies or instructions does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sync {
    /// Threads meet.
    Barrier(Among),
    /// All threads of a cluster meet: the barriers that each block made are there for all.
    ClusterBegins,
    /// All threads of a cluster meet: what each block did to others' shared memory has happened.
    ClusterEnds,
    /// The lanes of a warp meet.
    Warp,
    /// The thread's copies up to here are a group.
    CopyCommit,
    /// At most so many groups of the thread's copies stay under way.
    CopyWait(u64),
    /// The thread's writes to shared memory are seen by warpgroup instructions behind the next barrier.
    ProxyFence,
    /// The instructions of a warpgroup up to here are a group.
    Commit,
    /// At most so many of these groups stay under way.
    Wait(u64),
    /// What instructions under way write stays where it is: the compiler may not move it.
    Keep(FragmentId),
    /// A stage has to be full.
    Full(RingId),
    /// A stage has to be empty.
    Empty(RingId),
    /// The current stage is done with.
    Release(RingId),
    /// The stage before the current one is done with.
    ReleasePrevious(RingId),
    /// The current stage is done with, as far as the other blocks of the cluster are concerned.
    ReleasePeers(RingId),
    /// The stage before the current one is.
    ReleasePreviousPeers(RingId),
    /// A stage is full once the copies of this thread have landed.
    CopyArrive(RingId),
    /// The copies of this thread end before it does.
    CopiesEnd,
    /// A group waits for its turn.
    TurnWait(Turn),
    /// It is a group's turn.
    TurnPass(Turn),
    /// A flag becomes that of any thread of the group of four warps.
    Vote(FragmentId),
    /// The kernels behind may begin.
    StartNext,
    /// The kernels in front have ended.
    WaitBefore,
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
    #[serde(with = "self::text::instruction")]
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
    #[serde(with = "self::text::instruction")]
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
    /// Rows (or columns), and the depth.
    pub sides: [Side; 2],
    /// Where the larger and the lesser halves go, in lines along the depth.
    pub to: [RegionId; 2],
    /// Which stage.
    pub into: Stage,
}

/// A side of an operand in shared memory.
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

/// What the threads of a role do, one statement after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Statement {
    /// A fragment exists from here to the end of the scope.
    Declare(FragmentId),
    /// `to = function(operands)`, element by element.
    Map {
        /// Where it goes.
        to: FragmentId,
        /// The function.
        function: Function,
        /// Its operands.
        args: Vec<Source>,
    },
    /// `to = condition ≥ 0 ? x : y`; whether the whole tile satisfies the condition is found out first.
    Select {
        /// Where it goes.
        to: FragmentId,
        /// The condition, over coordinates.
        condition: Affine,
        /// Where it holds.
        x: Source,
        /// Elsewhere.
        y: Source,
    },
    /// `scale` such that `2^(x · scale + of · scale) = e^(by · (x + of))`, and `of · scale`.
    ExpScale {
        /// The scale.
        scale: FragmentId,
        /// The scaled operand.
        scaled: FragmentId,
        /// The operand.
        of: Source,
        /// The factor.
        by: Source,
    },
    /// `to = from`, zero where a coordinate does not exist.
    Mask {
        /// Where it goes.
        to: FragmentId,
        /// What is masked.
        from: FragmentId,
        /// The coordinates.
        axes: Vec<AxisId>,
    },
    /// Sets a flag where an element is not 1.
    IsNotOne {
        /// The flag, which stays set where it was.
        flag: FragmentId,
        /// The elements.
        of: Source,
        /// How they are spread.
        layout: Layout,
    },
    /// Reduces inside each thread.
    Reduce(Reduce),
    /// Combines what lanes have.
    AcrossLanes(Across),
    /// Writes what a warp has to scratch memory.
    PutParts(Across),
    /// Combines what warps have written there.
    TakeParts(Across),
    /// Writes elements to scratch memory.
    Spill {
        /// What is written.
        from: FragmentId,
        /// How it is spread.
        held: Layout,
    },
    /// Reads elements from scratch memory; zero where none were written.
    Unspill {
        /// Where they go.
        to: FragmentId,
        /// How they were spread.
        held: Layout,
    },
    /// Reads a buffer.
    Load {
        /// Where it goes.
        to: FragmentId,
        /// What is read.
        access: Access,
        /// The axes of the value.
        axes: AxisSet,
        /// Elements that move together.
        width: u64,
        /// How it treats caches.
        policy: Policy,
    },
    /// Writes a buffer.
    Store(Box<Store>),
    /// Fills a stage, by threads.
    Copy(Box<Copy>),
    /// Fills the stages of a ring, by the hardware.
    CopyBoxes(RingId),
    /// Asks L2 for the boxes of regions at the current tiles: nothing waits for them, and nothing of the block's changes.
    PrefetchBoxes(Vec<RegionId>),
    /// The same for what a load reads.
    Prefetch {
        /// What it reads.
        access: Access,
        /// How threads share it out.
        layout: Layout,
        /// The axes whose coordinates may lie beyond their extents.
        axes: AxisSet,
        /// Elements that a thread asks for at once.
        width: u64,
    },
    /// Zeros a stage.
    Clear(RegionId),
    /// Writes registers to a region, zero where a coordinate does not exist.
    Publish {
        /// Where they go.
        region: RegionId,
        /// What is written.
        from: Source,
        /// How it is spread.
        layout: Layout,
        /// The axes of the value.
        axes: AxisSet,
    },
    /// Reads elements from a region.
    Fetch {
        /// Where they go.
        to: FragmentId,
        /// Where they are.
        region: RegionId,
        /// Which stage.
        stage: Stage,
    },
    /// A contraction by warps.
    Multiply(Box<Multiply>),
    /// A contraction by threads.
    Outer(Box<Outer>),
    /// Makes two halves of each element of an operand.
    Split(Box<Split>),
    /// A contraction by groups of warps that is under way behind the statement.
    Issue(Box<Issue>),
    /// Rounds elements to what an instruction reads from registers.
    Pack {
        /// Where they go: rows.
        to: FragmentId,
        /// What is rounded.
        from: FragmentId,
        /// To what.
        dtype: Dtype,
        /// Registers of `from` between one row of instructions and the next.
        stride: u64,
    },
    /// Stores what this block has: its partial result.
    StorePartial(Box<Partial>),
    /// A grid barrier: the blocks of a group wait for each other, as often as this number says.
    GridBarrier(u64),
    /// All blocks of a group but the last to come end here.
    LastGoesOn,
    /// Reduces the partial results of all blocks of the group.
    ReducePartials(Box<Partial>),
    /// How far a loop goes.
    Range {
        /// The loop.
        number: LoopId,
        /// Its axis.
        axis: AxisId,
        /// Lower bounds in coordinates; the largest counts.
        low: Vec<Bound>,
        /// Upper bounds in coordinates, exclusive; the smallest counts.
        high: Vec<Bound>,
    },
    /// Where a tile is: that of an iteration.
    Tile {
        /// The loop's axis.
        axis: AxisId,
        /// The iteration.
        at: At,
    },
    /// The iterations of a loop.
    Loop {
        /// The loop.
        number: LoopId,
        /// One of them.
        body: Vec<Statement>,
    },
    /// The tiles of a persistent block.
    Tiles(Vec<Statement>),
    /// A branch.
    If {
        /// When it is taken.
        condition: Condition,
        /// What happens then.
        then: Vec<Statement>,
        /// And else.
        otherwise: Vec<Statement>,
    },
    /// What is declared here ends here.
    Scope(Vec<Statement>),
    /// A counter of stages begins at 0.
    OpenStages(Counter),
    /// The stage that is to be filled, so many iterations ahead.
    NextStage {
        /// The counter.
        counter: Counter,
        /// Its stages.
        stages: u64,
        /// Iterations.
        ahead: u64,
    },
    /// The stage of the iteration before.
    PreviousStage {
        /// The loop, whose counter is a delayed one.
        number: LoopId,
        /// Its stages.
        stages: u64,
    },
    /// The next stage is the current one.
    AdvanceStage {
        /// The counter.
        counter: Counter,
        /// Its stages.
        stages: u64,
    },
    /// The counter and the phase of a ring begin, with this parity.
    OpenRing(RingId, u32),
    /// The next stage of a ring is the current one.
    AdvanceRing(RingId),
    /// See [`Sync`].
    Sync(Sync),
}

impl Statement {
    /// The lists of statements in it.
    pub fn lists(&self) -> SmallVec<[&[Statement]; 2]> {
        if let Self::Loop { body, .. } | Self::Tiles(body) | Self::Scope(body) = self {
            smallvec![body.as_slice()]
        } else if let Self::If {
            then, otherwise, ..
        } = self
        {
            smallvec![then.as_slice(), otherwise.as_slice()]
        } else {
            SmallVec::new()
        }
    }

    /// The regions that it writes, of itself.
    pub(crate) fn fills(&self, rings: &[Ring]) -> Vec<RegionId> {
        if let Self::Copy(copy) = self {
            vec![copy.region]
        } else if let Self::Clear(region) | Self::Publish { region, .. } = self {
            vec![*region]
        } else if let Self::Split(split) = self {
            split.to.to_vec()
        } else if let Self::CopyBoxes(ring) = self {
            rings[ring.0 as usize].regions.clone()
        } else {
            Vec::new()
        }
    }

    /// Whether there are statements in it.
    pub(crate) fn is_list(&self) -> bool {
        matches!(
            self,
            Self::Loop { .. } | Self::Tiles(_) | Self::Scope(_) | Self::If { .. }
        )
    }

    /// What it reads of regions, and in which stage, to change that.
    pub(crate) fn stages_read_mut(&mut self) -> Vec<(RegionId, &mut Stage)> {
        if let Self::Issue(issue) = self {
            let a = match &mut issue.a {
                Rows::SwizzleAtoms(a) => Some(a),
                Rows::Fragment(_) => None,
            };
            let both = a.into_iter().chain([&mut issue.b]);
            both.map(|p| (p.region, &mut p.stage)).collect()
        } else if let Self::Multiply(multiply) = self {
            let inputs = multiply.inputs.iter_mut();
            inputs
                .filter_map(|input| match input {
                    Input::Region(region, stage) => Some((*region, stage)),
                    Input::Fragment(_) => None,
                })
                .collect()
        } else if let Self::Split(split) = self {
            vec![(split.from, &mut split.stage)]
        } else if let Self::Fetch { region, stage, .. } = self {
            vec![(*region, stage)]
        } else if let Self::Outer(outer) = self {
            outer.inputs.iter_mut().map(|(r, s)| (*r, s)).collect()
        } else {
            Vec::new()
        }
    }

    /// The fragments that it names of itself, to change that.
    pub(crate) fn fragments_mut(&mut self) -> Vec<&mut FragmentId> {
        fn named<'s>(
            ids: impl IntoIterator<Item = &'s mut FragmentId>,
            sources: impl IntoIterator<Item = &'s mut Source>,
        ) -> Vec<&'s mut FragmentId> {
            let of = |source: &'s mut Source| match source {
                Source::Fragment(id) => Some(id),
                Source::Constant(_) | Source::Coordinate(_) => None,
            };
            let sources = sources.into_iter().filter_map(of);
            ids.into_iter().chain(sources).collect()
        }
        match self {
            Self::Declare(id) | Self::Sync(Sync::Keep(id) | Sync::Vote(id)) => named([id], []),
            Self::If {
                condition: Condition::Flag(id),
                ..
            } => named([id], []),
            Self::Map { to, args, .. } => named([to], args),
            Self::Select { to, x, y, .. } => named([to], [x, y]),
            Self::ExpScale {
                scale,
                scaled,
                of,
                by,
            } => named([scale, scaled], [of, by]),
            Self::Mask { to, from, .. } | Self::Pack { to, from, .. } => named([to, from], []),
            Self::IsNotOne { flag, of, .. } => named([flag], [of]),
            Self::Reduce(reduce) => named([&mut reduce.to], &mut reduce.factors),
            Self::AcrossLanes(across) | Self::PutParts(across) | Self::TakeParts(across) => {
                named([&mut across.fragment], [])
            }
            Self::Spill { from: id, .. }
            | Self::Unspill { to: id, .. }
            | Self::Load { to: id, .. }
            | Self::Fetch { to: id, .. } => named([id], []),
            Self::Store(store) => named([], [&mut store.from]),
            Self::Publish { from, .. } => named([], [from]),
            Self::Multiply(multiply) => {
                let held = multiply.inputs.iter_mut().filter_map(|input| match input {
                    Input::Fragment(id) => Some(id),
                    Input::Region(..) => None,
                });
                named(held.chain([&mut multiply.into]), [])
            }
            Self::Outer(outer) => named([&mut outer.into], []),
            Self::Issue(issue) => {
                let held = match &mut issue.a {
                    Rows::Fragment(id) => Some(id),
                    Rows::SwizzleAtoms(_) => None,
                };
                named(held.into_iter().chain([&mut issue.into]), [])
            }
            Self::StorePartial(partial) | Self::ReducePartials(partial) => {
                named([&mut partial.fragment], [])
            }
            Self::Split(_)
            | Self::Sync(_)
            | Self::Copy(_)
            | Self::CopyBoxes(_)
            | Self::PrefetchBoxes(_)
            | Self::Prefetch { .. }
            | Self::Clear(_)
            | Self::GridBarrier(_)
            | Self::LastGoesOn
            | Self::Range { .. }
            | Self::Tile { .. }
            | Self::Loop { .. }
            | Self::Tiles(_)
            | Self::If { .. }
            | Self::Scope(_)
            | Self::OpenStages(_)
            | Self::NextStage { .. }
            | Self::PreviousStage { .. }
            | Self::AdvanceStage { .. }
            | Self::OpenRing(..)
            | Self::AdvanceRing(_) => Vec::new(),
        }
    }

    /// The lists of statements in it, to change them.
    pub fn lists_mut(&mut self) -> Vec<&mut Vec<Statement>> {
        if let Self::Loop { body, .. } | Self::Tiles(body) | Self::Scope(body) = self {
            vec![body]
        } else if let Self::If {
            then, otherwise, ..
        } = self
        {
            vec![then, otherwise]
        } else {
            Vec::new()
        }
    }
}

impl Machine {
    /// Threads that compute.
    pub fn computing(&self) -> u64 {
        32 * self.warps[0] * self.warps[1]
    }

    /// Threads of a block, with those that only fill rings.
    pub fn threads(&self) -> u64 {
        self.computing() + self.producer.as_ref().map_or(0, |p| p.threads)
    }

    /// Shared memory of a block in bytes: scratch memory lies behind everything else.
    pub fn shared_bytes(&self) -> u64 {
        self.scratch.offset.saturating_add(self.scratch.bytes)
    }

    /// Groups of four warps, which issue instructions together.
    pub fn groups(&self) -> u64 {
        self.computing() / 128
    }

    /// A fragment.
    pub fn fragment(&self, id: FragmentId) -> &Fragment {
        &self.fragments[id.0 as usize]
    }

    /// A region.
    pub fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.0 as usize]
    }

    /// A ring.
    pub fn ring(&self, id: RingId) -> &Ring {
        &self.rings[id.0 as usize]
    }

    /// Whether a wait for a full stage makes what threads copied there visible to warpgroup instructions: where these read it as it is. What
    /// the hardware copied they see without more.
    pub fn rings_are_fenced(&self) -> bool {
        let mut regions = self.rings.iter().flat_map(|r| &r.regions);
        let boxed = self.producer.as_ref().is_some_and(|p| p.boxed);
        !boxed && regions.any(|id| self.region(*id).swizzle.is_some())
    }

    /// Whether some elements of a layout have no coordinate along an axis.
    pub fn overhangs(&self, layout: &Layout, axis: AxisId) -> bool {
        let own = &self.axes[&axis];
        own.is_partial() || layout.cover(axis) > own.tile
    }
}

impl Fragment {
    /// How its elements are spread; the layout of nothing where it holds none.
    pub fn layout(&self) -> Layout {
        match &self.holds {
            Holds::Floats(layout) => layout.clone(),
            Holds::Rows { .. } | Holds::Flag => Layout::default(),
        }
    }

    /// Registers a thread.
    pub fn registers(&self) -> u64 {
        match &self.holds {
            Holds::Floats(layout) => layout.register_count(),
            Holds::Rows { atoms, steps } => atoms.saturating_mul(*steps).saturating_mul(4),
            Holds::Flag => 1,
        }
    }
}

//! The machine program of one kernel: what each role of a block does, as plain data in tiles and named axes.
//!
//! Memory is *fragments* (registers, with a [`Layout`]), *regions* of shared memory (with strides, a swizzle and stages) and the buffers
//! that the kernel is launched with. Statements work on whole tiles; which thread does what follows from the layouts. What it does not
//! hold is text: that is the printer's, which decides nothing.

mod copy;
pub(crate) mod counts;
mod operands;
pub(crate) mod resources;
mod statement;
mod text;
mod validate;

pub use self::operands::{
    Across, Bounded, COUNTER_BYTES, Copy, Function, Input, Issue, Multiply, Outer, PARTS, Partial,
    Parts, Policy, Reduce, Rows, Scan, Side, Split, Store, SwizzleAtoms,
};
pub use self::resources::Resources;
pub use self::statement::{Among, At, Condition, Statement, Sync, Turn};
pub use self::text::MachineError;
pub use self::validate::Malformed;

pub use crate::axes::{Axes, Axis};

use crate::layout::Layout;
use crate::{SplitWorkspace, TensorMap};
use ir::{Affine, AxisId, BufferId, Dtype};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

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
    /// The warps that only fill rings, four of each kind: those that copy, and those that split what others copied.
    pub producers: Vec<Producer>,
    /// Registers of each thread that computes once those have given theirs, where any move.
    pub registers: Option<u64>,
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
    /// Whose warps fill it: a place among the producers.
    #[serde(default, skip_serializing_if = "is_first")]
    pub filled_by: u32,
    /// Whose warps read it, where not those do that compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_by: Option<u32>,
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
    /// Which stages, where warps of their own split what is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitStages>,
}

/// Stages of what is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SplitStages {
    /// As it was copied.
    Wholes,
    /// Split.
    Halves,
}

fn is_first(place: &u32) -> bool {
    *place == 0
}

impl Counter {
    /// The stages of a loop's copies.
    pub fn copied(number: LoopId, delayed: bool) -> Self {
        Self {
            number,
            delayed,
            split: None,
        }
    }
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
    /// Registers that its threads keep, where any move.
    pub registers: Option<u64>,
    /// What they do.
    pub body: Vec<Statement>,
}

/// Registers for whose sake tiles that are whole have code of their own.
const WORTH_A_BRANCH: u64 = 8;

impl Machine {
    /// Threads that compute.
    pub fn computing(&self) -> u64 {
        32 * self.warps[0] * self.warps[1]
    }

    /// Threads of a block, with those that only fill rings.
    pub fn threads(&self) -> u64 {
        self.computing() + self.producers.iter().map(|p| p.threads).sum::<u64>()
    }

    /// The threads of the warps of a place among the producers, which stand behind those that compute; without a place those that compute.
    pub fn threads_of(&self, producer: Option<u32>) -> Range<u64> {
        let mut first = self.computing();
        let Some(place) = producer else {
            return 0..first;
        };
        for own in self.producers.iter().take(place as usize) {
            first += own.threads;
        }
        let own = self.producers.get(place as usize);
        first..first + own.map_or(0, |p| p.threads)
    }

    /// Warps that read a ring.
    pub fn readers(&self, ring: &Ring) -> u64 {
        let threads = self.threads_of(ring.read_by);
        (threads.end - threads.start) / 32
    }

    /// The warps that fill a ring.
    pub fn filler(&self, ring: &Ring) -> Option<&Producer> {
        self.producers.get(ring.filled_by as usize)
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
    /// the hardware copied they see without more, and what threads split these make visible themselves.
    pub fn is_fenced(&self, ring: &Ring) -> bool {
        let copied = self.filler(ring).is_some_and(|p| !p.boxed) && ring.counter.split.is_none();
        copied
            && ring
                .regions
                .iter()
                .any(|id| self.region(*id).swizzle.is_some())
    }

    /// Those of some axes along which elements of a layout may not exist, if that is so in each axis' last tile alone and there are registers enough
    /// that tiles which are whole have code of their own.
    pub fn only_last(&self, layout: &Layout, axes: &[AxisId]) -> Option<Vec<AxisId>> {
        let over = axes.iter().copied();
        let over: Vec<AxisId> = over
            .filter(|a| self.axes[a].tile > 1 && self.overhangs(layout, *a))
            .collect();
        let is_last = |axis: &AxisId| {
            let own = &self.axes[axis];
            own.tile < own.extent && layout.cover(*axis) <= own.tile
        };
        let is_worth_it = !over.is_empty() && layout.register_count() >= WORTH_A_BRANCH;
        (is_worth_it && over.iter().all(is_last)).then_some(over)
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

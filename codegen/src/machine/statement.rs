//! What the threads of a role do, one statement after the other, and what holds them together.

use super::{
    Across, Copy, Counter, FragmentId, Function, Input, Issue, LoopId, Multiply, Outer, Partial,
    Policy, Reduce, RegionId, Ring, RingId, Rows, Scan, Source, Split, Stage, Store,
};
use crate::access::Access;
use crate::layout::Layout;
use ir::{Affine, AxisId, AxisSet, Bound, Dtype};
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

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
    /// The thread has written its share of a ring's current stage, and made it visible to those that wait for it.
    Filled(RingId),
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
    /// Reduces along an axis up to each element.
    Scan(Scan),
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
            Self::Scan(scan) => named([&mut scan.to], [&mut scan.of]),
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

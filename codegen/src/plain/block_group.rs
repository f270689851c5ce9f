//! Reductions across the blocks of a group: each stores its partial result in the split-K workspace, all wait at a grid barrier, and each reduces all
//! partial results in the same order. Where nobody but one needs the result, the last to come does that, and nobody waits.

use super::{BUSY, Machined, Plain};
use crate::SplitWorkspace;
use crate::machine::{self, COUNTER_BYTES, Partial, Parts};
use ir::{AxisSet, Kernel, ReduceOp, Reject, TileOp, TileProgram, ValueId};

/// Reads that a thread has under way at a time, and half of them where it has few registers.
const AHEAD: u64 = 64;

/// The block groups of a kernel, and what they store.
pub(super) struct BlockGroup {
    /// The grid axes along which the blocks of a group differ.
    pub(super) axes: AxisSet,
    /// Blocks of a group.
    size: u64,
    /// Groups of the grid.
    groups: u64,
    /// What is reduced behind each grid barrier.
    grid_barriers: Vec<Vec<ValueId>>,
    /// Whether all go on behind the last grid barrier.
    all_go_on: bool,
    /// Floats that each block stored up to now.
    stored: u64,
    /// Loops around what is lowered of which the blocks of a group do different iterations.
    pub(super) apart: u32,
}

impl BlockGroup {
    pub(super) fn of(tile: &TileProgram, kernel: &Kernel) -> Option<Self> {
        let axes = kernel.block_group();
        if axes.is_empty() {
            return None;
        }
        let blocks = |inside: bool| {
            let wanted = kernel.grid.iter().filter(|a| axes.contains(**a) == inside);
            tile.points(kernel, &wanted.copied().collect())
        };
        Some(Self {
            size: blocks(true),
            groups: blocks(false),
            grid_barriers: kernel.grid_barriers(),
            all_go_on: kernel.all_go_on(),
            stored: 0,
            apart: 0,
            axes,
        })
    }

    pub(super) fn shape(&self) -> machine::BlockGroup {
        machine::BlockGroup {
            size: self.size,
            waits: self.all_go_on || self.grid_barriers.len() > 1,
            grid_barriers: self.grid_barriers.len() as u64,
        }
    }

    /// Bytes of all counters: the tickets', then one a block group.
    fn counters(&self) -> u64 {
        (128 + self.groups * COUNTER_BYTES).next_multiple_of(128)
    }
}

impl Plain<'_> {
    /// The split-K workspace of the whole kernel.
    pub(super) fn split_workspace(&self) -> SplitWorkspace {
        let Some(block_group) = &self.block_group else {
            return SplitWorkspace::default();
        };
        let counters = block_group.counters();
        SplitWorkspace {
            bytes: counters + block_group.groups * block_group.size * block_group.stored * 4,
            counters,
            together: if block_group.shape().waits {
                block_group.size
            } else {
                1
            },
        }
    }

    /// Whether one block of a group stores what the whole group has alike.
    pub(super) fn stores_alone(&self, axes: &AxisSet) -> bool {
        self.block_group.as_ref().is_some_and(|block_group| {
            let alike = block_group.apart == 0 && !axes.intersects(&block_group.axes);
            block_group.all_go_on && alike
        })
    }

    /// The number of the grid barrier behind which a value is there.
    pub(super) fn grid_barrier_of(&self, v: ValueId) -> Option<usize> {
        let block_group = self.block_group.as_ref()?;
        block_group
            .grid_barriers
            .iter()
            .position(|m| m.contains(&v))
    }

    /// Lowers a grid barrier and the reductions around it, unless that is done.
    pub(super) fn grid_barrier(
        &mut self,
        round: usize,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let Some(block_group) = &self.block_group else {
            return Ok(());
        };
        let group = block_group.grid_barriers[round].clone();
        if group.iter().any(|v| self.find(*v, None).is_some()) {
            return Ok(());
        }
        let wait = block_group.all_go_on || round + 1 < block_group.grid_barriers.len();
        let mut partials = Vec::new();
        for v in group {
            let TileOp::Reduce { op, value, axes } = self.plan.op(v) else {
                return Err(Reject::Schedule(
                    "a grid barrier in front of no reduction".into(),
                ));
            };
            self.reduce_block(v, *op, *value, axes, out)?;
            let partial = self.partial(v, *op, axes)?;
            out.push(Machined::StorePartial(Box::new(partial.clone())));
            partials.push(partial);
        }
        out.push(if wait {
            Machined::GridBarrier(round as u64 + 1)
        } else {
            self.scratch(1);
            Machined::LastGoesOn
        });
        out.extend(
            partials
                .into_iter()
                .map(|p| Machined::ReducePartials(Box::new(p))),
        );
        Ok(())
    }

    /// What this block has of a value, and its place among the group's partial results.
    fn partial(&mut self, v: ValueId, op: ReduceOp, axes: &AxisSet) -> Result<Partial, Reject> {
        let Some(fragment) = self.find(v, None) else {
            return Err(Reject::Schedule("a reduction without registers".into()));
        };
        let layout = self.fragment(fragment).layout();
        let threads = self.plan.threads() * u64::from(self.plan.blocks_per_sm());
        let Some(block_group) = &mut self.block_group else {
            return Err(Reject::Schedule(
                "a grid barrier without a block group".into(),
            ));
        };
        if !block_group.axes.is_subset(axes) {
            return Err(Reject::Schedule(
                "a reduction over some of a block group's axes".into(),
            ));
        }
        // All ranks hold alike parts alike: threads without copies write and read side by side.
        let (strides, floats) = if layout.copy_masks() == (0, 0) {
            (None, layout.register_count() * self.plan.threads())
        } else {
            let (strides, floats) = layout.packed();
            (Some(strides), floats)
        };
        // What was stored before, of all groups, comes first.
        let start =
            block_group.counters() + block_group.groups * block_group.size * block_group.stored * 4;
        let before = block_group.stored;
        block_group.stored += floats;
        let ahead = if threads > BUSY { AHEAD / 2 } else { AHEAD };
        Ok(Partial {
            op,
            fragment,
            strides,
            floats,
            before,
            home: Parts::Workspace(start),
            ahead: (ahead / layout.register_count()).max(1),
            layout,
        })
    }
}

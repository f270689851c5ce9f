//! The plainest machine program of a kernel, for the instructions of its schedule: every tile of a loop is copied and computed with, one
//! iteration after another, one tile of the grid a block. What a schedule makes of it is [`crate::apply`]'s.

mod block_group;
mod contract;
mod coordinates;
mod dependences;
mod elements;
mod exponent;
mod memory;
mod ranges;
mod repeat;
mod warpgroup;

pub(crate) use self::dependences::link;
pub use self::exponent::exponents;

use self::block_group::BlockGroup;
use self::ranges::Ranges;
use crate::layout::Layout;
use crate::machine::{
    Argument, Axes, Axis, Fragment, FragmentId, Grid, Holds, Machine, Scratch, Source,
    Statement as Machined,
};
use crate::passes::dependent_launch::DependentLaunch;
use crate::plan::{Folded, Plan};
use crate::print::{entry_name, identifier};
use ir::{
    BufferId, BufferRole, Dtype, Kernel, KernelSchedule, Reject, Statement, Target, TileOp,
    TileProgram, ValueId, stores,
};
use std::collections::{BTreeMap, BTreeSet};

/// Threads that share a multiprocessor's registers: where there are more, each has few.
const BUSY: u64 = 512;

/// The machine program of a kernel that copies, multiplies and computes one thing after another, one tile of the grid a block.
///
/// # Errors
/// What cannot be done with these instructions.
pub(crate) fn plain(
    tile: &TileProgram,
    kernel: &Kernel,
    number: usize,
    schedule: &KernelSchedule,
    launched: DependentLaunch,
    target: &Target,
) -> Result<Machine, Reject> {
    let first = (launched.waits).then(|| dependences::independent_first(tile, kernel));
    let plan = Plan::new(tile, first.as_ref().unwrap_or(kernel), schedule, target)?;
    let plain = Plain::new(&plan, launched.waits, target);
    plain.kernel(number, launched.waits && number > 0)
}

/// Whether results must be as accurate as f32 allows. Integers and booleans must: how near a number is to another may decide them.
fn is_precise(tile: &TileProgram) -> bool {
    let mut outputs = (tile.buffers.iter()).filter(|b| matches!(b.role, BufferRole::Output(_)));
    outputs.any(|b| !matches!(b.dtype, Dtype::F16 | Dtype::Bf16))
}

/// What making one kernel carries along.
struct Plain<'a> {
    plan: &'a Plan<'a>,
    tile: &'a TileProgram,
    kernel: &'a Kernel,
    /// Results must be as accurate as f32 allows.
    precise: bool,
    /// Between which numbers values lie.
    ranges: Ranges,
    /// What the exponentials behind it compute themselves.
    folded: BTreeSet<ValueId>,
    /// Every fragment.
    fragments: Vec<Fragment>,
    /// How many of them are values.
    arrays: usize,
    /// Values in scope, innermost last.
    scopes: Vec<BTreeMap<(ValueId, Layout), FragmentId>>,
    loops: usize,
    scratch_bytes: u64,
    /// Bytes of shared memory that a block can have.
    room: u64,
    /// Reductions whose parts threads keep to themselves until their loop has ended.
    partial_sums: BTreeSet<ValueId>,
    /// Sums of a carry and what a loop within added up, which went on from the carry.
    added: BTreeMap<ValueId, FragmentId>,
    /// Carries that went on from one of the loop around, that one, and whether all have the same layout.
    joined: BTreeMap<ValueId, (ValueId, bool)>,
    /// Carries of which threads hold parts that they combine behind their loop, and what of.
    parts: BTreeMap<ValueId, Folded>,
    block_group: Option<BlockGroup>,
    /// Whether kernels in front may write what it reads.
    waits: bool,
}

impl<'a> Plain<'a> {
    fn new(plan: &'a Plan<'a>, waits: bool, target: &Target) -> Self {
        // What a contraction is accumulated into is there in any case.
        let mut folded = exponents(plan.tile, plan.kernel);
        folded.retain(|v| !plan.fused.contains_key(v));
        Self {
            plan,
            tile: plan.tile,
            kernel: plan.kernel,
            precise: is_precise(plan.tile),
            ranges: Ranges::new(plan.kernel),
            folded,
            fragments: Vec::new(),
            arrays: 0,
            scopes: vec![BTreeMap::new()],
            loops: 0,
            scratch_bytes: 0,
            room: target.shared_per_block,
            partial_sums: BTreeSet::new(),
            added: BTreeMap::new(),
            joined: BTreeMap::new(),
            parts: BTreeMap::new(),
            block_group: BlockGroup::of(plan.tile, plan.kernel),
            waits,
        }
    }

    fn kernel(mut self, number: usize, overlaps: bool) -> Result<Machine, Reject> {
        let read = self.kernel.reads();
        let written: BTreeSet<BufferId> =
            stores(&self.kernel.body).into_iter().map(|s| s.0).collect();
        if let Some(both) = read.intersection(&written).next() {
            return Err(Reject::Schedule(format!(
                "buffer {} is read and written by one kernel",
                self.tile.buffer(*both).name
            )));
        }
        let grid = self.grid()?;
        let body = self.statements(&self.kernel.body)?;
        let argument = |b: &BufferId| {
            let buffer = self.tile.buffer(*b);
            let argument = Argument {
                name: buffer.name.clone(),
                dtype: buffer.dtype,
                written: written.contains(b),
                dependent: self.is_dependent(*b),
            };
            (*b, argument)
        };
        Ok(Machine {
            name: format!("{}_{number}", entry_name(&self.tile.name)),
            axes: self.axes(),
            buffers: read.union(&written).map(argument).collect(),
            warps: self.plan.warps(),
            blocks_per_sm: self.plan.blocks_per_sm(),
            precise: self.precise,
            regions: self.regions(),
            scratch: Scratch {
                offset: 0,
                bytes: self.scratch_bytes,
            },
            grid,
            block_group: self.block_group.as_ref().map(BlockGroup::shape),
            cluster: 1,
            split_workspace: self.split_workspace(),
            prologue: Vec::new(),
            producers: Vec::new(),
            registers: None,
            rings: Vec::new(),
            fragments: self.fragments,
            body,
            epilogue: Vec::new(),
            overlaps,
        })
    }

    /// The axes of the kernel, and those of buffers that parts are kept of as they stand.
    fn axes(&self) -> Axes {
        let mut axes = self.plan.cut.clone();
        let patched = (self.plan.tiles.iter()).flat_map(|t| t.patch.iter().map(|s| s.axis));
        for id in patched {
            let own = &self.tile.axes[id.index()];
            axes.entry(id).or_insert_with(|| Axis {
                name: own.name.clone(),
                extent: own.extent,
                tile: own.extent,
                whole: true,
            });
        }
        axes
    }

    /// Whether a buffer may be written by a kernel in front while this one has begun.
    fn is_dependent(&self, buffer: BufferId) -> bool {
        self.waits && dependences::is_made(self.tile, buffer)
    }

    /// Adds a fragment, which exists from here on.
    fn declare(&mut self, name: String, holds: Holds, out: &mut Vec<Machined>) -> FragmentId {
        let id = FragmentId(self.fragments.len() as u32);
        self.fragments.push(Fragment { name, holds });
        out.push(Machined::Declare(id));
        id
    }

    /// A new fragment for a value.
    fn array(&mut self, v: ValueId, layout: &Layout, out: &mut Vec<Machined>) -> FragmentId {
        let name = format!(
            "v{}_{}",
            self.arrays,
            identifier(&self.kernel.value(v).name)
        );
        self.arrays += 1;
        self.declare(name, Holds::Floats(layout.clone()), out)
    }

    fn fragment(&self, id: FragmentId) -> &Fragment {
        &self.fragments[id.0 as usize]
    }

    fn bind(&mut self, v: ValueId, layout: &Layout, id: FragmentId) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert((v, layout.clone()), id);
        }
    }

    fn find(&self, v: ValueId, wanted: Option<&Layout>) -> Option<FragmentId> {
        for scope in self.scopes.iter().rev() {
            for ((value, layout), id) in scope {
                if *value == v && wanted.is_none_or(|w| layout.distinct() == w.distinct()) {
                    return Some(*id);
                }
            }
        }
        None
    }

    /// A value in a layout, made if it is not there yet.
    fn operand(
        &mut self,
        v: ValueId,
        layout: &Layout,
        out: &mut Vec<Machined>,
    ) -> Result<Source, Reject> {
        match self.plan.op(v) {
            TileOp::Constant(x) => return Ok(Source::Constant(*x)),
            TileOp::Iota(axis) => return Ok(Source::Coordinate(*axis)),
            TileOp::Load { .. }
            | TileOp::Map(..)
            | TileOp::Reduce { .. }
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => {}
        }
        if let Some(found) = self.find(v, Some(layout)) {
            return Ok(Source::Fragment(found));
        }
        let wanted = layout.distinct();
        if let TileOp::Load { .. } = self.plan.op(v) {
            return self.load(v, &wanted, out);
        }
        match self.find(v, None) {
            Some(other) => Ok(Source::Fragment(self.convert(v, other, &wanted, out))),
            None => Err(Reject::Schedule(format!(
                "value {} is used before it is computed",
                self.kernel.value(v).name
            ))),
        }
    }

    fn layout(&self, v: ValueId) -> Layout {
        self.plan.layouts[v.index()].clone().unwrap_or_default()
    }

    fn statements(&mut self, body: &[Statement]) -> Result<Vec<Machined>, Reject> {
        let mut out = Vec::new();
        for statement in body {
            match statement {
                Statement::Let(v) => self.value(*v, &mut out)?,
                Statement::Loop(l) => self.repeat(l, &mut out)?,
                Statement::Store { buffer, value } => self.store(*buffer, *value, &mut out)?,
            }
        }
        Ok(out)
    }

    fn value(&mut self, v: ValueId, out: &mut Vec<Machined>) -> Result<(), Reject> {
        match self.plan.op(v) {
            TileOp::Constant(_) | TileOp::Iota(_) | TileOp::Phi { .. } | TileOp::Final { .. } => {}
            TileOp::Load { .. } => {
                self.stage_once(v, out)?;
                if !self.plan.only_contracted(v)
                    && let Some(layout) = self.plan.layouts[v.index()].clone()
                {
                    self.load(v, &layout.distinct(), out)?;
                }
            }
            TileOp::Map(op, args) => match self.plan.fused.get(&v).copied() {
                Some((contraction, addend)) => {
                    self.contract(contraction, Some((v, addend)), out)?;
                }
                None if self.folded.contains(&v) => return Ok(()),
                None if self.added.contains_key(&v) => {
                    let layout = self.layout(v);
                    self.bind(v, &layout, self.added[&v]);
                }
                None => self.map(v, *op, args, out)?,
            },
            TileOp::Reduce { op, value, axes } => self.reduce(v, *op, *value, axes, out)?,
            TileOp::Scan {
                op,
                value,
                axis,
                inclusive,
            } => self.scan(v, (*op, *inclusive), *value, *axis, out)?,
            TileOp::Contract { .. } => {
                if self.plan.deferred(v) {
                    return Ok(());
                }
                self.contract(v, None, out)?;
            }
        }
        self.publish(v, out)
    }

    /// Scratch memory of so many floats behind the tiles.
    fn scratch(&mut self, floats: u64) {
        self.scratch_bytes = self.scratch_bytes.max(floats * 4);
    }
}

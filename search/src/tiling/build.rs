//! From an expression, its cuts and an assignment of its axes to a tile program.
//!
//! The work is done in three steps. [`outline`] lowers each kernel's inside into a DAG without views, so that it is
//! known which axes a kernel stores, reduces or makes; an [`Assignment`] then says how the kernel runs over each; and
//! [`build`] places every value in the loops that follow. Nothing here chooses: see `cuts`, `assign` and `enumerate`.

mod along;
mod bounds;
mod collapse;
mod fuse;
pub(crate) mod inner;
mod place;
pub(crate) mod reach;
mod split;
#[cfg(test)]
mod tests;
mod whole;

pub(crate) use whole::places;

use crate::corrections::{self, Correction};
use crate::tiling::build::collapse::Collapsed;
use crate::tiling::build::inner::{InnerId, Lowering};
use crate::tiling::build::place::Placer;
use ir::{
    Axis, AxisId, AxisSet, AxisTile, Buffer, BufferId, BufferRole, Dim, Dtype, Kernel, Node,
    NodeId, Op, Program, Quotient, Reject, Role, Statement, TileProgram,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The corrections of one expression's reductions, found once and remembered: by its clones too, which may be on other threads.
#[derive(Clone, Debug, Default)]
pub struct Corrections {
    known: Arc<Mutex<Known>>,
}

/// By the reduction and what is provisional for it.
type Known = BTreeMap<(NodeId, Vec<NodeId>), Option<Correction>>;

impl Corrections {
    /// For an expression of which nothing is known yet. Not to be shared between expressions.
    pub fn new() -> Self {
        Self::default()
    }

    fn derive(
        &mut self,
        program: &Program,
        reduction: NodeId,
        axes: &AxisSet,
        provisional: &[NodeId],
    ) -> Option<Correction> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (reduction, provisional.to_vec());
        let before = known().get(&key).cloned();
        before.unwrap_or_else(|| {
            // Nobody waits for it: several threads that look for the same find the same.
            let found = corrections::derive(program, reduction, axes, provisional);
            known().insert(key, found.clone());
            found
        })
    }
}

/// Which values are stored, and by which kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cuts {
    /// The stored values of each kernel, in launch order: every output's value once, and every value that a later
    /// kernel reads.
    pub kernels: Vec<Vec<NodeId>>,
    /// Stored values that are kept in another dtype than f32 between kernels.
    pub narrow: BTreeMap<NodeId, Dtype>,
}

/// Reductions that several grid points share, each a part, and whose partial results are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Split {
    /// An axis, of role [`Role::Loop`], that they reduce over. It is divided, or loops around its own, or both.
    pub axis: AxisId,
    /// How many parts, at least 2, all axes together.
    pub parts: u64,
    /// Whether the grid points combine them as a block group; else a second kernel does.
    pub block_group: bool,
}

/// How one kernel runs over its axes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// One entry for each axis of the kernel's outline.
    pub axes: BTreeMap<AxisId, AxisTile>,
    /// At most one split axis.
    pub split: Option<Split>,
    /// How the combining kernel of a split, if there is one, runs over its axes; axes without an entry are whole.
    pub combine: BTreeMap<AxisId, AxisTile>,
    /// Whether loops keep the kernel's running values ([`KernelOutline::along`]).
    pub along: bool,
}

/// What one kernel does with an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AxisUse {
    /// Some stored value varies over it.
    pub stored: bool,
    /// Every stored value varies over it.
    pub stored_by_all: bool,
    /// Some reduction or contraction runs over it.
    pub reduced: bool,
    /// Some contraction runs over it.
    pub contracted: bool,
    /// Both operands of some contraction and its result vary over it.
    pub batch: bool,
    /// It makes rows or columns of some contraction.
    pub free: bool,
    /// It is used by some contraction between 16-bit operands.
    pub narrow: bool,
    /// Some running value is one of a loop over it.
    pub along: bool,
}

/// The inside of one kernel, before its axes are assigned.
#[derive(Clone, Debug)]
pub struct KernelOutline<'a> {
    lowering: Lowering<'a>,
    stores: Vec<(BufferId, InnerId)>,
    uses: BTreeMap<AxisId, AxisUse>,
    facts: reach::Facts,
    picked: BTreeMap<AxisId, AxisSet>,
    along: Option<Box<Self>>,
}

impl KernelOutline<'_> {
    /// The same kernel with loops that keep its running values, if it has any.
    pub fn along(&self) -> Option<&Self> {
        self.along.as_deref()
    }

    /// The axes over which everything is reduced at one coordinate alone, which is read in another tensor, with the axes of that.
    pub fn picked(&self) -> &BTreeMap<AxisId, AxisSet> {
        &self.picked
    }

    /// Every axis that the kernel mentions, and what it does with it.
    pub fn uses(&self) -> &BTreeMap<AxisId, AxisUse> {
        &self.uses
    }

    /// The reductions and contractions inside.
    pub fn reductions(&self) -> usize {
        self.facts.reduced.len()
    }

    /// The axes of every reduction inside, slowest first, and whether it is a contraction; users before arguments.
    pub fn reduced(&self) -> &[(Vec<AxisId>, bool)] {
        &self.facts.reduced
    }

    /// The axes that each contraction inside removes, slowest first.
    pub fn contractions(&self) -> Vec<&[AxisId]> {
        let all = self.facts.reduced.iter();
        all.filter(|r| r.1).map(|r| r.0.as_slice()).collect()
    }

    /// The rows and the columns of every contraction, in turn, slowest axis first; users before arguments.
    pub fn sides(&self) -> Vec<&[AxisId]> {
        self.facts.sides.iter().map(Vec::as_slice).collect()
    }

    /// Whether some contraction does not vary over a stored axis: running over it in parallel repeats that work.
    pub fn repeats(&self, axis: AxisId) -> bool {
        self.facts.constant.contains(&axis)
    }

    /// Whether something is loaded along the fastest axis that does not vary over a stored axis: tiles that are longer there read it
    /// fewer times.
    pub fn shares(&self, axis: AxisId) -> bool {
        self.facts.shared.contains(&axis)
    }

    /// A rank in memory: 0 for the axis that is fastest in most buffers.
    pub fn speed(&self, axis: AxisId) -> usize {
        self.facts.speed.get(&axis).copied().unwrap_or(usize::MAX)
    }

    /// The buffers that it stores.
    pub fn stored(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.stores.iter().map(|s| s.0)
    }
}

/// An expression cut into kernels.
#[derive(Clone, Debug)]
pub struct Outline<'a> {
    program: &'a Program,
    /// The program's axes, then those that the outline made.
    pub axes: Vec<Axis>,
    /// The axes among these that stand for several others.
    pub collapsed: BTreeMap<AxisId, Vec<AxisId>>,
    /// Parameters, outputs and workspaces.
    pub buffers: Vec<Buffer>,
    /// In launch order.
    pub kernels: Vec<KernelOutline<'a>>,
}

/// What all cuts of an expression have in common, each found when it is first asked for.
#[derive(Debug)]
pub struct Common {
    whole: OnceLock<BTreeSet<NodeId>>,
    /// Of each value, the order in which it is stored.
    orders: Vec<OnceLock<Vec<Dim>>>,
}

impl Common {
    /// Of an expression.
    pub fn of(program: &Program) -> Self {
        Self {
            whole: OnceLock::new(),
            orders: program.nodes.iter().map(|_| OnceLock::new()).collect(),
        }
    }
}

/// Lowers the inside of every kernel. Workspaces are called by the values that they hold: by the name of one, or `t` and its number, and a number behind that
/// where something else is called so.
///
/// # Errors
/// When an output is stored by no kernel or a kernel grows beyond its limit.
pub fn outline<'a>(program: &'a Program, cuts: &Cuts) -> Result<Outline<'a>, Reject> {
    outline_of(program, &Common::of(program), cuts, |_| true)
}

/// As [`outline`], of those kernels alone that are `wanted`, by their numbers: in [`Outline::kernels`] they have others.
///
/// # Errors
/// As [`outline`], where a kernel that is wanted grows.
pub fn outline_of<'a>(
    program: &'a Program,
    common: &Common,
    cuts: &Cuts,
    wanted: impl Fn(usize) -> bool,
) -> Result<Outline<'a>, Reject> {
    let mut buffers = Vec::new();
    let mut sources = BTreeMap::new();
    for (n, (node, name, dtype, dims)) in program.parameters().enumerate() {
        sources.insert(node, (BufferId(buffers.len() as u32), flat(dims)));
        buffers.push(Buffer {
            name: name.to_owned(),
            dtype,
            dims: dims.to_vec(),
            role: BufferRole::Parameter(n as u32),
        });
    }
    let mut outputs: BTreeMap<NodeId, Vec<BufferId>> = BTreeMap::new();
    for (n, out) in program.outputs.iter().enumerate() {
        outputs
            .entry(out.value)
            .or_default()
            .push(BufferId(buffers.len() as u32));
        buffers.push(Buffer {
            name: unused_buffer(&buffers, &format!("out{n}")),
            dtype: out.dtype,
            dims: out.dims.clone(),
            role: BufferRole::Output(n as u32),
        });
    }
    let stored: BTreeSet<NodeId> = cuts.kernels.iter().flatten().copied().collect();
    if let Some(missing) = outputs.keys().find(|o| !stored.contains(o)) {
        return Err(Reject::Assignment(format!(
            "no kernel stores the output value {}",
            missing.0
        )));
    }
    let read = read_later(program, cuts);
    let whole_values = common.whole.get_or_init(|| whole::whole(program));
    let is_integers = |b: &Buffer| {
        matches!(b.role, BufferRole::Parameter(_)) && matches!(b.dtype, Dtype::I32 | Dtype::I64)
    };
    let integers = (0..).zip(&buffers).filter(|(_, b)| is_integers(b));
    let mut whole: BTreeSet<BufferId> = integers.map(|(n, _)| BufferId(n)).collect();
    let mut axes = program.axes.clone();
    let mut kernels = Vec::new();
    for (number, roots) in cuts.kernels.iter().enumerate() {
        let own = wanted(number).then(|| axes.clone());
        let mut lowering = own.map(|axes| Lowering::new(program, sources.clone(), axes));
        let (mut stores, mut is_read) = (Vec::new(), false);
        for root in roots {
            let value = lowering.as_mut().map(|l| l.root(*root)).transpose()?;
            let mut store = |buffer| {
                is_read = true;
                stores.extend(value.map(|value| (buffer, value)));
            };
            for out in outputs.get(root).into_iter().flatten() {
                store(*out);
            }
            if !read.contains(root) {
                continue;
            }
            let dtype = match &program.node(*root).op {
                Op::Parameter { dtype, .. } => *dtype,
                Op::Constant(_)
                | Op::Iota(_)
                | Op::View { .. }
                | Op::Map(_)
                | Op::Reduce { .. }
                | Op::Dot { .. } => cuts.narrow.get(root).copied().unwrap_or(Dtype::F32),
            };
            let mut made = outputs.get(root).into_iter().flatten();
            let is_whole = dtype == Dtype::F32 && whole_values.contains(root);
            // What a caller gets is there to be read, if it holds as much.
            if let Some(out) = made.find(|b| buffers[b.index()].dtype == dtype) {
                sources.insert(*root, (*out, flat(&buffers[out.index()].dims)));
                whole.extend(Some(*out).filter(|_| is_whole));
                continue;
            }
            let id = BufferId(buffers.len() as u32);
            whole.extend(Some(id).filter(|_| is_whole));
            let dims = common.orders[root.index()].get_or_init(|| memory_order(program, *root));
            sources.insert(*root, (id, flat(dims)));
            let base = program.node(*root).name.clone();
            let base = base.unwrap_or_else(|| format!("t{}", root.0));
            buffers.push(Buffer {
                name: unused_buffer(&buffers, &base),
                dtype,
                dims: dims.clone(),
                role: BufferRole::Workspace,
            });
            store(id);
        }
        if !is_read {
            return Err(Reject::Assignment(
                "a kernel stores nothing that anybody reads".to_owned(),
            ));
        }
        // Parameters stay sources inside this kernel; its own roots are sources for later kernels only.
        if let Some(lowering) = lowering {
            axes.clone_from(&lowering.axes);
            kernels.push((lowering, stores));
        }
    }
    let mut collapsed = Collapsed::default();
    let mut kernels: Vec<KernelOutline<'_>> = kernels
        .into_iter()
        .map(|(mut lowering, mut stores)| {
            lowering.whole.clone_from(&whole);
            for (buffer, value) in &mut stores {
                *value = reach::spread(&mut lowering.arena, *value, &buffers[buffer.index()]);
            }
            let along = along::along(&lowering, &stores);
            let along = along.map(|(lowering, stores)| {
                of_kernel(lowering, stores, &buffers, &Collapsed::default())
            });
            // What a loop keeps is found by the axes of the expression.
            if along.is_none() {
                collapse::collapse(
                    &mut lowering,
                    &mut stores,
                    &buffers,
                    &mut axes,
                    &mut collapsed,
                );
            }
            KernelOutline {
                along: along.map(Box::new),
                ..of_kernel(lowering, stores, &buffers, &collapsed)
            }
        })
        .collect();
    // What is lowered later makes no axis that another kernel has.
    for kernel in &mut kernels {
        kernel.lowering.axes.clone_from(&axes);
        if let Some(along) = &mut kernel.along {
            along.lowering.axes.clone_from(&axes);
        }
    }
    Ok(Outline {
        program,
        axes,
        collapsed: collapsed.axes,
        buffers,
        kernels,
    })
}

fn of_kernel<'a>(
    lowering: Lowering<'a>,
    stores: Vec<(BufferId, InnerId)>,
    buffers: &[Buffer],
    collapsed: &Collapsed,
) -> KernelOutline<'a> {
    KernelOutline {
        uses: reach::uses(&lowering.arena, &stores, buffers),
        facts: reach::facts(&lowering.arena, &stores, buffers, &collapsed.axes),
        picked: bounds::picked(&lowering, &stores, buffers),
        lowering,
        stores,
        along: None,
    }
}

/// Places every value of every kernel.
///
/// # Errors
/// When an assignment does not suit its kernel: a contracted grid axis, a store that lacks a grid axis, a loop that
/// would have to run inside itself.
pub fn build(
    outline: &Outline<'_>,
    assignments: &[Assignment],
    corrections: &mut Corrections,
) -> Result<TileProgram, Reject> {
    let mut tile = TileProgram {
        name: outline.program.name.clone(),
        axes: outline.axes.clone(),
        collapsed: outline.collapsed.clone(),
        buffers: outline.buffers.clone(),
        kernels: Vec::new(),
    };
    for (kernel, assignment) in outline.kernels.iter().zip(assignments) {
        append(outline, kernel, assignment, &mut tile, corrections)?;
    }
    Ok(tile)
}

/// Places one kernel alone: a tile program of it, which is to be priced and not to be run.
///
/// # Errors
/// As [`build`].
pub fn build_one(
    outline: &Outline<'_>,
    kernel: usize,
    assignment: &Assignment,
    corrections: &mut Corrections,
) -> Result<TileProgram, Reject> {
    let mut tile = TileProgram {
        name: outline.program.name.clone(),
        axes: outline.axes.clone(),
        collapsed: outline.collapsed.clone(),
        buffers: outline.buffers.clone(),
        kernels: Vec::new(),
    };
    let kernel = &outline.kernels[kernel];
    append(outline, kernel, assignment, &mut tile, corrections)?;
    Ok(tile)
}

fn append(
    outline: &Outline<'_>,
    kernel: &KernelOutline<'_>,
    assignment: &Assignment,
    tile: &mut TileProgram,
    corrections: &mut Corrections,
) -> Result<(), Reject> {
    let kernel = match assignment.along {
        true => (kernel.along())
            .ok_or_else(|| Reject::Assignment("no loop keeps a running value".to_owned()))?,
        false => kernel,
    };
    check_axes(&kernel.uses, &assignment.axes, &outline.axes)?;
    let on_grid = |a: &AxisId| {
        let tile = assignment.axes.get(a);
        tile.is_some_and(|t| t.role == Role::Grid) && kernel.uses[a].reduced
    };
    if let Some(split) = assignment.split {
        if assignment.along {
            return Err(Reject::Assignment(
                "split: a loop keeps a running value".to_owned(),
            ));
        }
        if kernel.uses.keys().any(on_grid) {
            return Err(Reject::Assignment(
                "split: a reduction runs across the grid too".to_owned(),
            ));
        }
        return split::split(split, kernel, assignment, tile, corrections);
    }
    let lowering = kernel.lowering.clone();
    let mut placer = Placer::new(lowering, &assignment.axes, corrections);
    placer.open(&kernel.stores.iter().map(|s| s.1).collect::<Vec<_>>());
    let made = placer.kernel(&kernel.stores, tile)?;
    if inside_loop(&made.body, &made, &made.block_group()) {
        return Err(Reject::Assignment(
            "a reduction across the grid inside a loop".to_owned(),
        ));
    }
    tile.kernels.push(made);
    Ok(())
}

/// Whether a loop holds a reduction over some of these axes.
fn inside_loop(body: &[Statement], kernel: &Kernel, axes: &AxisSet) -> bool {
    fn reduces(body: &[Statement], kernel: &Kernel, axes: &AxisSet) -> bool {
        body.iter().any(|s| match s {
            Statement::Let(v) => kernel
                .reduction(*v)
                .is_some_and(|r| r.axes.intersects(axes)),
            Statement::Loop(l) => reduces(&l.body, kernel, axes),
            Statement::Store { .. } => false,
        })
    }
    body.iter()
        .any(|s| matches!(s, Statement::Loop(l) if reduces(&l.body, kernel, axes)))
}

/// Whether the roles suit what a kernel does with its axes.
fn check_axes(
    uses: &BTreeMap<AxisId, AxisUse>,
    tiles: &BTreeMap<AxisId, AxisTile>,
    axes: &[Axis],
) -> Result<(), Reject> {
    for (axis, used) in uses {
        let Axis { name, extent } = &axes[axis.index()];
        let Some(tile) = tiles.get(axis) else {
            return Err(Reject::Assignment(format!("axis {name} has no role")));
        };
        if tile.tile == 0 || tile.tile > *extent {
            return Err(Reject::Assignment(format!(
                "axis {name}: a tile of {} in an extent of {extent}",
                tile.tile
            )));
        }
        match tile.role {
            Role::Grid if used.contracted => {
                return Err(Reject::Assignment(format!(
                    "axis {name} is contracted and cannot be a grid axis"
                )));
            }
            Role::Grid if !used.stored_by_all => {
                return Err(Reject::Assignment(format!(
                    "axis {name}: a stored value does not vary over it and cannot be a grid axis"
                )));
            }
            Role::Grid | Role::Whole if used.along => {
                return Err(Reject::Assignment(format!(
                    "axis {name}: a loop over it keeps a running value"
                )));
            }
            Role::Whole if tile.tile != *extent => {
                return Err(Reject::Assignment(format!(
                    "axis {name} is whole but its tile is {} of {extent}",
                    tile.tile
                )));
            }
            Role::Grid | Role::Loop | Role::Whole => {}
        }
    }
    let mut blocks = 1_u64;
    for (axis, tile) in tiles {
        if tile.role == Role::Grid && uses.contains_key(axis) {
            blocks = blocks.saturating_mul(axes[axis.index()].extent.div_ceil(tile.tile));
        }
    }
    if blocks > i32::MAX as u64 {
        return Err(Reject::Grid(format!("{blocks} blocks")));
    }
    Ok(())
}

/// The stored values that a later kernel reads.
fn read_later(program: &Program, cuts: &Cuts) -> BTreeSet<NodeId> {
    let outputs: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    let mut earlier: BTreeSet<NodeId> = BTreeSet::new();
    let mut read = BTreeSet::new();
    for roots in &cuts.kernels {
        let mut seen = BTreeSet::new();
        let mut stack = roots.clone();
        while let Some(node) = stack.pop() {
            if !seen.insert(node) {
                continue;
            }
            if earlier.contains(&node) {
                read.insert(node);
                continue;
            }
            stack.extend(&program.node(node).args);
        }
        // A parameter that is a result is read where it was given, and one that is stored in another order where that is.
        earlier.extend(roots.iter().filter(|r| {
            !matches!(program.node(**r).op, Op::Parameter { .. }) || !outputs.contains(r)
        }));
    }
    read
}

/// The memory order of a value between kernels: that of an output or parameter with the same axes, else the order in
/// which most tensors that mention them list the axes, such that those can be collapsed that lie side by side in all of these. Of axes that none of these mentions, those along which products that read the value only repeat
/// are slow.
pub(crate) fn memory_order(program: &Program, node: NodeId) -> Vec<Dim> {
    let axes = &program.node(node).axes;
    let mut votes: BTreeMap<AxisId, (f64, u32)> = BTreeMap::new();
    let tensors = program
        .outputs
        .iter()
        .map(|o| o.dims.as_slice())
        .chain(program.parameters().map(|p| p.3));
    for dims in tensors {
        let order = flat(dims);
        for (i, a) in order.iter().enumerate() {
            let vote = votes.entry(*a).or_insert((0.0, 0));
            vote.0 += (order.len() - i) as f64;
            vote.1 += 1;
        }
    }
    // The mean distance from the fastest dimension: large is slow. Axes that lie side by side everywhere stay together, where their fastest one has its place.
    let mean = |a: AxisId| {
        let (sum, count) = votes.get(&a).copied().unwrap_or((0.0, 1));
        sum / f64::from(count)
    };
    let tensors = (program.outputs.iter().map(|o| o.dims.as_slice()))
        .chain(program.parameters().map(|p| p.3))
        .map(flat);
    let tensors: Vec<Vec<AxisId>> = tensors.collect();
    let lie_together = |a: AxisId, b: AxisId| {
        let at = |tensor: &[AxisId], axis| tensor.iter().position(|t| *t == axis);
        let apart = |t: &Vec<AxisId>| at(t, a).map(|at| at + 1) != at(t, b);
        votes.contains_key(&a) && !tensors.iter().any(apart)
    };
    let mut groups = collapse::chains(axes, lie_together, |a| program.extent(a));
    let grouped: AxisSet = groups.iter().flatten().copied().collect();
    groups.extend(axes.minus(&grouped).iter().map(|a| vec![a]));
    let place = |group: &[AxisId]| group.last().map_or(0.0, |a| mean(*a));
    groups.sort_by(|x, y| place(y).total_cmp(&place(x)).then(x.cmp(y)));
    let mut order: Vec<AxisId> = groups.concat();
    let summed = summed_beside_windows(program, node);
    order.sort_by_key(|a| summed.contains(a));
    let batch = batch_of_products(program, node);
    order.sort_by_key(|a| votes.contains_key(a) || !batch.contains(*a));
    order.into_iter().map(|a| Dim(vec![a])).collect()
}

/// The axes along which all products that read a value go in both operands, where each sums over others: what one of them adds up lies together.
fn batch_of_products(program: &Program, node: NodeId) -> AxisSet {
    let mut batch: Option<AxisSet> = None;
    for product in program.nodes.iter().filter(|p| p.args.contains(&node)) {
        if let (Op::Dot { axes }, [x, y]) = (&product.op, product.args.as_slice()) {
            let [x, y] = [x, y].map(|n| &program.node(*n).axes);
            let both = x.intersection(y).minus(axes);
            batch = Some(batch.map_or_else(|| both.clone(), |b| b.intersection(&both)));
        }
    }
    batch.unwrap_or_default()
}

/// The axes of a value over which products sum beside windows: of a product that reads an operand at places that windows shift, those axes that it sums and
/// that shift nothing. What such a product reads together lies together then, in every operand.
fn summed_beside_windows(program: &Program, node: NodeId) -> BTreeSet<AxisId> {
    let mut found = BTreeSet::new();
    for product in &program.nodes {
        let Op::Dot { axes } = &product.op else {
            continue;
        };
        let read: Vec<_> = operands(program, product).collect();
        let indices = read.iter().flat_map(|(_, map)| map.iter());
        let windows = indices.filter(|(_, to)| to.as_axis().is_none());
        let shifted = windows.fold(AxisSet::new(), |all, (_, to)| all.union(&to.axes()));
        if !shifted.intersects(axes) {
            continue;
        }
        for (value, map) in read.iter().filter(|(value, _)| *value == node) {
            let own = program.node(*value).axes.iter();
            let beside = own.filter(|a| axes.contains(*a) && !shifted.contains(*a));
            found.extend(beside.filter(|a| map.iter().all(|(from, _)| from != a)));
        }
    }
    found
}

/// What a product reads, below a view if there is one, with the view's indices.
fn operands<'p>(
    program: &'p Program,
    product: &'p Node,
) -> impl Iterator<Item = (NodeId, &'p [(AxisId, Quotient)])> {
    product.args.iter().map(|arg| {
        let Node { op, args, .. } = program.node(*arg);
        match (op, args.as_slice()) {
            (Op::View { map, .. }, [below]) => (*below, map.as_slice()),
            (_, _) => (*arg, [].as_slice()),
        }
    })
}

/// The parameters that some product would read from another order of memory than they have ([`memory_order`]), by product.
pub(crate) fn reordered(program: &Program) -> Vec<BTreeSet<NodeId>> {
    let floats = program.parameters().filter(|p| p.2.is_float());
    let own: BTreeMap<NodeId, Vec<AxisId>> =
        floats.map(|(id, _, _, dims)| (id, flat(dims))).collect();
    let differs = |id: &NodeId| {
        let wanted = flat(&memory_order(program, *id));
        // Where an axis of one coordinate is says nothing.
        let long = |axes: &[AxisId]| -> Vec<AxisId> {
            let several = |a: &&AxisId| program.axes[a.index()].extent > 1;
            axes.iter().filter(several).copied().collect()
        };
        own.get(id).is_some_and(|own| long(own) != long(&wanted))
            && !summed_beside_windows(program, *id).is_empty()
    };
    let all = program.nodes.iter().filter_map(|node| {
        let Op::Dot { .. } = &node.op else {
            return None;
        };
        let read = operands(program, node).map(|(value, _)| value);
        let found: BTreeSet<NodeId> = read.filter(differs).collect();
        (!found.is_empty()).then_some(found)
    });
    all.collect()
}

fn flat(dims: &[Dim]) -> Vec<AxisId> {
    dims.iter().flat_map(|d| d.0.iter().copied()).collect()
}

/// `base`, or `base_1` and so on when an axis has that name already.
fn unused_axis(axes: &[Axis], base: &str) -> String {
    if axes.iter().all(|a| a.name != base) {
        return base.to_owned();
    }
    inner::unused_name(axes, base)
}

/// `base`, or `base_2` and so on when a buffer has that name already.
fn unused_buffer(buffers: &[Buffer], base: &str) -> String {
    let free = |name: &String| buffers.iter().all(|b| b.name != *name);
    let base = base.to_owned();
    if free(&base) {
        return base;
    }
    (2..)
        .map(|i| format!("{base}_{i}"))
        .find(free)
        .unwrap_or(base)
}

/// The axes of a buffer as a set.
fn buffer_axes(buffer: &Buffer) -> AxisSet {
    buffer.axes().collect()
}

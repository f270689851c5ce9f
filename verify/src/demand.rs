//! What has to be computed for a few output elements: of each value which elements, and how much work that is.
//!
//! Demand goes backwards from the outputs. Of an axis that a reduction runs over, everything is needed; of a view's source, what the
//! index functions reach. A demand is a product of lists of coordinates, one an axis, so it may ask for more than is needed, never for less.

use crate::picked::{Picked, Slice};
use crate::simulate_error::SimulateError::{self, Malformed};
use ir::{
    AxisId, AxisSet, BufferRole, Kernel, NodeId, Op, Program, Statement, TileOp, TileProgram,
};
use std::collections::{BTreeMap, BTreeSet};

/// Coordinates of axes.
pub(crate) type Lists = BTreeMap<AxisId, Picked>;

/// What is needed of a tile program.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    /// Of each kernel, the coordinates of its axes at which it runs; none where it need not run.
    pub(crate) kernels: Vec<Option<Lists>>,
    /// Of each buffer, the coordinates of its axes in memory order; none where nobody asks for it.
    pub(crate) buffers: Vec<Option<Vec<Picked>>>,
    /// Of each output buffer, what of it is a result: the rest is for kernels that read it.
    pub(crate) results: Vec<Option<Vec<Picked>>>,
}

/// Adds to what is needed of something with a list of axes.
fn add(to: &mut Option<Vec<Picked>>, more: Vec<Picked>) {
    *to = Some(match to.take() {
        None => more,
        Some(old) => old.iter().zip(&more).map(|(x, y)| x.union(y)).collect(),
    });
}

impl Demand {
    /// Everything.
    pub(crate) fn whole(tile: &TileProgram) -> Result<Self, SimulateError> {
        let extent = |a: &AxisId| -> Result<Picked, SimulateError> {
            let axis = tile.axes.get(a.index()).filter(|axis| axis.extent >= 1);
            axis.map(|axis| Picked::All(axis.extent))
                .ok_or_else(|| Malformed(format!("axis {} has no extent", a.0)))
        };
        let of_kernel = |k: &Kernel| -> Result<Option<Lists>, SimulateError> {
            let lists = k.axes.keys().map(|a| Ok((*a, extent(a)?)));
            lists.collect::<Result<Lists, _>>().map(Some)
        };
        let of_buffer = |b: &ir::Buffer| -> Result<Option<Vec<Picked>>, SimulateError> {
            let lists = b.axes().map(|a| extent(&a));
            lists.collect::<Result<Vec<_>, _>>().map(Some)
        };
        let kernels = tile.kernels.iter().map(of_kernel);
        let buffers = tile.buffers.iter().map(of_buffer);
        let buffers: Vec<Option<Vec<Picked>>> = buffers.collect::<Result<_, _>>()?;
        Ok(Self {
            kernels: kernels.collect::<Result<_, _>>()?,
            results: buffers.clone(),
            buffers,
        })
    }

    /// What the outputs' elements at a slice's coordinates take. The tile program is valid.
    pub(crate) fn of(tile: &TileProgram, slice: &Slice) -> Self {
        let mut demand = Self {
            kernels: vec![None; tile.kernels.len()],
            buffers: vec![None; tile.buffers.len()],
            results: Vec::new(),
        };
        for (buffer, held) in tile.buffers.iter().zip(&mut demand.buffers) {
            if matches!(buffer.role, BufferRole::Output(_)) {
                let own = |a| {
                    slice
                        .get(&a)
                        .cloned()
                        .unwrap_or(Picked::All(tile.extent(a)))
                };
                *held = Some(buffer.axes().map(own).collect());
            }
        }
        demand.results.clone_from(&demand.buffers);
        for (number, kernel) in tile.kernels.iter().enumerate().rev() {
            let lists = demand.lists(tile, kernel);
            if let Some(lists) = &lists {
                for value in &kernel.values {
                    if let TileOp::Load { buffer, index, .. } = &value.op {
                        let along = tile.axes_loaded(*buffer, index);
                        let needed = along.into_iter().zip(index).flat_map(|(axis, function)| {
                            let image = Picked::image(function, |a| &lists[&a], tile.extent(axis));
                            let members = tile.members(*buffer, axis);
                            let extents: Vec<u64> =
                                members.iter().map(|m| tile.extent(*m)).collect();
                            image.members(&extents)
                        });
                        add(&mut demand.buffers[buffer.index()], needed.collect());
                    }
                }
            }
            if let Some(lists) = &lists {
                for entry in kernel.entries() {
                    let needed = entry.axes.iter().map(|a| lists[a].clone());
                    add(&mut demand.buffers[entry.buffer.index()], needed.collect());
                }
            }
            demand.kernels[number] = lists;
        }
        demand
    }

    /// The coordinates at which a kernel runs for what is needed of the buffers that it stores.
    fn lists(&self, tile: &TileProgram, kernel: &Kernel) -> Option<Lists> {
        let mut stored: Lists = BTreeMap::new();
        let mut runs = false;
        for (buffer, value) in ir::stores(&kernel.body) {
            if let Some(needed) = &self.buffers[buffer.index()] {
                runs = true;
                let mut needed = needed.iter();
                for axis in tile.axes_stored(buffer, &kernel.value(value).axes) {
                    let members = tile.members(buffer, axis);
                    let extents = members.iter().map(|m| tile.extent(*m));
                    let picked = Picked::collapsed(extents.zip(needed.by_ref()));
                    let all = stored.get(&axis).map(|p| p.union(&picked));
                    stored.insert(axis, all.unwrap_or(picked));
                }
            }
        }
        let whole = needed_whole(kernel);
        let own = |axis: &AxisId| match stored.get(axis) {
            Some(picked) if !whole.contains(*axis) => picked.clone(),
            Some(_) | None => Picked::All(tile.extent(*axis)),
        };
        runs.then(|| kernel.axes.keys().map(|a| (*a, own(a))).collect())
    }

    /// Elements that are held of all buffers.
    pub(crate) fn elements(&self) -> u64 {
        let all = self.buffers.iter().flatten();
        all.map(|held| product(held.iter()))
            .fold(0, u64::saturating_add)
    }

    /// Element operations of interpreting the kernels, where each statement costs a few at least.
    pub(crate) fn work(&self, tile: &TileProgram) -> u64 {
        let kernels = tile.kernels.iter().zip(&self.kernels);
        let work = kernels.map(|(kernel, lists)| match lists {
            Some(lists) => kernel_work(
                kernel,
                |a| lists[&a].len(),
                |a| lists[&a].tiles(kernel.tile(a)).len(),
            ),
            None => 0,
        });
        work.fold(0, u64::saturating_add)
    }
}

/// The most coordinates that a loop runs over wherever it begins, if two of its bounds that mention the same axes say so.
pub(crate) fn span(
    kernel: &Kernel,
    own: &ir::Loop,
    coordinates: impl Fn(AxisId) -> u64,
) -> Option<u64> {
    let between = |low: &ir::Bound, high: &ir::Bound| {
        let mut most = i128::from(high.offset) - i128::from(low.offset);
        for (c, axis, corner) in &high.terms {
            let other = low.terms.iter().find(|t| t.1 == *axis)?;
            let last = i128::from(coordinates(*axis)) - 1;
            most += (i128::from(*c) - i128::from(other.0)).max(0) * last;
            // Corners of one tile.
            if other.2 != *corner {
                most += i128::from(other.0.unsigned_abs()) * (i128::from(kernel.tile(*axis)) - 1);
            }
        }
        let comparable = low.divisor == 1 && high.divisor == 1 && low.entries == high.entries;
        (comparable && low.terms.len() == high.terms.len()).then_some(most)
    };
    let pairs = own
        .low
        .iter()
        .flat_map(|l| own.high.iter().map(move |h| (l, h)));
    let least = pairs.filter_map(|(l, h)| between(l, h)).min()?;
    Some(least.clamp(0, i128::from(u64::MAX)) as u64)
}

/// The axes of which a kernel needs every coordinate, whatever is asked for: those that it reduces, and those along which a loop
/// carries something.
fn needed_whole(kernel: &Kernel) -> AxisSet {
    fn carrying(body: &[Statement], whole: &mut BTreeSet<AxisId>) {
        for statement in body {
            if let Statement::Loop(l) = statement {
                if !l.carries.is_empty() {
                    whole.insert(l.axis);
                }
                carrying(&l.body, whole);
            }
        }
    }
    let mut whole = BTreeSet::new();
    carrying(&kernel.body, &mut whole);
    for value in &kernel.values {
        whole.extend(value.op.reduced().into_iter().flat_map(AxisSet::iter));
    }
    whole.into_iter().collect()
}

/// Of the axes around a statement, over how many coordinates and in how many tiles each runs.
type Around = BTreeMap<AxisId, (u64, u64)>;

/// A value of a kernel costs so much however few elements it has.
const STATEMENT: u64 = 16;

/// Element operations of one kernel, by how many coordinates of an axis it runs over and how many tiles these are in.
pub(crate) fn kernel_work(
    kernel: &Kernel,
    coordinates: impl Fn(AxisId) -> u64,
    tiles: impl Fn(AxisId) -> u64,
) -> u64 {
    let around: Around = kernel
        .grid
        .iter()
        .map(|a| (*a, (coordinates(*a), tiles(*a))))
        .collect();
    let mut sum = 0u64;
    let mut stack: Vec<(&[Statement], Around)> = vec![(&kernel.body, around)];
    while let Some((body, around)) = stack.pop() {
        let executed = around.values().fold(1u64, |n, (_, t)| n.saturating_mul(*t));
        for statement in body {
            let over = match statement {
                Statement::Loop(l) => {
                    let mut inside = around.clone();
                    let (all, size) = (coordinates(l.axis), kernel.tile(l.axis).max(1));
                    let run = match span(kernel, l, &coordinates) {
                        // From the start of a tile or from the middle of one.
                        Some(span) if span < all => {
                            let most = tiles(l.axis).min(span.div_ceil(size) + 1);
                            (all.min(span.saturating_add(size)), most)
                        }
                        Some(_) | None => (all, tiles(l.axis)),
                    };
                    inside.insert(l.axis, run);
                    stack.push((&l.body, inside));
                    continue;
                }
                Statement::Let(v) => kernel.value(*v).iterated(),
                Statement::Store { value, .. } => kernel.value(*value).axes.clone(),
            };
            // An axis around that the value lacks repeats it once a tile, the others once a coordinate.
            let whole = over.iter().filter(|a| !around.contains_key(a));
            let elements = whole.fold(1u64, |n, a| n.saturating_mul(coordinates(a)));
            let elements = around.iter().fold(elements, |n, (a, (all, tiles))| {
                n.saturating_mul(if over.contains(*a) { *all } else { *tiles })
            });
            sum = sum
                .saturating_add(elements)
                .saturating_add(executed.saturating_mul(STATEMENT));
        }
    }
    sum
}

fn product<'a>(lists: impl Iterator<Item = &'a Picked>) -> u64 {
    lists.fold(1, |n, picked| n.saturating_mul(picked.len()))
}

/// What is needed of a program: of each value the coordinates of its axes, in the order of the set; none where nobody asks for it.
#[derive(Clone, Debug)]
pub(crate) struct NodeDemand {
    pub(crate) nodes: Vec<Option<Vec<Picked>>>,
    /// Of each output, what of its value is a result: the rest is for values that are made of it.
    pub(crate) results: Vec<Vec<Picked>>,
}

impl NodeDemand {
    /// What the outputs' elements at a slice's coordinates take.
    ///
    /// # Errors
    /// A program that is not well formed.
    pub(crate) fn of(program: &Program, slice: &Slice) -> Result<Self, SimulateError> {
        let mut nodes: Vec<Option<Vec<Picked>>> = vec![None; program.nodes.len()];
        let all = |a: AxisId| -> Result<Picked, SimulateError> {
            let axis = program.axes.get(a.index());
            let axis = axis.filter(|axis| axis.extent >= 1);
            axis.map(|axis| Picked::All(axis.extent))
                .ok_or_else(|| Malformed(format!("axis {} has no extent", a.0)))
        };
        let mut results = Vec::with_capacity(program.outputs.len());
        for output in &program.outputs {
            let node = program
                .nodes
                .get(output.value.index())
                .ok_or_else(|| Malformed("an output of no value".into()))?;
            let own = |a: AxisId| slice.get(&a).cloned().map_or_else(|| all(a), Ok);
            let needed: Vec<Picked> = node.axes.iter().map(own).collect::<Result<_, _>>()?;
            add(&mut nodes[output.value.index()], needed.clone());
            results.push(needed);
        }
        for (number, node) in program.nodes.iter().enumerate().rev() {
            let Some(needed) = nodes[number].clone() else {
                continue;
            };
            let lists: Lists = node.axes.iter().zip(needed).collect();
            for arg in &node.args {
                if arg.index() >= number {
                    return Err(Malformed("an argument after its user".into()));
                }
                let of_arg = |axis: AxisId| -> Result<Picked, SimulateError> {
                    if let Op::View { map, .. } = &node.op
                        && let Some((_, function)) = map.iter().find(|m| m.0 == axis)
                    {
                        let own = function.axes();
                        if own.iter().any(|a| !lists.contains_key(&a)) {
                            return Err(Malformed("a view over an axis that it lacks".into()));
                        }
                        let extent = all(axis)?.len();
                        return Ok(Picked::image(function, |a| &lists[&a], extent));
                    }
                    lists.get(&axis).cloned().map_or_else(|| all(axis), Ok)
                };
                let axes = &program.nodes[arg.index()].axes;
                let needed: Vec<Picked> = axes.iter().map(of_arg).collect::<Result<_, _>>()?;
                add(&mut nodes[arg.index()], needed);
            }
        }
        Ok(Self { nodes, results })
    }

    /// The coordinates of a value's axes, if anybody asks for it.
    pub(crate) fn node(&self, id: NodeId) -> Option<&[Picked]> {
        self.nodes[id.index()].as_deref()
    }

    /// Elements of all values.
    pub(crate) fn elements(&self) -> u64 {
        let all = self.nodes.iter().flatten();
        all.map(|held| product(held.iter()))
            .fold(0, u64::saturating_add)
    }

    /// Element operations of evaluating the program, with what is dear weighted.
    pub(crate) fn work(&self, program: &Program) -> u64 {
        let of = |(node, needed): (&ir::Node, &Option<Vec<Picked>>)| match needed {
            None => 0,
            Some(needed) => {
                let reduced = match &node.op {
                    Op::Reduce { axes, .. } | Op::Dot { axes } => axes
                        .iter()
                        .fold(1, |n, a| u64::saturating_mul(n, program.extent(a))),
                    Op::Parameter { .. }
                    | Op::Constant(_)
                    | Op::Iota(_)
                    | Op::View { .. }
                    | Op::Map(_) => 1,
                };
                let elements = product(needed.iter()).saturating_mul(reduced);
                elements.saturating_mul(weight(&node.op))
            }
        };
        let all = program.nodes.iter().zip(&self.nodes);
        all.map(of).fold(0, u64::saturating_add)
    }
}

/// What evaluating an operation costs an element, in additions.
pub(crate) fn weight(op: &Op) -> u64 {
    match op {
        Op::Map(op) if op.row().work.special > 0 => 20,
        Op::Map(_)
        | Op::Reduce { .. }
        | Op::Dot { .. }
        | Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::View { .. } => 1,
    }
}

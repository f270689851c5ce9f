//! Interprets tile programs, exactly as the module documentation of [`ir::tile`] defines them.
//!
//! Teams run independently, each on what earlier kernels left in the buffers, the grid points of one in step; stores are applied
//! afterwards, team by team, so results do not depend on threads. The interpreter refuses what a correct kernel never does: writing an
//! element twice, leaving one unwritten, reading one that nobody wrote.

use crate::block::{self, Block, Fault};
use crate::scalar::Scalar;
use ir::tensor::Tensor;
use ir::{
    Axis, AxisId, AxisSet, Bound, BufferId, BufferRole, Corner, Dim, Kernel, Loop, Reduction, Role,
    Statement, TileOp, TileProgram, ValueId,
};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How to interpret.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulateOptions {
    /// Round what is stored to the buffer's dtype, workspaces included.
    pub round_stores: bool,
}

/// Why a tile program has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// The tile program breaks a rule of its form.
    #[error("malformed tile program: {0}")]
    Malformed(String),
    /// The inputs do not fit the parameters.
    #[error("input {index}: expected {expected}, found {found}")]
    Input {
        /// Which parameter.
        index: usize,
        /// Its shape or number of elements.
        expected: String,
        /// What was given.
        found: String,
    },
    /// An element of an output or workspace that no grid point wrote.
    #[error("`{buffer}` is unwritten at {coordinate:?}")]
    Unwritten {
        /// The buffer's name.
        buffer: String,
        /// The coordinate along each of its axes.
        coordinate: Vec<u64>,
    },
    /// An element that two stores wrote.
    #[error("`{buffer}` is written twice at {coordinate:?}")]
    WrittenTwice {
        /// The buffer's name.
        buffer: String,
        /// The coordinate along each of its axes.
        coordinate: Vec<u64>,
    },
    /// A load of an element that nobody wrote.
    #[error("kernel {kernel} reads `{buffer}` at {coordinate:?}, which is unwritten")]
    ReadUnwritten {
        /// The kernel's number.
        kernel: usize,
        /// The buffer's name.
        buffer: String,
        /// The coordinate along each of its axes.
        coordinate: Vec<u64>,
    },
}

use SimulateError::Malformed;

/// Interprets a tile program on parameters in memory order; gives the outputs in memory order, in output order.
pub fn interpret<S: Scalar>(
    tile: &TileProgram,
    inputs: &[Vec<S>],
    options: SimulateOptions,
) -> Result<Vec<Vec<S>>, SimulateError> {
    let mut memory = Memory::new(tile, inputs)?;
    for (number, kernel) in tile.kernels.iter().enumerate() {
        run_kernel(tile, number, kernel, &mut memory, options)?;
    }
    memory.outputs(tile)
}

/// Interprets a tile program in f64: inputs in parameter order, outputs in output order, both in memory order with groups
/// merged.
pub fn simulate(
    tile: &TileProgram,
    inputs: &[Tensor],
    options: SimulateOptions,
) -> Result<Vec<Tensor>, SimulateError> {
    ir::tile_check::validate(tile).map_err(|faults| Malformed(faults.join("; ")))?;
    let shape = |dims: &[Dim]| -> Result<Vec<usize>, SimulateError> {
        dims.iter()
            .map(|d| {
                Ok(extents(&tile.axes, std::slice::from_ref(d))?
                    .iter()
                    .product())
            })
            .collect()
    };
    let mut shapes = BTreeMap::new();
    let mut parameters = 0;
    for buffer in &tile.buffers {
        let expected = shape(&buffer.dims)?;
        match buffer.role {
            BufferRole::Parameter(i) => {
                let index = i as usize;
                parameters = parameters.max(index + 1);
                let found = inputs.get(index).map(|t| &t.shape);
                if found != Some(&expected) {
                    return Err(SimulateError::Input {
                        index,
                        expected: format!("`{}` of shape {expected:?}", buffer.name),
                        found: found.map_or("none".into(), |f| format!("{f:?}")),
                    });
                }
            }
            BufferRole::Output(i) => {
                shapes.insert(i, expected);
            }
            BufferRole::Workspace => {}
        }
    }
    if inputs.len() > parameters {
        return Err(SimulateError::Input {
            index: parameters,
            expected: "no such input".into(),
            found: format!("{} inputs", inputs.len()),
        });
    }
    let data: Vec<Vec<f64>> = inputs.iter().map(|t| t.data.clone()).collect();
    let outputs = interpret(tile, &data, options)?;
    Ok(outputs
        .into_iter()
        .zip(shapes.into_values())
        .map(|(data, shape)| Tensor { shape, data })
        .collect())
}

/// Every buffer, and which of its elements exist yet.
struct Memory<S> {
    tensors: Vec<Stored<S>>,
}

struct Stored<S> {
    axes: Vec<AxisId>,
    shape: Vec<usize>,
    data: Vec<S>,
    /// `None` for parameters: written everywhere.
    written: Option<Vec<bool>>,
}

impl<S> Stored<S> {
    fn coordinate(&self, mut at: usize) -> Vec<u64> {
        let mut all: Vec<u64> = Vec::with_capacity(self.shape.len());
        for n in self.shape.iter().rev() {
            all.push((at % n) as u64);
            at /= n;
        }
        all.reverse();
        all
    }
}

impl<S: Scalar> Memory<S> {
    fn new(tile: &TileProgram, inputs: &[Vec<S>]) -> Result<Self, SimulateError> {
        let mut used = BTreeSet::new();
        let mut tensors = Vec::with_capacity(tile.buffers.len());
        for buffer in &tile.buffers {
            let axes: Vec<AxisId> = buffer.axes().collect();
            let shape = extents(&tile.axes, &buffer.dims)?;
            let n = block::count(&shape).map_err(Malformed)?;
            let (data, written) = match buffer.role {
                BufferRole::Parameter(i) => {
                    let i = i as usize;
                    used.insert(i);
                    let found = inputs.get(i).map(Vec::as_slice).unwrap_or_default();
                    if found.len() != n {
                        return Err(SimulateError::Input {
                            index: i,
                            expected: format!("{n} elements for `{}`", buffer.name),
                            found: format!("{}", found.len()),
                        });
                    }
                    (found.to_vec(), None)
                }
                BufferRole::Output(_) | BufferRole::Workspace => {
                    (vec![S::constant(f64::NAN); n], Some(vec![false; n]))
                }
            };
            tensors.push(Stored {
                axes,
                shape,
                data,
                written,
            });
        }
        Ok(Self { tensors })
    }

    fn outputs(mut self, tile: &TileProgram) -> Result<Vec<Vec<S>>, SimulateError> {
        for (buffer, stored) in tile.buffers.iter().zip(&self.tensors) {
            let hole = stored.written.iter().flatten().position(|w| !w);
            if let Some(at) = hole {
                return Err(SimulateError::Unwritten {
                    buffer: buffer.name.clone(),
                    coordinate: stored.coordinate(at),
                });
            }
        }
        let mut order: Vec<(u32, usize)> = Vec::new();
        for (i, buffer) in tile.buffers.iter().enumerate() {
            if let BufferRole::Output(n) = buffer.role {
                order.push((n, i));
            }
        }
        order.sort_unstable();
        if order.iter().enumerate().any(|(i, (n, _))| i != *n as usize) {
            return Err(Malformed("outputs are not numbered 0, 1, 2, …".into()));
        }
        Ok(order
            .into_iter()
            .map(|(_, i)| std::mem::take(&mut self.tensors[i].data))
            .collect())
    }

    fn apply(
        &mut self,
        tile: &TileProgram,
        write: Write<S>,
        options: SimulateOptions,
    ) -> Result<(), SimulateError> {
        let buffer = &tile.buffers[write.buffer.index()];
        let stored = &mut self.tensors[write.buffer.index()];
        let strides = block::strides(&stored.shape);
        let base: usize = write.first.iter().zip(&strides).map(|(f, s)| f * s).sum();
        let steps: Vec<[usize; 1]> = strides.iter().map(|s| [*s]).collect();
        let mut from = write.data.into_iter();
        let mut twice = None;
        if let Some(written) = &mut stored.written {
            block::walk(&write.lengths, &steps, |[o]| {
                let Some(x) = from.next() else { return };
                let at = base + o;
                if std::mem::replace(&mut written[at], true) {
                    twice.get_or_insert(at);
                }
                stored.data[at] = if options.round_stores {
                    x.round(buffer.dtype)
                } else {
                    x
                };
            });
        }
        match twice {
            None => Ok(()),
            Some(at) => Err(SimulateError::WrittenTwice {
                buffer: buffer.name.clone(),
                coordinate: stored.coordinate(at),
            }),
        }
    }
}

/// A store of one grid point, in the buffer's axis order.
struct Write<S> {
    buffer: BufferId,
    first: Vec<usize>,
    lengths: Vec<usize>,
    data: Vec<S>,
}

/// How many grid points run before their stores are applied: bounds memory, no effect on results.
const POINTS_AT_ONCE: u64 = 512;

fn run_kernel<S: Scalar>(
    tile: &TileProgram,
    number: usize,
    kernel: &Kernel,
    memory: &mut Memory<S>,
    options: SimulateOptions,
) -> Result<(), SimulateError> {
    let malformed = |what: String| Malformed(format!("kernel {number}: {what}"));
    let mut tiles = Vec::new();
    for axis in &kernel.grid {
        let (extent, size) = extent_and_tile(tile, kernel, *axis).map_err(malformed)?;
        tiles.push(extent.div_ceil(size));
    }
    for (axis, how) in &kernel.axes {
        let listed = kernel.grid.iter().filter(|a| *a == axis).count();
        if listed != usize::from(how.role == Role::Grid) {
            return Err(malformed(format!(
                "grid and roles disagree about axis {}",
                axis.0
            )));
        }
    }
    let stored = stores(&kernel.body);
    for value in &kernel.values {
        if let TileOp::Load { buffer, .. } = &value.op
            && stored.contains(buffer)
        {
            return Err(malformed("it loads a buffer that it stores".into()));
        }
    }
    let team = kernel.team();
    let others = AxisSet::minus(&kernel.grid.iter().copied().collect(), &team);
    let (teams, members) = (tile.points(kernel, &others), tile.points(kernel, &team));
    if teams.max(members) == u64::MAX {
        return Err(malformed("the grid is too large".into()));
    }
    // The grid's tile numbers of one member of a team.
    let point = |mut team_number: u64, mut member: u64| {
        let mut numbers: Vec<u64> = vec![0; tiles.len()];
        for (i, axis) in kernel.grid.iter().enumerate().rev() {
            let rest = if team.contains(*axis) {
                &mut member
            } else {
                &mut team_number
            };
            numbers[i] = *rest % tiles[i];
            *rest /= tiles[i];
        }
        numbers
    };
    let mut start = 0;
    while start < teams {
        let end = (start + (POINTS_AT_ONCE / members).max(1)).min(teams);
        let run = |t: u64| {
            let points: Vec<Vec<u64>> = (0..members).map(|m| point(t, m)).collect();
            run_team(tile, number, kernel, memory, &team, &points)
        };
        // A handful of teams is not worth the hand-over to other threads.
        let results: Vec<Result<Vec<Write<S>>, SimulateError>> = if end - start < 4 {
            (start..end).map(run).collect()
        } else {
            (start..end).into_par_iter().map(run).collect()
        };
        for writes in results {
            for write in writes? {
                memory.apply(tile, write, options)?;
            }
        }
        start = end;
    }
    Ok(())
}

/// Runs the grid points of a team, given by their tile numbers, in step: what one reduces across the team needs all of them.
fn run_team<S: Scalar>(
    tile: &TileProgram,
    number: usize,
    kernel: &Kernel,
    memory: &Memory<S>,
    team: &AxisSet,
    points: &[Vec<u64>],
) -> Result<Vec<Write<S>>, SimulateError> {
    let mut runs = points
        .iter()
        .map(|point| start_point(tile, number, kernel, memory, team, point))
        .collect::<Result<Vec<_>, _>>()?;
    for statement in &kernel.body {
        let across = match statement {
            Statement::Let(id) => kernel.reduction(*id).filter(|r| r.axes.intersects(team)),
            Statement::Loop(_) | Statement::Store { .. } => None,
        };
        match across {
            Some(reduction) => reduce_across(&mut runs, &reduction, team)?,
            None => {
                for run in &mut runs {
                    run.block(std::slice::from_ref(statement))?;
                }
            }
        }
    }
    Ok(runs.into_iter().flat_map(|run| run.writes).collect())
}

/// A reduction over axes of a team: each member's part, combined among the members that differ in those axes alone.
fn reduce_across<S: Scalar>(
    runs: &mut [Run<'_, S>],
    reduction: &Reduction<'_>,
    team: &AxisSet,
) -> Result<(), SimulateError> {
    let Reduction {
        result: id,
        op,
        value,
        axes,
    } = *reduction;
    let mut sums: BTreeMap<Vec<u64>, Block<S>> = BTreeMap::new();
    let mut keys = Vec::with_capacity(runs.len());
    for run in runs.iter() {
        let part = block::reduce(op, &*run.get(value)?, axes).map_err(|e| run.at(id, &e))?;
        let key = team
            .minus(axes)
            .iter()
            .map(|a| Ok(run.range(a)?.first))
            .collect::<Result<Vec<u64>, _>>()?;
        let sum = match sums.get(&key) {
            None => part,
            Some(sum) => block::map(op.combine(), &[sum, &part]).map_err(|e| run.at(id, &e))?,
        };
        sums.insert(key.clone(), sum);
        keys.push(key);
    }
    let sums: BTreeMap<Vec<u64>, Rc<Block<S>>> =
        sums.into_iter().map(|(k, b)| (k, Rc::new(b))).collect();
    for (run, key) in runs.iter_mut().zip(keys) {
        run.values[id.index()] = sums.get(&key).cloned();
    }
    Ok(())
}

fn start_point<'a, S: Scalar>(
    tile: &'a TileProgram,
    number: usize,
    kernel: &'a Kernel,
    memory: &'a Memory<S>,
    team: &AxisSet,
    point: &[u64],
) -> Result<Run<'a, S>, SimulateError> {
    let malformed = |what: String| Malformed(format!("kernel {number}: {what}"));
    let mut ranges = vec![None; tile.axes.len()];
    for (axis, how) in &kernel.axes {
        let (extent, size) = extent_and_tile(tile, kernel, *axis).map_err(malformed)?;
        if how.role == Role::Whole {
            if size != extent {
                return Err(malformed(format!(
                    "axis {} is whole but its tile is {size}",
                    axis.0
                )));
            }
            ranges[axis.index()] = Some(Range {
                first: 0,
                length: extent,
            });
        }
    }
    for (axis, tile_number) in kernel.grid.iter().zip(point) {
        let range = tile_range(tile, kernel, *axis, *tile_number).map_err(malformed)?;
        ranges[axis.index()] = Some(range);
    }
    Ok(Run {
        tile,
        kernel,
        number,
        memory,
        ranges,
        values: vec![None; kernel.values.len()],
        writes: Vec::new(),
        team: team.clone(),
        apart: false,
    })
}

/// The coordinates of an axis that exist at the moment.
#[derive(Clone, Copy)]
struct Range {
    first: u64,
    length: u64,
}

/// One grid point in progress.
struct Run<'a, S> {
    tile: &'a TileProgram,
    kernel: &'a Kernel,
    number: usize,
    memory: &'a Memory<S>,
    ranges: Vec<Option<Range>>,
    values: Vec<Option<Rc<Block<S>>>>,
    writes: Vec<Write<S>>,
    team: AxisSet,
    /// Whether members of the team do different iterations of a loop around.
    apart: bool,
}

impl<S: Scalar> Run<'_, S> {
    fn block(&mut self, body: &[Statement]) -> Result<(), SimulateError> {
        for statement in body {
            match statement {
                Statement::Let(id) => {
                    let value = self.compute(*id)?;
                    self.values[id.index()] = Some(Rc::new(value));
                }
                Statement::Loop(inner) => self.repeat(inner)?,
                Statement::Store { buffer, value } => self.store(*buffer, *value)?,
            }
        }
        Ok(())
    }

    fn repeat(&mut self, inner: &Loop) -> Result<(), SimulateError> {
        let (extent, size) =
            extent_and_tile(self.tile, self.kernel, inner.axis).map_err(|e| self.malformed(e))?;
        let mut low = 0i64;
        for bound in &inner.low {
            low = low.max(self.bound(bound)?);
        }
        let mut high = extent as i64;
        for bound in &inner.high {
            high = high.min(self.bound(bound)?);
        }
        let outside = self.ranges[inner.axis.index()];
        let scope = self.values.clone();
        let mut carried = Vec::with_capacity(inner.carries.len());
        for carry in &inner.carries {
            let TileOp::Phi { init, axes } = &self.value_of(carry.phi)?.op else {
                return Err(self.malformed("a carry whose phi is no phi".into()));
            };
            let shape = self.shape(axes)?;
            let start = Block::filled(axes, shape, S::constant(*init));
            carried.push(Rc::new(start.map_err(|e| self.malformed(e))?));
        }
        if low < high {
            let first = low as u64 / size;
            let last = (high as u64).div_ceil(size);
            for number in first..last {
                let range = tile_range(self.tile, self.kernel, inner.axis, number);
                self.ranges[inner.axis.index()] = Some(range.map_err(|e| self.malformed(e))?);
                self.values.clone_from(&scope);
                for (carry, value) in inner.carries.iter().zip(&carried) {
                    self.values[carry.phi.index()] = Some(value.clone());
                }
                let around = self.apart;
                self.apart |= inner.is_bounded_by(&self.team);
                self.block(&inner.body)?;
                self.apart = around;
                for (carry, value) in inner.carries.iter().zip(&mut carried) {
                    let next = self.get(carry.next)?;
                    let fitted = next.broadcast(&value.axes, &value.shape);
                    *value = Rc::new(fitted.map_err(|e| self.malformed(e))?);
                }
            }
        }
        self.ranges[inner.axis.index()] = outside;
        self.values = scope;
        for (carry, value) in inner.carries.iter().zip(carried) {
            match &self.value_of(carry.result)?.op {
                TileOp::Final { phi } if *phi == carry.phi => {}
                TileOp::Final { .. }
                | TileOp::Load { .. }
                | TileOp::Constant(_)
                | TileOp::Iota(_)
                | TileOp::Map(..)
                | TileOp::Reduce { .. }
                | TileOp::Contract { .. }
                | TileOp::Phi { .. } => {
                    return Err(
                        self.malformed("a carry whose result is not its phi's final".into())
                    );
                }
            }
            self.values[carry.result.index()] = Some(value);
        }
        Ok(())
    }

    fn compute(&self, id: ValueId) -> Result<Block<S>, SimulateError> {
        let value = self.value_of(id)?;
        let block = match &value.op {
            TileOp::Load {
                buffer,
                index,
                fill,
            } => self.load(*buffer, index, *fill)?,
            TileOp::Constant(c) => Block::scalar(S::constant(*c)),
            TileOp::Iota(axis) => {
                let range = self.range(*axis)?;
                Block {
                    axes: [*axis].into_iter().collect(),
                    shape: vec![range.length as usize],
                    data: (range.first..range.first + range.length)
                        .map(|i| S::integer(i as i64))
                        .collect(),
                }
            }
            TileOp::Map(op, args) => {
                let args = args
                    .iter()
                    .map(|a| self.get(*a))
                    .collect::<Result<Vec<_>, _>>()?;
                let args: Vec<&Block<S>> = args.iter().map(Rc::as_ref).collect();
                block::map(*op, &args).map_err(|e| self.at(id, &e))?
            }
            TileOp::Reduce { op, value, axes } => {
                block::reduce(*op, &*self.get(*value)?, axes).map_err(|e| self.at(id, &e))?
            }
            TileOp::Contract { a, b, axes } => {
                let (a, b) = (self.get(*a)?, self.get(*b)?);
                if !axes.is_subset(&a.axes) || !axes.is_subset(&b.axes) {
                    return Err(self.at(id, "an operand lacks a contracted axis"));
                }
                block::contract(&a, &b, axes).map_err(|e| self.at(id, &e))?
            }
            TileOp::Phi { .. } | TileOp::Final { .. } => {
                return Err(self.at(id, "phis and finals are made by loops, not computed"));
            }
        };
        if block.axes != value.axes {
            return Err(self.at(id, "its axes are not those of its operation"));
        }
        Ok(block)
    }

    fn load(
        &self,
        id: BufferId,
        index: &[ir::Affine],
        fill: f64,
    ) -> Result<Block<S>, SimulateError> {
        let stored = self
            .memory
            .tensors
            .get(id.index())
            .ok_or_else(|| self.malformed("a load from no buffer".into()))?;
        if index.len() != stored.shape.len() {
            return Err(self.malformed("a load with a wrong number of indices".into()));
        }
        let axes = index
            .iter()
            .fold(AxisSet::new(), |all, f| all.union(&f.axes()));
        let shape = self.shape(&axes)?;
        let mut data = Vec::with_capacity(block::count(&shape).map_err(|e| self.malformed(e))?);
        let overflow = || self.malformed("an index overflows".into());
        // Where the index functions are at the first coordinates, and how they move along each axis of the result.
        let mut at = Vec::with_capacity(index.len());
        let mut moves = vec![vec![0i64; index.len()]; axes.len()];
        for (d, f) in index.iter().enumerate() {
            let corners = |a: AxisId| match self.ranges.get(a.index()).copied().flatten() {
                Some(r) => (r.first as i64, (r.first + r.length - 1) as i64),
                None => (0, 0),
            };
            f.range(corners).ok_or_else(overflow)?;
            at.push(f.at(|a| corners(a).0));
            for (c, a) in f.terms() {
                if let Ok(i) = axes.as_slice().binary_search(a) {
                    moves[i][d] = *c;
                }
            }
        }
        let strides: Vec<i64> = block::strides(&stored.shape)
            .iter()
            .map(|s| *s as i64)
            .collect();
        let lengths: Vec<i64> = stored.shape.iter().map(|n| *n as i64).collect();
        let fill = S::constant(fill);
        let mut position = vec![0usize; axes.len()];
        loop {
            let inside = at.iter().zip(&lengths).all(|(x, n)| (0..*n).contains(x));
            if inside {
                let flat = at.iter().zip(&strides).map(|(x, s)| x * s).sum::<i64>() as usize;
                if let Some(written) = &stored.written
                    && !written[flat]
                {
                    return Err(SimulateError::ReadUnwritten {
                        kernel: self.number,
                        buffer: self.tile.buffers[id.index()].name.clone(),
                        coordinate: stored.coordinate(flat),
                    });
                }
                data.push(stored.data[flat]);
            } else {
                data.push(fill);
            }
            let mut d = axes.len();
            loop {
                if d == 0 {
                    return Ok(Block { axes, shape, data });
                }
                d -= 1;
                position[d] += 1;
                if position[d] < shape[d] {
                    at.iter_mut().zip(&moves[d]).for_each(|(x, m)| *x += m);
                    break;
                }
                let back = shape[d] as i64 - 1;
                at.iter_mut()
                    .zip(&moves[d])
                    .for_each(|(x, m)| *x -= m * back);
                position[d] = 0;
            }
        }
    }

    fn store(&mut self, buffer: BufferId, value: ValueId) -> Result<(), SimulateError> {
        let memory = self.memory;
        let Some(stored) = memory.tensors.get(buffer.index()) else {
            return Err(self.malformed("a store to no buffer".into()));
        };
        if stored.written.is_none() {
            return Err(self.malformed("a store to a parameter".into()));
        }
        let value = self.get(value)?;
        let wanted: AxisSet = stored.axes.iter().copied().collect();
        if value.axes != wanted || wanted.len() != stored.axes.len() {
            return Err(self.malformed(format!(
                "a store to `{}` of a value with other axes",
                self.tile.buffers[buffer.index()].name
            )));
        }
        // What lacks a team's axes is the same in all of the team, unless each does other iterations: one writes it.
        for axis in self.team.minus(&wanted).iter().filter(|_| !self.apart) {
            if self.range(axis)?.first > 0 {
                return Ok(());
            }
        }
        let mut first = Vec::with_capacity(stored.axes.len());
        let mut lengths = Vec::with_capacity(stored.axes.len());
        for axis in &stored.axes {
            let range = self.range(*axis)?;
            if value.length(*axis) != Some(range.length as usize) {
                return Err(self.malformed("a store of a value of another tile".into()));
            }
            first.push(range.first as usize);
            lengths.push(range.length as usize);
        }
        self.writes.push(Write {
            buffer,
            first,
            lengths,
            data: value.in_order(&stored.axes),
        });
        Ok(())
    }

    fn bound(&self, bound: &Bound) -> Result<i64, SimulateError> {
        if bound.divisor < 1 {
            return Err(self.malformed("a bound's divisor is below 1".into()));
        }
        let mut sum = i128::from(bound.offset);
        for (coefficient, axis, corner) in &bound.terms {
            let range = self.range(*axis)?;
            let at = match corner {
                Corner::First => range.first,
                Corner::Last => range.first + range.length - 1,
            };
            sum += i128::from(*coefficient) * i128::from(at);
        }
        let quotient = sum.div_euclid(i128::from(bound.divisor));
        Ok(quotient.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
    }

    fn range(&self, axis: AxisId) -> Result<Range, SimulateError> {
        self.ranges
            .get(axis.index())
            .copied()
            .flatten()
            .ok_or_else(|| self.malformed(format!("axis {} has no tile here", axis.0)))
    }

    fn shape(&self, axes: &AxisSet) -> Result<Vec<usize>, SimulateError> {
        axes.iter()
            .map(|a| Ok(self.range(a)?.length as usize))
            .collect()
    }

    fn value_of(&self, id: ValueId) -> Result<&ir::Value, SimulateError> {
        self.kernel
            .values
            .get(id.index())
            .ok_or_else(|| self.malformed(format!("there is no value {}", id.0)))
    }

    fn get(&self, id: ValueId) -> Result<Rc<Block<S>>, SimulateError> {
        match self.values.get(id.index()) {
            Some(Some(value)) => Ok(value.clone()),
            Some(None) | None => Err(self.at(id, "used where it is not computed")),
        }
    }

    fn at(&self, id: ValueId, what: &str) -> SimulateError {
        let name = self.kernel.values.get(id.index()).map(|v| v.name.as_str());
        self.malformed(format!("value `{}`: {what}", name.unwrap_or("?")))
    }

    fn malformed(&self, what: Fault) -> SimulateError {
        Malformed(format!("kernel {}: {what}", self.number))
    }
}

/// The buffers that a body stores to.
fn stores(body: &[Statement]) -> BTreeSet<BufferId> {
    let mut all = BTreeSet::new();
    for statement in body {
        match statement {
            Statement::Let(_) => {}
            Statement::Loop(inner) => all.extend(stores(&inner.body)),
            Statement::Store { buffer, .. } => {
                all.insert(*buffer);
            }
        }
    }
    all
}

/// The extents of the axes of a tensor, groups flattened.
pub(crate) fn extents(table: &[Axis], dims: &[Dim]) -> Result<Vec<usize>, SimulateError> {
    dims.iter()
        .flat_map(|d| &d.0)
        .map(|a| match table.get(a.index()) {
            Some(axis) if axis.extent >= 1 => Ok(axis.extent as usize),
            Some(_) | None => Err(Malformed(format!("axis {} has no extent", a.0))),
        })
        .collect()
}

fn extent_and_tile(tile: &TileProgram, kernel: &Kernel, axis: AxisId) -> Result<(u64, u64), Fault> {
    let extent = tile
        .axes
        .get(axis.index())
        .map(|a| a.extent)
        .ok_or_else(|| format!("there is no axis {}", axis.0))?;
    let size = kernel
        .axes
        .get(&axis)
        .map(|a| a.tile)
        .ok_or_else(|| format!("axis {} has no role", axis.0))?;
    if size < 1 || size > extent || extent > i64::MAX as u64 / 2 {
        return Err(format!(
            "axis {} of extent {extent} has tiles of {size}",
            axis.0
        ));
    }
    Ok((extent, size))
}

fn tile_range(
    tile: &TileProgram,
    kernel: &Kernel,
    axis: AxisId,
    number: u64,
) -> Result<Range, Fault> {
    let (extent, size) = extent_and_tile(tile, kernel, axis)?;
    let first = number * size;
    Ok(Range {
        first,
        length: size.min(extent - first),
    })
}

#[cfg(test)]
mod tests {
    // Oracle: the program, evaluated op by op in the same number system, and for two programs plain loops.
    use super::*;
    use crate::evaluate::evaluate;
    use crate::field::{Agreement, Element};
    use crate::fixtures::{self, attention};
    use rand::{RngExt, SeedableRng};

    fn check(program: &ir::Program, tile: &TileProgram) {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let sizes: Vec<u64> = program
            .parameters()
            .map(|(_, _, _, dims)| program.shape(dims).iter().product())
            .collect();
        let real: Vec<Vec<f64>> = sizes
            .iter()
            .map(|n| (0..*n).map(|_| rng.random::<f64>() * 4.0 - 2.0).collect())
            .collect();
        let exact: Vec<Vec<Element>> = sizes
            .iter()
            .map(|n| {
                (0..*n)
                    .map(|_| Element::new(rng.random(), rng.random()))
                    .collect()
            })
            .collect();
        let got = interpret(tile, &real, SimulateOptions::default()).expect("it runs");
        let want = evaluate(program, &real).expect("it runs");
        for (g, w) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((g - w).abs() < 1e-12, "{g} {w}");
        }
        let got = interpret(tile, &exact, SimulateOptions::default()).expect("it runs");
        let want = evaluate(program, &exact).expect("it runs");
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().flatten().zip(want.iter().flatten()) {
            assert_eq!(g.agreement(*w), Agreement::Equal, "{g:?} {w:?}");
        }
    }

    #[test]
    fn hand_written_tilings_equal_their_programs() {
        for e in [[5, 7, 3, 2], [1, 1, 1, 1], [4, 6, 2, 3], [2, 13, 1, 1]] {
            check(&attention(e, None), &fixtures::online_attention(e, None));
            for offset in [0, 2] {
                check(
                    &attention(e, Some(offset)),
                    &fixtures::online_attention(e, Some(offset)),
                );
            }
            check(
                &fixtures::row_softmax(e[0], e[1]),
                &fixtures::two_pass_softmax(e[0], e[1]),
            );
            check(
                &fixtures::row_softmax(e[0], e[1]),
                &fixtures::team_softmax(e[0], e[1]),
            );
            check(
                &fixtures::row_sums(e[0], e[1]),
                &fixtures::team_sums(e[0], e[1]),
            );
        }
        for (j, chunk) in [(6, 4), (6, 2), (7, 8), (3, 2)] {
            let e = [3, j, 2, 2];
            check(&attention(e, None), &fixtures::split_attention(e, chunk));
        }
    }

    #[test]
    fn plain_loops_agree() {
        // Rows of a softmax against the formula written out.
        let x: Vec<f64> = (0..10).map(|i| f64::from(i * i % 7) * 0.5).collect();
        let tile = fixtures::two_pass_softmax(2, 5);
        let got = interpret(&tile, std::slice::from_ref(&x), SimulateOptions::default())
            .expect("it runs");
        for (row, out) in x.chunks(5).zip(got[0].chunks(5)) {
            let sum: f64 = row.iter().map(|v| v.exp()).sum();
            for (v, o) in row.iter().zip(out) {
                assert!((v.exp() / sum - o).abs() < 1e-14);
            }
        }
    }

    #[test]
    fn stores_are_watched() {
        let run = |tile: &TileProgram| {
            interpret(tile, &[vec![1.0; 10]], SimulateOptions::default()).map(|_| ())
        };
        let good = fixtures::two_pass_softmax(2, 5);
        assert_eq!(run(&good), Ok(()));
        // The second loop ends one tile early.
        let mut short = good.clone();
        if let Some(Statement::Loop(last)) = short.kernels[0].body.last_mut() {
            last.high.push(Bound {
                terms: Vec::new(),
                offset: 3,
                divisor: 1,
            });
        }
        let hole = SimulateError::Unwritten {
            buffer: "out0".into(),
            coordinate: vec![0, 3],
        };
        assert_eq!(run(&short), Err(hole));
        let mut twice = good.clone();
        let again = twice.kernels[0]
            .body
            .last()
            .cloned()
            .expect("it has statements");
        twice.kernels[0].body.push(again);
        assert!(matches!(
            run(&twice),
            Err(SimulateError::WrittenTwice { .. })
        ));
        let e = [2, 4, 1, 1];
        let mut early = fixtures::split_attention(e, 2);
        early.kernels.swap(0, 1);
        let inputs = [vec![1.0; 2], vec![1.0; 4], vec![1.0; 4]];
        let result = interpret(&early, &inputs, SimulateOptions::default());
        assert!(matches!(result, Err(SimulateError::ReadUnwritten { .. })));
    }
}

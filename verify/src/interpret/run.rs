//! One grid point: its statements in order, on tiles.

use super::SimulateError::{self, Malformed};
use super::Whole;
use super::load::load;
use super::memory::{Memory, Write};
use crate::block::{self, Block, Fault};
use crate::coverage::{SeenKernel, Sides};
use crate::picked::Tile;
use crate::scalar::Scalar;
use ir::{
    Affine, AxisId, AxisSet, Bound, BufferId, Corner, Entry, Kernel, Loop, MapOp, Quotient, Role,
    Statement, TileOp, TileProgram, ValueId,
};
use std::rc::Rc;

pub(super) fn start_point<'a, S: Scalar>(
    whole: Whole<'a>,
    memory: &'a Memory<S>,
    block_group: &AxisSet,
    point: &[u64],
    notes: bool,
) -> Result<Run<'a, S>, SimulateError> {
    let Whole {
        tile,
        number,
        kernel,
        lists,
    } = whole;
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
            ranges[axis.index()] = Some(lists[axis].within(0, extent));
        }
    }
    for (axis, tile_number) in kernel.grid.iter().zip(point) {
        let range = tile_range(whole, *axis, *tile_number).map_err(malformed)?;
        ranges[axis.index()] = Some(range);
    }
    let mut run = Run {
        whole,
        memory,
        ranges,
        values: vec![None; kernel.values.len()],
        writes: Vec::new(),
        block_group: block_group.clone(),
        apart: false,
        seen: notes.then(|| SeenKernel::new(kernel)),
    };
    for (axis, tile_number) in kernel.grid.iter().zip(point) {
        run.note_tile(*axis, *tile_number);
    }
    Ok(run)
}

/// One grid point in progress.
pub(super) struct Run<'a, S> {
    pub(super) whole: Whole<'a>,
    pub(super) memory: &'a Memory<S>,
    pub(super) ranges: Vec<Option<Tile>>,
    pub(super) values: Vec<Option<Rc<Block<S>>>>,
    pub(super) writes: Vec<Write<S>>,
    pub(super) block_group: AxisSet,
    /// Whether the points of the group do different iterations of a loop around.
    pub(super) apart: bool,
    /// What was met, where somebody wants to know.
    pub(super) seen: Option<SeenKernel>,
}

impl<S: Scalar> Run<'_, S> {
    pub(super) fn block(&mut self, body: &[Statement]) -> Result<(), SimulateError> {
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

    fn note_tile(&mut self, axis: AxisId, number: u64) {
        if let Some(seen) = &mut self.seen {
            let length = self.ranges[axis.index()].as_ref().map_or(0, |r| r.length);
            seen.tile(axis, number, length);
        }
    }

    fn repeat(&mut self, inner: &Loop) -> Result<(), SimulateError> {
        let (tile, kernel) = (self.whole.tile, self.whole.kernel);
        let (extent, size) =
            extent_and_tile(tile, kernel, inner.axis).map_err(|e| self.malformed(e))?;
        let mut low = 0i64;
        for (n, bound) in inner.low.iter().enumerate() {
            let at = self.bound(bound)?;
            if let Some(seen) = &mut self.seen {
                seen.low(inner, n, at);
            }
            low = low.max(at);
        }
        let mut high = extent as i64;
        for (n, bound) in inner.high.iter().enumerate() {
            let at = self.bound(bound)?;
            if let Some(seen) = &mut self.seen {
                seen.high(inner, n, at, extent);
            }
            high = high.min(at);
        }
        let outside = self.ranges[inner.axis.index()].clone();
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
            if let Some(seen) = &mut self.seen {
                seen.iterations(inner, last - first);
            }
            for number in first..last {
                let range = tile_range(self.whole, inner.axis, number);
                let range = range.map_err(|e| self.malformed(e))?;
                // Only of an axis that nothing is carried along some coordinates may be left out.
                if range.count() == 0 {
                    continue;
                }
                self.ranges[inner.axis.index()] = Some(range);
                self.note_tile(inner.axis, number);
                self.values.clone_from(&scope);
                for (carry, value) in inner.carries.iter().zip(&carried) {
                    self.values[carry.phi.index()] = Some(value.clone());
                }
                let around = self.apart;
                self.apart |= inner.is_bounded_by(&self.block_group);
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
                | TileOp::Scan { .. }
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

    fn compute(&mut self, id: ValueId) -> Result<Block<S>, SimulateError> {
        let kernel = self.whole.kernel;
        let value = kernel
            .values
            .get(id.index())
            .ok_or_else(|| self.malformed(format!("there is no value {}", id.0)))?;
        let block = match &value.op {
            TileOp::Load {
                buffer,
                index,
                fill,
            } => {
                let (block, sides) = load(self, *buffer, index, *fill)?;
                if let Some(seen) = &mut self.seen {
                    seen.value(id, sides);
                }
                block
            }
            TileOp::Constant(c) => Block::scalar(S::constant(*c)),
            TileOp::Iota(axis) => {
                let range = self.range(*axis)?;
                Block {
                    axes: [*axis].into_iter().collect(),
                    shape: vec![range.count()],
                    data: (0..range.count())
                        .map(|p| S::integer(range.at(p) as i64))
                        .collect(),
                }
            }
            TileOp::Map(op, args) => {
                let args = args
                    .iter()
                    .map(|a| self.get(*a))
                    .collect::<Result<Vec<_>, _>>()?;
                let args: Vec<&Block<S>> = args.iter().map(Rc::as_ref).collect();
                if let (MapOp::Select, [condition, ..], Some(seen)) = (op, &*args, &mut self.seen) {
                    seen.value(id, Sides::of(&condition.data));
                }
                block::map(*op, &args).map_err(|e| self.at(id, &e))?
            }
            TileOp::Reduce { op, value, axes } => {
                block::reduce(*op, &*self.get(*value)?, axes).map_err(|e| self.at(id, &e))?
            }
            TileOp::Scan {
                op,
                value,
                axis,
                inclusive,
            } => block::scan(*op, &*self.get(*value)?, *axis, *inclusive)
                .map_err(|e| self.at(id, &e))?,
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

    fn store(&mut self, buffer: BufferId, value: ValueId) -> Result<(), SimulateError> {
        let memory = self.memory;
        let Some(stored) = memory.tensors.get(buffer.index()) else {
            return Err(self.malformed("a store to no buffer".into()));
        };
        if stored.written.is_none() {
            return Err(self.malformed("a store to a parameter".into()));
        }
        let value = self.get(value)?;
        let along = (self.whole.tile).axes_stored(buffer, &value.axes);
        let wanted: AxisSet = along.iter().copied().collect();
        if value.axes != wanted || wanted.len() != along.len() {
            return Err(self.malformed(format!(
                "a store to `{}` of a value with other axes",
                self.whole.tile.buffers[buffer.index()].name
            )));
        }
        // What lacks a block group's axes is the same in all of the group, unless each does other iterations: one writes it.
        for axis in self
            .block_group
            .minus(&wanted)
            .iter()
            .filter(|_| !self.apart)
        {
            if self.range(axis)?.first > 0 {
                return Ok(());
            }
        }
        let mut tiles = Vec::with_capacity(along.len());
        for axis in &along {
            let range = self.range(*axis)?;
            if value.length(*axis) != Some(range.count()) {
                return Err(self.malformed("a store of a value of another tile".into()));
            }
            tiles.push(range);
        }
        self.writes.push(Write {
            buffer,
            tiles,
            data: value.in_order(&along),
            along,
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
                Corner::Last => range.last(),
            };
            sum += i128::from(*coefficient) * i128::from(at);
        }
        for (coefficient, entry) in &bound.entries {
            sum += i128::from(*coefficient) * i128::from(self.entry(entry)?);
        }
        let quotient = sum.div_euclid(i128::from(bound.divisor));
        Ok(quotient.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
    }

    fn entry(&self, entry: &Entry) -> Result<i64, SimulateError> {
        let at: Vec<Quotient> = entry.axes.iter().map(|a| Affine::axis(*a).into()).collect();
        let (block, _) = load(self, entry.buffer, &at, 0.0)?;
        match block.data.as_slice() {
            [value] => Ok(Entry::taken(value.real())),
            _ => Err(self.malformed("a bound reads several elements".into())),
        }
    }

    pub(super) fn range(&self, axis: AxisId) -> Result<Tile, SimulateError> {
        self.ranges
            .get(axis.index())
            .cloned()
            .flatten()
            .ok_or_else(|| self.malformed(format!("axis {} has no tile here", axis.0)))
    }

    fn shape(&self, axes: &AxisSet) -> Result<Vec<usize>, SimulateError> {
        axes.iter().map(|a| Ok(self.range(a)?.count())).collect()
    }

    fn value_of(&self, id: ValueId) -> Result<&ir::Value, SimulateError> {
        self.whole
            .kernel
            .values
            .get(id.index())
            .ok_or_else(|| self.malformed(format!("there is no value {}", id.0)))
    }

    pub(super) fn get(&self, id: ValueId) -> Result<Rc<Block<S>>, SimulateError> {
        match self.values.get(id.index()) {
            Some(Some(value)) => Ok(value.clone()),
            Some(None) | None => Err(self.at(id, "used where it is not computed")),
        }
    }

    pub(super) fn at(&self, id: ValueId, what: &str) -> SimulateError {
        let name = self
            .whole
            .kernel
            .values
            .get(id.index())
            .map(|v| v.name.as_str());
        self.malformed(format!("value `{}`: {what}", name.unwrap_or("?")))
    }

    pub(super) fn malformed(&self, what: Fault) -> SimulateError {
        Malformed(format!("kernel {}: {what}", self.whole.number))
    }
}

pub(super) fn extent_and_tile(
    tile: &TileProgram,
    kernel: &Kernel,
    axis: AxisId,
) -> Result<(u64, u64), Fault> {
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

fn tile_range(whole: Whole<'_>, axis: AxisId, number: u64) -> Result<Tile, Fault> {
    let (extent, size) = extent_and_tile(whole.tile, whole.kernel, axis)?;
    let first = number * size;
    let picked = whole.lists.get(&axis);
    let picked = picked.ok_or_else(|| format!("axis {} has no role", axis.0))?;
    Ok(picked.within(first, size.min(extent - first)))
}

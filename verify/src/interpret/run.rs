//! One grid point: its statements in order, on tiles.

use super::SimulateError::{self, Malformed};
use super::memory::{Memory, Write};
use crate::block::{self, Block, Fault};
use crate::scalar::Scalar;
use ir::{
    AxisId, AxisSet, Bound, BufferId, Corner, Kernel, Loop, Role, Statement, TileOp, TileProgram,
    ValueId,
};
use std::rc::Rc;

pub(super) fn start_point<'a, S: Scalar>(
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
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) length: u64,
}

/// One grid point in progress.
pub(super) struct Run<'a, S> {
    pub(super) tile: &'a TileProgram,
    pub(super) kernel: &'a Kernel,
    pub(super) number: usize,
    pub(super) memory: &'a Memory<S>,
    pub(super) ranges: Vec<Option<Range>>,
    pub(super) values: Vec<Option<Rc<Block<S>>>>,
    pub(super) writes: Vec<Write<S>>,
    pub(super) team: AxisSet,
    /// Whether members of the team do different iterations of a loop around.
    pub(super) apart: bool,
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

    pub(super) fn range(&self, axis: AxisId) -> Result<Range, SimulateError> {
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

    pub(super) fn get(&self, id: ValueId) -> Result<Rc<Block<S>>, SimulateError> {
        match self.values.get(id.index()) {
            Some(Some(value)) => Ok(value.clone()),
            Some(None) | None => Err(self.at(id, "used where it is not computed")),
        }
    }

    pub(super) fn at(&self, id: ValueId, what: &str) -> SimulateError {
        let name = self.kernel.values.get(id.index()).map(|v| v.name.as_str());
        self.malformed(format!("value `{}`: {what}", name.unwrap_or("?")))
    }

    fn malformed(&self, what: Fault) -> SimulateError {
        Malformed(format!("kernel {}: {what}", self.number))
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

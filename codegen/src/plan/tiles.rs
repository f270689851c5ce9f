//! Tiles in shared memory: where they lie, how rows are padded or permuted, and what they take.

use super::{Contraction, Filled, Method, Plan, SharedTile};
use crate::access::Access;
use crate::atoms::Reads;
use crate::layout::Layout;
use crate::machine::{PatchSide, Swizzle};
use crate::resources::SWIZZLE_BYTES;
use ir::{AxisId, Dtype, Reject, Target, TileOp, ValueId};
use std::collections::BTreeSet;

impl Plan<'_> {
    /// What a load reads; none for anything else.
    pub(crate) fn access(&self, v: ValueId) -> Result<Option<Access>, Reject> {
        match self.op(v) {
            TileOp::Load {
                buffer,
                index,
                fill,
            } => Access::load(self.tile, *buffer, index, *fill).map(Some),
            TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Map(..)
            | TileOp::Reduce { .. }
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => Ok(None),
        }
    }

    /// How one operand of a contraction lies in shared memory.
    pub(super) fn shared_tile(&self, c: &Contraction, side: usize) -> Result<SharedTile, Reject> {
        let value = c.values[side];
        let access = self.access(value)?;
        let unit = access.as_ref().and_then(|a| a.unit_axis(&self.cut));
        let (kept, k) = (&c.spaces[side], &c.spaces[2]);
        let mut swizzle = None;
        let (dtype, axes, elements) = match c.method {
            Method::Matrix(row) if row.instruction.reads == Reads::SwizzleAtoms => {
                let by_kept = unit.is_some() && kept.axes.first().map(|a| a.0) == unit;
                let (fast, slow) = if by_kept { (kept, k) } else { (k, kept) };
                // Every group of warps begins with a swizzle atom.
                let columns = match (by_kept, side) {
                    (true, 1) => self.warps()[1],
                    (true, _) | (false, _) => 1,
                };
                let found = Swizzle {
                    span: Swizzle::longest(fast.total / columns, row.operand),
                    lines: slow.total,
                    along: fast.axes.len(),
                    depth: !by_kept,
                };
                swizzle = Some(found);
                let mut axes = fast.strides();
                axes.extend(slow.strides());
                // A whole number of patterns, so that every stage begins with one.
                let elements = (fast.total * slow.total).next_multiple_of(512);
                (row.operand, axes, elements)
            }
            Method::Matrix(row) => {
                let by_kept = unit.is_some() && kept.axes.first().map(|a| a.0) == unit;
                let (kept, k) = (kept.unwoven(), k.unwoven());
                let (fast, slow) = if by_kept { (kept, k) } else { (k, kept) };
                // Eight lines of 16 bytes in all banks; four or eight lines of single elements.
                let beside = match (row.instruction.reads, by_kept) {
                    (Reads::Matrices, _) | (_, true) => 8,
                    (Reads::Threads | Reads::Elements { .. } | Reads::SwizzleAtoms, false) => 4,
                };
                let pitch = fast.total + beside;
                let mut axes = fast.strides();
                axes.extend(slow.strides().iter().map(|(a, n, s)| (*a, *n, s * pitch)));
                let rows: u64 = slow.axes.iter().map(|a| a.1).product();
                (row.operand, axes, rows * pitch)
            }
            Method::Outer | Method::Product => {
                let dtype = access.as_ref().and_then(|a| a.dtype.held());
                let dtype = dtype.unwrap_or(Dtype::F32);
                let step = 16 / dtype.bytes();
                let mut order: Vec<AxisId> = self
                    .ordered(self.axes(value))
                    .into_iter()
                    .filter(|a| a.1 > 1)
                    .map(|a| a.0)
                    .collect();
                // Rows (or columns) lie side by side even if memory is contiguous along the depth: threads read several at once.
                let count: u64 = kept.axes.iter().map(|a| self.kernel.tile(a.0)).product();
                let across = access.is_some() && dtype == Dtype::F32 && count >= 16;
                let first = kept.axes.first().map(|a| a.0).filter(|_| across).or(unit);
                if let Some(at) = order.iter().position(|a| Some(*a) == first) {
                    let fastest = order.remove(at);
                    order.insert(0, fastest);
                }
                let (mut axes, mut stride) = (Vec::new(), 1);
                for (i, a) in order.into_iter().enumerate() {
                    let mut size = self.kernel.tile(a).max(c.accumulator.cover(a));
                    if i == 0 {
                        size = size.next_multiple_of(step);
                    }
                    axes.push((a, size, stride));
                    stride *= size;
                    if i == 0 {
                        stride += step;
                    }
                }
                (dtype, axes, stride)
            }
        };
        let in_loop = self.loop_of[value.index()];
        let loaded = access.is_some();
        let (mut axes, mut elements) = (axes, elements);
        let mut patch = Vec::new();
        // Threads read elements of it, from wherever they lie.
        let by_threads = match c.method {
            Method::Outer => true,
            Method::Matrix(row) => side == 0 && row.has_halves(),
            Method::Product => false,
        };
        if by_threads {
            let size = |a: AxisId| {
                let padded = c.spaces.iter().map(|s| s.size(a)).max().unwrap_or(1);
                let tile = self.kernel.tile(a).max(c.accumulator.cover(a));
                match c.method {
                    Method::Matrix(_) => tile.max(padded),
                    Method::Outer | Method::Product => tile,
                }
            };
            if self.patch(value, |a| self.kernel.tile(a)).is_some()
                && let Some(sides) = self.patch(value, size)
            {
                for (axis, _, stride) in &mut axes {
                    *stride = sides
                        .iter()
                        .flat_map(|s| s.function.terms().iter().map(|t| (t, s.pitch)))
                        .filter(|(t, _)| t.1 == *axis)
                        .map(|(t, pitch)| t.0 as u64 * pitch)
                        .sum();
                }
                elements = sides.iter().map(|s| s.span).product();
                patch = sides;
            }
        }
        Ok(SharedTile {
            value,
            filled: match loaded {
                true => Filled::Loaded,
                false => Filled::Published,
            },
            dtype,
            axes,
            elements: elements.next_multiple_of(8),
            in_loop,
            swizzle,
            patch,
        })
    }

    /// A tile of one half of each element of the columns of a contraction, in the loop where that is.
    pub(super) fn half_tile(
        &self,
        c: &Contraction,
        whole: &SharedTile,
        in_loop: Option<usize>,
    ) -> SharedTile {
        let [_, columns, depth] = &c.spaces;
        let mut axes = depth.strides();
        axes.extend(columns.strides());
        let swizzle = Swizzle {
            span: Swizzle::longest(depth.total, whole.dtype),
            lines: columns.total,
            along: depth.axes.len(),
            depth: true,
        };
        // A whole number of patterns, so that every stage begins with one.
        let pattern = SWIZZLE_BYTES / whole.dtype.bytes();
        SharedTile {
            filled: Filled::Split,
            axes,
            elements: (columns.total * depth.total).next_multiple_of(pattern),
            in_loop,
            swizzle: Some(swizzle),
            patch: Vec::new(),
            ..whole.clone()
        }
    }

    /// The part of a buffer that a load's tile of these sizes reads, where it is smaller than the tile: neighbouring elements
    /// of the tile then read the same memory.
    pub(super) fn patch(&self, v: ValueId, size: impl Fn(AxisId) -> u64) -> Option<Vec<PatchSide>> {
        let TileOp::Load { buffer, index, .. } = self.op(v) else {
            return None;
        };
        let axes = self.tile.axes_loaded(*buffer, index);
        let (mut sides, mut pitch, mut stride) = (Vec::new(), 1u64, 1i64);
        for (axis, place) in axes.iter().zip(index).rev() {
            let function = place.affine()?;
            let extent = i64::try_from(self.tile.extent(*axis)).ok()?;
            let mut span = 1u64;
            for (c, a) in function.terms() {
                let c = u64::try_from(*c).ok()?;
                span = span.checked_add(c.checked_mul(size(*a) - 1)?)?;
            }
            let range = function.range(|a| (0, self.tile.extent(a) as i64 - 1))?;
            sides.push(PatchSide {
                axis: *axis,
                span,
                pitch,
                stride,
                function: function.clone(),
                extent,
                checked: span > 1 || range.0 < 0 || range.1 >= extent,
            });
            pitch = pitch.checked_mul(span)?;
            stride = stride.checked_mul(extent)?;
        }
        let distinct: BTreeSet<AxisId> = axes.iter().copied().collect();
        let volume = self
            .axes(v)
            .iter()
            .try_fold(1u64, |n, a| n.checked_mul(size(a)))?;
        (distinct.len() == axes.len() && pitch < volume).then_some(sides)
    }

    /// Gives the rest of the values layouts.
    pub(super) fn finish(&mut self, target: &Target) -> Result<(), Reject> {
        for i in 0..self.kernel.values.len() {
            let v = ValueId(i as u32);
            if let TileOp::Map(..) = self.op(v) {
                self.settle(v);
            }
        }
        let phis: u64 = (0..self.kernel.values.len())
            .filter(|i| matches!(self.kernel.values[*i].op, TileOp::Phi { .. }))
            .filter_map(|i| self.layouts[i].as_ref())
            .map(Layout::register_count)
            .sum();
        let most = self
            .layouts
            .iter()
            .flatten()
            .map(Layout::register_count)
            .max()
            .unwrap_or(0);
        let need = phis.max(most);
        let blocks = u64::from(self.blocks_per_sm());
        let have = target.registers(self.threads() * blocks);
        if need > have {
            return Err(Reject::Registers { need, have });
        }
        Ok(())
    }
}

//! Loads, stores, and tiles in shared memory.

use super::{Lowering, Machined};
use crate::access::Access;
use crate::layout::{Gathered, Layout};
use crate::machine::{
    Copy, Counter, FragmentId, Policy, Region, RegionId, Slot, Source, Store, Sync,
};
use crate::plan::{Filled, SharedTile};
use crate::resources::PRODUCER_THREADS;
use ir::{AxisId, BufferId, Dtype, Reject, ValueId};

/// The region of a tile in shared memory, by the tile's number.
pub(super) fn region(t: usize) -> RegionId {
    RegionId(t as u32)
}

impl Lowering<'_> {
    pub(super) fn regions(&self) -> Vec<Region> {
        let tiles = self.plan.tiles.iter().enumerate();
        let of = |(t, tile): (usize, &SharedTile)| Region {
            name: self.kernel.value(tile.value).name.clone(),
            dtype: tile.dtype,
            axes: tile.axes.clone(),
            elements: tile.elements,
            slots: tile.slots,
            offset: tile.offset,
            swizzle: tile.swizzle,
            patch: tile.patch.clone(),
            boxes: self.plan.boxes.get(&t).cloned(),
        };
        tiles.map(of).collect()
    }

    fn access(&self, v: ValueId) -> Result<Access, Reject> {
        let access = self.plan.access(v)?;
        access.ok_or_else(|| Reject::Schedule("not a load".into()))
    }

    /// Elements that a thread can move at once when registers are spread as `layout` says.
    fn width(&self, access: &Access, layout: &Layout) -> u64 {
        let Some(unit) = access.unit_axis(self.kernel) else {
            return 1;
        };
        let run = layout.vector(unit);
        let mut most = (1 << run.trailing_zeros()).min(16 / access.dtype.bytes());
        let steady = |v: u64| {
            let others = layout.registers.iter().skip(1);
            others
                .chain(&layout.lanes)
                .chain(&layout.warps)
                .all(|f| f.axis != Some(unit) || f.stride.is_multiple_of(v))
        };
        while most > 1 && !steady(most) {
            most /= 2;
        }
        access.vector(self.tile, self.kernel, unit, most)
    }

    /// Reads a buffer into registers.
    pub(super) fn load(
        &mut self,
        v: ValueId,
        layout: &Layout,
        out: &mut Vec<Machined>,
    ) -> Result<Source, Reject> {
        if let Some(found) = self.find(v, Some(layout)) {
            return Ok(Source::Fragment(found));
        }
        let to = self.array(v, layout, out);
        out.push(self.read_into(v, to)?);
        self.bind(v, layout, to);
        Ok(Source::Fragment(to))
    }

    /// Whether every axis of the grid moves what a block reads: blocks then share none of it, or the rims of windows.
    fn is_own(&self, access: &Access) -> bool {
        let moves = |a: &AxisId| access.coefficients.get(a).is_some_and(|c| *c != 0);
        let alone = |a: &AxisId| self.tile.extent(*a) <= self.kernel.tile(*a);
        self.kernel.grid.iter().all(|a| alone(a) || moves(a))
    }

    /// Reads a buffer into a fragment.
    pub(super) fn read_into(&self, v: ValueId, to: FragmentId) -> Result<Machined, Reject> {
        let access = self.access(v)?;
        let policy = match (self.is_late(access.buffer), self.is_own(&access)) {
            (true, _) => Policy::Late,
            (false, true) => Policy::Own,
            (false, false) => Policy::Shared,
        };
        Ok(Machined::Load {
            to,
            width: self.width(&access, &self.fragment(to).layout()),
            axes: self.plan.axes(v).clone(),
            access,
            policy,
        })
    }

    /// Writes a value to its buffer.
    pub(super) fn store(
        &mut self,
        buffer: BufferId,
        v: ValueId,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let access = Access::store(self.tile, buffer)?;
        let held = self.layout(v).distinct();
        let from = self.operand(v, &held, out)?;
        let found = match from {
            Source::Fragment(id) => Some(self.fragment(id).layout()),
            Source::Constant(_) | Source::Coordinate(_) => None,
        };
        let gathered = self.gathered(&access, &held, found.as_ref());
        let layout = gathered.as_ref().map_or(&held, |g| &g.layout);
        let width = match found {
            Some(found) if found.registers.first() == held.registers.first() => {
                self.width(&access, layout)
            }
            Some(_) | None => 1,
        };
        let axes = self.plan.axes(v).clone();
        out.push(Machined::Store(Box::new(Store {
            access,
            from,
            held,
            gathered,
            width,
            alone: self.stores_alone(&axes),
            axes,
        })));
        Ok(())
    }

    /// The exchange between lanes after which a thread writes whole vectors, where it could not before. All lanes of a warp take
    /// part in it.
    fn gathered(
        &self,
        access: &Access,
        held: &Layout,
        layout: Option<&Layout>,
    ) -> Option<Gathered> {
        let layout = layout?;
        let unit = access.unit_axis(self.kernel)?;
        let run = 16 / access.dtype.bytes();
        let found = held.gathered(unit, run)?;
        let whole = (found.piece * access.dtype.bytes()).is_multiple_of(4);
        let together = held.copy_masks().0 == 0 && layout.registers == held.registers;
        (whole && together && self.width(access, &found.layout) == run).then_some(found)
    }

    /// Fills the tiles of a load that stands outside every loop.
    pub(super) fn stage_once(&mut self, v: ValueId, out: &mut Vec<Machined>) -> Result<(), Reject> {
        let mut any = false;
        for t in 0..self.plan.tiles.len() {
            let tile = &self.plan.tiles[t];
            if tile.value == v && tile.filled == Filled::Loaded && tile.in_loop.is_none() {
                let fill = self.fill(t, Slot::At(0))?;
                out.push(Machined::Scope(vec![fill]));
                any = true;
            }
        }
        if any {
            out.push(Machined::Sync(Sync::CopyCommit));
            self.pending = true;
        }
        Ok(())
    }

    /// Whether a ring has a slot more than the schedule says, for what is still read in the next iteration.
    pub(super) fn late(&self, t: usize) -> bool {
        self.plan.tiles[t].late
    }

    /// The slot of a tile that the current iteration reads.
    pub(super) fn current_slot(&self, t: usize) -> Slot {
        let tile = &self.plan.tiles[t];
        match tile.in_loop {
            Some(number) if tile.slots > 1 => Slot::Current(Counter {
                number,
                late: tile.late,
            }),
            Some(_) | None => Slot::At(0),
        }
    }

    /// Copies a load's tile into a slot: every element of the slot is written, zero where it does not exist.
    pub(super) fn fill(&self, t: usize, slot: Slot) -> Result<Machined, Reject> {
        let tile = &self.plan.tiles[t];
        let produced = tile.in_loop.is_some() && tile.in_loop == self.plan.produced;
        let warps = if produced {
            PRODUCER_THREADS
        } else {
            self.plan.threads()
        } / 32;
        let access = self.access(tile.value)?;
        let copy = |access, layout, width, background| {
            Machined::Copy(Box::new(Copy {
                region: region(t),
                slot,
                access,
                layout,
                width,
                background,
            }))
        };
        if !tile.patch.is_empty() && !produced {
            let sides = tile.patch.iter().filter(|s| s.span > 1);
            let sizes: Vec<(AxisId, u64)> = sides.map(|s| (s.axis, s.span)).collect();
            let layout = Layout::blocked(&sizes, 1, warps, 1);
            let background = access.fill == 0.0 && tile.dtype == Dtype::F32;
            return Ok(copy(access, layout, 1, background));
        }
        let sizes: Vec<(AxisId, u64)> = tile.axes.iter().map(|a| (a.0, a.1)).collect();
        let unit = access.unit_axis(self.kernel);
        let step = 16 / tile.dtype.bytes();
        let most = if unit.is_some()
            && tile.axes.first().map(|a| a.0) == unit
            && access.dtype == tile.dtype
        {
            unit.map_or(1, |u| access.vector(self.tile, self.kernel, u, step))
        } else {
            1
        };
        let across = sizes.iter().position(|a| Some(a.0) == unit);
        let layout = match (across, tile.swizzle) {
            (_, Some(s)) => Layout::panels(&sizes, s.along, s.span, most, warps),
            (Some(at), None) if at > 0 => Layout::crossed(&sizes, at, warps),
            (Some(_) | None, None) => Layout::blocked(&sizes, most, 1, warps),
        };
        let width = if most > 1 {
            unit.map_or(1, |u| layout.vector(u)).min(most)
        } else {
            1
        };
        let background = width * tile.dtype.bytes() >= 4
            && access.dtype == tile.dtype
            && (access.checks.is_empty() || access.fill == 0.0);
        if produced && (!background || !tile.patch.is_empty()) {
            return Err(Reject::Schedule(
                "warps that only copy cannot convert what they copy".into(),
            ));
        }
        Ok(copy(access, layout, width, background))
    }

    /// Makes a thread's writes to shared memory visible to warpgroup instructions behind the next barrier, where these read what was copied
    /// or computed as it is.
    pub(super) fn proxy_fence(&self) -> Option<Machined> {
        let read = |t: &SharedTile| t.swizzle.is_some() && t.filled != Filled::Split;
        let needed = self.plan.tiles.iter().any(read);
        needed.then_some(Machined::Sync(Sync::ProxyFence))
    }

    /// Writes a value that contractions read from shared memory to its tiles there.
    pub(super) fn publish(&mut self, v: ValueId, out: &mut Vec<Machined>) -> Result<(), Reject> {
        for t in 0..self.plan.tiles.len() {
            let tile = &self.plan.tiles[t];
            if tile.value != v || tile.filled != Filled::Published {
                continue;
            }
            let layout = self.layout(v).distinct();
            let from = self.operand(v, &layout, out)?;
            let mut sizes = tile.axes.iter();
            let padded = sizes.any(|(a, size, _)| layout.cover(*a) < *size);
            if padded {
                out.push(Machined::Clear(region(t)));
            }
            out.push(Machined::Publish {
                region: region(t),
                from,
                layout,
                axes: self.plan.axes(v).clone(),
            });
            out.extend(self.proxy_fence());
        }
        Ok(())
    }
}

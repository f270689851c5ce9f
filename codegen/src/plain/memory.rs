//! Loads, stores, and tiles in shared memory.

use super::{Machined, Plain};
use crate::access::Access;
use crate::layout::{Gathered, Layout};
use crate::machine::{
    Copy, FragmentId, Holds, Policy, Region, RegionId, Source, Stage, Store, Sync,
};
use crate::plan::{Filled, WASTED};
use ir::{AxisId, BufferId, Reject, ValueId};

/// Bytes of a bank of shared memory.
const BANK: u64 = 4;

/// The region of a tile in shared memory, by the tile's number.
pub(super) fn region(t: usize) -> RegionId {
    RegionId(t as u32)
}

impl Plain<'_> {
    pub(super) fn regions(&self) -> Vec<Region> {
        let all = 0..self.plan.tiles.len();
        all.map(|t| self.region(t)).collect()
    }

    fn region(&self, t: usize) -> Region {
        let tile = &self.plan.tiles[t];
        Region {
            name: self.kernel.value(tile.value).name.clone(),
            dtype: tile.dtype,
            axes: tile.axes.clone(),
            elements: tile.elements,
            stages: 1,
            offset: 0,
            swizzle: tile.swizzle,
            patch: tile.patch.clone(),
            boxes: None,
        }
    }

    fn access(&self, v: ValueId) -> Result<Access, Reject> {
        let access = self.plan.access(v)?;
        access.ok_or_else(|| Reject::Schedule("not a load".into()))
    }

    /// Elements that a thread can move at once when registers are spread as `layout` says.
    fn width(&self, access: &Access, layout: &Layout) -> u64 {
        let Some(unit) = access.unit_axis(&self.plan.cut) else {
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
        access.vector(&self.plan.cut, unit, most)
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
        let policy = match (self.is_dependent(access.buffer), self.is_own(&access)) {
            (true, _) => Policy::Dependent,
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
        let access = Access::store(self.tile, buffer, self.plan.axes(v))?;
        let mut held = self.layout(v).distinct();
        let mut from = self.operand(v, &held, out)?;
        if let Some((id, turned)) = self.turned(&access, &held, from) {
            from = Source::Fragment(self.convert(v, id, &turned, out));
            held = turned;
        }
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

    /// The layout in which neighbouring threads have what are neighbours in the buffer, where a warp would touch far more sectors than its
    /// elements fill: a tile is turned in shared memory before it is written. Kernels that have tiles there need it for them.
    fn turned(&self, access: &Access, held: &Layout, from: Source) -> Option<(FragmentId, Layout)> {
        let Source::Fragment(id) = from else {
            return None;
        };
        let whole =
            matches!(&self.fragment(id).holds, Holds::Floats(own) if own.distinct() == *held);
        let fits = held.scattered().1 * 4 <= self.room;
        if !whole || !fits || !self.plan.tiles.is_empty() {
            return None;
        }
        let step = |axis: &AxisId| {
            access
                .coefficients
                .get(axis)
                .map_or(0, |c| c.unsigned_abs())
        };
        let mut sizes: Vec<(AxisId, u64)> = (held.axes().iter())
            .map(|axis| (axis, self.kernel.tile(axis)))
            .collect();
        sizes.sort_by_key(|(axis, _)| step(axis));
        let [rows, columns] = self.plan.warps();
        let run = (BANK / access.dtype.bytes()).max(1);
        let turned = Layout::blocked(&sizes, run, rows, columns);
        let waste = |layout: &Layout| access.waste(layout, self.width(access, layout));
        let (before, after) = (waste(held), waste(&turned));
        (before >= WASTED && 2.0 * after <= before).then_some((id, turned))
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
        let unit = access.unit_axis(&self.plan.cut)?;
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
                let fill = self.fill(t)?;
                out.push(Machined::Scope(vec![fill]));
                any = true;
            }
        }
        if any {
            out.push(Machined::Sync(Sync::CopyCommit));
        }
        Ok(())
    }

    /// Copies a load's tile.
    pub(super) fn fill(&self, t: usize) -> Result<Machined, Reject> {
        let access = self.access(self.plan.tiles[t].value)?;
        let warps = self.plan.threads() / 32;
        let (id, whole) = (region(t), self.region(t));
        let copy = Copy::of((id, &whole), Stage::At(0), access, &self.plan.cut, warps);
        Ok(Machined::Copy(Box::new(copy)))
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
        }
        Ok(())
    }
}

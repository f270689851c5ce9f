//! What moves between registers, shared memory and buffers.

use super::agent::{LANES, Warp, index, lanes};
use super::clock::{Access as By, Clock, Epoch};
use super::elements::combine;
use super::memory::Memory;
use super::run::World;
use crate::access::Access;
use crate::layout::Layout;
use crate::machine::{
    Boxes, Copy, FragmentId, Partial, Parts, Region, RegionId, RingId, Source, Stage, Store,
};
use ir::{AxisId, AxisSet, Bound, BufferId, Entry};

/// The register whose digits are these but for the first, which is so many more.
fn lead(layout: &Layout, width: u64, register: u64) -> Option<u64> {
    let first = layout.registers.first().map_or(1, |f| f.size);
    (register % first).is_multiple_of(width).then_some(register)
}

/// Where an element of a region is among its elements, by coordinates; chunks of lines count as not permuted.
fn place(region: &Region, coordinate: impl Fn(AxisId) -> u64) -> u64 {
    let sum = |axes: &[(AxisId, u64, u64)]| -> u64 {
        axes.iter()
            .map(|(a, _, stride)| coordinate(*a) * stride)
            .sum()
    };
    match region.swizzle {
        None => sum(&region.axes),
        Some(s) => {
            let (x, y) = region.axes.split_at(s.along);
            let (x, y) = (sum(x), sum(y));
            (x / s.span * s.lines + y) * s.span + x % s.span
        }
    }
}

impl Warp<'_> {
    /// Where an element is in its buffer.
    fn flat(
        &self,
        access: &Access,
        layout: &Layout,
        register: u64,
        lane: usize,
    ) -> Result<i64, String> {
        let mut sum = access.offset;
        for (axis, c) in &access.coefficients {
            sum += c * self.global(layout, *axis, register, lane)?;
        }
        Ok(sum.div_euclid(access.divisor))
    }

    /// Whether an element lies in its buffer.
    fn inside(
        &self,
        access: &Access,
        layout: &Layout,
        register: u64,
        lane: usize,
    ) -> Result<bool, String> {
        for (place, extent) in &access.checks {
            let at = self.function(place.function(), layout, register, lane)?;
            let divisor = place.divisor();
            if at % divisor != 0 || !(0..*extent).contains(&(at / divisor)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether no kernel in front still writes it.
    fn is_ready(&self, buffer: BufferId) -> Result<(), String> {
        let argument = &self.machine.buffers[&buffer];
        if argument.dependent && !self.waited {
            return Err(format!(
                "{} is read before the kernels in front have ended",
                argument.name
            ));
        }
        Ok(())
    }
}

/// Bounds whose entries are read.
pub(super) fn known(
    bounds: &[Bound],
    entry: impl Fn(&Entry) -> Result<i64, String>,
) -> Result<Vec<Bound>, String> {
    let read = |bound: &Bound| {
        let mut known = bound.clone();
        for (c, e) in known.entries.drain(..) {
            known.offset += c * entry(&e)?;
        }
        Ok(known)
    };
    bounds.iter().map(read).collect()
}

impl World<'_> {
    /// What a bound reads.
    pub(super) fn entry(&self, warp: &Warp<'_>, entry: &Entry) -> Result<i64, String> {
        warp.is_ready(entry.buffer)?;
        let (buffer, mut at) = (&self.buffers[&entry.buffer], 0);
        for axis in &entry.axes {
            at = at * warp.axis(*axis).extent as i64 + warp.origin(*axis)?;
        }
        let element = usize::try_from(at).ok().and_then(|at| buffer.get(at));
        let name = &self.machine.buffers[&entry.buffer].name;
        match element {
            Some(Some(value)) => Ok(Entry::taken(*value)),
            Some(None) | None => Err(format!("a bound reads element {at} of {name}")),
        }
    }

    fn global_read(&self, access: &Access, at: i64) -> Result<f64, String> {
        let name = &self.machine.buffers[&access.buffer].name;
        let buffer = &self.buffers[&access.buffer];
        let element = usize::try_from(at).ok().and_then(|at| buffer.get(at));
        let element = element
            .ok_or_else(|| format!("element {at} of {name} is read, which has {}", buffer.len()))?;
        element.ok_or_else(|| format!("element {at} of {name} is read and was not written"))
    }

    /// The address of an element of a stage.
    pub(super) fn address(&self, id: RegionId, stage: u64, element: u64) -> Result<u64, String> {
        let region = self.machine.region(id);
        let stage = if region.stages > 1 { stage } else { 0 };
        if element >= region.elements || stage >= region.stages {
            return Err(format!(
                "element {element} of stage {stage} of {}, which has {} elements and {} stages",
                region.name, region.elements, region.stages
            ));
        }
        Ok(region.offset + (stage * region.elements + element) * region.dtype.bytes())
    }

    fn shared_write(
        &mut self,
        rank: usize,
        region: RegionId,
        at: u64,
        x: f64,
        by: By<'_>,
    ) -> Result<(), String> {
        let width = self.machine.region(region).dtype.bytes();
        self.blocks[rank].shared.write(at, width, x, by)
    }

    pub(super) fn load(
        &mut self,
        warp: &mut Warp<'_>,
        to: FragmentId,
        access: &Access,
        axes: &AxisSet,
        width: u64,
    ) -> Result<(), String> {
        warp.is_ready(access.buffer)?;
        let layout = self.machine.fragment(to).layout();
        let mut all = vec![[None; LANES]; layout.register_count() as usize];
        for register in (0..layout.register_count()).filter_map(|r| lead(&layout, width, r)) {
            for lane in lanes() {
                let there = warp.exists(&layout, axes.iter(), register, lane)?
                    && warp.inside(access, &layout, register, lane)?;
                for x in 0..width {
                    let value = if there {
                        let at = warp.flat(access, &layout, register, lane)?;
                        self.global_read(access, at + x as i64)?
                    } else {
                        access.fill
                    };
                    all[(register + x) as usize][lane] = Some(value);
                }
            }
        }
        warp.put(to, all)
    }

    pub(super) fn store(&mut self, warp: &Warp<'_>, store: &Store) -> Result<(), String> {
        let Store { access, held, .. } = store;
        if self.machine.overlaps && !warp.waited {
            return Err("a buffer is written before the kernels in front have ended".into());
        }
        if store.alone && warp.rank != 0 {
            return Ok(());
        }
        // Exchanges between lanes move elements whole: who has them does not matter.
        for register in 0..held.register_count() {
            for lane in lanes().filter(|lane| warp.is_first(held, *lane)) {
                if !warp.exists(held, store.axes.iter(), register, lane)? {
                    continue;
                }
                let x = warp.element(store.from, held, register, lane)?;
                let at = warp.flat(access, held, register, lane)?;
                let name = &self.machine.buffers[&access.buffer].name;
                let Some(buffer) = self.buffers.get_mut(&access.buffer) else {
                    return Err(format!("{name} is no buffer"));
                };
                let count = buffer.len();
                let element = usize::try_from(at).ok().and_then(|at| buffer.get_mut(at));
                *element.ok_or_else(|| {
                    format!("element {at} of {name} is written, which has {count}")
                })? = Some(x);
            }
        }
        Ok(())
    }

    /// Another agent that begins now, and its clock.
    pub(super) fn fork(&mut self, warp: &Warp<'_>) -> (Epoch, Clock) {
        let agent = self.agents;
        self.agents += 1;
        let mut clock = warp.clock.clone();
        clock.set(agent, 1);
        (Epoch { agent, time: 1 }, clock)
    }

    pub(super) fn copy(&mut self, warp: &mut Warp<'_>, copy: &Copy) -> Result<(), String> {
        warp.is_ready(copy.access.buffer)?;
        let region = self.machine.region(copy.region);
        let stage = warp.stage(copy.stage)?;
        let (epoch, clock) = match copy.background {
            true => {
                let forked = self.fork(warp);
                warp.copies.begin(forked.0.agent);
                forked
            }
            false => (warp.epoch(), warp.clock.clone()),
        };
        let by = By {
            epoch,
            clock: &clock,
        };
        let (layout, access) = (&copy.layout, &copy.access);
        for register in (0..layout.register_count()).filter_map(|r| lead(layout, copy.width, r)) {
            for lane in lanes().filter(|lane| warp.is_first(layout, *lane)) {
                let local = |a: AxisId| warp.local(layout, a, register, lane) as u64;
                if !region.patch.is_empty() {
                    if let Some((at, x)) = self.patched(warp, region, access, &local)? {
                        let at = self.address(copy.region, stage, at)?;
                        self.shared_write(warp.rank, copy.region, at, x, by)?;
                    }
                    continue;
                }
                if region.axes.iter().any(|(a, size, _)| local(*a) >= *size) {
                    continue;
                }
                let axes = region.axes.iter().map(|a| a.0);
                let exists = warp.exists(layout, axes, register, lane)?;
                let inside = warp.inside(access, layout, register, lane)?;
                let from = warp.flat(access, layout, register, lane)?;
                let to = place(region, local);
                for x in 0..copy.width {
                    let value = match (exists, inside) {
                        (true, true) => self.global_read(access, from + x as i64)?,
                        (true, false) if !copy.background => access.fill,
                        (_, _) => 0.0,
                    };
                    let at = self.address(copy.region, stage, to + x)?;
                    self.shared_write(warp.rank, copy.region, at, value, by)?;
                }
            }
        }
        Ok(())
    }

    /// Where an element of a part of a buffer goes, and what it is; none where it is not copied.
    fn patched(
        &self,
        warp: &Warp<'_>,
        region: &Region,
        access: &Access,
        local: &impl Fn(AxisId) -> u64,
    ) -> Result<Option<(u64, f64)>, String> {
        let (mut from, mut to, mut there) = (0, 0, true);
        for side in &region.patch {
            let own = if side.span > 1 { local(side.axis) } else { 0 };
            if own >= side.span {
                return Ok(None);
            }
            let mut at = side.function.offset + own as i64;
            for (c, axis) in side.function.terms() {
                at += c * warp.origin(*axis)?;
            }
            there &= !side.checked || (0..side.extent).contains(&at);
            from += side.stride * at;
            to += side.pitch * own;
        }
        let x = match there {
            true => self.global_read(access, from)?,
            false => access.fill,
        };
        Ok(Some((to, x)))
    }

    /// Fills the stages of a ring by the hardware; they are full when that, and what other blocks of the cluster copy there, has landed.
    pub(super) fn copy_boxes(&mut self, warp: &Warp<'_>, id: RingId) -> Result<(), String> {
        const WHOLE: u64 = 1;
        let ring = self.machine.ring(id);
        let stage = warp.stage(Stage::Current(ring.counter))?;
        let (epoch, clock) = self.fork(warp);
        self.boxes.insert(epoch.agent);
        let by = By {
            epoch,
            clock: &clock,
        };
        let mut landed = vec![0; self.blocks.len()];
        let mut expected = 0;
        for region_id in &ring.regions {
            let region = self.machine.region(*region_id);
            let Some(boxes) = &region.boxes else {
                return Err(format!("{} is not made of boxes", region.name));
            };
            if self.machine.buffers[&boxes.map.buffer].dependent && !warp.waited {
                return Err("a buffer is read before the kernels in front have ended".into());
            }
            expected += boxes.bytes(self.machine.cluster) as i64;
            let values = self.boxed(warp, boxes)?;
            for (rank, bytes) in landed.iter_mut().enumerate() {
                match (rank == warp.rank, boxes.share) {
                    (true, _) => {}
                    (false, Some(_)) => self.reach(rank, by)?,
                    (false, None) => continue,
                }
                for (element, value) in &values {
                    let at = self.address(*region_id, stage, *element)?;
                    self.shared_write(rank, *region_id, at, *value, by)?;
                }
                *bytes += values.len() as i64 * region.dtype.bytes() as i64;
            }
        }
        let own = self.phases(warp.rank, id, true, stage);
        own.count(&clock, expected, WHOLE);
        own.arrive(&clock, 1, WHOLE);
        for (rank, bytes) in landed.into_iter().enumerate() {
            self.phases(rank, id, true, stage)
                .count(&clock, -bytes, WHOLE);
        }
        Ok(())
    }

    /// The elements that a block copies of a region in boxes, and where they go in a stage.
    fn boxed(&self, warp: &Warp<'_>, boxes: &Boxes) -> Result<Vec<(u64, f64)>, String> {
        let (map, rank) = (&boxes.map, warp.rank as u64);
        let part = boxes.part(self.machine.cluster);
        let buffer = &self.buffers[&map.buffer];
        let mut values = Vec::new();
        for swizzle_atom in (part.swizzle_atoms_before * rank..).take(part.swizzle_atoms as usize) {
            for number in 0..boxes.elements() {
                let (mut rest, mut at, mut there) = (number, map.offset as i64 / 2, true);
                for (dimension, axis) in boxes.axes.iter().enumerate() {
                    let size = u64::from(map.sizes[dimension]);
                    let mut own = warp.origin(*axis)? + (rest % size) as i64;
                    rest /= size;
                    if let Some((_, each)) = part.later.filter(|(d, _)| *d == dimension) {
                        own += (each * rank) as i64;
                    }
                    let pitch = match dimension {
                        0 => {
                            own += (swizzle_atom * boxes.span) as i64;
                            1
                        }
                        d => map.strides[d - 1] as i64 / 2,
                    };
                    there &= (0..map.extents[dimension] as i64).contains(&own);
                    at += own * pitch;
                }
                let value = match there {
                    false => 0.0,
                    true => usize::try_from(at)
                        .ok()
                        .and_then(|at| *buffer.get(at)?)
                        .ok_or_else(|| format!("element {at} of a tensor is not there"))?,
                };
                let swizzle_atoms =
                    swizzle_atom * boxes.swizzle_atom_elements(self.machine.cluster);
                values.push((swizzle_atoms + part.before * rank + number, value));
            }
        }
        Ok(values)
    }

    pub(super) fn clear(&mut self, warp: &Warp<'_>, id: RegionId) -> Result<(), String> {
        let elements = self.machine.region(id).elements;
        let threads = self.machine.computing();
        for element in 0..elements {
            if element % threads / LANES as u64 == warp.warp {
                let at = self.address(id, 0, element)?;
                self.shared_write(warp.rank, id, at, 0.0, warp.access())?;
            }
        }
        Ok(())
    }

    pub(super) fn publish(
        &mut self,
        warp: &Warp<'_>,
        id: RegionId,
        from: Source,
        layout: &Layout,
        axes: &AxisSet,
    ) -> Result<(), String> {
        let region = self.machine.region(id);
        for register in 0..layout.register_count() {
            for lane in lanes().filter(|lane| warp.is_first(layout, *lane)) {
                let local = |a: AxisId| warp.local(layout, a, register, lane) as u64;
                if region.axes.iter().any(|(a, size, _)| local(*a) >= *size) {
                    continue;
                }
                let x = match warp.exists(layout, axes.iter(), register, lane)? {
                    true => warp.element(from, layout, register, lane)?,
                    false => 0.0,
                };
                let at = self.address(id, 0, place(region, local))?;
                self.shared_write(warp.rank, id, at, x, warp.access())?;
            }
        }
        Ok(())
    }

    pub(super) fn fetch(
        &mut self,
        warp: &mut Warp<'_>,
        to: FragmentId,
        id: RegionId,
        stage: Stage,
    ) -> Result<(), String> {
        let (region, stage) = (self.machine.region(id), warp.stage(stage)?);
        let layout = self.machine.fragment(to).layout();
        let mut all = vec![[None; LANES]; layout.register_count() as usize];
        for register in 0..layout.register_count() {
            for lane in lanes() {
                let local = |a: AxisId| warp.local(&layout, a, register, lane) as u64;
                let at = self.address(id, stage, place(region, local))?;
                let shared = &mut self.blocks[warp.rank].shared;
                let x = shared.read(at, region.dtype.bytes(), warp.access())?.0;
                all[register as usize][lane] = Some(x);
            }
        }
        warp.put(to, all)
    }

    /// Where an element of a block's part of a partial result lies, and the memory in which that is.
    fn part(
        &mut self,
        warp: &Warp<'_>,
        partial: &Partial,
        rank: u64,
        register: u64,
        lane: usize,
    ) -> Result<(u64, &mut Memory), String> {
        let size = self.machine.block_group.map_or(1, |t| t.size);
        let float = match &partial.strides {
            None => {
                // Those of the blocks in front come first, where each has a share.
                let shared = !partial.layout.blocks.is_empty();
                let before = u64::from(shared) * warp.rank as u64;
                let register = before * partial.layout.register_count() + register;
                register * self.machine.computing() + warp.warp * LANES as u64 + lane as u64
            }
            Some(strides) => {
                let term = |(a, s): &(AxisId, u64)| {
                    warp.local(&partial.layout, *a, register, lane) as u64 * s
                };
                strides.iter().map(term).sum()
            }
        };
        match partial.home {
            Parts::Workspace(start) => {
                let at = start + 4 * ((warp.block / size * size + rank) * partial.floats + float);
                let bytes = self.machine.split_workspace.bytes;
                if at + 4 > bytes {
                    return Err(format!("byte {at} of a split-K workspace of {bytes}"));
                }
                Ok((at, &mut self.split_workspace))
            }
            Parts::Region(id) => {
                let at = self.address(id, 0, float)?;
                let rank = rank as usize;
                if rank != warp.rank {
                    self.reach(rank, warp.access())?;
                }
                Ok((at, &mut self.blocks[rank].shared))
            }
        }
    }

    pub(super) fn store_partial(
        &mut self,
        warp: &Warp<'_>,
        partial: &Partial,
    ) -> Result<(), String> {
        for register in 0..partial.layout.register_count() {
            for lane in lanes().filter(|lane| warp.is_first(&partial.layout, *lane)) {
                let from = Source::Fragment(partial.fragment);
                let x = warp.element(from, &partial.layout, register, lane)?;
                let (at, memory) = self.part(warp, partial, warp.rank as u64, register, lane)?;
                memory.write(at, 4, x, warp.access())?;
            }
        }
        Ok(())
    }

    pub(super) fn reduce_partials(
        &mut self,
        warp: &mut Warp<'_>,
        partial: &Partial,
    ) -> Result<(), String> {
        let size = self.machine.block_group.map_or(1, |t| t.size);
        let layout = self.machine.fragment(partial.fragment).layout();
        let mut all = warp.registers(partial.fragment)?.clone();
        for register in 0..partial.layout.register_count() {
            for lane in lanes() {
                let mut sum = partial.op.neutral();
                for rank in 0..size {
                    let (at, memory) = self.part(warp, partial, rank, register, lane)?;
                    let x = memory.read(at, 4, warp.access())?.0;
                    sum = combine(partial.op, sum, x);
                }
                all[index(&layout, &partial.layout, register) as usize][lane] = Some(sum);
            }
        }
        warp.put(partial.fragment, all)
    }
}

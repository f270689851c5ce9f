//! The blocks of a kernel, their warps, and the order in which these run.

use super::agent::{Of, Warp};
use super::clock::{Access, Agent, Clock, Epoch};
use super::memory::Memory;
use super::transfers::known;
use super::waits::{Barrier, Key, Phases};
use super::{Buffers, Fault};
use crate::machine::counts::{Groups, Stages};
use crate::machine::{Machine, RingId, Statement, work_tile};
use ir::Entry;
use ir::random::mix;
use std::collections::{BTreeMap, BTreeSet};

/// What the warps of a block share.
#[derive(Default)]
pub(super) struct Block {
    pub(super) shared: Memory,
    pub(super) barriers: BTreeMap<Key, Barrier>,
    /// By ring, whether of full stages, and stage.
    pub(super) phases: BTreeMap<(RingId, bool, u64), Phases>,
    pub(super) fences: Vec<(Epoch, Clock)>,
    /// Before all but the last block of a group end.
    last: Barrier,
    /// Whether this block goes on then.
    goes_on: bool,
    /// When its barriers in shared memory were made.
    made: Epoch,
    /// Warps that have not ended, and what those knew that have.
    running: usize,
    known: Clock,
    /// What other blocks of the cluster did to its shared memory.
    reached: Vec<Epoch>,
}

/// Blocks that run together: one, or those of a block group or of a cluster.
pub(super) struct World<'m> {
    pub(super) machine: &'m Machine,
    pub(super) blocks: Vec<Block>,
    pub(super) buffers: &'m mut Buffers,
    pub(super) split_workspace: Memory,
    /// Grid barriers, by number.
    grid_barriers: BTreeMap<u64, Barrier>,
    /// Where all warps of a cluster meet.
    pub(super) cluster: Barrier,
    /// Blocks that have come to where all but the last end, and what they knew.
    ended: (u64, Clock),
    /// Copies by the hardware.
    pub(super) boxes: BTreeSet<Agent>,
    pub(super) agents: usize,
}

/// Numbers that look drawn.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 % n as u64) as usize
    }
}

/// How many statements a warp runs before another one may.
const BURST: usize = 12;

/// Runs every block of a kernel.
pub(super) fn kernel(machine: &Machine, buffers: &mut Buffers, seed: u64) -> Result<(), Fault> {
    let tiles = machine.grid.tiles;
    let together = machine.block_group.map_or(machine.cluster, |t| t.size);
    // Few enough that some go over several tiles, and one over fewer than another.
    let blocks = match machine.grid.persistent {
        true => (tiles / 2 / machine.cluster).max(1) * machine.cluster,
        false => tiles,
    };
    let mut draw = Draw(seed);
    for first in (0..blocks).step_by(together as usize) {
        let mut world = World {
            machine,
            blocks: (0..together).map(|_| Block::default()).collect(),
            buffers: &mut *buffers,
            split_workspace: Memory::default(),
            grid_barriers: BTreeMap::new(),
            cluster: Barrier::default(),
            ended: (0, Clock::default()),
            boxes: BTreeSet::new(),
            agents: 0,
        };
        world.run(first, blocks, &mut draw)?;
    }
    Ok(())
}

impl<'m> World<'m> {
    /// A warp of a block, at the beginning.
    fn warp(
        &mut self,
        rank: usize,
        block: u64,
        blocks: u64,
        (warp, fills): (u64, Option<u32>),
    ) -> Warp<'m> {
        let machine = self.machine;
        let id = self.agents;
        self.agents += 1;
        let mut clock = Clock::default();
        clock.set(id, 1);
        Warp {
            machine,
            id,
            rank,
            warp,
            fills,
            block,
            blocks,
            work_tile: 0,
            frames: Vec::new(),
            clock,
            met: 1,
            origins: BTreeMap::new(),
            ranges: BTreeMap::new(),
            now: BTreeMap::new(),
            stages: Stages::default(),
            rings: BTreeMap::new(),
            fragments: vec![None; machine.fragments.len()],
            copies: Groups::default(),
            flights: Groups::default(),
            waited: false,
            arrived: None,
            is_counted: false,
        }
    }

    fn run(&mut self, first: u64, blocks: u64, draw: &mut Draw) -> Result<(), Fault> {
        let machine = self.machine;
        let mut warps = Vec::new();
        for rank in 0..self.blocks.len() {
            let block = first + rank as u64;
            let first_of_block = warps.len();
            let all = self.warps();
            let count = all.len();
            for (number, fills) in all {
                let mut warp = self.warp(rank, block, blocks, (number, fills));
                // One warp makes the barriers, and all of its block meet behind that.
                let own = &mut self.blocks[rank];
                match number {
                    0 => (own.made, own.running) = (warp.epoch(), count),
                    _ => warp.clock.set(own.made.agent, own.made.time),
                }
                let fault = |what| fault(machine, block, number, None, what);
                if !machine.grid.persistent {
                    warp.place(block).map_err(fault)?;
                }
                warp.enter(&machine.epilogue, Of::Block);
                match fills.and_then(|p| machine.producers.get(p as usize)) {
                    Some(p) => warp.enter(&p.body, Of::Block),
                    None => warp.enter(&machine.body, Of::Block),
                }
                warp.enter(&machine.prologue, Of::Block);
                warps.push(warp);
            }
            if machine.block_group.is_some_and(|t| t.waits) {
                let read = self.numbered(&mut warps[first_of_block..]);
                read.map_err(|what| fault(machine, block, 0, None, what))?;
            }
        }
        loop {
            let mut moved = false;
            let start = draw.below(warps.len());
            for n in 0..warps.len() {
                let count = warps.len();
                let warp = &mut warps[(start + n) % count];
                for _ in 0..=draw.below(BURST) {
                    let before = warp.statement();
                    match self.step(warp) {
                        Ok(true) => moved = true,
                        Ok(false) => break,
                        Err(what) => {
                            return Err(fault(machine, warp.block, warp.warp, before, what));
                        }
                    }
                    if warp.frames.is_empty() {
                        break;
                    }
                }
            }
            warps.retain(|w| !w.frames.is_empty());
            if warps.is_empty() {
                return Ok(());
            }
            if !moved {
                let stuck = &warps[0];
                let what = format!("{} warps wait for what never happens", warps.len());
                return Err(fault(
                    machine,
                    stuck.block,
                    stuck.warp,
                    stuck.statement(),
                    what,
                ));
            }
        }
    }

    /// The numbers of a block's warps that do anything, and which of those each is that only fill rings.
    pub(super) fn warps(&self) -> Vec<(u64, Option<u32>)> {
        let machine = self.machine;
        let computing = (0..machine.computing() / 32).map(|number| (number, None));
        let filling = (0..).zip(&machine.producers).flat_map(|(place, p)| {
            // One thread asks for boxes.
            let count = if p.boxed { 1 } else { p.threads / 32 };
            let first = machine.threads_of(Some(place)).start / 32;
            (first..first + count).map(move |number| (number, Some(place)))
        });
        computing.chain(filling).collect()
    }

    /// A warp or a copy reaches for the shared memory of another block of its cluster.
    ///
    /// # Errors
    /// When that block may not have made its barriers yet, or has ended: that it may end before is said where it does.
    pub(super) fn reach(&mut self, other: usize, by: Access<'_>) -> Result<(), String> {
        let block = &mut self.blocks[other];
        if !by.clock.sees(block.made) {
            return Err("a block reaches for another one that may not be there yet".into());
        }
        if block.running == 0 {
            return Err("a block uses the shared memory of another one that has ended".into());
        }
        block.reached.push(by.epoch);
        Ok(())
    }

    /// One thread takes the block's number, and all read it behind a barrier.
    fn numbered(&mut self, warps: &mut [Warp<'m>]) -> Result<(), String> {
        let Some(first) = warps.first() else {
            return Ok(());
        };
        let (at, epoch, rank) = (self.machine.scratch.offset, first.epoch(), first.rank);
        let shared = &mut self.blocks[rank].shared;
        shared.write(at, 4, 0.0, first.access())?;
        for warp in warps {
            warp.clock.set(epoch.agent, epoch.time);
            shared.read(at, 4, warp.access())?;
            warp.tick();
        }
        Ok(())
    }

    /// One statement of a warp; whether it could be done.
    fn step(&mut self, warp: &mut Warp<'m>) -> Result<bool, String> {
        let Some(statement) = warp.statement() else {
            return self.end(warp).map(|()| true);
        };
        warp.tick();
        self.statement(warp, statement)
    }

    /// Behind the last statement of a body.
    fn end(&mut self, warp: &mut Warp<'m>) -> Result<(), String> {
        let Some(frame) = warp.frames.last() else {
            return Ok(());
        };
        let (body, of) = (frame.body, frame.of);
        warp.leave()?;
        match of {
            Of::Block => {}
            Of::Loop(number) => {
                let (_, last) = warp.bounds(number)?;
                let now = warp.now.entry(number).or_default();
                *now += 1;
                if *now < last {
                    warp.enter(body, of);
                }
            }
            Of::Tiles => {
                warp.work_tile += 1;
                self.enter_work_tile(warp, body)?;
            }
        }
        if warp.frames.is_empty() {
            if warp.flights.all().next().is_some() {
                return Err("instructions are under way at the end".into());
            }
            if warp.copies.all().next().is_some() {
                return Err("copies are under way at the end".into());
            }
            if self.machine.overlaps && !warp.waited && warp.warp < self.machine.computing() / 32 {
                return Err("the kernels in front are not waited for".into());
            }
            let block = &mut self.blocks[warp.rank];
            block.running -= 1;
            block.known.join(&warp.clock);
            if block.running == 0 && block.reached.iter().any(|e| !block.known.sees(*e)) {
                return Err("a block ends while another may still use its shared memory".into());
            }
        }
        Ok(())
    }

    /// The next tile of a persistent block, if there is one.
    fn enter_work_tile(
        &mut self,
        warp: &mut Warp<'m>,
        body: &'m [Statement],
    ) -> Result<(), String> {
        let cluster = self.machine.cluster;
        let block = work_tile(warp.work_tile, warp.block, warp.blocks, cluster);
        if block < self.machine.grid.tiles {
            warp.enter(body, Of::Tiles);
            warp.place(block)?;
        }
        Ok(())
    }

    fn statement(&mut self, warp: &mut Warp<'m>, statement: &'m Statement) -> Result<bool, String> {
        match statement {
            Statement::Sync(sync) => {
                if !self.sync(warp, *sync)? {
                    return Ok(false);
                }
            }
            Statement::GridBarrier(round) => {
                let needed = self.machine.computing() / 32 * self.blocks.len() as u64;
                let barrier = self.grid_barriers.entry(*round).or_default();
                if !barrier.arrive_and_wait(warp, false, needed) {
                    return Ok(false);
                }
            }
            Statement::LastGoesOn => return self.last_goes_on(warp),
            Statement::Declare(id) => warp.declare(*id)?,
            Statement::Map { to, function, args } => warp.map(*to, *function, args)?,
            Statement::Select {
                to,
                condition,
                x,
                y,
            } => warp.select(*to, condition, *x, *y)?,
            Statement::ExpScale {
                scale,
                scaled,
                of,
                by,
            } => warp.exp_scale([*scale, *scaled], [*of, *by])?,
            Statement::Mask { to, from, axes } => warp.mask(*to, *from, axes)?,
            Statement::IsNotOne { flag, of, layout } => warp.is_not_one(*flag, *of, layout)?,
            Statement::Reduce(reduce) => warp.reduce(reduce)?,
            Statement::Scan(scan) => warp.scan(scan)?,
            Statement::AcrossLanes(across) => warp.across_lanes(across)?,
            Statement::PutParts(across) => self.put_parts(warp, across)?,
            Statement::TakeParts(across) => self.take_parts(warp, across)?,
            Statement::Spill { from, held } => self.spill(warp, *from, held)?,
            Statement::Unspill { to, held } => self.unspill(warp, *to, held)?,
            Statement::Load {
                to,
                access,
                axes,
                width,
                policy: _,
            } => self.load(warp, *to, access, axes, *width)?,
            Statement::Store(store) => self.store(warp, store)?,
            Statement::Copy(copy) => self.copy(warp, copy)?,
            Statement::PrefetchBoxes(_) | Statement::Prefetch { .. } => {}
            Statement::CopyBoxes(ring) => self.copy_boxes(warp, *ring)?,
            Statement::Clear(region) => self.clear(warp, *region)?,
            Statement::Publish {
                region,
                from,
                layout,
                axes,
            } => self.publish(warp, *region, *from, layout, axes)?,
            Statement::Fetch { to, region, stage } => self.fetch(warp, *to, *region, *stage)?,
            Statement::Multiply(multiply) => self.multiply(warp, multiply)?,
            Statement::Outer(outer) => self.outer(warp, outer)?,
            Statement::Split(split) => self.split(warp, split)?,
            Statement::Issue(issue) => self.issue(warp, issue)?,
            Statement::Pack {
                to,
                from,
                dtype: _,
                stride,
            } => self.pack(warp, *to, *from, *stride)?,
            Statement::StorePartial(partial) => self.store_partial(warp, partial)?,
            Statement::ReducePartials(partial) => self.reduce_partials(warp, partial)?,
            Statement::Range {
                number,
                axis,
                low,
                high,
            } => {
                let entry = |e: &Entry| self.entry(warp, e);
                let low = known(low, entry)?;
                let high = known(high, entry)?;
                warp.range(*number, *axis, &low, &high)?;
            }
            Statement::Tile { axis, at } => {
                let origin = warp.at(*at)? * warp.axis(*axis).tile as i64;
                warp.origins.insert(*axis, origin);
            }
            Statement::OpenStages(_)
            | Statement::NextStage { .. }
            | Statement::PreviousStage { .. }
            | Statement::AdvanceStage { .. } => {
                let counted = warp.stages.count(statement);
                counted.map_err(|counter| format!("{counter:?} is not open"))?;
            }
            Statement::OpenRing(ring, parity) => {
                warp.stages.set(self.machine.ring(*ring).counter, 0);
                warp.rings.insert(*ring, *parity);
            }
            Statement::AdvanceRing(id) => {
                let ring = self.machine.ring(*id);
                let next = (self.stage_of(warp, *id)? + 1) % ring.stages;
                warp.stages.set(ring.counter, next);
                if let (0, Some(parity)) = (next, warp.rings.get_mut(id)) {
                    *parity ^= 1;
                }
            }
            Statement::Loop { number, body } => {
                let (first, last) = warp.bounds(*number)?;
                warp.now.insert(*number, first);
                warp.passed();
                if first < last {
                    warp.enter(body, Of::Loop(*number));
                }
                return Ok(true);
            }
            Statement::Tiles(body) => {
                warp.work_tile = 0;
                warp.passed();
                self.enter_work_tile(warp, body)?;
                return Ok(true);
            }
            Statement::If {
                condition,
                then,
                otherwise,
            } => {
                let taken = warp.holds(*condition)?;
                warp.passed();
                warp.enter(if taken { then } else { otherwise }, Of::Block);
                return Ok(true);
            }
            Statement::Scope(body) => {
                warp.passed();
                warp.enter(body, Of::Block);
                return Ok(true);
            }
        }
        warp.passed();
        Ok(true)
    }

    /// All warps of a block meet; if it is the last one of its group, they go on.
    fn last_goes_on(&mut self, warp: &mut Warp<'m>) -> Result<bool, String> {
        let needed = self.machine.computing() / 32;
        let ranks = self.blocks.len() as u64;
        let block = &mut self.blocks[warp.rank];
        let comes = warp.arrived.is_none();
        let before = block.last.ended();
        let met = block.last.arrive_and_wait(warp, false, needed);
        if comes && block.last.ended() > before {
            // One thread writes what all read, between two barriers.
            let by = Access {
                epoch: Epoch {
                    agent: warp.id,
                    time: warp.met,
                },
                clock: &warp.clock,
            };
            let at = self.machine.scratch.offset;
            block.shared.write(at, 4, 0.0, by)?;
            self.ended.0 += 1;
            self.ended.1.join(&warp.clock);
            block.goes_on = self.ended.0 == ranks;
        }
        if !met {
            return Ok(false);
        }
        let at = self.machine.scratch.offset;
        block.shared.read(at, 4, warp.access())?;
        if !block.goes_on {
            warp.frames.clear();
            return Ok(true);
        }
        let known = self.ended.1.clone();
        warp.clock.join(&known);
        warp.passed();
        Ok(true)
    }
}

impl Warp<'_> {
    /// The tile of a block with this number.
    fn place(&mut self, mut block: u64) -> Result<(), String> {
        let grid = &self.machine.grid;
        if let Some(raster) = grid.raster {
            let (size, width) = (raster.fast * raster.slow, raster.height * raster.fast);
            let at = block % size;
            let (from, rest) = (at / width * raster.height, at % width);
            let height = raster.height.min(raster.slow - from);
            block += (from + rest % height) * raster.fast + rest / height;
            block -= at;
        }
        for own in &grid.coordinates {
            let digit = match own.descending {
                true => own.count - 1 - block % own.count,
                false => block % own.count,
            };
            block /= own.count;
            let tile = self.axis(own.axis).tile;
            self.origins.insert(own.axis, (digit * tile) as i64);
        }
        Ok(())
    }

    /// The next statement is the one behind this one.
    fn passed(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.next += 1;
        }
    }

    /// Its lanes see what each of them did.
    pub(super) fn lanes_met(&mut self) {
        self.met = self.epoch().time;
        self.tick();
    }
}

fn fault(
    machine: &Machine,
    block: u64,
    warp: u64,
    statement: Option<&Statement>,
    what: String,
) -> Fault {
    let text = statement.map_or_else(|| "the end of a scope".to_owned(), ToString::to_string);
    Fault {
        kernel: machine.name.clone(),
        block,
        warp,
        statement: text,
        what,
    }
}

//! Loops whose rings are filled by warps that do nothing else.
//!
//! Each slot has two barriers. The one of *full* slots ends a phase when every copy of the slot's tile has landed; the one of
//! *empty* slots when every warp that computes has done with the tile. Nothing else holds the warps of a loop together, so groups
//! of them may drift apart by as many iterations as there are slots. What a delayed contraction reads has a ring of its own. Where a slot is waited
//! for and given back is derived (`passes/rings.rs`).
//!
//! Where every tile is made of boxes of a tensor, one thread asks the hardware for them; else all threads of those warps copy.

use super::memory::region;
use super::{Lowering, Machined};
use crate::machine::{Among, Condition, Counter, LoopId, Producer, Ring, RingId, Slot, Sync, Turn};
use crate::plan::Plan;
use crate::resources::{PRODUCER_REGISTERS, PRODUCER_THREADS};
use ir::{Reject, Target};

/// Registers of a thread beyond which there is nothing to gain from the others.
const ENOUGH_REGISTERS: u64 = 232;

/// A loop around others.
pub(super) struct Around {
    pub(super) number: LoopId,
    /// How far it goes.
    pub(super) range: Machined,
    /// Where an iteration is.
    pub(super) here: Machined,
}

/// The rings that warps of their own fill.
pub(super) fn rings(plan: &Plan<'_>) -> Vec<Ring> {
    let Some(number) = plan.produced else {
        return Vec::new();
    };
    let stages = u64::from(plan.schedule.stages);
    let mut barriers = plan.tile_bytes();
    let mut rings = Vec::new();
    for late in [false, true] {
        let own = |t: &usize| plan.tiles[*t].is_loaded_in(number) && plan.tiles[*t].late == late;
        let tiles = (0..plan.tiles.len()).filter(own);
        let ring = Ring {
            counter: Counter { number, late },
            regions: tiles.map(region).collect(),
            slots: stages + u64::from(late),
            readers: 1,
            barriers,
        };
        barriers += 16 * ring.slots;
        if !ring.regions.is_empty() {
            rings.push(ring);
        }
    }
    rings
}

fn ids(rings: &[Ring]) -> impl Iterator<Item = (RingId, &Ring)> {
    rings
        .iter()
        .enumerate()
        .map(|(i, ring)| (RingId(i as u32), ring))
}

impl Lowering<'_> {
    /// What the warps do that fill the rings of a loop; `range` says how far it goes, `here` where an iteration is.
    pub(super) fn produce(
        &mut self,
        number: LoopId,
        range: Machined,
        here: Machined,
    ) -> Result<(), Reject> {
        let mut all = Vec::new();
        let mut regions = self.rings.iter().flat_map(|r| &r.regions);
        if self.waited && regions.any(|r| self.is_filled_late(r.0 as usize)) {
            all.push(Machined::Sync(Sync::WaitBefore));
        }
        all.extend(ids(&self.rings).map(|(r, _)| Machined::OpenRing(r, 1)));
        let boxed = !self.plan.boxes.is_empty();
        let mut body = vec![here];
        for (id, ring) in ids(&self.rings) {
            body.push(Machined::Sync(Sync::Empty(id)));
            if boxed {
                body.push(Machined::CopyBoxes(id));
            } else {
                for r in &ring.regions {
                    body.push(self.fill(r.0 as usize, Slot::Current(ring.counter))?);
                }
                body.push(Machined::Sync(Sync::CopyArrive(id)));
            }
            body.push(Machined::AdvanceRing(id));
        }
        let mut loops = vec![range, Machined::Loop { number, body }];
        for l in self.around.iter().rev() {
            let body = [l.here.clone()].into_iter().chain(loops).collect();
            let number = l.number;
            loops = vec![l.range.clone(), Machined::Loop { number, body }];
        }
        if self.schedule.persistent {
            loops = vec![Machined::Tiles(loops)];
        }
        all.extend(loops);
        if !boxed {
            all.push(Machined::Sync(Sync::CopiesEnd));
        }
        self.producer = all;
        Ok(())
    }

    /// The warps that only copy.
    pub(super) fn producer(&self, target: &Target) -> Option<Producer> {
        self.plan.produced?;
        let blocks = u64::from(self.schedule.blocks_per_sm);
        let all = self.plan.block_threads();
        let each = target.whole_registers(all * blocks);
        let left = each * all - PRODUCER_REGISTERS * PRODUCER_THREADS;
        let more = (left / self.plan.threads()).min(ENOUGH_REGISTERS + 8) / 8 * 8;
        let moves = each < ENOUGH_REGISTERS && each > PRODUCER_REGISTERS;
        Some(Producer {
            threads: PRODUCER_THREADS,
            boxed: !self.plan.boxes.is_empty(),
            registers: moves.then_some((PRODUCER_REGISTERS, more)),
            body: self.producer.clone(),
        })
    }

    /// What the warps that compute do in a persistent block, where `tile` is what they do for one tile.
    pub(super) fn visited(&self, mut tile: Vec<Machined>) -> Vec<Machined> {
        let Some(number) = self.plan.produced else {
            return tile;
        };
        // The first turn is given before the last one was taken.
        if self.turns(number) {
            tile.push(Machined::Sync(Sync::Barrier(Among::Computing)));
        }
        let mut all = Vec::new();
        self.open_rings(&mut all);
        all.push(Machined::Tiles(tile));
        all
    }

    /// Before such a loop and those around it: its counters of slots.
    pub(super) fn open_rings(&self, out: &mut Vec<Machined>) {
        out.extend(ids(&self.rings).map(|(r, _)| Machined::OpenRing(r, 0)));
    }

    /// Before such a loop: the first turn.
    pub(super) fn open_turns(&self, number: LoopId, out: &mut Vec<Machined>) {
        if self.turns(number) {
            out.push(Machined::If {
                condition: Condition::Group(self.plan.groups() - 1),
                then: vec![Machined::Sync(Sync::TurnPass(Turn::First))],
                otherwise: Vec::new(),
            });
        }
    }
}

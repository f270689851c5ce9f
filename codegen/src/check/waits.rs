//! What holds agents together, and what they learn from each other there.

use super::agent::Warp;
use super::clock::{Clock, Epoch};
use super::run::World;
use crate::machine::{FragmentId, RingId, Stage, Sync, Turn};

/// A barrier of whole warps.
#[derive(Clone, Debug, Default)]
pub(super) struct Barrier {
    /// How often it has ended.
    ended: u64,
    arrived: u64,
    gathering: Clock,
    released: Clock,
    /// Whether any lane's flag was set, of those that came and of those that were there when it ended last.
    any: [bool; 2],
}

impl Barrier {
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// A warp arrives, of so many.
    pub(super) fn arrive(&mut self, clock: &Clock, flag: bool, needed: u64) {
        self.arrived += 1;
        self.gathering.join(clock);
        self.any[0] |= flag;
        if self.arrived == needed {
            self.ended += 1;
            self.arrived = 0;
            self.released = std::mem::take(&mut self.gathering);
            self.any = [false, self.any[0]];
        }
    }

    /// A warp arrives, unless it has, and goes on if all have: then it knows what they knew.
    pub(super) fn arrive_and_wait(&mut self, warp: &mut Warp<'_>, flag: bool, needed: u64) -> bool {
        let before = *warp.arrived.get_or_insert(self.ended);
        if before == self.ended && !warp.is_counted {
            warp.is_counted = true;
            self.arrive(&warp.clock, flag, needed);
        }
        if self.ended == before {
            return false;
        }
        warp.clock.join(&self.released);
        (warp.arrived, warp.is_counted) = (None, false);
        warp.lanes_met();
        true
    }
}

/// A barrier in shared memory that counts arrivals by phases.
#[derive(Clone, Debug, Default)]
pub(super) struct Phases {
    ended: u64,
    arrived: u64,
    /// Bytes that are expected and have not landed; fewer than none where they landed first.
    missing: i64,
    gathering: Clock,
    completed: Clock,
}

impl Phases {
    /// So many of the arrivals that a phase needs.
    pub(super) fn arrive(&mut self, clock: &Clock, count: u64, needed: u64) {
        self.arrived += count;
        self.count(clock, 0, needed);
    }

    /// Bytes are expected, or have landed where there are fewer then.
    pub(super) fn count(&mut self, clock: &Clock, bytes: i64, needed: u64) {
        self.missing += bytes;
        self.gathering.join(clock);
        if self.arrived >= needed && self.missing == 0 {
            self.ended += 1;
            self.arrived = 0;
            self.completed = std::mem::take(&mut self.gathering);
        }
    }

    /// Whether the phase of this parity has ended.
    fn is_over(&self, parity: u32) -> bool {
        (self.ended & 1) as u32 != parity
    }
}

/// Which barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Computing,
    Turn(u64),
    Vote(u64),
}

impl World<'_> {
    fn group_of(&self, warp: &Warp<'_>, turn: Turn) -> u64 {
        match turn {
            Turn::Own => warp.warp / 4,
            Turn::First => 0,
            Turn::Next => (warp.warp / 4 + 1) % self.machine.groups().max(1),
        }
    }

    fn barrier(&mut self, warp: &Warp<'_>, key: Key) -> &mut Barrier {
        self.blocks[warp.rank].barriers.entry(key).or_default()
    }

    pub(super) fn phases(
        &mut self,
        rank: usize,
        ring: RingId,
        full: bool,
        stage: u64,
    ) -> &mut Phases {
        let key = (ring, full, stage);
        self.blocks[rank].phases.entry(key).or_default()
    }

    /// A group of lanes, once they all see what they wrote to shared memory as instructions of a warpgroup do.
    fn fence(&mut self, warp: &Warp<'_>) {
        let fence = (warp.epoch(), warp.clock.clone());
        self.blocks[warp.rank].fences.push(fence);
    }

    /// Does what a statement says; whether it ended.
    pub(super) fn sync(&mut self, warp: &mut Warp<'_>, sync: Sync) -> Result<bool, String> {
        const TURN_WARPS: u64 = 8;
        const GROUP_WARPS: u64 = 4;
        let computing = self.machine.computing() / 32;
        match sync {
            Sync::Barrier(_) => {
                let barrier = self.barrier(warp, Key::Computing);
                return Ok(barrier.arrive_and_wait(warp, false, computing));
            }
            Sync::ClusterBegins | Sync::ClusterEnds => {
                let needed = (self.warps().len() * self.blocks.len()) as u64;
                return Ok(self.cluster.arrive_and_wait(warp, false, needed));
            }
            Sync::Warp => warp.lanes_met(),
            Sync::CopyCommit => warp.copies.close(),
            Sync::CopyWait(stay) => {
                for agent in warp.copies.landed(stay) {
                    warp.clock.set(agent, 1);
                }
            }
            Sync::ProxyFence => self.fence(warp),
            Sync::Commit => warp.flights.close(),
            Sync::Wait(stay) => {
                for flight in warp.flights.landed(stay) {
                    warp.clock.set(flight.agent, 1);
                }
            }
            // The compiler's concern.
            Sync::Keep(id) => drop(warp.held(id)?),
            Sync::Full(ring) => return self.await_stage(warp, ring, true),
            Sync::Empty(ring) => return self.await_stage(warp, ring, false),
            Sync::Release(ring) => {
                let stage = self.stage_of(warp, ring)?;
                self.release(warp, warp.rank, ring, stage);
            }
            Sync::ReleasePrevious(ring) => {
                let stage = self.stage_before(warp, ring)?;
                self.release(warp, warp.rank, ring, stage);
            }
            Sync::ReleasePeers(ring) => {
                let stage = self.stage_of(warp, ring)?;
                self.release_peers(warp, ring, stage)?;
            }
            Sync::ReleasePreviousPeers(ring) => {
                let stage = self.stage_before(warp, ring)?;
                self.release_peers(warp, ring, stage)?;
            }
            Sync::CopyArrive(ring) => {
                let stage = self.stage_of(warp, ring)?;
                // The barrier waits for them, the thread does not.
                let mut clock = warp.clock.clone();
                for agent in warp.copies.all() {
                    clock.set(*agent, 1);
                }
                self.fill(warp.rank, ring, stage, &clock);
            }
            Sync::Filled(ring) => {
                let stage = self.stage_of(warp, ring)?;
                let clock = warp.clock.clone();
                self.fill(warp.rank, ring, stage, &clock);
            }
            Sync::CopiesEnd => {
                warp.copies.close();
                drop(warp.copies.landed(0));
            }
            Sync::TurnWait(turn) => {
                let key = Key::Turn(self.group_of(warp, turn));
                return Ok(self
                    .barrier(warp, key)
                    .arrive_and_wait(warp, false, TURN_WARPS));
            }
            Sync::TurnPass(turn) => {
                let key = Key::Turn(self.group_of(warp, turn));
                self.barrier(warp, key)
                    .arrive(&warp.clock, false, TURN_WARPS);
            }
            Sync::Vote(flag) => return self.vote(warp, flag, GROUP_WARPS),
            Sync::StartNext => {}
            Sync::WaitBefore => warp.waited = true,
        }
        Ok(true)
    }

    fn vote(&mut self, warp: &mut Warp<'_>, flag: FragmentId, warps: u64) -> Result<bool, String> {
        let any = warp.registers(flag)?[0].contains(&Some(1.0));
        let key = Key::Vote(warp.warp / 4);
        let barrier = self.barrier(warp, key);
        if !barrier.arrive_and_wait(warp, any, warps) {
            return Ok(false);
        }
        let all = [Some(f64::from(u8::from(barrier.any[1]))); super::agent::LANES];
        warp.put(flag, vec![all])?;
        Ok(true)
    }

    pub(super) fn stage_of(&self, warp: &Warp<'_>, ring: RingId) -> Result<u64, String> {
        warp.stage(Stage::Current(self.machine.ring(ring).counter))
    }

    fn stage_before(&self, warp: &Warp<'_>, ring: RingId) -> Result<u64, String> {
        let stages = self.machine.ring(ring).stages;
        Ok((self.stage_of(warp, ring)? + stages - 1) % stages)
    }

    fn await_stage(
        &mut self,
        warp: &mut Warp<'_>,
        ring: RingId,
        full: bool,
    ) -> Result<bool, String> {
        let stage = self.stage_of(warp, ring)?;
        let Some(parity) = warp.rings.get(&ring).copied() else {
            return Err(format!("ring {} is not open", ring.0));
        };
        let phases = self.phases(warp.rank, ring, full, stage);
        if !phases.is_over(parity) {
            return Ok(false);
        }
        warp.clock.join(&phases.completed);
        if full && self.machine.is_fenced(self.machine.ring(ring)) {
            self.fence(warp);
        }
        Ok(true)
    }

    /// The threads of a warp have filled their share of a stage.
    fn fill(&mut self, rank: usize, ring: RingId, stage: u64, clock: &Clock) {
        let filler = self.machine.filler(self.machine.ring(ring));
        let needed = filler.map_or(0, |p| p.threads);
        self.phases(rank, ring, true, stage)
            .arrive(clock, 32, needed);
    }

    /// One lane says at a block that the warp has done with a stage: what other lanes did since they met last, it does not know.
    fn release(&mut self, warp: &Warp<'_>, rank: usize, ring: RingId, stage: u64) {
        let mut clock = warp.clock.clone();
        clock.set(warp.id, warp.met);
        let own = self.machine.ring(ring);
        let needed = self.machine.readers(own) * own.readers;
        self.phases(rank, ring, false, stage)
            .arrive(&clock, 1, needed);
    }

    /// The same at the other blocks of the cluster.
    fn release_peers(&mut self, warp: &Warp<'_>, ring: RingId, stage: u64) -> Result<(), String> {
        for other in (0..self.blocks.len()).filter(|other| *other != warp.rank) {
            self.reach(other, warp.access())?;
            self.release(warp, other, ring, stage);
        }
        Ok(())
    }

    /// That instructions of a warpgroup see what a thread wrote: a fence of somebody who knew of it is between.
    pub(super) fn is_fenced(&self, warp: &Warp<'_>, write: Epoch) -> bool {
        let fences = &self.blocks[warp.rank].fences;
        self.boxes.contains(&write.agent)
            || fences
                .iter()
                .rev()
                .any(|(at, known)| known.sees(write) && warp.clock.sees(*at))
    }
}

//! One multiprocessor: roles of its blocks go through their steps, and share what carries them out.

use super::Rates;
use super::parts::{Part, Parts};
use super::timeline::{Bar, Busy, Notes};
use super::work::{Step, Traffic, Work};
use crate::machine::{Among, FragmentId, RingId};
use std::collections::BTreeMap;

/// Clocks between the first blocks of a multiprocessor.
const FOLLOWS: f64 = 40.0;

/// What carries things out.
#[derive(Debug, Default)]
struct Units {
    /// Until when each is busy.
    until: Parts,
    /// For how long each has been, and for what roles that compute have waited so far, all of them together.
    spent: Parts,
    /// What is written down of it, if anybody wants to see it.
    notes: Option<Notes>,
}

impl Units {
    /// A unit takes something on at a time, when it is free: when it is done.
    fn takes(&mut self, unit: Part, now: f64, clocks: f64) -> f64 {
        if clocks > 0.0 {
            self.spent[unit] += clocks;
            let begin = self.until[unit].max(now);
            let end = begin + clocks;
            self.until[unit] = end;
            if let Some(notes) = &mut self.notes {
                notes.busy.push(Busy { unit, begin, end });
            }
            end
        } else {
            now
        }
    }
}

/// One role of one block.
struct Agent<'a> {
    role: usize,
    block: usize,
    warps: f64,
    computes: bool,
    steps: &'a [Step],
    labels: &'a [usize],
    next: usize,
    now: f64,
    /// When copies land: of groups that are closed, and of the one that is not.
    copies: Vec<f64>,
    copying: f64,
    /// The same of instructions.
    issues: Vec<f64>,
    issuing: f64,
    loads: BTreeMap<FragmentId, f64>,
    fulls: BTreeMap<RingId, usize>,
    empties: BTreeMap<RingId, usize>,
    barriers: [usize; 2],
    arrived: bool,
}

/// What the roles of a block share.
#[derive(Default)]
struct Block {
    filled: BTreeMap<RingId, Vec<f64>>,
    /// Of each release by a role: how many there were, and the last one's time.
    released: BTreeMap<RingId, Vec<(usize, f64)>>,
    turns: BTreeMap<u64, Vec<f64>>,
    barriers: [Vec<(usize, f64)>; 2],
}

/// The steps of a role, and its warps.
pub(super) struct Role {
    pub(super) steps: Vec<Step>,
    /// The statement of each step; nothing where nobody wants to see it.
    pub(super) labels: Vec<usize>,
    pub(super) warps: u64,
    pub(super) computes: bool,
}

/// Stages of a ring, and how many roles read it.
pub(super) struct Ring {
    pub(super) stages: u64,
    pub(super) readers: usize,
}

/// The clocks that so many blocks take side by side, and so many one after the other in the place of each, with their parts: those of waits in the mean
/// over the roles that compute. Infinite where roles wait for what never happens.
pub(super) fn clocks(
    roles: &[Role],
    blocks: usize,
    after: usize,
    rates: &Rates,
    rings: &dyn Fn(RingId) -> Ring,
    notes: &mut Option<Notes>,
) -> Parts {
    let members = roles.len();
    let computing = roles.iter().filter(|r| r.computes).count();
    let mut units = Units {
        notes: notes.take(),
        ..Units::default()
    };
    let mut shared: Vec<Block> = (0..blocks).map(|_| Block::default()).collect();
    let begun = |block: usize, now: f64| {
        let all = roles.iter().enumerate();
        all.map(move |(number, role)| Agent::new(number, role, block, now))
    };
    // Blocks begin one after the other.
    let mut agents: Vec<Agent> = (0..blocks)
        .flat_map(|block| begun(block, FOLLOWS * block as f64))
        .collect();
    let mut left = vec![after - 1; blocks];
    let mut end = 0.0f64;
    loop {
        agents.sort_by(|x, y| x.now.total_cmp(&y.now));
        let moved = agents.iter_mut().find_map(|agent| {
            let block = &mut shared[agent.block];
            let moved = agent.step(block, &mut units, rates, rings, computing, members);
            moved.then(|| (agent.block, agent.is_done()))
        });
        let place = match moved {
            None => break,
            Some((_, false)) => continue,
            Some((place, true)) => place,
        };
        let own = agents.iter().filter(|a| a.block == place);
        if own.clone().all(Agent::is_done) {
            let now = own.map(|a| a.now).fold(0.0, f64::max);
            end = end.max(now);
            agents.retain(|a| a.block != place);
            if left[place] > 0 {
                left[place] -= 1;
                shared[place] = Block::default();
                agents.extend(begun(place, now + rates.target.block_clocks));
            }
        }
    }
    *notes = units.notes;
    let mut spent = units.spent;
    for part in Part::WAITS {
        spent[part] /= (blocks * computing).max(1) as f64;
    }
    spent[Part::All] = match agents.is_empty() {
        true => [Part::L2, Part::Memory]
            .into_iter()
            .fold(end, |end, unit| end.max(units.until[unit])),
        false => f64::INFINITY,
    };
    spent
}

impl<'a> Agent<'a> {
    fn new(number: usize, role: &'a Role, block: usize, now: f64) -> Self {
        Self {
            role: number,
            block,
            warps: role.warps as f64,
            computes: role.computes,
            steps: &role.steps,
            labels: &role.labels,
            next: 0,
            now,
            copies: Vec::new(),
            copying: 0.0,
            issues: Vec::new(),
            issuing: 0.0,
            loads: BTreeMap::new(),
            fulls: BTreeMap::new(),
            empties: BTreeMap::new(),
            barriers: [0, 0],
            arrived: false,
        }
    }

    fn traffic(&self, units: &mut Units, rates: &Rates, traffic: Traffic) -> f64 {
        let l2 = units.takes(Part::L2, self.now, traffic.l2 / rates.l2);
        let memory = units.takes(Part::Memory, self.now, traffic.memory / rates.memory);
        let first = traffic.first / rates.target.shared_bytes_per_clock;
        l2.max(memory)
            .max(units.takes(Part::Shared, self.now, first))
    }

    /// From now until then it is at its statement, or waits there.
    fn note(&self, units: &mut Units, waits: Option<Part>, until: f64) {
        if let Some(notes) = &mut units.notes
            && until > self.now
        {
            notes.bars.push(Bar {
                role: self.role,
                block: self.block,
                begin: self.now,
                end: until,
                statement: self.labels.get(self.next).copied().unwrap_or_default(),
                waits,
            });
        }
    }

    /// Nothing goes on until then.
    fn waits(&mut self, units: &mut Units, part: Part, until: f64) {
        self.note(units, Some(part), until);
        if self.computes {
            units.spent[part] += (until - self.now).max(0.0);
        }
        self.now = self.now.max(until);
    }

    fn is_done(&self) -> bool {
        self.next == self.steps.len()
    }

    /// Whether the next step could be taken.
    fn step(
        &mut self,
        block: &mut Block,
        units: &mut Units,
        rates: &Rates,
        rings: &dyn Fn(RingId) -> Ring,
        computing: usize,
        members: usize,
    ) -> bool {
        let Some(step) = self.steps.get(self.next).cloned() else {
            return false;
        };
        match step {
            Step::Work(work) => self.work(work, units, rates),
            Step::Load(to, traffic) => {
                let there = self.traffic(units, rates, traffic) + rates.latency(traffic);
                self.loads.insert(to, there);
            }
            Step::Need(id) => {
                if let Some(there) = self.loads.remove(&id) {
                    self.waits(units, Part::Loads, there);
                }
            }
            Step::Store(traffic) => {
                self.traffic(units, rates, traffic);
            }
            Step::Copy(traffic) => {
                let there = self.traffic(units, rates, traffic) + rates.stage_latency(traffic);
                self.copying = self.copying.max(there);
            }
            Step::CopyCommit => {
                self.copies.push(self.copying);
                self.copying = 0.0;
            }
            Step::CopyWait(stay) => {
                let landed = self.copies.len().saturating_sub(stay);
                let last = self.copies.drain(..landed).fold(self.now, f64::max);
                self.waits(units, Part::Stages, last);
            }
            Step::Fill(ring, traffic) => {
                let there = self.traffic(units, rates, traffic) + rates.stage_latency(traffic);
                block.filled.entry(ring).or_default().push(there);
            }
            Step::FillByCopies(ring) => {
                let there = self.copying;
                self.copying = 0.0;
                block.filled.entry(ring).or_default().push(there);
            }
            Step::Filled(ring) => block.filled.entry(ring).or_default().push(self.now),
            Step::Issue(issued) => {
                let shared = issued.shared / rates.target.shared_bytes_per_clock;
                let read = units.takes(Part::Shared, self.now, shared);
                let begin = self.now + issued.latency;
                let done = units.takes(Part::Tensor, begin, issued.tensor).max(read);
                self.issuing = self.issuing.max(done);
            }
            Step::Commit => {
                self.issues.push(self.issuing);
                self.issuing = 0.0;
            }
            Step::Wait(stay) => {
                let landed = self.issues.len().saturating_sub(stay);
                let last = self.issues.drain(..landed).fold(self.now, f64::max);
                self.waits(units, Part::Instructions, last);
            }
            Step::Full(ring) => {
                let count = self.fulls.entry(ring).or_default();
                let filled = block.filled.get(&ring).and_then(|f| f.get(*count));
                let Some(there) = filled.copied() else {
                    return false;
                };
                *count += 1;
                self.waits(units, Part::Stages, there);
                self.waits(
                    units,
                    Part::Barriers,
                    self.now + rates.target.barrier_clocks,
                );
            }
            Step::Empty(ring) => {
                let count = self.empties.get(&ring).copied().unwrap_or_default();
                let Ring { stages, readers } = rings(ring);
                if let Some(needed) = (count as u64).checked_sub(stages) {
                    let released = block.released.get(&ring);
                    match released.and_then(|r| r.get(needed as usize)) {
                        Some((roles, when)) if *roles >= readers => {
                            let until = self.now.max(*when) + rates.target.barrier_clocks;
                            self.note(units, Some(Part::Stages), until);
                            self.now = until;
                        }
                        Some(_) | None => return false,
                    }
                }
                self.empties.insert(ring, count + 1);
            }
            Step::Release(ring) => {
                // Each role that reads a ring releases each filling once.
                let all = block.released.entry(ring).or_default();
                let own = self.empties.entry(ring).or_default();
                if all.len() <= *own {
                    all.push((0, 0.0));
                }
                let (roles, when) = &mut all[*own];
                *roles += 1;
                *when = when.max(self.now);
                *own += 1;
            }
            Step::Barrier(among) => {
                let (kind, needed) = match among {
                    Among::Block => (0, members),
                    Among::Computing => (1, computing),
                };
                let all = &mut block.barriers[kind];
                let own = self.barriers[kind];
                while all.len() <= own {
                    all.push((0, 0.0));
                }
                let (count, when) = &mut all[own];
                if !self.arrived {
                    self.arrived = true;
                    *count += 1;
                    *when = when.max(self.now);
                    if *count < needed {
                        return true;
                    }
                }
                if *count < needed {
                    return false;
                }
                let until = when.max(self.now) + rates.target.barrier_clocks;
                self.waits(units, Part::Barriers, until);
                self.barriers[kind] += 1;
                self.arrived = false;
            }
            Step::TurnPass(to) => {
                let now = self.now + rates.target.barrier_clocks;
                block.turns.entry(to).or_default().push(now);
            }
            Step::TurnWait(own) => {
                let turns = block.turns.entry(own).or_default();
                if turns.is_empty() {
                    return false;
                }
                let own = turns.remove(0);
                self.waits(units, Part::Turns, own);
            }
            Step::GridBarrier => {
                self.waits(units, Part::GridBarriers, self.now + rates.grid_barrier);
            }
        }
        self.next += 1;
        true
    }

    fn work(&mut self, work: Work, units: &mut Units, rates: &Rates) {
        const SCHEDULERS: f64 = 4.0;
        // Each scheduler has its share of the role's warps.
        let share = self.warps / SCHEDULERS;
        let most = share.max(1.0);
        let now = self.now;
        let half = 2.0 * work.half;
        let special = work.special * 32.0 / rates.target.special_per_clock * SCHEDULERS;
        let issued = work.issue + work.half + work.special;
        let ends = [
            units.takes(Part::Issue, now, issued * share),
            units.takes(Part::Half, now, half * share),
            units.takes(Part::Special, now, special * share),
            units.takes(
                Part::Shared,
                now,
                work.shared / rates.target.shared_bytes_per_clock,
            ),
            units.takes(Part::Tensor, now, work.tensor),
            // Each scheduler has its own tensor core.
            now + work.tensor * (SCHEDULERS / self.warps).max(1.0),
            now + issued.max(half).max(special) * most,
        ];
        let end = ends.into_iter().fold(now, f64::max);
        self.note(units, None, end);
        self.now = end;
        self.waits(units, Part::Latency, self.now + work.latency);
    }
}

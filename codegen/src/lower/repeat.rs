//! Loops, the rings that feed them, and what is read ahead of an iteration.

use super::producer::Around;
use super::{BUSY, Lowering, Machined};
use crate::machine::{At, Condition, Counter, Holds, LoopId, Slot, Source, Sync};
use crate::plan::Folded;
use ir::{Loop, Reject, Statement, TileOp, ValueId};
use std::collections::BTreeMap;

/// Registers of a thread that may hold what the next iteration reads.
const AHEAD: u64 = 16;
/// Registers of a thread that a loop may carry beside them: where it carries more, there may be no room.
const CARRIED: u64 = 32;

/// The slots' counters of a loop.
fn counters(number: LoopId) -> [Counter; 2] {
    [false, true].map(|late| Counter { number, late })
}

impl Lowering<'_> {
    pub(super) fn repeat(&mut self, l: &Loop, out: &mut Vec<Machined>) -> Result<(), Reject> {
        let number = self.loops;
        self.loops += 1;
        for c in &l.carries {
            let layout = self.layout(c.phi);
            let to = self.array(c.phi, &layout, out);
            let TileOp::Phi { init, .. } = self.plan.op(c.phi) else {
                return Err(Reject::Schedule("a carry without phi".into()));
            };
            out.push(Self::copied(to, Source::Constant(*init)));
            self.bind(c.phi, &layout, to);
        }
        let folded: Vec<Option<Folded>> = l
            .carries
            .iter()
            .map(|c| self.plan.folded(number, c))
            .collect();
        self.partial_sums
            .extend(folded.iter().flatten().map(|f| f.reduction));
        let axis = l.axis;
        let fed = (self.plan.produced).filter(|n| self.plan.outermost(*n) == number);
        if fed.is_some() && !self.schedule.persistent {
            self.open_rings(out);
        }
        let range = Machined::Range {
            number,
            axis,
            low: l.low.clone(),
            high: l.high.clone(),
        };
        out.push(range.clone());
        let ring: Vec<usize> = (0..self.plan.tiles.len())
            .filter(|t| self.plan.tiles[*t].is_loaded_in(number))
            .collect();
        let stages = u64::from(self.schedule.stages);
        let produced = self.plan.produced == Some(number);
        let here = |at: At| Machined::Tile { axis, at };
        let mut body = vec![here(At::Now(number))];
        if ring.is_empty() || stages == 1 || produced {
            self.settle_copies(out);
        }
        let delays = self.delays(number);
        self.prepare(&delays, out)?;
        let has = |me: &Self, late: bool| ring.iter().any(|t| me.late(*t) == late);
        if produced {
            self.produce(number, range.clone(), here(At::Now(number)))?;
            self.open_turns(number, out);
        } else if !ring.is_empty() && stages > 1 {
            self.fill_ahead(number, axis, &ring, out, &mut body)?;
        } else if !ring.is_empty() {
            for t in &ring {
                body.push(self.fill(*t, Slot::At(0))?);
            }
            body.push(Machined::Sync(Sync::CopyCommit));
            body.push(Machined::Sync(Sync::CopyWait(0)));
            body.extend(self.proxy_fence());
        }
        let pending = std::mem::replace(&mut self.pending, false);
        self.scopes.push(BTreeMap::new());
        if !ring.is_empty() && stages > 1 {
            for v in self.read_ahead(l) {
                let layout = self.layout(v).distinct();
                let name = format!("next{}", self.arrays);
                let to = self.array(v, &layout, &mut body);
                let next = self.declare(name, Holds::Floats(layout.clone()), out);
                let read = |at: At| -> Result<Machined, Reject> {
                    Ok(Machined::If {
                        condition: Condition::Exists(at),
                        then: vec![here(at), self.read_into(v, next)?],
                        otherwise: Vec::new(),
                    })
                };
                out.push(read(At::First(number))?);
                body.push(Self::copied(to, Source::Fragment(next)));
                body.push(read(At::NowAnd(number, 1))?);
                self.bind(v, &layout, to);
            }
        }
        for c in &l.carries {
            self.publish(c.phi, &mut body)?;
        }
        if let Some(team) = &mut self.team {
            team.apart += u32::from(l.is_bounded_by(&team.axes));
        }
        self.around.push(Around {
            number,
            range,
            here: here(At::Now(number)),
        });
        body.extend(self.statements(&l.body)?);
        self.around.pop();
        self.settle(&delays, &mut body);
        if let Some(team) = &mut self.team {
            team.apart -= u32::from(l.is_bounded_by(&team.axes));
        }
        for c in &l.carries {
            if delays.iter().any(|(_, d)| d.phi == c.phi) {
                continue;
            }
            let layout = self.layout(c.phi);
            let next = self.operand(c.next, &layout, &mut body)?;
            let Some(to) = self.find(c.phi, Some(&layout)) else {
                return Err(Reject::Schedule("a carry without registers".into()));
            };
            body.push(Self::copied(to, next));
        }
        if !produced && !ring.is_empty() && stages > 1 {
            for counter in counters(number) {
                if has(self, counter.late) {
                    let slots = stages + u64::from(counter.late);
                    body.push(Machined::AdvanceSlot { counter, slots });
                }
            }
        }
        self.scopes.pop();
        self.pending = pending;
        out.push(Machined::Loop { number, body });
        self.finish(&delays, out)?;
        for (c, folded) in l.carries.iter().zip(&folded) {
            let layout = self.layout(c.phi);
            if let Some(found) = self.find(c.phi, Some(&layout)) {
                if let Some(f) = folded {
                    self.combine_threads(found, f.op, &f.from, &f.axes, out);
                }
                self.bind(c.result, &layout, found);
            }
            self.publish(c.result, out)?;
        }
        Ok(())
    }

    /// A ring that the threads which compute fill themselves, some iterations ahead: its first slots in front of the loop, then one slot an
    /// iteration.
    fn fill_ahead(
        &mut self,
        number: LoopId,
        axis: ir::AxisId,
        ring: &[usize],
        out: &mut Vec<Machined>,
        body: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let stages = u64::from(self.schedule.stages);
        let [slot, late] = counters(number);
        let is_late = ring.iter().any(|t| self.late(*t));
        let has_others = ring.iter().any(|t| !self.late(*t));
        for (counter, any) in [(slot, has_others), (late, is_late)] {
            if any {
                out.push(Machined::OpenSlots(counter));
            }
        }
        let fill_first = |me: &Self, ahead: u64, tiles: &[usize]| {
            let at = At::FirstAnd(number, ahead);
            let mut then = vec![Machined::Tile { axis, at }];
            for t in tiles {
                then.push(me.fill(*t, Slot::At(ahead))?);
            }
            Ok::<_, Reject>(Machined::If {
                condition: Condition::Exists(at),
                then,
                otherwise: Vec::new(),
            })
        };
        let mut left = ring.to_vec();
        if let Some(delayed) = self.delayed.take() {
            let early: Vec<usize>;
            (left, early) = ring.iter().partition(|t| self.is_filled_late(**t));
            for ahead in 0..stages - 1 {
                out.push(fill_first(self, ahead, &early)?);
            }
            self.wait_before(out);
            out.extend(self.statements(&delayed)?);
        }
        for ahead in 0..stages - 1 {
            if !left.is_empty() {
                out.push(fill_first(self, ahead, &left)?);
            }
            out.push(Machined::Sync(Sync::CopyCommit));
        }
        body.push(Machined::Sync(Sync::CopyWait(stages - 2)));
        body.extend(self.proxy_fence());
        let ahead = stages - 1;
        let at = At::NowAnd(number, ahead);
        let mut then = vec![Machined::Tile { axis, at }];
        for (counter, any) in [(slot, has_others), (late, is_late)] {
            if any {
                then.push(Machined::NextSlot {
                    counter,
                    slots: stages + u64::from(counter.late),
                    ahead,
                });
            }
        }
        for t in ring {
            let into = if self.late(*t) { late } else { slot };
            then.push(self.fill(*t, Slot::Next(into))?);
        }
        body.push(Machined::If {
            condition: Condition::Exists(at),
            then,
            otherwise: Vec::new(),
        });
        body.push(Machined::Sync(Sync::CopyCommit));
        Ok(())
    }

    pub(super) fn wait_before(&mut self, out: &mut Vec<Machined>) {
        out.push(Machined::Sync(Sync::WaitBefore));
        self.waited = true;
    }

    /// Whether a tile is filled with what a kernel in front may still write.
    pub(super) fn is_filled_late(&self, t: usize) -> bool {
        let read = self.plan.op(self.plan.tiles[t].value).loaded();
        read.is_some_and(|buffer| self.is_late(buffer))
    }

    /// Where copies for the next loop may begin before the kernels in front are waited for: how many statements in front of the
    /// loop then come after them.
    pub(super) fn fills_first(&self, rest: &[Statement]) -> Option<usize> {
        let lets = rest
            .iter()
            .take_while(|s| matches!(s, Statement::Let(_)))
            .count();
        let number = self.loops;
        let mut ring =
            (0..self.plan.tiles.len()).filter(|t| self.plan.tiles[*t].is_loaded_in(number));
        let fed = matches!(rest.get(lets), Some(Statement::Loop(_)))
            && self.plan.produced != Some(number)
            && self.schedule.stages > 1;
        (fed && ring.any(|t| !self.is_filled_late(t))).then_some(lets)
    }

    /// The loads of a loop that are computed with: nothing but being read before the iteration begins hides how long they take.
    fn read_ahead(&self, l: &Loop) -> Vec<ValueId> {
        let loads = l.body.iter().filter_map(|s| match s {
            Statement::Let(v) => Some(*v),
            Statement::Loop(_) | Statement::Store { .. } => None,
        });
        let carried: u64 = (l.carries.iter())
            .map(|c| self.layout(c.phi).register_count())
            .sum();
        let threads = self.plan.block_threads() * u64::from(self.schedule.blocks_per_sm);
        if carried > CARRIED || threads > BUSY {
            return Vec::new();
        }
        loads
            .filter(|v| matches!(self.plan.op(*v), TileOp::Load { .. }))
            .filter(|v| !self.plan.only_contracted(*v))
            .scan(0, |held, v| {
                let layout = self.plan.layouts[v.index()].as_ref();
                let size = layout.map_or(AHEAD + 1, |l| l.distinct().register_count());
                let fits = *held + size <= AHEAD;
                *held += if fits { size } else { 0 };
                Some(fits.then_some(v))
            })
            .flatten()
            .collect()
    }
}

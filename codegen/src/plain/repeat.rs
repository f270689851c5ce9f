//! Loops.

use super::{Machined, Plain};
use crate::machine::{At, FragmentId, Source, Sync};
use crate::plan::{Folded, Running};
use ir::{Carry, Loop, Reject, TileOp, ValueId};
use std::collections::BTreeMap;

impl Plain<'_> {
    pub(super) fn repeat(&mut self, l: &Loop, out: &mut Vec<Machined>) -> Result<(), Reject> {
        let number = self.loops;
        self.loops += 1;
        for c in &l.carries {
            let layout = self.layout(c.phi);
            if let Some((running, to)) = self.goes_on(number, c) {
                self.bind(c.phi, &layout, to);
                self.added.insert(running.sum, to);
                let same = self.is_same(c, &running);
                self.joined.insert(c.phi, (running.from, same));
                continue;
            }
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
        out.push(Machined::Range {
            number,
            axis,
            low: l.low.clone(),
            high: l.high.clone(),
        });
        let mut body = vec![Machined::Tile {
            axis,
            at: At::Now(number),
        }];
        for t in 0..self.plan.tiles.len() {
            if self.plan.tiles[t].is_loaded_in(number) {
                body.push(self.fill(t)?);
            }
        }
        if body.len() > 1 {
            body.push(Machined::Sync(Sync::CopyCommit));
        }
        self.scopes.push(BTreeMap::new());
        for c in &l.carries {
            self.publish(c.phi, &mut body)?;
        }
        if let Some(block_group) = &mut self.block_group {
            block_group.apart += u32::from(l.is_bounded_by(&block_group.axes));
        }
        body.extend(self.statements(&l.body)?);
        if let Some(block_group) = &mut self.block_group {
            block_group.apart -= u32::from(l.is_bounded_by(&block_group.axes));
        }
        for c in &l.carries {
            let layout = self.layout(c.phi);
            let next = self.operand(c.next, &layout, &mut body)?;
            let Some(to) = self.find(c.phi, Some(&layout)) else {
                return Err(Reject::Schedule("a carry without registers".into()));
            };
            if next != Source::Fragment(to) {
                body.push(Self::copied(to, next));
            }
        }
        self.scopes.pop();
        out.push(Machined::Loop { number, body });
        for (c, folded) in l.carries.iter().zip(folded) {
            let layout = self.layout(c.phi);
            let parts = folded.or_else(|| self.parts.remove(&c.phi));
            if let Some(found) = self.find(c.phi, Some(&layout)) {
                match (parts, self.rises(c)) {
                    (Some(f), Some(around)) => {
                        self.parts.insert(around, f);
                    }
                    (Some(f), None) => {
                        self.combine_threads(found, f.op, &f.from, &f.axes, out)?;
                    }
                    (None, _) => {}
                }
                self.bind(c.result, &layout, found);
            }
            self.publish(c.result, out)?;
        }
        Ok(())
    }

    /// The carry of the loop around to which threads add what each has of a sum, where that is added to nothing else: they combine what they have once,
    /// behind that loop. It has to begin with nothing, or each of them would have that.
    fn rises(&self, carry: &Carry) -> Option<ValueId> {
        let running = self.plan.running.get(&carry.phi)?;
        if !self.is_same(carry, running) {
            return None;
        }
        let begins =
            |phi: ValueId| matches!(self.plan.op(phi), TileOp::Phi { init, .. } if *init == 0.0);
        let mut whole = running.from;
        loop {
            if !begins(whole) {
                return None;
            }
            match self.joined.get(&whole) {
                Some((around, true)) => whole = *around,
                Some((_, false)) => return None,
                None => return Some(running.from),
            }
        }
    }

    /// Whether all of them have the same layout: a value that is brought to another one is one thread's, not the sum of what several have.
    fn is_same(&self, carry: &Carry, running: &Running) -> bool {
        let own = self.layout(carry.phi);
        linked(carry, running)
            .iter()
            .all(|v| self.layout(*v) == own)
    }

    /// Whether each thread holds the same elements of all of them.
    fn is_alike(&self, carry: &Carry, running: &Running) -> bool {
        let own = self.layout(carry.phi).distinct();
        let mut all = linked(carry, running).into_iter();
        all.all(|v| self.layout(v).distinct() == own)
    }

    /// What a carry goes on from, and its fragment, where each thread holds the same elements of both.
    fn goes_on(&self, number: usize, carry: &Carry) -> Option<(Running, FragmentId)> {
        let running = *self.plan.running.get(&carry.phi)?;
        let folded = self.plan.folded(number, carry).is_some();
        let from = self.find(running.from, Some(&self.layout(carry.phi)))?;
        (self.is_alike(carry, &running) && !folded).then_some((running, from))
    }
}

/// What a carry goes on from, their sum, and what the carry becomes.
fn linked(carry: &Carry, running: &Running) -> [ValueId; 4] {
    [running.from, running.sum, carry.next, carry.result]
}

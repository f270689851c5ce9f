//! Loops.

use super::{Machined, Plain};
use crate::machine::{At, FragmentId, Source, Sync};
use crate::plan::{Folded, Running};
use ir::{Carry, Loop, Reject, TileOp};
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
        for (c, folded) in l.carries.iter().zip(&folded) {
            let layout = self.layout(c.phi);
            if let Some(found) = self.find(c.phi, Some(&layout)) {
                if let Some(f) = folded {
                    self.combine_threads(found, f.op, &f.from, &f.axes, out)?;
                }
                self.bind(c.result, &layout, found);
            }
            self.publish(c.result, out)?;
        }
        Ok(())
    }

    /// What a carry goes on from, and its fragment, where each thread holds the same elements of both.
    fn goes_on(&self, number: usize, carry: &Carry) -> Option<(Running, FragmentId)> {
        let running = *self.plan.running.get(&carry.phi)?;
        let alike = [running.from, running.sum, carry.next, carry.result]
            .iter()
            .all(|v| self.layout(*v).distinct() == self.layout(carry.phi).distinct());
        let folded = self.plan.folded(number, carry).is_some();
        let from = self.find(running.from, Some(&self.layout(carry.phi)))?;
        (alike && !folded).then_some((running, from))
    }
}

//! Lets the threads that compute copy what a loop reads some iterations ahead, into a ring of slots.
//!
//! ```text
//! before                  after, with 3 stages
//!                           OpenSlots
//!                           If(0 exists) Copy(s0, 0)
//!                           CopyCommit
//!                           If(1 exists) Copy(s0, 1)
//!                           CopyCommit
//!   Loop                    Loop
//!     Copy(s0)                CopyWait(1)
//!     CopyCommit              If(now + 2 exists) Copy(s0, next)
//!     Multiply(s0)            CopyCommit
//!                             Multiply(s0, current)
//!                             AdvanceSlot
//! ```
//!
//! Every loop that begins with copies gets one; others stay as they are. What is still read when an iteration has ended, by instructions that
//! nobody waited for there, is read in the next one too, so its ring has a slot more than there are stages.
//!
//! It is always legal: slots that are filled ahead are no others than those that are read, and who may fill which when is left to the barriers.

use super::{late, reads_of, take_copies};
use crate::machine::{
    At, Condition, Copy, Counter, LoopId, Machine, RegionId, Slot, Statement, Sync,
};
use ir::AxisId;
use std::collections::BTreeMap;

/// The machine program with rings of so many stages; with one as it is.
pub(crate) fn pipeline(mut machine: Machine, stages: u64) -> Machine {
    if stages < 2 {
        return machine;
    }
    let mut slots = BTreeMap::new();
    list(&mut machine.body, stages, &mut slots);
    for (region, slots) in slots {
        machine.regions[region.0 as usize].slots = slots;
    }
    machine
}

fn list(body: &mut Vec<Statement>, stages: u64, slots: &mut BTreeMap<RegionId, u64>) {
    for mut statement in std::mem::take(body) {
        for inside in statement.lists_mut() {
            list(inside, stages, slots);
        }
        if let Statement::Loop { number, body: own } = &mut statement
            && let Some((axis, copies)) = take_copies(own)
        {
            let ring = Ring::new(*number, axis, copies, own, stages);
            for copy in &ring.copies {
                slots.insert(copy.region, ring.slots(ring.counter(copy.region)));
            }
            ring.fill_first(body);
            ring.feed(own);
        }
        body.push(statement);
    }
}

/// What a loop reads, and how far ahead it is copied.
struct Ring {
    number: LoopId,
    axis: AxisId,
    copies: Vec<Copy>,
    /// The regions that are still read in the next iteration.
    late: Vec<RegionId>,
    stages: u64,
}

impl Ring {
    fn new(
        number: LoopId,
        axis: AxisId,
        copies: Vec<Copy>,
        body: &[Statement],
        stages: u64,
    ) -> Self {
        let late = late(body);
        let own = copies.iter().map(|c| c.region);
        Self {
            number,
            axis,
            late: own.filter(|r| late.contains(r)).collect(),
            copies,
            stages,
        }
    }

    fn counter(&self, region: RegionId) -> Counter {
        Counter {
            number: self.number,
            late: self.late.contains(&region),
        }
    }

    fn slots(&self, counter: Counter) -> u64 {
        self.stages + u64::from(counter.late)
    }

    fn counters(&self) -> impl Iterator<Item = Counter> {
        let both = [false, true].map(|late| Counter {
            number: self.number,
            late,
        });
        let any = |c: &Counter| self.copies.iter().any(|own| self.counter(own.region) == *c);
        both.into_iter().filter(any)
    }

    fn copies(&self, slot: impl Fn(Counter) -> Slot) -> impl Iterator<Item = Statement> {
        self.copies.iter().map(move |copy| {
            let slot = slot(self.counter(copy.region));
            Statement::Copy(Box::new(Copy {
                slot,
                ..copy.clone()
            }))
        })
    }

    /// What stands in front of the loop.
    fn fill_first(&self, out: &mut Vec<Statement>) {
        out.extend(self.counters().map(Statement::OpenSlots));
        for ahead in 0..self.stages - 1 {
            let at = At::FirstAnd(self.number, ahead);
            let here = Statement::Tile {
                axis: self.axis,
                at,
            };
            let fills = self.copies(|_| Slot::At(ahead));
            out.push(Statement::If {
                condition: Condition::Exists(at),
                then: [here].into_iter().chain(fills).collect(),
                otherwise: Vec::new(),
            });
            out.push(Statement::Sync(Sync::CopyCommit));
        }
    }

    /// Fills a slot in each iteration, and reads the current one.
    fn feed(&self, body: &mut Vec<Statement>) {
        for (region, slot) in reads_of(body) {
            if self.copies.iter().any(|c| c.region == region) && *slot == Slot::At(0) {
                *slot = Slot::Current(self.counter(region));
            }
        }
        let ahead = self.stages - 1;
        let at = At::NowAnd(self.number, ahead);
        let mut then = vec![Statement::Tile {
            axis: self.axis,
            at,
        }];
        then.extend(self.counters().map(|counter| Statement::NextSlot {
            counter,
            slots: self.slots(counter),
            ahead,
        }));
        then.extend(self.copies(Slot::Next));
        let head = [
            Statement::Sync(Sync::CopyWait(self.stages - 2)),
            Statement::If {
                condition: Condition::Exists(at),
                then,
                otherwise: Vec::new(),
            },
            Statement::Sync(Sync::CopyCommit),
        ];
        // Behind where the iteration's own tile is.
        body.splice(1..1, head);
        body.extend(self.counters().map(|counter| Statement::AdvanceSlot {
            counter,
            slots: self.slots(counter),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    #[test]
    fn tiles_are_copied_ahead() {
        let before =
            machine("RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, FETCH0, FETCH1])");
        let after = pipeline(before, 3);
        expect![[r#"
            range of 0
            OpenSlots(Counter { number: 0, late: false })
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              copy to s0 At(0) by 4 warps
              copy to s1 At(0) by 4 warps
            Sync(CopyCommit)
            if Exists(FirstAnd(0, 1))
              tile FirstAnd(0, 1)
              copy to s0 At(1) by 4 warps
              copy to s1 At(1) by 4 warps
            Sync(CopyCommit)
            loop 0
              tile Now(0)
              Sync(CopyWait(1))
              if Exists(NowAnd(0, 2))
                tile NowAnd(0, 2)
                NextSlot { counter: Counter { number: 0, late: false }, slots: 3, ahead: 2 }
                copy to s0 Next(Counter { number: 0, late: false }) by 4 warps
                copy to s1 Next(Counter { number: 0, late: false }) by 4 warps
              Sync(CopyCommit)
              read s0 Current(Counter { number: 0, late: false })
              read s1 Current(Counter { number: 0, late: false })
              AdvanceSlot { counter: Counter { number: 0, late: false }, slots: 3 }
        "#]]
        .assert_eq(&outline(&after.body));
        assert_eq!(
            after.regions.iter().map(|r| r.slots).collect::<Vec<_>>(),
            [3, 3]
        );
    }

    /// One is waited for an iteration later, the other is issued then.
    #[test]
    fn what_is_read_late_has_one_slot_more() {
        let before = machine(
            "RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, ISSUE0, GROUP, If(condition: NotFirst(0), \
             then: [PreviousSlot(number: 0, slots: 3), LATE1, GROUP, WAIT1], otherwise: [WAIT0])])",
        );
        let after = pipeline(before, 2);
        expect![[r#"
            range of 0
            OpenSlots(Counter { number: 0, late: false })
            OpenSlots(Counter { number: 0, late: true })
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              copy to s0 At(0) by 4 warps
              copy to s1 At(0) by 4 warps
            Sync(CopyCommit)
            loop 0
              tile Now(0)
              Sync(CopyWait(0))
              if Exists(NowAnd(0, 1))
                tile NowAnd(0, 1)
                NextSlot { counter: Counter { number: 0, late: false }, slots: 2, ahead: 1 }
                NextSlot { counter: Counter { number: 0, late: true }, slots: 3, ahead: 1 }
                copy to s0 Next(Counter { number: 0, late: false }) by 4 warps
                copy to s1 Next(Counter { number: 0, late: true }) by 4 warps
              Sync(CopyCommit)
              issue of s0 Current(Counter { number: 0, late: false })
              Sync(Commit)
              if NotFirst(0)
                PreviousSlot { number: 0, slots: 3 }
                issue of s1 Previous(0)
                Sync(Commit)
                Sync(Wait(1))
                Sync(Wait(0))
              AdvanceSlot { counter: Counter { number: 0, late: false }, slots: 2 }
              AdvanceSlot { counter: Counter { number: 0, late: true }, slots: 3 }
        "#]]
        .assert_eq(&outline(&after.body));
        assert_eq!(
            after.regions.iter().map(|r| r.slots).collect::<Vec<_>>(),
            [2, 3]
        );
        let before =
            machine("RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, ISSUE0, GROUP, WAIT1])");
        assert_eq!(pipeline(before, 4).regions[0].slots, 5);
    }

    #[test]
    fn one_stage_and_loops_without_copies_stay() {
        let text = "RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, FETCH0])";
        assert_eq!(pipeline(machine(text), 1), machine(text));
        let text = "RANGE, Loop(number: 0, body: [HERE, LOAD0, USE])";
        assert_eq!(pipeline(machine(text), 3), machine(text));
    }
}

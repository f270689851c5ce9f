//! Lets the threads that compute copy what a loop reads some iterations ahead, into a ring of stages.
//!
//! ```text
//! before                  after, with 3 stages
//!                           OpenStages
//!                           If(0 exists) Copy(s0, 0)
//!                           CopyCommit
//!                           If(1 exists) Copy(s0, 1)
//!                           CopyCommit
//!   Loop                    Loop
//!     Copy(s0)                CopyWait(1)
//!     CopyCommit              If(now + 2 exists) Copy(s0, next)
//!     Multiply(s0)            CopyCommit
//!                             Multiply(s0, current)
//!                             AdvanceStage
//! ```
//!
//! Every loop that begins with copies gets one; others stay as they are. What is still read when an iteration has ended, by instructions that
//! nobody waited for there, is read in the next one too, so its ring has one more stage than the schedule says.
//!
//! Where warps of their own fill the ring of a loop (`roles.rs`) it gets as many stages more.
//!
//! It is always legal: stages that are filled ahead are no others than those that are read, and who may fill which when is left to the barriers.

use super::instructions::read_late;
use super::{Apply, Behind, Pass, reads_of, take_copies};
use crate::machine::{
    At, Condition, Copy, Counter, LoopId, Machine, RegionId, SplitStages, Stage, Statement, Sync,
};
use ir::{Argument, AxisId, Form, KernelSchedule, Part, Step};
use std::collections::BTreeMap;

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "pipeline",
        parts: &[
            Part::Count {
                name: "N",
                of: "stages",
                // More than find room in shared memory with anything to compute.
                most: 32,
            },
            Part::Noun("stage"),
        ],
        required: false,
        help: "so many stages of each ring in shared memory",
    },
    behind: &[
        Behind::after("delayed", "what is read late has a stage more"),
        Behind::after("roles", "who copies is said before how far ahead"),
        Behind::after("splitter", "who splits is said before how far ahead"),
    ],
    apply: Apply::Statements(|machine, step, _, _| Ok(pipeline(machine, step.count().into()))),
};

/// Rings of so many stages: 1 is no overlap, more are filled ahead.
pub fn step(stages: u32) -> Step {
    Step::new(&PASS.form, [Argument::Count(stages)])
}

/// Stages of each ring.
pub fn of(schedule: &KernelSchedule) -> u32 {
    let [stages] = schedule.counts(&PASS.form);
    stages
}

/// The machine program with rings of so many stages; with one as it is.
pub(crate) fn pipeline(mut machine: Machine, stages: u64) -> Machine {
    if stages < 2 {
        return machine;
    }
    let mut found = BTreeMap::new();
    list(&mut machine.body, stages, &mut found);
    // Halves are made one iteration ahead, however many stages of what they are made of there are.
    let is_copied = |r: &&mut crate::machine::Ring| r.counter.split != Some(SplitStages::Halves);
    for ring in machine.rings.iter_mut().filter(is_copied) {
        ring.stages += stages - 1;
        found.extend(ring.regions.iter().map(|region| (*region, ring.stages)));
    }
    for (region, stages) in found {
        machine.regions[region.0 as usize].stages = stages;
    }
    machine
}

fn list(body: &mut Vec<Statement>, stages: u64, found: &mut BTreeMap<RegionId, u64>) {
    for mut statement in std::mem::take(body) {
        for inside in statement.lists_mut() {
            list(inside, stages, found);
        }
        if let Statement::Loop { number, body: own } = &mut statement
            && let Some((axis, copies)) = take_copies(own)
        {
            let ring = Ring::new(*number, axis, copies, own, stages);
            for copy in &ring.copies {
                found.insert(copy.region, ring.stages(ring.counter(copy.region)));
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
    delayed: Vec<RegionId>,
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
        let delayed = read_late(body);
        let own = copies.iter().map(|c| c.region);
        Self {
            number,
            axis,
            delayed: own.filter(|r| delayed.contains(r)).collect(),
            copies,
            stages,
        }
    }

    fn counter(&self, region: RegionId) -> Counter {
        Counter::copied(self.number, self.delayed.contains(&region))
    }

    fn stages(&self, counter: Counter) -> u64 {
        self.stages + u64::from(counter.delayed)
    }

    fn counters(&self) -> impl Iterator<Item = Counter> {
        let both = [false, true].map(|delayed| Counter::copied(self.number, delayed));
        let any = |c: &Counter| self.copies.iter().any(|own| self.counter(own.region) == *c);
        both.into_iter().filter(any)
    }

    fn copies(&self, stage: impl Fn(Counter) -> Stage) -> impl Iterator<Item = Statement> {
        self.copies.iter().map(move |copy| {
            let stage = stage(self.counter(copy.region));
            Statement::Copy(Box::new(Copy {
                stage,
                ..copy.clone()
            }))
        })
    }

    /// What stands in front of the loop.
    fn fill_first(&self, out: &mut Vec<Statement>) {
        out.extend(self.counters().map(Statement::OpenStages));
        for ahead in 0..self.stages - 1 {
            let at = At::FirstAnd(self.number, ahead);
            let here = Statement::Tile {
                axis: self.axis,
                at,
            };
            let fills = self.copies(|_| Stage::At(ahead));
            out.push(Statement::If {
                condition: Condition::Exists(at),
                then: [here].into_iter().chain(fills).collect(),
                otherwise: Vec::new(),
            });
            out.push(Statement::Sync(Sync::CopyCommit));
        }
    }

    /// Fills a stage in each iteration, and reads the current one.
    fn feed(&self, body: &mut Vec<Statement>) {
        for (region, stage) in reads_of(body) {
            if self.copies.iter().any(|c| c.region == region) && *stage == Stage::At(0) {
                *stage = Stage::Current(self.counter(region));
            }
        }
        let ahead = self.stages - 1;
        let at = At::NowAnd(self.number, ahead);
        let mut then = vec![Statement::Tile {
            axis: self.axis,
            at,
        }];
        then.extend(self.counters().map(|counter| Statement::NextStage {
            counter,
            stages: self.stages(counter),
            ahead,
        }));
        then.extend(self.copies(Stage::Next));
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
        body.extend(self.counters().map(|counter| Statement::AdvanceStage {
            counter,
            stages: self.stages(counter),
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
            OpenStages(Counter { number: 0, delayed: false, split: None })
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
                NextStage { counter: Counter { number: 0, delayed: false, split: None }, stages: 3, ahead: 2 }
                copy to s0 Next(Counter { number: 0, delayed: false, split: None }) by 4 warps
                copy to s1 Next(Counter { number: 0, delayed: false, split: None }) by 4 warps
              Sync(CopyCommit)
              read s0 Current(Counter { number: 0, delayed: false, split: None })
              read s1 Current(Counter { number: 0, delayed: false, split: None })
              AdvanceStage { counter: Counter { number: 0, delayed: false, split: None }, stages: 3 }
        "#]]
        .assert_eq(&outline(&after.body));
        assert_eq!(
            after.regions.iter().map(|r| r.stages).collect::<Vec<_>>(),
            [3, 3]
        );
    }

    /// One is waited for an iteration later, the other is issued then.
    #[test]
    fn what_is_delayed_has_one_stage_more() {
        let before = machine(
            "RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, LEADS, If(condition: NotFirst(0), \
             then: [PreviousStage(number: 0, stages: 3), ADDED], otherwise: []), PACK])",
        );
        let after = pipeline(before, 2);
        expect![[r#"
            range of 0
            OpenStages(Counter { number: 0, delayed: false, split: None })
            OpenStages(Counter { number: 0, delayed: true, split: None })
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
                NextStage { counter: Counter { number: 0, delayed: false, split: None }, stages: 2, ahead: 1 }
                NextStage { counter: Counter { number: 0, delayed: true, split: None }, stages: 3, ahead: 1 }
                copy to s0 Next(Counter { number: 0, delayed: false, split: None }) by 4 warps
                copy to s1 Next(Counter { number: 0, delayed: true, split: None }) by 4 warps
              Sync(CopyCommit)
              issue of s0 Current(Counter { number: 0, delayed: false, split: None }) and s0 Current(Counter { number: 0, delayed: false, split: None })
              if NotFirst(0)
                PreviousStage { number: 0, stages: 3 }
                issue of s1 Previous(0)
              Pack { to: FragmentId(1), from: FragmentId(0), dtype: Bf16, stride: 32 }
              AdvanceStage { counter: Counter { number: 0, delayed: false, split: None }, stages: 2 }
              AdvanceStage { counter: Counter { number: 0, delayed: true, split: None }, stages: 3 }
        "#]]
        .assert_eq(&outline(&after.body));
        assert_eq!(
            after.regions.iter().map(|r| r.stages).collect::<Vec<_>>(),
            [2, 3]
        );
        let before = machine("RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, LEADS])");
        assert_eq!(pipeline(before, 4).regions[0].stages, 5);
        let before = machine("RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, LEADS, PACK])");
        assert_eq!(pipeline(before, 4).regions[0].stages, 4);
    }

    #[test]
    fn one_stage_and_loops_without_copies_stay() {
        let text = "RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, FETCH0])";
        assert_eq!(pipeline(machine(text), 1), machine(text));
        let text = "RANGE, Loop(number: 0, body: [HERE, LOAD0, USE])";
        assert_eq!(pipeline(machine(text), 3), machine(text));
    }
}

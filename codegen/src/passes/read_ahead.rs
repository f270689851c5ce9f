//! Reads one iteration ahead what a loop reads into registers, where copies feed it.
//!
//! ```text
//! before                  after
//!                           If(first exists) Load(next)
//!   Loop                    Loop
//!     …                       f0 = next
//!     Load(f0)                If(now + 1 exists) Load(next)
//!     Map(f1, f0)             …
//!                             Map(f1, f0)
//! ```
//!
//! Nothing else hides how long such loads take: copies are under way for iterations, and these would be waited for at once. What is read this way
//! depends on coordinates alone, so it may be read at any time that the buffer is not written; a kernel writes no buffer that it reads.
//!
//! It is done only where registers leave room.

use crate::machine::{
    At, Condition, Fragment, FragmentId, Function, LoopId, Machine, Source, Stage, Statement,
};
use std::collections::BTreeSet;

/// Registers of a thread that may hold what the next iteration reads.
const AHEAD: u64 = 16;
/// Registers of a thread that a loop may carry beside them: where it carries more, there may be no room.
const CARRIED: u64 = 32;
/// Threads that share a multiprocessor's registers: where there are more, each has few.
const BUSY: u64 = 512;

/// The machine program that reads ahead where it can.
pub(crate) fn read_ahead(mut machine: Machine) -> Machine {
    if machine.threads() * u64::from(machine.blocks_per_sm) > BUSY {
        return machine;
    }
    let mut body = std::mem::take(&mut machine.body);
    list(&mut body, &mut machine);
    machine.body = body;
    machine
}

fn list(body: &mut Vec<Statement>, machine: &mut Machine) {
    for mut statement in std::mem::take(body) {
        for inside in statement.lists_mut() {
            list(inside, machine);
        }
        if let Statement::Loop { number, body: own } = &mut statement
            && is_fed(own, *number, machine)
            && carried(own, machine) <= CARRIED
        {
            ahead(*number, own, body, machine);
        }
        body.push(statement);
    }
}

/// Whether a ring feeds a loop.
fn is_fed(body: &[Statement], number: LoopId, machine: &Machine) -> bool {
    let copies = |s: &Statement| matches!(s, Statement::Copy(copy) if matches!(copy.stage, Stage::Next(c) if c.number == number));
    let fills = |s: &Statement| s.lists().iter().any(|l| l.iter().any(copies));
    body.iter().any(fills) || machine.rings.iter().any(|r| r.counter.number == number)
}

/// Registers that hold what one iteration leaves to the next.
fn carried(body: &[Statement], machine: &Machine) -> u64 {
    fn list(
        body: &[Statement],
        own: &mut BTreeSet<FragmentId>,
        written: &mut BTreeSet<FragmentId>,
    ) {
        for statement in body {
            if let Statement::Declare(id) = statement {
                own.insert(*id);
            } else if let Statement::Map { to, .. } = statement {
                written.insert(*to);
            } else if let Statement::Issue(issue) = statement {
                written.insert(issue.into);
            }
            for inside in statement.lists() {
                list(inside, own, written);
            }
        }
    }
    let (mut own, mut written) = (BTreeSet::new(), BTreeSet::new());
    list(body, &mut own, &mut written);
    let outside = written.difference(&own);
    outside.map(|id| machine.fragment(*id).registers()).sum()
}

/// Reads the loads of a loop an iteration ahead, as far as there is room for them.
fn ahead(
    number: LoopId,
    body: &mut Vec<Statement>,
    out: &mut Vec<Statement>,
    machine: &mut Machine,
) {
    let Some(Statement::Tile { axis, .. }) = body.first() else {
        return;
    };
    let axis = *axis;
    let (mut held, mut taken) = (0, BTreeSet::new());
    let (mut head, mut rest) = (Vec::new(), Vec::new());
    for mut statement in std::mem::take(body) {
        let Statement::Load { to, .. } = &mut statement else {
            rest.push(statement);
            continue;
        };
        let own = machine.fragment(*to);
        let fits = held + own.registers() <= AHEAD;
        if !fits {
            rest.push(statement);
            continue;
        }
        held += own.registers();
        let holds = own.holds.clone();
        let next = FragmentId(machine.fragments.len() as u32);
        let here = std::mem::replace(to, next);
        taken.insert(here);
        machine.fragments.push(Fragment {
            name: format!("next{}", next.0),
            holds,
        });
        let read = |at: At| Statement::If {
            condition: Condition::Exists(at),
            then: vec![Statement::Tile { axis, at }, statement.clone()],
            otherwise: Vec::new(),
        };
        out.extend([Statement::Declare(next), read(At::First(number))]);
        head.extend([
            Statement::Declare(here),
            Statement::Map {
                to: here,
                function: Function::Copy,
                args: vec![Source::Fragment(next)],
            },
            read(At::NowAnd(number, 1)),
        ]);
    }
    rest.retain(|s| !matches!(s, Statement::Declare(id) if taken.contains(id)));
    let first = rest.iter().take_while(|s| is_head(s)).count();
    rest.splice(first..first, head);
    *body = rest;
}

/// What an iteration begins with: where its tile is, and the copies for later ones.
fn is_head(statement: &Statement) -> bool {
    if let Statement::If {
        condition: Condition::Exists(_),
        then,
        ..
    } = statement
    {
        return then.iter().any(|s| matches!(s, Statement::Copy(_)));
    }
    matches!(statement, Statement::Tile { .. } | Statement::Sync(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Holds;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    const LOOP: &str =
        "RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, FETCH0, Declare(\"f2\"), LOAD1, USE])";

    fn small(text: &str, registers: u64) -> Machine {
        let mut machine = crate::passes::pipeline::pipeline(machine(text), 2);
        let layout = format!("1:{registers}@1|1:32@2|0:4@1").parse();
        machine.fragments[2].holds = Holds::Floats(layout.expect("a layout"));
        machine
    }

    #[test]
    fn loads_go_an_iteration_ahead() {
        let after = read_ahead(small(LOOP, 2));
        expect![[r#"
            range of 0
            OpenStages(Counter { number: 0, delayed: false, split: None })
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              copy to s0 At(0) by 4 warps
            Sync(CopyCommit)
            Declare(FragmentId(3))
            if Exists(First(0))
              tile First(0)
              load f3 from 1
            loop 0
              tile Now(0)
              Sync(CopyWait(0))
              if Exists(NowAnd(0, 1))
                tile NowAnd(0, 1)
                NextStage { counter: Counter { number: 0, delayed: false, split: None }, stages: 2, ahead: 1 }
                copy to s0 Next(Counter { number: 0, delayed: false, split: None }) by 4 warps
              Sync(CopyCommit)
              Declare(FragmentId(2))
              f2 from [Fragment(FragmentId(3))]
              if Exists(NowAnd(0, 1))
                tile NowAnd(0, 1)
                load f3 from 1
              read s0 Current(Counter { number: 0, delayed: false, split: None })
              f0 from [Fragment(FragmentId(2)), Constant(1.0)]
              AdvanceStage { counter: Counter { number: 0, delayed: false, split: None }, stages: 2 }
        "#]]
        .assert_eq(&outline(&after.body));
    }

    #[test]
    fn where_there_is_no_room_they_stay() {
        let many = small(LOOP, 32);
        assert_eq!(read_ahead(many.clone()), many, "too many registers");
        let mut busy = small(LOOP, 2);
        busy.blocks_per_sm = 8;
        assert_eq!(read_ahead(busy.clone()), busy, "too many threads");
        let alone = machine("RANGE, Loop(number: 0, body: [HERE, Declare(\"f2\"), LOAD1, USE])");
        assert_eq!(read_ahead(alone.clone()), alone, "no ring");
    }
}

//! Lets a kernel begin while those in front of it still run (programmatic dependent launch).
//!
//! ```text
//! before                          after
//!                                   StartNext
//!   If(0 exists) Copy(s0, x)        If(0 exists) Copy(s0, x)
//!                                   WaitBefore
//!   If(0 exists) Copy(s1, late)     If(0 exists) Copy(s1, late)
//!   CopyCommit                      CopyCommit
//! ```
//!
//! A kernel of several waits for those in front of it where it first needs them: before it reads what another one wrote, and before it
//! writes anything. What does not depend on them is done first, and so are the first copies for the next loop, as far as they do not: a matrix
//! that no kernel writes is on its way while the kernel in front ends. Every kernel waits before it ends: who waits for one waits for all in front
//! of it.
//!
//! Blocks that tell each other things do so from the start, and wait at once.

use crate::machine::{Machine, Statement, Sync};
use ir::BufferId;
use std::collections::BTreeSet;

/// The part of a kernel among those of a tile program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DependentLaunch {
    /// Whether it waits for the kernels in front of it.
    pub(crate) waits: bool,
    /// Whether kernels behind it may read what it writes.
    pub(crate) is_read: bool,
}

/// The machine program that starts those behind it, and waits for those in front.
pub(crate) fn dependent_launch(mut machine: Machine, how: DependentLaunch) -> Machine {
    let wait = || Statement::Sync(Sync::WaitBefore);
    if how.is_read {
        machine.prologue.push(Statement::Sync(Sync::StartNext));
    }
    // Its counters are used from the start.
    if how.waits && machine.split_workspace.bytes > 0 {
        machine.prologue.push(wait());
    } else if how.waits {
        let dependent: BTreeSet<BufferId> = (machine.buffers.iter())
            .filter(|(_, own)| own.dependent)
            .map(|(id, _)| *id)
            .collect();
        let mut body = std::mem::take(&mut machine.body);
        for statement in &mut body {
            if let Statement::Tiles(tile) = statement {
                place(tile, &dependent);
            }
        }
        if !machine.grid.persistent {
            place(&mut body, &dependent);
        }
        machine.body = body;
        let mut boxed = machine.regions.iter().filter_map(|r| r.boxes.as_ref());
        let boxed = boxed.any(|b| dependent.contains(&b.map.buffer));
        for (number, producer) in machine.producers.iter_mut().enumerate() {
            // The first are those that ask for boxes.
            if (boxed && number == 0) || producer.body.iter().any(|s| needs(s, &dependent)) {
                producer.body.insert(0, wait());
            }
        }
    }
    machine
}

/// Places the wait of one list of statements, and the first copies that need none in front of it.
fn place(body: &mut Vec<Statement>, dependent: &BTreeSet<BufferId>) {
    let first = (body.iter().position(|s| needs(s, dependent))).unwrap_or(body.len());
    let is_loop = |s: &Statement| matches!(s, Statement::Loop { .. });
    // A loop that goes as far as a kernel in front says begins behind the wait.
    let known = |to: usize| {
        !body[first..first + to]
            .iter()
            .any(|s| is_told(s, dependent))
    };
    let next = (body[first..].iter().position(is_loop)).filter(|to| known(*to));
    let mut rest = body.split_off(first);
    let mut early = Vec::new();
    for statement in &mut rest[..next.unwrap_or_default()] {
        if let Statement::If {
            condition,
            then,
            otherwise,
        } = statement
            && then.iter().any(|s| matches!(s, Statement::Copy(_)))
            && otherwise.is_empty()
        {
            let stays = |s: &Statement| needs(s, dependent) || !matches!(s, Statement::Copy(_));
            let copies: Vec<Statement> = then.extract_if(.., |s| !stays(s)).collect();
            if !copies.is_empty() {
                let here = then.iter().filter(|s| matches!(s, Statement::Tile { .. }));
                early.push(Statement::If {
                    condition: *condition,
                    then: here.cloned().chain(copies).collect(),
                    otherwise: Vec::new(),
                });
            }
        }
    }
    if !early.is_empty() {
        // How far their loop goes is known in front of it.
        let is_range = |s: &mut Statement| matches!(s, Statement::Range { .. });
        body.extend(rest.extract_if(..next.unwrap_or_default(), is_range));
        body.extend(early);
        let nothing = |s: &mut Statement| {
            let Statement::If {
                then, otherwise, ..
            } = s
            else {
                return false;
            };
            otherwise.is_empty() && then.iter().all(|s| matches!(s, Statement::Tile { .. }))
        };
        rest.extract_if(.., nothing).for_each(drop);
    }
    body.push(Statement::Sync(Sync::WaitBefore));
    body.extend(rest);
}

/// Whether a statement reads what a kernel in front may write, or writes anything.
fn needs(statement: &Statement, dependent: &BTreeSet<BufferId>) -> bool {
    let own = if let Statement::Load { access, .. } = statement {
        dependent.contains(&access.buffer)
    } else if let Statement::Copy(copy) = statement {
        dependent.contains(&copy.access.buffer)
    } else {
        matches!(statement, Statement::Store(_)) || is_told(statement, dependent)
    };
    own || statement
        .lists()
        .iter()
        .any(|l| l.iter().any(|s| needs(s, dependent)))
}

/// Whether it is in what a kernel in front may write how far a loop goes.
pub(super) fn is_told(statement: &Statement, dependent: &BTreeSet<BufferId>) -> bool {
    let Statement::Range { low, high, .. } = statement else {
        return false;
    };
    let mut read = low.iter().chain(high).flat_map(|b| &b.entries);
    read.any(|(_, entry)| dependent.contains(&entry.buffer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    const BOTH: DependentLaunch = DependentLaunch {
        waits: true,
        is_read: true,
    };

    #[test]
    fn first_copies_of_parameters_come_before_the_wait() {
        let before = machine(
            "LOAD1, USE, RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, FETCH0, FETCH1]), STORE",
        );
        let before = crate::passes::pipeline::pipeline(before, 3);
        let after = dependent_launch(before.clone(), BOTH);
        expect![[r#"
            Sync(StartNext)
            ---
            range of 0
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              copy to s0 At(0) by 4 warps
            if Exists(FirstAnd(0, 1))
              tile FirstAnd(0, 1)
              copy to s0 At(1) by 4 warps
            Sync(WaitBefore)
            load f2 from 1
            f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            OpenStages(Counter { number: 0, delayed: false, split: None })
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              copy to s1 At(0) by 4 warps
            Sync(CopyCommit)
            if Exists(FirstAnd(0, 1))
              tile FirstAnd(0, 1)
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
            store to 2
        "#]]
        .assert_eq(&format!(
            "{}---\n{}",
            outline(&after.prologue),
            outline(&after.body)
        ));
        assert_eq!(
            dependent_launch(before.clone(), DependentLaunch::default()),
            before
        );
    }

    /// Behind the wait are the range and with it the first copies, though these are of what no kernel writes.
    #[test]
    fn how_far_a_loop_goes_may_be_written_in_front() {
        let text = "TOLD, Loop(number: 0, body: [HERE, COPY0, LANDS, FETCH0]), STORE";
        let piped = |text: &str| crate::passes::pipeline::pipeline(machine(text), 3);
        let first = |text: &str| {
            let after = dependent_launch(piped(text), BOTH);
            let outline = outline(&after.body);
            let wait = outline.find("WaitBefore").expect("it waits");
            let [range, copy] = ["range of 0", "copy to s0"].map(|what| outline.find(what));
            [range, copy].map(|at| at.expect("it is there") < wait)
        };
        assert_eq!(first(text), [false, false]);
        assert_eq!(first(&text.replace("TOLD", "RANGE")), [true, true]);
    }

    #[test]
    fn a_kernel_waits_before_it_writes() {
        let after = dependent_launch(machine("LOAD0, USE, STORE"), BOTH);
        expect![[r#"
            load f2 from 0
            f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            Sync(WaitBefore)
            store to 2
        "#]]
        .assert_eq(&outline(&after.body));
        let after = dependent_launch(machine("LOAD0, USE"), BOTH);
        assert_eq!(after.body.last(), Some(&Statement::Sync(Sync::WaitBefore)));
    }
}

//! Asks L2 for what a kernel will read first, before it waits for those in front of it.
//!
//! ```text
//! before                        after
//!                                 If(0 exists) Prefetch(w)
//!                                 If(1 exists) Prefetch(w)
//!   WaitBefore                    WaitBefore
//!   Loop                          Loop
//!     Load(late), Load(w)           Load(late), Load(w)
//!
//! producer:                     producer:
//!   WaitBefore                    Range
//!   Range                         If(0 exists) PrefetchBoxes(w)
//!   Loop                          WaitBefore
//!     CopyBoxes(late and w)       Loop
//!                                   CopyBoxes(late and w)
//! ```
//!
//! What no kernel in front writes may be on its way from device memory while these still run. It takes neither registers nor shared memory, as a copy
//! would, and is a hint: nobody waits for it, and nothing is computed from it. How much is asked for is what device memory delivers while one kernel ends and
//! the next begins. It is always legal; loads that may happen before the wait stand there already (`dependent_launch`).

use crate::access::Access;
use crate::layout::Layout;
use crate::machine::{At, Condition, LoopId, Machine, Producer, RegionId, Statement, Sync};
use crate::passes::dependent_launch::is_told;
use ir::{AxisId, AxisSet, BufferId, Target};
use std::collections::BTreeSet;

/// How long device memory is kept busy, in microseconds: the end of a kernel, its launch, and the first reads of the next.
const AHEAD_US: f64 = 3.0;
/// Tiles of a loop that are asked for at most.
const MOST_TILES: u64 = 8;

/// The machine program that asks for what it reads behind its wait.
pub(crate) fn prefetch(mut machine: Machine, target: &Target) -> Machine {
    let dependent: BTreeSet<BufferId> = (machine.buffers.iter())
        .filter(|(_, own)| own.dependent)
        .map(|(id, _)| *id)
        .collect();
    let share = target.memory_tb_s * 1e6 * AHEAD_US / f64::from(target.sms);
    let bytes = (share / f64::from(machine.blocks_per_sm)) as u64;
    let mut body = std::mem::take(&mut machine.body);
    let mut producers = std::mem::take(&mut machine.producers);
    threads(&machine, &mut body, &dependent, bytes);
    for producer in &mut producers {
        filled(&machine, producer, &dependent, bytes);
    }
    machine.body = body;
    machine.producers = producers;
    machine
}

fn is_wait(statement: &Statement) -> bool {
    matches!(statement, Statement::Sync(Sync::WaitBefore))
}

/// Asks for so many tiles of a loop from one on, as far as they exist.
fn tiles(
    (number, axis): (LoopId, AxisId),
    from: u64,
    count: u64,
    asked: &[Statement],
) -> Vec<Statement> {
    let one = |n: u64| {
        let at = At::FirstAnd(number, n);
        let then = std::iter::once(Statement::Tile { axis, at }).chain(asked.iter().cloned());
        Statement::If {
            condition: Condition::Exists(at),
            then: then.collect(),
            otherwise: Vec::new(),
        }
    };
    (from..from + count).map(one).collect()
}

/// The axis of a loop's tiles, and what an iteration does in them.
fn iteration(body: &[Statement], wanted: LoopId) -> Option<(AxisId, &[Statement])> {
    let [
        Statement::Tile {
            axis,
            at: At::Now(number),
        },
        rest @ ..,
    ] = body
    else {
        return None;
    };
    (*number == wanted).then_some((*axis, rest))
}

/// What threads load or copy behind the wait: once, or in the first iterations of the first loop.
fn threads(
    machine: &Machine,
    body: &mut Vec<Statement>,
    dependent: &BTreeSet<BufferId>,
    bytes: u64,
) {
    let Some(at) = body.iter().position(is_wait) else {
        return;
    };
    let behind = &body[at + 1..];
    let reads = |body: &[Statement]| reads(machine, body, dependent, machine.computing());
    let is_loop = |s: &Statement| matches!(s, Statement::Loop { .. });
    let looped = behind.iter().position(is_loop);
    let (mut left, mut asked, mut ranged) = (bytes, Vec::new(), None);
    for (read, size) in reads(&behind[..looped.unwrap_or(behind.len())]) {
        if size <= left {
            left -= size;
            asked.push(read);
        }
    }
    // How far a loop goes that a kernel in front says is known behind the wait.
    if let Some(place) = looped
        && !behind[..place].iter().any(|s| is_told(s, dependent))
        && let Statement::Loop { number, body } = &behind[place]
        && let Some((axis, rest)) = iteration(body, *number)
    {
        // What is read where it is needed, and what is copied some iterations ahead: the first of these are under way.
        let mut fed = vec![(0, reads(rest))];
        for statement in rest {
            if let Statement::If {
                condition: Condition::Exists(At::NowAnd(n, ahead)),
                then,
                ..
            } = statement
                && n == number
            {
                fed.push((*ahead, reads(then)));
            }
        }
        for (from, each) in fed {
            let size: u64 = each.iter().map(|read| read.1).sum();
            let count = left.checked_div(size).map_or(0, |n| n.min(MOST_TILES));
            left -= count * size;
            let each: Vec<Statement> = each.into_iter().map(|read| read.0).collect();
            asked.extend(tiles((*number, axis), from, count, &each));
            ranged = ranged.or((count > 0).then_some(*number));
        }
    }
    // How far their loop goes is known in front of it.
    let is_range =
        |s: &mut Statement| matches!(s, Statement::Range { number, .. } if ranged == Some(*number));
    let known: Vec<Statement> = body.extract_if(at + 1.., is_range).collect();
    body.splice(at..at, known.into_iter().chain(asked));
}

/// What statements that so many threads carry out load or copy of buffers that no kernel in front writes, and its bytes.
fn reads(
    machine: &Machine,
    body: &[Statement],
    dependent: &BTreeSet<BufferId>,
    threads: u64,
) -> Vec<(Statement, u64)> {
    let ask = |access: &Access, layout: Layout, axes: AxisSet, width: u64| {
        let elements = layout.register_count() * threads;
        let bytes = elements * access.dtype.bytes();
        let access = access.clone();
        let asked = Statement::Prefetch {
            access,
            layout,
            axes,
            width,
        };
        (asked, bytes)
    };
    let mut all = Vec::new();
    for statement in body {
        if let Statement::Load {
            to,
            access,
            axes,
            width,
            policy: _,
        } = statement
            && !dependent.contains(&access.buffer)
        {
            let layout = machine.fragment(*to).layout();
            all.push(ask(access, layout, axes.clone(), *width));
        } else if let Statement::Copy(copy) = statement
            && !dependent.contains(&copy.access.buffer)
            && machine.region(copy.region).patch.is_empty()
        {
            let axes = machine.region(copy.region).axes.iter().map(|a| a.0);
            let layout = copy.layout.clone();
            all.push(ask(&copy.access, layout, axes.collect(), copy.width));
        } else if let Statement::Scope(inside) = statement {
            all.extend(reads(machine, inside, dependent, threads));
        }
    }
    all
}

/// What warps of their own copy in the first iterations, where they wait.
fn filled(machine: &Machine, producer: &mut Producer, dependent: &BTreeSet<BufferId>, bytes: u64) {
    let body = &mut producer.body;
    let is_loop = |s: &Statement| matches!(s, Statement::Loop { .. });
    let (Some(at), Some(place)) = (body.iter().position(is_wait), body.iter().position(is_loop))
    else {
        return;
    };
    let Statement::Loop {
        number,
        body: inside,
    } = &body[place]
    else {
        return;
    };
    let Some((axis, rest)) = iteration(inside, *number) else {
        return;
    };
    let boxes = |r: &RegionId| machine.region(*r).boxes.as_ref();
    let is_asked = |r: &&RegionId| boxes(r).is_some_and(|b| !dependent.contains(&b.map.buffer));
    let mut each = reads(machine, rest, dependent, producer.threads);
    for statement in rest {
        if let Statement::CopyBoxes(ring) = statement {
            let all = machine.ring(*ring).regions.iter().filter(is_asked);
            let regions: Vec<RegionId> = all.copied().collect();
            let size = regions
                .iter()
                .filter_map(boxes)
                .map(|b| b.bytes(machine.cluster));
            let size = size.sum();
            each.push((Statement::PrefetchBoxes(regions), size));
        }
    }
    let size: u64 = each.iter().map(|read| read.1).sum();
    // What may be between them needs no wait.
    let is_range = |s: &Statement| matches!(s, Statement::Range { .. }) && !is_told(s, dependent);
    let is_free = |s: &Statement| matches!(s, Statement::OpenRing(..)) || is_range(s);
    if size == 0 || place < at || !body[at + 1..place].iter().all(is_free) {
        return;
    }
    let count = (bytes / size).clamp(1, MOST_TILES);
    let each: Vec<Statement> = each.into_iter().map(|read| read.0).collect();
    let asked = tiles((*number, axis), 0, count, &each);
    // The loop is one place further to the front then.
    let wait = body.remove(at);
    body.splice(place - 1..place - 1, asked.into_iter().chain([wait]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorMap;
    use crate::machine::{Boxes, Counter, Ring};
    use crate::passes::dependent_launch::{DependentLaunch, dependent_launch};
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    fn target() -> Target {
        serde_json::from_str(include_str!("../../../search/targets/h200.json")).expect("a target")
    }

    const WAITS: DependentLaunch = DependentLaunch {
        waits: true,
        is_read: false,
    };

    /// Four blocks on a multiprocessor: each may ask for little.
    fn waiting(body: &str) -> Machine {
        let mut machine = machine(body);
        machine.blocks_per_sm = 4;
        prefetch(dependent_launch(machine, WAITS), &target())
    }

    #[test]
    fn what_a_loop_loads_first_is_asked_for_before_the_wait() {
        let after = waiting("RANGE, Loop(number: 0, body: [HERE, LOAD1, USE, LOAD0, USE]), STORE");
        expect![[r#"
            range of 0
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              ask for 0
            if Exists(FirstAnd(0, 1))
              tile FirstAnd(0, 1)
              ask for 0
            Sync(WaitBefore)
            loop 0
              tile Now(0)
              load f2 from 1
              f0 from [Fragment(FragmentId(2)), Constant(1.0)]
              load f2 from 0
              f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            store to 2
        "#]]
        .assert_eq(&outline(&after.body));
    }

    /// It is known behind the wait alone which iterations are the first.
    #[test]
    fn nothing_is_asked_for_a_loop_that_a_kernel_in_front_bounds() {
        let after = waiting("TOLD, Loop(number: 0, body: [HERE, LOAD0, USE]), STORE");
        expect![[r#"
            Sync(WaitBefore)
            range of 0
            loop 0
              tile Now(0)
              load f2 from 0
              f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            store to 2
        "#]]
        .assert_eq(&outline(&after.body));
    }

    #[test]
    fn what_is_loaded_behind_the_wait_is_asked_for_before_it() {
        let after = waiting("LOAD1, USE, LOAD0, USE, STORE");
        expect![[r#"
            ask for 0
            Sync(WaitBefore)
            load f2 from 1
            f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            load f2 from 0
            f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            store to 2
        "#]]
        .assert_eq(&outline(&after.body));
    }

    #[test]
    fn what_is_copied_behind_the_first_stages_is_asked_for() {
        let body =
            "RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, FETCH0, FETCH1]), STORE";
        let mut before = crate::passes::pipeline::pipeline(machine(body), 3);
        before.blocks_per_sm = 4;
        let after = prefetch(dependent_launch(before, WAITS), &target());
        let behind = outline(&after.body);
        let (before, _) = behind.split_once("loop 0").expect("a loop");
        expect![[r#"
            range of 0
            OpenStages(Counter { number: 0, delayed: false, split: None })
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              copy to s0 At(0) by 4 warps
            if Exists(FirstAnd(0, 1))
              tile FirstAnd(0, 1)
              copy to s0 At(1) by 4 warps
            if Exists(FirstAnd(0, 2))
              tile FirstAnd(0, 2)
              ask for 0
            if Exists(FirstAnd(0, 3))
              tile FirstAnd(0, 3)
              ask for 0
            Sync(WaitBefore)
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              copy to s1 At(0) by 4 warps
            Sync(CopyCommit)
            if Exists(FirstAnd(0, 1))
              tile FirstAnd(0, 1)
              copy to s1 At(1) by 4 warps
            Sync(CopyCommit)
        "#]]
        .assert_eq(before);
    }

    #[test]
    fn nothing_is_asked_for_that_another_kernel_may_write() {
        let after = waiting("LOAD1, USE, RANGE, Loop(number: 0, body: [HERE, LOAD1, USE]), STORE");
        expect![[r#"
            Sync(WaitBefore)
            load f2 from 1
            f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            range of 0
            loop 0
              tile Now(0)
              load f2 from 1
              f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            store to 2
        "#]]
        .assert_eq(&outline(&after.body));
    }

    #[test]
    fn boxes_of_the_first_stages_are_asked_for_before_the_wait() {
        let mut before = machine("STORE");
        for (region, buffer) in before.regions.iter_mut().zip(0..) {
            let map = TensorMap {
                buffer: BufferId(buffer),
                offset: 0,
                extents: vec![256, 512],
                strides: vec![512],
                sizes: vec![64, 64],
                line_bytes: 128,
            };
            region.boxes = Some(Boxes {
                map,
                axes: vec![AxisId(1), AxisId(0)],
                span: 64,
                swizzle_atoms: 1,
                share: None,
            });
        }
        before.rings.push(Ring {
            counter: Counter::copied(0, false),
            filled_by: 0,
            read_by: None,
            regions: vec![RegionId(0), RegionId(1)],
            stages: 2,
            readers: 1,
            barriers: 0,
        });
        let filling = "OpenRing(\"ring0\", 1), RANGE, Loop(number: 0, body: [HERE, Sync(Empty(\"ring0\")), CopyBoxes(\"ring0\"), AdvanceRing(\"ring0\")])";
        before.blocks_per_sm = 4;
        before.producers.push(Producer {
            threads: 128,
            boxed: true,
            registers: None,
            body: machine(filling).body,
        });
        let after = prefetch(dependent_launch(before, WAITS), &target());
        expect![[r#"
            OpenRing(RingId(0), 1)
            range of 0
            if Exists(FirstAnd(0, 0))
              tile FirstAnd(0, 0)
              ask for s0
            if Exists(FirstAnd(0, 1))
              tile FirstAnd(0, 1)
              ask for s0
            Sync(WaitBefore)
            loop 0
              tile Now(0)
              Sync(Empty(RingId(0)))
              CopyBoxes(RingId(0))
              AdvanceRing(RingId(0))
        "#]]
        .assert_eq(&outline(&after.producers[0].body));
    }
}

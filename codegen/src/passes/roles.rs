//! Lets four warps of their own fill the ring of a loop, while the others compute.
//!
//! ```text
//! before                  after: those that compute    those that fill
//!                           OpenRing(k0)                 OpenRing(k0)
//!   Loop                    Loop                         Loop
//!     Copy(s0)                Issue(s0, current)           Empty(k0)
//!     CopyCommit              …                            CopyBoxes(k0)
//!     Issue(s0)                                            AdvanceRing(k0)
//!     …
//! ```
//!
//! Each stage has two barriers. The one of *full* stages ends a phase when every copy of the stage's tile has landed; the one of
//! *empty* stages when every warp that computes has done with the tile. Nothing else holds the warps of a loop together, so groups
//! of them may drift apart by as many iterations as there are stages: one, and more with `pipeline.rs`. What is still read when an iteration has ended has a ring of its own. Where
//! a stage is waited for and given back is derived (`rings.rs`).
//!
//! Where every tile is made of boxes of a tensor, one thread asks the hardware for them (`boxes.rs`); else all threads of those warps copy.
//!
//! A kernel has such a loop if it holds no other one, groups of warps multiply, and nothing else in a loop is written to shared memory but what is
//! made of such tiles; where a contraction is issued an iteration late, the loop runs once. A kernel that has none stays as it is.

mod boxes;

use super::instructions::read_late;
use super::{Apply, Behind, Pass, issues_delayed, reads_of, take_copies};
use crate::machine::{
    At, Copy, Counter, LoopId, Machine, Producer, RegionId, Ring, RingId, Stage, Statement, Sync,
};
use crate::resources::{Filling, PRODUCER_THREADS, producer_registers};
use ir::{AxisId, Form, KernelSchedule, Part, Reject, Step, Target};
use std::collections::BTreeSet;

/// Registers of a thread beyond which there is nothing to gain from the others.
const ENOUGH_REGISTERS: u64 = 232;

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "roles",
        parts: &[Part::Word("producer")],
        required: false,
        help: "four more warps fill the rings",
    },
    behind: &[Behind::after(
        "delayed",
        "what is read late has a ring of its own",
    )],
    apply: Apply::Statements(|machine, _, _, target| roles(machine, target)),
};

/// Four more warps fill the rings, so that no barrier an iteration holds the others together.
pub fn step() -> Step {
    Step::new(&PASS.form, [])
}

/// Whether warps of their own fill rings where they can.
pub fn of(schedule: &KernelSchedule) -> bool {
    schedule.says(&PASS.form)
}

/// The loop whose ring warps of their own can fill, if there is one.
fn fed(machine: &Machine) -> Option<LoopId> {
    let mut found = Loops::default();
    found.list(&machine.body, &mut Vec::new());
    let [(number, outermost)] = found.copying.iter().copied().collect::<Vec<_>>()[..] else {
        return None;
    };
    let once = outermost || !found.delayed.contains(&number);
    let innermost = !found.around.contains(&number);
    (once && innermost && found.issues && !found.others && machine.block_group.is_none())
        .then_some(number)
}

/// What there is about loops.
#[derive(Default)]
struct Loops {
    /// Those in which something is copied, and whether they are outermost ones.
    copying: BTreeSet<(LoopId, bool)>,
    /// Those that hold others.
    around: BTreeSet<LoopId>,
    /// Those with a contraction that is issued an iteration late.
    delayed: BTreeSet<LoopId>,
    /// Whether a loop writes registers to shared memory.
    others: bool,
    /// Whether groups of warps multiply.
    issues: bool,
}

impl Loops {
    fn list(&mut self, body: &[Statement], around: &mut Vec<LoopId>) {
        for statement in body {
            if let Statement::Issue(_) = statement {
                self.issues = true;
            } else if let Statement::Loop { number, body } = statement {
                self.around.extend(around.iter().copied());
                if issues_delayed(body, *number) {
                    self.delayed.insert(*number);
                }
                around.push(*number);
            } else if let (Statement::Copy(_), Some(number)) = (statement, around.last()) {
                self.copying.insert((*number, around.len() == 1));
            } else if let Statement::Publish { .. } | Statement::Clear(_) = statement {
                self.others |= !around.is_empty();
            }
            for inside in statement.lists() {
                self.list(inside, around);
            }
            if let Statement::Loop { .. } = statement {
                around.pop();
            }
        }
    }
}

/// The machine program with warps that fill the ring of a loop, if there is such a one.
///
/// # Errors
/// Warps that only copy cannot convert what they copy.
pub(crate) fn roles(mut machine: Machine, target: &Target) -> Result<Machine, Reject> {
    let Some(number) = fed(&machine) else {
        return Ok(machine);
    };
    let mut body = std::mem::take(&mut machine.body);
    let mut around = Vec::new();
    let found = taken(&mut body, number, &mut around);
    let (Some((axis, copies, delayed)), Some(outermost)) = (found, around.last()) else {
        return Err(Reject::Schedule("nothing is copied in the loop".into()));
    };
    let outermost = outermost.number;
    let is_delayed = |copy: &Copy| delayed.contains(&copy.region);
    for (region, stage) in reads_of(&mut body) {
        let own = copies.iter().find(|c| c.region == region);
        if let Some(copy) = own.filter(|_| *stage == Stage::At(0)) {
            let delayed = is_delayed(copy);
            *stage = Stage::Current(Counter::copied(number, delayed));
        }
    }
    for delayed in [false, true] {
        let own = copies.iter().filter(|c| is_delayed(c) == delayed);
        let ring = Ring {
            counter: Counter::copied(number, delayed),
            filled_by: 0,
            read_by: None,
            regions: own.map(|c| c.region).collect(),
            stages: 1 + u64::from(delayed),
            readers: 1,
            barriers: 0,
        };
        for region in &ring.regions {
            machine.regions[region.0 as usize].stages = ring.stages;
        }
        if !ring.regions.is_empty() {
            machine.rings.push(ring);
        }
    }
    let boxes = copies.iter().map(|copy| {
        let boxes = boxes::boxes(copy, machine.region(copy.region), &machine.axes)?;
        Some((copy.region, boxes))
    });
    let boxes: Option<Vec<_>> = boxes.collect();
    let boxed = boxes.is_some();
    for (region, boxes) in boxes.into_iter().flatten() {
        machine.regions[region.0 as usize].boxes = Some(boxes);
    }
    let fills = fills(&machine, &copies, boxed)?;
    machine.producers.push(Producer {
        threads: PRODUCER_THREADS,
        boxed,
        registers: None,
        body: producer(&machine, axis, fills, &around, boxed),
    });
    share_registers(&mut machine, target);
    let opens = rings(&machine).map(|r| Statement::OpenRing(r, 0));
    let first =
        |s: &Statement| matches!(s, Statement::Range { number, .. } if *number == outermost);
    let at = body.iter().position(first).unwrap_or_default();
    body.splice(at..at, opens.collect::<Vec<_>>());
    machine.body = body;
    Ok(machine)
}

fn filling(producer: &Producer) -> Filling {
    fn splits(body: &[Statement]) -> bool {
        let own = |s: &Statement| matches!(s, Statement::Split(_));
        body.iter()
            .any(|s| own(s) || s.lists().into_iter().any(splits))
    }
    match (producer.boxed, splits(&producer.body)) {
        (true, _) => Filling::Asking,
        (false, false) => Filling::Copying,
        (false, true) => Filling::Splitting,
    }
}

/// Gives the registers that warps do not need which fill rings to those that compute.
pub(super) fn share_registers(machine: &mut Machine, target: &Target) {
    let (threads, computing) = (machine.threads(), machine.computing());
    let each = target.whole_registers(threads * u64::from(machine.blocks_per_sm));
    let kept: Vec<u64> = (machine.producers.iter())
        .map(|p| producer_registers(filling(p)))
        .collect();
    let all = machine.producers.iter().zip(&kept);
    let given: u64 = all.map(|(p, kept)| kept * p.threads).sum();
    let left = (each * threads).saturating_sub(given);
    let more = (left / computing).min(ENOUGH_REGISTERS + 8) / 8 * 8;
    let moves = each < ENOUGH_REGISTERS && kept.iter().all(|k| each > *k);
    for (producer, kept) in machine.producers.iter_mut().zip(kept) {
        producer.registers = moves.then_some(kept);
    }
    machine.registers = moves.then_some(more);
}

fn rings(machine: &Machine) -> impl Iterator<Item = RingId> {
    (0..machine.rings.len() as u32).map(RingId)
}

/// A loop around what is copied, or the one in which it is.
struct Around {
    number: LoopId,
    /// How far it goes.
    range: Statement,
    /// Where an iteration is.
    here: Statement,
}

/// What is copied in a loop, and the regions that are still read in its next iteration.
type Taken = (AxisId, Vec<Copy>, BTreeSet<RegionId>);

/// Takes the copies out of a loop; `around` gets it and the loops around it, from the inside out.
fn taken(body: &mut [Statement], wanted: LoopId, around: &mut Vec<Around>) -> Option<Taken> {
    let mut ranges: Vec<Statement> = Vec::new();
    for statement in body {
        if let Statement::Range { .. } = statement {
            ranges.push(statement.clone());
        }
        let number = if let Statement::Loop { number, .. } = statement {
            Some(*number)
        } else {
            None
        };
        let mut here = None;
        let mut found = None;
        for inside in statement.lists_mut() {
            here = inside.first().cloned();
            found = match number == Some(wanted) {
                true => {
                    let delayed = read_late(inside);
                    take_copies(inside).map(|(axis, copies)| (axis, copies, delayed))
                }
                false => taken(inside, wanted, around),
            };
            if found.is_some() {
                break;
            }
        }
        if found.is_some() {
            let is_its = |s: &Statement| matches!(s, Statement::Range { number: n, .. } if Some(*n) == number);
            if let (Some(number), Some(range), Some(here)) =
                (number, ranges.into_iter().rfind(is_its), here)
            {
                around.push(Around {
                    number,
                    range,
                    here,
                });
            }
            return found;
        }
    }
    None
}

/// The copies of each ring by the threads that only copy; none where the hardware copies.
fn fills(machine: &Machine, copies: &[Copy], boxed: bool) -> Result<Vec<Vec<Statement>>, Reject> {
    let fill = |ring: &Ring| {
        let own = copies.iter().filter(|c| ring.regions.contains(&c.region));
        own.map(|copy| {
            let region = (copy.region, machine.region(copy.region));
            let stage = Stage::Current(ring.counter);
            let access = copy.access.clone();
            let warps = PRODUCER_THREADS / 32;
            let own = Copy::of(region, stage, access, &machine.axes, warps);
            match own.background {
                true => Ok(Statement::Copy(Box::new(own))),
                false => Err(Reject::Schedule(
                    "warps that only copy cannot convert what they copy".into(),
                )),
            }
        })
        .collect()
    };
    match boxed {
        true => Ok(Vec::new()),
        false => machine.rings.iter().map(fill).collect(),
    }
}

/// What the warps do that fill.
fn producer(
    machine: &Machine,
    axis: AxisId,
    fills: Vec<Vec<Statement>>,
    around: &[Around],
    boxed: bool,
) -> Vec<Statement> {
    let mut all: Vec<Statement> = rings(machine).map(|r| Statement::OpenRing(r, 1)).collect();
    let number = around[0].number;
    let at = At::Now(number);
    let mut body = vec![Statement::Tile { axis, at }];
    let mut fills = fills.into_iter();
    for ring in rings(machine) {
        body.push(Statement::Sync(Sync::Empty(ring)));
        match fills.next() {
            None => body.push(Statement::CopyBoxes(ring)),
            Some(fills) => {
                body.extend(fills);
                body.push(Statement::Sync(Sync::CopyArrive(ring)));
            }
        }
        body.push(Statement::AdvanceRing(ring));
    }
    let mut loops = vec![around[0].range.clone(), Statement::Loop { number, body }];
    for outer in &around[1..] {
        let number = outer.number;
        let body = [outer.here.clone()].into_iter().chain(loops).collect();
        loops = vec![outer.range.clone(), Statement::Loop { number, body }];
    }
    all.extend(loops);
    if !boxed {
        all.push(Statement::Sync(Sync::CopiesEnd));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    fn target() -> Target {
        let text = include_str!("../../../search/targets/h200.json");
        serde_json::from_str(text).expect("a target")
    }

    const BEFORE: &str =
        "RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, ISSUE0, ISSUE1, USE]), STORE";

    #[test]
    fn warps_of_their_own_copy() {
        let before = machine(BEFORE);
        assert_eq!(fed(&before), Some(0));
        let after = roles(before, &target()).expect("legal");
        let producer = after.producers.first().expect("warps that fill");
        expect![[r#"
            OpenRing(RingId(0), 0)
            range of 0
            loop 0
              tile Now(0)
              issue of s0 Current(Counter { number: 0, delayed: false, split: None })
              issue of s1 Current(Counter { number: 0, delayed: false, split: None })
              f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            store to 2
            ---
            OpenRing(RingId(0), 1)
            range of 0
            loop 0
              tile Now(0)
              Sync(Empty(RingId(0)))
              CopyBoxes(RingId(0))
              AdvanceRing(RingId(0))
        "#]]
        .assert_eq(&format!(
            "{}---\n{}",
            outline(&after.body),
            outline(&producer.body)
        ));
        assert!(producer.boxed);
    }

    /// Rows of a box must be multiples of 16 bytes apart.
    #[test]
    fn what_is_no_box_is_copied_by_threads() {
        let text = machine(BEFORE).to_string().replace("0: 256", "0: 260");
        let before: Machine = text.parse().expect("a machine program");
        let after = roles(before, &target()).expect("legal");
        let producer = after.producers.first().expect("warps that fill");
        expect![[r#"
            OpenRing(RingId(0), 1)
            range of 0
            loop 0
              tile Now(0)
              Sync(Empty(RingId(0)))
              copy to s0 Current(Counter { number: 0, delayed: false, split: None }) by 4 warps
              copy to s1 Current(Counter { number: 0, delayed: false, split: None }) by 4 warps
              Sync(CopyArrive(RingId(0)))
              AdvanceRing(RingId(0))
            Sync(CopiesEnd)
        "#]]
        .assert_eq(&outline(&producer.body));
        let odd = machine(BEFORE).to_string().replace("0: 256", "0: 257");
        let odd: Machine = odd.parse().expect("a machine program");
        let refused = roles(odd, &target()).expect_err("refused");
        assert_eq!(
            refused.to_string(),
            "schedule: warps that only copy cannot convert what they copy"
        );
    }

    #[test]
    fn other_loops_have_no_such_warps() {
        for other in [
            // Nobody multiplies in groups.
            "RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, FETCH0])",
            // Registers are written to shared memory as well.
            "RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, PUBLISH1, ISSUE0, USE])",
            // Nothing is copied in a loop.
            "COPY0, LANDS, RANGE, Loop(number: 0, body: [HERE, ISSUE0, USE])",
        ] {
            assert_eq!(fed(&machine(other)), None, "{other}");
        }
        let inner = "RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, ISSUE0, USE, \
                     Loop(number: 1, body: [ISSUE0, USE])])";
        assert_eq!(fed(&machine(inner)), None);
    }
}

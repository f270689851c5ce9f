//! Lets four warps of their own split what others copied into halves, while those that compute multiply the halves of the iteration before.
//!
//! ```text
//! before                   after: those that copy   those that split        those that compute
//!   Loop                     Loop                     Loop                    Loop
//!     Fetch(f0, s0)            Empty(k0)                Full(wholes)            Fetch(f0, s0)
//!     Split(s1, to s2, s3)     Copy(s0)                 Empty(halves)           Issue(f0, s2), …
//!     Issue(f0, s2), …         CopyArrive(k0)           Split(s1, to s2, s3)    …
//!     …                        AdvanceRing(k0)          ProxyFence
//!                              Empty(wholes)            Filled(halves)
//!                              Copy(s1)                 Release(wholes)
//!                              CopyArrive(wholes)       AdvanceRing(…)
//!                              AdvanceRing(wholes)
//! ```
//!
//! What is split has a ring of its own, which is read by the warps that split; the halves have another one, which they fill, of two stages: they are
//! made one iteration ahead. So nothing holds the groups together that compute: while one splits its rows, the other multiplies.
//!
//! It is legal where the warps of a loop copy what is split, and nothing but the splitting reads it. Where nothing is split it is refused.

use super::{Apply, Behind, Pass, reads_of, roles};
use crate::machine::{
    Condition, Counter, Machine, Producer, RegionId, Ring, RingId, Split, SplitStages, Stage,
    Statement, Sync,
};
use crate::resources::PRODUCER_THREADS;
use ir::{Form, KernelSchedule, Reject, Step, Target};
use std::collections::BTreeSet;

/// Stages of the ring of halves.
const STAGES: u64 = 2;

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "splitter",
        parts: &[],
        required: false,
        help: "four more warps split what is copied into halves",
    },
    behind: &[Behind::needs(
        "roles",
        "only what warps of their own copy is handed on to others",
    )],
    apply: Apply::Statements(|machine, _, _, target| splitter(machine, target)),
};

/// Four more warps split what is copied into halves.
pub fn step() -> Step {
    Step::new(&PASS.form, [])
}

/// Whether warps of their own split.
pub fn of(schedule: &KernelSchedule) -> bool {
    schedule.says(&PASS.form)
}

/// The machine program with warps that split what others copy.
///
/// # Errors
/// [`Reject::Schedule`] where nothing is split that they copy, or something else reads it.
pub(crate) fn splitter(mut machine: Machine, target: &Target) -> Result<Machine, Reject> {
    let refused = |why: &str| Reject::Schedule(format!("{}: {why}", machine.name));
    let first = machine.rings.iter().find(|r| !r.counter.delayed);
    let Some(number) = first.map(|r| r.counter.number) else {
        return Err(refused("no warps of their own copy what is split"));
    };
    let copied: BTreeSet<RegionId> = machine
        .rings
        .iter()
        .flat_map(|r| r.regions.clone())
        .collect();
    let mut body = std::mem::take(&mut machine.body);
    let mut splits = Vec::new();
    take(&mut body, &copied, &mut splits);
    let wholes: BTreeSet<RegionId> = splits.iter().map(|s| s.from).collect();
    if splits.is_empty() || reads_of(&mut body).iter().any(|(r, _)| wholes.contains(r)) {
        return Err(refused(match splits.is_empty() {
            true => "nothing is split that warps of their own copy",
            false => "what is split is read as it is too",
        }));
    }
    let of = |split| Counter {
        number,
        delayed: false,
        split: Some(split),
    };
    let [into, from] = [SplitStages::Halves, SplitStages::Wholes].map(of);
    let halves: BTreeSet<RegionId> = splits.iter().flat_map(|s| s.to).collect();
    for (region, stage) in reads_of(&mut body) {
        if halves.contains(&region) {
            *stage = Stage::Current(into);
        }
    }
    for ring in &mut machine.rings {
        ring.regions.retain(|r| !wholes.contains(r));
    }
    if machine.rings.iter().any(|r| r.regions.is_empty()) {
        return Err(refused("nothing is copied but what is split"));
    }
    let ring = |counter, regions, stages, filled_by, read_by| Ring {
        counter,
        regions,
        stages,
        filled_by,
        read_by,
        readers: 1,
        barriers: 0,
    };
    let copying = machine.producers.len() as u32 - 1;
    let next = machine.rings.len() as u32;
    let rings = [next, next + 1].map(RingId);
    let list = |all: &BTreeSet<RegionId>| all.iter().copied().collect();
    machine
        .rings
        .push(ring(from, list(&wholes), 1, copying, Some(copying + 1)));
    machine
        .rings
        .push(ring(into, list(&halves), STAGES, copying + 1, None));
    for region in &halves {
        machine.regions[region.0 as usize].stages = STAGES;
    }
    let splitting = splitting(
        &machine.producers[copying as usize].body,
        rings,
        &splits,
        (from, into),
    );
    machine.producers.push(Producer {
        threads: PRODUCER_THREADS,
        boxed: false,
        registers: None,
        body: splitting,
    });
    let producer = &mut machine.producers[copying as usize];
    let boxed = producer.boxed;
    hand_on(&mut producer.body, rings[0], from, &wholes, boxed);
    producer.body.insert(0, Statement::OpenRing(rings[0], 1));
    body.insert(opened(&body), Statement::OpenRing(rings[1], 0));
    machine.body = body;
    roles::share_registers(&mut machine, target);
    Ok(machine)
}

/// Where the rings of those that compute have been opened.
fn opened(body: &[Statement]) -> usize {
    let opens = |s: &Statement| matches!(s, Statement::OpenRing(..));
    body.iter().rposition(opens).map_or(0, |at| at + 1)
}

/// Takes out what splits what is copied.
fn take(body: &mut Vec<Statement>, copied: &BTreeSet<RegionId>, out: &mut Vec<Split>) {
    body.retain_mut(|statement| {
        for inside in statement.lists_mut() {
            take(inside, copied, out);
        }
        if let Statement::Split(split) = statement
            && copied.contains(&split.from)
        {
            out.push((**split).clone());
            return false;
        }
        true
    });
}

/// What the warps do that split: they go through the loops of those that copy.
fn splitting(
    copying: &[Statement],
    [wholes, halves]: [RingId; 2],
    splits: &[Split],
    (from, into): (Counter, Counter),
) -> Vec<Statement> {
    let release = Statement::If {
        condition: Condition::Lane0,
        then: vec![Statement::Sync(Sync::Release(wholes))],
        otherwise: Vec::new(),
    };
    let mut each = vec![
        Statement::Sync(Sync::Full(wholes)),
        Statement::Sync(Sync::Empty(halves)),
    ];
    each.extend(splits.iter().map(|split| {
        Statement::Split(Box::new(Split {
            stage: Stage::Current(from),
            into: Stage::Current(into),
            ..split.clone()
        }))
    }));
    each.extend([
        Statement::Sync(Sync::ProxyFence),
        Statement::Sync(Sync::Filled(halves)),
        Statement::Sync(Sync::Warp),
        release,
        Statement::AdvanceRing(wholes),
        Statement::AdvanceRing(halves),
    ]);
    let mut all = vec![
        Statement::OpenRing(wholes, 0),
        Statement::OpenRing(halves, 1),
    ];
    all.extend(loops(copying, &each));
    all
}

/// The loops of a list, the innermost with something in place of what fills rings.
fn loops(body: &[Statement], each: &[Statement]) -> Vec<Statement> {
    let mut all = Vec::new();
    let mut fills = false;
    for statement in body {
        if let Statement::Range { .. } | Statement::Tile { .. } = statement {
            all.push(statement.clone());
        } else if let Statement::Loop { number, body } = statement {
            all.push(Statement::Loop {
                number: *number,
                body: loops(body, each),
            });
        } else if let Statement::AdvanceRing(_) = statement {
            fills = true;
        }
    }
    if fills {
        all.extend(each.iter().cloned());
    }
    all
}

/// What is split goes to a ring of its own, behind the others of an iteration.
fn hand_on(
    body: &mut Vec<Statement>,
    ring: RingId,
    counter: Counter,
    wholes: &BTreeSet<RegionId>,
    boxed: bool,
) {
    for inside in body.iter_mut().flat_map(Statement::lists_mut) {
        hand_on(inside, ring, counter, wholes, boxed);
    }
    let is_whole =
        |s: &Statement| matches!(s, Statement::Copy(copy) if wholes.contains(&copy.region));
    let fills = |s: &Statement| matches!(s, Statement::AdvanceRing(_));
    if !body.iter().any(fills) {
        return;
    }
    let own: Vec<Statement> = body.extract_if(.., |s| is_whole(s)).collect();
    body.push(Statement::Sync(Sync::Empty(ring)));
    if boxed {
        body.push(Statement::CopyBoxes(ring));
    } else {
        for mut statement in own {
            if let Statement::Copy(copy) = &mut statement {
                copy.stage = Stage::Current(counter);
            }
            body.push(statement);
        }
        body.push(Statement::Sync(Sync::CopyArrive(ring)));
    }
    body.push(Statement::AdvanceRing(ring));
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

    /// The middle of a loop that reads rows from the first region; `SPLIT` makes halves of the second one.
    fn fed(inside: &str) -> Machine {
        const SPLIT: &str = "Split(from: \"s1\", stage: At(0), kept: (count: 64, stride: 1), depth: [(count: 64, stride: 64)], \
             to: (\"s2\", \"s3\"), into: At(0))";
        let inside = inside.replace("SPLIT", SPLIT);
        let text = format!(
            "RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, FETCH0, {inside}]), STORE"
        );
        let text = machine(&text).to_string();
        // What multiplies reads halves.
        let text = text.replace("b: (region: \"s1\"", "b: (region: \"s2\"");
        let mut before: Machine = text.parse().expect("a machine program");
        let region = before.regions[1].clone();
        before.regions.extend([region.clone(), region]);
        roles::roles(before, &target()).expect("warps that copy")
    }

    #[test]
    fn warps_of_their_own_split() {
        let after = splitter(fed("SPLIT, ISSUE1, USE"), &target()).expect("legal");
        let [copying, splitting] = &after.producers[..] else {
            panic!("{} kinds of warps", after.producers.len());
        };
        expect![[r#"
            OpenRing(RingId(0), 0)
            OpenRing(RingId(2), 0)
            range of 0
            loop 0
              tile Now(0)
              read s0 Current(Counter { number: 0, delayed: false, split: None })
              issue of s2 Current(Counter { number: 0, delayed: false, split: Some(Halves) })
              f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            store to 2
            ---
            OpenRing(RingId(1), 1)
            OpenRing(RingId(0), 1)
            range of 0
            loop 0
              tile Now(0)
              Sync(Empty(RingId(0)))
              CopyBoxes(RingId(0))
              AdvanceRing(RingId(0))
              Sync(Empty(RingId(1)))
              CopyBoxes(RingId(1))
              AdvanceRing(RingId(1))
            ---
            OpenRing(RingId(1), 0)
            OpenRing(RingId(2), 1)
            range of 0
            loop 0
              tile Now(0)
              Sync(Full(RingId(1)))
              Sync(Empty(RingId(2)))
              Split(Split { from: RegionId(1), stage: Current(Counter { number: 0, delayed: false, split: Some(Wholes) }), kept: Side { count: 64, stride: 1 }, depth: [Side { count: 64, stride: 64 }], to: [RegionId(2), RegionId(3)], into: Current(Counter { number: 0, delayed: false, split: Some(Halves) }) })
              Sync(ProxyFence)
              Sync(Filled(RingId(2)))
              Sync(Warp)
              if Lane0
                Sync(Release(RingId(1)))
              AdvanceRing(RingId(1))
              AdvanceRing(RingId(2))
        "#]].assert_eq(&format!(
            "{}---\n{}---\n{}",
            outline(&after.body),
            outline(&copying.body),
            outline(&splitting.body)
        ));
        let rings = after
            .rings
            .iter()
            .map(|r| (r.filled_by, r.read_by, r.stages));
        assert_eq!(
            rings.collect::<Vec<_>>(),
            [(0, None, 1), (0, Some(1), 1), (1, None, STAGES)]
        );
        assert_eq!(after.threads(), 3 * 128);
    }

    #[test]
    fn what_cannot_be_handed_on_is_refused() {
        for (inside, why) in [
            (
                "ISSUE1, USE",
                "nothing is split that warps of their own copy",
            ),
            (
                "SPLIT, FETCH1, ISSUE1, USE",
                "what is split is read as it is too",
            ),
        ] {
            let refused = splitter(fed(inside), &target()).expect_err("refused");
            assert_eq!(refused.to_string(), format!("schedule: sample: {why}"));
        }
        let alone = splitter(
            machine("RANGE, Loop(number: 0, body: [HERE, USE]), STORE"),
            &target(),
        );
        assert_eq!(
            alone.expect_err("refused").to_string(),
            "schedule: sample: no warps of their own copy what is split"
        );
    }
}

//! Makes block groups clusters, which hand each other their partial results through their shared memory (distributed shared memory) instead of the
//! split-K workspace.
//!
//! ```text
//! before                             after, in groups of four
//!   StorePartial(workspace: 128)       StorePartial(s3)          to the block's own shared memory
//!   GridBarrier(1)                     GridBarrier(1)            of the cluster
//!   ReducePartials(workspace: 128)     ReducePartials(s3)        reads that of all blocks
//!   …                                  …
//!   StorePartial(workspace: 4224)      StorePartial(s4)
//!   LastGoesOn                         GridBarrier(2)
//!   ReducePartials(workspace: 4224)    ReducePartials(s4)        of a share of the tile
//!   Store                              Store                     of that
//!                                    epilogue: ClusterEnds
//! block_group: waits: true           block_group: waits: false
//! split_workspace: 8320 bytes        split_workspace: 0 bytes
//! cluster: 1                         cluster: 4
//! ```
//!
//! The blocks of a cluster run at the same time. So none has to take its number in the order in which blocks begin, no counter is left behind, and launches
//! may overlap. Nobody ends before all have read what it has: they meet once more for that. Warps that only fill rings leave behind the first meeting,
//! and who has left counts as having come.
//!
//! Where one block would do the rest, all do a share of it (`share`), each with some of the registers of the whole. Where that cannot be, as behind
//! a reduction over what would be shared out, the first block does it.
//!
//! It is legal in groups of no more blocks than a cluster has, whose parts find room beside what a block has in shared memory already.

mod share;

use self::share::share;
use super::{Apply, Behind, Pass};
use crate::machine::{Condition, Machine, Parts, Region, RegionId, Statement, Sync};
use ir::{Dtype, Form, KernelSchedule, Reject, Step, Target};
use std::collections::BTreeMap;

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "distributed",
        parts: &[],
        required: false,
        help: "blocks that make a result together are a cluster, and read their parts from each other's shared memory",
    },
    behind: &[
        Behind::after("delayed", WHOLE),
        Behind::after("roles", WHOLE),
        Behind::after("pipeline", WHOLE),
        Behind::after("turns", WHOLE),
    ],
    apply: Apply::Statements(|machine, _, _, target| distributed(machine, target)),
};

/// Why others come first.
const WHOLE: &str = "what a block does by itself is settled before it meets others";

/// Block groups are clusters.
pub fn step() -> Step {
    Step::new(&PASS.form, [])
}

/// Whether they are.
pub fn of(schedule: &KernelSchedule) -> bool {
    schedule.says(&PASS.form)
}

/// The machine program whose block groups are clusters.
///
/// # Errors
/// [`Reject::Schedule`] where there are none, or they are of more blocks than a cluster has.
pub(crate) fn distributed(mut machine: Machine, target: &Target) -> Result<Machine, Reject> {
    let refused = |why: String| Reject::Schedule(format!("{}: {why}", machine.name));
    let Some(mut group) = machine.block_group.filter(|g| g.size > 1) else {
        return Err(refused(
            "no blocks make a result together, which could be a cluster".into(),
        ));
    };
    let most = u64::from(target.cluster_blocks);
    if group.size > most {
        return Err(refused(format!(
            "a cluster of {} blocks, where {most} are possible",
            group.size
        )));
    }
    let mut body = std::mem::take(&mut machine.body);
    if let Some(at) = body.iter().position(|s| matches!(s, Statement::LastGoesOn)) {
        let then = body.split_off(at + 1);
        body[at] = Statement::GridBarrier(group.grid_barriers);
        match share(&mut machine, &then, group.size) {
            Some(shared) => body.extend(shared),
            None => body.push(Statement::If {
                condition: Condition::FirstBlock,
                then,
                otherwise: Vec::new(),
            }),
        }
    }
    homes(&mut body, &mut machine.regions, &mut BTreeMap::new());
    machine.body = body;
    group.waits = false;
    machine.block_group = Some(group);
    machine.cluster = group.size;
    machine.split_workspace = crate::SplitWorkspace::default();
    machine.epilogue.push(Statement::Sync(Sync::ClusterEnds));
    Ok(machine)
}

/// Gives each partial result a region, which those who store and reduce it share: by the floats that were stored before it.
fn homes(body: &mut [Statement], regions: &mut Vec<Region>, known: &mut BTreeMap<u64, RegionId>) {
    for statement in body {
        if let Statement::StorePartial(partial) | Statement::ReducePartials(partial) = statement {
            let home = known.entry(partial.before).or_insert_with(|| {
                regions.push(Region {
                    name: format!("parts{}", partial.before),
                    dtype: Dtype::F32,
                    axes: Vec::new(),
                    elements: partial.floats,
                    stages: 1,
                    offset: 0,
                    swizzle: None,
                    patch: Vec::new(),
                    boxes: None,
                });
                RegionId(regions.len() as u32 - 1)
            });
            partial.home = Parts::Region(*home);
        }
        for list in statement.lists_mut() {
            homes(list, regions, known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{BlockGroup, FragmentId, Holds, Partial};
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;
    use ir::ReduceOp;

    fn target() -> Target {
        serde_json::from_str(include_str!("../../../search/targets/h200.json")).expect("a target")
    }

    /// A kernel of groups of four blocks, which combine `f0` around where they meet.
    fn grouped(body: &str) -> Machine {
        let mut machine = machine(body);
        let layout = machine.fragment(FragmentId(0)).layout();
        let partial = Partial {
            op: ReduceOp::Sum,
            fragment: FragmentId(0),
            layout,
            strides: None,
            floats: 4096,
            before: 0,
            home: Parts::Workspace(128),
            ahead: 2,
        };
        let (before, behind) = (partial.clone().into(), partial.into());
        machine.body.insert(1, Statement::ReducePartials(behind));
        machine.body.insert(0, Statement::StorePartial(before));
        machine.block_group = Some(BlockGroup {
            size: 4,
            waits: true,
            grid_barriers: 1,
        });
        machine.split_workspace.bytes = 4224;
        machine
    }

    #[test]
    fn blocks_that_all_go_on_meet_in_their_cluster() {
        let after = distributed(grouped("GridBarrier(1), STORE"), &target());
        let after = after.expect("is possible");
        expect![[r#"
            store a part to Region(RegionId(2))
            GridBarrier(1)
            reduce parts of Region(RegionId(2))
            store to 2
        "#]]
        .assert_eq(&outline(&after.body));
        assert_eq!((after.cluster, after.split_workspace.bytes), (4, 0));
        assert_eq!(after.regions[2].elements, 4096);
        assert_eq!(after.epilogue, [Statement::Sync(Sync::ClusterEnds)]);
    }

    #[test]
    fn all_do_a_share_of_what_one_would_do() {
        let after = distributed(grouped("LastGoesOn, STORE"), &target()).expect("is possible");
        expect![[r#"
            store a part to Region(RegionId(2))
            GridBarrier(1)
            Declare(FragmentId(3))
            reduce parts of Region(RegionId(2))
            store to 2
        "#]]
        .assert_eq(&outline(&after.body));
        let Some(Statement::Store(store)) = after.body.last() else {
            panic!("nothing is stored");
        };
        assert!(!store.alone);
        // Of 16 coordinates, 4 apart, each block has 4.
        expect!["1:2@1 0:4@4|1:32@2|0:4@1|0:4@16"].assert_eq(&store.held.to_string());
        assert_eq!(after.fragments[3].holds, Holds::Floats(store.held.clone()));
    }

    #[test]
    fn the_first_block_goes_on_where_nothing_can_be_shared_out() {
        let after = distributed(grouped("LastGoesOn, USE, STORE"), &target());
        expect![[r#"
            store a part to Region(RegionId(2))
            GridBarrier(1)
            if FirstBlock
              reduce parts of Region(RegionId(2))
              f0 from [Fragment(FragmentId(2)), Constant(1.0)]
              store to 2
        "#]]
        .assert_eq(&outline(&after.expect("is possible").body));
    }

    #[test]
    fn what_is_no_cluster_is_refused() {
        let refused = |machine: Machine| distributed(machine, &target()).expect_err("refused");
        expect!["schedule: sample: no blocks make a result together, which could be a cluster"]
            .assert_eq(&refused(machine("STORE")).to_string());
        let mut large = grouped("GridBarrier(1), STORE");
        if let Some(group) = &mut large.block_group {
            group.size = 9;
        }
        expect!["schedule: sample: a cluster of 9 blocks, where 8 are possible"]
            .assert_eq(&refused(large).to_string());
    }
}

//! Places the waits for copies of the threads that compute, where no ring waits for them.
//!
//! ```text
//! before                 after
//!   Copy(s0)               Copy(s0)
//!   CopyCommit             CopyCommit
//!   Map(f0, …)             Map(f0, …)
//!   Multiply(s0)           CopyWait(0)
//!                          Multiply(s0)
//! ```
//!
//! A wait stands in front of the first statement that touches what a copy is still writing, or in front of the outermost loop or branch around
//! it that is not around the copy; and all is gone through again. In block groups, of which some blocks may have no iteration of the loop that would have waited,
//! one more wait stands at the end where copies are left under way. It is always legal.

use super::trace::{self, Event, Memory, Place, What};
use super::{Insertions, insert};
use crate::machine::{Machine, Statement, Sync};
use std::collections::{BTreeMap, BTreeSet};

/// The machine program with all waits for copies that it needs.
pub(crate) fn copies(mut machine: Machine) -> Machine {
    let traces = trace::all(&machine);
    let mut needed = BTreeSet::new();
    for events in &traces {
        // Each time one place more, of as many as there are statements.
        while let Err(place) = waited_for(events, &needed) {
            needed.insert(place);
        }
    }
    let grouped = machine.block_group.is_some();
    let left = grouped && traces.iter().any(|t| waited_for(t, &needed) == Ok(false));
    let mut insertions = Insertions::default();
    for place in needed {
        insertions.before(place, [Statement::Sync(Sync::CopyWait(0))]);
    }
    insert(&mut machine.body, insertions);
    let end = left.then_some(Statement::Sync(Sync::CopyWait(0)));
    machine.body.extend(end);
    machine
}

/// A copy that is under way.
struct Copied<'a> {
    from: u64,
    to: u64,
    around: &'a [Place],
}

/// Whether all copies are waited for with waits in front of some statements.
///
/// # Errors
/// Where the first one is missing beside these: something is touched that a copy is still writing.
fn waited_for(events: &[Event], waits: &BTreeSet<Place>) -> Result<bool, Place> {
    let mut copies: BTreeMap<usize, Copied<'_>> = BTreeMap::new();
    for event in events {
        match &event.what {
            What::Statement if waits.contains(&event.place) => copies.clear(),
            What::Statement | What::Barrier | What::Wait | What::Leave(_) => {}
            What::End(numbers) => copies.retain(|number, _| !numbers.contains(number)),
            What::Access {
                memory: Memory::Filled { .. },
                ..
            } => {}
            What::Access {
                number,
                memory: Memory::Bytes { from, to },
                writes,
                ends,
            } => {
                let under = copies.values().find(|c| c.from < *to && *from < c.to);
                if let Some(copy) = under {
                    let outside = event.around.iter().find(|c| !copy.around.contains(c));
                    return Err(outside.copied().unwrap_or(event.place));
                }
                if *writes && !*ends {
                    let copy = Copied {
                        from: *from,
                        to: *to,
                        around: &event.around,
                    };
                    copies.insert(*number, copy);
                }
            }
        }
    }
    Ok(copies.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    fn after(body: &str) -> String {
        waiting(machine(body))
    }

    fn waiting(mut machine: Machine) -> String {
        machine.regions[1].offset = 8192;
        outline(&copies(machine).body)
    }

    #[test]
    fn copies_are_waited_for_where_they_are_read() {
        expect![[r#"
            copy to s0 At(0) by 4 warps
            Sync(CopyCommit)
            copy to s1 At(0) by 4 warps
            Sync(CopyCommit)
            f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            Sync(CopyWait(0))
            read s0 At(0)
            read s1 At(0)
            store to 2
        "#]]
        .assert_eq(&after(
            "COPY0, LANDS, COPY1, LANDS, USE, FETCH0, FETCH1, STORE",
        ));
        // The second copy is of the first one's bytes, and a loop is waited in front of.
        expect![[r#"
            copy to s0 At(0) by 4 warps
            Sync(CopyCommit)
            range of 0
            loop 0
              tile Now(0)
              copy to s1 At(0) by 4 warps
              Sync(CopyCommit)
              Sync(CopyWait(0))
              read s1 At(0)
              read s0 At(0)
        "#]]
        .assert_eq(&after(
            "COPY0, LANDS, RANGE, Loop(number: 0, body: [HERE, COPY1, LANDS, FETCH1, FETCH0])",
        ));
        expect![[r#"
            copy to s0 At(0) by 4 warps
            Sync(CopyCommit)
            copy to s1 At(0) by 4 warps
            Sync(CopyCommit)
            Sync(CopyWait(0))
            read s1 At(0)
            copy to s1 At(0) by 4 warps
            Sync(CopyCommit)
            f0 from [Fragment(FragmentId(2)), Constant(1.0)]
            Sync(CopyWait(0))
            read s1 At(0)
        "#]]
        .assert_eq(&after(
            "COPY0, LANDS, COPY1, LANDS, FETCH1, COPY1, LANDS, USE, FETCH1",
        ));
    }

    #[test]
    fn blocks_of_a_group_leave_nothing_under_way() {
        let mut before = machine(
            "COPY0, LANDS, RANGE, Loop(number: 0, body: [HERE, COPY1, LANDS, FETCH1, FETCH0])",
        );
        let alone = waiting(before.clone());
        before.block_group = Some(crate::machine::BlockGroup {
            size: 2,
            waits: false,
            grid_barriers: 1,
        });
        assert_eq!(waiting(before), format!("{alone}Sync(CopyWait(0))\n"));
    }
}

//! Makes what threads write to shared memory visible to warpgroup instructions, which read it through another proxy.
//!
//! ```text
//! before                 after
//!   Publish(s0, f0)        Publish(s0, f0)
//!   Issue(s0)              ProxyFence
//!                          Issue(s0)
//! ```
//!
//! A fence stands behind each statement that writes what such an instruction reads as it is, and where copies of it have landed. It holds for
//! the thread that executes it, so the barrier that the two accesses need comes behind it. It is always legal.

use crate::machine::{Machine, RegionId, Rows, Statement, Sync};
use std::collections::BTreeSet;

/// The machine program with the fences that it needs. Warps that only fill rings have their own.
pub(crate) fn fences(mut machine: Machine) -> Machine {
    let (mut read, mut copied) = (BTreeSet::new(), BTreeSet::new());
    regions(&machine.body, &mut read, &mut copied);
    let lands = copied.intersection(&read).next().is_some();
    place(&mut machine.body, &read, lands);
    machine
}

/// What warpgroup instructions read, and what threads copy.
fn regions(body: &[Statement], read: &mut BTreeSet<RegionId>, copied: &mut BTreeSet<RegionId>) {
    for statement in body {
        if let Statement::Issue(issue) = statement {
            read.insert(issue.b.region);
            if let Rows::SwizzleAtoms(a) = &issue.a {
                read.insert(a.region);
            }
        } else if let Statement::Copy(copy) = statement {
            copied.insert(copy.region);
        }
        for inside in statement.lists() {
            regions(inside, read, copied);
        }
    }
}

fn place(body: &mut Vec<Statement>, read: &BTreeSet<RegionId>, lands: bool) {
    for mut statement in std::mem::take(body) {
        for inside in statement.lists_mut() {
            place(inside, read, lands);
        }
        let needed = if let Statement::Sync(Sync::CopyWait(_)) = statement {
            lands
        } else if let Statement::Publish { region, .. } = &statement {
            read.contains(region)
        } else if let Statement::Split(split) = &statement {
            split.to.iter().any(|r| read.contains(r))
        } else if let Statement::Copy(copy) = &statement {
            // What is copied through registers has been written behind the statement.
            !copy.background && read.contains(&copy.region)
        } else {
            false
        };
        body.push(statement);
        if needed {
            body.push(Statement::Sync(Sync::ProxyFence));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    #[test]
    fn what_threads_write_is_fenced_where_instructions_read_it() {
        let after = fences(machine(
            "COPY0, LANDS, Sync(CopyWait(0)), PUBLISH1, ISSUE1, GROUP, WAIT0, FETCH0",
        ));
        expect![[r#"
            copy to s0 At(0) by 4 warps
            Sync(CopyCommit)
            Sync(CopyWait(0))
            write s1
            Sync(ProxyFence)
            issue of s1 At(0)
            Sync(Commit)
            Sync(Wait(0))
            read s0 At(0)
        "#]]
        .assert_eq(&outline(&after.body));
        let text = machine("COPY0, LANDS, ISSUE0, GROUP, WAIT0").to_string();
        let by_registers = text.replace("background: true", "background: false");
        let after = fences(by_registers.parse().expect("a machine program"));
        expect![[r#"
            copy to s0 At(0) by 4 warps
            Sync(ProxyFence)
            Sync(CopyCommit)
            issue of s0 At(0)
            Sync(Commit)
            Sync(Wait(0))
        "#]]
        .assert_eq(&outline(&after.body));
        let after = fences(machine(
            "COPY0, LANDS, Sync(CopyWait(0)), PUBLISH1, ISSUE0, GROUP, WAIT0",
        ));
        expect![[r#"
            copy to s0 At(0) by 4 warps
            Sync(CopyCommit)
            Sync(CopyWait(0))
            Sync(ProxyFence)
            write s1
            issue of s0 At(0)
            Sync(Commit)
            Sync(Wait(0))
        "#]]
        .assert_eq(&outline(&after.body));
    }
}

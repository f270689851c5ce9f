//! Lets groups of four warps take turns at the tensor cores, where a loop issues a contraction an iteration late.
//!
//! ```text
//! before                     after
//!                              If(last group) TurnPass(first)
//!   Loop                       Loop
//!     Issue(s)                   TurnWait(own)
//!     If(not first)              Issue(s)
//!       Issue(o)                 If(not first)
//!                                  Issue(o)
//!                                  TurnPass(next)
//!                                else
//!                                  TurnPass(next)
//!                              If(first group) TurnWait(first)
//! ```
//!
//! While one group computes on what it has, another one multiplies. It is legal where warps of their own fill the ring of the loop, since nothing
//! else holds its groups together; with one group, or without such a contraction, nothing changes.

use super::{Apply, Behind, Pass, issues_delayed};
use crate::machine::{Condition, LoopId, Machine, Statement, Sync, Turn};
use ir::{Form, KernelSchedule, Step};

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "turns",
        parts: &[],
        required: false,
        help: "groups of four warps take turns at the tensor cores",
    },
    behind: &[
        Behind::needs("delayed", "turns are taken at what is delayed"),
        Behind::needs(
            "roles",
            "only where warps of their own copy nothing else holds groups together",
        ),
    ],
    apply: Apply::Statements(|machine, _, _, _| Ok(turns(machine))),
};

/// Groups of four warps take turns at the tensor cores.
pub fn step() -> Step {
    Step::new(&PASS.form, [])
}

/// Whether they do.
pub fn of(schedule: &KernelSchedule) -> bool {
    schedule.says(&PASS.form)
}

/// The machine program whose groups take turns.
pub(crate) fn turns(mut machine: Machine) -> Machine {
    let groups = machine.groups();
    let fed = machine.rings.first().map(|r| r.counter.number);
    let (Some(number), true) = (fed, groups > 1) else {
        return machine;
    };
    list(&mut machine.body, number, groups);
    machine
}

/// Finds the loop, and says whether its groups take turns now.
fn list(body: &mut Vec<Statement>, wanted: LoopId, groups: u64) -> bool {
    for at in 0..body.len() {
        if let Statement::Loop { number, body: own } = &mut body[at]
            && *number == wanted
        {
            if !issues_delayed(own, wanted) {
                return false;
            }
            inside(own, wanted);
            let of = |group: u64, sync: Sync| Statement::If {
                condition: Condition::Group(group),
                then: vec![Statement::Sync(sync)],
                otherwise: Vec::new(),
            };
            body.insert(at + 1, of(0, Sync::TurnWait(Turn::First)));
            body.insert(at, of(groups - 1, Sync::TurnPass(Turn::First)));
            return true;
        }
        for inside in body[at].lists_mut() {
            if list(inside, wanted, groups) {
                return true;
            }
        }
    }
    false
}

/// A turn goes from the contraction in front of the late one to where that is issued.
fn inside(body: &mut Vec<Statement>, number: LoopId) -> bool {
    let issues = |s: &Statement| matches!(s, Statement::Issue(_));
    for at in 0..body.len() {
        if let Statement::If {
            condition: Condition::NotFirst(n),
            then,
            otherwise,
        } = &mut body[at]
            && *n == number
            && then.iter().any(issues)
        {
            let pass = || Statement::Sync(Sync::TurnPass(Turn::Next));
            then.push(pass());
            otherwise.push(pass());
            let leads = body[..at].iter().rposition(issues).unwrap_or(at);
            body.insert(leads, Statement::Sync(Sync::TurnWait(Turn::Own)));
            return true;
        }
        for list in body[at].lists_mut() {
            if inside(list, number) {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    #[test]
    fn groups_take_turns() {
        let text = "RANGE, Loop(number: 0, body: [HERE, Scope([LEADS, If(condition: NotFirst(0), \
             then: [ADDED], otherwise: [])])])";
        let mut before = machine(text);
        before.rings = serde_json::from_str(
            r#"[{"counter": {"number": 0, "delayed": false}, "regions": ["s0"], "stages": 2, "readers": 1, "barriers": 0}]"#,
        )
        .expect("rings");
        let one = before.clone();
        assert_eq!(
            turns(one.clone()),
            one,
            "one group has nobody to take turns with"
        );
        before.warps = [8, 1];
        let after = turns(before);
        expect![[r#"
            range of 0
            if Group(1)
              Sync(TurnPass(First))
            loop 0
              tile Now(0)
              scope
                Sync(TurnWait(Own))
                issue of s0 At(0) and s0 At(0)
                if NotFirst(0)
                  issue of s1 Previous(0)
                  Sync(TurnPass(Next))
                  Sync(TurnPass(Next))
            if Group(0)
              Sync(TurnWait(First))
        "#]]
        .assert_eq(&outline(&after.body));
    }
}

//! How often blocks meet: once for all that they can reduce together.
//!
//! ```text
//! before                          after
//!   sum = reduce_sum(x; part)       scaled = mul(y, factor)
//!   scaled = mul(y, factor)         sum = reduce_sum(x; part)
//!   all = reduce_sum(scaled; part)  all = reduce_sum(scaled; part)
//! ```
//!
//! Reductions across blocks share a meeting where everything that they reduce is there before the first of them ([`Kernel::grid_barriers`]). So what a later
//! one needs comes first, if it needs none of the earlier ones itself. Nothing else moves: it would be held for longer.

use ir::{AxisSet, Kernel, Statement, ValueId};
use std::collections::BTreeSet;

/// Puts what reductions across blocks need in front of the first with which they may share a meeting.
pub(super) fn meet_once(kernel: &mut Kernel) {
    let group = kernel.block_group();
    if group.is_empty() {
        return;
    }
    let levels = levels(kernel, &group);
    let level = |v: ValueId| levels[v.index()];
    let mut rest = std::mem::take(&mut kernel.body);
    let mut body = Vec::new();
    while let Some(at) = rest
        .iter()
        .position(|s| across(kernel, s, &group).is_some())
    {
        let behind = rest.split_off(at);
        body.append(&mut rest);
        let own = across(kernel, &behind[0], &group).map(level);
        let meets =
            |s: &Statement| across(kernel, s, &group).is_some_and(|v| Some(level(v)) == own);
        let mut needed: BTreeSet<ValueId> = behind
            .iter()
            .filter(|s| meets(s))
            .filter_map(|s| across(kernel, s, &group))
            .collect();
        let mut early = vec![false; behind.len()];
        for (statement, early) in behind.iter().zip(&mut early).rev() {
            let mut made = Vec::new();
            defined(statement, &mut made);
            if across(kernel, statement, &group).is_none()
                && made.iter().any(|v| needed.contains(v))
            {
                *early = true;
                read(kernel, statement, &mut needed);
            }
        }
        let (mut first, mut meeting) = (Vec::new(), Vec::new());
        for (statement, early) in behind.into_iter().zip(early) {
            if early {
                first.push(statement);
            } else if meets(&statement) {
                meeting.push(statement);
            } else {
                rest.push(statement);
            }
        }
        body.extend(first.into_iter().chain(meeting));
    }
    body.extend(rest);
    kernel.body = body;
}

/// What a statement reduces across blocks, if it is such a reduction.
fn across(kernel: &Kernel, statement: &Statement, group: &AxisSet) -> Option<ValueId> {
    let Statement::Let(v) = statement else {
        return None;
    };
    let reduction = kernel.reduction(*v)?;
    reduction.axes.intersects(group).then_some(reduction.value)
}

/// By value, how many reductions across blocks it needs one after another.
fn levels(kernel: &Kernel, group: &AxisSet) -> Vec<u32> {
    let mut levels = vec![0; kernel.values.len()];
    for statement in &kernel.body {
        let mut needed = BTreeSet::new();
        read(kernel, statement, &mut needed);
        let below = needed.iter().map(|v| levels[v.index()]).max().unwrap_or(0);
        let own = below + u32::from(across(kernel, statement, group).is_some());
        let mut made = Vec::new();
        defined(statement, &mut made);
        for v in made {
            levels[v.index()] = own;
        }
    }
    levels
}

/// The values that are there behind a statement and were not before, and those inside.
fn defined(statement: &Statement, all: &mut Vec<ValueId>) {
    match statement {
        Statement::Let(v) => all.push(*v),
        Statement::Store { .. } => {}
        Statement::Loop(l) => {
            all.extend(l.carries.iter().flat_map(|c| [c.phi, c.result]));
            l.body.iter().for_each(|s| defined(s, all));
        }
    }
}

/// The values that a statement reads, those inside it included.
fn read(kernel: &Kernel, statement: &Statement, all: &mut BTreeSet<ValueId>) {
    match statement {
        Statement::Let(v) => all.extend(kernel.value(*v).op.operands()),
        Statement::Store { value, .. } => {
            all.insert(*value);
        }
        Statement::Loop(l) => {
            all.extend(l.carries.iter().map(|c| c.next));
            l.body.iter().for_each(|s| read(kernel, s, all));
        }
    }
}

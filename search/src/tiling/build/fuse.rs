//! When may a reduction share the loop of reductions that it uses?

use super::Corrections;
use super::bounds;
use super::inner::{InnerId, Lowering, Substitution};
use super::reach;
use crate::corrections::{Correction, Term};
use ir::{NodeId, Op, ReduceOp};
use std::collections::BTreeSet;

/// How a reduction shares a loop with reductions that it uses.
#[derive(Clone, Debug)]
pub(super) struct Fused {
    /// The reductions whose running values it sees, as the correction numbers them.
    pub(super) provisional: Vec<InnerId>,
    /// What makes its running value right when theirs change.
    pub(super) correction: Correction,
    /// The substitution under which the correction's leaves are to be read.
    pub(super) by: Substitution,
    /// The provisional sums that are to be 1 while they are 0.
    pub(super) nonzero: BTreeSet<InnerId>,
}

/// The correction of `reduction` for provisional values of `provisional`, if the expression proves one.
pub(super) fn fuse(
    lowering: &mut Lowering<'_>,
    reduction: InnerId,
    provisional: &[InnerId],
    corrections: &mut Corrections,
) -> Option<Fused> {
    let (node, by) = lowering.origins.get(&reduction)?.clone();
    let program = lowering.program();
    let (Op::Reduce { axes, .. } | Op::Dot { axes }) = &program.node(node).op else {
        return None;
    };
    // Every path from the reduction to a provisional value must be one that the correction sees.
    let mut nodes: Vec<(NodeId, InnerId)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut stack = program.node(node).args.clone();
    let mut hidden = BTreeSet::new();
    while let Some(n) = stack.pop() {
        if !seen.insert(n) {
            continue;
        }
        if lowering.is_source(n) {
            hidden.insert(n);
            continue;
        }
        match &program.node(n).op {
            Op::View { .. } => {
                // Below a view the coordinates differ; none of it may depend on a provisional value.
                let value = lowering.lowered(n, &by)?;
                let below = reach::order(&lowering.arena, [value]);
                if below.iter().any(|b| provisional.contains(b)) {
                    return None;
                }
                hidden.insert(n);
                continue;
            }
            Op::Reduce { .. } | Op::Dot { .. } => {
                let value = lowering.lowered(n, &by)?;
                if provisional.contains(&value) {
                    nodes.push((n, value));
                    continue;
                }
            }
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::Map(_) => {}
        }
        stack.extend(&program.node(n).args);
    }
    if !provisional.iter().all(|p| nodes.iter().any(|n| n.1 == *p)) {
        return None;
    }
    // What is read or viewed counts as given: the expression must not connect it to a provisional value either.
    let provided: BTreeSet<NodeId> = nodes.iter().map(|n| n.0).collect();
    let mut below = BTreeSet::new();
    let mut stack: Vec<NodeId> = hidden.into_iter().collect();
    while let Some(n) = stack.pop() {
        if provided.contains(&n) {
            return None;
        }
        if below.insert(n) {
            stack.extend(&program.node(n).args);
        }
    }
    // A running product has no correction, and is anything on its way: large before it is small.
    let of = |p: &InnerId| lowering.arena.get(*p).reduction().map(|r| r.0);
    if provisional.iter().any(|p| of(p) == Some(ReduceOp::Product)) {
        return None;
    }
    // A running sum starts at 0, by which nothing can be divided. A correction holds for any provisional value: 1 will do.
    let sums: BTreeSet<InnerId> = provisional
        .iter()
        .copied()
        .filter(|p| {
            let reduction = lowering.arena.get(*p).reduction();
            reduction.is_some_and(|r| r.0 == ReduceOp::Sum)
        })
        .collect();
    if bounds::exponential_of(&lowering.arena, reduction, &sums) {
        return None;
    }
    let nonzero = if bounds::singular_at_zero(&lowering.arena, reduction, &sums) {
        sums
    } else {
        BTreeSet::new()
    };
    nodes.sort();
    let ids: Vec<NodeId> = nodes.iter().map(|n| n.0).collect();
    let correction = corrections.derive(program, node, axes, &ids)?;
    for term in &correction.terms {
        if let Term::Leaf(leaf) = term {
            lowering.lower(*leaf, &by).ok()?;
        }
    }
    Some(Fused {
        provisional: nodes.iter().map(|n| n.1).collect(),
        correction,
        by,
        nonzero,
    })
}

//! Which values are stored between kernels.

use crate::build::Cuts;
use ir::{AxisSet, Dtype, NodeId, Op, Program};
use std::collections::{BTreeMap, BTreeSet};

/// Every node that some output needs, arguments before users.
pub fn reachable(program: &Program) -> Vec<NodeId> {
    below(program, program.outputs.iter().map(|o| o.value), |_| false)
        .into_iter()
        .collect()
}

/// The nodes at or below the roots; what `stop` holds for is included, what is below it is not.
fn below(
    program: &Program,
    roots: impl IntoIterator<Item = NodeId>,
    stop: impl Fn(NodeId) -> bool,
) -> BTreeSet<NodeId> {
    let mut seen = BTreeSet::new();
    let mut stack: Vec<NodeId> = roots.into_iter().collect();
    while let Some(n) = stack.pop() {
        if seen.insert(n) && !stop(n) {
            stack.extend(&program.node(n).args);
        }
    }
    seen
}

/// Whether a node reduces something.
pub fn is_reduction(program: &Program, node: NodeId) -> bool {
    match program.node(node).op {
        Op::Reduce { .. } | Op::Dot { .. } => true,
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => {
            false
        }
    }
}

/// One kernel a reduction or contraction, element-wise work in the kernels that use it: always buildable.
pub fn plain(program: &Program) -> Cuts {
    let stored = reachable(program)
        .into_iter()
        .filter(|n| is_reduction(program, *n))
        .collect();
    cut(program, &stored)
}

/// As [`plain`], with every computed value that a view reads or that has several users stored as well: no kernel
/// computes anything twice.
pub fn plainest(program: &Program) -> Cuts {
    let all = reachable(program);
    let mut users: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut stored = BTreeSet::new();
    for n in &all {
        let node = program.node(*n);
        for a in &node.args {
            *users.entry(*a).or_default() += 1;
            if matches!(node.op, Op::View { .. }) && !is_leaf(program, *a) {
                stored.insert(*a);
            }
        }
        if is_reduction(program, *n) {
            stored.insert(*n);
        }
    }
    stored.extend(
        users
            .iter()
            .filter(|(n, count)| **count > 1 && !is_leaf(program, **n))
            .map(|(n, _)| *n),
    );
    cut(program, &stored)
}

/// One kernel an operation: every value is stored.
pub fn single(program: &Program) -> Cuts {
    let stored = reachable(program)
        .into_iter()
        .filter(|n| !is_leaf(program, *n))
        .collect();
    ungrouped(&cut(program, &stored))
}

fn is_leaf(program: &Program, node: NodeId) -> bool {
    match program.node(node).op {
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) => true,
        Op::View { .. } | Op::Map(_) | Op::Reduce { .. } | Op::Dot { .. } => false,
    }
}

/// The values whose storing is worth a thought: reductions, and values with several users, that some output needs.
pub fn points(program: &Program) -> Vec<NodeId> {
    let all = reachable(program);
    let outputs: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    let mut users: BTreeMap<NodeId, usize> = BTreeMap::new();
    for n in &all {
        for a in &program.node(*n).args {
            *users.entry(*a).or_default() += 1;
        }
    }
    all.into_iter()
        .filter(|n| {
            let depends = is_reduction(program, *n)
                || (users.get(n).copied().unwrap_or(0) > 1
                    && !is_leaf(program, *n)
                    && below(program, [*n], |_| false)
                        .iter()
                        .any(|b| is_reduction(program, *b)));
            depends && !outputs.contains(n)
        })
        .collect()
}

/// The kernels when these values and the outputs are stored: one kernel a value, except that outputs which share a
/// reduction share a kernel.
pub fn cut(program: &Program, stored: &BTreeSet<NodeId>) -> Cuts {
    cut_by(program, stored, |n| is_reduction(program, n))
}

/// As [`cut`], where outputs over the same axes share a kernel if they read the same parameter.
pub fn cut_sharing(program: &Program, stored: &BTreeSet<NodeId>) -> Cuts {
    cut_by(program, stored, |n| {
        is_reduction(program, n) || matches!(program.node(n).op, Op::Parameter { .. })
    })
}

fn cut_by(program: &Program, stored: &BTreeSet<NodeId>, joins: impl Fn(NodeId) -> bool) -> Cuts {
    let outputs: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    let roots: BTreeSet<NodeId> = stored.union(&outputs).copied().collect();
    let mut kernels: Vec<Vec<NodeId>> = Vec::new();
    for root in &roots {
        let inside = below(program, program.node(*root).args.clone(), |n| {
            roots.contains(&n)
        });
        let shared = |group: &Vec<NodeId>| {
            let theirs = below(
                program,
                group.iter().flat_map(|g| program.node(*g).args.clone()),
                |n| roots.contains(&n),
            );
            inside
                .iter()
                .any(|n| !roots.contains(n) && theirs.contains(n) && joins(*n))
        };
        let needs: AxisSet = program.node(*root).axes.clone();
        // A group that this root may join: everything that the root reads is stored before or inside the group.
        let at = kernels.iter().enumerate().position(|(i, group)| {
            let reads_ok = inside
                .iter()
                .filter(|n| roots.contains(n))
                .all(|n| kernels[..=i].iter().any(|k| k.contains(n)));
            let together = outputs.contains(root) && group.iter().all(|g| outputs.contains(g));
            let overlap = group.iter().all(|g| {
                program.node(*g).axes.is_subset(&needs) || needs.is_subset(&program.node(*g).axes)
            });
            together && reads_ok && overlap && shared(group)
        });
        match at {
            Some(i) => kernels[i].push(*root),
            None => kernels.push(vec![*root]),
        }
    }
    Cuts {
        kernels,
        narrow: BTreeMap::new(),
    }
}

/// The stored values that a kernel reads.
pub fn reads(program: &Program, roots: &[NodeId], cuts: &Cuts) -> Vec<NodeId> {
    let stored: BTreeSet<NodeId> = cuts
        .kernels
        .iter()
        .take_while(|k| k.as_slice() != roots)
        .flatten()
        .copied()
        .collect();
    below(program, roots.to_vec(), |n| stored.contains(&n))
        .into_iter()
        .filter(|n| stored.contains(n))
        .collect()
}

/// The cuts with stored values that contractions read kept in the 16-bit dtype of the parameters, if there is one.
pub fn narrowed(program: &Program, cuts: &Cuts) -> Cuts {
    let half = program.parameters().map(|p| p.2).find(|d| *d != Dtype::F32);
    let mut cuts = cuts.clone();
    let Some(half) = half else { return cuts };
    let stored: BTreeSet<NodeId> = cuts.kernels.iter().flatten().copied().collect();
    for n in reachable(program) {
        if !matches!(program.node(n).op, Op::Dot { .. }) {
            continue;
        }
        for a in &program.node(n).args {
            let mut source = *a;
            while let (Op::View { .. }, [below]) = (
                &program.node(source).op,
                program.node(source).args.as_slice(),
            ) {
                source = *below;
            }
            if stored.contains(&source) && !is_leaf(program, source) {
                cuts.narrow.insert(source, half);
            }
        }
    }
    cuts
}

/// The same stored values with every kernel storing one.
pub fn ungrouped(cuts: &Cuts) -> Cuts {
    let mut kernels: Vec<Vec<NodeId>> = cuts.kernels.iter().flatten().map(|n| vec![*n]).collect();
    kernels.sort();
    Cuts {
        kernels,
        narrow: cuts.narrow.clone(),
    }
}

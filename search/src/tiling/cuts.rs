//! Which values are stored between kernels.

use crate::tiling::build::{self, Cuts};
use ir::{AxisId, AxisSet, Dtype, NodeId, Op, Program};
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

/// The values whose storing is worth a thought, that some output needs: reductions, values with several users, what reductions read
/// that several reductions go into, and what contractions read that is computed from any: each of their blocks would compute it. What is computed
/// and read at several places, which would be computed once for each of them. Parameters that a product would read from another order of memory. And
/// computed places, which bounds can read where they are stored. Views that 16-bit contractions read of what others read wider.
pub fn points(program: &Program) -> Vec<NodeId> {
    let all = reachable(program);
    let reordered = build::reordered(program);
    let apart = read_apart(program);
    let places = build::places(program);
    let shown = shown_to_products(program);
    let outputs: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    let mut users: BTreeMap<NodeId, usize> = BTreeMap::new();
    for n in &all {
        for a in &program.node(*n).args {
            *users.entry(*a).or_default() += 1;
        }
    }
    let mut joined = BTreeSet::new();
    for n in all.iter().map(|n| program.node(*n)) {
        let few = match n.op {
            Op::Dot { .. } => 0,
            Op::Reduce { .. } => 1,
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => {
                continue;
            }
        };
        let read = n.args.iter().map(|a| viewed(program, *a));
        joined.extend(
            read.filter(|a| !is_reduction(program, *a) && reductions_into(program, *a) > few),
        );
    }
    all.into_iter()
        .filter(|n| {
            let depends = is_reduction(program, *n)
                || joined.contains(n)
                || ((users.get(n).copied().unwrap_or(0) > 1 || places.contains(n))
                    && !is_leaf(program, *n)
                    && below(program, [*n], |_| false)
                        .iter()
                        .any(|b| is_reduction(program, *b)));
            let reordered = reordered.iter().any(|set| set.contains(n));
            (depends || reordered || apart.contains(n) || shown.contains(n)) && !outputs.contains(n)
        })
        .collect()
}

/// What is computed and read at several places, by a view and something else, where nothing below reduces: of one, and not of a reduction, there would be
/// as many copies.
fn read_apart(program: &Program) -> BTreeSet<NodeId> {
    let mut readers: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut viewed = BTreeSet::new();
    let mut reduced = BTreeSet::new();
    for n in reachable(program) {
        let node = program.node(n);
        for read in &node.args {
            *readers.entry(*read).or_default() += 1;
        }
        if matches!(node.op, Op::View { .. }) {
            viewed.extend(&node.args);
        }
        // Arguments come before users.
        if is_reduction(program, n) || node.args.iter().any(|a| reduced.contains(a)) {
            reduced.insert(n);
        }
    }
    let apart = viewed.into_iter().filter(|n| readers[n] > 1);
    apart
        .filter(|n| !is_leaf(program, *n) && !reduced.contains(n))
        .collect()
}

/// The points that are stored where a search begins: fewer of them may be better, but without them one kernel may be too much.
pub fn first(program: &Program, points: &[NodeId]) -> BTreeSet<NodeId> {
    let apart = read_apart(program);
    let stored = points.iter().copied();
    let stored = stored.filter(|n| is_reduction(program, *n) || apart.contains(n));
    stored.collect()
}

/// What views of a value show.
fn viewed(program: &Program, node: NodeId) -> NodeId {
    shown(program, node, &BTreeSet::new())
}

/// What views of a value show, or the first of these views that is stored.
fn shown(program: &Program, mut node: NodeId, stored: &BTreeSet<NodeId>) -> NodeId {
    while let (false, Op::View { .. }, [below]) = (
        stored.contains(&node),
        &program.node(node).op,
        program.node(node).args.as_slice(),
    ) {
        node = *below;
    }
    node
}

/// The dtype that is asked of each value where it is an operand, directly or through views that are not stored: that of contractions, f32 of
/// all else. None where no reader asks.
fn asked(program: &Program, stored: &BTreeSet<NodeId>) -> BTreeMap<NodeId, Option<Dtype>> {
    let dtypes = program.dtypes();
    let mut asked = BTreeMap::new();
    for n in reachable(program) {
        let own = match program.node(n).op {
            Op::View { .. } if !stored.contains(&n) => continue,
            Op::View { .. }
            | Op::Parameter { .. }
            | Op::Constant(_)
            | Op::Iota(_)
            | Op::Map(_)
            | Op::Reduce { .. } => Some(Dtype::F32),
            Op::Dot { .. } => dtypes[n.index()],
        };
        for a in &program.node(n).args {
            let dtype = asked.entry(shown(program, *a, stored)).or_insert(own);
            *dtype = Dtype::joined(*dtype, own);
        }
    }
    asked
}

/// Views that contractions of 16-bit operands read of computed values that something else reads in f32: stored by themselves, they can be kept in
/// the contractions' dtype. Not those that are larger than what they show.
fn shown_to_products(program: &Program) -> BTreeSet<NodeId> {
    let dtypes = program.dtypes();
    let outputs = program.outputs.iter().map(|o| o.value).collect();
    let asked = asked(program, &outputs);
    let volume = |n: NodeId| program.node(n).axes.iter().map(|a| program.extent(a));
    let volume = |n: NodeId| volume(n).fold(1, u64::saturating_mul);
    let contractions = reachable(program).into_iter().filter(|n| {
        let narrow = dtypes[n.index()].is_some_and(|d| d.lost_digits() > 0);
        narrow && matches!(program.node(*n).op, Op::Dot { .. })
    });
    let operands = contractions.flat_map(|n| program.node(n).args.clone());
    operands
        .filter(|n| {
            let source = viewed(program, *n);
            source != *n
                && !is_leaf(program, source)
                && asked.get(&source) == Some(&Some(Dtype::F32))
                && volume(*n) <= volume(source)
        })
        .collect()
}

/// The reductions that a value is computed from without another reduction between.
fn reductions_into(program: &Program, node: NodeId) -> usize {
    below(program, [node], |n| is_reduction(program, n))
        .into_iter()
        .filter(|n| is_reduction(program, *n))
        .count()
}

/// Larger steps from one set of stored values to others, each of which takes several values at once:
///
/// * of the stored values that vary or are reduced over one axis, only those stay that no other one of them needs;
/// * a value is stored in place of all stored values that only it needs.
pub fn steps(
    program: &Program,
    points: &[NodeId],
    stored: &BTreeSet<NodeId>,
) -> Vec<BTreeSet<NodeId>> {
    let mut found = Vec::new();
    let reduced = |n: NodeId| match &program.node(n).op {
        Op::Reduce { axes, .. } | Op::Dot { axes, .. } => axes.clone(),
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => {
            AxisSet::new()
        }
    };
    for axis in (0..program.axes.len() as u32).map(AxisId) {
        let over: Vec<NodeId> = stored
            .iter()
            .copied()
            .filter(|n| program.node(*n).axes.contains(axis) || reduced(*n).contains(axis))
            .collect();
        let needed: BTreeSet<NodeId> = over
            .iter()
            .flat_map(|n| below(program, program.node(*n).args.clone(), |_| false))
            .collect();
        found.push(
            stored
                .iter()
                .copied()
                .filter(|n| !(over.contains(n) && needed.contains(n)))
                .collect(),
        );
    }
    let outputs: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    for point in points.iter().filter(|p| !stored.contains(p)) {
        let ends = |n: NodeId| n == *point || stored.contains(&n) || outputs.contains(&n);
        let needs = |root: NodeId| below(program, program.node(root).args.clone(), ends);
        let inside = needs(*point);
        let others = stored.union(&outputs).copied();
        // What the point alone needs does not count as another's need: its kernel would compute that.
        let elsewhere: BTreeSet<NodeId> = others
            .filter(|r| !inside.contains(r) || outputs.contains(r))
            .flat_map(needs)
            .collect();
        let mut set: BTreeSet<NodeId> = stored
            .iter()
            .copied()
            .filter(|n| !inside.contains(n) || elsewhere.contains(n))
            .collect();
        set.insert(*point);
        found.push(set);
    }
    // One operand in another order is of little use.
    for operands in build::reordered(program) {
        found.push(stored.union(&operands).copied().collect());
        found.push(stored.difference(&operands).copied().collect());
    }
    found.retain(|set| set != stored);
    found
}

/// The kernels when these values and the outputs are stored: one kernel a value, except that outputs which share a
/// reduction share a kernel.
pub fn cut(program: &Program, stored: &BTreeSet<NodeId>) -> Cuts {
    cut_with(program, stored, Sharing::Joins, |n| {
        is_reduction(program, n)
    })
}

/// As [`cut`], where outputs over the same axes share a kernel if they read the same parameter, or one reads the other.
pub fn cut_sharing(program: &Program, stored: &BTreeSet<NodeId>) -> Cuts {
    cut_with(program, stored, Sharing::Reads, |n| {
        is_reduction(program, n) || matches!(program.node(n).op, Op::Parameter { .. })
    })
}

/// As [`cut`], with values that are reduced over the same axes sharing a kernel too where one varies over all that the other does.
pub fn grouped(program: &Program, stored: &BTreeSet<NodeId>) -> Cuts {
    cut_with(program, stored, Sharing::Alike, |n| {
        is_reduction(program, n)
    })
}

/// Which values share a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Outputs into which the same goes.
    Joins,
    /// Those too of which one reads the other.
    Reads,
    /// All values into which the same goes, or that are reduced alike.
    Alike,
}

/// What views read whose index is divided: only of what lies in memory it is known where it is no integer.
fn divided(program: &Program) -> impl Iterator<Item = NodeId> {
    let views = reachable(program).into_iter().filter(|n| {
        matches!(&program.node(*n).op, Op::View { map, .. } if map.iter().any(|(_, at)| at.affine().is_none()))
    });
    let read = views.flat_map(|n| program.node(n).args.clone());
    read.filter(|n| !matches!(program.node(*n).op, Op::Parameter { .. }))
}

fn cut_with(
    program: &Program,
    stored: &BTreeSet<NodeId>,
    sharing: Sharing,
    joins: impl Fn(NodeId) -> bool,
) -> Cuts {
    let outputs: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    let mut roots: BTreeSet<NodeId> = stored.union(&outputs).copied().collect();
    roots.extend(divided(program));
    let mut kernels: Vec<Vec<NodeId>> = Vec::new();
    let mut placed: BTreeMap<NodeId, usize> = BTreeMap::new();
    let alike = sharing == Sharing::Alike;
    for root in &roots {
        if !alike && !outputs.contains(root) {
            placed.insert(*root, kernels.len());
            kernels.push(vec![*root]);
            continue;
        }
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
        let reduced = |within: &BTreeSet<NodeId>, own: &[NodeId]| -> BTreeSet<Vec<AxisId>> {
            within
                .iter()
                .filter(|n| !roots.contains(n))
                .chain(own)
                .filter_map(|n| match &program.node(*n).op {
                    Op::Reduce { axes, .. } | Op::Dot { axes, .. } => {
                        Some(axes.as_slice().to_vec())
                    }
                    Op::Parameter { .. }
                    | Op::Constant(_)
                    | Op::Iota(_)
                    | Op::View { .. }
                    | Op::Map(_) => None,
                })
                .collect()
        };
        let same = |group: &Vec<NodeId>| {
            let own = reduced(&inside, &[*root]);
            let theirs = reduced(
                &below(
                    program,
                    group.iter().flat_map(|g| program.node(*g).args.clone()),
                    |n| roots.contains(&n),
                ),
                group,
            );
            !own.is_disjoint(&theirs)
        };
        let needs: AxisSet = program.node(*root).axes.clone();
        // A group that this root may join: everything that the root reads is stored before or inside the group.
        let read = inside.iter().filter(|n| roots.contains(n));
        let from = read
            .map(|n| placed.get(n).copied().unwrap_or(usize::MAX))
            .max()
            .unwrap_or(0);
        let at = kernels.iter().skip(from).position(|group| {
            let reads = sharing == Sharing::Reads && group.iter().any(|g| inside.contains(g));
            let together = alike || group.iter().all(|g| outputs.contains(g));
            let overlap = group.iter().all(|g| {
                program.node(*g).axes.is_subset(&needs) || needs.is_subset(&program.node(*g).axes)
            });
            together && overlap && (shared(group) || reads || (alike && same(group)))
        });
        match at {
            Some(i) => {
                placed.insert(*root, from + i);
                kernels[from + i].push(*root);
            }
            None => {
                placed.insert(*root, kernels.len());
                kernels.push(vec![*root]);
            }
        }
    }
    Cuts {
        kernels,
        narrow: BTreeMap::new(),
    }
}

/// The cuts with two kernels made one, for any two that read the same and where nothing else stands between them: those first that
/// share most.
pub fn joins(program: &Program, cuts: &Cuts) -> Vec<Cuts> {
    let outputs: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    let stored: BTreeSet<NodeId> = cuts.kernels.iter().flatten().copied().collect();
    let source =
        |n: &NodeId| stored.contains(n) || matches!(program.node(*n).op, Op::Parameter { .. });
    let read: Vec<BTreeSet<NodeId>> = (cuts.kernels.iter())
        .map(|roots| {
            let args = roots.iter().flat_map(|r| program.node(*r).args.clone());
            let all = below(program, args, |n| stored.contains(&n));
            all.into_iter().filter(source).collect()
        })
        .collect();
    // Kernels stand behind all that they need.
    let mut needed: Vec<BTreeSet<usize>> = Vec::new();
    for reads in &read {
        let direct =
            (0..needed.len()).filter(|k| cuts.kernels[*k].iter().any(|n| reads.contains(n)));
        let mut all: BTreeSet<usize> = direct.collect();
        for k in all.clone() {
            all.extend(needed[k].iter().copied());
        }
        needed.push(all);
    }
    let volume = |n: &NodeId| -> u64 {
        let axes = program.node(*n).axes.iter();
        axes.fold(1, |v, a| v.saturating_mul(program.axes[a.index()].extent))
    };
    let mut found: Vec<(u64, Cuts)> = Vec::new();
    for j in 0..cuts.kernels.len() {
        for i in 0..j {
            let shared = read[i]
                .intersection(&read[j])
                .map(volume)
                .fold(0, u64::saturating_add);
            let between = (i + 1..j).any(|k| needed[k].contains(&i) && needed[j].contains(&k));
            // What is stored for the other one alone need not be: that is another set of stored values.
            let alone = |n: &NodeId| {
                !outputs.contains(n)
                    && read
                        .iter()
                        .enumerate()
                        .all(|(k, r)| k == j || !r.contains(n))
            };
            if shared == 0 || between || cuts.kernels[i].iter().any(alone) {
                continue;
            }
            let mut order: Vec<usize> = (0..cuts.kernels.len()).filter(|k| *k != i).collect();
            // What needs the first of the two and stood in front of the second comes behind both.
            order.sort_by_key(|k| *k > j || (*k < j && needed[*k].contains(&i)));
            let kernels = order
                .into_iter()
                .map(|k| match k == j {
                    true => {
                        let both: BTreeSet<NodeId> = [i, j]
                            .iter()
                            .flat_map(|k| &cuts.kernels[*k])
                            .copied()
                            .collect();
                        both.into_iter().collect()
                    }
                    false => cuts.kernels[k].clone(),
                })
                .collect();
            let narrow = cuts.narrow.clone();
            found.push((shared, Cuts { kernels, narrow }));
        }
    }
    found.sort_by_key(|f| std::cmp::Reverse(f.0));
    found.into_iter().map(|f| f.1).collect()
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

/// The cuts without what is stored and read by no other kernel.
pub fn needed(program: &Program, mut cuts: Cuts) -> Cuts {
    let mut needed: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    for roots in &cuts.kernels {
        needed.extend(reads(program, roots, &cuts));
    }
    for roots in &mut cuts.kernels {
        roots.retain(|n| needed.contains(n));
    }
    cuts.kernels.retain(|roots| !roots.is_empty());
    cuts.narrow.retain(|n, _| needed.contains(n));
    cuts
}

/// The cuts with stored values that contractions read, and nothing else, kept in the contractions' dtype, where that has 16 bits for all of them. What
/// else reads a value would read it rounded, which a careful kernel does not.
pub fn narrowed(program: &Program, cuts: &Cuts) -> Cuts {
    let mut cuts = cuts.clone();
    let stored: BTreeSet<NodeId> = cuts.kernels.iter().flatten().copied().collect();
    let mut asked = asked(program, &stored);
    asked.retain(|n, _| stored.contains(n) && !is_leaf(program, *n));
    let narrow = asked.into_iter().filter_map(|(n, d)| Some((n, d?)));
    cuts.narrow.extend(narrow.filter(|(_, d)| *d != Dtype::F32));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept of products' operands where the last value is stored, and nothing else but results.
    fn kept(y: &str, body: &str) -> Vec<Dtype> {
        let text = format!(
            "program p\naxis i = 5, j = 64, e = 11\nx = parameter bf16 [j, i]\ny = parameter {y} [e, j]\nz = parameter f32 [i]\n\
             w = parameter f32 [j, i]\na = {body}\nreturn f32 [e, i] dot(a, y; j)\n"
        );
        let program: Program = text.parse().expect("a program");
        let last = program.outputs[0].value;
        let stored = program.node(last).args[0];
        let cuts = Cuts {
            kernels: vec![vec![stored], vec![last]],
            narrow: BTreeMap::new(),
        };
        narrowed(&program, &cuts).narrow.into_values().collect()
    }

    #[test]
    fn what_more_than_products_reads_is_kept_wide() {
        let kept = |other: &str| -> Vec<Dtype> {
            let text = format!(
                "program p\naxis i = 5, j = 64, e = 11, k = 64\nx = parameter bf16 [i, j]\nw = parameter bf16 [k, j]\nv = parameter bf16 [e, k]\n\
                 a = dot(x, w; j)\nreturn bf16 [e, i] dot({other}, v; k)\n"
            );
            let program: Program = text.parse().expect("a program");
            let stored: Vec<NodeId> = reachable(&program)
                .into_iter()
                .filter(|n| matches!(program.node(*n).op, Op::Dot { .. }))
                .collect();
            let kernels = stored.into_iter().map(|n| vec![n]).collect();
            let cuts = Cuts {
                kernels,
                narrow: BTreeMap::new(),
            };
            narrowed(&program, &cuts).narrow.into_values().collect()
        };
        assert_eq!(kept("a"), [Dtype::Bf16]);
        assert_eq!(kept("a * view(dot(a, view(v; k -> k); k); e -> 0)"), []);
    }

    /// Of a packed projection one half is rotated in f32, and the other one an operand as it is.
    #[test]
    fn a_view_that_a_product_reads_of_what_others_read_wider_may_be_stored() {
        let text = |other: &str| {
            format!(
                "program p\naxis i = 5, j = 64, k = 24, e = 8\nx = parameter bf16 [i, j]\nw = parameter bf16 [k, j]\ny = parameter bf16 [i]\n\
                 a = dot(x, w; j)\nv = view(a; k -> e + 16)\nreturn f32 [i] {other}, f32 [e] dot(v, y; i)\n"
            )
        };
        // Views that may be stored, and what is kept in 16 bits where all that may be is stored: a view, or what is none.
        let kept = |text: &str| -> (usize, Vec<(bool, Dtype)>) {
            let program: Program = text.parse().expect("a program");
            let points = points(&program);
            let is_view = |n: NodeId| matches!(program.node(n).op, Op::View { .. });
            let views = points.iter().filter(|n| is_view(**n)).count();
            let narrow = narrowed(&program, &cut(&program, &points.into_iter().collect())).narrow;
            let narrow = narrow.into_iter().map(|(n, dtype)| (is_view(n), dtype));
            (views, narrow.collect())
        };
        let view = (1, vec![(true, Dtype::Bf16)]);
        let rotated = text("sum(view(a; k -> e) * view(a; k -> e + 8); e)");
        assert_eq!(kept(&rotated), view);
        // A result that shows it reads it as it is, too.
        let shown = text("view(a; k -> e)").replace("f32 [i] view", "f32 [i, e] view");
        assert_eq!(kept(&shown), view);
        // Where nothing else reads it, the projection itself is kept in 16 bits.
        assert_eq!(
            kept(&text("sum(x * x; j)")),
            (0, vec![(false, Dtype::Bf16)])
        );
    }

    #[test]
    fn operands_are_kept_in_the_dtype_of_their_product() {
        assert_eq!(kept("bf16", "x * x"), [Dtype::Bf16]);
        // A table does not make them wider; what has all their axes does, and so does another dtype.
        assert_eq!(kept("bf16", "x * z"), [Dtype::Bf16]);
        assert_eq!(kept("bf16", "x * w"), []);
        assert_eq!(kept("f16", "x * x"), []);
        assert_eq!(kept("f32", "x * x"), []);
        assert_eq!(kept("bf16", "w * w"), []);
    }
}

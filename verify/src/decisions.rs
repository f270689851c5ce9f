//! Where something changes with the coordinates: masks, views that leave their source, bounds of loops.
//!
//! Each is an affine function of coordinates, and what changes does so where the function becomes negative. A fault in such a function
//! shows near its zeros and nowhere else.

use ir::{
    Affine, AxisId, AxisSet, Kernel, MapOp, NodeId, Op, Program, Quotient, Statement, TileOp,
    TileProgram, affine_of,
};
use std::collections::BTreeSet;

/// One function, and how far from its zeros it may decide.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Decision {
    pub(crate) function: Affine,
    /// 1 where a coordinate decides; the size of a tile where a corner of one does.
    reach: u64,
}

/// The decisions of a program, of an expression and of a tile program.
pub(crate) fn decisions(programs: &[&Program], tile: &TileProgram) -> Vec<Decision> {
    let mut all = BTreeSet::new();
    for program in programs {
        of_program(program, &mut all);
    }
    for kernel in &tile.kernels {
        of_kernel(tile, kernel, &mut all);
    }
    all.into_iter().collect()
}

fn add(all: &mut BTreeSet<Decision>, function: Option<Affine>, reach: u64) {
    if let Some(function) = function.filter(|f| !f.terms().is_empty()) {
        all.insert(Decision { function, reach });
    }
}

/// An index and the extent of what it runs over: where it enters and where it leaves.
fn index(all: &mut BTreeSet<Decision>, index: &Quotient, extent: u64) {
    if index.as_axis().is_none() {
        let function = index.function();
        add(all, Some(function.clone()), 1);
        let end = (extent as i64).checked_mul(index.divisor());
        let beyond = end.and_then(|end| function.offset.checked_sub(end));
        let beyond = beyond.and_then(|o| Affine::new(function.terms().iter().copied(), o));
        add(all, beyond, 1);
    }
}

fn difference(x: &Affine, y: &Affine) -> Option<Affine> {
    x.plus(&y.times(&Affine::constant(-1))?)
}

fn of_program(program: &Program, all: &mut BTreeSet<Decision>) {
    let affine = |id: &NodeId| program.affine_of(*id);
    for node in &program.nodes {
        match (&node.op, node.args.as_slice()) {
            (Op::Map(MapOp::Select), [condition, ..]) => add(all, affine(condition), 1),
            (Op::Map(MapOp::Max), [x, y]) => {
                let both = affine(x).zip(affine(y));
                add(all, both.and_then(|(x, y)| difference(&x, &y)), 1);
            }
            (Op::View { map, .. }, _) => {
                for (from, to) in map {
                    index(all, to, program.extent(*from));
                }
            }
            (
                Op::Map(_)
                | Op::Parameter { .. }
                | Op::Constant(_)
                | Op::Iota(_)
                | Op::Reduce { .. }
                | Op::Dot { .. },
                _,
            ) => {}
        }
    }
}

fn of_kernel(tile: &TileProgram, kernel: &Kernel, all: &mut BTreeSet<Decision>) {
    for value in &kernel.values {
        match &value.op {
            TileOp::Map(op, args) => match (op, args.as_slice()) {
                (MapOp::Select, [condition, ..]) => add(all, affine_of(kernel, *condition), 1),
                (MapOp::Max, [x, y]) => {
                    let both = affine_of(kernel, *x).zip(affine_of(kernel, *y));
                    add(all, both.and_then(|(x, y)| difference(&x, &y)), 1);
                }
                (
                    MapOp::Select
                    | MapOp::Max
                    | MapOp::Add
                    | MapOp::Mul
                    | MapOp::Div
                    | MapOp::Function(_),
                    _,
                ) => {}
            },
            TileOp::Load {
                buffer, index: at, ..
            } => {
                for (axis, function) in tile.axes_loaded(*buffer, at).into_iter().zip(at) {
                    index(all, function, tile.extent(axis));
                }
            }
            TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Reduce { .. }
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => {}
        }
    }
    let mut bodies = vec![&kernel.body];
    while let Some(body) = bodies.pop() {
        for statement in body {
            let Statement::Loop(own) = statement else {
                continue;
            };
            bodies.push(&own.body);
            let ends = own.low.iter().map(|b| (b, 0));
            let extent = tile.extent(own.axis) as i64;
            for (bound, end) in ends.chain(own.high.iter().map(|b| (b, extent))) {
                // `⌊sum / divisor⌋ ≥ end` where `sum − divisor·end ≥ 0`.
                let offset = end
                    .checked_mul(bound.divisor)
                    .and_then(|e| bound.offset.checked_sub(e));
                let terms = bound.terms.iter().map(|(c, a, _)| (*c, *a));
                let function = offset.and_then(|o| Affine::new(terms, o));
                let tiles = bound.terms.iter().map(|t| kernel.tile(t.1));
                add(
                    all,
                    function,
                    tiles.max().unwrap_or(1).max(kernel.tile(own.axis)),
                );
            }
        }
    }
}

/// The axes along whose coordinates something is decided, or along which loops have bounds, in groups of those that decide together:
/// nothing of a group may be left out without leaving out what it decides.
pub(crate) fn groups(decisions: &[Decision], tile: &TileProgram) -> Vec<AxisSet> {
    let mut linked: Vec<AxisSet> = decisions.iter().map(|d| d.function.axes()).collect();
    for kernel in &tile.kernels {
        let mut bodies = vec![&kernel.body];
        while let Some(body) = bodies.pop() {
            for statement in body {
                if let Statement::Loop(own) = statement {
                    bodies.push(&own.body);
                    let bounds = || own.low.iter().chain(&own.high);
                    if bounds().next().is_some() {
                        let of_bounds = bounds().flat_map(|b| b.terms.iter().map(|t| t.1));
                        linked.push(of_bounds.chain([own.axis]).collect());
                    }
                }
            }
        }
    }
    // A collapsed axis is as long as what it stands for.
    let spread = |axes: &AxisSet| -> AxisSet {
        let members = |a| tile.collapsed.get(&a).map_or(vec![a], Clone::clone);
        axes.iter().flat_map(members).collect()
    };
    let mut groups: Vec<AxisSet> = Vec::new();
    for mut axes in linked.iter().map(spread) {
        // What meets it becomes one with it.
        groups.retain(|group| {
            let apart = !group.iter().any(|a| axes.contains(a));
            if !apart {
                axes = axes.union(group);
            }
            apart
        });
        groups.push(axes);
    }
    groups
}

impl Decision {
    /// Coordinates of an axis below an extent on both sides of the zeros, where the other axes are at some of theirs.
    pub(crate) fn zeros(
        &self,
        axis: AxisId,
        extent: u64,
        others: impl Fn(AxisId) -> Vec<u64>,
    ) -> BTreeSet<u64> {
        let mut sums: Vec<i64> = vec![self.function.offset];
        let mut factor = 0;
        for (c, a) in self.function.terms() {
            if *a == axis {
                factor = *c;
                continue;
            }
            let coordinates = others(*a);
            let next = sums.iter().flat_map(|s| {
                coordinates
                    .iter()
                    .map(move |x| s.saturating_add(c.saturating_mul(*x as i64)))
            });
            sums = next.take(MOST_COMBINATIONS).collect();
        }
        if factor == 0 {
            return BTreeSet::new();
        }
        let reach = self.reach as i64;
        let near = |sum: i64| {
            let zero = sum.saturating_neg().div_euclid(factor);
            [-reach, -1, 0, 1, reach].map(|by| zero.saturating_add(by))
        };
        let inside = |x: &i64| (0..extent as i64).contains(x);
        sums.into_iter()
            .flat_map(near)
            .filter(inside)
            .map(|x| x as u64)
            .collect()
    }
}

/// Combinations of other axes' coordinates at which zeros are looked for.
const MOST_COMBINATIONS: usize = 32;

//! What interpreting a tile program met, and what there was to meet: both sides of every selection, of every bound of a loop, of every
//! load that may leave its buffer, whole and partial tiles, and loops that run more than twice.
//!
//! A fault in a mask shows only where the mask decides something. So the elements that are compared are chosen for it (see
//! [`crate::slices`]), and what none of them met is said.

use crate::demand::span;
use crate::scalar::Scalar;
use ir::{
    AxisId, Bound, Corner, Entry, Kernel, Loop, MapOp, NodeId, Op, Program, Role, Statement,
    TileOp, TileProgram, ValueId, affine_of,
};
use std::collections::BTreeMap;

/// Whether either outcome of a decision was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sides {
    /// A condition that holds, an element that exists, a bound that leaves something out.
    pub(crate) yes: bool,
    /// The other.
    pub(crate) no: bool,
}

impl Sides {
    /// The outcomes of conditions.
    pub(crate) fn of<S: Scalar>(conditions: &[S]) -> Self {
        let mut sides = Self::default();
        for condition in conditions {
            match condition.holds() {
                Some(true) => sides.yes = true,
                Some(false) => sides.no = true,
                None => {}
            }
            if sides.yes && sides.no {
                break;
            }
        }
        sides
    }

    fn add(&mut self, other: Self) {
        self.yes |= other.yes;
        self.no |= other.no;
    }
}

/// What interpreting a tile program met.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) kernels: Vec<SeenKernel>,
    /// Of the program's selections.
    program: BTreeMap<NodeId, Sides>,
}

/// What was met of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct SeenKernel {
    /// Of selections and loads.
    values: BTreeMap<ValueId, Sides>,
    /// In the order in which they stand in the text.
    loops: Vec<SeenLoop>,
    tiles: BTreeMap<AxisId, SeenTiles>,
}

#[derive(Clone, Debug)]
struct SeenLoop {
    /// Tells the loops of one kernel from each other while it runs.
    address: usize,
    low: Vec<Sides>,
    high: Vec<Sides>,
    iterations: u64,
}

#[derive(Clone, Copy, Debug)]
struct SeenTiles {
    numbers: (u64, u64),
    lengths: (u64, u64),
}

impl SeenTiles {
    fn add(&mut self, other: Self) {
        let widest = |x: (u64, u64), y: (u64, u64)| (x.0.min(y.0), x.1.max(y.1));
        self.numbers = widest(self.numbers, other.numbers);
        self.lengths = widest(self.lengths, other.lengths);
    }
}

impl Seen {
    /// Nothing yet.
    pub(crate) fn new(tile: &TileProgram) -> Self {
        Self {
            kernels: tile.kernels.iter().map(SeenKernel::new).collect(),
            program: BTreeMap::new(),
        }
    }

    /// Values of the program: if they are conditions, what they decided.
    pub(crate) fn condition<S: Scalar>(&mut self, program: &Program, node: NodeId, values: &[S]) {
        let mut sides = None;
        for (id, user) in (0..).map(NodeId).zip(&program.nodes) {
            if matches!(user.op, Op::Map(MapOp::Select)) && user.args.first() == Some(&node) {
                let sides = *sides.get_or_insert_with(|| Sides::of(values));
                self.program.entry(id).or_default().add(sides);
            }
        }
    }

    fn merge_program(&mut self, other: &Self) {
        for (node, sides) in &other.program {
            self.program.entry(*node).or_default().add(*sides);
        }
    }

    /// Adds what somebody else met of the same tile program.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (own, other) in self.kernels.iter_mut().zip(&other.kernels) {
            own.merge(other);
        }
        self.merge_program(other);
    }

    /// Adds what was met of selections and loads of the same tile program at other extents: its loops run over other coordinates.
    pub(crate) fn merge_values(&mut self, other: &Self) {
        for (own, other) in self.kernels.iter_mut().zip(&other.kernels) {
            own.merge_values(other);
        }
        self.merge_program(other);
    }
}

fn loops(body: &[Statement]) -> Vec<&Loop> {
    let inner = body.iter().flat_map(|s| match s {
        Statement::Loop(l) => std::iter::once(l).chain(loops(&l.body)).collect(),
        Statement::Let(_) | Statement::Store { .. } => Vec::new(),
    });
    inner.collect()
}

fn address(of: &Loop) -> usize {
    std::ptr::from_ref(of).addr()
}

impl SeenKernel {
    pub(crate) fn new(kernel: &Kernel) -> Self {
        let seen = |l: &Loop| SeenLoop {
            address: address(l),
            low: vec![Sides::default(); l.low.len()],
            high: vec![Sides::default(); l.high.len()],
            iterations: 0,
        };
        Self {
            values: BTreeMap::new(),
            loops: loops(&kernel.body).into_iter().map(seen).collect(),
            tiles: BTreeMap::new(),
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.merge_values(other);
        for (own, other) in self.loops.iter_mut().zip(&other.loops) {
            let bounds = own.low.iter_mut().chain(&mut own.high);
            for (own, other) in bounds.zip(other.low.iter().chain(&other.high)) {
                own.add(*other);
            }
            own.iterations = own.iterations.max(other.iterations);
        }
        for (axis, other) in &other.tiles {
            self.tiles.entry(*axis).or_insert(*other).add(*other);
        }
    }

    fn merge_values(&mut self, other: &Self) {
        for (value, sides) in &other.values {
            self.values.entry(*value).or_default().add(*sides);
        }
    }

    pub(crate) fn value(&mut self, id: ValueId, sides: Sides) {
        self.values.entry(id).or_default().add(sides);
    }

    /// A tile of an axis: its number, and how many coordinates it has.
    pub(crate) fn tile(&mut self, axis: AxisId, number: u64, length: u64) {
        let tile = SeenTiles {
            numbers: (number, number),
            lengths: (length, length),
        };
        self.tiles.entry(axis).or_insert(tile).add(tile);
    }

    fn of(&mut self, inner: &Loop) -> Option<&mut SeenLoop> {
        let wanted = address(inner);
        self.loops.iter_mut().find(|l| l.address == wanted)
    }

    /// A low bound and where it lies.
    pub(crate) fn low(&mut self, inner: &Loop, number: usize, at: i64) {
        if let Some(seen) = self.of(inner) {
            seen.low[number].add(Sides {
                yes: at > 0,
                no: at <= 0,
            });
        }
    }

    /// A high bound and where it lies.
    pub(crate) fn high(&mut self, inner: &Loop, number: usize, at: i64, extent: u64) {
        if let Some(seen) = self.of(inner) {
            seen.high[number].add(Sides {
                yes: at < extent as i64,
                no: at >= extent as i64,
            });
        }
    }

    pub(crate) fn iterations(&mut self, inner: &Loop, count: u64) {
        if let Some(seen) = self.of(inner) {
            seen.iterations = seen.iterations.max(count);
        }
    }
}

/// What there is to meet: of a kernel, by its place in the tile program, or of the program; and, in words, of what of it and what.
type Outcome = (Option<usize>, String);

/// What is said of in front of it: the program's own selections, and kernels by the numbers that they go by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Called<'a> {
    pub(crate) program: &'a str,
    pub(crate) kernels: &'a [usize],
}

impl Called<'_> {
    fn say(&self, (of, what): &Outcome) -> String {
        match of {
            Some(kernel) => format!("kernel {}: {what}", self.kernels[*kernel]),
            None => format!("{}: {what}", self.program),
        }
    }
}

/// What there is to meet at some extents, and whether it was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Outcomes of decisions that coordinates decide.
    coordinates: BTreeMap<Outcome, bool>,
    /// Outcomes that numbers decide: whether any numbers have them, nobody knows.
    numbers: BTreeMap<Outcome, bool>,
}

impl Coverage {
    /// Adds what there is to meet at other extents: what was met at some was met.
    pub(crate) fn merge(&mut self, other: Self) {
        for (own, other) in [
            (&mut self.coordinates, other.coordinates),
            (&mut self.numbers, other.numbers),
        ] {
            for (what, met) in other {
                *own.entry(what).or_default() |= met;
            }
        }
    }

    /// How many outcomes there are.
    pub(crate) fn outcomes(&self) -> u64 {
        (self.coordinates.len() + self.numbers.len()) as u64
    }

    /// Outcomes that coordinates decide and that were not met, in words.
    pub(crate) fn unseen(&self, called: Called<'_>) -> impl Iterator<Item = String> {
        let not = self.coordinates.iter().filter(|(_, met)| !**met);
        not.map(move |(what, _)| called.say(what))
    }

    /// Outcomes that numbers decide and that no drawn numbers had, in words.
    pub(crate) fn undrawn(&self, called: Called<'_>) -> impl Iterator<Item = String> {
        let not = self.numbers.iter().filter(|(_, met)| !**met);
        not.map(move |(what, _)| called.say(what))
    }

    fn ask(
        &mut self,
        reachable: bool,
        seen: bool,
        of: Option<usize>,
        what: impl FnOnce() -> String,
    ) {
        if reachable {
            *self.coordinates.entry((of, what())).or_default() |= seen;
        }
    }

    fn sides(
        &mut self,
        (reachable, seen): (Sides, Sides),
        of: Option<usize>,
        yes: String,
        no: String,
    ) {
        self.ask(reachable.yes, seen.yes, of, || yes);
        self.ask(reachable.no, seen.no, of, || no);
    }

    /// The branches of a selection; `range` is between what its condition lies, where coordinates decide it.
    fn selection(&mut self, range: Option<(i64, i64)>, seen: Sides, of: Option<usize>, name: &str) {
        let first = format!("{name} never takes its first value");
        let second = format!("{name} never takes its second value");
        match range {
            Some((low, high)) => {
                let reachable = Sides {
                    yes: high >= 0,
                    no: low < 0,
                };
                self.sides((reachable, seen), of, first, second);
            }
            None => {
                for (what, seen) in [(first, seen.yes), (second, seen.no)] {
                    *self.numbers.entry((of, what)).or_default() |= seen;
                }
            }
        }
    }

    /// Of a tile program.
    pub(crate) fn of_tile(tile: &TileProgram, seen: &Seen) -> Self {
        let mut coverage = Self::default();
        for (number, (kernel, seen)) in tile.kernels.iter().zip(&seen.kernels).enumerate() {
            coverage.of_kernel(tile, number, kernel, seen);
        }
        coverage
    }

    fn of_kernel(&mut self, tile: &TileProgram, number: usize, kernel: &Kernel, seen: &SeenKernel) {
        let last = |a: AxisId| (0, tile.extent(a) as i64 - 1);
        let of = Some(number);
        for (id, value) in (0..).map(ValueId).zip(&kernel.values) {
            let met = seen.values.get(&id).copied().unwrap_or_default();
            let name = format!("`{}`", value.name);
            match &value.op {
                TileOp::Map(MapOp::Select, args) => {
                    let range = args
                        .first()
                        .and_then(|c| affine_of(kernel, *c)?.range(last));
                    self.selection(range, met, of, &name);
                }
                TileOp::Load { buffer, index, .. } => {
                    let mut outside = false;
                    for (axis, function) in tile.axes_loaded(*buffer, index).into_iter().zip(index)
                    {
                        let inside = function
                            .range(last)
                            .is_some_and(|(low, high)| low >= 0 && high <= last(axis).1);
                        outside |= !inside;
                    }
                    // A load that never leaves its buffer decides nothing.
                    let reachable = Sides {
                        yes: outside,
                        no: outside,
                    };
                    self.sides(
                        (reachable, met),
                        of,
                        format!("{name} never reads its buffer"),
                        format!("{name} never leaves its buffer"),
                    );
                }
                TileOp::Constant(_)
                | TileOp::Iota(_)
                | TileOp::Map(..)
                | TileOp::Reduce { .. }
                | TileOp::Scan { .. }
                | TileOp::Contract { .. }
                | TileOp::Phi { .. }
                | TileOp::Final { .. } => {}
            }
        }
        for (n, (own, seen)) in loops(&kernel.body).into_iter().zip(&seen.loops).enumerate() {
            let axis = &tile.axes[own.axis.index()].name;
            let place = format!("loop {n} over {axis}");
            self.of_loop(tile, (number, &place), kernel, own, seen);
        }
        for (axis, how) in &kernel.axes {
            if how.role == Role::Whole {
                continue;
            }
            let name = &tile.axes[axis.index()].name;
            let (extent, met) = (tile.extent(*axis), seen.tiles.get(axis));
            // A loop may end before the last tile wherever it runs.
            let reached = |l: &&Loop| {
                let ends = l.high.iter().map(|b| bound_range(tile, kernel, b).1);
                l.axis == *axis
                    && ends
                        .min()
                        .is_none_or(|end| end > (extent - extent % how.tile) as i64)
            };
            let looped = how.role == Role::Loop;
            let ends = !looped || loops(&kernel.body).iter().any(reached);
            let partial = extent % how.tile != 0 && ends;
            let place = || format!("axis {name}");
            self.ask(
                extent >= how.tile,
                met.is_some_and(|m| m.lengths.1 == how.tile),
                of,
                || format!("{}: no whole tile", place()),
            );
            self.ask(
                partial,
                met.is_some_and(|m| m.lengths.0 < how.tile),
                of,
                || format!("{}: no partial tile", place()),
            );
            let tiles = extent.div_ceil(how.tile);
            if how.role == Role::Grid && tiles > 1 {
                for (end, what) in [(0, "first"), (tiles - 1, "last")] {
                    let seen = met.is_some_and(|m| m.numbers.0 == end || m.numbers.1 == end);
                    self.ask(true, seen, of, || {
                        format!("{}: not its {what} tile", place())
                    });
                }
            }
        }
    }

    fn of_loop(
        &mut self,
        tile: &TileProgram,
        (number, place): (usize, &str),
        kernel: &Kernel,
        own: &Loop,
        seen: &SeenLoop,
    ) {
        let of = Some(number);
        let extent = tile.extent(own.axis) as i64;
        let mut most = extent;
        for (n, (bound, seen)) in own.low.iter().zip(&seen.low).enumerate() {
            let (low, high) = bound_range(tile, kernel, bound);
            let reachable = Sides {
                yes: high > 0,
                no: low <= 0,
            };
            self.sides(
                (reachable, *seen),
                of,
                format!("{place}: its low bound {n} never leaves anything out"),
                format!("{place}: its low bound {n} always leaves something out"),
            );
        }
        for (n, (bound, seen)) in own.high.iter().zip(&seen.high).enumerate() {
            let (low, high) = bound_range(tile, kernel, bound);
            let reachable = Sides {
                yes: low < extent,
                no: high >= extent,
            };
            self.sides(
                (reachable, *seen),
                of,
                format!("{place}: its high bound {n} never leaves anything out"),
                format!("{place}: its high bound {n} always leaves something out"),
            );
            most = most.min(high);
        }
        // Parts and windows have a span of their own.
        let span = span(kernel, own, |a| tile.extent(a)).unwrap_or(u64::MAX);
        let iterations = span
            .min(most.max(0) as u64)
            .div_ceil(kernel.tile(own.axis))
            .min(MANY);
        self.ask(true, seen.iterations >= iterations, of, || {
            format!("{place}: fewer than {iterations} iterations")
        });
    }

    /// Adds the selections of a program.
    pub(crate) fn of_program(&mut self, program: &Program, seen: &Seen) {
        let last = |a: AxisId| (0, program.extent(a) as i64 - 1);
        for (id, node) in (0..).map(NodeId).zip(&program.nodes) {
            let (Op::Map(MapOp::Select), Some(condition)) = (&node.op, node.args.first()) else {
                continue;
            };
            let range = program.affine_of(*condition).and_then(|f| f.range(last));
            let name = match &node.name {
                Some(name) => format!("`{name}`"),
                None => format!("a selection (value {})", id.0),
            };
            let met = seen.program.get(&id).copied().unwrap_or_default();
            self.selection(range, met, None, &name);
        }
    }
}

/// Iterations of a loop that are enough: what passes from one to the next has passed twice.
const MANY: u64 = 3;

/// Between which coordinates a bound lies, over all tiles of the axes that it mentions.
pub(crate) fn bound_range(tile: &TileProgram, kernel: &Kernel, bound: &Bound) -> (i64, i64) {
    let ends = |(coefficient, axis, corner): &(i64, AxisId, Corner)| {
        let (extent, size) = (tile.extent(*axis) as i64, kernel.tile(*axis) as i64);
        let corners = match corner {
            Corner::First => (0, (extent - 1) / size * size),
            Corner::Last => (size.min(extent) - 1, extent - 1),
        };
        let (x, y) = (
            coefficient.saturating_mul(corners.0),
            coefficient.saturating_mul(corners.1),
        );
        (x.min(y), x.max(y))
    };
    let read = bound.entries.iter().map(|(coefficient, _)| {
        let most = coefficient.saturating_abs().saturating_mul(Entry::MOST);
        (-most, most)
    });
    let sum = bound.terms.iter().map(ends).chain(read);
    let (low, high) = sum.fold((bound.offset, bound.offset), |(l, h), (x, y)| {
        (l.saturating_add(x), h.saturating_add(y))
    });
    let divisor = bound.divisor.max(1);
    (low.div_euclid(divisor), high.div_euclid(divisor))
}

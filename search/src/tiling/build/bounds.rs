//! Which tiles of a loop contribute nothing, by interval arithmetic on the predicates of `select`.
//!
//! A predicate is a condition `Σ cᵢ·iota(aᵢ) + c₀ >= 0` with integer coefficients, or several of them that must all hold: the least of
//! such sums is not negative, or the greatest is. Where a whole tile lies on one side of
//! it, its `select`s are one of their branches. If then every reduction of the loop provably adds its neutral value (`0`
//! to a sum, `−∞` to a maximum), the tile need not run. The bound of the loop follows from the predicate: the loop axis
//! is solved for, the other axes stand at the corner of their tile that leaves the most room.
//!
//! A term of a sum may be read: an element of a buffer of whole numbers, a parameter or what a kernel before stored, where each axis of that has one
//! coordinate a tile. So a loop ends at a length that is given, and a sum over all of an axis that selects one place runs over one tile.
//!
//! Where one of two predicates suffices that differ along one axis, the line between the ends of their greatest bounds both.
//!
//! Every predicate counts alone, so several masks in one expression give several bounds. Nothing is assumed about the
//! order of axes or what the mask is for. Loads count as finite.

use super::inner::{Arena, Inner, InnerId, Lowering};
use super::reach;
use super::whole::EXACT;
use ir::{
    Affine, AxisId, AxisSet, Bound, Buffer, BufferId, Corner, Domain, Entry, Fact, Function, MapOp,
    Quotient, ReduceOp,
};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of an axis where a loop begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Coordinates are `0 .. extent`.
    pub(crate) extent: i64,
    /// It is a grid axis or that of an enclosing loop: bounds may speak of its tile's corners.
    pub(crate) cornered: bool,
    /// Its tiles have one coordinate, which a bound may read an element at.
    pub(crate) single: bool,
}

/// A sum of coordinates and of elements that a bound may read, each times an integer.
#[derive(Clone, Debug, Default, PartialEq)]
struct Predicate {
    at: Affine,
    read: Vec<(i64, Entry)>,
}

impl Predicate {
    fn scaled(&self, factor: i64) -> Option<Self> {
        let read = self
            .read
            .iter()
            .map(|(c, e)| Some((c.checked_mul(factor)?, e.clone())));
        Some(Self {
            at: scaled(&self.at, factor)?,
            read: read.collect::<Option<_>>()?,
        })
    }

    fn plus(&self, other: &Self) -> Option<Self> {
        let mut read: BTreeMap<Entry, i64> = BTreeMap::new();
        for (c, e) in self.read.iter().chain(&other.read) {
            let sum = read.entry(e.clone()).or_default();
            *sum = sum.checked_add(*c)?;
        }
        Some(Self {
            at: plus(&self.at, &other.at)?,
            read: read
                .into_iter()
                .filter(|(_, c)| *c != 0)
                .map(|(e, c)| (c, e))
                .collect(),
        })
    }

    fn constant(value: i64) -> Self {
        Self {
            at: Affine::constant(value),
            read: Vec::new(),
        }
    }

    /// The number that it is, if it is one.
    fn number(&self) -> Option<i64> {
        (self.at.terms().is_empty() && self.read.is_empty()).then_some(self.at.offset)
    }
}

/// Bounds outside of which every tile of a loop is neutral.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: Vec<Bound>,
    pub(crate) high: Vec<Bound>,
}

/// The bounds of a loop over `axis` that carries `reductions`; those in `provisional` are seen by others while they run,
/// and are finite then; those in `nonzero` are not zero either.
pub(crate) fn interval(
    (arena, buffers, whole): (&Arena, &[Buffer], &BTreeSet<BufferId>),
    reductions: &[InnerId],
    provisional: &BTreeSet<InnerId>,
    nonzero: &BTreeSet<InnerId>,
    axis: AxisId,
    range: impl Fn(AxisId) -> Range,
) -> Interval {
    let mut interval = Interval::default();
    for condition in conditions(arena, reductions, axis) {
        for holds in [false, true] {
            // What must be possible in a tile that runs, each `>= 0`. Coordinates are integers: `p < 0` is `−p − 1 >= 0`.
            let (factor, rest) = if holds { (-1, -1) } else { (1, 0) };
            let sums = Sums {
                arena,
                buffers,
                whole,
                range: &range,
            };
            let needed = sums.conjuncts(condition, factor, &Predicate::constant(rest));
            if needed.is_empty() {
                continue;
            }
            let mut facts = Facts {
                arena,
                provisional,
                nonzero,
                axis,
                assumed: Some((condition, holds)),
                known: BTreeMap::new(),
                plain: BTreeMap::new(),
            };
            if !reductions.iter().all(|r| facts.neutral(*r)) {
                continue;
            }
            for p in &needed {
                solve(p, axis, &range, &mut interval);
            }
        }
    }
    interval
}

/// The axes over which all reductions of a kernel see one coordinate alone, which a bound can read, with the axes of what it reads.
pub(crate) fn picked(
    lowering: &Lowering<'_>,
    stores: &[(BufferId, InnerId)],
    buffers: &[Buffer],
) -> BTreeMap<AxisId, AxisSet> {
    let arena = &lowering.arena;
    let all = reach::order(arena, stores.iter().map(|s| s.1));
    let is_read = |id: &InnerId| matches!(arena.get(*id), Inner::Load { buffer, .. } if lowering.whole.contains(buffer));
    if !all.iter().any(is_read) {
        return BTreeMap::new();
    }
    let mut over: BTreeMap<AxisId, Vec<InnerId>> = BTreeMap::new();
    for id in all {
        if let Some((_, axes, _)) = arena.get(id).reduction() {
            axes.iter()
                .for_each(|a| over.entry(a).or_default().push(id));
        }
    }
    let none = BTreeSet::new();
    let of_axis = |(axis, reductions): (AxisId, Vec<InnerId>)| {
        // As if each tile had one coordinate.
        let range = |a: AxisId| Range {
            extent: lowering.axes[a.index()].extent as i64,
            cornered: true,
            single: true,
        };
        let tables = (arena, buffers, &lowering.whole);
        let found = interval(tables, &reductions, &none, &none, axis, range);
        // From what is read to one more than that.
        let picks = |low: &&Bound| {
            let next = Bound {
                offset: low.offset + 1,
                ..(*low).clone()
            };
            low.divisor == 1 && !low.entries.is_empty() && found.high.contains(&next)
        };
        let bound = found.low.iter().find(picks)?;
        let entries = bound.entries.iter();
        Some((
            axis,
            entries.flat_map(|e| e.1.axes.iter().copied()).collect(),
        ))
    };
    over.into_iter().filter_map(of_axis).collect()
}

/// Whether the body of a reduction divides by something that is 0, or takes a function like its logarithm, while the sums that it uses
/// are still 0.
pub(crate) fn singular_at_zero(
    arena: &Arena,
    reduction: InnerId,
    sums: &BTreeSet<InnerId>,
) -> bool {
    if sums.is_empty() {
        return false;
    }
    let none = BTreeSet::new();
    let mut facts = Facts {
        arena,
        provisional: &none,
        nonzero: &none,
        axis: AxisId(u32::MAX),
        assumed: None,
        known: BTreeMap::new(),
        plain: sums.iter().map(|s| (*s, Exactly(0.0))).collect(),
    };
    let mut seen: BTreeSet<InnerId> = sums.clone();
    let mut stack = arena.get(reduction).args();
    while let Some(id) = stack.pop() {
        if !seen.insert(id) {
            continue;
        }
        let args = arena.get(id).args();
        let divisor = |n: usize| matches!(arena.get(id), Inner::Map(MapOp::Div, _) if n == 1);
        let pole = |n: usize| match arena.get(id) {
            Inner::Map(MapOp::Function(f), _) => f.row().domains[n].has_pole(),
            Inner::Map(..)
            | Inner::Load { .. }
            | Inner::Iota(_)
            | Inner::Constant(_)
            | Inner::Reduce { .. }
            | Inner::Dot { .. }
            | Inner::Running { .. } => false,
        };
        for (n, arg) in args.iter().enumerate() {
            if !(pole(n) || divisor(n)) {
                continue;
            }
            let at_zero = facts.of(*arg, false);
            if at_zero == Exactly(0.0) || (pole(n) && at_zero == Unknown) {
                return true;
            }
        }
        stack.extend(args);
    }
    false
}

/// Whether the body of a reduction takes an exponential of something that depends on sums. What a part of a sum leaves in an exponent may
/// overflow where the whole sum leaves something small: a mean so far, and not the mean, taken from large numbers. A running maximum mostly
/// includes what it is taken from; where it is one of something else, only the check on numbers of very different size sees it.
pub(crate) fn exponential_of(arena: &Arena, reduction: InnerId, sums: &BTreeSet<InnerId>) -> bool {
    let mut depends: BTreeMap<InnerId, bool> = sums.iter().map(|s| (*s, true)).collect();
    for id in reach::order(arena, arena.get(reduction).args()) {
        if depends.contains_key(&id) {
            continue;
        }
        let args = arena.get(id).args();
        let any = args.iter().any(|a| depends.get(a) == Some(&true));
        if any
            && matches!(arena.get(id), Inner::Map(MapOp::Function(f), _) if f.has(Fact::SumsToProducts))
        {
            return true;
        }
        depends.insert(id, any);
    }
    false
}

/// A value as a sum of coordinates with integer coefficients, if it is one.
pub(crate) fn affine(arena: &Arena, id: InnerId) -> Option<Affine> {
    let range = |_: AxisId| Range {
        extent: 1,
        cornered: false,
        single: false,
    };
    let sums = Sums {
        arena,
        buffers: &[],
        whole: &BTreeSet::new(),
        range: &range,
    };
    sums.sum(id).map(|p| p.at)
}

/// Where predicates are read.
struct Sums<'a, R> {
    arena: &'a Arena,
    buffers: &'a [Buffer],
    /// Those that hold whole numbers.
    whole: &'a BTreeSet<BufferId>,
    range: &'a R,
}

impl<R: Fn(AxisId) -> Range> Sums<'_, R> {
    /// Sums that are not negative wherever `factor · value + rest >= 0`; none where nothing of the kind follows.
    fn conjuncts(&self, id: InnerId, factor: i64, rest: &Predicate) -> Vec<Predicate> {
        if let Some(value) = self.sum(id) {
            return value
                .scaled(factor)
                .and_then(|v| v.plus(rest))
                .into_iter()
                .collect();
        }
        let args = self.arena.get(id).args();
        let into =
            |inner: InnerId, factor: Option<i64>, rest: Option<Predicate>| match (factor, rest) {
                (Some(factor), Some(rest)) => self.conjuncts(inner, factor, &rest),
                (None, _) | (_, None) => Vec::new(),
            };
        let known: Vec<Option<Predicate>> = args.iter().map(|a| self.sum(*a)).collect();
        match (self.arena.get(id), args.as_slice(), known.as_slice()) {
            // Below a bound is the greatest where both are.
            (Inner::Map(MapOp::Max, _), [x, y], _) if factor < 0 => {
                let mut all = self.conjuncts(*x, factor, rest);
                all.extend(self.conjuncts(*y, factor, rest));
                all
            }
            // Above it is the greatest where either is.
            (Inner::Map(MapOp::Max, _), [x, y], _) if factor > 0 => {
                let of = |arg| self.conjuncts(arg, factor, rest);
                match (of(*x).as_slice(), of(*y).as_slice()) {
                    ([x], [y]) if x.read == y.read => {
                        let line = chord(&x.at, &y.at, &self.range);
                        // The line is the sum times a number of steps, which what is read would have to be too.
                        let line = line.filter(|_| x.read.is_empty());
                        let read = Vec::new();
                        line.map(|at| Predicate { at, read }).into_iter().collect()
                    }
                    _ => Vec::new(),
                }
            }
            (Inner::Map(MapOp::Mul, _), [other, _], [None, Some(k)])
            | (Inner::Map(MapOp::Mul, _), [_, other], [Some(k), None]) => match k.number() {
                Some(k) => into(*other, factor.checked_mul(k), Some(rest.clone())),
                None => Vec::new(),
            },
            (Inner::Map(MapOp::Add, _), [other, _], [None, Some(x)])
            | (Inner::Map(MapOp::Add, _), [_, other], [Some(x), None]) => {
                let rest = x.scaled(factor).and_then(|x| x.plus(rest));
                into(*other, Some(factor), rest)
            }
            _ => Vec::new(),
        }
    }

    /// The value as a sum with integer coefficients, if it is one.
    fn sum(&self, id: InnerId) -> Option<Predicate> {
        match self.arena.get(id) {
            Inner::Iota(axis) => Some(Predicate {
                at: Affine::axis(*axis),
                read: Vec::new(),
            }),
            Inner::Constant(c) => integer(c.value()).map(Predicate::constant),
            Inner::Map(MapOp::Add, args) => {
                let mut sum = Predicate::default();
                for a in args {
                    sum = sum.plus(&self.sum(*a)?)?;
                }
                Some(sum)
            }
            Inner::Map(MapOp::Mul, args) => {
                let [a, b] = args[..] else { return None };
                let (x, y) = (self.sum(a)?, self.sum(b)?);
                match (x.number(), y.number()) {
                    (Some(factor), _) => y.scaled(factor),
                    (None, Some(factor)) => x.scaled(factor),
                    (None, None) => None,
                }
            }
            Inner::Load { buffer, index, .. } => {
                let source = self.buffers.get(buffer.index())?;
                let whole = self.whole.contains(buffer);
                let axes: Vec<AxisId> = source.axes().collect();
                let own = |(at, axis): (&Quotient, &AxisId)| at.as_axis() == Some(*axis);
                let plain = index.iter().zip(&axes).all(own);
                let single = axes.iter().all(|a| (self.range)(*a).single);
                (whole && plain && single).then(|| Predicate {
                    at: Affine::constant(0),
                    read: vec![(
                        1,
                        Entry {
                            buffer: *buffer,
                            axes,
                        },
                    )],
                })
            }
            Inner::Map(MapOp::Div | MapOp::Max | MapOp::Function(_) | MapOp::Select, _)
            | Inner::Reduce { .. }
            | Inner::Dot { .. }
            | Inner::Running { .. } => None,
        }
    }
}

/// A sum that is not negative wherever one of two is that differ along one axis alone. Their greatest is convex there and nowhere above
/// the line between its values at the ends; the sum is that line times the number of steps.
fn chord(x: &Affine, y: &Affine, range: &impl Fn(AxisId) -> Range) -> Option<Affine> {
    let gain = plus(x, &scaled(y, -1)?)?;
    let (slope, along) = match gain.terms() {
        [] => {
            return Some(if gain.offset > 0 {
                x.clone()
            } else {
                y.clone()
            });
        }
        [(slope, axis)] => (*slope, *axis),
        _ => return None,
    };
    let steps = (range(along).extent - 1).max(1);
    let at = |step: i64| Some(slope.checked_mul(step)?.checked_add(gain.offset)?.max(0));
    let (first, last) = (at(0)?, at(steps)?);
    let line = Affine::new(vec![(last - first, along)], first.checked_mul(steps)?)?;
    plus(&scaled(y, steps)?, &line)
}

fn scaled(x: &Affine, factor: i64) -> Option<Affine> {
    let terms = (x.terms().iter())
        .map(|(c, a)| Some((c.checked_mul(factor)?, *a)))
        .collect::<Option<Vec<_>>>()?;
    Affine::new(terms, x.offset.checked_mul(factor)?)
}

fn plus(x: &Affine, y: &Affine) -> Option<Affine> {
    let terms = x.terms().iter().chain(y.terms()).copied();
    Affine::new(terms, x.offset.checked_add(y.offset)?)
}

/// The bound on `axis` that `p >= 0` somewhere in the tile gives.
fn solve(
    predicate: &Predicate,
    axis: AxisId,
    range: &impl Fn(AxisId) -> Range,
    interval: &mut Interval,
) {
    let (p, entries) = (&predicate.at, &predicate.read);
    // What is read counts up to a limit, which has to be beyond all coordinates; and values that f32 does not hold are rounded, up to there.
    let extents = p
        .terms()
        .iter()
        .map(|(c, a)| c.unsigned_abs().saturating_mul(range(*a).extent as u64));
    let reach = extents.fold(p.offset.unsigned_abs(), u64::saturating_add);
    if !entries.is_empty() && reach >= EXACT as u64 {
        return;
    }
    let Some((own, _)) = p.terms().iter().find(|t| t.1 == axis) else {
        return;
    };
    // The largest value of the rest over the tile: `rest = Σ terms + offset`.
    let mut terms = Vec::new();
    let mut offset = p.offset;
    for (c, a) in p.terms().iter().filter(|t| t.1 != axis) {
        let Range {
            extent, cornered, ..
        } = range(*a);
        if cornered {
            let corner = if *c > 0 { Corner::Last } else { Corner::First };
            terms.push((*c, *a, corner));
        } else if *c > 0 {
            let Some(most) = c
                .checked_mul(extent - 1)
                .and_then(|m| offset.checked_add(m))
            else {
                return;
            };
            offset = most;
        }
    }
    if *own < 0 {
        // own·j + rest >= 0  <=>  j <= ⌊rest / |own|⌋  <=>  j < ⌊(rest + |own|) / |own|⌋
        interval.high.push(Bound {
            terms,
            entries: entries.clone(),
            offset: offset - own,
            divisor: -own,
        });
    } else {
        // own·j + rest >= 0  <=>  j >= ⌈−rest / own⌉ = ⌊(−rest + own − 1) / own⌋
        let terms = terms.into_iter().map(|(c, a, at)| (-c, a, at)).collect();
        let entries = entries.iter().map(|(c, e)| (-c, e.clone())).collect();
        interval.low.push(Bound {
            terms,
            entries,
            offset: -offset + own - 1,
            divisor: *own,
        });
    }
}

/// The conditions of `select`s below the reductions that mention the axis, each once.
fn conditions(arena: &Arena, reductions: &[InnerId], axis: AxisId) -> BTreeSet<InnerId> {
    let mut seen = BTreeSet::new();
    let mut stack = reductions.to_vec();
    let mut found = BTreeSet::new();
    while let Some(id) = stack.pop() {
        if !seen.insert(id) {
            continue;
        }
        if let Inner::Map(MapOp::Select, args) = arena.get(id)
            && let Some(condition) = args.first()
            && arena.axes(*condition).contains(axis)
        {
            found.insert(*condition);
        }
        stack.extend(arena.get(id).args());
    }
    found
}

/// A constant that is an integer small enough for coordinates.
pub(super) fn integer(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i64)
}

/// What is known of a value over a whole tile.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// This value, maybe infinite.
    Exactly(f64),
    /// Some real number.
    Finite,
    /// Some real number but 0.
    NonZero,
    /// Anything.
    Unknown,
}

use Known::{Exactly, Finite, NonZero, Unknown};

impl Known {
    fn is_finite(self) -> bool {
        match self {
            Exactly(c) => c.is_finite(),
            Finite | NonZero => true,
            Unknown => false,
        }
    }

    fn join(self, other: Self) -> Self {
        if self == other {
            self
        } else if self.is_finite() && other.is_finite() {
            Finite
        } else {
            Unknown
        }
    }
}

struct Facts<'a> {
    arena: &'a Arena,
    provisional: &'a BTreeSet<InnerId>,
    nonzero: &'a BTreeSet<InnerId>,
    axis: AxisId,
    assumed: Option<(InnerId, bool)>,
    known: BTreeMap<InnerId, Known>,
    plain: BTreeMap<InnerId, Known>,
}

impl Facts<'_> {
    /// Whether a tile's part of a reduction is neutral under the assumption.
    fn neutral(&mut self, reduction: InnerId) -> bool {
        match self.arena.get(reduction).clone() {
            Inner::Reduce { op, arg, .. } => self.of(arg, true) == Exactly(op.neutral()),
            Inner::Dot { a, b, .. } => product(self.of(a, true), self.of(b, true)) == Exactly(0.0),
            Inner::Load { .. }
            | Inner::Constant(_)
            | Inner::Iota(_)
            | Inner::Map(..)
            | Inner::Running { .. } => false,
        }
    }

    fn of(&mut self, id: InnerId, assuming: bool) -> Known {
        // Arguments have smaller indices: computing them in order keeps the recursion shallow.
        for below in reach::order(self.arena, [id]) {
            self.shallow(below, assuming);
        }
        self.shallow(id, assuming)
    }

    fn shallow(&mut self, id: InnerId, assuming: bool) -> Known {
        let memo = if assuming { &self.known } else { &self.plain };
        if let Some(known) = memo.get(&id) {
            return *known;
        }
        let known = self.compute(id, assuming);
        let memo = if assuming {
            &mut self.known
        } else {
            &mut self.plain
        };
        memo.insert(id, known);
        known
    }

    fn compute(&mut self, id: InnerId, assuming: bool) -> Known {
        if self.nonzero.contains(&id) {
            return NonZero;
        }
        if self.provisional.contains(&id) {
            return Finite;
        }
        match self.arena.get(id).clone() {
            Inner::Load { fill, .. } if fill.value().is_finite() => Finite,
            Inner::Load { .. } => Unknown,
            Inner::Iota(_) => Finite,
            Inner::Constant(c) => Exactly(c.value()),
            Inner::Map(MapOp::Select, args) => {
                let [condition, x, y] = args[..] else {
                    return Unknown;
                };
                match self.assumed {
                    Some((assumed, holds)) if assuming && assumed == condition => {
                        self.shallow(if holds { x } else { y }, assuming)
                    }
                    Some(_) | None => self.shallow(x, assuming).join(self.shallow(y, assuming)),
                }
            }
            Inner::Map(op, args) => {
                let known: Vec<Known> = args.iter().map(|a| self.shallow(*a, assuming)).collect();
                apply(op, &known)
            }
            Inner::Running { .. } => Unknown,
            // The assumption speaks of one tile of the loop: it says nothing about a reduction over the whole axis.
            Inner::Reduce {
                op,
                arg,
                axes,
                bound,
            } => {
                let here = assuming && (!axes.contains(self.axis) || bound.contains(self.axis));
                match (op, self.shallow(arg, here)) {
                    (_, Finite | NonZero) => Finite,
                    (ReduceOp::Max, Exactly(c)) => Exactly(c),
                    (ReduceOp::Product, Exactly(c)) if c == 0.0 || c == 1.0 => Exactly(c),
                    (ReduceOp::Sum, Exactly(0.0)) => Exactly(0.0),
                    (ReduceOp::Sum | ReduceOp::Product, Exactly(c)) if c.is_finite() => Finite,
                    (ReduceOp::Sum | ReduceOp::Product, Exactly(_)) | (_, Unknown) => Unknown,
                }
            }
            Inner::Dot { a, b, axes, bound } => {
                let here = assuming && (!axes.contains(self.axis) || bound.contains(self.axis));
                match product(self.shallow(a, here), self.shallow(b, here)) {
                    Exactly(0.0) => Exactly(0.0),
                    Exactly(c) if c.is_finite() => Finite,
                    Finite | NonZero => Finite,
                    Exactly(_) | Unknown => Unknown,
                }
            }
        }
    }
}

fn product(x: Known, y: Known) -> Known {
    match (x, y) {
        (Exactly(a), Exactly(b)) => number(a * b),
        (Exactly(0.0), other) | (other, Exactly(0.0)) if other.is_finite() => Exactly(0.0),
        (a, b) if a.is_finite() && b.is_finite() => Finite,
        (Exactly(_) | Finite | NonZero | Unknown, _) => Unknown,
    }
}

/// The result, unless it is no number.
fn number(x: f64) -> Known {
    if x.is_nan() { Unknown } else { Exactly(x) }
}

fn apply(op: MapOp, args: &[Known]) -> Known {
    match (op, args) {
        (MapOp::Add, [Exactly(a), Exactly(b)]) => number(a + b),
        (MapOp::Add, [Exactly(c), x] | [x, Exactly(c)]) if c.is_infinite() && x.is_finite() => {
            Exactly(*c)
        }
        (MapOp::Mul, [x, y]) => product(*x, *y),
        (MapOp::Div, [Exactly(a), Exactly(b)]) => number(a / b),
        (MapOp::Div, [Exactly(0.0), NonZero]) => Exactly(0.0),
        (MapOp::Div, [x, NonZero]) if x.is_finite() => Finite,
        // Without knowing that the divisor is not zero, 0/x and x/x are anything.
        (MapOp::Div, [x, Exactly(b)]) if *b != 0.0 && b.is_finite() && x.is_finite() => Finite,
        (MapOp::Max, [Exactly(a), Exactly(b)]) => Exactly(a.max(*b)),
        (MapOp::Max, [Exactly(f64::NEG_INFINITY), x] | [x, Exactly(f64::NEG_INFINITY)]) => *x,
        (MapOp::Function(function), all) => of_function(function, all),
        (MapOp::Add | MapOp::Max, all) if all.iter().all(|x| x.is_finite()) => Finite,
        (MapOp::Add | MapOp::Div | MapOp::Max | MapOp::Mul | MapOp::Select, _) => Unknown,
    }
}

fn of_function(function: Function, args: &[Known]) -> Known {
    let exact = args.iter().map(|x| match x {
        Exactly(c) => Some(*c),
        Finite | NonZero | Unknown => None,
    });
    if let Some(exact) = exact.collect::<Option<Vec<f64>>>() {
        return number(function.apply(&exact));
    }
    let mut all = args.iter().zip(function.row().domains);
    let real = all.all(|(x, domain)| match x {
        Exactly(c) => c.is_finite() && domain.contains(*c),
        Finite | NonZero => *domain == Domain::All,
        Unknown => false,
    });
    if real { Finite } else { Unknown }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Over every small pair of predicates: what a line leaves out, neither of the two asks for; and it is tight at the ends.
    #[test]
    fn a_line_bounds_the_greatest_of_two() {
        let (i, j) = (AxisId(0), AxisId(1));
        for extent in 1..6_i64 {
            let range = |_| Range {
                extent,
                cornered: true,
                single: false,
            };
            for n in 0..5_i64.pow(4) {
                let [a, b, c, d] = [1, 5, 25, 125].map(|p| n / p % 5 - 2);
                for own in [-1, 2] {
                    let x = Affine::new(vec![(a, i), (own, j)], 2 * b).unwrap();
                    let y = Affine::new(vec![(c, i), (own, j)], 2 * d).unwrap();
                    let line = chord(&x, &y, &range).unwrap();
                    for at in 0..extent {
                        for to in 0..8 {
                            let value = |p: &Affine| p.at(|axis| if axis == i { at } else { to });
                            let greatest = value(&x).max(value(&y));
                            assert!(greatest < 0 || value(&line) >= 0);
                            let end = at == 0 || at == extent - 1;
                            assert!(!end || greatest >= 0 || value(&line) < 0);
                        }
                    }
                }
            }
        }
    }
}

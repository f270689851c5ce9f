//! The inside of a kernel as a DAG without views: every view is pushed down to the loads as an affine index.
//!
//! Nodes are hash-consed, so equal sub-expressions are one value. This module knows nothing about tiles or loops.

use crate::egraph::convert::power;
use ir::{
    Affine, Axis, AxisId, AxisSet, BufferId, MapOp, NodeId, Op, Program, Quotient, ReduceOp, Reject,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// More nodes than this in one kernel is a reject: views of shared values can multiply the work without bound.
const MOST_NODES: usize = 20_000;
/// A chain of more views and operations under one substitution than this is a reject.
const DEEPEST: usize = 400;

/// An index into an [`Arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InnerId(pub(crate) u32);

impl InnerId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A real constant, compared by its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bits(u64);

impl Bits {
    pub(crate) fn new(value: f64) -> Self {
        Self(value.to_bits())
    }

    pub(crate) fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// One value of a kernel before it is placed in loops.
///
/// `bound` holds the reduced axes whose current tile alone counts: the value of a reduction inside a loop over them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Inner {
    /// An element of a buffer.
    Load {
        buffer: BufferId,
        index: Vec<Quotient>,
        fill: Bits,
    },
    /// A scalar.
    Constant(Bits),
    /// The coordinate along an axis.
    Iota(AxisId),
    /// An element-wise operation.
    Map(MapOp, Vec<InnerId>),
    /// A reduction over `axes`, all of them axes of the argument.
    Reduce {
        op: ReduceOp,
        arg: InnerId,
        axes: AxisSet,
        bound: AxisSet,
    },
    /// `Σ over axes of a · b`; both have all of `axes`, and each has an axis that the other lacks.
    Dot {
        a: InnerId,
        b: InnerId,
        axes: AxisSet,
        bound: AxisSet,
    },
    /// What a loop over `axis` has reduced of `arg` over `axes`, which `axis` is one of, before a coordinate of it, or with that one.
    Running {
        op: ReduceOp,
        arg: InnerId,
        axes: AxisSet,
        axis: AxisId,
        inclusive: bool,
    },
}

impl Inner {
    /// The values that it is computed from.
    pub(crate) fn args(&self) -> Vec<InnerId> {
        match self {
            Self::Load { .. } | Self::Constant(_) | Self::Iota(_) => Vec::new(),
            Self::Map(_, args) => args.clone(),
            Self::Reduce { arg, .. } | Self::Running { arg, .. } => vec![*arg],
            Self::Dot { a, b, .. } => vec![*a, *b],
        }
    }

    /// The operation, the reduced axes and the bound ones of a reduction or contraction.
    pub(crate) fn reduction(&self) -> Option<(ReduceOp, &AxisSet, &AxisSet)> {
        match self {
            Self::Reduce {
                op, axes, bound, ..
            } => Some((*op, axes, bound)),
            Self::Dot { axes, bound, .. } => Some((ReduceOp::Sum, axes, bound)),
            Self::Load { .. }
            | Self::Constant(_)
            | Self::Iota(_)
            | Self::Map(..)
            | Self::Running { .. } => None,
        }
    }
}

/// Hash-consed values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arena {
    nodes: Vec<(Inner, AxisSet)>,
    known: HashMap<Inner, InnerId>,
}

impl Arena {
    pub(crate) fn get(&self, id: InnerId) -> &Inner {
        &self.nodes[id.index()].0
    }

    pub(crate) fn axes(&self, id: InnerId) -> &AxisSet {
        &self.nodes[id.index()].1
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The value's index; equal values are one.
    pub(crate) fn add(&mut self, inner: Inner) -> InnerId {
        if let Some(id) = self.known.get(&inner) {
            return *id;
        }
        let axes = match &inner {
            Inner::Load { index, .. } => index
                .iter()
                .flat_map(|i| i.axes().as_slice().to_vec())
                .collect(),
            Inner::Constant(_) => AxisSet::new(),
            Inner::Iota(axis) => [*axis].into_iter().collect(),
            Inner::Map(_, args) => args
                .iter()
                .fold(AxisSet::new(), |all, a| all.union(self.axes(*a))),
            Inner::Reduce { arg, axes, .. } => self.axes(*arg).minus(axes),
            Inner::Dot { a, b, axes, .. } => self.axes(*a).union(self.axes(*b)).minus(axes),
            Inner::Running {
                arg, axes, axis, ..
            } => {
                let mut left = self.axes(*arg).minus(axes);
                left.insert(*axis);
                left
            }
        };
        let id = InnerId(self.nodes.len() as u32);
        self.nodes.push((inner.clone(), axes));
        self.known.insert(inner, id);
        id
    }

    pub(crate) fn constant(&mut self, value: f64) -> InnerId {
        self.add(Inner::Constant(Bits::new(value)))
    }

    pub(crate) fn map(&mut self, op: MapOp, args: impl Into<Vec<InnerId>>) -> InnerId {
        self.add(Inner::Map(op, args.into()))
    }

    /// The reduction of `arg`; axes that it does not vary over are multiplied out (sum), dropped (maximum), or a power (product).
    pub(crate) fn reduce(
        &mut self,
        op: ReduceOp,
        arg: InnerId,
        axes: &AxisSet,
        extents: &[Axis],
    ) -> InnerId {
        let present = axes.intersection(self.axes(arg));
        let value = if present.is_empty() {
            arg
        } else if let (ReduceOp::Sum, Inner::Map(MapOp::Mul, factors)) = (op, self.get(arg).clone())
            && let [a, b] = factors[..]
            && self.contracts(a, b, &present)
        {
            self.add(Inner::Dot {
                a,
                b,
                axes: present,
                bound: AxisSet::new(),
            })
        } else {
            self.add(Inner::Reduce {
                op,
                arg,
                axes: present.clone(),
                bound: AxisSet::new(),
            })
        };
        let missing = axes.minus(self.axes(arg));
        match op {
            ReduceOp::Max => value,
            ReduceOp::Sum => self.times_extents(value, &missing, extents),
            ReduceOp::Product => self.power(value, &missing, extents),
        }
    }

    /// `Σ over axes of a · b`, one-sided axes summed first: `Σ_kl a[k,l]·b[k] = Σ_k (Σ_l a[k,l])·b[k]`.
    pub(crate) fn dot(
        &mut self,
        a: InnerId,
        b: InnerId,
        axes: &AxisSet,
        extents: &[Axis],
    ) -> InnerId {
        let (in_a, in_b) = (
            axes.intersection(self.axes(a)),
            axes.intersection(self.axes(b)),
        );
        let missing = axes.minus(&in_a).minus(&in_b);
        let a = self.reduce(ReduceOp::Sum, a, &in_a.minus(&in_b), extents);
        let b = self.reduce(ReduceOp::Sum, b, &in_b.minus(&in_a), extents);
        let both = in_a.intersection(&in_b);
        let product = if self.contracts(a, b, &both) {
            self.add(Inner::Dot {
                a,
                b,
                axes: both,
                bound: AxisSet::new(),
            })
        } else {
            let product = self.map(MapOp::Mul, [a, b]);
            self.reduce(ReduceOp::Sum, product, &both, extents)
        };
        self.times_extents(product, &missing, extents)
    }

    /// Whether the sum of products over `axes` is a contraction with rows and columns of its own.
    fn contracts(&self, a: InnerId, b: InnerId, axes: &AxisSet) -> bool {
        let (x, y) = (self.axes(a), self.axes(b));
        !axes.is_empty()
            && axes.is_subset(x)
            && axes.is_subset(y)
            && !x.minus(y).is_empty()
            && !y.minus(x).is_empty()
    }

    fn times_extents(&mut self, value: InnerId, missing: &AxisSet, extents: &[Axis]) -> InnerId {
        if missing.is_empty() {
            return value;
        }
        let count: f64 = missing
            .iter()
            .map(|a| extents[a.index()].extent as f64)
            .product();
        let count = self.constant(count);
        self.map(MapOp::Mul, [value, count])
    }

    fn power(&mut self, value: InnerId, missing: &AxisSet, extents: &[Axis]) -> InnerId {
        let each = missing.iter().map(|a| extents[a.index()].extent);
        let count = each.product::<u64>();
        power(value, count, |x, y| self.map(MapOp::Mul, [x, y]))
    }

    /// `Σ coefficient · iota + offset` as a value.
    pub(crate) fn affine(&mut self, affine: &Affine) -> InnerId {
        let mut sum = None;
        for (c, axis) in affine.terms() {
            let mut term = self.add(Inner::Iota(*axis));
            if *c != 1 {
                let factor = self.constant(*c as f64);
                term = self.map(MapOp::Mul, [term, factor]);
            }
            sum = Some(match sum {
                None => term,
                Some(sum) => self.map(MapOp::Add, [sum, term]),
            });
        }
        match (sum, affine.offset) {
            (None, offset) => self.constant(offset as f64),
            (Some(sum), 0) => sum,
            (Some(sum), offset) => {
                let offset = self.constant(offset as f64);
                self.map(MapOp::Add, [sum, offset])
            }
        }
    }
}

/// Affine functions in place of a node's axes; axes that it does not name stay themselves.
pub(crate) type Substitution = BTreeMap<AxisId, Affine>;

/// Lowers the nodes of an expression into one kernel's arena.
#[derive(Clone, Debug)]
pub(crate) struct Lowering<'a> {
    program: &'a Program,
    /// What is read instead of computed: parameters and values that earlier kernels stored.
    sources: BTreeMap<NodeId, (BufferId, Vec<AxisId>)>,
    /// The program's axes, then fresh copies of reduced axes that a substitution would have captured.
    pub(crate) axes: Vec<Axis>,
    pub(crate) arena: Arena,
    memo: HashMap<(NodeId, Vec<(AxisId, Affine)>), InnerId>,
    fresh: BTreeMap<AxisId, Vec<AxisId>>,
    depth: usize,
    /// The node and substitution that a reduction came from.
    pub(crate) origins: BTreeMap<InnerId, (NodeId, Substitution)>,
    /// The buffers that hold whole numbers, which a bound may read.
    pub(crate) whole: BTreeSet<BufferId>,
}

impl<'a> Lowering<'a> {
    /// `axes` starts with the program's axes.
    pub(crate) fn new(
        program: &'a Program,
        sources: BTreeMap<NodeId, (BufferId, Vec<AxisId>)>,
        axes: Vec<Axis>,
    ) -> Self {
        Self {
            program,
            sources,
            axes,
            arena: Arena::default(),
            memo: HashMap::new(),
            fresh: BTreeMap::new(),
            depth: 0,
            origins: BTreeMap::new(),
            whole: BTreeSet::new(),
        }
    }

    /// The expression.
    pub(crate) fn program(&self) -> &'a Program {
        self.program
    }

    /// Whether a node is read from a buffer.
    pub(crate) fn is_source(&self, node: NodeId) -> bool {
        self.sources.contains_key(&node)
    }

    /// The value of `node` where each axis takes the coordinate that `by` gives.
    ///
    /// Coordinates may leave the node's extents where a surrounding view selects its fill value instead; loads are
    /// filled there and the value is never seen.
    pub(crate) fn lower(&mut self, node: NodeId, by: &Substitution) -> Result<InnerId, Reject> {
        let n = self.program.node(node);
        let by: Substitution = by
            .iter()
            .filter(|(a, f)| n.axes.contains(**a) && f.as_axis() != Some(**a))
            .map(|(a, f)| (*a, f.clone()))
            .collect();
        let key = (node, by.iter().map(|(a, f)| (*a, f.clone())).collect());
        if let Some(known) = self.memo.get(&key) {
            return Ok(*known);
        }
        if self.arena.len() > MOST_NODES {
            return Err(Reject::Assignment(format!(
                "more than {MOST_NODES} values in one kernel"
            )));
        }
        if self.depth > DEEPEST {
            return Err(Reject::Assignment(format!(
                "more than {DEEPEST} operations on each other"
            )));
        }
        let id = if self.sources.contains_key(&node) {
            self.load(node, |a| by.get(&a).cloned().map(Quotient::from), 0.0)
        } else {
            self.depth += 1;
            let made = self.compute(node, &by);
            self.depth -= 1;
            made?
        };
        if self.arena.get(id).reduction().is_some() {
            self.origins.entry(id).or_insert((node, by));
        }
        self.memo.insert(key, id);
        Ok(id)
    }

    /// The value of a root. Long chains of operations are lowered from below, so that recursion stays shallow.
    pub(crate) fn root(&mut self, node: NodeId) -> Result<InnerId, Reject> {
        let none = Substitution::new();
        let mut seen = BTreeSet::new();
        let mut stack = vec![node];
        while let Some(n) = stack.pop() {
            let op = &self.program.node(n).op;
            if seen.insert(n) && !self.is_source(n) && !matches!(op, Op::View { .. }) {
                stack.extend(&self.program.node(n).args);
            }
        }
        for n in seen {
            self.lower(n, &none)?;
        }
        self.lower(node, &none)
    }

    /// The value, if it was lowered before.
    pub(crate) fn lowered(&self, node: NodeId, by: &Substitution) -> Option<InnerId> {
        let n = self.program.node(node);
        let by = by
            .iter()
            .filter(|(a, f)| n.axes.contains(**a) && f.as_axis() != Some(**a))
            .map(|(a, f)| (*a, f.clone()))
            .collect();
        self.memo.get(&(node, by)).copied()
    }

    fn load(
        &mut self,
        node: NodeId,
        at: impl Fn(AxisId) -> Option<Quotient>,
        fill: f64,
    ) -> InnerId {
        let (buffer, axes) = &self.sources[&node];
        let index = axes
            .iter()
            .map(|a| at(*a).unwrap_or_else(|| Affine::axis(*a).into()))
            .collect();
        self.arena.add(Inner::Load {
            buffer: *buffer,
            index,
            fill: Bits::new(fill),
        })
    }

    fn compute(&mut self, node: NodeId, by: &Substitution) -> Result<InnerId, Reject> {
        let n = self.program.node(node);
        match &n.op {
            Op::Parameter { name, .. } => Err(Reject::Assignment(format!(
                "parameter {name} has no buffer"
            ))),
            Op::Constant(c) => Ok(self.arena.constant(*c)),
            Op::Iota(axis) => {
                let affine = by.get(axis).cloned().unwrap_or_else(|| Affine::axis(*axis));
                Ok(self.arena.affine(&affine))
            }
            Op::View { map, fill } => self.view(n.args[0], map, *fill, by),
            Op::Map(op) => {
                let mut args = Vec::with_capacity(n.args.len());
                for a in &n.args {
                    args.push(self.lower(*a, by)?);
                }
                Ok(self.arena.map(*op, args))
            }
            Op::Reduce { op, axes } => {
                let (by, axes) = self.bind(axes, by);
                let arg = self.lower(n.args[0], &by)?;
                Ok(self.arena.reduce(*op, arg, &axes, &self.axes))
            }
            Op::Dot { axes } => {
                let (by, axes) = self.bind(axes, by);
                let a = self.lower(n.args[0], &by)?;
                let b = self.lower(n.args[1], &by)?;
                Ok(self.arena.dot(a, b, &axes, &self.axes))
            }
        }
    }

    /// `y[..] = x[map]`, composed with the substitution of y's axes.
    fn view(
        &mut self,
        source: NodeId,
        map: &[(AxisId, Quotient)],
        fill: Option<f64>,
        by: &Substitution,
    ) -> Result<InnerId, Reject> {
        let overflow = || Reject::Assignment("an index overflows".to_owned());
        let mut inside = Substitution::new();
        for a in self.program.node(source).axes.iter() {
            if let Some(f) = by.get(&a) {
                inside.insert(a, f.clone());
            }
        }
        if self.sources.contains_key(&source) {
            let mut moved = BTreeMap::new();
            for (a, f) in map {
                let composed = f.substitute(|x| by.get(&x).cloned());
                moved.insert(*a, composed.ok_or_else(overflow)?);
            }
            let at = |a: AxisId| {
                let kept = || inside.get(&a).cloned().map(Quotient::from);
                moved.get(&a).cloned().or_else(kept)
            };
            return Ok(self.load(source, at, fill.unwrap_or(0.0)));
        }
        let mut leaves = Vec::new();
        for (a, place) in map {
            let Some(f) = place.affine() else {
                let fault = "a value is computed where an index is divided: it has to be stored";
                return Err(Reject::Assignment(fault.to_owned()));
            };
            let composed = f.substitute(|x| by.get(&x).cloned()).ok_or_else(overflow)?;
            let (low, high) = f
                .range(|x| (0, self.program.extent(x) as i64 - 1))
                .ok_or_else(overflow)?;
            let last = self.program.extent(*a) as i64 - 1;
            if low < 0 || high > last {
                leaves.push((composed.clone(), low < 0, (high > last).then_some(last)));
            }
            inside.insert(*a, composed);
        }
        let mut value = self.lower(source, &inside)?;
        let Some(fill) = fill else { return Ok(value) };
        let outside = self.arena.constant(fill);
        for (index, below, above) in leaves {
            if below {
                let test = self.arena.affine(&index);
                value = self.arena.map(MapOp::Select, [test, value, outside]);
            }
            if let Some(last) = above {
                // last - index >= 0
                let negated = Affine::new(
                    index.terms().iter().map(|(c, a)| (-c, *a)),
                    last - index.offset,
                )
                .ok_or_else(overflow)?;
                let test = self.arena.affine(&negated);
                value = self.arena.map(MapOp::Select, [test, value, outside]);
            }
        }
        Ok(value)
    }

    /// The substitution below a reduction over `axes`: an axis that the substitution mentions gets a fresh copy.
    fn bind(&mut self, axes: &AxisSet, by: &Substitution) -> (Substitution, AxisSet) {
        let mentioned: AxisSet = by
            .values()
            .flat_map(|f| f.terms().iter().map(|t| t.1).collect::<Vec<_>>())
            .collect();
        let mut inside = by.clone();
        let mut bound = AxisSet::new();
        for axis in axes.iter() {
            inside.remove(&axis);
            if !mentioned.contains(axis) {
                bound.insert(axis);
                continue;
            }
            let copies = self.fresh.entry(axis).or_default();
            let copy = match copies.iter().find(|c| !mentioned.contains(**c)) {
                Some(copy) => *copy,
                None => {
                    let copy = AxisId(self.axes.len() as u32);
                    let mut made = self.axes[axis.index()].clone();
                    made.name = unused_name(&self.axes, &made.name);
                    self.axes.push(made);
                    copies.push(copy);
                    copy
                }
            };
            inside.insert(axis, Affine::axis(copy));
            bound.insert(copy);
        }
        (inside, bound)
    }
}

/// A name that no axis has yet.
pub(crate) fn unused_name(axes: &[Axis], base: &str) -> String {
    (1..)
        .map(|i| format!("{base}_{i}"))
        .find(|name| axes.iter().all(|a| a.name != *name))
        .unwrap_or_else(|| base.to_owned())
}

//! The e-graph language: the operations of programs with n-ary, flat, sorted sums, products and maxima.
//!
//! Three things differ from programs. A sum, a product and a maximum take any number of operands, kept sorted, so that
//! associativity and commutativity need no rules. A quotient is a product with an inverse. A `dot` is a sum over a
//! product; the split into two operands is chosen again when an expression is extracted.
//!
//! This module knows no rule and no cost: it has the language, ways to build it, and the driver that applies rules.

use crate::explain::{Found, Union};
use crate::facts::Algebra;
use egg::{
    Applier, Id, Language, PatternAst, Rewrite, Runner, SearchMatches, Searcher, SimpleScheduler,
    Subst, Symbol, Var,
};
use ir::{Affine, AxisId, AxisSet};
use std::time::Duration;

/// An e-graph over [`Enode`] with the facts of [`crate::facts`].
pub type EGraph = egg::EGraph<Enode, Algebra>;

/// A number as part of a key: equal bits are equal numbers, and there is one zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Real(u64);

impl Real {
    /// The key of a number; `-0` becomes `0`.
    pub fn new(value: f64) -> Self {
        Self(if value == 0.0 { 0 } else { value.to_bits() })
    }

    /// The number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// What an e-node computes from its operands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// An entry of the symbol table of [`Algebra`]: a parameter, or anything that is not looked into.
    Symbol(u32),
    /// A scalar.
    Constant(Real),
    /// The coordinate along an axis.
    Iota(AxisId),
    /// Re-indexing, as in [`ir::Op::View`].
    View {
        /// Sorted by source axis.
        map: Vec<(AxisId, Affine)>,
        /// The value outside the source.
        fill: Option<Real>,
    },
    /// `Σ operands`, at least two.
    Add,
    /// `Π operands`, at least two.
    Mul,
    /// The largest operand, at least two.
    Max,
    /// `1 / x`
    Inv,
    /// `e^x`
    Exp,
    /// `ln x`
    Log,
    /// `√x`
    Sqrt,
    /// `select(c, x, y)`
    Select,
    /// The sum over axes.
    Sum(AxisSet),
    /// The maximum over axes.
    Maximum(AxisSet),
}

/// A [`Kind`] without its data: what rules are indexed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the variants are those of Kind")]
pub enum Tag {
    Symbol,
    Constant,
    Iota,
    View,
    Add,
    Mul,
    Max,
    Inv,
    Exp,
    Log,
    Sqrt,
    Select,
    Sum,
    Maximum,
}

impl Kind {
    /// The kind without its data.
    pub fn tag(&self) -> Tag {
        match self {
            Self::Symbol(_) => Tag::Symbol,
            Self::Constant(_) => Tag::Constant,
            Self::Iota(_) => Tag::Iota,
            Self::View { .. } => Tag::View,
            Self::Add => Tag::Add,
            Self::Mul => Tag::Mul,
            Self::Max => Tag::Max,
            Self::Inv => Tag::Inv,
            Self::Exp => Tag::Exp,
            Self::Log => Tag::Log,
            Self::Sqrt => Tag::Sqrt,
            Self::Select => Tag::Select,
            Self::Sum(_) => Tag::Sum,
            Self::Maximum(_) => Tag::Maximum,
        }
    }

    /// Whether operands may be permuted.
    pub fn commutes(&self) -> bool {
        matches!(self, Self::Add | Self::Mul | Self::Max)
    }
}

/// An e-node. The operands of a commutative kind are sorted by e-class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Enode {
    /// What is computed.
    pub kind: Kind,
    /// From which classes.
    pub args: Vec<Id>,
}

impl Enode {
    /// An e-node in canonical operand order.
    pub fn new(kind: Kind, mut args: Vec<Id>) -> Self {
        if kind.commutes() {
            args.sort_unstable();
        }
        Self { kind, args }
    }
}

impl Language for Enode {
    type Discriminant = Tag;

    fn discriminant(&self) -> Tag {
        self.kind.tag()
    }

    fn matches(&self, other: &Self) -> bool {
        self.kind == other.kind && self.args.len() == other.args.len()
    }

    fn children(&self) -> &[Id] {
        &self.args
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }

    // egg canonicalises e-nodes through this method, so sorting here keeps n-ary operands sorted after unions and makes
    // congruence see through permutations. Overriding it is why there are no commutativity rules.
    fn update_children<F: FnMut(Id) -> Id>(&mut self, mut f: F) {
        for id in &mut self.args {
            *id = f(*id);
        }
        if self.kind.commutes() {
            self.args.sort_unstable();
        }
    }
}

/// Adds a scalar.
pub fn constant(g: &mut EGraph, value: f64) -> Id {
    g.add(Enode::new(Kind::Constant(Real::new(value)), Vec::new()))
}

/// Adds an operation of one operand.
pub fn unary(g: &mut EGraph, kind: Kind, x: Id) -> Id {
    g.add(Enode::new(kind, vec![x]))
}

/// Adds `Σ xs`; the empty sum is 0 and a sum of one term is the term.
pub fn sum(g: &mut EGraph, xs: Vec<Id>) -> Id {
    nary(g, Kind::Add, 0.0, xs)
}

/// Adds `Π xs`; the empty product is 1 and a product of one factor is the factor.
pub fn product(g: &mut EGraph, xs: Vec<Id>) -> Id {
    nary(g, Kind::Mul, 1.0, xs)
}

/// Adds the largest of `xs`; of none it is −∞.
pub fn maximum(g: &mut EGraph, xs: Vec<Id>) -> Id {
    nary(g, Kind::Max, f64::NEG_INFINITY, xs)
}

/// Adds `c · x`.
pub fn scaled(g: &mut EGraph, c: f64, x: Id) -> Id {
    if c == 1.0 {
        return x;
    }
    let c = constant(g, c);
    product(g, vec![c, x])
}

fn nary(g: &mut EGraph, kind: Kind, empty: f64, xs: Vec<Id>) -> Id {
    match xs.as_slice() {
        [] => constant(g, empty),
        [x] => *x,
        [..] => g.add(Enode::new(kind, xs)),
    }
}

/// The e-nodes of a class with a tag.
pub fn members(g: &EGraph, class: Id, tag: Tag) -> impl Iterator<Item = &Enode> {
    g[class].nodes.iter().filter(move |n| n.kind.tag() == tag)
}

/// The constant that a class is known to be.
pub fn known(g: &EGraph, class: Id) -> Option<f64> {
    g[class].data.constant.map(Real::get)
}

/// What a rule does with one e-node of a class: it adds equal terms and returns their classes.
pub type Rewriting = fn(&mut EGraph, &Enode) -> Vec<Id>;

struct At(&'static [Tag]);

impl Searcher<Enode, Algebra> for At {
    fn search_eclass_with_limit(
        &self,
        g: &EGraph,
        eclass: Id,
        _limit: usize,
    ) -> Option<SearchMatches<'_, Enode>> {
        g[eclass]
            .nodes
            .iter()
            .any(|n| self.0.contains(&n.kind.tag()))
            .then(|| SearchMatches {
                eclass,
                substs: vec![Subst::default()],
                ast: None,
            })
    }

    // In the order of class numbers: the order of egg's own table is that of a hash.
    fn search_with_limit(&self, g: &EGraph, limit: usize) -> Vec<SearchMatches<'_, Enode>> {
        let mut classes: Vec<Id> = g.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        classes
            .into_iter()
            .filter_map(|c| self.search_eclass_with_limit(g, c, limit))
            .collect()
    }

    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }
}

struct With {
    roots: &'static [Tag],
    rewriting: Rewriting,
    nodes: usize,
}

impl Applier<Enode, Algebra> for With {
    fn apply_one(
        &self,
        g: &mut EGraph,
        eclass: Id,
        _subst: &Subst,
        _ast: Option<&PatternAst<Enode>>,
        rule: Symbol,
    ) -> Vec<Id> {
        // A constant is simple enough, and its forms are without end.
        if g[eclass].data.constant.is_some() {
            return Vec::new();
        }
        let nodes: Vec<Enode> = g[eclass]
            .nodes
            .iter()
            .filter(|n| self.roots.contains(&n.kind.tag()))
            .cloned()
            .collect();
        let mut changed = Vec::new();
        for node in nodes {
            // egg looks at its node limit between iterations only; one iteration must not run away either.
            if g.total_size() > self.nodes {
                break;
            }
            for new in (self.rewriting)(g, &node) {
                if g.union_trusted(eclass, new, rule) {
                    changed.push(eclass);
                    if let Some(log) = &mut g.analysis.log {
                        log.push(Union {
                            rule,
                            found: Found::Node(node.clone()),
                            given: new,
                        });
                    }
                }
            }
        }
        changed
    }
}

/// A rule in the form that egg runs.
///
/// `nodes` bounds the e-graph's memo within one iteration.
pub fn rewrite(
    name: &str,
    roots: &'static [Tag],
    rewriting: Rewriting,
    nodes: usize,
) -> Option<Rewrite<Enode, Algebra>> {
    let applier = With {
        roots,
        rewriting,
        nodes,
    };
    Rewrite::new(name, At(roots), applier).ok()
}

/// Applies rules until nothing changes or a limit is met. Limits are counts, so a run repeats.
pub fn saturate(
    graph: EGraph,
    rules: &[Rewrite<Enode, Algebra>],
    nodes: usize,
    iterations: usize,
) -> EGraph {
    let runner = Runner::<Enode, Algebra>::new(graph.analysis.clone())
        .with_egraph(graph)
        .with_scheduler(SimpleScheduler)
        .with_node_limit(nodes)
        .with_iter_limit(iterations)
        .with_time_limit(Duration::MAX)
        .run(rules);
    runner.egraph
}

/// Adds an element-wise operation of programs.
pub fn map(g: &mut EGraph, op: ir::MapOp, xs: &[Id]) -> Id {
    use ir::MapOp;
    match op {
        MapOp::Add => sum(g, xs.to_vec()),
        MapOp::Mul => product(g, xs.to_vec()),
        MapOp::Max => maximum(g, xs.to_vec()),
        MapOp::Div => {
            let mut factors = xs.to_vec();
            if let Some(divisor) = factors.last_mut() {
                *divisor = unary(g, Kind::Inv, *divisor);
            }
            product(g, factors)
        }
        MapOp::Exp => g.add(Enode::new(Kind::Exp, xs.to_vec())),
        MapOp::Log => g.add(Enode::new(Kind::Log, xs.to_vec())),
        MapOp::Sqrt => g.add(Enode::new(Kind::Sqrt, xs.to_vec())),
        MapOp::Select => g.add(Enode::new(Kind::Select, xs.to_vec())),
    }
}

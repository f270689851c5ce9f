//! Corrections of cascaded reductions: what makes a partial reduction right after the value that it used has changed.
//!
//! Let `R` be a reduction over axes `j`, and `A = Σ_j f(j, R)` a later one over the same axes. To run both in one pass we
//! need, for any provisional value `r` of `R`, a correction free of `j` with
//!
//! ```text
//! f(j, R) = f(j, r) · c(r, R)      for a sum
//! f(j, R) = f(j, r) + c(r, R)      for a maximum
//! ```
//!
//! The guess comes from an e-graph of *formal* quotients (or differences): `f(j, R) · f(j, r)⁻¹` is saturated with
//! rules that cancel without asking whether anything is zero, and if some member of its class is free of `j`, that is the
//! guess. A guess proves nothing, so it is certified on random values, zeros among them, in floating point and, where the
//! operations permit, exactly in a prime field. What is not certified is not returned.
//!
//! *The start.* `c` is certified to stay finite when every old provisional value is 0. A running maximum starts at −∞,
//! where `r − R` has no value: whoever runs a correction replaces an infinite provisional value by 0 before it is used, in
//! `f` as well as in `c`. Where `f(j, 0)` itself is singular (a division by a running sum that is still zero), the value
//! of that tile, not the correction, must be guarded by the user.
//!
//! *On the way.* `f` must not vanish, nor be singular, at any other provisional value: when `r` is 1, `f(j, r) = x_j·(1 − r)` has forgotten
//! `x_j`. So certification also looks where provisional values meet a constant or another value, and refuses a divisor that has a factor
//! which changes its sign, and what has no value on the way though it has one at the end.
//!
//! *Of running maxima alone.* Where no such `c` is found, a reduction may still be one of which a higher maximum leaves nothing: see `discard`.

mod certify;
mod discard;
mod formal;

use crate::egraph;
use crate::egraph::convert;
use crate::egraph::enode::{Enode, Kind};
use crate::egraph::facts::{Algebra, EGraph};
use egg::{CostFunction, Extractor, Id, RecExpr};
use ir::{AxisSet, MapOp, NodeId, Op, Program, ReduceOp};
use std::collections::BTreeMap;

/// An index into [`Correction::terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TermId(pub u32);

/// One step of a correction. Operands come before their users.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    /// `provisional[k]` at the old provisional value.
    Old(usize),
    /// `provisional[k]` at the new value.
    New(usize),
    /// A node of the program that is free of the reduced axes and does not depend on any provisional reduction.
    Leaf(NodeId),
    /// A scalar.
    Constant(f64),
    /// An element-wise operation.
    Map(MapOp, Vec<TermId>),
}

/// A certified correction: `f(j, R) = f(j, r) · c(r, R)` when `op` is a sum, `f(j, R) = f(j, r) + c(r, R)` when it is a
/// maximum.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// The reduction that is corrected.
    pub op: ReduceOp,
    /// The steps of `c`.
    pub terms: Vec<Term>,
    /// `c` itself.
    pub root: TermId,
    /// Whether it holds for running maxima as they are, infinite ones too, and not for any provisional value.
    pub exact: bool,
}

/// The correction of `reduction` when the reductions `provisional` that it uses have provisional values.
///
/// `reduction` is a `reduce` or a `dot` over at least `axes` whose body uses the nodes `provisional`, earlier reductions
/// over the same axes. The correction is free of every axis that `reduction` reduces. `None` where no correction was
/// found or where the guess could not be certified: two passes are needed. Deterministic; takes milliseconds.
pub fn derive(
    program: &Program,
    reduction: NodeId,
    axes: &AxisSet,
    provisional: &[NodeId],
) -> Option<Correction> {
    let body = Body::of(program, reduction, axes, provisional)?;
    let guess = guess(&body).filter(|guess| certify::certify(&body, guess));
    guess.or_else(|| match provisional {
        [maximum] => discard::derive(program, reduction, *maximum),
        [..] => None,
    })
}

/// The function `f` under a reduction, as far as it depends on provisional values.
struct Body {
    op: ReduceOp,
    /// Every axis that the reduction removes.
    reduced: AxisSet,
    provisional: Vec<Running>,
    /// The least and the greatest that values can be.
    ranges: BTreeMap<NodeId, [f64; 2]>,
    /// Operands before users.
    items: Vec<Item>,
    /// `f`
    root: usize,
}

/// A provisional value.
struct Running {
    /// Its reduced axes (none, in a sensible program).
    axes: AxisSet,
    /// Whether it is a sum, whose zeros are replaced before anything divides by them.
    is_sum: bool,
    /// The sign that it has from its first value on, where it is known: terms of one sign have a sum and a maximum of that sign.
    sign: Option<f64>,
    /// Whether it may be zero.
    may_vanish: bool,
}

/// One step of [`Body`].
#[derive(Clone, PartialEq)]
enum Item {
    /// A value that depends on reduced axes and on no provisional value.
    Opaque(NodeId),
    /// A value that depends on neither.
    Leaf(NodeId),
    /// A provisional value.
    Provisional(usize),
    Constant(f64),
    Map(MapOp, Vec<usize>),
}

impl Body {
    fn of(
        program: &Program,
        reduction: NodeId,
        axes: &AxisSet,
        provisional: &[NodeId],
    ) -> Option<Self> {
        let node = program.nodes.get(reduction.index())?;
        let (op, reduced) = match &node.op {
            Op::Reduce { op, axes } => (*op, axes),
            Op::Dot { axes } => (ReduceOp::Sum, axes),
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => {
                return None;
            }
        };
        if !axes.is_subset(reduced) || provisional.iter().any(|p| *p >= reduction) {
            return None;
        }
        let mut depends = vec![false; reduction.index()];
        for (i, n) in program.nodes[..reduction.index()].iter().enumerate() {
            depends[i] = provisional.contains(&NodeId(i as u32))
                || n.args.iter().any(|a| depends[a.index()]);
        }
        let ranges = convert::ranges(program);
        let running = |p: NodeId| {
            let [low, high] = ranges[p.index()];
            Running {
                axes: program.node(p).axes.intersection(reduced),
                is_sum: !matches!(
                    program.node(p).op,
                    Op::Reduce {
                        op: ReduceOp::Max,
                        ..
                    }
                ),
                sign: match (low >= 0.0, high <= 0.0) {
                    (true, _) => Some(1.0),
                    (false, true) => Some(-1.0),
                    (false, false) => None,
                },
                may_vanish: low <= 0.0 && high >= 0.0,
            }
        };
        let mut body = Self {
            op,
            reduced: reduced.clone(),
            provisional: provisional.iter().map(|p| running(*p)).collect(),
            ranges: BTreeMap::new(),
            items: Vec::new(),
            root: 0,
        };
        // In arena order, so that operands come first without recursion.
        let mut wanted = vec![false; reduction.index()];
        for a in &node.args {
            wanted[a.index()] = true;
        }
        for i in (0..reduction.index()).rev() {
            if wanted[i] && depends[i] && !provisional.contains(&NodeId(i as u32)) {
                for a in &program.nodes[i].args {
                    wanted[a.index()] = true;
                }
            }
        }
        let mut at = BTreeMap::new();
        for i in (0..reduction.index()).filter(|i| wanted[*i]) {
            let id = NodeId(i as u32);
            let n = program.node(id);
            let item = if let Some(k) = provisional.iter().position(|p| *p == id) {
                Item::Provisional(k)
            } else if !depends[i] {
                match n.op {
                    Op::Constant(c) => Item::Constant(c),
                    Op::Parameter { .. }
                    | Op::Iota(_)
                    | Op::View { .. }
                    | Op::Map(_)
                    | Op::Reduce { .. }
                    | Op::Dot { .. } => {
                        body.ranges.insert(id, ranges[i]);
                        if n.axes.intersects(reduced) {
                            Item::Opaque(id)
                        } else {
                            Item::Leaf(id)
                        }
                    }
                }
            } else {
                let Op::Map(map) = &n.op else {
                    return None;
                };
                let args: Option<Vec<usize>> = n.args.iter().map(|a| at.get(a).copied()).collect();
                Item::Map(*map, args?)
            };
            at.insert(id, body.items.len());
            body.items.push(item);
        }
        let roots: Option<Vec<usize>> = node.args.iter().map(|a| at.get(a).copied()).collect();
        body.root = match roots?.as_slice() {
            [x] => *x,
            [x, y] => {
                body.items.push(Item::Map(MapOp::Mul, vec![*x, *y]));
                body.items.len() - 1
            }
            [..] => return None,
        };
        Some(body)
    }
}

/// What a symbol of the e-graph of quotients stands for.
#[derive(Clone, Copy)]
enum Meaning {
    Old(usize),
    New(usize),
    Leaf(NodeId),
    Opaque,
    /// A number that is handled by name, without its sign.
    Constant(f64),
}

/// Whether products and quotients of such constants round nothing: zero, and powers of two. Others stay what they are: of a tenth times a
/// tenth only about as much as a hundredth remains, and the correction would be right up to rounding alone.
fn folds_exactly(c: f64) -> bool {
    const MANTISSA: u64 = (1 << 52) - 1;
    c == 0.0 || !c.is_finite() || c.to_bits() & MANTISSA == 0
}

/// E-nodes and iterations of the formal e-graph: enough for bodies of a dozen operations, a few milliseconds.
const NODES: usize = 4_000;
const ITERATIONS: usize = 10;

fn guess(body: &Body) -> Option<Correction> {
    let mut symbols = Vec::new();
    let mut meaning = Vec::new();
    // The first symbol of each item.
    let mut named: Vec<usize> = Vec::new();
    for item in &body.items {
        named.push(symbols.len());
        let mut add = |axes: AxisSet, m: Meaning| {
            symbols.push(axes);
            meaning.push(m);
        };
        match item {
            Item::Opaque(_) => add(body.reduced.clone(), Meaning::Opaque),
            Item::Leaf(id) => add(AxisSet::new(), Meaning::Leaf(*id)),
            Item::Provisional(k) => {
                add(body.provisional[*k].axes.clone(), Meaning::Old(*k));
                add(body.provisional[*k].axes.clone(), Meaning::New(*k));
            }
            Item::Constant(c) if folds_exactly(*c) => {}
            Item::Constant(c) => {
                let same = |m: &Meaning| matches!(m, Meaning::Constant(x) if *x == c.abs());
                match meaning.iter().position(same) {
                    Some(known) => *named.last_mut()? = known,
                    None => {
                        symbols.push(AxisSet::new());
                        meaning.push(Meaning::Constant(c.abs()));
                    }
                }
            }
            Item::Map(..) => {}
        }
    }
    let mut g = EGraph::new(Algebra {
        symbols,
        ..Algebra::default()
    });
    let old = embed(&mut g, body, &named, false);
    let new = embed(&mut g, body, &named, true);
    let root = match body.op {
        ReduceOp::Sum => {
            let inverse = egraph::unary(&mut g, Kind::Inv, old);
            egraph::product(&mut g, vec![new, inverse])
        }
        ReduceOp::Max => {
            let negative = egraph::scaled(&mut g, -1.0, old);
            egraph::sum(&mut g, vec![new, negative])
        }
        // As many factors as there are elements: none is right for all of them.
        ReduceOp::Product => return None,
    };
    g.rebuild();
    let rules = formal::rules(NODES);
    let g = egraph::saturate(g, &rules, NODES, ITERATIONS);
    if !g[root].data.axes.is_empty() {
        return None;
    }
    let (cost, best) = Extractor::new(&g, Small { graph: &g }).find_best(root);
    if !cost.is_finite() {
        return None;
    }
    Some(Correction {
        op: body.op,
        ..read(&best, &meaning)?
    })
}

/// `f` at the new or at the old provisional values.
fn embed(g: &mut EGraph, body: &Body, named: &[usize], new: bool) -> Id {
    let symbol = |g: &mut EGraph, n: usize| g.add(Enode::new(Kind::Symbol(n as u32), Vec::new()));
    let mut ids: Vec<Id> = Vec::with_capacity(body.items.len());
    for (item, name) in body.items.iter().zip(named) {
        let id = match item {
            Item::Opaque(_) | Item::Leaf(_) => symbol(g, *name),
            Item::Provisional(_) => symbol(g, *name + usize::from(new)),
            Item::Constant(c) if folds_exactly(*c) => egraph::constant(g, *c),
            Item::Constant(c) => {
                let size = symbol(g, *name);
                egraph::scaled(g, c.signum(), size)
            }
            Item::Map(op, args) => {
                let xs: Vec<Id> = args.iter().map(|a| ids[*a]).collect();
                egraph::map(g, *op, &xs)
            }
        };
        ids.push(id);
    }
    ids[body.root]
}

/// Few operations, special functions dear, nothing that mentions a reduced axis. Preferring one `exp` of a difference to
/// a quotient of two is also what keeps corrections from overflowing.
struct Small<'a> {
    graph: &'a EGraph,
}

impl CostFunction<Enode> for Small<'_> {
    type Cost = f64;

    fn cost<C: FnMut(Id) -> f64>(&mut self, node: &Enode, mut of: C) -> f64 {
        let own = match &node.kind {
            Kind::Symbol(s) => match self.graph.analysis.symbols.get(*s as usize) {
                Some(axes) if axes.is_empty() => 1.0,
                Some(_) | None => f64::INFINITY,
            },
            Kind::Constant(_) => 1.0,
            Kind::Add | Kind::Mul | Kind::Max => node.args.len() as f64,
            Kind::Select => 3.0,
            Kind::Inv => 4.0,
            Kind::Function(_) => 12.0,
            Kind::Iota(_)
            | Kind::View { .. }
            | Kind::Sum(_)
            | Kind::Maximum(_)
            | Kind::Product(_) => f64::INFINITY,
        };
        node.args.iter().fold(own, |sum, a| sum + of(*a))
    }
}

/// The correction that an extracted term spells; its `op` is the caller's to set.
fn read(term: &RecExpr<Enode>, meaning: &[Meaning]) -> Option<Correction> {
    let mut terms = Vec::new();
    let mut at: Vec<TermId> = Vec::new();
    let mut push = |t: Term| {
        if let Some(i) = terms.iter().position(|u| *u == t) {
            return TermId(i as u32);
        }
        terms.push(t);
        TermId(terms.len() as u32 - 1)
    };
    for node in term.as_ref() {
        let args: Vec<TermId> = node.args.iter().map(|a| at[usize::from(*a)]).collect();
        let mut chain = |op: MapOp| {
            args.iter()
                .copied()
                .reduce(|x, y| push(Term::Map(op, vec![x, y])))
        };
        let id = match &node.kind {
            Kind::Symbol(s) => match meaning.get(*s as usize)? {
                Meaning::Old(k) => push(Term::Old(*k)),
                Meaning::New(k) => push(Term::New(*k)),
                Meaning::Leaf(n) => push(Term::Leaf(*n)),
                Meaning::Opaque => return None,
                Meaning::Constant(c) => push(Term::Constant(*c)),
            },
            Kind::Constant(c) => push(Term::Constant(c.get())),
            Kind::Add => chain(MapOp::Add)?,
            Kind::Mul => chain(MapOp::Mul)?,
            Kind::Max => chain(MapOp::Max)?,
            Kind::Inv => {
                let one = push(Term::Constant(1.0));
                push(Term::Map(MapOp::Div, vec![one, args[0]]))
            }
            Kind::Function(function) => push(Term::Map(MapOp::Function(*function), args)),
            Kind::Select => push(Term::Map(MapOp::Select, args)),
            Kind::Iota(_)
            | Kind::View { .. }
            | Kind::Sum(_)
            | Kind::Maximum(_)
            | Kind::Product(_) => return None,
        };
        at.push(id);
    }
    let root = *at.last()?;
    Some(Correction {
        op: ReduceOp::Sum,
        terms,
        root,
        exact: false,
    })
}

#[cfg(test)]
mod tests;

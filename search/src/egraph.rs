//! The e-graph: ways to build it, and the driver that applies rules. This module knows no rule and no cost.

pub mod convert;
pub mod enode;
pub mod facts;
pub mod union;

use crate::egraph::enode::{Enode, Kind, Real, Tag};
use crate::egraph::facts::{Algebra, EGraph};
use crate::egraph::union::{Found, Union};
use egg::{
    Applier, Id, PatternAst, Rewrite, Runner, SearchMatches, Searcher, SimpleScheduler, Subst,
    Symbol, Var,
};
use std::time::Duration;

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
        MapOp::Function(function) => g.add(Enode::new(Kind::Function(function), xs.to_vec())),
        MapOp::Select => g.add(Enode::new(Kind::Select, xs.to_vec())),
    }
}

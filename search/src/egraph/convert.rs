//! From programs into the e-graph, and from a choice of members back to a program.

use crate::egraph;
use crate::egraph::enode::{Enode, Kind, Real};
use crate::egraph::facts::{Algebra, EGraph, Facts};
use egg::{Id, Language};
use ir::{AxisId, AxisSet, MapOp, Node, NodeId, Op, Output, Program, ReduceOp};
use std::collections::BTreeMap;

/// Elements that a block of threads keeps in registers with ease.
pub(crate) const HELD: u64 = 1 << 15;

/// A program as an e-graph.
pub struct Embedded {
    /// The graph; symbol `k` is the k-th parameter.
    pub graph: EGraph,
    /// The classes of the outputs.
    pub roots: Vec<Id>,
    /// The e-nodes that the program itself consists of.
    pub originals: Vec<Enode>,
}

/// Embeds a program.
pub fn embed(program: &Program) -> Embedded {
    let mut g = empty(program);
    let roots = add(&mut g, program);
    g.rebuild();
    let mut originals: Vec<Enode> = g.classes().flat_map(|c| c.nodes.iter().cloned()).collect();
    originals.sort();
    Embedded {
        graph: g,
        roots,
        originals,
    }
}

/// Adds a program to a graph whose symbols are its parameters; the classes of its outputs.
pub fn add(g: &mut EGraph, program: &Program) -> Vec<Id> {
    let ids = add_values(g, program);
    let outputs = program.outputs.iter();
    outputs.map(|o| ids[o.value.index()]).collect()
}

/// Of each value of a program, the least and the greatest that it can be by what it is made of; next to zero where it comes near it and
/// is never zero.
pub(crate) fn ranges(program: &Program) -> Vec<[f64; 2]> {
    facts(program, |facts| {
        let off_zero = |x: f64, next: f64| if x == 0.0 && facts.nonzero { next } else { x };
        [
            off_zero(facts.low, f64::MIN_POSITIVE),
            off_zero(facts.high, -f64::MIN_POSITIVE),
        ]
    })
}

/// Of each value of a program, whether it is a real number wherever parameters are, by what it is made of.
pub(crate) fn finite(program: &Program) -> Vec<bool> {
    facts(program, |facts| facts.finite)
}

fn facts<T>(program: &Program, read: impl Fn(&Facts) -> T) -> Vec<T> {
    let mut g = empty(program);
    let ids = add_values(&mut g, program);
    ids.into_iter().map(|id| read(&g[id].data)).collect()
}

/// A graph without terms, whose symbols are the parameters of a program.
fn empty(program: &Program) -> EGraph {
    let parameters = (program.nodes.iter()).filter(|n| matches!(n.op, Op::Parameter { .. }));
    EGraph::new(Algebra {
        symbols: parameters.map(|n| n.axes.clone()).collect(),
        extents: program.axes.iter().map(|a| a.extent).collect(),
        held: HELD,
        ..Algebra::default()
    })
}

/// Adds the values of a program; their classes.
fn add_values(g: &mut EGraph, program: &Program) -> Vec<Id> {
    let mut ids: Vec<Id> = Vec::with_capacity(program.nodes.len());
    let mut symbol = 0;
    for node in &program.nodes {
        let xs: Vec<Id> = node.args.iter().map(|a| ids[a.index()]).collect();
        let id = match &node.op {
            Op::Parameter { .. } => {
                symbol += 1;
                g.add(Enode::new(Kind::Symbol(symbol - 1), Vec::new()))
            }
            Op::Constant(c) => egraph::constant(g, *c),
            Op::Iota(a) => g.add(Enode::new(Kind::Iota(*a), Vec::new())),
            Op::View { map, fill } => g.add(Enode::new(
                Kind::View {
                    map: map.clone(),
                    fill: fill.map(Real::new),
                },
                xs,
            )),
            Op::Map(op) => egraph::map(g, *op, &xs),
            Op::Reduce { op, axes } => g.add(Enode::new(reduction(*op, axes.clone()), xs)),
            Op::Dot { axes } => {
                let p = egraph::product(g, xs);
                egraph::unary(g, Kind::Sum(axes.clone()), p)
            }
        };
        ids.push(id);
    }
    ids
}

/// `x^n` for n > 0 by squares, in products of two.
pub(crate) fn power<T: Copy>(x: T, n: u64, mut product: impl FnMut(T, T) -> T) -> T {
    let (mut square, mut left, mut all) = (x, n, None);
    loop {
        if left % 2 == 1 {
            all = Some(all.map_or(square, |all| product(all, square)));
        }
        left /= 2;
        match all {
            Some(all) if left == 0 => return all,
            _ => square = product(square, square),
        }
    }
}

fn reduction(op: ReduceOp, axes: AxisSet) -> Kind {
    match op {
        ReduceOp::Sum => Kind::Sum(axes),
        ReduceOp::Max => Kind::Maximum(axes),
        ReduceOp::Product => Kind::Product(axes),
    }
}

impl Embedded {
    /// The program's own e-nodes under the present classes.
    pub fn canonical_originals(&self) -> Vec<Enode> {
        let mut all: Vec<Enode> = self
            .originals
            .iter()
            .map(|n| n.clone().map_children(|id| self.graph.find(id)))
            .collect();
        all.sort();
        all.dedup();
        all
    }
}

/// A program under construction: the parameters, axes and outputs of another one, other values.
pub struct Writer<'a> {
    source: &'a Program,
    nodes: Vec<Node>,
    seen: BTreeMap<String, NodeId>,
}

impl<'a> Writer<'a> {
    /// Starts with the parameters of `source`, in their order.
    pub fn new(source: &'a Program) -> Self {
        let parameters = source
            .nodes
            .iter()
            .filter(|n| matches!(n.op, Op::Parameter { .. }));
        Self {
            source,
            nodes: parameters.cloned().collect(),
            seen: BTreeMap::new(),
        }
    }

    /// The axes of a value.
    pub fn axes(&self, id: NodeId) -> &AxisSet {
        &self.nodes[id.index()].axes
    }

    /// The number of elements of a value with these axes.
    pub fn elements(&self, axes: &AxisSet) -> f64 {
        axes.iter().map(|a| self.source.extent(a) as f64).product()
    }

    fn push(&mut self, op: Op, args: Vec<NodeId>, axes: AxisSet) -> NodeId {
        let key = format!("{op:?} {args:?}");
        if let Some(id) = self.seen.get(&key) {
            return *id;
        }
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Node {
            op,
            args,
            axes,
            name: None,
        });
        self.seen.insert(key, id);
        id
    }

    /// The k-th parameter.
    pub fn parameter(&self, k: u32) -> NodeId {
        NodeId(k)
    }

    /// A scalar.
    pub fn constant(&mut self, c: f64) -> NodeId {
        self.push(Op::Constant(c), Vec::new(), AxisSet::new())
    }

    /// A coordinate.
    pub fn iota(&mut self, a: AxisId) -> NodeId {
        self.push(Op::Iota(a), Vec::new(), [a].into_iter().collect())
    }

    /// An element-wise operation.
    pub fn map(&mut self, op: MapOp, args: Vec<NodeId>) -> NodeId {
        let axes = args
            .iter()
            .fold(AxisSet::new(), |all, a| all.union(self.axes(*a)));
        self.push(Op::Map(op), args, axes)
    }

    /// What a value is if it is a constant.
    fn known(&self, id: NodeId) -> Option<f64> {
        match self.nodes[id.index()].op {
            Op::Constant(c) => Some(c),
            Op::Parameter { .. }
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot { .. } => None,
        }
    }

    /// The operands with their constants combined; one that changes nothing is left out.
    fn folded(&mut self, op: MapOp, args: Vec<NodeId>) -> Vec<NodeId> {
        let (neutral, fold): (f64, fn(f64, f64) -> f64) = match op {
            MapOp::Mul => (1.0, |x, y| x * y),
            MapOp::Add => (0.0, |x, y| x + y),
            MapOp::Max => (f64::NEG_INFINITY, f64::max),
            MapOp::Div | MapOp::Function(_) | MapOp::Select => return args,
        };
        let constants = args.iter().filter_map(|a| self.known(*a));
        let mut all = constants.fold(neutral, fold);
        let mut others: Vec<NodeId> = args
            .into_iter()
            .filter(|a| self.known(*a).is_none())
            .collect();
        // An operand that has the other constant already: together they may change nothing.
        for other in &mut others {
            let node = &self.nodes[other.index()];
            let (Op::Map(inner), [x, y]) = (&node.op, node.args.as_slice()) else {
                continue;
            };
            let (c, rest) = match (self.known(*x), self.known(*y)) {
                (Some(c), None) => (c, *y),
                (None, Some(c)) => (c, *x),
                (Some(_), Some(_)) | (None, None) => continue,
            };
            if *inner == op && all != neutral && fold(all, c) == neutral {
                *other = rest;
                all = neutral;
            }
        }
        if all != neutral || others.is_empty() {
            others.push(self.constant(all));
        }
        others
    }

    /// An n-ary operation, small operands first, so that scalars are combined before tensors; constants are combined here.
    pub fn chain(&mut self, op: MapOp, args: Vec<NodeId>) -> Option<NodeId> {
        if args.is_empty() {
            return None;
        }
        let mut args = self.folded(op, args);
        args.sort_by(|x, y| {
            let (a, b) = (self.elements(self.axes(*x)), self.elements(self.axes(*y)));
            a.total_cmp(&b).then(x.cmp(y))
        });
        let mut args = args.into_iter();
        let first = args.next()?;
        Some(args.fold(first, |x, y| self.map(op, vec![x, y])))
    }

    /// A re-indexing; broadcasts a source that lacks a mapped axis where that axis decides about the fill.
    pub fn view(&mut self, map: &[(AxisId, ir::Quotient)], fill: Option<f64>, x: NodeId) -> NodeId {
        let mut x = x;
        let mut kept = Vec::new();
        for (a, f) in map {
            if !self.axes(x).contains(*a) {
                if fill.is_none() {
                    continue;
                }
                x = self.widened(x, *a);
            }
            kept.push((*a, f.clone()));
        }
        if kept.is_empty() {
            return x;
        }
        let mut axes = self.axes(x).clone();
        for (a, _) in &kept {
            axes.remove(*a);
        }
        let axes = kept.iter().fold(axes, |all, (_, f)| all.union(&f.axes()));
        self.push(Op::View { map: kept, fill }, vec![x], axes)
    }

    /// `x + 0 · iota(a)`
    fn widened(&mut self, x: NodeId, a: AxisId) -> NodeId {
        let zero = self.constant(0.0);
        let coordinate = self.iota(a);
        let nothing = self.map(MapOp::Mul, vec![zero, coordinate]);
        self.map(MapOp::Add, vec![x, nothing])
    }

    /// A reduction; axes that the operand lacks multiply a sum by their extent, and are as many factors of a product.
    pub fn reduce(&mut self, op: ReduceOp, axes: &AxisSet, x: NodeId) -> NodeId {
        let live = axes.intersection(self.axes(x));
        let idle = self.elements(&axes.minus(&live));
        let inner = if live.is_empty() {
            x
        } else {
            let rest = self.axes(x).minus(&live);
            self.push(Op::Reduce { op, axes: live }, vec![x], rest)
        };
        match op {
            ReduceOp::Sum if idle != 1.0 => self.scaled(idle, inner),
            ReduceOp::Product if idle != 1.0 => self.power(inner, idle),
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::Product => inner,
        }
    }

    /// `x^n`
    fn power(&mut self, x: NodeId, n: f64) -> NodeId {
        power(x, n as u64, |a, b| self.map(MapOp::Mul, vec![a, b]))
    }

    /// `c · x`
    fn scaled(&mut self, c: f64, x: NodeId) -> NodeId {
        let times = self.constant(c);
        self.chain(MapOp::Mul, vec![times, x]).unwrap_or(x)
    }

    /// A contraction; axes that neither operand has multiply it by their extent.
    pub fn dot(&mut self, axes: &AxisSet, x: NodeId, y: NodeId) -> NodeId {
        let all = self.axes(x).union(self.axes(y));
        let live = axes.intersection(&all);
        if live.is_empty() {
            let p = self.map(MapOp::Mul, vec![x, y]);
            return self.reduce(ReduceOp::Sum, axes, p);
        }
        let idle = self.elements(&axes.minus(&live));
        let rest = all.minus(&live);
        let inner = self.push(Op::Dot { axes: live }, vec![x, y], rest);
        if idle == 1.0 {
            return inner;
        }
        self.scaled(idle, inner)
    }

    /// The program with these values as outputs; `None` if a value has axes that its output lacks.
    pub fn finish(mut self, values: &[NodeId]) -> Option<Program> {
        let mut outputs = Vec::new();
        for (output, value) in self.source.outputs.iter().zip(values) {
            let wanted = &self.source.node(output.value).axes;
            let mut value = *value;
            if !self.axes(value).is_subset(wanted) {
                return None;
            }
            for a in wanted.minus(self.axes(value)).iter() {
                value = self.widened(value, a);
            }
            outputs.push(Output {
                value,
                ..output.clone()
            });
        }
        Some(Program {
            name: self.source.name.clone(),
            axes: self.source.axes.clone(),
            nodes: self.nodes,
            outputs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_take_few_products() {
        for (n, most) in [(1u64, 0), (2, 1), (3, 2), (5, 3), (7, 4), (8, 3), (9, 4)] {
            let mut count = 0;
            let made = power(1u64, n, |x, y| {
                count += 1;
                x + y
            });
            assert_eq!((made, count), (n, most));
        }
    }
}

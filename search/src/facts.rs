//! What is known about every e-class: free axes and constants.
//!
//! Facts are proofs. A missing fact means "unknown", and rules treat unknown as no.

use crate::egraph::{EGraph, Enode, Kind, Real};
use egg::{Analysis, DidMerge, Id};
use ir::AxisSet;

/// The context of an e-graph: what its symbols are.
#[derive(Clone, Debug, Default)]
pub struct Algebra {
    /// The axes of every symbol.
    pub symbols: Vec<AxisSet>,
    /// The extent of every axis.
    pub extents: Vec<u64>,
}

/// What is known about a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The axes on which the value may depend: the intersection over the members, since a value equal to one that does
    /// not mention an axis does not depend on it.
    pub axes: AxisSet,
    /// The value, if it is a known scalar.
    pub constant: Option<Real>,
}

impl Analysis<Enode> for Algebra {
    type Data = Facts;

    fn make(g: &mut EGraph, node: &Enode, _id: Id) -> Facts {
        let operands = node
            .args
            .iter()
            .fold(AxisSet::new(), |all, a| all.union(&g[*a].data.axes));
        let axes = match &node.kind {
            Kind::Symbol(s) => g
                .analysis
                .symbols
                .get(*s as usize)
                .cloned()
                .unwrap_or_default(),
            Kind::Constant(_) => AxisSet::new(),
            Kind::Iota(a) => [*a].into_iter().collect(),
            Kind::View { map, .. } => {
                let mut axes = operands;
                let hit: Vec<_> = map.iter().filter(|(a, _)| axes.remove(*a)).collect();
                hit.iter().fold(axes, |all, (_, f)| all.union(&f.axes()))
            }
            Kind::Sum(over) | Kind::Maximum(over) => operands.minus(over),
            Kind::Add
            | Kind::Mul
            | Kind::Max
            | Kind::Inv
            | Kind::Exp
            | Kind::Log
            | Kind::Sqrt
            | Kind::Select => operands,
        };
        let constant = if let Kind::Constant(c) = node.kind {
            Some(c)
        } else {
            None
        };
        Facts { axes, constant }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        let axes = a.axes.intersection(&b.axes);
        let constant = a.constant.or(b.constant);
        let merged = Facts { axes, constant };
        let did = DidMerge(merged != *a, merged != b);
        *a = merged;
        did
    }
}

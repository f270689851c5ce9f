//! Numbers in which identities are judged: floating point, and the pair of prime fields.

use crate::field::Residues;
use crate::program::MapOp;

/// Values in which terms are computed; `None` where there is no value.
pub trait Number: Copy {
    /// A scalar of a program.
    fn constant(value: f64) -> Option<Self>;
    /// An element-wise operation of as many operands as it takes.
    fn apply(op: MapOp, operands: &[Self]) -> Option<Self>;
}

impl Number for f64 {
    fn constant(value: f64) -> Option<Self> {
        Some(value)
    }

    fn apply(op: MapOp, operands: &[Self]) -> Option<Self> {
        Some(op.apply(operands))
    }
}

/// Only what holds for every number of the fields has a value.
impl Number for Residues {
    fn constant(value: f64) -> Option<Self> {
        Self::constant(value)
    }

    fn apply(op: MapOp, operands: &[Self]) -> Option<Self> {
        match (op, operands) {
            (MapOp::Add, [x, y]) => Some(x.plus(*y)),
            (MapOp::Mul, [x, y]) => Some(x.times(*y)),
            (MapOp::Div, [x, y]) => x.over(*y),
            (MapOp::Function(function), all) if all.len() == function.arity() => {
                (function.row().residues)(all)
            }
            (
                MapOp::Add
                | MapOp::Mul
                | MapOp::Div
                | MapOp::Max
                | MapOp::Function(_)
                | MapOp::Select,
                _,
            ) => None,
        }
    }
}

//! Evaluates programs op by op over any [`Scalar`]: what tile programs are compared with in the field.
//!
//! The reference for numbers is [`ir::eval()`]; this evaluator is checked against it.

use crate::block::{self, Block};
use crate::demand::NodeDemand;
use crate::interpret::{Inputs, extents};
use crate::picked::{Picked, Slice};
use crate::scalar::Scalar;
use crate::simulate_error::SimulateError;
use ir::{AxisId, AxisSet, Dim, NodeId, Op, Program};
use std::borrow::Cow;

use SimulateError::Malformed;

/// Evaluates a program on parameters in memory order; gives the outputs in memory order.
pub fn evaluate<S: Scalar>(
    program: &Program,
    inputs: &[Vec<S>],
) -> Result<Vec<Vec<S>>, SimulateError> {
    evaluate_with(program, inputs, |_, block| block)
}

/// As [`evaluate`], with every node's result passed through `after` (which the baseline uses to round).
pub(crate) fn evaluate_with<S: Scalar>(
    program: &Program,
    inputs: &[Vec<S>],
    after: impl FnMut(NodeId, Block<S>) -> Block<S>,
) -> Result<Vec<Vec<S>>, SimulateError> {
    let demand = NodeDemand::of(program, &Slice::new())?;
    evaluate_at(program, &demand, inputs, after)
}

/// The elements of the outputs that are asked for, in memory order.
pub(crate) fn evaluate_at<S: Scalar, I: Inputs<S> + ?Sized>(
    program: &Program,
    demand: &NodeDemand,
    inputs: &I,
    mut after: impl FnMut(NodeId, Block<S>) -> Block<S>,
) -> Result<Vec<Vec<S>>, SimulateError> {
    let mut parameters = 0;
    let mut values: Vec<Option<Block<S>>> = Vec::with_capacity(program.nodes.len());
    for (i, node) in program.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        let needed = demand.node(id);
        let block = if let Op::Parameter { dims, name, .. } = &node.op {
            let index = parameters;
            parameters += 1;
            let order = memory_order(dims);
            let shape = extents(&program.axes, dims)?;
            // A parameter that nobody needs has to fit all the same.
            let held = match needed {
                Some(needed) => in_order(&node.axes, needed, &order)?,
                None => Vec::new(),
            };
            let data = inputs.elements(index, name, &shape, needed.map(|_| &held[..]))?;
            let lengths: Vec<usize> = held.iter().map(|p| p.len() as usize).collect();
            needed.map(|_| Block::from_order(&order, &lengths, &data))
        } else if let Some(needed) = needed {
            let own = |arg: &NodeId| {
                let (block, held) = (values[arg.index()].as_ref(), demand.node(*arg));
                block
                    .zip(held)
                    .map(|(block, held)| Argument { block, held })
            };
            let args: Option<Vec<Argument<'_, S>>> = node.args.iter().map(own).collect();
            let args = args.ok_or_else(|| Malformed("an argument after its user".into()))?;
            Some(compute(program, &node.op, &node.axes, needed, &args).map_err(Malformed)?)
        } else {
            None
        };
        values.push(block.map(|b| after(id, b)));
    }
    program
        .outputs
        .iter()
        .zip(&demand.results)
        .map(|(o, result)| {
            let order = memory_order(&o.dims);
            let value = values[o.value.index()].as_ref().zip(demand.node(o.value));
            match value {
                Some((block, held)) if block.axes == order.iter().copied().collect() => {
                    let whole = Argument { block, held };
                    Ok(whole.at(&block.axes, result).in_order(&order))
                }
                Some(_) | None => Err(Malformed("an output with other axes than its value".into())),
            }
        })
        .collect()
}

fn memory_order(dims: &[Dim]) -> Vec<AxisId> {
    dims.iter().flat_map(|d| d.0.iter().copied()).collect()
}

/// What is needed along some axes, which all are of the set, in their order.
fn in_order(
    axes: &AxisSet,
    needed: &[Picked],
    order: &[AxisId],
) -> Result<Vec<Picked>, SimulateError> {
    let own = |axis: &AxisId| {
        let at = axes.as_slice().binary_search(axis).ok()?;
        needed.get(at).cloned()
    };
    let all: Option<Vec<Picked>> = order.iter().map(own).collect();
    all.ok_or_else(|| Malformed("a parameter with other axes than its dimensions".into()))
}

/// An operand, and the coordinates of its axes that it has elements at.
struct Argument<'a, S> {
    block: &'a Block<S>,
    held: &'a [Picked],
}

impl<S: Scalar> Argument<'_, S> {
    /// What it has at the coordinates that are needed of an operation's axes; of other axes everything.
    fn at(&self, axes: &AxisSet, needed: &[Picked]) -> Cow<'_, Block<S>> {
        let asked = |axis: AxisId, held: &Picked| {
            let at = axes.as_slice().binary_search(&axis).ok();
            at.map_or_else(|| held.clone(), |at| needed[at].clone())
        };
        let own = self.block.axes.iter().zip(self.held);
        let wanted: Vec<Picked> = own.map(|(axis, held)| asked(axis, held)).collect();
        if wanted == self.held {
            return Cow::Borrowed(self.block);
        }
        let places = wanted.iter().zip(self.held).map(|(wanted, held)| {
            let place = |c| held.position(c).unwrap_or_default();
            wanted.iter().map(place).collect()
        });
        Cow::Owned(self.block.taken(&places.collect::<Vec<Vec<usize>>>()))
    }
}

fn compute<S: Scalar>(
    program: &Program,
    op: &Op,
    axes: &AxisSet,
    needed: &[Picked],
    args: &[Argument<'_, S>],
) -> Result<Block<S>, block::Fault> {
    let taken: Vec<Cow<'_, Block<S>>> = match op {
        Op::View { .. } => Vec::new(),
        Op::Map(_)
        | Op::Reduce { .. }
        | Op::Dot { .. }
        | Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota(_) => args.iter().map(|a| a.at(axes, needed)).collect(),
    };
    let taken: Vec<&Block<S>> = taken.iter().map(Cow::as_ref).collect();
    match (op, taken.as_slice()) {
        (Op::Constant(c), []) => Ok(Block::scalar(S::constant(*c))),
        (Op::Iota(axis), []) => {
            let [coordinates] = needed else {
                return Err("coordinates of another axis".into());
            };
            Ok(Block {
                axes: [*axis].into_iter().collect(),
                shape: vec![coordinates.len() as usize],
                data: coordinates.iter().map(|c| S::integer(c as i64)).collect(),
            })
        }
        (Op::View { map, fill }, []) => match args {
            [x] => view(program, x, map, *fill, axes, needed),
            _ => Err("a view of another number of values than one".into()),
        },
        (Op::Map(op), args) => block::map(*op, args),
        (Op::Reduce { op, axes }, [x]) => block::reduce(*op, x, axes),
        (Op::Dot { axes }, [x, y]) => block::contract(x, y, axes),
        (
            Op::Parameter { .. }
            | Op::Constant(_)
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Reduce { .. }
            | Op::Dot { .. },
            _,
        ) => Err("an operation with a wrong number of arguments".into()),
    }
}

fn view<S: Scalar>(
    program: &Program,
    x: &Argument<'_, S>,
    map: &[(AxisId, ir::Quotient)],
    fill: Option<f64>,
    axes: &AxisSet,
    needed: &[Picked],
) -> Result<Block<S>, block::Fault> {
    let shape: Vec<usize> = needed.iter().map(|p| p.len() as usize).collect();
    let strides = block::strides(&shape);
    let total = block::count(&shape)?;
    let source = block::strides(&x.block.shape);
    let mut data = Vec::with_capacity(total);
    for at in 0..total {
        let coordinate = |a: AxisId| match axes.as_slice().binary_search(&a) {
            Ok(i) => needed[i].at(at / strides[i] % shape[i]) as i64,
            Err(_) => 0,
        };
        let mut flat = Some(0usize);
        for (i, axis) in x.block.axes.iter().enumerate() {
            let c = match map.iter().find(|m| m.0 == axis) {
                Some((_, index)) => index.at(coordinate),
                None => Some(coordinate(axis)),
            };
            let extent = program
                .axes
                .get(axis.index())
                .map_or(0, |a| a.extent as i64);
            let place = match c.filter(|c| (0..extent).contains(c)) {
                Some(c) => Some(
                    x.held[i]
                        .position(c as u64)
                        .ok_or("a view of what was not asked for")?,
                ),
                None => None,
            };
            flat = flat.zip(place).map(|(f, p)| f + p * source[i]);
        }
        data.push(match (flat, fill) {
            (Some(f), _) => x.block.data[f],
            (None, Some(fill)) => S::constant(fill),
            (None, None) => return Err("a view leaves its source and has no fill".into()),
        });
    }
    Ok(Block {
        axes: axes.clone(),
        shape,
        data,
    })
}

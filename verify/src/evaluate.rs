//! Evaluates programs op by op over any [`Scalar`]: what tile programs are compared with in the field.
//!
//! The reference for numbers is [`ir::eval()`]; this evaluator is checked against it.

use crate::block::{self, Block};
use crate::interpret::{SimulateError, extents};
use crate::scalar::Scalar;
use ir::{AxisId, NodeId, Op, Program};

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
    mut after: impl FnMut(NodeId, Block<S>) -> Block<S>,
) -> Result<Vec<Vec<S>>, SimulateError> {
    let mut needed = vec![false; program.nodes.len()];
    for output in &program.outputs {
        *needed
            .get_mut(output.value.index())
            .ok_or_else(|| Malformed("an output of no value".into()))? = true;
    }
    for (i, node) in program.nodes.iter().enumerate().rev() {
        for arg in &node.args {
            if arg.index() >= i {
                return Err(Malformed("an argument after its user".into()));
            }
            needed[arg.index()] |= needed[i];
        }
    }
    let mut parameters = inputs.iter().enumerate();
    let mut values: Vec<Option<Block<S>>> = Vec::with_capacity(program.nodes.len());
    for (i, node) in program.nodes.iter().enumerate() {
        let block = if let Op::Parameter { dims, name, .. } = &node.op {
            let (index, data) = parameters.next().ok_or_else(|| SimulateError::Input {
                index: i,
                expected: format!("an input for `{name}`"),
                found: "none".into(),
            })?;
            let shape = extents(&program.axes, dims)?;
            let n = block::count(&shape).map_err(Malformed)?;
            if data.len() != n {
                return Err(SimulateError::Input {
                    index,
                    expected: format!("{n} elements for `{name}`"),
                    found: data.len().to_string(),
                });
            }
            let order: Vec<AxisId> = dims.iter().flat_map(|d| d.0.iter().copied()).collect();
            Some(Block::from_order(&order, &shape, data))
        } else if needed[i] {
            let args: Vec<&Block<S>> = node
                .args
                .iter()
                .filter_map(|a| values[a.index()].as_ref())
                .collect();
            Some(compute(program, &node.op, &args).map_err(Malformed)?)
        } else {
            None
        };
        values.push(block.map(|b| after(NodeId(i as u32), b)));
    }
    program
        .outputs
        .iter()
        .map(|o| {
            let order: Vec<AxisId> = o.dims.iter().flat_map(|d| d.0.iter().copied()).collect();
            match &values[o.value.index()] {
                Some(block) if block.axes == order.iter().copied().collect() => {
                    Ok(block.in_order(&order))
                }
                Some(_) | None => Err(Malformed("an output with other axes than its value".into())),
            }
        })
        .collect()
}

fn compute<S: Scalar>(
    program: &Program,
    op: &Op,
    args: &[&Block<S>],
) -> Result<Block<S>, block::Fault> {
    let extent = |a: AxisId| {
        let axis = program.axes.get(a.index()).ok_or("there is no such axis")?;
        Ok::<usize, block::Fault>(axis.extent as usize)
    };
    match (op, args) {
        (Op::Constant(c), []) => Ok(Block::scalar(S::constant(*c))),
        (Op::Iota(axis), []) => Ok(Block {
            axes: [*axis].into_iter().collect(),
            shape: vec![extent(*axis)?],
            data: (0..extent(*axis)? as i64).map(S::integer).collect(),
        }),
        (Op::View { map, fill }, [x]) => view(x, map, *fill, extent),
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
    x: &Block<S>,
    map: &[(AxisId, ir::Affine)],
    fill: Option<f64>,
    extent: impl Fn(AxisId) -> Result<usize, block::Fault>,
) -> Result<Block<S>, block::Fault> {
    let mut axes = x.axes.clone();
    for (from, _) in map {
        axes.remove(*from);
    }
    for (_, to) in map {
        axes = axes.union(&to.axes());
    }
    let shape = axes.iter().map(&extent).collect::<Result<Vec<_>, _>>()?;
    let strides = block::strides(&shape);
    let total = block::count(&shape)?;
    let source = block::strides(&x.shape);
    let mut data = Vec::with_capacity(total);
    for at in 0..total {
        let coordinate = |a: AxisId| match axes.as_slice().binary_search(&a) {
            Ok(i) => (at / strides[i] % shape[i]) as i64,
            Err(_) => 0,
        };
        let mut flat = Some(0usize);
        for (i, axis) in x.axes.iter().enumerate() {
            let c = match map.iter().find(|m| m.0 == axis) {
                Some((_, affine)) => affine.at(coordinate),
                None => coordinate(axis),
            };
            let inside = (0..x.shape[i] as i64).contains(&c);
            flat = flat.filter(|_| inside).map(|f| f + c as usize * source[i]);
        }
        data.push(match (flat, fill) {
            (Some(f), _) => x.data[f],
            (None, Some(fill)) => S::constant(fill),
            (None, None) => return Err("a view leaves its source and has no fill".into()),
        });
    }
    Ok(Block { axes, shape, data })
}

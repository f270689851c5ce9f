//! The reference: a program evaluated in f64, operation by operation.
//!
//! Plain on purpose. Values are dense arrays over their axes in ascending order; nothing is fused, nothing reordered.
//! Sums are plain f64 sums in index order.

use crate::affine::Affine;
use crate::axes::{AxisId, AxisSet};
use crate::program::{Dim, MapOp, NodeId, Op, Program, ReduceOp};
use crate::tensor::Tensor;
use rayon::prelude::*;

/// Most elements of one intermediate value (1 GiB).
pub const MAX_VALUE_ELEMENTS: u64 = 1 << 27;
/// Most elements of all intermediate values that are alive at a time (4 GiB).
pub const MAX_LIVE_ELEMENTS: u64 = 1 << 29;
/// Elements that one task computes.
const CHUNK: usize = 4096;

/// Why a program could not be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The program is not well formed.
    #[error("the program is not well formed: {0}")]
    Program(String),
    /// Too few or too many inputs.
    #[error("the program has {expected} parameters, {found} inputs given")]
    Inputs {
        /// Parameters.
        expected: usize,
        /// Inputs.
        found: usize,
    },
    /// An input of another shape.
    #[error("parameter `{name}` has the shape {expected:?}, the input {found:?}")]
    Shape {
        /// The parameter.
        name: String,
        /// Its shape in memory, groups merged.
        expected: Vec<u64>,
        /// The input's shape.
        found: Vec<usize>,
    },
    /// A value, or all values together, would not fit the memory that the reference allows itself.
    #[error(
        "a value with the axes {axes} has {elements} elements, the reference stores at most {limit} at a time"
    )]
    TooLarge {
        /// The value's axes.
        axes: String,
        /// Elements needed.
        elements: u64,
        /// Elements allowed.
        limit: u64,
    },
}

/// A value over its axes in ascending order, the last axis fastest.
struct Array {
    axes: AxisSet,
    data: Vec<f64>,
}

/// Evaluates a program: inputs in parameter order, outputs in output order, all in their declared memory order with
/// groups merged ([`Program::shape`]); nothing is rounded.
///
/// ```
/// # use tilewright_ir as ir;
/// let program: ir::Program = "program f\naxis i = 3\nx = parameter f32 [i]\nreturn f32 [] sum(x * x; i)\n"
///     .parse().expect("a good program");
/// let x = ir::Tensor::new(vec![3], vec![1.0, 2.0, 3.0]).expect("full");
/// assert_eq!(ir::eval(&program, &[x]).expect("small")[0].data, [14.0]);
/// ```
pub fn eval(program: &Program, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    program
        .validate()
        .map_err(|faults| EvalError::Program(faults.join("; ")))?;
    let parameters = program.parameters().count();
    if parameters != inputs.len() {
        return Err(EvalError::Inputs {
            expected: parameters,
            found: inputs.len(),
        });
    }
    let mut last_use = vec![0usize; program.nodes.len()];
    for (at, node) in program.nodes.iter().enumerate() {
        for arg in &node.args {
            last_use[arg.index()] = at;
        }
    }
    for output in &program.outputs {
        last_use[output.value.index()] = usize::MAX;
    }
    let mut inputs = inputs.iter();
    let mut values: Vec<Option<Array>> = Vec::with_capacity(program.nodes.len());
    let mut live = 0u64;
    for (at, node) in program.nodes.iter().enumerate() {
        let elements = program.elements(&node.axes).unwrap_or(u64::MAX);
        for (size, limit) in [
            (elements, MAX_VALUE_ELEMENTS),
            (elements.saturating_add(live), MAX_LIVE_ELEMENTS),
        ] {
            if size > limit {
                return Err(EvalError::TooLarge {
                    axes: program.axis_list(&node.axes),
                    elements: size,
                    limit,
                });
            }
        }
        live += elements;
        let data = match &node.op {
            Op::Parameter { name, dims, .. } => {
                let shape = program.shape(dims);
                let Some(input) = inputs.next() else {
                    return Err(EvalError::Inputs {
                        expected: parameters,
                        found: 0,
                    });
                };
                let same = input.shape.len() == shape.len()
                    && input.shape.iter().zip(&shape).all(|(a, b)| *a as u64 == *b)
                    && input.data.len() as u64 == elements;
                if !same {
                    return Err(EvalError::Shape {
                        name: name.clone(),
                        expected: shape,
                        found: input.shape.clone(),
                    });
                }
                let strides = strides(program, &memory_order(dims), node.axes.as_slice());
                gather(program, node.axes.as_slice(), [strides], |[at]| {
                    input.data[at]
                })
            }
            Op::Constant(_)
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot { .. } => apply(program, &node.op, &node.axes, &node.args, &values),
        };
        values.push(Some(Array {
            axes: node.axes.clone(),
            data,
        }));
        for arg in &node.args {
            if last_use[arg.index()] == at
                && let Some(done) = values[arg.index()].take()
            {
                live -= done.data.len() as u64;
            }
        }
    }
    let outputs = program.outputs.iter().map(|output| {
        let value = argument(&values, output.value);
        let order = memory_order(&output.dims);
        let strides = strides(program, value.axes.as_slice(), &order);
        Tensor {
            shape: program
                .shape(&output.dims)
                .iter()
                .map(|e| *e as usize)
                .collect(),
            data: gather(program, &order, [strides], |[at]| value.data[at]),
        }
    });
    Ok(outputs.collect())
}

fn memory_order(dims: &[Dim]) -> Vec<AxisId> {
    dims.iter().flat_map(|d| d.0.iter().copied()).collect()
}

fn argument(values: &[Option<Array>], id: NodeId) -> &Array {
    values[id.index()]
        .as_ref()
        .expect("a value should live until its last use")
}

fn apply(
    program: &Program,
    op: &Op,
    axes: &AxisSet,
    args: &[NodeId],
    values: &[Option<Array>],
) -> Vec<f64> {
    let args: Vec<&Array> = args.iter().map(|a| argument(values, *a)).collect();
    let out = axes.as_slice();
    let stride = |n: usize, over: &[AxisId]| strides(program, args[n].axes.as_slice(), over);
    match op {
        Op::Parameter { .. } => Vec::new(),
        Op::Constant(value) => vec![*value],
        Op::Iota(axis) => (0..program.extent(*axis)).map(|i| i as f64).collect(),
        Op::View { map, fill } => view(program, out, args[0], map, fill.unwrap_or(f64::NAN)),
        Op::Map(op) => element_wise(program, *op, out, &args),
        Op::Reduce { op, axes } => {
            let (x, combine) = (&args[0].data, op.combine());
            let inner = extents(program, axes.as_slice());
            let steps = stride(0, axes.as_slice());
            gather(program, out, [stride(0, out)], |[at]| {
                let mut total = op.neutral();
                odometer(&inner, [&steps], [at], |[i]| {
                    total = match op {
                        ReduceOp::Sum => total + x[i],
                        ReduceOp::Max => combine.apply(&[total, x[i]]),
                    };
                });
                total
            })
        }
        Op::Dot { axes } => {
            let (x, y) = (&args[0].data, &args[1].data);
            let inner = extents(program, axes.as_slice());
            let steps = [stride(0, axes.as_slice()), stride(1, axes.as_slice())];
            let [by_x, by_y] = [&steps[0], &steps[1]];
            gather(program, out, [stride(0, out), stride(1, out)], |at| {
                let mut total = 0.0;
                odometer(&inner, [by_x, by_y], at, |[i, j]| total += x[i] * y[j]);
                total
            })
        }
    }
}

fn element_wise(program: &Program, op: MapOp, out: &[AxisId], args: &[&Array]) -> Vec<f64> {
    let stride = |n: usize| strides(program, args[n].axes.as_slice(), out);
    match args {
        [x] => gather(program, out, [stride(0)], |[i]| op.apply(&[x.data[i]])),
        [x, y] => gather(program, out, [stride(0), stride(1)], |[i, j]| {
            op.apply(&[x.data[i], y.data[j]])
        }),
        [x, y, z] => gather(
            program,
            out,
            [stride(0), stride(1), stride(2)],
            |[i, j, k]| op.apply(&[x.data[i], y.data[j], z.data[k]]),
        ),
        _ => Vec::new(),
    }
}

fn view(
    program: &Program,
    out: &[AxisId],
    source: &Array,
    map: &[(AxisId, Affine)],
    fill: f64,
) -> Vec<f64> {
    // For each source axis: extent, stride, and its coordinate as offset plus one coefficient an output axis.
    let source_axes = source.axes.as_slice();
    let own = strides(program, source_axes, source_axes);
    let rows: Vec<(i64, i64, i64, Vec<i64>)> = source_axes
        .iter()
        .zip(own)
        .map(|(axis, stride)| {
            let mapped = map.iter().find(|m| m.0 == *axis).map(|m| m.1.clone());
            let index = mapped.unwrap_or_else(|| Affine::axis(*axis));
            let coefficient = |a: &AxisId| -> i64 {
                let term = index.terms().iter().find(|t| t.1 == *a);
                term.map_or(0, |t| t.0)
            };
            let coefficients = out.iter().map(coefficient).collect();
            let extent = program.extent(*axis) as i64;
            (extent, stride as i64, index.offset, coefficients)
        })
        .collect();
    let sizes = extents(program, out);
    let count: usize = sizes.iter().product();
    let mut data = vec![0.0; count];
    data.par_chunks_mut(CHUNK)
        .enumerate()
        .for_each(|(n, chunk)| {
            let mut at = coordinates(n * CHUNK, &sizes);
            for element in chunk {
                let mut offset = Some(0i64);
                for (extent, stride, base, coefficients) in &rows {
                    let index: i64 = coefficients
                        .iter()
                        .zip(&at)
                        .fold(*base, |sum, (c, x)| sum + c * *x as i64);
                    let inside = (0..*extent).contains(&index);
                    offset = offset.filter(|_| inside).map(|o| o + index * stride);
                }
                *element = offset.map_or(fill, |o| source.data[o as usize]);
                for (x, size) in at.iter_mut().zip(&sizes).rev() {
                    *x += 1;
                    if *x < *size {
                        break;
                    }
                    *x = 0;
                }
            }
        });
    data
}

fn extents(program: &Program, axes: &[AxisId]) -> Vec<usize> {
    axes.iter().map(|a| program.extent(*a) as usize).collect()
}

/// How far an array stored as `stored` moves when one coordinate of `over` does: 0 for axes that it lacks.
fn strides(program: &Program, stored: &[AxisId], over: &[AxisId]) -> Vec<usize> {
    over.iter()
        .map(|axis| match stored.iter().position(|a| a == axis) {
            Some(at) => extents(program, &stored[at + 1..]).iter().product(),
            None => 0,
        })
        .collect()
}

/// The coordinates of the n-th element.
fn coordinates(mut n: usize, sizes: &[usize]) -> Vec<usize> {
    let mut at = vec![0; sizes.len()];
    for (x, size) in at.iter_mut().zip(sizes).rev() {
        *x = n % size;
        n /= size;
    }
    at
}

/// One element for each coordinate of `out`, from the offsets of `N` operands.
fn gather<const N: usize>(
    program: &Program,
    out: &[AxisId],
    strides: [Vec<usize>; N],
    element: impl Fn([usize; N]) -> f64 + Sync,
) -> Vec<f64> {
    let sizes = extents(program, out);
    let count: usize = sizes.iter().product();
    let mut data = vec![0.0; count];
    // Few elements may each be long sums: small chunks then, so that all cores have work.
    let chunk_size = CHUNK.min(count.div_ceil(64)).max(1);
    data.par_chunks_mut(chunk_size)
        .enumerate()
        .for_each(|(n, chunk)| {
            let mut at = coordinates(n * chunk_size, &sizes);
            let mut offsets: [usize; N] = std::array::from_fn(|k| {
                let steps = strides[k].iter().zip(&at);
                steps.map(|(s, x)| s * x).sum()
            });
            for value in chunk {
                *value = element(offsets);
                for d in (0..sizes.len()).rev() {
                    at[d] += 1;
                    for k in 0..N {
                        offsets[k] += strides[k][d];
                    }
                    if at[d] < sizes[d] {
                        break;
                    }
                    at[d] = 0;
                    for k in 0..N {
                        offsets[k] -= strides[k][d] * sizes[d];
                    }
                }
            }
        });
    data
}

/// Visits every coordinate of `sizes`, the last dimension fastest, with the offsets of `N` operands.
fn odometer<const N: usize>(
    sizes: &[usize],
    strides: [&Vec<usize>; N],
    start: [usize; N],
    mut visit: impl FnMut([usize; N]),
) {
    fn level<const N: usize>(
        sizes: &[usize],
        strides: [&[usize]; N],
        mut at: [usize; N],
        visit: &mut impl FnMut([usize; N]),
    ) {
        let Some((size, inner)) = sizes.split_first() else {
            return visit(at);
        };
        for _ in 0..*size {
            if inner.is_empty() {
                visit(at);
            } else {
                level(inner, strides.map(|s| &s[1..]), at, visit);
            }
            for k in 0..N {
                at[k] += strides[k][0];
            }
        }
    }
    level(sizes, strides.map(Vec::as_slice), start, &mut visit);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(body: &str) -> Program {
        let source = format!("program p\naxis i = 3, j = 65536, k = 65536\n{body}\n");
        source.parse().expect("a good program")
    }

    #[test]
    fn wrong_inputs_and_large_values_are_errors() {
        let p = program("x = parameter f32 [i]\nreturn f32 [i] x");
        let found = eval(&p, &[]);
        let (expected, none) = (1, 0);
        let counts = EvalError::Inputs {
            expected,
            found: none,
        };
        assert_eq!(found, Err(counts));
        let long = Tensor::new(vec![4], vec![0.0; 4]).expect("full");
        assert!(matches!(eval(&p, &[long]), Err(EvalError::Shape { .. })));
        let large = program("return f32 [j, k] iota(j) + iota(k)");
        assert!(matches!(eval(&large, &[]), Err(EvalError::TooLarge { .. })));
        let mut broken = p.clone();
        broken.nodes[0].axes = AxisSet::new();
        assert!(matches!(eval(&broken, &[]), Err(EvalError::Program(_))));
    }

    #[test]
    fn affine_values_of_a_program_are_recognised() {
        let p =
            program("y = iota(j) - 2 * iota(k) + 7\nreturn f32 [j, k] y, f32 [k] iota(k) * 0.5");
        let (j, k) = (AxisId(1), AxisId(2));
        let [y, half] = [0, 1].map(|n| p.outputs[n].value);
        assert_eq!(p.affine_of(y), Affine::new([(1, j), (-2, k)], 7));
        assert_eq!(p.affine_of(half), None);
    }

    #[test]
    fn a_program_at_other_extents_stays_valid_or_says_why_not() {
        let p = program("x = parameter f32 [i]\nreturn f32 [i] view(x; i -> 2 - i)");
        let at = |n| p.resized(&std::collections::BTreeMap::from([(AxisId(0), n)]));
        assert!(at(2).is_err_and(|why| why.contains("expected a `fill`")));
        assert!(at(3).is_ok_and(|same| same == p));
        assert!(at(0).is_err());
    }
}

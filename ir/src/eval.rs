//! The reference: a program evaluated in f64, operation by operation.
//!
//! Plain on purpose. Values are dense arrays over their axes in ascending order; nothing is fused, nothing reordered but the
//! additions of a sum: `sum.rs` beside this file says in which order they are done. It depends on the extents alone.

mod sum;

use crate::affine::{Affine, Quotient};
use crate::axes::{AxisId, AxisSet};
use crate::limits::MAX_RANK;
use crate::program::{Dim, MapOp, NodeId, Op, Program};
use crate::tensor::Tensor;
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Most elements of one intermediate value (1 GiB).
pub const MAX_VALUE_ELEMENTS: u64 = 1 << 27;
/// Most elements of all intermediate values that are alive at a time (4 GiB).
pub const MAX_LIVE_ELEMENTS: u64 = 1 << 29;
/// Most element operations (an element of a value, a term of a sum) of one evaluation: an hour's work of a few cores.
pub const MAX_OPERATIONS: u64 = 10_000_000_000_000;
/// Elements that one task computes.
const CHUNK: usize = 4096;

/// Why a program could not be evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
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
    /// A number that is none of an integer or boolean parameter.
    #[error("parameter `{name}` is {dtype}, the input holds {found}")]
    Element {
        /// The parameter.
        name: String,
        /// Its dtype.
        dtype: &'static str,
        /// The number.
        found: f64,
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
    /// More arithmetic than anybody waits for.
    #[error(
        "evaluating this takes {:.1e} element operations, the reference does at most {:.0e} (hours): give smaller extents",
        *operations as f64,
        *limit as f64
    )]
    TooLong {
        /// Operations needed.
        operations: u64,
        /// Operations allowed.
        limit: u64,
    },
}

/// How many element operations [`eval`] does for a program: one an element of each value, one a term of each sum. As many as a `u64`
/// holds where they are more.
///
/// # Errors
/// What keeps [`eval`] from doing them at all: an ill-formed program, or [`MAX_VALUE_ELEMENTS`], [`MAX_LIVE_ELEMENTS`] or
/// [`MAX_OPERATIONS`] exceeded. The extents alone tell, so this takes no time.
pub fn operations(program: &Program) -> Result<u64, EvalError> {
    program
        .validate()
        .map_err(|faults| EvalError::Program(faults.join("; ")))?;
    let last_use = last_use(program);
    let elements = |axes: &AxisSet| program.elements(axes).unwrap_or(u64::MAX);
    let (mut live, mut operations) = (0u64, 0u64);
    for (at, node) in program.nodes.iter().enumerate() {
        let size = elements(&node.axes);
        for (size, limit) in [
            (size, MAX_VALUE_ELEMENTS),
            (size.saturating_add(live), MAX_LIVE_ELEMENTS),
        ] {
            if size > limit {
                return Err(EvalError::TooLarge {
                    axes: program.axis_list(&node.axes),
                    elements: size,
                    limit,
                });
            }
        }
        live += size;
        operations = operations.saturating_add(match &node.op {
            Op::Reduce { axes, .. } | Op::Dot { axes } => elements(&node.axes.union(axes)),
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => {
                size
            }
        });
        let mut done: Vec<NodeId> = node.args.clone();
        done.retain(|arg| last_use[arg.index()] == at);
        done.sort_unstable();
        done.dedup();
        live -= done
            .iter()
            .map(|arg| elements(&program.node(*arg).axes))
            .sum::<u64>();
    }
    if operations > MAX_OPERATIONS {
        return Err(EvalError::TooLong {
            operations,
            limit: MAX_OPERATIONS,
        });
    }
    Ok(operations)
}

/// A value over its axes in ascending order, the last axis fastest.
struct Array {
    axes: AxisSet,
    data: Vec<f64>,
}

/// Evaluates a program: inputs in parameter order, outputs in output order, all in their declared memory order with
/// groups merged ([`Program::shape`]); nothing is rounded, nor is there a fraction lost where results are integers: [`crate::Dtype::round`] says what is
/// stored of an element. What is too large or takes too long is an error before any work is done ([`operations`]).
///
/// ```
/// # use tilewright_ir as ir;
/// let program: ir::Program = "program f\naxis i = 3\nx = parameter f32 [i]\nreturn f32 [] sum(x * x; i)\n"
///     .parse().expect("a good program");
/// let x = ir::Tensor::new(vec![3], vec![1.0, 2.0, 3.0]).expect("full");
/// assert_eq!(ir::eval(&program, &[x]).expect("small")[0].data, [14.0]);
/// ```
pub fn eval(program: &Program, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    operations(program)?;
    let parameters = program.parameters().count();
    if parameters != inputs.len() {
        return Err(EvalError::Inputs {
            expected: parameters,
            found: inputs.len(),
        });
    }
    let last_use = last_use(program);
    let mut inputs = inputs.iter();
    let mut values: Vec<Option<Array>> = Vec::with_capacity(program.nodes.len());
    for (at, node) in program.nodes.iter().enumerate() {
        let data = match &node.op {
            Op::Parameter { name, dims, dtype } => {
                let shape = program.shape(dims);
                let Some(input) = inputs.next() else {
                    return Err(EvalError::Inputs {
                        expected: parameters,
                        found: 0,
                    });
                };
                let same = input.shape.len() == shape.len()
                    && input.shape.iter().zip(&shape).all(|(a, b)| *a as u64 == *b)
                    && Some(input.data.len() as u64) == program.elements(&node.axes);
                if !same {
                    return Err(EvalError::Shape {
                        name: name.clone(),
                        expected: shape,
                        found: input.shape.clone(),
                    });
                }
                if let Some(found) = dtype.foreign(&input.data) {
                    return Err(EvalError::Element {
                        name: name.clone(),
                        dtype: dtype.name(),
                        found,
                    });
                }
                let order = memory_order(dims);
                in_order(program, &order, &input.data, node.axes.as_slice()).into_owned()
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
            if last_use[arg.index()] == at {
                values[arg.index()] = None;
            }
        }
    }
    let outputs = program.outputs.iter().map(|output| {
        let value = argument(&values, output.value);
        let order = memory_order(&output.dims);
        Tensor {
            shape: program
                .shape(&output.dims)
                .iter()
                .map(|e| *e as usize)
                .collect(),
            data: in_order(program, value.axes.as_slice(), &value.data, &order).into_owned(),
        }
    });
    Ok(outputs.collect())
}

/// The place of each value's last use; none is after that of an output.
fn last_use(program: &Program) -> Vec<usize> {
    let mut last = vec![0usize; program.nodes.len()];
    for (at, node) in program.nodes.iter().enumerate() {
        for arg in &node.args {
            last[arg.index()] = at;
        }
    }
    for output in &program.outputs {
        last[output.value.index()] = usize::MAX;
    }
    last
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
    match op {
        Op::Parameter { .. } => Vec::new(),
        Op::Constant(value) => vec![*value],
        Op::Iota(axis) => (0..program.extent(*axis)).map(|i| i as f64).collect(),
        Op::View { map, fill } => view(program, out, args[0], map, fill.unwrap_or(f64::NAN)),
        Op::Map(op) => element_wise(program, *op, out, &args),
        Op::Reduce { op, axes } => {
            let x = &args[0].data;
            sum::fold(program, out, axes, [args[0]], *op, |[i]| x[i])
        }
        Op::Dot { axes } => sum::dot(program, out, axes, args[0], args[1]),
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
    map: &[(AxisId, Quotient)],
    fill: f64,
) -> Vec<f64> {
    // For each source axis: extent, stride, and its coordinate as offset plus one coefficient an output axis, over a divisor.
    let source_axes = source.axes.as_slice();
    let own = strides(program, source_axes, source_axes);
    let rows: Vec<(i64, i64, i64, i64, Vec<i64>)> = source_axes
        .iter()
        .zip(own)
        .map(|(axis, stride)| {
            let mapped = map.iter().find(|m| m.0 == *axis).map(|m| m.1.clone());
            let index = mapped.unwrap_or_else(|| Affine::axis(*axis).into());
            let (divisor, index) = (index.divisor(), index.function());
            let coefficient = |a: &AxisId| -> i64 {
                let term = index.terms().iter().find(|t| t.1 == *a);
                term.map_or(0, |t| t.0)
            };
            let coefficients = out.iter().map(coefficient).collect();
            let extent = program.extent(*axis) as i64;
            (extent, stride as i64, divisor, index.offset, coefficients)
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
                for (extent, stride, divisor, base, coefficients) in &rows {
                    let index: i64 = coefficients
                        .iter()
                        .zip(&at)
                        .fold(*base, |sum, (c, x)| sum + c * *x as i64);
                    let whole = index % divisor == 0;
                    let index = index / divisor;
                    let inside = whole && (0..*extent).contains(&index);
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

/// An array stored as `stored`, with its axes in another order; it is not copied where the orders agree.
fn in_order<'a>(
    program: &Program,
    stored: &[AxisId],
    data: &'a [f64],
    order: &[AxisId],
) -> Cow<'a, [f64]> {
    if stored == order {
        return Cow::Borrowed(data);
    }
    let strides = strides(program, stored, order);
    Cow::Owned(gather(program, order, [strides], |[at]| data[at]))
}

/// The coordinates of the n-th element; zeros behind them. On the stack: sums of few terms ask for them often.
fn coordinates(mut n: usize, sizes: &[usize]) -> [usize; MAX_RANK] {
    let mut at = [0; MAX_RANK];
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
            let range = n * chunk_size..n * chunk_size + chunk.len();
            let mut values = chunk.iter_mut();
            odometer(&sizes, &strides, [0; N], range, |offsets| {
                if let Some(value) = values.next() {
                    *value = element(offsets);
                }
            });
        });
    data
}

/// Visits the coordinates of `sizes` whose numbers are in `range`, the last dimension fastest, with the offsets of `N` operands;
/// at coordinate 0 they are at `origin`.
fn odometer<const N: usize>(
    sizes: &[usize],
    strides: &[Vec<usize>; N],
    origin: [usize; N],
    range: Range<usize>,
    mut visit: impl FnMut([usize; N]),
) {
    let mut at = coordinates(range.start, sizes);
    let mut offsets: [usize; N] = std::array::from_fn(|k| {
        let steps = strides[k].iter().zip(&at);
        origin[k] + steps.map(|(s, x)| s * x).sum::<usize>()
    });
    let last = sizes.len().saturating_sub(1);
    let length = sizes.get(last).copied().unwrap_or(1);
    let step: [usize; N] = std::array::from_fn(|k| strides[k].get(last).copied().unwrap_or(0));
    let mut left = range.len();
    while left > 0 {
        // Along the last dimension as far as it goes, then on to the next coordinate of the others.
        let run = left.min(length - at[last]);
        for n in 0..run {
            visit(std::array::from_fn(|k| offsets[k] + n * step[k]));
        }
        left -= run;
        at[last] += run;
        for k in 0..N {
            offsets[k] += run * step[k];
        }
        for d in (1..sizes.len()).rev() {
            if at[d] < sizes[d] {
                break;
            }
            at[d] = 0;
            at[d - 1] += 1;
            for k in 0..N {
                offsets[k] += strides[k][d - 1];
                offsets[k] -= strides[k][d] * sizes[d];
            }
        }
    }
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
        let whole = "program p\naxis i = 2\nn = parameter i32 []\nm = parameter bool [i]\nreturn f32 [i] n * m\n";
        let whole: Program = whole.parse().expect("a good program");
        let given = |n: f64, m: [f64; 2]| {
            let n = Tensor::new(vec![], vec![n]).expect("full");
            eval(
                &whole,
                &[n, Tensor::new(vec![2], m.to_vec()).expect("full")],
            )
        };
        let got = given(-3.0, [1.0, 0.0]).expect("integers");
        assert_eq!(got[0].data, [-3.0, 0.0]);
        for (n, m) in [(0.5, 1.0), (f64::NAN, 1.0), (3e9, 1.0), (1.0, 2.0)] {
            let found = given(n, [0.0, m]).expect_err("no integer");
            assert!(matches!(found, EvalError::Element { .. }), "{found}");
        }
        let large = program("return f32 [j, k] iota(j) + iota(k)");
        assert!(matches!(eval(&large, &[]), Err(EvalError::TooLarge { .. })));
        // Results that fit, of sums that would take days.
        let long =
            "program p\naxis i = 134217728, j = 1048576\nreturn f32 [i] dot(iota(i), iota(j); j)\n";
        let found = eval(&long.parse().expect("a good program"), &[]).expect_err("too long");
        assert!(matches!(found, EvalError::TooLong { .. }), "{found}");
        assert!(
            found.to_string().contains("1.4e14 element operations"),
            "{found}"
        );
        assert!(found.to_string().contains("at most 1e13"), "{found}");
        let mut broken = p.clone();
        broken.nodes[0].axes = AxisSet::new();
        assert!(matches!(eval(&broken, &[]), Err(EvalError::Program(_))));
    }

    /// Oracle: the sum over every element of the source.
    #[test]
    fn views_that_undo_a_stride_select_what_they_read() {
        let source = "program p\naxis h = 5, o = 16, k = 3\nx = parameter f32 [h]\n\
            return f32 [o, k] view(x; 3*h -> o + 2 - 2*k; fill = -1), \
            f32 [o, k] sum(select(0 - abs(3 * iota(h) - iota(o) - 2 + 2 * iota(k)), x + 1, 0); h) - 1\n";
        let p: Program = source.parse().expect("a good program");
        let x = Tensor::new(vec![5], vec![1.0, 2.0, 3.0, 4.0, 5.0]).expect("full");
        let got = eval(&p, &[x]).expect("inputs that fit");
        assert_eq!(got[0], got[1]);
        assert!(got[0].data.iter().filter(|v| **v > 0.0).count() > 10);
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

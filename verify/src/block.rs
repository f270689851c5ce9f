//! Arrays with named axes: the element-wise operations, reductions and contractions of both interpreters.
//!
//! A block knows nothing about tiles: it has lengths, not coordinates.

use crate::scalar::{Scalar, apply};
use ir::{AxisId, AxisSet, MapOp, ReduceOp};

/// An array over a set of axes, in ascending order of their ids, the last one fastest.
#[derive(Clone, Debug)]
pub(crate) struct Block<S> {
    pub(crate) axes: AxisSet,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<S>,
}

/// Why an operation on blocks has no meaning; the interpreters add where it happened.
pub(crate) type Fault = String;

/// The most elements that a block or a buffer may have.
pub(crate) const MOST_ELEMENTS: usize = 1 << 31;

/// The number of elements of a shape, refused above [`MOST_ELEMENTS`].
pub(crate) fn count(shape: &[usize]) -> Result<usize, Fault> {
    shape
        .iter()
        .try_fold(1usize, |n, s| n.checked_mul(*s))
        .filter(|n| *n <= MOST_ELEMENTS)
        .ok_or_else(|| format!("a tensor of shape {shape:?} is too large to interpret"))
}

/// Row-major strides of a shape.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut step = 1;
    let mut all = vec![0; shape.len()];
    for (s, n) in all.iter_mut().zip(shape).rev() {
        *s = step;
        step *= n;
    }
    all
}

/// Walks a shape in row-major order and gives the `N` offsets at each of its points.
pub(crate) fn walk<const N: usize>(
    shape: &[usize],
    steps: &[[usize; N]],
    mut visit: impl FnMut([usize; N]),
) {
    assert_eq!(shape.len(), steps.len());
    if shape.contains(&0) {
        return;
    }
    let mut at = vec![0usize; shape.len()];
    let mut offsets = [0usize; N];
    loop {
        visit(offsets);
        let mut d = shape.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            at[d] += 1;
            for (o, s) in offsets.iter_mut().zip(&steps[d]) {
                *o += s;
            }
            if at[d] < shape[d] {
                break;
            }
            for (o, s) in offsets.iter_mut().zip(&steps[d]) {
                *o -= s * shape[d];
            }
            at[d] = 0;
        }
    }
}

impl<S: Scalar> Block<S> {
    /// A block without axes.
    pub(crate) fn scalar(value: S) -> Self {
        Self {
            axes: AxisSet::new(),
            shape: Vec::new(),
            data: vec![value],
        }
    }

    /// A block of one value.
    pub(crate) fn filled(axes: &AxisSet, shape: Vec<usize>, value: S) -> Result<Self, Fault> {
        let n = count(&shape)?;
        Ok(Self {
            axes: axes.clone(),
            shape,
            data: vec![value; n],
        })
    }

    /// How far apart neighbours along `axis` are; 0 for an axis that the block lacks.
    fn stride(&self, axis: AxisId) -> usize {
        match self.axes.as_slice().binary_search(&axis) {
            Ok(i) => self.shape[i + 1..].iter().product(),
            Err(_) => 0,
        }
    }

    /// The length along an axis of the block.
    pub(crate) fn length(&self, axis: AxisId) -> Option<usize> {
        let i = self.axes.as_slice().binary_search(&axis).ok()?;
        Some(self.shape[i])
    }

    /// Repeats the block along the axes that it lacks.
    pub(crate) fn broadcast(&self, axes: &AxisSet, shape: &[usize]) -> Result<Self, Fault> {
        if !self.axes.is_subset(axes) {
            return Err("a value varies over an axis that its use does not have".into());
        }
        for (a, n) in axes.iter().zip(shape) {
            if self.length(a).is_some_and(|have| have != *n) {
                return Err(
                    "a value is used with other coordinates than it was computed for".into(),
                );
            }
        }
        if &self.axes == axes {
            return Ok(self.clone());
        }
        let mut out = Vec::with_capacity(count(shape)?);
        let steps: Vec<[usize; 1]> = axes.iter().map(|a| [self.stride(a)]).collect();
        walk(shape, &steps, |[o]| out.push(self.data[o]));
        Ok(Self {
            axes: axes.clone(),
            shape: shape.to_vec(),
            data: out,
        })
    }

    /// The elements at some places along each axis.
    pub(crate) fn taken(&self, places: &[Vec<usize>]) -> Self {
        let steps = strides(&self.shape);
        let along = places.iter().zip(steps);
        let flat = along.fold(vec![0], |flat, (places, step)| {
            let each = flat.into_iter();
            each.flat_map(|base| places.iter().map(move |p| base + p * step))
                .collect()
        });
        Self {
            axes: self.axes.clone(),
            shape: places.iter().map(Vec::len).collect(),
            data: flat.into_iter().map(|at| self.data[at]).collect(),
        }
    }

    /// The elements with the axes in another order (all of them, the last one fastest).
    pub(crate) fn in_order(&self, order: &[AxisId]) -> Vec<S> {
        let shape: Vec<usize> = order.iter().filter_map(|a| self.length(*a)).collect();
        let steps: Vec<[usize; 1]> = order.iter().map(|a| [self.stride(*a)]).collect();
        let mut out = Vec::with_capacity(self.data.len());
        walk(&shape, &steps, |[o]| out.push(self.data[o]));
        out
    }

    /// The block whose elements are given with the axes in some order.
    pub(crate) fn from_order(order: &[AxisId], lengths: &[usize], data: &[S]) -> Self {
        let axes: AxisSet = order.iter().copied().collect();
        let given = strides(lengths);
        let place = |a: AxisId| order.iter().position(|o| *o == a);
        let shape: Vec<usize> = axes
            .iter()
            .filter_map(|a| Some(lengths[place(a)?]))
            .collect();
        let steps: Vec<[usize; 1]> = axes
            .iter()
            .filter_map(|a| Some([given[place(a)?]]))
            .collect();
        let mut out = Vec::with_capacity(data.len());
        walk(&shape, &steps, |[o]| out.push(data[o]));
        Self {
            axes,
            shape,
            data: out,
        }
    }
}

/// The shape of a result over `axes`, every operand agreeing with it.
fn joint_shape<S: Scalar>(axes: &AxisSet, operands: &[&Block<S>]) -> Result<Vec<usize>, Fault> {
    axes.iter()
        .map(|a| {
            let mut lengths = operands.iter().filter_map(|o| o.length(a));
            let first = lengths.next().ok_or("an axis that no operand has")?;
            if lengths.all(|l| l == first) {
                Ok(first)
            } else {
                Err("operands have different coordinates along one axis".to_owned())
            }
        })
        .collect()
}

/// An element-wise operation over the union of the operands' axes.
pub(crate) fn map<S: Scalar>(op: MapOp, args: &[&Block<S>]) -> Result<Block<S>, Fault> {
    if args.len() != op.arity() {
        return Err(format!(
            "{op:?} takes {} operands, found {}",
            op.arity(),
            args.len()
        ));
    }
    let axes = args.iter().fold(AxisSet::new(), |u, b| u.union(&b.axes));
    let shape = joint_shape(&axes, args)?;
    let (a, b, c) = (args[0], args[args.len().min(2) - 1], args[args.len() - 1]);
    let mut data = Vec::with_capacity(count(&shape)?);
    if args.iter().all(|x| x.axes == axes) {
        data.extend((0..a.data.len()).map(|i| apply(op, a.data[i], b.data[i], c.data[i])));
    } else {
        let steps: Vec<[usize; 3]> = axes
            .iter()
            .map(|x| [a.stride(x), b.stride(x), c.stride(x)])
            .collect();
        walk(&shape, &steps, |[i, j, k]| {
            data.push(apply(op, a.data[i], b.data[j], c.data[k]));
        });
    }
    Ok(Block { axes, shape, data })
}

/// A reduction over some of a block's axes.
pub(crate) fn reduce<S: Scalar>(
    op: ReduceOp,
    value: &Block<S>,
    over: &AxisSet,
) -> Result<Block<S>, Fault> {
    if !over.is_subset(&value.axes) {
        return Err("a reduction over an axis that its operand lacks".into());
    }
    let axes = value.axes.minus(over);
    let shape = joint_shape(&axes, &[value])?;
    let mut out = Block::filled(&axes, shape, S::constant(op.neutral()))?;
    let steps: Vec<[usize; 1]> = value.axes.iter().map(|a| [out.stride(a)]).collect();
    let mut from = value.data.iter();
    let combine = op.combine();
    walk(&value.shape, &steps, |[o]| {
        if let Some(x) = from.next() {
            out.data[o] = apply(combine, out.data[o], *x, *x);
        }
    });
    Ok(out)
}

/// What a block has reduced along one of its axes up to each of its elements, or before it.
pub(crate) fn scan<S: Scalar>(
    op: ReduceOp,
    value: &Block<S>,
    axis: AxisId,
    inclusive: bool,
) -> Result<Block<S>, Fault> {
    let Some(length) = value.length(axis) else {
        return Err("a scan along an axis that its operand lacks".into());
    };
    let (step, combine) = (value.stride(axis), op.combine());
    let mut out = value.clone();
    for first in (0..out.data.len()).filter(|at| at / step % length == 0) {
        let mut reduced = S::constant(op.neutral());
        for at in (first..).step_by(step).take(length) {
            let own = value.data[at];
            let with = apply(combine, reduced, own, own);
            out.data[at] = if inclusive { with } else { reduced };
            reduced = with;
        }
    }
    Ok(out)
}

/// `Σ over axes of a · b`; each of `over` belongs to at least one operand.
pub(crate) fn contract<S: Scalar>(
    a: &Block<S>,
    b: &Block<S>,
    over: &AxisSet,
) -> Result<Block<S>, Fault> {
    let all = a.axes.union(&b.axes);
    if !over.is_subset(&all) {
        return Err("a contraction over an axis that its operands lack".into());
    }
    let axes = all.minus(over);
    joint_shape(&all, &[a, b])?;
    let shape = joint_shape(&axes, &[a, b])?;
    let mut out = Block::filled(&axes, shape, S::constant(0.0))?;
    // The innermost loop runs along the last axis of the result, so that each of its steps is independent of the others.
    let inner = axes.iter().next_back().or(over.iter().next_back());
    let outer: Vec<AxisId> = axes
        .iter()
        .chain(over.iter())
        .filter(|x| Some(*x) != inner)
        .collect();
    let length = |x: AxisId| a.length(x).or(b.length(x)).unwrap_or(1);
    let lengths: Vec<usize> = outer.iter().map(|x| length(*x)).collect();
    let strides_of = |x: AxisId| [a.stride(x), b.stride(x), out.stride(x)];
    let steps: Vec<[usize; 3]> = outer.iter().map(|x| strides_of(*x)).collect();
    let (run, [sa, sb, so]) = match inner {
        Some(x) => (length(x), strides_of(x)),
        None => (1, [0; 3]),
    };
    // Nothing may be asked of it, as where windows lie outside of what they go over.
    if run == 0 {
        return Ok(out);
    }
    let into = &mut out.data;
    walk(&lengths, &steps, |[i, j, o]| match (sa, sb, so) {
        (0, 1, 1) => S::add_products(&mut into[o..o + run], a.data[i], &b.data[j..j + run]),
        (1, 0, 1) => S::add_products(&mut into[o..o + run], b.data[j], &a.data[i..i + run]),
        (0, _, 1) => {
            let right = b.data[j..].iter().step_by(sb);
            S::add_products(&mut into[o..o + run], a.data[i], right);
        }
        (_, 0, 1) => {
            let right = a.data[i..].iter().step_by(sa);
            S::add_products(&mut into[o..o + run], b.data[j], right);
        }
        _ => {
            for t in 0..run {
                let at = o + t * so;
                into[at] = into[at].add(a.data[i + t * sa].mul(b.data[j + t * sb]));
            }
        }
    });
    Ok(out)
}

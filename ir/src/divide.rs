//! The same program with axes in two.

use crate::affine::{Affine, Quotient};
use crate::axes::{Axis, AxisId, AxisSet};
use crate::program::{Dim, MapOp, Node, NodeId, Op, Program};
use std::collections::BTreeMap;

impl Program {
    /// The same function of the same tensors, with coordinate `a` of an axis written as `inner · a_outer + a_inner`. In memory the two stand
    /// where the one stood, as a group, so that shapes stay as they are. The outer axis takes the place of the old one in the axis table,
    /// the inner one is the table's last.
    ///
    /// None where the axis is no multiple of `inner` or would not become shorter, and where a view takes it away: what it is read
    /// at need not come in two coordinates.
    pub fn divided(&self, axis: AxisId, inner: u64) -> Option<Self> {
        Some(self.divided_alike(&[axis], inner)?.0)
    }

    /// As [`Program::divided`], of several axes by the same number, and where the values are then. A view may take one of these axes
    /// away that it reads along another of them, forwards or backwards. The inner axes are the table's last, in the order of `axes`.
    pub fn divided_alike(&self, axes: &[AxisId], inner: u64) -> Option<(Self, Vec<NodeId>)> {
        let parts = Parts {
            step: i64::try_from(inner).ok()?,
            inner: (axes.iter().zip(self.axes.len()..))
                .map(|(axis, at)| Some((*axis, AxisId(u32::try_from(at).ok()?))))
                .collect::<Option<_>>()?,
        };
        let mut divided = Self {
            name: self.name.clone(),
            axes: self.axes.clone(),
            nodes: Vec::with_capacity(self.nodes.len()),
            outputs: self.outputs.clone(),
        };
        for axis in axes {
            let extent = self.axes.get(axis.index())?.extent;
            if inner < 2 || inner >= extent || !extent.is_multiple_of(inner) {
                return None;
            }
            let (outer_name, inner_name) = divided.part_names(*axis);
            divided.axes[axis.index()] = Axis {
                name: outer_name,
                extent: extent / inner,
            };
            divided.axes.push(Axis {
                name: inner_name,
                extent: inner,
            });
        }
        let mut places: Vec<NodeId> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let op = match &node.op {
                Op::Iota(a) if parts.inner.contains_key(a) => {
                    places.push(divided.coordinate(*a, parts.inner[a], inner, node.name.clone()));
                    continue;
                }
                Op::Parameter { name, dtype, dims } => Op::Parameter {
                    name: name.clone(),
                    dtype: *dtype,
                    dims: parts.grouped(dims),
                },
                Op::View { map, fill } => Op::View {
                    map: parts.map(map)?,
                    fill: *fill,
                },
                Op::Reduce { op, axes } => Op::Reduce {
                    op: *op,
                    axes: parts.set(axes),
                },
                Op::Dot { axes } => Op::Dot {
                    axes: parts.set(axes),
                },
                Op::Constant(_) | Op::Iota(_) | Op::Map(_) => node.op.clone(),
            };
            places.push(divided.push(Node {
                op,
                args: node.args.iter().map(|a| places[a.index()]).collect(),
                axes: parts.set(&node.axes),
                name: node.name.clone(),
            }));
        }
        for output in &mut divided.outputs {
            output.dims = parts.grouped(&output.dims);
            output.value = places[output.value.index()];
        }
        divided.validate().is_ok().then_some((divided, places))
    }

    /// Names for the two parts that nothing has yet.
    fn part_names(&self, axis: AxisId) -> (String, String) {
        let name = &self.axes[axis.index()].name;
        let taken = |name: &String| self.axes.iter().any(|a| a.name == *name);
        let mut parts = (format!("{name}_outer"), format!("{name}_inner"));
        while taken(&parts.0) || taken(&parts.1) {
            parts = (format!("{}_", parts.0), format!("{}_", parts.1));
        }
        parts
    }

    /// `inner · iota(outer axis) + iota(inner axis)`
    fn coordinate(
        &mut self,
        outer: AxisId,
        last: AxisId,
        inner: u64,
        name: Option<String>,
    ) -> NodeId {
        let mut make = |op: Op, args: Vec<NodeId>, axes: &[AxisId], name: Option<String>| {
            self.push(Node {
                op,
                args,
                axes: axes.iter().copied().collect(),
                name,
            })
        };
        let step = make(Op::Constant(inner as f64), Vec::new(), &[], None);
        let first = make(Op::Iota(outer), Vec::new(), &[outer], None);
        let second = make(Op::Iota(last), Vec::new(), &[last], None);
        let first = make(Op::Map(MapOp::Mul), vec![step, first], &[outer], None);
        make(
            Op::Map(MapOp::Add),
            vec![first, second],
            &[outer, last],
            name,
        )
    }

    fn push(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() as u32 - 1)
    }
}

/// Which axes are divided.
struct Parts {
    /// Coordinates of an inner axis.
    step: i64,
    /// The inner axis of each; the outer one is the axis itself.
    inner: BTreeMap<AxisId, AxisId>,
}

impl Parts {
    fn set(&self, axes: &AxisSet) -> AxisSet {
        let inner = axes.iter().filter_map(|a| self.inner.get(&a).copied());
        axes.iter().chain(inner).collect()
    }

    /// Dimensions with each axis followed by its inner part.
    fn grouped(&self, dims: &[Dim]) -> Vec<Dim> {
        let both = |a: &AxisId| std::iter::once(*a).chain(self.inner.get(a).copied());
        dims.iter()
            .map(|d| Dim(d.0.iter().flat_map(both).collect()))
            .collect()
    }

    fn map(&self, map: &[(AxisId, Quotient)]) -> Option<Vec<(AxisId, Quotient)>> {
        let both = |a: AxisId| match self.inner.get(&a) {
            Some(inner) => Affine::new([(self.step, a), (1, *inner)], 0),
            None => Some(Affine::axis(a)),
        };
        let mut parts = Vec::new();
        for (from, to) in map {
            let Some(inner) = self.inner.get(from) else {
                parts.push((*from, to.substitute(both)?));
                continue;
            };
            let function = to.affine()?;
            let [(way, along)] = *function.terms() else {
                return None;
            };
            let along = (along, *self.inner.get(&along)?);
            // Backwards, `step·n + step − 1 − (step·outer + inner)` is `step·(n − outer) + (step − 1 − inner)`.
            let [first, last] = match (way, function.offset) {
                (1, 0) => [0, 0],
                (-1, offset) if offset >= 0 && (offset + 1) % self.step == 0 => {
                    [offset / self.step, self.step - 1]
                }
                _ => return None,
            };
            parts.push((*from, Affine::new([(way, along.0)], first)?.into()));
            parts.push((*inner, Affine::new([(way, along.1)], last)?.into()));
        }
        parts.sort_by_key(|(from, _)| *from);
        Some(parts)
    }
}

#[cfg(test)]
mod tests {
    use crate::axes::AxisId;
    use crate::program::Program;
    use crate::tensor::Tensor;

    const MIXED: &str = "program mixed\naxis t = 3, m = 12, k = 4, j = 20\nx = parameter f32 [t, (k m)]\ny = parameter f32 [j, m]\n\
        s = sum(x * iota(m); k)\nw = view(y; j -> m + t; fill = 2)\nz = view(x; k -> t)\n\
        return f32 [t, m] s * w + sum(z; m), f32 [(m t)] max(w, dot(s, y; j)), f32 [k] sum(x * x; t, m)\n";

    fn results(program: &Program) -> Vec<Tensor> {
        let inputs: Vec<Tensor> = program
            .parameters()
            .map(|(_, _, _, dims)| {
                let shape: Vec<usize> = program.shape(dims).iter().map(|n| *n as usize).collect();
                let count: usize = shape.iter().product();
                let data = (0..count).map(|i| ((i * 37) % 23) as f64 - 9.0).collect();
                Tensor { shape, data }
            })
            .collect();
        crate::eval(program, &inputs).expect("it evaluates")
    }

    #[test]
    fn a_divided_program_is_the_same_function() {
        let program: Program = MIXED.parse().expect("a program");
        let want = results(&program);
        let m = AxisId(1);
        for inner in [2, 3, 4, 6] {
            let divided = program.divided(m, inner).expect("it divides");
            assert_eq!(divided.axes.len(), 5);
            assert_eq!(divided.extent(m), 12 / inner);
            assert_eq!(results(&divided), want, "{divided}");
            let printed: Program = divided.to_string().parse().expect("its own text");
            assert_eq!(results(&printed), want, "{divided}");
            // A part of a part, where there is one of two coordinates.
            let again = divided.divided(m, 2);
            assert_eq!(again.is_some(), inner == 2 || inner == 3, "{divided}");
            if let Some(again) = again {
                assert_eq!(results(&again), want, "{again}");
            }
        }
    }

    #[test]
    fn axes_of_which_one_is_read_along_the_other_are_divided_together() {
        let text = "program scan\naxis t = 3, i = 12, j = 12\nx = parameter f32 [t, i]\ny = view(x; i -> j)\nz = view(x; i -> 11 - j)\n\
            return f32 [t, i] sum(select(i - j, y, z); j), f32 [t, j] z\n"
            .replace("i - j,", "iota(i) - iota(j),");
        let program: Program = text.parse().expect("a program");
        let (i, j) = (AxisId(1), AxisId(2));
        assert!(program.divided(i, 4).is_none());
        let want = results(&program);
        for inner in [2, 3, 4, 6] {
            let (divided, places) = program.divided_alike(&[i, j], inner).expect("they divide");
            assert_eq!(places.len(), program.nodes.len());
            assert_eq!(results(&divided), want, "{divided}");
        }
        // Not from where a part begins.
        let text = text.replace("11 - j", "10 - j; fill = 0");
        let program: Program = text.parse().expect("a program");
        assert!(program.divided_alike(&[i, j], 4).is_none());
    }

    #[test]
    fn what_cannot_be_divided_is_not() {
        let program: Program = MIXED.parse().expect("a program");
        for (axis, inner) in [(1, 5), (1, 12), (1, 1), (1, 0), (2, 2), (3, 2), (9, 2)] {
            assert!(
                program.divided(AxisId(axis), inner).is_none(),
                "{axis} {inner}"
            );
        }
    }

    #[test]
    fn names_of_parts_are_new() {
        let text = "program p\naxis m = 8, m_outer = 2, m_inner_ = 2\nx = parameter f32 [m, m_outer, m_inner_]\n\
            return f32 [m_outer, m_inner_] sum(x; m)\n";
        let program: Program = text.parse().expect("a program");
        let divided = program.divided(AxisId(0), 4).expect("it divides");
        assert!(divided.to_string().parse::<Program>().is_ok(), "{divided}");
    }
}

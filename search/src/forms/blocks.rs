//! Sums and maxima over triangles, in blocks: a running value takes work that grows with the length, and not with its square.
//!
//! In `Σ_j select(i − j >= 0, x[j], 0)` each sum holds the one before it. With `i = T·I + u` and `j = T·J + v` it is what is in the blocks in
//! front of `i`'s own, and what is in that one up to `i`:
//!
//! ```text
//! y[I, u]  =  Σ_J select(I − J >= 1, s[J], 0)  +  Σ_v select(u − v >= 0, x[I, v], 0)    with  s[J] = Σ_v x[J, v]
//! ```
//!
//! The first is a sum over a smaller triangle, for which the same holds; the second is a product of matrices. This is the blocked scan of
//! G. E. Blelloch, "Prefix sums and their applications", 1990. What is looked at is the condition alone: whether it is a difference of two
//! coordinates, up to or without the own one, in either direction.

use super::writer::{Writer, reduction};
use crate::egraph::convert;
use ir::{Affine, AxisId, AxisSet, MapOp, NodeId, Op, Program, ReduceOp};

/// Coordinates of a block: the product with a block's triangle is small, and wide enough for matrix instructions.
const BLOCK: [u64; 2] = [16, 64];
/// Shorter triangles are reduced as they are.
const LEAST: u64 = 256;

/// The same function of the same tensors, with its long reductions over triangles in blocks, and in words how. None where there are none.
/// New axes are behind those of the program.
pub fn blocked(program: &Program) -> Option<(Program, Vec<String>)> {
    let mut blocked: Option<(Program, Vec<String>)> = None;
    // Those over blocks are triangles again.
    loop {
        let from = blocked.as_ref().map_or(program, |b| &b.0);
        let Some((made, words)) = once(from) else {
            return blocked;
        };
        let before = blocked.map(|b| b.1).unwrap_or_default();
        blocked = Some((made, [before, words].concat()));
    }
}

fn once(program: &Program) -> Option<(Program, Vec<String>)> {
    let finite = convert::finite(program);
    let all = (0..program.nodes.len()).map(|at| NodeId(at as u32));
    all.filter_map(|id| Some((id, Triangle::of(program, id, &finite)?)))
        .find_map(|(id, triangle)| in_blocks(program, id, &triangle))
}

/// A reduction of `j` whose body counts where `±(i − j) + offset >= 0` alone.
struct Triangle {
    i: AxisId,
    j: AxisId,
    op: ReduceOp,
    axes: AxisSet,
    /// Whether it counts up to `i`, and not from `i` on.
    up_to: bool,
    /// Without `i` itself.
    strictly: bool,
    /// What counts where the condition holds: the factors of a product.
    factors: Vec<NodeId>,
    /// Whether these are real numbers: zero times them is zero.
    finite: bool,
}

impl Triangle {
    fn of(program: &Program, id: NodeId, finite: &[bool]) -> Option<Self> {
        let (op, axes, factors) = reduction(program, program.node(id))?;
        (0..factors.len()).find_map(|at| {
            let select = program.node(factors[at]);
            let [condition, x, otherwise] = select.args[..] else {
                return None;
            };
            let neutral = Op::Constant(op.neutral());
            if select.op != Op::Map(MapOp::Select) || program.node(otherwise).op != neutral {
                return None;
            }
            let condition = program.affine_of(condition)?;
            let [(a, first), (b, second)] = *condition.terms() else {
                return None;
            };
            let (i, j, way) = match (axes.contains(first), axes.contains(second)) {
                (false, true) => (first, second, a),
                (true, false) => (second, first, b),
                (true, true) | (false, false) => return None,
            };
            if !matches!((a, b, condition.offset), (1, -1, 0 | -1) | (-1, 1, 0 | -1)) {
                return None;
            }
            let mut others = factors.clone();
            others[at] = x;
            let has = |axis: AxisId| {
                let mut axes = others.iter().map(|f| &program.node(*f).axes);
                axes.any(|own| own.contains(axis))
            };
            (!has(i) && has(j)).then(|| Self {
                i,
                j,
                op,
                axes: axes.clone(),
                up_to: way == 1,
                strictly: condition.offset == -1,
                finite: others.iter().all(|f| finite[f.index()]),
                factors: others,
            })
        })
    }
}

fn in_blocks(program: &Program, id: NodeId, triangle: &Triangle) -> Option<(Program, Vec<String>)> {
    let Triangle { i, j, op, .. } = *triangle;
    let (rows, columns) = (program.extent(i), program.extent(j));
    // Another number of blocks of the one than of the other would need a fill.
    if rows != columns || columns < LEAST {
        return None;
    }
    let step = (BLOCK[0]..=BLOCK[1])
        .rev()
        .find(|n| columns.is_multiple_of(*n))?;
    let all = read_along(program, [i, j]);
    let (divided, places) = program.divided_alike(&all, step)?;
    let inner = |at: usize| AxisId((program.axes.len() + at) as u32);
    let (u, v) = (inner(0), inner(1));
    let name = |a: AxisId| divided.axes[a.index()].name.clone();
    let words = all.iter().enumerate().map(|(at, whole)| {
        let (whole, inner) = (*whole, inner(at));
        let outer = name(whole);
        format!(
            "{} = {step}·{outer} + {}",
            program.axes[whole.index()].name,
            name(inner)
        )
    });
    let at = places[id.index()];
    let mut made = Writer {
        program: Program {
            nodes: divided.nodes[..at.index()].to_vec(),
            ..divided.clone()
        },
    };
    let factors: Vec<NodeId> = triangle.factors.iter().map(|f| places[f.index()]).collect();
    let body = made.product(&factors);
    let rest = {
        let mut rest = triangle.axes.clone();
        rest.remove(j);
        rest.insert(v);
        rest
    };
    let only = |axis: AxisId| [axis].into_iter().collect::<AxisSet>();
    let total = made.reduce(op, body, &rest);
    let before = made.where_in(triangle, [i, j], true, total);
    let before = made.reduce(op, before, &only(j));
    let own = made.along(body, j, i);
    let within = match op {
        // As a product of matrices.
        ReduceOp::Sum if triangle.finite => {
            let one = made.push(Op::Constant(1.0), Vec::new(), AxisSet::new());
            let mask = made.where_in(triangle, [u, v], triangle.strictly, one);
            let all = made.axes(own).union(&made.axes(mask)).minus(&rest);
            made.push(Op::Dot { axes: rest }, vec![own, mask], all)
        }
        ReduceOp::Sum | ReduceOp::Max => {
            let body = made.where_in(triangle, [u, v], triangle.strictly, own);
            made.reduce(op, body, &rest)
        }
    };
    let both = made.map(op.combine(), vec![before, within]);
    made.program.nodes[both.index()].name = divided.node(at).name.clone();
    // What reads the reduction reads this.
    let shift = both.0 - at.0;
    let moved = |old: NodeId| if old < at { old } else { NodeId(old.0 + shift) };
    for node in &divided.nodes[at.index() + 1..] {
        let mut node = node.clone();
        node.args = node.args.iter().map(|a| moved(*a)).collect();
        made.program.nodes.push(node);
    }
    let mut made = made.program;
    for output in &mut made.outputs {
        output.value = moved(output.value);
    }
    made.validate().ok()?;
    Some((made, words.collect()))
}

/// Two axes, and those along which views read them, forwards or backwards: where the one is divided the others are.
fn read_along(program: &Program, axes: [AxisId; 2]) -> Vec<AxisId> {
    let mut all = axes.to_vec();
    let maps = program.nodes.iter().filter_map(|node| match &node.op {
        Op::View { map, .. } => Some(map),
        Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Map(_)
        | Op::Reduce { .. }
        | Op::Dot { .. } => None,
    });
    // A view comes behind what it reads.
    for (from, to) in maps.flatten() {
        if let Some(&[(1 | -1, along)]) = to.affine().map(Affine::terms)
            && all.contains(from)
            && !all.contains(&along)
        {
            all.push(along);
        }
    }
    all
}

impl Writer {
    /// A value with one axis's coordinates taken from another's.
    fn along(&mut self, value: NodeId, from: AxisId, to: AxisId) -> NodeId {
        let mut axes = self.axes(value);
        axes.remove(from);
        axes.insert(to);
        let map = vec![(from, Affine::axis(to).into())];
        self.push(Op::View { map, fill: None }, vec![value], axes)
    }

    /// A value where a triangle's condition holds between two axes, and the neutral value elsewhere.
    fn where_in(
        &mut self,
        triangle: &Triangle,
        [i, j]: [AxisId; 2],
        strictly: bool,
        value: NodeId,
    ) -> NodeId {
        let (more, less) = if triangle.up_to { (i, j) } else { (j, i) };
        let only = |axis: AxisId| [axis].into_iter().collect::<AxisSet>();
        let more = self.push(Op::Iota(more), Vec::new(), only(more));
        let less = self.push(Op::Iota(less), Vec::new(), only(less));
        let minus = self.push(Op::Constant(-1.0), Vec::new(), AxisSet::new());
        let less = self.map(MapOp::Mul, vec![minus, less]);
        let mut condition = self.map(MapOp::Add, vec![more, less]);
        if strictly {
            condition = self.map(MapOp::Add, vec![condition, minus]);
        }
        let neutral = self.push(
            Op::Constant(triangle.op.neutral()),
            Vec::new(),
            AxisSet::new(),
        );
        self.map(MapOp::Select, vec![condition, value, neutral])
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::results;
    use super::*;

    fn scan(body: &str, extent: u64) -> Program {
        let text = format!(
            "program scan\naxis t = 2, i = {extent}, j = {extent}, k = 2\nx = parameter f32 [t, i]\nw = parameter f32 [i, k]\n\
            y = view(x; i -> j)\nz = view(x; i -> {} - j)\nf = view(w; i -> j)\nr = iota(i) - iota(j)\nreturn f32 [t, i] {body}\n",
            extent - 1
        );
        text.parse().expect("a program")
    }

    #[test]
    fn running_values_in_blocks_are_the_same_function() {
        for body in [
            "sum(select(r, y, 0); j)",
            "sum(select(r - 1, y, 0); j)",
            "sum(select(-r, y, 0); j) + x",
            "max(sum(select(-1 - r, y, 0); j), 0) * 2",
            "max(select(r, y, -inf); j)",
            "max(select(-r, y, -inf); j)",
            "dot(select(r, 1, 0), y; j)",
            "sum(select(r, y, 0) * f; j, k)",
            "sum(select(r, z, 0); j)",
        ] {
            for extent in [256, 272, 320] {
                let program = scan(body, extent);
                let (blocked, words) = blocked(&program).expect("a triangle");
                assert_eq!(results(&blocked), results(&program), "{blocked}");
                let read: Program = blocked.to_string().parse().expect("its own text");
                assert_eq!(results(&read), results(&program), "{blocked}");
                assert!(!words.is_empty());
            }
        }
    }

    #[test]
    fn what_views_read_a_running_value_along_is_divided_with_it() {
        let text = "program reversed\naxis t = 2, m = 320, i = 320, j = 320, o = 320\nx = parameter f32 [t, m]\n\
            y = sum(select(iota(i) - iota(j), view(view(x; m -> 319 - i); i -> j), 0); j)\nreturn f32 [t, o] view(y; i -> 319 - o)\n";
        let program: Program = text.parse().expect("a program");
        let (blocked, words) = blocked(&program).expect("a triangle");
        assert_eq!(results(&blocked), results(&program), "{blocked}");
        assert_eq!(words.len(), 3, "{words:?}");
    }

    #[test]
    fn blocks_of_blocks() {
        let program = scan("sum(select(r, y, 0); j)", 32768);
        let (twice, words) = blocked(&program).expect("a triangle");
        assert_eq!(
            words,
            [
                "i = 64·i_outer + i_inner",
                "j = 64·j_outer + j_inner",
                "i_outer = 64·i_outer_outer + i_outer_inner",
                "j_outer = 64·j_outer_outer + j_outer_inner",
            ]
        );
        // Work by the length, and no more by its square.
        assert!(twice.axes.iter().all(|a| a.extent <= 64), "{twice}");
    }

    #[test]
    fn what_is_no_triangle_stays() {
        for (body, extent) in [
            // A body that depends on where the result is.
            ("sum(select(r, y * x, 0); j)", 256),
            // A window.
            ("sum(select(r + 3, y, 0); j)", 256),
            ("sum(select(2 * r, y, 0); j)", 256),
            // Something else than nothing outside.
            ("sum(select(r, y, 1); j)", 256),
            // A prime.
            ("sum(select(r, y, 0); j)", 257),
            ("sum(select(r, y, 0); j)", 128),
        ] {
            assert!(blocked(&scan(body, extent)).is_none(), "{body}");
        }
    }
}

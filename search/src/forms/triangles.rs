//! Reductions over triangles: of which a difference of two coordinates decides what counts.
//!
//! In `Σ_j select(i − j + o >= 0, x[j], 0)` the two axes may be of different lengths, and `o` any number with which none of the `x` counts for every `i`. With `q = j − o`
//! the sum is one over a square with as many `q` as there are `i`, of `x` read at `q + o` and zero where that is outside:
//!
//! ```text
//! Σ_j select(i − j + o >= 0, x[j], 0)  =  Σ_q select(i − q >= 0, x[q + o], 0)
//! ```
//!
//! And where nothing but one view reads it, at `i = a + s`, it may as well be one of `a`, with `o + s` in the place of `o`.

use super::phases::told;
use super::writer::{Writer, reduction};
use crate::egraph::convert;
use ir::{Affine, AxisId, AxisSet, MapOp, NodeId, Op, Program, ReduceOp};

/// A reduction of `j` whose body counts where `±(i − j) + offset >= 0` alone.
pub(super) struct Triangle {
    pub(super) i: AxisId,
    pub(super) j: AxisId,
    pub(super) op: ReduceOp,
    pub(super) axes: AxisSet,
    /// Whether it counts up to `i`, and not from `i` on.
    up_to: bool,
    /// 0 with `i` itself, −1 without it.
    pub(super) offset: i64,
    /// What counts where the condition holds: the factors of a product.
    pub(super) factors: Vec<NodeId>,
    /// Whether these are real numbers: zero times them is zero.
    pub(super) finite: bool,
}

/// A program with a triangle that has two sides of one length.
pub(super) struct Square {
    pub(super) program: Program,
    /// Where the reduction is.
    pub(super) place: NodeId,
    /// How its new axis is made.
    pub(super) words: Vec<String>,
}

/// The reductions over triangles of a program.
pub(super) fn triangles(program: &Program) -> Vec<(NodeId, Triangle)> {
    let finite = convert::finite(program);
    let all = (0..program.nodes.len()).map(|at| NodeId(at as u32));
    all.filter_map(|id| Some((id, Triangle::of(program, id, &finite)?)))
        .collect()
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
            if !matches!((a, b), (1, -1) | (-1, 1)) {
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
                offset: condition.offset,
                finite: others.iter().all(|f| finite[f.index()]),
                factors: others,
            })
        })
    }

    /// A value where the condition holds between two axes, with an offset, and the neutral value elsewhere.
    pub(super) fn counts(
        &self,
        made: &mut Writer,
        [i, j]: [AxisId; 2],
        offset: i64,
        value: NodeId,
    ) -> NodeId {
        let (more, less) = if self.up_to { (i, j) } else { (j, i) };
        let (more, less) = (made.iota(more), made.iota(less));
        let minus = made.constant(-1.0);
        let less = made.map(MapOp::Mul, vec![minus, less]);
        let mut condition = made.map(MapOp::Add, vec![more, less]);
        if offset != 0 {
            let offset = made.constant(offset as f64);
            condition = made.map(MapOp::Add, vec![condition, offset]);
        }
        let neutral = made.constant(self.op.neutral());
        made.map(MapOp::Select, vec![condition, value, neutral])
    }

    /// The program with this triangle as a square one: of its own `i`, if it is none, or of the axis along which the one view that reads it does.
    pub(super) fn squares(&self, program: &Program, id: NodeId) -> Vec<Square> {
        let own = Rows {
            axis: self.i,
            offset: 0,
            read: id,
        };
        let is_square =
            matches!(self.offset, 0 | -1) && program.extent(self.i) == program.extent(self.j);
        let own = (!is_square).then_some(own);
        let all = [own, self.rows_of_reader(program, id)].into_iter();
        all.flatten()
            .filter_map(|rows| self.square(program, id, &rows))
            .collect()
    }

    fn rows_of_reader(&self, program: &Program, id: NodeId) -> Option<Rows> {
        let mut readers = program
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| n.args.contains(&id));
        let (read, reader) = readers.next()?;
        let Op::View { map, .. } = &reader.op else {
            return None;
        };
        let [(from, at)] = &map[..] else { return None };
        let at = at.affine()?;
        let &[(1, axis)] = at.terms() else {
            return None;
        };
        let alone = readers.next().is_none() && program.outputs.iter().all(|o| o.value != id);
        let new = !program.node(id).axes.contains(axis) && !self.axes.contains(axis);
        (*from == self.i && alone && new).then_some(Rows {
            axis,
            offset: at.offset,
            read: NodeId(read as u32),
        })
    }

    fn square(&self, program: &Program, id: NodeId, rows: &Rows) -> Option<Square> {
        // Of a product with several factors zero has to make zero.
        if self.op == ReduceOp::Sum && !self.finite {
            return None;
        }
        let [own, i, j] = [self.i, rows.axis, self.j].map(|a| program.extent(a) as i64);
        let sign = if self.up_to { 1 } else { -1 };
        let offset = self.offset.checked_add(sign * rows.offset)?;
        // What counts for every `i` is in no triangle.
        let covers = if self.up_to {
            offset <= 0
        } else {
            j <= i - offset
        };
        if !covers {
            return None;
        }
        let mut made = Writer::until(program, rows.read);
        // It is not needed any more where a view of it is what is made.
        if let Some(old) = made.program.nodes.get_mut(id.index()) {
            old.name = None;
        }
        let q = made.axis(self.j, "along", i as u64);
        let neutral = self.op.neutral();
        let mut factors = Vec::new();
        for factor in &self.factors {
            let along = made.axes(*factor).contains(self.j);
            factors.push(match along {
                true => made.view(*factor, [self.j, q], sign * offset, Some(neutral))?,
                false => *factor,
            });
        }
        let body = made.product(&factors);
        let body = self.counts(&mut made, [rows.axis, q], 0, body);
        let mut axes = self.axes.clone();
        axes.remove(self.j);
        axes.insert(q);
        let place = made.reduce(self.op, body, &axes);
        made.program.nodes[place.index()].name = program.node(id).name.clone();
        // Outside of what a view reads it has its fill: there nothing counts, or all does.
        let mut value = place;
        if let Op::View {
            fill: Some(fill), ..
        } = program.node(rows.read).op
        {
            let [first, last] = [rows.offset, i - 1 + rows.offset];
            // The view's fill where `way·a + offset` is negative.
            let mut outside = |way: f64, offset: i64| {
                let coordinate = made.iota(rows.axis);
                let [way, offset, fill] = [way, offset as f64, fill].map(|c| made.constant(c));
                let along = made.map(MapOp::Mul, vec![way, coordinate]);
                let inside = made.map(MapOp::Add, vec![along, offset]);
                value = made.map(MapOp::Select, vec![inside, value, fill]);
            };
            if first < 0 && !(self.up_to && fill == neutral) {
                outside(1.0, rows.offset);
            }
            if last >= own {
                outside(-1.0, own - 1 - rows.offset);
            }
        }
        if value != place {
            made.program.nodes[value.index()].name = program.node(rows.read).name.clone();
        }
        let program = made.continued(program, rows.read)?;
        let name = |a: AxisId| &program.axes[a.index()].name;
        let along = Affine::new([(1, q)], sign * offset)?;
        let words = format!("{} = {}", name(self.j), told(&program, &along));
        Some(Square {
            place,
            words: vec![words],
            program,
        })
    }
}

/// Along which axis a triangle's results are wanted, with what offset, and the value that this is.
struct Rows {
    axis: AxisId,
    offset: i64,
    read: NodeId,
}

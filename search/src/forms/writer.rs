//! A program that is written value by value.

use ir::{Affine, Axis, AxisId, AxisSet, MapOp, Node, NodeId, Op, Program, ReduceOp};

/// The program so far.
pub(super) struct Writer {
    pub(super) program: Program,
}

impl Writer {
    /// What of a program is in front of a value.
    pub(super) fn until(program: &Program, place: NodeId) -> Self {
        Self {
            program: Program {
                nodes: program.nodes[..place.index()].to_vec(),
                ..program.clone()
            },
        }
    }

    /// Adds a value.
    pub(super) fn push(&mut self, op: Op, args: Vec<NodeId>, axes: AxisSet) -> NodeId {
        let name = None;
        self.program.nodes.push(Node {
            op,
            args,
            axes,
            name,
        });
        NodeId(self.program.nodes.len() as u32 - 1)
    }

    /// The axes of a value.
    pub(super) fn axes(&self, id: NodeId) -> AxisSet {
        self.program.node(id).axes.clone()
    }

    /// Adds an axis, with a name that nothing has yet.
    pub(super) fn axis(&mut self, of: AxisId, part: &str, extent: u64) -> AxisId {
        let mut name = format!("{}_{part}", self.program.axes[of.index()].name);
        while self.program.axes.iter().any(|a| a.name == name) {
            name.push('_');
        }
        self.program.axes.push(Axis { name, extent });
        AxisId(self.program.axes.len() as u32 - 1)
    }

    /// Adds a coordinate.
    pub(super) fn iota(&mut self, axis: AxisId) -> NodeId {
        self.push(Op::Iota(axis), Vec::new(), [axis].into_iter().collect())
    }

    /// Adds a constant.
    pub(super) fn constant(&mut self, c: f64) -> NodeId {
        self.push(Op::Constant(c), Vec::new(), AxisSet::new())
    }

    /// Adds a value with one axis's coordinates taken from another's.
    pub(super) fn view(
        &mut self,
        value: NodeId,
        [from, to]: [AxisId; 2],
        offset: i64,
        fill: Option<f64>,
    ) -> Option<NodeId> {
        let mut axes = self.axes(value);
        axes.remove(from);
        axes.insert(to);
        let map = vec![(from, Affine::new([(1, to)], offset)?.into())];
        Some(self.push(Op::View { map, fill }, vec![value], axes))
    }

    /// Adds an element-wise operation.
    pub(super) fn map(&mut self, op: MapOp, args: Vec<NodeId>) -> NodeId {
        let each = args.iter().map(|a| self.axes(*a));
        let axes = each.fold(AxisSet::new(), |all, axes| all.union(&axes));
        self.push(Op::Map(op), args, axes)
    }

    /// Adds a product of one factor or more.
    pub(super) fn product(&mut self, factors: &[NodeId]) -> NodeId {
        let rest = factors[1..].iter();
        rest.fold(factors[0], |product, next| {
            self.map(MapOp::Mul, vec![product, *next])
        })
    }

    /// What comes behind a value of another program, whose place the last one takes here. None if that is no program.
    pub(super) fn continued(mut self, old: &Program, place: NodeId) -> Option<Program> {
        let shift = self.program.nodes.len() as u32 - 1 - place.0;
        let moved = |id: NodeId| if id < place { id } else { NodeId(id.0 + shift) };
        for node in &old.nodes[place.index() + 1..] {
            let mut node = node.clone();
            node.args = node.args.iter().map(|a| moved(*a)).collect();
            self.program.nodes.push(node);
        }
        for output in &mut self.program.outputs {
            output.value = moved(output.value);
        }
        self.program.validate().ok()?;
        Some(self.program)
    }

    /// Adds a sum of products.
    pub(super) fn dot(&mut self, factors: [NodeId; 2], axes: &AxisSet) -> NodeId {
        let all = self.axes(factors[0]).union(&self.axes(factors[1]));
        let op = Op::Dot { axes: axes.clone() };
        self.push(op, factors.to_vec(), all.minus(axes))
    }

    /// Adds a reduction.
    pub(super) fn reduce(&mut self, op: ReduceOp, value: NodeId, axes: &AxisSet) -> NodeId {
        let kept = self.axes(value).minus(axes);
        let axes = axes.clone();
        self.push(Op::Reduce { op, axes }, vec![value], kept)
    }
}

/// A program that something was done to, and in words what.
pub(super) type Made = (Program, Vec<String>);

/// Does something to a program as often as it can be done. None where it cannot.
pub(super) fn repeated(program: &Program, once: fn(&Program) -> Option<Made>) -> Option<Made> {
    let mut made: Option<Made> = None;
    loop {
        let Some((next, words)) = once(made.as_ref().map_or(program, |m| &m.0)) else {
            return made;
        };
        let before = made.map(|m| m.1).unwrap_or_default();
        made = Some((next, [before, words].concat()));
    }
}

/// What a value reduces, and how: the axes, and the factors of what is summed; of a maximum or product what it is of.
pub(super) fn reduction<'p>(
    program: &'p Program,
    node: &'p Node,
) -> Option<(ReduceOp, &'p AxisSet, Vec<NodeId>)> {
    match &node.op {
        Op::Dot { axes } => Some((ReduceOp::Sum, axes, node.args.clone())),
        Op::Reduce { op, axes } => {
            let body = *node.args.first()?;
            let whole = program.node(body);
            let product = *op == ReduceOp::Sum && whole.op == Op::Map(MapOp::Mul);
            let factors = if product {
                whole.args.clone()
            } else {
                vec![body]
            };
            Some((*op, axes, factors))
        }
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => None,
    }
}

/// The results of a program on whole numbers, on which sums are exact in any order.
#[cfg(test)]
pub(super) fn results(program: &Program) -> Vec<ir::Tensor> {
    let inputs: Vec<ir::Tensor> = program
        .parameters()
        .map(|(_, _, _, dims)| {
            let shape: Vec<usize> = program.shape(dims).iter().map(|n| *n as usize).collect();
            let count: usize = shape.iter().product();
            let data = (0..count).map(|i| ((i * 37) % 23) as f64 - 9.0).collect();
            ir::Tensor { shape, data }
        })
        .collect();
    ir::eval(program, &inputs).expect("it evaluates")
}

//! Programs and tile programs written by hand, which the tests share.

use ir::{
    Affine, Axis, AxisId, AxisSet, AxisTile, Bound, Buffer, BufferId, BufferRole, Carry, Corner,
    Dim, Dtype, Function, Kernel, Loop, MapOp, Node, NodeId, Op, Output, Program, ReduceOp, Role,
    Statement, TileOp, TileProgram, Value, ValueId,
};
use std::collections::BTreeMap;

pub(crate) fn axes(of: &[AxisId]) -> AxisSet {
    of.iter().copied().collect()
}

fn dims(of: &[AxisId]) -> Vec<Dim> {
    of.iter().map(|a| Dim(vec![*a])).collect()
}

fn table(of: &[(&str, u64)]) -> Vec<Axis> {
    of.iter()
        .map(|(name, extent)| Axis {
            name: (*name).into(),
            extent: *extent,
        })
        .collect()
}

/// Builds a program node by node.
pub(crate) struct ProgramMaker(Program);

impl ProgramMaker {
    pub(crate) fn new(name: &str, axes: &[(&str, u64)]) -> Self {
        Self(Program {
            name: name.into(),
            axes: table(axes),
            nodes: Vec::new(),
            outputs: Vec::new(),
        })
    }

    fn push(&mut self, op: Op, args: &[NodeId], axes: AxisSet) -> NodeId {
        self.0.nodes.push(Node {
            op,
            args: args.to_vec(),
            axes,
            name: None,
        });
        NodeId(self.0.nodes.len() as u32 - 1)
    }

    fn axes_of(&self, args: &[NodeId]) -> AxisSet {
        args.iter()
            .fold(AxisSet::new(), |u, a| u.union(&self.0.node(*a).axes))
    }

    pub(crate) fn parameter(&mut self, name: &str, dtype: Dtype, over: &[AxisId]) -> NodeId {
        let op = Op::Parameter {
            name: name.into(),
            dtype,
            dims: dims(over),
        };
        let id = self.push(op, &[], axes(over));
        self.0.nodes[id.index()].name = Some(name.into());
        id
    }

    pub(crate) fn constant(&mut self, c: f64) -> NodeId {
        self.push(Op::Constant(c), &[], AxisSet::new())
    }

    pub(crate) fn iota(&mut self, axis: AxisId) -> NodeId {
        self.push(Op::Iota(axis), &[], axes(&[axis]))
    }

    pub(crate) fn map(&mut self, op: MapOp, args: &[NodeId]) -> NodeId {
        let over = self.axes_of(args);
        self.push(Op::Map(op), args, over)
    }

    pub(crate) fn sub(&mut self, x: NodeId, y: NodeId) -> NodeId {
        let minus = self.constant(-1.0);
        let y = self.map(MapOp::Mul, &[minus, y]);
        self.map(MapOp::Add, &[x, y])
    }

    pub(crate) fn reduce(&mut self, op: ReduceOp, x: NodeId, over: &[AxisId]) -> NodeId {
        let left = self.axes_of(&[x]).minus(&axes(over));
        self.push(
            Op::Reduce {
                op,
                axes: axes(over),
            },
            &[x],
            left,
        )
    }

    pub(crate) fn dot(&mut self, x: NodeId, y: NodeId, over: &[AxisId]) -> NodeId {
        let left = self.axes_of(&[x, y]).minus(&axes(over));
        self.push(Op::Dot { axes: axes(over) }, &[x, y], left)
    }

    pub(crate) fn softmax(&mut self, x: NodeId, over: AxisId) -> NodeId {
        let m = self.reduce(ReduceOp::Max, x, &[over]);
        let s = self.sub(x, m);
        let p = self.map(MapOp::Function(Function::Exp), &[s]);
        let l = self.reduce(ReduceOp::Sum, p, &[over]);
        self.map(MapOp::Div, &[p, l])
    }

    pub(crate) fn returning(mut self, dtype: Dtype, over: &[AxisId], value: NodeId) -> Program {
        self.0.outputs.push(Output {
            dtype,
            dims: dims(over),
            value,
        });
        self.0
    }
}

/// Builds one kernel value by value; statements go to the innermost open body.
pub(crate) struct KernelMaker {
    kernel: Kernel,
    buffers: Vec<Buffer>,
    open: Vec<Vec<Statement>>,
}

impl KernelMaker {
    pub(crate) fn new(buffers: &[Buffer], roles: &[(AxisId, Role, u64)]) -> Self {
        let mut kernel = Kernel {
            axes: BTreeMap::new(),
            grid: Vec::new(),
            values: Vec::new(),
            body: Vec::new(),
        };
        for (axis, role, tile) in roles {
            kernel.axes.insert(
                *axis,
                AxisTile {
                    role: *role,
                    tile: *tile,
                },
            );
            if *role == Role::Grid {
                kernel.grid.push(*axis);
            }
        }
        Self {
            kernel,
            buffers: buffers.to_vec(),
            open: vec![Vec::new()],
        }
    }

    fn axes_of(&self, args: &[ValueId]) -> AxisSet {
        args.iter().fold(AxisSet::new(), |u, a| {
            u.union(&self.kernel.values[a.index()].axes)
        })
    }

    fn value(&mut self, op: TileOp, over: AxisSet) -> ValueId {
        let id = ValueId(self.kernel.values.len() as u32);
        self.kernel.values.push(Value {
            op,
            axes: over,
            name: format!("v{}", id.0),
        });
        id
    }

    fn say(&mut self, statement: Statement) {
        if let Some(body) = self.open.last_mut() {
            body.push(statement);
        }
    }

    fn computed(&mut self, op: TileOp, over: AxisSet) -> ValueId {
        let id = self.value(op, over);
        self.say(Statement::Let(id));
        id
    }

    pub(crate) fn load(&mut self, buffer: u32) -> ValueId {
        let index: Vec<Affine> = self.buffers[buffer as usize]
            .axes()
            .map(Affine::axis)
            .collect();
        self.load_at(buffer, index, 0.0)
    }

    pub(crate) fn load_at(&mut self, buffer: u32, index: Vec<Affine>, fill: f64) -> ValueId {
        let over = index.iter().fold(AxisSet::new(), |u, f| u.union(&f.axes()));
        let op = TileOp::Load {
            buffer: BufferId(buffer),
            index: index.into_iter().map(ir::Quotient::from).collect(),
            fill,
        };
        self.computed(op, over)
    }

    pub(crate) fn constant(&mut self, c: f64) -> ValueId {
        self.computed(TileOp::Constant(c), AxisSet::new())
    }

    pub(crate) fn iota(&mut self, axis: AxisId) -> ValueId {
        self.computed(TileOp::Iota(axis), axes(&[axis]))
    }

    pub(crate) fn map(&mut self, op: MapOp, args: &[ValueId]) -> ValueId {
        let over = self.axes_of(args);
        self.computed(TileOp::Map(op, args.to_vec()), over)
    }

    pub(crate) fn sub(&mut self, x: ValueId, y: ValueId) -> ValueId {
        let minus = self.constant(-1.0);
        let y = self.map(MapOp::Mul, &[minus, y]);
        self.map(MapOp::Add, &[x, y])
    }

    pub(crate) fn reduce(&mut self, op: ReduceOp, value: ValueId, over: &[AxisId]) -> ValueId {
        let left = self.axes_of(&[value]).minus(&axes(over));
        let axes = axes(over);
        self.computed(TileOp::Reduce { op, value, axes }, left)
    }

    pub(crate) fn contract(&mut self, a: ValueId, b: ValueId, over: &[AxisId]) -> ValueId {
        let left = self.axes_of(&[a, b]).minus(&axes(over));
        let axes = axes(over);
        self.computed(TileOp::Contract { a, b, axes }, left)
    }

    pub(crate) fn open(&mut self) {
        self.open.push(Vec::new());
    }

    pub(crate) fn phi(&mut self, init: f64, over: &[AxisId]) -> ValueId {
        let over = axes(over);
        self.value(
            TileOp::Phi {
                init,
                axes: over.clone(),
            },
            over,
        )
    }

    pub(crate) fn close(
        &mut self,
        axis: AxisId,
        low: Vec<Bound>,
        high: Vec<Bound>,
        carries: &[(ValueId, ValueId)],
    ) -> Vec<ValueId> {
        let body = self.open.pop().unwrap_or_default();
        let mut results = Vec::new();
        let mut list = Vec::new();
        for (phi, next) in carries {
            let over = self.axes_of(&[*phi]);
            let result = self.value(TileOp::Final { phi: *phi }, over);
            results.push(result);
            list.push(Carry {
                phi: *phi,
                next: *next,
                result,
            });
        }
        self.say(Statement::Loop(Loop {
            axis,
            low,
            high,
            carries: list,
            body,
        }));
        results
    }

    pub(crate) fn store(&mut self, buffer: u32, value: ValueId) {
        self.say(Statement::Store {
            buffer: BufferId(buffer),
            value,
        });
    }

    pub(crate) fn finish(mut self) -> Kernel {
        self.kernel.body = self.open.pop().unwrap_or_default();
        self.kernel
    }
}

pub(crate) fn buffer(name: &str, role: BufferRole, over: &[AxisId]) -> Buffer {
    Buffer {
        name: name.into(),
        dtype: Dtype::F32,
        dims: dims(over),
        role,
    }
}

pub(crate) const I: AxisId = AxisId(0);
pub(crate) const J: AxisId = AxisId(1);
pub(crate) const D: AxisId = AxisId(2);
pub(crate) const E: AxisId = AxisId(3);
const PART: AxisId = AxisId(4);

const SCALE: f64 = 0.375;

/// `softmax(dot(q, k; d) · scale; j)` times `v`; causal with the given offset, if any.
pub(crate) fn attention(extents: [u64; 4], causal: Option<i64>) -> Program {
    let [i, j, d, e] = extents;
    let mut p = ProgramMaker::new("attention", &[("i", i), ("j", j), ("d", d), ("e", e)]);
    let q = p.parameter("q", Dtype::F32, &[I, D]);
    let k = p.parameter("k", Dtype::F32, &[J, D]);
    let v = p.parameter("v", Dtype::F32, &[J, E]);
    let s = p.dot(q, k, &[D]);
    let scale = p.constant(SCALE);
    let mut s = p.map(MapOp::Mul, &[s, scale]);
    if let Some(offset) = causal {
        let (i, j, c) = (p.iota(I), p.iota(J), p.constant(offset as f64));
        let ij = p.sub(i, j);
        let condition = p.map(MapOp::Add, &[ij, c]);
        let low = p.constant(f64::NEG_INFINITY);
        s = p.map(MapOp::Select, &[condition, s, low]);
    }
    let w = p.softmax(s, J);
    let o = p.dot(w, v, &[J]);
    p.returning(Dtype::F32, &[I, E], o)
}

fn attention_buffers() -> Vec<Buffer> {
    vec![
        buffer("q", BufferRole::Parameter(0), &[I, D]),
        buffer("k", BufferRole::Parameter(1), &[J, D]),
        buffer("v", BufferRole::Parameter(2), &[J, E]),
        buffer("out0", BufferRole::Output(0), &[I, E]),
    ]
}

/// The loop of an online softmax over `j`, its carries also over `parts`; gives the final (maximum, sum, weighted sum).
fn online(
    k: &mut KernelMaker,
    parts: &[AxisId],
    causal: Option<i64>,
    (low, high): (Vec<Bound>, Vec<Bound>),
) -> [ValueId; 3] {
    let over = |of: &[AxisId]| [of, parts].concat();
    let q = k.load(0);
    k.open();
    let m = k.phi(f64::NEG_INFINITY, &over(&[I]));
    let l = k.phi(0.0, &over(&[I]));
    let o = k.phi(0.0, &over(&[I, E]));
    let keys = k.load(1);
    let s = k.contract(q, keys, &[D]);
    let scale = k.constant(SCALE);
    let mut s = k.map(MapOp::Mul, &[s, scale]);
    if let Some(offset) = causal {
        let (i, j, c) = (k.iota(I), k.iota(J), k.constant(offset as f64));
        let ij = k.sub(i, j);
        let condition = k.map(MapOp::Add, &[ij, c]);
        let low = k.constant(f64::NEG_INFINITY);
        s = k.map(MapOp::Select, &[condition, s, low]);
    }
    let here = k.reduce(ReduceOp::Max, s, &[J]);
    let m2 = k.map(MapOp::Max, &[m, here]);
    let shift = k.sub(m, m2);
    let c = k.map(MapOp::Function(Function::Exp), &[shift]);
    let s = k.sub(s, m2);
    let p = k.map(MapOp::Function(Function::Exp), &[s]);
    let sum = k.reduce(ReduceOp::Sum, p, &[J]);
    let lc = k.map(MapOp::Mul, &[l, c]);
    let l2 = k.map(MapOp::Add, &[lc, sum]);
    let v = k.load(2);
    let pv = k.contract(p, v, &[J]);
    let oc = k.map(MapOp::Mul, &[o, c]);
    let o2 = k.map(MapOp::Add, &[oc, pv]);
    let done = k.close(J, low, high, &[(m, m2), (l, l2), (o, o2)]);
    [done[0], done[1], done[2]]
}

/// One pass with a running rescale.
pub(crate) fn online_attention(extents: [u64; 4], causal: Option<i64>) -> TileProgram {
    let [i, j, d, e] = extents;
    let buffers = attention_buffers();
    let mut k = KernelMaker::new(
        &buffers,
        &[
            (I, Role::Grid, 2.min(i)),
            (J, Role::Loop, 3.min(j)),
            (D, Role::Whole, d),
            (E, Role::Whole, e),
        ],
    );
    let high = causal.map(|offset| Bound {
        entries: Vec::new(),
        terms: vec![(1, I, Corner::Last)],
        offset: offset + 1,
        divisor: 1,
    });
    let high = high.into_iter().collect();
    let [_, l, o] = online(&mut k, &[], causal, (Vec::new(), high));
    let result = k.map(MapOp::Div, &[o, l]);
    k.store(3, result);
    TileProgram {
        name: "online".into(),
        axes: table(&[("i", i), ("j", j), ("d", d), ("e", e)]),
        collapsed: BTreeMap::new(),
        buffers,
        kernels: vec![k.finish()],
    }
}

/// Parts of the keys in parallel, and a second kernel that combines them. `chunk` is a multiple of the tile, 2.
pub(crate) fn split_attention(extents: [u64; 4], chunk: u64) -> TileProgram {
    let [i, j, d, e] = extents;
    let parts = j.div_ceil(chunk);
    let mut buffers = attention_buffers();
    buffers.push(buffer("m", BufferRole::Workspace, &[PART, I]));
    buffers.push(buffer("l", BufferRole::Workspace, &[PART, I]));
    buffers.push(buffer("o", BufferRole::Workspace, &[PART, I, E]));
    let mut k = KernelMaker::new(
        &buffers,
        &[
            (PART, Role::Grid, 1),
            (I, Role::Grid, 2.min(i)),
            (J, Role::Loop, 2.min(j)),
            (D, Role::Whole, d),
            (E, Role::Whole, e),
        ],
    );
    let bound = |offset| Bound {
        entries: Vec::new(),
        terms: vec![(chunk as i64, PART, Corner::First)],
        offset,
        divisor: 1,
    };
    let range = (vec![bound(0)], vec![bound(chunk as i64)]);
    let over = [PART];
    let partial = online(&mut k, &over, None, range);
    for (n, part) in partial.into_iter().enumerate() {
        k.store(4 + n as u32, part);
    }
    let mut c = KernelMaker::new(
        &buffers,
        &[
            (I, Role::Grid, 1),
            (PART, Role::Whole, parts),
            (E, Role::Whole, e),
        ],
    );
    let m = c.load(4);
    let top = c.reduce(ReduceOp::Max, m, &[PART]);
    let shift = c.sub(m, top);
    let w = c.map(MapOp::Function(Function::Exp), &[shift]);
    let l = c.load(5);
    let l = c.contract(w, l, &[PART]);
    let o = c.load(6);
    let o = c.contract(w, o, &[PART]);
    let result = c.map(MapOp::Div, &[o, l]);
    c.store(3, result);
    TileProgram {
        name: "split".into(),
        axes: table(&[("i", i), ("j", j), ("d", d), ("e", e), ("j_part", parts)]),
        collapsed: BTreeMap::new(),
        buffers,
        kernels: vec![k.finish(), c.finish()],
    }
}

/// `softmax(x; j)` of `x[i, j]`.
pub(crate) fn row_softmax(i: u64, j: u64) -> Program {
    let mut p = ProgramMaker::new("rows", &[("i", i), ("j", j)]);
    let x = p.parameter("x", Dtype::F32, &[I, J]);
    let y = p.softmax(x, J);
    p.returning(Dtype::F32, &[I, J], y)
}

/// A running maximum and sum in one loop, and a second loop that stores.
pub(crate) fn two_pass_softmax(i: u64, j: u64) -> TileProgram {
    let buffers = vec![
        buffer("x", BufferRole::Parameter(0), &[I, J]),
        buffer("out0", BufferRole::Output(0), &[I, J]),
    ];
    let mut k = KernelMaker::new(
        &buffers,
        &[(I, Role::Grid, 2.min(i)), (J, Role::Loop, 3.min(j))],
    );
    k.open();
    let m = k.phi(f64::NEG_INFINITY, &[I]);
    let l = k.phi(0.0, &[I]);
    let x = k.load(0);
    let here = k.reduce(ReduceOp::Max, x, &[J]);
    let m2 = k.map(MapOp::Max, &[m, here]);
    let shift = k.sub(m, m2);
    let c = k.map(MapOp::Function(Function::Exp), &[shift]);
    let s = k.sub(x, m2);
    let p = k.map(MapOp::Function(Function::Exp), &[s]);
    let sum = k.reduce(ReduceOp::Sum, p, &[J]);
    let lc = k.map(MapOp::Mul, &[l, c]);
    let l2 = k.map(MapOp::Add, &[lc, sum]);
    let done = k.close(J, Vec::new(), Vec::new(), &[(m, m2), (l, l2)]);
    k.open();
    let x = k.load(0);
    let s = k.sub(x, done[0]);
    let p = k.map(MapOp::Function(Function::Exp), &[s]);
    let y = k.map(MapOp::Div, &[p, done[1]]);
    k.store(1, y);
    k.close(J, Vec::new(), Vec::new(), &[]);
    TileProgram {
        name: "two_pass".into(),
        axes: table(&[("i", i), ("j", j)]),
        collapsed: BTreeMap::new(),
        buffers,
        kernels: vec![k.finish()],
    }
}

/// [`row_softmax`] with each row spread over a block group.
pub(crate) fn block_group_softmax(i: u64, j: u64) -> TileProgram {
    let buffers = vec![
        buffer("x", BufferRole::Parameter(0), &[I, J]),
        buffer("out0", BufferRole::Output(0), &[I, J]),
    ];
    let roles = [(I, Role::Grid, 2.min(i)), (J, Role::Grid, 3.min(j))];
    let mut k = KernelMaker::new(&buffers, &roles);
    let x = k.load(0);
    let m = k.reduce(ReduceOp::Max, x, &[J]);
    let s = k.sub(x, m);
    let p = k.map(MapOp::Function(Function::Exp), &[s]);
    let l = k.reduce(ReduceOp::Sum, p, &[J]);
    let y = k.map(MapOp::Div, &[p, l]);
    k.store(1, y);
    TileProgram {
        name: "block_group".into(),
        axes: table(&[("i", i), ("j", j)]),
        collapsed: BTreeMap::new(),
        buffers,
        kernels: vec![k.finish()],
    }
}

/// The sums of the rows of a matrix.
pub(crate) fn row_sums(i: u64, j: u64) -> Program {
    let mut p = ProgramMaker::new("sums", &[("i", i), ("j", j)]);
    let x = p.parameter("x", Dtype::F32, &[I, J]);
    let sum = p.reduce(ReduceOp::Sum, x, &[J]);
    p.returning(Dtype::F32, &[I], sum)
}

/// [`row_sums`] by a block group, of which one point stores.
pub(crate) fn block_group_sums(i: u64, j: u64) -> TileProgram {
    let buffers = vec![
        buffer("x", BufferRole::Parameter(0), &[I, J]),
        buffer("out0", BufferRole::Output(0), &[I]),
    ];
    let roles = [(I, Role::Grid, 2.min(i)), (J, Role::Grid, 3.min(j))];
    let mut k = KernelMaker::new(&buffers, &roles);
    let x = k.load(0);
    let sum = k.reduce(ReduceOp::Sum, x, &[J]);
    k.store(1, sum);
    TileProgram {
        name: "sums".into(),
        axes: table(&[("i", i), ("j", j)]),
        collapsed: BTreeMap::new(),
        buffers,
        kernels: vec![k.finish()],
    }
}

/// `y[b, t, n] = Σ_{g, c} x[b, t, g, c] · w[n, g, c] + s[b, t, n]`.
pub(crate) fn rows_of_groups() -> Program {
    let text = "program groups
axis b = 3, t = 5, g = 2, c = 3, n = 4
x = parameter f32 [b, t, (g c)]
w = parameter f32 [n, (g c)]
s = parameter f32 [b, t, n]
return f32 [b, t, n] dot(x, w; g, c) + s
";
    text.parse().expect("well formed")
}

/// The same with rows and sums of a product each along one axis, whose tiles end anywhere.
pub(crate) fn collapsed_rows_of_groups() -> TileProgram {
    let text = "tile groups
axis b = 3, t = 5, g = 2, c = 3, n = 4, row = (b t), k = (g c)
buffer x = parameter 0 f32 [b, t, (g c)]
buffer w = parameter 1 f32 [n, (g c)]
buffer s = parameter 2 f32 [b, t, n]
buffer out0 = output 0 f32 [b, t, n]
kernel grid(n: 2, row: 4) loop(k: 4) {
  loop k {
    carry z = 0 over [n, row]
    xs = load x[row, k]
    ws = load w[n, k]
    p = contract(xs, ws; k)
    z' = add(z, p)
    yield y = final(z, z')
  }
  ss = load s[row, n]
  r = add(y, ss)
  store out0 = r
}
";
    text.parse().expect("well formed")
}

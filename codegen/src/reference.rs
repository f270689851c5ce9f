//! The program as a chain of plain kernels: what candidates are compared with on the GPU.
//!
//! Four kinds of kernel: an expression an element, a fold over axes, a running fold, a product over axes. What they have in common is written in
//! `cuda/reference.cuh`; what is printed here is which element each reads, and what is computed of it. This text is meant to be
//! believed by reading it. Constants, coordinates, re-indexing, and element-wise operations whose result is needed in one order only
//! are written into the kernels that read them; everything else is stored.
//!
//! Values may be larger than a GPU. Where all outputs have an axis in common, the chain can run over a range of it at a time (a
//! *slab*): what depends on the axis then holds the range, but where an operation needs all of it.

mod launch;
mod read;
mod seconds;
mod slab;

pub use seconds::{Rates, Work};

use crate::functions;
use crate::print::{KERNELS_MARK, holder, identifier};
use ir::{Affine, AxisId, Dtype, MapOp, NodeId, Op, Program, Quotient, Reject};
use read::{Read, memory_order};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// At which precision the chain computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReferenceMode {
    /// Everything in f64. Outputs are not rounded, nor are their fractions lost where they are integers, but those of 16 bits come in f32, whose last bit says whether anything was lost:
    /// rounded on, they are what the f64 would be.
    Exact,
    /// What a careful kernel does: the operands of a product rounded to its dtype (a result has that of its operands, f32 where those
    /// differ; parameters have their own), sums accumulated in f32, everything else in f32; outputs in their dtypes.
    Careful,
    /// The same, with operands rounded to either neighbour, the nearer one more often: what a careful kernel is off by with other luck.
    Dithered,
}

impl ReferenceMode {
    fn real(self) -> &'static str {
        match self {
            Self::Exact => "double",
            Self::Careful | Self::Dithered => "float",
        }
    }

    /// How the kernels' names begin.
    fn prefix(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Careful => "careful",
            Self::Dithered => "dithered",
        }
    }

    /// How values between kernels are stored.
    fn stored(self) -> Element {
        match self {
            Self::Exact => Element::F64,
            Self::Careful | Self::Dithered => Element::Of(Dtype::F32),
        }
    }

    fn output(self, dtype: Dtype) -> Element {
        match (self, dtype) {
            (Self::Exact, Dtype::F16 | Dtype::Bf16) => Element::Odd,
            (Self::Exact, _) => Element::F64,
            (Self::Careful | Self::Dithered, _) => Element::Of(dtype),
        }
    }

    /// A number rounded to a dtype.
    fn narrowed(self, text: String, dtype: Dtype) -> String {
        match (self, dtype) {
            (Self::Exact, _) | (_, Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool) => text,
            (Self::Careful, Dtype::F16 | Dtype::Bf16) => {
                let d = dtype.name();
                format!("tw_float_{d}(tw_round_{d}({text}))")
            }
            (Self::Dithered, Dtype::F16 | Dtype::Bf16) => {
                let d = dtype.name();
                let digits = dtype.lost_digits();
                format!("tw_float_{d}(tw_round_{d}(tw_dithered<{digits}>({text})))")
            }
        }
    }
}

/// How a buffer's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// Double precision.
    F64,
    /// f32, of an inexact number the neighbour with an odd last bit: twice rounded on, it is what once rounded is (Boldo and
    /// Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    Odd,
    /// One of the program's dtypes.
    Of(Dtype),
}

impl Element {
    /// Bytes an element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F64 => 8,
            Self::Odd => 4,
            Self::Of(d) => d.bytes(),
        }
    }

    /// The C++ type that holds one.
    pub fn holder(self) -> &'static str {
        match self {
            Self::F64 => "double",
            Self::Odd => "float",
            Self::Of(dtype) => holder(dtype),
        }
    }

    /// The elements behind little-endian bytes.
    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Self::F64 => {
                let (words, _) = bytes.as_chunks::<8>();
                words.iter().map(|w| f64::from_le_bytes(*w)).collect()
            }
            Self::Odd => Dtype::F32.decode(bytes),
            Self::Of(dtype) => dtype.decode(bytes),
        }
    }

    fn read(self, at: &str) -> String {
        match self {
            Self::F64 | Self::Odd | Self::Of(Dtype::F32) => at.to_string(),
            // As they are: an integer that f32 does not hold is exact in f64.
            Self::Of(Dtype::I32 | Dtype::I64) => at.to_string(),
            Self::Of(d @ (Dtype::F16 | Dtype::Bf16 | Dtype::Bool)) => {
                format!("tw_float_{}({at})", d.name())
            }
        }
    }

    fn written(self, text: &str) -> String {
        match self {
            Self::F64 => text.to_string(),
            Self::Odd => format!("tw_odd({text})"),
            Self::Of(Dtype::F32) => format!("(float)({text})"),
            Self::Of(d @ (Dtype::F16 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::Bool)) => {
                format!("tw_round_{}({text})", d.name())
            }
        }
    }
}

/// What a buffer is to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReferenceRole {
    /// The n-th parameter, in its own dtype and layout.
    Parameter(u32),
    /// The n-th output, in the output's layout.
    Output(u32),
    /// A result between two launches.
    Intermediate,
}

/// One buffer of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceBuffer {
    /// For messages.
    pub name: String,
    /// What it is to the caller.
    pub role: ReferenceRole,
    /// How its elements are stored.
    pub element: Element,
    /// Elements; of one coordinate of the slab axis if `slabbed`.
    pub elements: u64,
    /// Whether it holds only the current range of the slab axis. Never for parameters, always for outputs where there is one.
    pub slabbed: bool,
}

/// A number of a launch's blocks: `elements`, of one coordinate of the slab axis if `slabbed`, by `each` a block, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// How many there are.
    pub elements: u64,
    /// Whether there are so many for each coordinate of the slab.
    pub slabbed: bool,
    /// How many a block takes.
    pub each: u64,
}

/// One launch of the chain. The kernel's arguments are one pointer a buffer, then one to two 64-bit integers: the first coordinate of
/// the slab and the number of its coordinates (0 and the extent to run over everything; 0 and 1 without slab axis).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReferenceLaunch {
    /// The `extern "C"` entry point.
    pub entry: String,
    /// Indices into [`ReferenceProgram::buffers`], in the order of the arguments; the last one is written.
    pub arguments: Vec<u32>,
    /// What multiplies to the number of its blocks.
    pub shares: Vec<Share>,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Intermediates that nothing reads after this launch.
    pub frees: Vec<u32>,
    /// What it takes, over all slabs if it depends on the slab.
    pub work: Work,
}

impl ReferenceLaunch {
    /// Threads of a block.
    pub const THREADS: u32 = 256;
    /// The most blocks; what is left is done by more turns.
    const MOST: u64 = 1 << 30;

    /// Blocks for a slab of `count` coordinates.
    pub fn blocks(&self, count: u64) -> u32 {
        let factor = |s: &Share| {
            let all = s.elements.saturating_mul(if s.slabbed { count } else { 1 });
            all.div_ceil(s.each)
        };
        let blocks = self.shares.iter().map(factor);
        blocks.fold(1u64, u64::saturating_mul).clamp(1, Self::MOST) as u32
    }

    /// Whether it does a part of its work in each slab.
    pub fn slabbed(&self) -> bool {
        self.shares.iter().any(|s| s.slabbed)
    }
}

/// The whole chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReferenceProgram {
    /// One translation unit, header-free. Compile it without fast-math options and without contraction: each operation rounds once.
    pub source: String,
    /// How it computes.
    pub mode: ReferenceMode,
    /// Parameters in order, outputs in order, then intermediates.
    pub buffers: Vec<ReferenceBuffer>,
    /// In order.
    pub launches: Vec<ReferenceLaunch>,
    /// The axis along which the chain can run in parts, with its extent.
    pub slab: Option<(AxisId, u64)>,
}

impl ReferenceProgram {
    /// The most bytes that are alive at once with slabs of `count` coordinates: parameters and outputs all the time, intermediates as
    /// the launches say.
    pub fn peak_bytes(&self, count: u64) -> u64 {
        let size = |b: &ReferenceBuffer| {
            let elements = b.elements.saturating_mul(if b.slabbed { count } else { 1 });
            elements.saturating_mul(b.element.bytes())
        };
        let (scoped, whole): (Vec<_>, Vec<_>) =
            (self.buffers.iter()).partition(|b| b.role == ReferenceRole::Intermediate);
        let bytes = |b: &u32| match &self.buffers[*b as usize] {
            b if b.role == ReferenceRole::Intermediate => size(b),
            _ => 0,
        };
        let resident = whole.into_iter().map(size).fold(0, u64::saturating_add);
        if scoped.is_empty() {
            return resident;
        }
        let (mut live, mut peak) = (resident, resident);
        for l in &self.launches {
            live = live.saturating_add(l.arguments.last().map_or(0, bytes));
            peak = peak.max(live);
            live = live.saturating_sub(l.frees.iter().map(bytes).sum());
        }
        peak
    }

    /// The most coordinates of the slab axis with which everything fits `bytes`, or nearly so many (1 without slab axis); none where
    /// nothing does.
    pub fn slab_count(&self, bytes: u64) -> Option<u64> {
        let extent = self.slab.map_or(1, |s| s.1);
        let mut slabs = 1;
        loop {
            let count = extent.div_ceil(slabs);
            if self.peak_bytes(count) <= bytes {
                return Some(count);
            }
            if count == 1 {
                return None;
            }
            slabs += slabs.div_ceil(4);
        }
    }
}

struct Chain<'a> {
    program: &'a Program,
    mode: ReferenceMode,
    slab: Option<AxisId>,
    /// Of each node, whether it is stored for all of the slab axis.
    whole: Vec<bool>,
    /// Of each node, the nodes that read it; itself for an output.
    users: Vec<Vec<NodeId>>,
    buffers: Vec<ReferenceBuffer>,
    reads: Vec<Read>,
    dtypes: Vec<Option<Dtype>>,
    launches: Vec<ReferenceLaunch>,
    text: String,
}

/// The chain of plain kernels for a program.
///
/// # Errors
/// What needs numbers of more than 64 bits.
pub fn reference(program: &Program, mode: ReferenceMode) -> Result<ReferenceProgram, Reject> {
    let (slab, whole) = slab::choose(program);
    let mut users = vec![Vec::new(); program.nodes.len()];
    for (at, node) in program.nodes.iter().enumerate() {
        for arg in &node.args {
            users[arg.index()].push(NodeId(at as u32));
        }
    }
    for output in &program.outputs {
        users[output.value.index()].push(output.value);
    }
    let mut chain = Chain {
        program,
        mode,
        slab,
        whole,
        users,
        buffers: Vec::new(),
        reads: Vec::new(),
        dtypes: program.dtypes(),
        launches: Vec::new(),
        text: String::new(),
    };
    for (n, (_, name, dtype, dims)) in program.parameters().enumerate() {
        let elements = chain.elements(&memory_order(dims), false)?;
        chain.buffers.push(ReferenceBuffer {
            name: name.into(),
            role: ReferenceRole::Parameter(n as u32),
            element: Element::Of(dtype),
            elements,
            slabbed: false,
        });
    }
    let parameters = chain.buffers.len() as u32;
    for (n, output) in program.outputs.iter().enumerate() {
        let elements = chain.elements(&memory_order(&output.dims), slab.is_some())?;
        chain.buffers.push(ReferenceBuffer {
            name: format!("output{n}"),
            role: ReferenceRole::Output(n as u32),
            element: mode.output(output.dtype),
            elements,
            slabbed: slab.is_some(),
        });
    }
    let mut next_parameter = 0;
    for i in 0..program.nodes.len() {
        chain.node(NodeId(i as u32), &mut next_parameter)?;
    }
    for (n, output) in program.outputs.iter().enumerate() {
        let order: Vec<AxisId> = memory_order(&output.dims);
        let value = chain.reads[output.value.index()].clone();
        let name = format!("output{n}");
        let buffer = parameters + n as u32;
        chain.each(&name, buffer, &order, |me, scope| me.value(&value, scope))?;
    }
    chain.lifetimes();
    let mut source = format!(
        "// {}: the reference, {}\n",
        identifier(&program.name),
        mode.prefix()
    );
    source.push_str(include_str!("../cuda/base.cuh"));
    source.push_str(include_str!("../cuda/convert.cuh"));
    source.push_str(include_str!("../cuda/reference.cuh"));
    source.push_str(&format!("\n{KERNELS_MARK}\n"));
    source.push_str(&chain.text);
    Ok(ReferenceProgram {
        source,
        mode,
        buffers: chain.buffers,
        launches: chain.launches,
        slab: slab.map(|a| (a, program.extent(a))),
    })
}

/// Operations that are rather done again by each reader than stored, in a row.
const CHEAP: usize = 8;
/// Operations that are written into one kernel, in a row.
const LONG: usize = 48;

impl Chain<'_> {
    /// Elements over axes; without the slab's if `slabbed`.
    fn elements(&self, order: &[AxisId], slabbed: bool) -> Result<u64, Reject> {
        let own = order.iter().filter(|a| !slabbed || Some(**a) != self.slab);
        let all = own
            .map(|a| self.program.extent(*a))
            .try_fold(1u64, |n, e| n.checked_mul(e).filter(|n| *n <= 1 << 60));
        all.ok_or_else(|| Reject::Grid("a value of more than 2^60 elements".into()))
    }

    fn node(&mut self, id: NodeId, next_parameter: &mut u32) -> Result<(), Reject> {
        let program = self.program;
        let node = program.node(id);
        let args: Vec<Read> = node
            .args
            .iter()
            .map(|a| self.reads[a.index()].clone())
            .collect();
        let read = match &node.op {
            Op::Parameter { dims, .. } => {
                let buffer = *next_parameter;
                *next_parameter += 1;
                Read::buffer(buffer, &memory_order(dims))
            }
            Op::Constant(x) => Read::Constant(*x),
            Op::Iota(axis) => Read::Coordinate(Affine::axis(*axis).into()),
            Op::View { map, fill } => self.view(id, &args[0], map, *fill)?,
            Op::Map(op) => {
                let size = 1 + args.iter().map(Read::operations).sum::<usize>();
                if self.is_inlined(id, *op, size, &args) {
                    Read::Made { op: *op, args }
                } else {
                    let order = self.order(&node.axes, &args);
                    let name = format!("value{}", id.0);
                    let made = Read::Made { op: *op, args };
                    self.stored(
                        name,
                        self.slabs(id),
                        order,
                        move |me, name, buffer, order| {
                            me.each(name, buffer, order, |me, scope| me.value(&made, scope))
                        },
                    )?
                }
            }
            Op::Reduce { op, axes } => self.reduce(id, *op, axes, &args[0])?,
            Op::Dot { axes } => self.dot(id, axes, &args)?,
        };
        self.reads.push(read);
        Ok(())
    }

    /// Whether an element-wise operation is written into who reads it: all of them go over its own elements, each once, and it is
    /// cheap, or there is one of them. What is cheap and made of constants and coordinates always is.
    fn is_inlined(&self, id: NodeId, op: MapOp, size: usize, args: &[Read]) -> bool {
        let axes = &self.program.node(id).axes;
        let users = &self.users[id.index()];
        let alike = users.iter().all(|user| {
            let node = self.program.node(*user);
            let over = match &node.op {
                _ if *user == id => node.axes.clone(),
                Op::Map(_) => node.axes.clone(),
                Op::Reduce { axes, .. } => node.axes.union(axes),
                Op::Dot { .. }
                | Op::View { .. }
                | Op::Parameter { .. }
                | Op::Constant(_)
                | Op::Iota(_) => return false,
            };
            over == *axes
        });
        let quick = |op: MapOp| functions::row(op).library_work <= 1.0;
        let cheap = quick(op) && size <= CHEAP && args.iter().all(|a| a.all(&quick));
        let viewed = |user: &NodeId| matches!(self.program.node(*user).op, Op::View { .. });
        let free = args.iter().all(Read::is_free) && !users.iter().any(viewed);
        cheap && (alike || free) || alike && size <= LONG && users.len() <= 1
    }

    /// Whether a node's value is stored a slab at a time.
    fn slabs(&self, id: NodeId) -> bool {
        let has = |a| self.program.node(id).axes.contains(a);
        !self.whole[id.index()] && self.slab.is_some_and(has)
    }

    /// A view of a value: of what is stored, another way to read it.
    fn view(
        &mut self,
        id: NodeId,
        source: &Read,
        map: &[(AxisId, Quotient)],
        fill: Option<f64>,
    ) -> Result<Read, Reject> {
        let overflow = || Reject::Grid("an index overflows 64 bits".into());
        let by = |a: AxisId| map.iter().find(|m| m.0 == a).map(|m| m.1.clone());
        let through = |f: &Quotient| f.through(by).ok_or_else(overflow);
        // The outer bounds are looked at first: inside them the inner value is defined.
        let outer = map.iter().filter_map(|(axis, function)| {
            Some((function.clone(), self.program.extent(*axis), fill?))
        });
        let mut bounds: Vec<(Quotient, u64, f64)> = outer.collect();
        Ok(match source {
            Read::Constant(x) if fill.is_none_or(|f| f == *x) => Read::Constant(*x),
            Read::Coordinate(f) if fill.is_none() => Read::Coordinate(through(f)?),
            Read::Buffer {
                buffer,
                index,
                guards,
            } => {
                let mut moved = Vec::new();
                for (axis, f) in index {
                    moved.push((*axis, through(f)?));
                }
                for (f, extent, value) in guards {
                    bounds.push((through(f)?, *extent, *value));
                }
                Read::Buffer {
                    buffer: *buffer,
                    index: moved,
                    guards: bounds,
                }
            }
            // A padded constant or coordinate: stored. Element-wise operations are stored before they are viewed.
            Read::Constant(_) | Read::Coordinate(_) | Read::Made { .. } => {
                let inner = match source {
                    Read::Coordinate(f) => Read::Coordinate(through(f)?),
                    Read::Constant(_) | Read::Buffer { .. } | Read::Made { .. } => source.clone(),
                };
                let order: Vec<AxisId> = self.program.node(id).axes.iter().collect();
                let name = format!("value{}", id.0);
                self.stored(
                    name,
                    self.slabs(id),
                    order,
                    move |me, name, buffer, order| {
                        me.each(name, buffer, order, |me, scope| {
                            let text = me.value(&inner, scope);
                            me.guarded(text, &bounds)
                        })
                    },
                )?
            }
        })
    }

    /// A buffer for a value over axes, slowest first, with the kernel that fills it: how to read it.
    fn stored(
        &mut self,
        name: String,
        slabbed: bool,
        order: Vec<AxisId>,
        fill: impl FnOnce(&mut Self, &str, u32, &[AxisId]) -> Result<(), Reject>,
    ) -> Result<Read, Reject> {
        let elements = self.elements(&order, slabbed)?;
        let buffer = self.buffers.len() as u32;
        self.buffers.push(ReferenceBuffer {
            name: name.clone(),
            role: ReferenceRole::Intermediate,
            element: self.mode.stored(),
            elements,
            slabbed,
        });
        fill(self, &name, buffer, &order)?;
        Ok(Read::buffer(buffer, &order))
    }

    /// Says after which launch each intermediate is dead.
    fn lifetimes(&mut self) {
        let mut last: BTreeMap<u32, usize> = BTreeMap::new();
        for (i, l) in self.launches.iter().enumerate() {
            for b in &l.arguments {
                if self.buffers[*b as usize].role == ReferenceRole::Intermediate {
                    last.insert(*b, i);
                }
            }
        }
        for (b, i) in last {
            self.launches[i].frees.push(b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Axis, AxisSet, Dim, Node, Output};

    fn set(axes: &[u32]) -> AxisSet {
        axes.iter().map(|a| AxisId(*a)).collect()
    }

    /// `exp(dot(x[a, k], y[k, b]; k))` with results `[b, a]`.
    fn program() -> Program {
        let parameter = |name: &str, axes: [u32; 2]| Node {
            op: Op::Parameter {
                name: name.into(),
                dtype: Dtype::Bf16,
                dims: axes.iter().map(|a| Dim(vec![AxisId(*a)])).collect(),
            },
            args: Vec::new(),
            axes: set(&axes),
            name: None,
        };
        Program {
            name: "p".into(),
            axes: ["a", "b", "k"]
                .iter()
                .zip([1000, 20, 30])
                .map(|(n, extent)| Axis {
                    name: (*n).into(),
                    extent,
                })
                .collect(),
            nodes: vec![
                parameter("x", [0, 2]),
                parameter("y", [2, 1]),
                Node {
                    op: Op::Dot { axes: set(&[2]) },
                    args: vec![NodeId(0), NodeId(1)],
                    axes: set(&[0, 1]),
                    name: None,
                },
                Node {
                    op: Op::Map(MapOp::Function(ir::Function::Exp)),
                    args: vec![NodeId(2)],
                    axes: set(&[0, 1]),
                    name: None,
                },
            ],
            outputs: vec![Output {
                dtype: Dtype::Bf16,
                dims: vec![Dim(vec![AxisId(1)]), Dim(vec![AxisId(0)])],
                value: NodeId(3),
            }],
        }
    }

    #[test]
    fn slabs_bound_the_memory() {
        let r = reference(&program(), ReferenceMode::Exact).expect("a chain");
        assert_eq!(r.slab, Some((AxisId(1), 20)));
        // The exponential is written into the kernel that fills the output.
        assert_eq!(r.launches.len(), 2);
        let parameters = 2 * (1000 * 30 + 30 * 20);
        assert_eq!(r.peak_bytes(20), parameters + 20 * 1000 * (4 + 8));
        assert_eq!(r.peak_bytes(1), parameters + 1000 * (4 + 8));
        assert_eq!(r.slab_count(parameters + 100_000), Some(7));
        assert_eq!(r.slab_count(parameters + 11_999), None);
        assert_eq!(r.launches[1].frees, [3]);
        assert_eq!(r.launches[1].blocks(20), 20_000u32.div_ceil(256));
    }

    #[test]
    fn careful_chains_keep_f32_between_operations() {
        let r = reference(&program(), ReferenceMode::Careful).expect("a chain");
        let elements: Vec<Element> = r.buffers.iter().map(|b| b.element).collect();
        let (bf16, f32) = (Element::Of(Dtype::Bf16), Element::Of(Dtype::F32));
        assert_eq!(elements, [bf16, bf16, bf16, f32]);
        assert_eq!(r.source.matches("= tw_round_bf16(").count(), 1);
    }
}

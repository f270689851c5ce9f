//! The program as a chain of naive one-operation kernels: what candidates are compared with on the GPU.
//!
//! One thread an element, plain loops, no fusion, no tiling: this text is meant to be believed by reading it. Constants,
//! coordinates and re-indexing are written into the kernels that read them; everything else is stored.
//!
//! Intermediates may be larger than a GPU. Where every output has an axis that nothing reduces or re-indexes, the chain
//! can run over a range of that axis at a time (a *slab*): intermediates hold the range, parameters and outputs the whole.

mod launch;

use self::launch::Body;
use crate::lower::{KERNELS_MARK, identifier, sum};
use ir::{Affine, AxisId, AxisSet, Dim, Dtype, MapOp, NodeId, Op, Program, ReduceOp, Reject};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// At which precision the chain computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReferenceMode {
    /// Everything in f64; outputs in f64, not rounded.
    Exact,
    /// Each result rounded to the promoted dtype of its operands, sums accumulated in f32; outputs in their dtypes: the
    /// error that a user has today.
    OwnDtypes,
}

/// So many reads of a factor's element are worth a copy of the factor.
const OFTEN: u64 = 64;

/// How a buffer's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// Double precision.
    F64,
    /// One of the program's dtypes.
    Of(Dtype),
}

impl Element {
    /// Bytes an element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F64 => 8,
            Self::Of(d) => d.bytes(),
        }
    }

    fn holder(self) -> &'static str {
        match self {
            Self::F64 => "double",
            Self::Of(Dtype::F32) => "float",
            Self::Of(Dtype::F16 | Dtype::Bf16) => "u16",
        }
    }

    fn read(self, at: &str) -> String {
        match self {
            Self::F64 | Self::Of(Dtype::F32) => at.to_string(),
            Self::Of(d) => format!("tw_float_{}({at})", d.name()),
        }
    }

    fn written(self, text: &str) -> String {
        match self {
            Self::F64 => text.to_string(),
            Self::Of(Dtype::F32) => format!("(float)({text})"),
            Self::Of(d) => format!("tw_round_{}({text})", d.name()),
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
    /// Whether it holds only the current range of the slab axis. Never for parameters and outputs.
    pub slabbed: bool,
}

/// One launch of the chain. The kernel's arguments are one pointer a buffer, then two 64-bit integers: the first coordinate of the
/// slab and the number of its coordinates (0 and the extent to run over everything; 0 and 1 without slab axis).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceLaunch {
    /// The `extern "C"` entry point.
    pub entry: String,
    /// Indices into [`ReferenceProgram::buffers`], in the order of the arguments; the last one is written.
    pub arguments: Vec<u32>,
    /// Elements that it writes; of one coordinate of the slab axis if `slabbed`.
    pub elements: u64,
    /// Whether the count is to be multiplied by the slab's.
    pub slabbed: bool,
    /// Whether a block works on one element; else a thread does.
    pub block_each: bool,
    /// Intermediates that nothing reads after this launch.
    pub frees: Vec<u32>,
}

impl ReferenceLaunch {
    /// Threads of a block.
    pub const THREADS: u32 = 256;

    /// Blocks for a slab of `count` coordinates.
    pub fn blocks(&self, count: u64) -> u64 {
        let elements = self.elements * if self.slabbed { count } else { 1 };
        if self.block_each {
            elements
        } else {
            elements.div_ceil(u64::from(Self::THREADS))
        }
    }
}

/// The whole chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceProgram {
    /// One translation unit, header-free. Compile it without fast-math options.
    pub source: String,
    /// Parameters in order, outputs in order, then intermediates.
    pub buffers: Vec<ReferenceBuffer>,
    /// In order.
    pub launches: Vec<ReferenceLaunch>,
    /// The axis along which the chain can run in parts, with its extent.
    pub slab: Option<(AxisId, u64)>,
}

impl ReferenceProgram {
    /// The most bytes of intermediates that are alive at once with slabs of `count` coordinates, when freed as early as the launches
    /// say.
    pub fn peak_bytes(&self, count: u64) -> u64 {
        let size = |b: u32| {
            let b = &self.buffers[b as usize];
            let elements = b.elements * if b.slabbed { count } else { 1 };
            match b.role {
                ReferenceRole::Intermediate => elements * b.element.bytes(),
                ReferenceRole::Parameter(_) | ReferenceRole::Output(_) => 0,
            }
        };
        let (mut live, mut peak) = (0u64, 0u64);
        for l in &self.launches {
            live += l.arguments.last().map_or(0, |b| size(*b));
            peak = peak.max(live);
            live = live.saturating_sub(l.frees.iter().map(|b| size(*b)).sum());
        }
        peak
    }

    /// The most coordinates of the slab axis whose intermediates fit `bytes`; at least 1. The extent, or 1, where all fit.
    pub fn slab_count(&self, bytes: u64) -> u64 {
        let mut count = self.slab.map_or(1, |s| s.1);
        while count > 1 && self.peak_bytes(count) > bytes {
            count = count.div_ceil(2);
        }
        count
    }
}

/// A value that a kernel reads: a buffer through an index function an axis, or text.
#[derive(Clone)]
enum Read {
    Constant(f64),
    Coordinate(Affine),
    Buffer {
        buffer: u32,
        /// (axis of the buffer, coordinate); slowest in memory first.
        index: Vec<(AxisId, Affine)>,
        /// Bounds that must hold, each with the value outside.
        guards: Vec<(Affine, u64, f64)>,
    },
}

struct Chain<'a> {
    program: &'a Program,
    mode: ReferenceMode,
    slab: Option<AxisId>,
    buffers: Vec<ReferenceBuffer>,
    reads: Vec<Read>,
    dtypes: Vec<Option<Dtype>>,
    launches: Vec<ReferenceLaunch>,
    text: String,
}

/// The chain of naive kernels for a program.
pub fn reference(program: &Program, mode: ReferenceMode) -> Result<ReferenceProgram, Reject> {
    let mut chain = Chain {
        program,
        mode,
        slab: slab_axis(program),
        buffers: Vec::new(),
        reads: Vec::new(),
        dtypes: Vec::new(),
        launches: Vec::new(),
        text: String::new(),
    };
    for (n, (_, name, dtype, dims)) in program.parameters().enumerate() {
        let elements = program.shape(dims).iter().product();
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
        chain.buffers.push(ReferenceBuffer {
            name: format!("output{n}"),
            role: ReferenceRole::Output(n as u32),
            element: match mode {
                ReferenceMode::Exact => Element::F64,
                ReferenceMode::OwnDtypes => Element::Of(output.dtype),
            },
            elements: program.shape(&output.dims).iter().product(),
            slabbed: false,
        });
    }
    let mut next_parameter = 0;
    for i in 0..program.nodes.len() {
        chain.node(NodeId(i as u32), &mut next_parameter)?;
    }
    for (n, output) in program.outputs.iter().enumerate() {
        let order: Vec<AxisId> = memory_order(&output.dims);
        let value = chain.reads[output.value.index()].clone();
        let text = chain.read(&value, &mut Vec::new());
        let buffer = parameters + n as u32;
        let name = format!("output{n}");
        chain.launch(&name, buffer, &order, &[value], Body::Plain(text))?;
    }
    chain.lifetimes();
    let mut source = format!("// {}: one operation a kernel\n", identifier(&program.name));
    source.push_str(include_str!("../cuda/base.cuh"));
    source.push_str(include_str!("../cuda/convert.cuh"));
    source.push_str(&format!("\n{KERNELS_MARK}\n"));
    source.push_str(&chain.text);
    Ok(ReferenceProgram {
        source,
        buffers: chain.buffers,
        launches: chain.launches,
        slab: chain.slab.map(|a| (a, program.extent(a))),
    })
}

/// The largest axis that all outputs have, and that nothing reduces, contracts or re-indexes.
fn slab_axis(program: &Program) -> Option<AxisId> {
    let mut candidates: AxisSet = (0..program.axes.len() as u32).map(AxisId).collect();
    for output in &program.outputs {
        candidates = candidates.intersection(&program.node(output.value).axes);
    }
    for node in &program.nodes {
        match &node.op {
            Op::Reduce { axes, .. } | Op::Dot { axes } => candidates = candidates.minus(axes),
            Op::View { map, .. } => {
                for (axis, function) in map {
                    candidates.remove(*axis);
                    candidates = candidates.minus(&function.axes());
                }
            }
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::Map(_) => {}
        }
    }
    candidates.iter().max_by_key(|a| program.extent(*a))
}

fn memory_order(dims: &[Dim]) -> Vec<AxisId> {
    dims.iter().flat_map(|d| d.0.iter().copied()).collect()
}

fn promote(x: Option<Dtype>, y: Option<Dtype>) -> Option<Dtype> {
    match (x, y) {
        (None, other) | (other, None) => other,
        (Some(a), Some(b)) if a == b => Some(a),
        (Some(_), Some(_)) => Some(Dtype::F32),
    }
}

impl Chain<'_> {
    fn real(&self) -> &'static str {
        match self.mode {
            ReferenceMode::Exact => "double",
            ReferenceMode::OwnDtypes => "float",
        }
    }

    fn constant(&self, x: f64) -> String {
        let text = if x == f64::INFINITY {
            "(1.0 / 0.0)".into()
        } else if x == f64::NEG_INFINITY {
            "(-1.0 / 0.0)".into()
        } else {
            format!("({x:?})")
        };
        format!("(({})({text}))", self.real())
    }

    fn coordinate(function: &Affine) -> String {
        let mut terms: Vec<String> = function
            .terms()
            .iter()
            .map(|(c, a)| format!("({c}ll) * x{}", a.0))
            .collect();
        terms.push(format!("({}ll)", function.offset));
        sum(terms)
    }

    /// The element of a value at the coordinates `x<axis>`; `used` collects the buffers.
    fn read(&self, value: &Read, used: &mut Vec<u32>) -> String {
        match value {
            Read::Constant(x) => self.constant(*x),
            Read::Coordinate(function) => {
                format!("(({})({}))", self.real(), Self::coordinate(function))
            }
            Read::Buffer {
                buffer,
                index,
                guards,
            } => {
                used.push(*buffer);
                let b = &self.buffers[*buffer as usize];
                let mut at = "0ll".to_string();
                for (axis, function) in index {
                    let mut coordinate = Self::coordinate(function);
                    let mut extent = format!("{}ll", self.program.extent(*axis));
                    if Some(*axis) == self.slab && b.slabbed {
                        coordinate = format!("{coordinate} - slab_first");
                        extent = "slab_count".into();
                    }
                    at = format!("({at} * {extent} + ({coordinate}))");
                }
                let mut text = format!(
                    "(({})({}))",
                    self.real(),
                    b.element.read(&format!("b{buffer}[{at}]"))
                );
                for (function, extent, fill) in guards.iter().rev() {
                    let at = Self::coordinate(function);
                    text = format!(
                        "(({at}) >= 0 && ({at}) < {extent}ll ? {text} : {})",
                        self.constant(*fill)
                    );
                }
                text
            }
        }
    }

    fn node(&mut self, id: NodeId, next_parameter: &mut u32) -> Result<(), Reject> {
        let node = self.program.node(id);
        let overflow = || Reject::Grid("an index overflows 64 bits".into());
        let dtype = node
            .args
            .iter()
            .fold(None, |d, a| promote(d, self.dtypes[a.index()]));
        let args: Vec<Read> = node
            .args
            .iter()
            .map(|a| self.reads[a.index()].clone())
            .collect();
        let term = |me: &Self| -> Vec<String> {
            args.iter().map(|a| me.read(a, &mut Vec::new())).collect()
        };
        let (read, dtype) = match &node.op {
            Op::Parameter { dtype, dims, .. } => {
                let buffer = *next_parameter;
                *next_parameter += 1;
                let index = memory_order(dims)
                    .into_iter()
                    .map(|a| (a, Affine::axis(a)))
                    .collect();
                let read = Read::Buffer {
                    buffer,
                    index,
                    guards: Vec::new(),
                };
                (read, Some(*dtype))
            }
            Op::Constant(x) => (Read::Constant(*x), None),
            Op::Iota(axis) => (Read::Coordinate(Affine::axis(*axis)), None),
            Op::View { map, fill } => {
                let by = |a: AxisId| map.iter().find(|m| m.0 == a).map(|m| m.1.clone());
                let through = |f: &Affine| f.substitute(by).ok_or_else(overflow);
                // The outer bounds are looked at first: inside them the inner value is defined.
                let mut bounds = Vec::new();
                for (axis, function) in map {
                    if let Some(fill) = fill {
                        bounds.push((function.clone(), self.program.extent(*axis), *fill));
                    }
                }
                let read = match &args[0] {
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
                    inner @ (Read::Constant(_) | Read::Coordinate(_)) => {
                        // A padded constant or coordinate: stored.
                        let moved = match inner {
                            Read::Coordinate(f) => Read::Coordinate(through(f)?),
                            Read::Constant(_) | Read::Buffer { .. } => inner.clone(),
                        };
                        let mut text = self.read(&moved, &mut Vec::new());
                        for (f, extent, value) in bounds.iter().rev() {
                            let at = Self::coordinate(f);
                            text = format!(
                                "(({at}) >= 0 && ({at}) < {extent}ll ? {text} : {})",
                                self.constant(*value)
                            );
                        }
                        self.stored(id, dtype, &[], Body::Plain(text))?
                    }
                };
                (read, dtype)
            }
            Op::Map(op) => {
                let texts = term(self);
                let text = self.map(*op, &texts)?;
                (self.stored(id, dtype, &args, Body::Plain(text))?, dtype)
            }
            Op::Reduce { op, axes } => {
                let body = Body::Over {
                    axes: axes.clone(),
                    op: *op,
                    term: term(self).join(" * "),
                };
                (self.stored(id, dtype, &args, body)?, dtype)
            }
            Op::Dot { axes } => {
                let mut factors = Vec::new();
                for (arg, read) in node.args.iter().zip(&args) {
                    factors.push(self.packed(id, *arg, read)?);
                }
                let terms: Vec<String> = factors
                    .iter()
                    .map(|f| self.read(f, &mut Vec::new()))
                    .collect();
                let body = Body::Over {
                    axes: axes.clone(),
                    op: ReduceOp::Sum,
                    term: terms.join(" * "),
                };
                (self.stored(id, dtype, &factors, body)?, dtype)
            }
        };
        self.reads.push(read);
        self.dtypes.push(dtype);
        Ok(())
    }

    fn map(&self, op: MapOp, args: &[String]) -> Result<String, Reject> {
        let suffix = match self.mode {
            ReferenceMode::Exact => "",
            ReferenceMode::OwnDtypes => "f",
        };
        Ok(match (op, args) {
            (MapOp::Add, [x, y]) => format!("{x} + {y}"),
            (MapOp::Mul, [x, y]) => format!("{x} * {y}"),
            (MapOp::Div, [x, y]) => format!("{x} / {y}"),
            (MapOp::Max, [x, y]) => format!("fmax{suffix}({x}, {y})"),
            (MapOp::Exp, [x]) => format!("exp{suffix}({x})"),
            (MapOp::Log, [x]) => format!("log{suffix}({x})"),
            (MapOp::Sqrt, [x]) => format!("sqrt{suffix}({x})"),
            (MapOp::Select, [c, x, y]) => format!("({c} >= 0 ? {x} : {y})"),
            (
                MapOp::Add
                | MapOp::Mul
                | MapOp::Div
                | MapOp::Max
                | MapOp::Exp
                | MapOp::Log
                | MapOp::Sqrt
                | MapOp::Select,
                _,
            ) => return Err(Reject::Schedule(format!("{op:?} of {} values", args.len()))),
        })
    }

    /// A factor of a product as the product's threads should read it. Neighbouring threads differ in the last axis of the
    /// result; where that is not the last one of the factor, and the factor is read often, it is copied first.
    fn packed(&mut self, product: NodeId, factor: NodeId, read: &Read) -> Result<Read, Reject> {
        let plain = match read {
            Read::Buffer { index, guards, .. } => {
                guards.is_empty() && index.iter().all(|(a, f)| *f == Affine::axis(*a))
            }
            Read::Constant(_) | Read::Coordinate(_) => false,
        };
        let axes = &self.program.node(factor).axes;
        let result = &self.program.node(product).axes;
        let last = result.iter().last().filter(|a| axes.contains(*a));
        let (Read::Buffer { index, .. }, Some(last), true) = (read, last, plain) else {
            return Ok(read.clone());
        };
        let there = index.last().is_some_and(|(a, _)| *a == last);
        let reads: u64 = result
            .minus(axes)
            .iter()
            .map(|a| self.program.extent(a))
            .product();
        if there || reads < OFTEN {
            return Ok(read.clone());
        }
        let mut order: Vec<AxisId> = axes.iter().filter(|a| *a != last).collect();
        order.push(last);
        let text = self.read(read, &mut Vec::new());
        // Wide enough for every dtype: a copy rounds nothing.
        let element = match self.mode {
            ReferenceMode::Exact => Element::F64,
            ReferenceMode::OwnDtypes => Element::Of(Dtype::F32),
        };
        let name = format!("factor{}_{}", product.0, factor.0);
        let read = std::slice::from_ref(read);
        self.stored_as(name, order, element, read, Body::Plain(text))
    }

    /// A kernel that stores a node's value, and how to read it.
    fn stored(
        &mut self,
        id: NodeId,
        dtype: Option<Dtype>,
        args: &[Read],
        body: Body,
    ) -> Result<Read, Reject> {
        let order: Vec<AxisId> = self.program.node(id).axes.iter().collect();
        let element = match self.mode {
            ReferenceMode::Exact => Element::F64,
            ReferenceMode::OwnDtypes => Element::Of(dtype.unwrap_or(Dtype::F32)),
        };
        self.stored_as(format!("value{}", id.0), order, element, args, body)
    }

    /// A kernel that stores a value over axes, slowest first, and how to read it.
    fn stored_as(
        &mut self,
        name: String,
        order: Vec<AxisId>,
        element: Element,
        args: &[Read],
        body: Body,
    ) -> Result<Read, Reject> {
        let slabbed = self.slab.is_some_and(|s| order.contains(&s));
        let elements = order
            .iter()
            .filter(|a| Some(**a) != self.slab)
            .try_fold(1u64, |n, a| n.checked_mul(self.program.extent(*a)))
            .ok_or_else(|| Reject::Grid("an intermediate of more than 2^64 elements".into()))?;
        let buffer = self.buffers.len() as u32;
        self.buffers.push(ReferenceBuffer {
            name: name.clone(),
            role: ReferenceRole::Intermediate,
            element,
            elements,
            slabbed,
        });
        self.launch(&name, buffer, &order, args, body)?;
        Ok(Read::Buffer {
            buffer,
            index: order.into_iter().map(|a| (a, Affine::axis(a))).collect(),
            guards: Vec::new(),
        })
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
    use ir::{Axis, Node, Output};

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
                    op: Op::Map(MapOp::Exp),
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
        assert_eq!(r.slab, Some((AxisId(0), 1000)));
        assert_eq!(r.launches.len(), 3);
        assert_eq!(r.peak_bytes(1000), 2 * 20 * 1000 * 8);
        assert_eq!(r.peak_bytes(10), 2 * 20 * 10 * 8);
        assert_eq!(r.slab_count(100_000), 250);
        assert_eq!(r.launches[1].frees, [3]);
        assert_eq!(r.launches[0].blocks(1000), 20_000u64.div_ceil(256));
    }

    #[test]
    fn own_dtypes_round_every_result() {
        let r = reference(&program(), ReferenceMode::OwnDtypes).expect("a chain");
        assert!(
            r.buffers
                .iter()
                .all(|b| b.element == Element::Of(Dtype::Bf16))
        );
        assert_eq!(r.source.matches("= tw_round_bf16(value)").count(), 3);
    }
}

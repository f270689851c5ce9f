//! A program: a pure tensor function over the reals, as an SSA arena of the 14 operations.
//!
//! Every value has a *set* of named axes; operations line their operands up by name. Dtypes exist on parameters and
//! outputs only. The same type holds the expressions that the e-graph extracts.

use crate::affine::Quotient;
use crate::axes::{Axis, AxisId, AxisSet};
use crate::functions::Function;
use serde::{Deserialize, Serialize};

/// How a parameter or an output is stored. [`Dtype::round`] says what of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16: 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// Signed integers of 32 bits.
    I32,
    /// Signed integers of 64 bits.
    I64,
    /// A byte, 0 or 1.
    Bool,
}

impl Dtype {
    /// Whether it is one of [`Dtype::FLOATS`].
    pub fn is_float(self) -> bool {
        Self::FLOATS.contains(&self)
    }

    /// What its numbers are held in once they are read: integers in f32. None where any dtype holds them all, as it does 0 and 1.
    pub fn held(self) -> Option<Self> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => Some(self),
            Self::I32 | Self::I64 => Some(Self::F32),
            Self::Bool => None,
        }
    }

    /// What an operation on two values gives: the dtype of both, or f32; constants have none.
    pub fn joined(x: Option<Self>, y: Option<Self>) -> Option<Self> {
        match (x, y) {
            (Some(x), Some(y)) if x != y => Some(Self::F32),
            (x, y) => x.or(y),
        }
    }

    /// What an element-wise operation over some axes gives, from the dtypes and the axes of its operands: where some have all of these axes,
    /// the others are tables, scales or masks and have no part in it.
    pub fn of_map<'a>(
        op: MapOp,
        axes: &AxisSet,
        operands: impl Iterator<Item = (Option<Self>, &'a AxisSet)> + Clone,
    ) -> Option<Self> {
        // Nor has the condition of a select.
        let operands = operands.skip(usize::from(op == MapOp::Select));
        let joined = |all: &mut dyn Iterator<Item = (Option<Self>, &'a AxisSet)>| {
            all.map(|(dtype, _)| dtype).fold(None, Self::joined)
        };
        let mut whole = operands.clone().filter(|(_, own)| *own == axes);
        joined(&mut whole).or_else(|| joined(&mut operands.clone()))
    }

    /// Binary digits of an f32 that it has no room for.
    pub fn lost_digits(self) -> u32 {
        match self {
            Self::F32 | Self::I32 | Self::I64 | Self::Bool => 0,
            Self::F16 => 13,
            Self::Bf16 => 16,
        }
    }

    /// Those that store a number to some digits. The others store whole numbers, or whether a number is one at all.
    pub const FLOATS: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Every dtype, in the order in which messages list them.
    pub const ALL: [Self; 6] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::I32,
        Self::I64,
        Self::Bool,
    ];

    /// The spelling in programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::Bool => "bool",
        }
    }

    /// Bytes an element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Bool => 1,
        }
    }
}

/// One dimension in memory: a single axis, or a group `(h d)`, slowest axis first, as in einops. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dim(pub Vec<AxisId>);

/// The element-wise operations: five that have laws of their own, and the functions of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MapOp {
    /// `x + y`
    Add,
    /// `x * y`
    Mul,
    /// `x / y`
    Div,
    /// The larger of the two; of a number and NaN, the number.
    Max,
    /// A function of the table.
    Function(Function),
    /// `select(c, x, y)`: `x` where `c >= 0`, else `y`.
    Select,
}

/// The reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// The sum; neutral value 0.
    Sum,
    /// The maximum; neutral value −∞.
    Max,
    /// The product; neutral value 1.
    Product,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Max, Self::Product];

    /// The name in the program language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Product => "prod",
        }
    }

    /// The value that changes nothing.
    pub fn neutral(self) -> f64 {
        match self {
            Self::Sum => 0.0,
            Self::Max => f64::NEG_INFINITY,
            Self::Product => 1.0,
        }
    }

    /// The element-wise operation that combines two partial results.
    pub fn combine(self) -> MapOp {
        match self {
            Self::Sum => MapOp::Add,
            Self::Max => MapOp::Max,
            Self::Product => MapOp::Mul,
        }
    }
}

/// An index into [`Program::nodes`]. A node's arguments come before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The position in the arena.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a node computes from its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// An input tensor, contiguous, slowest dimension first.
    Parameter {
        /// Its name, unique among the parameters.
        name: String,
        /// How it is stored.
        dtype: Dtype,
        /// Memory order.
        dims: Vec<Dim>,
    },
    /// A scalar; may be infinite, never NaN.
    Constant(f64),
    /// The coordinate along an axis, as a real.
    Iota(AxisId),
    /// Re-indexing: `y[..] = x[map[a](..) for each mapped axis a of x, same coordinate for the others]`, and `fill`
    /// where a mapped coordinate lies outside the source or is no integer. Result axes: the source's without the mapped ones, united with
    /// the axes that the affine functions mention. `fill: None` is allowed only where the source is never left.
    View {
        /// Sorted by source axis; each source axis at most once.
        map: Vec<(AxisId, Quotient)>,
        /// The value outside the source.
        fill: Option<f64>,
    },
    /// An element-wise operation; result axes: the union.
    Map(MapOp),
    /// A reduction over `axes`, all of them axes of the argument; never empty.
    Reduce {
        /// Sum, maximum or product.
        op: ReduceOp,
        /// What disappears.
        axes: AxisSet,
    },
    /// `Σ over axes of x · y`; each axis belongs to at least one argument; never empty.
    Dot {
        /// What is contracted.
        axes: AxisSet,
    },
}

/// One value of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// From which values; earlier in the arena.
    pub args: Vec<NodeId>,
    /// The axes of the result.
    pub axes: AxisSet,
    /// The name that the user bound, if any. Names never change meaning; two nodes never share one.
    pub name: Option<String>,
}

/// One result: how a value is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The stored type.
    pub dtype: Dtype,
    /// Memory order; exactly the value's axes.
    pub dims: Vec<Dim>,
    /// The value.
    pub value: NodeId,
}

/// A program: axes, values and results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The name in the `program` line.
    pub name: String,
    /// The axis table.
    pub axes: Vec<Axis>,
    /// The values, arguments before users, parameters in declaration order.
    pub nodes: Vec<Node>,
    /// The results, at least one.
    pub outputs: Vec<Output>,
}

impl Program {
    /// The dtype of each value: what it is kept in where it is an operand of a contraction. `None` for what is made of constants and
    /// coordinates alone.
    pub fn dtypes(&self) -> Vec<Option<Dtype>> {
        let mut all: Vec<Option<Dtype>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let of = |id: &NodeId| all.get(id.index()).copied().flatten();
            let own = match node.op {
                Op::Parameter { dtype, .. } => dtype.held(),
                Op::Map(op) => {
                    let operands = node.args.iter().map(|a| (of(a), &self.node(*a).axes));
                    Dtype::of_map(op, &node.axes, operands)
                }
                Op::View { .. } | Op::Reduce { .. } | Op::Dot { .. } => {
                    node.args.iter().map(of).fold(None, Dtype::joined)
                }
                Op::Constant(_) | Op::Iota(_) => None,
            };
            all.push(own);
        }
        all
    }

    /// The bytes of all parameters; the largest number where they are more.
    pub fn input_bytes(&self) -> u64 {
        let bytes = |dims: &[Dim], dtype: Dtype| {
            let extents = self.shape(dims).into_iter();
            extents.fold(dtype.bytes(), u64::saturating_mul)
        };
        self.parameters()
            .map(|(_, _, dtype, dims)| bytes(dims, dtype))
            .fold(0, u64::saturating_add)
    }

    /// The node behind an index.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The extent of an axis.
    pub fn extent(&self, axis: AxisId) -> u64 {
        self.axes[axis.index()].extent
    }

    /// The parameters in declaration order.
    pub fn parameters(&self) -> impl Iterator<Item = (NodeId, &str, Dtype, &[Dim])> {
        self.nodes.iter().enumerate().filter_map(|(i, n)| {
            let Op::Parameter { name, dtype, dims } = &n.op else {
                return None;
            };
            Some((NodeId(i as u32), name.as_str(), *dtype, dims.as_slice()))
        })
    }

    /// The extents of a tensor's dimensions in memory, a group counting as one.
    pub fn shape(&self, dims: &[Dim]) -> Vec<u64> {
        dims.iter()
            .map(|d| d.0.iter().map(|a| self.extent(*a)).product())
            .collect()
    }
}

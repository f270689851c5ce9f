//! Making programs: one construction core, used by the parser and by Rust code. It knows operations and no definitions: those of the
//! prelude are methods too, above the parser.
//!
//! Equal applications are one value (hash-consing), so a value mentioned twice is shared. Only what the outputs need,
//! and every parameter, is in the finished program, in a canonical order: parameters as declared, then each value right
//! after its arguments, outputs from first to last.
//!
//! ```
//! use ir::{Builder, Dtype};
//! # use tilewright_ir as ir;
//! # fn main() -> Result<(), ir::BuildError> {
//! let mut b = Builder::new("attention");
//! let (i, j, d, e) = (b.axis("i", 128)?, b.axis("j", 512)?, b.axis("d", 64)?, b.axis("e", 64)?);
//! let q = b.parameter("q", Dtype::F16, [i, d])?;
//! let k = b.parameter("k", Dtype::F16, [j, d])?;
//! let v = b.parameter("v", Dtype::F16, [j, e])?;
//! let scores = b.dot(q, k, [d])?;
//! let eighth = b.constant(0.125)?;
//! let scaled = b.mul(scores, eighth)?;
//! let weights = b.softmax(scaled, j)?;
//! let result = b.dot(weights, v, [j])?;
//! b.output(Dtype::F16, [i, e], result)?;
//! let program = b.finish()?;
//! assert_eq!(program.parameters().count(), 3);
//! # Ok(())
//! # }
//! ```

use crate::affine::Quotient;
use crate::axes::{Axis, AxisId, AxisSet};
use crate::functions::Function;
use crate::limits::{MAX_AXES, MAX_EXTENT, MAX_NAME, MAX_NODES, MAX_OUTPUTS, MAX_PARAMETERS};
use crate::program::{Dim, Dtype, MapOp, Node, NodeId, Op, Output, Program, ReduceOp};
use std::collections::{BTreeMap, HashMap};

/// Why a step of making a program was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

impl From<AxisId> for Dim {
    fn from(axis: AxisId) -> Self {
        Self(vec![axis])
    }
}

/// What a name that users cannot take is, if it is one.
pub(crate) type Taken = fn(&str) -> Option<&'static str>;

/// A program in the making.
#[derive(Clone, Debug)]
pub struct Builder {
    program: Program,
    interned: HashMap<Key, NodeId>,
    names: BTreeMap<String, NodeId>,
    taken: Taken,
}

impl Builder {
    /// An empty program, and the names that the language has taken.
    pub(crate) fn empty(name: impl Into<String>, taken: Taken) -> Self {
        Self {
            program: Program {
                name: name.into(),
                axes: Vec::new(),
                nodes: Vec::new(),
                outputs: Vec::new(),
            },
            interned: HashMap::new(),
            names: BTreeMap::new(),
            taken,
        }
    }

    /// The program so far: axes and values by index.
    pub fn so_far(&self) -> &Program {
        &self.program
    }

    /// Declares an axis: 1 ≤ extent ≤ 2^40, the name new.
    pub fn axis(&mut self, name: &str, extent: u64) -> Result<AxisId, BuildError> {
        if self.program.axes.iter().any(|a| a.name == name) {
            return refuse(format!("axis `{name}` is declared twice"));
        }
        if extent == 0 {
            return refuse(format!("axis `{name}` has extent 0, expected at least 1"));
        }
        if extent > MAX_EXTENT {
            return refuse(format!(
                "axis `{name}` has extent {extent}, expected at most 2^40"
            ));
        }
        if self.program.axes.len() >= MAX_AXES {
            return refuse(format!("a program has at most {MAX_AXES} axes"));
        }
        check_name(name, self.taken)?;
        self.program.axes.push(Axis {
            name: name.to_owned(),
            extent,
        });
        Ok(AxisId(self.program.axes.len() as u32 - 1))
    }

    /// Declares an input tensor, slowest dimension first.
    pub fn parameter<D: Into<Dim>>(
        &mut self,
        name: &str,
        dtype: Dtype,
        dims: impl IntoIterator<Item = D>,
    ) -> Result<NodeId, BuildError> {
        check_name(name, self.taken)?;
        if self.names.contains_key(name) {
            return refuse(format!("`{name}` is already defined"));
        }
        if self.program.parameters().count() >= MAX_PARAMETERS {
            return refuse(format!("a program has at most {MAX_PARAMETERS} parameters"));
        }
        let op = Op::Parameter {
            name: name.to_owned(),
            dtype,
            dims: dims.into_iter().map(Into::into).collect(),
        };
        let id = self.node(op, &[])?;
        self.name(id, name)?;
        Ok(id)
    }

    /// Applies an operation: the construction core. An equal application is the same value.
    pub fn node(&mut self, op: Op, args: &[NodeId]) -> Result<NodeId, BuildError> {
        let axes = self.program.infer_axes(&op, args).map_err(BuildError)?;
        let key = key(&op, args);
        if let Some(id) = key.as_ref().and_then(|k| self.interned.get(k)) {
            return Ok(*id);
        }
        if self.program.nodes.len() >= MAX_NODES {
            return refuse(format!("a program has at most {MAX_NODES} values"));
        }
        let id = NodeId(self.program.nodes.len() as u32);
        self.program.nodes.push(Node {
            op,
            args: args.to_vec(),
            axes,
            name: None,
        });
        if let Some(key) = key {
            self.interned.insert(key, id);
        }
        Ok(id)
    }

    /// Gives a value a name for messages and printing. The first name of a value stays; a name that starts with an
    /// underscore is not kept.
    pub fn name(&mut self, id: NodeId, name: &str) -> Result<(), BuildError> {
        check_name(name, self.taken)?;
        if self.names.contains_key(name) {
            return refuse(format!("`{name}` is already defined"));
        }
        let Some(node) = self.program.nodes.get_mut(id.index()) else {
            return refuse(format!("no value number {}", id.0));
        };
        self.names.insert(name.to_owned(), id);
        let is_parameter = matches!(node.op, Op::Parameter { .. });
        if node.name.is_none() && (is_parameter || !name.starts_with('_')) {
            node.name = Some(name.to_owned());
        }
        Ok(())
    }

    /// The value that was given a name.
    pub fn named(&self, name: &str) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    /// Adds a result, slowest dimension first; `dims` has exactly the axes of the value. [`Dtype::round`] says what is stored of it.
    pub fn output<D: Into<Dim>>(
        &mut self,
        dtype: Dtype,
        dims: impl IntoIterator<Item = D>,
        value: NodeId,
    ) -> Result<(), BuildError> {
        let dims: Vec<Dim> = dims.into_iter().map(Into::into).collect();
        let Some(node) = self.program.nodes.get(value.index()) else {
            return refuse(format!("no value number {}", value.0));
        };
        if self.program.outputs.len() >= MAX_OUTPUTS {
            return refuse(format!("a program has at most {MAX_OUTPUTS} results"));
        }
        (self.program.output_axes(&node.axes, &dims)).map_err(BuildError)?;
        self.program.outputs.push(Output { dtype, dims, value });
        Ok(())
    }

    /// The program, in canonical order.
    pub fn finish(self) -> Result<Program, BuildError> {
        if self.program.outputs.is_empty() {
            return refuse("a program returns at least one value".to_owned());
        }
        Ok(self.program.canonical())
    }

    /// A scalar.
    pub fn constant(&mut self, value: f64) -> Result<NodeId, BuildError> {
        self.node(Op::Constant(value), &[])
    }

    /// The coordinate along an axis.
    pub fn iota(&mut self, axis: AxisId) -> Result<NodeId, BuildError> {
        self.node(Op::Iota(axis), &[])
    }

    /// Re-indexing; the same value for an empty map.
    pub fn view(
        &mut self,
        x: NodeId,
        map: impl IntoIterator<Item = (AxisId, impl Into<Quotient>)>,
        fill: Option<f64>,
    ) -> Result<NodeId, BuildError> {
        let map = map.into_iter().map(|(axis, at)| (axis, at.into()));
        let mut map: Vec<(AxisId, Quotient)> = map.collect();
        if map.is_empty() {
            return Ok(x);
        }
        map.sort_by_key(|m| m.0);
        self.node(Op::View { map, fill }, &[x])
    }

    /// An element-wise operation.
    pub fn map(&mut self, op: MapOp, args: &[NodeId]) -> Result<NodeId, BuildError> {
        self.node(Op::Map(op), args)
    }

    /// A reduction.
    pub fn reduce(
        &mut self,
        op: ReduceOp,
        x: NodeId,
        axes: impl IntoIterator<Item = AxisId>,
    ) -> Result<NodeId, BuildError> {
        let axes = axes.into_iter().collect();
        self.node(Op::Reduce { op, axes }, &[x])
    }

    /// `Σ over axes of x · y`
    pub fn dot(
        &mut self,
        x: NodeId,
        y: NodeId,
        axes: impl IntoIterator<Item = AxisId>,
    ) -> Result<NodeId, BuildError> {
        let axes = axes.into_iter().collect();
        self.node(Op::Dot { axes }, &[x, y])
    }

    /// `sum(x; axes)`
    pub fn sum(
        &mut self,
        x: NodeId,
        axes: impl IntoIterator<Item = AxisId>,
    ) -> Result<NodeId, BuildError> {
        self.reduce(ReduceOp::Sum, x, axes)
    }

    /// `max(x; axes)`
    pub fn max_over(
        &mut self,
        x: NodeId,
        axes: impl IntoIterator<Item = AxisId>,
    ) -> Result<NodeId, BuildError> {
        self.reduce(ReduceOp::Max, x, axes)
    }

    /// `prod(x; axes)`
    pub fn prod(
        &mut self,
        x: NodeId,
        axes: impl IntoIterator<Item = AxisId>,
    ) -> Result<NodeId, BuildError> {
        self.reduce(ReduceOp::Product, x, axes)
    }

    /// `size(a)`: the extent, of several axes the product of their extents, as a constant.
    pub fn size(&mut self, axes: impl IntoIterator<Item = AxisId>) -> Result<NodeId, BuildError> {
        let axes: AxisSet = axes.into_iter().collect();
        if let Some(unknown) = axes.iter().find(|a| a.index() >= self.program.axes.len()) {
            return refuse(format!("no axis number {}", unknown.0));
        }
        match self.program.elements(&axes) {
            Some(extent) => self.constant(extent as f64),
            None => refuse(format!(
                "the axes {} together have too many elements",
                self.program.axis_list(&axes)
            )),
        }
    }

    /// `-x`, which is `(-1) * x`
    pub fn neg(&mut self, x: NodeId) -> Result<NodeId, BuildError> {
        let minus = self.constant(-1.0)?;
        self.mul(minus, x)
    }

    /// `f(x, …)`
    pub fn function(&mut self, function: Function, x: &[NodeId]) -> Result<NodeId, BuildError> {
        self.map(MapOp::Function(function), x)
    }

    /// `x - y`, which is `x + (-1) * y`
    pub fn sub(&mut self, x: NodeId, y: NodeId) -> Result<NodeId, BuildError> {
        let y = self.neg(y)?;
        self.add(x, y)
    }
}

/// Methods that are one application each.
macro_rules! sugar {
    ($($(#[$doc:meta])* $name:ident($($x:ident),*) = $op:ident;)*) => {
        impl Builder {$(
            $(#[$doc])*
            pub fn $name(&mut self, $($x: NodeId),*) -> Result<NodeId, BuildError> {
                self.map(MapOp::$op, &[$($x),*])
            }
        )*}
    };
}

sugar! {
    /// `x + y`
    add(x, y) = Add;
    /// `x * y`
    mul(x, y) = Mul;
    /// `x / y`
    div(x, y) = Div;
    /// `max(x, y)`
    max(x, y) = Max;
    /// `x` where `c >= 0`, else `y`
    select(c, x, y) = Select;
}

impl Program {
    /// The same program in canonical order: parameters as declared, then each value right after its arguments, outputs
    /// from first to last; nothing that no output needs. Values are not merged.
    pub fn canonical(&self) -> Self {
        let mut place: Vec<Option<NodeId>> = vec![None; self.nodes.len()];
        let mut order: Vec<usize> = Vec::new();
        let put = |at: usize, place: &mut Vec<Option<NodeId>>, order: &mut Vec<usize>| {
            if place[at].is_none() {
                place[at] = Some(NodeId(order.len() as u32));
                order.push(at);
            }
        };
        for (id, ..) in self.parameters() {
            put(id.index(), &mut place, &mut order);
        }
        for output in &self.outputs {
            // (value, next argument to visit)
            let mut stack = vec![(output.value.index(), 0)];
            while let Some((at, next)) = stack.pop() {
                if place[at].is_some() {
                    continue;
                }
                match self.nodes[at].args.get(next) {
                    Some(arg) => stack.extend([(at, next + 1), (arg.index(), 0)]),
                    None => put(at, &mut place, &mut order),
                }
            }
        }
        let moved = |id: NodeId| place[id.index()].unwrap_or(id);
        let nodes = order
            .iter()
            .map(|at| {
                let mut node = self.nodes[*at].clone();
                node.args.iter_mut().for_each(|a| *a = moved(*a));
                node
            })
            .collect();
        let outputs = self
            .outputs
            .iter()
            .map(|o| Output {
                value: moved(o.value),
                ..o.clone()
            })
            .collect();
        Self {
            name: self.name.clone(),
            axes: self.axes.clone(),
            nodes,
            outputs,
        }
    }
}

/// Letters, digits and underscores, no digit first, nothing that the language has taken.
fn check_name(name: &str, taken: Taken) -> Result<(), BuildError> {
    let mut chars = name.chars();
    let first = chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !first || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return refuse(format!("`{name}` is no name"));
    }
    check_length(name)?;
    match taken(name) {
        Some(what) => refuse(format!("`{name}` is {what}, expected another name")),
        None => Ok(()),
    }
}

/// Whether a name is short enough for messages, files and CUDA.
pub(crate) fn check_length(name: &str) -> Result<(), BuildError> {
    match name.len() {
        found if found > MAX_NAME => refuse(format!(
            "a name has at most {MAX_NAME} characters, found {found}"
        )),
        _ => Ok(()),
    }
}

fn refuse<T>(why: String) -> Result<T, BuildError> {
    Err(BuildError(why))
}

/// The name of an operation, its arguments and its attributes.
type Key = (&'static str, Vec<u64>);

/// Equal keys are equal applications. Parameters are never merged.
fn key(op: &Op, args: &[NodeId]) -> Option<Key> {
    let mut words: Vec<u64> = args.iter().map(|a| u64::from(a.0)).collect();
    match op {
        Op::Parameter { .. } => return None,
        Op::Constant(value) => words.push(value.to_bits()),
        Op::Iota(axis) => words.push(u64::from(axis.0)),
        Op::View { map, fill } => {
            words.extend([u64::from(fill.is_some()), fill.unwrap_or(0.0).to_bits()]);
            for (axis, at) in map {
                let affine = at.function();
                let terms = affine.terms().len() as u64;
                words.extend([u64::from(axis.0), at.divisor() as u64, terms]);
                for (coefficient, term) in affine.terms() {
                    words.extend([*coefficient as u64, u64::from(term.0)]);
                }
                words.push(affine.offset as u64);
            }
        }
        Op::Map(_) => {}
        Op::Reduce { op, axes } => {
            words.push(*op as u64);
            words.extend(axes.iter().map(|a| u64::from(a.0)));
        }
        Op::Dot { axes } => words.extend(axes.iter().map(|a| u64::from(a.0))),
    }
    Some((op.row().name, words))
}

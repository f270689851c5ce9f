//! The nodes of the e-graph: the operations of programs with n-ary, flat, sorted sums, products and maxima.
//!
//! Three things differ from programs. A sum, a product and a maximum take any number of operands, kept sorted, so that
//! associativity and commutativity need no rules. A quotient is a product with an inverse. A `dot` is a sum over a
//! product; the split into two operands is chosen again when an expression is extracted.

use egg::{Id, Language};
use ir::{AxisId, AxisSet, Fact, Function, Quotient};

/// A number as part of a key: equal bits are equal numbers, and there is one zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Real(u64);

impl Real {
    /// The key of a number; `-0` becomes `0`.
    pub fn new(value: f64) -> Self {
        Self(if value == 0.0 { 0 } else { value.to_bits() })
    }

    /// The number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// What an e-node computes from its operands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// An entry of the symbol table of [`Algebra`](crate::egraph::facts::Algebra): a parameter, or anything that is not looked into.
    Symbol(u32),
    /// A scalar.
    Constant(Real),
    /// The coordinate along an axis.
    Iota(AxisId),
    /// Re-indexing, as in [`ir::Op::View`].
    View {
        /// Sorted by source axis.
        map: Vec<(AxisId, Quotient)>,
        /// The value outside the source.
        fill: Option<Real>,
    },
    /// `Σ operands`, at least two.
    Add,
    /// `Π operands`, at least two.
    Mul,
    /// The largest operand, at least two.
    Max,
    /// `1 / x`
    Inv,
    /// A function of the table.
    Function(Function),
    /// `select(c, x, y)`
    Select,
    /// The sum over axes.
    Sum(AxisSet),
    /// The maximum over axes.
    Maximum(AxisSet),
    /// The product over axes.
    Product(AxisSet),
}

/// A [`Kind`] without its data, but for the function: what rules are indexed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the variants are those of Kind")]
pub enum Tag {
    Symbol,
    Constant,
    Iota,
    View,
    Add,
    Mul,
    Max,
    Inv,
    Function(Function),
    Select,
    Sum,
    Maximum,
    Product,
}

impl Kind {
    /// What rules about it are indexed by.
    pub fn tag(&self) -> Tag {
        match self {
            Self::Symbol(_) => Tag::Symbol,
            Self::Constant(_) => Tag::Constant,
            Self::Iota(_) => Tag::Iota,
            Self::View { .. } => Tag::View,
            Self::Add => Tag::Add,
            Self::Mul => Tag::Mul,
            Self::Max => Tag::Max,
            Self::Inv => Tag::Inv,
            Self::Function(function) => Tag::Function(*function),
            Self::Select => Tag::Select,
            Self::Sum(_) => Tag::Sum,
            Self::Maximum(_) => Tag::Maximum,
            Self::Product(_) => Tag::Product,
        }
    }

    /// Whether operands may be permuted.
    pub fn commutes(&self) -> bool {
        match self {
            Self::Function(function) => function.has(Fact::Commutative),
            Self::Symbol(_)
            | Self::Constant(_)
            | Self::Iota(_)
            | Self::View { .. }
            | Self::Add
            | Self::Mul
            | Self::Max
            | Self::Inv
            | Self::Select
            | Self::Sum(_)
            | Self::Maximum(_)
            | Self::Product(_) => self.is_flat(),
        }
    }

    /// Whether it takes any number of operands.
    pub fn is_flat(&self) -> bool {
        matches!(self, Self::Add | Self::Mul | Self::Max)
    }
}

/// An e-node. The operands of a commutative kind are sorted by e-class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Enode {
    /// What is computed.
    pub kind: Kind,
    /// From which classes.
    pub args: Vec<Id>,
}

impl Enode {
    /// An e-node in canonical operand order.
    pub fn new(kind: Kind, mut args: Vec<Id>) -> Self {
        if kind.commutes() {
            args.sort_unstable();
        }
        Self { kind, args }
    }
}

impl Language for Enode {
    type Discriminant = Tag;

    fn discriminant(&self) -> Tag {
        self.kind.tag()
    }

    fn matches(&self, other: &Self) -> bool {
        self.kind == other.kind && self.args.len() == other.args.len()
    }

    fn children(&self) -> &[Id] {
        &self.args
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }

    // egg canonicalises e-nodes through this method, so sorting here keeps n-ary operands sorted after unions and makes
    // congruence see through permutations. Overriding it is why there are no commutativity rules.
    fn update_children<F: FnMut(Id) -> Id>(&mut self, mut f: F) {
        for id in &mut self.args {
            *id = f(*id);
        }
        if self.kind.commutes() {
            self.args.sort_unstable();
        }
    }
}

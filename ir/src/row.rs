//! What the tables of operations say of each: its name, the axes of its result, its meaning, algebraic facts, work.

/// How the axes of a result follow from an operation's attributes and its arguments' axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxesRule {
    /// The axes of the declared dimensions.
    Declared,
    /// None: a scalar.
    Scalar,
    /// The one axis that is asked for.
    Coordinate,
    /// Mapped axes are replaced by those that their affine functions mention.
    Reindexed,
    /// The union of the arguments' axes.
    Union,
    /// The union without the reduced axes.
    Reduced,
}

/// An algebraic fact about an operation over the reals (extended by ±∞ where the operation is defined there).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fact {
    /// `f(x, y) = f(y, x)`
    Commutative,
    /// `f(f(x, y), z) = f(x, f(y, z))`
    Associative,
    /// `f(x, x) = x`
    Idempotent,
    /// Non-decreasing in every argument, on its domain.
    Monotone,
    /// `f(one, x) = x = f(x, one)`
    One(f64),
    /// `f(zero, x) = zero = f(x, zero)` for every finite x
    Zero(f64),
    /// Every result is positive, or zero where the argument is −∞.
    Positive,
    /// Every result is at least zero.
    NonNegative,
    /// Linear in each argument for itself: it moves over sums.
    Multilinear,
    /// `f(x + y) = f(x)·f(y)`: it grows faster than any power.
    SumsToProducts,
    /// `f(x) = 0` where `x = 0` and nowhere else.
    ZeroAtZero,
    /// `|x·f′(x)| <= |f(x)|`: a relative error does not grow.
    KeepsDigits,
}

/// Arithmetic a result element (for reductions and contractions: a point of the reduced space).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Additions, multiplications, comparisons.
    pub flops: u32,
    /// Results of the special-function unit: exponentials, logarithms, roots, reciprocals.
    pub special: u32,
}

impl Work {
    /// So many of each.
    pub(crate) const fn new(flops: u32, special: u32) -> Self {
        Self { flops, special }
    }
}

/// What an element-wise operation computes from one element of each argument.
pub type Meaning = fn(&[f64]) -> f64;

/// One row of a table of operations.
#[derive(Debug)]
pub struct OpRow {
    /// How programs spell it.
    pub name: &'static str,
    /// Arguments that are values.
    pub arity: usize,
    /// The axes of the result.
    pub axes: AxesRule,
    /// The reference meaning of an element-wise operation.
    pub meaning: Option<Meaning>,
    /// Algebraic facts.
    pub facts: &'static [Fact],
    /// Work an element.
    pub work: Work,
}

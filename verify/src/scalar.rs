//! What the interpreters compute with: one trait, one implementation a number system.
//!
//! * `f64`: the numbers of `simulate`.
//! * [`Bounded`]: f64 with a running bound of its distance from the real number that it stands for.
//! * [`crate::field::Element`]: exact arithmetic in a pair of prime fields.

use crate::functions::{self, finite_product};
use ir::{Dtype, Function, MapOp};

/// A number system in which programs and tile programs can be interpreted.
pub trait Scalar: Copy + Send + Sync + std::fmt::Debug {
    /// A constant of a program; may be infinite.
    fn constant(value: f64) -> Self;
    /// A coordinate.
    fn integer(value: i64) -> Self;
    /// `x + y`
    fn add(self, y: Self) -> Self;
    /// `x · y`
    fn mul(self, y: Self) -> Self;
    /// `x / y`
    fn div(self, y: Self) -> Self;
    /// The larger of the two; of a number and NaN the number, as kernels and the reference have it.
    fn max(self, y: Self) -> Self;
    /// `f(x, …)`, of as many numbers as the function takes.
    fn function(function: Function, x: &[Self]) -> Self;
    /// `x` where `self ≥ 0`, else `y`.
    fn select(self, x: Self, y: Self) -> Self;
    /// Whether [`select`](Self::select) takes its first value; none where that is not known.
    fn holds(&self) -> Option<bool>;
    /// The real number that it stands for, as far as it is known.
    fn real(&self) -> f64;
    /// The nearest number that a buffer of this dtype holds; the identity where the system has no such notion.
    fn round(self, dtype: Dtype) -> Self;
    /// `s + x · y` for each `s` and the `y` of its place: the inside of every contraction.
    #[inline]
    fn add_products<'a>(sums: &mut [Self], x: Self, y: impl IntoIterator<Item = &'a Self>)
    where
        Self: 'a,
    {
        for (s, y) in sums.iter_mut().zip(y) {
            *s = s.add(x.mul(*y));
        }
    }
}

/// Applies an element-wise operation. There are as many operands as it has; fewer give the operation on the last one repeated,
/// which callers exclude.
#[inline]
pub(crate) fn apply<S: Scalar>(op: MapOp, a: S, b: S, c: S) -> S {
    match op {
        MapOp::Add => a.add(b),
        MapOp::Mul => a.mul(b),
        MapOp::Div => a.div(b),
        MapOp::Max => a.max(b),
        MapOp::Function(function) => S::function(function, &[a, b, c][..function.arity()]),
        MapOp::Select => a.select(b, c),
    }
}

impl Scalar for f64 {
    #[inline]
    fn real(&self) -> f64 {
        *self
    }

    #[inline]
    fn constant(value: f64) -> Self {
        value
    }
    #[inline]
    fn integer(value: i64) -> Self {
        value as f64
    }
    #[inline]
    fn add(self, y: Self) -> Self {
        self + y
    }
    #[inline]
    fn mul(self, y: Self) -> Self {
        self * y
    }
    #[inline]
    fn div(self, y: Self) -> Self {
        self / y
    }
    #[inline]
    fn max(self, y: Self) -> Self {
        f64::max(self, y)
    }
    #[inline]
    fn function(function: Function, x: &[Self]) -> Self {
        (functions::row(function).real)(x)
    }
    #[inline]
    fn select(self, x: Self, y: Self) -> Self {
        if self >= 0.0 { x } else { y }
    }
    #[inline]
    fn holds(&self) -> Option<bool> {
        Some(*self >= 0.0)
    }
    #[inline]
    fn round(self, dtype: Dtype) -> Self {
        dtype.round(self)
    }
}

/// An f64 with a bound of its distance from the real number that exact arithmetic would have given
/// ("running error analysis", Wilkinson 1963; Higham, *Accuracy and Stability*, §3.3).
///
/// `|value − exact| ≤ error`, unless one of the flags says that the bound is conditional. Infinities and NaN are values of their
/// own, with bound 0.
#[derive(Clone, Copy, Debug)]
pub struct Bounded {
    /// The f64 that plain evaluation gives.
    pub value: f64,
    /// The bound; infinite where none is known.
    pub error: f64,
    /// A comparison went within the error of its threshold: value and bound hold if it went the right way.
    pub ambiguous: bool,
    /// The reals leave undefined what led here (a root or a logarithm of a negative number, `0 / 0`), or f64 overflowed on the way.
    pub undefined: bool,
}

/// Twice the unit roundoff: covers the second-order terms that the first-order formulas below drop, and libm's last bit.
const UNIT: f64 = f64::EPSILON;

impl Bounded {
    /// `value`, computed from `operands`, with an error from these plus one rounding.
    #[inline]
    fn rounded(value: f64, from_operands: f64, operands: &[Self]) -> Self {
        // The smallest subnormal covers roundings below the normal range.
        let error = from_operands + UNIT * value.abs() + f64::from_bits(1);
        let ambiguous = operands.iter().fold(false, |any, x| any | x.ambiguous);
        let undefined = operands.iter().fold(false, |any, x| any | x.undefined);
        // Nearly always, and then the value is finite, too.
        if error.is_finite() {
            return Self {
                value,
                error,
                ambiguous,
                undefined,
            };
        }
        let overflows = value.is_infinite() && operands.iter().all(|x| x.value.is_finite());
        Self {
            value,
            error: match value.is_finite() {
                true => f64::INFINITY,
                false => 0.0,
            },
            ambiguous,
            undefined: undefined || value.is_nan() || overflows,
        }
    }

    /// A value that is exactly known.
    #[inline]
    pub fn exact(value: f64) -> Self {
        Self {
            value,
            error: 0.0,
            ambiguous: false,
            undefined: false,
        }
    }

    /// Whether it is exactly known.
    #[inline]
    fn is_exact(&self) -> bool {
        self.error == 0.0 && !(self.ambiguous | self.undefined)
    }
}

impl Scalar for Bounded {
    #[inline]
    fn real(&self) -> f64 {
        self.value
    }

    #[inline]
    fn constant(value: f64) -> Self {
        // Constant folding over the reals leaves one rounding; integers fold exactly.
        if value.is_finite() && value.fract() != 0.0 {
            Self::rounded(value, 0.0, &[])
        } else {
            Self::exact(value)
        }
    }
    #[inline]
    fn integer(value: i64) -> Self {
        Self::exact(value as f64)
    }
    #[inline]
    fn add(self, y: Self) -> Self {
        let value = self.value + y.value;
        let exact = self.is_exact() && y.is_exact() && is_small_integer(value);
        if exact && is_small_integer(self.value) && is_small_integer(y.value) {
            return Self::exact(value);
        }
        Self::rounded(value, self.error + y.error, &[self, y])
    }
    // The inside of every contraction, and too long to be inlined unasked: a call passes both operands through memory.
    #[inline(always)]
    fn mul(self, y: Self) -> Self {
        let value = self.value * y.value;
        let exact = self.is_exact() && y.is_exact() && is_small_integer(value);
        if exact && is_small_integer(self.value) && is_small_integer(y.value) {
            return Self::exact(value);
        }
        let zero = |x: &Self| x.value == 0.0 && x.is_exact();
        if value == 0.0 && (zero(&self) || zero(&y)) {
            return Self::exact(value);
        }
        // |ab − âb̂| ≤ |â|·δb + |b̂|·δa + δa·δb
        let bound = |product: fn(f64, f64) -> f64| {
            product(self.value.abs(), y.error)
                + product(y.value.abs(), self.error)
                + product(self.error, y.error)
        };
        // No zero meets an infinity unless the plain products say so.
        let plain = bound(|a, b| a * b);
        let operands = if plain.is_nan() {
            bound(finite_product)
        } else {
            plain
        };
        Self::rounded(value, operands, &[self, y])
    }
    #[inline]
    fn div(self, y: Self) -> Self {
        let value = self.value / y.value;
        // |a/b − â/b̂| ≤ (δa + |â/b̂|·δb) / (|b̂| − δb)
        let room = y.value.abs() - y.error;
        let operands = if y.value.is_infinite() {
            0.0
        } else if y.error == f64::INFINITY || room <= 0.0 {
            f64::INFINITY
        } else {
            (self.error + finite_product(value.abs(), y.error)) / room
        };
        Self::rounded(value, operands, &[self, y])
    }
    #[inline]
    fn max(self, y: Self) -> Self {
        let value = Scalar::max(self.value, y.value);
        // |max(a,b) − max(â,b̂)| ≤ max(δa, δb), and an infinite operand is exact.
        Self {
            value,
            error: if value.is_finite() {
                self.error.max(y.error)
            } else {
                0.0
            },
            ambiguous: self.ambiguous || y.ambiguous,
            undefined: self.undefined || y.undefined,
        }
    }
    #[inline]
    fn function(function: Function, x: &[Self]) -> Self {
        let row = functions::row(function);
        let (values, errors) = (padded(x, |x| x.value), padded(x, |x| x.error));
        let (values, errors) = (&values[..x.len()], &errors[..x.len()]);
        let value = (row.real)(values);
        if x.iter().all(Self::is_exact) && (row.is_exact)(values) {
            return Self::exact(value);
        }
        Self::rounded(value, (row.error)(values, value, errors), x)
    }
    #[inline]
    fn select(self, x: Self, y: Self) -> Self {
        let chosen = if self.value >= 0.0 { x } else { y };
        let near = self.error > 0.0 && self.value.abs() <= self.error;
        Self {
            ambiguous: near || self.ambiguous || chosen.ambiguous,
            undefined: self.value.is_nan() || self.undefined || chosen.undefined,
            ..chosen
        }
    }
    #[inline]
    fn holds(&self) -> Option<bool> {
        let sure = self.error == 0.0 || self.value.abs() > self.error;
        sure.then_some(self.value >= 0.0)
    }
    #[inline]
    fn round(self, _dtype: Dtype) -> Self {
        self
    }
    /// The same bits as sum by sum: what is known of `x` is asked once.
    #[inline]
    fn add_products<'a>(sums: &mut [Self], x: Self, y: impl IntoIterator<Item = &'a Self>) {
        let may_be_exact = x.is_exact() && is_small_integer(x.value);
        for (s, y) in sums.iter_mut().zip(y) {
            let product = x.value * y.value;
            let operands = x.value.abs() * y.error + y.value.abs() * x.error + x.error * y.error;
            let rounded = operands + UNIT * product.abs() + f64::from_bits(1);
            let value = s.value + product;
            let error = s.error + rounded + UNIT * value.abs() + f64::from_bits(1);
            let by_zero = product == 0.0 && y.is_exact();
            if may_be_exact || by_zero || !error.is_finite() {
                *s = s.add(x.mul(*y));
                continue;
            }
            *s = Self {
                value,
                error,
                ambiguous: s.ambiguous | x.ambiguous | y.ambiguous,
                undefined: s.undefined | x.undefined | y.undefined,
            };
        }
    }
}

/// A number of each operand of a function, zeros behind them.
#[inline]
pub(crate) fn padded<S, T: Copy + Default>(x: &[S], number: impl Fn(&S) -> T) -> [T; 3] {
    let mut all = [T::default(); 3];
    for (to, x) in all.iter_mut().zip(x) {
        *to = number(x);
    }
    all
}

/// Whether sums and products that give this value were exact, given integer operands.
#[inline]
fn is_small_integer(value: f64) -> bool {
    // `fract` is a call where the processor may be any: this is not.
    value.abs() < 9.0e15 && (value as i64) as f64 == value
}

#[cfg(test)]
mod tests {
    // Oracle: the meaning in the table of operations.
    use super::*;

    #[test]
    fn of_a_number_and_no_number_the_number_is_larger() {
        let kinds = [f64::NAN, f64::NEG_INFINITY, -1.0, 2.0, f64::INFINITY];
        for x in kinds {
            for y in kinds {
                let want = MapOp::Max.apply(&[x, y]);
                let bounded = apply(
                    MapOp::Max,
                    Bounded::exact(x),
                    Bounded::exact(y),
                    Bounded::exact(0.0),
                );
                for got in [apply(MapOp::Max, x, y, 0.0), bounded.value] {
                    assert!(
                        got == want || (got.is_nan() && want.is_nan()),
                        "{x} {y}: {got} {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_are_added_as_one_by_one() {
        // Exact and not, whole and not, zeros and what is no number: the sum so far, and both factors.
        let numbers = [
            0.0,
            -0.0,
            1.0,
            -3.0,
            0.1,
            1e300,
            -1e-320,
            1e15,
            f64::INFINITY,
            f64::NAN,
        ];
        let flags = [(false, false), (true, false), (false, true)];
        let mut kinds = Vec::new();
        for value in numbers {
            for error in [0.0, 1e-9, f64::INFINITY] {
                kinds.extend(flags.map(|(ambiguous, undefined)| Bounded {
                    value,
                    error,
                    ambiguous,
                    undefined,
                }));
            }
        }
        let bits = |b: &Bounded| {
            let same = |x: f64| {
                if x.is_nan() {
                    f64::NAN.to_bits()
                } else {
                    x.to_bits()
                }
            };
            (same(b.value), same(b.error), b.ambiguous, b.undefined)
        };
        for s in &kinds {
            for x in &kinds {
                let mut sums = vec![*s; kinds.len()];
                Scalar::add_products(&mut sums, *x, &kinds);
                for (sum, y) in sums.iter().zip(&kinds) {
                    let want = s.add(x.mul(*y));
                    assert_eq!(bits(sum), bits(&want), "{s:?} + {x:?} · {y:?}");
                }
            }
        }
    }
}

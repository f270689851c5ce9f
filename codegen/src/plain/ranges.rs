//! Between which numbers the values of a kernel lie, as far as their operations say: so precise functions leave out what only extreme operands need.
//!
//! ```text
//! before:  u = clamp(x; -20, 20);  y = (u·u + 46.6)·u·u + 808;  z = w / y
//! after:   the same, and the division scales nothing, since 808 ≤ y ≤ 1.8e5
//! ```
//!
//! Intervals are of results that are no NaN, which a value may be besides; they are so wide that the rounding of f32 is within them.

use crate::machine::{Bounded, Function};
use ir::{Domain, Function as Named, Interval, Kernel, MapOp, TileOp, ValueId};

/// More than f32 rounds by, and than its functions are off by, relative to the result.
const ROUNDING: f64 = 1e-5;
/// Divisors within which reciprocals and their corrections are far from f32's limits, and quotients that are.
const SMALL: f64 = 1e-30;
const LARGE: f64 = 1e30;
const MOST: f64 = 1e36;
/// Of an exponential x log2 e is rounded by less than 2^-3 where x is no larger: the factor that makes up for it stays near 1. From 2.3e7 on it is
/// nothing, or less.
const MOST_EXPONENT: f64 = 1e6;
/// Exponents of which the results are normal numbers of f32: from 2^-126 on, and below 2^128.
const LEAST_NORMAL: f64 = -87.3;
const MOST_NORMAL: f64 = 88.7;

/// A value is NaN, if it may be that, or from the first number to the second one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    low: f64,
    high: f64,
    may_be_nan: bool,
}

const ALL: Range = Range {
    low: f64::NEG_INFINITY,
    high: f64::INFINITY,
    may_be_nan: true,
};

impl Range {
    /// From one number to another one, as f32 has what lies between them. Results are off by their own size; what is beyond f32's limits is infinite, and
    /// what is below them is nothing.
    fn rounded(low: f64, high: f64, may_be_nan: bool) -> Self {
        let widened = |x: f64, out: f64| match x.is_finite() {
            true => x + out * x.abs() * ROUNDING,
            false => x,
        };
        let low = match widened(low, -1.0) {
            // Of infinities of both signs there may be any sum.
            low if low.is_nan() || low < -MOST => f64::NEG_INFINITY,
            low if low > 0.0 && low < 1.0 / MOST => 0.0,
            low => low,
        };
        let high = match widened(high, 1.0) {
            high if high.is_nan() || high > MOST => f64::INFINITY,
            high if high < 0.0 && high > -1.0 / MOST => 0.0,
            high => high,
        };
        Self {
            low,
            high,
            may_be_nan,
        }
    }

    /// Around products or quotients of ends, of which some are NaN: nothing times something infinite, which nothing else is near.
    fn around(ends: [f64; 4], may_be_nan: bool) -> Self {
        let ends = ends.map(|x| if x.is_nan() { 0.0 } else { x });
        let low = ends.into_iter().fold(f64::INFINITY, f64::min);
        let high = ends.into_iter().fold(f64::NEG_INFINITY, f64::max);
        Self::rounded(low, high, may_be_nan)
    }

    /// The largest magnitude.
    fn size(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    fn has_zero(self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }

    fn plus(self, other: Self) -> Self {
        let opposed = |x: Self, y: Self| x.high == f64::INFINITY && y.low == f64::NEG_INFINITY;
        let no_sum = opposed(self, other) || opposed(other, self);
        let may_be_nan = self.may_be_nan || other.may_be_nan || no_sum;
        Self::rounded(self.low + other.low, self.high + other.high, may_be_nan)
    }

    fn times(self, other: Self) -> Self {
        let no_product = |x: Self, y: Self| x.has_zero() && y.size().is_infinite();
        let no_product = no_product(self, other) || no_product(other, self);
        let may_be_nan = self.may_be_nan || other.may_be_nan || no_product;
        let ends = [self.low, self.high].map(|x| [x * other.low, x * other.high]);
        let [[a, b], [c, d]] = ends;
        Self::around([a, b, c, d], may_be_nan)
    }

    fn squared(self) -> Self {
        let (a, b) = (self.low * self.low, self.high * self.high);
        let low = if self.has_zero() { 0.0 } else { a.min(b) };
        Self::rounded(low, a.max(b), self.may_be_nan)
    }

    fn over(self, other: Self) -> Self {
        if other.has_zero() {
            return ALL;
        }
        let no_quotient = self.size().is_infinite() && other.size().is_infinite();
        let may_be_nan = self.may_be_nan || other.may_be_nan || no_quotient;
        let ends = [self.low, self.high].map(|x| [x / other.low, x / other.high]);
        let [[a, b], [c, d]] = ends;
        Self::around([a, b, c, d], may_be_nan)
    }

    /// Of NaN and a number the maximum is the number: what an operand is at least the maximum is only where the operand is a number.
    fn max(self, other: Self) -> Self {
        let low = match (self.may_be_nan, other.may_be_nan) {
            (false, false) => self.low.max(other.low),
            (false, true) => self.low,
            (true, false) => other.low,
            (true, true) => self.low.min(other.low),
        };
        Self {
            low,
            high: self.high.max(other.high),
            may_be_nan: self.may_be_nan && other.may_be_nan,
        }
    }

    /// What the table of functions says; outside of its domain a function is NaN.
    fn under(self, function: Named) -> Self {
        let row = function.row();
        let known = Interval {
            low: self.low,
            high: self.high,
            ..Interval::ANY
        };
        let Interval { low, high, .. } = (row.interval)(&[known]);
        let leaves = self.low < 0.0 && row.domains != [Domain::All];
        Self::rounded(low, high, self.may_be_nan || leaves)
    }

    fn or(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            may_be_nan: self.may_be_nan || other.may_be_nan,
        }
    }
}

/// Of each value of a kernel, by its number.
#[derive(Debug)]
pub(super) struct Ranges(Vec<Range>);

impl Ranges {
    pub(super) fn new(kernel: &Kernel) -> Self {
        let mut ranges = Self(vec![ALL; kernel.values.len()]);
        // Operands of maps stand before them.
        for at in 0..kernel.values.len() {
            ranges.0[at] = ranges.of(&kernel.values[at].op);
        }
        ranges
    }

    fn at(&self, v: ValueId) -> Range {
        self.0.get(v.index()).copied().unwrap_or(ALL)
    }

    fn of(&self, op: &TileOp) -> Range {
        match op {
            TileOp::Constant(x) => {
                let x = f64::from(*x as f32);
                Range::rounded(x, x, x.is_nan())
            }
            TileOp::Map(op, args) => {
                let operands: Vec<Range> = args.iter().map(|v| self.at(*v)).collect();
                let is_square = args.len() == 2 && args[0] == args[1];
                match (op, operands.as_slice()) {
                    (MapOp::Add, [x, y]) => x.plus(*y),
                    (MapOp::Mul, [x, _]) if is_square => x.squared(),
                    (MapOp::Mul, [x, y]) => x.times(*y),
                    (MapOp::Div, [x, y]) => x.over(*y),
                    (MapOp::Max, [x, y]) => x.max(*y),
                    (MapOp::Select, [_, x, y]) => x.or(*y),
                    (MapOp::Function(function), [x]) => x.under(*function),
                    (
                        MapOp::Add
                        | MapOp::Mul
                        | MapOp::Div
                        | MapOp::Max
                        | MapOp::Select
                        | MapOp::Function(_),
                        _,
                    ) => ALL,
                }
            }
            TileOp::Load { .. }
            | TileOp::Iota(_)
            | TileOp::Reduce { .. }
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => ALL,
        }
    }

    /// What an operation is where something is known of its operands.
    pub(super) fn function(&self, op: MapOp, args: &[ValueId]) -> Function {
        let bounded = match (op, args) {
            (MapOp::Div, [x, y]) => {
                let (over, below) = (self.at(*x), self.at(*y));
                let least = below.low.abs().min(below.high.abs());
                let is_away = !below.has_zero() && least >= SMALL;
                let is_quotient = below.size() <= LARGE && over.over(below).size() <= MOST;
                match (is_away, is_quotient) {
                    (true, true) => Some(Bounded::Quotient),
                    (true, false) => Some(Bounded::Divisor),
                    (false, _) => None,
                }
            }
            (MapOp::Function(Named::Exp), [x]) => {
                let x = self.at(*x);
                match x.size() <= MOST_EXPONENT {
                    true if x.low >= LEAST_NORMAL && x.high <= MOST_NORMAL => Some(Bounded::Normal),
                    true => Some(Bounded::Exponential),
                    false => None,
                }
            }
            (
                MapOp::Add
                | MapOp::Mul
                | MapOp::Div
                | MapOp::Max
                | MapOp::Select
                | MapOp::Function(_),
                _,
            ) => None,
        };
        bounded.map_or(Function::Op(op), Function::Bounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of the divisions and exponentials of a kernel with these statements, in turn.
    fn known(statements: &str) -> Vec<Option<Bounded>> {
        let text = format!(
            "tile t\naxis i = 8\nbuffer x = parameter 0 f32 [i]\nbuffer out0 = output 0 f32 [i]\nkernel grid(i: 8) {{\n  x = load x[i]\n{statements}  store out0 = y\n}}\n"
        );
        let tile: ir::TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let kernel = &tile.kernels[0];
        let ranges = Ranges::new(kernel);
        let all = kernel.values.iter().filter_map(|v| {
            let TileOp::Map(op @ (MapOp::Div | MapOp::Function(Named::Exp)), args) = &v.op else {
                return None;
            };
            let function = ranges.function(*op, args);
            let kinds = [
                Bounded::Quotient,
                Bounded::Divisor,
                Bounded::Exponential,
                Bounded::Normal,
            ];
            let found = kinds
                .into_iter()
                .find(|kind| function == Function::Bounded(*kind));
            assert!(found.is_some() || function == Function::Op(*op));
            Some(found)
        });
        all.collect()
    }

    #[test]
    fn bounds_follow_from_operations() {
        let [quotient, divisor, exponential, normal] = [
            Bounded::Quotient,
            Bounded::Divisor,
            Bounded::Exponential,
            Bounded::Normal,
        ]
        .map(Some);
        // A sigmoid: the exponential may be infinite, and the divisor is 1 at least.
        let sigmoid = "  k = 1\n  e = exp(x)\n  d = add(k, e)\n  y = div(k, d)\n";
        assert_eq!(known(sigmoid), [None, divisor]);
        // Bounded on both sides: a square is not less than nothing.
        let bounded = "  k = 20\n  m = -1\n  a = max(x, m)\n  b = mul(m, a)\n  c = mul(m, k)\n  d = max(b, c)\n  u = mul(d, d)\n  one = 1\n  v = add(u, one)\n  w = div(d, v)\n  y = exp(w)\n";
        assert_eq!(known(bounded), [quotient, normal]);
        let within = |low: &str, high: &str| {
            format!(
                "  l = {low}\n  m = -1\n  h = {high}\n  a = max(x, l)\n  b = mul(m, a)\n  c = max(b, h)\n  d = mul(m, c)\n  y = exp(d)\n"
            )
        };
        assert_eq!(known(&within("-87.2", "-88.6")), [normal]);
        assert_eq!(known(&within("-87.4", "-88.6")), [exponential]);
        assert_eq!(known(&within("-87.2", "-88.8")), [exponential]);
        // What is divided may be large: the quotient may be infinite.
        let large = "  k = 3\n  y = div(x, k)\n";
        assert_eq!(known(large), [divisor]);
        // By anything, by what may be nothing, by what rounding may make nothing.
        assert_eq!(known("  k = 1\n  y = div(k, x)\n"), [None]);
        let square = "  k = 1\n  u = mul(x, x)\n  y = div(k, u)\n";
        assert_eq!(known(square), [None]);
        let nearly =
            "  k = -1\n  n = 1.00000001\n  a = max(x, k)\n  b = add(a, n)\n  y = div(k, b)\n";
        assert_eq!(known(nearly), [None]);
        // Beyond f32 constants are infinite, and below it they are nothing. Of large exponents the rounding is more than can be made up for.
        assert_eq!(known("  k = 1e38\n  e = exp(k)\n  y = add(x, e)\n"), [None]);
        assert_eq!(known("  k = 1e9\n  e = exp(k)\n  y = add(x, e)\n"), [None]);
        assert_eq!(
            known("  k = 1e-38\n  d = div(k, k)\n  y = add(x, d)\n"),
            [None]
        );
    }

    /// 2 + a sigmoid is NaN for NaN, and then the maximum is the other operand, which is as little as it likes.
    #[test]
    fn a_maximum_with_nan_is_the_other_operand() {
        let one_of =
            "  one = 1\n  e = exp(x)\n  d = add(one, e)\n  q = div(one, d)\n  s = add(q, one)\n";
        let with = |other: &str| {
            format!(
                "{one_of}  m = -1\n  five = -5\n  w = max(x, five)\n  z = mul(m, w)\n{other}  y = exp(n)\n"
            )
        };
        assert_eq!(known(&with("  n = max(s, z)\n")).last(), Some(&None));
        // One that is no NaN bounds it.
        let bounded = with("  t = max(z, five)\n  n = max(s, t)\n");
        assert_eq!(known(&bounded).last(), Some(&Some(Bounded::Normal)));
    }
}

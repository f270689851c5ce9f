//! Between which numbers the values of a kernel lie, as far as their operations say: so precise functions leave out what only extreme operands need.
//!
//! ```text
//! before:  u = clamp(x; -20, 20);  y = (u·u + 46.6)·u·u + 808;  z = w / y
//! after:   the same, and the division scales nothing, since 808 ≤ y ≤ 1.8e5
//! ```
//!
//! Intervals are of results that are no NaN, and so wide that the rounding of f32 is within them.

use crate::machine::{Function, Size};
use ir::{Function as Named, Kernel, MapOp, TileOp, ValueId};

/// More than f32 rounds by, and than its functions are off by, relative to the result.
const ROUNDING: f64 = 1e-5;
/// Sizes within which reciprocals and their corrections are far from f32's limits, and sizes of results that are.
const SMALL: f64 = 1e-30;
const LARGE: f64 = 1e30;
const MOST: f64 = 1e36;

/// From the first number to the second one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range(f64, f64);

const ALL: Range = Range(f64::NEG_INFINITY, f64::INFINITY);

impl Range {
    /// Around numbers, of which some are none: nothing times something infinite.
    fn around(numbers: [f64; 4]) -> Self {
        let numbers = numbers.map(|x| if x.is_nan() { 0.0 } else { x });
        let least = numbers.into_iter().fold(f64::INFINITY, f64::min);
        let most = numbers.into_iter().fold(f64::NEG_INFINITY, f64::max);
        Self(least, most)
    }

    /// The largest magnitude.
    fn size(self) -> f64 {
        self.0.abs().max(self.1.abs())
    }

    /// What f32 makes of it. Results are off by their own size; what is beyond f32's limits is infinite, and what is below them is nothing.
    fn rounded(self) -> Self {
        let widened = |x: f64, out: f64| match x.is_finite() {
            true => x + out * x.abs() * ROUNDING,
            false => x,
        };
        let (low, high) = (widened(self.0, -1.0), widened(self.1, 1.0));
        let low = match low {
            low if low < -MOST => f64::NEG_INFINITY,
            low if low > 0.0 && low < 1.0 / MOST => 0.0,
            low => low,
        };
        let high = match high {
            high if high > MOST => f64::INFINITY,
            high if high < 0.0 && high > -1.0 / MOST => 0.0,
            high => high,
        };
        Self(low, high)
    }

    fn times(self, other: Self) -> Self {
        let (Self(a, b), Self(c, d)) = (self, other);
        Self::around([a * c, a * d, b * c, b * d]).rounded()
    }

    /// What it is divided by has no zero in it.
    fn over(self, other: Self) -> Self {
        let (Self(a, b), Self(c, d)) = (self, other);
        Self::around([a / c, a / d, b / c, b / d]).rounded()
    }

    fn has_zero(self) -> bool {
        self.0 <= 0.0 && self.1 >= 0.0
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
            if let Some(range) = ranges.of(&kernel.values[at].op) {
                ranges.0[at] = range;
            }
        }
        ranges
    }

    fn at(&self, v: ValueId) -> Range {
        self.0.get(v.index()).copied().unwrap_or(ALL)
    }

    fn of(&self, op: &TileOp) -> Option<Range> {
        let (op, args) = match op {
            TileOp::Constant(x) => {
                let x = f64::from(*x as f32);
                return Some(Range(x, x).rounded());
            }
            TileOp::Map(op, args) => (op, args.as_slice()),
            TileOp::Load { .. }
            | TileOp::Iota(_)
            | TileOp::Reduce { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => return None,
        };
        match (op, args) {
            (MapOp::Add, [x, y]) => {
                let (x, y) = (self.at(*x), self.at(*y));
                Some(Range(x.0 + y.0, x.1 + y.1).rounded())
            }
            (MapOp::Mul, [x, y]) if x == y => {
                let Range(low, high) = self.at(*x);
                let (a, b) = (low * low, high * high);
                let least = if self.at(*x).has_zero() {
                    0.0
                } else {
                    a.min(b)
                };
                Some(Range(least, a.max(b)).rounded())
            }
            (MapOp::Mul, [x, y]) => Some(self.at(*x).times(self.at(*y))),
            (MapOp::Div, [_, y]) if self.at(*y).has_zero() => None,
            (MapOp::Div, [x, y]) => Some(self.at(*x).over(self.at(*y))),
            (MapOp::Max, [x, y]) => {
                let (x, y) = (self.at(*x), self.at(*y));
                Some(Range(x.0.max(y.0), x.1.max(y.1)))
            }
            (MapOp::Select, [_, x, y]) => {
                let (x, y) = (self.at(*x), self.at(*y));
                Some(Range(x.0.min(y.0), x.1.max(y.1)))
            }
            (MapOp::Function(Named::Exp), [x]) => {
                let Range(low, high) = self.at(*x);
                Some(Range(low.exp(), high.exp()).rounded())
            }
            (MapOp::Function(Named::Sqrt), [x]) => {
                let Range(low, high) = self.at(*x);
                Some(Range(low.max(0.0).sqrt(), high.max(0.0).sqrt()).rounded())
            }
            (MapOp::Function(Named::Log), _) | (_, _) => None,
        }
    }

    /// What an operation is where the sizes of its operands are known.
    pub(super) fn function(&self, op: MapOp, args: &[ValueId]) -> Function {
        let known = match (op, args) {
            (MapOp::Div, [x, y]) => {
                let (over, below) = (self.at(*x), self.at(*y));
                let least = below.0.abs().min(below.1.abs());
                match !below.has_zero() && least >= SMALL {
                    true if below.size() <= LARGE && over.over(below).size() <= MOST => {
                        Some(Size::Middling)
                    }
                    true => Some(Size::NotSmall),
                    false => None,
                }
            }
            (MapOp::Function(Named::Exp), [x]) if self.at(*x).size() <= LARGE => {
                Some(Size::Middling)
            }
            (_, _) => None,
        };
        known.map_or(Function::Op(op), |size| Function::Sized(op, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What divisions and exponentials of a kernel with these statements are, in turn.
    fn sizes(statements: &str) -> Vec<Option<Size>> {
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
            let size = |size| function == Function::Sized(*op, size);
            Some(
                [Size::Middling, Size::NotSmall]
                    .into_iter()
                    .find(|s| size(*s)),
            )
        });
        all.collect()
    }

    #[test]
    fn sizes_follow_from_operations() {
        let middling = Some(Size::Middling);
        let not_small = Some(Size::NotSmall);
        // A sigmoid: the exponential may be infinite, and the divisor is 1 at least.
        let sigmoid = "  k = 1\n  e = exp(x)\n  d = add(k, e)\n  y = div(k, d)\n";
        assert_eq!(sizes(sigmoid), [None, not_small]);
        // Bounded on both sides: a square is not less than nothing.
        let bounded = "  k = 20\n  m = -1\n  a = max(x, m)\n  b = mul(m, a)\n  c = mul(m, k)\n  d = max(b, c)\n  u = mul(d, d)\n  one = 1\n  v = add(u, one)\n  w = div(d, v)\n  y = exp(w)\n";
        assert_eq!(sizes(bounded), [middling, middling]);
        // What is divided may be large: the quotient may be infinite.
        let large = "  k = 3\n  y = div(x, k)\n";
        assert_eq!(sizes(large), [not_small]);
        // By anything, by what may be nothing, by what rounding may make nothing.
        assert_eq!(sizes("  k = 1\n  y = div(k, x)\n"), [None]);
        let square = "  k = 1\n  u = mul(x, x)\n  y = div(k, u)\n";
        assert_eq!(sizes(square), [None]);
        let nearly =
            "  k = -1\n  n = 1.00000001\n  a = max(x, k)\n  b = add(a, n)\n  y = div(k, b)\n";
        assert_eq!(sizes(nearly), [None]);
        // Beyond f32 constants are infinite, and below it they are nothing.
        assert_eq!(sizes("  k = 1e38\n  e = exp(k)\n  y = add(x, e)\n"), [None]);
        assert_eq!(
            sizes("  k = 1e-38\n  d = div(k, k)\n  y = add(x, d)\n"),
            [None]
        );
    }
}

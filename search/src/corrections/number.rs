//! Numbers in which identities are judged: f64, and a pair of prime fields in which `e^x · e^y = e^(x + y)` is exact.

use ir::MapOp;

/// Values in which terms can be computed; `None` where there is no value.
pub(crate) trait Number: Copy {
    /// A scalar of a program.
    fn constant(c: f64) -> Option<Self>;
    /// An element-wise operation.
    fn apply(op: MapOp, xs: &[Self]) -> Option<Self>;
}

impl Number for f64 {
    fn constant(c: f64) -> Option<Self> {
        Some(c)
    }

    fn apply(op: MapOp, xs: &[Self]) -> Option<Self> {
        Some(match (op, xs) {
            (MapOp::Add, [x, y]) => x + y,
            (MapOp::Mul, [x, y]) => x * y,
            (MapOp::Div, [x, y]) => x / y,
            (MapOp::Max, [x, y]) => x.max(*y),
            (MapOp::Exp, [x]) => x.exp(),
            (MapOp::Log, [x]) => x.ln(),
            (MapOp::Sqrt, [x]) => x.sqrt(),
            (MapOp::Select, [p, x, y]) => {
                if *p >= 0.0 {
                    *x
                } else {
                    *y
                }
            }
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
            ) => return None,
        })
    }
}

/// The prime that values are taken modulo, `82 · EXPONENT + 1`.
pub(crate) const VALUE: u64 = 1_477_180_677_777_519_983;
/// The prime order of [`ROOT`]: exponents are taken modulo it, so that `e^x · e^y = e^(x + y)` holds exactly.
pub(crate) const EXPONENT: u64 = 18_014_398_509_481_951;
/// An element of order [`EXPONENT`] modulo [`VALUE`]; it plays the part of e.
const ROOT: u64 = 180_143_993_949_915_955;

/// A number modulo two primes: as a value, and as an exponent as long as no `exp` was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pair {
    /// The number as a value.
    pub(crate) value: u64,
    /// The number as an exponent.
    pub(crate) exponent: Option<u64>,
}

fn times(x: u64, y: u64, p: u64) -> u64 {
    (u128::from(x) * u128::from(y) % u128::from(p)) as u64
}

fn power(mut x: u64, mut n: u64, p: u64) -> u64 {
    let mut out = 1;
    while n > 0 {
        if n & 1 == 1 {
            out = times(out, x, p);
        }
        x = times(x, x, p);
        n >>= 1;
    }
    out
}

fn residue(c: f64, p: u64) -> Option<u64> {
    if !c.is_finite() {
        return None;
    }
    // c = ± m · 2^e with an integer m below 2^53: every finite number is a dyadic rational.
    let bits = c.abs().to_bits();
    let (e, m) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
    let (e, m) = if e == 0 {
        (-1074, m)
    } else {
        (e - 1075, m | 1 << 52)
    };
    let two = power(2, e.unsigned_abs(), p);
    let scale = if e < 0 { power(two, p - 2, p) } else { two };
    let x = times(m % p, scale, p);
    Some(if c < 0.0 && x != 0 { p - x } else { x })
}

impl Number for Pair {
    fn constant(c: f64) -> Option<Self> {
        Some(Self {
            value: residue(c, VALUE)?,
            exponent: Some(residue(c, EXPONENT)?),
        })
    }

    fn apply(op: MapOp, xs: &[Self]) -> Option<Self> {
        let both = |x: &Self, y: &Self, f: fn(u64, u64, u64) -> Option<u64>| {
            Some(Self {
                value: f(x.value, y.value, VALUE)?,
                exponent: match (x.exponent, y.exponent) {
                    (Some(a), Some(b)) => f(a, b, EXPONENT),
                    (Some(_) | None, _) => None,
                },
            })
        };
        match (op, xs) {
            (MapOp::Add, [x, y]) => both(x, y, |a, b, p| {
                Some(((u128::from(a) + u128::from(b)) % u128::from(p)) as u64)
            }),
            (MapOp::Mul, [x, y]) => both(x, y, |a, b, p| Some(times(a, b, p))),
            (MapOp::Div, [x, y]) => both(x, y, |a, b, p| {
                (b != 0).then(|| times(a, power(b, p - 2, p), p))
            }),
            (MapOp::Exp, [x]) => Some(Self {
                value: power(ROOT, x.exponent?, VALUE),
                exponent: None,
            }),
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
            ) => None,
        }
    }
}

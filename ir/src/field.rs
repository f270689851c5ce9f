//! Exact arithmetic modulo a pair of primes, in which `exp` is a homomorphism.
//!
//! Two primes `Q` and `P = 2·Q + 1`, and `g` of order `Q` modulo `P`. A number is a pair `(p mod P, q mod Q)`, and
//! `exp((p, q)) = (g^q mod P, ?)`. Sums, products and quotients act on both parts, so `exp(x + y) = exp(x)·exp(y)` and every
//! field identity hold *exactly*: terms that are equal over the reals for algebraic reasons are equal here, and others differ but with
//! probability about `degree / P` (Schwartz 1980, Zippel 1979). The idea is Mirage's (Wu et al., OSDI 2025, §5).
//!
//! There is no order here, and no infinity: who needs them adds them.

/// The larger prime; `P = 2·Q + 1`, both ≡ 7 (mod 8), so that 2 is a square and `sqrt(4) = 2`.
pub const P: u64 = 2_305_843_009_213_690_799;
/// The smaller prime, the order of `G`.
pub const Q: u64 = 1_152_921_504_606_845_399;
/// Of order `Q` modulo `P`: a square other than 1. It plays the part of e.
const G: u64 = 9;

/// A number modulo the two primes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residues {
    /// The part modulo [`P`].
    pub p: u64,
    /// The part modulo [`Q`]; `None` where the operations that led here do not determine it.
    pub q: Option<u64>,
}

impl Residues {
    /// The number with two given parts, reduced.
    pub fn new(p: u64, q: u64) -> Self {
        Self {
            p: p % P,
            q: Some(q % Q),
        }
    }

    /// A finite number: every one is `± mantissa · 2^exponent`.
    pub fn constant(value: f64) -> Option<Self> {
        if !value.is_finite() {
            return None;
        }
        let bits = value.to_bits();
        let raw = ((bits >> 52) & 0x7ff) as i64;
        let fraction = bits & ((1 << 52) - 1);
        let (mantissa, exponent) = if raw == 0 {
            (fraction, -1074)
        } else {
            (fraction | 1 << 52, raw - 1075)
        };
        let part = |m: u64| {
            // (m + 1) / 2 is the inverse of 2, m being odd.
            let two = if exponent < 0 { m.div_ceil(2) } else { 2 };
            let x = mul(mantissa % m, power(two, exponent.unsigned_abs(), m), m);
            if value < 0.0 { negate(x, m) } else { x }
        };
        Some(Self {
            p: part(P),
            q: Some(part(Q)),
        })
    }

    /// A whole number.
    pub fn integer(value: i64) -> Self {
        let part = |m: u64| {
            let x = value.unsigned_abs() % m;
            if value < 0 { negate(x, m) } else { x }
        };
        Self {
            p: part(P),
            q: Some(part(Q)),
        }
    }

    #[inline]
    fn both(self, y: Self, f: fn(u64, u64, u64) -> u64) -> Self {
        Self {
            p: f(self.p, y.p, P),
            q: match (self.q, y.q) {
                (Some(a), Some(b)) => Some(f(a, b, Q)),
                (Some(_) | None, _) => None,
            },
        }
    }

    /// `x + y`
    #[inline]
    #[must_use]
    pub fn plus(self, y: Self) -> Self {
        self.both(y, add)
    }

    /// `x · y`
    #[inline]
    #[must_use]
    pub fn times(self, y: Self) -> Self {
        self.both(y, mul)
    }

    /// `x / y`, if neither part of `y` is zero.
    #[must_use]
    pub fn over(self, y: Self) -> Option<Self> {
        let zero = y.p == 0 || y.q == Some(0);
        (!zero).then(|| self.both(y, |a, b, m| mul(a, power(b, m - 2, m), m)))
    }

    /// `e^x`, whose second part is not known; nor is `e^x` where that of `x` isn't.
    #[must_use]
    pub fn exp(self) -> Option<Self> {
        Some(Self {
            p: power(G, self.q?, P),
            q: None,
        })
    }

    /// A power map: `sqrt(x·y) = sqrt(x)·sqrt(y)`, and `sqrt(x)² = x` for squares.
    #[must_use]
    pub fn sqrt(self) -> Self {
        Self {
            p: power(self.p, P.div_ceil(4), P),
            q: self.q.map(|q| power(q, Q.div_ceil(4), Q)),
        }
    }
}

#[inline]
fn add(a: u64, b: u64, m: u64) -> u64 {
    let s = a + b;
    if s >= m { s - m } else { s }
}

fn negate(a: u64, m: u64) -> u64 {
    if a == 0 { 0 } else { m - a }
}

/// `a·b mod m` for one of the two primes, by Barrett's reduction: with `μ = ⌊2^122 / m⌋` the estimate of the quotient is at most a few too
/// small.
#[inline]
fn mul(a: u64, b: u64, m: u64) -> u64 {
    const MU_P: u128 = (1u128 << 122) / P as u128;
    const MU_Q: u128 = (1u128 << 122) / Q as u128;
    let x = u128::from(a) * u128::from(b);
    let mu = if m == P { MU_P } else { MU_Q };
    let quotient = ((x >> 58) * mu) >> 64;
    let mut rest = (x - quotient * u128::from(m)) as u64;
    while rest >= m {
        rest -= m;
    }
    rest
}

/// `a^n mod m`; of `n = m − 2` the inverse of `a ≠ 0` (Fermat).
fn power(a: u64, mut n: u64, m: u64) -> u64 {
    let (mut square, mut result) = (a, 1);
    while n > 0 {
        if n & 1 == 1 {
            result = mul(result, square, m);
        }
        square = mul(square, square, m);
        n >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    // Oracle: the laws of a field, and division of wide integers.
    use super::*;
    use crate::random::mix;

    #[test]
    fn products_agree_with_wide_division() {
        for m in [P, Q] {
            for i in 0..20_000 {
                let (a, b) = (mix(2 * i) % m, mix(2 * i + 1) % m);
                let wide = (u128::from(a) * u128::from(b) % u128::from(m)) as u64;
                assert_eq!(mul(a, b, m), wide);
            }
            for (a, b) in [(m - 1, m - 1), (0, m - 1), (1, m - 1)] {
                assert_eq!(
                    u128::from(mul(a, b, m)),
                    u128::from(a) * u128::from(b) % u128::from(m)
                );
            }
        }
    }

    #[test]
    fn exp_is_a_homomorphism_and_division_an_inverse() {
        for i in 0..100 {
            let [x, y] = [4 * i, 4 * i + 2].map(|i| Residues::new(mix(i), mix(i + 1)));
            let exp = |x: Residues| x.exp().expect("a known exponent");
            assert_eq!(exp(x.plus(y)), exp(x).times(exp(y)));
            assert_eq!(exp(x).exp(), None);
            let quotient = x.over(y).expect("no zero");
            assert_eq!(quotient.times(y), x);
            assert_eq!(x.over(Residues::integer(0)), None);
            assert_eq!(x.times(y).sqrt(), x.sqrt().times(y.sqrt()));
            let square = x.times(x);
            assert_eq!(square.sqrt().times(square.sqrt()), square);
        }
        assert_eq!(power(G, Q, P), 1);
        assert_ne!(G, 1);
    }

    #[test]
    fn constants_are_dyadic_rationals() {
        let of = |x: f64| Residues::constant(x).expect("a finite number");
        assert_eq!(of(-3.0), Residues::integer(-3));
        assert_eq!(of(-0.0), Residues::integer(0));
        assert_eq!(of(0.125).times(of(8.0)), Residues::integer(1));
        assert_eq!(of(-1.5).times(of(2.0)), of(-3.0));
        assert_eq!(of(5e-324).times(of(2f64.powi(1023))), of(2f64.powi(-51)));
        assert_eq!(of(4.0).sqrt(), of(2.0));
        assert_eq!(Residues::constant(f64::NAN), None);
        assert_eq!(Residues::constant(f64::NEG_INFINITY), None);
    }
}

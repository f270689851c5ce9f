//! Elements of the pair of prime fields of [`ir::field`], with an order and with infinities: exact numbers to interpret programs in.
//!
//! * The second part of an `exp` is unknown: a second `exp` on top of it leaves the field. [`Element::Unknown`]
//!   propagates, and a comparison that meets it is *not decided* here; it never counts as a pass.
//! * Fields have no order that sums and products respect. So each number also has a real part, drawn and computed beside the other two
//!   with a bound of its error, and `max` and signs are decided by it: a program chooses as it does over the reals, and what it computes
//!   from what it chose is compared exactly. Where the bounds leave the choice open and the numbers differ, a fixed total order decides, that
//!   of `2^16·p` centred about zero: the same numbers are then chosen from the same ones, and multiples of `2^−16` below `2^43` in magnitude
//!   as over the reals. Only a `max` of sums that share an addend may then choose differently than the sum of the addend and a `max`: so
//!   what was chosen in this way is marked (`ambiguous`) with all that is computed from it, and of two different numbers of which one is
//!   marked nothing is said.
//! * `log` is a pseudo-random function.
//! * `±∞` are elements of their own with the rules of the reals; where these are silent (`∞ − ∞`, `0·∞`, `x / 0`) the result is
//!   [`Element::Undefined`].

use crate::functions;
use crate::scalar::{Bounded, Scalar, padded};
use ir::field::{P, Residues};
use ir::{Dtype, Function};
use std::cmp::Ordering;

/// A number of the pair of fields.
#[derive(Clone, Copy, Debug)]
pub enum Element {
    /// A number.
    Finite {
        /// What is compared.
        exact: Residues,
        /// What it is ordered by.
        real: Bounded,
    },
    /// `−∞`
    NegInf,
    /// `+∞`
    PosInf,
    /// What the reals leave undefined.
    Undefined,
    /// What this number system cannot say.
    Unknown,
}

/// The outcome of comparing a computed element with a wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Equal, both parts where both are known.
    Equal,
    /// Certainly different.
    Different,
    /// One of them is not known, or they differ and one hangs on a choice that was left open, or the wanted one is undefined.
    Undecided,
}

use Element::{Finite, NegInf, PosInf, Undefined, Unknown};

/// Of the two parts that are exact.
impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Finite { exact: x, .. }, Finite { exact: y, .. }) => x == y,
            (NegInf, NegInf) | (PosInf, PosInf) | (Undefined, Undefined) | (Unknown, Unknown) => {
                true
            }
            (Finite { .. } | NegInf | PosInf | Undefined | Unknown, _) => false,
        }
    }
}

impl Element {
    /// The element with two given parts, reduced, ordered as a real number.
    pub fn new(p: u64, q: u64, real: f64) -> Self {
        Finite {
            exact: Residues::new(p, q),
            real: Bounded::exact(real),
        }
    }

    /// The real number that it is ordered as; no number where there is none.
    fn nearly(&self) -> f64 {
        match self {
            Finite { exact, .. } if exact.p == 0 => 0.0,
            Finite { real, .. } => real.value,
            NegInf => f64::NEG_INFINITY,
            PosInf => f64::INFINITY,
            Undefined | Unknown => f64::NAN,
        }
    }

    /// Compares a computed element with the wanted one.
    pub fn agreement(self, wanted: Self) -> Agreement {
        match (self, wanted) {
            (Unknown, _) | (_, Unknown | Undefined) => Agreement::Undecided,
            (
                Finite { exact, real },
                Finite {
                    exact: wanted,
                    real: w_real,
                },
            ) => {
                let same_q = match (exact.q, wanted.q) {
                    (Some(a), Some(b)) => a == b,
                    (None, _) | (_, None) => true,
                };
                if exact.p == wanted.p && same_q {
                    Agreement::Equal
                } else if real.ambiguous || w_real.ambiguous {
                    Agreement::Undecided
                } else {
                    Agreement::Different
                }
            }
            (a, b) if a == b => Agreement::Equal,
            (Finite { real, .. }, _) | (_, Finite { real, .. }) if real.ambiguous => {
                Agreement::Undecided
            }
            (Undefined | NegInf | PosInf | Finite { .. }, NegInf | PosInf | Finite { .. }) => {
                Agreement::Different
            }
        }
    }

    /// What an operation gave: where that is exactly zero, so is its real part.
    fn computed(exact: Residues, real: Bounded) -> Self {
        let zero = exact.p == 0;
        let real = if zero { Bounded::exact(0.0) } else { real };
        Finite { exact, real }
    }

    /// The sign, where it is known, and whether it was left open.
    fn sign(self) -> Option<(Ordering, bool)> {
        match self {
            Finite { exact, real } => Some(order((exact.p, real), (0, Bounded::exact(0.0)))),
            NegInf => Some((Ordering::Less, false)),
            PosInf => Some((Ordering::Greater, false)),
            Undefined | Unknown => None,
        }
    }

    /// `self · ∞`
    fn infinite(self) -> Self {
        match self.sign() {
            Some((_, true)) => Unknown,
            Some((Ordering::Less, false)) => NegInf,
            Some((Ordering::Greater, false)) => PosInf,
            Some((Ordering::Equal, false)) | None => Undefined,
        }
    }

    /// `self · −∞`
    fn opposite_infinite(self) -> Self {
        match self.infinite() {
            NegInf => PosInf,
            PosInf => NegInf,
            other @ (Finite { .. } | Undefined | Unknown) => other,
        }
    }

    /// The same number, marked if it was chosen where the choice was open; what cannot be marked is unknown then.
    fn chosen(mut self, open: bool) -> Self {
        match &mut self {
            Finite { real, .. } => real.ambiguous |= open,
            NegInf | PosInf | Undefined | Unknown if open => return Unknown,
            NegInf | PosInf | Undefined | Unknown => {}
        }
        self
    }
}

impl Scalar for Element {
    fn real(&self) -> f64 {
        self.nearly()
    }

    fn constant(value: f64) -> Self {
        if value.is_nan() {
            return Undefined;
        }
        match Residues::constant(value) {
            Some(exact) => Finite {
                exact,
                real: Bounded::constant(value),
            },
            None if value > 0.0 => PosInf,
            None => NegInf,
        }
    }

    fn integer(value: i64) -> Self {
        Finite {
            exact: Residues::integer(value),
            real: Bounded::integer(value),
        }
    }

    fn add(self, y: Self) -> Self {
        match (self, y) {
            (Unknown, _) | (_, Unknown) => Unknown,
            (Undefined, _) | (_, Undefined) => Undefined,
            (
                Finite { exact, real },
                Finite {
                    exact: other,
                    real: y_real,
                },
            ) => Self::computed(exact.plus(other), real.add(y_real)),
            (NegInf, PosInf) | (PosInf, NegInf) => Undefined,
            (NegInf, _) | (_, NegInf) => NegInf,
            (PosInf, _) | (_, PosInf) => PosInf,
        }
    }

    fn mul(self, y: Self) -> Self {
        match (self, y) {
            (Unknown, _) | (_, Unknown) => Unknown,
            (Undefined, _) | (_, Undefined) => Undefined,
            (
                Finite { exact, real },
                Finite {
                    exact: other,
                    real: y_real,
                },
            ) => Self::computed(exact.times(other), real.mul(y_real)),
            (NegInf, x) | (x, NegInf) => x.opposite_infinite(),
            (PosInf, x) | (x, PosInf) => x.infinite(),
        }
    }

    fn div(self, y: Self) -> Self {
        match (self, y) {
            (Unknown, _) | (_, Unknown) => Unknown,
            (Undefined, _) | (_, Undefined) => Undefined,
            (
                Finite { exact, real },
                Finite {
                    exact: other,
                    real: y_real,
                },
            ) => match exact.over(other) {
                Some(exact) => Self::computed(exact, real.div(y_real)),
                None => Undefined,
            },
            (Finite { .. }, NegInf | PosInf) => Self::integer(0),
            (NegInf, Finite { .. }) => y.opposite_infinite(),
            (PosInf, Finite { .. }) => y.infinite(),
            (NegInf | PosInf, NegInf | PosInf) => Undefined,
        }
    }

    fn max(self, y: Self) -> Self {
        match (self, y) {
            (Unknown, _) | (_, Unknown) => Unknown,
            (Undefined, _) | (_, Undefined) => Undefined,
            (PosInf, _) | (_, PosInf) => PosInf,
            (NegInf, x) | (x, NegInf) => x,
            (
                Finite { exact, real },
                Finite {
                    exact: other,
                    real: y_real,
                },
            ) => match order((exact.p, real), (other.p, y_real)) {
                (Ordering::Greater, open) => self.chosen(open),
                (Ordering::Less, open) => y.chosen(open),
                (Ordering::Equal, _) => Finite {
                    exact: Residues {
                        q: exact.q.or(other.q),
                        ..exact
                    },
                    real,
                },
            },
        }
    }

    fn function(function: Function, x: &[Self]) -> Self {
        let row = functions::row(function);
        if x.contains(&Unknown) {
            return Unknown;
        }
        if x.contains(&Undefined) {
            return Undefined;
        }
        // Zeros and infinities are exactly what they are.
        let value = (row.real)(&padded(x, Self::nearly)[..x.len()]);
        let known = |x: &Self| match x {
            Finite { exact, .. } => exact.p == 0,
            NegInf | PosInf | Undefined | Unknown => true,
        };
        let parts = x.iter().map(|x| match x {
            Finite { exact, real } => Some((*exact, *real)),
            NegInf | PosInf | Undefined | Unknown => None,
        });
        match parts.collect::<Option<Vec<(Residues, Bounded)>>>() {
            Some(_) if value.is_infinite() && x.iter().any(known) => Self::constant(value),
            Some(parts) => {
                let (exact, real): (Vec<Residues>, Vec<Bounded>) = parts.into_iter().unzip();
                match (row.residues)(&exact) {
                    Some(exact) => Finite {
                        exact,
                        real: Bounded::function(function, &real),
                    },
                    None => Unknown,
                }
            }
            None if x.iter().all(known) || value == 0.0 || value.is_infinite() => {
                Self::constant(value)
            }
            None => Unknown,
        }
    }

    fn select(self, x: Self, y: Self) -> Self {
        match (self, self.sign()) {
            (_, Some((Ordering::Less, open))) => y.chosen(open),
            (_, Some((Ordering::Equal | Ordering::Greater, open))) => x.chosen(open),
            // As f64 does for NaN: `NaN >= 0` is false. Tile programs test an accumulator for infinity in this way.
            (Undefined, None) => y,
            (_, None) => Unknown,
        }
    }

    fn holds(&self) -> Option<bool> {
        self.sign().map(|(order, _)| order != Ordering::Less)
    }

    fn round(self, _dtype: Dtype) -> Self {
        self
    }
}

/// The order of two numbers, that of their real parts where these are certainly apart; and whether it was left open.
fn order((p, x): (u64, Bounded), (yp, y): (u64, Bounded)) -> (Ordering, bool) {
    let defined = !x.undefined && !y.undefined;
    let apart = (x.value - y.value).abs() > x.error + y.error;
    match x.value.partial_cmp(&y.value) {
        _ if p == yp => (Ordering::Equal, false),
        Some(order) if defined && apart => (order, false),
        Some(_) | None => (rank(p).cmp(&rank(yp)), true),
    }
}

/// The position in a fixed total order: `2^16·p`, centred.
fn rank(p: u64) -> i64 {
    let x = Residues::new(p, 0).times(Residues::integer(1 << 16)).p;
    if x > P / 2 {
        x as i64 - P as i64
    } else {
        x as i64
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the laws of a field, and of the reals where the module claims them.
    use super::*;
    use rand::{RngExt, SeedableRng};

    fn sample(count: usize) -> Vec<Element> {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        (0..count)
            .map(|_| Element::new(rng.random(), rng.random(), rng.random()))
            .collect()
    }

    #[test]
    fn exp_is_a_homomorphism_and_division_an_inverse() {
        let all = sample(100);
        for pair in all.windows(2) {
            let (x, y) = (pair[0], pair[1]);
            assert_eq!(
                Element::function(Function::Exp, &[x.add(y)]),
                Element::function(Function::Exp, &[x]).mul(Element::function(Function::Exp, &[y]))
            );
            assert_eq!(x.div(y).mul(y), x);
            assert_eq!(
                Element::function(Function::Sqrt, &[x.mul(y)]),
                Element::function(Function::Sqrt, &[x])
                    .mul(Element::function(Function::Sqrt, &[y]))
            );
            let square = x.mul(x);
            assert_eq!(
                Element::function(Function::Sqrt, &[square])
                    .mul(Element::function(Function::Sqrt, &[square])),
                square
            );
        }
    }

    #[test]
    fn order_is_that_of_the_reals_on_small_dyadics() {
        let values = [
            -1e9, -3840.0, -1.5, -1.0, -0.125, 0.0, 0.0625, 0.5, 1.0, 4095.0, 1e9,
        ];
        for pair in values.windows(2) {
            let (x, y) = (Element::constant(pair[0]), Element::constant(pair[1]));
            assert_eq!(x.max(y), y, "{pair:?}");
            assert_eq!(y.max(x), y, "{pair:?}");
        }
        let (one, two) = (Element::integer(1), Element::integer(2));
        for v in values {
            let chosen = Element::constant(v).select(one, two);
            assert_eq!(chosen, if v >= 0.0 { one } else { two }, "{v}");
        }
        assert_eq!(
            Element::function(Function::Sqrt, &[Element::constant(4.0)]),
            two
        );
        assert_eq!(Element::constant(0.125).mul(Element::integer(8)), one);
    }

    #[test]
    fn order_respects_sums_and_positive_factors() {
        for triple in sample(100).windows(3) {
            let [x, y, z] = [triple[0], triple[1], triple[2]];
            assert_eq!(x.add(z).max(y.add(z)), x.max(y).add(z));
            // All of them are drawn positive.
            assert_eq!(x.mul(z).max(y.mul(z)), x.max(y).mul(z));
            // What is exactly zero has a sign, however it came about.
            let zero = x.add(x.mul(Element::integer(-1)));
            let below = zero.add(Element::constant(-1e-17));
            assert_eq!(zero.select(x, y), x);
            assert_eq!(below.select(x, y), y);
        }
    }

    #[test]
    fn infinities_follow_the_reals() {
        let x = sample(1)[0];
        assert_eq!(
            Element::function(Function::Exp, &[NegInf]),
            Element::integer(0)
        );
        assert_eq!(NegInf.add(x), NegInf);
        assert_eq!(NegInf.max(x), x);
        assert_eq!(NegInf.mul(Element::integer(-1)), PosInf);
        assert_eq!(NegInf.add(PosInf), Undefined);
        assert_eq!(NegInf.mul(Element::integer(0)), Undefined);
        assert_eq!(x.div(Element::integer(0)), Undefined);
        assert_eq!(
            Element::function(Function::Exp, &[Element::function(Function::Exp, &[x])]),
            Unknown
        );
        assert_eq!(Unknown.agreement(x), Agreement::Undecided);
        assert_eq!(Undefined.agreement(x), Agreement::Different);
        assert_eq!(
            x.agreement(x.add(Element::integer(1))),
            Agreement::Different
        );
    }

    #[test]
    fn what_hangs_on_an_open_choice_is_not_different() {
        let all = sample(60);
        let distance = |x: &Element, y: &Element| match (x, y) {
            (Finite { real: x, .. }, Finite { real: y, .. }) => (x.value - y.value).abs(),
            (Finite { .. } | NegInf | PosInf | Undefined | Unknown, _) => 0.0,
        };
        let (mut undecided, mut decided) = (0, 0);
        for pair in all.windows(2).filter(|p| distance(&p[0], &p[1]) > 0.1) {
            let [x, y] = [pair[0], pair[1]];
            // Beside 1e40 nothing is left of either of them; beside 3 all is.
            for (size, seen) in [(1e40, &mut undecided), (3.0, &mut decided)] {
                let shift = Element::constant(size);
                let inside = x.add(shift).max(y.add(shift));
                match inside.agreement(x.max(y).add(shift)) {
                    Agreement::Different => panic!("{x:?} {y:?} beside {size}"),
                    Agreement::Undecided => *seen += 1,
                    Agreement::Equal => {}
                }
            }
            // The smaller one is wrong where the choice was not open.
            let smaller = if x.max(y) == x { y } else { x };
            assert_eq!(x.max(y).agreement(smaller), Agreement::Different);
            // What was chosen openly is what it is, and nothing is said of it beside another number, an infinity or after a condition.
            let shift = Element::constant(1e40);
            let open = x.add(shift).max(y.add(shift));
            assert_eq!(open.agreement(open), Agreement::Equal);
            for other in [NegInf, PosInf, Element::integer(1)] {
                assert_eq!(open.agreement(other), Agreement::Undecided);
                assert_eq!(other.agreement(open), Agreement::Undecided);
            }
            let sign = x.add(shift).add(y).add(Element::constant(-1e40));
            for branch in [x, NegInf] {
                let chosen = sign.select(branch, branch);
                assert_ne!(chosen.agreement(Element::integer(7)), Agreement::Different);
            }
        }
        assert!(undecided > 10 && decided == 0, "{undecided} {decided}");
    }
}

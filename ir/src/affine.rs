//! Affine functions of axis coordinates, with integer coefficients, and their quotients.

use crate::axes::{AxisId, AxisSet};
use crate::limits::MAX_COEFFICIENT;
use serde::{Deserialize, Serialize};

/// `Σ coefficient · axis + offset`, sorted by axis, no zero coefficient, no axis twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Affine {
    terms: Vec<(i64, AxisId)>,
    /// The constant term.
    pub offset: i64,
}

impl Affine {
    /// Collects terms of one axis and drops zero coefficients. `None` on overflow.
    pub fn new(terms: impl IntoIterator<Item = (i64, AxisId)>, offset: i64) -> Option<Self> {
        let mut all: Vec<(i64, AxisId)> = terms.into_iter().collect();
        all.sort_by_key(|t| t.1);
        let mut kept: Vec<(i64, AxisId)> = Vec::with_capacity(all.len());
        for (c, a) in all {
            match kept.last_mut() {
                Some(last) if last.1 == a => last.0 = last.0.checked_add(c)?,
                Some(_) | None => kept.push((c, a)),
            }
        }
        kept.retain(|t| t.0 != 0);
        Some(Self {
            terms: kept,
            offset,
        })
    }

    /// The coordinate of `axis` itself.
    pub fn axis(axis: AxisId) -> Self {
        Self {
            terms: vec![(1, axis)],
            offset: 0,
        }
    }

    /// A constant.
    pub fn constant(offset: i64) -> Self {
        Self {
            terms: Vec::new(),
            offset,
        }
    }

    /// The terms `(coefficient, axis)`, sorted by axis, coefficients non-zero.
    pub fn terms(&self) -> &[(i64, AxisId)] {
        &self.terms
    }

    /// The axes it mentions.
    pub fn axes(&self) -> AxisSet {
        self.terms.iter().map(|t| t.1).collect()
    }

    /// `Some(a)` when it is exactly the coordinate of axis `a`.
    pub fn as_axis(&self) -> Option<AxisId> {
        match self.terms.as_slice() {
            [(1, a)] if self.offset == 0 => Some(*a),
            _ => None,
        }
    }

    /// The value at a coordinate, wrapping nothing: coordinates and coefficients are checked to fit when programs are made.
    pub fn at(&self, coordinate: impl Fn(AxisId) -> i64) -> i64 {
        self.terms
            .iter()
            .fold(self.offset, |sum, (c, a)| sum + c * coordinate(*a))
    }

    /// The smallest and largest value when each axis runs over the inclusive range that `range` gives; `None` on overflow.
    pub fn range(&self, range: impl Fn(AxisId) -> (i64, i64)) -> Option<(i64, i64)> {
        let (mut low, mut high) = (self.offset, self.offset);
        for (c, a) in &self.terms {
            let (first, last) = range(*a);
            let (x, y) = (c.checked_mul(first)?, c.checked_mul(last)?);
            low = low.checked_add(x.min(y))?;
            high = high.checked_add(x.max(y))?;
        }
        Some((low, high))
    }

    /// Replaces every axis by an affine function (itself where `by` gives none); `None` on overflow.
    pub fn substitute(&self, by: impl Fn(AxisId) -> Option<Affine>) -> Option<Self> {
        let mut terms = Vec::new();
        let mut offset = self.offset;
        for (c, a) in &self.terms {
            match by(*a) {
                None => terms.push((*c, *a)),
                Some(inner) => {
                    for (d, b) in &inner.terms {
                        terms.push((c.checked_mul(*d)?, *b));
                    }
                    offset = offset.checked_add(c.checked_mul(inner.offset)?)?;
                }
            }
        }
        Self::new(terms, offset)
    }
}

/// Where an axis is read: `function / divisor` where that is an integer, and nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Quotient {
    function: Affine,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    divisor: i64,
}

fn one() -> i64 {
    1
}

fn is_one(divisor: &i64) -> bool {
    *divisor == 1
}

impl From<Affine> for Quotient {
    fn from(function: Affine) -> Self {
        Self {
            function,
            divisor: 1,
        }
    }
}

impl Quotient {
    /// In lowest terms; `None` where the divisor is not positive.
    pub fn new(function: Affine, divisor: i64) -> Option<Self> {
        if divisor < 1 {
            return None;
        }
        let all = function.terms.iter().map(|t| t.0).chain([function.offset]);
        let common = all.fold(divisor as u64, |x, y| gcd(x, y.unsigned_abs())) as i64;
        let terms = function.terms.iter().map(|(c, a)| (c / common, *a));
        Some(Self {
            function: Affine {
                terms: terms.collect(),
                offset: function.offset / common,
            },
            divisor: divisor / common,
        })
    }

    /// Whether it is in lowest terms, and its divisor one of an index: what is read from elsewhere may be anything.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (least, most) = (1, MAX_COEFFICIENT as i64);
        if !(least..=most).contains(&self.divisor) {
            return Err("a divisor of an index is not between 1 and 2^40".to_owned());
        }
        match Self::new(self.function.clone(), self.divisor).as_ref() == Some(self) {
            true => Ok(()),
            false => Err("an index is not in lowest terms".to_owned()),
        }
    }

    /// What is divided, so much larger.
    pub fn shifted(&self, by: i64) -> Option<Self> {
        let offset = self.function.offset.checked_add(by)?;
        let terms = self.function.terms.clone();
        Self::new(Affine { terms, offset }, self.divisor)
    }

    /// What is divided.
    pub fn function(&self) -> &Affine {
        &self.function
    }

    /// By what; at least 1.
    pub fn divisor(&self) -> i64 {
        self.divisor
    }

    /// The function, where nothing is divided.
    pub fn affine(&self) -> Option<&Affine> {
        (self.divisor == 1).then_some(&self.function)
    }

    /// The axes it mentions.
    pub fn axes(&self) -> AxisSet {
        self.function.axes()
    }

    /// `Some(a)` when it is exactly the coordinate of axis `a`.
    pub fn as_axis(&self) -> Option<AxisId> {
        self.affine()?.as_axis()
    }

    /// The value at a coordinate; none where it is no integer.
    pub fn at(&self, coordinate: impl Fn(AxisId) -> i64) -> Option<i64> {
        let value = self.function.at(coordinate);
        (value % self.divisor == 0).then(|| value / self.divisor)
    }

    /// Bounds of its values when each axis runs over the inclusive range that `range` gives; `None` on overflow. Where it is never an
    /// integer the first may be above the second.
    pub fn range(&self, range: impl Fn(AxisId) -> (i64, i64)) -> Option<(i64, i64)> {
        let (low, high) = self.function.range(range)?;
        Some((
            low.checked_neg()?.div_euclid(self.divisor).checked_neg()?,
            high.div_euclid(self.divisor),
        ))
    }

    /// Replaces every axis by an affine function (itself where `by` gives none); `None` on overflow.
    pub fn substitute(&self, by: impl Fn(AxisId) -> Option<Affine>) -> Option<Self> {
        Self::new(self.function.substitute(by)?, self.divisor)
    }

    /// Replaces every axis by a quotient (itself where `by` gives none): the same value wherever all of these are integers. `None` on
    /// overflow.
    pub fn through(&self, by: impl Fn(AxisId) -> Option<Self>) -> Option<Self> {
        let mut terms = Vec::new();
        let mut common = 1i64;
        for (c, a) in self.function.terms() {
            let inner = by(*a).unwrap_or_else(|| Affine::axis(*a).into());
            common = common_multiple(common, inner.divisor)?;
            terms.push((*c, inner));
        }
        let mut sum = Affine::constant(self.function.offset.checked_mul(common)?);
        for (c, inner) in terms {
            let factor = c.checked_mul(common / inner.divisor)?;
            sum = sum.plus(&inner.function.scaled(factor)?)?;
        }
        Self::new(sum, self.divisor.checked_mul(common)?)
    }
}

/// The least common multiple of two positive numbers; `None` on overflow.
pub fn common_multiple(x: i64, y: i64) -> Option<i64> {
    (x / gcd(x as u64, y as u64) as i64).checked_mul(y)
}

fn gcd(x: u64, y: u64) -> u64 {
    if y == 0 { x } else { gcd(y, x % y) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Oracle: division of the numbers themselves.
    #[test]
    fn quotients_are_in_lowest_terms() {
        let (i, j) = (AxisId(0), AxisId(1));
        for n in 0..7_i64.pow(3) {
            let [a, b, c] = [1, 7, 49].map(|p| n / p % 7 - 3);
            let function = Affine::new([(a, i), (b, j)], c).expect("small");
            for divisor in 1..7 {
                let q = Quotient::new(function.clone(), divisor).expect("positive");
                let mut seen: Vec<i64> = Vec::new();
                for x in 0..4 {
                    for y in 0..3 {
                        let value = a * x + b * y + c;
                        let wanted = (value % divisor == 0).then(|| value / divisor);
                        assert_eq!(q.at(|axis| if axis == i { x } else { y }), wanted);
                        seen.extend(wanted);
                    }
                }
                let (low, high) = q
                    .range(|axis| (0, if axis == i { 3 } else { 2 }))
                    .expect("small");
                assert!(seen.iter().all(|v| (low..=high).contains(v)));
                let even = [a, b, c].iter().all(|v| v % divisor == 0);
                assert!(!even || q.affine().is_some());
            }
            assert_eq!(Quotient::new(function, 0), None);
        }
    }

    #[test]
    fn a_quotient_of_quotients_is_one() {
        let (i, j) = (AxisId(0), AxisId(1));
        let of = |c, offset, divisor| {
            let function = Affine::new([(c, j)], offset).expect("small");
            Quotient::new(function, divisor).expect("positive")
        };
        let outer = Quotient::new(Affine::new([(3, i)], 2).expect("small"), 4).expect("positive");
        for inner in [of(1, 0, 1), of(2, 1, 3), of(-1, 7, 2)] {
            let both = outer.through(|a| (a == i).then(|| inner.clone()));
            let both = both.expect("small");
            for x in 0..60 {
                if let Some(at) = inner.at(|_| x) {
                    assert_eq!(both.at(|_| x), outer.at(|_| at), "{inner:?} {x}");
                }
            }
        }
    }
}

//! Affine functions of axis coordinates, with integer coefficients.

use crate::axes::{AxisId, AxisSet};
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

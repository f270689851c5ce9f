//! Where a load or a store touches its buffer: one affine element index, and the bounds that are not provable.

use crate::axes::Axes;
use crate::layout::Layout;
use ir::{
    Affine, AxisId, AxisSet, BufferId, Dtype, Quotient, Reject, TileProgram, common_multiple,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes that memory moves at least.
pub(crate) const SECTOR: u64 = 32;

/// So many loads are looked at for what they have of another one's elements; where that is all but so little no others are.
const MOST_BESIDE: usize = 16;
const LITTLE: f64 = 0.1;

/// Bytes of a line of the L1 cache, which serves one of them at a time.
pub(crate) const LINE: u64 = 128;

/// The memory access of a load or a store, over global coordinates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Access {
    /// Which buffer.
    pub buffer: BufferId,
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Elements a coordinate step, for every axis that matters, times the divisor.
    pub coefficients: BTreeMap<AxisId, i64>,
    /// The constant part of the element index, times the divisor.
    pub offset: i64,
    /// What the sum is divided by: 1, but where indices are quotients.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub divisor: i64,
    /// Index functions that may leave `0 .. extent`, or are no integers everywhere.
    pub checks: Vec<(Quotient, i64)>,
    /// The value outside the buffer.
    pub fill: f64,
    /// Whether element indices need 64 bits.
    pub wide: bool,
}

fn one() -> i64 {
    1
}

fn is_one(divisor: &i64) -> bool {
    *divisor == 1
}

impl Access {
    /// The access of a load, `index` with a function for each axis that it goes along.
    ///
    /// # Errors
    ///
    /// [`Reject::Grid`] where the index of an element overflows 64 bits.
    pub fn load(
        tile: &TileProgram,
        buffer: BufferId,
        index: &[Quotient],
        fill: f64,
    ) -> Result<Self, Reject> {
        let overflow = || Reject::Grid("an element index overflows 64 bits".into());
        let b = tile.buffer(buffer);
        let axes = tile.axes_loaded(buffer, index);
        let (mut terms, mut offset, mut stride) = (Vec::new(), 0i64, 1i64);
        let mut checks = Vec::new();
        // One division of the whole sum: each index is a multiple of its own divisor wherever it is read.
        let mut divisors = index.iter().map(Quotient::divisor);
        let divisor = divisors.try_fold(1i64, common_multiple);
        let divisor = divisor.ok_or_else(overflow)?;
        for (axis, at) in axes.iter().zip(index).rev() {
            let extent = tile.extent(*axis) as i64;
            let function = at.function();
            let times = (divisor / at.divisor()).checked_mul(stride);
            let times = times.ok_or_else(overflow)?;
            for (c, a) in function.terms() {
                terms.push((c.checked_mul(times).ok_or_else(overflow)?, *a));
            }
            offset = function
                .offset
                .checked_mul(times)
                .and_then(|o| o.checked_add(offset))
                .ok_or_else(overflow)?;
            let range = at
                .range(|a| (0, tile.extent(a) as i64 - 1))
                .ok_or_else(overflow)?;
            if range.0 < 0 || range.1 >= extent || at.affine().is_none() {
                checks.push((at.clone(), extent));
            }
            stride = stride.checked_mul(extent).ok_or_else(overflow)?;
        }
        let flat = Affine::new(terms, offset).ok_or_else(overflow)?;
        let span = flat
            .range(|a| (0, tile.extent(a) as i64 - 1))
            .ok_or_else(overflow)?;
        Ok(Self {
            buffer,
            dtype: b.dtype,
            coefficients: flat.terms().iter().map(|(c, a)| (*a, *c)).collect(),
            offset,
            divisor,
            checks,
            fill,
            wide: stride >= 1 << 31 || span.0 < -(1 << 31) || span.1 >= 1 << 31,
        })
    }

    /// The access of a store of a value with these axes: the coordinates themselves.
    pub(crate) fn store(
        tile: &TileProgram,
        buffer: BufferId,
        axes: &AxisSet,
    ) -> Result<Self, Reject> {
        let own = tile.axes_stored(buffer, axes).into_iter().map(Affine::axis);
        let index: Vec<Quotient> = own.map(Quotient::from).collect();
        Self::load(tile, buffer, &index, 0.0)
    }

    /// The axis whose neighbours are neighbours in memory, among those with more than one coordinate a tile.
    pub(crate) fn unit_axis(&self, axes: &Axes) -> Option<AxisId> {
        if self.divisor != 1 {
            return None;
        }
        let several = |a: &AxisId| axes.get(a).is_some_and(|own| own.tile > 1);
        let mut units = self.coefficients.iter().filter(|(_, c)| **c == 1);
        units.find(|(a, _)| several(a)).map(|(a, _)| *a)
    }

    /// The share of its elements that a tile of `size` coordinates has and the same tile where another access begins does not have: 1 unless they differ in
    /// where they begin alone. What is in the same sector was brought with it.
    fn new_beside(&self, other: &Self, size: impl Fn(AxisId) -> u64) -> f64 {
        let is_moved = self.buffer == other.buffer
            && self.divisor == other.divisor
            && self.coefficients == other.coefficients;
        if !is_moved {
            return 1.0;
        }
        // Steps, each with how many there are; those of which one goes on where the one before ends are one.
        let all = self.coefficients.iter();
        let mut all: Vec<(u64, u64)> = all.map(|(a, c)| (c.unsigned_abs(), size(*a))).collect();
        all.retain(|(step, count)| *step > 0 && *count > 1);
        all.sort_unstable();
        let mut steps: Vec<(u64, u64)> = Vec::new();
        for (step, count) in all {
            match steps.last_mut() {
                Some((first, own)) if first.saturating_mul(*own) == step => *own *= count,
                Some(_) | None => steps.push((step, count)),
            }
        }
        let mut apart = self.offset.abs_diff(other.offset);
        let mut both = 1.0;
        for (step, count) in steps.into_iter().rev() {
            let moved = apart / step;
            if moved >= count {
                return 1.0;
            }
            both *= 1.0 - moved as f64 / count as f64;
            apart %= step;
        }
        let is_near = apart < SECTOR / self.dtype.bytes() * self.divisor.unsigned_abs();
        if is_near { 1.0 - both } else { 1.0 }
    }

    /// The share of its elements in a tile of `size` coordinates, from 0 to 1, that none of the other accesses has there; the last of these are looked at.
    pub fn new_beside_all<'a>(
        &self,
        others: impl DoubleEndedIterator<Item = &'a Self>,
        size: impl Fn(AxisId) -> u64,
    ) -> f64 {
        let mut least = 1.0_f64;
        for other in others.rev().take(MOST_BESIDE) {
            least = least.min(self.new_beside(other, &size));
            if least < LITTLE {
                break;
            }
        }
        least
    }

    /// How many times as many sectors of memory a warp touches as its elements fill, where each thread moves the first `width` elements of a tile that is
    /// spread like this. Sectors begin where elements do: by how much rows are off depends on the tile.
    pub(crate) fn waste(&self, layout: &Layout, width: u64) -> f64 {
        let elements = self.elements(layout, width);
        let filled = (elements.len() as u64 * self.dtype.bytes()).div_ceil(SECTOR);
        self.touched(&elements, SECTOR) as f64 / filled as f64
    }

    /// The lines of the cache that a warp touches there. They begin where elements do.
    pub(crate) fn lines(&self, layout: &Layout, width: u64) -> u64 {
        self.touched(&self.elements(layout, width), LINE)
    }

    /// The elements that a warp moves at once, each thread `width` of them: each once, in the order of memory.
    fn elements(&self, layout: &Layout, width: u64) -> Vec<i64> {
        let place = |register, lane| {
            let terms = self.coefficients.iter().map(|(axis, c)| {
                let at = layout.coordinate(*axis, register, lane, 0);
                c.wrapping_mul(at as i64)
            });
            terms.fold(0, i64::wrapping_add)
        };
        // What a register adds to a place is the same in all lanes.
        let registers: Vec<i64> = (0..width).map(|register| place(register, 0)).collect();
        let lanes = (0..32).map(|lane| place(0, lane));
        let places = lanes.flat_map(|lane| registers.iter().map(move |r| lane.wrapping_add(*r)));
        let mut places: Vec<i64> = places.map(|at| at.div_euclid(self.divisor)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// How many units of so many bytes elements lie in.
    fn touched(&self, elements: &[i64], bytes: u64) -> u64 {
        let whole = (bytes / self.dtype.bytes()) as i64;
        let (mut touched, mut end) = (0, i64::MIN);
        for at in elements {
            if *at >= end {
                touched += 1;
                end = at.saturating_add(whole);
            }
        }
        touched
    }

    /// The largest power of two up to `most` of elements along `axis` that are always aligned, and exist and lie in the
    /// buffer all or none, when they start at a multiple of themselves in the tile.
    pub(crate) fn vector(&self, axes: &Axes, axis: AxisId, most: u64) -> u64 {
        let even = |n: i64, v: i64| n % v == 0;
        let one = |a: &AxisId| axes.get(a).is_some_and(|own| own.extent == 1);
        let whole = |v: i64| {
            let own = axes.get(&axis);
            own.is_some_and(|own| even(own.tile as i64, v) && even(own.extent as i64, v))
        };
        let uniform = |v: i64| {
            self.divisor == 1
                && self.coefficients.get(&axis) == Some(&1)
                && even(self.offset, v)
                && whole(v)
                && self
                    .coefficients
                    .iter()
                    .all(|(a, c)| *a == axis || one(a) || even(*c, v))
                && self.checks.iter().all(|(at, extent)| {
                    let function = at.function();
                    let terms = function.terms();
                    !terms.iter().any(|t| t.1 == axis)
                        || (even(*extent, v)
                            && even(function.offset, v)
                            && terms
                                .iter()
                                .all(|(c, a)| if *a == axis { *c == 1 } else { even(*c, v) }))
                })
        };
        let mut v = most.max(1);
        while v > 1 && !uniform(v as i64) {
            v /= 2;
        }
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(steps: &[(u32, i64)], offset: i64) -> Access {
        Access {
            buffer: BufferId(0),
            dtype: Dtype::F32,
            coefficients: steps.iter().map(|(a, c)| (AxisId(*a), *c)).collect(),
            offset,
            divisor: 1,
            checks: Vec::new(),
            fill: 0.0,
            wide: false,
        }
    }

    #[test]
    fn moved_tiles_share_what_is_in_both() {
        // Four rows of 64, a thousand elements apart.
        let new = |offset: i64| {
            let steps = [(0, 1000), (1, 1)];
            let size = |a: AxisId| [4, 64][a.index()];
            access(&steps, offset).new_beside(&access(&steps, 0), size)
        };
        assert_eq!(new(0), 0.0);
        assert_eq!(new(16), 0.25);
        assert_eq!(new(-16), 0.25);
        assert_eq!(new(1000), 0.25);
        // Between the rows, and behind all of them.
        assert_eq!(new(500), 1.0);
        assert_eq!(new(5000), 1.0);
        // The next slices of rows that are parts of longer ones.
        let size_of_slices = |a: AxisId| [64, 32][a.index()];
        let slices = [(0, 64), (1, 1)];
        let next = access(&slices, 32).new_beside(&access(&slices, 0), size_of_slices);
        assert_eq!(next, 1.0);
        // Each fourth element, of which the rows are one: the next ones are in the same sectors.
        let steps = [(0, 256), (1, 4)];
        let size = |a: AxisId| [4, 64][a.index()];
        let next = access(&steps, 1).new_beside(&access(&steps, 0), size);
        assert!(next < 0.01, "{next}");
        let far = [(0, 4096), (1, 64)];
        let next = access(&far, 16).new_beside(&access(&far, 0), size);
        assert_eq!(next, 1.0);
        // What goes through the buffer otherwise has other elements.
        let other = access(&[(0, 256), (1, 1)], 0);
        assert_eq!(other.new_beside(&access(&steps, 0), size), 1.0);
    }
}

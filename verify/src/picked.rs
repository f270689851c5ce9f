//! Which coordinates of axes are looked at: all of them, or some.
//!
//! Evaluating a program, or interpreting a tile program, at a few output elements needs a few coordinates of each axis, and all those
//! of an axis that is reduced. Sets of elements are products of such lists, one an axis.

use ir::{AxisId, Quotient};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Coordinates of an axis, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Picked {
    /// Every coordinate below an extent.
    All(u64),
    /// These.
    Some(Arc<[u64]>),
}

/// The most sums that are made to find the image of a function.
const MOST_SUMS: u64 = 1 << 20;

/// Coordinates of output axes; an axis that is not mentioned has all of its own.
pub(crate) type Slice = BTreeMap<AxisId, Picked>;

impl Picked {
    /// Some coordinates of an axis, or all where there are as many.
    pub(crate) fn of(coordinates: BTreeSet<u64>, extent: u64) -> Self {
        match coordinates.len() as u64 == extent {
            true => Self::All(extent),
            false => Self::Some(coordinates.into_iter().collect()),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::All(extent) => *extent,
            Self::Some(list) => list.len() as u64,
        }
    }

    /// The one at a position.
    pub(crate) fn at(&self, position: usize) -> u64 {
        match self {
            Self::All(_) => position as u64,
            Self::Some(list) => list[position],
        }
    }

    /// Where a coordinate is, if it is there.
    pub(crate) fn position(&self, coordinate: u64) -> Option<usize> {
        match self {
            Self::All(extent) => (coordinate < *extent).then_some(coordinate as usize),
            Self::Some(list) => list.binary_search(&coordinate).ok(),
        }
    }

    /// The coordinates.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len() as usize).map(|p| self.at(p))
    }

    /// Those that are in one of the two.
    pub(crate) fn union(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All(n), _) | (_, Self::All(n)) => Self::All(*n),
            (Self::Some(x), Self::Some(y)) if x == y => self.clone(),
            (Self::Some(x), Self::Some(y)) => {
                let all: BTreeSet<u64> = x.iter().chain(y.iter()).copied().collect();
                Self::Some(all.into_iter().collect())
            }
        }
    }

    /// Those from `first` on, `length` of the axis's; all others left out.
    pub(crate) fn within(&self, first: u64, length: u64) -> Tile {
        let picked = match self {
            Self::All(_) => None,
            Self::Some(list) => {
                let from = list.partition_point(|c| *c < first);
                let to = list.partition_point(|c| *c < first + length);
                match (to - from) as u64 == length {
                    true => None,
                    false => Some(list[from..to].into()),
                }
            }
        };
        Tile {
            first,
            length,
            picked,
        }
    }

    /// The numbers of the tiles of a size that have any of them.
    pub(crate) fn tiles(&self, size: u64) -> Self {
        match self {
            Self::All(extent) => Self::All(extent.div_ceil(size)),
            Self::Some(list) => {
                let numbers: BTreeSet<u64> = list.iter().map(|c| c / size).collect();
                Self::Some(numbers.into_iter().collect())
            }
        }
    }

    /// The coordinates of a collapsed axis, of which the axes that it stands for have these, each behind its extent, slowest first; all where they are too many
    /// to list.
    pub(crate) fn collapsed<'a>(mut members: impl Iterator<Item = (u64, &'a Self)>) -> Self {
        let (mut all, mut whole) = match members.next() {
            Some((extent, first)) => (first.clone(), extent),
            None => (Self::All(1), 1),
        };
        for (extent, member) in members {
            whole = whole.saturating_mul(extent);
            let too_many = all.len().saturating_mul(member.len()) > MOST_SUMS;
            all = match (&all, member) {
                (Self::All(_), Self::All(_)) => Self::All(whole),
                (_, _) if too_many => Self::All(whole),
                (before, _) => {
                    let each = before.iter();
                    let sums = each.flat_map(|c| member.iter().map(move |m| c * extent + m));
                    Self::Some(sums.collect())
                }
            };
        }
        all
    }

    /// The coordinates of the axes that a collapsed one stands for, of these extents, slowest first: of each those that some coordinate has.
    pub(crate) fn members(&self, extents: &[u64]) -> Vec<Self> {
        let list = match self {
            Self::All(_) => return extents.iter().map(|n| Self::All(*n)).collect(),
            Self::Some(list) if extents.len() == 1 => return vec![Self::Some(list.clone())],
            Self::Some(list) => list,
        };
        let mut step = 1u64;
        let mut members: Vec<Self> = Vec::with_capacity(extents.len());
        for extent in extents.iter().rev() {
            let own: BTreeSet<u64> = list.iter().map(|c| c / step % extent).collect();
            members.push(Self::of(own, *extent));
            step = step.saturating_mul(*extent);
        }
        members.reverse();
        members
    }

    /// The coordinates below an extent that an index takes where each axis runs over what is picked of it; all of them where
    /// finding out takes long.
    pub(crate) fn image<'a>(
        index: &Quotient,
        picked: impl Fn(AxisId) -> &'a Self,
        extent: u64,
    ) -> Self {
        if let Some(axis) = index.as_axis() {
            let own = picked(axis);
            match own {
                Self::All(n) if *n == extent => return Self::All(extent),
                Self::Some(list) if list.last().is_none_or(|c| *c < extent) => return own.clone(),
                Self::All(_) | Self::Some(_) => {}
            }
        }
        // Sums of the terms, one term after the other; what the others cannot bring back inside is left out.
        let ends = |(c, a): &(i64, AxisId)| {
            let all = picked(*a);
            let end = |p: u64| c.saturating_mul(all.at(p as usize) as i64);
            match all.len() {
                0 => (0, 0),
                n => (end(0).min(end(n - 1)), end(0).max(end(n - 1))),
            }
        };
        let (function, divisor) = (index.function(), index.divisor());
        let end = (extent as i64).saturating_mul(divisor);
        let mut sums: BTreeSet<i64> = [function.offset].into();
        let terms = function.terms();
        for (n, (c, a)) in terms.iter().enumerate() {
            let rest = terms[n + 1..].iter().map(ends);
            let (low, high) = rest.fold((0i64, 0i64), |(l, h), (x, y)| {
                (l.saturating_add(x), h.saturating_add(y))
            });
            let inside = |s: &i64| s.saturating_add(high) >= 0 && s.saturating_add(low) < end;
            let own = picked(*a);
            if own.len().saturating_mul(sums.len() as u64) > MOST_SUMS {
                return Self::All(extent);
            }
            let next = sums.iter().flat_map(|s| {
                own.iter()
                    .map(move |x| s.saturating_add(c.saturating_mul(x as i64)))
            });
            sums = next.filter(inside).collect();
        }
        let inside = (sums.into_iter()).filter(|s| (0..end).contains(s) && s % divisor == 0);
        Self::of(inside.map(|s| (s / divisor) as u64).collect(), extent)
    }
}

/// The coordinates of an axis that exist in a tile, and those of them that are looked at.
#[derive(Clone, Debug)]
pub(crate) struct Tile {
    /// The first coordinate of the tile.
    pub(crate) first: u64,
    /// How many coordinates the tile has.
    pub(crate) length: u64,
    /// Which of them; all where none.
    picked: Option<Arc<[u64]>>,
}

impl Tile {
    /// The last coordinate of the tile.
    pub(crate) fn last(&self) -> u64 {
        self.first + self.length - 1
    }

    /// How many coordinates are looked at.
    pub(crate) fn count(&self) -> usize {
        match &self.picked {
            None => self.length as usize,
            Some(list) => list.len(),
        }
    }

    /// Whether all of its coordinates are looked at.
    pub(crate) fn is_whole(&self) -> bool {
        self.picked.is_none()
    }

    /// The coordinate at a position.
    pub(crate) fn at(&self, position: usize) -> u64 {
        match &self.picked {
            None => self.first + position as u64,
            Some(list) => list[position],
        }
    }
}

#[cfg(test)]
mod tests {
    // Oracle: lists, element by element.
    use super::*;

    fn some(list: &[u64]) -> Picked {
        Picked::Some(list.into())
    }

    #[test]
    fn images_are_what_the_function_takes() {
        let (a, b) = (AxisId(0), AxisId(1));
        let picked = [some(&[0, 3, 7]), Picked::All(4)];
        for (terms, offset, divisor, extent) in [
            (vec![(1, a)], 0, 1, 10),
            (vec![(1, a)], 0, 1, 5),
            (vec![(2, a), (1, b)], -2, 1, 12),
            (vec![(-1, b)], 3, 1, 4),
            (vec![(-3, a), (5, b)], 6, 1, 40),
            (vec![(1, a), (-1, b)], 1, 2, 4),
            (vec![(3, a)], -2, 5, 4),
            (vec![], 2, 1, 3),
            (vec![], 7, 1, 3),
        ] {
            let function = ir::Affine::new(terms, offset).expect("small numbers");
            let function = Quotient::new(function, divisor).expect("positive");
            let mut want = BTreeSet::new();
            for x in picked[0].iter() {
                for y in picked[1].iter() {
                    let at = function.at(|axis| [x, y][axis.index()] as i64);
                    want.extend(
                        at.filter(|at| (0..extent as i64).contains(at))
                            .map(|at| at as u64),
                    );
                }
            }
            let got = Picked::image(&function, |axis| &picked[axis.index()], extent);
            let found: BTreeSet<u64> = got.iter().collect();
            assert_eq!(found, want, "{function:?}");
        }
    }

    #[test]
    fn collapsed_axes_have_the_coordinates_of_their_members() {
        let collapsed = |members: [&Picked; 2]| Picked::collapsed([3, 4].into_iter().zip(members));
        let (all, some_of_three) = (Picked::All(4), some(&[0, 2]));
        let rows = collapsed([&some_of_three, &all]);
        assert_eq!(rows, some(&[0, 1, 2, 3, 8, 9, 10, 11]));
        assert_eq!(rows.members(&[3, 4]), [some(&[0, 2]), Picked::All(4)]);
        assert_eq!(collapsed([&Picked::All(3), &all]), Picked::All(12));
        assert_eq!(collapsed([&some_of_three, &some(&[1])]), some(&[1, 9]));
        assert_eq!(
            some(&[1, 6]).members(&[3, 4]),
            [some(&[0, 1]), some(&[1, 2])]
        );
        assert_eq!(some(&[1, 6]).members(&[12]), [some(&[1, 6])]);
        // Too many to list: all, which are more than are needed.
        let long = some(&(0..1 << 11).collect::<Vec<u64>>());
        let many = Picked::collapsed([(1 << 12, &long), (1 << 12, &long)].into_iter());
        assert_eq!(many, Picked::All(1 << 24));
    }

    #[test]
    fn tiles_have_their_own() {
        let list = some(&[0, 4, 5, 11]);
        assert_eq!(list.tiles(4), some(&[0, 1, 2]));
        let tile = list.within(4, 4);
        assert_eq!((tile.count(), tile.at(0), tile.last()), (2, 4, 7));
        assert_eq!(Picked::All(10).within(8, 2).at(1), 9);
        assert_eq!(list.within(4, 2).count(), 2);
        assert_eq!(list.position(5), Some(2));
        assert_eq!(list.position(6), None);
    }
}

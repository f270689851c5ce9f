//! Named dimensions and sets of them.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A named dimension with an extent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Axis {
    /// The name under which programs and kernels speak of it.
    pub name: String,
    /// How many coordinates it has: `0 .. extent`. At least 1.
    pub extent: u64,
}

/// An index into the axis table of a program or of a tile program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AxisId(pub u32);

impl AxisId {
    /// The position in the axis table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One axis, where several may be asked for.
impl IntoIterator for AxisId {
    type Item = Self;
    type IntoIter = std::iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}

/// A set of axes, kept sorted, so that equal sets are equal values. Most have few members, and take no memory of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AxisSet(SmallVec<[AxisId; 8]>);

impl AxisSet {
    /// The empty set: the axes of a scalar.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether `axis` is a member.
    pub fn contains(&self, axis: AxisId) -> bool {
        self.0.binary_search(&axis).is_ok()
    }

    /// Adds a member; says whether it was new.
    pub fn insert(&mut self, axis: AxisId) -> bool {
        match self.0.binary_search(&axis) {
            Ok(_) => false,
            Err(at) => {
                self.0.insert(at, axis);
                true
            }
        }
    }

    /// Removes a member; says whether it was there.
    pub fn remove(&mut self, axis: AxisId) -> bool {
        match self.0.binary_search(&axis) {
            Ok(at) => {
                self.0.remove(at);
                true
            }
            Err(_) => false,
        }
    }

    /// `self ∪ other`.
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// `self \ other`.
    pub fn minus(&self, other: &Self) -> Self {
        self.iter().filter(|a| !other.contains(*a)).collect()
    }

    /// `self ∩ other`.
    pub fn intersection(&self, other: &Self) -> Self {
        self.iter().filter(|a| other.contains(*a)).collect()
    }

    /// Whether every member of `self` is a member of `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|a| other.contains(a))
    }

    /// Whether the two sets share a member.
    pub fn intersects(&self, other: &Self) -> bool {
        self.iter().any(|a| other.contains(a))
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = AxisId> + '_ {
        self.0.iter().copied()
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The members in ascending order, as a slice.
    pub fn as_slice(&self) -> &[AxisId] {
        &self.0
    }
}

impl FromIterator<AxisId> for AxisSet {
    fn from_iter<T: IntoIterator<Item = AxisId>>(iter: T) -> Self {
        let mut members: SmallVec<[AxisId; 8]> = iter.into_iter().collect();
        members.sort_unstable();
        members.dedup();
        Self(members)
    }
}

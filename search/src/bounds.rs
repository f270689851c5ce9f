//! Which tiles of a loop contribute nothing.

use crate::build::inner::{Arena, InnerId};
use ir::{AxisId, Bound};
use std::collections::BTreeSet;

/// What is known of an axis where a loop begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Coordinates are `0 .. extent`.
    pub(crate) extent: i64,
    /// It is a grid axis or that of an enclosing loop: bounds may speak of its tile's corners.
    pub(crate) cornered: bool,
}

/// Bounds outside of which every tile of a loop is neutral.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interval {
    pub(crate) low: Vec<Bound>,
    pub(crate) high: Vec<Bound>,
}

/// The bounds of a loop over `axis` that carries `reductions`.
pub(crate) fn interval(
    _arena: &Arena,
    _reductions: &[InnerId],
    _provisional: &BTreeSet<InnerId>,
    _axis: AxisId,
    _range: impl Fn(AxisId) -> Range,
) -> Interval {
    Interval::default()
}

//! A builder that knows how large the values of a program in the making may be.

use crate::choices::{AXES, Condition};
use ir::{AxisId, AxisSet, BuildError, Builder, NodeId};
use proptest::sample::Index;

/// Values stay within about this magnitude for inputs in `-1 .. 1`.
const MAGNITUDE: f64 = 50.0;
/// What is divided by, or what a logarithm or a root is taken of, is at least this.
const LEAST: f64 = 0.05;

/// A value with a bound on its magnitude, and on its distance from zero where it is known to be positive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) id: NodeId,
    pub(crate) most: f64,
    pub(crate) least: Option<f64>,
}

/// Axes are declared when they are used: a program has no others.
pub(crate) struct Bounded {
    pub(crate) builder: Builder,
    axes: Vec<(u64, Option<AxisId>)>,
    /// Most elements of a value.
    elements: u64,
}

impl Bounded {
    /// At most as many axes as there are names for.
    pub(crate) fn new(name: &str, extents: impl IntoIterator<Item = u64>, elements: u64) -> Self {
        Self {
            builder: Builder::new(name),
            axes: extents.into_iter().map(|extent| (extent, None)).collect(),
            elements,
        }
    }

    pub(crate) fn axis(&mut self, at: Index) -> AxisId {
        self.axis_number(at.index(self.axes.len()))
    }

    pub(crate) fn axis_number(&mut self, at: usize) -> AxisId {
        let (extent, declared) = &mut self.axes[at];
        *declared.get_or_insert_with(|| {
            let axis = self.builder.axis(AXES[at], *extent);
            axis.expect("a new name and a small extent")
        })
    }

    pub(crate) fn axes_of(&self, value: Known) -> AxisSet {
        self.builder.so_far().node(value.id).axes.clone()
    }

    pub(crate) fn both_axes(&self, x: Known, y: Known) -> AxisSet {
        self.axes_of(x).union(&self.axes_of(y))
    }

    pub(crate) fn extent(&self, axis: AxisId) -> i64 {
        self.builder.so_far().extent(axis) as i64
    }

    pub(crate) fn small(&self, axes: &AxisSet) -> bool {
        let elements = self.builder.so_far().elements(axes);
        elements.is_some_and(|n| n <= self.elements)
    }

    /// Whether later steps may use a value.
    pub(crate) fn moderate(&self, value: Known) -> bool {
        value.most <= MAGNITUDE && self.small(&self.axes_of(value))
    }

    /// The value itself where it is known to be positive and not small, else its square plus one half; and its distance from zero.
    pub(crate) fn positive(&mut self, x: Known) -> Result<(Known, f64), BuildError> {
        if let Some(least) = x.least.filter(|l| *l >= LEAST) {
            return Ok((x, least));
        }
        let half = 0.5;
        let square = self.builder.mul(x.id, x.id)?;
        let constant = self.builder.constant(half)?;
        let made = Known {
            id: self.builder.add(square, constant)?,
            most: x.most * x.most + half,
            least: Some(half),
        };
        Ok((made, half))
    }

    /// `x / (x² + 1)`, which is between −1/2 and 1/2, where `x` may be larger than a bound.
    pub(crate) fn squashed(&mut self, x: Known, bound: f64) -> Result<Known, BuildError> {
        if x.most <= bound {
            return Ok(x);
        }
        let square = self.builder.mul(x.id, x.id)?;
        let one = self.builder.constant(1.0)?;
        let below = self.builder.add(square, one)?;
        Ok(Known {
            id: self.builder.div(x.id, below)?,
            most: 0.5,
            least: None,
        })
    }

    pub(crate) fn condition(&mut self, choice: &Condition) -> Result<NodeId, BuildError> {
        let [i, j] = choice.axes.map(|at| self.axis(at));
        let (i, j) = (self.builder.iota(i)?, self.builder.iota(j)?);
        let difference = self.builder.sub(i, j)?;
        let offset = self.builder.constant(choice.offset)?;
        self.builder.add(difference, offset)
    }
}

//! The choices that recipes are made of, the simplest first: there shrinking goes.

use ir::{AxisId, Dim, Dtype};
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// The names of axes: as many as a program may have here.
pub(crate) const AXES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// Extents that a small program's axes have: odd, prime and a few powers of two.
pub(crate) const EXTENTS: &[u64] = &[1, 2, 3, 4, 5, 7, 8, 11];

/// In which order the axes of a tensor lie in memory, and which are one dimension with the axis before.
#[derive(Clone, Debug)]
pub(crate) struct Layout(Vec<(u8, bool)>);

impl Layout {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let axis = (0..8u8, prop::bool::weighted(0.25));
        prop::collection::vec(axis, AXES.len()).prop_map(Self)
    }

    pub(crate) fn dims(&self, axes: impl IntoIterator<Item = AxisId>) -> Vec<Dim> {
        let mut axes: Vec<(&(u8, bool), AxisId)> = self.0.iter().zip(axes).collect();
        axes.sort_by_key(|((place, _), _)| *place);
        let mut dims: Vec<Dim> = Vec::new();
        for ((_, grouped), axis) in axes {
            match dims.last_mut() {
                Some(last) if *grouped => last.0.push(axis),
                Some(_) | None => dims.push(Dim(vec![axis])),
            }
        }
        dims
    }
}

/// How a parameter or a result is stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) layout: Layout,
}

impl Stored {
    /// A parameter: of sixteen about one holds integers.
    pub(crate) fn given() -> impl Strategy<Value = Self> {
        let dtype = prop_oneof![7 => select(&Dtype::FLOATS), 1 => select(&Dtype::ALL)];
        (dtype, Layout::any()).prop_map(|(dtype, layout)| Self { dtype, layout })
    }

    /// Bounds the magnitudes that are drawn of it: of integers, coordinates and one beyond.
    pub(crate) fn most(&self) -> f64 {
        match self.dtype {
            Dtype::I32 | Dtype::I64 => 16.0,
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Bool => 1.0,
        }
    }

    /// A result.
    pub(crate) fn made() -> impl Strategy<Value = Self> {
        let dtype = select(&Dtype::FLOATS);
        (dtype, Layout::any()).prop_map(|(dtype, layout)| Self { dtype, layout })
    }
}

/// `axis i - axis j + offset ≥ 0`: far from a tie wherever it is not exactly one, so that rounding in another order of evaluation
/// cannot flip it.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) axes: [Index; 2],
    pub(crate) offset: f64,
}

impl Condition {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let axes = [any::<Index>(), any::<Index>()];
        (axes, select(&[0.0, 1.0, -1.0])).prop_map(|(axes, offset)| Self { axes, offset })
    }
}

//! What is known of a number: bounds, and whether it is real and not zero.

/// Numbers between two bounds, with what else is known of them. Whatever is not known is unbounded, or `false`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// A lower bound, −∞ if none is known.
    pub low: f64,
    /// An upper bound, ∞ if none is known.
    pub high: f64,
    /// Whether it is certainly a real number.
    pub finite: bool,
    /// Whether it is certainly not zero.
    pub nonzero: bool,
}

impl Interval {
    /// Of a number of which nothing is known.
    pub const ANY: Self = Self {
        low: f64::NEG_INFINITY,
        high: f64::INFINITY,
        finite: false,
        nonzero: false,
    };

    /// Of one number.
    pub fn exactly(x: f64) -> Self {
        Self {
            low: x,
            high: x,
            finite: x.is_finite(),
            nonzero: x != 0.0,
        }
    }
}

/// Relative rounding of a few dozen operations.
const SLACK: f64 = 1e-12;

/// What a sum of bounds may be off by: they were rounded, but for whole numbers, and where they cancel a bound that is off by a rounding
/// would prove a sign.
pub fn slack(bounds: impl Iterator<Item = f64>) -> f64 {
    let (mut size, mut exact) = (0.0, true);
    for bound in bounds {
        size += bound.abs();
        exact &= bound.fract() == 0.0;
    }
    if exact || !size.is_finite() {
        0.0
    } else {
        SLACK * size
    }
}

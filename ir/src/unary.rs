//! The table of element-wise functions of one number.
//!
//! A row says all that the other parts of the language and the search need of a function; none of them knows one by name but for
//! rules that are about it. How a GPU computes it says a table of `codegen`, and `verify`, which judges both, says its meaning once more.

use crate::field::Residues;
use crate::interval::{Interval, slack};
use crate::row::{AxesRule, Fact, OpRow, Work};
use serde::{Deserialize, Serialize};

/// An element-wise function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Unary {
    /// `e^x`
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root.
    Sqrt,
}

/// Where a function is a real number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Everywhere.
    All,
    /// Of numbers that are not negative.
    NonNegative,
    /// Of positive numbers; near zero it has no bound.
    Positive,
}

impl Domain {
    /// Whether a number is in it.
    pub fn contains(self, x: f64) -> bool {
        match self {
            Self::All => true,
            Self::NonNegative => x >= 0.0,
            Self::Positive => x > 0.0,
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct UnaryRow {
    /// Which function.
    pub function: Unary,
    /// What rows of all operations say.
    pub op: OpRow,
    /// How equations of rules write it, in front of its argument.
    pub symbol: &'static str,
    /// Where it is defined.
    pub domain: Domain,
    /// What is known of its result, from what is known of its argument.
    pub interval: fn(Interval) -> Interval,
    /// Where it is zero, beside zero: the digits of what differs little from this argument are lost.
    pub root: Option<f64>,
    /// What it is of every number of the prime fields, where it is something that keeps the identities of the rules.
    pub residues: fn(Residues) -> Option<Residues>,
}

/// The functions, in the order of [`Unary`].
pub static UNARY: [UnaryRow; 3] = [
    UnaryRow {
        function: Unary::Exp,
        op: OpRow {
            name: "exp",
            arity: 1,
            axes: AxesRule::Union,
            meaning: Some(|x| x[0].exp()),
            facts: &[
                Fact::Monotone,
                Fact::Positive,
                Fact::NonNegative,
                Fact::SumsToProducts,
            ],
            work: Work::new(1, 1),
        },
        symbol: "e^",
        domain: Domain::All,
        interval: |x| Interval {
            low: 0.0,
            high: x.high.exp(),
            finite: x.finite || x.high < f64::INFINITY,
            nonzero: x.finite,
        },
        root: None,
        residues: Residues::exp,
    },
    UnaryRow {
        function: Unary::Log,
        op: OpRow {
            name: "log",
            arity: 1,
            axes: AxesRule::Union,
            meaning: Some(|x| x[0].ln()),
            facts: &[Fact::Monotone],
            work: Work::new(1, 1),
        },
        symbol: "ln",
        domain: Domain::Positive,
        interval: |x| {
            // A bound near one is as far from it as it was rounded.
            let off = |bound: f64| slack([bound, 1.0].into_iter().filter(|b| b.is_finite()));
            Interval {
                low: match x.low > 0.0 {
                    true => x.low.ln() - off(x.low),
                    false => f64::NEG_INFINITY,
                },
                high: match x.high > 0.0 {
                    true => x.high.ln() + off(x.high),
                    false => f64::INFINITY,
                },
                finite: x.finite && x.low >= 0.0 && x.nonzero,
                nonzero: false,
            }
        },
        root: Some(1.0),
        residues: |_| None,
    },
    UnaryRow {
        function: Unary::Sqrt,
        op: OpRow {
            name: "sqrt",
            arity: 1,
            axes: AxesRule::Union,
            meaning: Some(|x| x[0].sqrt()),
            facts: &[
                Fact::Monotone,
                Fact::NonNegative,
                Fact::ZeroAtZero,
                Fact::KeepsDigits,
            ],
            work: Work::new(0, 1),
        },
        symbol: "√",
        domain: Domain::NonNegative,
        interval: |x| Interval {
            low: x.low.max(0.0).sqrt(),
            high: match x.high >= 0.0 {
                true => x.high.sqrt(),
                false => f64::INFINITY,
            },
            finite: x.finite && x.low >= 0.0,
            nonzero: x.nonzero,
        },
        root: None,
        // The field's root is one of squares alone.
        residues: |_| None,
    },
];

impl Unary {
    /// Every function.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        UNARY.iter().map(|row| row.function)
    }

    /// The function's row.
    pub fn row(self) -> &'static UnaryRow {
        &UNARY[self as usize]
    }

    /// How programs spell it.
    pub fn name(self) -> &'static str {
        self.row().op.name
    }

    /// Whether a fact holds for it.
    pub fn has(self, fact: Fact) -> bool {
        self.row().op.facts.contains(&fact)
    }

    /// The reference meaning.
    pub fn apply(self, x: f64) -> f64 {
        self.row().op.meaning.map_or(f64::NAN, |f| f(&[x]))
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the meanings, on a grid.
    use super::*;

    const GRID: [f64; 11] = [
        -30.0, -3.5, -1.0, -0.25, 0.0, 0.125, 0.5, 1.0, 2.0, 7.0, 30.0,
    ];

    #[test]
    fn rows_are_in_the_order_of_the_enum() {
        for (at, row) in UNARY.iter().enumerate() {
            assert_eq!(row.function as usize, at);
            assert_eq!(row.op.arity, 1);
        }
    }

    #[test]
    fn what_is_known_of_results_holds_for_the_meanings() {
        let mut checked = 0;
        for (function, row) in Unary::all().map(|f| (f, f.row())) {
            for x in GRID {
                assert_eq!(
                    row.domain.contains(x),
                    function.apply(x).is_finite(),
                    "{function:?} of {x}"
                );
            }
            for (i, low) in GRID.iter().enumerate() {
                for high in &GRID[i..] {
                    let argument = Interval {
                        low: *low,
                        high: *high,
                        finite: true,
                        nonzero: *low > 0.0 || *high < 0.0,
                    };
                    let known = (row.interval)(argument);
                    for x in GRID.iter().filter(|x| low <= *x && *x <= high) {
                        let y = function.apply(*x);
                        let holds = y.is_nan()
                            || (known.low <= y && y <= known.high && (y != 0.0 || !known.nonzero));
                        assert!(holds, "{function:?} of {x} in {argument:?}: {y}, {known:?}");
                        assert!(y.is_finite() || !known.finite, "{function:?} of {x}");
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 500, "{checked}");
    }

    /// Near its root a function is as far from zero as its argument from the root, so its digits are those of a difference.
    #[test]
    fn roots_are_zeros_beside_zero() {
        for function in Unary::all() {
            for x in GRID.iter().filter(|x| **x != 0.0) {
                let zero = function.apply(*x) == 0.0;
                assert_eq!(zero, function.row().root == Some(*x), "{function:?} of {x}");
            }
        }
    }
}

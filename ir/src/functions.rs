//! The table of element-wise functions, of one, two or three numbers.
//!
//! A row says all that the other parts of the language and the search need of a function; none of them knows one by name but for
//! rules that are about it. How a GPU computes it says a table of `codegen`, and `verify`, which judges both, says its meaning once more.

use crate::field::Residues;
use crate::interval::{Interval, slack};
use crate::row::{AxesRule, Fact, OpRow, Work};
use serde::{Deserialize, Serialize};

/// An element-wise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Function {
    /// `e^x`
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root.
    Sqrt,
}

/// Of which arguments a function is a real number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Of all.
    All,
    /// Of numbers that are not negative.
    NonNegative,
    /// Of positive numbers; near zero it has no bound.
    Positive,
    /// Of all but zero, near which it has no bound or no limit.
    NonZero,
}

impl Domain {
    /// Whether a number is in it.
    pub fn contains(self, x: f64) -> bool {
        match self {
            Self::All => true,
            Self::NonNegative => x >= 0.0,
            Self::Positive => x > 0.0,
            Self::NonZero => x != 0.0,
        }
    }

    /// Whether near zero nothing bounds what an error of the argument does.
    pub fn has_pole(self) -> bool {
        match self {
            Self::Positive | Self::NonZero => true,
            Self::All | Self::NonNegative => false,
        }
    }
}

/// One row of the table. What is a function here takes a slice of as many arguments as the function has.
#[derive(Debug)]
pub struct FunctionRow {
    /// Which function.
    pub function: Function,
    /// What rows of all operations say.
    pub op: OpRow,
    /// How equations of rules write it, in front of its one argument; none where they write a call.
    pub symbol: Option<&'static str>,
    /// Where it is defined, for each argument.
    pub domains: &'static [Domain],
    /// What is known of its result, from what is known of its arguments.
    pub interval: fn(&[Interval]) -> Interval,
    /// The size of what cancels where it is zero beside arguments that are none: a result that is far smaller has lost its digits. Zero
    /// where nothing cancels.
    pub cancels: fn(&[f64]) -> f64,
    /// What it is of all numbers of the prime fields, where it is something that keeps the identities of the rules.
    pub residues: fn(&[Residues]) -> Option<Residues>,
}

/// The functions, in the order of [`Function`].
pub static FUNCTIONS: [FunctionRow; 3] = [
    FunctionRow {
        function: Function::Exp,
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
        symbol: Some("e^"),
        domains: &[Domain::All],
        interval: |x| Interval {
            low: 0.0,
            high: x[0].high.exp(),
            finite: x[0].finite || x[0].high < f64::INFINITY,
            nonzero: x[0].finite,
        },
        cancels: |_| 0.0,
        residues: |x| x[0].exp(),
    },
    FunctionRow {
        function: Function::Log,
        op: OpRow {
            name: "log",
            arity: 1,
            axes: AxesRule::Union,
            meaning: Some(|x| x[0].ln()),
            facts: &[Fact::Monotone],
            work: Work::new(1, 1),
        },
        symbol: Some("ln"),
        domains: &[Domain::Positive],
        interval: |x| {
            let x = x[0];
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
        cancels: |_| 1.0,
        residues: |_| None,
    },
    FunctionRow {
        function: Function::Sqrt,
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
        symbol: Some("√"),
        domains: &[Domain::NonNegative],
        interval: |x| Interval {
            low: x[0].low.max(0.0).sqrt(),
            high: match x[0].high >= 0.0 {
                true => x[0].high.sqrt(),
                false => f64::INFINITY,
            },
            finite: x[0].finite && x[0].low >= 0.0,
            nonzero: x[0].nonzero,
        },
        cancels: |_| 0.0,
        // The field's root is one of squares alone.
        residues: |_| None,
    },
];

impl Function {
    /// Every function.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        FUNCTIONS.iter().map(|row| row.function)
    }

    /// Those of so many arguments.
    pub fn of(arity: usize) -> impl Iterator<Item = Self> {
        Self::all().filter(move |f| f.arity() == arity)
    }

    /// The function's row.
    pub fn row(self) -> &'static FunctionRow {
        &FUNCTIONS[self as usize]
    }

    /// How programs spell it.
    pub fn name(self) -> &'static str {
        self.row().op.name
    }

    /// How many arguments it takes.
    pub fn arity(self) -> usize {
        self.row().op.arity
    }

    /// Whether a fact holds for it.
    pub fn has(self, fact: Fact) -> bool {
        self.row().op.facts.contains(&fact)
    }

    /// Whether it is a real number of these.
    pub fn is_defined(self, x: &[f64]) -> bool {
        let mut all = self.row().domains.iter().zip(x);
        all.all(|(domain, x)| domain.contains(*x))
    }

    /// The reference meaning; NaN of another number of arguments than it takes.
    pub fn apply(self, x: &[f64]) -> f64 {
        match self.row().op.meaning {
            Some(meaning) if x.len() == self.arity() => meaning(x),
            Some(_) | None => f64::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the meanings, on a grid.
    use super::*;

    const GRID: [f64; 11] = [
        -30.0, -3.5, -1.0, -0.25, 0.0, 0.125, 0.5, 1.0, 2.0, 7.0, 30.0,
    ];

    /// All tuples of so many members.
    fn tuples<T: Copy>(members: &[T], arity: usize) -> Vec<Vec<T>> {
        (0..arity).fold(vec![Vec::new()], |all, _| {
            let longer = all
                .iter()
                .flat_map(|t| members.iter().map(|x| [&t[..], &[*x]].concat()));
            longer.collect()
        })
    }

    #[test]
    fn rows_are_in_the_order_of_the_enum() {
        for (at, row) in FUNCTIONS.iter().enumerate() {
            assert_eq!(row.function as usize, at);
            assert!((1..=3).contains(&row.op.arity));
            assert_eq!(row.domains.len(), row.op.arity);
            assert!(row.symbol.is_none() || row.op.arity == 1);
        }
    }

    #[test]
    fn what_is_known_of_results_holds_for_the_meanings() {
        let mut checked = 0;
        for (function, row) in Function::all().map(|f| (f, f.row())) {
            let arity = function.arity();
            for x in tuples(&GRID, arity) {
                let real = function.apply(&x).is_finite();
                assert_eq!(function.is_defined(&x), real, "{function:?} of {x:?}");
            }
            // Fewer of each where there are several: a power of the number.
            let ends: Vec<f64> = GRID.into_iter().step_by(2 * arity - 1).collect();
            let pairs = tuples(&ends, 2).into_iter().filter(|p| p[0] <= p[1]);
            let known = pairs.map(|p| Interval {
                low: p[0],
                high: p[1],
                finite: true,
                nonzero: p[0] > 0.0 || p[1] < 0.0,
            });
            for arguments in tuples(&known.collect::<Vec<_>>(), arity) {
                let known = (row.interval)(&arguments);
                let inside = |x: &[f64]| {
                    let mut all = x.iter().zip(&arguments);
                    all.all(|(x, a)| a.low <= *x && *x <= a.high)
                };
                for x in tuples(&GRID, arity).iter().filter(|x| inside(x)) {
                    let y = function.apply(x);
                    let holds = y.is_nan()
                        || (known.low <= y && y <= known.high && (y != 0.0 || !known.nonzero));
                    assert!(
                        holds,
                        "{function:?} of {x:?} in {arguments:?}: {y}, {known:?}"
                    );
                    assert!(y.is_finite() || !known.finite, "{function:?} of {x:?}");
                    checked += 1;
                }
            }
        }
        assert!(checked > 500, "{checked}");
    }

    /// Where a function is zero beside arguments that are none, its digits are those of a difference; and it says so of no other.
    #[test]
    fn what_cancels_has_zeros_beside_zero() {
        for function in Function::all() {
            let mut all = tuples(&GRID, function.arity());
            all.retain(|x| function.is_defined(x) && x.iter().all(|x| *x != 0.0));
            let cancels = |x: &Vec<f64>| (function.row().cancels)(x) > 0.0;
            let mut zeros = all.iter().filter(|x| function.apply(x) == 0.0);
            assert!(zeros.clone().all(cancels), "{function:?}");
            assert_eq!(
                all.iter().any(cancels),
                zeros.next().is_some(),
                "{function:?}"
            );
        }
    }
}

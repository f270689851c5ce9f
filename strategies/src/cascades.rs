//! Reductions over one long axis, each of what those before it gave.

use crate::bounded::{Bounded, Known};
use crate::choices::{Condition, EXTENTS, Stored};
use ir::{AxisId, BuildError, Function, Program, ReduceOp};
use proptest::prelude::*;
use proptest::sample::select;

/// Extents of the long axis: most tiles divide it, and it needs several of them.
const LONG: &[u64] = &[40, 64, 97, 128, 300, 1024, 2500];
/// Most elements of a value.
const ELEMENTS: u64 = 200_000;
/// What is corrected stays within this magnitude.
const CORRECTED: f64 = 12.0;
/// An exponential is taken, or a square, of what stays within these.
const EXPONENT: f64 = 3.0;
const SQUARED: f64 = 7.0;
/// How many reductions may follow on the first.
const LATER: usize = 3;

/// A random cascade: up to four reductions over one long axis, each of what those before it gave, as a softmax, a variance or a sum of
/// normalised products are. Rows, and columns for some values.
pub fn cascades() -> impl Strategy<Value = Program> {
    let later = (prop::bool::weighted(1.0), Correction::any(), sum());
    let recipe = (
        prop::collection::vec((prop::bool::weighted(1.0 / 3.0), Stored::made()), LATER + 1),
        prop::collection::vec(later, 1..=LATER),
        (prop::option::weighted(1.0 / 3.0, Correction::any()), sum()),
        [select(EXTENTS), select(LONG), select(EXTENTS)],
        [Stored::given(), Stored::given(), Stored::given()],
    );
    recipe.prop_map(|(results, later, first, extents, parameters)| {
        let recipe = Recipe {
            extents,
            parameters,
            first,
            later,
            results,
        };
        recipe.program().expect("moderate values of few axes")
    })
}

#[derive(Clone, Debug)]
struct Recipe {
    /// Rows, the long axis, columns.
    extents: [u64; 3],
    parameters: [Stored; 3],
    first: (Option<Correction>, Sum),
    /// Whether there is such a reduction, and what it is of.
    later: Vec<(bool, Correction, Sum)>,
    /// Whether a reduction is returned, from last to first. The last one always is.
    results: Vec<(bool, Stored)>,
}

/// What a reduction gives.
#[derive(Clone, Copy, Debug)]
enum Sum {
    Max,
    Mean,
    MeanProduct,
}

fn sum() -> impl Strategy<Value = Sum> {
    select(&[Sum::Max, Sum::Mean, Sum::MeanProduct])
}

/// How an earlier result comes in.
#[derive(Clone, Copy, Debug)]
enum By {
    Mul,
    Sub,
    Div,
}

/// What is reduced: a value and the result of an earlier reduction.
#[derive(Clone, Debug)]
struct Correction {
    by: By,
    /// Of what the reduction before reduced, and not of the first parameter.
    of_before: bool,
    exponential: bool,
    square: bool,
    masked: Option<Condition>,
}

impl Correction {
    fn any() -> impl Strategy<Value = Self> {
        let by = prop_oneof![1 => Just(By::Mul), 4 => Just(By::Sub), 1 => Just(By::Div)];
        let masked = prop::option::weighted(0.25, Condition::any());
        let choices = (
            masked,
            any::<bool>(),
            any::<bool>(),
            by,
            prop::bool::weighted(1.0 / 3.0),
        );
        choices.prop_map(|(masked, exponential, square, by, of_before)| Self {
            by,
            of_before,
            exponential,
            square,
            masked,
        })
    }
}

impl Recipe {
    fn program(&self) -> Result<Program, BuildError> {
        let mut b = Bounded::new("cascade", self.extents, ELEMENTS);
        let [row, long, column] = [0, 1, 2].map(|n| b.axis_number(n));
        let axes = [vec![row, long], vec![long, column], vec![row]];
        let mut parameters = Vec::new();
        for (name, (stored, axes)) in ["x", "y", "z"]
            .into_iter()
            .zip(self.parameters.iter().zip(axes))
        {
            let dims = stored.layout.dims(axes);
            parameters.push(Known {
                id: b.builder.parameter(name, stored.dtype, dims)?,
                most: stored.most(),
                least: None,
            });
        }
        let [x, y, z] = [0, 1, 2].map(|n| parameters[n]);
        let mut reduced = x;
        if let Some(correction) = &self.first.0 {
            reduced = correction.apply(&mut b, x, z, x)?;
        }
        let mut made = vec![self.first.1.apply(&mut b, reduced, y, long)?];
        for (_, correction, sum) in self.later.iter().filter(|later| later.0) {
            let newest = made[made.len() - 1];
            reduced = correction.apply(&mut b, reduced, newest, x)?;
            made.push(sum.apply(&mut b, reduced, y, long)?);
        }
        for (n, (value, (returned, stored))) in made.iter().rev().zip(&self.results).enumerate() {
            if n == 0 || *returned {
                let axes = b.axes_of(*value);
                let dims = stored.layout.dims(axes.iter());
                b.builder.output(stored.dtype, dims, value.id)?;
            }
        }
        b.builder.finish()
    }
}

impl Correction {
    /// `before` is what the reduction before reduced, `by` what it gave.
    fn apply(
        &self,
        b: &mut Bounded,
        before: Known,
        by: Known,
        x: Known,
    ) -> Result<Known, BuildError> {
        let value = if self.of_before { before } else { x };
        if !b.small(&b.both_axes(value, by)) {
            return Ok(x);
        }
        let (id, most) = match self.by {
            By::Mul => (b.builder.mul(value.id, by.id)?, value.most * by.most),
            By::Sub => (b.builder.sub(value.id, by.id)?, value.most + by.most),
            By::Div => {
                let (by, least) = b.positive(by)?;
                (b.builder.div(value.id, by.id)?, value.most / least)
            }
        };
        let least = None;
        let mut made = Known { id, most, least };
        if self.exponential && most <= EXPONENT {
            made = Known {
                id: b.builder.function(Function::Exp, &[id])?,
                most: most.exp(),
                least: Some((-most).exp()),
            };
        } else if self.square && most <= SQUARED {
            made = Known {
                id: b.builder.mul(id, id)?,
                most: most * most,
                least,
            };
        }
        if let Some(condition) = &self.masked {
            let condition = b.condition(condition)?;
            let zero = b.builder.constant(0.0)?;
            made = Known {
                id: b.builder.select(condition, made.id, zero)?,
                least,
                ..made
            };
        }
        b.squashed(made, CORRECTED)
    }
}

impl Sum {
    /// `MeanProduct` is the mean where the product with `y` would be too large.
    fn apply(self, b: &mut Bounded, x: Known, y: Known, axis: AxisId) -> Result<Known, BuildError> {
        if !b.axes_of(x).contains(axis) {
            return Ok(x);
        }
        let (id, most) = match self {
            Self::Max => {
                let id = b.builder.reduce(ReduceOp::Max, x.id, [axis])?;
                return Ok(Known { id, ..x });
            }
            Self::MeanProduct if b.small(&b.both_axes(x, y)) => {
                (b.builder.dot(x.id, y.id, [axis])?, x.most * y.most)
            }
            Self::MeanProduct | Self::Mean => (b.builder.sum(x.id, [axis])?, x.most),
        };
        let scale = b.builder.constant(1.0 / b.extent(axis) as f64)?;
        Ok(Known {
            id: b.builder.mul(id, scale)?,
            most,
            least: None,
        })
    }
}

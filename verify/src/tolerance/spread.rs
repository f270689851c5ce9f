//! How far off f32 arithmetic is expected to be where range is no limit.
//!
//! Where the baseline lost everything, it may have overflowed, which a kernel need not, or its digits cancelled, which no f32
//! kernel can help. These are told apart here: a value in f64 goes with the standard deviation that independent roundings to 24
//! bits give it, to first order (Higham and Mary 2019). It is an expectation and no sample, so that no luck is in it.

use super::careful::Careful;
use crate::block;
use crate::demand::NodeDemand;
use crate::evaluate::evaluate_at;
use crate::functions;
use crate::interpret::{Inputs, flat};
use crate::picked::{Picked, Slice};
use crate::scalar::{Scalar, padded};
use crate::simulate_error::SimulateError;
use ir::{Dtype, Function, Program};

/// Element operations that one row may take.
const MOST_WORK: u64 = 1 << 26;

/// The standard deviation of a careful kernel's errors in one row of an output: the elements of its last dimension in memory. `None`
/// where finding out would take long.
pub(crate) fn deviations(
    program: &Program,
    inputs: &[Vec<f64>],
    output: usize,
    row: u64,
) -> Result<Option<Vec<f64>>, SimulateError> {
    let mut alone = program.clone();
    alone.outputs = vec![program.outputs[output].clone()];
    let careful = Careful::new(&alone);
    let dims = &alone.outputs[0].dims;
    let mut slice = Slice::new();
    let mut rest = row;
    for dim in dims
        .split_last()
        .map_or(&[][..], |(_, outer)| outer)
        .iter()
        .rev()
    {
        for axis in dim.0.iter().rev() {
            let extent = alone.extent(*axis);
            slice.insert(*axis, Picked::of([rest % extent].into(), extent));
            rest /= extent;
        }
    }
    let demand = NodeDemand::of(&careful.program, &slice)?;
    if demand.work(&careful.program) > MOST_WORK {
        return Ok(None);
    }
    let found = evaluate_at(&careful.program, &demand, &Exact(inputs), |node, block| {
        careful.rounded(node, block)
    })?;
    let deviation = |x: &Spread| {
        if x.deviation.is_nan() {
            f64::INFINITY
        } else {
            x.deviation
        }
    };
    Ok(found.first().map(|row| row.iter().map(deviation).collect()))
}

/// Tensors as they are given, exact: repeated from the start where they are shorter than a parameter.
struct Exact<'a>(&'a [Vec<f64>]);

impl Inputs<Spread> for Exact<'_> {
    fn elements(
        &self,
        parameter: usize,
        name: &str,
        extents: &[usize],
        held: Option<&[Picked]>,
    ) -> Result<Vec<Spread>, SimulateError> {
        let n = block::count(extents).map_err(SimulateError::Malformed)?;
        let fits = |data: &&Vec<f64>| (1..=n).contains(&data.len());
        let data = self.0.get(parameter).filter(fits);
        let data = data.ok_or_else(|| {
            SimulateError::Malformed(format!("`{name}` should have {n} elements"))
        })?;
        let Some(held) = held else {
            return Ok(Vec::new());
        };
        Ok(flat(extents, held)
            .map(|at| Spread::constant(data[at as usize % data.len()]))
            .collect())
    }
}

/// A number and the standard deviation of its error.
#[derive(Clone, Copy, Debug)]
struct Spread {
    value: f64,
    deviation: f64,
}

/// Half of the distance from 1 to its neighbour in f32.
const UNIT: f64 = 1.0 / 16_777_216.0;
/// Sums of squares of which no digits are lost.
const SQUARES: std::ops::Range<f64> = 1e-270..1e300;

impl Spread {
    /// A result whose operands alone would give it deviations.
    fn rounded(value: f64, parts: [f64; 2], units: f64) -> Self {
        if !value.is_finite() {
            return Self {
                value,
                deviation: 0.0,
            };
        }
        let own = units * UNIT * value.abs();
        Self {
            value,
            deviation: parts[0].hypot(parts[1]).hypot(own),
        }
    }
}

/// A product in which zero wins over infinity.
fn times(a: f64, b: f64) -> f64 {
    if a == 0.0 || b == 0.0 {
        0.0
    } else {
        (a * b).abs()
    }
}

impl Scalar for Spread {
    fn real(&self) -> f64 {
        self.value
    }
    fn constant(value: f64) -> Self {
        Self {
            value,
            deviation: 0.0,
        }
    }
    fn integer(value: i64) -> Self {
        Self::constant(value as f64)
    }
    fn add(self, y: Self) -> Self {
        let value = self.value + y.value;
        // Nothing is rounded where nothing is added.
        let units = if self.value == 0.0 || y.value == 0.0 {
            0.0
        } else {
            1.0
        };
        Self::rounded(value, [self.deviation, y.deviation], units)
    }
    fn mul(self, y: Self) -> Self {
        let parts = [
            times(y.value, self.deviation),
            times(self.value, y.deviation),
        ];
        Self::rounded(self.value * y.value, parts, 1.0)
    }
    fn div(self, y: Self) -> Self {
        let value = self.value / y.value;
        let parts = [self.deviation, times(value, y.deviation)];
        let parts = parts.map(|d| if d == 0.0 { 0.0 } else { (d / y.value).abs() });
        Self::rounded(value, parts, 1.0)
    }
    fn max(self, y: Self) -> Self {
        let value = Scalar::max(self.value, y.value);
        let infinite = !value.is_finite();
        Self {
            value,
            deviation: if infinite {
                0.0
            } else {
                self.deviation.max(y.deviation)
            },
        }
    }
    fn function(function: Function, x: &[Self]) -> Self {
        let row = functions::row(function);
        let (values, deviations) = (padded(x, |x| x.value), padded(x, |x| x.deviation));
        let (values, deviations) = (&values[..x.len()], &deviations[..x.len()]);
        let value = (row.real)(values);
        let part = (row.deviation)(values, value, deviations);
        Self::rounded(value, [part, 0.0], row.roundings)
    }
    fn select(self, x: Self, y: Self) -> Self {
        let (chosen, other) = if self.value >= 0.0 { (x, y) } else { (y, x) };
        let near = self.deviation > 0.0 && self.value.abs() <= super::DEVIATIONS * self.deviation;
        if !near || !chosen.value.is_finite() {
            return chosen;
        }
        Self {
            value: chosen.value,
            deviation: chosen.deviation.max((other.value - chosen.value).abs()),
        }
    }
    fn holds(&self) -> Option<bool> {
        Some(self.value >= 0.0)
    }
    // What of a row's time all but nothing else takes: one root for each product, where the squares neither overflow nor vanish.
    fn add_products<'a>(sums: &mut [Self], x: Self, y: impl IntoIterator<Item = &'a Self>) {
        for (sum, y) in sums.iter_mut().zip(y) {
            let product = x.value * y.value;
            let value = sum.value + product;
            let parts = [y.value * x.deviation, x.value * y.deviation, sum.deviation];
            let added = if sum.value == 0.0 || product == 0.0 {
                0.0
            } else {
                value
            };
            let own = [product, added].map(|v| UNIT * v);
            let squares = parts.iter().chain(&own).map(|d| d * d).sum::<f64>();
            let nothing = product == 0.0 && parts == [0.0; 3];
            *sum = match value.is_finite() && (SQUARES.contains(&squares) || nothing) {
                true => Self {
                    value,
                    deviation: squares.sqrt(),
                },
                false => sum.add(x.mul(*y)),
            };
        }
    }
    fn round(self, dtype: Dtype) -> Self {
        // Half a unit in the last place at most, and a third of its square on average.
        let own = super::ulp(dtype, self.value.abs()) / 12f64.sqrt();
        Self {
            deviation: self.deviation.hypot(own),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    // Oracle: one operation after the other, which takes each root by itself.
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn number(rng: &mut ChaCha8Rng) -> f64 {
        let exponent = match rng.random_range(0..10) {
            0 => return f64::INFINITY,
            1 => return f64::NAN,
            2..4 => return 0.0,
            4..6 => rng.random_range(-300..300),
            _ => rng.random_range(-3..3),
        };
        rng.random_range(-1.0..1.0) * 10f64.powi(exponent)
    }

    fn spread(rng: &mut ChaCha8Rng) -> Spread {
        let deviation = number(rng).abs();
        Spread {
            value: number(rng),
            deviation,
        }
    }

    #[test]
    fn products_are_added_as_one_operation_after_the_other() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let alike = |a: f64, b: f64| {
            let close = b.is_finite() && (a - b).abs() <= 1e-14 * b.abs();
            a == b || a.is_nan() && b.is_nan() || close
        };
        for _ in 0..20_000 {
            let (sum, x, y) = (spread(&mut rng), spread(&mut rng), spread(&mut rng));
            let mut got = sum;
            Spread::add_products(std::slice::from_mut(&mut got), x, [&y]);
            let wanted = sum.add(x.mul(y));
            assert!(
                alike(got.value, wanted.value) && alike(got.deviation, wanted.deviation),
                "{got:?} for {wanted:?}: {sum:?} + {x:?} * {y:?}"
            );
        }
    }
}

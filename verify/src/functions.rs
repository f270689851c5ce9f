//! What element-wise functions mean, in each of the number systems in which programs are interpreted.
//!
//! It is said here once more, beside the table of the language in [`ir::functions`], because this crate judges what was made with that one.
//! What is asked of infinities is asked of the function in f64.

use ir::Function;
use ir::field::{Q, Residues};
use ir::random::mix;

/// One row of the table. All take slices of as many members as the function has arguments.
pub(crate) struct FunctionRow {
    /// In f64.
    pub(crate) real: fn(&[f64]) -> f64,
    /// In f32.
    pub(crate) single: fn(&[f32]) -> f32,
    /// Whether it is an exact number of these exact numbers.
    pub(crate) is_exact: fn(&[f64]) -> bool,
    /// Of `x`, `f(x)` and `δ` a bound of `|f(y) − f(x)|` for `|yₖ − xₖ| ≤ δₖ`; infinite where there is none.
    pub(crate) error: fn(&[f64], f64, &[f64]) -> f64,
    /// Of `x`, `f(x)` and the standard deviations of `x` that of `f(x)`, to first order.
    pub(crate) deviation: fn(&[f64], f64, &[f64]) -> f64,
    /// Roundings of the function itself.
    pub(crate) roundings: f64,
    /// Of exact numbers; none where the fields do not know it.
    pub(crate) residues: fn(&[Residues]) -> Option<Residues>,
}

static EXP: FunctionRow = FunctionRow {
    real: |x| x[0].exp(),
    single: |x| x[0].exp(),
    // e^−∞ = 0 and e^0 = 1
    is_exact: |x| x[0] == f64::NEG_INFINITY || x[0] == 0.0,
    // |e^x − e^x̂| ≤ e^x̂·(e^δ − 1)
    error: |_, value, error| finite_product(value, error[0].exp_m1()),
    deviation: |_, value, deviation| finite_product(value, deviation[0].exp_m1()),
    roundings: 2.0,
    residues: |x| x[0].exp(),
};

static LOG: FunctionRow = FunctionRow {
    real: |x| x[0].ln(),
    single: |x| x[0].ln(),
    is_exact: |_| false,
    // |ln x − ln x̂| ≤ δ / (x̂ − δ)
    error: |x, _, error| {
        let room = x[0] - error[0];
        if x[0].is_infinite() || error[0] == 0.0 {
            0.0
        } else if room <= 0.0 {
            f64::INFINITY
        } else {
            error[0] / room
        }
    },
    deviation: |x, _, deviation| match deviation[0] == 0.0 {
        true => 0.0,
        false => deviation[0] / x[0].abs(),
    },
    roundings: 2.0,
    residues: |x| Some(scattered(x)),
};

static SQRT: FunctionRow = FunctionRow {
    real: |x| x[0].sqrt(),
    single: |x| x[0].sqrt(),
    is_exact: |_| false,
    // |√x − √x̂| ≤ δ / (√(x̂ − δ) + √x̂), and ≤ √δ always.
    error: |x, value, error| {
        let room = x[0] - error[0];
        if error[0] == 0.0 {
            0.0
        } else if room <= 0.0 {
            (x[0].abs() + error[0]).sqrt()
        } else {
            error[0] / (room.sqrt() + value)
        }
    },
    deviation: |_, value, deviation| match deviation[0] == 0.0 {
        true => 0.0,
        false => (deviation[0] / (2.0 * value)).min(deviation[0].sqrt()),
    },
    roundings: 1.0,
    residues: |x| Some(x[0].sqrt()),
};

/// A number that follows from some and looks random: what a function is of them that has no identities.
fn scattered(x: &[Residues]) -> Residues {
    let all = x.iter().map(|x| x.p).reduce(|all, p| mix(all) ^ p);
    let all = all.unwrap_or_default();
    Residues::new(mix(all), mix(all ^ Q))
}

/// The row of a function.
#[inline]
pub(crate) fn row(function: Function) -> &'static FunctionRow {
    match function {
        Function::Exp => &EXP,
        Function::Log => &LOG,
        Function::Sqrt => &SQRT,
    }
}

/// A product in which zero wins over infinity: an operand without error contributes none.
#[inline]
pub(crate) fn finite_product(a: f64, b: f64) -> f64 {
    if a == 0.0 || b == 0.0 { 0.0 } else { a * b }
}

#[cfg(test)]
mod tests {
    // Oracle: the meaning in the table of the language, and the function itself at numbers nearby.
    use super::*;

    const NUMBERS: [f64; 9] = [-2.5, -0.5, 0.0, 0.0625, 0.5, 1.0, 1.5, 3.0, 40.0];

    /// All tuples of so many members.
    fn tuples<T: Copy>(members: &[T], arity: usize) -> Vec<Vec<T>> {
        (0..arity).fold(vec![Vec::new()], |all, _| {
            let longer =
                (all.iter()).flat_map(|t| members.iter().map(|x| [&t[..], &[*x]].concat()));
            longer.collect()
        })
    }

    #[test]
    fn meanings_are_those_of_the_language() {
        let infinite = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN];
        let numbers: Vec<f64> = NUMBERS.into_iter().chain(infinite).collect();
        for function in Function::all() {
            for x in tuples(&numbers, function.arity()) {
                let (got, want) = ((row(function).real)(&x), function.apply(&x));
                let same = got == want || (got.is_nan() && want.is_nan());
                assert!(same, "{function:?} of {x:?}: {got}, {want}");
                let single: Vec<f32> = x.iter().map(|x| *x as f32).collect();
                let narrow = f64::from((row(function).single)(&single));
                let near = narrow == want
                    || (narrow.is_nan() && want.is_nan())
                    || (narrow - want).abs() <= 1e-6 * want.abs();
                assert!(near, "{function:?} of {x:?} in f32: {narrow}, {want}");
            }
        }
    }

    #[test]
    fn errors_bound_what_numbers_nearby_give() {
        let mut checked = 0;
        for function in Function::all() {
            let own = row(function);
            for x in tuples(&NUMBERS, function.arity()) {
                let steps = [1e-9, 1e-3, 0.25, 1.0].into_iter().flat_map(|s| [-s, s]);
                let steps: Vec<f64> = steps.collect();
                for steps in tuples(&steps, function.arity()) {
                    let y: Vec<f64> = x.iter().zip(&steps).map(|(x, s)| x + s).collect();
                    let errors: Vec<f64> = x.iter().zip(&y).map(|(x, y)| (y - x).abs()).collect();
                    let value = (own.real)(&x);
                    let bound = (own.error)(&x, value, &errors);
                    let off = ((own.real)(&y) - value).abs();
                    if off.is_nan() {
                        continue;
                    }
                    let room = bound + 4.0 * f64::EPSILON * (value.abs() + off);
                    assert!(
                        off <= room,
                        "{function:?} of {x:?} and {y:?}: {off}, {bound}"
                    );
                    checked += 1;
                }
            }
        }
        assert!(checked > 150, "{checked}");
    }
}

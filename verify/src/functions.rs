//! What element-wise functions of one number mean, in each of the number systems in which programs are interpreted.
//!
//! It is said here once more, beside the table of the language in [`ir::unary`], because this crate judges what was made with that one.
//! What is asked of infinities is asked of the function in f64.

use ir::Unary;
use ir::field::{Q, Residues};
use ir::random::mix;

/// One row of the table.
pub(crate) struct FunctionRow {
    /// In f64.
    pub(crate) real: fn(f64) -> f64,
    /// In f32.
    pub(crate) single: fn(f32) -> f32,
    /// Whether it is an exact number of this exact number.
    pub(crate) is_exact: fn(f64) -> bool,
    /// Of `x`, `f(x)` and `δ` a bound of `|f(y) − f(x)|` for `|y − x| ≤ δ`; infinite where there is none.
    pub(crate) error: fn(f64, f64, f64) -> f64,
    /// Of `x`, `f(x)` and the standard deviation of `x` that of `f(x)`, to first order.
    pub(crate) deviation: fn(f64, f64, f64) -> f64,
    /// Roundings of the function itself.
    pub(crate) roundings: f64,
    /// Of exact numbers; none where the fields do not know it.
    pub(crate) residues: fn(Residues) -> Option<Residues>,
}

static EXP: FunctionRow = FunctionRow {
    real: f64::exp,
    single: f32::exp,
    // e^−∞ = 0 and e^0 = 1
    is_exact: |x| x == f64::NEG_INFINITY || x == 0.0,
    // |e^x − e^x̂| ≤ e^x̂·(e^δ − 1)
    error: |_, value, error| finite_product(value, error.exp_m1()),
    deviation: |_, value, deviation| finite_product(value, deviation.exp_m1()),
    roundings: 2.0,
    residues: Residues::exp,
};

static LOG: FunctionRow = FunctionRow {
    real: f64::ln,
    single: f32::ln,
    is_exact: |_| false,
    // |ln x − ln x̂| ≤ δ / (x̂ − δ)
    error: |x, _, error| {
        let room = x - error;
        if x.is_infinite() || error == 0.0 {
            0.0
        } else if room <= 0.0 {
            f64::INFINITY
        } else {
            error / room
        }
    },
    deviation: |x, _, deviation| match deviation == 0.0 {
        true => 0.0,
        false => deviation / x.abs(),
    },
    roundings: 2.0,
    residues: |x| Some(Residues::new(mix(x.p), mix(x.p ^ Q))),
};

static SQRT: FunctionRow = FunctionRow {
    real: f64::sqrt,
    single: f32::sqrt,
    is_exact: |_| false,
    // |√x − √x̂| ≤ δ / (√(x̂ − δ) + √x̂), and ≤ √δ always.
    error: |x, value, error| {
        let room = x - error;
        if error == 0.0 {
            0.0
        } else if room <= 0.0 {
            (x.abs() + error).sqrt()
        } else {
            error / (room.sqrt() + value)
        }
    },
    deviation: |_, value, deviation| match deviation == 0.0 {
        true => 0.0,
        false => (deviation / (2.0 * value)).min(deviation.sqrt()),
    },
    roundings: 1.0,
    residues: |x| Some(x.sqrt()),
};

/// The row of a function.
#[inline]
pub(crate) fn row(function: Unary) -> &'static FunctionRow {
    match function {
        Unary::Exp => &EXP,
        Unary::Log => &LOG,
        Unary::Sqrt => &SQRT,
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

    #[test]
    fn meanings_are_those_of_the_language() {
        let infinite = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN];
        for function in Unary::all() {
            for x in NUMBERS.into_iter().chain(infinite) {
                let (got, want) = ((row(function).real)(x), function.apply(x));
                let same = got == want || (got.is_nan() && want.is_nan());
                assert!(same, "{function:?} of {x}: {got}, {want}");
                let narrow = f64::from((row(function).single)(x as f32));
                let near = narrow == want
                    || (narrow.is_nan() && want.is_nan())
                    || (narrow - want).abs() <= 1e-6 * want.abs();
                assert!(near, "{function:?} of {x} in f32: {narrow}, {want}");
            }
        }
    }

    #[test]
    fn errors_bound_what_numbers_nearby_give() {
        let mut checked = 0;
        for function in Unary::all() {
            let own = row(function);
            for x in NUMBERS {
                for step in [1e-9, 1e-3, 0.25, 1.0] {
                    for y in [x - step, x + step] {
                        let value = (own.real)(x);
                        let bound = (own.error)(x, value, (y - x).abs());
                        let off = ((own.real)(y) - value).abs();
                        if off.is_nan() {
                            continue;
                        }
                        let room = bound + 4.0 * f64::EPSILON * (value.abs() + off);
                        assert!(off <= room, "{function:?} of {x} and {y}: {off}, {bound}");
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 150, "{checked}");
    }
}

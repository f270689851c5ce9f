//! How an output of integers or booleans is judged: element by element, and as equal or not.

use super::{Errors, Judged, Limits, missable, tiny};
use ir::Dtype;
use rayon::prelude::*;

/// From here on f32 does not hold every integer.
const EXACT: f64 = 16_777_216.0;
/// Elements that one task looks at.
const PIECE: usize = 1 << 16;
/// Where most digits are looked for, so many elements of all may be other ones.
const FEW: u64 = 16;

/// What a part of an output shows.
#[derive(Clone, Copy, Default)]
struct Seen {
    errors: Errors,
    /// The first element that is neither right nor as the baseline has it.
    other: Option<usize>,
    /// How many of them there are.
    others: u64,
    /// `Σe²`, `Σb²`, `Σt²`
    squares: [f64; 3],
}

/// Judges an output whose elements have no fractions. Nothing is in doubt afterwards.
pub(super) fn judge(got: &[f64], reference: &[f64], baseline: &[f64], limits: Limits) -> Judged {
    let usual = usual(reference, baseline, limits.dtype);
    let pieces = got.par_chunks(PIECE).zip(reference.par_chunks(PIECE));
    let seen: Vec<Seen> = (pieces.zip(baseline.par_chunks(PIECE)).enumerate())
        .map(|(n, ((g, r), b))| look(n * PIECE, g, r, b, usual, &limits))
        .collect();
    let mut all = Seen::default();
    for seen in seen {
        all.join(seen);
    }
    let Seen {
        mut errors,
        other,
        others,
        squares,
    } = all;
    let right = errors.compared - errors.lost;
    let mut most = missable(errors.lost, right);
    if !limits.sets_aside {
        most += errors.compared / FEW;
    }
    errors.missed = others;
    if others > 0 {
        errors.ratios.row = others as f64 / most as f64;
    }
    errors.worst = errors.ratios.worst();
    let [e, b, t] = squares.map(f64::sqrt);
    if t > 0.0 {
        (errors.rms, errors.baseline_rms) = (e / t, b / t);
    }
    let kind = other.filter(|_| others > most).map(|at| {
        format!(
            "element {at} is {}, the reference {:?}: {others} of {} elements are others than it stores, of the baseline's {}",
            got[at], reference[at], errors.compared, errors.lost
        )
    });
    Judged {
        errors,
        kind,
        whole: None,
        doubts: Vec::new(),
        usual,
        missed: others,
        missable: most,
        limits,
    }
}

/// The baseline's worst relative error where f32 does not hold every integer.
fn usual(reference: &[f64], baseline: &[f64], dtype: Dtype) -> f64 {
    let large = reference.iter().zip(baseline).filter_map(|(r, b)| {
        let stored = dtype.round(*r);
        (stored.abs() >= EXACT).then(|| (b - stored).abs() / stored.abs())
    });
    large.fold(0.0, f64::max)
}

fn look(
    start: usize,
    got: &[f64],
    reference: &[f64],
    baseline: &[f64],
    usual: f64,
    limits: &Limits,
) -> Seen {
    let mut seen = Seen::default();
    for (at, ((g, r), b)) in got.iter().zip(reference).zip(baseline).enumerate() {
        seen.errors.elements += 1;
        if r.is_nan() {
            seen.errors.undefined += 1;
            continue;
        }
        seen.errors.compared += 1;
        let stored = limits.dtype.round(*r);
        let right = |x: f64| {
            let apart = (x - stored).abs();
            let size = stored.abs();
            x == stored
                || size >= EXACT && apart <= limits.factor * usual * size + limits.floor(size)
                || limits.dtype == Dtype::Bool && *r != 0.0 && r.abs() <= tiny(limits.dtype)
        };
        seen.errors.lost += u64::from(!right(*b));
        if !right(*g) && g != b {
            seen.others += 1;
            seen.other.get_or_insert(start + at);
        }
        let (e, b) = (g - stored, b - stored);
        for (sum, x) in seen.squares.iter_mut().zip([e, b, stored]) {
            *sum += x * x;
        }
    }
    seen
}

impl Seen {
    fn join(&mut self, later: Self) {
        let (errors, more) = (&mut self.errors, later.errors);
        errors.elements += more.elements;
        errors.compared += more.compared;
        errors.undefined += more.undefined;
        errors.lost += more.lost;
        self.other = self.other.or(later.other);
        self.others += later.others;
        for (sum, more) in self.squares.iter_mut().zip(later.squares) {
            *sum += more;
        }
    }
}

#[cfg(test)]
mod tests {
    // Oracle: counts of elements that are changed by hand.
    use super::super::{Roundings, screen};
    use super::*;
    use ir::Reject;

    fn limits(dtype: Dtype) -> Limits {
        let text = format!(
            "program p\naxis i = 4\nx = parameter f32 [i]\nreturn {} [i] x\n",
            dtype.name()
        );
        Limits::of(&text.parse().expect("a program"), Roundings::Spread)[0]
    }

    fn stored(dtype: Dtype, all: &[f64]) -> Vec<f64> {
        all.iter().map(|x| dtype.round(*x)).collect()
    }

    #[test]
    fn whole_numbers_are_right_or_not() {
        let reference: Vec<f64> = (0..64).map(|n| f64::from(n) * 1.7 - 50.0).collect();
        let own = stored(Dtype::I32, &reference);
        let judge = |got: &[f64]| screen(got, &reference, &own, 8, limits(Dtype::I32));
        let errors = judge(&own).expect("equal");
        assert_eq!((errors.elements, errors.compared), (64, 64));
        assert_eq!((errors.missed, errors.lost, errors.worst), (0, 0, 0.0));
        for at in [0, 29, 63] {
            for by in [1.0, -1.0] {
                let mut got = own.clone();
                got[at] += by;
                let found = judge(&got).expect_err("another number");
                let Reject::Wrong(text) = &found else {
                    panic!("{found}");
                };
                assert!(
                    text.starts_with(&format!("element {at} is {}", got[at])),
                    "{text}"
                );
                assert!(
                    text.ends_with(
                        "1 of 64 elements are others than it stores, of the baseline's 0"
                    ),
                    "{text}"
                );
            }
        }
        // To the nearest, and not towards zero.
        let nearest: Vec<f64> = reference.iter().map(|x| x.round()).collect();
        assert!(judge(&nearest).is_err());
    }

    #[test]
    fn near_ties_are_missed_as_often_as_the_baseline_misses_them() {
        let reference: Vec<f64> = (0..400).map(f64::from).collect();
        let mut own = reference.clone();
        for at in [3, 40, 77, 200] {
            own[at] = 5000.0;
        }
        let judge = |places: std::ops::Range<usize>, to: f64| {
            let mut got = reference.clone();
            got[places].fill(to);
            screen(&got, &reference, &own, 20, limits(Dtype::I64))
        };
        // Of four, 2·4 + 4·√4.
        let errors = judge(100..116, -1.0).expect("as many");
        assert_eq!((errors.missed, errors.lost), (16, 4));
        assert_eq!(errors.worst, 1.0);
        assert!(judge(100..117, -1.0).is_err());
        // What the baseline has is no miss.
        assert_eq!(judge(3..4, 5000.0).expect("the same").missed, 0);
        // An eighth of what is left at most.
        let few = &reference[..16];
        let got: Vec<f64> = few.iter().map(|x| x + 1.0).collect();
        assert!(screen(&got, few, &[9.0; 16], 4, limits(Dtype::I64)).is_err());
    }

    #[test]
    fn what_f32_does_not_hold_may_be_off_and_bounds_are_kept() {
        let reference = [16_777_217.0, 3e9, -1e30, f64::INFINITY, f64::NAN];
        let own = [16_777_216.0, 3e9, -2f64.powi(63), 2f64.powi(63), 0.0];
        let judge = |got: &[f64]| screen(got, &reference, &own, 5, limits(Dtype::I64));
        let errors = judge(&own).expect("as f32 has them");
        assert_eq!((errors.compared, errors.undefined), (4, 1));
        let with = |at: usize, to: f64| {
            let mut got = own;
            got[at] = to;
            got
        };
        assert!(judge(&with(0, 16_777_220.0)).is_ok());
        assert!(judge(&with(0, 16_777_216.0 - 40.0)).is_err());
        assert!(judge(&with(1, 3.1e9)).is_err());
        assert!(judge(&with(2, 0.0)).is_err());
        assert!(judge(&with(3, -2f64.powi(63))).is_err());
        assert!(judge(&with(4, 7.0)).is_ok());
    }

    #[test]
    fn truth_is_asked_of_what_f32_holds() {
        let reference = [0.0, 1e-3, -2.0, 1e-60, f64::INFINITY];
        let own = [0.0, 1.0, 1.0, 0.0, 1.0];
        let judge = |got: &[f64]| screen(got, &reference, &own, 5, limits(Dtype::Bool));
        assert!(judge(&own).is_ok());
        assert!(judge(&stored(Dtype::Bool, &reference)).is_ok());
        for at in [0, 1, 2, 4] {
            let mut got = own;
            got[at] = 1.0 - got[at];
            assert!(judge(&got).is_err(), "{at}");
        }
    }
}

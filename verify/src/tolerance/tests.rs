// Oracle: the inequalities of the module documentation, at their edges.
use super::*;

const F16: Limits = Limits {
    dtype: Dtype::F16,
    factor: 2.0,
    row: 1.5,
    rms: 0.25,
    bias: Some(0.125),
    share: 0.125,
    bin: Some(1.0),
    cut: 0.0,
    sets_aside: true,
};

/// Numbers of one sign and every magnitude of four binades, and roundings of them that average out.
fn numbers(n: usize) -> (Vec<f64>, Vec<f64>) {
    let want: Vec<f64> = (0..n)
        .map(|i| 2f64.powf(4.0 * (i as f64 * 0.618_033_988_749).fract()))
        .collect();
    let base = want.iter().map(|x| Dtype::F16.round(*x)).collect();
    (want, base)
}

fn check(got: &[f64], want: &[f64], base: &[f64]) -> Result<Errors, Reject> {
    compare(got, want, base, 4, Dtype::F16, Tolerance::default())
}

#[test]
fn errors_are_measured_by_row() {
    let want = [1.0, 2.0, 3.0, 4.0, 100.0, 200.0, 300.0, 400.0];
    assert!(check(&want, &want, &want).is_ok());
    let mut off = want;
    // 4 units at 4 are 4 · 2^−8.
    off[0] += 0.99 * 4.0 / 256.0;
    assert!(check(&off, &want, &want).is_ok());
    off[0] += 0.02 * 4.0 / 256.0;
    assert!(check(&off, &want, &want).is_err());
    // The same error is allowed where the baseline has half of it, or in the row of larger numbers.
    let mut base = want;
    base[3] += 0.5 / 256.0;
    assert!(check(&off, &want, &base).is_ok());
    let mut off = want;
    off[4] += 1.01 * 4.0 / 256.0;
    assert!(check(&off, &want, &want).is_ok());
}

#[test]
fn small_errors_everywhere_are_too_many() {
    // Each element is within the floor of its row; the RMS is of them all.
    let (want, base) = numbers(4000);
    let off = |units: f64| -> Vec<f64> {
        let signs = [1.0, -1.0].into_iter().cycle();
        let pairs = want.iter().zip(signs);
        pairs
            .map(|(x, sign)| x * (1.0 + sign * units / 1024.0))
            .collect()
    };
    let judge = |units| screen(&off(units), &want, &base, 4000, F16);
    assert!(judge(0.5).is_ok(), "{:?}", judge(0.5));
    assert!(judge(1.4).is_err(), "{:?}", judge(1.4));
}

#[test]
fn a_factor_shows_as_bias() {
    let (want, base) = numbers(4000);
    let times =
        |factor: f64| -> Vec<f64> { want.iter().map(|x| Dtype::F16.round(x * factor)).collect() };
    let judge = |factor| screen(&times(factor), &want, &base, 4000, F16);
    for sign in [1.0, -1.0] {
        let fine = judge(1.0 + sign * 0.1 / 1024.0).expect("a tenth of a unit");
        assert!((fine.bias - sign * 0.1 / 1024.0).abs() < 3e-5, "{fine:?}");
        let Err(Reject::Wrong(what)) = judge(1.0 + sign * 0.3 / 1024.0) else {
            panic!("0.3 of a unit");
        };
        assert!(what.contains("too large by"), "{what}");
    }
    // What the baseline has is allowed, and so is more where few elements average.
    let third = times(1.0 + 0.3 / 1024.0);
    assert!(screen(&third, &want, &third, 4000, F16).is_ok());
    let few = screen(&third[..9], &want[..9], &base[..9], 9, F16);
    assert!(few.is_ok(), "{few:?}");
}

#[test]
fn the_standard_error_of_a_bias_is_what_the_documentation_says() {
    // 0.29 ε / √n, of which 2 is seven: over many draws none comes near, and some come near a third.
    let mut worst = 0.0f64;
    for draw in 0..300u32 {
        let want: Vec<f64> = (0..400)
            .map(|i| 1.0 + (f64::from(draw * 400 + i) * 0.618_033_988_749_895).fract())
            .collect();
        let base: Vec<f64> = want.iter().map(|x| Dtype::F16.round(*x)).collect();
        let errors = screen(&base, &want, &want, 400, F16).expect("a rounding");
        worst = worst.max(errors.bias.abs() * 1024.0 * 20.0);
    }
    assert!(worst < 1.5 && worst > 0.1, "{worst}");
}

#[test]
fn what_is_small_is_judged_by_itself() {
    // One large element decides what its row allows, the many small ones are gone.
    let (want, base) = numbers(400);
    let want: Vec<f64> = want.iter().map(|x| x / 4096.0).chain([1.0]).collect();
    let base: Vec<f64> = base.iter().map(|x| x / 4096.0).chain([1.0]).collect();
    assert!(screen(&base, &want, &base, 401, F16).is_ok());
    let mut gone = base.clone();
    gone[..400]
        .iter_mut()
        .filter(|x| **x < 2.0 / 4096.0)
        .for_each(|x| *x = 0.0);
    let tight = Limits {
        row: 1e3,
        rms: 1e3,
        bias: None,
        ..F16
    };
    let Err(Reject::Wrong(what)) = screen(&gone, &want, &base, 401, tight) else {
        panic!("small elements are gone");
    };
    assert!(what.contains("elements of about 2.44140625e-4"), "{what}");
    // What is below the smallest subnormal number may be gone.
    let scale = |x: &[f64]| -> Vec<f64> { x.iter().map(|x| x / 8192.0).collect() };
    let (want, gone) = (scale(&want), scale(&gone));
    let all_gone: Vec<f64> = gone.iter().map(|_| 0.0).collect();
    let tiny: Vec<f64> = want.iter().map(|x| x / 8192.0).collect();
    assert!(screen(&all_gone, &tiny, &tiny, 401, F16).is_ok());
}

#[test]
fn kinds_agree() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let one = |got: f64, want: f64| {
        compare(
            &[got],
            &[want],
            &[want],
            1,
            Dtype::F16,
            Tolerance::default(),
        )
        .is_ok()
    };
    for (got, want, pass) in [
        // The program defines no value.
        (nan, nan, true),
        (1.0, nan, true),
        (nan, 1.0, false),
        (inf, inf, true),
        (-inf, inf, false),
        (nan, inf, false),
        (inf, 1e6, true),
        (65504.0, 1e6, false),
        (f64::INFINITY, 1.0, false),
        (inf, 65521.0, true),
        (65504.0, 65521.0, true),
        (inf, 65500.0, true),
        (inf, 60000.0, false),
        (nan, 1e6, false),
    ] {
        assert_eq!(one(got, want), pass, "{got} for {want}");
    }
    let errors = check(
        &[nan, 1.0, inf, 2.0],
        &[nan, 1.0, inf, nan],
        &[nan, 1.0, inf, nan],
    );
    let errors = errors.expect("they agree");
    assert_eq!(
        (errors.elements, errors.compared, errors.undefined),
        (4, 2, 2)
    );
}

#[test]
fn where_f32_overflows_so_may_the_candidate() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let of = |got: f64, want: f64, base: f64| {
        let fill = |x: f64| [1.0, 2.0, 3.0, x];
        check(&fill(got), &fill(want), &fill(base)).is_ok()
    };
    assert!(of(nan, 1.0, nan) && of(inf, 1.0, nan) && of(nan, 1e9, inf));
    assert!(!of(nan, 1.0, 1.0) && !of(nan, 1e9, 1e9) && !of(2.0, 1.0, nan));
}

#[test]
fn lost_rows_are_looked_at_again() {
    let want = [1.0, 2.0, 3.0, 4.0];
    let settle = |got: [f64; 4], base: [f64; 4], deviation: Option<f64>| {
        let judged = judge(&got, &want, &base, 4, F16).expect("the same lengths");
        let deviations = deviation.map(|d| want.map(|x| x * d).to_vec());
        judged.settle(&got, &want, &base, |_| deviations.clone())
    };
    let off = want.map(|x| x * 1.5);
    for base in [[0.0; 4], [f64::NAN; 4]] {
        // Right, or like the baseline.
        let right = settle(want, base, Some(1e-7)).expect("it is right");
        assert_eq!((right.lost, right.compared), (4, 4));
        assert!(settle(base, base, Some(1e-7)).is_ok());
        assert!(settle(off, base, Some(1e-7)).is_err());
        // Cancellation takes digits from everything that f32 computes.
        assert!(settle(off, base, Some(0.1)).is_ok());
    }
    // Where nobody can say, the baseline's error is what there is.
    assert!(settle(off, [0.0; 4], None).is_ok());
    assert!(settle(want.map(|x| x * 4.0), [0.0; 4], None).is_err());
}

#[test]
fn rows_and_pieces_of_rows_are_judged_alike() {
    // Longer than a piece, and so many that threads share them.
    for (rows, row) in [
        (3, LONGEST + 5),
        (1, 3 * LONGEST),
        (300_000, 1),
        (70_001, 3),
    ] {
        let (want, base) = numbers(rows * row);
        let errors = screen(&base, &want, &base, row, F16).expect("it is the baseline");
        assert_eq!(errors.compared, (rows * row) as u64);
        let mut off = base.clone();
        *off.last_mut().expect("an element") += 1.0;
        let Err(Reject::Wrong(what)) = screen(&off, &want, &base, row, F16) else {
            panic!("{rows} rows of {row}");
        };
        assert!(
            what.contains(&format!("element {}", rows * row - 1)),
            "{what}"
        );
    }
}

/// Rows in which luck decides: the baseline gets some of them wrong, a candidate others, and nobody can say how far off they may be.
#[test]
fn luck_is_counted_in_rows() {
    const ROW: usize = 16;
    let reference: Vec<f64> = (0..400 * ROW)
        .map(|n| (n as f64 * 0.7).sin() + 0.01)
        .collect();
    let with = |off: &[usize], by: f64| {
        let mut values = reference.clone();
        for row in off {
            for x in &mut values[row * ROW..(row + 1) * ROW] {
                *x = Dtype::F32.round(*x * (1.0 + by));
            }
        }
        values
    };
    let judged = |got: &[f64], baseline: &[f64]| {
        let limits = Limits::new(Dtype::F32, 0.0);
        let judged = judge(got, &reference, baseline, ROW, limits)?;
        judged.settle(got, &reference, baseline, |_| None)
    };
    let few: Vec<usize> = (0..400).step_by(40).collect();
    let baseline = with(&few, 0.15);
    let other = |n: usize| (0..n).map(|k| 40 * (k % 10) + 1 + k / 10);
    let others: Vec<usize> = other(25).collect();
    let errors = judged(&with(&others, -1.9), &baseline).expect("as many as luck gives");
    assert!(
        errors.missed > 0 && errors.lost == 10 * ROW as u64,
        "{errors:?}"
    );
    // The same rows, farther off.
    judged(&with(&few, -1.9), &baseline).expect("ten rows");
    let both = [&few[..], &others].concat();
    let many: Vec<usize> = other(60).collect();
    for (off, of) in [
        (&both, &baseline),
        (&many, &baseline),
        (&others, &reference),
    ] {
        assert!(judged(&with(off, -1.9), of).is_err(), "{} rows", off.len());
    }
    assert!(judged(&with(&few[..1], -1.9), &reference).is_err());
}

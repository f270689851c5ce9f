//! The correction, beside the rule that made up its rows.

use super::*;

/// Rows of groups, each with a factor of its own, where what is busy longer takes `bias` times that share more.
fn rows(groups: u64, each: u64, bias: f64) -> Vec<Row> {
    let mut state = 7u64;
    let mut random = move || {
        // A linear congruential generator (Knuth's MMIX constants).
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut rows = Vec::new();
    for group in 0..groups {
        let own = 1.0 + group as f64 / 4.0;
        for _ in 0..each {
            let us = 10.0 + 90.0 * random();
            let mut parts = Parts::default();
            parts[Part::All] = us;
            parts[Part::Tensor] = us * random();
            parts[Part::Loads] = us * random();
            let measured_us = own * us * (bias * parts[Part::Tensor] / us).exp();
            rows.push(Row {
                group: group.to_string(),
                kernels: vec![Features::new(&parts, us)],
                measured_us,
            });
        }
    }
    rows
}

/// How far a correction is off, up to a factor of each group: the deviation of the logarithm.
fn error(correction: &Correction, rows: &[Row]) -> f64 {
    let left = |row: &Row| (row.measured_us / correction.us(&row.kernels[0])).ln();
    let left: Vec<f64> = rows.iter().map(left).collect();
    let mean = left.iter().sum::<f64>() / left.len() as f64;
    let squares = left.iter().map(|x| (x - mean).powi(2));
    (squares.sum::<f64>() / left.len() as f64).sqrt()
}

#[test]
fn a_bias_is_found_whatever_the_groups_factors() {
    let known = rows(5, 40, 0.6);
    let fit = Correction::fit(&known);
    let new = rows(6, 40, 0.6).split_off(200);
    let (bare, corrected) = (error(&Correction::default(), &new), error(&fit, &new));
    assert!(corrected < 0.25 * bare, "{corrected} and {bare}");
}

#[test]
fn few_rows_say_nothing() {
    let few = rows(1, FEWEST as u64 - 1, 0.6);
    let groups_of_few = rows(40, FEWEST_OF_GROUP as u64 - 1, 0.6);
    for rows in [&[][..], &few, &groups_of_few] {
        let fit = Correction::fit(rows);
        assert_eq!(fit, Correction::default());
        assert!(
            few.iter()
                .all(|r| fit.us(&r.kernels[0]) == r.kernels[0].clock_us)
        );
        assert_eq!(fit.refined(&few), fit);
    }
}

#[test]
fn what_is_no_number_is_left_out() {
    let mut known = rows(5, 40, 0.6);
    let fit = Correction::fit(&known);
    let mut broken = rows(1, 3, 0.6);
    broken[0].measured_us = f64::NAN;
    broken[1].kernels.clear();
    broken[2].kernels[0].clock_us = f64::INFINITY;
    known.extend(broken);
    assert_eq!(fit, Correction::fit(&known));
}

#[test]
fn a_factor_has_bounds() {
    let fit = Correction::fit(&rows(5, 40, 0.6));
    let mut strange = rows(1, 1, 0.0)[0].kernels[0].clone();
    for value in [1e6, -1e6, f64::NAN] {
        strange.values = [value; COUNT];
        let factor = fit.us(&strange) / strange.clock_us;
        assert!((0.33..3.01).contains(&factor), "{factor}");
    }
}

#[test]
fn own_rows_refine_what_others_say() {
    let fit = Correction::fit(&rows(5, 40, 0.2));
    let own = rows(1, 40, -0.4);
    let (known, new) = own.split_at(20);
    let refined = fit.refined(known);
    let (before, after) = (error(&fit, new), error(&refined, new));
    assert!(after < 0.5 * before, "{after} and {before}");
    assert_eq!(fit.refined(&own[..FEWEST_OF_GROUP - 1]), fit);
}

#[test]
fn it_is_the_same_each_time_and_as_text() {
    let known = rows(5, 40, 0.6);
    let fit = Correction::fit(&known);
    assert_eq!(fit, Correction::fit(&known));
    let text = serde_json::to_string(&fit).expect("a text");
    assert_eq!(
        serde_json::from_str::<Correction>(&text).expect("reads"),
        fit
    );
}

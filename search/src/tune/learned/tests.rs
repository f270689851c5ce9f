//! The correction, beside the rule that made up its rows, and beside what was measured on a GPU.

use super::*;
use crate::targets::target;
use rayon::prelude::*;
use std::path::Path;

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

/// Folders of recorded trials.
const FOLDERS: [&str; 2] = ["trials-h200-2026-11-24", "trials-h200-2026-11-24-2"];
/// Trials of a group below which their order says little.
const FEWEST_ORDERED: usize = 6;

/// Recorded trials, each with its program: of whole programs, and of kernels alone.
fn recorded() -> Vec<(String, Row)> {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/results");
    let mut lines = Vec::new();
    for folder in FOLDERS {
        let files = std::fs::read_dir(results.join(folder)).expect("a folder of trials");
        let mut files: Vec<_> = files.map(|f| f.expect("a file").path()).collect();
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(file).expect("a text");
            lines.extend(text.lines().map(str::to_owned));
        }
    }
    let target = target("h200").expect("a target");
    let row = |line: &String| -> Option<(String, Row)> {
        let trial: serde_json::Value = serde_json::from_str(line).expect("a trial");
        let text = |name: &str| trial[name].as_str().expect("a text").to_owned();
        let program = text("program");
        let tile = TileProgram::unchecked(&text("tile")).ok()?;
        let language = codegen::language();
        let schedule = Schedule::parse(&text("schedule"), "schedule", &language, &tile).ok()?;
        let row = Row {
            group: format!("{program}, whole: {}", trial["whole"]),
            kernels: Features::all(&tile, &schedule, &target).ok()?,
            measured_us: trial["measured"]["warm"]["median_us"].as_f64()?,
        };
        Some((program, row))
    };
    lines.par_iter().filter_map(row).collect()
}

/// The share of pairs of a group that are in the order in which they were measured, in the mean over groups.
fn in_order(rows: &[(String, Row)], predicted: &[f64]) -> f64 {
    let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for ((_, row), us) in rows.iter().zip(predicted) {
        let group = groups.entry(&row.group).or_default();
        group.push((*us, row.measured_us));
    }
    groups.retain(|_, group| group.len() >= FEWEST_ORDERED);
    let share = |group: &Vec<(f64, f64)>| {
        let pairs = (0..group.len()).flat_map(|y| (0..y).map(move |x| (group[x], group[y])));
        let differ = pairs.filter(|((_, m), (_, n))| m != n);
        let agree: Vec<bool> = differ
            .map(|((p, m), (q, n))| p != q && (p < q) == (m < n))
            .collect();
        agree.iter().filter(|a| **a).count() as f64 / agree.len() as f64
    };
    groups.values().map(share).sum::<f64>() / groups.len() as f64
}

#[test]
fn programs_that_it_did_not_see_are_ordered_better_than_by_the_clock() {
    let rows = recorded();
    assert!(rows.len() > 1500, "{} trials can be read", rows.len());
    let clock = |(_, row): &(String, Row)| row.kernels.iter().map(|k| k.clock_us).sum();
    let bare = in_order(&rows, &rows.iter().map(clock).collect::<Vec<f64>>());
    let corrected = in_order(&rows, &held_back(&rows));
    assert!(
        corrected > bare + 0.01,
        "{corrected} of pairs, {bare} by the clock"
    );
}

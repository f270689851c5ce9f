//! `diff`: what differs between two artifacts, and what each costs.

use crate::cli::{Failure, show::Contents};
use serde_json::{Value, json};
use similar::TextDiff;
use std::fmt::Write;
use std::path::Path;
use tilewright::artifact::Manifest;
use tilewright::device::gpu::TimedOn;
use tilewright::search::cost::cost;

/// Lines around one that differs.
const AROUND: usize = 2;

/// What an artifact's kernels take, by the models and by measurement, in microseconds.
struct Costs {
    roofline: f64,
    /// Of each kernel.
    clock: Vec<f64>,
    /// Warm and cold.
    measured: Option<[f64; 2]>,
    /// Where that was.
    timed_on: Option<String>,
}

impl Costs {
    fn of(contents: &Contents) -> Result<Self, Failure> {
        let manifest = contents.artifact.manifest();
        let target = tilewright::target(&manifest.target.name).map_err(Failure::refused)?;
        let clocked = cost(&contents.tile, Some(&contents.schedule), &target);
        let measured = manifest.measured_us.as_ref();
        Ok(Self {
            roofline: cost(&contents.tile, None, &target).us,
            clock: clocked.kernels.iter().map(|kernel| kernel.us).collect(),
            measured: measured.map(|m| [m.warm.median_us, m.cold.median_us]),
            timed_on: measured
                .and(manifest.timed_on.as_ref())
                .map(TimedOn::to_string),
        })
    }

    fn json(&self, manifest: &Manifest) -> Value {
        json!({
            "program": manifest.program,
            "target": manifest.target.name,
            "state": manifest.state,
            "roofline_us": self.roofline,
            "clock_us": self.clock,
            "measured_us": self.measured.map(|[warm, cold]| json!({"warm": warm, "cold": cold})),
            "timed_on": self.timed_on,
        })
    }

    /// Titles, and what stands beside them.
    fn rows(&self) -> [(&'static str, String); 5] {
        let us = |x: f64| format!("{x:.1}");
        let all = |each: &[f64]| {
            let parts: Vec<String> = each.iter().map(|x| us(*x)).collect();
            match parts.len() {
                1 => parts.concat(),
                _ => format!("{} ({})", us(each.iter().sum()), parts.join(" + ")),
            }
        };
        let measured = |n: usize| self.measured.map_or_else(|| "not".to_owned(), |m| us(m[n]));
        [
            ("roofline us", us(self.roofline)),
            ("clock us", all(&self.clock)),
            ("measured warm us", measured(0)),
            ("measured cold us", measured(1)),
            ("timed on", self.place().to_owned()),
        ]
    }

    fn place(&self) -> &str {
        let unknown = self.measured.map_or("-", |_| "nobody knows what");
        self.timed_on.as_deref().unwrap_or(unknown)
    }

    /// Whether measured times say something beside those of another: the same GPU model, driver and power limit, as far as is known. None where one of the
    /// two has none.
    fn is_beside(&self, other: &Self) -> Option<bool> {
        let both = self.measured.is_some() && other.measured.is_some();
        both.then(|| self.timed_on.is_some() && self.timed_on == other.timed_on)
    }
}

/// What differs, as text or as one JSON object.
pub(crate) fn diff(one: &Path, other: &Path, json: bool) -> Result<String, Failure> {
    let (before, after) = (Contents::checked(one)?, Contents::checked(other)?);
    let costs = [Costs::of(&before)?, Costs::of(&after)?];
    let texts = |contents: &Contents| {
        [
            ("program", contents.program.to_string()),
            (
                "target",
                contents.artifact.manifest().target.name.clone() + "\n",
            ),
            ("expression", contents.expression.to_string()),
            ("tile program", contents.tile.to_string()),
            ("schedule", contents.schedule.text(&contents.tile)),
        ]
    };
    let names = [one.display().to_string(), other.display().to_string()];
    let pairs = texts(&before).into_iter().zip(texts(&after));
    let pairs = pairs.map(|((title, x), (_, y))| {
        let lines = TextDiff::from_lines(&x, &y);
        let mut lines = lines.unified_diff();
        let lines = lines.context_radius(AROUND).header(&names[0], &names[1]);
        (title, lines.to_string())
    });
    let different: Vec<(&str, String)> = pairs.filter(|(_, lines)| !lines.is_empty()).collect();
    if json {
        let lines = different.iter().map(|(title, lines)| {
            let key = title.replace(' ', "_");
            (key, Value::from(lines.as_str()))
        });
        let lines: serde_json::Map<String, Value> = lines.collect();
        let [x, y] = [(&costs[0], &before), (&costs[1], &after)]
            .map(|(costs, contents)| costs.json(contents.artifact.manifest()));
        let comparable = costs[0].is_beside(&costs[1]);
        let all = json!({"differs": lines, "before": x, "after": y, "comparable": comparable});
        return Ok(all.to_string() + "\n");
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    for (title, lines) in &different {
        let _ = writeln!(text, "=== {title} ===\n{}\n", lines.trim_end());
    }
    if different.is_empty() {
        let _ = writeln!(
            text,
            "both have the same program, expression, tile program and schedule\n"
        );
    }
    let rows = costs[0].rows().into_iter().zip(costs[1].rows());
    let rows: Vec<[String; 3]> =
        (rows.map(|((title, x), (_, y))| [title.to_owned(), x, y])).collect();
    let titles = [String::new(), names[0].clone(), names[1].clone()];
    let width = |column: usize| {
        let cells = rows.iter().chain([&titles]);
        cells
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let (first, second) = (width(0), width(1));
    for [title, x, y] in [&titles].into_iter().chain(&rows) {
        let _ = writeln!(text, "{title:<first$}  {x:<second$}  {y}");
    }
    if costs[0].is_beside(&costs[1]) == Some(false) {
        let _ = writeln!(
            text,
            "\ntheir measured times are not to be compared: only those of one GPU model, driver and power limit are"
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::Costs;

    #[test]
    fn times_of_different_places_are_not_compared() {
        let costs = |measured: Option<f64>, timed_on: Option<&str>| Costs {
            roofline: 1.0,
            clock: vec![2.0],
            measured: measured.map(|us| [us, us]),
            timed_on: timed_on.map(str::to_owned),
        };
        let (here, there) = (
            costs(Some(3.0), Some("here")),
            costs(Some(4.0), Some("there")),
        );
        let (nowhere, simulated) = (costs(Some(5.0), None), costs(None, None));
        assert_eq!(here.is_beside(&here), Some(true));
        for other in [&there, &nowhere] {
            assert_eq!(here.is_beside(other), Some(false));
        }
        // Of neither it is known where.
        assert_eq!(nowhere.is_beside(&nowhere), Some(false));
        assert_eq!(here.is_beside(&simulated), None);
    }
}

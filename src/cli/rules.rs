//! `rules`: the identities that the search may use, and the check of a user's own.

use crate::cli::{Failure, Rules, place};
use search::rules::file::{self, Verdict};
use search::rules::property::{self, Exercise};
use search::rules::{RULES, Rule};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Lists the rules, each with what its property test did just now, or checks a file.
pub(crate) fn rules(arguments: &Rules) -> Result<String, Failure> {
    let report = match &arguments.check {
        Some(path) => check(path)?,
        None => list(RULES),
    };
    report.finish(arguments.json)
}

/// What is said of every rule, whatever was found of the others.
#[derive(Default)]
struct Report {
    text: String,
    rows: Vec<Value>,
    refused: Vec<String>,
}

impl Report {
    fn finish(self, as_json: bool) -> Result<String, Failure> {
        let output = if as_json {
            json!({ "rules": self.rows }).to_string() + "\n"
        } else {
            self.text
        };
        if self.refused.is_empty() {
            return Ok(output);
        }
        Err(Failure::unverified(self.refused.join("\n")).after(output))
    }
}

fn held(count: &Exercise) -> String {
    format!(
        "held on {} instances: {} points in f64, {} in prime fields",
        count.instances, count.floating, count.exact
    )
}

fn list(rules: &[Rule]) -> Report {
    let mut report = Report::default();
    for rule in rules {
        let Rule {
            name,
            numerics,
            tier,
            ..
        } = rule;
        let clauses = rule.clauses();
        let text = &mut report.text;
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} ({})", format!("{numerics:?}").to_lowercase());
        for clause in &clauses {
            let _ = writeln!(text, "  {clause}");
        }
        let mut row =
            json!({"name": name, "equations": clauses, "numerics": numerics, "tier": tier});
        match property::exercise(rule) {
            Ok(exercise) => {
                let _ = writeln!(text, "  {}", held(&exercise));
                row["sound"] = json!(true);
                row["exercised"] = json!(exercise);
            }
            Err(fault) => {
                let _ = writeln!(text, "  unsound");
                row["sound"] = json!(false);
                row["counterexample"] = json!(fault.to_string());
                report.refused.push(format!("{name}: unsound\n{fault}"));
            }
        }
        report.rows.push(row);
    }
    report
}

fn check(path: &Path) -> Result<Report, Failure> {
    let source = place::text(path, file::MAX_FILE)?;
    let rules = file::read(&source, &path.display().to_string()).map_err(Failure::refused)?;
    let mut report = Report::default();
    for rule in &rules {
        let found = rule.check().map_err(Failure::refused)?;
        let place = format!("{}:{}: rule `{}`", path.display(), rule.line, rule.name);
        let mut row = json!({"name": rule.name, "line": rule.line});
        match &found {
            Verdict::Sound(count) => {
                // Writing to a string does not fail.
                let _ = writeln!(report.text, "{place}: {}", held(count));
                row["sound"] = json!(true);
                row["exercised"] = json!(count);
            }
            Verdict::Unsound(counterexample) => {
                report
                    .refused
                    .push(format!("{place} is unsound\n{counterexample}"));
                row["sound"] = json!(false);
                row["counterexample"] = json!(counterexample.to_string());
            }
            Verdict::Undecided(count) => {
                report.refused.push(format!(
                    "{place} is undecided: its left side has a value at {} points only, too few to say anything",
                    count.floating
                ));
                row["sound"] = json!(null);
                row["exercised"] = json!(count);
            }
        }
        report.rows.push(row);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsound_rule_does_not_hide_the_others() {
        let row = |name: &str| *RULES.iter().find(|r| r.name == name).expect("a rule");
        // `ln x = x`
        let wrong = Rule {
            rewriting: |_, node| vec![node.args[0]],
            ..row("log-product")
        };
        for as_json in [true, false] {
            let failure = list(&[wrong, row("exp-log")])
                .finish(as_json)
                .expect_err("the first is unsound");
            assert_eq!(failure.code(), 3);
            let message = failure.to_string();
            assert!(
                message.contains("log-product") && !message.contains("exp-log"),
                "{message}"
            );
            let output = failure.output();
            if as_json {
                let report: Value = serde_json::from_str(output).expect("JSON");
                assert_eq!(report["rules"][0]["sound"], false);
                assert!(report["rules"][0]["counterexample"].is_string());
                assert_eq!(report["rules"][1]["sound"], true);
            } else {
                assert!(output.contains("exp-log (real)"), "{output}");
            }
        }
    }
}

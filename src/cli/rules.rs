//! `rules`: the identities that the search may use, and the check of a user's own.

use crate::cli::{Failure, Rules, place};
use search::rules::file::{self, Verdict};
use search::rules::{RULES, Rule, property};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;

/// Lists the rules, each with what its property test did just now, or checks a file.
pub(crate) fn rules(arguments: &Rules) -> Result<String, Failure> {
    match &arguments.check {
        Some(path) => check(path, arguments.json),
        None => list(arguments.json),
    }
}

fn list(as_json: bool) -> Result<String, Failure> {
    let mut text = String::new();
    let mut rows = Vec::new();
    for rule in RULES {
        let Rule {
            name,
            numerics,
            tier,
            ..
        } = rule;
        let exercise = property::exercise(rule)
            .map_err(|e| Failure::unverified(format!("{name}: unsound\n{e}")))?;
        let clauses = rule.clauses();
        rows.push(json!({"name": name, "equations": clauses, "numerics": numerics, "tier": tier, "exercised": exercise}));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} ({})", format!("{numerics:?}").to_lowercase());
        for clause in clauses {
            let _ = write!(text, "  {} = {}", clause.left, clause.right);
            let _ = match clause.condition {
                Some(condition) => writeln!(text, "   for {condition}"),
                None => writeln!(text),
            };
        }
        let _ = writeln!(
            text,
            "  held on {} instances: {} points in f64, {} in prime fields",
            exercise.instances, exercise.floating, exercise.exact
        );
    }
    if as_json {
        text = json!({ "rules": rows }).to_string() + "\n";
    }
    Ok(text)
}

fn check(path: &Path, as_json: bool) -> Result<String, Failure> {
    let source = place::text(path)?;
    let rules = file::read(&source, &path.display().to_string()).map_err(Failure::refused)?;
    let (mut text, mut rows, mut refused) = (String::new(), Vec::new(), Vec::new());
    for rule in &rules {
        let found = rule.check().map_err(Failure::refused)?;
        let place = format!("{}:{}: rule `{}`", path.display(), rule.line, rule.name);
        let row = match &found {
            Verdict::Sound(count) => {
                let _ = writeln!(
                    text,
                    "{place}: held on {} instances: {} points in f64, {} in prime fields",
                    count.instances, count.floating, count.exact
                );
                json!({"name": rule.name, "line": rule.line, "sound": true, "exercised": count})
            }
            Verdict::Unsound(counterexample) => {
                refused.push(format!("{place} is unsound\n{counterexample}"));
                json!({"name": rule.name, "line": rule.line, "sound": false, "counterexample": counterexample.to_string()})
            }
            Verdict::Undecided(count) => {
                refused.push(format!(
                    "{place}: its left side has a value at {} points only, too few to say anything",
                    count.floating
                ));
                json!({"name": rule.name, "line": rule.line, "sound": null, "exercised": count})
            }
        };
        rows.push(row);
    }
    if as_json {
        text = json!({ "rules": rows }).to_string() + "\n";
    }
    if refused.is_empty() {
        return Ok(text);
    }
    Err(Failure::unverified(refused.join("\n")))
}

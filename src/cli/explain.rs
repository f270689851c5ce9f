//! `explain`: from the program of an artifact to its kernels, step by step.

use crate::cli::report::target;
use crate::cli::show::Contents;
use crate::cli::{Explain, Failure};
use serde_json::json;
use std::fmt::Write;
use tilewright::artifact::State;
use tilewright::explain::{Transformation, Without, corrections, transformations};
use tilewright::pipeline::Derivation;
use tilewright::report::words;
use tilewright::search::cost::cost;
use tilewright::search::forms::axes::changes;
use tilewright::search::tiling::enumerate::describe;

/// What it does not do.
const UNMEASURED: &str = "what transformations are worth is the clock's word, which simulates: nothing was measured. `optimize --schedule FILE --tiling DIR` times a schedule on a GPU";

/// The chain, as text or as one JSON object.
pub(crate) fn explain(arguments: &Explain) -> Result<String, Failure> {
    let contents = Contents::checked(&arguments.artifact)?;
    let target = target(&contents)?;
    let manifest = contents.artifact.manifest();
    let corrections = corrections(&contents.tile);
    let worth = transformations(&contents.tile, &contents.schedule, &target);
    let worth = worth.map_err(Failure::refused)?;
    let clock = cost(&contents.tile, Some(&contents.schedule), &target);
    let clock: Vec<f64> = clock.kernels.iter().map(|k| k.us).collect();
    let axes: Vec<String> = (changes(&contents.program, &contents.expression).iter())
        .map(ToString::to_string)
        .collect();
    if arguments.json {
        let value = json!({
            "program": contents.program.to_string(),
            "target": manifest.target.name,
            "state": manifest.state,
            "axes": axes,
            "derivation": manifest.derivation,
            "expression": contents.expression.to_string(),
            "corrections": corrections,
            "plan": describe(&contents.tile),
            "clock_us": clock,
            "transformations": worth,
            "remarks": [UNMEASURED],
        });
        return Ok(value.to_string() + "\n");
    }
    let mut text = String::new();
    let mut section = |title: &str, body: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "=== {title} ===\n{}\n", body.trim_end());
    };
    section("program", &contents.program.to_string());
    section("rewrites", &rewrites(&axes, &manifest.derivation));
    section("expression", &contents.expression.to_string());
    let mut said: String = (corrections.iter())
        .map(|c| {
            format!(
                "kernel {}, loop over {}: in each iteration {} {} {} `{}`, which follows {}\n",
                c.kernel,
                c.axis,
                names(&c.running),
                if c.running.len() == 1 { "is" } else { "are" },
                c.how,
                c.by,
                names(&c.follows)
            )
        })
        .collect();
    if said.is_empty() {
        said =
            "none: no loop carries a value that rests on another one which it carries".to_owned();
    }
    section("corrections", &said);
    section("tiling", &describe(&contents.tile));
    section(
        "schedule, and what becomes of a kernel without one line of it",
        &schedule(&worth, &clock),
    );
    let state = match manifest.state {
        State::Simulated => "no kernel of this artifact ever ran; ",
        State::Verified => "",
    };
    let _ = writeln!(text, "note: {state}{UNMEASURED}");
    Ok(text)
}

fn names(values: &[String]) -> String {
    let all: Vec<String> = values.iter().map(|v| format!("`{v}`")).collect();
    all.join(" and ")
}

fn rewrites(axes: &[String], derivation: &Derivation) -> String {
    let mut text: String = axes
        .iter()
        .map(|change| format!("axes: {change}\n"))
        .collect();
    text += &match derivation {
        Derivation::NotFound => "no derivation was found within the limits: that the expression equals the program rests on the numbers".to_owned(),
        Derivation::NotSought => "the search ended before a derivation was looked for: that the expression equals the program rests on the numbers".to_owned(),
        Derivation::Found(found) if found.steps.is_empty() => "none: the expression is the program's own".to_owned(),
        Derivation::Found(found) => {
            let steps = found.steps.iter().enumerate();
            let steps = steps.map(|(n, s)| format!("{:>3}. {}\n       {}\n     = {}\n", n + 1, s.rule, s.left, s.right));
            let counted = found.counted().into_iter();
            let counted: Vec<String> = counted.map(|(rule, n)| format!("{rule} {n}")).collect();
            format!("{} steps: {}\n{}", found.steps.len(), counted.join(", "), steps.collect::<String>())
        }
    };
    text
}

fn schedule(all: &[Transformation], clock: &[f64]) -> String {
    let width = all
        .iter()
        .map(|t| t.line.chars().count())
        .max()
        .unwrap_or_default();
    let mut text = String::new();
    for (kernel, us) in clock.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "kernel {kernel}: {} by the clock", words::us(*us));
        for one in all.iter().filter(|t| t.kernel == kernel) {
            let said = without(&one.without, *us);
            let _ = writeln!(text, "  {:width$}  {said}", one.line);
        }
        if all.iter().all(|t| t.kernel != kernel) {
            text += "  nothing is said of it: all is as usual\n";
        }
    }
    text
}

fn without(without: &Without, us: f64) -> String {
    match without {
        Without::Takes { more_us, parts, .. } => {
            let share = words::percent(more_us.abs() / us);
            let parts: Vec<String> = parts
                .iter()
                .map(|(part, us)| format!("{} {us:+.2} us", words::named(part)))
                .collect();
            let parts = match parts.is_empty() {
                true => String::new(),
                false => format!(": {}", parts.join(", ")),
            };
            match *more_us {
                more if more > 0.0 => {
                    format!("{} ({share}) slower without{parts}", words::us(more))
                }
                more if more < 0.0 => {
                    format!("{} ({share}) faster without{parts}", words::us(-more))
                }
                _ => format!("as fast without{parts}"),
            }
        }
        Without::Nothing => "changes nothing in this kernel".to_owned(),
        Without::Rests(why) => format!("others rest on it: {why}"),
        Without::Required(why) => format!("has to be there: {why}"),
        Without::Refused(why) => format!("no kernel without: {why}"),
    }
}

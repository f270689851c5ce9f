//! The page of an artifact.

use super::facts::{self, KernelFacts};
use super::html::{self, Cell, text};
use super::{charts, tiling, words};
use crate::artifact::State;
use crate::pipeline::history::{Improvement, Seen};
use crate::pipeline::{Derivation, Search};
use crate::replay::Claims;
use codegen::clock::Part;
use codegen::machine::Machine;
use std::fmt::Write;

/// An artifact, and what its texts say.
pub type Subject<'a> = Claims<'a>;

/// Kernels whose timelines are drawn: those that take longest.
const DRAWN: usize = 12;

/// The report of an artifact: HTML that loads nothing.
pub fn artifact(subject: &Subject<'_>) -> String {
    let kernels = facts::kernels(subject.tile, subject.schedule, subject.target);
    let body = [
        head(subject, &kernels),
        search(subject),
        limits(subject, &kernels),
        details(subject, &kernels),
        losers(subject),
        rejects(subject),
        evidence(subject),
        about(subject),
    ];
    let title = format!("{} for {}", subject.program.name, subject.target.name);
    html::page(&title, &body.concat())
}

/// The sum of the kernels' times by the clock, and of their floors.
fn sums(kernels: &[KernelFacts]) -> [f64; 2] {
    let sum = |of: fn(&KernelFacts) -> f64| kernels.iter().map(of).sum();
    [sum(|k| k.us), sum(KernelFacts::floor_us)]
}

fn badge(state: State) -> String {
    format!("<span class=\"badge {state}\">{state}</span>")
}

/// What is said of a candidate, in a line.
pub(super) fn in_short(subject: &Subject<'_>, kernels: &[KernelFacts]) -> String {
    let slowest = kernels.iter().max_by(|x, y| x.us.total_cmp(&y.us));
    let Some(slowest) = slowest else {
        return String::new();
    };
    let said = words::limit(slowest, subject.target.sms);
    let which = match kernels.len() {
        1 => String::new(),
        count => {
            let share = slowest.us / sums(kernels)[0];
            let of = format!("{count} kernels, which take");
            let share = words::percent(share);
            format!(
                "The slowest of {of} {} by the clock is kernel {} ({share}). ",
                words::us(sums(kernels)[0]),
                slowest.number
            )
        }
    };
    format!("<p class=\"limit\">{}</p>\n", text(which + &said))
}

fn head(subject: &Subject<'_>, kernels: &[KernelFacts]) -> String {
    let manifest = subject.artifact.manifest();
    let [clock, floor] = sums(kernels);
    let mut figures = Vec::new();
    if let Some(time) = &manifest.measured_us {
        figures.push((
            words::us(time.warm.median_us),
            "measured, inputs in L2 (warm)",
        ));
        figures.push((
            words::us(time.cold.median_us),
            "measured, inputs in memory (cold)",
        ));
    }
    figures.extend([
        (
            words::us(manifest.predicted_us),
            "by the clock, which simulates",
        ),
        (words::us(floor), "floor: bytes and operations alone"),
        (words::times(clock / floor), "times the floor, by the clock"),
        (
            manifest.launches.len().to_string(),
            match manifest.launches.len() {
                1 => "kernel",
                _ => "kernels",
            },
        ),
        (words::operations(manifest.flops), "arithmetic"),
        (words::bytes(manifest.bytes), "read and written once"),
        (manifest.candidates.to_string(), "tile programs looked at"),
        (format!("{:.1} s", manifest.history.seconds), "search"),
    ]);
    let sections = [
        ("search", "Search"),
        ("limits", "What limits it"),
        ("kernels", "Kernels"),
        ("losers", "Losers"),
        ("rejects", "Rejects"),
        ("evidence", "Evidence"),
    ];
    let links: String = (sections.iter())
        .map(|(id, title)| format!("<a href=\"#{id}\">{title}</a>"))
        .collect();
    format!(
        "<h1>{} {}</h1>\n<p class=\"soft\">for {} ({}, {} multiprocessors), seed {}</p>\n<nav>{links}</nav>\n{}{}",
        text(&manifest.program),
        badge(manifest.state),
        text(&subject.target.name),
        text(&subject.target.device),
        subject.target.sms,
        manifest.seed,
        html::figures(&figures),
        in_short(subject, kernels)
    )
}

fn kind(measured: bool) -> &'static str {
    match measured {
        true => "measured",
        false => "by the clock",
    }
}

/// Where a search began, and each improvement after it.
fn improvements(all: &[Improvement]) -> String {
    let mut items = String::new();
    let mut before: Option<&Improvement> = None;
    for one in all {
        let said = format!(
            "after {:.1} s: {} {}",
            one.seconds,
            words::us(one.us),
            kind(one.measured)
        );
        let (gain, changes) = match before {
            None => (
                String::new(),
                "<p class=\"soft\">the first that passed: the plainest, or what the search was given to begin with</p>".to_owned(),
            ),
            Some(before) => {
                let gain = match before.measured == one.measured {
                    true => format!(", {} of the one before", words::percent(one.us / before.us)),
                    false => ", which the one before was not".to_owned(),
                };
                let changes = words::differences(&before.seen, &one.seen);
                let changes = match changes.is_empty() {
                    true => "<p class=\"soft\">the same candidate, verified or timed again</p>".to_owned(),
                    false => html::list(&changes),
                };
                (gain, changes)
            }
        };
        let plan = text(one.seen.plan.trim_end());
        let schedule = text(one.seen.schedule.trim_end());
        // Writing to a string does not fail.
        let _ = write!(
            items,
            "<li><b>{}</b>{}{changes}<details class=\"plain\"><summary>tiles and schedule</summary><pre>{plan}\n\n{schedule}</pre></details></li>\n",
            text(said),
            text(gain)
        );
        before = Some(one);
    }
    format!("<ol class=\"improvements\">{items}</ol>\n")
}

fn search(subject: &Subject<'_>) -> String {
    let history = &subject.artifact.manifest().history;
    let measured = history.improvements.last().is_some_and(|i| i.measured);
    let alike = history
        .improvements
        .iter()
        .filter(|i| i.measured == measured);
    let points = alike.map(|i| {
        let said = format!("{:.1} s: {} {}", i.seconds, words::us(i.us), kind(measured));
        (i.seconds, i.us, said)
    });
    let what = format!("best time (us), {}", kind(measured));
    let caption = match measured {
        true => {
            "Measured times of whole candidates; what the clock said before anything was measured is in the list. At the end the fastest were timed again with more care."
        }
        false => {
            "Simulated times: nothing was measured. The clock's figure of the best candidate that had passed the checks by then."
        }
    };
    let lines = [(String::new(), points.collect())];
    let mut html = "<h2 id=\"search\">Best time against search time</h2>\n".to_owned();
    html += &charts::curves(&lines, history.seconds, &what, caption);
    html += &improvements(&history.improvements);
    if history.left_out > 0 {
        let left_out = history.left_out;
        html += &format!(
            "<p class=\"note\">{left_out} small improvements between these are left out.</p>\n"
        );
    }
    html
}

fn limits(subject: &Subject<'_>, kernels: &[KernelFacts]) -> String {
    let target = subject.target;
    let mut html = "<h2 id=\"limits\">What limits it</h2>\n".to_owned();
    html += &format!(
        "<p>A kernel's <i>floor</i> is the longer of two times: its bytes moved once (those of buffers that are not in L2 any more when it runs at {} TB/s from device memory, all of them at {} TB/s from L2), and its operations done by all {} multiprocessors at the rate of the unit that has most to do. \
         The rates are those that the target's file calls achievable, so what is measured may come a little below it; the launch ({}) is not in it. The other times are the clock's: a simulation of one multiprocessor, event by event.</p>\n",
        target.memory_tb_s,
        target.l2_tb_s.max(target.l2_ring_tb_s),
        target.sms,
        text(words::us(target.launch_us))
    );
    let rows = kernels.iter().map(|k| {
        let floor = match k.bytes_us >= k.operations_us {
            true => k.bytes_by,
            false => k.operations_by,
        };
        let floor = words::short(floor);
        vec![
            Cell::Number(k.number.to_string()),
            Cell::Text(words::limit_name(k.limit)),
            Cell::Number(words::us(k.us)),
            Cell::Number(words::us(k.floor_us())),
            Cell::Number(words::times(k.us / k.floor_us())),
            Cell::Short(floor.to_owned()),
            Cell::Number(words::bytes(k.bytes)),
            Cell::Number(words::bytes(k.memory_bytes)),
            Cell::Number(words::us(k.bytes_us)),
            Cell::Number(words::operations(k.flops)),
            Cell::Number(words::us(k.operations_us)),
        ]
    });
    let titles = [
        "#kernel",
        "limited by",
        "#clock",
        "#floor",
        "#times the floor",
        "floor by",
        "#bytes",
        "#from memory",
        "#bytes' time",
        "#operations",
        "#operations' time",
    ];
    if kernels.len() > 1 {
        html += &charts::kernels(
            kernels,
            "What each kernel takes by the clock, and its floor (the orange mark).",
        );
    }
    html += &html::table(&titles, rows);
    html
}

/// Kernels in detail, the slowest open.
fn details(subject: &Subject<'_>, kernels: &[KernelFacts]) -> String {
    let machines = codegen::machines(subject.tile, subject.schedule, subject.target);
    let machines: Vec<Machine> = machines.unwrap_or_default();
    let mut by_time: Vec<usize> = (0..kernels.len()).collect();
    by_time.sort_by(|x, y| kernels[*y].us.total_cmp(&kernels[*x].us));
    let plan = search::tiling::enumerate::describe(subject.tile);
    let plans: Vec<&str> = plan.lines().collect();
    let schedule = subject.schedule.text(subject.tile);
    let mut html = "<h2 id=\"kernels\">Kernels, tile by tile and warp by warp</h2>\n".to_owned();
    for kernel in kernels {
        let n = kernel.number;
        let place = by_time.iter().position(|k| *k == n).unwrap_or_default();
        let open = if place == 0 { " open" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(
            html,
            "<details{open}><summary>Kernel {n} <span>{}, {}</span></summary>\n<p class=\"limit\">{}</p>\n<h3>Tiling</h3>\n{}",
            text(words::us(kernel.us)),
            text(words::limit_name(kernel.limit)),
            text(words::limit(kernel, subject.target.sms)),
            tiling::drawing(subject.tile, &subject.tile.kernels[n])
        );
        let parts = charts::parts(
            kernel,
            "Units work beside each other, so shares do not add up to 100. Waits are means over the warps that compute. Parts below half a percent are left out.",
        );
        if let Some(parts) = parts {
            html += &format!("<h3>What its time consists of, by the clock</h3>\n{parts}");
        }
        html += "<h3>The pipeline of one multiprocessor</h3>\n";
        let machine = machines.get(n).filter(|_| place < DRAWN);
        let drawn = machine.and_then(|machine| {
            let seen = codegen::clock::timeline(subject.tile, n, machine, subject.target);
            charts::timeline(&seen, subject.target.clock_ghz)
        });
        html += &drawn.unwrap_or_else(|| {
            let why = match machine {
                Some(_) => "The clock could not run it.",
                None => "Drawn for the slowest kernels alone.",
            };
            format!("<p class=\"note\">{why}</p>\n")
        });
        let lines = block(&schedule, n);
        let said = plans.get(n).copied().unwrap_or_default();
        html += &format!(
            "<h3>Tiles and schedule</h3>\n<pre>{}\n\n{}</pre>\n</details>\n",
            text(said),
            text(lines.trim_end())
        );
    }
    html
}

/// The block of a kernel in the text of a schedule.
fn block(schedule: &str, kernel: usize) -> String {
    let title = format!("kernel {kernel}");
    let from = schedule.lines().skip_while(|l| l.trim_end() != title);
    let own = from
        .enumerate()
        .take_while(|(n, l)| *n == 0 || !l.starts_with("kernel "));
    own.map(|(_, l)| format!("{l}\n")).collect()
}

fn losers(subject: &Subject<'_>) -> String {
    let history = &subject.artifact.manifest().history;
    let mut html = "<h2 id=\"losers\">The best losers</h2>\n".to_owned();
    if history.losers.is_empty() {
        let why = match subject.artifact.manifest().search {
            Search::Ended => "Nothing else was looked at.",
            Search::Running | Search::Interrupted => {
                "The search was ended before they were written down."
            }
        };
        return html + &format!("<p>{why}</p>\n");
    }
    html += "<p>What came closest: whole candidates, and kernels of the winner under other schedules. A whole candidate's time stands beside the winner's, a kernel's beside that of the same kernel under the schedule that won. \
             Which part of the clock's time grew is the clock's word, also where times were measured.</p>\n";
    let plan = search::tiling::enumerate::describe(subject.tile);
    let winner = Seen {
        plan: plan.clone(),
        schedule: subject.schedule.text(subject.tile),
        clock_us: subject.artifact.manifest().predicted_us,
    };
    let rows = history.losers.iter().enumerate().map(|(n, loser)| {
        let (which, against) = match loser.kernel {
            None => ("whole".to_owned(), winner.clone()),
            Some(k) => {
                let own = plan.lines().nth(k).unwrap_or_default();
                let own = own.split_once(": ").map_or(own, |(_, axes)| axes);
                let winner = Seen {
                    plan: format!("kernel 0: {own}\n"),
                    schedule: block(&winner.schedule, k),
                    clock_us: loser.best_us,
                };
                (format!("kernel {k}"), winner)
            }
        };
        let changes = words::differences(&against, &loser.seen);
        let changes = match changes.is_empty() {
            true => text("another form of the expression, with the same tiles and schedule"),
            false => html::list(&changes),
        };
        vec![
            Cell::Number((n + 1).to_string()),
            Cell::Short(which),
            Cell::Html(format!("<div style=\"min-width:230px\">{changes}</div>")),
            Cell::Number(words::us(loser.us)),
            Cell::Number(words::us(loser.best_us)),
            Cell::Html(format!(
                "<div style=\"min-width:230px\">{}</div>",
                text(words::lost(loser))
            )),
        ]
    });
    let titles = [
        "#",
        "of",
        "what differs from the winner",
        "#time",
        "#winner",
        "why it lost",
    ];
    html += &html::table(&titles, rows);
    html
}

fn rejects(subject: &Subject<'_>) -> String {
    let manifest = subject.artifact.manifest();
    let mut html = "<h2 id=\"rejects\">Rejects by reason</h2>\n".to_owned();
    if manifest.rejected.is_empty() {
        return html + "<p>No point of the search was rejected.</p>\n";
    }
    let mut all: Vec<(&String, &u64)> = manifest.rejected.iter().collect();
    all.sort_by(|x, y| y.1.cmp(x.1).then(x.0.cmp(y.0)));
    let rows = all.into_iter().map(|(reason, count)| {
        let example = manifest.history.examples.get(reason);
        vec![
            Cell::Text(reason.replace('_', " ")),
            Cell::Number(count.to_string()),
            Cell::Text(words::meaning(reason).unwrap_or_default().to_owned()),
            Cell::Text(example.cloned().unwrap_or_default()),
        ]
    });
    html += "<p>Points that are no candidates. A point is an assignment of axes, a schedule of a kernel, or a candidate, so counts of different reasons are not of the same things.</p>\n";
    html += &html::table(
        &[
            "reason",
            "#points",
            "what it means",
            "the first one, as it was said",
        ],
        rows,
    );
    html
}

fn evidence(subject: &Subject<'_>) -> String {
    let manifest = subject.artifact.manifest();
    let mut all: Vec<String> = Vec::new();
    all.push(match (manifest.state, &manifest.measured_us) {
        (State::Simulated, _) => "Simulated: the tile program was interpreted and compared with the program. The CUDA text and the machine code never ran, and no time was measured: every time on this page is a model's.".to_owned(),
        (State::Verified, None) => "Verified: the machine code ran on a GPU of the target's kind, at full size, and its results were those of the reference within the stated bounds. No time was measured.".to_owned(),
        (State::Verified, Some(time)) => format!(
            "Verified: the machine code ran on a GPU of the target's kind, at full size, and its results were those of the reference within the stated bounds. Measured is the time of the whole program: warm {} (10th to 90th percentile {} to {}), cold {} ({} to {}). \
             The times of single kernels, what they consist of, the timelines and the floors are models'.",
            words::us(time.warm.median_us), words::us(time.warm.p10_us), words::us(time.warm.p90_us),
            words::us(time.cold.median_us), words::us(time.cold.p10_us), words::us(time.cold.p90_us),
        ),
    });
    all.push("The checks are tests and no proofs: a fault that shows for no drawn number and at no element that was looked at passes.".to_owned());
    all.push(match &manifest.derivation {
        Derivation::Found(d) if d.steps.is_empty() => "The expression is the program's own.".to_owned(),
        Derivation::Found(d) => format!(
            "The expression follows from the program by {} steps, of {} rules: each an identity over the reals with a property test of its own. `tilewright explain` prints them.",
            d.steps.len(), d.rules.len()
        ),
        Derivation::NotFound => "No derivation of the expression was found within the limits: that it equals the program rests on the numbers.".to_owned(),
        Derivation::NotSought => "The search ended before a derivation of the expression was looked for: that it equals the program rests on the numbers.".to_owned(),
    });
    all.push(match manifest.search {
        Search::Ended => "The search came to its end.".to_owned(),
        Search::Interrupted => "The search was ended early.".to_owned(),
        Search::Running => "The search went on when this was written.".to_owned(),
    });
    let paragraphs: String = all
        .iter()
        .map(|p| format!("<p>{}</p>\n", text(p)))
        .collect();
    let rows = manifest.claims.iter().map(|claim| {
        let (what, said) = claim.split_once(": ").unwrap_or(("", claim));
        vec![Cell::Text(what.to_owned()), Cell::Text(said.to_owned())]
    });
    format!(
        "<h2 id=\"evidence\">What was checked</h2>\n{paragraphs}<p>As the manifest says it:</p>\n{}",
        html::table(&["check", "what came of it"], rows)
    )
}

fn about(subject: &Subject<'_>) -> String {
    let manifest = subject.artifact.manifest();
    let waits: Vec<&str> = Part::WAITS.into_iter().map(words::part).collect();
    format!(
        "<h2>About this page</h2>\n<p class=\"note\">Made by tilewright {} from the artifact with the seal <code>{}</code>, which version {} wrote. \
         Improvements, losers, counts of rejects and examples are what the search wrote down. Times of kernels, what they consist of, floors and timelines are what this version's models say of the artifact's tile program and schedule. \
         Warps may wait for: {}. The charts are drawn by Vega and Vega-Lite, whose licences are in the source of this page; it loads nothing.</p>\n",
        env!("CARGO_PKG_VERSION"),
        text(&manifest.seal),
        text(&manifest.tilewright),
        text(waits.join(", "))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::{Artifact, file, read_manifest, samples};

    /// What is written in an artifact by whoever made it is text, wherever it stands.
    #[test]
    fn no_text_of_an_artifact_is_markup() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("k");
        samples::put(&path, &samples::files("rows", "h200", 0));
        const EVIL: &str = "</script><img src=x onerror='evil()'>\"&";
        let mut manifest = read_manifest(&path).expect("an artifact");
        manifest.program = format!("rows{EVIL}");
        manifest.claims.push(format!("tiling: {EVIL}"));
        manifest.rejected.insert(EVIL.to_owned(), 3);
        manifest
            .history
            .examples
            .insert(EVIL.to_owned(), EVIL.to_owned());
        for one in &mut manifest.history.improvements {
            one.seen.plan += EVIL;
            one.seen.schedule += EVIL;
        }
        manifest
            .history
            .losers
            .push(crate::pipeline::history::Loser {
                seen: Seen {
                    plan: format!("kernel 0: grid {EVIL}:1/2\nkernel 1: grid {EVIL}\n"),
                    schedule: format!("kernel 0\n  warps {EVIL}\n"),
                    clock_us: 1.0,
                },
                kernel: None,
                us: 2.0,
                best_us: 1.0,
                measured: false,
                tried: true,
                refused: Some(crate::pipeline::history::Refusal {
                    reason: "wrong".to_owned(),
                    text: EVIL.to_owned(),
                }),
                parts: [(EVIL.to_owned(), 1.0)].into(),
            });
        std::fs::write(path.join(file::MANIFEST), manifest.text()).expect("writable");
        let artifact = Artifact::read(&path).expect("an artifact");
        let parse = |name: &str| artifact.text(name).expect("a text").parse::<ir::Program>();
        let mut program = parse(file::PROGRAM).expect("a program");
        program.name += EVIL;
        let expression = parse(file::EXPRESSION).expect("a program");
        let tile: ir::TileProgram =
            (artifact.text(file::TILE).expect("a text").parse()).expect("a tile program");
        let schedule = artifact.text(file::SCHEDULE).expect("a text");
        let schedule = ir::Schedule::parse(schedule, "schedule", &codegen::language(), &tile);
        let page = super::artifact(&Claims {
            artifact: &artifact,
            program: &program,
            expression: &expression,
            tile: &tile,
            schedule: &schedule.expect("a schedule"),
            target: &crate::target("h200").expect("a target"),
        });
        assert!(!page.contains("<img src=x"), "markup");
        // The title, the heading, a claim, a reason with its example, a loser, an improvement and its point on the chart.
        let safe = html::text(EVIL);
        assert!(
            page.matches(&safe).count() >= 7,
            "{}",
            page.matches(&safe).count()
        );
        let heading = format!("<h1>rows{safe}");
        assert!(page.contains(&heading));
    }
}

//! What a search wrote down of itself, as sections of a page: improvements, losers, rejects, and what was checked.

use super::html::{self, Cell, Section, text};
use super::one::Subject;
use super::{charts, words};
use crate::artifact::State;
use crate::pipeline::history::{Improvement, Seen};
use crate::pipeline::{Derivation, Search};
use std::fmt::Write;

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
                let changes = words::differences(&before.seen, &one.seen, "before");
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

pub(super) fn search(subject: &Subject<'_>) -> Section {
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
    let mut body = charts::curves(&lines, history.seconds, &what, caption);
    body += &improvements(&history.improvements);
    if history.left_out > 0 {
        let left_out = history.left_out;
        body += &format!(
            "<p class=\"note\">{left_out} small improvements between these are left out.</p>\n"
        );
    }
    Section {
        id: "search",
        title: "Best time against search time",
        body,
    }
}

/// The block of a kernel in the text of a schedule.
pub(super) fn block(schedule: &str, kernel: usize) -> String {
    let title = format!("kernel {kernel}");
    let from = schedule.lines().skip_while(|l| l.trim_end() != title);
    let own = from
        .enumerate()
        .take_while(|(n, l)| *n == 0 || !l.starts_with("kernel "));
    own.map(|(_, l)| format!("{l}\n")).collect()
}

pub(super) fn losers(subject: &Subject<'_>) -> Section {
    let section = |body: String| Section {
        id: "losers",
        title: "The best losers",
        body,
    };
    let history = &subject.artifact.manifest().history;
    if history.losers.is_empty() {
        let why = match subject.artifact.manifest().search {
            Search::Ended => "Nothing else was looked at.",
            Search::Running | Search::Interrupted => {
                "The search was ended before they were written down."
            }
        };
        return section(format!("<p>{why}</p>\n"));
    }
    let mut body = "<p>What came closest: whole candidates, and kernels of the winner under other schedules. A whole candidate's time stands beside the winner's, a kernel's beside that of the same kernel under the schedule that won. \
             Which part of the clock's time grew is the clock's word, also where times were measured.</p>\n".to_owned();
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
        let changes = words::differences(&against, &loser.seen, "the winner");
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
    body += &html::table(&titles, rows);
    section(body)
}

pub(super) fn rejects(subject: &Subject<'_>) -> Section {
    let section = |body: String| Section {
        id: "rejects",
        title: "Rejects by reason",
        body,
    };
    let manifest = subject.artifact.manifest();
    if manifest.rejected.is_empty() {
        return section("<p>No point of the search was rejected.</p>\n".to_owned());
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
    let mut body = "<p>Points that are no candidates. A point is an assignment of axes, a schedule of a kernel, or a candidate, so counts of different reasons are not of the same things.</p>\n".to_owned();
    body += &html::table(
        &[
            "reason",
            "#points",
            "what it means",
            "the first one, as it was said",
        ],
        rows,
    );
    section(body)
}

pub(super) fn evidence(subject: &Subject<'_>) -> Section {
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
    let table = html::table(&["check", "what came of it"], rows);
    Section {
        id: "evidence",
        title: "What was checked",
        body: format!("{paragraphs}<p>As the manifest says it:</p>\n{table}"),
    }
}

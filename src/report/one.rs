//! The page of an artifact.

use super::facts::{self, KernelFacts};
use super::html::{self, Cell, Section, text};
use super::{charts, record, tiling, words};
use crate::artifact::State;
use crate::replay::Claims;
use codegen::clock::Part;
use codegen::machine::Machine;
use std::fmt::Write;

/// An artifact, and what its texts say.
pub type Subject<'a> = Claims<'a>;

/// Kernels whose timelines are drawn: those that take longest.
const DRAWN: usize = 12;
/// Kernels that are shown in detail at all: a page has at most two megabytes.
const DETAILED: usize = 60;

/// The report of an artifact: HTML that loads nothing.
pub fn artifact(subject: &Subject<'_>) -> String {
    let kernels = facts::kernels(subject.tile, subject.schedule, subject.target);
    let body = [
        head(subject, &kernels),
        record::search(subject).whole(),
        limits(subject, &kernels),
        details(subject, &kernels).whole(),
        record::losers(subject).whole(),
        record::rejects(subject).whole(),
        record::evidence(subject).whole(),
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
pub(super) fn details(subject: &Subject<'_>, kernels: &[KernelFacts]) -> Section {
    let machines = codegen::machines(subject.tile, subject.schedule, subject.target);
    let machines: Vec<Machine> = machines.unwrap_or_default();
    let mut by_time: Vec<usize> = (0..kernels.len()).collect();
    by_time.sort_by(|x, y| kernels[*y].us.total_cmp(&kernels[*x].us));
    let plan = search::tiling::enumerate::describe(subject.tile);
    let plans: Vec<&str> = plan.lines().collect();
    let schedule = subject.schedule.text(subject.tile);
    let mut html = String::new();
    if kernels.len() > DETAILED {
        html += &format!(
            "<p class=\"note\">The slowest {DETAILED} of {}.</p>\n",
            kernels.len()
        );
    }
    for kernel in kernels {
        let n = kernel.number;
        let place = by_time.iter().position(|k| *k == n).unwrap_or_default();
        if place >= DETAILED {
            continue;
        }
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
        let lines = record::block(&schedule, n);
        let said = plans.get(n).copied().unwrap_or_default();
        html += &format!(
            "<h3>Tiles and schedule</h3>\n<pre>{}\n\n{}</pre>\n</details>\n",
            text(said),
            text(lines.trim_end())
        );
    }
    Section {
        id: "kernels",
        title: "Kernels, tile by tile and warp by warp",
        body: html,
    }
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
    use crate::pipeline::history::{Loser, Refusal, Seen};

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
        manifest.history.losers.push(Loser {
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
            refused: Some(Refusal {
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

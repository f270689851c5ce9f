//! The page of a campaign.

use super::facts::KernelFacts;
use super::html::{self, Cell, Section, text};
use super::one::{details, in_short};
use super::{charts, facts, record, tiling, words};
use crate::campaign::journal::{JobState, JobView, SliceState, View};
use crate::replay::Claims;
use std::fmt::Write;

/// Winners that are shown at most.
const SHOWN: usize = 200;

/// Bytes of a page, at most, where its table and its charts leave room for winners.
const PAGE: usize = 1_900_000;

/// A campaign.
#[derive(Clone, Copy, Debug)]
pub struct Campaign<'a> {
    /// What it is called: its folder.
    pub name: &'a str,
    /// What its journal says.
    pub view: &'a View,
    /// Its jobs, in the same order.
    pub jobs: &'a [Job<'a>],
    /// Whether somebody runs it.
    pub running: bool,
}

/// The winner of a job, or why there is none to be shown.
pub type Job<'a> = Result<Claims<'a>, String>;

/// The report of a campaign: HTML that loads nothing.
pub fn campaign(campaign: &Campaign<'_>) -> String {
    let [before, after] = [
        [
            head(campaign),
            table(campaign),
            curves(campaign.view),
            time(campaign.view),
        ]
        .concat(),
        about(campaign),
    ];
    let title = format!("campaign {}", campaign.name);
    let room = PAGE.saturating_sub(html::page(&title, &[&before[..], &after].concat()).len());
    html::page(&title, &(before + &winners(campaign, room) + &after))
}

fn seconds(job: &JobView) -> f64 {
    job.slices.iter().fold(0.0, |all, s| all + s.seconds)
}

fn state(job: &JobView) -> &'static str {
    match (job.state, job.is_leased) {
        (_, true) => "searching",
        (JobState::Done, _) => "done: nothing is left to try",
        (JobState::Failed, _) => "given up",
        (JobState::Open, _) => "open",
    }
}

fn kind(verified: bool) -> &'static str {
    match verified {
        true => "measured",
        false => "by the clock",
    }
}

fn head(campaign: &Campaign<'_>) -> String {
    let view = campaign.view;
    let with: Vec<&JobView> = view.jobs.iter().filter(|j| j.best.is_some()).collect();
    let verified = with
        .iter()
        .filter(|j| j.best.as_ref().is_some_and(|b| b.verified))
        .count();
    let slices: usize = view.jobs.iter().map(|j| j.slices.len()).sum();
    let figures = [
        (view.jobs.len().to_string(), "jobs"),
        (with.len().to_string(), "with a result"),
        (verified.to_string(), "of these verified on a GPU"),
        (
            format!("{:.1} s", view.spent.as_secs_f64()),
            "of the budget spent",
        ),
        (format!("{:.1} s", view.budget.as_secs_f64()), "budget"),
        (slices.to_string(), "slices"),
    ];
    let how = match (campaign.running, view.stopping) {
        (true, _) => "It was running when this page was made.",
        (false, true) => "It was stopped.",
        (false, false) => "It was not running when this page was made.",
    };
    format!(
        "<h1>Campaign {}</h1>\n<p class=\"soft\">{how} Seed {}.</p>\n{}",
        text(campaign.name),
        view.seed,
        html::figures(&figures)
    )
}

fn table(campaign: &Campaign<'_>) -> String {
    let view = campaign.view;
    let all = view
        .jobs
        .iter()
        .map(seconds)
        .fold(0.0, |all, own| all + own);
    let rows = view.jobs.iter().map(|job| {
        let ended = job
            .slices
            .iter()
            .filter(|s| s.state == SliceState::Ended)
            .count();
        let lost = job
            .slices
            .iter()
            .filter(|s| s.state == SliceState::Lost)
            .count();
        let best = job.best.as_ref();
        let first = job.curve.first().zip(best);
        let gain = first.map(|(first, best)| words::percent(1.0 - best.us / first.us));
        let share = seconds(job) / all.max(f64::MIN_POSITIVE);
        let mut said = state(job).to_owned();
        if lost > 0 {
            said += &format!("; {lost} slices lost");
        }
        let matters = best.is_none() || lost > 0 || job.state == JobState::Failed;
        if let Some(reason) = job.reason.as_ref().filter(|_| matters) {
            said += &format!(": {reason}");
        }
        vec![
            Cell::Text(job.name.clone()),
            Cell::Text(job.target.clone()),
            Cell::Number(job.weight.to_string()),
            Cell::Number(best.map_or("none".to_owned(), |b| words::us(b.us))),
            Cell::Text(best.map_or("", |b| kind(b.verified)).to_owned()),
            Cell::Number(gain.unwrap_or_default()),
            Cell::Number(format!("{ended} of {}", job.slices.len())),
            Cell::Number(format!("{:.1} s", seconds(job))),
            Cell::Number(words::percent(share)),
            Cell::Text(said),
        ]
    });
    let titles = [
        "job",
        "target",
        "#weight",
        "#best",
        "",
        "#less than first",
        "#slices ended",
        "#search time",
        "#share",
        "state",
    ];
    format!("<h2>Jobs</h2>\n{}", html::table(&titles, rows))
}

fn curves(view: &View) -> String {
    let mut html = "<h2>Curves</h2>\n".to_owned();
    for verified in [true, false] {
        let jobs = view
            .jobs
            .iter()
            .filter(|j| j.best.as_ref().is_some_and(|b| b.verified == verified));
        let lines: Vec<(String, Vec<charts::Point>)> = jobs
            .filter(|j| !j.curve.is_empty())
            .map(|job| {
                let first = job.curve[0].us;
                let points = job.curve.iter().map(|p| {
                    let said =
                        format!("{}: {} after {:.1} s", job.name, words::us(p.us), p.seconds);
                    (p.seconds, 100.0 * p.us / first, said)
                });
                (job.name.clone(), points.collect())
            })
            .collect();
        if lines.is_empty() {
            continue;
        }
        let end = lines
            .iter()
            .filter_map(|l| l.1.last())
            .map(|p| p.0)
            .fold(0.0, f64::max);
        let what = "best time (% of the first slice's)";
        let caption = match verified {
            true => {
                "Measured times. A point is a slice that ended; the search time is the job's own."
            }
            false => {
                "Simulated times: nothing was measured. A point is a slice that ended; the search time is the job's own."
            }
        };
        html += &charts::curves(&lines, end, what, caption);
    }
    html
}

fn time(view: &View) -> String {
    let shares: Vec<(String, f64)> = view
        .jobs
        .iter()
        .map(|j| (j.name.clone(), seconds(j)))
        .collect();
    let chart = charts::shares(
        &shares,
        "search time (s)",
        "What the slices of each job took, those that are lost or under way left out.",
    );
    format!("<h2>Where the time went</h2>\n{chart}")
}

/// Winners, in at most so many bytes and some words: all of the first ones in two thirds of them, then what there is room for.
fn winners(campaign: &Campaign<'_>, room: usize) -> String {
    let mut html = "<h2>Winners</h2>\n<p>What limits each is the clock's word, which simulates. Where the page has room for it, what the search wrote down is there as well: as in the report of the job's own folder.</p>\n".to_owned();
    let jobs = campaign.view.jobs.iter().zip(campaign.jobs).enumerate();
    if campaign.jobs.len() > SHOWN {
        let all = campaign.jobs.len();
        html += &format!("<p class=\"note\">The first {SHOWN} of {all} jobs.</p>\n");
    }
    let mut rest = 2 * room / 3;
    for (n, (job, found)) in jobs.take(SHOWN) {
        let subject = match found {
            Ok(subject) => subject,
            Err(why) => {
                html += &format!(
                    "<h3>{}</h3>\n<p class=\"note\">{}</p>\n",
                    text(&job.name),
                    text(why)
                );
                continue;
            }
        };
        let manifest = subject.artifact.manifest();
        let kernels = facts::kernels(subject.tile, subject.schedule, subject.target);
        let us = job.best.as_ref().map_or(manifest.predicted_us, |b| b.us);
        let floor: f64 = kernels.iter().map(KernelFacts::floor_us).sum();
        let open = if n == 0 { " open" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(
            html,
            "<details{open}><summary>{} <span>{} {}, floor {}, {}</span></summary>\n{}",
            text(&job.name),
            text(words::us(us)),
            kind(manifest.measured_us.is_some()),
            text(words::us(floor)),
            manifest.state,
            in_short(subject, &kernels)
        );
        let all = (html.len() < rest).then(|| whole(subject, &kernels));
        match all.filter(|all| html.len() + all.len() <= rest) {
            Some(all) => html += &all,
            None => {
                rest = 0;
                let parts = [drawings(subject, &kernels), schedule(subject)];
                for part in parts {
                    if html.len() + part.len() <= room {
                        html += &part;
                    }
                }
            }
        }
        html += "</details>\n";
    }
    html
}

/// All that is said of a winner.
fn whole(subject: &Claims<'_>, kernels: &[KernelFacts]) -> String {
    let sections = [
        record::search(subject),
        details(subject, kernels),
        record::losers(subject),
        record::rejects(subject),
        record::evidence(subject),
    ];
    sections.iter().map(Section::within).collect()
}

/// The tilings of a winner's kernels.
fn drawings(subject: &Claims<'_>, kernels: &[KernelFacts]) -> String {
    let all = subject.tile.kernels.iter().enumerate().map(|(k, kernel)| {
        let title = format!("<h3>Kernel {k}: {}</h3>\n", text(words::us(kernels[k].us)));
        title + &tiling::drawing(subject.tile, kernel)
    });
    all.collect()
}

/// The schedule of a winner.
fn schedule(subject: &Claims<'_>) -> String {
    let schedule = subject.schedule.text(subject.tile);
    format!("<pre>{}</pre>\n", text(schedule.trim_end()))
}

fn about(campaign: &Campaign<'_>) -> String {
    format!(
        "<h2>About this page</h2>\n<p class=\"note\">Made by tilewright {} from the journal and the artifacts of {}. Jobs, curves and times are the journal's; floors and limits are what this version's models say of the artifacts. \
         The charts are drawn by Vega and Vega-Lite, whose licences are in the source of this page; it loads nothing.</p>\n",
        env!("CARGO_PKG_VERSION"),
        text(campaign.name)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::{Artifact, file, samples};
    use std::time::Duration;

    fn job(n: usize) -> JobView {
        JobView {
            id: n as i64,
            name: format!("job-{n}"),
            program_hash: String::new(),
            target: "h200".to_owned(),
            weight: 1.0,
            floor_us: 0.0,
            state: JobState::Done,
            reason: None,
            least: Duration::ZERO,
            is_leased: false,
            slices: Vec::new(),
            curve: Vec::new(),
            best: None,
            is_stale: false,
        }
    }

    /// However many jobs there are, all of which are named.
    #[test]
    fn a_page_has_at_most_two_megabytes() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("k");
        samples::put(&path, &samples::files("rows", "h200", 0));
        let artifact = Artifact::read(&path).expect("an artifact");
        let text = |name: &str| artifact.text(name).expect("a text");
        let parse = |name: &str| text(name).parse::<ir::Program>().expect("a program");
        let (program, expression) = (parse(file::PROGRAM), parse(file::EXPRESSION));
        let tile: ir::TileProgram = text(file::TILE).parse().expect("a tile program");
        let schedule = text(file::SCHEDULE);
        let schedule = ir::Schedule::parse(schedule, "schedule", &codegen::language(), &tile);
        let (schedule, target) = (schedule.expect("a schedule"), crate::target("h200"));
        let claims = Claims {
            artifact: &artifact,
            program: &program,
            expression: &expression,
            tile: &tile,
            schedule: &schedule,
            target: &target.expect("a target"),
        };
        let page = |count: usize| {
            let view = View {
                budget: Duration::from_secs(60),
                spent: Duration::ZERO,
                seed: 1,
                stopping: false,
                jobs: (0..count).map(job).collect(),
            };
            let jobs: Vec<Job<'_>> = (0..count).map(|_| Ok(claims)).collect();
            campaign(&Campaign {
                name: "night",
                view: &view,
                jobs: &jobs,
                running: false,
            })
        };
        let of = |page: &str, what: &str| page.matches(what).count();
        let losers = "<h3>The best losers</h3>";
        let few = page(3);
        assert_eq!((of(&few, "<summary>job-"), of(&few, losers)), (3, 3));
        let many = page(SHOWN);
        assert_eq!(of(&many, "<summary>job-"), SHOWN);
        assert!((1..SHOWN).contains(&of(&many, losers)));
        assert!(many.len() < 2_000_000, "{} bytes", many.len());
    }
}

//! `explain`: what it says of a line of the schedule is what comes of a schedule without that line.

use crate::artifacts::copied;
use crate::command_line::Place;
use serde_json::Value;
use std::fs;

fn explained(place: &Place) -> Value {
    let text = place.does(&["explain", "art", "--json", "--no-gpu"]);
    serde_json::from_str(&text).expect("one JSON object")
}

/// The schedule without a line of kernel 0 and those that rest on it, in a file.
fn write_without(place: &Place, line: &Value) {
    let mut schedule = place.does(&["show", "art", "--schedule"]);
    let all = followers(line).chain([&line["line"]]);
    for line in all.map(|l| l.as_str().expect("a line")) {
        let own = format!("  {line}\n");
        assert!(schedule.contains(&own), "no `{line}` in {schedule}");
        schedule = schedule.replacen(&own, "", 1);
    }
    fs::write(place.path("less.txt"), schedule).expect("writable");
}

fn followers(line: &Value) -> impl Iterator<Item = &Value> {
    line["followers"].as_array().into_iter().flatten()
}

const LESS: [&str; 11] = [
    "optimize",
    "twice.lax",
    "--target",
    "h200",
    "--no-gpu",
    "--schedule",
    "less.txt",
    "--tiling",
    "art",
    "-o",
    "less",
];

#[test]
fn a_line_is_worth_what_its_schedule_takes_more_without_it() {
    let place = copied();
    let explained = explained(&place);
    let lines = explained["transformations"].as_array().expect("lines");
    let schedule = place.does(&["show", "art", "--schedule"]);
    let said: Vec<&str> = lines.iter().filter_map(|l| l["line"].as_str()).collect();
    let there: Vec<&str> = schedule
        .lines()
        .map(str::trim)
        .filter(|l| !l.starts_with("kernel "))
        .collect();
    assert_eq!(said, there);
    let of = |kind: &str| -> Vec<&Value> {
        let first = lines.iter().filter(|l| l["kernel"] == 0);
        first
            .filter(|l| !l["without"][kind].is_null() || l["without"] == kind)
            .collect()
    };
    let line = |l: &Value| l["line"].as_str().expect("a line").to_owned();
    let number = |v: &Value| v.as_f64().expect("a number");
    let near = |x: f64, y: f64| (x - y).abs() < 1e-9 * y.abs();

    let (alone, with): (Vec<&Value>, Vec<&Value>) =
        (of("takes").into_iter()).partition(|l| followers(l).count() == 0);
    // One that is worth something alone, and one that is with those that rest on it.
    for takes in [alone.first(), with.first()] {
        let takes = *takes.expect("a line that is worth something");
        write_without(&place, takes);
        place.does(&[&LESS[..], &["--force"]].concat());
        let diff: Value =
            serde_json::from_str(&place.does(&["diff", "art", "less", "--json"])).expect("JSON");
        let [before, after] = ["before", "after"].map(|side| number(&diff[side]["clock_us"][0]));
        let (us, more) = (
            number(&takes["without"]["takes"]["us"]),
            number(&takes["without"]["takes"]["more_us"]),
        );
        assert!(
            near(after, us) && near(after - before, more),
            "{takes} and {diff}"
        );
        assert!(
            near(before, number(&explained["clock_us"][0])),
            "{explained}"
        );
    }

    let nothing = *of("nothing").first().expect("a line that changes nothing");
    write_without(&place, nothing);
    place.does(&[&LESS[..], &["--force"]].concat());
    let machines = ["art", "less"].map(|folder| place.does(&["show", folder, "--machine"]));
    assert_eq!(machines[0], machines[1], "{nothing}");

    let refused = of("refused");
    let one = *refused.first().expect("a line that cannot be left out");
    let why = one["without"]["refused"].as_str().expect("why");
    write_without(&place, one);
    let why = why.split("; ").next().expect("a fault");
    place.refuses(&LESS, 1, &[why]);
    for one in of("required") {
        assert!(line(one).starts_with("instruction "), "{one}");
    }
}

#[test]
fn the_text_says_the_same_and_what_is_not_known() {
    let place = copied();
    let text = place.does(&["explain", "art", "--no-gpu"]);
    let explained = explained(&place);
    for title in [
        "program",
        "rewrites",
        "expression",
        "corrections",
        "tiling",
        "schedule",
    ] {
        assert!(text.contains(&format!("=== {title}")), "{text}");
    }
    for one in explained["transformations"].as_array().expect("lines") {
        assert!(
            text.contains(one["line"].as_str().expect("a line")),
            "{one}"
        );
    }
    assert!(
        text.contains("no kernel of this artifact ever ran")
            && text.contains("nothing was measured")
    );
    let manifest = tilewright::artifact::read_manifest(&place.path("art")).expect("an artifact");
    let derivation = serde_json::to_value(&manifest.derivation).expect("JSON");
    assert_eq!(explained["derivation"], derivation);
    place.refuses(&["explain", "twice.lax"], 1, &["twice.lax"]);
    fs::write(place.path("art/schedule.txt"), "kernel 0\n").expect("writable");
    place.refuses(
        &["explain", "art"],
        1,
        &["changed after it was made", "schedule.txt"],
    );
}

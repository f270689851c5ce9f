//! Searches that somebody steers, and what differs between artifacts.

use crate::command_line::Place;
use serde_json::Value;
use std::fs;

const PRODUCT: &str = "program product\naxis i = 256, j = 512, k = 256\nx = parameter f16 [i, k]\nw = parameter f16 [k, j]\n\
                       return f16 [i, j] dot(x, w; k)\n";

const SEARCH: [&str; 9] = [
    "optimize",
    "product.lax",
    "--target",
    "h200",
    "--no-gpu",
    "--seed",
    "5",
    "--budget",
    "4s",
];

fn place() -> Place {
    let place = Place::new();
    fs::write(place.path("product.lax"), PRODUCT).expect("writable");
    place
}

fn searched(place: &Place, more: &[&str]) -> Value {
    let report = place.does(&[&SEARCH[..], more, &["--json"]].concat());
    serde_json::from_str(&report).expect("one JSON object")
}

#[test]
fn a_search_keeps_to_what_is_pinned_and_forbidden() {
    let place = place();
    let pinned = [
        "--pin",
        "instruction=mma.m16n8k16",
        "--pin",
        "pipeline=2",
        "--forbid",
        "registers",
    ];
    let report = searched(&place, &[&pinned[..], &["-o", "pinned"]].concat());
    assert!(
        report["remarks"]
            .to_string()
            .contains("pinned or forbidden"),
        "{report}"
    );
    let schedule = place.does(&["show", "pinned", "--schedule"]);
    for line in schedule.lines().filter(|l| l.contains("instruction")) {
        assert!(line.contains("= mma.m16n8k16"), "{schedule}");
    }
    assert!(
        schedule.contains("instruction") && !schedule.contains("registers"),
        "{schedule}"
    );
    for line in schedule.lines().filter(|l| l.contains("pipeline")) {
        assert!(line.contains("2 stages"), "{schedule}");
    }

    // What nothing can say is not said to be so.
    assert!(
        !report["remarks"]
            .to_string()
            .contains("no kernel of the result")
    );
    let wished = ["--pin", "instruction=fma", "--pin", "turns"];
    let unsaid = searched(&place, &[&wished[..], &["-o", "unsaid"]].concat());
    assert!(
        unsaid["remarks"]
            .to_string()
            .contains("`turns` was pinned and no kernel of the result says it"),
        "{unsaid}"
    );

    // Another one goes on from there, and what differs is told.
    let before = report["best"]["predicted_us"].as_f64().expect("a time");
    let seeded = searched(&place, &["--seed-from", "pinned", "-o", "seeded"]);
    let after = seeded["best"]["predicted_us"].as_f64().expect("a time");
    assert!(after <= before, "{after} after {before}");
    let text = place.does(&["diff", "pinned", "pinned"]);
    assert!(text.contains("both have the same program"), "{text}");
    let differs = place.does(&["diff", "pinned", "seeded", "--json"]);
    let differs: Value = serde_json::from_str(&differs).expect("one JSON object");
    let clock = |which: &str| -> f64 {
        let each = differs[which]["clock_us"].as_array().expect("times");
        each.iter().filter_map(Value::as_f64).sum()
    };
    assert!(clock("after") <= clock("before") + 1e-9, "{differs}");
    assert_eq!(differs["before"]["measured_us"], Value::Null);
    assert_eq!(
        (&differs["before"]["timed_on"], &differs["comparable"]),
        (&Value::Null, &Value::Null)
    );
    let text = place.does(&["diff", "pinned", "seeded"]);
    for part in [
        "clock us",
        "roofline us",
        "measured warm us",
        "pinned",
        "seeded",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let schedules = ["pinned", "seeded"].map(|art| place.does(&["show", art, "--schedule"]));
    assert_eq!(
        schedules[0] != schedules[1],
        text.contains("=== schedule ==="),
        "{text}"
    );
}

/// With no time for anything else the result is what it began with.
#[test]
fn a_search_begins_with_an_artifact() {
    let place = place();
    // The clock would put another schedule first.
    searched(&place, &["--pin", "instruction=fma", "-o", "first"]);
    let run = place.run(
        &[
            &SEARCH[..8],
            &["1ms", "--seed-from", "first", "-o", "second", "--verbose"],
        ]
        .concat(),
    );
    let said = String::from_utf8(run.stderr).expect("UTF-8");
    assert!(run.status.success(), "{said}");
    let show = |art: &str| place.does(&["show", art, "--schedule"]);
    assert_eq!(show("first"), show("second"), "{said}");
    let tile = |art: &str| fs::read_to_string(place.path(art).join("tile.txt")).expect("a text");
    assert_eq!(tile("first"), tile("second"));
    place.does(&["verify", "second", "--replay"]);
}

#[test]
fn wishes_that_nobody_can_fulfil_are_told() {
    let place = place();
    for (words, parts) in [
        (
            ["--pin", "instructions=fma"],
            &[
                "--pin 'instructions=fma': expected the first word of a schedule's line",
                "is it `instruction`?",
            ][..],
        ),
        (
            ["--pin", "instruction=wgmma"],
            &["expected one of `fma`", "found `wgmma`"],
        ),
        (
            ["--forbid", "pipeline=many"],
            &[
                "--forbid 'pipeline=many': expected a number N from 1 to",
                "found `many`",
            ],
        ),
        (
            ["--forbid", "delayed twice"],
            &["expected no more in a line `delayed`, found `twice`"],
        ),
        (
            ["--pin", ""],
            &["one of `instruction`, `warps`", "found ``"],
        ),
        (["--seed-from", "none"], &["none"]),
    ] {
        let words = [&SEARCH[..], &words[..]].concat();
        place.refuses(&words, 1, parts);
    }
    let nothing = [
        "--pin",
        "instruction=fma",
        "--forbid",
        "instruction=fma",
        "--budget",
        "1s",
    ];
    place.refuses(
        &[&SEARCH[..7], &nothing[..]].concat(),
        3,
        &["no candidate passed"],
    );
    place.refuses(&["diff", "none", "none"], 1, &["none"]);
}

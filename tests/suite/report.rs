//! Reports of artifacts: what they say is the manifest's, they load nothing, and they replace nothing else.

use crate::artifacts::copied;
use serde_json::Value;
use std::fs;
use tilewright::artifact::read_manifest;
use tilewright::report::words;

/// The rows of the table below a title.
fn rows<'a>(page: &'a str, title: &str) -> Vec<&'a str> {
    let below = page.split_once(title).expect("the section").1;
    let table = below.split_once("<tbody>").expect("a table").1;
    let table = table.split_once("</tbody>").expect("its end").0;
    table.split("<tr>").skip(1).collect()
}

/// What stands in the cells of a row, without marks.
fn cells(row: &str) -> Vec<String> {
    let cells = row.split("<td").skip(1).map(|cell| {
        let mut text = String::new();
        let mut inside = true;
        for c in cell.chars() {
            match c {
                '<' => inside = true,
                '>' => inside = false,
                c if !inside => text.push(c),
                _ => {}
            }
        }
        text
    });
    cells.collect()
}

#[test]
fn a_report_says_what_the_manifest_says() {
    let place = copied();
    let said = place.does(&["report", "art"]);
    assert!(said.contains("art.html"), "{said}");
    let page = fs::read_to_string(place.path("art.html")).expect("a report");
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    let manifest = read_manifest(&place.path("art")).expect("an artifact");
    let history = &manifest.history;

    // The figures on top.
    assert!(page.contains("<span class=\"badge simulated\">simulated</span>"));
    for figure in [
        words::us(manifest.predicted_us),
        manifest.candidates.to_string(),
        words::operations(manifest.flops),
        words::bytes(manifest.bytes),
        manifest.launches.len().to_string(),
    ] {
        assert!(page.contains(&format!("<b>{figure}</b>")), "{figure}");
    }

    // A row and a block for each kernel: their times are the whole's.
    let kernels = rows(&page, "<h2 id=\"limits\">");
    assert_eq!(kernels.len(), manifest.launches.len());
    let us = |text: &str| -> f64 { text.trim_end_matches(" us").parse().expect("a time") };
    let sum: f64 = kernels.iter().map(|row| us(&cells(row)[2])).sum();
    let near = (sum - manifest.predicted_us).abs() < 0.02 * manifest.predicted_us;
    assert!(near, "{sum} and {}", manifest.predicted_us);
    for (row, launch) in kernels.iter().zip(&manifest.launches) {
        let (time, floor) = (us(&cells(row)[2]), us(&cells(row)[3]));
        assert!(floor < time, "{row} of {}", launch.entry);
    }
    assert_eq!(
        page.matches("<summary>Kernel ").count(),
        manifest.launches.len()
    );
    assert!(page.matches("class=\"tiling\"").count() >= manifest.launches.len());
    assert!(page.contains("Limited by "));

    // Each improvement, with what changed.
    assert!(!history.improvements.is_empty());
    let list = page
        .split_once("<ol class=\"improvements\">")
        .expect("a list")
        .1;
    let list = list.split_once("</ol>").expect("its end").0;
    let items: Vec<&str> = list.split("<li><b>").skip(1).collect();
    assert_eq!(items.len(), history.improvements.len());
    for (item, one) in items.iter().zip(&history.improvements) {
        assert!(item.contains(&words::us(one.us)) && !one.measured, "{item}");
    }
    let last = history.improvements.last().expect("one");
    assert_eq!(last.us, manifest.predicted_us);

    let losers = rows(&page, "<h2 id=\"losers\">");
    assert_eq!(losers.len(), history.losers.len());
    assert!((1..=20).contains(&losers.len()));
    for (row, loser) in losers.iter().zip(&history.losers) {
        let cells = cells(row);
        assert_eq!(cells[3..5], [words::us(loser.us), words::us(loser.best_us)]);
        let why = cells[5].as_str();
        let is_said = why.contains("slower") || why.contains("faster") || why.contains("as fast");
        assert!(is_said, "{why}");
    }

    let rejects = rows(&page, "<h2 id=\"rejects\">");
    assert_eq!(rejects.len(), manifest.rejected.len());
    for row in &rejects {
        let cells = cells(row);
        let reason = cells[0].replace(' ', "_");
        assert_eq!(cells[1], manifest.rejected[&reason].to_string());
        assert!(!cells[3].is_empty(), "no example of {reason}");
    }

    let checks = rows(&page, "<h2 id=\"evidence\">");
    assert_eq!(checks.len(), manifest.claims.len());
    assert!(page.contains("Simulated: the tile program was interpreted"));
    assert!(page.contains(&manifest.seal));

    // Nothing is measured, and nothing says so.
    assert!(!page.contains("measured, inputs in L2"));

    // The same again: a report gives way to a report.
    place.does(&["report", "art", "-o", "art.html"]);
    assert_eq!(
        fs::read_to_string(place.path("art.html")).expect("a report"),
        page
    );
}

/// What a browser would load is forbidden by the page itself, and nothing asks for it.
#[test]
fn a_report_loads_nothing() {
    let place = copied();
    place.does(&["report", "art", "-o", "r.html"]);
    let page = fs::read_to_string(place.path("r.html")).expect("a report");
    assert!(page.contains("content=\"default-src 'none'; "));
    for attribute in [" src=", " href=", "@import", "url("] {
        for (at, _) in page.match_indices(attribute) {
            let rest = &page[at + attribute.len()..];
            let rest = rest.trim_start_matches(['"', '\'']);
            let own = rest.starts_with('#') || !rest.starts_with("http") && !rest.starts_with("//");
            assert!(own, "{attribute}{}", &rest[..rest.len().min(80)]);
        }
    }
    // Each chart is JSON, and its data are there.
    let charts: Vec<&str> = page
        .split("<script type=\"application/json\">")
        .skip(1)
        .collect();
    let manifest = read_manifest(&place.path("art")).expect("an artifact");
    assert!(charts.len() > 2 * manifest.launches.len());
    for chart in charts {
        let text = chart.split_once("</script>").expect("its end").0;
        let value: Value = serde_json::from_str(text).expect("JSON");
        let rows = value["table"]["rows"].as_array().expect("rows");
        assert!(!rows.is_empty() && value["spec"]["data"].is_null());
    }
}

#[test]
fn what_is_no_report_and_what_has_none_is_refused() {
    let place = copied();
    fs::write(place.path("mine.html"), "<!doctype html>\nmine").expect("writable");
    let to_mine = ["report", "art", "-o", "mine.html"];
    place.refuses(
        &to_mine,
        1,
        &["mine.html", "found a file that is none", "--force"],
    );
    let mine = fs::read_to_string(place.path("mine.html")).expect("it is there");
    assert_eq!(mine, "<!doctype html>\nmine");
    place.does(&["report", "art", "-o", "mine.html", "--force"]);
    for force in [&[][..], &["--force"]] {
        let to_folder = [&["report", "art", "-o", "art"], force].concat();
        place.refuses(
            &to_folder,
            1,
            &["art: expected nothing or a report", "a folder"],
        );
    }
    let nowhere = ["report", "art", "-o", "no/where.html"];
    place.refuses(&nowhere, 1, &["no/where.html", "No such file"]);
    fs::create_dir(place.path("empty")).expect("writable");
    for (folder, found) in [
        ("empty", "no manifest and no journal"),
        ("absent", "No such file"),
        ("twice.lax", "found a file"),
    ] {
        let expected = [
            folder,
            "expected the folder of an artifact",
            "of a campaign",
            found,
        ];
        place.refuses(&["report", folder, "-o", "x.html"], 1, &expected);
    }
    let text = fs::read_to_string(place.path("art/tile.txt")).expect("a file");
    fs::write(place.path("art/tile.txt"), text + "\n").expect("writable");
    let changed = ["report", "art", "-o", "x.html"];
    place.refuses(&changed, 1, &["changed after it was made", "tile.txt"]);
    let format = fs::read_to_string(place.path("art/manifest.json")).expect("a file");
    let own = tilewright::artifact::FORMAT;
    let named = |format: u32| format!("\"format\": {format}");
    let old = format.replacen(&named(own), &named(own - 1), 1);
    fs::write(place.path("art/manifest.json"), old).expect("writable");
    let refused = format!("an artifact of format {}", own - 1);
    place.refuses(&changed, 1, &[refused.as_str(), "make it again"]);
}

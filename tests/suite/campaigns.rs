//! Campaigns on the command line, without a GPU.

use crate::command_line::Place;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tilewright::artifact::{Artifact, State, read_manifest};

const PLAN: &str = "budget = \"20s\"\ntarget = \"h200\"\nseed = 5\n\
                    [[program]]\nfile = \"rows.lax\"\nextents = { i = [6, 8], j = 16 }\n\
                    [[program]]\nfile = \"rows.lax\"\nname = \"wide\"\nweight = 2.5\n";

fn planned() -> Place {
    let place = Place::new();
    fs::write(place.path("plan.toml"), PLAN).expect("writable");
    place
}

fn status(place: &Place) -> Value {
    let status = place.does(&["campaign", "status", "out/plan", "--json"]);
    serde_json::from_str(&status).expect("one JSON object")
}

#[test]
fn a_campaign_makes_an_artifact_for_each_job() {
    let place = planned();
    let dry = place.does(&["campaign", "plan", "plan.toml", "--dry-run"]);
    assert!(
        dry.contains("rows-i6-j16") && dry.contains("3 jobs within 20s"),
        "{dry}"
    );
    assert!(!place.path("out").exists(), "a dry run made something");
    let run = ["campaign", "run", "plan.toml", "--no-gpu", "--workers", "2"];
    let said = place.does(&run);
    assert!(said.contains("3 results of 3 jobs"), "{said}");
    let report = status(&place);
    assert_eq!(
        (&report["seed"], &report["running"]),
        (&5.into(), &false.into())
    );
    let jobs = report["jobs"].as_array().expect("jobs");
    let names: Vec<&str> = jobs.iter().filter_map(|j| j["name"].as_str()).collect();
    assert_eq!(names, ["rows-i6-j16", "rows-i8-j16", "wide"]);
    for job in jobs {
        let folder = place.path(job["artifact"].as_str().expect("a path"));
        let artifact = Artifact::read(&folder).expect("an artifact");
        artifact.check().expect("as it was written");
        assert_eq!(job["seal"], artifact.manifest().seal.as_str());
        assert_eq!(artifact.manifest().state, State::Simulated);
        assert_eq!(artifact.manifest().seed, 5);
        assert_eq!(job["us"], artifact.manifest().predicted_us);
    }
    // The extents are those of the plan.
    let manifest = read_manifest(&place.path("out/plan/artifacts/rows-i8-j16"));
    assert_eq!(manifest.expect("an artifact").parameters[0].shape, [8, 16]);

    let made = place.does(&["report", "out/plan"]);
    assert!(made.contains("out/plan.html"), "{made}");
    // All that is said of an artifact is said of each winner.
    let own = place.does(&["campaign", "report", "out/plan", "-o", "own.html"]);
    assert!(own.contains("own.html"), "{own}");
    let own = fs::read_to_string(place.path("own.html")).expect("a report");
    for section in ["The best losers", "Rejects by reason", "What was checked"] {
        let heading = format!("<h3>{section}</h3>");
        assert_eq!(own.matches(&heading).count(), 3, "{section}");
    }
    let no_campaign = ["campaign", "report", "out/plan/artifacts/wide"];
    place.refuses(&no_campaign, 1, &["expected the folder of a campaign"]);
    let page = fs::read_to_string(place.path("out/plan.html")).expect("a report");
    assert!(page.len() < 2_000_000);
    for job in jobs {
        let (name, us) = (job["name"].as_str(), job["us"].as_f64());
        let cell = format!("<td>{}</td>", name.expect("a name"));
        let time = tilewright::report::words::us(us.expect("a time"));
        let row = page.split("<tr>").find(|row| row.starts_with(&cell));
        let row = row.expect("a row of the job");
        assert!(row.contains(&time) && row.contains("by the clock"), "{row}");
        let summary = format!("<summary>{} <span>{time}", name.expect("a name"));
        assert!(page.contains(&summary), "{summary}");
    }

    place.does(&["campaign", "best", "out/plan", "-o", "best"]);
    let seal = |path: &str| read_manifest(&place.path(path)).expect("an artifact").seal;
    assert_eq!(seal("best/wide"), seal("out/plan/artifacts/wide"));
    place.does(&["verify", "best/wide", "--replay"]);
    // Again, and in the stead of what is there.
    place.does(&["campaign", "best", "out/plan", "-o", "best"]);
    let again = place.does(&["campaign", "resume", "out/plan", "--no-gpu"]);
    assert!(again.contains("3 results of 3 jobs"), "{again}");
    let idle = place.does(&["campaign", "stop", "out/plan"]);
    assert!(idle.contains("it does not run"), "{idle}");
    // What is refused changes nothing.
    let less = [
        "campaign", "resume", "out/plan", "--no-gpu", "--budget", "1ms",
    ];
    place.refuses(&less, 1, &["the budget of 1ms is spent"]);
    assert_eq!(status(&place)["budget_seconds"], report["budget_seconds"]);
    let here = ["out/plan: a campaign is here already", "resume", "-o DIR"];
    place.refuses(&run, 1, &here);
    fs::write(place.path("best/wide/notes.md"), "mine").expect("writable");
    let best = ["campaign", "best", "out/plan", "-o", "best"];
    place.refuses(&best, 1, &["`notes.md` (a file)"]);
}

#[test]
fn what_is_gone_is_made_again() {
    let place = planned();
    let made = place.does(&["campaign", "plan", "plan.toml"]);
    assert!(
        made.contains("`tilewright campaign resume out/plan` starts it"),
        "{made}"
    );
    let resume = ["campaign", "resume", "out/plan", "--no-gpu"];
    place.does(&resume);
    // Somebody took one away, and changed another one.
    fs::remove_dir_all(place.path("out/plan/artifacts/wide")).expect("it was there");
    let changed = place.path("out/plan/artifacts/rows-i6-j16/kernel.cu");
    fs::write(&changed, "nothing").expect("writable");
    let best = place.does(&["campaign", "best", "out/plan", "-o", "best"]);
    assert!(
        best.contains("rows-i8-j16") && !best.contains("wide"),
        "{best}"
    );
    assert!(
        !best.contains("rows-i6-j16"),
        "what was changed is no result: {best}"
    );
    // What is gone is made again; what is not as it was written is left alone, and it is said.
    let resumed = place.run(&resume);
    assert_eq!(resumed.status.code(), Some(3), "{resumed:?}");
    let said = String::from_utf8(resumed.stdout).expect("UTF-8");
    assert!(said.contains("2 results of 3 jobs"), "{said}");
    assert!(
        said.contains("rows-i6-j16: ") && said.contains("kernel.cu"),
        "{said}"
    );
    read_manifest(&place.path("out/plan/artifacts/wide")).expect("an artifact");
    assert_eq!(fs::read_to_string(&changed).expect("readable"), "nothing");
}

#[test]
fn what_cannot_be_a_campaign_is_refused() {
    let place = planned();
    let none = [
        "out/none: expected the folder of a campaign",
        "found no journal",
    ];
    for words in [
        &["campaign", "status", "out/none"][..],
        &["campaign", "stop", "out/none"],
        &["campaign", "resume", "out/none", "--no-gpu"],
        &["campaign", "best", "out/none", "-o", "best"],
    ] {
        place.refuses(words, 1, &none);
    }
    let wrong = PLAN
        .replace("20s", "20")
        .replace("weight = 2.5", "weight = -1");
    fs::write(place.path("wrong.toml"), wrong).expect("writable");
    let faults = [
        "wrong.toml:1:10: expected a unit",
        "wrong.toml:10:10: expected a weight above 0",
    ];
    place.refuses(&["campaign", "run", "wrong.toml", "--no-gpu"], 1, &faults);
    place.refuses(
        &["campaign", "run", "no.toml"],
        1,
        &["no.toml: No such file"],
    );
    fs::create_dir(place.path("mine")).expect("writable");
    fs::write(place.path("mine/notes.md"), "mine").expect("writable");
    let run = ["campaign", "run", "plan.toml", "--no-gpu", "-o", "mine"];
    place.refuses(&run, 1, &["mine: something else is here already"]);
    // A journal of something else stays as it is.
    fs::create_dir(place.path("other")).expect("writable");
    fs::write(place.path("other/journal.sqlite"), "text".repeat(100)).expect("writable");
    let foreign = ["expected the journal of a campaign, found another file"];
    place.refuses(&["campaign", "status", "other"], 1, &foreign);
}

/// What is no server, or has no journal, is said at once, without the password; no folder is left.
#[test]
fn servers_that_are_not_there_are_refused() {
    let place = planned();
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let nobody = format!(
        "postgres://ann:s3cret@127.0.0.1:{}/night",
        free.expect("a port").port()
    );
    let no_address = "expected an address such as postgres://USER@HOST:5432/DATABASE";
    let refuses = |words: &[&str], code: i32, parts: &[&str]| {
        place.refuses(words, code, parts);
        let said = place.run(words).stderr;
        assert!(
            !String::from_utf8_lossy(&said).contains("s3cret"),
            "{words:?}"
        );
    };
    for (url, part) in [
        (&*nobody, "refused"),
        ("postgres://ann:s3cret@/night", no_address),
        ("postgres://ann:s3cret@db:x/night", no_address),
        ("postgres://ann:s3cret@db", no_address),
    ] {
        refuses(
            &["campaign", "run", "plan.toml", "--no-gpu", "--journal", url],
            1,
            &[part],
        );
        for words in [
            &["campaign", "join", url, "--no-gpu"][..],
            &["campaign", "status", url],
            &["campaign", "stop", url],
            &["campaign", "best", url, "-o", "best"],
        ] {
            refuses(words, 1, &[part]);
        }
    }
    // What the parser of the command line repeats.
    refuses(
        &["campaign", "status", "here", &nobody],
        2,
        &["postgres://ann@"],
    );
    place.does(&["campaign", "plan", "plan.toml"]);
    let file = ["its journal is a file", "--journal URL"];
    refuses(&["campaign", "join", "out/plan", "--no-gpu"], 1, &file);
    let compiles = ["campaign", "join", "out/plan", "--compile-only"];
    refuses(&compiles, 1, &file);
    for other in [
        "--no-gpu",
        "--gpus=2",
        "--no-log",
        "--db=kernels",
        "--workers=0",
    ] {
        let name = other.split('=').next().unwrap_or(other);
        refuses(&[&compiles[..], &[other]].concat(), 2, &[name]);
    }
    refuses(
        &["campaign", "resume", "out/plan", "-o", "here"],
        1,
        &["-o goes with the address"],
    );
    fs::create_dir(place.path("odd")).expect("writable");
    fs::write(place.path("odd/journal.url"), "s3cret").expect("writable");
    refuses(
        &["campaign", "status", "odd"],
        1,
        &["odd/journal.url: expected the address of a journal"],
    );
}

/// The page's plan and its commands, in their order; with less time, and small programs in the stead of the examples.
#[test]
fn the_page_of_campaigns_says_what_works() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/campaigns.md")).expect("a page");
    let place = Place::new();
    fs::create_dir(place.path("examples")).expect("writable");
    for name in ["gqa", "rmsnorm_linear_t2", "rmsnorm_linear_t16"] {
        assert!(root.join(format!("examples/{name}.lax")).is_file());
        let text = format!(
            "program {name}\naxis b = 2, j = 8\nx = parameter f32 [b, j]\nreturn f32 [b] sum(x; j)\n"
        );
        fs::write(place.path(&format!("examples/{name}.lax")), text).expect("writable");
    }
    let block = |start: &str| {
        let text = page.split(start).nth(1).expect("a block");
        text.split("\n```").next().expect("its end").to_owned()
    };
    let plan = block("```toml\n").replace("8h", "20s");
    fs::write(place.path("plan.toml"), plan).expect("writable");
    let (mut count, mut left_out) = (0, 0);
    // Every block of commands.
    let parts = page
        .split("\n```\n")
        .filter(|part| part.starts_with("tilewright "));
    let lines: Vec<&str> = parts
        .flat_map(|part| part.split("\n```").next().unwrap_or_default().lines())
        .collect();
    let url = crate::server::database();
    for line in lines {
        let line = line.split('#').next().unwrap_or_default();
        let line = line.replace("9h", "30s");
        let line = match (&url, line.contains("postgres://")) {
            (Some(url), true) => line.replace("postgres://ann@db/night", url),
            (None, true) => {
                left_out += 1;
                continue;
            }
            (_, false) => line,
        };
        let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let compiles = words.contains(&"--compile-only");
        if ["run", "resume", "join"].contains(&words[1]) && !compiles {
            words.push("--no-gpu");
        }
        if words[1] == "slurm" && !words.contains(&"--dry-run") {
            // `slurm.rs` submits one.
            words.push("--dry-run");
        }
        count += 1;
        let required = std::env::var_os("TILEWRIGHT_REQUIRE_NVRTC").is_some_and(|v| v == "1");
        let run = place.run(&words);
        let said = String::from_utf8_lossy(&run.stderr);
        let has_none = said.contains("cannot compile for others: nvrtc was not found");
        let may_fail = compiles && has_none && !required;
        assert!(run.status.success() || may_fail, "{words:?}: {said}");
    }
    let places = if url.is_some() { [25, 0] } else { [15, 10] };
    assert_eq!([count, left_out], places);
    for job in [
        "gqa-b1-j4096",
        "gqa-b8-j1024",
        "rmsnorm_linear_t2",
        "rmsnorm_linear_t16",
    ] {
        read_manifest(&place.path("out/best").join(job)).expect("an artifact");
    }
}

#[test]
fn databases_of_artifacts_are_merged_exported_and_pruned() {
    let place = planned();
    place.does(&["campaign", "run", "plan.toml", "--no-gpu"]);
    let folders = "out/plan/artifacts";
    let import = |db: &str, folder: &str| place.does(&["db", "--db", db, "import", folder]);
    assert!(import("one", folders).contains("3 new artifacts in one"));
    assert!(import("one", &format!("{folders}/wide")).contains("0 new artifacts"));
    assert!(import("other", &format!("{folders}/wide")).contains("1 new artifact in other"));
    let list = |db: &str, more: &[&str]| -> Vec<Value> {
        let text = place.does(&[&["db", "--db", db, "ls", "--json"], more].concat());
        serde_json::from_str(&text).expect("a JSON array")
    };
    let merged = place.does(&["db", "merge", "one", "--db", "other"]);
    assert!(merged.contains("2 new artifacts in other"), "{merged}");
    assert_eq!(list("one", &[]), list("other", &[]));
    assert_eq!(
        list("one", &["--program", "rows", "--target", "h200"]).len(),
        3
    );
    assert_eq!(list("one", &["--target", "h100"]), [0; 0]);
    let entry = list("one", &[]).remove(0);
    let seal = entry["seal"].as_str().expect("a seal").to_owned();
    let shown = place.does(&["db", "--db", "one", "show", &seal[..10]]);
    let manifest: Value = serde_json::from_str(&shown).expect("a manifest");
    assert_eq!(manifest["seal"], entry["seal"]);
    let exported = place.does(&["db", "--db", "one", "export", "all"]);
    assert!(exported.contains("3 artifacts in all"), "{exported}");
    let name = format!("all/rows-h200-{}", &seal[..12]);
    place.does(&["verify", &name, "--replay"]);
    assert!(import("third", "all").contains("3 new artifacts"));
    assert_eq!(list("third", &[]), list("one", &[]));
    // Each is of another program: all stay.
    let pruned = place.does(&["db", "--db", "third", "prune"]);
    assert!(pruned.contains("0 artifacts removed"), "{pruned}");
    let text = place.does(&["db", "--db", "third", "ls"]);
    assert!(
        text.contains("simulated") && text.contains("3 artifacts in third"),
        "{text}"
    );

    for (words, parts) in [
        (&["ls"][..], &["none: No such file"][..]),
        (
            &["merge", "plan.toml"],
            &["expected a database of artifacts, found another file"],
        ),
        (&["import", "out"], &["out: no artifact is in it"]),
        (&["import", "nowhere"], &["nowhere: No such file"]),
        (&["show", "00"], &["none"]),
    ] {
        place.refuses(&[&["db", "--db", "none"], words].concat(), 1, parts);
    }
    place.refuses(
        &["db", "--db", "one", "show", ""],
        1,
        &["3 artifacts have seals"],
    );
    place.refuses(
        &["db", "--db", "one", "show", "x"],
        1,
        &["no artifact has a seal"],
    );
    // What only looks right is neither shown nor merged.
    let text = fs::read_to_string(
        place
            .path("all")
            .join(&name["all/".len()..])
            .join("tile.txt"),
    );
    fs::write(
        place.path(&name).join("tile.txt"),
        text.expect("a text") + "#",
    )
    .expect("writable");
    place.refuses(
        &["db", "--db", "one", "import", "all"],
        1,
        &["tile.txt does not fit its hash"],
    );
}

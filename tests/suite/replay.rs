//! Replays: whatever an artifact says that is not so is found, with whatever hashes it is said, and what is not done again is told.

use crate::artifacts::{REPLAY, copied};
use crate::command_line::Place;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tilewright::artifact::{self, Artifact, Manifest, file};

/// Changes the manifest, and its seal with it: what somebody does who knows the format.
fn forge(folder: &Path, change: impl FnOnce(&mut Value)) {
    let before = artifact::read_manifest(folder).expect("a manifest");
    let mut value = serde_json::to_value(&before).expect("JSON");
    change(&mut value);
    let mut manifest: Manifest = serde_json::from_value(value).expect("a manifest");
    assert_ne!(manifest, before, "nothing is changed");
    manifest.seal = manifest.sealed();
    fs::write(folder.join(file::MANIFEST), manifest.text()).expect("writable");
}

/// Changes a file, and its hash and the seal with it.
fn forge_file(folder: &Path, name: &str, change: impl FnOnce(&str) -> String) {
    let text = fs::read_to_string(folder.join(name)).expect("a file");
    let changed = change(&text);
    assert_ne!(text, changed, "{name} is not changed");
    fs::write(folder.join(name), &changed).expect("writable");
    forge(folder, |m| {
        m["files"][name] = json!(artifact::hash(changed.as_bytes()));
    });
}

/// The expression of an artifact may have two axes for one of its program: it says so, and what it records is replayed all the same.
#[test]
fn a_divided_axis_is_told_and_replayed() {
    let place = Place::new();
    let text = "program long\naxis t = 2, m = 65536\nx = parameter f32 [t, m]\nreturn f32 [t, m] layer_norm(x; m, 1e-5)\n";
    fs::write(place.path("long.lax"), text).expect("writable");
    let all = ["--target", "h200", "--no-gpu", "-o"];
    place.does(
        &[
            &["optimize", "long.lax", "--budget", "10s"],
            &all[..],
            &["art"],
        ]
        .concat(),
    );
    let text = place.does(&["show", "art"]);
    for part in [
        "x = parameter f32 [t, m]",
        "x = parameter f32 [t, (m_outer m_inner)]",
        "with m = 2048·m_outer + m_inner",
        "sum-in-parts",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    // Of this one the expression is the program but for the axes, and has its values in another order.
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/long_rows.lax");
    place.does(&[&["optimize", own, "--budget", "1s"], &all[..], &["own"]].concat());
    for folder in ["art", "own"] {
        let text = place.does(&["verify", folder, "--replay"]);
        for part in ["replayed: rules: ", "replayed: tiling: "] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
    }
}

#[test]
fn an_artifact_is_replayed_and_says_what_is_not() {
    let place = copied();
    let text = place.does(REPLAY);
    let manifest = artifact::read_manifest(&place.path("art")).expect("a manifest");
    for part in [
        "replayed: rules: ",
        "replayed: tiling: the same outcome",
        "drawn from seed 11",
        "replayed: text: ",
        "replayed: files: __init__.py, kernel.cu, ",
        "\nnot replayed: record: ",
        "the seed 11 are what the search wrote down",
        "\nnot replayed: kernel: the artifact records no run",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let counted = format!("{} candidates, ", manifest.candidates);
    assert!(text.contains(&counted), "no `{counted}` in {text}");
    let text = place.does(&["verify", "art", "--replay", "--json"]);
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    for list in ["replayed", "not_replayed"] {
        assert!(
            report[list].as_array().is_some_and(|l| l.len() > 1),
            "{report}"
        );
    }
    let text = place.does(&["show", "art"]);
    assert!(text.contains("why the expression is the program"), "{text}");
}

#[test]
fn what_was_changed_and_nothing_else_is_told_by_the_hashes() {
    let place = copied();
    for name in file::ALL {
        let path = place.path("art").join(name);
        let Ok(bytes) = fs::read(&path) else {
            assert_eq!(name, file::CUBIN, "it is not there");
            continue;
        };
        let mut changed = bytes.clone();
        let at = changed.iter().rposition(u8::is_ascii_digit);
        changed[at.expect("a digit")] ^= 1;
        fs::write(&path, &changed).expect("writable");
        place.refuses(REPLAY, 1, &["changed after it was made", name]);
        fs::write(&path, &bytes).expect("writable");
    }
    place.does(REPLAY);
}

/// Each field of a manifest either is derived again, or is told to be the search's own record, or binds the files.
#[test]
fn no_field_of_a_manifest_can_be_invented() {
    let workspace = |m: &Value| {
        let buffers = m["buffers"].as_array().expect("a list");
        let at = buffers.iter().position(|b| b["role"] == "workspace");
        at.expect("a workspace between the kernels")
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let derived: [(&str, Change<'_>, &str); 19] = [
        (
            "program",
            &|m| m["program"] = json!("thrice"),
            "`program`: \"thrice\" is recorded",
        ),
        (
            "namespace",
            &|m| m["namespace"] = json!("aten"),
            "`namespace`",
        ),
        (
            "target",
            &|m| m["target"]["capability"] = json!(80),
            "`target.capability`",
        ),
        (
            "target",
            &|m| m["target"]["device"] = json!("H100"),
            "`target.device`",
        ),
        (
            "parameters",
            &|m| m["parameters"][0]["shape"][0] = json!(8),
            "`parameters[0].shape[0]`: 8 is recorded, and 512",
        ),
        (
            "parameters",
            &|m| m["parameters"][2]["name"] = json!("v"),
            "`parameters[2].name`",
        ),
        (
            "outputs",
            &|m| m["outputs"][0]["dtype"] = json!("f32"),
            "`outputs[0].dtype`",
        ),
        (
            "outputs",
            &|m| m["outputs"] = json!([]),
            "`outputs[0]`: null is recorded",
        ),
        (
            "buffers",
            &|m| {
                let w = workspace(m);
                m["buffers"][w]["bytes"] = json!(16);
            },
            ".bytes`: 16 is recorded",
        ),
        (
            "launches",
            &|m| m["launches"][0]["grid"][0] = json!(1),
            "`launches[0].grid[0]`",
        ),
        (
            "launches",
            &|m| m["launches"][1]["arguments"][0] = json!(0),
            "`launches[1].arguments",
        ),
        ("flops", &|m| m["flops"] = json!(1), "`flops`"),
        ("bytes", &|m| m["bytes"] = json!(1), "`bytes`"),
        (
            "predicted_us",
            &|m| m["predicted_us"] = json!(0.5),
            "`predicted_us`: 0.5 is recorded",
        ),
        (
            "state",
            &|m| m["state"] = json!("verified"),
            "`state`: \"verified\" is recorded",
        ),
        (
            "claims",
            &|m| m["claims"] = json!(["kernel: 7 input distributions at full shape"]),
            "`claims[0]`",
        ),
        (
            "derivation",
            &|m| m["derivation"] = json!("not_found"),
            "rules: ",
        ),
        (
            "evidence",
            &|m| m["evidence"]["tiling"]["exact"] = json!(99_999),
            "tiling: ",
        ),
        (
            "machine",
            &|m| m["machine"]["elements"] = json!(99_999),
            "`machine.elements`",
        ),
    ];
    for (_, change, part) in &derived {
        let place = copied();
        forge(&place.path("art"), change);
        place.refuses(REPLAY, 3, &[part]);
    }
    let place = copied();
    forge(&place.path("art"), |m| {
        let claims = m["claims"].as_array_mut().expect("a list");
        claims.push(json!(
            "kernel: 7 input distributions at full shape, largest error 3 % of what is allowed"
        ));
    });
    place.refuses(REPLAY, 3, &["`claims["]);

    // Nothing derives these: they are shown as what they are.
    let recorded: [(&str, Change<'_>, &str); 5] = [
        (
            "candidates",
            &|m| m["candidates"] = json!(70_001),
            "70001 candidates",
        ),
        (
            "rejected",
            &|m| m["rejected"] = json!({"registers": 80_001}),
            "80001 rejected",
        ),
        (
            "search",
            &|m| m["search"] = json!("interrupted"),
            "that the search was interrupted",
        ),
        (
            "history",
            &|m| m["history"]["improvements"] = json!([]),
            "its history of 0 improvements",
        ),
        ("seed", &|m| m["seed"] = json!(90_001), "the seed 90001"),
    ];
    for (_, change, part) in &recorded {
        let place = copied();
        forge(&place.path("art"), change);
        let text = place.does(REPLAY);
        let line = text
            .lines()
            .find(|l| l.starts_with("not replayed: record: "));
        assert!(
            line.is_some_and(|l| l.contains(part)),
            "no `{part}` in {text}"
        );
    }
    // A time of a kernel that was not compiled, or under which no kernel can be.
    let place = copied();
    let timing = json!({
        "median_us": 0.001, "p10_us": 0.001, "p90_us": 0.001, "min_us": 0.001, "samples": 9, "replays": 1, "drift": 0.0, "steady": true
    });
    let compiled = place.path("art").join(file::CUBIN).exists();
    forge(&place.path("art"), |m| {
        m["measured_us"] =
            json!({"warm": timing, "cold": timing, "copies": 1, "copies_exceed_l2": false});
    });
    let part = if compiled {
        "needed by the roofline"
    } else {
        "cubin: there is none"
    };
    place.refuses(REPLAY, 3, &[part]);

    let others = [
        "format",
        "tilewright",
        "measured_us",
        "cubin",
        "files",
        "seal",
    ];
    let known: BTreeSet<&str> = (derived.iter().chain(&recorded))
        .map(|(name, _, _)| *name)
        .chain(others)
        .collect();
    let manifest = artifact::read_manifest(&place.path("art")).expect("a manifest");
    let manifest = serde_json::to_value(manifest).expect("JSON");
    let fields = manifest.as_object().expect("an object").keys();
    assert_eq!(fields.map(String::as_str).collect::<BTreeSet<_>>(), known);
}

#[test]
fn a_manifest_of_another_version_is_not_replayed() {
    let place = copied();
    forge(&place.path("art"), |m| m["tilewright"] = json!("9.9.9"));
    place.refuses(
        REPLAY,
        1,
        &["made by tilewright 9.9.9", env!("CARGO_PKG_VERSION")],
    );
}

#[test]
fn no_file_of_an_artifact_can_be_changed_with_its_hash() {
    for (name, code, part, change) in [
        (
            "__init__.py",
            3,
            "files: __init__.py",
            (|t| t.to_owned() + "\nimport os\n") as fn(&str) -> String,
        ),
        ("kernel.cu", 3, "text: ", |t| {
            t.replacen("float", "double", 1)
        }),
        ("tile.txt", 3, "the program gives", |t| {
            t.replacen("= mul(", "= add(", 1)
        }),
        ("tile.txt", 3, "files: tile.txt", |t| t.to_owned() + "\n"),
        ("program.lax", 3, "rules: ", |t| {
            t.replacen("return f16 [t, o] ", "return f16 [t, o] 2 * ", 1)
        }),
        ("program.lax", 3, "files: program.lax", |t| {
            format!("# proven\n{t}")
        }),
        ("expression.lax", 3, "files: expression.lax", |t| {
            format!("# proven\n{t}")
        }),
        ("schedule.txt", 3, "files: schedule.txt", |t| {
            format!("# proven\n{t}")
        }),
        ("schedule.txt", 1, "schedule.txt:1:1: expected", |t| {
            t.replacen("kernel", "kernels", 1)
        }),
    ] {
        let place = copied();
        forge_file(&place.path("art"), name, change);
        place.refuses(REPLAY, code, &[part]);
    }
}

/// The namespace of an artifact's operator, which is made of what is run.
fn namespace(folder: &Path) -> String {
    let artifact = Artifact::read(folder).expect("an artifact");
    let manifest = artifact.manifest();
    let launches = serde_json::to_string_pretty(&manifest.launches).expect("JSON") + "\n";
    let mut hasher = blake3::Hasher::new();
    for part in [
        artifact.bytes(file::PROGRAM).expect("a file"),
        manifest.target.arch.as_bytes(),
        artifact.bytes(file::CUDA).expect("a file"),
        launches.as_bytes(),
        artifact.bytes(file::CUBIN).expect("a file"),
    ] {
        hasher.update(part);
    }
    let hash = hasher.finalize().to_hex();
    format!("tilewright_{}_{}", manifest.program, &hash.as_str()[..12])
}

/// Puts other machine code into an artifact, with all that tells of it.
fn forge_cubin(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let path = folder.join(file::CUBIN);
    let mut bytes = fs::read(&path).expect("a file");
    change(&mut bytes);
    fs::write(&path, &bytes).expect("writable");
    forge(folder, |m| {
        m["files"][file::CUBIN] = json!(artifact::hash(&bytes));
        m["cubin"]["blake3"] = json!(artifact::hash(&bytes));
    });
    let namespace = namespace(folder);
    forge(folder, |m| m["namespace"] = json!(namespace));
}

/// Ends with a failure where NVRTC is required; else says what was skipped.
fn compiled(place: &Place) -> bool {
    if place.path("art").join(file::CUBIN).exists() {
        return true;
    }
    let required = std::env::var_os("TILEWRIGHT_REQUIRE_NVRTC").is_some_and(|v| v == "1");
    assert!(!required, "NVRTC is required and was not found");
    eprintln!("skipped: no NVRTC, so there is no cubin to compare");
    false
}

#[test]
fn a_cubin_is_what_its_text_compiles_to() {
    let place = copied();
    if !compiled(&place) {
        return;
    }
    assert_eq!(
        artifact::read_manifest(&place.path("art"))
            .expect("a manifest")
            .namespace,
        namespace(&place.path("art")),
        "the test knows how it is made"
    );
    let text = place.does(REPLAY);
    assert!(text.contains("\nreplayed: cubin: nvrtc "), "{text}");

    forge_cubin(&place.path("art"), |bytes| {
        let last = bytes.last_mut().expect("a byte");
        *last ^= 1;
    });
    place.refuses(REPLAY, 3, &["cubin: nvrtc ", "to another cubin"]);

    let place = copied();
    forge(&place.path("art"), |m| {
        let registers = m["cubin"]["registers"].as_object_mut().expect("an object");
        *registers.values_mut().next().expect("a kernel") = json!(7);
    });
    place.refuses(REPLAY, 3, &["`cubin.registers.twice_0`: 7 is recorded"]);

    let place = copied();
    forge(&place.path("art"), |m| {
        m["cubin"]["file"] = json!("/tmp/kernel.cubin")
    });
    place.refuses(REPLAY, 3, &["`cubin.file`"]);

    // One cubin too few or too many, or bytes that are no launch's.
    for sizes in [
        json!([]),
        json!([1]),
        json!([1, 1]),
        json!([1, u64::MAX]),
        json!([1, 1, 1]),
    ] {
        let place = copied();
        forge(&place.path("art"), |m| m["cubin"]["bytes"] = sizes);
        place.refuses(REPLAY, 3, &["kernel.cubin is not the cubins of 2 launches"]);
    }

    // Another compiler's work cannot be judged: that is said.
    let place = copied();
    forge(&place.path("art"), |m| {
        m["cubin"]["compiler"] = json!("nvrtc 11.8")
    });
    let text = place.does(REPLAY);
    let line = "not replayed: cubin: the kernels were not compiled again: nvrtc 11.8 made the cubin, here is nvrtc ";
    assert!(text.contains(line), "{text}");
    let place = copied();
    forge_cubin(&place.path("art"), |bytes| {
        let release = b"Cuda compilation tools, release ";
        let found = bytes.windows(release.len()).position(|w| w == release);
        let end = found.map(|at| at + bytes[at..].iter().position(|b| *b == 0).expect("an end"));
        // `V13.0.88` to `V13.0.89`, or the like.
        bytes[end.expect("a release") - 1] ^= 1;
    });
    let text = place.does(REPLAY);
    assert!(
        text.contains("not replayed: cubin: the kernels were not compiled again: V"),
        "{text}"
    );
    let run = place
        .command(REPLAY)
        .env("TILEWRIGHT_NVRTC", "/nonexistent")
        .output()
        .expect("the program starts");
    let text = String::from_utf8(run.stdout).expect("UTF-8");
    assert!(
        text.contains(
            "not replayed: cubin: the kernels were not compiled again: nvrtc was not found"
        ),
        "{text}"
    );
}

#[test]
fn files_outside_the_folder_are_not_followed() {
    let place = copied();
    let secret = place.path("secret");
    fs::write(&secret, "mine").expect("writable");
    for name in [
        "../secret",
        secret.to_str().expect("UTF-8"),
        "notes.md",
        "manifest.json",
    ] {
        let place = copied();
        fs::write(place.path("secret"), "mine").expect("writable");
        forge(&place.path("art"), |m| {
            m["files"][name] = json!(artifact::hash(b"mine"))
        });
        place.refuses(REPLAY, 1, &[name, "no file of this artifact"]);
    }
}

#[test]
fn what_else_is_in_the_folder_is_told() {
    let place = copied();
    // Python takes it for the package, before `__init__.py`.
    for name in ["__init__.so", "__init__.abi3.so", "notes.md"] {
        fs::write(place.path("art").join(name), "").expect("writable");
        place.refuses(
            REPLAY,
            1,
            &[&format!("besides its files there is `{name}` (a file)")],
        );
        fs::remove_file(place.path("art").join(name)).expect("writable");
    }
    fs::create_dir(place.path("art/__pycache__")).expect("writable");
    fs::write(place.path("art/__pycache__/__init__.cpython-312.pyc"), "").expect("writable");
    place.does(REPLAY);
}

/// A tile program without the mask and the bound of its program, lowered, hashed and sealed anew: everything fits but the program.
#[test]
fn a_mask_that_was_taken_out_is_missed() {
    let place = Place::new();
    let text = "program block\naxis g = 4, i = 1024, j = 4096, d = 64, e = 64\n\
         q = parameter bf16 [g, i, d]\nk = parameter bf16 [j, d]\nv = parameter bf16 [j, e]\n\
         return bf16 [g, i, e] dot(softmax(causal(dot(q, k; d) * 0.125; i, j); j), v; j)\n";
    fs::write(place.path("block.lax"), text).expect("writable");
    place.does(&[
        "optimize",
        "block.lax",
        "--target",
        "h200",
        "--no-gpu",
        "--budget",
        "3s",
        "-o",
        "art",
    ]);
    place.does(REPLAY);
    let folder = place.path("art");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a file");
    let tile = read(file::TILE);
    let unbounded = tile.replace(" to last(i) + 3073", "");
    let unbounded = unbounded.replace(", last(i) + 3073", "");
    assert_ne!(tile, unbounded, "it has no bound\n{tile}");
    let unmasked = unbounded.replace("= 4096\n", "= 90000\n");
    let unmasked = unmasked.replace("= 3072\n", "= 90000\n");
    assert_ne!(unbounded, unmasked, "it has no mask\n{tile}");
    let forged: ir::TileProgram = unmasked.parse().expect("a tile program");
    let schedule = ir::Schedule::parse(
        &read(file::SCHEDULE),
        "schedule.txt",
        &codegen::language(),
        &forged,
    );
    let schedule = schedule.expect("a schedule");
    let target = search::targets::target("h200").expect("a known target");
    let cuda = codegen::lower(&forged, &schedule, &target).expect("it is lowered");
    forge_file(&folder, file::TILE, |_| unmasked.clone());
    forge_file(&folder, file::CUDA, |_| cuda.source.clone());
    let launches = serde_json::to_value(&cuda.launches).expect("JSON");
    if artifact::read_manifest(&folder)
        .expect("a manifest")
        .launches
        != cuda.launches
    {
        forge(&folder, |m| m["launches"] = launches);
    }
    if folder.join(file::CUBIN).exists() {
        let namespace = namespace(&folder);
        forge(&folder, |m| m["namespace"] = json!(namespace));
    }
    place.refuses(REPLAY, 3, &["wrong: in f64", "at the true extents"]);
}

/// Sums of sums of sums up to a coordinate, read from behind, so that extents keep their sizes: of the whole one element takes everything.
#[test]
fn kernels_by_themselves_are_replayed() {
    let place = Place::new();
    let sum = |of: &str, axis: &str| {
        format!("sum(select(iota(l) - iota({axis}), view({of}; l -> 16383 - {axis}), 0); {axis})")
    };
    let text = format!(
        "program scans\naxis l = 16384, j = 16384, k = 16384, i = 16384\nx = parameter f32 [l]\na = {}\nb = {}\nreturn f32 [l] {}\n",
        sum("x", "j"),
        sum("a", "k"),
        sum("b", "i")
    );
    fs::write(place.path("scans.lax"), text).expect("writable");
    let all = [
        "--target", "h200", "--no-gpu", "--budget", "5s", "--seed", "3", "-o", "art",
    ];
    place.does(&[&["optimize", "scans.lax"], &all[..]].concat());
    let manifest = artifact::read_manifest(&place.path("art")).expect("a manifest");
    let pieces = manifest.evidence.tiling.pieces.len();
    assert!(pieces > 1, "{:?}", manifest.evidence.tiling);
    let told = place.does(REPLAY);
    let wanted = format!("and of {pieces} kernels by themselves");
    assert!(told.contains(&wanted), "no `{wanted}` in {told}");
}

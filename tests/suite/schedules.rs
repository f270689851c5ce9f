//! Schedules as texts: of all that the search offers for the benchmark programs, and those that a person gives to a search.

use crate::command_line::Place;
use codegen::passes::{
    delayed, instruction, multicast, persistent, pipeline, raster, registers, roles, turns, warps,
};
use ir::{KernelSchedule, Program, Schedule, ScheduleText, Target, TileOp, TileProgram, ValueId};
use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof};
use proptest::{collection, sample};
use rayon::prelude::*;
use search::schedules::schedules;
use search::tiling::enumerate::{SearchOptions, candidates, plainest};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Ranked tile programs that are looked at of each program, beside the plain ones.
const RANKED: usize = 2;
/// Schedules that are drawn for each tile program.
const CASES: u32 = 100;

/// Every benchmark program, with its name.
fn examples() -> Vec<(String, Program)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(&folder).expect("a folder");
    let mut names: Vec<String> = files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|e| e == "lax"))
        .map(|path| path.file_stem().expect("a name").display().to_string())
        .collect();
    names.sort();
    let program = |name: String| (name.clone(), crate::offered::example(&name));
    names.into_iter().map(program).collect()
}

fn known(target: &str) -> Target {
    search::targets::target(target).expect("a known target")
}

/// The plain tile programs, and those that the search ranks first with little effort.
fn tiles(program: Program, target: &Target) -> Vec<TileProgram> {
    let options = SearchOptions {
        // The first is the plainest.
        max_candidates: 1 + RANKED,
        effort: 0,
        ..SearchOptions::default()
    };
    let ranked = candidates(vec![program.clone()], target, &options);
    let ranked = ranked.filter(|c| !c.is_plain()).map(|c| c.tile);
    let program = Arc::new(program);
    let plain = plainest(&program, target).filter_map(|made| Some(made.ok()?.tile));
    plain.chain(ranked).collect()
}

/// Oracles: the schedule that was printed, and the form that machine programs have to have. The texts are those of one target; the other's schedules
/// are made of a third of the programs.
#[test]
fn every_schedule_that_is_offered_reads_back_and_is_well_formed() {
    let examples = examples();
    assert!(examples.len() >= 50, "{} programs", examples.len());
    let (checked, overlaps) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let faults: Vec<String> = (examples.into_par_iter().enumerate())
        .flat_map_iter(|(number, (name, program))| {
            let mut faults = Vec::new();
            let targets = ["h200", "a100"].into_iter().map(known);
            let targets: Vec<Target> = targets.take(1 + usize::from(number % 3 == 0)).collect();
            for tile in tiles(program, &targets[0]) {
                for target in &targets {
                    let offered = schedules(&tile, target);
                    for (n, schedule) in offered.iter().enumerate() {
                        if target.name == "h200" {
                            reads_back(&name, &tile, schedule);
                            let mut overlaps = overlaps.lock().expect("no panic before");
                            for kernel in &schedule.kernels {
                                *overlaps.entry(overlap(kernel)).or_insert(0) += 1;
                            }
                        }
                        for (k, own) in schedule.kernels.iter().enumerate() {
                            // The first schedule's machine program again.
                            if n > 0 && *own == offered[0].kernels[k] {
                                continue;
                            }
                            let lowered = codegen::kernel_machine(&tile, k, own, target);
                            let Ok(machine) = lowered else { continue };
                            checked.fetch_add(1, Ordering::Relaxed);
                            let found = [machine.malformed(), machine.beyond(target)].concat();
                            faults.extend(found.iter().map(|f| format!("{name}: {f}")));
                        }
                    }
                }
            }
            faults
        })
        .collect();
    let checked = checked.into_inner();
    assert!(checked > 5_000, "{checked} machine programs");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let overlaps = overlaps.into_inner().expect("no panic before");
    for kind in [[false; 3], [true, false, false], [true; 3]] {
        let count = overlaps.get(&kind).copied().unwrap_or(0);
        assert!(count >= 100, "{count} kernels with {kind:?}");
    }
}

/// Whether contractions run on, warps of their own fill rings, and groups of warps take turns.
fn overlap(kernel: &KernelSchedule) -> [bool; 3] {
    [delayed::of(kernel), roles::of(kernel), turns::of(kernel)]
}

fn reads_back(name: &str, tile: &TileProgram, schedule: &Schedule) {
    let text = schedule.text(tile);
    let read = Schedule::parse(&text, name, &codegen::language(), tile);
    assert_eq!(read.unwrap_or_else(|e| panic!("{e}\n{tile}")), *schedule);
    assert!(!text.contains("raster 1\n"), "{name}: {text}");
}

/// Oracle: the other tile program's names.
#[test]
fn a_schedule_of_other_kernels_is_told_so() {
    let target = search::targets::target("h200").expect("a known target");
    let first = |name: &str| {
        let found = tiles(crate::offered::example(name), &target);
        found.into_iter().last().expect("a tile program")
    };
    let (product, attention) = (first("matmul_4096_bf16"), first("mha_bs1"));
    let text = schedules(&product, &target)[0].text(&product);
    let read = ScheduleText::parse(&text, "mine.txt", &codegen::language()).expect("a text");
    read.of(&product).expect("its own tile program");
    let faults = read.of(&attention).expect_err("another one");
    assert!(faults.to_string().starts_with("mine.txt:"), "{faults}");
}

/// A product whose operands are long enough for stages, and something that a wrong tile program computes otherwise.
const PRODUCT: &str = "\
program product
axis i = 2048, j = 2048, k = 512
x = parameter f16 [i, k]
y = parameter f16 [k, j]
return f16 [i, j] dot(x, y; k) * 0.25
";

const SEARCH: [&str; 7] = [
    "optimize",
    "product.lax",
    "--target",
    "h200",
    "--budget",
    "4s",
    "--no-gpu",
];

/// A folder with `product.lax`, its artifact `art`, and the artifact's schedule, which has a pipeline.
fn searched() -> (Place, String) {
    static MADE: OnceLock<(Place, String)> = OnceLock::new();
    let (made, schedule) = MADE.get_or_init(|| {
        let place = Place::new();
        fs::write(place.path("product.lax"), PRODUCT).expect("writable");
        place.does(&[&SEARCH[..], &["-o", "art"]].concat());
        let schedule = place.does(&["show", "art", "--schedule"]);
        assert!(schedule.contains(" stages"), "{schedule}");
        (place, schedule)
    });
    let place = Place::new();
    fs::create_dir(place.path("art")).expect("a folder");
    fs::copy(made.path("product.lax"), place.path("product.lax")).expect("a copy");
    for entry in fs::read_dir(made.path("art")).expect("a folder") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), place.path("art").join(entry.file_name())).expect("a copy");
    }
    (place, schedule.clone())
}

/// A search under the schedule of a file, and its result in `new`.
fn under<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SEARCH[..], &["-o", "new", "--schedule", "mine.txt"], more].concat()
}

/// The schedule with other stages in every pipeline.
fn with_stages(schedule: &str, stages: u32) -> String {
    let line = |line: &str| match line.split_once("pipeline ") {
        None => line.to_owned() + "\n",
        Some((before, rest)) => {
            let (_, rest) = rest.split_once(" stages").expect("stages");
            format!("{before}pipeline {stages} stages{rest}\n")
        }
    };
    schedule.lines().map(line).collect()
}

#[test]
fn an_edited_schedule_is_what_the_next_artifact_has() {
    let (place, schedule) = searched();
    let stages = if schedule.contains(" 2 stages") { 3 } else { 2 };
    let mine = with_stages(&schedule, stages);
    assert_ne!(mine, schedule);
    fs::write(place.path("mine.txt"), format!("# mine\n\n{mine}")).expect("writable");
    let before = fs::read(place.path("art/manifest.json")).expect("a file");
    let report = place.does(&under(&["--tiling", "art", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["best"]["schedule"], mine.as_str());
    assert_eq!(report["candidates"], 1);
    assert_eq!(report["state"], "simulated");
    let remarks = report["remarks"].to_string();
    assert!(remarks.contains("the schedule was given"), "{remarks}");

    let read = |name: &str| fs::read_to_string(place.path(name)).expect("a file");
    assert_eq!(read("new/schedule.txt"), mine);
    assert_eq!(read("new/tile.txt"), read("art/tile.txt"));
    assert_ne!(read("new/kernel.cu"), read("art/kernel.cu"));
    assert!(read("new/kernel.cu").contains(&format!("//   pipeline {stages} stages")));
    place.does(&["verify", "new", "--replay"]);
    let shown: serde_json::Value =
        serde_json::from_str(&place.does(&["show", "new", "--json"])).expect("JSON");
    assert_eq!(shown["schedule"], mine.as_str());
    assert!(place.does(&["show", "new"]).contains(&mine));
    assert_eq!(
        fs::read(place.path("art/manifest.json")).expect("a file"),
        before
    );

    // Among the tile programs that a search finds there is one for it too.
    let report = place.does(&under(&["--force"]));
    assert_eq!(read("new/schedule.txt"), mine, "{report}");
}

#[test]
fn a_schedule_that_is_refused_says_why_and_leaves_nothing() {
    let (place, schedule) = searched();
    // It is among what was there before.
    fs::write(place.path("mine.txt"), "").expect("writable");
    let refuses = |mine: &str, more: &[&str], code: i32, parts: &[&str]| {
        fs::write(place.path("mine.txt"), mine).expect("writable");
        place.refuses(&under(more), code, parts);
    };
    let alone = ["--tiling", "art"];

    // By lowering or by what a block may have, of the tile program that got furthest.
    let many = with_stages(&schedule, 32);
    let why = "product: no tile program takes the schedule; looked at";
    refuses(
        &many,
        &alone,
        1,
        &[
            &format!("{why} 1: kernel 0: shared memory: "),
            "\nkernel 0: grid ",
        ],
    );
    refuses(
        &many,
        &[],
        1,
        &[why, "kernel 0: shared memory: ", "others were refused: "],
    );
    let warps = schedule.replacen("warps ", "warps 32 x 32 # ", 1);
    let parts = [why, "kernel 0: schedule: 32 × 32 warps: powers of two"];
    refuses(&warps, &alone, 1, &parts);

    let others = schedule.lines().filter(|l| !l.contains("registers"));
    let others: String = others.map(|l| l.to_owned() + "\n").collect();
    let crowded = others.replacen(
        "kernel 0\n",
        "kernel 0\nregisters for 32 blocks per SM\n",
        1,
    );
    let parts = [why, "kernel 0: schedule: 32 blocks an SM of "];
    refuses(&crowded, &alone, 1, &parts);

    // By names.
    let contraction = schedule
        .split_once("instruction ")
        .expect("a contraction")
        .1;
    let (name, _) = contraction.split_once(' ').expect("a name");
    let other = schedule.replacen(&format!("instruction {name}"), "instruction nothing", 1);
    let parts = [
        why,
        "other tiling",
        "mine.txt:2:15: ",
        &format!("which has `{name}`, found `nothing`"),
    ];
    refuses(&other, &alone, 1, &parts);
    refuses(&other, &[], 1, &parts);

    // Before anything is searched.
    let broken = schedule.replacen(" = ", " = my.", 1);
    let parts = ["mine.txt:2:", "expected one of `fma`, ", "found `my."];
    refuses(&broken, &alone, 1, &parts);
    refuses(&broken, &[], 1, &parts);
    refuses(
        "kernel 0\n  warps 0 x 1\n",
        &[],
        1,
        &["mine.txt:2:9: expected 1 to 32 warps"],
    );
    let absent = ["--schedule", "absent.txt"];
    place.refuses(
        &[&SEARCH[..], &absent].concat(),
        1,
        &["absent.txt", "No such file"],
    );
}

#[test]
fn a_tile_program_of_an_artifact_is_no_premise() {
    let (place, schedule) = searched();
    fs::write(place.path("mine.txt"), &schedule).expect("writable");
    place.refuses(
        &under(&["--tiling", "absent"]),
        1,
        &["absent", "manifest.json"],
    );
    let without = [&SEARCH[..], &["--tiling", "art"]].concat();
    place.refuses(&without, 2, &["--schedule <FILE>"]);

    // Of another program, by its text.
    let other = PRODUCT.replace("0.25", "0.5");
    fs::write(place.path("product.lax"), &other).expect("writable");
    let parts = ["art: the artifact is of another program, `product`, than product.lax"];
    place.refuses(&under(&["--tiling", "art"]), 1, &parts);
    fs::write(place.path("product.lax"), PRODUCT).expect("writable");

    // Whatever the folder says, what is emitted was compared with the program.
    let change = |name: &str, from: &str, to: &str| {
        let path = place.path("art").join(name);
        let text = fs::read_to_string(&path).expect("a file");
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).expect("writable");
        text
    };
    let tile = change("tile.txt", "0.25", "0.5");
    let parts = ["no tile program takes the schedule", "wrong: "];
    place.refuses(&under(&["--tiling", "art"]), 3, &parts);
    fs::write(place.path("art/tile.txt"), tile).expect("writable");
    change(
        "expression.lax",
        "parameter f16 [i, k]",
        "parameter f32 [i, k]",
    );
    let parts = ["the expression has other axes, parameters or outputs than the program"];
    place.refuses(&under(&["--tiling", "art"]), 3, &parts);
}

/// Any schedule that a text may say of a tile program: mostly of instructions that its contractions may have.
fn any_schedule(tile: &TileProgram) -> impl Strategy<Value = Schedule> + use<> {
    let kernels = tile.kernels.iter().map(|kernel| {
        let values = kernel.values.iter().enumerate();
        let contractions = values.filter(|(_, v)| matches!(v.op, TileOp::Contract { .. }));
        let contractions: Vec<ValueId> = contractions.map(|(at, _)| ValueId(at as u32)).collect();
        let how = (
            sample::select(codegen::atoms::names().to_vec()),
            any::<bool>(),
        );
        let warps = || prop_oneof![4 => sample::select(vec![1, 2, 4, 8]), 1 => 1..=32u32];
        (
            (warps(), warps()),
            (1..=32u32, prop_oneof![1..=2u32, 1..=32u32]),
            (0..=3usize, any::<bool>()),
            prop_oneof![1..=16u32, 1..=65536u32],
            (
                any::<bool>(),
                prop_oneof![12 => 1..=1u32, 3 => 2..=2u32, 1 => 1..=16u32],
            ),
            collection::vec(how, contractions.len()),
        )
            .prop_map(
                move |(warps, numbers, (overlap, turning), height, (stays, cluster), how)| {
                    let by = contractions.iter().zip(how).map(|(v, (atom, swap))| {
                        instruction::step(*v, instruction::Contraction { atom, swap })
                    });
                    let mut all: KernelSchedule = by.collect();
                    all.set(warps::step([warps.0, warps.1]));
                    all.set(registers::step(numbers.1));
                    // Each alone, both, and none.
                    all.extend((overlap & 1 == 1).then(delayed::step));
                    all.extend((overlap & 2 == 2).then(roles::step));
                    all.set(pipeline::step(numbers.0));
                    all.extend((overlap == 3 && turning).then(turns::step));
                    all.set(raster::step(height));
                    all.extend((overlap & 2 == 2 && stays).then(persistent::step));
                    all.extend((overlap & 2 == 2).then(|| multicast::step(cluster)));
                    all
                },
            )
    });
    let kernels: Vec<_> = kernels.collect();
    kernels.prop_map(|kernels| Schedule { kernels })
}

/// Oracle: what a text says is lowered or refused, whatever it says.
#[test]
fn no_schedule_that_can_be_written_makes_lowering_panic() {
    let target = search::targets::target("h200").expect("a known target");
    let (lowered, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    [
        "matmul_4096_bf16",
        "matmul_4096_f32",
        "mha_bs1",
        "attention_causal_b1h32s1024d128_f16",
        "decode_gqa_b1h32kv8s8192d128_bf16",
        "softmax_f32",
        "conv2d",
        "gated_mlp_t8",
    ]
    .into_par_iter()
    .for_each(|name| {
        for tile in tiles(crate::offered::example(name), &target) {
            let drawn = strategies::runner(3, CASES).run(&any_schedule(&tile), |schedule| {
                let text = schedule.text(&tile);
                let read = Schedule::parse(&text, name, &codegen::language(), &tile)
                    .expect("its own text");
                prop_assert_eq!(&read, &schedule);
                // A panic shrinks to a small schedule.
                let outcome = match codegen::lower(&tile, &schedule, &target) {
                    Ok(_) => &lowered,
                    Err(_) => &refused,
                };
                outcome.fetch_add(1, Ordering::Relaxed);
                let made = codegen::machines(&tile, &schedule, &target);
                for machine in made.into_iter().flatten() {
                    prop_assert_eq!(machine.malformed(), Vec::new());
                }
                search::cost::cost(&tile, Some(&schedule), &target);
                Ok(())
            });
            drawn.unwrap_or_else(|e| panic!("{name}: {e}\n{tile}"));
        }
    });
    let (lowered, refused) = (lowered.into_inner(), refused.into_inner());
    assert!(lowered >= 100 && refused >= 100, "{lowered}, {refused}");
}

/// What is said of kernels in clusters was found out with both blocks of one, along either axis of the grid, at tiles that do not divide the extents
/// and at those that do.
#[test]
fn clusters_run_under_the_checker() {
    let target = search::targets::target("h200").expect("a known target");
    for (m, n, order) in [
        (4096, 4096, ""),
        (4096, 4096, "raster 8\n"),
        (4072, 4096, "raster 8\npersistent\n"),
        (4096, 4000, "persistent\n"),
    ] {
        let text = format!(
            "tile product\naxis m = {m}, n = {n}, k = 4096\nbuffer a = parameter 0 bf16 [m, k]\nbuffer b = parameter 1 bf16 [k, n]\n\
             buffer y = output 0 bf16 [m, n]\nkernel grid(m: 64, n: 128) loop(k: 32) {{\n  loop k {{\n    carry s = 0 over [m, n]\n    \
             c = load b[k, n]\n    d = load a[m, k]\n    p = contract(d, c; k)\n    s2 = add(s, p)\n    \
             yield s3 = final(s, s2)\n  }}\n  store y = s3\n}}\n"
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let schedule = format!(
            "kernel 0\ninstruction p = wgmma.m64k16\nwarps 4 x 1\ndelayed\nroles producer\npipeline 3 stages\nturns\n{order}cluster 2\n"
        );
        let schedule = Schedule::parse(&schedule, "mine.txt", &codegen::language(), &tile)
            .expect("a schedule");
        let found = tilewright::machine::evidence(&tile, &schedule, &target);
        let found = found.unwrap_or_else(|e| panic!("{m} × {n}, {order}: {e}"));
        let together = &found.together;
        assert_eq!(together.not_run, None, "{m} × {n}, {order}");
        assert!(
            together.elements > 0 && together.extents["k"] < 4096,
            "{found}"
        );
    }
}

/// Where all kernels together are too much work each runs by itself, on what is drawn for what others would have stored.
#[test]
fn kernels_run_by_themselves_under_the_checker() {
    let target = search::targets::target("h200").expect("a known target");
    // Rows of the softmax are whole, so no product before and behind it is small.
    let program: Program = "program p\naxis i = 4096, m = 4096, n = 4096, e = 4096\nx = parameter bf16 [i, m]\nw = parameter bf16 [n, m]\n\
         v = parameter bf16 [e, n]\nreturn bf16 [i, e] dot(softmax(dot(x, w; m); n), v; n)\n"
        .parse()
        .unwrap_or_else(|e| panic!("{e}"));
    let program = Arc::new(program);
    let plain = plainest(&program, &target).flatten().next();
    let plain = plain.expect("a plain tile program").tile;
    let all = schedules(&plain, &target);
    let schedule = all.first().expect("a schedule");
    let found = tilewright::machine::evidence(&plain, schedule, &target);
    let found = found.unwrap_or_else(|e| panic!("{e}"));
    assert!(found.together.not_run.is_some(), "{found}");
    assert!(plain.kernels.len() > 2, "{plain}");
    assert_eq!(found.alone.len(), plain.kernels.len());
    for ran in &found.alone {
        assert!(ran.not_run.is_none() && ran.elements > 0, "{found}");
    }
}

//! What schedules may say, and in which order.

use crate::common::{Overlap, atoms, matmul, overlapped, target};
use ir::{Dtype, KernelSchedule, Schedule, TileOp, TileProgram, ValueId};
use tilewright_codegen::passes::{
    delayed, distributed, instruction, multicast, persistent, pipeline, raster, registers, roles,
    splitter, turns, warps,
};
use tilewright_codegen::{language, machines};

/// A product of which blocks with neighbouring numbers read the same rows.
fn product() -> TileProgram {
    let bf16 = Dtype::Bf16;
    matmul(bf16, bf16, [2048, 2048, 2048], [128, 128, 64], true)
}

/// The name of what its only kernel contracts, and which value it is.
fn contraction(tile: &TileProgram) -> (String, ValueId) {
    let is = |op: &TileOp| matches!(op, TileOp::Contract { .. });
    let mut values = tile.kernels[0].values.iter().enumerate();
    let (at, value) = values.find(|(_, v)| is(&v.op)).expect("a contraction");
    (value.name.clone(), ValueId(at as u32))
}

fn read(lines: &str) -> Result<Schedule, String> {
    let tile = product();
    let (name, _) = contraction(&tile);
    let text = format!("kernel 0\n{}", lines.replace("PRODUCT", &name));
    Schedule::parse(&text, "my.txt", &language(), &tile).map_err(|e| e.to_string())
}

const ALL: &str = "  instruction PRODUCT = wgmma.m64k16
  warps 8 x 1
  registers for 2 blocks per SM
  delayed
  roles producer
  pipeline 3 stages
  turns
  raster 8
  persistent
  cluster 2
";

#[test]
fn each_transformation_has_a_line() {
    let tile = product();
    let (name, v) = contraction(&tile);
    let schedule = read(ALL).expect("a schedule");
    assert_eq!(
        schedule.text(&tile),
        format!("kernel 0\n{}", ALL.replace("PRODUCT", &name))
    );
    let s = &schedule.kernels[0];
    let how = instruction::Contraction {
        atom: atoms::WGMMA_M64K16,
        swap: false,
    };
    assert_eq!(instruction::of(s, v), Some(how));
    assert_eq!(instruction::of(s, ValueId(0)), None);
    assert_eq!(warps::of(s), [8, 1]);
    assert_eq!((registers::of(s), pipeline::of(s)), (2, 3));
    assert_eq!((raster::of(s), multicast::of(s)), (8, 2));
    for of in [delayed::of, roles::of, turns::of, persistent::of] {
        assert!(of(s) && !of(&KernelSchedule::default()));
    }
    let made = KernelSchedule::from_iter([
        instruction::step(v, how),
        warps::step([8, 1]),
        registers::step(2),
        delayed::step(),
        roles::step(),
        pipeline::step(3),
        turns::step(),
        raster::step(8),
        persistent::step(),
        multicast::step(2),
    ]);
    assert_eq!(*s, made);
    let all = language().forms.len();
    assert_eq!(
        s.steps().len() + 2,
        all,
        "each of them once, but the next two"
    );
    machines(&tile, &schedule, &target()).expect("it lowers");
    let distributed = KernelSchedule::from_iter([distributed::step()]);
    assert!(distributed::of(&distributed) && !distributed::of(s));
    let splitter = KernelSchedule::from_iter([splitter::step()]);
    assert!(splitter::of(&splitter) && !splitter::of(s));
}

/// The same schedule with some of its lines in another order, or left out, is lowered alike or refused with what would be right: where it is read,
/// and where it was made otherwise.
#[test]
fn steps_apply_in_an_order() {
    let tile = product();
    let whole = machines(&tile, &read(ALL).expect("a schedule"), &target()).expect("it lowers");
    let lines: Vec<&str> = ALL.lines().collect();
    let moved = |word: &str, behind: &str| {
        let is = |l: &str, word: &str| l.trim_start().starts_with(word);
        let line = (lines.iter().copied())
            .find(|l| is(l, word))
            .expect("a line");
        let mut rest: Vec<&str> = lines.iter().copied().filter(|l| *l != line).collect();
        let at = rest
            .iter()
            .position(|l| is(l, behind))
            .map_or(0, |at| at + 1);
        rest.insert(at, line);
        rest.join("\n")
    };
    for (word, behind) in [
        ("warps", "nothing"),
        ("registers", "nothing"),
        ("pipeline", "turns"),
        ("pipeline", "persistent"),
        ("raster", "delayed"),
        ("persistent", "turns"),
    ] {
        let schedule = read(&moved(word, behind)).expect("a schedule");
        let made = machines(&tile, &schedule, &target()).expect("it lowers");
        assert_eq!(made, whole, "{word} behind {behind}");
    }
    let without = |word: &str| {
        let rest: Vec<&str> = lines
            .iter()
            .copied()
            .filter(|l| !l.contains(word))
            .collect();
        rest.join("\n")
    };
    for (text, line, fault) in [
        (
            moved("pipeline", "delayed"),
            6,
            "expected `roles producer` in front of `pipeline`: who copies is said before how far ahead",
        ),
        (
            moved("turns", "delayed"),
            6,
            "expected `roles producer` in front of `turns`",
        ),
        (
            moved("turns", "persistent"),
            9,
            "expected `turns` in front of `persistent`: ",
        ),
        (
            moved("delayed", "roles"),
            5,
            "expected `delayed` in front of `roles`: what is read late has a ring of its own",
        ),
        (
            moved("cluster", "nothing"),
            2,
            "expected `roles producer` in front of `cluster`",
        ),
        (
            moved("cluster", "raster"),
            10,
            "expected `persistent` in front of `cluster`: its synchronisation is derived",
        ),
        (
            moved("warps", "turns"),
            4,
            "expected `warps ROWS x COLUMNS` in front of `delayed`: what the plainest program",
        ),
        (
            without("delayed"),
            7,
            "expected `delayed` in front of `turns`: turns are taken at what is delayed",
        ),
        (
            without("cluster").replace("roles producer", "splitter"),
            6,
            "expected `roles producer` in front of `splitter`: only what warps of their own copy is handed on to others",
        ),
        (
            without("roles"),
            7,
            "expected `roles producer` in front of `turns`",
        ),
    ] {
        let faults = read(&text).expect_err("refused");
        let place = format!("my.txt:{line}:3: {fault}");
        assert!(faults.starts_with(&place), "{text}\n{faults}");
    }

    let overlap = [Overlap::None, Overlap::Delayed, Overlap::Turns];
    for (overlap, step, fault) in [
        (
            overlap[0],
            turns::step(),
            "expected `delayed` in front of `turns`",
        ),
        (
            overlap[1],
            persistent::step(),
            "expected `roles producer` in front of `persistent`",
        ),
        (
            overlap[1],
            roles::step(),
            "expected `roles producer` in front of `pipeline`",
        ),
        (
            overlap[2],
            multicast::step(3),
            "a cluster of 3 blocks, where 2 are known",
        ),
    ] {
        let mut schedule = overlapped(&tile, atoms::WGMMA_M64K16, [8, 1], 3, &[], overlap);
        schedule.kernels[0].set(step);
        let refused = machines(&tile, &schedule, &target()).expect_err("refused");
        let refused = refused.to_string();
        assert!(
            refused.starts_with("schedule: ") && refused.contains(fault),
            "{refused}"
        );
    }
}

#[test]
fn numbers_have_limits() {
    for (line, fault) in [
        ("warps 0 x 1", "expected 1 to 32 warps along rows, found 0"),
        (
            "warps 1 x 33",
            "expected 1 to 32 warps along columns, found 33",
        ),
        ("pipeline 33 stages", "expected 1 to 32 stages, found 33"),
        (
            "registers for 33 blocks per SM",
            "expected 1 to 32 blocks per SM, found 33",
        ),
        (
            "raster 65537",
            "expected 1 to 65536 tiles that are walked together, found 65537",
        ),
        (
            "cluster 17",
            "expected 1 to 16 blocks of a cluster, found 17: `cluster N`, blocks with neighbouring numbers",
        ),
    ] {
        let faults = read(&format!("instruction PRODUCT = fma\n{line}\n")).expect_err("refused");
        assert!(faults.contains(fault), "{faults}");
    }
}

/// Warps of their own may fill rings of one stage, and those of contractions that are waited for where they stand.
#[test]
fn roles_stand_alone() {
    let tile = product();
    for rest in ["", "delayed\n", "pipeline 4 stages\n"] {
        let text = match rest {
            "delayed\n" => "delayed\nroles producer\n".to_owned(),
            _ => format!("roles producer\n{rest}"),
        };
        let schedule = read(&format!(
            "instruction PRODUCT = wgmma.m64k16\nwarps 4 x 1\n{text}"
        ));
        let made = machines(&tile, &schedule.expect("a schedule"), &target()).expect("it lowers");
        assert!(!made[0].producers.is_empty(), "{text}");
        assert_eq!(made[0].malformed(), Vec::new(), "{text}");
    }
}

/// Oracle: the page that explains schedules.
#[test]
fn each_form_is_explained() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schedules.md");
    let page = std::fs::read_to_string(page).expect("a page");
    for form in language().forms {
        let row = format!("| `{}` |", form.pattern());
        assert!(page.contains(&row), "docs/schedules.md has no {row}");
    }
}

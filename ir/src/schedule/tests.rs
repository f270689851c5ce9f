use super::*;
use crate::tile::TileProgram;
use expect_test::expect;
use proptest::prelude::*;

/// Instructions that texts may name.
const ATOMS: [Atom; 6] = [
    Atom::new("fma"),
    Atom::new("mma.m16n8k16"),
    Atom::new("mma.m16n8k8.tf32"),
    Atom::new("mma.m16n8k8.3xtf32"),
    Atom::new("wgmma.m64k16"),
    Atom::new("wgmma.m64k8.3xtf32"),
];

/// Two products in one kernel, which pass a loop, and a kernel without any.
const TILE: &str = "tile pair
axis i = 128, j = 256, d = 64, e = 64
buffer q = parameter 0 f16 [i, d]
buffer k = parameter 1 f16 [j, d]
buffer v = parameter 2 f16 [j, e]
buffer w = workspace f32 [i, e]
buffer out = output 0 f16 [i, e]
kernel grid(i: 64) loop(j: 64) whole(d: 64, e: 64) {
  a = load q[i, d]
  loop j {
    carry o' = 0 over [i, e]
    b = load k[j, d]
    s = contract(a, b; d)
    p = exp(s)
    c = load v[j, e]
    o = contract(p, c; j)
    n = add(o', o)
    yield r = final(o', n)
  }
  store w = r
}
kernel grid(i: 16) whole(e: 64) {
  x = load w[i, e]
  y = exp(x)
  store out = y
}
";

fn tile() -> TileProgram {
    TILE.parse().expect("a tile program")
}

/// What a text reads as and prints again, or its faults.
fn read(text: &str) -> String {
    match Schedule::parse(text, "my.txt", &ATOMS, &tile()) {
        Ok(schedule) => schedule.text(&tile()),
        Err(faults) => faults.to_string(),
    }
}

#[test]
fn a_schedule_has_a_line_for_each_transformation() {
    let text = "\
kernel 0
  instruction s = wgmma.m64k16
  instruction o = wgmma.m64k16 swapped
  warps 8 x 1
  pipeline 3 stages, delayed
  roles producer, turns
  registers for 2 blocks per SM
  order persistent, raster 8
  cluster 2
kernel 1
  pipeline 1 stage, delayed
";
    assert_eq!(read(text), text);
    let schedule = Schedule::parse(text, "my.txt", &ATOMS, &tile()).expect("a schedule");
    let [first, second] = schedule.kernels.as_slice() else {
        panic!("two kernels: {schedule:?}")
    };
    let all = |swap| ContractSchedule {
        atom: Atom::new("wgmma.m64k16"),
        swap,
    };
    let of = |name: &str| {
        let at = tile().kernels[0].values.iter().position(|v| v.name == name);
        ValueId(at.expect("a value") as u32)
    };
    assert_eq!(
        first,
        &KernelSchedule {
            warps_m: 8,
            warps_n: 1,
            stages: 3,
            blocks_per_sm: 2,
            overlap: Overlap::Turns,
            raster: 8,
            persistent: true,
            cluster: 2,
            contracts: BTreeMap::from([(of("s"), all(false)), (of("o"), all(true))]),
        }
    );
    let delayed = KernelSchedule {
        overlap: Overlap::Delayed,
        ..KernelSchedule::default()
    };
    assert_eq!(second, &delayed);
}

#[test]
fn blanks_comments_order_and_defaults_say_nothing() {
    let text = "# mine\r\n\tkernel 1 # rows\nwarps 1 x 1\n\n  pipeline 1 stage\norder raster 4\nkernel 0\r\n\
                order persistent\nwarps 4 x 2\ninstruction o=fma#\ninstruction s = mma.m16n8k8.3xtf32 swapped";
    expect![[r#"
        kernel 0
          instruction s = mma.m16n8k8.3xtf32 swapped
          instruction o = fma
          warps 4 x 2
          order persistent
        kernel 1
          order raster 4
    "#]]
    .assert_eq(&read(text));
}

/// With all that kernel 0 needs, where it is another line that is looked at.
fn with(line: &str) -> String {
    format!("kernel 0\ninstruction s = fma\ninstruction o = fma\n{line}\nkernel 1\n")
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_what_would_be_right() {
    assert!(read(&with("warps 2 x 2")).starts_with("kernel 0\n"));
    for (text, place, part) in [
        // Without looking at the tile program.
        (
            "warps 4 x 1\nkernel 0\n".to_owned(),
            (1, 1),
            "expected `kernel 0` in front of the first `warps`",
        ),
        (
            "kernels 0\n".to_owned(),
            (1, 1),
            "expected `kernel` or one of `instruction`, `warps`, `pipeline`, `roles`, `registers`, `order`, `cluster`, found `kernels`",
        ),
        (
            "kernel\n".to_owned(),
            (1, 7),
            "expected the kernel's number, from 0 on, found the end of the line",
        ),
        ("kernel -1\n".to_owned(), (1, 8), "from 0 on, found `-1`"),
        (
            "kernel 0 1\n".to_owned(),
            (1, 10),
            "expected the end of the line, found `1`",
        ),
        (
            "kernel 0\nkernel 1\nkernel 0\n".to_owned(),
            (3, 8),
            "two blocks of kernel 0",
        ),
        (
            with("instruction s = fma"),
            (4, 13),
            "the instruction of `s` is said twice: line 2 says it already",
        ),
        (
            with("warps 2 x 2\nwarps 2 x 2"),
            (5, 1),
            "`warps` is said twice: line 4 says it already",
        ),
        (
            with("instruction = fma"),
            (4, 13),
            "expected the name of a contraction's value, found `=`: `instruction VALUE = NAME [swapped]`",
        ),
        (
            with("instruction s"),
            (4, 14),
            "expected `=`, found the end of the line",
        ),
        (
            with("  instruction s = hmma"),
            (4, 19),
            "expected one of `fma`, `mma.m16n8k16`, `mma.m16n8k8.tf32`, `mma.m16n8k8.3xtf32`, `wgmma.m64k16`, `wgmma.m64k8.3xtf32`, found `hmma`",
        ),
        (
            with("instruction s = fma swap"),
            (4, 21),
            "expected the end of the line, found `swap`",
        ),
        (
            with("warps 8x1"),
            (4, 7),
            "expected the number of warps along rows, found `8x1`: `warps ROWS x COLUMNS`",
        ),
        (
            with("warps 0 x 1"),
            (4, 7),
            "expected 1 to 32 warps along rows, found 0",
        ),
        (
            with("warps 1 x 64"),
            (4, 11),
            "expected 1 to 32 warps along columns, found 64",
        ),
        (
            with("pipeline 0 stages"),
            (4, 10),
            "expected 1 to 32 stages, found 0",
        ),
        (
            with("pipeline 99999999999999999999 stages"),
            (4, 10),
            "expected 1 to 32 stages, found",
        ),
        (
            with("pipeline 2.5 stages"),
            (4, 10),
            "expected the number of stages, found `2.5`",
        ),
        (
            with("pipeline 3"),
            (4, 11),
            "expected `stages`, found the end of the line",
        ),
        (
            with("pipeline 1 stages"),
            (4, 12),
            "expected `stage`, found `stages`",
        ),
        (
            with("pipeline 3 stages, late"),
            (4, 20),
            "expected `delayed`, found `late`",
        ),
        (
            with("pipeline 3 stages\nroles producer, turns"),
            (5, 1),
            "expected `pipeline N stages, delayed` in this kernel too",
        ),
        (
            with("roles producer"),
            (4, 15),
            "expected `,`, found the end of the line: `roles producer, turns`",
        ),
        (
            with("registers for 0 blocks per SM"),
            (4, 15),
            "expected 1 to 32 blocks per SM, found 0",
        ),
        (
            with("registers for 2 blocks an SM"),
            (4, 24),
            "expected `per`, found `an`",
        ),
        (
            with("order"),
            (4, 6),
            "expected `persistent` or `raster`, found the end of the line",
        ),
        (
            with("order persistent,"),
            (4, 18),
            "expected `raster`, found the end of the line",
        ),
        (
            with("order raster 0"),
            (4, 14),
            "expected 1 to 65536 tiles that are walked together, found 0",
        ),
        (
            with("order raster 4, persistent"),
            (4, 15),
            "expected the end of the line, found `,`",
        ),
        (
            with("cluster 17"),
            (4, 9),
            "expected 1 to 16 blocks of a cluster, found 17: `cluster N`",
        ),
        // Held against the tile program.
        (
            "# nothing\n".to_owned(),
            (1, 1),
            "expected `kernel 0` too: the tile program has 2 kernels",
        ),
        (
            "kernel 1\n".to_owned(),
            (1, 8),
            "expected `kernel 0` too: the tile program has 2 kernels",
        ),
        (
            with("") + "kernel 2\n",
            (6, 8),
            "expected a number below 2, found 2: the tile program has 2 kernels",
        ),
        (
            with("instruction p = fma"),
            (4, 13),
            "expected a contraction of kernel 0, which has `s`, `o`, found `p`",
        ),
        (
            with("") + "instruction y = fma",
            (6, 13),
            "expected a contraction of kernel 1, which has none, found `y`",
        ),
        (
            "kernel 0\ninstruction s = fma\nkernel 1".to_owned(),
            (1, 8),
            "expected `instruction o = NAME` in kernel 0 too, with one of `fma`, ",
        ),
    ] {
        let Err(faults) = Schedule::parse(&text, "my.txt", &ATOMS, &tile()) else {
            panic!("it is read: {text}")
        };
        let first = &faults.list()[0];
        assert_eq!((first.line, first.column), place, "{faults}\n{text}");
        assert!(first.message.contains(part), "no `{part}` in: {faults}");
    }
}

#[test]
fn every_fault_is_told() {
    expect![[r#"
        my.txt:2:19: expected one of `fma`, `mma.m16n8k16`, `mma.m16n8k8.tf32`, `mma.m16n8k8.3xtf32`, `wgmma.m64k16`, `wgmma.m64k8.3xtf32`, found `wgmma`: `instruction VALUE = NAME [swapped]`
            instruction s = wgmma
                            ^^^^^
        my.txt:4:9: expected 1 to 32 warps along rows, found 0: `warps ROWS x COLUMNS`
            warps 0 x 1
                  ^"#]]
    .assert_eq(&read(
        "kernel 0\n  instruction s = wgmma\n  instruction o = fma\n  warps 0 x 1\nkernel 1\n",
    ));
    expect![[r#"
        my.txt:1:8: expected `instruction o = NAME` in kernel 0 too, with one of `fma`, `mma.m16n8k16`, `mma.m16n8k8.tf32`, `mma.m16n8k8.3xtf32`, `wgmma.m64k16`, `wgmma.m64k8.3xtf32`
          kernel 0
                 ^
        my.txt:1:8: expected `kernel 1` too: the tile program has 2 kernels
          kernel 0
                 ^
        my.txt:3:15: expected a contraction of kernel 0, which has `s`, `o`, found `t`
            instruction t = fma
                        ^"#]]
    .assert_eq(&read(
        "kernel 0\n  instruction s = fma\n  instruction t = fma\n",
    ));
}

/// As long as a file may be.
#[test]
fn what_is_said_very_often_is_told_as_often() {
    let lines = "order persistent\n".repeat(60_000);
    let faults =
        ScheduleText::parse(&format!("kernel 0\n{lines}"), "my.txt", &ATOMS).expect_err("twice");
    assert!(faults.to_string().ends_with("\nand 59899 more"), "{faults}");
    let last = &faults.list()[99].message;
    assert!(last.ends_with("line 101 says it already"), "{last}");
    let blocks: String = (0..80_000).map(|n| format!("kernel {n}\n")).collect();
    let many = ScheduleText::parse(&blocks, "my.txt", &ATOMS).expect("blocks");
    let faults = many.of(&tile()).expect_err("other kernels");
    assert_eq!(faults.list()[2].line, 3, "{faults}");
}

/// Any schedule of the tile program.
fn schedules() -> impl Strategy<Value = Schedule> {
    let kernels = tile().kernels.into_iter().map(|kernel| {
        let contractions = (0..kernel.values.len() as u32).map(ValueId).filter(|v| {
            matches!(
                kernel.values[v.index()].op,
                crate::tile::TileOp::Contract { .. }
            )
        });
        let contractions: Vec<ValueId> = contractions.collect();
        let how = (prop::sample::select(ATOMS.to_vec()), any::<bool>());
        let overlaps = [Overlap::None, Overlap::Delayed, Overlap::Turns];
        (
            (1..=32u32, 1..=32u32, 1..=32u32, 1..=32u32),
            prop::sample::select(overlaps.to_vec()),
            0..=65536u32,
            (any::<bool>(), 1..=16u32),
            prop::collection::vec(how, contractions.len()),
        )
            .prop_map(
                move |(numbers, overlap, raster, (persistent, cluster), how)| {
                    let (warps_m, warps_n, stages, blocks_per_sm) = numbers;
                    let how = how
                        .into_iter()
                        .map(|(atom, swap)| ContractSchedule { atom, swap });
                    KernelSchedule {
                        warps_m,
                        warps_n,
                        stages,
                        blocks_per_sm,
                        overlap,
                        raster,
                        persistent,
                        cluster,
                        contracts: contractions.iter().copied().zip(how).collect(),
                    }
                },
            )
    });
    kernels
        .collect::<Vec<_>>()
        .prop_map(|kernels| Schedule { kernels })
}

/// A text's arbitrary neighbour: some of its words in another order, left out, or changed.
fn words() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "kernel",
        "instruction",
        "warps",
        "pipeline",
        "roles",
        "registers",
        "order",
        "0",
        "1",
        "2",
        "s",
        "o",
        "=",
        "fma",
        "swapped",
        "x",
        "stages",
        ",",
        "delayed",
        "producer",
        "turns",
        "for",
        "block",
        "per",
        "SM",
        "persistent",
        "raster",
        "cluster",
        "\n",
        "#",
        "é",
        "\u{feff}",
    ]);
    prop::collection::vec(word, 0..40).prop_map(|words| words.join(" "))
}

/// Oracle: the schedule that was printed.
#[test]
fn what_is_printed_is_read_as_it_was() {
    let drawn = strategies::runner(1, 500).run(&schedules(), |schedule| {
        let text = schedule.text(&tile());
        let read = Schedule::parse(&text, "my.txt", &ATOMS, &tile()).expect("its own text");
        prop_assert_eq!(read, schedule);
        Ok(())
    });
    drawn.unwrap_or_else(|e| panic!("{e}"));
}

/// Oracle: the printer, of what is read at all.
#[test]
fn nothing_makes_the_reader_panic() {
    let drawn = strategies::runner(1, 2000).run(&words(), |text| {
        if let Ok(schedule) =
            ScheduleText::parse(&text, "my.txt", &ATOMS).and_then(|t| t.of(&tile()))
        {
            let text = schedule.text(&tile());
            let read = Schedule::parse(&text, "my.txt", &ATOMS, &tile()).expect("its own text");
            prop_assert_eq!(read, schedule);
        }
        Ok(())
    });
    drawn.unwrap_or_else(|e| panic!("{e}"));
}

use super::*;
use crate::tile::TileProgram;
use expect_test::expect;
use proptest::prelude::*;

const fn form(word: &'static str, parts: &'static [Part], help: &'static str) -> Form {
    let required = false;
    Form {
        word,
        parts,
        required,
        help,
    }
}

const fn number(name: &'static str, of: &'static str, most: u32) -> Part {
    Part::Count { name, of, most }
}

/// Forms with every kind of part.
#[rustfmt::skip]
static FORMS: [Form; 7] = [
    Form {
        required: true,
        ..form(
            "instruction",
            &[Part::Contraction("VALUE"), Part::Word("="), Part::Instruction("NAME"), Part::Flag("swapped")],
            "what carries out a contraction",
        )
    },
    form("warps", &[number("ROWS", "warps along rows", 32), Part::Word("x"), number("COLUMNS", "warps along columns", 32)], "the warps that compute"),
    form("registers", &[Part::Word("for"), number("N", "blocks per SM", 32), Part::Noun("block"), Part::Word("per"), Part::Word("SM")], "bounded"),
    form("roles", &[Part::Word("producer")], "four more warps fill the rings"),
    form("pipeline", &[number("N", "stages", 32), Part::Noun("stage")], "so many stages"),
    form("persistent", &[], "blocks go over several tiles"),
    form("split", &[Part::Contraction("VALUE"), Part::Word(","), number("N", "parts", 65536)], "in parts"),
];

/// Instructions that texts may name.
const ATOMS: [Atom; 6] = [
    Atom::new("fma"),
    Atom::new("mma.m16n8k16"),
    Atom::new("mma.m16n8k8.tf32"),
    Atom::new("mma.m16n8k8.3xtf32"),
    Atom::new("wgmma.m64k16"),
    Atom::new("wgmma.m64k8.3xtf32"),
];

/// Nothing but a pipeline stands behind roles.
fn misplaced(steps: &[Step]) -> Option<(usize, String)> {
    let roles = steps.iter().position(|s| s.form().word == "roles")?;
    let early = |s: &Step| s.form().word == "pipeline";
    let at = steps[..roles].iter().position(early)?;
    Some((
        at,
        "expected `roles producer` in front of `pipeline`".into(),
    ))
}

fn language() -> Language {
    Language {
        forms: FORMS.iter().collect(),
        atoms: ATOMS.to_vec(),
        misplaced,
    }
}

/// A step of the form of this word.
fn step(word: &str, counts: &[u32]) -> Step {
    let form = FORMS.iter().find(|f| f.word == word).expect("a form");
    Step::new(form, counts.iter().copied().map(Argument::Count))
}

fn by(atom: Atom, swapped: bool) -> Step {
    let arguments = [Argument::Instruction(atom), Argument::Flag(swapped)];
    Step::new(&FORMS[0], arguments)
}

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
    match Schedule::parse(text, "my.txt", &language(), &tile()) {
        Ok(schedule) => schedule.text(&tile()),
        Err(faults) => faults.to_string(),
    }
}

#[test]
fn a_schedule_has_a_line_for_each_step() {
    let text = "\
kernel 0
  instruction s = wgmma.m64k16
  instruction o = wgmma.m64k16 swapped
  warps 8 x 1
  registers for 2 blocks per SM
  roles producer
  pipeline 3 stages
  persistent
  split o , 2
kernel 1
";
    assert_eq!(read(text), text);
    let schedule = Schedule::parse(text, "my.txt", &language(), &tile()).expect("a schedule");
    let of = |name: &str| {
        let at = tile().kernels[0].values.iter().position(|v| v.name == name);
        ValueId(at.expect("a value") as u32)
    };
    let atom = Atom::new("wgmma.m64k16");
    let first = KernelSchedule::from_iter([
        by(atom, false).about(of("s")),
        by(atom, true).about(of("o")),
        step("warps", &[8, 1]),
        step("registers", &[2]),
        step("roles", &[]),
        step("pipeline", &[3]),
        step("persistent", &[]),
        step("split", &[2]).about(of("o")),
    ]);
    assert_eq!(first.steps().len(), 8);
    assert_eq!(schedule.kernels, [first, KernelSchedule::default()]);
}

#[test]
fn a_schedule_answers_what_it_says() {
    let mut schedule = KernelSchedule::from_iter([step("warps", &[8, 2]), step("pipeline", &[3])]);
    assert_eq!(schedule.counts(&FORMS[1]), [8, 2]);
    assert_eq!(
        schedule.counts(&FORMS[2]),
        [1],
        "what is so where nothing is said"
    );
    assert!(schedule.says(&FORMS[4]) && !schedule.says(&FORMS[5]));
    // In place of the one that was there, behind all others, and not at all.
    schedule.extend([step("warps", &[4, 0]), step("persistent", &[])]);
    assert_eq!(
        format!("{:?}", schedule.steps()),
        "[warps 4 x 1, pipeline 3 stages, persistent]"
    );
    schedule.set(step("pipeline", &[1]));
    schedule.set(step("registers", &[1]));
    assert_eq!(
        format!("{:?}", schedule.steps()),
        "[warps 4 x 1, persistent]"
    );
    // One about each contraction.
    let all =
        [(0, true), (1, false), (0, false)].map(|(v, swap)| by(ATOMS[0], swap).about(ValueId(v)));
    let schedule = KernelSchedule::from_iter(all);
    let of = |s: &Step| (s.value(), s.atom(), s.flag());
    let found: Vec<_> = schedule.of(&FORMS[0]).map(of).collect();
    assert_eq!(
        found,
        [0, 1].map(|v| (Some(ValueId(v)), Some(ATOMS[0]), false))
    );
}

#[test]
fn blanks_comments_and_defaults_say_nothing() {
    let text = "# mine\r\n\tkernel 1 # rows\nwarps 1 x 1\n\n  pipeline 1 stage\nroles producer\nregisters for 4 blocks per SM\n\
                kernel 0\r\npersistent\nwarps 4 x 2\ninstruction o=fma#\ninstruction s = mma.m16n8k8.3xtf32 swapped";
    expect![[r#"
        kernel 0
          persistent
          warps 4 x 2
          instruction o = fma
          instruction s = mma.m16n8k8.3xtf32 swapped
        kernel 1
          roles producer
          registers for 4 blocks per SM
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
            "expected `kernel` or one of `instruction`, `warps`, `registers`, `roles`, `pipeline`, `persistent`, `split`, found `kernels`",
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
            "expected the name of a contraction's value, found `=`: `instruction VALUE = NAME [swapped]`, what carries out a contraction",
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
            (4, 18),
            "expected the end of the line, found `,`: `pipeline N stages`, so many stages",
        ),
        (
            with("warps 2 x 2\npipeline 3 stages\nroles producer"),
            (5, 1),
            "expected `roles producer` in front of `pipeline`",
        ),
        (
            with("roles"),
            (4, 6),
            "expected `producer`, found the end of the line: `roles producer`",
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
            with("persistent 1"),
            (4, 12),
            "expected the end of the line, found `1`",
        ),
        (
            with("split s 2"),
            (4, 9),
            "expected `,`, found `2`: `split VALUE , N`",
        ),
        (
            with("split s, 0"),
            (4, 10),
            "expected 1 to 65536 parts, found 0: `split VALUE , N`",
        ),
        (
            with("split s, 2\nsplit o, 2\nsplit s, 3"),
            (6, 7),
            "the split of `s` is said twice: line 4 says it already",
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
        let Err(faults) = Schedule::parse(&text, "my.txt", &language(), &tile()) else {
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
        my.txt:2:19: expected one of `fma`, `mma.m16n8k16`, `mma.m16n8k8.tf32`, `mma.m16n8k8.3xtf32`, `wgmma.m64k16`, `wgmma.m64k8.3xtf32`, found `wgmma`: `instruction VALUE = NAME [swapped]`, what carries out a contraction
            instruction s = wgmma
                            ^^^^^
        my.txt:4:9: expected 1 to 32 warps along rows, found 0: `warps ROWS x COLUMNS`, the warps that compute
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
    let lines = "persistent\n".repeat(60_000);
    let faults = ScheduleText::parse(&format!("kernel 0\n{lines}"), "my.txt", &language())
        .expect_err("twice");
    assert!(faults.to_string().ends_with("\nand 59899 more"), "{faults}");
    let last = &faults.list()[99].message;
    assert!(last.ends_with("line 101 says it already"), "{last}");
    let blocks: String = (0..80_000).map(|n| format!("kernel {n}\n")).collect();
    let many = ScheduleText::parse(&blocks, "my.txt", &language()).expect("blocks");
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
        (
            (1..=32u32, 1..=32u32, 1..=32u32, 1..=32u32),
            (any::<bool>(), any::<bool>()),
            prop::collection::vec((how, 1..=65536u32), contractions.len()),
        )
            .prop_map(move |(numbers, (roles, persistent), how)| {
                let (rows, columns, stages, blocks) = numbers;
                let of = contractions.iter().zip(how);
                let own = of.flat_map(|(v, ((atom, swap), parts))| {
                    [by(atom, swap).about(*v), step("split", &[parts]).about(*v)]
                });
                let mut all: KernelSchedule = own.collect();
                all.set(step("warps", &[rows, columns]));
                all.extend(roles.then(|| step("roles", &[])));
                all.set(step("pipeline", &[stages]));
                all.extend(persistent.then(|| step("persistent", &[])));
                all.set(step("registers", &[blocks]));
                all
            })
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
        "producer",
        "for",
        "block",
        "per",
        "SM",
        "persistent",
        "split",
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
        let read = Schedule::parse(&text, "my.txt", &language(), &tile()).expect("its own text");
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
            ScheduleText::parse(&text, "my.txt", &language()).and_then(|t| t.of(&tile()))
        {
            let text = schedule.text(&tile());
            let read =
                Schedule::parse(&text, "my.txt", &language(), &tile()).expect("its own text");
            prop_assert_eq!(read, schedule);
        }
        Ok(())
    });
    drawn.unwrap_or_else(|e| panic!("{e}"));
}

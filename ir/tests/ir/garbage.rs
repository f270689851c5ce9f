//! Oracle: nothing may panic, hang or use up memory, whatever the text; what reads is valid and prints to itself.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tilewright_ir::{Program, TileProgram, parse};

/// Reads a text; says whether it is a program.
fn feed(text: &str) -> bool {
    let start = Instant::now();
    let read = parse(text, "garbage.lax");
    assert!(start.elapsed() < Duration::from_secs(10), "slow:\n{text}");
    match read {
        Ok(program) => {
            assert_eq!(program.validate(), Ok(()), "{text}");
            let again: Program = program.to_string().parse().expect("printed text reads");
            assert_eq!(again, program, "{text}");
            true
        }
        Err(faults) => {
            assert!(!faults.list().is_empty());
            let shown = faults.to_string();
            assert!(
                shown.contains("garbage.lax:") && shown.contains('^'),
                "{shown}"
            );
            for fault in faults.list() {
                let lines = text.lines().count().max(1) + 1;
                assert!(fault.line <= lines && !fault.message.is_empty(), "{shown}");
            }
            false
        }
    }
}

const WORDS: [&str; 71] = [
    "program",
    "axis",
    "def",
    "return",
    "parameter",
    "fill",
    "f32",
    "f16",
    "bf16",
    "inf",
    "exp",
    "log",
    "sqrt",
    "max",
    "select",
    "sum",
    "prod",
    "dot",
    "view",
    "iota",
    "size",
    "softmax",
    "mean",
    "rms_norm",
    "x",
    "y",
    "p",
    "i",
    "j",
    "f",
    "g",
    "0",
    "1",
    "2",
    "3",
    "1e-6",
    "0.5",
    "99999999999999999999",
    "1e999",
    "(",
    ")",
    "[",
    "]",
    ",",
    ";",
    "=",
    "+",
    "-",
    "*",
    "/",
    "->",
    "\n",
    "\n",
    "\n",
    "\n",
    " ",
    "#",
    "\"",
    "é",
    "\t",
    "\r\n",
    "_",
    "nan",
    "..",
    "...",
    "a",
    "a...",
    "max_pool",
    "min",
    "layer_norm",
    "@",
];

/// Runs so many cases of a test that panics where it fails and says whether a text was read; gives how many were, and how many not.
fn counted<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value) -> bool) -> (u32, u32) {
    let (good, bad) = (Cell::new(0), Cell::new(0));
    let run = strategies::runner(1, cases).run(&strategy, |value| {
        let count = if test(value) { &good } else { &bad };
        count.set(count.get() + 1);
        Ok(())
    });
    run.unwrap_or_else(|e| panic!("{e}"));
    (good.get(), bad.get())
}

fn word() -> impl Strategy<Value = &'static str> {
    select(&WORDS)
}

#[test]
fn random_characters_and_tokens_are_refused_politely() {
    let texts = (
        vec(any::<u8>(), 0..200),
        "[ -~]{0,200}",
        vec(word(), 0..200),
    );
    let (good, bad) = counted(2000, texts, |(bytes, ascii, soup)| {
        feed(&String::from_utf8_lossy(&bytes));
        feed(&ascii);
        feed(&soup.join(" "));
        feed(&format!(
            "program p\naxis i = 3, j = 4\nx = parameter f32 [i, j]\ny = {}\nreturn f32 [i] x",
            soup.join(" ")
        ));
        feed(&format!(
            "program p\naxis i = 3, j = 4\nx = parameter f32 [i, j]\ndef f(x; {}) = x\nreturn f32 [i] x",
            soup.join(" ")
        ));
        let _ = soup.concat().parse::<TileProgram>();
        feed(&format!(
            "program p\naxis i = 3, j = 4\nx = parameter f32 [i, j]\ndef f(x; a..., n) = {}\nreturn f32 [i, j] f(x; i, j, 3)",
            soup.join(" ")
        ))
    });
    assert_eq!(good + bad, 2000);
}

/// Calls with random arguments of definitions with every kind of parameter: some read, and those are valid.
#[test]
fn random_calls_are_read_or_refused_politely() {
    let params = || select(&["a", "a...", "a..., b", "b, a...", "b, a..., c", "b, c"]);
    let bodies = [
        "sum(x; a)",
        "size(a) * x",
        "x * b",
        "iota(a) + x",
        "view(x; a -> b*k - c; fill = 0)",
        "mean(x; a, b)",
        "layer_norm(x; a, b)",
        "min(x; b, a)",
        "max_pool(x; a, k, b, c, 1)",
        "f(x; a)",
    ];
    let arguments = select(&["i", "j", "i, j", "i, i", "2", "j, 0.5", "k", "-inf"]);
    let definitions = (
        (params(), select(bodies[..9].to_vec())),
        (params(), select(bodies.to_vec())),
    );
    let calls = (definitions, select(&["f", "g"]), vec(arguments, 1..=3));
    let (good, bad) = counted(4000, calls, |((f, g), called, items)| {
        feed(&format!(
            "program p\naxis i = 3, j = 4, k = 2\nx = parameter f32 [i, j]\ndef f(x; {}) = {}\ndef g(x; {}) = {}\nreturn f32 [] sum({called}(x; {}) + x + iota(k); i, j, k)",
            f.0,
            f.1,
            g.0,
            g.1,
            items.join(", "),
        ))
    });
    assert!(good > 100 && bad > 1000, "{good} {bad}");
}

/// What is done to a text.
#[derive(Clone, Debug)]
enum Damage {
    CopyWord(Index, Index),
    SwapLines(Index, Index),
    Remove(Index),
    Insert(Index, &'static str),
    Truncate(Index),
}

impl Damage {
    fn any() -> impl Strategy<Value = Self> {
        let two = || (any::<Index>(), any::<Index>());
        prop_oneof![
            two().prop_map(|(from, to)| Self::CopyWord(from, to)),
            two().prop_map(|(one, other)| Self::SwapLines(one, other)),
            any::<Index>().prop_map(Self::Remove),
            (any::<Index>(), word()).prop_map(|(at, word)| Self::Insert(at, word)),
            any::<Index>().prop_map(Self::Truncate),
        ]
    }

    fn of(&self, text: &str) -> String {
        let mut damaged = text.to_owned();
        match self {
            Self::CopyWord(from, to) => {
                let mut words: Vec<&str> = text.split(' ').collect();
                let word = *from.get(&words);
                *to.get_mut(&mut words) = word;
                damaged = words.join(" ");
            }
            Self::SwapLines(one, other) => {
                let mut lines: Vec<&str> = text.lines().collect();
                let count = lines.len();
                lines.swap(one.index(count), other.index(count));
                damaged = lines.join("\n");
            }
            Self::Remove(at) => drop(damaged.remove(at.index(text.len()))),
            Self::Insert(at, word) => damaged.insert_str(at.index(text.len()), word),
            Self::Truncate(at) => damaged.truncate(at.index(text.len())),
        }
        damaged
    }
}

#[test]
fn damaged_programs_are_refused_politely() {
    let cases = (strategies::programs(), Damage::any());
    let (good, bad) = counted(1500, cases, |(program, damage)| {
        feed(&damage.of(&program.to_string()))
    });
    assert!(good > 50 && bad > 500, "{good} {bad}");
}

#[test]
fn damaged_tile_programs_are_refused_politely() {
    let text = "tile rows
axis i = 64, j = 100
buffer x = parameter 0 f32 [i, j]
buffer out = output 0 f32 [i]
kernel grid(i: 16) loop(j: 32) {
  loop j from 0*first(i) to (2*last(i) + 300) / 2 {
    carry m = -inf over [i]
    t = load x[i, j] fill 1
    r = reduce_max(t; j)
    n = max(m, r)
    yield result = final(m, n)
  }
  store out = result
}
";
    assert_eq!(text.parse::<TileProgram>().expect("good").to_string(), text);
    let words: Vec<&str> = text.split(' ').collect();
    let other = prop_oneof![Just(""), select(words.clone()), word()];
    let faults = vec((any::<Index>(), other), 1..=3);
    let (good, bad) = counted(4000, faults, |faults| {
        let mut damaged = words.clone();
        for (at, other) in faults {
            *at.get_mut(&mut damaged) = other;
        }
        match damaged.join(" ").parse::<TileProgram>() {
            Ok(tile) => {
                assert_eq!(tile.to_string().parse(), Ok(tile));
                true
            }
            Err(why) => {
                assert!(why.to_string().contains('^'), "{why}");
                false
            }
        }
    });
    assert!(good > 20 && bad > 2000, "{good} {bad}");
}

/// Programs made to explode: each must be refused or read within seconds.
#[test]
fn bombs_do_not_go_off() {
    let head = "program bomb\naxis i = 3, j = 3\nx = parameter f32 [i]\n";
    let ladder = |body: &str, steps: usize| {
        let mut text = head.to_owned();
        text.push_str("def g0(x, y) = x\n");
        for n in 1..steps {
            let previous = format!("g{}", n - 1);
            text.push_str(&format!(
                "def g{n}(x, y) = {}\n",
                body.replace('F', &previous)
            ));
        }
        text.push_str(&format!("return f32 [i] g{}(x, x + 1)\n", steps - 1));
        text
    };
    // Doubling with equal arguments is linear, hence fine.
    assert!(feed(&ladder("F(x, y) + F(x, y)", 40)));
    // Doubling with new arguments runs into the limit on values.
    assert!(!feed(&ladder("F(x + 1, y) + F(x + 2, y)", 40)));
    assert!(!feed(&ladder("F(x * y, y / x) + F(y, x + 2)", 60)));
    // A long chain of definitions nests too deep.
    assert!(!feed(&ladder("F(x + 1, y)", 5000)));
    let with = |expr: String| feed(&format!("{head}return f32 [i] {expr}\n"));
    assert!(!with("(".repeat(100_000)));
    assert!(!with("-".repeat(100_000) + "x"));
    assert!(!with("exp(".repeat(50_000) + "x" + &")".repeat(50_000)));
    assert!(with("x + ".repeat(20_000) + "x"));
    assert!(with("(".repeat(90) + "x" + &")".repeat(90)));
    assert!(!with(format!(
        "view(x; i -> {}i)",
        "9223372036854775807*i + ".repeat(100)
    )));
    assert!(!feed(&"é".repeat(400_000)));
    assert!(!feed(&"program p\n".repeat(50_000)));
    assert!(!feed(&"x".repeat(3 << 20)));
    let axes: Vec<String> = (0..50_000).map(|n| format!("a{n} = 2")).collect();
    assert!(!feed(&format!(
        "program p\naxis {}\nreturn f32 [] 1\n",
        axes.join(", ")
    )));
    let bindings: String = (0..70_000).map(|n| format!("v{n} = {n}\n")).collect();
    assert!(!feed(&format!("{head}{bindings}return f32 [i] x\n")));
    // Lists of axes: passed on through many definitions, grown by each, listed over and over, given again and again.
    let names: Vec<String> = (0..250).map(|n| format!("a{n}")).collect();
    let axes = format!("program bomb\naxis {} = 1\n", names.join(" = 1, "));
    let list = names.join(", ");
    let tower = |body: &str, steps: usize, given: &str| {
        let mut text = format!("{axes}def g0(x; a...) = x * size(a)\n");
        for n in 1..steps {
            let below = format!("g{}", n - 1);
            let body = body.replace('F', &below).replace('A', &format!("a{n}"));
            text.push_str(&format!("def g{n}(x; a...) = {body}\n"));
        }
        text.push_str(&format!("return f32 [] g{}(1; {given})\n", steps - 1));
        feed(&text)
    };
    assert!(tower("F(x; a) + F(x; a)", 60, &list));
    assert!(!tower("F(x + 1; a) + F(x + 2; a)", 60, &list));
    assert!(!tower("F(x + 1; a)", 5000, &list));
    assert!(tower("F(x; a, A) + F(x; A, a)", 12, "a0"));
    assert!(!tower("F(x; a, a)", 60, &list));
    assert!(!tower("F(x; a, A)", 3, &format!("{list}, ").repeat(100)));
    assert!(!feed(&format!(
        "program p\ndef f(x; {}b) = x\nreturn f32 [] 1\n",
        "a..., ".repeat(50_000)
    )));
    assert!(!with(format!("mean(x; {}i)", "i, ".repeat(100_000))));
    assert!(!with(format!("rms_norm(x; {}1)", "1, ".repeat(100_000))));
    let large = "program p\naxis a = 1099511627776, b = 1099511627776\nx = parameter f32 [(a b)]\nreturn f32 [a, b] x\n";
    assert!(!feed(large));
}

//! Oracle: nothing may panic, hang or use up memory, whatever the text; what reads is valid and prints to itself.

use std::time::{Duration, Instant};
use tilewright_ir::testing::{Rng, random_program};
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

const WORDS: [&str; 70] = [
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

#[test]
fn random_characters_and_tokens_are_refused_politely() {
    let mut rng = Rng::new(1);
    let mut count = 0;
    for _ in 0..2000 {
        let length = rng.below(200);
        let bytes: Vec<u8> = (0..length).map(|_| rng.bits() as u8).collect();
        feed(&String::from_utf8_lossy(&bytes));
        let ascii: String = (0..length)
            .map(|_| (32 + rng.below(95)) as u8 as char)
            .collect();
        feed(&ascii);
        let soup: Vec<&str> = (0..length).map(|_| *rng.pick(&WORDS)).collect();
        feed(&soup.join(" "));
        feed(&format!(
            "program p\naxis i = 3, j = 4\nx = parameter f32 [i, j]\ny = {}\nreturn f32 [i] x",
            soup.join(" ")
        ));
        feed(&format!(
            "program p\naxis i = 3, j = 4\nx = parameter f32 [i, j]\ndef f(x; {}) = x\nreturn f32 [i] x",
            soup.join(" ")
        ));
        feed(&format!(
            "program p\naxis i = 3, j = 4\nx = parameter f32 [i, j]\ndef f(x; a..., n) = {}\nreturn f32 [i, j] f(x; i, j, 3)",
            soup.join(" ")
        ));
        let _ = soup.concat().parse::<TileProgram>();
        count += 6;
    }
    assert_eq!(count, 12000);
}

/// Calls with random arguments of definitions with every kind of parameter: some read, and those are valid.
#[test]
fn random_calls_are_read_or_refused_politely() {
    let mut rng = Rng::new(4);
    let (mut good, mut bad) = (0, 0);
    let params = ["a", "a...", "a..., b", "b, a...", "b, a..., c", "b, c"];
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
    let arguments = ["i", "j", "i, j", "i, i", "2", "j, 0.5", "k", "-inf"];
    for _ in 0..4000 {
        let items: Vec<&str> = (0..1 + rng.below(3))
            .map(|_| *rng.pick(&arguments))
            .collect();
        let text = format!(
            "program p\naxis i = 3, j = 4, k = 2\nx = parameter f32 [i, j]\ndef f(x; {}) = {}\ndef g(x; {}) = {}\nreturn f32 [] sum({}(x; {}) + x + iota(k); i, j, k)",
            rng.pick(&params),
            rng.pick(&bodies[..9]),
            rng.pick(&params),
            rng.pick(&bodies),
            rng.pick(&["f", "g"]),
            items.join(", "),
        );
        if feed(&text) {
            good += 1;
        } else {
            bad += 1;
        }
    }
    assert!(good > 100 && bad > 1000, "{good} {bad}");
}

#[test]
fn damaged_programs_are_refused_politely() {
    let mut rng = Rng::new(2);
    let (mut good, mut bad) = (0, 0);
    for seed in 0..1500 {
        let text = random_program(seed, 3 + seed as usize % 12).to_string();
        let mut damaged = text.clone();
        match rng.below(5) {
            0 => damaged.truncate(rng.below(text.len())),
            1 => damaged.insert_str(rng.below(text.len()), WORDS[rng.below(WORDS.len())]),
            2 => drop(damaged.remove(rng.below(text.len()))),
            3 => {
                let mut lines: Vec<&str> = text.lines().collect();
                let (a, b) = (rng.below(lines.len()), rng.below(lines.len()));
                lines.swap(a, b);
                damaged = lines.join("\n");
            }
            _ => {
                let words: Vec<&str> = text.split(' ').collect();
                let (a, b) = (rng.below(words.len()), rng.below(words.len()));
                let mut words = words.clone();
                words[a] = words[b];
                damaged = words.join(" ");
            }
        }
        if feed(&damaged) {
            good += 1;
        } else {
            bad += 1;
        }
    }
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
    let mut rng = Rng::new(3);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..4000 {
        let mut damaged = words.clone();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(words.len());
            damaged[at] = match rng.below(3) {
                0 => *rng.pick(&words),
                1 => *rng.pick(&WORDS),
                _ => "",
            };
        }
        let damaged = damaged.join(" ");
        match damaged.parse::<TileProgram>() {
            Ok(tile) => {
                good += 1;
                assert_eq!(tile.to_string().parse(), Ok(tile));
            }
            Err(why) => {
                bad += 1;
                assert!(why.to_string().contains('^'), "{why}");
            }
        }
    }
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

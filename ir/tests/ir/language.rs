//! `docs/language.md`, kept true: its programs read and can be evaluated, its messages are those that are given, and every operation
//! and definition stands in it. Oracle: the parser, the table of operations and the prelude.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tilewright_ir::{AxisId, Dtype, Program, Tensor, eval, limits, ops, parse};

const PAGE: &str = include_str!("../../../docs/language.md");
const PRELUDE: &str = include_str!("../../src/prelude.lax");

/// The fenced blocks of the page: what is written behind the fence, and the lines.
fn blocks() -> Vec<(&'static str, String)> {
    let mut blocks = Vec::new();
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
            blocks.push((info, body.join("\n") + "\n"));
        }
    }
    blocks
}

/// The same program with each axis as short as its views allow, two at least.
fn small(program: &Program) -> Program {
    let mut program = program.clone();
    for (at, axis) in program.axes.clone().iter().enumerate() {
        let shorter = (2..axis.extent).find_map(|extent| {
            let extents = BTreeMap::from([(AxisId(at as u32), extent)]);
            program.resized(&extents).ok()
        });
        program = shorter.unwrap_or(program);
    }
    program
}

/// Evaluates a program on positive numbers: every element of every result is a number.
fn evaluate(program: &Program) {
    let small = small(program);
    let mut runner = strategies::runner(5, 1);
    let inputs: Vec<Tensor> = small
        .parameters()
        .map(|(_, _, dtype, dims)| {
            let shape: Vec<usize> = small.shape(dims).iter().map(|e| *e as usize).collect();
            // Of integers 1 and more: a length of nothing has no result.
            let least = if dtype.is_float() { 0.1 } else { 1.0 };
            let number = |_| match runner.rng().random_range(least..2.1) {
                x if dtype.is_float() => x,
                x => dtype.round(x),
            };
            let data = (0..shape.iter().product()).map(number);
            Tensor::new(shape.clone(), data.collect()).expect("full")
        })
        .collect();
    let results = eval(&small, &inputs).expect("inputs that fit");
    assert_eq!(results.len(), small.outputs.len());
    for result in results {
        assert!(
            !result.data.is_empty() && result.data.iter().all(|x| x.is_finite()),
            "{small}"
        );
    }
}

#[test]
fn programs_read_and_messages_are_those_that_are_given() {
    let blocks = blocks();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, (info, body)) in blocks.iter().enumerate() {
        *counts.entry(info).or_default() += 1;
        let before = at.checked_sub(1).map_or("", |b| &blocks[b].1);
        match *info {
            "lax" => {
                let program = parse(body, "page.lax").unwrap_or_else(|e| panic!("{e}"));
                evaluate(&program);
            }
            "lax shown" => {
                let program: Program = before.parse().expect("the block before is a program");
                assert_eq!(&program.to_string(), body);
            }
            "lax bad" => {
                let name = body.split_whitespace().nth(1).expect("a name");
                let faults = parse(body, &format!("{name}.lax")).expect_err("a bad program");
                let (next, told) = &blocks[at + 1];
                assert_eq!(*next, "console");
                assert_eq!(&format!("{faults}\n"), told, "\n{faults}\n");
            }
            "console" | "text" => {}
            other => panic!("a block of an unknown kind: {other}"),
        }
    }
    let expected = [
        ("console", 2),
        ("lax", 13),
        ("lax bad", 2),
        ("lax shown", 1),
        ("text", 1),
    ];
    assert_eq!(counts, BTreeMap::from(expected));
}

/// The rows of the tables: the cells between bars.
fn rows() -> Vec<Vec<&'static str>> {
    let rows = PAGE.lines().filter_map(|l| l.strip_prefix("| `"));
    rows.map(|l| l.trim_end_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn every_operation_stands_in_the_table() {
    let (_, section) = PAGE
        .split_once("## The 14 operations\n")
        .expect("the section");
    let (section, _) = section.split_once("\n## ").expect("another section");
    let rows = section.lines().filter_map(|l| l.strip_prefix("| `"));
    let listed: Vec<&str> = rows.map(|l| l.split('`').next().expect("a name")).collect();
    let known: Vec<&str> = ops::rows().map(|row| row.name).collect();
    assert_eq!(listed, known);
}

#[test]
fn every_definition_stands_in_a_table_with_its_formula() {
    // Statements of the prelude, each in one line.
    let mut definitions: Vec<(String, String)> = Vec::new();
    let code = PRELUDE
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty());
    for line in code {
        match line.strip_prefix("def ") {
            Some(definition) => {
                let (call, body) = definition.split_once('=').expect("a body");
                definitions.push((call.trim().to_owned(), body.trim().to_owned()));
            }
            None => {
                let (_, body) = definitions.last_mut().expect("a definition that goes on");
                body.push_str(line.trim());
            }
        }
    }
    assert_eq!(definitions.len(), 42);
    let mut listed: BTreeSet<(String, String)> = BTreeSet::new();
    for row in rows() {
        if let [call, body, _] = row.as_slice() {
            listed.insert((
                call.trim_end_matches('`').to_owned(),
                body.trim_matches('`').to_owned(),
            ));
        }
    }
    for definition in &definitions {
        assert!(
            listed.contains(definition),
            "not on the page, or otherwise: {definition:?}"
        );
    }
    assert_eq!(
        listed.len(),
        definitions.len(),
        "what is no definition any more is on the page"
    );
}

#[test]
fn what_the_page_links_to_is_there() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let links: Vec<&str> = PAGE.split("](").skip(1).collect();
    assert!(!links.is_empty());
    for link in links {
        let path = link.split([')', '#']).next().expect("a path");
        assert!(docs.join(path).is_file(), "{path}");
    }
}

#[test]
fn limits_and_dtypes_are_as_told() {
    let told = PAGE.replace('\n', " ");
    let power = |n: u64| format!("2^{}", n.ilog2());
    for part in [
        format!("at most {} axes", limits::MAX_AXES),
        format!("an extent of at most {}", power(limits::MAX_EXTENT)),
        format!("at most {} parameters", limits::MAX_PARAMETERS),
        format!("most {} results", limits::MAX_OUTPUTS),
        format!("at most {} values", limits::MAX_NODES),
        format!("at most {} characters", limits::MAX_NAME),
        format!("have at most {} axes", limits::MAX_RANK),
        format!("at most {} elements", power(limits::MAX_ELEMENTS)),
        format!("index is at most {}", power(limits::MAX_COEFFICIENT)),
    ] {
        assert!(told.contains(&part), "{part}");
    }
    let dtypes: Vec<&str> = Dtype::ALL.iter().map(|d| d.name()).collect();
    assert!(told.contains(&format!("DTYPE    = {}", dtypes.join(" | "))));
    let nested = |n: usize| {
        let (open, close) = ("(".repeat(n), ")".repeat(n));
        parse(&format!("program p\nreturn f32 [] {open}1{close}\n"), "p").is_ok()
    };
    assert!(nested(100) && !nested(101) && told.contains("nest at most 100 deep"));
    let long = |n: usize| {
        parse(
            &format!("program p\nreturn f32 [] 1 #{}\n", " ".repeat(n)),
            "p",
        )
    };
    let fixed = "program p\nreturn f32 [] 1 #\n".len();
    assert!(told.contains("at most 1 MiB"));
    assert!(long((1 << 20) - fixed).is_ok() && long((1 << 20) - fixed + 1).is_err());
}

//! Small machine programs that passes are tested with, and their statements in short.

use super::PASSES;
use crate::machine::{Machine, Rows, Statement};

/// A kernel of four warps whose loop is over tiles of `k`: regions `s0` and `s1` hold tiles of the buffers `x` and `y`, of which a kernel in front
/// may write `y`, and `o` is written. In `body` words in capitals stand for statements: `LEADS` for instructions that make `f0` of `s0`, `ADDS` for
/// such that add the product of the rows `f1` and `s1` to `f2`, `ADDED` for the same an iteration late, `NEXT` for the same to a fragment `f3`.
pub(super) fn machine(body: &str) -> Machine {
    let access = |buffer: u32| {
        format!(
            "(buffer: {buffer}, dtype: Bf16, coefficients: {{0: 256, 1: 1}}, offset: 0, checks: [], fill: 0.0, wide: false)"
        )
    };
    let held = "\"1:2@1 0:16@4|1:32@2|0:4@1\"";
    let copy = |n: u32| {
        format!(
            "Copy(region: \"s{n}\", stage: At(0), access: {}, layout: \"1:8@1 0:4@16|1:8@8 0:4@1|0:4@4\", width: 8, background: true)",
            access(n)
        )
    };
    let issue = |n: u32, stage: &str| {
        format!(
            "Issue(row: \"wgmma.m64k16 bf16\", into: \"f0\", fresh: true, groups: 1, counts: (1, 1, 4), columns: 64, a: Fragment(\"f1\"), \
             b: (region: \"s{n}\", stage: {stage}, swizzle: (span: 64, lines: 64, along: 1, depth: true), share: None, further: 0))"
        )
    };
    let atoms = |n: u32, stage: &str| {
        format!(
            "(region: \"s{n}\", stage: {stage}, swizzle: (span: 64, lines: 64, along: 1, depth: true), share: None, further: 0)"
        )
    };
    let leads = format!(
        "Issue(row: \"wgmma.m64k16 bf16\", into: \"f0\", fresh: true, groups: 1, counts: (1, 1, 4), columns: 64, a: SwizzleAtoms{0}, b: {0})",
        atoms(0, "At(0)")
    );
    let adds = |into: u32, stage: &str| {
        format!(
            "Issue(row: \"wgmma.m64k16 bf16\", into: \"f{into}\", fresh: false, groups: 1, counts: (1, 1, 4), columns: 64, a: Fragment(\"f1\"), b: {})",
            atoms(1, stage)
        )
    };
    let load = |n: u32| {
        format!(
            "Load(to: \"f2\", access: {}, axes: [0, 1], width: 2, policy: Shared)",
            access(n)
        )
    };
    let store = format!(
        "Store(access: {}, from: Fragment(\"f0\"), held: {held}, gathered: None, width: 2, axes: [0, 1], alone: false)",
        access(2)
    );
    let words = [
        ("HERE", "Tile(axis: 1, at: Now(0))".to_owned()),
        (
            "RANGE",
            "Range(number: 0, axis: 1, low: [], high: [])".to_owned(),
        ),
        // As far as an element of buffer 1 says, which a kernel in front wrote.
        (
            "TOLD",
            "Range(number: 0, axis: 1, low: [], high: [(terms: [], entries: [(1, (buffer: 1, axes: [0]))], offset: 0, divisor: 1)])"
                .to_owned(),
        ),
        ("COPY0", copy(0)),
        ("COPY1", copy(1)),
        ("LANDS", "Sync(CopyCommit)".to_owned()),
        (
            "FETCH0",
            "Fetch(to: \"f0\", region: \"s0\", stage: At(0))".to_owned(),
        ),
        (
            "FETCH1",
            "Fetch(to: \"f0\", region: \"s1\", stage: At(0))".to_owned(),
        ),
        ("ISSUE0", issue(0, "At(0)")),
        ("ISSUE1", issue(1, "At(0)")),
        ("LATE1", issue(1, "Previous(0)")),
        ("LEADS", leads),
        ("ADDS", adds(2, "At(0)")),
        ("NEXT", adds(3, "At(0)")),
        ("ADDED", adds(2, "Previous(0)")),
        (
            "PACK",
            "Pack(to: \"f1\", from: \"f0\", dtype: Bf16, stride: 32)".to_owned(),
        ),
        ("GROUP", "Sync(Commit)".to_owned()),
        ("WAIT0", "Sync(Wait(0))".to_owned()),
        ("WAIT1", "Sync(Wait(1))".to_owned()),
        ("LOAD0", load(0)),
        ("LOAD1", load(1)),
        ("STORE", store),
        (
            "USE",
            "Map(to: \"f0\", function: Op(Add), args: [Fragment(\"f2\"), Constant(1.0)])"
                .to_owned(),
        ),
        (
            "PUBLISH1",
            format!(
                "Publish(region: \"s1\", from: Fragment(\"f0\"), layout: {held}, axes: [0, 1])"
            ),
        ),
    ];
    let body = (words.iter()).fold(body.to_owned(), |body, (word, text)| {
        body.replace(word, text)
    });
    let region = |name: &str| {
        format!(
            "(name: \"{name}\", dtype: Bf16, axes: [(1, 64, 1), (0, 64, 1)], elements: 4096, stages: 1, offset: 0, \
             swizzle: (span: 64, lines: 64, along: 1, depth: true), patch: [], boxes: None)"
        )
    };
    let fragment = |name: &str| format!("(name: \"{name}\", holds: Floats({held}))");
    let text = format!(
        "(name: \"sample\", axes: {{0: (name: \"i\", extent: 512, tile: 64, whole: false), 1: (name: \"k\", extent: 256, tile: 64, whole: false)}}, \
         buffers: {{0: (name: \"x\", dtype: Bf16, written: false, dependent: false), 1: (name: \"y\", dtype: Bf16, written: false, dependent: true), \
         2: (name: \"o\", dtype: Bf16, written: true, dependent: false)}}, warps: (4, 1), blocks_per_sm: 1, precise: false, \
         fragments: [{}, {}, {}], regions: [{}, {}], rings: [], scratch: (offset: 0, bytes: 64), \
         grid: (coordinates: [(axis: 0, count: 8, descending: false)], raster: None, tiles: 8, persistent: false), block_group: None, cluster: 1, \
         split_workspace: (bytes: 0, counters: 0, together: 0), prologue: [], producers: [], registers: None, body: [{body}], epilogue: [], overlaps: false)",
        fragment("sums"),
        fragment("rows"),
        fragment("more"),
        region("x"),
        region("y"),
    );
    text.parse().expect("a machine program")
}

/// Statements, one a line.
pub(super) fn outline(body: &[Statement]) -> String {
    fn list(body: &[Statement], depth: usize, out: &mut String) {
        for statement in body {
            let indent = "  ".repeat(depth);
            let head = if let Statement::Issue(issue) = statement {
                let a = match &issue.a {
                    Rows::SwizzleAtoms(a) => format!("s{} {:?} and ", a.region.0, a.stage),
                    Rows::Fragment(_) => String::new(),
                };
                format!("issue of {a}s{} {:?}", issue.b.region.0, issue.b.stage)
            } else if let Statement::Copy(copy) = statement {
                let warps: u64 = copy.layout.warps.iter().map(|f| f.size).product();
                format!(
                    "copy to s{} {:?} by {warps} warps",
                    copy.region.0, copy.stage
                )
            } else if let Statement::Fetch { region, stage, .. } = statement {
                format!("read s{} {stage:?}", region.0)
            } else if let Statement::Publish { region, .. } = statement {
                format!("write s{}", region.0)
            } else if let Statement::Load { to, access, .. } = statement {
                format!("load f{} from {}", to.0, access.buffer.0)
            } else if let Statement::Store(store) = statement {
                format!("store to {}", store.access.buffer.0)
            } else if let Statement::Map { to, args, .. } = statement {
                format!("f{} from {args:?}", to.0)
            } else if let Statement::Prefetch { access, .. } = statement {
                format!("ask for {}", access.buffer.0)
            } else if let Statement::PrefetchBoxes(regions) = statement {
                let names: Vec<String> = regions.iter().map(|r| format!("s{}", r.0)).collect();
                format!("ask for {}", names.join(", "))
            } else if let Statement::StorePartial(partial) = statement {
                format!("store a part to {:?}", partial.home)
            } else if let Statement::ReducePartials(partial) = statement {
                format!("reduce parts of {:?}", partial.home)
            } else if let Statement::If { condition, .. } = statement {
                format!("if {condition:?}")
            } else if let Statement::Loop { number, .. } = statement {
                format!("loop {number}")
            } else if let Statement::Range { number, .. } = statement {
                format!("range of {number}")
            } else if let Statement::Tile { at, .. } = statement {
                format!("tile {at:?}")
            } else if let Statement::Tiles(_) = statement {
                "tiles".to_owned()
            } else if let Statement::Scope(_) = statement {
                "scope".to_owned()
            } else {
                format!("{statement:?}")
            };
            out.push_str(&format!("{indent}{head}\n"));
            for inside in statement.lists() {
                list(inside, depth + 1, out);
            }
        }
    }
    let mut out = String::new();
    list(body, 0, &mut out);
    out
}

#[test]
fn words_are_those_of_the_table() {
    let words = PASSES.map(|p| p.form.word);
    for (at, pass) in PASSES.iter().enumerate() {
        assert!(!words[..at].contains(&words[at]), "{} twice", words[at]);
        for b in pass.behind {
            assert!(words.contains(&b.word), "{}: {}?", words[at], b.word);
        }
    }
}

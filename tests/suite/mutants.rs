//! Faults that only a compiled kernel can have, made systematically in generated texts: a result left from a former run, a result that
//! depends on an address, an access past the end, a part of the grid that never runs, a warp that leaves out what its group does together.
//! Each is switched on at run time, so that a text is compiled once for all of its faults. Faults of order, a barrier or a wait left out, are
//! made in machine programs (`codegen/tests/machine/check.rs`).

use crate::emulator;
use crate::kernels::{Case, different};
use crate::kinds::{KINDS, program};
use codegen::CudaProgram;
use ir::{AxisId, Program, Schedule, Target, TileProgram};
use rayon::prelude::*;
use search::tiling::enumerate::{SearchOptions, candidates};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use verify::inputs::DISTRIBUTIONS;

/// Kinds whose kernels have every sort of fault that is not in [`LEFT_OUT`].
const TRIED: [&str; 4] = ["attention", "product_f32", "norm_linear", "layer_norm"];

/// Statements that are left out, and the sort of the fault. Where those of `TRIED` have none, other kernels are tried.
#[rustfmt::skip]
const LEFT_OUT: &[(&str, &str)] = &[
    ("tw_box_expect(",     "bytes that are not waited for"),
    ("tw_box(",            "a box left out"),
    ("tw_barriers_made(",  "barriers that the hardware does not know of"),
    ("tw_exchange<",       "an exchange between lanes left out"),
];

/// Beginnings of statements that the four warps of a group carry out together: each is left out by one of them.
const TOGETHER: [&str; 4] = [
    "tw_wgmma_",
    "tw_turn_",
    "tw_compute_barrier<",
    "tw_registers_",
];
/// A vote is one of them too.
const VOTE: &str = " = tw_any_of_group(";
const ALONE: &str = "a warp on its own";

/// Rows and tiles along `j` enough for groups of warps and for stages that are filled twice; and the extents at which its candidates
/// run.
const WIDE: (&str, &str) = (
    "wide_attention",
    "axis h = 128, i = 4096, j = 4096, d = 32, e = 32\n\
     q = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
     return bf16 [h, i, e] dot(softmax(dot(q, k; d) * 0.18; j), v; j)",
);
const WIDE_RUN: [u64; 5] = [1, 150, 700, 32, 32];

/// A product whose loop fills stages twice.
const DEEP: (&str, &str) = (
    "deep_product",
    "axis i = 70, j = 70, m = 500\nx = parameter bf16 [i, m]\ny = parameter bf16 [m, j]\n\
     return bf16 [i, j] dot(x, y; m)",
);

/// Candidates of a kind that are looked through for statements of `LEFT_OUT`.
const LOOKED_AT: usize = 20;

/// Inputs that faults are shown on.
const INPUTS: [&str; 3] = ["normal", "nearly_constant", "one_hot"];

/// Faults that change nothing, and why.
const EQUIVALENT: &[(&str, &str)] = &[
    ("lanes left out: attention_1,", PROVISIONAL),
    ("attention_1, p4_t3", PROVISIONAL),
];
const PROVISIONAL: &str = "this kernel finds the maximum that a softmax subtracts: any number near it gives the same result";

/// A text with faults that `emu::mutant` switches on; the first is number 1.
struct Mutants {
    source: String,
    calls: String,
    /// The sort of each fault, and where it is.
    faults: Vec<(&'static str, String)>,
    /// The kernel that is being read.
    kernel: String,
    /// Faults that several lines share.
    shared: BTreeMap<String, String>,
}

impl Mutants {
    fn new(cuda: &CudaProgram) -> Self {
        let mut all = Self {
            source: String::new(),
            calls: String::new(),
            faults: Vec::new(),
            kernel: String::new(),
            shared: BTreeMap::new(),
        };
        let at = cuda.source.find("extern \"C\"").unwrap_or(0);
        let (head, kernels) = cuda.source.split_at(at);
        all.source.push_str(head);
        for (number, line) in kernels.lines().enumerate() {
            let line = all.faults_of_line(number, line);
            all.source.push_str(&line);
            all.source.push('\n');
        }
        for l in &cuda.launches {
            let mut less = [l.grid[0], l.grid[1], l.grid[2]].map(|n| n.to_string());
            for (n, extent) in l.grid.iter().enumerate() {
                if *extent > 1 {
                    let fault = all.fault("part of the grid", format!("{} along {n}", l.entry));
                    less[n] = format!("{extent}u - ({fault})");
                }
            }
            let mut shared = l.shared_bytes.to_string();
            if l.shared_bytes > 0 {
                let fault = all.fault("too little shared memory", l.entry.clone());
                shared = format!("{shared}u / (1u + ({fault}))");
            }
            let left_out = all.fault("a launch left out", l.entry.clone());
            all.calls.push_str(&format!(
                "  if (!({left_out})) {}",
                emulator::call(l, &less, &shared)
            ));
        }
        all
    }

    /// A new fault; the text that says whether it is on.
    fn fault(&mut self, sort: &'static str, place: String) -> String {
        self.faults.push((sort, place));
        format!("emu::mutant == {}", self.faults.len())
    }

    /// The fault of a key, made where it is first asked for.
    fn shared_fault(&mut self, sort: &'static str, key: String, place: String) -> String {
        if let Some(known) = self.shared.get(&key) {
            return known.clone();
        }
        let fault = self.fault(sort, place);
        self.shared.insert(key, fault.clone());
        fault
    }

    fn faults_of_line(&mut self, number: usize, line: &str) -> String {
        let text = line.trim();
        if !TOGETHER.iter().any(|word| text.starts_with(word)) && !text.contains(VOTE) {
            return self.other_faults(number, line);
        }
        let place = format!("{}, line {number}: {text}", self.kernel);
        let alone = self.fault(ALONE, place);
        let rest = self.other_faults(number, line);
        format!("if (!(({alone}) && (threadIdx.x >> 5) % 4 == 3)) {{ {rest} }}")
    }

    fn other_faults(&mut self, number: usize, line: &str) -> String {
        let text = line.trim();
        let place = format!("{}, line {number}: {text}", self.kernel);
        if let Some((_, sort)) = LEFT_OUT.iter().find(|(word, _)| text.starts_with(word)) {
            let fault = self.fault(sort, place);
            return format!("if (!({fault})) {{ {text} }}");
        }
        let stores = text.starts_with("tw_store") || text.starts_with("tw_stg");
        if stores || (text.starts_with('p') && text.contains("] = ")) {
            let fault = self.fault("a result left from a former run", place);
            return format!("if (!({fault})) {text}");
        }
        if let Some((before, rest)) = text.split_once("__shfl_xor_sync(0xffffffffu, ")
            && let Some((value, after)) = rest.rsplit_once(", ")
        {
            let lanes = after.split(')').next().unwrap_or("0");
            let fault = self.fault("lanes left out", place.clone());
            let end = &after[lanes.len() + 1..];
            return format!(
                "{before}__shfl_xor_sync(0xffffffffu, {value}, ({fault}) ? 0 : {lanes}){end}"
            );
        }
        // `const int e_t_0 = (int)tw_min(32, 37 - b_t_0);`: how much of a partial tile there is.
        if let Some((before, rest)) = text.split_once("(int)tw_min(") {
            let numbers: Vec<u64> = rest
                .split([',', ' '])
                .filter_map(|n| n.parse().ok())
                .collect();
            if let ([tile, extent], Some((head, tail))) =
                (numbers.as_slice(), rest.split_once(" - "))
                && before.starts_with("const int e_")
                && extent % tile != 0
            {
                // All lines about an axis: what one operand masks, another may mask again.
                let key = format!("{} {before}", self.kernel);
                let fault = self.shared_fault("a bound off by one", key, place);
                return format!("{before}(int)tw_min({head} + ({fault}) - {tail}");
            }
        }
        if text.starts_with("extern \"C\"") {
            self.kernel = text
                .split(['(', ' '])
                .find(|word| word.ends_with(|c: char| c.is_ascii_digit()) && word.contains('_'))
                .unwrap_or_default()
                .to_owned();
            let mut line = format!("{text}\n");
            for parameter in text
                .split(['(', ','])
                .filter(|p| p.contains('*') && !p.contains(" split_workspace"))
            {
                let name = parameter
                    .trim_end_matches([')', ' ', '{'])
                    .rsplit(' ')
                    .next()
                    .unwrap_or_default();
                let place = format!("{}, {name}", self.kernel);
                let past = self.fault("an access past the end", place.clone());
                let by_address = self.fault("a result that depends on an address", place);
                line.push_str(&format!(
                    "  {name} += ({past}) + (({by_address}) && ((size_t){name} & 256));\n"
                ));
            }
            return line;
        }
        line.to_owned()
    }
}

/// A kernel to make faults in.
struct Subject {
    cases: Arc<Vec<Case>>,
    tile: TileProgram,
    cuda: CudaProgram,
    /// Whether only the faults of `LEFT_OUT` and of `TOGETHER` are made.
    only_left_out: bool,
}

/// The faults of one kernel that nothing showed, and how many of each sort there were.
fn survivors(subject: &Subject) -> (Vec<String>, BTreeMap<&'static str, usize>) {
    let Subject {
        cases,
        tile,
        cuda,
        only_left_out,
    } = subject;
    let mutants = Mutants::new(cuda);
    let made =
        |sort: &str| !only_left_out || sort == ALONE || LEFT_OUT.iter().any(|(_, s)| *s == sort);
    let mut counts = BTreeMap::new();
    let mut alive = Vec::new();
    for (number, (sort, _)) in (1..).zip(&mutants.faults) {
        if made(sort) {
            *counts.entry(*sort).or_default() += 1;
            alive.push(number);
        }
    }
    let built = emulator::Built::new(&mutants.source, &mutants.calls, tile);
    let built = built.unwrap_or_else(|e| panic!("{e}"));
    // What one kind of input does not show, another may.
    for case in cases.iter() {
        let verdict = |number: usize| case.judge(built.run(&case.inputs, number));
        assert_eq!(verdict(0), None, "{tile}");
        alive.retain(|number| verdict(*number).is_none());
    }
    let alive = alive.into_iter().map(|number| {
        let (sort, place) = &mutants.faults[number - 1];
        format!("{sort}: {place}")
    });
    (alive.collect(), counts)
}

/// A candidate under a schedule, and which of `LEFT_OUT` its kernels have.
type Offered = (TileProgram, Schedule, BTreeSet<&'static str>);

/// Kernels that together have all of `LEFT_OUT`, next to those that are there: the first of the candidates of all kinds.
fn other_subjects(target: &Target, subjects: &[Subject]) -> Vec<Subject> {
    let words = |source: &str| -> BTreeSet<&'static str> {
        let kernels = source.find("extern \"C\"").map_or("", |at| &source[at..]);
        let begins = |word: &str| {
            let mut places = kernels.match_indices(word);
            places.any(|(at, _)| kernels[..at].trim_end_matches(' ').ends_with('\n'))
        };
        let all = LEFT_OUT.iter().map(|(word, _)| *word);
        all.filter(|word| begins(word)).collect()
    };
    let kinds = KINDS.iter().filter(|k| k.0 != "long_softmax");
    let kinds: Vec<&(&str, &str)> = [&WIDE, &DEEP].into_iter().chain(kinds).collect();
    // What each candidate has under each of its schedules, kind by kind.
    let offered: Vec<(Program, Vec<Offered>)> = kinds
        .par_iter()
        .map(|(name, text)| {
            let whole = program(name, text);
            let extents: Vec<u64> = match *name == WIDE.0 {
                true => WIDE_RUN.to_vec(),
                false => whole.axes.iter().map(|a| a.extent).collect(),
            };
            let small: BTreeMap<AxisId, u64> = (0..).map(AxisId).zip(extents).collect();
            let kind = whole.resized(&small).expect("the same program");
            let mut all = Vec::new();
            let found = candidates(vec![whole], target, &SearchOptions::default());
            for candidate in found.take(LOOKED_AT) {
                let tile = candidate.tile.resized(&small, |_, _| None);
                let tile = tile.expect("the same tile program");
                for schedule in search::schedules::schedules(&tile, target) {
                    if let Ok(cuda) = codegen::lower(&tile, &schedule, target) {
                        all.push((tile.clone(), schedule, words(&cuda.source)));
                    }
                }
            }
            (kind, all)
        })
        .collect();
    let mut found: BTreeSet<&str> = subjects
        .iter()
        .flat_map(|s| words(&s.cuda.source))
        .collect();
    let mut others = Vec::new();
    for (kind, all) in offered {
        let mut own = Vec::new();
        for (tile, schedule, new) in all {
            if !new.is_subset(&found) {
                found.extend(new);
                let cuda = codegen::lower(&tile, &schedule, target).expect("a kernel again");
                own.push((tile, cuda));
            }
        }
        if own.is_empty() {
            continue;
        }
        let cases = drawn(&kind);
        others.extend(own.into_iter().map(|(tile, cuda)| Subject {
            cases: cases.clone(),
            tile,
            cuda,
            only_left_out: true,
        }));
    }
    others
}

fn drawn(program: &Program) -> Arc<Vec<Case>> {
    let named = |n: &str| DISTRIBUTIONS.iter().find(|d| d.name == n).expect(n);
    let case = |n: &&str| Case::drawn(program.clone(), named(n));
    Arc::new(INPUTS.iter().map(case).collect())
}

#[test]
fn faults_of_compiled_kernels_are_seen() {
    if !emulator::available() {
        return;
    }
    let target = search::targets::target("h200").expect("a known target");
    let mut work = Vec::new();
    for (name, text) in KINDS.iter().filter(|k| TRIED.contains(&k.0)) {
        let cases = drawn(&program(name, text));
        for tile in different(name).iter().take(2) {
            let schedule = &search::schedules::schedules(tile, &target)[0];
            let cuda = codegen::lower(tile, schedule, &target).expect("a kernel");
            work.push(Subject {
                cases: cases.clone(),
                tile: tile.clone(),
                cuda,
                only_left_out: false,
            });
        }
    }
    // The largest ones first.
    work.splice(..0, other_subjects(&target, &work));
    let all: Vec<(Vec<String>, BTreeMap<&'static str, usize>)> =
        work.par_iter().map(survivors).collect();
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    for (sort, count) in all.iter().flat_map(|a| &a.1) {
        *counts.entry(sort).or_default() += count;
    }
    let (expected, alive): (Vec<&String>, Vec<&String>) = all
        .iter()
        .flat_map(|a| &a.0)
        .partition(|fault| EQUIVALENT.iter().any(|(part, _)| fault.contains(part)));
    assert!(
        alive.is_empty(),
        "{} of {counts:?}: {alive:#?}",
        alive.len()
    );
    for (part, _) in EQUIVALENT {
        let known = expected.iter().any(|fault| fault.contains(part));
        assert!(known, "no fault that changes nothing has `{part}`");
    }
    for (_, sort) in LEFT_OUT {
        assert!(counts.contains_key(sort), "{sort}: none in {counts:?}");
    }
    assert_eq!(counts.len(), 9 + LEFT_OUT.len(), "{counts:?}");
    let plain = |sort: &str| LEFT_OUT.iter().all(|(_, s)| *s != sort);
    assert!(
        counts.iter().all(|(sort, n)| *n >= 6 || !plain(sort)),
        "{counts:?}"
    );
}

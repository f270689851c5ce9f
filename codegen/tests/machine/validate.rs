//! What is wrong with the form of machine programs is told: each kind of fault once, made in the text of one that is right.

use crate::common::*;
use expect_test::expect;
use ir::{Dtype, Schedule, Target, TileProgram};
use tilewright_codegen::machine::Machine;
use tilewright_codegen::machines;

fn made(tile: &TileProgram, schedule: &Schedule) -> String {
    let mut all = machines(tile, schedule, &target()).expect("lowers");
    all.remove(0).to_string()
}

/// Two products, of which the second reads the first one's results from registers.
fn attended(atom: ir::Atom, warps: [u32; 2], stages: u32) -> String {
    let tile = attention(Dtype::Bf16, [1, 128, 128, 64, 64], [64, 64], false, false);
    made(&tile, &schedule(&tile, atom, warps, stages, &[true, false]))
}

fn plain(dtype: Dtype, atom: ir::Atom, warps: [u32; 2], stages: u32) -> String {
    let tile = matmul(dtype, dtype, [128, 128, 192], [128, 128, 32], true);
    made(&tile, &schedule(&tile, atom, warps, stages, &[]))
}

/// The program by each of these names.
fn program(name: &str) -> String {
    match name {
        "rows" => {
            let tile = row_norm(Dtype::Bf16, [2, 32], 1, None);
            made(&tile, &schedule(&tile, atoms::FMA, [1, 1], 1, &[]))
        }
        "threads" => plain(Dtype::F32, atoms::FMA, [2, 2], 2),
        "warps" => plain(Dtype::Bf16, atoms::MMA_M16N8K16, [2, 2], 3),
        "chain" => attended(atoms::MMA_M16N8K16, [2, 1], 2),
        "groups" => plain(Dtype::Bf16, atoms::WGMMA_M64K16, [8, 1], 4),
        "halves" => plain(Dtype::F32, atoms::WGMMA_M64K8_TF32X3, [8, 1], 3),
        other => panic!("no program {other}"),
    }
}

/// The text with the `nth` occurrence of something in the place of something else.
fn with(text: &str, nth: usize, from: &str, to: &str) -> String {
    let mut found = text.match_indices(from).skip(nth);
    let (at, _) = found
        .next()
        .unwrap_or_else(|| panic!("no `{from}` in {text}"));
    format!("{}{to}{}", &text[..at], &text[at + from.len()..])
}

fn told(text: &str, target: &Target) -> Vec<String> {
    let machine: Machine = match text.parse() {
        Ok(machine) => machine,
        Err(e) => return vec![e.to_string()],
    };
    let all = machine
        .malformed()
        .into_iter()
        .chain(machine.beyond(target));
    all.map(|f| f.to_string()).collect()
}

/// (program, occurrence, what is replaced, by what, what is told of it).
#[rustfmt::skip]
const FAULTS: [(&str, usize, &str, &str, &str); 81] = [
    // Names.
    ("rows", 0, "Declare(\"f1\")", "Declare(\"f99\")", "there is no fragment f99"),
    ("rows", 0, "Declare(\"f1\"),", "", "f1 is not declared here"),
    ("rows", 0, "Declare(\"f1\")", "Declare(\"f0\")", "f0 is declared already"),
    ("rows", 0, "args: [Fragment(\"f0\")", "args: [Fragment(\"f7\")", "f7 is not declared here"),
    ("rows", 0, "Load(to: \"f0\"", "Load(to: \"f1\"", "f0 is read, and nothing has been written there"),
    ("rows", 0, "v1_map1", "v0_load0", "there are two of the name `v0_load0`"),
    ("rows", 0, "access: (buffer: 0", "access: (buffer: 7", "there is no buffer 7"),
    ("rows", 0, "access: (buffer: 0", "access: (buffer: 2", "`y` is written by this kernel, and read"),
    ("rows", 0, "Store(access: (buffer: 2", "Store(access: (buffer: 0", "`x` is not one that this kernel writes"),
    ("rows", 0, "(buffer: 0, dtype: Bf16", "(buffer: 0, dtype: F32", "`x` holds bf16, not f32"),
    ("rows", 0, "coefficients: {0: 32", "coefficients: {5: 32", "there is no axis 5"),
    ("rows", 0, "coordinates: [(axis: 0", "coordinates: [(axis: 9", "there is no axis 9"),
    // Layouts.
    ("rows", 0, "Floats(\"|1:32@1|\")", "Floats(\"|1:16@1|\")", "|1:16@1| is over 16 lanes, not 32"),
    ("rows", 0, "Floats(\"|1:32@1|\")", "Floats(\"|1:32@1|*2\")", "|1:32@1|*2 is over 2 warps, not 1"),
    ("rows", 0, "Floats(\"|1:32@1|\")", "Floats(\"|8:32@1|\")", "there is no axis 8 for |8:32@1|"),
    ("rows", 2, "Floats(\"|1:32@1|\")", "Floats(\"|1:2@16 1:16@1|\")", "f0 is spread differently: |1:32@1|, not as in |1:2@16 1:16@1|"),
    ("rows", 0, "axes: [1], parts", "axes: [], parts", "the result is spread as |1:32@1|, f2 as |*32|"),
    ("rows", 0, "width: 1, policy", "width: 3, policy", "6 bytes move together: powers of two to 16 can"),
    ("rows", 0, "width: 1, policy", "width: 2, policy", "2 elements move together of |1:32@1|"),
    // Operands.
    ("rows", 0, "function: Op(Mul)", "function: Op(Function(Sqrt))", "1 operands are expected, 2 found"),
    ("rows", 0, "tiles: 2", "tiles: 3", "3 tiles, by its axes 2"),
    ("rows", 0, "tile: 32", "tile: 0", "an axis and its tile are not empty"),
    ("rows", 0, "warps: (1, 1)", "warps: (3, 1)", "3 × 1 warps: powers of two, or groups of four along the rows alone, at most 32 together, are possible"),
    ("rows", 0, "persistent: false", "persistent: true", "blocks are persistent, and go over no tiles"),
    ("rows", 0, "block_group: None", "block_group: (size: 3, waits: false, grid_barriers: 1)", "2 tiles for block groups of 3 blocks"),
    ("rows", 0, "Declare(\"f1\")", "GridBarrier(1)", "blocks meet that are no block group"),
    ("rows", 0, "Declare(\"f1\")", "Sync(TurnWait(Own))", "0 groups of four warps take turns: two to seven can"),
    ("rows", 0, "Declare(\"f1\")", "Sync(Full(\"ring0\"))", "there is no ring0"),
    ("rows", 0, "Declare(\"f1\")", "Sync(Vote(\"f0\"))", "f0 is no flag"),
    ("rows", 0, "Declare(\"f1\")", "If(condition: Group(4), then: [], otherwise: [])", "there are 0 groups of four warps, and no group 4"),
    ("rows", 0, "Declare(\"f1\")", "Clear(\"s0\")", "there is no region s0"),
    ("rows", 0, "Declare(\"f1\")", "Tiles([])", "tiles are gone over by persistent blocks, once"),
    ("rows", 0, "Declare(\"f1\")", "Loop(number: 3, body: [])", "nothing says how far loop 3 goes"),
    ("rows", 0, "Declare(\"f1\")", "Tile(axis: 1, at: Now(0))", "nothing says how far loop 0 goes"),
    ("rows", 0, "Declare(\"f1\")", "AdvanceStage(counter: (number: 0, delayed: false), stages: 2)", "the stages of loop 0 are not counted yet"),
    // Loops, regions and stages.
    ("threads", 0, "AdvanceStage(counter: (number: 0, delayed: false), stages: 2)", "AdvanceStage(counter: (number: 0, delayed: false), stages: 3)", "3 stages of loop 0 are counted here and 2 elsewhere"),
    ("threads", 0, "stages: 2, offset", "stages: 1, offset", "s0 has 1 stages, of which 2 are counted"),
    ("threads", 0, "stages: 2, offset: 0", "stages: 2, offset: 8", "it begins at 8, no multiple of 16"),
    ("warps", 0, "Multiply(row: \"mma.m16n8k16 bf16\"", "Multiply(row: \"mma.m16n8k16 f16\"", "mma.m16n8k16 f16 reads s0, which holds bf16"),
    ("warps", 0, "Multiply(row: \"mma.m16n8k16 bf16\"", "Multiply(row: \"wgmma.m64k16 bf16\"", "wgmma.m64k16 bf16 is no instruction of single warps"),
    ("warps", 0, "Region(\"s1\", Current(number: 0, delayed: false))", "Fragment(\"f1\")", "mma.m16n8k16 bf16 does not read f1 from registers"),
    ("groups", 0, "swizzle: (span: ", "swizzle: (span: 1", "lines of"),
    ("groups", 0, "Issue(row: \"wgmma.m64k16 bf16\"", "Issue(row: \"mma.m16n8k16 bf16\"", "mma.m16n8k16 bf16 is no instruction of warpgroups"),
    ("groups", 0, "columns: 128", "columns: 12", "12 columns: multiples of 8 to 256 are possible"),
    ("groups", 0, "groups: 2", "groups: 3", "3 of 2 groups of four warps along the rows"),
    ("groups", 0, "AdvanceRing(\"ring0\")", "AdvanceRing(\"ring9\")", "there is no ring9"),
    ("groups", 0, "OpenRing(\"ring0\", ", "OpenRing(\"ring1\", ", "ring0 is not open here"),
    ("groups", 0, "barriers: ", "barriers: 99", "barriers from"),
    ("halves", 0, "Split(from: \"s1\"", "Split(from: \"s7\"", "there is no region s7"),
    ("halves", 0, "blocks_per_sm: 1", "blocks_per_sm: 64", "64 blocks an SM: 32 are possible"),
    ("halves", 0, "to: (\"s2\", \"s3\")", "to: (\"s0\", \"s3\")", "s0 has no lines along the depth"),
    ("halves", 0, "a: Fragment(\"f2\")", "a: Fragment(\"f9\")", "there is no fragment f9"),
    ("halves", 0, "a: Fragment(\"f2\")", "a: SwizzleAtoms(region: \"s2\", stage: At(0), swizzle: (span: 32, lines: 128, along: 1, depth: true), share: None, further: 0)", "wgmma.m64k8.3xtf32 f32 reads rows from registers alone"),
    ("halves", 0, "counts: (1, 1, 4)", "counts: (1, 1, 2)", "8 registers of rows, f2 has 16"),
    ("halves", 0, "b: (region: \"s2\", stage: Current(number: 0, delayed: true), swizzle: (span: 32", "b: (region: \"s2\", stage: Current(number: 0, delayed: true), swizzle: (span: 16", "s2 is not permuted as wgmma.m64k8.3xtf32 f32 reads it"),
    ("halves", 0, "stage: At(1), access", "stage: At(3), access", "s0 has 3 stages, and no stage 3"),
    ("halves", 0, "OpenStages(number: 0, delayed: true),", "", "nothing says which stage of s2 it is"),
    ("halves", 0, "Range(number: 0, axis: 2, low: [], high: []),", "", "nothing says how far loop 0 goes"),
    ("halves", 0, "Map(to: \"f3\", function: Copy, args: [Constant(0.0)]),", "Tile(axis: 2, at: Now(0)),", "this is not inside loop 0"),
    ("halves", 0, "elements: 4608", "elements: 4000", "4604 elements in stages of 4000"),
    ("halves", 0, "elements: 4096", "elements: 2048", "4096 elements of swizzle atoms in stages of 2048"),
    ("halves", 0, "scratch: (offset: 176128", "scratch: (offset: 176000", "it ends at 176128, and scratch memory begins at 176000"),
    ("halves", 0, "scratch: (offset: 176128", "scratch: (offset: 976128", "976128 bytes of shared memory: 232448 are possible"),
    ("halves", 0, "Copy(region: \"s0\", stage: At(0), access: (buffer: 0, dtype: F32", "Copy(region: \"s0\", stage: At(0), access: (buffer: 0, dtype: F16", "f16 is copied to s0, which holds f32"),
    ("halves", 0, "layout: \"2:4@1 0:4@32|2:8@4", "layout: \"2:4@1 0:2@32|2:8@4", "covers 64 along axis 0, of which s0 has 128"),
    ("warps", 0, "(axes: [(1, 128)], total: 128)", "(axes: [(1, 128)], total: 120)", "120 coordinates in units of 32"),
    ("groups", 0, "producers: [(threads: 128", "producers: [(threads: 1024", "1280 threads: 1024 are possible"),
    ("groups", 0, "sizes: [32, 128]", "sizes: [32]", "boxes of 1 dimensions along 2 axes"),
    ("groups", 0, "swizzle_atoms: 1", "swizzle_atoms: 4", "4 boxes of 4096 elements in stages of 4096"),
    ("groups", 0, "map: (buffer: 0", "map: (buffer: 5", "there is no buffer 5"),
    ("groups", 0, "stages: 5, readers", "stages: 4, readers", "4 stages, of which s0 has 5"),
    ("groups", 0, "stages: 5, readers", "stages: 5, filled_by: 3, readers", "there are no warps 3 that fill it"),
    ("groups", 0, "stages: 5, readers", "stages: 5, read_by: 2, readers", "there are no warps 2 that read it"),
    ("groups", 0, "ReleasePrevious(", "ReleasePreviousPeers(", "a block alone has no peers"),
    ("groups", 0, "Sync(Full(\"ring0\"))", "Sync(ClusterEnds)", "a block alone meets no others of a cluster"),
    ("groups", 0, "regions: [\"s0\", \"s1\"]", "regions: [\"s0\", \"s4\"]", "there is no region s4"),
    ("groups", 0, "OpenRing(\"ring0\", 1),", "OpenRing(\"ring0\", 1), Declare(\"f0\"),", "threads that only fill rings have no f0"),
    ("groups", 0, "OpenRing(\"ring0\", 1),", "OpenRing(\"ring0\", 1), Sync(Barrier(Computing)),", "threads that only fill rings do not meet those that compute"),
    ("chain", 0, "inputs: (Fragment(\"f13\")", "inputs: (Fragment(\"f5\")", "accumulators a thread, f5 has"),
    ("chain", 0, "spaces: ((axes: [(1, 64)], total: 64)", "spaces: ((axes: [(1, 64)], total: 128)", "128 accumulators a thread, f3 has 64"),
    ("rows", 0, "Floats(\"|1:32@1|\")", "Floats(\"|1:0@1|\")", "`|1:0@1|` is no layout"),
];

#[test]
fn each_kind_of_fault_is_told_with_its_place() {
    let mut missed = Vec::new();
    for (name, nth, from, to, expected) in FAULTS {
        let right = program(name);
        assert_eq!(told(&right, &target()), Vec::<String>::new(), "{name}");
        let told = told(&with(&right, nth, from, to), &target());
        if !told.iter().any(|f| f.contains(expected)) {
            missed.push(format!(
                "{name}: `{from}` -> `{to}`: no `{expected}` in {told:#?}"
            ));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn a_target_without_an_instruction_is_told_of_it() {
    let older = Target {
        name: "older".into(),
        capability: 80,
        ..target()
    };
    let told = told(&program("groups"), &older);
    assert_eq!(told, ["matmul_0, body: older has no wgmma.m64k16"]);
}

/// All faults are told, in the order of the text, with the statement that each is in.
#[test]
fn places_are_those_of_statements() {
    let once = with(
        &program("threads"),
        0,
        "NextStage(counter: (number: 0",
        "NextStage(counter: (number: 4",
    );
    let both = with(&once, 0, "Sync(CopyWait(0))", "Sync(Full(\"ring7\"))");
    expect![[r#"
        matmul_0, body[6].body[1] Sync(Full("ring7")): there is no ring7
        matmul_0, body[6].body[3].then[1] NextStage(counter: (number: 4, delayed: false), stages: 2, ahead: 1): the stages of loop 4 are not counted yet
        matmul_0, body[6].body[3].then[2] Copy(region: "s0", stage: Next(number: 0, delayed: false), access: (buffer: 0, dtype: F32, coefficients: {0: 192, 2: 1}, offset: 0, checks: [], fill: 0.0, wide: false), layout: "0:8@16 2:4@8|2:8@1 0:4@1|0:4@4", width: 1, background: true): nothing says which stage of s0 it is
        matmul_0, body[6].body[3].then[3] Copy(region: "s1", stage: Next(number: 0, delayed: false), access: (buffer: 1, dtype: F32, coefficients: {1: 192, 2: 1}, offset: 0, checks: [], fill: 0.0, wide: false), layout: "1:8@16 2:4@8|2:8@1 1:4@1|1:4@4", width: 1, background: true): nothing says which stage of s1 it is"#]].assert_eq(&told(&both, &target()).join("\n"));
}

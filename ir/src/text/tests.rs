//! Faults as data, and the round trip.

use super::*;
use crate::program::{MapOp, Op};

const GQA: &str = "program gqa  # grouped queries
axis b = 2, i = 256, j = 4096, d = 64, e = 64

q = parameter f16 [b, i, d]
k = parameter f16 [b, j, d]
v = parameter f16 [b, j, e]

p = softmax(dot(q, k; d) * 0.125; j)
return f16 [b, i, e] dot(p, v; j)
";

#[test]
fn the_prelude_is_free_of_faults() {
    let (definitions, faults) = read::definitions(PRELUDE_TEXT);
    assert_eq!(faults, []);
    assert_eq!(definitions.list.len(), 12);
}

/// The program reads, is valid, and its text reads back as the same program.
fn round_trip(source: &str) -> (Program, String) {
    let program = parse(source, "test.lax").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(program.validate(), Ok(()));
    let text = program.to_string();
    let again = parse(&text, "again.lax").unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(again, program, "\n{text}");
    assert_eq!(again.to_string(), text);
    (program, text)
}

#[test]
fn attention_expands_to_shared_values() {
    let (_, text) = round_trip(GQA);
    expect_test::expect![[r#"
        program gqa
        axis b = 2, i = 256, j = 4096, d = 64, e = 64
        q = parameter f16 [b, i, d]
        k = parameter f16 [b, j, d]
        v = parameter f16 [b, j, e]
        _0 = dot(q, k; d) * 0.125
        _1 = exp(_0 - max(_0; j))
        p = _1 / sum(_1; j)
        return f16 [b, i, e] dot(p, v; j)
    "#]]
    .assert_eq(&text);
}

#[test]
fn programs_of_the_language_page_round_trip() {
    let programs = [
        "program causal_gqa_decode_block
axis b = 4, h = 8, g = 4, i = 1024, j = 4096, d = 128, e = 128
q = parameter bf16 [b, h, g, i, d]
k = parameter bf16 [b, h, j, d]
v = parameter bf16 [b, h, j, e]
s = causal(dot(q, k; d) * 0.08838834764831845; i, j)
return bf16 [b, h, g, i, e] dot(softmax(s; j), v; j)
",
        "program rope
axis s = 512, h = 32, t = 2, c = 64
x = parameter bf16 [s, h, (t c)]
cos = parameter f32 [s, c]
sin = parameter f32 [s, c]
return bf16 [s, h, (t c)] x * cos + (2 * iota(t) - 1) * view(x; t -> 1 - t) * sin
",
        "program conv2d
axis n = 100, ci = 3, h = 224, w = 224, co = 96, oh = 55, ow = 55, kh = 11, kw = 11
x = parameter f32 [n, ci, h, w]
f = parameter f32 [co, ci, kh, kw]
b = parameter f32 [co]
return f32 [n, co, oh, ow] dot(view(x; h -> 4*oh + kh - 2, w -> 4*ow + kw - 2; fill = 0), f; ci, kh, kw) + b
",
        "program odd
axis i = 5, j = 5
def twice(x; a, n) = x * n + size(a) * n
x = parameter f32 [i]
y = parameter f16 []
m1 = -1
two = -2 * x - -2
n = -(x - x) / (x / (x * x)) - (x + x)
z = max(two, twice(n; i, 1e-30)) + m1 * x + -x + -1 * 2 - 2
w = view(x; i -> 2)
d = view(x + iota(j); i -> j) + -inf
return f32 [i] select(z, 1e300 * y, w), f16 [j] d, bf16 [i] z, f32 [] w
",
    ];
    for source in programs {
        round_trip(source);
    }
}

#[test]
fn constants_are_kept_as_written() {
    let (program, _) =
        round_trip("program c\naxis i = 3\nx = parameter f32 [i]\nreturn f32 [i] x - 2\n");
    let ops: Vec<&Op> = program.nodes.iter().map(|n| &n.op).collect();
    assert!(ops.contains(&&Op::Constant(-1.0)) && ops.contains(&&Op::Constant(2.0)));
    assert!(!ops.contains(&&Op::Constant(-2.0)));
    assert!(program.nodes.iter().any(|n| n.op == Op::Map(MapOp::Mul)));
}

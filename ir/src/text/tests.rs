//! Faults as data, and the round trip.

use super::*;
use crate::functions::Function;
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
    assert_eq!(definitions.list.len(), 42);
    // A call means one form: no two of a name take as many arguments.
    for (at, one) in definitions.list.iter().enumerate() {
        for other in &definitions.list[at + 1..] {
            let counts = (other.values.len(), other.items.len());
            let several = other.items.iter().any(|i| i.many);
            for more in 0..if several { 3 } else { 1 } {
                let clash = one.name.name == other.name.name
                    && definitions.choose(&[at], counts.0, counts.1 + more).is_ok();
                assert!(!clash, "{one} and {other}");
            }
        }
    }
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

/// An index is printed in lowest terms.
#[test]
fn strides_are_undone_in_lowest_terms() {
    let source = |map: &str| {
        let text = format!(
            "axis h = 7, o = 20, k = 3\nx = parameter f32 [h]\ny = view(x; {map}; fill = 0)\n"
        );
        let program = parse(
            &format!("program p\n{text}return f32 [] sum(y; o, k)\n"),
            "p",
        );
        program.expect("a good program").to_string()
    };
    for (written, same) in [
        ("4*h -> 2*o + 6*k - 2", "2*h -> o + 3*k - 1"),
        ("3*h -> 3*o + 3*k", "h -> o + k"),
        ("2*h -> 2*o + 4*k + 1", "2*h -> 2*o + 4*k + 1"),
    ] {
        assert_eq!(source(written), source(same));
        assert!(source(same).contains(same), "{}", source(same));
    }
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
        "program undone
axis h = 7, w = 7, oh = 15, o = 20, k = 3
x = parameter i32 [h, w]
y = view(x; 2*h -> oh - k + 1, 3*w -> 3*o; fill = -inf)
return f32 [oh, o, k] y
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

/// What a program with faults is told.
fn told(source: &str) -> String {
    match parse(source, "bad.lax") {
        Ok(program) => panic!("accepted:\n{program}"),
        Err(faults) => format!("{faults}\n"),
    }
}

#[test]
fn every_fault_is_told_at_once_with_its_place() {
    let source = "program bad
axis i = 4, j = 0, i = 5, k = 3
x = parameter f64 [i]
y = parameter f32 [i, i, z]
w = parameter f32 [i, k]
a = sum(w; j) + undefined * w
b = max(w; q) + nothing(w)
b = w
c = view(w; k -> k + 1)
d = 2 * (w + $ 1)
exp = w
e = b + y
return f32 [i] w, f32 [k, i, j] w
";
    expect_test::expect![[r#"
        bad.lax:2:13: axis `j` has extent 0, expected at least 1
          axis i = 4, j = 0, i = 5, k = 3
                      ^
        bad.lax:2:20: axis `i` is declared twice
          axis i = 4, j = 0, i = 5, k = 3
                             ^
        bad.lax:3:15: expected a dtype (f32, f16, bf16, i32, i64, bool), found `f64`
          x = parameter f64 [i]
                        ^^^
        bad.lax:4:23: axis `i` is used twice in one tensor
          y = parameter f32 [i, i, z]
                                ^
        bad.lax:4:26: no axis `z` is declared
          y = parameter f32 [i, i, z]
                                   ^
        bad.lax:6:5: no axis `j` to reduce over: the value has {i, k}
          a = sum(w; j) + undefined * w
              ^^^^^^^^^
        bad.lax:6:17: no value `undefined` is defined above
          a = sum(w; j) + undefined * w
                          ^^^^^^^^^
        bad.lax:7:12: no axis `q` is declared
          b = max(w; q) + nothing(w)
                     ^
        bad.lax:7:17: nothing called `nothing` can be called: expected an operation or a definition
          b = max(w; q) + nothing(w)
                          ^^^^^^^
        bad.lax:8:1: `b` is already defined
          b = w
          ^
        bad.lax:9:5: the index of axis `k` runs from 1 to 3 and leaves 0 to 2: expected a `fill`
          c = view(w; k -> k + 1)
              ^^^^^^^^^^^^^^^^^^^
        bad.lax:10:14: programs consist of ASCII letters, digits and ( ) [ ] + - * / = , ; -> ...
          d = 2 * (w + $ 1)
                       ^
        bad.lax:11:1: `exp` is an operation, expected another name
          exp = w
          ^^^
        bad.lax:13:8: the value has the axes {i, k}, the result lacks {k}
          return f32 [i] w, f32 [k, i, j] w
                 ^^^^^^^
        bad.lax:13:19: the value has the axes {i, k}, the result lists {j} besides
          return f32 [i] w, f32 [k, i, j] w
                            ^^^^^^^^^^^^^
    "#]]
    .assert_eq(&told(source));
}

#[test]
fn single_faults_are_told_alone() {
    let head = "program p\naxis i = 4, j = 3\nx = parameter f32 [i, j]\n";
    let tail = "return f32 [i, j] x\n";
    let cases = [
        (
            "a = softmax(x)",
            "`softmax` takes at least 1 argument behind the semicolon, 0 given: `softmax(x; a...)`",
        ),
        (
            "a = softmax(x, x; j)",
            "`softmax` takes 1 value, 2 given: `softmax(x; a...)`",
        ),
        (
            "a = softmax(sum(x; j); j)",
            "in `softmax`: no axis `j` to reduce over: the value has {i}",
        ),
        ("a = softmax(x; 3)", "`a...` of `softmax` is axes, found 3"),
        (
            "a = softmax(x; j, 3)",
            "`a...` of `softmax` is axes, found 3",
        ),
        ("a = softmax(x; i, i)", "axis `i` is listed twice"),
        (
            "a = rms_norm(x; j, i)",
            "in `rms_norm`: `eps` is an axis here, expected a number",
        ),
        (
            "a = rms_norm(x; 1e-5)",
            "`rms_norm` takes at least 2 arguments behind the semicolon, 1 given: `rms_norm(x; a..., eps)`",
        ),
        (
            "a = causal(x; i, j, i)",
            "`causal` takes 2 arguments behind the semicolon, 3 given: `causal(x; i, j)`",
        ),
        (
            "a = min(x, x, x)",
            "expected `min(x, y)` or `min(x; a...)`, found 3 values and 0 arguments behind the semicolon",
        ),
        (
            "def f(y; a...) = iota(a) * y\na = f(x; j, i)",
            "in `f`: expected one axis, `a` stands for 2 axes: j, i",
        ),
        (
            "def f(y; a...) = causal(y; a, j)\na = f(x; i, j)",
            "in `f`: `i` of `causal` is one axis, found 2 axes: i, j",
        ),
        (
            "def f(y; a...) = view(y; i -> a)\na = f(x; j, i)",
            "in `f`: expected one axis, `a` stands for 2 axes: j, i",
        ),
        (
            "def f(y; a...) = view(y; a -> 0)\na = f(x; j, i)",
            "in `f`: expected one axis, `a` stands for 2 axes: j, i",
        ),
        (
            "def f(y; a...) = y * a\na = f(x; j, i)",
            "in `f`: `a` is axes here, expected a number",
        ),
        (
            "def f(y; a...) = sum(y; a, j)\na = f(x; j)",
            "in `f`: axis `j` is listed twice",
        ),
        (
            "def f(y; a...) = softmax(y; a, j)\na = f(x; j)",
            "in `f`: axis `j` is listed twice",
        ),
        (
            "def f(y; a..., b...) = y",
            "expected one parameter for several axes at most: `a...` is one already",
        ),
        (
            "def f(y; a..) = y",
            "expected `,`, `...` or `)`, found `..`",
        ),
        (
            "def f(y...; a) = y",
            "expected `,`, `;` or `)`, found `...`",
        ),
        (
            "def f(y; ...) = y",
            "expected a parameter's name, found `...`",
        ),
        ("def f(y; a... b) = y", "expected `,` or `)`, found `b`"),
        ("a = softmax(x; j...)", "or `)`, found `...`"),
        (
            "def f(y; a..., eps) = rms_norm(y; a)",
            "`rms_norm` takes at least 2 arguments behind the semicolon, 1 given: `rms_norm(x; a..., eps)`",
        ),
        (
            "def f(y; i) = max_pool(y; i, j, i, 2.5, 0)\na = f(x; i)",
            "in `max_pool`: `stride` is 2.5 here, expected an integer",
        ),
        (
            "a = max_pool(x; i, j, i, j, 0)",
            "in `max_pool`: `stride` is an axis here, expected an integer",
        ),
        (
            "a = max_pool(x; 3, i, j, 1, 0)",
            "in `max_pool`: `h` is 3 here, expected an axis",
        ),
        (
            "def f(y; n) = view(y; i -> n*j*j)\na = f(x; 1)",
            "an index is `integer * axis + …`",
        ),
        (
            "def f(y; n) = view(y; i -> n*n*1)\na = f(x; 1)",
            "an index is `integer * axis + …`",
        ),
        (
            "def f(y; n) = view(y; i -> n*j; fill = 0)\na = f(x; 9e15)",
            "a coefficient above 2^40",
        ),
        (
            "def f(y; n) = view(y; i -> n*n + n*n; fill = 0)\na = f(x; 3e9)",
            "in `f`: the index overflows",
        ),
        (
            "a = view(x; i -> i*j)",
            "`i` is an axis here, expected an integer",
        ),
        ("a = exp(x, x)", "`exp` takes 1 value, 2 given"),
        ("a = exp(x; j)", "`exp` takes nothing behind a semicolon"),
        ("a = max(x, x; j)", "`max` over axes takes 1 value, 2 given"),
        ("a = sum(x)", "`reduce` needs at least one axis"),
        ("a = sum(x; j, j)", "axis `j` is listed twice"),
        ("a = dot(x, x; j; fill = 0)", "only `view` takes a `fill`"),
        ("a = sum(x; 2*j)", "expected `->`, found `)`"),
        ("a = sum(x; 2*j -> i)", "only `view` takes a re-indexing"),
        (
            "a = view(x; 0*j -> i; fill = 0)",
            "an index is divided by 0 here, expected 1 or more",
        ),
        (
            "def f(y; n) = view(y; n*j -> i; fill = 0)\na = f(x; 0.5)",
            "`n` is 0.5 here, expected an integer",
        ),
        (
            "a = view(x; 3*j -> 2*i)",
            "the index of axis `j` is divided by 3 and no integer everywhere: expected a `fill`",
        ),
        (
            "a = view(x; 2*j -> i, j -> i; fill = 0)",
            "axis `j` is re-indexed twice",
        ),
        ("a = view(x; j)", "expected a re-indexing `axis -> affine`"),
        (
            "a = view(x; j -> 2*j*j)",
            "an index is `integer * axis + …`",
        ),
        (
            "a = view(x; j -> 0, j -> 1)",
            "axis `j` is re-indexed twice",
        ),
        (
            "a = view(x; j -> 9223372036854775807*j + j; fill = 0)",
            "the index overflows",
        ),
        ("a = iota(x)", "no axis `x` is declared"),
        ("a = iota(i + 1)", "`iota` takes one axis"),
        ("a = j * x", "`j` is an axis: its coordinate is `iota(j)`"),
        (
            "a = x +",
            "expected a value: a number, a name, a call or `(`, found the end of the statement",
        ),
        ("a = x x", "expected the end of the statement, found `x`"),
        ("a = (x + 1", "this bracket is never closed"),
        ("a = x + 1)", "expected the end of the statement, found `)`"),
        (
            "a = 1e999",
            "this number is too large; infinity is written `inf`",
        ),
        ("a = nan", "no value `nan` is defined above"),
        (
            "a = parameter f32 i",
            "expected `[`, the axes in memory order, found `i`",
        ),
        ("a = 1 + parameter f32 [i]", "`parameter` stands alone"),
        (
            "axis k = 1.5",
            "expected the extent, an integer, found a number",
        ),
        ("axis k = 99999999999999999999", "too large"),
        ("axis k = 1099511627777", "expected at most 2^40"),
        (
            "softmax = x",
            "`softmax` is a definition of the prelude, expected another name",
        ),
        (
            "def softmax(x) = x",
            "`softmax` is already a definition, expected another name",
        ),
        (
            "def sum(x) = x",
            "`sum` is an operation, expected another name",
        ),
        ("def f(y) = y + x", "`x` is no parameter of `f`"),
        ("def f(y) = y + f(y)", "`f` calls itself"),
        ("def f(y, y) = y", "two parameters called `y`"),
        ("def f(y) = g(y)", "nothing called `g` can be called"),
        (
            "a = Softmx(x; j)",
            "nothing called `Softmx` can be called: expected an operation or a definition; did you mean `softmax`?",
        ),
        (
            "def twice(y) = y + y\na = twise(x)",
            "did you mean `twice`?",
        ),
        (
            "def f(y; a) = softmax(y)",
            "`softmax` takes at least 1 argument behind the semicolon, 0 given: `softmax(x; a...)`",
        ),
        ("def f(y) = y\nf = x", "`f` is a definition of this program"),
        ("x = x", "`x` is already defined"),
        ("fill = x", "`fill` is a keyword, expected another name"),
        (
            "x",
            "expected `=` behind the name, found the end of the statement",
        ),
        ("return f32 [i, j] x", "nothing may follow `return`"),
        ("program q", "`program` stands first, and once"),
    ];
    for (line, message) in cases {
        let source = format!("{head}{line}\n{tail}");
        let faults = parse(&source, "bad.lax").expect_err(line);
        let list = faults.list();
        assert!(
            list.len() == 1 && list[0].message.contains(message),
            "{faults}\nexpected: {message}"
        );
    }
    for (source, message) in [
        ("", "found nothing but blank lines and comments"),
        ("# later\n", "found nothing but blank lines and comments"),
        ("\u{feff}program p\n", "a byte-order mark: save"),
        (
            "axis i = 3\nreturn f32 [i] iota(i)",
            "expected `program name` first",
        ),
        (
            "program p\naxis i = 3\n",
            "expected `return dtype [axes] value` at the end",
        ),
        ("program p\nreturn f32 [] 1,", "expected a dtype"),
        (
            "program p\naxis a = 1099511627776, b = 1099511627776\nreturn f32 [(a b)] iota(a) * iota(b)",
            "too many elements",
        ),
    ] {
        assert!(told(source).contains(message), "{}", told(source));
    }
    let two =
        told("program p\ndef f(x) = g(x)\ndef g(x) = f(x)\ndef h(x) = f(x)\nreturn f32 [] h(1)\n");
    assert_eq!(two.matches("calls itself").count(), 2, "{two}");
    // What is between two circles is on none.
    let ends = told(
        "program p\ndef f(x) = f(x) + g(x)\ndef g(x) = h(x)\ndef h(x) = h(x)\nreturn f32 [] f(1)\n",
    );
    assert_eq!(ends.matches("calls itself").count(), 2, "{ends}");
}

#[test]
fn definitions_are_hygienic_and_share_their_arguments() {
    let (program, _) = round_trip(
        "program h
axis i = 4
def twice(y) = y + y
def outer(x; i) = twice(exp(x)) * size(i)
y = parameter f32 [i]
x = parameter f32 [i]
return f32 [i] outer(y * x; i)
",
    );
    let exps = program
        .nodes
        .iter()
        .filter(|n| n.op == Op::Map(MapOp::Function(Function::Exp)));
    assert_eq!(exps.count(), 1);
    assert_eq!(program.parameters().count(), 2);
}

/// Programs that were written before there was a product may have a value or a definition of that name.
#[test]
fn prod_is_no_reserved_name() {
    let head = "program p\naxis i = 4, j = 3\nx = parameter f32 [i, j]\n";
    let text = |body: &str| round_trip(&format!("{head}{body}\n")).1;
    assert_eq!(
        text("def prod(x; a) = exp(sum(log(x); a))\nreturn f32 [i] prod(x; j)"),
        text("return f32 [i] exp(sum(log(x); j))")
    );
    assert_eq!(
        text("def prod(x, y) = x * y\nreturn f32 [i, j] prod(x, 3)"),
        text("return f32 [i, j] x * 3")
    );
    let own = text("prod = x + 1\nreturn f32 [i] prod(prod; j)");
    assert!(own.contains("prod(prod; j)"), "{own}");
}

/// What the first result of two programs is, as text without the names of the programs.
fn same(one: &str, other: &str) {
    let head = "axis g = 2, h = 3, w = 5, o = 2, k = 2\nx = parameter f32 [g, h, w]\n";
    let text = |body: &str| round_trip(&format!("program p\n{head}{body}\n")).1;
    assert_eq!(text(one), text(other), "\n{one}\n{other}");
}

#[test]
fn one_parameter_stands_for_several_axes() {
    let all = "f32 [g, h, w]";
    for (sugar, core) in [
        ("f32 [g] mean(x; h, w)", "f32 [g] sum(x; h, w) / 15"),
        ("f32 [g] mean(x; w, h)", "f32 [g] sum(x; h, w) / 15"),
        ("f32 [g, h] min(x; w)", "f32 [g, h] -max(-x; w)"),
        ("f32 [] min(x; h, g, w)", "f32 [] -max(-x; g, h, w)"),
        (
            "f32 [g, h, w] softmax(x; h, w)",
            "f32 [g, h, w] exp(x - max(x; h, w)) / sum(exp(x - max(x; h, w)); h, w)",
        ),
        (
            "f32 [g, h, w] rms_norm(x; h, w, 0.5)",
            "f32 [g, h, w] x * (1 / sqrt(sum(x * x; h, w) / 15 + 0.5))",
        ),
        // Over one axis as ever.
        ("f32 [g, h] mean(x; w)", "f32 [g, h] sum(x; w) / 5"),
        (
            "f32 [g, h, w] layer_norm(x; w, 0.5)",
            "f32 [g, h, w] (x - sum(x; w) / 5) * (1 / sqrt(sum((x - sum(x; w) / 5) * (x - sum(x; w) / 5); w) / 5 + 0.5))",
        ),
        (
            "f32 [g, h, w] group_norm(x; h, w, 0.5)",
            "f32 [g, h, w] layer_norm(x; w, h, 0.5)",
        ),
    ] {
        same(&format!("return {sugar}"), &format!("return {core}"));
    }
    // Arguments in front of it and behind it are matched by position; it may be passed on, alone or with others.
    same(
        &format!(
            "def f(x; n, a..., m) = m * sum(n * x; a)\nreturn {all} x + f(x; 2, h, w, 3) + f(x; 4, g, 5)"
        ),
        &format!("return {all} x + 3 * sum(2 * x; h, w) + 5 * sum(4 * x; g)"),
    );
    same(
        "def f(x; a...) = mean(x; a) * size(a)\ndef g(x; a...) = f(x; a, g) + f(x; a)\nreturn f32 [g] g(x; h, w)",
        "return f32 [g] sum(x; g, h, w) / 30 * 30 + sum(x; h, w) / 15 * 15",
    );
    // Where it stands for one axis it is one.
    same(
        "def f(x; a...) = iota(a) + view(x; a -> 2*o + k; fill = 0)\nreturn f32 [g, h, o, k, w] f(x; w)",
        "return f32 [g, h, o, k, w] iota(w) + view(x; w -> 2*o + k; fill = 0)",
    );
}

#[test]
fn constant_arguments_are_integers_in_an_index() {
    same(
        "def f(x; n, m) = view(x; w -> n*o + k - m + n*m; fill = 0)\nreturn f32 [g, h, o, k] f(x; 2, 3)",
        "return f32 [g, h, o, k] view(x; w -> 2*o + k + 3; fill = 0)",
    );
    same(
        "return f32 [g, h, o] max_pool(x; w, o, k, 3, 1)",
        "return f32 [g, h, o] max(view(x; w -> 3*o + k - 1; fill = -inf); k)",
    );
    same(
        "return f32 [g, h, o] avg_pool(x; w, o, k, -3, -7)",
        "return f32 [g, h, o] sum(view(x; w -> -3*o + k + 7; fill = 0); k) / 2",
    );
}

#[test]
fn the_product_of_extents_has_a_limit() {
    let told = told(
        "program p\naxis a = 1099511627776, b = 1099511627776\ndef f(; a...) = size(a)\nreturn f32 [] f(; a, b)\n",
    );
    assert!(
        told.contains("in `f`: the axes {a, b} together have too many elements"),
        "{told}"
    );
}

#[test]
fn the_builder_has_the_same_sugar() {
    let mut b = crate::Builder::new("sugar");
    let [n, h, w] = [("n", 2), ("h", 3), ("w", 5)].map(|(a, e)| b.axis(a, e).expect("new"));
    let dtype = crate::Dtype::F32;
    let x = b.parameter("x", dtype, [n, h, w]).expect("new");
    let y = b.layer_norm(x, [h, w], 1e-5).expect("well-formed");
    let y = b.leaky_relu(y, 0.2).expect("well-formed");
    let low = b.min_over(x, [h, w]).expect("well-formed");
    let one = b.softmax(x, w).expect("well-formed");
    let size = b.size([h, w]).expect("small");
    let low = b.mul(low, size).expect("well-formed");
    b.output(dtype, [n, h, w], y).expect("its axes");
    b.output(dtype, [n], low).expect("its axes");
    b.output(dtype, [n, h, w], one).expect("its axes");
    let text = "program sugar\naxis n = 2, h = 3, w = 5\nx = parameter f32 [n, h, w]\n\
        def scaled(x; a...) = min(x; a) * size(a)\n\
        return f32 [n, h, w] leaky_relu(layer_norm(x; h, w, 1e-5); 0.2), f32 [n] scaled(x; h, w), f32 [n, h, w] softmax(x; w)\n";
    assert_eq!(b.finish(), Ok(round_trip(text).0));
}

//! Oracle: the printed equations, both sides evaluated point by point on drawn instances, as [`super::property`] does.

use super::property::{Fault, exercise, exercise_clause};
use super::*;
use crate::egraph::enode::Kind;
use crate::egraph::{product, sum, unary};

/// The rules that hold in every field, or with `e^x` for a homomorphism: they must have been checked exactly.
const EXACT: &[&str] = &[
    "flatten",
    "like-terms",
    "factor",
    "distribute",
    "fold-product",
    "cancel",
    "inverse-product",
    "inverse-inverse",
    "exp-gather",
    "exp-scatter",
    "exp-inverse",
    "sum-eliminate",
    "sum-merge",
    "sum-push",
    "sum-split",
    "sum-join",
    "sum-constant",
    "sum-in-parts",
    "view-trivial",
    "view-view",
    "view-iota",
    "view-map",
    "view-fill-map",
    "view-hoist",
    "view-reduce",
    "reduce-view",
    "reduce-covered",
    "sum-covered",
];

#[test]
fn every_printed_equation_holds_and_is_what_its_code_does() {
    let mut faults = Vec::new();
    for rule in RULES {
        let mut exact = 0;
        for (at, clause) in rule.clauses().iter().enumerate() {
            match exercise_clause(rule, at, clause) {
                Err(e) => faults.push(format!("{}: {e}", rule.name)),
                Ok(n) => {
                    exact += n.exact;
                    if n.instances < 30 || n.floating < 300 {
                        faults.push(format!("{}: too few instances: {clause}: {n:?}", rule.name));
                    }
                }
            }
        }
        if EXACT.contains(&rule.name) && exact < 100 {
            faults.push(format!("{}: {exact} points in the fields", rule.name));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn names_are_unique_and_equations_written() {
    for (i, r) in RULES.iter().enumerate() {
        assert!(!r.roots.is_empty());
        let count = outside_brackets(r.equation, "; ").len();
        assert_eq!(r.clauses().len(), count, "{}", r.equation);
        assert!(RULES[..i].iter().all(|s| s.name != r.name));
    }
    for name in EXACT {
        assert!(RULES.iter().any(|r| r.name == *name), "{name} is no rule");
    }
}

/// Rules that forget a side condition of a row of the table.
const LIES: &[(&str, Rewriting)] = &[
    // x·Σ_k y = Σ_k x·y, whatever x carries
    ("sum-push", |g, n| {
        let mut out = Vec::new();
        for (i, x) in n.args.iter().enumerate() {
            for s in few(g, *x, Tag::Sum) {
                let mut factors = without(&n.args, i);
                factors.push(s.args[0]);
                let p = product(g, factors);
                out.push(unary(g, s.kind, p));
            }
        }
        out
    }),
    // max_j x·y = y·max_j x, whatever the sign and axes of y
    ("max-scale", |g, n| {
        let mut out = Vec::new();
        for m in few(g, n.args[0], Tag::Mul) {
            let inner = unary(g, n.kind.clone(), m.args[0]);
            let mut rest = m.args[1..].to_vec();
            rest.push(inner);
            out.push(product(g, rest));
        }
        out
    }),
    // e^(x + y) = e^x + e^y
    ("exp-scatter", |g, n| {
        let mut out = Vec::new();
        for m in few(g, n.args[0], Tag::Add) {
            let terms = m
                .args
                .iter()
                .map(|t| unary(g, Kind::Function(Function::Exp), *t))
                .collect();
            out.push(sum(g, terms));
        }
        out
    }),
    // c·x = x
    ("fold-product", |g, n| {
        let zero = n.args.iter().any(|a| egraph::known(g, *a) == Some(0.0));
        let other = n
            .args
            .iter()
            .copied()
            .find(|a| egraph::known(g, *a).is_none());
        other.filter(|_| !zero).into_iter().collect()
    }),
];

#[test]
fn a_rule_that_forgets_its_side_condition_is_caught() {
    for (name, rewriting) in LIES {
        let row = RULES.iter().find(|r| r.name == *name).expect("a rule");
        let rule = Rule {
            rewriting: *rewriting,
            ..*row
        };
        let verdict = exercise(&rule);
        assert!(verdict.is_err(), "{name}: {verdict:?}");
    }
}

/// Equations that are not what the code of a row does: some hold and some do not.
const MISPRINTS: &[(&str, &str)] = &[
    // False.
    ("distribute", "x·(y + z) = x·y + z"),
    ("exp-scatter", "e^(x + y) = e^x + e^y"),
    (
        "sum-in-parts",
        "Σ_jk (x − c)·(y − d) = Σ_j (Σ_k (x − m)·(y − n) + (m − c)·(n − d)) for jk ∈ x, jk ∈ y, jk ∉ c, jk ∉ d, k held of jk, \
         m = |k|⁻¹·Σ_k x, n = |k|⁻¹·Σ_k y",
    ),
    // Without a condition.
    ("max-pull", "max_j (x + y) = x + max_j y for j ∈ y"),
    ("cancel", "x·x⁻¹ = 1"),
    ("sum-constant", "Σ_j x = |j|·x"),
    ("view-trivial", "view(x; a -> f) = x"),
    // With a weaker one, or with a stronger one.
    ("exp-log", "e^(ln x) = x for x >= 0"),
    ("root-product", "√(x·y) = √x·√y for x > 0, y >= 0"),
    ("sum-push", "x·(Σ_k y) = Σ_k x·y for k ∉ x, k ∈ y"),
    // True, but another one.
    ("sum-join", "Σ_j (x + y) = Σ_j x + Σ_j y"),
    ("flatten", "x + (y + z) = (x + y) + z"),
    ("exp-inverse", "(e^x)⁻¹ = (e^(−x))·1·e^(x − x)"),
    // No equations.
    ("log-exp", "ln(e^x) is x"),
    ("log-exp", "ln(e^x) = x for x >= −∞; ln(e^x) is x"),
    ("log-exp", "ln(e^x = x"),
    ("log-exp", "ln(e^x) = y"),
    ("log-exp", "ln(e^x) = x for real x"),
];

#[test]
fn an_equation_that_does_not_say_what_its_code_does_is_caught() {
    for (name, equation) in MISPRINTS {
        let row = RULES.iter().find(|r| r.name == *name).expect("a rule");
        let verdict = exercise(&Rule { equation, ..*row });
        assert!(verdict.is_err(), "{name}: {equation}: {verdict:?}");
    }
}

#[test]
fn code_that_is_sound_but_does_something_else_is_caught() {
    let row = RULES
        .iter()
        .find(|r| r.name == "distribute")
        .expect("a rule");
    let idle = Rule {
        rewriting: |_, _| Vec::new(),
        ..*row
    };
    assert!(matches!(
        exercise(&idle),
        Err(Fault::Code { made: false, .. })
    ));
    let row = RULES
        .iter()
        .find(|r| r.name == "sum-constant")
        .expect("a rule");
    let other = Rule {
        rewriting: reductions::sum_split,
        ..*row
    };
    assert!(exercise(&other).is_err());
}

/// A file with one rule over these lines.
fn verdict(lines: &str) -> file::Verdict {
    let rules =
        file::read(&format!("rule r\n{lines}"), "r.rules").unwrap_or_else(|e| panic!("{e}"));
    rules[0].check().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn sound_rules_of_users_pass() {
    for lines in [
        "axis i, j\nc = positive [i?]\nx = any [i, j]\nleft = max(c * x; j)\nright = c * max(x; j)",
        "axis i, j\nx = any [i?]\ny = any [i?, j]\nleft = sum(x * y; j)\nright = x * sum(y; j)",
        "x = any []\ny = any []\nleft = exp(x) * exp(y)\nright = exp(x + y)",
        "axis i, j\nx = masked [i]\ny = any [i, j]\nleft = max(x + y; j)\nright = x + max(y; j)",
        "axis t = 2, s\nx = any [t, s?]\nleft = view(view(x; t -> 1 - t); t -> 1 - t)\nright = x",
        "axis i\nc = constant\nx = any [i]\nleft = sum(c * x; i)\nright = c * sum(x; i)",
        "axis j\ns = any [j]\nv = any [j]\ndef weights(s; j) = exp(s - max(s; j))\n\
         left = dot(softmax(s; j), v; j)\nright = dot(weights(s; j), v; j) / sum(weights(s; j); j)",
        "x = nonnegative []\nleft = sqrt(x) * sqrt(x)\nright = x",
        "x = nonzero []\nleft = x / x\nright = 1",
    ] {
        assert!(matches!(verdict(lines), file::Verdict::Sound(_)), "{lines}");
    }
}

#[test]
fn unsound_rules_of_users_are_refused() {
    for lines in [
        "axis i, j\nc = any [i]\nx = any [i, j]\nleft = max(c * x; j)\nright = c * max(x; j)",
        "axis i, j\nx = any [j?]\ny = any [i, j]\nleft = sum(x * y; j)\nright = x * sum(y; j)",
        "axis i\nx = any [i]\nleft = sum(x; i)\nright = max(x; i)",
        "x = any []\nleft = sqrt(x * x)\nright = x",
        "x = any []\nleft = x / x\nright = 1",
        "x = masked []\nleft = 0 * x\nright = 0",
        // Within rounding of each other: only the fields tell.
        "x = any []\nleft = x\nright = x + 1e-12",
        // Wrong only far from zero.
        "x = any []\nleft = max(x, -100)\nright = x",
        // The right side varies along an axis that the left one lacks.
        "axis i\nx = any []\nleft = x\nright = x * (1 + iota(i))",
    ] {
        let found = verdict(lines);
        let file::Verdict::Unsound(counterexample) = found else {
            panic!("{lines}: {found:?}");
        };
        let text = counterexample.to_string();
        for part in ["x[", "left ", "right "] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
    }
    let nowhere = "x = any []\nleft = log(0 - exp(x))\nright = 1 + log(0 - exp(x))";
    assert!(matches!(verdict(nowhere), file::Verdict::Undecided(_)));
}

#[test]
fn bad_rule_files_are_refused_with_their_lines() {
    for (text, parts) in [
        ("", &["r.rules: ", "no rule"][..]),
        ("left = 1", &["r.rules:1: ", "`rule name` first"]),
        ("rule\nleft = 1\nright = 1", &["r.rules:1: ", "a name"]),
        ("rule a\nleft = 1", &["r.rules:1: ", "right"]),
        (
            "rule a\nleft = 1\nright = 1\nrule a\nleft = 1\nright = 1",
            &["r.rules:4: ", "`a`"],
        ),
        (
            "rule a\n\nx = any [i]\nleft = x\nright = x",
            &["r.rules:3:", "`i`"],
        ),
        (
            "rule a\naxis i = 0\nleft = 1\nright = 1",
            &["r.rules:2: ", "extent"],
        ),
        (
            "rule a\naxis i = 4096, j = 2\nleft = 1\nright = 1",
            &["r.rules:1: ", "points"],
        ),
        (
            "rule a\nx = any\nleft = x\nright = x",
            &["r.rules:2: ", "brackets"],
        ),
        (
            "rule a\nx = parameter f32 []\nleft = x\nright = x",
            &["r.rules:2: ", "any"],
        ),
        (
            "rule a\nc = constant [i]\nleft = c\nright = c",
            &["r.rules:2: ", "no axes"],
        ),
        (
            "rule b\nleft = 1\nright = 1\nrule a\nx = any []\nleft = x +\nright = y",
            &["r.rules:6:", "r.rules:7:"],
        ),
        (
            "rule a\nreturn f32 [] 1\nleft = 1\nright = 1",
            &["r.rules:2: ", "left"],
        ),
        (
            "rule a\naxis i, j = 2\nx = any [i]\nleft = view(x; i -> 2*j + 7)\nright = x",
            &["r.rules:4:", "i = "],
        ),
    ] {
        let message = match file::read(text, "r.rules") {
            Ok(rules) => rules[0].check().expect_err(text).to_string(),
            Err(e) => e.to_string(),
        };
        for part in parts {
            assert!(message.contains(part), "{text}\nno `{part}` in: {message}");
        }
    }
    // As deep and as wide as the text allows: an answer, not a crash.
    let doubling: String = (0..300)
        .map(|n| format!("x{} = x{n} + x{n} * x{n}\n", n + 1))
        .collect();
    let text = format!("rule a\nx0 = any []\n{doubling}left = x300\nright = x300\n");
    let found = file::read(&text, "r.rules").map(|rules| rules[0].check());
    assert!(matches!(found, Err(_) | Ok(Err(_))), "{found:?}");
}

//! Oracle: both sides of every rule, evaluated point by point on drawn instances, as [`super::property`] does.

use super::property::{exercise, exercise_drawn};
use super::*;
use crate::egraph::{Kind, product, sum, unary};

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
    "view-trivial",
    "view-view",
    "view-iota",
    "view-map",
    "view-fill-map",
    "view-hoist",
    "view-reduce",
    "reduce-view",
];

#[test]
fn every_rule_is_an_identity_on_what_its_signature_draws() {
    let mut faults = Vec::new();
    for rule in RULES {
        match exercise(rule) {
            Err(e) => faults.push(format!("{}: {e}", rule.name)),
            Ok(n) => {
                let exact = !EXACT.contains(&rule.name) || n.exact >= 100;
                if n.instances < 30 || n.floating < 300 || !exact {
                    faults.push(format!("{}: too few instances: {n:?}", rule.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn names_are_unique_and_equations_written() {
    for (i, r) in RULES.iter().enumerate() {
        assert!(!r.equation.is_empty() && !r.roots.is_empty());
        assert!(RULES[..i].iter().all(|s| s.name != r.name));
    }
    for name in EXACT {
        assert!(RULES.iter().any(|r| r.name == *name), "{name} is no rule");
    }
}

/// Rules that forget a side condition.
const LIES: &[(&str, &[Tag], Rewriting)] = &[
    // x·Σ_k y = Σ_k x·y, whatever x carries
    ("sum-push", &[Tag::Mul], |g, n| {
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
    ("max-scale", &[Tag::Maximum], |g, n| {
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
    ("exp-scatter", &[Tag::Exp], |g, n| {
        let mut out = Vec::new();
        for m in few(g, n.args[0], Tag::Add) {
            let terms = m.args.iter().map(|t| unary(g, Kind::Exp, *t)).collect();
            out.push(sum(g, terms));
        }
        out
    }),
    // c·x = x
    ("fold-product", &[Tag::Mul], |g, n| {
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
    for (signature, roots, rewriting) in LIES {
        let rule = Rule {
            name: "lie",
            equation: "",
            numerics: Real,
            tier: Core,
            roots,
            rewriting: *rewriting,
        };
        let verdict = exercise_drawn(&rule, signature);
        assert!(verdict.is_err(), "{signature}: {verdict:?}");
    }
}

//! The rules: every identity that the e-graph may use, as a table.
//!
//! Sums, products and maxima are n-ary and sorted, so there is no commutativity and no associativity. Side conditions are
//! proofs from [`crate::egraph::facts`]; what is not proven does not apply. Identities are over the reals, extended by −∞ where
//! programs mask with it. Axis names bind as in index notation: nothing may enter a reduction over an axis that it
//! carries (written `j ∉ x`), and no rule renames an axis.
//!
//! An equation is no comment: the property test of its row reads it, and is red where code and equation say different things.

mod algebra;
mod draw;
mod equation;
pub mod file;
pub mod property;
mod reductions;
pub(crate) mod term;
mod views;

#[cfg(test)]
mod tests;

use crate::egraph::enode::{Enode, Tag};
use crate::egraph::facts::{Algebra, EGraph};
use crate::egraph::{self, Rewriting, members};
use egg::{Id, Rewrite};
use ir::{AxisSet, Function};
use std::fmt;

/// What a rule does to rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Numerics {
    /// The same bits.
    Exact,
    /// Equal over the reals.
    Real,
}

/// When a rule is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// On every program.
    Core,
    /// On programs that are small enough for forms that only pay when combined with others.
    Wide,
}

/// One identity.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name, unique.
    pub name: &'static str,
    /// What it says, in the grammar of `rules/equation.rs`: equations `left = right for condition`, separated by semicolons. They are
    /// read again by its property test, which draws both sides from them and looks whether the code makes the right one.
    pub equation: &'static str,
    /// What it does to rounding.
    pub numerics: Numerics,
    /// When it is tried.
    pub tier: Tier,
    /// The kinds of e-nodes at which it may apply.
    pub roots: &'static [Tag],
    /// The equal terms that it finds for one e-node.
    pub rewriting: Rewriting,
}

/// One equation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Clause {
    /// What is found.
    pub left: String,
    /// What it is equal to.
    pub right: String,
    /// When: the side conditions, if there are any.
    pub condition: Option<String>,
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.left, self.right)?;
        match &self.condition {
            Some(condition) => write!(f, "   for {condition}"),
            None => Ok(()),
        }
    }
}

impl Rule {
    /// The equations of the rule, `left = right for condition` each; empty for a text that isn't of this form.
    pub fn clauses(&self) -> Vec<Clause> {
        outside_brackets(self.equation, "; ")
            .into_iter()
            .filter_map(|clause| {
                let (equation, condition) = match clause.split_once(" for ") {
                    Some((equation, condition)) => (equation, Some(condition.to_owned())),
                    None => (clause, None),
                };
                let [left, right] = outside_brackets(equation, " = ")[..] else {
                    return None;
                };
                Some(Clause {
                    left: left.to_owned(),
                    right: right.to_owned(),
                    condition,
                })
            })
            .collect()
    }
}

/// The parts of a text between separators that stand in no brackets.
fn outside_brackets<'t>(text: &'t str, separator: &str) -> Vec<&'t str> {
    let (mut parts, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 && at >= from && text[at..].starts_with(separator) {
            parts.push(&text[from..at]);
            from = at + separator.len();
        }
    }
    parts.push(&text[from..]);
    parts
}

use Numerics::{Exact, Real};
use Tier::{Core, Wide};

/// Every rule.
#[rustfmt::skip]
pub const RULES: &[Rule] = &[
    // Sums, products and maxima.
    Rule { name: "flatten",            equation: "x + (y + z) = x + y + z for y >= −∞; x·(y·z) = x·y·z for y >= −∞; max(x, max(y, z)) = max(x, y, z) for x >= −∞, y >= −∞", numerics: Real, tier: Core, roots: &[Tag::Add, Tag::Mul, Tag::Max], rewriting: algebra::flatten },
    Rule { name: "like-terms",         equation: "α·x + β·x = (α + β)·x for x >= −∞, α + β ≠ 0; α·x + β·x = 0 for finite x, α + β = 0", numerics: Real, tier: Core, roots: &[Tag::Add], rewriting: algebra::like_terms },
    Rule { name: "factor",             equation: "x·y + x·z + w = x·(y + z) + w for y >= −∞", numerics: Real, tier: Core, roots: &[Tag::Add], rewriting: algebra::factor },
    Rule { name: "factor-constant",    equation: "α·x + α·y + z = α·(x + y) + z for y >= −∞, z >= −∞, α ≠ 0, α·α ≠ 1; α·x + β·y + z = α·(x − y) + z for x >= −∞, z >= −∞, α ≠ 0, α·α ≠ 1, α + β = 0", numerics: Real, tier: Core, roots: &[Tag::Add], rewriting: algebra::factor_constant },
    Rule { name: "distribute",         equation: "x·(y + z) = x·y + x·z for y >= −∞", numerics: Real, tier: Wide, roots: &[Tag::Mul], rewriting: algebra::distribute },
    Rule { name: "fold-product",       equation: "α·β·x = (α·β)·x for x >= −∞, α·β ≠ 0; α·x = x for x >= −∞, α = 1; α·x = 0 for finite x, α = 0", numerics: Real, tier: Core, roots: &[Tag::Mul], rewriting: algebra::fold_product },
    Rule { name: "fold-maximum",       equation: "max(x, y) = x for x >= −∞, y >= −∞, x >= y; max(x, x) = x for x >= −∞", numerics: Exact, tier: Core, roots: &[Tag::Max], rewriting: algebra::fold_maximum },
    Rule { name: "max-of-sums",        equation: "max(x + y, x + z) = x + max(y, z) for x >= −∞, z >= −∞", numerics: Real, tier: Wide, roots: &[Tag::Max], rewriting: algebra::max_of_sums },
    // Powers and quotients.
    Rule { name: "cancel",             equation: "x·x⁻¹ = 1 for finite x, x ≠ 0", numerics: Real, tier: Core, roots: &[Tag::Mul], rewriting: algebra::cancel },
    Rule { name: "square-of-root",     equation: "√x·√x = x for x >= 0; (√x)⁻¹·(√x)⁻¹ = x⁻¹ for x > 0", numerics: Real, tier: Core, roots: &[Tag::Mul], rewriting: algebra::square_of_root },
    Rule { name: "inverse-product",    equation: "(x·y)⁻¹ = x⁻¹·y⁻¹", numerics: Real, tier: Core, roots: &[Tag::Inv], rewriting: algebra::inverse_product },
    Rule { name: "inverse-inverse",    equation: "(x⁻¹)⁻¹ = x for finite x, x ≠ 0", numerics: Real, tier: Core, roots: &[Tag::Inv], rewriting: algebra::inverse_inverse },
    Rule { name: "root-product",       equation: "√(x·y) = √x·√y for x >= 0, y >= 0", numerics: Real, tier: Core, roots: &[Tag::Function(Function::Sqrt)], rewriting: algebra::root_product },
    Rule { name: "root-inverse",       equation: "√(x⁻¹) = (√x)⁻¹ for x > 0", numerics: Real, tier: Core, roots: &[Tag::Function(Function::Sqrt)], rewriting: algebra::root_inverse },
    // Exponentials and logarithms.
    Rule { name: "exp-gather",         equation: "e^x·e^y = e^(x + y) for x >= −∞, y >= −∞", numerics: Real, tier: Core, roots: &[Tag::Mul], rewriting: algebra::exp_gather },
    Rule { name: "exp-scatter",        equation: "e^(x + y) = e^x·e^y for x >= −∞", numerics: Real, tier: Wide, roots: &[Tag::Function(Function::Exp)], rewriting: algebra::exp_scatter },
    Rule { name: "exp-log",            equation: "e^(ln x) = x for x > 0", numerics: Real, tier: Core, roots: &[Tag::Function(Function::Exp)], rewriting: algebra::exp_log },
    Rule { name: "exp-inverse",        equation: "(e^x)⁻¹ = e^(−x) for x >= −∞", numerics: Real, tier: Core, roots: &[Tag::Inv], rewriting: algebra::exp_inverse },
    Rule { name: "log-exp",            equation: "ln(e^x) = x for x >= −∞", numerics: Real, tier: Core, roots: &[Tag::Function(Function::Log)], rewriting: algebra::log_exp },
    Rule { name: "log-product",        equation: "ln(x·y) = ln x + ln y for x > 0, y > 0", numerics: Real, tier: Core, roots: &[Tag::Function(Function::Log)], rewriting: algebra::log_product },
    Rule { name: "log-inverse",        equation: "ln(x⁻¹) = −ln x for x > 0", numerics: Real, tier: Core, roots: &[Tag::Function(Function::Log)], rewriting: algebra::log_inverse },
    // Selections.
    Rule { name: "select-known",       equation: "select(c, x, y) = x for x >= −∞, c >= 0; select(c, x, y) = y for x >= −∞, c < 0; select(c, x, x) = x for x >= −∞", numerics: Exact, tier: Core, roots: &[Tag::Select], rewriting: algebra::select_known },
    Rule { name: "select-predicate",   equation: "select(p·c, x, y) = select(c, x, y) for x >= −∞, finite p, p > 0", numerics: Exact, tier: Core, roots: &[Tag::Select], rewriting: algebra::select_predicate },
    Rule { name: "select-nested",      equation: "select(c, select(c, x, y), z) = select(c, x, z) for x >= −∞; select(c, x, select(c, y, z)) = select(c, x, z) for y >= −∞", numerics: Exact, tier: Core, roots: &[Tag::Select], rewriting: algebra::select_nested },
    Rule { name: "select-exp",         equation: "e^select(c, x, α) = select(c, e^x, e^α) for x >= −∞, α >= −∞", numerics: Exact, tier: Core, roots: &[Tag::Function(Function::Exp)], rewriting: algebra::select_exp },
    Rule { name: "select-scale",       equation: "select(c, α·x, β) = α·select(c, x, β) for x >= −∞, β >= −∞, α > 0, β = −∞", numerics: Exact, tier: Core, roots: &[Tag::Select], rewriting: algebra::select_scale },
    Rule { name: "select-product",     equation: "select(c, x, α)·y = select(c, x·y, α) for finite y, α = 0", numerics: Exact, tier: Wide, roots: &[Tag::Mul], rewriting: algebra::select_product },
    // Sums over axes.
    Rule { name: "sum-eliminate",      equation: "Σ_j x·y·z = x·(Σ_j y·z) for j ∉ x, j ∈ y, j ∈ z; Σ_jk x·y = Σ_k x·(Σ_j y) for j ∉ x, j ∈ y, k ∈ x or j ∉ x, j ∈ y, k ∉ y", numerics: Real, tier: Core, roots: &[Tag::Sum], rewriting: reductions::sum_eliminate },
    Rule { name: "sum-merge",          equation: "Σ_j x·(Σ_k y) = Σ_jk x·y for k ∉ x", numerics: Real, tier: Core, roots: &[Tag::Sum], rewriting: reductions::sum_merge },
    Rule { name: "sum-push",           equation: "x·(Σ_k y) = Σ_k x·y for k ∉ x", numerics: Real, tier: Wide, roots: &[Tag::Mul], rewriting: reductions::sum_push },
    Rule { name: "sum-split",          equation: "Σ_j (x + y) = Σ_j x + Σ_j y", numerics: Real, tier: Wide, roots: &[Tag::Sum], rewriting: reductions::sum_split },
    Rule { name: "sum-join",           equation: "Σ_j x + Σ_j y = Σ_j (x + y)", numerics: Real, tier: Wide, roots: &[Tag::Add], rewriting: reductions::sum_join },
    Rule { name: "sum-constant",       equation: "Σ_j x = |j|·x for j ∉ x", numerics: Real, tier: Core, roots: &[Tag::Sum], rewriting: reductions::sum_constant },
    Rule { name: "sum-in-parts",       equation: "Σ_jk (x − c)·(y − d) = Σ_j (Σ_k (x − m)·(y − n) + |k|·(m − c)·(n − d)) for jk ∈ x, jk ∈ y, jk ∉ c, jk ∉ d, k held of jk, m = |k|⁻¹·Σ_k x, n = |k|⁻¹·Σ_k y; Σ_jk (x − c)·(x − c) = Σ_j (Σ_k (x − m)·(x − m) + |k|·(m − c)·(m − c)) for jk ∈ x, jk ∉ c, k held of jk, m = |k|⁻¹·Σ_k x", numerics: Real, tier: Core, roots: &[Tag::Sum], rewriting: reductions::sum_in_parts },
    // Maxima over axes.
    Rule { name: "max-pull",           equation: "max_j (x + y) = x + max_j y for x >= −∞, j ∉ x, j ∈ y", numerics: Real, tier: Core, roots: &[Tag::Maximum], rewriting: reductions::max_pull },
    Rule { name: "max-push",           equation: "x + max_j y = max_j (x + y) for x >= −∞, j ∉ x", numerics: Real, tier: Wide, roots: &[Tag::Add], rewriting: reductions::max_push },
    Rule { name: "max-scale",          equation: "max_j x·y = x·max_j y for j ∉ x, finite x, x > 0 or j ∉ x, finite x, x >= 0, finite y", numerics: Exact, tier: Core, roots: &[Tag::Maximum], rewriting: reductions::max_scale },
    Rule { name: "max-merge",          equation: "max_j max_k x = max_jk x for x >= −∞", numerics: Exact, tier: Core, roots: &[Tag::Maximum], rewriting: reductions::max_merge },
    Rule { name: "max-split",          equation: "max_j max(x, y) = max(max_j x, max_j y) for x >= −∞", numerics: Exact, tier: Core, roots: &[Tag::Maximum], rewriting: reductions::max_split },
    Rule { name: "max-constant",       equation: "max_j x = x for x >= −∞, j ∉ x", numerics: Exact, tier: Core, roots: &[Tag::Maximum], rewriting: reductions::max_constant },
    // Views.
    Rule { name: "view-trivial",       equation: "view(x; a -> a) = x; view(x; a -> f) = x for a ∉ x; view(x; a -> f; fill = α) = view(x; a -> f) for f inside a", numerics: Exact, tier: Core, roots: &[Tag::View], rewriting: views::trivial },
    Rule { name: "view-view",          equation: "view(view(x; a -> f); b -> g) = view(x; a -> f(g)) for b ∉ x; view(view(x; a -> f; fill = α); b -> g) = view(x; a -> f(g); fill = α) for b ∉ x; view(view(x; a -> f); b -> g; fill = α) = view(x; a -> f, b -> g; fill = α) for b ∈ x, b ∉ f", numerics: Exact, tier: Core, roots: &[Tag::View], rewriting: views::compose },
    Rule { name: "view-iota",          equation: "view(iota(a); a -> α·b + β) = α·iota(b) + β for α ≠ 0", numerics: Exact, tier: Core, roots: &[Tag::View], rewriting: views::iota },
    Rule { name: "view-map",           equation: "view(f(x); m) = f(view(x; m)) for element-wise f; view(f(x, y); m) = f(view(x; m), view(y; m)) for element-wise f; view(f(x, y, z); m) = f(view(x; m), view(y; m), view(z; m)) for element-wise f", numerics: Exact, tier: Core, roots: &[Tag::View], rewriting: views::through_map },
    Rule { name: "view-fill-map",      equation: "view(f(x, y); m; fill = α) = f(view(x; m; fill = α), view(y; m; fill = α)) for element-wise f, f(α, α) = α, x carries m, y carries m; view(√x; m; fill = α) = √view(x; m; fill = α) for √α = α, x carries m", numerics: Exact, tier: Wide, roots: &[Tag::View], rewriting: views::through_map_with_fill },
    Rule { name: "view-hoist",         equation: "e^view(x; m; fill = α) = view(e^x; m; fill = e^α); √view(x; m; fill = α) = view(√x; m; fill = √α) for α >= 0; β + view(x; m; fill = α) = view(β + x; m; fill = β + α); β·view(x; m; fill = α) = view(β·x; m; fill = β·α); max(β, view(x; m; fill = α)) = view(max(β, x); m; fill = max(β, α)); e^view(x; m) = view(e^x; m)", numerics: Exact, tier: Wide, roots: &[Tag::Function(Function::Exp), Tag::Function(Function::Sqrt), Tag::Mul, Tag::Add, Tag::Max], rewriting: views::hoist },
    Rule { name: "view-reduce",        equation: "view(Σ_j x; m) = Σ_j view(x; m) for j ∉ m, j ∈ x; view(Σ_j x; m; fill = α) = Σ_j view(x; m; fill = α) for j ∉ m, j ∈ x, α = 0; view(max_j x; m; fill = α) = max_j view(x; m; fill = α) for j ∉ m, j ∈ x", numerics: Exact, tier: Wide, roots: &[Tag::View], rewriting: views::through_reduce },
    Rule { name: "reduce-view",        equation: "Σ_j view(x; m) = view(Σ_j x; m) for j ∉ m, j ∈ x; Σ_j view(x; m; fill = α) = view(Σ_j x; m; fill = α) for j ∉ m, j ∈ x, α = 0; max_j view(x; m; fill = α) = view(max_j x; m; fill = α) for j ∉ m, j ∈ x; Σ_j view(x; a -> f, b -> g) = view(Σ_j view(x; a -> f); b -> g) for j ∈ f, j ∉ g, b ∉ f; Σ_j view(x; a -> f, b -> g; fill = α) = view(Σ_j view(x; a -> f; fill = α); b -> g; fill = α) for j ∈ f, j ∉ g, b ∉ f, α = 0; max_j view(x; a -> f, b -> g; fill = α) = view(max_j view(x; a -> f; fill = α); b -> g; fill = α) for j ∈ f, j ∉ g, b ∉ f", numerics: Exact, tier: Wide, roots: &[Tag::Sum, Tag::Maximum], rewriting: views::out_of_reduce },
    Rule { name: "reduce-covered",     equation: "Σ_j view(x; a -> α·j + β) = Σ_a x for α·α = 1, |a| = |j|, α·j + β inside a, a ∈ x, j ∉ x; max_j view(x; a -> α·j + β) = max_a x for α·α = 1, |a| = |j|, α·j + β inside a, a ∈ x, j ∉ x", numerics: Real, tier: Core, roots: &[Tag::Sum, Tag::Maximum], rewriting: views::covered },
    Rule { name: "sum-covered",        equation: "Σ_j view(x; a -> f; fill = α) = Σ_a x for f covers a by j, α = 0, a ∈ x, j ∉ x", numerics: Real, tier: Core, roots: &[Tag::Sum], rewriting: views::covered_with_zeros },
];

/// The rules up to a tier, in the form that egg runs.
pub fn rewrites(tier: Tier, nodes: usize) -> Vec<Rewrite<Enode, Algebra>> {
    RULES
        .iter()
        .filter(|r| r.tier <= tier)
        .filter_map(|r| egraph::rewrite(r.name, r.roots, r.rewriting, nodes))
        .collect()
}

/// Sums over more axes are not taken in parts.
pub(crate) const MOST_AXES: usize = 6;

/// The most operands that a rule may give to a sum or a product: classes that contain themselves in a roundabout way
/// (`x = x·1`) would otherwise grow for ever.
const WIDEST: usize = 12;

/// The members of a class with a tag, the first few in order: forms of one value multiply through every rule.
fn few(g: &EGraph, class: Id, tag: Tag) -> Vec<Enode> {
    const FEW: usize = 4;
    let mut first: Vec<&Enode> = Vec::with_capacity(FEW + 1);
    for node in members(g, class, tag) {
        let at = first.partition_point(|known| *known <= node);
        if at < FEW {
            first.insert(at, node);
            first.truncate(FEW);
        }
    }
    first.into_iter().cloned().collect()
}

fn without(xs: &[Id], at: usize) -> Vec<Id> {
    let mut rest = xs.to_vec();
    rest.remove(at);
    rest
}

/// `j ∉ x` for every axis of a set.
fn free(g: &EGraph, x: Id, axes: &AxisSet) -> bool {
    !g[x].data.axes.intersects(axes)
}

/// The ways to see a class as a product (or a sum, or a maximum), itself among them.
fn ways(g: &EGraph, x: Id, tag: Tag) -> Vec<Vec<Id>> {
    let mut ways: Vec<Vec<Id>> = few(g, x, tag)
        .into_iter()
        .map(|m| m.args.iter().map(|a| g.find(*a)).collect())
        .collect();
    ways.push(vec![g.find(x)]);
    ways
}

//! Why an expression is equal to its program: the rule applications that a proof needs.
//!
//! The e-graph keeps classes and no reasons, so the derivation is found afterwards, for one pair: the rules run again on a graph
//! that holds both, every union is logged with the term that a rule matched and the term that it gave, and a congruence closure
//! that keeps a proof forest (Nieuwenhuis and Oliveras, "Proof-producing congruence closure", 2005) is built from the log. Its
//! congruences see through the order of operands of sums, products and maxima, as the e-graph does.

use crate::egraph;
use crate::egraph::convert;
use crate::egraph::enode::{Enode, Kind};
use crate::egraph::facts::EGraph;
use crate::egraph::union::{Found, Union};
use crate::forms::extract::Limits;
use crate::rules::{RULES, Tier, term};
use egg::Language;
use ir::Program;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One application of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The rule's name in the table, or [`FOLD`](crate::egraph::union::FOLD).
    pub rule: String,
    /// What was found, its operands abridged.
    pub left: String,
    /// What it is equal to.
    pub right: String,
}

/// A proof that an expression is equal to its program; no steps where they are the same but for their writing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The rules by which alone the two are equal, in the table's order.
    pub rules: Vec<String>,
    /// Applications of them on the way, in an order in which each rests on the ones before it.
    pub steps: Vec<Step>,
}

impl Explanation {
    /// How often each rule is applied in the steps.
    pub fn counted(&self) -> BTreeMap<&str, usize> {
        let mut all = BTreeMap::new();
        for step in &self.steps {
            *all.entry(step.rule.as_str()).or_default() += 1;
        }
        all
    }
}

/// A derivation of the expression from the program; `None` where none was found within the limits. Parameters, axes and the number of
/// outputs of the two are the same.
///
/// A rule may look further into its left side than the one node that a step shows, at forms that other rules found. So the rules
/// of the steps are tried alone, and where they are too few the most used ones join them, until the two are equal by these alone.
///
/// `stop` ends it, with none.
pub fn explain(
    program: &Program,
    expression: &Program,
    limits: &Limits,
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<Explanation> {
    let pair = Pair {
        program,
        expression,
        limits,
        stop,
    };
    [Tier::Core, Tier::Wide].into_iter().find_map(|tier| {
        let of_tier: Vec<&str> = (RULES.iter())
            .filter(|r| r.tier <= tier)
            .map(|r| r.name)
            .collect();
        let first = pair.derive(&of_tier)?;
        let counted: BTreeSet<String> = first
            .explanation
            .counted()
            .into_keys()
            .map(str::to_owned)
            .collect();
        let shown: BTreeSet<&str> = counted.iter().map(String::as_str).collect();
        let mut others: Vec<(usize, &str)> = of_tier
            .iter()
            .filter(|name| !shown.contains(**name))
            .filter_map(|name| Some((*first.uses.get(*name)?, *name)))
            .collect();
        others.sort_by(|x, y| y.0.cmp(&x.0).then(x.1.cmp(y.1)));
        let with = |count: usize| -> Vec<&str> {
            of_tier
                .iter()
                .copied()
                .filter(|n| shown.contains(n) || others[..count].iter().any(|o| o.1 == *n))
                .collect()
        };
        // The least count that suffices; more rules prove more, but for the limits.
        let (mut low, mut high) = (0, others.len());
        let mut best = None;
        while low <= high {
            let count = low + (high - low) / 2;
            match pair.derive(&with(count)) {
                Some(found) => {
                    best = Some((count, found.explanation));
                    match count.checked_sub(1) {
                        Some(less) => high = less,
                        None => break,
                    }
                }
                None => low = count + 1,
            }
        }
        if stop() {
            return None;
        }
        let (count, mut explanation) = best.unwrap_or((others.len(), first.explanation));
        explanation.rules = with(count).into_iter().map(str::to_owned).collect();
        Some(explanation)
    })
}

/// What is to be shown equal.
struct Pair<'a> {
    program: &'a Program,
    expression: &'a Program,
    limits: &'a Limits,
    stop: &'a (dyn Fn() -> bool + Sync),
}

/// A derivation, and how often each rule made a union on the way.
struct Derived {
    explanation: Explanation,
    uses: BTreeMap<String, usize>,
}

impl Pair<'_> {
    /// A derivation by some of the rules.
    fn derive(&self, names: &[&str]) -> Option<Derived> {
        let Self {
            program,
            expression,
            limits,
            stop,
        } = *self;
        let embedded = convert::embed(program);
        let mut graph = embedded.graph;
        graph.analysis.log = Some(Vec::new());
        let goals = convert::add(&mut graph, expression);
        graph.rebuild();
        let rules: Vec<_> = RULES
            .iter()
            .filter(|r| names.contains(&r.name))
            .filter_map(|r| egraph::rewrite(r.name, r.roots, r.rewriting, limits.nodes))
            .collect();
        let reached = |g: &EGraph| {
            goals.len() == embedded.roots.len()
                && (goals.iter().zip(&embedded.roots)).all(|(x, y)| g.find(*x) == g.find(*y))
        };
        for _ in 0..limits.iterations {
            if stop() {
                return None;
            }
            if reached(&graph) || graph.analysis.contradiction {
                break;
            }
            graph = egraph::saturate(graph, &rules, limits.nodes, 1);
        }
        if !reached(&graph) || graph.analysis.contradiction {
            return None;
        }
        let log = graph.analysis.log.take().unwrap_or_default();
        let mut uses = BTreeMap::new();
        for union in &log {
            *uses.entry(union.rule.to_string()).or_default() += 1;
        }
        let mut closure = Closure::new(graph.nodes(), &log);
        let mut used = BTreeSet::new();
        for (x, y) in goals.iter().zip(&embedded.roots) {
            closure.explain(usize::from(*x), usize::from(*y), &mut used)?;
        }
        let symbols: Vec<String> = program
            .parameters()
            .map(|(_, name, _, _)| name.to_owned())
            .collect();
        let axes: Vec<String> = program.axes.iter().map(|a| a.name.clone()).collect();
        let names = term::Names {
            symbols: &symbols,
            axes: &axes,
        };
        let steps = used
            .into_iter()
            .map(|n| {
                let (left, right) = closure.unions[n];
                Step {
                    rule: log[n].rule.to_string(),
                    left: closure.text(left, &names, DEPTH).1,
                    right: closure.text(right, &names, DEPTH).1,
                }
            })
            .collect();
        let explanation = Explanation {
            rules: Vec::new(),
            steps,
        };
        Some(Derived { explanation, uses })
    }
}

/// Operators of a term that are shown below its top.
const DEPTH: usize = 3;

/// Why two terms are equal.
#[derive(Clone, Debug)]
enum Reason {
    /// The union of this number.
    Union(usize),
    /// The same operation of operands that are equal in these pairs.
    Congruence(Vec<(usize, usize)>),
}

/// A congruence closure with its proof forest.
struct Closure {
    nodes: Vec<Enode>,
    /// The two terms of each union.
    unions: Vec<(usize, usize)>,
    /// Union-find, with paths halved.
    parent: Vec<usize>,
    size: Vec<usize>,
    /// Of each representative: the terms that have an operand in its class.
    users: Vec<Vec<usize>>,
    table: HashMap<(Kind, Vec<usize>), usize>,
    /// The proof forest: an edge to the next term on the way to the root.
    proof: Vec<Option<(usize, Reason)>>,
}

impl Closure {
    fn new(nodes: &[Enode], log: &[Union]) -> Self {
        let mut all = nodes.to_vec();
        let mut unions = Vec::with_capacity(log.len());
        for union in log {
            let left = match &union.found {
                Found::Class(id) => usize::from(*id),
                Found::Node(node) => {
                    all.push(node.clone());
                    all.len() - 1
                }
            };
            unions.push((left, usize::from(union.given)));
        }
        let count = all.len();
        let mut closure = Self {
            nodes: all,
            unions,
            parent: (0..count).collect(),
            size: vec![1; count],
            users: vec![Vec::new(); count],
            table: HashMap::new(),
            proof: vec![None; count],
        };
        let mut pending = Vec::new();
        for term in 0..count {
            for child in closure.nodes[term].children() {
                closure.users[usize::from(*child)].push(term);
            }
        }
        for term in 0..count {
            closure.enter(term, &mut pending);
        }
        closure.settle(&mut pending);
        for n in 0..closure.unions.len() {
            let (left, right) = closure.unions[n];
            pending.push((left, right, Reason::Union(n)));
            closure.settle(&mut pending);
        }
        closure
    }

    fn find(&mut self, mut x: usize) -> usize {
        while self.parent[x] != x {
            self.parent[x] = self.parent[self.parent[x]];
            x = self.parent[x];
        }
        x
    }

    /// The operands, ordered so that those of congruent terms correspond.
    fn ordered(&mut self, term: usize) -> Vec<(usize, usize)> {
        let node = self.nodes[term].clone();
        let mut all: Vec<(usize, usize)> = node
            .args
            .iter()
            .map(|a| (self.find(usize::from(*a)), usize::from(*a)))
            .collect();
        if node.kind.commutes() {
            all.sort_unstable();
        }
        all
    }

    /// Looks a term up by the classes of its operands; one that is there already is congruent.
    fn enter(&mut self, term: usize, pending: &mut Vec<(usize, usize, Reason)>) {
        let operands = self.ordered(term);
        let key = (
            self.nodes[term].kind.clone(),
            operands.iter().map(|o| o.0).collect(),
        );
        match self.table.get(&key).copied() {
            None => {
                self.table.insert(key, term);
            }
            Some(other) if other == term => {}
            Some(other) => {
                let others = self.ordered(other);
                let pairs = operands.iter().zip(&others).map(|(x, y)| (x.1, y.1));
                pending.push((term, other, Reason::Congruence(pairs.collect())));
            }
        }
    }

    fn settle(&mut self, pending: &mut Vec<(usize, usize, Reason)>) {
        while let Some((x, y, reason)) = pending.pop() {
            let (mut a, mut b) = (self.find(x), self.find(y));
            if a == b {
                continue;
            }
            self.link(x, y, reason);
            if self.size[a] < self.size[b] {
                std::mem::swap(&mut a, &mut b);
            }
            self.parent[b] = a;
            self.size[a] += self.size[b];
            let users = std::mem::take(&mut self.users[b]);
            for user in &users {
                self.enter(*user, pending);
            }
            self.users[a].extend(users);
        }
    }

    /// Adds an edge: the smaller tree is turned so that its end is the root.
    fn link(&mut self, x: usize, y: usize, reason: Reason) {
        let (a, b) = (self.find(x), self.find(y));
        let (from, to) = if self.size[a] <= self.size[b] {
            (x, y)
        } else {
            (y, x)
        };
        let (mut at, mut turned) = (from, None);
        while let Some((up, why)) = std::mem::replace(&mut self.proof[at], turned) {
            turned = Some((at, why));
            at = up;
        }
        self.proof[from] = Some((to, reason));
    }

    /// Collects the unions by which two terms are equal; `None` if they are not.
    fn explain(&mut self, x: usize, y: usize, used: &mut BTreeSet<usize>) -> Option<()> {
        let mut open = vec![(x, y)];
        let mut seen = BTreeSet::new();
        while let Some((x, y)) = open.pop() {
            if x == y || !seen.insert((x, y)) {
                continue;
            }
            let path = |from: usize| {
                let mut path = vec![from];
                let mut at = from;
                while let Some((up, _)) = &self.proof[at] {
                    at = *up;
                    path.push(at);
                }
                path
            };
            let (mut up, mut down) = (path(x), path(y));
            if up.last() != down.last() {
                return None;
            }
            while up.len() > 1 && down.len() > 1 && up[up.len() - 2] == down[down.len() - 2] {
                up.pop();
                down.pop();
            }
            for side in [&up, &down] {
                for at in &side[..side.len() - 1] {
                    match &self.proof[*at] {
                        Some((_, Reason::Union(n))) => {
                            used.insert(*n);
                        }
                        Some((_, Reason::Congruence(pairs))) => open.extend(pairs),
                        None => {}
                    }
                }
            }
        }
        Some(())
    }

    fn text(&self, term: usize, names: &term::Names<'_>, depth: usize) -> (Enode, String) {
        let node = self.nodes[term].clone();
        if depth == 0 && !node.args.is_empty() {
            return (node, "…".to_owned());
        }
        let text = term::write(
            &node,
            &mut |id| self.text(usize::from(id), names, depth - 1),
            names,
        );
        (node, text)
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the rules that are left out. Without a rule that a proof uses and nothing replaces, there is no proof.
    use super::*;
    use crate::forms::extract::expressions;

    fn program(text: &str) -> Program {
        let text = format!("program p\n{text}\n");
        ir::parse(&text, "p").unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn a_proof_names_its_rules() {
        let axes = "axis i = 4, j = 8, k = 16";
        for (left, right, rule) in [
            ("x * sum(y; k)", "sum(x * y; k)", "sum-eliminate"),
            ("exp(x) * exp(z)", "exp(z + x)", "exp-gather"),
            ("(x + z) + 2 * x", "z + 3 * x", "like-terms"),
            ("max(z + y; k)", "z + max(y; k)", "max-pull"),
        ] {
            let made = |value: &str| {
                program(&format!(
                    "{axes}\nx = parameter f32 [i]\ny = parameter f32 [j, k]\nz = parameter f32 [i]\n\
                     a = {value}\nreturn f32 [i, j] a + 0 * sum(y; k)"
                ))
            };
            let (left, right) = (made(left), made(right));
            let found = explain(&left, &right, &Limits::default(), &|| false).expect("a proof");
            assert!(found.counted().contains_key(rule), "{found:#?}");
            assert!(found.steps.len() < 12, "{found:#?}");
            assert_eq!(
                explain(&left, &left, &Limits::default(), &|| false),
                Some(Explanation::default())
            );
        }
        let x = program("axis i = 4\nx = parameter f32 [i]\nreturn f32 [i] x");
        let y = program("axis i = 4\nx = parameter f32 [i]\nreturn f32 [i] x + 1");
        assert_eq!(explain(&x, &y, &Limits::default(), &|| false), None);
    }

    #[test]
    fn what_is_extracted_can_be_explained() {
        let normalised = "axis t = 16, m = 64, n = 32\nx = parameter f16 [t, m]\ng = parameter f16 [m]\nw = parameter f16 [m, n]\n\
                    return f16 [t, n] dot(rms_norm(x; m, 1e-5) * g, w; m)";
        let chain = "axis i = 16, j = 8, k = 16, l = 4\na = parameter f16 [i, j]\nb = parameter f16 [j, k]\nc = parameter f16 [k, l]\n\
                    return f16 [i, l] dot(dot(a, b; j), c; k)";
        let (mut explained, mut needed) = (0, 0);
        for text in [normalised, chain] {
            let program = program(text);
            for form in expressions(&program, &Limits::default(), 6) {
                let found = explain(&program, &form.program, &Limits::default(), &|| false);
                let found = found.unwrap_or_else(|| panic!("no proof of\n{}", form.program));
                explained += usize::from(!found.steps.is_empty());
                // The rules that it names are enough: with them alone the two are equal.
                assert!(
                    holds_with(&program, &form.program, &found.rules),
                    "{found:#?}"
                );
                let mut less = found.rules.clone();
                if let Some(most) = found.counted().into_keys().next() {
                    less.retain(|name| name != most);
                    needed += usize::from(!holds_with(&program, &form.program, &less));
                }
            }
        }
        assert!(explained >= 3 && needed >= 2, "{explained} {needed}");
    }

    /// Whether a few rules alone show that two programs are equal.
    fn holds_with(x: &Program, y: &Program, names: &[String]) -> bool {
        let embedded = convert::embed(x);
        let mut graph = embedded.graph;
        let goals = convert::add(&mut graph, y);
        graph.rebuild();
        let rules: Vec<_> = RULES
            .iter()
            .filter(|r| names.iter().any(|n| n == r.name))
            .filter_map(|r| egraph::rewrite(r.name, r.roots, r.rewriting, 20_000))
            .collect();
        let graph = egraph::saturate(graph, &rules, 20_000, 10);
        (goals.iter().zip(&embedded.roots)).all(|(x, y)| graph.find(*x) == graph.find(*y))
    }
}

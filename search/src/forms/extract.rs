//! The expressions of a program: saturation, and extraction of the cheapest different forms.
//!
//! Extraction is over DAGs: a shared value is paid once. A first choice by tree costs is improved by local search on the
//! DAG's cost; perturbed prices give different forms. Costs are operations weighted by the extents. They are no
//! prediction of a kernel's time: they only rank forms before tiling, which prices memory and fusion.
//!
//! *Fragility.* Algebra knows no overflow, so forms that floating point would pay for dearly are priced out: an `exp` of
//! something without a known upper bound, a quotient by something not bounded away from zero, a logarithm likewise, and a
//! difference that the program writes as something visibly non-negative. What the program itself contains is not priced.
//! What bounds do not show, numbers do: whoever asks for forms may look at each and refuse it, and what the refused ones lose their
//! digits in is priced out for the forms that follow.

mod select;

use crate::egraph;
use crate::egraph::convert::{self, Embedded};
use crate::rules::{self, Numerics, Tier};
use ir::Program;
use select::Market;

/// Bounds of the search for expressions: counts, so that a run repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The e-nodes after which no rule is applied any more.
    pub nodes: usize,
    /// The rounds of rule application.
    pub iterations: usize,
}

impl Default for Limits {
    /// Enough for saturated attention; about a second.
    fn default() -> Self {
        Self {
            nodes: 12_000,
            iterations: 8,
        }
    }
}

/// A form of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    /// The same function of the same parameters.
    pub program: Program,
    /// Operations, weighted by what they cost and by the extents.
    pub work: f64,
    /// Whether it rounds as the program does.
    pub numerics: Numerics,
}

/// Who looks at a form before it counts, and says whether it is known to lose nothing that the program keeps: `Err` with the relative error of each of its values where it loses what the program keeps,
/// infinite where it overflows; empty where it is refused for something else.
pub type Judge<'a> = dyn FnMut(&Program) -> Result<bool, Vec<f64>> + 'a;

/// So many choices are made for each form that is wanted: many are alike.
const TRIES: usize = 6;
/// Programs of more nodes than this get the core rules only.
const WIDE_NODES: usize = 96;

/// At most `k` different expressions of a program, cheapest first; the program itself is always among them.
///
/// Parameters, outputs and axes are the program's. Deterministic.
pub fn expressions(program: &Program, limits: &Limits, k: usize) -> Vec<Expression> {
    judged(program, limits, k, &|| false, &mut |_| Ok(true))
}

/// As [`expressions`], without the forms that are refused. The program itself is not asked about. `stop` ends it: what was found until
/// then is given.
pub fn judged(
    program: &Program,
    limits: &Limits,
    k: usize,
    stop: &dyn Fn() -> bool,
    judge: &mut Judge<'_>,
) -> Vec<Expression> {
    let plain = convert::embed(program);
    let own = Market::new(&plain, 0.0).own_work();
    let mut itself = Expression {
        program: program.clone(),
        work: own,
        numerics: Numerics::Exact,
    };
    let tier = if program.nodes.len() > WIDE_NODES {
        Tier::Core
    } else {
        Tier::Wide
    };
    let Embedded {
        graph,
        roots,
        originals,
    } = plain;
    let rules = rules::rewrites(tier, limits.nodes);
    let graph = egraph::saturate(graph, &rules, limits.nodes, limits.iterations);
    tracing::debug!(
        nodes = graph.total_number_of_nodes(),
        classes = graph.number_of_classes(),
        "saturated"
    );
    if graph.analysis.contradiction {
        tracing::error!("two different constants were found equal: no expression is trusted");
        return vec![itself];
    }
    let saturated = Embedded {
        graph,
        roots,
        originals,
    };
    // Dearer than any honest form, but finite, so that a program that is fragile itself still has a price.
    let fragile = 100.0 * own + 1.0;
    let mut market = Market::new(&saturated, fragile);
    // Priced beside its rivals: what could be pulled out of a contraction shows only now.
    itself.work = market.own_work();
    let mut found = vec![itself];
    let mut accept = |form: &Program, work: f64| {
        if let Err(faults) = form.validate() {
            tracing::debug!(?faults, "an extracted form is ill-formed");
            return Err(Vec::new());
        }
        if work >= fragile {
            return Err(Vec::new());
        }
        if form.nodes == program.nodes {
            return Ok(true);
        }
        judge(form)
    };
    let mut unknown: Vec<Expression> = Vec::new();
    for (form, work, is_known) in market.forms(program, TRIES * k + 2, fragile, stop, &mut accept) {
        if !found.iter().any(|e| e.program.nodes == form.nodes) {
            let list = if is_known { &mut found } else { &mut unknown };
            list.push(Expression {
                program: form,
                work,
                numerics: Numerics::Real,
            });
        }
    }
    found.sort_by(|x, y| x.work.total_cmp(&y.work).then(x.numerics.cmp(&y.numerics)));
    if let Some(at) = found
        .iter()
        .position(|e| e.numerics == Numerics::Exact)
        .filter(|at| *at >= k)
    {
        let itself = found.remove(at);
        found.truncate(k.saturating_sub(1));
        found.push(itself);
    }
    found.truncate(k.max(1));
    // Of what is not known to lose nothing, what is left room for.
    unknown.sort_by(|x, y| x.work.total_cmp(&y.work));
    unknown.truncate(k.saturating_sub(found.len()));
    found.append(&mut unknown);
    found
}

#[cfg(test)]
mod tests;

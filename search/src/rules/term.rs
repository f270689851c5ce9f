//! Terms of an e-graph as text, in the language of programs; for people, not for parsing.

use crate::egraph::enode::{Enode, Kind};
use crate::egraph::facts::EGraph;
use egg::Id;
use ir::{AxisId, AxisSet};

/// What symbols and axes are called. Those beyond the lists are called `x4` and `a4`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names<'a> {
    pub(crate) symbols: &'a [String],
    pub(crate) axes: &'a [String],
}

impl Names<'_> {
    pub(crate) fn symbol(&self, k: u32) -> String {
        let known = self.symbols.get(k as usize);
        known.map_or_else(|| format!("x{k}"), Clone::clone)
    }

    pub(crate) fn axis(&self, a: AxisId) -> String {
        let known = self.axes.get(a.index());
        known.map_or_else(|| format!("a{}", a.0), Clone::clone)
    }
}

/// The first form of a class.
pub(crate) fn text(g: &EGraph, id: Id, names: &Names<'_>) -> String {
    expand(g, id, names).1
}

fn expand(g: &EGraph, id: Id, names: &Names<'_>) -> (Enode, String) {
    let node = g[id].nodes[0].clone();
    let text = write(&node, &mut |id| expand(g, id, names), names);
    (node, text)
}

/// One node, its operands by `operand`: the node (to know whether it needs brackets) and the text.
pub(crate) fn write(
    node: &Enode,
    operand: &mut dyn FnMut(Id) -> (Enode, String),
    names: &Names<'_>,
) -> String {
    let axes = |set: &AxisSet| -> String {
        let all: Vec<String> = set.iter().map(|a| names.axis(a)).collect();
        all.join(", ")
    };
    let mut texts: Vec<(Enode, String)> = node.args.iter().map(|a| operand(*a)).collect();
    let mut list = |separator: &str, bracket: &dyn Fn(&Kind) -> bool| -> String {
        let all: Vec<String> = texts
            .drain(..)
            .map(|(n, t)| {
                if bracket(&n.kind) {
                    format!("({t})")
                } else {
                    t
                }
            })
            .collect();
        all.join(separator)
    };
    let never = |_: &Kind| false;
    match &node.kind {
        Kind::Symbol(k) => names.symbol(*k),
        Kind::Constant(c) => c.get().to_string(),
        Kind::Iota(a) => format!("iota({})", names.axis(*a)),
        Kind::View { map, fill } => {
            let map: Vec<String> = map
                .iter()
                .map(|(a, place)| {
                    let f = place.function();
                    let mut terms: Vec<String> = f
                        .terms()
                        .iter()
                        .map(|(c, b)| match c {
                            1 => names.axis(*b),
                            c => format!("{c}*{}", names.axis(*b)),
                        })
                        .collect();
                    if f.offset != 0 || terms.is_empty() {
                        terms.push(f.offset.to_string());
                    }
                    let times = match place.divisor() {
                        1 => String::new(),
                        divisor => format!("{divisor}*"),
                    };
                    format!("{times}{} -> {}", names.axis(*a), terms.join(" + "))
                })
                .collect();
            let fill = fill.map_or_else(String::new, |c| format!("; fill = {}", c.get()));
            format!("view({}; {}{fill})", list("", &never), map.join(", "))
        }
        Kind::Add => list(" + ", &never),
        Kind::Mul => list(" * ", &|k| matches!(k, Kind::Add | Kind::Inv)),
        Kind::Max => format!("max({})", list(", ", &never)),
        Kind::Inv => format!(
            "1 / {}",
            list("", &|k| { matches!(k, Kind::Add | Kind::Mul | Kind::Inv) })
        ),
        Kind::Function(function) => format!("{}({})", function.name(), list(", ", &never)),
        Kind::Select => format!("select({})", list(", ", &never)),
        Kind::Sum(a) => format!("sum({}; {})", list("", &never), axes(a)),
        Kind::Product(a) => format!("prod({}; {})", list("", &never), axes(a)),
        Kind::Maximum(a) => format!("max({}; {})", list("", &never), axes(a)),
    }
}

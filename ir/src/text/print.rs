//! Programs to text: sugar expanded, one binding a line, shared values bound once.

use crate::affine::{Affine, Quotient};
use crate::axes::AxisSet;
use crate::program::{Dim, MapOp, Node, NodeId, Op, Program};
use std::collections::BTreeSet;
use std::fmt;

/// Deepest nesting and longest text that is written in line; what exceeds it gets a name.
const MAX_DEPTH: usize = 6;
const MAX_LENGTH: usize = 100;

/// How tightly an expression binds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tightness {
    Sum,
    Product,
    Sign,
    Atom,
}

/// The text of one value where it is used.
#[derive(Clone)]
struct Text {
    text: String,
    tightness: Tightness,
    depth: usize,
    literal: bool,
}

impl Text {
    fn new(text: String, tightness: Tightness, depth: usize) -> Self {
        Self {
            text,
            tightness,
            depth,
            literal: false,
        }
    }

    /// In brackets, unless it binds at least as tightly as `least`.
    fn at(&self, least: Tightness) -> String {
        if self.tightness >= least {
            self.text.clone()
        } else {
            format!("({})", self.text)
        }
    }
}

/// A number as programs write it: the shortest text that reads back as the same number.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:?}");
    match text.strip_suffix(".0") {
        Some(integer) => integer.to_owned(),
        None => text,
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}", self.name)?;
        if !self.axes.is_empty() {
            let axes: Vec<String> = self
                .axes
                .iter()
                .map(|a| format!("{} = {}", a.name, a.extent))
                .collect();
            writeln!(f, "axis {}", axes.join(", "))?;
        }
        let mut uses = vec![0usize; self.nodes.len()];
        let used = self.nodes.iter().flat_map(|n| n.args.iter());
        for id in used.chain(self.outputs.iter().map(|o| &o.value)) {
            if let Some(count) = uses.get_mut(id.index()) {
                *count += 1;
            }
        }
        let mut names: BTreeSet<&str> = self
            .nodes
            .iter()
            .filter_map(|n| n.name.as_deref())
            .collect();
        names.insert("");
        let mut fresh = 0;
        let mut texts: Vec<Text> = Vec::with_capacity(self.nodes.len());
        for (node, uses) in self.nodes.iter().zip(uses) {
            let text = node_text(self, node, &texts);
            let leaf = matches!(node.op, Op::Constant(_) | Op::Iota(_));
            let large = text.depth > MAX_DEPTH || text.text.len() > MAX_LENGTH;
            let name = match &node.name {
                Some(name) => name.clone(),
                None if !leaf && (uses > 1 || large) => loop {
                    let candidate = format!("_{fresh}");
                    fresh += 1;
                    if !names.contains(candidate.as_str()) {
                        break candidate;
                    }
                },
                None => {
                    texts.push(text);
                    continue;
                }
            };
            writeln!(f, "{name} = {}", text.text)?;
            texts.push(Text::new(name, Tightness::Atom, 0));
        }
        let outputs: Vec<String> = self
            .outputs
            .iter()
            .map(|o| {
                format!(
                    "{} {} {}",
                    o.dtype.name(),
                    dims_text(self, &o.dims),
                    of(&texts, o.value).text
                )
            })
            .collect();
        writeln!(f, "return {}", outputs.join(", "))
    }
}

fn of(texts: &[Text], id: NodeId) -> Text {
    texts
        .get(id.index())
        .cloned()
        .unwrap_or_else(|| Text::new("?".to_owned(), Tightness::Atom, 0))
}

/// `[b, (h d)]`
pub(crate) fn dims_text(program: &Program, dims: &[Dim]) -> String {
    let dims: Vec<String> = dims
        .iter()
        .map(|d| {
            let names: Vec<&str> = d.0.iter().map(|a| program.axis_name(*a)).collect();
            if names.len() == 1 {
                names.concat()
            } else {
                format!("({})", names.join(" "))
            }
        })
        .collect();
    format!("[{}]", dims.join(", "))
}

fn axes_text(program: &Program, axes: &AxisSet) -> String {
    let names: Vec<&str> = axes.iter().map(|a| program.axis_name(a)).collect();
    names.join(", ")
}

/// `4*oh + kh - 2`, `(o - k) / 2`
pub(crate) fn quotient_text<'a>(
    index: &Quotient,
    name: impl Fn(crate::axes::AxisId) -> &'a str,
) -> String {
    let function = affine_text(index.function(), name);
    match index.divisor() {
        1 => function,
        divisor => format!("({function}) / {divisor}"),
    }
}

/// `4*oh + kh - 2`
pub(crate) fn affine_text<'a>(
    affine: &Affine,
    name: impl Fn(crate::axes::AxisId) -> &'a str,
) -> String {
    let mut text = String::new();
    let mut join = |negative: bool, part: String| {
        match (text.is_empty(), negative) {
            (true, false) => {}
            (true, true) => text.push('-'),
            (false, false) => text.push_str(" + "),
            (false, true) => text.push_str(" - "),
        }
        text.push_str(&part);
    };
    for (coefficient, axis) in affine.terms() {
        let size = coefficient.unsigned_abs();
        let part = if size == 1 {
            name(*axis).to_owned()
        } else {
            format!("{size}*{}", name(*axis))
        };
        join(*coefficient < 0, part);
    }
    if affine.offset != 0 || affine.terms().is_empty() {
        join(affine.offset < 0, affine.offset.unsigned_abs().to_string());
    }
    text
}

fn node_text(program: &Program, node: &Node, texts: &[Text]) -> Text {
    let args: Vec<Text> = node.args.iter().map(|a| of(texts, *a)).collect();
    let depth = 1 + args.iter().map(|a| a.depth).max().unwrap_or(0);
    let listed: Vec<&str> = args.iter().map(|a| a.text.as_str()).collect();
    let listed = listed.join(", ");
    let call = |text: String| Text::new(text, Tightness::Atom, depth);
    match &node.op {
        Op::Parameter { dtype, dims, .. } => call(format!(
            "parameter {} {}",
            dtype.name(),
            dims_text(program, dims)
        )),
        Op::Constant(value) => {
            let tightness = if value.is_sign_negative() {
                Tightness::Sign
            } else {
                Tightness::Atom
            };
            Text {
                literal: true,
                ..Text::new(number(*value), tightness, 0)
            }
        }
        Op::Iota(axis) => call(format!("iota({})", program.axis_name(*axis))),
        Op::View { map, fill } => {
            let items: Vec<String> = map
                .iter()
                .map(|(axis, at)| {
                    let index = affine_text(at.function(), |a| program.axis_name(a));
                    let times = match at.divisor() {
                        1 => String::new(),
                        divisor => format!("{divisor}*"),
                    };
                    format!("{times}{} -> {index}", program.axis_name(*axis))
                })
                .collect();
            let fill = fill.map_or(String::new(), |f| format!("; fill = {}", number(f)));
            call(format!("view({listed}; {}{fill})", items.join(", ")))
        }
        Op::Map(op) => map_text(program, node, *op, &args, depth, &listed),
        Op::Reduce { op, axes } => {
            let name = op.name();
            call(format!("{name}({listed}; {})", axes_text(program, axes)))
        }
        Op::Dot { axes } => call(format!("dot({listed}; {})", axes_text(program, axes))),
    }
}

/// Whether a value is the number −1, named or not.
fn is_minus_one(program: &Program, id: Option<&NodeId>) -> bool {
    let op = id.and_then(|i| program.nodes.get(i.index())).map(|n| &n.op);
    matches!(op, Some(Op::Constant(c)) if *c == -1.0)
}

fn map_text(
    program: &Program,
    node: &Node,
    op: MapOp,
    args: &[Text],
    depth: usize,
    listed: &str,
) -> Text {
    use Tightness::{Product, Sign, Sum};
    let call = |name: &str| Text::new(format!("{name}({listed})"), Tightness::Atom, depth);
    let infix = |sign: &str, own: Tightness, right: Tightness| match args {
        [x, y] => Text::new(format!("{} {sign} {}", x.at(own), y.at(right)), own, depth),
        _ => call(op.name()),
    };
    match (op, args) {
        // A sum whose right side is written `-y` in line is a difference.
        (MapOp::Add, [x, y]) => match y.text.strip_prefix('-') {
            Some(rest) if y.tightness == Sign && !y.literal => {
                Text::new(format!("{} - {rest}", x.at(Sum)), Sum, depth)
            }
            Some(_) | None => infix("+", Sum, Product),
        },
        (MapOp::Mul, [_, y]) if is_minus_one(program, node.args.first()) && !y.literal => {
            Text::new(format!("-{}", y.at(Sign)), Sign, depth)
        }
        (MapOp::Mul, _) => infix("*", Product, Sign),
        (MapOp::Div, _) => infix("/", Product, Sign),
        (MapOp::Add, _) => call("add"),
        (MapOp::Max | MapOp::Function(_) | MapOp::Select, _) => call(op.name()),
    }
}

//! The property tests of rules, as a library: instances, and the judge of their two sides.
//!
//! Both sides of an instance are evaluated point by point: in f64, and exactly in prime fields wherever the operations have a
//! counterpart there. The judge doesn't know where the sides come from: printed equations, the code of their rows and a user's rules meet
//! the same one.

use super::draw::{self, AXES, Form, Left};
use super::equation::Equation;
use super::{Clause, Rule, outside_brackets, term};
use crate::egraph::enode::{Enode, Kind};
use crate::egraph::facts::EGraph;
use egg::Id;
use ir::field::Residues;
use ir::number::Number;
use ir::random::mix;
use ir::{AxisId, AxisSet, Fact, MapOp};
use std::collections::BTreeMap;
use std::fmt;

/// Instances that are drawn of every equation.
pub const DRAWS: u64 = 120;

/// One instance in so many has an operand more than its equation, where its operation takes any number.
const WIDER: u64 = 8;

/// How often a rule's property test exercised it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Exercise {
    /// Instances on which both sides were compared; of a rule of the table those whose right side its code made.
    pub instances: u64,
    /// Points at which the sides agreed in f64.
    pub floating: u64,
    /// Points at which they agreed exactly, in the prime fields.
    pub exact: u64,
}

/// Why a rule is unsound.
#[derive(Clone, Debug, PartialEq)]
pub struct Counterexample {
    /// The left side.
    pub left: String,
    /// The right side.
    pub right: String,
    /// The extents of the axes.
    pub extents: Vec<(String, u64)>,
    /// Each operand with its elements, as they stand in memory over its axes.
    pub operands: Vec<(String, Vec<String>, Vec<f64>)>,
    /// The point at which the sides differ.
    pub at: Vec<(String, u64)>,
    /// The values of the two sides there.
    pub values: (f64, f64),
    /// Whether only the prime fields tell them apart: in f64 they are within rounding of each other.
    pub in_the_field: bool,
    /// The number of the draw: the same number draws the same instance.
    pub draw: u64,
}

/// Why a rule of the table is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// An equation is no sentence of its grammar.
    #[error("its equation cannot be read: {0}")]
    Unread(String),
    /// Two sides differ: the printed ones, or what the code was given and what it made of it.
    #[error("{0}")]
    Differs(Box<Counterexample>),
    /// The code does something else than the equation says.
    #[error(
        "draw {draw}: the code {} of {left}, {}: {clause}",
        if *made { "made the printed right side" } else { "did not make the printed right side" },
        if *made { "where the conditions are not met" } else { "where the conditions are met" },
    )]
    Code {
        /// Whether it made the right side of the left one: where the conditions aren't met, or else did not, where they are.
        made: bool,
        /// The equation.
        clause: Box<Clause>,
        /// What the code was given.
        left: String,
        /// The number of the draw.
        draw: u64,
    },
    /// No draw was one on which the code has anything to do.
    #[error("its code was never seen to do what it says: {0}")]
    Untried(Box<Clause>),
}

/// Characters of a side that are shown.
const LONGEST: usize = 400;
/// Most elements of an operand that are shown.
const SHOWN: usize = 24;

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |pairs: &[(String, u64)]| -> String {
            let all: Vec<String> = pairs.iter().map(|(n, x)| format!("{n} = {x}")).collect();
            if all.is_empty() {
                "no axes".to_owned()
            } else {
                all.join(", ")
            }
        };
        writeln!(f, "draw {}: extents {}", self.draw, list(&self.extents))?;
        for (name, axes, values) in &self.operands {
            let mut shown: Vec<String> =
                values.iter().take(SHOWN).map(ToString::to_string).collect();
            if values.len() > SHOWN {
                shown.push("…".to_owned());
            }
            writeln!(f, "  {name}[{}] = {}", axes.join(", "), shown.join(" "))?;
        }
        writeln!(f, "at {}:", list(&self.at))?;
        writeln!(f, "  left  {} = {}", self.left, self.values.0)?;
        write!(f, "  right {} = {}", self.right, self.values.1)?;
        if self.in_the_field {
            write!(
                f,
                "\n  in f64 these are within rounding, but in a prime field they differ"
            )?;
        }
        Ok(())
    }
}

/// What is known of an operand's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Any real number.
    Any,
    /// Any real number, or −∞ as masks write it.
    Masked,
    /// Above zero.
    Positive,
    /// At least zero.
    Nonnegative,
    /// Anything but zero.
    Nonzero,
}

/// An instance of a rule: its two sides, and what their symbols are.
pub(super) struct Instance<'a> {
    pub(super) g: &'a EGraph,
    pub(super) left: Id,
    pub(super) right: Id,
    /// Of every symbol; those beyond the list are [`Sign::Any`].
    pub(super) signs: &'a [Sign],
    /// Names of symbols and axes; others get made-up ones.
    pub(super) names: term::Names<'a>,
    /// The axes that are varied.
    pub(super) axes: AxisSet,
    /// Whether all constants are what they stand for, none rounded: only then are sides compared in the fields.
    pub(super) exact: bool,
    pub(super) draw: u64,
}

/// Large and small operands show rules that hold only near zero; f64 is exact enough for products of four of these.
const SCALES: [f64; 8] = [1.0, 1.0, 1.0, 1.0 / 64.0, 1.0, 64.0, 1.0, 1024.0];
/// Relative difference that is put down to rounding.
const ROUNDING: f64 = 1e-9;

impl Instance<'_> {
    fn scale(&self) -> f64 {
        SCALES[(self.draw % SCALES.len() as u64) as usize]
    }

    /// How often a node is evaluated when the sides are compared: terms are trees here.
    pub(super) fn steps(&self) -> u64 {
        let points = self.g.analysis.elements(&self.axes) as u64;
        let (mut left, mut right) = (BTreeMap::new(), BTreeMap::new());
        let one = self.steps_of(self.left, &mut left) + self.steps_of(self.right, &mut right);
        points.saturating_mul(one.min(u64::MAX / 2))
    }

    fn steps_of(&self, id: Id, known: &mut BTreeMap<Id, u64>) -> u64 {
        let id = self.g.find(id);
        if let Some(steps) = known.get(&id) {
            return *steps;
        }
        let node = &self.g[id].nodes[0];
        let inner = node.args.iter().fold(1u64, |n, a| {
            n.saturating_add(self.steps_of(*a, known)).min(1 << 60)
        });
        let times = match &node.kind {
            Kind::Sum(axes) | Kind::Maximum(axes) | Kind::Product(axes) => {
                self.g.analysis.elements(axes) as u64
            }
            Kind::Symbol(_)
            | Kind::Constant(_)
            | Kind::Iota(_)
            | Kind::View { .. }
            | Kind::Add
            | Kind::Mul
            | Kind::Max
            | Kind::Inv
            | Kind::Function(_)
            | Kind::Select => 1,
        };
        let steps = inner.saturating_mul(times).min(1 << 60);
        known.insert(id, steps);
        steps
    }

    /// Compares the sides at every point, and counts.
    pub(super) fn judge(&self, count: &mut Exercise) -> Result<(), Box<Counterexample>> {
        count.instances += 1;
        let far = self.scale() > 1.0;
        for mut at in points(self.g, &self.axes) {
            let (x, y): (Option<f64>, Option<f64>) = (
                self.value(self.left, &mut at),
                self.value(self.right, &mut at),
            );
            // Lost to overflow or underflow of an exponential, which the reals don't know.
            let (Some(x), Some(y)) = (x, y) else {
                continue;
            };
            // Far from zero products may overflow too, or underflow beneath a logarithm.
            if far && !(x.is_finite() && y.is_finite()) {
                continue;
            }
            // ±∞ by a division by zero is no value of the left side; −∞ by a mask is. What has no value must not gain one.
            let undefined = x.is_nan()
                || x == f64::INFINITY
                || (x == f64::NEG_INFINITY && divides(self.g, self.left));
            if undefined && (y != x || x.is_nan()) {
                if y.is_finite() {
                    return Err(self.refuted(&at, (x, y), false));
                }
                continue;
            }
            let close = x == y || (x - y).abs() <= ROUNDING * (1.0 + x.abs() + y.abs());
            if !close {
                return Err(self.refuted(&at, (x, y), false));
            }
            count.floating += 1;
            if !self.exact {
                continue;
            }
            let exact: (Option<Residues>, Option<Residues>) = (
                self.value(self.left, &mut at),
                self.value(self.right, &mut at),
            );
            if let (Some(l), Some(r)) = exact {
                if l.p != r.p {
                    return Err(self.refuted(&at, (x, y), true));
                }
                count.exact += 1;
            }
        }
        Ok(())
    }

    fn refuted(&self, at: &[u64], values: (f64, f64), in_the_field: bool) -> Box<Counterexample> {
        let algebra = &self.g.analysis;
        let axis = |a: AxisId| self.names.axis(a);
        let operands = (0..algebra.symbols.len() as u32)
            .map(|k| {
                let axes = &algebra.symbols[k as usize];
                let all = points(self.g, axes)
                    .into_iter()
                    .map(|p| self.drawn::<f64>(k, &p))
                    .collect();
                (self.names.symbol(k), axes.iter().map(axis).collect(), all)
            })
            .collect();
        Box::new(Counterexample {
            left: self.text(self.left),
            right: self.text(self.right),
            extents: self
                .axes
                .iter()
                .map(|a| (axis(a), algebra.extent(a)))
                .collect(),
            operands,
            at: self.axes.iter().map(|a| (axis(a), at[a.index()])).collect(),
            values,
            in_the_field,
            draw: self.draw,
        })
    }

    fn text(&self, id: Id) -> String {
        let whole = term::text(self.g, id, &self.names);
        let mut text: String = whole.chars().take(LONGEST).collect();
        if text.len() < whole.len() {
            text.push('…');
        }
        text
    }

    /// The element of a symbol at a point that lists the coordinates of all axes.
    fn drawn<T: Drawn>(&self, symbol: u32, at: &[u64]) -> T {
        let axes = &self.g.analysis.symbols[symbol as usize];
        let mut key = vec![self.draw, u64::from(symbol)];
        key.extend(axes.iter().map(|a| at[a.index()]));
        let sign = self.signs.get(symbol as usize).copied();
        T::drawn(hash(&key), sign.unwrap_or(Sign::Any), self.scale())
    }

    fn value<T: Drawn>(&self, id: Id, at: &mut Vec<u64>) -> Option<T> {
        let g = self.g;
        let node = &g[id].nodes[0];
        let fold = |op: MapOp, at: &mut Vec<u64>| {
            let mut total: Option<T> = None;
            for a in &node.args {
                let x = self.value(*a, at)?;
                total = Some(match total {
                    None => x,
                    Some(t) => T::apply(op, &[t, x])?,
                });
            }
            total
        };
        let plain = |op: MapOp, at: &mut Vec<u64>| {
            let xs: Option<Vec<T>> = node.args.iter().map(|a| self.value(*a, at)).collect();
            T::apply(op, &xs?)
        };
        match &node.kind {
            Kind::Symbol(s) => Some(self.drawn(*s, at)),
            Kind::Constant(c) => T::constant(c.get()),
            Kind::Iota(a) => T::integer(at[a.index()] as i64),
            Kind::View { map, fill } => {
                let mut inner = at.clone();
                for (a, f) in map {
                    let c = f.at(|b| at[b.index()] as i64);
                    let extent = g.analysis.extent(*a) as i64;
                    let Some(c) = c.filter(|c| (0..extent).contains(c)) else {
                        // A view without fill that leaves its source has no value.
                        return T::constant(fill.map_or(f64::NAN, crate::egraph::enode::Real::get));
                    };
                    inner[a.index()] = c as u64;
                }
                self.value(node.args[0], &mut inner)
            }
            Kind::Add => fold(MapOp::Add, at),
            Kind::Mul => fold(MapOp::Mul, at),
            Kind::Max => fold(MapOp::Max, at),
            Kind::Inv => {
                let one = T::constant(1.0)?;
                let x = self.value(node.args[0], at)?;
                T::apply(MapOp::Div, &[one, x])
            }
            Kind::Function(function) => {
                let all = node.args.iter().map(|a| self.value(*a, at));
                let xs = all.collect::<Option<Vec<T>>>()?;
                let y = T::apply(MapOp::Function(*function), &xs)?;
                let lost = function.has(Fact::Positive) && xs.iter().all(|x| T::is_lost(*x, y));
                (!lost).then_some(y)
            }
            Kind::Select => plain(MapOp::Select, at),
            Kind::Sum(axes) | Kind::Maximum(axes) | Kind::Product(axes) => {
                let op = if matches!(node.kind, Kind::Sum(_)) {
                    MapOp::Add
                } else if matches!(node.kind, Kind::Product(_)) {
                    MapOp::Mul
                } else {
                    MapOp::Max
                };
                let mut total: Option<T> = None;
                let mut here = at.clone();
                for point in points(g, axes) {
                    for a in axes.iter() {
                        here[a.index()] = point[a.index()];
                    }
                    let x = self.value(node.args[0], &mut here)?;
                    total = Some(match total {
                        None => x,
                        Some(t) => T::apply(op, &[t, x])?,
                    });
                }
                total
            }
        }
    }
}

/// Reads the equations of a rule of the table, draws instances of each, and judges equation and code.
///
/// Of an instance that meets the conditions the printed sides have to be equal, and the code has to make the right one of the left one;
/// where the conditions are not met it must not. Whatever else the code makes has to be equal as well.
///
/// # Errors
/// The first fault.
pub fn exercise(rule: &Rule) -> Result<Exercise, Fault> {
    let clauses = rule.clauses();
    if clauses.len() < outside_brackets(rule.equation, "; ").len() {
        let what = format!("expected `left = right`, found `{}`", rule.equation);
        return Err(Fault::Unread(what));
    }
    let mut count = Exercise::default();
    for (at, clause) in clauses.iter().enumerate() {
        let of_clause = exercise_clause(rule, at, clause)?;
        count.instances += of_clause.instances;
        count.floating += of_clause.floating;
        count.exact += of_clause.exact;
    }
    Ok(count)
}

/// The same for one equation of a rule and its place among them.
pub(super) fn exercise_clause(rule: &Rule, at: usize, clause: &Clause) -> Result<Exercise, Fault> {
    let equation = Equation::read(clause).map_err(Fault::Unread)?;
    let mut count = Exercise::default();
    for draw in 0..DRAWS {
        // Clauses share no draws.
        let draw = at as u64 * DRAWS + draw;
        if let Some(left) = draw::left(&equation, draw) {
            Trial { rule, clause, draw }.run(left, &mut count)?;
        }
    }
    if count.instances == 0 {
        return Err(Fault::Untried(Box::new(clause.clone())));
    }
    Ok(count)
}

/// One instance of a clause.
struct Trial<'a> {
    rule: &'a Rule,
    clause: &'a Clause,
    draw: u64,
}

impl Trial<'_> {
    fn run(&self, drawn: Left<'_>, count: &mut Exercise) -> Result<(), Fault> {
        let Left {
            g,
            id,
            names,
            other,
        } = drawn;
        // With one more operand the code has more to find, and gives another form than the printed one.
        let kind = &g[id].nodes[0].kind;
        let wider = kind.is_flat() && self.draw.is_multiple_of(WIDER);
        if wider {
            let mut g = g;
            let mut args = g[id].nodes[0].args.clone();
            args.push(other);
            let kind = g[id].nodes[0].kind.clone();
            let wide = g.add(Enode::new(kind, args));
            return self.apply(&mut g, wide, names.is_exact(), count).map(drop);
        }
        let mut printed = g.clone();
        let unread = || Fault::Unread(format!("a name stands for nothing: {}", self.clause.right));
        let plain = names.right(&mut printed, Form::Plain).ok_or_else(unread)?;
        if names.holds {
            self.judge(&printed, id, plain, names.is_exact(), count)?;
        }
        // Code may leave out what changes nothing, and need not.
        let is_right = |g: &mut EGraph| {
            let forms = [Form::Plain, Form::Written];
            let sides: Vec<Id> = forms.iter().filter_map(|f| names.right(g, *f)).collect();
            g.rebuild();
            sides.iter().any(|side| g.find(id) == g.find(*side))
        };
        let trivial = is_right(&mut printed);
        let mut g = g;
        let applied = self.apply(&mut g, id, names.is_exact(), count)?;
        if !applied || trivial {
            return Ok(());
        }
        let made = is_right(&mut g);
        count.instances += u64::from(made);
        if made == names.holds {
            return Ok(());
        }
        Err(Fault::Code {
            made,
            clause: Box::new(self.clause.clone()),
            left: term::text(&printed, id, &term::Names::default()),
            draw: self.draw,
        })
    }

    /// Applies the code to a term, judges what it gives, and makes that equal; whether the term was anything to apply it to.
    fn apply(
        &self,
        g: &mut EGraph,
        id: Id,
        exact: bool,
        count: &mut Exercise,
    ) -> Result<bool, Fault> {
        g.rebuild();
        if g[id].data.constant.is_some() {
            // Folded while it was drawn: no rule is applied to constants.
            return Ok(false);
        }
        let nodes = g[id].nodes.clone();
        let mut sides = Vec::new();
        for node in nodes {
            if self.rule.roots.contains(&node.kind.tag()) {
                sides.extend((self.rule.rewriting)(g, &node));
            }
        }
        // The sides are compared before they are joined, so every class has one form.
        for side in &sides {
            self.judge(g, id, *side, exact, count)?;
        }
        for side in sides {
            g.union(id, side);
        }
        g.rebuild();
        Ok(true)
    }

    fn judge(
        &self,
        g: &EGraph,
        left: Id,
        right: Id,
        exact: bool,
        count: &mut Exercise,
    ) -> Result<(), Fault> {
        let mut points = Exercise::default();
        let instance = Instance {
            g,
            left,
            right,
            signs: &[],
            names: term::Names::default(),
            axes: (0..AXES).map(AxisId).collect(),
            exact,
            draw: self.draw,
        };
        instance.judge(&mut points).map_err(Fault::Differs)?;
        count.floating += points.floating;
        count.exact += points.exact;
        Ok(())
    }
}

/// Values of symbols: a function of symbol, coordinates and draw, so that nothing is stored.
trait Drawn: Number {
    fn drawn(hash: u64, sign: Sign, scale: f64) -> Self;
    fn integer(n: i64) -> Option<Self>;
    /// Whether `f(x) = y > 0` left the range of the numbers.
    fn is_lost(x: Self, y: Self) -> bool;
}

impl Drawn for f64 {
    fn drawn(hash: u64, sign: Sign, scale: f64) -> Self {
        // Eighths in -2 .. 2, zeros among them.
        let x = f64::from((hash % 33) as u32) / 8.0 - 2.0;
        let x = match sign {
            Sign::Any => x,
            Sign::Masked if hash >> 62 == 0 => f64::NEG_INFINITY,
            Sign::Masked => x,
            Sign::Positive => x.abs() + 0.125,
            Sign::Nonnegative => x.abs(),
            Sign::Nonzero if x == 0.0 => 0.125,
            Sign::Nonzero => x,
        };
        x * scale
    }
    fn integer(n: i64) -> Option<Self> {
        Some(n as f64)
    }
    fn is_lost(x: Self, y: Self) -> bool {
        x.is_finite() && (y == 0.0 || y.is_infinite())
    }
}

impl Drawn for Residues {
    fn drawn(hash: u64, _sign: Sign, _scale: f64) -> Self {
        Self::new(hash, mix(hash))
    }
    fn integer(n: i64) -> Option<Self> {
        Some(Self::integer(n))
    }
    fn is_lost(_x: Self, _y: Self) -> bool {
        false
    }
}

fn hash(xs: &[u64]) -> u64 {
    xs.iter().fold(0, |h, x| mix(h ^ x))
}

/// The points over some axes: the coordinates along every axis of the graph, 0 along the others.
fn points(g: &EGraph, axes: &AxisSet) -> Vec<Vec<u64>> {
    axes.iter()
        .fold(vec![vec![0; g.analysis.extents.len()]], |all, a| {
            all.into_iter()
                .flat_map(|p| {
                    (0..g.analysis.extent(a)).map(move |c| {
                        let mut q = p.clone();
                        q[a.index()] = c;
                        q
                    })
                })
                .collect()
        })
}

fn divides(g: &EGraph, id: Id) -> bool {
    let n = &g[id].nodes[0];
    let pole = matches!(n.kind, Kind::Function(f) if f.row().domains.iter().any(|d| d.has_pole()));
    pole || matches!(n.kind, Kind::Inv) || n.args.iter().any(|a| divides(g, *a))
}

//! Choosing one member of every class that is needed.

use crate::egraph;
use crate::egraph::convert::{Embedded, Writer};
use crate::egraph::enode::{Enode, Kind, Tag};
use crate::egraph::facts;
use crate::egraph::facts::EGraph;
use egg::Id;
use ir::{AxisSet, Fact, MapOp, Node, NodeId, Op, Program, ReduceOp};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Operations that one operation counts for, an addition in registers being 1.
const SPECIAL: f64 = 8.0;
const DIVISION: f64 = 6.0;
/// A multiply-add of a contraction with private axes on both sides runs on tensor cores, with one on one side as a
/// matrix-vector product.
const TENSOR: f64 = 0.25;
const VECTOR: f64 = 1.0;
/// An element of a contraction's operand that is computed rather than loaded: it is converted and moved to where
/// instructions read operands from. A factor inside an operand is computed again for every tile of the other side.
const OPERAND: f64 = 8.0;
const FACTOR: f64 = 4.0;
/// A constant factor mostly becomes part of a neighbouring multiply-add or exponential; on an operand it costs what
/// [`OPERAND`] says, and on what a maximum is taken of all that a multiplication does.
const CONSTANT_FACTOR: f64 = 0.125;
/// A factor free of the contracted axes belongs outside, where it is applied once to the result instead of delaying the
/// operand until it is known: priced as a part of the whole contraction, so that it loses to any honest alternative.
const LEFT_INSIDE: f64 = 1.0 / 16.0;
/// An element that is read a second time because something about all elements had to be known first, and they are too many to be held until
/// then.
const PASS: f64 = 4.0;
/// An element of a sum that is too long to be held: what is equal and sums parts that can be is preferred.
const UNHELD: f64 = 0.01;
/// Re-indexing is an address computation.
const VIEW: f64 = 0.25;
/// The rounding of f32, relative.
const SINGLE_ROUNDING: f64 = f32::EPSILON as f64 / 2.0;
/// An error so many times that of the operands is a loss of digits.
const LOSSY: f64 = 16.0;
/// The shares of classes whose prices differ in further choices, in turn: of forms that differ from the best in a few decisions, and in many.
const CHANGED: [f64; 2] = [0.15, 1.0];
/// Forms that reduce, contract and exponentiate the same are kept so many times: they differ in arithmetic that is cheap.
const ALIKE: usize = 1;
/// A share of a form's cost that is not worth another form.
const LITTLE: f64 = 1e-4;
/// Evaluations of whole forms that one local search may spend, and values that they may visit together: a form of thousands of values is
/// not evaluated thousands of times.
const EVALUATIONS: usize = 6_000;
const VISITS: usize = 3_000_000;

/// The factors of a product that make up either operand of a contraction, as positions.
type Sides = (Vec<usize>, Vec<usize>);

/// One way to compute a class.
struct Way {
    node: Enode,
    /// `Some` for a contraction: the factors on either side, as positions in `children`.
    sides: Option<Sides>,
    children: Vec<usize>,
    /// The children that are not small beside the class.
    large: Vec<usize>,
    cost: f64,
    /// Whether the program itself computes the class so.
    original: bool,
}

/// The classes that the outputs may need, each with its ways.
pub(super) struct Market {
    roots: Vec<usize>,
    ways: Vec<Vec<Way>>,
    /// The classes that have a way through this one.
    users: Vec<Vec<usize>>,
    axes: Vec<AxisSet>,
}

type Choice = Vec<usize>;

/// Looks at a form and its cost, as a [`Judge`](super::Judge).
pub(super) type Accept<'a> = dyn FnMut(&Program, f64) -> Result<bool, Vec<f64>> + 'a;

const NONE: usize = usize::MAX;

impl Market {
    /// Every member of every reachable class, with `fragile` added to the price of members that lose to rounding what
    /// the program keeps.
    pub(super) fn new(e: &Embedded, fragile: f64) -> Self {
        let g = &e.graph;
        let originals = e.canonical_originals();
        let mut index: BTreeMap<Id, usize> = BTreeMap::new();
        let mut order: Vec<Id> = Vec::new();
        let mut intern = |id: Id, order: &mut Vec<Id>| {
            let id = g.find(id);
            *index.entry(id).or_insert_with(|| {
                order.push(id);
                order.len() - 1
            })
        };
        let roots = e.roots.iter().map(|r| intern(*r, &mut order)).collect();
        let mut ways = Vec::new();
        let mut at = 0;
        while at < order.len() {
            let class = order[at];
            at += 1;
            let mut here = Vec::new();
            let mut nodes: Vec<Enode> = g[class].nodes.clone();
            nodes.sort();
            for node in nodes {
                if node.args.iter().any(|a| g.find(*a) == class) {
                    continue;
                }
                // A member that mentions more axes than the class has would give its users axes they do not expect.
                if !facts::axes(g, &node).is_subset(&g[class].data.axes) {
                    continue;
                }
                let original = originals.binary_search(&node).is_ok();
                let constant = matches!(node.kind, Kind::Constant(_));
                if g[class].data.constant.is_some() && !constant && !original {
                    continue;
                }
                let price = if !original && is_fragile(g, class, &node) {
                    fragile
                } else {
                    0.0
                };
                for (product, sides, cost) in contractions(g, class, &node) {
                    let factors = product.args.iter();
                    let children: Vec<usize> = factors.map(|f| intern(*f, &mut order)).collect();
                    here.push(Way {
                        large: large(g, class, &product, &children),
                        node: node.clone(),
                        sides: Some(sides),
                        children,
                        cost: cost + price,
                        original: original && originals.binary_search(&product).is_ok(),
                    });
                }
                let children: Vec<usize> =
                    node.args.iter().map(|a| intern(*a, &mut order)).collect();
                let cost = own_cost(g, class, &node) + price;
                here.push(Way {
                    large: large(g, class, &node, &children),
                    node,
                    sides: None,
                    children,
                    cost,
                    original,
                });
            }
            ways.push(here);
        }
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
        for (class, ways) in ways.iter().enumerate() {
            for child in ways.iter().flat_map(|w| &w.children) {
                if users[*child].last() != Some(&class) {
                    users[*child].push(class);
                }
            }
        }
        Self {
            roots,
            ways,
            users,
            axes: order.iter().map(|c| g[*c].data.axes.clone()).collect(),
        }
    }

    /// The cost of the program itself, at the prices of this market.
    pub(super) fn own_work(&self) -> f64 {
        let prices = self.prices();
        let foreign = |w: &Way| if w.original { 0.0 } else { 1e30 };
        let strict: Vec<Vec<f64>> = self
            .ways
            .iter()
            .map(|ws| ws.iter().map(|w| w.cost + foreign(w)).collect())
            .collect();
        let choice = self.greedy(&strict, &[]);
        self.total(&choice, &prices).unwrap_or(f64::INFINITY)
    }

    /// Different forms with their costs and with what `accept` says of them, the cheapest found first. `accept` may refuse a form; what is to blame for that costs
    /// `fragile` more from then on, and as many forms more are tried.
    pub(super) fn forms(
        &mut self,
        source: &Program,
        tries: usize,
        fragile: f64,
        stop: &dyn Fn() -> bool,
        accept: &mut Accept<'_>,
    ) -> Vec<(Program, f64, bool)> {
        let mut rng = ChaCha8Rng::seed_from_u64(0x666f_726d);
        let mut seen: Vec<Program> = Vec::new();
        let mut out: Vec<(Program, f64, bool)> = Vec::new();
        let mut alike: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        let mut plain = true;
        // Forms are to differ in what costs something.
        let mut little = 0.0;
        let mut tries = 0..tries;
        let mut again = tries.len();
        while !stop() && tries.next().is_some() {
            let prices = self.prices();
            let perturbed: Vec<Vec<f64>> = if plain {
                prices.clone()
            } else {
                let share = CHANGED[tries.len() % CHANGED.len()];
                let all = self.ways.iter().zip(&prices);
                all.map(|(ways, prices)| perturbed(ways, prices, share, little, &mut rng))
                    .collect()
            };
            plain = false;
            let choice = self.search(&perturbed);
            let Some(work) = self.total(&choice, &prices) else {
                continue;
            };
            if little == 0.0 {
                little = LITTLE * work;
            }
            let Some((program, places)) = self.write(source, &choice) else {
                continue;
            };
            if seen.iter().any(|p| p.nodes == program.nodes) {
                continue;
            }
            seen.push(program.clone());
            let alike = alike.entry(skeleton(&program)).or_default();
            if *alike >= ALIKE {
                continue;
            }
            match accept(&program, work) {
                Ok(is_known) => {
                    *alike += usize::from(is_known);
                    out.push((program, work, is_known));
                }
                Err(errors) => {
                    if self.blame(&choice, &places, &errors, fragile) && again > 0 {
                        again -= 1;
                        tries.end += 1;
                        // What is cheapest now was not seen.
                        plain = true;
                    }
                }
            }
        }
        out
    }

    /// Prices out what made a form lose its digits: where the error of a value is far above those of its operands and the program does
    /// not compute it so, this way of computing it and the others of its kind. Whether there was any.
    fn blame(
        &mut self,
        choice: &Choice,
        places: &BTreeMap<usize, NodeId>,
        errors: &[f64],
        fragile: f64,
    ) -> bool {
        let error = |class: &usize| {
            let place = places.get(class)?;
            errors.get(place.index()).copied()
        };
        let mut lossy: Vec<(f64, usize)> = Vec::new();
        for class in places.keys() {
            let way = &self.ways[*class][choice[*class]];
            let Some(own) = error(class).filter(|_| !way.original) else {
                continue;
            };
            let before = way.children.iter().filter_map(error);
            let before = before.fold(SINGLE_ROUNDING, f64::max);
            if own > before {
                lossy.push((own / before, *class));
            }
        }
        let worst = lossy.iter().fold(0.0f64, |worst, l| worst.max(l.0));
        // The worst by itself, or all that lose more than a digit.
        lossy.retain(|l| l.0 >= worst.min(LOSSY));
        for (_, class) in &lossy {
            let way = &self.ways[*class][choice[*class]];
            let (tag, sides) = (way.node.kind.tag(), way.sides.is_some());
            for other in &mut self.ways[*class] {
                let alike = other.node.kind.tag() == tag && other.sides.is_some() == sides;
                if !other.original && alike && other.cost < fragile {
                    other.cost += fragile;
                }
            }
        }
        !lossy.is_empty()
    }

    fn prices(&self) -> Vec<Vec<f64>> {
        self.ways
            .iter()
            .map(|ws| ws.iter().map(|w| w.cost).collect())
            .collect()
    }

    /// The cheapest way of every class by tree costs; classes in `paid` cost their users nothing.
    fn greedy(&self, prices: &[Vec<f64>], paid: &[bool]) -> Choice {
        let n = self.ways.len();
        let mut best = vec![f64::INFINITY; n];
        let mut choice = vec![NONE; n];
        // Costs only fall, and every way's cost is at least its children's: as many rounds as a form is deep, of what a child of fell.
        let mut due = vec![true; n];
        for _ in 0..n.max(1) {
            let mut changed = false;
            for c in (0..n).rev() {
                if !std::mem::take(&mut due[c]) {
                    continue;
                }
                for (i, way) in self.ways[c].iter().enumerate() {
                    let children = way.children.iter().map(|k| {
                        if best[*k].is_finite() && paid.get(*k) == Some(&true) {
                            0.0
                        } else {
                            best[*k]
                        }
                    });
                    // A little for each step, so that free steps cannot form a circle.
                    let cost = prices[c][i] + 1e-3 + children.sum::<f64>();
                    if cost < best[c] {
                        best[c] = cost;
                        choice[c] = i;
                        changed = true;
                        for user in &self.users[c] {
                            due[*user] = true;
                        }
                    }
                }
            }
            if !changed {
                break;
            }
        }
        choice
    }

    /// The needed classes, children first; `None` if the choice is circular or incomplete.
    fn needed(&self, choice: &Choice) -> Option<Vec<usize>> {
        // 0: unseen, 1: open, 2: done
        let mut state = vec![0_u8; self.ways.len()];
        let mut order = Vec::new();
        let mut stack: Vec<(usize, usize)> = Vec::new();
        for root in &self.roots {
            if state[*root] == 0 {
                state[*root] = 1;
                stack.push((*root, 0));
            }
            while let Some((c, next)) = stack.pop() {
                let way = self.ways[c].get(choice[c])?;
                match way.children.get(next) {
                    None => {
                        state[c] = 2;
                        order.push(c);
                    }
                    Some(k) => {
                        stack.push((c, next + 1));
                        match state[*k] {
                            0 => {
                                state[*k] = 1;
                                stack.push((*k, 0));
                            }
                            1 => return None,
                            _ => {}
                        }
                    }
                }
            }
        }
        Some(order)
    }

    fn total(&self, choice: &Choice, prices: &[Vec<f64>]) -> Option<f64> {
        let needed = self.needed(choice)?;
        Some(needed.into_iter().map(|c| prices[c][choice[c]]).sum())
    }

    /// Greedy, then local search on the DAG's cost: each needed class tries its other ways while the classes that are
    /// not needed hold the choice that is best when everything needed is already paid.
    fn search(&self, prices: &[Vec<f64>]) -> Choice {
        let mut choice = self.greedy(prices, &[]);
        let Some(mut cost) = self.total(&choice, prices) else {
            return choice;
        };
        let mut evaluations = EVALUATIONS;
        for _ in 0..4 {
            let Some(needed) = self.needed(&choice) else {
                break;
            };
            evaluations = evaluations.min(VISITS / needed.len().max(1));
            let mut paid = vec![false; self.ways.len()];
            for c in &needed {
                paid[*c] = true;
            }
            let marginal = self.greedy(prices, &paid);
            for c in 0..choice.len() {
                if !paid[c] {
                    choice[c] = marginal[c];
                }
            }
            let mut improved = false;
            for c in needed.into_iter().rev() {
                let now = choice[c];
                let mut best = now;
                for i in 0..self.ways[c].len() {
                    if i == now || evaluations == 0 {
                        continue;
                    }
                    evaluations -= 1;
                    choice[c] = i;
                    if let Some(t) = self.total(&choice, prices)
                        && t < cost * (1.0 - 1e-9)
                    {
                        cost = t;
                        best = i;
                        improved = true;
                    }
                }
                choice[c] = best;
            }
            if !improved {
                break;
            }
        }
        choice
    }

    /// The program of a choice, and where in it the classes are.
    fn write(
        &self,
        source: &Program,
        choice: &Choice,
    ) -> Option<(Program, BTreeMap<usize, NodeId>)> {
        let needed = self.needed(choice)?;
        let mut w = Writer::new(source);
        let mut made: BTreeMap<usize, NodeId> = BTreeMap::new();
        for c in needed {
            let way = &self.ways[c][choice[c]];
            let args: Option<Vec<NodeId>> =
                way.children.iter().map(|k| made.get(k).copied()).collect();
            let args = args?;
            let id = match (&way.node.kind, &way.sides) {
                (Kind::Sum(axes), Some((left, right))) => {
                    let pick = |side: &[usize]| -> Vec<usize> {
                        side.iter().map(|i| way.children[*i]).collect()
                    };
                    let x = self.product(&mut w, choice, &made, &pick(left))?;
                    let y = self.product(&mut w, choice, &made, &pick(right))?;
                    w.dot(axes, x, y)
                }
                (Kind::Sum(axes), None) => w.reduce(ReduceOp::Sum, axes, args[0]),
                (Kind::Maximum(axes), _) => w.reduce(ReduceOp::Max, axes, args[0]),
                (Kind::Product(axes), _) => w.reduce(ReduceOp::Product, axes, args[0]),
                (Kind::Symbol(k), _) => w.parameter(*k),
                (Kind::Constant(x), _) => w.constant(x.get()),
                (Kind::Iota(a), _) => w.iota(*a),
                (Kind::View { map, fill }, _) => w.view(map, fill.map(|f| f.get()), args[0]),
                (Kind::Add, _) => w.chain(MapOp::Add, args)?,
                (Kind::Max, _) => w.chain(MapOp::Max, args)?,
                (Kind::Mul, _) => self.product(&mut w, choice, &made, &way.children)?,
                (Kind::Inv, _) => {
                    let one = w.constant(1.0);
                    w.map(MapOp::Div, vec![one, args[0]])
                }
                (Kind::Function(function), _) => w.map(MapOp::Function(*function), args),
                (Kind::Select, _) => w.map(MapOp::Select, args),
            };
            made.insert(c, id);
        }
        let values: Option<Vec<NodeId>> = self.roots.iter().map(|r| made.get(r).copied()).collect();
        let (program, new) = prune(w.finish(&values?)?)?;
        made.retain(|_, id| match new.get(id) {
            Some(place) => {
                *id = *place;
                true
            }
            None => false,
        });
        Some((program, made))
    }

    /// A product; an inverse of the product's full size becomes a division.
    fn product(
        &self,
        w: &mut Writer<'_>,
        choice: &Choice,
        made: &BTreeMap<usize, NodeId>,
        factors: &[usize],
    ) -> Option<NodeId> {
        let all = factors
            .iter()
            .fold(AxisSet::new(), |s, f| s.union(&self.axes[*f]));
        let mut above = Vec::new();
        let mut below = Vec::new();
        for f in factors {
            let way = &self.ways[*f][choice[*f]];
            if way.node.kind == Kind::Inv && self.axes[*f] == all {
                below.push(*made.get(&way.children[0])?);
            } else {
                above.push(*made.get(f)?);
            }
        }
        let numerator = w.chain(MapOp::Mul, above);
        let Some(denominator) = w.chain(MapOp::Mul, below) else {
            return numerator;
        };
        let numerator = match numerator {
            Some(n) => n,
            None => w.constant(1.0),
        };
        Some(w.map(MapOp::Div, vec![numerator, denominator]))
    }
}

/// Drops values that no output needs; parameters stay. Where the others are now comes with it.
fn prune(mut program: Program) -> Option<(Program, BTreeMap<NodeId, NodeId>)> {
    let mut used: BTreeSet<NodeId> = program.outputs.iter().map(|o| o.value).collect();
    for i in (0..program.nodes.len()).rev() {
        if used.contains(&NodeId(i as u32)) {
            used.extend(program.nodes[i].args.iter().copied());
        }
    }
    let mut new: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    let mut nodes = Vec::new();
    for (i, mut node) in program.nodes.into_iter().enumerate() {
        let id = NodeId(i as u32);
        if !used.contains(&id) && !matches!(node.op, ir::Op::Parameter { .. }) {
            continue;
        }
        for a in &mut node.args {
            *a = *new.get(a)?;
        }
        new.insert(id, NodeId(nodes.len() as u32));
        nodes.push(node);
    }
    program.nodes = nodes;
    for o in &mut program.outputs {
        o.value = *new.get(&o.value)?;
    }
    Some((program, new))
}

fn is_fragile(g: &EGraph, class: Id, node: &Enode) -> bool {
    let away_from_zero = |x: Id| g[x].data.low > 0.0 || g[x].data.high < 0.0;
    match &node.kind {
        Kind::Inv => !away_from_zero(node.args[0]),
        Kind::Function(function) => {
            let mut all = node.args.iter().zip(function.row().domains);
            all.any(|(x, domain)| {
                let overflows =
                    function.has(Fact::SumsToProducts) && g[*x].data.high == f64::INFINITY;
                overflows || (domain.has_pole() && !away_from_zero(*x))
            })
        }
        // Known to be non-negative, but not from this form: a difference of large terms.
        Kind::Add | Kind::Mul | Kind::Sum(_) => {
            g[class].data.low >= 0.0 && facts::lower_bound(g, node) < 0.0
        }
        Kind::Symbol(_)
        | Kind::Constant(_)
        | Kind::Iota(_)
        | Kind::View { .. }
        | Kind::Max
        | Kind::Select
        | Kind::Maximum(_)
        | Kind::Product(_) => false,
    }
}

/// What costs a kernel something in a form: its reductions and contractions, over what and of what, and its special functions.
fn skeleton(form: &Program) -> Vec<String> {
    let operation = |op: &Op| match op {
        Op::Map(op) => op.name(),
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } => "read",
        Op::Reduce { .. } => "reduced",
        Op::Dot { .. } => "contracted",
    };
    let bone = |node: &Node| {
        let operands = || {
            let all = node.args.iter().map(|a| form.node(*a));
            let mut all: Vec<(&AxisSet, &str)> = all.map(|n| (&n.axes, operation(&n.op))).collect();
            all.sort_unstable();
            all
        };
        match &node.op {
            Op::Reduce { .. } | Op::Dot { .. } => Some(format!("{:?} {:?}", node.op, operands())),
            Op::Map(MapOp::Function(_)) => Some(format!("{:?} {:?}", node.op, node.axes)),
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => {
                None
            }
        }
    };
    let mut bones: Vec<String> = form.nodes.iter().filter_map(bone).collect();
    bones.sort();
    bones
}

/// Other prices of a class's ways, apart by factors of up to e^±2: enough to turn a decision without asking for nonsense. Ways that do the
/// same with what is large keep their order, but for what costs little: that keeps its price.
fn perturbed(
    ways: &[Way],
    prices: &[f64],
    share: f64,
    little: f64,
    rng: &mut ChaCha8Rng,
) -> Vec<f64> {
    if !rng.random_bool(share) {
        return prices.to_vec();
    }
    let mut drawn: BTreeMap<(Tag, bool, &[usize]), f64> = BTreeMap::new();
    let all = ways.iter().zip(prices);
    all.map(|(way, price)| {
        let alike = (way.node.kind.tag(), way.sides.is_some(), &way.large[..]);
        let factor = drawn
            .entry(alike)
            .or_insert_with(|| f64::exp(rng.random_range(-2.0..2.0)));
        if *price < little {
            *price
        } else {
            price * *factor
        }
    })
    .collect()
}

/// The children of a class's node that have not far fewer elements than the class.
fn large(g: &EGraph, class: Id, node: &Enode, children: &[usize]) -> Vec<usize> {
    let elements = |id: Id| g.analysis.elements(&g[id].data.axes);
    let least = elements(class) / 64.0;
    let all = node.args.iter().zip(children);
    let mut large: Vec<usize> = all
        .filter(|(a, _)| elements(**a) >= least)
        .map(|(_, c)| *c)
        .collect();
    large.sort_unstable();
    large.dedup();
    large
}

fn own_cost(g: &EGraph, class: Id, node: &Enode) -> f64 {
    let size = |axes: &AxisSet| g.analysis.elements(axes);
    let here = size(&g[class].data.axes);
    match &node.kind {
        Kind::Symbol(_) | Kind::Constant(_) | Kind::Iota(_) => 0.0,
        Kind::View { .. } => VIEW * here,
        Kind::Add | Kind::Mul | Kind::Max => {
            let is_factor =
                |a: &Id| matches!(node.kind, Kind::Mul) && g[*a].data.constant.is_some();
            let (mut factors, others): (Vec<&Id>, Vec<&Id>) =
                node.args.iter().partition(|a| is_factor(a));
            // Instructions negate their operands.
            factors.retain(|c| egraph::known(g, **c) != Some(-1.0));
            let mut sets: Vec<&AxisSet> = others.iter().map(|a| &g[**a].data.axes).collect();
            sets.sort_by(|x, y| size(x).total_cmp(&size(y)));
            let mut all = AxisSet::new();
            let mut cost = 0.0;
            for (i, s) in sets.into_iter().enumerate() {
                all = all.union(s);
                if i > 0 {
                    cost += size(&all);
                }
            }
            cost + CONSTANT_FACTOR * size(&all) * factors.len() as f64
        }
        Kind::Inv => DIVISION * here,
        Kind::Function(function) => {
            let work = function.row().op.work;
            (SPECIAL * f64::from(work.special)).max(f64::from(work.flops)) * here
        }
        Kind::Select => here,
        Kind::Product(_) => size(&g[node.args[0]].data.axes),
        Kind::Maximum(_) => {
            let (body, whole) = (node.args[0], size(&g[node.args[0]].data.axes));
            match is_scaled(g, body) {
                true => (2.0 - CONSTANT_FACTOR) * whole,
                false => whole,
            }
        }
        Kind::Sum(over) => {
            let whole = size(&g[node.args[0]].data.axes);
            let long = g.analysis.elements(over) > g.analysis.held as f64;
            let again = match long {
                true if waits(g, node.args[0], over) => PASS,
                true => UNHELD,
                false => 0.0,
            };
            whole + again * whole
        }
    }
}

/// Whether a value can be written as a positive constant times another: what is largest of the other needs no multiplication of each element.
fn is_scaled(g: &EGraph, class: Id) -> bool {
    let scales =
        |x: &Id| matches!(g[*x].data.constant, Some(c) if c.get() > 0.0 && c.get().is_finite());
    egraph::members(g, class, Tag::Mul).any(|m| m.args.iter().any(scales))
}

/// Whether what is summed are products of differences from something that does not vary: a mean, mostly, and then all else is read first.
fn waits(g: &EGraph, body: Id, over: &AxisSet) -> bool {
    let centred = |d: &Id| {
        egraph::members(g, *d, Tag::Add)
            .any(|n| n.args.iter().any(|t| !g[*t].data.axes.intersects(over)))
    };
    egraph::members(g, body, Tag::Mul).any(|n| n.args.len() == 2 && n.args.iter().all(centred))
}

type Contraction = (Enode, Sides, f64);

/// The ways to see a sum as a contraction of two operands: for each product under it, the cheapest split of its factors.
fn contractions(g: &EGraph, class: Id, node: &Enode) -> Vec<Contraction> {
    let Kind::Sum(over) = &node.kind else {
        return Vec::new();
    };
    let mut products: Vec<&Enode> = g[node.args[0]]
        .nodes
        .iter()
        .filter(|n| n.kind.tag() == Tag::Mul && n.args.len() <= 8)
        .collect();
    products.sort();
    let mut out = Vec::new();
    for m in products {
        let axes: Vec<&AxisSet> = m.args.iter().map(|a| &g[*a].data.axes).collect();
        let union = |side: &[usize]| {
            side.iter()
                .fold(AxisSet::new(), |all, i| all.union(axes[*i]))
        };
        let n = m.args.len();
        let all: Vec<usize> = (0..n).collect();
        let volume = g.analysis.elements(&union(&all));
        if !union(&all).minus(over).is_subset(&g[class].data.axes)
            || m.args.iter().any(|a| g.find(*a) == class)
        {
            continue;
        }
        let inside = m.args.iter().map(|f| pullable(g, *f, over)).sum::<usize>();
        let mut best: Option<(f64, Sides)> = None;
        // The first factor is always on the left.
        for mask in 0..(1_u32 << (n - 1)) {
            let (right, left): (Vec<usize>, Vec<usize>) =
                (0..n).partition(|i| *i > 0 && mask >> (i - 1) & 1 == 1);
            if right.is_empty() {
                continue;
            }
            let (a, b) = (union(&left), union(&right));
            // What is free of the summed axes is no operand of a contraction but a factor of its result.
            if !a.intersects(over) || !b.intersects(over) {
                continue;
            }
            let private = |x: &AxisSet, y: &AxisSet| !x.minus(y).minus(over).is_empty();
            let rate = match (private(&a, &b), private(&b, &a)) {
                (true, true) => TENSOR,
                (true, false) | (false, true) => VECTOR,
                (false, false) => continue,
            };
            let operand = |side: &[usize], axes: &AxisSet| {
                let size = g.analysis.elements(axes);
                let leaf = side.len() == 1 && is_leaf(g, m.args[side[0]]);
                let moved = if leaf { 0.0 } else { OPERAND * size };
                moved + FACTOR * (side.len() - 1) as f64 * size
            };
            let cost = (rate + LEFT_INSIDE * inside as f64) * volume
                + operand(&left, &a)
                + operand(&right, &b);
            if best.as_ref().is_none_or(|(c, _)| cost < *c) {
                best = Some((cost, (left, right)));
            }
        }
        if let Some((cost, sides)) = best {
            out.push((m.clone(), sides, cost));
        }
    }
    out
}

/// How many factors of a contraction's factor could be pulled out of it, itself or one of its own.
fn pullable(g: &EGraph, class: Id, over: &AxisSet) -> usize {
    let free = |c: Id| g[c].data.constant.is_none() && !g[c].data.axes.intersects(over);
    if free(class) {
        return 1;
    }
    let within = |m: &Enode| m.args.iter().filter(|f| free(**f)).count();
    g[class]
        .nodes
        .iter()
        .filter(|n| n.kind.tag() == Tag::Mul)
        .map(within)
        .max()
        .unwrap_or(0)
}

/// A parameter, or a re-indexing of one.
fn is_leaf(g: &EGraph, class: Id) -> bool {
    let symbol = |c: Id| {
        g[c].nodes
            .iter()
            .any(|n| matches!(n.kind.tag(), Tag::Symbol))
    };
    symbol(class)
        || g[class]
            .nodes
            .iter()
            .any(|n| n.kind.tag() == Tag::View && symbol(n.args[0]))
}

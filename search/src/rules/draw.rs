//! Instances of equations: names bound to what is drawn, and both sides as terms of an e-graph.
//!
//! Most draws meet the conditions of their equation. The others show code that asks for less than its equation says.

use super::equation::{Condition, Coordinate, Equation, Map, Relation, Term};
use super::reductions::held_part;
use super::views::covers;
use crate::egraph::enode::{Enode, Kind, Real, Tag};
use crate::egraph::facts::{Algebra, EGraph};
use crate::egraph::{self, constant, known, product, scaled, sum, unary};
use egg::Id;
use ir::{Affine, AxisId, AxisSet, Function, MapOp, Quotient};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Axes that instances are drawn over.
pub(super) const AXES: u32 = 4;
/// Draws after which conditions count as not to be met.
const TRIES: usize = 400;
/// One draw in so many is taken whether it meets the conditions or not.
const FREE: u64 = 2;

fn all_axes() -> Vec<AxisId> {
    (0..AXES).map(AxisId).collect()
}

/// Whether a constant has so few digits that it was not rounded.
fn is_short(value: f64) -> bool {
    (value * f64::from(1 << 20)).fract() == 0.0
}

/// What names are used for.
#[derive(Default)]
struct Roles<'e> {
    axes: BTreeSet<&'e str>,
    variables: BTreeSet<&'e str>,
    constants: BTreeSet<&'e str>,
    /// The constants that are coefficients of coordinates.
    whole: BTreeSet<&'e str>,
    affines: BTreeSet<&'e str>,
    maps: BTreeSet<&'e str>,
    /// With the number of operands.
    functions: BTreeMap<&'e str, usize>,
    /// The axis that is read at an affine function.
    read_at: BTreeMap<&'e str, &'e str>,
}

impl<'e> Roles<'e> {
    fn of(term: &'e Term) -> Self {
        let mut roles = Self::default();
        term.visit(&mut |t| roles.see(t));
        let axes = &roles.axes;
        roles.affines.retain(|name| !axes.contains(name));
        roles
    }

    fn see(&mut self, term: &'e Term) {
        match term {
            Term::Variable(name) => {
                self.variables.insert(name);
            }
            Term::Constant(name) => {
                self.constants.insert(name);
            }
            Term::Extent(axis) | Term::Iota(axis) => {
                self.axes.insert(axis);
            }
            Term::Over(_, axes, _) => self.axes.extend(axes.iter().map(String::as_str)),
            Term::Apply(name, operands) => {
                self.functions.insert(name, operands.len());
            }
            Term::View { map, .. } => match map {
                Map::Named(name) => {
                    self.maps.insert(name);
                }
                Map::Entries(entries) => entries.iter().for_each(|(a, c)| self.read(a, c)),
            },
            Term::Number(_) | Term::Of(..) => {}
        }
    }

    fn read(&mut self, source: &'e str, coordinate: &'e Coordinate) {
        self.axes.insert(source);
        match coordinate {
            Coordinate::Named(name) => {
                self.affines.insert(name);
                self.read_at.insert(name, source);
            }
            Coordinate::Composed(..) => {}
            Coordinate::Linear {
                scale,
                axis,
                offset,
            } => {
                self.axes.insert(axis);
                let both = [scale.as_str(), offset.as_str()];
                self.constants.extend(both);
                self.whole.extend(both);
            }
        }
    }
}

/// What conditions ask of a tensor, so that what is drawn of it now and then meets them and now and then does not.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// Compared with a number.
    sign: bool,
    /// Compared with another tensor.
    bounds: bool,
    /// Perhaps −∞.
    masked: bool,
}

impl Asked {
    fn of(equation: &Equation, name: &str) -> Self {
        let mut asked = Self {
            masked: equation.masked.contains(name),
            ..Self::default()
        };
        let is = |term: &Term| matches!(term, Term::Variable(n) if n == name);
        for condition in equation.conditions.iter().flatten() {
            match condition {
                Condition::Finite(n) => asked.masked |= n == name,
                Condition::Compare(x, _, y) => {
                    let number = matches!(y, Term::Number(_));
                    asked.sign |= is(x) && number;
                    asked.bounds |= (is(x) || is(y)) && !number;
                }
                Condition::Carries { .. }
                | Condition::CarriesMapped { .. }
                | Condition::Inside(..)
                | Condition::Covers { .. }
                | Condition::Held { .. } => {}
            }
        }
        asked
    }
}

/// Draws of one equation.
struct Source<'r> {
    rng: &'r mut ChaCha8Rng,
    g: EGraph,
}

impl Source<'_> {
    fn axes(&mut self) -> AxisSet {
        let mut all = all_axes();
        all.retain(|_| self.rng.random_bool(0.6));
        all.into_iter().collect()
    }

    /// A tensor that is looked into no further.
    fn symbol(&mut self) -> Id {
        let axes = self.axes();
        self.g.analysis.symbols.push(axes);
        let k = self.g.analysis.symbols.len() as u32 - 1;
        self.g.add(Enode::new(Kind::Symbol(k), Vec::new()))
    }

    fn tensor(&mut self, asked: Asked) -> Id {
        let x = self.symbol();
        if asked.masked && self.rng.random_bool(0.3) {
            let c = self.symbol();
            let nothing = constant(&mut self.g, f64::NEG_INFINITY);
            if asked.bounds && self.rng.random_bool(0.5) {
                return nothing;
            }
            return egraph::map(&mut self.g, MapOp::Select, &[c, x, nothing]);
        }
        if !(asked.sign || asked.bounds) {
            return x;
        }
        match self.rng.random_range(0..6) {
            0 => x,
            1 => product(&mut self.g, vec![x, x]),
            2 => {
                // That −e^x is less than a half below zero is known, that it is less than zero is not.
                let e = unary(&mut self.g, Kind::Function(Function::Exp), x);
                let terms = vec![scaled(&mut self.g, -1.0, e), constant(&mut self.g, -0.5)];
                sum(&mut self.g, terms)
            }
            3 if asked.bounds => {
                let c = self.half();
                constant(&mut self.g, c)
            }
            _ => unary(&mut self.g, Kind::Function(Function::Exp), x),
        }
    }

    fn half(&mut self) -> f64 {
        f64::from(self.rng.random_range(-6_i32..7)) * 0.5
    }

    /// A number; zero, one and the opposite of another one are what conditions ask for.
    fn number(&mut self, whole: bool, masked: bool, other: Option<f64>) -> f64 {
        match (self.rng.random_range(0..10), other) {
            (0 | 1, _) => 0.0,
            (2, _) => 1.0,
            (3 | 4, Some(x)) => -x,
            (5 | 6, _) if masked => f64::NEG_INFINITY,
            _ if whole => f64::from(self.rng.random_range(-2..4)),
            _ => self.half(),
        }
    }

    /// An affine function of one or two axes; half of them begin at zero.
    fn affine(&mut self) -> Option<Affine> {
        let count = self.rng.random_range(1..3);
        let chosen: Vec<AxisId> = all_axes().sample(self.rng, count).copied().collect();
        let terms: Vec<(i64, AxisId)> = chosen
            .into_iter()
            .map(|a| (*[1, 1, -1, 2].choose(self.rng).unwrap_or(&1), a))
            .collect();
        let offset = self.rng.random_range(-2..3);
        let f = Affine::new(terms.iter().copied(), offset)?;
        if self.rng.random_bool(0.5) {
            return Some(f);
        }
        let (least, _) = f.range(|a| (0, self.g.analysis.extent(a) as i64 - 1))?;
        Affine::new(terms, offset - least)
    }

    /// The same, of four one divided by 2.
    fn quotient(&mut self) -> Option<Quotient> {
        let divisor = *[1, 1, 1, 2].choose(self.rng)?;
        Quotient::new(self.affine()?, divisor)
    }

    /// An element-wise function of so many operands.
    fn function(&mut self, operands: usize) -> Option<Kind> {
        let all: Vec<Kind> = match operands {
            1 => vec![Kind::Inv],
            2 => vec![Kind::Add, Kind::Mul, Kind::Max],
            3 => vec![Kind::Add, Kind::Mul, Kind::Max, Kind::Select],
            _ => Vec::new(),
        };
        let functions = Function::of(operands).map(Kind::Function);
        let all: Vec<Kind> = all.into_iter().chain(functions).collect();
        all.choose(self.rng).cloned()
    }
}

/// What the names of an equation are.
pub(super) struct Bindings<'e> {
    equation: &'e Equation,
    axes: BTreeMap<&'e str, AxisId>,
    variables: BTreeMap<&'e str, Id>,
    constants: BTreeMap<&'e str, f64>,
    affines: BTreeMap<&'e str, Affine>,
    maps: BTreeMap<&'e str, Vec<(AxisId, Quotient)>>,
    functions: BTreeMap<&'e str, Kind>,
    read_at: BTreeMap<&'e str, &'e str>,
    /// Whether the conditions hold.
    pub(super) holds: bool,
}

/// An equation's left side in a graph of its own, and what its names are.
pub(super) struct Left<'e> {
    pub(super) g: EGraph,
    pub(super) id: Id,
    pub(super) names: Bindings<'e>,
    /// A tensor that the equation does not have.
    pub(super) other: Id,
}

/// The draw with a number: always the same one. Mostly one that meets the conditions, and none where they are hardly ever met.
pub(super) fn left(equation: &Equation, number: u64) -> Option<Left<'_>> {
    let mut rng = ChaCha8Rng::seed_from_u64(number);
    (0..TRIES)
        .filter_map(|_| once(equation, &mut rng))
        .find(|drawn| drawn.names.holds || number.is_multiple_of(FREE))
}

fn once<'e>(equation: &'e Equation, rng: &mut ChaCha8Rng) -> Option<Left<'e>> {
    let roles = Roles::of(&equation.left);
    let extents = (0..AXES)
        .map(|_| *[1, 2, 3, 5].choose(rng).unwrap_or(&1))
        .collect();
    let mut ids = all_axes();
    ids.shuffle(rng);
    let mut source = Source {
        g: EGraph::new(Algebra {
            extents,
            held: rng.random_range(1..6),
            ..Algebra::default()
        }),
        rng,
    };
    let mut names = Bindings {
        equation,
        axes: roles.axes.iter().copied().zip(ids).collect(),
        variables: BTreeMap::new(),
        constants: BTreeMap::new(),
        affines: BTreeMap::new(),
        maps: BTreeMap::new(),
        functions: BTreeMap::new(),
        read_at: roles.read_at,
        holds: false,
    };
    for name in roles.constants {
        let before = names.constants.values().last().copied();
        let masked = equation.masked.contains(name);
        let value = source.number(roles.whole.contains(name), masked, before);
        names.constants.insert(name, value);
    }
    for name in roles.affines {
        let f = source.affine()?;
        // That an axis is read where it is has another name in equations.
        let axis = names.read_at.get(name).and_then(|a| names.axes.get(a));
        if f.as_axis().as_ref() == axis {
            return None;
        }
        names.affines.insert(name, f);
    }
    for name in roles.maps {
        let count = source.rng.random_range(1..3);
        let sources: AxisSet = all_axes().sample(source.rng, count).copied().collect();
        let map: Option<_> = sources
            .iter()
            .map(|a| Some((a, source.quotient()?)))
            .collect();
        names.maps.insert(name, map?);
    }
    for (name, operands) in roles.functions {
        names.functions.insert(name, source.function(operands)?);
    }
    for name in roles.variables {
        let tensor = source.tensor(Asked::of(equation, name));
        names.variables.insert(name, tensor);
    }
    let other = source.symbol();
    let mut g = source.g;
    let id = names.build(&mut g, &equation.left, Form::Written)?;
    let holds = |c: &Condition| names.meets(&g, c);
    names.holds = equation.conditions.iter().any(|all| all.iter().all(holds));
    Some(Left {
        g,
        id,
        names,
        other,
    })
}

/// How a side is put into the graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is written. No coordinate leaves its source, unless there is a fill.
    Written,
    /// Without what changes nothing: terms 0, factors 1, and maps of axes that what is mapped does not carry.
    Plain,
}

impl Bindings<'_> {
    /// Adds the right side; none if a name in it stands for nothing, or if as it is written a coordinate leaves its source.
    pub(super) fn right(&self, g: &mut EGraph, form: Form) -> Option<Id> {
        self.build(g, &self.equation.right, form)
    }

    /// Whether constants are the same numbers in a field as over the reals: what a fill was computed to be need not be.
    pub(super) fn is_exact(&self) -> bool {
        let mut exact = true;
        for side in [&self.equation.left, &self.equation.right] {
            side.visit(&mut |t| {
                if let Term::View { fill: Some(c), .. } = t {
                    exact &= self.number(c).is_some_and(is_short);
                }
            });
        }
        exact
    }

    fn build(&self, g: &mut EGraph, term: &Term, form: Form) -> Option<Id> {
        Some(match term {
            Term::Variable(name) => match self.variables.get(name.as_str()) {
                Some(id) => *id,
                None => {
                    let definition = self.equation.definitions.get(name)?;
                    return self.build(g, definition, form);
                }
            },
            Term::Constant(_) | Term::Number(_) => constant(g, self.number(term)?),
            Term::Extent(axis) => {
                let axis = *self.axes.get(axis.as_str())?;
                let extent = g.analysis.extent(axis);
                constant(g, extent as f64)
            }
            Term::Iota(axis) => {
                let axis = *self.axes.get(axis.as_str())?;
                g.add(Enode::new(Kind::Iota(axis), Vec::new()))
            }
            Term::Of(tag, terms) => {
                let terms = self.all(g, terms, form)?;
                of(g, *tag, terms, form)?
            }
            Term::Apply(name, terms) => {
                let function = self.functions.get(name.as_str())?.tag();
                let terms = self.all(g, terms, form)?;
                of(g, function, terms, form)?
            }
            Term::Over(tag, axes, body) => {
                let axes = self.set(axes)?;
                let body = self.build(g, body, form)?;
                let kind = if *tag == Tag::Sum {
                    Kind::Sum(axes)
                } else {
                    Kind::Maximum(axes)
                };
                unary(g, kind, body)
            }
            Term::View { of, map, fill } => {
                let x = self.build(g, of, form)?;
                let mut map = self.map(map)?;
                let fill = match fill {
                    Some(term) => Some(Real::new(self.number(term)?)),
                    None => None,
                };
                if fill.is_none() {
                    match form {
                        Form::Written if !map.iter().all(|(a, f)| g.analysis.inside(*a, f)) => {
                            return None;
                        }
                        Form::Written => {}
                        Form::Plain => map.retain(|(a, _)| g[x].data.axes.contains(*a)),
                    }
                }
                if map.is_empty() {
                    x
                } else {
                    unary(g, Kind::View { map, fill }, x)
                }
            }
        })
    }

    fn all(&self, g: &mut EGraph, terms: &[Term], form: Form) -> Option<Vec<Id>> {
        terms.iter().map(|t| self.build(g, t, form)).collect()
    }

    fn set(&self, axes: &[String]) -> Option<AxisSet> {
        axes.iter()
            .map(|a| self.axes.get(a.as_str()).copied())
            .collect()
    }

    fn map(&self, map: &Map) -> Option<Vec<(AxisId, Quotient)>> {
        match map {
            Map::Named(name) => self.maps.get(name.as_str()).cloned(),
            Map::Entries(entries) => {
                let entry = |(a, c): &(String, Coordinate)| {
                    Some((*self.axes.get(a.as_str())?, self.coordinate(c)?.into()))
                };
                let mut map: Vec<_> = entries.iter().map(entry).collect::<Option<_>>()?;
                map.sort();
                Some(map)
            }
        }
    }

    fn coordinate(&self, coordinate: &Coordinate) -> Option<Affine> {
        let named = |name: &str| match self.axes.get(name) {
            Some(axis) => Some(Affine::axis(*axis)),
            None => self.affines.get(name).cloned(),
        };
        match coordinate {
            Coordinate::Named(name) => named(name),
            Coordinate::Composed(outer, inner) => {
                let at = self.axes.get(self.read_at.get(inner.as_str())?)?;
                let by = named(inner)?;
                named(outer)?.substitute(|a| (a == *at).then(|| by.clone()))
            }
            Coordinate::Linear {
                scale,
                axis,
                offset,
            } => {
                let whole = |name: &String| Some(*self.constants.get(name.as_str())? as i64);
                let axis = *self.axes.get(axis.as_str())?;
                Affine::new([(whole(scale)?, axis)], whole(offset)?)
            }
        }
    }

    /// The value of a term of constants.
    fn number(&self, term: &Term) -> Option<f64> {
        let of = |tag: Tag, terms: &[Term]| -> Option<f64> {
            let xs: Vec<f64> = terms
                .iter()
                .map(|t| self.number(t))
                .collect::<Option<_>>()?;
            Some(match tag {
                Tag::Add => xs.iter().sum(),
                Tag::Mul => xs.iter().product(),
                Tag::Max => xs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                Tag::Inv => 1.0 / xs.first()?,
                Tag::Function(function) => function.apply(&xs),
                Tag::Select
                | Tag::Symbol
                | Tag::Constant
                | Tag::Iota
                | Tag::View
                | Tag::Sum
                | Tag::Maximum
                | Tag::Product => return None,
            })
        };
        match term {
            Term::Number(c) => Some(*c),
            Term::Constant(name) => self.constants.get(name.as_str()).copied(),
            Term::Of(tag, terms) => of(*tag, terms),
            Term::Apply(name, terms) => of(self.functions.get(name.as_str())?.tag(), terms),
            Term::Variable(_)
            | Term::Extent(_)
            | Term::Over(..)
            | Term::Iota(_)
            | Term::View { .. } => None,
        }
    }

    /// Whether a condition holds by what is known in the graph; what isn't known doesn't.
    fn meets(&self, g: &EGraph, condition: &Condition) -> bool {
        self.decided(g, condition).unwrap_or(false)
    }

    fn decided(&self, g: &EGraph, condition: &Condition) -> Option<bool> {
        let variable = |name: &str| Some(*self.variables.get(name)?);
        Some(match condition {
            Condition::Finite(name) => g[variable(name)?].data.finite,
            Condition::Compare(x, relation, y) => match (x, self.number(y)) {
                (Term::Variable(x), Some(0.0)) => {
                    let facts = &g[variable(x)?].data;
                    match relation {
                        Relation::AtLeast => facts.nonnegative(),
                        Relation::Above => facts.positive(),
                        Relation::Below => facts.high < 0.0,
                        Relation::Unequal => facts.nonzero,
                        Relation::Equal => facts.constant == Some(Real::new(0.0)),
                    }
                }
                (Term::Extent(x), None) => {
                    let Term::Extent(y) = y else {
                        return None;
                    };
                    let extent = |name: &str| Some(g.analysis.extent(*self.axes.get(name)?));
                    *relation == Relation::Equal && extent(x)? == extent(y)?
                }
                (Term::Variable(x), None) => {
                    let Term::Variable(y) = y else {
                        return None;
                    };
                    let (x, y) = (variable(x)?, variable(y)?);
                    *relation == Relation::AtLeast && g[x].data.low >= g[y].data.high
                }
                (x, y) => {
                    let (x, y) = (self.number(x)?, y?);
                    match relation {
                        Relation::AtLeast => x >= y,
                        Relation::Above => x > y,
                        Relation::Below => x < y,
                        Relation::Unequal => x != y,
                        Relation::Equal => x == y,
                    }
                }
            },
            Condition::Carries { name, one_of, does } => {
                let carried = match (
                    self.variables.get(name.as_str()),
                    self.maps.get(name.as_str()),
                ) {
                    (Some(x), _) => g[*x].data.axes.clone(),
                    (None, Some(map)) => map.iter().fold(AxisSet::new(), |all, (a, f)| {
                        all.union(&f.axes()).union(&[*a].into_iter().collect())
                    }),
                    (None, None) => self.affines.get(name.as_str())?.axes(),
                };
                carried.intersects(&self.set(one_of)?) == *does
            }
            Condition::CarriesMapped { name, map } => {
                let map = self.maps.get(map.as_str())?;
                let sources: AxisSet = map.iter().map(|(a, _)| *a).collect();
                sources.is_subset(&g[variable(name)?].data.axes)
            }
            Condition::Inside(coordinate, axis) => {
                let axis = *self.axes.get(axis.as_str())?;
                g.analysis
                    .inside(axis, &self.coordinate(coordinate)?.into())
            }
            Condition::Covers {
                coordinate,
                covered,
                by,
            } => {
                let axis = |name: &String| self.axes.get(name.as_str()).copied();
                let f = self.coordinate(coordinate)?;
                covers(g, &f, axis(covered)?, axis(by)?)
            }
            Condition::Held { part, of } => {
                let part: AxisSet = [*self.axes.get(part.as_str())?].into_iter().collect();
                held_part(g, &self.set(of)?) == Some(part)
            }
        })
    }
}

/// An element-wise operation, if it has one.
fn of(g: &mut EGraph, tag: Tag, mut terms: Vec<Id>, form: Form) -> Option<Id> {
    let mut without = |neutral: f64| {
        if form == Form::Plain {
            terms.retain(|t| known(g, *t) != Some(neutral));
        }
    };
    match tag {
        Tag::Add => without(0.0),
        Tag::Mul => without(1.0),
        Tag::Max
        | Tag::Inv
        | Tag::Function(_)
        | Tag::Select
        | Tag::Symbol
        | Tag::Constant
        | Tag::Iota
        | Tag::View
        | Tag::Sum
        | Tag::Maximum
        | Tag::Product => {}
    }
    Some(match tag {
        Tag::Add => sum(g, terms),
        Tag::Mul => product(g, terms),
        Tag::Max => egraph::maximum(g, terms),
        Tag::Inv => g.add(Enode::new(Kind::Inv, terms)),
        Tag::Function(function) => g.add(Enode::new(Kind::Function(function), terms)),
        Tag::Select => g.add(Enode::new(Kind::Select, terms)),
        Tag::Symbol
        | Tag::Constant
        | Tag::Iota
        | Tag::View
        | Tag::Sum
        | Tag::Maximum
        | Tag::Product => return None,
    })
}

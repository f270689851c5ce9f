//! The equations of rules as they are printed, read: a small grammar, and the terms that its sentences stand for.
//!
//! ```text
//! clause      = sum " = " sum [" for " all {" or " all}]
//! all         = condition {", " condition}
//! sum         = ["−"] product {("+" | "−") product}
//! product     = power {"·" power}
//! power       = atom {"⁻¹"}
//! atom        = name | number | "(" sum ")" | "|" axis "|" | "√" atom | "e^" atom | "ln" atom
//!             | ("Σ_" | "max_") axes product | name "(" sum {"," sum} ")" | "iota(" axis ")"
//!             | "view(" sum ";" map [";" "fill" "=" sum] ")"
//! map         = name | axis "->" coordinate {"," axis "->" coordinate}
//! coordinate  = axis | name | name "(" name ")" | greek "·" axis "+" greek
//! condition   = "finite" name | sum relation sum | axes ("∈" | "∉") name | coordinate "inside" axis
//!             | coordinate "covers" axis "by" axis | name "carries" name | axis "held of" axes | name "element-wise" | name "=" sum
//! relation    = ">=" | ">" | "<" | "=" | "≠"
//! ```
//!
//! * A Latin letter is a tensor, a Greek one a constant. Letters behind `Σ_` and `max_` are axes.
//! * A tensor is real everywhere; one of which a condition says `x >= −∞` may also be −∞, as masks write it.
//! * `jk ∈ x` says that `x` carries one of these axes, `jk ∉ x` that it carries none; `x carries m`, that it carries all that `m` maps.
//! * `k held of jk` says that `k` is the part of a sum over `j` and `k` that the search would hold.
//! * A name that the left side lacks is defined by its condition: `m = |k|⁻¹·Σ_k x`.
//! * Brackets count: `x + (y + z)` is a sum of two terms, of which one is a sum.

use super::Clause;
use crate::egraph::enode::Tag;
use ir::Function;
use std::collections::{BTreeMap, BTreeSet};

/// A side of an equation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    /// A tensor.
    Variable(String),
    /// A scalar that is drawn.
    Constant(String),
    Number(f64),
    /// `|j|`
    Extent(String),
    /// `Σ`, `Π`, `max` of operands, or a function of them.
    Of(Tag, Vec<Term>),
    /// Any element-wise function.
    Apply(String, Vec<Term>),
    /// A sum or a maximum over axes.
    Over(Tag, Vec<String>, Box<Term>),
    Iota(String),
    View {
        of: Box<Term>,
        map: Map,
        fill: Option<Box<Term>>,
    },
}

/// What a view does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Map {
    Named(String),
    Entries(Vec<(String, Coordinate)>),
}

/// Where an axis of a view's source is read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Coordinate {
    /// An axis, or an affine function.
    Named(String),
    /// An affine function of an axis at an affine function.
    Composed(String, String),
    /// `scale·axis + offset`
    Linear {
        scale: String,
        axis: String,
        offset: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    AtLeast,
    Above,
    Below,
    Equal,
    Unequal,
}

/// A side condition.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    Finite(String),
    Compare(Term, Relation, Term),
    /// Whether a name carries one of some axes.
    Carries {
        name: String,
        one_of: Vec<String>,
        does: bool,
    },
    /// A tensor carries all that a map maps.
    CarriesMapped {
        name: String,
        map: String,
    },
    Inside(Coordinate, String),
    /// Wherever the other axes are, one axis takes the coordinate once to each place along another one.
    Covers {
        coordinate: Coordinate,
        covered: String,
        by: String,
    },
    Held {
        part: String,
        of: Vec<String>,
    },
}

/// An equation that was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Equation {
    pub(super) left: Term,
    pub(super) right: Term,
    /// All conditions of one of these lists hold.
    pub(super) conditions: Vec<Vec<Condition>>,
    /// What names on the right stand for.
    pub(super) definitions: BTreeMap<String, Term>,
    /// The tensors and constants that may be −∞.
    pub(super) masked: BTreeSet<String>,
}

impl Equation {
    /// Reads a clause of a rule.
    pub(super) fn read(clause: &Clause) -> Result<Self, String> {
        let mut equation = Self {
            left: whole(&clause.left, Reader::sum)?,
            right: whole(&clause.right, Reader::sum)?,
            conditions: Vec::new(),
            definitions: BTreeMap::new(),
            masked: BTreeSet::new(),
        };
        let known = names(&equation.left);
        for list in clause.condition.iter().flat_map(|c| c.split(" or ")) {
            let mut all = Vec::new();
            for text in super::outside_brackets(list, ", ") {
                match condition(text)? {
                    None => {}
                    Some(Condition::Compare(
                        Term::Variable(name) | Term::Constant(name),
                        Relation::AtLeast,
                        Term::Number(f64::NEG_INFINITY),
                    )) => {
                        equation.masked.insert(name);
                    }
                    Some(Condition::Compare(Term::Variable(name), Relation::Equal, term))
                        if !known.contains(&name) =>
                    {
                        equation.definitions.insert(name, term);
                    }
                    Some(condition) => all.push(condition),
                }
            }
            equation.conditions.push(all);
        }
        if equation.conditions.is_empty() {
            equation.conditions.push(Vec::new());
        }
        let mut unknown = names(&equation.right);
        unknown.extend(equation.definitions.values().flat_map(names));
        let unknown: Vec<String> = unknown
            .into_iter()
            .filter(|n| !known.contains(n) && !equation.definitions.contains_key(n))
            .collect();
        if unknown.is_empty() {
            Ok(equation)
        } else {
            Err(format!("nothing says what {} is", unknown.join(", ")))
        }
    }
}

/// The tensors and constants of a term.
fn names(term: &Term) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    term.visit(&mut |t| {
        if let Term::Variable(name) | Term::Constant(name) = t {
            found.insert(name.clone());
        }
        let Term::View {
            map: Map::Entries(entries),
            ..
        } = t
        else {
            return;
        };
        for (_, coordinate) in entries {
            if let Coordinate::Linear { scale, offset, .. } = coordinate {
                found.extend([scale.clone(), offset.clone()]);
            }
        }
    });
    found
}

impl Term {
    /// Every term in this one, itself first.
    pub(super) fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Term)) {
        see(self);
        match self {
            Self::Variable(_)
            | Self::Constant(_)
            | Self::Number(_)
            | Self::Extent(_)
            | Self::Iota(_) => {}
            Self::Of(_, terms) | Self::Apply(_, terms) => {
                terms.iter().for_each(|t| t.visit(see));
            }
            Self::Over(_, _, term) => term.visit(see),
            Self::View { of, fill, .. } => {
                of.visit(see);
                if let Some(fill) = fill {
                    fill.visit(see);
                }
            }
        }
    }
}

/// A condition; none for one that says what the notation says already.
fn condition(text: &str) -> Result<Option<Condition>, String> {
    let letters = |text: &str| whole(text, Reader::axes);
    let name = |text: &str| whole(text, Reader::name);
    if let Some(x) = text.strip_prefix("finite ") {
        return Ok(Some(Condition::Finite(name(x)?)));
    }
    if let Some(f) = text.strip_prefix("element-wise ") {
        return name(f).map(|_| None);
    }
    for (word, does) in [(" ∈ ", true), (" ∉ ", false)] {
        if let Some((axes, x)) = text.split_once(word) {
            return Ok(Some(Condition::Carries {
                name: name(x)?,
                one_of: letters(axes)?,
                does,
            }));
        }
    }
    if let Some((x, map)) = text.split_once(" carries ") {
        return Ok(Some(Condition::CarriesMapped {
            name: name(x)?,
            map: name(map)?,
        }));
    }
    if let Some((part, of)) = text.split_once(" held of ") {
        return Ok(Some(Condition::Held {
            part: name(part)?,
            of: letters(of)?,
        }));
    }
    if let Some((coordinate, axes)) = text.split_once(" covers ") {
        let Some((covered, by)) = axes.split_once(" by ") else {
            return Err(format!("expected an axis that covers, found `{axes}`"));
        };
        return Ok(Some(Condition::Covers {
            coordinate: whole(coordinate, Reader::coordinate)?,
            covered: name(covered)?,
            by: name(by)?,
        }));
    }
    if let Some((coordinate, axis)) = text.split_once(" inside ") {
        return Ok(Some(Condition::Inside(
            whole(coordinate, Reader::coordinate)?,
            name(axis)?,
        )));
    }
    for (word, relation) in [
        (" >= ", Relation::AtLeast),
        (" > ", Relation::Above),
        (" < ", Relation::Below),
        (" ≠ ", Relation::Unequal),
        (" = ", Relation::Equal),
    ] {
        if let [left, right] = super::outside_brackets(text, word)[..] {
            return Ok(Some(Condition::Compare(
                whole(left, Reader::sum)?,
                relation,
                whole(right, Reader::sum)?,
            )));
        }
    }
    Err(format!("expected a condition, found `{text}`"))
}

/// All of a text, read in one way.
fn whole<'t, T>(
    text: &'t str,
    read: impl Fn(&mut Reader<'t>) -> Result<T, String>,
) -> Result<T, String> {
    let mut reader = Reader { text, rest: text };
    let found = read(&mut reader)?;
    if reader.rest.trim().is_empty() {
        Ok(found)
    } else {
        Err(reader.fault("nothing more"))
    }
}

struct Reader<'t> {
    text: &'t str,
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn fault(&self, expected: &str) -> String {
        format!(
            "expected {expected}, found `{}` in `{}`",
            self.rest, self.text
        )
    }

    /// Takes a sign or a word if it is next.
    fn eat(&mut self, word: &str) -> bool {
        match self.rest.trim_start().strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        if self.eat(word) {
            Ok(())
        } else {
            Err(self.fault(&format!("`{word}`")))
        }
    }

    /// The next characters as long as they are of one sort.
    fn take(&mut self, sort: fn(char) -> bool) -> &'t str {
        let from = self.rest.trim_start();
        let length = from.find(|c| !sort(c)).unwrap_or(from.len());
        self.rest = &from[length..];
        &from[..length]
    }

    /// One letter.
    fn name(&mut self) -> Result<String, String> {
        let from = self.rest.trim_start();
        let mut letters = from.chars();
        match letters.next() {
            Some(c) if c.is_alphabetic() && !letters.next().is_some_and(char::is_alphabetic) => {
                self.rest = &from[c.len_utf8()..];
                Ok(c.to_string())
            }
            Some(_) | None => Err(self.fault("a letter")),
        }
    }

    /// Letters without space between them, each an axis.
    fn axes(&mut self) -> Result<Vec<String>, String> {
        let all = self.take(|c| c.is_ascii_lowercase());
        if all.is_empty() {
            return Err(self.fault("axes"));
        }
        Ok(all.chars().map(String::from).collect())
    }

    fn sum(&mut self) -> Result<Term, String> {
        let mut terms = Vec::new();
        let mut minus = self.eat("−");
        loop {
            let term = self.product()?;
            terms.push(if let (Term::Number(c), true) = (&term, minus) {
                Term::Number(-c)
            } else if minus {
                Term::Of(Tag::Mul, vec![Term::Number(-1.0), term])
            } else {
                term
            });
            minus = self.eat("−");
            if !minus && !self.eat("+") {
                return Ok(one_or(Tag::Add, terms));
            }
        }
    }

    fn product(&mut self) -> Result<Term, String> {
        let mut factors = vec![self.power()?];
        while self.eat("·") {
            factors.push(self.power()?);
        }
        Ok(one_or(Tag::Mul, factors))
    }

    fn power(&mut self) -> Result<Term, String> {
        let mut base = self.atom()?;
        while self.eat("⁻¹") {
            base = Term::Of(Tag::Inv, vec![base]);
        }
        Ok(base)
    }

    fn atom(&mut self) -> Result<Term, String> {
        if self.eat("(") {
            let inner = self.sum()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.eat("|") {
            let axis = self.name()?;
            self.expect("|")?;
            return Ok(Term::Extent(axis));
        }
        if self.eat("∞") {
            return Ok(Term::Number(f64::INFINITY));
        }
        for function in Function::all() {
            let tag = Tag::Function(function);
            match function.row().symbol {
                Some(symbol) if self.eat(symbol) => return Ok(Term::Of(tag, vec![self.atom()?])),
                None if self.eat(&format!("{}(", function.name())) => {
                    return Ok(Term::Of(tag, self.operands()?));
                }
                Some(_) | None => {}
            }
        }
        for (word, tag) in [("Σ_", Tag::Sum), ("max_", Tag::Maximum)] {
            if self.eat(word) {
                let axes = self.axes()?;
                return Ok(Term::Over(tag, axes, Box::new(self.product()?)));
            }
        }
        if self.eat("max(") {
            return Ok(Term::Of(Tag::Max, self.operands()?));
        }
        if self.eat("select(") {
            let operands = self.operands()?;
            return match operands.len() {
                3 => Ok(Term::Of(Tag::Select, operands)),
                _ => Err(self.fault("a selection of three operands")),
            };
        }
        if self.eat("iota(") {
            let axis = self.name()?;
            self.expect(")")?;
            return Ok(Term::Iota(axis));
        }
        if self.eat("view(") {
            return self.view();
        }
        let digits = self.take(|c| c.is_ascii_digit());
        if !digits.is_empty() {
            let number = digits.parse();
            return number.map(Term::Number).map_err(|_| self.fault("a number"));
        }
        let name = self.name()?;
        Ok(if self.eat("(") {
            Term::Apply(name, self.operands()?)
        } else if name.is_ascii() {
            Term::Variable(name)
        } else {
            Term::Constant(name)
        })
    }

    /// The operands of a function, behind its bracket.
    fn operands(&mut self) -> Result<Vec<Term>, String> {
        let mut all = vec![self.sum()?];
        while self.eat(",") {
            all.push(self.sum()?);
        }
        self.expect(")")?;
        Ok(all)
    }

    /// What stands behind `view(`.
    fn view(&mut self) -> Result<Term, String> {
        let of = Box::new(self.sum()?);
        self.expect(";")?;
        let first = self.name()?;
        let map = if self.eat("->") {
            let mut entries = vec![(first, self.coordinate()?)];
            while self.eat(",") {
                let axis = self.name()?;
                self.expect("->")?;
                entries.push((axis, self.coordinate()?));
            }
            Map::Entries(entries)
        } else {
            Map::Named(first)
        };
        let fill = if self.eat(";") {
            self.expect("fill")?;
            self.expect("=")?;
            Some(Box::new(self.sum()?))
        } else {
            None
        };
        self.expect(")")?;
        Ok(Term::View { of, map, fill })
    }

    fn coordinate(&mut self) -> Result<Coordinate, String> {
        let name = self.name()?;
        Ok(if self.eat("(") {
            let inner = self.name()?;
            self.expect(")")?;
            Coordinate::Composed(name, inner)
        } else if self.eat("·") {
            let axis = self.name()?;
            self.expect("+")?;
            Coordinate::Linear {
                scale: name,
                axis,
                offset: self.name()?,
            }
        } else {
            Coordinate::Named(name)
        })
    }
}

fn one_or(tag: Tag, mut terms: Vec<Term>) -> Term {
    match terms.len() {
        1 => terms.remove(0),
        _ => Term::Of(tag, terms),
    }
}

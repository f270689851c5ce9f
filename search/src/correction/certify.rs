//! Certifying a guessed correction: `f(j, R) = f(j, r) · c(r, R)` (or `+`) on random values.
//!
//! Twice: in floating point, over values of both signs, zeros, the zero start of running values and running values that meet another value;
//! and exactly in a pair of prime fields. One counterexample refuses the guess, and so do too few valid draws.

use super::number::{EXPONENT, Number, Pair, VALUE};
use super::{Body, Correction, Item, Term};
use ir::{MapOp, NodeId, ReduceOp};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// Draws of each kind, and how many of them must have had values on both sides.
const DRAWS: usize = 512;
const VALID: usize = 64;
/// Rounding of a body of a few dozen operations on values of moderate size; a false identity is off by orders more.
const TOLERANCE: f64 = 1e-9;

pub(super) fn certify(body: &Body, c: &Correction) -> bool {
    floating(body, c) && exact(body, c)
}

/// Values for everything that a body and its correction mention.
struct Draw<T> {
    nodes: BTreeMap<NodeId, T>,
    old: Vec<T>,
    new: Vec<T>,
}

impl<T: Number> Draw<T> {
    fn of(body: &Body, mut node: impl FnMut() -> T, provisional: impl Fn(&mut [T], bool)) -> Self {
        let mut draw = Self {
            nodes: BTreeMap::new(),
            old: Vec::new(),
            new: Vec::new(),
        };
        for item in &body.items {
            match item {
                Item::Opaque(id) | Item::Leaf(id) => {
                    let known = match body.ranges.get(id) {
                        Some([low, high]) if low == high => T::constant(*low),
                        Some(_) | None => None,
                    };
                    draw.nodes.insert(*id, known.unwrap_or_else(&mut node));
                }
                Item::Provisional(_) | Item::Constant(_) | Item::Map(..) => {}
            }
        }
        for _ in &body.provisional {
            draw.old.push(node());
            draw.new.push(node());
        }
        provisional(&mut draw.old, true);
        provisional(&mut draw.new, false);
        draw
    }

    fn body(&self, body: &Body, provisional: &[T]) -> Option<T> {
        self.items(body, provisional)?.get(body.root).copied()
    }

    /// The value of every step of a body.
    fn items(&self, body: &Body, provisional: &[T]) -> Option<Vec<T>> {
        let mut values: Vec<T> = Vec::with_capacity(body.items.len());
        for item in &body.items {
            let v = match item {
                Item::Opaque(id) | Item::Leaf(id) => *self.nodes.get(id)?,
                Item::Provisional(k) => provisional[*k],
                Item::Constant(c) => T::constant(*c)?,
                Item::Map(op, args) => {
                    let xs: Vec<T> = args.iter().map(|a| values[*a]).collect();
                    T::apply(*op, &xs)?
                }
            };
            values.push(v);
        }
        Some(values)
    }

    /// Whether the body divides by something free of the reduced axes that is zero here, and nothing in it may choose another value than
    /// that quotient: then it has no value, whatever it is corrected by.
    fn is_undefined(&self, body: &Body, zero: impl Fn(T) -> bool) -> bool {
        let chooses = |item: &Item| matches!(item, Item::Map(MapOp::Select | MapOp::Max, _));
        if body.items.iter().any(chooses) {
            return false;
        }
        body.items.iter().any(|item| {
            let Item::Map(MapOp::Div, args) = item else {
                return false;
            };
            let Some(Item::Leaf(divisor)) = args.last().map(|a| &body.items[*a]) else {
                return false;
            };
            self.nodes.get(divisor).is_some_and(|x| zero(*x))
        })
    }

    fn correction(&self, c: &Correction) -> Option<T> {
        self.terms(c)?.get(c.root.0 as usize).copied()
    }

    /// The value of every term of a correction.
    fn terms(&self, c: &Correction) -> Option<Vec<T>> {
        let mut values: Vec<T> = Vec::with_capacity(c.terms.len());
        for term in &c.terms {
            let v = match term {
                Term::Old(k) => self.old[*k],
                Term::New(k) => self.new[*k],
                Term::Leaf(id) => *self.nodes.get(id)?,
                Term::Constant(c) => T::constant(*c)?,
                Term::Map(op, args) => {
                    let xs: Vec<T> = args.iter().map(|a| values[a.0 as usize]).collect();
                    T::apply(*op, &xs)?
                }
            };
            values.push(v);
        }
        Some(values)
    }
}

impl Draw<f64> {
    /// What a provisional value may meet: constants, and values that are free of the reduced axes.
    fn met(&self, body: &Body) -> Vec<f64> {
        let mut all = vec![1.0];
        for item in &body.items {
            match item {
                Item::Constant(c) => all.extend([*c, 1.0 / c]),
                Item::Leaf(id) => all.extend(self.nodes.get(id)),
                Item::Opaque(_) | Item::Provisional(_) | Item::Map(..) => {}
            }
        }
        all.extend(&self.new);
        all.retain(|x| x.is_finite() && *x != 0.0);
        all.iter().flat_map(|x| [*x, -x]).collect()
    }
}

/// One step of a body or of a correction: its operation, its operands, and whether it is an old value.
type Step = (Option<MapOp>, Vec<usize>, bool);

fn steps_of_body(body: &Body) -> Vec<Step> {
    let step = |item: &Item| match item {
        Item::Map(op, args) => (Some(*op), args.clone(), false),
        Item::Provisional(_) => (None, Vec::new(), true),
        Item::Opaque(_) | Item::Leaf(_) | Item::Constant(_) => (None, Vec::new(), false),
    };
    body.items.iter().map(step).collect()
}

fn steps_of_correction(c: &Correction) -> Vec<Step> {
    let step = |term: &Term| match term {
        Term::Map(op, args) => {
            let args = args.iter().map(|a| a.0 as usize).collect();
            (Some(*op), args, false)
        }
        Term::Old(_) => (None, Vec::new(), true),
        Term::New(_) | Term::Leaf(_) | Term::Constant(_) => (None, Vec::new(), false),
    };
    c.terms.iter().map(step).collect()
}

/// The divisors that hang on old values, other than products and quotients of plain ones: whoever runs a correction replaces a plain zero.
fn divisors(steps: &[Step]) -> Vec<usize> {
    let mut plain = Vec::with_capacity(steps.len());
    let mut old = Vec::with_capacity(steps.len());
    let mut all = Vec::new();
    for (op, args, is_old) in steps {
        let multiplies = matches!(op, None | Some(MapOp::Mul | MapOp::Div));
        plain.push(multiplies && args.iter().all(|a| plain[*a]));
        old.push(*is_old || args.iter().any(|a| old[*a]));
        if let (Some(MapOp::Div), Some(divisor)) = (op, args.last())
            && old[*divisor]
            && !plain[*divisor]
        {
            all.push(*divisor);
        }
    }
    all
}

/// The signs that some values were seen to have.
struct Signs {
    of: Vec<usize>,
    seen: Vec<[bool; 2]>,
}

impl Signs {
    fn new(of: Vec<usize>) -> Self {
        let seen = vec![[false; 2]; of.len()];
        Self { of, seen }
    }

    fn see(&mut self, values: &[f64]) {
        for (seen, at) in self.seen.iter_mut().zip(&self.of) {
            let x = values[*at];
            *seen = [seen[0] || x < 0.0, seen[1] || x > 0.0];
        }
    }

    /// Whether a value has had both signs: between them it is zero.
    fn change(&self) -> bool {
        self.seen.contains(&[true; 2])
    }
}

fn corrected(op: ReduceOp) -> MapOp {
    match op {
        ReduceOp::Sum => MapOp::Mul,
        ReduceOp::Max => MapOp::Add,
    }
}

/// A number in a range, as far from its nearer end as the given one from zero.
fn within(x: f64, range: Option<&[f64; 2]>) -> f64 {
    match range {
        Some([low, high]) if low == high => x,
        Some([low, _]) if *low >= 0.0 => low + x.abs(),
        Some([_, high]) if *high <= 0.0 => high - x.abs(),
        Some(_) | None => x,
    }
}

fn floating(body: &Body, c: &Correction) -> bool {
    let mut rng = ChaCha8Rng::seed_from_u64(0x7469_6c65);
    let mut of_body = Signs::new(divisors(&steps_of_body(body)));
    let mut of_correction = Signs::new(divisors(&steps_of_correction(c)));
    let mut valid = 0;
    for i in 0..DRAWS {
        // Half of the draws are non-negative, so that roots and logarithms have values.
        let low = if i % 2 == 0 { -3.0 } else { 0.0 };
        let zeros = [0.0, 0.25, 0.5][i % 3];
        let (start, meets) = (i % 8 < 2, i % 4 == 3);
        let mut draw = Draw::of(
            body,
            || {
                if rng.random_bool(zeros) {
                    0.0
                } else {
                    rng.random_range(low..3.0)
                }
            },
            |values, old| {
                for (v, sign) in values.iter_mut().zip(&body.signs) {
                    *v = sign.map_or(*v, |s| s * v.abs());
                    if old && start {
                        *v = 0.0;
                    } else if *v == 0.0 {
                        *v = 1.5 * sign.unwrap_or(1.0);
                    }
                }
            },
        );
        for (id, v) in &mut draw.nodes {
            *v = within(*v, body.ranges.get(id));
        }
        if meets {
            let met = draw.met(body);
            for (v, sign) in draw.old.iter_mut().zip(&body.signs) {
                let x = met[rng.random_range(0..met.len())];
                *v = sign.map_or(x, |s| s * x.abs());
            }
        }
        if draw.is_undefined(body, |x| x == 0.0) {
            continue;
        }
        let (Some(terms), Some(items), Some(new)) = (
            draw.terms(c),
            draw.items(body, &draw.old),
            draw.body(body, &draw.new),
        ) else {
            return false;
        };
        let (correction, old) = (terms[c.root.0 as usize], items[body.root]);
        of_body.see(&items);
        of_correction.see(&terms);
        if of_body.change() || of_correction.change() {
            return false;
        }
        if !new.is_finite() {
            continue;
        }
        if start && !correction.is_finite() {
            return false;
        }
        if !old.is_finite() {
            if meets && old.is_infinite() {
                return false;
            }
            continue;
        }
        let Some(got) = f64::apply(corrected(body.op), &[old, correction]) else {
            return false;
        };
        // Written so that a NaN refuses.
        let close = (got - new).abs() <= TOLERANCE * (got.abs() + new.abs() + 1e-3);
        if !close {
            return false;
        }
        valid += 1;
    }
    valid >= VALID
}

fn exact(body: &Body, c: &Correction) -> bool {
    let mut rng = ChaCha8Rng::seed_from_u64(0x6578_6163);
    let mut any = |zeros: f64| {
        if rng.random_bool(zeros) {
            return Pair {
                value: 0,
                exponent: Some(0),
            };
        }
        Pair {
            value: rng.next_u64() % VALUE,
            exponent: Some(rng.next_u64() % EXPONENT),
        }
    };
    for i in 0..64 {
        let zeros = [0.0, 0.25][i % 2];
        let draw: Draw<Pair> = Draw::of(body, || any(zeros), |_, _| {});
        // An operation without a counterpart in a field, or a division by zero: floating point has to do.
        let (Some(old), Some(new), Some(c)) = (
            draw.body(body, &draw.old),
            draw.body(body, &draw.new),
            draw.correction(c),
        ) else {
            continue;
        };
        match Pair::apply(corrected(body.op), &[old, c]) {
            Some(got) if got.value == new.value => {}
            Some(_) | None => return false,
        }
    }
    true
}

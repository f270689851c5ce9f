//! Certifying a guessed correction: `f(j, R) = f(j, r) · c(r, R)` (or `+`) on random values.
//!
//! Twice: in floating point, over values of both signs, zeros and the zero start of running values; and exactly in a
//! pair of prime fields. One counterexample refuses the guess, and so do too few valid draws.

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
                    draw.nodes.insert(*id, node());
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
        values.get(body.root).copied()
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
        values.get(c.root.0 as usize).copied()
    }
}

fn corrected(op: ReduceOp) -> MapOp {
    match op {
        ReduceOp::Sum => MapOp::Mul,
        ReduceOp::Max => MapOp::Add,
    }
}

fn floating(body: &Body, c: &Correction) -> bool {
    let mut rng = ChaCha8Rng::seed_from_u64(0x7469_6c65);
    let mut valid = 0;
    for i in 0..DRAWS {
        // Half of the draws are non-negative, so that roots and logarithms have values.
        let low = if i % 2 == 0 { -3.0 } else { 0.0 };
        let zeros = [0.0, 0.25, 0.5][i % 3];
        let start = i % 8 < 2;
        let draw = Draw::of(
            body,
            || {
                if rng.random_bool(zeros) {
                    0.0
                } else {
                    rng.random_range(low..3.0)
                }
            },
            |values, old| {
                for v in values {
                    if old && start {
                        *v = 0.0;
                    } else if *v == 0.0 {
                        *v = 1.5;
                    }
                }
            },
        );
        if draw.is_undefined(body, |x| x == 0.0) {
            continue;
        }
        let Some(correction) = draw.correction(c) else {
            return false;
        };
        let (Some(old), Some(new)) = (draw.body(body, &draw.old), draw.body(body, &draw.new))
        else {
            return false;
        };
        if !new.is_finite() {
            continue;
        }
        if start && !correction.is_finite() {
            return false;
        }
        if !old.is_finite() {
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

//! Certifying a guessed correction: `f(j, R) = f(j, r) · c(r, R)` (or `+`) on random values.
//!
//! Twice: in floating point, over values of both signs, zeros, the zero start of running values and running values that meet another value;
//! and exactly in a pair of prime fields. One counterexample refuses the guess, and so do too few valid draws.

use super::{Body, Correction, Item, Running, Term};
use ir::field::Residues;
use ir::number::Number;
use ir::{Fact, MapOp, NodeId, ReduceOp};
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

impl Running {
    /// A number with the sign that it must have.
    fn signed(&self, x: f64) -> f64 {
        self.sign.map_or(x, |s| s * x.abs())
    }
}

/// What a step of a body or of a correction is.
enum Step {
    /// An old value; plain if zeros of it are replaced before anything divides by it.
    Old {
        plain: bool,
    },
    Other,
    Map(MapOp, Vec<usize>),
}

fn steps_of_body(body: &Body) -> Vec<Step> {
    let step = |item: &Item| match item {
        Item::Map(op, args) => Step::Map(*op, args.clone()),
        Item::Provisional(k) => Step::Old {
            plain: body.provisional[*k].is_sum,
        },
        Item::Opaque(_) | Item::Leaf(_) | Item::Constant(_) => Step::Other,
    };
    body.items.iter().map(step).collect()
}

fn steps_of_correction(body: &Body, c: &Correction) -> Vec<Step> {
    let step = |term: &Term| match term {
        Term::Map(op, args) => Step::Map(*op, args.iter().map(|a| a.0 as usize).collect()),
        Term::Old(k) => Step::Old {
            plain: body.provisional[*k].is_sum,
        },
        Term::New(_) | Term::Leaf(_) | Term::Constant(_) => Step::Other,
    };
    c.terms.iter().map(step).collect()
}

/// The factors of divisors that hang on old values and are not plain ones.
fn factors(steps: &[Step]) -> Vec<usize> {
    let mut old: Vec<bool> = Vec::with_capacity(steps.len());
    let mut stack: Vec<usize> = Vec::new();
    for step in steps {
        old.push(match step {
            Step::Old { .. } => true,
            Step::Other => false,
            Step::Map(_, args) => args.iter().any(|a| old[*a]),
        });
        if let Step::Map(MapOp::Div, args) = step {
            stack.extend(args.last());
        }
    }
    let mut found: Vec<usize> = Vec::new();
    while let Some(at) = stack.pop() {
        match &steps[at] {
            Step::Map(MapOp::Mul | MapOp::Div, args) => stack.extend(args),
            Step::Map(MapOp::Function(f), args) if args.len() == 1 && f.has(Fact::ZeroAtZero) => {
                stack.extend(args);
            }
            Step::Old { plain: true } | Step::Other => {}
            Step::Old { plain: false } | Step::Map(..) => found.extend(old[at].then_some(at)),
        }
    }
    found
}

/// Whether one of some values has another sign here than there: between them it is zero.
fn change_sign(values: &[usize], here: &[f64], there: &[f64]) -> bool {
    values.iter().any(|at| {
        let (x, y) = (here[*at], there[*at]);
        (x < 0.0 && y > 0.0) || (x > 0.0 && y < 0.0)
    })
}

/// Whether an exponential is too large or too small for floating point, which says nothing of the reals.
fn leaves_range(steps: &[Step], values: &[f64]) -> bool {
    let mut all = steps.iter().zip(values);
    all.any(|(step, x)| {
        let positive = matches!(step, Step::Map(MapOp::Function(f), _) if f.has(Fact::Positive));
        positive && (*x == 0.0 || x.is_infinite())
    })
}

fn corrected(op: ReduceOp) -> MapOp {
    match op {
        ReduceOp::Sum | ReduceOp::Product => MapOp::Mul,
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

/// How the numbers of a draw in floating point are chosen.
#[derive(Clone, Copy)]
struct Choice {
    /// The lower end of the numbers; the upper one is 3.
    low: f64,
    /// How often a number is zero.
    zeros: f64,
    /// Whether running values are where they start, at zero.
    start: bool,
    /// Whether old running values meet something: a constant, a leaf, or another running value.
    meets: bool,
}

impl Choice {
    fn of(i: usize) -> Self {
        Self {
            // Half of the draws are non-negative, so that roots and logarithms have values.
            low: if i.is_multiple_of(2) { -3.0 } else { 0.0 },
            zeros: [0.0, 0.25, 0.5][i % 3],
            start: i % 8 < 2,
            meets: i % 4 == 3,
        }
    }

    fn draw(self, body: &Body, rng: &mut ChaCha8Rng) -> Draw<f64> {
        let mut draw = Draw::of(
            body,
            || {
                if rng.random_bool(self.zeros) {
                    0.0
                } else {
                    rng.random_range(self.low..3.0)
                }
            },
            |values, old| {
                for (v, running) in values.iter_mut().zip(&body.provisional) {
                    *v = running.signed(*v);
                    if old && self.start {
                        *v = 0.0;
                    } else if *v == 0.0 {
                        *v = running.signed(1.5);
                    }
                }
            },
        );
        for (id, v) in &mut draw.nodes {
            *v = within(*v, body.ranges.get(id));
        }
        if self.meets {
            let met = draw.met(body);
            for (v, running) in draw.old.iter_mut().zip(&body.provisional) {
                let zero = !running.is_sum && running.may_vanish && rng.random_bool(0.2);
                let x = met[rng.random_range(0..met.len())];
                *v = if zero { 0.0 } else { running.signed(x) };
            }
        }
        draw
    }
}

/// What a draw says of a guess.
enum Verdict {
    Agrees,
    Refutes,
    /// Nothing: a side has no value here.
    Silent,
}

/// A guess, and what its two sides divide by.
struct Guess<'a> {
    body: &'a Body,
    correction: &'a Correction,
    of_body: Vec<Step>,
    of_correction: Vec<Step>,
    body_factors: Vec<usize>,
    correction_factors: Vec<usize>,
}

impl<'a> Guess<'a> {
    fn new(body: &'a Body, correction: &'a Correction) -> Self {
        let of_body = steps_of_body(body);
        let of_correction = steps_of_correction(body, correction);
        let (body_factors, correction_factors) = (factors(&of_body), factors(&of_correction));
        Self {
            body,
            correction,
            of_body,
            of_correction,
            body_factors,
            correction_factors,
        }
    }

    fn judge(&self, draw: &Draw<f64>, choice: Choice) -> Verdict {
        if draw.is_undefined(self.body, |x| x == 0.0) {
            return Verdict::Silent;
        }
        let turned = Draw {
            nodes: draw.nodes.clone(),
            old: draw.new.clone(),
            new: draw.new.clone(),
        };
        let (Some(terms), Some(later), Some(items), Some(last)) = (
            draw.terms(self.correction),
            turned.terms(self.correction),
            draw.items(self.body, &draw.old),
            draw.items(self.body, &draw.new),
        ) else {
            return Verdict::Refutes;
        };
        if change_sign(&self.body_factors, &items, &last)
            || change_sign(&self.correction_factors, &terms, &later)
        {
            return Verdict::Refutes;
        }
        let outside =
            leaves_range(&self.of_body, &items) || leaves_range(&self.of_correction, &terms);
        let (correction, old, new) = (
            terms[self.correction.root.0 as usize],
            items[self.body.root],
            last[self.body.root],
        );
        if (choice.meets && outside) || !new.is_finite() {
            return Verdict::Silent;
        }
        if choice.start && !correction.is_finite() {
            return Verdict::Refutes;
        }
        if !old.is_finite() {
            // Several provisional values may keep each other from where this is.
            let alone = !choice.start && draw.old.len() == 1;
            return if (choice.meets && old.is_infinite()) || (alone && old.is_nan()) {
                Verdict::Refutes
            } else {
                Verdict::Silent
            };
        }
        let Some(got) = f64::apply(corrected(self.body.op), &[old, correction]) else {
            return Verdict::Refutes;
        };
        // Written so that a NaN refuses.
        if (got - new).abs() <= TOLERANCE * (got.abs() + new.abs() + 1e-3) {
            Verdict::Agrees
        } else {
            Verdict::Refutes
        }
    }
}

fn floating(body: &Body, c: &Correction) -> bool {
    let mut rng = ChaCha8Rng::seed_from_u64(0x7469_6c65);
    let guess = Guess::new(body, c);
    let mut valid = 0;
    for choice in (0..DRAWS).map(Choice::of) {
        match guess.judge(&choice.draw(body, &mut rng), choice) {
            Verdict::Agrees => valid += 1,
            Verdict::Refutes => return false,
            Verdict::Silent => {}
        }
    }
    valid >= VALID
}

fn exact(body: &Body, c: &Correction) -> bool {
    let mut rng = ChaCha8Rng::seed_from_u64(0x6578_6163);
    let mut any = |zeros: f64| {
        if rng.random_bool(zeros) {
            return Residues::integer(0);
        }
        Residues::new(rng.next_u64(), rng.next_u64())
    };
    for i in 0..64 {
        let zeros = [0.0, 0.25][i % 2];
        let draw: Draw<Residues> = Draw::of(body, || any(zeros), |_, _| {});
        // An operation without a counterpart in a field, or a division by zero: floating point has to do.
        let (Some(old), Some(new), Some(c)) = (
            draw.body(body, &draw.old),
            draw.body(body, &draw.new),
            draw.correction(c),
        ) else {
            continue;
        };
        match Residues::apply(corrected(body.op), &[old, c]) {
            Some(got) if got.p == new.p => {}
            Some(_) | None => return false,
        }
    }
    true
}

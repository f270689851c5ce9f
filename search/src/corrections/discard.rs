//! Corrections that discard: of a reduction to which nothing counts but where a maximum is, a higher maximum leaves nothing.
//!
//! Let `R = max_j g(j)`, and let `f(j, R)` be the same number `e` at every `j` with `g(j) < R`, as in the place of a maximum, which is
//! `min_j select(g(j) ≥ R, j, size)`. What was reduced so far saw the running maximum `r`. Where `r = R` it is right, and where `r < R` all
//! that it saw is `e`, because it saw no `j` with `g(j) > r`:
//!
//! ```text
//! c(r, R) = select(r ≥ R, 1, 0)     for a sum, where e = 0
//! c(r, R) = select(r ≥ R, 0, −∞)    for a maximum, where e is the least that f can be
//! ```
//!
//! That holds for the running maximum alone: a provisional value above it would discard what counts, one below it would keep what does not.
//! Beside an infinite maximum a difference may have no value: `r ≥ R` is `−max(R − r, 0) ≥ 0`, where what is no number is not greater than 0.
//!
//! Such an `f` is a multiple of `select(t, v, e)`, for a sum also a product with one, where `t` is made of `g(j)`, `R` and constants alone. Whether it is
//! negative wherever `g(j) < R` is tried on numbers, as any other guess. What else `t` hangs on might meet something where no draw does.

use super::{Correction, Term, TermId};
use crate::egraph::convert;
use ir::number::Number;
use ir::{MapOp, NodeId, Op, Program, ReduceOp};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

/// On how many pairs of numbers a condition is tried.
const DRAWS: usize = 256;

/// The correction of a reduction that discards what it has when a maximum rises.
pub(super) fn derive(program: &Program, reduction: NodeId, maximum: NodeId) -> Option<Correction> {
    let Op::Reduce {
        op: ReduceOp::Max,
        axes: seen,
    } = &program.node(maximum).op
    else {
        return None;
    };
    let node = program.node(reduction);
    let (op, reduced) = match &node.op {
        Op::Reduce { op, axes } => (*op, axes),
        Op::Dot { axes } => (ReduceOp::Sum, axes),
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => {
            return None;
        }
    };
    // Both see the same places.
    if seen != reduced {
        return None;
    }
    let finite = convert::finite(program);
    let greatest = *program.node(maximum).args.first()?;
    let (each, base) = multiple(program, greatest);
    let chosen = Chosen {
        program,
        maximum,
        each,
        base,
        finite: &finite,
    };
    match op {
        // Infinity times zero is no number.
        ReduceOp::Sum if node.args.iter().any(|a| !finite[a.index()]) => None,
        ReduceOp::Sum => {
            let mut factors = node.args.clone();
            while let Some(factor) = factors.pop() {
                if chosen.elsewhere(factor) == Some(0.0) {
                    return Some(correction(op, 1.0, 0.0));
                }
                if let Op::Map(MapOp::Mul) = program.node(factor).op {
                    factors.extend(&program.node(factor).args);
                }
            }
            None
        }
        ReduceOp::Product => None,
        ReduceOp::Max => {
            let f = *node.args.first()?;
            let least = convert::ranges(program)[f.index()][0];
            (chosen.elsewhere(f)? <= least).then(|| correction(op, 0.0, op.neutral()))
        }
    }
}

/// A value as a multiple of another one, by a constant that is not zero.
fn multiple(program: &Program, of: NodeId) -> (f64, NodeId) {
    let (mut each, mut base) = (1.0, of);
    while let Op::Map(MapOp::Mul) = &program.node(base).op {
        let [x, y] = program.node(base).args[..] else {
            break;
        };
        let (c, rest) = match (factor(program, x), factor(program, y)) {
            (Some(c), _) => (c, y),
            (None, Some(c)) => (c, x),
            (None, None) => break,
        };
        (each, base) = (each * c, rest);
    }
    (each, base)
}

fn factor(program: &Program, of: NodeId) -> Option<f64> {
    constant(program, of).filter(|c| c.is_finite() && *c != 0.0)
}

fn constant(program: &Program, of: NodeId) -> Option<f64> {
    if let Op::Constant(c) = program.node(of).op {
        Some(c)
    } else {
        None
    }
}

/// `select(−max(R − r, 0), kept, gone)`
fn correction(op: ReduceOp, kept: f64, gone: f64) -> Correction {
    let mut terms = vec![Term::Old(0), Term::New(0), Term::Constant(-1.0)];
    let mut push = |term| {
        terms.push(term);
        TermId(terms.len() as u32 - 1)
    };
    let [old, new, minus] = [0, 1, 2].map(TermId);
    let negative = push(Term::Map(MapOp::Mul, vec![minus, old]));
    let rise = push(Term::Map(MapOp::Add, vec![new, negative]));
    let zero = push(Term::Constant(0.0));
    let rise = push(Term::Map(MapOp::Max, vec![rise, zero]));
    let test = push(Term::Map(MapOp::Mul, vec![minus, rise]));
    let [kept, gone] = [kept, gone].map(|c| push(Term::Constant(c)));
    let root = push(Term::Map(MapOp::Select, vec![test, kept, gone]));
    Correction {
        op,
        terms,
        root,
        exact: true,
    }
}

/// What is chosen where a maximum is, and elsewhere.
struct Chosen<'p> {
    program: &'p Program,
    maximum: NodeId,
    /// `g` is `each` times `base`.
    each: f64,
    base: NodeId,
    finite: &'p [bool],
}

impl Chosen<'_> {
    /// What a value is at every `j` where `g(j)` is less than the maximum, if that is one number.
    fn elsewhere(&self, of: NodeId) -> Option<f64> {
        let (each, select) = multiple(self.program, of);
        let node = self.program.node(select);
        let (Op::Map(MapOp::Select), [test, there, elsewhere]) = (&node.op, &node.args[..]) else {
            return None;
        };
        let elsewhere = constant(self.program, *elsewhere)?;
        (self.finite[there.index()] && self.is_negative_below(*test)).then_some(each * elsewhere)
    }

    /// Whether a condition is negative wherever `g(j)` is less than the maximum.
    fn is_negative_below(&self, test: NodeId) -> bool {
        let Some(steps) = self.steps(test) else {
            return false;
        };
        let constants = steps
            .iter()
            .filter_map(|step| constant(self.program, *step));
        let met: Vec<f64> = constants
            .filter(|c| c.is_finite())
            .flat_map(|c| [c, -c])
            .chain([0.0, 1.0])
            .collect();
        let mut rng = ChaCha8Rng::seed_from_u64(0x6469_7363);
        (0..DRAWS).all(|i| {
            let base = match i % 3 {
                0 => met[rng.random_range(0..met.len())],
                _ => rng.random_range(-10.0..10.0),
            };
            let g = self.each * base;
            let higher = match i % 5 {
                0 => met[rng.random_range(0..met.len())],
                1 => g + 1e-9 * (1.0 + g.abs()),
                2 => g + 1e6,
                _ => g + rng.random_range(0.0..3.0),
            };
            // Written so that a NaN refuses.
            higher <= g || self.at(&steps, base, higher).is_some_and(|t| t < 0.0)
        })
    }

    /// What a condition is made of, operands first; none if that is more than `g`, the maximum and constants.
    fn steps(&self, test: NodeId) -> Option<Vec<NodeId>> {
        let mut wanted = BTreeSet::from([test]);
        let mut steps = Vec::new();
        while let Some(id) = wanted.pop_last() {
            steps.push(id);
            let node = self.program.node(id);
            match &node.op {
                _ if id == self.base || id == self.maximum => {}
                Op::Constant(_) => {}
                Op::Map(_) => wanted.extend(&node.args),
                Op::Parameter { .. }
                | Op::Iota(_)
                | Op::View { .. }
                | Op::Reduce { .. }
                | Op::Dot { .. } => return None,
            }
        }
        steps.reverse();
        Some(steps)
    }

    /// The value of the last step.
    fn at(&self, steps: &[NodeId], base: f64, maximum: f64) -> Option<f64> {
        let mut values: BTreeMap<NodeId, f64> = BTreeMap::new();
        for id in steps {
            let node = self.program.node(*id);
            let value = match &node.op {
                _ if *id == self.base => base,
                _ if *id == self.maximum => maximum,
                Op::Constant(c) => *c,
                Op::Map(op) => {
                    let args: Option<Vec<f64>> =
                        node.args.iter().map(|a| values.get(a).copied()).collect();
                    f64::apply(*op, &args?)?
                }
                Op::Parameter { .. }
                | Op::Iota(_)
                | Op::View { .. }
                | Op::Reduce { .. }
                | Op::Dot { .. } => return None,
            };
            values.insert(*id, value);
        }
        values.get(steps.last()?).copied()
    }
}

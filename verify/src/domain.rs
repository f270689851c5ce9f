//! On which numbers a program is defined: what its roots and logarithms ask of its parameters.
//!
//! `√(v + ε)` is defined for a variance `v` and not for any number. Drawn inputs stay where a program is defined, or else nothing
//! it gives could be compared. Integers are drawn where they decide something: among the coordinates that they are compared with. This is a
//! help for drawing and no proof: what is not understood asks for nothing.

use ir::random::mix;
use ir::{Dtype, Fact, MapOp, NodeId, Op, Program, ReduceOp};

/// An interval in which a parameter's elements are drawn; without bounds for most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Domain {
    low: f64,
    high: f64,
    /// Whether the bounds themselves are outside.
    open: bool,
    /// Whether there are but the integers between the bounds.
    whole: bool,
}

impl Domain {
    const ALL: Self = Self {
        low: f64::NEG_INFINITY,
        high: f64::INFINITY,
        open: false,
        whole: false,
    };
    /// Of the width of a bounded domain, or absolute: how far from an open end a number is moved.
    const MARGIN: f64 = 1.0 / 64.0;

    fn integers(low: f64, high: f64) -> Self {
        Self {
            low,
            high,
            open: false,
            whole: true,
        }
    }

    /// A number of the domain: the given one where it is inside, else its mirror image at the ends; of integers any, the same for the same number.
    pub(crate) fn fold(&self, x: f64) -> f64 {
        if self.whole {
            let (bits, last) = (mix(x.to_bits()), (self.high - self.low) as u64);
            // Of eight one is at an end or beside it.
            let at = match bits >> 61 {
                0 => [0, 1, last.saturating_sub(1), last][(bits & 3) as usize].min(last),
                _ => bits % (last + 1),
            };
            return self.low + at as f64;
        }
        let (bounded, width) = (
            self.low.is_finite() && self.high.is_finite(),
            self.high - self.low,
        );
        let folded = if bounded {
            let around = (x - self.low).rem_euclid(2.0 * width);
            self.low + around.min(2.0 * width - around)
        } else if x < self.low {
            2.0 * self.low - x
        } else if x > self.high {
            2.0 * self.high - x
        } else {
            x
        };
        if !self.open {
            return folded;
        }
        let margin = Self::MARGIN * if bounded { width } else { 1.0 };
        if folded == self.low {
            self.low + margin
        } else if folded == self.high {
            self.high - margin
        } else {
            folded
        }
    }

    /// Whether every number is inside.
    pub(crate) fn is_everything(&self) -> bool {
        *self == Self::ALL
    }

    /// Whether it has but integers.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Its ends.
    pub(crate) fn bounds(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    fn narrow(&mut self, low: f64, high: f64, open: bool) {
        let narrowed = (self.low.max(low), self.high.min(high));
        // Contradictory demands are not understood.
        if narrowed.0 < narrowed.1 {
            (self.low, self.high) = narrowed;
            self.open |= open;
        }
    }
}

/// A domain for each parameter, in order.
pub(crate) fn domains(program: &Program) -> Vec<Domain> {
    let mut domains = vec![Domain::ALL; program.nodes.len()];
    for node in &program.nodes {
        let asked = match &node.op {
            Op::Map(MapOp::Function(function)) => function.row().domains,
            Op::Map(MapOp::Add | MapOp::Mul | MapOp::Div | MapOp::Max | MapOp::Select)
            | Op::Parameter { .. }
            | Op::Constant(_)
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Reduce { .. }
            | Op::Dot { .. } => continue,
        };
        for (argument, asked) in node.args.iter().zip(asked) {
            let open = match asked {
                ir::Domain::All | ir::Domain::NonZero => continue,
                ir::Domain::NonNegative => false,
                ir::Domain::Positive => true,
            };
            for (parameter, low, high) in at_least(program, *argument, 0.0).into_iter().flatten() {
                domains[parameter.index()].narrow(low, high, open);
            }
        }
    }
    let parameters = program.parameters();
    parameters
        .map(|(id, _, dtype, _)| match dtype {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => domains[id.index()],
            Dtype::Bool => Domain::integers(0.0, 1.0),
            Dtype::I32 | Dtype::I64 => decisive(program, id),
        })
        .collect()
}

/// The same of a program, whose integers are compared with the coordinates of another form of it.
pub(crate) fn domains_at(program: &Program, other: &Program) -> Vec<Domain> {
    let all = domains(program).into_iter().zip(domains(other));
    all.map(|(own, other)| if own.whole { other } else { own })
        .collect()
}

/// The integers of a parameter with which something is zero that it is added to coordinates in, and those beside them; a few small ones where there
/// is no such thing.
fn decisive(program: &Program, parameter: NodeId) -> Domain {
    const SMALL: f64 = 4.0;
    // Each value as a multiple of the parameter and a rest between bounds, where it is one.
    let mut all: Vec<Option<(f64, f64, f64)>> = Vec::with_capacity(program.nodes.len());
    let mut bounds: Option<(f64, f64)> = None;
    for (at, node) in program.nodes.iter().enumerate() {
        let of = |n: usize| all.get(node.args.get(n)?.index()).copied().flatten();
        let form = match &node.op {
            Op::Parameter { .. } => (at == parameter.index()).then_some((1.0, 0.0, 0.0)),
            Op::Constant(c) => c.is_finite().then_some((0.0, *c, *c)),
            Op::Iota(axis) => Some((0.0, 0.0, program.extent(*axis) as f64 - 1.0)),
            Op::View { .. } => of(0),
            Op::Map(MapOp::Add) => of(0)
                .zip(of(1))
                .map(|(x, y)| (x.0 + y.0, x.1 + y.1, x.2 + y.2)),
            Op::Map(MapOp::Mul) => of(0).zip(of(1)).and_then(|(x, y)| {
                let scaled = |x: (f64, f64, f64), c: f64| {
                    let (low, high) = (c * x.1, c * x.2);
                    (c * x.0, low.min(high), low.max(high))
                };
                match (x, y) {
                    ((0.0, low, high), _) if low == high => Some(scaled(y, low)),
                    (_, (0.0, low, high)) if low == high => Some(scaled(x, low)),
                    _ => None,
                }
            }),
            Op::Map(_) | Op::Reduce { .. } | Op::Dot { .. } => None,
        };
        if let Some((c, low, high)) = form.filter(|(c, low, high)| *c != 0.0 && low < high) {
            let ends = (-low / c, -high / c);
            let own = (ends.0.min(ends.1), ends.0.max(ends.1));
            bounds = Some(bounds.map_or(own, |b| (b.0.min(own.0), b.1.max(own.1))));
        }
        all.push(form);
    }
    match bounds {
        Some((low, high)) => Domain::integers(low.floor() - 1.0, high.ceil() + 1.0),
        None => Domain::integers(-SMALL, SMALL),
    }
}

/// Intervals of parameters.
type Demands = Vec<(NodeId, f64, f64)>;

/// What parameters must be for a value to be at least `bound`; none where that is not understood.
fn at_least(program: &Program, value: NodeId, bound: f64) -> Option<Demands> {
    let node = program.node(value);
    let both = |bound| {
        let mut all = at_least(program, node.args[0], bound)?;
        all.extend(at_least(program, node.args[1], bound)?);
        Some(all)
    };
    match (&node.op, node.args.as_slice()) {
        (Op::Parameter { .. }, _) => Some(vec![(value, bound, f64::INFINITY)]),
        (Op::Constant(c), _) => (*c >= bound).then(Vec::new),
        (Op::Iota(_), _) => (bound <= 0.0).then(Vec::new),
        (Op::View { fill, .. }, [x]) if fill.is_none_or(|f| f >= bound) => {
            at_least(program, *x, bound)
        }
        (Op::Map(MapOp::Add), [x, y]) => match (constant(program, *x), constant(program, *y)) {
            (Some(c), _) => at_least(program, *y, bound - c),
            (_, Some(c)) => at_least(program, *x, bound - c),
            (None, None) if bound <= 0.0 => both(0.0),
            (None, None) => None,
        },
        (Op::Map(MapOp::Mul), [x, y]) => match (constant(program, *x), constant(program, *y)) {
            _ if x == y && bound <= 0.0 => Some(Vec::new()),
            (Some(c), _) => scaled(program, *y, bound, c),
            (_, Some(c)) => scaled(program, *x, bound, c),
            (None, None) if bound <= 0.0 => both(0.0),
            (None, None) => None,
        },
        (Op::Map(MapOp::Div), [x, y]) => match constant(program, *y) {
            Some(c) => scaled(program, *x, bound, 1.0 / c),
            None if bound <= 0.0 => both(0.0),
            None => None,
        },
        (Op::Map(MapOp::Max), [x, y]) => match constant(program, *x).or(constant(program, *y)) {
            Some(c) if c >= bound => Some(Vec::new()),
            Some(_) | None => both(bound),
        },
        (Op::Map(MapOp::Function(f)), _) if f.has(Fact::NonNegative) => {
            (bound <= 0.0).then(Vec::new)
        }
        (Op::Map(MapOp::Select), [_, x, y]) => {
            let mut all = at_least(program, *x, bound)?;
            all.extend(at_least(program, *y, bound)?);
            Some(all)
        }
        (
            Op::Reduce {
                op: ReduceOp::Max, ..
            },
            [x],
        ) => at_least(program, *x, bound),
        (
            Op::Reduce {
                op: ReduceOp::Sum | ReduceOp::Product,
                ..
            },
            [x],
        ) if bound <= 0.0 => at_least(program, *x, 0.0),
        (Op::Dot { .. }, [x, y]) if bound <= 0.0 => {
            if x == y {
                Some(Vec::new())
            } else {
                both(0.0)
            }
        }
        (Op::Map(_) | Op::View { .. } | Op::Reduce { .. } | Op::Dot { .. }, _) => None,
    }
}

/// What parameters must be for `c·value` to be at least `bound`.
fn scaled(program: &Program, value: NodeId, bound: f64, c: f64) -> Option<Demands> {
    if c > 0.0 {
        return at_least(program, value, bound / c);
    }
    // A negative factor asks for an upper bound, which is understood of parameters alone.
    let mut source = value;
    while let (Op::View { fill: None, .. }, [x]) = (
        &program.node(source).op,
        program.node(source).args.as_slice(),
    ) {
        source = *x;
    }
    let known = c < 0.0 && matches!(program.node(source).op, Op::Parameter { .. });
    known.then(|| vec![(source, f64::NEG_INFINITY, bound / c)])
}

/// The number that a value made of constants is.
fn constant(program: &Program, value: NodeId) -> Option<f64> {
    let node = program.node(value);
    match &node.op {
        Op::Constant(c) => Some(*c),
        Op::Map(op) => {
            let arguments: Option<Vec<f64>> =
                node.args.iter().map(|a| constant(program, *a)).collect();
            arguments.map(|a| op.apply(&a))
        }
        Op::Parameter { .. }
        | Op::Iota(_)
        | Op::View { .. }
        | Op::Reduce { .. }
        | Op::Dot { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the domains of a few formulas, by hand.
    use super::*;

    #[test]
    fn roots_and_logarithms_ask_for_what_they_need() {
        let (all, inf) = (Domain::ALL, f64::INFINITY);
        let of = |low, high, open| Domain {
            low,
            high,
            open,
            whole: false,
        };
        for (text, wanted) in [
            ("(x - y) / sqrt(z + 0.5)", [all, all, of(-0.5, inf, false)]),
            (
                "x * log(x / y)",
                [of(0.0, inf, true), of(0.0, inf, true), all],
            ),
            (
                "y * log(x) + (1 - y) * log(1 - x)",
                [of(0.0, 1.0, true), all, all],
            ),
            ("x / sqrt(sum(x * x; a) + 1e-5)", [all, all, all]),
            ("log(sum(exp(x); a)) + y", [all, all, all]),
            (
                "sqrt(sum(x * y; a) / 8)",
                [of(0.0, inf, false), of(0.0, inf, false), all],
            ),
            // The mean of squares less the square of the mean is not negative, but that is not understood.
            (
                "sqrt(mean(x * x; a) - mean(x; a) * mean(x; a))",
                [all, all, all],
            ),
            ("log(x - 2) + log(1 - x)", [of(2.0, inf, true), all, all]),
        ] {
            let program = format!(
                "program p\naxis a = 8\nx = parameter f32 [a]\ny = parameter f32 [a]\nz = parameter f32 [a]\n\
                 return f32 [a] {text} + 0 * iota(a)\n"
            );
            let program: Program = program.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(domains(&program), wanted, "{text}");
        }
    }

    #[test]
    fn integers_are_drawn_around_what_they_are_compared_with() {
        let of = Domain::integers;
        for (text, wanted) in [
            ("select(iota(a) - t, x, 0)", of(-1.0, 8.0)),
            ("select(t - 1 - iota(a), x, 0)", of(0.0, 9.0)),
            (
                "sum(select(0 - abs(2 * iota(a) - t), x, 0); a) + 0 * iota(a)",
                of(-1.0, 15.0),
            ),
            ("x * t", of(-4.0, 4.0)),
            ("view(select(m - 1, x, t); a -> 7 - a)", of(-4.0, 4.0)),
        ] {
            let program = format!(
                "program p
axis a = 8
x = parameter f32 [a]
t = parameter i64 []
m = parameter bool [a]
                 return f32 [a] {text} + 0 * t * m\n"
            );
            let program: Program = program.parse().unwrap_or_else(|e| panic!("{e}"));
            let found = domains(&program);
            assert_eq!(found, [Domain::ALL, wanted, of(0.0, 1.0)], "{text}");
            let mut drawn = std::collections::BTreeSet::new();
            for n in 0..300 {
                let x = found[1].fold(f64::from(n) / 64.0);
                assert!(x.fract() == 0.0 && (wanted.low..=wanted.high).contains(&x));
                drawn.insert(x as i64);
            }
            assert_eq!(drawn.len() as f64, wanted.high - wanted.low + 1.0);
        }
    }

    #[test]
    fn numbers_are_folded_into_their_domain() {
        let unit = Domain {
            low: 0.0,
            high: 1.0,
            open: true,
            whole: false,
        };
        for n in -300..300 {
            let x = f64::from(n) / 64.0;
            let inside = unit.fold(x);
            assert!(inside > 0.0 && inside < 1.0, "{x} {inside}");
            assert!(inside == x || !(0.0 < x && x < 1.0), "{x} {inside}");
            assert_eq!(Domain::ALL.fold(x), x);
        }
    }
}

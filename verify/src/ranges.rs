//! Which parameters may hold unusual numbers: what a program makes of `-inf`, and of magnitudes, is read off its operations.
//!
//! Names say nothing here. What is not understood is a no: such a parameter is drawn as usual.

use crate::domain::domains;
use ir::{Dtype, Fact, Interval, MapOp, Node, NodeId, Op, Program, ReduceOp};

/// Which parameters, in order, give a defined value where they are `-inf`: they reach maxima and exponentials, and on the way there
/// they are added to, selected, re-indexed and scaled by positive constants.
pub(crate) fn masks(program: &Program) -> Vec<bool> {
    program
        .parameters()
        .map(|(id, _, dtype, _)| dtype.is_float() && is_mask(program, id) == Some(true))
        .collect()
}

fn parameters(program: &Program) -> impl Iterator<Item = NodeId> + '_ {
    let all = program.nodes.iter().enumerate();
    all.filter(|(_, node)| matches!(node.op, Op::Parameter { .. }))
        .map(|(number, _)| NodeId(number as u32))
}

/// Whether a parameter meets a maximum or an exponential; none where it meets something else.
fn is_mask(program: &Program, parameter: NodeId) -> Option<bool> {
    // Values that may be -inf.
    let mut low = vec![false; program.nodes.len()];
    low[parameter.index()] = true;
    let mut met = false;
    for (number, node) in program.nodes.iter().enumerate() {
        let is_low = |n: usize| low[node.args[n].index()];
        let lows = (0..node.args.len()).filter(|n| is_low(*n)).count();
        if lows == 0 {
            continue;
        }
        low[number] = match &node.op {
            Op::View { .. } | Op::Map(MapOp::Add) => true,
            Op::Map(MapOp::Select) if !is_low(0) => true,
            Op::Map(MapOp::Mul) => {
                let positive = |n: usize| {
                    constant(program, node.args[n]).is_some_and(|c| c > 0.0 && c.is_finite())
                };
                match positive(0) || positive(1) {
                    true => true,
                    false => return None,
                }
            }
            Op::Map(MapOp::Max) => {
                met = true;
                lows == 2
            }
            Op::Map(MapOp::Function(function))
                if lows == function.arity()
                    && function.apply(&vec![f64::NEG_INFINITY; lows]).is_finite() =>
            {
                met = true;
                false
            }
            // Finite where not all is masked; where all is, the reference says what is defined.
            Op::Reduce {
                op: ReduceOp::Max, ..
            } => {
                met = true;
                false
            }
            Op::Map(MapOp::Select | MapOp::Div | MapOp::Function(_))
            | Op::Reduce {
                op: ReduceOp::Sum | ReduceOp::Product,
                ..
            }
            | Op::Dot { .. } => return None,
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) => false,
        };
    }
    Some(met)
}

/// The number that a value made of constants is.
fn constant(program: &Program, value: NodeId) -> Option<f64> {
    match &program.node(value).op {
        Op::Constant(c) => Some(*c),
        Op::Map(_)
        | Op::Parameter { .. }
        | Op::Iota(_)
        | Op::View { .. }
        | Op::Reduce { .. }
        | Op::Dot { .. } => None,
    }
}

/// Binary exponents up to which parameters are tried.
const REACHES: &[i32] = &[40, 30, 20, 14, 10, 7, 5, 3];
/// No value of the program may be larger: equal forms of it need some room.
const MOST: f64 = (1u128 << 100) as f64;
/// Ordinary numbers are smaller.
const ORDINARY: f64 = 8.0;

/// Up to which binary exponent each parameter may be drawn, in order, so that no value of the program can overflow; none for those that
/// reach an exponent, and where no bound is known.
pub(crate) fn reaches(program: &Program) -> Vec<Option<i32>> {
    let all: Vec<NodeId> = parameters(program).collect();
    let domains = domains(program);
    let free: Vec<bool> = all
        .iter()
        .zip(&domains)
        .map(|(p, domain)| domain.is_everything() && !feeds_exponents(program, *p))
        .collect();
    let ordinary: Vec<(f64, f64)> = domains
        .iter()
        .map(|d| {
            let (low, high) = d.bounds();
            match d.is_whole() {
                true => (low, high),
                false => (low.max(-ORDINARY), high.min(ORDINARY)),
            }
        })
        .collect();
    let widest: Vec<i32> = program
        .parameters()
        .map(|(_, _, dtype, _)| match dtype {
            Dtype::F16 => 14,
            Dtype::F32 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::Bool => REACHES[0],
        })
        .collect();
    let bounded = |wide: &[bool], reach: i32| {
        let of = |((wide, ordinary), widest): ((&bool, &(f64, f64)), &i32)| match wide {
            true => (
                -2f64.powi(reach.min(*widest)),
                2f64.powi(reach.min(*widest)),
            ),
            false => *ordinary,
        };
        is_bounded(
            program,
            &wide
                .iter()
                .zip(&ordinary)
                .zip(&widest)
                .map(of)
                .collect::<Vec<_>>(),
        )
    };
    // Each by itself at least a little, and then all of them as far as they go together.
    let alone = |n: usize| {
        let wide: Vec<bool> = (0..all.len()).map(|m| m == n).collect();
        free[n] && bounded(&wide, REACHES[REACHES.len() - 1])
    };
    let wide: Vec<bool> = (0..all.len()).map(alone).collect();
    let reach = REACHES.iter().find(|reach| bounded(&wide, **reach));
    wide.iter()
        .zip(&widest)
        .map(|(wide, widest)| reach.filter(|_| *wide).map(|reach| *widest.min(reach)))
        .collect()
}

/// Whether an exponential depends on a parameter.
fn feeds_exponents(program: &Program, parameter: NodeId) -> bool {
    feeds(program, parameter, is_exponential)
}

fn is_exponential(op: &Op) -> bool {
    matches!(op, Op::Map(MapOp::Function(f)) if f.has(Fact::SumsToProducts))
}

/// Whether an operation of a kind depends on a value.
fn feeds(program: &Program, value: NodeId, is_asked_for: impl Fn(&Op) -> bool) -> bool {
    let mut depends = vec![false; program.nodes.len()];
    depends[value.index()] = true;
    program.nodes.iter().enumerate().any(|(number, node)| {
        let found = node.args.iter().any(|a| depends[a.index()]);
        depends[number] |= found;
        found && is_asked_for(&node.op)
    })
}

/// By how much each parameter is scaled, in order, a power of two, so that a product with what was computed is as large as that: about `1/√K` for
/// weights that are summed over `K` terms, 1 for all others. Without that, layers behind layers make numbers so large that a maximum of exponents takes
/// all, and whole rows hang on a rounding. What no further product and no exponential depends on is left as it is.
pub(crate) fn weights(program: &Program) -> Vec<f64> {
    let floats = program
        .parameters()
        .map(|(_, _, dtype, _)| dtype.is_float());
    parameters(program)
        .zip(floats)
        .map(|(p, is_float)| {
            weighed_over(program, p)
                .filter(|_| is_float)
                .map_or(1.0, |terms| (-(terms as f64).log2() / 2.0).round().exp2())
        })
        .collect()
}

/// The most terms of the products that a parameter is a weight in; none where it is something else as well.
fn weighed_over(program: &Program, parameter: NodeId) -> Option<u64> {
    let viewed = |mut value: NodeId| {
        while let Op::View { .. } = program.node(value).op {
            value = program.node(value).args[0];
        }
        value
    };
    let is_given = |value: NodeId| matches!(program.node(viewed(value)).op, Op::Parameter { .. });
    let mut most = None;
    for (number, node) in program.nodes.iter().enumerate() {
        if matches!(node.op, Op::View { .. }) || node.args.iter().all(|a| viewed(*a) != parameter) {
            continue;
        }
        let Op::Dot { axes } = &node.op else {
            return None;
        };
        if node.args.iter().all(|a| is_given(*a)) || !goes_on(program, NodeId(number as u32)) {
            return None;
        }
        most = most.max(program.elements(axes));
    }
    most
}

/// Whether a product or an exponential depends on a value.
fn goes_on(program: &Program, value: NodeId) -> bool {
    feeds(program, value, |op| {
        is_exponential(op) || matches!(op, Op::Dot { .. })
    })
}

/// Whether every value stays within what its dtype holds where the parameters are in intervals.
fn is_bounded(program: &Program, parameters: &[(f64, f64)]) -> bool {
    let mut given = parameters.iter();
    let mut all: Vec<(f64, f64)> = Vec::with_capacity(program.nodes.len());
    for node in &program.nodes {
        let interval = match node.op {
            Op::Parameter { .. } => given.next().copied(),
            Op::Constant(_)
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot { .. } => interval(program, node, &all),
        };
        let within = |(low, high): &(f64, f64)| {
            // Constants may be -inf.
            *high <= MOST && (*low >= -MOST || *low == f64::NEG_INFINITY)
        };
        match interval.filter(within) {
            Some(interval) => all.push(interval),
            None => return false,
        }
    }
    let fits = |value: NodeId, dtype: Dtype| {
        let (low, high) = all[value.index()];
        let most = match dtype {
            Dtype::F16 => 65504.0 / 4.0,
            Dtype::F32 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::Bool => MOST,
        };
        high <= most && (low >= -most || low == f64::NEG_INFINITY)
    };
    let dtypes = program.dtypes();
    let operands = program.nodes.iter().zip(dtypes).all(|(node, dtype)| {
        let narrow = matches!(node.op, Op::Dot { .. }).then_some(dtype).flatten();
        narrow.is_none_or(|dtype| node.args.iter().all(|a| fits(*a, dtype)))
    });
    operands && program.outputs.iter().all(|o| fits(o.value, o.dtype))
}

/// An interval of all values of an operation on what is in intervals; none where it has no bounds.
fn interval(program: &Program, node: &Node, all: &[(f64, f64)]) -> Option<(f64, f64)> {
    let arg = |n: usize| Some((*node.args.get(n)?, *all.get(node.args.get(n)?.index())?));
    let terms = |axes| program.elements(axes).map(|n| n as f64);
    match &node.op {
        Op::Parameter { .. } => None,
        Op::Constant(c) => Some((*c, *c)),
        Op::Iota(axis) => Some((0.0, program.extent(*axis) as f64)),
        Op::View { fill, .. } => {
            let (_, (low, high)) = arg(0)?;
            let fill = fill.unwrap_or(low);
            Some((low.min(fill), high.max(fill)))
        }
        Op::Map(MapOp::Add) => {
            let ((x, a), (y, b)) = (arg(0)?, arg(1)?);
            let sum = (a.0 + b.0, a.1 + b.1);
            // x − max(x) is not positive.
            let below = is_minus_max(program, y, x) || is_minus_max(program, x, y);
            Some(if below { (sum.0, sum.1.min(0.0)) } else { sum })
        }
        Op::Map(MapOp::Mul) => {
            let ((x, a), (y, b)) = (arg(0)?, arg(1)?);
            Some(product(a, b, x == y))
        }
        Op::Map(MapOp::Div) => {
            let ((x, a), (y, b)) = (arg(0)?, arg(1)?);
            if a.0 >= 0.0 && is_sum_of(program, y, x) {
                return Some((0.0, 1.0));
            }
            let inverse = (1.0 / b.1, 1.0 / b.0);
            (b.0 > 0.0 || b.1 < 0.0).then(|| product(a, inverse, false))
        }
        Op::Map(MapOp::Max) => {
            let ((_, a), (_, b)) = (arg(0)?, arg(1)?);
            Some((a.0.max(b.0), a.1.max(b.1)))
        }
        Op::Map(MapOp::Function(f)) => {
            let ends = (0..f.arity()).map(|n| arg(n).map(|(_, a)| a));
            let ends: Vec<(f64, f64)> = ends.collect::<Option<_>>()?;
            let (low, high): (Vec<f64>, Vec<f64>) = ends.iter().copied().unzip();
            if !f.has(Fact::Monotone) {
                let known = |(low, high): &(f64, f64)| Interval {
                    low: *low,
                    high: *high,
                    finite: true,
                    nonzero: *low > 0.0 || *high < 0.0,
                };
                let known: Vec<Interval> = ends.iter().map(known).collect();
                let Interval { low, high, .. } = (f.row().interval)(&known);
                return Some((low, high));
            }
            f.is_defined(&low).then(|| (f.apply(&low), f.apply(&high)))
        }
        Op::Map(MapOp::Select) => {
            let ((_, a), (_, b)) = (arg(1)?, arg(2)?);
            Some((a.0.min(b.0), a.1.max(b.1)))
        }
        Op::Reduce { op, axes } => {
            let (_, a) = arg(0)?;
            match op {
                ReduceOp::Max => Some(a),
                ReduceOp::Sum => terms(axes).map(|n| ((a.0 * n).min(a.0), (a.1 * n).max(a.1))),
                ReduceOp::Product => terms(axes).map(|n| {
                    let most = a.0.abs().max(a.1.abs());
                    let most = most.max(most.powf(n));
                    (if a.0 >= 0.0 { 0.0 } else { -most }, most)
                }),
            }
        }
        Op::Dot { axes } => {
            let ((x, a), (y, b)) = (arg(0)?, arg(1)?);
            let (low, high) = product(a, b, x == y);
            terms(axes).map(|n| (low * n, high * n))
        }
    }
}

/// The products of two intervals; of a value with itself they are not negative.
fn product(a: (f64, f64), b: (f64, f64), same: bool) -> (f64, f64) {
    let times = |x: f64, y: f64| if x == 0.0 || y == 0.0 { 0.0 } else { x * y };
    let corners = [
        times(a.0, b.0),
        times(a.0, b.1),
        times(a.1, b.0),
        times(a.1, b.1),
    ];
    let high = corners.iter().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
    let low = corners.iter().fold(f64::INFINITY, |m, x| m.min(*x));
    (if same { low.max(0.0) } else { low }, high)
}

/// Whether a value is `-max(x)` over some axes.
fn is_minus_max(program: &Program, value: NodeId, x: NodeId) -> bool {
    let node = program.node(value);
    let (Op::Map(MapOp::Mul), [a, b]) = (&node.op, node.args.as_slice()) else {
        return false;
    };
    let maximum = |v: NodeId| {
        let node = program.node(v);
        let is = matches!(
            node.op,
            Op::Reduce {
                op: ReduceOp::Max,
                ..
            }
        );
        is && node.args.as_slice() == [x]
    };
    let minus = |v: NodeId| constant(program, v) == Some(-1.0);
    minus(*a) && maximum(*b) || minus(*b) && maximum(*a)
}

/// Whether a value is `sum(x)` over some axes.
fn is_sum_of(program: &Program, value: NodeId, x: NodeId) -> bool {
    let node = program.node(value);
    let is = matches!(
        node.op,
        Op::Reduce {
            op: ReduceOp::Sum,
            ..
        }
    );
    is && node.args.as_slice() == [x]
}

#[cfg(test)]
mod tests {
    // Oracle: a few formulas, by hand.
    use super::*;

    fn program(formula: &str) -> Program {
        let text = format!(
            "program p\naxis i = 4, j = 8\nx = parameter f32 [i, j]\ny = parameter bf16 [i, j]\nz = parameter f16 [j]\n\
             return f32 [i] sum({formula} + 0 * (iota(i) + iota(j)); j)\n"
        );
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn weights_of_layers_behind_layers_are_scaled() {
        let of = |body: &str| -> Vec<f64> {
            let text = format!(
                "program p\naxis i = 5, j = 64, k = 256, e = 16\nx = parameter f32 [i, j]\nw = parameter f32 [k, j]\nv = parameter f32 [e, k]\n\
                 return f32 [i, e] {body}\n"
            );
            weights(&text.parse().unwrap_or_else(|e| panic!("{e}")))
        };
        // The first weighs what is given, and on the last nothing depends.
        assert_eq!(of("dot(dot(x, w; j), v; k)"), [1.0, 1.0, 1.0]);
        assert_eq!(of("dot(dot(x * x, w; j), v; k)"), [1.0, 0.125, 1.0]);
        assert_eq!(of("exp(dot(dot(x * x, w; j), v; k))"), [1.0, 0.125, 0.0625]);
        // What is something else as well is no weight.
        assert_eq!(
            of("dot(dot(x * x, w; j) + sum(w; j), v; k)"),
            [1.0, 1.0, 1.0]
        );
    }

    #[test]
    fn masks_reach_maxima_and_exponentials() {
        for (formula, wanted) in [
            ("softmax(y * z + x; j)", [true, false, false]),
            (
                "softmax(0.5 * x + select(iota(i), z, -inf); j) * y",
                [true, false, true],
            ),
            ("softmax(x * -0.5; j)", [false, false, false]),
            ("relu(x + 1) + exp(y)", [true, true, false]),
            ("softmax(x; j) + x * y", [false, false, false]),
            ("x - y + z", [false, false, false]),
            ("sigmoid(x)", [false, false, false]),
            ("select(x, y, z)", [false, false, false]),
            ("log(exp(x) + 1)", [true, false, false]),
        ] {
            assert_eq!(masks(&program(formula)), wanted, "{formula}");
        }
    }

    #[test]
    fn reaches_are_what_cannot_overflow() {
        // What a formula does not use may be anything that its dtype holds.
        for (formula, wanted) in [
            ("x * y", [Some(40), Some(40), Some(14)]),
            ("x * y * x", [Some(30), Some(30), Some(14)]),
            ("softmax(x; j) * y", [None, Some(40), Some(14)]),
            ("rms_norm(x; j, 1e-5) * y", [Some(40), Some(40), Some(14)]),
            ("layer_norm(x; j, 1e-5)", [Some(40), Some(40), Some(14)]),
            // Nobody knows how small a denominator gets.
            ("x / y", [None, None, None]),
            ("x * sqrt(y)", [Some(40), None, Some(14)]),
        ] {
            assert_eq!(reaches(&program(formula)), wanted, "{formula}");
        }
        let narrow = "program p\naxis i = 4, k = 64, j = 8\nx = parameter f16 [i, k]\ny = parameter f16 [k, j]\nreturn f16 [i, j] dot(x, y; k)\n";
        let narrow: Program = narrow.parse().unwrap_or_else(|e| panic!("{e}"));
        // 64 products of 8 are below a quarter of the largest f16, and of 32 are not.
        assert_eq!(reaches(&narrow), [Some(3), Some(3)]);
    }
}

//! Long axes in two, where what is summed along them pays to be summed in parts that can be held.
//!
//! Rules name no axis that a program has not, so an axis is divided before they are applied.

use crate::convert::HELD;
use crate::rules::MOST_AXES;
use ir::{AxisId, AxisSet, MapOp, Node, NodeId, Op, Program, ReduceOp};

/// The least elements of a part that is worth its sums.
const LEAST: u64 = 512;
/// The most coordinates of the inner axis.
const INNER: u64 = 1 << 11;

/// The program itself, or the same function with its long axes in two: those over which squared differences from one number are summed,
/// where there are more of them than can be held and no axes make parts that can.
pub fn divided(program: &Program) -> Program {
    divide(program).0
}

/// The program with its axes as an expression of it has them: [`divided`], or as they are where the expression has no others.
pub fn as_in(program: &Program, expression: &Program) -> Program {
    if expression.axes.len() > program.axes.len() {
        divided(program)
    } else {
        program.clone()
    }
}

/// How the axes of an expression make up those of its program, in words: `m = 2048·m_outer + m_inner`.
pub fn divisions(program: &Program, expression: &Program) -> Vec<String> {
    if expression.axes.len() > program.axes.len() {
        divide(program).1
    } else {
        Vec::new()
    }
}

fn divide(program: &Program) -> (Program, Vec<String>) {
    let mut divided = program.clone();
    let mut words = Vec::new();
    // An axis that cannot be divided is asked for once.
    let mut asked = AxisSet::new();
    while let Some(axis) = long_axis(&divided, &asked) {
        asked.insert(axis);
        if let Some(inner) = inner_extent(divided.extent(axis))
            && let Some(made) = divided.divided(axis, inner)
        {
            let name = |of: &Program, a: usize| of.axes[a].name.clone();
            words.push(format!(
                "{} = {inner}·{} + {}",
                name(&divided, axis.index()),
                name(&made, axis.index()),
                name(&made, divided.axes.len())
            ));
            divided = made;
        }
    }
    (divided, words)
}

/// The longest axis of a sum of squared differences that has no parts.
fn long_axis(program: &Program, asked: &AxisSet) -> Option<AxisId> {
    let sums = program.nodes.iter().filter_map(|node| {
        let (axes, base) = sum_of_squares(program, node)?;
        let difference = program.node(base);
        let waits =
            |a: &NodeId| !program.node(*a).axes.intersects(axes) && reduces(program, *a, axes);
        let centred = difference.op == Op::Map(MapOp::Add) && difference.args.iter().any(waits);
        (centred && !has_parts(program, axes)).then_some(axes)
    });
    sums.flat_map(AxisSet::iter)
        .filter(|a| !asked.contains(*a))
        .max_by_key(|a| (program.extent(*a), std::cmp::Reverse(*a)))
}

/// Whether a value needs a reduction over some of these axes.
fn reduces(program: &Program, value: NodeId, axes: &AxisSet) -> bool {
    let count = value.index() + 1;
    let mut found = vec![false; count];
    for (i, node) in program.nodes[..count].iter().enumerate() {
        let own = match &node.op {
            Op::Reduce { axes: over, .. } | Op::Dot { axes: over } => over.intersects(axes),
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => {
                false
            }
        };
        found[i] = own || node.args.iter().any(|a| found[a.index()]);
    }
    found[count - 1]
}

/// Over what a value sums the squares of what, if it does.
fn sum_of_squares<'a>(program: &'a Program, node: &'a Node) -> Option<(&'a AxisSet, NodeId)> {
    let (axes, factors) = match &node.op {
        Op::Reduce {
            op: ReduceOp::Sum,
            axes,
        } => {
            let body = program.node(*node.args.first()?);
            (
                axes,
                (body.op == Op::Map(MapOp::Mul)).then_some(&body.args)?,
            )
        }
        Op::Dot { axes } => (axes, &node.args),
        Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::View { .. }
        | Op::Map(_)
        | Op::Reduce {
            op: ReduceOp::Max, ..
        } => return None,
    };
    match factors[..] {
        [x, y] if x == y => Some((axes, x)),
        [..] => None,
    }
}

/// Whether a sum over these axes can be held, or is one of sums that can.
fn has_parts(program: &Program, axes: &AxisSet) -> bool {
    let extents: Vec<u64> = axes.iter().map(|a| program.extent(a)).collect();
    let held = |n: u64| (LEAST..=HELD).contains(&n);
    let product = |chosen: u32| {
        let all = extents.iter().enumerate();
        let picked = all.filter(|(i, _)| chosen >> i & 1 == 1);
        picked.fold(1u64, |n, (_, extent)| n.saturating_mul(*extent))
    };
    // The rule looks at no more.
    extents.len() >= MOST_AXES
        || product(u32::MAX) <= HELD
        || (1..1u32 << extents.len()).any(|chosen| held(product(chosen)))
}

/// The largest divisor that is not too large, if it is worth it.
fn inner_extent(extent: u64) -> Option<u64> {
    (LEAST..=INNER).rev().find(|n| extent.is_multiple_of(*n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(text: &str) -> Vec<u64> {
        let program: Program = text.parse().expect("a program");
        let divided = divided(&program);
        assert!(divided.validate().is_ok());
        divided.axes.iter().map(|a| a.extent).collect()
    }

    fn norm(axes: &str, dims: &str, reduced: &str) -> String {
        format!(
            "program norm\naxis {axes}\nx = parameter f32 [{dims}]\nz = x - mean(x; {reduced})\n\
            return f32 [{dims}] z * rsqrt(mean(z * z; {reduced}))\n"
        )
    }

    #[test]
    fn rows_of_millions_are_divided() {
        let program = norm("t = 2, m = 4194304", "t, m", "m");
        assert_eq!(extents(&program), [2, 2048, 2048]);
        let parsed: Program = program.parse().expect("a program");
        let expression = divided(&parsed);
        assert_eq!(
            divisions(&parsed, &expression),
            ["m = 2048·m_outer + m_inner"]
        );
        assert_eq!(as_in(&parsed, &expression), expression);
        assert!(divisions(&parsed, &parsed).is_empty());
        assert_eq!(as_in(&parsed, &parsed), parsed);
        let squares = program.replace("mean(z * z; m)", "dot(z, z; m)");
        assert_eq!(extents(&squares), [2, 2048, 2048]);
    }

    #[test]
    fn what_can_be_held_or_has_parts_stays() {
        for (axes, dims, reduced) in [
            ("t = 2, m = 32768", "t, m", "m"),
            // A prime.
            ("t = 2, m = 1000003", "t, m", "m"),
        ] {
            let program = norm(axes, dims, reduced);
            assert_eq!(extents(&program).len(), 2, "{program}");
        }
        let picture =
            norm("n = 2, h = 1024, w = 1024", "n, h, w", "h").replace("mean(x; h)", "sum(x; h, w)");
        let picture = picture.replace("mean(z * z; h)", "sum(z * z; h, w)");
        assert_eq!(extents(&picture).len(), 3);
        // Nothing has to be known first: what is subtracted is given.
        let given = "program given\naxis t = 2, m = 4194304\nx = parameter f32 [t, m]\nc = parameter f32 [t]\n\
            z = x - c\nreturn f32 [t] sum(z * z; m)\n";
        assert_eq!(extents(given).len(), 2);
        let rms = "program rms\naxis t = 2, m = 4194304\nx = parameter f32 [t, m]\nreturn f32 [t, m] rms_norm(x; m, 1e-5)\n";
        assert_eq!(extents(rms).len(), 2);
    }
}

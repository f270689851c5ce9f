//! Long axes in two, where what is summed along them pays to be summed in parts that can be held.
//!
//! Rules name no axis that a program has not, so an axis is divided before they are applied.

use super::writer::reduction;
use crate::egraph::convert::HELD;
use crate::rules::MOST_AXES;
use ir::{AxisId, AxisSet, MapOp, Node, NodeId, Op, Program, ReduceOp};

/// The least elements of a part that is worth its sums.
const LEAST: u64 = 512;
/// The most coordinates of the inner axis.
const INNER: u64 = 1 << 11;

/// The program itself, or the same function with its long axes in two: those over which products of two differences are summed, squares
/// among them, where there are more of them than can be held and no axes make parts that can.
pub fn divided(program: &Program) -> Program {
    let mut divided = program.clone();
    // An axis that cannot be divided is asked for once.
    let mut asked = AxisSet::new();
    while let Some(axis) = long_axis(&divided, &asked) {
        asked.insert(axis);
        if let Some(made) =
            inner_extent(divided.extent(axis)).and_then(|inner| divided.divided(axis, inner))
        {
            divided = made;
        }
    }
    divided
}

/// The longest axis of a sum of products of differences that has no parts.
fn long_axis(program: &Program, asked: &AxisSet) -> Option<AxisId> {
    let sums = program.nodes.iter().filter_map(|node| {
        let (axes, factors) = sum_of_products(program, node)?;
        let [x, y] = factors.map(|factor| centres(program, factor, axes));
        // What is given pays for no parts: one pass does without them.
        let waits = x
            .iter()
            .chain(&y)
            .any(|centre| reduces(program, *centre, axes));
        let differences = !x.is_empty() && !y.is_empty();
        (differences && waits && !has_parts(program, axes)).then_some(axes)
    });
    sums.flat_map(AxisSet::iter)
        .filter(|a| !asked.contains(*a))
        .max_by_key(|a| (program.extent(*a), std::cmp::Reverse(*a)))
}

/// The terms of a value that vary over none of these axes, if it is a sum.
fn centres(program: &Program, value: NodeId, axes: &AxisSet) -> Vec<NodeId> {
    let node = program.node(value);
    if node.op != Op::Map(MapOp::Add) {
        return Vec::new();
    }
    let free = |a: &&NodeId| !program.node(**a).axes.intersects(axes);
    node.args.iter().filter(free).copied().collect()
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

/// Over what a value sums the products of which two, if it does.
fn sum_of_products<'a>(program: &'a Program, node: &'a Node) -> Option<(&'a AxisSet, [NodeId; 2])> {
    match reduction(program, node)? {
        (ReduceOp::Sum, axes, factors) => Some((axes, factors.try_into().ok()?)),
        (ReduceOp::Max | ReduceOp::Product, ..) => None,
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
        let squares = program.replace("mean(z * z; m)", "dot(z, z; m)");
        assert_eq!(extents(&squares), [2, 2048, 2048]);
    }

    #[test]
    fn so_are_those_of_products_of_two_differences() {
        let covariance = |centre: &str| {
            format!(
                "program covariance\naxis t = 2, m = 4194304\nx = parameter f32 [t, m]\ny = parameter f32 [t, m]\n\
                c = parameter f32 [t]\nreturn f32 [t] dot(x - mean(x; m), y - {centre}; m)\n"
            )
        };
        assert_eq!(extents(&covariance("mean(y; m)")), [2, 2048, 2048]);
        assert_eq!(extents(&covariance("c")), [2, 2048, 2048]);
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
        // No difference: what is multiplied by it is what it is.
        let weighted = "program weighted\naxis t = 2, m = 4194304\nx = parameter f32 [t, m]\ny = parameter f32 [t, m]\n\
            z = x - mean(x; m)\nreturn f32 [t] dot(z, y; m)\n";
        assert_eq!(extents(weighted).len(), 2);
        let rms = "program rms\naxis t = 2, m = 4194304\nx = parameter f32 [t, m]\nreturn f32 [t, m] rms_norm(x; m, 1e-5)\n";
        assert_eq!(extents(rms).len(), 2);
    }
}

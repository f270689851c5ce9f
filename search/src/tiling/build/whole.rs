//! Which values of a program are whole numbers that f32 holds exactly, whatever its numbers are: those that are made of coordinates, of constants, and of
//! selections, maxima and sums of such. A place that is computed is one, as the number of an expert that a router chooses is.

use super::bounds::integer;
use ir::{MapOp, NodeId, Op, Program, ReduceOp};
use std::collections::BTreeSet;

/// Whole numbers up to here are exact in f32.
pub(super) const EXACT: i64 = 1 << 24;

/// The least and the greatest that a value may be.
type Range = (i64, i64);

/// The values that are whole, of a magnitude that f32 holds. Parameters are none: those of integers may be larger.
pub(crate) fn whole(program: &Program) -> BTreeSet<NodeId> {
    let mut ranges: Vec<Option<Range>> = Vec::with_capacity(program.nodes.len());
    for node in &program.nodes {
        let arg = |n: usize| node.args.get(n).and_then(|a| ranges[a.index()]);
        let points = |axes: &ir::AxisSet| {
            let extents = axes.iter().map(|a| program.extent(a));
            i64::try_from(extents.fold(1u64, u64::saturating_mul)).ok()
        };
        let range = match &node.op {
            Op::Parameter { .. } => None,
            Op::Constant(value) => integer(*value).map(|c| (c, c)),
            Op::Iota(axis) => i64::try_from(program.extent(*axis))
                .ok()
                .map(|n| (0, n - 1)),
            Op::View { fill, .. } => match fill {
                None => arg(0),
                Some(fill) => integer(*fill).and_then(|f| Some(union(arg(0)?, (f, f)))),
            },
            Op::Map(MapOp::Add) => arg(0)
                .zip(arg(1))
                .map(|(x, y)| (x.0.saturating_add(y.0), x.1.saturating_add(y.1))),
            Op::Map(MapOp::Mul) => arg(0).zip(arg(1)).map(|(x, y)| product(x, y)),
            Op::Map(MapOp::Max) => (arg(0).zip(arg(1))).map(|(x, y)| (x.0.max(y.0), x.1.max(y.1))),
            Op::Map(MapOp::Select) => arg(1).zip(arg(2)).map(|(x, y)| union(x, y)),
            Op::Map(MapOp::Div | MapOp::Function(_)) => None,
            Op::Reduce {
                op: ReduceOp::Max, ..
            } => arg(0),
            Op::Reduce {
                op: ReduceOp::Sum,
                axes,
            } => (arg(0).zip(points(axes))).map(|(x, n)| product(x, (n, n))),
            Op::Reduce {
                op: ReduceOp::Product,
                ..
            } => None,
            Op::Dot { axes } => {
                let terms = arg(0).zip(arg(1)).map(|(x, y)| product(x, y));
                terms.zip(points(axes)).map(|(x, n)| product(x, (n, n)))
            }
        };
        ranges.push(range.filter(|(low, high)| *low >= -EXACT && *high <= EXACT));
    }
    let all = (0u32..).map(NodeId).zip(ranges);
    all.filter_map(|(id, range)| range.map(|_| id)).collect()
}

/// The whole values that are compared with the coordinates of an axis which they do not vary over: places along it, mostly negated.
pub(crate) fn places(program: &Program) -> BTreeSet<NodeId> {
    let whole = whole(program);
    let mut found = BTreeSet::new();
    for node in &program.nodes {
        if let (Op::Map(MapOp::Add), [x, y]) = (&node.op, node.args.as_slice()) {
            for (value, with) in [(*x, *y), (*y, *x)] {
                let axes = &program.node(value).axes;
                let is_along = |a: ir::AxisId| !axes.contains(a);
                if matches!(&program.node(with).op, Op::Iota(a) if is_along(*a)) {
                    found.insert(value);
                }
            }
        }
    }
    found.intersection(&whole).copied().collect()
}

fn union(x: Range, y: Range) -> Range {
    (x.0.min(y.0), x.1.max(y.1))
}

fn product(x: Range, y: Range) -> Range {
    let all = [(x.0, y.0), (x.0, y.1), (x.1, y.0), (x.1, y.1)].map(|(a, b)| a.saturating_mul(b));
    (all.into_iter()).fold((i64::MAX, i64::MIN), |(low, high), p| {
        (low.min(p), high.max(p))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of values that are whole.
    fn names(text: &str) -> Vec<String> {
        let program: Program = text.parse().expect("a program");
        let all = whole(&program).into_iter();
        all.filter_map(|id| program.node(id).name.clone()).collect()
    }

    #[test]
    fn the_place_of_the_largest_is_whole() {
        let found = names(
            "program top
axis b = 4, n = 8, g = 2
p = parameter f32 [b, n]
count = parameter i32 [b]
largest = max(p; n)
place = 0 - max(0 - select(p - largest, iota(n), 8); n)
both = select(iota(g) - 1, place + 1, place)
half = place * 0.5
far = place * 16777216
masked = select(p, place, -inf)
quotient = place / 2
longer = count + 1
root = sqrt(place)
y = half + far + masked + quotient + longer + root
return f32 [b, n, g] y + both
",
        );
        assert_eq!(found, ["place", "both"]);
    }

    #[test]
    fn what_is_compared_with_coordinates_is_a_place() {
        let program: Program = "program gather
axis b = 4, n = 8, a = 8
p = parameter f32 [b, n]
x = parameter f32 [a]
place = max(select(p, iota(n), 0); n)
back = 0 - place
mask = select(iota(a) + back, 1, 0)
other = select(iota(n) + max(p; n), 1, 0)
return f32 [b, a, n] mask * x * other
"
        .parse()
        .expect("a program");
        let named = |id: &NodeId| program.node(*id).name.clone();
        let found: Vec<_> = places(&program).iter().filter_map(named).collect();
        assert_eq!(found, ["back"]);
    }

    /// 3,000 coordinates of up to 2,999 add up to less than 2^24, and of 6,000 to more.
    #[test]
    fn sums_are_whole_as_far_as_f32_holds_them() {
        let text = |n: u64| {
            format!(
                "program sums\naxis i = {n}, j = 4\nx = parameter f32 [j]\ncount = sum(iota(i); i)\nboth = dot(iota(i), 2 * iota(i); i)\n\
                 inside = view(iota(i); i -> j + 1; fill = 0)\nthere = view(iota(i); i -> j + 1; fill = -inf)\n\
                 return f32 [j] x * count * inside * there * both\n"
            )
        };
        assert_eq!(names(&text(3000)), ["count", "inside"]);
        assert_eq!(names(&text(6000)), ["inside"]);
    }
}

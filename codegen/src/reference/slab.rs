//! Along which axis the chain runs in parts, and which values are stored for all of it all the same.

use ir::{AxisId, AxisSet, Dim, Op, Program};

/// So many times smaller than the largest, and how a tensor is read does not matter.
const SMALL: u64 = 16;

/// The axis, if all outputs have one in common, and of each node whether its value is stored whole.
///
/// Of several axes the one that leaves the fewest elements to be stored whole; then one along which no large parameter or output is
/// contiguous; then the longest.
pub(super) fn choose(program: &Program) -> (Option<AxisId>, Vec<bool>) {
    let mut shared: AxisSet = (0..program.axes.len() as u32).map(AxisId).collect();
    for output in &program.outputs {
        shared = shared.intersection(&program.node(output.value).axes);
    }
    let parameters = program.parameters().map(|(_, _, _, dims)| dims);
    let tensors: Vec<&[Dim]> = parameters
        .chain(program.outputs.iter().map(|o| o.dims.as_slice()))
        .collect();
    let size = |dims: &[Dim]| {
        program
            .shape(dims)
            .iter()
            .fold(1, |n: u64, e| n.saturating_mul(*e))
    };
    let largest = tensors.iter().map(|dims| size(dims)).max().unwrap_or(1);
    let contiguous = |a: AxisId| {
        let ends = |dims: &&[Dim]| dims.last().and_then(|d| d.0.last()) == Some(&a);
        (tensors.iter()).any(|dims| ends(dims) && size(dims) >= largest / SMALL)
    };
    let best = shared.iter().map(|a| {
        let whole = whole(program, a);
        let stored = program.nodes.iter().zip(&whole).map(|(node, whole)| {
            let parameter = matches!(node.op, Op::Parameter { .. });
            let counted = *whole && !parameter;
            if counted {
                program.elements(&node.axes).unwrap_or(u64::MAX)
            } else {
                0
            }
        });
        let stored = stored.fold(0, u64::saturating_add);
        let extent = program.extent(a);
        ((stored, contiguous(a), std::cmp::Reverse(extent), a), whole)
    });
    match best.min_by(|x, y| x.0.cmp(&y.0)) {
        Some(((_, _, _, axis), whole)) => (Some(axis), whole),
        None => (None, vec![false; program.nodes.len()]),
    }
}

/// Of each node whether all of its elements along an axis are needed for some of the result's: it has the axis, and something that sums
/// over the axis or looks elsewhere along it follows.
fn whole(program: &Program, axis: AxisId) -> Vec<bool> {
    let mut whole = vec![false; program.nodes.len()];
    for (at, node) in program.nodes.iter().enumerate().rev() {
        let all = match &node.op {
            Op::Reduce { axes, .. } | Op::Dot { axes } => axes.contains(axis),
            Op::View { map, .. } => map.iter().any(|(source, _)| *source == axis),
            Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::Map(_) => false,
        };
        if all || whole[at] {
            for arg in &node.args {
                whole[arg.index()] |= program.node(*arg).axes.contains(axis);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str) -> (Option<String>, usize) {
        let program: Program = text.parse().expect("a program");
        let (axis, whole) = choose(&program);
        let name = axis.map(|a| program.axes[a.index()].name.clone());
        let parameter = |n: usize| matches!(program.nodes[n].op, Op::Parameter { .. });
        let stored = (0..whole.len()).filter(|n| whole[*n] && !parameter(*n));
        (name, stored.count())
    }

    #[test]
    fn an_axis_that_leaves_little_whole_is_taken() {
        // The documents of keys are those of queries, elsewhere: a parameter is whole anyway.
        let masked = "program m\naxis h = 2, i = 64, j = 64, d = 8\nq = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\n\
            doc = parameter f32 [i]\ns = dot(q, k; d)\nkeep = select(doc - view(doc; i -> j), s, -1)\nreturn f32 [i, h] sum(keep; j)\n";
        assert_eq!(chosen(masked), (Some("i".into()), 0));
        // What is normalised over the batch needs all of it, however it is cut along it, but not along the channels.
        let batch = "program b\naxis n = 512, c = 8\nx = parameter f32 [n, c]\ny = x * 2\nreturn f32 [n, c] y / sum(exp(y); n)\n";
        assert_eq!(chosen(batch), (Some("c".into()), 0));
        let both = "program b\naxis n = 512, c = 8\nx = parameter f32 [n, c]\nreturn f32 [n, c] x / sum(exp(x); n, c)\n";
        assert_eq!(chosen(both).1, 1);
        let none = "program n\naxis n = 512\nx = parameter f32 [n]\nreturn f32 [] sum(x; n)\n";
        assert_eq!(chosen(none), (None, 0));
    }
}

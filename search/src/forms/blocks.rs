//! Sums, maxima and products over triangles, in blocks: a running value takes work that grows with the length, and not with its square.
//!
//! In `Σ_j select(i − j >= 0, x[j], 0)` each sum holds the one before it. With `i = T·I + u` and `j = T·J + v` it is what is in the blocks in
//! front of `i`'s own, and what is in that one up to `i`:
//!
//! ```text
//! y[I, u]  =  Σ_J select(I − J >= 1, s[J], 0)  +  Σ_v select(u − v >= 0, x[I, v], 0)    with  s[J] = Σ_v x[J, v]
//! ```
//!
//! The first is a sum over a smaller triangle, for which the same holds; the second is a product of matrices. This is the blocked scan of
//! G. E. Blelloch, "Prefix sums and their applications", 1990. What is looked at is the condition alone: whether it is a difference of two
//! coordinates, up to or without the own one, in either direction; other triangles are made such ones first (`triangles.rs`).

use super::triangles::{Triangle, triangles};
use super::writer::{Made, Writer, repeated};
use ir::{Affine, AxisId, AxisSet, NodeId, Op, Program, ReduceOp};
use std::collections::BTreeSet;

/// Coordinates of a block: the product with a block's triangle is small, and wide enough for matrix instructions.
const BLOCK: [u64; 2] = [16, 64];
/// Shorter triangles are reduced as they are where that is a product of matrices.
const LEAST: u64 = 256;
/// The same of what is no product of matrices: a block's own triangle takes work by its square, and is divided again.
const SMALL_BLOCK: [u64; 2] = [4, 8];
const SMALL_LEAST: u64 = 32;

/// The same function of the same tensors, with its long reductions over triangles in blocks, and in words how. None where there are none.
/// New axes are behind those of the program.
pub(super) fn blocked(program: &Program) -> Option<Made> {
    // Those over blocks are triangles again.
    repeated(program, |program| Some(once(program, &BTreeSet::new())?.0))
}

/// The same, but for those over blocks: a loop can keep what they have reduced so far.
pub(super) fn blocked_once(program: &Program) -> Option<Made> {
    let mut divided = BTreeSet::new();
    let mut made: Option<Made> = None;
    while let Some(((next, words), axis)) = once(made.as_ref().map_or(program, |m| &m.0), &divided)
    {
        divided.insert(axis);
        let before = made.map(|m| m.1).unwrap_or_default();
        made = Some((next, [before, words].concat()));
    }
    made
}

/// One reduction in blocks, and the axis of the blocks that it is over, which is none of `but`.
fn once(program: &Program, but: &BTreeSet<AxisId>) -> Option<(Made, AxisId)> {
    let all = triangles(program).into_iter();
    all.filter(|(_, triangle)| !but.contains(&triangle.j))
        .find_map(|(id, triangle)| {
            let own = in_blocks(program, id, &triangle).map(|made| (made, triangle.j));
            own.or_else(|| {
                let mut all = triangle.squares(program, id).into_iter();
                all.find_map(|square| {
                    let (_, triangle) = (triangles(&square.program).into_iter())
                        .find(|(id, _)| *id == square.place)?;
                    let (made, words) = in_blocks(&square.program, square.place, &triangle)?;
                    let words = [square.words.clone(), words].concat();
                    Some(((made, words), triangle.j))
                })
            })
        })
}

fn in_blocks(program: &Program, id: NodeId, triangle: &Triangle) -> Option<Made> {
    let Triangle { i, j, op, .. } = *triangle;
    let (rows, columns) = (program.extent(i), program.extent(j));
    // Another number of blocks of the one than of the other would need a fill.
    let contracts = op == ReduceOp::Sum && triangle.finite;
    let (least, block) = match contracts || columns >= LEAST {
        true => (LEAST, BLOCK),
        false => (SMALL_LEAST, SMALL_BLOCK),
    };
    if rows != columns || columns < least || !matches!(triangle.offset, 0 | -1) {
        return None;
    }
    let step = (block[0]..=block[1])
        .rev()
        .find(|n| columns.is_multiple_of(*n))?;
    let all = read_along(program, [i, j]);
    let (divided, places) = program.divided_alike(&all, step)?;
    let inner = |at: usize| AxisId((program.axes.len() + at) as u32);
    let (u, v) = (inner(0), inner(1));
    let name = |a: AxisId| divided.axes[a.index()].name.clone();
    let words = all.iter().enumerate().map(|(at, whole)| {
        let (whole, inner) = (*whole, inner(at));
        let outer = name(whole);
        format!(
            "{} = {step}·{outer} + {}",
            program.axes[whole.index()].name,
            name(inner)
        )
    });
    let at = places[id.index()];
    let mut made = Writer::until(&divided, at);
    let factors: Vec<NodeId> = triangle.factors.iter().map(|f| places[f.index()]).collect();
    let body = made.product(&factors);
    let rest = {
        let mut rest = triangle.axes.clone();
        rest.remove(j);
        rest.insert(v);
        rest
    };
    let only = |axis: AxisId| [axis].into_iter().collect::<AxisSet>();
    let total = made.reduce(op, body, &rest);
    let before = triangle.counts(&mut made, [i, j], -1, total);
    let before = made.reduce(op, before, &only(j));
    let own = made.view(body, [j, i], 0, None)?;
    let within = match contracts {
        // As a product of matrices.
        true => {
            let one = made.constant(1.0);
            let mask = triangle.counts(&mut made, [u, v], triangle.offset, one);
            made.dot([own, mask], &rest)
        }
        false => {
            let body = triangle.counts(&mut made, [u, v], triangle.offset, own);
            made.reduce(op, body, &rest)
        }
    };
    let both = made.map(op.combine(), vec![before, within]);
    made.program.nodes[both.index()].name = divided.node(at).name.clone();
    let made = made.continued(&divided, at)?;
    Some((made, words.collect()))
}

/// Two axes, and those along which views read them, forwards or backwards: where the one is divided the others are.
fn read_along(program: &Program, axes: [AxisId; 2]) -> Vec<AxisId> {
    let mut all = axes.to_vec();
    let maps = program.nodes.iter().filter_map(|node| match &node.op {
        Op::View { map, .. } => Some(map),
        Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Map(_)
        | Op::Reduce { .. }
        | Op::Dot { .. } => None,
    });
    // A view comes behind what it reads.
    for (from, to) in maps.flatten() {
        if let Some(&[(1 | -1, along)]) = to.affine().map(Affine::terms)
            && all.contains(from)
            && !all.contains(&along)
        {
            all.push(along);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::writer::results;
    use super::*;

    fn scan(body: &str, extent: u64) -> Program {
        let text = format!(
            "program scan\naxis t = 2, i = {extent}, j = {extent}, k = 2\nx = parameter f32 [t, i]\nw = parameter f32 [i, k]\n\
            y = view(x; i -> j)\nz = view(x; i -> {} - j)\nf = view(w; i -> j)\nr = iota(i) - iota(j)\nreturn f32 [t, i] {body}\n",
            extent - 1
        );
        text.parse().expect("a program")
    }

    #[test]
    fn running_values_in_blocks_are_the_same_function() {
        for body in [
            "sum(select(r, y, 0); j)",
            "sum(select(r - 1, y, 0); j)",
            "sum(select(-r, y, 0); j) + x",
            "max(sum(select(-1 - r, y, 0); j), 0) * 2",
            "max(select(r, y, -inf); j)",
            "max(select(-r, y, -inf); j)",
            "dot(select(r, 1, 0), y; j)",
            "sum(select(r, y, 0) * f; j, k)",
            "sum(select(r, z, 0); j)",
            // Powers of two, of which no product is rounded.
            "prod(select(r, select(y, 2, -0.5), 1); j)",
            "prod(select(-1 - r, select(z, 2, -0.5), 1); j) * x",
        ] {
            for extent in [256, 272, 320] {
                let program = scan(body, extent);
                let (blocked, words) = blocked(&program).expect("a triangle");
                assert_eq!(results(&blocked), results(&program), "{blocked}");
                let read: Program = blocked.to_string().parse().expect("its own text");
                assert_eq!(results(&read), results(&program), "{blocked}");
                assert!(!words.is_empty());
            }
        }
    }

    #[test]
    fn what_views_read_a_running_value_along_is_divided_with_it() {
        let text = "program reversed\naxis t = 2, m = 320, i = 320, j = 320, o = 320\nx = parameter f32 [t, m]\n\
            y = sum(select(iota(i) - iota(j), view(view(x; m -> 319 - i); i -> j), 0); j)\nreturn f32 [t, o] view(y; i -> 319 - o)\n";
        let program: Program = text.parse().expect("a program");
        let (blocked, words) = blocked(&program).expect("a triangle");
        assert_eq!(results(&blocked), results(&program), "{blocked}");
        assert_eq!(words.len(), 3, "{words:?}");
    }

    /// Sides of different lengths, and results that are read shifted, with what is outside of them.
    #[test]
    fn triangles_without_a_square() {
        let text = |extents: [u64; 3], condition: &str, at: &str, op: &str| {
            let [i, j, o] = extents;
            let fill = match op {
                "max" => "-inf",
                "prod" => "1",
                _ => "0",
            };
            // Powers of two, of which no product is rounded.
            let of = match op {
                "prod" => "select(x, 2, -0.5)",
                _ => "x",
            };
            format!(
                "program p\naxis t = 2, m = {j}, i = {i}, j = {j}, o = {o}\nx = parameter f32 [t, m]\nr = iota(i) - iota(j)\n\
                y = {op}(select({condition}, view({of}; m -> j), {fill}); j)\nreturn f32 [t, o] view(y; {at})\n"
            )
        };
        for (extents, condition, at) in [
            ([320, 300, 320], "r", "i -> o"),
            ([320, 300, 320], "-r", "i -> o"),
            ([320, 340, 320], "r - 1", "i -> o"),
            ([320, 340, 320], "r - 5", "i -> o"),
            ([320, 323, 320], "-r - 5", "i -> o"),
            ([319, 319, 320], "r", "i -> o - 1; fill = 0"),
            ([319, 319, 320], "r", "i -> o - 1; fill = 7"),
            ([319, 319, 320], "r - 2", "i -> o - 1; fill = 0"),
            ([319, 319, 320], "-r", "i -> o - 1; fill = 7"),
            ([331, 311, 320], "r - 4", "i -> o + 3"),
            ([311, 311, 320], "r - 4", "i -> o + 3; fill = 2"),
            ([311, 311, 320], "-r - 4", "i -> o + 3; fill = 2"),
        ] {
            for op in ["sum", "max", "prod"] {
                let text = text(extents, condition, at, op);
                let program: Program = text.parse().expect("a program");
                let (blocked, words) = blocked(&program).unwrap_or_else(|| panic!("{text}"));
                assert_eq!(results(&blocked), results(&program), "{blocked}");
                let read: Program = blocked.to_string().parse().expect("its own text");
                assert_eq!(results(&read), results(&program), "{blocked}");
                assert!(words[0].contains("j_along"), "{words:?}");
            }
        }
        for (extents, condition, at) in [
            // Some count for every i.
            ([320, 340, 320], "r + 1", "i -> o"),
            ([320, 340, 320], "-r", "i -> o"),
            ([317, 317, 320], "r - 1", "i -> o + 3; fill = 0"),
            // In the other direction.
            ([319, 319, 320], "r", "i -> 318 - o; fill = 0"),
        ] {
            let program: Program = text(extents, condition, at, "sum")
                .parse()
                .expect("a program");
            assert!(blocked(&program).is_none(), "{program}");
        }
    }

    #[test]
    fn blocks_of_blocks() {
        let program = scan("sum(select(r, y, 0); j)", 32768);
        let (twice, words) = blocked(&program).expect("a triangle");
        assert_eq!(
            words,
            [
                "i = 64·i_outer + i_inner",
                "j = 64·j_outer + j_inner",
                "i_outer = 64·i_outer_outer + i_outer_inner",
                "j_outer = 64·j_outer_outer + j_outer_inner",
            ]
        );
        // Work by the length, and no more by its square.
        assert!(twice.axes.iter().all(|a| a.extent <= 64), "{twice}");
    }

    /// A triangle that is no product of matrices is taken in blocks from 32 coordinates on, by itself and within a block.
    #[test]
    fn small_blocks() {
        let words = |body: &str, extent| blocked(&scan(body, extent)).map(|made| made.1);
        for body in ["prod(select(r, y, 1); j)", "max(select(r, y, -inf); j)"] {
            assert_eq!(
                words(body, 128).expect("blocks"),
                ["i = 8·i_outer + i_inner", "j = 8·j_outer + j_inner"]
            );
            let twice = words(body, 256).expect("blocks of blocks");
            assert!(
                twice.contains(&"j_inner = 8·j_inner_outer + j_inner_inner".to_owned()),
                "{twice:?}"
            );
            assert_eq!(words(body, 31), None);
            assert_eq!(words(body, 127), None);
        }
        assert_eq!(words("sum(select(r, y, 0); j)", 128), None);
    }

    #[test]
    fn what_is_no_triangle_stays() {
        for (body, extent) in [
            // A body that depends on where the result is.
            ("sum(select(r, y * x, 0); j)", 256),
            // Some that always count.
            ("sum(select(r + 3, y, 0); j)", 256),
            ("sum(select(2 * r, y, 0); j)", 256),
            // Something else than nothing outside.
            ("sum(select(r, y, 1); j)", 256),
            // A prime.
            ("sum(select(r, y, 0); j)", 257),
            ("sum(select(r, y, 0); j)", 128),
        ] {
            assert!(blocked(&scan(body, extent)).is_none(), "{body}");
        }
    }
}

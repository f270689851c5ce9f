//! Sums that multiply zeros, where the results come in whole groups: each residue class of a result's place reads what it needs of the filter.
//!
//! A view like `x[(o + e·k + p) / s]`, where `e` is 1 or −1, is its fill, zero, wherever that is no integer. Where the results are a
//! multiple of `s` an `o` is `s·q + r`, and with `k = s·m + a·r + b`, where `s` divides `1 + e·a` and `p + e·b`,
//!
//! ```text
//! Σ_k x[(o + e·k + p)/s] · w[k]  =  Σ_m x[q + e·m + (1 + e·a)/s·r + (p + e·b)/s] · w[s·m + a·r + b]
//! ```
//!
//! with zero where there is no such `k`. That is a plain convolution with `s` times the columns, whose results stand where they are wanted: nothing is
//! read that is zero for its place, and nothing is stored besides. Where `o` has no more than `s` coordinates, as the places within a window that
//! a pooling reads, it is `r` itself. Other numbers of results, and classes that begin at
//! different `m`, are taken by [`super::phases`].

use super::phases::{Index, Sum, told};
use super::writer::{Made, Writer, repeated};
use crate::egraph::convert;
use ir::{Affine, AxisId, NodeId, Op, Program, ReduceOp};

/// The same function of the same tensors, with such sums by residue classes, and in words how. None where there are none. The outer axis of a
/// divided one takes its place, all other new axes are behind those of the program.
pub fn by_residues(program: &Program) -> Option<(Program, Vec<String>)> {
    // One index after the other.
    repeated(program, once)
}

fn once(program: &Program) -> Option<Made> {
    let finite = convert::finite(program);
    let all = (0..program.nodes.len()).map(|at| NodeId(at as u32));
    all.filter_map(|id| Some((id, Sum::of(program, program.node(id))?)))
        .filter(|(_, sum)| sum.is_finite(&finite))
        .find_map(|(id, sum)| {
            let mut indices = sum.indices.iter();
            indices.find_map(|(place, index)| by_index(program, id, &sum, *place, index))
        })
}

fn by_index(
    program: &Program,
    id: NodeId,
    sum: &Sum<'_>,
    place: usize,
    index: &Index,
) -> Option<Made> {
    let Index {
        o,
        k,
        step: e,
        offset: p,
        divisor: s,
        ..
    } = *index;
    if index.along != 1 || !matches!(e, 1 | -1) {
        return None;
    }
    let classes = u64::try_from(s).ok()?;
    // An axis that is no longer is one of residues as it is.
    let is_divided = program.extent(o) > classes;
    let (divided, places) = if is_divided {
        program.divided_alike(&[o], classes)?
    } else {
        let all = (0..program.nodes.len()).map(|at| NodeId(at as u32));
        (program.clone(), all.collect())
    };
    let r = if is_divided {
        AxisId(program.axes.len() as u32)
    } else {
        o
    };
    let q = is_divided.then_some((1, o));
    let taps = Taps::of(
        index,
        program.extent(k) as i64,
        program.extent(o).min(classes) as i64,
    )?;
    let at = places[id.index()];
    let mut made = Writer::until(&divided, at);
    let m = made.axis(k, "tap", taps.count);
    // What the view reads: its other indices stay.
    let Op::View { map, fill } = &divided.node(places[sum.view.index()]).op else {
        return None;
    };
    let mut map = map.clone();
    let (along_r, whole) = (1 + e * taps.along, p + e * taps.first);
    let terms = (index.rest.iter().copied())
        .chain(q)
        .chain([(e, m), (along_r / s, r)]);
    map[place].1 = Affine::new(terms, whole / s)?.into();
    let fill = *fill;
    let source = places[sum.source.index()];
    let from = map.iter().map(|(a, _)| *a).collect();
    let kept = made.axes(source).minus(&from);
    let axes = (map.iter()).fold(kept, |all, (_, at)| all.union(&at.axes()));
    let mut factors = vec![made.push(Op::View { map, fill }, vec![source], axes)];
    let taps = Affine::new([(s, m), (taps.along, r)], taps.first)?;
    for factor in &sum.factors {
        let factor = places[factor.index()];
        let mut axes = made.axes(factor);
        if !axes.contains(k) {
            factors.push(factor);
            continue;
        }
        axes.remove(k);
        axes.insert(m);
        axes.insert(r);
        let op = Op::View {
            map: vec![(k, taps.clone().into())],
            fill: Some(0.0),
        };
        factors.push(made.push(op, vec![factor], axes));
    }
    let mut summed = sum.axes.clone();
    summed.remove(k);
    summed.insert(m);
    let value = match (&program.node(id).op, &factors[..]) {
        (Op::Dot { .. }, [x, w]) => made.dot([*x, *w], &summed),
        _ => {
            let body = made.product(&factors);
            made.reduce(ReduceOp::Sum, body, &summed)
        }
    };
    made.program.nodes[value.index()].name = program.node(id).name.clone();
    let made = made.continued(&divided, at)?;
    let name = |a: AxisId| &made.axes[a.index()].name;
    let division = format!(
        "{} = {s}·{} + {}",
        program.axes[o.index()].name,
        name(o),
        name(r)
    );
    let taps = format!("{} = {}", name(k), told(&made, &taps));
    let division = is_divided.then_some(division);
    let words = division.into_iter().chain([taps]).collect();
    Some((made, words))
}

/// `k = s·m + along·r + first`, with as many `m` for each `r` as there are `k` of a class.
struct Taps {
    along: i64,
    first: i64,
    count: u64,
}

impl Taps {
    /// Of so many `k` and `r`. Where `k` goes with `r` some classes may need an `m` that others do not, and so may they where it goes against it. If it is so
    /// both ways there are none: for each of them zeros would be multiplied again.
    fn of(index: &Index, k: i64, r: i64) -> Option<Self> {
        let (e, s) = (index.step, index.divisor);
        let all = [-e, e.checked_mul(s)? - e].map(|along| {
            let ends = [0, along.checked_mul(r - 1)?];
            let first = (-e * index.offset).rem_euclid(s);
            // The least m with a k that is not negative is 0.
            let least = ends.map(|end| -(end + first).div_euclid(s));
            let first = first + s * least[0].min(least[1]);
            let last = ends.map(|end| (k - 1 - end - first).div_euclid(s));
            let count = u64::try_from(last[0].max(last[1]) + 1).ok()?.max(1);
            Some(Self {
                along,
                first,
                count,
            })
        });
        let fewest = u64::try_from(k).ok()?.div_ceil(s.unsigned_abs());
        (all.into_iter().flatten()).find(|taps| taps.count <= fewest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::results;
    use super::*;

    fn transposed(taps: u64, stride: u64, pad: i64, way: &str, out: u64) -> String {
        format!(
            "program up\naxis n = 2, c = 3, d = 2, h = 5, k = {taps}, o = {out}\nx = parameter f32 [n, c, h]\nw = parameter f32 [c, d, k]\n\
            y = dot(view(x; {stride}*h -> o {pad:+} {way} k; fill = 0), w; c, k)\nreturn f32 [n, d, o] y\n"
        )
    }

    #[test]
    fn sums_by_residues_are_the_same_function() {
        for way in ["-", "+"] {
            for (taps, stride) in [
                (3, 2),
                (4, 2),
                (2, 2),
                (1, 2),
                (3, 3),
                (2, 3),
                (5, 4),
                (7, 6),
            ] {
                for pad in -7..8 {
                    let text = transposed(taps, stride, pad, way, 12);
                    let program: Program = text.parse().expect("a program");
                    // Of two classes each has its own way, of more they may begin at different m.
                    let Some((made, words)) = by_residues(&program) else {
                        let begins = if way == "-" { pad } else { pad - 1 };
                        assert!(stride > 2 && begins % stride as i64 != 0, "{text}");
                        continue;
                    };
                    assert_eq!(results(&made), results(&program), "{made}");
                    assert_eq!(words.len(), 2);
                    let read: Program = made.to_string().parse().expect("its own text");
                    assert_eq!(results(&read), results(&program), "{made}");
                    // Nothing is divided any more.
                    assert!(by_residues(&made).is_none());
                }
            }
        }
    }

    #[test]
    fn several_dimensions_are_taken_one_by_one() {
        let text = "program up\naxis n = 1, c = 2, d = 2, h = 4, w = 3, i = 3, j = 3, oh = 8, ow = 6\nx = parameter f32 [n, c, h, w]\n\
            f = parameter f32 [c, d, i, j]\ny = conv_transpose2d(x, f; c, h, oh, i, w, ow, j, 2, 1)\nreturn f32 [n, d, oh, ow] max(y, 0) * 2\n";
        let program: Program = text.parse().expect("a program");
        let (made, words) = by_residues(&program).expect("two strides");
        assert_eq!(made.axes.len(), program.axes.len() + 4);
        assert_eq!(results(&made), results(&program), "{made}");
        assert_eq!(
            words,
            [
                "oh = 2·oh_outer + oh_inner",
                "i = oh_inner + 2·i_tap − 1",
                "ow = 2·ow_outer + ow_inner",
                "j = ow_inner + 2·j_tap − 1",
            ]
        );
    }

    #[test]
    fn places_within_windows_are_classes_as_they_are() {
        for (windows, first) in [(2, "− 1"), (1, "+ 1")] {
            let text = format!(
                "program pooled\naxis c = 3, d = 2, h = 5, k = 3, o = 4, r = {windows}\nx = parameter f32 [c, h]\nw = parameter f32 [c, d, k]\n\
                y = dot(view(x; 2*h -> 2*o + r + 1 - k; fill = 0), w; c, k)\nreturn f32 [d, o] max(y; r)\n"
            );
            let program: Program = text.parse().expect("a program");
            let (made, words) = by_residues(&program).expect("a class for each place");
            assert_eq!(results(&made), results(&program), "{made}");
            assert_eq!(words, [format!("k = r + 2·k_tap {first}")]);
            assert_eq!(made.axes.len(), program.axes.len() + 1);
        }
    }

    #[test]
    fn what_comes_in_no_groups_stays() {
        for text in [
            transposed(3, 2, 1, "-", 9),
            transposed(3, 2, 1, "- 2*", 8),
            transposed(3, 1, 1, "-", 8),
            // What reads the results does it at other steps.
            transposed(3, 2, 1, "-", 8)
                .replace("o = 8", "o = 8, b = 6")
                .replace("[n, d, o] y", "[n, d, b] view(y; o -> b + 1)"),
            // Infinity times zero is no number.
            transposed(3, 2, 1, "-", 8).replace("view(x;", "view(select(x, x, -inf);"),
            transposed(3, 2, 1, "-", 8).replace("fill = 0", "fill = 1"),
        ] {
            let program: Program = text.parse().expect("a program");
            assert!(by_residues(&program).is_none(), "{text}");
        }
    }
}

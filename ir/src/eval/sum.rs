//! Reductions and contractions, where the reference spends its time.
//!
//! The order of additions follows from the extents alone, so that a result depends on no number of threads. What is long is
//! summed in parts, each in index order, and the parts are added in order.

use super::{Array, extents, gather, in_order, odometer, strides};
use crate::axes::{AxisId, AxisSet};
use crate::program::{Program, ReduceOp};
use rayon::prelude::*;

/// Fewer results than this give a machine's cores too little to share: their sums are taken in parts.
const FEW: usize = 512;
/// Most parts of one sum.
const PARTS: usize = 256;
/// Terms, of all results together, that make a part worth its while.
const SHORT: usize = 1 << 16;
/// Terms of a contraction that are summed at a time: two rows of so many stay in the fastest cache.
const BLOCK: usize = 1024;
/// Partial sums of a block; the compiler keeps them in vector registers.
const LANES: usize = 8;
/// Rows of a contraction that one task computes: each row of the other operand is then read once for so many.
const ROWS: usize = 8;

/// One result for each coordinate of `out`: `term` at each coordinate of `over`, combined in index order; in parts where results
/// are few.
pub(super) fn fold<const N: usize>(
    program: &Program,
    out: &[AxisId],
    over: &AxisSet,
    operands: [&Array; N],
    op: ReduceOp,
    term: impl Fn([usize; N]) -> f64 + Sync,
) -> Vec<f64> {
    let combine = |x: f64, y: f64| match op {
        ReduceOp::Sum => x + y,
        ReduceOp::Max => op.combine().apply(&[x, y]),
        ReduceOp::Product => x * y,
    };
    let outer = operands.map(|x| strides(program, x.axes.as_slice(), out));
    let inner = operands.map(|x| strides(program, x.axes.as_slice(), over.as_slice()));
    let sizes = extents(program, over.as_slice());
    let results: usize = extents(program, out).iter().product();
    let terms: usize = sizes.iter().product();
    let parts = match results < FEW {
        true => (results * terms / SHORT).clamp(1, PARTS.min(terms)),
        false => 1,
    };
    let part = |n: usize| {
        let range = n * terms / parts..(n + 1) * terms / parts;
        gather(program, out, outer.clone(), |origin| {
            let mut total = op.neutral();
            odometer(&sizes, &inner, origin, range.clone(), |at| {
                total = combine(total, term(at));
            });
            total
        })
    };
    let parts: Vec<Vec<f64>> = (0..parts).into_par_iter().map(part).collect();
    in_turn(parts, combine)
}

/// `Σ over axes of x · y`.
///
/// Both operands are laid out with the summed axes last, so that each result is the inner product of two rows. A row's terms are taken in blocks
/// of [`BLOCK`], whose sums are added in order.
pub(super) fn dot(
    program: &Program,
    out: &[AxisId],
    over: &AxisSet,
    x: &Array,
    y: &Array,
) -> Vec<f64> {
    if !over.is_subset(&x.axes) || !over.is_subset(&y.axes) {
        // A row of the operand that lacks an axis would be one element, again and again.
        return fold(program, out, over, [x, y], ReduceOp::Sum, |[i, j]| {
            x.data[i] * y.data[j]
        });
    }
    let shared = x.axes.intersection(&y.axes).minus(over);
    let own = |a: &Array| a.axes.minus(over).minus(&shared);
    let count = |axes: &AxisSet| -> usize { extents(program, axes.as_slice()).iter().product() };
    // Rows are what tasks share: they are those of the operand that has more.
    let (x, y) = if count(&own(x)) < count(&own(y)) {
        (y, x)
    } else {
        (x, y)
    };
    let (terms, columns) = (count(over), count(&own(y)));
    let (rows_each, rows) = (count(&own(x)), count(&shared) * count(&own(x)));
    let listed =
        |sets: &[&AxisSet]| -> Vec<AxisId> { sets.iter().flat_map(|s| s.iter()).collect() };
    let laid_out = |a: &Array| listed(&[&shared, &own(a), over]);
    let left = in_order(program, x.axes.as_slice(), &x.data, &laid_out(x));
    let right = in_order(program, y.axes.as_slice(), &y.data, &laid_out(y));

    let blocks = terms.div_ceil(BLOCK);
    let parts = (rows * columns * terms / SHORT).min(PARTS / rows.div_ceil(ROWS));
    let parts = parts.clamp(1, blocks);
    let part = |n: usize| {
        let mut results = vec![0.0; rows * columns];
        let tasks = results.par_chunks_mut(ROWS * columns);
        tasks.enumerate().for_each(|(task, chunk)| {
            for block in n * blocks / parts..(n + 1) * blocks / parts {
                let span = block * BLOCK..terms.min((block + 1) * BLOCK);
                for column in 0..columns {
                    for (row, results) in chunk.chunks_exact_mut(columns).enumerate() {
                        let row = task * ROWS + row;
                        let facing = row / rows_each * columns + column;
                        results[column] += inner(
                            &left[row * terms..][span.clone()],
                            &right[facing * terms..][span.clone()],
                        );
                    }
                }
            }
        });
        results
    };
    let parts: Vec<Vec<f64>> = (0..parts).into_par_iter().map(part).collect();
    let results = in_turn(parts, |x, y| x + y);
    in_order(
        program,
        &listed(&[&shared, &own(x), &own(y)]),
        &results,
        out,
    )
    .into_owned()
}

/// `Σ x·y`: term `t` goes to partial sum `t mod LANES`, and the partial sums are added in order.
fn inner(x: &[f64], y: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter().zip(y) {
        for lane in 0..LANES {
            lanes[lane] += x[lane] * y[lane];
        }
    }
    for (lane, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
        lanes[lane] += x * y;
    }
    lanes.iter().sum()
}

/// The first part combined with the second, the result with the third, and so on, element by element.
fn in_turn(parts: Vec<Vec<f64>>, combine: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    for part in parts {
        for (total, x) in all.iter_mut().zip(part) {
            *total = combine(*total, x);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    // Oracle: plain loops. Operands are small integers, so that a sum is the same number in any order.
    use crate::{Program, Tensor, eval};

    fn whole(n: usize, seed: usize) -> Vec<f64> {
        (0..n)
            .map(|k| ((k * 7919 + seed * 104_729) % 17) as f64 - 8.0)
            .collect()
    }

    fn inputs(p: &Program, value: impl Fn(usize, usize) -> Vec<f64>) -> Vec<Tensor> {
        let tensor = |(seed, (_, _, _, dims)): (usize, (_, _, _, &[crate::Dim]))| {
            let shape: Vec<usize> = p.shape(dims).iter().map(|e| *e as usize).collect();
            let data = value(shape.iter().product(), seed);
            Tensor::new(shape, data).expect("full")
        };
        p.parameters().enumerate().map(tensor).collect()
    }

    /// `Σ x[b, i, a, k] · y[k, b, j]` and its kin: all axes, those summed, how long each is.
    #[test]
    fn contractions_are_sums_of_products() {
        let mut counted = 0;
        for [b, i, j, k, a] in [
            [1, 1, 1, 1, 1],
            [2, 3, 5, 7, 1],
            [3, 11, 4, 1025, 1],
            [1, 1, 1, 70_001, 1],
            [1, 2, 1, 40_000, 3],
            [2, 1, 19, 2500, 2],
        ] {
            let text = |value: &str, over: &str| {
                format!(
                    "program p\naxis k = {k}, b = {b}, i = {i}, a = {a}, j = {j}\nx = parameter f32 [b, i, a, k]\n\
                     y = parameter f32 [j, b, k]\nreturn f32 [{over}] {value}\n"
                )
            };
            for (out, over) in [
                ("j, i, a, b", "k"),
                ("i, j, b", "a, k"),
                ("a, j, i", "k, b"),
                ("b, i", "j, a, k"),
            ] {
                let dot: Program = text(&format!("dot(x, y; {over})"), out)
                    .parse()
                    .expect("good");
                let sum: Program = text(&format!("sum(x * y; {over})"), out)
                    .parse()
                    .expect("good");
                let given = inputs(&dot, whole);
                let found = eval(&dot, &given).expect("small");
                assert_eq!(found, eval(&sum, &given).expect("small"), "{dot}");
                counted += 1;
            }
        }
        assert_eq!(counted, 24);
    }

    #[test]
    fn reductions_are_plain_loops() {
        // Many results of few terms, few of many, one; along the fastest axis, the slowest and both.
        for [i, j] in [[700, 3], [3, 700], [5, 90_000], [90_000, 5], [1, 1]] {
            let p: Program = format!(
                "program p\naxis i = {i}, j = {j}\nx = parameter f32 [i, j]\n\
                 return f32 [i] sum(x; j), f32 [j] sum(x; i), f32 [] sum(x; i, j), f32 [i] max(x; j), f32 [] max(x; i, j)\n"
            )
            .parse()
            .expect("good");
            let given = inputs(&p, whole);
            let found = eval(&p, &given).expect("small");
            let rows: Vec<&[f64]> = given[0].data.chunks(j).collect();
            let most = |row: &[f64]| row.iter().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
            let by_row: Vec<f64> = rows.iter().map(|r| r.iter().sum()).collect();
            let by_column: Vec<f64> = (0..j).map(|c| rows.iter().map(|r| r[c]).sum()).collect();
            assert_eq!(found[0].data, by_row);
            assert_eq!(found[1].data, by_column);
            assert_eq!(found[2].data, [by_row.iter().sum::<f64>()]);
            assert_eq!(
                found[3].data,
                rows.iter().map(|r| most(r)).collect::<Vec<f64>>()
            );
            assert_eq!(found[4].data, [most(&given[0].data)]);
        }
    }

    #[test]
    fn results_do_not_depend_on_threads() {
        let fraction = |n, seed| whole(n, seed).iter().map(|x: &f64| x.sin() / 3.0).collect();
        let p: Program = "program p\naxis i = 3, j = 50000, k = 5\nx = parameter f32 [i, j]\ny = parameter f32 [k, j]\n\
                          return f32 [i, k] dot(x, y; j), f32 [i] sum(x; j), f32 [] dot(x, y; i, j, k)\n"
            .parse()
            .expect("good");
        let given = inputs(&p, fraction);
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("threads")
                .install(|| eval(&p, &given).expect("small"))
        };
        let one = with(1);
        for threads in [2, 3, 7] {
            assert_eq!(one, with(threads), "{threads} threads");
        }
    }
}

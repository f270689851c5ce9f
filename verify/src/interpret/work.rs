//! How much interpreting a tile program takes, known before any of it is done.

use super::run::extent_and_tile;
use crate::demand::span;
use crate::simulate_error::SimulateError;
use ir::{AxisId, AxisSet, Bound, Corner, Kernel, Loop, Role, Statement, TileProgram};

/// Most element operations (an element of a tile, a term of a sum) of one interpretation: hours on a few cores.
pub const MAX_OPERATIONS: u64 = 1_000_000_000_000;
/// Most elements of all buffers, and of the tiles that are alive at a time (4 GiB each).
pub const MAX_ELEMENTS: u64 = 1 << 29;

/// What a statement costs whatever its tiles are, in element operations.
const STATEMENT: f64 = 16.0;
/// How many grid points are looked at, and how many iterations of a loop: of the outermost, of those inside it, of all others.
const POINTS: u64 = 64;
const ITERATIONS: [u64; 3] = [16, 4, 1];

/// How many element operations [`simulate`](super::simulate) does. Loops whose bounds vary are counted at some grid points and
/// iterations, evenly spaced, and the others taken to be like them.
///
/// # Errors
/// What keeps `simulate` from starting: [`SimulateError::Malformed`], [`SimulateError::TooLong`] and [`SimulateError::TooLarge`].
pub fn operations(tile: &TileProgram) -> Result<u64, SimulateError> {
    ir::tile_check::validate(tile).map_err(|faults| SimulateError::Malformed(faults.join("; ")))?;
    let buffers = tile.buffers.iter().map(|buffer| {
        let extents = buffer.axes().map(|a| tile.extent(a));
        extents.fold(1, u64::saturating_mul)
    });
    let held = buffers.fold(0, u64::saturating_add);
    let alive = tile.kernels.iter().map(|kernel| alive(tile, kernel));
    let elements = alive.fold(held, u64::max);
    if elements > MAX_ELEMENTS {
        return Err(SimulateError::TooLarge {
            elements,
            limit: MAX_ELEMENTS,
        });
    }
    let operations = tile.kernels.iter().map(|kernel| of_kernel(tile, kernel));
    // A float as large as no integer becomes the largest.
    let operations = operations.sum::<f64>() as u64;
    if operations > MAX_OPERATIONS {
        return Err(SimulateError::TooLong {
            operations,
            limit: MAX_OPERATIONS,
        });
    }
    Ok(operations)
}

/// Elements of the tiles of one block group, all of its points and values at once.
fn alive(tile: &TileProgram, kernel: &Kernel) -> u64 {
    let of_value = |axes: &AxisSet| {
        let tiles = axes.iter().map(|a| kernel.tile(a));
        tiles.fold(1, u64::saturating_mul)
    };
    let values = kernel.values.iter().map(|v| of_value(&v.axes));
    let ranks = tile.points(kernel, &kernel.block_group());
    values.fold(0, u64::saturating_add).saturating_mul(ranks)
}

fn of_kernel(tile: &TileProgram, kernel: &Kernel) -> f64 {
    let mut place = Place {
        tile,
        kernel,
        ranges: vec![None; tile.axes.len()],
    };
    for (axis, how) in &kernel.axes {
        if how.role == Role::Whole {
            place.go_to(*axis, 0);
        }
    }
    let grid: AxisSet = kernel.grid.iter().copied().collect();
    let points = tile.points(kernel, &grid);
    let mut sum = 0.0;
    let looked_at = sample(points, POINTS);
    for point in looked_at.clone() {
        let mut rest = point;
        for axis in kernel.grid.iter().rev() {
            let tiles = tile.extent(*axis).div_ceil(kernel.tile(*axis));
            place.go_to(*axis, rest % tiles);
            rest /= tiles;
        }
        sum += place.block(&kernel.body, 0);
    }
    sum * points as f64 / looked_at.count() as f64
}

/// At most `most` of `0..count`, evenly spaced, the middle of each stretch.
fn sample(count: u64, most: u64) -> impl Iterator<Item = u64> + Clone {
    let taken = count.min(most);
    (0..taken).map(move |n| {
        let middle = (2 * u128::from(n) + 1) * u128::from(count) / (2 * u128::from(taken));
        middle as u64
    })
}

/// The coordinates of a tile along an axis.
#[derive(Clone, Copy)]
struct Range {
    first: u64,
    length: u64,
}

/// A point of the grid and of the loops around.
struct Place<'a> {
    tile: &'a TileProgram,
    kernel: &'a Kernel,
    ranges: Vec<Option<Range>>,
}

impl Place<'_> {
    fn go_to(&mut self, axis: AxisId, number: u64) {
        // A validated tile program has an extent and a tile for each axis that it names.
        let size = extent_and_tile(self.tile, self.kernel, axis).ok();
        self.ranges[axis.index()] = size.map(|(extent, size)| Range {
            first: number * size,
            length: size.min(extent - number * size),
        });
    }

    fn block(&mut self, body: &[Statement], depth: usize) -> f64 {
        let mut sum = 0.0;
        for statement in body {
            sum += STATEMENT;
            sum += match statement {
                Statement::Loop(inner) => self.repeat(inner, depth),
                Statement::Store { value, .. } => self.elements(&self.kernel.value(*value).axes),
                Statement::Let(id) => self.elements(&self.kernel.value(*id).iterated()),
            };
        }
        sum
    }

    fn repeat(&mut self, inner: &Loop, depth: usize) -> f64 {
        let Ok((extent, size)) = extent_and_tile(self.tile, self.kernel, inner.axis) else {
            return 0.0;
        };
        // Where an element of a tensor decides, anything may be; only how long the loop is may be known.
        let known = |b: &&Bound| b.entries.is_empty();
        let low = inner.low.iter().filter(known).map(|b| self.bound(b));
        let low = low.fold(0, i128::max);
        let high = inner.high.iter().filter(known).map(|b| self.bound(b));
        let mut high = high.fold(i128::from(extent), i128::min);
        if !inner.high.iter().all(|b| known(&b))
            && let Some(span) = span(self.kernel, inner, |a| self.tile.extent(a))
        {
            high = high.min(low + i128::from(span));
        }
        if low >= high {
            return 0.0;
        }
        let (first, last) = (low as u64 / size, (high as u64).div_ceil(size));
        let outside = self.ranges[inner.axis.index()];
        let looked_at = sample(last - first, ITERATIONS[depth.min(ITERATIONS.len() - 1)]);
        let mut sum = 0.0;
        for number in looked_at.clone() {
            self.go_to(inner.axis, first + number);
            sum += self.block(&inner.body, depth + 1);
        }
        self.ranges[inner.axis.index()] = outside;
        sum * (last - first) as f64 / looked_at.count() as f64
    }

    fn elements(&self, axes: &AxisSet) -> f64 {
        let length = |a: AxisId| self.ranges[a.index()].map_or(1.0, |r| r.length as f64);
        axes.iter().map(length).product()
    }

    fn bound(&self, bound: &Bound) -> i128 {
        let term = |(coefficient, axis, corner): &(i64, AxisId, Corner)| {
            let range = self.ranges[axis.index()];
            let at = range.map_or(0, |r| match corner {
                Corner::First => r.first,
                Corner::Last => r.first + r.length - 1,
            });
            i128::from(*coefficient) * i128::from(at)
        };
        let sum = i128::from(bound.offset) + bound.terms.iter().map(term).sum::<i128>();
        sum.div_euclid(i128::from(bound.divisor.max(1)))
    }
}

#[cfg(test)]
mod tests {
    // Oracle: the loops counted by hand.
    use super::*;

    fn rows(i: u64, j: u64, bounds: &str) -> TileProgram {
        let text = format!(
            "tile rows\naxis i = {i}, j = {j}\nbuffer x = parameter 0 f32 [j]\nbuffer out = output 0 f32 [i]\n\
             kernel grid(i: 64) loop(j: 64) {{\n  loop j {bounds} {{\n    carry s = 0 over [i]\n    t = load x[j]\n    n = iota(i)\n\
             \u{20}   p = mul(t, n)\n    r = reduce_sum(p; j)\n    a = add(s, r)\n    yield result = final(s, a)\n  }}\n  store out = result\n}}\n"
        );
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    /// Of one tile: the product and its sum, four vectors, five statements.
    const TILE: u64 = 2 * 64 * 64 + 3 * 64 + 5 * 16;
    /// Of one grid point beside its tiles: the loop, and the store of a vector.
    const POINT: u64 = 2 * 16 + 64;

    #[test]
    fn loops_are_counted_as_far_as_their_bounds_let_them_run() {
        let count = |i, j, bounds| operations(&rows(i, j, bounds)).expect("small");
        assert_eq!(count(4096, 4096, ""), 64 * 64 * TILE + 64 * POINT);
        // The n-th tile of rows sees n + 1 tiles of columns, or at most two.
        let triangle = (1..=64).sum::<u64>();
        assert_eq!(
            count(4096, 4096, "to last(i) + 1"),
            triangle * TILE + 64 * POINT
        );
        let band = count(4096, 4096, "from first(i) - 64 to last(i) + 1");
        assert_eq!(band, 127 * TILE + 64 * POINT);
        // More points than are looked at: each stands for several.
        let many = count(65536, 65536, "to last(i) + 1");
        let exact = (1..=1024).sum::<u64>() * TILE + 1024 * POINT;
        assert!(many.abs_diff(exact) < exact / 50, "{many} {exact}");
    }

    #[test]
    fn what_takes_days_or_does_not_fit_is_refused() {
        let long = operations(&rows(1 << 20, 1 << 20, "")).expect_err("2^40 terms");
        let SimulateError::TooLong {
            operations: found,
            limit: MAX_OPERATIONS,
        } = long
        else {
            panic!("{long}");
        };
        assert!(found > 1 << 40);
        assert_eq!(
            long.to_string(),
            "interpreting this takes 2.3e12 element operations, at most 1e12 are done (hours): give smaller extents"
        );
        // A band of the same square is not long.
        operations(&rows(1 << 20, 1 << 20, "from first(i) to last(i) + 1")).expect("short");
        let wide = operations(&rows(1 << 30, 64, "")).expect_err("8 GiB");
        assert!(wide.to_string().contains("1073741888 elements"), "{wide}");
        // As `simulate` says before it looks at an input.
        let found = super::super::simulate(&rows(1 << 20, 1 << 20, ""), &[], Default::default());
        assert_eq!(found, Err(long));
    }

    #[test]
    fn samples_are_evenly_spaced() {
        for (count, most, expected) in [
            (3, 4, vec![0, 1, 2]),
            (8, 2, vec![2, 6]),
            (1, 1, vec![0]),
            (0, 4, vec![]),
        ] {
            assert_eq!(
                sample(count, most).collect::<Vec<u64>>(),
                expected,
                "{count} {most}"
            );
        }
        assert!(sample(u64::MAX, 64).all(|n| n < u64::MAX));
    }
}

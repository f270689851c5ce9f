//! The least time that a tile program can take on a target, whatever its schedule.
//!
//! What a kernel must read and write is counted from below: a coordinate counts only where some iteration certainly
//! visits it. So a time under the floor is a mistake of the measurement or of the kernel, never a surprising success.
//! Arithmetic isn't counted: how fast it can be depends on instructions that a schedule chooses.

use ir::{
    AxisId, AxisSet, Bound, BufferRole, Corner, Kernel, Loop, Quotient, Statement, Target, TileOp,
    TileProgram,
};
use std::collections::BTreeMap;

/// A target's rates are what plain kernels reach; the datasheets' peaks are less than this much higher.
const HEADROOM: f64 = 1.5;
/// Points over which a loop's bounds are evaluated; a loop with more counts as one coordinate.
const MOST_POINTS: u64 = 1 << 14;

/// The microseconds under which no kernels for this tile program can be: bytes that must cross L2 and memory over the most
/// that either may carry, and half of a launch.
pub fn floor_us(tile: &TileProgram, target: &Target) -> f64 {
    let bytes = least_bytes(tile);
    let memory = bytes.saturating_sub(target.l2_bytes) as f64 / (target.memory_tb_s * 1e6);
    let cache = bytes as f64 / (target.l2_tb_s.max(target.l2_ring_tb_s) * 1e6);
    (memory.max(cache) / HEADROOM).max(target.launch_us / 2.0)
}

/// Bytes of parameters and outputs that are certainly touched, each once.
fn least_bytes(tile: &TileProgram) -> u64 {
    let mut least: BTreeMap<ir::BufferId, u64> = BTreeMap::new();
    for kernel in &tile.kernels {
        reads(tile, kernel, &kernel.body, &mut Vec::new(), &mut least);
    }
    (0u32..)
        .map(ir::BufferId)
        .zip(&tile.buffers)
        .map(|(id, buffer)| {
            let elements = match buffer.role {
                BufferRole::Parameter(_) => least.get(&id).copied().unwrap_or(0),
                BufferRole::Output(_) => tile.volume(buffer.axes()),
                BufferRole::Workspace => 0,
            };
            elements.saturating_mul(buffer.dtype.bytes())
        })
        .fold(0, u64::saturating_add)
}

/// A loop that need not run over its whole axis.
struct Partial {
    axis: AxisId,
    /// What its bounds depend on.
    by: AxisSet,
    /// Coordinates that it visits for some value of these.
    visited: u64,
}

fn reads(
    tile: &TileProgram,
    kernel: &Kernel,
    body: &[Statement],
    around: &mut Vec<Partial>,
    least: &mut BTreeMap<ir::BufferId, u64>,
) {
    for statement in body {
        match statement {
            Statement::Let(value) => {
                if let TileOp::Load { buffer, index, .. } = &kernel.value(*value).op {
                    let elements = elements(tile, *buffer, index, around);
                    let known = least.entry(*buffer).or_default();
                    *known = elements.max(*known);
                }
            }
            Statement::Loop(inner) => {
                let partial = !inner.low.is_empty() || !inner.high.is_empty();
                if partial {
                    around.push(Partial {
                        axis: inner.axis,
                        by: inner.bounding(),
                        visited: visited(tile, kernel, inner, around),
                    });
                }
                reads(tile, kernel, &inner.body, around, least);
                if partial {
                    around.pop();
                }
            }
            Statement::Store { .. } => {}
        }
    }
}

/// Different elements that a load certainly reads inside these loops.
fn elements(
    tile: &TileProgram,
    buffer: ir::BufferId,
    index: &[Quotient],
    around: &[Partial],
) -> u64 {
    let mentioned = index
        .iter()
        .fold(AxisSet::new(), |all, f| all.union(&f.axes()));
    // Whether a point of the load is visited must not depend on the point.
    if around
        .iter()
        .any(|p| p.visited == 0 || p.by.intersects(&mentioned))
    {
        return 0;
    }
    let mut used = AxisSet::new();
    let mut count = 1u64;
    for (axis, f) in tile.axes_loaded(buffer, index).into_iter().zip(index) {
        if f.axes().intersects(&used) {
            continue;
        }
        let partial = around.iter().find(|p| f.axes().contains(p.axis));
        let along = match (partial, f.as_axis()) {
            (None, _) => values(tile, f, tile.extent(axis)),
            (Some(p), Some(_)) => p.visited.min(tile.extent(axis)),
            (Some(_), None) => 1,
        };
        used = used.union(&f.axes());
        count = count.saturating_mul(along);
    }
    count
}

/// Different values in `0 .. extent` that an index takes; 1 where it has holes or is divided, and where it is seldom inside.
fn values(tile: &TileProgram, f: &Quotient, extent: u64) -> u64 {
    let Some(f) = f.affine() else {
        return 1;
    };
    let mut terms: Vec<(u64, u64)> = f
        .terms()
        .iter()
        .map(|(c, a)| (c.unsigned_abs(), tile.extent(*a)))
        .collect();
    terms.sort_unstable();
    // Σ c·x takes every value of its range if each coefficient is at most one more than what the smaller ones reach.
    let mut reach = 0u64;
    for (c, n) in terms {
        if c > reach.saturating_add(1) {
            return 1;
        }
        reach = reach.saturating_add(c.saturating_mul(n.saturating_sub(1)));
    }
    let range = f.range(|a| (0, tile.extent(a) as i64 - 1));
    let inside = range.map_or(1, |(low, high)| {
        high.min(extent as i64 - 1) - low.max(0) + 1
    });
    inside.max(1) as u64
}

/// Coordinates of a loop's axis that it visits for some point of what its bounds depend on; 0 if that isn't known.
fn visited(tile: &TileProgram, kernel: &Kernel, inner: &Loop, around: &[Partial]) -> u64 {
    let mut bounds = inner.low.iter().chain(&inner.high);
    if bounds.any(|b| !b.entries.is_empty()) {
        return 0;
    }
    let by: Vec<AxisId> = inner.bounding().iter().collect();
    let tiles: Vec<u64> = by
        .iter()
        .map(|a| tile.extent(*a).div_ceil(kernel.tile(*a)))
        .collect();
    let points = tiles.iter().fold(1u64, |n, t| n.saturating_mul(*t));
    if points > MOST_POINTS || around.iter().any(|p| by.contains(&p.axis)) {
        return 0;
    }
    let extent = tile.extent(inner.axis) as i64;
    let size = kernel.tile(inner.axis) as i64;
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for mut point in 0..points {
        let mut at: BTreeMap<AxisId, (i64, i64)> = BTreeMap::new();
        for (a, n) in by.iter().zip(&tiles) {
            let first = (point % n * kernel.tile(*a)) as i64;
            let last = (first + kernel.tile(*a) as i64).min(tile.extent(*a) as i64) - 1;
            at.insert(*a, (first, last));
            point /= n;
        }
        let value = |b: &Bound| {
            let sum = b.terms.iter().fold(b.offset, |sum, (c, a, corner)| {
                let (first, last) = at.get(a).copied().unwrap_or((0, 0));
                sum + c * match corner {
                    Corner::First => first,
                    Corner::Last => last,
                }
            });
            sum.div_euclid(b.divisor)
        };
        let low = inner.low.iter().map(value).fold(0, i64::max) / size * size;
        let high = inner.high.iter().map(value).fold(extent, i64::min);
        if low < high {
            ranges.push((low, ((high + size - 1) / size * size).min(extent)));
        }
    }
    ranges.sort_unstable();
    let (mut covered, mut upto) = (0, 0);
    for (low, high) in ranges {
        covered += (high - low.max(upto)).max(0);
        upto = upto.max(high);
    }
    covered as u64
}

#[cfg(test)]
mod tests {
    // Oracle: bytes counted by hand.
    use super::*;
    use crate::tiling::enumerate::{SearchOptions, candidates};

    /// The bytes that each of the first candidates must touch.
    fn bytes(text: &str) -> Vec<u64> {
        let program: ir::Program = format!("program p\n{text}\n")
            .parse()
            .unwrap_or_else(|e| panic!("{e}"));
        let target = crate::targets::target("h200").expect("a known target");
        let all: Vec<u64> = candidates(vec![program], &target, &SearchOptions::default())
            .take(24)
            .map(|c| least_bytes(&c.tile))
            .collect();
        assert!(!all.is_empty());
        all
    }

    #[test]
    fn what_must_be_touched_is_counted_once() {
        let sum = "axis t = 1000, m = 64\nx = parameter f32 [t, m]\nreturn f32 [t] sum(x; m)";
        assert!(bytes(sum).iter().all(|b| *b == 4 * (1000 * 64 + 1000)));
        // Nothing unused, no second reading of a shared operand, of a diagonal only the diagonal.
        let some = "axis t = 1000, u = 1000, v = 7\nx = parameter f32 [t, u]\ny = parameter f32 [t, v]\n\
                    return f32 [t] view(x; u -> t) + 0 * view(x; u -> t)";
        assert!(bytes(some).iter().all(|b| *b <= 4 * (1000 + 1000)));
        let strided =
            "axis t = 100, u = 10000\nx = parameter f32 [u]\nreturn f32 [t] view(x; u -> 100*t)";
        assert!(bytes(strided).iter().all(|b| *b == 4 * (1 + 100)));
    }

    #[test]
    fn skipped_tiles_are_not_counted_and_split_axes_are() {
        // Of 4096 keys the 64 queries see 64.
        let few = "axis i = 64, j = 4096, d = 64, e = 64\n\
                   q = parameter f16 [i, d]\nk = parameter f16 [j, d]\nv = parameter f16 [j, e]\n\
                   s = select(iota(i) - iota(j), dot(q, k; d), -inf)\n\
                   return f16 [i, e] dot(softmax(s; j), v; j)";
        let whole = 2 * (2 * 4096 * 64 + 2 * 64 * 64);
        let least = bytes(few);
        assert!(least.iter().min() < Some(&(whole / 4)), "{least:?}");
        let split = "axis h = 4, j = 8192, d = 64, e = 64\n\
                     q = parameter f16 [h, d]\nk = parameter f16 [h, j, d]\nv = parameter f16 [h, j, e]\n\
                     return f16 [h, e] dot(softmax(dot(q, k; d); j), v; j)";
        let whole = 2 * (2 * 4 * 8192 * 64 + 2 * 4 * 64);
        let least = bytes(split);
        assert!(least.iter().all(|b| *b == whole), "{whole}: {least:?}");
    }
}

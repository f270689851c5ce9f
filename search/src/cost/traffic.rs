//! What a kernel moves between device memory and L2.

use super::{Around, Work};
use ir::{AxisId, Buffer, BufferId, Kernel, Quotient, Target, TileOp, TileProgram, stores};
use std::collections::BTreeMap;

/// The bytes of every element that a kernel touches, once.
pub(super) fn unique_bytes(tile: &TileProgram, kernel: &Kernel) -> u64 {
    let mut touched: BTreeMap<BufferId, u64> = BTreeMap::new();
    for v in &kernel.values {
        if let TileOp::Load { buffer, index, .. } = &v.op {
            let elements = tile.footprint(*buffer, index, |a| tile.extent(a));
            let bytes = elements.saturating_mul(tile.buffer(*buffer).dtype.bytes());
            let known = touched.entry(*buffer).or_default();
            *known = bytes.max(*known);
        }
    }
    for (buffer, _) in stores(&kernel.body) {
        touched.insert(buffer, bytes(tile, tile.buffer(buffer)));
    }
    touched.values().fold(0, |n, b| n.saturating_add(*b))
}

/// The bytes of a buffer.
fn bytes(tile: &TileProgram, buffer: &Buffer) -> u64 {
    tile.volume(buffer.axes())
        .saturating_mul(buffer.dtype.bytes())
}

/// Bytes from device memory: each element once, and again for every wave of blocks where the operands outgrow L2. Loops that run over
/// the same elements again find them there, where half of it holds what all blocks of a wave run over.
pub(super) fn hbm_bytes(
    tile: &TileProgram,
    kernel: &Kernel,
    work: &Work,
    counts: &[(AxisId, u64)],
    at_once: u64,
    waves: u64,
    target: &Target,
) -> f64 {
    let unique = unique_bytes(tile, kernel) as f64;
    if unique <= target.l2_bytes as f64 {
        return unique;
    }
    let mut sum = 0.0;
    let mut seen: Vec<(BufferId, &[Quotient])> = Vec::new();
    for reading in &work.loads {
        let value = kernel.value(reading.value);
        let TileOp::Load { buffer, index, .. } = &value.op else {
            continue;
        };
        // The same elements with another fill come from a cache.
        if reading.around.is_empty() && seen.contains(&(*buffer, index)) {
            continue;
        }
        seen.push((*buffer, index));
        let (own, others): (Vec<&Around>, Vec<&Around>) =
            (reading.around.iter()).partition(|l| value.axes.contains(l.axis));
        let together: f64 = own.iter().map(|l| l.together).product();
        let again: f64 = others.iter().map(|l| l.trips.max(1.0)).product();
        // How many different tiles of this load one wave of neighbouring blocks reads.
        let mut left = at_once;
        let mut distinct = 1_u64;
        for (axis, count) in counts.iter().rev() {
            let here = left.min(*count).max(1);
            if value.axes.contains(*axis) || own.iter().any(|l| l.apart.contains(*axis)) {
                distinct = distinct.saturating_mul(here);
            }
            left = left.div_ceil(*count).max(1);
        }
        let whole = bytes(tile, tile.buffer(*buffer)) as f64;
        let mut per_wave = distinct as f64 * reading.bytes * together;
        if per_wave / again <= target.l2_bytes as f64 / 2.0 {
            per_wave /= again;
        }
        let read = waves as f64 * per_wave;
        sum += if whole <= target.l2_bytes as f64 / 4.0 {
            whole.min(read)
        } else {
            read
        };
    }
    let stored = stores(&kernel.body);
    let stored = stored.iter().map(|s| bytes(tile, tile.buffer(s.0)) as f64);
    sum + stored.sum::<f64>()
}

//! What a kernel moves between device memory and L2.

use super::{Around, Work, volume};
use ir::{
    Affine, AxisId, Buffer, BufferId, BufferRole, Kernel, Target, TileOp, TileProgram, stores,
};
use std::collections::BTreeMap;

/// The bytes of every element that a kernel touches, once.
pub(super) fn unique_bytes(tile: &TileProgram, kernel: &Kernel) -> u64 {
    let all = touched(tile, kernel);
    all.values().fold(0, |n, b| n.saturating_add(*b))
}

/// The bytes of each buffer that a kernel touches.
fn touched(tile: &TileProgram, kernel: &Kernel) -> BTreeMap<BufferId, u64> {
    let mut touched: BTreeMap<BufferId, u64> = BTreeMap::new();
    for v in &kernel.values {
        if let TileOp::Load { buffer, index, .. } = &v.op {
            let elements = tile
                .buffer(*buffer)
                .axes()
                .zip(index)
                .fold(1_u64, |n, (a, f)| {
                    let span = f
                        .range(|x| (0, tile.extent(x) as i64 - 1))
                        .map_or(u64::MAX, |(low, high)| (high - low + 1) as u64);
                    n.saturating_mul(span.min(tile.extent(a)))
                });
            let bytes = elements.saturating_mul(tile.buffer(*buffer).dtype.bytes());
            let known = touched.entry(*buffer).or_default();
            *known = bytes.max(*known);
        }
    }
    for (buffer, _) in stores(&kernel.body) {
        touched.insert(buffer, bytes(tile, tile.buffer(buffer)));
    }
    touched
}

/// The bytes of a buffer.
fn bytes(tile: &TileProgram, buffer: &Buffer) -> u64 {
    volume(tile, buffer.axes()).saturating_mul(buffer.dtype.bytes())
}

/// Bytes of a kernel's that are in L2 already, half of it at most: what it reads of what kernels in front wrote, and as timings are warm,
/// of the rest what the run before left. If the program's parameters and results alone outgrow L2 that is nothing; what a plan keeps
/// between its kernels does not count there, so that a kernel costs the same in every plan.
pub(super) fn kept_bytes(tile: &TileProgram, kernel: &Kernel, target: &Target) -> f64 {
    let l2 = target.l2_bytes as f64;
    let is_workspace = |b: &Buffer| b.role == BufferRole::Workspace;
    let outer = tile.buffers.iter().filter(|b| !is_workspace(b));
    let run: f64 = outer.map(|b| bytes(tile, b) as f64).sum();
    let stored = stores(&kernel.body);
    let (mut made, mut left) = (0.0, 0.0);
    for (buffer, bytes) in touched(tile, kernel) {
        let is_made = is_workspace(tile.buffer(buffer)) && stored.iter().all(|s| s.0 != buffer);
        *(if is_made { &mut made } else { &mut left }) += bytes as f64;
    }
    let share = (2.0 * (1.0 - run / l2)).clamp(0.0, 1.0);
    (made + share * left).min(l2 / 2.0)
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
    let mut seen: Vec<(BufferId, &[Affine])> = Vec::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left in L2 of two kernels' operands, with a tensor of so many MiB between them.
    fn kept(given: u64, between: u64) -> Vec<f64> {
        let mib = 1 << 20;
        let text = format!(
            "tile two\naxis a = {}, c = {}, u = 256\nbuffer x = parameter 0 f32 [a, u]\nbuffer y = output 0 f32 [c]\n\
             buffer w = workspace f32 [c, u]\nkernel grid(c: 1, u: 64) {{\n  p = load x[c, u]\n  store w = p\n}}\n\
             kernel grid(c: 1) whole(u: 256) {{\n  p = load w[c, u]\n  s = reduce_sum(p; u)\n  store y = s\n}}\n",
            given * 1024,
            between * 1024
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let target = Target {
            l2_bytes: 64 * mib,
            ..crate::targets::target("h200").expect("a target")
        };
        let kernels = tile.kernels.iter();
        let all = kernels.map(|k| kept_bytes(&tile, k, &target) / mib as f64);
        all.map(f64::round).collect()
    }

    #[test]
    fn a_run_that_outgrows_l2_leaves_only_what_it_made_itself() {
        // Everything is there: the operand, and what is written over what was written before.
        assert_eq!(kept(8, 8), [16.0, 8.0]);
        // Half of L2 is as much as counts.
        assert_eq!(kept(24, 24), [32.0, 24.0]);
        // At three quarters of L2 half of it is left, beyond all of L2 nothing.
        assert_eq!(kept(48, 8), [8.0, 8.0]);
        assert_eq!(kept(128, 8), [0.0, 8.0]);
        assert_eq!(kept(128, 100), [0.0, 32.0]);
    }
}

//! In which order the grid is walked.

use ir::{AxisId, Kernel, Quotient, Target, TileOp, TileProgram};

/// Tiles of the second fastest axis of the grid that should be walked together, where blocks along one axis share one operand and
/// those along the other another one: those that run at a time then read the least. 1 where walking one at a time is as good.
pub(super) fn raster(tile: &TileProgram, kernel: &Kernel, target: &Target) -> u32 {
    let count = |a: AxisId| tile.extent(a).div_ceil(kernel.tile(a));
    let axes = kernel.grid.iter().rev().copied();
    let moving: Vec<AxisId> = axes.filter(|a| count(*a) > 1).take(2).collect();
    let &[fast, slow] = moving.as_slice() else {
        return 1;
    };
    // What a tile reads along one of the two axes and not along the other.
    let reads = |own: AxisId, other: AxisId| {
        let loads = kernel.values.iter().filter_map(|v| match &v.op {
            TileOp::Load { index, .. } => Some(index),
            TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Map(..)
            | TileOp::Reduce { .. }
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => None,
        });
        let mentions = |index: &[Quotient], a: AxisId| index.iter().any(|f| f.axes().contains(a));
        loads
            .filter(|index| mentions(index, own) && !mentions(index, other))
            .map(|_| kernel.tile(own) as f64)
            .sum::<f64>()
    };
    let (along_fast, along_slow) = (reads(fast, slow), reads(slow, fast));
    if along_fast == 0.0 || along_slow == 0.0 {
        return 1;
    }
    // g tiles of one axis and together / g of the other read g * slow + together / g * fast.
    let together = f64::from(target.sms);
    let best = (together * along_fast / along_slow).sqrt().max(1.0);
    if count(fast) as f64 <= together / best {
        return 1;
    }
    (best.round() as u64).min(count(slow)) as u32
}

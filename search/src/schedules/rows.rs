//! Schedules of kernels that contract nothing.

use codegen::passes::{registers, warps};
use ir::{Kernel, KernelSchedule, Target, TileOp, TileProgram};

/// Kernels without contraction: warps along rows where something is reduced, as many as leave each thread some work.
pub(super) fn row_schedules(
    tile: &TileProgram,
    kernel: &Kernel,
    target: &Target,
) -> Vec<KernelSchedule> {
    let elements = kernel
        .values
        .iter()
        .map(|v| kernel.volume(&v.axes))
        .max()
        .unwrap_or(1);
    let reduced = kernel
        .values
        .iter()
        .filter_map(|v| match &v.op {
            TileOp::Reduce { axes, .. } => Some(kernel.volume(axes)),
            TileOp::Load { .. }
            | TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Map(..)
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => None,
        })
        .max();
    let mut found = Vec::new();
    // (elements of a thread, registers beside them). Block groups keep their elements while they wait, and want others to work then.
    let plain = [16u64, 8, 32, 64].map(|each| (each, None));
    // Elements that may not exist take registers for their conditions.
    let partial = |a: &ir::AxisId| !tile.extent(*a).is_multiple_of(kernel.tile(*a));
    let beside = if kernel.axes.keys().any(partial) {
        48
    } else {
        32
    };
    let waiting = [
        (32u64, beside),
        (64, beside),
        (16, beside),
        (32, 64),
        (128, 72),
        (16, 16),
        (64, 64),
        (64, 190),
    ];
    let choices: Vec<(u64, Option<u64>)> = if kernel.block_group().is_empty() {
        plain.to_vec()
    } else {
        waiting.map(|(each, rest)| (each, Some(rest))).to_vec()
    };
    for (each, rest) in choices {
        let warps = (elements / (32 * each)).clamp(1, 32).next_power_of_two();
        let threads = 32 * warps;
        let blocks = rest.map_or(1, |rest| {
            let fit = u64::from(target.registers_per_sm) / (threads * (each + rest));
            let most = u64::from(target.threads_per_sm) / threads;
            fit.clamp(1, most.min(u64::from(target.blocks_per_sm)))
        });
        let along = match reduced {
            Some(length) => (length / (32 * 8))
                .clamp(1, warps)
                .next_power_of_two()
                .min(warps),
            None => warps,
        };
        let schedule = KernelSchedule::from_iter([
            warps::step([(warps / along) as u32, along as u32]),
            registers::step(blocks as u32),
        ]);
        if !found.contains(&schedule) {
            found.push(schedule);
        }
    }
    found
}

//! Schedules for a tile program: which instruction carries out each contraction, how many warps, how deep the rings.

use crate::cost;
use ir::{
    Atom, ContractSchedule, Kernel, KernelSchedule, Schedule, Target, TileOp, TileProgram, ValueId,
};
use std::collections::BTreeMap;

/// The shapes of warps that are tried, rows by columns.
#[rustfmt::skip]
const WARPS: [(u32, u32); 10] = [
    (4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4), (1, 8), (2, 1), (1, 1), (4, 4),
];
/// Slots of the operand rings that are tried.
const STAGES: [u32; 3] = [2, 3, 1];
/// Registers of a thread that its share of the tiles should take, at most.
const SHARE: u64 = 128;

/// Schedules that suit the tile program, the most promising first.
///
/// Every kernel is varied alone, the others as in the first schedule.
pub fn schedules(tile: &TileProgram, target: &Target) -> Vec<Schedule> {
    let costs = cost::cost(tile, None, target).kernels;
    let each: Vec<Vec<KernelSchedule>> = tile
        .kernels
        .iter()
        .zip(&costs)
        .map(|(k, c)| kernel_schedules(tile, k, c.held, target))
        .collect();
    let first: Vec<KernelSchedule> = each.iter().filter_map(|k| k.first().cloned()).collect();
    if first.len() != tile.kernels.len() {
        return Vec::new();
    }
    let mut all = vec![Schedule {
        kernels: first.clone(),
    }];
    let most = each.iter().map(Vec::len).max().unwrap_or(0);
    for i in 1..most {
        for (k, options) in each.iter().enumerate() {
            if let Some(other) = options.get(i) {
                let mut kernels = first.clone();
                kernels[k] = other.clone();
                all.push(Schedule { kernels });
            }
        }
    }
    all
}

/// The sides of a contraction's tile: rows, columns, depth, and batch.
fn sides(kernel: &Kernel, a: ValueId, b: ValueId, axes: &ir::AxisSet) -> [u64; 4] {
    let tiles = |set: &ir::AxisSet| set.iter().map(|x| kernel.tile(x)).product::<u64>();
    let (x, y) = (&kernel.value(a).axes, &kernel.value(b).axes);
    [
        tiles(&x.minus(y)),
        tiles(&y.minus(x)),
        tiles(axes),
        tiles(&x.intersection(y).minus(axes)),
    ]
}

fn kernel_schedules(
    tile: &TileProgram,
    kernel: &Kernel,
    held: u64,
    target: &Target,
) -> Vec<KernelSchedule> {
    let mut contracts: BTreeMap<ValueId, ContractSchedule> = BTreeMap::new();
    let (mut rows, mut columns) = (1, 1);
    for (i, v) in kernel.values.iter().enumerate() {
        let TileOp::Contract { a, b, axes } = &v.op else {
            continue;
        };
        let [m, n, k, batch] = sides(kernel, *a, *b, axes);
        let loaded = |v: ValueId| matches!(kernel.value(v).op, TileOp::Load { .. });
        // A computed operand is in registers, and only the rows' operand may be; among loaded ones the longer side
        // makes rows.
        let swap = match (loaded(*a), loaded(*b)) {
            (true, false) => true,
            (false, true) => false,
            (true, true) | (false, false) => m < 16 && n > m,
        };
        let (m, n) = if swap { (n, m) } else { (m, n) };
        let matrix = batch == 1 && k > 1 && cost::matrix(tile, kernel, *a, *b);
        contracts.insert(
            ValueId(i as u32),
            ContractSchedule {
                atom: if matrix { Atom::MmaM16N8K16 } else { Atom::Fma },
                swap,
            },
        );
        if matrix {
            rows = rows.max(m / 16);
            columns = columns.max(n / 8);
        } else {
            rows = rows.max(m / 4);
            columns = columns.max(n / 16);
        }
    }
    let contracting = !contracts.is_empty();
    let mut scored: Vec<(u64, KernelSchedule)> = Vec::new();
    for (w, (warps_m, warps_n)) in WARPS.into_iter().enumerate() {
        let (wm, wn) = (u64::from(warps_m), u64::from(warps_n));
        let threads = 32 * wm * wn;
        let share = held / threads;
        // Warps beyond the tile are idle; a thread with too much spills, one with too little wastes its latency.
        let idle = if contracting {
            wm.saturating_sub(rows.max(1)) + wn.saturating_sub(columns.max(1))
        } else {
            0
        };
        let full = share.saturating_sub(SHARE) * 4;
        let thin = if contracting { 0 } else { 16_u64.saturating_sub(share.max(1)) };
        for (s, stages) in STAGES.into_iter().enumerate() {
            for blocks in [1, 2] {
                let have = u64::from(target.registers_per_sm) / (threads * blocks);
                if have.min(255) < share + 24 {
                    continue;
                }
                scored.push((
                    full * 100 + idle * 50 + thin * 4 + w as u64 * 3 + s as u64 * 8 + blocks,
                    KernelSchedule {
                        warps_m,
                        warps_n,
                        stages,
                        blocks_per_sm: blocks as u32,
                        contracts: contracts.clone(),
                    },
                ));
            }
        }
    }
    if scored.is_empty() {
        let (warps_m, warps_n) = (4, 4);
        scored.push((
            0,
            KernelSchedule {
                warps_m,
                warps_n,
                stages: 1,
                blocks_per_sm: 1,
                contracts: contracts.clone(),
            },
        ));
    }
    scored.sort_by_key(|s| s.0);
    let mut all: Vec<KernelSchedule> = scored.into_iter().map(|s| s.1).collect();
    // Whatever the matrix instructions refuse, register tiles may take.
    if contracts.values().any(|c| c.atom != Atom::Fma) {
        let mut plain = all[0].clone();
        for c in plain.contracts.values_mut() {
            c.atom = Atom::Fma;
        }
        all.push(plain);
    }
    all
}

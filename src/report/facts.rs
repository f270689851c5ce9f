//! What is known of a kernel: its time by the clock and what that consists of, its floor, and what limits it.

use codegen::clock::{Part, Parts};
use ir::{Schedule, Target, TileProgram};
use search::cost::{KernelCost, cost};

/// The share of the time from which on a busy unit is what limits a kernel.
const BUSY: f64 = 0.6;

/// One kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelFacts {
    /// Its number.
    pub number: usize,
    /// Microseconds by the clock.
    pub us: f64,
    /// What the clock's time consists of; nothing where the clock could not run.
    pub parts: Option<Parts>,
    /// Bytes that it reads and writes, each once.
    pub bytes: u64,
    /// Arithmetic operations.
    pub flops: u64,
    /// Tiles of the grid.
    pub blocks: u64,
    /// Those of them that are not in L2 when it runs.
    pub memory_bytes: u64,
    /// Microseconds in which the bytes move once.
    pub bytes_us: f64,
    /// Device memory or L2, whichever takes that long.
    pub bytes_by: Part,
    /// Microseconds in which the operations are done at the rates of their units, which all multiprocessors share.
    pub operations_us: f64,
    /// The unit that takes that long.
    pub operations_by: Part,
    /// What limits it.
    pub limit: Limit,
}

/// What limits a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// A unit that is busy for most of the time.
    Unit {
        /// Which.
        unit: Part,
        /// For what share of the time.
        share: f64,
    },
    /// The launch takes more of the time than any unit or wait.
    Launch {
        /// How much of it.
        share: f64,
    },
    /// Warps wait, and no unit is busy.
    Waits {
        /// For what.
        wait: Part,
        /// For what share of the time.
        share: f64,
        /// The busiest unit, and its share.
        unit: Part,
        /// Its share of the time.
        busy: f64,
    },
    /// The clock could not run.
    Unknown,
}

impl KernelFacts {
    /// The floor by the roofline, whatever the schedule.
    pub fn floor_us(&self) -> f64 {
        self.bytes_us.max(self.operations_us)
    }

    fn of(tile: &TileProgram, number: usize, cost: &KernelCost, target: &Target) -> Self {
        let kernel = &tile.kernels[number];
        let stays = codegen::clock::in_l2(tile, number, target);
        let own = kernel.buffers();
        let leaves = own
            .difference(&stays)
            .map(|b| tile.buffer_bytes(tile.buffer(*b)));
        let memory_bytes = leaves.fold(0, u64::saturating_add).min(cost.bytes);
        let sms = f64::from(target.sms);
        let rounds = (cost.blocks as f64 / sms).ceil().max(1.0);
        // The model spreads work over the multiprocessors that have a block; the floor over all of them.
        let share = (cost.blocks as f64 / (rounds * sms)).min(1.0);
        let operations = [
            (Part::Tensor, cost.tensor_us),
            (Part::Issue, cost.cuda_us),
            (Part::Special, cost.special_us),
        ];
        let (operations_by, operations_us) = operations
            .into_iter()
            .max_by(|x, y| x.1.total_cmp(&y.1))
            .unwrap_or((Part::Issue, 0.0));
        let at = |bytes: u64, rate: f64| bytes as f64 / (rate * 1e6);
        let memory_us = at(memory_bytes, target.memory_tb_s);
        let l2_us = at(cost.bytes, target.l2_tb_s.max(target.l2_ring_tb_s));
        Self {
            number,
            us: cost.us,
            parts: cost.clock,
            bytes: cost.bytes,
            flops: cost.flops,
            blocks: cost.blocks,
            memory_bytes,
            bytes_us: memory_us.max(l2_us),
            bytes_by: match memory_us >= l2_us {
                true => Part::Memory,
                false => Part::L2,
            },
            operations_us: operations_us * share,
            operations_by,
            limit: cost.clock.map_or(Limit::Unknown, Limit::of),
        }
    }
}

impl Limit {
    fn of(parts: Parts) -> Self {
        let all = parts[Part::All];
        let share = |part: Part| parts[part] / all;
        let most = |list: &[Part]| {
            let shares = list.iter().map(|part| (*part, share(*part)));
            shares.max_by(|x, y| x.1.total_cmp(&y.1))
        };
        let (Some((unit, busy)), Some((wait, waits))) = (most(&Part::UNITS), most(&Part::WAITS))
        else {
            return Self::Unknown;
        };
        match share(Part::Launch) {
            _ if busy >= BUSY => Self::Unit { unit, share: busy },
            launch if launch >= busy.max(waits) => Self::Launch { share: launch },
            _ => Self::Waits {
                wait,
                share: waits,
                unit,
                busy,
            },
        }
    }
}

/// Every kernel of a tile program under a schedule.
pub(super) fn kernels(
    tile: &TileProgram,
    schedule: &Schedule,
    target: &Target,
) -> Vec<KernelFacts> {
    let cost = cost(tile, Some(schedule), target);
    let all = cost.kernels.iter().enumerate();
    all.map(|(n, k)| KernelFacts::of(tile, n, k, target))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of a kernel that takes 10.
    fn parts(some: &[(Part, f64)]) -> Parts {
        let mut parts = Parts::default();
        parts[Part::All] = 10.0;
        some.iter().for_each(|(part, us)| parts[*part] = *us);
        parts
    }

    #[test]
    fn what_is_busy_limits_before_what_is_waited_for() {
        use Part::{L2, Launch, Loads, Memory, Stages, Tensor};
        assert_eq!(
            Limit::of(parts(&[(Tensor, 8.0), (Memory, 6.0), (Stages, 9.0)])),
            Limit::Unit {
                unit: Tensor,
                share: 0.8
            }
        );
        assert_eq!(
            Limit::of(parts(&[(Tensor, 3.0), (Launch, 5.0), (Stages, 4.0)])),
            Limit::Launch { share: 0.5 }
        );
        assert_eq!(
            Limit::of(parts(&[
                (L2, 5.0),
                (Launch, 1.0),
                (Loads, 7.0),
                (Stages, 2.0)
            ])),
            Limit::Waits {
                wait: Loads,
                share: 0.7,
                unit: L2,
                busy: 0.5
            }
        );
    }
}

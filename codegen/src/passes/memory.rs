//! Gives every region, the barriers of rings and scratch memory their place in the shared memory of a block.
//!
//! ```text
//! before            after
//!   s0: 0             s0: 0          filled outside of loops
//!   s1: 0             s1: 16384      filled in loop 0
//!   s2: 0             s2: 16384      filled in loop 1
//!   k0: 0             k0: 49152      barriers of a ring
//!   scratch: 0        scratch: 49280
//! ```
//!
//! Regions that are filled in different outermost loops are never alive together: they share the space behind those that are filled outside of
//! loops. It is always legal; how much there may be, the target says.

use crate::machine::{LoopId, Machine, RegionId, Statement};
use crate::resources::SWIZZLE_BYTES;
use ir::{Reject, Target};
use std::collections::{BTreeMap, BTreeSet};

/// Where regions begin that are not swizzled, and what is behind them, in bytes: whole lines of banks.
const ALIGNED: u64 = 128;
/// Bytes of the two barriers of a stage.
const BARRIERS: u64 = 16;

/// The machine program with all offsets.
///
/// # Errors
/// What a block takes exceeds what the target has.
pub(crate) fn memory(mut machine: Machine, target: &Target) -> Result<Machine, Reject> {
    let homes = homes(&machine);
    let swizzled = machine.regions.iter().any(|r| r.swizzle.is_some());
    let aligned = if swizzled { SWIZZLE_BYTES } else { ALIGNED };
    let places: BTreeSet<Option<LoopId>> = homes.iter().copied().collect();
    let (mut common, mut end) = (0, 0);
    for place in places {
        let mut offset = common;
        let own = machine.regions.iter_mut().zip(&homes);
        for (region, _) in own.filter(|(_, home)| **home == place) {
            region.offset = offset;
            let bytes = (region.elements)
                .checked_mul(region.dtype.bytes())
                .and_then(|b| b.checked_mul(region.stages))
                .unwrap_or(u64::MAX);
            // Then what is added up cannot overflow.
            if bytes > target.shared_per_block {
                return Err(Reject::SharedMemory {
                    need: bytes,
                    have: target.shared_per_block,
                });
            }
            end = end.max(offset + bytes.next_multiple_of(ALIGNED));
            offset = (offset + bytes).next_multiple_of(aligned);
        }
        if place.is_none() {
            common = offset;
        }
    }
    for ring in &mut machine.rings {
        ring.barriers = end;
        end += BARRIERS * ring.stages;
    }
    machine.scratch.offset = end.next_multiple_of(ALIGNED);
    let (need, have) = (machine.shared_bytes(), target.shared_per_block);
    match need > have {
        true => Err(Reject::SharedMemory { need, have }),
        false => Ok(machine),
    }
}

/// The outermost loop in which each region is filled, if it is filled in one.
fn homes(machine: &Machine) -> Vec<Option<LoopId>> {
    fn list(
        body: &[Statement],
        outermost: Option<LoopId>,
        machine: &Machine,
        homes: &mut BTreeMap<RegionId, LoopId>,
    ) {
        for statement in body {
            let inside = if let Statement::Loop { number, .. } = statement {
                outermost.or(Some(*number))
            } else {
                outermost
            };
            if let Some(home) = outermost {
                for region in statement.fills(&machine.rings) {
                    homes.insert(region, home);
                }
            }
            for l in statement.lists() {
                list(l, inside, machine, homes);
            }
        }
    }
    let mut homes = BTreeMap::new();
    list(&machine.body, None, machine, &mut homes);
    for producer in &machine.producers {
        list(&producer.body, None, machine, &mut homes);
    }
    let ids = 0..machine.regions.len() as u32;
    ids.map(|i| homes.get(&RegionId(i)).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::machine;
    use expect_test::expect;

    fn target(bytes: u64) -> Target {
        let text = include_str!("../../../search/targets/h200.json");
        let mut target: Target = serde_json::from_str(text).expect("a target");
        target.shared_per_block = bytes;
        target
    }

    fn offsets(body: &str) -> Vec<u64> {
        let placed = memory(machine(body), &target(1 << 17)).expect("finds room");
        let regions = placed.regions.iter().map(|r| r.offset);
        regions.chain([placed.scratch.offset]).collect()
    }

    #[test]
    fn loops_share_what_is_behind_the_rest() {
        let apart = "COPY0, Loop(number: 0, body: [COPY1])";
        assert_eq!(offsets(apart), [0, 8192, 16384]);
        let both = "Loop(number: 0, body: [COPY0, COPY1])";
        assert_eq!(offsets(both), [0, 8192, 16384]);
        let one_by_one = "Loop(number: 0, body: [COPY0]), Loop(number: 1, body: [COPY1])";
        assert_eq!(offsets(one_by_one), [0, 0, 8192]);
        // In front of their loop the first stages of a ring are filled.
        let ahead = "COPY0, Loop(number: 0, body: [COPY0]), Loop(number: 1, body: [COPY1])";
        assert_eq!(offsets(ahead), [0, 0, 8192]);
    }

    #[test]
    fn what_finds_no_room_is_refused() {
        let refused = memory(machine("COPY0, COPY1"), &target(16_000)).expect_err("refused");
        expect!["shared memory: 16448 bytes needed, 16000 available"]
            .assert_eq(&refused.to_string());
    }
}

//! Goes over the tiles of a grid so that those which run at a time share what they read.
//!
//! ```text
//! before: 0  4  8 12      after, with 2: 0  1  8  9
//!         1  5  9 13                     2  3 10 11
//!         2  6 10 14                     4  5 12 13
//!         3  7 11 15                     6  7 14 15
//! ```
//!
//! The fastest axis that has several tiles goes down, the next one to the right: so many tiles along that come before the fastest moves on. It is always legal, as tiles may
//! be computed in any order; but where blocks work together their order is their own, and stays.

use super::{Apply, Pass};
use crate::machine::{GridAxis, Machine, Raster};
use ir::{Argument, Form, KernelSchedule, Part, Step};

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "raster",
        parts: &[Part::Count {
            name: "N",
            of: "tiles that are walked together",
            // A grid of so many tiles along one axis is walked like one of more.
            most: 1 << 16,
        }],
        required: false,
        help: "so many tiles of the grid's second fastest axis are walked together",
    },
    behind: &[],
    apply: Apply::Statements(|machine, step, _, _| Ok(raster(machine, step.count().into()))),
};

/// So many tiles of the second fastest axis of the grid are gone over together before the fastest axis moves on: neighbours in time then read the
/// same parts of both operands of a product from L2.
pub fn step(tiles: u32) -> Step {
    Step::new(&PASS.form, [Argument::Count(tiles)])
}

/// Tiles that are gone over together; 1: the fastest axis first.
pub fn of(schedule: &KernelSchedule) -> u32 {
    let [tiles] = schedule.counts(&PASS.form);
    tiles
}

/// The machine program whose tiles are gone over in groups of so many.
pub(crate) fn raster(mut machine: Machine, height: u64) -> Machine {
    let counts = machine.grid.coordinates.iter().map(|a: &GridAxis| a.count);
    let moving: Vec<u64> = counts.filter(|n| *n > 1).take(2).collect();
    if let (&[fast, slow], None) = (moving.as_slice(), machine.block_group) {
        let height = height.min(slow);
        machine.grid.raster = (height >= 2).then_some(Raster { fast, slow, height });
    }
    machine
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::machine;
    use expect_test::expect;

    #[test]
    fn two_axes_are_gone_over_in_groups() {
        let mut before = machine("STORE");
        assert_eq!(
            raster(before.clone(), 4).grid.raster,
            None,
            "one axis has several tiles"
        );
        before.grid.coordinates = [(0, 8), (1, 4)]
            .map(|(axis, count)| GridAxis {
                axis: ir::AxisId(axis),
                count,
                descending: false,
            })
            .to_vec();
        let found = raster(before.clone(), 16).grid.raster;
        expect!["Some(Raster { fast: 8, slow: 4, height: 4 })"].assert_eq(&format!("{found:?}"));
        assert_eq!(raster(before, 1).grid.raster, None);
    }
}

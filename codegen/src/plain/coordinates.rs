//! Where the tiles of a grid are.

use super::{Grid, Plain};
use crate::machine::GridAxis;
use ir::{AxisId, Reject, Statement};

impl Plain<'_> {
    /// The block's coordinates. Tiles that let a loop run longer start first; those of a block group start one after another.
    pub(super) fn grid(&mut self) -> Result<Grid, Reject> {
        let mut tiles: u64 = 1;
        let in_block_group = |a: &&AxisId| {
            self.block_group
                .as_ref()
                .is_some_and(|t| t.axes.contains(**a))
        };
        let (block_group, others): (Vec<&AxisId>, Vec<&AxisId>) =
            self.kernel.grid.iter().rev().partition(in_block_group);
        let mut coordinates = Vec::new();
        for axis in block_group.into_iter().chain(others) {
            let count = self.tile.extent(*axis).div_ceil(self.kernel.tile(*axis));
            tiles = tiles
                .checked_mul(count)
                .filter(|b| *b < 1 << 31)
                .ok_or_else(|| Reject::Grid("more than 2^31 blocks".into()))?;
            coordinates.push(GridAxis {
                axis: *axis,
                count,
                descending: lengthens(&self.kernel.body, *axis),
            });
        }
        if self.block_group.as_ref().is_some_and(|t| t.shape().waits) {
            // The number that a block is given.
            self.scratch(1);
        }
        Ok(Grid {
            coordinates,
            raster: None,
            tiles,
            persistent: false,
        })
    }
}

/// Whether a larger coordinate along `axis` lets some loop run longer.
fn lengthens(body: &[Statement], axis: AxisId) -> bool {
    body.iter().any(|s| match s {
        Statement::Let(_) | Statement::Store { .. } => false,
        Statement::Loop(l) => {
            l.high
                .iter()
                .any(|b| b.terms.iter().any(|(c, a, _)| *a == axis && *c > 0))
                || lengthens(&l.body, axis)
        }
    })
}

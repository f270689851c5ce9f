//! The same tile program at other extents and with other tiles.

use crate::axes::AxisId;
use crate::tile::{Kernel, Role, Statement, TileProgram};
use crate::tile_check::validate;
use crate::tile_split::split_of;
use std::collections::BTreeMap;

impl TileProgram {
    /// The same tile program at other extents and tile sizes, validated.
    ///
    /// * An axis that `extents` does not mention keeps its extent; parts of a split axis are axes like any other. A collapsed axis has what those
    ///   have that it stands for.
    /// * `tiles(kernel, axis)` gives tile sizes; where it gives none, the old one stays. Either is lowered to the new
    ///   extent, and a [`Role::Whole`] axis always has its extent.
    /// * A split ([`split_of`]: a loop over `j` with the bounds `chunk · first(part) ..  chunk · first(part) + chunk`,
    ///   `part` a grid axis with tile 1, `j` itself in global coordinates) gets the chunk
    ///   `tile(j) · ⌈⌈extent(j) / tile(j)⌉ / extent(part)⌉`, so that the parts cover the axis evenly; trailing parts may
    ///   be empty.
    /// * Everything else stays as it is: constants (also those that came from extents), affine indices, fills, and all
    ///   other bounds.
    pub fn resized(
        &self,
        extents: &BTreeMap<AxisId, u64>,
        tiles: impl Fn(usize, AxisId) -> Option<u64>,
    ) -> Result<TileProgram, String> {
        validate(self).map_err(|faults| faults.join("; "))?;
        let mut new = self.clone();
        for (axis, extent) in extents {
            let Some(known) = new.axes.get_mut(axis.index()) else {
                return Err(format!("no axis number {}", axis.0));
            };
            if *extent == 0 {
                return Err(format!("axis `{}` cannot have extent 0", known.name));
            }
            known.extent = *extent;
        }
        for (axis, members) in &new.collapsed {
            let extents = members.iter().map(|m| new.axes[m.index()].extent);
            new.axes[axis.index()].extent = extents.fold(1, u64::saturating_mul);
        }
        for (at, kernel) in new.kernels.iter_mut().enumerate() {
            for (axis, tile) in &mut kernel.axes {
                let known = &new.axes[axis.index()];
                let wanted = tiles(at, *axis).unwrap_or(tile.tile);
                if wanted == 0 {
                    return Err(format!("axis `{}` cannot have tiles of 0", known.name));
                }
                tile.tile = match tile.role {
                    Role::Whole => known.extent,
                    Role::Grid | Role::Loop => wanted.min(known.extent),
                };
            }
            // Splits are recognised before any bound changes: a part axis keeps its tile of 1 because 1 is the least.
            let reference = kernel.clone();
            let extent = |a: AxisId| new.axes[a.index()].extent;
            for statement in &mut kernel.body {
                resize_splits(&reference, statement, &extent);
            }
        }
        validate(&new).map_err(|faults| faults.join("; "))?;
        Ok(new)
    }
}

fn resize_splits(kernel: &Kernel, statement: &mut Statement, extent: &impl Fn(AxisId) -> u64) {
    let Statement::Loop(looped) = statement else {
        return;
    };
    if let Some(split) = split_of(kernel, looped) {
        let tile = kernel.axes.get(&looped.axis).map_or(1, |a| a.tile.max(1));
        let parts = extent(split.part).max(1);
        let chunk = (tile * extent(looped.axis).div_ceil(tile).div_ceil(parts)) as i64;
        let (low, high) = (&mut looped.low[split.low], &mut looped.high[split.high]);
        low.terms[0].0 = chunk;
        high.terms[0].0 = chunk;
        high.offset = chunk;
    }
    for inner in &mut looped.body {
        resize_splits(kernel, inner, extent);
    }
}

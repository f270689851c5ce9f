//! The axes of a kernel, and how it cuts them.

use ir::AxisId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The axes that a kernel mentions.
pub type Axes = BTreeMap<AxisId, Axis>;

/// An axis as a kernel cuts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// Its name in the program.
    pub name: String,
    /// Its coordinates.
    pub extent: u64,
    /// Coordinates of a tile.
    pub tile: u64,
    /// Whether there is one tile, which begins at 0.
    pub whole: bool,
}

impl Axis {
    /// Whether the last tile is smaller.
    pub fn is_partial(&self) -> bool {
        !self.extent.is_multiple_of(self.tile)
    }
}

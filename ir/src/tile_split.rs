//! Loops that run over one part of their axis a grid point.

use crate::axes::AxisId;
use crate::tile::{Corner, Kernel, Loop, Role};

/// A loop that runs over one part of its axis a grid point: a low bound `chunk · first(part)` and a high bound
/// `chunk · first(part) + chunk`, `part` a grid axis with tile 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The grid axis whose coordinate says which part.
    pub part: AxisId,
    /// Coordinates of the loop's axis a part: a multiple of the loop's tile.
    pub chunk: u64,
    /// Which of the low bounds says it.
    pub(crate) low: usize,
    /// Which of the high bounds says it.
    pub(crate) high: usize,
}

/// The split that a loop's bounds write, if any.
pub fn split_of(kernel: &Kernel, looped: &Loop) -> Option<Split> {
    for (low, bound) in looped.low.iter().enumerate() {
        let [(chunk, part, Corner::First)] = bound.terms.as_slice() else {
            continue;
        };
        let is_part = kernel
            .axes
            .get(part)
            .is_some_and(|a| a.role == Role::Grid && a.tile == 1);
        if !bound.entries.is_empty()
            || !is_part
            || *chunk < 1
            || bound.divisor != 1
            || bound.offset != 0
        {
            continue;
        }
        let high = looped.high.iter().position(|h| {
            h.entries.is_empty() && h.terms == bound.terms && h.divisor == 1 && h.offset == *chunk
        });
        if let Some(high) = high {
            return Some(Split {
                part: *part,
                chunk: chunk.unsigned_abs(),
                low,
                high,
            });
        }
    }
    None
}

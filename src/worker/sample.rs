//! What screening compares of a large output: a part of it, since verification compares every element later.
//!
//! A part is judged as the whole is: the candidate's worst row and the baseline's are of the same rows, and what a sum over fewer elements
//! may be off is in the rule ([`verify::tolerance`]). Millions of elements are left.

use std::ops::Range;

/// Outputs of at most so many elements are compared whole.
const WHOLE: u64 = 1 << 22;
/// Stretches that are compared of a larger one, from its first to its last element.
const STRETCHES: u64 = 64;

/// Stretches of an output's elements in memory order, all of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Where they are.
    pub(super) stretches: Vec<Range<u64>>,
    /// Elements that are judged together: a row, or what a stretch has of one.
    pub(super) row: usize,
}

impl Sample {
    /// Of an output whose last dimension has `row` elements.
    pub(super) fn new(elements: u64, row: u64) -> Self {
        let row = row.max(1);
        if elements <= WHOLE {
            return Self {
                stretches: std::iter::once(0..elements).collect(),
                row: row as usize,
            };
        }
        let most = WHOLE / STRETCHES;
        // Whole rows where they fit.
        let length = if row <= most { most / row * row } else { most };
        let stretch = |n: u64| {
            let last = u128::from(elements - length) * u128::from(n) / u128::from(STRETCHES - 1);
            let last = last as u64;
            // At the start of a row, or inside one.
            let start = match row <= most {
                true => last / row * row,
                false => last / row * row + (last % row).min(row - length),
            };
            start..start + length
        };
        Self {
            stretches: (0..STRETCHES).map(stretch).collect(),
            row: row.min(most) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_outputs_are_compared_whole() {
        let sample = Sample::new(WHOLE, 128);
        assert_eq!((sample.stretches.len(), sample.row), (1, 128));
        assert_eq!(sample.stretches[0], 0..WHOLE);
        assert_eq!(Sample::new(1, 0).stretches[0], 0..1);
    }

    #[test]
    fn stretches_reach_from_end_to_end() {
        for row in [1, 77, 4096, 70_000, WHOLE / STRETCHES, WHOLE, WHOLE * 3] {
            let elements = (WHOLE * 3).div_ceil(row) * row;
            let sample = Sample::new(elements, row);
            let (first, last) = (&sample.stretches[0], sample.stretches.last());
            assert_eq!(first.start, 0, "{row}");
            assert_eq!(last.map(|s| s.end), Some(elements), "{row}");
            for s in &sample.stretches {
                assert_eq!((s.end - s.start) % sample.row as u64, 0, "{row}");
                assert!(sample.row as u64 != row || s.start % row == 0, "{row}");
                let rows = (s.start / row, (s.end - 1) / row);
                assert!(sample.row as u64 == row || rows.0 == rows.1, "{row}");
            }
        }
    }
}

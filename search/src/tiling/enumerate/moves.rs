//! Steps in the space of choices: what differs from a choice in one budget.
//!
//! A search goes on from what was fast with these. Most lead to the same tile program as another one, or to none: who asks tells them apart.

use crate::tiling::assign::Choice;

/// By how much a side of a tile is longer or shorter: rows of a matrix instruction, and whole groups of warps.
const SIDES: [u64; 2] = [16, 64];
/// Sides and depths of tiles, at least and at most.
const LEAST: u64 = 16;
const MOST: u64 = 512;
/// Parts of a split at most.
const PARTS: u64 = 512;
/// Elements of a tile without contractions, at least and at most.
const LEAST_ELEMENTS: u64 = 128;
const MOST_ELEMENTS: u64 = 65_536;
/// Lines of such a tile, and coordinates across, at most.
const LINES: u64 = 128;
/// Extents up to which axes are held whole; of windows none where it is one.
const WHOLE: [u64; 5] = [1, 16, 256, 576, 1024];
const KEEP: [u64; 3] = [0, 256, 576];

/// The choices that differ from one in one budget, by one step.
pub(super) fn steps(choice: &Choice) -> Vec<Choice> {
    let mut found = Vec::new();
    let mut with = |change: &dyn Fn(&mut Choice)| {
        let mut other = *choice;
        change(&mut other);
        if other != *choice && !found.contains(&other) {
            found.push(other);
        }
    };
    for rows in sides(choice.rows) {
        with(&|c| c.rows = rows);
    }
    for columns in sides(choice.columns) {
        with(&|c| c.columns = columns);
    }
    for depth in sides(choice.depth) {
        with(&|c| c.depth = depth);
    }
    // A tile of the same size, and its two sides exchanged.
    with(&|c| (c.rows, c.columns) = (c.columns, c.rows));
    with(&|c| (c.rows, c.columns) = ((c.rows * 2).min(MOST), (c.columns / 2).max(LEAST)));
    with(&|c| (c.rows, c.columns) = ((c.rows / 2).max(LEAST), (c.columns * 2).min(MOST)));
    for whole in WHOLE {
        with(&|c| c.whole = whole);
    }
    for keep in KEEP {
        with(&|c| c.keep = keep);
    }
    for elements in doubled(choice.elements, LEAST_ELEMENTS, MOST_ELEMENTS) {
        with(&|c| c.elements = elements);
    }
    for lines in doubled(choice.lines, 1, LINES) {
        with(&|c| c.lines = lines);
    }
    for across in doubled(choice.across, 1, LINES) {
        with(&|c| c.across = across);
    }
    let parts = choice.parts;
    for parts in [parts - 1, parts + 1, parts / 2, parts * 2, parts * 3 / 2] {
        with(&|c| c.parts = parts.clamp(1, PARTS));
    }
    if choice.along > 0 {
        for along in doubled(choice.along, 1, MOST_ELEMENTS) {
            with(&|c| c.along = along);
        }
    }
    with(&|c| c.block_group = !c.block_group);
    with(&|c| c.even = !c.even);
    with(&|c| c.picks = !c.picks);
    found
}

/// Longer and shorter sides.
fn sides(side: u64) -> impl Iterator<Item = u64> {
    let steps = SIDES
        .into_iter()
        .flat_map(move |by| [side + by, side.saturating_sub(by)]);
    let all = steps.chain([side * 2, side / 2]);
    all.filter(|s| (LEAST..=MOST).contains(s))
}

fn doubled(value: u64, least: u64, most: u64) -> [u64; 2] {
    [value * 2, value / 2].map(|v| v.clamp(least, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const CHOICE: Choice = Choice {
        rows: 128,
        columns: 128,
        depth: 64,
        whole: 256,
        keep: 0,
        elements: 1024,
        lines: 1,
        across: 1,
        parts: 1,
        block_group: false,
        even: false,
        along: 0,
        picks: false,
    };

    #[test]
    fn steps_differ_and_lead_back() {
        let all = steps(&CHOICE);
        let different: BTreeSet<&Choice> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert!(!all.contains(&CHOICE));
        for step in &all {
            assert!(steps(step).contains(&CHOICE), "no way back from {step:?}");
        }
    }

    #[test]
    fn steps_reach_a_large_space() {
        let mut seen = BTreeSet::from([CHOICE]);
        let mut edge = vec![CHOICE];
        for _ in 0..5 {
            let next: Vec<Choice> = edge.iter().flat_map(steps).collect();
            edge = next.into_iter().filter(|c| seen.insert(*c)).collect();
        }
        assert!(seen.len() > 10_000, "{}", seen.len());
    }
}

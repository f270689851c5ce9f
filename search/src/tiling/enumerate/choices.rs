//! The choices that are tried for a kernel, and which of them are remembered.

use super::SearchOptions;
use super::lists::Held;
use crate::tiling::assign::{self, Choice};
use crate::tiling::build::KernelOutline;
use ir::{Axis, Role};
use std::collections::BTreeMap;

/// How many choices are tried for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Detail {
    /// So few that many cuts can be compared.
    Coarse,
    Fine,
}

/// The first choices that are tried for every kernel, in no particular order.
fn choices(options: &SearchOptions, detail: Detail) -> Vec<Choice> {
    #[rustfmt::skip]
    const TILES: [(u64, u64); 10] = [
        (16, 32), (16, 64), (16, 128), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (128, 256),
    ];
    // Sides for three groups of warps: what these are good for the clock knows alone.
    const THREE_GROUPS: [(u64, u64); 2] = [(192, 128), (128, 192)];
    const DEPTHS: [u64; 3] = [64, 32, 128];
    const HELD: [(u64, u64); 4] = [(256, 256), (256, 0), (16, 0), (576, 256)];
    /// Of tiles and of what is held, what is tried where it is few.
    const COARSE_TILES: [(u64, u64); 4] = [(16, 64), (64, 64), (128, 128), (128, 256)];
    const COARSE_HELD: [(u64, u64); 2] = [(256, 256), (16, 0)];
    let is_coarse = detail == Detail::Coarse;
    let depths = match options.effort == 0 || is_coarse {
        true => 1,
        false => DEPTHS.len(),
    };
    let (tiles, held) = match is_coarse {
        true => (&COARSE_TILES[..], &COARSE_HELD[..]),
        false => (&TILES[..], &HELD[..]),
    };
    let mut all = Vec::new();
    let three = THREE_GROUPS
        .iter()
        .filter(|_| options.clocked && !is_coarse);
    for (rows, columns) in tiles.iter().chain(three).copied() {
        for depth in &DEPTHS[..depths] {
            for (whole, keep) in held.iter().copied() {
                // So much of more rows has no room in shared memory.
                if whole > 256 && (rows > 64 || *depth != DEPTHS[0]) {
                    continue;
                }
                all.push(Choice {
                    rows,
                    columns,
                    depth: *depth,
                    whole,
                    keep,
                    elements: rows * columns,
                    lines: 1,
                    across: 1,
                    parts: 1,
                    block_group: false,
                    even: false,
                    along: 0,
                    picks: false,
                });
            }
        }
    }
    all
}

/// The numbers of parts that are tried where a grid does not fill the machine.
const PARTS: [u64; 9] = [2, 4, 8, 16, 32, 64, 128, 256, 512];
/// Assignments that do not fill the machine and are tried with so many parts: those whose work would take least.
const SPREAD: usize = 24;
/// The same of both where few are tried.
const COARSE_PARTS: [u64; 3] = [4, 16, 64];
const COARSE_SPREAD: usize = 4;
/// The numbers of lines of element-wise tiles that are tried beside one.
const LINES: [u64; 2] = [4, 16];
/// The numbers of coordinates of the fastest axis that are tried where another one is reduced.
const ACROSS: [u64; 4] = [16, 32, 64, 128];
/// The numbers of coordinates that are tried of a loop that keeps what it has reduced.
const ALONG: [u64; 5] = [1, 128, 256, 512, 1024];
/// Assignments that are remembered for each kernel: so many plain ones, with a split, with block groups, with both, with loops that keep running values, and
/// with loops over coordinates that are picked.
const REMEMBERED: usize = 8;
/// So many of these hold the same tiles.
const ALIKE: usize = 4;

/// The choices that are tried for a kernel first, with whether more parts may be what one lacks.
pub(super) fn of_kernel(
    kernel: &KernelOutline<'_>,
    axes: &[Axis],
    options: &SearchOptions,
    detail: Detail,
) -> Vec<(Choice, bool)> {
    let choices = choices(options, detail);
    // One of each, where few are tried.
    let is_coarse = detail == Detail::Coarse;
    let few = |all: &'static [u64], at: usize| match is_coarse {
        true => &all[at..=at],
        false => all,
    };
    let mut all: Vec<(Choice, bool)> = choices.iter().map(|c| (*c, true)).collect();
    let even = |choice| assign::evened(kernel, axes, choice);
    all.extend(choices.iter().flat_map(even).map(|c| (c, false)));
    let mut with = |may_split: bool, change: &dyn Fn(Choice) -> Choice| {
        all.extend(choices.iter().map(|c| (change(*c), may_split)));
    };
    if assign::has_windows(kernel, axes) {
        with(true, &|choice| Choice { whole: 1, ..choice });
    }
    let along = match kernel.along() {
        None => &[],
        Some(kept) if kept.contractions().is_empty() => few(&ALONG, 0),
        // What is multiplied has tiles of its own: one coordinate at a time.
        Some(_) => &ALONG[..1],
    };
    for along in along.iter().copied() {
        with(false, &|choice| Choice { along, ..choice });
    }
    let picked = !kernel.picked().is_empty();
    let lines = few(&LINES, 1);
    for lines in [1].iter().chain(lines).copied().filter(|_| picked) {
        with(true, &|choice| Choice {
            picks: true,
            lines,
            ..choice
        });
    }
    let shapes = few(&ACROSS, 1).iter().map(|across| (1, *across, false));
    let lines = lines.iter().map(|lines| (*lines, 1, false));
    for (lines, across, block_group) in shapes.chain(lines).chain([(1, 1, true)]) {
        with(across > 1, &|choice| Choice {
            lines,
            across,
            block_group,
            ..choice
        });
    }
    all
}

/// The numbers of parts that are tried of what does not fill the machine, and of how many assignments.
pub(super) fn parts(detail: Detail) -> (&'static [u64], usize) {
    match detail {
        Detail::Coarse => (&COARSE_PARTS, COARSE_SPREAD),
        Detail::Fine => (&PARTS, SPREAD),
    }
}

/// Those that are remembered, with what a block holds under each, of all that were found, best first.
pub(super) fn remembered(
    kernel: &KernelOutline<'_>,
    axes: &[Axis],
    found: Vec<(Choice, f64)>,
) -> Vec<((Choice, f64), Held)> {
    let mut groups: BTreeMap<(bool, bool, bool, bool), usize> = BTreeMap::new();
    let mut tiles: BTreeMap<(Held, u64, bool), usize> = BTreeMap::new();
    let mut kept = Vec::new();
    for (choice, us) in found {
        let all = groups
            .entry((
                choice.parts > 1,
                choice.block_group,
                choice.along > 0,
                choice.picks,
            ))
            .or_default();
        if *all == REMEMBERED {
            continue;
        }
        let assigned = assign::assign(kernel, axes, &choice);
        let steady = assigned.axes.iter().filter(|a| a.1.role != Role::Loop);
        let held: Held = steady.map(|(a, t)| (*a, t.tile)).collect();
        let alike = (held.clone(), choice.parts, choice.block_group);
        let alike = tiles.entry(alike).or_default();
        if *alike < ALIKE {
            (*all, *alike) = (*all + 1, *alike + 1);
            kept.push(((choice, us), held));
        }
    }
    kept
}

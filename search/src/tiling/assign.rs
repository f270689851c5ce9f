//! How a kernel runs over its axes: grid, loop or whole, and with which tiles.
//!
//! A [`Choice`] is a handful of budgets; [`assign`] turns it into a role and a tile for every axis of a kernel. It looks at
//! what the kernel does with an axis, never at what the kernel is.

use crate::tiling::build::{Assignment, KernelOutline, Split};
use ir::{Axis, AxisId, AxisTile, Role};
use std::collections::{BTreeMap, BTreeSet};

/// Budgets from which an assignment follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Choice {
    /// Rows of contractions in a tile.
    pub rows: u64,
    /// Columns of contractions in a tile.
    pub columns: u64,
    /// Coordinates of reduced axes in a tile of a loop.
    pub depth: u64,
    /// Reduced axes of contractions up to this extent are held whole. Those of a few coordinates that are longer than this, as windows are where it
    /// is 1, are gone over one coordinate at a time, around the loop over the others.
    pub whole: u64,
    /// Axes over which only a part of the work varies are held whole up to this extent, so that the rest is not repeated.
    pub keep: u64,
    /// Elements of a tile in kernels without contractions.
    pub elements: u64,
    /// How many coordinates of slower element-wise axes a tile of such a kernel should have, of those first over which
    /// something does not vary: that is read once for so many.
    pub lines: u64,
    /// How many coordinates of the axis that is fastest in memory a tile of such a kernel should have where another axis is
    /// reduced: what is neighbours in memory is read together.
    pub across: u64,
    /// Parts of a split of what is reduced over the largest loop axis, and maybe over loops around it; 1 is none.
    pub parts: u64,
    /// With a split: whether its parts are combined by the blocks themselves. Without: whether axes that are reduced, not
    /// contracted, and stored by everything go to the grid: blocks then hold a part of a row each, read it once, and hand each
    /// other what they reduce.
    pub block_group: bool,
    /// Whether sides of several axes are of tiles that leave little over: of the fastest axis so many coordinates that all tiles go over a fifth more than
    /// there are at most, but four in any case, of slower ones what divides them.
    pub even: bool,
    /// How many coordinates of a loop that keeps what it has reduced so far, where the kernel has such values ([`KernelOutline::along`]), are in a
    /// tile; 0 is none of such loops.
    pub along: u64,
    /// Whether loops over axes of which one coordinate is picked ([`KernelOutline::picked`]) run over that one alone.
    pub picks: bool,
}

/// The largest extent of an axis that is reduced and stored and still held whole.
const WHOLE_ROW: u64 = 16_384;

/// The largest extent of a reduced axis that a tile has whole before it has any of the fastest one.
const FEW: u64 = 4;

/// The least coordinates of the fastest axis in a tile that has several lines.
const LINE: u64 = 128;

/// Whether a contraction has axes of a few coordinates beside a longer one.
pub fn has_windows(kernel: &KernelOutline<'_>, axes: &[Axis]) -> bool {
    let extent = |a: &AxisId| axes[a.index()].extent;
    let has = |summed: &[AxisId]| {
        summed.iter().any(|a| (2..=FEW).contains(&extent(a)))
            && summed.iter().any(|a| extent(a) > FEW)
    };
    kernel.contractions().into_iter().any(has)
}

/// Rows of a matrix instruction of a warp.
const ROWS: u64 = 16;

/// Tiles that leave little over go over at most one coordinate that does not exist for so many that do, unless they are as short as [`NEIGHBOURS`].
const LEFT_OVER: u64 = 5;
/// The least coordinates of the fastest axis in such a tile: neighbours that are read together.
const NEIGHBOURS: u64 = 4;
/// Such tiles are tried where others go over so many times as many coordinates, at least.
const WORTH: f64 = 1.15;

/// A choice with sides that are as short as whole matrix instructions make them for as many tiles along the fastest axis: 260 coordinates are three tiles
/// of 96 as they are three of 128. Of each side by itself and of both; none where that changes nothing. And the same choice with sides of several axes
/// that leave little over, where it leaves much: of 17 by 17 places of many pictures a tile has four places of sixteen pictures, and not 16 of four.
pub fn evened(kernel: &KernelOutline<'_>, axes: &[Axis], choice: &Choice) -> Vec<Choice> {
    let sides = kernel.sides();
    let even = |side: usize, budget: u64| {
        let fastest = sides.iter().skip(side).step_by(2).filter_map(|s| s.last());
        let extents = fastest.map(|a| axes[a.index()].extent);
        let extent = extents.filter(|extent| *extent > budget).max()?;
        let shortest = extent.div_ceil(extent.div_ceil(budget));
        Some(shortest.next_multiple_of(ROWS)).filter(|shorter| *shorter < budget)
    };
    let (rows, columns) = (even(0, choice.rows), even(1, choice.columns));
    let mut found = Vec::new();
    for (rows, columns) in [(rows, None), (None, columns), (rows, columns)] {
        let own = Choice {
            rows: rows.unwrap_or(choice.rows),
            columns: columns.unwrap_or(choice.columns),
            ..*choice
        };
        if own != *choice && !found.contains(&own) {
            found.push(own);
        }
    }
    let even = Choice {
        even: true,
        ..*choice
    };
    let covered = |choice: &Choice| covered(kernel, axes, &assign(kernel, axes, choice));
    let has_several = sides.iter().any(|side| side.len() > 1);
    if has_several && !choice.even && covered(choice) >= WORTH * covered(&even) {
        found.push(even);
    }
    found
}

/// The coordinates that the tiles of sides go over where these have several axes, whose tiles matrix instructions pad to powers of two each.
fn covered(kernel: &KernelOutline<'_>, axes: &[Axis], assigned: &Assignment) -> f64 {
    let of_axis = |a: &AxisId| {
        let (extent, tile) = (axes[a.index()].extent, assigned.axes.get(a)?.tile);
        Some((extent.div_ceil(tile) * tile.next_power_of_two()) as f64)
    };
    let several = kernel.sides().into_iter().filter(|side| side.len() > 1);
    let all: BTreeSet<AxisId> = several.flatten().copied().collect();
    all.iter().filter_map(of_axis).product()
}

/// The roles and tiles that follow from a choice.
pub fn assign(kernel: &KernelOutline<'_>, axes: &[Axis], choice: &Choice) -> Assignment {
    let kept = kernel.along().filter(|_| choice.along > 0);
    let is_kept = kept.is_some();
    let kernel = kept.unwrap_or(kernel);
    let extent = |a: AxisId| axes[a.index()].extent;
    let uses = kernel.uses();
    let mut tiles: BTreeMap<AxisId, AxisTile> = BTreeMap::new();
    let whole = |a: AxisId| AxisTile {
        role: Role::Whole,
        tile: extent(a),
    };
    let tiled = |role: Role, a: AxisId, budget: u64| AxisTile {
        role,
        tile: round(budget.clamp(1, extent(a)), extent(a)),
    };
    let contracts = !kernel.contractions().is_empty();
    // A loop goes from one coordinate to the next, or scans several.
    let kept = uses.iter().filter(|(_, used)| used.along);
    tiles.extend(kept.map(|(a, _)| (*a, tiled(Role::Loop, *a, choice.along))));
    // A bound says which coordinate it is, where what it reads has one coordinate a tile.
    for (axis, by) in kernel.picked().iter().filter(|_| choice.picks) {
        for a in by.iter().chain([*axis]) {
            let role = match uses[&a].stored_by_all && !uses[&a].reduced {
                true => Role::Grid,
                false => Role::Loop,
            };
            tiles.insert(a, tiled(role, a, 1));
        }
    }
    // What a tile without contractions leaves to the fastest axis.
    let across = uses
        .iter()
        .min_by_key(|(a, _)| kernel.speed(**a))
        .filter(|(_, used)| !used.reduced && used.stored_by_all)
        .map_or(1, |(a, _)| choice.across.min(extent(*a)));
    // What a product makes and a reduction takes, as for rows and columns that are stored: the side, and its budget.
    let sides = kernel.sides();
    let side_of = |a: &AxisId| {
        let free = !uses[a].contracted && !uses[a].batch;
        let budgets = [choice.rows, choice.columns].into_iter().cycle();
        let mut all = sides.iter().zip(budgets).enumerate();
        all.find(|(_, (side, _))| free && side.contains(a))
            .map(|(n, (_, budget))| (n % 2, budget))
    };
    // Reduced axes, reduction by reduction, the fastest first.
    for (reduced, contraction) in kernel.reduced() {
        let used = |a: &AxisId| uses[a].stored;
        // What may be in one tile, and what a tile of a loop should have.
        let (mut room, mut budget) = if *contraction {
            (choice.whole, choice.depth)
        } else if contracts {
            let most = reduced.iter().find_map(side_of).map(|x| x.1);
            let most = most.unwrap_or(choice.depth);
            (most, most)
        } else if reduced.iter().any(used) {
            (WHOLE_ROW, choice.elements)
        } else {
            let most = (choice.elements / across).max(1);
            (most, most)
        };
        // The fastest first; but with a product, axes of a few coordinates before it: one loop can keep running values and what is under way,
        // and a loop within another one cannot.
        let mut order: Vec<AxisId> = reduced.iter().rev().copied().collect();
        if contracts {
            order.sort_by_key(|a| extent(*a) > FEW || uses[a].batch);
        }
        // Rows and columns that are reduced together have a room and a budget each.
        let mut sides_left = [(choice.rows, choice.rows), (choice.columns, choice.columns)];
        for a in order {
            let side = side_of(&a).filter(|_| !contraction).map(|x| x.0);
            if let Some(n) = side {
                (room, budget) = sides_left[n];
            }
            let shared = choice.block_group
                && choice.parts == 1
                && uses[&a].stored_by_all
                && !uses[&a].contracted;
            let tile = match tiles.get(&a) {
                Some(known) => *known,
                None if shared && extent(a) > budget => tiled(Role::Grid, a, budget),
                // A window's places one at a time.
                None if *contraction && choice.whole < extent(a) && extent(a) <= FEW => {
                    tiled(Role::Loop, a, 1)
                }
                None if extent(a) <= room => whole(a),
                None => tiled(Role::Loop, a, budget),
            };
            room /= tile.tile;
            budget = (budget / tile.tile).max(1);
            if let Some(n) = side {
                sides_left[n] = (room, budget);
            }
            tiles.insert(a, tile);
        }
        // A loop over a single tile is none, within one that goes on: only the innermost one has steps that overlap.
        let (longer, once): (Vec<AxisId>, Vec<AxisId>) = reduced
            .iter()
            .filter(|a| tiles[a].role == Role::Loop)
            .partition(|a| tiles[a].tile < extent(**a));
        if !longer.is_empty() {
            tiles.extend(once.into_iter().map(|a| (a, whole(a))));
        }
    }
    // Rows and columns of contractions share a budget a side, the fastest axis first.
    for (sides, budget) in kernel
        .sides()
        .into_iter()
        .zip([choice.rows, choice.columns].into_iter().cycle())
    {
        // What a reduction has of a side in a tile is part of the side. For a few coordinates, as those of a window are, there is room besides.
        let reduced = |a: &&AxisId| uses[*a].reduced && !uses[*a].contracted;
        let held = (sides.iter().filter(reduced))
            .filter_map(|a| tiles.get(a).filter(|t| t.role != Role::Grid))
            .filter(|t| t.tile > FEW);
        let mut budget = held.fold(budget, |left, t| (left / t.tile).max(1));
        for a in sides.iter().rev() {
            let a = *a;
            let used = &uses[&a];
            if let Some(t) = tiles.get(&a) {
                if t.role == Role::Grid {
                    budget = (budget / t.tile).max(1);
                }
                continue;
            }
            if used.reduced {
                continue;
            }
            let tile = if !used.stored_by_all || (kernel.repeats(a) && extent(a) <= choice.keep) {
                whole(a)
            } else if used.batch {
                tiled(Role::Grid, a, 1)
            } else if choice.even && sides.len() > 1 {
                let is_fastest = sides.last() == Some(&a);
                tiled(Role::Grid, a, little_over(extent(a), budget, is_fastest))
            } else {
                tiled(Role::Grid, a, budget)
            };
            if tile.role == Role::Grid {
                budget = (budget / tile.tile).max(1);
            }
            tiles.insert(a, tile);
        }
    }
    // Everything else: element-wise axes, the fastest first.
    let mut budget = if contracts { 1 } else { choice.elements };
    for (a, t) in &tiles {
        if !contracts && (t.role == Role::Whole || uses[a].reduced || uses[a].along) {
            budget = (budget / t.tile).max(1);
        }
    }
    let mut rest: Vec<AxisId> = uses
        .keys()
        .copied()
        .filter(|a| !tiles.contains_key(a))
        .collect();
    rest.sort_by_key(|a| kernel.speed(*a));
    // The fastest axis leaves room for lines, but never less than whole sectors of memory.
    let slower = &rest[rest.len().min(1)..];
    let (shared, others): (Vec<AxisId>, Vec<AxisId>) =
        slower.iter().partition(|a| kernel.shares(**a));
    let along = if shared.is_empty() { &others } else { &shared };
    let extents = along.iter().map(|a| extent(*a));
    let most = extents.fold(1, u64::saturating_mul);
    let mut lines = if contracts { 1 } else { choice.lines.min(most) };
    let fastest = rest.first().copied();
    if lines > 1 {
        rest.truncate(1);
        rest.extend(shared.iter().chain(&others));
    }
    for a in rest {
        let used = &uses[&a];
        let mut budget_here = budget;
        if Some(a) == fastest {
            budget_here = (budget / lines).max(LINE.min(budget));
        } else if shared.contains(&a) && lines > 1 {
            budget_here = lines.min(budget);
        }
        let tile = if used.batch {
            tiled(Role::Grid, a, 1)
        } else if used.stored_by_all {
            tiled(Role::Grid, a, budget_here)
        } else if extent(a) <= choice.elements {
            whole(a)
        } else {
            tiled(Role::Loop, a, choice.elements)
        };
        budget = (budget / tile.tile).max(1);
        if shared.contains(&a) {
            lines = (lines / tile.tile).max(1);
        }
        tiles.insert(a, tile);
    }
    let longest = tiles
        .iter()
        .filter(|(a, t)| t.role == Role::Loop && uses[a].reduced)
        .max_by_key(|(a, _)| (extent(**a), std::cmp::Reverse(**a)))
        .map(|(a, _)| *a);
    let split = longest.filter(|_| choice.parts > 1).map(|axis| Split {
        axis,
        parts: choice.parts,
        block_group: choice.block_group,
    });
    Assignment {
        axes: tiles,
        split,
        combine: BTreeMap::new(),
        along: is_kept,
    }
}

/// The largest power of two within a budget whose tiles leave little over ([`LEFT_OVER`]), of other axes than the fastest nothing.
fn little_over(extent: u64, budget: u64, is_fastest: bool) -> u64 {
    let powers = (0..=budget.max(1).ilog2()).rev().map(|n| 1u64 << n);
    let mut fitting = powers.filter(|tile| {
        let over = extent.next_multiple_of(*tile) - extent;
        match is_fastest {
            true => LEFT_OVER * over <= extent || *tile <= NEIGHBOURS,
            false => over == 0,
        }
    });
    fitting.next().unwrap_or(1)
}

/// A tile that the machine likes: the extent itself, whole matrix instructions of rows, a power of two, or less than that when the extent is small.
fn round(tile: u64, extent: u64) -> u64 {
    if tile >= extent {
        return extent;
    }
    if tile.is_multiple_of(ROWS) {
        return tile;
    }
    1 << tile.ilog2()
}

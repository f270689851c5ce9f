//! The grid of a kernel, group by group: the grid points of one run in step, for what is reduced across them needs all.

use super::SimulateError::{self, Malformed};
use super::memory::{Memory, Write};
use super::run::{Run, extent_and_tile, start_point};
use super::{SimulateOptions, Whole};
use crate::block::{self, Block};
use crate::coverage::SeenKernel;
use crate::picked::Picked;
use crate::scalar::Scalar;
use ir::{AxisSet, BufferId, Reduction, Role, Statement, TileOp};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How many grid points run before their stores are applied: bounds memory, no effect on results.
const POINTS_AT_ONCE: u64 = 512;

pub(super) fn run_kernel<S: Scalar>(
    whole: Whole<'_>,
    memory: &mut Memory<S>,
    options: SimulateOptions,
    mut seen: Option<&mut SeenKernel>,
) -> Result<(), SimulateError> {
    let Whole {
        tile,
        number,
        kernel,
        lists,
    } = whole;
    let malformed = |what: String| Malformed(format!("kernel {number}: {what}"));
    // The numbers of the tiles of each grid axis.
    let mut tiles: Vec<Picked> = Vec::new();
    for axis in &kernel.grid {
        let (_, size) = extent_and_tile(tile, kernel, *axis).map_err(malformed)?;
        let picked = lists
            .get(axis)
            .ok_or_else(|| malformed(format!("grid and roles disagree about axis {}", axis.0)))?;
        tiles.push(picked.tiles(size));
    }
    for (axis, how) in &kernel.axes {
        let listed = kernel.grid.iter().filter(|a| *a == axis).count();
        if listed != usize::from(how.role == Role::Grid) {
            return Err(malformed(format!(
                "grid and roles disagree about axis {}",
                axis.0
            )));
        }
    }
    let stored = stores(&kernel.body);
    for value in &kernel.values {
        if let TileOp::Load { buffer, .. } = &value.op
            && stored.contains(buffer)
        {
            return Err(malformed("it loads a buffer that it stores".into()));
        }
    }
    let block_group = kernel.block_group();
    let points = |of_block_group: bool| {
        let own = kernel.grid.iter().zip(&tiles);
        own.filter(|(axis, _)| block_group.contains(**axis) == of_block_group)
            .fold(1u64, |n, (_, t)| n.saturating_mul(t.len()))
    };
    let (block_groups, ranks) = (points(false), points(true));
    if block_groups.max(ranks) == u64::MAX {
        return Err(malformed("the grid is too large".into()));
    }
    // The grid's tile numbers of one point of a block group.
    let point = |mut block_group_number: u64, mut rank: u64| {
        let mut numbers: Vec<u64> = vec![0; tiles.len()];
        for (i, axis) in kernel.grid.iter().enumerate().rev() {
            let rest = if block_group.contains(*axis) {
                &mut rank
            } else {
                &mut block_group_number
            };
            numbers[i] = tiles[i].at((*rest % tiles[i].len()) as usize);
            *rest /= tiles[i].len();
        }
        numbers
    };
    let notes = seen.is_some();
    let mut start = 0;
    while start < block_groups {
        let end = (start + (POINTS_AT_ONCE / ranks).max(1)).min(block_groups);
        let run = |t: u64| {
            let points: Vec<Vec<u64>> = (0..ranks).map(|m| point(t, m)).collect();
            run_block_group(whole, memory, &block_group, &points, notes)
        };
        // A handful of block groups is not worth the hand-over to other threads.
        let results: Vec<Result<Done<S>, SimulateError>> = if end - start < 4 {
            (start..end).map(run).collect()
        } else {
            (start..end).into_par_iter().map(run).collect()
        };
        for done in results {
            let (writes, met) = done?;
            for write in writes {
                memory.apply(tile, write, options)?;
            }
            if let (Some(seen), Some(met)) = (&mut seen, met) {
                seen.merge(&met);
            }
        }
        start = end;
    }
    Ok(())
}

/// What a block group stores, and what it met where somebody wants to know.
type Done<S> = (Vec<Write<S>>, Option<SeenKernel>);

/// Runs the grid points of a block group, given by their tile numbers, in step: what one reduces across the group needs all of them.
fn run_block_group<S: Scalar>(
    whole: Whole<'_>,
    memory: &Memory<S>,
    block_group: &AxisSet,
    points: &[Vec<u64>],
    notes: bool,
) -> Result<Done<S>, SimulateError> {
    let mut runs = points
        .iter()
        .map(|point| start_point(whole, memory, block_group, point, notes))
        .collect::<Result<Vec<_>, _>>()?;
    for statement in &whole.kernel.body {
        let across = match statement {
            Statement::Let(id) => {
                (whole.kernel.reduction(*id)).filter(|r| r.axes.intersects(block_group))
            }
            Statement::Loop(_) | Statement::Store { .. } => None,
        };
        match across {
            Some(reduction) => reduce_across(&mut runs, &reduction, block_group)?,
            None => {
                for run in &mut runs {
                    run.block(std::slice::from_ref(statement))?;
                }
            }
        }
    }
    let mut done: Done<S> = (Vec::new(), None);
    for run in runs {
        done.0.extend(run.writes);
        match (&mut done.1, run.seen) {
            (Some(all), Some(seen)) => all.merge(&seen),
            (none, seen) => *none = seen.or(none.take()),
        }
    }
    Ok(done)
}

/// A reduction over axes of a block group: each point's partial result, combined among the points that differ in those axes alone.
fn reduce_across<S: Scalar>(
    runs: &mut [Run<'_, S>],
    reduction: &Reduction<'_>,
    block_group: &AxisSet,
) -> Result<(), SimulateError> {
    let Reduction {
        result: id,
        op,
        value,
        axes,
    } = *reduction;
    let mut sums: BTreeMap<Vec<u64>, Block<S>> = BTreeMap::new();
    let mut keys = Vec::with_capacity(runs.len());
    for run in runs.iter() {
        let part = block::reduce(op, &*run.get(value)?, axes).map_err(|e| run.at(id, &e))?;
        let key = block_group
            .minus(axes)
            .iter()
            .map(|a| Ok(run.range(a)?.first))
            .collect::<Result<Vec<u64>, _>>()?;
        let sum = match sums.get(&key) {
            None => part,
            Some(sum) => block::map(op.combine(), &[sum, &part]).map_err(|e| run.at(id, &e))?,
        };
        sums.insert(key.clone(), sum);
        keys.push(key);
    }
    let sums: BTreeMap<Vec<u64>, Rc<Block<S>>> =
        sums.into_iter().map(|(k, b)| (k, Rc::new(b))).collect();
    for (run, key) in runs.iter_mut().zip(keys) {
        run.values[id.index()] = sums.get(&key).cloned();
    }
    Ok(())
}

/// The buffers that a body stores to.
fn stores(body: &[Statement]) -> BTreeSet<BufferId> {
    let mut all = BTreeSet::new();
    for statement in body {
        match statement {
            Statement::Let(_) => {}
            Statement::Loop(inner) => all.extend(stores(&inner.body)),
            Statement::Store { buffer, .. } => {
                all.insert(*buffer);
            }
        }
    }
    all
}

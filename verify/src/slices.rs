//! Which output elements are looked at where there are too many to look at all: a few of each region of masks, bounds and tiles.
//!
//! Each axis of the outputs has a queue of coordinates that have to be met: its ends, the ends of its first and last tiles, coordinates
//! beside the zeros of the functions that decide something ([`crate::decisions`]), and some that are drawn. A slice takes a few from each
//! queue, and then, of one axis of each decision, what lies beside its zeros at the coordinates that were taken of the others.

use crate::decisions::Decision;
use crate::picked::{Picked, Slice};
use ir::{AxisId, Program, Role, TileProgram};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Tiles from each end of an axis that are looked at one after the other: bounds round to tiles of another axis, and what that
/// does repeats after a few.
const END_TILES: u64 = 6;
/// Tiles that are drawn.
const DRAWN_TILES: u64 = 6;
/// Coordinates that are added beside the zeros of one decision.
const MOST_ZEROS: usize = 12;

/// The coordinates of the outputs' axes that are still to be met.
#[derive(Clone)]
pub(crate) struct Queues<'a> {
    extents: BTreeMap<AxisId, u64>,
    waiting: BTreeMap<AxisId, VecDeque<u64>>,
    decisions: &'a [Decision],
    tile: &'a TileProgram,
    taken: usize,
}

impl<'a> Queues<'a> {
    /// The axes of a program's outputs, as a tile program divides them.
    pub(crate) fn new(
        program: &'a Program,
        tile: &'a TileProgram,
        decisions: &'a [Decision],
        rng: &mut ChaCha8Rng,
    ) -> Self {
        let extent = |a: AxisId| tile.axes.get(a.index()).map_or(1, |axis| axis.extent);
        let outputs = program.outputs.iter();
        let axes: BTreeSet<AxisId> = outputs
            .flat_map(|o| program.node(o.value).axes.iter())
            .collect();
        let mut queues = Self {
            extents: axes.iter().map(|a| (*a, extent(*a))).collect(),
            waiting: BTreeMap::new(),
            decisions,
            tile,
            taken: 0,
        };
        for axis in axes {
            let waiting = queues.first_of(axis, rng);
            queues.waiting.insert(axis, waiting);
        }
        queues
    }

    /// The coordinates of an axis that have to be met, the most telling first.
    fn first_of(&self, axis: AxisId, rng: &mut ChaCha8Rng) -> VecDeque<u64> {
        let extent = self.extents[&axis];
        let mut queue: Vec<u64> = vec![extent - 1, 0];
        for decision in self.decisions {
            if decision.function.axes().contains(axis) {
                queue.extend(decision.zeros(axis, extent, |a| self.samples(a)));
            }
        }
        // Of a collapsed axis that stands for this one among others: a coordinate there is one of these here.
        let mut sizes: BTreeSet<(u64, u64, u64)> = BTreeSet::new();
        for (along, step) in self.tile.standing_for(axis).chain([(axis, 1)]) {
            let length = self.tile.axes.get(along.index()).map_or(1, |a| a.extent);
            let of_kernels = self.tile.kernels.iter().filter_map(|k| k.axes.get(&along));
            let tiled = of_kernels.filter(|a| a.role != Role::Whole && a.tile < length);
            sizes.extend(tiled.map(|a| (a.tile, length, step)));
        }
        for (size, length, step) in sizes {
            let tiles = length.div_ceil(size);
            let ends = (0..END_TILES).chain(tiles.saturating_sub(END_TILES)..tiles);
            let drawn: Vec<u64> = (0..DRAWN_TILES)
                .map(|_| rng.random_range(0..tiles))
                .collect();
            for number in ends.chain(drawn).filter(|n| *n < tiles) {
                let first = number * size;
                let last = length.min(first + size) - 1;
                // Bounds are those of a tile's first coordinate or of its last.
                let met = [last, first, rng.random_range(first..=last)];
                queue.extend(met.map(|at| at / step % extent));
            }
        }
        queue.extend((0..2).map(|_| rng.random_range(0..extent)));
        let mut known = BTreeSet::new();
        queue.retain(|c| *c < extent && known.insert(*c));
        queue.into()
    }

    /// Some coordinates of an axis.
    fn samples(&self, axis: AxisId) -> Vec<u64> {
        let extent = self.tile.axes.get(axis.index()).map_or(1, |a| a.extent);
        let all: BTreeSet<u64> = [0, extent / 2, extent - 1].into();
        all.into_iter().collect()
    }

    /// Whether every coordinate that has to be met was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.values().all(VecDeque::is_empty)
    }

    /// One coordinate of each axis: what costs least.
    pub(crate) fn least(&self) -> Slice {
        let one = |extent: u64| Picked::of([extent / 2].into(), extent);
        self.extents.iter().map(|(a, n)| (*a, one(*n))).collect()
    }

    /// The next slice, of about so many elements and some more beside zeros.
    pub(crate) fn next(&mut self, elements: u64, rng: &mut ChaCha8Rng) -> Slice {
        let mut counts: BTreeMap<AxisId, u64> = self.extents.keys().map(|a| (*a, 1)).collect();
        // Where most are waiting, most are taken.
        loop {
            let product: u64 = counts.values().product();
            let need = |a: &AxisId, n: u64| self.waiting[a].len() as u64 / n;
            let next = counts
                .iter()
                .filter(|(a, n)| self.waiting[*a].len() as u64 > **n)
                .max_by_key(|(a, n)| need(a, **n))
                .map(|(a, n)| (*a, *n));
            let Some((axis, count)) = next else { break };
            if product / count * (count + 1) > elements {
                break;
            }
            counts.insert(axis, count + 1);
        }
        let mut chosen: BTreeMap<AxisId, BTreeSet<u64>> = BTreeMap::new();
        for (axis, count) in counts {
            let extent = self.extents[&axis];
            let waiting = self.waiting.entry(axis).or_default();
            let take = (count as usize).min(waiting.len());
            let mut own: BTreeSet<u64> = waiting.drain(..take).collect();
            if own.is_empty() {
                own.insert(rng.random_range(0..extent));
            }
            chosen.insert(axis, own);
        }
        for decision in self.decisions {
            let axes = decision.function.axes();
            let free: Vec<AxisId> = axes.iter().filter(|a| chosen.contains_key(a)).collect();
            // Zeros of reduced axes are met where there are any.
            let Some(axis) = free.get(self.taken % free.len().max(1)).copied() else {
                continue;
            };
            if free.len() < 2 {
                continue;
            }
            let at = |a: AxisId| match chosen.get(&a) {
                Some(own) => own.iter().copied().collect(),
                None => self.samples(a),
            };
            let zeros: Vec<u64> = decision
                .zeros(axis, self.extents[&axis], at)
                .into_iter()
                .collect();
            let step = zeros.len().div_ceil(MOST_ZEROS).max(1);
            let from = rng.random_range(0..step);
            if let Some(own) = chosen.get_mut(&axis) {
                own.extend(zeros.into_iter().skip(from).step_by(step));
            }
        }
        self.taken += 1;
        let picked = chosen.into_iter();
        picked
            .map(|(axis, own)| (axis, Picked::of(own, self.extents[&axis])))
            .collect()
    }
}

//! What may be chosen of a kernel's schedule.
//!
//! A space is a few families, one for the instructions that contract; in each stand choices beside each other: how warps stand, how many blocks
//! share a multiprocessor, how many stages a ring has, what overlaps. Every choice has its usual value first, so that the number of steps away
//! from the usual values puts a whole space into an order that needs no estimate. What of it is possible lowering says, and how long it takes
//! the clock.

use super::contractions::{By, Contraction, contractions};
use super::grid;
use codegen::atoms::{self, Instruction, Operands, Scope};
use codegen::passes::{
    delayed, distributed, multicast, persistent, pipeline, raster, registers, roles, splitter,
    turns, warps,
};
use ir::{Kernel, KernelSchedule, Step, Target, TileOp, TileProgram};
use std::collections::BTreeMap;

/// Choices of a family: how warps stand, blocks a multiprocessor, what overlaps, stages, whether blocks persist, blocks of a cluster that copies once,
/// whether block groups are clusters.
const CHOICES: usize = 7;

/// Those by which the starts of a walk differ: how warps stand, and what overlaps.
pub(super) const KIND: [usize; 2] = [0, 2];

/// The values of every choice, by their places among those that a family has.
pub(super) type Values = [usize; CHOICES];

/// A schedule of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    /// The family's place.
    pub(super) family: usize,
    pub(super) values: Values,
}

impl Point {
    /// How far it is from what is usual.
    fn distance(&self) -> usize {
        self.family + self.values.iter().sum::<usize>()
    }
}

/// What may be chosen of a kernel's schedule.
pub(super) struct Space {
    families: Vec<Family>,
    /// Tiles of the grid.
    tiles: u64,
    sms: u64,
}

/// Schedules with the same instructions.
struct Family {
    instructions: Vec<Step>,
    warps: Vec<[u32; 2]>,
    blocks: Vec<u32>,
    overlaps: Vec<Overlap>,
    stages: Vec<u32>,
    persists: Vec<bool>,
    clusters: Vec<u32>,
    distributed: Vec<bool>,
    raster: u32,
}

/// How far instructions that run in the background overlap with other work of their block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overlap {
    /// Each is waited for where it stands.
    None,
    /// What a loop accumulates may still run while its next iteration begins, at the price of one more stage of its rings.
    Delayed,
    /// Warps of their own fill the rings.
    Roles,
    /// And others split what these copied.
    Splitter,
    /// Instructions run on while warps of their own fill rings.
    DelayedRoles,
    /// Beside both, groups of warps take turns at the tensor cores.
    Turns,
}

impl Overlap {
    /// What a schedule says of it, with rings of so many stages.
    fn steps(self, stages: u32) -> Vec<Step> {
        let pipeline = pipeline::step(stages);
        match self {
            Self::None => vec![pipeline],
            Self::Delayed => vec![delayed::step(), pipeline],
            Self::Roles => vec![roles::step(), pipeline],
            Self::Splitter => vec![roles::step(), splitter::step(), pipeline],
            Self::DelayedRoles => vec![delayed::step(), roles::step(), pipeline],
            Self::Turns => vec![delayed::step(), roles::step(), pipeline, turns::step()],
        }
    }

    /// Whether warps fill rings and do nothing else.
    fn has_roles(self) -> bool {
        match self {
            Self::None | Self::Delayed => false,
            Self::Roles | Self::Splitter | Self::DelayedRoles | Self::Turns => true,
        }
    }

    /// Whether it needs rings of several stages.
    fn needs_rings(self) -> bool {
        self != Self::None
    }
}

/// Warps of a block that computes with single warps, at most.
const MOST_WARPS: u32 = 16;

/// Warps that are usual: two a scheduler.
const USUAL_WARPS: f64 = 8.0;

/// Elements of a thread that are usual where nothing is contracted, and of those along a reduction.
const USUAL_ELEMENTS: f64 = 16.0;
const USUAL_ALONG: f64 = 8.0;

/// The coordinates of a side that a warp at least covers, by the instruction.
fn unit(instruction: &Instruction) -> u64 {
    match instruction.is_matrix() {
        true => 16,
        false => 4,
    }
}

impl Space {
    pub(super) fn of(tile: &TileProgram, kernel: &Kernel, target: &Target) -> Self {
        let found = |tensor: bool, split: bool, turned: bool| {
            let by = By {
                tensor,
                split,
                turned,
            };
            contractions(tile, kernel, by, target)
        };
        let plain = found(false, false, false);
        let mut families = Vec::new();
        if plain.is_empty() {
            families.push(without_contraction(kernel));
        } else {
            let persists = match kernel.block_group().is_empty() {
                true => vec![false, true],
                false => vec![false],
            };
            let raster = grid::raster(tile, kernel, target);
            for operands in [Operands::Half, Operands::Split] {
                let split = operands == Operands::Split;
                let [usual, turned] = [false, true].map(|turned| found(true, split, turned));
                for instruction in atoms::of(Scope::Warpgroup, operands, target) {
                    // Either side may give the rows. Where operands are split that decides who splits which; where both lie in shared memory as they are,
                    // it is worth looking at for less padding alone: the compiler serializes many of the other schedules.
                    let pads =
                        with_padding(&turned, instruction) < with_padding(&usual, instruction);
                    let sides = [Some(&usual), (split || pads).then_some(&turned)];
                    let sides = sides.into_iter().flatten();
                    families.extend(sides.filter_map(|c| of_warpgroups(c, instruction, &persists)));
                }
                if usual.iter().any(|c| c.instruction.is_matrix()) {
                    families.push(of_warps(&usual));
                }
            }
            families.push(of_warps(&plain));
            families.iter_mut().for_each(|f| f.raster = raster);
        }
        let group = tile.points(kernel, &kernel.block_group());
        if (2..=u64::from(target.cluster_blocks)).contains(&group) {
            let distributed = vec![true, false];
            families
                .iter_mut()
                .for_each(|f| f.distributed.clone_from(&distributed));
        }
        // Where nothing is split, nothing new is said of it.
        let mut different: Vec<Family> = Vec::new();
        for family in families {
            let known = |f: &Family| f.instructions == family.instructions;
            if !different.iter().any(known) {
                different.push(family);
            }
        }
        Self {
            families: different,
            tiles: tile.blocks(kernel),
            sms: u64::from(target.sms),
        }
    }

    /// The number of its families.
    pub(super) fn families(&self) -> usize {
        self.families.len()
    }

    /// For each choice of a family how many values it has.
    pub(super) fn counts(&self, family: usize) -> Values {
        let f = &self.families[family];
        [
            f.warps.len(),
            f.blocks.len(),
            f.overlaps.len(),
            f.stages.len(),
            f.persists.len(),
            f.clusters.len(),
            f.distributed.len(),
        ]
    }

    /// The schedule of a point; none where its choices say nothing together.
    pub(super) fn schedule(&self, point: &Point) -> Option<KernelSchedule> {
        let f = &self.families[point.family];
        let [w, b, o, s, p, c, d] = point.values;
        let (blocks, overlap, stages) = (f.blocks[b], f.overlaps[o], f.stages[s]);
        let (persists, cluster) = (f.persists[p], f.clusters[c]);
        let room = self.sms * u64::from(blocks);
        let idle = overlap.needs_rings() && stages == 1
            || persists && (!overlap.has_roles() || self.tiles <= room)
            || cluster > 1 && !overlap.has_roles();
        if idle {
            return None;
        }
        let mut schedule: KernelSchedule = f.instructions.iter().cloned().collect();
        schedule.set(warps::step(f.warps[w]));
        schedule.set(registers::step(blocks));
        schedule.extend(overlap.steps(stages));
        // The blocks of a cluster stand in one column of the raster.
        schedule.set(raster::step(f.raster / cluster * cluster));
        if f.distributed[d] {
            schedule.set(distributed::step());
        }
        if persists {
            schedule.set(persistent::step());
        }
        schedule.set(multicast::step(cluster));
        Some(schedule)
    }

    /// All points of a family.
    fn of_family(&self, family: usize) -> impl Iterator<Item = Point> {
        let counts = self.counts(family);
        (0..counts.iter().product()).map(move |number: usize| {
            let mut left = number;
            let values = counts.map(|count| {
                let value = left % count;
                left /= count;
                value
            });
            Point { family, values }
        })
    }

    /// All points, those first that are least far from what is usual.
    pub(super) fn points(&self) -> Vec<Point> {
        let all = (0..self.families.len()).flat_map(|f| self.of_family(f));
        by_distance(all.collect())
    }

    /// For each way in which the warps of a family may stand, and everything that may overlap, points that differ in what they take of a multiprocessor
    /// alone, the most usual first.
    pub(super) fn kinds(&self, family: usize) -> Vec<Vec<Point>> {
        let [.., stages, _, _, _] = self.counts(family);
        let mut kinds: BTreeMap<[usize; 2], Vec<Point>> = BTreeMap::new();
        for point in self.of_family(family) {
            let [_, blocks, _, _, persists, cluster, distributed] = point.values;
            // Fewer stages make room, and where there are none more blocks do, whose groups have to find room together.
            let is_usual =
                (blocks == 0 || stages == 1) && persists == 0 && cluster == 0 && distributed == 0;
            if is_usual && self.schedule(&point).is_some() {
                kinds
                    .entry(KIND.map(|choice| point.values[choice]))
                    .or_default()
                    .push(point);
            }
        }
        kinds.into_values().map(by_distance).collect()
    }
}

fn by_distance(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by_key(|p| (p.distance(), *p));
    points
}

/// Elements of the results of the contractions that an instruction may carry out, with the rows and columns that it goes over beside them.
fn with_padding(contractions: &[Contraction], instruction: &Instruction) -> u64 {
    let [rows, columns, _] = instruction.shape;
    let all = contractions.iter();
    let own = all.filter(|c| c.instruction.operands == instruction.operands);
    own.map(|c| c.rows.next_multiple_of(rows) * c.columns.next_multiple_of(columns))
        .sum()
}

/// Warps along rows where something is reduced.
fn without_contraction(kernel: &Kernel) -> Family {
    let volumes = kernel.values.iter().map(|v| kernel.volume(&v.axes));
    let elements = volumes.max().unwrap_or(1);
    let reduced = |op: &TileOp| match op {
        TileOp::Reduce { axes, .. } => Some(kernel.volume(axes)),
        TileOp::Load { .. }
        | TileOp::Constant(_)
        | TileOp::Iota(_)
        | TileOp::Map(..)
        | TileOp::Scan { .. }
        | TileOp::Contract { .. }
        | TileOp::Phi { .. }
        | TileOp::Final { .. } => None,
    };
    let length = kernel.values.iter().filter_map(|v| reduced(&v.op)).max();
    let powers = |most: u64| {
        (0..=5)
            .map(|n| 1u32 << n)
            .filter(move |n| u64::from(*n) <= most)
    };
    let away = |warps: u32, usual: f64| (f64::from(warps).log2() - usual.max(1.0).log2()).abs();
    let of_all = |warps: u32| away(warps, elements as f64 / (32.0 * USUAL_ELEMENTS));
    let mut ways: Vec<(f64, [u32; 2])> = Vec::new();
    for warps in powers(elements.div_ceil(32)) {
        match length {
            Some(length) => ways.extend(powers(u64::from(warps)).map(|along| {
                let usual = length as f64 / (32.0 * USUAL_ALONG);
                (of_all(warps) + away(along, usual), [warps / along, along])
            })),
            None => ways.push((of_all(warps), [1, warps])),
        }
    }
    ways.sort_by(|x, y| x.0.total_cmp(&y.0));
    Family {
        instructions: Vec::new(),
        warps: ways.into_iter().map(|w| w.1).collect(),
        // Block groups have to find room together.
        blocks: match kernel.block_group().is_empty() {
            true => vec![1],
            false => vec![2, 1, 3, 4, 6, 8],
        },
        overlaps: vec![Overlap::None],
        stages: vec![1],
        persists: vec![false],
        clusters: vec![1],
        distributed: vec![false],
        raster: 1,
    }
}

/// The steps that say which instruction carries out each contraction.
fn carried_out<'a>(
    contractions: &'a [Contraction],
    by: impl Fn(&'a Contraction) -> &'static Instruction,
) -> Vec<Step> {
    contractions.iter().map(|c| c.by(by(c))).collect()
}

/// A warpgroup instruction carries out what an instruction of single warps can; none where it is made for longer or shorter sides.
fn of_warpgroups(
    contractions: &[Contraction],
    instruction: &'static Instruction,
    persists: &[bool],
) -> Option<Family> {
    let [rows, _, _] = instruction.shape;
    let own = |c: &&Contraction| c.instruction.operands == instruction.operands;
    // More than half of its rows are no padding.
    let suits = |c: &Contraction| {
        let most = instruction.most_terms().unwrap_or(u64::MAX);
        2 * c.rows > rows && c.columns >= 8 && c.depth <= most
    };
    let all: Vec<&Contraction> = contractions.iter().filter(own).collect();
    if all.is_empty() || !all.iter().all(|c| suits(c)) {
        return None;
    }
    let most = all.iter().map(|c| c.rows).max().unwrap_or(1);
    let back_to_back = contractions.iter().any(|c| c.back_to_back);
    let groups = [(2, 1), (1, 1), (3, 1), (4, 1), (1, 2), (2, 2)];
    let stands = |(m, n): &(u64, u64)| {
        // Three groups have a third of the rows each; rows that are handed over in registers have no columns beside them.
        let uneven = *m == 3 && !most.is_multiple_of(3 * rows);
        !uneven && *m <= most.div_ceil(rows) && (*n == 1 || !back_to_back)
    };
    let groups = groups.into_iter().filter(stands);
    let halves = instruction.operands == Operands::Half;
    let mut overlaps = vec![
        Overlap::Turns,
        Overlap::Delayed,
        Overlap::None,
        Overlap::DelayedRoles,
        Overlap::Roles,
    ];
    if instruction.operands == Operands::Split {
        overlaps.insert(0, Overlap::Splitter);
    }
    Some(Family {
        instructions: carried_out(contractions, |c| match own(&c) {
            true => instruction,
            false => c.instruction,
        }),
        warps: groups.map(|(m, n)| [4 * m as u32, n as u32]).collect(),
        blocks: vec![1, 2, 3, 4],
        overlaps,
        stages: match back_to_back {
            true => vec![2, 3, 4, 1],
            false => vec![4, 3, 2, 5, 6, 1],
        },
        persists: persists.to_vec(),
        // Boxes are copied as they are, in elements of 16 bits.
        clusters: if halves { vec![1, 2] } else { vec![1] },
        distributed: vec![false],
        raster: 1,
    })
}

/// Single warps contract, on tensor cores or on CUDA cores.
fn of_warps(contractions: &[Contraction]) -> Family {
    let powers = || (0..=MOST_WARPS.ilog2()).map(|n| 1u32 << n);
    let back_to_back = contractions.iter().any(|c| c.back_to_back);
    // Some contraction has work for all warps.
    let busy = |[m, n]: &[u32; 2]| {
        contractions.iter().any(|c| match c.spread {
            Some(coordinates) => 32 * u64::from(m * n) <= coordinates.max(32),
            None => {
                let unit = unit(c.instruction);
                let has = |side: u64, warps: u32| u64::from(warps) * unit < side + unit;
                has(c.rows, *m) && has(c.columns, *n)
            }
        })
    };
    // The usual ones are as many as is usual, with tiles that are about square; those that hand rows over have them all.
    let away = |[m, n]: [u32; 2]| -> f64 {
        let many = (f64::from(m * n).log2() - USUAL_WARPS.log2()).abs();
        let shape = contractions.iter().map(|c| {
            let own = |side: u64, warps: u32| side as f64 / f64::from(warps);
            (own(c.rows, m) / own(c.columns, n)).log2().abs()
        });
        match back_to_back {
            true => many + f64::from(n).log2(),
            false => many + shape.fold(0.0, f64::max) / 2.0,
        }
    };
    let all = powers().flat_map(|m| powers().map(move |n| [m, n]));
    let some = all.filter(|[m, n]| m * n <= MOST_WARPS).filter(busy);
    let mut ways: Vec<[u32; 2]> = some.collect();
    ways.sort_by(|x, y| away(*x).total_cmp(&away(*y)));
    if ways.is_empty() {
        ways.push([1, 1]);
    }
    Family {
        instructions: carried_out(contractions, |c| c.instruction),
        warps: ways,
        blocks: vec![1, 2, 3, 4],
        overlaps: vec![Overlap::None],
        stages: vec![3, 4, 2, 5, 1],
        persists: vec![false],
        clusters: vec![1],
        distributed: vec![false],
        raster: 1,
    }
}

//! How a tile is spread over the threads of a block: linear maps from hardware digits to tile coordinates.
//!
//! A layout lists, for registers, lanes, warps and the blocks of a cluster, the digits of the hardware index, lowest first; each digit adds
//! `digit · stride` to the coordinate of one axis, or to none (the element is then held several times over). With
//! digits of size two this is a matrix over GF(2) whose columns have one entry each: instruction operands need no more.
//! Digits of other sizes (registers only) are the repeats that extents which are no power of two need.
//!
//! Nothing here knows about values, programs or CUDA text.

mod scan;
mod text;

pub use self::scan::{ScanOver, ScanStep};

use ir::{AxisId, AxisSet};
use serde::{Deserialize, Serialize};

/// One digit of a hardware index: it counts to `size`, and a step moves `stride` coordinates along `axis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Factor {
    /// Which coordinate it moves; `None` where copies are held.
    pub axis: Option<AxisId>,
    /// How far the digit counts.
    pub size: u64,
    /// Coordinates a step; 0 without an axis.
    pub stride: u64,
}

/// A map from (register, lane, warp, block of a cluster) to coordinates in a tile. Digits are listed lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Layout {
    /// Digits of the register index of one thread.
    pub registers: Vec<Factor>,
    /// Digits of the lane, sizes powers of two, product 32.
    pub lanes: Vec<Factor>,
    /// Digits of the warp, sizes powers of two, product the warps of the block.
    pub warps: Vec<Factor>,
    /// Digits of the block's rank in its cluster, sizes powers of two; none where each block has a tile of its own.
    pub blocks: Vec<Factor>,
}

/// What [`Layout::gathered`] gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathered {
    /// Afterwards: the first digit of the registers is the run.
    pub layout: Layout,
    /// Neighbouring lanes that exchange pieces, a power of two.
    pub lanes: u64,
    /// Elements of a piece: neighbours in the registers before.
    pub piece: u64,
    /// Which digit of the registers counts the pieces before: `lanes` of them are exchanged at a time.
    pub digit: usize,
}

fn copies(size: u64) -> Factor {
    Factor {
        axis: None,
        size,
        stride: 0,
    }
}

fn product(factors: &[Factor]) -> u64 {
    factors.iter().map(|f| f.size).product()
}

/// What is left of a number without its factors of two.
fn odd_part(n: u64) -> u64 {
    n >> n.trailing_zeros()
}

/// The last digit of warps that are no power of two: along the first axis on which `at` coordinates leave something to do, or copies.
fn last(odd: u64, axes: &[(AxisId, u64)], order: &[usize], at: &mut [u64]) -> Factor {
    let left = order.iter().copied().find(|i| at[*i] < axes[*i].1);
    let Some(i) = left.filter(|_| odd > 1) else {
        return copies(odd);
    };
    let stride = at[i];
    at[i] *= odd;
    Factor {
        axis: Some(axes[i].0),
        size: odd,
        stride,
    }
}

/// Drops digits that do not count, and joins neighbouring copies, so that equal maps are equal values more often.
fn normal(factors: Vec<Factor>) -> Vec<Factor> {
    let mut kept: Vec<Factor> = Vec::with_capacity(factors.len());
    for f in factors {
        match kept.last_mut() {
            _ if f.size == 1 => {}
            Some(last) if last.axis.is_none() && f.axis.is_none() => last.size *= f.size,
            Some(_) | None => kept.push(f),
        }
    }
    kept
}

impl Layout {
    /// Registers a thread.
    pub fn register_count(&self) -> u64 {
        product(&self.registers)
    }

    fn factors(&self) -> impl Iterator<Item = &Factor> {
        let threads = self.registers.iter().chain(&self.lanes).chain(&self.warps);
        threads.chain(&self.blocks)
    }

    /// One more than the largest coordinate along `axis`.
    pub fn cover(&self, axis: AxisId) -> u64 {
        1 + self
            .factors()
            .filter(|f| f.axis == Some(axis))
            .map(|f| (f.size - 1) * f.stride)
            .sum::<u64>()
    }

    /// The axes along which coordinates move.
    pub fn axes(&self) -> AxisSet {
        self.factors().filter_map(|f| f.axis).collect()
    }

    /// The layout of a value that varies over `keep` alone and lines up with this one: other axes' registers are dropped, other
    /// axes' lanes and warps hold copies.
    pub fn slice(&self, keep: &AxisSet) -> Self {
        let kept = |f: &Factor| f.axis.is_some_and(|a| keep.contains(a));
        let spread = |factors: &[Factor]| {
            normal(
                factors
                    .iter()
                    .map(|f| if kept(f) { *f } else { copies(f.size) })
                    .collect(),
            )
        };
        Self {
            registers: normal(self.registers.iter().copied().filter(kept).collect()),
            lanes: spread(&self.lanes),
            warps: spread(&self.warps),
            blocks: Vec::new(),
        }
        .over(spread(&self.blocks))
    }

    /// The layout over the blocks of a cluster by these digits of their ranks; over none of them where all hold the same.
    pub fn over(mut self, blocks: Vec<Factor>) -> Self {
        self.blocks = normal(blocks);
        if self.blocks.iter().all(|f| f.axis.is_none()) {
            self.blocks.clear();
        }
        self
    }

    /// The last digits of the registers, which count to a power of two, given to as many blocks of a cluster: each has fewer registers. None where
    /// there are no such digits.
    pub fn split_registers(&self, blocks: u64) -> Option<Self> {
        let mut layout = self.clone();
        let mut left = blocks;
        while left > 1 {
            let last = layout.registers.pop().filter(|f| f.size > 1)?;
            let taken = last.size.min(left);
            if !last.size.is_multiple_of(taken) || !left.is_multiple_of(taken) {
                return None;
            }
            let kept = last.size / taken;
            if kept > 1 {
                layout.registers.push(Factor { size: kept, ..last });
            }
            let digit = Factor {
                size: taken,
                stride: last.stride * kept,
                ..last
            };
            layout.blocks.insert(0, digit);
            left /= taken;
        }
        blocks.is_power_of_two().then_some(layout)
    }

    /// This layout without registers that hold copies.
    pub fn distinct(&self) -> Self {
        self.slice(&self.axes())
    }

    /// Its axes with the strides of a packed array of all that it covers, and the elements of that.
    pub fn packed(&self) -> (Vec<(AxisId, u64)>, u64) {
        self.strides(|elements| elements)
    }

    /// The same for shared memory: all strides are odd, so that neighbours along any axis lie in different banks.
    pub fn scattered(&self) -> (Vec<(AxisId, u64)>, u64) {
        self.strides(|elements| elements | 1)
    }

    /// Its axes with strides, and what all take: `room` says what so many elements take.
    fn strides(&self, room: impl Fn(u64) -> u64) -> (Vec<(AxisId, u64)>, u64) {
        let (mut strides, mut elements) = (Vec::new(), 1);
        for axis in self.axes().iter() {
            strides.push((axis, elements));
            elements = room(elements * self.cover(axis));
        }
        (strides, elements)
    }

    /// The lane masks whose exchanges (`shfl.bfly`) combine all lanes that differ along `axes` only.
    pub fn lane_masks(&self, axes: &AxisSet) -> Vec<u32> {
        masks(&self.lanes, |f| f.axis.is_some_and(|a| axes.contains(a)))
    }

    /// The same for warps; none where their number along these axes is no power of two.
    pub fn warp_masks(&self, axes: &AxisSet) -> Option<Vec<u32>> {
        let along = |f: &Factor| f.axis.is_some_and(|a| axes.contains(a));
        let powers = (self.warps.iter()).all(|f| !along(f) || f.size.is_power_of_two());
        powers.then(|| masks(&self.warps, along))
    }

    /// The lane bits and the warp bits that hold copies.
    pub fn copy_masks(&self) -> (u32, u32) {
        let join = |f: &[Factor]| masks(f, |f| f.axis.is_none()).into_iter().sum();
        (join(&self.lanes), join(&self.warps))
    }

    /// The bits of the block's rank whose blocks hold copies.
    pub fn block_copies(&self) -> u32 {
        masks(&self.blocks, |f| f.axis.is_none()).into_iter().sum()
    }

    /// How many consecutive registers hold consecutive coordinates of `axis`, from register 0.
    pub fn vector(&self, axis: AxisId) -> u64 {
        match self.registers.first() {
            Some(f) if f.axis == Some(axis) && f.stride == 1 => f.size,
            Some(_) | None => 1,
        }
    }

    /// Where a thread holds a run of `axis` that its neighbouring lanes continue, and further runs in other registers: the
    /// exchange after which it holds `run` consecutive coordinates, the pieces of several lanes.
    pub fn gathered(&self, axis: AxisId, run: u64) -> Option<Gathered> {
        let (first, lane) = (self.registers.first()?, self.lanes.first()?);
        let along = |f: &Factor, stride: u64| f.axis == Some(axis) && f.stride == stride;
        let piece = first.size;
        if !along(first, 1) || !along(lane, piece) || !run.is_multiple_of(piece) {
            return None;
        }
        let lanes = run / piece;
        let further = |f: &Factor| f.axis == Some(axis) && f.size.is_multiple_of(lanes);
        let register = 1 + self.registers.iter().skip(1).position(further)?;
        if lanes < 2 || !lanes.is_power_of_two() || !lane.size.is_multiple_of(lanes) {
            return None;
        }
        let far = self.registers[register];
        let part = |size: u64, stride: u64| Factor {
            axis: Some(axis),
            size,
            stride,
        };
        let mut layout = self.clone();
        layout.registers[0] = part(run, 1);
        layout.registers[register] = part(far.size / lanes, far.stride * lanes);
        layout.lanes[0] = part(lane.size / lanes, run);
        layout.lanes.insert(0, part(lanes, far.stride));
        layout.lanes = normal(layout.lanes);
        Some(Gathered {
            layout,
            lanes,
            piece,
            digit: register,
        })
    }

    /// The coordinate along `axis` of one element, in the first block of a cluster: the definition that everything else is tested against.
    pub fn coordinate(&self, axis: AxisId, register: u64, lane: u64, warp: u64) -> u64 {
        along(&self.registers, axis, register)
            + along(&self.lanes, axis, lane)
            + along(&self.warps, axis, warp)
    }

    /// What the block's rank in its cluster adds to it.
    pub fn block_part(&self, axis: AxisId, rank: u64) -> u64 {
        along(&self.blocks, axis, rank)
    }

    /// Lanes along the first axis, `vector` elements each, then along the next ones; warps likewise, `rows` of them
    /// along the later axes if those have room, then registers for what is left. `axes` are (axis, coordinates),
    /// fastest in memory first.
    pub fn blocked(axes: &[(AxisId, u64)], vector: u64, rows: u64, columns: u64) -> Self {
        Self::blocked_within(axes, vector, rows, columns, &AxisSet::new())
    }

    /// The same, but that each warp has all coordinates along some axes.
    pub fn blocked_within(
        axes: &[(AxisId, u64)],
        vector: u64,
        rows: u64,
        columns: u64,
        within: &AxisSet,
    ) -> Self {
        let mut at: Vec<u64> = vec![1; axes.len()];
        let mut layout = Self::default();
        if let Some((axis, size)) = axes.first() {
            let width = 1 << size.trailing_zeros().min(vector.trailing_zeros());
            layout.registers.push(Factor {
                axis: Some(*axis),
                size: width,
                stride: 1,
            });
            at[0] = width;
        }
        let mut deal = |mut left: u64, order: &[usize]| {
            let mut dealt = Vec::new();
            for i in order {
                let (axis, size) = axes[*i];
                let take = size.div_ceil(at[*i]).next_power_of_two().min(left);
                dealt.push(Factor {
                    axis: Some(axis),
                    size: take,
                    stride: at[*i],
                });
                at[*i] *= take;
                left /= take;
            }
            dealt.push(copies(left));
            dealt
        };
        let forward: Vec<usize> = (0..axes.len()).collect();
        layout.lanes = deal(32, &forward);
        let is_shared = |i: &usize| !within.contains(axes[*i].0);
        let forward: Vec<usize> = forward.into_iter().filter(is_shared).collect();
        let later = (1..axes.len()).chain(0..axes.len().min(1));
        let rows_first: Vec<usize> = later.filter(is_shared).collect();
        let odd = odd_part(rows) * odd_part(columns);
        let along = deal(columns / odd_part(columns), &forward);
        layout.warps = deal(rows / odd_part(rows), &rows_first);
        layout.warps.extend(along);
        layout.warps.push(last(odd, axes, &rows_first, &mut at));
        for (i, (axis, size)) in axes.iter().enumerate() {
            layout.registers.push(Factor {
                axis: Some(*axis),
                size: size.div_ceil(at[i]),
                stride: at[i],
            });
        }
        layout.normalised()
    }

    /// The accumulators of instructions that `group` warps issue together, sixteen rows a warp: `warps_m` × `warps_n` warps side
    /// by side, each group owning a contiguous block. Register `c + 2h + 4·n8 + …·mi` of lane `4g + t` holds row `g + 8h + 16·mi`, column `t·2 + c + 8·n8`
    /// of a group of one warp (PTX ISA, "Matrix fragments for mma.m16n8k16"); with four, rows step by 64 and not by 16, and warp
    /// `w` begins at row `16·w` ("Register fragments for wgmma.mma_async.m64nNk16"). `shared_n`: the warps along N hold copies
    /// instead.
    pub fn accumulator(
        m: &Space,
        n: &Space,
        (warps_m, warps_n): (u64, u64),
        group: u64,
        shared_n: bool,
    ) -> Self {
        let split_n = if shared_n { 1 } else { warps_n };
        let mut registers = n.split(1, 2);
        registers.extend(m.split(8, 2));
        registers.extend(n.split(8, n.total / (8 * split_n)));
        registers.extend(m.split(16 * group, m.total / (16 * warps_m)));
        let mut lanes = n.split(2, 4);
        lanes.extend(m.split(1, 8));
        let mut warps = m.split(16, group);
        warps.extend(m.split(m.total / warps_m * group, warps_m / group));
        if shared_n {
            warps.push(copies(warps_n));
        } else {
            warps.extend(n.split(n.total / warps_n, warps_n));
        }
        Self {
            registers,
            lanes,
            warps,
            blocks: Vec::new(),
        }
        .normalised_keeping_registers()
    }

    /// The rows of instructions that `group` warps issue together, each of eight elements of 32 bits along the depth. Register `h + 2c + …`
    /// of lane `4g + t` holds row `g + 8h`, depth `t + 4c` of the sixteen rows of a warp (PTX ISA, "Register fragments for
    /// wgmma.mma_async.m64nNk8"); the warps along N hold copies.
    pub fn held_rows(m: &Space, k: &Space, (warps_m, warps_n): (u64, u64), group: u64) -> Self {
        let mut registers = m.split(8, 2);
        registers.extend(k.split(4, 2));
        registers.extend(k.split(8, k.total / 8));
        registers.extend(m.split(16 * group, m.total / (16 * warps_m)));
        let mut lanes = k.split(1, 4);
        lanes.extend(m.split(1, 8));
        let mut warps = m.split(16, group);
        warps.extend(m.split(m.total / warps_m * group, warps_m / group));
        warps.push(copies(warps_n));
        Self {
            registers,
            lanes,
            warps,
            blocks: Vec::new(),
        }
        .normalised_keeping_registers()
    }

    /// The layout that copies a tile which lies across memory: eight lanes along `axes[across]`, where memory is contiguous, so
    /// that whole sectors are read, and the other lanes along the first axis, so that writes meet different banks.
    pub fn crossed(axes: &[(AxisId, u64)], across: usize, warps: u64) -> Self {
        let mut at: Vec<u64> = vec![1; axes.len()];
        let mut deal = |left: &mut u64, most: u64, i: usize| {
            let (axis, size) = axes[i];
            let take = size
                .div_ceil(at[i])
                .next_power_of_two()
                .min(*left)
                .min(most);
            let stride = at[i];
            at[i] *= take;
            *left /= take;
            Factor {
                axis: Some(axis),
                size: take,
                stride,
            }
        };
        let mut left = 32;
        let mut lanes = vec![deal(&mut left, 8, across)];
        for i in 0..axes.len() {
            let most = left;
            lanes.push(deal(&mut left, most, i));
        }
        lanes.push(copies(left));
        let odd = odd_part(warps);
        let mut left = warps / odd;
        let mut warps: Vec<Factor> = Vec::new();
        for i in 0..axes.len() {
            let most = left;
            warps.push(deal(&mut left, most, i));
        }
        warps.push(copies(left));
        let forward: Vec<usize> = (0..axes.len()).collect();
        warps.push(last(odd, axes, &forward, &mut at));
        let registers = (0..axes.len())
            .map(|i| Factor {
                axis: Some(axes[i].0),
                size: axes[i].1.div_ceil(at[i]),
                stride: at[i],
            })
            .collect();
        Self {
            registers,
            lanes,
            warps,
            blocks: Vec::new(),
        }
        .normalised()
    }

    /// The layout that copies a tile of swizzle atoms of lines: lanes along a swizzle atom's line of `span` coordinates of the first axis,
    /// `vector` each, then lanes and warps over the axes from `along` on, whose coordinates number the lines, then registers.
    pub fn swizzle_atoms(
        axes: &[(AxisId, u64)],
        along: usize,
        span: u64,
        vector: u64,
        warps: u64,
    ) -> Self {
        let mut at: Vec<u64> = vec![1; axes.len()];
        let mut layout = Self::default();
        if let (Some((axis, _)), true) = (axes.first(), along > 0) {
            layout.registers.push(Factor {
                axis: Some(*axis),
                size: vector,
                stride: 1,
            });
            at[0] = vector;
        }
        let mut deal = |mut left: u64, order: &[(usize, u64)]| {
            let mut dealt = Vec::new();
            for (i, most) in order {
                let (axis, size) = axes[*i];
                let rest = size.div_ceil(at[*i]).next_power_of_two();
                let take = rest.min(left).min(*most);
                dealt.push(Factor {
                    axis: Some(axis),
                    size: take,
                    stride: at[*i],
                });
                at[*i] *= take;
                left /= take;
            }
            dealt.push(copies(left));
            dealt
        };
        let first = (0..along.min(1)).map(|i| (i, (span / vector).max(1)));
        let others: Vec<(usize, u64)> = (along..axes.len())
            .chain(0..along)
            .map(|i| (i, u64::MAX))
            .collect();
        let all: Vec<(usize, u64)> = first.chain(others.iter().copied()).collect();
        let odd = odd_part(warps);
        layout.lanes = deal(32, &all);
        layout.warps = deal(warps / odd, &others);
        let order: Vec<usize> = others.iter().map(|(i, _)| *i).collect();
        layout.warps.push(last(odd, axes, &order, &mut at));
        for (i, (axis, size)) in axes.iter().enumerate() {
            layout.registers.push(Factor {
                axis: Some(*axis),
                size: size.div_ceil(at[i]),
                stride: at[i],
            });
        }
        layout.normalised()
    }

    /// Accumulators of a register-tiled contraction: neighbouring rows and columns a thread, lanes along both sides, then
    /// registers for what is left.
    pub fn outer_product(
        m: &Space,
        n: &Space,
        shape: OuterShape,
        warps_m: u64,
        warps_n: u64,
    ) -> Self {
        let OuterShape {
            vector_m,
            vector_n,
            lanes_m,
            lanes_n,
        } = shape;
        let (own_m, own_n) = (vector_m * lanes_m, vector_n * lanes_n);
        let mut registers = n.split(1, vector_n);
        registers.extend(n.split(own_n, n.total / (own_n * warps_n)));
        registers.extend(m.split(1, vector_m));
        registers.extend(m.split(own_m, m.total / (own_m * warps_m)));
        let mut lanes = n.split(vector_n, lanes_n);
        lanes.extend(m.split(vector_m, lanes_m));
        let mut warps = m.split(m.total / warps_m, warps_m);
        warps.extend(n.split(n.total / warps_n, warps_n));
        Self {
            registers,
            lanes,
            warps,
            blocks: Vec::new(),
        }
        .normalised()
    }

    fn normalised(self) -> Self {
        Self {
            registers: normal(
                self.registers
                    .into_iter()
                    .filter(|f| f.axis.is_some())
                    .collect(),
            ),
            lanes: normal(self.lanes),
            warps: normal(self.warps),
            blocks: self.blocks,
        }
    }

    fn normalised_keeping_registers(self) -> Self {
        Self {
            registers: self.registers.into_iter().filter(|f| f.size > 1).collect(),
            lanes: normal(self.lanes),
            warps: normal(self.warps),
            blocks: self.blocks,
        }
    }
}

/// How far along an axis an index is that these digits count.
fn along(factors: &[Factor], axis: AxisId, mut index: u64) -> u64 {
    let mut sum = 0;
    for f in factors {
        if f.axis == Some(axis) {
            sum += index % f.size * f.stride;
        }
        index /= f.size;
    }
    sum
}

/// The bits of digits. Only the last one may be no power of two: nothing stands in the bits above it.
fn masks(factors: &[Factor], wanted: impl Fn(&Factor) -> bool) -> Vec<u32> {
    let mut bit = 0;
    let mut all = Vec::new();
    for f in factors {
        let bits = f.size.next_power_of_two().trailing_zeros();
        if wanted(f) {
            all.extend((bit..bit + bits).map(|b| 1 << b));
        }
        bit += bits;
    }
    all
}

/// How a thread's part of an outer product looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterShape {
    /// Neighbouring rows a thread.
    pub vector_m: u64,
    /// Neighbouring columns a thread.
    pub vector_n: u64,
    /// Lanes along M.
    pub lanes_m: u64,
    /// Lanes along N; `lanes_m · lanes_n = 32`.
    pub lanes_n: u64,
}

/// Several axes as one dimension of a matrix: a mixed-radix number, fastest axis first. Axes with one coordinate take no
/// part. With no axis left, the rows (or columns) are all alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// The digits of the number: an axis, and how far the digit counts. An axis that has several has its lowest first. Together they reach at
    /// least as far as the tile.
    pub axes: Vec<(AxisId, u64)>,
    /// The product of the sizes, a multiple of the unit; the unit itself where there is no axis.
    pub total: u64,
}

/// What lanes of a warp, and then a thread's registers, count along the depth of one instruction whose rows threads read.
const DEPTH_DIGITS: [u64; 2] = [4, 2];

impl Space {
    /// Pads `axes` (fastest first, with their tiles) so that the total is a multiple of `unit`. One axis is padded to a multiple of it;
    /// several are padded to powers of two each, so that every digit lies in one axis. Where `unit` is no power of two, as with three groups
    /// of warps, the last axis has the odd factor; not every digit of such a number lies in one axis ([`Space::splits`]).
    pub fn new(axes: &[(AxisId, u64)], unit: u64) -> Self {
        let mut axes: Vec<(AxisId, u64)> = axes.iter().copied().filter(|a| a.1 > 1).collect();
        match axes.as_mut_slice() {
            [] => {
                return Self { axes, total: unit };
            }
            [one] => one.1 = one.1.next_multiple_of(unit),
            [inner @ .., last] => {
                for a in inner.iter_mut() {
                    a.1 = a.1.next_power_of_two();
                }
                let others = inner.iter().fold(1u64, |n, a| n.saturating_mul(a.1));
                let odd = odd_part(unit);
                let needed = odd * (unit / odd / others).max(1);
                last.1 = match odd {
                    1 => last.1.next_power_of_two().max(needed),
                    _ => last.1.next_multiple_of(needed),
                };
            }
        }
        let total = axes.iter().fold(1u64, |n, a| n.saturating_mul(a.1));
        Self { axes, total }
    }

    /// The depth of instructions whose rows threads read, from wherever they lie. No axis needs to be padded further there than the digits
    /// that one instruction counts, four and then two: either all of one axis, or four of one and two of another. The least total is taken;
    /// [`Space::new`] where that has it.
    pub fn woven(axes: &[(AxisId, u64)]) -> Self {
        let [lanes, registers] = DEPTH_DIGITS;
        let own: Vec<(AxisId, u64)> = axes.iter().copied().filter(|a| a.1 > 1).collect();
        let mut best = Self::new(axes, lanes * registers);
        if own.len() < 2 {
            return best;
        }
        let mut offer = |digits: Vec<(AxisId, u64)>| {
            let total = digits.iter().fold(1u64, |n, d| n.saturating_mul(d.1));
            if total < best.total {
                let axes = digits.into_iter().filter(|d| d.1 > 1).collect();
                best = Self { axes, total };
            }
        };
        for (a, n) in &own {
            let others = own.iter().filter(|o| o.0 != *a);
            let mut whole = vec![(*a, n.next_multiple_of(lanes * registers))];
            whole.extend(others.clone());
            offer(whole);
            for (b, m) in others.clone() {
                let mut digits = vec![(*a, lanes), (*b, registers)];
                digits.extend([(*a, n.div_ceil(lanes)), (*b, m.div_ceil(registers))]);
                digits.extend(others.clone().filter(|o| o.0 != *b));
                offer(digits);
            }
        }
        best
    }

    /// How far it goes along an axis.
    pub fn size(&self, axis: AxisId) -> u64 {
        let own = self.axes.iter().filter(|d| d.0 == axis);
        own.map(|d| d.1).product()
    }

    /// Its digits, with the coordinates of their axis that a step moves.
    pub fn digits(&self) -> Vec<Factor> {
        let mut digits: Vec<Factor> = Vec::new();
        for (axis, size) in &self.axes {
            let below = digits.iter().filter(|f| f.axis == Some(*axis));
            let stride = below.map(|f| f.size).product();
            digits.push(Factor {
                axis: Some(*axis),
                size: *size,
                stride,
            });
        }
        digits
    }

    /// The same axes, each one digit.
    pub fn unwoven(&self) -> Self {
        let mut axes: Vec<(AxisId, u64)> = Vec::new();
        for (axis, _) in &self.axes {
            if axes.iter().all(|a| a.0 != *axis) {
                axes.push((*axis, self.size(*axis)));
            }
        }
        Self {
            axes,
            total: self.total,
        }
    }

    /// Its digits with their strides in the linear index.
    pub fn strides(&self) -> Vec<(AxisId, u64, u64)> {
        let mut inner = 1;
        self.axes
            .iter()
            .map(|(axis, size)| {
                let stride = inner;
                inner *= size;
                (*axis, *size, stride)
            })
            .collect()
    }

    /// Whether the digit of the linear index that counts to `size` in steps of `stride` is one of digits of the axes.
    pub fn splits(&self, stride: u64, size: u64) -> bool {
        if self.axes.is_empty() {
            return true;
        }
        let (mut at, mut left, mut inner) = (stride, size, 1);
        for digit in self.digits() {
            if left > 1 && at < inner * digit.size {
                let own = at / inner;
                if !at.is_multiple_of(inner) || !digit.size.is_multiple_of(own) {
                    return false;
                }
                let take = (digit.size / own).min(left);
                if !left.is_multiple_of(take) {
                    return false;
                }
                left /= take;
                at *= take;
            }
            inner *= digit.size;
        }
        left == 1
    }

    /// The digit of the linear index that counts to `size` in steps of `stride`, as digits of the axes ([`Space::splits`]).
    pub fn split(&self, stride: u64, size: u64) -> Vec<Factor> {
        if self.axes.is_empty() {
            return vec![copies(size)];
        }
        let (mut at, mut left, mut inner) = (stride, size, 1);
        let mut factors = Vec::new();
        for digit in self.digits() {
            if left > 1 && at < inner * digit.size {
                let own = at / inner;
                let take = (digit.size / own).min(left);
                factors.push(Factor {
                    size: take,
                    stride: own * digit.stride,
                    ..digit
                });
                left /= take;
                at *= take;
            }
            inner *= digit.size;
        }
        factors
    }
}

fn numbered(sizes: &[u64]) -> Vec<(AxisId, u64)> {
    (0..).map(AxisId).zip(sizes.iter().copied()).collect()
}

/// The rows, columns or depth that matrix instructions go over where axes have such tiles: [`Space::new`].
pub fn padded(sizes: &[u64], unit: u64) -> u64 {
    Space::new(&numbered(sizes), unit).total
}

/// The depth of instructions whose rows threads read where axes have such tiles: [`Space::woven`].
pub fn woven(sizes: &[u64]) -> u64 {
    Space::woven(&numbered(sizes)).total
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const I: AxisId = AxisId(0);
    const J: AxisId = AxisId(1);
    const K: AxisId = AxisId(2);

    /// Oracle: enumeration. Every coordinate below the sizes is held, each by as many (register, lane, warp) as the layout has copies.
    fn covers_exactly(layout: &Layout, sizes: &[(AxisId, u64)]) {
        let warps = product(&layout.warps);
        assert_eq!(product(&layout.lanes), 32);
        let mut held: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
        for r in 0..layout.register_count() {
            for l in 0..32 {
                for w in 0..warps {
                    let at = sizes
                        .iter()
                        .map(|(a, _)| layout.coordinate(*a, r, l, w))
                        .collect();
                    *held.entry(at).or_default() += 1;
                }
            }
        }
        let count = *held.values().next().expect("at least one element");
        assert!(held.values().all(|c| *c == count), "{layout:?}");
        let total: u64 = sizes.iter().map(|(a, _)| layout.cover(*a)).product();
        assert_eq!(held.len() as u64, total, "holes in {layout:?}");
        for (a, size) in sizes {
            assert!(layout.cover(*a) >= *size);
        }
    }

    #[test]
    fn blocked_layouts_cover_their_tiles() {
        let mut count = 0;
        for (i, j) in [
            (1, 8192),
            (16, 64),
            (3, 5),
            (128, 1),
            (1, 1),
            (7, 96),
            (64, 80),
        ] {
            for (rows, columns) in [(1, 1), (2, 2), (4, 1), (1, 8), (12, 1), (1, 12)] {
                for vector in [1, 4, 8] {
                    let sizes = [(J, j), (I, i)];
                    covers_exactly(&Layout::blocked(&sizes, vector, rows, columns), &sizes);
                    count += 1;
                }
            }
        }
        assert_eq!(count, 126);
    }

    #[test]
    fn what_is_scattered_has_odd_strides_and_a_place_for_each_element() {
        let sizes = [(J, 64), (I, 16), (K, 4)];
        let layout = Layout::blocked(&sizes, 4, 2, 2);
        let (strides, elements) = layout.scattered();
        assert_eq!(strides.len(), 3);
        assert!(strides.iter().all(|(_, stride)| stride % 2 == 1));
        let mut places = vec![0];
        for (axis, stride) in strides {
            let along = 0..layout.cover(axis);
            let further = along.flat_map(|at| places.iter().map(move |p| p + at * stride));
            places = further.collect();
        }
        let count = places.len() as u64;
        places.sort_unstable();
        places.dedup();
        assert_eq!((places.len() as u64, count), (count, layout.packed().1));
        assert!(places.iter().all(|p| *p < elements));
    }

    #[test]
    fn accumulators_cover_their_tiles() {
        for (i, j, k) in [
            (64, 64, 1),
            (128, 80, 1),
            (16, 8, 4),
            (5, 24, 1),
            (1, 128, 2),
            (4, 32, 8),
        ] {
            for (wm, wn) in [(1, 1), (2, 2), (4, 1), (1, 4), (3, 1), (12, 1), (1, 3)] {
                let m = Space::new(&[(I, i), (K, k)], 16 * wm);
                let n = Space::new(&[(J, j)], 16 * wn);
                assert!(m.total.is_multiple_of(16 * wm) && n.total.is_multiple_of(16 * wn));
                let all: Vec<_> = m.axes.iter().chain(&n.axes).copied().collect();
                covers_exactly(&Layout::accumulator(&m, &n, (wm, wn), 1, false), &all);
                let a = Layout::accumulator(&m, &n, (wm, wn), 1, true);
                covers_exactly(&a, &all);
                if wn.is_power_of_two() {
                    assert_eq!(a.copy_masks().1.count_ones(), wn.trailing_zeros());
                }
            }
        }
    }

    #[test]
    fn digits_that_do_not_lie_in_one_axis_are_none() {
        // Twelve warps of 48 rows each begin within the first axis's 32.
        let m = Space::new(&[(I, 32), (K, 16)], 16 * 12);
        assert!(!m.splits(m.total / 12, 12));
        // Three groups of four begin at thirds.
        assert!(m.splits(m.total / 3, 3));
        let m = Space::new(&[(I, 56), (K, 8)], 16 * 12);
        assert!(!m.splits(m.total / 12, 12));
        let powers = Space::new(&[(I, 8), (K, 8)], 64);
        assert!(powers.splits(4, 16) && powers.splits(16, 4) && !powers.splits(16, 8));
    }

    #[test]
    fn an_accumulator_is_what_the_manual_says() {
        let m = Space::new(&[(I, 32)], 16);
        let n = Space::new(&[(J, 32)], 16);
        let layout = Layout::accumulator(&m, &n, (1, 1), 1, false);
        for (r, lane) in (0..32).flat_map(|r| (0..32).map(move |l| (r, l))) {
            let (g, t) = (lane / 4, lane % 4);
            let (c, h, n8, mi) = (r % 2, r / 2 % 2, r / 4 % 4, r / 16);
            assert_eq!(layout.coordinate(I, r, lane, 0), g + 8 * h + 16 * mi);
            assert_eq!(layout.coordinate(J, r, lane, 0), 2 * t + c + 8 * n8);
        }
        assert_eq!(layout.lane_masks(&[J].into_iter().collect()), [1, 2]);
        assert_eq!(layout.lane_masks(&[I].into_iter().collect()), [4, 8, 16]);
        assert_eq!(layout.vector(J), 2);
    }

    #[test]
    fn held_rows_are_what_the_manual_says() {
        for (rows, depth) in [(128, 32), (192, 48)] {
            let m = Space::new(&[(I, rows)], 64);
            let k = Space::new(&[(J, depth)], 16);
            let layout = Layout::held_rows(&m, &k, (4, 2), 4);
            covers_exactly(&layout, &[(I, rows), (J, depth)]);
            for (r, lane) in (0..depth / 8 * 4).flat_map(|r| (0..32).map(move |l| (r, l))) {
                let (g, t, warp) = (lane / 4, lane % 4, r % 8);
                let (h, c, kk) = (r % 2, r / 2 % 2, r / 4);
                assert_eq!(
                    layout.coordinate(I, r, lane, warp),
                    g + 8 * h + 16 * (warp % 4)
                );
                assert_eq!(layout.coordinate(J, r, lane, warp), t + 4 * c + 8 * kk);
                // The next instruction along the rows.
                let next = layout.coordinate(I, r + depth / 8 * 4, lane, warp);
                assert_eq!(next, g + 8 * h + 16 * (warp % 4) + 64);
            }
        }
    }

    #[test]
    fn a_woven_depth_is_padded_no_further_than_an_instruction_counts() {
        // Of filters of 11 x 11: four rows of 11 and one more; eight of one axis; four of one and two of the other.
        for (sizes, padded, woven) in [
            ([11, 4], 64, 48),
            ([11, 11], 256, 144),
            ([24, 3], 128, 72),
            ([3, 24], 128, 72),
            ([3, 3], 16, 16),
            ([32, 2], 64, 64),
        ] {
            let axes = [(J, sizes[0]), (K, sizes[1])];
            assert_eq!(Space::new(&axes, 8).total, padded);
            let space = Space::woven(&axes);
            assert_eq!(space.total, woven, "{sizes:?}");
            let m = Space::new(&[(I, 128)], 64);
            let layout = Layout::held_rows(&m, &space, (4, 1), 4);
            covers_exactly(&layout, &[(I, 128), (J, sizes[0]), (K, sizes[1])]);
            assert!(axes.iter().all(|a| space.size(a.0) == layout.cover(a.0)));
            // The index of the instruction's depth is the one that columns are put in order by.
            for (r, lane) in (0..woven / 8 * 4).flat_map(|r| (0..32).map(move |l| (r, l))) {
                let mut index = lane % 4 + 4 * (r / 2 % 2) + 8 * (r / 4);
                let mut at = BTreeMap::new();
                for f in space.digits() {
                    *at.entry(f.axis).or_insert(0) += index % f.size * f.stride;
                    index /= f.size;
                }
                for (axis, coordinate) in at {
                    let axis = axis.expect("an axis");
                    assert_eq!(layout.coordinate(axis, r, lane, 0), coordinate);
                }
            }
        }
        assert_eq!(super::woven(&[11, 4]), 48);
        assert_eq!(super::padded(&[11, 4], 16), 64);
    }

    #[test]
    fn a_slice_agrees_with_its_whole() {
        let m = Space::new(&[(I, 32), (K, 4)], 32);
        let n = Space::new(&[(J, 48)], 16);
        let whole = Layout::accumulator(&m, &n, (2, 1), 1, false);
        let part = whole.slice(&[I, K].into_iter().collect());
        assert_eq!(part.register_count() * 12, whole.register_count());
        for (lane, warp) in (0..32).flat_map(|l| (0..2).map(move |w| (l, w))) {
            let rows = |l: &Layout| {
                let mut rows: Vec<_> = (0..l.register_count())
                    .map(|r| {
                        (
                            l.coordinate(I, r, lane, warp),
                            l.coordinate(K, r, lane, warp),
                        )
                    })
                    .collect();
                rows.sort_unstable();
                rows.dedup();
                rows
            };
            assert_eq!(rows(&whole), rows(&part));
        }
    }

    #[test]
    fn rows_without_an_axis_are_copies() {
        let m = Space::new(&[(I, 1)], 16);
        let n = Space::new(&[(J, 16)], 16);
        let layout = Layout::accumulator(&m, &n, (1, 1), 1, false);
        assert_eq!(layout.register_count(), 8);
        assert_eq!(layout.distinct().register_count(), 4);
        assert_eq!(layout.copy_masks().0, 4 + 8 + 16);
    }

    #[test]
    fn crossed_layouts_cover_their_tiles() {
        for (i, j) in [(128, 32), (96, 11), (3, 5), (1, 40), (64, 1)] {
            for warps in [1, 4, 12, 16] {
                let sizes = [(I, i), (J, j)];
                covers_exactly(&Layout::crossed(&sizes, 1, warps), &sizes);
            }
        }
    }

    #[test]
    fn swizzle_atoms_cover_their_tiles() {
        for (i, j, span) in [
            (128, 128, 64),
            (64, 96, 32),
            (48, 16, 16),
            (3, 64, 64),
            (1, 256, 64),
            (64, 1, 16),
        ] {
            for (warps, vector) in [(1, 8), (8, 8), (4, 2), (12, 8), (16, 1)] {
                let sizes: Vec<_> = [(J, j), (I, i)].into_iter().filter(|a| a.1 > 1).collect();
                let along = usize::from(j > 1);
                covers_exactly(
                    &Layout::swizzle_atoms(&sizes, along, span, vector, warps),
                    &sizes,
                );
            }
        }
    }

    /// Oracle: the exchange itself, as each lane sees it.
    #[test]
    fn gathered_layouts_are_what_the_exchange_gives() {
        let mut count = 0;
        for columns in [16, 24, 32, 64, 96, 256] {
            for run in [4, 8] {
                let rows = Space::new(&[(I, 64)], 64);
                let columns = Space::new(&[(J, columns)], 8);
                let held = Layout::accumulator(&rows, &columns, (4, 1), 4, false);
                let Some(g) = held.gathered(J, run) else {
                    assert!(!columns.total.is_multiple_of(4 * run), "{held:?}");
                    continue;
                };
                count += 1;
                covers_exactly(&g.layout, &[(I, 64), (J, columns.total)]);
                assert_eq!(g.layout.vector(J), run);
                let step = product(&held.registers[..g.digit]);
                for register in 0..held.register_count() {
                    for lane in 0..32 {
                        // The pieces of a lane's run come from its neighbours, each from the register of the lane's number.
                        let (piece, inside) = (register % run / g.piece, register % g.piece);
                        let before = product(&held.registers[1..g.digit]);
                        let (middle, high) = (register / run % before, register / run / before);
                        let from =
                            inside + g.piece * middle + step * (high * g.lanes + lane % g.lanes);
                        let neighbour = lane / g.lanes * g.lanes + piece;
                        for axis in [I, J] {
                            assert_eq!(
                                g.layout.coordinate(axis, register, lane, 0),
                                held.coordinate(axis, from, neighbour, 0),
                                "{held:?} {g:?}"
                            );
                        }
                    }
                }
            }
        }
        assert!(count >= 8, "only {count} exchanges");
    }

    #[test]
    fn outer_products_cover_their_tiles() {
        for (i, j) in [(64, 64), (5, 7), (1, 256), (33, 1)] {
            for (vector_m, vector_n, lanes_m, lanes_n) in
                [(1, 4, 4, 8), (4, 1, 32, 1), (2, 2, 1, 32), (4, 4, 4, 8)]
            {
                let shape = OuterShape {
                    vector_m,
                    vector_n,
                    lanes_m,
                    lanes_n,
                };
                let m = Space::new(&[(I, i)], vector_m * lanes_m * 2);
                let n = Space::new(&[(J, j)], vector_n * lanes_n * 2);
                let all: Vec<_> = m.axes.iter().chain(&n.axes).copied().collect();
                covers_exactly(&Layout::outer_product(&m, &n, shape, 2, 2), &all);
            }
        }
    }
}

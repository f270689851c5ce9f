//! Contractions: what each instruction reads and writes, element by element.

use super::agent::{Flight, LANES, Warp, index, lanes};
use super::clock::{Access as By, Epoch};
use super::run::World;
use crate::atoms::AtomRow;
use crate::machine::{
    FragmentId, Holds, Input, Issue, Multiply, Outer, RegionId, Rows, Side, Split, Stage,
    SwizzleAtoms,
};
use ir::AxisId;

/// Columns of the accumulators that a lane has of eight, and rows of sixteen.
const PAIR: u64 = 2;
const EIGHT: u64 = 8;
const SIXTEEN: u64 = 16;

/// A block of an operand: rows (or columns) by depth.
struct Block {
    depth: u64,
    elements: Vec<f64>,
}

impl Block {
    fn row(&self, row: u64) -> &[f64] {
        let (start, depth) = ((row * self.depth) as usize, self.depth as usize);
        &self.elements[start..start + depth]
    }
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl World<'_> {
    /// Reads `rows` × `depth` elements of a stage, of which `place` says where they are.
    fn read_block(
        &mut self,
        rank: usize,
        by: By<'_>,
        (region, stage): (RegionId, u64),
        (rows, depth): (u64, u64),
        place: impl Fn(u64, u64) -> u64,
        mut seen: impl FnMut(&Self, Epoch) -> Result<(), String>,
    ) -> Result<Block, String> {
        let width = self.machine.region(region).dtype.bytes();
        let mut elements = Vec::with_capacity((rows * depth) as usize);
        let mut last = None;
        for row in 0..rows {
            for k in 0..depth {
                let at = self.address(region, stage, place(row, k))?;
                let (x, write) = self.blocks[rank].shared.read(at, width, by)?;
                if last != Some(write) {
                    seen(self, write)?;
                    last = Some(write);
                }
                elements.push(x);
            }
        }
        Ok(Block { depth, elements })
    }

    /// Rows of an operand in registers: `register` says which one holds an element of an instruction, by its place along rows and depth.
    fn held_block(
        &self,
        warp: &Warp<'_>,
        id: FragmentId,
        row: &AtomRow,
        (rows, depth): (u64, u64),
        register: impl Fn(u64, u64, u64) -> u64,
    ) -> Result<Block, String> {
        let step = row.shape()[2];
        let Some(lies) = row.instruction.rows.held() else {
            return Err(format!("{row} reads rows from shared memory alone"));
        };
        let held = warp.registers(id)?;
        let mut elements = Vec::new();
        for row in 0..rows {
            for k in 0..depth {
                let (lane, element) = (lies.element)(row % SIXTEEN, k % step);
                let at = register(row / SIXTEEN, k / step, element);
                let x = held.get(at as usize).and_then(|lanes| lanes[lane]);
                elements.push(x.ok_or("a rows' operand is read and was not written")?);
            }
        }
        Ok(Block { depth, elements })
    }

    pub(super) fn multiply(&mut self, warp: &mut Warp<'_>, m: &Multiply) -> Result<(), String> {
        let [wm, wn] = self.machine.warps;
        let [rows, columns] = [m.spaces[0].total / wm, m.spaces[1].total / wn];
        let depth = m.spaces[2].total;
        let firsts = [rows * (warp.warp % wm), columns * (warp.warp / wm)];
        let mut blocks = Vec::new();
        for (side, count) in [rows, columns].into_iter().enumerate() {
            blocks.push(match m.inputs[side] {
                Input::Fragment(id) => {
                    let stride = depth / 2;
                    let at = |atom, step, element| stride * atom + EIGHT * step + element;
                    self.held_block(warp, id, m.row, (count, depth), at)?
                }
                Input::Region(region, stage) => {
                    let axes = &self.machine.region(region).axes;
                    let stride = |space: usize| {
                        let first = m.spaces[space].axes.first().map(|a| a.0);
                        axes.iter().find(|a| Some(a.0) == first).map_or(0, |a| a.2)
                    };
                    let (kept, along) = (stride(side), stride(2));
                    let first = firsts[side];
                    let place = |row: u64, k: u64| (first + row) * kept + k * along;
                    let (stage, clock) = (warp.stage(stage)?, warp.clock.clone());
                    let by = By {
                        epoch: warp.epoch(),
                        clock: &clock,
                    };
                    let from = (region, stage);
                    self.read_block(warp.rank, by, from, (count, depth), place, |_, _| Ok(()))?
                }
            });
        }
        let mut sums = warp.registers(m.into)?.clone();
        for row in 0..rows {
            for column in 0..columns {
                let lane = (4 * (row % EIGHT) + column % EIGHT / PAIR) as usize;
                let register = columns / 2 * (row / SIXTEEN)
                    + 4 * (column / EIGHT)
                    + 2 * (row % SIXTEEN / EIGHT)
                    + column % PAIR;
                let sum = &mut sums[register as usize][lane];
                let old = sum.ok_or("accumulators are read and were not written")?;
                *sum = Some(old + product(blocks[0].row(row), blocks[1].row(column)));
            }
        }
        warp.put(m.into, sums)
    }

    pub(super) fn outer(&mut self, warp: &mut Warp<'_>, outer: &Outer) -> Result<(), String> {
        let layout = self.machine.fragment(outer.into).layout();
        let mut steps: Vec<Vec<(AxisId, u64)>> = vec![Vec::new()];
        for (axis, _) in &outer.depth {
            let count = warp.limit(*axis)?.max(0) as u64;
            let with = |k: u64| {
                steps.iter().map(move |at| {
                    let more = [(*axis, k)];
                    at.iter().copied().chain(more).collect::<Vec<_>>()
                })
            };
            steps = (0..count).flat_map(with).collect();
        }
        let mut sums = warp.registers(outer.into)?.clone();
        let stages = [
            warp.stage(outer.inputs[0].1)?,
            warp.stage(outer.inputs[1].1)?,
        ];
        for register in 0..layout.register_count() {
            for lane in lanes() {
                let old = sums[register as usize][lane];
                let mut sum = old.ok_or("accumulators are read and were not written")?;
                for at in &steps {
                    let mut x = 1.0;
                    for (side, part) in outer.parts.iter().enumerate() {
                        let id = outer.inputs[side].0;
                        let own = index(part, &layout, register);
                        let region = self.machine.region(id);
                        let terms = region.axes.iter().map(|(axis, _, stride)| {
                            let k = at.iter().find(|(a, _)| a == axis);
                            let summed = outer.axes.contains(*axis);
                            let coordinate = match k {
                                Some((_, k)) => *k,
                                None if summed => 0,
                                None => warp.local(part, *axis, own, lane) as u64,
                            };
                            coordinate * stride
                        });
                        let element = terms.sum();
                        let address = self.address(id, stages[side], element)?;
                        let width = region.dtype.bytes();
                        let shared = &mut self.blocks[warp.rank].shared;
                        x *= shared.read(address, width, warp.access())?.0;
                    }
                    sum += x;
                }
                sums[register as usize][lane] = Some(sum);
            }
        }
        warp.put(outer.into, sums)
    }

    pub(super) fn pack(
        &mut self,
        warp: &mut Warp<'_>,
        to: FragmentId,
        from: FragmentId,
        stride: u64,
    ) -> Result<(), String> {
        let Holds::Rows { atoms, steps } = self.machine.fragment(to).holds else {
            return Err("rows are packed into what holds none".into());
        };
        let held = warp.registers(from)?;
        let mut rows = Vec::new();
        for atom in 0..atoms {
            for step in 0..steps {
                for element in 0..EIGHT {
                    let at = stride * atom + EIGHT * step + element;
                    let lanes = held.get(at as usize).copied();
                    rows.push(lanes.ok_or("rows are packed of fewer registers")?);
                }
            }
        }
        warp.put(to, rows)
    }

    /// What the `which`-th group of warps reads of an operand in shared memory: `count` rows (or columns) of instruction `number`.
    fn swizzle_atom_block(
        &mut self,
        warp: &Warp<'_>,
        by: By<'_>,
        swizzle_atoms: &SwizzleAtoms,
        [which, number]: [u64; 2],
        (first, count): (u64, u64),
        depth: u64,
    ) -> Result<Block, String> {
        let (s, dtype) = (
            swizzle_atoms.swizzle,
            self.machine.region(swizzle_atoms.region).dtype,
        );
        let (line, swizzle_atom, each) = (
            s.line_bytes(dtype),
            s.swizzle_atom_bytes(dtype),
            dtype.bytes(),
        );
        let start = swizzle_atoms.share.unwrap_or(0) * which + swizzle_atoms.further * number;
        let place = |row: u64, k: u64| {
            let row = first + row;
            let bytes = match s.depth {
                true => k / s.span * swizzle_atom + row * line + k % s.span * each,
                false => row / s.span * swizzle_atom + k * line + row % s.span * each,
            };
            (start + bytes) / each
        };
        let stage: Stage = swizzle_atoms.stage;
        let from = (swizzle_atoms.region, warp.stage(stage)?);
        self.read_block(warp.rank, by, from, (count, depth), place, |me, write| {
            match me.is_fenced(warp, write) {
                true => Ok(()),
                false => Err(format!(
                    "instructions of a warpgroup read {} with no fence behind the threads that wrote it",
                    me.machine.region(swizzle_atoms.region).name
                )),
            }
        })
    }

    /// Threads share the elements out by chunks of four along the depth. Nothing is rounded: the larger halves are the elements, the lesser
    /// ones 0.
    pub(super) fn split(&mut self, warp: &Warp<'_>, split: &Split) -> Result<(), String> {
        const CHUNK: u64 = 4;
        let by = warp.access();
        let Side { count, stride } = split.kept;
        let depth: u64 = split.depth.iter().map(|d| d.count).product();
        let along = |k: u64| {
            let (mut left, mut at) = (k, 0);
            for d in &split.depth {
                at += left % d.count * d.stride;
                left /= d.count;
            }
            at
        };
        let (from, into) = (
            (split.from, warp.stage(split.stage)?),
            warp.stage(split.into)?,
        );
        let Some(s) = self.machine.region(split.to[0]).swizzle else {
            return Err("halves of columns are no swizzle atoms".into());
        };
        let all = self.machine.threads_of(warp.fills);
        let threads = all.end - all.start;
        let first = warp.warp * LANES as u64 - all.start;
        let own = first..first + LANES as u64;
        let chunks = 0..count * depth / CHUNK;
        for x in chunks.filter(|x| own.contains(&(x % threads))) {
            let (row, k) = (x % count, x / count * CHUNK);
            let place = |_, more: u64| row * stride + along(k + more);
            let chunk = self.read_block(warp.rank, by, from, (1, CHUNK), place, |_, _| Ok(()))?;
            let at = (k / s.span * s.lines + row) * s.span + k % s.span;
            for (at, high) in (at..).zip(&chunk.elements) {
                for (region, half) in split.to.into_iter().zip([*high, 0.0]) {
                    let at = self.address(region, into, at)?;
                    let width = self.machine.region(region).dtype.bytes();
                    let shared = &mut self.blocks[warp.rank].shared;
                    shared.write(at, width, half, by)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn issue(&mut self, warp: &mut Warp<'_>, issue: &Issue) -> Result<(), String> {
        let (epoch, clock) = self.fork(warp);
        let by = By {
            epoch,
            clock: &clock,
        };
        let [atoms, chunks, steps] = issue.counts;
        let depth = issue.row.shape()[2] * steps;
        // Of a step of an instruction.
        let elements = depth / steps * SIXTEEN / LANES as u64;
        let group = warp.warp / 4;
        let (of_a, of_b) = (group % issue.groups, group / issue.groups);
        // One behind the other, instructions may accumulate into the same registers while they are under way.
        if warp.flights.all().any(|f| f.reads == Some(issue.into)) {
            return Err("accumulators that instructions under way read as rows".into());
        }
        let mut sums = warp.held(issue.into)?.clone();
        let reads = match &issue.a {
            Rows::Fragment(id) => Some(*id),
            Rows::SwizzleAtoms(_) => None,
        };
        for atom in 0..atoms {
            let a = match &issue.a {
                Rows::SwizzleAtoms(a) => {
                    let own = (SIXTEEN * (warp.warp % 4), SIXTEEN);
                    self.swizzle_atom_block(warp, by, a, [of_a, atom], own, depth)?
                }
                Rows::Fragment(id) => {
                    let at = |_, step, element| elements * (steps * atom + step) + element;
                    self.held_block(warp, *id, issue.row, (SIXTEEN, depth), at)?
                }
            };
            for chunk in 0..chunks {
                let all = (0, issue.columns);
                let b = self.swizzle_atom_block(warp, by, &issue.b, [of_b, chunk], all, depth)?;
                for row in 0..SIXTEEN {
                    for column in 0..issue.columns {
                        let lane = (4 * (row % EIGHT) + column % EIGHT / PAIR) as usize;
                        let register = issue.columns * chunks / 2 * atom
                            + issue.columns / 2 * chunk
                            + 4 * (column / EIGHT)
                            + 2 * (row / EIGHT)
                            + column % PAIR;
                        let x = product(a.row(row), b.row(column));
                        let sum = &mut sums[register as usize][lane];
                        *sum = Some(match (issue.fresh, *sum) {
                            (true, _) => x,
                            (false, Some(old)) => old + x,
                            (false, None) => {
                                return Err("accumulators are read and were not written".into());
                            }
                        });
                    }
                }
            }
        }
        warp.fragments[issue.into.0 as usize] = Some(sums);
        warp.flights.begin(Flight {
            agent: epoch.agent,
            writes: issue.into,
            reads,
        });
        Ok(())
    }
}

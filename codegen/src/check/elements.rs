//! Element-wise work and reductions.

use super::agent::{LANES, Registers, Warp, index, lanes};
use super::run::World;
use crate::layout::Layout;
use crate::machine::{Across, FragmentId, Function, Reduce, Scan, Source};
use ir::{Affine, AxisId, ReduceOp};
use std::collections::BTreeMap;
use std::f64::consts::LOG2_E;

pub(super) fn combine(op: ReduceOp, x: f64, y: f64) -> f64 {
    op.combine().apply(&[x, y])
}

fn apply(function: Function, args: &[f64]) -> Result<f64, String> {
    match (function, args) {
        (Function::Copy, [x]) => Ok(*x),
        (Function::Op(op), all) if all.len() == op.arity() => Ok(op.apply(all)),
        (Function::Bounded(bounded), all) if all.len() == bounded.op().arity() => {
            Ok(bounded.op().apply(all))
        }
        (Function::ExpOfSum, [x, s, y]) => Ok((x * s + y).exp2()),
        // Nothing is rounded here.
        (Function::Tf32, [x]) => Ok(*x),
        (Function::Rest, [_]) => Ok(0.0),
        (
            Function::Copy
            | Function::Op(_)
            | Function::Bounded(_)
            | Function::ExpOfSum
            | Function::Tf32
            | Function::Rest,
            _,
        ) => Err(format!("{function:?} of {} operands", args.len())),
    }
}

fn written(x: Option<f64>, name: &str) -> Result<f64, String> {
    x.ok_or_else(|| format!("{name} is read and was not written"))
}

impl Warp<'_> {
    fn layout(&self, id: FragmentId) -> Layout {
        self.machine.fragment(id).layout()
    }

    fn name(&self, id: FragmentId) -> &str {
        &self.machine.fragment(id).name
    }

    /// Computes every element of a fragment.
    fn fill(
        &mut self,
        to: FragmentId,
        mut of: impl FnMut(&Self, &Layout, u64, usize) -> Result<f64, String>,
    ) -> Result<(), String> {
        let layout = self.layout(to);
        let mut registers: Registers = Vec::new();
        for register in 0..layout.register_count() {
            let mut lanes = [None; LANES];
            for (lane, own) in lanes.iter_mut().enumerate() {
                *own = Some(of(self, &layout, register, lane)?);
            }
            registers.push(lanes);
        }
        self.put(to, registers)
    }

    pub(super) fn map(
        &mut self,
        to: FragmentId,
        function: Function,
        args: &[Source],
    ) -> Result<(), String> {
        self.fill(to, |me, layout, register, lane| {
            let one = |s: &Source| me.element(*s, layout, register, lane);
            let values: Vec<f64> = args.iter().map(one).collect::<Result<_, _>>()?;
            apply(function, &values)
        })
    }

    pub(super) fn select(
        &mut self,
        to: FragmentId,
        condition: &Affine,
        x: Source,
        y: Source,
    ) -> Result<(), String> {
        let mut least = condition.offset;
        for (c, axis) in condition.terms() {
            let first = self.origin(*axis)?;
            let last = first + self.limit(*axis)? - 1;
            least += c * if *c > 0 { first } else { last };
        }
        self.fill(to, |me, layout, register, lane| {
            let holds = least >= 0 || me.function(condition, layout, register, lane)? >= 0;
            me.element(if holds { x } else { y }, layout, register, lane)
        })
    }

    pub(super) fn exp_scale(
        &mut self,
        [scale, scaled]: [FragmentId; 2],
        [of, by]: [Source; 2],
    ) -> Result<(), String> {
        self.fill(scale, |me, layout, register, lane| {
            Ok(me.element(by, layout, register, lane)? * LOG2_E)
        })?;
        self.fill(scaled, |me, layout, register, lane| {
            let by = me.element(by, layout, register, lane)?;
            Ok(me.element(of, layout, register, lane)? * (by * LOG2_E))
        })
    }

    pub(super) fn mask(
        &mut self,
        to: FragmentId,
        from: FragmentId,
        axes: &[AxisId],
    ) -> Result<(), String> {
        self.fill(to, |me, layout, register, lane| {
            let x = me.registers(from)?[register as usize][lane];
            let exists = me.exists(layout, axes.iter().copied(), register, lane)?;
            if exists {
                written(x, me.name(from))
            } else {
                Ok(0.0)
            }
        })
    }

    pub(super) fn is_not_one(
        &mut self,
        flag: FragmentId,
        of: Source,
        layout: &Layout,
    ) -> Result<(), String> {
        let mut set = self.registers(flag)?.clone();
        for register in 0..layout.register_count() {
            for (lane, set) in set[0].iter_mut().enumerate() {
                if self.element(of, layout, register, lane)? != 1.0 {
                    *set = Some(1.0);
                }
            }
        }
        self.put(flag, set)
    }

    pub(super) fn reduce(&mut self, reduce: &Reduce) -> Result<(), String> {
        let to = self.layout(reduce.to);
        let neutral = Some(reduce.op.neutral());
        let mut sums = vec![[neutral; LANES]; to.register_count() as usize];
        for register in 0..reduce.from.register_count() {
            let at = index(&to, &reduce.from, register) as usize;
            for lane in lanes() {
                let mut x = 1.0;
                for factor in &reduce.factors {
                    x *= self.element(*factor, &reduce.from, register, lane)?;
                }
                if !self.exists(&reduce.from, reduce.axes.iter(), register, lane)? {
                    continue;
                }
                let sum = &mut sums[at][lane];
                *sum = sum.map(|sum| combine(reduce.op, sum, x));
            }
        }
        self.put(reduce.to, sums)
    }

    /// By coordinates: in order along the axis, of all elements of the warp that have the others in common.
    pub(super) fn scan(&mut self, scan: &Scan) -> Result<(), String> {
        let layout = self.layout(scan.to);
        let axes = layout.axes();
        let others: Vec<AxisId> = axes.iter().filter(|a| *a != scan.axis).collect();
        let place = |axis: AxisId, register: u64, lane: usize| {
            layout.coordinate(axis, register, lane as u64, 0)
        };
        let line = |register: u64, lane: usize| -> Vec<u64> {
            let along = others.iter();
            along.map(|a| place(*a, register, lane)).collect()
        };
        let mut lines: BTreeMap<Vec<u64>, BTreeMap<u64, f64>> = BTreeMap::new();
        for register in 0..layout.register_count() {
            for lane in lanes() {
                let x = self.element(scan.of, &layout, register, lane)?;
                let line = lines.entry(line(register, lane)).or_default();
                line.insert(place(scan.axis, register, lane), x);
            }
        }
        for line in lines.values_mut() {
            let mut reduced = scan.op.neutral();
            for x in line.values_mut() {
                let with = combine(scan.op, reduced, *x);
                *x = if scan.inclusive { with } else { reduced };
                reduced = with;
            }
        }
        self.fill(scan.to, |_, _, register, lane| {
            let line = lines.get(&line(register, lane));
            let found = line.and_then(|line| line.get(&place(scan.axis, register, lane)));
            found
                .copied()
                .ok_or_else(|| "a scan without an element".to_owned())
        })
    }

    pub(super) fn across_lanes(&mut self, across: &Across) -> Result<(), String> {
        let mut all = self.registers(across.fragment)?.clone();
        let count = across.layout.register_count() as usize;
        for mask in &across.masks {
            for own in all.iter_mut().take(count) {
                let before = *own;
                for (lane, x) in own.iter_mut().enumerate() {
                    let other = before[lane ^ *mask as usize];
                    let (a, b) = (before[lane], other);
                    let name = &self.machine.fragment(across.fragment).name;
                    *x = Some(combine(across.op, written(a, name)?, written(b, name)?));
                }
            }
        }
        self.put(across.fragment, all)
    }
}

/// Bits of a lane.
fn bits(of: u32) -> impl Iterator<Item = u32> {
    (0..5).filter(move |b| of >> b & 1 == 1)
}

impl World<'_> {
    fn scratch_at(&self, float: u64) -> Result<u64, String> {
        let scratch = self.machine.scratch;
        if 4 * (float + 1) > scratch.bytes {
            return Err(format!(
                "float {float} of {} bytes of scratch memory",
                scratch.bytes
            ));
        }
        Ok(scratch.offset + 4 * float)
    }

    /// Where an element of a warp's parts is.
    fn part_at(
        &self,
        across: &Across,
        register: u64,
        warp: u64,
        lane: usize,
    ) -> Result<u64, String> {
        let columns = across.columns();
        let width = self.machine.computing() / 32 * columns;
        let own = bits(31 & !across.layout.copy_masks().0).enumerate();
        let column: u64 = own.map(|(i, b)| (lane as u64 >> b & 1) << i).sum();
        self.scratch_at(register * width + warp * columns + column)
    }

    pub(super) fn put_parts(&mut self, warp: &Warp<'_>, across: &Across) -> Result<(), String> {
        let copies = across.layout.copy_masks().0 as usize;
        for register in 0..across.layout.register_count() {
            for lane in lanes().filter(|l| l & copies == 0) {
                let x = warp.registers(across.fragment)?[register as usize][lane];
                let x = written(x, &self.machine.fragment(across.fragment).name)?;
                let at = self.part_at(across, register, warp.warp, lane)?;
                self.blocks[warp.rank]
                    .shared
                    .write(at, 4, x, warp.access())?;
            }
        }
        Ok(())
    }

    pub(super) fn take_parts(
        &mut self,
        warp: &mut Warp<'_>,
        across: &Across,
    ) -> Result<(), String> {
        let copies = across.layout.copy_masks().0;
        let spread: Vec<(u32, u32)> = bits(copies).zip(across.masks.iter().copied()).collect();
        let left = &across.masks[spread.len()..];
        let rest = 31 & !across.masks.iter().sum::<u32>();
        let mut all = warp.registers(across.fragment)?.clone();
        for register in 0..across.layout.register_count() {
            let mut sums = [0.0; LANES];
            for (lane, sum) in sums.iter_mut().enumerate() {
                let theirs: u32 = (spread.iter())
                    .map(|(bit, mask)| (lane as u32 >> bit & 1) * mask)
                    .sum();
                for c in 0..1u32 << left.len() {
                    let chosen = left.iter().enumerate().filter(|(i, _)| c >> i & 1 == 1);
                    let other: u32 = chosen.map(|(_, m)| *m).sum();
                    let from = (warp.warp as u32 & rest) | other | theirs;
                    let at = self.part_at(across, register, u64::from(from), lane)?;
                    let shared = &mut self.blocks[warp.rank].shared;
                    let x = shared.read(at, 4, warp.access())?.0;
                    *sum = if c == 0 {
                        x
                    } else {
                        combine(across.op, *sum, x)
                    };
                }
            }
            for (bit, _) in &spread {
                let before = sums;
                for (lane, sum) in sums.iter_mut().enumerate() {
                    *sum = combine(across.op, before[lane], before[lane ^ (1 << bit)]);
                }
            }
            all[register as usize] = sums.map(Some);
        }
        warp.put(across.fragment, all)
    }

    pub(super) fn spill(
        &mut self,
        warp: &Warp<'_>,
        from: FragmentId,
        held: &Layout,
    ) -> Result<(), String> {
        let (strides, _) = held.scattered();
        for register in 0..held.register_count() {
            for lane in lanes().filter(|lane| warp.is_first(held, *lane)) {
                let x = warp.element(Source::Fragment(from), held, register, lane)?;
                let terms = strides.iter();
                let at = terms.map(|(a, s)| warp.local(held, *a, register, lane) as u64 * s);
                let at = self.scratch_at(at.sum())?;
                self.blocks[warp.rank]
                    .shared
                    .write(at, 4, x, warp.access())?;
            }
        }
        Ok(())
    }

    pub(super) fn unspill(
        &mut self,
        warp: &mut Warp<'_>,
        id: FragmentId,
        held: &Layout,
    ) -> Result<(), String> {
        let ((strides, _), to) = (held.scattered(), self.machine.fragment(id).layout());
        let mut all = vec![[None; LANES]; to.register_count() as usize];
        for register in 0..to.register_count() {
            for lane in lanes() {
                let at = |a: AxisId| warp.local(&to, a, register, lane) as u64;
                let inside = strides.iter().all(|(a, _)| at(*a) < held.cover(*a));
                let x = if inside {
                    let float = strides.iter().map(|(a, s)| at(*a) * s).sum();
                    let at = self.scratch_at(float)?;
                    let shared = &mut self.blocks[warp.rank].shared;
                    shared.read(at, 4, warp.access())?.0
                } else {
                    0.0
                };
                all[register as usize][lane] = Some(x);
            }
        }
        warp.put(id, all)
    }
}

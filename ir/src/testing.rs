//! Random well-typed programs and inputs, for property tests here and in other crates.
//!
//! Everything is a function of the seed: no clock, no system randomness.

use crate::affine::Affine;
use crate::axes::{AxisId, AxisSet};
use crate::builder::{BuildError, Builder};
use crate::program::{Dim, Dtype, MapOp, NodeId, Op, Program, ReduceOp};
use crate::tensor::Tensor;

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for n = 0. The bias of the remainder does not matter to tests.
    pub fn below(&mut self, n: usize) -> usize {
        match n {
            0 => 0,
            n => (self.bits() % n as u64) as usize,
        }
    }

    /// Uniform in `-1 .. 1`.
    pub fn signed(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Extents that a random program's axes have: odd, prime and a few powers of two.
const EXTENTS: [u64; 8] = [1, 2, 3, 4, 5, 7, 8, 11];
/// The same for a large program: scalars in disguise, primes, less than any tile, and more than one.
const LARGE_EXTENTS: [u64; 12] = [1, 1, 2, 3, 5, 7, 13, 16, 31, 64, 97, 131];
/// Extents of the axis that a cascade goes over.
const LONG_EXTENTS: [u64; 7] = [40, 64, 97, 128, 300, 1024, 2500];
/// Most elements of a value of a random program, and of a large one.
const MAX_ELEMENTS: u64 = 3000;
const LARGE_ELEMENTS: u64 = 200_000;
/// Most outputs of a large program.
const OUTPUTS: usize = 8;
/// Values stay within about this magnitude for inputs in `-1 .. 1`.
const MAGNITUDE: f64 = 50.0;

/// A random well-typed program: all 14 operations, one to three parameters, groups, views with and without `fill`,
/// several outputs; `size` is about the number of operations. For inputs in `-1 .. 1` its values are finite and moderate,
/// divisions, logarithms and roots stay away from their singularities, so that comparing f64 results is meaningful.
/// It is what [`Builder::finish`] gives: canonical, hash-consed, valid.
pub fn random_program(seed: u64, size: usize) -> Program {
    let mut rng = Rng::new(seed);
    loop {
        // A draw that the builder refuses is drawn again; the generator below is careful, so this is rare.
        if let Ok(program) = draw(&mut rng, size) {
            return program;
        }
    }
}

/// As [`random_program`], but large: about `size` operations *that some output needs*, up to eight outputs and six
/// parameters, ten axes with extents from 1 to 131, tensors under two axis names, reductions of reductions, and scalars.
pub fn random_large_program(seed: u64, size: usize) -> Program {
    let mut rng = Rng::new(seed ^ 0x6c61_7267_6500_0000);
    loop {
        if let Ok(program) = draw_large(&mut rng, size) {
            return program;
        }
    }
}

/// A random cascade: up to four reductions over one long axis, each of what those before it gave, as a softmax, a variance or a sum of
/// normalised products are. Rows, a long axis that most tiles divide and that needs several of them, and columns for some values.
pub fn random_cascade(seed: u64) -> Program {
    let mut rng = Rng::new(seed ^ 0x6361_7363_6164_6500);
    loop {
        if let Ok(program) = draw_cascade(&mut rng) {
            return program;
        }
    }
}

/// Inputs for a program's parameters, uniform in `-1 .. 1`, rounded to their dtypes.
pub fn random_inputs(program: &Program, seed: u64) -> Vec<Tensor> {
    let mut rng = Rng::new(seed);
    program
        .parameters()
        .map(|(_, _, dtype, dims)| {
            let shape: Vec<usize> = program.shape(dims).iter().map(|e| *e as usize).collect();
            let count = shape.iter().product();
            let data = (0..count).map(|_| dtype.round(rng.signed())).collect();
            Tensor { shape, data }
        })
        .collect()
}

/// A value with a bound on its magnitude, and on its distance from zero where it is known to be positive.
#[derive(Clone, Copy)]
struct Known {
    id: NodeId,
    most: f64,
    least: Option<f64>,
}

struct Draw<'a> {
    b: Builder,
    rng: &'a mut Rng,
    axes: Vec<AxisId>,
    values: Vec<Known>,
    elements: u64,
}

fn draw_large(rng: &mut Rng, size: usize) -> Result<Program, BuildError> {
    let mut b = Builder::new("large");
    let mut axes = Vec::new();
    for n in 0..4 + rng.below(7) {
        // Sometimes the extent of the axis before: a tensor may have both.
        let twin = axes.last().filter(|_| rng.below(3) == 0);
        let extent = match twin {
            Some(axis) => b.so_far().extent(*axis),
            None => *rng.pick(&LARGE_EXTENTS),
        };
        axes.push(b.axis(&format!("a{n}"), extent)?);
    }
    let mut d = Draw {
        b,
        rng,
        axes,
        values: Vec::new(),
        elements: LARGE_ELEMENTS,
    };
    for n in 0..1 + d.rng.below(6) {
        let dims = d.dims(3);
        let dtype = *d.rng.pick(&Dtype::ALL);
        let id = d.b.parameter(&format!("x{n}"), dtype, dims)?;
        d.keep(id, 1.0, None);
    }
    let mut tries = 0;
    while d.b.so_far().nodes.len() < size && tries < 40 * size {
        d.step()?;
        tries += 1;
    }
    // What nobody uses is joined until eight values are left: outputs.
    let mut ends: Vec<Known> = d.ends();
    let mut at = 0;
    while ends.len() > OUTPUTS && at < 4 * size {
        let (x, y) = (ends.remove(0), ends.remove(0));
        let both = d.axes_of(x.id).union(&d.axes_of(y.id));
        let (x, y) = if d.small(&both) {
            (x, y)
        } else {
            (d.reduced(x)?, d.reduced(y)?)
        };
        let id = d.b.add(x.id, y.id)?;
        let least = x.least.zip(y.least).map(|(x, y)| x + y);
        let sum = Known {
            id,
            most: x.most + y.most,
            least,
        };
        ends.push(d.squashed(sum)?);
        at += 1;
    }
    for known in ends {
        let axes = d.axes_of(known.id);
        let dims = d.group(axes.iter().collect());
        let dtype = *d.rng.pick(&Dtype::ALL);
        d.b.output(dtype, dims, known.id)?;
    }
    d.b.finish()
}

fn draw(rng: &mut Rng, size: usize) -> Result<Program, BuildError> {
    let mut b = Builder::new("random");
    let names = ["a", "b", "c", "d", "e", "f"];
    let count = 3 + rng.below(4);
    let mut axes = Vec::new();
    for name in &names[..count] {
        axes.push(b.axis(name, *rng.pick(&EXTENTS))?);
    }
    let mut d = Draw {
        b,
        rng,
        axes,
        values: Vec::new(),
        elements: MAX_ELEMENTS,
    };
    for name in &["x", "y", "z"][..1 + d.rng.below(3)] {
        let dims = d.dims(3);
        let dtype = *d.rng.pick(&Dtype::ALL);
        let id = d.b.parameter(name, dtype, dims)?;
        d.keep(id, 1.0, None);
    }
    for _ in 0..size {
        d.step()?;
    }
    let outputs = 1 + d.rng.below(3);
    for n in 0..outputs {
        // The newest value first, so that most of the program is needed.
        let at = match n {
            0 => d.values.len() - 1,
            _ => d.rng.below(d.values.len()),
        };
        let known = d.values[at];
        let axes = d.axes_of(known.id);
        let dims = d.group(axes.iter().collect());
        let dtype = *d.rng.pick(&Dtype::ALL);
        d.b.output(dtype, dims, known.id)?;
    }
    d.b.finish()
}

fn draw_cascade(rng: &mut Rng) -> Result<Program, BuildError> {
    let mut b = Builder::new("cascade");
    let i = b.axis("i", *rng.pick(&EXTENTS))?;
    let j = b.axis("j", *rng.pick(&LONG_EXTENTS))?;
    let e = b.axis("e", *rng.pick(&EXTENTS))?;
    let mut d = Draw {
        b,
        rng,
        axes: vec![i, j, e],
        values: Vec::new(),
        elements: LARGE_ELEMENTS,
    };
    for (name, axes) in [("x", vec![i, j]), ("y", vec![j, e]), ("z", vec![i])] {
        let dtype = *d.rng.pick(&Dtype::ALL);
        let dims = d.group(axes);
        let id = d.b.parameter(name, dtype, dims)?;
        d.keep(id, 1.0, None);
    }
    let [x, y, z] = [0, 1, 2].map(|n| d.values[n]);
    let mut known = vec![z];
    let mut first = x;
    for n in 0..2 + d.rng.below(3) {
        if n > 0 || d.rng.below(3) == 0 {
            let newest = known[known.len() - 1];
            first = d.corrected(first, newest, x)?;
        }
        let made = d.summed(first, y, j)?;
        known.push(made);
    }
    for (n, value) in known.iter().skip(1).rev().enumerate() {
        if n == 0 || d.rng.below(3) == 0 {
            let axes = d.axes_of(value.id);
            let dims = d.group(axes.iter().collect());
            let dtype = *d.rng.pick(&Dtype::ALL);
            d.b.output(dtype, dims, value.id)?;
        }
    }
    d.b.finish()
}

impl Draw<'_> {
    /// What a later reduction of a cascade reduces: the value of the one before or the first one, with what an earlier reduction gave.
    fn corrected(&mut self, before: Known, by: Known, x: Known) -> Result<Known, BuildError> {
        let value = if self.rng.below(3) == 0 { before } else { x };
        let both = self.axes_of(value.id).union(&self.axes_of(by.id));
        if !self.small(&both) {
            return Ok(x);
        }
        let (id, most, least) = match self.rng.below(6) {
            0 => {
                let by = self.positive(by)?;
                let id = self.b.div(value.id, by.id)?;
                (id, value.most / by.least.unwrap_or(1.0), None)
            }
            1 => (self.b.mul(value.id, by.id)?, value.most * by.most, None),
            _ => (self.b.sub(value.id, by.id)?, value.most + by.most, None),
        };
        let mut made = Known { id, most, least };
        if made.most <= 3.0 && self.rng.below(2) == 0 {
            let (id, most) = (self.b.exp(made.id)?, made.most);
            made = Known {
                id,
                most: most.exp(),
                least: Some((-most).exp()),
            };
        } else if made.most <= 7.0 && self.rng.below(2) == 0 {
            let (id, most) = (self.b.mul(made.id, made.id)?, made.most * made.most);
            made = Known {
                id,
                most,
                least: None,
            };
        }
        if self.rng.below(4) == 0 {
            let condition = self.condition()?;
            let zero = self.b.constant(0.0)?;
            let id = self.b.select(condition, made.id, zero)?;
            made = Known {
                id,
                least: None,
                ..made
            };
        }
        self.squashed_beyond(made, 12.0)
    }

    /// The largest element, the mean, or the mean product with `y`, over an axis.
    fn summed(&mut self, x: Known, y: Known, axis: AxisId) -> Result<Known, BuildError> {
        if !self.axes_of(x.id).contains(axis) {
            return Ok(x);
        }
        let both = self.axes_of(x.id).union(&self.axes_of(y.id));
        let (id, most) = match self.rng.below(3) {
            0 => {
                let id = self.b.reduce(ReduceOp::Max, x.id, [axis])?;
                return Ok(Known { id, ..x });
            }
            1 if self.small(&both) => (self.b.dot(x.id, y.id, [axis])?, x.most * y.most),
            _ => (self.b.reduce(ReduceOp::Sum, x.id, [axis])?, x.most),
        };
        let scale = self.b.constant(1.0 / self.extent(axis) as f64)?;
        let id = self.b.mul(id, scale)?;
        Ok(Known {
            id,
            most,
            least: None,
        })
    }

    fn axes_of(&self, id: NodeId) -> AxisSet {
        self.b.so_far().node(id).axes.clone()
    }

    fn extent(&self, axis: AxisId) -> i64 {
        self.b.so_far().extent(axis) as i64
    }

    fn small(&self, axes: &AxisSet) -> bool {
        let elements = self.b.so_far().elements(axes);
        elements.is_some_and(|n| n <= self.elements)
    }

    fn keep(&mut self, id: NodeId, most: f64, least: Option<f64>) {
        if most <= MAGNITUDE && self.small(&self.axes_of(id)) {
            self.values.push(Known { id, most, least });
        }
    }

    /// The kept values that nobody uses and that are no parameters, oldest first.
    fn ends(&self) -> Vec<Known> {
        let program = self.b.so_far();
        let mut ends: Vec<Known> = Vec::new();
        for known in &self.values {
            let used = program.nodes.iter().any(|n| n.args.contains(&known.id));
            let computed = !program.node(known.id).args.is_empty();
            if !used && computed && ends.iter().all(|e| e.id != known.id) {
                ends.push(*known);
            }
        }
        ends.extend(self.values.last().filter(|_| ends.is_empty()));
        ends
    }

    /// The largest element over all axes but the first; the value itself where it has at most one.
    fn reduced(&mut self, x: Known) -> Result<Known, BuildError> {
        let axes: Vec<AxisId> = self.axes_of(x.id).iter().skip(1).collect();
        if axes.is_empty() {
            return Ok(x);
        }
        let id = self.b.reduce(ReduceOp::Max, x.id, axes)?;
        Ok(Known { id, ..x })
    }

    /// `x / (x² + 1)` where `x` may be large, which is between −1/2 and 1/2.
    fn squashed(&mut self, x: Known) -> Result<Known, BuildError> {
        self.squashed_beyond(x, 4.0)
    }

    fn squashed_beyond(&mut self, x: Known, most: f64) -> Result<Known, BuildError> {
        if x.most <= most {
            return Ok(x);
        }
        let square = self.b.mul(x.id, x.id)?;
        let one = self.b.constant(1.0)?;
        let below = self.b.add(square, one)?;
        Ok(Known {
            id: self.b.div(x.id, below)?,
            most: 0.5,
            least: None,
        })
    }

    /// Shuffled axes, neighbours sometimes grouped.
    fn group(&mut self, mut axes: Vec<AxisId>) -> Vec<Dim> {
        for at in (1..axes.len()).rev() {
            axes.swap(at, self.rng.below(at + 1));
        }
        let mut dims: Vec<Dim> = Vec::new();
        for axis in axes {
            match dims.last_mut() {
                Some(last) if self.rng.below(4) == 0 => last.0.push(axis),
                Some(_) | None => dims.push(Dim(vec![axis])),
            }
        }
        dims
    }

    fn dims(&mut self, most: usize) -> Vec<Dim> {
        let count = self.rng.below(most + 1);
        let mut axes = AxisSet::new();
        for _ in 0..count {
            axes.insert(*self.rng.pick(&self.axes));
        }
        self.group(axes.iter().collect())
    }

    fn any(&mut self) -> Known {
        // Newer values more often, so that programs are deep.
        let count = self.values.len();
        let (x, y) = (self.rng.below(count), self.rng.below(count));
        self.values[x.max(y)]
    }

    fn some_axes(&mut self, of: &AxisSet) -> AxisSet {
        let mut some: AxisSet = of.iter().filter(|_| self.rng.below(2) == 0).collect();
        if some.is_empty() && !of.is_empty() {
            some.insert(*self.rng.pick(of.as_slice()));
        }
        some
    }

    fn points(&self, axes: &AxisSet) -> f64 {
        axes.iter().map(|a| self.extent(a) as f64).product()
    }

    fn step(&mut self) -> Result<(), BuildError> {
        let (x, y) = (self.any(), self.any());
        let both = self.axes_of(x.id).union(&self.axes_of(y.id));
        if !self.small(&both) {
            return Ok(());
        }
        match self.rng.below(13) {
            0 => {
                let value = *self.rng.pick(&[-1.0, 0.0, 0.5, 1.0, 2.0, -0.125, 1e-3]);
                let id = self.b.constant(value)?;
                self.keep(id, value.abs(), (value > 0.0).then_some(value));
            }
            1 => {
                let axis = *self.rng.pick(&self.axes);
                let id = self.b.iota(axis)?;
                self.keep(id, self.extent(axis) as f64, None);
            }
            2 => self.view(x)?,
            3 => {
                let id = self.b.add(x.id, y.id)?;
                let least = x.least.zip(y.least).map(|(x, y)| x + y);
                self.keep(id, x.most + y.most, least);
            }
            4 => {
                let id = self.b.mul(x.id, y.id)?;
                let least = x.least.zip(y.least).map(|(x, y)| x * y);
                self.keep(id, x.most * y.most, least);
            }
            5 => {
                let y = self.positive(y)?;
                let id = self.b.div(x.id, y.id)?;
                let least = x.least.map(|l| l / y.most);
                self.keep(id, x.most / y.least.unwrap_or(1.0), least);
            }
            6 => {
                let id = self.b.max(x.id, y.id)?;
                let least = match (x.least, y.least) {
                    (Some(x), Some(y)) => Some(x.max(y)),
                    (one, other) => one.or(other),
                };
                self.keep(id, x.most.max(y.most), least);
            }
            7 => {
                if x.most <= 3.0 {
                    let id = self.b.exp(x.id)?;
                    self.keep(id, x.most.exp(), Some((-x.most).exp()));
                }
            }
            8 => {
                let x = self.positive(x)?;
                let least = x.least.unwrap_or(1.0);
                let id = self.b.map(MapOp::Log, &[x.id])?;
                self.keep(id, x.most.ln().abs().max(least.ln().abs()), None);
            }
            9 => {
                let x = self.positive(x)?;
                let id = self.b.sqrt(x.id)?;
                self.keep(id, x.most.sqrt(), x.least.map(f64::sqrt));
            }
            10 => {
                let c = self.condition()?;
                if self.small(&both.union(&self.axes_of(c))) {
                    let id = self.b.select(c, x.id, y.id)?;
                    let least = x.least.zip(y.least).map(|(x, y)| x.min(y));
                    self.keep(id, x.most.max(y.most), least);
                }
            }
            11 => {
                let axes = self.some_axes(&self.axes_of(x.id));
                if !axes.is_empty() {
                    let points = self.points(&axes);
                    let op = *self.rng.pick(&[ReduceOp::Sum, ReduceOp::Max]);
                    let (most, least) = match op {
                        ReduceOp::Sum => (x.most * points, x.least.map(|l| l * points)),
                        ReduceOp::Max => (x.most, x.least),
                    };
                    let id = self.b.reduce(op, x.id, axes.iter())?;
                    self.keep(id, most, least);
                }
            }
            _ => {
                let axes = self.some_axes(&both);
                if !axes.is_empty() {
                    let points = self.points(&axes);
                    let least = x.least.zip(y.least).map(|(x, y)| x * y * points);
                    let id = self.b.dot(x.id, y.id, axes.iter())?;
                    self.keep(id, x.most * y.most * points, least);
                }
            }
        }
        Ok(())
    }

    /// A condition that is far from a tie wherever it is not exactly one: an affine function of coordinates. Rounding in
    /// another order of evaluation cannot flip it.
    fn condition(&mut self) -> Result<NodeId, BuildError> {
        let (i, j) = (*self.rng.pick(&self.axes), *self.rng.pick(&self.axes));
        let (i, j) = (self.b.iota(i)?, self.b.iota(j)?);
        let difference = self.b.sub(i, j)?;
        let offset = self.rng.below(3) as f64 - 1.0;
        let offset = self.b.constant(offset)?;
        self.b.add(difference, offset)
    }

    /// The value itself where it is known to be positive and not small, else its square plus one half.
    fn positive(&mut self, x: Known) -> Result<Known, BuildError> {
        if x.least.is_some_and(|l| l >= 0.05) {
            return Ok(x);
        }
        let square = self.b.mul(x.id, x.id)?;
        let half = self.b.constant(0.5)?;
        Ok(Known {
            id: self.b.add(square, half)?,
            most: x.most * x.most + 0.5,
            least: Some(0.5),
        })
    }

    fn view(&mut self, x: Known) -> Result<(), BuildError> {
        let has = self.axes_of(x.id);
        if has.is_empty() {
            return Ok(());
        }
        let source = *self.rng.pick(has.as_slice());
        let mut terms = vec![(*self.rng.pick(&[1, 1, -1, 2]), *self.rng.pick(&self.axes))];
        if self.rng.below(2) == 0 {
            terms.push((*self.rng.pick(&[1, -1, 3]), *self.rng.pick(&self.axes)));
        }
        let offset = match self.rng.below(3) {
            0 => self.extent(source) - 1,
            n => n as i64 - 1,
        };
        let Some(affine) = Affine::new(terms, offset) else {
            return Ok(());
        };
        let last = |a: AxisId| (0, self.extent(a) - 1);
        let inside = affine
            .range(last)
            .is_some_and(|(low, high)| low >= 0 && high < self.extent(source));
        let fill = match (inside, self.rng.below(3)) {
            (true, 0 | 1) => None,
            (true, _) | (false, _) => Some(*self.rng.pick(&[0.0, 1.0, -0.5])),
        };
        let mut map = vec![(source, affine)];
        // Sometimes a second axis, read backwards.
        let second = *self.rng.pick(has.as_slice());
        if second != source && self.rng.below(2) == 0 {
            let backwards = Affine::new([(-1, second)], self.extent(second) - 1);
            map.extend(backwards.map(|b| (second, b)));
        }
        map.sort_by_key(|m| m.0);
        let op = Op::View { map, fill };
        let Ok(axes) = self.b.so_far().infer_axes(&op, &[x.id]) else {
            return Ok(());
        };
        if self.small(&axes) {
            let id = self.b.node(op, &[x.id])?;
            let least = match fill {
                None => x.least,
                Some(fill) => x.least.filter(|_| fill > 0.0).map(|l| l.min(fill)),
            };
            self.keep(id, x.most.max(fill.unwrap_or(0.0).abs()), least);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval;
    use crate::ops::OPS;
    use std::collections::BTreeMap;

    /// Oracle: `Program::validate`, the text, and finiteness.
    #[test]
    fn random_programs_are_valid_finite_round_trip_and_have_every_operation() {
        let (mut operations, mut outputs) = (BTreeMap::new(), BTreeMap::new());
        let mut deep = 0;
        for seed in 0..600 {
            let program = random_program(seed, 4 + seed as usize % 24);
            assert_eq!(program, random_program(seed, 4 + seed as usize % 24));
            assert_eq!(program.validate(), Ok(()), "seed {seed}");
            let text = program.to_string();
            let again: Program = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(again, program, "seed {seed}\n{text}");
            assert_eq!(program.canonical(), program);
            let results = eval(&program, &random_inputs(&program, seed)).expect("small");
            let data = results.iter().flat_map(|r| &r.data);
            assert!(data.clone().all(|v| v.abs() < 1e4), "seed {seed}\n{text}");
            for node in &program.nodes {
                *operations.entry(node.op.kind()).or_insert(0) += 1;
            }
            *outputs.entry(program.outputs.len()).or_insert(0) += 1;
            deep += usize::from(program.nodes.len() > 15);
        }
        for row in &OPS {
            let count = operations.get(&row.kind).copied().unwrap_or(0);
            assert!(count >= 20, "{}: {count}", row.name);
        }
        assert!(outputs.len() == 3 && deep > 50, "{outputs:?} {deep}");
    }

    fn assert_moderate(program: &Program, seed: u64) {
        assert_eq!(program.validate(), Ok(()), "seed {seed}");
        let results = eval(program, &random_inputs(program, seed)).expect("small");
        let mut data = results.iter().flat_map(|r| &r.data);
        assert!(data.all(|v| v.abs() < 1e4), "seed {seed}\n{program}");
    }

    /// Oracle: as above; and reductions follow on one another.
    #[test]
    fn cascades_are_valid_and_finite() {
        let mut followed = 0;
        for seed in 0..100 {
            let program = random_cascade(seed);
            assert_eq!(program, random_cascade(seed));
            assert_moderate(&program, seed);
            let reduces = |op: &Op| matches!(op, Op::Reduce { .. } | Op::Dot { .. });
            let reductions = program.nodes.iter().filter(|n| reduces(&n.op));
            followed += usize::from(reductions.count() > 1);
        }
        assert!(followed > 80, "{followed}");
    }

    /// Oracle: as above.
    #[test]
    fn large_programs_are_large_and_finite() {
        let (mut nodes, mut outputs) = (0, 0);
        for seed in 0..24 {
            let size = 50 + 10 * seed as usize;
            let program = random_large_program(seed, size);
            assert_eq!(program, random_large_program(seed, size));
            assert_moderate(&program, seed);
            nodes = nodes.max(program.nodes.len());
            outputs = outputs.max(program.outputs.len());
        }
        assert!(nodes > 200 && outputs == OUTPUTS, "{nodes} {outputs}");
    }
}

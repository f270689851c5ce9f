//! One choice of extents and tile sizes: the tile program against its expression in the field, and against the program in f64.

use super::evidence::TilingEvidence;
use super::{UNRELATED, wrong};
use crate::coverage::Seen;
use crate::demand::Demand;
use crate::domain::Domain;
use crate::evaluate::{evaluate, evaluate_with};
use crate::field::{Agreement, Element};
use crate::interpret::{SimulateOptions, interpret, interpret_at};
use crate::scalar::{Bounded, Scalar};
use ir::tensor::Tensor;
use ir::{MapOp, NodeId, Op, Program, Reject, TileOp, TileProgram, ValueId};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// The constants up to a magnitude, of both signs, that a program or its tile program compares numbers with: where something changes when
/// a number passes one, numbers on both sides have to be looked at. What is compared with coordinates alone is no such constant.
pub(super) fn thresholds(program: &Program, tile: &TileProgram, most: f64) -> Vec<f64> {
    let mut all = Vec::new();
    for node in &program.nodes {
        for compared in compared_with(&node.op, &node.args) {
            if program.affine_of(*compared).is_none() {
                let parts = |id: &NodeId| {
                    let node = program.node(*id);
                    match &node.op {
                        Op::Constant(c) => Part::Constant(*c),
                        Op::Map(_) => Part::Of(&node.args),
                        Op::Parameter { .. }
                        | Op::Iota(_)
                        | Op::View { .. }
                        | Op::Reduce { .. }
                        | Op::Dot { .. } => Part::Other,
                    }
                };
                constants(compared, &parts, NEAR, &mut all);
            }
        }
    }
    for kernel in &tile.kernels {
        for value in &kernel.values {
            let TileOp::Map(op, args) = &value.op else {
                continue;
            };
            for compared in compared_with(&Op::Map(*op), args) {
                if ir::affine_of(kernel, *compared).is_none() {
                    let parts = |id: &ValueId| match &kernel.value(*id).op {
                        TileOp::Constant(c) => Part::Constant(*c),
                        TileOp::Map(_, args) => Part::Of(args),
                        TileOp::Load { .. }
                        | TileOp::Iota(_)
                        | TileOp::Reduce { .. }
                        | TileOp::Scan { .. }
                        | TileOp::Contract { .. }
                        | TileOp::Phi { .. }
                        | TileOp::Final { .. } => Part::Other,
                    };
                    constants(compared, &parts, NEAR, &mut all);
                }
            }
        }
    }
    let kept = all.into_iter().filter(|c| c.abs() > 1.0 && c.abs() <= most);
    let mut all: Vec<f64> = kept.flat_map(|c| [c, -c]).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// Operations between a comparison and a constant.
const NEAR: usize = 5;

/// The operands of which the sign, or the order, decides.
fn compared_with<'a, T>(op: &Op, args: &'a [T]) -> &'a [T] {
    match op {
        Op::Map(MapOp::Select) => args.get(..1).unwrap_or_default(),
        Op::Map(MapOp::Max) => args,
        Op::Map(_)
        | Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::View { .. }
        | Op::Reduce { .. }
        | Op::Dot { .. } => &[],
    }
}

/// What a value is to whoever looks for constants.
enum Part<'a, T> {
    Constant(f64),
    Of(&'a [T]),
    Other,
}

fn constants<'a, T>(
    of: &'a T,
    parts: &impl Fn(&T) -> Part<'a, T>,
    fuel: usize,
    found: &mut Vec<f64>,
) {
    match parts(of) {
        Part::Constant(c) => found.push(c),
        Part::Of(args) if fuel > 0 => {
            for arg in args {
                constants(arg, parts, fuel - 1, found);
            }
        }
        Part::Of(_) | Part::Other => {}
    }
}

/// The three at one choice of extents.
pub(super) struct Draw {
    /// The domains of the parameters.
    pub(super) domains: Vec<Domain>,
    /// What the tile program is compared with in f64.
    pub(super) program: Program,
    pub(super) expression: Program,
    pub(super) tile: TileProgram,
    /// Whether that is the expression.
    pub(super) with_expression: bool,
    /// Whether nothing says that expression and program are equal at these extents.
    pub(super) unrelated: bool,
}

impl Draw {
    /// Compares in the field and in f64; what was met on the way is added.
    pub(super) fn check(
        &self,
        rng: &mut ChaCha8Rng,
        number: usize,
        evidence: &mut TilingEvidence,
        seen: &mut Seen,
    ) -> Result<(), Reject> {
        let sizes: Vec<u64> = self
            .program
            .parameters()
            .map(|(_, _, _, dims)| self.program.shape(dims).iter().product())
            .collect();
        self.check_exactly(rng, number, &sizes, evidence)?;
        self.check_really(rng, number, &sizes, evidence, seen)
            .map_err(|reject| {
                // Tile program and expression are equal; expression and program need not be at these extents.
                if self.unrelated && matches!(reject, Reject::Wrong(_) | Reject::Fragile(_)) {
                    Reject::Undecided(format!("{UNRELATED}: {reject}"))
                } else {
                    reject
                }
            })?;
        if number % 4 == 2 {
            for alike in [false, true] {
                self.check_steps(rng, &sizes, alike)?;
            }
        }
        evidence.shapes += 1;
        Ok(())
    }

    /// Numbers of very different size from one coordinate to the next: what a loop holds when it has seen a part of them must not overflow
    /// where the expression does not. Or `alike` numbers, far below zero in the first parameter and above it in the others, so that
    /// products and exponents are far below zero too: nothing that a loop starts with may be larger.
    fn check_steps(&self, rng: &mut ChaCha8Rng, sizes: &[u64], alike: bool) -> Result<(), Reject> {
        const STEP: f64 = 1000.0;
        let inputs: Vec<Vec<Bounded>> = sizes
            .iter()
            .zip(&self.domains)
            .enumerate()
            .map(|(parameter, (n, domain))| {
                let mut element = || {
                    let step = match (alike, parameter) {
                        (true, 0) => -1,
                        (true, _) => 1,
                        (false, _) => rng.random_range(-1..=1),
                    };
                    f64::from(step) * STEP + f64::from(rng.random_range(-64..=64)) / 64.0
                };
                (0..*n)
                    .map(|_| Bounded::exact(domain.fold(element())))
                    .collect()
            })
            .collect();
        // What overflows in the expression itself, hidden behind a mask maybe, may overflow in the tile program too.
        let mut overflows = false;
        let want = evaluate_with(&self.expression, &inputs, |_, block| {
            overflows |= block.data.iter().any(|x| x.undefined);
            block
        })
        .map_err(wrong)?;
        if overflows {
            return Ok(());
        }
        let got = interpret(&self.tile, &inputs, SimulateOptions::default()).map_err(wrong)?;
        pairs(&got, &want, |output, at, got, want| {
            let sure = want.value.is_finite() && !want.undefined && !want.ambiguous;
            if sure && !got.value.is_finite() {
                return Err(Reject::Fragile(format!(
                    "on numbers of very different size, element {at} of output {output} is {:e}, the expression gives {:e}",
                    got.value, want.value
                )));
            }
            Ok(())
        })
    }

    /// The program's values by [`ir::eval`], with this crate's error bounds.
    fn reference(
        &self,
        inputs: &[Vec<Bounded>],
        seen: &mut Seen,
    ) -> Result<Vec<Vec<Bounded>>, Reject> {
        let mut bounds = evaluate_with(&self.program, inputs, |node, block| {
            if !self.with_expression {
                seen.condition(&self.program, node, &block.data);
            }
            block
        })
        .map_err(wrong)?;
        let tensors: Vec<Tensor> = self
            .program
            .parameters()
            .zip(inputs)
            .map(|((_, _, _, dims), data)| Tensor {
                shape: self
                    .program
                    .shape(dims)
                    .iter()
                    .map(|n| *n as usize)
                    .collect(),
                data: data.iter().map(|x| x.value).collect(),
            })
            .collect();
        let values = ir::eval(&self.program, &tensors).map_err(|e| Reject::Wrong(e.to_string()))?;
        for (bounds, values) in bounds.iter_mut().zip(values) {
            for (bound, value) in bounds.iter_mut().zip(values.data) {
                bound.value = value;
            }
        }
        Ok(bounds)
    }

    fn check_exactly(
        &self,
        rng: &mut ChaCha8Rng,
        number: usize,
        sizes: &[u64],
        evidence: &mut TilingEvidence,
    ) -> Result<(), Reject> {
        // Every fourth draw has zeros among the inputs, and parameters that are zero.
        let zeros = number % 4 == 3;
        let thresholds = thresholds(&self.program, &self.tile, 1e9);
        // Beside zeros all numbers of a parameter have one sign, so that a zero may be the largest.
        let mut parameter = |count: u64, domain: &Domain| -> Vec<Element> {
            let nothing = zeros && rng.random_ratio(1, 4);
            let sign = if rng.random() { 1.0 } else { -1.0 };
            let scale = if rng.random() { 2.0 } else { 12.0 };
            let range = if zeros { 0.0..scale } else { -scale..scale };
            let mut element = || {
                if nothing || (zeros && rng.random_ratio(1, 6)) {
                    return Element::integer(0);
                }
                let mut real = sign * rng.random_range(range.clone());
                if !thresholds.is_empty() && rng.random_ratio(1, 8) {
                    real += thresholds[rng.random_range(0..thresholds.len())];
                }
                Element::new(rng.random(), rng.random(), domain.fold(real))
            };
            (0..count).map(|_| element()).collect()
        };
        let inputs: Vec<Vec<Element>> = sizes
            .iter()
            .zip(&self.domains)
            .map(|(n, domain)| parameter(*n, domain))
            .collect();
        let want = evaluate(&self.expression, &inputs).map_err(wrong)?;
        let got = interpret(&self.tile, &inputs, SimulateOptions::default()).map_err(wrong)?;
        pairs(&got, &want, |output, at, got, want| {
            match got.agreement(*want) {
                Agreement::Equal => evidence.exact += 1,
                Agreement::Undecided => evidence.exact_undecided += 1,
                Agreement::Different => {
                    return Err(Reject::Wrong(format!(
                        "in the field, element {at} of output {output} differs from the expression"
                    )));
                }
            }
            Ok(())
        })
    }

    fn check_really(
        &self,
        rng: &mut ChaCha8Rng,
        number: usize,
        sizes: &[u64],
        evidence: &mut TilingEvidence,
        seen: &mut Seen,
    ) -> Result<(), Reject> {
        // Small integers with fractions, so that rounding is rare; every third draw is large, every fifth has zeros, where the
        // program itself may be undefined.
        let scale = if number % 3 == 2 { 12.0 } else { 2.0 };
        let zeros = number % 5 == 4;
        let thresholds = thresholds(&self.program, &self.tile, 1e3);
        let mut element = |domain: &Domain| {
            let mut x = f64::from(rng.random_range(-64..=64)) / 64.0 * scale;
            if !thresholds.is_empty() && rng.random_ratio(1, 16) {
                x += thresholds[rng.random_range(0..thresholds.len())];
            }
            let zero = zeros && rng.random_ratio(1, 3);
            Bounded::exact(if zero { 0.0 } else { domain.fold(x) })
        };
        let inputs: Vec<Vec<Bounded>> = sizes
            .iter()
            .zip(&self.domains)
            .map(|(n, domain)| (0..*n).map(|_| element(domain)).collect())
            .collect();
        let want = self.reference(&inputs, seen)?;
        let demand = Demand::whole(&self.tile).map_err(wrong)?;
        let options = SimulateOptions::default();
        let got = interpret_at(&self.tile, &demand, &inputs[..], options, Some(seen));
        let got = got.map_err(wrong)?;
        compare_really(&got, &want, zeros, evidence)
    }
}

/// Compares outputs in f64 with the program's, within the error bounds of both; where the program has `zeros` to divide by, nothing is
/// asked of what it leaves undefined.
pub(super) fn compare_really(
    got: &[Vec<Bounded>],
    want: &[Vec<Bounded>],
    zeros: bool,
    evidence: &mut TilingEvidence,
) -> Result<(), Reject> {
    pairs(got, want, |output, at, got, want| {
        if !want.value.is_finite() && zeros {
            evidence.real_undecided += 1;
            return Ok(());
        }
        let difference = (got.value - want.value).abs();
        let room = got.error + want.error;
        let same = if want.value.is_finite() {
            difference <= room
        } else {
            got.value == want.value || (got.value.is_nan() && want.value.is_nan())
        };
        // Where the program is undefined anything is right; where a bound is none or conditional, what is finite may be.
        let loose = room == f64::INFINITY || got.ambiguous;
        let conditional = want.undefined || want.ambiguous || (loose && got.value.is_finite());
        match (same, conditional) {
            (true, false) => {
                evidence.real += 1;
                if want.value.is_finite() {
                    let relative = difference / want.value.abs().max(1.0);
                    evidence.max_error = evidence.max_error.max(relative);
                }
            }
            (_, true) if want.undefined || room == f64::INFINITY => evidence.real_undecided += 1,
            (true, true) => evidence.real_conditional += 1,
            (false, true) => evidence.real_different += 1,
            (false, false) => {
                let text = format!(
                    "in f64, element {at} of output {output} is {:e}, the program gives {:e}",
                    got.value, want.value
                );
                let overflows = want.value.is_finite() && !got.value.is_finite();
                return Err(if overflows {
                    Reject::Fragile(text)
                } else {
                    Reject::Wrong(text)
                });
            }
        }
        Ok(())
    })
}

/// Visits the elements of two lists of outputs side by side.
fn pairs<S>(
    got: &[Vec<S>],
    want: &[Vec<S>],
    mut visit: impl FnMut(usize, usize, &S, &S) -> Result<(), Reject>,
) -> Result<(), Reject> {
    if got.len() != want.len() {
        let (g, w) = (got.len(), want.len());
        return Err(Reject::Wrong(format!(
            "{g} outputs where the program has {w}"
        )));
    }
    for (output, (got, want)) in got.iter().zip(want).enumerate() {
        if got.len() != want.len() {
            let (g, w) = (got.len(), want.len());
            return Err(Reject::Wrong(format!(
                "output {output} has {g} elements, not {w}"
            )));
        }
        for (at, (g, w)) in got.iter().zip(want).enumerate() {
            visit(output, at, g, w)?;
        }
    }
    Ok(())
}

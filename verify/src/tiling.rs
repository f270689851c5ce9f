//! The check that a tile program computes its program, on small random shapes.
//!
//! Each *draw* picks extents and tile sizes, and compares twice: tile program against expression in the field, exactly;
//! tile program against program in f64, within the running error bounds of both. Extents are small (partial tiles, single
//! tiles and single coordinates all occur), or around the true tile sizes, or around the integer constants in the program, which is
//! where predicates on coordinates change sign; numbers also lie beside the program's other constants. On some draws numbers differ by a
//! thousand from one coordinate to the next: what a loop holds of them must not overflow where the expression does not. What could not be decided is
//! counted and is never a pass.

use crate::domain::{Domain, domains};
use crate::evaluate::{evaluate, evaluate_with};
use crate::field::{Agreement, Element};
use crate::interpret::{SimulateError, SimulateOptions, interpret};
use crate::scalar::{Bounded, Scalar};
use crate::shapes::{Extents, Shapes, Tiles};
use ir::tensor::Tensor;
use ir::{AxisId, Op, Program, Reject, TileProgram};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How much to check.
#[derive(Clone, Copy, Debug)]
pub struct TilingOptions {
    /// How many shapes are tried.
    pub draws: usize,
    /// Where the draws start.
    pub seed: u64,
    /// The most work of one evaluation, in element operations; bounds the time of a draw.
    pub work: u64,
}

impl Default for TilingOptions {
    fn default() -> Self {
        Self {
            draws: 8,
            seed: 0,
            work: 200_000,
        }
    }
}

/// What was compared. Made by [`check_tiling`] alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TilingEvidence {
    /// Shapes on which everything agreed.
    pub shapes: usize,
    /// Whether one of them was the program's own.
    pub full_shape: bool,
    /// Output elements that are equal in the field.
    pub exact: u64,
    /// Output elements on which the field is silent.
    pub exact_undecided: u64,
    /// Output elements within the error bounds in f64.
    pub real: u64,
    /// Output elements that agree within bounds that are conditional: the program is undefined there, or it compares what is equal but
    /// for rounding. Where there are no others, they speak if all of them agree.
    #[serde(default)]
    pub real_conditional: u64,
    /// Output elements that differ where a comparison on the way went within its error.
    #[serde(default)]
    pub real_different: u64,
    /// Output elements whose error bound is infinite, and those where the program is undefined.
    pub real_undecided: u64,
    /// The largest `|tile − program| / max(1, |program|)` in f64.
    pub max_error: f64,
    /// Whether the program leaves the field everywhere (an exponential of an exponential), so that only f64 speaks.
    pub leaves_field: bool,
    /// Where the draws started: with [`draws`](Self::draws) and [`work`](Self::work), all that it takes to do the same again.
    pub seed: u64,
    /// How many shapes were to be tried.
    pub draws: usize,
    /// The most work of one evaluation.
    pub work: u64,
    /// Where the expression is the program at some extents only: what was compared with what.
    #[serde(default)]
    pub by_expression: Option<ByExpression>,
    /// The extents of every shape.
    pub extents: Vec<String>,
    /// The primes of the fields.
    pub primes: Vec<u64>,
}

/// The expression holds extents as numbers that are too large to interpret a tile program at. So the tile program was compared with
/// the expression, at extents at which that is not the program, and the expression with the program, at these extents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByExpression {
    /// The axes that kept their extents where expression and program were compared.
    pub kept: Vec<String>,
    /// At how many choices of the other extents.
    pub shapes: u64,
    /// Output elements that agree within the f64 error bounds.
    pub elements: u64,
}

/// Why nothing can be said of a tile program whose expression is the program at its own extents, or not even there.
const UNRELATED: &str = "the expression holds numbers that are extents of the program, and at none that are small enough the two were seen to be equal";
/// Difference of the largest errors, which are relative already, that another machine's mathematical functions explain.
const OTHER_MACHINE: f64 = 1e-9;

impl TilingEvidence {
    /// The options that give the same evidence again.
    pub fn options(&self) -> TilingOptions {
        TilingOptions {
            draws: self.draws,
            seed: self.seed,
            work: self.work,
        }
    }

    /// Whether anything spoke for the tile program in f64.
    fn is_decided(&self) -> bool {
        self.real > 0 || (self.real_conditional > 0 && self.real_different == 0)
    }

    /// What differs from evidence that was found with the same options, if anything does.
    pub fn differs(&self, other: &Self) -> Option<String> {
        let difference = (self.max_error - other.max_error).abs();
        let alike = Self {
            max_error: self.max_error,
            ..other.clone()
        };
        if *self != alike {
            let facts = |e: &Self| {
                format!(
                    "{} shapes, {} + {} elements in the field, {} + {} + {} + {} in f64",
                    e.shapes,
                    e.exact,
                    e.exact_undecided,
                    e.real,
                    e.real_conditional,
                    e.real_different,
                    e.real_undecided
                )
            };
            let (then, now) = (facts(self), facts(other));
            return Some(if then == now {
                "other shapes or fields".to_owned()
            } else {
                format!("{then} were recorded, {now} were found")
            });
        }
        (difference > OTHER_MACHINE).then(|| {
            format!(
                "a largest error of {:e} was recorded, {:e} was found",
                self.max_error, other.max_error
            )
        })
    }
}

/// Compares a tile program with its program and with the expression that it was built from. The axis tables of the three
/// agree as far as they go.
pub fn check_tiling(
    program: &Program,
    expression: &Program,
    tile: &TileProgram,
    options: &TilingOptions,
) -> Result<TilingEvidence, Reject> {
    let mut evidence = TilingEvidence {
        seed: options.seed,
        draws: options.draws,
        work: options.work,
        primes: vec![crate::field::P, crate::field::Q],
        ..TilingEvidence::default()
    };
    ir::tile_check::validate(tile).map_err(|faults| Reject::Wrong(faults.join("; ")))?;
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut shapes = Shapes::new(program, expression, Some(tile), options.work)?;
    if shapes.fits(&Extents::new(), &Tiles::new(), options.work) {
        let draw = Draw {
            domains: domains(program),
            program: program.clone(),
            expression: expression.clone(),
            tile: tile.clone(),
            unrelated: false,
        };
        draw.check(&mut rng, 0, &mut evidence)?;
        evidence.full_shape = true;
        evidence.extents.push(shapes.shape(&Extents::new()));
    }
    let before = shapes.pinned().clone();
    let agreement = shapes.pin_counted_extents(&mut rng, options.work);
    let unrelated = expression != program && agreement.elements == 0;
    let mut compared = program;
    if *shapes.pinned() != before
        && agreement.elements > 0
        && shapes.draw(&mut rng.clone(), 0, options.work).is_none()
    {
        shapes = shapes.unpinned(before);
        compared = expression;
        evidence.by_expression = Some(ByExpression {
            kept: agreement.kept,
            shapes: agreement.shapes,
            elements: agreement.elements,
        });
    }
    // Where views pin the extents to so much that nothing fits, one shape of more work is better than none.
    for more in [1, 8, 64, 512] {
        let draws = if more == 1 { options.draws } else { 1 };
        for number in 0..draws {
            let most = options.work.saturating_mul(more);
            let Some((extents, tiles)) = shapes.draw(&mut rng, number, most) else {
                continue;
            };
            let draw = Draw {
                domains: domains(program),
                program: program_at(compared, &extents),
                expression: program_at(expression, &extents),
                tile: tile
                    .resized(&extents_of(tile, &extents), |k, a| {
                        tiles.get(&(k, a)).copied()
                    })
                    .map_err(|e| shapes.explain(Reject::Wrong(e), &extents))?,
                unrelated,
            };
            draw.check(&mut rng, number + 1, &mut evidence)
                .map_err(|reject| shapes.explain(reject, &extents))?;
            evidence.extents.push(shapes.shape(&extents));
        }
        if evidence.is_decided() {
            break;
        }
    }
    if !evidence.is_decided() {
        return Err(Reject::Wrong(
            "no output element could be decided on any small shape".into(),
        ));
    }
    evidence.leaves_field = evidence.exact == 0;
    Ok(evidence)
}

/// The three at one choice of extents.
struct Draw {
    /// The domains of the parameters.
    domains: Vec<Domain>,
    /// What the tile program is compared with in f64.
    program: Program,
    expression: Program,
    tile: TileProgram,
    /// Whether nothing says that expression and program are equal at these extents.
    unrelated: bool,
}

impl Draw {
    fn check(
        &self,
        rng: &mut ChaCha8Rng,
        number: usize,
        evidence: &mut TilingEvidence,
    ) -> Result<(), Reject> {
        let sizes: Vec<u64> = self
            .program
            .parameters()
            .map(|(_, _, _, dims)| self.program.shape(dims).iter().product())
            .collect();
        self.check_exactly(rng, number, &sizes, evidence)?;
        self.check_really(rng, number, &sizes, evidence)
            .map_err(|reject| {
                // Tile program and expression are equal; expression and program need not be at these extents.
                if self.unrelated && matches!(reject, Reject::Wrong(_) | Reject::Fragile(_)) {
                    Reject::Undecided(format!("{UNRELATED}: {reject}"))
                } else {
                    reject
                }
            })?;
        if number % 4 == 2 {
            self.check_steps(rng, &sizes)?;
        }
        evidence.shapes += 1;
        Ok(())
    }

    /// The constants of the program up to a magnitude, of both signs: where something changes when a number passes one, numbers on both
    /// sides have to be looked at.
    fn thresholds(&self, most: f64) -> Vec<f64> {
        let constants = self.program.nodes.iter().filter_map(|n| match n.op {
            Op::Constant(c) if c.abs() > 1.0 && c.abs() <= most => Some(c),
            Op::Constant(_)
            | Op::Parameter { .. }
            | Op::Iota(_)
            | Op::View { .. }
            | Op::Map(_)
            | Op::Reduce { .. }
            | Op::Dot { .. } => None,
        });
        constants.flat_map(|c| [c, -c]).collect()
    }

    /// Numbers of very different size from one coordinate to the next: what a loop holds when it has seen a part of them must not overflow
    /// where the expression does not.
    fn check_steps(&self, rng: &mut ChaCha8Rng, sizes: &[u64]) -> Result<(), Reject> {
        const STEP: f64 = 1000.0;
        let inputs: Vec<Vec<Bounded>> = sizes
            .iter()
            .zip(&self.domains)
            .map(|(n, domain)| {
                let mut element = || {
                    let step = f64::from(rng.random_range(-1..=1)) * STEP;
                    step + f64::from(rng.random_range(-64..=64)) / 64.0
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
    fn reference(&self, inputs: &[Vec<Bounded>]) -> Result<Vec<Vec<Bounded>>, Reject> {
        let mut bounds = evaluate(&self.program, inputs).map_err(wrong)?;
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
        let thresholds = self.thresholds(1e9);
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
    ) -> Result<(), Reject> {
        // Small integers with fractions, so that rounding is rare; every third draw is large, every fifth has zeros, where the
        // program itself may be undefined.
        let scale = if number % 3 == 2 { 12.0 } else { 2.0 };
        let zeros = number % 5 == 4;
        let thresholds = self.thresholds(1e3);
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
        let want = self.reference(&inputs)?;
        let got = interpret(&self.tile, &inputs, SimulateOptions::default()).map_err(wrong)?;
        pairs(&got, &want, |output, at, got, want| {
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
                (true, true) if room < f64::INFINITY => evidence.real_conditional += 1,
                (false, true) if room < f64::INFINITY && !want.undefined => {
                    evidence.real_different += 1;
                }
                (_, true) => evidence.real_undecided += 1,
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

fn wrong(error: SimulateError) -> Reject {
    Reject::Wrong(error.to_string())
}

/// The program with other extents; axes that `extents` lacks keep theirs.
pub(crate) fn program_at(program: &Program, extents: &BTreeMap<AxisId, u64>) -> Program {
    let mut changed = program.clone();
    for (i, axis) in changed.axes.iter_mut().enumerate() {
        if let Some(extent) = extents.get(&AxisId(i as u32)) {
            axis.extent = *extent;
        }
    }
    changed
}

/// The extents of the axes that the tile program has.
fn extents_of(tile: &TileProgram, extents: &Extents) -> Extents {
    extents
        .iter()
        .filter(|(axis, _)| axis.index() < tile.axes.len())
        .map(|(axis, extent)| (*axis, *extent))
        .collect()
}

#[cfg(test)]
mod tests {
    // Oracle: tile programs written by hand are right, and each small fault in them makes them wrong unless argued.
    use super::*;
    use crate::fixtures;
    use crate::mutants::mutants;

    fn fixture_pairs() -> Vec<(&'static str, Program, TileProgram)> {
        let e = [6, 11, 3, 2];
        vec![
            (
                "online",
                fixtures::attention(e, None),
                fixtures::online_attention(e, None),
            ),
            (
                "causal",
                fixtures::attention(e, Some(0)),
                fixtures::online_attention(e, Some(0)),
            ),
            (
                "offset",
                fixtures::attention([3, 11, 3, 2], Some(8)),
                fixtures::online_attention([3, 11, 3, 2], Some(8)),
            ),
            (
                "split",
                fixtures::attention(e, None),
                fixtures::split_attention(e, 4),
            ),
            (
                "rows",
                fixtures::row_softmax(6, 11),
                fixtures::two_pass_softmax(6, 11),
            ),
            (
                "team",
                fixtures::row_softmax(6, 11),
                fixtures::team_softmax(6, 11),
            ),
        ]
    }

    fn check(program: &Program, tile: &TileProgram, seed: u64) -> Result<TilingEvidence, Reject> {
        let options = TilingOptions {
            seed,
            ..TilingOptions::default()
        };
        check_tiling(program, program, tile, &options)
    }

    #[test]
    fn correct_tilings_pass() {
        for (name, program, tile) in fixture_pairs() {
            for seed in 0..20 {
                let evidence =
                    check(&program, &tile, seed).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert!(
                    evidence.full_shape && evidence.shapes == 9,
                    "{name}: {evidence:?}"
                );
                assert!(
                    evidence.exact > 20 && evidence.real > 20,
                    "{name}: {evidence:?}"
                );
                assert!(
                    evidence.exact > 3 * evidence.exact_undecided,
                    "{name}: {evidence:?}"
                );
                assert!(evidence.max_error < 1e-10, "{name}: {evidence:?}");
            }
        }
    }

    /// The tile programs of a program's first candidates are made elsewhere: this is the program itself, kernel by kernel, by hand.
    fn top_gate(strict: f64) -> (Program, TileProgram) {
        let program = "program gate\naxis t = 5, e = 4\nx = parameter f32 [t, e]\ng = exp(x) / sum(exp(x); e)\n\
                       return f32 [t, e] select(g - max(g; e), g, 0)\n";
        let program: Program = program.parse().unwrap_or_else(|e| panic!("{e}"));
        let tile = format!(
            "tile gate\naxis t = 5, e = 4\nbuffer x = parameter 0 f32 [t, e]\nbuffer out0 = output 0 f32 [t, e]\n\
             kernel grid(t: 2) whole(e: 4) {{\n  in = load x[t, e]\n  p = exp(in)\n  s = reduce_sum(p; e)\n  g = div(p, s)\n  \
             m = reduce_max(g; e)\n  k = -1\n  d = mul(m, k)\n  c = add(g, d)\n  n = {strict}\n  c2 = add(c, n)\n  z = 0\n  \
             o = select(c2, g, z)\n  store out0 = o\n}}\n"
        );
        let tile = tile.parse().unwrap_or_else(|e| panic!("{e}"));
        (program, tile)
    }

    #[test]
    fn what_is_equal_to_its_threshold_is_decided_by_agreement() {
        let (program, tile) = top_gate(0.0);
        let evidence = check(&program, &tile, 0).unwrap_or_else(|e| panic!("{e}"));
        assert!(
            evidence.real_conditional > 20 && evidence.real_different == 0,
            "{evidence:?}"
        );
        // An order of the sum that makes the largest differ from the maximum by rounding alone.
        let (program, tile) = top_gate(-1e-17);
        assert!(check(&program, &tile, 0).is_err());
        let (program, tile) = top_gate(-0.01);
        assert!(check(&program, &tile, 0).is_err());
    }

    #[test]
    fn where_the_program_is_undefined_anything_is_right() {
        let wide = |text: &str| -> Program {
            format!("program p\naxis t = 7\nx = parameter f32 [t]\ny = parameter f32 [t]\nreturn f32 [t] {text}\n")
                .parse()
                .unwrap_or_else(|e| panic!("{e}"))
        };
        let tile = |body: &str| -> TileProgram {
            format!(
                "tile p\naxis t = 7\nbuffer x = parameter 0 f32 [t]\nbuffer y = parameter 1 f32 [t]\n\
                 buffer out0 = output 0 f32 [t]\nkernel grid(t: 2) {{\n  a = load x[t]\n  b = load y[t]\n{body}  store out0 = r\n}}\n"
            )
            .parse()
            .unwrap_or_else(|e| panic!("{e}"))
        };
        // The root of a product of two, of which one is negative as often as not, and a maximum that hides it.
        let program = wide("max(sqrt(x * y + x * y), 0)");
        let right =
            "  p = mul(a, b)\n  k = 2\n  q = mul(p, k)\n  s = sqrt(q)\n  z = 0\n  r = max(s, z)\n";
        let evidence = check(&program, &tile(right), 0).unwrap_or_else(|e| panic!("{e}"));
        assert!(evidence.real > 20, "{evidence:?}");
        assert!(check(&program, &tile(&right.replace("k = 2", "k = 3")), 0).is_err());
        // An overflow on the way is no fault of who avoids it.
        let program = wide("exp(exp(x) * 9) * 0 + y");
        assert!(
            check(
                &program,
                &tile("  z = 0\n  c = mul(a, z)\n  r = add(c, b)\n"),
                0
            )
            .is_ok()
        );
        assert!(
            check(
                &program,
                &tile("  z = 0\n  c = mul(b, z)\n  r = add(c, a)\n"),
                0
            )
            .is_err()
        );
    }

    /// Faults that change nothing over the reals, and why.
    const EQUIVALENT: &[(&str, &str)] = &[
        ("online: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("online: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        ("causal: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("causal: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        (
            "causal: kernel 0: `v14`: only operand 0 of Add",
            "the operand dropped is 0",
        ),
        ("causal: kernel 0: loop 1: high bound 0 dropped", MASKED),
        ("offset: kernel 0: `v1`: starts at 0 for -inf", PROVISIONAL),
        ("offset: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("offset: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        ("offset: kernel 0: loop 1: high bound 0 dropped", MASKED),
        ("split: kernel 0: `v1`: starts at 0 for -inf", PROVISIONAL),
        ("split: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("split: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        ("rows: kernel 0: `v1`: starts at 1 for 0", FORGOTTEN),
    ];
    const PROVISIONAL: &str = "Σ e^(s−m)·v / Σ e^(s−m) is the same for every finite m: this fault only risks overflow, which the kernel check sees";
    const FORGOTTEN: &str = "the first rescale multiplies the start by e^(−∞ − m) = 0";
    const MASKED: &str = "tiles beyond the bound are masked: they add e^(−∞) = 0";

    #[test]
    fn faults_are_caught() {
        let mut tried = 0;
        let mut survivors = Vec::new();
        for (name, program, tile) in fixture_pairs() {
            for (what, mutant) in mutants(&tile) {
                tried += 1;
                let argued = EQUIVALENT
                    .iter()
                    .any(|(w, _)| *w == format!("{name}: {what}"));
                if check(&program, &mutant, 1).is_ok() != argued {
                    survivors.push(format!("{name}: {what}"));
                }
            }
        }
        assert!(survivors.is_empty(), "of {tried}: {survivors:#?}");
        assert!(tried > 150, "{tried}");
    }
}

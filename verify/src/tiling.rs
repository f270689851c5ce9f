//! The check that a tile program computes its program, on small random shapes.
//!
//! Each *draw* picks extents and tile sizes, and compares twice: tile program against expression in the field, exactly;
//! tile program against program in f64, within the running error bounds of both. Extents are small (partial tiles, single
//! tiles and single coordinates all occur), or around the true tile sizes, or around the integer constants in the program, which is
//! where predicates on coordinates change sign. What could not be decided is counted and is never a pass.

use crate::domain::{Domain, domains};
use crate::evaluate::evaluate;
use crate::field::{Agreement, Element};
use crate::interpret::{SimulateError, SimulateOptions, interpret};
use crate::scalar::{Bounded, Scalar};
use ir::tensor::Tensor;
use ir::{Affine, AxisId, MapOp, Node, Op, Program, Reject, Role, Statement, TileOp, TileProgram};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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
    /// The extents of every shape.
    pub extents: Vec<String>,
    /// The primes of the fields.
    pub primes: Vec<u64>,
}

/// The most summed axes of which any two are tried together.
const PAIRED: usize = 12;

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
    let mut shapes = Shapes::new(program, expression, tile, options.work)?;
    if shapes.fits(&Extents::new(), &Tiles::new(), options.work) {
        let draw = Draw {
            program: program.clone(),
            expression: expression.clone(),
            tile: tile.clone(),
        };
        draw.check(&mut rng, 0, &mut evidence)?;
        evidence.full_shape = true;
        evidence.extents.push(shapes.shape(&Extents::new()));
    }
    shapes.pin_counted_extents(program, &mut rng, options.work);
    // Where views pin the extents to so much that nothing fits, one shape of more work is better than none.
    for more in [1, 8, 64, 512] {
        let draws = if more == 1 { options.draws } else { 1 };
        for number in 0..draws {
            let most = options.work.saturating_mul(more);
            let Some((extents, tiles)) = shapes.draw(&mut rng, number, most) else {
                continue;
            };
            let draw = Draw {
                program: program_at(program, &extents),
                expression: program_at(expression, &extents),
                tile: tile
                    .resized(&extents_of(tile, &extents), |k, a| {
                        tiles.get(&(k, a)).copied()
                    })
                    .map_err(|e| shapes.explain(Reject::Wrong(e), &extents))?,
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
    program: Program,
    expression: Program,
    tile: TileProgram,
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
        self.check_really(rng, number, &sizes, evidence)?;
        evidence.shapes += 1;
        Ok(())
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
        // Every fourth draw has zeros among the inputs.
        let zeros = number % 4 == 3;
        let mut element = || {
            if zeros && rng.random_ratio(1, 6) {
                Element::integer(0)
            } else {
                Element::new(rng.random(), rng.random())
            }
        };
        let inputs: Vec<Vec<Element>> = sizes
            .iter()
            .map(|n| (0..*n).map(|_| element()).collect())
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
        let mut element = |domain: &Domain| {
            let x = f64::from(rng.random_range(-64..=64)) / 64.0 * scale;
            let zero = zeros && rng.random_ratio(1, 3);
            Bounded::exact(if zero { 0.0 } else { domain.fold(x) })
        };
        let inputs: Vec<Vec<Bounded>> = sizes
            .iter()
            .zip(&domains(&self.program))
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
                    return Err(Reject::Wrong(format!(
                        "in f64, element {at} of output {output} is {:e}, the program gives {:e}",
                        got.value, want.value
                    )));
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

/// The indices of a view, and those of the views that it is a view of, in its own axes.
fn indices(program: &Program, node: &Node) -> Vec<(AxisId, Affine)> {
    let Op::View { map, .. } = &node.op else {
        return Vec::new();
    };
    let by = |a: AxisId| map.iter().find(|m| m.0 == a).map(|m| m.1.clone());
    let inner = node.args.iter().flat_map(|a| {
        let inner = indices(program, &program.nodes[a.index()]).into_iter();
        inner.filter_map(|(from, to)| Some((from, to.substitute(by)?)))
    });
    map.iter().cloned().chain(inner).collect()
}

/// Extents at which program and expression have to agree before a choice of those that vary is believed.
const AGREEMENTS: usize = 24;

/// What may be varied about the extents.
struct Shapes<'a> {
    expression: &'a Program,
    tile: &'a TileProgram,
    /// The true extent of each axis of the longest table.
    truth: Vec<u64>,
    /// The axis whose extent each axis shares: identity views tie axes together.
    leader: Vec<usize>,
    /// Axes whose extents views pin.
    pinned: BTreeSet<usize>,
    /// What views without fill need: the extent of the axis is above every value of the index.
    reached: Vec<(AxisId, Affine)>,
    /// What a draw may cost, [`TilingOptions::work`].
    usual: u64,
    /// Magnitudes of integer constants beside which predicates change.
    constants: Vec<u64>,
    /// Axes whose coordinates are used as numbers.
    counted: BTreeSet<usize>,
}

type Extents = BTreeMap<AxisId, u64>;
type Tiles = BTreeMap<(usize, AxisId), u64>;

impl<'a> Shapes<'a> {
    fn new(
        program: &'a Program,
        expression: &'a Program,
        tile: &'a TileProgram,
        usual: u64,
    ) -> Result<Self, Reject> {
        let truth: Vec<u64> = tile.axes.iter().map(|a| a.extent).collect();
        let mut longest = truth;
        for axes in [&program.axes, &expression.axes] {
            for (i, axis) in axes.iter().enumerate() {
                match longest.get(i) {
                    Some(extent) if *extent != axis.extent => {
                        return Err(Reject::Wrong(format!(
                            "axis `{}` has extent {} in the program and {extent} in the tile program",
                            axis.name, axis.extent
                        )));
                    }
                    Some(_) => {}
                    None => longest.push(axis.extent),
                }
            }
        }
        let mut shapes = Self {
            expression,
            tile,
            leader: (0..longest.len()).collect(),
            truth: longest,
            pinned: BTreeSet::new(),
            reached: Vec::new(),
            usual,
            constants: Vec::new(),
            counted: BTreeSet::new(),
        };
        for whole in [program, expression] {
            for node in &whole.nodes {
                let of_parameter = node
                    .args
                    .first()
                    .is_some_and(|a| matches!(whole.nodes[a.index()].op, Op::Parameter { .. }));
                shapes.note(node, of_parameter);
                for (from, to) in indices(whole, node) {
                    shapes.note_inside(from, to);
                }
            }
        }
        for kernel in &tile.kernels {
            for value in &kernel.values {
                match &value.op {
                    TileOp::Constant(c) => shapes.note_constant(*c),
                    // An axis under another name: it runs over the buffer's own.
                    TileOp::Load { buffer, index, .. } => {
                        for (of_buffer, at) in tile.buffer(*buffer).axes().zip(index) {
                            if at.as_axis().is_some_and(|a| shapes.is_made(a)) {
                                shapes.note_view(of_buffer, at, true);
                            }
                        }
                    }
                    TileOp::Iota(_)
                    | TileOp::Map(..)
                    | TileOp::Reduce { .. }
                    | TileOp::Contract { .. }
                    | TileOp::Phi { .. }
                    | TileOp::Final { .. } => {}
                }
            }
        }
        for made in expression.axes.len()..tile.axes.len() {
            if let Some(original) = shapes.copied(made) {
                shapes.tie(original, made);
            }
        }
        shapes.pin_untied(tile);
        shapes.constants.sort_unstable();
        shapes.constants.dedup();
        Ok(shapes)
    }

    /// Pins the axes that the tiling made and that run entirely inside a tile or a loop, where no load says under which name the program
    /// has them: with them every axis that may be meant.
    fn pin_untied(&mut self, tile: &TileProgram) {
        for made in self.expression.axes.len()..tile.axes.len() {
            let axis = AxisId(made as u32);
            let in_grid = (tile.kernels.iter())
                .filter_map(|k| k.axes.get(&axis))
                .any(|a| a.role == Role::Grid);
            if !in_grid && self.leader(made) == made {
                let truth = self.truth[made];
                let alike = (0..self.truth.len()).filter(|i| self.truth[*i] == truth);
                self.pinned.extend(alike.collect::<Vec<_>>());
            }
        }
    }

    /// Pins the axes whose extents the expression holds as numbers: `Σ_j x = |j|·x` is true at one extent only. Where the two
    /// differ on tiny extents, the summed axes that must keep theirs are looked for: none, one, two where they are few, all.
    fn pin_counted_extents(&mut self, program: &Program, rng: &mut ChaCha8Rng, most: u64) {
        if *program == *self.expression {
            return;
        }
        let mut summed = BTreeSet::new();
        for node in &program.nodes {
            if let Op::Reduce { axes, .. } | Op::Dot { axes } = &node.op {
                summed.extend(axes.iter().map(AxisId::index));
            }
        }
        let summed: Vec<usize> = summed.into_iter().collect();
        let mut choices: Vec<Vec<usize>> = vec![Vec::new()];
        choices.extend(summed.iter().map(|a| vec![*a]));
        let pairs = if summed.len() <= PAIRED {
            &summed[..]
        } else {
            &[]
        };
        for (n, a) in pairs.iter().enumerate() {
            choices.extend(summed[..n].iter().map(|b| vec![*a, *b]));
        }
        choices.push(summed);
        // Extents that are numbers may be large: where nothing agrees, a few choices get more work.
        for (least, most, tries) in [
            (0, most, usize::MAX),
            (most + 1, most.saturating_mul(64), 12),
        ] {
            let mut left = tries;
            for choice in &choices {
                let kept: BTreeSet<usize> = choice.iter().map(|a| self.leader(*a)).collect();
                // Many times: an extent of one hides what another one's shows. Bounds may hold for all but the least extents.
                let mut tried = false;
                let agree = (0..AGREEMENTS).all(|time| {
                    let largest = match time {
                        0 => 1,
                        _ if time % 3 == 0 => 7,
                        _ => 4,
                    };
                    let extents = self.tiny(&kept, largest, rng);
                    let fits = (least..=most).contains(&self.work(&extents));
                    tried |= fits;
                    if !fits {
                        // Larger ones are looked at where they cost no more.
                        return largest > 4;
                    }
                    // Where there is one element of everything, one draw says little.
                    let draws = if time == 0 { 8 } else { 2 };
                    (0..draws).all(|_| self.agree(program, &extents, rng))
                });
                if agree {
                    self.pinned.extend(choice);
                    return;
                }
                left -= usize::from(tried);
                if left == 0 {
                    break;
                }
            }
        }
    }

    /// Extents of which all but those that are kept or pinned are small, every third of them one.
    fn tiny(&self, kept: &BTreeSet<usize>, largest: u64, rng: &mut ChaCha8Rng) -> Extents {
        let mut tiny: Vec<u64> = Vec::with_capacity(self.truth.len());
        for (i, truth) in self.truth.iter().enumerate() {
            let kept = kept.contains(&self.leader(i)) || self.tied_to_pinned(i);
            tiny.push(match self.leader(i) {
                _ if kept => *truth,
                leader if leader < i => tiny[leader],
                _ if rng.random_ratio(1, 3) => 1,
                _ => rng.random_range(2.min(largest).min(*truth)..=largest.min(*truth)),
            });
        }
        self.reach(&mut tiny);
        (0u32..).map(AxisId).zip(tiny).collect()
    }

    /// Whether program and expression agree in f64 at some extents.
    fn agree(&self, program: &Program, extents: &Extents, rng: &mut ChaCha8Rng) -> bool {
        let (program, expression) = (
            program_at(program, extents),
            program_at(self.expression, extents),
        );
        let inputs: Vec<Vec<Bounded>> = program
            .parameters()
            .zip(domains(&program))
            .map(|((_, _, _, dims), domain)| {
                let count: u64 = program.shape(dims).iter().product();
                let mut element = || f64::from(rng.random_range(-64..=64)) / 32.0;
                (0..count)
                    .map(|_| Bounded::exact(domain.fold(element())))
                    .collect()
            })
            .collect();
        let (Ok(x), Ok(y)) = (evaluate(&program, &inputs), evaluate(&expression, &inputs)) else {
            return false;
        };
        let same = |(x, y): (&Bounded, &Bounded)| {
            let close = (x.value - y.value).abs() <= x.error + y.error;
            let silent = x.undefined || x.ambiguous || y.ambiguous;
            close || silent || x.value == y.value || !x.value.is_finite()
        };
        (x.iter().flatten()).zip(y.iter().flatten()).all(same)
    }

    /// The axis that a made axis repeats: a value under a second name of a reduced axis has axes `j_1`, `j_2`, … for `j`. A
    /// tie too many costs variety and nothing else.
    fn copied(&self, made: usize) -> Option<usize> {
        let axis = &self.tile.axes[made];
        let (base, number) = axis.name.rsplit_once('_')?;
        number.parse::<u32>().ok()?;
        let same = |a: &ir::Axis| a.name == base && a.extent == axis.extent;
        self.tile.axes[..made].iter().position(same)
    }

    /// Makes two axes have one extent.
    fn tie(&mut self, one: usize, other: usize) {
        let (x, y) = (self.leader(one), self.leader(other));
        self.leader[x.max(y)] = x.min(y);
    }

    fn note(&mut self, node: &Node, of_parameter: bool) {
        match &node.op {
            Op::Constant(c) => self.note_constant(*c),
            Op::Iota(axis) => {
                self.counted.insert(axis.index());
            }
            Op::View { map, fill } => {
                for (from, to) in map {
                    self.note_view(*from, to, fill.is_some());
                    // Where no load fills, a predicate does, and the source's extent is one of its constants.
                    let looks_back = to.terms() == [(1, *from)] && to.offset <= 0;
                    if fill.is_some() && !of_parameter && !looks_back {
                        self.pin(*from, to);
                    }
                }
            }
            Op::Parameter { .. } | Op::Map(_) | Op::Reduce { .. } | Op::Dot { .. } => {}
        }
    }

    fn note_constant(&mut self, c: f64) {
        if c.fract() == 0.0 && (8.0..1e6).contains(&c.abs()) {
            self.constants.push(c.abs() as u64);
        }
    }

    fn note_view(&mut self, from: AxisId, to: &Affine, filled: bool) {
        let extent = |a: AxisId| self.truth.get(a.index()).copied();
        match to.as_axis() {
            Some(axis) if extent(axis) == extent(from) => {
                self.tie(from.index(), axis.index());
            }
            Some(_) | None if filled => {}
            Some(_) | None if self.rearranges(from, to) => self.pin(from, to),
            Some(_) | None => self.reached.push((from, to.clone())),
        }
    }

    /// A view that never reaches past its argument may lose its fill, and be one with another: it has to stay inside.
    fn note_inside(&mut self, from: AxisId, to: Affine) {
        let extent = |a: AxisId| self.truth.get(a.index()).map_or(1, |n| *n as i64);
        let inside = to
            .range(|a| (0, extent(a) - 1))
            .is_some_and(|(low, high)| low >= 0 && high < extent(from));
        if inside && to.as_axis().is_none() {
            self.reached.push((from, to));
        }
    }

    /// Keeps the extent that is a constant of some predicate; those of the index too where the view is a re-arrangement,
    /// over which a reduction may have been moved.
    fn pin(&mut self, from: AxisId, to: &Affine) {
        self.pinned.insert(from.index());
        if self.rearranges(from, to) {
            self.pinned.extend(to.axes().iter().map(AxisId::index));
        }
    }

    /// Whether the index may take every value below the extent, each once.
    fn rearranges(&self, from: AxisId, to: &Affine) -> bool {
        let extent = |a: AxisId| self.truth.get(a.index()).copied().unwrap_or(1);
        let count = (to.axes().iter()).fold(1u64, |n, a| n.saturating_mul(extent(a)));
        let range = to.range(|a| (0, extent(a) as i64 - 1));
        let onto = range.is_none_or(|(low, high)| low <= 0 && high >= extent(from) as i64 - 1);
        onto && count <= extent(from)
    }

    /// Raises extents until every view without fill stays inside its argument. At the true extents they all do, and what
    /// is needed falls with the extents of the index, so no extent rises above its true one.
    fn reach(&self, chosen: &mut [u64]) {
        let mut changed = true;
        while changed {
            changed = false;
            for (from, to) in &self.reached {
                let last = |a: AxisId| (0, chosen.get(a.index()).map_or(0, |n| *n as i64 - 1));
                let high = to.range(last).map_or(i64::MAX, |r| r.1);
                let need = (high.max(0) as u64).saturating_add(1);
                let leader = self.leader(from.index());
                for (i, extent) in chosen.iter_mut().enumerate() {
                    let need = need.min(self.truth[i]);
                    if self.leader(i) == leader && *extent < need {
                        *extent = need;
                        changed = true;
                    }
                }
            }
        }
    }

    fn leader(&self, mut axis: usize) -> usize {
        while let Some(next) = self.leader.get(axis).copied().filter(|n| *n != axis) {
            axis = next;
        }
        axis
    }

    /// Extents and tile sizes whose work fits, or none after many attempts.
    fn draw(&self, rng: &mut ChaCha8Rng, number: usize, most: u64) -> Option<(Extents, Tiles)> {
        // Draws alternate between tiny tiles and the true ones.
        let true_tiles = number % 4 == 1;
        // Where the usual work was too little for anything, as little as possible.
        let from = if most > self.usual { 24 } else { 0 };
        for attempt in from..28u64 {
            let largest = match attempt {
                0..16 => 7,
                16..24 => 3,
                _ => 2,
            };
            let mut chosen: Vec<u64> = Vec::with_capacity(self.truth.len());
            for (i, truth) in self.truth.iter().enumerate() {
                let extent = if self.tied_to_pinned(i) {
                    *truth
                } else {
                    match self.leader(i) {
                        l if l < i => chosen[l],
                        _ => self.extent(rng, i, largest, true_tiles && attempt < 16),
                    }
                };
                chosen.push(extent);
            }
            self.reach(&mut chosen);
            let extents: Extents = (0u32..).map(AxisId).zip(chosen).collect();
            let mut tiles = Tiles::new();
            if !true_tiles {
                for (k, kernel) in self.tile.kernels.iter().enumerate() {
                    for axis in kernel.axes.keys() {
                        tiles.insert((k, *axis), rng.random_range(1..=4));
                    }
                }
                // Parts of a split axis keep their tile of one.
                for (k, kernel) in self.tile.kernels.iter().enumerate() {
                    for (axis, how) in &kernel.axes {
                        if how.tile == 1 && self.is_made(*axis) {
                            tiles.insert((k, *axis), 1);
                        }
                    }
                }
            }
            if self.fits(&extents, &tiles, most) {
                return Some((extents, tiles));
            }
        }
        None
    }

    fn is_made(&self, axis: AxisId) -> bool {
        axis.index() >= self.expression.axes.len()
    }

    fn tied_to_pinned(&self, axis: usize) -> bool {
        let leader = self.leader(axis);
        self.pinned.iter().any(|p| self.leader(*p) == leader)
    }

    fn extent(&self, rng: &mut impl Rng, axis: usize, largest: u64, true_tiles: bool) -> u64 {
        let truth = self.truth[axis];
        let small = rng.random_range(1..=largest);
        let mut extent = small;
        if true_tiles {
            let id = AxisId(axis as u32);
            let tile = self
                .tile
                .kernels
                .iter()
                .filter_map(|k| k.axes.get(&id))
                .map(|a| a.tile)
                .max()
                .unwrap_or(1);
            if tile < truth && rng.random_ratio(1, 2) {
                extent = (tile + small).saturating_sub(2).max(1);
            }
        }
        if self.counted.contains(&axis) && !self.constants.is_empty() && rng.random_ratio(1, 2) {
            let near = self.constants[rng.random_range(0..self.constants.len())];
            extent = (near + small).saturating_sub(2).max(1);
        }
        extent.min(truth)
    }

    /// Whether evaluating the expression and interpreting the tile program are at most this much work. A tile program may
    /// compute things again and again, so it gets a multiple.
    fn fits(&self, extents: &Extents, tiles: &Tiles, most: u64) -> bool {
        self.work(extents) <= most && self.tile_work(extents, tiles) <= most.saturating_mul(4)
    }

    /// Element operations of interpreting the tile program, where each statement costs a few at least.
    fn tile_work(&self, extents: &Extents, tiles: &Tiles) -> u64 {
        const STATEMENT: u64 = 16;
        let extent = |a: AxisId| {
            let truth = self.truth.get(a.index()).copied().unwrap_or(1);
            extents.get(&a).copied().unwrap_or(truth)
        };
        let mut sum = 0u64;
        for (k, kernel) in self.tile.kernels.iter().enumerate() {
            let tile = |a: AxisId| match kernel.axes.get(&a) {
                Some(how) if how.role != Role::Whole => {
                    let tile = tiles.get(&(k, a)).copied().unwrap_or(how.tile);
                    tile.clamp(1, extent(a))
                }
                Some(_) | None => extent(a),
            };
            let trips = |a: AxisId| extent(a).div_ceil(tile(a));
            let grid = kernel.axes.iter().filter(|(_, t)| t.role == Role::Grid);
            let blocks = grid.fold(1u64, |n, (a, _)| n.saturating_mul(trips(*a)));
            let mut stack: Vec<(&[Statement], u64)> = vec![(&kernel.body, blocks)];
            while let Some((body, times)) = stack.pop() {
                for statement in body {
                    let over = match statement {
                        Statement::Loop(l) => {
                            stack.push((&l.body, times.saturating_mul(trips(l.axis))));
                            continue;
                        }
                        Statement::Let(v) => {
                            let value = kernel.value(*v);
                            match &value.op {
                                TileOp::Reduce { axes, .. } | TileOp::Contract { axes, .. } => {
                                    value.axes.union(axes)
                                }
                                TileOp::Load { .. }
                                | TileOp::Constant(_)
                                | TileOp::Iota(_)
                                | TileOp::Map(..)
                                | TileOp::Phi { .. }
                                | TileOp::Final { .. } => value.axes.clone(),
                            }
                        }
                        Statement::Store { value, .. } => kernel.value(*value).axes.clone(),
                    };
                    let elements = over
                        .iter()
                        .fold(STATEMENT, |n, a| n.saturating_mul(tile(a)))
                        / STATEMENT;
                    let one = elements.saturating_add(STATEMENT);
                    sum = sum.saturating_add(one.saturating_mul(times));
                }
            }
        }
        sum
    }

    /// Element operations of evaluating the expression, with what is dear weighted.
    fn work(&self, extents: &Extents) -> u64 {
        let extent = |a: AxisId| {
            let truth = self.truth.get(a.index()).copied().unwrap_or(1);
            extents.get(&a).copied().unwrap_or(truth)
        };
        let mut sum = 0u64;
        for node in &self.expression.nodes {
            let mut over = node.axes.clone();
            let weight = match &node.op {
                Op::Reduce { axes, .. } | Op::Dot { axes } => {
                    over = over.union(axes);
                    1
                }
                Op::Map(MapOp::Exp | MapOp::Div | MapOp::Sqrt) => 20,
                Op::Map(MapOp::Add | MapOp::Mul | MapOp::Max | MapOp::Log | MapOp::Select) => 1,
                Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } => 1,
            };
            let points = over.iter().fold(1u64, |n, a| n.saturating_mul(extent(a)));
            sum = sum.saturating_add(points.saturating_mul(weight));
        }
        sum
    }

    fn explain(&self, reject: Reject, extents: &Extents) -> Reject {
        let Reject::Wrong(what) = reject else {
            return reject;
        };
        Reject::Wrong(format!("{what} (at {})", self.shape(extents)))
    }

    /// The extents of the tile program's axes, in words.
    fn shape(&self, extents: &Extents) -> String {
        let all: Vec<String> = self
            .tile
            .axes
            .iter()
            .enumerate()
            .map(|(i, a)| {
                let extent = extents.get(&AxisId(i as u32)).unwrap_or(&a.extent);
                format!("{} = {extent}", a.name)
            })
            .collect();
        all.join(", ")
    }
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
        ("online: kernel 0: `v1`: starts at 0 for -inf", PROVISIONAL),
        ("online: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("online: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        ("online: kernel 0: `v8`: Sum for Max", PROVISIONAL),
        ("online: kernel 0: `v9`: only operand 1 of Max", PROVISIONAL),
        ("causal: kernel 0: `v1`: starts at 0 for -inf", PROVISIONAL),
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
        ("offset: kernel 0: `v17`: Sum for Max", PROVISIONAL),
        ("offset: kernel 0: loop 1: high bound 0 dropped", MASKED),
        ("split: kernel 0: `v1`: starts at 0 for -inf", PROVISIONAL),
        ("split: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("split: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        ("split: kernel 0: `v8`: Sum for Max", PROVISIONAL),
        ("split: kernel 1: `v2`: 0 for -1", PROVISIONAL),
        ("split: kernel 1: `v3`: Add for Mul", PROVISIONAL),
        ("split: kernel 1: `v3`: only operand 1 of Mul", PROVISIONAL),
        ("split: kernel 1: `v4`: only operand 0 of Add", PROVISIONAL),
        ("rows: kernel 0: `v0`: starts at 0 for -inf", PROVISIONAL),
        ("rows: kernel 0: `v1`: starts at 1 for 0", FORGOTTEN),
        ("rows: kernel 0: `v3`: Sum for Max", PROVISIONAL),
        ("rows: kernel 0: `v4`: only operand 1 of Max", PROVISIONAL),
        ("team: kernel 0: `v1`: Sum for Max", PROVISIONAL),
        ("team: kernel 0: `v2`: 0 for -1", PROVISIONAL),
        ("team: kernel 0: `v3`: Add for Mul", PROVISIONAL),
        ("team: kernel 0: `v3`: only operand 1 of Mul", PROVISIONAL),
        ("team: kernel 0: `v4`: only operand 0 of Add", PROVISIONAL),
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

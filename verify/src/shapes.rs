//! At which extents and tile sizes a tile program, or an expression alone, is compared with its program: what views, constants and
//! numbers made of coordinates leave free is drawn small.

use crate::demand::{kernel_work, weight};
use crate::domain::domains;
use crate::evaluate::evaluate;
use crate::scalar::Bounded;
use ir::{AxisId, AxisSet, Node, Op, Program, Quotient, Reject, Role, TileOp, TileProgram};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The indices of a view, and those of the views that it is a view of, in its own axes.
fn indices(program: &Program, node: &Node) -> Vec<(AxisId, Quotient)> {
    let Op::View { map, .. } = &node.op else {
        return Vec::new();
    };
    let entry = |a: AxisId| map.iter().find(|m| m.0 == a).map(|m| &m.1);
    // An index of what is itself divided is none that is known.
    let known = |a: AxisId| entry(a).is_none_or(|to| to.affine().is_some());
    let by = |a: AxisId| entry(a)?.affine().cloned();
    let inner = node.args.iter().flat_map(|a| {
        let inner = indices(program, &program.nodes[a.index()]).into_iter();
        let inner = inner.filter(|(_, to)| to.axes().iter().all(known));
        inner.filter_map(|(from, to)| Some((from, to.substitute(by)?)))
    });
    map.iter().cloned().chain(inner).collect()
}

/// The most summed axes of which any two are tried together.
const PAIRED: usize = 12;
/// Extents at which program and expression have to agree before a choice of those that vary is believed: the largest of each. The
/// last is one at which they have to be compared.
#[rustfmt::skip]
const AGREEMENT_SIZES: &[u64] = &[1, 4, 4, 7, 4, 4, 7, 4, 4, 7, 4, 4, 7, 4, 4, 7, 4, 4, 7, 4, 4, 7, 4, 4];
/// The same where one takes long.
const FEW_AGREEMENT_SIZES: &[u64] = &[1, 3, 2, 3, 2, 2];

/// The most elements of all values of a program that is evaluated: below two gigabytes.
const HELD: u64 = 1 << 26;

/// Shapes of which each is compared before the next is drawn; from then on so many draws are compared side by side, of so much work.
const ALONE: u64 = 2;
const TOGETHER: usize = 16;
const TOGETHER_WORK: u64 = 1 << 22;

/// Program and expression differ.
struct Different;

/// Program and expression at some extents, with numbers for their parameters.
struct Pair {
    program: Program,
    expression: Program,
    inputs: Vec<Vec<Bounded>>,
}

impl Pair {
    /// How many output elements agree in f64, without a doubt; none where any differ.
    fn agree(&self) -> Option<u64> {
        let x = evaluate(&self.program, &self.inputs).ok()?;
        let y = evaluate(&self.expression, &self.inputs).ok()?;
        let mut certain = 0;
        for (x, y) in x.iter().flatten().zip(y.iter().flatten()) {
            let close = (x.value - y.value).abs() <= x.error + y.error;
            let silent = x.undefined || x.ambiguous || y.ambiguous;
            if !(close || silent || x.value == y.value || !x.value.is_finite()) {
                return None;
            }
            certain += u64::from(close && !silent && (x.error + y.error).is_finite());
        }
        Some(certain)
    }
}

/// What was seen of program and expression at extents at which they have to be equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// The axes that had to keep their extents.
    pub(crate) kept: Vec<String>,
    /// Whether numbers that count elements counted those of the small extents.
    pub(crate) recounted: bool,
    pub(crate) shapes: u64,
    /// Output elements within the error bounds, without a doubt.
    pub(crate) elements: u64,
}

/// What may be varied about the extents.
#[derive(Clone)]
pub(crate) struct Shapes<'a> {
    program: &'a Program,
    expression: &'a Program,
    /// None where only the expression is looked at.
    tile: Option<&'a TileProgram>,
    /// The true extent of each axis of the longest table.
    truth: Vec<u64>,
    /// The axis whose extent each axis shares: identity views tie axes together.
    leader: Vec<usize>,
    /// Axes that keep their extents, whatever views say.
    pinned: BTreeSet<usize>,
    /// Axes that views would have keep theirs: in predicates they may be constants.
    by_views: BTreeSet<usize>,
    /// What views without fill need: the extent of the axis is above every value of the index.
    reached: Vec<(AxisId, Quotient)>,
    /// What a draw may cost, [`TilingOptions::work`].
    usual: u64,
    /// Magnitudes of integer constants beside which predicates change.
    constants: Vec<u64>,
    /// Axes whose coordinates are used as numbers.
    counted: BTreeSet<usize>,
    /// Whether numbers that count elements count those of the extents at hand; see [`recounted`].
    recounts: bool,
}

pub(crate) type Extents = BTreeMap<AxisId, u64>;
pub(crate) type Tiles = BTreeMap<(usize, AxisId), u64>;

/// The program with other extents; axes that `extents` lacks keep theirs.
pub(crate) fn program_at(program: &Program, extents: &Extents) -> Program {
    let mut changed = program.clone();
    for (i, axis) in changed.axes.iter_mut().enumerate() {
        if let Some(extent) = extents.get(&AxisId(i as u32)) {
            axis.extent = *extent;
        }
    }
    changed
}

/// The program at small extents, where numbers that are as many as the elements of some reductions, one over that, or one less, become
/// what is left of these elements. Whether that is right is seen by who compares.
pub(crate) fn recounted(program: &Program, mut small: Program) -> Program {
    // The elements of each reduction, of two together, and of each axis: true and small.
    let mut counts: Vec<(f64, f64)> = Vec::new();
    let whole = |axes: &AxisSet| {
        let of = |p: &Program| axes.iter().map(|a| p.extent(a) as f64).product::<f64>();
        (of(program), of(&small))
    };
    let mut single = BTreeSet::new();
    for node in &program.nodes {
        if let Op::Reduce { axes, .. } | Op::Dot { axes } = &node.op {
            counts.push(whole(axes));
            single.extend(axes.iter());
        }
    }
    let pairs = counts.clone();
    counts.extend(single.iter().map(|a| {
        let extent = |p: &Program| p.extent(*a) as f64;
        (extent(program), extent(&small))
    }));
    for (n, one) in pairs.iter().enumerate() {
        let products = pairs[..=n].iter();
        counts.extend(products.map(|other| (one.0 * other.0, one.1 * other.1)));
    }
    let near = |x: f64, y: f64| (x - y).abs() <= 1e-9 * y.abs();
    let less = |&(truth, small): &(f64, f64)| (truth - 1.0, small - 1.0);
    let recount = |c: f64| {
        let found = counts.iter().copied().chain(counts.iter().map(less));
        let mut found = found.filter(|(truth, small)| *truth > 1.0 && *small >= 1.0);
        found.find_map(|(truth, small)| {
            if near(c.abs(), truth) {
                Some(small.copysign(c))
            } else if near(1.0 / c.abs(), truth) {
                Some((1.0 / small).copysign(c))
            } else {
                None
            }
        })
    };
    for node in &mut small.nodes {
        if let Op::Constant(c) = &mut node.op
            && let Some(count) = recount(*c)
        {
            *c = count;
        }
    }
    small
}

impl<'a> Shapes<'a> {
    pub(crate) fn new(
        program: &'a Program,
        expression: &'a Program,
        tile: Option<&'a TileProgram>,
        usual: u64,
    ) -> Result<Self, Reject> {
        let own = tile.into_iter().flat_map(|tile| tile.collapsed.keys());
        if let Some(axis) = own.min().and_then(|a| expression.axes.get(a.index())) {
            return Err(Reject::Wrong(format!(
                "axis `{}` of the program is collapsed in the tile program",
                axis.name
            )));
        }
        let axes = tile.map_or(&expression.axes, |tile| &tile.axes);
        let truth: Vec<u64> = axes.iter().map(|a| a.extent).collect();
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
            program,
            expression,
            tile,
            leader: (0..longest.len()).collect(),
            truth: longest,
            pinned: BTreeSet::new(),
            by_views: BTreeSet::new(),
            reached: Vec::new(),
            usual,
            constants: Vec::new(),
            counted: BTreeSet::new(),
            recounts: false,
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
        if let Some(tile) = tile {
            shapes.note_tile(tile);
        }
        shapes.constants.sort_unstable();
        shapes.constants.dedup();
        Ok(shapes)
    }

    /// What the tile program's loads and made axes say.
    fn note_tile(&mut self, tile: &TileProgram) {
        for kernel in &tile.kernels {
            for value in &kernel.values {
                match &value.op {
                    TileOp::Constant(c) => self.note_constant(*c),
                    // An axis under another name: it runs over the buffer's own.
                    TileOp::Load { buffer, index, .. } => {
                        let mut own = tile.buffer(*buffer).axes();
                        for (along, at) in tile.axes_loaded(*buffer, index).iter().zip(index) {
                            let members = tile.members(*buffer, *along);
                            for (member, of_buffer) in members.iter().zip(own.by_ref()) {
                                match members.len() {
                                    1 => self.note_view(of_buffer, at, true),
                                    _ => self.tie(of_buffer.index(), member.index()),
                                }
                            }
                        }
                    }
                    TileOp::Iota(_)
                    | TileOp::Map(..)
                    | TileOp::Reduce { .. }
                    | TileOp::Scan { .. }
                    | TileOp::Contract { .. }
                    | TileOp::Phi { .. }
                    | TileOp::Final { .. } => {}
                }
            }
        }
        for made in self.expression.axes.len()..tile.axes.len() {
            if let Some(original) = self.copied(tile, made) {
                self.tie(original, made);
            }
        }
        self.pin_untied(tile);
    }

    /// Pins the axes that the tiling made and that run entirely inside a tile or a loop, where no load says under which name the program
    /// has them: with them every axis that may be meant.
    fn pin_untied(&mut self, tile: &TileProgram) {
        let all = (0u32..).map(AxisId).take(tile.axes.len());
        let made = all.skip(self.expression.axes.len());
        for axis in made.filter(|a| !tile.collapsed.contains_key(a)) {
            let made = axis.index();
            let mut used = tile.kernels.iter().filter_map(|k| k.axes.get(&axis));
            // Of some kernels of a tile program there may be none that has it.
            let is_within = used.clone().next().is_some() && !used.any(|a| a.role == Role::Grid);
            if is_within && self.leader(made) == made {
                let truth = self.truth[made];
                let alike = (0..self.truth.len()).filter(|i| self.truth[*i] == truth);
                self.pinned.extend(alike.collect::<Vec<_>>());
            }
        }
    }

    /// Pins the axes whose extents the expression holds as numbers: `Σ_j x = |j|·x` is true at one extent only. Where the two
    /// differ on tiny extents, the summed axes that must keep theirs are looked for: none, one, two where they are few, those of one sum, all.
    pub(crate) fn pin_counted_extents(
        &mut self,
        rng: &mut ChaCha8Rng,
        most: u64,
        left: &mut u64,
    ) -> Agreement {
        let program = self.program;
        if *program == *self.expression {
            return Agreement::default();
        }
        let together: BTreeSet<Vec<usize>> = program
            .nodes
            .iter()
            .filter_map(|node| match &node.op {
                Op::Reduce { axes, .. } | Op::Dot { axes } => {
                    Some(axes.iter().map(AxisId::index).collect())
                }
                Op::Parameter { .. }
                | Op::Constant(_)
                | Op::Iota(_)
                | Op::View { .. }
                | Op::Map(_) => None,
            })
            .collect();
        let summed: BTreeSet<usize> = together.iter().flatten().copied().collect();
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
        let least = if pairs.is_empty() { 2 } else { 3 };
        let others = |axes: &Vec<usize>| axes.len() >= least && *axes != summed;
        choices.extend(together.into_iter().filter(others));
        choices.push(summed);
        // Extents that are numbers may be large: where nothing agrees, what was not refuted gets more work, in fewer places.
        for (most, tries, sizes) in [
            (most, usize::MAX, AGREEMENT_SIZES),
            (most.saturating_mul(64), 12, FEW_AGREEMENT_SIZES),
        ] {
            let mut refuted = 0;
            let mut open = Vec::new();
            for choice in choices {
                if refuted == tries {
                    break;
                }
                let kept: BTreeSet<usize> = choice.iter().map(|a| self.leader(*a)).collect();
                match self.agreement(&kept, sizes, most, left, rng) {
                    Ok(Some(agreement)) => {
                        self.pinned.extend(choice);
                        return Agreement {
                            kept: self.named(&kept),
                            ..agreement
                        };
                    }
                    Ok(None) => open.push(choice),
                    Err(Different) => refuted += 1,
                }
            }
            choices = open;
        }
        Agreement::default()
    }

    /// Whether program and expression agree at extents that are small but for those that are kept; none where these are too much
    /// work.
    fn agreement(
        &self,
        kept: &BTreeSet<usize>,
        sizes: &[u64],
        most: u64,
        left: &mut u64,
        rng: &mut ChaCha8Rng,
    ) -> Result<Option<Agreement>, Different> {
        let mut found = Agreement {
            recounted: self.recounts,
            ..Agreement::default()
        };
        let mut drawn = Vec::new();
        // Of those that differ the first ends it, and what was drawn behind that was not.
        let mut compare =
            |drawn: &mut Vec<(Pair, ChaCha8Rng, u64)>, rng: &mut ChaCha8Rng, left: &mut u64| {
                let certain: Vec<Option<u64>> = drawn.par_iter().map(|d| d.0.agree()).collect();
                for (certain, (_, then, was_left)) in certain.into_iter().zip(drawn.drain(..)) {
                    match certain {
                        Some(certain) => found.elements += certain,
                        None => {
                            (*rng, *left) = (then, was_left);
                            return Err(Different);
                        }
                    }
                }
                Ok(())
            };
        let mut shapes = 0;
        // Many times: an extent of one hides what another one's shows. Bounds may hold for all but the least extents.
        for largest in sizes {
            let extents = self.tiny(kept, *largest, rng);
            let work = self.work(&extents);
            // Larger ones are looked at where they cost no more.
            if work > most && *largest > sizes[sizes.len() - 1] {
                continue;
            }
            // Where there is one element of everything, one draw says little.
            let draws = if *largest == 1 { 8 } else { 2 };
            // Of both, each time.
            let all = work.saturating_mul(2 * draws);
            if work > most || all > *left {
                compare(&mut drawn, rng, left)?;
                return Ok(None);
            }
            *left -= all;
            for _ in 0..draws {
                drawn.push((self.pair(&extents, rng), rng.clone(), *left));
            }
            shapes += 1;
            // What differs mostly does so at once.
            let much = work.saturating_mul(drawn.len() as u64) >= TOGETHER_WORK;
            if shapes <= ALONE || drawn.len() >= TOGETHER || much {
                compare(&mut drawn, rng, left)?;
            }
        }
        compare(&mut drawn, rng, left)?;
        found.shapes = shapes;
        Ok(Some(found))
    }

    /// The axes with their extents, in words.
    fn named(&self, axes: &BTreeSet<usize>) -> Vec<String> {
        let name = |a: &usize| self.expression.axes.get(*a);
        let named = axes.iter().filter_map(name);
        named
            .map(|a| format!("{} = {}", a.name, a.extent))
            .collect()
    }

    /// Lets all extents vary again that [`pin_counted_extents`](Self::pin_counted_extents) has pinned: for tile programs that are
    /// compared with their expressions alone.
    pub(crate) fn unpinned(&self, before: BTreeSet<usize>) -> Self {
        Self {
            pinned: before,
            ..self.clone()
        }
    }

    /// The same, but that extents vary which views would have kept, and their names, if there are any. A tile program that holds one of them as a
    /// constant mostly is another program at other extents; what it compares coordinates with is drawn around where there is work enough, and what is
    /// not met there is met nowhere.
    pub(crate) fn without_views(&self) -> Option<(Self, Vec<String>)> {
        if self.by_views.is_empty() {
            return None;
        }
        let values = self.kernels().flat_map(|k| &k.values);
        let counts = values.filter_map(|v| match v.op {
            TileOp::Iota(axis) => Some(axis.index()),
            TileOp::Load { .. }
            | TileOp::Constant(_)
            | TileOp::Map(..)
            | TileOp::Reduce { .. }
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => None,
        });
        let free = Self {
            by_views: BTreeSet::new(),
            counted: self.counted.iter().copied().chain(counts).collect(),
            ..self.clone()
        };
        Some((free, self.named(&self.by_views)))
    }

    /// The same, but that numbers of program and expression that count elements count those of the extents at which the two are compared.
    pub(crate) fn recounting(self) -> Self {
        Self {
            recounts: true,
            ..self
        }
    }

    /// The axes that keep their extents, whatever views say.
    pub(crate) fn pinned(&self) -> &BTreeSet<usize> {
        &self.pinned
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

    /// Extents that are `size` but for those that are kept or pinned.
    pub(crate) fn small(&self, kept: &BTreeSet<usize>, size: u64) -> Extents {
        let kept: BTreeSet<usize> = kept.iter().map(|a| self.leader(*a)).collect();
        let mut small: Vec<u64> = (0..self.truth.len())
            .map(|i| {
                if kept.contains(&self.leader(i)) || self.tied_to_pinned(i) {
                    self.truth[i]
                } else {
                    size.min(self.truth[i])
                }
            })
            .collect();
        self.reach(&mut small);
        (0u32..).map(AxisId).zip(small).collect()
    }

    /// How many output elements of program and expression agree in f64 at some extents, without a doubt; none where any differ.
    pub(crate) fn agree(&self, extents: &Extents, rng: &mut ChaCha8Rng) -> Option<u64> {
        self.pair(extents, rng).agree()
    }

    /// Program and expression at some extents, and numbers for them.
    fn pair(&self, extents: &Extents, rng: &mut ChaCha8Rng) -> Pair {
        let at = |whole: &Program| {
            let small = program_at(whole, extents);
            match self.recounts {
                true => recounted(whole, small),
                false => small,
            }
        };
        let (program, expression) = (at(self.program), at(self.expression));
        let inputs = program
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
        Pair {
            program,
            expression,
            inputs,
        }
    }

    /// The axis that a made axis repeats: a value under a second name of a reduced axis has axes `j_1`, `j_2`, … for `j`. A
    /// tie too many costs variety and nothing else.
    fn copied(&self, tile: &TileProgram, made: usize) -> Option<usize> {
        let axis = &tile.axes[made];
        let (base, number) = axis.name.rsplit_once('_')?;
        number.parse::<u32>().ok()?;
        let same = |a: &ir::Axis| a.name == base && a.extent == axis.extent;
        tile.axes[..made].iter().position(same)
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
                    let looks_back = (to.affine())
                        .is_some_and(|to| to.terms() == [(1, *from)] && to.offset <= 0);
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

    fn note_view(&mut self, from: AxisId, to: &Quotient, filled: bool) {
        let extent = |a: AxisId| self.truth.get(a.index()).copied();
        match to.as_axis() {
            Some(axis) if extent(axis) == extent(from) => {
                self.tie(from.index(), axis.index());
            }
            Some(_) | None if filled => {}
            Some(_) | None => {
                if self.rearranges(from, to) {
                    self.pin(from, to);
                }
                self.reached.push((from, to.clone()));
            }
        }
    }

    /// A view that never reaches past its argument may lose its fill, and be one with another: it has to stay inside.
    fn note_inside(&mut self, from: AxisId, to: Quotient) {
        let extent = |a: AxisId| self.truth.get(a.index()).map_or(1, |n| *n as i64);
        let inside = to
            .range(|a| (0, extent(a) - 1))
            .is_some_and(|(low, high)| low >= 0 && high < extent(from));
        // Axes of one extent are tied.
        if inside && to.as_axis().is_none_or(|a| extent(a) != extent(from)) {
            self.reached.push((from, to));
        }
    }

    /// Keeps the extent that is a constant of some predicate; those of the index too where the view is a re-arrangement,
    /// over which a reduction may have been moved.
    fn pin(&mut self, from: AxisId, to: &Quotient) {
        self.by_views.insert(from.index());
        if self.rearranges(from, to) {
            self.by_views.extend(to.axes().iter().map(AxisId::index));
        }
    }

    /// Whether the index may take every value below the extent, each once.
    fn rearranges(&self, from: AxisId, to: &Quotient) -> bool {
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
        for (axis, members) in self.collapsed() {
            let extents = members.iter().map(|m| chosen[m.index()]);
            chosen[axis.index()] = extents.fold(1, u64::saturating_mul);
        }
    }

    /// The axes that stand for several others, and which.
    fn collapsed(&self) -> impl Iterator<Item = (&'a AxisId, &'a Vec<AxisId>)> {
        self.tile.into_iter().flat_map(|tile| &tile.collapsed)
    }

    /// The first of the axes that share an extent with one.
    pub(crate) fn leader(&self, mut axis: usize) -> usize {
        while let Some(next) = self.leader.get(axis).copied().filter(|n| *n != axis) {
            axis = next;
        }
        axis
    }

    /// Extents and tile sizes whose work fits, or none after many attempts.
    pub(crate) fn draw(
        &self,
        rng: &mut ChaCha8Rng,
        number: usize,
        most: u64,
    ) -> Option<(Extents, Tiles)> {
        // Draws alternate between tiny tiles and the true ones.
        let true_tiles = number % 4 == 1;
        // Where the usual work was too little for anything, as little as possible.
        let from = if most > self.usual { 24 } else { 0 };
        for attempt in from..28u64 {
            let largest = match attempt {
                0..16 => 7,
                16..24 => 3,
                24..27 => 2,
                // What cannot be small is enough by itself.
                _ => 1,
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
            // Small tiles compute more again and again than true ones.
            if !true_tiles && attempt < 26 {
                for (k, kernel) in self.kernels().enumerate() {
                    for axis in kernel.axes.keys() {
                        tiles.insert((k, *axis), rng.random_range(1..=4));
                    }
                }
                // Parts of a split axis keep their tile of one, and axes along which a bound reads an element, or an iteration what was carried to it.
                for (k, kernel) in self.kernels().enumerate() {
                    let read = kernel.entries().into_iter().flat_map(|e| &e.axes);
                    let read: AxisSet = read.copied().chain(kernel.stepped().iter()).collect();
                    for (axis, how) in &kernel.axes {
                        if read.contains(*axis) || (how.tile == 1 && self.is_made(*axis)) {
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

    fn kernels(&self) -> impl Iterator<Item = &'a ir::Kernel> {
        self.tile.into_iter().flat_map(|tile| &tile.kernels)
    }

    fn is_made(&self, axis: AxisId) -> bool {
        axis.index() >= self.expression.axes.len()
    }

    /// Whether it shares its extent with one that keeps its own.
    pub(crate) fn tied_to_pinned(&self, axis: usize) -> bool {
        let leader = self.leader(axis);
        let mut kept = self.pinned.union(&self.by_views);
        kept.any(|p| self.leader(*p) == leader)
    }

    fn extent(&self, rng: &mut impl Rng, axis: usize, largest: u64, true_tiles: bool) -> u64 {
        let truth = self.truth[axis];
        let small = rng.random_range(1..=largest);
        let mut extent = small;
        if true_tiles {
            let id = AxisId(axis as u32);
            // Tiles of a collapsed axis end within what it stands for too.
            let within = self.tile.into_iter().flat_map(|tile| tile.standing_for(id));
            let steps: BTreeMap<AxisId, u64> = within.chain([(id, 1)]).collect();
            let tile = self
                .kernels()
                .flat_map(|k| k.axes.iter())
                .filter_map(|(a, how)| Some(how.tile.div_ceil(*steps.get(a)?)))
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

    /// Whether evaluating program and expression and interpreting the tile program are at most this much work. A tile program may
    /// compute things again and again, so it gets a multiple.
    pub(crate) fn fits(&self, extents: &Extents, tiles: &Tiles, most: u64) -> bool {
        self.work(extents) <= most && self.tile_work(extents, tiles) <= most.saturating_mul(4)
    }

    /// Element operations of interpreting the tile program.
    fn tile_work(&self, extents: &Extents, tiles: &Tiles) -> u64 {
        let extent = |a: AxisId| {
            let truth = self.truth.get(a.index()).copied().unwrap_or(1);
            extents.get(&a).copied().unwrap_or(truth)
        };
        let kernels = self.kernels().enumerate().map(|(k, kernel)| {
            let tile = |a: AxisId| match kernel.axes.get(&a) {
                Some(how) if how.role != Role::Whole => {
                    let tile = tiles.get(&(k, a)).copied().unwrap_or(how.tile);
                    tile.clamp(1, extent(a))
                }
                Some(_) | None => extent(a),
            };
            kernel_work(kernel, extent, |a| extent(a).div_ceil(tile(a)))
        });
        kernels.fold(0, u64::saturating_add)
    }

    /// Element operations of evaluating the program or the expression, whichever is more, with what is dear weighted; no number is as
    /// large where their values are too many to hold.
    pub(crate) fn work(&self, extents: &Extents) -> u64 {
        let extent = |a: AxisId| {
            let truth = self.truth.get(a.index()).copied().unwrap_or(1);
            extents.get(&a).copied().unwrap_or(truth)
        };
        let points = |over: &AxisSet| over.iter().fold(1u64, |n, a| n.saturating_mul(extent(a)));
        let of = |whole: &Program| {
            let (mut sum, mut held) = (0u64, 0u64);
            for node in &whole.nodes {
                let over = match &node.op {
                    Op::Reduce { axes, .. } | Op::Dot { axes } => node.axes.union(axes),
                    Op::Map(_)
                    | Op::Parameter { .. }
                    | Op::Constant(_)
                    | Op::Iota(_)
                    | Op::View { .. } => node.axes.clone(),
                };
                held = held.saturating_add(points(&node.axes));
                sum = sum.saturating_add(points(&over).saturating_mul(weight(&node.op)));
            }
            if held > HELD { u64::MAX } else { sum }
        };
        of(self.program).max(of(self.expression))
    }

    pub(crate) fn explain(&self, reject: Reject, extents: &Extents) -> Reject {
        let shape = self.shape(extents);
        if let Reject::Wrong(what) = &reject {
            Reject::Wrong(format!("{what} (at {shape})"))
        } else if let Reject::Fragile(what) = &reject {
            Reject::Fragile(format!("{what} (at {shape})"))
        } else {
            reject
        }
    }

    /// The extents of the axes, in words.
    pub(crate) fn shape(&self, extents: &Extents) -> String {
        let axes = self.tile.map_or(&self.expression.axes, |tile| &tile.axes);
        let all: Vec<String> = axes
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

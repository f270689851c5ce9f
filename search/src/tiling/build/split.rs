//! A split axis: several grid points each reduce a part of it, and a second kernel combines the parts.
//!
//! With the correction `c` of a reduction `A` for the provisional values of `R`, parts `s` give
//!
//! ```text
//! R = reduce_s(R_s)        A = reduce_s(A_s · c(R_s, R))
//! ```
//!
//! so the second kernel is the first one's expression with each reduction over the axis replaced by one over the parts. Where the
//! grid points of the first combine the parts as a block group, the same follows in the first kernel itself.

use super::fuse::Fused;
use super::inner::{Arena, Bits, Inner, InnerId, Lowering};
use super::place::{Part, Passes, Placer, correct_with};
use super::reach;
use super::{
    Assignment, AxisUse, Corrections, KernelOutline, Split, check_axes, unused_axis, unused_buffer,
};
use crate::corrections::Term;
use ir::{
    Affine, Axis, AxisId, AxisSet, AxisTile, Buffer, BufferId, BufferRole, Dim, Dtype, MapOp,
    Quotient, ReduceOp, Reject, Role, TileProgram,
};
use std::collections::{BTreeMap, BTreeSet};

/// Appends the kernels of a split: two, or one with block groups.
pub(super) fn split(
    split: Split,
    outline: &KernelOutline<'_>,
    assignment: &Assignment,
    tile: &mut TileProgram,
    corrections: &mut Corrections,
) -> Result<(), Reject> {
    let roots: Vec<InnerId> = outline.stores.iter().map(|s| s.1).collect();
    let mut placer = Placer::new(outline.lowering.clone(), &assignment.axes, corrections);
    placer.open(&roots);
    let passes = placer.passes(&roots)?;
    let over: Vec<InnerId> = passes
        .reductions
        .iter()
        .filter(|r| placer.unbound(r.0).contains(&split.axis))
        .map(|r| r.0)
        .collect();
    let parted = parted(
        split, assignment, &tile.axes, &placer, &passes, &over, &roots,
    )?;
    // A block group hands parts to each other; a second kernel reads what each grid point stored once.
    for r in over.iter().filter(|_| !split.block_group) {
        for (g, t) in &assignment.axes {
            let used = outline.uses.contains_key(g);
            if used && t.role == Role::Grid && !placer.lowering.arena.axes(*r).contains(*g) {
                return Err(Reject::Assignment(format!(
                    "split: a partial result does not vary over the grid axis {}",
                    tile.axes[g.index()].name
                )));
            }
        }
    }
    for p in &parted {
        let name = format!("{}_part", tile.axes[p.axis.index()].name);
        tile.axes.push(Axis {
            name: unused_axis(&tile.axes, &name),
            extent: p.parts,
        });
    }
    let parts: AxisSet = parted.iter().map(|p| p.part).collect();

    // The first kernel: the loops over one part, and their carries stored.
    placer.parts = parted.iter().map(Parted::part).collect::<Result<_, _>>()?;
    let nonzero = passes.nonzero();
    if split.block_group {
        let own: BTreeMap<InnerId, InnerId> = over.iter().map(|r| (*r, *r)).collect();
        placer.level(&over, &[], tile)?;
        let combined = combine(
            &mut placer.lowering,
            &passes.fused,
            &nonzero,
            &own,
            &over,
            &parts,
        )?;
        let map = rewrite(&mut placer.lowering.arena, &roots, &combined);
        let stores: Vec<(BufferId, InnerId)> = outline
            .stores
            .iter()
            .map(|(b, v)| (*b, map.get(v).copied().unwrap_or(*v)))
            .collect();
        let kernel = placer.kernel(&stores, tile)?;
        if super::inside_loop(&kernel.body, &kernel, &kernel.block_group()) {
            return Err(Reject::Assignment(
                "split: parts are combined inside a loop".to_owned(),
            ));
        }
        tile.kernels.push(kernel);
        return Ok(());
    }
    let mut partials: Vec<(BufferId, InnerId)> = Vec::new();
    for r in &over {
        let id = BufferId(tile.buffers.len() as u32);
        let dims: Vec<Dim> = parts
            .iter()
            .chain(placer.lowering.arena.axes(*r).iter())
            .map(|a| Dim(vec![a]))
            .collect();
        tile.buffers.push(Buffer {
            name: unused_buffer(&tile.buffers, &format!("{}_parts", placer.name_of(*r))),
            dtype: Dtype::F32,
            dims,
            role: BufferRole::Workspace,
        });
        partials.push((id, *r));
    }
    let kernel = placer.kernel(&partials, tile)?;
    tile.kernels.push(kernel);

    // The second kernel: the same stores with the reductions over parts in place of those over the axis.
    let mut lowering = outline.lowering.clone();
    let loaded: BTreeMap<InnerId, InnerId> = partials
        .iter()
        .map(|(buffer, r)| (*r, load(&mut lowering.arena, tile, *buffer)))
        .collect();
    let combined = combine(
        &mut lowering,
        &passes.fused,
        &nonzero,
        &loaded,
        &over,
        &parts,
    )?;
    let stores: Vec<(BufferId, InnerId)> = {
        let map = rewrite(&mut lowering.arena, &roots, &combined);
        outline
            .stores
            .iter()
            .map(|(b, v)| (*b, map.get(v).copied().unwrap_or(*v)))
            .collect()
    };
    let mut tiles = assignment.axes.clone();
    tiles.extend(assignment.combine.iter().map(|(a, t)| (*a, *t)));
    for p in &parted {
        let whole = AxisTile {
            role: Role::Whole,
            tile: p.parts,
        };
        tiles.insert(p.part, whole);
    }
    let uses = reach::uses(&lowering.arena, &stores, &tile.buffers);
    let roots = stores.iter().map(|s| s.1);
    let values: BTreeSet<&AxisSet> = reach::order(&lowering.arena, roots)
        .into_iter()
        .map(|id| lowering.arena.axes(id))
        .collect();
    shrink(&mut tiles, &uses, &values, outline);
    check_axes(&uses, &tiles, &tile.axes)?;
    let mut placer = Placer::new(lowering, &tiles, corrections);
    placer.open(&stores.iter().map(|s| s.1).collect::<Vec<_>>());
    let kernel = placer.kernel(&stores, tile)?;
    tile.kernels.push(kernel);
    Ok(())
}

/// An axis of which each block reduces one part.
struct Parted {
    axis: AxisId,
    /// Counts the parts.
    part: AxisId,
    parts: u64,
    /// Coordinates of a part.
    chunk: u64,
}

impl Parted {
    fn part(&self) -> Result<Part, Reject> {
        let chunk = i64::try_from(self.chunk)
            .map_err(|_| Reject::Assignment("split: the chunk overflows".to_owned()))?;
        Ok(Part {
            axis: self.axis,
            part: self.part,
            chunk,
        })
    }
}

/// The axes that are divided: loops that all the reductions `over` run in, the outermost first, as many as it takes for the parts
/// that are asked for. Nothing else may reduce over them.
fn parted(
    split: Split,
    assignment: &Assignment,
    axes: &[Axis],
    placer: &Placer<'_, '_>,
    passes: &Passes,
    over: &[InnerId],
    roots: &[InnerId],
) -> Result<Vec<Parted>, Reject> {
    let name = &axes[split.axis.index()].name;
    let refuse = |why: &str| Err(Reject::Assignment(format!("split: {name} {why}")));
    let pass_of = |r: &InnerId| passes.reductions.iter().find(|x| x.0 == *r).map(|x| x.2);
    let Some(first) = over.first() else {
        return refuse("is reduced by nothing at the outermost level");
    };
    if over.iter().any(|r| pass_of(r) != pass_of(first)) {
        return refuse("takes several passes");
    }
    let mut common = placer.unbound(*first);
    for r in over {
        let same = common
            .iter()
            .zip(placer.unbound(*r))
            .take_while(|(a, b)| **a == *b);
        common.truncate(same.count());
    }
    if !common.contains(&split.axis) {
        return refuse("is in loops of which only some are shared");
    }
    let arena = &placer.lowering.arena;
    let all = reach::order(arena, roots.iter().copied());
    let reduced_elsewhere = |axis: AxisId| {
        all.iter().filter(|id| !over.contains(id)).any(|id| {
            let reduction = arena.get(*id).reduction();
            reduction.is_some_and(|(_, axes, _)| axes.contains(axis))
        })
    };
    let (mut left, mut found) = (split.parts, Vec::new());
    let count = axes.len();
    for axis in common {
        let extent = axes[axis.index()].extent;
        let size = assignment.axes.get(&axis).map_or(1, |t| t.tile);
        let chunk = size * extent.div_ceil(size).div_ceil(left.max(1));
        let parts = extent.div_ceil(chunk);
        if parts < 2 || reduced_elsewhere(axis) {
            continue;
        }
        left /= parts;
        found.push(Parted {
            axis,
            part: AxisId((count + found.len()) as u32),
            parts,
            chunk,
        });
    }
    let product: u64 = found.iter().map(|p| p.parts).product();
    if 2 * product <= split.parts {
        return refuse("has too few tiles for so many parts");
    }
    Ok(found)
}

/// The most elements that a block of a combining kernel holds, where its axes can be spread over more blocks, which then wait
/// less for what they read: all parts of an output tile that suited the first kernel may be too many.
const COMBINED: u64 = 2048;

/// Makes tiles smaller until a block holds few elements of any value, the slowest axis first.
fn shrink(
    tiles: &mut BTreeMap<AxisId, AxisTile>,
    uses: &BTreeMap<AxisId, AxisUse>,
    values: &BTreeSet<&AxisSet>,
    outline: &KernelOutline<'_>,
) {
    let free = |a: &AxisId| uses[a].stored_by_all && !uses[a].reduced;
    let mut axes: Vec<AxisId> = uses.keys().copied().filter(free).collect();
    axes.sort_by_key(|a| std::cmp::Reverse(outline.speed(*a)));
    for axis in axes {
        loop {
            let elements = |value: &&AxisSet| {
                let held = value.iter().filter_map(|a| tiles.get(&a));
                held.fold(1u64, |n, t| n.saturating_mul(t.tile))
            };
            let varying = values.iter().filter(|v| v.contains(axis));
            let held = varying.map(elements).max().unwrap_or(1);
            match tiles.get_mut(&axis) {
                Some(t) if held > COMBINED && t.tile > 1 => {
                    *t = AxisTile {
                        role: Role::Grid,
                        tile: 1 << (t.tile - 1).ilog2(),
                    };
                }
                Some(_) | None => break,
            }
        }
    }
}

/// What the reductions over an axis are, given what each part has of them: corrected and reduced over the parts.
fn combine(
    lowering: &mut Lowering<'_>,
    fused: &BTreeMap<InnerId, Fused>,
    nonzero: &BTreeSet<InnerId>,
    parts: &BTreeMap<InnerId, InnerId>,
    over: &[InnerId],
    parts_of: &AxisSet,
) -> Result<BTreeMap<InnerId, InnerId>, Reject> {
    let lacks = || {
        Reject::Assignment(
            "split: a part of a later reduction lacks that of an earlier one".to_owned(),
        )
    };
    let mut combined: BTreeMap<InnerId, InnerId> = BTreeMap::new();
    for r in over {
        let op = lowering
            .arena
            .get(*r)
            .reduction()
            .map_or(ReduceOp::Sum, |x| x.0);
        let own = *parts.get(r).ok_or_else(lacks)?;
        let value = match fused.get(r) {
            None => own,
            Some(fused) => {
                let leaves = fused
                    .correction
                    .terms
                    .iter()
                    .map(|t| match t {
                        Term::Leaf(node) => lowering.lower(*node, &fused.by).map(Some),
                        Term::Old(_) | Term::New(_) | Term::Constant(_) | Term::Map(..) => Ok(None),
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                let mut running = Vec::new();
                for p in &fused.provisional {
                    let (Some(old), Some(new)) = (parts.get(p), combined.get(p)) else {
                        return Err(lacks());
                    };
                    let maximum = lowering
                        .arena
                        .get(*p)
                        .reduction()
                        .is_some_and(|x| x.0 == ReduceOp::Max);
                    running.push(if maximum && !fused.correction.exact {
                        let zero = lowering.arena.constant(0.0);
                        let new = finite(&mut lowering.arena, *new, zero);
                        (finite(&mut lowering.arena, *old, new), new)
                    } else if nonzero.contains(p) {
                        (
                            nonzero_of(&mut lowering.arena, *old),
                            nonzero_of(&mut lowering.arena, *new),
                        )
                    } else {
                        (*old, *new)
                    });
                }
                let c = correction(&mut lowering.arena, fused, &running, &leaves)?;
                lowering.arena.map(correct_with(op), [own, c])
            }
        };
        let over_parts = lowering.arena.add(Inner::Reduce {
            op,
            arg: value,
            axes: parts_of.clone(),
            bound: ir::AxisSet::new(),
        });
        combined.insert(*r, over_parts);
    }
    Ok(combined)
}

fn load(arena: &mut Arena, tile: &TileProgram, buffer: BufferId) -> InnerId {
    let own = tile.buffer(buffer).axes().map(Affine::axis);
    let index = own.map(Quotient::from).collect();
    arena.add(Inner::Load {
        buffer,
        index,
        fill: Bits::new(0.0),
    })
}

/// `x` where it is finite, else `other`: `select(0·x, x, other)`.
fn finite(arena: &mut Arena, x: InnerId, other: InnerId) -> InnerId {
    let zero = arena.constant(0.0);
    let test = arena.map(MapOp::Mul, [zero, x]);
    arena.map(MapOp::Select, [test, x, other])
}

/// `x` where it is not zero, else 1: `select(−max(x, −x), 1, x)`.
fn nonzero_of(arena: &mut Arena, x: InnerId) -> InnerId {
    let (one, minus) = (arena.constant(1.0), arena.constant(-1.0));
    let negative = arena.map(MapOp::Mul, [minus, x]);
    let size = arena.map(MapOp::Max, [x, negative]);
    let test = arena.map(MapOp::Mul, [minus, size]);
    arena.map(MapOp::Select, [test, one, x])
}

/// `c(old, new)` for pairs of provisional values.
fn correction(
    arena: &mut Arena,
    fused: &Fused,
    running: &[(InnerId, InnerId)],
    leaves: &[Option<InnerId>],
) -> Result<InnerId, Reject> {
    let unsound = || Reject::Assignment("a correction speaks of values that it lacks".to_owned());
    let mut made: Vec<InnerId> = Vec::new();
    for (term, leaf) in fused.correction.terms.iter().zip(leaves) {
        let id = match term {
            Term::Old(k) => running.get(*k).ok_or_else(unsound)?.0,
            Term::New(k) => running.get(*k).ok_or_else(unsound)?.1,
            Term::Leaf(_) => leaf.ok_or_else(unsound)?,
            Term::Constant(c) => arena.constant(*c),
            Term::Map(op, args) => {
                let args = args
                    .iter()
                    .map(|t| made.get(t.0 as usize).copied().ok_or_else(unsound))
                    .collect::<Result<Vec<_>, _>>()?;
                arena.map(*op, args)
            }
        };
        made.push(id);
    }
    made.get(fused.correction.root.0 as usize)
        .copied()
        .ok_or_else(unsound)
}

/// The roots with some values replaced; maps old values to new ones.
pub(super) fn rewrite(
    arena: &mut Arena,
    roots: &[InnerId],
    replaced: &BTreeMap<InnerId, InnerId>,
) -> BTreeMap<InnerId, InnerId> {
    let mut map: BTreeMap<InnerId, InnerId> = BTreeMap::new();
    for id in reach::order(arena, roots.iter().copied()) {
        let new = match replaced.get(&id) {
            Some(new) => *new,
            None => {
                let mut inner = arena.get(id).clone();
                let to = |a: &mut InnerId| *a = map.get(a).copied().unwrap_or(*a);
                match &mut inner {
                    Inner::Load { .. } | Inner::Constant(_) | Inner::Iota(_) => {}
                    Inner::Map(_, args) => args.iter_mut().for_each(to),
                    Inner::Reduce { arg, .. } | Inner::Running { arg, .. } => to(arg),
                    Inner::Dot { a, b, .. } => {
                        to(a);
                        to(b);
                    }
                }
                arena.add(inner)
            }
        };
        map.insert(id, new);
    }
    map
}

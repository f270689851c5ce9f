//! A split axis: several grid points each reduce a part of it, and a second kernel combines the parts.
//!
//! With the correction `c` of a reduction `A` for the provisional values of `R`, parts `s` give
//!
//! ```text
//! R = reduce_s(R_s)        A = reduce_s(A_s · c(R_s, R))
//! ```
//!
//! so the second kernel is the first one's expression with each reduction over the axis replaced by one over the parts. Where the
//! grid points of the first combine the parts as a team, the same follows in the first kernel itself.

use super::fuse::Fused;
use super::inner::{Arena, Bits, Inner, InnerId, Lowering};
use super::place::{Part, Placer, correct_with};
use super::reach;
use super::{
    Assignment, AxisUse, Corrections, KernelOutline, Split, check_axes, unused_axis, unused_buffer,
};
use crate::correction::Term;
use ir::{
    Affine, Axis, AxisId, AxisTile, Buffer, BufferId, BufferRole, Dim, Dtype, MapOp, ReduceOp,
    Reject, Role, TileProgram,
};
use std::collections::{BTreeMap, BTreeSet};

/// Appends the kernels of a split: two, or one with teams.
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
    let over: Vec<(InnerId, usize)> = passes
        .reductions
        .iter()
        .filter(|r| r.1 == split.axis)
        .map(|r| (r.0, r.2))
        .collect();
    let axis = &tile.axes[split.axis.index()];
    let Some((_, pass)) = over.first() else {
        return Err(Reject::Assignment(format!(
            "split: no reduction over {} at the outermost level",
            axis.name
        )));
    };
    if over
        .iter()
        .any(|r| r.1 != *pass || placer.unbound(r.0) != [split.axis])
    {
        return Err(Reject::Assignment(format!(
            "split: {} takes several passes or nested loops",
            axis.name
        )));
    }
    let size = assignment.axes.get(&split.axis).map_or(1, |t| t.tile);
    let chunk = size * axis.extent.div_ceil(size).div_ceil(split.parts.max(1));
    let parts = axis.extent.div_ceil(chunk);
    if parts < 2 {
        return Err(Reject::Assignment(format!(
            "split: {} has too few tiles for {} parts",
            axis.name, split.parts
        )));
    }
    let name = axis.name.clone();
    let part = AxisId(tile.axes.len() as u32);
    // A team hands parts to each other; a second kernel reads what each grid point stored once.
    for (r, _) in over.iter().filter(|_| !split.team) {
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
    tile.axes.push(Axis {
        name: unused_axis(&tile.axes, &format!("{name}_part")),
        extent: parts,
    });

    // The first kernel: the loop over one part, and its carries stored.
    let chunk = i64::try_from(chunk)
        .map_err(|_| Reject::Assignment("split: the chunk overflows".to_owned()))?;
    placer.part = Some(Part {
        axis: split.axis,
        part,
        chunk,
    });
    let nonzero = passes.nonzero();
    if split.team {
        let own: BTreeMap<InnerId, InnerId> = over.iter().map(|(r, _)| (*r, *r)).collect();
        let reductions: Vec<InnerId> = over.iter().map(|r| r.0).collect();
        placer.level(&reductions, &[], tile)?;
        let combined = combine(
            &mut placer.lowering,
            &passes.fused,
            &nonzero,
            &own,
            &over,
            part,
        )?;
        let map = rewrite(&mut placer.lowering.arena, &roots, &combined);
        let stores: Vec<(BufferId, InnerId)> = outline
            .stores
            .iter()
            .map(|(b, v)| (*b, map.get(v).copied().unwrap_or(*v)))
            .collect();
        let kernel = placer.kernel(&stores, tile)?;
        if super::inside_loop(&kernel.body, &kernel, &kernel.team()) {
            return Err(Reject::Assignment(
                "split: parts are combined inside a loop".to_owned(),
            ));
        }
        tile.kernels.push(kernel);
        return Ok(());
    }
    let mut partials: Vec<(BufferId, InnerId)> = Vec::new();
    for (r, _) in &over {
        let id = BufferId(tile.buffers.len() as u32);
        let dims: Vec<Dim> = [part]
            .into_iter()
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
    let combined = combine(&mut lowering, &passes.fused, &nonzero, &loaded, &over, part)?;
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
    tiles.insert(
        part,
        AxisTile {
            role: Role::Whole,
            tile: parts,
        },
    );
    let uses = reach::uses(&lowering.arena, &stores, &tile.buffers);
    shrink(&mut tiles, &uses, outline);
    check_axes(&uses, &tiles, &tile.axes)?;
    let mut placer = Placer::new(lowering, &tiles, corrections);
    placer.open(&stores.iter().map(|s| s.1).collect::<Vec<_>>());
    let kernel = placer.kernel(&stores, tile)?;
    tile.kernels.push(kernel);
    Ok(())
}

/// The most elements that a block of a combining kernel holds, where its axes can be spread over more blocks, which then wait
/// less for what they read: all parts of an output tile that suited the first kernel may be too many.
const COMBINED: u64 = 2048;

/// Makes tiles smaller until a block holds few elements, the slowest axis first.
fn shrink(
    tiles: &mut BTreeMap<AxisId, AxisTile>,
    uses: &BTreeMap<AxisId, AxisUse>,
    outline: &KernelOutline<'_>,
) {
    let free = |a: &AxisId| uses[a].stored_by_all && !uses[a].reduced;
    let mut axes: Vec<AxisId> = uses.keys().copied().filter(free).collect();
    axes.sort_by_key(|a| std::cmp::Reverse(outline.speed(*a)));
    for axis in axes {
        loop {
            let held = uses
                .keys()
                .filter_map(|a| tiles.get(a))
                .fold(1u64, |n, t| n.saturating_mul(t.tile));
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
    over: &[(InnerId, usize)],
    part: AxisId,
) -> Result<BTreeMap<InnerId, InnerId>, Reject> {
    let lacks = || {
        Reject::Assignment(
            "split: a part of a later reduction lacks that of an earlier one".to_owned(),
        )
    };
    let mut combined: BTreeMap<InnerId, InnerId> = BTreeMap::new();
    for (r, _) in over {
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
                    running.push(if maximum {
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
            axes: [part].into_iter().collect(),
            bound: ir::AxisSet::new(),
        });
        combined.insert(*r, over_parts);
    }
    Ok(combined)
}

fn load(arena: &mut Arena, tile: &TileProgram, buffer: BufferId) -> InnerId {
    let index = tile.buffer(buffer).axes().map(Affine::axis).collect();
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
fn rewrite(
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
                    Inner::Reduce { arg, .. } => to(arg),
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

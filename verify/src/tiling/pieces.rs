//! A tile program by its kernels, where one output element of the whole takes too much work.
//!
//! What a kernel stores is compared with lines of the expression, as functions of what the kernel reads, on numbers that are drawn for that. If each kernel is
//! right for whatever it reads, the outputs are the expression's. Kernels that hand each other what no line of the expression is, as the parts of a
//! split, are compared together.
//!
//! Which value of the expression a buffer holds is told by its name, as whoever built the tile program called it. Nothing is trusted in that: kernels that are
//! right for one such guess are right. With a wrong one the comparison fails, and the tile program is refused: who writes one by hand calls buffers
//! by what they hold, or by names that the expression does not have.

use super::TilingOptions;
use super::evidence::PieceEvidence;
use ir::random::mix;
use ir::{BufferId, BufferRole, Node, NodeId, Op, Output, Program, Reject, TileProgram};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The least work at the true extents that a piece gets, and the least where one element takes more.
const LEAST: u64 = 2_000_000;
const LEAST_MORE: u64 = 10 * LEAST;
/// Pieces that are compared side by side: each holds some slices at a time.
const TOGETHER: usize = 2;

/// Kernels, with the part of the expression that they compute.
struct Piece {
    kernels: Vec<usize>,
    expression: Program,
    tile: TileProgram,
}

/// Compares each kernel of a tile program with the expression: what was found, or else why nothing was decided of one, if what each buffer holds is known.
///
/// # Errors
/// The first difference.
pub(super) fn check(
    expression: &Program,
    tile: &TileProgram,
    options: &TilingOptions,
) -> Result<Result<Vec<PieceEvidence>, Option<Reject>>, Reject> {
    let Some(pieces) = pieces(expression, tile) else {
        return Ok(Err(None));
    };
    let share = |work: u64, least: u64| (work / pieces.len() as u64).max(least.min(work));
    let check = |piece: &Piece| {
        let options = TilingOptions {
            seed: mix(options.seed ^ piece.kernels[0] as u64),
            slice_work: share(options.slice_work, LEAST),
            most_slice_work: share(options.most_slice_work, LEAST_MORE),
            ..*options
        };
        let own = &piece.expression;
        match super::check(own, own, &piece.tile, &options, Some(&piece.kernels)) {
            Ok(found) => Ok(PieceEvidence {
                kernels: piece.kernels.clone(),
                found,
            }),
            Err(reject) => Err((piece.kernels[0], reject)),
        }
    };
    let (mut found, mut undecided) = (Vec::new(), None);
    let side_by_side = pieces.chunks(TOGETHER).flat_map(|some| {
        // Of several that are wrong always the same one is told.
        let checked: Vec<_> = some.par_iter().map(check).collect();
        checked
    });
    for checked in side_by_side {
        match checked {
            Ok(piece) => found.push(piece),
            Err((kernel, Reject::Undecided(why))) => {
                undecided.get_or_insert(Reject::Undecided(format!(
                    "kernel {kernel} by itself: {why}"
                )));
            }
            Err((kernel, reject)) => {
                return Err(Reject::InKernel {
                    kernel,
                    reject: Box::new(reject),
                });
            }
        }
    }
    Ok(match undecided {
        None => Ok(found),
        undecided => Err(undecided),
    })
}

/// How kernels are called.
pub(super) fn called(kernels: &[usize]) -> String {
    let numbers: Vec<String> = kernels.iter().map(usize::to_string).collect();
    let word = if kernels.len() == 1 {
        "kernel"
    } else {
        "kernels"
    };
    format!("{word} {}", numbers.join(" and "))
}

/// Whether a tile program takes and gives tensors as the expression does: of the kernels by themselves nobody asks.
fn has_its_interface(expression: &Program, tile: &TileProgram) -> bool {
    let parameters = expression.parameters();
    let parameters: Vec<_> = parameters
        .map(|(_, _, dtype, dims)| (dtype, dims))
        .collect();
    let outputs = expression.outputs.iter();
    let outputs: Vec<_> = outputs.map(|o| (o.dtype, o.dims.as_slice())).collect();
    let buffers = |role: fn(u32) -> BufferRole, wanted: &[(ir::Dtype, &[ir::Dim])]| {
        let of = |n: u32| tile.buffers.iter().find(|b| b.role == role(n));
        let all = (0..)
            .zip(wanted)
            .all(|(n, wanted)| of(n).is_some_and(|b| (b.dtype, b.dims.as_slice()) == *wanted));
        all && of(wanted.len() as u32).is_none()
    };
    buffers(BufferRole::Parameter, &parameters) && buffers(BufferRole::Output, &outputs)
}

/// The pieces of a tile program, if it has several.
fn pieces(expression: &Program, tile: &TileProgram) -> Option<Vec<Piece>> {
    if !has_its_interface(expression, tile) {
        return None;
    }
    let held: Vec<Option<NodeId>> = held(expression, tile);
    let groups = groups(tile, &held);
    if groups.len() < 2 {
        return None;
    }
    let piece = |kernels: Vec<usize>| {
        let inside = |buffer: BufferId| held[buffer.index()].is_none();
        let own = tile.by_themselves(&kernels, inside);
        let by_name = |name: &str| tile.buffers.iter().position(|b| b.name == name);
        let held: Vec<Option<NodeId>> = own
            .buffers
            .iter()
            .map(|b| by_name(&b.name).and_then(|at| held[at]))
            .collect();
        Some(Piece {
            expression: part(expression, &own, &held)?,
            tile: own,
            kernels,
        })
    };
    groups.into_iter().map(piece).collect()
}

/// Which value of the expression each buffer holds, as far as that is known.
fn held(expression: &Program, tile: &TileProgram) -> Vec<Option<NodeId>> {
    let named = |name: &str| {
        let mut nodes = (0..).map(NodeId).zip(&expression.nodes);
        let by_name = nodes.find(|(_, node)| node.name.as_deref() == Some(name));
        let by_number = || {
            let id = NodeId(name.strip_prefix('t')?.parse().ok()?);
            let node = expression.nodes.get(id.index())?;
            node.name.is_none().then_some(id)
        };
        by_name.map(|(id, _)| id).or_else(by_number)
    };
    let parameters: Vec<NodeId> = expression.parameters().map(|p| p.0).collect();
    let of = |buffer: &ir::Buffer| match buffer.role {
        BufferRole::Parameter(n) => parameters.get(n as usize).copied(),
        BufferRole::Output(n) => expression.outputs.get(n as usize).map(|o| o.value),
        BufferRole::Workspace => {
            // Where a name was taken another one follows it.
            let base = || {
                let (base, number) = buffer.name.rsplit_once('_')?;
                number.parse::<u32>().ok().and_then(|_| named(base))
            };
            let node = named(&buffer.name).or_else(base)?;
            let axes: ir::AxisSet = buffer.axes().collect();
            (expression.node(node).axes == axes).then_some(node)
        }
    };
    tile.buffers.iter().map(of).collect()
}

/// The kernels, those together that hand each other what is not known.
fn groups(tile: &TileProgram, held: &[Option<NodeId>]) -> Vec<Vec<usize>> {
    let uses: Vec<BTreeSet<BufferId>> = tile.kernels.iter().map(ir::Kernel::buffers).collect();
    let mut groups: Vec<(Vec<usize>, BTreeSet<BufferId>)> = Vec::new();
    for (kernel, uses) in uses.into_iter().enumerate() {
        let unknown = uses.into_iter().filter(|b| held[b.index()].is_none());
        let mut own = (vec![kernel], unknown.collect::<BTreeSet<BufferId>>());
        let (joined, others): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|g| !g.1.is_disjoint(&own.1));
        for (kernels, buffers) in joined {
            own.0.extend(kernels);
            own.1.extend(buffers);
        }
        own.0.sort_unstable();
        groups = others;
        groups.push(own);
    }
    groups.sort();
    groups.into_iter().map(|g| g.0).collect()
}

/// What some kernels store as an expression of what they read.
fn part(expression: &Program, own: &TileProgram, held: &[Option<NodeId>]) -> Option<Program> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut places: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    let mut results: Vec<(&ir::Buffer, NodeId)> = Vec::new();
    for (buffer, held) in own.buffers.iter().zip(held) {
        match buffer.role {
            BufferRole::Parameter(_) => {
                let place = NodeId(nodes.len() as u32);
                nodes.push(Node {
                    op: Op::Parameter {
                        name: buffer.name.clone(),
                        dtype: buffer.dtype,
                        dims: buffer.dims.clone(),
                    },
                    args: Vec::new(),
                    axes: buffer.axes().collect(),
                    name: Some(buffer.name.clone()),
                });
                // Of a value that is read from two buffers nobody says from which one where.
                if places.insert((*held)?, place).is_some() {
                    return None;
                }
            }
            BufferRole::Output(_) => results.push((buffer, (*held)?)),
            BufferRole::Workspace => {}
        }
    }
    let mut needed: BTreeSet<NodeId> = BTreeSet::new();
    let mut stack: Vec<NodeId> = results.iter().map(|r| r.1).collect();
    while let Some(node) = stack.pop() {
        if !places.contains_key(&node) && needed.insert(node) {
            stack.extend(&expression.node(node).args);
        }
    }
    for id in needed {
        let node = expression.node(id);
        // What is computed of a parameter that the kernels do not read is not what they compute.
        if matches!(node.op, Op::Parameter { .. }) {
            return None;
        }
        let args: Option<Vec<NodeId>> = node.args.iter().map(|a| places.get(a).copied()).collect();
        places.insert(id, NodeId(nodes.len() as u32));
        nodes.push(Node {
            args: args?,
            name: None,
            ..node.clone()
        });
    }
    let outputs = results.iter().map(|(buffer, value)| {
        Some(Output {
            dtype: buffer.dtype,
            dims: buffer.dims.clone(),
            value: *places.get(value)?,
        })
    });
    let part = Program {
        name: expression.name.clone(),
        axes: expression.axes.clone(),
        outputs: outputs.collect::<Option<Vec<Output>>>()?,
        nodes,
    };
    part.validate().is_ok().then_some(part)
}

//! A tile program by its kernels, where one output element of the whole takes too much work.
//!
//! What a kernel stores is compared with lines of the expression, as functions of what the kernel reads, on numbers that are drawn for that. If each kernel is
//! right for whatever it reads, the outputs are the expression's. Kernels that hand each other what no line of the expression is, as the parts of a
//! split, are compared together.
//!
//! Which value of the expression a buffer holds is told by its name, as whoever built the tile program called it. Nothing is trusted in that: kernels that are
//! right for one such guess are right. With a wrong one the comparison fails, and the tile program is refused: who writes one by hand calls buffers
//! by what they hold, or by names that the expression does not have.

use super::evidence::PieceEvidence;
use super::{Compared, TilingOptions};
use crate::coverage::Called;
use ir::random::mix;
use ir::{BufferId, BufferRole, Node, NodeId, Op, Output, Program, Reject, TileProgram};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// The least work at the true extents that a piece gets, and the least where one element takes more.
const LEAST: u64 = 2_000_000;
const LEAST_MORE: u64 = 10 * LEAST;
/// Pieces that are compared side by side: each holds some slices at a time.
const TOGETHER: usize = 4;
/// The most pieces that are remembered.
const MOST_KNOWN: usize = 1 << 12;

/// What was found of kernels by themselves. Tile programs that a search looks at have most of their kernels in common: with the same options the same is
/// found, wherever they stand. How much work a kernel gets is an option, too: it is the same where each gets the least.
#[derive(Debug, Default)]
pub struct Known {
    found: Mutex<HashMap<String, Result<Compared, Reject>>>,
}

impl Known {
    /// What comes of a piece: as it was found before, or as it is found now. Nobody waits for another one that looks for the same.
    fn of(
        &self,
        key: String,
        find: impl FnOnce() -> Result<Compared, Reject>,
    ) -> Result<Compared, Reject> {
        let known = || self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known().get(&key).cloned();
        before.unwrap_or_else(|| {
            let found = find();
            let mut known = known();
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(key, found.clone());
            found
        })
    }
}

/// Kernels, with the part of the expression that they compute.
pub(super) struct Piece {
    kernels: Vec<usize>,
    expression: Program,
    tile: TileProgram,
}

/// Compares each of the pieces of a tile program with what it computes: what was found, or else why nothing was decided of one.
///
/// # Errors
/// The first difference.
pub(super) fn check(
    pieces: &[Piece],
    options: &TilingOptions,
    known: &Known,
) -> Result<Result<Vec<PieceEvidence>, Reject>, Reject> {
    let share = |work: u64, least: u64| (work / pieces.len() as u64).max(least.min(work));
    let check = |piece: &Piece| {
        let own = &piece.expression;
        let text = format!("{own}\n{}", piece.tile);
        let options = TilingOptions {
            // Its own numbers, wherever it stands.
            seed: text
                .bytes()
                .fold(options.seed, |seed, b| mix(seed ^ u64::from(b))),
            slice_work: share(options.slice_work, LEAST),
            most_slice_work: share(options.most_slice_work, LEAST_MORE),
            ..*options
        };
        // What is found names values by their places, which a text may have in another order.
        let key = format!("{options:?}\n{own:?}\n{}", piece.tile);
        match known.of(key, || {
            super::compare(own, own, &piece.tile, &options, None)
        }) {
            Ok(found) => Ok(PieceEvidence {
                kernels: piece.kernels.clone(),
                found: found.told(Called {
                    program: &format!("what {} computes", called(&piece.kernels)),
                    kernels: &piece.kernels,
                }),
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
        Some(why) => Err(why),
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

/// The pieces of a tile program, if it has several and what each buffer holds is known.
pub(super) fn pieces(expression: &Program, tile: &TileProgram) -> Option<Vec<Piece>> {
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

#[cfg(test)]
mod tests {
    // Oracle: what is found where nothing is known.
    use super::*;

    const PRODUCT: &str = "kernel grid(i: 16, k: 8) loop(j: 32) {\n  loop j {\n    carry s = 0 over [i, k]\n    p = load x[i, j]\n    q = load w[k, j]\n    \
                           d = contract(p, q; j)\n    n = add(s, d)\n    yield r = final(s, n)\n  }\n  store a = r\n}\n";
    const SQUARES: &str = "kernel grid(i: 4) whole(k: 40) {\n  p = load a[i, k]\n  m = mul(p, p)\n  l = -1e6\n  d = add(p, l)\n  v = select(d, p, m)\n  t = reduce_sum(v; k)\n  store y = t\n}\n";
    const SUMS: &str = "kernel grid(i: 4) whole(j: 600) {\n  p = load x[i, j]\n  t = reduce_sum(p; j)\n  store z = t\n}\n";

    /// Two results or one, by these kernels.
    fn pair(results: usize, kernels: &[&str]) -> (Program, TileProgram) {
        let axes = "axis i = 48, j = 600, k = 40\n";
        let program = format!(
            "program p\n{axes}x = parameter f32 [i, j]\nw = parameter f32 [k, j]\na = dot(x, w; j)\n{}\n",
            [
                "return f32 [i] sum(select(a - 1e6, a, a * a); k)",
                "return f32 [i] sum(select(a - 1e6, a, a * a); k), f32 [i] sum(x; j)"
            ][results - 1]
        );
        let results = ["", "buffer z = output 1 f32 [i]\n"][results - 1];
        let tile = format!(
            "tile p\n{axes}buffer x = parameter 0 f32 [i, j]\nbuffer w = parameter 1 f32 [k, j]\nbuffer y = output 0 f32 [i]\n{results}\
             buffer a = workspace f32 [i, k]\n{}",
            kernels.concat()
        );
        let program = program.parse().expect("a program");
        (program, tile.parse().expect("a tile program"))
    }

    #[test]
    fn what_is_known_of_a_kernel_is_what_would_be_found() {
        let options = TilingOptions {
            slice_work: LEAST,
            most_slice_work: LEAST_MORE,
            ..TilingOptions::default()
        };
        let looked = |(program, tile): &(Program, TileProgram), known: &Known| {
            check(&pieces(program, tile).expect("pieces"), &options, known)
        };
        let known = Known::default();
        let count = || known.found.lock().expect("no panic").len();
        let right = pair(1, &[PRODUCT, SQUARES]);
        let found = looked(&right, &known).expect("right").expect("decided");
        assert_eq!((found.len(), count()), (2, 2));
        assert_eq!(
            looked(&right, &known).expect("right").expect("decided"),
            found
        );
        // At other places of another tile program.
        let others = pair(2, &[SUMS, PRODUCT, SQUARES]);
        let by_itself = looked(&others, &Known::default()).expect("right");
        assert_eq!(looked(&others, &known).expect("right"), by_itself);
        assert_eq!(count(), 3);
        let by_itself = by_itself.expect("decided");
        let numbers: Vec<_> = by_itself.iter().map(|p| p.kernels.clone()).collect();
        assert_eq!(numbers, [[0], [1], [2]]);
        // Called by the numbers that they have there.
        let undrawn = |pieces: &[PieceEvidence]| pieces.last().map(|p| p.found.undrawn.clone());
        for (pieces, number) in [(&found, 1), (&by_itself, 2)] {
            let undrawn = undrawn(pieces).expect("pieces");
            let wanted = format!("kernel {number}: `v` never takes its first value");
            assert!(undrawn.contains(&wanted), "{undrawn:?}");
            assert!(
                undrawn
                    .iter()
                    .all(|what| what.contains(&format!("kernel {number}")))
            );
        }
        // What is wrong is wrong once more, and called by its own number.
        let squares = SQUARES.replace("mul(p, p)", "add(p, p)");
        for (kernels, at) in [
            (&[PRODUCT, &squares][..], 1),
            (&[SUMS, PRODUCT, &squares], 2),
        ] {
            let wrong = looked(&pair(kernels.len() - 1, kernels), &known);
            assert!(
                matches!(wrong, Err(Reject::InKernel { kernel, .. }) if kernel == at),
                "{wrong:?}"
            );
        }
        assert_eq!(count(), 4);
    }
}

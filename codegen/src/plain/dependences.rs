//! What kernels of a tile program that overlap depend on (see [`crate::passes::dependent_launch`]).

use crate::passes::dependent_launch::DependentLaunch;
use ir::{BufferId, BufferRole, Kernel, Statement, Target, TileProgram, ValueId, stores};
use std::collections::BTreeSet;

/// The least compute capability whose kernels can wait for launches in front of them.
const CAPABILITY: u32 = 90;

/// The part of a kernel among those of a tile program.
pub(crate) fn link(tile: &TileProgram, kernel: &Kernel, target: &Target) -> DependentLaunch {
    if target.capability < CAPABILITY {
        return DependentLaunch::default();
    }
    let reads = kernel.reads().into_iter().any(|b| is_made(tile, b));
    let loads = |buffer: BufferId| tile.kernels.iter().any(|k| k.reads().contains(&buffer));
    let is_read = stores(&kernel.body)
        .into_iter()
        .any(|(buffer, _)| tile.buffer(buffer).role == BufferRole::Workspace || loads(buffer));
    DependentLaunch {
        waits: reads || is_read,
        is_read,
    }
}

/// Whether kernels write a buffer, and not only callers.
pub(super) fn is_made(tile: &TileProgram, buffer: BufferId) -> bool {
    !matches!(tile.buffer(buffer).role, BufferRole::Parameter(_))
}

/// The kernel with what depends on no workspace first.
pub(super) fn independent_first(tile: &TileProgram, kernel: &Kernel) -> Kernel {
    let mut tainted = BTreeSet::new();
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for statement in &kernel.body {
        let mut made = Vec::new();
        if depends(tile, kernel, statement, &tainted, &mut made) {
            tainted.extend(made);
            rest.push(statement.clone());
        } else {
            first.push(statement.clone());
        }
    }
    first.extend(rest);
    Kernel {
        body: first,
        ..kernel.clone()
    }
}

/// Whether a statement stores, reads a workspace, or uses a tainted value; `made` gets the values that it computes.
fn depends(
    tile: &TileProgram,
    kernel: &Kernel,
    statement: &Statement,
    tainted: &BTreeSet<ValueId>,
    made: &mut Vec<ValueId>,
) -> bool {
    match statement {
        Statement::Store { .. } => true,
        Statement::Let(v) => {
            made.push(*v);
            let used = |v: &ValueId| tainted.contains(v);
            let op = &kernel.value(*v).op;
            let reads = op.loaded().is_some_and(|buffer| is_made(tile, buffer));
            reads || op.operands().iter().any(used)
        }
        Statement::Loop(l) => {
            let bounds = l.low.iter().chain(&l.high);
            let mut read = bounds.flat_map(|b| &b.entries);
            let mut any = read.any(|(_, entry)| is_made(tile, entry.buffer));
            for s in &l.body {
                any |= depends(tile, kernel, s, tainted, made);
            }
            for c in &l.carries {
                made.extend([c.phi, c.result]);
                any |= tainted.contains(&c.next);
            }
            any
        }
    }
}

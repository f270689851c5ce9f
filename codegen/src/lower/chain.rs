//! Kernels that begin while the one in front of them still runs (programmatic dependent launch).
//!
//! A kernel of several waits for those in front of it where it first needs them: before it reads what another one wrote, and before it
//! writes anything. What does not depend on a workspace is done first, so a matrix that no kernel writes is on its way
//! while the kernel in front ends. Every kernel of a chain waits before it ends: who waits for one waits for all in front of it.

use ir::{BufferId, BufferRole, Kernel, Statement, Target, TileProgram, ValueId, stores};
use std::collections::BTreeSet;

/// The least compute capability whose kernels can wait for launches in front of them.
const CAPABILITY: u32 = 90;

/// The part of a kernel in a chain of kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Whether it waits for the kernels in front of it.
    pub(crate) waits: bool,
    /// Whether kernels behind it may read what it writes.
    pub(crate) is_read: bool,
}

impl Link {
    pub(crate) fn of(tile: &TileProgram, kernel: &Kernel, target: &Target) -> Self {
        if target.capability < CAPABILITY {
            return Self::default();
        }
        let reads = (kernel.values.iter())
            .filter_map(|v| v.op.loaded())
            .any(|buffer| is_made(tile, buffer));
        let loads = |buffer: BufferId| {
            let mut all = tile.kernels.iter().flat_map(|k| &k.values);
            all.any(|v| v.op.loaded() == Some(buffer))
        };
        let is_read = stores(&kernel.body)
            .into_iter()
            .any(|(buffer, _)| tile.buffer(buffer).role == BufferRole::Workspace || loads(buffer));
        Self {
            waits: reads || is_read,
            is_read,
        }
    }
}

/// Whether kernels write a buffer, and not only callers.
pub(crate) fn is_made(tile: &TileProgram, buffer: BufferId) -> bool {
    !matches!(tile.buffer(buffer).role, BufferRole::Parameter(_))
}

/// The kernel with what depends on no workspace first, and how many of its statements do not.
pub(crate) fn independent_first(tile: &TileProgram, kernel: &Kernel) -> (Kernel, usize) {
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
    let count = first.len();
    first.extend(rest);
    let kernel = Kernel {
        body: first,
        ..kernel.clone()
    };
    (kernel, count)
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
            let mut any = false;
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

//! What the interpreter's buffers hold, and what happens to them: an element is written once, and read after that.

use super::SimulateError::{self, Malformed};
use super::{SimulateOptions, extents};
use crate::block;
use crate::scalar::Scalar;
use ir::{AxisId, BufferId, BufferRole, TileProgram};
use std::collections::BTreeSet;

/// Every buffer, and which of its elements exist yet.
pub(super) struct Memory<S> {
    pub(super) tensors: Vec<Stored<S>>,
}

pub(super) struct Stored<S> {
    pub(super) axes: Vec<AxisId>,
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<S>,
    /// `None` for parameters: written everywhere.
    pub(super) written: Option<Vec<bool>>,
}

impl<S> Stored<S> {
    pub(super) fn coordinate(&self, mut at: usize) -> Vec<u64> {
        let mut all: Vec<u64> = Vec::with_capacity(self.shape.len());
        for n in self.shape.iter().rev() {
            all.push((at % n) as u64);
            at /= n;
        }
        all.reverse();
        all
    }
}

impl<S: Scalar> Memory<S> {
    pub(super) fn new(tile: &TileProgram, inputs: &[Vec<S>]) -> Result<Self, SimulateError> {
        let mut used = BTreeSet::new();
        let mut tensors = Vec::with_capacity(tile.buffers.len());
        for buffer in &tile.buffers {
            let axes: Vec<AxisId> = buffer.axes().collect();
            let shape = extents(&tile.axes, &buffer.dims)?;
            let n = block::count(&shape).map_err(Malformed)?;
            let (data, written) = match buffer.role {
                BufferRole::Parameter(i) => {
                    let i = i as usize;
                    used.insert(i);
                    let found = inputs.get(i).map(Vec::as_slice).unwrap_or_default();
                    if found.len() != n {
                        return Err(SimulateError::Input {
                            index: i,
                            expected: format!("{n} elements for `{}`", buffer.name),
                            found: format!("{}", found.len()),
                        });
                    }
                    (found.to_vec(), None)
                }
                BufferRole::Output(_) | BufferRole::Workspace => {
                    (vec![S::constant(f64::NAN); n], Some(vec![false; n]))
                }
            };
            tensors.push(Stored {
                axes,
                shape,
                data,
                written,
            });
        }
        Ok(Self { tensors })
    }

    pub(super) fn outputs(mut self, tile: &TileProgram) -> Result<Vec<Vec<S>>, SimulateError> {
        for (buffer, stored) in tile.buffers.iter().zip(&self.tensors) {
            let hole = stored.written.iter().flatten().position(|w| !w);
            if let Some(at) = hole {
                return Err(SimulateError::Unwritten {
                    buffer: buffer.name.clone(),
                    coordinate: stored.coordinate(at),
                });
            }
        }
        let mut order: Vec<(u32, usize)> = Vec::new();
        for (i, buffer) in tile.buffers.iter().enumerate() {
            if let BufferRole::Output(n) = buffer.role {
                order.push((n, i));
            }
        }
        order.sort_unstable();
        if order.iter().enumerate().any(|(i, (n, _))| i != *n as usize) {
            return Err(Malformed("outputs are not numbered 0, 1, 2, …".into()));
        }
        Ok(order
            .into_iter()
            .map(|(_, i)| std::mem::take(&mut self.tensors[i].data))
            .collect())
    }

    pub(super) fn apply(
        &mut self,
        tile: &TileProgram,
        write: Write<S>,
        options: SimulateOptions,
    ) -> Result<(), SimulateError> {
        let buffer = &tile.buffers[write.buffer.index()];
        let stored = &mut self.tensors[write.buffer.index()];
        let strides = block::strides(&stored.shape);
        let base: usize = write.first.iter().zip(&strides).map(|(f, s)| f * s).sum();
        let steps: Vec<[usize; 1]> = strides.iter().map(|s| [*s]).collect();
        let mut from = write.data.into_iter();
        let mut twice = None;
        if let Some(written) = &mut stored.written {
            block::walk(&write.lengths, &steps, |[o]| {
                let Some(x) = from.next() else { return };
                let at = base + o;
                if std::mem::replace(&mut written[at], true) {
                    twice.get_or_insert(at);
                }
                stored.data[at] = if options.round_stores {
                    x.round(buffer.dtype)
                } else {
                    x
                };
            });
        }
        match twice {
            None => Ok(()),
            Some(at) => Err(SimulateError::WrittenTwice {
                buffer: buffer.name.clone(),
                coordinate: stored.coordinate(at),
            }),
        }
    }
}

/// A store of one grid point, in the buffer's axis order.
pub(super) struct Write<S> {
    pub(super) buffer: BufferId,
    pub(super) first: Vec<usize>,
    pub(super) lengths: Vec<usize>,
    pub(super) data: Vec<S>,
}

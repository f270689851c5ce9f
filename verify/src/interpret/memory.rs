//! What the interpreter's buffers hold, and what happens to them: an element is written once, and read after that.

use super::SimulateError::{self, Malformed};
use super::{Inputs, SimulateOptions, extents};
use crate::block;
use crate::demand::Demand;
use crate::picked::{Picked, Tile};
use crate::scalar::Scalar;
use ir::{AxisId, BufferId, BufferRole, TileProgram};

/// Every buffer, and which of its elements exist yet.
pub(super) struct Memory<S> {
    pub(super) tensors: Vec<Stored<S>>,
}

pub(super) struct Stored<S> {
    /// Of each axis, the coordinates whose elements are held; none of a buffer that nobody asks for.
    pub(super) held: Option<Vec<Picked>>,
    /// The extents of the axes.
    pub(super) extents: Vec<usize>,
    pub(super) data: Vec<S>,
    /// `None` for parameters: written everywhere.
    pub(super) written: Option<Vec<bool>>,
}

/// What one index goes along: an axis of a buffer, or those that a collapsed one stands for.
pub(super) struct Side<'a> {
    /// Of each axis, slowest first: what is held of it, its extent, and how far its neighbours in memory are apart.
    members: Vec<(&'a Picked, u64, usize)>,
}

impl Side<'_> {
    /// How many coordinates it has.
    pub(super) fn extent(&self) -> u64 {
        self.members.iter().map(|m| m.1).product()
    }

    /// Where a coordinate is in memory; none where it is not held.
    pub(super) fn place(&self, mut coordinate: u64) -> Option<usize> {
        let mut sum = 0;
        for (held, extent, stride) in self.members.iter().rev() {
            sum += held.position(coordinate % extent)? * stride;
            coordinate /= extent;
        }
        (coordinate == 0).then_some(sum)
    }

    /// How far its neighbours are apart where all of them are held.
    pub(super) fn stride(&self) -> Option<usize> {
        let whole = self.members.iter().all(|m| matches!(m.0, Picked::All(_)));
        self.members.last().filter(|_| whole).map(|m| m.2)
    }
}

impl<S> Stored<S> {
    /// What indices go along; none of a buffer that nobody asks for.
    pub(super) fn sides<'a>(
        &'a self,
        tile: &TileProgram,
        buffer: BufferId,
        along: &[AxisId],
    ) -> Option<Vec<Side<'a>>> {
        let extents = self.extents.iter().map(|n| *n as u64);
        let strides = block::strides(&self.shape());
        let held = self.held.as_ref()?.iter();
        let mut axes = held.zip(extents).zip(strides);
        let of = |axis: &AxisId| Side {
            members: (tile.members(buffer, *axis).iter().zip(axes.by_ref()))
                .map(|(_, ((held, extent), stride))| (held, extent, stride))
                .collect(),
        };
        Some(along.iter().map(of).collect())
    }

    /// How many elements are held along each axis.
    pub(super) fn shape(&self) -> Vec<usize> {
        let held = self.held.iter().flatten();
        held.map(|p| p.len() as usize).collect()
    }

    pub(super) fn coordinate(&self, mut at: usize) -> Vec<u64> {
        let held = self.held.as_deref().unwrap_or_default();
        let mut all: Vec<u64> = Vec::with_capacity(held.len());
        for picked in held.iter().rev() {
            let n = picked.len() as usize;
            all.push(picked.at(at % n));
            at /= n;
        }
        all.reverse();
        all
    }
}

impl<S: Scalar> Memory<S> {
    /// Memory for what is demanded of each buffer; parameters' elements come from `inputs`.
    pub(super) fn new<I: Inputs<S> + ?Sized>(
        tile: &TileProgram,
        demand: &Demand,
        inputs: &I,
    ) -> Result<Self, SimulateError> {
        let mut tensors = Vec::with_capacity(tile.buffers.len());
        for (buffer, held) in tile.buffers.iter().zip(&demand.buffers) {
            let extents = extents(&tile.axes, &buffer.dims)?;
            let shape: Vec<usize> = held.iter().flatten().map(|p| p.len() as usize).collect();
            let n = match held {
                Some(_) => block::count(&shape).map_err(Malformed)?,
                None => 0,
            };
            let (data, written) = match buffer.role {
                BufferRole::Parameter(i) => {
                    let held = held.as_deref();
                    let data = inputs.elements(i as usize, &buffer.name, &extents, held)?;
                    (data, None)
                }
                BufferRole::Output(_) | BufferRole::Workspace => {
                    (vec![S::constant(f64::NAN); n], Some(vec![false; n]))
                }
            };
            tensors.push(Stored {
                held: held.clone(),
                extents,
                data,
                written,
            });
        }
        Ok(Self { tensors })
    }

    /// The results among what the output buffers hold.
    pub(super) fn outputs(
        mut self,
        tile: &TileProgram,
        demand: &Demand,
    ) -> Result<Vec<Vec<S>>, SimulateError> {
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
            .map(|(_, i)| self.tensors[i].taken(demand.results[i].as_deref()))
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
        let Some(sides) = stored.sides(tile, write.buffer, &write.along) else {
            return Ok(());
        };
        // Of each axis, how far into the buffer its coordinates are; none of those that nobody asks for.
        let places: Vec<Vec<Option<usize>>> = (write.tiles.iter().zip(&sides))
            .map(|(tile, side)| (0..tile.count()).map(|p| side.place(tile.at(p))).collect())
            .collect();
        let (outer, last) = match places.split_last() {
            Some((last, outer)) => (outer, last.clone()),
            None => (&places[..], vec![Some(0)]),
        };
        let rows = outer.iter().fold(vec![Some(0)], |rows, places| {
            let all = rows.into_iter();
            all.flat_map(|row| places.iter().map(move |p| Some(row? + (*p)?)))
                .collect()
        });
        for (row, values) in rows.iter().zip(write.data.chunks(last.len().max(1))) {
            for (place, value) in last.iter().zip(values) {
                if let (Some(row), Some(place)) = (row, place) {
                    stored.put(row + place, *value, buffer, options)?;
                }
            }
        }
        Ok(())
    }
}

impl<S: Scalar> Stored<S> {
    /// The elements at some of the coordinates that are held; the rest is lost.
    fn taken(&mut self, wanted: Option<&[Picked]>) -> Vec<S> {
        let (Some(held), Some(wanted)) = (&self.held, wanted) else {
            return Vec::new();
        };
        if held == wanted {
            return std::mem::take(&mut self.data);
        }
        let along = wanted
            .iter()
            .zip(held)
            .zip(block::strides(&self.shape()))
            .map(|((wanted, held), stride)| {
                let place = |c| held.position(c).unwrap_or_default() * stride;
                wanted.iter().map(place).collect::<Vec<usize>>()
            });
        let all = along.fold(vec![0], |all: Vec<usize>, places| {
            let each = all.into_iter();
            each.flat_map(|base| places.iter().map(move |p| base + p))
                .collect()
        });
        all.into_iter().map(|at| self.data[at]).collect()
    }

    fn put(
        &mut self,
        at: usize,
        value: S,
        buffer: &ir::Buffer,
        options: SimulateOptions,
    ) -> Result<(), SimulateError> {
        let written = self.written.as_mut().map(|w| &mut w[at]);
        if written.is_none_or(|w| std::mem::replace(w, true)) {
            return Err(SimulateError::WrittenTwice {
                buffer: buffer.name.clone(),
                coordinate: self.coordinate(at),
            });
        }
        self.data[at] = match options.round_stores {
            true => value.round(buffer.dtype),
            false => value,
        };
        Ok(())
    }
}

/// A store of one grid point, in the buffer's axis order.
pub(super) struct Write<S> {
    pub(super) buffer: BufferId,
    /// The axes of the store, and of each the tile.
    pub(super) along: Vec<AxisId>,
    pub(super) tiles: Vec<Tile>,
    pub(super) data: Vec<S>,
}

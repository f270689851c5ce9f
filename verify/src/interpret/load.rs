//! What a load gives: a tile of a buffer through an index function an axis, and its fill outside.

use super::memory::Stored;
use super::run::Run;
use crate::block::{self, Block};
use crate::coverage::Sides;
use crate::picked::{Picked, Tile};
use crate::scalar::Scalar;
use crate::simulate_error::SimulateError;
use ir::{Affine, AxisId, AxisSet, BufferId};

/// The tile, and whether it met elements of the buffer, and such as are none.
pub(super) fn load<S: Scalar>(
    run: &Run<'_, S>,
    id: BufferId,
    index: &[Affine],
    fill: f64,
) -> Result<(Block<S>, Sides), SimulateError> {
    let stored = (run.memory.tensors)
        .get(id.index())
        .ok_or_else(|| run.malformed("a load from no buffer".into()))?;
    let held = match &stored.held {
        Some(held) if index.len() == held.len() => held,
        Some(_) => return Err(run.malformed("a load with a wrong number of indices".into())),
        None => return Err(run.malformed("a load from a buffer that nobody asked for".into())),
    };
    let axes = index
        .iter()
        .fold(AxisSet::new(), |all, f| all.union(&f.axes()));
    let tiles: Vec<Tile> = axes
        .iter()
        .map(|a| run.range(a))
        .collect::<Result<_, _>>()?;
    for function in index {
        let corners = |a: AxisId| match axes.as_slice().binary_search(&a) {
            Ok(i) => (tiles[i].first as i64, tiles[i].last() as i64),
            Err(_) => (0, 0),
        };
        let range = function.range(corners);
        range.ok_or_else(|| run.malformed("an index overflows".into()))?;
    }
    let shape: Vec<usize> = tiles.iter().map(Tile::count).collect();
    let count = block::count(&shape).map_err(|e| run.malformed(e))?;
    let mut reader = Reader {
        stored,
        held,
        strides: block::strides(&stored.shape()),
        fill: S::constant(fill),
        data: Vec::with_capacity(count),
        sides: Sides::default(),
    };
    // A row is what the last axis spans: of most indices it moves one.
    let (outer, inner) = match tiles.split_last() {
        Some((inner, outer)) => (outer, Some(inner)),
        None => (&tiles[..], None),
    };
    let mut position = vec![0usize; outer.len()];
    let rows = if count == 0 {
        0
    } else {
        shape[..outer.len()].iter().product()
    };
    for _ in 0..rows {
        let at = |a: AxisId| match axes.as_slice().binary_search(&a) {
            Ok(i) => outer.get(i).map_or(0, |t| t.at(position[i]) as i64),
            Err(_) => 0,
        };
        // Where each index is at coordinate 0 of the last axis, and how far one step takes it.
        let last = axes.iter().next_back();
        let moving = |f: &Affine| {
            f.terms()
                .iter()
                .find(|t| Some(t.1) == last)
                .map_or(0, |t| t.0)
        };
        let from: Vec<(i64, i64)> = index.iter().map(|f| (f.at(at), moving(f))).collect();
        reader.row(&from, inner).map_err(|fault| match fault {
            Missing::Unasked => run.malformed("a load of an element that nobody asked for".into()),
            Missing::Unwritten(at) => SimulateError::ReadUnwritten {
                kernel: run.whole.number,
                buffer: run.whole.tile.buffers[id.index()].name.clone(),
                coordinate: stored.coordinate(at),
            },
        })?;
        for (n, tile) in position.iter_mut().zip(outer).rev() {
            *n += 1;
            if *n < tile.count() {
                break;
            }
            *n = 0;
        }
    }
    let Reader { data, sides, .. } = reader;
    Ok((Block { axes, shape, data }, sides))
}

/// An element that should be there.
enum Missing {
    Unasked,
    /// At this place.
    Unwritten(usize),
}

struct Reader<'a, S> {
    stored: &'a Stored<S>,
    held: &'a [Picked],
    strides: Vec<usize>,
    fill: S,
    data: Vec<S>,
    sides: Sides,
}

impl<S: Scalar> Reader<'_, S> {
    /// Where a coordinate of an axis is in memory; none outside the buffer.
    fn place(&self, axis: usize, coordinate: i64) -> Result<Option<usize>, Missing> {
        if !(0..self.stored.extents[axis] as i64).contains(&coordinate) {
            return Ok(None);
        }
        let place = self.held[axis].position(coordinate as u64);
        Ok(Some(place.ok_or(Missing::Unasked)? * self.strides[axis]))
    }

    /// Where a row begins along the one index that moves, and how far a step takes it, in memory; none where that is not one line of the
    /// buffer, all of it inside.
    fn line(&self, moving: &[(usize, i64, i64)], inner: Option<&Tile>) -> Option<(i64, i64)> {
        let ([(axis, at, step)], Some(tile)) = (moving, inner) else {
            return None;
        };
        let extent = self.stored.extents[*axis] as i64;
        let inside = |coordinate: u64| (0..extent).contains(&(at + step * coordinate as i64));
        let whole = matches!(self.held[*axis], Picked::All(_)) && tile.is_whole();
        if !whole || tile.count() == 0 || !inside(tile.first) || !inside(tile.last()) {
            return None;
        }
        let stride = self.strides[*axis] as i64;
        Some(((at + step * tile.first as i64) * stride, step * stride))
    }

    /// The elements of one row: of each index, where it is at coordinate 0 and how far a step takes it.
    fn row(&mut self, from: &[(i64, i64)], inner: Option<&Tile>) -> Result<(), Missing> {
        let mut base = Some(0);
        let mut moving = Vec::new();
        for (axis, (at, step)) in from.iter().enumerate() {
            if *step != 0 {
                moving.push((axis, *at, *step));
            } else if let Some(sum) = base {
                base = self.place(axis, *at)?.map(|place| sum + place);
            }
        }
        let length = inner.map_or(1, Tile::count);
        let Some(base) = base else {
            self.sides.no |= length > 0;
            self.data.extend(std::iter::repeat_n(self.fill, length));
            return Ok(());
        };
        if let Some((from, step)) = self.line(&moving, inner) {
            self.sides.yes |= length > 0;
            let places = (0..length as i64).map(|p| base + (from + p * step) as usize);
            if let Some(written) = &self.stored.written
                && let Some(at) = places.clone().find(|at| !written[*at])
            {
                return Err(Missing::Unwritten(at));
            }
            self.data.extend(places.map(|at| self.stored.data[at]));
            return Ok(());
        }
        for p in 0..length {
            let coordinate = inner.map_or(0, |tile| tile.at(p) as i64);
            let mut flat = Some(base);
            for (axis, at, step) in &moving {
                let place = self.place(*axis, at + step * coordinate)?;
                flat = flat.zip(place).map(|(sum, place)| sum + place);
            }
            match flat {
                None => {
                    self.sides.no = true;
                    self.data.push(self.fill);
                }
                Some(at) => {
                    self.sides.yes = true;
                    let written = self.stored.written.as_ref();
                    if written.is_some_and(|w| !w[at]) {
                        return Err(Missing::Unwritten(at));
                    }
                    self.data.push(self.stored.data[at]);
                }
            }
        }
        Ok(())
    }
}

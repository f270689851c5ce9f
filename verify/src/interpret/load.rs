//! What a load gives: a tile of a buffer through an index function an axis, and its fill outside.

use super::memory::{Side, Stored};
use super::run::Run;
use crate::block::{self, Block};
use crate::coverage::Sides;
use crate::picked::Tile;
use crate::scalar::Scalar;
use crate::simulate_error::SimulateError;
use ir::{AxisId, AxisSet, BufferId, Quotient};

/// The tile, and whether it met elements of the buffer, and such as are none.
pub(super) fn load<S: Scalar>(
    run: &Run<'_, S>,
    id: BufferId,
    index: &[Quotient],
    fill: f64,
) -> Result<(Block<S>, Sides), SimulateError> {
    let stored = (run.memory.tensors)
        .get(id.index())
        .ok_or_else(|| run.malformed("a load from no buffer".into()))?;
    let along = run.whole.tile.axes_loaded(id, index);
    if along.len() != index.len() {
        return Err(run.malformed("a load with a wrong number of indices".into()));
    }
    let sides = stored.sides(run.whole.tile, id, &along);
    let sides =
        sides.ok_or_else(|| run.malformed("a load from a buffer that nobody asked for".into()))?;
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
        along: sides,
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
        let moving = |f: &Quotient| {
            let mut terms = f.function().terms().iter();
            terms.find(|t| Some(t.1) == last).map_or(0, |t| t.0)
        };
        let row = |f: &Quotient| Along {
            at: f.function().at(at),
            step: moving(f),
            divisor: f.divisor(),
        };
        let from: Vec<Along> = index.iter().map(row).collect();
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

/// An index in a row: what is divided at coordinate 0 of the last axis, how far a step takes it, and by what it is divided.
#[derive(Clone, Copy)]
struct Along {
    at: i64,
    step: i64,
    divisor: i64,
}

impl Along {
    fn value(&self, coordinate: i64) -> i64 {
        self.at + self.step * coordinate
    }
}

struct Reader<'a, S> {
    stored: &'a Stored<S>,
    along: Vec<Side<'a>>,
    fill: S,
    data: Vec<S>,
    sides: Sides,
}

impl<S: Scalar> Reader<'_, S> {
    /// Where a quotient along an axis is in memory; none outside the buffer.
    fn place(&self, axis: usize, value: i64, divisor: i64) -> Result<Option<usize>, Missing> {
        let coordinate = value / divisor;
        let side = &self.along[axis];
        let inside = (0..side.extent() as i64).contains(&coordinate);
        if !inside || value % divisor != 0 {
            return Ok(None);
        }
        let place = side.place(coordinate as u64);
        Ok(Some(place.ok_or(Missing::Unasked)?))
    }

    /// Where a row begins along the one index that moves, and how far a step takes it, in memory; none where that is not one line of the
    /// buffer, all of it inside.
    fn line(&self, moving: &[(usize, Along)], inner: Option<&Tile>) -> Option<(i64, i64)> {
        let ([(axis, Along { at, step, divisor })], Some(tile)) = (moving, inner) else {
            return None;
        };
        if *divisor != 1 {
            return None;
        }
        let extent = self.along[*axis].extent() as i64;
        let inside = |coordinate: u64| (0..extent).contains(&(at + step * coordinate as i64));
        let stride = self.along[*axis].stride()? as i64;
        if !tile.is_whole() || tile.count() == 0 || !inside(tile.first) || !inside(tile.last()) {
            return None;
        }
        Some(((at + step * tile.first as i64) * stride, step * stride))
    }

    /// The elements of one row: along each index.
    fn row(&mut self, from: &[Along], inner: Option<&Tile>) -> Result<(), Missing> {
        let mut base = Some(0);
        let mut moving = Vec::new();
        for (axis, along) in from.iter().enumerate() {
            if along.step != 0 {
                moving.push((axis, *along));
            } else if let Some(sum) = base {
                let place = self.place(axis, along.at, along.divisor)?;
                base = place.map(|place| sum + place);
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
            for (axis, along) in &moving {
                let place = self.place(*axis, along.value(coordinate), along.divisor)?;
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

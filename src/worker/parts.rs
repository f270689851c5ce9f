//! Which elements of an output are compared, and how they come from the GPU.
//!
//! All of them, unless there are so many that the host would take seconds for each kind of input, or has no memory for them in f64: then
//! stretches of whole rows from the first to the last.

use codegen::reference::Element;
use device::gpu_error::GpuError;
use device::session::Session;
use ir::Dtype;
use rayon::prelude::*;
use std::ops::Range;
use verify::Stored;

/// Outputs of at most so many elements are compared whole: 2 GiB of f64.
pub(super) const COMPARED: u64 = 1 << 28;
/// Stretches that are compared of a larger one.
const STRETCHES: u64 = 64;

/// Some elements of an output in memory order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Where they are: starts and ends ascend.
    pub(super) ranges: Vec<Range<u64>>,
}

impl Parts {
    /// Of an output whose last dimension has `row` elements at most so many elements; at least a row of each stretch.
    pub(super) fn of(elements: u64, row: u64, most: u64) -> Self {
        let row = row.max(1);
        let rows = elements / row;
        let length = (most / STRETCHES / row).max(1);
        if elements <= most || rows <= STRETCHES * length {
            let all = 0..elements;
            return Self { ranges: vec![all] };
        }
        let start = |n: u64| {
            let last = u128::from(rows - length) * u128::from(n) / u128::from(STRETCHES - 1);
            last as u64
        };
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for n in 0..STRETCHES {
            let (from, to) = (start(n) * row, (start(n) + length) * row);
            match ranges.last_mut() {
                Some(last) if last.end >= from => last.end = to,
                Some(_) | None => ranges.push(from..to),
            }
        }
        Self { ranges }
    }

    /// How many elements they are.
    pub(super) fn elements(&self) -> u64 {
        self.ranges.iter().map(|r| r.end - r.start).sum()
    }
}

/// Elements that lie side by side on the GPU and side by side among those that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where the first is in the buffer.
    pub(super) from: u64,
    /// Where it goes.
    pub(super) to: u64,
    /// How many they are.
    pub(super) length: u64,
}

/// How an output lies in the buffer of one slab: `outer` times a range of the axis, of `inner` elements a coordinate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab {
    pub(super) outer: u64,
    pub(super) extent: u64,
    pub(super) inner: u64,
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Slab {
    /// What of some parts the slab holds.
    pub(super) fn runs(&self, parts: &Parts) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        // Where the elements of each range go.
        let places = parts.ranges.iter().scan(0, |next, range| {
            *next += range.end - range.start;
            Some(*next - (range.end - range.start))
        });
        let all: Vec<(&Range<u64>, u64)> = parts.ranges.iter().zip(places).collect();
        let mut done = 0;
        for outer in 0..self.outer {
            let start = (outer * self.extent + self.first) * self.inner;
            let end = start + self.count * self.inner;
            let local = outer * self.count * self.inner;
            while all.get(done).is_some_and(|(range, _)| range.end <= start) {
                done += 1;
            }
            for (range, place) in all[done..]
                .iter()
                .take_while(|(range, _)| range.start < end)
            {
                let (from, to) = (range.start.max(start), range.end.min(end));
                let run = Run {
                    from: local + from - start,
                    to: place + from - range.start,
                    length: to.saturating_sub(from),
                };
                let ends = |last: &Run| [last.from + last.length, last.to + last.length];
                match runs.last_mut() {
                    Some(last) if ends(last) == [run.from, run.to] => last.length += run.length,
                    Some(_) | None => runs.push(run),
                }
            }
        }
        runs.retain(|run| run.length > 0);
        runs
    }
}

/// Gaps between runs that are rather read than skipped, in elements.
const GAP: u64 = 1 << 16;

/// Brings runs of a buffer's elements of so many bytes back, in pieces, each with the place of its first element.
fn download(
    session: &Session,
    buffer: usize,
    size: u64,
    runs: &[Run],
    mut take: impl FnMut(usize, &[u8]),
) -> Result<(), GpuError> {
    let mut rest = runs;
    while let Some(first) = rest.first() {
        // Runs that are near each other are read in one go.
        let mut end = first.from + first.length;
        let mut many = 1;
        while let Some(next) = rest.get(many).filter(|r| r.from <= end + GAP) {
            end = end.max(next.from + next.length);
            many += 1;
        }
        let (now, later) = rest.split_at(many);
        session.download_in_pieces(buffer, first.from * size..end * size, |start, piece| {
            // Pieces are whole elements: they are cut at multiples of 8 bytes from the start.
            let (start, stop) = (start / size, start / size + piece.len() as u64 / size);
            for run in now {
                let (from, to) = (run.from.max(start), (run.from + run.length).min(stop));
                if from < to {
                    let bytes = ((from - start) * size) as usize..((to - start) * size) as usize;
                    take((run.to + from - run.from) as usize, &piece[bytes]);
                }
            }
        })?;
        rest = later;
    }
    Ok(())
}

/// The numbers that runs of a buffer hold, brought to their places.
pub(super) fn numbers(
    session: &Session,
    buffer: usize,
    element: Element,
    runs: &[Run],
    into: &mut [f64],
) -> Result<(), GpuError> {
    let size = element.bytes() as usize;
    download(session, buffer, element.bytes(), runs, |at, bytes| {
        (into[at..at + bytes.len() / size].par_chunks_mut(PIECE))
            .zip(bytes.par_chunks(PIECE * size))
            .for_each(|(to, from)| to.copy_from_slice(&element.decode(from)));
    })
}

/// Elements that one thread converts at a time.
const PIECE: usize = 1 << 14;

/// The values of a dtype that these parts of a buffer hold.
pub(super) fn stored(
    session: &Session,
    buffer: usize,
    dtype: Dtype,
    parts: &[Range<u64>],
) -> Result<Stored, GpuError> {
    let mut to = 0;
    let runs = parts.iter().map(|range| {
        let length = range.end - range.start;
        to += length;
        Run {
            from: range.start,
            to: to - length,
            length,
        }
    });
    let runs: Vec<Run> = runs.collect();
    let size = dtype.bytes() as usize;
    let mut into = vec![0; to as usize * size];
    download(session, buffer, dtype.bytes(), &runs, |at, bytes| {
        (into[at * size..at * size + bytes.len()].par_chunks_mut(PIECE * size))
            .zip(bytes.par_chunks(PIECE * size))
            .for_each(|(to, from)| to.copy_from_slice(from));
    })?;
    Ok(Stored::new(dtype, into))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_reach_from_the_first_to_the_last_row() {
        for (elements, row, most) in [(1 << 20, 1000, 1 << 30), (6400, 100, 6000)] {
            let parts = Parts::of(elements, row, most);
            assert_eq!((parts.ranges.len(), parts.elements()), (1, elements));
        }
        for (rows, row, most) in [
            (1_000_003, 7, 100_000),
            (70, 1 << 20, 1 << 10),
            (900, 3, 640),
        ] {
            let parts = Parts::of(rows * row, row, most);
            assert_eq!(parts.ranges[0].start, 0);
            assert_eq!(parts.ranges.last().expect("one").end, rows * row);
            assert!(parts.elements() < rows * row);
            for pair in parts.ranges.windows(2) {
                assert!(pair[0].end < pair[1].start);
            }
            let whole = |r: &Range<u64>| r.start.is_multiple_of(row) && r.end.is_multiple_of(row);
            assert!(parts.ranges.iter().all(whole));
        }
    }

    /// Oracle: the definition, element by element.
    #[test]
    fn slabs_give_each_wanted_element_once() {
        for (outer, extent, inner) in [(1, 12, 5), (3, 7, 4), (6, 5, 1), (1, 1, 40)] {
            let elements = outer * extent * inner;
            let all: [&[(u64, u64)]; 4] = [
                &[(0, 9), (4, 9), (6, 11)],
                &[(0, elements)],
                &[(0, 9), (12, 13), (20, elements)],
                &[(elements - 3, elements)],
            ];
            for pairs in all {
                let ranges = pairs.iter().map(|(from, to)| *from..*to).collect();
                let parts = Parts { ranges };
                let wanted: Vec<u64> = parts.ranges.iter().cloned().flatten().collect();
                for count in 1..=extent {
                    let mut found = vec![None; wanted.len()];
                    for first in (0..extent).step_by(count as usize) {
                        let own = count.min(extent - first);
                        let slab = Slab {
                            outer,
                            extent,
                            inner,
                            first,
                            count: own,
                        };
                        for run in slab.runs(&parts) {
                            for n in 0..run.length {
                                let local = run.from + n;
                                let (o, rest) = (local / (own * inner), local % (own * inner));
                                let global = (o * extent + first) * inner + rest;
                                let place = &mut found[(run.to + n) as usize];
                                assert_eq!(place.replace(global), None);
                            }
                        }
                    }
                    let found: Vec<u64> = found.into_iter().map(|x| x.expect("each")).collect();
                    assert_eq!(found, wanted);
                }
            }
        }
    }
}

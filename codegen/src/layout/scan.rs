//! A scan along an axis within warps, step by step.
//!
//! The digits of the axis are gone over from the one whose steps are the smallest on. What is scanned so far are then runs of neighbouring
//! coordinates, each with what it has reduced in its last element, and a step puts what is in front of each run to its elements: by additions where
//! the digit is one of registers, by shuffles where it is one of lanes (W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986).

use super::{Factor, Layout};
use ir::AxisId;

/// One step, in registers as [`Layout::registers`] counts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanStep {
    /// The last element of a run: this register, in the lane that has all of [`lanes`](Self::lanes) set.
    pub last: u64,
    /// The bits of the lane that count within a run.
    pub lanes: u32,
    /// How the run comes to those behind it.
    pub over: ScanOver,
    /// The elements that get what is in front of them.
    pub to: Vec<u64>,
}

/// What a step goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOver {
    /// The next run of the same lanes.
    Register,
    /// The runs of other lanes.
    Lanes {
        /// The first bit of the lane that counts them.
        first: u32,
        /// The number of bits.
        bits: u32,
    },
}

impl Layout {
    /// The steps of a scan along `axis`; none where other warps, or other blocks, have some of its coordinates, or where digits do not nest.
    pub fn scan(&self, axis: AxisId) -> Option<Vec<ScanStep>> {
        let along = |f: &Factor| f.axis == Some(axis);
        if self.warps.iter().chain(&self.blocks).any(along) {
            return None;
        }
        // (stride, size, place of its first step: a weight of registers, or a bit of lanes)
        let mut digits: Vec<(u64, u64, Place)> = Vec::new();
        let mut weight = 1;
        for f in &self.registers {
            if along(f) {
                digits.push((f.stride, f.size, Place::Register(weight)));
            }
            weight *= f.size;
        }
        let mut bit = 0;
        for f in &self.lanes {
            if along(f) {
                digits.push((f.stride, f.size, Place::Lane(bit)));
            }
            bit += f.size.trailing_zeros();
        }
        digits.sort_by_key(|d| d.0);
        let mut next = 1;
        for (stride, size, _) in &digits {
            if *stride != next {
                return None;
            }
            next *= size;
        }
        let mut steps = Vec::new();
        // The registers of each run so far, in order.
        let mut runs: Vec<Vec<u64>> = (0..self.register_count()).map(|r| vec![r]).collect();
        let mut lanes = 0;
        for (_, size, place) in digits {
            match place {
                Place::Register(weight) => {
                    let (mut longer, later): (Vec<_>, Vec<_>) =
                        (runs.into_iter()).partition(|run| run[0] / weight % size == 0);
                    for run in &mut longer {
                        for at in 1..size {
                            let first = run[0] + at * weight;
                            let next = later.iter().find(|run| run[0] == first)?;
                            steps.push(ScanStep {
                                last: *run.last()?,
                                lanes,
                                over: ScanOver::Register,
                                to: next.clone(),
                            });
                            run.extend(next);
                        }
                    }
                    runs = longer;
                }
                Place::Lane(bit) => {
                    let bits = size.trailing_zeros();
                    for run in &runs {
                        steps.push(ScanStep {
                            last: *run.last()?,
                            lanes,
                            over: ScanOver::Lanes { first: bit, bits },
                            to: run.clone(),
                        });
                    }
                    lanes |= ((1 << bits) - 1) << bit;
                }
            }
        }
        Some(steps)
    }
}

/// Where a digit counts.
#[derive(Clone, Copy)]
enum Place {
    Register(u64),
    Lane(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    const J: AxisId = AxisId(0);
    const I: AxisId = AxisId(1);

    /// What the steps make of ones is how many elements are up to each.
    fn counts(layout: &Layout, axis: AxisId) -> Option<()> {
        let registers = layout.register_count() as usize;
        let mut all = vec![[1u64; 32]; registers];
        for step in layout.scan(axis)? {
            let last = all[step.last as usize];
            let last = |lane: usize| last[lane | step.lanes as usize];
            let more = |lane: usize| match step.over {
                ScanOver::Register => last(lane),
                ScanOver::Lanes { first, bits } => {
                    let own = lane >> first & ((1 << bits) - 1);
                    (1..=own).map(|back| last(lane - (back << first))).sum()
                }
            };
            for register in &step.to {
                let lanes = all[*register as usize].iter_mut().enumerate();
                lanes.for_each(|(lane, count)| *count += more(lane));
            }
        }
        for (register, lanes) in all.iter().enumerate() {
            for (lane, count) in lanes.iter().enumerate() {
                let at = layout.coordinate(axis, register as u64, lane as u64, 0);
                assert_eq!(*count, 1 + at, "{layout:?}");
            }
        }
        Some(())
    }

    #[test]
    fn steps_go_over_each_coordinate_once() {
        let mut found = 0;
        for (j, i) in [
            (1, 8),
            (4, 1),
            (32, 3),
            (128, 4),
            (100, 2),
            (1024, 1),
            (8, 64),
        ] {
            for run in [1, 2, 4] {
                let layout = Layout::blocked(&[(J, j), (I, i)], run, 1, 1);
                for axis in [I, J] {
                    found += usize::from(counts(&layout, axis).is_some());
                }
            }
        }
        assert_eq!(found, 42);
    }

    #[test]
    fn no_steps_go_over_warps() {
        let sizes = [(J, 256), (I, 4)];
        let layout = Layout::blocked(&sizes, 1, 1, 4);
        assert_eq!(layout.scan(J), None);
        assert!(layout.scan(I).is_some());
    }
}

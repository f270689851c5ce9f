//! One warp: where it is in its role's statements, and what it holds.

use super::clock::{Access, Agent, Clock, Epoch};
use crate::layout::Layout;
use crate::machine::counts::{Groups, Stages};
use crate::machine::{
    At, Axis, Condition, FragmentId, Holds, LoopId, Machine, RingId, Source, Stage, Statement,
};
use ir::{Affine, AxisId, Bound, Corner};
use std::collections::BTreeMap;
use std::ops::Range;

/// Lanes of a warp.
pub(super) const LANES: usize = 32;

pub(super) fn lanes() -> Range<usize> {
    0..LANES
}

/// The registers of a fragment: of each, what each lane has; none where nothing was written.
pub(super) type Registers = Vec<[Option<f64>; LANES]>;

/// Statements that are under way.
#[derive(Clone)]
pub(super) struct Frame<'m> {
    pub(super) body: &'m [Statement],
    pub(super) next: usize,
    pub(super) of: Of,
    /// Where tiles were before: what is declared inside ends with it.
    origins: BTreeMap<AxisId, i64>,
    /// What was declared inside.
    pub(super) declared: Vec<FragmentId>,
}

/// What statements belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Block,
    Loop(LoopId),
    Tiles,
}

/// Instructions under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) agent: Agent,
    pub(super) writes: FragmentId,
    pub(super) reads: Option<FragmentId>,
}

/// One warp.
pub(super) struct Warp<'m> {
    pub(super) machine: &'m Machine,
    pub(super) id: Agent,
    /// Which of the blocks that run together it belongs to.
    pub(super) rank: usize,
    /// Its number in the block.
    pub(super) warp: u64,
    /// Which of the warps that only fill rings it is one of.
    pub(super) fills: Option<u32>,
    pub(super) block: u64,
    /// Blocks of the launch.
    pub(super) blocks: u64,
    pub(super) work_tile: u64,
    pub(super) frames: Vec<Frame<'m>>,
    pub(super) clock: Clock,
    /// Its own time when its lanes last met.
    pub(super) met: u32,
    /// Where the tiles begin that it is at.
    pub(super) origins: BTreeMap<AxisId, i64>,
    pub(super) ranges: BTreeMap<LoopId, (i64, i64)>,
    pub(super) now: BTreeMap<LoopId, i64>,
    pub(super) stages: Stages,
    /// The parity of each ring.
    pub(super) rings: BTreeMap<RingId, u32>,
    pub(super) fragments: Vec<Option<Registers>>,
    pub(super) copies: Groups<Agent>,
    pub(super) flights: Groups<Flight>,
    /// Whether it waited for the kernels in front.
    pub(super) waited: bool,
    /// Where it has arrived at a barrier: how often that had ended before.
    pub(super) arrived: Option<u64>,
    pub(super) is_counted: bool,
}

impl<'m> Warp<'m> {
    pub(super) fn epoch(&self) -> Epoch {
        Epoch {
            agent: self.id,
            time: self.clock.time(self.id),
        }
    }

    /// Its own access to memory.
    pub(super) fn access(&self) -> Access<'_> {
        Access {
            epoch: self.epoch(),
            clock: &self.clock,
        }
    }

    /// One more step of its own time.
    pub(super) fn tick(&mut self) {
        self.clock.set(self.id, self.clock.time(self.id) + 1);
    }

    pub(super) fn enter(&mut self, body: &'m [Statement], of: Of) {
        self.frames.push(Frame {
            body,
            next: 0,
            of,
            origins: self.origins.clone(),
            declared: Vec::new(),
        });
    }

    /// Ends the innermost statements.
    pub(super) fn leave(&mut self) -> Result<(), String> {
        let Some(frame) = self.frames.pop() else {
            return Ok(());
        };
        self.origins = frame.origins;
        for id in frame.declared {
            self.is_free(id, true)?;
            self.fragments[id.0 as usize] = None;
        }
        Ok(())
    }

    /// The statement that comes next; none behind the last one.
    pub(super) fn statement(&self) -> Option<&'m Statement> {
        let frame = self.frames.last()?;
        frame.body.get(frame.next)
    }

    pub(super) fn axis(&self, axis: AxisId) -> &'m Axis {
        &self.machine.axes[&axis]
    }

    /// Where the tile begins.
    pub(super) fn origin(&self, axis: AxisId) -> Result<i64, String> {
        if self.machine.axes.get(&axis).is_none_or(|a| a.whole) {
            return Ok(0);
        }
        let found = self.origins.get(&axis).copied();
        found.ok_or_else(|| format!("axis {} has no tile here", axis.0))
    }

    /// How many coordinates of the tile exist.
    pub(super) fn limit(&self, axis: AxisId) -> Result<i64, String> {
        let own = self.axis(axis);
        let (tile, extent) = (own.tile as i64, own.extent as i64);
        Ok(match own.is_partial() {
            true => tile.min(extent - self.origin(axis)?),
            false => tile,
        })
    }

    /// The coordinate of an element in the tile.
    pub(super) fn local(&self, layout: &Layout, axis: AxisId, register: u64, lane: usize) -> i64 {
        let thread = layout.coordinate(axis, register, lane as u64, self.warp);
        (thread + layout.block_part(axis, self.rank as u64)) as i64
    }

    /// The coordinate of an element.
    pub(super) fn global(
        &self,
        layout: &Layout,
        axis: AxisId,
        register: u64,
        lane: usize,
    ) -> Result<i64, String> {
        Ok(self.origin(axis)? + self.local(layout, axis, register, lane))
    }

    /// A function of an element's coordinates.
    pub(super) fn function(
        &self,
        function: &Affine,
        layout: &Layout,
        register: u64,
        lane: usize,
    ) -> Result<i64, String> {
        let mut sum = function.offset;
        for (c, axis) in function.terms() {
            sum += c * self.global(layout, *axis, register, lane)?;
        }
        Ok(sum)
    }

    /// Whether an element's coordinates exist.
    pub(super) fn exists(
        &self,
        layout: &Layout,
        axes: impl IntoIterator<Item = AxisId>,
        register: u64,
        lane: usize,
    ) -> Result<bool, String> {
        for axis in axes {
            if self.axis(axis).tile > 1
                && self.machine.overhangs(layout, axis)
                && self.local(layout, axis, register, lane) >= self.limit(axis)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a thread is the first of those that hold the same.
    pub(super) fn is_first(&self, layout: &Layout, lane: usize) -> bool {
        let (lanes, warps) = layout.copy_masks();
        let blocks = layout.block_copies();
        lane as u32 & lanes == 0 && self.warp as u32 & warps == 0 && self.rank as u32 & blocks == 0
    }

    fn corner(&self, axis: AxisId, corner: Corner) -> Result<i64, String> {
        Ok(match corner {
            Corner::First => self.origin(axis)?,
            Corner::Last => self.origin(axis)? + self.limit(axis)? - 1,
        })
    }

    fn bound(&self, bound: &Bound) -> Result<i64, String> {
        let mut sum = bound.offset;
        for (c, axis, corner) in &bound.terms {
            sum += c * self.corner(*axis, *corner)?;
        }
        Ok(sum.div_euclid(bound.divisor))
    }

    pub(super) fn range(
        &mut self,
        number: LoopId,
        axis: AxisId,
        low: &[Bound],
        high: &[Bound],
    ) -> Result<(), String> {
        let own = self.axis(axis);
        let (mut from, mut to) = (0, own.extent as i64);
        for b in low {
            from = from.max(self.bound(b)?);
        }
        for b in high {
            to = to.min(self.bound(b)?);
        }
        let tile = own.tile as i64;
        let range = (from / tile, (to.max(0) + tile - 1) / tile);
        self.ranges.insert(number, range);
        Ok(())
    }

    pub(super) fn bounds(&self, number: LoopId) -> Result<(i64, i64), String> {
        let found = self.ranges.get(&number).copied();
        found.ok_or_else(|| format!("loop {number} has no range"))
    }

    /// The number of an iteration.
    pub(super) fn at(&self, at: At) -> Result<i64, String> {
        let now = |n: LoopId| {
            let found = self.now.get(&n).copied();
            found.ok_or_else(|| format!("loop {n} is not under way"))
        };
        Ok(match at {
            At::First(n) => self.bounds(n)?.0,
            At::FirstAnd(n, more) => self.bounds(n)?.0 + more as i64,
            At::Now(n) => now(n)?,
            At::NowAnd(n, more) => now(n)? + more as i64,
        })
    }

    pub(super) fn holds(&self, condition: Condition) -> Result<bool, String> {
        let not_first = |n: LoopId| Ok::<_, String>(self.at(At::Now(n))? > self.bounds(n)?.0);
        let not_empty = |n: LoopId| self.bounds(n).map(|(first, last)| first < last);
        Ok(match condition {
            Condition::Exists(at) => self.at(at)? < self.bounds(at.number())?.1,
            Condition::NotFirst(n) => not_first(n)?,
            Condition::NotEmpty(n) => not_empty(n)?,
            Condition::Group(n) => self.warp / 4 == n,
            Condition::Flag(id) => {
                let lanes = self.registers(id)?[0];
                let set = lanes.iter().filter(|x| **x == Some(1.0)).count();
                if set != 0 && set != LANES {
                    return Err("the lanes of a warp do not agree on a branch".into());
                }
                set > 0
            }
            Condition::Lane0 => true,
            Condition::FirstBlock => self.rank == 0,
        })
    }

    pub(super) fn stage(&self, stage: Stage) -> Result<u64, String> {
        let found = self.stages.number(stage);
        found.ok_or_else(|| format!("{stage:?} is counted by nothing"))
    }

    pub(super) fn declare(&mut self, id: FragmentId) -> Result<(), String> {
        self.is_free(id, true)?;
        let registers = match &self.machine.fragment(id).holds {
            Holds::Floats(layout) => vec![[None; LANES]; layout.register_count() as usize],
            Holds::Rows { atoms, steps } => {
                vec![[Some(0.0); LANES]; (8 * atoms * steps) as usize]
            }
            Holds::Flag => vec![[Some(0.0); LANES]],
        };
        self.fragments[id.0 as usize] = Some(registers);
        if let Some(frame) = self.frames.last_mut() {
            frame.declared.push(id);
        }
        Ok(())
    }

    /// That no instruction under way writes a fragment, or reads what is going to be `written`.
    pub(super) fn is_free(&self, id: FragmentId, written: bool) -> Result<(), String> {
        let name = &self.machine.fragment(id).name;
        for flight in self.flights.all() {
            if flight.writes == id {
                return Err(format!(
                    "{name} is used while instructions under way may still write it"
                ));
            }
            if written && flight.reads == Some(id) {
                return Err(format!(
                    "{name} is overwritten while instructions under way may still read it"
                ));
            }
        }
        Ok(())
    }

    /// The registers of a fragment that nothing under way writes.
    pub(super) fn registers(&self, id: FragmentId) -> Result<&Registers, String> {
        self.is_free(id, false)?;
        self.held(id)
    }

    /// The same, whatever is under way.
    pub(super) fn held(&self, id: FragmentId) -> Result<&Registers, String> {
        let found = self.fragments[id.0 as usize].as_ref();
        found.ok_or_else(|| {
            format!(
                "{} is used where it is not declared",
                self.machine.fragment(id).name
            )
        })
    }

    /// Overwrites a fragment.
    pub(super) fn put(&mut self, id: FragmentId, registers: Registers) -> Result<(), String> {
        self.is_free(id, true)?;
        self.held(id)?;
        self.fragments[id.0 as usize] = Some(registers);
        Ok(())
    }

    /// One element of a source, as seen from an element of another layout.
    pub(super) fn element(
        &self,
        source: Source,
        within: &Layout,
        register: u64,
        lane: usize,
    ) -> Result<f64, String> {
        match source {
            Source::Constant(x) => Ok(x),
            Source::Coordinate(axis) => Ok(self.global(within, axis, register, lane)? as f64),
            Source::Fragment(id) => {
                let layout = self.machine.fragment(id).layout();
                let at = index(&layout, within, register);
                let held = self.registers(id)?[at as usize][lane];
                held.ok_or_else(|| {
                    format!(
                        "{} is read and was not written",
                        self.machine.fragment(id).name
                    )
                })
            }
        }
    }
}

/// The digits of a register.
fn digits(layout: &Layout, mut register: u64) -> Vec<u64> {
    let of = layout.registers.iter().map(|f| {
        let digit = register % f.size;
        register /= f.size;
        digit
    });
    of.collect()
}

/// The register of a layout that another layout's register names.
pub(super) fn index(of: &Layout, within: &Layout, register: u64) -> u64 {
    let digits = digits(within, register);
    let (mut sum, mut scale) = (0, 1);
    for f in &of.registers {
        if f.axis.is_some()
            && let Some(at) = within.registers.iter().position(|g| g == f)
        {
            sum += scale * digits[at];
        }
        scale *= f.size;
    }
    sum
}

//! Reductions across the blocks of a team: each posts its parts on the board, all meet, and each combines all parts in the
//! same order. Where nobody but one needs the result, the last to come does that, and nobody waits.

use super::{BUSY, Lowering, Machined};
use crate::Board;
use crate::machine::{self, COUNTER_BYTES, Post};
use ir::{AxisSet, Kernel, ReduceOp, Reject, TileOp, TileProgram, ValueId};

/// Reads that a thread has under way at a time, and half of them where it has few registers.
const AHEAD: u64 = 64;

/// The teams of a kernel, and what they post.
pub(super) struct Team {
    /// The grid axes along which the blocks of a team differ.
    pub(super) axes: AxisSet,
    /// Blocks of a team.
    size: u64,
    /// Teams of the grid.
    teams: u64,
    /// What each meeting reduces.
    meetings: Vec<Vec<ValueId>>,
    /// Whether all go on after the last meeting.
    all_go_on: bool,
    /// Floats that each block posted up to now.
    posted: u64,
    /// Loops around what is lowered of which members do different iterations.
    pub(super) apart: u32,
}

impl Team {
    pub(super) fn of(tile: &TileProgram, kernel: &Kernel) -> Option<Self> {
        let axes = kernel.team();
        if axes.is_empty() {
            return None;
        }
        let blocks = |inside: bool| {
            let wanted = kernel.grid.iter().filter(|a| axes.contains(**a) == inside);
            tile.points(kernel, &wanted.copied().collect())
        };
        Some(Self {
            size: blocks(true),
            teams: blocks(false),
            meetings: kernel.meetings(),
            all_go_on: kernel.all_go_on(),
            posted: 0,
            apart: 0,
            axes,
        })
    }

    pub(super) fn shape(&self) -> machine::Team {
        machine::Team {
            size: self.size,
            waits: self.all_go_on || self.meetings.len() > 1,
            meetings: self.meetings.len() as u64,
        }
    }

    /// Bytes of all counters: the tickets', then one a team.
    fn counters(&self) -> u64 {
        (128 + self.teams * COUNTER_BYTES).next_multiple_of(128)
    }
}

impl Lowering<'_> {
    /// The board of the whole kernel.
    pub(super) fn board(&self) -> Board {
        let Some(team) = &self.team else {
            return Board::default();
        };
        let counters = team.counters();
        Board {
            bytes: counters + team.teams * team.size * team.posted * 4,
            counters,
            together: if team.shape().waits { team.size } else { 1 },
        }
    }

    /// Whether one block of a team stores what the whole team has alike.
    pub(super) fn stores_alone(&self, axes: &AxisSet) -> bool {
        self.team.as_ref().is_some_and(|team| {
            let alike = team.apart == 0 && !axes.intersects(&team.axes);
            team.all_go_on && alike
        })
    }

    /// The number of the meeting that makes a value.
    pub(super) fn meeting_of(&self, v: ValueId) -> Option<usize> {
        let team = self.team.as_ref()?;
        team.meetings.iter().position(|m| m.contains(&v))
    }

    /// Lowers a meeting, unless that is done.
    pub(super) fn meet(&mut self, round: usize, out: &mut Vec<Machined>) -> Result<(), Reject> {
        let Some(team) = &self.team else {
            return Ok(());
        };
        let group = team.meetings[round].clone();
        if group.iter().any(|v| self.find(*v, None).is_some()) {
            return Ok(());
        }
        let wait = team.all_go_on || round + 1 < team.meetings.len();
        let mut posts = Vec::new();
        for v in group {
            let TileOp::Reduce { op, value, axes } = self.plan.op(v) else {
                return Err(Reject::Schedule("a meeting that reduces nothing".into()));
            };
            self.reduce_block(v, *op, *value, axes, out)?;
            let post = self.post(v, *op, axes)?;
            out.push(Machined::Post(Box::new(post.clone())));
            posts.push(post);
        }
        out.push(if wait {
            Machined::Meet(round as u64 + 1)
        } else {
            self.scratch(1);
            Machined::LastGoesOn
        });
        out.extend(posts.into_iter().map(|p| Machined::Gather(Box::new(p))));
        Ok(())
    }

    /// What this block has of a value, and its place among the team's parts.
    fn post(&mut self, v: ValueId, op: ReduceOp, axes: &AxisSet) -> Result<Post, Reject> {
        let Some(fragment) = self.find(v, None) else {
            return Err(Reject::Schedule("a reduction without registers".into()));
        };
        let layout = self.fragment(fragment).layout();
        let threads = self.plan.threads() * u64::from(self.schedule.blocks_per_sm);
        let Some(team) = &mut self.team else {
            return Err(Reject::Schedule("a meeting without a team".into()));
        };
        if !team.axes.is_subset(axes) {
            return Err(Reject::Schedule(
                "a reduction over some of a team's axes".into(),
            ));
        }
        // All members hold alike parts alike: threads without copies write and read side by side.
        let (strides, floats) = if layout.copy_masks() == (0, 0) {
            (None, layout.register_count() * self.plan.threads())
        } else {
            let (strides, floats) = layout.packed();
            (Some(strides), floats)
        };
        // What was posted before, of all teams, comes first.
        let start = team.counters() + team.teams * team.size * team.posted * 4;
        let before = team.posted;
        team.posted += floats;
        let ahead = if threads > BUSY { AHEAD / 2 } else { AHEAD };
        Ok(Post {
            op,
            fragment,
            strides,
            floats,
            before,
            start,
            ahead: (ahead / layout.register_count()).max(1),
            layout,
        })
    }
}

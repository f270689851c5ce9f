//! What happens before what: vector clocks.
//!
//! An *agent* is whatever acts by itself: a warp, or a copy or an instruction that is under way. What an agent does at a time of its own is an
//! [`Epoch`]. A clock holds, of each agent, the time up to which everything that it did happened before now (Mattern 1988; Flanagan and Freund,
//! "FastTrack", 2009).

/// The number of an agent.
pub(super) type Agent = usize;

/// When an agent did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) agent: Agent,
    pub(super) time: u32,
}

/// What happened before.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    /// Whether something happened before.
    pub(super) fn sees(&self, epoch: Epoch) -> bool {
        self.time(epoch.agent) >= epoch.time
    }

    /// Up to when it knows what an agent did.
    pub(super) fn time(&self, agent: Agent) -> u32 {
        self.0.get(agent).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, agent: Agent, time: u32) {
        if self.0.len() <= agent {
            self.0.resize(agent + 1, 0);
        }
        self.0[agent] = time;
    }

    /// Whatever happened before another clock's now, happened before this one's.
    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, theirs) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*theirs);
        }
    }
}

/// Who accesses memory, and what happened before that.
#[derive(Clone, Copy)]
pub(super) struct Access<'a> {
    pub(super) epoch: Epoch,
    pub(super) clock: &'a Clock,
}

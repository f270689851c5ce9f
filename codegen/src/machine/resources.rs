//! What a block of a machine program takes of a multiprocessor, before anything is compiled.
//!
//! Threads, shared memory and barriers are exact. Registers are an estimate of what the assembler needs where nothing bounds it: the
//! fragments that live at a time, from their definition to their last use and around loops, and beside them what addresses, counters and
//! results under way take (`effect.rs`). What it does not know is how the assembler orders instructions, and that it makes do with fewer
//! registers where a schedule bounds them.

mod effect;
mod values;

pub(crate) use self::effect::{Touched, touched};

use self::effect::{Effect, effect, gaps, in_loop};
use self::values::Values;
use super::{Among, FragmentId, Machine, Policy, Statement, Sync};
use crate::resources::threads_fit;
use ir::{Reject, Target};
use std::collections::BTreeSet;

/// What a block takes of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Threads, with those that only fill rings.
    pub threads: u64,
    /// Shared memory in bytes.
    pub shared_bytes: u64,
    /// Named barriers: the hardware sets aside those up to the highest number in use, and all where threads compute the number.
    pub barriers: u64,
    /// Barriers in shared memory, of eight bytes each.
    pub stage_barriers: u64,
    /// Registers that a thread needs that computes.
    pub registers: u64,
    /// Registers that a thread needs that only fills rings, if there are such threads.
    pub producer_registers: Option<u64>,
}

impl Resources {
    /// Registers that a kernel needs of which all threads have as many.
    pub fn most_registers(&self) -> u64 {
        self.registers.max(self.producer_registers.unwrap_or(0))
    }
}

/// Named barriers of a block.
const NAMED: u64 = 16;

/// The barrier at which a single group of warps votes.
const VOTE: u64 = 8;

impl Machine {
    /// Whether a block, as many as are to be on a multiprocessor, and those that wait for each other find room by their threads and their
    /// shared memory.
    ///
    /// # Errors
    /// What there is too much of.
    pub(crate) fn finds_room(&self, target: &Target) -> Result<(), Reject> {
        let (threads, blocks) = (self.threads(), self.blocks_per_sm);
        threads_fit(target, threads, blocks)?;
        let Some(block_group) = self.block_group.filter(|t| t.waits) else {
            return Ok(());
        };
        let resident = u64::from(blocks)
            .min(target.shared_per_sm / target.taken_shared(self.shared_bytes()))
            .min(u64::from(target.threads_per_sm) / threads)
            .max(1);
        let room = resident * u64::from(target.sms);
        match block_group.size > room {
            true => Err(Reject::Grid(format!(
                "block groups of {} blocks, and room for {room}",
                block_group.size
            ))),
            false => Ok(()),
        }
    }

    /// What a block takes.
    pub fn resources(&self) -> Resources {
        let producers = self.producers.iter();
        Resources {
            threads: self.threads(),
            shared_bytes: self.shared_bytes(),
            barriers: self.named_barriers(),
            // A full and an empty one a stage.
            stage_barriers: self.rings.iter().map(|r| 2 * r.stages).sum(),
            registers: registers(self, &self.body),
            producer_registers: producers.map(|p| registers(self, &p.body)).max(),
        }
    }

    /// One more than the highest number of a barrier: `tw_compute_barrier`, `tw_turn_wait`, `tw_any_of_group` and `__syncthreads` choose them.
    pub(crate) fn named_barriers(&self) -> u64 {
        let starts = !self.producers.is_empty() || self.block_group.is_some_and(|t| t.waits);
        let mut most = u64::from(starts);
        let producers = self.producers.iter().map(|p| p.body.as_slice());
        for list in producers.chain([self.prologue.as_slice(), self.body.as_slice()]) {
            each(list, &mut |s| {
                let own = if matches!(s, Statement::Sync(sync) if is_numbered(*sync, self.groups()))
                {
                    NAMED
                } else if matches!(s, Statement::Sync(Sync::Vote(_))) {
                    1 + VOTE
                } else {
                    u64::from(is_block_barrier(s, self.cluster))
                };
                most = most.max(own);
            });
        }
        most
    }
}

/// Whether all threads of a block meet at a statement. Where the blocks that wait for each other are a cluster they meet by its own barrier.
fn is_block_barrier(statement: &Statement, cluster: u64) -> bool {
    let by_itself = matches!(
        statement,
        Statement::LastGoesOn | Statement::Sync(Sync::Barrier(Among::Block))
    );
    by_itself || matches!(statement, Statement::GridBarrier(_)) && cluster == 1
}

/// Whether threads compute the number of a barrier, or it is the last one.
fn is_numbered(sync: Sync, groups: u64) -> bool {
    matches!(
        sync,
        Sync::Barrier(Among::Computing) | Sync::TurnWait(_) | Sync::TurnPass(_)
    ) || matches!(sync, Sync::Vote(_)) && groups > 1
}

/// Every fragment that some statement of a body reads.
pub(crate) fn read(machine: &Machine, body: &[Statement]) -> BTreeSet<FragmentId> {
    let mut all = BTreeSet::new();
    each(body, &mut |s| all.extend(effect(machine, s).reads));
    all
}

/// Goes through statements and those inside.
pub(crate) fn each<'a>(body: &'a [Statement], f: &mut impl FnMut(&'a Statement)) {
    for s in body {
        f(s);
        for list in s.lists() {
            each(list, f);
        }
    }
}

/// Registers of every thread: the stack pointer, two that the hardware keeps for itself, the thread's index, and an address of 64 bits.
const BASE: u64 = 6;

/// Registers of every thread of a block group: the block's number in it, and where its memory begins.
const IN_GROUP: u64 = 2;

/// Elements that go through several element-wise statements at a time: about as many as there are issue slots until a result is there.
const AT_A_TIME: u64 = 8;

/// Whether a statement makes each element from those at its place alone.
fn is_map(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Map { .. } | Statement::Mask { .. } | Statement::Select { .. }
    )
}

/// Registers that a thread needs to run a body.
fn registers(machine: &Machine, body: &[Statement]) -> u64 {
    // Where the block is in the grid: a number for each axis that has several tiles.
    let coordinates = (machine.grid.coordinates.iter())
        .filter(|c| c.count > 1)
        .count() as u64;
    let in_group = if machine.block_group.is_some() {
        IN_GROUP
    } else {
        0
    };
    let mut liveness = Liveness {
        machine,
        values: Values::new(machine, body),
        around: BASE + coordinates + in_group + gaps(machine, body),
        most: 0,
    };
    liveness.list(body, Live::new());
    liveness.most.max(liveness.around)
}

/// Fragments that are read later.
type Live = BTreeSet<FragmentId>;

/// A walk through statements, from the last one to the first.
struct Liveness<'a> {
    machine: &'a Machine,
    values: Values,
    /// Registers that are taken all along the loops that are open.
    around: u64,
    /// The most that were needed anywhere so far.
    most: u64,
}

impl Liveness<'_> {
    fn size(&self, live: &Live) -> u64 {
        live.iter().map(|id| self.values.size(*id)).sum()
    }

    /// What lives in front of a list, from what lives behind it.
    fn list(&mut self, list: &[Statement], mut live: Live) -> Live {
        let ordered = ordered(list);
        let goes_on = |s: &Statement| is_map(s) || matches!(s, Statement::Declare(_));
        for run in ordered.chunk_by(|x, y| goes_on(x) && goes_on(y)).rev() {
            live = match run {
                [statement] => self.statement(statement, live),
                _ => self.run(run, live),
            };
        }
        live
    }

    /// Element-wise statements one behind the other: the compiler may take a few elements at a time through all of them, so that of what is made
    /// and needed in between there are a few, or one statement after another.
    fn run(&mut self, run: &[&Statement], after: Live) -> Live {
        let (outside, mut beside) = (self.most, 0);
        let mut lives = vec![after];
        for statement in run.iter().rev() {
            let effect = effect(self.machine, statement);
            beside = beside.max(effect.beside);
            let live = self.plain(&effect, lives[lives.len() - 1].clone());
            lives.push(live);
        }
        let (after, before) = (&lives[0], &lives[lives.len() - 1]);
        let few = |live: &Live| -> u64 {
            let within = live
                .iter()
                .filter(|f| !before.contains(f) && !after.contains(f));
            within.map(|f| self.values.size(*f).min(AT_A_TIME)).sum()
        };
        let within = lives.iter().map(few).max().unwrap_or(0);
        let together = self.size(before).max(self.size(after)) + within + beside;
        self.most = self.most.min(outside.max(self.around + together));
        lives.pop().unwrap_or_default()
    }

    fn statement(&mut self, statement: &Statement, after: Live) -> Live {
        if let Statement::Loop { body, .. } | Statement::Tiles(body) = statement {
            return self.repeated(body, after);
        }
        if let Statement::Scope(body) = statement {
            return self.list(body, after);
        }
        if let Statement::If {
            then, otherwise, ..
        } = statement
        {
            let mut live = self.list(then, after.clone());
            live.extend(self.list(otherwise, after));
            return live;
        }
        self.plain(&effect(self.machine, statement), after)
    }

    /// What lives behind a loop's body lives in front of it too, and the other way round.
    fn repeated(&mut self, body: &[Statement], after: Live) -> Live {
        let own = in_loop(body);
        self.around += own;
        let mut live = after;
        loop {
            let mut before = self.list(body, live.clone());
            before.extend(&live);
            if before == live {
                break;
            }
            live = before;
        }
        self.around -= own;
        live
    }

    fn plain(&mut self, effect: &Effect, after: Live) -> Live {
        if self.values.is_dead(effect) {
            return after;
        }
        let mut before: Live = after.clone();
        for id in &effect.writes {
            before.remove(id);
        }
        // What its only use takes element by element comes to be there.
        let is_fused = |id: &FragmentId| self.values.fused(*id).is_some() && !after.contains(id);
        if !effect.writes.is_empty() && effect.writes.iter().all(is_fused) {
            self.need(effect.beside + self.size(&after));
            return before;
        }
        before.extend(self.reads(effect, &after));
        let lives = match effect.element_wise {
            // Elements of the one die as those of the other come to be.
            true => self.size(&before).max(self.size(&after)),
            false => self.size(&before.union(&after).copied().collect()),
        };
        self.need(effect.beside + lives);
        before
    }

    fn need(&mut self, registers: u64) {
        self.most = self.most.max(self.around + registers);
    }

    /// What a statement reads: instead of a fragment that is made element by element for it alone, what that is made from, unless it takes
    /// more registers to keep that.
    fn reads(&self, effect: &Effect, after: &Live) -> Live {
        let mut reads = Live::new();
        let mut queue = effect.reads.clone();
        while let Some(id) = queue.pop() {
            let there =
                |f: &FragmentId| after.contains(f) || effect.reads.contains(f) || reads.contains(f);
            match self.values.fused(id) {
                Some(from)
                    if self.size(&from.iter().copied().filter(|f| !there(f)).collect())
                        <= self.values.size(id) =>
                {
                    queue.extend(from);
                }
                Some(_) | None => {
                    reads.insert(id);
                }
            }
        }
        reads
    }
}

/// Statements in the order in which the compiler issues them: what is read from memory is asked for as early as it can be.
pub(crate) fn ordered(list: &[Statement]) -> Vec<&Statement> {
    let mut all: Vec<&Statement> = Vec::new();
    for statement in list {
        let Statement::Load { to, policy, .. } = statement else {
            all.push(statement);
            continue;
        };
        // Behind branches; and what others may write is read behind the barriers and stores in front of it, whose texts say that memory
        // changes.
        let dependent = *policy == Policy::Dependent;
        let stays = |s: &&Statement| {
            let branches = !s.lists().is_empty()
                || matches!(s, Statement::LastGoesOn | Statement::GridBarrier(_))
                || matches!(
                    s,
                    Statement::Sync(Sync::Full(_) | Sync::Empty(_) | Sync::WaitBefore)
                );
            branches
                || matches!(s, Statement::Load { .. })
                || dependent && matches!(s, Statement::Sync(Sync::Barrier(_)) | Statement::Store(_))
        };
        // It writes all of it: what was declared is not looked at before.
        all.retain(|s| !matches!(s, Statement::Declare(id) if id == to));
        let at = all.iter().rposition(stays).map_or(0, |n| n + 1);
        all.insert(at, statement);
    }
    all
}

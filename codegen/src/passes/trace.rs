//! What the warps that compute do to memory, on one way through the statements of a machine program.
//!
//! Stages are as they are counted, and each loop has a given number of iterations. A copy ends where its group is waited for, and so does what an
//! instruction that is issued reads; all other accesses end with their statement.

use crate::machine::counts::{Groups, Iterations, Stages};
use crate::machine::{
    Condition, Input, LoopId, Machine, RegionId, RingId, Rows, Stage, Statement, Sync,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A statement, by its number in the order of the text.
pub(super) type Place = usize;

/// Statements in a list, with those inside.
pub(super) fn size(list: &[Statement]) -> usize {
    list.iter().map(whole).sum()
}

/// A statement, with those inside.
pub(super) fn whole(statement: &Statement) -> usize {
    1 + statement.lists().into_iter().map(size).sum::<usize>()
}

/// What is accessed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Memory {
    /// Bytes of shared memory.
    Bytes {
        /// The first.
        from: u64,
        /// The one behind the last.
        to: u64,
    },
    /// What other warps filled a stage of a ring with.
    Filled {
        /// The ring.
        ring: RingId,
        /// How many times a stage was filled before.
        tile: u64,
        /// How many iterations before the current one it was meant for.
        behind: u64,
    },
}

/// What happens.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A statement begins.
    Statement,
    /// The threads meet.
    Barrier,
    /// An access.
    Access {
        /// Counts them.
        number: usize,
        memory: Memory,
        writes: bool,
        /// Whether it ends with its statement.
        ends: bool,
    },
    /// Instructions of warpgroups are waited for.
    Wait,
    /// These accesses have ended.
    End(Vec<usize>),
    /// One of the lists in the statement ends.
    Leave(usize),
}

/// The loops and branches around a statement, shared by all that happens there.
pub(super) type Around = Rc<[Place]>;

/// Something that happens at a statement.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) place: Place,
    /// The loops and branches around the statement, from the outermost one on.
    pub(super) around: Around,
    pub(super) what: What,
}

/// One way through the statements.
pub(super) struct Trace<'a> {
    machine: &'a Machine,
    iterations: Iterations<'a>,
    around: Around,
    /// Iterations of each loop that have ended, those of its former runs included.
    ended: BTreeMap<LoopId, u64>,
    stages: Stages,
    accesses: usize,
    copies: Groups<usize>,
    issues: Groups<usize>,
    events: Vec<Event>,
}

/// What happens, for each choice of how many iterations loops have.
pub(super) fn all(machine: &Machine) -> Vec<Vec<Event>> {
    let choices = choices(&loops(&machine.body));
    choices.iter().map(|c| events(machine, c)).collect()
}

/// A loop, and what decides how often it has to be gone through.
struct Looped {
    number: LoopId,
    /// The loops around it.
    around: Vec<LoopId>,
    /// Iterations after which its stages have been filled twice, and one more.
    many: u64,
}

/// The loops of a body.
fn loops(body: &[Statement]) -> Vec<Looped> {
    fn inside(body: &[Statement], around: &mut Vec<LoopId>, all: &mut Vec<Looped>) {
        for statement in body {
            if let Statement::Loop { number, .. } = statement {
                all.push(Looped {
                    number: *number,
                    around: around.clone(),
                    many: 2,
                });
                around.push(*number);
            }
            if let Statement::AdvanceStage { counter, stages } = statement
                && let Some(own) = all.iter_mut().find(|l| l.number == counter.number)
            {
                own.many = own.many.max(2 * stages + 1);
            }
            for list in statement.lists() {
                inside(list, around, all);
            }
            if let Statement::Loop { .. } = statement {
                around.pop();
            }
        }
    }
    let mut all = Vec::new();
    inside(body, &mut Vec::new(), &mut all);
    all
}

/// How many iterations each loop may have. What is between two accesses orders them least where only the loops around them run, so these run
/// once or many times for each two loops, and the others never; and all run.
fn choices(loops: &[Looped]) -> Vec<BTreeMap<LoopId, u64>> {
    let all = |_: &Looped| true;
    let mut choices = Vec::new();
    let mut choose = |runs: &dyn Fn(&Looped) -> bool| {
        for many in [true, false] {
            let count = |l: &Looped| match (runs(l), many) {
                (true, true) => l.many,
                (true, false) => 1,
                (false, _) => 0,
            };
            choices.push(loops.iter().map(|l| (l.number, count(l))).collect());
        }
    };
    choose(&all);
    choose(&|_| false);
    for (n, x) in loops.iter().enumerate() {
        for y in &loops[n..] {
            let with =
                |l: &Looped, of: &Looped| l.number == of.number || of.around.contains(&l.number);
            choose(&|l| with(l, x) || with(l, y));
        }
    }
    choices.dedup();
    choices
}

/// What happens where loops have these numbers of iterations, and a persistent block goes over two tiles.
fn events(machine: &Machine, counts: &BTreeMap<LoopId, u64>) -> Vec<Event> {
    let mut trace = Trace {
        machine,
        iterations: Iterations::new(counts),
        around: Rc::from([]),
        ended: BTreeMap::new(),
        stages: Stages::default(),
        accesses: 0,
        copies: Groups::default(),
        issues: Groups::default(),
        events: Vec::new(),
    };
    // The block's number is read from there.
    if machine.block_group.is_some_and(|t| t.waits) {
        trace.access(trace.scratch(), false, true, 0);
    }
    trace.list(&machine.body, 0);
    trace.events
}

impl Trace<'_> {
    fn happens(&mut self, place: Place, what: What) {
        self.events.push(Event {
            place,
            around: self.around.clone(),
            what,
        });
    }

    fn list(&mut self, list: &[Statement], first: Place) {
        let mut place = first;
        for statement in list {
            self.happens(place, What::Statement);
            self.statement(statement, place);
            place += whole(statement);
        }
    }

    /// One of the lists in a statement.
    fn inside(&mut self, list: &[Statement], first: Place, (construct, which): (Place, usize)) {
        let inside = self.around.iter().copied().chain([construct]).collect();
        let outside = std::mem::replace(&mut self.around, inside);
        self.list(list, first);
        self.around = outside;
        self.happens(construct, What::Leave(which));
    }

    fn access(&mut self, memory: Memory, writes: bool, ends: bool, place: Place) -> usize {
        let number = self.accesses;
        self.accesses += 1;
        let access = What::Access {
            number,
            memory,
            writes,
            ends,
        };
        self.happens(place, access);
        number
    }

    fn scratch(&self) -> Memory {
        let scratch = self.machine.scratch;
        Memory::Bytes {
            from: scratch.offset,
            to: scratch.offset + scratch.bytes,
        }
    }

    fn region(&self, id: RegionId, stage: Stage) -> Memory {
        let rings = self.machine.rings.iter().zip(0..);
        if let Some((ring, number)) = rings.clone().find(|(r, _)| r.regions.contains(&id)) {
            let ended = self.ended.get(&ring.counter.number).copied();
            let behind = u64::from(matches!(stage, Stage::Previous(_)));
            return Memory::Filled {
                ring: RingId(number),
                tile: ended.unwrap_or_default().saturating_sub(behind),
                behind,
            };
        }
        let region = self.machine.region(id);
        let stage = match region.stages {
            1 => 0,
            _ => self.stages.number(stage).unwrap_or_default(),
        };
        let bytes = region.elements * region.dtype.bytes();
        let from = region.offset + stage * bytes;
        let to = from + bytes;
        Memory::Bytes { from, to }
    }

    /// Whether a branch is taken. What threads decide each for themselves accesses nothing.
    fn is_taken(&self, condition: Condition) -> bool {
        self.iterations.holds(condition).unwrap_or(true)
    }

    fn statement(&mut self, statement: &Statement, place: Place) {
        match statement {
            Statement::Sync(sync) => self.sync(*sync, place),
            Statement::GridBarrier(_) => self.happens(place, What::Barrier),
            Statement::LastGoesOn => {
                self.happens(place, What::Barrier);
                // All read who goes on.
                self.access(self.scratch(), false, true, place);
            }
            Statement::PutParts(_) | Statement::Spill { .. } => {
                self.access(self.scratch(), true, true, place);
            }
            Statement::TakeParts(_) | Statement::Unspill { .. } => {
                self.access(self.scratch(), false, true, place);
            }
            Statement::Copy(copy) => {
                let memory = self.region(copy.region, copy.stage);
                let number = self.access(memory, true, !copy.background, place);
                if copy.background {
                    self.copies.begin(number);
                }
            }
            Statement::Clear(region) | Statement::Publish { region, .. } => {
                self.access(self.region(*region, Stage::At(0)), true, true, place);
            }
            Statement::Fetch { region, stage, .. } => {
                self.access(self.region(*region, *stage), false, true, place);
            }
            Statement::Multiply(multiply) => {
                for input in multiply.inputs {
                    if let Input::Region(region, stage) = input {
                        self.access(self.region(region, stage), false, true, place);
                    }
                }
            }
            Statement::Outer(outer) => {
                for (region, stage) in outer.inputs {
                    self.access(self.region(region, stage), false, true, place);
                }
            }
            Statement::Split(split) => {
                self.access(self.region(split.from, split.stage), false, true, place);
                for region in split.to {
                    self.access(self.region(region, split.into), true, true, place);
                }
            }
            Statement::Issue(issue) => {
                let a = match &issue.a {
                    Rows::SwizzleAtoms(a) => Some(a),
                    Rows::Fragment(_) => None,
                };
                for swizzle_atoms in a.into_iter().chain([&issue.b]) {
                    let memory = self.region(swizzle_atoms.region, swizzle_atoms.stage);
                    let number = self.access(memory, false, false, place);
                    self.issues.begin(number);
                }
            }
            Statement::Loop { number, body } => {
                for iteration in 0..self.iterations.count(*number) {
                    self.iterations.begin(*number, iteration);
                    self.inside(body, place + 1, (place, 0));
                    *self.ended.entry(*number).or_default() += 1;
                }
            }
            Statement::Tiles(body) => {
                for _ in 0..2 {
                    self.inside(body, place + 1, (place, 0));
                }
            }
            Statement::Scope(body) => {
                self.list(body, place + 1);
                self.happens(place, What::Leave(0));
            }
            Statement::If {
                condition,
                then,
                otherwise,
            } => match self.is_taken(*condition) {
                true => self.inside(then, place + 1, (place, 0)),
                false => self.inside(otherwise, place + 1 + size(then), (place, 1)),
            },
            Statement::OpenStages(_)
            | Statement::NextStage { .. }
            | Statement::PreviousStage { .. }
            | Statement::AdvanceStage { .. } => {
                // A counter that is not open the checker finds.
                let _ = self.stages.count(statement);
            }
            Statement::Declare(_)
            | Statement::Map { .. }
            | Statement::Select { .. }
            | Statement::ExpScale { .. }
            | Statement::Mask { .. }
            | Statement::IsNotOne { .. }
            | Statement::Reduce(_)
            | Statement::Scan(_)
            | Statement::AcrossLanes(_)
            | Statement::Load { .. }
            | Statement::Store(_)
            | Statement::CopyBoxes(_)
            | Statement::PrefetchBoxes(_)
            | Statement::Prefetch { .. }
            | Statement::Pack { .. }
            | Statement::StorePartial(_)
            | Statement::ReducePartials(_)
            | Statement::Range { .. }
            | Statement::Tile { .. }
            | Statement::OpenRing(..)
            | Statement::AdvanceRing(_) => {}
        }
    }

    fn sync(&mut self, sync: Sync, place: Place) {
        match sync {
            Sync::Barrier(_) | Sync::ClusterBegins | Sync::ClusterEnds => {
                self.happens(place, What::Barrier)
            }
            Sync::CopyCommit => self.copies.close(),
            Sync::CopyWait(stay) => {
                let landed = self.copies.landed(stay);
                self.happens(place, What::End(landed));
            }
            Sync::Commit => self.issues.close(),
            Sync::Wait(stay) => {
                self.happens(place, What::Wait);
                let landed = self.issues.landed(stay);
                self.happens(place, What::End(landed));
            }
            Sync::Warp
            | Sync::ProxyFence
            | Sync::Keep(_)
            | Sync::Full(_)
            | Sync::Empty(_)
            | Sync::Release(_)
            | Sync::ReleasePrevious(_)
            | Sync::ReleasePeers(_)
            | Sync::ReleasePreviousPeers(_)
            | Sync::CopyArrive(_)
            | Sync::Filled(_)
            | Sync::CopiesEnd
            | Sync::TurnWait(_)
            | Sync::TurnPass(_)
            | Sync::Vote(..)
            | Sync::StartNext
            | Sync::WaitBefore => {}
        }
    }
}

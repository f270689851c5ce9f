//! Places the barriers of the threads that compute, from who reads and who writes shared memory.
//!
//! ```text
//! before                       after
//!   CopyWait(1)                  CopyWait(1)
//!   If(…) Copy(s0, next)         Barrier
//!   CopyCommit                   If(…) Copy(s0, next)
//!   Multiply(s0, current)        CopyCommit
//!                                Multiply(s0, current)
//! ```
//!
//! Two accesses to the same bytes, of which one writes, need a barrier between where the first one ends and where the second one begins. A
//! copy ends where its group is waited for, and so does what an instruction that is issued reads. What a ring of other warps' making
//! holds is ordered by its own barriers.
//!
//! The statements of one warp are gone through with slots as they are counted, for loops of no, one and many iterations. Where a barrier is
//! missing it is put in front of the second access, or in front of the outermost loop or branch around it that is not around the first,
//! and all is gone through again; then those go that others made needless. It is always legal: it only adds barriers.

use crate::machine::counts::{Groups, Slots};
use crate::machine::{
    Among, At, Condition, Input, LoopId, Machine, RegionId, Rows, Slot, Statement, Sync,
};
use std::collections::{BTreeMap, BTreeSet};

/// A statement, by its number in the order of the text.
type Place = usize;

/// The machine program with all barriers that it needs.
pub(crate) fn barriers(mut machine: Machine) -> Machine {
    let mut needed = BTreeSet::new();
    let choices = choices(&loops(&machine.body));
    for counts in &choices {
        // Each time one place more, of as many as there are statements.
        while let Some(place) = Trace::of(&machine, counts, &needed) {
            needed.insert(place);
        }
    }
    // One that was found first may be no longer needed beside one that was found later.
    for place in needed.clone().into_iter().rev() {
        needed.remove(&place);
        let missing = |counts| Trace::of(&machine, counts, &needed).is_some();
        if choices.iter().any(missing) {
            needed.insert(place);
        }
    }
    let among = match machine.producer {
        Some(_) => Among::Computing,
        None => Among::Block,
    };
    machine.body = inserted(machine.body, &mut 0, &needed, among);
    machine
}

/// A loop, and what decides how often it has to be gone through.
struct Looped {
    number: LoopId,
    /// The loops around it.
    around: Vec<LoopId>,
    /// Iterations after which its slots have been filled twice, and one more.
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
            if let Statement::AdvanceSlot { counter, slots } = statement
                && let Some(own) = all.iter_mut().find(|l| l.number == counter.number)
            {
                own.many = own.many.max(2 * slots + 1);
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

/// Statements in a list, with those inside.
fn size(list: &[Statement]) -> usize {
    let own = |s: &Statement| 1 + s.lists().into_iter().map(size).sum::<usize>();
    list.iter().map(own).sum()
}

/// The statements with barriers in front of some of them.
fn inserted(
    body: Vec<Statement>,
    number: &mut Place,
    needed: &BTreeSet<Place>,
    among: Among,
) -> Vec<Statement> {
    let mut all = Vec::new();
    for mut statement in body {
        if needed.contains(number) {
            all.push(Statement::Sync(Sync::Barrier(among)));
        }
        *number += 1;
        for list in statement.lists_mut() {
            *list = inserted(std::mem::take(list), number, needed, among);
        }
        all.push(statement);
    }
    all
}

/// Bytes of shared memory.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    from: u64,
    to: u64,
}

/// An access that no barrier follows yet.
#[derive(Clone, Debug)]
struct Access {
    bytes: Bytes,
    writes: bool,
    /// The loops and branches that it ended in; none while it is under way.
    ended: Option<Vec<Place>>,
}

/// One way through the statements.
struct Trace<'a> {
    machine: &'a Machine,
    counts: &'a BTreeMap<LoopId, u64>,
    needed: &'a BTreeSet<Place>,
    /// The loops and branches around the current statement.
    around: Vec<Place>,
    now: BTreeMap<LoopId, u64>,
    slots: Slots,
    accesses: BTreeMap<usize, Access>,
    /// How many accesses there were.
    seen: usize,
    copies: Groups<usize>,
    issues: Groups<usize>,
}

/// Where a barrier is missing.
type Missing = Result<(), Place>;

impl<'a> Trace<'a> {
    /// Where the first barrier is missing, if one is.
    fn of(
        machine: &'a Machine,
        counts: &'a BTreeMap<LoopId, u64>,
        needed: &'a BTreeSet<Place>,
    ) -> Option<Place> {
        let mut trace = Self {
            machine,
            counts,
            needed,
            around: Vec::new(),
            now: BTreeMap::new(),
            slots: Slots::default(),
            accesses: BTreeMap::new(),
            seen: 0,
            copies: Groups::default(),
            issues: Groups::default(),
        };
        // The block's number is read from there.
        if machine.team.is_some_and(|t| t.waits) {
            trace.add(trace.scratch(), false, true);
        }
        trace.list(&machine.body, 0).err()
    }

    fn scratch(&self) -> Bytes {
        let scratch = self.machine.scratch;
        Bytes {
            from: scratch.offset,
            to: scratch.offset + scratch.bytes,
        }
    }

    fn list(&mut self, list: &[Statement], first: Place) -> Missing {
        let mut place = first;
        for statement in list {
            if self.needed.contains(&place) {
                self.barrier();
            }
            self.statement(statement, place)?;
            place += 1 + statement.lists().into_iter().map(size).sum::<usize>();
        }
        Ok(())
    }

    fn inside(&mut self, list: &[Statement], first: Place, construct: Place) -> Missing {
        self.around.push(construct);
        let done = self.list(list, first);
        self.around.pop();
        done
    }

    /// What has ended is seen by all.
    fn barrier(&mut self) {
        self.accesses.retain(|_, access| access.ended.is_none());
    }

    fn add(&mut self, bytes: Bytes, writes: bool, ended: bool) -> usize {
        let number = self.seen;
        self.seen += 1;
        let access = Access {
            bytes,
            writes,
            ended: ended.then(|| self.around.clone()),
        };
        self.accesses.insert(number, access);
        number
    }

    fn end(&mut self, accesses: Vec<usize>) {
        for number in accesses {
            if let Some(access) = self.accesses.get_mut(&number) {
                access.ended = Some(self.around.clone());
            }
        }
    }

    /// One access; `ended` says whether it has ended behind its statement.
    fn access(
        &mut self,
        bytes: Option<Bytes>,
        writes: bool,
        ended: bool,
        place: Place,
    ) -> Result<Option<usize>, Place> {
        let Some(bytes) = bytes else {
            return Ok(None);
        };
        for old in self.accesses.values() {
            let overlap = old.bytes.from < bytes.to && bytes.from < old.bytes.to;
            if let (Some(around), true) = (&old.ended, overlap && (old.writes || writes)) {
                let outside = self.around.iter().find(|c| !around.contains(c));
                return Err(outside.copied().unwrap_or(place));
            }
        }
        Ok(Some(self.add(bytes, writes, ended)))
    }

    /// The bytes of a slot; none of what other warps fill.
    fn region(&self, id: RegionId, slot: Slot) -> Option<Bytes> {
        if self.machine.rings.iter().any(|r| r.regions.contains(&id)) {
            return None;
        }
        let region = self.machine.region(id);
        let slot = match region.slots {
            1 => 0,
            _ => self.slots.number(slot).unwrap_or_default(),
        };
        let bytes = region.elements * region.dtype.bytes();
        let from = region.offset + slot * bytes;
        let to = from + bytes;
        Some(Bytes { from, to })
    }

    fn at(&self, at: At) -> u64 {
        let now = |n: LoopId| self.now.get(&n).copied().unwrap_or_default();
        match at {
            At::First(_) => 0,
            At::FirstAnd(_, more) => more,
            At::Now(n) => now(n),
            At::NowAnd(n, more) => now(n) + more,
        }
    }

    fn count(&self, number: LoopId) -> u64 {
        self.counts.get(&number).copied().unwrap_or_default()
    }

    fn statement(&mut self, statement: &Statement, place: Place) -> Missing {
        match statement {
            Statement::Sync(sync) => self.sync(*sync),
            Statement::Meet(_) => self.barrier(),
            Statement::LastGoesOn => {
                self.barrier();
                // All read who goes on.
                self.access(Some(self.scratch()), false, true, place)?;
            }
            Statement::PutParts(_) | Statement::Spill { .. } => {
                self.access(Some(self.scratch()), true, true, place)?;
            }
            Statement::TakeParts(_) | Statement::Unspill { .. } => {
                self.access(Some(self.scratch()), false, true, place)?;
            }
            Statement::Copy(copy) => {
                let bytes = self.region(copy.region, copy.slot);
                let number = self.access(bytes, true, !copy.background, place)?;
                if copy.background {
                    number.into_iter().for_each(|n| self.copies.begin(n));
                }
            }
            Statement::Clear(region) | Statement::Publish { region, .. } => {
                let bytes = self.region(*region, Slot::At(0));
                self.access(bytes, true, true, place)?;
            }
            Statement::Multiply(multiply) => {
                for input in multiply.inputs {
                    if let Input::Region(region, slot) = input {
                        self.access(self.region(region, slot), false, true, place)?;
                    }
                }
            }
            Statement::Outer(outer) => {
                for (region, slot) in outer.inputs {
                    self.access(self.region(region, slot), false, true, place)?;
                }
            }
            Statement::Issue(issue) => {
                let a = match &issue.a {
                    Rows::Panels(a) => Some(a),
                    Rows::Fragment(_) => None,
                };
                for panels in a.into_iter().chain([&issue.b]) {
                    let bytes = self.region(panels.region, panels.slot);
                    let number = self.access(bytes, false, false, place)?;
                    number.into_iter().for_each(|n| self.issues.begin(n));
                }
            }
            Statement::Loop { number, body } => {
                for iteration in 0..self.count(*number) {
                    self.now.insert(*number, iteration);
                    self.inside(body, place + 1, place)?;
                }
            }
            Statement::Tiles(body) => {
                for _ in 0..2 {
                    self.inside(body, place + 1, place)?;
                }
            }
            Statement::Scope(body) => self.list(body, place + 1)?,
            Statement::If {
                condition,
                then,
                otherwise,
            } => {
                // What threads decide each for themselves accesses nothing.
                let taken = match condition {
                    Condition::Exists(at) => self.at(*at) < self.count(at.number()),
                    Condition::NotFirst(n) | Condition::Lane0NotFirst(n) => {
                        self.at(At::Now(*n)) > 0
                    }
                    Condition::NotEmpty(n) | Condition::Lane0NotEmpty(n) => self.count(*n) > 0,
                    Condition::Group(_) | Condition::Flag(_) | Condition::Lane0 => true,
                };
                match taken {
                    true => self.inside(then, place + 1, place)?,
                    false => self.inside(otherwise, place + 1 + size(then), place)?,
                }
            }
            Statement::OpenSlots(_)
            | Statement::NextSlot { .. }
            | Statement::PreviousSlot { .. }
            | Statement::AdvanceSlot { .. } => {
                // A counter that is not open the checker finds.
                let _ = self.slots.count(statement);
            }
            Statement::Declare(_)
            | Statement::Map { .. }
            | Statement::Select { .. }
            | Statement::ExpScale { .. }
            | Statement::Mask { .. }
            | Statement::IsNotOne { .. }
            | Statement::Reduce(_)
            | Statement::AcrossLanes(_)
            | Statement::Load { .. }
            | Statement::Store(_)
            | Statement::CopyBoxes(_)
            | Statement::Pack { .. }
            | Statement::Post(_)
            | Statement::Gather(_)
            | Statement::Range { .. }
            | Statement::Tile { .. }
            | Statement::OpenRing(..)
            | Statement::AdvanceRing(_) => {}
        }
        Ok(())
    }

    fn sync(&mut self, sync: Sync) {
        match sync {
            Sync::Barrier(_) => self.barrier(),
            Sync::CopyCommit => self.copies.close(),
            Sync::CopyWait(stay) => {
                let landed = self.copies.landed(stay);
                self.end(landed);
            }
            Sync::Commit => self.issues.close(),
            Sync::Wait(stay) => {
                let landed = self.issues.landed(stay);
                self.end(landed);
            }
            Sync::Warp
            | Sync::ProxyFence
            | Sync::Keep(_)
            | Sync::Full(_)
            | Sync::Empty(_)
            | Sync::Release(_)
            | Sync::ReleasePrevious(_)
            | Sync::CopyArrive(_)
            | Sync::CopiesEnd
            | Sync::TurnWait(_)
            | Sync::TurnPass(_)
            | Sync::Vote(..)
            | Sync::StartNext
            | Sync::WaitBefore => {}
        }
    }
}

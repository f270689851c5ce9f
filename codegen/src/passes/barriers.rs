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

use crate::machine::{
    Among, At, Condition, Counter, Input, LoopId, Machine, RegionId, RingId, Rows, Slot, Statement,
    Sync,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A statement, by its number in the order of the text.
type Place = usize;

/// The machine program with all barriers that it needs.
pub(crate) fn barriers(mut machine: Machine) -> Machine {
    let mut needed = BTreeSet::new();
    let mut loops = BTreeSet::new();
    counted(&machine.body, &mut loops);
    let slots = machine.regions.iter().map(|r| r.slots);
    let many = 2 * slots.max().unwrap_or(1) + 2;
    let choices = choices(&loops, many);
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

/// The loops of a body.
fn counted(body: &[Statement], loops: &mut BTreeSet<LoopId>) {
    for statement in body {
        if let Statement::Loop { number, .. } = statement {
            loops.insert(*number);
        }
        for list in lists(statement) {
            counted(list, loops);
        }
    }
}

/// How many iterations each loop may have.
fn choices(loops: &BTreeSet<LoopId>, many: u64) -> Vec<BTreeMap<LoopId, u64>> {
    let mut all = vec![BTreeMap::new()];
    for number in loops {
        let with = |counts: BTreeMap<LoopId, u64>| {
            [many, 1, 0].map(|count| {
                let mut counts = counts.clone();
                counts.insert(*number, count);
                counts
            })
        };
        all = all.into_iter().flat_map(with).collect();
    }
    all
}

/// The lists of statements in a statement.
fn lists(statement: &Statement) -> Vec<&[Statement]> {
    if let Statement::Loop { body, .. } | Statement::Tiles(body) | Statement::Scope(body) =
        statement
    {
        vec![body]
    } else if let Statement::If {
        then, otherwise, ..
    } = statement
    {
        vec![then, otherwise]
    } else {
        Vec::new()
    }
}

/// Statements in a list, with those inside.
fn size(list: &[Statement]) -> usize {
    let own = |s: &Statement| 1 + lists(s).into_iter().map(size).sum::<usize>();
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
        if let Statement::Loop { body, .. } | Statement::Tiles(body) | Statement::Scope(body) =
            &mut statement
        {
            *body = inserted(std::mem::take(body), number, needed, among);
        } else if let Statement::If {
            then, otherwise, ..
        } = &mut statement
        {
            *then = inserted(std::mem::take(then), number, needed, among);
            *otherwise = inserted(std::mem::take(otherwise), number, needed, among);
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

/// Groups of what is under way, by number.
#[derive(Debug, Default)]
struct Groups {
    closed: VecDeque<Vec<usize>>,
    open: Vec<usize>,
}

impl Groups {
    fn close(&mut self) {
        let group = std::mem::take(&mut self.open);
        self.closed.push_back(group);
    }

    fn landed(&mut self, stay: u64) -> Vec<usize> {
        let count = self.closed.len().saturating_sub(stay as usize);
        self.closed.drain(..count).flatten().collect()
    }
}

/// One way through the statements.
struct Trace<'a> {
    machine: &'a Machine,
    counts: &'a BTreeMap<LoopId, u64>,
    needed: &'a BTreeSet<Place>,
    /// The loops and branches around the current statement.
    around: Vec<Place>,
    now: BTreeMap<LoopId, u64>,
    slots: BTreeMap<Counter, u64>,
    next: BTreeMap<Counter, u64>,
    previous: BTreeMap<LoopId, u64>,
    accesses: BTreeMap<usize, Access>,
    /// How many accesses there were.
    seen: usize,
    copies: Groups,
    issues: Groups,
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
            slots: BTreeMap::new(),
            next: BTreeMap::new(),
            previous: BTreeMap::new(),
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
            place += 1 + lists(statement).into_iter().map(size).sum::<usize>();
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
        let slot = match slot {
            _ if region.slots == 1 => 0,
            Slot::At(n) => n,
            Slot::Current(counter) => self.slots.get(&counter).copied().unwrap_or_default(),
            Slot::Next(counter) => self.next.get(&counter).copied().unwrap_or_default(),
            Slot::Previous(number) => self.previous.get(&number).copied().unwrap_or_default(),
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
                    self.copies.open.extend(number);
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
                    self.issues.open.extend(number);
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
            Statement::OpenSlots(counter) => {
                self.slots.insert(*counter, 0);
            }
            Statement::NextSlot {
                counter,
                slots,
                ahead,
            } => {
                let now = self.slots.get(counter).copied().unwrap_or_default();
                self.next.insert(*counter, (now + ahead) % slots);
            }
            Statement::PreviousSlot { number, slots } => {
                let late = Counter {
                    number: *number,
                    late: true,
                };
                let now = self.slots.get(&late).copied().unwrap_or_default();
                self.previous.insert(*number, (now + slots - 1) % slots);
            }
            Statement::AdvanceSlot { counter, slots } => {
                let now = self.slots.entry(*counter).or_default();
                *now = (*now + 1) % slots;
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
            | Sync::Full(RingId(_))
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

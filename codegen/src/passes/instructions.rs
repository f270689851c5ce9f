//! Places what is done about warpgroup instructions: the groups that they are committed in, the waits for these, and what the compiler may not move.
//!
//! ```text
//! before                       after
//!   Loop                         Loop
//!     Issue(s)                     Keep(s)
//!                                  Issue(s)
//!                                  Commit
//!     If(NotFirst)                 If(NotFirst)
//!       Issue(o, rows)               Keep(o)
//!                                    Issue(o, rows)
//!                                    Commit
//!                                    Wait(1)
//!                                  else
//!                                    Wait(0)
//!                                  Keep(s)
//!     Map(p, s)                    Map(p, s)
//!                                  Keep(p)
//!     Vote(flag)                   Vote(flag)
//!                                  Wait(0)
//!                                  Keep(o)
//!     If(flag) Map(o)              If(flag) Map(o)
//!     Pack(rows, p)                Pack(rows, p)
//! ```
//!
//! Instructions that follow one another and accumulate into the same registers are one group. A wait stands in front of the first statement that
//! reads or writes the accumulators of what is under way, writes rows that it reads, or refills what it reads in shared memory; in front of
//! the outermost loop or branch around that statement that is not around the instructions: what a warpgroup waits for it waits for together, and
//! a branch may be one that only some of its warps take. Where registers end with a list of statements, the wait stands at its end. At the end of an
//! iteration what the former one issued is waited for, so that others know when what it reads may be refilled. So many groups stay under way
//! as were committed behind the one that is waited for. Where these are in a branch that not every iteration takes, the wait stands at the end
//! of both of its sides.
//!
//! The compiler is told, by an empty statement that seems to change them, that accumulators are where they are in front of instructions and behind
//! the wait for them. Two more such statements keep it from moving work behind a wait, or copying registers: what is packed next into rows that
//! instructions read is there in front of the wait for these (and of the vote in front of that), and so is what is made of accumulators that the next
//! instructions overwrite.
//!
//! It is always legal: it only adds waits.

use super::trace::{self, Around, Event, Memory, Place, What, size};
use super::{Insertions, insert};
use crate::machine::resources::{Touched, touched};
use crate::machine::{
    Condition, FragmentId, Issue, Machine, RegionId, Rows, Stage, Statement, Sync,
};
use std::collections::{BTreeMap, BTreeSet};

/// The machine program with all groups of instructions, and all waits for them that it needs.
pub(crate) fn instructions(mut machine: Machine) -> Machine {
    let program = Program::of(&machine.body);
    if program.groups.is_empty() {
        return machine;
    }
    let traces = trace::all(&machine);
    let mut waits = Waits::default();
    // Each time waits at one place more, of as many as there are statements and lists of them.
    while let Some((spot, found)) = missing(&traces, &program, &waits) {
        waits.add(spot, &found, &program);
    }
    let insertions = program.insertions(&waits, &landed(&traces, &program, &waits));
    insert(&mut machine.body, insertions);
    machine
}

/// The regions that instructions read that are still under way when an iteration has ended, and those that are read in the iteration after
/// their own.
pub(super) fn read_late(body: &[Statement]) -> BTreeSet<RegionId> {
    fn list(body: &[Statement], flights: &mut Flights, late: &mut BTreeSet<RegionId>) {
        for (number, statement) in body.iter().enumerate() {
            if let Statement::Issue(issue) = statement {
                let previous = |s: &&Read| matches!(s.stage, Stage::Previous(_));
                late.extend(reads(issue).iter().filter(previous).map(|r| r.region));
                while let Some(oldest) = flights.used(statement) {
                    flights.0.drain(..=oldest);
                }
                let mut flight = Flight::new(issue);
                let here = |s: &&Read| !matches!(s.stage, Stage::Previous(_));
                flight.regions = reads(issue).iter().filter(here).map(|r| r.region).collect();
                flights.issue(flight, number == 0 || !goes_on(&body[number - 1], issue));
                continue;
            }
            while let Some(oldest) = flights.used(statement) {
                flights.0.drain(..=oldest);
            }
            for inside in statement.lists() {
                list(inside, flights, late);
            }
        }
        while let Some(oldest) = flights.ending(&declared(body)) {
            flights.0.drain(..=oldest);
        }
    }
    let (mut flights, mut late) = (Flights::default(), BTreeSet::new());
    list(body, &mut flights, &mut late);
    late.extend(flights.0.iter().flat_map(|f| &f.regions));
    late
}

/// What an instruction reads of shared memory.
struct Read {
    region: RegionId,
    stage: Stage,
}

fn reads(issue: &Issue) -> Vec<Read> {
    let a = match &issue.a {
        Rows::SwizzleAtoms(a) => Some(a),
        Rows::Fragment(_) => None,
    };
    let all = a.into_iter().chain([&issue.b]);
    all.map(|s| Read {
        region: s.region,
        stage: s.stage,
    })
    .collect()
}

/// Whether instructions are of the same group as those of the statement in front of them.
fn goes_on(before: &Statement, issue: &Issue) -> bool {
    matches!(before, Statement::Issue(first) if first.into == issue.into)
}

/// What is declared in a list of statements itself.
fn declared(body: &[Statement]) -> BTreeSet<FragmentId> {
    let of = |s: &Statement| {
        if let Statement::Declare(id) = s {
            Some(*id)
        } else {
            None
        }
    };
    body.iter().filter_map(of).collect()
}

/// A group of instructions under way.
#[derive(Clone)]
struct Flight {
    into: FragmentId,
    rows: BTreeSet<FragmentId>,
    regions: BTreeSet<RegionId>,
    /// Bytes of shared memory that are read: the first, and the one behind the last.
    bytes: Vec<(u64, u64)>,
    /// The loops and branches around it.
    around: Around,
    /// Iterations that each loop around it had ended.
    iterations: BTreeMap<Place, u64>,
}

impl Flight {
    fn new(issue: &Issue) -> Self {
        let rows = match &issue.a {
            Rows::Fragment(id) => Some(*id),
            Rows::SwizzleAtoms(_) => None,
        };
        Self {
            into: issue.into,
            rows: rows.into_iter().collect(),
            regions: BTreeSet::new(),
            bytes: Vec::new(),
            around: Around::from([]),
            iterations: BTreeMap::new(),
        }
    }
}

/// Groups under way, the oldest first.
#[derive(Default)]
struct Flights(Vec<Flight>);

impl Flights {
    fn issue(&mut self, flight: Flight, begins: bool) {
        match self.0.last_mut().filter(|_| !begins) {
            Some(last) => {
                last.rows.extend(flight.rows);
                last.regions.extend(flight.regions);
            }
            None => self.0.push(flight),
        }
    }

    /// The oldest group that has to have ended for a statement.
    fn used(&self, statement: &Statement) -> Option<usize> {
        if self.0.is_empty() {
            return None;
        }
        let Touched { reads, writes } = touched(statement);
        let accumulates = matches!(statement, Statement::Issue(_));
        let in_way = |f: &Flight| {
            // One behind the other, instructions accumulate into the same registers.
            let own = |id: &FragmentId| accumulates && writes.contains(id);
            let read = reads.iter().any(|id| f.into == *id && !own(id));
            let written = |id: &FragmentId| f.rows.contains(id) || f.into == *id && !own(id);
            read || writes.iter().any(written)
        };
        self.0.iter().position(in_way)
    }

    /// The oldest group that uses registers which end.
    fn ending(&self, ends: &BTreeSet<FragmentId>) -> Option<usize> {
        let uses = |f: &Flight| ends.contains(&f.into) || !ends.is_disjoint(&f.rows);
        self.0.iter().position(uses)
    }

    /// Ends all groups but so many; those that ended.
    fn landed(&mut self, stay: u64) -> Vec<Flight> {
        let count = self.0.len().saturating_sub(stay as usize);
        self.0.drain(..count).collect()
    }
}

/// Where a wait may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spot {
    /// In front of a statement.
    Before(Place),
    /// At the end of one of the lists in a statement.
    End(Place, usize),
}

/// How many groups may stay under way at a wait, and the branch that they were issued in, where that is one behind the instructions that are
/// waited for.
type Stay = (u64, Option<Place>);

/// Waits, with how many groups stay under way.
#[derive(Default)]
struct Waits {
    all: BTreeMap<Spot, u64>,
    /// Branches of which both sides end with one.
    split: BTreeSet<Place>,
}

impl Waits {
    fn add(&mut self, spot: Spot, found: &BTreeSet<Stay>, program: &Program<'_>) {
        let counts = |of: &dyn Fn(&Option<Place>) -> bool| -> BTreeSet<u64> {
            let own = found.iter().filter(|(_, branch)| of(branch));
            own.map(|(stay, _)| *stay).collect()
        };
        let branches: BTreeSet<Place> = found.iter().filter_map(|(_, branch)| *branch).collect();
        let (with, without) = (counts(&Option::is_some), counts(&Option::is_none));
        let single = |counts: &BTreeSet<u64>| match counts.len() {
            1 => counts.first().copied(),
            _ => None,
        };
        if let (1, Some(branch)) = (branches.len(), branches.first().copied())
            && let (Some(with), Some(without)) = (single(&with), single(&without))
            && with != without
            && let Some(list) = program.issuing(branch)
            && self.split.insert(branch)
        {
            self.all.insert(Spot::End(branch, list), with);
            self.all.insert(Spot::End(branch, 1 - list), without);
            return;
        }
        let least = found.iter().map(|(stay, _)| *stay).min();
        self.all.insert(spot, least.unwrap_or_default());
    }
}

/// A body, by places.
struct Program<'m> {
    statements: Vec<&'m Statement>,
    /// The list that each statement is in, by its construct; none for the outermost list.
    lists: BTreeMap<Place, (Option<(Place, usize)>, usize)>,
    /// What is declared in each list.
    declared: BTreeMap<(Place, usize), BTreeSet<FragmentId>>,
    /// Where groups begin, and where each of them ends.
    groups: BTreeMap<Place, Place>,
    body: &'m [Statement],
}

impl<'m> Program<'m> {
    fn of(body: &'m [Statement]) -> Self {
        let mut program = Self {
            statements: Vec::new(),
            lists: BTreeMap::new(),
            declared: BTreeMap::new(),
            groups: BTreeMap::new(),
            body,
        };
        program.list(body, None);
        program
    }

    fn list(&mut self, body: &'m [Statement], of: Option<(Place, usize)>) {
        let mut begun = 0;
        for (number, statement) in body.iter().enumerate() {
            let place = self.statements.len();
            self.statements.push(statement);
            self.lists.insert(place, (of, number));
            if let Statement::Issue(issue) = statement {
                if number == 0 || !goes_on(&body[number - 1], issue) {
                    begun = place;
                }
                self.groups.insert(begun, place);
            }
            for (which, inside) in statement.lists().into_iter().enumerate() {
                self.declared.insert((place, which), declared(inside));
                self.list(inside, Some((place, which)));
            }
        }
    }

    /// The list that a statement is in, and its number there.
    fn around(&self, place: Place) -> (&'m [Statement], usize) {
        let (of, number) = self.lists[&place];
        let list = match of {
            Some((construct, which)) => self.statements[construct].lists()[which],
            None => self.body,
        };
        (list, number)
    }

    /// The side of a branch that instructions are issued in, where all threads of a warpgroup take the same one.
    fn issuing(&self, branch: Place) -> Option<usize> {
        let Statement::If {
            condition: Condition::NotFirst(_) | Condition::NotEmpty(_) | Condition::Exists(_),
            then,
            ..
        } = self.statements[branch]
        else {
            return None;
        };
        let inside = branch + 1..branch + 1 + size(then);
        let issues = |place: &Place| inside.contains(place);
        Some(usize::from(!self.groups.keys().any(issues)))
    }

    /// Where a fragment is declared, unless that is behind a place.
    fn is_there(&self, id: FragmentId, place: Place) -> bool {
        let declares = |s: &&Statement| matches!(s, Statement::Declare(x) if *x == id);
        self.statements[..place].iter().any(declares)
    }

    /// What is packed into rows behind a place in its list, as far as it is there already.
    fn packed(&self, ended: &Landed, place: Place) -> Option<FragmentId> {
        fn find(
            list: &[Statement],
            rows: &BTreeSet<FragmentId>,
            masked: &mut BTreeMap<FragmentId, FragmentId>,
        ) -> Option<FragmentId> {
            for statement in list {
                if let Statement::Pack { to, from, .. } = statement
                    && rows.contains(to)
                {
                    return Some(*from);
                } else if let Statement::Mask { to, from, .. } = statement {
                    masked.insert(*to, *from);
                } else if let Statement::Scope(inside) = statement
                    && let Some(found) = find(inside, rows, masked)
                {
                    return Some(found);
                }
            }
            None
        }
        let (list, number) = self.around(place);
        let mut masked = BTreeMap::new();
        let found = find(&list[number..], &ended.rows, &mut masked)?;
        let from = masked.get(&found).copied().unwrap_or(found);
        let is_there = self.is_there(from, place) && !ended.accumulators.contains(&from);
        is_there.then_some(from)
    }

    /// Where what is written to is made of accumulators that instructions overwrite behind that in their list.
    fn made(&self, group: Place) -> Vec<(Place, FragmentId)> {
        let Statement::Issue(issue) = self.statements[group] else {
            return Vec::new();
        };
        if !issue.fresh {
            return Vec::new();
        }
        let mut place = group;
        // The scope of the instructions themselves.
        while let (Some((construct, _)), _) = self.lists[&place]
            && matches!(self.statements[construct], Statement::Scope(_))
        {
            place = construct;
        }
        let (of, _) = self.lists[&place];
        let own = (0..place).filter(|p| self.lists[p].0 == of);
        let made = own.filter_map(|p| {
            let Touched { reads, writes } = touched(self.statements[p]);
            let element_wise = matches!(self.statements[p], Statement::Map { .. });
            let to = writes.first().copied()?;
            (element_wise && reads.contains(&issue.into) && to != issue.into).then_some((p, to))
        });
        made.collect()
    }

    /// Everything that is placed.
    fn insertions(&self, waits: &Waits, landed: &BTreeMap<Spot, Landed>) -> Insertions {
        let sync = Statement::Sync;
        let mut all = Insertions::default();
        for (spot, stay) in &waits.all {
            let ended = landed.get(spot);
            let keeps = ended.into_iter().flat_map(|l| &l.accumulators);
            let keeps: Vec<Statement> = keeps.map(|id| sync(Sync::Keep(*id))).collect();
            match *spot {
                Spot::Before(place) => {
                    let next = ended.and_then(|l| self.packed(l, place));
                    let (list, number) = self.around(place);
                    let voted =
                        number > 0 && matches!(list[number - 1], Statement::Sync(Sync::Vote(_)));
                    let in_front = place - usize::from(voted);
                    all.before(in_front, next.map(|id| sync(Sync::Keep(id))));
                    all.before(place, [sync(Sync::Wait(*stay))]);
                    all.before(place, keeps);
                }
                Spot::End(construct, list) => {
                    all.at_end((construct, list), [sync(Sync::Wait(*stay))]);
                    if !waits.split.contains(&construct) {
                        all.at_end((construct, list), keeps);
                    }
                }
            }
        }
        for branch in &waits.split {
            let sides = [0, 1].map(|list| landed.get(&Spot::End(*branch, list)));
            let ended = sides.into_iter().flatten().flat_map(|l| &l.accumulators);
            let ended: BTreeSet<FragmentId> = ended.copied().collect();
            all.behind(*branch, ended.into_iter().map(|id| sync(Sync::Keep(id))));
        }
        for (first, last) in &self.groups {
            let Statement::Issue(issue) = self.statements[*first] else {
                continue;
            };
            all.before(*first, [sync(Sync::Keep(issue.into))]);
            all.behind(*last, [sync(Sync::Commit)]);
            for (place, made) in self.made(*first) {
                all.behind(place, [sync(Sync::Keep(made))]);
            }
        }
        all
    }
}

/// What has ended at a wait.
#[derive(Default)]
struct Landed {
    /// Accumulators that nothing under way writes any more.
    accumulators: BTreeSet<FragmentId>,
    /// Rows that were read.
    rows: BTreeSet<FragmentId>,
}

/// What has ended at each wait.
fn landed(traces: &[Vec<Event>], program: &Program<'_>, waits: &Waits) -> BTreeMap<Spot, Landed> {
    let mut all: BTreeMap<Spot, Landed> = BTreeMap::new();
    for events in traces {
        let mut way = Way::new(program, waits);
        way.go(events);
        for (spot, ended, stay) in way.landed {
            let own = all.entry(spot).or_default();
            for flight in ended {
                own.rows.extend(flight.rows);
                if !stay.contains(&flight.into) {
                    own.accumulators.insert(flight.into);
                }
            }
        }
    }
    all
}

/// The first place where a wait is missing beside those that there are, and how many groups may stay under way there each time.
fn missing(
    traces: &[Vec<Event>],
    program: &Program<'_>,
    waits: &Waits,
) -> Option<(Spot, BTreeSet<Stay>)> {
    let ways: Vec<Way<'_, '_>> = traces
        .iter()
        .map(|events| {
            let mut way = Way::new(program, waits);
            way.go(events);
            way
        })
        .collect();
    let spot = ways.iter().find_map(|w| w.missing.first())?.0;
    let all = ways.iter().flat_map(|w| &w.missing);
    let own = all.filter(|(s, _)| *s == spot);
    Some((spot, own.map(|(_, stay)| *stay).collect()))
}

/// Instructions on one way through the statements.
struct Way<'p, 'm> {
    program: &'p Program<'m>,
    waits: &'p Waits,
    flights: Flights,
    /// Iterations of each loop that have ended.
    ended: BTreeMap<Place, u64>,
    /// Where a wait is missing, as it is found; each ends what it is to wait for.
    missing: Vec<(Spot, Stay)>,
    /// What ended at the waits that there are, and the accumulators of what did not.
    landed: Vec<(Spot, Vec<Flight>, BTreeSet<FragmentId>)>,
}

impl<'p, 'm> Way<'p, 'm> {
    fn new(program: &'p Program<'m>, waits: &'p Waits) -> Self {
        Self {
            program,
            waits,
            flights: Flights::default(),
            ended: BTreeMap::new(),
            missing: Vec::new(),
            landed: Vec::new(),
        }
    }

    fn go(&mut self, events: &[Event]) {
        for event in events {
            let place = event.place;
            match &event.what {
                What::Statement => {
                    self.waited(Spot::Before(place));
                    let statement = self.program.statements[place];
                    while let Some(oldest) = self.flights.used(statement) {
                        self.need(oldest, event);
                    }
                    if let Statement::Issue(issue) = statement {
                        self.issue(issue, event);
                    }
                }
                What::Access {
                    memory: Memory::Bytes { from, to },
                    writes,
                    ends,
                    ..
                } => {
                    let is_issue = !ends && !writes;
                    if let Some(last) = self.flights.0.last_mut().filter(|_| is_issue) {
                        last.bytes.push((*from, *to));
                    }
                    let reads =
                        |f: &Flight| *writes && f.bytes.iter().any(|b| b.0 < *to && *from < b.1);
                    while let Some(oldest) = self.flights.0.iter().position(reads) {
                        self.need(oldest, event);
                    }
                }
                What::Leave(list) => self.leave(place, *list, event),
                What::Access {
                    memory: Memory::Filled { .. },
                    ..
                }
                | What::Barrier
                | What::Wait
                | What::End(_) => {}
            }
        }
    }

    fn issue(&mut self, issue: &Issue, event: &Event) {
        let ended = |place: &Place| (*place, self.ended.get(place).copied().unwrap_or_default());
        let flight = Flight {
            around: event.around.clone(),
            iterations: event.around.iter().map(ended).collect(),
            ..Flight::new(issue)
        };
        let begins = self.program.groups.contains_key(&event.place);
        self.flights.issue(flight, begins);
    }

    /// A list of statements ends, and with it what is declared there.
    fn leave(&mut self, construct: Place, list: usize, event: &Event) {
        let spot = Spot::End(construct, list);
        self.waited(spot);
        let ended = self.ended.entry(construct).or_default();
        let now = *ended;
        *ended += 1;
        let is_loop = matches!(self.program.statements[construct], Statement::Loop { .. });
        let former = |f: &Flight| is_loop && f.iterations.get(&construct).is_some_and(|n| *n < now);
        let ends = &self.program.declared[&(construct, list)];
        loop {
            let of_former = self.flights.0.iter().position(former);
            let Some(oldest) = of_former.or_else(|| self.flights.ending(ends)) else {
                break;
            };
            let stay = self.stay(oldest, &event.around);
            self.missing.push((spot, stay));
            self.flights.landed(stay.0);
        }
    }

    /// A wait that is there.
    fn waited(&mut self, spot: Spot) {
        if let Some(stay) = self.waits.all.get(&spot) {
            let ended = self.flights.landed(*stay);
            let stay = self.flights.0.iter().map(|f| f.into).collect();
            self.landed.push((spot, ended, stay));
        }
    }

    /// A group has to have ended in front of a statement.
    fn need(&mut self, group: usize, event: &Event) {
        let around = &self.flights.0[group].around;
        let outside = event.around.iter().find(|c| !around.contains(c));
        let spot = Spot::Before(outside.copied().unwrap_or(event.place));
        let stay = self.stay(group, &event.around);
        self.missing.push((spot, stay));
        self.flights.landed(stay.0);
    }

    /// How many groups behind this one are under way, and in which branch.
    fn stay(&self, group: usize, around: &[Place]) -> Stay {
        let (own, newer) = (&self.flights.0[group], &self.flights.0[group + 1..]);
        let apart = |f: &Flight| {
            let mut branches = f.around.iter();
            branches
                .find(|b| !own.around.contains(b) && !around.contains(b))
                .copied()
        };
        (newer.len() as u64, newer.iter().find_map(apart))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    fn after(body: &str) -> String {
        let mut machine = machine(body);
        machine.regions[1].offset = 8192;
        outline(&instructions(machine).body)
    }

    #[test]
    fn instructions_are_waited_for_where_their_results_are_used() {
        expect![[r#"
            Sync(Keep(FragmentId(0)))
            issue of s0 At(0) and s0 At(0)
            Sync(Commit)
            load f2 from 1
            Sync(Wait(0))
            Sync(Keep(FragmentId(0)))
            store to 2
        "#]]
        .assert_eq(&after("LEADS, LOAD1, STORE"));
        // Two products, of which the first one is needed first; and a second product into the same registers.
        expect![[r#"
            Sync(Keep(FragmentId(0)))
            issue of s0 At(0) and s0 At(0)
            issue of s0 At(0) and s0 At(0)
            Sync(Commit)
            Sync(Keep(FragmentId(2)))
            issue of s1 At(0)
            Sync(Commit)
            Sync(Wait(1))
            Sync(Keep(FragmentId(0)))
            store to 2
            Sync(Wait(0))
            Sync(Keep(FragmentId(2)))
            Sync(Keep(FragmentId(2)))
        "#]]
        .assert_eq(&after("LEADS, LEADS, ADDS, STORE, Sync(Keep(\"f2\"))"));
    }

    #[test]
    fn what_instructions_read_stays() {
        // Registers.
        expect![[r#"
            Sync(Keep(FragmentId(2)))
            issue of s1 At(0)
            Sync(Commit)
            read s1 At(0)
            Sync(Wait(0))
            Sync(Keep(FragmentId(2)))
            Pack { to: FragmentId(1), from: FragmentId(0), dtype: Bf16, stride: 32 }
        "#]]
        .assert_eq(&after("ADDS, FETCH1, PACK"));
        expect![[r#"
            scope
              Declare(FragmentId(1))
              Pack { to: FragmentId(1), from: FragmentId(0), dtype: Bf16, stride: 32 }
              Sync(Keep(FragmentId(2)))
              issue of s1 At(0)
              Sync(Commit)
              Sync(Wait(0))
              Sync(Keep(FragmentId(2)))
            store to 2
        "#]]
        .assert_eq(&after("Scope([Declare(\"f1\"), PACK, ADDS]), STORE"));
        // Shared memory: nobody else says when it may be overwritten.
        expect![[r#"
            Sync(Keep(FragmentId(0)))
            issue of s0 At(0) and s0 At(0)
            Sync(Commit)
            copy to s1 At(0) by 4 warps
            Sync(CopyCommit)
            Sync(Wait(0))
            Sync(Keep(FragmentId(0)))
            copy to s0 At(0) by 4 warps
            Sync(CopyCommit)
        "#]]
        .assert_eq(&after("LEADS, COPY1, LANDS, COPY0, LANDS"));
    }

    #[test]
    fn what_is_made_of_accumulators_is_there_before_they_are_overwritten() {
        expect![[r#"
            Sync(Keep(FragmentId(0)))
            issue of s0 At(0) and s0 At(0)
            Sync(Commit)
            Sync(Wait(0))
            Sync(Keep(FragmentId(0)))
            f2 from [Fragment(FragmentId(0))]
            Sync(Keep(FragmentId(2)))
            load f2 from 1
            Sync(Keep(FragmentId(0)))
            issue of s0 At(0) and s0 At(0)
            Sync(Commit)
            Sync(Wait(0))
            Sync(Keep(FragmentId(0)))
            store to 2
        "#]]
        .assert_eq(&after(
            "LEADS, Map(to: \"f2\", function: Copy, args: [Fragment(\"f0\")]), LOAD1, LEADS, STORE",
        ));
    }

    /// In front of the outermost branch: some warps alone may take it.
    #[test]
    fn a_warpgroup_waits_together() {
        expect![[r#"
            Sync(Keep(FragmentId(2)))
            issue of s1 At(0)
            Sync(Commit)
            Declare(FragmentId(0))
            read s0 At(0)
            Sync(Keep(FragmentId(0)))
            Sync(Vote(FragmentId(0)))
            Sync(Wait(0))
            Sync(Keep(FragmentId(2)))
            if Flag(FragmentId(0))
              load f2 from 1
            Pack { to: FragmentId(1), from: FragmentId(0), dtype: Bf16, stride: 32 }
        "#]].assert_eq(&after("ADDS, Declare(\"f0\"), FETCH0, Sync(Vote(\"f0\")), If(condition: Flag(\"f0\"), then: [LOAD1], otherwise: []), PACK"));
    }

    #[test]
    fn what_a_loop_issues_is_waited_for_in_the_next_iteration() {
        expect![[r#"
            range of 0
            loop 0
              tile Now(0)
              Sync(Keep(FragmentId(2)))
              issue of s1 At(0)
              Sync(Commit)
              Sync(Wait(1))
            Sync(Wait(0))
            Sync(Keep(FragmentId(2)))
            load f2 from 1
        "#]]
        .assert_eq(&after("RANGE, Loop(number: 0, body: [HERE, ADDS]), LOAD1"));
        expect![[r#"
            range of 0
            loop 0
              tile Now(0)
              Declare(FragmentId(0))
              scope
                Sync(Keep(FragmentId(0)))
                issue of s0 At(0) and s0 At(0)
                Sync(Commit)
                if NotFirst(0)
                  Sync(Keep(FragmentId(2)))
                  issue of s1 Previous(0)
                  Sync(Commit)
                  Sync(Wait(1))
                  Sync(Wait(0))
                Sync(Keep(FragmentId(0)))
              Sync(Keep(FragmentId(0)))
              Sync(Wait(0))
              Sync(Keep(FragmentId(2)))
              Pack { to: FragmentId(1), from: FragmentId(0), dtype: Bf16, stride: 32 }
            if NotEmpty(0)
              Sync(Keep(FragmentId(2)))
              issue of s1 Previous(0)
              Sync(Commit)
            Sync(Wait(0))
            Sync(Keep(FragmentId(2)))
            load f2 from 1
        "#]].assert_eq(&after(
            "RANGE, Loop(number: 0, body: [HERE, Declare(\"f0\"), Scope([LEADS, If(condition: NotFirst(0), then: [ADDED], otherwise: [])]), PACK]), \
             If(condition: NotEmpty(0), then: [ADDED], otherwise: []), LOAD1",
        ));
    }

    #[test]
    fn what_is_read_when_an_iteration_ends_is_found() {
        let late = |body: &str| {
            let regions = read_late(&machine(body).body);
            regions.iter().map(|r| r.0.to_string()).collect::<String>()
        };
        assert_eq!(late("LEADS"), "0");
        assert_eq!(late("LEADS, STORE"), "");
        assert_eq!(late("LEADS, ADDS, STORE"), "1");
        assert_eq!(late("ADDS, LEADS, STORE"), "");
        assert_eq!(late("ADDED, LEADS, STORE"), "1");
        assert_eq!(late("Scope([Declare(\"f1\"), PACK, ADDS])"), "");
    }
}

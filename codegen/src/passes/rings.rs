//! Places what the warps that compute do about rings that other warps fill: the waits for full stages, the releases, and the steps to the next stage.
//!
//! ```text
//! before                              after
//!   Loop                                Loop
//!     Issue(f0, k, current)               Full(k)
//!     Commit                              Issue(f0, k, current)
//!     If(NotFirst)                        Commit
//!       Issue(f1, v, previous)            If(NotFirst)
//!       Commit                              Full(v)
//!     Wait(1)                               Issue(f1, v, current)
//!     Map(…)                                Commit
//!     Wait(0)                             Wait(1)
//!                                         If(Lane0) Release(k)
//!                                         AdvanceRing(k)
//!                                         Map(…)
//!                                         Wait(0)
//!                                         If(NotFirst)
//!                                           If(Lane0) Release(v)
//!                                           AdvanceRing(v)
//! ```
//!
//! A wait stands in front of the first read of what a stage was filled with: in front of the statement of the loop's body that the read is in, or
//! in its branch if it is in one. A release stands behind the statement in which the last read has ended; reads of instructions end where
//! these are waited for. Where the last read of one filling ends behind the first of the next one, the stage before the current one is
//! released.
//!
//! It is legal where each iteration does the same, the first one or one that is not there aside.

use super::trace::{self, Event, Memory, Place, What, size, whole};
use super::{Insertions, insert, reads_of};
use crate::machine::{Condition, LoopId, Machine, RegionId, RingId, Stage, Statement, Sync};
use ir::Reject;
use std::collections::{BTreeMap, BTreeSet};

/// The machine program with what is done about its rings.
///
/// # Errors
/// [`Reject::Schedule`] where iterations read stages in different ways.
pub(crate) fn rings(mut machine: Machine) -> Result<Machine, Reject> {
    let traces = trace::all(&machine);
    let mut insertions = Insertions::default();
    let mut renamed = BTreeSet::new();
    for (number, ring) in (0..).zip(&machine.rings) {
        if ring.read_by.is_some() {
            continue;
        }
        let Some(looped) = find(&machine.body, 0, ring.counter.number, false) else {
            return Err(refused(&machine, "is read in no loop"));
        };
        let uses: Result<Vec<Use<'_>>, &str> = traces
            .iter()
            .map(|events| Use::of(events, RingId(number), &looped))
            .collect();
        let placed = uses.and_then(|uses| Placed::of(&uses, &looped));
        let placed = placed.map_err(|why| refused(&machine, why))?;
        if placed.behind > 0 {
            renamed.extend(&ring.regions);
        }
        placed.insert(RingId(number), &looped, &mut insertions);
    }
    insert(&mut machine.body, insertions);
    if !renamed.is_empty() {
        let numbers: BTreeSet<LoopId> = machine.rings.iter().map(|r| r.counter.number).collect();
        rename(&mut machine, &renamed, &numbers);
    }
    Ok(machine)
}

fn refused(machine: &Machine, why: &str) -> Reject {
    Reject::Schedule(format!("{}: a ring {why}", machine.name))
}

/// A loop that reads a ring.
struct Looped<'m> {
    number: LoopId,
    place: Place,
    /// The list that it is in, and the place of the first statement there.
    outside: (&'m [Statement], Place),
    body: &'m [Statement],
    /// Whether it runs several times.
    again: bool,
}

fn find(list: &[Statement], first: Place, wanted: LoopId, again: bool) -> Option<Looped<'_>> {
    let mut place = first;
    for statement in list {
        let mut inside = place + 1;
        if let Statement::Loop { number, body } = statement
            && *number == wanted
        {
            return Some(Looped {
                number: wanted,
                place,
                outside: (list, first),
                body,
                again,
            });
        }
        let repeats = matches!(statement, Statement::Loop { .. } | Statement::Tiles(_));
        for list in statement.lists() {
            let found = find(list, inside, wanted, again || repeats);
            if found.is_some() {
                return found;
            }
            inside += size(list);
        }
        place += whole(statement);
    }
    None
}

impl Looped<'_> {
    /// The statement of the loop's body that a place is in, or that of the list around the loop.
    fn anchor(&self, place: Place) -> Option<Place> {
        let inside = (self.body, self.place + 1);
        let (list, first) = match self.holds(place) {
            true => inside,
            false => self.outside,
        };
        let mut own = first;
        for statement in list {
            let next = own + whole(statement);
            if (own..next).contains(&place) {
                return Some(own);
            }
            own = next;
        }
        None
    }

    fn holds(&self, place: Place) -> bool {
        (self.place + 1..self.place + 1 + size(self.body)).contains(&place)
    }

    /// The last statement of the body.
    fn last(&self) -> Option<Place> {
        let last = self.body.last()?;
        Some(self.place + 1 + size(self.body) - whole(last))
    }
}

/// When and where one filling of a stage is read first, or has been read last.
#[derive(Clone, Copy)]
struct Moment {
    /// Counts events.
    when: usize,
    place: Place,
}

/// What one way through the statements does with a ring.
struct Use<'a> {
    events: &'a [Event],
    first: BTreeMap<u64, Moment>,
    last: BTreeMap<u64, Moment>,
    /// How many iterations behind the one that a filling was meant for it is read.
    behind: BTreeSet<u64>,
}

impl<'a> Use<'a> {
    fn of(events: &'a [Event], id: RingId, looped: &Looped<'_>) -> Result<Self, &'static str> {
        let mut first = BTreeMap::new();
        let mut last = BTreeMap::new();
        let mut behinds = BTreeSet::new();
        let mut under_way = BTreeMap::new();
        for (when, event) in events.iter().enumerate() {
            match &event.what {
                What::Access {
                    number,
                    memory: Memory::Filled { ring, tile, behind },
                    ends,
                    ..
                } if *ring == id => {
                    let anchor = looped.anchor(event.place);
                    let anchor = anchor.ok_or("is read far from its loop")?;
                    // In its branch, if that is in the anchor.
                    let place = match event.around.iter().any(|c| *c >= anchor) {
                        true => event.place,
                        false => anchor,
                    };
                    first.entry(*tile).or_insert(Moment { when, place });
                    behinds.insert(*behind);
                    match ends {
                        true => {
                            let place = anchor;
                            last.insert(*tile, Moment { when, place });
                        }
                        false => {
                            under_way.insert(*number, *tile);
                        }
                    }
                }
                What::End(numbers) => {
                    for tile in numbers.iter().filter_map(|n| under_way.remove(n)) {
                        let place = looped.anchor(event.place);
                        let place = place.ok_or("is read until far from its loop")?;
                        last.insert(tile, Moment { when, place });
                    }
                }
                What::Access { .. }
                | What::Statement
                | What::Barrier
                | What::Wait
                | What::Leave(_) => {}
            }
        }
        if !under_way.is_empty() {
            return Err("is still read at the end");
        }
        Ok(Self {
            events,
            first,
            last,
            behind: behinds,
        })
    }

    /// How often a statement comes, and of each time when, and how many iterations of the loop's run were begun.
    fn visits(&self, place: Place, looped: &Looped<'_>) -> Vec<(usize, u64)> {
        let begins = looped.place + 1;
        let mut iterations = 0;
        let mut visits = Vec::new();
        for (when, event) in self.events.iter().enumerate() {
            if let What::Statement = event.what {
                if event.place == looped.place {
                    iterations = 0;
                } else if event.place == begins {
                    iterations += 1;
                }
                if event.place == place {
                    visits.push((when, iterations));
                }
            }
        }
        visits
    }

    /// The filling that was waited for last.
    fn current(&self, when: usize) -> Option<u64> {
        let before = self.first.iter().filter(|(_, m)| m.when <= when);
        before.map(|(tile, _)| *tile).max()
    }
}

/// What is placed where.
struct Placed {
    waits: BTreeSet<Place>,
    /// The last reads end there, on what condition.
    releases: BTreeMap<Place, Option<Condition>>,
    /// Whether a stage is released while the next one is current.
    trails: bool,
    /// How many iterations behind its own a filling is read.
    behind: u64,
}

impl Placed {
    fn of(uses: &[Use<'_>], looped: &Looped<'_>) -> Result<Self, &'static str> {
        let firsts = uses.iter().flat_map(|u| u.first.values());
        let waits: BTreeSet<Place> = firsts.map(|m| m.place).collect();
        let lasts = uses.iter().flat_map(|u| u.last.values());
        let ends: BTreeSet<Place> = lasts.map(|m| m.place).collect();
        if waits.is_empty() {
            return Err("is never read");
        }
        for used in uses {
            for place in &waits {
                let reads = used.first.values().filter(|m| m.place == *place).count();
                if used.visits(*place, looped).len() != reads {
                    return Err("is not read whenever it is waited for");
                }
            }
        }
        let mut releases = BTreeMap::new();
        for place in ends {
            releases.insert(place, condition(uses, place, looped)?);
        }
        let trails = |used: &Use<'_>| {
            let mut lasts = used.last.iter();
            lasts.any(|(tile, m)| used.current(m.when).is_some_and(|current| current > *tile))
        };
        let trails = uses.iter().any(trails);
        let behind: BTreeSet<u64> = uses.iter().flat_map(|u| &u.behind).copied().collect();
        let behind = match (trails, behind.len()) {
            (false, 1) => behind.first().copied().unwrap_or_default(),
            (true, _) if behind.contains(&0) => 0,
            (true | false, _) => return Err("is read in its own iteration and in the next one"),
        };
        Ok(Self {
            waits,
            releases,
            trails,
            behind,
        })
    }

    fn insert(&self, id: RingId, looped: &Looped<'_>, insertions: &mut Insertions) {
        for place in &self.waits {
            insertions.before(*place, [Statement::Sync(Sync::Full(id))]);
        }
        for (place, condition) in &self.releases {
            // Nobody waits for what is not filled again.
            if !looped.again && !looped.holds(*place) {
                continue;
            }
            let release = match self.trails {
                true => Sync::ReleasePrevious(id),
                false => Sync::Release(id),
            };
            let mut done = vec![
                Statement::Sync(Sync::Warp),
                branch(Condition::Lane0, vec![Statement::Sync(release)]),
            ];
            if !self.trails {
                done.push(Statement::AdvanceRing(id));
            }
            match condition {
                Some(condition) => insertions.behind(*place, [branch(*condition, done)]),
                None => insertions.behind(*place, done),
            }
        }
        if let (true, Some(last)) = (self.trails, looped.last()) {
            insertions.behind(last, [Statement::AdvanceRing(id)]);
        }
    }
}

fn branch(condition: Condition, then: Vec<Statement>) -> Statement {
    Statement::If {
        condition,
        then,
        otherwise: Vec::new(),
    }
}

/// On what condition the last read of a filling has ended behind a statement; none where it always has.
fn condition(
    uses: &[Use<'_>],
    place: Place,
    looped: &Looped<'_>,
) -> Result<Option<Condition>, &'static str> {
    // Of each time how many iterations were begun, and whether something ended.
    let mut times = Vec::new();
    for used in uses {
        let visits = used.visits(place, looped);
        for (n, (when, iterations)) in visits.iter().enumerate() {
            let next = visits.get(n + 1).map_or(usize::MAX, |v| v.0);
            let ended = |m: &&Moment| m.place == place && (*when..next).contains(&m.when);
            match used.last.values().filter(ended).count() {
                0 => times.push((*iterations, false)),
                1 => times.push((*iterations, true)),
                _ => return Err("is given back several stages at a time"),
            }
        }
    }
    let (least, condition) = match looped.holds(place) {
        true => (1, Condition::NotFirst(looped.number)),
        false => (0, Condition::NotEmpty(looped.number)),
    };
    if times.iter().all(|(_, ended)| *ended) {
        Ok(None)
    } else if times.iter().all(|(n, ended)| *ended == (*n > least)) {
        Ok(Some(condition))
    } else {
        Err("is given back in some iterations alone")
    }
}

/// What is read an iteration late is the current stage there, since that is counted where it is read.
fn rename(machine: &mut Machine, regions: &BTreeSet<RegionId>, numbers: &BTreeSet<LoopId>) {
    let counter = |id: RegionId| {
        let ring = machine.rings.iter().find(|r| r.regions.contains(&id));
        ring.filter(|_| regions.contains(&id)).map(|r| r.counter)
    };
    for (id, stage) in reads_of(&mut machine.body) {
        if let (Stage::Previous(_), Some(counter)) = (*stage, counter(id)) {
            *stage = Stage::Current(counter);
        }
    }
    fn list(body: &mut Vec<Statement>, numbers: &BTreeSet<LoopId>) {
        body.retain(
            |s| !matches!(s, Statement::PreviousStage { number, .. } if numbers.contains(number)),
        );
        for inside in body.iter_mut().flat_map(Statement::lists_mut) {
            list(inside, numbers);
        }
    }
    list(&mut machine.body, numbers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::outline;
    use expect_test::expect;

    /// A machine program whose warps fill two rings of a loop, with statements that read them: `K` and `V` stand for an instruction that reads the
    /// first one's stage of this iteration, and the second one's of the one before.
    fn machine(body: &str) -> Machine {
        let swizzle_atoms = |region: u32, stage: &str| {
            format!(
                "(region: \"s{region}\", stage: {stage}, swizzle: (span: 64, lines: 64, along: 1, depth: true), share: None, further: 0)"
            )
        };
        let issue = |region: u32, stage: &str| {
            let b = swizzle_atoms(region, stage);
            format!(
                "Issue(row: \"wgmma.m64k16 bf16\", into: \"f0\", fresh: true, groups: 1, counts: (1, 1, 4), columns: 64, a: Fragment(\"f1\"), b: {b})"
            )
        };
        let k = issue(0, "Current(number: 0, delayed: false)");
        let v = issue(1, "Previous(0)");
        let body = body
            .replace("K,", &format!("{k},"))
            .replace("V,", &format!("{v},"));
        let region = |name: &str| {
            format!(
                "(name: \"{name}\", dtype: Bf16, axes: [], elements: 4096, stages: 2, offset: 0, swizzle: None, patch: [], boxes: None)"
            )
        };
        let ring = |delayed: bool, region: u32| {
            format!(
                "(counter: (number: 0, delayed: {delayed}), regions: [\"s{region}\"], stages: 2, readers: 1, barriers: 0)"
            )
        };
        let text = format!(
            "(name: \"two_rings\", axes: {{}}, buffers: {{}}, warps: (4, 1), blocks_per_sm: 1, precise: false, \
             fragments: [(name: \"sums\", holds: Flag), (name: \"rows\", holds: Flag)], regions: [{}, {}], rings: [{}, {}], \
             scratch: (offset: 0, bytes: 0), grid: (coordinates: [], raster: None, tiles: 1, persistent: false), block_group: None, cluster: 1, \
             split_workspace: (bytes: 0, counters: 0, together: 0), prologue: [], producers: [], registers: None, body: [{body}], epilogue: [], overlaps: false)",
            region("k"),
            region("v"),
            ring(false, 0),
            ring(true, 1),
        );
        text.parse().expect("a machine program")
    }

    #[test]
    fn stages_are_waited_for_and_given_back_where_they_are_read() {
        let before = "Loop(number: 0, body: [\
            K, Sync(Commit), \
            If(condition: NotFirst(0), then: [PreviousStage(number: 0, stages: 2), V, Sync(Commit), Sync(Wait(1))], otherwise: [Sync(Wait(0))]), \
            Sync(StartNext), Sync(Wait(0))]), \
          If(condition: NotEmpty(0), then: [PreviousStage(number: 0, stages: 2), V, Sync(Commit)], otherwise: []), \
          Sync(Wait(0))";
        let after = rings(machine(before)).expect("legal");
        expect![[r#"
            loop 0
              Sync(Full(RingId(0)))
              issue of s0 Current(Counter { number: 0, delayed: false, split: None })
              Sync(Commit)
              if NotFirst(0)
                Sync(Full(RingId(1)))
                issue of s1 Current(Counter { number: 0, delayed: true, split: None })
                Sync(Commit)
                Sync(Wait(1))
                Sync(Wait(0))
              Sync(Warp)
              if Lane0
                Sync(Release(RingId(0)))
              AdvanceRing(RingId(0))
              Sync(StartNext)
              Sync(Wait(0))
              if NotFirst(0)
                Sync(Warp)
                if Lane0
                  Sync(Release(RingId(1)))
                AdvanceRing(RingId(1))
            if NotEmpty(0)
              Sync(Full(RingId(1)))
              issue of s1 Current(Counter { number: 0, delayed: true, split: None })
              Sync(Commit)
            Sync(Wait(0))
        "#]]
        .assert_eq(&outline(&after.body));
        let again = format!("Tiles([{before}])");
        let after = rings(machine(&again)).expect("legal");
        expect![[r#"
            tiles
              loop 0
                Sync(Full(RingId(0)))
                issue of s0 Current(Counter { number: 0, delayed: false, split: None })
                Sync(Commit)
                if NotFirst(0)
                  Sync(Full(RingId(1)))
                  issue of s1 Current(Counter { number: 0, delayed: true, split: None })
                  Sync(Commit)
                  Sync(Wait(1))
                  Sync(Wait(0))
                Sync(Warp)
                if Lane0
                  Sync(Release(RingId(0)))
                AdvanceRing(RingId(0))
                Sync(StartNext)
                Sync(Wait(0))
                if NotFirst(0)
                  Sync(Warp)
                  if Lane0
                    Sync(Release(RingId(1)))
                  AdvanceRing(RingId(1))
              if NotEmpty(0)
                Sync(Full(RingId(1)))
                issue of s1 Current(Counter { number: 0, delayed: true, split: None })
                Sync(Commit)
              Sync(Wait(0))
              if NotEmpty(0)
                Sync(Warp)
                if Lane0
                  Sync(Release(RingId(1)))
                AdvanceRing(RingId(1))
        "#]]
        .assert_eq(&outline(&after.body));
    }

    #[test]
    fn a_stage_that_is_read_while_the_next_one_is_current_trails() {
        let before = "Loop(number: 0, body: [K, V, Sync(Commit), Sync(Wait(1))]), Sync(Wait(0))";
        let text = machine(before).to_string();
        // Both are read in their own iteration.
        let text = text.replace("Previous(0)", "Current(number: 0, delayed: true)");
        let after = rings(text.parse().expect("a machine program")).expect("legal");
        expect![[r#"
            loop 0
              Sync(Full(RingId(0)))
              issue of s0 Current(Counter { number: 0, delayed: false, split: None })
              Sync(Full(RingId(1)))
              issue of s1 Current(Counter { number: 0, delayed: true, split: None })
              Sync(Commit)
              Sync(Wait(1))
              if NotFirst(0)
                Sync(Warp)
                if Lane0
                  Sync(ReleasePrevious(RingId(0)))
              AdvanceRing(RingId(0))
              if NotFirst(0)
                Sync(Warp)
                if Lane0
                  Sync(ReleasePrevious(RingId(1)))
              AdvanceRing(RingId(1))
            Sync(Wait(0))
        "#]]
        .assert_eq(&outline(&after.body));
    }

    #[test]
    fn what_iterations_do_differently_is_refused() {
        let refused = |before: &str| match rings(machine(before)) {
            Ok(_) => "legal".to_owned(),
            Err(reject) => reject.to_string(),
        };
        let all = [
            "Loop(number: 0, body: [K, Sync(Commit), Sync(Wait(0))])",
            "Loop(number: 0, body: [K, V, Sync(Commit)])",
            "Loop(number: 0, body: [K, V, Sync(Commit), Sync(Wait(2))]), Sync(Wait(0))",
            "Loop(number: 0, body: [K, V, Sync(Commit), Sync(Wait(0))])",
            "K, V, Sync(Commit), Sync(Wait(0))",
        ]
        .map(refused);
        expect![[r#"
            schedule: two_rings: a ring is never read
            schedule: two_rings: a ring is still read at the end
            schedule: two_rings: a ring is given back several stages at a time
            schedule: two_rings: a ring is not read whenever it is waited for
            schedule: two_rings: a ring is read in no loop"#]]
        .assert_eq(&all.join("\n"));
    }
}

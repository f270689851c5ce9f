//! What a machine program gets wrong in form, whoever wrote it: what is named and does not exist, what is used before it is there, sizes that do
//! not fit together, operands that an instruction does not take, what no block has room for.
//!
//! What it does not know is time: whether waits suffice, and whether the numbers are right, [`crate::check`] finds out.

mod operands;
mod tables;

use super::resources::{each, touched};
use super::{
    Among, Counter, FragmentId, Holds, LoopId, Machine, RegionId, RingId, Source, Stage, Statement,
    Sync,
};
use super::{At, Condition};
use crate::access::Access;
use crate::layout::Layout;
use ir::{AxisId, Bound, Target};
use std::collections::{BTreeMap, BTreeSet};

/// One thing that is wrong with the form of a machine program, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel}, {place}: {what}")]
pub struct Malformed {
    /// The kernel.
    pub kernel: String,
    /// The field, or the list of statements and the number of each statement in it from outside in, from 0 on, and the last of them.
    pub place: String,
    /// What was expected and what was found.
    pub what: String,
}

impl Machine {
    /// Everything that is wrong with the form of the machine program, in its order; nothing where it can be printed and run.
    ///
    /// ```
    /// use tilewright_codegen::machine::{Machine, MachineError};
    ///
    /// let text = r#"(name: "empty_0", axes: {}, buffers: {}, warps: (1, 1), blocks_per_sm: 1, precise: false, fragments: [], regions: [],
    ///     rings: [], scratch: (offset: 0, bytes: 0), grid: (coordinates: [], raster: None, tiles: 1, persistent: false), block_group: None,
    ///     cluster: 1, split_workspace: (bytes: 0, counters: 0, together: 0), prologue: [], producers: [], registers: None, body: [Declare("f0")],
    ///     epilogue: [], overlaps: false)"#;
    /// let machine: Machine = text.parse()?;
    /// assert_eq!(
    ///     machine.malformed()[0].to_string(),
    ///     r#"empty_0, body[0] Declare("f0"): there is no fragment f0"#
    /// );
    /// # Ok::<(), MachineError>(())
    /// ```
    pub fn malformed(&self) -> Vec<Malformed> {
        let mut all = tables::malformed(self);
        if !tables::warps_are_possible(self) {
            return all;
        }
        let mut walk = Walk::new(self);
        walk.list("prologue", &self.prologue);
        // What all threads have done, each role goes on with.
        let (opened, done) = (walk.opened.clone(), walk.written.clone());
        for (number, producer) in (0..).zip(&self.producers) {
            (walk.opened, walk.written) = (opened.clone(), done.clone());
            walk.fills = Some(number);
            walk.list(&format!("producers[{number}]"), &producer.body);
        }
        (walk.opened, walk.written, walk.fills) = (opened, done, None);
        walk.list("body", &self.body);
        walk.list("epilogue", &self.epilogue);
        all.extend(walk.found);
        all
    }

    /// What of it a target has no room for, or has not.
    pub fn beyond(&self, target: &Target) -> Vec<Malformed> {
        tables::beyond(self, target)
    }
}

/// What has begun and not ended.
#[derive(Clone, Debug, Default)]
struct Opened {
    /// Loops whose bounds are known.
    ranges: BTreeSet<LoopId>,
    counters: BTreeSet<Counter>,
    next: BTreeSet<Counter>,
    previous: BTreeSet<LoopId>,
    rings: BTreeSet<RingId>,
}

/// A walk through the statements of a machine program, in its order.
struct Walk<'a> {
    machine: &'a Machine,
    found: Vec<Malformed>,
    /// Where the walk is: the list, the numbers of statements in the lists, and the innermost of them.
    at: String,
    statement: Option<&'a Statement>,
    /// Which warps these are of those that only fill rings; none that compute.
    fills: Option<u32>,
    /// How many lists there are around.
    depth: usize,
    declared: Vec<FragmentId>,
    written: BTreeSet<FragmentId>,
    opened: Opened,
    /// Loops around.
    loops: Vec<LoopId>,
    /// Regions that are zeroed somewhere.
    cleared: BTreeSet<RegionId>,
    /// Stages that each counter counts, by the first statement or ring that says so.
    stages: BTreeMap<Counter, u64>,
}

impl<'a> Walk<'a> {
    fn new(machine: &'a Machine) -> Self {
        let rings = machine.rings.iter().map(|r| (r.counter, r.stages));
        let mut cleared = BTreeSet::new();
        each(&machine.body, &mut |s| {
            if let Statement::Clear(id) = s {
                cleared.insert(*id);
            }
        });
        Self {
            machine,
            found: Vec::new(),
            at: String::new(),
            statement: None,
            fills: None,
            depth: 0,
            declared: Vec::new(),
            written: BTreeSet::new(),
            opened: Opened::default(),
            loops: Vec::new(),
            cleared,
            stages: rings.collect(),
        }
    }

    fn say(&mut self, what: impl Into<String>) {
        let head = self.statement.map(head).unwrap_or_default();
        self.found.push(Malformed {
            kernel: self.machine.name.clone(),
            place: format!("{} {head}", self.at),
            what: what.into(),
        });
    }

    fn list(&mut self, name: &str, list: &'a [Statement]) {
        let (around, declared) = (self.at.clone(), self.declared.len());
        let before = self.statement;
        self.depth += 1;
        for (number, statement) in list.iter().enumerate() {
            self.at = match around.as_str() {
                "" => format!("{name}[{number}]"),
                around => format!("{around}.{name}[{number}]"),
            };
            self.statement = Some(statement);
            self.one(statement);
        }
        self.depth -= 1;
        self.declared.truncate(declared);
        (self.at, self.statement) = (around, before);
    }

    /// Whether a fragment exists where the walk is; says so if not.
    fn fragment(&mut self, id: FragmentId) -> Option<&'a Holds> {
        let Some(fragment) = self.machine.fragments.get(id.0 as usize) else {
            self.say(format!("there is no fragment f{}", id.0));
            return None;
        };
        if self.fills.is_some() {
            self.say(format!("threads that only fill rings have no f{}", id.0));
        } else if !self.declared.contains(&id) {
            self.say(format!("f{} is not declared here", id.0));
        }
        Some(&fragment.holds)
    }

    /// The layout of a fragment that should hold elements.
    fn floats(&mut self, id: FragmentId) -> Option<&'a Layout> {
        match &self.machine.fragments.get(id.0 as usize)?.holds {
            Holds::Floats(layout) => Some(layout),
            Holds::Rows { .. } | Holds::Flag => {
                self.say(format!("f{} holds no elements in f32", id.0));
                None
            }
        }
    }

    fn region(&mut self, id: RegionId) -> Option<&'a super::Region> {
        let found = self.machine.regions.get(id.0 as usize);
        if found.is_none() {
            self.say(format!("there is no region s{}", id.0));
        }
        found
    }

    fn ring(&mut self, id: RingId) -> Option<&'a super::Ring> {
        let found = self.machine.rings.get(id.0 as usize);
        if found.is_none() {
            self.say(format!("there is no ring{}", id.0));
        }
        found
    }

    fn open_ring(&mut self, id: RingId) {
        if self.ring(id).is_some() && !self.opened.rings.contains(&id) {
            self.say(format!("ring{} is not open here", id.0));
        }
    }

    fn axis(&mut self, axis: AxisId) {
        if !self.machine.axes.contains_key(&axis) {
            self.say(format!("there is no axis {}", axis.0));
        }
    }

    fn stage(&mut self, id: RegionId, stage: Stage) {
        let Some(region) = self.region(id) else {
            return;
        };
        let stages = region.stages;
        let (known, counter) = match stage {
            Stage::At(n) if n >= stages => {
                self.say(format!("s{} has {stages} stages, and no stage {n}", id.0));
                return;
            }
            Stage::At(_) => return,
            Stage::Current(c) => (self.opened.counters.contains(&c), c),
            Stage::Next(c) => (self.opened.next.contains(&c), c),
            Stage::Previous(n) => (self.opened.previous.contains(&n), Counter::copied(n, true)),
        };
        if !known {
            self.say(format!("nothing says which stage of s{} it is", id.0));
        }
        match self.stages.get(&counter) {
            Some(counted) if *counted != stages => {
                let counted = *counted;
                self.say(format!(
                    "s{} has {stages} stages, of which {counted} are counted",
                    id.0
                ));
            }
            Some(_) | None => {}
        }
    }

    /// A statement counts so many stages.
    fn counts(&mut self, counter: Counter, stages: u64) {
        if !self.opened.counters.contains(&counter) {
            self.say(format!(
                "the stages of loop {} are not counted yet",
                counter.number
            ));
        }
        let known = *self.stages.entry(counter).or_insert(stages);
        if known != stages {
            self.say(format!(
                "{stages} stages of loop {} are counted here and {known} elsewhere",
                counter.number
            ));
        }
    }

    fn ranged(&mut self, number: LoopId) {
        if !self.opened.ranges.contains(&number) {
            self.say(format!("nothing says how far loop {number} goes"));
        }
    }

    fn inside(&mut self, number: LoopId) {
        self.ranged(number);
        if !self.loops.contains(&number) {
            self.say(format!("this is not inside loop {number}"));
        }
    }

    fn iteration(&mut self, at: At) {
        match at {
            At::First(n) | At::FirstAnd(n, _) => self.ranged(n),
            At::Now(n) | At::NowAnd(n, _) => self.inside(n),
        }
    }

    fn access(&mut self, access: &Access, writes: bool) {
        let Some(argument) = self.machine.buffers.get(&access.buffer) else {
            self.say(format!("there is no buffer {}", access.buffer.0));
            return;
        };
        let name = &argument.name;
        if argument.dtype != access.dtype {
            self.say(format!(
                "`{name}` holds {}, not {}",
                argument.dtype.name(),
                access.dtype.name()
            ));
        }
        match (argument.written, writes) {
            (true, false) => self.say(format!("`{name}` is written by this kernel, and read")),
            (false, true) => self.say(format!("`{name}` is not one that this kernel writes")),
            (true, true) | (false, false) => {}
        }
        if access.divisor < 1 || access.checks.iter().any(|(f, _)| f.divisor() < 1) {
            self.say(format!("an index of `{name}` is not divided by 1 or more"));
        }
        access.coefficients.keys().for_each(|a| self.axis(*a));
        let checked = access.checks.iter().flat_map(|(f, _)| f.function().terms());
        checked.for_each(|(_, a)| self.axis(*a));
    }

    fn source(&mut self, source: Source) -> Option<&'a Layout> {
        match source {
            Source::Constant(_) => None,
            Source::Coordinate(axis) => {
                self.axis(axis);
                None
            }
            Source::Fragment(id) => self.floats(id),
        }
    }

    /// A source is read as if it were spread like `to`.
    fn lies_in(&mut self, source: Source, to: &Layout) {
        let Source::Fragment(id) = source else {
            self.source(source);
            return;
        };
        let Some(from) = self.floats(id) else {
            return;
        };
        // Registers that hold copies are not told from each other.
        if from.distinct() != to.slice(&from.axes()).distinct() {
            self.say(format!(
                "f{} is spread differently: {from}, not as in {to}",
                id.0
            ));
        }
    }

    fn threads(&mut self, layout: &Layout) {
        let layout = layout.clone();
        for what in tables::spread(self.machine, &layout, self.machine.computing() / 32) {
            self.say(what);
        }
    }

    fn condition(&mut self, condition: Condition) {
        match condition {
            Condition::Exists(at) => self.iteration(at),
            Condition::NotFirst(n) => self.inside(n),
            Condition::NotEmpty(n) => self.ranged(n),
            Condition::Group(n) if n >= self.machine.groups() => {
                self.say(format!(
                    "there are {} groups of four warps, and no group {n}",
                    self.machine.groups()
                ));
            }
            Condition::Flag(id) => self.flag(id),
            Condition::FirstBlock if self.machine.cluster < 2 => {
                self.say("a block alone is no cluster's first");
            }
            Condition::Group(_) | Condition::Lane0 | Condition::FirstBlock => {}
        }
    }

    fn flag(&mut self, id: FragmentId) {
        match self.fragment(id) {
            Some(Holds::Floats(_) | Holds::Rows { .. }) => {
                self.say(format!("f{} is no flag", id.0));
            }
            Some(Holds::Flag) | None => {}
        }
    }

    fn sync(&mut self, sync: Sync) {
        let groups = self.machine.groups();
        match sync {
            Sync::Full(ring)
            | Sync::Empty(ring)
            | Sync::Release(ring)
            | Sync::ReleasePrevious(ring)
            | Sync::CopyArrive(ring)
            | Sync::Filled(ring) => self.open_ring(ring),
            Sync::ReleasePeers(ring) | Sync::ReleasePreviousPeers(ring) => {
                if self.machine.cluster < 2 {
                    self.say("a block alone has no peers");
                }
                self.open_ring(ring);
            }
            Sync::ClusterBegins | Sync::ClusterEnds if self.machine.cluster < 2 => {
                self.say("a block alone meets no others of a cluster");
            }
            Sync::Vote(id) => self.flag(id),
            Sync::TurnWait(_) | Sync::TurnPass(_) if !(2..8).contains(&groups) => {
                self.say(format!(
                    "{groups} groups of four warps take turns: two to seven can"
                ));
            }
            Sync::Barrier(Among::Computing) if self.fills.is_some() => {
                self.say("threads that only fill rings do not meet those that compute");
            }
            Sync::Barrier(Among::Computing | Among::Block)
            | Sync::ClusterBegins
            | Sync::ClusterEnds
            | Sync::Warp
            | Sync::CopyCommit
            | Sync::CopyWait(_)
            | Sync::ProxyFence
            | Sync::Commit
            | Sync::Wait(_)
            | Sync::Keep(_)
            | Sync::CopiesEnd
            | Sync::TurnWait(_)
            | Sync::TurnPass(_)
            | Sync::StartNext
            | Sync::WaitBefore => {}
        }
    }

    /// Fragments that are read are there, and what is written has a place.
    fn registers(&mut self, statement: &Statement) {
        let is = touched(statement);
        // The compiler alone sees these.
        let matters = !matches!(statement, Statement::Sync(Sync::Keep(_)));
        for id in is.reads {
            let floats = matches!(self.fragment(id), Some(Holds::Floats(_)));
            if floats && matters && !self.written.contains(&id) {
                self.say(format!(
                    "f{} is read, and nothing has been written there",
                    id.0
                ));
            }
        }
        for id in is.writes {
            self.fragment(id);
            self.written.insert(id);
        }
    }

    fn one(&mut self, statement: &'a Statement) {
        if let Statement::Declare(id) = statement {
            if self.declared.contains(id) {
                self.say(format!("f{} is declared already", id.0));
            }
            self.declared.push(*id);
            self.fragment(*id);
            self.written.remove(id);
            return;
        }
        self.registers(statement);
        match statement {
            Statement::Declare(_) => {}
            Statement::Map { .. }
            | Statement::Select { .. }
            | Statement::ExpScale { .. }
            | Statement::Mask { .. }
            | Statement::IsNotOne { .. }
            | Statement::Reduce(_)
            | Statement::Scan(_)
            | Statement::AcrossLanes(_)
            | Statement::PutParts(_)
            | Statement::TakeParts(_)
            | Statement::Spill { .. }
            | Statement::Unspill { .. }
            | Statement::Load { .. }
            | Statement::Store(_)
            | Statement::Copy(_)
            | Statement::CopyBoxes(_)
            | Statement::PrefetchBoxes(_)
            | Statement::Prefetch { .. }
            | Statement::Clear(_)
            | Statement::Publish { .. }
            | Statement::Fetch { .. }
            | Statement::Multiply(_)
            | Statement::Outer(_)
            | Statement::Split(_)
            | Statement::Issue(_)
            | Statement::Pack { .. }
            | Statement::StorePartial(_)
            | Statement::ReducePartials(_) => self.operands(statement),
            Statement::GridBarrier(_) | Statement::LastGoesOn => {
                let grid_barriers = self.machine.block_group.map(|t| t.grid_barriers);
                match (statement, grid_barriers) {
                    (_, None) => self.say("blocks meet that are no block group"),
                    (Statement::GridBarrier(n), Some(all)) if *n > all => {
                        self.say(format!(
                            "grid barrier {n} of a block group that meets {all} times"
                        ));
                    }
                    (_, Some(_)) => {}
                }
            }
            Statement::Range {
                number,
                axis,
                low,
                high,
            } => {
                self.axis(*axis);
                let bounds = low.iter().chain(high);
                bounds
                    .clone()
                    .flat_map(Bound::axes)
                    .for_each(|a| self.axis(a));
                for (_, entry) in bounds.flat_map(|b| &b.entries) {
                    match self.machine.buffers.get(&entry.buffer) {
                        Some(b) if b.written => {
                            self.say(format!(
                                "a bound reads `{}`, which the kernel writes",
                                b.name
                            ));
                        }
                        Some(_) => {}
                        None => self.say(format!("there is no buffer {}", entry.buffer.0)),
                    }
                }
                self.opened.ranges.insert(*number);
            }
            Statement::Tile { axis, at } => {
                self.axis(*axis);
                self.iteration(*at);
            }
            Statement::Loop { number, body } => {
                self.ranged(*number);
                if self.loops.contains(number) {
                    self.say(format!("loop {number} is inside itself"));
                }
                // What one iteration writes, the next one may read.
                let mut inside = BTreeSet::new();
                each(body, &mut |s| inside.extend(touched(s).writes));
                self.written.extend(inside);
                self.loops.push(*number);
                self.list("body", body);
                self.loops.pop();
            }
            Statement::Tiles(body) => {
                if !self.machine.grid.persistent || self.depth > 1 {
                    self.say("tiles are gone over by persistent blocks, once");
                }
                self.list("tiles", body);
            }
            Statement::If {
                condition,
                then,
                otherwise,
            } => {
                self.condition(*condition);
                self.list("then", then);
                self.list("otherwise", otherwise);
            }
            Statement::Scope(body) => self.list("scope", body),
            Statement::OpenStages(counter) => {
                self.opened.counters.insert(*counter);
            }
            Statement::NextStage {
                counter, stages, ..
            } => {
                self.counts(*counter, *stages);
                self.opened.next.insert(*counter);
            }
            Statement::PreviousStage { number, stages } => {
                self.counts(Counter::copied(*number, true), *stages);
                self.opened.previous.insert(*number);
            }
            Statement::AdvanceStage { counter, stages } => self.counts(*counter, *stages),
            Statement::OpenRing(ring, _) => {
                if let Some(found) = self.ring(*ring) {
                    self.opened.rings.insert(*ring);
                    self.opened.counters.insert(found.counter);
                }
            }
            Statement::AdvanceRing(ring) => self.open_ring(*ring),
            Statement::Sync(sync) => self.sync(*sync),
        }
    }
}

/// A statement without those inside.
fn head(statement: &Statement) -> String {
    if let Statement::Loop { number, .. } = statement {
        return format!("Loop({number})");
    }
    if let Statement::If { condition, .. } = statement {
        return format!("If({condition:?})");
    }
    match statement.lists().is_empty() {
        true => statement.to_string(),
        false if matches!(statement, Statement::Tiles(_)) => "Tiles".into(),
        false => "Scope".into(),
    }
}

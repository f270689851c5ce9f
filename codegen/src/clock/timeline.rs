//! What the clock sees of one multiprocessor, bar by bar: what each role does when, and when its units are busy.
//!
//! It is for people: nothing is ranked by it. Only a few iterations of each loop are gone through, as when the clock counts, and the rest of a
//! long loop looks alike. An ordinary run keeps none of it.

use super::parts::Part;
use crate::machine::{
    Condition, FragmentId, Function, Machine, RegionId, Rows, Source, Statement, Sync,
};

/// What a bar is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Matrix instructions, and multiply-adds of contractions.
    Products,
    /// Element-wise operations and reductions.
    Arithmetic,
    /// Device memory and L2 are read or written, or asked to be.
    Memory,
    /// Shared memory is written or read by itself.
    Shared,
    /// Barriers, stages and turns.
    Synchronisation,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Products => "products",
            Self::Arithmetic => "arithmetic",
            Self::Memory => "memory",
            Self::Shared => "shared memory",
            Self::Synchronisation => "synchronisation",
        }
    }
}

/// A stretch of time in which a role is at a statement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// The role, by its place in [`Timeline::roles`].
    pub role: usize,
    /// The block, of those that are side by side.
    pub block: usize,
    /// When it begins, in clocks.
    pub begin: f64,
    /// When it ends, in clocks.
    pub end: f64,
    /// The statement, by its place in [`Timeline::statements`].
    pub statement: usize,
    /// What is waited for; none where something is done.
    pub waits: Option<Part>,
}

/// A stretch of time in which a unit of the multiprocessor is busy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// The unit.
    pub unit: Part,
    /// When it begins, in clocks.
    pub begin: f64,
    /// When it ends, in clocks.
    pub end: f64,
}

/// What there is to see of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What it is about.
    pub kind: Kind,
    /// In a few words, with the names of the tile program's values.
    pub text: String,
}

/// One multiprocessor from the first clock of its first blocks on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The roles of a block: whether they compute, and their warps. The others fill stages.
    pub roles: Vec<(bool, u64)>,
    /// Blocks side by side.
    pub blocks: usize,
    /// What roles are at.
    pub statements: Vec<Seen>,
    /// What each role does.
    pub bars: Vec<Bar>,
    /// When each unit is busy.
    pub busy: Vec<Busy>,
    /// Clocks until the last block ends.
    pub clocks: f64,
    /// Whether iterations of a loop, or tiles of a persistent block, were left out.
    pub is_cut: bool,
}

/// What is written down while the clock runs.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) bars: Vec<Bar>,
    pub(super) busy: Vec<Busy>,
}

/// The statements of steps.
#[derive(Debug, Default)]
pub(super) struct Labels {
    statements: Vec<Seen>,
    /// Of each step so far.
    of: Vec<usize>,
    current: usize,
}

impl Labels {
    /// Steps up to here belong to the statement before; what follows to this one. Gives the one before.
    pub(super) fn enter(
        &mut self,
        steps: usize,
        statement: &Statement,
        machine: &Machine,
    ) -> usize {
        self.of.resize(steps, self.current);
        let seen = seen(statement, machine);
        let known = self.statements.iter().position(|s| *s == seen);
        let number = known.unwrap_or_else(|| {
            self.statements.push(seen);
            self.statements.len() - 1
        });
        std::mem::replace(&mut self.current, number)
    }

    /// Steps up to here belong to the current statement; then another one goes on.
    pub(super) fn leave(&mut self, steps: usize, before: usize) {
        self.of.resize(steps, self.current);
        self.current = before;
    }

    /// The statement of each step, with statements numbered behind those that there are already.
    pub(super) fn into_steps(self, all: &mut Vec<Seen>) -> Vec<usize> {
        let numbers: Vec<usize> = (self.statements.into_iter())
            .map(|seen| {
                let known = all.iter().position(|s| *s == seen);
                known.unwrap_or_else(|| {
                    all.push(seen);
                    all.len() - 1
                })
            })
            .collect();
        self.of.into_iter().map(|n| numbers[n]).collect()
    }
}

/// The name that a tile program has for what a fragment called `v12_exp` holds.
fn value(fragment: &str) -> &str {
    let numbered = fragment.strip_prefix('v').and_then(|f| f.split_once('_'));
    match numbered {
        Some((number, name)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) | None => fragment,
    }
}

fn seen(statement: &Statement, machine: &Machine) -> Seen {
    let fragment = |id: &FragmentId| value(&machine.fragment(*id).name);
    let region = |id: &RegionId| machine.region(*id).name.as_str();
    let source = |s: &Source| match s {
        Source::Fragment(id) => fragment(id).to_owned(),
        Source::Constant(c) => c.to_string(),
        Source::Coordinate(_) => "a coordinate".to_owned(),
    };
    let list = |ids: &[RegionId]| ids.iter().map(region).collect::<Vec<_>>().join(", ");
    let say = |kind, text: String| Seen { kind, text };
    match statement {
        Statement::Map { to, function, .. } => {
            let what = match function {
                Function::Copy => "copy of".to_owned(),
                Function::Op(op) => format!("{}:", op.row().name),
                Function::Bounded(bounded) => format!("{}:", bounded.op().row().name),
                Function::ExpOfSum => "exp of a sum:".to_owned(),
                Function::Tf32 => "larger half:".to_owned(),
                Function::Rest => "lesser half:".to_owned(),
            };
            say(Kind::Arithmetic, format!("{what} {}", fragment(to)))
        }
        Statement::Select { to, .. } => say(
            Kind::Arithmetic,
            format!("select by coordinates: {}", fragment(to)),
        ),
        Statement::ExpScale { scale, .. } => say(
            Kind::Arithmetic,
            format!("scale of exponents: {}", fragment(scale)),
        ),
        Statement::Mask { to, .. } => say(
            Kind::Arithmetic,
            format!("mask the end of a tile: {}", fragment(to)),
        ),
        Statement::IsNotOne { of, .. } => say(
            Kind::Arithmetic,
            format!("look for a factor: {}", source(of)),
        ),
        Statement::Reduce(r) => say(
            Kind::Arithmetic,
            format!("reduce in each thread: {}", fragment(&r.to)),
        ),
        Statement::Scan(scan) => say(Kind::Arithmetic, format!("scan: {}", fragment(&scan.to))),
        Statement::AcrossLanes(a) => say(
            Kind::Arithmetic,
            format!("reduce across lanes: {}", fragment(&a.fragment)),
        ),
        Statement::PutParts(a) => say(
            Kind::Shared,
            format!("write parts of warps: {}", fragment(&a.fragment)),
        ),
        Statement::TakeParts(a) => say(
            Kind::Shared,
            format!("combine parts of warps: {}", fragment(&a.fragment)),
        ),
        Statement::Spill { from, .. } => say(
            Kind::Shared,
            format!("write to scratch: {}", fragment(from)),
        ),
        Statement::Unspill { to, .. } => {
            say(Kind::Shared, format!("read from scratch: {}", fragment(to)))
        }
        Statement::Load { to, .. } => say(Kind::Memory, format!("load {}", fragment(to))),
        Statement::Store(store) => {
            let name = machine
                .buffers
                .get(&store.access.buffer)
                .map(|b| b.name.as_str());
            say(
                Kind::Memory,
                format!("store to {}", name.unwrap_or("a buffer")),
            )
        }
        Statement::Copy(copy) => say(Kind::Memory, format!("copy {}", region(&copy.region))),
        Statement::CopyBoxes(ring) => say(
            Kind::Memory,
            format!("copy boxes of {} (TMA)", list(&machine.ring(*ring).regions)),
        ),
        Statement::PrefetchBoxes(regions) => {
            say(Kind::Memory, format!("prefetch boxes of {}", list(regions)))
        }
        Statement::Prefetch { .. } => say(Kind::Memory, "prefetch".to_owned()),
        Statement::Clear(id) => say(Kind::Shared, format!("zero {}", region(id))),
        Statement::Publish { region: id, .. } => say(
            Kind::Shared,
            format!("write {} to shared memory", region(id)),
        ),
        Statement::Fetch { to, .. } => say(
            Kind::Shared,
            format!("read {} from shared memory", fragment(to)),
        ),
        Statement::Multiply(m) => say(Kind::Products, format!("{}: {}", m.row, fragment(&m.into))),
        Statement::Outer(outer) => say(
            Kind::Products,
            format!("multiply-adds: {}", fragment(&outer.into)),
        ),
        Statement::Split(split) => say(
            Kind::Shared,
            format!("split {} into halves", region(&split.from)),
        ),
        Statement::Issue(issue) => {
            let a = match &issue.a {
                Rows::Fragment(id) => format!(" with {}", fragment(id)),
                Rows::SwizzleAtoms(_) => String::new(),
            };
            let (name, into) = (issue.row, fragment(&issue.into));
            say(Kind::Products, format!("issue {name}: {into}{a}"))
        }
        Statement::Pack { to, .. } => say(Kind::Arithmetic, format!("round {}", fragment(to))),
        Statement::StorePartial(p) => say(
            Kind::Memory,
            format!("store the block's part of {}", fragment(&p.fragment)),
        ),
        Statement::ReducePartials(p) => say(
            Kind::Memory,
            format!("combine the blocks' parts of {}", fragment(&p.fragment)),
        ),
        Statement::GridBarrier(_) => say(
            Kind::Synchronisation,
            "wait for the blocks of the group".to_owned(),
        ),
        Statement::LastGoesOn => say(
            Kind::Synchronisation,
            "the last block of the group goes on".to_owned(),
        ),
        Statement::Loop { number, .. } => say(Kind::Arithmetic, format!("loop {number}")),
        Statement::Tiles(_) => say(Kind::Arithmetic, "next tile".to_owned()),
        Statement::If { condition, .. } => say(Kind::Arithmetic, taken(condition).to_owned()),
        Statement::Sync(sync) => say(Kind::Synchronisation, waits(*sync, machine)),
        Statement::Declare(_)
        | Statement::Range { .. }
        | Statement::Tile { .. }
        | Statement::Scope(_)
        | Statement::OpenStages(_)
        | Statement::NextStage { .. }
        | Statement::PreviousStage { .. }
        | Statement::AdvanceStage { .. }
        | Statement::OpenRing(..)
        | Statement::AdvanceRing(_) => {
            say(Kind::Arithmetic, "places of tiles and stages".to_owned())
        }
    }
}

fn taken(condition: &Condition) -> &'static str {
    match condition {
        Condition::Exists(_) => "if the iteration exists",
        Condition::NotFirst(_) => "if it is not the first iteration",
        Condition::NotEmpty(_) => "if the loop has iterations",
        Condition::Group(_) => "if it is this group of warps",
        Condition::Flag(_) => "if the flag is set",
        Condition::Lane0 => "one thread of each warp",
        Condition::FirstBlock => "if it is the first block of the cluster",
    }
}

fn waits(sync: Sync, machine: &Machine) -> String {
    let ring = |id| {
        let regions = machine.ring(id).regions.iter();
        let names: Vec<&str> = regions.map(|r| machine.region(*r).name.as_str()).collect();
        names.join(", ")
    };
    match sync {
        Sync::Barrier(_) => "barrier of the block's threads".to_owned(),
        Sync::ClusterBegins | Sync::ClusterEnds => "barrier of the cluster".to_owned(),
        Sync::Warp => "barrier of the warp".to_owned(),
        Sync::CopyCommit => "end of a group of copies".to_owned(),
        Sync::CopyWait(n) => format!("wait for copies, {n} groups may stay under way"),
        Sync::ProxyFence => "fence of the asynchronous proxy".to_owned(),
        Sync::Commit => "end of a group of matrix instructions".to_owned(),
        Sync::Wait(n) => format!("wait for matrix instructions, {n} groups may stay under way"),
        Sync::Keep(id) => format!("keep {}", value(&machine.fragment(id).name)),
        Sync::Full(id) => format!("wait for a full stage of {}", ring(id)),
        Sync::Empty(id) => format!("wait for an empty stage of {}", ring(id)),
        Sync::Release(id) | Sync::ReleasePrevious(id) => {
            format!("give back a stage of {}", ring(id))
        }
        Sync::ReleasePeers(id) | Sync::ReleasePreviousPeers(id) => {
            format!("give back a stage of {} to the cluster", ring(id))
        }
        Sync::CopyArrive(id) | Sync::Filled(id) => format!("a stage of {} is full", ring(id)),
        Sync::CopiesEnd => "wait for the last copies".to_owned(),
        Sync::TurnWait(_) => "wait for the turn".to_owned(),
        Sync::TurnPass(_) => "pass the turn".to_owned(),
        Sync::Vote(_) => "vote of four warps".to_owned(),
        Sync::StartNext => "the next kernel may begin".to_owned(),
        Sync::WaitBefore => "wait for the kernel in front".to_owned(),
    }
}

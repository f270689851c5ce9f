//! Transformations of machine programs: each makes one of another, or says why it cannot.
//!
//! Those that schedules name stand in a table: their files say how they are written, what comes before them, and what they do. The others follow from
//! the machine program itself (`apply.rs`). To add one: its file in this folder, its line in the table, and where the search proposes it.

pub(crate) mod barriers;
pub(crate) mod copies;
pub mod delayed;
pub(crate) mod dependent_launch;
pub mod distributed;
pub(crate) mod fences;
pub mod instruction;
pub(crate) mod instructions;
pub(crate) mod memory;
pub mod multicast;
pub mod persistent;
pub mod pipeline;
pub(crate) mod prefetch;
pub mod raster;
pub(crate) mod read_ahead;
pub mod registers;
pub(crate) mod rings;
pub mod roles;
pub mod splitter;
#[cfg(test)]
mod tests;
mod trace;
pub mod turns;
pub mod warps;

use self::trace::Place;
use crate::atoms;
use crate::machine::{At, Condition, Copy, LoopId, Machine, RegionId, Stage, Statement, Sync};
use ir::{AxisId, Form, KernelSchedule, Language, Reject, Step, Target};
use std::collections::BTreeMap;

/// What schedules may say, in the order in which texts of faults list it.
#[rustfmt::skip]
static PASSES: [&Pass; 12] = [
    &instruction::PASS,
    &warps::PASS,
    &registers::PASS,
    &delayed::PASS,
    &roles::PASS,
    &splitter::PASS,
    &pipeline::PASS,
    &turns::PASS,
    &distributed::PASS,
    &raster::PASS,
    &persistent::PASS,
    &multicast::PASS,
];

/// A transformation that schedules name.
pub(crate) struct Pass {
    /// How it is written.
    pub(crate) form: Form,
    /// What comes before it in a schedule.
    pub(crate) behind: &'static [Behind],
    /// What it does.
    pub(crate) apply: Apply,
}

/// What comes before a transformation.
#[derive(Clone, Copy)]
pub(crate) struct Behind {
    /// The first word of its line.
    word: &'static str,
    /// Whether it has to be there.
    needed: bool,
    /// Why.
    why: &'static str,
}

/// What a transformation does. Those of a kind come before those of the next.
pub(crate) enum Apply {
    /// The plainest machine program is made so.
    Plan,
    /// It changes what the statements of a machine program are.
    Statements(Function),
    /// It changes a machine program in whose statements the synchronisation stands already.
    Synchronised(Function),
}

/// The step stands in the schedule.
type Function = fn(Machine, &Step, &KernelSchedule, &Target) -> Result<Machine, Reject>;

impl Behind {
    const fn after(word: &'static str, why: &'static str) -> Self {
        let needed = false;
        Self { word, needed, why }
    }

    const fn needs(word: &'static str, why: &'static str) -> Self {
        let needed = true;
        Self { word, needed, why }
    }
}

impl Apply {
    /// Its place among the kinds, and why it comes before the next.
    fn place(&self) -> (u8, &'static str) {
        match self {
            Self::Plan => (0, "what the plainest program is made with comes first"),
            Self::Statements(_) => (1, "its synchronisation is derived before that"),
            Self::Synchronised(_) => (2, ""),
        }
    }
}

/// What texts of schedules may say.
pub fn language() -> Language {
    Language {
        forms: PASSES.iter().map(|p| &p.form).collect(),
        atoms: atoms::names().to_vec(),
        misplaced,
    }
}

/// What a step does, in some words; and how its line is written where each contraction needs one.
pub fn explained(step: &Step) -> (&'static str, Option<String>) {
    let form = step.form();
    (form.help, form.required.then(|| form.pattern()))
}

/// The transformation of a word.
fn pass(word: &str) -> Option<&'static Pass> {
    PASSES.into_iter().find(|p| p.form.word == word)
}

/// The first step that stands in a wrong place, and what would be right.
fn misplaced(steps: &[Step]) -> Option<(usize, String)> {
    let first = |word: &str| steps.iter().position(|s| s.form().word == word);
    let last = |word: &str| steps.iter().rposition(|s| s.form().word == word);
    let wrong = PASSES.into_iter().filter_map(|own| {
        let at = first(own.form.word)?;
        let (kind, _) = own.apply.place();
        let kinds = PASSES.into_iter().map(|p| (p.form.word, p.apply.place()));
        let earlier = kinds.filter(|(_, (of, _))| *of < kind);
        let earlier = earlier.map(|(word, (_, why))| Behind::after(word, why));
        let mut behind = own.behind.iter().copied().chain(earlier);
        let b = behind.find(|b| last(b.word).map_or(b.needed, |last| last > at))?;
        let (front, own) = (pass(b.word)?.form.pattern(), own.form.word);
        let message = format!("expected `{front}` in front of `{own}`: {}", b.why);
        Some((at, message))
    });
    wrong.min_by_key(|(at, _)| *at)
}

/// Every step of a schedule, with the transformation that it names.
///
/// # Errors
/// Steps in an order in which they do not apply, and why.
pub(crate) fn named(schedule: &KernelSchedule) -> Result<Vec<(&Step, &'static Pass)>, Reject> {
    if let Some((_, why)) = misplaced(schedule.steps()) {
        return Err(Reject::Schedule(why));
    }
    let steps = schedule.steps().iter();
    let all: Option<Vec<_>> = steps
        .map(|step| Some((step, pass(step.form().word)?)))
        .collect();
    all.ok_or_else(|| Reject::Schedule("a step that no transformation is".into()))
}

/// Statements that are to come in front of others, behind others, and at the end of lists in others.
#[derive(Default)]
struct Insertions {
    before: BTreeMap<Place, Vec<Statement>>,
    behind: BTreeMap<Place, Vec<Statement>>,
    at_end: BTreeMap<(Place, usize), Vec<Statement>>,
}

impl Insertions {
    fn before(&mut self, place: Place, statements: impl IntoIterator<Item = Statement>) {
        self.before.entry(place).or_default().extend(statements);
    }

    fn behind(&mut self, place: Place, statements: impl IntoIterator<Item = Statement>) {
        self.behind.entry(place).or_default().extend(statements);
    }

    /// At the end of a list, by its number in its statement.
    fn at_end(&mut self, list: (Place, usize), statements: impl IntoIterator<Item = Statement>) {
        self.at_end.entry(list).or_default().extend(statements);
    }
}

/// Puts statements between those of a body.
fn insert(body: &mut Vec<Statement>, mut insertions: Insertions) {
    fn list(body: &mut Vec<Statement>, place: &mut Place, insertions: &mut Insertions) {
        for mut statement in std::mem::take(body) {
            let own = *place;
            *place += 1;
            body.extend(insertions.before.remove(&own).unwrap_or_default());
            for (number, inside) in statement.lists_mut().into_iter().enumerate() {
                list(inside, place, insertions);
                inside.extend(insertions.at_end.remove(&(own, number)).unwrap_or_default());
            }
            body.push(statement);
            body.extend(insertions.behind.remove(&own).unwrap_or_default());
        }
    }
    list(body, &mut 0, &mut insertions);
}

/// Takes the copies out that an iteration begins with, and says along which axis their tiles lie.
fn take_copies(body: &mut Vec<Statement>) -> Option<(AxisId, Vec<Copy>)> {
    let Some(Statement::Tile {
        axis,
        at: At::Now(_),
    }) = body.first()
    else {
        return None;
    };
    let axis = *axis;
    let is_copy = |s: &&Statement| matches!(s, Statement::Copy(_));
    let count = body[1..].iter().take_while(is_copy).count();
    let commits = matches!(body.get(1 + count), Some(Statement::Sync(Sync::CopyCommit)));
    if count == 0 || !commits {
        return None;
    }
    let taken = body.drain(1..count + 2).filter_map(|s| {
        if let Statement::Copy(copy) = s {
            Some(*copy)
        } else {
            None
        }
    });
    Some((axis, taken.collect()))
}

/// Whether an iteration of a loop issues what the one before left to do.
fn issues_delayed(body: &[Statement], number: LoopId) -> bool {
    body.iter().any(|s| {
        let here = if let Statement::If {
            condition: Condition::NotFirst(n),
            then,
            ..
        } = s
        {
            *n == number && then.iter().any(|s| matches!(s, Statement::Issue(_)))
        } else {
            false
        };
        here || s
            .lists()
            .iter()
            .any(|inside| issues_delayed(inside, number))
    })
}

/// What statements read of regions, and in which stage.
fn reads_of(body: &mut [Statement]) -> Vec<(RegionId, &mut Stage)> {
    let mut all = Vec::new();
    for statement in body {
        match statement.is_list() {
            true => {
                for inside in statement.lists_mut() {
                    all.extend(reads_of(inside));
                }
            }
            false => all.extend(statement.stages_read_mut()),
        }
    }
    all
}

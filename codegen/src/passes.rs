//! Transformations of machine programs: each makes one of another, or says why it cannot.

pub(crate) mod barriers;
pub(crate) mod copies;
pub(crate) mod dependent_launch;
pub(crate) mod fences;
pub(crate) mod instructions;
pub(crate) mod memory;
pub(crate) mod multicast;
pub(crate) mod persistent;
pub(crate) mod pipeline;
pub(crate) mod raster;
pub(crate) mod read_ahead;
pub(crate) mod rings;
pub(crate) mod roles;
pub(crate) mod shift;
#[cfg(test)]
mod tests;
mod trace;
pub(crate) mod turns;

use self::trace::Place;
use crate::machine::{At, Condition, Copy, LoopId, RegionId, Stage, Statement, Sync};
use ir::AxisId;
use std::collections::BTreeMap;

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

//! Transformations of machine programs: each makes one of another, or says why it cannot.

pub(crate) mod barriers;
pub(crate) mod copies;
pub(crate) mod dependent_launch;
pub(crate) mod fences;
pub(crate) mod memory;
pub(crate) mod multicast;
pub(crate) mod persistent;
pub(crate) mod pipeline;
pub(crate) mod raster;
pub(crate) mod read_ahead;
pub(crate) mod rings;
pub(crate) mod roles;
#[cfg(test)]
mod tests;
mod trace;
pub(crate) mod turns;

use self::trace::Place;
use crate::machine::counts::Groups;
use crate::machine::{At, Condition, Copy, LoopId, RegionId, Rows, Stage, Statement, Sync};
use ir::AxisId;
use std::collections::{BTreeMap, BTreeSet};

/// Statements that are to come in front of others, and behind others.
#[derive(Default)]
struct Insertions {
    before: BTreeMap<Place, Vec<Statement>>,
    behind: BTreeMap<Place, Vec<Statement>>,
}

impl Insertions {
    fn before(&mut self, place: Place, statements: impl IntoIterator<Item = Statement>) {
        self.before.entry(place).or_default().extend(statements);
    }

    fn behind(&mut self, place: Place, statements: impl IntoIterator<Item = Statement>) {
        self.behind.entry(place).or_default().extend(statements);
    }
}

/// Puts statements between those of a body.
fn insert(body: &mut Vec<Statement>, mut insertions: Insertions) {
    fn list(body: &mut Vec<Statement>, place: &mut Place, insertions: &mut Insertions) {
        for mut statement in std::mem::take(body) {
            let own = *place;
            *place += 1;
            body.extend(insertions.before.remove(&own).unwrap_or_default());
            for inside in statement.lists_mut() {
                list(inside, place, insertions);
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

/// The regions that are still read when an iteration has ended: by instructions that are under way, or issued in the next one.
fn delayed_regions(body: &[Statement]) -> BTreeSet<RegionId> {
    fn list(body: &[Statement], groups: &mut Groups<RegionId>, delayed: &mut BTreeSet<RegionId>) {
        for statement in body {
            if let Statement::Issue(issue) = statement {
                let a = match &issue.a {
                    Rows::SwizzleAtoms(a) => Some(a),
                    Rows::Fragment(_) => None,
                };
                for swizzle_atoms in a.into_iter().chain([&issue.b]) {
                    match swizzle_atoms.stage {
                        Stage::Previous(_) => drop(delayed.insert(swizzle_atoms.region)),
                        Stage::At(_) | Stage::Current(_) | Stage::Next(_) => {
                            groups.begin(swizzle_atoms.region);
                        }
                    }
                }
            } else if let Statement::Sync(Sync::Commit) = statement {
                groups.close();
            } else if let Statement::Sync(Sync::Wait(stay)) = statement {
                groups.landed(*stay);
            } else if let Statement::If { then, .. } = statement {
                list(then, groups, delayed);
            } else {
                for inside in statement.lists() {
                    list(inside, groups, delayed);
                }
            }
        }
    }
    let (mut groups, mut all) = (Groups::default(), BTreeSet::new());
    list(body, &mut groups, &mut all);
    all.extend(groups.all().copied());
    all
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

//! Transformations of machine programs.

pub(crate) mod barriers;
pub(crate) mod multicast;
pub(crate) mod rings;
mod trace;

use self::trace::Place;
use crate::machine::Statement;
use std::collections::BTreeMap;

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

//! What is known of fragments before their lives are: which of them nothing needs, which stay packed, and which are no more than a step on
//! the way to another one.

use super::{Effect, each, effect, is_map};
use crate::machine::{Fragment, FragmentId, Holds, Machine, Statement};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of the fragments of a body.
pub(super) struct Values {
    /// Registers of each.
    sizes: Vec<u64>,
    /// What nothing reads that is not dead itself.
    dead: BTreeSet<FragmentId>,
    /// What is made element by element from these, once, and read element by element, once, in the same list of statements.
    fused: BTreeMap<FragmentId, Vec<FragmentId>>,
}

/// Where a fragment is written and read.
#[derive(Default)]
struct Uses {
    /// The list, and what it is made from where that goes element by element.
    writes: Vec<(usize, Option<Vec<FragmentId>>)>,
    /// The list, and whether that goes element by element.
    reads: Vec<(usize, bool)>,
    /// Whether some of it was read from memory two elements a register.
    packed: bool,
    /// The stretch of statements in which all reads so far are, if they go element by element: each element is widened for all of them as it
    /// is needed.
    stretch: Option<(usize, usize)>,
}

impl Values {
    pub(super) fn new(machine: &Machine, body: &[Statement]) -> Self {
        let dead = dead(machine, body);
        let mut uses: BTreeMap<FragmentId, Uses> = BTreeMap::new();
        count(machine, body, &dead, &mut 0, &mut uses);
        let size = |(number, fragment): (u32, &Fragment)| match fragment.holds {
            // A predicate.
            Holds::Flag => 0,
            Holds::Rows { .. } => fragment.registers(),
            Holds::Floats(_) => match uses.get(&FragmentId(number)) {
                // What is read in several places is widened once.
                Some(u)
                    if u.packed
                        && u.writes.len() == 1
                        && (u.reads.len() == 1 || u.stretch.is_some()) =>
                {
                    fragment.registers().div_ceil(2)
                }
                Some(_) | None => fragment.registers(),
            },
        };
        let sizes = (0..).zip(&machine.fragments).map(size).collect();
        let step = |(id, uses): (FragmentId, Uses)| match (
            uses.writes.as_slice(),
            uses.reads.as_slice(),
        ) {
            ([(there, Some(from))], [(here, true)]) if there == here => Some((id, from.clone())),
            _ => None,
        };
        Self {
            sizes,
            dead,
            fused: uses.into_iter().filter_map(step).collect(),
        }
    }

    /// Registers of a fragment.
    pub(super) fn size(&self, id: FragmentId) -> u64 {
        self.sizes[id.0 as usize]
    }

    /// What a fragment is made from, where it is no more than a step on the way to another one.
    pub(super) fn fused(&self, id: FragmentId) -> Option<&[FragmentId]> {
        self.fused.get(&id).map(Vec::as_slice)
    }

    /// Whether a statement makes nothing that is needed.
    pub(super) fn is_dead(&self, effect: &Effect) -> bool {
        is_dead(effect, &self.dead)
    }
}

fn is_dead(effect: &Effect, dead: &BTreeSet<FragmentId>) -> bool {
    !effect.writes.is_empty() && effect.writes.iter().all(|w| dead.contains(w))
}

fn dead(machine: &Machine, body: &[Statement]) -> BTreeSet<FragmentId> {
    let mut dead = BTreeSet::new();
    loop {
        let mut read: BTreeSet<FragmentId> = BTreeSet::new();
        each(body, &mut |s| {
            let effect = effect(machine, s);
            if !is_dead(&effect, &dead) {
                read.extend(effect.reads.iter().filter(|r| !effect.writes.contains(r)));
            }
        });
        let all = (0..machine.fragments.len() as u32).map(FragmentId);
        let found: BTreeSet<FragmentId> = all.filter(|f| !read.contains(f)).collect();
        if found == dead {
            return dead;
        }
        dead = found;
    }
}

/// Whether elements cannot go through all statements around this one, one after another.
fn ends_stretch(statement: &Statement) -> bool {
    !statement.lists().is_empty()
        || matches!(
            statement,
            Statement::AcrossLanes(_)
                | Statement::Scan(_)
                | Statement::Sync(_)
                | Statement::Store(_)
                | Statement::Multiply(_)
                | Statement::Outer(_)
                | Statement::Issue(_)
        )
}

/// Counts the uses of fragments; each list of statements has a number.
fn count(
    machine: &Machine,
    body: &[Statement],
    dead: &BTreeSet<FragmentId>,
    lists: &mut usize,
    uses: &mut BTreeMap<FragmentId, Uses>,
) {
    *lists += 1;
    let own = *lists;
    let mut stretch = 0;
    for s in body {
        let effect = effect(machine, s);
        stretch += usize::from(ends_stretch(s));
        if matches!(s, Statement::Declare(_)) || is_dead(&effect, dead) {
            continue;
        }
        let reads: BTreeSet<FragmentId> = effect.reads.iter().copied().collect();
        for id in &reads {
            let element_wise = effect.element_wise;
            let uses = uses.entry(*id).or_default();
            let here = element_wise.then_some((own, stretch));
            let goes_on = uses.reads.is_empty() || uses.stretch == here;
            uses.stretch = here.filter(|_| goes_on);
            uses.reads.push((own, element_wise));
        }
        let maps = is_map(s);
        for id in &effect.writes {
            let from = (maps && !reads.contains(id)).then(|| effect.reads.clone());
            uses.entry(*id).or_default().writes.push((own, from));
        }
        if let Statement::Load {
            to, access, width, ..
        } = s
        {
            uses.entry(*to).or_default().packed = access.dtype.bytes() == 2 && *width > 1;
        }
        for list in s.lists() {
            count(machine, list, dead, lists, uses);
        }
    }
}

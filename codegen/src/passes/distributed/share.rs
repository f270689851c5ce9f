//! Shares out what a cluster does behind its last meeting: each block reduces and stores a part of the tile, instead of the first block all of it.
//!
//! A register index is counted by digits, as lanes and warps are. The last of these, as many as there are blocks, become digits of a block's rank: each
//! block has fewer registers, and the coordinates that it has follow from its rank as they followed from its registers.

use crate::layout::{Factor, Layout};
use crate::machine::{Fragment, FragmentId, Holds, Machine, Partial, Statement};
use std::collections::{BTreeMap, BTreeSet};

/// The statements with their layouts shared out among so many blocks; none where they cannot be.
pub(super) fn share(
    machine: &mut Machine,
    statements: &[Statement],
    size: u64,
) -> Option<Vec<Statement>> {
    let mut partials = Vec::new();
    reduced(statements, &mut partials);
    let widest = partials.iter().max_by_key(|p| p.layout.register_count())?;
    let mut sharing = Sharing {
        digits: widest.layout.split_registers(size)?.blocks,
        declared: BTreeSet::new(),
        fragments: BTreeMap::new(),
    };
    let mut made = machine.fragments.clone();
    let mut first = Vec::new();
    for partial in &partials {
        let shared = sharing.layout(&partial.layout)?;
        // A thread finds the part of a register by the numbers of its own and its block's.
        let by_number = [
            partial.layout.split_registers(size),
            Some(partial.layout.clone()),
        ];
        if partial.strides.is_none() && !by_number.contains(&Some(shared)) {
            return None;
        }
        let id = FragmentId(made.len() as u32);
        made.push(Fragment {
            name: format!("{}_shared", machine.fragment(partial.fragment).name),
            holds: Holds::Floats(sharing.layout(&machine.fragment(partial.fragment).layout())?),
        });
        sharing.fragments.insert(partial.fragment, id);
        first.push(Statement::Declare(id));
    }
    declared(statements, &mut sharing.declared);
    for id in &sharing.declared {
        match &mut made[id.0 as usize].holds {
            Holds::Floats(layout) => *layout = sharing.layout(layout)?,
            Holds::Rows { .. } | Holds::Flag => return None,
        }
    }
    let mut rest = statements.to_vec();
    sharing.list(machine, &mut rest)?;
    machine.fragments = made;
    first.extend(rest);
    Some(first)
}

/// How a tile is shared out.
struct Sharing {
    /// Digits of a block's rank.
    digits: Vec<Factor>,
    /// What is declared behind the meeting.
    declared: BTreeSet<FragmentId>,
    /// What holds a block's share of a partial result.
    fragments: BTreeMap<FragmentId, FragmentId>,
}

impl Sharing {
    /// A layout in which the digits are a block's and no registers': itself where it has none of them, and with copies in the stead of those that it
    /// has not; none where it has one elsewhere, or in part.
    fn layout(&self, whole: &Layout) -> Option<Layout> {
        let apart = |f: &Factor, d: &Factor| {
            f.axis != d.axis || f.stride >= d.stride * d.size || f.stride * f.size <= d.stride
        };
        let mut shared = whole.clone();
        let mut blocks = Vec::new();
        for d in &self.digits {
            let mut elsewhere = shared.lanes.iter().chain(&shared.warps);
            if !elsewhere.all(|f| apart(f, d)) {
                return None;
            }
            let Some(at) = shared.registers.iter().position(|f| !apart(f, d)) else {
                blocks.push(Factor {
                    axis: None,
                    size: d.size,
                    stride: 0,
                });
                continue;
            };
            let f = shared.registers[at];
            let below = d.stride / f.stride;
            if !d.stride.is_multiple_of(f.stride) || !f.size.is_multiple_of(below * d.size) {
                return None;
            }
            let left = [
                Factor { size: below, ..f },
                Factor {
                    size: f.size / (below * d.size),
                    stride: d.stride * d.size,
                    ..f
                },
            ];
            let left = left.into_iter().filter(|f| f.size > 1);
            shared.registers.splice(at..=at, left);
            blocks.push(*d);
        }
        Some(shared.over(blocks))
    }

    /// What a statement says of layouts; none where it does what cannot be shared out.
    fn own(&self, machine: &Machine, statement: &mut Statement) -> Option<()> {
        if let Statement::Load { to, width, .. } = statement {
            let Holds::Floats(whole) = &machine.fragment(*to).holds else {
                return None;
            };
            *width = at_once(&self.layout(whole)?, *width);
        } else if let Statement::ReducePartials(partial) = statement {
            partial.layout = self.layout(&partial.layout)?;
        } else if let Statement::Reduce(reduce) = statement {
            let over = |d: &Factor| d.axis.is_some_and(|a| reduce.axes.contains(a));
            if self.digits.iter().any(over) || reduce.parts.is_some() {
                return None;
            }
            reduce.from = self.layout(&reduce.from)?;
        } else if let Statement::Store(store) = statement {
            store.held = self.layout(&store.held)?;
            // What all of them have alike one stores.
            store.alone = store.held.blocks.is_empty();
            if let Some(whole) = store.gathered.take_if(|_| !store.alone) {
                // Fewer registers may have less to exchange.
                let first = store.held.registers.first().copied();
                let less = first.and_then(|f| {
                    let runs = [whole.lanes, whole.lanes / 2].map(|n| n * whole.piece);
                    let held = &store.held;
                    runs.into_iter().find_map(|run| held.gathered(f.axis?, run))
                });
                let piece = at_once(&store.held, whole.piece);
                store.width = less.as_ref().map_or(piece, |g| g.lanes * g.piece);
                store.gathered = less;
            } else if store.gathered.is_none() {
                store.width = at_once(&store.held, store.width);
            }
        } else if !matches!(
            statement,
            Statement::Declare(_)
                | Statement::Sync(_)
                | Statement::Map { .. }
                | Statement::Select { .. }
                | Statement::ExpScale { .. }
                | Statement::Mask { .. }
        ) {
            return None;
        }
        Some(())
    }

    /// Rewrites statements; none where one of them does what cannot be shared out.
    fn list(&self, machine: &Machine, body: &mut Vec<Statement>) -> Option<()> {
        for statement in body {
            if let Statement::Scope(inside) = statement {
                self.list(machine, inside)?;
                continue;
            }
            self.own(machine, statement)?;
            for id in statement.fragments_mut() {
                if let Some(own) = self.fragments.get(id) {
                    *id = *own;
                } else if !self.declared.contains(id) {
                    // What was there before is whole in each block.
                    let whole = match &machine.fragment(*id).holds {
                        Holds::Floats(layout) => self.layout(layout)? == *layout,
                        Holds::Rows { .. } | Holds::Flag => false,
                    };
                    if !whole {
                        return None;
                    }
                }
            }
        }
        Some(())
    }
}

/// Elements that a thread moves at once, where these were so many: as many are neighbours in its registers.
fn at_once(layout: &Layout, width: u64) -> u64 {
    match layout.registers.first() {
        Some(f) if f.stride == 1 && width > 1 => (f.size & f.size.wrapping_neg()).min(width),
        Some(_) | None => 1,
    }
}

/// What statements reduce of what all blocks have.
fn reduced<'s>(body: &'s [Statement], all: &mut Vec<&'s Partial>) {
    for statement in body {
        if let Statement::ReducePartials(partial) = statement {
            all.push(partial);
        }
        for list in statement.lists() {
            reduced(list, all);
        }
    }
}

fn declared(body: &[Statement], all: &mut BTreeSet<FragmentId>) {
    for statement in body {
        if let Statement::Declare(id) = statement {
            all.insert(*id);
        }
        for list in statement.lists() {
            declared(list, all);
        }
    }
}

//! From a program to its kernels, step by step: which rewrites, which corrections, which transformations of the schedule, and what each of these is
//! worth when it is left out, with those alone that rest on it: by the clock, and on a GPU ([`measured`]).
//!
//! Nothing is searched: the rewrites are those of the artifact's derivation, the rest follows from its tile program and
//! schedule. Transformations are left out one at a time, so what two of them are worth together is not known here.

pub mod measured;

use codegen::clock::{Part, Parts};
use device::timing::Measurement;
use ir::{Carry, Kernel, MapOp, Schedule, Statement, Target, TileOp, TileProgram, ValueId};
use search::cost::{KernelCost, cost};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Parts of the clock's time that are said to differ, at most, and the least share of a kernel's time by which they do.
const PARTS: usize = 2;
const LEAST: f64 = 0.005;

/// A running value of a loop that is made right in each iteration, since others that it rests on have moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Correction {
    /// The kernel, by its number.
    pub kernel: usize,
    /// The axis of the loop.
    pub axis: String,
    /// What is corrected, as the tile program calls it.
    pub running: Vec<String>,
    /// Whether it is multiplied or moved.
    pub how: &'static str,
    /// With what.
    pub by: String,
    /// The running values of the loop that this follows.
    pub follows: Vec<String>,
}

/// A line of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transformation {
    /// The kernel, by its number.
    pub kernel: usize,
    /// The line.
    pub line: String,
    /// What it does, in some words.
    pub does: &'static str,
    /// Lines that rest on it: they are left out with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub followers: Vec<String>,
    /// What becomes of the kernel without it.
    pub without: Without,
    /// The schedule without it, where that gives other kernels.
    #[serde(skip)]
    pub rest: Option<Schedule>,
    /// What becomes of all kernels without it on a GPU, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// What becomes of an artifact's kernels on a GPU without a line of its schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// They take another time.
    Takes(Box<Times>),
    /// They do not compile, spill, give something else, or cannot be timed.
    Refused(String),
}

/// Times of one run: of the kernels without a line, and of the artifact's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// How many times as long they take, inputs in L2 where they fit.
    pub warm: Ratio,
    /// The same with inputs in memory.
    pub cold: Ratio,
    /// The artifact's own.
    pub own: Measurement,
    /// Those without the line.
    pub without: Measurement,
}

/// How many times as long as another something takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// By both medians.
    pub median: f64,
    /// By the tenth percentile of the one and the ninetieth of the other.
    pub least: f64,
    /// By the ninetieth of the one and the tenth of the other.
    pub most: f64,
}

impl Ratio {
    /// Whether both may take the same time, as far as their samples tell.
    pub fn may_be_one(&self) -> bool {
        self.least <= 1.0 && self.most >= 1.0
    }
}

/// What becomes of a kernel without a line of its schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Without {
    /// It takes another time, by the clock.
    Takes {
        /// Microseconds.
        us: f64,
        /// By how many microseconds that is more.
        more_us: f64,
        /// The parts of the clock's time that differ most.
        parts: BTreeMap<&'static str, f64>,
    },
    /// It is another machine program, of which the clock has no time.
    Unclocked,
    /// It is the same machine program.
    Nothing,
    /// There is no kernel: the line has to be there.
    Required(String),
    /// It cannot be lowered.
    Refused(String),
}

/// The corrections of a tile program, in the order of kernels and loops.
pub fn corrections(tile: &TileProgram) -> Vec<Correction> {
    let mut found = Vec::new();
    for (number, kernel) in tile.kernels.iter().enumerate() {
        in_loops(tile, (number, kernel), &kernel.body, &mut found);
    }
    found
}

fn in_loops(
    tile: &TileProgram,
    (number, kernel): (usize, &Kernel),
    body: &[Statement],
    found: &mut Vec<Correction>,
) {
    for statement in body {
        let Statement::Loop(looped) = statement else {
            continue;
        };
        let name = |v: &ValueId| kernel.value(*v).name.clone();
        let running: BTreeSet<ValueId> = looped.carries.iter().map(|c| c.phi).collect();
        // What is corrected in the same way by the same is one correction.
        let mut by: BTreeMap<(ValueId, &'static str), Vec<ValueId>> = BTreeMap::new();
        for carry in &looped.carries {
            if let Some((factor, how)) = corrected(kernel, carry) {
                by.entry((factor, how)).or_default().push(carry.phi);
            }
        }
        for ((factor, how), own) in by {
            let mut follows = reached(kernel, factor, &running);
            follows.retain(|v| !own.contains(v));
            if follows.is_empty() {
                continue;
            }
            found.push(Correction {
                kernel: number,
                axis: tile.axes[looped.axis.index()].name.clone(),
                running: own.iter().map(name).collect(),
                how,
                by: name(&factor),
                follows: follows.iter().map(name).collect(),
            });
        }
        in_loops(tile, (number, kernel), &looped.body, found);
    }
}

/// With what a running value is made right before the next part is combined with it: `next = phi · factor + part`, or `max(phi + shift, part)`.
fn corrected(kernel: &Kernel, carry: &Carry) -> Option<(ValueId, &'static str)> {
    let args = |v: ValueId, wanted: MapOp| match &kernel.value(v).op {
        TileOp::Map(op, args) if *op == wanted => <[ValueId; 2]>::try_from(args.as_slice()).ok(),
        TileOp::Map(..)
        | TileOp::Load { .. }
        | TileOp::Constant(_)
        | TileOp::Iota(_)
        | TileOp::Reduce { .. }
        | TileOp::Scan { .. }
        | TileOp::Contract { .. }
        | TileOp::Phi { .. }
        | TileOp::Final { .. } => None,
    };
    let forms = [
        (MapOp::Add, MapOp::Mul, "multiplied by"),
        (MapOp::Max, MapOp::Add, "moved by"),
    ];
    forms.into_iter().find_map(|(combine, correct, how)| {
        let sides = args(carry.next, combine)?;
        sides.into_iter().find_map(|side| {
            let [x, y] = args(side, correct)?;
            let factor = match carry.phi {
                phi if phi == x => y,
                phi if phi == y => x,
                _ => return None,
            };
            Some((factor, how))
        })
    })
}

/// Those of some values that a value is computed from.
fn reached(kernel: &Kernel, from: ValueId, of: &BTreeSet<ValueId>) -> BTreeSet<ValueId> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(v) = open.pop() {
        if seen.insert(v) && !of.contains(&v) {
            open.extend(kernel.value(v).op.operands());
        }
    }
    seen.intersection(of).copied().collect()
}

/// What each line of a schedule is worth.
///
/// # Errors
/// The schedule itself cannot be lowered.
pub fn transformations(
    tile: &TileProgram,
    schedule: &Schedule,
    target: &Target,
) -> Result<Vec<Transformation>, ir::Reject> {
    codegen::machines(tile, schedule, target)?;
    let costs = cost(tile, Some(schedule), target).kernels;
    let text = schedule.text(tile);
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    for (number, kernel) in schedule.kernels.iter().enumerate() {
        // The line that says which kernel it is.
        at += 1;
        let end = at + kernel.steps().len();
        for step in kernel.steps() {
            let (does, required) = codegen::passes::explained(step);
            let mut followers = Vec::new();
            let (without, rest) = match required {
                Some(line) => {
                    let needed = format!("each contraction needs a line `{line}`");
                    (Without::Required(needed), None)
                }
                None => match left_out(&lines, at..end, tile) {
                    Ok((rest, with)) => {
                        followers = with;
                        without((tile, number), [schedule, &rest], &costs[number], target)
                    }
                    Err(why) => (Without::Required(why), None),
                },
            };
            found.push(Transformation {
                kernel: number,
                line: lines[at].trim().to_owned(),
                does,
                followers,
                without,
                rest,
                measured: None,
            });
            at += 1;
        }
    }
    Ok(found)
}

/// The schedule without the first of some lines of the text and without those of them that cannot stand then, and the latter; else what is said
/// of that.
fn left_out(
    lines: &[&str],
    own: Range<usize>,
    tile: &TileProgram,
) -> Result<(Schedule, Vec<String>), String> {
    let mut kept: Vec<usize> = (0..lines.len()).filter(|n| *n != own.start).collect();
    let mut followers = Vec::new();
    loop {
        let rest: String = kept.iter().map(|n| format!("{}\n", lines[*n])).collect();
        let faults = match Schedule::parse(&rest, "schedule", &codegen::language(), tile) {
            Ok(rest) => return Ok((rest, followers)),
            Err(faults) => faults,
        };
        let first = faults.list().first();
        let follower = first.and_then(|fault| fault.line.checked_sub(1));
        match follower.filter(|place| kept.get(*place).is_some_and(|n| own.contains(n))) {
            Some(place) => followers.push(lines[kept.remove(place)].trim().to_owned()),
            None => {
                let said: Vec<&str> = faults.list().iter().map(|f| f.message.as_str()).collect();
                return Err(said.join("; "));
            }
        }
    }
}

/// What becomes of a kernel under another schedule, and that schedule where it makes another kernel.
fn without(
    (tile, number): (&TileProgram, usize),
    [schedule, other]: [&Schedule; 2],
    before: &KernelCost,
    target: &Target,
) -> (Without, Option<Schedule>) {
    let machine = |s: &Schedule| codegen::kernel_machine(tile, number, &s.kernels[number], target);
    match (machine(schedule), machine(other)) {
        (_, Err(reject)) => return (Without::Refused(reject.to_string()), None),
        (Ok(one), Ok(two)) if one == two => return (Without::Nothing, None),
        (Ok(_) | Err(_), Ok(_)) => {}
    }
    let after = &cost(tile, Some(other), target).kernels[number];
    let without = match (before.clock, after.clock) {
        (Some(old), Some(new)) => takes(&old, &new),
        (None, _) | (_, None) => Without::Unclocked,
    };
    (without, Some(other.clone()))
}

/// What a kernel takes by the clock, where it took something else.
fn takes(old: &Parts, new: &Parts) -> Without {
    let more_us = new[Part::All] - old[Part::All];
    let differing = Part::ALL.into_iter().filter(|part| *part != Part::All);
    let mut differing: Vec<(Part, f64)> = differing
        .map(|part| (part, new[part] - old[part]))
        .collect();
    // Those that go the way of the whole.
    differing.retain(|(_, us)| us.abs() > LEAST * old[Part::All] && (*us > 0.0) == (more_us > 0.0));
    differing.sort_by(|x, y| y.1.abs().total_cmp(&x.1.abs()));
    Without::Takes {
        us: new[Part::All],
        more_us,
        parts: (differing.into_iter().take(PARTS))
            .map(|(part, us)| (part.name(), us))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A running maximum, and a sum and a plain sum that follow it or do not.
    const ROWS: &str = "tile rows\naxis i = 64, j = 1024\nbuffer x = parameter 0 f32 [i, j]\n\
        buffer y = output 0 f32 [i]\nbuffer z = output 1 f32 [i]\n\
        kernel grid(i: 64) loop(j: 64) {\n  loop j {\n    carry top = -inf over [i]\n    carry all = 0 over [i]\n    carry plain = 0 over [i]\n\
        \x20   in = load x[i, j]\n    part = reduce_max(in; j)\n    top_next = max(top, part)\n\
        \x20   minus = mul(-1, top_next)\n    gap = add(top, minus)\n    factor = exp(gap)\n\
        \x20   low = add(in, minus)\n    e = exp(low)\n    some = reduce_sum(e; j)\n    kept = mul(all, factor)\n    all_next = add(kept, some)\n\
        \x20   half = mul(plain, 0.5)\n    more = reduce_sum(in; j)\n    plain_next = add(half, more)\n\
        \x20   yield top_all = final(top, top_next)\n    yield all_all = final(all, all_next)\n    yield plain_all = final(plain, plain_next)\n  }\n\
        \x20 store y = all_all\n  store z = plain_all\n}\n";

    #[test]
    fn what_follows_a_running_value_is_corrected() {
        let text = ROWS.replace("mul(-1, top_next)", "mul(k, top_next)");
        let text = text.replace("mul(plain, 0.5)", "mul(plain, h)");
        let text = text.replace("  loop j {", "  k = -1\n  h = 0.5\n  loop j {");
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            corrections(&tile),
            [Correction {
                kernel: 0,
                axis: "j".to_owned(),
                running: vec!["all".to_owned()],
                how: "multiplied by",
                by: "factor".to_owned(),
                follows: vec!["top".to_owned()],
            }]
        );
    }
}

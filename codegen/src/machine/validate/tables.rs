//! What is wrong with the fields of a machine program, apart from its statements, and what of them a target has no room for.

use super::Malformed;
use crate::layout::{Factor, Layout};
use crate::machine::{Boxes, Holds, Machine, Region, RegionId, Ring, Statement};
use crate::resources::SWIZZLE_BYTES;
use ir::Target;
use std::collections::BTreeSet;

/// Lanes of a warp.
const LANES: u64 = 32;
/// Bytes that one copy moves at most, and to multiples of which regions begin.
const CHUNK: u64 = 16;
/// Bytes of a barrier in shared memory.
const BARRIER: u64 = 8;
/// Threads and named barriers of a block, at most.
const MOST_THREADS: u64 = 1024;
const MOST_BARRIERS: u64 = 16;

/// What is found, by place.
struct Found<'a> {
    machine: &'a Machine,
    all: Vec<Malformed>,
}

impl Found<'_> {
    fn say(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.all.push(Malformed {
            kernel: self.machine.name.clone(),
            place: place.into(),
            what: what.into(),
        });
    }
}

/// What is wrong with a layout over so many warps.
pub(super) fn spread(machine: &Machine, layout: &Layout, warps: u64) -> Vec<String> {
    let product = |of: &[Factor]| {
        of.iter()
            .try_fold(1u64, |n, f| n.checked_mul(f.size).filter(|n| *n > 0))
    };
    let mut all = Vec::new();
    if product(&layout.registers).is_none() {
        all.push(format!("the registers of {layout} are none, or too many"));
    }
    let sides = [
        ("lanes", &layout.lanes, LANES),
        ("warps", &layout.warps, warps),
    ];
    for (name, digits, wanted) in sides {
        match product(digits) {
            Some(found) if found == wanted => {}
            Some(found) => all.push(format!("{layout} is over {found} {name}, not {wanted}")),
            None => all.push(format!("the {name} of {layout} are none, or too many")),
        }
        let before = &digits[..digits.len().saturating_sub(1)];
        if !before.iter().all(|f| f.size.is_power_of_two()) {
            all.push(format!(
                "the {name} of {layout} but the last digit are no powers of two"
            ));
        }
    }
    match product(&layout.blocks) {
        Some(1) => {}
        Some(found) if found == machine.cluster => {}
        Some(_) | None => all.push(format!(
            "{layout} is over other blocks than the {} of a cluster",
            machine.cluster
        )),
    }
    for axis in layout.axes().iter() {
        if !machine.axes.contains_key(&axis) {
            all.push(format!("there is no axis {} for {layout}", axis.0));
        }
    }
    all
}

/// Whether layouts may be over the warps.
pub(super) fn warps_are_possible(machine: &Machine) -> bool {
    let [rows, columns] = machine.warps;
    let powers = rows.is_power_of_two() && columns.is_power_of_two();
    let groups = rows.is_multiple_of(4) && rows > 0 && columns == 1;
    (powers || groups) && rows.saturating_mul(columns) <= MOST_THREADS / LANES
}

pub(super) fn malformed(machine: &Machine) -> Vec<Malformed> {
    let mut found = Found {
        machine,
        all: Vec::new(),
    };
    for (id, axis) in &machine.axes {
        if axis.tile == 0 || axis.extent == 0 {
            found.say(
                format!("axes {}", id.0),
                "an axis and its tile are not empty",
            );
        }
    }
    let warps = machine.warps;
    if !warps_are_possible(machine) {
        let most = MOST_THREADS / LANES;
        let what = format!(
            "{} × {} warps: powers of two, or groups of four along the rows alone, at most {most} together, are possible",
            warps[0], warps[1]
        );
        found.say("warps", what);
    }
    let computing = warps[0].saturating_mul(warps[1]);
    let mut names = BTreeSet::new();
    for (number, fragment) in machine.fragments.iter().enumerate() {
        let place = format!("fragments f{number}");
        if !names.insert(&fragment.name) {
            found.say(
                &place,
                format!("there are two of the name `{}`", fragment.name),
            );
        }
        match &fragment.holds {
            Holds::Floats(layout) => {
                for what in spread(machine, layout, computing) {
                    found.say(&place, what);
                }
            }
            Holds::Rows { atoms, steps } if atoms.saturating_mul(*steps) == 0 => {
                found.say(&place, "rows of no instruction");
            }
            Holds::Rows { .. } | Holds::Flag => {}
        }
    }
    for (number, region) in machine.regions.iter().enumerate() {
        regions(&mut found, RegionId(number as u32), region);
    }
    for (number, ring) in machine.rings.iter().enumerate() {
        rings(&mut found, number, ring);
    }
    grid(&mut found);
    found.all
}

fn regions(found: &mut Found<'_>, id: RegionId, region: &Region) {
    let place = format!("regions s{}", id.0);
    let machine = found.machine;
    for (axis, ..) in &region.axes {
        if !machine.axes.contains_key(axis) {
            found.say(&place, format!("there is no axis {}", axis.0));
        }
    }
    if region.stages == 0 || region.elements == 0 {
        found.say(&place, "no stage, or no element in a stage");
        return;
    }
    if region.patch.is_empty() && region.swizzle.is_none() {
        let own = region
            .axes
            .iter()
            .map(|(_, n, s)| n.saturating_sub(1).saturating_mul(*s));
        let own = own.fold(1u64, u64::saturating_add);
        if own > region.elements {
            let what = format!("{own} elements in stages of {}", region.elements);
            found.say(&place, what);
        }
    }
    let mut aligned = CHUNK;
    if let Some(s) = region.swizzle {
        aligned = SWIZZLE_BYTES;
        if ![32, 64, 128].contains(&s.line_bytes(region.dtype)) {
            let bytes = s.line_bytes(region.dtype);
            found.say(
                &place,
                format!("lines of {bytes} bytes: 32, 64 or 128 are possible"),
            );
        }
        if s.along > region.axes.len() {
            let what = format!("{} of {} axes run along lines", s.along, region.axes.len());
            found.say(&place, what);
        }
        let own = |axes: &[(ir::AxisId, u64, u64)]| {
            axes.iter().fold(1, |n: u64, a| n.saturating_mul(a.1))
        };
        let (along, _) = region.axes.split_at(s.along.min(region.axes.len()));
        let swizzle_atoms = own(along).div_ceil(s.span.max(1));
        let need = swizzle_atoms.saturating_mul(s.span).saturating_mul(s.lines);
        if need > region.elements {
            let what = format!(
                "{need} elements of swizzle atoms in stages of {}",
                region.elements
            );
            found.say(&place, what);
        }
    }
    if !region.offset.is_multiple_of(aligned) {
        let what = format!("it begins at {}, no multiple of {aligned}", region.offset);
        found.say(&place, what);
    }
    let bytes = region.elements.saturating_mul(region.dtype.bytes());
    let end = region
        .offset
        .saturating_add(bytes.saturating_mul(region.stages));
    if end > machine.scratch.offset {
        let what = format!(
            "it ends at {end}, and scratch memory begins at {}",
            machine.scratch.offset
        );
        found.say(&place, what);
    }
    if let Some(boxes) = &region.boxes {
        fits(found, &place, region, boxes);
    }
}

/// Boxes are those of a region.
fn fits(found: &mut Found<'_>, place: &str, region: &Region, boxes: &Boxes) {
    match found.machine.buffers.get(&boxes.map.buffer) {
        None => found.say(place, format!("there is no buffer {}", boxes.map.buffer.0)),
        Some(argument) if argument.dtype != region.dtype => found.say(
            place,
            format!(
                "boxes of {} in a region of {}",
                argument.dtype.name(),
                region.dtype.name()
            ),
        ),
        Some(_) => {}
    }
    if boxes.axes.len() != boxes.map.sizes.len() {
        let what = format!(
            "boxes of {} dimensions along {} axes",
            boxes.map.sizes.len(),
            boxes.axes.len()
        );
        found.say(place, what);
    }
    if boxes.elements().saturating_mul(boxes.swizzle_atoms) > region.elements {
        let what = format!(
            "{} boxes of {} elements in stages of {}",
            boxes.swizzle_atoms,
            boxes.elements(),
            region.elements
        );
        found.say(place, what);
    }
}

fn rings(found: &mut Found<'_>, number: usize, ring: &Ring) {
    let place = format!("rings ring{number}");
    let machine = found.machine;
    if ring.stages == 0 || ring.regions.is_empty() {
        found.say(&place, "no stage, or no region that has them");
    }
    for id in &ring.regions {
        match machine.regions.get(id.0 as usize) {
            None => found.say(&place, format!("there is no region s{}", id.0)),
            Some(region) if region.stages != ring.stages => {
                let what = format!(
                    "{} stages, of which s{} has {}",
                    ring.stages, id.0, region.stages
                );
                found.say(&place, what);
            }
            Some(_) => {}
        }
    }
    for (producer, what) in [(Some(ring.filled_by), "fill"), (ring.read_by, "read")] {
        if let Some(p) = producer.filter(|p| *p as usize >= machine.producers.len()) {
            found.say(&place, format!("there are no warps {p} that {what} it"));
        }
    }
    // A full and an empty one a stage.
    let end = ring
        .barriers
        .saturating_add(ring.stages.saturating_mul(2 * BARRIER));
    if !ring.barriers.is_multiple_of(BARRIER) || end > machine.shared_bytes() {
        let what = format!(
            "barriers from {} to {end} in {} bytes of shared memory, at multiples of {BARRIER}",
            ring.barriers,
            machine.shared_bytes()
        );
        found.say(&place, what);
    }
}

fn grid(found: &mut Found<'_>) {
    let machine = found.machine;
    for own in &machine.grid.coordinates {
        if !machine.axes.contains_key(&own.axis) {
            found.say("grid", format!("there is no axis {}", own.axis.0));
        }
    }
    let counts = machine.grid.coordinates.iter().map(|c| c.count);
    let tiles = counts.fold(1u64, u64::saturating_mul);
    if tiles != machine.grid.tiles {
        let what = format!("{} tiles, by its axes {tiles}", machine.grid.tiles);
        found.say("grid", what);
    }
    if machine.grid.persistent
        && !machine
            .body
            .iter()
            .any(|s| matches!(s, Statement::Tiles(_)))
    {
        found.say("body", "blocks are persistent, and go over no tiles");
    }
    if let Some(block_group) = machine.block_group
        && (block_group.size == 0 || !tiles.is_multiple_of(block_group.size.max(1)))
    {
        let what = format!(
            "{tiles} tiles for block groups of {} blocks",
            block_group.size
        );
        found.say("block_group", what);
    }
}

/// What a target has no room for, or has not.
pub(super) fn beyond(machine: &Machine, target: &Target) -> Vec<Malformed> {
    let mut found = Found {
        machine,
        all: Vec::new(),
    };
    let mut most = |place: &str, what: &str, need: u64, have: u64| {
        if need > have {
            found.say(place, format!("{need} {what}: {have} are possible"));
        }
    };
    let blocks = u64::from(machine.blocks_per_sm);
    let threads = machine.threads();
    most("warps", "threads", threads, MOST_THREADS);
    most(
        "blocks_per_sm",
        "threads of an SM",
        threads.saturating_mul(blocks),
        target.threads_per_sm.into(),
    );
    most(
        "blocks_per_sm",
        "blocks an SM",
        blocks,
        target.blocks_per_sm.into(),
    );
    most(
        "scratch",
        "bytes of shared memory",
        machine.shared_bytes(),
        target.shared_per_block,
    );
    most(
        "body",
        "named barriers",
        machine.named_barriers(),
        MOST_BARRIERS,
    );
    let mut used = BTreeSet::new();
    crate::machine::resources::each(&machine.body, &mut |s| {
        if let Statement::Multiply(m) = s {
            used.insert(m.row.instruction.atom);
        } else if let Statement::Issue(i) = s {
            used.insert(i.row.instruction.atom);
        }
    });
    let known = used.into_iter().filter_map(crate::atoms::instruction);
    for missing in known.filter(|i| !i.exists_on(target)) {
        found.say(
            "body",
            format!("{} has no {}", target.name, missing.atom.name()),
        );
    }
    found.all
}

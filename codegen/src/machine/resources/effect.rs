//! What one statement does to registers: the fragments that it reads and writes, and what it takes beside them.
//!
//! The numbers are read off the machine code of small kernels: how the text that the printer makes of a statement becomes instructions.

use super::each;
use crate::access::Access;
use crate::layout::Layout;
use crate::machine::{
    Across, FragmentId, Function, Input, Machine, Multiply, Outer, Region, Rows, Scan, Source,
    Statement, Store, Sync,
};
use ir::{AxisSet, Dtype, MapOp};
use std::collections::BTreeSet;

/// What a statement does to registers.
#[derive(Debug, Default)]
pub(super) struct Effect {
    pub(super) reads: Vec<FragmentId>,
    /// What is written as a whole.
    pub(super) writes: Vec<FragmentId>,
    /// Whether what is read dies as what is written comes to be.
    pub(super) element_wise: bool,
    /// Registers beside the fragments, as long as it takes.
    pub(super) beside: u64,
}

/// Registers of an address in device memory.
const ADDRESS: u64 = 2;

/// Bytes that an instruction can add to an address: 24 bits with a sign.
const REACH: u64 = 1 << 23;

/// Elements of one register each that special functions work on at a time, in the accurate functions of several instructions.
const ACCURATE: u64 = 8;

/// Elements that a division works on at a time: the compiler scales the divisors of a whole fragment before it divides.
const DIVIDED: u64 = 32;

/// Conditions that a thread holds beside registers: that many divisors' scales take none.
const PREDICATES: u64 = 7;

/// Elements of other warps' parts that are read from shared memory before they are combined, at least: about as many as there are issue
/// slots between such a read and its result.
const PARTS: u64 = 16;

/// Parts of an element, or as many of each, that are read before they are combined.
const PARTS_OF_EACH: u64 = 3;

/// Addresses of these parts.
const PART_ADDRESSES: u64 = 2;

/// Elements of other lanes that have come before they are combined: about as many as there are issue slots until one comes.
const SHUFFLED: u64 = 16;

/// Places in a region that are computed before the elements are there that go to them.
const PLACES: u64 = 64;

/// Loads behind conditions of their own whose addresses are computed before the first of them is issued. Such loads cannot share an
/// address, as each has its branch.
const GUARDED: u64 = 8;

/// Stores of single elements, beside the first, whose addresses are computed before the first of them is issued.
const SCATTERED: u64 = 8;

/// Registers of a mask's condition: the coordinates of a thread's first element, and their difference.
const MASK: u64 = 4;

/// Registers that reads of shared memory fill at a time, so that multiply-adds need not wait for them: at least, where an operand is read in
/// pieces of 16 bytes; where all are read element by element; and at most.
const READ_AHEAD: u64 = 30;
const READ_AHEAD_SINGLY: u64 = 24;
const READ_AHEAD_MOST: u64 = 36;

/// Registers of what is read of shared memory to be split, its halves, and addresses.
const HALVED: u64 = 20;

/// Two descriptors of 64 bits, and two of what comes next.
const DESCRIPTORS: u64 = 8;

fn fragments(sources: &[Source]) -> Vec<FragmentId> {
    let of = |s: &Source| match s {
        Source::Fragment(id) => Some(*id),
        Source::Constant(_) | Source::Coordinate(_) => None,
    };
    sources.iter().filter_map(of).collect()
}

/// The fragments that a statement reads and writes as a whole, apart from those inside.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) reads: Vec<FragmentId>,
    pub(crate) writes: Vec<FragmentId>,
}

/// Which they are, whether they exist or not.
pub(crate) fn touched(statement: &Statement) -> Touched {
    let of = |reads: Vec<FragmentId>, writes: Vec<FragmentId>| Touched { reads, writes };
    match statement {
        // What was there before is nothing.
        Statement::Declare(id) => of(Vec::new(), vec![*id]),
        Statement::Map { to, args, .. } => of(fragments(args), vec![*to]),
        Statement::Select { to, x, y, .. } => of(fragments(&[*x, *y]), vec![*to]),
        Statement::ExpScale {
            scale,
            scaled,
            of: x,
            by,
        } => of(fragments(&[*x, *by]), vec![*scale, *scaled]),
        Statement::Mask { to, from, .. } | Statement::Pack { to, from, .. } => {
            of(vec![*from], vec![*to])
        }
        Statement::IsNotOne { flag, of: x, .. } => {
            let mut reads = fragments(&[*x]);
            reads.push(*flag);
            of(reads, vec![*flag])
        }
        Statement::Reduce(reduce) => of(fragments(&reduce.factors), vec![reduce.to]),
        Statement::Scan(scan) => of(fragments(&[scan.of]), vec![scan.to]),
        Statement::AcrossLanes(across) => of(vec![across.fragment], vec![across.fragment]),
        Statement::PutParts(across) => of(vec![across.fragment], Vec::new()),
        Statement::TakeParts(across) => of(Vec::new(), vec![across.fragment]),
        Statement::Spill { from, .. } => of(vec![*from], Vec::new()),
        Statement::Unspill { to, .. }
        | Statement::Load { to, .. }
        | Statement::Fetch { to, .. } => of(Vec::new(), vec![*to]),
        Statement::Store(store) => of(fragments(&[store.from]), Vec::new()),
        Statement::Publish { from, .. } => of(fragments(&[*from]), Vec::new()),
        Statement::Multiply(multiply) => {
            let held = multiply.inputs.iter().filter_map(|input| match input {
                Input::Fragment(id) => Some(*id),
                Input::Region(..) => None,
            });
            of(held.chain([multiply.into]).collect(), vec![multiply.into])
        }
        Statement::Outer(outer) => of(vec![outer.into], vec![outer.into]),
        Statement::Issue(issue) => {
            let held = match &issue.a {
                Rows::Fragment(id) => Some(*id),
                Rows::SwizzleAtoms(_) => None,
            };
            let added = (!issue.fresh).then_some(issue.into);
            of(held.into_iter().chain(added).collect(), vec![issue.into])
        }
        Statement::StorePartial(partial) => of(vec![partial.fragment], Vec::new()),
        Statement::ReducePartials(partial) => of(Vec::new(), vec![partial.fragment]),
        Statement::Sync(Sync::Keep(id) | Sync::Vote(id)) => of(vec![*id], vec![*id]),
        Statement::Split(_)
        | Statement::Sync(_)
        | Statement::Copy(_)
        | Statement::CopyBoxes(_)
        | Statement::PrefetchBoxes(_)
        | Statement::Prefetch { .. }
        | Statement::Clear(_)
        | Statement::GridBarrier(_)
        | Statement::LastGoesOn
        | Statement::Range { .. }
        | Statement::Tile { .. }
        | Statement::Loop { .. }
        | Statement::Tiles(_)
        | Statement::If { .. }
        | Statement::Scope(_)
        | Statement::OpenStages(_)
        | Statement::NextStage { .. }
        | Statement::PreviousStage { .. }
        | Statement::AdvanceStage { .. }
        | Statement::OpenRing(..)
        | Statement::AdvanceRing(_) => Touched::default(),
    }
}

/// What a statement does, apart from those inside.
pub(super) fn effect(machine: &Machine, statement: &Statement) -> Effect {
    let Touched { reads, writes } = touched(statement);
    Effect {
        reads,
        writes,
        element_wise: !matches!(
            statement,
            Statement::Multiply(_) | Statement::Outer(_) | Statement::Issue(_)
        ),
        beside: beside(machine, statement),
    }
}

/// What is in front of a run; and, where elements are not in their own results, these with them.
fn scan_registers(machine: &Machine, scan: &Scan) -> u64 {
    let elements = machine.fragment(scan.to).layout().register_count();
    2 + if scan.inclusive { 0 } else { elements }
}

/// Registers that a statement takes beside fragments.
fn beside(machine: &Machine, statement: &Statement) -> u64 {
    match statement {
        Statement::Map { to, function, args } => under_way(machine, *to, *function, args),
        Statement::Select { condition, .. } if condition.terms().len() > 1 => MASK,
        Statement::Scan(scan) => scan_registers(machine, scan),
        Statement::AcrossLanes(across) => across.layout.register_count().min(SHUFFLED),
        Statement::TakeParts(across) => parts(across),
        Statement::Load {
            to,
            access,
            axes,
            width,
            ..
        } => {
            let layout = machine.fragment(*to).layout();
            far(access, &layout, *width) + guarded(machine, access, axes, &layout, *width)
        }
        Statement::Store(store) => ADDRESS + scattered(store) + exchanged(store),
        Statement::Publish { layout, .. } => layout.register_count().min(PLACES),
        Statement::Multiply(multiply) => multiplied(machine, multiply),
        Statement::Outer(outer) => read_ahead(machine, outer),
        Statement::Fetch { .. } => 2,
        Statement::Split(_) => HALVED,
        Statement::Issue(_) => DESCRIPTORS,
        Statement::Declare(_)
        | Statement::Select { .. }
        | Statement::ExpScale { .. }
        | Statement::Mask { .. }
        | Statement::IsNotOne { .. }
        | Statement::Reduce(_)
        | Statement::PutParts(_)
        | Statement::Spill { .. }
        | Statement::Unspill { .. }
        | Statement::Pack { .. }
        | Statement::StorePartial(_)
        | Statement::ReducePartials(_)
        | Statement::Sync(_)
        | Statement::Copy(_)
        | Statement::CopyBoxes(_)
        | Statement::PrefetchBoxes(_)
        | Statement::Prefetch { .. }
        | Statement::Clear(_)
        | Statement::GridBarrier(_)
        | Statement::LastGoesOn
        | Statement::Range { .. }
        | Statement::Tile { .. }
        | Statement::Loop { .. }
        | Statement::Tiles(_)
        | Statement::If { .. }
        | Statement::Scope(_)
        | Statement::OpenStages(_)
        | Statement::NextStage { .. }
        | Statement::PreviousStage { .. }
        | Statement::AdvanceStage { .. }
        | Statement::OpenRing(..)
        | Statement::AdvanceRing(_) => 0,
    }
}

/// Registers of a function's intermediate results.
fn under_way(machine: &Machine, to: FragmentId, function: Function, args: &[Source]) -> u64 {
    let elements = machine.fragment(to).registers();
    match (function.op(), machine.precise) {
        // A factor for each divisor that would leave the range of a reciprocal.
        (Some(MapOp::Div), false) => {
            let divisors = match args.get(1) {
                Some(Source::Fragment(id)) => machine.fragment(*id).registers(),
                Some(Source::Constant(_)) => 0,
                Some(Source::Coordinate(_)) | None => elements,
            };
            divisors.saturating_sub(PREDICATES).min(DIVIDED)
        }
        // The rounded argument and what the rounding left out.
        (Some(MapOp::Div | MapOp::Function(_)), true) => 2 * elements.min(ACCURATE),
        (Some(MapOp::Function(_)), false)
        | (Some(MapOp::Add | MapOp::Mul | MapOp::Max | MapOp::Select) | None, _) => 0,
    }
}

/// Other warps' parts: their addresses, and those that are read at a time.
fn parts(across: &Across) -> u64 {
    let copies = across.layout.copy_masks().0.count_ones() as usize;
    let parts: u64 = 1 << across.masks.len().saturating_sub(copies);
    let elements = across.layout.register_count();
    PART_ADDRESSES + (parts * elements).min(PARTS.max(PARTS_OF_EACH * elements))
}

/// The addresses of a load whose elements are read each behind a condition, as some of them may not exist.
fn guarded(machine: &Machine, access: &Access, axes: &AxisSet, layout: &Layout, width: u64) -> u64 {
    let overhangs = |axis| machine.axes[&axis].tile > 1 && machine.overhangs(layout, axis);
    match access.checks.is_empty() && !axes.iter().any(overhangs) {
        true => 0,
        false => ADDRESS * (layout.register_count() / width.max(1)).min(GUARDED),
    }
}

/// The addresses of a store of single elements beside the first one's: they lie apart.
fn scattered(store: &Store) -> u64 {
    match store.gathered.is_none() && store.width == 1 {
        true => ADDRESS * (store.held.register_count().max(1) - 1).min(SCATTERED),
        false => 0,
    }
}

/// The addresses of a load: one, unless elements lie farther apart than an instruction can add.
fn far(access: &Access, layout: &Layout, width: u64) -> u64 {
    let mut addresses = 1;
    for digit in &layout.registers {
        let step = digit.axis.and_then(|a| access.coefficients.get(&a));
        let step = step.map_or(0, |c| c.unsigned_abs()) * digit.stride * access.dtype.bytes();
        if step.saturating_mul(digit.size - 1) >= REACH {
            addresses *= digit.size;
        }
    }
    let loads = layout.register_count() / width.max(1);
    ADDRESS * addresses.min(loads).max(1)
}

/// The words that lanes exchange in front of a store: those of a run, and those that come for them.
fn exchanged(store: &Store) -> u64 {
    let words = |bytes: u64| bytes.div_ceil(4);
    (store.gathered.as_ref()).map_or(0, |g| {
        2 * words(g.lanes * g.piece * store.access.dtype.bytes())
    })
}

/// The rows and columns of one step along the depth, while those of the step before are used. Where products are split, also the low halves
/// of the step at hand, and sums of a few steps.
fn multiplied(machine: &Machine, multiply: &Multiply) -> u64 {
    let [rows, columns, _] = &multiply.spaces;
    let rows = rows.total / machine.warps[0] / 16;
    let columns = columns.total / machine.warps[1] / 8;
    let step = 4 * rows + 2 * columns;
    match multiply.row.splits() {
        true => 3 * step + 4 * rows * columns,
        false => 2 * step,
    }
}

/// What is read of operands before it is multiplied: what one step along the depth multiplies, and what is read ahead of it, which is as much
/// as the latency of shared memory asks for and no whole number of steps.
fn read_ahead(machine: &Machine, outer: &Outer) -> u64 {
    let sides = || {
        let regions = outer.inputs.iter().map(|(id, _)| machine.region(*id));
        regions.zip(outer.parts.iter().map(Layout::register_count))
    };
    let depth = outer.depth.first().map(|d| d.0);
    let along = |region: &Region| region.axes.first().filter(|a| a.2 == 1).map(|a| a.0) == depth;
    // Neighbours along the depth are read together: four registers of 16 bytes. The compiler does not look into what widens f16, so it reads
    // fewer of them together.
    let together = |dtype: Dtype| match dtype {
        Dtype::F16 => 3,
        Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool | Dtype::Bf16 => 4,
    };
    let own: u64 = sides().map(|(_, own)| own).sum();
    let read = sides().filter(|(region, _)| along(region));
    let read: u64 = read.map(|(region, own)| together(region.dtype) * own).sum();
    let in_pieces = |(region, _): (&Region, u64)| along(region) && region.dtype != Dtype::F16;
    let least = match sides().any(in_pieces) {
        true => READ_AHEAD,
        false => READ_AHEAD_SINGLY,
    };
    own + read.clamp(least, READ_AHEAD_MOST)
}

/// Registers that a loop takes all along, for its own statements: its counter and its end, addresses that are moved on with each iteration,
/// and counters of stages.
pub(super) fn in_loop(body: &[Statement]) -> u64 {
    const COUNTER_AND_END: u64 = 2;
    COUNTER_AND_END + body.iter().map(kept).sum::<u64>()
}

/// What a statement keeps from one iteration to the next.
fn kept(statement: &Statement) -> u64 {
    if let Statement::Scope(body) = statement {
        return body.iter().map(kept).sum();
    }
    if let Statement::If {
        then, otherwise, ..
    } = statement
    {
        return then.iter().chain(otherwise).map(kept).sum();
    }
    let is = |kept: bool, registers: u64| if kept { registers } else { 0 };
    is(
        matches!(statement, Statement::Load { .. } | Statement::Store(_)),
        ADDRESS,
    )
        // Where it goes too.
        + is(matches!(statement, Statement::Copy(_)), ADDRESS + 1)
        // Both operands in shared memory.
        + is(matches!(statement, Statement::Multiply(_) | Statement::Outer(_)), 2)
        + is(matches!(statement, Statement::AdvanceStage { .. }), 1)
        // The stage and the parity.
        + is(matches!(statement, Statement::AdvanceRing(_)), 2)
}

/// Registers that stay empty between those of warpgroup instructions, which have to lie side by side: an eighth of them.
pub(super) fn gaps(machine: &Machine, body: &[Statement]) -> u64 {
    let mut held = BTreeSet::new();
    each(body, &mut |s| {
        if let Statement::Issue(_) = s {
            let Touched { reads, writes } = touched(s);
            held.extend(reads.into_iter().chain(writes));
        }
    });
    let all: u64 = held
        .iter()
        .map(|id| machine.fragment(*id).registers())
        .sum();
    all / 8
}

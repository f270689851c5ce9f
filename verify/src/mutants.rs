//! Small faults in tile programs, made systematically: what the checks of this crate are themselves checked with.

use ir::{Fact, Function, Kernel, Loop, MapOp, ReduceOp, Statement, TileOp, TileProgram, ValueId};
use std::collections::BTreeSet;

/// Every tile program that differs from the given one by one small fault, with a description of the fault. Some faults
/// change nothing (the provisional maximum of a softmax may be any number): who asserts that all are caught argues about
/// the ones that are not.
pub fn mutants(tile: &TileProgram) -> Vec<(String, TileProgram)> {
    let mut all = Vec::new();
    for (number, kernel) in tile.kernels.iter().enumerate() {
        let mut add = |what: String, changed: Kernel| {
            let mut mutant = tile.clone();
            mutant.kernels[number] = changed;
            all.push((format!("kernel {number}: {what}"), mutant));
        };
        for at in 0..kernel.values.len() {
            for (what, op) in faults_of_value(kernel, at) {
                let mut changed = kernel.clone();
                let name = changed.values[at].name.clone();
                changed.values[at].op = op;
                add(format!("`{name}`: {what}"), changed);
            }
        }
        for (what, body) in faults_of_body(kernel, &kernel.body) {
            let mut changed = kernel.clone();
            changed.body = body;
            add(what, changed);
        }
    }
    all
}

/// Every tile program that differs from the given one in where it ends: masks, bounds of loops and parts that reach too far or not far
/// enough, elements that are left out from a coordinate on. Many change nothing: a bound may lie anywhere where all is masked.
pub fn displaced(tile: &TileProgram) -> Vec<(String, TileProgram)> {
    let mut all = Vec::new();
    for (number, kernel) in tile.kernels.iter().enumerate() {
        let mut add = |what: String, changed: Kernel| {
            let mut mutant = tile.clone();
            mutant.kernels[number] = changed;
            all.push((format!("kernel {number}: {what}"), mutant));
        };
        let sizes: BTreeSet<i64> = kernel.axes.values().map(|a| a.tile as i64).collect();
        for (at, value) in kernel.values.iter().enumerate() {
            let name = &value.name;
            match &value.op {
                TileOp::Constant(c) if c.fract() == 0.0 && c.abs() >= LEAST_PLACE => {
                    for by in steps(&sizes) {
                        let mut changed = kernel.clone();
                        changed.values[at].op = TileOp::Constant(c + by as f64);
                        add(format!("`{name}`: {} for {c}", c + by as f64), changed);
                    }
                    let mut changed = kernel.clone();
                    changed.values[at].op = TileOp::Constant((c / 2.0).trunc());
                    add(format!("`{name}`: half of {c}"), changed);
                }
                TileOp::Load { index, .. } => {
                    for axis in value.axes.iter() {
                        let extent = tile.extent(axis);
                        for from in [extent - 1, extent / 2, extent * 15 / 16] {
                            if extent as f64 >= LEAST_PLACE {
                                let what =
                                    format!("`{name}`: zero from {from} on along {}", axis.0);
                                add(what, left_out(kernel, ValueId(at as u32), axis, from));
                            }
                        }
                    }
                    for (d, function) in index.iter().enumerate() {
                        if function.as_axis().is_none() {
                            let mut changed = kernel.clone();
                            if let TileOp::Load { index, .. } = &mut changed.values[at].op {
                                index[d] = index[d].shifted(-1).unwrap_or(index[d].clone());
                            }
                            add(format!("`{name}`: index {d} one less"), changed);
                        }
                    }
                }
                TileOp::Constant(_)
                | TileOp::Iota(_)
                | TileOp::Map(..)
                | TileOp::Reduce { .. }
                | TileOp::Scan { .. }
                | TileOp::Contract { .. }
                | TileOp::Phi { .. }
                | TileOp::Final { .. } => {}
            }
        }
        for (what, body) in displaced_body(tile, kernel, &kernel.body) {
            let mut changed = kernel.clone();
            changed.body = body;
            add(what, changed);
        }
    }
    all
}

/// Constants from which on a number may be a place.
const LEAST_PLACE: f64 = 4.0;

/// By how much ends are displaced.
fn steps(sizes: &BTreeSet<i64>) -> BTreeSet<i64> {
    let by = sizes.iter().flat_map(|s| [1, *s / 2, *s, 2 * *s]);
    let by = by.filter(|s| *s > 0);
    by.flat_map(|s| [s, -s]).collect()
}

/// The kernel with a load that is zero from a coordinate of an axis on.
fn left_out(kernel: &Kernel, load: ValueId, axis: ir::AxisId, from: u64) -> Kernel {
    let mut changed = kernel.clone();
    let next = |n: usize| ValueId((kernel.values.len() + n) as u32);
    let [loaded, coordinate, minus, place, end, inside, zero] = [0, 1, 2, 3, 4, 5, 6].map(next);
    let along: ir::AxisSet = [axis].into_iter().collect();
    let none = ir::AxisSet::new();
    let old = changed.values[load.index()].clone();
    let own = old.axes.clone();
    // `place ≤ from − 1` where `(from − 1) − place ≥ 0`
    let added = [
        (old.op, own),
        (TileOp::Iota(axis), along.clone()),
        (TileOp::Constant(-1.0), none.clone()),
        (
            TileOp::Map(MapOp::Mul, vec![coordinate, minus]),
            along.clone(),
        ),
        (TileOp::Constant(from as f64 - 1.0), none.clone()),
        (TileOp::Map(MapOp::Add, vec![end, place]), along),
        (TileOp::Constant(0.0), none),
    ];
    for (n, (op, axes)) in added.into_iter().enumerate() {
        changed.values.push(ir::Value {
            op,
            axes,
            name: format!("left_out_{n}"),
        });
    }
    changed.values[load.index()].op = TileOp::Map(MapOp::Select, vec![inside, loaded, zero]);
    let before = [loaded, coordinate, minus, place, end, inside, zero];
    insert_before(&mut changed.body, load, &before);
    changed
}

fn insert_before(body: &mut Vec<Statement>, value: ValueId, added: &[ValueId]) {
    let at = body.iter().position(|s| *s == Statement::Let(value));
    if let Some(at) = at {
        body.splice(at..at, added.iter().map(|v| Statement::Let(*v)));
    }
    for statement in body {
        if let Statement::Loop(inner) = statement {
            insert_before(&mut inner.body, value, added);
        }
    }
}

fn displaced_body(
    tile: &TileProgram,
    kernel: &Kernel,
    body: &[Statement],
) -> Vec<(String, Vec<Statement>)> {
    let mut all = Vec::new();
    for (at, statement) in body.iter().enumerate() {
        let Statement::Loop(inner) = statement else {
            continue;
        };
        let mut changed: Vec<(String, Loop)> = displaced_loop(tile, kernel, inner);
        for (what, body) in displaced_body(tile, kernel, &inner.body) {
            let mut outer = inner.clone();
            outer.body = body;
            changed.push((what, outer));
        }
        for (what, inner) in changed {
            let mut statements = body.to_vec();
            statements[at] = Statement::Loop(inner);
            all.push((format!("loop {at}: {what}"), statements));
        }
    }
    all
}

fn displaced_loop(tile: &TileProgram, kernel: &Kernel, inner: &Loop) -> Vec<(String, Loop)> {
    let mut all = Vec::new();
    let (extent, size) = (
        tile.extent(inner.axis) as i64,
        kernel.tile(inner.axis) as i64,
    );
    let sizes: BTreeSet<i64> = [size].into();
    let mut add = |what: String, change: &dyn Fn(&mut Loop)| {
        let mut changed = inner.clone();
        change(&mut changed);
        all.push((what, changed));
    };
    let number = |offset: i64| ir::Bound {
        entries: Vec::new(),
        terms: Vec::new(),
        offset,
        divisor: 1,
    };
    for end in [extent - size, extent - extent / 8, extent / 2, extent - 1] {
        if end > 0 {
            add(format!("ends at {end} of {extent}"), &|l| {
                l.high.push(number(end));
            });
        }
    }
    for start in [1, size, extent / 8] {
        add(format!("starts at {start}"), &|l| l.low.push(number(start)));
    }
    for (which, bounds) in [("low", &inner.low), ("high", &inner.high)] {
        let of = |l: &mut Loop, n: usize, change: &dyn Fn(&mut ir::Bound)| {
            change(if which == "low" {
                &mut l.low[n]
            } else {
                &mut l.high[n]
            });
        };
        for (n, bound) in bounds.iter().enumerate() {
            for by in steps(&sizes) {
                add(format!("{which} bound {n} moved by {by}"), &|l| {
                    of(l, n, &|b| b.offset += by);
                });
            }
            for (t, term) in bound.terms.iter().enumerate() {
                for by in [1, -1] {
                    add(
                        format!("{which} bound {n}: {} for {}", term.0 + by, term.0),
                        &|l| {
                            of(l, n, &|b| b.terms[t].0 += by);
                        },
                    );
                }
                add(format!("{which} bound {n}: the other corner"), &|l| {
                    of(l, n, &|b| {
                        b.terms[t].2 = match term.2 {
                            ir::Corner::First => ir::Corner::Last,
                            ir::Corner::Last => ir::Corner::First,
                        };
                    });
                });
            }
        }
    }
    all
}

fn faults_of_value(kernel: &Kernel, at: usize) -> Vec<(String, TileOp)> {
    let value = &kernel.values[at];
    let axes_of = |id: &ValueId| kernel.values.get(id.index()).map(|v| &v.axes);
    let mut all = Vec::new();
    match &value.op {
        TileOp::Load {
            buffer,
            index,
            fill,
        } => {
            let with = |index: Vec<ir::Quotient>, fill: f64| TileOp::Load {
                buffer: *buffer,
                index,
                fill,
            };
            for d in 0..index.len() {
                let mut moved = index.clone();
                if let Some(further) = moved[d].shifted(1) {
                    moved[d] = further;
                    all.push((format!("index {d} one further"), with(moved, *fill)));
                }
            }
            for d in 1..index.len() {
                let mut swapped = index.clone();
                swapped.swap(d - 1, d);
                if swapped != *index {
                    all.push((
                        format!("indices {} and {d} swapped", d - 1),
                        with(swapped, *fill),
                    ));
                }
            }
            if index.iter().any(|f| f.as_axis().is_none()) {
                all.push(("another fill".into(), with(index.clone(), other(*fill))));
            }
        }
        TileOp::Constant(c) => {
            all.push((
                format!("{} for {c}", other(*c)),
                TileOp::Constant(other(*c)),
            ));
        }
        TileOp::Iota(_) => {}
        TileOp::Map(op, args) => {
            for to in replacements(*op) {
                all.push((format!("{to:?} for {op:?}"), TileOp::Map(to, args.clone())));
            }
            if args.len() == 2 {
                for (n, arg) in args.iter().enumerate() {
                    // max(x, x) = x: the other operand is dropped.
                    if axes_of(arg) == Some(&value.axes) {
                        let alone = TileOp::Map(MapOp::Max, vec![*arg, *arg]);
                        all.push((format!("only operand {n} of {op:?}"), alone));
                    }
                }
            }
            if args.len() == 2 && !op.row().facts.contains(&Fact::Commutative) {
                let swapped = args.iter().rev().copied().collect();
                all.push(("operands swapped".into(), TileOp::Map(*op, swapped)));
            }
            if let (MapOp::Select, [c, x, y]) = (op, args.as_slice()) {
                let swapped = TileOp::Map(*op, vec![*c, *y, *x]);
                all.push(("branches swapped".into(), swapped));
                if axes_of(x) == Some(&value.axes) {
                    let always = TileOp::Map(MapOp::Max, vec![*x, *x]);
                    all.push(("condition dropped".into(), always));
                }
            }
        }
        TileOp::Reduce { op, value, axes } => {
            let to = other_reduction(*op);
            all.push((
                format!("{to:?} for {op:?}"),
                TileOp::Reduce {
                    op: to,
                    value: *value,
                    axes: axes.clone(),
                },
            ));
        }
        TileOp::Scan {
            op,
            value,
            axis,
            inclusive,
        } => {
            let scan = |op, inclusive| TileOp::Scan {
                op,
                value: *value,
                axis: *axis,
                inclusive,
            };
            let to = other_reduction(*op);
            all.push((format!("{to:?} for {op:?}"), scan(to, *inclusive)));
            let what = "a scan with or without each coordinate's own element";
            all.push((what.into(), scan(*op, !inclusive)));
        }
        TileOp::Contract { .. } | TileOp::Final { .. } => {}
        TileOp::Phi { init, axes } => {
            all.push((
                format!("starts at {} for {init}", other(*init)),
                TileOp::Phi {
                    init: other(*init),
                    axes: axes.clone(),
                },
            ));
        }
    }
    all
}

fn other_reduction(op: ReduceOp) -> ReduceOp {
    match op {
        ReduceOp::Sum => ReduceOp::Max,
        ReduceOp::Max | ReduceOp::Product => ReduceOp::Sum,
    }
}

fn faults_of_body(kernel: &Kernel, body: &[Statement]) -> Vec<(String, Vec<Statement>)> {
    let mut all = Vec::new();
    for (at, statement) in body.iter().enumerate() {
        let mut add = |what: String, changed: Statement| {
            let mut statements = body.to_vec();
            statements[at] = changed;
            all.push((what, statements));
        };
        match statement {
            Statement::Let(_) => {}
            Statement::Store { .. } => {
                let mut statements = body.to_vec();
                statements.remove(at);
                all.push((format!("store {at} left out"), statements));
            }
            Statement::Loop(inner) => {
                for (what, changed) in faults_of_loop(kernel, inner) {
                    add(format!("loop {at}: {what}"), Statement::Loop(changed));
                }
                for (what, changed) in faults_of_body(kernel, &inner.body) {
                    let mut outer = inner.clone();
                    outer.body = changed;
                    add(format!("loop {at}: {what}"), Statement::Loop(outer));
                }
            }
        }
    }
    all
}

fn faults_of_loop(kernel: &Kernel, inner: &Loop) -> Vec<(String, Loop)> {
    let mut all = Vec::new();
    let tile = kernel.axes.get(&inner.axis).map_or(1, |a| a.tile) as i64;
    let mut add = |what: String, change: &dyn Fn(&mut Loop)| {
        let mut changed = inner.clone();
        change(&mut changed);
        all.push((what, changed));
    };
    add("first tile skipped".into(), &|l| {
        l.low.push(ir::Bound {
            entries: Vec::new(),
            terms: Vec::new(),
            offset: tile,
            divisor: 1,
        });
    });
    for n in 0..inner.low.len() {
        add(format!("low bound {n} a tile later"), &|l| {
            l.low[n].offset += tile
        });
        add(format!("low bound {n} dropped"), &|l| {
            l.low.remove(n);
        });
    }
    for n in 0..inner.high.len() {
        add(format!("high bound {n} a tile earlier"), &|l| {
            l.high[n].offset -= tile
        });
        add(format!("high bound {n} dropped"), &|l| {
            l.high.remove(n);
        });
    }
    for n in 0..inner.carries.len() {
        add(format!("carry {n} never updated"), &|l| {
            l.carries[n].next = l.carries[n].phi
        });
    }
    all
}

/// Operations that a slip might put in an operation's place.
fn replacements(op: MapOp) -> Vec<MapOp> {
    match op {
        MapOp::Add => vec![MapOp::Mul, MapOp::Max],
        MapOp::Mul => vec![MapOp::Add, MapOp::Div],
        MapOp::Div => vec![MapOp::Mul],
        MapOp::Max => vec![MapOp::Add],
        MapOp::Function(function) => {
            let others = Function::of(function.arity()).filter(|other| *other != function);
            others.map(MapOp::Function).collect()
        }
        MapOp::Select => Vec::new(),
    }
}

/// A different constant.
fn other(c: f64) -> f64 {
    if c.is_finite() { c + 1.0 } else { 0.0 }
}

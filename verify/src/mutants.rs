//! Small faults in tile programs, made systematically: what the checks of this crate are themselves checked with.

use crate::scalar::arity;
use ir::{Kernel, Loop, MapOp, ReduceOp, Statement, TileOp, TileProgram, ValueId};

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
            let with = |index: Vec<ir::Affine>, fill: f64| TileOp::Load {
                buffer: *buffer,
                index,
                fill,
            };
            for d in 0..index.len() {
                let mut moved = index.clone();
                moved[d].offset += 1;
                all.push((format!("index {d} one further"), with(moved, *fill)));
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
                all.push((format!("{to:?} for {op:?}"), TileOp::Map(*to, args.clone())));
            }
            if args.len() == arity(MapOp::Add) {
                for (n, arg) in args.iter().enumerate() {
                    // max(x, x) = x: the other operand is dropped.
                    if axes_of(arg) == Some(&value.axes) {
                        let alone = TileOp::Map(MapOp::Max, vec![*arg, *arg]);
                        all.push((format!("only operand {n} of {op:?}"), alone));
                    }
                }
            }
            if matches!(op, MapOp::Div) {
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
            let to = match op {
                ReduceOp::Sum => ReduceOp::Max,
                ReduceOp::Max => ReduceOp::Sum,
            };
            all.push((
                format!("{to:?} for {op:?}"),
                TileOp::Reduce {
                    op: to,
                    value: *value,
                    axes: axes.clone(),
                },
            ));
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
fn replacements(op: MapOp) -> &'static [MapOp] {
    match op {
        MapOp::Add => &[MapOp::Mul, MapOp::Max],
        MapOp::Mul => &[MapOp::Add, MapOp::Div],
        MapOp::Div => &[MapOp::Mul],
        MapOp::Max => &[MapOp::Add],
        MapOp::Exp => &[MapOp::Sqrt],
        MapOp::Log => &[MapOp::Sqrt],
        MapOp::Sqrt => &[MapOp::Exp],
        MapOp::Select => &[],
    }
}

/// A different constant.
fn other(c: f64) -> f64 {
    if c.is_finite() { c + 1.0 } else { 0.0 }
}

//! What machine programs take of a multiprocessor. Oracle of the registers: the assembler, in the tests of the root package; here stands what
//! follows from how long values live.

use crate::common::*;
use expect_test::{Expect, expect};
use ir::{Atom, Dtype, MapOp, Reject, TileProgram};
use tilewright_codegen::machine::{
    Among, Fragment, FragmentId, Function, Holds, Machine, Policy, RegionId, Source, Statement,
    Store, Sync,
};
use tilewright_codegen::machines;

fn lowered(tile: &TileProgram, atom: Atom, warps: [u32; 2], stages: u32) -> Machine {
    let schedule = schedule(tile, atom, warps, stages, &[]);
    let all: Result<Vec<Machine>, Reject> = machines(tile, &schedule, &target());
    all.expect("lowers").remove(0)
}

fn products(atom: Atom, warps: [u32; 2], stages: u32) -> Machine {
    let dtype = match atom {
        atoms::FMA | atoms::WGMMA_M64K8_TF32X3 => Dtype::F32,
        _ => Dtype::Bf16,
    };
    let tile = matmul(dtype, dtype, [512, 512, 512], [128, 128, 32], true);
    lowered(&tile, atom, warps, stages)
}

fn check(machine: &Machine, expected: Expect) {
    expected.assert_debug_eq(&machine.resources());
}

#[test]
fn of_a_row_norm() {
    let tile = row_norm(Dtype::Bf16, [64, 4096], 1, None);
    check(
        &lowered(&tile, atoms::FMA, [1, 4], 1),
        expect![[r#"
        Resources {
            threads: 128,
            shared_bytes: 16,
            barriers: 1,
            stage_barriers: 0,
            registers: 59,
            producer_registers: None,
        }
    "#]],
    );
}

#[test]
fn of_products_by_threads() {
    check(
        &products(atoms::FMA, [2, 4], 1),
        expect![[r#"
        Resources {
            threads: 256,
            shared_bytes: 33792,
            barriers: 1,
            stage_barriers: 0,
            registers: 126,
            producer_registers: None,
        }
    "#]],
    );
}

#[test]
fn of_products_by_warps() {
    check(
        &products(atoms::MMA_M16N8K16, [2, 2], 2),
        expect![[r#"
        Resources {
            threads: 128,
            shared_bytes: 40960,
            barriers: 1,
            stage_barriers: 0,
            registers: 211,
            producer_registers: None,
        }
    "#]],
    );
}

#[test]
fn of_products_by_warpgroups_and_a_ring() {
    check(
        &products(atoms::WGMMA_M64K16, [8, 1], 4),
        expect![[r#"
            Resources {
                threads: 384,
                shared_bytes: 82048,
                barriers: 1,
                stage_barriers: 10,
                registers: 92,
                producer_registers: Some(
                    12,
                ),
            }
        "#]],
    );
}

/// Accumulators twice, and the rows of a tile thrice.
#[test]
fn of_split_products_by_warpgroups() {
    check(
        &products(atoms::WGMMA_M64K8_TF32X3, [8, 1], 4),
        expect![[r#"
            Resources {
                threads: 384,
                shared_bytes: 213120,
                barriers: 16,
                stage_barriers: 8,
                registers: 193,
                producer_registers: Some(
                    18,
                ),
            }
        "#]],
    );
}

/// A fragment of the same shape as the accumulators, and its number.
fn another(machine: &mut Machine) -> (FragmentId, u64) {
    let like = machine.fragments.iter().max_by_key(|f| f.registers());
    let like = like.expect("a fragment").clone();
    let registers = like.registers();
    machine.fragments.push(Fragment {
        name: "more".into(),
        holds: Holds::Floats(like.layout()),
    });
    (FragmentId(machine.fragments.len() as u32 - 1), registers)
}

fn ones(to: FragmentId) -> Statement {
    Statement::Map {
        to,
        function: Function::Copy,
        args: vec![Source::Constant(1.0)],
    }
}

#[test]
fn what_nothing_reads_takes_nothing() {
    let mut machine = products(atoms::MMA_M16N8K16, [2, 2], 2);
    let before = machine.resources();
    let (more, _) = another(&mut machine);
    machine.body.insert(0, ones(more));
    assert_eq!(machine.resources(), before);
}

#[test]
fn what_lives_all_along_takes_its_registers() {
    let mut machine = products(atoms::MMA_M16N8K16, [2, 2], 2);
    let before = machine.resources();
    let (more, registers) = another(&mut machine);
    machine.body.insert(0, ones(more));
    // Twice: what is made for one use is made where that is.
    for _ in 0..2 {
        machine.body.push(Statement::Publish {
            region: RegionId(0),
            from: Source::Fragment(more),
            layout: machine.fragment(more).layout(),
            axes: ir::AxisSet::default(),
        });
    }
    let after = machine.resources();
    assert_eq!(after.registers, before.registers + registers);
    assert_eq!(after.shared_bytes, before.shared_bytes);
}

/// An element-wise step between a value and its only use takes no registers of its own.
#[test]
fn a_step_on_the_way_takes_nothing() {
    let mut machine = products(atoms::MMA_M16N8K16, [2, 2], 2);
    let before = machine.resources();
    let (more, _) = another(&mut machine);
    let Some(Statement::Store(store)) = machine.body.last_mut() else {
        panic!("a store is last: {machine}")
    };
    let from = std::mem::replace(&mut store.from, Source::Fragment(more));
    let step = Statement::Map {
        to: more,
        function: Function::Op(ir::MapOp::Add),
        args: vec![from, Source::Constant(1.0)],
    };
    machine.body.insert(machine.body.len() - 1, step);
    assert_eq!(machine.resources(), before);
}

#[test]
fn barriers_are_those_up_to_the_highest() {
    let mut machine = products(atoms::MMA_M16N8K16, [2, 2], 2);
    assert_eq!(machine.resources().barriers, 1);
    let barrier = Sync::Barrier(Among::Computing);
    machine.body.push(Statement::Sync(barrier));
    assert_eq!(machine.resources().barriers, 16);
}

/// A quotient has a factor for each divisor, and so for one divisor no more registers than a product.
#[test]
fn of_what_is_divided_by_one_value() {
    let tile = row_norm(Dtype::Bf16, [64, 4096], 1, None);
    let mut machine = lowered(&tile, atoms::FMA, [1, 4], 1);
    let before = machine.resources();
    let mut count = 0;
    for s in &mut machine.body {
        if let Statement::Map { function, .. } = s
            && *function == Function::Op(MapOp::Div)
        {
            *function = Function::Op(MapOp::Mul);
            count += 1;
        }
    }
    assert_eq!(count, 1);
    assert_eq!(machine.resources(), before);
}

/// What others may have written is not asked for before what stands in front of it is stored.
#[test]
fn of_a_load_behind_a_store() {
    let tile = row_norm(Dtype::Bf16, [64, 4096], 1, None);
    let mut machine = lowered(&tile, atoms::FMA, [1, 4], 1);
    let at = machine
        .body
        .iter()
        .rposition(|s| matches!(s, Statement::Load { .. }))
        .expect("a load of the weights");
    if let Statement::Load { policy, .. } = &mut machine.body[at] {
        *policy = Policy::Dependent;
    }
    let Some(Statement::Store(store)) = machine.body.last().cloned() else {
        panic!("a store is last: {machine}")
    };
    let before = machine.resources();
    let constant = Store {
        from: Source::Constant(0.0),
        ..*store
    };
    machine
        .body
        .insert(at, Statement::Store(Box::new(constant)));
    assert!(machine.resources().registers < before.registers);
}

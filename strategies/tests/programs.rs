//! Oracle: `Program::validate`, the text, and the finiteness of what programs compute.

use ir::{Dtype, Op, Program, Tensor, eval};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestError, TestRunner};
use std::collections::BTreeMap;
use tilewright_strategies::{cascades, large_programs, programs, runner};

/// What a strategy draws from a seed.
fn drawn(strategy: &impl Strategy<Value = Program>, count: usize) -> Vec<Program> {
    let mut runner = runner(0, 1);
    let mut one = || {
        strategy
            .new_tree(&mut runner)
            .expect("no choice is refused")
    };
    (0..count).map(|_| one().current()).collect()
}

/// Uniform in `-1 .. 1`, rounded to the dtypes.
fn inputs(program: &Program, runner: &mut TestRunner) -> Vec<Tensor> {
    let mut one = |dtype: Dtype| dtype.round(runner.rng().random_range(-1.0..1.0));
    let parameters = program.parameters().map(|(_, _, dtype, dims)| {
        let shape: Vec<usize> = program.shape(dims).iter().map(|e| *e as usize).collect();
        let data = (0..shape.iter().product()).map(|_| one(dtype)).collect();
        Tensor { shape, data }
    });
    parameters.collect()
}

fn assert_moderate(program: &Program, runner: &mut TestRunner) {
    assert_eq!(program.validate(), Ok(()), "{program}");
    assert_eq!(program.canonical(), *program);
    let results = eval(program, &inputs(program, runner)).expect("small");
    let mut data = results.iter().flat_map(|r| &r.data);
    assert!(data.all(|v| v.abs() < 1e4), "{program}");
}

#[test]
fn programs_are_valid_finite_round_trip_and_have_every_operation() {
    let all = drawn(&programs(), 600);
    assert_eq!(all[..50], drawn(&programs(), 50));
    let mut runner = runner(1, 1);
    let (mut operations, mut outputs) = (BTreeMap::new(), BTreeMap::new());
    let mut deep = 0;
    for program in all {
        assert_moderate(&program, &mut runner);
        let text = program.to_string();
        let again: Program = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again, program, "{text}");
        for node in &program.nodes {
            *operations.entry(node.op.row().name).or_insert(0) += 1;
        }
        *outputs.entry(program.outputs.len()).or_insert(0) += 1;
        deep += usize::from(program.nodes.len() > 15);
    }
    for row in ir::ops::rows() {
        let count = operations.get(row.name).copied().unwrap_or(0);
        assert!(count >= 20, "{}: {count}", row.name);
    }
    assert!(outputs.len() == 3 && deep > 50, "{outputs:?} {deep}");
}

/// Reductions follow on one another.
#[test]
fn cascades_are_valid_and_finite() {
    let all = drawn(&cascades(), 100);
    assert_eq!(all[..20], drawn(&cascades(), 20));
    let mut runner = runner(1, 1);
    let mut followed = 0;
    for program in all {
        assert_moderate(&program, &mut runner);
        let reduces = |op: &Op| matches!(op, Op::Reduce { .. } | Op::Dot { .. });
        let reductions = program.nodes.iter().filter(|n| reduces(&n.op));
        followed += usize::from(reductions.count() > 1);
    }
    assert!(followed > 80, "{followed}");
}

#[test]
fn large_programs_are_large_and_finite() {
    let all = drawn(&large_programs(), 24);
    assert_eq!(all[..4], drawn(&large_programs(), 4));
    let mut runner = runner(1, 1);
    let (mut nodes, mut outputs) = (0, 0);
    for program in all {
        assert_moderate(&program, &mut runner);
        nodes = nodes.max(program.nodes.len());
        outputs = outputs.max(program.outputs.len());
    }
    assert!(nodes > 200 && outputs == 8, "{nodes} {outputs}");
}

/// The smallest program of a strategy that has something in its text.
fn smallest(strategy: &impl Strategy<Value = Program>, has: fn(&str) -> bool) -> Program {
    let found = runner(0, 1000).run(strategy, |program| {
        prop_assert!(!has(&program.to_string()));
        Ok(())
    });
    match found {
        Err(TestError::Fail(_, program)) => program,
        Err(TestError::Abort(why)) => panic!("{why}"),
        Ok(()) => panic!("no program has it"),
    }
}

/// Oracle: programs that have little but what is asked for.
#[test]
fn what_fails_shrinks() {
    let exponential = smallest(&programs(), |text| text.contains("exp("));
    let text = "program random\nx = parameter f32 []\nreturn f32 [] exp(x)\n";
    assert_eq!(exponential.to_string(), text);

    let has = |text: &str| text.contains("fill") && text.contains("dot(");
    let both = smallest(&programs(), has);
    assert!(both.nodes.len() <= 4 && both.axes.len() <= 2, "{both}");

    let cascade = smallest(&cascades(), |text| text.matches("max(").count() > 1);
    let extents: Vec<u64> = cascade.axes.iter().map(|axis| axis.extent).collect();
    assert_eq!(extents, [1, 40, 1], "{cascade}");
    assert!(cascade.nodes.len() <= 8, "{cascade}");

    let large = smallest(&large_programs(), |text| text.contains("select("));
    assert!(large.nodes.len() <= 8, "{large}");
    assert!(large.axes.iter().all(|axis| axis.extent == 1), "{large}");
}

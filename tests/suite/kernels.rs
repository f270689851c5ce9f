//! Generated kernels, run on the CPU, against the reference: candidates of different structure under their first schedules.

use crate::kinds::{KINDS, program};
use crate::{emulator, offered, structure};
use ir::{Program, Target, TileProgram};
use rayon::prelude::*;
use verify::SimulateOptions;
use verify::inputs::{DISTRIBUTIONS, Distribution, draw_inputs};
use verify::tolerance::{Tolerance, baseline, compare};

/// How many candidates of different structure, how far to look for them, and schedules of the best.
const STRUCTURES: usize = 3;
const LOOKED_AT: usize = 40;
const SCHEDULES: usize = 2;

/// What all candidates of a program are compared with.
pub(crate) struct Case {
    pub(crate) program: Program,
    pub(crate) inputs: Vec<Vec<f64>>,
    tensors: Vec<ir::Tensor>,
    reference: Vec<ir::Tensor>,
    baseline: Vec<Vec<f64>>,
}

impl Case {
    pub(crate) fn new(program: Program) -> Self {
        Self::drawn(program, &DISTRIBUTIONS[0])
    }

    pub(crate) fn drawn(program: Program, distribution: &Distribution) -> Self {
        let inputs = draw_inputs(&program, distribution, 7);
        let tensors: Vec<ir::Tensor> = program
            .parameters()
            .zip(&inputs)
            .map(|((_, _, _, dims), data)| {
                let shape = program.shape(dims).iter().map(|e| *e as usize).collect();
                ir::Tensor::new(shape, data.clone()).expect("the shape of its data")
            })
            .collect();
        Self {
            reference: ir::eval(&program, &tensors).expect("a value"),
            baseline: baseline(&program, &inputs).expect("a value"),
            program,
            inputs,
            tensors,
        }
    }

    /// Why a tile program, interpreted in f64, is wrong.
    pub(crate) fn interpreted(&self, tile: &TileProgram) -> Option<String> {
        let got = match verify::simulate(tile, &self.tensors, SimulateOptions::default()) {
            Ok(got) => got,
            Err(error) => return Some(error.to_string()),
        };
        for (n, (got, want)) in got.iter().zip(&self.reference).enumerate() {
            let top = want.data.iter().fold(0.0f64, |top, x| top.max(x.abs()));
            for (at, (g, w)) in got.data.iter().zip(&want.data).enumerate() {
                let same = (g - w).abs() <= 1e-11 * top;
                if !same {
                    return Some(format!(
                        "interpreted, element {at} of output {n} is {g:e}, not {w:e}"
                    ));
                }
            }
        }
        None
    }

    /// Why a tile program under one of its schedules is wrong.
    pub(crate) fn fault(
        &self,
        tile: &TileProgram,
        schedule: &ir::Schedule,
        target: &Target,
    ) -> Option<String> {
        let cuda = match codegen::lower(tile, schedule, target) {
            Ok(cuda) => cuda,
            Err(reject) => return Some(format!("is not lowered: {reject}")),
        };
        self.judge(emulator::run(&cuda, tile, &self.inputs))
    }

    /// What is wrong with what a kernel gave under the different orders of threads.
    pub(crate) fn judge(&self, outcome: emulator::Outcome) -> Option<String> {
        let orders = match outcome {
            Ok(orders) => orders,
            Err(message) => return Some(message),
        };
        let bits = |outputs: &[Vec<f64>]| -> Vec<u64> {
            outputs.iter().flatten().map(|x| x.to_bits()).collect()
        };
        if orders.iter().any(|o| bits(o) != bits(&orders[0])) {
            return Some("the order of threads, or an address, changes a result".to_owned());
        }
        for (order, outputs) in orders.iter().enumerate() {
            for (n, output) in self.program.outputs.iter().enumerate() {
                let row = self.reference[n].shape.last().copied().unwrap_or(1);
                let judged = compare(
                    &outputs[n],
                    &self.reference[n].data,
                    &self.baseline[n],
                    row,
                    output.dtype,
                    Tolerance::default(),
                );
                if let Err(reject) = judged {
                    return Some(format!("order {order}, output {n}: {reject}"));
                }
            }
        }
        None
    }
}

/// The plainest candidate and those whose structure was not seen before.
pub(crate) fn different(program: &Program, target: &Target) -> Vec<TileProgram> {
    offered::different(
        offered::as_written(program, target).take(LOOKED_AT),
        STRUCTURES,
    )
}

#[test]
fn generated_kernels_compute_their_programs() {
    if !emulator::available() {
        return;
    }
    let target = search::targets::target("h200").expect("a known target");
    let mut work = Vec::new();
    for (name, text) in KINDS {
        let case = std::sync::Arc::new(Case::new(program(name, text)));
        let tiles = different(&case.program, &target);
        assert!(!tiles.is_empty(), "{name} has no candidate");
        for (n, tile) in tiles.into_iter().enumerate() {
            let schedules = search::schedules::schedules(&tile, &target);
            let count = if n == 1 { SCHEDULES } else { 1 };
            for schedule in schedules.into_iter().take(count) {
                work.push((*name, case.clone(), tile.clone(), schedule));
            }
        }
    }
    let faults: Vec<String> = work
        .par_iter()
        .filter_map(|(name, case, tile, schedule)| {
            case.fault(tile, schedule, &target)
                .map(|fault| format!("{name}: {fault}\n{schedule:?}\n{tile}"))
        })
        .collect();
    assert!(
        faults.is_empty(),
        "{} of {} are wrong:\n{}",
        faults.len(),
        work.len(),
        faults.join("\n")
    );
    assert!(
        work.len() > 2 * KINDS.len(),
        "only {} kernels ran",
        work.len()
    );
}

/// A fault made by hand must be seen, or the test above proves nothing.
#[test]
fn a_wrong_kernel_is_caught() {
    if !emulator::available() {
        return;
    }
    let target = search::targets::target("h200").expect("a known target");
    let (name, text) = KINDS[0];
    let case = Case::new(program(name, text));
    let tile = different(&case.program, &target)
        .into_iter()
        .find(|t| t.kernels.iter().any(|k| structure::loops(&k.body) > 0))
        .expect("a candidate with a loop");
    let schedule = &search::schedules::schedules(&tile, &target)[0];
    assert_eq!(case.fault(&tile, schedule, &target), None);
    let mut caught = 0;
    for k in 0..tile.kernels.len() {
        for v in 0..tile.kernels[k].values.len() {
            let mut wrong = tile.clone();
            if let ir::TileOp::Map(op, _) = &mut wrong.kernels[k].values[v].op {
                if *op == ir::MapOp::Mul {
                    *op = ir::MapOp::Add;
                } else if *op == ir::MapOp::Add {
                    *op = ir::MapOp::Mul;
                } else {
                    continue;
                }
                caught += usize::from(case.fault(&wrong, schedule, &target).is_some());
            }
            if caught > 1 {
                return;
            }
        }
    }
    panic!("only {caught} wrong kernels were caught");
}

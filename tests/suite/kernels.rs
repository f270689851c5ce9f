//! Generated kernels, run on the CPU, against the reference: candidates of different structure under their first schedules.

use crate::kinds::{KINDS, program};
use crate::{emulator, offered, structure};
use ir::{Program, Target, TileProgram};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use verify::SimulateOptions;
use verify::inputs::{DISTRIBUTIONS, Distribution, distributions, draw_inputs};
use verify::tolerance::{Limits, baseline, screen};
use verify::{DrawnInputs, KernelOptions, Machine, Ran, RunOptions, Stored, check_kernel};

/// How many candidates of different structure, how far to look for them, and schedules of the best.
const STRUCTURES: usize = 2;
const LOOKED_AT: usize = 40;
const SCHEDULES: usize = 2;

/// What all candidates of a program are compared with.
pub(crate) struct Case {
    pub(crate) inputs: Vec<Vec<f64>>,
    tensors: Vec<ir::Tensor>,
    reference: Vec<ir::Tensor>,
    baseline: Vec<Vec<f64>>,
    limits: Vec<Limits>,
}

impl Case {
    pub(crate) fn new(program: Program) -> Self {
        Self::drawn(program, &DISTRIBUTIONS[0])
    }

    pub(crate) fn drawn(program: Program, distribution: &Distribution) -> Self {
        let inputs = draw_inputs(&program, distribution, 7);
        let tensors = tensors(&program, &inputs);
        Self {
            reference: ir::eval(&program, &tensors).expect("a value"),
            baseline: baseline(&program, &inputs).expect("a value"),
            limits: Limits::of(&program, distribution.roundings),
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

    /// Why machine programs of a tile program are wrong: they compute something else than it says, or something else in another order.
    pub(crate) fn machine_fault(
        &self,
        tile: &TileProgram,
        machines: &[codegen::machine::Machine],
    ) -> Option<String> {
        let want = verify::simulate(tile, &self.tensors, SimulateOptions::default());
        let want = match want {
            Ok(want) => want,
            Err(error) => return Some(error.to_string()),
        };
        let got = match codegen::check::run(tile, machines, &self.inputs, 1) {
            Ok(got) => got,
            Err(fault) => return Some(fault.to_string()),
        };
        for (n, (got, want)) in got.iter().zip(&want).enumerate() {
            let finite = want.data.iter().filter(|x| x.is_finite());
            let top = finite.fold(0.0f64, |top, x| top.max(x.abs()));
            for (at, (g, w)) in got.iter().zip(&want.data).enumerate() {
                let near = (g - w).abs() <= 1e-9 * top + 1e-12;
                if !near && g != w && !(g.is_nan() && w.is_nan()) {
                    return Some(format!(
                        "the machine program's element {at} of output {n} is {g:e}, the tile program's {w:e}"
                    ));
                }
            }
        }
        None
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
            for (n, limits) in self.limits.iter().enumerate() {
                let row = self.reference[n].shape.last().copied().unwrap_or(1);
                let (reference, baseline) = (&self.reference[n].data, &self.baseline[n]);
                let judged = screen(&outputs[n], reference, baseline, row, *limits);
                if let Err(reject) = judged {
                    return Some(format!("order {order}, output {n}: {reject}"));
                }
            }
        }
        None
    }
}

fn tensors(program: &Program, inputs: &[Vec<f64>]) -> Vec<ir::Tensor> {
    let parameters = program.parameters().zip(inputs);
    parameters
        .map(|((_, _, _, dims), data)| {
            let shape = program.shape(dims).iter().map(|e| *e as usize).collect();
            ir::Tensor::new(shape, data.clone()).expect("the shape of its data")
        })
        .collect()
}

/// The plainest candidate of a kind and those whose structure was not seen before, for an H200; searched for once. Not for threads of a
/// pool: who waits there for the search may be who has to do it.
pub(crate) fn different(kind: &str) -> &'static [TileProgram] {
    static FOUND: LazyLock<BTreeMap<&str, Vec<TileProgram>>> = LazyLock::new(|| {
        let target = search::targets::target("h200").expect("a known target");
        let search = |(name, text): &(&'static str, &str)| {
            let program = program(name, text);
            let all = offered::as_written(&program, &target).take(LOOKED_AT);
            (*name, offered::different(all, STRUCTURES))
        };
        KINDS.par_iter().map(search).collect()
    });
    &FOUND[kind]
}

/// Faults of machine programs, for tile programs of different structure under the first schedules that are offered for them.
#[test]
fn machine_programs_compute_what_their_tile_programs_say() {
    let target = search::targets::target("h200").expect("a known target");
    let subjects: Vec<(&str, &TileProgram, Case)> = KINDS
        .iter()
        .flat_map(|(name, text)| {
            different(name)
                .iter()
                .map(|tile| (*name, tile, Case::new(program(name, text))))
        })
        .collect();
    let reads = |tile: &TileProgram| tile.kernels.iter().any(|k| !k.entries().is_empty());
    assert!(
        different("computed_place").iter().any(reads),
        "no bound reads a computed place"
    );
    let goes_along_collapsed = |tile: &TileProgram| {
        let mut axes = tile.kernels.iter().flat_map(|k| k.axes.keys());
        axes.any(|a| tile.collapsed.contains_key(a))
    };
    assert!(
        different("collapsed").iter().all(goes_along_collapsed),
        "no axes are collapsed"
    );
    let faults = |(name, tile, case): &(&str, &TileProgram, Case)| -> (usize, Vec<String>) {
        let (mut count, mut faults) = (0, Vec::new());
        for schedule in search::schedules::schedules(tile, &target)
            .into_iter()
            .take(3)
        {
            if let Ok(machines) = codegen::machines(tile, &schedule, &target) {
                count += 1;
                let fault = case.machine_fault(tile, &machines);
                faults.extend(fault.map(|f| format!("{name}: {f}\n{schedule:?}\n{tile}")));
            }
        }
        (count, faults)
    };
    let all: Vec<(usize, Vec<String>)> = subjects.par_iter().map(faults).collect();
    let count: usize = all.iter().map(|(count, _)| count).sum();
    let faults: Vec<&String> = all.iter().flat_map(|(_, faults)| faults).collect();
    assert!(
        faults.is_empty(),
        "{} of {count}: {}",
        faults.len(),
        faults[0]
    );
    assert!(count >= 80, "{count} machine programs");
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
        let tiles = different(name);
        assert!(!tiles.is_empty(), "{name} has no candidate");
        for (n, tile) in tiles.iter().enumerate() {
            let schedules = search::schedules::schedules(tile, &target);
            let count = if n == 1 { SCHEDULES } else { 1 };
            for schedule in schedules.into_iter().take(count) {
                work.push((*name, case.clone(), tile, schedule));
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

/// A generated kernel on the emulator, as the check sees it.
struct Emulated<'a> {
    program: &'a Program,
    built: emulator::Built<'a>,
}

impl Machine for Emulated<'_> {
    fn subject(&self) -> String {
        "emulated".to_owned()
    }

    fn reference(&mut self, inputs: &DrawnInputs) -> Result<Vec<Vec<f64>>, ir::Reject> {
        let tensors = tensors(self.program, inputs);
        let found = ir::eval(self.program, &tensors).expect("a value");
        Ok(found.into_iter().map(|t| t.data).collect())
    }
    fn baseline(&mut self, inputs: &DrawnInputs) -> Result<Vec<Vec<f64>>, ir::Reject> {
        Ok(baseline(self.program, inputs).expect("a value"))
    }
    fn run(&mut self, inputs: &DrawnInputs, _: RunOptions) -> Result<Ran, ir::Reject> {
        let orders = self.built.run(inputs, 0).map_err(ir::Reject::Fault)?;
        let found = orders.into_iter().next().unwrap_or_default();
        let kinds = self.program.outputs.iter().map(|o| o.dtype);
        Ok(Ran {
            outputs: kinds.zip(&found).map(|(d, x)| Stored::of(d, x)).collect(),
            ..Ran::default()
        })
    }
}

/// The check refuses no generated kernel, on whatever inputs it draws.
#[test]
fn the_check_refuses_no_generated_kernel() {
    if !emulator::available() {
        return;
    }
    let target = search::targets::target("h200").expect("a known target");
    let work: Vec<(&str, Program, &TileProgram)> = KINDS
        .iter()
        .filter(|(name, _)| *name != "long_softmax")
        .step_by(2)
        .map(|(name, text)| {
            let program = program(name, text);
            // The least plain one of every other kind: each is run on every distribution, which takes long.
            let tile = different(name).last();
            (*name, program, tile.expect("a candidate"))
        })
        .collect();
    let refused: Vec<String> = work
        .par_iter()
        .filter_map(|(name, program, tile)| {
            let schedule = &search::schedules::schedules(tile, &target)[0];
            let cuda = codegen::lower(tile, schedule, &target).expect("a kernel");
            let built = emulator::Built::new(&cuda.source, &emulator::calls(&cuda), tile);
            let mut emulated = Emulated {
                program,
                built: built.expect("a kernel that compiles"),
            };
            match check_kernel(&mut emulated, program, &KernelOptions::new(3)) {
                Ok(evidence) => {
                    let drawn = evidence.distributions.len();
                    assert_eq!(drawn, distributions(program).count(), "{name}");
                    None
                }
                Err(reject) => Some(format!("{name}: {reject}\n{tile}")),
            }
        })
        .collect();
    assert!(
        refused.is_empty(),
        "{} of {} are refused:\n{}",
        refused.len(),
        work.len(),
        refused.join("\n")
    );
    assert!(work.len() > 7, "only {} kernels", work.len());
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
    let tile = different(name)
        .iter()
        .find(|t| t.kernels.iter().any(|k| structure::loops(&k.body) > 0))
        .expect("a candidate with a loop");
    let schedule = &search::schedules::schedules(tile, &target)[0];
    assert_eq!(case.fault(tile, schedule, &target), None);
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

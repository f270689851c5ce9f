//! What candidates of a program are verified by, kept from one to the next: of a seed it is always the same.

use super::parts::{COMPARED, Parts};
use super::reference::Chain;
use super::stocks::Stocks;
use device::gpu::Gpu;
use device::session::Stock;
use ir::{Program, Reject};
use std::collections::{BTreeMap, BTreeSet};
use verify::kernel::{KernelOptions, draws};
use verify::{Draw, DrawnInputs};

/// What is kept at most, in bytes: of inputs, here and on the GPU, and of results.
pub(super) const KEPT: u64 = 4 << 30;

/// What a candidate is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Yardstick {
    Reference,
    Baseline,
}

/// Inputs on the GPU, and what the reference and the baseline make of them.
#[derive(Default)]
pub(super) struct Prepared {
    stocks: Stocks,
    outputs: BTreeMap<(Yardstick, Vec<Draw>), Vec<Vec<f64>>>,
    keeps: bool,
}

/// Whether there is room for what a program is verified by.
pub(super) fn fits(program: &Program) -> bool {
    let mut bytes: u64 = 0;
    let mut seen = BTreeSet::new();
    let outputs = program.outputs.iter().map(|output| {
        let shape = program.shape(&output.dims);
        let row = shape.last().copied().unwrap_or(1);
        Parts::of(shape.iter().product(), row, COMPARED).elements()
    });
    let both = 2 * 8 * outputs.sum::<u64>();
    for (inputs, is_compared) in draws(program, &KernelOptions::new(0)) {
        for (draw, (_, _, dtype, dims)) in inputs.draws().zip(program.parameters()) {
            if seen.insert(draw) {
                bytes += program.shape(dims).iter().product::<u64>() * dtype.bytes();
            }
        }
        bytes += if is_compared { both } else { 0 };
    }
    bytes <= KEPT
}

impl Prepared {
    /// Nothing yet, of a program.
    pub(super) fn new(program: &Program) -> Self {
        let keeps = fits(program);
        Self {
            stocks: Stocks::new(keeps),
            outputs: BTreeMap::new(),
            keeps,
        }
    }

    /// Whether anything is kept.
    pub(super) fn keeps(&self) -> bool {
        self.keeps
    }

    /// A program's parameters on the GPU.
    pub(super) fn stocks(
        &mut self,
        gpu: &Gpu,
        program: &Program,
        inputs: &DrawnInputs,
    ) -> Result<Vec<&Stock>, Reject> {
        self.stocks.of(gpu, program, inputs)
    }

    /// Frees what is on the GPU: a candidate may have written there.
    pub(super) fn forget_inputs(&mut self) {
        self.stocks.clear();
    }

    /// What a chain makes of inputs; it is run where that is not known.
    pub(super) fn outputs(
        &mut self,
        gpu: &Gpu,
        program: &Program,
        (yardstick, chain, parts): (Yardstick, &Chain, &[Parts]),
        inputs: &DrawnInputs,
    ) -> Result<Vec<Vec<f64>>, Reject> {
        let key = (yardstick, inputs.draws().collect());
        if let Some(known) = self.outputs.get(&key) {
            return Ok(known.clone());
        }
        let made = chain.outputs(gpu, program, &self.stocks.of(gpu, program, inputs)?, parts)?;
        if self.keeps {
            self.outputs.insert(key, made.clone());
        }
        Ok(made)
    }
}

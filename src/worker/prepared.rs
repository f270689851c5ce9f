//! What candidates of a program are verified by, kept from one to the next: of a seed it is always the same.

use super::Loaded;
use super::parts::{COMPARED, Parts};
use super::reference::Chain;
use super::stocks::Stocks;
use device::gpu::Gpu;
use device::session::Stock;
use ir::{Program, Reject};
use std::collections::{BTreeMap, BTreeSet};
use verify::kernel::{KernelOptions, draws};
use verify::{Draw, DrawnInputs};

/// What is kept at most, in bytes: inputs on the GPU, of which the host has a copy, and results.
const KEPT: u64 = 4 << 30;

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
    /// What is kept takes so many bytes; none where nothing is.
    bytes: Option<u64>,
    /// All that can be made before the first candidate is.
    is_made: bool,
}

/// How many bytes what a program is verified by takes, if there is room for it.
pub(super) fn kept(program: &Program) -> Option<u64> {
    // Inputs of more weight, which few candidates meet.
    let mut bytes = 2 * program.input_bytes();
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
    (bytes <= KEPT).then_some(bytes)
}

impl Prepared {
    /// Nothing yet, of a program.
    pub(super) fn new(program: &Program) -> Self {
        let bytes = kept(program);
        Self {
            stocks: Stocks::new(bytes.is_some()),
            bytes,
            ..Self::default()
        }
    }

    /// What is kept takes so many bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(0)
    }

    /// Makes all that candidates have in common, where that is kept: before a candidate that is to be verified runs. Where it cannot be made nothing is kept.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub(super) fn make(&mut self, gpu: &Gpu, loaded: &Loaded) -> Result<(), Reject> {
        if self.bytes.is_none() || self.is_made {
            return Ok(());
        }
        // What was there may have been written to.
        self.stocks.clear();
        let made = self.make_all(gpu, loaded);
        match made {
            Ok(()) => self.is_made = true,
            Err(_) => *self = Self::default(),
        }
        made
    }

    fn make_all(&mut self, gpu: &Gpu, loaded: &Loaded) -> Result<(), Reject> {
        let program = &loaded.setting.program;
        for (inputs, is_compared) in draws(program, &loaded.options()) {
            let stocks = self.stocks.of(gpu, program, &inputs)?;
            if is_compared {
                for (yardstick, chain, parts) in [loaded.reference(), loaded.baseline()] {
                    let made = chain.outputs(gpu, program, &stocks, parts)?;
                    let key = (yardstick, inputs.draws().collect());
                    self.outputs.insert(key, made);
                }
            }
        }
        Ok(())
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

    /// What a chain makes of inputs; it is run where that is not known, on inputs that no candidate can have written to.
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
        if self.bytes.is_some() {
            self.stocks.clear();
        }
        chain.outputs(gpu, program, &self.stocks.of(gpu, program, inputs)?, parts)
    }
}

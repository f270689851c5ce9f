//! Inputs that are on the GPU already: what was drawn once goes there once, however many kernels read it.

use super::fault;
use device::gpu::Gpu;
use device::gpu_error::GpuError;
use device::session::{Data, Stock};
use ir::{Dim, Dtype, Program, Reject};
use std::collections::BTreeMap;
use verify::{Draw, DrawnInputs};

/// Tensors on the GPU.
#[derive(Default)]
pub(super) struct Stocks {
    held: BTreeMap<Draw, Stock>,
    /// Whether all of them are kept, and not those alone that were asked for last.
    keeps: bool,
}

impl Stocks {
    /// None yet.
    pub(super) fn new(keeps: bool) -> Self {
        Self {
            held: BTreeMap::new(),
            keeps,
        }
    }

    /// What a program's parameters are, one stock each. Those that are held are neither drawn nor uploaded again; what is no longer asked for, and is not
    /// kept, is freed before anything else is made.
    pub(super) fn of(
        &mut self,
        gpu: &Gpu,
        program: &Program,
        inputs: &DrawnInputs,
    ) -> Result<Vec<&Stock>, Reject> {
        let draws: Vec<Draw> = inputs.draws().collect();
        if !self.keeps {
            self.held.retain(|draw, _| draws.contains(draw));
        }
        for ((n, draw), (_, _, dtype, dims)) in draws.iter().enumerate().zip(program.parameters()) {
            if !self.held.contains_key(draw) {
                let made = stock(gpu, program, (dtype, dims), &inputs.tensor(n))?;
                self.held.insert(*draw, made);
            }
        }
        Ok(draws.iter().map(|draw| &self.held[draw]).collect())
    }

    /// Frees all of them.
    pub(super) fn clear(&mut self) {
        self.held.clear();
    }
}

/// What a program's parameters are, one stock each.
pub(super) fn stocks(
    gpu: &Gpu,
    program: &Program,
    inputs: &DrawnInputs,
) -> Result<Vec<Stock>, Reject> {
    let all = program.parameters().enumerate();
    all.map(|(n, (_, _, dtype, dims))| stock(gpu, program, (dtype, dims), &inputs.tensor(n)))
        .collect()
}

fn stock(
    gpu: &Gpu,
    program: &Program,
    (dtype, dims): (Dtype, &[Dim]),
    values: &[f64],
) -> Result<Stock, Reject> {
    let bytes = program.shape(dims).iter().product::<u64>() * dtype.bytes();
    let made = data(dtype, values, bytes).and_then(|data| Stock::new(gpu, data));
    made.map_err(|e| fault(&e))
}

/// Values as so many bytes of a dtype hold them, repeated from the start where they are fewer.
pub(super) fn data(dtype: Dtype, values: &[f64], bytes: u64) -> Result<Data, GpuError> {
    Data::repeated(dtype.encode(values), bytes)
}

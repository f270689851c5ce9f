//! Inputs that are on the GPU already: what was drawn once goes there once, however many kernels read it.

use super::fault;
use device::gpu::Gpu;
use device::gpu_error::GpuError;
use device::session::{Data, Stock};
use ir::{Dtype, Program, Reject};
use std::collections::BTreeMap;
use verify::DrawnInputs;

/// The tensors that were asked for last.
#[derive(Default)]
pub(super) struct Stocks {
    /// The number of each: [`DrawnInputs::numbers`].
    numbers: Vec<u64>,
    held: Vec<Stock>,
}

impl Stocks {
    /// What a program's parameters are, one stock each. Those that are held are not uploaded again, and what is no longer asked for is
    /// freed before anything else is made.
    pub(super) fn of(
        &mut self,
        gpu: &Gpu,
        program: &Program,
        inputs: &DrawnInputs,
    ) -> Result<&[Stock], Reject> {
        let known = std::mem::take(&mut self.numbers).into_iter();
        let mut known: BTreeMap<u64, Stock> = known.zip(self.held.drain(..)).collect();
        known.retain(|number, _| inputs.numbers().contains(number));
        for ((number, values), (_, _, dtype, dims)) in
            (inputs.numbers().iter().zip(inputs.iter())).zip(program.parameters())
        {
            let stock = match known.remove(number) {
                Some(stock) => stock,
                None => {
                    let bytes = program.shape(dims).iter().product::<u64>() * dtype.bytes();
                    let made = data(dtype, values, bytes).and_then(|data| Stock::new(gpu, data));
                    made.map_err(|e| fault(&e))?
                }
            };
            self.numbers.push(*number);
            self.held.push(stock);
        }
        Ok(&self.held)
    }

    /// The same ones again.
    pub(super) fn held(&self) -> &[Stock] {
        &self.held
    }
}

/// Values as so many bytes of a dtype hold them, repeated from the start where they are fewer.
pub(super) fn data(dtype: Dtype, values: &[f64], bytes: u64) -> Result<Data, GpuError> {
    Data::repeated(dtype.encode(values), bytes)
}

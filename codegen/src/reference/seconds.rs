//! How long the chain takes, before it is run: bytes and operations of each launch over rates.

use super::{ReferenceMode, ReferenceProgram};
use crate::functions;
use ir::{MapOp, Target};
use serde::{Deserialize, Serialize};

/// What a launch has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Bytes read and written: each buffer once.
    pub bytes: f64,
    /// Arithmetic outside products, in additions.
    pub flops: f64,
    /// Arithmetic of products in tiles: two for each pair, what lies past the edges of tiles too.
    pub product_flops: f64,
}

/// How fast a GPU does it. These are predictions until they have been measured: `tilewright gpu-reference` prints both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes of memory a second.
    pub bytes: f64,
    /// Additions a second outside products.
    pub flops: f64,
    /// Flops a second of products in tiles.
    pub product_flops: f64,
    /// Seconds of a launch beside: memory is found and filled for what it writes, and the host waits for it.
    pub launch: f64,
}

/// Which part of the peak products in tiles reach; other arithmetic, with its index computations; memory.
const PRODUCTS: f64 = 0.4;
const OTHERS: f64 = 0.25;
const MEMORY: f64 = 0.5;
/// Seconds of one launch beside its work.
const LAUNCH: f64 = 1e-3;

impl Rates {
    /// Of a GPU in a mode.
    pub fn of(target: &Target, mode: ReferenceMode) -> Self {
        // f64 pipes of an SM, in fused operations a clock (CUDA programming guide, arithmetic throughput).
        let double: f64 = match target.capability {
            80 => 32.0,
            90 | 100 => 64.0,
            _ => 2.0,
        };
        let double = 2.0 * double * f64::from(target.sms) * target.clock_ghz * 1e9;
        let single = target.f32_tflops * 1e12;
        let peak = match mode {
            ReferenceMode::Exact => double,
            ReferenceMode::Careful | ReferenceMode::Dithered => single,
        };
        Self {
            bytes: target.memory_tb_s * 1e12 * MEMORY,
            flops: peak * OTHERS,
            product_flops: peak * PRODUCTS,
            launch: LAUNCH,
        }
    }
}

/// How many additions an operation is worth.
pub(super) fn weight(op: MapOp) -> f64 {
    functions::row(op).library_work
}

impl ReferenceProgram {
    /// How long the chain takes on a GPU, in slabs of `count` coordinates: for each launch what is slowest of it, and again in each
    /// slab what does not depend on the slab. Inputs and outputs are on the GPU.
    pub fn seconds(&self, target: &Target, count: u64) -> f64 {
        let rates = Rates::of(target, self.mode);
        let extent = self.slab.map_or(1, |s| s.1);
        let slabs = extent.div_ceil(count.max(1)) as f64;
        let launches = self.launches.iter().map(|l| {
            let bytes = l.work.bytes / rates.bytes;
            let arithmetic =
                l.work.flops / rates.flops + l.work.product_flops / rates.product_flops;
            let again = if l.slabbed() { 1.0 } else { slabs };
            bytes.max(arithmetic) * again + rates.launch * slabs
        });
        launches.sum()
    }
}

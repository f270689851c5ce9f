//! From tile programs to CUDA.

mod access;
mod atoms;
mod cuda;
pub mod layout;
mod lower;
mod plan;
pub mod reference;

pub use lower::{KERNELS_MARK, lower};
pub use reference::{ReferenceMode, ReferenceProgram, reference};

use ir::BufferId;
use serde::{Deserialize, Serialize};

/// How one kernel is launched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The `extern "C"` entry point.
    pub entry: String,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The kernel's arguments: one pointer a buffer, in this order, and nothing else.
    pub arguments: Vec<BufferId>,
}

/// CUDA for a whole tile program: one translation unit, header-free, and its launches in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaProgram {
    /// The text that NVRTC compiles.
    pub source: String,
    /// In launch order.
    pub launches: Vec<Launch>,
}

//! From tile programs to CUDA.

mod access;
mod apply;
pub mod atoms;
mod axes;
pub mod check;
pub mod clock;
mod cuda;
mod families;
mod functions;
pub mod layout;
pub mod machine;
pub mod passes;
mod plain;
mod plan;
mod print;
pub mod reference;
mod resources;

pub use access::Access;
pub use apply::{kernel_machine, lower, machines};
pub use passes::language;
pub use plain::exponents;
pub use print::KERNELS_MARK;
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
    /// The kernel's arguments: one pointer a buffer, in this order, then one to the split-K workspace if it has one, then the maps.
    pub arguments: Vec<BufferId>,
    /// What the hardware copies in boxes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<TensorMap>,
    /// Where its blocks wait for each other.
    pub split_workspace: SplitWorkspace,
    /// Whether it may be launched so that it begins before the launch in front of it has ended: it waits for that by itself.
    pub overlaps: bool,
}

/// Memory in which the blocks of a launch wait for each other, aligned to 256 bytes. No two launches may use one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitWorkspace {
    /// Its size in bytes; 0 where no block waits, and then it is no argument.
    pub bytes: u64,
    /// Its first bytes, which must be 0 before a launch and are 0 again after it. The others may hold anything.
    pub counters: u64,
    /// Blocks that must find room on the GPU at the same time: more than it has room for would wait forever.
    pub together: u64,
}

/// A buffer of elements of two bytes as a tensor of up to five dimensions that the hardware copies boxes of into shared memory:
/// the driver makes 128 bytes of it (`cuTensorMapEncodeTiled`), which are an argument of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMap {
    /// Where the elements are.
    pub buffer: BufferId,
    /// Where in the buffer the first one is, in bytes.
    pub offset: u64,
    /// Elements along each dimension, innermost first.
    pub extents: Vec<u64>,
    /// Bytes from one element to the next along each dimension but the innermost, where they are neighbours.
    pub strides: Vec<u64>,
    /// Elements of a box along each dimension. What of it lies outside the tensor is filled with zeros.
    pub sizes: Vec<u32>,
    /// Bytes of a line of the box in shared memory, along which chunks of 16 are permuted: 32, 64 or 128.
    pub line_bytes: u32,
}

/// CUDA for a whole tile program, header-free, and its launches in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaProgram {
    /// All kernels in one text, below comments that say where it comes from: for people, and for whoever wants all of it in one translation unit.
    pub source: String,
    /// What is compiled: for each launch a translation unit of its kernel alone, with the device functions that it calls. Kernels are compiled beside
    /// each other, and one that another candidate has at the same place is compiled already. Without a word of its origin: equal for tile programs and schedules that come
    /// to the same.
    pub units: Vec<String>,
    /// In launch order.
    pub launches: Vec<Launch>,
}

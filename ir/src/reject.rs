//! Why a point of the search space is not a candidate. Rejects are values: they are counted and shown.

use serde::{Deserialize, Serialize};

/// A reason, with the numbers that a reader needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum Reject {
    /// The tiles do not fit shared memory.
    #[error("shared memory: {need} bytes needed, {have} available")]
    SharedMemory {
        /// Bytes needed.
        need: u64,
        /// Bytes that a block may have.
        have: u64,
    },
    /// The accumulators and fragments do not fit the register file.
    #[error("registers: about {need} a thread needed, {have} available")]
    Registers {
        /// Registers a thread, estimated or reported by the assembler.
        need: u64,
        /// Registers that a thread may have.
        have: u64,
    },
    /// The assembler spilled registers to local memory.
    #[error("spills: {bytes} bytes of local memory")]
    Spills {
        /// Bytes spilled or on the stack.
        bytes: u64,
    },
    /// An axis assignment that cannot be built into a tile program.
    #[error("assignment: {0}")]
    Assignment(String),
    /// A schedule that does not suit its kernel (an atom whose shape or dtype does not fit, too many warps).
    #[error("schedule: {0}")]
    Schedule(String),
    /// A schedule that was given speaks of other kernels or values than the tile program has.
    #[error("other tiling: the schedule is of another tile program\n{0}")]
    OtherTiling(String),
    /// The target lacks the instruction.
    #[error("target: {0}")]
    Target(String),
    /// A grid that the hardware does not launch.
    #[error("grid: {0}")]
    Grid(String),
    /// More work than the best candidate by the model.
    #[error("bound: at least {bound_us:.1} us, the best has {best_us:.1} us")]
    Bound {
        /// Lower bound of this point.
        bound_us: f64,
        /// The incumbent.
        best_us: f64,
    },
    /// The compiler refused the text: a defect of the generator.
    #[error("compiler: {0}")]
    Compiler(String),
    /// One kernel of a candidate is to blame: the same beside others will be too.
    #[error("kernel {kernel}: {reject}")]
    InKernel {
        /// Its place in the tile program.
        kernel: usize,
        /// What is wrong with it.
        reject: Box<Reject>,
    },
    /// A form of the program, or a tiling, that loses to rounding or overflow what the program itself keeps.
    #[error("fragile: {0}")]
    Fragile(String),
    /// The candidate computed something else.
    #[error("wrong: {0}")]
    Wrong(String),
    /// The candidate could not be compared with the program.
    #[error("undecided: {0}")]
    Undecided(String),
    /// The candidate faulted, hung or lost its worker.
    #[error("fault: {0}")]
    Fault(String),
}

impl Reject {
    /// The key under which it is counted.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SharedMemory { .. } => "shared_memory",
            Self::Registers { .. } => "registers",
            Self::Spills { .. } => "spills",
            Self::Assignment(_) => "assignment",
            Self::Schedule(_) => "schedule",
            Self::OtherTiling(_) => "other_tiling",
            Self::Target(_) => "target",
            Self::Grid(_) => "grid",
            Self::Bound { .. } => "bound",
            Self::Compiler(_) => "compiler",
            Self::InKernel { reject, .. } => reject.reason(),
            Self::Fragile(_) => "fragile",
            Self::Wrong(_) => "wrong",
            Self::Undecided(_) => "undecided",
            Self::Fault(_) => "fault",
        }
    }
}

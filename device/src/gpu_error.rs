//! Why something did not happen on a GPU.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Why something did not happen on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum GpuError {
    /// There is no driver, or it is too old.
    #[error("no GPU: the NVIDIA driver's library cannot be opened: {reason}")]
    NoDriver {
        /// The loader's words.
        reason: String,
    },
    /// There is a driver but not that many devices.
    #[error("no GPU: device {ordinal} was asked for, and there are {count}")]
    NoDevice {
        /// Which one.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A function of the driver returned an error.
    #[error("{call} failed: {name} ({code})")]
    Call {
        /// The function.
        call: String,
        /// Its code.
        code: i32,
        /// The driver's name for the code.
        name: String,
    },
    /// The same, while preparing or running a kernel.
    #[error("kernel `{entry}`: {error}")]
    Kernel {
        /// Its entry point.
        entry: String,
        /// What happened.
        error: Box<GpuError>,
    },
    /// A kernel keeps variables in memory, although it should not.
    #[error("kernel `{entry}` uses {bytes} bytes of local memory a thread")]
    LocalMemory {
        /// Its entry point.
        entry: String,
        /// How much, a thread.
        bytes: u32,
    },
    /// The launches and buffers do not fit together, or not the cubin.
    #[error("{reason}")]
    Plan {
        /// What does not fit.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
}

impl GpuError {
    pub(crate) fn plan(reason: String) -> Self {
        Self::Plan { reason }
    }

    /// Whether the process can do nothing more on the GPU: after an illegal address, an illegal instruction and the like the
    /// driver returns the same code for ever.
    pub fn is_sticky(&self) -> bool {
        match self {
            // CUDA_ERROR_ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT .. LAUNCH_FAILED, the hardware's errors and UNKNOWN (cuda.h).
            Self::Call { code, .. } => {
                matches!(code, 214 | 220 | 700 | 702 | 710 | 713..=719 | 999)
            }
            Self::Kernel { error, .. } => error.is_sticky(),
            Self::NoDriver { .. }
            | Self::NoDevice { .. }
            | Self::LocalMemory { .. }
            | Self::Plan { .. }
            | Self::File { .. } => false,
        }
    }
}

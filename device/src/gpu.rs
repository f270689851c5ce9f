//! A GPU: whether there is one, and what it is.

use std::path::PathBuf;
use std::rc::Rc;

use cudarc::driver::sys::CUdevice_attribute;
use serde::{Deserialize, Serialize};

use crate::driver_ffi::{Context, Pinned};
use std::cell::RefCell;

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

/// Which GPU, and through which driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSettings {
    /// The device's index, as the driver counts.
    pub ordinal: u32,
    /// The driver's library, if not the system's.
    pub driver: Option<PathBuf>,
}

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Its product name.
    pub name: String,
    /// Identifies this very device, in the form `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub uuid: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Device memory.
    pub memory_bytes: u64,
    /// The second-level cache.
    pub l2_bytes: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The most shared memory that a block can ask for.
    pub shared_bytes: u32,
    /// The driver's CUDA version, times 1000.
    pub driver_version: u32,
}

/// An opened GPU, for the thread that opened it.
pub struct Gpu {
    pub(crate) context: Rc<Context>,
    /// What is read back goes through it; made when it is first needed.
    pub(crate) staging: Rc<RefCell<Option<Pinned>>>,
    info: GpuInfo,
}

impl Gpu {
    /// Opens a device of the system's driver.
    pub fn open(ordinal: u32) -> Result<Self, GpuError> {
        Self::open_with(&GpuSettings {
            ordinal,
            driver: None,
        })
    }

    /// Opens a device, which becomes the current one of this thread: a thread uses the GPU that it opened last.
    pub fn open_with(settings: &GpuSettings) -> Result<Self, GpuError> {
        use CUdevice_attribute as Attribute;
        let context = Context::open(settings.driver.as_deref(), settings.ordinal)?;
        let info = GpuInfo {
            name: context.name()?,
            uuid: uuid_text(context.uuid()?),
            capability: (
                context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory_bytes: context.memory_bytes()?,
            l2_bytes: u64::from(context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            multiprocessors: context
                .attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes: context
                .attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            driver_version: u32::try_from(context.driver_version()?).unwrap_or(0),
        };
        Ok(Self {
            context,
            staging: Rc::default(),
            info,
        })
    }

    /// What it is.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

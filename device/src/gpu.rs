//! A GPU: whether there is one, and what it is.

use std::path::PathBuf;
use std::rc::Rc;

use cudarc::driver::sys::CUdevice_attribute;
use serde::{Deserialize, Serialize};

use crate::driver_ffi::{Context, Pinned};
use crate::gpu_error::GpuError;
use crate::telemetry::Sensors;
use std::cell::RefCell;
use std::fmt;

/// Which GPU, and through which driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSettings {
    /// The device's index, as the driver counts.
    pub ordinal: u32,
    /// The driver's library, if not the system's.
    pub driver: Option<PathBuf>,
    /// NVML's library, if not the system's.
    pub nvml: Option<PathBuf>,
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
    /// The driver's own version, such as `580.95.05`, if NVML is there to say it.
    #[serde(default)]
    pub driver: Option<String>,
    /// What the board may draw, in milliwatts, if NVML is there to say it.
    #[serde(default)]
    pub power_limit_mw: Option<u32>,
    /// How many devices the driver has, this one included.
    #[serde(default)]
    pub devices: u32,
}

/// Where something was timed, as far as times depend on it: they are compared where all of this is the same, and else they are not.
///
/// It does not know clocks that were locked, the memory's size, or what else ran there. Where NVML is absent the power limit is not known,
/// and limits that are not known count as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedOn {
    /// The GPU's product name.
    pub gpu: String,
    /// The driver's version.
    pub driver: String,
    /// What the board may draw, in milliwatts.
    pub power_limit_mw: Option<u32>,
}

impl fmt::Display for TimedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, driver {}, ", self.gpu, self.driver)?;
        match self.power_limit_mw {
            Some(mw) => write!(f, "{} W", f64::from(mw) / 1000.0),
            None => f.write_str("power limit not known"),
        }
    }
}

impl GpuInfo {
    /// What is timed on it is compared with what was timed on the same.
    pub fn timed_on(&self) -> TimedOn {
        TimedOn {
            gpu: self.name.clone(),
            driver: self.driver_name(),
            power_limit_mw: self.power_limit_mw,
        }
    }

    /// The driver's own version, or what is known of it: the version of CUDA.
    pub fn driver_name(&self) -> String {
        let (major, minor) = (self.driver_version / 1000, self.driver_version % 1000 / 10);
        let own = self.driver.clone();
        own.unwrap_or_else(|| format!("CUDA {major}.{minor}"))
    }
}

/// An opened GPU, for the thread that opened it.
pub struct Gpu {
    pub(crate) context: Rc<Context>,
    /// What is read back goes through it; made when it is first needed.
    pub(crate) staging: Rc<RefCell<Option<Pinned>>>,
    pub(crate) sensors: Option<Sensors>,
    info: GpuInfo,
}

impl Gpu {
    /// Opens a device of the system's driver.
    pub fn open(ordinal: u32) -> Result<Self, GpuError> {
        Self::open_with(&GpuSettings {
            ordinal,
            ..GpuSettings::default()
        })
    }

    /// Opens a device, which becomes the current one of this thread: a thread uses the GPU that it opened last.
    pub fn open_with(settings: &GpuSettings) -> Result<Self, GpuError> {
        use CUdevice_attribute as Attribute;
        let context = Context::open(settings.driver.as_deref(), settings.ordinal)?;
        let uuid = uuid_text(context.uuid()?);
        let sensors = Sensors::open(settings.nvml.as_deref(), &uuid);
        let info = GpuInfo {
            name: context.name()?,
            uuid,
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
            driver: sensors.as_ref().and_then(Sensors::driver),
            power_limit_mw: sensors.as_ref().and_then(Sensors::power_limit_mw),
            devices: context.devices,
        };
        Ok(Self {
            context,
            staging: Rc::default(),
            sensors,
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

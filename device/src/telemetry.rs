//! Clock and power of a GPU while something runs on it.
//!
//! A time says little without the clock that it was taken at: a GPU that is warm, or at the limit of its power, slows down.
//! NVML knows both. It is opened at run time, and where it is absent they are not known, which is no error.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::nvml_ffi::Device;

/// What the sensors say at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Telemetry {
    /// The clock of the multiprocessors, in MHz.
    pub sm_mhz: Option<f64>,
    /// What the board draws, in watts: on most boards a mean over some tens of milliseconds.
    pub power_w: Option<f64>,
}

/// The sensors of one GPU.
pub struct Sensors {
    device: Device,
}

impl Sensors {
    /// Those of the GPU with this identifier ([`GpuInfo::uuid`](crate::gpu::GpuInfo)), if NVML knows it. `library` is NVML's, if not the
    /// system's.
    pub fn open(library: Option<&Path>, uuid: &str) -> Option<Self> {
        let library = library.unwrap_or(Path::new("libnvidia-ml.so.1"));
        let device = Device::open(library, uuid)?;
        Some(Self { device })
    }

    /// The version of the driver, such as `580.95.05`.
    pub fn driver(&self) -> Option<String> {
        self.device.driver()
    }

    /// What the board may draw, in milliwatts.
    pub fn power_limit_mw(&self) -> Option<u32> {
        self.device.limit_milliwatts()
    }

    /// What they say now; nothing where they say nothing.
    pub fn read(&self) -> Option<Telemetry> {
        let sm_mhz = self.device.sm_mhz().map(f64::from);
        let power_w = self.device.milliwatts().map(|mw| f64::from(mw) / 1000.0);
        (sm_mhz.is_some() || power_w.is_some()).then_some(Telemetry { sm_mhz, power_w })
    }
}

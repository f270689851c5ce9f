//! What the driver tells of a GPU when something goes wrong: its Xid errors, as NVML passes them on.
//!
//! Where NVML is absent, or passes nothing on, nothing is known, which is no error.

use std::path::Path;
use std::time::Duration;

use crate::nvml_ffi::{Device, Xids};

/// What some of the numbers mean, after NVIDIA's list of Xid errors.
const MEANINGS: [(u64, &str); 16] = [
    (8, "a kernel ran for too long"),
    (13, "a kernel's exception"),
    (31, "a page fault of a kernel"),
    (32, "a corrupted command"),
    (43, "a channel was stopped"),
    (45, "channels were torn down"),
    (48, "an uncorrectable error of the memory"),
    (62, "the microcontroller stopped"),
    (63, "a row of the memory was remapped"),
    (64, "a row of the memory could not be remapped"),
    (74, "an error of NVLink"),
    (79, "the GPU has fallen off the bus"),
    (94, "a contained error of the memory"),
    (95, "an uncontained error of the memory"),
    (119, "the GPU's system processor does not answer"),
    (120, "an error of the GPU's system processor"),
];

/// The most numbers that are named, and the most errors that are read at once: a GPU that is gone may tell of many.
const MOST_NAMED: usize = 4;
const MOST_READ: usize = 1000;

/// The errors of one GPU from when this was opened on.
pub struct Faults {
    xids: Xids,
}

impl Faults {
    /// Those of the GPU with this identifier ([`GpuInfo::uuid`](crate::gpu::GpuInfo)), if NVML tells of them. `library` is NVML's, if not the
    /// system's.
    pub fn open(library: Option<&Path>, uuid: &str) -> Option<Self> {
        let library = library.unwrap_or(Path::new("libnvidia-ml.so.1"));
        let xids = Device::open(library, uuid)?.xids()?;
        Some(Self { xids })
    }

    /// What was told since this was asked last, in words, and is not told again: `Xid 31 (a page fault of a kernel)`. The first error is waited for.
    pub fn told(&self, patience: Duration) -> Option<String> {
        let first = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let mut numbers = vec![self.xids.next(first)?];
        let further = std::iter::from_fn(|| self.xids.next(0));
        for next in further.take(MOST_READ) {
            if !numbers.contains(&next) && numbers.len() < MOST_NAMED {
                numbers.push(next);
            }
        }
        let named = numbers.into_iter().map(|number| {
            let meaning = MEANINGS.iter().find(|(known, _)| *known == number);
            meaning.map_or(format!("Xid {number}"), |(_, words)| {
                format!("Xid {number} ({words})")
            })
        });
        Some(named.collect::<Vec<_>>().join(", "))
    }
}

//! Argument blocks on one stream, filled anew by each call.

#![allow(
    unsafe_code,
    reason = "what the driver reads is pointed to from what it reads"
)]

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{
    CUcontext, CUfunction, CUgraphExec, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUstream, CUtensorMap,
};

use crate::description::{Description, Map};
use crate::driver::{Driver, Failed};

/// The kernels in the context of one device.
pub(crate) struct Loaded {
    /// The driver.
    pub(crate) driver: Driver,
    /// The device's context.
    pub(crate) context: CUcontext,
    /// The kernels, in launch order.
    pub(crate) functions: Vec<CUfunction>,
}

// SAFETY: handles of the driver may be used by any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// Argument blocks on one stream. One call has them at a time.
pub(crate) struct Launcher {
    loaded: Arc<Loaded>,
    stream: CUstream,
    slots: Box<[Cell<u64>]>,
    kernels: Vec<Kernel>,
    maps: Box<[Described]>,
    replays: Option<Replays>,
    /// That of the stream, and that of the graph that records it with the capture's number.
    pub(crate) split_workspace: Option<u64>,
    pub(crate) lent_split_workspace: Option<(u64, u64)>,
}

// SAFETY: all that it points to is its own or the driver's, whose handles may be used by any thread.
unsafe impl Send for Launcher {}

/// A launch; what its pointers mean is the launcher's.
struct Kernel {
    config: CUlaunchConfig,
    function: CUfunction,
    arguments: Vec<*mut c_void>,
}

/// A tensor map, and the address that it describes.
struct Described {
    map: Cell<CUtensorMap>,
    entry: Map,
    address: Option<u64>,
}

/// Graphs of a launcher's calls whose buffers lie where they lay before: one call of the driver each, instead of one a launch.
///
/// A graph is made when the same addresses come for the second time. There are few, and none is given up for another: where addresses
/// keep changing, and where the driver does not record a call, kernels are launched one by one.
#[derive(Default)]
struct Replays {
    seen: HashSet<Box<[u64]>>,
    graphs: HashMap<Box<[u64]>, CUgraphExec>,
}

impl Launcher {
    /// Argument blocks for the kernels of one device.
    pub(crate) fn new(description: &Description, loaded: Arc<Loaded>, stream: CUstream) -> Self {
        let slots: Box<[_]> = description.places.iter().map(|_| Cell::new(0)).collect();
        let entries = description.launches.iter().flat_map(|l| &l.maps);
        let maps: Box<[_]> = entries
            .map(|entry| Described {
                map: Cell::new(CUtensorMap { opaque: [0; 16] }),
                entry: entry.clone(),
                address: None,
            })
            .collect();
        let mut next_map = maps.iter();
        let kernels = description.launches.iter().zip(&loaded.functions);
        let kernels = kernels
            .map(|(launch, function)| {
                let slots = launch.slots.iter().map(|s| slots[*s].as_ptr().cast());
                let maps = next_map.by_ref().take(launch.maps.len());
                let maps = maps.map(|m| m.map.as_ptr().cast());
                Kernel {
                    config: CUlaunchConfig {
                        gridDimX: launch.grid[0],
                        gridDimY: launch.grid[1],
                        gridDimZ: launch.grid[2],
                        blockDimX: launch.threads,
                        blockDimY: 1,
                        blockDimZ: 1,
                        sharedMemBytes: launch.shared_bytes,
                        hStream: stream,
                        attrs: null_mut(),
                        numAttrs: u32::from(launch.overlaps),
                    },
                    function: *function,
                    arguments: slots.chain(maps).collect(),
                }
            })
            .collect();
        Self {
            stream,
            kernels,
            replays: (description.launches.len() >= description.replayed).then(Replays::default),
            loaded,
            slots,
            maps,
            split_workspace: None,
            lent_split_workspace: None,
        }
    }

    /// The driver and the kernels.
    pub(crate) fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded)
    }

    /// The stream.
    pub(crate) fn stream(&self) -> CUstream {
        self.stream
    }

    /// Whether a call has to know if a graph records the stream.
    pub(crate) fn is_stateful(&self, description: &Description) -> bool {
        self.replays.is_some() || description.split_workspace_bytes > 0
    }

    /// Launches the kernels on what lies at these addresses.
    pub(crate) fn launch(
        &mut self,
        description: &Description,
        addresses: &[u64],
    ) -> Result<(), Failed> {
        self.fill(description, addresses);
        self.launch_on(self.stream)
    }

    /// Whether a graph was launched that has these addresses; it is recorded when they come for the second time.
    pub(crate) fn replay(
        &mut self,
        description: &Description,
        addresses: &[u64],
        recorded: &AtomicUsize,
    ) -> Result<bool, Failed> {
        let Some(replays) = &mut self.replays else {
            return Ok(false);
        };
        let graph = if let Some(graph) = replays.graphs.get(addresses) {
            *graph
        } else {
            if recorded.load(Ordering::Relaxed) >= description.most_replays {
                return Ok(false);
            }
            if !replays.seen.contains(addresses) {
                if replays.seen.len() == description.most_replays {
                    replays.seen.clear();
                }
                replays.seen.insert(addresses.into());
                return Ok(false);
            }
            self.fill(description, addresses);
            let loaded = self.loaded();
            let graph = loaded.driver.record(|stream| self.launch_on(stream))?;
            let Some(graph) = graph else {
                self.replays = None;
                return Ok(false);
            };
            recorded.fetch_add(1, Ordering::Relaxed);
            if let Some(replays) = &mut self.replays {
                replays.graphs.insert(addresses.into(), graph);
            }
            graph
        };
        self.loaded.driver.replay(graph, self.stream)?;
        Ok(true)
    }

    fn fill(&self, description: &Description, addresses: &[u64]) {
        for (slot, (at, offset)) in self.slots.iter().zip(&description.places) {
            slot.set(addresses[*at].wrapping_add(*offset));
        }
    }

    /// Launches the kernels with what the slots hold.
    fn launch_on(&mut self, stream: CUstream) -> Result<(), Failed> {
        let driver = &self.loaded.driver;
        for described in &mut self.maps {
            let address = self.slots[described.entry.slot].get();
            if described.address != Some(address) {
                // What fails is not taken for done.
                let known = described.address.take().is_some();
                driver.describe(described.map.as_ptr(), &described.entry, address, known)?;
                described.address = Some(address);
            }
        }
        // `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`, of the launches that have an attribute.
        let mut overlap = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { pad: [0; 64] },
        };
        overlap.value.programmaticStreamSerializationAllowed = 1;
        for kernel in &mut self.kernels {
            kernel.config.hStream = stream;
            kernel.config.attrs = &raw mut overlap;
            driver.launch(&kernel.config, kernel.function, &mut kernel.arguments)?;
        }
        Ok(())
    }
}

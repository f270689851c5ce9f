//! What candidates are compared with: the program as a chain of naive kernels, run in a session like a candidate.
//!
//! Intermediates may be larger than the GPU: the chain then runs over a slab after the other, each with intermediates of its
//! own that live only as long as they are needed. A session's kernels take pointers alone, so a slab's range lies in a buffer.

use super::{Setting, fault};
use codegen::reference::{Element, ReferenceLaunch, ReferenceRole};
use codegen::{Launch, ReferenceMode, ReferenceProgram};
use device::gpu::Gpu;
use device::nvrtc::{Nvrtc, Options};
use device::session::{BufferSpec, Residence, Role, Session, SessionSettings};
use ir::{BufferId, Program, Reject};
use std::collections::BTreeMap;

/// Intermediates may use this part of the GPU's memory: parameters, outputs and a candidate's session need the rest.
const MEMORY_SHARE: u64 = 4;

/// A compiled chain.
pub(super) struct Chain {
    reference: ReferenceProgram,
    cubin: Vec<u8>,
    launches: Vec<Launch>,
    specs: Vec<BufferSpec>,
    /// The ranges of the slabs, by buffer.
    ranges: Vec<(usize, [i64; 2])>,
}

impl Chain {
    /// Prints and compiles the chain, and lays out its launches.
    pub(super) fn new(gpu: &Gpu, setting: &Setting, mode: ReferenceMode) -> Result<Self, Reject> {
        let reference = codegen::reference(&setting.program, mode)?;
        let nvrtc = Nvrtc::open(&setting.nvrtc).map_err(|e| Reject::Fault(e.to_string()))?;
        let compiled = nvrtc
            .compile(&source(&reference)?, &setting.arch, &Options::default())
            .map_err(|e| Reject::Compiler(e.to_string()))?;
        let mut chain = Self {
            cubin: compiled.cubin,
            launches: Vec::new(),
            specs: Vec::new(),
            ranges: Vec::new(),
            reference,
        };
        chain.lay_out(gpu.info().memory_bytes / MEMORY_SHARE)?;
        Ok(chain)
    }

    fn lay_out(&mut self, memory: u64) -> Result<(), Reject> {
        let reference = &self.reference;
        let extent = reference.slab.map_or(1, |s| s.1);
        let count = reference.slab_count(memory).max(1);
        // Parameters and outputs are shared by all slabs and keep their places.
        let shared = reference
            .buffers
            .iter()
            .take_while(|b| !matches!(b.role, ReferenceRole::Intermediate))
            .count();
        let spec = |index: usize, count: u64| {
            let buffer = &reference.buffers[index];
            let elements = buffer.elements * if buffer.slabbed { count } else { 1 };
            BufferSpec {
                name: buffer.name.clone(),
                bytes: elements * buffer.element.bytes(),
                role: match buffer.role {
                    ReferenceRole::Parameter(_) => Role::Input,
                    ReferenceRole::Output(_) => Role::Output,
                    ReferenceRole::Intermediate => Role::Workspace,
                },
            }
        };
        self.specs
            .extend((0..shared).map(|index| spec(index, extent)));
        let mut first = 0;
        while first < extent {
            let now = count.min(extent - first);
            let base = self.specs.len();
            self.specs
                .extend((shared..reference.buffers.len()).map(|index| spec(index, now)));
            let range = self.specs.len();
            self.specs.push(BufferSpec {
                name: "slab".to_owned(),
                bytes: 16,
                role: Role::Input,
            });
            self.ranges.push((range, [first as i64, now as i64]));
            for launch in &reference.launches {
                let blocks = u32::try_from(launch.blocks(now))
                    .map_err(|_| Reject::Grid("the reference has too many blocks".to_owned()))?;
                let place = |b: &u32| {
                    let index = *b as usize;
                    BufferId(if index < shared {
                        index
                    } else {
                        base + index - shared
                    } as u32)
                };
                let mut arguments: Vec<BufferId> = launch.arguments.iter().map(place).collect();
                arguments.push(BufferId(range as u32));
                self.launches.push(Launch {
                    overlaps: false,
                    entry: launch.entry.clone(),
                    grid: [blocks, 1, 1],
                    threads: ReferenceLaunch::THREADS,
                    shared_bytes: 0,
                    arguments,
                    maps: Vec::new(),
                    board: codegen::Board::default(),
                });
            }
            first += now;
        }
        Ok(())
    }

    /// Runs the chain: the outputs in memory order.
    pub(super) fn outputs(
        &self,
        gpu: &Gpu,
        program: &Program,
        inputs: &[Vec<f64>],
    ) -> Result<Vec<Vec<f64>>, Reject> {
        let settings = SessionSettings {
            local_memory: true,
            residence: Residence::Scoped,
            ..SessionSettings::default()
        };
        let mut session = Session::open(gpu, &self.cubin, &self.launches, &self.specs, settings)
            .map_err(|e| fault(&e))?;
        for ((_, _, dtype, _), (at, values)) in program.parameters().zip(inputs.iter().enumerate())
        {
            session
                .upload(at, &dtype.encode(values))
                .map_err(|e| fault(&e))?;
        }
        for (at, range) in &self.ranges {
            let bytes: Vec<u8> = range.iter().flat_map(|n| n.to_le_bytes()).collect();
            session.upload(*at, &bytes).map_err(|e| fault(&e))?;
        }
        if let Some(violation) = session.run().map_err(|e| fault(&e))?.first() {
            return Err(Reject::Fault(format!(
                "the reference misbehaves: {violation}"
            )));
        }
        let mut outputs = BTreeMap::new();
        for (at, buffer) in self.reference.buffers.iter().enumerate() {
            if let ReferenceRole::Output(n) = buffer.role {
                let bytes = session.download(at).map_err(|e| fault(&e))?;
                outputs.insert(n, decode(buffer.element, &bytes));
            }
        }
        Ok(outputs.into_values().collect())
    }
}

/// The chain's text with each slab's range read from a buffer.
fn source(reference: &ReferenceProgram) -> Result<String, Reject> {
    const BY_VALUE: &str = ", long long slab_first, long long slab_count) {\n";
    const BY_POINTER: &str = ", const long long* slab) {\n  const long long slab_first = slab[0], slab_count = slab[1];\n";
    let mut entries: Vec<&str> = reference
        .launches
        .iter()
        .map(|l| l.entry.as_str())
        .collect();
    entries.sort_unstable();
    entries.dedup();
    if reference.source.matches(BY_VALUE).count() != entries.len() {
        return Err(Reject::Fault(
            "the reference's kernels take no slab".to_owned(),
        ));
    }
    Ok(reference.source.replace(BY_VALUE, BY_POINTER))
}

fn decode(element: Element, bytes: &[u8]) -> Vec<f64> {
    match element {
        Element::F64 => {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().map(|w| f64::from_le_bytes(*w)).collect()
        }
        Element::Of(dtype) => dtype.decode(bytes),
    }
}

//! What candidates are compared with: the program as a chain of plain kernels, run in a session like a candidate.
//!
//! Values may be larger than the GPU: the chain then runs over a slab after the other, in one session whose buffers hold a slab,
//! and of each slab comes back what is compared. A session's kernels take pointers alone, so a slab's range lies in a buffer.

use super::parts::{Parts, Slab, numbers};
use super::{Setting, fault};
use codegen::reference::{ReferenceLaunch, ReferenceRole};
use codegen::{Launch, ReferenceMode, ReferenceProgram};
use device::compiler::compiler;
use device::gpu::Gpu;
use device::nvrtc::Options;
use device::session::{BufferSpec, Code, Residence, Role, Session, SessionSettings, Stock, Watch};
use ir::{AxisId, BufferId, Program, Reject, Target};
use std::time::Instant;

/// The part of the memory that the driver, the guards and other processes have: a sixteenth.
const RESERVED: u64 = 16;

/// What a GPU with so many bytes has for a process.
pub(super) fn room(memory: u64) -> u64 {
    memory - memory / RESERVED
}

/// How many coordinates of its slab axis a chain may take at a time on a GPU with so many bytes.
///
/// # Errors
/// When not even one fits beside the inputs that stay on the GPU for candidates.
pub(crate) fn slab_count(
    reference: &ReferenceProgram,
    program: &Program,
    memory: u64,
) -> Result<u64, Reject> {
    let inputs = program.input_bytes();
    let room = room(memory).saturating_sub(inputs);
    reference.slab_count(room).ok_or_else(|| {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        Reject::Fault(format!(
            "the reference needs {:.1} GB at least, beside {:.1} GB of inputs that stay on the GPU, which has {:.1} GB",
            gb(reference.peak_bytes(1)),
            gb(inputs),
            gb(memory)
        ))
    })
}

/// What running a chain took, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) open: f64,
    pub(super) run: f64,
    pub(super) download: f64,
}

/// A compiled chain.
pub(super) struct Chain {
    reference: ReferenceProgram,
    cubin: Vec<u8>,
    launches: Vec<Launch>,
    specs: Vec<BufferSpec>,
    /// Coordinates of the slab axis that are computed at a time.
    count: u64,
}

impl Chain {
    /// Prints and compiles the chain, and lays out its launches for a GPU with so many bytes.
    pub(super) fn new(memory: u64, setting: &Setting, mode: ReferenceMode) -> Result<Self, Reject> {
        let reference = codegen::reference(&setting.program, mode)?;
        let compiler = compiler(&setting.arch)
            .and_then(|row| row.open(&setting.nvrtc))
            .map_err(|e| Reject::Fault(e.to_string()))?;
        let options = Options {
            unfused: true,
            ..Options::default()
        };
        let compiled = compiler
            .compile(&reference.source, &setting.arch, &options)
            .map_err(|e| Reject::Compiler(e.to_string()))?;
        let count = slab_count(&reference, &setting.program, memory)?;
        let range = BufferId(reference.buffers.len() as u32);
        let launch = |l: &ReferenceLaunch| {
            let mut arguments: Vec<BufferId> = l.arguments.iter().map(|b| BufferId(*b)).collect();
            arguments.push(range);
            Launch {
                overlaps: false,
                entry: l.entry.clone(),
                grid: [l.blocks(count), 1, 1],
                threads: ReferenceLaunch::THREADS,
                shared_bytes: l.shared_bytes,
                arguments,
                maps: Vec::new(),
                split_workspace: codegen::SplitWorkspace::default(),
            }
        };
        let launches = reference.launches.iter().map(launch).collect();
        let mut specs: Vec<BufferSpec> = reference
            .buffers
            .iter()
            .map(|b| BufferSpec {
                name: b.name.clone(),
                bytes: b.elements * if b.slabbed { count } else { 1 } * b.element.bytes(),
                role: match b.role {
                    ReferenceRole::Parameter(_) => Role::Input,
                    ReferenceRole::Output(_) => Role::Output,
                    ReferenceRole::Intermediate => Role::Workspace,
                },
            })
            .collect();
        specs.push(BufferSpec {
            name: "slab".to_owned(),
            bytes: 16,
            role: Role::Input,
        });
        Ok(Self {
            cubin: compiled.cubin,
            launches,
            specs,
            count,
            reference,
        })
    }

    /// Runs the chain on inputs that are on the GPU: of each output the elements that are asked for, in memory order.
    pub(super) fn outputs(
        &self,
        gpu: &Gpu,
        program: &Program,
        inputs: &[&Stock],
        wanted: &[Parts],
    ) -> Result<Vec<Vec<f64>>, Reject> {
        self.timed(gpu, program, inputs, wanted)
            .map(|found| found.0)
    }

    /// How long its kernels are predicted to take.
    pub(super) fn seconds(&self, target: &Target) -> f64 {
        self.reference.seconds(target, self.count)
    }

    /// The same, with what took how long.
    pub(super) fn timed(
        &self,
        gpu: &Gpu,
        program: &Program,
        inputs: &[&Stock],
        wanted: &[Parts],
    ) -> Result<(Vec<Vec<f64>>, Spent), Reject> {
        let mut spent = Spent::default();
        let start = Instant::now();
        let settings = SessionSettings {
            local_memory: true,
            residence: Residence::Scoped,
            ..SessionSettings::default()
        };
        let mut session = Session::open(
            gpu,
            Code::Together(&self.cubin),
            &self.launches,
            &self.specs,
            settings,
        )
        .map_err(|e| fault(&e))?;
        for (at, stock) in inputs.iter().enumerate() {
            session.share(at, stock).map_err(|e| fault(&e))?;
        }
        spent.open = start.elapsed().as_secs_f64();
        let mut outputs: Vec<Vec<f64>> = (wanted.iter())
            .map(|parts| vec![0.0; parts.elements() as usize])
            .collect();
        let (axis, extent) = self.reference.slab.map_or((None, 1), |s| (Some(s.0), s.1));
        let mut first = 0;
        while first < extent {
            let count = self.count.min(extent - first);
            let runs = program.outputs.iter().zip(wanted).map(|(output, parts)| {
                let order = output.dims.iter().flat_map(|d| d.0.iter().copied());
                let order: Vec<AxisId> = order.collect();
                slab(program, &order, axis, first, count).runs(parts)
            });
            let runs: Vec<_> = runs.collect();
            let start = Instant::now();
            if runs.iter().any(|r| !r.is_empty()) {
                self.run(&mut session, first, count)?;
            }
            spent.run += start.elapsed().as_secs_f64();
            let start = Instant::now();
            for (at, buffer) in self.reference.buffers.iter().enumerate() {
                if let ReferenceRole::Output(n) = buffer.role {
                    let n = n as usize;
                    numbers(&session, at, buffer.element, &runs[n], &mut outputs[n])
                        .map_err(|e| fault(&e))?;
                }
            }
            spent.download += start.elapsed().as_secs_f64();
            first += count;
        }
        Ok((outputs, spent))
    }

    /// Computes one slab.
    fn run(&self, session: &mut Session, first: u64, count: u64) -> Result<(), Reject> {
        let range: Vec<u8> = [first, count]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        session
            .upload(self.specs.len() - 1, range)
            .map_err(|e| fault(&e))?;
        // That it leaves its inputs alone can be read in its text.
        let violations = session.run_watched(Watch::AllButInputs);
        match violations.map_err(|e| fault(&e))?.first() {
            None => Ok(()),
            Some(violation) => Err(Reject::Fault(format!(
                "the reference misbehaves: {violation}"
            ))),
        }
    }
}

/// How an output over axes, slowest first, lies in the buffer of a slab.
fn slab(program: &Program, order: &[AxisId], axis: Option<AxisId>, first: u64, count: u64) -> Slab {
    let size = |axes: &[AxisId]| axes.iter().map(|a| program.extent(*a)).product();
    let at = order.iter().position(|a| Some(*a) == axis);
    let (outer, inner) = match at {
        Some(at) => (size(&order[..at]), size(&order[at + 1..])),
        None => (1, size(order)),
    };
    Slab {
        outer,
        extent: at.map_or(1, |at| program.extent(order[at])),
        inner,
        first,
        count,
    }
}

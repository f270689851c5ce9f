//! A sequence of launches with its buffers on a GPU: filled, run, watched and read back.
//!
//! Each buffer lies between two guards of known bytes, at an address that is a multiple of 256 and otherwise varies with the
//! placement. Before a run the outputs and workspaces are filled with ones, which is a NaN in every floating format: what a
//! kernel forgets to write, or reads too early, shows. After a run the guards must be what they were, and the inputs where [`Watch`] asks for
//! them. The counters of a launch's split-K workspace are 0 once, when the session is opened, and must be 0 after each run.
//!
//! The module knows nothing of what the bytes mean.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use codegen::Launch;
use cudarc::driver::sys::CUfunction_attribute as Attribute;
use serde::{Deserialize, Serialize};

use crate::driver_ffi::{Context, EncodedMap, Function, Memory, Module, Pinned, Stream};
use crate::gpu::Gpu;
use crate::gpu_error::GpuError;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Uploaded; no kernel may change it.
    Input,
    /// Read back.
    Output,
    /// Neither.
    Workspace,
}

/// A buffer of the launches; their arguments are indices into the list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferSpec {
    /// For messages.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What it is for.
    pub role: Role,
}

/// Machine code of launches.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// A cubin that holds the kernels of all.
    Together(&'a [u8]),
    /// A cubin for each.
    Each(&'a [Vec<u8>]),
}

impl Code<'_> {
    /// A module for each launch.
    fn load(self, context: &Rc<Context>, launches: usize) -> Result<Vec<Rc<Module>>, GpuError> {
        match self {
            Self::Together(cubin) => Ok(vec![Module::load(context, cubin)?; launches]),
            Self::Each(cubins) if cubins.len() == launches => {
                (cubins.iter().map(|cubin| Module::load(context, cubin))).collect()
            }
            Self::Each(cubins) => Err(GpuError::plan(format!(
                "{} cubins for {launches} launches",
                cubins.len()
            ))),
        }
    }
}

/// When the workspaces have memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Residence {
    /// All the time; needed for timing.
    #[default]
    Whole,
    /// From the first launch that names one to the last: for long chains whose workspaces do not fit together.
    Scoped,
}

/// How a session is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSettings {
    /// Varies the buffers' addresses.
    pub placement: u64,
    /// Whether kernels may use local memory (stack frames and spills).
    pub local_memory: bool,
    /// When the workspaces have memory.
    pub residence: Residence,
    /// Whether buffers are alone in their allocations, with no guards around them: for tools that watch the ends of allocations
    /// themselves. All begin at the same place then.
    pub bare: bool,
}

/// What the driver says about a loaded kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Its entry point.
    pub entry: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread, in bytes.
    pub local_bytes: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// Something that a run must not do, and did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Violation {
    /// An input is not what was uploaded.
    #[error("input `{buffer}` was changed")]
    InputChanged {
        /// Its name.
        buffer: String,
    },
    /// A byte before a buffer was written.
    #[error("the byte {distance} before the start of `{buffer}` was written")]
    Before {
        /// Its name.
        buffer: String,
        /// How far from the buffer, at least 1.
        distance: u64,
    },
    /// A byte after a buffer was written.
    #[error("the byte {distance} after the end of `{buffer}` was written")]
    After {
        /// Its name.
        buffer: String,
        /// How far from the buffer, at least 1.
        distance: u64,
    },
    /// The next launch would find blocks at its split-K workspace.
    #[error("kernel `{entry}` left counters of its split-K workspace that are not 0")]
    SplitWorkspaceLeft {
        /// Its entry point.
        entry: String,
    },
}

/// Alignment of the buffers, and the least size of a guard, in bytes.
const ALIGNMENT: u64 = 256;
/// Different addresses of a buffer within its allocation.
const PLACES: u64 = 16;
/// In outputs and workspaces before a run: all ones.
const POISON: u8 = 0xFF;
/// In guards, alternating: halfword 0xFFA5, a NaN in f16, bf16 and f32, so that reading a guard shows as well.
const GUARD: [u8; 2] = [0xA5, 0xFF];
/// Bytes read back at a time.
const CHUNK: u64 = 1 << 26;
/// Fewer bytes than this are read without the detour over memory that has to be made for it.
const FEW: u64 = 1 << 20;

/// What an input holds: bytes that repeat until it is full.
#[derive(Clone)]
pub struct Data {
    period: Rc<Vec<u8>>,
    bytes: u64,
}

impl Data {
    /// So many bytes, which these begin and repeat.
    ///
    /// # Errors
    /// When there is nothing to repeat.
    pub fn repeated(period: Vec<u8>, bytes: u64) -> Result<Self, GpuError> {
        if period.is_empty() && bytes > 0 {
            return Err(GpuError::plan(format!("no byte to repeat {bytes} times")));
        }
        Ok(Self {
            period: Rc::new(period),
            bytes,
        })
    }

    /// Writes them, each but the first period by a copy of what is there already.
    fn write(&self, memory: &Memory, offset: u64) -> Result<(), GpuError> {
        let mut there = (self.period.len() as u64).min(self.bytes);
        memory.write(offset, &self.period[..there as usize])?;
        while there < self.bytes {
            let next = there.min(self.bytes - there);
            memory.copy_from(offset + there, memory, offset, next)?;
            there += next;
        }
        Ok(())
    }

    /// Whether a piece of them, which begins at a byte, is this; several threads look.
    fn is(&self, start: u64, piece: &[u8]) -> bool {
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(8);
        let each = piece.len().div_ceil(threads).max(FEW as usize);
        // Counted references do not cross threads.
        let period: &[u8] = &self.period;
        let parts = piece.chunks(each).enumerate();
        std::thread::scope(|scope| {
            let handles: Vec<_> = parts
                .map(|(n, part)| {
                    scope.spawn(move || holds(period, start + (n * each) as u64, part))
                })
                .collect();
            handles.into_iter().all(|h| h.join().is_ok_and(|same| same))
        })
    }
}

impl From<Vec<u8>> for Data {
    fn from(data: Vec<u8>) -> Self {
        Self {
            bytes: data.len() as u64,
            period: Rc::new(data),
        }
    }
}

impl<const N: usize> From<&[u8; N]> for Data {
    fn from(data: &[u8; N]) -> Self {
        Self::from(data.to_vec())
    }
}

/// Whether a piece of what repeats `period`, which begins at a byte, is this.
fn holds(period: &[u8], mut start: u64, mut piece: &[u8]) -> bool {
    while !piece.is_empty() {
        let at = (start % period.len() as u64) as usize;
        let length = piece.len().min(period.len() - at);
        let (now, rest) = piece.split_at(length);
        if now != &period[at..at + length] {
            return false;
        }
        (start, piece) = (start + length as u64, rest);
    }
    true
}

/// A buffer's memory with its guards.
struct Placed {
    memory: Rc<Memory>,
    offset: u64,
    bytes: u64,
}

impl Placed {
    /// With no place there are no guards.
    fn new(context: &Rc<Context>, bytes: u64, place: Option<u64>) -> Result<Self, GpuError> {
        let Some(place) = place else {
            return Ok(Self {
                memory: Rc::new(Memory::new(context, bytes)?),
                offset: 0,
                bytes,
            });
        };
        let total = bytes
            .checked_add(ALIGNMENT * (PLACES + 1))
            .ok_or_else(|| GpuError::plan(format!("a buffer of {bytes} bytes")))?;
        let placed = Self {
            memory: Rc::new(Memory::new(context, total)?),
            offset: ALIGNMENT * (1 + place % PLACES),
            bytes,
        };
        placed.memory.write(0, &guard(placed.offset))?;
        placed
            .memory
            .write(placed.end(), &guard(total - placed.end()))?;
        Ok(placed)
    }

    fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    fn address(&self) -> u64 {
        self.memory.address() + self.offset
    }

    /// The written guard bytes that are nearest to the buffer.
    fn violations(&self, name: &str) -> Result<Vec<Violation>, GpuError> {
        let mut found = Vec::new();
        let rest = self.memory.bytes() - self.end();
        if rest == 0 {
            return Ok(found);
        }
        let before = self.memory.read(0, self.offset)?;
        if let Some(index) = before
            .iter()
            .zip(guard(self.offset))
            .rposition(|(byte, expected)| *byte != expected)
        {
            found.push(Violation::Before {
                buffer: name.to_owned(),
                distance: self.offset - index as u64,
            });
        }
        let after = self.memory.read(self.end(), rest)?;
        if let Some(index) = after
            .iter()
            .zip(guard(rest))
            .position(|(byte, expected)| *byte != expected)
        {
            found.push(Violation::After {
                buffer: name.to_owned(),
                distance: index as u64 + 1,
            });
        }
        Ok(found)
    }

    /// Whether the buffer holds these data.
    fn is(&self, data: &Data, staging: &RefCell<Option<Pinned>>) -> Result<bool, GpuError> {
        let mut same = true;
        self.read_in_pieces(0..self.bytes, staging, &mut |start, piece| {
            same &= data.is(start, piece);
        })?;
        Ok(same)
    }

    /// Reads some bytes of the buffer, and gives them in pieces, each with its place.
    fn read_in_pieces(
        &self,
        part: Range<u64>,
        staging: &RefCell<Option<Pinned>>,
        take: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), GpuError> {
        if part.end - part.start < FEW {
            let piece = self
                .memory
                .read(self.offset + part.start, part.end - part.start)?;
            take(part.start, &piece);
            return Ok(());
        }
        let mut staging = staging.borrow_mut();
        let pinned = match &mut *staging {
            Some(pinned) => pinned,
            none @ None => none.insert(Pinned::new(self.memory.context(), CHUNK as usize)?),
        };
        let mut done = part.start;
        while done < part.end {
            let length = CHUNK.min(part.end - done);
            let piece = &mut pinned.bytes()[..length as usize];
            self.memory.read_into(self.offset + done, piece)?;
            take(done, piece);
            done += length;
        }
        Ok(())
    }
}

fn guard(length: u64) -> Vec<u8> {
    GUARD.into_iter().cycle().take(length as usize).collect()
}

struct Slot {
    spec: BufferSpec,
    place: Option<u64>,
    placed: Option<Placed>,
    /// What was uploaded.
    data: Option<Data>,
    /// The first and the last launch that name it.
    span: Option<(usize, usize)>,
}

struct Step {
    launch: Launch,
    function: Function,
    arguments: Vec<usize>,
    split_workspace: Option<Placed>,
}

/// What a run is checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Guards, inputs and split-K workspaces.
    Everything,
    /// The same but the inputs, which are read back for it: that takes longer than most kernels run.
    AllButInputs,
}

/// Data that sessions on the same GPU take their inputs from, without another way through the host.
pub struct Stock {
    memory: Rc<Memory>,
    data: Data,
}

impl Stock {
    /// Uploads the data once.
    pub fn new(gpu: &Gpu, data: impl Into<Data>) -> Result<Self, GpuError> {
        let data = data.into();
        let memory = Rc::new(Memory::new(&gpu.context, data.bytes)?);
        data.write(&memory, 0)?;
        Ok(Self { memory, data })
    }
}

/// Launches and buffers, ready on a GPU.
pub struct Session {
    context: Rc<Context>,
    staging: Rc<RefCell<Option<Pinned>>>,
    stream: Stream,
    steps: Vec<Step>,
    slots: Vec<Slot>,
    settings: SessionSettings,
    facts: Vec<KernelFacts>,
}

impl Session {
    /// Loads machine code, checks each launch against it, and allocates the buffers; inputs have memory once they are filled.
    pub fn open(
        gpu: &Gpu,
        code: Code<'_>,
        launches: &[Launch],
        buffers: &[BufferSpec],
        settings: SessionSettings,
    ) -> Result<Self, GpuError> {
        let context = &gpu.context;
        let modules = code.load(context, launches.len())?;
        let place = |index: u64| (!settings.bare).then(|| place(settings.placement, index));
        let mut slots: Vec<Slot> = Vec::new();
        for (index, spec) in buffers.iter().enumerate() {
            let place = place(index as u64);
            slots.push(Slot {
                spec: spec.clone(),
                place,
                placed: None,
                data: None,
                span: None,
            });
        }
        let (mut steps, mut facts) = (Vec::new(), Vec::new());
        for (number, (launch, module)) in launches.iter().zip(&modules).enumerate() {
            let (mut step, fact) = prepare(module, launch, slots.len(), settings.local_memory)?;
            if launch.split_workspace.bytes > 0 {
                let place = place((slots.len() + number) as u64);
                let split_workspace = Placed::new(context, launch.split_workspace.bytes, place)?;
                split_workspace.memory.fill(
                    split_workspace.offset,
                    launch.split_workspace.counters,
                    0,
                )?;
                step.split_workspace = Some(split_workspace);
            }
            for argument in &step.arguments {
                let first = slots[*argument].span.map_or(number, |span| span.0);
                slots[*argument].span = Some((first, number));
            }
            steps.push(step);
            facts.push(fact);
        }
        let mut session = Self {
            context: Rc::clone(context),
            staging: Rc::clone(&gpu.staging),
            stream: Stream::new(context)?,
            steps,
            slots,
            settings,
            facts,
        };
        for index in 0..session.slots.len() {
            if session.slots[index].spec.role != Role::Input && !session.is_scoped(index) {
                session.place(index)?;
            }
        }
        Ok(session)
    }

    /// What the driver says about the kernels, one per launch.
    pub fn kernels(&self) -> &[KernelFacts] {
        &self.facts
    }

    /// Fills an input; the data must have its size.
    pub fn upload(&mut self, buffer: usize, data: impl Into<Data>) -> Result<(), GpuError> {
        let data = data.into();
        let (slot, placed) = self.placed_input(buffer, data.bytes)?;
        data.write(&placed.memory, placed.offset)?;
        *slot = Some(data);
        Ok(())
    }

    /// Fills an input with data that are on the GPU already; they must have its size.
    pub fn take(&mut self, buffer: usize, stock: &Stock) -> Result<(), GpuError> {
        let (slot, placed) = self.placed_input(buffer, stock.memory.bytes())?;
        (placed.memory).copy_from(placed.offset, &stock.memory, 0, placed.bytes)?;
        *slot = Some(stock.data.clone());
        Ok(())
    }

    /// Lets an input be what is on the GPU already, without a copy and without guards: for kernels that are known to leave it alone.
    pub fn share(&mut self, buffer: usize, stock: &Stock) -> Result<(), GpuError> {
        let slot = self.input(buffer, stock.memory.bytes())?;
        slot.placed = Some(Placed {
            memory: Rc::clone(&stock.memory),
            offset: 0,
            bytes: stock.memory.bytes(),
        });
        slot.data = Some(stock.data.clone());
        Ok(())
    }

    /// What an input of so many bytes holds, and its own memory.
    fn placed_input(
        &mut self,
        buffer: usize,
        bytes: u64,
    ) -> Result<(&mut Option<Data>, &Placed), GpuError> {
        let context = Rc::clone(&self.context);
        let slot = self.input(buffer, bytes)?;
        let placed = match slot.placed.take() {
            Some(placed) => placed,
            None => Placed::new(&context, slot.spec.bytes, slot.place)?,
        };
        Ok((&mut slot.data, slot.placed.insert(placed)))
    }

    /// An input, if `bytes` are what it has.
    fn input(&mut self, buffer: usize, bytes: u64) -> Result<&mut Slot, GpuError> {
        let slot = self
            .slots
            .get_mut(buffer)
            .ok_or_else(|| GpuError::plan(format!("there is no buffer {buffer}")))?;
        let name = &slot.spec.name;
        if slot.spec.role != Role::Input {
            return Err(GpuError::plan(format!("buffer `{name}` is no input")));
        }
        if bytes != slot.spec.bytes {
            return Err(GpuError::plan(format!(
                "input `{name}` has {} bytes, found {bytes}",
                slot.spec.bytes
            )));
        }
        Ok(slot)
    }

    /// Poisons, launches everything once, waits after each launch, and says what was violated.
    pub fn run(&mut self) -> Result<Vec<Violation>, GpuError> {
        self.run_watched(Watch::Everything)
    }

    /// The same, checked for as much as is asked.
    pub fn run_watched(&mut self, watch: Watch) -> Result<Vec<Violation>, GpuError> {
        self.poison()?;
        let mut violations = Vec::new();
        for number in 0..self.steps.len() {
            for index in self.scoped(|span| span.0 == number) {
                self.place(index)?;
                self.poison_one(index)?;
            }
            let launched = self
                .launch_one(number, None)
                .and_then(|()| self.stream.synchronize());
            launched.map_err(|error| GpuError::Kernel {
                entry: self.steps[number].launch.entry.clone(),
                error: Box::new(error),
            })?;
            for index in self.scoped(|span| span.1 == number) {
                if let Some(placed) = self.slots[index].placed.take() {
                    violations.extend(placed.violations(&self.slots[index].spec.name)?);
                }
            }
        }
        violations.extend(self.violations(watch)?);
        Ok(violations)
    }

    /// Launches everything once, each right behind the one before, and waits at the end. Nothing is filled before, so that a tool
    /// that watches memory sees what is read and was never written; and nothing is checked after.
    pub fn run_unwatched(&mut self) -> Result<(), GpuError> {
        self.launch_all(None)?;
        self.stream.synchronize()
    }

    /// Reads a buffer back.
    pub fn download(&self, buffer: usize) -> Result<Vec<u8>, GpuError> {
        let bytes = self.slots.get(buffer).map_or(0, |slot| slot.spec.bytes);
        self.download_part(buffer, 0..bytes)
    }

    /// Reads some bytes of a buffer back.
    pub fn download_part(&self, buffer: usize, part: Range<u64>) -> Result<Vec<u8>, GpuError> {
        let placed = self.readable(buffer, &part)?;
        (placed.memory).read(placed.offset + part.start, part.end - part.start)
    }

    /// Reads some bytes of a buffer back and gives them in pieces, each with its place in the buffer: faster where there are many.
    pub fn download_in_pieces(
        &self,
        buffer: usize,
        part: Range<u64>,
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<(), GpuError> {
        let placed = self.readable(buffer, &part)?;
        placed.read_in_pieces(part, &self.staging, &mut take)
    }

    /// A buffer, if it has these bytes and memory.
    fn readable(&self, buffer: usize, part: &Range<u64>) -> Result<&Placed, GpuError> {
        let placed = self
            .slots
            .get(buffer)
            .and_then(|slot| slot.placed.as_ref())
            .ok_or_else(|| GpuError::plan(format!("buffer {buffer} has no memory")))?;
        if part.start > part.end || part.end > placed.bytes {
            return Err(GpuError::plan(format!(
                "bytes {part:?} of buffer {buffer}, which has {}",
                placed.bytes
            )));
        }
        Ok(placed)
    }

    /// Fills outputs and workspaces with ones.
    pub fn poison(&mut self) -> Result<(), GpuError> {
        for index in 0..self.slots.len() {
            match self.slots[index].spec.role {
                Role::Input if self.slots[index].data.is_none() => {
                    return Err(GpuError::plan(format!(
                        "input `{}` was not uploaded",
                        self.slots[index].spec.name
                    )));
                }
                Role::Input => {}
                Role::Output | Role::Workspace => self.poison_one(index)?,
            }
        }
        for step in &self.steps {
            if let Some(split_workspace) = &step.split_workspace {
                let counters = step.launch.split_workspace.counters;
                let rest = split_workspace.bytes - counters;
                split_workspace
                    .memory
                    .fill(split_workspace.offset + counters, rest, POISON)?;
            }
        }
        Ok(())
    }

    /// Compares the guards of all buffers and the inputs with what they were, and the split-K workspaces' counters with 0.
    pub fn check(&self) -> Result<Vec<Violation>, GpuError> {
        self.violations(Watch::Everything)
    }

    fn violations(&self, watch: Watch) -> Result<Vec<Violation>, GpuError> {
        let mut found = Vec::new();
        for step in &self.steps {
            let Some(split_workspace) = &step.split_workspace else {
                continue;
            };
            let entry = &step.launch.entry;
            found.extend(split_workspace.violations(&format!("the split-K workspace of {entry}"))?);
            let counters = split_workspace
                .memory
                .read(split_workspace.offset, step.launch.split_workspace.counters)?;
            if counters.iter().any(|byte| *byte != 0) {
                found.push(Violation::SplitWorkspaceLeft {
                    entry: entry.clone(),
                });
            }
        }
        for slot in &self.slots {
            let Some(placed) = &slot.placed else { continue };
            found.extend(placed.violations(&slot.spec.name)?);
            if watch == Watch::Everything
                && let Some(data) = &slot.data
                && !placed.is(data, &self.staging)?
            {
                found.push(Violation::InputChanged {
                    buffer: slot.spec.name.clone(),
                });
            }
        }
        Ok(found)
    }

    /// The sum of the inputs' sizes.
    pub fn input_bytes(&self) -> u64 {
        self.inputs().map(|(_, slot)| slot.spec.bytes).sum()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn is_whole(&self) -> bool {
        (0..self.slots.len()).all(|index| self.slots[index].placed.is_some())
    }

    /// Puts all launches into the stream; with `inputs`, these copies stand for the inputs.
    pub(crate) fn launch_all(&self, inputs: Option<&InputCopy>) -> Result<(), GpuError> {
        (0..self.steps.len()).try_for_each(|number| self.launch_one(number, inputs))
    }

    /// A copy of all inputs, elsewhere.
    pub(crate) fn copy_inputs(&self) -> Result<InputCopy, GpuError> {
        let mut copies: Vec<Option<Memory>> = self.slots.iter().map(|_| None).collect();
        for (index, slot) in self.inputs() {
            let placed = slot
                .placed
                .as_ref()
                .ok_or_else(|| GpuError::plan(format!("buffer {index} has no memory")))?;
            let memory = Memory::new(&self.context, placed.bytes)?;
            memory.copy_from(0, &placed.memory, placed.offset, placed.bytes)?;
            copies[index] = Some(memory);
        }
        Ok(InputCopy(copies))
    }

    fn inputs(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.spec.role == Role::Input)
    }

    fn is_scoped(&self, index: usize) -> bool {
        self.settings.residence == Residence::Scoped
            && self.slots[index].spec.role == Role::Workspace
    }

    fn scoped(&self, holds: impl Fn((usize, usize)) -> bool) -> Vec<usize> {
        (0..self.slots.len())
            .filter(|index| self.is_scoped(*index) && self.slots[*index].span.is_some_and(&holds))
            .collect()
    }

    fn place(&mut self, index: usize) -> Result<(), GpuError> {
        let slot = &mut self.slots[index];
        slot.placed = Some(Placed::new(&self.context, slot.spec.bytes, slot.place)?);
        Ok(())
    }

    fn poison_one(&self, index: usize) -> Result<(), GpuError> {
        match &self.slots[index].placed {
            Some(placed) => placed.memory.fill(placed.offset, placed.bytes, POISON),
            None => Ok(()),
        }
    }

    fn launch_one(&self, number: usize, inputs: Option<&InputCopy>) -> Result<(), GpuError> {
        let step = &self.steps[number];
        let mut pointers = Vec::with_capacity(step.arguments.len());
        for argument in &step.arguments {
            let copy = inputs
                .and_then(|inputs| inputs.0[*argument].as_ref())
                .map(Memory::address);
            let own = || self.slots[*argument].placed.as_ref().map(Placed::address);
            pointers.push(
                copy.or_else(own)
                    .ok_or_else(|| GpuError::plan(format!("buffer {argument} has no memory")))?,
            );
        }
        let launch = &step.launch;
        let mut maps = Vec::with_capacity(launch.maps.len());
        for map in &launch.maps {
            let at = step.arguments.iter().position(|a| *a == map.buffer.index());
            let at =
                at.ok_or_else(|| GpuError::plan("a map of a buffer that is no argument".into()))?;
            maps.push(EncodedMap::new(&self.context, map, pointers[at])?);
        }
        pointers.extend(step.split_workspace.as_ref().map(Placed::address));
        self.stream.launch(&step.function, launch, &pointers, &maps)
    }
}

/// Memory for each input, `None` for the other buffers.
pub(crate) struct InputCopy(Vec<Option<Memory>>);

fn prepare(
    module: &Rc<Module>,
    launch: &Launch,
    buffers: usize,
    local_memory: bool,
) -> Result<(Step, KernelFacts), GpuError> {
    let entry = &launch.entry;
    let wrap = |error| GpuError::Kernel {
        entry: entry.clone(),
        error: Box::new(error),
    };
    let arguments: Vec<usize> = launch
        .arguments
        .iter()
        .map(|buffer| buffer.index())
        .collect();
    if let Some(argument) = arguments.iter().find(|argument| **argument >= buffers) {
        return Err(GpuError::plan(format!(
            "kernel `{entry}` names buffer {argument} of {buffers}"
        )));
    }
    let function = module.function(entry)?;
    let parameters = function.parameters().map_err(wrap)?;
    let split_workspace = launch.split_workspace;
    let count = arguments.len() + usize::from(split_workspace.bytes > 0);
    let maps = launch.maps.iter().map(|_| EncodedMap::BYTES);
    let expected: Vec<usize> = std::iter::repeat_n(size_of::<u64>(), count)
        .chain(maps)
        .collect();
    if let Some(map) = (launch.maps.iter()).find(|m| !arguments.contains(&m.buffer.index())) {
        return Err(GpuError::plan(format!(
            "kernel `{entry}` has a map of buffer {}, which is no argument",
            map.buffer.index()
        )));
    }
    if split_workspace.counters > split_workspace.bytes
        || !split_workspace.counters.is_multiple_of(4)
    {
        return Err(GpuError::plan(format!(
            "kernel `{entry}` has a split-K workspace of {} bytes with {} bytes of counters",
            split_workspace.bytes, split_workspace.counters
        )));
    }
    if parameters != expected {
        return Err(GpuError::plan(format!(
            "kernel `{entry}` has parameters of {parameters:?} bytes, and the launch passes {expected:?}"
        )));
    }
    let fact = KernelFacts {
        entry: entry.clone(),
        registers: function
            .attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
            .map_err(wrap)?,
        local_bytes: function
            .attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
            .map_err(wrap)?,
        shared_bytes: function
            .attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
            .map_err(wrap)?,
    };
    if fact.local_bytes > 0 && !local_memory {
        return Err(GpuError::LocalMemory {
            entry: entry.clone(),
            bytes: fact.local_bytes,
        });
    }
    // Always set: the default limit of 48 KiB holds for static and dynamic shared memory together.
    function
        .set_attribute(
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            launch.shared_bytes,
        )
        .map_err(wrap)?;
    if split_workspace.together > 1 {
        let room = function
            .blocks_together(launch.threads, launch.shared_bytes)
            .map_err(wrap)?;
        if room < split_workspace.together {
            return Err(GpuError::plan(format!(
                "{} blocks of kernel `{entry}` wait for each other, and {room} find room",
                split_workspace.together
            )));
        }
    }
    Ok((
        Step {
            launch: launch.clone(),
            function,
            arguments,
            split_workspace: None,
        },
        fact,
    ))
}

/// A place from a seed and a buffer's index: splitmix64 (Steele, Lea, Flood 2014).
fn place(seed: u64, index: u64) -> u64 {
    let mut state = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (state ^ (state >> 31)) % PLACES
}

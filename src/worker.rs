//! The part of the pipeline that runs on the GPU, in a child process that may die or hang without harm.
//!
//! The parent speaks to it through [`device::worker::Worker`]: one JSON line a request, one an answer, a deadline for each. The child
//! opens the GPU at the first request and keeps, of the program that it was last given, inputs on the GPU and what candidates are screened
//! by: samples of the reference's outputs. A parent
//! whose child was lost gives the next one the program again.

pub mod estimate;
pub mod measure;
mod parts;
mod prepared;
mod reference;
mod sample;
mod stocks;

use codegen::{Launch, ReferenceMode};
use device::gpu::{Gpu, GpuInfo, TimedOn};
use device::gpu_error::GpuError;
use device::locks::{GpuLock, GpuLocks};
use device::nvrtc::SearchPath;
use device::session::{BufferSpec, Code, Role, Session, SessionSettings, Stock, Violation, Watch};
use device::timing::{self, Measurement, TimingSettings};
use device::worker::{Worker, WorkerCommand, WorkerError, end_process, serve};
use ir::{BufferRole, Dtype, Program, Reject, Target, TileProgram};
use parts::{COMPARED, Parts, stored};
use prepared::{Prepared, Yardstick};
use reference::{Chain, room};
use sample::Sample;
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stocks::stocks;
use verify::inputs::DISTRIBUTIONS;
use verify::tolerance::{Limits, Roundings, screen};
use verify::{
    DrawnInputs, KernelEvidence, KernelOptions, Machine, Ran, RunOptions, Stored, check_kernel,
    screening_seed,
};

/// Compiled kernels, as they cross to the worker: a candidate, or one kernel of one, which need not store what the program gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    buffers: Vec<JobBuffer>,
    launches: Vec<Launch>,
    /// One a launch.
    cubins: Vec<Vec<u8>>,
}

/// What a worker has to know of a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct JobBuffer {
    name: String,
    role: BufferRole,
    dtype: Dtype,
    bytes: u64,
}

/// Programs cross as their text: JSON has no infinities.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What a worker is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// What GPU is there?
    Info,
    /// This is the program from now on.
    Load(Box<Setting>),
    /// Candidates will be verified.
    Prepare,
    /// Could this candidate compute the program? One kind of input, no evidence.
    Screen(Box<Job>),
    /// Does this candidate compute the program? Every kind of input, all guards.
    Verify(Box<Job>),
    /// How long do these take, measured in turns?
    Time { jobs: Vec<Job>, care: Care },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Info(Result<GpuInfo, GpuError>),
    Loaded(Result<(), String>),
    Screened(Result<(), Reject>),
    Verified(Result<Box<KernelEvidence>, Reject>),
    Timed(Result<Vec<Measurement>, Reject>),
}

/// The program that candidates are judged by, and what the reference needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setting {
    /// The program.
    #[serde(with = "text")]
    pub program: Program,
    /// The seed of the drawn inputs.
    pub seed: u64,
    /// The architecture of this machine's GPU.
    pub arch: String,
    /// Where NVRTC is: the reference is compiled too.
    pub nvrtc: SearchPath,
}

/// How long something is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Care {
    /// To tell candidates apart.
    Quick,
    /// To state a time; all together in about so long at most.
    Thorough(Duration),
}

/// For one request: a kernel that hangs is killed. Loading a program and verifying a candidate may take longer where that is expected.
const VERIFY_DEADLINE: Duration = Duration::from_secs(120);
const LOAD_DEADLINE: Duration = Duration::from_secs(300);
const TIME_DEADLINE: Duration = Duration::from_secs(120);
const INFO_DEADLINE: Duration = Duration::from_secs(30);

/// Why there is nobody to ask.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WorkerFailure {
    /// There is no GPU, or it cannot be used.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The reference could not be computed.
    #[error("the reference could not be computed on the GPU: {0}")]
    Reference(String),
    /// The process failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

impl WorkerFailure {
    /// Whether it is that there is no GPU, and not that there is one that cannot be used.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Gpu(GpuError::NoDriver { .. } | GpuError::NoDevice { .. }) => true,
            Self::Gpu(
                GpuError::Call { .. }
                | GpuError::Kernel { .. }
                | GpuError::LocalMemory { .. }
                | GpuError::Plan { .. }
                | GpuError::File { .. },
            )
            | Self::Reference(_)
            | Self::Worker(_) => false,
        }
    }
}

/// The parent's end.
pub struct GpuWorker {
    worker: Worker,
    setting: Option<Setting>,
    /// How many processes were started when the setting was last sent.
    loaded: Option<u64>,
    /// For loading and for verifying what was set.
    deadlines: [Duration; 2],
    /// When nobody waits for an answer about a candidate any more.
    end: Option<Instant>,
    stop: Arc<AtomicBool>,
    /// What locks the GPU, and until when it is waited for; nothing where it is not locked.
    locks: Option<(GpuLocks, Option<Instant>)>,
    /// The GPU's identifier, once it was asked for.
    uuid: Option<String>,
}

impl GpuWorker {
    /// Starts nothing yet. The program's subcommand `gpu-worker` is [`gpu_worker`], for the first device.
    pub fn new(program: &Path) -> Self {
        Self::on(program, 0)
    }

    /// The same for a device, as the driver counts.
    pub fn on(program: &Path, device: u32) -> Self {
        let device = device.to_string();
        Self {
            worker: Worker::new(WorkerCommand {
                program: program.to_path_buf(),
                arguments: vec!["gpu-worker".into(), "--device".into(), device.into()],
            }),
            setting: None,
            loaded: None,
            deadlines: [LOAD_DEADLINE, VERIFY_DEADLINE],
            end: None,
            stop: Arc::default(),
            locks: None,
            uuid: None,
        }
    }

    /// The same worker, which answers nothing once `stop` is set.
    pub fn until(self, stop: Arc<AtomicBool>) -> Self {
        Self {
            worker: self.worker.until(stop.clone()),
            stop,
            ..self
        }
    }

    /// A candidate that is not done by then is refused, and its process killed: a kernel may take any multiple of what was expected. Nothing is begun
    /// then either, nor the reference loaded again for it.
    pub fn end_at(&mut self, end: Instant) {
        self.end = Some(end);
    }

    /// From now on the GPU is locked while something is timed on it. It is waited for until `end`, and two minutes at most.
    pub fn lock_with(&mut self, locks: GpuLocks, end: Option<Instant>) {
        self.locks = Some((locks, end));
    }

    /// What GPU there is.
    pub fn info(&mut self) -> Result<GpuInfo, WorkerFailure> {
        match self.worker.call(&Request::Info, INFO_DEADLINE)? {
            Answer::Info(info) => {
                let info = info.map_err(WorkerFailure::Gpu)?;
                self.uuid = Some(info.uuid.clone());
                Ok(info)
            }
            Answer::Loaded(_) | Answer::Screened(_) | Answer::Verified(_) | Answer::Timed(_) => {
                Err(confused())
            }
        }
    }

    /// Gives the program that candidates are judged by; the reference is computed now, and, where some will be verified here, what they are verified by,
    /// if there is room to keep it.
    pub fn load(&mut self, setting: Setting, verifies: bool) -> Result<(), WorkerFailure> {
        self.deadlines = deadlines(&setting);
        self.setting = Some(setting);
        self.loaded = None;
        self.reload(self.deadlines[0])?;
        // What is not made now, or is lost with a process, is made by the next verification.
        if verifies && let Err(error) = self.ask_to_load(&Request::Prepare, self.deadlines[0]) {
            tracing::warn!(%error, "what candidates are verified by could not be made ahead");
            self.reload(self.deadlines[0])?;
        }
        Ok(())
    }

    /// Runs a candidate once on one kind of input and compares; a lost worker is a reject.
    pub fn screen(&mut self, job: Job) -> Result<(), Reject> {
        match self.judge(&Request::Screen(Box::new(job)), self.deadlines[1])? {
            Answer::Screened(result) => result,
            Answer::Info(_) | Answer::Loaded(_) | Answer::Verified(_) | Answer::Timed(_) => {
                Err(Reject::Fault(confused().to_string()))
            }
        }
    }

    /// Runs a candidate on every kind of input, with all guards; a lost worker is a reject.
    pub fn verify(&mut self, job: Job) -> Result<KernelEvidence, Reject> {
        match self.judge(&Request::Verify(Box::new(job)), self.deadlines[1])? {
            Answer::Verified(result) => result.map(|evidence| *evidence),
            Answer::Info(_) | Answer::Loaded(_) | Answer::Screened(_) | Answer::Timed(_) => {
                Err(Reject::Fault(confused().to_string()))
            }
        }
    }

    /// Times candidates, one after another and again; a lost worker is a reject of all of them, and so is a GPU that others kept.
    pub fn time(&mut self, jobs: Vec<Job>, care: Care) -> Result<Vec<Measurement>, Reject> {
        // Once a process is lost, the next one has read the program before the GPU is locked.
        self.ready()?;
        let _lock = self.lock()?;
        match self.judge(&Request::Time { jobs, care }, TIME_DEADLINE)? {
            Answer::Timed(result) => result,
            Answer::Info(_) | Answer::Loaded(_) | Answer::Screened(_) | Answer::Verified(_) => {
                Err(Reject::Fault(confused().to_string()))
            }
        }
    }

    /// Times one candidate, or one kernel, to tell it from others.
    pub fn time_one(&mut self, job: Job) -> Result<Measurement, Reject> {
        let time = self.time(vec![job], Care::Quick)?.pop();
        time.ok_or_else(|| Reject::Fault("the worker gave no time".to_owned()))
    }

    /// The lock of the GPU; none where it is not locked.
    fn lock(&mut self) -> Result<Option<GpuLock>, Reject> {
        let Some((locks, end)) = self.locks.clone() else {
            return Ok(None);
        };
        let uuid = match &self.uuid {
            Some(uuid) => uuid.clone(),
            None => self.info().map_err(|e| Reject::Fault(e.to_string()))?.uuid,
        };
        let longest = Instant::now() + TIME_DEADLINE;
        let end = end.map_or(longest, |end| end.min(longest));
        let is_over = || self.stop.load(Ordering::Relaxed) || Instant::now() >= end;
        match locks.lock(&uuid, is_over) {
            Ok(Some(lock)) => Ok(Some(lock)),
            Ok(None) => {
                let what = "another process timed on this GPU for as long as there was time";
                Err(Reject::Fault(what.to_owned()))
            }
            Err(error) => {
                tracing::warn!(%error, "a GPU cannot be locked: others may time on it at the same moment");
                self.locks = None;
                Ok(None)
            }
        }
    }

    fn judge(&mut self, request: &Request, deadline: Duration) -> Result<Answer, Reject> {
        self.ready()?;
        let deadline = self.within(deadline)?;
        let answer = self.worker.call(request, deadline);
        let answer: Answer = answer.map_err(|e| {
            if e != WorkerError::Stopped {
                tracing::warn!(error = %e, "a worker was lost; it is started again");
            }
            Reject::Fault(e.to_string())
        })?;
        let fault = match &answer {
            Answer::Screened(Err(Reject::Fault(what))) => Some(what),
            Answer::Verified(Err(Reject::Fault(what))) => Some(what),
            Answer::Timed(Err(Reject::Fault(what))) => Some(what),
            Answer::Screened(_)
            | Answer::Verified(_)
            | Answer::Timed(_)
            | Answer::Info(_)
            | Answer::Loaded(_) => None,
        };
        if let Some(what) = fault {
            // Most faults of a kernel end its context: every later call of the same process would fail too.
            tracing::warn!(what, "a candidate faulted; its worker is started again");
            self.worker.restart();
        }
        Ok(answer)
    }

    /// What is left of a deadline until the end.
    fn within(&self, deadline: Duration) -> Result<Duration, Reject> {
        let left = (self.end).map(|end| end.saturating_duration_since(Instant::now()));
        match left.map_or(deadline, |left| left.min(deadline)) {
            Duration::ZERO => Err(Reject::Fault("the search has to end".to_owned())),
            left => Ok(left),
        }
    }

    /// Loads the program again where that is needed for a candidate.
    fn ready(&mut self) -> Result<(), Reject> {
        let deadline = self.within(self.deadlines[0])?;
        self.reload(deadline)
            .map_err(|e| Reject::Fault(e.to_string()))
    }

    /// A process that was started after a loss does not know the program yet, nor does one that is about to be.
    fn reload(&mut self, deadline: Duration) -> Result<(), WorkerFailure> {
        let Some(setting) = &self.setting else {
            return Ok(());
        };
        if self.loaded == Some(self.worker.starts()) && self.worker.is_running() {
            return Ok(());
        }
        let request = Request::Load(Box::new(setting.clone()));
        let begun = Instant::now();
        self.ask_to_load(&request, deadline)?;
        tracing::debug!(took = ?begun.elapsed(), "a program was given to a GPU's worker");
        self.loaded = Some(self.worker.starts());
        Ok(())
    }

    fn ask_to_load(&mut self, request: &Request, deadline: Duration) -> Result<(), WorkerFailure> {
        match self.worker.call(request, deadline)? {
            Answer::Loaded(result) => result.map_err(WorkerFailure::Reference),
            Answer::Info(_) | Answer::Screened(_) | Answer::Verified(_) | Answer::Timed(_) => {
                Err(confused())
            }
        }
    }
}

/// How long loading, or making ahead what verifications share, and verifying may take: several times what is expected on a GPU of this architecture, if that
/// is known.
fn deadlines(setting: &Setting) -> [Duration; 2] {
    const TIMES: f64 = 4.0;
    const DAY: f64 = 86_400.0;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut targets = search::targets::targets().into_iter();
    let target = targets.find(|t| t.arch == setting.arch);
    let expected =
        target.and_then(|t| estimate::verification_seconds(&setting.program, &t, cores).ok());
    let Some(expected) = expected else {
        return [LOAD_DEADLINE, VERIFY_DEADLINE];
    };
    let longer = |least: Duration, seconds: f64| {
        least.max(Duration::from_secs_f64((TIMES * seconds).clamp(0.0, DAY)))
    };
    [
        longer(LOAD_DEADLINE, expected.load_s.max(expected.shared_s)),
        longer(VERIFY_DEADLINE, expected.shared_s + expected.verify_s),
    ]
}

fn confused() -> WorkerFailure {
    WorkerFailure::Worker(WorkerError::Protocol {
        reason: "an answer to another question".to_owned(),
    })
}

/// What GPU there is, asked in a child process.
pub fn gpu_info(program: &Path) -> Result<GpuInfo, WorkerFailure> {
    GpuWorker::new(program).info()
}

/// Whether it is a GPU of a target's kind.
pub fn is_of(gpu: &GpuInfo, target: &Target) -> bool {
    let capability = gpu.capability.0 * 10 + gpu.capability.1;
    capability == target.capability && gpu.name.contains(&target.device)
}

/// Where something for a target is timed on a GPU; none where there is no such GPU, or none of the target's kind.
pub fn timed_on(program: &Path, gpu: u32, target: &Target) -> Option<TimedOn> {
    let info = GpuWorker::on(program, gpu).info().ok();
    let info = info.filter(|info| is_of(info, target));
    info.map(|info| info.timed_on())
}

/// The child's end, on a device: answers requests until the input closes, then ends the process.
pub fn gpu_worker(
    device: u32,
    input: impl Read + Send + 'static,
    output: impl Write,
) -> std::io::Result<()> {
    let mut child = Child {
        device,
        ..Child::default()
    };
    serve(
        input,
        output,
        || end_process(),
        move |request| match request {
            Request::Info => Answer::Info(child.gpu().map(|gpu| gpu.info().clone())),
            Request::Load(setting) => Answer::Loaded(child.load(*setting)),
            Request::Prepare => Answer::Loaded(child.prepare().map_err(|e| e.to_string())),
            Request::Screen(job) => {
                let screened = child.screen(&job);
                Answer::Screened(child.heard(screened))
            }
            Request::Verify(job) => Answer::Verified(child.verify(&job).map(Box::new)),
            Request::Time { jobs, care } => {
                let timed = child.time(&jobs, care);
                Answer::Timed(child.heard(timed))
            }
        },
    )
}

/// The child's state.
#[derive(Default)]
struct Child {
    device: u32,
    gpu: Option<Gpu>,
    loaded: Option<Loaded>,
    prepared: Prepared,
}

/// A program with what candidates are compared with.
struct Loaded {
    setting: Setting,
    /// What of each output verification compares.
    parts: Vec<Parts>,
    exact: Chain,
    own: Chain,
    /// The baseline with other luck, once it was asked for.
    dithered: OnceCell<Chain>,
    /// One drawn input for screening and timing.
    screening: Vec<Stock>,
    /// What screening compares of each output for it.
    expected: Vec<Expected>,
}

/// A sample of the reference's output and of the baseline's, and how far from it a candidate's may be.
struct Expected {
    sample: Sample,
    limits: Limits,
    reference: Vec<f64>,
    baseline: Vec<f64>,
}

impl Loaded {
    fn options(&self) -> KernelOptions {
        KernelOptions::new(self.setting.seed)
    }

    fn screening(&self) -> Vec<&Stock> {
        self.screening.iter().collect()
    }

    fn reference(&self) -> (Yardstick, &Chain, &[Parts]) {
        (Yardstick::Reference, &self.exact, &self.parts)
    }

    fn baseline(&self) -> (Yardstick, &Chain, &[Parts]) {
        (Yardstick::Baseline, &self.own, &self.parts)
    }
}

impl Child {
    fn gpu(&mut self) -> Result<&Gpu, GpuError> {
        if self.gpu.is_none() {
            self.gpu = Some(Gpu::open(self.device)?);
        }
        self.gpu.as_ref().ok_or(GpuError::Plan {
            reason: "the GPU should be open".to_owned(),
        })
    }

    fn load(&mut self, setting: Setting) -> Result<(), String> {
        let gpu = self.gpu().map_err(|e| e.to_string())?;
        let prepare = || {
            let program = &setting.program;
            let memory = gpu.info().memory_bytes;
            let compiled = |mode| Chain::new(memory, &setting, mode);
            let (exact, own) = rayon::join(
                || compiled(ReferenceMode::Exact),
                || compiled(ReferenceMode::Careful),
            );
            let (exact, own) = (exact?, own?);
            let seed = screening_seed(setting.seed);
            let inputs = DrawnInputs::new(program, &DISTRIBUTIONS[0], seed);
            let shapes = program.outputs.iter().map(|o| program.shape(&o.dims));
            let shapes: Vec<(u64, u64)> = shapes
                .map(|shape| (shape.iter().product(), shape.last().copied().unwrap_or(1)))
                .collect();
            let samples = shapes
                .iter()
                .map(|(elements, row)| Sample::new(*elements, *row));
            let samples: Vec<Sample> = samples.collect();
            let sampled = samples.iter().map(|sample| Parts {
                ranges: sample.stretches.clone(),
            });
            let sampled: Vec<Parts> = sampled.collect();
            let screening = stocks(gpu, program, &inputs)?;
            let inputs: Vec<&Stock> = screening.iter().collect();
            let reference = exact.outputs(gpu, program, &inputs, &sampled)?;
            let baseline = own.outputs(gpu, program, &inputs, &sampled)?;
            let limits = Limits::of(program, Roundings::Spread);
            let expected = samples.into_iter().zip(limits);
            let expected = expected
                .zip(reference.into_iter().zip(baseline))
                .map(|((sample, limits), (reference, baseline))| Expected {
                    sample,
                    reference,
                    baseline,
                    limits,
                })
                .collect();
            let parts = shapes.iter().map(|(n, row)| Parts::of(*n, *row, COMPARED));
            let parts = parts.collect();
            Ok::<_, Reject>((exact, own, screening, expected, parts))
        };
        let (exact, own, screening, expected, parts) = prepare().map_err(|e| e.to_string())?;
        self.prepared = Prepared::new(&setting.program);
        self.loaded = Some(Loaded {
            parts,
            exact,
            own,
            dithered: OnceCell::new(),
            screening,
            expected,
            setting,
        });
        Ok(())
    }

    /// The GPU and the program; both are there once `load` has succeeded.
    fn ready(&self) -> Result<(&Gpu, &Loaded), Reject> {
        match (&self.gpu, &self.loaded) {
            (Some(gpu), Some(loaded)) => Ok((gpu, loaded)),
            (None, _) | (_, None) => Err(not_loaded()),
        }
    }

    fn screen(&self, job: &Job) -> Result<(), Reject> {
        let (gpu, loaded) = self.ready()?;
        let mut session = job.session(gpu, 0)?;
        job.supply(&mut session, &loaded.screening())?;
        // Whether a kernel changes its inputs is for the verification: it takes longer than all the rest here.
        job.run(&mut session, Watch::AllButInputs)?.check_memory()?;
        for (n, expected) in loaded.expected.iter().enumerate() {
            let got = job.part(&session, n as u32, &expected.sample.stretches)?;
            screen(
                &got.values(),
                &expected.reference,
                &expected.baseline,
                expected.sample.row,
                expected.limits,
            )?;
        }
        Ok(())
    }

    /// Makes what candidates are verified by, where that is kept.
    fn prepare(&mut self) -> Result<(), Reject> {
        let (gpu, loaded, prepared) = self.with_prepared()?;
        prepared.make(gpu, loaded)
    }

    fn verify(&mut self, job: &Job) -> Result<KernelEvidence, Reject> {
        let (gpu, loaded, prepared) = self.with_prepared()?;
        // Where it cannot be made ahead the verification says why.
        let _ = prepared.make(gpu, loaded);
        let mut machine = Bench::new(gpu, loaded, prepared, job);
        let found = check_kernel(&mut machine, &loaded.setting.program, &loaded.options());
        // What is wrong may have written anywhere.
        if found.is_err() {
            prepared.forget_inputs();
        }
        found
    }

    /// What is wrong may have written anywhere.
    fn heard<T>(&mut self, found: Result<T, Reject>) -> Result<T, Reject> {
        if found.is_err() {
            self.prepared.forget_inputs();
        }
        found
    }

    /// The same as [`ready`](Self::ready), with what is kept.
    fn with_prepared(&mut self) -> Result<(&Gpu, &Loaded, &mut Prepared), Reject> {
        match (&self.gpu, &self.loaded) {
            (Some(gpu), Some(loaded)) => Ok((gpu, loaded, &mut self.prepared)),
            (None, _) | (_, None) => Err(not_loaded()),
        }
    }

    fn time(&self, jobs: &[Job], care: Care) -> Result<Vec<Measurement>, Reject> {
        let settings = match care {
            Care::Quick => TimingSettings::quick(),
            Care::Thorough(limit) => TimingSettings::default().within(limit, jobs.len()),
        };
        let (gpu, loaded) = self.ready()?;
        let mut sessions = Vec::new();
        for job in jobs {
            let mut session = job.session(gpu, 0)?;
            job.supply(&mut session, &loaded.screening())?;
            sessions.push(session);
        }
        let contenders: Vec<&Session> = sessions.iter().collect();
        timing::measure(gpu, &contenders, &settings).map_err(|e| fault(&e))
    }
}

impl Job {
    /// The kernels of a tile program, or one of them, with their machine code: a cubin for each launch.
    pub fn new(tile: &TileProgram, launches: &[Launch], cubins: Vec<Vec<u8>>) -> Self {
        let buffers = tile.buffers.iter().map(|buffer| JobBuffer {
            name: buffer.name.clone(),
            role: buffer.role,
            dtype: buffer.dtype,
            bytes: tile.buffer_bytes(buffer),
        });
        Self {
            buffers: buffers.collect(),
            launches: launches.to_vec(),
            cubins,
        }
    }

    /// A hash of all that runs: machine code, launches and buffers.
    pub fn subject(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let around = serde_json::to_vec(&(&self.buffers, &self.launches)).unwrap_or_default();
        hasher.update(&(around.len() as u64).to_le_bytes());
        hasher.update(&around);
        for cubin in &self.cubins {
            hasher.update(&(cubin.len() as u64).to_le_bytes());
            hasher.update(cubin);
        }
        hasher.finalize().to_hex().to_string()
    }

    fn session(&self, gpu: &Gpu, placement: u64) -> Result<Session, Reject> {
        let settings = SessionSettings {
            placement,
            ..SessionSettings::default()
        };
        let code = Code::Each(&self.cubins);
        Session::open(gpu, code, &self.launches, &self.specs(), settings).map_err(|e| fault(&e))
    }

    fn specs(&self) -> Vec<BufferSpec> {
        let spec = |buffer: &JobBuffer| BufferSpec {
            name: buffer.name.clone(),
            bytes: buffer.bytes,
            role: match buffer.role {
                BufferRole::Parameter(_) => Role::Input,
                BufferRole::Output(_) => Role::Output,
                BufferRole::Workspace => Role::Workspace,
            },
        };
        self.buffers.iter().map(spec).collect()
    }

    /// Rounds the inputs to the parameters' dtypes and gives them to the session.
    fn upload(&self, session: &mut Session, inputs: &DrawnInputs) -> Result<(), Reject> {
        let bytes: Vec<u64> = self.buffers.iter().map(|b| b.bytes).collect();
        inputs.draw();
        self.fill(inputs.draws().len(), |at, dtype, n| {
            session.upload(at, stocks::data(dtype, &inputs.tensor(n), bytes[at])?)
        })
    }

    /// Gives the session its inputs from what is on the GPU.
    fn supply(&self, session: &mut Session, stocks: &[&Stock]) -> Result<(), Reject> {
        self.fill(stocks.len(), |at, _, n| session.take(at, stocks[n]))
    }

    /// Gives each parameter's buffer, by its place, what is its own of so many.
    fn fill(
        &self,
        count: usize,
        mut give: impl FnMut(usize, Dtype, usize) -> Result<(), GpuError>,
    ) -> Result<(), Reject> {
        for (at, buffer) in self.buffers.iter().enumerate() {
            if let BufferRole::Parameter(n) = buffer.role {
                let own = n as usize;
                if own >= count {
                    return Err(Reject::Fault(format!("there is no parameter {n}")));
                }
                give(at, buffer.dtype, own).map_err(|e| fault(&e))?;
            }
        }
        Ok(())
    }

    /// Runs a session of this job once and sorts what was violated; downloads nothing.
    fn run(&self, session: &mut Session, watch: Watch) -> Result<Ran, Reject> {
        let violations = session.run_watched(watch).map_err(|e| fault(&e))?;
        let mut ran = Ran::default();
        for violation in violations {
            match violation {
                Violation::InputChanged { buffer } => ran.inputs_changed.push(buffer),
                Violation::Before { buffer, .. } | Violation::After { buffer, .. } => {
                    ran.canaries_changed.push(buffer);
                }
                Violation::SplitWorkspaceLeft { entry } => ran.split_workspaces_left.push(entry),
            }
        }
        Ok(ran)
    }

    /// Some elements of an output.
    fn part(&self, session: &Session, output: u32, part: &[Range<u64>]) -> Result<Stored, Reject> {
        let mut all = self.buffers.iter().enumerate();
        let (at, buffer) = all
            .find(|(_, b)| b.role == BufferRole::Output(output))
            .ok_or_else(|| Reject::Wrong(format!("output {output} is not computed")))?;
        stored(session, at, buffer.dtype, part).map_err(|e| fault(&e))
    }
}

/// The GPU as `verify` sees it.
struct Bench<'a> {
    gpu: &'a Gpu,
    loaded: &'a Loaded,
    job: &'a Job,
    prepared: &'a mut Prepared,
    /// Whether the GPU has no room for inputs beside the candidate's own copy and those for screening.
    tight: bool,
}

impl<'a> Bench<'a> {
    fn new(gpu: &'a Gpu, loaded: &'a Loaded, prepared: &'a mut Prepared, job: &'a Job) -> Self {
        let own: u64 = job.buffers.iter().map(|b| b.bytes).sum();
        let others = 2 * loaded.setting.program.input_bytes() + prepared.bytes();
        Self {
            gpu,
            loaded,
            job,
            prepared,
            tight: own + others > room(gpu.info().memory_bytes),
        }
    }

    fn outputs(
        &mut self,
        yardstick: (Yardstick, &Chain, &[Parts]),
        inputs: &DrawnInputs,
    ) -> Result<Vec<Vec<f64>>, Reject> {
        let program = &self.loaded.setting.program;
        self.prepared.outputs(self.gpu, program, yardstick, inputs)
    }
}

impl Machine for Bench<'_> {
    fn reference(&mut self, inputs: &DrawnInputs) -> Result<Vec<Vec<f64>>, Reject> {
        self.outputs(self.loaded.reference(), inputs)
    }

    fn baseline(&mut self, inputs: &DrawnInputs) -> Result<Vec<Vec<f64>>, Reject> {
        self.outputs(self.loaded.baseline(), inputs)
    }

    fn dithered(&mut self, inputs: &DrawnInputs) -> Result<Option<Vec<Vec<f64>>>, Reject> {
        // Few programs need it: it is compiled when one does.
        if self.loaded.dithered.get().is_none() {
            let memory = self.gpu.info().memory_bytes;
            let chain = Chain::new(memory, &self.loaded.setting, ReferenceMode::Dithered)?;
            let _ = self.loaded.dithered.set(chain);
        }
        // What a candidate may have done to inputs on the GPU is no matter then.
        self.prepared.forget_inputs();
        let Some(chain) = self.loaded.dithered.get() else {
            return Ok(None);
        };
        let program = &self.loaded.setting.program;
        let stocks = self.prepared.stocks(self.gpu, program, inputs)?;
        let made = chain.outputs(self.gpu, program, &stocks, &self.loaded.parts);
        made.map(Some)
    }

    fn subject(&self) -> String {
        self.job.subject()
    }

    fn run(&mut self, inputs: &DrawnInputs, options: RunOptions) -> Result<Ran, Reject> {
        let (job, program) = (self.job, &self.loaded.setting.program);
        if self.tight {
            self.prepared.forget_inputs();
        }
        let mut session = job.session(self.gpu, u64::from(options.placement))?;
        match self.tight {
            true => job.upload(&mut session, inputs)?,
            false => {
                let stocks = self.prepared.stocks(self.gpu, program, inputs)?;
                job.supply(&mut session, &stocks)?;
            }
        }
        let mut ran = job.run(&mut session, Watch::Everything)?;
        for (n, parts) in (0..).zip(&self.loaded.parts) {
            ran.outputs.push(job.part(&session, n, &parts.ranges)?);
        }
        Ok(ran)
    }

    fn compared(&self, output: usize) -> Option<Vec<Range<u64>>> {
        self.loaded.parts.get(output).map(|p| p.ranges.clone())
    }
}

fn not_loaded() -> Reject {
    Reject::Fault("no program was loaded".to_owned())
}

fn fault(error: &GpuError) -> Reject {
    Reject::Fault(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_waited_for() {
        let setting = |n: u64| {
            Setting {
            program: format!("program m\naxis i = {n}, j = {n}, k = {n}\nx = parameter bf16 [i, k]\ny = parameter bf16 [k, j]\nreturn bf16 [i, j] dot(x, y; k)\n")
                .parse()
                .expect("a program"),
            seed: 0,
            arch: "sm_90a".to_owned(),
            nvrtc: SearchPath::default(),
        }
        };
        assert_eq!(deadlines(&setting(64)), [LOAD_DEADLINE, VERIFY_DEADLINE]);
        let [load, verify] = deadlines(&setting(65536));
        assert!(load > LOAD_DEADLINE, "{load:?}");
        assert!(verify > 2 * VERIFY_DEADLINE, "{verify:?}");
    }

    #[test]
    fn kernels_alone_cross() {
        let text = "tile two\naxis i = 8\nbuffer x = parameter 0 f16 [i]\nbuffer out0 = output 0 f16 [i]\nbuffer w2 = workspace f32 [i]\n\
            kernel grid(i: 8) values(v) {\n  v = load x[i]\n  store w2 = v\n}\n\
            kernel grid(i: 8) values(v) {\n  v = load w2[i]\n  store out0 = v\n}\n";
        let tile: TileProgram = text.parse().expect("a tile program");
        for kernel in 0..2 {
            let job = Job::new(&tile.alone(kernel), &[], vec![vec![1, 2]]);
            let request = Request::Time {
                jobs: vec![job.clone()],
                care: Care::Quick,
            };
            let line = serde_json::to_string(&request).expect("a line");
            let read: Request = serde_json::from_str(&line).expect("a request");
            let Request::Time { jobs, .. } = read else {
                panic!("another request: {read:?}");
            };
            assert_eq!(jobs, [job], "kernel {kernel}");
        }
    }
}

//! Child processes that answer JSON lines, and the pool that compiles in them.
//!
//! A worker can hang, crash or be killed: each is an error value of the request that it was answering, and the next request
//! starts a new process. A line is `{"id": n, "body": …}` in both directions. A worker ends itself when its input closes, which
//! also happens when its parent dies, however the parent dies.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Key};
use crate::nvrtc::{CompileError, Compiled, Nvrtc, Options, SearchPath};

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum WorkerError {
    /// The process could not be started.
    #[error("the worker could not be started: {reason}")]
    Start {
        /// The system's words.
        reason: String,
    },
    /// No answer before the deadline; the process was killed.
    #[error("no answer within {} ms; the worker was killed", .0.as_millis())]
    Timeout(Duration),
    /// Somebody ended the search; the process was killed.
    #[error("the search was ended")]
    Stopped,
    /// The process ended instead of answering.
    #[error("the worker was lost ({status}){}", if stderr.is_empty() { String::new() } else { format!(": {stderr}") })]
    Lost {
        /// How it ended.
        status: String,
        /// The end of what it wrote to its standard error.
        stderr: String,
    },
    /// The answer is not what was agreed; the process was killed.
    #[error("the worker broke the protocol: {reason}")]
    Protocol {
        /// What was wrong.
        reason: String,
    },
}

/// How to start a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// A child process that answers one request at a time. Started at the first request, and again after each loss.
pub struct Worker {
    command: WorkerCommand,
    running: Option<Running>,
    next: u64,
    starts: u64,
    stop: Arc<AtomicBool>,
}

/// How often whoever waits for an answer looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(20);

impl Worker {
    /// Starts nothing yet.
    pub fn new(command: WorkerCommand) -> Self {
        Self {
            command,
            running: None,
            next: 0,
            starts: 0,
            stop: Arc::default(),
        }
    }

    /// The same worker, whose requests have no answer once `stop` is set: the process that works on one is killed then.
    pub fn until(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// How many processes were started so far.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Whether a process is held, so that the next request goes to the one that answered the last. If that process ended since, the
    /// next request is [`WorkerError::Lost`], not answered by another process.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Ends the process, if there is one; the next request starts another. For a process that answers but is of no more use, such
    /// as one whose GPU faulted.
    pub fn restart(&mut self) {
        self.running = None;
    }

    /// Sends a request and waits for its answer, at most until the deadline; the start of a process counts.
    pub fn call<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        request: &Q,
        deadline: Duration,
    ) -> Result<A, WorkerError> {
        let end = Instant::now() + deadline;
        let id = self.next;
        self.next += 1;
        let mut line = serde_json::to_string(&Message { id, body: request }).map_err(|error| {
            WorkerError::Protocol {
                reason: error.to_string(),
            }
        })?;
        line.push('\n');
        if self.stop.load(Ordering::Relaxed) {
            self.running = None;
            return Err(WorkerError::Stopped);
        }
        let mut running = match self.running.take() {
            Some(running) => running,
            None => {
                self.starts += 1;
                Running::start(&self.command)?
            }
        };
        // If the writer is gone, so is the process, and the wait for the answer says how it ended.
        let _ = running.requests.send(line);
        let answer = loop {
            let left = end.saturating_duration_since(Instant::now());
            match running.answers.recv_timeout(left.min(LOOK)) {
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Relaxed) => {
                    return Err(WorkerError::Stopped);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                answer => break answer,
            }
        };
        match answer {
            Ok(answer) => match serde_json::from_str::<Message<A>>(&answer) {
                Ok(message) if message.id == id => {
                    self.running = Some(running);
                    Ok(message.body)
                }
                Ok(message) => Err(WorkerError::Protocol {
                    reason: format!("expected answer {id}, found answer {}", message.id),
                }),
                Err(error) => {
                    let start: String = answer.chars().take(120).collect();
                    Err(WorkerError::Protocol {
                        reason: format!("{error} in `{}`", start.trim_end()),
                    })
                }
            },
            Err(RecvTimeoutError::Timeout) => Err(WorkerError::Timeout(deadline)),
            Err(RecvTimeoutError::Disconnected) => Err(running.loss()),
        }
        // Unless it was put back above, `running` is killed here.
    }
}

#[derive(Serialize, Deserialize)]
struct Message<T> {
    id: u64,
    body: T,
}

/// A live process and the threads at its pipes. The threads hold no lock and end with the pipes.
struct Running {
    child: Child,
    requests: Sender<String>,
    answers: Receiver<String>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

/// Bytes of standard error that are kept.
const STDERR_KEPT: usize = 2048;
/// How long a process that closed its output, or was killed, is waited for.
const GRACE: Duration = Duration::from_secs(2);

impl Running {
    fn start(command: &WorkerCommand) -> Result<Self, WorkerError> {
        let failed = |reason: String| WorkerError::Start {
            reason: format!("{}: {reason}", command.program.display()),
        };
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A key that ends the parent is not for the child: the parent decides when it ends.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (Some(mut stdin), Some(stdout), Some(mut stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("a pipe is missing".into()));
        };
        let (requests, outgoing) = channel::<String>();
        let (incoming, answers) = channel();
        // Writing has a thread of its own: a child that does not read would block the caller past its deadline.
        std::thread::spawn(move || {
            for line in outgoing {
                if stdin
                    .write_all(line.as_bytes())
                    .and_then(|()| stdin.flush())
                    .is_err()
                {
                    break;
                }
            }
        });
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = Vec::new();
                match reader.read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
                if incoming
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    break;
                }
            }
        });
        let tail = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&tail);
        std::thread::spawn(move || {
            let mut chunk = [0_u8; 1024];
            while let Ok(count @ 1..) = stderr.read(&mut chunk) {
                let mut bytes = kept.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.extend_from_slice(&chunk[..count]);
                let excess = bytes.len().saturating_sub(STDERR_KEPT);
                bytes.drain(..excess);
            }
        });
        Ok(Self {
            child,
            requests,
            answers,
            stderr: tail,
        })
    }

    /// How a process that closed its output ended.
    fn loss(&mut self) -> WorkerError {
        let status = match wait(&mut self.child, GRACE) {
            Some(status) => status.to_string(),
            None => "it closed its output and did not end".into(),
        };
        // The last words may still be on their way through the pipe.
        std::thread::sleep(Duration::from_millis(20));
        let bytes = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        WorkerError::Lost {
            status,
            stderr: String::from_utf8_lossy(&bytes).trim().to_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A process inside a driver call may outlive its kill for a while; it is not waited for without end.
        let _ = wait(&mut self.child, GRACE);
    }
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Ends a worker's process at once, even while another thread is inside a library that it opened.
pub fn end_process() -> ! {
    crate::nvrtc_ffi::end_process()
}

/// The main loop of a worker: answers each line of `input` in order, until `output` closes or a line is no request.
///
/// `on_end` runs on another thread when the input closes, even while an answer is being computed: that is how a worker that
/// hangs in a call ends with its parent. A process gives [`end_process`].
pub fn serve<Q, A>(
    input: impl Read + Send + 'static,
    mut output: impl Write,
    on_end: impl FnOnce() + Send + 'static,
    mut answer: impl FnMut(Q) -> A,
) -> std::io::Result<()>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize,
{
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(input).lines();
        while let Some(Ok(line)) = lines.next() {
            if sender.send(line).is_err() {
                return;
            }
        }
        drop(sender);
        on_end();
    });
    for line in requests {
        let request: Message<Q> = serde_json::from_str(&line)?;
        let mut text = serde_json::to_string(&Message {
            id: request.id,
            body: answer(request.body),
        })?;
        text.push('\n');
        output.write_all(text.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

/// What the compile worker is asked.
#[derive(Serialize, Deserialize)]
enum CompileRequest {
    Version {
        search: SearchPath,
    },
    Compile {
        search: SearchPath,
        source: String,
        arch: String,
        options: Options,
    },
}

#[derive(Serialize, Deserialize)]
enum CompileAnswer {
    Version(Result<(i32, i32), CompileError>),
    Compile(Box<Result<Compiled, CompileError>>),
}

/// The main loop of a compile worker: the hidden subcommand that [`CompilePool`] starts calls this with its standard input and
/// output. Ends the process when the input closes.
pub fn compile_worker(
    input: impl Read + Send + 'static,
    output: impl Write,
) -> std::io::Result<()> {
    // Opened once; another search path than the first one's is opened anew.
    let mut opened: Option<(SearchPath, Nvrtc)> = None;
    let mut nvrtc =
        |search: SearchPath, task: &mut dyn FnMut(&Nvrtc) -> CompileAnswer| match &opened {
            Some((path, nvrtc)) if *path == search => Ok(task(nvrtc)),
            Some(_) | None => {
                let nvrtc = Nvrtc::open(&search)?;
                let answer = task(&nvrtc);
                opened = Some((search, nvrtc));
                Ok::<_, CompileError>(answer)
            }
        };
    serve(
        input,
        output,
        || end_process(),
        |request| match request {
            CompileRequest::Version { search } => nvrtc(search, &mut |nvrtc| {
                CompileAnswer::Version(Ok(nvrtc.version()))
            })
            .unwrap_or_else(|error| CompileAnswer::Version(Err(error))),
            CompileRequest::Compile {
                search,
                source,
                arch,
                options,
            } => {
                let mut compile = |nvrtc: &Nvrtc| {
                    CompileAnswer::Compile(Box::new(nvrtc.compile(&source, &arch, &options)))
                };
                nvrtc(search, &mut compile)
                    .unwrap_or_else(|error| CompileAnswer::Compile(Box::new(Err(error))))
            }
        },
    )
}

/// What a pool needs to know.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// How to start a compile worker.
    pub command: WorkerCommand,
    /// How many.
    pub workers: usize,
    /// Where NVRTC is.
    pub search: SearchPath,
    /// Chosen for all programs.
    pub options: Options,
    /// For each program; a compilation that takes longer is lost.
    pub deadline: Duration,
    /// Once it is set nothing is compiled any more.
    pub stop: Arc<AtomicBool>,
}

/// Several processes that compile, since NVRTC's calls hardly overlap inside one process.
pub struct CompilePool {
    settings: PoolSettings,
    workers: Vec<Worker>,
    cache: Option<Cache>,
    version: Option<(i32, i32)>,
    /// What is not compiled by then is lost, however long its own deadline is.
    end: Option<Instant>,
    /// What was not compiled but found in the cache.
    found: BTreeSet<Key>,
}

impl CompilePool {
    /// Starts nothing yet.
    pub fn new(settings: PoolSettings, cache: Option<Cache>) -> Self {
        let workers = (0..settings.workers.max(1))
            .map(|_| Worker::new(settings.command.clone()).until(settings.stop.clone()))
            .collect();
        Self {
            end: None,
            settings,
            workers,
            cache,
            version: None,
            found: BTreeSet::new(),
        }
    }

    /// From now on what is not compiled by then is [`WorkerError::Timeout`]: no program is waited for longer.
    pub fn end_at(&mut self, end: Option<Instant>) {
        self.end = end;
    }

    /// NVRTC's version, asked for once.
    pub fn version(&mut self) -> Result<(i32, i32), CompileError> {
        if let Some(version) = self.version {
            return Ok(version);
        }
        let request = CompileRequest::Version {
            search: self.settings.search.clone(),
        };
        let version = match self.workers[0].call(&request, self.settings.deadline)? {
            CompileAnswer::Version(version) => version?,
            CompileAnswer::Compile(_) => return Err(wrong_answer()),
        };
        Ok(*self.version.insert(version))
    }

    /// Compiles `(source, architecture)` pairs in parallel; the results are in the order of the pairs and do not depend on the
    /// number of workers. Programs in the cache are not compiled.
    pub fn compile_many(
        &mut self,
        programs: &[(String, String)],
    ) -> Vec<Result<Compiled, CompileError>> {
        let version = match self.version() {
            Ok(version) => version,
            Err(error) => return programs.iter().map(|_| Err(error.clone())).collect(),
        };
        let (settings, cache, end) = (&self.settings, self.cache.as_ref(), self.end);
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<Made>>> = programs.iter().map(|_| Mutex::new(None)).collect();
        std::thread::scope(|scope| {
            for worker in self.workers.iter_mut().take(programs.len()) {
                let (next, results) = (&next, &results);
                scope.spawn(move || {
                    while let Some((index, (source, arch))) = take(next, programs) {
                        let result =
                            compile_one(worker, settings, end, cache, version, source, arch);
                        *results[index]
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner) = Some(result);
                    }
                });
            }
        });
        let mut made = Vec::with_capacity(programs.len());
        for slot in results {
            let slot = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            made.push(match slot {
                Some(Made::Found(key, compiled)) => {
                    self.found.insert(key);
                    Ok(*compiled)
                }
                Some(Made::Here(compiled)) => *compiled,
                None => Err(wrong_answer()),
            });
        }
        made
    }

    /// Whether this is what NVRTC makes of a program: what came from the cache is compiled anew, and takes its place there if it
    /// differs. (It does after a change by hand, and where another build of the same version of NVRTC made it.)
    ///
    /// # Errors
    /// As [`compile`](Self::compile); then nothing is known.
    pub fn confirm(
        &mut self,
        source: &str,
        arch: &str,
        compiled: &Compiled,
    ) -> Result<bool, CompileError> {
        let version = self.version()?;
        let key = Cache::key(source, &self.settings.options.arguments(arch), version);
        if !self.found.contains(&key) {
            return Ok(true);
        }
        let made = compile_anew(&mut self.workers[0], &self.settings, None, source, arch)?;
        keep(self.cache.as_ref(), &key, &made);
        // The log also says how long compiling took.
        let same = made.cubin == compiled.cubin && made.kernels == compiled.kernels;
        if same {
            self.found.remove(&key);
        }
        Ok(same)
    }

    /// Compiles one program.
    pub fn compile(&mut self, source: &str, arch: &str) -> Result<Compiled, CompileError> {
        self.compile_many(&[(source.to_owned(), arch.to_owned())])
            .pop()
            .unwrap_or_else(|| Err(wrong_answer()))
    }
}

fn take<'p, T>(next: &AtomicUsize, items: &'p [T]) -> Option<(usize, &'p T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    items.get(index).map(|item| (index, item))
}

/// Where a compiled program comes from.
enum Made {
    Found(Key, Box<Compiled>),
    Here(Box<Result<Compiled, CompileError>>),
}

fn compile_one(
    worker: &mut Worker,
    settings: &PoolSettings,
    end: Option<Instant>,
    cache: Option<&Cache>,
    version: (i32, i32),
    source: &str,
    arch: &str,
) -> Made {
    let key = Cache::key(source, &settings.options.arguments(arch), version);
    if let Some(found) = cache.and_then(|cache| cache.get(&key)) {
        return Made::Found(key, Box::new(found));
    }
    let made = compile_anew(worker, settings, end, source, arch);
    if let Ok(compiled) = &made {
        keep(cache, &key, compiled);
    }
    Made::Here(Box::new(made))
}

fn compile_anew(
    worker: &mut Worker,
    settings: &PoolSettings,
    end: Option<Instant>,
    source: &str,
    arch: &str,
) -> Result<Compiled, CompileError> {
    let request = CompileRequest::Compile {
        search: settings.search.clone(),
        source: source.to_owned(),
        arch: arch.to_owned(),
        options: settings.options.clone(),
    };
    let left = end.map(|end| end.saturating_duration_since(Instant::now()));
    if left == Some(Duration::ZERO) {
        return Err(WorkerError::Timeout(Duration::ZERO).into());
    }
    let deadline = left.map_or(settings.deadline, |left| left.min(settings.deadline));
    match worker.call(&request, deadline)? {
        CompileAnswer::Compile(result) => *result,
        CompileAnswer::Version(_) => Err(wrong_answer()),
    }
}

fn keep(cache: Option<&Cache>, key: &Key, compiled: &Compiled) {
    if let Some(cache) = cache
        && let Err(error) = cache.put(key, compiled)
    {
        tracing::warn!(%error, "a compiled program was not kept");
    }
}

fn wrong_answer() -> CompileError {
    WorkerError::Protocol {
        reason: "an answer to another question".into(),
    }
    .into()
}

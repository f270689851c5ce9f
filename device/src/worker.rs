//! Child processes that answer JSON lines.
//!
//! A worker can hang, crash or be killed: each is an error value of the request that it was answering, and the next request
//! starts a new process. A line is `{"id": n, "body": …}` in both directions. A worker ends itself when its input closes, which
//! also happens when its parent dies, however the parent dies.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
        self.call_while(request, deadline, || true)
    }

    /// The same, as long as the answer is wanted; once it is not, it is [`WorkerError::Timeout`], and the process is killed.
    pub fn call_while<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        request: &Q,
        deadline: Duration,
        is_wanted: impl Fn() -> bool,
    ) -> Result<A, WorkerError> {
        let begun = Instant::now();
        let end = begun + deadline;
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
                Err(RecvTimeoutError::Timeout) if !is_wanted() => {
                    return Err(WorkerError::Timeout(begun.elapsed()));
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

/// What the C library reads when a process starts.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Those of a worker: with those that are set, that large memory lies in large pages (glibc 2.35 and later, as "Hardware Memory Tunables" in its
/// manual says; others ignore it). A verification fills gigabytes and frees them for each kind of input, and a page of 4 KiB is a call of the
/// kernel for each. What is set for it already stays.
fn tunables(set: Option<OsString>) -> OsString {
    const LARGE_PAGES: &str = "glibc.malloc.hugetlb";
    let mut all = set.unwrap_or_default();
    if !all.to_string_lossy().contains(LARGE_PAGES) {
        if !all.is_empty() {
            all.push(":");
        }
        all.push(format!("{LARGE_PAGES}=1"));
    }
    all
}

impl Running {
    fn start(command: &WorkerCommand) -> Result<Self, WorkerError> {
        let failed = |reason: String| WorkerError::Start {
            reason: format!("{}: {reason}", command.program.display()),
        };
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .env(TUNABLES, tunables(std::env::var_os(TUNABLES)))
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

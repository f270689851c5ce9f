//! The pool that compiles in child processes, and what such a process does.

mod elsewhere;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use elsewhere::Elsewhere;
use queue::{End, Queue};
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Key};
use crate::compiler::{Compiler, compiler};
use crate::nvrtc::{CompileError, Compiled, Options, SearchPath};
use crate::remote::RemoteHandle;
use crate::worker::{Worker, WorkerCommand, WorkerError, end_process, serve};

/// What the compile worker is asked.
#[derive(Serialize, Deserialize)]
enum CompileRequest {
    Version {
        search: SearchPath,
        arch: String,
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
    // Opened once; one for other architectures, or in another search path, is opened anew.
    let mut opened: Option<(&'static str, SearchPath, Box<dyn Compiler>)> = None;
    let mut with =
        |arch: &str, search: SearchPath, task: &mut dyn FnMut(&dyn Compiler) -> CompileAnswer| {
            let row = compiler(arch)?;
            match &opened {
                Some((name, path, own)) if *name == row.name && *path == search => {
                    Ok(task(own.as_ref()))
                }
                Some(_) | None => {
                    let own = row.open(&search)?;
                    let answer = task(own.as_ref());
                    opened = Some((row.name, search, own));
                    Ok::<_, CompileError>(answer)
                }
            }
        };
    serve(
        input,
        output,
        || end_process(),
        |request| match request {
            CompileRequest::Version { search, arch } => with(&arch, search, &mut |compiler| {
                CompileAnswer::Version(Ok(compiler.version()))
            })
            .unwrap_or_else(|error| CompileAnswer::Version(Err(error))),
            CompileRequest::Compile {
                search,
                source,
                arch,
                options,
            } => {
                let mut compile = |compiler: &dyn Compiler| {
                    CompileAnswer::Compile(Box::new(compiler.compile(&source, &arch, &options)))
                };
                with(&arch, search, &mut compile)
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
    /// Where the compilers are.
    pub search: SearchPath,
    /// Chosen for all programs.
    pub options: Options,
    /// For each program; a compilation that takes longer is lost.
    pub deadline: Duration,
    /// Once it is set nothing is compiled any more.
    pub stop: Arc<AtomicBool>,
}

/// What is compiled next.
#[derive(Debug)]
pub enum Next<T> {
    /// A program's source, with what its result is told apart by.
    Program(T, String),
    /// Nothing at present.
    Wait,
    /// Nothing any more: what is under way is waited for.
    End,
}

/// Programs that [`CompilePool::stream`] compiles.
pub trait Programs {
    /// What a program's result is told apart by.
    type Program: Send;

    /// The next one, where so many are under way, and so many can be at a time. Asked again and again.
    fn next(&mut self, under_way: usize, at_once: usize) -> Next<Self::Program>;

    /// Whether nothing is waited for any more: what is not compiled then is [`WorkerError::Timeout`]. Asked again and again.
    fn is_late(&self) -> bool {
        false
    }

    /// What came of one; they come in no order.
    fn done(&mut self, program: Self::Program, result: Result<Compiled, CompileError>);
}

/// How long nobody is asked for a program while nothing ends.
const PAUSE: Duration = Duration::from_millis(2);

/// Several processes that compile, since a compiler's calls hardly overlap inside one process.
pub struct CompilePool {
    settings: PoolSettings,
    workers: Vec<Worker>,
    cache: Option<Cache>,
    /// Of each compiler that was asked for it, by name.
    versions: BTreeMap<&'static str, (i32, i32)>,
    /// What is not compiled by then is lost, however long its own deadline is.
    end: Option<Instant>,
    /// What was not compiled here: it was found in the cache, or came from another machine.
    found: BTreeSet<Key>,
    /// What the compiler made here, by what it made it of: what is found in the cache and is this needs no second word of the compiler's.
    made: BTreeMap<Key, blake3::Hash>,
    /// Other machines, for what waits here, and how many offers they had.
    remote: Option<RemoteHandle>,
    offers: u64,
    /// What compiling took, all processes together.
    busy: Duration,
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
            versions: BTreeMap::new(),
            found: BTreeSet::new(),
            made: BTreeMap::new(),
            remote: None,
            offers: 0,
            busy: Duration::ZERO,
        }
    }

    /// From now on other machines are offered what [`CompilePool::stream`] has no process for.
    pub fn share_with(&mut self, remote: RemoteHandle) {
        self.remote = Some(remote);
    }

    /// What compiling took until now, all processes together.
    pub fn busy(&self) -> Duration {
        self.busy
    }

    /// From now on what is not compiled by then is [`WorkerError::Timeout`]: no program is waited for longer.
    pub fn end_at(&mut self, end: Option<Instant>) {
        self.end = end;
    }

    /// The version of the compiler for an architecture, asked for once.
    pub fn version(&mut self, arch: &str) -> Result<(i32, i32), CompileError> {
        let name = compiler(arch)?.name;
        if let Some(version) = self.versions.get(name) {
            return Ok(*version);
        }
        let request = CompileRequest::Version {
            search: self.settings.search.clone(),
            arch: arch.to_owned(),
        };
        let version = match self.workers[0].call(&request, self.settings.deadline)? {
            CompileAnswer::Version(version) => version?,
            CompileAnswer::Compile(_) => return Err(wrong_answer()),
        };
        self.versions.insert(name, version);
        Ok(version)
    }

    /// All that the compilation of a program depends on.
    ///
    /// # Errors
    /// Where there is no compiler for the architecture.
    pub fn key(&mut self, source: &str, arch: &str) -> Result<Key, CompileError> {
        let version = self.version(arch)?;
        key(&self.settings.options, version, source, arch)
    }

    /// Compiles `(source, architecture)` pairs in parallel; the results are in the order of the pairs and do not depend on the
    /// number of workers. Programs in the cache are not compiled.
    pub fn compile_many(
        &mut self,
        programs: &[(String, String)],
    ) -> Vec<Result<Compiled, CompileError>> {
        let mut versions = BTreeMap::new();
        for (_, arch) in programs {
            let ask = || self.version(arch);
            versions.entry(arch).or_insert_with(ask);
        }
        let (settings, cache) = (&self.settings, self.cache.as_ref());
        let limit = Limit {
            end: self.end,
            late: None,
        };
        let results = spread(&mut self.workers, programs, |worker, (source, arch)| {
            let begun = Instant::now();
            let result = match &versions[arch] {
                Ok(version) => compile_one(worker, settings, limit, cache, *version, source, arch),
                Err(error) => Made::Here(None, Box::new(Err(error.clone()))),
            };
            (result, begun.elapsed())
        });
        let mut made = Vec::with_capacity(programs.len());
        for slot in results {
            self.busy += slot.as_ref().map_or(Duration::ZERO, |(_, took)| *took);
            made.push(match slot {
                Some((made, _)) => made.noted(&mut self.made, &mut self.found),
                None => Err(wrong_answer()),
            });
        }
        made
    }

    /// Compiles programs of several units each for an architecture: see [`compile_many`](Self::compile_many). The results are those of each program's units;
    /// a unit that several programs have is compiled once.
    pub fn compile_units(
        &mut self,
        programs: &[&[String]],
        arch: &str,
    ) -> Vec<Vec<Result<Compiled, CompileError>>> {
        let units = || programs.iter().copied().flatten();
        let different: BTreeSet<&String> = units().collect();
        let different: Vec<(String, String)> = (different.into_iter())
            .map(|unit| (unit.clone(), arch.to_owned()))
            .collect();
        let compiled = self.compile_many(&different);
        let compiled: BTreeMap<&String, _> = different
            .iter()
            .map(|(unit, _)| unit)
            .zip(compiled)
            .collect();
        let of = |units: &&[String]| units.iter().map(|unit| compiled[unit].clone()).collect();
        programs.iter().map(of).collect()
    }

    /// Compiles one program after another for an architecture, in as many processes as there are, each as soon as one is free. Programs in the cache
    /// are not compiled. What waits for a process other machines may have, if there are any: whoever is free first compiles it. Nothing is under way
    /// any more when this returns.
    ///
    /// # Errors
    /// Where there is no compiler for the architecture.
    pub fn stream<P: Programs>(&mut self, arch: &str, all: &mut P) -> Result<(), CompileError> {
        let version = self.version(arch)?;
        let (settings, cache, end) = (&self.settings, self.cache.as_ref(), self.end);
        let (ours, found, busy) = (&mut self.made, &mut self.found, &mut self.busy);
        let here = self.workers.len();
        let queue = Queue::new();
        let late = AtomicBool::new(false);
        let limit = Limit {
            end,
            late: Some(&late),
        };
        let mut elsewhere = Elsewhere {
            remote: self.remote.as_ref().map(|remote| remote.0.as_ref()),
            number: &mut self.offers,
            settings,
            cache,
            end,
            version,
            arch,
            offered: BTreeMap::new(),
        };
        let (to_here, results) = mpsc::channel();
        std::thread::scope(|scope| {
            // Whatever ends this, nobody waits for a program any more.
            let _end = End(&queue);
            for worker in &mut self.workers {
                let (queue, to_here) = (&queue, to_here.clone());
                scope.spawn(move || {
                    while let Some(waiting) = queue.next() {
                        let begun = Instant::now();
                        let source = &waiting.source;
                        let made =
                            compile_one(worker, settings, limit, cache, version, source, arch);
                        let made = (waiting.program, made, begun.elapsed());
                        if to_here.send(made).is_err() {
                            return;
                        }
                    }
                });
            }
            let mut under_way = 0;
            let mut ended = false;
            while !ended || under_way > 0 {
                while !ended {
                    match all.next(under_way, here + elsewhere.room()) {
                        Next::Program(program, source) => {
                            under_way += 1;
                            queue.add(program, source);
                        }
                        Next::Wait => break,
                        Next::End => ended = true,
                    }
                }
                let is_late = all.is_late();
                late.store(is_late, Ordering::Relaxed);
                elsewhere.end = if is_late { Some(Instant::now()) } else { end };
                for came in elsewhere.tend(&queue) {
                    under_way -= 1;
                    if came.result.is_ok() {
                        found.insert(came.key);
                    }
                    all.done(came.program, came.result);
                }
                let made = results.recv_timeout(PAUSE).into_iter();
                for (program, made, took) in made.chain(results.try_iter()) {
                    under_way -= 1;
                    *busy += took;
                    all.done(program, made.noted(ours, found));
                }
            }
        });
        Ok(())
    }

    /// Whether all these are what the compiler makes of programs: what came from the cache or from another machine is compiled anew, and takes its place in
    /// the cache. (It differs after a change by hand, and where another build of the same version of the compiler made it.)
    ///
    /// # Errors
    /// As [`compile`](Self::compile); then nothing is known.
    pub fn confirm(
        &mut self,
        programs: &[(&str, &Compiled)],
        arch: &str,
    ) -> Result<bool, CompileError> {
        let version = self.version(arch)?;
        let (settings, cache) = (&self.settings, self.cache.as_ref());
        let mut found = Vec::new();
        for (source, compiled) in programs {
            let key = key(&settings.options, version, source, arch)?;
            if self.found.contains(&key) {
                found.push((key, *source, *compiled));
            }
        }
        let made = spread(&mut self.workers, &found, |worker, (key, source, _)| {
            let made = compile_anew(worker, settings, Limit::default(), source, arch)?;
            keep(cache, key, &made);
            Ok(made)
        });
        let mut all = true;
        for ((key, _, compiled), made) in found.iter().zip(made) {
            let made: Compiled = made.unwrap_or_else(|| Err(wrong_answer()))?;
            // The log also says how long compiling took.
            let same = made.cubin == compiled.cubin && made.kernels == compiled.kernels;
            if same {
                self.found.remove(key);
                self.made.insert(key.clone(), content(&made));
            }
            all &= same;
        }
        Ok(all)
    }

    /// Compiles one program.
    pub fn compile(&mut self, source: &str, arch: &str) -> Result<Compiled, CompileError> {
        self.compile_many(&[(source.to_owned(), arch.to_owned())])
            .pop()
            .unwrap_or_else(|| Err(wrong_answer()))
    }
}

/// What becomes of each item, in their order, done by as many workers as there are: each takes the next item once it is free.
fn spread<T: Sync, R: Send>(
    workers: &mut [Worker],
    items: &[T],
    work: impl Fn(&mut Worker, &T) -> R + Sync,
) -> Vec<Option<R>> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for worker in workers.iter_mut().take(items.len()) {
            let (next, results, work) = (&next, &results, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((item, result)) = items.get(index).zip(results.get(index)) else {
                        return;
                    };
                    let made = work(worker, item);
                    *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
                }
            });
        }
    });
    let taken = |slot: Mutex<Option<R>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().map(taken).collect()
}

/// Where a compiled program comes from.
enum Made {
    Found(Key, Box<Compiled>),
    Here(Option<Key>, Box<Result<Compiled, CompileError>>),
}

impl Made {
    /// What it is, once it is written down whose word it is.
    fn noted(
        self,
        ours: &mut BTreeMap<Key, blake3::Hash>,
        found: &mut BTreeSet<Key>,
    ) -> Result<Compiled, CompileError> {
        match self {
            Self::Found(key, compiled) => {
                if ours.get(&key) != Some(&content(&compiled)) {
                    found.insert(key);
                }
                Ok(*compiled)
            }
            Self::Here(key, compiled) => {
                let made = key.zip(compiled.as_ref().as_ref().ok());
                ours.extend(made.map(|(key, compiled)| (key, content(compiled))));
                *compiled
            }
        }
    }
}

/// Of all that is taken from a compiled program.
fn content(compiled: &Compiled) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(compiled.cubin.len() as u64).to_le_bytes());
    hasher.update(&compiled.cubin);
    hasher.update(format!("{:?}", compiled.kernels).as_bytes());
    hasher.finalize()
}

/// How long a compilation is waited for.
#[derive(Clone, Copy, Default)]
struct Limit<'a> {
    /// Until then at most.
    end: Option<Instant>,
    /// Until this is set.
    late: Option<&'a AtomicBool>,
}

impl Limit<'_> {
    fn is_late(self) -> bool {
        self.late.is_some_and(|late| late.load(Ordering::Relaxed))
    }
}

fn compile_one(
    worker: &mut Worker,
    settings: &PoolSettings,
    limit: Limit<'_>,
    cache: Option<&Cache>,
    version: (i32, i32),
    source: &str,
    arch: &str,
) -> Made {
    let key = match key(&settings.options, version, source, arch) {
        Ok(key) => key,
        Err(error) => return Made::Here(None, Box::new(Err(error))),
    };
    if let Some(found) = cache.and_then(|cache| cache.get(&key)) {
        return Made::Found(key, Box::new(found));
    }
    let made = compile_anew(worker, settings, limit, source, arch);
    if let Ok(compiled) = &made {
        keep(cache, &key, compiled);
    }
    Made::Here(Some(key), Box::new(made))
}

fn compile_anew(
    worker: &mut Worker,
    settings: &PoolSettings,
    limit: Limit<'_>,
    source: &str,
    arch: &str,
) -> Result<Compiled, CompileError> {
    let request = CompileRequest::Compile {
        search: settings.search.clone(),
        source: source.to_owned(),
        arch: arch.to_owned(),
        options: settings.options.clone(),
    };
    let left = limit
        .end
        .map(|end| end.saturating_duration_since(Instant::now()));
    if left == Some(Duration::ZERO) || limit.is_late() {
        return Err(WorkerError::Timeout(Duration::ZERO).into());
    }
    let deadline = left.map_or(settings.deadline, |left| left.min(settings.deadline));
    match worker.call_while(&request, deadline, || !limit.is_late())? {
        CompileAnswer::Compile(result) => *result,
        CompileAnswer::Version(_) => Err(wrong_answer()),
    }
}

/// What a program is in the cache.
fn key(
    options: &Options,
    version: (i32, i32),
    source: &str,
    arch: &str,
) -> Result<Key, CompileError> {
    let arguments = compiler(arch)?.arguments(options, arch, source);
    Ok(Cache::key(source, &arguments, version))
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

//! A machine that only compiles: it takes what searches of other machines have no process for, and hands back what came of it.
//!
//! It needs a compiler and no GPU, and it may be killed at any moment: others compile what it had.

use super::journal::{Journal, Session, Taken, View};
use super::remote::Word;
use super::{CampaignError, Folder};
use crate::pipeline::compile;
use device::nvrtc::{CompileError, SearchPath};
use device::pool::CompilePool;
use device::worker::WorkerError;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long it waits for a process at a time.
const PAUSE: Duration = Duration::from_millis(20);
/// How often it looks for programs while a process has none.
const LOOK: Duration = Duration::from_millis(100);
/// How often it says that it is there, and asks whether the campaign goes on.
const BEAT: Duration = Duration::from_millis(500);
/// Programs that did not compile one after another, for reasons that are not theirs, until it is no use to take further ones.
const MOST_USELESS: u32 = 10;

/// What a machine compiles with.
#[derive(Clone, Debug)]
pub struct Compilers {
    /// As [`Options::worker`](crate::Options::worker).
    pub worker: PathBuf,
    /// As [`Options::nvrtc`](crate::Options::nvrtc).
    pub nvrtc: SearchPath,
    /// As [`Options::cache`](crate::Options::cache).
    pub cache: Option<PathBuf>,
    /// Processes that compile at a time.
    pub processes: u32,
}

/// Compiles for a campaign until that is over, or somebody asks it to end: by `is_asked`, or in the journal. Gives how many programs were handed back.
///
/// # Errors
/// There is no compiler, or it compiles nothing; the campaign was asked to end or its budget is spent; its journal cannot be used, or is a file.
pub fn run(
    folder: &Folder,
    compilers: &Compilers,
    is_asked: &dyn Fn() -> bool,
) -> Result<u64, CampaignError> {
    let _lock = folder.lock()?;
    let (mut journal, view) = folder.unspent()?;
    let cache = compilers.cache.as_ref().map(|path| compile::cache(path));
    let cache = cache
        .transpose()
        .map_err(|e| CampaignError::Compiler(e.to_string()))?;
    let stop = Arc::new(AtomicBool::new(false));
    let start = || {
        let Compilers { worker, nvrtc, .. } = compilers;
        compile::pool(worker, nvrtc, 1, cache.clone(), stop.clone())
    };
    let compiler = compiler(&view, start())?;
    let now = journal.now();
    let session = journal.assist(&compiler, compilers.processes, now)?;
    let session = session.ok_or_else(|| CampaignError::Stopped {
        site: folder.site().to_string(),
    })?;
    let (to_processes, texts) = channel();
    let (to_here, made) = channel();
    let texts = Mutex::new(texts);
    std::thread::scope(|scope| {
        // Whatever ends this ends the processes.
        let _stops = Stops(&stop);
        for _ in 0..compilers.processes {
            let (texts, to_here, pool) = (&texts, to_here.clone(), start());
            scope.spawn(move || serve(pool, texts, &to_here));
        }
        let shop = Shop {
            journal,
            session,
            compiler,
            processes: compilers.processes as usize,
            to_processes,
            held: BTreeSet::new(),
            handed: 0,
            useless: 0,
        };
        shop.work(&made, is_asked)
    })
}

/// The name and version of the compiler for the jobs' targets.
fn compiler(view: &View, mut pool: CompilePool) -> Result<String, CampaignError> {
    let told = |why: String| CampaignError::Compiler(why);
    let job = view.jobs.first();
    let job = job.ok_or_else(|| told("the campaign has no job".to_owned()))?;
    let target = crate::target(&job.target).map_err(|e| told(e.to_string()))?;
    let version = pool
        .version(&target.arch)
        .map_err(|e| told(e.to_string()))?;
    Ok(compile::name(&target.arch, version))
}

/// What came of a program.
enum Made {
    Word(Vec<u8>),
    /// Not compiled, and that is not the text's fault.
    Failed(String),
    /// Somebody ended this.
    Stopped,
}

/// Sets what ends the processes when it is dropped.
struct Stops<'s>(&'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One process: it compiles one program after another.
fn serve(mut pool: CompilePool, texts: &Mutex<Receiver<Taken>>, to_here: &Sender<(i64, Made)>) {
    loop {
        let next = texts.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(taken) = next else {
            return;
        };
        if to_here
            .send((taken.offer, made(&mut pool, &taken)))
            .is_err()
        {
            return;
        }
    }
}

fn made(pool: &mut CompilePool, taken: &Taken) -> Made {
    let key = match pool.key(&taken.source, &taken.arch) {
        Ok(key) => key.hash(),
        Err(error) => return failed(&error),
    };
    if key != taken.key {
        let why =
            "its key says another compilation than this tilewright's: is it of another version?";
        return Made::Failed(why.to_owned());
    }
    let result = pool.compile(&taken.source, &taken.arch);
    if let Err(error) = &result
        && !error.is_of_text()
    {
        return failed(error);
    }
    match serde_json::to_vec(&Word { key, result }) {
        Ok(word) => Made::Word(word),
        Err(error) => Made::Failed(error.to_string()),
    }
}

fn failed(error: &CompileError) -> Made {
    match error {
        CompileError::Worker(WorkerError::Stopped) => Made::Stopped,
        CompileError::Worker(
            WorkerError::Start { .. }
            | WorkerError::Timeout(_)
            | WorkerError::Lost { .. }
            | WorkerError::Protocol { .. },
        )
        | CompileError::NotFound(_)
        | CompileError::Refused { .. }
        | CompileError::Architecture { .. }
        | CompileError::ZeroCharacter
        | CompileError::Library { .. } => Made::Failed(error.to_string()),
    }
}

/// Between the journal and the processes.
struct Shop {
    journal: Journal,
    session: Session,
    compiler: String,
    processes: usize,
    to_processes: Sender<Taken>,
    /// Offers that were taken and not answered.
    held: BTreeSet<i64>,
    handed: u64,
    /// Failures one after another.
    useless: u32,
}

impl Shop {
    /// Works until there is nothing to compile any more, and gives back what it has then.
    fn work(
        mut self,
        made: &Receiver<(i64, Made)>,
        is_asked: &dyn Fn() -> bool,
    ) -> Result<u64, CampaignError> {
        let mut beaten = Instant::now();
        let mut looked: Option<Instant> = None;
        let mut useless = None;
        while !is_asked() && useless.is_none() {
            let first = made.recv_timeout(PAUSE).into_iter();
            for (offer, made) in first.chain(made.try_iter()) {
                // Who has a process again looks at once.
                looked = None;
                useless = self.hand_back(offer, made)?;
            }
            if beaten.elapsed() > BEAT {
                beaten = Instant::now();
                if !self.beat()? {
                    break;
                }
            }
            if looked.is_none_or(|since| since.elapsed() > LOOK) {
                looked = Some(Instant::now());
                self.take()?;
            }
        }
        let held: Vec<i64> = self.held.iter().copied().collect();
        self.journal.release(self.session, &held)?;
        let now = self.journal.now();
        self.journal.finish(self.session, now)?;
        match useless {
            Some(why) => Err(CampaignError::Compiler(why)),
            None => Ok(self.handed),
        }
    }

    /// Takes as many programs as there are processes without one.
    fn take(&mut self) -> Result<(), CampaignError> {
        let free = self.processes - self.held.len();
        if free == 0 {
            return Ok(());
        }
        let now = self.journal.now();
        let taken = self.journal.take(self.session, &self.compiler, free, now)?;
        for taken in taken {
            self.held.insert(taken.offer);
            // The processes go on as long as this end is there.
            let _ = self.to_processes.send(taken);
        }
        Ok(())
    }

    /// Hands back what came of a program. Where nothing comes of any it says why.
    fn hand_back(&mut self, offer: i64, made: Made) -> Result<Option<String>, CampaignError> {
        self.held.remove(&offer);
        let why = match made {
            Made::Word(word) => {
                self.journal.answer(self.session, offer, word)?;
                (self.handed, self.useless) = (self.handed + 1, 0);
                return Ok(None);
            }
            Made::Stopped => {
                self.journal.release(self.session, &[offer])?;
                return Ok(None);
            }
            Made::Failed(why) => why,
        };
        tracing::warn!("a program is left to others: {why}");
        self.journal.fail(self.session, offer)?;
        self.useless += 1;
        let useless = self.useless;
        Ok((useless >= MOST_USELESS).then(|| {
            format!("{useless} programs one after another did not compile, the last: {why}")
        }))
    }

    /// Says that it is there, and what it has; whether the campaign goes on.
    fn beat(&mut self) -> Result<bool, CampaignError> {
        let now = self.journal.now();
        self.journal.beat(self.session, now)?;
        self.journal.sweep(self.session, now)?;
        let held: Vec<i64> = self.held.iter().copied().collect();
        self.journal.renew_taken(self.session, &held, now)?;
        Ok(!self.journal.is_over(self.session, now)?)
    }
}

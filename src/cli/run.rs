//! A search that cannot be lost: it runs on a thread of its own, what it finds is on the disk before it ends, and signals end it.
//!
//! The first signal asks the search to end and waits for it, but not for long: whatever it is busy with then, the last that it held
//! is the result. The second one ends the process in the handler.

use crate::cli::{Failure, progress::Progress};
use ir::Program;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tilewright::artifact::{Destination, Manifest};
use tilewright::emit::{EmitError, emit};
use tilewright::pipeline::{Search, longest};
use tilewright::{Error, Event, Observer, Optimized, Options};

/// How long a search that was asked to end is waited for.
const GRACE: Duration = Duration::from_millis(3500);
/// The same of one whose budget is spent. What is left of the five seconds is for the disk.
const LATE: Duration = Duration::from_millis(500);
/// How often who waits looks for signals.
const LOOK: Duration = Duration::from_millis(20);
/// The stage of a search that was ended from outside, since it last told of a result.
const UNFINISHED: &str = "unfinished";
/// The search's stack: terms nest as deep as programs are long.
const STACK: usize = 64 << 20;

/// Why there is no artifact of a search.
pub(crate) enum Lost {
    /// The search's own reason.
    Search(Error),
    /// What it found could not be written.
    Emit(EmitError),
    /// It cannot be run, or was ended by a signal of this number before anything was held.
    Failure(Failure),
}

/// What the last artifact was made of, and what it says.
pub(crate) type Written = (Manifest, Optimized);

/// Writes what a search holds; nothing any more once it is closed.
struct Shelf {
    program: Program,
    options: Options,
    destination: Destination,
    begun: Instant,
    /// Whether anything was written: asked without waiting for what is being written.
    holds: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Written>,
    closed: bool,
}

impl Shelf {
    fn put(&self, state: &mut State, found: &Optimized) -> Result<(), EmitError> {
        let Options { target, seed, .. } = &self.options;
        let manifest = emit(&self.program, target, *seed, found, &self.destination)?;
        state.last = Some((manifest, found.clone()));
        self.holds.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes the result of a search that came to its end.
    fn finish(&self, found: &Optimized) -> Result<Written, Lost> {
        self.with(|state| {
            state.closed = true;
            self.put(state, found).map_err(Lost::Emit)?;
            state.last.take().ok_or(Lost::Search(Error::Stopped))
        })
    }

    /// Makes the last that was written the result, if there is any.
    fn close(&self) -> Option<Result<Written, Lost>> {
        let last = self.with(|state| {
            state.closed = true;
            state.last.take()
        })?;
        let seconds = self.begun.elapsed().as_secs_f64();
        let mut found = last.1;
        // What the search did since it told of this one, it never said.
        let since = seconds - found.seconds;
        found.stages.insert(UNFINISHED.to_owned(), since);
        let interrupted = Optimized {
            search: Search::Interrupted,
            seconds,
            ..found
        };
        Some(self.finish(&interrupted))
    }
}

/// Passes events on, and writes what may be emitted.
struct Watcher {
    progress: Progress,
    shelf: Arc<Shelf>,
}

impl Observer for Watcher {
    fn event(&mut self, event: &Event<'_>) {
        self.progress.event(event);
        if let Event::Held(found) = event {
            self.shelf.with(|state| {
                if state.closed {
                    return;
                }
                if let Err(error) = self.shelf.put(state, found) {
                    tracing::warn!("what was found so far could not be written: {error}");
                }
            });
        }
    }
}

/// The number of the signal that came; 0 before. The second one ends the process, with the code that shells give: 128 and its number.
pub(crate) fn signals() -> io::Result<Arc<AtomicUsize>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag;
    let seen = Arc::new(AtomicBool::new(false));
    let number = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds nothing seen.
        flag::register_conditional_shutdown(signal, 128 + signal, seen.clone())?;
        flag::register(signal, seen.clone())?;
        flag::register_usize(signal, number.clone(), signal as usize)?;
    }
    Ok(number)
}

/// Searches and writes the best artifact; gives it.
pub(crate) fn run(
    program: &Program,
    options: &Options,
    destination: &Destination,
    progress: Progress,
) -> Result<Written, Lost> {
    let system = |what: &str, e: io::Error| Lost::Failure(Failure::refused(format!("{what}: {e}")));
    let signal = signals().map_err(|e| system("signals cannot be heard", e))?;
    let begun = Instant::now();
    let shelf = Arc::new(Shelf {
        program: program.clone(),
        options: options.clone(),
        destination: destination.clone(),
        begun,
        holds: AtomicBool::new(false),
        state: Mutex::default(),
    });
    let line = progress.line();
    let (sender, result) = channel();
    let thread = std::thread::Builder::new().stack_size(STACK).spawn({
        let shelf = shelf.clone();
        move || {
            let mut watcher = Watcher { progress, shelf };
            let Shelf {
                program, options, ..
            } = &*watcher.shelf.clone();
            let found = tilewright::optimize(program, options, &mut watcher);
            // Nobody waits any more where it took too long.
            let _ = sender.send(found);
        }
    });
    let thread = thread.map_err(|e| system("no thread can be started", e))?;
    // The library keeps the budget; this is for what it does in one piece.
    let promised = longest(options.budget).saturating_sub(2 * LATE);
    let mut given_up: Option<Instant> = None;
    let found = loop {
        match result.recv_timeout(LOOK) {
            Ok(found) => break found,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => break Err(Error::Stopped),
            },
        }
        let signalled = signal.load(Ordering::Relaxed) != 0;
        let late = begun.elapsed() > promised && shelf.holds.load(Ordering::Relaxed);
        if (signalled || late) && given_up.is_none() {
            options.stop.store(true, Ordering::Relaxed);
            let grace = if signalled { GRACE } else { LATE };
            given_up = Some(Instant::now() + grace);
        }
        if given_up.is_some_and(|end| Instant::now() > end) {
            if let Some(written) = shelf.close() {
                line.finish_and_clear();
                return written;
            }
            if signalled {
                break Err(Error::Stopped);
            }
        }
    };
    line.finish_and_clear();
    match found {
        Ok(found) => shelf.finish(&found),
        Err(Error::Stopped) => match shelf.close() {
            Some(written) => written,
            None => Err(Lost::Failure(Failure::ended(
                signal.load(Ordering::Relaxed),
            ))),
        },
        Err(e) => {
            // What was held was refuted: more is asked of a result.
            if shelf.holds.load(Ordering::Relaxed)
                && let Err(error) = shelf.destination.withdraw()
            {
                tracing::warn!("what was written and did not pass is still there: {error}");
            }
            Err(Lost::Search(e))
        }
    }
}

//! Programs that wait for a process of this machine.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A program that waits.
pub(super) struct Waiting<T> {
    /// What its result is told apart by.
    pub(super) program: T,
    pub(super) source: String,
    /// No other machine is to have it.
    pub(super) stays: bool,
}

/// Those that wait, the next one first.
pub(super) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    more: Condvar,
}

struct Inner<T> {
    waiting: VecDeque<Waiting<T>>,
    /// Processes that wait for a program.
    idle: usize,
    has_ended: bool,
}

/// Nothing comes any more once it is dropped: who waits for a program has none.
pub(super) struct End<'q, T>(pub(super) &'q Queue<T>);

impl<T> Drop for End<'_, T> {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.more.notify_all();
    }
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        let inner = Inner {
            waiting: VecDeque::new(),
            idle: 0,
            has_ended: false,
        };
        Self {
            inner: Mutex::new(inner),
            more: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a program behind the others.
    pub(super) fn add(&self, program: T, source: String) {
        let stays = false;
        self.lock().waiting.push_back(Waiting {
            program,
            source,
            stays,
        });
        self.more.notify_one();
    }

    /// Puts a program before the others, which stays.
    pub(super) fn put_first(&self, program: T, source: String) {
        let stays = true;
        self.lock().waiting.push_front(Waiting {
            program,
            source,
            stays,
        });
        self.more.notify_one();
    }

    /// The next program for a process, as soon as there is one; none where nothing comes any more.
    pub(super) fn next(&self) -> Option<Waiting<T>> {
        let mut inner = self.lock();
        inner.idle += 1;
        let mut inner = (self.more)
            .wait_while(inner, |i| i.waiting.is_empty() && !i.has_ended)
            .unwrap_or_else(PoisonError::into_inner);
        inner.idle -= 1;
        inner.waiting.pop_front()
    }

    /// The last program, if each process has another one.
    pub(super) fn spare(&self) -> Option<Waiting<T>> {
        let mut inner = self.lock();
        let idle = inner.idle;
        let is_spare = inner.waiting.len() > idle;
        (inner.waiting).pop_back_if(|waiting| is_spare && !waiting.stays)
    }

    /// How many processes have no program.
    pub(super) fn short(&self) -> usize {
        let inner = self.lock();
        inner.idle.saturating_sub(inner.waiting.len())
    }
}

//! What of a stream of programs other machines have.

use super::queue::{Queue, Waiting};
use super::{PoolSettings, key};
use crate::cache::{Cache, Key};
use crate::nvrtc::{CompileError, Compiled};
use crate::remote::{Answer, Offer, Remote};
use crate::worker::WorkerError;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Programs that were offered.
pub(super) struct Elsewhere<'p, T> {
    pub(super) remote: Option<&'p dyn Remote>,
    /// The number of the next offer: none comes twice.
    pub(super) number: &'p mut u64,
    pub(super) settings: &'p PoolSettings,
    pub(super) cache: Option<&'p Cache>,
    pub(super) end: Option<Instant>,
    pub(super) version: (i32, i32),
    pub(super) arch: &'p str,
    pub(super) offered: BTreeMap<u64, Offered<T>>,
}

/// One of them.
pub(super) struct Offered<T> {
    program: T,
    source: String,
    key: Key,
    /// It was asked for back.
    is_wanted: bool,
    /// Another machine has begun it.
    is_taken: bool,
}

/// What came of one elsewhere.
pub(super) struct Came<T> {
    pub(super) program: T,
    pub(super) key: Key,
    pub(super) result: Result<Compiled, CompileError>,
}

impl<T> Elsewhere<'_, T> {
    /// How many programs others would have at a time.
    pub(super) fn room(&self) -> usize {
        self.remote.map_or(0, Remote::room)
    }

    /// Offers what waits here, asks for it back where processes are idle, and gives what came.
    pub(super) fn tend(&mut self, queue: &Queue<T>) -> Vec<Came<T>> {
        let Some(remote) = self.remote else {
            return Vec::new();
        };
        if let Some(why) = self.is_over() {
            return self.give_up(remote, &why);
        }
        self.offer(remote, queue);
        self.take_back(remote, queue.short());
        let mut came = Vec::new();
        while let Some((number, answer)) = remote.hear() {
            came.extend(self.hear(number, answer, queue));
        }
        came
    }

    /// Why nobody is waited for any more.
    fn is_over(&self) -> Option<CompileError> {
        if self.settings.stop.load(Ordering::Relaxed) {
            return Some(WorkerError::Stopped.into());
        }
        let is_late = self.end.is_some_and(|end| Instant::now() >= end);
        is_late.then(|| WorkerError::Timeout(Duration::ZERO).into())
    }

    fn give_up(&mut self, remote: &dyn Remote, why: &CompileError) -> Vec<Came<T>> {
        let all = std::mem::take(&mut self.offered);
        let lost = |(number, offered): (u64, Offered<T>)| {
            remote.forget(number);
            Came {
                program: offered.program,
                key: offered.key,
                result: Err(why.clone()),
            }
        };
        all.into_iter().map(lost).collect()
    }

    fn offer(&mut self, remote: &dyn Remote, queue: &Queue<T>) {
        while self.offered.len() < remote.room()
            && let Some(Waiting {
                program, source, ..
            }) = queue.spare()
        {
            let key = key(&self.settings.options, self.version, &source, self.arch);
            let is_here = |key: &Key| self.cache.is_some_and(|cache| cache.has(key));
            // What the cache has takes no time, and whoever compiles says what is wrong with the architecture.
            let Some(key) = key.ok().filter(|key| !is_here(key)) else {
                queue.put_first(program, source);
                continue;
            };
            let number = *self.number;
            *self.number += 1;
            remote.offer(Offer {
                number,
                key: key.clone(),
                source: source.clone(),
                arch: self.arch.to_owned(),
            });
            let offered = Offered {
                program,
                source,
                key,
                is_wanted: false,
                is_taken: false,
            };
            self.offered.insert(number, offered);
        }
    }

    /// Asks for as many back as processes are idle here, beside those that were asked for and may come.
    fn take_back(&mut self, remote: &dyn Remote, short: usize) {
        let all = self.offered.values();
        let asked = all.filter(|o| o.is_wanted && !o.is_taken).count();
        let others = self.offered.iter_mut().filter(|(_, o)| !o.is_wanted);
        for (number, offered) in others.take(short.saturating_sub(asked)) {
            offered.is_wanted = true;
            remote.take_back(*number);
        }
    }

    /// What is not the text's fault is no answer: then it is compiled here.
    fn hear(&mut self, number: u64, answer: Answer, queue: &Queue<T>) -> Option<Came<T>> {
        let is_word = |result: &Result<Compiled, CompileError>| match result {
            Ok(compiled) => compiled.cubin.starts_with(b"\x7fELF"),
            Err(error) => error.is_of_text(),
        };
        match answer {
            Answer::Taken => {
                if let Some(offered) = self.offered.get_mut(&number) {
                    offered.is_taken = true;
                }
                None
            }
            Answer::Made(result) if is_word(&result) => {
                let offered = self.offered.remove(&number)?;
                Some(Came {
                    program: offered.program,
                    key: offered.key,
                    result: *result,
                })
            }
            Answer::Made(_) | Answer::Back => {
                let offered = self.offered.remove(&number)?;
                queue.put_first(offered.program, offered.source);
                None
            }
        }
    }
}

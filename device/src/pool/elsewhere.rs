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

#[cfg(test)]
mod tests {
    use super::super::queue::End;
    use super::*;
    use crate::nvrtc::SearchPath;
    use crate::worker::WorkerCommand;
    use std::sync::Mutex;

    /// Another machine that answers what it is told to.
    #[derive(Default)]
    struct Told {
        room: usize,
        offered: Mutex<Vec<u64>>,
        wanted: Mutex<Vec<u64>>,
        forgotten: Mutex<Vec<u64>>,
        answers: Mutex<Vec<(u64, Answer)>>,
    }

    impl Remote for Told {
        fn compiler(&self, _: &str) {}

        fn room(&self) -> usize {
            self.room
        }

        fn offer(&self, offer: Offer) {
            assert_eq!(offer.source, format!("text {}", offer.number));
            self.offered.lock().expect("whole").push(offer.number);
        }

        fn take_back(&self, number: u64) {
            self.wanted.lock().expect("whole").push(number);
        }

        fn forget(&self, number: u64) {
            self.forgotten.lock().expect("whole").push(number);
        }

        fn hear(&self) -> Option<(u64, Answer)> {
            self.answers.lock().expect("whole").pop()
        }
    }

    fn taken(all: &Mutex<Vec<u64>>) -> Vec<u64> {
        std::mem::take(&mut *all.lock().expect("whole"))
    }

    /// Does something with a queue of so many programs, none of which has a process, and a machine with room for three.
    fn with(waiting: u64, work: impl FnOnce(&mut Elsewhere<'_, u64>, &Queue<u64>, &Told)) {
        let remote = Told {
            room: 3,
            ..Told::default()
        };
        let settings = PoolSettings {
            command: WorkerCommand {
                program: "none".into(),
                arguments: Vec::new(),
            },
            workers: 2,
            search: SearchPath::default(),
            options: crate::nvrtc::Options::default(),
            deadline: Duration::from_secs(1),
            stop: std::sync::Arc::default(),
        };
        let queue = Queue::new();
        // The last one is offered first, with the first number.
        (0..waiting)
            .rev()
            .for_each(|n| queue.add(n, format!("text {n}")));
        let mut elsewhere = Elsewhere {
            remote: Some(&remote),
            number: &mut 0,
            settings: &settings,
            cache: None,
            end: None,
            version: (13, 0),
            arch: "sm_90a",
            offered: BTreeMap::new(),
        };
        work(&mut elsewhere, &queue, &remote);
    }

    /// What waits for a process, the next one first.
    fn rest(queue: &Queue<u64>) -> Vec<u64> {
        drop(End(queue));
        std::iter::from_fn(|| queue.next())
            .map(|waiting| waiting.program)
            .collect()
    }

    #[test]
    fn what_waits_is_offered_as_far_as_there_is_room() {
        with(5, |elsewhere, queue, remote| {
            assert!(elsewhere.tend(queue).is_empty());
            assert_eq!(taken(&remote.offered), [0, 1, 2]);
            assert!(elsewhere.tend(queue).is_empty());
            assert_eq!(taken(&remote.offered), [0; 0]);
            assert_eq!(taken(&remote.wanted), [0; 0], "no process is idle");
            assert_eq!(rest(queue), [4, 3]);
        });
    }

    #[test]
    fn what_comes_is_told_and_what_does_not_is_compiled_here() {
        with(3, |elsewhere, queue, remote| {
            elsewhere.tend(queue);
            let made = |result| Answer::Made(Box::new(result));
            let compiled = Compiled::new(b"\x7fELF".to_vec(), String::new());
            let refused = CompileError::Refused {
                log: "no".to_owned(),
            };
            for (number, answer, came) in [
                (0, made(Ok(compiled.clone())), Some(Ok(compiled))),
                (1, made(Err(refused.clone())), Some(Err(refused))),
                (2, Answer::Taken, None),
                (2, Answer::Back, None),
                (7, Answer::Back, None),
            ] {
                remote.answers.lock().expect("whole").push((number, answer));
                let heard = elsewhere.tend(queue);
                let heard: Vec<_> = heard.into_iter().map(|c| (c.program, c.result)).collect();
                let came: Vec<_> = came.into_iter().map(|came| (number, came)).collect();
                assert_eq!(heard, came);
                assert!(queue.spare().is_none(), "what came back stays");
            }
            assert_eq!(rest(queue), [2]);
        });
    }

    #[test]
    fn what_is_no_word_of_a_compiler_is_compiled_here() {
        with(3, |elsewhere, queue, remote| {
            elsewhere.tend(queue);
            let no_code = Compiled::new(b"code".to_vec(), String::new());
            let lost = WorkerError::Timeout(Duration::from_secs(1));
            let of_machine = CompileError::Library {
                call: "nvrtcCompileProgram".to_owned(),
                message: "out of memory".to_owned(),
            };
            let all = [Ok(no_code), Err(lost.into()), Err(of_machine)];
            for (number, result) in (0..).zip(all) {
                let answer = (number, Answer::Made(Box::new(result)));
                remote.answers.lock().expect("whole").push(answer);
                assert!(elsewhere.tend(queue).is_empty());
            }
            assert_eq!(taken(&remote.offered), [0, 1, 2], "none is offered again");
            assert_eq!(rest(queue), [2, 1, 0]);
        });
    }

    #[test]
    fn idle_processes_want_programs_back() {
        with(3, |elsewhere, queue, remote| {
            elsewhere.tend(queue);
            std::thread::scope(|scope| {
                // Where something is wrong here the process waits no longer.
                let _end = End(queue);
                let next = scope.spawn(|| queue.next().map(|waiting| waiting.program));
                let begun = Instant::now();
                while queue.short() == 0 {
                    assert!(begun.elapsed() < Duration::from_secs(5), "none is idle");
                    std::thread::yield_now();
                }
                elsewhere.tend(queue);
                elsewhere.tend(queue);
                assert_eq!(taken(&remote.wanted), [0], "one for one process");
                // Another machine has begun that one.
                let answers = || remote.answers.lock().expect("whole");
                answers().push((0, Answer::Taken));
                elsewhere.tend(queue);
                elsewhere.tend(queue);
                assert_eq!(taken(&remote.wanted), [1]);
                answers().push((1, Answer::Back));
                elsewhere.tend(queue);
                assert_eq!(next.join().expect("no panic"), Some(1));
            });
        });
    }

    #[test]
    fn nobody_is_waited_for_once_it_is_over() {
        with(2, |elsewhere, queue, remote| {
            elsewhere.tend(queue);
            elsewhere.settings.stop.store(true, Ordering::Relaxed);
            let came = elsewhere.tend(queue).into_iter();
            let came: Vec<_> = came.map(|came| (came.program, came.result)).collect();
            let stopped = || Err(WorkerError::Stopped.into());
            assert_eq!(came, [(0, stopped()), (1, stopped())]);
            assert_eq!(taken(&remote.forgotten), [0, 1]);
        });
        with(1, |elsewhere, queue, _| {
            elsewhere.tend(queue);
            elsewhere.end = Some(Instant::now());
            let came = elsewhere.tend(queue);
            assert!(matches!(
                came[..],
                [Came {
                    result: Err(CompileError::Worker(WorkerError::Timeout(_))),
                    ..
                }]
            ));
        });
    }
}

//! Threads that work beside the search: each is asked through a channel and answers through another.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// A thread that answers questions of type `Q` with answers of type `A`. It ends when its asker does, and is lost if it panics: then it answers
/// nothing any more, and nobody waits for it.
pub(super) struct Beside<'scope, Q, A> {
    asked: Sender<Q>,
    answers: Receiver<A>,
    thread: ScopedJoinHandle<'scope, Duration>,
    under_way: usize,
}

impl<'scope, Q: Send + 'scope, A: Send + 'scope> Beside<'scope, Q, A> {
    /// Starts one. `serve` answers until nobody asks any more, and gives how long it was busy.
    pub(super) fn start(
        scope: &'scope Scope<'scope, '_>,
        serve: impl FnOnce(&Receiver<Q>, &Sender<A>) -> Duration + Send + 'scope,
    ) -> Self {
        let (asked, questions) = channel();
        let (to_here, answers) = channel();
        Self {
            asked,
            answers,
            thread: scope.spawn(move || serve(&questions, &to_here)),
            under_way: 0,
        }
    }

    /// Asks a question that has one answer. False where the thread was lost.
    pub(super) fn ask(&mut self, question: Q) -> bool {
        let sent = self.asked.send(question).is_ok();
        self.under_way += usize::from(sent);
        sent
    }

    /// Says something that has no answer.
    pub(super) fn tell(&self, message: Q) {
        // Where the thread was lost nothing comes of it.
        let _ = self.asked.send(message);
    }

    /// The next answer, if there is one.
    pub(super) fn hear(&mut self) -> Option<A> {
        match self.answers.try_recv() {
            Ok(answer) => {
                self.under_way = self.under_way.saturating_sub(1);
                Some(answer)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.under_way = 0;
                None
            }
        }
    }

    /// Questions without an answer.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether it panicked.
    pub(super) fn is_lost(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it, once it has answered all. Gives the answers that were not heard, and how long it was busy; none where it was lost.
    pub(super) fn end(self) -> (Vec<A>, Option<Duration>) {
        drop(self.asked);
        let busy = self.thread.join().ok();
        (self.answers.try_iter().collect(), busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// One that answers twice the number, and panics at 13.
    fn doubling(questions: &Receiver<u32>, answers: &Sender<u32>) -> Duration {
        for n in questions {
            assert_ne!(n, 13, "a panic that the test asks for");
            answers.send(2 * n).expect("somebody listens");
        }
        Duration::from_secs(1)
    }

    /// What is heard until nothing is under way.
    fn heard(beside: &mut Beside<'_, u32, u32>) -> Vec<u32> {
        let (begun, mut all) = (Instant::now(), Vec::new());
        while beside.under_way() > 0 {
            all.extend(beside.hear());
            assert!(begun.elapsed() < Duration::from_secs(60), "it hangs");
        }
        all
    }

    #[test]
    fn what_is_asked_is_answered() {
        std::thread::scope(|scope| {
            let mut beside = Beside::start(scope, doubling);
            assert!((1..=3).all(|n| beside.ask(n)));
            assert_eq!(heard(&mut beside), [2, 4, 6]);
            assert!(!beside.is_lost());
            assert!(beside.ask(4));
            assert_eq!(beside.end(), (vec![8], Some(Duration::from_secs(1))));
        });
    }

    /// What it answered before is heard, the rest is not waited for, and whoever ends it is told.
    #[test]
    fn one_that_is_lost_holds_nobody_up() {
        std::thread::scope(|scope| {
            let mut beside = Beside::start(scope, doubling);
            for n in [1, 13, 2] {
                beside.ask(n);
            }
            assert_eq!(heard(&mut beside), [2]);
            while !beside.is_lost() {
                std::thread::yield_now();
            }
            assert!(!beside.ask(3) && beside.under_way() == 0);
            assert_eq!(beside.end(), (vec![], None));
        });
    }
}

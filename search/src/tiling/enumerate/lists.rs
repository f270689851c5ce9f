//! Lists of the assignments of kernels, which the searches over all expressions share.

use crate::tiling::assign::Choice;
use ir::{AxisId, Reject};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The assignments of one kernel that are remembered, best first. Every cut that has this kernel shares them.
#[derive(Debug)]
pub(super) struct Ranked {
    /// Tells it from other lists.
    pub(super) id: usize,
    pub(super) choices: Vec<(Choice, f64)>,
    /// What a block holds under each of them, along axes of the expression whose search made the list: to be told from each other alone.
    pub(super) held: Vec<Held>,
}

impl Ranked {
    /// Whether there is any; without one no cuts that have the kernel are a plan.
    pub(super) fn is_any(&self) -> Result<(), Reject> {
        match self.choices.is_empty() {
            true => Err(Reject::Assignment(
                "no assignment of a kernel's axes can be built".to_owned(),
            )),
            false => Ok(()),
        }
    }
}

/// Tiles of the axes that no loop runs over.
pub(super) type Held = Vec<(AxisId, u64)>;

/// The lists of kernels, by their names: what the searches over all expressions share, for most of their kernels are equal.
#[derive(Debug, Default)]
pub(super) struct Lists(Mutex<HashMap<String, Arc<Promise>>>);

/// A list that somebody makes; none where the search ended before it was whole.
pub(super) type Promise = OnceLock<Option<Arc<Ranked>>>;

/// A promise that is kept whatever happens: nobody waits for what does not come.
pub(super) struct Own(Arc<Promise>);

impl Own {
    pub(super) fn keep(self, list: Option<Arc<Ranked>>) {
        // Nobody else keeps it.
        let _ = self.0.set(list);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.0.set(None);
    }
}

/// What becomes of a kernel's list.
pub(super) enum List {
    /// It is there.
    Is(Arc<Ranked>),
    /// Who asked has to make it.
    Own(Own),
    /// Somebody makes it.
    Others(Arc<Promise>),
}

impl Lists {
    /// That of the kernels of a name.
    pub(super) fn of(&self, name: String) -> List {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(&name) {
            None => {
                let promise: Arc<Promise> = Arc::default();
                all.insert(name, promise.clone());
                List::Own(Own(promise))
            }
            Some(promise) => match promise.get() {
                Some(Some(ranked)) => List::Is(ranked.clone()),
                Some(None) => List::Own(Own(Arc::default())),
                None => List::Others(promise.clone()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(id: usize) -> Arc<Ranked> {
        Arc::new(Ranked {
            id,
            choices: Vec::new(),
            held: Vec::new(),
        })
    }

    #[test]
    fn one_makes_a_list_and_others_have_it() {
        let lists = Lists::default();
        let own = |name: &str| match lists.of(name.to_owned()) {
            List::Own(own) => own,
            List::Is(_) | List::Others(_) => panic!("{name} is somebody's"),
        };
        let first = own("first");
        let List::Others(promise) = lists.of("first".to_owned()) else {
            panic!("it is made");
        };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| promise.wait().clone().map(|list| list.id));
            first.keep(Some(list(7)));
            assert_eq!(waiting.join().expect("no panic"), Some(7));
        });
        assert!(matches!(lists.of("first".to_owned()), List::Is(list) if list.id == 7));
        // What does not come to its end keeps nobody waiting, and is no list.
        let second = own("second");
        let List::Others(promise) = lists.of("second".to_owned()) else {
            panic!("it is made");
        };
        drop(second);
        assert!(promise.wait().is_none());
        drop(own("second"));
    }
}

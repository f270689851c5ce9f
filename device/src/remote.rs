//! Compiling on other machines, as a compile pool sees it: whom it may ask, and what comes of it.
//!
//! Nothing here waits for another machine. What comes from one is no compiler's word: a pool treats it as it treats what it finds in its cache, and compiles
//! it anew before it is handed on ([`CompilePool::confirm`](crate::pool::CompilePool::confirm)).

use crate::cache::Key;
use crate::nvrtc::{CompileError, Compiled};
use std::fmt;
use std::sync::Arc;

/// A program that waits for a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Tells it from the pool's other offers.
    pub number: u64,
    /// All that its compilation depends on.
    pub key: Key,
    /// The text.
    pub source: String,
    /// What it is compiled for.
    pub arch: String,
}

/// What became of an offer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Another machine compiled it.
    Made(Box<Result<Compiled, CompileError>>),
    /// It is nobody's: it is to be compiled here.
    Back,
    /// It was asked for back, and another machine has begun it. Another answer follows.
    Taken,
}

/// Other machines that compile. None of this blocks.
pub trait Remote: Send + Sync {
    /// Which compiler is meant, by name and version: who has another one is not asked. Said before all else.
    fn compiler(&self, name: &str);

    /// How many programs they would have at a time.
    fn room(&self) -> usize;

    /// Offers a program.
    fn offer(&self, offer: Offer);

    /// Asks for a program back.
    fn take_back(&self, number: u64);

    /// Nobody waits for an answer any more.
    fn forget(&self, number: u64);

    /// An answer that has come.
    fn hear(&self) -> Option<(u64, Answer)>;
}

/// Other machines, for whoever is to ask them.
#[derive(Clone)]
pub struct RemoteHandle(pub Arc<dyn Remote>);

impl fmt::Debug for RemoteHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteHandle")
    }
}

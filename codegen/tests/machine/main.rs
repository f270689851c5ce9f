//! What can be said of machine programs without a compiler: their text, what runs them, how long they take and what they need.

#[path = "../common/mod.rs"]
mod common;

mod check;
mod clock;
mod resources;
mod schedule;
mod text;
mod validate;

//! The language and the types of the intermediate representation, from outside.

mod examples;
mod frozen;
mod garbage;
mod language;

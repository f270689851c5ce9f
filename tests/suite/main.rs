//! Tests that run on any machine.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod architecture;
mod command_line;

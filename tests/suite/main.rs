//! Tests that run on any machine.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod architecture;
mod artifacts;
mod campaigns;
mod circles;
mod command_line;
mod derived;
#[path = "../../codegen/tests/shim/mod.rs"]
mod emulator;
mod explain;
mod forms;
mod gate;
mod gate_cases;
mod interrupted;
mod kernels;
mod kinds;
mod layers;
mod limits;
mod log;
mod matrix;
mod mutants;
mod offered;
mod random;
mod references;
mod registers;
mod replay;
mod report;
mod schedules;
#[path = "../server/mod.rs"]
mod server;
mod slurm;
mod steering;
mod structure;

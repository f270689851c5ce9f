//! An offline superoptimizer for tensor programs.
//!
//! A [`Program`](ir::Program) goes in; what comes out is a tile program with a schedule and its CUDA, *verified* to compute
//! the program, and the fastest that was found within a budget. [`emit`](emit::emit) writes it as a folder that PyTorch imports.
//!
//! ```
//! use ir::{Builder, Dtype};
//! # use tilewright::ir;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut b = Builder::new("attention");
//! let (i, j, d, e) = (b.axis("i", 64)?, b.axis("j", 256)?, b.axis("d", 64)?, b.axis("e", 64)?);
//! let q = b.parameter("q", Dtype::F16, [i, d])?;
//! let k = b.parameter("k", Dtype::F16, [j, d])?;
//! let v = b.parameter("v", Dtype::F16, [j, e])?;
//! let scores = b.dot(q, k, [d])?;
//! let eighth = b.constant(0.125)?;
//! let scaled = b.mul(scores, eighth)?;
//! let weights = b.softmax(scaled, j)?;
//! let result = b.dot(weights, v, [j])?;
//! b.output(Dtype::F16, [i, e], result)?;
//! let program = b.finish()?;
//!
//! let target = tilewright::target("h200")?;
//! let options = tilewright::Options { effort: tilewright::Effort::LEAST, ..tilewright::Options::new(target) };
//! let optimized = tilewright::optimize(&program, &options, &mut ())?;
//! let best = optimized.best.value();
//! println!("{} kernels, about {:.1} us", best.tile.kernels.len(), best.predicted.us);
//! assert!(best.cuda.source.contains("__global__"));
//! assert!(best.measured.is_none(), "no worker program was given, so nothing ran on a GPU");
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`pipeline`] | from a program to the best verified candidate |
//! | [`worker`] | the part of it that runs on the GPU, in a child process |
//! | [`artifact`], [`emit`] | the folder that a user receives, and what goes in |
//! | [`explain`] | from a program to its kernels: corrections, and what each line of a schedule is worth |
//! | [`replay`] | all that an artifact says, derived again |
//! | [`report`] | an artifact or a campaign as one HTML file |
//! | [`log`] | every trial of every search, in a database |
//! | [`campaign`] | many programs, one budget, and a journal of what came of each |
//! | [`store`] | the database of artifacts, by program and target |
//! | [`database`] | how a database of ours is made and opened |
//! | [`npz`], [`files`] | named arrays in files; what of the files that a user names is read |
//! | [`budget`], [`place`] | how long a search may take, as people write it; where things are on a machine |
//!
//! This crate prints nothing and reads no environment variables; the command line does.

pub mod artifact;
pub mod budget;
pub mod campaign;
pub mod database;
pub mod emit;
pub mod explain;
pub mod files;
pub mod log;
pub mod machine;
pub mod npz;
pub mod pipeline;
pub mod place;
pub mod replay;
pub mod report;
pub mod store;
pub mod worker;

pub use pipeline::{
    Candidate, Compilation, Conditions, Effort, Error, Event, KernelName, Memory, MemoryHandle,
    Notes, Observer, Optimized, Options, Trial, TrialKey, optimize, program_hash,
};
pub use search::targets::{target, targets};

// The crates whose values this crate's functions take and give.
pub use {codegen, device, ir, search, verify};

//! Compiling, running and timing on a GPU.
//!
//! The CUDA libraries are opened at run time, so that the same binary starts on a machine without any: their absence is an
//! error value of the call that needs them. Everything that can hang or crash (NVRTC, the driver, a candidate kernel) is meant
//! to run in a child process, with a deadline, behind a [`worker::Worker`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`compiler`] | which compilers there are, and what each is asked |
//! | [`nvrtc`] | CUDA text to a cubin for one architecture, and what the assembler said about each kernel |
//! | [`worker`] | child processes that answer JSON lines |
//! | [`pool`] | those that compile, in parallel |
//! | [`remote`] | other machines that compile, as a pool sees them |
//! | [`cache`] | compiled programs on disk, by content |
//! | [`folder`] | folders that nobody else may write to |
//! | [`gpu`] | whether there is a GPU, and what it is |
//! | [`locks`] | who times on it, of several processes |
//! | [`gpu_error`] | why something did not happen on it |
//! | [`session`] | launches and their buffers on a GPU: run, watched and read back |
//! | [`timing`] | how long they take |
//! | [`telemetry`] | clock and power of a GPU meanwhile |
//! | [`faults`] | what the driver tells of a GPU when something goes wrong |
//!
//! This crate reads no environment variables and knows nothing of what the kernels compute.

pub mod cache;
pub mod compiler;
mod driver_ffi;
pub mod faults;
pub mod folder;
pub mod gpu;
pub mod gpu_error;
mod hex;
pub mod locks;
mod nvml_ffi;
pub mod nvrtc;
mod nvrtc_ffi;
pub mod pool;
pub mod remote;
pub mod session;
pub mod telemetry;
pub mod timing;
pub mod worker;

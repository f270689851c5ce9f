//! Compiling, running and timing on a GPU.

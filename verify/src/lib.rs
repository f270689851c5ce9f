//! Evidence that a candidate computes its program.

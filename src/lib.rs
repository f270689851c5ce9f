//! An offline superoptimizer for tensor programs.

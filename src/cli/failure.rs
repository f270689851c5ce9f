//! Why a command failed, and its exit code.

use std::fmt;

/// A message for people and the exit code that goes with it.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Bad input, or a file that cannot be read or written.
    pub(crate) fn refused(message: impl fmt::Display) -> Self {
        Self {
            code: 1,
            message: message.to_string(),
        }
    }

    /// Nothing passed verification.
    pub(crate) fn unverified(message: impl fmt::Display) -> Self {
        Self {
            code: 3,
            message: message.to_string(),
        }
    }

    /// The command needs a GPU.
    pub(crate) fn no_gpu(message: impl fmt::Display) -> Self {
        Self {
            code: 4,
            message: message.to_string(),
        }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

//! Why a command failed, and its exit code.

use std::fmt;

/// A message for people, the exit code that goes with it, and what there is to say all the same.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    output: String,
}

impl Failure {
    fn new(code: u8, message: &dyn fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
            output: String::new(),
        }
    }

    /// Bad input, or a file that cannot be read or written.
    pub(crate) fn refused(message: impl fmt::Display) -> Self {
        Self::new(1, &message)
    }

    /// Nothing passed verification, or a rule did not.
    pub(crate) fn unverified(message: impl fmt::Display) -> Self {
        Self::new(3, &message)
    }

    /// The command needs a GPU.
    pub(crate) fn no_gpu(message: impl fmt::Display) -> Self {
        Self::new(4, &message)
    }

    /// There is a GPU, and it could not be used.
    pub(crate) fn unusable_gpu(message: impl fmt::Display) -> Self {
        Self::new(5, &message)
    }

    /// The same with a result for standard output, which a failure does not hide.
    pub(crate) fn after(self, output: String) -> Self {
        Self { output, ..self }
    }

    /// The result for standard output; mostly empty.
    pub(crate) fn output(&self) -> &str {
        &self.output
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

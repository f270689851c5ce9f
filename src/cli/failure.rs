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

    /// Wrong usage, as the parser tells it.
    pub(crate) fn usage(error: &clap::Error) -> Self {
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        Self::new(2, &without_passwords(text))
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

    /// The budget does not suffice.
    pub(crate) fn budget(message: impl fmt::Display) -> Self {
        Self::new(6, &message)
    }

    /// A signal of this number came before there was a result.
    pub(crate) fn ended(signal: usize) -> Self {
        let message = "ended by a signal before anything was held; nothing was written";
        Self::new(u8::try_from(128 + signal).unwrap_or(u8::MAX), &message)
    }

    /// As one JSON object, with what there is to say all the same.
    pub(crate) fn json(&self) -> String {
        let mut all = match serde_json::from_str(&self.output) {
            Ok(serde_json::Value::Object(all)) => all,
            Ok(_) | Err(_) => serde_json::Map::new(),
        };
        all.insert("error".to_owned(), self.message.clone().into());
        all.insert("exit".to_owned(), self.code.into());
        serde_json::Value::Object(all).to_string() + "\n"
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

/// A text in which no address has a password: the parser repeats what it does not understand.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(char::is_whitespace).unwrap_or(part.len());
        let (place, rest) = part.split_at(end);
        let (user, host) = place.rsplit_once('@').unwrap_or(("", place));
        let user = user.split(':').next().unwrap_or_default();
        let at = if user.is_empty() { "" } else { "@" };
        shown += &format!("://{user}{at}{host}{rest}");
    }
    shown
}

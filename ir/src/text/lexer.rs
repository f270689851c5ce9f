//! Characters to tokens. Total: bytes that belong to no token are faults, and reading goes on behind them.

use super::diagnostics::{Fault, Span};

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A name or a keyword.
    Name(String),
    /// A number; the integer as well where it is written as one and fits.
    Number(f64, Option<u64>),
    /// Punctuation.
    Mark(&'static str),
    /// The end of a line.
    Newline,
}

/// A token and its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    /// What.
    pub(crate) kind: Kind,
    /// Where.
    pub(crate) span: Span,
}

/// Longest first.
const MARKS: [&str; 18] = [
    "...", "->", "..", "(", ")", "[", "]", "{", "}", "=", ",", ";", ":", "+", "-", "*", "/", "@",
];

/// The tokens of a text; `primes` says whether names may go on with `'`, as those of tile programs do.
pub(crate) fn lex(source: &str, primes: bool, faults: &mut Vec<Fault>) -> Vec<Token> {
    let mut tokens = Vec::new();
    let bytes = source.as_bytes();
    let run = |from: usize, member: fn(u8) -> bool| {
        let length = bytes[from..].iter().take_while(|b| member(**b)).count();
        from + length
    };
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        if byte == b'\n' {
            at += 1;
            let span = Span { start, end: at };
            tokens.push(Token {
                kind: Kind::Newline,
                span,
            });
        } else if matches!(byte, b' ' | b'\t' | b'\r') {
            at += 1;
        } else if byte == b'#' {
            at = run(at, |b| b != b'\n');
        } else if byte.is_ascii_alphabetic() || byte == b'_' {
            at = if primes {
                run(at, |b| b.is_ascii_alphanumeric() || b == b'_' || b == b'\'')
            } else {
                run(at, |b| b.is_ascii_alphanumeric() || b == b'_')
            };
            let span = Span { start, end: at };
            tokens.push(Token {
                kind: Kind::Name(source[start..at].to_owned()),
                span,
            });
        } else if byte.is_ascii_digit() {
            at = run(at, |b| b.is_ascii_digit());
            let fraction =
                bytes.get(at) == Some(&b'.') && bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
            if fraction {
                at = run(at + 1, |b| b.is_ascii_digit());
            }
            if matches!(bytes.get(at), Some(b'e' | b'E')) {
                let signed = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
                if bytes.get(at + 1 + signed).is_some_and(u8::is_ascii_digit) {
                    at = run(at + 1 + signed, |b| b.is_ascii_digit());
                }
            }
            let span = Span { start, end: at };
            let text = &source[start..at];
            let value: f64 = text.parse().unwrap_or(f64::INFINITY);
            if value.is_infinite() {
                faults.push((
                    span,
                    "this number is too large; infinity is written `inf`".to_owned(),
                ));
            }
            tokens.push(Token {
                kind: Kind::Number(value, text.parse().ok()),
                span,
            });
        } else if let Some(mark) = MARKS.iter().find(|m| source[at..].starts_with(**m)) {
            at += mark.len();
            let span = Span { start, end: at };
            tokens.push(Token {
                kind: Kind::Mark(mark),
                span,
            });
        } else {
            // Any other characters, as one fault; the next character boundary is where a known byte begins.
            at += source[at..].chars().next().map_or(1, char::len_utf8);
            while at < bytes.len() && !bytes[at].is_ascii() {
                at += 1;
            }
            let message = if source[start..].starts_with('\u{feff}') {
                "a byte-order mark: save the file as UTF-8 without one"
            } else {
                "programs consist of ASCII letters, digits and ( ) [ ] + - * / = , ; -> ..."
            };
            faults.push((Span { start, end: at }, message.to_owned()));
        }
    }
    tokens
}

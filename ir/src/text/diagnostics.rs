//! What a bad program gets: every fault with its place, the offending text underlined, and what was expected.

use std::fmt;

/// A range of bytes of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Span {
    /// First byte.
    pub(crate) start: usize,
    /// One past the last byte.
    pub(crate) end: usize,
}

impl Span {
    /// From the start of `self` to the end of `last`.
    pub(crate) fn to(self, last: Self) -> Self {
        Self {
            start: self.start,
            end: last.end.max(self.end),
        }
    }
}

/// A fault that has not been placed in lines yet.
pub(crate) type Fault = (Span, String);

/// Most faults that are listed one by one.
const LISTED: usize = 100;
/// Longest piece of a line that is quoted, in characters.
const QUOTED: usize = 160;

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong and what was expected.
    pub message: String,
    quote: String,
    underline: String,
}

/// Every fault of one file, in the order of the text. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Diagnostics {
    file: String,
    list: Vec<Diagnostic>,
    omitted: usize,
}

impl Diagnostics {
    /// Places faults in the lines of `source`.
    pub(crate) fn new(file: &str, source: &str, mut faults: Vec<Fault>) -> Self {
        faults.sort_by(|a, b| (a.0.start, a.0.end, &a.1).cmp(&(b.0.start, b.0.end, &b.1)));
        faults.dedup();
        let omitted = faults.len().saturating_sub(LISTED);
        faults.truncate(LISTED);
        let mut starts = vec![0];
        starts.extend(source.match_indices('\n').map(|(at, _)| at + 1));
        let list = faults
            .into_iter()
            .map(|(span, message)| place(source, &starts, span, message))
            .collect();
        Self {
            file: file.to_owned(),
            list,
            omitted,
        }
    }

    /// The faults, in the order of the text.
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.list.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            let Diagnostic { line, column, .. } = fault;
            writeln!(f, "{}:{line}:{column}: {}", self.file, fault.message)?;
            writeln!(f, "  {}", fault.quote)?;
            write!(f, "  {}", fault.underline)?;
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more", self.omitted)?;
        }
        Ok(())
    }
}

fn place(source: &str, starts: &[usize], span: Span, message: String) -> Diagnostic {
    let start = span.start.min(source.len());
    let number = starts.partition_point(|s| *s <= start).max(1) - 1;
    let from = starts[number];
    let line = source
        .get(from..)
        .and_then(|rest| rest.split('\n').next())
        .unwrap_or("")
        .trim_end_matches('\r');
    let before = source.get(from..start).unwrap_or(line);
    let column = before.chars().count();
    // At least one character, at most to the end of the line.
    let line_end = from + line.len();
    let marked = source
        .get(start..span.end.min(line_end).max(start))
        .map_or(1, |s| s.chars().count().max(1));
    // Long lines are quoted in part, so that the offending text is inside.
    let skip = if column + marked > QUOTED {
        column.saturating_sub(QUOTED / 2)
    } else {
        0
    };
    let quote: String = line
        .chars()
        .skip(skip)
        .take(QUOTED)
        .map(|c| if c.is_control() && c != '\t' { ' ' } else { c })
        .collect();
    let mut underline: String = quote
        .chars()
        .take(column - skip)
        .map(|c| if c == '\t' { '\t' } else { ' ' })
        .collect();
    underline.extend(std::iter::repeat_n('^', marked.min(QUOTED / 2)));
    Diagnostic {
        line: number + 1,
        column: column + 1,
        message,
        quote,
        underline,
    }
}

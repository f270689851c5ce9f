//! From a text to its blocks: what can be said without knowing a tile program. Every faulty line is told.

use super::form::counted;
use super::{Argument, Form, Language, Part, Step};
use crate::text::{Fault, Span};
use std::collections::{BTreeMap, BTreeSet};

/// What a text says of one kernel. The values have only names yet.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) number: u64,
    pub(super) span: Span,
    pub(super) lines: Vec<Said>,
}

/// A line of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// What it says, of no contraction yet.
    pub(super) step: Step,
    /// The name of the contraction that it is about.
    pub(super) about: Option<(String, Span)>,
    /// Its first word.
    span: Span,
}

/// A step that fails says where and why; the line is then given up.
type Read<T> = Result<T, Fault>;

/// The blocks of a text, in its order.
///
/// # Errors
/// Every line that is none, and the first of each kernel that stands in a wrong place.
pub(super) fn blocks(source: &str, language: &Language) -> Result<Vec<Block>, Vec<Fault>> {
    let mut reader = Reader {
        language,
        number: 0,
        known: BTreeSet::new(),
        blocks: Vec::new(),
        open: None,
        faults: Vec::new(),
    };
    let mut start = 0;
    for text in source.split_inclusive('\n') {
        let line = Line::new(text, start);
        start += text.len();
        reader.number += 1;
        if line.peek().is_some()
            && let Err(fault) = reader.line(line)
        {
            if let Some(open) = &mut reader.open {
                open.sound = false;
            }
            reader.faults.push(fault);
        }
    }
    reader.close();
    if reader.faults.is_empty() {
        Ok(reader.blocks)
    } else {
        Err(reader.faults)
    }
}

/// The block that is being read.
struct Open {
    block: Block,
    /// What was said, of which value, and in which line.
    said: BTreeMap<(&'static str, String), usize>,
    /// Whether every line of it could be read.
    sound: bool,
}

struct Reader<'a> {
    language: &'a Language,
    /// Of the line that is being read, from 1.
    number: usize,
    /// The numbers of blocks.
    known: BTreeSet<u64>,
    blocks: Vec<Block>,
    open: Option<Open>,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn line(&mut self, mut line: Line<'_>) -> Read<()> {
        let first = line.word("`kernel` or a line of a kernel")?;
        if first.text == "kernel" {
            return self.kernel(line);
        }
        let forms = &self.language.forms;
        let Some(form) = forms.iter().find(|f| f.word == first.text) else {
            let words: Vec<String> = forms.iter().map(|f| format!("`{}`", f.word)).collect();
            let message = format!(
                "expected `kernel` or one of {}, found `{}`",
                words.join(", "),
                first.text
            );
            return Err((first.span, message));
        };
        let Some(open) = &mut self.open else {
            let message = format!("expected `kernel 0` in front of the first `{}`", first.text);
            return Err((first.span, message));
        };
        let explained = |(span, message): Fault| {
            let message = format!("{message}: `{}`, {}", form.pattern(), form.help);
            (span, message)
        };
        let said = said(form, self.language, &mut line, first.span).map_err(explained)?;
        line.end().map_err(explained)?;
        let (span, what) = match &said.about {
            Some((name, span)) => (*span, format!("the {} of `{name}`", form.word)),
            None => (first.span, format!("`{}`", form.word)),
        };
        let name = said.about.as_ref().map(|a| a.0.clone());
        open.block.lines.push(said);
        let key = (form.word, name.unwrap_or_default());
        match open.said.insert(key, self.number) {
            None => Ok(()),
            Some(before) => {
                let message = format!("{what} is said twice: line {before} says it already");
                Err((span, message))
            }
        }
    }

    fn kernel(&mut self, mut line: Line<'_>) -> Read<()> {
        self.close();
        let (number, span) = line.digits("the kernel's number, from 0 on")?;
        line.end()?;
        let again = !self.known.insert(number);
        self.open = Some(Open {
            block: Block {
                number,
                span,
                lines: Vec::new(),
            },
            said: BTreeMap::new(),
            sound: true,
        });
        if again {
            return Err((span, format!("there are two blocks of kernel {number}")));
        }
        Ok(())
    }

    /// The block ends.
    fn close(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let lines = &mut open.block.lines;
        lines.retain(|l| !l.step.says_nothing());
        let steps: Vec<Step> = lines.iter().map(|l| l.step.clone()).collect();
        if open.sound
            && let Some((at, message)) = (self.language.misplaced)(&steps)
        {
            let span = lines.get(at).map_or(open.block.span, |l| l.span);
            self.faults.push((span, message));
        }
        self.blocks.push(open.block);
    }
}

/// What stands behind the first word.
fn said(form: &'static Form, language: &Language, line: &mut Line<'_>, first: Span) -> Read<Said> {
    let (mut about, mut arguments, mut last) = (None, Vec::new(), 0);
    for part in form.parts {
        match part {
            Part::Word(word) => line.expect(word)?,
            Part::Count { of, most, .. } => {
                last = line.number(of, *most)?;
                arguments.push(Argument::Count(last));
            }
            Part::Noun(noun) => line.expect(&counted(noun, last))?,
            Part::Contraction(_) => {
                let value = line.name("the name of a contraction's value")?;
                about = Some((value.text.to_owned(), value.span));
            }
            Part::Instruction(_) => {
                let name = line.word("an instruction")?;
                let Some(atom) = language.atoms.iter().find(|a| a.name() == name.text) else {
                    let known = language.instructions();
                    let message = format!("expected one of {known}, found `{}`", name.text);
                    return Err((name.span, message));
                };
                arguments.push(Argument::Instruction(*atom));
            }
            Part::Flag(word) => arguments.push(Argument::Flag(line.eat(word))),
        }
    }
    Ok(Said {
        step: Step::new(form, arguments),
        about,
        span: first,
    })
}

/// Characters between blanks, or a comma or equals sign.
#[derive(Clone, Copy, Debug)]
struct Word<'a> {
    text: &'a str,
    span: Span,
}

/// What is left of a line.
struct Line<'a> {
    words: std::vec::IntoIter<Word<'a>>,
    /// Behind the last word.
    end: Span,
}

impl<'a> Line<'a> {
    /// The words of a line that begins at this byte of the text, without its comment.
    fn new(line: &'a str, start: usize) -> Self {
        let said = line.split('#').next().unwrap_or_default().trim_end();
        let mut words: Vec<Word<'a>> = Vec::new();
        let mut from = None;
        let ends = said.char_indices().chain([(said.len(), ' ')]);
        for (at, c) in ends {
            let mark = matches!(c, ',' | '=');
            let mut word = |from: usize, to: usize| {
                let span = Span {
                    start: start + from,
                    end: start + to,
                };
                words.push(Word {
                    text: &said[from..to],
                    span,
                });
            };
            if mark || c.is_whitespace() {
                if let Some(from) = from.take() {
                    word(from, at);
                }
                if mark {
                    word(at, at + 1);
                }
            } else {
                from.get_or_insert(at);
            }
        }
        let end = start + said.len();
        Self {
            words: words.into_iter(),
            end: Span { start: end, end },
        }
    }

    fn peek(&self) -> Option<Word<'a>> {
        self.words.as_slice().first().copied()
    }

    /// A fault at the next word.
    fn expected<T>(&self, what: &str) -> Read<T> {
        let (span, found) = match self.peek() {
            Some(word) => (word.span, format!("`{}`", word.text)),
            None => (self.end, "the end of the line".to_owned()),
        };
        Err((span, format!("expected {what}, found {found}")))
    }

    fn word(&mut self, what: &str) -> Read<Word<'a>> {
        match self.words.next() {
            Some(word) => Ok(word),
            None => self.expected(what),
        }
    }

    /// A word that is no mark.
    fn name(&mut self, what: &str) -> Read<Word<'a>> {
        match self.peek() {
            Some(word) if !matches!(word.text, "," | "=") => self.word(what),
            Some(_) | None => self.expected(what),
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        let there = self.peek().is_some_and(|w| w.text == text);
        there && self.words.next().is_some()
    }

    fn expect(&mut self, text: &str) -> Read<()> {
        if self.eat(text) {
            Ok(())
        } else {
            self.expected(&format!("`{text}`"))
        }
    }

    /// A number from 0 on.
    fn digits(&mut self, what: &str) -> Read<(u64, Span)> {
        let Some(word) = self.peek() else {
            return self.expected(what);
        };
        if !word.text.bytes().all(|b| b.is_ascii_digit()) {
            return self.expected(what);
        }
        self.words.next();
        // Nothing is so many.
        Ok((word.text.parse().unwrap_or(u64::MAX), word.span))
    }

    /// A number from 1 on.
    fn number(&mut self, what: &str, most: u32) -> Read<u32> {
        let (number, span) = self.digits(&format!("the number of {what}"))?;
        match u32::try_from(number) {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            Ok(_) | Err(_) => {
                let message = format!("expected 1 to {most} {what}, found {number}");
                Err((span, message))
            }
        }
    }

    fn end(&self) -> Read<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.expected("the end of the line"),
        }
    }
}

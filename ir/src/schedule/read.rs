//! From a text to its blocks: what can be said without knowing a tile program. Every faulty line is told.

use super::{Atom, ContractSchedule, KernelSchedule, Overlap};
use crate::text::{Fault, Span};
use std::collections::{BTreeMap, BTreeSet};

/// The kinds of lines within a kernel's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Instruction,
    Warps,
    Pipeline,
    Roles,
    Registers,
    Order,
    Cluster,
}

/// The first word of each kind, and the whole line.
#[rustfmt::skip]
const LINES: [(Kind, &str, &str); 7] = [
    (Kind::Instruction, "instruction", "instruction VALUE = NAME [swapped]"),
    (Kind::Warps,       "warps",       "warps ROWS x COLUMNS"),
    (Kind::Pipeline,    "pipeline",    "pipeline N stages[, delayed]"),
    (Kind::Roles,       "roles",       "roles producer, turns"),
    (Kind::Registers,   "registers",   "registers for N blocks per SM"),
    (Kind::Order,       "order",       "order [persistent][, raster N]"),
    (Kind::Cluster,     "cluster",     "cluster N"),
];

/// A block has at most 1024 threads, which are 32 warps, along each side.
const MOST_WARPS: u32 = 32;
/// More stages than find room in shared memory with anything to compute.
const MOST_STAGES: u32 = 32;
/// No GPU holds more blocks on a multiprocessor at a time.
const MOST_BLOCKS: u32 = 32;
/// A grid of so many tiles along one axis is walked like one of more.
const MOST_RASTER: u32 = 1 << 16;
/// No GPU has larger clusters.
const MOST_CLUSTER: u32 = 16;

/// What a text says of one kernel. The values have only names yet.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) number: u64,
    pub(super) span: Span,
    /// All but the contractions.
    pub(super) kernel: KernelSchedule,
    pub(super) instructions: Vec<Instruction>,
}

/// How the contraction of this name is carried out.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) value: String,
    pub(super) span: Span,
    pub(super) how: ContractSchedule,
}

/// A step that fails says where and why; the line is then given up.
type Step<T> = Result<T, Fault>;

/// The blocks of a text, in its order.
///
/// # Errors
/// Every line that is none.
pub(super) fn blocks(source: &str, atoms: &[Atom]) -> Result<Vec<Block>, Vec<Fault>> {
    let mut reader = Reader {
        atoms,
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
    said: BTreeMap<(Kind, String), usize>,
    delayed: bool,
    turns: Option<Span>,
}

struct Reader<'a> {
    /// The instructions that there are.
    atoms: &'a [Atom],
    /// Of the line that is being read, from 1.
    number: usize,
    /// The numbers of blocks.
    known: BTreeSet<u64>,
    blocks: Vec<Block>,
    open: Option<Open>,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn line(&mut self, mut line: Line<'_>) -> Step<()> {
        let first = line.word("`kernel` or a line of a kernel")?;
        if first.text == "kernel" {
            return self.kernel(line);
        }
        let known = LINES.iter().find(|(_, word, _)| *word == first.text);
        let Some((kind, _, form)) = known else {
            let words: Vec<String> = LINES.iter().map(|l| format!("`{}`", l.1)).collect();
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
        let shown = |(span, message): Fault| (span, format!("{message}: `{form}`"));
        let subject = open
            .read(*kind, self.atoms, &mut line, first.span)
            .map_err(shown)?;
        line.end().map_err(shown)?;
        let (span, of) = match &subject {
            Some((span, name)) => (*span, format!("the instruction of `{name}`")),
            None => (first.span, format!("`{}`", first.text)),
        };
        let name = subject.map(|(_, name)| name).unwrap_or_default();
        match open.said.insert((*kind, name), self.number) {
            None => Ok(()),
            Some(before) => {
                let message = format!("{of} is said twice: line {before} says it already");
                Err((span, message))
            }
        }
    }

    fn kernel(&mut self, mut line: Line<'_>) -> Step<()> {
        self.close();
        let (number, span) = line.digits("the kernel's number, from 0 on")?;
        line.end()?;
        let again = !self.known.insert(number);
        self.open = Some(Open {
            block: Block {
                number,
                span,
                kernel: KernelSchedule::default(),
                instructions: Vec::new(),
            },
            said: BTreeMap::new(),
            delayed: false,
            turns: None,
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
        open.block.kernel.overlap = match (open.delayed, open.turns) {
            (false, None) => Overlap::None,
            (true, None) => Overlap::Delayed,
            (true, Some(_)) => Overlap::Turns,
            (false, Some(span)) => {
                let message = "expected `pipeline N stages, delayed` in this kernel too: turns are taken at what is delayed";
                self.faults.push((span, message.to_owned()));
                Overlap::Turns
            }
        };
        self.blocks.push(open.block);
    }
}

impl Open {
    /// What stands behind the first word; the value of which it is said, if it is of one.
    fn read(
        &mut self,
        kind: Kind,
        atoms: &[Atom],
        line: &mut Line<'_>,
        first: Span,
    ) -> Step<Option<(Span, String)>> {
        let kernel = &mut self.block.kernel;
        match kind {
            Kind::Instruction => {
                let value = line.name("the name of a contraction's value")?;
                line.expect("=")?;
                let name = line.word("an instruction")?;
                let Some(atom) = atoms.iter().find(|a| a.name() == name.text) else {
                    let known = instructions(atoms);
                    let message = format!("expected one of {known}, found `{}`", name.text);
                    return Err((name.span, message));
                };
                let swap = line.eat("swapped");
                self.block.instructions.push(Instruction {
                    value: value.text.to_owned(),
                    span: value.span,
                    how: ContractSchedule { atom: *atom, swap },
                });
                return Ok(Some((value.span, value.text.to_owned())));
            }
            Kind::Warps => {
                kernel.warps_m = line.number("warps along rows", MOST_WARPS)?;
                line.expect("x")?;
                kernel.warps_n = line.number("warps along columns", MOST_WARPS)?;
            }
            Kind::Pipeline => {
                kernel.stages = line.number("stages", MOST_STAGES)?;
                line.counted("stage", kernel.stages)?;
                if line.eat(",") {
                    line.expect("delayed")?;
                    self.delayed = true;
                }
            }
            Kind::Roles => {
                line.expect("producer")?;
                line.expect(",")?;
                line.expect("turns")?;
                self.turns = Some(first);
            }
            Kind::Registers => {
                line.expect("for")?;
                kernel.blocks_per_sm = line.number("blocks per SM", MOST_BLOCKS)?;
                line.counted("block", kernel.blocks_per_sm)?;
                line.expect("per")?;
                line.expect("SM")?;
            }
            Kind::Order => {
                kernel.persistent = line.eat("persistent");
                if !kernel.persistent || line.eat(",") {
                    if !line.eat("raster") {
                        let raster = "`raster`";
                        let both = "`persistent` or `raster`";
                        return line.expected(if kernel.persistent { raster } else { both });
                    }
                    kernel.raster = line.number("tiles that are walked together", MOST_RASTER)?;
                }
            }
            Kind::Cluster => kernel.cluster = line.number("blocks of a cluster", MOST_CLUSTER)?,
        }
        Ok(None)
    }
}

/// The names of all instructions.
pub(super) fn instructions(atoms: &[Atom]) -> String {
    let names: Vec<String> = atoms.iter().map(|a| format!("`{}`", a.name())).collect();
    names.join(", ")
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
    fn expected<T>(&self, what: &str) -> Step<T> {
        let (span, found) = match self.peek() {
            Some(word) => (word.span, format!("`{}`", word.text)),
            None => (self.end, "the end of the line".to_owned()),
        };
        Err((span, format!("expected {what}, found {found}")))
    }

    fn word(&mut self, what: &str) -> Step<Word<'a>> {
        match self.words.next() {
            Some(word) => Ok(word),
            None => self.expected(what),
        }
    }

    /// A word that is no mark.
    fn name(&mut self, what: &str) -> Step<Word<'a>> {
        match self.peek() {
            Some(word) if !matches!(word.text, "," | "=") => self.word(what),
            Some(_) | None => self.expected(what),
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        let there = self.peek().is_some_and(|w| w.text == text);
        there && self.words.next().is_some()
    }

    fn expect(&mut self, text: &str) -> Step<()> {
        if self.eat(text) {
            Ok(())
        } else {
            self.expected(&format!("`{text}`"))
        }
    }

    /// A noun in the singular behind 1, and in the plural behind other numbers.
    fn counted(&mut self, noun: &str, number: u32) -> Step<()> {
        match number {
            1 => self.expect(noun),
            _ => self.expect(&format!("{noun}s")),
        }
    }

    /// A number from 0 on.
    fn digits(&mut self, what: &str) -> Step<(u64, Span)> {
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
    fn number(&mut self, what: &str, most: u32) -> Step<u32> {
        let (number, span) = self.digits(&format!("the number of {what}"))?;
        match u32::try_from(number) {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            Ok(_) | Err(_) => {
                let message = format!("expected 1 to {most} {what}, found {number}");
                Err((span, message))
            }
        }
    }

    fn end(&self) -> Step<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.expected("the end of the line"),
        }
    }
}

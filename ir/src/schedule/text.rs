//! The text of schedules: a block for each kernel, a line for each transformation with its parameters.
//!
//! ```text
//! kernel 0
//!   instruction s = wgmma.m64k16
//!   instruction o = wgmma.m64k16 swapped
//!   warps 8 x 1
//!   pipeline 3 stages
//! ```
//!
//! Values have their names in the tile program. What each line says, and which there are, is the [`Language`]'s. Lines stand in the order in which
//! transformations apply; blocks may stand in any order; blanks and what follows a `#` say nothing.

use super::read::{Block, blocks};
use super::{Form, KernelSchedule, Language, Part, Schedule};
use crate::ops::count;
use crate::text::{Diagnostics, Fault};
use crate::tile::{Kernel, TileOp, TileProgram, ValueId};
use std::fmt::Write;

/// A schedule as it is written, not held against a tile program yet: [`of`](Self::of) does that, for as many as there are.
#[derive(Clone, Debug)]
pub struct ScheduleText {
    file: String,
    source: String,
    language: Language,
    blocks: Vec<Block>,
}

impl ScheduleText {
    /// Reads a text; `file` is the name that diagnostics quote.
    ///
    /// # Errors
    /// Every line that no tile program could make sense of: unknown words and instructions, numbers that are 0 or that no GPU has room
    /// for, what is said twice, or in an order in which it does not apply.
    pub fn parse(source: &str, file: &str, language: &Language) -> Result<Self, Diagnostics> {
        match blocks(source, language) {
            Ok(blocks) => Ok(Self {
                file: file.to_owned(),
                source: source.to_owned(),
                language: language.clone(),
                blocks,
            }),
            Err(faults) => Err(Diagnostics::new(file, source, faults)),
        }
    }

    /// The schedule of a tile program that the text says.
    ///
    /// # Errors
    /// Kernels and contractions of which the text says nothing, and those of which it speaks and that the tile program has not.
    pub fn of(&self, tile: &TileProgram) -> Result<Schedule, Diagnostics> {
        let mut faults: Vec<Fault> = Vec::new();
        let mut kernels: Vec<Option<KernelSchedule>> = vec![None; tile.kernels.len()];
        let all = count(tile.kernels.len(), "kernel");
        for block in &self.blocks {
            let number = usize::try_from(block.number).unwrap_or(usize::MAX);
            match (tile.kernels.get(number), kernels.get_mut(number)) {
                (Some(kernel), Some(place)) => {
                    *place = Some(named(block, kernel, &self.language, &mut faults))
                }
                (None | Some(_), None | Some(_)) => {
                    let message = format!(
                        "expected a number below {}, found {}: the tile program has {all}",
                        kernels.len(),
                        block.number
                    );
                    faults.push((block.span, message));
                }
            }
        }
        let last = self.blocks.last().map(|b| b.span).unwrap_or_default();
        for (number, kernel) in kernels.iter().enumerate() {
            if kernel.is_none() {
                let message = format!("expected `kernel {number}` too: the tile program has {all}");
                faults.push((last, message));
            }
        }
        if faults.is_empty() {
            let kernels = kernels.into_iter().flatten().collect();
            return Ok(Schedule { kernels });
        }
        Err(Diagnostics::new(&self.file, &self.source, faults))
    }
}

/// What a block says of a kernel; faults where its values are not the kernel's contractions.
fn named(
    block: &Block,
    kernel: &Kernel,
    language: &Language,
    faults: &mut Vec<Fault>,
) -> KernelSchedule {
    let contractions: Vec<(ValueId, &str)> = contractions(kernel).collect();
    let names: Vec<String> = contractions.iter().map(|c| format!("`{}`", c.1)).collect();
    let known = match names.as_slice() {
        [] => "none".to_owned(),
        some => some.join(", "),
    };
    let mut made = KernelSchedule::default();
    for line in &block.lines {
        let Some((name, span)) = &line.about else {
            made.set(line.step.clone());
            continue;
        };
        match contractions.iter().find(|c| c.1 == name) {
            Some((id, _)) => made.set(line.step.clone().about(*id)),
            None => {
                let message = format!(
                    "expected a contraction of kernel {}, which has {known}, found `{name}`",
                    block.number
                );
                faults.push((*span, message));
            }
        }
    }
    for form in language.forms.iter().filter(|f| f.required) {
        for (id, name) in &contractions {
            if !made.of(form).any(|s| s.value() == Some(*id)) {
                let message = format!(
                    "expected `{}` in kernel {} too{}",
                    form.wanted(name),
                    block.number,
                    known_of(form, language)
                );
                faults.push((block.span, message));
            }
        }
    }
    made
}

/// Which names there are for what a form wants.
fn known_of(form: &Form, language: &Language) -> String {
    let names = |p: &Part| matches!(p, Part::Instruction(_));
    match form.parts.iter().any(names) {
        true => format!(", with one of {}", language.instructions()),
        false => String::new(),
    }
}

/// The contractions of a kernel with their names.
fn contractions(kernel: &Kernel) -> impl Iterator<Item = (ValueId, &str)> {
    let values = kernel.values.iter().enumerate();
    values.filter_map(|(at, value)| match value.op {
        TileOp::Contract { .. } => Some((ValueId(at as u32), value.name.as_str())),
        TileOp::Load { .. }
        | TileOp::Constant(_)
        | TileOp::Iota(_)
        | TileOp::Map(..)
        | TileOp::Reduce { .. }
        | TileOp::Scan { .. }
        | TileOp::Phi { .. }
        | TileOp::Final { .. } => None,
    })
}

impl Schedule {
    /// Reads the schedule of a tile program; `file` is the name that diagnostics quote.
    ///
    /// # Errors
    /// As [`ScheduleText::parse`] and [`ScheduleText::of`].
    pub fn parse(
        source: &str,
        file: &str,
        language: &Language,
        tile: &TileProgram,
    ) -> Result<Self, Diagnostics> {
        ScheduleText::parse(source, file, language)?.of(tile)
    }

    /// The text of a schedule of this tile program, from which [`Schedule::parse`] reads the same.
    ///
    /// ```
    /// # use tilewright_ir::{Argument, Atom, Form, KernelSchedule, Language, Part, Schedule, Step, TileProgram, ValueId};
    /// let tile: TileProgram = "tile product\naxis i = 64, j = 64, k = 64\nbuffer x = parameter 0 f16 [i, k]\n\
    ///     buffer y = parameter 1 f16 [k, j]\nbuffer z = output 0 f32 [i, j]\nkernel grid(i: 64, j: 64) whole(k: 64) {\n  \
    ///     a = load x[i, k]\n  b = load y[k, j]\n  c = contract(a, b; k)\n  store z = c\n}\n".parse()?;
    /// static BY: Form = Form {
    ///     word: "instruction",
    ///     parts: &[Part::Contraction("VALUE"), Part::Word("="), Part::Instruction("NAME"), Part::Flag("swapped")],
    ///     required: true,
    ///     help: "what carries out a contraction",
    /// };
    /// let atoms = vec![Atom::new("fma"), Atom::new("wgmma.m64k16")];
    /// let language = Language { forms: vec![&BY], atoms, misplaced: |_| None };
    /// let text = "kernel 0\n  instruction c = wgmma.m64k16\n";
    /// let schedule = Schedule::parse(text, "my.txt", &language, &tile)?;
    /// let arguments = [Argument::Instruction(language.atoms[1]), Argument::Flag(false)];
    /// let step = Step::new(&BY, arguments).about(ValueId(2));
    /// assert_eq!(schedule.kernels, [KernelSchedule::from_iter([step])]);
    /// assert_eq!(schedule.text(&tile), text);
    /// # Ok::<(), tilewright_ir::Diagnostics>(())
    /// ```
    pub fn text(&self, tile: &TileProgram) -> String {
        let mut text = String::new();
        for (number, schedule) in self.kernels.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "kernel {number}");
            let kernel = tile.kernels.get(number);
            for step in schedule.steps() {
                let value = step.value().and_then(|v| kernel?.values.get(v.index()));
                let name = value.map(|v| v.name.as_str());
                let _ = writeln!(text, "  {}", step.form().line(name, step.arguments()));
            }
        }
        text
    }
}

//! The text of schedules: a block for each kernel, a line for each transformation with its parameters.
//!
//! ```text
//! kernel 0
//!   instruction s = wgmma.m64k16
//!   instruction o = wgmma.m64k16 swapped
//!   warps 8 x 1
//!   pipeline 3 stages, delayed
//!   roles producer, turns
//!   registers for 2 blocks per SM
//!   order persistent, raster 8
//!   cluster 2
//! ```
//!
//! Values have their names in the tile program, and each contraction has its instruction. What is not said is as in
//! [`KernelSchedule::default`], and what is so is not written. Lines and blocks may stand in any order; blanks and what follows a `#` say nothing.

use super::read::{Block, blocks, instructions};
use super::{Atom, KernelSchedule, Overlap, Schedule};
use crate::ops::count;
use crate::text::{Diagnostics, Fault};
use crate::tile::{Kernel, TileOp, TileProgram, ValueId};
use std::fmt::{self, Write};

/// A schedule as it is written, not held against a tile program yet: [`of`](Self::of) does that, for as many as there are.
#[derive(Clone, Debug)]
pub struct ScheduleText {
    file: String,
    source: String,
    atoms: Vec<Atom>,
    blocks: Vec<Block>,
}

impl ScheduleText {
    /// Reads a text; `file` is the name that diagnostics quote, `atoms` are the instructions that there are.
    ///
    /// # Errors
    /// Every line that no tile program could make sense of: unknown words and instructions, numbers that are 0 or that no GPU has room
    /// for, what is said twice.
    pub fn parse(source: &str, file: &str, atoms: &[Atom]) -> Result<Self, Diagnostics> {
        match blocks(source, atoms) {
            Ok(blocks) => Ok(Self {
                file: file.to_owned(),
                source: source.to_owned(),
                atoms: atoms.to_vec(),
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
                    *place = Some(named(block, kernel, &self.atoms, &mut faults))
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
    atoms: &[Atom],
    faults: &mut Vec<Fault>,
) -> KernelSchedule {
    let contractions: Vec<(ValueId, &str)> = contractions(kernel).collect();
    let names: Vec<String> = contractions.iter().map(|c| format!("`{}`", c.1)).collect();
    let known = match names.as_slice() {
        [] => "none".to_owned(),
        some => some.join(", "),
    };
    let mut made = block.kernel.clone();
    for instruction in &block.instructions {
        match contractions.iter().find(|c| c.1 == instruction.value) {
            Some((id, _)) => {
                made.contracts.insert(*id, instruction.how);
            }
            None => {
                let message = format!(
                    "expected a contraction of kernel {}, which has {known}, found `{}`",
                    block.number, instruction.value
                );
                faults.push((instruction.span, message));
            }
        }
    }
    for (id, name) in contractions {
        if !made.contracts.contains_key(&id) {
            let message = format!(
                "expected `instruction {name} = NAME` in kernel {} too, with one of {}",
                block.number,
                instructions(atoms)
            );
            faults.push((block.span, message));
        }
    }
    made
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
        | TileOp::Phi { .. }
        | TileOp::Final { .. } => None,
    })
}

impl Schedule {
    /// Reads the schedule of a tile program; `file` is the name that diagnostics quote, `atoms` are the instructions that there are.
    ///
    /// # Errors
    /// As [`ScheduleText::parse`] and [`ScheduleText::of`].
    pub fn parse(
        source: &str,
        file: &str,
        atoms: &[Atom],
        tile: &TileProgram,
    ) -> Result<Self, Diagnostics> {
        ScheduleText::parse(source, file, atoms)?.of(tile)
    }

    /// The text of a schedule of this tile program, from which [`Schedule::parse`] reads the same.
    ///
    /// ```
    /// # use tilewright_ir::{Atom, ContractSchedule, KernelSchedule, Schedule, TileProgram, ValueId};
    /// let tile: TileProgram = "tile product\naxis i = 64, j = 64, k = 64\nbuffer x = parameter 0 f16 [i, k]\n\
    ///     buffer y = parameter 1 f16 [k, j]\nbuffer z = output 0 f32 [i, j]\nkernel grid(i: 64, j: 64) whole(k: 64) {\n  \
    ///     a = load x[i, k]\n  b = load y[k, j]\n  c = contract(a, b; k)\n  store z = c\n}\n".parse()?;
    /// let atoms = [Atom::new("fma"), Atom::new("wgmma.m64k16")];
    /// let text = "kernel 0\n  instruction c = wgmma.m64k16\n  warps 4 x 1\n";
    /// let schedule = Schedule::parse(text, "my.txt", &atoms, &tile)?;
    /// assert_eq!(schedule.kernels[0].contracts[&ValueId(2)].atom, atoms[1]);
    /// assert_eq!(schedule.text(&tile), text);
    /// # Ok::<(), tilewright_ir::Diagnostics>(())
    /// ```
    pub fn text(&self, tile: &TileProgram) -> String {
        let mut text = String::new();
        for (number, schedule) in self.kernels.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "kernel {number}");
            let _ = write_kernel(&mut text, schedule, tile.kernels.get(number));
        }
        text
    }
}

fn write_kernel(text: &mut String, s: &KernelSchedule, kernel: Option<&Kernel>) -> fmt::Result {
    let plain = KernelSchedule::default();
    for (value, contract) in &s.contracts {
        let name = kernel.and_then(|k| k.values.get(value.index()));
        let name = name.map_or("?", |v| &v.name);
        let swapped = if contract.swap { " swapped" } else { "" };
        writeln!(
            text,
            "  instruction {name} = {}{swapped}",
            contract.atom.name()
        )?;
    }
    if (s.warps_m, s.warps_n) != (plain.warps_m, plain.warps_n) {
        writeln!(text, "  warps {} x {}", s.warps_m, s.warps_n)?;
    }
    let (delayed, turns) = match s.overlap {
        Overlap::None => ("", false),
        Overlap::Delayed => (", delayed", false),
        Overlap::Turns => (", delayed", true),
    };
    if s.stages != plain.stages || s.overlap != plain.overlap {
        let stages = count(s.stages as usize, "stage");
        writeln!(text, "  pipeline {stages}{delayed}")?;
    }
    if turns {
        writeln!(text, "  roles producer, turns")?;
    }
    if s.blocks_per_sm != plain.blocks_per_sm {
        let blocks = count(s.blocks_per_sm as usize, "block");
        writeln!(text, "  registers for {blocks} per SM")?;
    }
    let persistent = s.persistent.then(|| "persistent".to_owned());
    let raster = (s.raster != plain.raster).then(|| format!("raster {}", s.raster));
    let order: Vec<String> = persistent.into_iter().chain(raster).collect();
    if !order.is_empty() {
        writeln!(text, "  order {}", order.join(", "))?;
    }
    if s.cluster != plain.cluster {
        writeln!(text, "  cluster {}", s.cluster)?;
    }
    Ok(())
}

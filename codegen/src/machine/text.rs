//! Machine programs as text: RON, with a statement a line, that reads back as what it was written from.

use super::{FragmentId, Machine, RegionId, RingId, Statement};
use crate::atoms::{AtomRow, INSTRUCTIONS};
use ron::extensions::Extensions;
use ron::ser::PrettyConfig;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Text that is no machine program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// It is not the text of one.
    #[error("line {line}, column {column}: {what}")]
    Text {
        /// Where, from 1 on.
        line: usize,
        /// Where in the line, from 1 on.
        column: usize,
        /// What is wrong there.
        what: String,
    },
    /// A name that is not some letters and a number.
    #[error("`{0}` is no name of that kind: `{1}` and a number are expected")]
    Name(String, &'static str),
}

macro_rules! names {
    ($($id:ident $prefix:literal)*) => {$(
        impl From<$id> for String {
            fn from(id: $id) -> Self {
                format!(concat!($prefix, "{}"), id.0)
            }
        }

        impl TryFrom<String> for $id {
            type Error = MachineError;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                let number = text.strip_prefix($prefix).and_then(|n| n.parse().ok());
                number.map(Self).ok_or(MachineError::Name(text, $prefix))
            }
        }
    )*};
}
names! { FragmentId "f" RegionId "s" RingId "ring" }

/// An instruction, by its name and the dtype of its operands.
pub(super) mod instruction {
    use super::{AtomRow, INSTRUCTIONS};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(
        row: &&'static AtomRow,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&row.to_string())
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<&'static AtomRow, D::Error> {
        let wanted = String::deserialize(from)?;
        let mut all = INSTRUCTIONS.iter().flat_map(|i| i.forms);
        let found = all.find(|row| row.to_string() == wanted);
        found.ok_or_else(|| D::Error::custom(format!("`{wanted}` is no instruction")))
    }
}

const EXTENSIONS: Extensions = Extensions::UNWRAP_NEWTYPES
    .union(Extensions::UNWRAP_VARIANT_NEWTYPES)
    .union(Extensions::IMPLICIT_SOME);

/// A value on one line.
fn line(value: &impl Serialize) -> Result<String, fmt::Error> {
    let config = PrettyConfig::new().depth_limit(0);
    let options = ron::Options::default().with_default_extension(EXTENSIONS);
    let text = options.to_string_pretty(value, config);
    text.map_err(|_| fmt::Error)
}

/// A list of statements, behind `name`, each on a line of its own.
fn list(name: &str, body: &[Statement], depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let pad = "  ".repeat(depth);
    write!(f, "{name}[")?;
    for one in body {
        write!(f, "\n{pad}  ")?;
        statement(one, depth + 1, f)?;
        f.write_str(",")?;
    }
    if !body.is_empty() {
        write!(f, "\n{pad}")?;
    }
    f.write_str("]")
}

fn statement(s: &Statement, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Statement::Loop { number, body } = s {
        write!(f, "Loop(number: {number}, ")?;
        list("body: ", body, depth, f)?;
    } else if let Statement::Tiles(body) = s {
        list("Tiles(", body, depth, f)?;
    } else if let Statement::Scope(body) = s {
        list("Scope(", body, depth, f)?;
    } else if let Statement::If {
        condition,
        then,
        otherwise,
    } = s
    {
        write!(f, "If(condition: {}, ", line(condition)?)?;
        list("then: ", then, depth, f)?;
        list(", otherwise: ", otherwise, depth, f)?;
    } else {
        return f.write_str(&line(s)?);
    }
    f.write_str(")")
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        statement(self, 0, f)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every field, so that one more is not forgotten here.
        let Self {
            name,
            axes,
            buffers,
            warps,
            blocks_per_sm,
            precise,
            fragments,
            regions,
            rings,
            scratch,
            grid,
            block_group,
            cluster,
            split_workspace,
            prologue,
            producers,
            registers,
            body,
            epilogue,
            overlaps,
        } = self;
        writeln!(f, "(\n  name: {},", line(name)?)?;
        writeln!(f, "  axes: {{")?;
        for (id, axis) in axes {
            writeln!(f, "    {}: {},", id.0, line(axis)?)?;
        }
        writeln!(f, "  }},\n  buffers: {{")?;
        for (id, buffer) in buffers {
            writeln!(f, "    {}: {},", id.0, line(buffer)?)?;
        }
        writeln!(f, "  }},\n  warps: {},", line(warps)?)?;
        writeln!(f, "  blocks_per_sm: {blocks_per_sm},")?;
        writeln!(f, "  precise: {precise},\n  fragments: [")?;
        for (number, fragment) in fragments.iter().enumerate() {
            writeln!(f, "    {}, // f{number}", line(fragment)?)?;
        }
        writeln!(f, "  ],\n  regions: [")?;
        for (number, region) in regions.iter().enumerate() {
            writeln!(f, "    {}, // s{number}", line(region)?)?;
        }
        writeln!(f, "  ],\n  rings: [")?;
        for (number, ring) in rings.iter().enumerate() {
            writeln!(f, "    {}, // ring{number}", line(ring)?)?;
        }
        writeln!(f, "  ],\n  scratch: {},", line(scratch)?)?;
        writeln!(f, "  grid: {},", line(grid)?)?;
        writeln!(
            f,
            "  block_group: {},\n  cluster: {cluster},",
            line(block_group)?
        )?;
        writeln!(f, "  split_workspace: {},", line(split_workspace)?)?;
        list("  prologue: ", prologue, 1, f)?;
        f.write_str(",\n  producers: [")?;
        for p in producers {
            let (threads, boxed, registers) = (p.threads, p.boxed, line(&p.registers)?);
            write!(f, "(threads: {threads}, boxed: {boxed}, ")?;
            write!(f, "registers: {registers}, ")?;
            list("body: ", &p.body, 1, f)?;
            f.write_str("), ")?;
        }
        writeln!(f, "],\n  registers: {},", line(registers)?)?;
        list("  body: ", body, 1, f)?;
        f.write_str(",\n")?;
        list("  epilogue: ", epilogue, 1, f)?;
        writeln!(f, ",\n  overlaps: {overlaps},\n)")
    }
}

impl FromStr for Machine {
    type Err = MachineError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let options = ron::Options::default().with_default_extension(EXTENSIONS);
        options.from_str(text).map_err(|e| MachineError::Text {
            line: e.span.start.line,
            column: e.span.start.col,
            what: e.code.to_string(),
        })
    }
}

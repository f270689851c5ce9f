//! The text of tile programs, printed and read.
//!
//! ```text
//! tile rows
//! axis i = 64, j = 100
//! buffer x = parameter 0 f32 [i, j]
//! buffer out = output 0 f32 [i]
//! kernel grid(i: 16) loop(j: 32) {
//!   loop j from 0 to 100 {
//!     carry m = -inf over [i]
//!     t = load x[i, j]
//!     r = reduce_max(t; j)
//!     n = max(m, r)
//!     yield result = final(m, n)
//!   }
//!   store out = result
//! }
//! ```
//!
//! Element-wise operations are written as calls under their names in the table. A load ends in `fill number` unless it
//! fills with 0. `axis row = (i j)` is a [collapsed](TileProgram::collapsed) axis of those before it. A loop without `from` starts at 0, one without `to` ends at the extent; several bounds are separated
//! by commas, `(2*first(i) + last(h) - 3) / 4` is a bound with a divisor. Values are numbered in the order of the text,
//! unless the kernel's line gives another one as `values(a, b, …)`: what is lowered follows these numbers. The axes of values are not
//! written: each op implies them.

use super::print::{number, quotient_text};
use super::syntax::{Cursor, Definitions, Step};
use super::{Diagnostics, Fault, Kind, Span, lex};
use crate::affine::{Affine, Quotient};
use crate::axes::{Axis, AxisId, AxisSet};
use crate::program::{Dim, Dtype, MapOp, ReduceOp};
use crate::tile::{
    AxisTile, Bound, Buffer, BufferId, BufferRole, Carry, Corner, Entry, Kernel, Loop, Role,
    Statement, TileOp, TileProgram, Value, ValueId,
};
use crate::tile_check::{MAX_LOOP_DEPTH, validate};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

impl fmt::Display for TileProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tile {}", self.name)?;
        if !self.axes.is_empty() {
            let axes = (0..).map(AxisId).zip(&self.axes);
            let axes = axes.map(|(id, axis)| match self.collapsed.get(&id) {
                Some(members) => format!("{} = {}", axis.name, self.group(members)),
                None => format!("{} = {}", axis.name, axis.extent),
            });
            writeln!(f, "axis {}", list(axes))?;
        }
        for buffer in &self.buffers {
            let role = match buffer.role {
                BufferRole::Parameter(n) => format!("parameter {n}"),
                BufferRole::Output(n) => format!("output {n}"),
                BufferRole::Workspace => "workspace".to_owned(),
            };
            let (name, dtype) = (&buffer.name, buffer.dtype.name());
            let dims = buffer.dims.iter().map(|d| match d.0.as_slice() {
                [axis] => self.name_of(*axis).to_owned(),
                several => self.group(several),
            });
            writeln!(f, "buffer {name} = {role} {dtype} [{}]", list(dims))?;
        }
        for kernel in &self.kernels {
            self.write_kernel(f, kernel)?;
        }
        Ok(())
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<String>>().join(", ")
}

impl TileProgram {
    fn name_of(&self, axis: AxisId) -> &str {
        self.axes.get(axis.index()).map_or("?", |a| &a.name)
    }

    fn group(&self, axes: &[AxisId]) -> String {
        let names: Vec<&str> = axes.iter().map(|a| self.name_of(*a)).collect();
        format!("({})", names.join(" "))
    }

    fn names_of(&self, axes: &AxisSet) -> String {
        list(axes.iter().map(|a| self.name_of(a).to_owned()))
    }

    fn write_kernel(&self, f: &mut fmt::Formatter<'_>, kernel: &Kernel) -> fmt::Result {
        let with_tile = |axis: &AxisId| {
            let tile = kernel.axes.get(axis).map_or(0, |t| t.tile);
            format!("{}: {tile}", self.name_of(*axis))
        };
        write!(f, "kernel")?;
        if !kernel.grid.is_empty() {
            write!(f, " grid({})", list(kernel.grid.iter().map(with_tile)))?;
        }
        for (role, word) in [(Role::Loop, "loop"), (Role::Whole, "whole")] {
            let mut axes = kernel.axes.iter().filter(|a| a.1.role == role).peekable();
            if axes.peek().is_some() {
                write!(f, " {word}({})", list(axes.map(|a| with_tile(a.0))))?;
            }
        }
        let mut order = Vec::new();
        textual_order(&kernel.body, &mut order);
        if order.iter().enumerate().any(|(at, id)| id.index() != at) {
            let names = kernel.values.iter().map(|v| v.name.clone());
            write!(f, " values({})", list(names))?;
        }
        writeln!(f, " {{")?;
        self.write_block(f, kernel, &kernel.body, 1)?;
        writeln!(f, "}}")
    }

    fn write_block(
        &self,
        f: &mut fmt::Formatter<'_>,
        kernel: &Kernel,
        block: &[Statement],
        depth: usize,
    ) -> fmt::Result {
        let indent = "  ".repeat(depth);
        let name = |id: ValueId| value_name(kernel, id);
        for statement in block {
            match statement {
                Statement::Let(id) => {
                    let op = kernel.values.get(id.index()).map(|v| &v.op);
                    let op = op.map_or("?".to_owned(), |op| self.op_text(kernel, op));
                    writeln!(f, "{indent}{} = {op}", name(*id))?;
                }
                Statement::Store { buffer, value } => {
                    let buffer = self.buffers.get(buffer.index()).map_or("?", |b| &b.name);
                    writeln!(f, "{indent}store {buffer} = {}", name(*value))?;
                }
                Statement::Loop(looped) => {
                    write!(f, "{indent}loop {}", self.name_of(looped.axis))?;
                    for (word, bounds) in [("from", &looped.low), ("to", &looped.high)] {
                        if !bounds.is_empty() {
                            let bounds = bounds.iter().map(|b| self.bound_text(b));
                            write!(f, " {word} {}", list(bounds))?;
                        }
                    }
                    writeln!(f, " {{")?;
                    for carry in &looped.carries {
                        let op = kernel.values.get(carry.phi.index()).map(|v| &v.op);
                        if let Some(TileOp::Phi { init, axes }) = op {
                            let (init, axes) = (number(*init), self.names_of(axes));
                            writeln!(
                                f,
                                "{indent}  carry {} = {init} over [{axes}]",
                                name(carry.phi)
                            )?;
                        }
                    }
                    self.write_block(f, kernel, &looped.body, depth + 1)?;
                    for carry in &looped.carries {
                        let (phi, next) = (name(carry.phi), name(carry.next));
                        let result = name(carry.result);
                        writeln!(f, "{indent}  yield {result} = final({phi}, {next})")?;
                    }
                    writeln!(f, "{indent}}}")?;
                }
            }
        }
        Ok(())
    }

    fn op_text(&self, kernel: &Kernel, op: &TileOp) -> String {
        let name = |id: &ValueId| value_name(kernel, *id).to_owned();
        match op {
            TileOp::Load {
                buffer,
                index,
                fill,
            } => {
                let buffer = self.buffers.get(buffer.index()).map_or("?", |b| &b.name);
                let index = index.iter().map(|i| quotient_text(i, |a| self.name_of(a)));
                let fill = if fill.to_bits() == 0 {
                    String::new()
                } else {
                    format!(" fill {}", number(*fill))
                };
                format!("load {buffer}[{}]{fill}", list(index))
            }
            TileOp::Constant(value) => number(*value),
            TileOp::Iota(axis) => format!("iota({})", self.name_of(*axis)),
            TileOp::Map(op, args) => format!("{}({})", op.name(), list(args.iter().map(name))),
            TileOp::Reduce { op, value, axes } => {
                format!(
                    "{}({}; {})",
                    reduce_name(*op),
                    name(value),
                    self.names_of(axes)
                )
            }
            TileOp::Scan {
                op,
                value,
                axis,
                inclusive,
            } => {
                let scan = scan_name(*op, *inclusive);
                format!("{scan}({}; {})", name(value), self.name_of(*axis))
            }
            TileOp::Contract { a, b, axes } => {
                format!(
                    "contract({}, {}; {})",
                    name(a),
                    name(b),
                    self.names_of(axes)
                )
            }
            TileOp::Phi { .. } => "phi".to_owned(),
            TileOp::Final { .. } => "final".to_owned(),
        }
    }

    fn bound_text(&self, bound: &Bound) -> String {
        let mut sum = String::new();
        let mut add = |coefficient: i64, part: String| {
            let sign = match (sum.is_empty(), coefficient < 0) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            };
            sum.push_str(sign);
            if coefficient.unsigned_abs() != 1 {
                sum.push_str(&format!("{}*", coefficient.unsigned_abs()));
            }
            sum.push_str(&part);
        };
        for (coefficient, axis, corner) in &bound.terms {
            let corner = match corner {
                Corner::First => "first",
                Corner::Last => "last",
            };
            add(*coefficient, format!("{corner}({})", self.name_of(*axis)));
        }
        for (coefficient, entry) in &bound.entries {
            let buffer = (self.buffers.get(entry.buffer.index())).map_or("?", |b| &b.name);
            let axes = entry.axes.iter().map(|a| self.name_of(*a).to_owned());
            add(*coefficient, format!("{buffer}[{}]", list(axes)));
        }
        if sum.is_empty() {
            sum = bound.offset.to_string();
        } else if bound.offset != 0 {
            let sign = if bound.offset < 0 { "-" } else { "+" };
            sum.push_str(&format!(" {sign} {}", bound.offset.unsigned_abs()));
        }
        if bound.divisor == 1 {
            sum
        } else {
            format!("({sum}) / {}", bound.divisor)
        }
    }
}

fn value_name(kernel: &Kernel, id: ValueId) -> &str {
    kernel.values.get(id.index()).map_or("?", |v| &v.name)
}

fn scan_name(op: ReduceOp, inclusive: bool) -> &'static str {
    match (op, inclusive) {
        (ReduceOp::Sum, true) => "scan_sum",
        (ReduceOp::Sum, false) => "scan_sum_before",
        (ReduceOp::Max, true) => "scan_max",
        (ReduceOp::Max, false) => "scan_max_before",
        (ReduceOp::Product, true) => "scan_prod",
        (ReduceOp::Product, false) => "scan_prod_before",
    }
}

fn reduce_name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "reduce_sum",
        ReduceOp::Max => "reduce_max",
        ReduceOp::Product => "reduce_prod",
    }
}

/// The values in the order in which the text defines them.
fn textual_order(block: &[Statement], order: &mut Vec<ValueId>) {
    for statement in block {
        match statement {
            Statement::Let(id) => order.push(*id),
            Statement::Store { .. } => {}
            Statement::Loop(looped) => {
                order.extend(looped.carries.iter().map(|c| c.phi));
                textual_order(&looped.body, order);
                order.extend(looped.carries.iter().map(|c| c.result));
            }
        }
    }
}

impl FromStr for TileProgram {
    type Err = Diagnostics;

    /// Reads a well-formed tile program; the first fault of the text, or every fault of what it says.
    fn from_str(source: &str) -> Result<Self, Diagnostics> {
        let tile = Self::unchecked(source)?;
        match validate(&tile) {
            Ok(()) => Ok(tile),
            Err(reasons) => {
                let faults = reasons.into_iter().map(|r| (Span::default(), r)).collect();
                Err(Diagnostics::new(FILE, source, faults))
            }
        }
    }
}

/// The name that diagnostics quote.
const FILE: &str = "<tile program>";

impl TileProgram {
    /// Reads a tile program that need not be well-formed: a [kernel alone](Self::alone), which lacks what others store.
    ///
    /// # Errors
    /// The first fault of the text.
    pub fn unchecked(source: &str) -> Result<Self, Diagnostics> {
        let mut faults = Vec::new();
        let mut tokens = lex(source, true, &mut faults);
        tokens.retain(|t| t.kind != Kind::Newline);
        if faults.is_empty() {
            // Tile programs have no definitions; the cursor only wants a place for expressions, which are not read.
            let mut none = Definitions::default();
            let mut reader = Reader {
                cursor: Cursor::new(&tokens, &mut none),
                tile: Self {
                    name: String::new(),
                    axes: Vec::new(),
                    collapsed: BTreeMap::new(),
                    buffers: Vec::new(),
                    kernels: Vec::new(),
                },
                names: HashMap::new(),
                kernel: empty_kernel(),
                depth: 0,
            };
            match reader.tile_program() {
                Err(fault) => faults.push(fault),
                Ok(()) => return Ok(reader.tile),
            }
        }
        Err(Diagnostics::new(FILE, source, faults))
    }
}

fn empty_kernel() -> Kernel {
    Kernel {
        axes: BTreeMap::new(),
        grid: Vec::new(),
        values: Vec::new(),
        body: Vec::new(),
    }
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    tile: TileProgram,
    /// The values of the kernel that is being read.
    names: HashMap<String, ValueId>,
    kernel: Kernel,
    depth: usize,
}

impl Reader<'_> {
    fn tile_program(&mut self) -> Step<()> {
        self.keyword("tile")?;
        self.tile.name = self.cursor.ident("a name")?.name;
        if self.eat_keyword("axis") {
            loop {
                let name = self.cursor.ident("an axis's name")?.name;
                self.cursor.expect("=", "`= extent`")?;
                let extent = if self.cursor.eat("(") {
                    let members = self.group()?;
                    let extents = members.iter().map(|m| self.tile.extent(*m));
                    let extent = extents.fold(1, u64::saturating_mul);
                    let own = AxisId(self.tile.axes.len() as u32);
                    self.tile.collapsed.insert(own, members);
                    extent
                } else {
                    self.cursor.integer("an extent")?.0
                };
                self.tile.axes.push(Axis { name, extent });
                if !self.cursor.eat(",") {
                    break;
                }
            }
        }
        while self.eat_keyword("buffer") {
            self.buffer()?;
        }
        while self.eat_keyword("kernel") {
            self.kernel()?;
        }
        self.cursor.end()
    }

    fn eat_keyword(&mut self, word: &str) -> bool {
        self.cursor.is_keyword(word) && self.cursor.ident(word).is_ok()
    }

    /// Whether the next statement begins with this keyword, and does not define a value of that name.
    fn begins(&self, word: &str) -> bool {
        self.cursor.is_keyword(word) && !self.cursor.is_second("=")
    }

    fn keyword(&mut self, word: &str) -> Step<()> {
        if self.eat_keyword(word) {
            Ok(())
        } else {
            self.cursor.expected(&format!("`{word}`"))
        }
    }

    fn small(&mut self, what: &str) -> Step<i64> {
        let (value, span) = self.cursor.integer(what)?;
        i64::try_from(value).map_err(|_| (span, "this integer is too large".to_owned()))
    }

    fn axis(&mut self) -> Step<AxisId> {
        let ident = self.cursor.ident("an axis")?;
        let at = self.tile.axes.iter().position(|a| a.name == ident.name);
        match at {
            Some(at) => Ok(AxisId(at as u32)),
            None => Err((ident.span, format!("no axis `{}` is declared", ident.name))),
        }
    }

    /// The axes of a group behind its `(`.
    fn group(&mut self) -> Step<Vec<AxisId>> {
        let mut group = Vec::new();
        while !self.cursor.eat(")") {
            group.push(self.axis()?);
        }
        Ok(group)
    }

    fn buffer(&mut self) -> Step<()> {
        let name = self.cursor.ident("a buffer's name")?.name;
        self.cursor.expect("=", "`=`")?;
        let word = self.cursor.ident("`parameter`, `output` or `workspace`")?;
        let role = match word.name.as_str() {
            "workspace" => BufferRole::Workspace,
            "parameter" | "output" => {
                let (n, span) = self.cursor.integer("a number")?;
                let n = u32::try_from(n).map_err(|_| (span, "too large".to_owned()))?;
                if word.name == "output" {
                    BufferRole::Output(n)
                } else {
                    BufferRole::Parameter(n)
                }
            }
            _ => {
                let message = "expected `parameter`, `output` or `workspace`";
                return Err((word.span, message.to_owned()));
            }
        };
        let dtype = self.cursor.ident("a dtype")?;
        let Some(known) = Dtype::ALL.into_iter().find(|d| d.name() == dtype.name) else {
            return Err((dtype.span, format!("`{}` is no dtype", dtype.name)));
        };
        self.cursor.expect("[", "`[`")?;
        let mut dims = Vec::new();
        while !self.cursor.eat("]") {
            if !dims.is_empty() {
                self.cursor.expect(",", "`,` or `]`")?;
            }
            if self.cursor.eat("(") {
                dims.push(Dim(self.group()?));
            } else {
                dims.push(Dim(vec![self.axis()?]));
            }
        }
        self.tile.buffers.push(Buffer {
            name,
            dtype: known,
            dims,
            role,
        });
        Ok(())
    }

    fn kernel(&mut self) -> Step<()> {
        self.names = HashMap::new();
        self.kernel = empty_kernel();
        for (role, word) in [
            (Role::Grid, "grid"),
            (Role::Loop, "loop"),
            (Role::Whole, "whole"),
        ] {
            if !self.eat_keyword(word) {
                continue;
            }
            self.cursor.expect("(", "`(`")?;
            loop {
                let span = self.cursor.span();
                let axis = self.axis()?;
                self.cursor.expect(":", "`: tile size`")?;
                let (tile, _) = self.cursor.integer("a tile size")?;
                let new = AxisTile { role, tile };
                if self.kernel.axes.insert(axis, new).is_some() {
                    return Err((span, "this axis has a tile size already".to_owned()));
                }
                if role == Role::Grid {
                    self.kernel.grid.push(axis);
                }
                if !self.cursor.eat(",") {
                    break;
                }
            }
            self.cursor.expect(")", "`,` or `)`")?;
        }
        let at_values = self.cursor.span();
        let mut order = Vec::new();
        if self.eat_keyword("values") {
            self.cursor.expect("(", "`(`")?;
            order = self.cursor.idents("a value's name")?;
            self.cursor.expect(")", "`,` or `)`")?;
        }
        self.cursor.expect("{", "`{`")?;
        self.kernel.body = self.block()?;
        let mut kernel = std::mem::replace(&mut self.kernel, empty_kernel());
        if !order.is_empty() {
            let places: Option<Vec<ValueId>> = order
                .iter()
                .map(|ident| self.names.get(&ident.name).copied())
                .collect();
            let places = places.filter(|p| {
                let mut sorted = p.clone();
                sorted.sort_unstable();
                sorted.dedup();
                sorted.len() == kernel.values.len() && p.len() == sorted.len()
            });
            let Some(places) = places else {
                let message = "expected every value of the kernel once";
                return Err((at_values, message.to_owned()));
            };
            renumber(&mut kernel, &places);
        }
        self.tile.kernels.push(kernel);
        Ok(())
    }

    /// Statements to the closing brace.
    fn block(&mut self) -> Step<Vec<Statement>> {
        let mut statements = Vec::new();
        while !self.cursor.is("}") && !self.begins("yield") {
            let span = self.cursor.span();
            let word = self.cursor.ident("a statement or `}`")?;
            if self.cursor.eat("=") {
                let op = self.op()?;
                let id = self.define(span, word.name, op)?;
                statements.push(Statement::Let(id));
            } else if word.name == "store" {
                let buffer = self.buffer_id()?;
                self.cursor.expect("=", "`= value`")?;
                let value = self.value()?;
                statements.push(Statement::Store { buffer, value });
            } else if word.name == "loop" {
                if self.depth >= MAX_LOOP_DEPTH {
                    return Err((span, format!("loops nest more than {MAX_LOOP_DEPTH} deep")));
                }
                self.depth += 1;
                statements.push(Statement::Loop(self.looped()?));
                self.depth -= 1;
            } else {
                return self.cursor.expected("`=`");
            }
        }
        if self.depth == 0 {
            self.cursor.expect("}", "a statement or `}`")?;
        }
        Ok(statements)
    }

    fn looped(&mut self) -> Step<Loop> {
        let axis = self.axis()?;
        let low = self.bounds("from")?;
        let high = self.bounds("to")?;
        self.cursor.expect("{", "`{`")?;
        let mut phis = Vec::new();
        while self.begins("carry") && self.eat_keyword("carry") {
            let name = self.cursor.ident("the carry's name")?;
            self.cursor.expect("=", "`= initial value`")?;
            let (init, _) = self.cursor.signed_number()?;
            self.keyword("over")?;
            self.cursor.expect("[", "`[`")?;
            let mut axes = AxisSet::new();
            while !self.cursor.eat("]") {
                axes.insert(self.axis()?);
                if !self.cursor.is("]") {
                    self.cursor.expect(",", "`,` or `]`")?;
                }
            }
            let op = TileOp::Phi { init, axes };
            phis.push(self.define(name.span, name.name, op)?);
        }
        let body = self.block()?;
        let mut carries = Vec::new();
        for phi in phis {
            self.keyword("yield")?;
            let name = self.cursor.ident("the final value's name")?;
            self.cursor.expect("=", "`= final(carry, next)`")?;
            self.keyword("final")?;
            self.cursor.expect("(", "`(`")?;
            let span = self.cursor.span();
            if self.value()? != phi {
                let message = "carries are finished in the order in which they begin";
                return Err((span, message.to_owned()));
            }
            self.cursor.expect(",", "`, next`")?;
            let next = self.value()?;
            self.cursor.expect(")", "`)`")?;
            let result = self.define(name.span, name.name, TileOp::Final { phi })?;
            carries.push(Carry { phi, next, result });
        }
        self.cursor.expect("}", "`}`")?;
        Ok(Loop {
            axis,
            low,
            high,
            carries,
            body,
        })
    }

    fn bounds(&mut self, word: &str) -> Step<Vec<Bound>> {
        let mut bounds = Vec::new();
        if self.eat_keyword(word) {
            loop {
                let bracket = self.cursor.eat("(");
                let mut bound = self.sum()?;
                if bracket {
                    self.cursor.expect(")", "`)`")?;
                    self.cursor.expect("/", "`/ divisor`")?;
                    bound.divisor = self.small("a divisor")?;
                }
                bounds.push(bound);
                if !self.cursor.eat(",") {
                    break;
                }
            }
        }
        Ok(bounds)
    }

    /// `2*first(i) - last(h) + 3`, with a divisor of 1.
    fn sum(&mut self) -> Step<Bound> {
        let (mut terms, mut entries, mut offset) = (Vec::new(), Vec::new(), 0i64);
        let mut sign = if self.cursor.eat("-") { -1 } else { 1 };
        loop {
            let span = self.cursor.span();
            let mut coefficient = sign;
            let mut constant = false;
            if matches!(self.cursor.peek(), Some(Kind::Number(..))) {
                coefficient = sign * self.small("an integer")?;
                constant = !self.cursor.eat("*");
            }
            if constant {
                offset = offset
                    .checked_add(coefficient)
                    .ok_or((span, "this bound overflows".to_owned()))?;
            } else if self.cursor.is_second("[") {
                let buffer = self.buffer_id()?;
                self.cursor.expect("[", "`[`")?;
                let mut axes = Vec::new();
                while !self.cursor.eat("]") {
                    if !axes.is_empty() {
                        self.cursor.expect(",", "`,` or `]`")?;
                    }
                    axes.push(self.axis()?);
                }
                entries.push((coefficient, Entry { buffer, axes }));
            } else {
                let corner = self.cursor.ident("`first` or `last`")?;
                let corner = match corner.name.as_str() {
                    "first" => Corner::First,
                    "last" => Corner::Last,
                    _ => return Err((corner.span, "expected `first` or `last`".to_owned())),
                };
                self.cursor.expect("(", "`(`")?;
                terms.push((coefficient, self.axis()?, corner));
                self.cursor.expect(")", "`)`")?;
            }
            sign = if self.cursor.eat("+") {
                1
            } else if self.cursor.eat("-") {
                -1
            } else {
                let divisor = 1;
                return Ok(Bound {
                    terms,
                    entries,
                    offset,
                    divisor,
                });
            };
        }
    }

    fn define(&mut self, span: Span, name: String, op: TileOp) -> Step<ValueId> {
        let axes = self.tile.infer_axes(&self.kernel, &op);
        let axes = axes.map_err(|why| -> Fault { (span, why) })?;
        let id = ValueId(self.kernel.values.len() as u32);
        if self.names.insert(name.clone(), id).is_some() {
            return Err((span, format!("`{name}` is defined twice")));
        }
        self.kernel.values.push(Value { op, axes, name });
        Ok(id)
    }

    fn value(&mut self) -> Step<ValueId> {
        let ident = self.cursor.ident("a value")?;
        match self.names.get(&ident.name) {
            Some(id) => Ok(*id),
            None => Err((
                ident.span,
                format!("no value `{}` is defined above", ident.name),
            )),
        }
    }

    fn buffer_id(&mut self) -> Step<BufferId> {
        let ident = self.cursor.ident("a buffer")?;
        let at = self.tile.buffers.iter().position(|b| b.name == ident.name);
        match at {
            Some(at) => Ok(BufferId(at as u32)),
            None => Err((ident.span, format!("no buffer `{}`", ident.name))),
        }
    }

    fn op(&mut self) -> Step<TileOp> {
        let is_number = match self.cursor.peek() {
            Some(Kind::Number(..) | Kind::Mark("-")) => true,
            Some(Kind::Name(name)) => name == "inf",
            Some(Kind::Mark(_) | Kind::Newline) | None => false,
        };
        if is_number {
            return Ok(TileOp::Constant(self.cursor.signed_number()?.0));
        }
        let word = self.cursor.ident("an operation or a number")?;
        if word.name == "load" {
            return self.load();
        }
        self.cursor.expect("(", "`(`")?;
        let op = match word.name.as_str() {
            "iota" => TileOp::Iota(self.axis()?),
            "contract" => {
                let a = self.value()?;
                self.cursor.expect(",", "`,`")?;
                let b = self.value()?;
                let axes = self.axes_behind_semicolon()?;
                TileOp::Contract { a, b, axes }
            }
            name => {
                let reduce = ReduceOp::ALL
                    .into_iter()
                    .find(|op| reduce_name(*op) == name);
                let scan = ReduceOp::ALL
                    .into_iter()
                    .flat_map(|op| [(op, true), (op, false)])
                    .find(|(op, inclusive)| scan_name(*op, *inclusive) == name);
                if let Some(op) = reduce {
                    let value = self.value()?;
                    let axes = self.axes_behind_semicolon()?;
                    TileOp::Reduce { op, value, axes }
                } else if let Some((op, inclusive)) = scan {
                    let value = self.value()?;
                    self.cursor.expect(";", "`; axis`")?;
                    let axis = self.axis()?;
                    TileOp::Scan {
                        op,
                        value,
                        axis,
                        inclusive,
                    }
                } else if let Some(op) = MapOp::all().find(|op| op.name() == name) {
                    let mut args = vec![self.value()?];
                    while self.cursor.eat(",") {
                        args.push(self.value()?);
                    }
                    TileOp::Map(op, args)
                } else {
                    return Err((word.span, format!("`{name}` is no operation of tiles")));
                }
            }
        };
        self.cursor.expect(")", "`)`")?;
        Ok(op)
    }

    fn axes_behind_semicolon(&mut self) -> Step<AxisSet> {
        self.cursor.expect(";", "`; axes`")?;
        let mut axes = AxisSet::new();
        loop {
            axes.insert(self.axis()?);
            if !self.cursor.eat(",") {
                return Ok(axes);
            }
        }
    }

    fn load(&mut self) -> Step<TileOp> {
        let buffer = self.buffer_id()?;
        self.cursor.expect("[", "`[`")?;
        let mut index = Vec::new();
        while !self.cursor.eat("]") {
            if !index.is_empty() {
                self.cursor.expect(",", "`,` or `]`")?;
            }
            let span = self.cursor.span();
            let divided = self.cursor.eat("(");
            let (mut terms, mut offset) = (Vec::new(), Some(0i64));
            for term in self.cursor.affine()? {
                if let Some(factor) = term.factor {
                    let message = format!("expected an integer, found `{}`", factor.name);
                    return Err((factor.span, message));
                }
                let Some(name) = term.name else {
                    offset = offset.and_then(|o| o.checked_add(term.integer));
                    continue;
                };
                let at = self.tile.axes.iter().position(|a| a.name == name.name);
                let Some(at) = at else {
                    return Err((name.span, format!("no axis `{}` is declared", name.name)));
                };
                terms.push((term.integer, AxisId(at as u32)));
            }
            let affine = offset.and_then(|o| Affine::new(terms, o));
            let affine = affine.ok_or((span, "this index overflows".to_owned()))?;
            let mut divisor = 1;
            if divided {
                self.cursor.expect(")", "`+`, `-` or `)`")?;
                self.cursor.expect("/", "`/`")?;
                divisor = self.cursor.integer("a divisor")?.0;
            }
            let divisor = i64::try_from(divisor).unwrap_or(0);
            let found = Quotient::new(affine, divisor);
            index.push(found.ok_or((span, "an index is divided by 1 or more".to_owned()))?);
        }
        let mut fill = 0.0;
        if self.eat_keyword("fill") {
            fill = self.cursor.signed_number()?.0;
        }
        Ok(TileOp::Load {
            buffer,
            index,
            fill,
        })
    }
}

/// Gives the values new numbers: the n-th is what was `places[n]`, each value once.
fn renumber(kernel: &mut Kernel, places: &[ValueId]) {
    let mut new = vec![ValueId(0); places.len()];
    for (at, old) in places.iter().enumerate() {
        new[old.index()] = ValueId(at as u32);
    }
    let old = std::mem::take(&mut kernel.values);
    kernel.values = places.iter().map(|p| old[p.index()].clone()).collect();
    let moved = |id: &mut ValueId| *id = new[id.index()];
    for value in &mut kernel.values {
        match &mut value.op {
            TileOp::Load { .. } | TileOp::Constant(_) | TileOp::Iota(_) | TileOp::Phi { .. } => {}
            TileOp::Map(_, args) => args.iter_mut().for_each(moved),
            TileOp::Reduce { value, .. } | TileOp::Scan { value, .. } => moved(value),
            TileOp::Contract { a, b, .. } => [a, b].into_iter().for_each(moved),
            TileOp::Final { phi } => moved(phi),
        }
    }
    fn walk(block: &mut [Statement], moved: &impl Fn(&mut ValueId)) {
        for statement in block {
            match statement {
                Statement::Let(id) => moved(id),
                Statement::Store { value, .. } => moved(value),
                Statement::Loop(looped) => {
                    for carry in &mut looped.carries {
                        moved(&mut carry.phi);
                        moved(&mut carry.next);
                        moved(&mut carry.result);
                    }
                    walk(&mut looped.body, moved);
                }
            }
        }
    }
    walk(&mut kernel.body, &moved);
}

#[cfg(test)]
mod tests;

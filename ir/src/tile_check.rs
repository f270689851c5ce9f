//! What makes a tile program well formed.
//!
//! The validator knows nothing about the program that a tile program came from: that it computes the same is for the
//! interpreters to show. It makes sure that the interpreters, the cost model and the lowering may rely on the type's
//! contract without checking it again.

use crate::axes::{AxisId, AxisSet};
use crate::limits::{MAX_ELEMENTS, MAX_EXTENT};
use crate::program::{Dim, Dtype};
use crate::tile::{
    AxisTile, Bound, Buffer, BufferId, BufferRole, Entry, Kernel, Loop, Role, Statement, TileOp,
    TileProgram, ValueId,
};
use crate::tile_split::split_of;
use std::collections::BTreeSet;

/// Deepest nesting of loops.
pub const MAX_LOOP_DEPTH: usize = 32;

/// Refuses ill-formed tile programs, with every reason that was found.
///
/// Checked: tables (unique names, extents, tile sizes, roles; the grid is the axes of role [`Role::Grid`]); every value
/// computed once, before its uses and in scope; the axes of each value are those that its op implies, and loop axes
/// among them are those of enclosing loops; contractions run over loop and whole axes only, reductions outside every loop over grid axes
/// too; carries
/// agree on their axes, `next` is computed in the body; bounds mention grid axes and enclosing loops' axes only; loads
/// have one index a buffer axis, and read parameters or what an earlier kernel stored; parameters are never stored,
/// every other buffer exactly once, each of its elements by exactly one grid point and iteration.
pub fn validate(tile: &TileProgram) -> Result<(), Vec<String>> {
    let mut faults = Vec::new();
    check_tables(tile, &mut faults);
    if !faults.is_empty() {
        // Everything below looks axes and buffers up.
        return Err(faults);
    }
    if tile.kernels.is_empty() {
        faults.push("a tile program has at least one kernel".to_owned());
    }
    let mut stored: Vec<Option<usize>> = vec![None; tile.buffers.len()];
    for (at, kernel) in tile.kernels.iter().enumerate() {
        let before = faults.len();
        check_kernel_table(tile, kernel, &mut faults);
        if faults.len() == before {
            let mut checker = Checker {
                tile,
                kernel,
                number: at,
                stored: &mut stored,
                computed: vec![false; kernel.values.len()],
                visible: vec![false; kernel.values.len()],
                loops: Vec::new(),
                block_group: kernel.block_group(),
                faults: &mut faults,
            };
            checker.block(&kernel.body);
            let computed = std::mem::take(&mut checker.computed);
            for (value, computed) in kernel.values.iter().zip(computed) {
                if !computed {
                    faults.push(format!("value `{}` is never computed", value.name));
                }
            }
        }
        for fault in &mut faults[before..] {
            fault.insert_str(0, &format!("kernel {at}: "));
        }
    }
    for (buffer, stored) in tile.buffers.iter().zip(&stored) {
        let is_parameter = matches!(buffer.role, BufferRole::Parameter(_));
        if !is_parameter && stored.is_none() {
            faults.push(format!("buffer `{}` is never stored", buffer.name));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}

/// Whether a name can stand in the text form.
fn is_name(name: &str, primes: bool) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || (primes && c == '\''))
}

fn check_names<'a>(what: &str, names: impl Iterator<Item = &'a str>, faults: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !is_name(name, true) {
            faults.push(format!("{what} `{name}` has no proper name"));
        }
        if !seen.insert(name) {
            faults.push(format!("two of the same name: {what} `{name}`"));
        }
    }
}

fn check_tables(tile: &TileProgram, faults: &mut Vec<String>) {
    check_names("axis", tile.axes.iter().map(|a| a.name.as_str()), faults);
    let buffers = tile.buffers.iter().map(|b| b.name.as_str());
    check_names("buffer", buffers, faults);
    if !is_name(&tile.name, false) {
        faults.push(format!("`{}` is no name for a program", tile.name));
    }
    for axis in &tile.axes {
        if axis.extent == 0 || axis.extent > MAX_EXTENT {
            faults.push(format!(
                "axis `{}`: the extent {} is not between 1 and 2^40",
                axis.name, axis.extent
            ));
        }
    }
    for (axis, members) in &tile.collapsed {
        if let Err(why) = check_collapsed(tile, *axis, members) {
            faults.push(format!("axis `{}`: {why}", tile.axis_name(*axis)));
        }
    }
    for buffer in &tile.buffers {
        if let Err(why) = check_dims(tile, &buffer.dims) {
            faults.push(format!("buffer `{}`: {why}", buffer.name));
        }
    }
    let numbers = |pick: fn(&BufferRole) -> Option<u32>| -> Vec<u32> {
        let mut all: Vec<u32> = tile.buffers.iter().filter_map(|b| pick(&b.role)).collect();
        all.sort_unstable();
        all
    };
    let parameters = numbers(|r| match r {
        BufferRole::Parameter(n) => Some(*n),
        BufferRole::Output(_) | BufferRole::Workspace => None,
    });
    let outputs = numbers(|r| match r {
        BufferRole::Output(n) => Some(*n),
        BufferRole::Parameter(_) | BufferRole::Workspace => None,
    });
    for (what, numbers) in [("parameters", parameters), ("outputs", outputs)] {
        if numbers.iter().enumerate().any(|(at, n)| at != *n as usize) {
            faults.push(format!(
                "the {what} are numbered {numbers:?}, expected 0, 1, …"
            ));
        }
    }
}

fn check_collapsed(tile: &TileProgram, axis: AxisId, members: &[AxisId]) -> Result<(), String> {
    if axis.index() >= tile.axes.len() {
        return Err(format!("no axis number {}", axis.0));
    }
    if members.len() < 2 {
        return Err("it stands for several axes, at least 2".to_owned());
    }
    let mut seen = AxisSet::new();
    let mut extent = 1u64;
    for member in members {
        let Some(known) = tile.axes.get(member.index()) else {
            return Err(format!("no axis number {}", member.0));
        };
        if member.index() >= axis.index() {
            return Err(format!("`{}` does not stand before it", known.name));
        }
        if tile.collapsed.contains_key(member) {
            return Err(format!("`{}` stands for others itself", known.name));
        }
        if !seen.insert(*member) {
            return Err(format!("axis `{}` is used twice", known.name));
        }
        extent = extent.saturating_mul(known.extent);
    }
    match tile.extent(axis) == extent {
        true => Ok(()),
        false => Err(format!("the extents of what it stands for make {extent}")),
    }
}

fn check_dims(tile: &TileProgram, dims: &[Dim]) -> Result<(), String> {
    let mut seen = AxisSet::new();
    let mut elements = 1u64;
    for dim in dims {
        if dim.0.is_empty() {
            return Err("a dimension without axes".to_owned());
        }
        for axis in &dim.0 {
            let Some(known) = tile.axes.get(axis.index()) else {
                return Err(format!("no axis number {}", axis.0));
            };
            if !seen.insert(*axis) {
                return Err(format!("axis `{}` is used twice", known.name));
            }
            elements = elements
                .checked_mul(known.extent)
                .filter(|e| *e <= MAX_ELEMENTS)
                .ok_or_else(|| "too many elements".to_owned())?;
        }
    }
    Ok(())
}

fn check_kernel_table(tile: &TileProgram, kernel: &Kernel, faults: &mut Vec<String>) {
    for (axis, AxisTile { role, tile: size }) in &kernel.axes {
        let Some(known) = tile.axes.get(axis.index()) else {
            faults.push(format!("no axis number {}", axis.0));
            continue;
        };
        if *size == 0 || *size > known.extent {
            faults.push(format!(
                "axis `{}` has tiles of {size}, expected 1 to {}",
                known.name, known.extent
            ));
        }
        if *role == Role::Whole && *size != known.extent {
            faults.push(format!(
                "axis `{}` is whole: its tile is {size}, expected its extent {}",
                known.name, known.extent
            ));
        }
    }
    let grid: AxisSet = kernel.grid.iter().copied().collect();
    let with_role: AxisSet = kernel
        .axes
        .iter()
        .filter(|a| a.1.role == Role::Grid)
        .map(|a| *a.0)
        .collect();
    if grid != with_role || grid.len() != kernel.grid.len() {
        faults.push(format!(
            "the grid lists {}, the axes of role grid are {}",
            tile.axis_list(&grid),
            tile.axis_list(&with_role)
        ));
    }
    let names = kernel.values.iter().map(|v| v.name.as_str());
    check_names("value", names, faults);
}

/// The walk over one kernel.
struct Checker<'a> {
    tile: &'a TileProgram,
    kernel: &'a Kernel,
    number: usize,
    /// For each buffer, the kernel that stores it.
    stored: &'a mut Vec<Option<usize>>,
    computed: Vec<bool>,
    visible: Vec<bool>,
    /// Enclosing loops, outermost first.
    loops: Vec<&'a Loop>,
    block_group: AxisSet,
    faults: &'a mut Vec<String>,
}

impl<'a> Checker<'a> {
    fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    /// The extent of an axis, 0 for one that is not declared (which is reported elsewhere).
    fn extent(&self, axis: AxisId) -> u64 {
        self.tile.axes.get(axis.index()).map_or(0, |a| a.extent)
    }

    fn name(&self, id: ValueId) -> &'a str {
        let value = self.kernel.values.get(id.index());
        value.map_or("?", |v| v.name.as_str())
    }

    /// Runs a block; what it computes is visible in it alone. Returns the values that it made visible.
    fn block(&mut self, statements: &'a [Statement]) {
        let mut made = Vec::new();
        self.statements(statements, &mut made);
        for id in made {
            self.visible[id.index()] = false;
        }
    }

    fn statements(&mut self, statements: &'a [Statement], made: &mut Vec<ValueId>) {
        for statement in statements {
            match statement {
                Statement::Let(id) => {
                    let op = self.kernel.values.get(id.index()).map(|v| &v.op);
                    if let Some(TileOp::Phi { .. } | TileOp::Final { .. }) = op {
                        let name = self.name(*id);
                        self.fault(format!(
                            "`{name}` belongs to a carry and is computed by its loop"
                        ));
                    }
                    self.compute(*id, made);
                }
                Statement::Loop(looped) => self.looped(looped, made),
                Statement::Store { buffer, value } => self.store(*buffer, *value),
            }
        }
    }

    fn axes_here(&self) -> AxisSet {
        let loops: Vec<AxisId> = self.loops.iter().map(|l| l.axis).collect();
        let here = self
            .kernel
            .axes
            .iter()
            .filter(|(axis, tile)| match tile.role {
                Role::Grid | Role::Whole => true,
                Role::Loop => loops.contains(axis),
            });
        here.map(|a| *a.0).collect()
    }

    /// A value comes into being: once, from visible operands, with the axes that its op implies.
    fn compute(&mut self, id: ValueId, made: &mut Vec<ValueId>) {
        let Some(value) = self.kernel.values.get(id.index()) else {
            return self.fault(format!("no value number {}", id.0));
        };
        let name = &value.name;
        if std::mem::replace(&mut self.computed[id.index()], true) {
            return self.fault(format!("`{name}` is computed twice"));
        }
        let operands = value.op.operands();
        let reduced = value.op.reduced().cloned().unwrap_or_default();
        for operand in operands {
            if self.visible.get(operand.index()) != Some(&true) {
                let operand = self.name(operand);
                self.fault(format!(
                    "`{name}` uses `{operand}`, which is not visible there"
                ));
            }
        }
        match self.tile.infer_axes(self.kernel, &value.op) {
            Err(why) => self.fault(format!("`{name}`: {why}")),
            Ok(axes) if axes != value.axes => self.fault(format!(
                "`{name}` says that its axes are {}, they are {}",
                self.tile.axis_list(&value.axes),
                self.tile.axis_list(&axes)
            )),
            Ok(axes) => {
                let lost = axes.minus(&self.axes_here());
                if !lost.is_empty() {
                    let lost = self.tile.axis_list(&lost);
                    self.fault(format!(
                        "`{name}` varies over {lost}: no axes of the kernel, or of loops that do not enclose it"
                    ));
                }
            }
        }
        for axis in reduced.iter() {
            if self.kernel.axes.get(&axis).map(|a| a.role) == Some(Role::Grid) {
                let axis = self.tile.axis_name(axis);
                if !matches!(value.op, TileOp::Reduce { .. }) {
                    self.fault(format!("`{name}` contracts over the grid axis `{axis}`"));
                } else if !self.loops.is_empty() {
                    self.fault(format!(
                        "`{name}` reduces over the grid axis `{axis}` inside a loop"
                    ));
                }
            }
        }
        if let TileOp::Scan { axis, .. } = &value.op
            && self.kernel.axes.get(axis).map(|a| a.role) == Some(Role::Grid)
        {
            let axis = self.tile.axis_name(*axis);
            self.fault(format!("`{name}` scans along the grid axis `{axis}`"));
        }
        if let TileOp::Load { buffer, .. } = &value.op {
            self.loaded(name, *buffer);
        }
        self.visible[id.index()] = true;
        made.push(id);
    }

    fn is_stored_before(&self, id: BufferId) -> bool {
        self.stored[id.index()].is_some_and(|k| k < self.number)
    }

    fn loaded(&mut self, name: &str, id: BufferId) {
        let Some(buffer) = self.tile.buffers.get(id.index()) else {
            return; // reported with the op
        };
        let earlier = self.is_stored_before(id);
        match buffer.role {
            BufferRole::Parameter(_) => {}
            BufferRole::Output(_) | BufferRole::Workspace => {
                let (dtype, buffer) = (buffer.dtype, &buffer.name);
                if !earlier {
                    self.fault(format!(
                        "`{name}` reads `{buffer}`, which no earlier kernel stores"
                    ));
                } else if !dtype.is_float() {
                    self.fault(format!(
                        "`{name}` reads `{buffer}`, which holds no longer what was stored: it is {}",
                        dtype.name()
                    ));
                }
            }
        }
    }

    fn looped(&mut self, looped: &'a Loop, made: &mut Vec<ValueId>) {
        let tile = self.tile;
        let axis = looped.axis;
        let axis_name = tile.axis_name(axis);
        if self.loops.len() >= MAX_LOOP_DEPTH {
            return self.fault(format!("loops nest more than {MAX_LOOP_DEPTH} deep"));
        }
        match self.kernel.axes.get(&axis).map(|a| a.role) {
            Some(Role::Loop) => {}
            Some(Role::Grid | Role::Whole) | None => {
                self.fault(format!("a loop over `{axis_name}`, which is no loop axis"));
            }
        }
        if self.loops.iter().any(|l| l.axis == axis) {
            self.fault(format!("a loop over `{axis_name}` inside another over it"));
        }
        for bound in looped.low.iter().chain(&looped.high) {
            if let Err(why) = self.bound(bound) {
                self.fault(format!("a bound of the loop over `{axis_name}` {why}"));
            }
        }
        let split = split_of(self.kernel, looped);
        let is_collapsed = |a: AxisId| tile.collapsed.contains_key(&a);
        if looped.bounding().iter().any(is_collapsed) {
            self.fault(format!(
                "a bound of the loop over `{axis_name}` mentions a collapsed axis"
            ));
        }
        let bounds = looped.low.len() + looped.high.len();
        if is_collapsed(axis) && bounds > split.map_or(0, |_| 2) {
            self.fault(format!(
                "the loop over the collapsed axis `{axis_name}` leaves out a part of it"
            ));
        }
        if let Some(split) = split {
            let size = self.kernel.axes.get(&axis).map_or(1, |a| a.tile.max(1));
            let covered = split.chunk.saturating_mul(self.extent(split.part));
            let extent = self.extent(axis);
            if split.chunk % size != 0 || covered < extent {
                self.fault(format!(
                    "the loop over `{axis_name}` is split into parts of {}, which is no multiple of the tile {size} or does not reach the extent {extent}",
                    split.chunk
                ));
            }
        }
        // Where points of a block group do different iterations, what they carry differs too.
        let parts = looped.bounding().intersection(&self.block_group);
        let outside = self.axes_here();
        self.loops.push(looped);
        let mut inside = Vec::new();
        for carry in &looped.carries {
            let op = self.kernel.values.get(carry.phi.index()).map(|v| &v.op);
            let name = self.name(carry.phi);
            if let Some(TileOp::Phi { axes, .. }) = op {
                if !parts.is_subset(axes) {
                    let parts = tile.axis_list(&parts);
                    self.fault(format!(
                        "carry `{name}` does not vary over {parts}, which bounds its loop and is reduced over"
                    ));
                }
                let lost = axes.minus(&outside);
                if !lost.is_empty() {
                    let lost = tile.axis_list(&lost);
                    self.fault(format!(
                        "carry `{name}` varies over {lost}, unknown outside its loop"
                    ));
                }
            } else {
                self.fault(format!("`{name}` is carried, and no phi"));
            }
            self.compute(carry.phi, &mut inside);
        }
        let phis = inside.len();
        self.statements(&looped.body, &mut inside);
        for carry in &looped.carries {
            let value = |id: ValueId| self.kernel.values.get(id.index());
            let (phi, next) = (self.name(carry.phi), self.name(carry.next));
            if !inside[phis..].contains(&carry.next) {
                self.fault(format!(
                    "carry `{phi}` goes on with `{next}`, which its loop's body does not compute"
                ));
            } else if value(carry.phi).map(|v| &v.axes) != value(carry.next).map(|v| &v.axes) {
                self.fault(format!(
                    "carry `{phi}` and its next value `{next}` vary over different axes"
                ));
            }
        }
        // The phi is visible to its result, which is its value after the loop.
        let mut results = Vec::new();
        for carry in &looped.carries {
            let result = self.kernel.values.get(carry.result.index());
            if !matches!(result.map(|v| &v.op), Some(TileOp::Final { phi }) if *phi == carry.phi) {
                let (result, phi) = (self.name(carry.result), self.name(carry.phi));
                self.fault(format!("`{result}` is no final value of carry `{phi}`"));
            }
            self.loops.pop();
            self.compute(carry.result, &mut results);
            self.loops.push(looped);
        }
        self.loops.pop();
        for id in inside {
            self.visible[id.index()] = false;
        }
        made.extend(results);
    }

    fn bound(&self, bound: &Bound) -> Result<(), String> {
        if bound.divisor < 1 {
            return Err(format!("divides by {}", bound.divisor));
        }
        let mut reach = Some(bound.offset.unsigned_abs());
        for (coefficient, axis, _) in &bound.terms {
            let is_grid = self.kernel.axes.get(axis).map(|a| a.role) == Some(Role::Grid);
            if !is_grid && self.loops.iter().all(|l| l.axis != *axis) {
                return Err(format!(
                    "mentions `{}`, which is neither a grid axis nor the axis of an enclosing loop",
                    self.tile.axis_name(*axis)
                ));
            }
            let part = coefficient.unsigned_abs().checked_mul(self.extent(*axis));
            reach = reach.zip(part).and_then(|(r, p)| r.checked_add(p));
        }
        for (coefficient, entry) in &bound.entries {
            self.entry(entry)?;
            let part = coefficient.unsigned_abs().checked_mul(Entry::MOST as u64);
            reach = reach.zip(part).and_then(|(r, p)| r.checked_add(p));
        }
        match reach {
            Some(reach) if reach < 1 << 62 => Ok(()),
            Some(_) | None => Err("overflows".to_owned()),
        }
    }

    fn entry(&self, entry: &Entry) -> Result<(), String> {
        let Some(buffer) = self.tile.buffers.get(entry.buffer.index()) else {
            return Err(format!("reads no buffer, number {}", entry.buffer.0));
        };
        let name = &buffer.name;
        let given = matches!(buffer.role, BufferRole::Parameter(_));
        let whole = given && matches!(buffer.dtype, Dtype::I32 | Dtype::I64);
        if !whole && buffer.dtype != Dtype::F32 {
            let dtype = buffer.dtype.name();
            return Err(format!(
                "reads `{name}`, which is neither a parameter of integers nor f32, but {dtype}"
            ));
        }
        if !given && !self.is_stored_before(entry.buffer) {
            return Err(format!("reads `{name}`, which no earlier kernel stores"));
        }
        if !buffer.axes().eq(entry.axes.iter().copied()) {
            return Err(format!("reads `{name}` along other axes than its own"));
        }
        for axis in &entry.axes {
            let how = self.kernel.axes.get(axis);
            let around = how.map(|a| a.role) == Some(Role::Grid)
                || self.loops.iter().any(|l| l.axis == *axis);
            if !around || how.is_none_or(|a| a.tile != 1) {
                return Err(format!(
                    "reads `{name}` along `{}`, which has no single coordinate there",
                    self.tile.axis_name(*axis)
                ));
            }
        }
        Ok(())
    }

    fn store(&mut self, id: BufferId, value: ValueId) {
        let tile = self.tile;
        let Some(buffer) = tile.buffers.get(id.index()) else {
            return self.fault(format!("a store to no buffer, number {}", id.0));
        };
        let name = &buffer.name;
        match buffer.role {
            BufferRole::Parameter(_) => {
                return self.fault(format!("a store to the parameter `{name}`"));
            }
            BufferRole::Output(_) | BufferRole::Workspace => {}
        }
        if self.stored[id.index()].replace(self.number).is_some() {
            self.fault(format!("buffer `{name}` is stored twice"));
        }
        let value_name = self.name(value);
        if self.visible.get(value.index()) != Some(&true) {
            return self.fault(format!("stores `{value_name}`, which is not visible there"));
        }
        let found = &self.kernel.value(value).axes;
        let axes: AxisSet = tile.axes_stored(id, found).into_iter().collect();
        if *found != axes {
            return self.fault(format!(
                "stores `{value_name}` with the axes {} to `{name}`, which has {}",
                tile.axis_list(found),
                tile.axis_list(&axes)
            ));
        }
        if let Err(why) = self.covers(buffer, &axes) {
            self.fault(format!("the store to `{name}` {why}"));
        }
    }

    /// Whether each element is written by exactly one grid point and iteration. Grid axes that the buffer lacks must be
    /// parts of an enclosing loop's axis that the buffer has, or a block group's, of whom one writes, or consist of one point.
    fn covers(&self, buffer: &Buffer, axes: &AxisSet) -> Result<(), String> {
        let mut parts = AxisSet::new();
        for looped in &self.loops {
            let axis = self.tile.axis_name(looped.axis);
            if !axes.contains(looped.axis) {
                return Err(format!(
                    "is inside a loop over `{axis}`, which `{}` lacks: it would be written repeatedly",
                    buffer.name
                ));
            }
            let split = split_of(self.kernel, looped);
            let bounds = looped.low.len() + looped.high.len();
            match split {
                Some(split) if bounds == 2 && !axes.contains(split.part) => {
                    parts.insert(split.part);
                }
                Some(_) | None if bounds > 0 => {
                    return Err(format!(
                        "is inside a loop that leaves out a part of `{axis}`"
                    ));
                }
                Some(_) | None => {}
            }
        }
        for axis in &self.kernel.grid {
            let points = self.extent(*axis).div_ceil(self.kernel.tile(*axis));
            let shared = parts.contains(*axis) || self.block_group.contains(*axis);
            if !axes.contains(*axis) && !shared && points > 1 {
                return Err(format!(
                    "is done by several grid points along `{}`, which `{}` lacks",
                    self.tile.axis_name(*axis),
                    buffer.name
                ));
            }
        }
        Ok(())
    }
}

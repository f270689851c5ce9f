//! Loads, stores, and tiles in shared memory.

use super::{Digits, Emitter, Family, Source, holder, line, literal, narrow, suffix, sum, times};
use crate::access::Access;
use crate::cuda::{self, Node};
use crate::layout::{Gathered, Layout};
use crate::plan::{SharedTile, Swizzle};
use crate::resources::PRODUCER_THREADS;
use ir::{AxisId, BufferId, Dtype, Reject, ValueId};

impl Emitter<'_> {
    fn access(&self, v: ValueId) -> Result<Access, Reject> {
        let access = self.plan.access(v)?;
        access.ok_or_else(|| Reject::Schedule("not a load".into()))
    }

    /// Declares `g`, the element index of a thread's first element.
    fn origin_line(&mut self, access: &Access, layout: &Layout) -> Node {
        let kind = if access.wide { "long long" } else { "int" };
        let mut terms = Vec::new();
        for (axis, c) in &access.coefficients {
            let mut parts: Vec<String> = self.origin(*axis).into_iter().collect();
            parts.extend(self.thread_part(layout, *axis));
            if !parts.is_empty() {
                let scale = if access.wide {
                    format!("{c}ll")
                } else {
                    format!("({c})")
                };
                terms.push(format!("{scale} * ({})", parts.join(" + ")));
            }
        }
        if access.offset != 0 {
            terms.push(format!("({}ll)", access.offset));
        }
        line(format!("const {kind} g = ({kind})({});", sum(terms)))
    }

    /// The element index relative to `g`.
    fn step(access: &Access, layout: &Layout, digits: &Digits) -> String {
        let mut terms = vec!["g".to_string()];
        for (axis, c) in &access.coefficients {
            terms.extend(Self::register_part(layout, *axis, digits, *c));
        }
        sum(terms)
    }

    /// Conditions under which an element lies in the buffer.
    fn inside(&mut self, access: &Access, layout: &Layout, digits: &Digits) -> Vec<String> {
        let mut conditions = Vec::new();
        for (function, extent) in &access.checks {
            let mut terms = Vec::new();
            for (c, axis) in function.terms() {
                let at = self.global(layout, *axis, digits);
                terms.push(times(*c, &format!("({at})")));
            }
            terms.push(format!("({})", function.offset));
            conditions.push(format!("(u32)({}) < {extent}u", sum(terms)));
        }
        conditions
    }

    /// Elements that a thread can move at once when registers are spread as `layout` says.
    fn width(&self, access: &Access, layout: &Layout) -> u64 {
        let Some(unit) = access.unit_axis(self.kernel) else {
            return 1;
        };
        let run = layout.vector(unit);
        let mut most = (1 << run.trailing_zeros()).min(16 / access.dtype.bytes());
        let steady = |v: u64| {
            let others = layout.registers.iter().skip(1);
            others
                .chain(&layout.lanes)
                .chain(&layout.warps)
                .all(|f| f.axis != Some(unit) || f.stride.is_multiple_of(v))
        };
        while most > 1 && !steady(most) {
            most /= 2;
        }
        access.vector(self.tile, self.kernel, unit, most)
    }

    /// Reads a buffer into registers.
    pub(super) fn load(
        &mut self,
        v: ValueId,
        layout: &Layout,
        out: &mut Vec<Node>,
    ) -> Result<Source, Reject> {
        if let Some(found) = self.find(v, Some(layout)) {
            return Ok(found);
        }
        let name = self.array(v, layout, out);
        out.push(self.read_into(v, layout, &name)?);
        self.bind(v, layout, &name);
        Ok(Source::Array {
            name,
            layout: layout.clone(),
        })
    }

    /// Whether every axis of the grid moves what a block reads: blocks then share none of it, or the rims of windows.
    fn is_own(&self, access: &Access) -> bool {
        let moves = |a: &AxisId| access.coefficients.get(a).is_some_and(|c| *c != 0);
        let alone = |a: &AxisId| self.tile.extent(*a) <= self.kernel.tile(*a);
        self.kernel.grid.iter().all(|a| alone(a) || moves(a))
    }

    /// Reads a buffer into an array of registers.
    pub(super) fn read_into(
        &mut self,
        v: ValueId,
        layout: &Layout,
        name: &str,
    ) -> Result<Node, Reject> {
        let access = self.access(v)?;
        let width = self.width(&access, layout);
        let pointer = self.pointer(access.buffer);
        let mut scope = vec![self.origin_line(&access, layout)];
        let axes = self.plan.axes(v).clone();
        let how = match (self.is_late(access.buffer), self.is_own(&access)) {
            (true, _) => ", TW_LATE",
            (false, true) => ", TW_OWN",
            (false, false) => "",
        };
        scope.extend(self.registers(layout, width, |me, d| {
            let at = Self::step(&access, layout, d);
            let own = Self::own_index(layout, d);
            let read = line(format!(
                "tw_load_{}<{width}{how}>(&{name}[{own}], {pointer} + ({at}));",
                suffix(access.dtype)
            ));
            let mut conditions = me.exists(layout, axes.iter(), d);
            conditions.extend(me.inside(&access, layout, d));
            if conditions.is_empty() {
                return vec![read];
            }
            let fill = line(format!("{name}[{own} + x] = {};", literal(access.fill)));
            vec![Node::If {
                condition: conditions.join(" && "),
                then: vec![read],
                otherwise: vec![cuda::unrolled("x", width, vec![fill])],
            }]
        }));
        Ok(Node::Scope(scope))
    }

    /// Writes a value to its buffer.
    pub(super) fn store(
        &mut self,
        buffer: BufferId,
        v: ValueId,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let access = Access::store(self.tile, buffer)?;
        let held = self.layout(v).distinct();
        let source = self.operand(v, &held, out)?;
        let gathered = self.gathered(&access, &held, &source);
        let layout = gathered.as_ref().map_or(&held, |g| &g.layout).clone();
        let width = match &source {
            Source::Array { layout: found, .. }
                if found.registers.first() == held.registers.first() =>
            {
                self.width(&access, &layout)
            }
            Source::Array { .. } | Source::Literal(_) | Source::Coordinate(_) => 1,
        };
        let pointer = self.pointer(buffer);
        let axes = self.plan.axes(v).clone();
        let origin = self.origin_line(&access, &layout);
        let writes = self.registers(&layout, width, |me, d| {
            let at = Self::step(&access, &layout, d);
            let conditions = me.exists(&layout, axes.iter(), d);
            let (mut nodes, write) = match (&source, &gathered) {
                (Source::Array { name, .. }, Some(g)) => exchange(
                    g,
                    &held,
                    access.dtype,
                    name,
                    d,
                    &format!("{pointer} + ({at})"),
                ),
                (direct, _) => {
                    let element = me.element(direct, &layout, d);
                    let write = match direct {
                        Source::Array { .. } => format!(
                            "tw_store_{}<{width}>({pointer} + ({at}), &{element});",
                            suffix(access.dtype)
                        ),
                        Source::Literal(_) | Source::Coordinate(_) => {
                            format!("{pointer}[{at}] = {};", narrow(access.dtype, &element))
                        }
                    };
                    (Vec::new(), line(write))
                }
            };
            nodes.push(if conditions.is_empty() {
                write
            } else {
                Node::If {
                    condition: conditions.join(" && "),
                    then: vec![write],
                    otherwise: Vec::new(),
                }
            });
            nodes
        });
        let mut scope = vec![origin];
        scope.extend(writes);
        let alone = self.stores_alone(&axes);
        let conditions: Vec<String> = alone.into_iter().chain(self.first_copy(&layout)).collect();
        out.push(match conditions.as_slice() {
            [] => Node::Scope(scope),
            all => Node::If {
                condition: all.join(" && "),
                then: scope,
                otherwise: Vec::new(),
            },
        });
        Ok(())
    }

    /// The exchange between lanes after which a thread writes whole vectors, where it could not before. All lanes of a warp take
    /// part in it.
    fn gathered(&self, access: &Access, held: &Layout, source: &Source) -> Option<Gathered> {
        let Source::Array { layout, .. } = source else {
            return None;
        };
        let unit = access.unit_axis(self.kernel)?;
        let run = 16 / access.dtype.bytes();
        let found = held.gathered(unit, run)?;
        let whole = (found.piece * access.dtype.bytes()).is_multiple_of(4);
        let together = held.copy_masks().0 == 0 && layout.registers == held.registers;
        (whole && together && self.width(access, &found.layout) == run).then_some(found)
    }

    /// The condition that picks one of several threads that hold the same elements.
    pub(super) fn first_copy(&self, layout: &Layout) -> Option<String> {
        match layout.copy_masks() {
            (0, 0) => None,
            (l, 0) => Some(format!("(lane & {l}) == 0")),
            (0, w) => Some(format!("(warp & {w}) == 0")),
            (l, w) => Some(format!("(lane & {l}) == 0 && (warp & {w}) == 0")),
        }
    }

    /// Fills the tiles of a load that stands outside every loop.
    pub(super) fn stage_once(&mut self, v: ValueId, out: &mut Vec<Node>) -> Result<(), Reject> {
        let mut any = false;
        for t in 0..self.plan.tiles.len() {
            let tile = &self.plan.tiles[t];
            if tile.value == v && tile.loaded && tile.in_loop.is_none() {
                out.push(Node::Scope(self.fill(t, "0")?));
                any = true;
            }
        }
        if any {
            self.families.insert(Family::Async);
            out.push(line("tw_copy_commit();"));
            self.pending = true;
        }
        Ok(())
    }

    /// The first element of a slot of a tile.
    pub(super) fn tile_pointer(&self, t: usize, slot: &str) -> String {
        let tile = &self.plan.tiles[t];
        let base = format!("({}*)(shared + {})", holder(tile.dtype), tile.offset);
        if tile.slots > 1 {
            format!("{base} + {slot} * {}", tile.elements)
        } else {
            base
        }
    }

    /// Whether a ring has a slot more than the schedule says, for what is still read in the next iteration.
    pub(super) fn late(&self, t: usize) -> bool {
        self.plan.tiles[t].late
    }

    /// The slot of a tile that the current iteration reads.
    pub(super) fn current_slot(&self, t: usize) -> String {
        match self.plan.tiles[t].in_loop {
            Some(number) if self.late(t) => format!("late{number}"),
            Some(number) => format!("slot{number}"),
            None => "0".into(),
        }
    }

    /// Copies a load's tile into a slot: every element of the slot is written, zero where it does not exist.
    pub(super) fn fill(&mut self, t: usize, slot: &str) -> Result<Vec<Node>, Reject> {
        let tile = self.plan.tiles[t].clone();
        let produced = tile.in_loop.is_some() && tile.in_loop == self.plan.produced;
        let warps = if produced {
            PRODUCER_THREADS
        } else {
            self.plan.threads()
        } / 32;
        let access = self.access(tile.value)?;
        if !tile.patch.is_empty() && !produced {
            return Ok(self.fill_patch(&tile, &access, &self.tile_pointer(t, slot), warps));
        }
        let sizes: Vec<(ir::AxisId, u64)> = tile.axes.iter().map(|a| (a.0, a.1)).collect();
        let unit = access.unit_axis(self.kernel);
        let step = 16 / tile.dtype.bytes();
        let most = if unit.is_some()
            && tile.axes.first().map(|a| a.0) == unit
            && access.dtype == tile.dtype
        {
            unit.map_or(1, |u| access.vector(self.tile, self.kernel, u, step))
        } else {
            1
        };
        let across = sizes.iter().position(|a| Some(a.0) == unit);
        let layout = match (across, tile.swizzle) {
            (_, Some(s)) => Layout::panels(&sizes, s.along, s.span, most, warps),
            (Some(at), None) if at > 0 => Layout::crossed(&sizes, at, warps),
            (Some(_) | None, None) => Layout::blocked(&sizes, most, 1, warps),
        };
        let width = if most > 1 {
            unit.map_or(1, |u| layout.vector(u)).min(most)
        } else {
            1
        };
        let bytes = width * tile.dtype.bytes();
        let background = bytes >= 4
            && access.dtype == tile.dtype
            && (access.checks.is_empty() || access.fill == 0.0);
        if produced && (!background || !tile.patch.is_empty()) {
            return Err(Reject::Schedule(
                "warps that only copy cannot convert what they copy".into(),
            ));
        }
        let pointer = self.pointer(access.buffer);
        let mut nodes = vec![line(format!(
            "{}* to = {};",
            holder(tile.dtype),
            self.tile_pointer(t, slot)
        ))];
        nodes.push(self.origin_line(&access, &layout));
        // A thread's registers may keep its place within the pattern: then only its first element has to be permuted.
        let steady = tile.swizzle.is_none_or(|s| steady(&tile, s, &layout));
        if steady {
            let start = self.place(&tile, &layout, None);
            nodes.push(line(format!("to += {start};")));
        }
        let body = self.registers(&layout, width, |me, d| {
            let to = if steady {
                format!("to + ({})", me.steps(&tile, &layout, d))
            } else {
                format!("to + {}", me.place(&tile, &layout, Some(d)))
            };
            let from = format!("{pointer} + ({})", Self::step(&access, &layout, d));
            let exists = me.exists(&layout, sizes.iter().map(|a| a.0), d);
            let inside = me.inside(&access, &layout, d);
            let mut all = exists.clone();
            all.extend(inside.clone());
            let copy = if background && all.is_empty() {
                vec![line(format!("tw_copy_async<{bytes}>({to}, {from});"))]
            } else if background {
                vec![
                    line(format!("const bool there = {};", all.join(" && "))),
                    line(format!(
                        "tw_copy_async<{bytes}>({to}, there ? {from} : {pointer}, there);"
                    )),
                ]
            } else {
                let element = me.converted(&access, &tile.dtype, &format!("({from})[x]"));
                let fill = narrow(tile.dtype, &literal(access.fill));
                let zero = narrow(tile.dtype, "0.0f");
                let mut text = element;
                if !inside.is_empty() {
                    text = format!("({} ? {text} : {fill})", inside.join(" && "));
                }
                if !exists.is_empty() {
                    text = format!("({} ? {text} : {zero})", exists.join(" && "));
                }
                vec![cuda::unrolled(
                    "x",
                    width,
                    vec![line(format!("({to})[x] = {text};"))],
                )]
            };
            let mut fits = Vec::new();
            for (axis, size, _) in &tile.axes {
                if layout.cover(*axis) > *size {
                    let local = me.local(&layout, *axis, d);
                    fits.push(format!("{local} < {size}"));
                }
            }
            if fits.is_empty() {
                vec![Node::Scope(copy)]
            } else {
                vec![Node::If {
                    condition: fits.join(" && "),
                    then: copy,
                    otherwise: Vec::new(),
                }]
            }
        });
        nodes.extend(once(&layout, body));
        Ok(vec![Node::Scope(nodes)])
    }

    /// The index in a tile in shared memory of a thread's first element, or with digits of any element.
    fn place(&mut self, tile: &SharedTile, layout: &Layout, digits: Option<&Digits>) -> String {
        let sides = match tile.swizzle {
            None => vec![tile.axes.as_slice()],
            Some(s) => {
                let (x, y) = tile.axes.split_at(s.along);
                vec![x, y]
            }
        };
        let sides: Vec<String> = sides
            .into_iter()
            .map(|axes| {
                let mut terms = Vec::new();
                for (axis, _, stride) in axes {
                    if let Some(part) = self.thread_part(layout, *axis) {
                        terms.push(times(*stride as i64, &part));
                    }
                    if let Some(d) = digits {
                        terms.extend(Self::register_part(layout, *axis, d, *stride as i64));
                    }
                }
                sum(terms)
            })
            .collect();
        match (tile.swizzle, sides.as_slice()) {
            (Some(s), [x, y]) => format!("tw_panel<{}, {}>({x}, {y})", s.span, s.lines),
            (_, all) => all.join(" + "),
        }
    }

    /// What the registers of a thread add to the index of its first element, where that is a plain sum.
    fn steps(&self, tile: &SharedTile, layout: &Layout, digits: &Digits) -> String {
        let mut terms = Vec::new();
        for (i, (axis, _, stride)) in tile.axes.iter().enumerate() {
            let scale = match tile.swizzle {
                None => *stride,
                // Registers step over whole panels.
                Some(s) if i < s.along => stride * s.lines,
                Some(s) => stride * s.span,
            };
            let moved = layout
                .registers
                .iter()
                .zip(digits)
                .filter(|(f, d)| f.axis == Some(*axis) && d.as_str() != "0")
                .filter(|(f, _)| i > 0 || f.stride > 1 || tile.swizzle.is_none());
            for (f, d) in moved {
                terms.push(times((f.stride * scale) as i64, d));
            }
        }
        sum(terms)
    }

    /// Copies a part of a buffer into a slot, the fill value where it leaves the buffer.
    fn fill_patch(
        &mut self,
        tile: &SharedTile,
        access: &Access,
        pointer: &str,
        warps: u64,
    ) -> Vec<Node> {
        let sizes: Vec<(ir::AxisId, u64)> = tile
            .patch
            .iter()
            .filter(|s| s.span > 1)
            .map(|s| (s.axis, s.span))
            .collect();
        let layout = Layout::blocked(&sizes, 1, warps, 1);
        let kind = if access.wide { "long long" } else { "int" };
        let mut nodes = Vec::new();
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for (i, side) in tile.patch.iter().enumerate() {
            let mut start = vec![format!("({})", side.function.offset)];
            for (c, axis) in side.function.terms() {
                start.extend(self.origin(*axis).map(|o| times(*c, &o)));
            }
            if let Some(part) = self.thread_part(&layout, side.axis) {
                to.push(times(side.pitch as i64, &part));
                start.push(part);
            }
            nodes.push(line(format!("const int at{i} = {};", sum(start))));
            let scale = if access.wide { "ll" } else { "" };
            from.push(format!("{}{scale} * at{i}", side.stride));
        }
        nodes.push(line(format!("const {kind} g = {};", sum(from))));
        nodes.push(line(format!(
            "{}* to = {pointer} + ({});",
            holder(tile.dtype),
            sum(to)
        )));
        let source = self.pointer(access.buffer);
        let body = self.registers(&layout, 1, |me, d| {
            let (mut from, mut to) = (vec!["g".to_string()], Vec::new());
            let (mut inside, mut fits) = (Vec::new(), Vec::new());
            for (i, side) in tile.patch.iter().enumerate() {
                from.extend(Self::register_part(&layout, side.axis, d, side.stride));
                to.extend(Self::register_part(
                    &layout,
                    side.axis,
                    d,
                    side.pitch as i64,
                ));
                if side.checked {
                    let mut at = vec![format!("at{i}")];
                    at.extend(Self::register_part(&layout, side.axis, d, 1));
                    inside.push(format!("(u32)({}) < {}u", sum(at), side.extent));
                }
                if side.span > 1 && layout.cover(side.axis) > side.span {
                    let local = me.local(&layout, side.axis, d);
                    fits.push(format!("{local} < {}", side.span));
                }
            }
            let there = if inside.is_empty() {
                "true".to_string()
            } else {
                inside.join(" && ")
            };
            let (from, to) = (sum(from), format!("to + ({})", sum(to)));
            let mut copy = vec![line(format!("const bool there = {there};"))];
            if access.fill == 0.0 && tile.dtype == ir::Dtype::F32 {
                copy.push(line(format!(
                    "tw_copy_async<4>({to}, there ? {source} + ({from}) : {source}, there);"
                )));
            } else {
                let fill = narrow(tile.dtype, &literal(access.fill));
                copy.push(line(format!(
                    "*({to}) = there ? {source}[{from}] : {fill};"
                )));
            }
            if fits.is_empty() {
                vec![Node::Scope(copy)]
            } else {
                vec![Node::If {
                    condition: fits.join(" && "),
                    then: copy,
                    otherwise: Vec::new(),
                }]
            }
        });
        nodes.extend(once(&layout, body));
        vec![Node::Scope(nodes)]
    }

    /// Makes a thread's writes to shared memory visible to warpgroup instructions behind the next barrier.
    pub(super) fn proxy_fence(&self) -> Option<Node> {
        let needed = self.plan.tiles.iter().any(|t| t.swizzle.is_some());
        needed.then(|| line("tw_proxy_fence();"))
    }

    fn converted(&self, access: &Access, to: &ir::Dtype, element: &str) -> String {
        if access.dtype == *to {
            element.to_string()
        } else {
            narrow(*to, &super::widen(access.dtype, element))
        }
    }

    /// Writes a value that contractions read from shared memory to its tiles there.
    pub(super) fn publish(&mut self, v: ValueId, out: &mut Vec<Node>) -> Result<(), Reject> {
        for t in 0..self.plan.tiles.len() {
            let tile = self.plan.tiles[t].clone();
            if tile.value != v || tile.loaded {
                continue;
            }
            let layout = self.layout(v).distinct();
            let source = self.operand(v, &layout, out)?;
            let pointer = self.tile_pointer(t, "0");
            let kind = holder(tile.dtype);
            out.push(self.barrier());
            if tile
                .axes
                .iter()
                .any(|(a, size, _)| layout.cover(*a) < *size)
            {
                out.push(line(format!(
                    "for (int x = threadIdx.x; x < {}; x += {}) (({pointer}))[x] = ({kind})0;",
                    tile.elements,
                    self.plan.threads()
                )));
                out.push(self.barrier());
            }
            let axes = self.plan.axes(v).clone();
            let body = self.registers(&layout, 1, |me, d| {
                let at = me.place(&tile, &layout, Some(d));
                let mut fits = Vec::new();
                for (axis, size, _) in &tile.axes {
                    let local = me.local(&layout, *axis, d);
                    if layout.cover(*axis) > *size {
                        fits.push(format!("{local} < {size}"));
                    }
                }
                let mut text = me.element(&source, &layout, d);
                let exists = me.exists(&layout, axes.iter(), d);
                if !exists.is_empty() {
                    text = format!("({} ? {text} : 0.0f)", exists.join(" && "));
                }
                let write = line(format!("to[{at}] = {};", narrow(tile.dtype, &text)));
                if fits.is_empty() {
                    vec![write]
                } else {
                    vec![Node::If {
                        condition: fits.join(" && "),
                        then: vec![write],
                        otherwise: Vec::new(),
                    }]
                }
            });
            let mut scope = vec![line(format!("{kind}* to = {pointer};"))];
            match self.first_copy(&layout) {
                None => scope.extend(body),
                Some(condition) => scope.push(Node::If {
                    condition,
                    then: body,
                    otherwise: Vec::new(),
                }),
            }
            out.push(Node::Scope(scope));
            out.extend(self.proxy_fence());
            out.push(self.barrier());
        }
        Ok(())
    }
}

/// Packs the pieces of one run, exchanges them, and writes what the thread has then.
fn exchange(
    g: &Gathered,
    held: &Layout,
    dtype: Dtype,
    name: &str,
    digits: &Digits,
    to: &str,
) -> (Vec<Node>, Node) {
    let (lanes, piece) = (g.lanes, g.piece);
    let words = piece * dtype.bytes() / 4;
    let (mut terms, mut scale) = (Vec::new(), 1);
    for (i, (f, d)) in held.registers.iter().zip(digits).enumerate() {
        let step = if i == g.digit { scale * lanes } else { scale };
        if d != "0" {
            terms.push(times(step as i64, d));
        }
        if i == g.digit {
            terms.push(times(scale as i64, "x"));
        }
        scale *= f.size;
    }
    let pack = line(format!(
        "tw_narrow_{}<{piece}>(&run[{words} * x], &{name}[{}]);",
        suffix(dtype),
        sum(terms)
    ));
    let nodes = vec![
        line(format!("u32 run[{}];", lanes * words)),
        cuda::unrolled("x", lanes, vec![pack]),
        line(format!("tw_exchange<{lanes}, {words}>(run);")),
    ];
    let all = lanes * words;
    (nodes, line(format!("tw_store_words<{all}>({to}, run);")))
}

/// Whether the registers of a thread step over whole panels and whole patterns of lines, so that the permutation of a
/// thread's first element is that of all of them.
fn steady(tile: &SharedTile, s: Swizzle, layout: &Layout) -> bool {
    layout.registers.iter().enumerate().all(|(r, f)| {
        let Some(i) = tile.axes.iter().position(|a| Some(a.0) == f.axis) else {
            return true;
        };
        let step = f.stride * tile.axes[i].2;
        match i < s.along {
            // The elements that one copy moves together.
            true => (r == 0 && i == 0 && step == 1) || step.is_multiple_of(s.span),
            false => step.is_multiple_of(8),
        }
    })
}

/// What one of the threads does that hold the same elements: two that write the same race, though they write alike.
fn once(layout: &Layout, body: Vec<Node>) -> Vec<Node> {
    let (lanes, warps) = layout.copy_masks();
    let first = [("lane", lanes), ("warp", warps)];
    let first = first.into_iter().filter(|(_, mask)| *mask != 0);
    let first: Vec<String> = first
        .map(|(of, mask)| format!("({of} & {mask}) == 0"))
        .collect();
    match first.is_empty() {
        true => body,
        false => vec![Node::If {
            condition: first.join(" && "),
            then: body,
            otherwise: Vec::new(),
        }],
    }
}

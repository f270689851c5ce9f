//! Loads, stores, and regions of shared memory.

use super::text::{holder, literal, narrow, suffix, sum, times, widen};
use super::{Digits, Printer};
use crate::access::Access;
use crate::cuda::{self, Node, line};
use crate::layout::{Gathered, Layout};
use crate::machine::{Copy, FragmentId, Policy, Region, RegionId, Source, Stage, Store, Swizzle};
use ir::{AxisId, AxisSet, Dtype, Quotient};

/// Where a thread's first element is, or of quotients where the buffer begins. Elements that do not exist may be said to be outside of the buffer: nobody reads them, and an address that
/// had to be chosen would take more than the copy itself.
fn source_line(access: &Access, buffer: &str) -> Node {
    let from = match access.divisor {
        1 => format!("{buffer} + g"),
        _ => buffer.to_string(),
    };
    line(format!("const {}* source = {from};", holder(access.dtype)))
}

impl Printer<'_> {
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

    /// The index of an element.
    fn step(access: &Access, layout: &Layout, digits: &Digits) -> String {
        let steps = Self::steps_of(access, layout, digits);
        let sum = match steps.as_str() {
            "0" => "g".to_string(),
            _ => format!("g + {steps}"),
        };
        match access.divisor {
            1 => sum,
            divisor => format!("({sum}) / {divisor}"),
        }
    }

    /// The same relative to `g`.
    fn steps_of(access: &Access, layout: &Layout, digits: &Digits) -> String {
        let mut terms = Vec::new();
        for (axis, c) in &access.coefficients {
            terms.extend(Self::register_part(layout, *axis, digits, *c));
        }
        sum(terms)
    }

    /// Conditions under which an element exists and lies in the buffer. What is alike for all threads comes first: where that fails the rest
    /// is not looked at.
    fn there(
        &mut self,
        access: &Access,
        layout: &Layout,
        axes: &AxisSet,
        digits: &Digits,
    ) -> Vec<String> {
        let mut conditions: Vec<(bool, String)> = Vec::new();
        for axis in axes.iter() {
            for text in self.exists(layout, [axis], digits) {
                conditions.push((self.thread_part(layout, axis).is_some(), text));
            }
        }
        for check in &access.checks {
            let own = check.0.axes();
            let varies = own.iter().any(|a| self.thread_part(layout, a).is_some());
            let inside = self.within(check, layout, digits);
            conditions.extend(inside.into_iter().map(|text| (varies, text)));
        }
        conditions.sort_by_key(|(varies, _)| *varies);
        conditions.into_iter().map(|(_, text)| text).collect()
    }

    /// Conditions under which an element lies in the buffer.
    fn inside(&mut self, access: &Access, layout: &Layout, digits: &Digits) -> Vec<String> {
        let checks = access.checks.iter();
        checks
            .flat_map(|check| self.within(check, layout, digits))
            .collect()
    }

    /// The same of one index.
    fn within(
        &mut self,
        (place, extent): &(Quotient, i64),
        layout: &Layout,
        digits: &Digits,
    ) -> Vec<String> {
        let (function, divisor) = (place.function(), place.divisor());
        let mut terms = Vec::new();
        for (c, axis) in function.terms() {
            let at = self.global(layout, *axis, digits);
            terms.push(times(*c, &format!("({at})")));
        }
        terms.push(format!("({})", function.offset));
        let value = format!("(u32)({})", sum(terms));
        let mut conditions = vec![format!("{value} < {}u", extent * divisor)];
        if divisor != 1 {
            conditions.push(format!("{value} % {divisor}u == 0"));
        }
        conditions
    }

    /// Reads a buffer into an array of registers.
    pub(super) fn load(
        &mut self,
        to: FragmentId,
        access: &Access,
        axes: &AxisSet,
        width: u64,
        policy: Policy,
    ) -> Node {
        let (name, layout) = (self.name(to), self.fragment(to).layout());
        let pointer = self.pointer(access.buffer);
        let mut scope = vec![self.origin_line(access, &layout)];
        let how = match policy {
            Policy::Dependent => ", TW_DEPENDENT",
            Policy::Own => ", TW_OWN",
            Policy::Shared => "",
        };
        scope.extend(self.registers(&layout, width, |me, d| {
            let at = Self::step(access, &layout, d);
            let own = Self::own_index(&layout, d);
            let read = line(format!(
                "tw_load_{}<{width}{how}>(&{name}[{own}], {pointer} + ({at}));",
                suffix(access.dtype)
            ));
            let conditions = me.there(access, &layout, axes, d);
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
        Node::Scope(scope)
    }

    /// Asks L2 for what a load of these registers reads.
    pub(super) fn prefetch(
        &mut self,
        access: &Access,
        layout: &Layout,
        axes: &AxisSet,
        width: u64,
    ) -> Node {
        let pointer = self.pointer(access.buffer);
        let mut scope = vec![self.origin_line(access, layout)];
        scope.extend(self.registers(layout, width, |me, d| {
            let at = Self::step(access, layout, d);
            let ask = line(format!("tw_prefetch({pointer} + ({at}));"));
            let conditions = me.there(access, layout, axes, d);
            if conditions.is_empty() {
                return vec![ask];
            }
            vec![Node::If {
                condition: conditions.join(" && "),
                then: vec![ask],
                otherwise: Vec::new(),
            }]
        }));
        Node::Scope(scope)
    }

    /// Writes a value to its buffer.
    pub(super) fn store(&mut self, store: &Store) -> Node {
        let Store {
            access,
            held,
            gathered,
            width,
            axes,
            ..
        } = store;
        let layout = gathered.as_ref().map_or(held, |g| &g.layout);
        let pointer = self.pointer(access.buffer);
        let origin = self.origin_line(access, layout);
        let writes = self.registers(layout, *width, |me, d| {
            let at = Self::step(access, layout, d);
            let conditions = me.exists(layout, axes.iter(), d);
            let (mut nodes, write) = match (store.from, gathered) {
                (Source::Fragment(id), Some(g)) => {
                    let to = format!("{pointer} + ({at})");
                    exchange(g, held, access.dtype, me.name(id), d, &to)
                }
                (direct, _) => {
                    let element = me.element(direct, layout, d);
                    let write = match direct {
                        Source::Fragment(_) => format!(
                            "tw_store_{}<{width}>({pointer} + ({at}), &{element});",
                            suffix(access.dtype)
                        ),
                        Source::Constant(_) | Source::Coordinate(_) => {
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
        let alone = store.alone.then(|| "rank == 0".to_string());
        let conditions: Vec<String> = alone.into_iter().chain(self.first_copy(layout)).collect();
        match conditions.as_slice() {
            [] => Node::Scope(scope),
            all => Node::If {
                condition: all.join(" && "),
                then: scope,
                otherwise: Vec::new(),
            },
        }
    }

    /// The condition that picks one of several threads that hold the same elements.
    pub(super) fn first_copy(&self, layout: &Layout) -> Option<String> {
        let (lanes, warps) = layout.copy_masks();
        let all = [
            ("lane", lanes),
            ("warp", warps),
            ("rank", layout.block_copies()),
        ];
        let conditions = all.into_iter().filter(|(_, mask)| *mask != 0);
        conditions
            .map(|(name, mask)| format!("({name} & {mask}) == 0"))
            .reduce(|all, one| format!("{all} && {one}"))
    }

    /// The first element of a stage of a region.
    pub(super) fn region_pointer(&self, id: RegionId, stage: Stage) -> String {
        let region = self.machine.region(id);
        let base = format!("({}*)(shared + {})", holder(region.dtype), region.offset);
        if region.stages > 1 {
            format!("{base} + {} * {}", Self::stage(stage), region.elements)
        } else {
            base
        }
    }

    /// Copies a tile into a stage: every element of the stage is written, zero where it does not exist.
    pub(super) fn copy(&mut self, copy: &Copy) -> Vec<Node> {
        let region = self.machine.region(copy.region);
        let to = self.region_pointer(copy.region, copy.stage);
        let nodes = match region.patch.is_empty() {
            true => self.copy_tile(copy, region, &to),
            false => self.copy_patch(copy, region, &to),
        };
        vec![Node::Scope(nodes)]
    }

    fn copy_tile(&mut self, copy: &Copy, region: &Region, to: &str) -> Vec<Node> {
        let Copy {
            access,
            layout,
            width,
            background,
            ..
        } = copy;
        let bytes = width * region.dtype.bytes();
        let axes: Vec<AxisId> = region.axes.iter().map(|a| a.0).collect();
        let pointer = self.pointer(access.buffer);
        let mut nodes = vec![line(format!("{}* to = {to};", holder(region.dtype)))];
        nodes.push(self.origin_line(access, layout));
        nodes.push(source_line(access, &pointer));
        // A thread's registers may keep its place within the pattern: then only its first element has to be permuted.
        let steady = region.swizzle.is_none_or(|s| steady(region, s, layout));
        if steady {
            let start = self.place(region, layout, None);
            nodes.push(line(format!("to += {start};")));
        }
        let body = self.registers(layout, *width, |me, d| {
            let to = if steady {
                format!("to + ({})", me.steps(region, layout, d))
            } else {
                format!("to + {}", me.place(region, layout, Some(d)))
            };
            let from = match access.divisor {
                1 => format!("source + ({})", Self::steps_of(access, layout, d)),
                _ => format!("source + {}", Self::step(access, layout, d)),
            };
            let exists = me.exists(layout, axes.iter().copied(), d);
            let inside = me.inside(access, layout, d);
            let mut all = exists.clone();
            all.extend(inside.clone());
            let copy = if *background && all.is_empty() {
                vec![line(format!("tw_copy_async<{bytes}>({to}, {from});"))]
            } else if *background {
                vec![
                    line(format!("const bool there = {};", all.join(" && "))),
                    line(format!("tw_copy_async<{bytes}>({to}, {from}, there);")),
                ]
            } else {
                let fill = narrow(region.dtype, &literal(access.fill));
                let zero = narrow(region.dtype, "0.0f");
                let mut text = converted(access, region.dtype, &format!("({from})[x]"));
                if !inside.is_empty() {
                    text = format!("({} ? {text} : {fill})", inside.join(" && "));
                }
                if !exists.is_empty() {
                    text = format!("({} ? {text} : {zero})", exists.join(" && "));
                }
                let write = line(format!("({to})[x] = {text};"));
                vec![cuda::unrolled("x", *width, vec![write])]
            };
            let mut fits = Vec::new();
            for (axis, size, _) in &region.axes {
                if layout.cover(*axis) > *size {
                    let local = me.local(layout, *axis, d);
                    fits.push(format!("{local} < {size}"));
                }
            }
            vec![guarded(&fits, copy)]
        });
        nodes.extend(once(layout, body));
        nodes
    }

    /// The index in a region of a thread's first element, or with digits of any element.
    fn place(&mut self, region: &Region, layout: &Layout, digits: Option<&Digits>) -> String {
        let sides = match region.swizzle {
            None => vec![region.axes.as_slice()],
            Some(s) => {
                let (x, y) = region.axes.split_at(s.along);
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
        match (region.swizzle, sides.as_slice()) {
            (Some(s), [x, y]) => format!("tw_swizzle_atom<{}, {}>({x}, {y})", s.span, s.lines),
            (_, all) => all.join(" + "),
        }
    }

    /// What the registers of a thread add to the index of its first element, where that is a plain sum.
    fn steps(&self, region: &Region, layout: &Layout, digits: &Digits) -> String {
        let mut terms = Vec::new();
        for (i, (axis, _, stride)) in region.axes.iter().enumerate() {
            let scale = match region.swizzle {
                None => *stride,
                // Registers step over whole swizzle atoms.
                Some(s) if i < s.along => stride * s.lines,
                Some(s) => stride * s.span,
            };
            let moved = layout
                .registers
                .iter()
                .zip(digits)
                .filter(|(f, d)| f.axis == Some(*axis) && d.as_str() != "0")
                .filter(|(f, _)| i > 0 || f.stride > 1 || region.swizzle.is_none());
            for (f, d) in moved {
                terms.push(times((f.stride * scale) as i64, d));
            }
        }
        sum(terms)
    }

    /// Copies a part of a buffer into a stage, the fill value where it leaves the buffer.
    fn copy_patch(&mut self, copy: &Copy, region: &Region, pointer: &str) -> Vec<Node> {
        let (access, layout) = (&copy.access, &copy.layout);
        let kind = if access.wide { "long long" } else { "int" };
        let mut nodes = Vec::new();
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for (i, side) in region.patch.iter().enumerate() {
            let mut start = vec![format!("({})", side.function.offset)];
            for (c, axis) in side.function.terms() {
                start.extend(self.origin(*axis).map(|o| times(*c, &o)));
            }
            if let Some(part) = self.thread_part(layout, side.axis) {
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
            holder(region.dtype),
            sum(to)
        )));
        nodes.push(source_line(access, &self.pointer(access.buffer)));
        let body = self.registers(layout, 1, |me, d| {
            let (mut from, mut to) = (Vec::new(), Vec::new());
            let (mut inside, mut fits) = (Vec::new(), Vec::new());
            for (i, side) in region.patch.iter().enumerate() {
                from.extend(Self::register_part(layout, side.axis, d, side.stride));
                to.extend(Self::register_part(layout, side.axis, d, side.pitch as i64));
                if side.checked {
                    let mut at = vec![format!("at{i}")];
                    at.extend(Self::register_part(layout, side.axis, d, 1));
                    inside.push(format!("(u32)({}) < {}u", sum(at), side.extent));
                }
                if side.span > 1 && layout.cover(side.axis) > side.span {
                    let local = me.local(layout, side.axis, d);
                    fits.push(format!("{local} < {}", side.span));
                }
            }
            let there = if inside.is_empty() {
                "true".to_string()
            } else {
                inside.join(" && ")
            };
            let (from, to) = (sum(from), format!("to + ({})", sum(to)));
            let mut nodes = vec![line(format!("const bool there = {there};"))];
            if copy.background {
                nodes.push(line(format!(
                    "tw_copy_async<4>({to}, source + ({from}), there);"
                )));
            } else {
                let fill = narrow(region.dtype, &literal(access.fill));
                nodes.push(line(format!("*({to}) = there ? source[{from}] : {fill};")));
            }
            vec![guarded(&fits, nodes)]
        });
        nodes.extend(once(layout, body));
        nodes
    }

    pub(super) fn clear(&self, id: RegionId) -> Node {
        let region = self.machine.region(id);
        line(format!(
            "for (int x = threadIdx.x; x < {}; x += {}) (({}))[x] = ({})0;",
            region.elements,
            self.machine.computing(),
            self.region_pointer(id, Stage::At(0)),
            holder(region.dtype)
        ))
    }

    /// Reads elements from a region.
    pub(super) fn fetch(&mut self, to: FragmentId, id: RegionId, stage: Stage) -> Node {
        let (name, layout) = (self.name(to), self.fragment(to).layout());
        let region = self.machine.region(id);
        let pointer = self.region_pointer(id, stage);
        let kind = holder(region.dtype);
        // What depends on the thread is in the pointer, so that reads differ by constants.
        let plain = region.swizzle.is_none();
        let start = match plain {
            true => format!("{pointer} + {}", self.place(region, &layout, None)),
            false => pointer,
        };
        let mut scope = vec![line(format!("const {kind}* from = {start};"))];
        scope.extend(self.registers(&layout, 1, |me, d| {
            let at = match plain {
                true => me.steps(region, &layout, d),
                false => me.place(region, &layout, Some(d)),
            };
            let own = Self::own_index(&layout, d);
            let element = widen(region.dtype, &format!("from[{at}]"));
            vec![line(format!("{name}[{own}] = {element};"))]
        }));
        Node::Scope(scope)
    }

    /// Writes a value that contractions read from shared memory.
    pub(super) fn publish(
        &mut self,
        id: RegionId,
        from: Source,
        layout: &Layout,
        axes: &AxisSet,
    ) -> Node {
        let region = self.machine.region(id);
        let pointer = self.region_pointer(id, Stage::At(0));
        let body = self.registers(layout, 1, |me, d| {
            let at = me.place(region, layout, Some(d));
            let mut fits = Vec::new();
            for (axis, size, _) in &region.axes {
                let local = me.local(layout, *axis, d);
                if layout.cover(*axis) > *size {
                    fits.push(format!("{local} < {size}"));
                }
            }
            let mut text = me.element(from, layout, d);
            let exists = me.exists(layout, axes.iter(), d);
            if !exists.is_empty() {
                text = format!("({} ? {text} : 0.0f)", exists.join(" && "));
            }
            let write = line(format!("to[{at}] = {};", narrow(region.dtype, &text)));
            if fits.is_empty() {
                vec![write]
            } else {
                vec![guarded(&fits, vec![write])]
            }
        });
        let mut scope = vec![line(format!("{}* to = {pointer};", holder(region.dtype)))];
        match self.first_copy(layout) {
            None => scope.extend(body),
            Some(condition) => scope.push(Node::If {
                condition,
                then: body,
                otherwise: Vec::new(),
            }),
        }
        Node::Scope(scope)
    }
}

/// Some nodes, where all conditions hold.
fn guarded(conditions: &[String], nodes: Vec<Node>) -> Node {
    match conditions {
        [] => Node::Scope(nodes),
        all => Node::If {
            condition: all.join(" && "),
            then: nodes,
            otherwise: Vec::new(),
        },
    }
}

fn converted(access: &Access, to: Dtype, element: &str) -> String {
    if access.dtype == to {
        element.to_string()
    } else {
        narrow(to, &widen(access.dtype, element))
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

/// Whether the registers of a thread step over whole swizzle atoms and whole patterns of lines, so that the permutation of a
/// thread's first element is that of all of them.
fn steady(region: &Region, s: Swizzle, layout: &Layout) -> bool {
    layout.registers.iter().enumerate().all(|(r, f)| {
        let Some(i) = region.axes.iter().position(|a| Some(a.0) == f.axis) else {
            return true;
        };
        let step = f.stride * region.axes[i].2;
        match i < s.along {
            // The elements that one copy moves together.
            true => (r == 0 && i == 0 && step == 1) || step.is_multiple_of(s.span),
            false => step.is_multiple_of(8),
        }
    })
}

/// What one of the threads does that hold the same elements: two that write the same race, though they write alike.
pub(super) fn once(layout: &Layout, body: Vec<Node>) -> Vec<Node> {
    let (lanes, warps) = layout.copy_masks();
    let first = [("lane", lanes), ("warp", warps)];
    let first = first.into_iter().filter(|(_, mask)| *mask != 0);
    let first: Vec<String> = first
        .map(|(of, mask)| format!("({of} & {mask}) == 0"))
        .collect();
    match first.is_empty() {
        true => body,
        false => vec![guarded(&first, body)],
    }
}

//! Element-wise operations, reductions and changes of layout.

use super::memory::once;
use super::text::{literal, map_text, sum, times};
use super::{Digits, Printer};
use crate::cuda::{self, Node, line};
use crate::families::Family;
use crate::functions;
use crate::layout::{Layout, ScanOver};
use crate::machine::{Across, FragmentId, Function, Reduce, Scan, Source};
use ir::{Affine, AxisId, MapOp, ReduceOp};

pub(super) fn combine(op: ReduceOp, x: &str, y: &str) -> String {
    match op {
        ReduceOp::Sum => format!("{x} + {y}"),
        ReduceOp::Max => format!("fmaxf({x}, {y})"),
        ReduceOp::Product => format!("{x} * {y}"),
    }
}

/// One of several partial results, element `x` of it.
fn part_at(array: &str, own: u64, part: u64) -> String {
    format!("{array}[x + {}]", own * part)
}

impl Printer<'_> {
    pub(super) fn map(
        &mut self,
        to: FragmentId,
        function: Function,
        args: &[Source],
        out: &mut Vec<Node>,
    ) {
        let precise = self.machine.precise;
        match function {
            Function::Op(op) if precise => self.families.extend(functions::row(op).families),
            Function::Bounded(bounded) if precise => {
                self.families.extend(functions::row(bounded.op()).families);
            }
            Function::Op(_) | Function::Bounded(_) | Function::ExpOfSum => {
                self.families.insert(Family::Math);
            }
            Function::Tf32 | Function::Rest => {
                self.families.insert(Family::Halves);
            }
            Function::Copy => {}
        }
        let fragment = self.fragment(to);
        let (name, layout) = (&fragment.name, fragment.layout());
        // The first operand may be what is overwritten.
        let scales =
            function == Function::Op(MapOp::Mul) && args.first() == Some(&Source::Fragment(to));
        out.extend(self.registers(&layout, 1, |me, d| {
            let texts: Vec<String> = args.iter().map(|s| me.element(*s, &layout, d)).collect();
            let at = Self::own_index(&layout, d);
            if scales {
                return vec![line(format!("{name}[{at}] *= {};", texts[1]))];
            }
            let text = match (function, texts.as_slice()) {
                (Function::Copy, [x]) => x.clone(),
                (_, [_, x]) if function.is_sign(args) => format!("-{x}"),
                (Function::Op(op), all) => map_text(op, all, precise).unwrap_or_default(),
                (Function::Bounded(bounded), all) if precise => {
                    (functions::shorter(bounded).precise)(all)
                }
                (Function::Bounded(bounded), all) => {
                    map_text(bounded.op(), all, precise).unwrap_or_default()
                }
                (Function::ExpOfSum, [x, s, y]) => format!("tw_exp2_fast(fmaf({x}, {s}, {y}))"),
                (Function::Tf32, [x]) => format!("tw_high({x})"),
                (Function::Rest, [x]) => format!("tw_low({x})"),
                (Function::Copy | Function::ExpOfSum | Function::Tf32 | Function::Rest, _) => {
                    String::new()
                }
            };
            vec![line(format!("{name}[{at}] = {text};"))]
        }));
    }

    /// Where the whole tile satisfies the condition, which all threads find out alike, it is not looked at element by element.
    pub(super) fn select(
        &mut self,
        to: FragmentId,
        function: &Affine,
        [x, y]: [Source; 2],
        out: &mut Vec<Node>,
    ) {
        let (name, layout) = (self.name(to), self.fragment(to).layout());
        let mut least = vec![format!("({})", function.offset)];
        for (c, axis) in function.terms() {
            let first = self.origin(*axis).unwrap_or_else(|| "0".into());
            let corner = if *c > 0 {
                first
            } else {
                format!("({first} + {} - 1)", self.limit(*axis))
            };
            least.push(times(*c, &corner));
        }
        let then = self.registers(&layout, 1, |me, d| {
            let text = me.element(x, &layout, d);
            vec![line(format!(
                "{name}[{}] = {text};",
                Self::own_index(&layout, d)
            ))]
        });
        let otherwise = self.registers(&layout, 1, |me, d| {
            let mut terms = vec![format!("({})", function.offset)];
            for (c, axis) in function.terms() {
                let at = me.global(&layout, *axis, d);
                terms.push(times(*c, &format!("({at})")));
            }
            let (x, y) = (me.element(x, &layout, d), me.element(y, &layout, d));
            vec![line(format!(
                "{name}[{}] = {} >= 0 ? {x} : {y};",
                Self::own_index(&layout, d),
                sum(terms)
            ))]
        });
        out.push(Node::If {
            condition: format!("{} >= 0", sum(least)),
            then,
            otherwise,
        });
    }

    pub(super) fn exp_scale(
        &mut self,
        [scale, scaled]: [FragmentId; 2],
        [of, by]: [Source; 2],
        out: &mut Vec<Node>,
    ) {
        self.families.insert(Family::Math);
        let layout = self.fragment(scale).layout();
        let (scale, scaled) = (self.name(scale), self.name(scaled));
        out.extend(self.registers(&layout, 1, |me, d| {
            let (text, at) = (me.element(of, &layout, d), Self::own_index(&layout, d));
            let by = me.element(by, &layout, d);
            vec![
                line(format!("{scale}[{at}] = tw_exp_scale({text}, {by});")),
                line(format!("{scaled}[{at}] = {text} * {scale}[{at}];")),
            ]
        }));
    }

    pub(super) fn mask(
        &mut self,
        to: FragmentId,
        from: FragmentId,
        axes: &[AxisId],
        out: &mut Vec<Node>,
    ) {
        let layout = self.fragment(to).layout();
        let (to, from) = (self.name(to), self.name(from));
        self.by_wholeness(&layout, axes, out, |me, whole| {
            me.registers(&layout, 1, |me, d| {
                let at = Self::own_index(&layout, d);
                let mut text = format!("{from}[{at}]");
                if !whole {
                    let exists = me.exists(&layout, axes.iter().copied(), d);
                    text = format!("{} ? {text} : 0.0f", exists.join(" && "));
                }
                vec![line(format!("{to}[{at}] = {text};"))]
            })
        });
    }

    /// Says the same with a condition for each element and, for tiles that are there as a whole, without: which they are all threads find out alike.
    fn by_wholeness(
        &mut self,
        layout: &Layout,
        axes: &[AxisId],
        out: &mut Vec<Node>,
        mut elements: impl FnMut(&mut Self, bool) -> Vec<Node>,
    ) {
        match self.wholeness(layout, axes) {
            Some(condition) => {
                let then = elements(self, true);
                let otherwise = elements(self, false);
                out.push(Node::If {
                    condition,
                    then,
                    otherwise,
                });
            }
            None => out.extend(elements(self, false)),
        }
    }

    pub(super) fn is_not_one(
        &mut self,
        flag: FragmentId,
        of: Source,
        layout: &Layout,
        out: &mut Vec<Node>,
    ) {
        let flag = self.name(flag);
        out.extend(self.registers(layout, 1, |me, d| {
            let text = me.element(of, layout, d);
            vec![line(format!("{flag} = {flag} || {text} != 1.0f;"))]
        }));
    }

    pub(super) fn reduce(&mut self, reduce: &Reduce, out: &mut Vec<Node>) {
        let Reduce {
            op,
            from,
            axes,
            parts,
            factors,
            ..
        } = reduce;
        let (name, layout) = (self.name(reduce.to), self.fragment(reduce.to).layout());
        let neutral = literal(op.neutral());
        let own = layout.register_count();
        let (array, count) = match parts {
            Some((_, count)) => (format!("{name}_parts"), *count),
            None => (name.to_string(), 1),
        };
        if count > 1 {
            out.push(line(format!("float {array}[{}];", own * count)));
        }
        // The first element of each part is what the others are combined with.
        let reduced = |at: usize| from.registers[at].axis.is_none_or(|a| axes.contains(a));
        let first = |d: &Digits| -> Vec<String> {
            let digits = d
                .iter()
                .enumerate()
                .filter(|(at, d)| reduced(*at) && d.as_str() != "0");
            let first = digits.map(|(at, d)| match parts {
                Some((digit, count)) if *digit == at => format!("{d} < {count}"),
                _ => format!("{d} == 0"),
            });
            first.collect()
        };
        self.by_wholeness(from, &axes.iter().collect::<Vec<_>>(), out, |me, whole| {
            me.registers(from, 1, |me, d| {
                let texts: Vec<String> = factors.iter().map(|s| me.element(*s, from, d)).collect();
                let mut text = texts.join(" * ");
                if !whole {
                    let exists = me.exists(from, axes.iter(), d);
                    if !exists.is_empty() {
                        text = format!("({} ? {text} : {neutral})", exists.join(" && "));
                    }
                }
                let part = match parts {
                    Some((digit, count)) => format!(" + {own} * ({} % {count})", d[*digit]),
                    None => String::new(),
                };
                let to = format!("{array}[{}{part}]", Self::index(&layout, from, d));
                let combined = combine(*op, &to, &text);
                let text = match first(d).join(" && ") {
                    none if none.is_empty() => text,
                    is_first => format!("{is_first} ? {text} : {combined}"),
                };
                vec![line(format!("{to} = {text};"))]
            })
        });
        if count > 1 {
            let pair = |at: u64| {
                combine(
                    *op,
                    &part_at(&array, own, at),
                    &part_at(&array, own, at + 1),
                )
            };
            let text = combine(*op, &format!("({})", pair(0)), &format!("({})", pair(2)));
            out.push(cuda::unrolled(
                "x",
                own,
                vec![line(format!("{name}[x] = {text};"))],
            ));
        }
    }

    /// Each step has what is in front of a run as `before`; elements without their own are kept apart from those with them.
    pub(super) fn scan(&mut self, scan: &Scan, out: &mut Vec<Node>) {
        let (name, layout) = (self.name(scan.to), self.fragment(scan.to).layout());
        let (op, neutral) = (scan.op, literal(scan.op.neutral()));
        let with = match scan.inclusive {
            true => name.to_string(),
            false => format!("{name}_with"),
        };
        if !scan.inclusive {
            let count = layout.register_count();
            out.push(line(format!("float {with}[{count}];")));
            let none = line(format!("{name}[x] = {neutral};"));
            out.push(cuda::unrolled("x", count, vec![none]));
        }
        out.extend(self.registers(&layout, 1, |me, d| {
            let (text, at) = (me.element(scan.of, &layout, d), Self::own_index(&layout, d));
            vec![line(format!("{with}[{at}] = {text};"))]
        }));
        let combined = |x: &str, y: &str| combine(op, x, y);
        for step in layout.scan(scan.axis).unwrap_or_default() {
            let mut body = Vec::new();
            let last = format!("{with}[{}]", step.last);
            let last = match step.lanes {
                0 => last,
                lanes => format!("__shfl_sync(0xffffffffu, {last}, lane | {lanes})"),
            };
            match step.over {
                ScanOver::Register => body.push(line(format!("const float before = {last};"))),
                ScanOver::Lanes { first, bits } => {
                    let mask = (1u32 << bits) - 1;
                    body.push(line(format!("float run = {last}, other;")));
                    for bit in 0..bits {
                        let (least, by) = (1u32 << bit, 1u32 << (first + bit));
                        let sum = combined("run", "other");
                        body.push(line(format!(
                            "other = __shfl_up_sync(0xffffffffu, run, {by});"
                        )));
                        body.push(line(format!(
                            "run = (lane >> {first} & {mask}) >= {least} ? {sum} : run;"
                        )));
                    }
                    body.push(line(format!(
                        "other = __shfl_up_sync(0xffffffffu, run, {});",
                        1u32 << first
                    )));
                    body.push(line(format!(
                        "const float before = (lane >> {first} & {mask}) == 0 ? {neutral} : other;"
                    )));
                }
            }
            for at in &step.to {
                let arrays = [&with, name];
                for array in &arrays[..if scan.inclusive { 1 } else { 2 }] {
                    let element = format!("{array}[{at}]");
                    let text = combined("before", &element);
                    body.push(line(format!("{element} = {text};")));
                }
            }
            out.push(Node::Scope(body));
        }
    }

    pub(super) fn across_lanes(&mut self, across: &Across, out: &mut Vec<Node>) {
        let name = self.name(across.fragment);
        for mask in &across.masks {
            out.extend(self.registers(&across.layout, 1, |_, d| {
                let to = format!("{name}[{}]", Self::own_index(&across.layout, d));
                let other = format!("__shfl_xor_sync(0xffffffffu, {to}, {mask})");
                vec![line(format!("{to} = {};", combine(across.op, &to, &other)))]
            }));
        }
    }

    /// Scratch memory as floats.
    pub(super) fn scratch(&self) -> String {
        format!("((float*)(shared + {}))", self.machine.scratch.offset)
    }

    pub(super) fn put_parts(&mut self, across: &Across, out: &mut Vec<Node>) {
        let (name, scratch) = (self.name(across.fragment), self.scratch());
        let Columns {
            width,
            count,
            column,
            copies,
            ..
        } = self.columns(across);
        let writes = self.registers(&across.layout, 1, |_, d| {
            let at = Self::own_index(&across.layout, d);
            vec![line(format!(
                "{scratch}[({at}) * {width} + warp * {count} + {column}] = {name}[{at}];"
            ))]
        });
        match copies {
            0 => out.extend(writes),
            _ => out.push(Node::If {
                condition: format!("(lane & {copies}) == 0"),
                then: writes,
                otherwise: Vec::new(),
            }),
        }
    }

    pub(super) fn take_parts(&mut self, across: &Across, out: &mut Vec<Node>) {
        let (name, scratch) = (self.name(across.fragment), self.scratch());
        let (op, masks) = (across.op, &across.masks);
        let Columns {
            width,
            count,
            column,
            spread,
            ..
        } = self.columns(across);
        let rest = 31 & !masks.iter().sum::<u32>();
        let theirs: String = (spread.iter())
            .map(|(bit, mask)| format!(" | (lane >> {bit} & 1) * {mask}"))
            .collect();
        let left = &masks[spread.len()..];
        out.extend(self.registers(&across.layout, 1, |_, d| {
            let at = Self::own_index(&across.layout, d);
            let part = |c: u32| {
                let chosen = left.iter().enumerate().filter(|(i, _)| c >> i & 1 == 1);
                let other: u32 = chosen.map(|(_, m)| *m).sum();
                format!(
                    "{scratch}[({at}) * {width} + ((warp & {rest}) | {other}{theirs}) * {count} + {column}]"
                )
            };
            let mut text = part(0);
            for c in 1..1 << left.len() {
                text = combine(op, &text, &part(c));
            }
            let to = format!("{name}[{at}]");
            let mut lines = vec![line(format!("{to} = {text};"))];
            for (bit, _) in &spread {
                let other = format!("__shfl_xor_sync(0xffffffffu, {to}, {})", 1 << bit);
                lines.push(line(format!("{to} = {};", combine(op, &to, &other))));
            }
            lines
        }));
    }

    /// How warps' parts lie in scratch memory.
    fn columns(&self, across: &Across) -> Columns {
        // One of the lanes that hold the same writes, and each of them reads other warps' parts.
        let copies = across.layout.copy_masks().0;
        let bits = |of: u32| (0..5).filter(move |b| of >> b & 1 == 1);
        let own = bits(31 & !copies);
        let column = own.clone().enumerate().map(|(i, b)| match b as usize {
            b if b == i => format!("(lane & {})", 1 << b),
            b => format!("((lane >> {b} & 1) << {i})"),
        });
        let column = match copies {
            0 => "lane".to_string(),
            _ => sum(column.collect()),
        };
        let count = across.columns();
        Columns {
            width: self.machine.computing() / 32 * count,
            count,
            column,
            copies,
            spread: bits(copies).zip(across.masks.iter().copied()).collect(),
        }
    }

    /// Where an element is in scratch memory.
    fn place_in_scratch(
        &mut self,
        strides: &[(AxisId, u64)],
        layout: &Layout,
        d: &Digits,
    ) -> String {
        let terms = strides.iter().map(|(axis, stride)| {
            let at = self.local(layout, *axis, d);
            times(*stride as i64, &format!("({at})"))
        });
        sum(terms.collect())
    }

    pub(super) fn spill(&mut self, from: FragmentId, held: &Layout, out: &mut Vec<Node>) {
        let (scratch, (strides, _)) = (self.scratch(), held.scattered());
        let writes = self.registers(held, 1, |me, d| {
            let at = me.place_in_scratch(&strides, held, d);
            let text = me.element(Source::Fragment(from), held, d);
            vec![line(format!("{scratch}[{at}] = {text};"))]
        });
        out.extend(once(held, writes));
    }

    pub(super) fn unspill(&mut self, id: FragmentId, held: &Layout, out: &mut Vec<Node>) {
        let (scratch, (strides, _)) = (self.scratch(), held.scattered());
        let (name, to) = (self.name(id), self.fragment(id).layout());
        out.extend(self.registers(&to, 1, |me, d| {
            let at = me.place_in_scratch(&strides, &to, d);
            let mut inside = Vec::new();
            for (axis, _) in &strides {
                if to.cover(*axis) > held.cover(*axis) {
                    let local = me.local(&to, *axis, d);
                    inside.push(format!("{local} < {}", held.cover(*axis)));
                }
            }
            let own = Self::own_index(&to, d);
            vec![line(if inside.is_empty() {
                format!("{name}[{own}] = {scratch}[{at}];")
            } else {
                format!(
                    "{name}[{own}] = {} ? {scratch}[{at}] : 0.0f;",
                    inside.join(" && ")
                )
            })]
        }));
    }
}

/// See [`Printer::columns`].
struct Columns {
    /// Floats of one register of all warps.
    width: u64,
    /// Floats of one register of one warp.
    count: u64,
    /// Which of them is the lane's.
    column: String,
    /// Bits of the lane in which lanes differ that hold the same.
    copies: u32,
    /// Such a bit, and the bit of the warp that it stands for when parts are read.
    spread: Vec<(u32, u32)>,
}

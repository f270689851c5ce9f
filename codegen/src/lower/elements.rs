//! Element-wise operations, reductions and changes of layout.

use super::{Emitter, Family, Source, line, literal, map_text, sum, times};
use crate::cuda::{self, Node};
use crate::layout::{Factor, Layout};
use ir::{Affine, AxisSet, MapOp, ReduceOp, Reject, TileOp, ValueId};

/// Partial results of one thread's reduction.
const PARTS: u64 = 4;

pub(super) fn combine(op: ReduceOp, x: &str, y: &str) -> String {
    match op {
        ReduceOp::Sum => format!("{x} + {y}"),
        ReduceOp::Max => format!("fmaxf({x}, {y})"),
    }
}

/// One of several partial results, element `x` of it.
fn part_at(array: &str, own: u64, part: u64) -> String {
    format!("{array}[x + {}]", own * part)
}

/// The register digit along which a reduction over `axes` is shared out to partial results, and their number.
fn parts(from: &Layout, axes: &AxisSet) -> Option<(usize, u64)> {
    let reduced = |f: &Factor| f.axis.is_some_and(|a| axes.contains(a));
    let all: u64 = (from.registers.iter().filter(|f| reduced(f)))
        .map(|f| f.size)
        .product();
    let digit = from
        .registers
        .iter()
        .rposition(|f| reduced(f) && f.size.is_multiple_of(PARTS))?;
    (all >= 4 * PARTS).then_some((digit, PARTS))
}

impl Emitter<'_> {
    pub(super) fn map(
        &mut self,
        v: ValueId,
        op: MapOp,
        args: &[ValueId],
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let layout = self.layout(v).distinct();
        match (op, args) {
            (MapOp::Select, [c, x, y]) => {
                if let Some(function) = self.integer(*c) {
                    return self.select(v, &function, [*x, *y], &layout, out);
                }
            }
            (MapOp::Exp, [x]) if !self.precise => {
                if let Some((wide, narrow)) = self.shifted(*x, &layout) {
                    return self.exp_shifted(v, wide, narrow, &layout, out);
                }
            }
            (
                MapOp::Add
                | MapOp::Mul
                | MapOp::Div
                | MapOp::Max
                | MapOp::Exp
                | MapOp::Log
                | MapOp::Sqrt
                | MapOp::Select,
                _,
            ) => {}
        }
        let mut sources = Vec::new();
        for a in args {
            sources.push(self.operand(*a, &layout.slice(self.plan.axes(*a)), out)?);
        }
        if !self.precise {
            self.families.insert(Family::Math);
        } else if op == MapOp::Exp {
            self.families.extend([Family::Math, Family::Exp]);
        }
        let name = self.array(v, &layout, out);
        let mut bad = false;
        out.extend(self.registers(&layout, 1, |me, d| {
            let texts: Vec<String> = sources.iter().map(|s| me.element(s, &layout, d)).collect();
            let text = map_text(op, &texts, me.precise).unwrap_or_else(|| {
                bad = true;
                String::new()
            });
            vec![line(format!(
                "{name}[{}] = {text};",
                Self::own_index(&layout, d)
            ))]
        }));
        if bad {
            return Err(Reject::Schedule(format!("{op:?} of {} values", args.len())));
        }
        self.bind(v, &layout, &name);
        Ok(())
    }

    /// A value as an integer function of coordinates that fits 32 bits.
    fn integer(&self, v: ValueId) -> Option<Affine> {
        let function = ir::affine_of(self.kernel, v)?;
        let (low, high) = function.range(|a| (0, self.tile.extent(a) as i64 - 1))?;
        let fits = |x: i64| x.abs() < 1 << 30;
        let steps = function
            .terms()
            .iter()
            .all(|(c, a)| c.checked_mul(self.tile.extent(*a) as i64).is_some_and(fits));
        (fits(low) && fits(high) && steps && !function.terms().is_empty()).then_some(function)
    }

    /// `select(function >= 0, x, y)`. Where the whole tile satisfies the condition, which all threads find out alike, it is
    /// not looked at element by element.
    fn select(
        &mut self,
        v: ValueId,
        function: &Affine,
        args: [ValueId; 2],
        layout: &Layout,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let x = self.operand(args[0], &layout.slice(self.plan.axes(args[0])), out)?;
        let y = self.operand(args[1], &layout.slice(self.plan.axes(args[1])), out)?;
        let name = self.array(v, layout, out);
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
        let then = self.registers(layout, 1, |me, d| {
            let text = me.element(&x, layout, d);
            vec![line(format!(
                "{name}[{}] = {text};",
                Self::own_index(layout, d)
            ))]
        });
        let otherwise = self.registers(layout, 1, |me, d| {
            let mut terms = vec![format!("({})", function.offset)];
            for (c, axis) in function.terms() {
                let at = me.global(layout, *axis, d);
                terms.push(times(*c, &format!("({at})")));
            }
            let (x, y) = (me.element(&x, layout, d), me.element(&y, layout, d));
            vec![line(format!(
                "{name}[{}] = {} >= 0 ? {x} : {y};",
                Self::own_index(layout, d),
                sum(terms)
            ))]
        });
        out.push(Node::If {
            condition: format!("{} >= 0", sum(least)),
            then,
            otherwise,
        });
        self.bind(v, layout, &name);
        Ok(())
    }

    /// `x` as a sum of a value with all its axes and one with fewer, both at hand.
    fn shifted(&self, x: ValueId, layout: &Layout) -> Option<(ValueId, ValueId)> {
        let TileOp::Map(MapOp::Add, args) = self.plan.op(x) else {
            return None;
        };
        let [p, q] = args.as_slice() else { return None };
        if self.plan.fused.contains_key(&x) {
            return None;
        }
        let axes = self.plan.axes(x);
        [(*p, *q), (*q, *p)].into_iter().find(|(wide, narrow)| {
            self.plan.axes(*wide) == axes
                && self.plan.axes(*narrow) != axes
                && self.find(*wide, Some(layout)).is_some()
                && self
                    .find(*narrow, Some(&layout.slice(self.plan.axes(*narrow))))
                    .is_some()
        })
    }

    /// `e^(wide + narrow) = 2^(wide · s + narrow · s)`: one multiply-add an element. `s` is log2 e, but where `narrow` is so large
    /// that the rounding of `narrow · s` would matter (see `tw_exp_scale`).
    fn exp_shifted(
        &mut self,
        v: ValueId,
        wide: ValueId,
        narrow: ValueId,
        layout: &Layout,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        self.families.insert(Family::Math);
        let part = layout.slice(self.plan.axes(narrow));
        let x = self.operand(wide, layout, out)?;
        let y = self.operand(narrow, &part, out)?;
        let scale = self.array(narrow, &part, out);
        let scaled = self.array(narrow, &part, out);
        out.extend(self.registers(&part, 1, |me, d| {
            let (text, at) = (me.element(&y, &part, d), Self::own_index(&part, d));
            vec![
                line(format!("{scale}[{at}] = tw_exp_scale({text});")),
                line(format!("{scaled}[{at}] = {text} * {scale}[{at}];")),
            ]
        }));
        let [scale, shift] = [scale, scaled].map(|name| Source::Array {
            name,
            layout: part.clone(),
        });
        let name = self.array(v, layout, out);
        out.extend(self.registers(layout, 1, |me, d| {
            let [x, s, y] = [&x, &scale, &shift].map(|source| me.element(source, layout, d));
            vec![line(format!(
                "{name}[{}] = tw_exp2_fast(fmaf({x}, {s}, {y}));",
                Self::own_index(layout, d)
            ))]
        }));
        self.bind(v, layout, &name);
        Ok(())
    }

    pub(super) fn reduce(
        &mut self,
        v: ValueId,
        op: ReduceOp,
        value: ValueId,
        axes: &AxisSet,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        if let Some(round) = self.meeting_of(v) {
            return self.meet(round, out);
        }
        self.reduce_block(v, op, value, axes, out)
    }

    /// The same inside one block.
    pub(super) fn reduce_block(
        &mut self,
        v: ValueId,
        op: ReduceOp,
        value: ValueId,
        axes: &AxisSet,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let from = self.layout(value).distinct();
        let source = self.operand(value, &from, out)?;
        self.reduce_elements(v, op, &from, axes, &[source], out);
        Ok(())
    }

    /// Reduces the product of `factors`, whose elements `from` spreads, over `axes`.
    pub(super) fn reduce_elements(
        &mut self,
        v: ValueId,
        op: ReduceOp,
        from: &Layout,
        axes: &AxisSet,
        factors: &[Source],
        out: &mut Vec<Node>,
    ) {
        let layout = from.slice(&from.axes().minus(axes));
        let name = self.array(v, &layout, out);
        let neutral = literal(op.neutral());
        let own = layout.register_count();
        // Where matrix instructions take the registers few warps are left to hide what an addition waits for.
        let few = self.plan.multiplies();
        let parts = if few { parts(from, axes) } else { None };
        // Several partial results, so that an addition need not wait for the one before.
        let (array, count) = match parts {
            Some((_, count)) => (format!("{name}_parts"), count),
            None => (name.clone(), 1),
        };
        if count > 1 {
            out.push(line(format!("float {array}[{}];", own * count)));
        }
        out.push(cuda::unrolled(
            "x",
            own * count,
            vec![line(format!("{array}[x] = {neutral};"))],
        ));
        out.extend(self.registers(from, 1, |me, d| {
            let texts: Vec<String> = factors.iter().map(|s| me.element(s, from, d)).collect();
            let mut text = texts.join(" * ");
            let exists = me.exists(from, axes.iter(), d);
            if !exists.is_empty() {
                text = format!("({} ? {text} : {neutral})", exists.join(" && "));
            }
            let part = match parts {
                Some((digit, count)) => format!(" + {own} * ({} % {count})", d[digit]),
                None => String::new(),
            };
            let to = format!("{array}[{}{part}]", Self::index(&layout, from, d));
            vec![line(format!("{to} = {};", combine(op, &to, &text)))]
        }));
        if count > 1 {
            let pair =
                |at: u64| combine(op, &part_at(&array, own, at), &part_at(&array, own, at + 1));
            let text = combine(op, &format!("({})", pair(0)), &format!("({})", pair(2)));
            out.push(cuda::unrolled(
                "x",
                own,
                vec![line(format!("{name}[x] = {text};"))],
            ));
        }
        if !self.partial_sums.contains(&v) {
            self.combine_threads(&name, op, from, axes, out);
        }
        self.bind(v, &layout, &name);
    }

    /// Combines what threads that share the elements of an array hold of it.
    pub(super) fn combine_threads(
        &mut self,
        name: &str,
        op: ReduceOp,
        from: &Layout,
        axes: &AxisSet,
        out: &mut Vec<Node>,
    ) {
        let layout = from.slice(&from.axes().minus(axes));
        for mask in from.lane_masks(axes) {
            out.extend(self.registers(&layout, 1, |_, d| {
                let to = format!("{name}[{}]", Self::own_index(&layout, d));
                let other = format!("__shfl_xor_sync(0xffffffffu, {to}, {mask})");
                vec![line(format!("{to} = {};", combine(op, &to, &other)))]
            }));
        }
        self.reduce_warps(name, op, &layout, &from.warp_masks(axes), out);
    }

    /// Combines what warps that differ in the bits of `masks` hold of an array, through scratch memory.
    fn reduce_warps(
        &mut self,
        name: &str,
        op: ReduceOp,
        layout: &Layout,
        masks: &[u32],
        out: &mut Vec<Node>,
    ) {
        if masks.is_empty() {
            return;
        }
        let all: u32 = masks.iter().sum();
        let rest = 31 & !all;
        // One of the lanes that hold the same writes, and each of them reads other warps' parts.
        let copies = layout.copy_masks().0;
        let bits = |of: u32| (0..5).filter(move |b| of >> b & 1 == 1);
        let spread: Vec<(u32, u32)> = bits(copies).zip(masks.iter().copied()).collect();
        let own = bits(31 & !copies);
        let column = own.clone().enumerate().map(|(i, b)| match b as usize {
            b if b == i => format!("(lane & {})", 1 << b),
            b => format!("((lane >> {b} & 1) << {i})"),
        });
        let column = match copies {
            0 => "lane".to_string(),
            _ => sum(column.collect()),
        };
        let columns = 1 << own.count();
        let width = self.plan.threads() / 32 * columns;
        let scratch = self.scratch(layout.register_count() * width);
        out.push(self.barrier());
        let writes = self.registers(layout, 1, |_, d| {
            let at = Self::own_index(layout, d);
            vec![line(format!(
                "{scratch}[({at}) * {width} + warp * {columns} + {column}] = {name}[{at}];"
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
        out.push(self.barrier());
        let theirs: String = (spread.iter())
            .map(|(bit, mask)| format!(" | (lane >> {bit} & 1) * {mask}"))
            .collect();
        let left = &masks[spread.len()..];
        out.extend(self.registers(layout, 1, |_, d| {
            let at = Self::own_index(layout, d);
            let part = |c: u32| {
                let chosen = left.iter().enumerate().filter(|(i, _)| c >> i & 1 == 1);
                let other: u32 = chosen.map(|(_, m)| *m).sum();
                format!(
                    "{scratch}[({at}) * {width} + ((warp & {rest}) | {other}{theirs}) * {columns} + {column}]"
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

    /// Moves a value from one layout to another through shared memory.
    pub(super) fn convert(
        &mut self,
        v: ValueId,
        from: &Source,
        to: &Layout,
        out: &mut Vec<Node>,
    ) -> Source {
        let Source::Array { layout: held, .. } = from else {
            return from.clone();
        };
        let held = held.distinct();
        let (mut strides, mut floats) = (Vec::new(), 1);
        for axis in held.axes().iter() {
            strides.push((axis, floats));
            floats *= held.cover(axis);
        }
        let scratch = self.scratch(floats);
        let place = |me: &mut Self, layout: &Layout, d: &Vec<String>| {
            let terms = strides
                .iter()
                .map(|(axis, stride)| {
                    let at = me.local(layout, *axis, d);
                    times(*stride as i64, &format!("({at})"))
                })
                .collect();
            sum(terms)
        };
        out.push(self.barrier());
        out.extend(self.registers(&held, 1, |me, d| {
            let (at, text) = (place(me, &held, d), me.element(from, &held, d));
            vec![line(format!("{scratch}[{at}] = {text};"))]
        }));
        out.push(self.barrier());
        let name = self.array(v, to, out);
        out.extend(self.registers(to, 1, |me, d| {
            let at = place(me, to, d);
            let mut inside = Vec::new();
            for (axis, _) in &strides {
                if to.cover(*axis) > held.cover(*axis) {
                    let local = me.local(to, *axis, d);
                    inside.push(format!("{local} < {}", held.cover(*axis)));
                }
            }
            let own = Self::own_index(to, d);
            vec![line(if inside.is_empty() {
                format!("{name}[{own}] = {scratch}[{at}];")
            } else {
                format!(
                    "{name}[{own}] = {} ? {scratch}[{at}] : 0.0f;",
                    inside.join(" && ")
                )
            })]
        }));
        self.bind(v, to, &name);
        Source::Array {
            name,
            layout: to.clone(),
        }
    }
}

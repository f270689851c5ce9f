//! Element-wise operations, reductions and changes of layout.

use super::{Emitter, Family, Source, line, literal, map_text, sum, times};
use crate::cuda::Node;
use crate::layout::Layout;
use ir::{AxisSet, MapOp, ReduceOp, Reject, ValueId};

fn combine(op: ReduceOp, x: &str, y: &str) -> String {
    match op {
        ReduceOp::Sum => format!("{x} + {y}"),
        ReduceOp::Max => format!("fmaxf({x}, {y})"),
    }
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
        let mut sources = Vec::new();
        for a in args {
            sources.push(self.operand(*a, &layout.slice(self.plan.axes(*a)), out)?);
        }
        if !self.precise {
            self.families.insert(Family::Math);
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

    pub(super) fn reduce(
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
        out.extend(self.registers(&layout, 1, |_, d| {
            vec![line(format!(
                "{name}[{}] = {neutral};",
                Self::own_index(&layout, d)
            ))]
        }));
        out.extend(self.registers(from, 1, |me, d| {
            let texts: Vec<String> = factors.iter().map(|s| me.element(s, from, d)).collect();
            let mut text = texts.join(" * ");
            let exists = me.exists(from, axes.iter(), d);
            if !exists.is_empty() {
                text = format!("({} ? {text} : {neutral})", exists.join(" && "));
            }
            let to = format!("{name}[{}]", Self::index(&layout, from, d));
            vec![line(format!("{to} = {};", combine(op, &to, &text)))]
        }));
        for mask in from.lane_masks(axes) {
            out.extend(self.registers(&layout, 1, |_, d| {
                let to = format!("{name}[{}]", Self::own_index(&layout, d));
                let other = format!("__shfl_xor_sync(0xffffffffu, {to}, {mask})");
                vec![line(format!("{to} = {};", combine(op, &to, &other)))]
            }));
        }
        let masks = from.warp_masks(axes);
        if !masks.is_empty() {
            let threads = self.plan.threads();
            let scratch = self.scratch(layout.register_count() * threads);
            let all: u32 = masks.iter().sum();
            out.push(line("__syncthreads();"));
            out.extend(self.registers(&layout, 1, |_, d| {
                let at = Self::own_index(&layout, d);
                vec![line(format!(
                    "{scratch}[({at}) * {threads} + threadIdx.x] = {name}[{at}];"
                ))]
            }));
            out.push(line("__syncthreads();"));
            let combinations: Vec<u32> = (0..1u32 << masks.len())
                .map(|c| {
                    masks
                        .iter()
                        .enumerate()
                        .filter(|(i, _)| c >> i & 1 == 1)
                        .map(|(_, m)| *m)
                        .sum()
                })
                .collect();
            out.extend(self.registers(&layout, 1, |_, d| {
                let at = Self::own_index(&layout, d);
                let part = |c: &u32| {
                    format!(
                        "{scratch}[({at}) * {threads} + (((warp & {}) | {c}) << 5) + lane]",
                        31 & !all
                    )
                };
                let mut text = part(&combinations[0]);
                for c in &combinations[1..] {
                    text = combine(op, &text, &part(c));
                }
                vec![line(format!("{name}[{at}] = {text};"))]
            }));
        }
        self.bind(v, &layout, &name);
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
        out.push(line("__syncthreads();"));
        out.extend(self.registers(&held, 1, |me, d| {
            let (at, text) = (place(me, &held, d), me.element(from, &held, d));
            vec![line(format!("{scratch}[{at}] = {text};"))]
        }));
        out.push(line("__syncthreads();"));
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

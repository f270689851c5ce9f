//! Element-wise operations, reductions and changes of layout.

use super::{Machined, Plain};
use crate::layout::{Factor, Layout};
use crate::machine::{Across, FragmentId, Function, PARTS, Reduce, Scan, Source};
use ir::{Affine, AxisId, AxisSet, MapOp, ReduceOp, Reject, ValueId};

/// The register digit along which a reduction over `axes` is shared out to partial results, and their number.
fn parts(from: &Layout, axes: &AxisSet) -> Option<(usize, u64)> {
    let reduced = |f: &Factor| f.axis.is_some_and(|a| axes.contains(a));
    let all: u64 = (from.registers.iter().filter(|f| reduced(f)))
        .map(|f| f.size)
        .product();
    // As many in each part, or nearly so.
    let last = |is_even: bool| {
        let fits = |f: &Factor| f.size.is_multiple_of(PARTS) || !is_even && f.size > PARTS;
        let mut digits = from.registers.iter();
        digits.rposition(|f| reduced(f) && fits(f))
    };
    let digit = last(true).or_else(|| last(false))?;
    (all >= 4 * PARTS).then_some((digit, PARTS))
}

impl Plain<'_> {
    pub(super) fn map(
        &mut self,
        v: ValueId,
        op: MapOp,
        args: &[ValueId],
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let layout = self.layout(v).distinct();
        match (op, args) {
            (MapOp::Select, [c, x, y]) => {
                if let Some(function) = self.integer(*c) {
                    return self.select(v, function, [*x, *y], &layout, out);
                }
            }
            (MapOp::Function(ir::Function::Exp), [x]) if !self.precise => {
                if self.exp_of_sum(v, *x, &layout, out)? {
                    return Ok(());
                }
                self.unfold(*x, out)?;
            }
            (
                MapOp::Add
                | MapOp::Mul
                | MapOp::Div
                | MapOp::Max
                | MapOp::Function(_)
                | MapOp::Select,
                _,
            ) => {}
        }
        let mut sources = Vec::new();
        for a in args {
            sources.push(self.operand(*a, &layout.slice(self.plan.axes(*a)), out)?);
        }
        if args.len() != op.arity() {
            return Err(Reject::Schedule(format!("{op:?} of {} values", args.len())));
        }
        let to = self.array(v, &layout, out);
        out.push(Machined::Map {
            to,
            function: match self.precise {
                true => self.ranges.function(op, args),
                false => Function::Op(op),
            },
            args: sources,
        });
        self.bind(v, &layout, to);
        Ok(())
    }

    /// `to = from`, in the layout of `to`.
    pub(super) fn copied(to: FragmentId, from: Source) -> Machined {
        Machined::Map {
            to,
            function: Function::Copy,
            args: vec![from],
        }
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

    /// `select(function >= 0, x, y)`.
    fn select(
        &mut self,
        v: ValueId,
        condition: Affine,
        args: [ValueId; 2],
        layout: &Layout,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let x = self.operand(args[0], &layout.slice(self.plan.axes(args[0])), out)?;
        let y = self.operand(args[1], &layout.slice(self.plan.axes(args[1])), out)?;
        let to = self.array(v, layout, out);
        out.push(Machined::Select {
            to,
            condition,
            x,
            y,
        });
        self.bind(v, layout, to);
        Ok(())
    }

    pub(super) fn reduce(
        &mut self,
        v: ValueId,
        op: ReduceOp,
        value: ValueId,
        axes: &AxisSet,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        if let Some(round) = self.grid_barrier_of(v) {
            return self.grid_barrier(round, out);
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
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let from = self.layout(value).distinct();
        let source = self.operand(value, &from, out)?;
        self.reduce_elements(v, op, &from, axes, vec![source], out)
    }

    /// Reduces the product of `factors`, whose elements `from` spreads, over `axes`.
    pub(super) fn reduce_elements(
        &mut self,
        v: ValueId,
        op: ReduceOp,
        from: &Layout,
        axes: &AxisSet,
        factors: Vec<Source>,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let layout = from.slice(&from.axes().minus(axes));
        let to = self.array(v, &layout, out);
        // Where matrix instructions take the registers few warps are left to hide what an addition waits for.
        let few = self.plan.multiplies();
        out.push(Machined::Reduce(Reduce {
            to,
            op,
            factors,
            from: from.clone(),
            axes: axes.clone(),
            parts: if few { parts(from, axes) } else { None },
        }));
        if !self.partial_sums.contains(&v) {
            self.combine_threads(to, op, from, axes, out)?;
        }
        self.bind(v, &layout, to);
        Ok(())
    }

    pub(super) fn scan(
        &mut self,
        v: ValueId,
        (op, inclusive): (ReduceOp, bool),
        value: ValueId,
        axis: AxisId,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let layout = self.layout(v).distinct();
        let of = self.operand(value, &layout, out)?;
        let to = self.array(v, &layout, out);
        out.push(Machined::Scan(Scan {
            to,
            op,
            of,
            axis,
            inclusive,
        }));
        self.bind(v, &layout, to);
        Ok(())
    }

    /// Combines what threads that share the elements of a fragment hold of it.
    pub(super) fn combine_threads(
        &mut self,
        fragment: FragmentId,
        op: ReduceOp,
        from: &Layout,
        axes: &AxisSet,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let layout = from.slice(&from.axes().minus(axes));
        let across = |masks: Vec<u32>| Across {
            fragment,
            layout: layout.clone(),
            op,
            masks,
        };
        let lanes = from.lane_masks(axes);
        let Some(warps) = from.warp_masks(axes) else {
            return Err(Reject::Schedule(
                "a reduction across warps whose number is no power of two".into(),
            ));
        };
        if !lanes.is_empty() {
            out.push(Machined::AcrossLanes(across(lanes)));
        }
        if warps.is_empty() {
            return Ok(());
        }
        let across = across(warps);
        self.scratch(layout.register_count() * self.plan.threads() / 32 * across.columns());
        out.push(Machined::PutParts(across.clone()));
        out.push(Machined::TakeParts(across));
        Ok(())
    }

    /// Moves a value from one layout to another through shared memory.
    pub(super) fn convert(
        &mut self,
        v: ValueId,
        from: FragmentId,
        to: &Layout,
        out: &mut Vec<Machined>,
    ) -> FragmentId {
        let held = self.fragment(from).layout().distinct();
        self.scratch(held.scattered().1);
        out.push(Machined::Spill {
            from,
            held: held.clone(),
        });
        let id = self.array(v, to, out);
        out.push(Machined::Unspill { to: id, held });
        self.bind(v, to, id);
        id
    }
}

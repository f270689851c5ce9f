//! Contractions.

use super::memory::region;
use super::{Machined, Plain};
use crate::atoms::AtomRow;
use crate::layout::Layout;
use crate::machine::{FragmentId, Input, Multiply, Outer, Source, Stage};
use crate::plan::{Contraction, Method, Operand};
use ir::{AxisId, ReduceOp, Reject, ValueId};

impl Plain<'_> {
    /// Carries out a contraction; `into` is the sum that it is an addend of, with the other addend.
    pub(super) fn contract(
        &mut self,
        v: ValueId,
        into: Option<(ValueId, ValueId)>,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let c = self.plan.contractions[&v].clone();
        if let Method::Product = c.method {
            let mut sources = Vec::new();
            let mut from = Layout::default();
            for (i, (value, operand)) in c.values.iter().zip(&c.operands).enumerate() {
                let Operand::Registers(layout) = operand else {
                    return Err(Reject::Schedule("a product from shared memory".into()));
                };
                if i == 0 {
                    from = layout.distinct();
                }
                sources.push(self.operand(*value, layout, out)?);
            }
            return self.reduce_elements(v, ReduceOp::Sum, &from, &c.axes, sources, out);
        }
        let result = into.map_or(v, |(sum, _)| sum);
        let layout = c.accumulator.clone();
        let start = match into {
            Some((_, addend)) => {
                self.operand(addend, &layout.slice(self.plan.axes(addend)), out)?
            }
            None => Source::Constant(0.0),
        };
        let to = self.array(result, &layout, out);
        // A warpgroup's first instruction may overwrite its accumulators.
        let fresh = into.is_none() && matches!(c.method, Method::Matrix(row) if row.is_grouped());
        if !fresh {
            out.push(Self::copied(to, start));
        }
        match c.method {
            Method::Matrix(row) if row.has_halves() => {
                self.split_products(&c, row, to, fresh, out)?;
            }
            Method::Matrix(row) if row.is_grouped() => {
                self.warpgroup(&c, row, to, fresh, out)?;
            }
            Method::Matrix(row) => self.matrix(&c, row, to, out)?,
            Method::Outer => self.outer(&c, to, out)?,
            Method::Product => {}
        }
        self.bind(result, &layout, to);
        Ok(())
    }

    fn matrix(
        &mut self,
        c: &Contraction,
        row: &'static AtomRow,
        into: FragmentId,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let in_region = |t: usize| Input::Region(region(t), Stage::At(0));
        let a = match &c.operands[0] {
            Operand::Tile(t) => in_region(*t),
            Operand::Registers(fragment) => Input::Fragment(self.masked(c, fragment, out)?),
        };
        let Operand::Tile(t) = c.operands[1] else {
            return Err(Reject::Schedule(
                "the columns' operand is in registers".into(),
            ));
        };
        let b = Input::Region(region(t), Stage::At(0));
        out.push(Machined::Multiply(Box::new(Multiply {
            row,
            into,
            inputs: [a, b],
            spaces: c.spaces.clone(),
        })));
        Ok(())
    }

    /// The registers of a computed row operand, zero where the depth's coordinates do not exist.
    pub(super) fn masked(
        &mut self,
        c: &Contraction,
        fragment: &Layout,
        out: &mut Vec<Machined>,
    ) -> Result<FragmentId, Reject> {
        let v = c.values[0];
        let Source::Fragment(from) = self.operand(v, fragment, out)? else {
            return Err(Reject::Schedule("a constant as the rows' operand".into()));
        };
        Ok(self.without_overhang(c, fragment, from, out))
    }

    /// `from`, or a fragment with its elements that is zero where coordinates along the depth do not exist.
    pub(super) fn without_overhang(
        &mut self,
        c: &Contraction,
        fragment: &Layout,
        from: FragmentId,
        out: &mut Vec<Machined>,
    ) -> FragmentId {
        let mut axes: Vec<AxisId> = c.spaces[2].axes.iter().map(|a| a.0).collect();
        axes.sort_unstable();
        axes.dedup();
        axes.retain(|a| self.overhangs(fragment, *a));
        if axes.is_empty() {
            return from;
        }
        let to = self.array(c.values[0], fragment, out);
        out.push(Machined::Mask { to, from, axes });
        to
    }

    /// Whether some elements of a layout have no coordinate along an axis.
    fn overhangs(&self, layout: &Layout, axis: AxisId) -> bool {
        let (tile, extent) = (self.kernel.tile(axis), self.tile.extent(axis));
        !extent.is_multiple_of(tile) || layout.cover(axis) > tile
    }

    /// Register tiles: for each step along the depth, a column of one operand times a row of the other.
    fn outer(
        &mut self,
        c: &Contraction,
        into: FragmentId,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let mut inputs = Vec::new();
        for operand in &c.operands {
            let Operand::Tile(t) = operand else {
                return Err(Reject::Schedule("an outer product from registers".into()));
            };
            inputs.push((region(*t), Stage::At(0)));
        }
        let &[a, b] = inputs.as_slice() else {
            return Err(Reject::Schedule("an outer product of two operands".into()));
        };
        let part = |v: ValueId| c.accumulator.slice(self.plan.axes(v));
        out.push(Machined::Outer(Box::new(Outer {
            into,
            inputs: [a, b],
            parts: c.values.map(part),
            depth: c.spaces[2].axes.clone(),
            axes: c.axes.clone(),
        })));
        Ok(())
    }
}

//! Contractions by warpgroup instructions.

use super::memory::region;
use super::{Machined, Plain};
use crate::atoms::AtomRow;
use crate::layout::Layout;
use crate::machine::{
    FragmentId, Function, Holds, Issue, Rows, Side, Source, Split, Stage, Swizzle, SwizzleAtoms,
};
use crate::plan::{Contraction, Operand};
use ir::{AxisId, Dtype, MapOp, Reject};

/// Columns of one instruction at most.
const MOST_COLUMNS: u64 = 256;

/// What products of halves take beside their accumulators.
#[derive(Clone, Copy)]
struct Products {
    /// The larger and the lesser halves of the rows.
    rows: [FragmentId; 2],
    /// What the products of one tile are summed in; the accumulators themselves where nothing is added to.
    sum: FragmentId,
}

/// Bytes from one row (or column) to the one `count` further.
fn kept(s: Swizzle, dtype: Dtype, count: u64) -> Result<u64, Reject> {
    if s.depth {
        Ok(count * s.line_bytes(dtype))
    } else if count.is_multiple_of(s.span) {
        Ok(count / s.span * s.swizzle_atom_bytes(dtype))
    } else {
        Err(Reject::Schedule(format!(
            "an instruction begins inside a swizzle atom of {} rows",
            s.span
        )))
    }
}

impl Plain<'_> {
    /// Carries out a contraction into accumulators, which need not be set before if `fresh`.
    pub(super) fn warpgroup(
        &mut self,
        c: &Contraction,
        row: &'static AtomRow,
        into: FragmentId,
        fresh: bool,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let mut scope = Vec::new();
        let packed = match &c.operands[0] {
            Operand::Registers(fragment) => {
                let packed = self.packed(c, row, into, &mut scope);
                self.pack(c, row, fragment, packed, &mut scope)?;
                Some(packed)
            }
            Operand::Tile(_) => None,
        };
        scope.push(self.issue(c, row, into, fresh, packed, self.columns(c)?)?);
        out.push(Machined::Scope(scope));
        Ok(())
    }

    /// Carries out a contraction of f32 as three products of halves, into accumulators that need not be set before if `fresh`.
    pub(super) fn split_products(
        &mut self,
        c: &Contraction,
        row: &'static AtomRow,
        into: FragmentId,
        fresh: bool,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let products = self.products(c, row, into, fresh, out)?;
        let rows = self.split_operands(c, &products, out)?;
        self.issue_products(c, row, &products, rows, out)?;
        if !fresh {
            // Instructions truncate what they sum; this rounds.
            out.push(Machined::Map {
                to: into,
                function: Function::Op(MapOp::Add),
                args: vec![Source::Fragment(into), Source::Fragment(products.sum)],
            });
        }
        Ok(())
    }

    /// Declares what products of halves take beside the accumulators.
    fn products(
        &mut self,
        c: &Contraction,
        row: &AtomRow,
        into: FragmentId,
        fresh: bool,
        out: &mut Vec<Machined>,
    ) -> Result<Products, Reject> {
        let [m, _, k] = &c.spaces;
        let [rows, columns] = self.plan.warps();
        let Some(held) = row.instruction.rows.held() else {
            return Err(Reject::Schedule(
                "rows of split products in shared memory".into(),
            ));
        };
        let rows = (held.layout)(m, k, (rows, columns));
        let name = self.fragment(into).name.clone();
        let mut declare = |of: &str, layout: &Layout| {
            self.declare(format!("{name}_{of}"), Holds::Floats(layout.clone()), out)
        };
        Ok(Products {
            rows: ["high", "low"].map(|of| declare(of, &rows)),
            sum: match fresh {
                true => into,
                false => declare("part", &c.accumulator),
            },
        })
    }

    /// Reads the rows of a contraction of halves, and splits its columns.
    fn split_operands(
        &mut self,
        c: &Contraction,
        products: &Products,
        out: &mut Vec<Machined>,
    ) -> Result<FragmentId, Reject> {
        let (Some(halves), &[Operand::Tile(a), Operand::Tile(b)]) =
            (c.halves, c.operands.as_slice())
        else {
            return Err(Reject::Schedule(
                "the operands of split products are not in shared memory".into(),
            ));
        };
        let layout = self.fragment(products.rows[0]).layout();
        let mut rows = self.array(c.values[0], &layout, out);
        out.push(Machined::Fetch {
            to: rows,
            region: region(a),
            stage: Stage::At(0),
        });
        // Where a part of a buffer is held as it stands, there is something beside the tile too.
        if !self.plan.tiles[a].patch.is_empty() {
            rows = self.without_overhang(c, &layout, rows, out);
        }
        let axes = &self.plan.tiles[b].axes;
        let stride = |axis: Option<AxisId>| {
            let own = axes.iter().find(|a| Some(a.0) == axis);
            own.map_or(0, |a| a.2)
        };
        let [_, columns, depth] = &c.spaces;
        let kept = Side {
            count: columns.total,
            stride: stride(columns.axes.first().map(|a| a.0)),
        };
        let mut digits: Vec<Side> = Vec::new();
        for f in depth.digits() {
            let (count, stride) = (f.size, f.stride * stride(f.axis));
            match digits.last_mut() {
                Some(last) if last.count * last.stride == stride => last.count *= count,
                Some(_) | None => digits.push(Side { count, stride }),
            }
        }
        out.push(Machined::Split(Box::new(Split {
            from: region(b),
            stage: Stage::At(0),
            kept,
            depth: digits,
            to: halves.map(region),
            into: Stage::At(0),
        })));
        Ok(rows)
    }

    /// Splits the rows, and issues the products into a fresh sum, the least ones first.
    fn issue_products(
        &self,
        c: &Contraction,
        row: &'static AtomRow,
        products: &Products,
        rows: FragmentId,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let Some(halves) = c.halves else {
            return Err(Reject::Schedule("products of what is not split".into()));
        };
        for (to, function) in products
            .rows
            .into_iter()
            .zip([Function::Tf32, Function::Rest])
        {
            out.push(Machined::Map {
                to,
                function,
                args: vec![Source::Fragment(rows)],
            });
        }
        let mut scope = Vec::new();
        for (number, (a, b)) in [(1, 0), (0, 1), (0, 0)].into_iter().enumerate() {
            let rows = Some(products.rows[a]);
            scope.push(self.issue(c, row, products.sum, number == 0, rows, halves[b])?);
        }
        out.push(Machined::Scope(scope));
        Ok(())
    }

    /// Declares the rows of an operand in registers, beside the accumulators that they go into.
    fn packed(
        &mut self,
        c: &Contraction,
        row: &AtomRow,
        into: FragmentId,
        out: &mut Vec<Machined>,
    ) -> FragmentId {
        let [m, _, k] = &c.spaces;
        let holds = Holds::Rows {
            atoms: m.total / (16 * self.plan.warps()[0]),
            steps: k.total / row.shape()[2],
        };
        let name = format!("{}_rows", self.fragment(into).name);
        self.declare(name, holds, out)
    }

    /// The tile of a contraction's columns.
    fn columns(&self, c: &Contraction) -> Result<usize, Reject> {
        match c.operands[1] {
            Operand::Tile(t) => Ok(t),
            Operand::Registers(_) => Err(Reject::Schedule(
                "the columns' operand is in registers".into(),
            )),
        }
    }

    /// Rounds a rows' operand to what the instruction reads.
    fn pack(
        &mut self,
        c: &Contraction,
        row: &AtomRow,
        fragment: &Layout,
        to: FragmentId,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let from = self.masked(c, fragment, out)?;
        out.push(Machined::Pack {
            to,
            from,
            dtype: row.operand,
            stride: c.spaces[2].total / 2,
        });
        Ok(())
    }

    /// The instructions of a contraction: `packed` are the rows where they are in registers, `columns` is the tile where the columns are.
    fn issue(
        &self,
        c: &Contraction,
        row: &'static AtomRow,
        into: FragmentId,
        fresh: bool,
        packed: Option<FragmentId>,
        columns: usize,
    ) -> Result<Machined, Reject> {
        let groups = self.plan.warps()[0] / row.warps();
        let [m, n, k] = &c.spaces;
        let own_rows = m.total / groups;
        let own_columns = n.total / self.plan.warps()[1];
        let Some(chunks) = (1..=own_columns / 8)
            .find(|q| own_columns.is_multiple_of(8 * q) && own_columns / q <= MOST_COLUMNS)
        else {
            return Err(Reject::Schedule("no column for a group of warps".into()));
        };
        let mut b = self.swizzle_atoms(columns, n.total, own_columns)?;
        let (atoms, columns) = (own_rows / row.shape()[0], own_columns / chunks);
        let a = match (packed, &c.operands[0]) {
            (Some(packed), _) => Rows::Fragment(packed),
            (None, Operand::Tile(t)) => {
                let mut a = self.swizzle_atoms(*t, m.total, own_rows)?;
                if atoms > 1 {
                    a.further = kept(a.swizzle, row.operand, row.shape()[0])?;
                }
                Rows::SwizzleAtoms(a)
            }
            (None, Operand::Registers(_)) => {
                return Err(Reject::Schedule(
                    "a warpgroup's operand without swizzle atoms".into(),
                ));
            }
        };
        if chunks > 1 {
            b.further = kept(b.swizzle, row.operand, columns)?;
        }
        Ok(Machined::Issue(Box::new(Issue {
            row,
            into,
            fresh,
            groups,
            counts: [atoms, chunks, k.total / row.shape()[2]],
            columns,
            a,
            b,
        })))
    }

    /// An operand in a tile, of whose `all` rows (or columns) a group of warps reads `own`.
    fn swizzle_atoms(&self, t: usize, all: u64, own: u64) -> Result<SwizzleAtoms, Reject> {
        let tile = &self.plan.tiles[t];
        let Some(swizzle) = tile.swizzle else {
            return Err(Reject::Schedule(
                "a warpgroup's operand without swizzle atoms".into(),
            ));
        };
        let share = match all == own {
            true => None,
            false => Some(kept(swizzle, tile.dtype, own)?),
        };
        Ok(SwizzleAtoms {
            region: region(t),
            stage: Stage::At(0),
            swizzle,
            share,
            further: 0,
        })
    }
}

//! Contractions by warpgroup instructions.

use super::memory::region;
use super::{Lowering, Machined};
use crate::atoms::AtomRow;
use crate::layout::Layout;
use crate::machine::{FragmentId, Holds, Issue, Panels, Rows, Slot, Swizzle, Sync};
use crate::plan::{Contraction, Operand};
use ir::Reject;

/// Columns of one instruction at most.
const MOST_COLUMNS: u64 = 256;

/// Bytes from one row (or column) to the one `count` further.
fn kept(s: Swizzle, count: u64) -> Result<u64, Reject> {
    if s.depth {
        Ok(count * s.line_bytes())
    } else if count.is_multiple_of(s.span) {
        Ok(count / s.span * s.panel_bytes())
    } else {
        Err(Reject::Schedule(format!(
            "an instruction begins inside a panel of {} rows",
            s.span
        )))
    }
}

impl Lowering<'_> {
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
        self.take_turn(&mut scope);
        scope.push(Machined::Sync(Sync::Keep(into)));
        scope.push(self.issue(c, row, into, fresh, packed, None)?);
        scope.push(Machined::Sync(Sync::Commit));
        let followed = self.follow(&mut scope)?;
        scope.push(Machined::Sync(Sync::Keep(into)));
        if !followed {
            self.landed(&mut scope);
        }
        out.push(Machined::Scope(scope));
        Ok(())
    }

    /// Declares the rows of an operand in registers, beside the accumulators that they go into.
    pub(super) fn packed(
        &mut self,
        c: &Contraction,
        row: &AtomRow,
        into: FragmentId,
        out: &mut Vec<Machined>,
    ) -> FragmentId {
        let [m, _, k] = &c.spaces;
        let holds = Holds::Rows {
            atoms: m.total / (16 * u64::from(self.schedule.warps_m)),
            steps: k.total / row.shape[2],
        };
        let name = format!("{}_rows", self.fragment(into).name);
        self.declare(name, holds, out)
    }

    /// Rounds a rows' operand to what the instruction reads.
    pub(super) fn pack(
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

    /// The instructions of a contraction: `packed` are the rows where they are in registers, `slot` is where the columns
    /// are, if not where the iteration reads.
    pub(super) fn issue(
        &self,
        c: &Contraction,
        row: &'static AtomRow,
        into: FragmentId,
        fresh: bool,
        packed: Option<FragmentId>,
        slot: Option<Slot>,
    ) -> Result<Machined, Reject> {
        let groups = u64::from(self.schedule.warps_m) / row.warps();
        let [m, n, k] = &c.spaces;
        let own_rows = m.total / groups;
        let own_columns = n.total / u64::from(self.schedule.warps_n);
        let Some(chunks) = (1..=own_columns / 8)
            .find(|q| own_columns.is_multiple_of(8 * q) && own_columns / q <= MOST_COLUMNS)
        else {
            return Err(Reject::Schedule("no column for a group of warps".into()));
        };
        let (atoms, columns) = (own_rows / row.shape[0], own_columns / chunks);
        let mut b = self
            .panels(c, 1, own_columns, slot)?
            .ok_or_else(|| Reject::Schedule("the columns' operand is in registers".into()))?;
        let a = match (self.panels(c, 0, own_rows, None)?, packed) {
            (Some(mut a), _) => {
                if atoms > 1 {
                    a.further = kept(a.swizzle, row.shape[0])?;
                }
                Rows::Panels(a)
            }
            (None, Some(packed)) => Rows::Fragment(packed),
            (None, None) => {
                return Err(Reject::Schedule(
                    "a warpgroup's operand without panels".into(),
                ));
            }
        };
        if chunks > 1 {
            b.further = kept(b.swizzle, columns)?;
        }
        Ok(Machined::Issue(Box::new(Issue {
            row,
            into,
            fresh,
            groups,
            counts: [atoms, chunks, k.total / row.shape[2]],
            columns,
            a,
            b,
        })))
    }

    /// An operand in shared memory, of which a group of warps reads `own` rows (or columns).
    fn panels(
        &self,
        c: &Contraction,
        side: usize,
        own: u64,
        slot: Option<Slot>,
    ) -> Result<Option<Panels>, Reject> {
        let Operand::Tile(t) = c.operands[side] else {
            return Ok(None);
        };
        let Some(swizzle) = self.plan.tiles[t].swizzle else {
            return Err(Reject::Schedule(
                "a warpgroup's operand without panels".into(),
            ));
        };
        let share = match c.spaces[side].total == own {
            true => None,
            false => Some(kept(swizzle, own)?),
        };
        Ok(Some(Panels {
            region: region(t),
            slot: slot.unwrap_or_else(|| self.current_slot(t)),
            swizzle,
            share,
            further: 0,
        }))
    }
}

//! What is wrong with the operands of a statement that moves or computes elements.

use super::Walk;
use crate::atoms::{AtomRow, Rows as Home, Scope};
use crate::layout::Layout;
use crate::machine::{
    Across, Copy, FragmentId, Function, Holds, Input, Issue, Multiply, Outer, PARTS, Reduce,
    RegionId, Rows, Scan, Source, Split, Statement, Store, SwizzleAtoms,
};
use ir::{AxisId, AxisSet, Dtype};

/// Rows of an instruction that one warp has, columns that are a unit, and the depth that is.
const ROWS: u64 = 16;
const COLUMNS: u64 = 8;
/// Lanes of a warp.
const LANES: u64 = 32;
/// Bytes that move together at most.
const CHUNK: u64 = 16;
/// Columns of one instruction of a warpgroup, at most.
const MOST_COLUMNS: u64 = 256;

impl<'a> Walk<'a> {
    pub(super) fn operands(&mut self, statement: &'a Statement) {
        if let Statement::Map { to, function, args } = statement {
            self.map(*to, *function, args);
        } else if let Statement::Select {
            to,
            condition,
            x,
            y,
        } = statement
        {
            condition.terms().iter().for_each(|(_, a)| self.axis(*a));
            self.all_lie_in(*to, &[*x, *y]);
        } else if let Statement::ExpScale {
            scale, scaled, of, ..
        } = statement
        {
            self.same(*scale, *scaled);
            self.all_lie_in(*scale, &[*of]);
        } else if let Statement::Mask { to, from, axes } = statement {
            self.same(*to, *from);
            axes.iter().for_each(|a| self.axis(*a));
        } else if let Statement::IsNotOne { flag, of, layout } = statement {
            self.flag(*flag);
            self.lies_in(*of, layout);
        } else if let Statement::Reduce(reduce) = statement {
            self.reduce(reduce);
        } else if let Statement::Scan(scan) = statement {
            self.scan(scan);
        } else if let Statement::AcrossLanes(a) | Statement::PutParts(a) | Statement::TakeParts(a) =
            statement
        {
            self.across(a);
        } else if let Statement::Spill { from: id, held } | Statement::Unspill { to: id, held } =
            statement
        {
            self.threads(held);
            self.floats(*id);
        } else if let Statement::Load {
            to, access, width, ..
        } = statement
        {
            self.access(access, false);
            if let Some(layout) = self.floats(*to) {
                self.width(*width, access.dtype, layout);
            }
        } else if let Statement::Store(store) = statement {
            self.store(store);
        } else if let Statement::Copy(copy) = statement {
            self.copy(copy);
        } else if let Statement::PrefetchBoxes(regions) = statement {
            for id in regions {
                let region = self.machine.regions.get(id.0 as usize);
                if region.is_none_or(|r| r.boxes.is_none()) {
                    self.say(format!("s{} is made of no boxes", id.0));
                }
            }
        } else if let Statement::Prefetch { access, .. } = statement {
            self.access(access, false);
        } else if let Statement::CopyBoxes(ring) = statement {
            self.open_ring(*ring);
            let regions = self.machine.rings.get(ring.0 as usize).map(|r| &r.regions);
            for id in regions.into_iter().flatten() {
                if self.region(*id).is_some_and(|r| r.boxes.is_none()) {
                    self.say(format!("nothing says in which boxes s{} is copied", id.0));
                }
            }
        } else if let Statement::Clear(region) = statement {
            self.region(*region);
        } else if let Statement::Publish {
            region,
            from,
            layout,
            ..
        } = statement
        {
            self.threads(layout);
            self.lies_in(*from, layout);
            // What is not written may have been cleared before.
            if !self.cleared.contains(region) {
                self.covers(*region, layout);
            }
        } else if let Statement::Fetch { to, region, stage } = statement {
            self.floats(*to);
            self.stage(*region, *stage);
        } else if let Statement::Multiply(multiply) = statement {
            self.multiply(multiply);
        } else if let Statement::Outer(outer) = statement {
            self.outer(outer);
        } else if let Statement::Split(split) = statement {
            self.split(split);
        } else if let Statement::Issue(issue) = statement {
            self.issue(issue);
        } else if let Statement::Pack { to, from, .. } = statement {
            self.floats(*from);
            if let Some(Holds::Floats(_) | Holds::Flag) = self.fragment(*to) {
                self.say(format!("f{} holds no rows", to.0));
            }
        } else if let Statement::StorePartial(partial) | Statement::ReducePartials(partial) =
            statement
        {
            self.floats(partial.fragment);
            if self.machine.block_group.is_none() {
                self.say("parts of blocks that are no block group");
            }
        }
    }

    fn map(&mut self, to: FragmentId, function: Function, args: &[Source]) {
        let wanted = match function {
            Function::Copy | Function::Tf32 | Function::Rest => 1,
            Function::ExpOfSum => 3,
            Function::Op(op) => op.arity(),
            Function::Bounded(bounded) => bounded.op().arity(),
        };
        if args.len() != wanted {
            self.say(format!(
                "{wanted} operands are expected, {} found",
                args.len()
            ));
        }
        self.all_lie_in(to, args);
    }

    fn all_lie_in(&mut self, to: FragmentId, sources: &[Source]) {
        if let Some(layout) = self.floats(to) {
            sources.iter().for_each(|s| self.lies_in(*s, layout));
        }
    }

    fn same(&mut self, x: FragmentId, y: FragmentId) {
        if let (Some(a), Some(b)) = (self.floats(x), self.floats(y))
            && a != b
        {
            self.say(format!("f{} is spread as {a}, f{} as {b}", x.0, y.0));
        }
    }

    fn reduce(&mut self, r: &Reduce) {
        self.threads(&r.from);
        r.factors.iter().for_each(|f| self.lies_in(*f, &r.from));
        if r.factors.is_empty() {
            self.say("nothing is reduced");
        }
        if let Some(to) = self.floats(r.to) {
            let kept = r.from.slice(&r.from.axes().minus(&r.axes)).distinct();
            if to.distinct() != kept {
                self.say(format!(
                    "the result is spread as {kept}, f{} as {to}",
                    r.to.0
                ));
            }
        }
        if let Some((digit, parts)) = r.parts
            && (r.from.registers.get(digit)).is_none_or(|f| {
                parts != PARTS || f.size < parts || f.axis.is_none_or(|a| !r.axes.contains(a))
            })
        {
            self.say(format!("no {parts} parts of digit {digit} of {}", r.from));
        }
    }

    fn scan(&mut self, scan: &Scan) {
        self.axis(scan.axis);
        self.all_lie_in(scan.to, &[scan.of]);
        if scan.of == Source::Fragment(scan.to) {
            self.say(format!("f{} is scanned into itself", scan.to.0));
        }
        if let Some(layout) = self.floats(scan.to)
            && layout.scan(scan.axis).is_none()
        {
            self.say(format!("{layout} is scanned, and no warp has all of it"));
        }
    }

    fn across(&mut self, a: &Across) {
        self.threads(&a.layout);
        if let Some(layout) = self.floats(a.fragment)
            && layout.register_count() != a.layout.register_count()
        {
            let id = a.fragment.0;
            self.say(format!("f{id} is spread as {layout}, not as {}", a.layout));
        }
    }

    fn width(&mut self, width: u64, dtype: Dtype, layout: &Layout) {
        let bytes = width.saturating_mul(dtype.bytes());
        if !width.is_power_of_two() || bytes > CHUNK {
            self.say(format!(
                "{bytes} bytes move together: powers of two to {CHUNK} can"
            ));
        } else if width > 1 && layout.registers.first().is_none_or(|f| f.size % width != 0) {
            self.say(format!("{width} elements move together of {layout}"));
        }
    }

    fn store(&mut self, store: &Store) {
        self.access(&store.access, true);
        self.threads(&store.held);
        self.lies_in(store.from, &store.held);
        let layout = match &store.gathered {
            Some(gathered) => &gathered.layout,
            None => &store.held,
        };
        self.width(store.width, store.access.dtype, layout);
    }

    fn copy(&mut self, copy: &Copy) {
        self.access(&copy.access, false);
        self.stage(copy.region, copy.stage);
        self.width(copy.width, copy.access.dtype, &copy.layout);
        let all = self.machine.threads_of(self.fills);
        let warps = (all.end - all.start) / LANES;
        for what in super::tables::spread(self.machine, &copy.layout, warps) {
            self.say(what);
        }
        if let Some(region) = self.machine.regions.get(copy.region.0 as usize) {
            // Threads that wait convert on the way.
            if copy.background && region.dtype != copy.access.dtype {
                self.say(format!(
                    "{} is copied to s{}, which holds {}",
                    copy.access.dtype.name(),
                    copy.region.0,
                    region.dtype.name()
                ));
            }
            if region.patch.is_empty() {
                self.covers(copy.region, &copy.layout);
            }
        }
    }

    /// Every element of a stage has a place in a layout.
    fn covers(&mut self, id: RegionId, layout: &Layout) {
        let Some(region) = self.region(id) else {
            return;
        };
        for (axis, size, _) in &region.axes {
            let own = layout.cover(*axis);
            if own < *size {
                let axis = axis.0;
                self.say(format!(
                    "{layout} covers {own} along axis {axis}, of which s{} has {size}",
                    id.0
                ));
            }
        }
    }

    fn placed(&mut self, row: &AtomRow, id: RegionId) {
        if let Some(region) = self.region(id)
            && region.dtype != row.operand
        {
            let held = region.dtype.name();
            self.say(format!("{row} reads s{}, which holds {held}", id.0));
        }
    }

    /// Accumulators have so many registers.
    fn accumulators(&mut self, id: FragmentId, wanted: u64) {
        if let Some(layout) = self.floats(id)
            && layout.register_count() != wanted
        {
            let own = layout.register_count();
            self.say(format!(
                "{wanted} accumulators a thread, f{} has {own}",
                id.0
            ));
        }
    }

    fn multiply(&mut self, m: &Multiply) {
        if m.row.instruction.scope != Scope::Warp {
            self.say(format!("{} is no instruction of single warps", m.row));
        }
        let [wm, wn] = self.machine.warps;
        let [rows, columns, depth] = m.spaces.each_ref().map(|s| s.total);
        let units = [ROWS * wm, 2 * COLUMNS * wn, ROWS];
        for (total, unit) in [rows, columns, depth].into_iter().zip(units) {
            if total == 0 || !total.is_multiple_of(unit) {
                self.say(format!("{total} coordinates in units of {unit}"));
                return;
            }
        }
        self.accumulators(m.into, (rows / wm).saturating_mul(columns / wn) / LANES);
        for (side, input) in m.inputs.into_iter().enumerate() {
            match input {
                Input::Region(id, stage) => {
                    self.placed(m.row, id);
                    self.stage(id, stage);
                }
                Input::Fragment(id) if side == 0 && m.row.instruction.rows.held().is_some() => {
                    self.accumulators(id, (rows / wm).saturating_mul(depth) / LANES);
                }
                Input::Fragment(id) => {
                    self.say(format!("{} does not read f{} from registers", m.row, id.0));
                }
            }
        }
    }

    fn outer(&mut self, outer: &Outer) {
        let into = self.floats(outer.into);
        for ((id, stage), part) in outer.inputs.into_iter().zip(&outer.parts) {
            self.stage(id, stage);
            if let Some(into) = into
                && *part != into.slice(&part.axes())
            {
                self.say(format!("{part} is no part of {into}"));
            }
        }
        let summed: AxisSet = outer.depth.iter().map(|(a, _)| *a).collect();
        summed.iter().for_each(|a: AxisId| self.axis(a));
    }

    fn split(&mut self, split: &Split) {
        self.stage(split.from, split.stage);
        for id in split.to {
            self.stage(id, split.into);
            if let Some(region) = self.region(id)
                && region.swizzle.is_none_or(|s| !s.depth)
            {
                self.say(format!("s{} has no lines along the depth", id.0));
            }
        }
        for id in [split.from].into_iter().chain(split.to) {
            if self.region(id).is_some_and(|r| r.dtype != Dtype::F32) {
                self.say(format!("s{} holds no f32", id.0));
            }
        }
    }

    fn issue(&mut self, issue: &Issue) {
        let row = issue.row;
        if row.instruction.scope != Scope::Warpgroup {
            self.say(format!("{row} is no instruction of warpgroups"));
        }
        let [atoms, chunks, steps] = issue.counts;
        let columns = issue.columns;
        if atoms == 0 || chunks == 0 || steps == 0 {
            self.say("no instruction at all");
        }
        if columns == 0 || !columns.is_multiple_of(COLUMNS) || columns > MOST_COLUMNS {
            let most = MOST_COLUMNS;
            self.say(format!(
                "{columns} columns: multiples of {COLUMNS} to {most} are possible"
            ));
        }
        if issue.groups == 0 || !self.machine.groups().is_multiple_of(issue.groups.max(1)) {
            let all = self.machine.groups();
            self.say(format!(
                "{} of {all} groups of four warps along the rows",
                issue.groups
            ));
        }
        let chunks = chunks.saturating_mul(columns) / 2;
        self.accumulators(issue.into, atoms.saturating_mul(chunks));
        self.swizzle_atoms(row, &issue.b);
        match (&issue.a, row.instruction.rows) {
            (Rows::SwizzleAtoms(_), Home::Registers(_)) => {
                self.say(format!("{row} reads rows from registers alone"));
            }
            (Rows::SwizzleAtoms(a), Home::Shared | Home::Either(_)) => self.swizzle_atoms(row, a),
            (Rows::Fragment(_), Home::Shared) => {
                self.say(format!("{row} reads rows from shared memory alone"));
            }
            (Rows::Fragment(id), Home::Either(_) | Home::Registers(_)) => {
                let wanted = atoms.saturating_mul(steps).saturating_mul(4);
                let own = self.machine.fragments.get(id.0 as usize);
                let own = own.map_or(wanted, |f| f.registers());
                if own != wanted {
                    self.say(format!("{wanted} registers of rows, f{} has {own}", id.0));
                }
            }
        }
    }

    fn swizzle_atoms(&mut self, row: &AtomRow, swizzle_atoms: &SwizzleAtoms) {
        self.placed(row, swizzle_atoms.region);
        self.stage(swizzle_atoms.region, swizzle_atoms.stage);
        if let Some(region) = self.region(swizzle_atoms.region)
            && region.swizzle != Some(swizzle_atoms.swizzle)
        {
            let id = swizzle_atoms.region.0;
            self.say(format!("s{id} is not permuted as {row} reads it"));
        }
    }
}

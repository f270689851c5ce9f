//! How each value is spread over the threads.

use super::{Method, Operand, Plan};
use crate::access::Access;
use crate::atoms::Rows;
use crate::layout::Layout;
use ir::{AxisId, AxisSet, Dtype, Loop, Reject, Statement, TileOp, ValueId};

/// So many times as many sectors as there are elements for are too many to write: a tile is turned before that.
pub(crate) const WASTED: f64 = 4.0;
/// What turning a register costs the L1 cache, with what it is written by then.
const TURNED: u64 = 6;

/// Axes with what a tile has of them, fastest first, and how many coordinates of the first one a thread has side by side.
type Way = (Vec<(AxisId, u64)>, u64);

impl Plan<'_> {
    pub(super) fn resolve(&mut self, body: &[Statement]) -> Result<(), Reject> {
        for statement in body {
            match statement {
                Statement::Let(v) => self.resolve_value(*v)?,
                Statement::Loop(l) => self.resolve_loop(l)?,
                Statement::Store { value, .. } => {
                    self.settle(*value);
                }
            }
        }
        Ok(())
    }

    fn resolve_loop(&mut self, l: &Loop) -> Result<(), Reject> {
        self.resolve(&l.body)?;
        for c in &l.carries {
            if self.layouts[c.phi.index()].is_none() {
                let layout = self.settle(c.next);
                self.layouts[c.phi.index()] = Some(layout);
            }
            let layout = self.layouts[c.phi.index()].clone().unwrap_or_default();
            self.demand(c.next, &layout);
            self.layouts[c.result.index()] = Some(layout);
        }
        Ok(())
    }

    fn resolve_value(&mut self, v: ValueId) -> Result<(), Reject> {
        match self.op(v) {
            TileOp::Load { .. }
            | TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => {}
            TileOp::Map(_, args) => {
                if let Some((contraction, addend)) = self.fused.get(&v).copied() {
                    let layout = self.settle(contraction);
                    self.layouts[v.index()] = Some(layout.clone());
                    self.demand(addend, &layout.distinct());
                } else if let Some(layout) = args
                    .iter()
                    .filter(|a| self.axes(**a) == self.axes(v) && self.load_dtype(**a).is_none())
                    .find_map(|a| self.layouts[a.index()].clone())
                {
                    self.demand(v, &layout.distinct());
                }
            }
            TileOp::Reduce { value, axes, .. } => {
                let layout = self.settle(*value);
                self.layouts[v.index()] = Some(layout.slice(&self.axes(*value).minus(axes)));
            }
            TileOp::Scan { value, axis, .. } => {
                let own = self.settle(*value).distinct();
                self.layouts[v.index()] = Some(match own.scan(*axis) {
                    Some(_) => own,
                    None => self.fresh(self.axes(v)).slice(self.axes(v)),
                });
            }
            TileOp::Contract { .. } => self.resolve_contraction(v)?,
        }
        Ok(())
    }

    fn resolve_contraction(&mut self, v: ValueId) -> Result<(), Reject> {
        let mut c = self.contractions[&v].clone();
        let [wm, wn] = self.warps();
        if let Method::Product = c.method {
            let layout = self.settle(c.values[0]);
            let other = layout.slice(self.axes(c.values[1]));
            self.demand(c.values[1], &other);
            self.layouts[v.index()] = Some(layout.slice(&self.axes(v).clone()));
            c.accumulator = layout.slice(self.axes(v));
            c.operands = vec![Operand::Registers(layout), Operand::Registers(other)];
            self.contractions.insert(v, c);
            return Ok(());
        }
        let grouped = matches!(c.method, Method::Matrix(row) if row.is_grouped());
        if !grouped && !wm.is_power_of_two() {
            return Err(Reject::Schedule(format!(
                "{wm} warps along the rows of a contraction by single warps: powers of two are possible"
            )));
        }
        for side in 0..2 {
            let value = c.values[side];
            let loaded = self.load_dtype(value).is_some();
            // What stays the same while a loop runs is kept in shared memory: registers are dearer there.
            let steady = self.loop_of[value.index()] != self.loop_of[v.index()];
            if let (Method::Matrix(row), false, 0) = (c.method, loaded || steady, side)
                && let Rows::Either(held) = row.instruction.rows
            {
                let fragment = (held.layout)(&c.spaces[0], &c.spaces[2], (wm, wn));
                if wn == 1 {
                    self.demand(value, &fragment);
                }
                let held = self.layouts[value.index()].clone();
                if held.as_ref() == Some(&fragment) {
                    c.operands.push(Operand::Registers(fragment));
                    continue;
                }
            }
            if !loaded {
                self.settle(value);
            }
            let tile = self.shared_tile(&c, side)?;
            let same = self.tiles.iter().position(|t| {
                t.value == tile.value
                    && t.dtype == tile.dtype
                    && t.axes == tile.axes
                    && t.swizzle == tile.swizzle
            });
            c.operands
                .push(Operand::Tile(same.unwrap_or(self.tiles.len())));
            if same.is_none() {
                self.tiles.push(tile);
            }
        }
        if let (Method::Matrix(row), Some(Operand::Tile(columns))) = (c.method, c.operands.get(1))
            && row.has_halves()
        {
            let half = self.half_tile(&c, &self.tiles[*columns], self.loop_of[v.index()]);
            let first = self.tiles.len();
            self.tiles.extend([half.clone(), half]);
            c.halves = Some([first, first + 1]);
        }
        self.contractions.insert(v, c);
        Ok(())
    }

    /// A value's layout, decided now if it was not.
    pub(super) fn settle(&mut self, v: ValueId) -> Layout {
        if self.layouts[v.index()].is_none() {
            let layout = self.default_layout(self.axes(v));
            self.demand(v, &layout);
            return layout;
        }
        self.layouts[v.index()].clone().unwrap_or_default()
    }

    /// Gives a value without layout this one, and its operands the slices of it.
    pub(super) fn demand(&mut self, v: ValueId, layout: &Layout) {
        if self.layouts[v.index()].is_some() {
            return;
        }
        match self.op(v) {
            TileOp::Load { .. } | TileOp::Phi { .. } | TileOp::Constant(_) | TileOp::Iota(_) => {
                self.layouts[v.index()] = Some(layout.clone());
            }
            TileOp::Map(_, args) => {
                self.layouts[v.index()] = Some(layout.clone());
                for a in args {
                    let part = layout.slice(self.axes(*a));
                    self.demand(*a, &part);
                }
            }
            TileOp::Reduce { .. }
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Final { .. } => {}
        }
    }

    /// The layout for a value with these axes that no operand decides.
    pub(super) fn default_layout(&mut self, axes: &AxisSet) -> Layout {
        let wanted: AxisSet = axes.iter().filter(|a| self.kernel.tile(*a) > 1).collect();
        if let Some(known) = self.canonical.iter().find(|l| wanted.is_subset(&l.axes())) {
            return known.slice(axes);
        }
        let layout = self.fresh(axes);
        self.canonical.push(layout.clone());
        layout.slice(axes)
    }

    /// A blocked layout for the largest value that has all of `axes`.
    pub(super) fn fresh(&self, axes: &AxisSet) -> Layout {
        let widest = (0..self.kernel.values.len())
            .map(|i| ValueId(i as u32))
            .filter(|v| axes.is_subset(self.axes(*v)) && !self.only_contracted(*v))
            .map(|v| self.axes(v))
            .fold(axes, |best, set| {
                if self.kernel.volume(set) > self.kernel.volume(best) {
                    set
                } else {
                    best
                }
            });
        let bytes = self
            .kernel
            .values
            .iter()
            .enumerate()
            .filter(|(_, x)| x.axes.intersects(widest))
            .filter_map(|(i, _)| self.load_dtype(ValueId(i as u32)))
            .map(Dtype::bytes)
            .min()
            .unwrap_or(4);
        let sizes: Vec<(AxisId, u64)> = self
            .ordered(widest)
            .into_iter()
            .filter(|a| a.1 > 1)
            .collect();
        let total: u64 = sizes.iter().map(|a| a.1).product();
        let threads = self.threads();
        let most = (total / threads).max(1).next_power_of_two().min(16 / bytes);
        let [rows, columns] = self.warps();
        let scanned = self.scan_axes();
        let layout =
            |(sizes, run): &Way| Layout::blocked_within(sizes, *run, rows, columns, &scanned);
        let orders = std::iter::once(sizes.clone()).chain(self.orders_stored(&sizes));
        let ways = orders.flat_map(|order| {
            let runs = (0..=most.trailing_zeros()).rev();
            runs.map(move |n| (order.clone(), 1 << n))
        });
        let cheapest = ways.min_by_key(|way| self.passes_through_l1(&layout(way), &way.0));
        layout(&cheapest.unwrap_or((sizes, most)))
    }

    /// The same axes as they lie in each buffer that is written, fastest first, where that is another order.
    fn orders_stored(&self, sizes: &[(AxisId, u64)]) -> Vec<Vec<(AxisId, u64)>> {
        let mut orders = Vec::new();
        for (buffer, value) in ir::tile::stores(&self.kernel.body) {
            let Ok(access) = Access::store(self.tile, buffer, &self.kernel.value(value).axes)
            else {
                continue;
            };
            let step = |axis: AxisId| access.coefficients.get(&axis).map(|c| c.unsigned_abs());
            if sizes.iter().all(|(axis, _)| step(*axis).is_some()) {
                let mut order = sizes.to_vec();
                order.sort_by_key(|(axis, _)| step(*axis));
                if order != *sizes && !orders.contains(&order) {
                    orders.push(order);
                }
            }
        }
        orders
    }

    /// The axes along which values are scanned: each warp has all of their coordinates.
    fn scan_axes(&self) -> AxisSet {
        let values = self.kernel.values.iter();
        values.filter_map(|value| value.op.scan_axis()).collect()
    }

    /// What the accesses of tiles that are spread like this cost the L1 cache: instructions, and the lines that each of them touches. Several elements at once
    /// are fewer instructions; of elements that lie apart, or begin anywhere, neighbouring threads have to have neighbouring ones.
    fn passes_through_l1(&self, layout: &Layout, sizes: &[(AxisId, u64)]) -> u64 {
        let Some((fastest, _)) = sizes.first() else {
            return 0;
        };
        let loads = (0..self.kernel.values.len()).map(|i| ValueId(i as u32));
        let loads = loads.filter(|v| !self.only_contracted(*v));
        let loads = loads.filter_map(|v| self.access(v).ok().flatten());
        let stores = ir::tile::stores(&self.kernel.body).into_iter();
        let stores = stores.filter_map(|(buffer, value)| {
            Access::store(self.tile, buffer, &self.kernel.value(value).axes).ok()
        });
        // What is turned before it is written goes through shared memory and back.
        let turns = self.contractions.is_empty();
        let all = (loads.map(|access| (access, false))).chain(stores.map(|a| (a, turns)));
        let cost = all.map(|(access, turns)| {
            let held = layout.slice(&access.coefficients.keys().copied().collect());
            let most = held.vector(*fastest).min(16 / access.dtype.bytes());
            let at_once = access.vector(&self.cut, *fastest, most);
            let count = held.register_count();
            let own = count.div_ceil(at_once) * (1 + access.lines(&held, at_once));
            match turns && access.waste(&held, at_once) >= WASTED {
                true => own.min(count * TURNED),
                false => own,
            }
        });
        cost.sum()
    }
}

//! Where a block, a tile and an element of it are: coordinates as text.

use super::{Digits, Emitter, identifier, lengthens, sum, times};
use crate::cuda::{Node, line};
use crate::layout::Layout;
use ir::{AxisId, Reject, Role};

impl Emitter<'_> {
    /// The block's coordinates. Tiles that let a loop run longer start first; those of a team start one after another.
    pub(super) fn grid(&mut self) -> Result<(Vec<Node>, u32), Reject> {
        let mut blocks: u64 = 1;
        let mut nodes = Vec::new();
        let in_team = |a: &&AxisId| self.team.as_ref().is_some_and(|t| t.axes.contains(**a));
        let (team, others): (Vec<&AxisId>, Vec<&AxisId>) =
            self.kernel.grid.iter().rev().partition(in_team);
        if team.is_empty() {
            nodes.extend(self.bands());
        }
        for axis in team.into_iter().chain(others) {
            let (tile, extent) = (self.kernel.tile(*axis), self.tile.extent(*axis));
            let count = extent.div_ceil(tile);
            blocks = blocks
                .checked_mul(count)
                .filter(|b| *b < 1 << 31)
                .ok_or_else(|| Reject::Grid("more than 2^31 blocks".into()))?;
            let name = self.base(*axis);
            let digit = if lengthens(&self.kernel.body, *axis) {
                format!("({} - block % {count})", count - 1)
            } else {
                format!("(block % {count})")
            };
            nodes.push(line(format!(
                "const int {name} = {};",
                times(tile as i64, &digit)
            )));
            nodes.push(line(format!("(void){name};")));
            nodes.push(line(format!("block /= {count};")));
            nodes.extend(self.limit_line(*axis));
        }
        let mut all = self.block_number(blocks);
        all.extend(nodes);
        Ok((all, blocks as u32))
    }

    /// Renumbers blocks, so that some tiles of the grid's second fastest axis are gone over before the fastest one moves on.
    pub(super) fn bands(&self) -> Vec<Node> {
        let count = |a: &AxisId| self.tile.extent(*a).div_ceil(self.kernel.tile(*a));
        let counts = self.kernel.grid.iter().rev().map(count);
        let moving: Vec<u64> = counts.filter(|n| *n > 1).take(2).collect();
        let (band, &[fast, slow]) = (u64::from(self.schedule.band), moving.as_slice()) else {
            return Vec::new();
        };
        let (height, size) = (band.min(slow), fast.saturating_mul(slow));
        if height < 2 {
            return Vec::new();
        }
        let width = height * fast;
        let scope = vec![
            line(format!(
                "const int at = block % {size}, from = at / {width} * {height}, rest = at % {width};"
            )),
            line(format!(
                "const int height = tw_min({height}, {slow} - from);"
            )),
            line(format!(
                "block += (from + rest % height) * {fast} + rest / height - at;"
            )),
        ];
        vec![Node::Scope(scope)]
    }

    pub(super) fn limit_line(&self, axis: AxisId) -> Option<Node> {
        let (tile, extent) = (self.kernel.tile(axis), self.tile.extent(axis));
        self.partial(axis).then(|| {
            line(format!(
                "const int {} = (int)tw_min({tile}, {extent} - {});",
                self.limit_name(axis),
                self.base(axis)
            ))
        })
    }

    /// Whether the last tile along an axis is smaller.
    pub(super) fn partial(&self, axis: AxisId) -> bool {
        !self
            .tile
            .extent(axis)
            .is_multiple_of(self.kernel.tile(axis))
    }

    pub(super) fn axis_name(&self, axis: AxisId) -> String {
        format!(
            "{}_{}",
            identifier(&self.tile.axes[axis.index()].name),
            axis.0
        )
    }

    pub(super) fn base(&self, axis: AxisId) -> String {
        format!("b_{}", self.axis_name(axis))
    }

    pub(super) fn limit_name(&self, axis: AxisId) -> String {
        format!("e_{}", self.axis_name(axis))
    }

    /// How many coordinates of the current tile exist.
    pub(super) fn limit(&self, axis: AxisId) -> String {
        if self.partial(axis) {
            self.limit_name(axis)
        } else {
            self.kernel.tile(axis).to_string()
        }
    }

    pub(super) fn thread_name(&self, id: usize, axis: AxisId) -> String {
        format!("t{id}_{}", self.axis_name(axis))
    }

    /// The coordinate in the tile that a thread's register 0 has, as a name; none when it is 0 for all.
    pub(super) fn thread_part(&mut self, layout: &Layout, axis: AxisId) -> Option<String> {
        let moves = layout
            .lanes
            .iter()
            .chain(&layout.warps)
            .any(|f| f.axis == Some(axis));
        if !moves {
            return None;
        }
        let key = Layout {
            registers: Vec::new(),
            lanes: layout.lanes.clone(),
            warps: layout.warps.clone(),
        };
        let id = match self.known.iter().position(|l| *l == key) {
            Some(id) => id,
            None => {
                self.known.push(key);
                self.known.len() - 1
            }
        };
        self.used.insert((id, axis));
        Some(self.thread_name(id, axis))
    }

    /// What the registers add to the coordinate along an axis, scaled.
    pub(super) fn register_part(
        layout: &Layout,
        axis: AxisId,
        digits: &Digits,
        scale: i64,
    ) -> Vec<String> {
        layout
            .registers
            .iter()
            .zip(digits)
            .filter(|(f, d)| f.axis == Some(axis) && d.as_str() != "0")
            .map(|(f, d)| times(f.stride as i64 * scale, d))
            .collect()
    }

    /// The coordinate in the tile.
    pub(super) fn local(&mut self, layout: &Layout, axis: AxisId, digits: &Digits) -> String {
        let mut terms: Vec<String> = self.thread_part(layout, axis).into_iter().collect();
        terms.extend(Self::register_part(layout, axis, digits, 1));
        sum(terms)
    }

    /// Where the tile starts along an axis; none where that is 0.
    pub(super) fn origin(&self, axis: AxisId) -> Option<String> {
        match self.kernel.axes[&axis].role {
            Role::Whole => None,
            Role::Grid | Role::Loop => Some(self.base(axis)),
        }
    }

    /// The global coordinate.
    pub(super) fn global(&mut self, layout: &Layout, axis: AxisId, digits: &Digits) -> String {
        let mut terms: Vec<String> = self.origin(axis).into_iter().collect();
        let local = self.local(layout, axis, digits);
        if local != "0" {
            terms.push(local);
        }
        sum(terms)
    }

    /// Whether some elements of a layout have no coordinate along an axis.
    pub(super) fn overhangs(&self, layout: &Layout, axis: AxisId) -> bool {
        self.partial(axis) || layout.cover(axis) > self.kernel.tile(axis)
    }

    /// Conditions under which an element's coordinates along `axes` exist; empty when they always do.
    pub(super) fn exists(
        &mut self,
        layout: &Layout,
        axes: impl IntoIterator<Item = AxisId>,
        digits: &Digits,
    ) -> Vec<String> {
        let mut conditions = Vec::new();
        for axis in axes {
            if self.kernel.tile(axis) > 1 && self.overhangs(layout, axis) {
                let local = self.local(layout, axis, digits);
                conditions.push(format!("{local} < {}", self.limit(axis)));
            }
        }
        conditions
    }
}

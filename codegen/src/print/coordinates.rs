//! Where a block, a tile and an element of it are: coordinates as text.

use super::text::{identifier, sum, times};
use super::{Digits, Printer};
use crate::cuda::{Node, line};
use crate::layout::{Factor, Layout};
use crate::machine::{At, Axis, LoopId};
use ir::{AxisId, Bound, Corner, Dtype, Entry};

impl Printer<'_> {
    fn axis(&self, axis: AxisId) -> &Axis {
        &self.machine.axes[&axis]
    }

    fn axis_name(&self, axis: AxisId) -> String {
        format!("{}_{}", identifier(&self.axis(axis).name), axis.0)
    }

    pub(super) fn base(&self, axis: AxisId) -> String {
        format!("b_{}", self.axis_name(axis))
    }

    fn limit_name(&self, axis: AxisId) -> String {
        format!("e_{}", self.axis_name(axis))
    }

    pub(super) fn limit_line(&self, axis: AxisId) -> Option<Node> {
        let own = self.axis(axis);
        own.is_partial().then(|| {
            line(format!(
                "const int {} = (int)tw_min({}, {} - {});",
                self.limit_name(axis),
                own.tile,
                own.extent,
                self.base(axis)
            ))
        })
    }

    /// How many coordinates of the current tile exist.
    pub(super) fn limit(&self, axis: AxisId) -> String {
        match self.axis(axis).is_partial() {
            true => self.limit_name(axis),
            false => self.axis(axis).tile.to_string(),
        }
    }

    fn thread_name(&self, id: usize, axis: AxisId) -> String {
        format!("t{id}_{}", self.axis_name(axis))
    }

    /// The coordinate in the tile that a thread's register 0 has, as a name; none when it is 0 for all.
    pub(super) fn thread_part(&mut self, layout: &Layout, axis: AxisId) -> Option<String> {
        let moves = layout
            .lanes
            .iter()
            .chain(&layout.warps)
            .chain(&layout.blocks)
            .any(|f| f.axis == Some(axis));
        if !moves {
            return None;
        }
        let key = Layout {
            registers: Vec::new(),
            lanes: layout.lanes.clone(),
            warps: layout.warps.clone(),
            blocks: layout.blocks.clone(),
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

    /// The lines that give all such names their values.
    pub(super) fn thread_parts(&self) -> Vec<Node> {
        let part = |factors: &[Factor], axis: AxisId, name: &str| -> Vec<String> {
            let mut bit = 0;
            let mut terms = Vec::new();
            for f in factors {
                if f.axis == Some(axis) {
                    // What is no power of two is the last digit.
                    let digit = match f.size.is_power_of_two() {
                        true => format!("(({name} >> {bit}) & {})", f.size - 1),
                        false => format!("({name} >> {bit})"),
                    };
                    terms.push(times(f.stride as i64, &digit));
                }
                bit += f.size.trailing_zeros();
            }
            terms
        };
        let used = self.used.iter().map(|(id, axis)| {
            let layout = &self.known[*id];
            let mut terms = part(&layout.lanes, *axis, "lane");
            terms.extend(part(&layout.warps, *axis, "warp"));
            terms.extend(part(&layout.blocks, *axis, "rank"));
            line(format!(
                "const int {} = {};",
                self.thread_name(*id, *axis),
                sum(terms)
            ))
        });
        used.collect()
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
        (!self.axis(axis).whole).then(|| self.base(axis))
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

    /// Conditions under which an element's coordinates along `axes` exist; empty when they always do.
    pub(super) fn exists(
        &mut self,
        layout: &Layout,
        axes: impl IntoIterator<Item = AxisId>,
        digits: &Digits,
    ) -> Vec<String> {
        let mut conditions = Vec::new();
        for axis in axes {
            if self.axis(axis).tile > 1 && self.machine.overhangs(layout, axis) {
                let local = self.local(layout, axis, digits);
                conditions.push(format!("{local} < {}", self.limit(axis)));
            }
        }
        conditions
    }

    /// The condition under which all elements' coordinates along `axes` exist, where that differs from tile to tile.
    pub(super) fn wholeness(&self, layout: &Layout, axes: &[AxisId]) -> Option<String> {
        let last = self.machine.only_last(layout, axes)?;
        let conditions = last
            .into_iter()
            .map(|a| format!("{} == {}", self.limit(a), self.axis(a).tile));
        Some(conditions.collect::<Vec<_>>().join(" && "))
    }

    /// How far a loop goes.
    pub(super) fn range(
        &self,
        number: LoopId,
        axis: AxisId,
        low: &[Bound],
        high: &[Bound],
    ) -> [Node; 2] {
        let Axis { extent, tile, .. } = *self.axis(axis);
        let mut from = "0".to_string();
        for b in low {
            from = format!("tw_max({from}, {})", self.bound(b));
        }
        let mut to = extent.to_string();
        for b in high {
            to = format!("tw_min({to}, {})", self.bound(b));
        }
        [
            line(format!("const int first{number} = (int)({from} / {tile});")),
            line(format!(
                "const int last{number} = (int)((tw_max(0, {to}) + {}) / {tile});",
                tile - 1
            )),
        ]
    }

    fn bound(&self, bound: &Bound) -> String {
        let mut terms: Vec<String> = bound
            .terms
            .iter()
            .map(|(c, axis, corner)| {
                let base = self.origin(*axis).unwrap_or_else(|| "0".into());
                let at = match corner {
                    Corner::First => base,
                    Corner::Last => format!("({base} + {} - 1)", self.limit(*axis)),
                };
                format!("({c}ll) * {at}")
            })
            .collect();
        for (c, entry) in &bound.entries {
            let at = self.entry(entry);
            let read = match self.machine.buffers[&entry.buffer].dtype {
                Dtype::F32 => "tw_real_entry",
                Dtype::F16 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::Bool => "tw_entry",
            };
            let pointer = self.pointer(entry.buffer);
            terms.push(format!("({c}ll) * {read}({pointer}[{at}])"));
        }
        terms.push(format!("({}ll)", bound.offset));
        let all = sum(terms);
        if bound.divisor == 1 {
            format!("({all})")
        } else {
            format!("tw_floor_div({all}, {})", bound.divisor)
        }
    }

    /// The index of an element that a bound reads.
    fn entry(&self, entry: &Entry) -> String {
        entry.axes.iter().fold("0".to_string(), |slower, axis| {
            let base = self.origin(*axis).unwrap_or_else(|| "0".into());
            match slower.as_str() {
                "0" => base,
                slower => format!("({slower}) * {}ll + {base}", self.axis(*axis).extent),
            }
        })
    }

    /// Where the tile of an iteration is.
    pub(super) fn tile(&self, axis: AxisId, at: At) -> Vec<Node> {
        let at = match at {
            At::First(n) => format!("first{n}"),
            At::FirstAnd(n, more) => format!("(first{n} + {more})"),
            At::Now(n) => format!("n{n}"),
            At::NowAnd(n, more) => format!("(n{n} + {more})"),
        };
        let base = self.base(axis);
        let mut nodes = vec![
            line(format!(
                "const int {base} = {} * {at};",
                self.axis(axis).tile
            )),
            line(format!("(void){base};")),
        ];
        nodes.extend(self.limit_line(axis));
        nodes
    }
}

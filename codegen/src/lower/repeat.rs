//! Loops, the rings that feed them, and what is read ahead of an iteration.

use super::producer::Around;
use super::{BUSY, Emitter, Family, Source, line, literal, sum};
use crate::cuda::{self, Node, Unroll};
use crate::plan::Folded;
use ir::{AxisId, Bound, Corner, Loop, Reject, Statement, TileOp, ValueId};
use std::collections::BTreeMap;

/// Registers of a thread that may hold what the next iteration reads.
const AHEAD: u64 = 16;
/// Registers of a thread that a loop may carry beside them: where it carries more, there may be no room.
const CARRIED: u64 = 32;

impl Emitter<'_> {
    pub(super) fn repeat(&mut self, l: &Loop, out: &mut Vec<Node>) -> Result<(), Reject> {
        let number = self.loops;
        self.loops += 1;
        for c in &l.carries {
            let layout = self.layout(c.phi);
            let name = self.array(c.phi, &layout, out);
            let init = match self.plan.op(c.phi) {
                TileOp::Phi { init, .. } => literal(*init),
                TileOp::Load { .. }
                | TileOp::Constant(_)
                | TileOp::Iota(_)
                | TileOp::Map(..)
                | TileOp::Reduce { .. }
                | TileOp::Contract { .. }
                | TileOp::Final { .. } => {
                    return Err(Reject::Schedule("a carry without phi".into()));
                }
            };
            out.extend(self.registers(&layout, 1, |_, d| {
                vec![line(format!(
                    "{name}[{}] = {init};",
                    Self::own_index(&layout, d)
                ))]
            }));
            self.bind(c.phi, &layout, &name);
        }
        let folded: Vec<Option<Folded>> = l
            .carries
            .iter()
            .map(|c| self.plan.folded(number, c))
            .collect();
        self.partial_sums
            .extend(folded.iter().flatten().map(|f| f.reduction));
        let axis = l.axis;
        let (tile, extent) = (self.kernel.tile(axis), self.tile.extent(axis));
        let (count, first, last) = (
            format!("n{number}"),
            format!("first{number}"),
            format!("last{number}"),
        );
        let mut low = "0".to_string();
        for b in &l.low {
            low = format!("tw_max({low}, {})", self.bound(b));
        }
        let mut high = extent.to_string();
        for b in &l.high {
            high = format!("tw_min({high}, {})", self.bound(b));
        }
        let fed = (self.plan.produced).filter(|n| self.plan.outermost(*n) == number);
        if let Some(fed) = fed.filter(|_| !self.schedule.persistent) {
            self.open_rings(fed, out);
        }
        let bounds = out.len();
        out.push(line(format!("const int {first} = (int)({low} / {tile});")));
        out.push(line(format!(
            "const int {last} = (int)((tw_max(0, {high}) + {}) / {tile});",
            tile - 1
        )));
        let ring: Vec<usize> = (0..self.plan.tiles.len())
            .filter(|t| self.plan.tiles[*t].loaded && self.plan.tiles[*t].in_loop == Some(number))
            .collect();
        let stages = u64::from(self.schedule.stages);
        let produced = self.plan.produced == Some(number);
        let here = |me: &Self, at: &str| -> Vec<Node> {
            let mut nodes = vec![line(format!(
                "const int {} = {tile} * {at};",
                me.base(axis)
            ))];
            nodes.push(line(format!("(void){};", me.base(axis))));
            nodes.extend(me.limit_line(axis));
            nodes
        };
        let mut body = here(self, &count);
        let slot = format!("slot{number}");
        if ring.is_empty() || stages == 1 || produced {
            self.settle_copies(out);
        }
        let delays = self.delays(number);
        self.prepare(&delays, out)?;
        // Slots may still be read: by the iteration before of a loop around this one, or by another loop in the same space.
        if number > 0 && !ring.is_empty() && !produced {
            out.push(self.barrier());
        }
        if !ring.is_empty() {
            self.families.insert(Family::Async);
        }
        let bounds: Vec<Node> = out[bounds..bounds + 2].to_vec();
        if produced {
            self.produce(number, &bounds, &|me| here(me, &count))?;
            self.open_turns(number, out);
            self.await_tiles(number, &mut body);
        } else if !ring.is_empty() && stages > 1 {
            out.push(line(format!("int {slot} = 0;")));
            if ring.iter().any(|t| self.late(*t)) {
                out.push(line(format!("int late{number} = 0;")));
            }
            let fill_first = |me: &mut Self, ahead: u64, tiles: &[usize]| {
                let mut then = here(me, &format!("({first} + {ahead})"));
                for t in tiles {
                    then.extend(me.fill(*t, &ahead.to_string())?);
                }
                Ok::<_, Reject>(Node::If {
                    condition: format!("{first} + {ahead} < {last}"),
                    then,
                    otherwise: Vec::new(),
                })
            };
            let mut left = ring.clone();
            if let Some(delayed) = self.delayed.take() {
                let early: Vec<usize>;
                (left, early) = ring.iter().partition(|t| self.is_filled_late(**t));
                for ahead in 0..stages - 1 {
                    out.push(fill_first(self, ahead, &early)?);
                }
                self.wait_before(out);
                out.extend(self.statements(&delayed)?);
            }
            for ahead in 0..stages - 1 {
                if !left.is_empty() {
                    out.push(fill_first(self, ahead, &left)?);
                }
                out.push(line("tw_copy_commit();"));
            }
            body.push(line(format!("tw_copy_wait<{}>();", stages - 2)));
            body.extend(self.proxy_fence());
            body.push(self.barrier());
            let next = format!("({count} + {})", stages - 1);
            let mut fill = here(self, &next);
            let turn = |name: &str, into: &str, slots: u64| {
                let back = slots + 1 - stages;
                line(format!(
                    "const int {into} = {name} < {back} ? {name} + {} : {name} - {back};",
                    stages - 1
                ))
            };
            if ring.iter().any(|t| !self.late(*t)) {
                fill.push(turn(&slot, "into", stages));
            }
            if ring.iter().any(|t| self.late(*t)) {
                fill.push(turn(&format!("late{number}"), "into_late", stages + 1));
            }
            for t in &ring {
                let into = if self.late(*t) { "into_late" } else { "into" };
                fill.extend(self.fill(*t, into)?);
            }
            body.push(Node::If {
                condition: format!("{next} < {last}"),
                then: fill,
                otherwise: Vec::new(),
            });
            body.push(line("tw_copy_commit();"));
        } else if !ring.is_empty() {
            body.push(self.barrier());
            for t in &ring {
                body.extend(self.fill(*t, "0")?);
            }
            body.push(line("tw_copy_commit();"));
            body.push(line("tw_copy_wait<0>();"));
            body.extend(self.proxy_fence());
            body.push(self.barrier());
        }
        let pending = std::mem::replace(&mut self.pending, false);
        self.scopes.push(BTreeMap::new());
        if !ring.is_empty() && stages > 1 {
            for v in self.read_ahead(l) {
                let layout = self.layout(v).distinct();
                let (size, next) = (layout.register_count(), format!("next{}", self.arrays));
                let name = self.array(v, &layout, &mut body);
                let mut read = |at: &str| -> Result<Node, Reject> {
                    let mut then = here(self, at);
                    then.push(self.read_into(v, &layout, &next)?);
                    Ok(Node::If {
                        condition: format!("{at} < {last}"),
                        then,
                        otherwise: Vec::new(),
                    })
                };
                out.push(line(format!("float {next}[{size}];")));
                out.push(read(&first)?);
                let copy = line(format!("{name}[x] = {next}[x];"));
                body.push(cuda::unrolled("x", size, vec![copy]));
                body.push(read(&format!("({count} + 1)"))?);
                self.bind(v, &layout, &name);
            }
        }
        for c in &l.carries {
            self.publish(c.phi, &mut body)?;
        }
        if let Some(team) = &mut self.team {
            team.apart += u32::from(l.is_bounded_by(&team.axes));
        }
        self.around.push(Around {
            number,
            bounds,
            here: here(self, &count),
        });
        body.extend(self.statements(&l.body)?);
        self.around.pop();
        self.settle(&delays, &mut body);
        if let Some(team) = &mut self.team {
            team.apart -= u32::from(l.is_bounded_by(&team.axes));
        }
        for c in &l.carries {
            if delays.iter().any(|(_, d)| d.phi == c.phi) {
                continue;
            }
            let layout = self.layout(c.phi);
            let next = self.operand(c.next, &layout, &mut body)?;
            let Some(Source::Array { name, .. }) = self.find(c.phi, Some(&layout)) else {
                return Err(Reject::Schedule("a carry without registers".into()));
            };
            body.extend(self.registers(&layout, 1, |me, d| {
                let from = me.element(&next, &layout, d);
                vec![line(format!(
                    "{name}[{}] = {from};",
                    Self::own_index(&layout, d)
                ))]
            }));
        }
        if produced {
            self.give_back(number, &mut body);
        } else if !ring.is_empty() && stages > 1 {
            body.push(line(format!(
                "{slot} = {slot} == {} ? 0 : {slot} + 1;",
                stages - 1
            )));
            if ring.iter().any(|t| self.late(*t)) {
                body.push(line(format!(
                    "late{number} = late{number} == {stages} ? 0 : late{number} + 1;"
                )));
            }
        }
        self.scopes.pop();
        self.pending = pending;
        out.push(Node::For {
            variable: count,
            from: first,
            to: last,
            unroll: Unroll::By(1),
            body,
        });
        self.finish(&delays, out)?;
        if produced {
            self.give_back_last(number, out);
        }
        for (c, folded) in l.carries.iter().zip(&folded) {
            let layout = self.layout(c.phi);
            if let Some(Source::Array { name, .. }) = self.find(c.phi, Some(&layout)) {
                if let Some(f) = folded {
                    self.combine_threads(&name, f.op, &f.from, &f.axes, out);
                }
                self.bind(c.result, &layout, &name);
            }
            self.publish(c.result, out)?;
        }
        Ok(())
    }

    pub(super) fn wait_before(&mut self, out: &mut Vec<Node>) {
        out.push(line("tw_wait_before();"));
        self.waited = true;
    }

    /// Whether a tile is filled with what a kernel in front may still write.
    pub(super) fn is_filled_late(&self, t: usize) -> bool {
        let read = self.plan.op(self.plan.tiles[t].value).loaded();
        read.is_some_and(|buffer| self.is_late(buffer))
    }

    /// Where copies for the next loop may begin before the kernels in front are waited for: how many statements in front of the
    /// loop then come after them.
    pub(super) fn fills_first(&self, rest: &[Statement]) -> Option<usize> {
        let lets = rest
            .iter()
            .take_while(|s| matches!(s, Statement::Let(_)))
            .count();
        let number = self.loops;
        let mut ring = (0..self.plan.tiles.len())
            .filter(|t| self.plan.tiles[*t].loaded && self.plan.tiles[*t].in_loop == Some(number));
        let fed = matches!(rest.get(lets), Some(Statement::Loop(_)))
            && self.plan.produced != Some(number)
            && self.schedule.stages > 1;
        (fed && ring.any(|t| !self.is_filled_late(t))).then_some(lets)
    }

    /// The loads of a loop that are computed with: nothing but being read before the iteration begins hides how long they take.
    fn read_ahead(&self, l: &Loop) -> Vec<ValueId> {
        let loads = l.body.iter().filter_map(|s| match s {
            Statement::Let(v) => Some(*v),
            Statement::Loop(_) | Statement::Store { .. } => None,
        });
        let carried: u64 = (l.carries.iter())
            .map(|c| self.layout(c.phi).register_count())
            .sum();
        let threads = self.plan.block_threads() * u64::from(self.schedule.blocks_per_sm);
        if carried > CARRIED || threads > BUSY {
            return Vec::new();
        }
        loads
            .filter(|v| matches!(self.plan.op(*v), TileOp::Load { .. }))
            .filter(|v| !self.plan.only_contracted(*v))
            .scan(0, |held, v| {
                let layout = self.plan.layouts[v.index()].as_ref();
                let size = layout.map_or(AHEAD + 1, |l| l.distinct().register_count());
                let fits = *held + size <= AHEAD;
                *held += if fits { size } else { 0 };
                Some(fits.then_some(v))
            })
            .flatten()
            .collect()
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
        terms.push(format!("({}ll)", bound.offset));
        let all = sum(terms);
        if bound.divisor == 1 {
            format!("({all})")
        } else {
            format!("tw_floor_div({all}, {})", bound.divisor)
        }
    }
}

/// Whether a larger coordinate along `axis` lets some loop run longer.
pub(super) fn lengthens(body: &[Statement], axis: AxisId) -> bool {
    body.iter().any(|s| match s {
        Statement::Let(_) | Statement::Store { .. } => false,
        Statement::Loop(l) => {
            l.high
                .iter()
                .any(|b| b.terms.iter().any(|(c, a, _)| *a == axis && *c > 0))
                || lengthens(&l.body, axis)
        }
    })
}

//! Running values that a loop keeps where its iterations ask for them: what it has reduced before this iteration, or with it.

use super::Placer;
use crate::tiling::build::inner::{Inner, InnerId};
use crate::tiling::build::reach;
use ir::{AxisId, AxisSet, MapOp, ReduceOp, Reject, Statement, TileOp, TileProgram, ValueId};

/// What is added at the end of an iteration: nothing of it is seen in that one.
pub(super) struct Kept {
    phi: ValueId,
    op: ReduceOp,
    /// What an iteration reduces.
    own: InnerId,
    name: String,
}

impl Placer<'_, '_> {
    /// The running values of loops over an axis that these values need, arguments before users.
    pub(super) fn running_below(&self, axis: AxisId, roots: &[InnerId]) -> Vec<InnerId> {
        let all = reach::order(self.arena(), roots.iter().copied()).into_iter();
        all.filter(
            |id| matches!(self.arena().get(*id), Inner::Running { axis: a, .. } if *a == axis),
        )
        .collect()
    }

    /// Makes the running values of the loop that was just opened available: as what it carries, or with what this iteration reduces.
    pub(super) fn keep_running(
        &mut self,
        axis: AxisId,
        roots: &[InnerId],
        tile: &TileProgram,
    ) -> Result<Vec<Kept>, Reject> {
        let mut all = Vec::new();
        for id in self.running_below(axis, roots) {
            let Inner::Running {
                op,
                arg,
                axes,
                inclusive,
                ..
            } = self.arena().get(id).clone()
            else {
                continue;
            };
            if self.part_of(axis).is_some() {
                return Err(Reject::Assignment(
                    "a running value of a loop of which a block has a part".to_owned(),
                ));
            }
            let along: AxisSet = [axis].into_iter().collect();
            let scans = self.tiles.get(&axis).is_some_and(|t| t.tile > 1);
            // A scan is along one axis: over the others each coordinate is reduced before.
            let others = axes.minus(&along);
            let arena = &mut self.lowering.arena;
            let (arg, axes) = match scans {
                true if others.is_empty() => (arg, along.clone()),
                true => {
                    let each = arena.add(Inner::Reduce {
                        op,
                        arg,
                        axes: others,
                        bound: AxisSet::new(),
                    });
                    (each, along.clone())
                }
                false => (arg, axes),
            };
            let own = arena.add(Inner::Reduce {
                op,
                arg,
                axes,
                bound: along.clone(),
            });
            let carried = self.arena().axes(id).minus(&along);
            let name = self.name_of(id);
            let phi = self.phi(op.neutral(), &carried, &name);
            let kept = Kept { phi, op, own, name };
            if scans {
                self.level(&[arg], &[], tile)?;
                let value = self.emit(arg)?;
                let scan = self.scan(TileOp::Scan {
                    op,
                    value,
                    axis,
                    inclusive,
                });
                let seen = self.let_map(op.combine(), vec![phi, scan], &kept.name);
                self.scope().memo.insert(id, seen);
                all.push(kept);
                continue;
            }
            let seen = if inclusive {
                self.level(&[own], &[], tile)?;
                self.add(kept)?
            } else {
                all.push(kept);
                phi
            };
            // One value an iteration, which varies over the loop's axis: `x + 0·iota`. A scan would have all that the iteration reduces made before.
            let arena = &mut self.lowering.arena;
            let (zero, at) = (arena.constant(0.0), arena.add(Inner::Iota(axis)));
            let zero = arena.map(MapOp::Mul, [zero, at]);
            let zero = self.emit(zero)?;
            let seen = self.let_map(MapOp::Add, vec![seen, zero], &self.name_of(id));
            self.scope().memo.insert(id, seen);
        }
        Ok(all)
    }

    /// A scan of a value, in the loop that was just opened.
    fn scan(&mut self, scan: TileOp) -> ValueId {
        let depth = self.scopes.len() - 1;
        let operands = scan.operands().into_iter();
        let over = operands.fold(AxisSet::new(), |all, v| {
            all.union(&self.values[v.index()].axes)
        });
        let value = self.push_value(scan, over, "scan", depth);
        self.scope().body.push(Statement::Let(value));
        value
    }

    /// Goes on to the next iteration with what this one has reduced.
    pub(super) fn go_on(&mut self, kept: Vec<Kept>, tile: &TileProgram) -> Result<(), Reject> {
        for one in kept {
            self.level(&[one.own], &[], tile)?;
            self.add(one)?;
        }
        Ok(())
    }

    fn add(&mut self, kept: Kept) -> Result<ValueId, Reject> {
        let part = self.emit(kept.own)?;
        let next = self.let_map(
            kept.op.combine(),
            vec![kept.phi, part],
            &format!("{}_next", kept.name),
        );
        self.carry(kept.phi, next, &kept.name);
        Ok(next)
    }
}

//! The values that are put into scopes: what inner values become, the corrections of running ones, and their names.

use super::Placer;
use crate::corrections::{Correction, Term};
use crate::tiling::build::fuse::Fused;
use crate::tiling::build::inner::{Inner, InnerId};
use ir::{AxisSet, Carry, MapOp, Reject, Statement, TileOp, Value, ValueId};
use std::collections::BTreeMap;

impl Placer<'_, '_> {
    /// `x` where it is finite, else `other`: `select(0·x, x, other)`, because `0·∞` is not a number and hence not ≥ 0.
    pub(super) fn finite(&mut self, x: ValueId, other: ValueId) -> ValueId {
        let zero = self.let_constant(0.0);
        let test = self.let_map(MapOp::Mul, vec![zero, x], "test");
        self.let_map(MapOp::Select, vec![test, x, other], "finite")
    }

    /// `x` where it is not zero, else 1: `select(−max(x, −x), 1, x)`.
    pub(super) fn nonzero(&mut self, x: ValueId) -> ValueId {
        let (one, minus) = (self.let_constant(1.0), self.let_constant(-1.0));
        let negative = self.let_map(MapOp::Mul, vec![minus, x], "minus");
        let size = self.let_map(MapOp::Max, vec![x, negative], "size");
        let test = self.let_map(MapOp::Mul, vec![minus, size], "test");
        self.let_map(MapOp::Select, vec![test, one, x], "nonzero")
    }

    /// Running maxima, before something and behind it, with 0 and then the later one in the place of what is infinite.
    pub(super) fn finites(&mut self, [old, new]: [ValueId; 2]) -> [ValueId; 2] {
        let zero = self.let_constant(0.0);
        let new = self.finite(new, zero);
        [self.finite(old, new), new]
    }

    /// `c(old, new)` for provisional values.
    pub(super) fn correction(
        &mut self,
        fused: &Fused,
        values: &BTreeMap<InnerId, [ValueId; 2]>,
    ) -> Result<ValueId, Reject> {
        let Correction { terms, root, .. } = &fused.correction;
        let unsound =
            || Reject::Assignment("a correction speaks of values that it lacks".to_owned());
        let provisional = |k: usize| {
            let r = fused.provisional.get(k);
            r.and_then(|r| values.get(r)).copied().ok_or_else(unsound)
        };
        let mut made: Vec<ValueId> = Vec::with_capacity(terms.len());
        for term in terms {
            let value = match term {
                Term::Old(k) => provisional(*k)?[0],
                Term::New(k) => provisional(*k)?[1],
                Term::Leaf(node) => {
                    let leaf = self.lowering.lower(*node, &fused.by)?;
                    self.loops_of(leaf);
                    self.emit(leaf)?
                }
                Term::Constant(c) => self.let_constant(*c),
                Term::Map(op, args) => {
                    let args = args
                        .iter()
                        .map(|t| made.get(t.0 as usize).copied().ok_or_else(unsound))
                        .collect::<Result<Vec<_>, _>>()?;
                    self.let_map(*op, args, "c")
                }
            };
            made.push(value);
        }
        made.get(root.0 as usize).copied().ok_or_else(unsound)
    }

    pub(super) fn compute(&mut self, id: InnerId) -> Result<(), Reject> {
        let inner = self.arena().get(id).clone();
        let args: Vec<ValueId> = inner.args().iter().filter_map(|a| self.known(*a)).collect();
        let mut depth = args
            .iter()
            .map(|v| self.depth[v.index()])
            .max()
            .unwrap_or(0);
        let mut axes: AxisSet = args.iter().fold(AxisSet::new(), |all, v| {
            all.union(&self.values[v.index()].axes)
        });
        let name = self.name_of(id);
        let op = match inner {
            Inner::Load {
                buffer,
                index,
                fill,
            } => {
                axes = self.arena().axes(id).clone();
                TileOp::Load {
                    buffer,
                    index,
                    fill: fill.value(),
                }
            }
            Inner::Constant(c) => TileOp::Constant(c.value()),
            Inner::Iota(axis) => {
                axes.insert(axis);
                TileOp::Iota(axis)
            }
            Inner::Map(op, _) => TileOp::Map(op, args),
            Inner::Reduce { op, axes: over, .. } => {
                axes = axes.minus(&over);
                TileOp::Reduce {
                    op,
                    value: args[0],
                    axes: over,
                }
            }
            Inner::Running { .. } => {
                return Err(Reject::Assignment(
                    "a running value outside its loop".to_owned(),
                ));
            }
            Inner::Dot { axes: over, .. } => {
                axes = axes.minus(&over);
                TileOp::Contract {
                    a: args[0],
                    b: args[1],
                    axes: over,
                }
            }
        };
        for a in self.loops_of(id).iter() {
            let at = self
                .scopes
                .iter()
                .position(|s| s.axis == Some(a))
                .ok_or_else(|| {
                    Reject::Assignment(format!(
                        "a value varies over {} outside its loop",
                        self.lowering.axes[a.index()].name
                    ))
                })?;
            depth = depth.max(at);
        }
        let value = self.push_value(op, axes, &name, depth);
        self.scopes[depth].body.push(Statement::Let(value));
        self.scopes[depth].memo.insert(id, value);
        Ok(())
    }

    pub(super) fn push_value(
        &mut self,
        op: TileOp,
        axes: AxisSet,
        name: &str,
        depth: usize,
    ) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        let count = self.names.entry(name.to_owned()).or_insert(0);
        *count += 1;
        // A digit at the end of a base name would let two names meet: `x1` and the second `x`.
        let name = match (*count, name.ends_with(|c: char| c.is_ascii_digit())) {
            (1, _) => name.to_owned(),
            (n, true) => format!("{name}_{n}"),
            (n, false) => format!("{name}{n}"),
        };
        self.values.push(Value { op, axes, name });
        self.depth.push(depth);
        id
    }

    /// An operation on values, where the innermost of them is. It is done once.
    pub(super) fn let_map(&mut self, op: MapOp, args: Vec<ValueId>, name: &str) -> ValueId {
        let key = (op, args);
        if let Some(known) = self.scopes.iter().find_map(|s| s.maps.get(&key)) {
            return *known;
        }
        let (op, args) = key;
        let axes = args.iter().fold(AxisSet::new(), |all, v| {
            all.union(&self.values[v.index()].axes)
        });
        let depth = args
            .iter()
            .map(|v| self.depth[v.index()])
            .max()
            .unwrap_or(0);
        let id = self.push_value(TileOp::Map(op, args.clone()), axes, name, depth);
        self.scopes[depth].body.push(Statement::Let(id));
        self.scopes[depth].maps.insert((op, args), id);
        id
    }

    pub(super) fn let_constant(&mut self, c: f64) -> ValueId {
        let id = self.lowering.arena.constant(c);
        if let Some(known) = self.known(id) {
            return known;
        }
        let value = self.push_value(TileOp::Constant(c), AxisSet::new(), "k", 0);
        self.scopes[0].body.push(Statement::Let(value));
        self.scopes[0].memo.insert(id, value);
        value
    }

    /// What a loop carries, at the beginning of an iteration.
    pub(super) fn phi(&mut self, init: f64, axes: &AxisSet, name: &str) -> ValueId {
        let depth = self.scopes.len() - 1;
        let axes = axes.clone();
        self.push_value(
            TileOp::Phi {
                init,
                axes: axes.clone(),
            },
            axes,
            name,
            depth,
        )
    }

    /// Carries a value to the next iteration; gives what it is behind the loop.
    pub(super) fn carry(&mut self, phi: ValueId, next: ValueId, name: &str) -> ValueId {
        let axes = self.values[phi.index()].axes.clone();
        let outside = self.scopes.len() - 2;
        let name = format!("{name}_all");
        let result = self.push_value(TileOp::Final { phi }, axes, &name, outside);
        self.scope().carries.push(Carry { phi, next, result });
        result
    }

    /// A readable name: what the user called the value, else what it does.
    pub(in crate::tiling::build) fn name_of(&self, id: InnerId) -> String {
        let user = self
            .lowering
            .origins
            .get(&id)
            .and_then(|(node, _)| self.lowering.program().node(*node).name.clone());
        if let Some(name) = user {
            return name;
        }
        let base = match self.arena().get(id) {
            Inner::Load { .. } => "in",
            Inner::Constant(_) => "k",
            Inner::Iota(_) => "at",
            Inner::Map(op, _) => match op {
                MapOp::Add => "add",
                MapOp::Mul => "mul",
                MapOp::Div => "div",
                MapOp::Max => "larger",
                MapOp::Function(function) => function.name(),
                MapOp::Select => "sel",
            },
            Inner::Reduce { op, .. } | Inner::Running { op, .. } => op.name(),
            Inner::Dot { .. } => "dot",
        };
        base.to_owned()
    }
}

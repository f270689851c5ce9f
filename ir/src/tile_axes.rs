//! The axes and the coordinates that a tile program's operations imply.

use crate::affine::{Affine, Quotient};
use crate::axes::{AxisId, AxisSet};
use crate::limits::{MAX_COEFFICIENT, MAX_EXTENT};
use crate::ops::{count, integer};
use crate::program::MapOp;
use crate::tile::{Kernel, TileOp, TileProgram, Value, ValueId};

/// A value of a kernel as an integer affine function of coordinates, where it is one: sums, differences and integer
/// multiples of iotas and integer constants.
pub fn affine_of(kernel: &Kernel, value: ValueId) -> Option<Affine> {
    /// `fuel` bounds the work on ladders of shared values, and on cycles in kernels that were not validated.
    fn go(kernel: &Kernel, value: ValueId, fuel: &mut u32) -> Option<Affine> {
        *fuel = fuel.checked_sub(1)?;
        match &kernel.values.get(value.index())?.op {
            TileOp::Constant(value) => integer(*value).map(Affine::constant),
            TileOp::Iota(axis) => Some(Affine::axis(*axis)),
            TileOp::Map(op, args) => {
                let [x, y] = args.as_slice() else {
                    return None;
                };
                let mut arg = |id: &ValueId| go(kernel, *id, fuel);
                match op {
                    MapOp::Add => arg(x)?.plus(&arg(y)?),
                    MapOp::Mul => arg(x)?.times(&arg(y)?),
                    MapOp::Div | MapOp::Max | MapOp::Function(_) | MapOp::Select => None,
                }
            }
            TileOp::Load { .. }
            | TileOp::Reduce { .. }
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => None,
        }
    }
    go(kernel, value, &mut 500)
}

impl TileProgram {
    /// The axes that an op implies in a kernel, or why there is no such value. [`TileOp::Final`] takes its phi's.
    pub fn infer_axes(&self, kernel: &Kernel, op: &TileOp) -> Result<AxisSet, String> {
        let value = |id: ValueId| -> Result<&Value, String> {
            let found = kernel.values.get(id.index());
            found.ok_or_else(|| format!("no value number {}", id.0))
        };
        match op {
            TileOp::Load {
                buffer,
                index,
                fill,
            } => {
                let Some(source) = self.buffers.get(buffer.index()) else {
                    return Err(format!("no buffer number {}", buffer.0));
                };
                if fill.is_nan() {
                    return Err("a load fills with a number, found NaN".to_owned());
                }
                for place in index {
                    self.check_index(place)?;
                }
                let expected = self.axes_loaded(*buffer, index).len();
                if index.len() != expected {
                    return Err(format!(
                        "buffer `{}` has {}, the load gives {}",
                        source.name,
                        if expected == 1 {
                            "1 axis".to_owned()
                        } else {
                            format!("{expected} axes")
                        },
                        index.len()
                    ));
                }
                let collapsed = |place: &Quotient| {
                    let axes = place.axes();
                    axes.iter().find(|a| self.collapsed.contains_key(a))
                };
                let shifted = index.iter().filter(|place| place.as_axis().is_none());
                if let Some(axis) = shifted.into_iter().find_map(collapsed) {
                    return Err(format!(
                        "an index that is not `{0}` itself, but made of the collapsed axis `{0}`",
                        self.axis_name(axis)
                    ));
                }
                Ok(index
                    .iter()
                    .flat_map(|i| i.function().terms().iter().map(|t| t.1))
                    .collect())
            }
            TileOp::Constant(value) if value.is_nan() => {
                Err("a constant is a number, found NaN".to_owned())
            }
            TileOp::Constant(_) => Ok(AxisSet::new()),
            TileOp::Iota(axis) if self.collapsed.contains_key(axis) => Err(format!(
                "the coordinate along `{}`, which is a collapsed axis",
                self.axis_name(*axis)
            )),
            TileOp::Iota(axis) => Ok([*axis].into_iter().collect()),
            TileOp::Map(op, args) => {
                if args.len() != op.arity() {
                    return Err(format!(
                        "`{}` takes {}, {} given",
                        op.name(),
                        count(op.arity(), "value"),
                        args.len()
                    ));
                }
                args.iter().try_fold(AxisSet::new(), |union, id| {
                    Ok(union.union(&value(*id)?.axes))
                })
            }
            TileOp::Reduce {
                value: id, axes, ..
            } => {
                let has = &value(*id)?.axes;
                self.check_reduced(axes, has)?;
                Ok(has.minus(axes))
            }
            TileOp::Scan {
                value: id, axis, ..
            } => {
                let has = &value(*id)?.axes;
                match has.contains(*axis) {
                    true if self.collapsed.contains_key(axis) => Err(format!(
                        "scans along the collapsed axis `{}`",
                        self.axis_name(*axis)
                    )),
                    true => Ok(has.clone()),
                    false => Err(format!(
                        "scans along `{}`, the operand has {}",
                        self.axis_name(*axis),
                        self.axis_list(has)
                    )),
                }
            }
            TileOp::Contract { a, b, axes } => {
                let (a, b) = (&value(*a)?.axes, &value(*b)?.axes);
                self.check_reduced(axes, a)?;
                self.check_reduced(axes, b)?;
                Ok(a.union(b).minus(axes))
            }
            TileOp::Phi { init, .. } if init.is_nan() => {
                Err("a carry starts with a number, found NaN".to_owned())
            }
            TileOp::Phi { axes, .. } => Ok(axes.clone()),
            TileOp::Final { phi } => {
                let phi = value(*phi)?;
                match phi.op {
                    TileOp::Phi { .. } => Ok(phi.axes.clone()),
                    TileOp::Load { .. }
                    | TileOp::Constant(_)
                    | TileOp::Iota(_)
                    | TileOp::Map(..)
                    | TileOp::Reduce { .. }
                    | TileOp::Scan { .. }
                    | TileOp::Contract { .. }
                    | TileOp::Final { .. } => Err(format!("`{}` is no carry", phi.name)),
                }
            }
        }
    }

    pub(crate) fn axis_name(&self, axis: AxisId) -> &str {
        self.axes.get(axis.index()).map_or("?", |a| &a.name)
    }

    pub(crate) fn axis_list(&self, axes: &AxisSet) -> String {
        let names: Vec<&str> = axes.iter().map(|a| self.axis_name(a)).collect();
        format!("{{{}}}", names.join(", "))
    }

    fn check_index(&self, index: &Quotient) -> Result<(), String> {
        index.check()?;
        let affine = index.function();
        let small = |n: i64| n.unsigned_abs() <= MAX_COEFFICIENT;
        if !small(affine.offset) || affine.terms().iter().any(|t| !small(t.0)) {
            return Err("an index with a coefficient above 2^40".to_owned());
        }
        let known = affine.terms().iter().all(|t| t.1.index() < self.axes.len());
        let range = affine.range(|a| {
            let extent = self.axes.get(a.index()).map_or(1, |a| a.extent);
            let last = extent.clamp(1, MAX_EXTENT) - 1;
            (0, last as i64)
        });
        if known && range.is_some() {
            Ok(())
        } else {
            Err("an index overflows or mentions an axis that is not declared".to_owned())
        }
    }

    pub(crate) fn check_reduced(&self, axes: &AxisSet, of: &AxisSet) -> Result<(), String> {
        if axes.is_empty() {
            return Err("a reduction needs at least one axis".to_owned());
        }
        if axes.is_subset(of) {
            Ok(())
        } else {
            Err(format!(
                "reduces over {}, the operand has {}",
                self.axis_list(axes),
                self.axis_list(of)
            ))
        }
    }
}

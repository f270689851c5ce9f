//! Exponentials of sums, with a factor or without.
//!
//! ```text
//! before:  t = a + b;  u = c · t;  e = exp(u)      a has all axes of e; b and c have fewer, or c is a constant
//! after:   s = c · log₂e, y = b · s                for each element of b and c
//!          e = 2^(a · s + y)                       one multiply-add and ex2 an element
//! ```
//!
//! `t` and `u` are then not computed at all, where nothing else reads them. That is legal where nothing stands between them and the
//! exponential: what they are computed from is still there. Where the operands are not at hand in the layout of the exponential, the
//! plain operations are carried out after all. Precise kernels have none of this.

use super::{Machined, Plain, is_precise};
use crate::layout::Layout;
use crate::machine::{Function, Source};
use ir::{AxisSet, Kernel, MapOp, Reject, Statement, TileOp, TileProgram, ValueId};
use std::collections::BTreeSet;

/// The argument of an exponential: `by · (wide + narrow)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exponent {
    /// The sum.
    sum: ValueId,
    /// The addend that is spread along all axes along which the sum is.
    wide: ValueId,
    /// The other one, which is spread along fewer.
    narrow: ValueId,
    /// The factor of the sum, if there is one: a constant, or a value that is spread along fewer axes.
    by: Option<ValueId>,
}

impl Exponent {
    /// `x` in this form.
    fn of(kernel: &Kernel, x: ValueId) -> Option<Self> {
        let axes = spread(kernel, x);
        let pairs = |op: MapOp, v: ValueId| {
            let args = match &kernel.value(v).op {
                TileOp::Map(found, args) if *found == op => args.as_slice(),
                TileOp::Map(..)
                | TileOp::Load { .. }
                | TileOp::Constant(_)
                | TileOp::Iota(_)
                | TileOp::Reduce { .. }
                | TileOp::Scan { .. }
                | TileOp::Contract { .. }
                | TileOp::Phi { .. }
                | TileOp::Final { .. } => &[],
            };
            match args {
                [p, q] => vec![(*p, *q), (*q, *p)],
                _ => Vec::new(),
            }
        };
        let has_all = |v: ValueId| spread(kernel, v) == axes;
        let sum = |sum: ValueId, by: Option<ValueId>| {
            let addends = pairs(MapOp::Add, sum);
            let found = (addends.into_iter())
                .find(|(wide, narrow)| has_all(*wide) && is_held(kernel, *narrow, axes.len()));
            found.map(|(wide, narrow)| Self {
                sum,
                wide,
                narrow,
                by,
            })
        };
        sum(x, None).or_else(|| {
            let factors = pairs(MapOp::Mul, x).into_iter();
            let mut fitting = factors.filter(|(of, by)| {
                has_all(*of) && (is_scale(kernel, *by) || is_held(kernel, *by, axes.len()))
            });
            fitting.find_map(|(of, by)| sum(of, Some(by)))
        })
    }

    /// What need not be computed where only this exponential reads it, operands first.
    fn steps(&self, argument: ValueId) -> Vec<ValueId> {
        match self.by {
            Some(_) => vec![self.sum, argument],
            None => vec![argument],
        }
    }
}

/// The axes along which a tile of a value has more than one element.
fn spread(kernel: &Kernel, v: ValueId) -> AxisSet {
    let axes = kernel.value(v).axes.iter();
    axes.filter(|a| kernel.tile(*a) > 1).collect()
}

/// Whether a value is kept in registers and is spread along fewer than so many axes.
fn is_held(kernel: &Kernel, v: ValueId, axes: usize) -> bool {
    let made = matches!(kernel.value(v).op, TileOp::Constant(_) | TileOp::Iota(_));
    !made && spread(kernel, v).len() < axes
}

/// Whether a value is a constant by which an f32 can be multiplied, and by log₂e, without leaving the normal numbers for it alone.
fn is_scale(kernel: &Kernel, v: ValueId) -> bool {
    let held = 1e-30..=1e30;
    matches!(kernel.value(v).op, TileOp::Constant(c) if held.contains(&c.abs()))
}

/// The sums, and the products of them, that exponentials of a kernel do themselves, each with its own exponential directly behind it.
pub fn exponents(tile: &TileProgram, kernel: &Kernel) -> BTreeSet<ValueId> {
    fn go(kernel: &Kernel, uses: &[u32], body: &[Statement], found: &mut BTreeSet<ValueId>) {
        // The values that were computed last, nothing else in between.
        let mut before: Vec<ValueId> = Vec::new();
        for statement in body {
            let v = match statement {
                Statement::Let(v) => *v,
                Statement::Loop(l) => {
                    go(kernel, uses, &l.body, found);
                    before.clear();
                    continue;
                }
                Statement::Store { .. } => {
                    before.clear();
                    continue;
                }
            };
            match &kernel.value(v).op {
                TileOp::Constant(_) | TileOp::Iota(_) => continue,
                TileOp::Map(MapOp::Function(ir::Function::Exp), args) => {
                    let steps = args.first().and_then(|x| {
                        let steps = Exponent::of(kernel, *x)?.steps(*x);
                        (before.ends_with(&steps)).then_some(steps)
                    });
                    let steps = steps.unwrap_or_default();
                    if steps.iter().all(|s| uses[s.index()] == 1) {
                        found.extend(steps);
                    }
                    before.clear();
                }
                TileOp::Map(..) => before.push(v),
                TileOp::Load { .. }
                | TileOp::Reduce { .. }
                | TileOp::Scan { .. }
                | TileOp::Contract { .. }
                | TileOp::Phi { .. }
                | TileOp::Final { .. } => before.clear(),
            }
        }
    }
    let mut found = BTreeSet::new();
    if is_precise(tile) {
        return found;
    }
    go(kernel, &kernel.uses(), &kernel.body, &mut found);
    found
}

impl Plain<'_> {
    /// `exp(x)` as a power of two, where `x` is a sum of operands that are at hand; whether it is.
    pub(super) fn exp_of_sum(
        &mut self,
        v: ValueId,
        x: ValueId,
        layout: &Layout,
        out: &mut Vec<Machined>,
    ) -> Result<bool, Reject> {
        let exponent = Exponent::of(self.kernel, x).filter(|e| {
            let here = |v: &ValueId| {
                let part = layout.slice(self.plan.axes(*v));
                self.find(*v, Some(&part)).is_some()
            };
            let by = e.by.filter(|by| !is_scale(self.kernel, *by));
            let at_hand = here(&e.wide) && here(&e.narrow) && by.iter().all(here);
            at_hand && !self.plan.fused.contains_key(&e.sum)
        });
        let Some(exponent) = exponent else {
            return Ok(false);
        };
        self.exp_shifted(v, exponent, layout, out)?;
        Ok(true)
    }

    /// `e^(by · (wide + narrow)) = 2^(wide · s + narrow · s)`: one multiply-add an element. `s` is `by · log₂e`, but where `narrow` is so
    /// large that the rounding of `narrow · s` would matter (see `tw_exp_scale`).
    fn exp_shifted(
        &mut self,
        v: ValueId,
        exponent: Exponent,
        layout: &Layout,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let Exponent {
            wide, narrow, by, ..
        } = exponent;
        let axes = self.plan.axes(narrow);
        let axes = by.map_or_else(|| axes.clone(), |by| axes.union(self.plan.axes(by)));
        let part = layout.slice(&axes);
        let x = self.operand(wide, &layout.slice(self.plan.axes(wide)), out)?;
        let of = self.operand(narrow, &part.slice(self.plan.axes(narrow)), out)?;
        let by = match by {
            Some(by) => self.operand(by, &part.slice(self.plan.axes(by)), out)?,
            None => Source::Constant(1.0),
        };
        let scale = self.array(narrow, &part, out);
        let scaled = self.array(narrow, &part, out);
        out.push(Machined::ExpScale {
            scale,
            scaled,
            of,
            by,
        });
        let to = self.array(v, layout, out);
        out.push(Machined::Map {
            to,
            function: Function::ExpOfSum,
            args: vec![x, Source::Fragment(scale), Source::Fragment(scaled)],
        });
        self.bind(v, layout, to);
        Ok(())
    }

    /// Computes after all what an exponential was to do itself.
    pub(super) fn unfold(&mut self, x: ValueId, out: &mut Vec<Machined>) -> Result<(), Reject> {
        if !self.folded.remove(&x) {
            return Ok(());
        }
        let TileOp::Map(op, args) = self.plan.op(x) else {
            return Ok(());
        };
        for a in args {
            self.unfold(*a, out)?;
        }
        self.map(x, *op, args, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the exponentials of a kernel with this body do themselves, by name.
    fn check(body: &str, dtype: &str) -> Vec<String> {
        let text = format!(
            "tile exponents\naxis i = 8, j = 32, p = 2\nbuffer x = parameter 0 bf16 [i, j]\nbuffer y = parameter 1 bf16 [i]\n\
             buffer z = output 0 {dtype} [p, i, j]\nkernel grid(p: 1, i: 4) whole(j: 32) {{\n  half = 0.5\n  none = 0\n  at = iota(p)\n\
             wide = load x[i, j]\n  row = load y[i]\n{body}\n  store z = all\n}}\n"
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let kernel = &tile.kernels[0];
        let found = exponents(&tile, kernel);
        let names = found.iter().map(|v| kernel.value(*v).name.clone());
        names.collect()
    }

    #[test]
    fn sums_and_their_factors_are_left_to_the_exponential() {
        let bf16 = |body: &str| check(body, "bf16");
        let sum = "s = add(wide, row)\n u = mul(half, s)\n";
        let all = "all = add(e, at)\n";
        assert_eq!(bf16(&format!("{sum} e = exp(u)\n {all}")), ["s", "u"]);
        assert_eq!(
            bf16(&format!("s = add(row, wide)\n e = exp(s)\n {all}")),
            ["s"]
        );
        let by_row = "s = add(wide, row)\n u = mul(s, row)\n e = exp(u)\n";
        assert_eq!(bf16(&format!("{by_row} {all}")), ["s", "u"]);
        // An axis whose tile has one coordinate is none: `lone` is spread along `i` alone.
        let lone = "lone = add(row, at)\n s = add(wide, lone)\n e = exp(s)\n";
        assert_eq!(bf16(&format!("{lone} {all}")), ["s"]);
    }

    #[test]
    fn what_others_need_is_computed() {
        let none: [&str; 0] = [];
        let bf16 = |body: &str| check(body, "bf16");
        let all = "all = add(e, at)\n";
        let sum = "s = add(wide, row)\n";
        assert_eq!(
            bf16(&format!(
                "{sum} u = mul(half, s)\n e = exp(u)\n t = add(e, s)\n all = add(t, at)\n"
            )),
            none
        );
        // Something else in between, two wide addends, no factor by which an f32 can be divided, and results in f32.
        let between = "m = reduce_max(wide; j)\n";
        assert_eq!(
            bf16(&format!(
                "{sum} {between} e = exp(s)\n t = add(e, m)\n all = add(t, at)\n"
            )),
            none
        );
        assert_eq!(
            bf16(&format!("s = add(wide, wide)\n e = exp(s)\n {all}")),
            none
        );
        assert_eq!(
            bf16(&format!("{sum} u = mul(none, s)\n e = exp(u)\n {all}")),
            none
        );
        assert_eq!(check(&format!("{sum} e = exp(s)\n {all}"), "f32"), none);
    }
}

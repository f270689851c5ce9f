//! The constants of the rule, for an output and a kind of input.

use super::{tiny, ulp};
use ir::{Dtype, NodeId, Op, Output, Program};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The constants of the rule for one output; part of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The output's dtype.
    pub dtype: Dtype,
    /// How many times the baseline's error.
    pub factor: f64,
    /// Units in the last place of a row's largest element, on top.
    pub row: f64,
    /// Units, relative to the whole output's RMS, on top.
    pub rms: f64,
    /// What the whole output's bias may be, in units; none where it is not judged.
    pub bias: Option<f64>,
    /// How much of the baseline's RMS its bias may be.
    pub share: f64,
    /// Units of each binade on top; none where magnitudes are not judged.
    pub bin: Option<f64>,
    /// What tensor cores may cut off, and what long sums of equal terms are off by, relative.
    pub cut: f64,
    /// Whether rows are set aside where the baseline is no yardstick.
    pub sets_aside: bool,
}

/// Whether rounding errors of inputs average out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roundings {
    /// The numbers are spread: they do.
    Spread,
    /// Many numbers are equal, or nearly: they round the same way, and what is one rounding for one kernel is none for another. Bias is not
    /// judged, the whole output's error as that of one row, and a sum of `n` terms in f32 may be off by `√n` roundings. Where the program contracts what it
    /// computed in 16 bits one such rounding counts too, as large as it is on average, if that is more than the output's own.
    Alike,
    /// Few large numbers decide, and the baseline's error is what luck makes of a few roundings: as above, and four times as much.
    Few,
}

impl Limits {
    /// For the outputs of a program, in order.
    pub fn of(program: &Program, roundings: Roundings) -> Vec<Self> {
        let outputs = program.outputs.iter();
        let spread = outputs.map(|o| Self::new(o.dtype, cut(program)));
        let sum = longest_sum(program);
        let alike = |limits: Self, output: &Output| {
            let own = operand(program, [output.value]);
            let finer = |unit: &f64| output.dtype.is_float() && *unit > ulp(output.dtype, 1.0);
            let own = own.filter(finer).map_or(0.0, |unit| unit / 12f64.sqrt());
            Self {
                rms: limits.row,
                bias: None,
                bin: limits.bin.map(|bin| 2.0 * bin),
                cut: limits.cut + sum.sqrt() * ulp(Dtype::F32, 1.0) + own,
                ..limits
            }
        };
        spread
            .zip(&program.outputs)
            .map(|(limits, output)| match roundings {
                Roundings::Spread => limits,
                Roundings::Alike => alike(limits, output),
                Roundings::Few => alike(limits, output).widened(4.0),
            })
            .collect()
    }

    #[rustfmt::skip]
    pub(super) fn new(dtype: Dtype, cut: f64) -> Self {
        let (row, rms, bias, share, bin) = match dtype {
            Dtype::F16 | Dtype::Bf16                             => (1.5, 0.1,  0.125, 0.125, 1.0),
            Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => (4.0, 2.0,  2.0,   1.0,   4.0),
        };
        Self {
            dtype,
            factor: 2.0,
            row,
            rms,
            bias: Some(bias),
            share,
            bin: Some(bin),
            cut,
            sets_aside: true,
        }
    }

    /// With everything that is allowed multiplied.
    pub fn widened(self, by: f64) -> Self {
        Self {
            factor: self.factor * by,
            row: self.row * by,
            rms: self.rms * by,
            bias: self.bias.map(|b| b * by),
            share: self.share * by,
            bin: self.bin.map(|b| b * by),
            cut: self.cut * by,
            ..self
        }
    }

    /// What a row whose largest element is `top` may be off whatever the baseline is.
    pub(super) fn floor(&self, top: f64) -> f64 {
        self.row * ulp(self.dtype, top) + self.cut * top + tiny(self.dtype)
    }
}

/// What tensor cores may cut off of the program's longest contraction of 16-bit operands: `2⁻²⁵` of the sum for each 16 products.
fn cut(program: &Program) -> f64 {
    let dtypes = program.dtypes();
    let products = program
        .nodes
        .iter()
        .zip(dtypes)
        .filter_map(|(node, dtype)| match (&node.op, dtype) {
            (Op::Dot { axes }, Some(Dtype::F16 | Dtype::Bf16)) => program.elements(axes),
            (
                Op::Dot { .. }
                | Op::Parameter { .. }
                | Op::Constant(_)
                | Op::Iota(_)
                | Op::View { .. }
                | Op::Map(_)
                | Op::Reduce { .. },
                _,
            ) => None,
        });
    products.max().unwrap_or(0).div_ceil(16) as f64 * 2f64.powi(-25)
}

/// The coarsest unit, relative to 1, to which an operand is rounded that the program computed for a contraction on the way to some values.
fn operand(program: &Program, of: impl IntoIterator<Item = NodeId>) -> Option<f64> {
    let is_computed = |id: &NodeId| {
        let mut node = program.node(*id);
        while let (Op::View { .. }, Some(below)) = (&node.op, node.args.first()) {
            node = program.node(*below);
        }
        !matches!(node.op, Op::Parameter { .. })
    };
    let mut reached: BTreeSet<NodeId> = BTreeSet::new();
    let mut stack: Vec<NodeId> = of.into_iter().collect();
    while let Some(node) = stack.pop() {
        if reached.insert(node) {
            stack.extend(&program.node(node).args);
        }
    }
    let all = (0..).map(NodeId).zip(&program.nodes).zip(program.dtypes());
    let all = all.filter(|((id, _), _)| reached.contains(id));
    let units = all.filter_map(|((_, node), dtype)| {
        let dtype = dtype.filter(|d| matches!(d, Dtype::F16 | Dtype::Bf16))?;
        let rounds = matches!(node.op, Op::Dot { .. }) && node.args.iter().any(is_computed);
        rounds.then(|| ulp(dtype, 1.0))
    });
    units.reduce(f64::max)
}

/// Whether an operand that the program computed is rounded for a contraction.
pub(crate) fn rounds_operands(program: &Program) -> bool {
    operand(program, program.outputs.iter().map(|o| o.value)).is_some()
}

/// The terms of the program's longest sum.
pub(crate) fn longest_sum(program: &Program) -> f64 {
    let sums = program.nodes.iter().filter_map(|node| match &node.op {
        Op::Reduce { axes, .. } | Op::Dot { axes } => program.elements(axes),
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota(_) | Op::View { .. } | Op::Map(_) => None,
    });
    sums.max().unwrap_or(1) as f64
}

#[cfg(test)]
mod tests {
    // Oracle: the unit of bf16, by hand.
    use super::*;

    #[test]
    fn what_is_computed_for_a_product_is_rounded_once_where_all_is_alike() {
        let cut = |dtype: &str, operand: &str, roundings: Roundings| {
            let text = format!(
                "program p\naxis i = 4, k = 4, n = 4\nx = parameter bf16 [i, k]\nw = parameter bf16 [k, n]\n\
                 return {dtype} [i, n] dot({operand}, w; k)\n"
            );
            Limits::of(&text.parse().expect("a program"), roundings)[0].cut
        };
        let more = |dtype: &str, roundings: Roundings| {
            cut(dtype, "exp(x)", roundings) - cut(dtype, "x", roundings)
        };
        let one = 2f64.powi(-7) / 12f64.sqrt();
        assert!((more("f32", Roundings::Alike) - one).abs() < 1e-12);
        assert_eq!(more("f32", Roundings::Spread), 0.0);
        assert_eq!(more("bf16", Roundings::Alike), 0.0);
        // What does not depend on it is as exact as before.
        let both = "program p\naxis i = 4, k = 4, n = 4\nx = parameter bf16 [i, k]\nw = parameter bf16 [k, n]\n\
                    return f32 [i] sum(x; k), f32 [i, n] dot(exp(x), w; k), i32 [i, n] dot(exp(x), w; k)\n";
        let both = Limits::of(&both.parse().expect("a program"), Roundings::Alike);
        assert!(both[0].cut < one / 2.0 && both[2].cut < one / 2.0 && both[1].cut > one);
        // What is read as it is is not rounded.
        let seen = cut("f32", "view(x; i -> 3 - i)", Roundings::Alike);
        assert_eq!(seen, cut("f32", "x", Roundings::Alike));
    }
}

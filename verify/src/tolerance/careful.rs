//! The baseline: the program as a careful kernel computes it.
//!
//! Operands of contractions are rounded to the promoted dtype of the operands that the program gives them, as matrix instructions
//! take them; everything else, sums included, is f32; outputs are rounded to their dtypes. The op-by-op program, each result in
//! its own 16 bits, is no yardstick: a kernel that keeps its intermediates in registers is more accurate by itself, and the
//! difference would hide what it gets wrong.

use crate::block::Block;
use crate::evaluate::evaluate_with;
use crate::functions;
use crate::scalar::{Scalar, padded};
use crate::simulate_error::SimulateError;
use ir::{Dtype, Function, MapOp, Node, NodeId, Op, Program};

/// The baseline on the CPU, for small shapes.
pub fn baseline(program: &Program, inputs: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, SimulateError> {
    let careful = Careful::new(program);
    single(&careful.program, inputs, |node, block| {
        careful.rounded(node, block)
    })
}

/// The same, with operands rounded to either neighbour, the nearer one more often: what a careful kernel is off by with other luck.
pub fn dithered(program: &Program, inputs: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, SimulateError> {
    let careful = Careful::new(program);
    single(&careful.program, inputs, |node, mut block| {
        if let Some(dtype) = careful.dtypes[node.index()] {
            let dither = |x: &mut Single| x.0 = ir::random::dithered(x.0, dtype.lost_digits());
            block.data.iter_mut().for_each(dither);
        }
        careful.rounded(node, block)
    })
}

/// A program with a value of its own for each operand of a contraction that is rounded.
pub(crate) struct Careful {
    pub(crate) program: Program,
    dtypes: Vec<Option<Dtype>>,
}

impl Careful {
    pub(crate) fn new(program: &Program) -> Self {
        let own = program.dtypes();
        let mut careful = Self {
            program: Program {
                nodes: Vec::with_capacity(program.nodes.len()),
                ..program.clone()
            },
            dtypes: Vec::new(),
        };
        let mut places: Vec<NodeId> = Vec::with_capacity(program.nodes.len());
        for (node, dtype) in program.nodes.iter().zip(&own) {
            let mut node = node.clone();
            for arg in &mut node.args {
                let computed = !matches!(program.node(*arg).op, Op::Parameter { .. });
                let operand = places[arg.index()];
                *arg = match (&node.op, dtype) {
                    (Op::Dot { .. }, Some(dtype @ (Dtype::F16 | Dtype::Bf16))) if computed => {
                        careful.operand(operand, *dtype)
                    }
                    (
                        Op::Parameter { .. }
                        | Op::Constant(_)
                        | Op::Iota(_)
                        | Op::View { .. }
                        | Op::Map(_)
                        | Op::Reduce { .. }
                        | Op::Dot { .. },
                        _,
                    ) => operand,
                };
            }
            places.push(careful.push(node, None));
        }
        for output in &mut careful.program.outputs {
            output.value = places[output.value.index()];
        }
        careful
    }

    /// The larger of a value and itself, rounded.
    fn operand(&mut self, value: NodeId, dtype: Dtype) -> NodeId {
        let node = Node {
            op: Op::Map(MapOp::Max),
            args: vec![value, value],
            axes: self.program.node(value).axes.clone(),
            name: None,
        };
        self.push(node, Some(dtype))
    }

    fn push(&mut self, node: Node, dtype: Option<Dtype>) -> NodeId {
        self.program.nodes.push(node);
        self.dtypes.push(dtype);
        NodeId(self.program.nodes.len() as u32 - 1)
    }

    /// A value as the program that is computed has it.
    pub(crate) fn rounded<S: Scalar>(&self, node: NodeId, mut block: Block<S>) -> Block<S> {
        if let Some(dtype) = self.dtypes[node.index()] {
            for x in &mut block.data {
                *x = x.round(dtype);
            }
        }
        block
    }
}

/// A program with every operation in f32, sums one after the other, and its outputs rounded to their dtypes; every value is passed
/// through `after`.
pub(crate) fn single(
    program: &Program,
    inputs: &[Vec<f64>],
    after: impl FnMut(NodeId, Block<Single>) -> Block<Single>,
) -> Result<Vec<Vec<f64>>, SimulateError> {
    let single: Vec<Vec<Single>> = inputs
        .iter()
        .map(|t| t.iter().map(|x| Single(*x as f32)).collect())
        .collect();
    let outputs = evaluate_with(program, &single, after)?;
    Ok(outputs
        .iter()
        .zip(&program.outputs)
        .map(|(data, o)| data.iter().map(|x| o.dtype.round(f64::from(x.0))).collect())
        .collect())
}

/// f32 arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single(pub(crate) f32);

impl Scalar for Single {
    fn real(&self) -> f64 {
        f64::from(self.0)
    }
    fn constant(value: f64) -> Self {
        Self(value as f32)
    }
    fn integer(value: i64) -> Self {
        Self(value as f32)
    }
    fn add(self, y: Self) -> Self {
        Self(self.0 + y.0)
    }
    fn mul(self, y: Self) -> Self {
        Self(self.0 * y.0)
    }
    fn div(self, y: Self) -> Self {
        Self(self.0 / y.0)
    }
    fn max(self, y: Self) -> Self {
        Self(self.0.max(y.0))
    }
    fn function(function: Function, x: &[Self]) -> Self {
        Self((functions::row(function).single)(
            &padded(x, |x| x.0)[..x.len()],
        ))
    }
    fn select(self, x: Self, y: Self) -> Self {
        if self.0 >= 0.0 { x } else { y }
    }
    fn holds(&self) -> Option<bool> {
        Some(self.0 >= 0.0)
    }
    fn round(self, dtype: Dtype) -> Self {
        Self(dtype.round(f64::from(self.0)) as f32)
    }
}

#[cfg(test)]
mod tests {
    // Oracle: roundings that are made by hand.
    use super::*;
    use crate::evaluate::evaluate;
    use crate::fixtures;

    fn run(text: &str, inputs: &[Vec<f64>]) -> Vec<f64> {
        let program: Program = text.parse().unwrap_or_else(|e| panic!("{e}"));
        baseline(&program, inputs).expect("it runs").swap_remove(0)
    }

    #[test]
    fn results_are_f32_and_outputs_are_rounded() {
        let program = fixtures::row_softmax(3, 5);
        let x: Vec<f64> = (0..15).map(|i| f64::from(i) * 0.3).collect();
        let x: Vec<f64> = x.iter().map(|v| Dtype::F32.round(*v)).collect();
        let base = baseline(&program, std::slice::from_ref(&x)).expect("it runs");
        let exact = evaluate(&program, &[x]).expect("it runs");
        let worst = base[0]
            .iter()
            .zip(&exact[0])
            .fold(0.0f64, |w, (b, e)| w.max((b - e).abs()));
        assert!(worst > 0.0 && worst < 1e-6, "{worst}");
        // 300² has no f16, and its square root has.
        let head = "program p\naxis i = 1, k = 1\nx = parameter f16 [i, k]\n";
        let root = format!("{head}return f16 [i, k] sqrt(x * x)\n");
        assert_eq!(run(&root, &[vec![300.0]]), [300.0]);
    }

    #[test]
    fn operands_of_contractions_alone_are_rounded() {
        let head = "program p\naxis i = 1, k = 1\nx = parameter bf16 [i, k]\ny = parameter bf16 [k]\nz = parameter f32 [k]\n";
        let inputs = [vec![1.0], vec![1.0], vec![1.0]];
        // 1 + 2⁻¹² has no bf16.
        for (formula, wanted) in [
            ("(x + 0.000244140625) * y", 1.000_244_140_625),
            ("sum((x + 0.000244140625) * y; k)", 1.000_244_140_625),
            ("dot(x + 0.000244140625, y; k)", 1.0),
            (
                "dot(x + 0.000244140625, y; k) + (x + 0.000244140625)",
                2.000_244_140_625,
            ),
            // The promoted dtype is f32.
            ("dot(x + 0.000244140625, z; k)", 1.000_244_140_625),
        ] {
            let over = if formula.contains("; k") && !formula.contains(") +") {
                "i"
            } else {
                "i, k"
            };
            let text = format!("{head}return f32 [{over}] {formula}\n");
            assert_eq!(run(&text, &inputs), [wanted], "{formula}");
        }
    }
}

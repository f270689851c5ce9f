//! Interprets tile programs, exactly as the module documentation of [`ir::tile`] defines them.
//!
//! Block groups run independently, each on what earlier kernels left in the buffers, the grid points of one in step; stores are applied
//! afterwards, group by group, so results do not depend on threads. The interpreter refuses what a correct kernel never does: writing an
//! element twice, leaving one unwritten, reading one that nobody wrote.

mod block_group;
mod load;
mod memory;
mod run;
mod work;

pub use work::{MAX_ELEMENTS, MAX_OPERATIONS, operations};

use crate::block;
use crate::coverage::Seen;
use crate::demand::{Demand, Lists};
use crate::picked::Picked;
use crate::scalar::Scalar;
use crate::simulate_error::SimulateError;
use block_group::run_kernel;
use ir::tensor::Tensor;
use ir::{Axis, BufferRole, Dim, Kernel, TileProgram};
use memory::Memory;
use std::collections::BTreeMap;

/// How to interpret.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulateOptions {
    /// Round what is stored to the buffer's dtype, workspaces included.
    pub round_stores: bool,
}

use SimulateError::Malformed;

/// Where the elements of parameters come from.
pub(crate) trait Inputs<S>: Sync {
    /// A parameter's elements at the held coordinates of its axes, in memory order; nothing where none are asked for. Its axes have these
    /// extents.
    fn elements(
        &self,
        parameter: usize,
        name: &str,
        extents: &[usize],
        held: Option<&[Picked]>,
    ) -> Result<Vec<S>, SimulateError>;
}

/// Tensors in memory order.
impl<S: Scalar> Inputs<S> for [Vec<S>] {
    fn elements(
        &self,
        parameter: usize,
        name: &str,
        extents: &[usize],
        held: Option<&[Picked]>,
    ) -> Result<Vec<S>, SimulateError> {
        let n = block::count(extents).map_err(Malformed)?;
        let data = match self.get(parameter) {
            Some(data) if data.len() == n => data,
            other => {
                return Err(SimulateError::Input {
                    index: parameter,
                    expected: format!("{n} elements for `{name}`"),
                    found: other.map_or("none".to_owned(), |data| data.len().to_string()),
                });
            }
        };
        let Some(held) = held else {
            return Ok(Vec::new());
        };
        if held.iter().all(|p| matches!(p, Picked::All(_))) {
            return Ok(data.clone());
        }
        Ok(flat(extents, held).map(|at| data[at as usize]).collect())
    }
}

/// The places in memory of the held elements of a tensor, in order.
pub(crate) fn flat(extents: &[usize], held: &[Picked]) -> impl Iterator<Item = u64> {
    let strides = block::strides(extents);
    let along = held.iter().zip(strides);
    let all = along.fold(vec![0], |all: Vec<u64>, (held, stride)| {
        let each = all.into_iter();
        each.flat_map(|base| held.iter().map(move |c| base + c * stride as u64))
            .collect()
    });
    all.into_iter()
}

/// Interprets a tile program on parameters in memory order; gives the outputs in memory order, in output order.
pub fn interpret<S: Scalar>(
    tile: &TileProgram,
    inputs: &[Vec<S>],
    options: SimulateOptions,
) -> Result<Vec<Vec<S>>, SimulateError> {
    let demand = Demand::whole(tile)?;
    interpret_at(tile, &demand, inputs, options, None)
}

/// The elements of the outputs that are asked for, in memory order. What is met on the way is noted in `seen`.
pub(crate) fn interpret_at<S: Scalar, I: Inputs<S> + ?Sized>(
    tile: &TileProgram,
    demand: &Demand,
    inputs: &I,
    options: SimulateOptions,
    mut seen: Option<&mut Seen>,
) -> Result<Vec<Vec<S>>, SimulateError> {
    let mut memory = Memory::new(tile, demand, inputs)?;
    for (number, kernel) in tile.kernels.iter().enumerate() {
        if let Some(lists) = &demand.kernels[number] {
            let seen = seen.as_mut().map(|seen| &mut seen.kernels[number]);
            let whole = Whole {
                tile,
                number,
                kernel,
                lists,
            };
            run_kernel(whole, &mut memory, options, seen)?;
        }
    }
    memory.outputs(tile, demand)
}

/// A kernel, and the coordinates at which it runs.
#[derive(Clone, Copy)]
struct Whole<'a> {
    tile: &'a TileProgram,
    number: usize,
    kernel: &'a Kernel,
    lists: &'a Lists,
}

/// Interprets a tile program in f64: inputs in parameter order, outputs in output order, both in memory order with groups
/// merged. What is too large or takes too long is an error before anything is interpreted ([`operations`]).
pub fn simulate(
    tile: &TileProgram,
    inputs: &[Tensor],
    options: SimulateOptions,
) -> Result<Vec<Tensor>, SimulateError> {
    operations(tile)?;
    let shape = |dims: &[Dim]| -> Result<Vec<usize>, SimulateError> {
        dims.iter()
            .map(|d| {
                Ok(extents(&tile.axes, std::slice::from_ref(d))?
                    .iter()
                    .product())
            })
            .collect()
    };
    let mut shapes = BTreeMap::new();
    let mut parameters = 0;
    for buffer in &tile.buffers {
        let expected = shape(&buffer.dims)?;
        match buffer.role {
            BufferRole::Parameter(i) => {
                let index = i as usize;
                parameters = parameters.max(index + 1);
                let found = inputs.get(index).map(|t| &t.shape);
                if found != Some(&expected) {
                    return Err(SimulateError::Input {
                        index,
                        expected: format!("`{}` of shape {expected:?}", buffer.name),
                        found: found.map_or("none".into(), |f| format!("{f:?}")),
                    });
                }
            }
            BufferRole::Output(i) => {
                shapes.insert(i, expected);
            }
            BufferRole::Workspace => {}
        }
    }
    if inputs.len() > parameters {
        return Err(SimulateError::Input {
            index: parameters,
            expected: "no such input".into(),
            found: format!("{} inputs", inputs.len()),
        });
    }
    let data: Vec<Vec<f64>> = inputs.iter().map(|t| t.data.clone()).collect();
    let outputs = interpret(tile, &data, options)?;
    Ok(outputs
        .into_iter()
        .zip(shapes.into_values())
        .map(|(data, shape)| Tensor { shape, data })
        .collect())
}

/// The extents of the axes of a tensor, groups flattened.
pub(crate) fn extents(table: &[Axis], dims: &[Dim]) -> Result<Vec<usize>, SimulateError> {
    dims.iter()
        .flat_map(|d| &d.0)
        .map(|a| match table.get(a.index()) {
            Some(axis) if axis.extent >= 1 => Ok(axis.extent as usize),
            Some(_) | None => Err(Malformed(format!("axis {} has no extent", a.0))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    // Oracle: the program, evaluated op by op in the same number system, and for two programs plain loops.
    use super::*;
    use crate::evaluate::evaluate;
    use crate::field::{Agreement, Element};
    use crate::fixtures::{self, attention};
    use ir::{Bound, Statement};
    use rand::{RngExt, SeedableRng};

    fn check(program: &ir::Program, tile: &TileProgram) {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let sizes: Vec<u64> = program
            .parameters()
            .map(|(_, _, _, dims)| program.shape(dims).iter().product())
            .collect();
        let real: Vec<Vec<f64>> = sizes
            .iter()
            .map(|n| (0..*n).map(|_| rng.random::<f64>() * 4.0 - 2.0).collect())
            .collect();
        let exact: Vec<Vec<Element>> = sizes
            .iter()
            .map(|n| {
                (0..*n)
                    .map(|_| Element::new(rng.random(), rng.random(), rng.random()))
                    .collect()
            })
            .collect();
        let got = interpret(tile, &real, SimulateOptions::default()).expect("it runs");
        let want = evaluate(program, &real).expect("it runs");
        for (g, w) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((g - w).abs() < 1e-12, "{g} {w}");
        }
        let got = interpret(tile, &exact, SimulateOptions::default()).expect("it runs");
        let want = evaluate(program, &exact).expect("it runs");
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().flatten().zip(want.iter().flatten()) {
            assert_eq!(g.agreement(*w), Agreement::Equal, "{g:?} {w:?}");
        }
    }

    #[test]
    fn hand_written_tilings_equal_their_programs() {
        for e in [[5, 7, 3, 2], [1, 1, 1, 1], [4, 6, 2, 3], [2, 13, 1, 1]] {
            check(&attention(e, None), &fixtures::online_attention(e, None));
            for offset in [0, 2] {
                check(
                    &attention(e, Some(offset)),
                    &fixtures::online_attention(e, Some(offset)),
                );
            }
            check(
                &fixtures::row_softmax(e[0], e[1]),
                &fixtures::two_pass_softmax(e[0], e[1]),
            );
            check(
                &fixtures::row_softmax(e[0], e[1]),
                &fixtures::block_group_softmax(e[0], e[1]),
            );
            check(
                &fixtures::row_sums(e[0], e[1]),
                &fixtures::block_group_sums(e[0], e[1]),
            );
        }
        for (j, chunk) in [(6, 4), (6, 2), (7, 8), (3, 2)] {
            let e = [3, j, 2, 2];
            check(&attention(e, None), &fixtures::split_attention(e, chunk));
        }
    }

    #[test]
    fn plain_loops_agree() {
        // Rows of a softmax against the formula written out.
        let x: Vec<f64> = (0..10).map(|i| f64::from(i * i % 7) * 0.5).collect();
        let tile = fixtures::two_pass_softmax(2, 5);
        let got = interpret(&tile, std::slice::from_ref(&x), SimulateOptions::default())
            .expect("it runs");
        for (row, out) in x.chunks(5).zip(got[0].chunks(5)) {
            let sum: f64 = row.iter().map(|v| v.exp()).sum();
            for (v, o) in row.iter().zip(out) {
                assert!((v.exp() / sum - o).abs() < 1e-14);
            }
        }
    }

    #[test]
    fn stores_are_watched() {
        let run = |tile: &TileProgram| {
            interpret(tile, &[vec![1.0; 10]], SimulateOptions::default()).map(|_| ())
        };
        let good = fixtures::two_pass_softmax(2, 5);
        assert_eq!(run(&good), Ok(()));
        // The second loop ends one tile early.
        let mut short = good.clone();
        if let Some(Statement::Loop(last)) = short.kernels[0].body.last_mut() {
            last.high.push(Bound {
                entries: Vec::new(),
                terms: Vec::new(),
                offset: 3,
                divisor: 1,
            });
        }
        let hole = SimulateError::Unwritten {
            buffer: "out0".into(),
            coordinate: vec![0, 3],
        };
        assert_eq!(run(&short), Err(hole));
        let mut twice = good.clone();
        let again = twice.kernels[0]
            .body
            .last()
            .cloned()
            .expect("it has statements");
        twice.kernels[0].body.push(again);
        assert!(matches!(
            run(&twice),
            Err(SimulateError::WrittenTwice { .. })
        ));
        let e = [2, 4, 1, 1];
        let mut early = fixtures::split_attention(e, 2);
        early.kernels.swap(0, 1);
        let inputs = [vec![1.0; 2], vec![1.0; 4], vec![1.0; 4]];
        let result = interpret(&early, &inputs, SimulateOptions::default());
        assert!(matches!(result, Err(SimulateError::ReadUnwritten { .. })));
    }
}

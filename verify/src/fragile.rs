//! Whether an equal form of a program keeps in f32 what the program keeps.
//!
//! Algebra knows no rounding: `Σ(x − y)²` and `Σx² + Σy² − 2·Σxy` are one function, and where `x` is near `y` the second has no correct
//! digit. So an expression is evaluated as the program is, op by op in f32, on inputs on which differences cancel and products
//! overflow, and both are held against the program in f64. The rule is that of [`crate::tolerance`] with wider constants: a kernel
//! may round several times where the program rounds once, and what is looked for here is the loss of most digits.
//!
//! Extents are small, but for those that the program counts with: a mean over four elements that divides by the true extent is no
//! mean, and nothing cancels in it. Where that is too much work, program and form are made smaller together: numbers that count the
//! elements of a reduction count what is left of them.
//!
//! Where a program has 16-bit parameters the same is done once more with the operands of contractions rounded, as matrix
//! instructions take them.
//!
//! This is a test and no bound: inputs that are drawn here show what they show.

use crate::block::Block;
use crate::domain::domains;
use crate::evaluate::{evaluate, evaluate_with};
use crate::inputs::depth;
use crate::scalar::Scalar;
use crate::shapes::{Extents, Shapes, program_at, recounted};
use crate::tolerance::{Single, Tolerance, compare, longest_sum, single};
use ir::{AxisId, Dtype, MapOp, NodeId, Op, Program, Reject};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How many times the program's own error an expression may make.
const FACTOR: f64 = 32.0;

/// How far from the reference an expression may be whose longest sum has `terms`.
fn tolerance(dtype: Dtype, terms: f64) -> Tolerance {
    Tolerance {
        factor: FACTOR,
        floor: match dtype {
            // The roundings of a sum, one after the other, add up as a random walk.
            Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => FACTOR + terms.sqrt(),
            // A few roundings to 16 bits are many in f32, where the expression computes.
            Dtype::F16 | Dtype::Bf16 => Tolerance::default().floor,
        },
    }
}

/// Element operations that looking for places takes, of all forms together: seconds.
const LOOKING: u64 = 100_000_000;
/// Element operations of one evaluation: a millisecond.
const WORK: u64 = 200_000;
/// Where extents may be larger than they need to be.
const LITTLE_WORK: u64 = 20_000;
/// The same where extents that are counted with leave no choice.
const MOST_WORK: u64 = 4_000_000;
/// Extents of axes that are free, the best first: odd and even, and enough for sums to be sums.
const SIZES: &[u64] = &[5, 4, 3, 2];
/// The same where it costs little.
const MANY: &[u64] = &[24, 12];

/// Numbers to compare on: normal ones of a deviation about a centre.
struct Trial {
    name: &'static str,
    centre: f64,
    deviation: Deviation,
    /// Which parameters have the centre; the others are standard normal.
    whose: Whose,
    /// Whether it is tried where an evaluation takes long.
    always: bool,
}

#[derive(Clone, Copy)]
enum Deviation {
    Of(f64),
    /// So much for contractions, over all that they sum.
    Contracted(f64),
}

#[derive(Clone, Copy, PartialEq)]
enum Whose {
    /// All of them.
    All,
    /// All of them, and they repeat each other's numbers: rows of one are rows of the next.
    Shared,
    /// The first.
    First,
}

#[rustfmt::skip]
const TRIALS: &[Trial] = &[
    Trial { name: "normal",          centre: 0.0,    deviation: Deviation::Of(1.0),          whose: Whose::All,    always: false },
    // Sums of squares against their difference: digits lost are log10 of (centre / deviation)².
    Trial { name: "far from zero",   centre: 100.0,  deviation: Deviation::Of(1.0),          whose: Whose::All,    always: true  },
    Trial { name: "nearly constant", centre: 1.0,    deviation: Deviation::Of(1e-3),         whose: Whose::All,    always: false },
    Trial { name: "first far",       centre: 1000.0, deviation: Deviation::Of(1.0),          whose: Whose::First,  always: false },
    // Distances that are zero.
    Trial { name: "equal rows",      centre: 10.0,   deviation: Deviation::Of(1.0),          whose: Whose::Shared, always: true  },
    // Exponentials that overflow by themselves, and ones that don't, but whose products do.
    Trial { name: "large",           centre: 0.0,    deviation: Deviation::Contracted(30.0), whose: Whose::All,    always: true  },
    Trial { name: "largish",         centre: 0.0,    deviation: Deviation::Of(3.0),          whose: Whose::All,    always: false },
];

/// Where an expression is compared with the program.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    extents: Extents,
    /// Whether numbers that count elements count those of the small extents.
    recounted: bool,
}

impl Place {
    fn of(&self, program: &Program) -> Program {
        let small = program_at(program, &self.extents);
        if self.recounted {
            recounted(program, small)
        } else {
            small
        }
    }
}

/// What the program itself gives at some extents.
struct Setting {
    place: Place,
    trials: Vec<Given>,
}

/// Inputs, and the program's results on them.
struct Given {
    name: &'static str,
    /// Whether operands of contractions are rounded to 16 bits where the program's dtypes are such.
    narrow: bool,
    inputs: Vec<Vec<f64>>,
    reference: Vec<Vec<f64>>,
    own: Vec<Vec<f64>>,
}

/// An expression that is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragile {
    /// Why.
    pub reject: Reject,
    /// The relative error of each value of the expression, where it was refused; infinite where f32 overflows. Empty where the
    /// expression is not equal to the program at all.
    pub errors: Vec<f64>,
}

/// Compares the expressions of one program with it.
pub struct Keeper<'a> {
    program: &'a Program,
    /// Axes whose extents the program has as numbers.
    counted: BTreeSet<usize>,
    settings: Vec<Setting>,
    /// Where forms of each skeleton are compared; none where no place was found.
    places: BTreeMap<Vec<String>, Option<Place>>,
    /// Element operations that looking for places may still take.
    left: u64,
    seed: u64,
}

impl<'a> Keeper<'a> {
    /// For the expressions of a program.
    pub fn new(program: &'a Program, seed: u64) -> Self {
        Self {
            program,
            counted: counted(program),
            settings: Vec::new(),
            places: BTreeMap::new(),
            left: LOOKING,
            seed,
        }
    }

    /// Whether an expression, which has the program's axes, parameters and outputs, loses nothing that the program keeps. `None` where
    /// it could not be evaluated at extents that are small enough.
    pub fn keeps(&mut self, expression: &Program) -> Result<Option<()>, Fragile> {
        if expression.nodes == self.program.nodes {
            return Ok(Some(()));
        }
        let failed = |reject: Reject| Fragile {
            reject,
            errors: Vec::new(),
        };
        let Some(place) = self.place(expression).map_err(failed)? else {
            return Ok(None);
        };
        let expression = place.of(expression);
        let setting = self.setting(place).map_err(failed)?;
        let verdicts: Vec<Result<(), Fragile>> = setting
            .trials
            .par_iter()
            .map(|given| given.judge(&expression))
            .collect();
        verdicts.into_iter().collect::<Result<(), Fragile>>()?;
        Ok(Some(()))
    }

    /// Where the expression is the program: looked for once a skeleton, for forms that reduce the same and have the same numbers are
    /// equal to the program at the same extents, but for what cheap arithmetic makes of them.
    fn place(&mut self, expression: &Program) -> Result<Option<Place>, Reject> {
        let skeleton = skeleton(expression);
        match self.places.get(&skeleton) {
            Some(None) => return Ok(None),
            Some(Some(place)) if self.agrees(expression, place)? => {
                return Ok(Some(place.clone()));
            }
            Some(Some(_)) | None => {}
        }
        let found = self.look(expression)?;
        self.places.insert(skeleton, found.clone());
        Ok(found)
    }

    /// Whether the expression was seen to be the program at a place.
    fn agrees(&self, expression: &Program, place: &Place) -> Result<bool, Reject> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let (program, expression) = (place.of(self.program), place.of(expression));
        let shapes = Shapes::new(&program, &expression, None, WORK)?;
        Ok(shapes.agree(&Extents::new(), &mut rng).is_some())
    }

    /// Small extents at which the expression is the program.
    fn look(&mut self, expression: &Program) -> Result<Option<Place>, Reject> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let none = BTreeSet::new();
        let usual = |extents| Place {
            extents,
            recounted: false,
        };
        for own in [true, false] {
            let mut shapes = Shapes::new(self.program, expression, None, WORK)?;
            if !own {
                for (most, sizes) in [(LITTLE_WORK, MANY), (WORK, SIZES)] {
                    let mut sizes = sizes.iter().map(|size| shapes.small(&none, *size));
                    let fitting = sizes.find(|extents| shapes.work(extents) <= most);
                    let place = fitting.map(|extents| Place {
                        extents,
                        recounted: true,
                    });
                    if let Some(place) = place
                        && self.agrees(expression, &place)?
                    {
                        return Ok(Some(place));
                    }
                }
                // Extents that the derivation counted with.
                shapes.pin_counted_extents(&mut rng, WORK, &mut self.left);
            }
            // One element of everything may be right by luck: a correlation with itself is 1 whatever was lost.
            for (kept, most, sizes) in [
                (&self.counted, LITTLE_WORK, MANY),
                (&self.counted, WORK, SIZES),
                (&self.counted, MOST_WORK, &[2, 1]),
                (&none, WORK, SIZES),
                (&none, MOST_WORK, &[2, 1]),
            ] {
                let mut sizes = sizes.iter().map(|size| shapes.small(kept, *size));
                let fitting = sizes.find(|extents| shapes.work(extents) <= most);
                let Some(extents) = fitting else { continue };
                let work = 2 * shapes.work(&extents);
                if work > self.left {
                    return Ok(None);
                }
                self.left -= work;
                if shapes.agree(&extents, &mut rng).is_some() {
                    return Ok(Some(usual(extents)));
                }
            }
        }
        Ok(None)
    }

    fn setting(&mut self, place: Place) -> Result<&Setting, Reject> {
        let known = self.settings.iter().position(|s| s.place == place);
        let at = match known {
            Some(at) => at,
            None => {
                let program = place.of(self.program);
                let shapes = Shapes::new(&program, &program, None, WORK)?;
                let long = shapes.work(&place.extents) > WORK;
                let narrow = program
                    .parameters()
                    .any(|(_, _, dtype, _)| dtype != Dtype::F32);
                let ways: &[bool] = if narrow { &[false, true] } else { &[false] };
                let trials: Result<Vec<Given>, Reject> = TRIALS
                    .par_iter()
                    .filter(|trial| trial.always || !long)
                    .flat_map_iter(|trial| ways.iter().map(move |narrow| (trial, *narrow)))
                    .map(|(trial, narrow)| Given::new(&program, trial, narrow, self.seed))
                    .collect();
                self.settings.push(Setting {
                    place,
                    trials: trials?,
                });
                self.settings.len() - 1
            }
        };
        Ok(&self.settings[at])
    }
}

impl Given {
    fn new(program: &Program, trial: &Trial, narrow: bool, seed: u64) -> Result<Self, Reject> {
        let inputs = trial.draw(program, seed);
        let wrong = |e: crate::SimulateError| Reject::Wrong(e.to_string());
        Ok(Self {
            name: trial.name,
            reference: evaluate(program, &inputs).map_err(wrong)?,
            own: single(program, &inputs, rounding(program, narrow)).map_err(wrong)?,
            inputs,
            narrow,
        })
    }

    fn judge(&self, expression: &Program) -> Result<(), Fragile> {
        let failed = |reject: Reject| Fragile {
            reject,
            errors: self.errors(expression),
        };
        let got = single(expression, &self.inputs, rounding(expression, self.narrow))
            .map_err(|e| failed(Reject::Wrong(e.to_string())))?;
        let terms = longest_sum(expression);
        for (number, output) in expression.outputs.iter().enumerate() {
            let (reference, own) = (&self.reference[number], &self.own[number]);
            let row = expression
                .shape(&output.dims)
                .last()
                .map_or(1, |n| *n as usize);
            // Where the program itself gives no number, nothing is asked.
            let given = |x: f64| output.dtype.round(x).is_finite();
            let asked: Vec<f64> = got[number]
                .iter()
                .zip(reference.iter().zip(own))
                .map(|(g, (r, o))| if given(*r) && given(*o) { *g } else { *r })
                .collect();
            compare(
                &asked,
                reference,
                own,
                row,
                output.dtype,
                tolerance(output.dtype, terms),
            )
            .map_err(|reject| {
                let text = if let Reject::Wrong(text) = &reject {
                    text.clone()
                } else {
                    reject.to_string()
                };
                failed(Reject::Fragile(format!(
                    "in f32{}, on inputs that are {}, of output {number} {text}; the program itself is off by at most {:.1e}",
                    if self.narrow {
                        " with contractions of 16-bit operands"
                    } else {
                        ""
                    },
                    self.name,
                    worst(own, reference)
                )))
            })?;
        }
        Ok(())
    }

    /// The relative error of every value in f32.
    fn errors(&self, expression: &Program) -> Vec<f64> {
        let mut exact: Vec<Vec<f64>> = vec![Vec::new(); expression.nodes.len()];
        let mut rounded = exact.clone();
        let reference = evaluate_with(expression, &self.inputs, |node, block| {
            exact[node.index()].clone_from(&block.data);
            block
        });
        let mut round = rounding(expression, self.narrow);
        let own = single(expression, &self.inputs, |node, block| {
            let block = round(node, block);
            rounded[node.index()] = block.data.iter().map(|x| f64::from(x.0)).collect();
            block
        });
        if reference.is_err() || own.is_err() {
            return Vec::new();
        }
        exact
            .iter()
            .zip(&rounded)
            .map(|(e, r)| {
                let top = e.iter().filter(|x| x.is_finite());
                let top = top.fold(0.0f64, |top, x| top.max(x.abs()));
                match worst(r, e) {
                    0.0 => 0.0,
                    worst => worst / top,
                }
            })
            .collect()
    }
}

/// Rounds what is computed for a contraction to 16 bits, where its dtype in the op-by-op program has as many: matrix instructions
/// take no other operands. `narrow` is false for f32 throughout.
fn rounding(program: &Program, narrow: bool) -> impl FnMut(NodeId, Block<Single>) -> Block<Single> {
    let dtypes = if narrow {
        rounded_operands(program)
    } else {
        Vec::new()
    };
    move |node, mut block| {
        if let Some(Some(dtype)) = dtypes.get(node.index()) {
            for x in &mut block.data {
                *x = x.round(*dtype);
            }
        }
        block
    }
}

/// The 16-bit dtypes of what is computed for contractions.
fn rounded_operands(program: &Program) -> Vec<Option<Dtype>> {
    let mut rounded = vec![None; program.nodes.len()];
    let dtypes = program.dtypes();
    for node in &program.nodes {
        let Op::Dot { axes } = &node.op else {
            continue;
        };
        let free = |n: usize| program.node(node.args[n]).axes.minus(axes);
        let (left, right) = (free(0), free(1));
        // Products of a matrix with a vector are computed in f32.
        if !left.minus(&right).is_empty() && !right.minus(&left).is_empty() {
            for operand in &node.args {
                rounded[operand.index()] = dtypes[operand.index()].filter(|d| *d != Dtype::F32);
            }
        }
    }
    rounded
}

/// The largest difference where the second is finite; infinite where the first is not.
fn worst(got: &[f64], reference: &[f64]) -> f64 {
    let pairs = got.iter().zip(reference).filter(|(_, r)| r.is_finite());
    pairs.fold(0.0f64, |worst, (g, r)| {
        if g.is_finite() {
            worst.max((g - r).abs())
        } else {
            f64::INFINITY
        }
    })
}

impl Trial {
    fn draw(&self, program: &Program, seed: u64) -> Vec<Vec<f64>> {
        let depth = depth(program).max(1.0);
        let parameters = program.parameters().zip(domains(program)).enumerate();
        parameters
            .map(|(number, ((_, _, dtype, dims), domain))| {
                let stream = if self.whose == Whose::Shared {
                    0
                } else {
                    number as u64
                };
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(stream);
                let (centre, deviation) = match (self.whose, self.deviation) {
                    (Whose::First, _) if number > 0 => (0.0, 1.0),
                    (_, Deviation::Of(deviation)) => (self.centre, deviation),
                    // Products of two deviations, √depth of them.
                    (_, Deviation::Contracted(d)) if depth > 1.0 => {
                        (self.centre, (d / depth.sqrt()).sqrt())
                    }
                    (_, Deviation::Contracted(d)) => (self.centre, d),
                };
                let count: u64 = program.shape(dims).iter().product();
                (0..count)
                    .map(|_| {
                        let x = centre + deviation * normal(&mut rng);
                        let drawn = dtype.held().unwrap_or(Dtype::F32).round(x);
                        dtype.round(domain.fold(drawn))
                    })
                    .collect()
            })
            .collect()
    }
}

/// Box and Muller (1958).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// What hangs on what in a form, but for cheap arithmetic: what is reduced and contracted over which axes, the views, and the numbers.
fn skeleton(program: &Program) -> Vec<String> {
    let mut lines: Vec<String> = program
        .nodes
        .iter()
        .filter_map(|node| match &node.op {
            Op::Reduce { .. } | Op::Dot { .. } | Op::View { .. } => {
                Some(format!("{:?} of {:?}", node.op, node.axes))
            }
            Op::Constant(c) => Some(format!("{c:e}")),
            Op::Parameter { .. } | Op::Iota(_) | Op::Map(_) => None,
        })
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

/// The axes whose extents the program has as factors: a number that something is multiplied with or divided by, or one over it, is the
/// number of elements that some reduction sums, or one less.
fn counted(program: &Program) -> BTreeSet<usize> {
    let mut numbers: Vec<Option<f64>> = Vec::with_capacity(program.nodes.len());
    let mut factors: Vec<f64> = Vec::new();
    for node in &program.nodes {
        let args: Vec<Option<f64>> = node.args.iter().map(|a| numbers[a.index()]).collect();
        let all: Option<Vec<f64>> = args.iter().copied().collect();
        let number = match (&node.op, all) {
            (Op::Constant(c), _) => Some(*c),
            (Op::Map(op), Some(all)) => Some(op.apply(&all)),
            (
                Op::Parameter { .. }
                | Op::Iota(_)
                | Op::View { .. }
                | Op::Map(_)
                | Op::Reduce { .. }
                | Op::Dot { .. },
                _,
            ) => None,
        };
        if matches!(node.op, Op::Map(MapOp::Mul | MapOp::Div)) && number.is_none() {
            let given = args.iter().flatten().filter(|c| **c != 0.0);
            factors.extend(given.map(|c| if c.abs() < 1.0 { 1.0 / c } else { *c }));
        }
        numbers.push(number);
    }
    let mut counted = BTreeSet::new();
    for node in &program.nodes {
        if let Op::Reduce { axes, .. } | Op::Dot { axes } = &node.op {
            let whole: f64 = axes.iter().map(|a| program.extent(a) as f64).product();
            let is_number = |n: f64| {
                let near = |c: &f64| {
                    (c.abs() - n).abs() <= 1e-5 * n || (c.abs() - (n - 1.0)).abs() <= 1e-5 * n
                };
                n > 1.0 && factors.iter().any(near)
            };
            let all: Vec<AxisId> = axes.iter().collect();
            if is_number(whole) {
                counted.extend(all.iter().map(|a| a.index()));
            }
            for axis in all {
                if is_number(program.extent(axis) as f64) {
                    counted.insert(axis.index());
                }
            }
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    // Oracle: what the numerical analyst knows of each pair: which of two equal forms loses its digits, or overflows.
    use super::*;

    const NORM: &str =
        "axis i = 4, j = 4, d = 256\nx = parameter f32 [i, d]\ny = parameter f32 [j, d]\n";
    const ONE: &str = "axis n = 8\nx = parameter f32 [n]\n";
    const OUTER: &str = "axis i = 64, j = 64\nx = parameter f32 [i]\ny = parameter f32 [j]\n";
    const HALF: &str = "axis t = 64, a = 4, b = 4\nx = parameter bf16 [t, a]\n";
    const CHAIN: &str = "axis i = 64, j = 64, k = 64, l = 64\na = parameter f32 [i, j]\nb = parameter f32 [j, k]\nc = parameter f32 [k, l]\n";
    const SOFT: &str =
        "axis i = 8, j = 32, e = 8\ns = parameter f32 [i, j]\nv = parameter f32 [j, e]\n";

    /// Of so many elements that none of their extents can be kept.
    const BATCH: &str = "axis n = 8, c = 64, p = 56, q = 56\nx = parameter f32 [n, c, p, q]\n";

    #[rustfmt::skip]
    const PAIRS: &[(&str, &str, &str, bool)] = &[
        // Lost by cancellation.
        (NORM, "sum((x - y) * (x - y); d)", "sum(x * x; d) + sum(y * y; d) - 2 * dot(x, y; d)", false),
        (NORM, "sqrt(sum((x - y) * (x - y); d))", "sqrt(sum(x * x; d) + sum(y * y; d) - 2 * dot(x, y; d))", false),
        (NORM, "dot(x - mean(x; d), y - mean(y; d); d)", "dot(x, y; d) - size(d) * mean(x; d) * mean(y; d)", false),
        (NORM, "dot(x - mean(x; d), y - mean(y; d); d)", "dot(x - mean(x; d), y; d)", false),
        (NORM, "dot(layer_norm(x; d, 1e-5), y; d)", "dot(x, y; d) / sqrt(mean(x * x; d) - mean(x; d) * mean(x; d) + 1e-5) - mean(x; d) * sum(y; d) / sqrt(mean(x * x; d) - mean(x; d) * mean(x; d) + 1e-5)", false),
        // Products of matrices take 16-bit operands: what is centred has few digits, what it is multiplied with is large.
        (HALF, "dot(x - mean(x; t), view(x - mean(x; t); a -> b); t)", "dot(x, view(x - mean(x; t); a -> b); t)", false),
        // Lost to overflow.
        (OUTER, "exp(x * x * x) * (exp(y * y * y) / exp(y * y * y + 1))", "exp(x * x * x) * exp(y * y * y) / exp(y * y * y + 1)", false),
        (ONE, "exp(x - max(x; n))", "exp(x) / exp(max(x; n))", false),
        (SOFT, "dot(softmax(s; j), v; j)", "dot(exp(s), v; j) / sum(exp(s); j)", false),
        (BATCH, "mean((x - mean(x; c, p, q)) * (x - mean(x; c, p, q)); c, p, q)", "mean(x * x; c, p, q) - mean(x; c, p, q) * mean(x; c, p, q)", false),
        (BATCH, "mean((x - mean(x; n, p, q)) * (x - mean(x; n, p, q)); c, p, q)", "mean(x * x; c, p, q) + mean(mean(x; n, p, q) * mean(x; n, p, q); c) - 2 * sum(x * mean(x; n, p, q); c, p, q) / 200704", false),
        // Kept.
        (BATCH, "mean(mean(mean(x; c); p); q)", "sum(x; c, p, q) * 4.982461734693878e-6", true),
        (BATCH, "mean(x - mean(x; n, p, q); c, p, q)", "mean(x; c, p, q) - sum(mean(mean(x; n); p, q); c) / 64", true),
        (SOFT, "dot(softmax(s; j), v; j)", "dot(exp(s - max(s; j)), v; j) / sum(exp(s - max(s; j)); j)", true),
        (NORM, "dot(layer_norm(x; d, 1e-5), y; d)", "dot(x - mean(x; d), y; d) / sqrt(mean((x - mean(x; d)) * (x - mean(x; d)); d) + 1e-5)", true),
        (NORM, "dot(x / sqrt(mean(x * x; d) + 1e-5), y; d)", "dot(x, y; d) / sqrt(mean(x * x; d) + 1e-5)", true),
        (NORM, "dot(x, y; d) * sum(x + 1; d)", "dot(x, y; d) * (sum(x; d) + 256)", true),
        (CHAIN, "dot(dot(a, b; j), c; k)", "dot(a, dot(b, c; k); j)", true),
    ];

    #[test]
    fn forms_that_lose_digits_are_told_from_others() {
        for (declared, program, form, kept) in PAIRS {
            let read = |value: &str| {
                let p = ir::parse(
                    &format!(
                        "program p\n{declared}return f32 {} {value}\n",
                        axes_of(declared)
                    ),
                    "p",
                );
                p.unwrap_or_else(|e| panic!("{e}"))
            };
            let (program, form) = (read(program), read(form));
            let verdict = Keeper::new(&program, 0).keeps(&form);
            assert_eq!(verdict.is_ok(), *kept, "{verdict:?}\n{form}");
            assert_ne!(verdict, Ok(None), "no place was found\n{form}");
            if let Err(refused) = verdict {
                assert_eq!(refused.reject.reason(), "fragile");
                assert_eq!(refused.errors.len(), form.nodes.len());
            }
            // The program itself is what it is, whatever that is.
            assert_eq!(Keeper::new(&form, 0).keeps(&form), Ok(Some(())));
        }
    }

    fn axes_of(declared: &str) -> &'static str {
        match declared {
            NORM | OUTER => "[i, j]",
            BATCH => "[n]",
            ONE => "[n]",
            HALF => "[a, b]",
            CHAIN => "[i, l]",
            _ => "[i, e]",
        }
    }

    #[test]
    fn what_is_summed_keeps_its_extent_where_it_is_a_factor() {
        let read = |text: &str| ir::parse(text, "p").unwrap_or_else(|e| panic!("{e}"));
        let names = |text: &str| -> Vec<String> {
            let p = read(text);
            counted(&p)
                .iter()
                .map(|a| p.axes[*a].name.clone())
                .collect()
        };
        let with = |value: &str| {
            format!(
                "program p\naxis t = 3000, u = 7, a = 5\nx = parameter f32 [t, u, a]\nreturn f32 [a] {value}\n"
            )
        };
        assert_eq!(names(&with("mean(sum(x; u); t)")), ["t"]);
        assert_eq!(names(&with("sum(x; t, u) / 21000")), ["t", "u"]);
        assert_eq!(names(&with("sum(sum(x; t) / (size(u) - 1); u)")), ["u"]);
        assert!(names(&with("sum(x; t, u) + 3000")).is_empty());
    }
}

//! Programs of all operations.

use crate::bounded::{Bounded, Known};
use crate::choices::{AXES, Condition, EXTENTS, Stored};
use ir::{Affine, AxisId, AxisSet, BuildError, Function, NodeId, Program, Quotient, ReduceOp};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Range, RangeInclusive};

/// What a strategy draws, and how much of it.
struct Shape {
    name: &'static str,
    axes: RangeInclusive<usize>,
    extents: &'static [u64],
    /// How often an axis has the extent of the axis before: a tensor may have both.
    twins: f64,
    parameters: RangeInclusive<usize>,
    steps: Range<usize>,
    returns: Returns,
    /// Most elements of a value.
    elements: u64,
}

/// Which values are results.
#[derive(Clone, Copy, Debug)]
enum Returns {
    /// The newest value, so that most of the program is needed, and up to so many others.
    Newest(usize),
    /// What nobody uses, joined until so many values are left: all of the program is needed.
    Ends(usize),
}

const SMALL: Shape = Shape {
    name: "random",
    axes: 3..=6,
    extents: EXTENTS,
    twins: 0.0,
    parameters: 1..=3,
    steps: 3..17,
    returns: Returns::Newest(2),
    elements: 3000,
};

/// Extents are scalars in disguise, primes, less than any tile, and more than one.
const LARGE: Shape = Shape {
    name: "large",
    axes: 4..=10,
    extents: &[1, 1, 2, 3, 5, 7, 13, 16, 31, 64, 97, 131],
    twins: 1.0 / 3.0,
    parameters: 1..=6,
    steps: 15..180,
    returns: Returns::Ends(8),
    elements: 200_000,
};

/// A random program: all 14 operations, one to three parameters, groups, views with and without `fill`, several outputs.
pub fn programs() -> impl Strategy<Value = Program> {
    of_shape(&SMALL)
}

/// As [`programs`], but large: up to some hundred operations that all are needed, up to eight outputs and six parameters, ten axes with
/// extents from 1 to 131, tensors under two axis names, reductions of reductions, and scalars.
pub fn large_programs() -> impl Strategy<Value = Program> {
    of_shape(&LARGE)
}

/// Sums of ends stay within this magnitude.
const JOINED: f64 = 4.0;
/// Names of parameters, as many as a shape may have.
const PARAMETERS: [&str; 6] = ["x", "y", "z", "u", "v", "w"];

fn of_shape(shape: &'static Shape) -> impl Strategy<Value = Program> {
    let most_steps = shape.steps.end - 1;
    let results = match shape.returns {
        Returns::Newest(others) => vec((any::<Index>(), Stored::made()), 1..=others + 1),
        Returns::Ends(ends) => vec((any::<Index>(), Stored::made()), ends),
    };
    let extent = (select(shape.extents), prop::bool::weighted(shape.twins));
    // They shrink from first to last: what makes the program smaller stands before what makes it simpler.
    let recipe = (
        results,
        shape.steps.clone(),
        vec(Kept::any(), most_steps),
        shape.axes.clone(),
        vec(extent, AXES.len()),
        vec(
            (vec(any::<Index>(), 0..=3), Stored::given()),
            shape.parameters.clone(),
        ),
        vec(Step::any(), most_steps),
    );
    recipe.prop_map(
        |(results, length, kept, axes, extents, parameters, steps)| {
            let mut before = 1;
            let extents = extents.into_iter().take(axes).map(|(extent, twin)| {
                before = if twin { before } else { extent };
                before
            });
            let b = Bounded::new(shape.name, extents, shape.elements);
            let mut making = Making::new(b, &parameters);
            for (kept, step) in kept.into_iter().zip(&steps).take(length) {
                making.step(kept, step);
            }
            making.program(shape.returns, &results)
        },
    )
}

/// Whether a step is applied: drawn ones all are, and shrinking lets them stand for an operand.
#[derive(Clone, Copy, Debug)]
enum Kept {
    First,
    Second,
    Applied,
}

impl Kept {
    fn any() -> impl Strategy<Value = Self> {
        let always = || prop::bool::weighted(1.0);
        (always(), always()).prop_map(|(not_first, not_second)| match (not_first, not_second) {
            (true, true) => Self::Applied,
            (true, false) => Self::Second,
            (false, _) => Self::First,
        })
    }
}

/// One operation and its operands; a unary one has the first.
#[derive(Clone, Debug)]
struct Step {
    choice: Choice,
    x: Newer,
    y: Newer,
}

/// The newer of two values, so that programs are deep.
#[derive(Clone, Debug)]
struct Newer([Index; 2]);

#[derive(Clone, Debug)]
enum Choice {
    Add,
    Mul,
    Max,
    Exp,
    Sqrt,
    Log,
    Div,
    Constant(f64),
    Iota(Index),
    Reduce(ReduceOp, Vec<Index>),
    Dot(Vec<Index>),
    Select(Condition),
    View(View),
}

/// `x[divisor * source -> a + b + offset]`
#[derive(Clone, Debug)]
struct View {
    source: Index,
    divisor: i64,
    first: (i64, Index),
    second: Option<(i64, Index)>,
    /// The last coordinate of the source where there is none.
    offset: Option<i64>,
    /// A second axis that is read backwards.
    backwards: Option<Index>,
    /// Whether there is a fill where none is needed.
    filled: bool,
    fill: f64,
}

impl Step {
    fn any() -> impl Strategy<Value = Self> {
        let operand = || [any::<Index>(), any::<Index>()].prop_map(Newer);
        (Choice::any(), operand(), operand()).prop_map(|(choice, x, y)| Self { choice, x, y })
    }
}

impl Choice {
    fn any() -> impl Strategy<Value = Self> {
        let maps = [
            Self::Add,
            Self::Mul,
            Self::Max,
            Self::Exp,
            Self::Sqrt,
            Self::Log,
            Self::Div,
        ];
        let constants = &[0.0, 1.0, 2.0, 0.5, -1.0, -0.125, 1e-3];
        let axes = || vec(any::<Index>(), 1..=3);
        let reductions = (select(&ReduceOp::ALL), axes());
        prop_oneof![
            maps.len() as u32 => select(maps.to_vec()),
            1 => select(constants).prop_map(Self::Constant),
            1 => any::<Index>().prop_map(Self::Iota),
            1 => reductions.prop_map(|(op, axes)| Self::Reduce(op, axes)),
            1 => axes().prop_map(Self::Dot),
            1 => Condition::any().prop_map(Self::Select),
            1 => View::any().prop_map(Self::View),
        ]
    }
}

impl View {
    fn any() -> impl Strategy<Value = Self> {
        let view = (
            prop::option::of(any::<Index>()),
            prop::option::of((select(&[1, -1, 3]), any::<Index>())),
            prop::bool::weighted(1.0 / 3.0),
            select(&[0.0, 1.0, -0.5]),
            select(&[Some(0), Some(1), None]),
            (select(&[1, 1, 2, -1]), any::<Index>()),
            (any::<Index>(), select(&[1, 1, 1, 2])),
        );
        view.prop_map(
            |(backwards, second, filled, fill, offset, first, (source, divisor))| Self {
                source,
                divisor,
                first,
                second,
                offset,
                backwards,
                filled,
                fill,
            },
        )
    }
}

/// A program in the making.
struct Making {
    b: Bounded,
    /// What each parameter and each step stands for.
    values: Vec<Known>,
    newest: Known,
}

impl Making {
    fn new(mut b: Bounded, parameters: &[(Vec<Index>, Stored)]) -> Self {
        let mut values = Vec::new();
        for (name, (axes, stored)) in PARAMETERS.into_iter().zip(parameters) {
            let axes: AxisSet = axes.iter().map(|at| b.axis(*at)).collect();
            let dims = stored.layout.dims(axes.iter());
            let id = b.builder.parameter(name, stored.dtype, dims);
            values.push(Known {
                id: id.expect("a new name and each axis once"),
                most: stored.most(),
                least: None,
            });
        }
        let newest = values[values.len() - 1];
        Self { b, values, newest }
    }

    fn step(&mut self, kept: Kept, step: &Step) {
        let [x, y] = [&step.x, &step.y].map(|newer| {
            let [one, other] = newer.0.map(|at| at.index(self.values.len()));
            self.values[one.max(other)]
        });
        let made = match kept {
            // What the builder refuses is left out like what is too large.
            Kept::Applied => self.apply(&step.choice, x, y).ok().flatten(),
            Kept::First => Some(x),
            Kept::Second => Some(y),
        };
        let made = made.filter(|made| self.b.moderate(*made));
        self.newest = made.unwrap_or(self.newest);
        self.values.push(made.unwrap_or(x));
    }

    /// `None` where the operation does not fit its operands.
    fn apply(&mut self, choice: &Choice, x: Known, y: Known) -> Result<Option<Known>, BuildError> {
        let both = self.b.both_axes(x, y);
        if !self.b.small(&both) {
            return Ok(None);
        }
        let (id, most, least) = match choice {
            Choice::Add => {
                let least = x.least.zip(y.least).map(|(x, y)| x + y);
                (self.b.builder.add(x.id, y.id)?, x.most + y.most, least)
            }
            Choice::Mul => {
                let least = x.least.zip(y.least).map(|(x, y)| x * y);
                (self.b.builder.mul(x.id, y.id)?, x.most * y.most, least)
            }
            Choice::Max => {
                let least = match (x.least, y.least) {
                    (Some(x), Some(y)) => Some(x.max(y)),
                    (one, other) => one.or(other),
                };
                (self.b.builder.max(x.id, y.id)?, x.most.max(y.most), least)
            }
            Choice::Exp => {
                let least = Some((-x.most).exp());
                (
                    self.b.builder.function(Function::Exp, &[x.id])?,
                    x.most.exp(),
                    least,
                )
            }
            Choice::Sqrt => {
                let (x, least) = self.b.positive(x)?;
                let id = self.b.builder.function(Function::Sqrt, &[x.id])?;
                (id, x.most.sqrt(), Some(least.sqrt()))
            }
            Choice::Log => {
                let (x, least) = self.b.positive(x)?;
                let most = x.most.ln().abs().max(least.ln().abs());
                (self.b.builder.function(Function::Log, &[x.id])?, most, None)
            }
            Choice::Div => {
                let (y, least) = self.b.positive(y)?;
                let id = self.b.builder.div(x.id, y.id)?;
                (id, x.most / least, x.least.map(|x| x / y.most))
            }
            Choice::Constant(value) => {
                let id = self.b.builder.constant(*value)?;
                (id, value.abs(), (*value > 0.0).then_some(*value))
            }
            Choice::Iota(axis) => {
                let axis = self.b.axis(*axis);
                let id = self.b.builder.iota(axis)?;
                (id, self.b.extent(axis) as f64, None)
            }
            Choice::Reduce(op, axes) => {
                let axes = picked(axes, &self.b.axes_of(x));
                if axes.is_empty() {
                    return Ok(None);
                }
                let points = self.points(&axes);
                let id = self.b.builder.reduce(*op, x.id, axes.iter())?;
                let (most, least) = match op {
                    ReduceOp::Sum => (x.most * points, x.least.map(|x| x * points)),
                    ReduceOp::Max => (x.most, x.least),
                    ReduceOp::Product => (
                        x.most.max(1.0).powf(points),
                        x.least.map(|x| x.min(1.0).powf(points)),
                    ),
                };
                (id, most, least)
            }
            Choice::Dot(axes) => {
                let axes = picked(axes, &both);
                if axes.is_empty() {
                    return Ok(None);
                }
                let points = self.points(&axes);
                let least = x.least.zip(y.least).map(|(x, y)| x * y * points);
                let id = self.b.builder.dot(x.id, y.id, axes.iter())?;
                (id, x.most * y.most * points, least)
            }
            Choice::Select(condition) => {
                let condition = self.b.condition(condition)?;
                let id = self.b.builder.select(condition, x.id, y.id)?;
                let least = x.least.zip(y.least).map(|(x, y)| x.min(y));
                (id, x.most.max(y.most), least)
            }
            Choice::View(view) => return self.view(view, x),
        };
        Ok(Some(Known { id, most, least }))
    }

    fn points(&self, axes: &AxisSet) -> f64 {
        axes.iter().map(|a| self.b.extent(a) as f64).product()
    }

    fn view(&mut self, view: &View, x: Known) -> Result<Option<Known>, BuildError> {
        let has = self.b.axes_of(x);
        if has.is_empty() {
            return Ok(None);
        }
        let source = *view.source.get(has.as_slice());
        let last = |b: &Bounded, axis: AxisId| b.extent(axis) - 1;
        let mut terms = Vec::new();
        for (coefficient, axis) in [Some(view.first), view.second].into_iter().flatten() {
            terms.push((coefficient, self.b.axis(axis)));
        }
        let offset = view.offset.unwrap_or(last(&self.b, source));
        let affine = Affine::new(terms, offset);
        let Some(at) = affine.and_then(|affine| Quotient::new(affine, view.divisor)) else {
            return Ok(None);
        };
        let inside = at.affine().is_some()
            && at
                .range(|axis| (0, last(&self.b, axis)))
                .is_some_and(|(low, high)| low >= 0 && high <= last(&self.b, source));
        let fill = (view.filled || !inside).then_some(view.fill);
        let mut map = vec![(source, at)];
        let second = view.backwards.map(|at| *at.get(has.as_slice()));
        if let Some(second) = second.filter(|second| *second != source) {
            let backwards = Affine::new([(-1, second)], last(&self.b, second));
            map.extend(backwards.map(|affine| (second, affine.into())));
        }
        Ok(Some(Known {
            id: self.b.builder.view(x.id, map, fill)?,
            most: x.most.max(fill.unwrap_or(0.0).abs()),
            least: match fill {
                None => x.least,
                Some(fill) => x.least.filter(|_| fill > 0.0).map(|l| l.min(fill)),
            },
        }))
    }

    fn program(mut self, returns: Returns, results: &[(Index, Stored)]) -> Program {
        let returned = match returns {
            Returns::Newest(_) => {
                let others = results.iter().skip(1);
                let others = others.map(|(from, _)| *from.get(&self.values));
                std::iter::once(self.newest).chain(others).collect()
            }
            Returns::Ends(ends) => self.joined(ends).expect("sums of few elements"),
        };
        for (value, (_, stored)) in returned.into_iter().zip(results) {
            let dims = stored.layout.dims(self.b.axes_of(value).iter());
            let output = self.b.builder.output(stored.dtype, dims, value.id);
            output.expect("the axes of the value");
        }
        self.b.builder.finish().expect("at least one result")
    }

    /// The computed values that nobody uses, oldest first; the newest value where there are none.
    fn ends(&self) -> Vec<Known> {
        let program = self.b.builder.so_far();
        let used: BTreeSet<NodeId> = program
            .nodes
            .iter()
            .flat_map(|n| &n.args)
            .copied()
            .collect();
        let mut seen = BTreeSet::new();
        let mut ends = self.values.clone();
        ends.retain(|value| {
            let computed = !program.node(value.id).args.is_empty();
            computed && !used.contains(&value.id) && seen.insert(value.id)
        });
        if ends.is_empty() {
            ends.push(self.newest);
        }
        ends
    }

    /// What nobody uses, the oldest two added until so many are left.
    fn joined(&mut self, most: usize) -> Result<Vec<Known>, BuildError> {
        let mut ends = VecDeque::from(self.ends());
        while ends.len() > most {
            let (Some(mut x), Some(mut y)) = (ends.pop_front(), ends.pop_front()) else {
                break;
            };
            if !self.b.small(&self.b.both_axes(x, y)) {
                (x, y) = (self.reduced(x)?, self.reduced(y)?);
            }
            let sum = Known {
                id: self.b.builder.add(x.id, y.id)?,
                most: x.most + y.most,
                least: x.least.zip(y.least).map(|(x, y)| x + y),
            };
            ends.push_back(self.b.squashed(sum, JOINED)?);
        }
        Ok(ends.into())
    }

    /// The largest element over all axes but the first; the value itself where it has at most one.
    fn reduced(&mut self, x: Known) -> Result<Known, BuildError> {
        let axes: Vec<AxisId> = self.b.axes_of(x).iter().skip(1).collect();
        if axes.is_empty() {
            return Ok(x);
        }
        let id = self.b.builder.reduce(ReduceOp::Max, x.id, axes)?;
        Ok(Known { id, ..x })
    }
}

/// Some axes of a set, at least one where it has any.
fn picked(axes: &[Index], of: &AxisSet) -> AxisSet {
    let of = of.as_slice();
    let some = axes.iter().filter(|_| !of.is_empty());
    some.map(|at| *at.get(of)).collect()
}

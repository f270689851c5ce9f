//! The table of the operations, and what follows from it: element-wise meanings, the axes of results, well-formedness.
//!
//! Here are those that have laws of their own; functions have a table in [`crate::functions`]. Parser, builder, evaluator,
//! validator and search read the two. They know nothing about how an operation is rewritten or lowered.

use crate::affine::{Affine, Quotient};
use crate::axes::{AxisId, AxisSet};
use crate::functions::Function;
use crate::limits::{
    MAX_AXES, MAX_COEFFICIENT, MAX_ELEMENTS, MAX_EXTENT, MAX_NODES, MAX_OUTPUTS, MAX_PARAMETERS,
    MAX_RANK,
};
use crate::program::{Dim, MapOp, NodeId, Op, Program};
use crate::row::OpRow;
use std::collections::{BTreeMap, BTreeSet};

#[rustfmt::skip]
mod table {
    use crate::row::AxesRule as A;
    use crate::row::Fact::{Associative, Commutative, Idempotent, Monotone, Multilinear, NonNegative, One, Zero};
    use crate::row::{OpRow, Work};

    pub(super) static PARAMETER: OpRow = OpRow { name: "parameter", arity: 0, axes: A::Declared,   meaning: None,                                            facts: &[],                                                           work: Work::new(0, 0) };
    pub(super) static CONSTANT:  OpRow = OpRow { name: "constant",  arity: 0, axes: A::Scalar,     meaning: None,                                            facts: &[],                                                           work: Work::new(0, 0) };
    pub(super) static IOTA:      OpRow = OpRow { name: "iota",      arity: 0, axes: A::Coordinate, meaning: None,                                            facts: &[NonNegative],                                                work: Work::new(0, 0) };
    pub(super) static VIEW:      OpRow = OpRow { name: "view",      arity: 1, axes: A::Reindexed,  meaning: None,                                            facts: &[],                                                           work: Work::new(0, 0) };
    pub(super) static ADD:       OpRow = OpRow { name: "add",       arity: 2, axes: A::Union,      meaning: Some(|x| x[0] + x[1]),                           facts: &[Commutative, Associative, Monotone, One(0.0)],               work: Work::new(1, 0) };
    pub(super) static MUL:       OpRow = OpRow { name: "mul",       arity: 2, axes: A::Union,      meaning: Some(|x| x[0] * x[1]),                           facts: &[Commutative, Associative, One(1.0), Zero(0.0), Multilinear], work: Work::new(1, 0) };
    pub(super) static DIV:       OpRow = OpRow { name: "div",       arity: 2, axes: A::Union,      meaning: Some(|x| x[0] / x[1]),                           facts: &[],                                                           work: Work::new(1, 1) };
    pub(super) static MAX:       OpRow = OpRow { name: "max",       arity: 2, axes: A::Union,      meaning: Some(|x| x[0].max(x[1])),                        facts: &[Commutative, Associative, Idempotent, Monotone, One(f64::NEG_INFINITY), Zero(f64::INFINITY)], work: Work::new(1, 0) };
    pub(super) static SELECT:    OpRow = OpRow { name: "select",    arity: 3, axes: A::Union,      meaning: Some(|x| if x[0] >= 0.0 { x[1] } else { x[2] }), facts: &[],                                                           work: Work::new(1, 0) };
    pub(super) static REDUCE:    OpRow = OpRow { name: "reduce",    arity: 1, axes: A::Reduced,    meaning: None,                                            facts: &[],                                                           work: Work::new(1, 0) };
    pub(super) static DOT:       OpRow = OpRow { name: "dot",       arity: 2, axes: A::Reduced,    meaning: None,                                            facts: &[Commutative, Multilinear],                                   work: Work::new(2, 0) };
}

/// The rows of all operations.
pub fn rows() -> impl Iterator<Item = &'static OpRow> {
    let first = [
        &table::PARAMETER,
        &table::CONSTANT,
        &table::IOTA,
        &table::VIEW,
    ];
    let all = first.into_iter().chain(MapOp::all().map(MapOp::row));
    all.chain([&table::REDUCE, &table::DOT])
}

impl Op {
    /// Its row in the table.
    pub fn row(&self) -> &'static OpRow {
        match self {
            Self::Parameter { .. } => &table::PARAMETER,
            Self::Constant(_) => &table::CONSTANT,
            Self::Iota(_) => &table::IOTA,
            Self::View { .. } => &table::VIEW,
            Self::Map(op) => op.row(),
            Self::Reduce { .. } => &table::REDUCE,
            Self::Dot { .. } => &table::DOT,
        }
    }
}

impl MapOp {
    /// Every element-wise operation.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_two = [Self::Add, Self::Mul, Self::Div, Self::Max];
        let all = of_two
            .into_iter()
            .chain(Function::all().map(Self::Function));
        all.chain([Self::Select])
    }

    /// Its row in the table.
    pub fn row(self) -> &'static OpRow {
        match self {
            Self::Add => &table::ADD,
            Self::Mul => &table::MUL,
            Self::Div => &table::DIV,
            Self::Max => &table::MAX,
            Self::Function(function) => &function.row().op,
            Self::Select => &table::SELECT,
        }
    }

    /// How programs spell it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The number of arguments.
    pub fn arity(self) -> usize {
        self.row().arity
    }

    /// The reference meaning. `x` has [`Self::arity`] elements; NaN otherwise.
    pub fn apply(self, x: &[f64]) -> f64 {
        match self.row().meaning {
            Some(meaning) if x.len() == self.arity() => meaning(x),
            Some(_) | None => f64::NAN,
        }
    }
}

impl Program {
    /// The name of an axis, for messages.
    pub fn axis_name(&self, axis: AxisId) -> &str {
        self.axes.get(axis.index()).map_or("?", |a| a.name.as_str())
    }

    /// `{b, i, d}`, for messages.
    pub fn axis_list(&self, axes: &AxisSet) -> String {
        let names: Vec<&str> = axes.iter().map(|a| self.axis_name(a)).collect();
        format!("{{{}}}", names.join(", "))
    }

    /// The number of elements of a value with these axes; `None` above [`MAX_ELEMENTS`] or where an axis is undeclared.
    pub fn elements(&self, axes: &AxisSet) -> Option<u64> {
        axes.iter()
            .try_fold(1u64, |n, a| n.checked_mul(self.axes.get(a.index())?.extent))
            .filter(|n| *n <= MAX_ELEMENTS)
    }

    /// The axes of `op` applied to `args`, or why there is no such value. The one definition of well-formed applications.
    pub fn infer_axes(&self, op: &Op, args: &[NodeId]) -> Result<AxisSet, String> {
        let row = op.row();
        if args.len() != row.arity {
            return Err(format!(
                "`{}` takes {}, {} given",
                row.name,
                count(row.arity, "value"),
                args.len()
            ));
        }
        let mut union = AxisSet::new();
        for id in args {
            let Some(node) = self.nodes.get(id.index()) else {
                return Err(format!("no value number {}", id.0));
            };
            union = union.union(&node.axes);
        }
        check_rank("the operands together have", &union)?;
        if self.elements(&union).is_none() {
            return Err("the operands together have too many elements".to_owned());
        }
        let axes = match op {
            Op::Parameter { dims, .. } => self.dim_axes(dims)?,
            Op::Constant(value) => {
                if value.is_nan() {
                    return Err("a constant is a number, found NaN".to_owned());
                }
                AxisSet::new()
            }
            Op::Iota(axis) => {
                self.declared(*axis)?;
                [*axis].into_iter().collect()
            }
            Op::View { map, fill } => self.view_axes(&union, map, *fill)?,
            Op::Map(_) => union,
            Op::Reduce { axes, .. } | Op::Dot { axes } => {
                if axes.is_empty() {
                    return Err(format!("`{}` needs at least one axis", row.name));
                }
                for axis in axes.iter() {
                    self.declared(axis)?;
                    if !union.contains(axis) {
                        return Err(format!(
                            "no axis `{}` to reduce over: the value has {}",
                            self.axis_name(axis),
                            self.axis_list(&union)
                        ));
                    }
                }
                union.minus(axes)
            }
        };
        check_rank("the value has", &axes)?;
        if self.elements(&axes).is_none() {
            return Err("the value has too many elements".to_owned());
        }
        Ok(axes)
    }

    /// The axes of dimensions in memory, each declared and used once.
    pub fn dim_axes(&self, dims: &[Dim]) -> Result<AxisSet, String> {
        let mut axes = AxisSet::new();
        for dim in dims {
            if dim.0.is_empty() {
                return Err("a group needs at least one axis".to_owned());
            }
            for axis in &dim.0 {
                self.declared(*axis)?;
                if !axes.insert(*axis) {
                    return Err(format!(
                        "axis `{}` is used twice in one tensor",
                        self.axis_name(*axis)
                    ));
                }
            }
        }
        check_rank("the tensor has", &axes)?;
        match self.elements(&axes) {
            Some(_) => Ok(axes),
            None => Err("the tensor has too many elements".to_owned()),
        }
    }

    /// Everything that a program promises, checked; every fault found.
    pub fn validate(&self) -> Result<(), Vec<String>> {
        let mut faults = Vec::new();
        for (found, most, noun) in [
            (self.axes.len(), MAX_AXES, "axes"),
            (self.nodes.len(), MAX_NODES, "values"),
            (self.parameters().count(), MAX_PARAMETERS, "parameters"),
            (self.outputs.len(), MAX_OUTPUTS, "results"),
        ] {
            faults.extend(too_many(found, most, noun));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut names = BTreeSet::new();
        for axis in &self.axes {
            if !names.insert(axis.name.as_str()) {
                faults.push(format!("axis `{}` is declared twice", axis.name));
            }
            if axis.extent == 0 || axis.extent > MAX_EXTENT {
                faults.push(format!(
                    "axis `{}`: the extent {} is not between 1 and 2^40",
                    axis.name, axis.extent
                ));
            }
        }
        let mut names = BTreeSet::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(name) = &node.name
                && !names.insert(name.as_str())
            {
                faults.push(format!("two values are called `{name}`"));
            }
            if let Op::Parameter { name, .. } = &node.op {
                if node.name.as_deref() != Some(name) {
                    faults.push(format!(
                        "the value of parameter `{name}` is called otherwise"
                    ));
                }
                let earlier = at.checked_sub(1).and_then(|p| self.nodes.get(p));
                if earlier.is_some_and(|n| !matches!(n.op, Op::Parameter { .. })) {
                    faults.push(format!("parameter `{name}` comes after other values"));
                }
            }
            if node.args.iter().any(|a| a.index() >= at) {
                faults.push(format!("value {at} uses a value that is not before it"));
                continue;
            }
            match self.infer_axes(&node.op, &node.args) {
                Ok(axes) if axes == node.axes => {}
                Ok(axes) => faults.push(format!(
                    "value {at} says that its axes are {}, they are {}",
                    self.axis_list(&node.axes),
                    self.axis_list(&axes)
                )),
                Err(why) => faults.push(format!("value {at}: {why}")),
            }
        }
        if self.outputs.is_empty() {
            faults.push("a program returns at least one value".to_owned());
        }
        for (at, output) in self.outputs.iter().enumerate() {
            let Some(node) = self.nodes.get(output.value.index()) else {
                faults.push(format!("output {at} is no value"));
                continue;
            };
            if let Err(why) = self.output_axes(&node.axes, &output.dims) {
                faults.push(format!("output {at}: {why}"));
            }
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }

    /// The same program at other extents, validated. An axis that `extents` does not mention keeps its extent; constants
    /// (also those that came from extents) and affine indices stay as they are, so a `view` may now need a `fill` that it
    /// lacks, which is an error.
    pub fn resized(&self, extents: &BTreeMap<AxisId, u64>) -> Result<Self, String> {
        let mut new = self.clone();
        for (axis, extent) in extents {
            let Some(known) = new.axes.get_mut(axis.index()) else {
                return Err(format!("no axis number {}", axis.0));
            };
            known.extent = *extent;
        }
        new.validate().map_err(|faults| faults.join("; "))?;
        Ok(new)
    }

    /// Whether a value with `axes` can be stored as `dims`.
    pub fn output_axes(&self, axes: &AxisSet, dims: &[Dim]) -> Result<(), String> {
        let listed = self.dim_axes(dims)?;
        if listed == *axes {
            return Ok(());
        }
        let (missing, extra) = (axes.minus(&listed), listed.minus(axes));
        let mut why = format!("the value has the axes {}", self.axis_list(axes));
        if !missing.is_empty() {
            why.push_str(&format!(", the result lacks {}", self.axis_list(&missing)));
        }
        if !extra.is_empty() {
            why.push_str(&format!(
                ", the result lists {} besides",
                self.axis_list(&extra)
            ));
        }
        Err(why)
    }

    /// A value as an integer affine function of coordinates, where it is one: sums, differences and integer multiples
    /// of iotas and integer constants.
    pub fn affine_of(&self, id: NodeId) -> Option<Affine> {
        let mut memo: Vec<Option<Option<Affine>>> = vec![None; id.index() + 1];
        // Arguments come first, so one stack of pending values suffices.
        let mut pending = vec![id];
        while let Some(&at) = pending.last() {
            if memo.get(at.index())?.is_some() {
                pending.pop();
                continue;
            }
            let node = self.nodes.get(at.index())?;
            let relevant = matches!(node.op, Op::Map(MapOp::Add | MapOp::Mul));
            let missing = node
                .args
                .iter()
                .find(|a| relevant && memo.get(a.index()).is_some_and(Option::is_none));
            if let Some(arg) = missing {
                pending.push(*arg);
                continue;
            }
            let arg = |n: usize| -> Option<&Affine> {
                memo.get(node.args.get(n)?.index())?.as_ref()?.as_ref()
            };
            let affine = match &node.op {
                Op::Constant(value) => integer(*value).map(Affine::constant),
                Op::Iota(axis) => Some(Affine::axis(*axis)),
                Op::Map(MapOp::Add) => arg(0).zip(arg(1)).and_then(|(x, y)| x.plus(y)),
                Op::Map(MapOp::Mul) => arg(0).zip(arg(1)).and_then(|(x, y)| x.times(y)),
                Op::Map(_)
                | Op::Parameter { .. }
                | Op::View { .. }
                | Op::Reduce { .. }
                | Op::Dot { .. } => None,
            };
            memo[at.index()] = Some(affine);
            pending.pop();
        }
        memo.pop().flatten().flatten()
    }

    fn declared(&self, axis: AxisId) -> Result<(), String> {
        if axis.index() < self.axes.len() {
            Ok(())
        } else {
            Err(format!("no axis number {}", axis.0))
        }
    }

    fn view_axes(
        &self,
        source: &AxisSet,
        map: &[(AxisId, Quotient)],
        fill: Option<f64>,
    ) -> Result<AxisSet, String> {
        if map.is_empty() {
            return Err("`view` needs at least one re-indexing `axis -> affine`".to_owned());
        }
        if fill.is_some_and(f64::is_nan) {
            return Err("`fill` is a number, found NaN".to_owned());
        }
        if map.windows(2).any(|w| w[0].0 >= w[1].0) {
            return Err("a re-indexing names an axis twice or out of order".to_owned());
        }
        let mut kept = source.clone();
        let mut mentioned = AxisSet::new();
        for (axis, at) in map {
            at.check()?;
            let affine = at.function();
            self.declared(*axis)?;
            let name = self.axis_name(*axis);
            if !kept.remove(*axis) {
                return Err(format!(
                    "no axis `{name}` to re-index: the value has {}",
                    self.axis_list(source)
                ));
            }
            for (coefficient, term) in affine.terms() {
                self.declared(*term)?;
                if coefficient.unsigned_abs() > MAX_COEFFICIENT {
                    return Err("a coefficient above 2^40".to_owned());
                }
                mentioned.insert(*term);
            }
            if affine.offset.unsigned_abs() > MAX_COEFFICIENT {
                return Err("an offset above 2^40".to_owned());
            }
            let range = at.range(|a| (0, self.extent(a).saturating_sub(1) as i64));
            let Some((low, high)) = range else {
                return Err(format!("the index of axis `{name}` overflows"));
            };
            let last = self.extent(*axis) as i64 - 1;
            if fill.is_none() && at.affine().is_none() {
                return Err(format!(
                    "the index of axis `{name}` is divided by {} and no integer everywhere: expected a `fill`",
                    at.divisor()
                ));
            }
            if fill.is_none() && (low < 0 || high > last) {
                return Err(format!(
                    "the index of axis `{name}` runs from {low} to {high} and leaves 0 to {last}: expected a `fill`"
                ));
            }
        }
        Ok(kept.union(&mentioned))
    }
}

impl Affine {
    /// The sum; `None` on overflow.
    pub fn plus(&self, other: &Self) -> Option<Self> {
        let terms = self.terms().iter().chain(other.terms()).copied();
        Self::new(terms, self.offset.checked_add(other.offset)?)
    }

    /// All coefficients times `factor`; `None` on overflow.
    pub fn scaled(&self, factor: i64) -> Option<Self> {
        let terms: Option<Vec<(i64, AxisId)>> = self
            .terms()
            .iter()
            .map(|(c, a)| Some((c.checked_mul(factor)?, *a)))
            .collect();
        Self::new(terms?, self.offset.checked_mul(factor)?)
    }

    /// The product, where one of the two is a constant.
    pub fn times(&self, other: &Self) -> Option<Self> {
        if self.terms().is_empty() {
            other.scaled(self.offset)
        } else if other.terms().is_empty() {
            self.scaled(other.offset)
        } else {
            None
        }
    }
}

/// The integer that a constant is, if it is one of at most 53 bits.
pub(crate) fn integer(value: f64) -> Option<i64> {
    let exact = value.fract() == 0.0 && value.abs() <= (1u64 << 53) as f64;
    exact.then_some(value as i64)
}

/// What to say of a program that has more of something than it may, if it has.
pub(crate) fn too_many(found: usize, most: usize, noun: &str) -> Option<String> {
    (found > most).then(|| format!("a program has at most {most} {noun}, found {found}"))
}

fn check_rank(what: &str, axes: &AxisSet) -> Result<(), String> {
    match axes.len() {
        found if found > MAX_RANK => {
            Err(format!("{what} {found} axes, expected at most {MAX_RANK}"))
        }
        _ => Ok(()),
    }
}

/// `1 value`, `2 values`.
pub(crate) fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Fact;

    #[test]
    fn element_wise_rows_have_a_meaning() {
        for op in MapOp::all() {
            assert!(op.row().meaning.is_some() && op.arity() > 0);
        }
        assert_eq!(MapOp::Select.apply(&[0.0, 1.0, 2.0]), 1.0);
        assert_eq!(MapOp::Select.apply(&[-0.5, 1.0, 2.0]), 2.0);
    }

    /// Oracle: the meanings themselves, on a grid of finite numbers. Each fact is quantified over the table.
    #[test]
    fn facts_hold_for_the_meanings() {
        let grid = [-3.5, -1.0, -0.25, 0.0, 0.5, 1.0, 2.0, 7.0];
        let mut checked = 0;
        for op in MapOp::all() {
            for fact in op.row().facts {
                for x in grid {
                    for y in grid {
                        let f = |a: f64, b: f64| op.apply(&[a, b][..op.arity()]);
                        let holds = match fact {
                            Fact::Commutative => f(x, y) == f(y, x),
                            Fact::Associative => f(f(x, y), 0.5) == f(x, f(y, 0.5)),
                            Fact::Idempotent => f(x, x) == x,
                            Fact::Monotone => {
                                let (low, high) = (f(x, y), f(x + 1.0, y + 1.0));
                                low.is_nan() || low <= high
                            }
                            Fact::One(one) => f(*one, y) == y && f(y, *one) == y,
                            Fact::Zero(zero) => f(*zero, y) == *zero && f(y, *zero) == *zero,
                            Fact::Positive => f(x, y) > 0.0,
                            Fact::NonNegative => f(x, y).is_nan() || f(x, y) >= 0.0,
                            Fact::Multilinear => f(2.0 * x, y) == 2.0 * f(x, y),
                            Fact::SumsToProducts => {
                                let (whole, parts) = (f(x + y, 0.0), f(x, 0.0) * f(y, 0.0));
                                (whole - parts).abs() <= 1e-12 * whole
                            }
                            Fact::ZeroAtZero => (f(x, y) == 0.0) == (x == 0.0),
                            Fact::KeepsDigits => {
                                let off = f(x * (1.0 + 1e-6), y) - f(x, y);
                                off.is_nan() || off.abs() <= 1.0001e-6 * f(x, y).abs()
                            }
                        };
                        assert!(holds, "{op:?} {fact:?} at {x}, {y}");
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 1000, "{checked}");
    }
}

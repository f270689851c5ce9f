//! What a kernel reads, as text: elements of buffers through index functions, and what is computed of them on the way.

use super::{Chain, ReferenceMode};
use crate::functions;
use crate::print::sum;
use ir::{Affine, AxisId, AxisSet, Dim, Dtype, MapOp, Quotient};
use std::collections::BTreeSet;

/// A value that a kernel reads.
#[derive(Clone)]
pub(super) enum Read {
    /// A number.
    Constant(f64),
    /// A function of coordinates.
    Coordinate(Quotient),
    /// An element of a buffer.
    Buffer {
        buffer: u32,
        /// (axis of the buffer, coordinate); slowest in memory first.
        index: Vec<(AxisId, Quotient)>,
        /// Bounds that must hold, each with the value outside.
        guards: Vec<(Quotient, u64, f64)>,
    },
    /// An element-wise operation that is not stored.
    Made { op: MapOp, args: Vec<Read> },
}

impl Read {
    /// All of a buffer whose axes are these, slowest first.
    pub(super) fn buffer(buffer: u32, order: &[AxisId]) -> Self {
        Self::Buffer {
            buffer,
            index: order
                .iter()
                .map(|a| (*a, Affine::axis(*a).into()))
                .collect(),
            guards: Vec::new(),
        }
    }

    /// Element-wise operations in it.
    pub(super) fn operations(&self) -> usize {
        match self {
            Self::Constant(_) | Self::Coordinate(_) | Self::Buffer { .. } => 0,
            Self::Made { args, .. } => 1 + args.iter().map(Self::operations).sum::<usize>(),
        }
    }

    /// Whether all its operations are of a kind.
    pub(super) fn all(&self, kind: &impl Fn(MapOp) -> bool) -> bool {
        match self {
            Self::Constant(_) | Self::Coordinate(_) | Self::Buffer { .. } => true,
            Self::Made { op, args } => kind(*op) && args.iter().all(|a| a.all(kind)),
        }
    }

    /// Whether it reads nothing.
    pub(super) fn is_free(&self) -> bool {
        let mut free = true;
        self.buffers(&mut |_, _| free = false);
        free
    }

    /// Calls `see` for each buffer in it: which, and through which functions it is read.
    pub(super) fn buffers<'a>(&'a self, see: &mut impl FnMut(u32, &'a [(AxisId, Quotient)])) {
        match self {
            Self::Constant(_) | Self::Coordinate(_) => {}
            Self::Buffer { buffer, index, .. } => see(*buffer, index),
            Self::Made { args, .. } => args.iter().for_each(|a| a.buffers(see)),
        }
    }
}

/// The statements of one function of a kernel so far, and the buffers that they read.
#[derive(Default)]
pub(super) struct Scope {
    pub(super) lines: String,
    pub(super) used: BTreeSet<u32>,
    /// Its element-wise operations.
    pub(super) operations: Vec<MapOp>,
}

pub(super) fn memory_order(dims: &[Dim]) -> Vec<AxisId> {
    dims.iter().flat_map(|d| d.0.iter().copied()).collect()
}

impl Chain<'_> {
    fn constant(&self, x: f64) -> String {
        let text = if x == f64::INFINITY {
            "(1.0 / 0.0)".into()
        } else if x == f64::NEG_INFINITY {
            "(-1.0 / 0.0)".into()
        } else {
            format!("({x:?})")
        };
        format!("(({})({text}))", self.mode.real())
    }

    fn coordinate(place: &Quotient) -> String {
        let value = Self::affine(place.function());
        match place.divisor() {
            1 => value,
            divisor => format!("({value}) / {divisor}ll"),
        }
    }

    fn affine(function: &Affine) -> String {
        let mut terms: Vec<String> = function
            .terms()
            .iter()
            .map(|(c, a)| match c {
                1 => format!("x{}", a.0),
                _ => format!("({c}ll) * x{}", a.0),
            })
            .collect();
        if function.offset != 0 || terms.is_empty() {
            terms.push(format!("({}ll)", function.offset));
        }
        sum(terms)
    }

    /// A text that is read inside bounds alone, the first of which are looked at first.
    pub(super) fn guarded(&self, mut text: String, guards: &[(Quotient, u64, f64)]) -> String {
        for (function, extent, fill) in guards.iter().rev() {
            let (at, fill) = (Self::coordinate(function), self.constant(*fill));
            // What is negative may be rounded to zero.
            let value = Self::affine(function.function());
            let whole = match function.divisor() {
                1 => String::new(),
                divisor => format!(" && ({value}) % {divisor}ll == 0"),
            };
            text = format!("(({value}) >= 0 && ({at}) < {extent}ll{whole} ? {text} : {fill})");
        }
        text
    }

    /// The element of a value at the coordinates `x<axis>`, an expression after the scope's statements.
    pub(super) fn value(&self, read: &Read, scope: &mut Scope) -> String {
        let real = self.mode.real();
        match read {
            Read::Constant(x) => self.constant(*x),
            Read::Coordinate(f) => {
                format!("(({real})({}))", Self::coordinate(f))
            }
            Read::Buffer {
                buffer,
                index,
                guards,
            } => {
                scope.used.insert(*buffer);
                let b = &self.buffers[*buffer as usize];
                let mut at = String::new();
                for (axis, function) in index {
                    let mut coordinate = Self::coordinate(function);
                    let mut extent = format!("{}ll", self.program.extent(*axis));
                    if Some(*axis) == self.slab && b.slabbed {
                        coordinate = format!("{coordinate} - slab_first");
                        extent = "slab_count".into();
                    }
                    at = match at.as_str() {
                        "" => coordinate,
                        slower => format!("({slower}) * {extent} + {coordinate}"),
                    };
                }
                if at.is_empty() {
                    at.push('0');
                }
                let text = format!(
                    "(({real})({}))",
                    b.element.read(&format!("b{buffer}[{at}]"))
                );
                self.guarded(text, guards)
            }
            Read::Made { op, args } => {
                let args: Vec<String> = args.iter().map(|a| self.value(a, scope)).collect();
                let text = self.map(*op, &args);
                let name = format!("v{}", scope.operations.len());
                scope.operations.push(*op);
                scope
                    .lines
                    .push_str(&format!("const {real} {name} = {text}; "));
                name
            }
        }
    }

    /// The same as an operand of a product.
    pub(super) fn operand(&self, read: &Read, dtype: Option<Dtype>, scope: &mut Scope) -> String {
        let text = self.value(read, scope);
        let stored = match read {
            Read::Buffer { buffer, .. } => Some(self.buffers[*buffer as usize].element),
            Read::Constant(_) | Read::Coordinate(_) | Read::Made { .. } => None,
        };
        match dtype {
            Some(d) if stored != Some(super::Element::Of(d)) => self.mode.narrowed(text, d),
            Some(_) | None => text,
        }
    }

    fn map(&self, op: MapOp, args: &[String]) -> String {
        let suffix = match self.mode {
            ReferenceMode::Exact => "",
            ReferenceMode::Careful | ReferenceMode::Dithered => "f",
        };
        // Programs are checked: an operation has as many arguments as it takes.
        (functions::row(op).library)(args, suffix)
    }

    /// Statements that take apart a number which counts the elements over axes, slowest first: the coordinates `x<axis>`. The slab's
    /// axis runs over the slab if `slabbed`.
    pub(super) fn coordinates(&self, order: &[AxisId], slabbed: bool, number: &str) -> String {
        // Numbers of 32 bits are quicker to divide.
        let all = order
            .iter()
            .try_fold(1u64, |n, a| n.checked_mul(self.program.extent(*a)));
        let (kind, suffix) = match all {
            Some(n) if n < 1 << 31 => ("u32", "u"),
            Some(_) | None => ("long long", "ll"),
        };
        let mut text = format!("{kind} {number}_rest = ({kind}){number}; (void){number}_rest; ");
        for (at, axis) in order.iter().enumerate().rev() {
            let own = slabbed && Some(*axis) == self.slab;
            let extent = match own {
                true => format!("({kind})slab_count"),
                false => format!("{}{suffix}", self.program.extent(*axis)),
            };
            let first = if own { " + slab_first" } else { "" };
            let a = axis.0;
            text.push_str(&match at {
                0 => format!("const long long x{a} = (long long){number}_rest{first}; (void)x{a}; "),
                _ => format!(
                    "const long long x{a} = (long long)({number}_rest % {extent}){first}; {number}_rest /= {extent}; (void)x{a}; "
                ),
            });
        }
        text
    }

    /// The number of elements over axes, as text.
    pub(super) fn count(&self, order: &[AxisId], slabbed: bool) -> String {
        let own = |a: &AxisId| slabbed && Some(*a) == self.slab;
        let plain = order.iter().filter(|a| !own(a));
        let plain: u64 = plain.map(|a| self.program.extent(*a)).product();
        match order.iter().any(own) {
            true => format!("{plain}ll * slab_count"),
            false => format!("{plain}ll"),
        }
    }

    /// Of some reads the buffer with the most elements, by the functions that it is read through.
    fn largest<'a>(&self, reads: &'a [Read]) -> Option<&'a [(AxisId, Quotient)]> {
        let mut best: Option<(u64, &'a [(AxisId, Quotient)])> = None;
        for read in reads {
            read.buffers(&mut |_, index: &'a [(AxisId, Quotient)]| {
                let elements = index.iter().map(|(a, _)| self.program.extent(*a));
                let elements = elements.fold(1, u64::saturating_mul);
                if best.is_none_or(|b| elements > b.0) {
                    best = Some((elements, index));
                }
            });
        }
        best.map(|b| b.1)
    }

    /// Axes in the order in which the largest of some buffers has them in memory, slowest first; before them the slab's.
    pub(super) fn order(&self, axes: &AxisSet, reads: &[Read]) -> Vec<AxisId> {
        let mut found: Vec<AxisId> = Vec::new();
        for (_, function) in self.largest(reads).unwrap_or_default() {
            let mut terms = function.function().terms().to_vec();
            terms.sort_by_key(|(c, _)| std::cmp::Reverse(c.unsigned_abs()));
            for (_, axis) in terms {
                if axes.contains(axis) {
                    found.retain(|a| *a != axis);
                    found.push(axis);
                }
            }
        }
        let mut order: Vec<AxisId> = axes.iter().filter(|a| !found.contains(a)).collect();
        order.append(&mut found);
        // Nothing is divided by the slab's length, which is not known here, where its axis is the slowest.
        let place = order.iter().position(|a| Some(*a) == self.slab);
        if let Some(place) = place.filter(|at| at + 1 < order.len()) {
            order[..=place].rotate_right(1);
        }
        order
    }

    /// The axis along which neighbours of the largest of some buffers are read.
    pub(super) fn contiguous(&self, reads: &[Read]) -> Option<AxisId> {
        let function = self.largest(reads)?.last()?.1.function();
        let term = function
            .terms()
            .iter()
            .min_by_key(|(c, _)| c.unsigned_abs());
        term.map(|t| t.1)
    }
}

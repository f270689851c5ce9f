//! Sums that multiply zeros, by phases: the polyphase decomposition of signal processing (M. Bellanger, G. Bonnerot and M. Coudreuse,
//! "Digital filtering by polyphase network", 1976), for any view whose index is a quotient.
//!
//! A view like `x[(o + p − k) / s]` is its fill, zero, wherever that is no integer: of the coordinates of `k` one in `s` counts, and a
//! transposed convolution of stride `s` in two dimensions multiplies `s² − 1` zeros for each product. With `k = s·t + c` an index is
//! `u − t`, where `u = (o + p − c) / s` is the same for all `t`. So the sum is
//!
//! ```text
//! Σ_k x[(o + p − k)/s] · w[k]  =  Σ_c y[(o + p − c)/s, c]    with  y[u, c] = Σ_t x[u − t] · w[s·t + c]
//! ```
//!
//! where `y` is a plain convolution with `s` times the columns, and of the outer sum one term is not zero. What is gained is paid for with
//! `y` in memory: both are for a search to compare, so this is another program to begin with, and no rule: rules name no axis that the
//! program has not. Where the results come in whole groups of `s` it takes no `y`: see [`super::residues`].

use super::writer::{Writer, reduction};
use crate::egraph::convert;
use ir::{Affine, AxisId, AxisSet, Node, NodeId, Op, Program, Quotient, ReduceOp, common_multiple};
use std::collections::BTreeMap;

/// The same function of the same tensors, with each sum over axes of a divided index by phases, and in words how. None where there is no such
/// sum. New axes are behind those of the program.
pub fn phased(program: &Program) -> Option<(Program, Vec<String>)> {
    let finite = convert::finite(program);
    let mut phased = Phased {
        made: Writer {
            program: Program {
                nodes: Vec::with_capacity(program.nodes.len()),
                ..program.clone()
            },
        },
        places: Vec::with_capacity(program.nodes.len()),
    };
    let mut any = false;
    for node in &program.nodes {
        let sum = Sum::of(program, node).filter(|sum| sum.is_finite_outside(program, &finite));
        let made = sum.and_then(|sum| phased.sum(program, node, &sum));
        any |= made.is_some();
        let place = made.unwrap_or_else(|| phased.copy(node));
        phased.places.push(place);
    }
    let mut made = phased.made.program;
    for output in &mut made.outputs {
        output.value = phased.places[output.value.index()];
    }
    (any && made.validate().is_ok()).then(|| {
        let words = words(program, &made);
        (made, words)
    })
}

/// A sum of a product with a factor that is read where an index is a quotient.
pub(super) struct Sum<'p> {
    pub(super) axes: &'p AxisSet,
    /// The other factors.
    pub(super) factors: Vec<NodeId>,
    /// That factor, a view.
    pub(super) view: NodeId,
    /// What the view reads.
    pub(super) source: NodeId,
    map: &'p [(AxisId, Quotient)],
    /// By place in the map.
    pub(super) indices: BTreeMap<usize, Index>,
}

/// `rest + (along·o + step·k + offset) / divisor`
#[derive(Clone)]
pub(super) struct Index {
    /// What is kept.
    pub(super) o: AxisId,
    /// What is summed over.
    pub(super) k: AxisId,
    pub(super) along: i64,
    pub(super) step: i64,
    pub(super) offset: i64,
    pub(super) divisor: i64,
    /// What is an integer by itself.
    pub(super) rest: Vec<(i64, AxisId)>,
    /// Coordinates of `k` so far apart are in the same phase.
    phases: u64,
}

impl<'p> Sum<'p> {
    pub(super) fn of(program: &'p Program, node: &'p Node) -> Option<Self> {
        let (ReduceOp::Sum, axes, factors) = reduction(program, node)? else {
            return None;
        };
        (0..factors.len()).find_map(|at| {
            let mut factors = factors.clone();
            let id = factors.remove(at);
            let view = program.node(id);
            let Op::View {
                map,
                fill: Some(fill),
            } = &view.op
            else {
                return None;
            };
            let mut sum = Self {
                axes,
                factors,
                view: id,
                source: *view.args.first()?,
                map,
                indices: BTreeMap::new(),
            };
            sum.indices = (map.iter().enumerate())
                .filter_map(|(n, (_, at))| Some((n, Index::of(at, axes)?)))
                .filter(|(n, index)| sum.is_apart(program, *n, index))
                .collect();
            (*fill == 0.0 && !sum.indices.is_empty()).then_some(sum)
        })
    }

    /// Whether nothing else says where an index is: what else is summed may depend on `k`, but nothing on `o`.
    fn is_apart(&self, program: &Program, place: usize, index: &Index) -> bool {
        let has = |axes: &AxisSet| axes.contains(index.o) || axes.contains(index.k);
        let mut others = self.map.iter().enumerate().filter(|(n, _)| *n != place);
        let kept = |f: &NodeId| program.node(*f).axes.contains(index.o);
        !others.any(|(_, (_, at))| has(&at.axes()))
            && !has(&program.node(self.source).axes)
            && !self.factors.iter().any(kept)
    }

    /// Zero times each factor is zero.
    pub(super) fn is_finite(&self, finite: &[bool]) -> bool {
        finite[self.source.index()] && self.factors.iter().all(|f| finite[f.index()])
    }

    /// Zero times what lies outside is zero.
    fn is_finite_outside(&self, program: &Program, finite: &[bool]) -> bool {
        let whole = |index: &Index| {
            let extent = program.extent(index.k);
            extent.is_multiple_of(index.phases) || extent <= index.phases
        };
        let others = self.factors.iter().all(|f| finite[f.index()]);
        self.is_finite(finite) || (others && self.indices.values().all(whole))
    }
}

impl Index {
    fn of(at: &Quotient, summed: &AxisSet) -> Option<Self> {
        let divisor = at.divisor();
        let (whole, parts): (Vec<_>, Vec<_>) =
            (at.function().terms().iter().copied()).partition(|(c, _)| c % divisor == 0);
        let [x, y] = parts[..] else {
            return None;
        };
        let (kept, over) = match (summed.contains(x.1), summed.contains(y.1)) {
            (false, true) => (x, y),
            (true, false) => (y, x),
            (true, true) | (false, false) => return None,
        };
        let step = over.0;
        let phases = common_multiple(divisor, step.abs())? / step.abs();
        (phases > 1).then_some(Self {
            o: kept.1,
            k: over.1,
            along: kept.0,
            step,
            offset: at.function().offset,
            divisor,
            rest: whole.into_iter().map(|(c, a)| (c / divisor, a)).collect(),
            phases: phases.unsigned_abs(),
        })
    }
}

/// A function in the names of a program's axes: `o − k_phase + 1`.
pub(super) fn told(program: &Program, f: &Affine) -> String {
    let mut text = String::new();
    let constant = (f.offset != 0).then_some((f.offset, None));
    let terms = f.terms().iter().map(|(c, a)| (*c, Some(*a)));
    for (c, axis) in terms.chain(constant) {
        text.push_str(match (c < 0, text.is_empty()) {
            (true, true) => "−",
            (true, false) => " − ",
            (false, true) => "",
            (false, false) => " + ",
        });
        let name = axis.map(|a| &program.axes[a.index()].name);
        match (c.unsigned_abs(), name) {
            (1, Some(name)) => text.push_str(name),
            (c, Some(name)) => text.push_str(&format!("{c}·{name}")),
            (c, None) => text.push_str(&c.to_string()),
        }
    }
    text
}

/// How the axes of a program by phases make up its own, in words: `k = k_phase + 2·k_tap`, `2·o_base = o − k_phase + 1`.
fn words(program: &Program, phased: &Program) -> Vec<String> {
    let name = |a: AxisId| &phased.axes[a.index()].name;
    let old = program.axes.len();
    let is_new = |a: AxisId| a.index() >= old;
    let mut words = Vec::new();
    for node in &phased.nodes {
        let Op::View { map, .. } = &node.op else {
            continue;
        };
        for (from, at) in map {
            // Where the sum by phases is read, or what it sums.
            if !is_new(*from) && !at.axes().iter().any(is_new) {
                continue;
            }
            let of = match at.divisor() {
                1 => name(*from).to_owned(),
                divisor => format!("{divisor}·{}", name(*from)),
            };
            let text = format!("{of} = {}", told(phased, at.function()));
            if !words.contains(&text) {
                words.push(text);
            }
        }
    }
    words
}

struct Phased {
    made: Writer,
    /// Where the values of the program are.
    places: Vec<NodeId>,
}

impl Phased {
    fn copy(&mut self, node: &Node) -> NodeId {
        let args = node.args.iter().map(|a| self.places[a.index()]).collect();
        let copy = self.made.push(node.op.clone(), args, node.axes.clone());
        self.named(copy, node)
    }

    /// The value that takes another one's name.
    fn named(&mut self, value: NodeId, from: &Node) -> NodeId {
        self.made.program.nodes[value.index()].name = from.name.clone();
        value
    }

    /// A sum by phases; nothing where a number is too large.
    fn sum(&mut self, program: &Program, node: &Node, sum: &Sum<'_>) -> Option<NodeId> {
        let axes = self.made.program.axes.len();
        let nodes = self.made.program.nodes.len();
        let made = self.try_sum(program, node, sum);
        if made.is_none() {
            self.made.program.axes.truncate(axes);
            self.made.program.nodes.truncate(nodes);
        }
        made
    }

    fn try_sum(&mut self, program: &Program, node: &Node, sum: &Sum<'_>) -> Option<NodeId> {
        let mut summed = sum.axes.clone();
        let mut phases = AxisSet::new();
        // How `k` is read of the other factors, and `y` where the sum is wanted.
        let mut along_k: Vec<(AxisId, Affine, bool)> = Vec::new();
        let mut along_u: Vec<(AxisId, Quotient)> = Vec::new();
        let mut map = sum.map.to_vec();
        for (place, index) in &sum.indices {
            let (count, extent) = (index.phases, program.extent(index.k));
            let present = count.min(extent);
            let c = self.made.axis(index.k, "phase", present);
            phases.insert(c);
            summed.remove(index.k);
            let function = Affine::new([(index.along, index.o), (index.step, c)], index.offset)?;
            let u_of = Quotient::new(function, index.divisor)?;
            let last = |a: AxisId| if a == c { present } else { program.extent(a) } as i64 - 1;
            let (low, high) = u_of.range(|a| (0, last(a)))?;
            let u = self
                .made
                .axis(index.o, "base", u64::try_from(high - low + 1).ok()?.max(1));
            along_u.push((u, u_of.shifted(low.checked_mul(-index.divisor)?)?));
            let mut at = vec![(1, u)];
            let mut along = vec![(1, c)];
            if extent > count {
                let t = self.made.axis(index.k, "tap", extent.div_ceil(count));
                summed.insert(t);
                at.push((index.step.checked_mul(count as i64)? / index.divisor, t));
                along.push((count as i64, t));
            }
            at.extend(&index.rest);
            map[*place].1 = Affine::new(at, low)?.into();
            let is_partial = extent > count && !extent.is_multiple_of(count);
            along_k.push((index.k, Affine::new(along, 0)?, is_partial));
        }
        let read = map
            .iter()
            .fold(AxisSet::new(), |all, (_, at)| all.union(&at.axes()));
        let from: AxisSet = map.iter().map(|(a, _)| *a).collect();
        let kept = program.node(sum.source).axes.minus(&from).union(&read);
        let fill = Some(0.0);
        let view = self.made.push(
            Op::View { map, fill },
            vec![self.places[sum.source.index()]],
            kept,
        );
        let mut factors = vec![view];
        for factor in &sum.factors {
            factors.push(self.factor(program, *factor, &along_k));
        }
        let all = |this: &Self, of: &[NodeId]| {
            let each = of.iter().map(|f| this.made.axes(*f));
            each.fold(AxisSet::new(), |all, axes| all.union(&axes))
        };
        let inside = all(self, &factors);
        let rest = inside.minus(&summed);
        let y = match (&node.op, factors.len()) {
            (_, _) if summed.is_empty() => self.made.product(&factors),
            (Op::Dot { .. }, 2) => self.made.push(Op::Dot { axes: summed }, factors, rest),
            _ => {
                let body = self.made.product(&factors);
                let op = ReduceOp::Sum;
                self.made
                    .push(Op::Reduce { op, axes: summed }, vec![body], rest)
            }
        };
        along_u.sort_by_key(|(a, _)| *a);
        let read = node.axes.union(&phases);
        let map = along_u;
        let placed = self.made.push(Op::View { map, fill }, vec![y], read);
        let op = ReduceOp::Sum;
        let reduce = Op::Reduce { op, axes: phases };
        let sum = self.made.push(reduce, vec![placed], node.axes.clone());
        Some(self.named(sum, node))
    }

    /// A factor with its `k`s in two.
    fn factor(
        &mut self,
        program: &Program,
        factor: NodeId,
        along: &[(AxisId, Affine, bool)],
    ) -> NodeId {
        let place = self.places[factor.index()];
        let axes = &program.node(factor).axes;
        let mut own: Vec<_> = along.iter().filter(|(k, ..)| axes.contains(*k)).collect();
        own.sort_by_key(|(k, ..)| *k);
        if own.is_empty() {
            return place;
        }
        let gone: AxisSet = own.iter().map(|(k, ..)| *k).collect();
        let new = own
            .iter()
            .fold(AxisSet::new(), |all, (_, at, _)| all.union(&at.axes()));
        let op = Op::View {
            map: own
                .iter()
                .map(|(k, at, _)| (*k, at.clone().into()))
                .collect(),
            fill: own
                .iter()
                .any(|(.., is_partial)| *is_partial)
                .then_some(0.0),
        };
        self.made
            .push(op, vec![place], axes.minus(&gone).union(&new))
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::results;
    use super::*;

    fn transposed(taps: u64, stride: u64, pad: i64, dilation: u64, out: u64) -> String {
        format!(
            "program up\naxis n = 2, c = 3, d = 2, h = 5, k = {taps}, o = {out}\nx = parameter f32 [n, c, h]\nw = parameter f32 [c, d, k]\n\
            y = dot(view(x; {stride}*h -> o {pad:+} - {dilation}*k; fill = 0), w; c, k)\nreturn f32 [n, d, o] y\n"
        )
    }

    #[test]
    fn sums_by_phases_are_the_same_function() {
        for (taps, stride, pad, dilation) in [
            (3, 2, 1, 1),
            (4, 2, 1, 1),
            (2, 2, 0, 1),
            (3, 3, 2, 2),
            (2, 3, 0, 1),
            (5, 4, 1, 2),
            (5, 3, -1, 3),
            (7, 6, 3, 4),
            (1, 2, 0, 1),
        ] {
            for out in [9, 10, 13] {
                let text = transposed(taps, stride, pad, dilation, out);
                let program: Program = text.parse().expect("a program");
                let phased = phased(&program);
                // Where stride and dilation have all in common, every tap is in the one phase that there is.
                let Some((phased, _)) = phased else {
                    assert!(dilation % stride == 0 || taps == 1, "{text}");
                    continue;
                };
                assert_eq!(results(&phased), results(&program), "{phased}");
                let read: Program = phased.to_string().parse().expect("its own text");
                assert_eq!(results(&read), results(&program), "{phased}");
            }
        }
    }

    #[test]
    fn several_dimensions_are_taken_together() {
        let text = "program up\naxis n = 1, c = 2, d = 2, h = 4, w = 3, i = 3, j = 3, oh = 9, ow = 6\nx = parameter f32 [n, c, h, w]\n\
            f = parameter f32 [c, d, i, j]\ny = conv_transpose2d(x, f; c, h, oh, i, w, ow, j, 2, 1)\nreturn f32 [n, d, oh, ow] max(y, 0) * 2\n";
        let program: Program = text.parse().expect("a program");
        let (phased, _) = phased(&program).expect("two strides");
        assert_eq!(phased.axes.len(), program.axes.len() + 6);
        assert_eq!(results(&phased), results(&program), "{phased}");
    }

    #[test]
    fn what_is_an_integer_by_itself_stays_in_the_index() {
        let text = "program pooled\naxis c = 3, d = 2, h = 5, k = 3, o = 3, i = 3\nx = parameter f32 [c, h]\nw = parameter f32 [c, d, k]\n\
            y = dot(view(x; 2*h -> 2*o + i + 1 - k; fill = 0), w; c, k)\nreturn f32 [d, o] max(y; i)\n";
        let program: Program = text.parse().expect("a program");
        let (phased, _) = phased(&program).expect("two phases");
        assert_eq!(results(&phased), results(&program), "{phased}");
    }

    #[test]
    fn what_has_no_phases_stays() {
        for text in [
            transposed(3, 1, 1, 1, 7),
            transposed(3, 2, 1, 2, 7),
            // Their least common multiple is no number of 64 bits.
            transposed(3, 1 << 40, 1, (1 << 30) + 1, 7),
            // Another factor depends on where the result is.
            transposed(3, 2, 1, 1, 7)
                .replace("[c, d, k]", "[c, o, k]")
                .replace("n, d, o", "n, o"),
            // Outside is not zero.
            transposed(3, 2, 1, 1, 7).replace("fill = 0", "fill = 1"),
        ] {
            let program: Program = text.parse().expect("a program");
            assert!(phased(&program).is_none(), "{text}");
        }
    }

    /// Zero times an infinity is no number: where a tap does not exist nothing infinite may be read for it.
    #[test]
    fn infinities_are_not_multiplied_by_what_is_missing() {
        let of = |taps| transposed(taps, 2, 1, 1, 9).replace("view(x;", "view(select(x, x, -inf);");
        let program: Program = of(3).parse().expect("a program");
        assert!(phased(&program).is_none());
        let program: Program = of(4).parse().expect("a program");
        assert!(phased(&program).is_some());
    }
}

//! Contractions by single warps and by single threads.

use super::text::{holder, suffix, sum, times, widen};
use super::{Family, Printer};
use crate::atoms::{Reads, Sums};
use crate::cuda::{self, Node, Unroll, line};
use crate::layout::{Layout, Space};
use crate::machine::{Input, Multiply, Outer, Region, RegionId, Stage};
use ir::Dtype;

/// How one operand of a matrix instruction lies in shared memory.
struct Placed {
    region: RegionId,
    stage: Stage,
    /// Elements a step along rows (or columns) of the result; 0 where they are all alike.
    kept: u64,
    /// Elements a step along the depth.
    depth: u64,
}

impl Printer<'_> {
    fn placed(&self, m: &Multiply, side: usize) -> Option<Placed> {
        let Input::Region(region, stage) = m.inputs[side] else {
            return None;
        };
        let stride = |space: &Space| {
            let first = space.axes.first().map(|a| a.0);
            let axes = &self.machine.region(region).axes;
            axes.iter().find(|a| Some(a.0) == first).map_or(0, |a| a.2)
        };
        Some(Placed {
            region,
            stage,
            kept: stride(&m.spaces[side]),
            depth: stride(&m.spaces[2]),
        })
    }

    pub(super) fn multiply(&mut self, multiply: &Multiply) -> Node {
        self.families.insert(Family::Warp);
        self.atoms.insert(multiply.row.instruction.atom);
        let (row, name) = (multiply.row, self.name(multiply.into));
        let [wm, wn] = self.machine.warps;
        let [m, n, k] = &multiply.spaces;
        let (rows, columns) = (m.total / wm, n.total / wn);
        let (row_atoms, column_atoms) = (rows / 16, columns / 8);
        let mut scope = vec![line(format!(
            "const int row = {rows} * (warp & {}), column = {columns} * (warp >> {});",
            wm - 1,
            wm.trailing_zeros()
        ))];
        scope.push(line("(void)row; (void)column;"));
        let kind = holder(row.operand);
        let places = [self.placed(multiply, 0), self.placed(multiply, 1)];
        // Lane part of the addresses: rows of 8x8 matrices, or single elements.
        let convert = match row.instruction.reads {
            Reads::Elements { convert } => Some(convert),
            Reads::Threads | Reads::Matrices | Reads::SwizzleAtoms => None,
        };
        let lanes: [[(&str, &str); 2]; 2] = if convert.is_some() {
            [[("(lane >> 2)", "(lane & 3)"); 2]; 2]
        } else {
            [
                [
                    ("(lane & 15)", "8 * (lane >> 4)"),
                    ("8 * ((lane >> 3) & 1)", "((lane & 7) + 8 * (lane >> 4))"),
                ],
                [
                    ("((lane & 7) + 8 * (lane >> 4))", "8 * ((lane >> 3) & 1)"),
                    ("8 * (lane >> 4)", "(lane & 15)"),
                ],
            ]
        };
        for (side, place) in places.iter().enumerate() {
            let Some(p) = place else { continue };
            let (kept, depth) = lanes[side][usize::from(p.depth != 1)];
            let start = ["row", "column"][side];
            let pointer = self.region_pointer(p.region, p.stage);
            scope.push(line(format!(
                "const {kind}* {} = {pointer} + {} * ({start} + {kept}) + {} * {depth};",
                ["a_at", "b_at"][side],
                p.kept,
                p.depth
            )));
        }
        let mut body = Vec::new();
        let depth = row.shape()[2];
        let split = row.splits();
        body.push(line(format!("u32 a[{row_atoms}][4];")));
        if split {
            body.push(line(format!("u32 a_low[{row_atoms}][4];")));
        }
        // One register of an operand from shared memory.
        let element = |convert: &str, register: String, at: String| {
            line(if split {
                let low = register.replacen('[', "_low[", 1);
                format!("{convert}({at}, {register}, {low});")
            } else {
                format!("{register} = {convert}({at});")
            })
        };
        match (&places[0], multiply.inputs[0]) {
            (Some(p), _) => {
                let base = format!("a_at + {} * mi + {} * kk", 16 * p.kept, depth * p.depth);
                let fetch = if let Some(convert) = convert {
                    let at = [0, 8 * p.kept, 4 * p.depth, 8 * p.kept + 4 * p.depth];
                    let at = at.iter().enumerate();
                    at.map(|(i, offset)| {
                        element(
                            convert,
                            format!("a[mi][{i}]"),
                            format!("({base})[{offset}]"),
                        )
                    })
                    .collect()
                } else {
                    let trans = if p.depth == 1 { "" } else { "_trans" };
                    vec![line(format!("tw_ldmatrix{trans}(a[mi], {base});"))]
                };
                body.push(cuda::unrolled("mi", row_atoms, fetch));
            }
            (None, Input::Fragment(held)) => {
                let held = self.name(held);
                let at = format!("{} * mi + 8 * kk + 2 * x", k.total / 2);
                let pack = line(format!(
                    "a[mi][x] = tw_pack_{}({held}[{at}], {held}[{at} + 1]);",
                    suffix(row.operand)
                ));
                body.push(cuda::unrolled(
                    "mi",
                    row_atoms,
                    vec![cuda::unrolled("x", 4, vec![pack])],
                ));
            }
            (None, Input::Region(..)) => {}
        }
        let (kept, b_depth) = places[1].as_ref().map_or((0, 0), |p| (p.kept, p.depth));
        let base = format!("b_at + {} * np + {} * kk", 16 * kept, depth * b_depth);
        let mut columns_body = if let Some(convert) = convert {
            let at = [0, 4 * b_depth, 8 * kept, 8 * kept + 4 * b_depth];
            let low = if split { ", b_low[4]" } else { "" };
            let mut lines = vec![line(format!("u32 b[4]{low};"))];
            for (i, offset) in at.iter().enumerate() {
                lines.push(element(
                    convert,
                    format!("b[{i}]"),
                    format!("({base})[{offset}]"),
                ));
            }
            lines
        } else {
            let trans = if b_depth == 1 { "" } else { "_trans" };
            vec![
                line("u32 b[4];"),
                line(format!("tw_ldmatrix{trans}(b, {base});")),
            ]
        };
        let apart = row.instruction.sums != Sums::InPlace;
        let into = if apart { "part" } else { name };
        let atom = |a: &str, b: &str, x: usize| {
            line(format!(
                "{}(&{into}[{} * mi + 8 * np + {}], {a}[mi], {b}[{}], {b}[{}]);",
                row.function,
                4 * column_atoms,
                4 * x,
                2 * x,
                2 * x + 1
            ))
        };
        // The least products first; one sum's are apart, because each waits for the one before.
        let factors: &[(&str, &str)] = if split {
            &[("a_low", "b"), ("a", "b_low"), ("a", "b")]
        } else {
            &[("a", "b")]
        };
        for (a, b) in factors {
            let both = vec![atom(a, b, 0), atom(a, b, 1)];
            columns_body.push(cuda::unrolled("mi", row_atoms, both));
        }
        body.push(cuda::unrolled("np", column_atoms / 2, columns_body));
        let steps = k.total / depth;
        if let Sums::Apart { terms } = row.instruction.sums {
            // A few steps go into a sum of their own, which is added with rounding.
            let most = terms / depth;
            let few = if steps.is_multiple_of(most) { most } else { 2 };
            let registers = 4 * row_atoms * column_atoms;
            body.insert(0, line(format!("const int kk = {few} * part_of + step;")));
            let add = line(format!("{name}[x] += part[x];"));
            let part = vec![
                line(format!("float part[{registers}] = {{}};")),
                cuda::unrolled("step", few, body),
                cuda::unrolled("x", registers, vec![add]),
            ];
            scope.push(cuda::unrolled("part_of", steps / few, part));
        } else {
            scope.push(cuda::unrolled("kk", steps, body));
        }
        Node::Scope(scope)
    }

    /// Register tiles: for each step along the depth, a column of one operand times a row of the other.
    pub(super) fn outer(&mut self, outer: &Outer, out: &mut Vec<Node>) {
        let (name, layout) = (self.name(outer.into), self.fragment(outer.into).layout());
        let mut body = Vec::new();
        for (side, array) in ["a", "b"].into_iter().enumerate() {
            let ((id, stage), part) = (outer.inputs[side], &outer.parts[side]);
            let region = self.machine.region(id);
            // What depends on the thread is in the pointer, so that reads differ by constants.
            let mut start = vec![self.region_pointer(id, stage)];
            for (axis, _, stride) in &region.axes {
                if !outer.axes.contains(*axis)
                    && let Some(at) = self.thread_part(part, *axis)
                {
                    start.push(times(*stride as i64, &at));
                }
            }
            out.push(line(format!(
                "const {}* {array}_{name} = {};",
                holder(region.dtype),
                sum(start)
            )));
            body.push(line(format!("float {array}[{}];", part.register_count())));
            let width = run(region, part);
            body.extend(self.registers(part, width, |_, d| {
                let mut terms = Vec::new();
                for (axis, _, stride) in &region.axes {
                    if outer.axes.contains(*axis) {
                        terms.push(times(*stride as i64, &format!("k_{}", axis.0)));
                    } else {
                        terms.extend(Self::register_part(part, *axis, d, *stride as i64));
                    }
                }
                if width > 1 {
                    return vec![line(format!(
                        "tw_read_f32<{width}>(&{array}[{}], {array}_{name} + ({}));",
                        Self::own_index(part, d),
                        sum(terms)
                    ))];
                }
                let element = format!("{array}_{name}[{}]", sum(terms));
                vec![line(format!(
                    "{array}[{}] = {};",
                    Self::own_index(part, d),
                    widen(region.dtype, &element)
                ))]
            }));
        }
        body.extend(self.registers(&layout, 1, |_, d| {
            let to = format!("{name}[{}]", Self::own_index(&layout, d));
            vec![line(format!(
                "{to} = fmaf(a[{}], b[{}], {to});",
                Self::index(&outer.parts[0], &layout, d),
                Self::index(&outer.parts[1], &layout, d)
            ))]
        }));
        for (i, (axis, size)) in outer.depth.iter().enumerate() {
            let steps = if i > 0 {
                1
            } else if *size <= 16 {
                *size as u32
            } else {
                8
            };
            body = vec![Node::For {
                variable: format!("k_{}", axis.0),
                from: "0".into(),
                to: self.limit(*axis),
                unroll: Unroll::By(steps),
                body,
            }];
        }
        out.push(Node::Scope(body));
    }
}

/// Elements of a region that a thread can read at once where its registers are spread like `part`.
pub(crate) fn run(region: &Region, part: &Layout) -> u64 {
    let (Some(f), Some((fastest, _, 1)), Dtype::F32, true) = (
        part.registers.first(),
        region.axes.first(),
        region.dtype,
        region.patch.is_empty(),
    ) else {
        return 1;
    };
    if f.axis != Some(*fastest) || f.stride != 1 {
        return 1;
    }
    let mut width = (1 << f.size.trailing_zeros()).min(4);
    let others = part.registers.iter().skip(1);
    let others: Vec<u64> = others
        .chain(&part.lanes)
        .chain(&part.warps)
        .filter(|f| f.axis == Some(*fastest))
        .map(|f| f.stride)
        .chain(region.axes.iter().skip(1).map(|a| a.2))
        .collect();
    while width > 1 && !others.iter().all(|s| s.is_multiple_of(width)) {
        width /= 2;
    }
    width
}

//! Contractions.

use super::{Emitter, Family, Source, holder, line, suffix, sum, times, widen};
use crate::atoms::AtomRow;
use crate::cuda::{self, Node, Unroll};
use crate::layout::{Layout, Space};
use crate::plan::{Contraction, Method, Operand, SharedTile};
use ir::{AxisId, Dtype, ReduceOp, Reject, ValueId};

/// How one operand of a matrix instruction lies in shared memory.
struct Placed {
    tile: usize,
    /// Elements a step along rows (or columns) of the result; 0 where they are all alike.
    kept: u64,
    /// Elements a step along the depth.
    depth: u64,
}

impl Emitter<'_> {
    /// Carries out a contraction; `into` is the sum that it is an addend of, with the other addend.
    pub(super) fn contract(
        &mut self,
        v: ValueId,
        into: Option<(ValueId, ValueId)>,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let c = self.plan.contractions[&v].clone();
        self.settle_copies(out);
        if let Method::Product = c.method {
            let mut sources = Vec::new();
            let mut from = Layout::default();
            for (i, (value, operand)) in c.values.iter().zip(&c.operands).enumerate() {
                let Operand::Registers(layout) = operand else {
                    return Err(Reject::Schedule("a product from shared memory".into()));
                };
                if i == 0 {
                    from = layout.distinct();
                }
                sources.push(self.operand(*value, layout, out)?);
            }
            self.reduce_elements(v, ReduceOp::Sum, &from, &c.axes, &sources, out);
            return Ok(());
        }
        if let Some((sum, addend)) = into
            && let Some(delay) = self.plan.delayed.get(&sum).cloned()
        {
            return self.accumulate(&delay, sum, addend, out);
        }
        let result = into.map_or(v, |(sum, _)| sum);
        let layout = c.accumulator.clone();
        let start = match into {
            Some((_, addend)) => {
                self.operand(addend, &layout.slice(self.plan.axes(addend)), out)?
            }
            None => Source::Literal("0.0f".into()),
        };
        let name = self.array(result, &layout, out);
        // A warpgroup's first instruction may overwrite its accumulators.
        let fresh = into.is_none() && matches!(c.method, Method::Matrix(row) if row.warps() > 1);
        if !fresh {
            out.extend(self.registers(&layout, 1, |me, d| {
                let text = me.element(&start, &layout, d);
                vec![line(format!(
                    "{name}[{}] = {text};",
                    Self::own_index(&layout, d)
                ))]
            }));
        }
        match c.method {
            Method::Matrix(row) if row.warps() > 1 => {
                self.warpgroup(&c, row, &name, fresh, out)?;
            }
            Method::Matrix(row) => self.matrix(&c, row, &name, out)?,
            Method::Outer => self.outer(&c, &name, out)?,
            Method::Product => {}
        }
        self.bind(result, &layout, &name);
        Ok(())
    }

    fn placed(&self, c: &Contraction, side: usize) -> Result<Option<Placed>, Reject> {
        let Operand::Tile(tile) = c.operands[side] else {
            return Ok(None);
        };
        let stride = |space: &Space| {
            let first = space.axes.first().map(|a| a.0);
            self.plan.tiles[tile]
                .axes
                .iter()
                .find(|a| Some(a.0) == first)
                .map_or(0, |a| a.2)
        };
        Ok(Some(Placed {
            tile,
            kept: stride(&c.spaces[side]),
            depth: stride(&c.spaces[2]),
        }))
    }

    fn matrix(
        &mut self,
        c: &Contraction,
        row: &AtomRow,
        name: &str,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        self.families.insert(Family::Mma);
        let (wm, wn) = (
            u64::from(self.schedule.warps_m),
            u64::from(self.schedule.warps_n),
        );
        let [m, n, k] = &c.spaces;
        let (rows, columns) = (m.total / wm, n.total / wn);
        let (row_atoms, column_atoms) = (rows / 16, columns / 8);
        let mut scope = vec![line(format!(
            "const int row = {rows} * (warp & {}), column = {columns} * (warp >> {});",
            wm - 1,
            wm.trailing_zeros()
        ))];
        scope.push(line("(void)row; (void)column;"));
        let kind = holder(row.operand);
        let places = [self.placed(c, 0)?, self.placed(c, 1)?];
        // Lane part of the addresses: rows of 8x8 matrices for ldmatrix, single elements for TF32.
        let lanes: [[(&str, &str); 2]; 2] = if row.operand == Dtype::F32 {
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
            let pointer = self.tile_pointer(p.tile, &self.current_slot(p.tile));
            scope.push(line(format!(
                "const {kind}* {} = {pointer} + {} * ({start} + {kept}) + {} * {depth};",
                ["a_at", "b_at"][side],
                p.kept,
                p.depth
            )));
        }
        let mut body = Vec::new();
        let depth = row.shape[2];
        let split = row.splits();
        if split {
            self.families.insert(Family::Split);
        }
        body.push(line(format!("u32 a[{row_atoms}][4];")));
        if split {
            body.push(line(format!("u32 a_low[{row_atoms}][4];")));
        }
        // One register of an operand from shared memory.
        let element = |register: String, at: String| {
            line(if split {
                let low = register.replacen('[', "_low[", 1);
                format!("tw_split({at}, {register}, {low});")
            } else {
                format!("{register} = tw_tf32({at});")
            })
        };
        match (&places[0], &c.operands[0]) {
            (Some(p), _) => {
                let base = format!("a_at + {} * mi + {} * kk", 16 * p.kept, depth * p.depth);
                let fetch = if row.operand == Dtype::F32 {
                    let at = [0, 8 * p.kept, 4 * p.depth, 8 * p.kept + 4 * p.depth];
                    let at = at.iter().enumerate();
                    at.map(|(i, offset)| {
                        element(format!("a[mi][{i}]"), format!("({base})[{offset}]"))
                    })
                    .collect()
                } else {
                    let trans = if p.depth == 1 { "" } else { "_trans" };
                    vec![line(format!("tw_ldmatrix{trans}(a[mi], {base});"))]
                };
                body.push(cuda::unrolled("mi", row_atoms, fetch));
            }
            (None, Operand::Registers(fragment)) => {
                let held = self.masked(c, fragment, out)?;
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
            (None, Operand::Tile(_)) => {}
        }
        let Some(p) = &places[1] else {
            return Err(Reject::Schedule(
                "the columns' operand is in registers".into(),
            ));
        };
        let fetch = if row.operand == Dtype::F32 {
            let base = format!("b_at + {} * np + {} * kk", 16 * p.kept, depth * p.depth);
            let at = [0, 4 * p.depth, 8 * p.kept, 8 * p.kept + 4 * p.depth];
            let low = if split { ", b_low[4]" } else { "" };
            let mut lines = vec![line(format!("u32 b[4]{low};"))];
            for (i, offset) in at.iter().enumerate() {
                lines.push(element(format!("b[{i}]"), format!("({base})[{offset}]")));
            }
            lines
        } else {
            let trans = if p.depth == 1 { "" } else { "_trans" };
            vec![
                line("u32 b[4];"),
                line(format!(
                    "tw_ldmatrix{trans}(b, b_at + {} * np + {} * kk);",
                    16 * p.kept,
                    depth * p.depth
                )),
            ]
        };
        let mut columns_body = fetch;
        let into = if split { "part" } else { name };
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
        if split {
            // The instruction truncates sums: a few steps go into a sum of their own, which is added with rounding.
            let few = if steps.is_multiple_of(4) { 4 } else { 2 };
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
        out.push(Node::Scope(scope));
        Ok(())
    }

    /// The registers of a computed row operand, zero where the depth's coordinates do not exist.
    pub(super) fn masked(
        &mut self,
        c: &Contraction,
        fragment: &Layout,
        out: &mut Vec<Node>,
    ) -> Result<String, Reject> {
        let v = c.values[0];
        let Source::Array { name, .. } = self.operand(v, fragment, out)? else {
            return Err(Reject::Schedule("a constant as the rows' operand".into()));
        };
        let depth: Vec<AxisId> = c.spaces[2].axes.iter().map(|a| a.0).collect();
        if !depth.iter().any(|a| self.overhangs(fragment, *a)) {
            return Ok(name);
        }
        let masked = self.array(v, fragment, out);
        out.extend(self.registers(fragment, 1, |me, d| {
            let at = Self::own_index(fragment, d);
            let exists = me.exists(fragment, depth.iter().copied(), d);
            vec![line(format!(
                "{masked}[{at}] = {} ? {name}[{at}] : 0.0f;",
                exists.join(" && ")
            ))]
        }));
        Ok(masked)
    }

    /// Register tiles: for each step along the depth, a column of one operand times a row of the other.
    fn outer(&mut self, c: &Contraction, name: &str, out: &mut Vec<Node>) -> Result<(), Reject> {
        let layout = c.accumulator.clone();
        let mut body = Vec::new();
        let mut parts = Vec::new();
        for (side, array) in ["a", "b"].into_iter().enumerate() {
            let Operand::Tile(t) = c.operands[side] else {
                return Err(Reject::Schedule("an outer product from registers".into()));
            };
            let tile = self.plan.tiles[t].clone();
            let part = layout.slice(self.plan.axes(c.values[side]));
            // What depends on the thread is in the pointer, so that reads differ by constants.
            let mut start = vec![self.tile_pointer(t, &self.current_slot(t))];
            for (axis, _, stride) in &tile.axes {
                if !c.axes.contains(*axis)
                    && let Some(at) = self.thread_part(&part, *axis)
                {
                    start.push(times(*stride as i64, &at));
                }
            }
            out.push(line(format!(
                "const {}* {array}_{name} = {};",
                holder(tile.dtype),
                sum(start)
            )));
            body.push(line(format!("float {array}[{}];", part.register_count())));
            let width = run(&tile, &part);
            body.extend(self.registers(&part, width, |_, d| {
                let mut terms = Vec::new();
                for (axis, _, stride) in &tile.axes {
                    if c.axes.contains(*axis) {
                        terms.push(times(*stride as i64, &format!("k_{}", axis.0)));
                    } else {
                        terms.extend(Self::register_part(&part, *axis, d, *stride as i64));
                    }
                }
                if width > 1 {
                    return vec![line(format!(
                        "tw_read_f32<{width}>(&{array}[{}], {array}_{name} + ({}));",
                        Self::own_index(&part, d),
                        sum(terms)
                    ))];
                }
                let element = format!("{array}_{name}[{}]", sum(terms));
                vec![line(format!(
                    "{array}[{}] = {};",
                    Self::own_index(&part, d),
                    widen(tile.dtype, &element)
                ))]
            }));
            parts.push(part);
        }
        body.extend(self.registers(&layout, 1, |_, d| {
            let to = format!("{name}[{}]", Self::own_index(&layout, d));
            vec![line(format!(
                "{to} = fmaf(a[{}], b[{}], {to});",
                Self::index(&parts[0], &layout, d),
                Self::index(&parts[1], &layout, d)
            ))]
        }));
        for (i, (axis, size)) in c.spaces[2].axes.iter().enumerate() {
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
        Ok(())
    }
}

/// Elements of a tile in shared memory that a thread can read at once where its registers are spread like `part`.
fn run(tile: &SharedTile, part: &Layout) -> u64 {
    let (Some(f), Some((fastest, _, 1)), Dtype::F32, true) = (
        part.registers.first(),
        tile.axes.first(),
        tile.dtype,
        tile.patch.is_empty(),
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
        .chain(tile.axes.iter().skip(1).map(|a| a.2))
        .collect();
    while width > 1 && !others.iter().all(|s| s.is_multiple_of(width)) {
        width /= 2;
    }
    width
}

//! Contractions by warpgroup instructions.

use super::{Emitter, Family, line, suffix};
use crate::atoms::AtomRow;
use crate::cuda::{self, Node};
use crate::layout::Layout;
use crate::plan::{Contraction, Operand, Swizzle};
use ir::{Dtype, Reject};
use std::fmt::Write;

/// Columns of one instruction at most.
const MOST_COLUMNS: u64 = 256;

/// One form of the instruction, printed once for all its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instruction {
    function: &'static str,
    operand: Dtype,
    columns: u64,
    /// Whether the rows' operand lies across the depth in shared memory; none where it is in registers.
    across_a: Option<bool>,
    across_b: bool,
}

impl Instruction {
    /// The device function that wraps it.
    pub(super) fn text(self) -> String {
        let count = self.columns / 2;
        let accumulators: Vec<String> = (0..count).map(|i| format!("%{i}")).collect();
        let outputs: Vec<String> = (0..count).map(|i| format!("\"+f\"(d[{i}])")).collect();
        let (a, inputs, parameter, name) = match self.across_a {
            Some(_) => (
                format!("%{count}"),
                "\"l\"(a)".to_string(),
                "u64 a",
                self.function.to_string(),
            ),
            None => {
                let parts: Vec<String> = (0..4).map(|i| format!("%{}", count + i)).collect();
                (
                    format!("{{{}}}", parts.join(",")),
                    "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])".to_string(),
                    "const u32 (&a)[4]",
                    format!("{}_held", self.function),
                )
            }
        };
        let next = count + if self.across_a.is_some() { 1 } else { 4 };
        let flags: Vec<String> = self
            .across_a
            .into_iter()
            .chain([self.across_b])
            .map(|x| u8::from(x).to_string())
            .collect();
        let dtype = suffix(self.operand);
        let mut text = String::new();
        let _ = writeln!(
            text,
            "template <> TW_FN void {name}<{}, {}>(float* d, {parameter}, u64 b, u32 add) {{",
            self.columns,
            flags.join(", ")
        );
        let _ = writeln!(
            text,
            "  asm volatile(\"{{.reg .pred p; setp.ne.b32 p, %{}, 0; \
             wgmma.mma_async.sync.aligned.m64n{}k16.f32.{dtype}.{dtype} {{{}}}, {a}, %{next}, p, 1, 1, {};}}\"",
            next + 1,
            self.columns,
            accumulators.join(","),
            flags.join(", ")
        );
        let _ = writeln!(
            text,
            "      : {} : {inputs}, \"l\"(b), \"r\"(add) : \"memory\");\n}}",
            outputs.join(", ")
        );
        text
    }
}

/// An operand in shared memory, in bytes.
struct Panels {
    /// Where it begins, as seen from its tile, for the first instruction of a group of warps.
    descriptor: String,
    swizzle: Swizzle,
}

impl Panels {
    /// Bytes from one step of sixteen along the depth to the next, for step `kk`, as an expression.
    fn depth(&self) -> String {
        let s = self.swizzle;
        if s.depth {
            let steps = s.span / 16;
            format!("kk / {steps} * {} + kk % {steps} * 32", s.panel_bytes())
        } else {
            format!("kk * {}", 16 * s.line_bytes())
        }
    }

    /// Bytes from one row (or column) to the one `count` further.
    fn kept(&self, count: u64) -> Result<u64, Reject> {
        let s = self.swizzle;
        if s.depth {
            Ok(count * s.line_bytes())
        } else if count.is_multiple_of(s.span) {
            Ok(count / s.span * s.panel_bytes())
        } else {
            Err(Reject::Schedule(format!(
                "an instruction begins inside a panel of {} rows",
                s.span
            )))
        }
    }
}

impl Emitter<'_> {
    /// Carries out a contraction into the accumulators `name`, which need not be set before if `fresh`.
    pub(super) fn warpgroup(
        &mut self,
        c: &Contraction,
        row: &AtomRow,
        name: &str,
        fresh: bool,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let mut scope = Vec::new();
        let packed = match &c.operands[0] {
            Operand::Registers(fragment) => {
                let packed = format!("{name}_rows");
                scope.push(line(self.packed(c, row, &packed)));
                self.pack(c, row, fragment, &packed, &mut scope)?;
                Some(packed)
            }
            Operand::Tile(_) => None,
        };
        let registers = c.accumulator.register_count();
        self.take_turn(&mut scope);
        scope.push(line(format!("tw_keep<{registers}>({name});")));
        scope.extend(self.issue(c, row, name, fresh, packed.as_deref(), None)?);
        scope.push(line("tw_wgmma_commit();"));
        let followed = self.follow(&mut scope)?;
        scope.push(line(format!("tw_keep<{registers}>({name});")));
        if !followed {
            self.landed(&mut scope);
        }
        out.push(Node::Scope(scope));
        Ok(())
    }

    /// The declaration of a rows' operand in registers.
    pub(super) fn packed(&self, c: &Contraction, row: &AtomRow, name: &str) -> String {
        let [m, _, k] = &c.spaces;
        let atoms = m.total / (16 * u64::from(self.schedule.warps_m));
        format!("u32 {name}[{atoms}][{}][4] = {{}};", k.total / row.shape[2])
    }

    /// Rounds a rows' operand to what the instruction reads.
    pub(super) fn pack(
        &mut self,
        c: &Contraction,
        row: &AtomRow,
        fragment: &Layout,
        name: &str,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let [m, _, k] = &c.spaces;
        let atoms = m.total / (16 * u64::from(self.schedule.warps_m));
        let held = self.masked(c, fragment, out)?;
        let at = format!("{} * mi + 8 * kk + 2 * x", k.total / 2);
        let pack = line(format!(
            "{name}[mi][kk][x] = tw_pack_{}({held}[{at}], {held}[{at} + 1]);",
            suffix(row.operand)
        ));
        let packs = cuda::unrolled("x", 4, vec![pack]);
        let steps = cuda::unrolled("kk", k.total / row.shape[2], vec![packs]);
        out.push(cuda::unrolled("mi", atoms, vec![steps]));
        Ok(())
    }

    /// Issues the instructions of a contraction: `packed` are the rows where they are in registers, `slot` is where the columns
    /// are, if not where the iteration reads.
    pub(super) fn issue(
        &mut self,
        c: &Contraction,
        row: &AtomRow,
        name: &str,
        fresh: bool,
        packed: Option<&str>,
        slot: Option<&str>,
    ) -> Result<Vec<Node>, Reject> {
        self.families.insert(Family::Wgmma);
        let groups = u64::from(self.schedule.warps_m) / row.warps();
        let [m, n, k] = &c.spaces;
        let own_rows = m.total / groups;
        let own_columns = n.total / u64::from(self.schedule.warps_n);
        let Some(chunks) = (1..=own_columns / 8)
            .find(|q| own_columns.is_multiple_of(8 * q) && own_columns / q <= MOST_COLUMNS)
        else {
            return Err(Reject::Schedule("no column for a group of warps".into()));
        };
        let (atoms, columns) = (own_rows / row.shape[0], own_columns / chunks);
        let steps = k.total / row.shape[2];
        let which = format!("(group >> {})", groups.trailing_zeros());
        let b = self
            .panels(c, 1, own_columns, &which, slot)?
            .ok_or_else(|| Reject::Schedule("the columns' operand is in registers".into()))?;
        let which = format!("(group & {})", groups - 1);
        let a = self.panels(c, 0, own_rows, &which, None)?;
        self.instructions.insert(Instruction {
            function: row.function,
            operand: row.operand,
            columns,
            across_a: a.as_ref().map(|a| !a.swizzle.depth),
            across_b: !b.swizzle.depth,
        });
        let across = |p: &Panels| u8::from(!p.swizzle.depth);
        let mut scope = vec![line(format!("const u64 b_at = {};", b.descriptor))];
        let (call, operand) = match (&a, packed) {
            (Some(a), _) => {
                scope.push(line(format!("const u64 a_at = {};", a.descriptor)));
                let further = if atoms > 1 { a.kept(row.shape[0])? } else { 0 };
                (
                    format!("{}<{columns}, {}, {}>", row.function, across(a), across(&b)),
                    format!("a_at + (({} + mi * {further}) >> 4)", a.depth()),
                )
            }
            (None, Some(packed)) => (
                format!("{}_held<{columns}, {}>", row.function, across(&b)),
                format!("{packed}[mi][kk]"),
            ),
            (None, None) => {
                return Err(Reject::Schedule(
                    "a warpgroup's operand without panels".into(),
                ));
            }
        };
        let further = if chunks > 1 { b.kept(columns)? } else { 0 };
        let issue = line(format!(
            "{call}(&{name}[{} * mi + {} * q], {operand}, b_at + (({} + q * {further}) >> 4), {});",
            own_columns / 2,
            columns / 2,
            b.depth(),
            if fresh { "kk != 0" } else { "1" }
        ));
        let chunks = cuda::unrolled("q", chunks, vec![issue]);
        let atoms = cuda::unrolled("mi", atoms, vec![chunks]);
        scope.push(line("tw_wgmma_fence();"));
        scope.push(cuda::unrolled("kk", steps, vec![atoms]));
        Ok(vec![Node::Scope(scope)])
    }

    /// An operand in shared memory as a group of warps sees it that is the `which`-th along its side, `own` rows (or columns)
    /// each.
    fn panels(
        &self,
        c: &Contraction,
        side: usize,
        own: u64,
        which: &str,
        slot: Option<&str>,
    ) -> Result<Option<Panels>, Reject> {
        let Operand::Tile(t) = c.operands[side] else {
            return Ok(None);
        };
        let Some(swizzle) = self.plan.tiles[t].swizzle else {
            return Err(Reject::Schedule(
                "a warpgroup's operand without panels".into(),
            ));
        };
        let current = self.current_slot(t);
        let pointer = self.tile_pointer(t, slot.unwrap_or(&current));
        let mut panels = Panels {
            descriptor: String::new(),
            swizzle,
        };
        // With one group along a side nothing has to be added.
        let start = match c.spaces[side].total == own {
            true => String::new(),
            false => format!(" + ((u64)({which} * {}) >> 4)", panels.kept(own)?),
        };
        panels.descriptor = format!(
            "tw_descriptor<{}>({pointer}, {}){start}",
            swizzle.span,
            if swizzle.depth {
                16
            } else {
                swizzle.panel_bytes()
            }
        );
        Ok(Some(panels))
    }
}

//! Contractions by warpgroup instructions.

use super::text::suffix;
use super::{Family, Printer};
use crate::cuda::{self, Node, line};
use crate::machine::{FragmentId, Holds, Issue, Panels, Rows, Split};
use ir::Dtype;
use std::fmt::Write;

/// One form of the instruction, printed once for all its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instruction {
    function: &'static str,
    operand: Dtype,
    columns: u64,
    /// Whether the rows' operand lies across the depth in shared memory; none where it is in registers.
    across_a: Option<bool>,
    across_b: bool,
}

impl Instruction {
    /// Which operands in shared memory lie across the depth; nothing where none may.
    fn across(self) -> impl Iterator<Item = bool> {
        let all = self.across_a.into_iter().chain([self.across_b]);
        all.filter(move |_| self.operand.bytes() == 2)
    }

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
                let (parameter, bits) = match self.operand {
                    Dtype::F32 => ("const float* a", "__float_as_uint"),
                    Dtype::F16 | Dtype::Bf16 => ("const u32 (&a)[4]", ""),
                };
                let inputs = [0, 1, 2, 3].map(|i| match bits {
                    "" => format!("\"r\"(a[{i}])"),
                    bits => format!("\"r\"({bits}(a[{i}]))"),
                });
                (
                    format!("{{{}}}", parts.join(",")),
                    inputs.join(", "),
                    parameter,
                    format!("{}_held", self.function),
                )
            }
        };
        let next = count + if self.across_a.is_some() { 1 } else { 4 };
        let flags: Vec<String> = self
            .across()
            .map(|x| format!(", {}", u8::from(x)))
            .collect();
        let flags = flags.concat();
        // 32 bytes along the depth.
        let depth = 32 / self.operand.bytes();
        let dtype = match self.operand {
            Dtype::F32 => "tf32",
            half @ (Dtype::F16 | Dtype::Bf16) => suffix(half),
        };
        let mut text = String::new();
        let _ = writeln!(
            text,
            "template <> TW_FN void {name}<{}{flags}>(float* d, {parameter}, u64 b, u32 add) {{",
            self.columns,
        );
        let _ = writeln!(
            text,
            "  asm volatile(\"{{.reg .pred p; setp.ne.b32 p, %{}, 0; \
             wgmma.mma_async.sync.aligned.m64n{}k{depth}.f32.{dtype}.{dtype} {{{}}}, {a}, %{next}, p, 1, 1{flags};}}\"",
            next + 1,
            self.columns,
            accumulators.join(","),
        );
        let _ = writeln!(
            text,
            "      : {} : {inputs}, \"l\"(b), \"r\"(add) : \"memory\");\n}}",
            outputs.join(", ")
        );
        text
    }
}

/// Bytes from one step along the depth, of 32 bytes, to the next, for step `kk`, as an expression.
fn depth(panels: &Panels, dtype: Dtype) -> String {
    let s = panels.swizzle;
    if s.depth {
        let steps = s.line_bytes(dtype) / 32;
        format!(
            "kk / {steps} * {} + kk % {steps} * 32",
            s.panel_bytes(dtype)
        )
    } else {
        format!("kk * {}", 16 * s.line_bytes(dtype))
    }
}

/// Whether the operand lies across the depth.
fn across(panels: &Panels) -> bool {
    !panels.swizzle.depth
}

impl Printer<'_> {
    /// Rounds a rows' operand to what the instruction reads.
    pub(super) fn pack(&self, to: FragmentId, from: FragmentId, dtype: Dtype, stride: u64) -> Node {
        let to = self.fragment(to);
        let Holds::Rows { atoms, steps } = to.holds else {
            return Node::Scope(Vec::new());
        };
        let (name, held) = (&to.name, self.name(from));
        let at = format!("{stride} * mi + 8 * kk + 2 * x");
        let pack = line(format!(
            "{name}[mi][kk][x] = tw_pack_{}({held}[{at}], {held}[{at} + 1]);",
            suffix(dtype)
        ));
        let packs = cuda::unrolled("x", 4, vec![pack]);
        let steps = cuda::unrolled("kk", steps, vec![packs]);
        cuda::unrolled("mi", atoms, vec![steps])
    }

    /// Splits the elements of an operand.
    pub(super) fn split(&mut self, split: &Split) -> Node {
        self.families.insert(Family::Halves);
        let from = self.region_pointer(split.from, split.slot);
        let [high, low] = split.to.map(|id| self.region_pointer(id, split.into));
        let [kept, depth] = split.sides;
        let swizzle = self.machine.region(split.to[0]).swizzle;
        line(format!(
            "tw_halve<{}, {}, {}, {}, {}, {}>({from}, {high}, {low});",
            kept.count,
            depth.count,
            kept.stride,
            depth.stride,
            swizzle.map_or(0, |s| s.span),
            self.machine.computing()
        ))
    }

    /// Issues the instructions of a contraction.
    pub(super) fn issue(&mut self, issue: &Issue) -> Node {
        self.families.insert(Family::Wgmma);
        let Issue {
            row, columns, b, ..
        } = issue;
        let name = self.name(issue.into);
        let [atoms, chunks, steps] = issue.counts;
        let across_a = match &issue.a {
            Rows::Panels(a) => Some(across(a)),
            Rows::Fragment(_) => None,
        };
        let instruction = Instruction {
            function: row.function,
            operand: row.operand,
            columns: *columns,
            across_a,
            across_b: across(b),
        };
        let flags: Vec<String> = (instruction.across())
            .map(|x| format!(", {}", u8::from(x)))
            .collect();
        let flags = flags.concat();
        self.instructions.insert(instruction);
        if row.splits() {
            self.families.insert(Family::Tf32);
        }
        let which = format!("(group >> {})", issue.groups.trailing_zeros());
        let mut scope = vec![line(format!(
            "const u64 b_at = {};",
            self.descriptor(b, &which)
        ))];
        let (call, operand) = match &issue.a {
            Rows::Panels(a) => {
                let which = format!("(group & {})", issue.groups - 1);
                scope.push(line(format!(
                    "const u64 a_at = {};",
                    self.descriptor(a, &which)
                )));
                (
                    format!("{}<{columns}{flags}>", row.function),
                    format!(
                        "a_at + (({} + mi * {}) >> 4)",
                        depth(a, row.operand),
                        a.further
                    ),
                )
            }
            Rows::Fragment(packed) => (
                format!("{}_held<{columns}{flags}>", row.function),
                match row.operand {
                    Dtype::F32 => format!("&{}[{} * mi + 4 * kk]", self.name(*packed), 4 * steps),
                    Dtype::F16 | Dtype::Bf16 => format!("{}[mi][kk]", self.name(*packed)),
                },
            ),
        };
        let issue_one = line(format!(
            "{call}(&{name}[{} * mi + {} * q], {operand}, b_at + (({} + q * {}) >> 4), {});",
            columns * chunks / 2,
            columns / 2,
            depth(b, row.operand),
            b.further,
            if issue.fresh { "kk != 0" } else { "1" }
        ));
        let chunks = cuda::unrolled("q", chunks, vec![issue_one]);
        let atoms = cuda::unrolled("mi", atoms, vec![chunks]);
        scope.push(line("tw_wgmma_fence();"));
        scope.push(cuda::unrolled("kk", steps, vec![atoms]));
        Node::Scope(scope)
    }

    /// An operand as the group of warps sees it that is the `which`-th along its side.
    fn descriptor(&self, panels: &Panels, which: &str) -> String {
        let s = panels.swizzle;
        // With one group along a side nothing has to be added.
        let start = match panels.share {
            None => String::new(),
            Some(bytes) => format!(" + ((u64)({which} * {bytes}) >> 4)"),
        };
        let dtype = self.machine.region(panels.region).dtype;
        format!(
            "tw_descriptor<{}>({}, {}){start}",
            // Of two bytes.
            s.line_bytes(dtype) / 2,
            self.region_pointer(panels.region, panels.slot),
            if s.depth { 16 } else { s.panel_bytes(dtype) }
        )
    }
}

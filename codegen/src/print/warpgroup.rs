//! Contractions by warpgroup instructions.

use super::Printer;
use super::text::suffix;
use crate::atoms::Variant;
use crate::cuda::{self, Node, line};
use crate::families::Family;
use crate::machine::{FragmentId, Holds, Issue, Rows, Split, SwizzleAtoms};
use ir::Dtype;

/// Bytes from one step along the depth, of 32 bytes, to the next, for step `kk`, as an expression.
fn depth(swizzle_atoms: &SwizzleAtoms, dtype: Dtype) -> String {
    let s = swizzle_atoms.swizzle;
    if s.depth {
        let steps = s.line_bytes(dtype) / 32;
        format!(
            "kk / {steps} * {} + kk % {steps} * 32",
            s.swizzle_atom_bytes(dtype)
        )
    } else {
        format!("kk * {}", 16 * s.line_bytes(dtype))
    }
}

/// Whether the operand lies across the depth.
fn across(swizzle_atoms: &SwizzleAtoms) -> bool {
    !swizzle_atoms.swizzle.depth
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
        let from = self.region_pointer(split.from, split.stage);
        let [high, low] = split.to.map(|id| self.region_pointer(id, split.into));
        let kept = split.kept;
        let depth: u64 = split.depth.iter().map(|d| d.count).product();
        let mut along = Vec::new();
        for d in &split.depth {
            along.push(format!(", {}, {}", d.count, d.stride));
        }
        let machine = self.machine;
        let swizzle = machine.region(split.to[0]).swizzle;
        let all = machine.threads_of(self.fills);
        let (first, threads) = (all.start, all.end - all.start);
        line(format!(
            "tw_halve<{}, {depth}, {}, {}, {first}, {threads}{}>({from}, {high}, {low});",
            kept.count,
            kept.stride,
            swizzle.map_or(0, |s| s.span),
            along.concat()
        ))
    }

    /// Issues the instructions of a contraction, behind a fence for registers (see [`Printer::statements`]).
    pub(super) fn issue(&mut self, issue: &Issue) -> Node {
        self.families.insert(Family::Warpgroup);
        let Issue {
            row, columns, b, ..
        } = issue;
        let name = self.name(issue.into);
        let [atoms, chunks, steps] = issue.counts;
        let across_a = match &issue.a {
            Rows::SwizzleAtoms(a) => Some(across(a)),
            Rows::Fragment(_) => None,
        };
        let variant = Variant {
            function: row.function,
            operand: row.operand,
            columns: *columns,
            across_a,
            across_b: across(b),
        };
        let flags: Vec<String> = (variant.across())
            .map(|x| format!(", {}", u8::from(x)))
            .collect();
        let flags = flags.concat();
        self.variants.insert(variant);
        self.atoms.insert(row.instruction.atom);
        let powers = issue.groups.is_power_of_two();
        let which = match powers {
            true => format!("(group >> {})", issue.groups.trailing_zeros()),
            false => format!("(group / {})", issue.groups),
        };
        let mut scope = vec![line(format!(
            "const u64 b_at = {};",
            self.descriptor(b, &which)
        ))];
        let (call, operand) = match &issue.a {
            Rows::SwizzleAtoms(a) => {
                let which = match powers {
                    true => format!("(group & {})", issue.groups - 1),
                    false => format!("(group % {})", issue.groups),
                };
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
                    Dtype::F16 | Dtype::Bf16 => format!("{}[mi][kk]", self.name(*packed)),
                    Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => {
                        format!("&{}[{} * mi + 4 * kk]", self.name(*packed), 4 * steps)
                    }
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
        scope.push(cuda::unrolled("kk", steps, vec![atoms]));
        Node::Scope(scope)
    }

    /// An operand as the group of warps sees it that is the `which`-th along its side.
    fn descriptor(&self, swizzle_atoms: &SwizzleAtoms, which: &str) -> String {
        let s = swizzle_atoms.swizzle;
        // With one group along a side nothing has to be added.
        let start = match swizzle_atoms.share {
            None => String::new(),
            Some(bytes) => format!(" + ((u64)({which} * {bytes}) >> 4)"),
        };
        let dtype = self.machine.region(swizzle_atoms.region).dtype;
        format!(
            "tw_descriptor<{}>({}, {}){start}",
            // Of two bytes.
            s.line_bytes(dtype) / 2,
            self.region_pointer(swizzle_atoms.region, swizzle_atoms.stage),
            if s.depth {
                16
            } else {
                s.swizzle_atom_bytes(dtype)
            }
        )
    }
}

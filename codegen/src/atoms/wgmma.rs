//! What the `wgmma.mma_async` instructions share: how one is written, for as many columns as are wanted, and what puts them in order.

use ir::Dtype;
use std::fmt::Write;

/// How instructions that run in the background are put in order, as statements.
pub(crate) struct Background {
    /// Registers that were written are there for the instructions behind it.
    pub(crate) fence: &'static str,
    /// Those that were issued are a batch.
    pub(crate) commit: &'static str,
    /// Waits until at most so many of the newest batches are still under way.
    pub(crate) wait: fn(u64) -> String,
}

/// The statements for warpgroups.
pub(crate) const BACKGROUND: Background = Background {
    fence: "tw_wgmma_fence();",
    commit: "tw_wgmma_commit();",
    wait: |pending| format!("tw_wgmma_wait<{pending}>();"),
};

/// One form of the instruction, printed once for all its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Variant {
    pub(crate) function: &'static str,
    pub(crate) operand: Dtype,
    pub(crate) columns: u64,
    /// Whether the rows' operand lies across the depth in shared memory; none where it is in registers.
    pub(crate) across_a: Option<bool>,
    pub(crate) across_b: bool,
}

impl Variant {
    /// Which operands in shared memory lie across the depth; nothing where none may.
    pub(crate) fn across(self) -> impl Iterator<Item = bool> {
        let all = self.across_a.into_iter().chain([self.across_b]);
        all.filter(move |_| self.operand.bytes() == 2)
    }

    /// The device function that wraps it.
    pub(crate) fn text(self) -> String {
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
                    Dtype::F16 | Dtype::Bf16 => ("const u32 (&a)[4]", ""),
                    Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => {
                        ("const float* a", "__float_as_uint")
                    }
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
            Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool => "tf32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
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

//! One kernel of the chain as text: a loop over elements, and in it a loop over what is reduced.

use super::{Chain, Read, ReferenceLaunch, ReferenceMode, ReferenceRole};
use ir::{AxisId, AxisSet, ReduceOp, Reject};

/// Results of which there are so many that a thread may compute several of them.
const MANY: u64 = 1 << 15;

/// How many of them it computes.
const TOGETHER: u64 = 8;
/// What a kernel computes.
pub(super) enum Body {
    /// An expression.
    Plain(String),
    /// `accumulator = combine(accumulator, expression)` over axes.
    Over {
        axes: AxisSet,
        op: ReduceOp,
        term: String,
    },
}

impl Chain<'_> {
    /// Writes the kernel that fills `buffer`, whose axes are `order`, slowest first.
    pub(super) fn launch(
        &mut self,
        name: &str,
        buffer: u32,
        order: &[AxisId],
        args: &[Read],
        body: Body,
    ) -> Result<(), Reject> {
        let mut used = Vec::new();
        for a in args {
            self.read(a, &mut used);
        }
        used.sort_unstable();
        used.dedup();
        used.push(buffer);
        let entry = format!(
            "{}_{name}",
            ["exact", "own"][usize::from(self.mode == ReferenceMode::OwnDtypes)]
        );
        let slabbed = self.slab.is_some_and(|s| order.contains(&s));
        let elements = order
            .iter()
            .filter(|a| !(slabbed && Some(**a) == self.slab))
            .map(|a| self.program.extent(*a))
            .product::<u64>();
        let all = elements
            * self
                .slab
                .filter(|_| slabbed)
                .map_or(1, |s| self.program.extent(s));
        let long = match &body {
            Body::Plain(_) => 0,
            Body::Over { axes, .. } => axes.iter().map(|a| self.program.extent(a)).product::<u64>(),
        };
        let block_each = long >= 2048 && all <= 1 << 14;
        // A thread computes neighbours along an axis that some factor does not vary over: it reads that one once for them.
        let varies = |r: &Read, a: AxisId| match r {
            Read::Buffer { index, .. } => index.iter().any(|(_, f)| f.axes().contains(a)),
            Read::Constant(_) | Read::Coordinate(_) => false,
        };
        let slower = order.split_last().map_or(&[][..], |(_, slower)| slower);
        let shared = |a: &&AxisId| {
            args.iter().any(|r| varies(r, **a)) && args.iter().any(|r| !varies(r, **a))
        };
        let together: Option<AxisId> = (slower.iter())
            .find(|a| self.program.extent(**a) >= TOGETHER && shared(a))
            .copied()
            .filter(|_| !block_each && long >= 16 && all >= MANY);
        let in_slab = |a: AxisId| slabbed && Some(a) == self.slab;
        let elements = match together {
            Some(a) if !in_slab(a) => {
                let extent = self.program.extent(a);
                elements / extent * extent.div_ceil(TOGETHER)
            }
            Some(_) | None => elements,
        };
        let parameters: Vec<String> = used
            .iter()
            .map(|b| {
                let constant = if *b == buffer { "" } else { "const " };
                format!(
                    "{constant}{}* b{b}",
                    self.buffers[*b as usize].element.holder()
                )
            })
            .collect();
        let real = self.real();
        let mut t = format!(
            "\nextern \"C\" __global__ void {entry}({}, long long slab_first, long long slab_count) {{\n",
            parameters.join(", ")
        );
        let index = if block_each {
            "blockIdx.x"
        } else {
            "(long long)blockIdx.x * 256 + threadIdx.x"
        };
        let times = match (slabbed, together) {
            (true, Some(a)) if in_slab(a) => {
                format!(" * ((slab_count + {}) / {TOGETHER})", TOGETHER - 1)
            }
            (true, _) => " * slab_count".to_owned(),
            (false, _) => String::new(),
        };
        t.push_str(&format!(
            "  long long n = {index};\n  if (n >= {elements}ll{times}) return;\n"
        ));
        t.push_str("  long long rest = n;\n  (void)slab_first; (void)slab_count; (void)rest;\n");
        let whole = matches!(self.buffers[buffer as usize].role, ReferenceRole::Output(_));
        let mut at = "0ll".to_string();
        for axis in order.iter().rev() {
            if together == Some(*axis) {
                let extent = match in_slab(*axis) {
                    true => "slab_count".to_owned(),
                    false => format!("{}ll", self.program.extent(*axis)),
                };
                t.push_str(&format!(
                    "  const long long extent = {extent}, groups = (extent + {}) / {TOGETHER};\n  const long long first = rest % groups * {TOGETHER}; rest /= groups;\n",
                    TOGETHER - 1
                ));
                continue;
            }
            let own = slabbed && Some(*axis) == self.slab;
            let extent = if own {
                "slab_count".into()
            } else {
                format!("{}ll", self.program.extent(*axis))
            };
            let first = if own { " + slab_first" } else { "" };
            t.push_str(&format!(
                "  const long long x{0} = rest % {extent}{first}; rest /= {extent}; (void)x{0};\n",
                axis.0
            ));
        }
        for axis in order {
            let own = slabbed && Some(*axis) == self.slab && !whole;
            at = if own {
                format!("({at} * slab_count + (x{} - slab_first))", axis.0)
            } else {
                format!("({at} * {}ll + x{})", self.program.extent(*axis), axis.0)
            };
        }
        match &body {
            Body::Plain(text) => t.push_str(&format!("  {real} value = {text};\n")),
            Body::Over { axes, op, term } => {
                let (start, combine) = match op {
                    ReduceOp::Sum => ("0", "value + term"),
                    ReduceOp::Max => ("(-1.0 / 0.0)", "term > value ? term : value"),
                };
                let each = |text: &str| match together {
                    None => text.to_owned(),
                    Some(a) => {
                        let from = if in_slab(a) { "slab_first + " } else { "" };
                        // What is past the end is the last one again.
                        format!(
                            "#pragma unroll\n    for (int own = 0; own < {TOGETHER}; ++own) {{\n    const long long x{0} = {from}(first + own < extent ? first + own : extent - 1);\n    {real}& value = values[own];\n    (void)x{0};\n{text}    }}\n",
                            a.0
                        )
                    }
                };
                t.push_str(&match together {
                    None => format!("  {real} value = ({real}){start};\n"),
                    Some(_) => format!(
                        "  {real} values[{TOGETHER}];\n#pragma unroll\n  for (int own = 0; own < {TOGETHER}; ++own) values[own] = ({real}){start};\n"
                    ),
                });
                // A block's threads share the turns of the longest loop.
                let shared = axes.iter().max_by_key(|a| self.program.extent(*a));
                for axis in axes.iter() {
                    let (from, step) = if block_each && Some(axis) == shared {
                        ("threadIdx.x", "= 256")
                    } else {
                        ("0", "= 1")
                    };
                    t.push_str(&format!(
                        "  for (long long x{0} = {from}; x{0} < {1}ll; x{0} +{step}) {{\n",
                        axis.0,
                        self.program.extent(axis)
                    ));
                }
                t.push_str(&each(&format!(
                    "    const {real} term = {term};\n    value = {combine};\n"
                )));
                t.push_str(&format!("  {}\n", "}".repeat(axes.len())));
                if together.is_some() {
                    let element = self.buffers[buffer as usize].element.written("value");
                    t.push_str(&each(&format!("    b{buffer}[{at}] = {element};\n")));
                }
                if block_each {
                    t.push_str(&format!("  static __shared__ {real} parts[256];\n  parts[threadIdx.x] = value;\n  __syncthreads();\n"));
                    t.push_str("  for (int half = 128; half > 0; half /= 2) {\n    if (threadIdx.x < half) {\n");
                    t.push_str(&format!(
                        "      const {real} value = parts[threadIdx.x], term = parts[threadIdx.x + half];\n      parts[threadIdx.x] = {combine};\n    }}\n    __syncthreads();\n  }}\n"
                    ));
                    t.push_str("  if (threadIdx.x != 0) return;\n  value = parts[0];\n");
                }
            }
        }
        let element = self.buffers[buffer as usize].element;
        match together {
            Some(_) => t.push_str("}\n"),
            None => t.push_str(&format!(
                "  b{buffer}[{at}] = {};\n}}\n",
                element.written("value")
            )),
        }
        self.text.push_str(&t);
        self.launches.push(ReferenceLaunch {
            entry,
            arguments: used,
            elements,
            slabbed,
            block_each,
            frees: Vec::new(),
        });
        Ok(())
    }
}

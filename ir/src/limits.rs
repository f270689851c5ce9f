//! What a program may have at most.
//!
//! One table, so that whoever reads a program knows what can come: everything that takes a program ends, and in memory that a
//! workstation has. A program beyond a limit is refused where it is made, with the limit's name and what was found. How much
//! arithmetic the reference does is limited beside it, in [`eval`](mod@crate::eval).

/// Longest text of a program or tile program, in bytes.
pub const MAX_SOURCE: usize = 1 << 20;
/// Longest name of an axis, a value or a program.
pub const MAX_NAME: usize = 128;
/// Deepest nesting of brackets and signs in an expression.
pub const MAX_BRACKETS: usize = 100;
/// Deepest nesting of expressions, through definitions.
pub const MAX_NESTING: usize = 250;
/// Most parts of expressions that are visited when definitions are expanded.
pub const MAX_STEPS: usize = 1 << 20;
/// Most axes that a program may declare.
pub const MAX_AXES: usize = 256;
/// Most axes of one value, and of the operands of one operation together: as many as an array of NumPy or PyTorch has.
pub const MAX_RANK: usize = 64;
/// Largest extent of an axis: every coordinate is exact in f64, and sums of products with coefficients stay far from overflow.
pub const MAX_EXTENT: u64 = 1 << 40;
/// Largest absolute coefficient or offset of a re-indexing.
pub const MAX_COEFFICIENT: u64 = 1 << 40;
/// Most elements of a value, and most points of a contraction's product space.
pub const MAX_ELEMENTS: u64 = 1 << 62;
/// Most values in a program.
pub const MAX_NODES: usize = 1 << 16;
/// Most parameters of a program.
pub const MAX_PARAMETERS: usize = 1024;
/// Most results of a program.
pub const MAX_OUTPUTS: usize = 256;

#[cfg(test)]
mod tests {
    // Oracle: the table above; each text has one more than there may be of one thing, or exactly as many.
    use super::*;
    use crate::{Builder, Dtype, Program};
    use std::time::{Duration, Instant};

    fn list(n: usize, item: impl Fn(usize) -> String) -> String {
        (0..n).map(item).collect::<Vec<_>>().join(", ")
    }

    fn axes(n: usize) -> String {
        format!("program p\naxis {}\n", list(n, |k| format!("a{k} = 1")))
    }

    fn rank(n: usize) -> String {
        let names = list(n, |k| format!("a{k}"));
        format!(
            "{}x = parameter f32 [{names}]\nreturn f32 [{names}] x\n",
            axes(n)
        )
    }

    /// The union of two operands that are small enough by themselves.
    fn joint(n: usize) -> String {
        let half = |from: usize| list(n / 2, |k| format!("a{}", from + k));
        let (one, two) = (half(0), half(n / 2));
        format!(
            "{}x = parameter f32 [{one}]\ny = parameter f32 [{two}]\nreturn f32 [{one}] dot(x, y; {two})\n",
            axes(n)
        )
    }

    fn parameters(n: usize) -> String {
        let all: String = (0..n)
            .map(|k| format!("x{k} = parameter f32 [i]\n"))
            .collect();
        let sum = (0..n)
            .map(|k| format!("x{k}"))
            .collect::<Vec<_>>()
            .join(" + ");
        format!("program p\naxis i = 2\n{all}return f32 [i] {sum}\n")
    }

    fn results(n: usize) -> String {
        let all = list(n, |k| format!("f32 [i] iota(i) + {k}"));
        format!("program p\naxis i = 2\nreturn {all}\n")
    }

    fn name(n: usize) -> String {
        let name = "n".repeat(n);
        format!("program {name}\naxis i = 2\nreturn f32 [i] iota(i)\n")
    }

    fn value_name(n: usize) -> String {
        let name = "n".repeat(n);
        format!("program p\naxis i = 2\n{name} = parameter f32 [i]\nreturn f32 [i] {name}\n")
    }

    /// A coordinate, a constant and a sum a line, and a product.
    fn values(n: usize) -> String {
        let last = n / 2 - 2;
        let lines: String = (1..=last)
            .map(|k| format!("v{k} = v{} + {k}\n", k - 1))
            .collect();
        format!(
            "program p\naxis i = 2\nv0 = iota(i) + 0\n{lines}return f32 [i] v{last} * v{last}\n"
        )
    }

    #[test]
    fn each_limit_is_one_fault_that_names_it_and_what_was_found() {
        type Make = fn(usize) -> String;
        let cases: [(Make, usize, &str); 8] = [
            (axes, MAX_AXES, "at most 256 axes, found 258"),
            (
                rank,
                MAX_RANK,
                "the tensor has 66 axes, expected at most 64",
            ),
            (
                joint,
                MAX_RANK,
                "the operands together have 66 axes, expected at most 64",
            ),
            (
                parameters,
                MAX_PARAMETERS,
                "at most 1024 parameters, found 1026",
            ),
            (results, MAX_OUTPUTS, "at most 256 results, found 258"),
            (name, MAX_NAME, "at most 128 characters, found 130"),
            (value_name, MAX_NAME, "at most 128 characters, found 130"),
            (values, MAX_NODES, "at most 65536 values"),
        ];
        for (make, limit, message) in cases {
            let begun = Instant::now();
            let text = |n: usize| {
                let text = make(n);
                if text.contains("return") {
                    text
                } else {
                    text + "return f32 [] 1\n"
                }
            };
            let read: Result<Program, _> = text(limit).parse();
            let program = read.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(program.validate(), Ok(()), "{message}");
            for (n, is_next) in [(limit + 2, true), (100_000, false)] {
                let faults = text(n).parse::<Program>().expect_err(message);
                let [only] = faults.list() else {
                    panic!("{faults}");
                };
                let fits = !is_next || only.message.contains(message);
                assert!(fits, "{faults}\nexpected: {message}");
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{message}");
        }
    }

    #[test]
    fn the_builder_and_the_validator_know_them_too() {
        let mut b = Builder::new("p");
        let i = b.axis("i", 2).expect("an axis");
        for k in 0..MAX_PARAMETERS {
            b.parameter(&format!("x{k}"), Dtype::F32, [i])
                .expect("few enough");
        }
        let more = b.parameter("more", Dtype::F32, [i]).expect_err("too many");
        assert!(more.0.contains("at most 1024 parameters"), "{more}");
        let x = b.named("x0").expect("a parameter");
        for _ in 0..MAX_OUTPUTS {
            b.output(Dtype::F32, [i], x).expect("few enough");
        }
        let more = b.output(Dtype::F32, [i], x).expect_err("too many");
        assert!(more.0.contains("at most 256 results"), "{more}");
        let mut program = b.finish().expect("a program");
        program.outputs.push(program.outputs[0].clone());
        let faults = program.validate().expect_err("too many");
        assert_eq!(faults, ["a program has at most 256 results, found 257"]);
    }
}

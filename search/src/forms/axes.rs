//! Programs that a search begins with: the same function with other axes, which rules, that name none of their own, could not find.

use super::writer::Made;
use super::{blocks, divide, phases, residues};
use ir::{AxisId, Program};

/// The program with its long axes in two, and without the zeros of a view's index where its results come in whole groups; where it multiplies others, also
/// by phases; and where it reduces over triangles, also in blocks, and in blocks of blocks.
pub fn starts(program: &Program) -> Vec<Program> {
    let all = others(program).into_iter().map(|other| other.0);
    // What is by residues multiplies less and stores nothing besides.
    let own = residues::by_residues(program)
        .is_none()
        .then(|| program.clone());
    (own.into_iter().chain(all))
        .map(|start| divide::divided(&start))
        .collect()
}

/// Programs with other axes, and in words what these are.
fn others(program: &Program) -> Vec<Made> {
    fn step(all: &mut Vec<Made>, from: Made, make: fn(&Program) -> Option<Made>) -> Made {
        let Some((made, words)) = make(&from.0) else {
            return from;
        };
        let made = (made, [from.1, words].concat());
        all.push(made.clone());
        made
    }
    let mut all = Vec::new();
    let by_residues = step(
        &mut all,
        (program.clone(), Vec::new()),
        residues::by_residues,
    );
    let phased = step(&mut all, by_residues, phases::phased);
    let in_blocks = step(&mut all, phased, blocks::blocked_once);
    step(&mut all, in_blocks, blocks::blocked);
    all
}

/// The program with its axes as an expression of it has them, which need not be how [`starts`] would have them now.
pub fn as_in(program: &Program, expression: &Program) -> Program {
    parts(program, expression).0
}

/// How the axes of an expression make up those of its program, in words: `m = 2048·m_outer + m_inner`.
pub fn changes(program: &Program, expression: &Program) -> Vec<String> {
    parts(program, expression).1
}

/// The program as an expression tells by its axes: new ones have names that no other's have. And in words, how.
fn parts(program: &Program, expression: &Program) -> (Program, Vec<String>) {
    let count = program.axes.len();
    let new = expression.axes.get(count..).unwrap_or_default();
    let all = others(program).into_iter();
    let like = all.filter(|(other, _)| new.starts_with(&other.axes[count..]));
    let nearest = like.max_by_key(|(other, _)| other.axes.len());
    let (mut made, mut words) = nearest.unwrap_or_else(|| (program.clone(), Vec::new()));
    for inner in expression.axes.iter().skip(made.axes.len()) {
        let found = (0..count).find_map(|at| {
            let divided = made.divided(AxisId(at as u32), inner.extent)?;
            let same = divided.axes.get(at) == expression.axes.get(at);
            (same && divided.axes.last() == Some(inner)).then_some((at, divided))
        });
        let Some((at, divided)) = found else { break };
        let (whole, outer) = (&made.axes[at].name, &divided.axes[at].name);
        words.push(format!(
            "{whole} = {}·{outer} + {}, in memory where the one axis is",
            inner.extent, inner.name
        ));
        made = divided;
    }
    (made, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NORM: &str = "program norm\naxis t = 2, m = 4194304\nx = parameter f32 [t, m]\nz = x - mean(x; m)\n\
        return f32 [t, m] z * rsqrt(mean(z * z; m))\n";

    #[test]
    fn an_expression_tells_its_divisions() {
        let program: Program = NORM.parse().expect("a program");
        let [expression] = &starts(&program)[..] else {
            panic!("it multiplies no zeros");
        };
        let words = "m = 2048·m_outer + m_inner, in memory where the one axis is";
        assert_eq!(changes(&program, expression), [words]);
        assert_eq!(as_in(&program, expression), *expression);
        assert!(changes(&program, &program).is_empty());
        assert_eq!(as_in(&program, &program), program);
        // As another version of the limits would have had it.
        let other = program.divided(AxisId(1), 512).expect("it divides");
        assert_eq!(as_in(&program, &other), other);
        assert_eq!(changes(&program, &other), [words.replace("2048", "512")]);
    }

    #[test]
    fn equally_long_axes_are_told_apart() {
        let text = NORM.replace("t = 2, m = 4194304", "t = 4096, m = 4096");
        let program: Program = text.parse().expect("a program");
        let divided = |axes: [(u32, u64); 2]| {
            let divide = |p: Program, (a, n)| p.divided(AxisId(a), n).expect("it divides");
            axes.into_iter().fold(program.clone(), divide)
        };
        for axes in [[(0, 64), (1, 64)], [(1, 64), (0, 64)], [(1, 8), (0, 512)]] {
            let expression = divided(axes);
            assert_eq!(as_in(&program, &expression), expression, "{axes:?}");
        }
    }

    #[test]
    fn an_expression_tells_its_residue_classes() {
        let text = "program up\naxis n = 2, c = 3, d = 2, h = 5, k = 3, o = 10\nx = parameter f32 [n, c, h]\n\
            w = parameter f32 [c, d, k]\nreturn f32 [n, d, o] conv_transpose1d(x, w; c, h, o, k, 2, 1)\n";
        let program: Program = text.parse().expect("a program");
        let [by_residues] = &starts(&program)[..] else {
            panic!("nothing is left to multiply by zero");
        };
        assert_eq!(as_in(&program, by_residues), *by_residues);
        let words = ["o = 2·o_outer + o_inner", "k = o_inner + 2·k_tap − 1"];
        assert_eq!(changes(&program, by_residues), words);
        assert_eq!(as_in(&program, &program), program);
    }

    #[test]
    fn an_expression_tells_its_phases() {
        let text = "program up\naxis n = 2, c = 3, d = 2, h = 5, k = 3, o = 9\nx = parameter f32 [n, c, h]\n\
            w = parameter f32 [c, d, k]\nreturn f32 [n, d, o] conv_transpose1d(x, w; c, h, o, k, 2, 1)\n";
        let program: Program = text.parse().expect("a program");
        let [plain, phased] = &starts(&program)[..] else {
            panic!("it multiplies zeros");
        };
        assert_eq!(*plain, program);
        assert_eq!(as_in(&program, phased), *phased);
        assert_eq!(as_in(&program, &program), program);
        let words = [
            "h = o_base − k_tap",
            "k = k_phase + 2·k_tap",
            "2·o_base = o − k_phase + 1",
        ];
        assert_eq!(changes(&program, phased), words);
    }
}

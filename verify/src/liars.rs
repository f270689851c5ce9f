//! Kernels that lie. Each is caught by its guard, and passes when that guard alone is off.
// Oracle: the liar itself, which is wrong by construction.

use super::*;
use crate::evaluate::evaluate;
use crate::fixtures::{self, ProgramMaker};
use crate::inputs::Draw;
use crate::tolerance::baseline;
use ir::{Dtype, MapOp, ReduceOp};

/// What a kernel does: from the program, the inputs, and what was in the output before, the new output and side effects.
type Kernel = fn(&mut Liar<'_>, &[Vec<f64>], RunOptions) -> (Tensors, Ran);

type Tensors = Vec<Vec<f64>>;

struct Liar<'a> {
    program: &'a Program,
    kernel: Kernel,
    /// Which elements of the output come back; all where there are none.
    parts: Vec<Range<u64>>,
    /// The outputs of earlier runs: memory that nobody poisoned still holds them.
    seen: Vec<(Tensors, Tensors)>,
    runs: u32,
}

impl Liar<'_> {
    fn right(&self, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        baseline(self.program, inputs).expect("it runs")
    }

    fn part(&self, outputs: Tensors) -> Tensors {
        if self.parts.is_empty() {
            return outputs;
        }
        let ranges = self.parts.iter().map(|r| r.start as usize..r.end as usize);
        let cut = |tensor: Vec<f64>| ranges.clone().flat_map(|r| tensor[r].to_vec()).collect();
        outputs.into_iter().map(cut).collect()
    }
}

impl Machine for Liar<'_> {
    fn subject(&self) -> String {
        String::new()
    }

    fn reference(&mut self, inputs: &DrawnInputs) -> Result<Vec<Vec<f64>>, Reject> {
        Ok(self.part(evaluate(self.program, inputs).expect("it runs")))
    }
    fn baseline(&mut self, inputs: &DrawnInputs) -> Result<Vec<Vec<f64>>, Reject> {
        Ok(self.part(self.right(inputs)))
    }
    fn compared(&self, _: usize) -> Option<Vec<Range<u64>>> {
        (!self.parts.is_empty()).then(|| self.parts.clone())
    }
    fn run(&mut self, inputs: &DrawnInputs, options: RunOptions) -> Result<Ran, Reject> {
        self.runs += 1;
        let (outputs, ran) = (self.kernel)(self, inputs, options);
        let outputs = self.part(outputs);
        let kinds = self.program.outputs.iter().map(|o| o.dtype);
        let outputs = kinds.zip(&outputs).map(|(d, x)| Stored::of(d, x)).collect();
        Ok(Ran { outputs, ..ran })
    }
}

fn ran(outputs: Tensors) -> (Tensors, Ran) {
    (outputs, Ran::default())
}

fn honest(liar: &mut Liar<'_>, inputs: &[Vec<f64>], _: RunOptions) -> (Tensors, Ran) {
    ran(liar.right(inputs))
}

/// Never writes the last element; its memory happens to hold the right value, from an earlier kernel in the same process.
fn leaves_a_hole(liar: &mut Liar<'_>, inputs: &[Vec<f64>], options: RunOptions) -> (Tensors, Ran) {
    let mut outputs = liar.right(inputs);
    if options.poison
        && let Some(last) = outputs[0].last_mut()
    {
        *last = f64::NAN;
    }
    ran(outputs)
}

fn writes_past_the_end(
    liar: &mut Liar<'_>,
    inputs: &[Vec<f64>],
    options: RunOptions,
) -> (Tensors, Ran) {
    let mut ran = ran(liar.right(inputs));
    if options.canaries {
        ran.1.canaries_changed.push("out0".into());
    }
    ran
}

fn modifies_an_input(liar: &mut Liar<'_>, inputs: &[Vec<f64>], _: RunOptions) -> (Tensors, Ran) {
    let mut ran = ran(liar.right(inputs));
    ran.1.inputs_changed.push("x".into());
    ran
}

/// Counts once too often among the blocks that wait for each other.
fn leaves_a_counter(liar: &mut Liar<'_>, inputs: &[Vec<f64>], _: RunOptions) -> (Tensors, Ran) {
    let mut ran = ran(liar.right(inputs));
    ran.1.split_workspaces_left.push("k0".into());
    ran
}

/// Adds in an order that depends on timing: the last bit moves.
fn races(liar: &mut Liar<'_>, inputs: &[Vec<f64>], _: RunOptions) -> (Tensors, Ran) {
    let mut outputs = liar.right(inputs);
    let first = &mut outputs[0][0];
    if liar.runs.is_multiple_of(2) && *first > 0.0 {
        *first = f64::from(f32::from_bits((*first as f32).to_bits() + 1));
    }
    ran(outputs)
}

/// Reads one element too far: what is there depends on where the buffers lie.
fn depends_on_addresses(
    liar: &mut Liar<'_>,
    inputs: &[Vec<f64>],
    options: RunOptions,
) -> (Tensors, Ran) {
    let mut outputs = liar.right(inputs);
    if options.placement > 0 {
        outputs[0][0] += 1.0;
    }
    ran(outputs)
}

/// Remembers the result for its first input, whatever the second one is.
fn caches(liar: &mut Liar<'_>, inputs: &[Vec<f64>], _: RunOptions) -> (Tensors, Ran) {
    let known = liar.seen.iter().find(|(key, _)| key[0] == inputs[0]);
    if let Some((_, outputs)) = known {
        return ran(outputs.clone());
    }
    let outputs = liar.right(inputs);
    liar.seen.push((inputs.to_vec(), outputs.clone()));
    ran(outputs)
}

/// `e^1.5x / Σ e^1.5x` in f32 without the maximum subtracted: right for small numbers, overflows above 59.
fn unsafe_softmax(liar: &mut Liar<'_>, inputs: &[Vec<f64>], _: RunOptions) -> (Tensors, Ran) {
    let columns = liar.program.axes[1].extent as usize;
    let mut out = Vec::new();
    for row in inputs[0].chunks(columns) {
        let e: Vec<f32> = row.iter().map(|x| (*x as f32 * 1.5).exp()).collect();
        let sum: f32 = e.iter().sum();
        out.extend(e.iter().map(|x| f64::from(x / sum)));
    }
    ran(vec![out])
}

fn mean_for_softmax(liar: &mut Liar<'_>, inputs: &[Vec<f64>], _: RunOptions) -> (Tensors, Ran) {
    let columns = liar.program.axes[1].extent as f64;
    ran(vec![vec![1.0 / columns; inputs[0].len()]])
}

/// Forgets the elements of the last, partial tile.
fn wrong_in_partial_tiles(
    liar: &mut Liar<'_>,
    inputs: &[Vec<f64>],
    _: RunOptions,
) -> (Tensors, Ran) {
    let mut outputs = liar.right(inputs);
    let rest = outputs[0].len() % 8;
    let whole = outputs[0].len() - rest;
    for x in &mut outputs[0][whole..] {
        *x = 0.0;
    }
    ran(outputs)
}

/// `softmax(x · a; j)` of two parameters.
fn two_inputs() -> Program {
    let mut p = ProgramMaker::new("two", &[("i", 5), ("j", 13)]);
    let x = p.parameter("x", Dtype::F32, &[fixtures::I, fixtures::J]);
    let a = p.parameter("a", Dtype::F32, &[fixtures::J]);
    let s = p.map(MapOp::Mul, &[x, a]);
    let y = p.softmax(s, fixtures::J);
    p.returning(Dtype::F32, &[fixtures::I, fixtures::J], y)
}

/// `softmax(1.5 · x; j)`.
fn scaled_rows() -> Program {
    let mut p = ProgramMaker::new("rows", &[("i", 5), ("j", 13)]);
    let x = p.parameter("x", Dtype::F32, &[fixtures::I, fixtures::J]);
    let c = p.constant(1.5);
    let s = p.map(MapOp::Mul, &[x, c]);
    let y = p.softmax(s, fixtures::J);
    p.returning(Dtype::F32, &[fixtures::I, fixtures::J], y)
}

fn check(program: &Program, kernel: Kernel, guards: Guards) -> Result<KernelEvidence, Reject> {
    let mut liar = Liar {
        program,
        kernel,
        parts: Vec::new(),
        seen: Vec::new(),
        runs: 0,
    };
    let options = KernelOptions {
        guards,
        ..KernelOptions::new(11)
    };
    check_kernel(&mut liar, program, &options)
}

#[test]
fn an_honest_kernel_passes() {
    for program in [
        two_inputs(),
        scaled_rows(),
        fixtures::attention([5, 9, 4, 3], None),
    ] {
        let evidence = check(&program, honest, ALL_GUARDS).expect("it is right");
        assert_eq!(
            evidence.distributions.len(),
            distributions(&program).count()
        );
        assert_eq!(evidence.dependence.len(), program.parameters().count());
        assert_eq!(evidence.repeats, 3);
        let compared: u64 = evidence.distributions[0]
            .outputs
            .iter()
            .map(|e| e.elements)
            .sum();
        let output = &program.outputs[0];
        assert_eq!(
            compared,
            program.shape(&output.dims).iter().product::<u64>()
        );
    }
}

#[test]
fn each_liar_is_caught_by_its_guard_alone() {
    let all = ALL_GUARDS;
    #[rustfmt::skip]
    let liars: &[(&str, Program, Kernel, Guards)] = &[
        ("leaves a hole",        two_inputs(),  leaves_a_hole,        Guards { poison: false, ..all }),
        ("writes past the end",  two_inputs(),  writes_past_the_end,  Guards { canaries: false, ..all }),
        ("modifies an input",    two_inputs(),  modifies_an_input,    Guards { inputs: false, ..all }),
        ("leaves a counter",     two_inputs(),  leaves_a_counter,     Guards { split_workspaces: false, ..all }),
        ("races",                two_inputs(),  races,                Guards { repeats: false, ..all }),
        ("depends on addresses", two_inputs(),  depends_on_addresses, Guards { repeats: false, ..all }),
        ("caches",               two_inputs(),  caches,               Guards { dependence: false, ..all }),
        ("unsafe softmax",       scaled_rows(), unsafe_softmax,       Guards { distributions: false, ..all }),
    ];
    for (name, program, kernel, without) in liars {
        let caught = check(program, *kernel, all);
        assert!(
            matches!(caught, Err(Reject::Wrong(_))),
            "{name}: {caught:?}"
        );
        let passed = check(program, *kernel, *without);
        assert!(passed.is_ok(), "{name} without its guard: {passed:?}");
    }
}

#[test]
fn plain_errors_are_caught() {
    for (program, kernel) in [
        (scaled_rows(), mean_for_softmax as Kernel),
        (scaled_rows(), wrong_in_partial_tiles),
    ] {
        let caught = check(&program, kernel, ALL_GUARDS);
        assert!(matches!(caught, Err(Reject::Wrong(_))), "{caught:?}");
    }
    // The mean is right where the inputs hardly vary, which is why there is more than one distribution.
    let program = scaled_rows();
    let constant = vec![vec![0.75; 5 * 13]];
    let want = evaluate(&program, &constant).expect("it runs");
    assert!(want[0].iter().all(|x| (x - 1.0 / 13.0).abs() < 1e-12));
}

#[test]
fn an_unused_parameter_need_not_be_followed() {
    let mut p = ProgramMaker::new("unused", &[("i", 5), ("j", 13)]);
    let x = p.parameter("x", Dtype::F32, &[fixtures::I, fixtures::J]);
    p.parameter("unused", Dtype::F32, &[fixtures::I]);
    let y = p.reduce(ReduceOp::Sum, x, &[fixtures::J]);
    let program = p.returning(Dtype::F32, &[fixtures::I], y);
    let evidence = check(&program, honest, ALL_GUARDS).expect("it is right");
    assert_eq!(evidence.dependence, ["x"]);
}

/// To the nearest integer, where fractions are to be lost.
fn rounds_to_nearest(liar: &mut Liar<'_>, inputs: &[Vec<f64>], _: RunOptions) -> (Tensors, Ran) {
    let mut outputs = evaluate(liar.program, inputs).expect("it runs");
    outputs[0].iter_mut().for_each(|x| *x = x.round());
    ran(outputs)
}

#[test]
fn integers_are_judged_by_what_is_stored() {
    let program = |result: &str| -> Program {
        let text = format!("program p\naxis i = 40\nx = parameter f32 [i]\nreturn {result}\n");
        text.parse().expect("a program")
    };
    let scaled = program("i32 [i] 8 * x");
    let evidence = check(&scaled, honest, ALL_GUARDS).expect("it is right");
    assert_eq!(evidence.dependence, ["x"]);
    let caught = check(&scaled, rounds_to_nearest, ALL_GUARDS);
    assert!(matches!(caught, Err(Reject::Wrong(_))), "{caught:?}");
    // Whatever the parameter is, this is true.
    let evidence = check(&program("bool [i] x * x + 1"), honest, ALL_GUARDS).expect("it is right");
    assert!(evidence.dependence.is_empty());
}

#[test]
fn each_draw_has_inputs_of_its_own() {
    let program = two_inputs();
    let mut liar = Liar {
        program: &program,
        kernel: caches,
        parts: Vec::new(),
        seen: Vec::new(),
        runs: 0,
    };
    let options = KernelOptions {
        draws: 3,
        guards: Guards {
            repeats: false,
            dependence: false,
            ..ALL_GUARDS
        },
        ..KernelOptions::new(5)
    };
    let evidence = check_kernel(&mut liar, &program, &options).expect("it is right");
    assert_eq!(
        (evidence.seed, evidence.runs),
        (5, evidence.distributions.len() as u32)
    );
    for (_, distribution) in distributions(&program) {
        let own = evidence
            .distributions
            .iter()
            .filter(|d| d.name == distribution.name);
        assert_eq!(own.map(|d| d.draw).collect::<Vec<_>>(), [0, 1, 2]);
    }
    // It remembers inputs: none came twice.
    assert_eq!(liar.seen.len() as u32, evidence.runs);
}

/// Writes down what it is asked.
#[derive(Default)]
struct Asked {
    compared: Vec<Vec<Draw>>,
    ran: Vec<Vec<Draw>>,
}

struct Recorder<'a>(Liar<'a>, Asked);

impl Machine for Recorder<'_> {
    fn subject(&self) -> String {
        self.0.subject()
    }
    fn reference(&mut self, inputs: &DrawnInputs) -> Result<Tensors, Reject> {
        self.1.compared.push(inputs.draws().collect());
        self.0.reference(inputs)
    }
    fn baseline(&mut self, inputs: &DrawnInputs) -> Result<Tensors, Reject> {
        self.1.compared.push(inputs.draws().collect());
        self.0.baseline(inputs)
    }
    fn run(&mut self, inputs: &DrawnInputs, options: RunOptions) -> Result<Ran, Reject> {
        self.1.ran.push(inputs.draws().collect());
        self.0.run(inputs, options)
    }
}

#[test]
fn what_is_drawn_is_known_before() {
    for program in [two_inputs(), scaled_rows()] {
        let options = KernelOptions::new(5);
        let liar = Liar {
            program: &program,
            kernel: honest,
            parts: Vec::new(),
            seen: Vec::new(),
            runs: 0,
        };
        let mut recorder = Recorder(liar, Asked::default());
        check_kernel(&mut recorder, &program, &options).expect("it is right");
        let known = draws(&program, &options);
        let of = |compared: bool| -> Vec<Vec<Draw>> {
            let some = known.iter().filter(|d| d.1 || !compared);
            some.map(|(inputs, _)| inputs.draws().collect()).collect()
        };
        let Asked { compared, ran } = recorder.1;
        let twice: Vec<_> = of(true).into_iter().flat_map(|d| [d.clone(), d]).collect();
        assert_eq!(compared, twice);
        let mut once = ran;
        once.dedup();
        assert_eq!(once, of(false));
    }
}

#[test]
fn what_has_no_value_is_not_verified() {
    let text =
        "program p\naxis i = 6\nx = parameter f32 [i]\nreturn f32 [i] x, f32 [i] log(-1 - x * x)\n";
    let program: Program = text.parse().expect("a program");
    let found = check(&program, honest, ALL_GUARDS);
    let Err(Reject::Undecided(what)) = found else {
        panic!("{found:?}");
    };
    assert!(what.contains("output 1"), "{what}");
}

#[test]
fn impossible_times_are_refused() {
    assert!(check_time(3.1, 3.0).is_ok());
    for time in [2.9, 0.0, -1.0, f64::NAN] {
        assert!(check_time(time, 3.0).is_err(), "{time}");
    }
    assert!(check_time(0.0, 0.0).is_err());
}

#[test]
fn what_is_compared_of_a_large_output_is_said() {
    let program = scaled_rows();
    let mut liar = Liar {
        program: &program,
        kernel: honest,
        parts: vec![0..26, 52..65],
        seen: Vec::new(),
        runs: 0,
    };
    let options = KernelOptions::new(11);
    let evidence = check_kernel(&mut liar, &program, &options).expect("it is right");
    assert_eq!(evidence.parts, [0.6]);
    assert_eq!(evidence.distributions[0].outputs[0].elements, 39);
    // An element too few is a fault of the machine, not of the kernel.
    liar.kernel = |liar, inputs, _| {
        let mut outputs = liar.right(inputs);
        outputs[0].pop();
        liar.parts.clear();
        ran(outputs)
    };
    liar.parts.clear();
    let lost = check_kernel(&mut liar, &program, &options);
    assert!(matches!(lost, Err(Reject::Fault(_))), "{lost:?}");
}

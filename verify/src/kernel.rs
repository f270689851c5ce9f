//! The check of a compiled candidate: full shapes, fresh inputs, every element, and guards.
//!
//! This module knows no GPU. A [`Machine`] runs things; what it reports is judged here. Each guard exists because a wrong
//! kernel can pass everything else; the tests hold one such kernel for each.

use crate::inputs::{DISTRIBUTIONS, Distribution, DrawnInputs, distributions};
use crate::stored::Stored;
use crate::tolerance::{
    Doubt, Errors, FEW, Limits, Roundings, deviations, expected, farther, judge, rounds_operands,
};
use ir::{Output, Program, Reject};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, Range};

/// How a candidate is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Fill outputs and workspaces with NaN before the run.
    pub poison: bool,
    /// Put known bytes before and after every buffer, and compare them afterwards.
    pub canaries: bool,
    /// Which placement of the buffers in memory to use: other numbers, other addresses (aligned as an allocator aligns).
    pub placement: u32,
}

/// What came back from one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// The outputs in memory order.
    pub outputs: Vec<Stored>,
    /// Names of the parameters whose buffers changed.
    pub inputs_changed: Vec<String>,
    /// Names of the buffers beside which canaries changed.
    pub canaries_changed: Vec<String>,
    /// Names of the kernels that left counters of their split-K workspace other than 0: the next launch would wait for the wrong count.
    pub split_workspaces_left: Vec<String>,
}

impl Ran {
    /// Refuses what is wrong in memory, whatever the outputs are: of the guards, those that are asked for.
    fn memory(&self, guards: Guards) -> Result<(), Reject> {
        for (on, faults, what) in [
            (
                guards.inputs,
                &self.inputs_changed,
                "it changes its inputs: ",
            ),
            (
                guards.canaries,
                &self.canaries_changed,
                "it writes outside its buffers: beside ",
            ),
            (
                guards.split_workspaces,
                &self.split_workspaces_left,
                "it leaves counters of its split-K workspace that are not 0: ",
            ),
        ] {
            if on && !faults.is_empty() {
                return Err(Reject::Wrong(format!("{what}{}", faults.join(", "))));
            }
        }
        Ok(())
    }

    /// Refuses what is wrong in memory, whatever the outputs are.
    pub fn check_memory(&self) -> Result<(), Reject> {
        self.memory(ALL_GUARDS)
    }
}

/// What runs the program's reference, its baseline, and the candidate. Tensors are in memory order, in declaration order.
pub trait Machine {
    /// The program in f64, op by op.
    fn reference(&mut self, inputs: &DrawnInputs) -> Result<Vec<Vec<f64>>, Reject>;
    /// The program as a careful kernel computes it (see [`crate::tolerance::baseline`]).
    fn baseline(&mut self, inputs: &DrawnInputs) -> Result<Vec<Vec<f64>>, Reject>;
    /// The same with other luck, of inputs that are given anew (see [`crate::tolerance::dithered`]), for programs of which operands are rounded; none where nobody can tell.
    fn dithered(&mut self, _inputs: &DrawnInputs) -> Result<Option<Vec<Vec<f64>>>, Reject> {
        Ok(None)
    }
    /// A name of the candidate that no other machine code has, such as its hash.
    fn subject(&self) -> String;
    /// The candidate.
    fn run(&mut self, inputs: &DrawnInputs, options: RunOptions) -> Result<Ran, Reject>;
    /// Which elements of an output these three give, where it is too large for all of them: ascending, whole rows.
    fn compared(&self, _output: usize) -> Option<Vec<Range<u64>>> {
        None
    }
}

/// How much to check.
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// How many times more than usual results may be off.
    pub room: f64,
    /// Where inputs start; take a fresh one each time.
    pub seed: u64,
    /// How many times each distribution is drawn.
    pub draws: u32,
    /// How many runs, at different addresses, must agree bit for bit.
    pub repeats: u32,
    guards: Guards,
}

/// The guards that are on: all of them, but in the tests that show what each is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Guards {
    distributions: bool,
    poison: bool,
    canaries: bool,
    inputs: bool,
    split_workspaces: bool,
    repeats: bool,
    dependence: bool,
}

const ALL_GUARDS: Guards = Guards {
    distributions: true,
    poison: true,
    canaries: true,
    inputs: true,
    split_workspaces: true,
    repeats: true,
    dependence: true,
};

impl KernelOptions {
    /// All guards, the default tolerance, inputs from a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            room: 1.0,
            seed,
            draws: 1,
            repeats: 3,
            guards: ALL_GUARDS,
        }
    }
}

/// What was checked of a compiled candidate. [`check_kernel`] alone makes one; what is read from another process or from a file was made
/// there, and is taken at its word.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelEvidence(KernelFindings);

impl Deref for KernelEvidence {
    type Target = KernelFindings;

    fn deref(&self) -> &KernelFindings {
        &self.0
    }
}

/// What [`KernelEvidence`] says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelFindings {
    /// What ran: see [`Machine::subject`].
    pub subject: String,
    /// The extents of each parameter, groups merged.
    pub shapes: Vec<Vec<u64>>,
    /// Errors by distribution and output.
    pub distributions: Vec<DistributionErrors>,
    /// How the errors of each output were judged where roundings average out.
    pub limits: Vec<Limits>,
    /// Whether the user loosened it.
    pub loosened: bool,
    /// How many times the candidate ran.
    pub runs: u32,
    /// How many runs at different addresses agreed bit for bit.
    pub repeats: u32,
    /// Parameters whose change was followed, by name.
    pub dependence: Vec<String>,
    /// Of each output, which part was compared: 1 where every element was.
    #[serde(default)]
    pub parts: Vec<f64>,
    /// The guards that were on.
    pub guards: Vec<String>,
    /// The seed of the inputs.
    pub seed: u64,
}

/// The errors on one distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributionErrors {
    /// Its name.
    pub name: String,
    /// Which draw of it this is, from 0 on.
    pub draw: u32,
    /// Whether the yardstick was what of two careful kernels is farther off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dithered: bool,
    /// One an output.
    pub outputs: Vec<Errors>,
}

/// Checks a candidate on a machine.
pub fn check_kernel(
    machine: &mut dyn Machine,
    program: &Program,
    options: &KernelOptions,
) -> Result<KernelEvidence, Reject> {
    let mut check = Check {
        machine,
        draws: Draws { program, options },
        program,
        options,
        runs: 0,
    };
    let mut evidence = KernelFindings {
        subject: check.machine.subject(),
        shapes: program
            .parameters()
            .map(|(_, _, _, dims)| program.shape(dims))
            .collect(),
        limits: Limits::of(program, Roundings::Spread)
            .into_iter()
            .map(|limits| limits.widened(options.room))
            .collect(),
        loosened: options.room > 1.0,
        seed: options.seed,
        guards: [
            "poison",
            "canaries",
            "inputs",
            "split_workspaces",
            "repeats",
            "dependence",
        ]
        .map(String::from)
        .to_vec(),
        ..KernelFindings::default()
    };
    for (distribution, draw, salt) in check.draws.compared() {
        let (outputs, dithered) = check.distribution(distribution, salt)?;
        evidence.distributions.push(DistributionErrors {
            name: distribution.name.into(),
            draw,
            dithered,
            outputs,
        });
    }
    compared(&evidence.distributions)?;
    if options.guards.repeats {
        evidence.repeats = check.repeats()?;
    }
    if options.guards.dependence {
        evidence.dependence = check.dependence()?;
    }
    evidence.runs = check.runs;
    let part = |(n, output): (usize, &Output)| {
        let all: u64 = check.program.shape(&output.dims).iter().product();
        check.elements(n) as f64 / all as f64
    };
    evidence.parts = program.outputs.iter().enumerate().map(part).collect();
    Ok(KernelEvidence(evidence))
}

/// The inputs that [`check_kernel`] runs every candidate of a program on, and whether results on them are compared with the reference and the baseline: a
/// machine that keeps what is made of them is sooner done with each.
pub fn draws(program: &Program, options: &KernelOptions) -> Vec<(DrawnInputs, bool)> {
    let draws = Draws { program, options };
    let compared = draws.compared().into_iter();
    let compared =
        compared.map(move |(distribution, _, salt)| (draws.of(distribution, salt), true));
    let (inputs, changed) = draws.followed(FINITE);
    let rest = [draws.repeated(), inputs].into_iter().chain(changed);
    compared.chain(rest.map(|inputs| (inputs, false))).collect()
}

/// Refuses what nothing is known of: an output of which no draw had a value to compare.
fn compared(distributions: &[DistributionErrors]) -> Result<(), Reject> {
    let outputs = distributions.first().map_or(0, |d| d.outputs.len());
    let known = |n: &usize| distributions.iter().any(|d| d.outputs[*n].compared > 0);
    match (0..outputs).find(|n| !known(n)) {
        None => Ok(()),
        Some(n) => Err(Reject::Undecided(format!(
            "output {n} has no value to compare on any input that was drawn"
        ))),
    }
}

/// The seed of a draw that [`check_kernel`] does not make from this seed: what was looked at before meets fresh inputs there.
pub fn screening_seed(seed: u64) -> u64 {
    salted(seed, 300)
}

/// The seed of one draw of several.
fn salted(seed: u64, salt: u64) -> u64 {
    seed.wrapping_mul(0x0100_0000_01b3) ^ salt
}

/// Refuses a time that no machine of the target can reach: a measurement below the roofline floor is a mistake.
pub fn check_time(measured_us: f64, floor_us: f64) -> Result<(), Reject> {
    // Written so that NaN is refused.
    if measured_us >= floor_us && measured_us > 0.0 {
        Ok(())
    } else {
        Err(Reject::Wrong(format!(
            "{measured_us:.2} us measured, at least {floor_us:.2} us needed by the roofline"
        )))
    }
}

/// Parameters' elements from which on only the distributions that are always drawn are: each takes the reference seconds. The
/// evidence names those that were.
const LARGE: u64 = 1 << 26;

/// The distribution whose results overflow least: where everything is infinite, nothing can be seen to move.
const FINITE: usize = 1;

/// One whose inputs weigh more beside constants.
const WEIGHTY: usize = 0;

/// Where a compared element is in its output, of which these parts are compared; all of it where none are said.
fn place(parts: Option<&[Range<u64>]>, mut at: u64) -> u64 {
    for part in parts.unwrap_or_default() {
        let length = part.end - part.start;
        if at < length {
            return part.start + at;
        }
        at -= length;
    }
    at
}

/// What is drawn for a check.
#[derive(Clone, Copy)]
struct Draws<'a> {
    program: &'a Program,
    options: &'a KernelOptions,
}

impl Draws<'_> {
    /// The distributions on which results are compared, each with the number of the draw and its salt.
    fn compared(self) -> Vec<(&'static Distribution, u32, u64)> {
        let shapes = self.program.parameters();
        let shapes = shapes.map(|(_, _, _, dims)| self.program.shape(dims));
        let elements: u64 = shapes.map(|s| s.iter().product::<u64>()).sum();
        let guard = self.options.guards.distributions;
        let all = distributions(self.program);
        let wanted = all.filter(|(n, d)| *n == 0 || guard && (elements <= LARGE || d.always));
        let draws = 0..self.options.draws.max(1);
        // Other checks' salts are below the second draws'.
        let salts = wanted.flat_map(|(n, distribution)| {
            let draws = draws.clone();
            draws.map(move |draw| (distribution, draw, n as u64 + 1000 * u64::from(draw)))
        });
        salts.collect()
    }

    /// What is run at several addresses.
    fn repeated(self) -> DrawnInputs {
        self.of(&DISTRIBUTIONS[0], 100)
    }

    /// Inputs of a distribution, and the same with each parameter changed.
    fn followed(self, place: usize) -> (DrawnInputs, Vec<DrawnInputs>) {
        let inputs = self.of(&DISTRIBUTIONS[place], 200);
        let all = 0..self.program.parameters().count();
        let changed = all.map(|n| inputs.but(n, salted(self.options.seed, 201)));
        let changed = changed.collect();
        (inputs, changed)
    }

    fn of(self, distribution: &'static Distribution, salt: u64) -> DrawnInputs {
        let seed = salted(self.options.seed, salt);
        DrawnInputs::new(self.program, distribution, seed)
    }
}

struct Check<'a> {
    machine: &'a mut dyn Machine,
    draws: Draws<'a>,
    program: &'a Program,
    options: &'a KernelOptions,
    runs: u32,
}

impl Check<'_> {
    /// One run with the guards that concern single runs.
    fn run(&mut self, inputs: &DrawnInputs, placement: u32) -> Result<Vec<Stored>, Reject> {
        let guards = self.options.guards;
        self.runs += 1;
        let ran = self.machine.run(
            inputs,
            RunOptions {
                poison: guards.poison,
                canaries: guards.canaries,
                placement,
            },
        )?;
        ran.memory(guards)?;
        if ran.outputs.len() != self.program.outputs.len() {
            return Err(Reject::Wrong(format!(
                "{} outputs where the program has {}",
                ran.outputs.len(),
                self.program.outputs.len()
            )));
        }
        for (n, output) in ran.outputs.iter().enumerate() {
            let (found, wanted) = (output.elements(), self.elements(n));
            if found != wanted {
                let what = format!("{found} elements of output {n} came back, of {wanted}");
                return Err(Reject::Fault(what));
            }
        }
        Ok(ran.outputs)
    }

    /// How many elements of an output are compared.
    fn elements(&self, output: usize) -> u64 {
        let whole = || self.program.shape(&self.program.outputs[output].dims);
        match self.machine.compared(output) {
            Some(parts) => parts.iter().map(|r| r.end - r.start).sum(),
            None => whole().iter().product(),
        }
    }

    /// Compares every element of one run with the reference.
    fn judge(
        &mut self,
        inputs: &DrawnInputs,
        [reference, baseline]: [&[Vec<f64>]; 2],
        got: &[Stored],
        roundings: Roundings,
    ) -> Result<Vec<Errors>, Reject> {
        let outputs = &self.program.outputs;
        if reference.len() != outputs.len() || baseline.len() != outputs.len() {
            return Err(Reject::Fault(
                "the machine lost an output of the reference".into(),
            ));
        }
        let limits = Limits::of(self.program, roundings);
        let mut all = Vec::with_capacity(outputs.len());
        for (n, output) in outputs.iter().enumerate() {
            let shape = self.program.shape(&output.dims);
            let parts = self.machine.compared(n);
            let elements = self.elements(n);
            if reference[n].len() as u64 != elements {
                return Err(Reject::Fault(format!(
                    "the reference has {} of {elements} elements",
                    reference[n].len()
                )));
            }
            let row = shape.last().copied().unwrap_or(1).max(1) as usize;
            let limits = limits[n].widened(self.options.room);
            // Of the compared rows, which one of the output each is.
            let of_rows = |numbers: &[usize]| -> Result<Vec<Option<Vec<f64>>>, Reject> {
                if numbers.is_empty() {
                    return Ok(Vec::new());
                }
                // Drawn once, before there are several who need them.
                let inputs: &[Vec<f64>] = inputs;
                let of_row = |number: &usize| {
                    let at = place(parts.as_deref(), (number * row) as u64);
                    deviations(self.program, inputs, n, at / row as u64)
                        .map_err(|e| Reject::Fault(e.to_string()))
                };
                numbers.par_iter().map(of_row).collect()
            };
            let (got, reference) = (&got[n].values(), &reference[n]);
            let mut baseline = std::borrow::Cow::Borrowed(&baseline[n]);
            let mut judged = judge(got, reference, &baseline, row, limits)
                .map_err(|r| within(r, &format!("output {n}")))?;
            if judged.is_off() && reference.len() <= FEW * row {
                let all: Vec<usize> = (0..reference.len() / row).collect();
                let rows = of_rows(&all)?.into_iter().collect::<Option<Vec<_>>>();
                if let Some(rows) = rows {
                    let own = expected(reference, &rows.concat(), output.dtype);
                    judged = judge(got, reference, &own, row, limits)?;
                    baseline = std::borrow::Cow::Owned(own);
                }
            }
            // Of a long row several parts may be in doubt.
            let rows: BTreeSet<usize> = judged.doubts().map(|doubt| doubt.start / row).collect();
            let rows: Vec<usize> = rows.into_iter().collect();
            let found = of_rows(&rows)?;
            let rows: BTreeMap<usize, Option<Vec<f64>>> = rows.into_iter().zip(found).collect();
            let settle = |doubt: Doubt| {
                let first = doubt.start % row;
                let all = rows.get(&(doubt.start / row)).and_then(Option::as_ref);
                all.map(|all| all[first..first + doubt.length].to_vec())
            };
            let errors = judged.settle(got, reference, &baseline, settle);
            all.push(errors.map_err(|r| within(r, &format!("output {n}")))?);
        }
        Ok(all)
    }

    fn distribution(
        &mut self,
        distribution: &'static Distribution,
        number: u64,
    ) -> Result<(Vec<Errors>, bool), Reject> {
        let inputs = self.draws.of(distribution, number);
        // Before the candidate runs: what it is compared with is out of its reach. What it is judged by once more comes later, of inputs that are given anew.
        let reference = self.machine.reference(&inputs)?;
        let baseline = self.machine.baseline(&inputs)?;
        let got = self.run(&inputs, 0)?;
        let both = [&reference[..], &baseline];
        let own = self.judge(&inputs, both, &got, distribution.roundings);
        let other = match own {
            Err(Reject::Wrong(_)) => self.luckless(&inputs, &reference, &baseline),
            Ok(_) | Err(_) => None,
        };
        let dithered = other.is_some();
        let verdict = match other {
            Some(other) => self.judge(&inputs, [&reference, &other], &got, distribution.roundings),
            None => own,
        };
        let errors = verdict.map_err(|r| within(r, distribution.name))?;
        Ok((errors, dithered))
    }

    /// What of the baseline and of the dithered one is farther off, where the two may differ.
    fn luckless(
        &mut self,
        inputs: &DrawnInputs,
        reference: &[Vec<f64>],
        baseline: &[Vec<f64>],
    ) -> Option<Vec<Vec<f64>>> {
        if !rounds_operands(self.program) {
            return None;
        }
        // Where it cannot be had the candidate stays refused.
        let dithered = self.machine.dithered(inputs).ok().flatten()?;
        let all = reference.iter().zip(baseline).zip(&dithered);
        let all = all.map(|((r, b), d)| farther(r, b, d));
        Some(all.collect())
    }

    fn repeats(&mut self) -> Result<u32, Reject> {
        let inputs = self.draws.repeated();
        let first = self.run(&inputs, 0)?;
        for placement in 1..self.options.repeats.max(2) {
            let again = self.run(&inputs, placement)?;
            for (output, (x, y)) in first.iter().zip(&again).enumerate() {
                if let Some((at, [x, y])) = x.difference(y) {
                    return Err(Reject::Wrong(format!(
                        "element {at} of output {output} changes from run to run: {x:e}, then {y:e}"
                    )));
                }
            }
        }
        Ok(self.options.repeats.max(2))
    }

    /// Changes one parameter at a time. Where the reference follows by more than rounding hides, so must the candidate; the reference is asked only
    /// where the candidate does not move. Where all that is seen of the reference may be hidden, inputs of more weight are tried.
    fn dependence(&mut self) -> Result<Vec<String>, Reject> {
        let names: Vec<String> = self
            .program
            .parameters()
            .map(|(_, name, _, _)| name.to_owned())
            .collect();
        let mut followed = vec![false; names.len()];
        let mut open: Vec<usize> = (0..names.len()).collect();
        for place in [FINITE, WEIGHTY] {
            if open.is_empty() {
                break;
            }
            let (inputs, all) = self.draws.followed(place);
            let got = self.run(&inputs, 0)?;
            let mut hidden = Vec::new();
            for n in open {
                let changed = &all[n];
                followed[n] = moved(&got, &self.run(changed, 0)?);
                if followed[n] {
                    continue;
                }
                let after = self.machine.reference(changed)?;
                let before = self.machine.reference(&inputs)?;
                match follows(&self.program.outputs, &before, &after) {
                    Follows::Not => {}
                    Follows::Hidden => hidden.push(n),
                    Follows::Seen => {
                        let name = &names[n];
                        return Err(Reject::Wrong(format!("its result ignores `{name}`")));
                    }
                }
            }
            open = hidden;
        }
        let followed = names.into_iter().zip(followed);
        Ok(followed.filter(|f| f.1).map(|f| f.0).collect())
    }
}

/// How a reference follows a change of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Follows {
    Not,
    /// By less than a few units in the last place of what is stored: an element of a mean over a thousand million.
    Hidden,
    Seen,
}

/// Units in the last place that rounding may hide.
const HIDDEN: f64 = 4.0;

/// Whether what two runs gave differs anywhere.
fn moved(x: &[Stored], y: &[Stored]) -> bool {
    x.iter().zip(y).any(|(x, y)| x.difference(y).is_some())
}

/// How far two lists of outputs of a reference differ at most: in what is stored of them where fractions are lost.
fn follows(outputs: &[Output], x: &[Vec<f64>], y: &[Vec<f64>]) -> Follows {
    let of = |(output, (x, y)): (&Output, (&Vec<f64>, &Vec<f64>))| {
        let dtype = output.dtype;
        let unit = HIDDEN * 2f64.powi(dtype.lost_digits() as i32 - 23);
        let one = |(x, y): (&f64, &f64)| match dtype.is_float() {
            false if bits(dtype.round(*x)) != bits(dtype.round(*y)) => Follows::Seen,
            true if bits(*x) == bits(*y) => Follows::Not,
            // NaN and infinities differ by no number.
            true if (x - y).abs() <= unit * x.abs().max(y.abs()) => Follows::Hidden,
            true => Follows::Seen,
            false => Follows::Not,
        };
        x.iter().zip(y).map(one).max()
    };
    let all = outputs.iter().zip(x.iter().zip(y)).filter_map(of);
    all.max().unwrap_or(Follows::Not)
}

/// The bits, one pattern for every NaN.
fn bits(x: f64) -> u64 {
    if x.is_nan() {
        f64::NAN.to_bits()
    } else {
        x.to_bits()
    }
}

fn within(reject: Reject, place: &str) -> Reject {
    match reject {
        Reject::Wrong(what) => Reject::Wrong(format!("{place}: {what}")),
        Reject::SharedMemory { .. }
        | Reject::Registers { .. }
        | Reject::Spills { .. }
        | Reject::Assignment(_)
        | Reject::Schedule(_)
        | Reject::OtherTiling(_)
        | Reject::Target(_)
        | Reject::Grid(_)
        | Reject::Bound { .. }
        | Reject::Compiler(_)
        | Reject::InKernel { .. }
        | Reject::Fragile(_)
        | Reject::Undecided(_)
        | Reject::Fault(_) => reject,
    }
}

#[cfg(test)]
#[path = "liars.rs"]
mod liars;

#[cfg(test)]
#[path = "honest.rs"]
mod honest;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_elements_know_their_places() {
        assert_eq!(place(None, 7), 7);
        let parts = [10..14, 40..44, 90..92];
        let all = (0..10).map(|at| place(Some(&parts), at));
        assert_eq!(
            all.collect::<Vec<u64>>(),
            [10, 11, 12, 13, 40, 41, 42, 43, 90, 91]
        );
    }
}

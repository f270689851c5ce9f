//! Careful kernels of many kinds, which must pass, and the same ones spoiled, which must not.
// Oracle: what the kernels do is written here, in f32, in ways that GPUs' kernels do it; what spoils one is known to be wrong.

use super::*;
use crate::evaluate::{evaluate, evaluate_with};
use crate::functions;
use crate::scalar::{Scalar, padded};
use crate::tolerance::{Careful, Ratios, Single, baseline, dithered, single};
use ir::{Dtype, Function, MapOp, Node, NodeId, Op};
use std::collections::BTreeMap;

type Tensors = Vec<Vec<f64>>;
type Kernel<'a> = &'a dyn Fn(&Program, &[Vec<f64>]) -> Tensors;

/// Runs a kernel; what it is compared with is kept for the next one.
struct Bench<'a> {
    program: &'a Program,
    kernel: Kernel<'a>,
    known: BTreeMap<Vec<u64>, (Tensors, Tensors)>,
    /// Whether it is known what another careful kernel is off by.
    dithers: bool,
}

impl Bench<'_> {
    fn known(&mut self, inputs: &[Vec<f64>]) -> &(Tensors, Tensors) {
        let key = inputs
            .iter()
            .flat_map(|t| t.iter().step_by(1 + t.len() / 99))
            .map(|x| x.to_bits())
            .collect();
        let program = self.program;
        self.known.entry(key).or_insert_with(|| {
            (
                evaluate(program, inputs).expect("it runs"),
                baseline(program, inputs).expect("it runs"),
            )
        })
    }
}

impl Machine for Bench<'_> {
    fn subject(&self) -> String {
        String::new()
    }

    fn reference(&mut self, inputs: &DrawnInputs) -> Result<Tensors, Reject> {
        Ok(self.known(inputs).0.clone())
    }
    fn baseline(&mut self, inputs: &DrawnInputs) -> Result<Tensors, Reject> {
        Ok(self.known(inputs).1.clone())
    }
    fn dithered(&mut self, inputs: &DrawnInputs) -> Result<Option<Tensors>, Reject> {
        let other = || dithered(self.program, inputs).expect("it runs");
        Ok(self.dithers.then(other))
    }
    fn run(&mut self, inputs: &DrawnInputs, _: RunOptions) -> Result<Ran, Reject> {
        let found = (self.kernel)(self.program, inputs);
        let kinds = self.program.outputs.iter().map(|o| o.dtype);
        Ok(Ran {
            outputs: kinds.zip(&found).map(|(d, x)| Stored::of(d, x)).collect(),
            ..Ran::default()
        })
    }
}

/// The check, with the kernels of one program one after the other.
fn check_all(
    program: &Program,
    kernels: &[(&str, Kernel<'_>)],
    seeds: std::ops::Range<u64>,
    each: impl FnMut(&str, u64, Result<KernelEvidence, Reject>),
) {
    check_with(true, program, kernels, seeds, each);
}

fn check_with(
    dithers: bool,
    program: &Program,
    kernels: &[(&str, Kernel<'_>)],
    seeds: std::ops::Range<u64>,
    mut each: impl FnMut(&str, u64, Result<KernelEvidence, Reject>),
) {
    for seed in seeds {
        let mut known = BTreeMap::new();
        for (name, kernel) in kernels {
            let mut bench = Bench {
                program,
                kernel: *kernel,
                known,
                dithers,
            };
            let guards = Guards {
                repeats: false,
                dependence: false,
                ..ALL_GUARDS
            };
            let options = KernelOptions {
                guards,
                ..KernelOptions::new(seed)
            };
            each(name, seed, check_kernel(&mut bench, program, &options));
            known = bench.known;
        }
    }
}

fn parse(text: &str) -> Program {
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// How a kernel adds and takes exponentials.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Eight partial sums, as lanes or split-k parts have them, added as a tree.
    Lanes,
    /// Sums of 16 that are added to a total, as matrix instructions do.
    Steps,
    /// The same, where each step cuts off what does not fit, as tensor cores do.
    Cut,
    /// Subnormal numbers are flushed, exponentials are powers of two.
    Flushed,
}

/// An f32 that may be a sum in the making.
#[derive(Clone, Copy, Debug)]
struct Partial<const WAY: u8> {
    parts: [f32; 8],
    /// How many terms are in.
    terms: u32,
}

const LANES: u8 = Way::Lanes as u8;
const STEPS: u8 = Way::Steps as u8;
const CUT: u8 = Way::Cut as u8;
const FLUSHED: u8 = Way::Flushed as u8;

impl<const WAY: u8> Partial<WAY> {
    fn new(x: f32) -> Self {
        let flushed = WAY == FLUSHED && x.is_subnormal();
        let mut parts = [0.0; 8];
        parts[0] = if flushed { 0.0 * x } else { x };
        Self { parts, terms: 1 }
    }

    fn value(self) -> f32 {
        if self.terms <= 1 {
            return self.parts[0];
        }
        match WAY {
            LANES => {
                let [a, b, c, d, e, f, g, h] = self.parts;
                ((a + e) + (c + g)) + ((b + f) + (d + h))
            }
            STEPS | CUT => cut::<WAY>(self.parts[0], self.parts[1]),
            _ => self.parts[0],
        }
    }
}

/// A sum, rounded to nearest or towards zero.
fn cut<const WAY: u8>(x: f32, y: f32) -> f32 {
    let sum = x + y;
    let exact = f64::from(x) + f64::from(y);
    let over = f64::from(sum).abs() > exact.abs() && sum.is_finite() && sum != 0.0;
    if WAY == CUT && over {
        f32::from_bits(sum.to_bits() - 1)
    } else {
        sum
    }
}

impl<const WAY: u8> Scalar for Partial<WAY> {
    fn real(&self) -> f64 {
        f64::from(self.value())
    }
    fn constant(value: f64) -> Self {
        Self::new(value as f32)
    }
    fn integer(value: i64) -> Self {
        Self::new(value as f32)
    }
    fn add(self, y: Self) -> Self {
        let (mut sum, y) = (self, y.value());
        let at = self.terms as usize;
        match WAY {
            LANES => sum.parts[at % 8] += y,
            // parts: the total, and the step that is being added up
            STEPS | CUT => {
                if at.is_multiple_of(16) {
                    sum.parts[0] = cut::<WAY>(sum.parts[0], sum.parts[1]);
                    sum.parts[1] = 0.0;
                }
                sum.parts[1] += y;
            }
            _ => {
                return Self {
                    terms: 1,
                    ..Self::new(self.parts[0] + y)
                };
            }
        }
        sum.terms += 1;
        sum
    }
    fn mul(self, y: Self) -> Self {
        Self::new(self.value() * y.value())
    }
    fn div(self, y: Self) -> Self {
        match WAY {
            // A product with the reciprocal, as fast division does.
            FLUSHED => Self::new(self.value() * (1.0 / y.value())),
            _ => Self::new(self.value() / y.value()),
        }
    }
    fn max(self, y: Self) -> Self {
        Self::new(self.value().max(y.value()))
    }
    fn function(function: Function, x: &[Self]) -> Self {
        match (WAY, function) {
            (FLUSHED, Function::Exp) => Self::new(exp2(x[0].value(), 0.0)),
            _ => Self::new((functions::row(function).single)(
                &padded(x, |x| x.value())[..x.len()],
            )),
        }
    }
    fn select(self, x: Self, y: Self) -> Self {
        if self.value() >= 0.0 { x } else { y }
    }
    fn holds(&self) -> Option<bool> {
        Some(self.value() >= 0.0)
    }
    fn round(self, dtype: Dtype) -> Self {
        Self::new(dtype.round(f64::from(self.value())) as f32)
    }
}

/// `e^(x − m)` as a power of two, with `m log2 e` given: one fused multiplication.
fn exp2(x: f32, scaled: f32) -> f32 {
    let power = f64::from(x) * std::f64::consts::LOG2_E - f64::from(scaled);
    (power as f32).exp2()
}

fn way<const WAY: u8>(program: &Program, inputs: &[Vec<f64>]) -> Tensors {
    let careful = Careful::new(program);
    let of = |x: &f64| Partial::<WAY>::new(*x as f32);
    let inputs: Vec<Vec<Partial<WAY>>> =
        inputs.iter().map(|t| t.iter().map(of).collect()).collect();
    let found = evaluate_with(&careful.program, &inputs, |n, b| careful.rounded(n, b));
    rounded(
        program,
        &found
            .expect("it runs")
            .iter()
            .map(|o| o.iter().map(|x| f64::from(x.value())).collect())
            .collect::<Tensors>(),
    )
}

/// Outputs in their dtypes.
fn rounded(program: &Program, outputs: &[Vec<f64>]) -> Tensors {
    let all = outputs.iter().zip(&program.outputs);
    all.map(|(data, o)| data.iter().map(|x| o.dtype.round(*x)).collect())
        .collect()
}

/// The careful kernel of another program.
fn form(text: &str) -> impl Fn(&Program, &[Vec<f64>]) -> Tensors + use<> {
    let form = parse(text);
    move |_, inputs| baseline(&form, inputs).expect("it runs")
}

const WAYS: &[(&str, Kernel<'static>)] = &[
    ("lanes", &way::<LANES>),
    ("steps", &way::<STEPS>),
    ("cut", &way::<CUT>),
    ("flushed", &way::<FLUSHED>),
];

/// Attention in one pass, as FlashAttention has it.
#[derive(Clone, Copy)]
struct Flash {
    /// Keys at a time.
    tile: usize,
    /// Parts of the keys that are combined in the end.
    parts: usize,
    /// Whether the sum is one of rounded exponentials.
    rounded_sum: bool,
    /// Whether a tile that is masked whole gives NaN.
    careless: bool,
}

/// `softmax(q·k·scale + mask; j) · v`, with `q [h, i, d]`, `k [h, j, d]`, `v [h, j, e]` and `mask [i, j]`, or without.
fn flash(program: &Program, inputs: &[Vec<f64>], how: Flash) -> Tensors {
    let dtype = program.outputs[0].dtype;
    let extent = |name: &str| {
        let axis = program.axes.iter().find(|a| a.name == name);
        axis.expect(name).extent as usize
    };
    let [h, i, j, d, e] = ["h", "i", "j", "d", "e"].map(extent);
    let of = |n: usize, at: usize| inputs[n][at] as f32;
    let causal = program.name.contains("causal");
    let scale = std::f32::consts::LOG2_E * 0.25;
    let mut out = Vec::new();
    for row in 0..h * i {
        let (head, query) = (row / i, row % i);
        let score = |key: usize| -> f32 {
            let dot: f32 = (0..d)
                .map(|c| of(0, row * d + c) * of(1, (head * j + key) * d + c))
                .sum();
            let mask = if inputs.len() > 3 {
                of(3, query * j + key)
            } else {
                0.0
            };
            let hidden = causal && key + i > query + j;
            if hidden {
                f32::NEG_INFINITY
            } else {
                dot * scale + mask * std::f32::consts::LOG2_E
            }
        };
        let parts: Vec<(f32, f32, Vec<f32>)> = (0..how.parts)
            .map(|part| {
                let keys: Vec<usize> = (0..j).filter(|key| key * how.parts / j == part).collect();
                let (mut most, mut sum, mut all) = (f32::NEG_INFINITY, 0.0f32, vec![0.0f32; e]);
                for tile in keys.chunks(how.tile) {
                    let scores: Vec<f32> = tile.iter().map(|key| score(*key)).collect();
                    let new = scores.iter().fold(most, |m, s| m.max(*s));
                    let safe = if new == f32::NEG_INFINITY && !how.careless {
                        0.0
                    } else {
                        new
                    };
                    let factor = (most - safe).exp2();
                    sum *= factor;
                    all.iter_mut().for_each(|x| *x *= factor);
                    most = new;
                    for (key, s) in tile.iter().zip(scores) {
                        let p = (s - safe).exp2();
                        let narrow = dtype.round(f64::from(p)) as f32;
                        sum += if how.rounded_sum { narrow } else { p };
                        for (c, x) in all.iter_mut().enumerate() {
                            *x += narrow * of(2, (head * j + key) * e + c);
                        }
                    }
                }
                (most, sum, all)
            })
            .collect();
        let most = parts.iter().fold(f32::NEG_INFINITY, |m, p| m.max(p.0));
        let factors: Vec<f32> = parts
            .iter()
            .map(|p| {
                if p.0 == f32::NEG_INFINITY {
                    0.0
                } else {
                    (p.0 - most).exp2()
                }
            })
            .collect();
        let total: f32 = parts.iter().zip(&factors).map(|(p, f)| p.1 * f).sum();
        for c in 0..e {
            let x: f32 = parts.iter().zip(&factors).map(|(p, f)| p.2[c] * f).sum();
            out.push(f64::from(x / total));
        }
    }
    rounded(program, &[out])
}

/// Attention whose scores are so far apart that of each row one decides, and rounding decides which, now and then.
fn sharp() -> Program {
    parse(
        "program sharp\naxis s = 300, j = 300, a = 64, d = 8, e = 24\nx = parameter bf16 [s, a]\nwq = parameter bf16 [a, d]\n\
         wk = parameter bf16 [a, d]\nv = parameter bf16 [j, e]\nq = dot(x, wq; a)\nk = view(dot(x, wk; a); s -> j)\n\
         return bf16 [s, e] dot(softmax(dot(q, k; d); j), v; j)\n",
    )
}

/// All of it in f32.
fn unrounded(program: &Program, inputs: &[Vec<f64>]) -> Tensors {
    single(program, inputs, |_, block| block).expect("it runs")
}

#[test]
fn what_rounding_decides_is_decided_by_luck() {
    let program = sharp();
    let spoiled = |every: usize| {
        move |program: &Program, inputs: &[Vec<f64>]| {
            let mut found = way::<STEPS>(program, inputs);
            for row in found[0].chunks_mut(24).step_by(every) {
                row.iter_mut().for_each(|x| *x = -*x);
            }
            found
        }
    };
    let text = program.to_string();
    // As much is rounded as in the baseline, and elsewhere.
    let elsewhere = form(&text.replace("dot(q, k; d)", "dot(q * 0.7, k; d) / 0.7"));
    let honest: &[(&str, Kernel<'_>)] = &[("f32", &unrounded), ("scaled", &elsewhere)];
    let mut missed = 0;
    check_all(&program, honest, 0..4, |name, seed, found| {
        let found = found.unwrap_or_else(|reject| panic!("{name}, seed {seed}: {reject}"));
        let outputs = found.distributions.iter().map(|d| &d.outputs[0]);
        missed += outputs.map(|errors| errors.missed).sum::<u64>();
    });
    assert!(missed > 0, "nothing was decided by luck");
    let steeper = form(&text.replace("dot(q, k; d)", "dot(q, k; d) * 1.02"));
    let (many, some) = (spoiled(8), spoiled(30));
    let spoiled: &[(&str, Kernel<'_>)] = &[
        ("many rows", &many),
        ("some rows", &some),
        ("steeper", &steeper),
    ];
    check_all(&program, spoiled, 0..2, |name, seed, found| {
        let refused = matches!(found, Err(Reject::Wrong(_)));
        assert!(refused, "{name}, seed {seed}: {found:?}");
    });
}

#[test]
fn a_baseline_may_be_lucky() {
    let program = sharp();
    let text = program.to_string();
    let elsewhere = |factor: f64| {
        let scores = format!("dot(q * {factor}, k; d) / {factor}");
        form(&text.replace("dot(q, k; d)", &scores))
    };
    let (less, more) = (elsewhere(0.55), elsewhere(1.3));
    let honest: &[(&str, Kernel<'_>)] = &[("less", &less), ("more", &more)];
    // In the last of these seeds the baseline loses no row.
    let refused = |dithers: bool| {
        let mut refused = Vec::new();
        check_with(dithers, &program, honest, 2..5, |name, seed, found| {
            if let Err(reject) = found {
                refused.push(format!("{name}, seed {seed}: {reject}"));
            }
        });
        refused
    };
    assert!(refused(false).len() > 1, "{:?}", refused(false));
    assert!(refused(true).is_empty(), "{:?}", refused(true));
}

const FLASH: Flash = Flash {
    tile: 16,
    parts: 1,
    rounded_sum: false,
    careless: false,
};

fn attention(dtype: &str, kind: &str, i: u64, j: u64) -> Program {
    let s = "dot(q, k; d) * 0.25";
    let (mask, s) = match kind {
        "causal" => ("", format!("causal({s}; i, j)")),
        "masked" => ("mask = parameter f32 [i, j]\n", format!("{s} + mask")),
        _ => ("", s.to_owned()),
    };
    parse(&format!(
        "program attention_{kind}\naxis h = 2, i = {i}, j = {j}, d = 16, e = 24\nq = parameter {dtype} [h, i, d]\n\
         k = parameter {dtype} [h, j, d]\nv = parameter {dtype} [h, j, e]\n{mask}return {dtype} [h, i, e] dot(softmax({s}; j), v; j)\n"
    ))
}

/// The examples at extents at which they take milliseconds; those that are alike then once.
fn examples() -> BTreeMap<String, Program> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the examples") {
        let path = entry.expect("an example").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let small: Vec<String> = text
            .lines()
            .filter(|line| !line.starts_with("program"))
            .map(|line| match line.strip_prefix("axis ") {
                Some(axes) => format!(
                    "axis {}",
                    axes.split(',')
                        .map(|a| reduced(&name, a))
                        .collect::<Vec<_>>()
                        .join(",")
                ),
                None => line.to_owned(),
            })
            .collect();
        let small = small.join("\n");
        all.entry(small).or_insert(name);
    }
    all.into_iter()
        .map(|(text, name)| (name.clone(), parse(&format!("program {name}\n{text}\n"))))
        .collect()
}

fn reduced(program: &str, axis: &str) -> String {
    let (name, extent) = axis.split_once('=').expect("an axis");
    let extent: u64 = extent.trim().parse().expect("an extent");
    let convolved = [
        "n = 2", "ci = 3", "h = 35", "w = 35", "co = 5", "oh = 9", "ow = 9", "ph = 4", "pw = 4",
    ];
    let own = convolved
        .iter()
        .find(|c| c.split(" =").next() == Some(name.trim()));
    if let Some(own) = own.filter(|_| program.starts_with("conv")) {
        return (*own).to_owned();
    }
    let extent = match extent {
        0..=2 => extent,
        _ if ["b", "h", "g", "x"].contains(&name.trim()) => 2,
        3..=16 => 3,
        17..=128 => 16,
        129..=2048 => 37,
        2049..=50_000 => 75,
        _ => 401,
    };
    format!("{name} = {extent}")
}

fn worst(evidence: &KernelEvidence) -> Vec<(String, Ratios)> {
    let all = evidence.distributions.iter();
    all.flat_map(|d| d.outputs.iter().map(|o| (d.name.clone(), o.ratios)))
        .collect()
}

/// Collects how near honest kernels come.
#[derive(Default)]
struct Nearest {
    by: BTreeMap<&'static str, (f64, String)>,
    refused: Vec<String>,
    draws: usize,
}

impl Nearest {
    fn note(&mut self, name: &str, seed: u64, found: Result<KernelEvidence, Reject>) {
        let evidence = match found {
            Ok(evidence) => evidence,
            Err(reject) => {
                self.refused.push(format!("{name}, seed {seed}: {reject}"));
                return;
            }
        };
        for (distribution, ratios) in worst(&evidence) {
            self.draws += 1;
            for (which, ratio) in [
                ("row", ratios.row),
                ("rms", ratios.rms),
                ("bias", ratios.bias),
                ("bin", ratios.bin),
            ] {
                let most = self.by.entry(which).or_default();
                if ratio > most.0 {
                    *most = (ratio, format!("{name}, {distribution}, seed {seed}"));
                }
            }
        }
    }

    fn all_pass(&self) {
        assert!(self.refused.is_empty(), "{:#?}", self.refused);
        assert!(self.draws > 100, "{}", self.draws);
        assert!(
            self.by.values().all(|(ratio, _)| *ratio <= NEAR),
            "{:#?}",
            self.by
        );
    }
}

/// How near to what is allowed an honest kernel may come. On 9 seeds none was refused in 17,000 outputs; the nearest was at 0.83.
const NEAR: f64 = 0.9;
const SEEDS: std::ops::Range<u64> = 0..1;

#[test]
fn careful_kernels_of_every_example_pass() {
    let mut nearest = Nearest::default();
    let examples = examples();
    assert!(examples.len() > 20, "{}", examples.len());
    for (name, program) in &examples {
        // Tensor cores cut off nothing of sums in f32.
        let narrow = program
            .parameters()
            .any(|(_, _, dtype, _)| dtype != Dtype::F32);
        let ways = WAYS.iter().filter(|(name, _)| narrow || *name != "cut");
        let ways: Vec<(&str, Kernel<'_>)> = ways.copied().collect();
        check_all(program, &ways, SEEDS, |kernel, seed, found| {
            nearest.note(&format!("{name}, {kernel}"), seed, found);
        });
    }
    nearest.all_pass();
}

#[test]
fn attention_in_one_pass_passes() {
    let mut nearest = Nearest::default();
    for dtype in ["f16", "bf16", "f32"] {
        for (kind, i, j) in [
            ("plain", 37, 100),
            ("causal", 40, 70),
            ("masked", 33, 96),
            ("one", 1, 300),
        ] {
            let program = attention(dtype, kind, i, j);
            let ways: [(&str, Kernel<'_>); 4] = [
                ("plain", &|p, x| flash(p, x, FLASH)),
                ("wide", &|p, x| {
                    flash(
                        p,
                        x,
                        Flash {
                            tile: 64,
                            rounded_sum: true,
                            ..FLASH
                        },
                    )
                }),
                ("split", &|p, x| flash(p, x, Flash { parts: 3, ..FLASH })),
                ("whole", &|p, x| {
                    flash(
                        p,
                        x,
                        Flash {
                            tile: 1000,
                            ..FLASH
                        },
                    )
                }),
            ];
            check_all(&program, &ways, SEEDS, |kernel, seed, found| {
                nearest.note(&format!("{dtype} {kind}, {kernel}"), seed, found);
            });
        }
    }
    nearest.all_pass();
}

/// Other forms of a program, which kernels may have.
#[rustfmt::skip]
const FORMS: &[(&str, &str, &str)] = &[
    ("rms_norm, then a product",
     "axis t = 19, m = 75, n = 48\nx = parameter DT [t, m]\ng = parameter DT [m]\nw = parameter DT [m, n]\nreturn DT [t, n] ",
     "dot(rms_norm(x; m, 1e-5) * g, w; m) | dot(x * g, w; m) * rsqrt(mean(x * x; m) + 1e-5)"),
    ("attention",
     "axis h = 2, i = 33, j = 75, d = 16, e = 24\nq = parameter DT [h, i, d]\nk = parameter DT [h, j, d]\nv = parameter DT [h, j, e]\nreturn DT [h, i, e] ",
     "dot(softmax(dot(q, k; d) * 0.25; j), v; j) | dot(softmax(dot(q * 0.25, k; d); j), v; j)"),
    ("attention, divided in the end",
     "axis h = 2, i = 33, j = 75, d = 16, e = 24\nq = parameter DT [h, i, d]\nk = parameter DT [h, j, d]\nv = parameter DT [h, j, e]\n\
      s = dot(q, k; d) * 0.25\np = exp(s - max(s; j))\nreturn DT [h, i, e] ",
     "dot(p / sum(p; j), v; j) | dot(p, v; j) / sum(p; j)"),
    ("linear attention",
     "axis h = 2, i = 33, j = 75, d = 16, e = 24\nq = parameter DT [h, i, d]\nk = parameter DT [h, j, d]\nv = parameter DT [h, j, e]\nf = exp(q)\ng = exp(k)\nreturn DT [h, i, e] ",
     "dot(dot(f, g; d), v; j) / sum(dot(f, g; d); j) | dot(f, dot(g, v; j); d) / dot(f, sum(g; j); d)"),
    ("layer_norm",
     "axis t = 19, m = 300\nx = parameter DT [t, m]\ng = parameter DT [m]\nc = x - mean(x; m)\nreturn DT [t, m] ",
     "layer_norm(x; m, 1e-5) * g | c / sqrt(mean(c * c; m) + 1e-5) * g"),
];

#[test]
fn equal_forms_pass() {
    let mut nearest = Nearest::default();
    for dtype in ["f16", "bf16", "f32"] {
        for (name, head, forms) in FORMS {
            let text = |form: &str| format!("program p\n{}{form}\n", head.replace("DT", dtype));
            let (own, other) = forms.split_once(" | ").expect("two forms");
            let other = form(&text(other));
            check_all(
                &parse(&text(own)),
                &[(name, &other)],
                SEEDS,
                |kernel, seed, found| {
                    nearest.note(&format!("{kernel} in {dtype}"), seed, found);
                },
            );
        }
    }
    nearest.all_pass();
}

/// A careful kernel whose values of one node are changed.
fn spoiled(
    program: &Program,
    inputs: &[Vec<f64>],
    which: impl Fn(&Program, &Node) -> bool,
    change: impl Fn(&mut [Single]),
) -> Tensors {
    let careful = Careful::new(program);
    let nodes = &careful.program.nodes;
    let at = nodes
        .iter()
        .position(|n| which(&careful.program, n))
        .expect("such a value");
    let found = single(&careful.program, inputs, |node, block| {
        let mut block = careful.rounded(node, block);
        if node == NodeId(at as u32) {
            change(&mut block.data);
        }
        block
    });
    found.expect("it runs")
}

/// Every result too large by a factor.
fn scaled(factor: f64) -> impl Fn(&Program, &[Vec<f64>]) -> Tensors {
    move |program, inputs| {
        let mut outputs = baseline(program, inputs).expect("it runs");
        outputs.iter_mut().flatten().for_each(|x| *x *= factor);
        rounded(program, &outputs)
    }
}

/// The scores of attention in steps of 1/16.
fn coarse_scores(program: &Program, inputs: &[Vec<f64>]) -> Tensors {
    let is = |p: &Program, n: &Node| {
        matches!(n.op, Op::Map(MapOp::Mul))
            && n.args
                .iter()
                .any(|a| matches!(p.node(*a).op, Op::Dot { .. }))
    };
    spoiled(program, inputs, is, |data| {
        data.iter_mut()
            .for_each(|x| x.0 = (x.0 * 16.0).round() / 16.0);
    })
}

/// What is below 1 % of the maximum is none: `e^(x − max)` below 0.01.
fn without_the_small(program: &Program, inputs: &[Vec<f64>]) -> Tensors {
    let is = |_: &Program, n: &Node| matches!(n.op, Op::Map(MapOp::Function(Function::Exp)));
    spoiled(program, inputs, is, |data| {
        data.iter_mut()
            .filter(|x| x.0 < 0.01)
            .for_each(|x| x.0 = 0.0);
    })
}

/// The same, with the sum of all.
fn without_the_small_in_the_end(program: &Program, inputs: &[Vec<f64>]) -> Tensors {
    let is = |_: &Program, n: &Node| matches!(n.op, Op::Map(MapOp::Div));
    let j = program
        .axes
        .iter()
        .find(|a| a.name == "j")
        .expect("j")
        .extent as usize;
    spoiled(program, inputs, is, |data| {
        for row in data.chunks_mut(j) {
            let most = row.iter().fold(0.0f32, |m, x| m.max(x.0));
            row.iter_mut()
                .filter(|x| x.0 < 0.01 * most)
                .for_each(|x| x.0 = 0.0);
        }
    })
}

/// A sum that is rounded to bf16 after every term.
fn narrow_sums(program: &Program, inputs: &[Vec<f64>]) -> Tensors {
    summed(program, inputs, 1)
}

/// A sum that is rounded to bf16 after 16 terms.
fn narrow_steps(program: &Program, inputs: &[Vec<f64>]) -> Tensors {
    summed(program, inputs, 16)
}

fn summed(program: &Program, inputs: &[Vec<f64>], step: usize) -> Tensors {
    let extent = |n: usize| program.axes[n].extent as usize;
    let [i, k, j] = [extent(0), extent(1), extent(2)];
    let dtype = program.outputs[0].dtype;
    let mut out = vec![0.0; i * j];
    for (at, sum) in out.iter_mut().enumerate() {
        for c in 0..k {
            *sum += inputs[0][at / j * k + c] * inputs[1][c * j + at % j];
            if (c + 1).is_multiple_of(step) {
                *sum = Dtype::Bf16.round(*sum);
            }
        }
        *sum = dtype.round(*sum);
    }
    vec![out]
}

/// Half too large where a sum of squares has no f16.
fn large_rows(program: &Program, inputs: &[Vec<f64>]) -> Tensors {
    let mut outputs = baseline(program, inputs).expect("it runs");
    let m = program.axes[1].extent as usize;
    for (row, x) in outputs[0].chunks_mut(m).zip(inputs[0].chunks(m)) {
        if x.iter().map(|x| x * x).sum::<f64>() > 65504.0 {
            row.iter_mut().for_each(|x| *x *= 1.5);
        }
    }
    rounded(program, &outputs)
}

#[test]
fn what_is_wrong_by_a_little_is_refused() {
    let product = |dtype: &str, k: u64| {
        parse(&format!(
            "program p\naxis i = 48, k = {k}, j = 40\nx = parameter {dtype} [i, k]\ny = parameter {dtype} [k, j]\nreturn {dtype} [i, j] dot(x, y; k)\n"
        ))
    };
    let softmax = |dtype: &str| {
        parse(&format!(
            "program p\naxis i = 48, j = 600\nx = parameter {dtype} [i, j]\nreturn {dtype} [i, j] softmax(x; j)\n"
        ))
    };
    let norm = |dtype: &str| {
        parse(&format!(
            "program p\naxis i = 48, m = 600\nx = parameter {dtype} [i, m]\ng = parameter {dtype} [m]\nreturn {dtype} [i, m] rms_norm(x; m, 1e-5) * g\n"
        ))
    };
    let (percent, parts) = (scaled(1.01), scaled(1.002));
    let masked: Kernel<'_> = &|p, x| {
        flash(
            p,
            x,
            Flash {
                careless: true,
                ..FLASH
            },
        )
    };
    let mut cases: Vec<(String, Program, Kernel<'_>)> = Vec::new();
    for (dtype, factor) in [("bf16", &percent as Kernel<'_>), ("f16", &parts)] {
        for (name, program) in [
            ("a product", product(dtype, 64)),
            ("softmax", softmax(dtype)),
            ("rms_norm", norm(dtype)),
            ("attention", attention(dtype, "plain", 48, 75)),
        ] {
            cases.push((format!("{name} in {dtype} times a factor"), program, factor));
        }
    }
    for dtype in ["f16", "bf16", "f32"] {
        for (kind, i, j) in [
            ("plain", 48, 75),
            ("plain", 16, 500),
            ("causal", 70, 70),
            ("masked", 48, 75),
        ] {
            let own = attention(dtype, kind, i, j);
            cases.push((
                format!("{kind} attention in {dtype}, scores in steps"),
                own.clone(),
                &coarse_scores,
            ));
            cases.push((
                format!("{kind} attention in {dtype}, without the small"),
                own.clone(),
                &without_the_small,
            ));
            cases.push((
                format!("{kind} attention in {dtype}, without the small in the end"),
                own,
                &without_the_small_in_the_end,
            ));
        }
        cases.push((
            format!("softmax in {dtype}, without the small"),
            softmax(dtype),
            &without_the_small,
        ));
        cases.push((
            format!("softmax in {dtype}, without the small in the end"),
            softmax(dtype),
            &without_the_small_in_the_end,
        ));
        cases.push((
            format!("{dtype} with a mask that gives NaN"),
            attention(dtype, "masked", 48, 75),
            masked,
        ));
        cases.push((
            format!("rms_norm in {dtype}, large rows"),
            norm(dtype),
            &large_rows,
        ));
    }
    cases.push((
        "256 products in bf16, summed in bf16 in steps".into(),
        product("bf16", 256),
        &narrow_steps,
    ));
    for k in [32, 64, 128, 256] {
        for dtype in ["f16", "bf16"] {
            cases.push((
                format!("{k} products in {dtype}, summed in bf16"),
                product(dtype, k),
                &narrow_sums,
            ));
        }
    }
    let mut passed = Vec::new();
    for (name, program, kernel) in &cases {
        check_all(
            program,
            &[("", *kernel)],
            SEEDS,
            |_, seed, found| match found {
                Err(Reject::Wrong(_)) => {}
                other => passed.push(format!("{name}, seed {seed}: {other:?}")),
            },
        );
    }
    assert!(passed.is_empty(), "{passed:#?}");
}

/// What an input adds to a large constant is lost in any f32. Another input counts, and who ignores that is refused.
#[test]
fn what_rounding_hides_need_not_be_followed() {
    let program = parse(
        "program p\naxis n = 5, t = 8, m = 64\nx = parameter f32 [t, m]\ny = parameter f32 [t, m]\nb = parameter f32 [n]\n\
         return f32 [n] mean(max(1000000000 - x * y, 0); t, m) * b\n",
    );
    let check = |kernel: Kernel<'_>| {
        let mut bench = Bench {
            program: &program,
            kernel,
            known: BTreeMap::new(),
            dithers: true,
        };
        let guards = Guards {
            repeats: false,
            distributions: false,
            ..ALL_GUARDS
        };
        let options = KernelOptions {
            guards,
            ..KernelOptions::new(3)
        };
        check_kernel(&mut bench, &program, &options)
    };
    let honest = check(&way::<STEPS>).expect("it is right");
    assert_eq!(honest.dependence, ["b"]);
    let first = std::cell::RefCell::new(None);
    let stale = |program: &Program, inputs: &[Vec<f64>]| {
        let mut inputs = inputs.to_vec();
        // Of each kind of input the first that it saw, as if it were kept.
        let scale = inputs[0].iter().fold(0.0, |s: f64, x| s.max(x.abs()));
        let mut first = first.borrow_mut();
        let (known, kept) = first.get_or_insert_with(|| (scale, inputs[2].clone()));
        match *known == scale {
            true => inputs[2].clone_from(kept),
            false => (*known, *kept) = (scale, inputs[2].clone()),
        }
        way::<STEPS>(program, &inputs)
    };
    let refused = check(&stale).expect_err("it ignores `b`");
    assert!(refused.to_string().contains("ignores `b`"), "{refused}");
}

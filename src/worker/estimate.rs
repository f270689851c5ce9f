//! How long verification takes, before anything is run.
//!
//! Two sums: what loading a program does, with what candidates are verified by where that is kept, and what `verify::check_kernel` does with a candidate. Each term is a count of elements or bytes
//! over a rate. The rates are one table, [`HOST`]; those of the GPU are `codegen::reference::Rates`. Both are predictions:
//! `tilewright gpu-reference` prints them beside what it measures.

use super::parts::{COMPARED, Parts};
use super::prepared;
use super::reference::slab_count;
use codegen::{ReferenceMode, reference};
use ir::{Program, Reject, Target};
use verify::inputs::drawn;
use verify::kernel::{KernelOptions, draws};

/// How long loading a program and verifying one candidate take, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Compiling the reference, and one run of it.
    pub load_s: f64,
    /// What all verifications share, where it is kept; else it is part of each.
    pub shared_s: f64,
    /// One verification: every distribution, repeats and dependence.
    pub verify_s: f64,
    /// How often a candidate runs in one.
    pub runs: f64,
}

/// What the host does an element and a core, in nanoseconds, and a byte between host and GPU, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRates {
    /// Drawing an element of an input and rounding it.
    pub draw_ns: f64,
    /// Converting an element to the bytes of its dtype.
    pub encode_ns: f64,
    /// The other way.
    pub decode_ns: f64,
    /// Copying a byte, or comparing it with another.
    pub copy_ns: f64,
    /// Comparing an element with the reference's and the baseline's.
    pub compare_ns: f64,
    /// To the GPU.
    pub upload: f64,
    /// From the GPU, through memory that it writes to directly.
    pub download: f64,
    /// Seconds of compiling a chain, and of each of its kernels.
    pub compile_s: [f64; 2],
    /// Seconds of opening a session and of a run beside everything else: memory is found, and guards are written and read.
    pub session_s: f64,
}

/// Of a server's core and PCIe 5. The nanoseconds are processor time measured on a core of a Xeon (`cargo test --lib measure_host -- --ignored`), page
/// faults included, and what compiling takes was measured beside an H200; the rest is expected.
pub const HOST: HostRates = HostRates {
    draw_ns: 28.0,
    encode_ns: 5.0,
    decode_ns: 9.0,
    copy_ns: 0.3,
    compare_ns: 15.0,
    upload: 8e9,
    download: 2e10,
    compile_s: [0.4, 0.03],
    session_s: 0.02,
};

/// Part of the time of the careful reference that a candidate takes.
const CANDIDATE: f64 = 0.25;

/// How long it takes to load a program and to verify one candidate on a GPU whose host has so many cores.
///
/// # Errors
/// When there is no reference, or no GPU of the kind holds one.
pub fn verification_seconds(
    program: &Program,
    target: &Target,
    cores: usize,
) -> Result<Estimate, Reject> {
    let mut gpu = [0.0; 2];
    let mut compile = 0.0f64;
    for (seconds, mode) in gpu
        .iter_mut()
        .zip([ReferenceMode::Exact, ReferenceMode::Careful])
    {
        let chain = reference(program, mode)?;
        let count = slab_count(&chain, program, target.memory_bytes)?;
        *seconds = chain.seconds(target, count);
        let own = HOST.compile_s[0] + HOST.compile_s[1] * chain.launches.len() as f64;
        // Both at a time.
        compile = compile.max(own);
    }
    Ok(Work::of(program).estimate(gpu, compile, target, cores))
}

/// What there is to draw, to carry and to compare.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    parameters: usize,
    distributions: usize,
    /// Elements that are drawn of all parameters, and their bytes; and the bytes of all of them.
    drawn: f64,
    drawn_bytes: f64,
    input_bytes: f64,
    /// Elements of the outputs that are compared, and their bytes as the reference, the baseline and the candidate give them.
    compared: f64,
    compared_bytes: [f64; 3],
    /// Inputs and what they are compared with are kept from one candidate to the next.
    keeps: bool,
}

impl Work {
    fn of(program: &Program) -> Self {
        let mut work = Self {
            keeps: prepared::kept(program).is_some(),
            distributions: (draws(program, &KernelOptions::new(0)).iter())
                .filter(|(_, is_compared)| *is_compared)
                .count(),
            ..Self::default()
        };
        for (_, _, dtype, dims) in program.parameters() {
            let shape = program.shape(dims);
            let all: u64 = shape.iter().product();
            let own = drawn(&shape).iter().product::<u64>() as f64;
            work.parameters += 1;
            work.drawn += own;
            work.drawn_bytes += own * dtype.bytes() as f64;
            work.input_bytes += all as f64 * dtype.bytes() as f64;
        }
        for output in &program.outputs {
            let shape = program.shape(&output.dims);
            let row = shape.last().copied().unwrap_or(1);
            let n = Parts::of(shape.iter().product(), row, COMPARED).elements() as f64;
            let own = output.dtype.bytes() as f64;
            let exact = if own < 4.0 { 4.0 } else { 8.0 };
            work.compared += n;
            for (bytes, each) in work.compared_bytes.iter_mut().zip([exact, own, own]) {
                *bytes += n * each;
            }
        }
        work
    }

    fn estimate(&self, gpu: [f64; 2], compile: f64, target: &Target, cores: usize) -> Estimate {
        let host = |ns: f64, elements: f64| ns * 1e-9 * elements / cores.max(1) as f64;
        let draw = host(HOST.draw_ns, self.drawn);
        // Once for all that reads them.
        let upload = host(HOST.encode_ns, self.drawn)
            + self.drawn_bytes / HOST.upload
            + self.input_bytes / (target.memory_tb_s * 1e12);
        let given = draw + upload;
        let decode = host(HOST.decode_ns, self.compared);
        let chain =
            |n: usize| HOST.session_s + gpu[n] + decode + self.compared_bytes[n] / HOST.download;
        // A candidate has copies of the inputs, which are read back after it ran.
        let run = HOST.session_s
            + 2.0 * self.input_bytes / (target.memory_tb_s * 1e12)
            + gpu[1] * CANDIDATE
            + (self.input_bytes + self.compared_bytes[2]) / HOST.download
            + host(HOST.copy_ns, self.compared_bytes[2]);
        let compare = decode + host(HOST.compare_ns, self.compared);
        let same = host(HOST.copy_ns, self.compared_bytes[2]);
        let repeats = f64::from(KernelOptions::new(0).repeats);
        let distributions = self.distributions as f64;
        // Each parameter is drawn once more, and once again afterwards where nothing is kept.
        let again = repeats + 1.0 + self.parameters as f64;
        let shared = distributions * (given + chain(0) + chain(1)) + 3.0 * given;
        let own = distributions * (run + compare) + again * (run + same);
        let (before, within) = match self.keeps {
            true => (shared, 0.0),
            false => (0.0, shared + given),
        };
        Estimate {
            load_s: compile + given + chain(0) + chain(1),
            shared_s: before,
            runs: distributions + again,
            verify_s: own + within,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        search::targets::target("h200").expect("a known target")
    }

    #[test]
    fn verification_is_the_sum_of_its_parts() {
        let target = target();
        let work = Work {
            parameters: 2,
            distributions: 7,
            drawn: 8e9,
            drawn_bytes: 16e9,
            input_bytes: 43e9,
            compared: 4e9,
            compared_bytes: [16e9, 8e9, 8e9],
            keeps: false,
        };
        let found = work.estimate([0.5, 0.4], 3.0, &target, 4);
        let given = 28.0 * 8.0 / 4.0 + 5.0 * 8.0 / 4.0 + 2.0 + 43.0 / 4300.0;
        let decode = 9.0 * 4.0 / 4.0;
        let [exact, careful] = [0.5 + 0.8, 0.4 + 0.4].map(|s| s + decode + 0.02);
        let copy = 0.3 * 8.0 / 4.0;
        let run = 0.02 + 2.0 * 43.0 / 4300.0 + 0.1 + 43.0 / 20.0 + 0.4 + copy;
        let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-9 * y, "{x} {y}");
        near(found.load_s, 3.0 + given + exact + careful);
        let each = given + exact + careful + run + decode + 15.0;
        near(
            found.verify_s,
            7.0 * each + 6.0 * (run + copy) + 4.0 * given,
        );
        // What is kept is made once.
        let kept = Work {
            keeps: true,
            ..work
        }
        .estimate([0.5, 0.4], 3.0, &target, 4);
        near(kept.shared_s, 7.0 * (given + exact + careful) + 3.0 * given);
        near(kept.load_s, found.load_s);
        near(
            kept.verify_s,
            7.0 * (run + decode + 15.0) + 6.0 * (run + copy),
        );
        // More cores help the host alone.
        let more = work.estimate([0.5, 0.4], 3.0, &target, 8);
        assert!(more.verify_s < found.verify_s && more.verify_s > found.verify_s / 2.0);
    }

    #[test]
    fn large_programs_take_longer_and_impossible_ones_say_so() {
        let of = |text: &str| {
            let program: Program = text.parse().expect("a program");
            verification_seconds(&program, &target(), 16)
        };
        let product = |n: u64| {
            of(&format!("program m\naxis i = {n}, j = {n}, k = {n}\nx = parameter bf16 [i, k]\ny = parameter bf16 [k, j]\nreturn bf16 [i, j] dot(x, y; k)\n"))
                .expect("it fits")
        };
        let (small, large) = (product(1024), product(16384));
        assert!(small.verify_s < 5.0 && small.load_s < 3.0, "{small:?}");
        assert!(large.verify_s > 4.0 * small.verify_s, "{large:?}");
        // 8.8 TFLOP in f64, for each of a few distributions, takes some seconds at least.
        assert!((5.0..200.0).contains(&large.verify_s), "{large:?}");
        let impossible = of(
            "program b\naxis i = 400000, j = 400000\nx = parameter f32 [i]\ny = parameter f32 [j]\nreturn f32 [] max(exp(x * y) + sum(exp(x * y) ; i); i, j)\n",
        );
        let why = impossible
            .expect_err("an intermediate of 1.3 TB without slabs")
            .to_string();
        assert!(why.contains("GB"), "{why}");
    }

    /// Prints what `HOST` holds: nanoseconds an element of one thread.
    #[test]
    #[ignore = "a measurement"]
    fn measure_host() {
        use ir::Dtype;
        use std::time::Instant;
        use verify::inputs::DISTRIBUTIONS;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .expect("a thread");
        let text =
            "program p\naxis i = 4096, j = 4096\nx = parameter bf16 [i, j]\nreturn bf16 [i, j] x\n";
        let program: Program = text.parse().expect("a program");
        let ns = |seconds: f64| seconds * 1e9 / f64::from(1 << 24);
        pool.install(|| {
            for round in 0..3 {
                for d in DISTRIBUTIONS {
                    let start = Instant::now();
                    let x = verify::inputs::draw_inputs(&program, d, round).swap_remove(0);
                    let drawn = ns(start.elapsed().as_secs_f64());
                    let start = Instant::now();
                    let bytes = Dtype::Bf16.encode(&x);
                    let encoded = ns(start.elapsed().as_secs_f64());
                    let start = Instant::now();
                    let y = Dtype::Bf16.decode(&bytes);
                    let decoded = ns(start.elapsed().as_secs_f64());
                    let start = Instant::now();
                    let tolerance = verify::Tolerance::default();
                    let _ = verify::tolerance::compare(&y, &x, &x, 4096, Dtype::Bf16, tolerance);
                    let compared = ns(start.elapsed().as_secs_f64());
                    #[allow(clippy::print_stderr, reason = "it is there to print")]
                    {
                        eprintln!("{}: draw {drawn:.1}, encode {encoded:.1}, decode {decoded:.1}, compare {compared:.1}", d.name);
                    }
                }
            }
        });
    }
}

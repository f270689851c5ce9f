//! How long the reference takes on this machine, beside what was predicted: for who looks after the rates.

use super::estimate::verification_seconds;
use super::parts::{COMPARED, Parts};
use super::reference::{Chain, Spent};
use super::stocks::stocks;
use super::{Setting, fault};
use codegen::ReferenceMode;
use device::gpu::Gpu;
use device::nvrtc::SearchPath;
use ir::{Program, Reject, Target};
use std::time::Instant;
use verify::DrawnInputs;
use verify::inputs::DISTRIBUTIONS;
use verify::tolerance::{Tolerance, compare};

/// A step, the seconds that it took, and those that were predicted where they were.
pub type Step = (String, Option<f64>, Option<f64>);

/// Draws inputs once, runs the reference in two modes and compares them with each other: each step with its seconds, then what loading and
/// verifying are predicted to take.
///
/// # Errors
/// Without GPU or NVRTC, and where the reference cannot be computed.
pub fn measure(program: &Program, target: &Target, nvrtc: SearchPath) -> Result<Vec<Step>, Reject> {
    let gpu = Gpu::open(0).map_err(|e| fault(&e))?;
    let (major, minor) = gpu.info().capability;
    let setting = Setting {
        program: program.clone(),
        seed: 1,
        arch: format!("sm_{major}{minor}"),
        nvrtc,
    };
    let mut steps: Vec<Step> = Vec::new();
    let start = Instant::now();
    let inputs = DrawnInputs::new(program, &DISTRIBUTIONS[0], setting.seed);
    let _drawn: &[Vec<f64>] = &inputs;
    steps.push(("draw".into(), Some(start.elapsed().as_secs_f64()), None));
    let start = Instant::now();
    let inputs = stocks(&gpu, program, &inputs)?;
    let inputs: Vec<_> = inputs.iter().collect();
    steps.push(("upload".into(), Some(start.elapsed().as_secs_f64()), None));
    let shapes = program.outputs.iter().map(|o| program.shape(&o.dims));
    let parts = shapes.clone().map(|shape| {
        let row = shape.last().copied().unwrap_or(1);
        Parts::of(shape.iter().product(), row, COMPARED)
    });
    let parts: Vec<Parts> = parts.collect();
    let mut outputs = Vec::new();
    for mode in [ReferenceMode::Exact, ReferenceMode::Careful] {
        let start = Instant::now();
        let chain = Chain::new(gpu.info().memory_bytes, &setting, mode)?;
        let compiled = start.elapsed().as_secs_f64();
        steps.push((format!("{mode:?}: compile"), Some(compiled), None));
        let (
            values,
            Spent {
                open,
                run,
                download,
            },
        ) = chain.timed(&gpu, program, &inputs, &parts)?;
        steps.push((format!("{mode:?}: open"), Some(open), None));
        steps.push((
            format!("{mode:?}: run"),
            Some(run),
            Some(chain.seconds(target)),
        ));
        steps.push((format!("{mode:?}: download"), Some(download), None));
        outputs.push(values);
    }
    let start = Instant::now();
    for (n, (output, shape)) in program.outputs.iter().zip(shapes).enumerate() {
        let row = shape.last().copied().unwrap_or(1) as usize;
        let (exact, careful) = (&outputs[0][n], &outputs[1][n]);
        compare(
            careful,
            exact,
            careful,
            row,
            output.dtype,
            Tolerance::default(),
        )?;
    }
    steps.push(("compare".into(), Some(start.elapsed().as_secs_f64()), None));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let whole = verification_seconds(program, target, cores)?;
    let load: f64 = steps.iter().filter_map(|s| s.1).sum();
    steps.push((
        "all of this; loading".into(),
        Some(load),
        Some(whole.load_s),
    ));
    steps.push(("a verification".into(), None, Some(whole.verify_s)));
    Ok(steps)
}

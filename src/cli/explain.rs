//! `explain`: from the program of an artifact to its kernels, step by step.

use crate::cli::report::target;
use crate::cli::show::Contents;
use crate::cli::{Explain, Failure, place};
use ir::Target;
use serde_json::{Value, json};
use std::fmt::{Display, Write};
use tilewright::artifact::{State, file};
use tilewright::codegen;
use tilewright::device::gpu::GpuInfo;
use tilewright::device::timing::{Measurement, Timing};
use tilewright::explain::measured::{MeasureError, Subject, measure};
use tilewright::explain::{
    Correction, Measured, Ratio, Transformation, Without, corrections, transformations,
};
use tilewright::pipeline::Derivation;
use tilewright::replay::Tools;
use tilewright::report::words;
use tilewright::search::cost::cost;
use tilewright::search::forms::axes::changes;
use tilewright::search::tiling::enumerate::describe;
use tilewright::worker::{gpu_info, is_of};

/// What no line of the schedule is measured by.
const UNMEASURED: &str =
    "what transformations are worth is the clock's word, which simulates: nothing was measured";
/// What was measured.
const MEASURED: &str = "measured are all kernels together, without one line of one of them and what rests on it: how many times as long as the artifact as it is they take, timed in turns; in brackets by the tenth percentile of the one over the ninetieth of the other, and the other way round";

/// What was measured on which GPU.
struct OnGpu {
    gpu: GpuInfo,
    seed: u64,
    own: Measurement,
}

impl OnGpu {
    fn json(&self) -> Value {
        json!({"own": self.own, "timed_on": self.gpu.timed_on(), "seed": self.seed})
    }

    fn text(&self) -> String {
        let spread = |t: &Timing| {
            let [median, p10, p90] = [t.median_us, t.p10_us, t.p90_us].map(words::us);
            format!("{median} ({p10} to {p90})")
        };
        let [warm, cold] = [&self.own.warm, &self.own.cold].map(spread);
        let on = self.gpu.timed_on();
        format!("all kernels, measured: warm {warm}, cold {cold}; on {on}\n")
    }
}

/// The chain, as text or as one JSON object.
pub(crate) fn explain(arguments: &Explain) -> Result<String, Failure> {
    let contents = Contents::checked(&arguments.artifact)?;
    let target = target(&contents)?;
    let manifest = contents.artifact.manifest();
    let corrections = corrections(&contents.tile);
    let worth = transformations(&contents.tile, &contents.schedule, &target);
    let mut worth = worth.map_err(Failure::refused)?;
    let on_gpu = measured(arguments, &contents, &target, &mut worth)?;
    let clock = cost(&contents.tile, Some(&contents.schedule), &target);
    let clock: Vec<f64> = clock.kernels.iter().map(|k| k.us).collect();
    let axes: Vec<String> = (changes(&contents.program, &contents.expression).iter())
        .map(ToString::to_string)
        .collect();
    let remarks = remarks(&contents, &target, &on_gpu)?;
    if arguments.json {
        let value = json!({
            "program": contents.program.to_string(),
            "target": manifest.target.name,
            "state": manifest.state,
            "axes": axes,
            "derivation": manifest.derivation,
            "expression": contents.expression.to_string(),
            "corrections": corrections,
            "plan": describe(&contents.tile),
            "clock_us": clock,
            "measured": on_gpu.as_ref().ok().map(OnGpu::json),
            "transformations": worth,
            "remarks": remarks,
        });
        return Ok(value.to_string() + "\n");
    }
    let mut text = String::new();
    let mut section = |title: &str, body: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "=== {title} ===\n{}\n", body.trim_end());
    };
    section("program", &contents.program.to_string());
    section("rewrites", &rewrites(&axes, &manifest.derivation));
    section("expression", &contents.expression.to_string());
    section("corrections", &corrected(&corrections));
    section("tiling", &describe(&contents.tile));
    let measured = on_gpu.as_ref().map_or_else(|_| String::new(), OnGpu::text);
    section(
        "schedule, and what becomes of a kernel without one line of it",
        &(measured + &schedule(&worth, &clock)),
    );
    for remark in remarks {
        let _ = writeln!(text, "note: {remark}");
    }
    Ok(text)
}

/// Times the kernels without each line, where there is a GPU of the target's kind; else why nothing is measured.
fn measured(
    arguments: &Explain,
    contents: &Contents,
    target: &Target,
    worth: &mut [Transformation],
) -> Result<Result<OnGpu, String>, Failure> {
    if arguments.no_gpu {
        return Ok(Err("--no-gpu".to_owned()));
    }
    let worker = place::worker()?;
    let unusable =
        |e: &dyn Display| Failure::unusable_gpu(format!("{e}; --no-gpu goes on without it"));
    let gpu = match gpu_info(&worker) {
        Ok(gpu) if is_of(&gpu, target) => gpu,
        Ok(gpu) => {
            let (found, wanted) = (&gpu.name, &target.name);
            return Ok(Err(format!(
                "this machine has {found}, the artifact is for {wanted}"
            )));
        }
        Err(e) if e.is_absence() => return Ok(Err(e.to_string())),
        Err(e) => return Err(unusable(&e)),
    };
    let seed = arguments.seed.unwrap_or_else(place::seed);
    let subject = Subject {
        program: &contents.program,
        tile: &contents.tile,
        schedule: &contents.schedule,
        target,
        seed,
    };
    let tools = Tools {
        worker: &worker,
        nvrtc: &place::nvrtc(),
    };
    let own = measure(subject, worth, &tools, place::locks().as_deref());
    let own = own.map_err(|e| match e {
        MeasureError::Own(_) => Failure::unverified(e),
        MeasureError::Compiler(_) | MeasureError::Gpu(_) | MeasureError::Timing(_) => {
            unusable(&format!("{}: {e}", gpu.name))
        }
    })?;
    Ok(Ok(OnGpu { gpu, seed, own }))
}

/// What has to be known of what is said.
fn remarks(
    contents: &Contents,
    target: &Target,
    on_gpu: &Result<OnGpu, String>,
) -> Result<Vec<String>, Failure> {
    let mut remarks = Vec::new();
    match (on_gpu, contents.artifact.manifest().state) {
        (Ok(_), _) => {
            remarks.push(MEASURED.to_owned());
            let now = codegen::lower(&contents.tile, &contents.schedule, target);
            let now = now.map_err(Failure::refused)?.source;
            let then = contents.artifact.text(file::CUDA);
            if now != then.map_err(Failure::refused)? {
                remarks.push("this version lowers the schedule to another text than the artifact has: that is what was measured".to_owned());
            }
        }
        (Err(why), State::Simulated) => remarks.push(format!(
            "no kernel of this artifact ever ran; {UNMEASURED} ({why})"
        )),
        (Err(why), State::Verified) => remarks.push(format!("{UNMEASURED} ({why})")),
    }
    Ok(remarks)
}

fn corrected(corrections: &[Correction]) -> String {
    let mut said: String = (corrections.iter())
        .map(|c| {
            format!(
                "kernel {}, loop over {}: in each iteration {} {} {} `{}`, which follows {}\n",
                c.kernel,
                c.axis,
                names(&c.running),
                if c.running.len() == 1 { "is" } else { "are" },
                c.how,
                c.by,
                names(&c.follows)
            )
        })
        .collect();
    if said.is_empty() {
        said =
            "none: no loop carries a value that rests on another one which it carries".to_owned();
    }
    said
}

fn names(values: &[String]) -> String {
    let all: Vec<String> = values.iter().map(|v| format!("`{v}`")).collect();
    all.join(" and ")
}

fn rewrites(axes: &[String], derivation: &Derivation) -> String {
    let mut text: String = axes
        .iter()
        .map(|change| format!("axes: {change}\n"))
        .collect();
    text += &match derivation {
        Derivation::NotFound => "no derivation was found within the limits: that the expression equals the program rests on the numbers".to_owned(),
        Derivation::NotSought => "the search ended before a derivation was looked for: that the expression equals the program rests on the numbers".to_owned(),
        Derivation::Found(found) if found.steps.is_empty() => "none: the expression is the program's own".to_owned(),
        Derivation::Found(found) => {
            let steps = found.steps.iter().enumerate();
            let steps = steps.map(|(n, s)| format!("{:>3}. {}\n       {}\n     = {}\n", n + 1, s.rule, s.left, s.right));
            let counted = found.counted().into_iter();
            let counted: Vec<String> = counted.map(|(rule, n)| format!("{rule} {n}")).collect();
            format!("{} steps: {}\n{}", found.steps.len(), counted.join(", "), steps.collect::<String>())
        }
    };
    text
}

fn schedule(all: &[Transformation], clock: &[f64]) -> String {
    let width = all
        .iter()
        .map(|t| t.line.chars().count())
        .max()
        .unwrap_or_default();
    let mut text = String::new();
    for (kernel, us) in clock.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "kernel {kernel}: {} by the clock", words::us(*us));
        for one in all.iter().filter(|t| t.kernel == kernel) {
            let measured = one.measured.as_ref().map(on_gpu).unwrap_or_default();
            let said = behind(&one.followers) + &without(&one.without, *us) + &measured;
            let _ = writeln!(text, "  {:width$}  {said}", one.line);
        }
        if all.iter().all(|t| t.kernel != kernel) {
            text += "  nothing is said of it: all is as usual\n";
        }
    }
    text
}

fn behind(followers: &[String]) -> String {
    match followers {
        [] => String::new(),
        _ => format!("with {}, which rests on it: ", names(followers)),
    }
}

fn without(without: &Without, us: f64) -> String {
    match without {
        Without::Takes { more_us, parts, .. } => {
            let share = words::percent(more_us.abs() / us);
            let parts: Vec<String> = parts
                .iter()
                .map(|(part, us)| format!("{} {us:+.2} us", words::named(part)))
                .collect();
            let parts = match parts.is_empty() {
                true => String::new(),
                false => format!(": {}", parts.join(", ")),
            };
            match *more_us {
                more if more > 0.0 => {
                    format!("{} ({share}) slower without{parts}", words::us(more))
                }
                more if more < 0.0 => {
                    format!("{} ({share}) faster without{parts}", words::us(-more))
                }
                _ => format!("as fast without{parts}"),
            }
        }
        Without::Unclocked => "the clock has no time without".to_owned(),
        Without::Nothing => "changes nothing in this kernel".to_owned(),
        Without::Required(why) => format!("has to be there: {why}"),
        Without::Refused(why) => format!("no kernel without: {why}"),
    }
}

fn on_gpu(measured: &Measured) -> String {
    match measured {
        Measured::Takes(times) => {
            let said = |r: Ratio| format!("{:.3} ({:.3} to {:.3})", r.median, r.least, r.most);
            let (warm, cold) = (said(times.warm), said(times.cold));
            let same = match times.warm.may_be_one() && times.cold.may_be_one() {
                true => ", which is within the spread",
                false => "",
            };
            format!("; measured: warm {warm}, cold {cold} times as long{same}")
        }
        Measured::Refused(why) => format!("; not timed: {why}"),
    }
}

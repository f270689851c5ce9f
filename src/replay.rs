//! A replay: all that can be derived of an artifact is derived again and compared with what the artifact holds.
//!
//! What an artifact says is no premise of it, but for the program, the choices (expression, tile program, schedule, target) and the
//! settings of the checks. Its files come from the function that the emitter writes them with.

use crate::artifact::{Artifact, ArtifactError, Manifest, file};
use crate::emit::{Code, Package, Parts, Record, package};
use crate::machine::MachineEvidence;
use crate::pipeline::{Compilation, Derivation, Search, as_read, compile, derive};
use codegen::CudaProgram;
use device::nvrtc::SearchPath;
use ir::{Program, Reject, Schedule, Target, TileProgram};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use verify::KernelEvidence;

/// Difference of floating-point numbers, relative to them, that another machine's mathematical functions explain.
const OTHER_MACHINE: f64 = 1e-9;
/// Characters that are shown of a value.
const SHOWN: usize = 120;

/// An artifact, and what its texts say.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'a> {
    /// Its files.
    pub artifact: &'a Artifact,
    /// The program.
    pub program: &'a Program,
    /// The expression.
    pub expression: &'a Program,
    /// The tile program.
    pub tile: &'a TileProgram,
    /// How its kernels are mapped to the machine.
    pub schedule: &'a Schedule,
    /// The GPU that it is for.
    pub target: &'a Target,
}

/// What compiles.
#[derive(Clone, Copy, Debug)]
pub struct Tools<'a> {
    /// The program whose subcommand `compile-worker` is the worker.
    pub worker: &'a Path,
    /// Where NVRTC may be.
    pub nvrtc: &'a SearchPath,
}

/// What was done again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// With the recorded outcome, one claim a line.
    pub same: Vec<String>,
    /// Not done again, and why, one a line.
    pub not: Vec<String>,
}

/// Does again what needs no GPU: derives the expression, tests the rules, interprets the tile program on the recorded draws, lowers
/// it, compiles that, and makes all files of the artifact anew.
///
/// # Errors
/// The first outcome that isn't the recorded one.
pub fn replay(claims: &Claims<'_>, tools: &Tools<'_>) -> Result<Replayed, Reject> {
    let manifest = claims.artifact.manifest();
    let mut replayed = Replayed::default();
    if manifest.derivation == Derivation::NotSought {
        replayed.not.push(
            "rules: the search ended before a derivation of the expression was looked for"
                .to_owned(),
        );
    } else if derive(claims.program, claims.expression, &|| false) != manifest.derivation {
        return Err(wrong(
            "rules: the recorded derivation of the expression is not what the rules give",
        ));
    }
    let tiling = tiling(claims)?;
    let cuda = codegen::lower(claims.tile, claims.schedule, claims.target)?;
    if cuda.source != read(claims, file::CUDA)? {
        return Err(wrong(
            "text: the tile program and the schedule lower to another text",
        ));
    }
    let machine = crate::machine::evidence(claims.tile, claims.schedule, claims.target)?;
    let made = again(claims, &cuda, &machine)?;
    for (name, bytes) in &made.files {
        // The manifest is compared below: numbers of the model may differ as much as another machine's do.
        if *name != file::MANIFEST && claims.artifact.bytes(name).map_err(unread)? != bytes {
            return Err(wrong(format!(
                "files: {name} is not what is written of this candidate"
            )));
        }
    }
    let sealed = Manifest {
        // Over numbers that may differ; that it fits is for whoever reads the artifact.
        seal: manifest.seal.clone(),
        ..made.manifest
    };
    if let Some(difference) = difference("", &value(manifest), &value(&sealed)) {
        return Err(wrong(format!("{}: {difference}", file::MANIFEST)));
    }
    let claimed = sealed.claims.iter();
    let rules = claimed.filter(|line| line.starts_with("rules: "));
    replayed.same.extend(rules.cloned());
    replayed.same.push(tiling);
    replayed.same.push(machine.to_string());
    let names: Vec<&str> = made.files.iter().map(|(name, _)| *name).collect();
    replayed.same.extend([
        "text: the tile program and the schedule lower to this text, byte by byte".to_owned(),
        format!(
            "files: {} are what is written of this candidate",
            names.join(", ")
        ),
    ]);
    cubins(claims, &cuda.units, tools, &mut replayed)?;
    measured(claims, &mut replayed)?;
    Ok(replayed)
}

/// Compares what runs on a GPU found with what was recorded. Errors of accepted results are not compared: they may differ
/// with the GPU and the reference's compiler.
///
/// # Errors
/// The first outcome that isn't the recorded one.
pub fn same_kernel(recorded: &KernelEvidence, found: &KernelEvidence) -> Result<(), Reject> {
    match difference("", &without_fractions(recorded), &without_fractions(found)) {
        Some(difference) => Err(wrong(format!("kernel: evidence: {difference}"))),
        None => Ok(()),
    }
}

/// The artifact that its parts give. What the compiler said of registers is taken from the old one, until the text is compiled.
fn again(
    claims: &Claims<'_>,
    cuda: &CudaProgram,
    machine: &MachineEvidence,
) -> Result<Package, Reject> {
    let manifest = claims.artifact.manifest();
    let code = match &manifest.cubin {
        None => None,
        Some(entry) => Some(Code {
            cubins: claims.artifact.cubins().map_err(unread)?,
            compiler: &entry.compiler,
            registers: entry.registers.clone(),
        }),
    };
    let parts = Parts {
        program: claims.program,
        target: claims.target,
        expression: claims.expression,
        tile: claims.tile,
        schedule: claims.schedule,
        cuda,
        code,
        derivation: &manifest.derivation,
        evidence: &manifest.evidence,
        machine,
    };
    let record = Record {
        measured_us: manifest.measured_us.as_ref(),
        timed_on: manifest.timed_on.as_ref(),
        candidates: manifest.candidates,
        rejected: &manifest.rejected,
        seed: manifest.seed,
        search: manifest.search,
        history: &manifest.history,
    };
    package(&parts, &record).map_err(|e| wrong(format!("rules: {e}")))
}

/// Interprets the tile program on the recorded draws.
fn tiling(claims: &Claims<'_>) -> Result<String, Reject> {
    let recorded = &claims.artifact.manifest().evidence.tiling;
    let found = verify::check_tiling(
        &as_read(&search::forms::axes::as_in(
            claims.program,
            claims.expression,
        )),
        claims.expression,
        claims.tile,
        &recorded.options(),
    )?;
    if let Some(difference) = recorded.differs(&found) {
        return Err(wrong(format!("tiling: {difference}")));
    }
    Ok(format!(
        "tiling: the same outcome on the same {} shapes{}, drawn from seed {}, in the fields modulo {} and in f64",
        found.shapes,
        match found.pieces.as_slice() {
            [] => String::new(),
            pieces => format!(" and of {} kernels by themselves", pieces.len()),
        },
        found.seed,
        found
            .primes
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(" and ")
    ))
}

/// Compiles the kernels where the compiler is there that made the cubins.
fn cubins(
    claims: &Claims<'_>,
    units: &[String],
    tools: &Tools<'_>,
    replayed: &mut Replayed,
) -> Result<(), Reject> {
    let manifest = claims.artifact.manifest();
    let Some(recorded) = &manifest.cubin else {
        if manifest.evidence.kernel.is_some() || manifest.measured_us.is_some() {
            return Err(wrong("cubin: there is none, but a run of it is recorded"));
        }
        replayed
            .not
            .push("cubin: the artifact holds none".to_owned());
        return Ok(());
    };
    let mut skip = |why: String| {
        let line = format!("cubin: the kernels were not compiled again: {why}");
        replayed.not.push(line);
        Ok(())
    };
    // Without the cache: what is kept there is no compiler's word.
    let processes = std::thread::available_parallelism().map_or(1, usize::from);
    let mut pool = compile::pool(tools.worker, tools.nvrtc, processes, None, Arc::default());
    let arch = &claims.target.arch;
    let version = match pool.version(arch) {
        Ok(version) => compile::name(arch, version),
        Err(e) => return skip(e.to_string()),
    };
    if version != recorded.compiler {
        let then = &recorded.compiler;
        return skip(format!("{then} made the cubin, here is {version}"));
    }
    let compiled = pool.compile_units(&[units], arch).concat();
    let compiled = compiled.into_iter().collect::<Result<_, _>>();
    let compiled = compiled.map_err(|e| wrong(format!("cubin: {e}")))?;
    let found = Compilation::new(compiled, &version);
    let cubins = claims.artifact.cubins().map_err(unread)?;
    let mut other = None;
    for ((number, bytes), now) in cubins.iter().enumerate().zip(found.cubins()) {
        if now == *bytes {
            continue;
        }
        match (release(bytes), release(&now)) {
            (Some(then), Some(now)) if then != now => other = Some((then, now)),
            (None | Some(_), None | Some(_)) => {
                return Err(wrong(format!(
                    "cubin: {version} compiles kernel {number} to another cubin"
                )));
            }
        }
    }
    if let Some((then, now)) = other {
        return skip(format!("{then} of {version} made the cubin, here is {now}"));
    }
    let [then, now] = [&recorded.registers, &found.registers()].map(value);
    if let Some(difference) = difference("cubin.registers", &then, &now) {
        return Err(wrong(format!("{}: {difference}", file::MANIFEST)));
    }
    replayed.same.push(format!(
        "cubin: {version} compiles each kernel to its cubin here, byte by byte, and says the same of its registers"
    ));
    Ok(())
}

/// The release of the assembler, which NVRTC's version says only the beginning of, as cubins name it: `V13.0.88`.
fn release(cubin: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"Cuda compilation tools, release ";
    let at = cubin.windows(BEFORE.len()).position(|w| w == BEFORE)? + BEFORE.len();
    let line: Vec<u8> = cubin[at..]
        .iter()
        .copied()
        .take_while(|b| *b != 0)
        .collect();
    let (_, version) = std::str::from_utf8(&line).ok()?.split_once(", ")?;
    Some(version.to_owned())
}

/// What was measured and counted: it is taken as it is, as long as no time is shorter than any can be.
fn measured(claims: &Claims<'_>, replayed: &mut Replayed) -> Result<(), Reject> {
    let Manifest {
        measured_us,
        timed_on,
        candidates,
        rejected,
        seed,
        search,
        history,
        ..
    } = claims.artifact.manifest();
    if let Some(time) = measured_us {
        let floor = search::cost::floor::floor_us(claims.tile, claims.target);
        for timing in [&time.warm, &time.cold] {
            verify::check_time(timing.median_us, floor)?;
        }
    }
    if timed_on.is_some() && measured_us.is_none() {
        return Err(wrong("timed_on: it says where, and nothing was timed"));
    }
    let times = match measured_us {
        Some(_) => "the measured times (`bench` measures again) and where they were, ",
        None => "",
    };
    let (improvements, losers) = (history.improvements.len(), history.losers.len());
    let how = match search {
        Search::Running => "went on",
        Search::Interrupted => "was interrupted",
        Search::Ended => "came to its end",
    };
    replayed.not.push(format!(
        "record: {times}{candidates} candidates, {} rejected points, that the search {how}, its history of {improvements} improvements and {losers} losers, and the seed {seed} are what the search wrote down: nothing derives them",
        rejected.values().fold(0, |n: u64, more| n.saturating_add(*more))
    ));
    Ok(())
}

/// Where two values differ first, if they do.
fn difference(at: &str, recorded: &Value, derived: &Value) -> Option<String> {
    let none = Value::Null;
    match (recorded, derived) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeMap<&String, ()> =
                one.keys().chain(other.keys()).map(|n| (n, ())).collect();
            names.into_keys().find_map(|name| {
                let inner = if at.is_empty() {
                    name.clone()
                } else {
                    format!("{at}.{name}")
                };
                let [one, other] = [one, other].map(|o| o.get(name).unwrap_or(&none));
                difference(&inner, one, other)
            })
        }
        (Value::Array(one), Value::Array(other)) => {
            let most = one.len().max(other.len());
            (0..most).find_map(|n| {
                let [one, other] = [one, other].map(|o| o.get(n).unwrap_or(&none));
                difference(&format!("{at}[{n}]"), one, other)
            })
        }
        _ if recorded == derived || close(recorded, derived) => None,
        _ => Some(format!(
            "`{at}`: {} is recorded, and {} is what the artifact's parts give",
            shown(recorded),
            shown(derived)
        )),
    }
}

fn close(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) if one.is_f64() && other.is_f64() => {
            let (one, other) = (
                one.as_f64().unwrap_or(f64::NAN),
                other.as_f64().unwrap_or(f64::NAN),
            );
            (one - other).abs() <= OTHER_MACHINE * one.abs().max(other.abs())
        }
        _ => false,
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of)
        .expect("our own plain values should serialise: they hold no maps with odd keys")
}

/// A value with its floating-point numbers left out.
fn without_fractions(of: &impl Serialize) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Number(n) if n.is_f64() => *value = Value::Null,
            Value::Array(all) => all.iter_mut().for_each(strip),
            Value::Object(all) => {
                // By which of two yardsticks a result was accepted is as its errors are.
                all.remove("dithered");
                all.values_mut().for_each(strip);
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut value = value(of);
    strip(&mut value);
    value
}

fn read<'a>(claims: &Claims<'a>, name: &str) -> Result<&'a str, Reject> {
    claims.artifact.text(name).map_err(unread)
}

fn unread(error: ArtifactError) -> Reject {
    wrong(error.to_string())
}

fn wrong(what: impl Into<String>) -> Reject {
    Reject::Wrong(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_difference_is_named() {
        let one = json!({"a": [1, {"b": "x"}], "c": 2.0, "d": null});
        for (other, expected) in [
            (
                json!({"a": [1, {"b": "x"}], "c": 2.000_000_000_1, "d": null}),
                None,
            ),
            (
                json!({"a": [1, {"b": "y"}], "c": 3.0, "d": null}),
                Some("`a[1].b`: \"x\" is recorded, and \"y\""),
            ),
            (
                json!({"a": [1], "c": 2.0, "d": null}),
                Some("`a[1]`: {\"b\":\"x\"} is recorded, and null"),
            ),
            (
                json!({"a": [1, {"b": "x"}], "c": 2.1, "d": null}),
                Some("`c`: 2.0 is recorded, and 2.1"),
            ),
            (
                json!({"a": [1, {"b": "x"}], "c": 2.0, "d": null, "e": 1}),
                Some("`e`: null is recorded, and 1"),
            ),
        ] {
            let found = difference("", &one, &other);
            match expected {
                None => assert_eq!(found, None),
                Some(part) => assert!(
                    found.as_ref().is_some_and(|f| f.contains(part)),
                    "{found:?}"
                ),
            }
        }
    }

    #[test]
    fn another_run_is_compared_in_all_but_its_errors() {
        let of = |value: &Value| {
            serde_json::from_value::<KernelEvidence>(value.clone()).expect("evidence")
        };
        let errors = |worst: f64| {
            let mut of_output = value(&verify::tolerance::Errors::default());
            of_output["worst"] = json!(worst);
            json!([{"name": "normal", "draw": 0, "outputs": [of_output]}])
        };
        let mut then = value(&verify::KernelFindings::default());
        then["distributions"] = errors(0.25);
        then["seed"] = json!(7);
        let now = then.clone();
        let mut loose = then.clone();
        loose["distributions"] = errors(0.75);
        same_kernel(&of(&now), &of(&loose)).expect("fractions are left out");
        for (field, changed) in [
            ("seed", json!(8)),
            ("distributions", json!([])),
            ("runs", json!(9)),
            ("guards", json!(["poison"])),
            ("loosened", json!(true)),
        ] {
            let mut other = then.clone();
            other[field] = changed;
            let error = same_kernel(&of(&then), &of(&other)).expect_err(field);
            assert!(
                error.to_string().contains(&format!("evidence: `{field}")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_cubin_names_its_release() {
        let cubin = b"\x7fELF..Cuda compilation tools, release 13.0, V13.0.88\0more";
        assert_eq!(release(cubin).as_deref(), Some("V13.0.88"));
        assert_eq!(release(b"\x7fELF"), None);
    }
}

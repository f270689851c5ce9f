//! What goes into an artifact. Only a [`Verified`] candidate can be emitted.

use crate::artifact::{
    self, ArtifactError, BufferEntry, BufferKind, CubinEntry, Destination, FORMAT, Manifest, State,
    TargetEntry, TensorEntry, file,
};
use crate::machine::MachineEvidence;
use crate::pipeline::history::History;
use crate::pipeline::{Candidate, Compilation, Derivation, Optimized, Search, as_read};
use codegen::CudaProgram;
use device::gpu::TimedOn;
use device::timing::Measurement;
use ir::{Buffer, BufferRole, Dtype, Program, Schedule, Target, TileProgram};
use search::egraph::union::FOLD;
use search::rules::property::{self, Fault};
use search::rules::{RULES, Rule};
use serde_json::json;
use std::collections::BTreeMap;
use verify::{Evidence, Verified};

/// The Python package: one fixed text that reads the manifest.
const WRAPPER: &str = include_str!("wrapper.py");

/// Why no artifact was written.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// The derivation of the expression proves nothing.
    #[error("the expression rests on the rule {rule}, which is unsound\n{found}")]
    Unsound {
        /// The rule.
        rule: &'static str,
        /// What its property test found.
        found: Fault,
    },
    /// The folder could not be written.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
}

/// Writes the artifact of a search and gives its manifest.
///
/// # Errors
/// The system's, and a rule of the derivation that fails its property test: then nothing is written.
pub fn emit(
    program: &Program,
    target: &Target,
    seed: u64,
    optimized: &Optimized,
    destination: &Destination,
) -> Result<Manifest, EmitError> {
    let made = made(program, target, seed, optimized)?;
    destination.write(&made.files)?;
    Ok(made.manifest)
}

/// The manifest of the artifact that [`emit`] would write.
///
/// # Errors
/// As [`emit`], but for the system's.
pub fn describe(
    program: &Program,
    target: &Target,
    seed: u64,
    optimized: &Optimized,
) -> Result<Manifest, EmitError> {
    Ok(made(program, target, seed, optimized)?.manifest)
}

/// What a search found, as one JSON object for machines: the report of `optimize --json`.
pub fn summary(manifest: &Manifest, optimized: &Optimized, target: &Target) -> serde_json::Value {
    let best = optimized.best.value();
    let cost = search::cost::cost(&best.tile, Some(&best.schedule), target);
    let measured = manifest
        .measured_us
        .as_ref()
        .map(|m| json!({"warm": m.warm.median_us, "cold": m.cold.median_us, "spread": m}));
    let by_kernel: Vec<serde_json::Value> = (cost.kernels.iter())
        .map(|k| json!({"predicted_us": k.us, "flops": k.flops, "bytes": k.bytes, "blocks": k.blocks}))
        .collect();
    json!({
        "program": manifest.program,
        "target": manifest.target.name,
        "state": manifest.state,
        "seed": manifest.seed,
        "search": manifest.search,
        "candidates": optimized.candidates,
        "rejected": optimized.rejected,
        "search_seconds": optimized.seconds,
        "first_held_seconds": optimized.first_held_seconds,
        "stage_seconds": optimized.stages,
        "work": optimized.work,
        "best": {
            "kernels": manifest.launches.len(),
            "flops": manifest.flops,
            "bytes": manifest.bytes,
            "predicted_us": manifest.predicted_us,
            "by_kernel": by_kernel,
            "measured_us": measured,
            "claims": manifest.claims,
            "plan": best.plan,
            "schedule": best.schedule.text(&best.tile),
            "compiled": manifest.cubin.is_some(),
        },
        "remarks": optimized.remarks,
    })
}

/// The artifact of a search.
fn made(
    program: &Program,
    target: &Target,
    seed: u64,
    optimized: &Optimized,
) -> Result<Package, EmitError> {
    let best: &Verified<Candidate> = &optimized.best;
    let candidate = best.value();
    package(
        &Parts {
            program,
            target,
            expression: &candidate.expression,
            tile: &candidate.tile,
            schedule: &candidate.schedule,
            cuda: &candidate.cuda,
            code: candidate.compilation.as_ref().map(Code::of),
            derivation: &optimized.derivation,
            evidence: best.evidence(),
            machine: &optimized.machine,
        },
        &Record {
            measured_us: candidate.measured.as_ref(),
            timed_on: (candidate.measured.as_ref()).and(optimized.timed_on.as_ref()),
            candidates: optimized.candidates,
            rejected: &optimized.rejected,
            seed,
            search: optimized.search,
            history: &optimized.history,
        },
    )
}

/// What an artifact is derived from.
#[derive(Clone, Debug)]
pub(crate) struct Parts<'a> {
    /// The program.
    pub(crate) program: &'a Program,
    /// The GPU that it is for.
    pub(crate) target: &'a Target,
    /// The form of the program that is computed.
    pub(crate) expression: &'a Program,
    /// The tile program.
    pub(crate) tile: &'a TileProgram,
    /// How its kernels are mapped to the machine.
    pub(crate) schedule: &'a Schedule,
    /// What the two lower to.
    pub(crate) cuda: &'a CudaProgram,
    /// What that compiles to.
    pub(crate) code: Option<Code<'a>>,
    /// Why the expression is the program.
    pub(crate) derivation: &'a Derivation,
    /// What was checked.
    pub(crate) evidence: &'a Evidence,
    /// What the machine programs did.
    pub(crate) machine: &'a MachineEvidence,
}

/// Compiled kernels.
#[derive(Clone, Debug)]
pub(crate) struct Code<'a> {
    /// Machine code: a cubin for each launch.
    pub(crate) cubins: Vec<&'a [u8]>,
    /// The compiler's version.
    pub(crate) compiler: &'a str,
    /// What the assembler said about each kernel.
    pub(crate) registers: BTreeMap<String, u32>,
}

impl<'a> Code<'a> {
    /// What compiling gave.
    pub(crate) fn of(compilation: &'a Compilation) -> Self {
        Self {
            cubins: compilation.compiled.iter().map(|c| &c.cubin[..]).collect(),
            compiler: &compilation.compiler,
            registers: compilation.registers(),
        }
    }
}

/// What the search measured and counted: nothing derives it.
#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    /// The measured time.
    pub(crate) measured_us: Option<&'a Measurement>,
    /// Where that was.
    pub(crate) timed_on: Option<&'a TimedOn>,
    /// How many candidates were looked at.
    pub(crate) candidates: u64,
    /// How many points were rejected, by reason.
    pub(crate) rejected: &'a BTreeMap<String, u64>,
    /// The seed of the search.
    pub(crate) seed: u64,
    /// How far the search was.
    pub(crate) search: Search,
    /// What it went through.
    pub(crate) history: &'a History,
}

/// An artifact that is not written yet.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    /// What it says about itself.
    pub(crate) manifest: Manifest,
    /// All its files, the manifest last.
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
}

/// The files of an artifact: a function of its parts and of what was measured. [`emit`] writes them; a replay makes them again and compares.
///
/// # Errors
/// [`EmitError::Unsound`].
pub(crate) fn package(parts: &Parts<'_>, record: &Record<'_>) -> Result<Package, EmitError> {
    let mut manifest = manifest(parts, record)?;
    let mut files = vec![
        (file::WRAPPER, WRAPPER.as_bytes().to_vec()),
        (file::CUDA, parts.cuda.source.clone().into_bytes()),
        (file::PROGRAM, parts.program.to_string().into_bytes()),
        (
            file::EXPRESSION,
            as_read(parts.expression).to_string().into_bytes(),
        ),
        (file::TILE, parts.tile.to_string().into_bytes()),
        (file::SCHEDULE, parts.schedule.text(parts.tile).into_bytes()),
    ];
    files.extend(parts.code.iter().map(|c| (file::CUBIN, c.cubins.concat())));
    artifact::seal(&mut manifest, &mut files);
    Ok(Package { manifest, files })
}

/// `manifest.json` but for the hashes.
fn manifest(parts: &Parts<'_>, record: &Record<'_>) -> Result<Manifest, EmitError> {
    let Parts {
        program,
        target,
        tile,
        ..
    } = parts;
    let cost = search::cost::cost(tile, Some(parts.schedule), target);
    Ok(Manifest {
        format: FORMAT,
        tilewright: env!("CARGO_PKG_VERSION").to_owned(),
        program: program.name.clone(),
        namespace: namespace(parts),
        target: TargetEntry {
            name: target.name.clone(),
            arch: target.arch.clone(),
            capability: target.capability,
            device: target.device.clone(),
        },
        parameters: program
            .parameters()
            .map(|(_, name, dtype, dims)| tensor(name.to_owned(), dtype, program.shape(dims)))
            .collect(),
        outputs: program
            .outputs
            .iter()
            .enumerate()
            .map(|(n, o)| tensor(format!("out{n}"), o.dtype, program.shape(&o.dims)))
            .collect(),
        buffers: tile.buffers.iter().map(|b| buffer(tile, b)).collect(),
        launches: parts.cuda.launches.clone(),
        cubin: parts.code.as_ref().map(|c| CubinEntry {
            file: file::CUBIN.to_owned(),
            blake3: artifact::hash(&c.cubins.concat()),
            bytes: c.cubins.iter().map(|cubin| cubin.len() as u64).collect(),
            compiler: c.compiler.to_owned(),
            registers: c.registers.clone(),
        }),
        flops: cost.flops,
        bytes: cost.bytes,
        predicted_us: cost.us,
        measured_us: record.measured_us.cloned(),
        timed_on: record.timed_on.cloned(),
        state: State::of(parts.evidence),
        claims: rule_claims(parts.derivation)?
            .into_iter()
            .chain(axis_claims(program, parts.expression))
            .chain(parts.evidence.to_string().lines().map(str::to_owned))
            .chain([parts.machine.to_string()])
            .collect(),
        candidates: record.candidates,
        rejected: record.rejected.clone(),
        seed: record.seed,
        search: record.search,
        history: record.history.clone(),
        derivation: parts.derivation.clone(),
        evidence: parts.evidence.clone(),
        machine: parts.machine.clone(),
        files: BTreeMap::new(),
        seal: String::new(),
    })
}

/// What is known of the expression: the rules that derive it, and what their property tests did just now.
///
/// # Errors
/// [`EmitError::Unsound`] for the first rule that fails its test.
fn rule_claims(derivation: &Derivation) -> Result<Vec<String>, EmitError> {
    claims_by(RULES, derivation)
}

/// The axes of the program for which the expression has others.
fn axis_claims(program: &Program, expression: &Program) -> impl Iterator<Item = String> {
    let changes = search::forms::axes::changes(program, expression).into_iter();
    changes.map(|change| format!("axes: {change}"))
}

fn claims_by(table: &[Rule], derivation: &Derivation) -> Result<Vec<String>, EmitError> {
    let none = |why: &str| {
        let rest = "that it equals the program rests on the numbers below";
        Ok(vec![format!(
            "rules: no derivation of the expression was {why}: {rest}"
        )])
    };
    let derivation = match derivation {
        Derivation::Found(derivation) => derivation,
        Derivation::NotFound => return none("found within the limits"),
        Derivation::NotSought => return none("looked for before the search ended"),
    };
    let mut tests = Vec::new();
    for rule in table {
        if derivation.rules.iter().all(|name| name != rule.name) {
            continue;
        }
        match property::exercise(rule) {
            Ok(count) => tests.push(format!("{} {}", rule.name, count.floating + count.exact)),
            Err(found) => {
                return Err(EmitError::Unsound {
                    rule: rule.name,
                    found,
                });
            }
        }
    }
    let folds = derivation.steps.iter().any(|step| step.rule == FOLD);
    let claim = match (tests.is_empty(), folds) {
        (true, false) => "is the program's own".to_owned(),
        (true, true) => "equals the program by arithmetic on constants alone".to_owned(),
        (false, _) => format!(
            "equals the program by {} {}{} alone, each property-tested; held at so many points: {}",
            tests.len(),
            if tests.len() == 1 { "rule" } else { "rules" },
            if folds {
                " and arithmetic on constants"
            } else {
                ""
            },
            tests.join(", ")
        ),
    };
    Ok(vec![format!("rules: the expression {claim}")])
}

fn buffer(tile: &TileProgram, buffer: &Buffer) -> BufferEntry {
    let (role, index) = match buffer.role {
        BufferRole::Parameter(n) => (BufferKind::Parameter, n),
        BufferRole::Output(n) => (BufferKind::Output, n),
        BufferRole::Workspace => (BufferKind::Workspace, 0),
    };
    BufferEntry {
        name: buffer.name.clone(),
        dtype: buffer.dtype.name().to_owned(),
        role,
        index,
        bytes: tile.buffer_bytes(buffer),
    }
}

fn tensor(name: String, dtype: Dtype, shape: Vec<u64>) -> TensorEntry {
    TensorEntry {
        name,
        dtype: dtype.name().to_owned(),
        shape,
    }
}

/// Unique for what would be run: two artifacts share it exactly when they hold the same kernels.
fn namespace(parts: &Parts<'_>) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(parts.program.to_string().as_bytes());
    hasher.update(parts.target.arch.as_bytes());
    hasher.update(parts.cuda.source.as_bytes());
    hasher.update(artifact::json(&parts.cuda.launches).as_bytes());
    if let Some(code) = &parts.code {
        code.cubins.iter().for_each(|cubin| {
            hasher.update(cubin);
        });
    }
    let hash = hasher.finalize().to_hex();
    let name: String = parts
        .program
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    format!("tilewright_{name}_{}", &hash.as_str()[..12])
}

#[cfg(test)]
mod tests {
    use super::*;
    use search::forms::explain::{Explanation, Step};

    fn derivation(rules: &[&str], steps: &[&str]) -> Derivation {
        let step = |rule: &&str| Step {
            rule: (*rule).to_owned(),
            left: "x".to_owned(),
            right: "y".to_owned(),
        };
        Derivation::Found(Explanation {
            rules: rules.iter().map(|r| (*r).to_owned()).collect(),
            steps: steps.iter().map(step).collect(),
        })
    }

    #[test]
    fn claims_say_what_the_derivation_rests_on() {
        for (rules, steps, part) in [
            (&[][..], &[][..], "is the program's own"),
            (&[], &[FOLD], "by arithmetic on constants alone"),
            (&["exp-log"], &["exp-log"], "by 1 rule alone, "),
            (
                &["exp-log", "log-exp"],
                &["exp-log", FOLD, "log-exp"],
                "by 2 rules and arithmetic on constants alone, ",
            ),
        ] {
            let claims = rule_claims(&derivation(rules, steps)).expect("sound rules");
            assert!(claims[0].contains(part), "no `{part}` in {claims:?}");
        }
    }

    #[test]
    fn nothing_is_claimed_of_an_unsound_rule() {
        let row = RULES.iter().find(|r| r.name == "log-product");
        // `ln x = x`
        let wrong = Rule {
            rewriting: |_, node| vec![node.args[0]],
            ..*row.expect("a rule")
        };
        let derived = derivation(&["log-product"], &["log-product"]);
        let error = claims_by(&[wrong], &derived).expect_err("it is unsound");
        let message = error.to_string();
        assert!(
            message.contains("log-product, which is unsound"),
            "{message}"
        );
        claims_by(&[wrong], &derivation(&[], &[])).expect("another derivation");
    }
}

//! What goes into an artifact. Only a [`Verified`] candidate can be emitted.

use crate::artifact::{
    self, ArtifactError, BufferEntry, BufferKind, CubinEntry, Destination, FORMAT, Manifest,
    TargetEntry, TensorEntry, file,
};
use crate::pipeline::{Candidate, Optimized};
use ir::{Buffer, BufferRole, Dtype, Program, Target, TileProgram};
use search::explain::{Explanation, FOLD};
use search::rules::property::{self, Counterexample};
use search::rules::{RULES, Rule};
use std::collections::BTreeMap;
use verify::Verified;

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
        /// An instance on which it is wrong.
        found: Box<Counterexample>,
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
    let candidate = optimized.best.value();
    let mut manifest = manifest(program, target, seed, optimized)?;
    let mut files = vec![
        (file::WRAPPER, WRAPPER.as_bytes().to_vec()),
        (file::CUDA, candidate.cuda.source.clone().into_bytes()),
        (file::PROGRAM, program.to_string().into_bytes()),
        (
            file::EXPRESSION,
            candidate.expression.to_string().into_bytes(),
        ),
        (file::TILE, candidate.tile.to_string().into_bytes()),
        (file::SCHEDULE, json(&candidate.schedule).into_bytes()),
    ];
    if let Some(compilation) = &candidate.compilation {
        files.push((file::CUBIN, compilation.compiled.cubin.clone()));
    }
    manifest.files = files
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), artifact::hash(bytes)))
        .collect();
    manifest.seal = manifest.sealed();
    files.push((file::MANIFEST, json(&manifest).into_bytes()));
    destination.write(&files)?;
    Ok(manifest)
}

/// `manifest.json` of a search's result.
///
/// # Errors
/// [`EmitError::Unsound`].
pub fn manifest(
    program: &Program,
    target: &Target,
    seed: u64,
    optimized: &Optimized,
) -> Result<Manifest, EmitError> {
    let best: &Verified<Candidate> = &optimized.best;
    let candidate = best.value();
    Ok(Manifest {
        format: FORMAT,
        tilewright: env!("CARGO_PKG_VERSION").to_owned(),
        program: program.name.clone(),
        namespace: namespace(program, target, candidate),
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
        buffers: candidate
            .tile
            .buffers
            .iter()
            .map(|b| buffer(&candidate.tile, b))
            .collect(),
        launches: candidate.cuda.launches.clone(),
        cubin: candidate.compilation.as_ref().map(|c| CubinEntry {
            file: file::CUBIN.to_owned(),
            blake3: blake3::hash(&c.compiled.cubin).to_hex().to_string(),
            compiler: c.compiler.clone(),
            registers: c
                .compiled
                .kernels
                .iter()
                .filter(|k| k.entry)
                .map(|k| (k.name.clone(), k.registers))
                .collect(),
        }),
        flops: candidate.predicted.flops,
        bytes: candidate.predicted.bytes,
        predicted_us: candidate.predicted.us,
        measured_us: candidate.measured.clone(),
        verified: rule_claims(optimized.derivation.as_ref())?
            .into_iter()
            .chain(axis_claims(program, &candidate.expression))
            .chain(best.evidence().to_string().lines().map(str::to_owned))
            .collect(),
        candidates: optimized.candidates,
        rejected: optimized.rejected.clone(),
        seed,
        derivation: optimized.derivation.clone(),
        evidence: best.evidence().clone(),
        files: BTreeMap::new(),
        seal: String::new(),
    })
}

/// What is known of the expression: the rules that derive it, and what their property tests did just now.
///
/// # Errors
/// [`EmitError::Unsound`] for the first rule that fails its test.
pub fn rule_claims(derivation: Option<&Explanation>) -> Result<Vec<String>, EmitError> {
    claims_by(RULES, derivation)
}

/// The axes of the program that the expression has in two.
fn axis_claims(program: &Program, expression: &Program) -> impl Iterator<Item = String> {
    let divided = search::divide::divisions(program, expression).into_iter();
    divided.map(|d| format!("axes: {d}, in memory where the one axis is"))
}

fn claims_by(table: &[Rule], derivation: Option<&Explanation>) -> Result<Vec<String>, EmitError> {
    let Some(derivation) = derivation else {
        return Ok(vec![
            "rules: no derivation of the expression was found within the limits: that it equals the program rests on the numbers below"
                .to_owned(),
        ]);
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

/// The size of a buffer.
pub fn buffer_bytes(tile: &TileProgram, buffer: &Buffer) -> u64 {
    let elements: u64 = buffer.axes().map(|a| tile.extent(a)).product();
    elements * buffer.dtype.bytes()
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
        bytes: buffer_bytes(tile, buffer),
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
fn namespace(program: &Program, target: &Target, candidate: &Candidate) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(program.to_string().as_bytes());
    hasher.update(target.arch.as_bytes());
    hasher.update(candidate.cuda.source.as_bytes());
    hasher.update(json(&candidate.cuda.launches).as_bytes());
    if let Some(compilation) = &candidate.compilation {
        hasher.update(&compilation.compiled.cubin);
    }
    let hash = hasher.finalize().to_hex();
    let name: String = program
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    format!("tilewright_{name}_{}", &hash.as_str()[..12])
}

fn json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(value)
        .expect("our own plain values should serialise: they hold no maps with odd keys");
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use search::explain::Step;

    fn derivation(rules: &[&str], steps: &[&str]) -> Explanation {
        let step = |rule: &&str| Step {
            rule: (*rule).to_owned(),
            left: "x".to_owned(),
            right: "y".to_owned(),
        };
        Explanation {
            rules: rules.iter().map(|r| (*r).to_owned()).collect(),
            steps: steps.iter().map(step).collect(),
        }
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
            let claims = rule_claims(Some(&derivation(rules, steps))).expect("sound rules");
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
        let error = claims_by(&[wrong], Some(&derived)).expect_err("it is unsound");
        let message = error.to_string();
        assert!(
            message.contains("log-product, which is unsound"),
            "{message}"
        );
        claims_by(&[wrong], Some(&derivation(&[], &[]))).expect("another derivation");
    }
}

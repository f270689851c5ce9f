//! `show` and `targets`: what a file or an artifact holds, for people.

use crate::cli::{Failure, place};
use ir::{Program, Schedule, Target, TileProgram};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;
use tilewright::artifact::{Artifact, file};
use tilewright::codegen::{
    self,
    atoms::{Operands, Scope, tflops},
};
use tilewright::pipeline::Derivation;
use tilewright::search::cost::cost;
use tilewright::search::forms::axes::changes;

/// An artifact, read back.
pub(crate) struct Contents {
    /// Its files.
    pub(crate) artifact: Artifact,
    /// The program.
    pub(crate) program: Program,
    /// The chosen expression.
    pub(crate) expression: Program,
    /// The tile program.
    pub(crate) tile: TileProgram,
    /// How each kernel is mapped to the machine.
    pub(crate) schedule: Schedule,
}

/// What of an artifact says which tile program it has.
pub(crate) struct Tiling {
    /// The program.
    pub(crate) program: Program,
    /// The chosen expression.
    pub(crate) expression: Program,
    /// The tile program.
    pub(crate) tile: TileProgram,
}

impl Tiling {
    /// Reads and parses the texts of an artifact that tell it.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        Self::of(&Artifact::read(folder).map_err(Failure::refused)?)
    }

    fn of(artifact: &Artifact) -> Result<Self, Failure> {
        let folder = artifact.folder();
        let text = |name: &str| artifact.text(name).map_err(Failure::refused);
        let parse = |name: &str| {
            ir::parse(text(name)?, &folder.join(name).display().to_string())
                .map_err(Failure::refused)
        };
        let broken = |e: &dyn std::fmt::Display| {
            Failure::refused(format!("{}: {e}", folder.join(file::TILE).display()))
        };
        let tile: TileProgram = text(file::TILE)?.parse().map_err(|e| broken(&e))?;
        ir::tile_check::validate(&tile).map_err(|e| broken(&e.join("; ")))?;
        Ok(Self {
            program: parse(file::PROGRAM)?,
            expression: parse(file::EXPRESSION)?,
            tile,
        })
    }
}

impl Contents {
    /// Reads and parses the texts of an artifact.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        Self::of(Artifact::read(folder).map_err(Failure::refused)?)
    }

    /// Reads and parses the texts of an artifact that is as it was written.
    pub(crate) fn checked(folder: &Path) -> Result<Self, Failure> {
        let artifact = Artifact::read(folder).map_err(Failure::refused)?;
        artifact.check().map_err(Failure::refused)?;
        Self::of(artifact)
    }

    fn of(artifact: Artifact) -> Result<Self, Failure> {
        let Tiling {
            program,
            expression,
            tile,
        } = Tiling::of(&artifact)?;
        let at = artifact.folder().join(file::SCHEDULE);
        let text = artifact.text(file::SCHEDULE).map_err(Failure::refused)?;
        let schedule =
            Schedule::parse(text, &at.display().to_string(), &codegen::language(), &tile);
        Ok(Self {
            schedule: schedule.map_err(Failure::refused)?,
            program,
            expression,
            tile,
            artifact,
        })
    }
}

/// A program with its sugar expanded, or everything that an artifact chose.
pub(crate) fn show(path: &Path) -> Result<String, Failure> {
    if !path.is_dir() {
        return Ok(place::program(path)?.to_string());
    }
    let contents = Contents::read(path)?;
    let manifest = contents.artifact.manifest();
    let mut text = String::new();
    let derivation = match &manifest.derivation {
        Derivation::NotFound => "no derivation was found within the limits".to_owned(),
        Derivation::NotSought => "the search ended before a derivation was looked for".to_owned(),
        Derivation::Found(derivation) if derivation.steps.is_empty() => {
            "the expression is the program's own".to_owned()
        }
        Derivation::Found(derivation) => {
            let lines: Vec<String> = derivation
                .steps
                .iter()
                .map(|s| format!("{}\n    {}\n  = {}", s.rule, s.left, s.right))
                .collect();
            let rules = match derivation.rules.join(", ") {
                none if none.is_empty() => "by arithmetic on constants alone".to_owned(),
                rules => format!("by these rules and arithmetic on constants: {rules}"),
            };
            format!("{rules}\n{}", lines.join("\n"))
        }
    };
    let changed = changes(&contents.program, &contents.expression);
    let axes: String = changed.iter().map(|d| format!("with {d}\n")).collect();
    for (title, body) in [
        ("program", contents.program.to_string()),
        ("expression", contents.expression.to_string()),
        ("why the expression is the program", axes + &derivation),
        ("tile program", contents.tile.to_string()),
        ("schedule", contents.schedule.text(&contents.tile)),
        ("model", modelled(&contents)),
        (
            "evidence",
            format!("{}\n{}", manifest.state, manifest.claims.join("\n")),
        ),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "=== {title} ===\n{}\n", body.trim_end());
    }
    Ok(text)
}

/// What [`show`] tells, as one JSON object: texts as an artifact's files hold them.
pub(crate) fn json(path: &Path) -> Result<String, Failure> {
    if !path.is_dir() {
        return Ok(json!({"program": place::program(path)?.to_string()}).to_string() + "\n");
    }
    let contents = Contents::read(path)?;
    let manifest = contents.artifact.manifest();
    let value = json!({
        "program": contents.program.to_string(),
        "target": manifest.target.name,
        "expression": contents.expression.to_string(),
        "derivation": manifest.derivation,
        "tile_program": contents.tile.to_string(),
        "schedule": contents.schedule.text(&contents.tile),
        "predicted_us": manifest.predicted_us,
        "state": manifest.state,
        "claims": manifest.claims,
    });
    Ok(value.to_string() + "\n")
}

/// The schedule of an artifact, as `optimize --schedule` reads it.
pub(crate) fn schedule(folder: &Path) -> Result<String, Failure> {
    let contents = Contents::read(folder)?;
    Ok(contents.schedule.text(&contents.tile))
}

/// The machine program of each kernel of an artifact, as this version lowers it.
pub(crate) fn machine(folder: &Path) -> Result<String, Failure> {
    let contents = Contents::read(folder)?;
    let name = &contents.artifact.manifest().target.name;
    let target = tilewright::target(name).map_err(Failure::refused)?;
    let machines = codegen::machines(&contents.tile, &contents.schedule, &target);
    let machines = machines.map_err(Failure::refused)?;
    Ok(machines.iter().map(ToString::to_string).collect())
}

fn modelled(contents: &Contents) -> String {
    match tilewright::target(&contents.artifact.manifest().target.name) {
        Ok(target) => model(&contents.tile, &contents.schedule, &target),
        Err(e) => format!("none: {e}"),
    }
}

/// What this version's model of the target says of each kernel, and what bounds it there.
pub(crate) fn model(tile: &TileProgram, schedule: &Schedule, target: &Target) -> String {
    let cost = cost(tile, Some(schedule), target);
    let mut text = format!(
        "{:>6} {:>9} {:>9} {:>9} {:>8}  {}\n",
        "kernel", "us", "MB", "GFLOP", "blocks", "what each unit takes by itself"
    );
    for (n, k) in cost.kernels.iter().enumerate() {
        let parts = [
            ("memory", k.hbm_us),
            ("L2", k.l2_us),
            ("tensor cores", k.tensor_us),
            ("CUDA cores", k.cuda_us),
            ("special functions", k.special_us),
            ("shared memory", k.shared_us),
            ("latency", k.latency_us),
            ("launch", k.launch_us),
        ];
        let parts = parts.iter().filter(|(_, us)| *us >= 0.05);
        let parts: Vec<String> = parts.map(|(name, us)| format!("{name} {us:.1}")).collect();
        let _ = writeln!(
            text,
            "{n:>6} {:>9.1} {:>9.2} {:>9.3} {:>8}  {}",
            k.us,
            k.bytes as f64 / 1e6,
            k.flops as f64 / 1e9,
            k.blocks,
            parts.join(", ")
        );
    }
    text
}

/// The known GPUs.
pub(crate) fn targets(json: bool) -> Result<String, Failure> {
    let targets = tilewright::targets();
    if json {
        let text = serde_json::to_string_pretty(&targets).map_err(Failure::refused)?;
        return Ok(text + "\n");
    }
    let mut text = format!(
        "{:<10} {:<8} {:>4} {:>10} {:>10} {:>12} {:>14}\n",
        "name", "arch", "SMs", "TB/s", "L2 MB", "f32 TFLOP/s", "16-bit TFLOP/s"
    );
    for t in targets {
        let _ = writeln!(
            text,
            "{:<10} {:<8} {:>4} {:>10.2} {:>10.0} {:>12.0} {:>14.0}",
            t.name,
            t.arch,
            t.sms,
            t.memory_tb_s,
            t.l2_bytes as f64 / 1e6,
            t.f32_tflops,
            tflops(Scope::Warp, Operands::Half, &t)
        );
    }
    Ok(text)
}

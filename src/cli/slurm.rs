//! `campaign slurm`: an array job whose tasks work on one campaign.

use crate::cli::Failure;
use clap::Args;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tilewright::campaign::journal::ALONE;

/// What an array job is made of.
#[derive(Args)]
pub(crate) struct Slurm {
    /// The campaign's folder, or the address of its journal: postgres://USER@HOST/DATABASE
    #[arg(value_name = "DIR|URL")]
    pub(crate) campaign: PathBuf,
    /// Prints the script, and submits nothing
    #[arg(long)]
    dry_run: bool,
    /// How many tasks there are: each works for itself, on any machine
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    tasks: u32,
    /// GPUs of each task
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "no_gpu", value_parser = clap::value_parser!(u32).range(1..))]
    gpus_per_task: u32,
    /// Processor cores of each task
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus_per_task: Option<u32>,
    /// How long a task may take at most, as Slurm writes it
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// Where they run
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Does not ask for GPUs: what is found is simulated
    #[arg(long)]
    no_gpu: bool,
    /// Does not ask for GPUs: tasks compile for machines that search
    #[arg(long, conflicts_with_all = ["no_gpu", "gpus_per_task"])]
    compile_only: bool,
    /// Where each task has its folder, by its number, and its output; every machine has to have it
    #[arg(short, long, value_name = "DIR", default_value = "out/slurm")]
    output: PathBuf,
}

/// What tasks work on.
pub(crate) enum Work {
    /// Each for itself, through a server: its address, without a password.
    Server(String),
    /// One, in this folder.
    Folder(PathBuf),
}

/// Prints a script, or submits it.
pub(crate) fn slurm(arguments: &Slurm, work: &Work, program: &Path) -> Result<String, Failure> {
    if matches!(work, Work::Folder(_)) && arguments.tasks > 1 {
        let why = "its journal is a file, which one task can work on; `tilewright campaign run --journal URL` makes a campaign for many";
        let campaign = arguments.campaign.display();
        return Err(Failure::refused(format!("{campaign}: {why}")));
    }
    if matches!(work, Work::Folder(_)) && arguments.compile_only {
        let campaign = arguments.campaign.display();
        return Err(Failure::refused(format!("{campaign}: {}", ALONE)));
    }
    let output = std::path::absolute(&arguments.output).map_err(Failure::refused)?;
    let script = script(arguments, work, program, &output)?;
    if arguments.dry_run {
        return Ok(script);
    }
    std::fs::create_dir_all(&output)
        .map_err(|e| Failure::refused(format!("{}: {e}", output.display())))?;
    let started = Command::new("sbatch")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let none = |e| {
        Failure::refused(format!(
            "expected Slurm's sbatch in the path, found none: {e}"
        ))
    };
    let mut started = started.map_err(none)?;
    if let Some(mut input) = started.stdin.take() {
        // Where it does not read on it says why.
        let _ = input.write_all(script.as_bytes());
    }
    let ended = started.wait_with_output().map_err(Failure::refused)?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        return Err(Failure::refused(format!("sbatch: {}", said.trim())));
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

fn script(
    arguments: &Slurm,
    work: &Work,
    program: &Path,
    output: &Path,
) -> Result<String, Failure> {
    let mut text = "#!/bin/sh\n".to_owned();
    let mut option = |name: &str, value: &str| -> Result<(), Failure> {
        // Slurm reads these lines itself, and has no way to quote a line's end.
        if value.is_empty() || value.contains(['\n', '\r', '"']) {
            return Err(Failure::refused(format!(
                "--{name}: expected a text of one line without quotes, found {value:?}"
            )));
        }
        // Writing to a string does not fail.
        let _ = writeln!(text, "#SBATCH --{name}=\"{value}\"");
        Ok(())
    };
    option("job-name", "tilewright")?;
    option("array", &format!("1-{}", arguments.tasks))?;
    option("ntasks", "1")?;
    if !arguments.no_gpu && !arguments.compile_only {
        option("gres", &format!("gpu:{}", arguments.gpus_per_task))?;
    }
    if let Some(cores) = arguments.cpus_per_task {
        option("cpus-per-task", &cores.to_string())?;
    }
    for (name, value) in [
        ("time", &arguments.time),
        ("partition", &arguments.partition),
    ] {
        if let Some(value) = value {
            option(name, value)?;
        }
    }
    option("output", &output.join("%A_%a.txt").display().to_string())?;
    // A task that has to go first hears of it, and gives its slices back.
    option("signal", "B:TERM@30")?;
    let what = match (arguments.no_gpu, arguments.compile_only) {
        (true, _) => " --no-gpu",
        (false, true) => " --compile-only",
        (false, false) => "",
    };
    let program = quoted(&program.display().to_string());
    let output = output.display().to_string();
    // `exec`: what Slurm tells the script it tells the program.
    let _ = match work {
        Work::Server(url) => writeln!(
            text,
            "exec {program} campaign join {} -o {}/\"$SLURM_ARRAY_JOB_ID\"_\"$SLURM_ARRAY_TASK_ID\"{what}",
            quoted(url),
            quoted(&output)
        ),
        Work::Folder(folder) => {
            let folder = quoted(&folder.display().to_string());
            writeln!(text, "exec {program} campaign resume {folder}{what}")
        }
    };
    Ok(text)
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

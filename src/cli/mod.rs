//! The command line: what can be said, and one module for each group of commands.
//!
//! Only [`main`] prints to standard output: a command gives it the text, or a [`Failure`]. Progress goes to standard error. This is the only place that reads environment variables: where NVRTC, the user's caches,
//! log and Python environments are.

mod arrays;
mod campaign;
mod compiling;
mod db;
mod diff;
mod explain;
mod failure;
mod gpu;
mod log;
mod optimize;
mod place;
mod progress;
mod replay;
mod report;
mod rules;
mod run;
mod show;
mod slurm;
mod subject;
mod trials;
mod verbose;

pub(crate) use failure::Failure;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tilewright::budget;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets as Levels};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use verbose::Lines;

/// Searches, verifies and packs the fastest GPU kernel for a small tensor program.
#[derive(Parser)]
#[command(version, about, after_help = format!("{FIRST_STEPS}\n\n{BY_HAND}\n\n{EXIT_CODES}"), max_term_width = 120)]
struct Cli {
    /// Say on standard error what becomes of each candidate, a line each; given twice, also how the search itself goes
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  tilewright show examples/gqa.lax                      reads a program and prints it without sugar
  tilewright optimize examples/gqa.lax --target h200    searches, without a GPU too
  tilewright show out/gqa                               says what was chosen
  docs/language.md                                      the language of programs";

const BY_HAND: &str = "\
A schedule by hand:
  tilewright show out/gqa --schedule > mine.txt         how each kernel is mapped to the machine, a line for each transformation
  tilewright optimize examples/gqa.lax --target h200 --schedule mine.txt --tiling out/gqa -o out/mine
                                                        the same tile program under what mine.txt says now
  docs/schedules.md                                     what the lines mean";

const EXIT_CODES: &str = "\
Exit codes:
  0  done; of optimize: an artifact was written, which says what it is: verified if it ran on a GPU of the target's kind, else simulated
  1  refused: bad input, unreadable or unwritable file, unknown target, a schedule that no tile program takes
  2  wrong usage of the command line
  3  nothing passed the checks, or a rule is unsound or undecided
  4  this needs a GPU, and there is none
  5  there is a GPU, and it could not be used; --no-gpu goes on without it
  6  the budget does not suffice for the reference and the verification on the GPU; the message says which would
  130, 143  ended by SIGINT or SIGTERM before anything was held, or by a second one. The first signal ends the search of optimize: the
            best so far is written, and the exit code is 0";

#[derive(Subcommand)]
enum Command {
    /// Searches for the fastest kernel and writes it as an artifact that PyTorch can import
    Optimize(Optimize),
    /// Optimises many programs within one budget; what is killed goes on (docs/campaigns.md)
    #[command(subcommand)]
    Campaign(campaign::Campaign),
    /// Evaluates a program op by op in f64: the reference
    Eval(Eval),
    /// Interprets the tile program of an artifact
    Simulate(Simulate),
    /// Shows a program with its sugar expanded, or all that an artifact chose
    Show(Show),
    /// Keeps artifacts in one database that can be shared, by program and target
    Db(db::Db),
    /// Says what differs between two artifacts, and what each costs by the models and by measurement
    Diff(Diff),
    /// Goes from an artifact's program to its kernels: rewrites, corrections, and what each transformation of the schedule is worth, by the clock and on the GPU
    Explain(Explain),
    /// Writes one HTML file about an artifact or a campaign, which opens offline: what limits each kernel, the search, the losers, the evidence
    Report(Report),
    /// Verifies an artifact again on this machine's GPU, or replays its evidence
    Verify(Verify),
    /// Times an artifact again on this machine's GPU
    Bench(OnGpu),
    /// Lists what was timed by any search on this machine, or exports it
    Log(TrialLog),
    /// Lists the identities that the search may use, or checks a file of one's own
    Rules(Rules),
    /// Lists the known targets
    Targets(Targets),
    /// Predicts again what files of `log --format jsonl` hold, and prints the lines with what is predicted now
    #[command(hide = true)]
    Predict {
        /// The files
        files: Vec<PathBuf>,
        /// Says beside it what a correction says that is learned from all others
        #[arg(long)]
        held_back: Option<trials::HeldBack>,
    },
    /// Searches on behalf of a campaign
    #[command(hide = true)]
    CampaignWorker(campaign::WorkerArguments),
    /// Compiles on behalf of a parent process (JSON lines)
    #[command(hide = true)]
    CompileWorker,
    /// Runs candidates on behalf of a parent process (JSON lines)
    #[command(hide = true)]
    GpuWorker {
        /// The device, as the driver counts
        #[arg(long, default_value_t = 0)]
        device: u32,
    },
    /// Measures the steps of a program's reference on this machine's GPU, beside what they are predicted to take
    #[command(hide = true)]
    GpuReference {
        /// The program, a .lax file
        program: PathBuf,
        /// Whose rates predict
        #[arg(long, default_value = "h200")]
        target: String,
    },
}

#[derive(Args)]
struct Optimize {
    /// The program, a .lax file
    program: PathBuf,
    /// The GPU to optimise for: a name from `tilewright targets`, or `auto` for the one in this machine
    #[arg(long, default_value = "auto")]
    target: String,
    /// How long to search: 90s, 5m, 1h30m, 1.5h, 2d; at most a quarter and some seconds longer, all in all. It ends earlier when it has
    /// nothing left to try, and at once by Ctrl-C: the best so far is written
    #[arg(long, default_value = "30s", value_parser = budget::budget, allow_hyphen_values = true)]
    budget: Duration,
    /// The seed of the search and of the drawn inputs [default: another one each time, which is printed and recorded]
    #[arg(long)]
    seed: Option<u64>,
    /// Where to put the artifact [default: out/<program's name>]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// The only schedule that is tried, in place of those that the search proposes: a text as `show DIR --schedule` prints it. Tile
    /// programs with other kernels or values are passed over, and what is found passes the same checks
    #[arg(long, value_name = "FILE")]
    schedule: Option<PathBuf>,
    /// Tries the schedule on the tile program of this artifact of the program alone, and searches nothing
    #[arg(long, value_name = "DIR", requires = "schedule")]
    tiling: Option<PathBuf>,
    /// Begins with what this artifact of the program has, its tile program under its schedule, and not with the plainest
    #[arg(long, value_name = "DIR", conflicts_with = "schedule")]
    seed_from: Option<PathBuf>,
    /// Every line of this word in a schedule has to say this: 'instruction=mma.m16n8k16', 'pipeline=3', 'delayed'. Kernels that cannot
    /// have such a line are not bound by it. May be given several times
    #[arg(long, value_name = "LINE", conflicts_with = "schedule")]
    pin: Vec<String>,
    /// No schedule may say this: 'cluster', 'instruction=fma'. May be given several times
    #[arg(long, value_name = "LINE", conflicts_with = "schedule")]
    forbid: Vec<String>,
    /// The log: each candidate, and each kernel alone, that is timed on the GPU is added to this SQLite database [default:
    /// tilewright/trials.sqlite in XDG_DATA_HOME or ~/.local/share]
    #[arg(long, value_name = "FILE", conflicts_with = "no_log")]
    database: Option<PathBuf>,
    /// Adds nothing to a log
    #[arg(long)]
    no_log: bool,
    /// A database of artifacts: where it has a verified one of the program and the target that is the answer, at once; else what is found is added
    /// [default: that of `tilewright db`, if there is one]
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
    /// Searches whatever the database has; what is found is added to it
    #[arg(long)]
    fresh: bool,
    /// Neither asks a database of artifacts nor adds to one
    #[arg(long, conflicts_with_all = ["db", "fresh"])]
    no_db: bool,
    /// Replaces an artifact of another program or target too. What is no artifact, or holds anything else, is never replaced
    #[arg(long)]
    force: bool,
    /// Prints one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// How many of this machine's GPUs time at most [default: all of the target's kind]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "no_gpu")]
    gpus: Option<u32>,
    /// Does not use the GPU even if there is one: what is found is simulated. Without this option a GPU that is there and cannot be
    /// used is an error, unless the target is of another kind
    #[arg(long)]
    no_gpu: bool,
}

#[derive(Args)]
struct Eval {
    /// The program, a .lax file
    program: PathBuf,
    #[command(flatten)]
    arrays: Arrays,
}

#[derive(Args)]
struct Simulate {
    /// The artifact
    artifact: PathBuf,
    #[command(flatten)]
    arrays: Arrays,
}

#[derive(Args)]
struct Arrays {
    /// An .npz file with one array for each parameter, under its name
    #[arg(long, value_name = "IN.npz")]
    inputs: PathBuf,
    /// Where to put the results: f64 arrays out0, out1, …
    #[arg(long, value_name = "OUT.npz")]
    outputs: PathBuf,
}

#[derive(Args)]
struct Show {
    /// A .lax file or an artifact
    path: PathBuf,
    /// Of an artifact: the machine program of each kernel, and nothing else
    #[arg(long, conflicts_with = "schedule")]
    machine: bool,
    /// Of an artifact: the schedule, and nothing else
    #[arg(long)]
    schedule: bool,
    /// Prints one JSON object instead of text
    #[arg(long, conflicts_with_all = ["machine", "schedule"])]
    json: bool,
}

#[derive(Args)]
struct Diff {
    /// An artifact
    before: PathBuf,
    /// Another one
    after: PathBuf,
    /// Prints one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone)]
struct OnGpu {
    /// The artifact
    artifact: PathBuf,
    /// The seed of the drawn inputs [default: another one each time, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Prints one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Explain {
    /// The artifact
    artifact: PathBuf,
    /// Measures nothing even if there is a GPU of the artifact's kind: what lines are worth is by the clock alone
    #[arg(long)]
    no_gpu: bool,
    /// The seed of the inputs that are drawn for the GPU [default: another one each time, which `--json` says]
    #[arg(long, conflicts_with = "no_gpu")]
    seed: Option<u64>,
    /// Prints one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Report {
    /// The folder of an artifact or of a campaign, or the address of a campaign's journal
    #[arg(value_name = "DIR|CAMPAIGN")]
    of: PathBuf,
    #[command(flatten)]
    place: report::Place,
}

#[derive(Args)]
struct Verify {
    #[command(flatten)]
    again: OnGpu,
    /// Derives again all that the artifact says and does again exactly what its evidence records, with its seeds; without a GPU,
    /// what needs none
    #[arg(long, conflicts_with = "seed")]
    replay: bool,
}

#[derive(Args)]
struct TrialLog {
    /// The log [default: tilewright/trials.sqlite in XDG_DATA_HOME or ~/.local/share]
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Trials of this program alone: its name, or the first digits of its hash, eight at least
    #[arg(long, value_name = "NAME|HASH")]
    program: Option<String>,
    /// On GPUs in whose name this stands, such as h200
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Of this kernel: the first digits of its hash
    #[arg(long, value_name = "HASH", value_parser = hexadecimal)]
    kernel: Option<String>,
    /// Timed no longer ago than this: 90s, 1h30m, 2d
    #[arg(long, value_name = "TIME", value_parser = budget::budget, allow_hyphen_values = true)]
    since: Option<Duration>,
    /// Of whole programs, and not of kernels alone
    #[arg(long, conflicts_with = "kernel")]
    whole: bool,
    /// The N fastest of each program and of each kernel on each GPU
    #[arg(long, value_name = "N")]
    fastest: Option<usize>,
    /// A table for people, or everything that is known of each: comma-separated values, or a line of JSON each
    #[arg(long, default_value = "table")]
    format: Format,
}

/// How trials are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Csv,
    Jsonl,
}

/// The beginning of a hash.
fn hexadecimal(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    if text.is_empty() || !text.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err("expected digits of a hash, 0 to 9 and a to f".to_owned());
    }
    Ok(text)
}

#[derive(Args)]
struct Rules {
    /// Checks the rules of a file by property tests; an unsound one is refused with a counterexample
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Prints one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Targets {
    /// Prints one JSON array instead of text
    #[arg(long)]
    json: bool,
}

/// Reads the command line, does what it says, prints the result and gives the exit code.
pub(crate) fn main() -> ExitCode {
    // A reader that has seen enough closes the pipe: no reason to fail.
    let print = |text: &str| {
        let _ = std::io::stdout().write_all(text.as_bytes());
    };
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if error.use_stderr() && std::env::args_os().any(|word| word == "--json") {
                print(&Failure::usage(&error).json());
            }
            let said = error.to_string();
            let shown = failure::without_passwords(&said);
            if said == shown {
                error.exit()
            }
            // Only what wrong usage repeats can have one.
            let _ = std::io::stderr().write_all(shown.as_bytes());
            return ExitCode::from(2);
        }
    };
    trace(&cli);
    match cli.run() {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            if cli.is_json() {
                print(&failure.json());
            } else {
                print(failure.output());
            }
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// What goes to standard error beside results: warnings; what becomes of candidates, as lines of their own; all else that is
/// logged, with times and places.
fn trace(cli: &Cli) {
    let candidates = tilewright::pipeline::report::TARGET;
    let level = |all| {
        if all {
            LevelFilter::DEBUG
        } else {
            LevelFilter::WARN
        }
    };
    let levels = Levels::new()
        .with_default(level(cli.says_all()))
        // The e-graph's library speaks of every rule in every round.
        .with_target("egg", LevelFilter::WARN)
        .with_target(candidates, LevelFilter::OFF);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let logged = if cli.says_all() {
        layer.boxed()
    } else {
        layer.without_time().with_target(false).boxed()
    };
    let said = cli.says_candidates().then(|| {
        let print = |line: &str| {
            let _ = std::io::stderr().write_all(line.as_bytes());
        };
        Lines::new(print).with_filter(Levels::new().with_target(candidates, LevelFilter::DEBUG))
    });
    tracing_subscriber::registry()
        .with(logged.with_filter(levels))
        .with(said)
        .init();
}

impl Cli {
    /// Whether it is said what becomes of each candidate.
    fn says_candidates(&self) -> bool {
        self.verbose > 0
    }

    /// Whether everything that the libraries log is said.
    fn says_all(&self) -> bool {
        self.verbose > 1
    }

    /// Whether results are JSON.
    fn is_json(&self) -> bool {
        match &self.command {
            Command::Optimize(a) => a.json,
            Command::Verify(a) => a.again.json,
            Command::Bench(a) => a.json,
            Command::Rules(a) => a.json,
            Command::Targets(a) => a.json,
            Command::Show(a) => a.json,
            Command::Diff(a) => a.json,
            Command::Explain(a) => a.json,
            Command::Campaign(a) => a.is_json(),
            Command::Db(a) => a.is_json(),
            Command::Eval(_)
            | Command::Simulate(_)
            | Command::Report(_)
            | Command::Log(_)
            | Command::Predict { .. }
            | Command::CampaignWorker(_)
            | Command::CompileWorker
            | Command::GpuWorker { .. }
            | Command::GpuReference { .. } => false,
        }
    }

    /// Does what was asked; the text is for standard output.
    fn run(&self) -> Result<String, Failure> {
        match &self.command {
            Command::Optimize(a) => optimize::optimize(a, self.says_candidates()),
            Command::Campaign(a) => campaign::campaign(a),
            Command::Db(a) => db::db(a),
            Command::CampaignWorker(a) => campaign::worker(a),
            Command::Eval(a) => arrays::eval(&a.program, &a.arrays),
            Command::Simulate(a) => arrays::simulate(&a.artifact, &a.arrays),
            Command::Show(a) if a.machine => show::machine(&a.path),
            Command::Show(a) if a.schedule => show::schedule(&a.path),
            Command::Show(a) if a.json => show::json(&a.path),
            Command::Show(a) => show::show(&a.path),
            Command::Diff(a) => diff::diff(&a.before, &a.after, a.json),
            Command::Explain(a) => explain::explain(a),
            Command::Report(a) => report::report(a),
            Command::Verify(a) if a.replay => replay::replay(&a.again),
            Command::Verify(a) => gpu::verify(&a.again),
            Command::Bench(a) => gpu::bench(a),
            Command::Rules(a) => rules::rules(a),
            Command::Targets(a) => show::targets(a.json),
            Command::Log(a) => log::log(a),
            Command::Predict { files, held_back } => trials::predict(files, *held_back),
            Command::CompileWorker => {
                tilewright::pipeline::give_way();
                device::pool::compile_worker(std::io::stdin(), std::io::stdout())
                    .map_err(|e| Failure::refused(format!("compile worker: {e}")))?;
                Ok(String::new())
            }
            Command::GpuWorker { device } => {
                tilewright::worker::gpu_worker(*device, std::io::stdin(), std::io::stdout())
                    .map_err(|e| Failure::refused(format!("gpu worker: {e}")))?;
                Ok(String::new())
            }
            Command::GpuReference { program, target } => gpu::reference(program, target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}

//! The command line of Tilewright: the only place that prints.

mod cli;

use clap::Parser;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    log(&cli);
    // A reader that has seen enough closes the pipe: no reason to fail.
    let print = |text: &str| {
        let _ = std::io::stdout().write_all(text.as_bytes());
    };
    match cli.run() {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print(failure.output());
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// What goes to standard error beside results: warnings; what becomes of candidates, as lines of their own; all else that is
/// logged, with times and places.
fn log(cli: &cli::Cli) {
    let candidates = tilewright::pipeline::report::TARGET;
    let level = |all| {
        if all {
            LevelFilter::DEBUG
        } else {
            LevelFilter::WARN
        }
    };
    let levels = Targets::new()
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
        cli::Lines::new(print)
            .with_filter(Targets::new().with_target(candidates, LevelFilter::DEBUG))
    });
    tracing_subscriber::registry()
        .with(logged.with_filter(levels))
        .with(said)
        .init();
}

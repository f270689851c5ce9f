//! The command line of Tilewright: the only place that prints.

mod cli;

use clap::Parser;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // The e-graph's library speaks of every rule in every round.
    let levels = Targets::new()
        .with_default(cli.level())
        .with_target("egg", tracing::Level::WARN);
    tracing_subscriber::registry()
        .with(lines)
        .with(levels)
        .init();
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

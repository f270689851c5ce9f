//! The command line of Tilewright: the only place that prints.

mod cli;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(cli.level())
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

//! The command line of Tilewright: the only place that prints.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}

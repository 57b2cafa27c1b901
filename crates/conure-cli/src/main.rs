//! `conure`: speech to text on the command line.

mod args;
mod commands;
mod failure;
mod inputs;
mod interrupt;
mod manifest;
mod output;
mod progress;
mod targets;
mod terminal;

use args::{Cli, Command};
use clap::{CommandFactory, FromArgMatches};
use failure::{Exit, Failure};
use std::process::ExitCode;

fn main() -> ExitCode {
    let given = args::normalise(std::env::args_os());
    let parsed = args::for_variables(Cli::command(), &given)
        .try_get_matches_from(&given)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output, mistakes to standard error. A reader that has gone is no reason to fail.
            let unread = error.print().is_err_and(|e| e.kind() != std::io::ErrorKind::BrokenPipe);
            let code =
                if unread && error.exit_code() == 0 { Exit::Failed.code().into() } else { error.exit_code() };
            if let Some(variable) = args::blamed_variable(&Cli::command(), &given, &error) {
                output::note(&format!("the value is that of the environment variable {variable}"));
            }
            return ExitCode::from(u8::try_from(code).unwrap_or(Exit::Usage.code()));
        }
    };
    let exit = run(&cli.command).unwrap_or_else(|failure| {
        failure.print();
        failure.exit()
    });
    ExitCode::from(exit.code())
}

fn run(command: &Command) -> Result<Exit, Failure> {
    let interrupt = interrupt::Interrupt::listen();
    if command.is_quiet() {
        output::be_quiet();
    }
    match command {
        Command::Transcribe(args) => return commands::transcribe::run(args, &interrupt),
        Command::Listen(args) => return commands::listen::run(args, &interrupt),
        Command::Convert(args) => commands::convert::run(args, interrupt.flag()),
        Command::Quantize(args) => commands::quantize::run(args, interrupt.flag()),
        Command::Info(args) => commands::info::run(args),
        Command::Devices(args) => commands::devices::run(args),
        Command::Vad(args) => commands::vad::run(args, &interrupt),
        Command::Cache(args) => commands::cache::run(args),
        Command::Capture(args) => commands::capture::run(args, &interrupt),
        Command::Graph(args) => commands::graph::run(args),
        Command::Bench(args) => commands::bench::run(args, &interrupt),
        Command::Profile(args) => commands::profile::run(args, &interrupt),
        Command::Chat(args) => commands::chat::run(args, &interrupt),
        Command::Generate(args) => commands::generate::run(args, &interrupt),
        Command::Tokenize(args) => commands::tokenize::run(args, &interrupt),
        Command::Perplexity(args) => commands::perplexity::run(args, &interrupt),
        Command::Completions(args) => commands::completions::run(args),
    }
    .map(|()| Exit::Success)
}

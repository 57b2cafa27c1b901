//! `conure completions`.

use crate::args::{Cli, CompletionsArgs};
use crate::failure::Failure;
use crate::output::to_stdout;
use clap::CommandFactory;

/// Prints the completion script of a shell.
///
/// # Errors
/// If standard output cannot be written.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "conure", &mut script);
    to_stdout(|out| out.write_all(&script)).map(|_| ())
}

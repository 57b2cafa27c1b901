//! `cargo xtask test`: everything that is a test, with one command.

use crate::process::{self, cargo, line, succeeds};
use crate::setup;
use anyhow::Result;
use std::process::Command;

/// Sets up, then runs documentation tests and tests; nextest runs the tests where it is installed.
///
/// # Errors
/// That tests failed.
pub fn run(args: &[String]) -> Result<()> {
    let take = |flag: &str| args.iter().any(|a| a == flag);
    let (no_setup, dry_run) = (take("--no-setup"), take("--dry-run"));
    let rest: Vec<&str> =
        args.iter().map(String::as_str).filter(|a| !matches!(*a, "--no-setup" | "--dry-run")).collect();
    let nextest = succeeds(cargo().args(["nextest", "--version"]));
    let mut commands = commands(nextest, &rest);
    if dry_run {
        for command in &commands {
            println!("{}", line(command));
        }
        return Ok(());
    }
    if !no_setup {
        // The tests that need what is missing fail and say so; the others are worth running.
        if let Err(error) = setup::run_if_needed() {
            eprintln!("warning: {error:#}");
        }
    }
    commands.iter_mut().try_for_each(process::run)
}

/// The commands in order. The runner of most tests comes last, so that its summary is the last line. With nextest every
/// test is a process of its own; documentation tests are the one kind that it cannot run.
fn commands(nextest: bool, rest: &[&str]) -> Vec<Command> {
    let command = |args: &[&str]| {
        let mut c = cargo();
        c.args(args).args(rest);
        c
    };
    match (nextest, rest.is_empty()) {
        (true, true) => vec![
            command(&["test", "--workspace", "--doc", "--quiet"]),
            command(&["nextest", "run", "--workspace", "--no-fail-fast"]),
        ],
        (true, false) => vec![command(&["nextest", "run", "--workspace", "--no-fail-fast"])],
        (false, _) => vec![command(&["test", "--workspace", "--no-fail-fast"])],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_of_most_tests_comes_last() {
        let lines = |nextest, rest: &[&str]| commands(nextest, rest).iter().map(line).collect::<Vec<_>>();
        for (nextest, rest, expected) in [
            (
                true,
                &[][..],
                &["test --workspace --doc --quiet", "nextest run --workspace --no-fail-fast"][..],
            ),
            (true, &["wer"], &["nextest run --workspace --no-fail-fast wer"]),
            (false, &[], &["test --workspace --no-fail-fast"]),
            (false, &["wer"], &["test --workspace --no-fail-fast wer"]),
        ] {
            let found = lines(nextest, rest);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (f, e) in found.iter().zip(expected) {
                assert!(f.ends_with(e), "{f} should end with {e}");
            }
        }
    }
}

//! What the tests need beyond a Rust toolchain: sox and ffmpeg, and the audio files that they make.

use crate::process::{self, succeeds};
use anyhow::{Context, Result};
use std::process::Command;

const PROGRAMS: [(&str, &str); 2] = [("sox", "--version"), ("ffmpeg", "-version")];

fn missing() -> Vec<&'static str> {
    PROGRAMS
        .iter()
        .filter(|(name, version)| !succeeds(Command::new(name).arg(version)))
        .map(|(name, _)| *name)
        .collect()
}

/// Installs what is missing, and makes the audio files of the tests unless they are there.
///
/// # Errors
/// What could not be installed or made, and what to do by hand.
pub fn run_if_needed() -> Result<()> {
    install()?;
    let script = crate::root().join("scripts/make_audio_matrix.sh");
    process::run(Command::new("bash").arg(script)).context("the audio files of the tests cannot be made")
}

/// Installs sox and ffmpeg with apt-get, as root or through a sudo that asks nothing.
fn install() -> Result<()> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let advice = || format!("the tests need {}: install it and start again", missing.join(" and "));
    let apt = |args: &[&str]| -> Command {
        if is_root() {
            let mut c = Command::new("apt-get");
            c.args(args).env("DEBIAN_FRONTEND", "noninteractive");
            return c;
        }
        let mut c = Command::new("sudo");
        c.args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(args);
        c
    };
    process::run(&mut apt(&["update", "-qq"])).with_context(advice)?;
    process::run(apt(&["install", "-y", "-qq", "--no-install-recommends"]).args(&missing))
        .with_context(advice)
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

/// `cargo xtask setup`.
///
/// # Errors
/// As [`run_if_needed`].
pub fn run() -> Result<()> {
    run_if_needed()?;
    println!("sox and ffmpeg are there, and so are the audio files");
    Ok(())
}

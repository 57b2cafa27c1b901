//! What the tests need beyond a Rust toolchain: sox and ffmpeg, the audio files that they make, OpenVINO, and Silero VAD's
//! weights.

use crate::process::{self, succeeds};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// The release of OpenVINO that the tests run on.
const OPENVINO: &str = "openvino==2026.4.1";
/// Where it goes; `.cargo/config.toml` tells the tests.
const OPENVINO_ENVIRONMENT: &str = "target/venv-openvino";

/// The package whose weights the tests of speech detection convert, where it goes, and the file that is wanted of it.
const SILERO: &str = "silero-vad==6.2.3";
const SILERO_FOLDER: &str = "target/silero-vad";
const SILERO_WEIGHTS: &str = "silero_vad/data/silero_vad_16k_op15.onnx";

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
    // Each is worth having without the others.
    let openvino = openvino();
    let silero = silero();
    install()?;
    let script = crate::root().join("scripts/make_audio_matrix.sh");
    process::run(Command::new("bash").arg(script)).context("the audio files of the tests cannot be made")?;
    openvino.and(silero)
}

/// Unpacks Silero VAD's package unless it is there, without what its own code needs: only its weights are used. The Python
/// is that of OpenVINO's environment.
fn silero() -> Result<()> {
    let folder = crate::root().join(SILERO_FOLDER);
    if folder.join(SILERO_WEIGHTS).exists() {
        return Ok(());
    }
    let python = python();
    let advice = || {
        format!(
            "the tests of speech detection need {SILERO_FOLDER}: pip install --no-deps --target {SILERO_FOLDER} {SILERO}"
        )
    };
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"];
    process::run(Command::new(python).args(pip).arg(folder).arg(SILERO)).with_context(advice)
}

/// The Python of OpenVINO's environment.
fn python() -> PathBuf {
    let program = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python3" };
    crate::root().join(OPENVINO_ENVIRONMENT).join(program)
}

/// Installs OpenVINO's package into an environment of its own unless it is there. Only its libraries are used, so what it
/// needs in Python is left out.
fn openvino() -> Result<()> {
    let environment = crate::root().join(OPENVINO_ENVIRONMENT);
    let python = python();
    let (name, version) = OPENVINO.split_once("==").unwrap_or((OPENVINO, ""));
    let installed = format!("import importlib.metadata as m; assert m.version('{name}') == '{version}'");
    if succeeds(Command::new(&python).args(["-c", &installed])) {
        return Ok(());
    }
    let advice = || {
        format!(
            "the tests of OpenVINO need it in {OPENVINO_ENVIRONMENT}: \
             python3 -m venv {OPENVINO_ENVIRONMENT} && {OPENVINO_ENVIRONMENT}/bin/pip install --no-deps {OPENVINO}"
        )
    };
    let make = || {
        let mut c = Command::new("python3");
        c.args(["-m", "venv"]).arg(&environment);
        c
    };
    if !succeeds(Command::new(&python).args(["-m", "pip", "--version"])) && process::run(&mut make()).is_err()
    {
        // Debian keeps the module apart.
        apt_install(&["python3-venv"]).with_context(advice)?;
        process::run(&mut make()).with_context(advice)?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", OPENVINO];
    process::run(Command::new(&python).args(pip)).with_context(advice)
}

fn apt(args: &[&str]) -> Command {
    if is_root() {
        let mut c = Command::new("apt-get");
        c.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        return c;
    }
    let mut c = Command::new("sudo");
    c.args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(args);
    c
}

/// Installs sox and ffmpeg with apt-get, as root or through a sudo that asks nothing.
fn install() -> Result<()> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let advice = || format!("the tests need {}: install it and start again", missing.join(" and "));
    apt_install(&missing).with_context(advice)
}

/// Installs Debian's packages, as root or through a sudo that asks nothing.
///
/// # Errors
/// That this failed, or that there is no apt-get.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    process::run(&mut apt(&["update", "-qq"]))?;
    process::run(apt(&["install", "-y", "-qq", "--no-install-recommends"]).args(packages))
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
    println!("sox, ffmpeg, the audio files, OpenVINO and Silero VAD's weights are there");
    Ok(())
}

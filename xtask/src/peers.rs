//! `cargo xtask peers`: the encoder's time beside onnxruntime and OpenVINO, in one table from one run in which all take turns.

use crate::process::{self, cargo, succeeds};
use crate::{random_model, root};
use anyhow::{Context, Result};
use std::process::Command;

/// What the script needs, as it was measured with.
const PACKAGES: [&str; 4] = ["numpy==2.4.6", "onnx==1.23.2", "onnxruntime==1.32.0", "openvino==2026.4.1"];

/// Runs `peers [--rounds N] [--budget SECONDS] [--threads N...] [--seconds S...] [-- MODEL.gguf...]`. The models are further
/// ones for Conure, the same encoder in other element types.
///
/// # Errors
/// Python or its packages that cannot be had; a build or a measurement that fails.
pub fn run(args: &[String]) -> Result<()> {
    let work = root().join("target/peers");
    std::fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let python = work.join("venv/bin/python");
    let imports = "import numpy, onnx, onnxruntime, openvino";
    if !succeeds(Command::new(&python).args(["-c", imports])) {
        let advice = "the peers need Python 3.10 or later with venv, and PyPI";
        let venv = work.join("venv");
        process::run(Command::new("python3").args(["-m", "venv"]).arg(venv)).context(advice)?;
        let pip = ["-m", "pip", "install", "--quiet"];
        process::run(Command::new(&python).args(pip).args(PACKAGES)).context(advice)?;
    }
    let model = work.join("random-110m.f32.gguf");
    if !model.exists() {
        random_model::run(&["110m".into(), model.display().to_string()])?;
    }
    process::run(cargo().args(["build", "--release", "-p", "conure", "--example", "encoder_speed"]))?;
    let (options, models) = match args.iter().position(|a| a == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[][..]),
    };
    let mut script = Command::new(&python);
    script.arg(root().join("scripts/peers.py"));
    // The peers' own OpenVINO, so that both are the same build; models are compiled anew, as its reader's are.
    script.env("CONURE_OPENVINO_DIR", work.join("venv"));
    script.env("CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR", "off");
    script.arg("--conure").arg(root().join("target/release/examples/encoder_speed"));
    script.arg("--work").arg(&work).args(options).arg("--").arg(&model).args(models);
    process::run(&mut script)
}

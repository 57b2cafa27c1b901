//! `cargo xtask peers`: the encoder's time beside onnxruntime and OpenVINO, in one table from one run in which all take turns;
//! with `--llm`, that of a language model beside llama.cpp and OpenVINO's own reader of GGUF.

use crate::process::{self, cargo, succeeds};
use crate::{random_model, root};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the script needs, as it was measured with.
const PACKAGES: [&str; 4] = ["numpy==2.4.6", "onnx==1.23.2", "onnxruntime==1.32.0", "openvino==2026.4.1"];

/// What the script for language models needs. llama.cpp is built for this machine, which takes some minutes.
const LANGUAGE_PACKAGES: [&str; 3] = ["numpy==2.4.6", "openvino==2026.4.1", "llama-cpp-python==0.3.36"];

/// Runs `peers --llm [--rounds N] [--threads N] [--prompt N] [--tokens N] [-- MODEL.gguf]`. The model is Gemma 3 270M in Q4_K_M
/// unless another is named.
fn language(args: &[String]) -> Result<()> {
    let work = work()?;
    let venv = work.join("venv-llm");
    let python = install(&venv, "import numpy, openvino, llama_cpp", &LANGUAGE_PACKAGES)?;
    let (options, model) = match args.iter().position(|a| a == "--") {
        Some(at) => (&args[..at], args.get(at + 1)),
        None => (args, None),
    };
    let model = match model {
        Some(model) => model.into(),
        None => {
            process::run(Command::new("sh").arg(root().join("scripts/get_gemma3.sh")))?;
            root().join("target/gemma3/gemma-3-270m-q4_k_m.gguf")
        }
    };
    process::run(cargo().args(["build", "--release", "-p", "conure", "--example", "language_speed"]))?;
    let mut script = Command::new(&python);
    script.arg(root().join("scripts/peers_llm.py"));
    script.env("CONURE_OPENVINO_DIR", &venv).env("CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR", "off");
    script.arg("--conure").arg(root().join("target/release/examples/language_speed"));
    script.arg("--work").arg(&work).args(options).arg("--").arg(&model);
    process::run(&mut script)
}

/// The folder for environments, models and results.
fn work() -> Result<PathBuf> {
    let work = root().join("target/peers");
    std::fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    Ok(work)
}

/// The Python of an environment in which `imports` work: made, with `packages` from PyPI, where they do not.
fn install(venv: &Path, imports: &str, packages: &[&str]) -> Result<PathBuf> {
    let python = venv.join("bin/python");
    if !succeeds(Command::new(&python).args(["-c", imports])) {
        let advice = "the peers need Python 3.10 or later with venv, and PyPI";
        process::run(Command::new("python3").args(["-m", "venv"]).arg(venv)).context(advice)?;
        let pip = ["-m", "pip", "install", "--quiet"];
        process::run(Command::new(&python).args(pip).args(packages)).context(advice)?;
    }
    Ok(python)
}

/// Runs `peers --llm ...`, see [`language`], or `peers [--geometry 110m|0.6b] [--rounds N] [--budget SECONDS] [--threads N...]
/// [--seconds S...] [--cpu-only] [-- MODEL.gguf...]`. The models are further ones for Conure, the same encoder in other
/// element types.
///
/// # Errors
/// Python or its packages that cannot be had; a build or a measurement that fails.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(("--llm", rest)) = args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return language(rest);
    }
    let work = work()?;
    let python = install(&work.join("venv"), "import numpy, onnx, onnxruntime, openvino", &PACKAGES)?;
    let (geometry, args) = match args {
        [option, geometry, rest @ ..] if option == "--geometry" => (geometry.as_str(), rest),
        _ => ("110m", args),
    };
    let model = work.join(format!("random-{geometry}.f32.gguf"));
    if !model.exists() {
        random_model::run(&[geometry.into(), model.display().to_string()])?;
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

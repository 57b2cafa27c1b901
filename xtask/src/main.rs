//! Tasks of this repository: `cargo xtask COMMAND`. `cargo xtask` alone lists them.

// A task talks to the one who started it: it is a program that prints, and nothing else uses it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod arm;
mod budget;
mod deps;
mod embed;
mod live;
mod long;
mod peers;
mod process;
mod random_model;
mod setup;
mod test;
mod wer;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Tasks of this repository.

Usage: cargo xtask COMMAND

  test [--no-setup] [--dry-run] [ARGS...]
            set up what the tests need, then run all of them; ARGS go to the test runner (a name runs those tests)
  setup     install sox and ffmpeg, which make the audio test files, where they are missing and that is possible
  arm [ARGS...]
            the Arm build's kernels on every conformance case, in QEMU's emulation; installs it and a linker where they are
            missing and that is possible; ARGS go to the tests
  deps      check that every crate uses only crates above it in the table of ARCHITECTURE.md
  budget    list files over 500 lines without their tests (an error) and functions over 60 lines (a note)
  embed MODEL.nemo
            make the GGUF file of the embedded model again, with its sources
  random-model 110m|0.6b|tiny|step OUT.gguf
            write a model of a real size with random weights, for measuring time and memory
  peers [--geometry 110m|0.6b] [OPTIONS] [-- MODEL.gguf...]
            time of an encoder (110m) with random weights beside onnxruntime and OpenVINO, which are installed into target/;
            MODELs are the same encoder in other element types; OPTIONS are those of scripts/peers.py
  peers --llm [OPTIONS] [-- MODEL.gguf]
            reading a prompt and decoding with Gemma 3 270M, or MODEL, beside llama.cpp and OpenVINO, which are installed into
            target/; OPTIONS are those of scripts/peers_llm.py
  wer [--release] [--program CONURE] [--device NAME] [--calibrate half|all] [MODEL.gguf]
            word error rates on the clips of tests/data/audio: a table by set, head and element type, and what each type
            changes against f32
  long [--minutes N] [--model MODEL.gguf] [--program CONURE] [--stream] [-- OPTIONS...]
            two hours made of the clips of tests/data/audio with pauses between, transcribed as one recording: what is lost,
            doubled or misheard against the clips alone, memory and speed against ten minutes; OPTIONS go to
            `conure transcribe` of a release build, or of CONURE; with --stream, what ten minutes of its stream cost in memory
            and time at the beginning and at the end
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", args),
    };
    let none = |rest: &[String]| match rest.first() {
        Some(extra) => bail!("`cargo xtask {command}` takes no arguments, got `{extra}`"),
        None => Ok(()),
    };
    match command {
        "test" => test::run(rest),
        "arm" => arm::run(rest),
        "setup" => none(rest).and_then(|()| setup::run()),
        "deps" => none(rest).and_then(|()| deps::run()),
        "budget" => none(rest).and_then(|()| budget::run()),
        "embed" => embed::run(rest),
        "random-model" => random_model::run(rest),
        "peers" => peers::run(rest),
        "wer" => wer::run(rest),
        "long" => long::run(rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => bail!("there is no task `{other}`; `cargo xtask` lists them"),
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

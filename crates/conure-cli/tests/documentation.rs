//! Every command that README and guides show is run, and every file that they point to is there.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{nemo_text, root, speech};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What stands for cargo while commands of the documentation run: building in release mode, installing and running all
/// tests from within a test would take long, so that the program built for this test stands for the one that would be
/// built, and `cargo xtask test` only says what it would run.
const CARGO: &str = r#"#!/usr/bin/env bash
set -eu
case "$*" in
  "run --release -- "*) shift 3; exec conure "$@" ;;
  "install --path "*) grep -q '^name = "conure"$' "$REPOSITORY/$3/Cargo.toml" ;;
  "xtask test"*) cd "$REPOSITORY"; exec "$REAL_CARGO" "$@" --dry-run ;;
  *) echo "nothing in crates/conure-cli/tests/documentation.rs stands for: cargo $*" >&2; exit 1 ;;
esac
"#;

/// README, ARCHITECTURE and the guides.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut documents = vec![root.join("README.md"), root.join("ARCHITECTURE.md"), root.join("CHANGELOG.md")];
    let guides = std::fs::read_dir(root.join("docs")).unwrap();
    documents.extend(guides.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "md")));
    documents.sort();
    documents
}

/// The blocks fenced as `sh`.
fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "```sh" {
            let block: Vec<&str> = lines.by_ref().take_while(|l| l.trim() != "```").collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

/// A folder with the files that the commands name.
fn sandbox() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let oracle = root().join("tests/data/oracle");
    std::fs::create_dir_all(at("bin")).unwrap();
    std::fs::create_dir_all(at("samples")).unwrap();
    for name in ["samples/speech.wav", "speech.wav", "talk.wav"] {
        std::fs::copy(speech(), at(name)).unwrap();
    }
    std::fs::copy(oracle.join("hybrid_tdt80.nemo"), at("model.nemo")).unwrap();
    std::fs::copy(oracle.join("hybrid_tdt80.gguf"), at("model.gguf")).unwrap();
    std::fs::copy(oracle.join("stream_eou128.gguf"), at("realtime.gguf")).unwrap();
    std::os::unix::fs::symlink(oracle.join("hf-tdt"), at("hf-model")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_conure"), at("bin/conure")).unwrap();
    // `cargo xtask setup` fetches it.
    let silero = "silero_vad_16k_op15.onnx";
    std::os::unix::fs::symlink(root().join("target/silero-vad/silero_vad/data").join(silero), at(silero))
        .unwrap();
    std::fs::write(at("prompt.txt"), "The old man").unwrap();
    std::fs::write(at("book.txt"), "The sea was calm, and the old man rowed home.\n".repeat(20)).unwrap();
    let gemma = root().join("tests/data/language/hf-gemma3");
    let gemma = [gemma.to_str().unwrap(), at("gemma.gguf").to_str().unwrap()].map(str::to_owned);
    let converted = common::conure_with(["convert", &gemma[0], &gemma[1], "--quiet"]);
    assert_eq!(converted.code, Some(0), "{}", converted.stderr);
    std::fs::write(at("bin/cargo"), CARGO).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(at("bin/cargo"), executable).unwrap();
    dir
}

fn bash(block: &str, dir: &Path) -> std::process::Output {
    let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap());
    Command::new("bash")
        .args(["-euo", "pipefail", "-c", block])
        .current_dir(dir)
        .env("PATH", path)
        .env("REPOSITORY", root())
        .env("CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR", dir.join("compiled"))
        .env("REAL_CARGO", std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .output()
        .unwrap()
}

#[test]
fn every_command_shown_runs() {
    let mut count = 0;
    for document in documents() {
        let dir = sandbox();
        for block in blocks(&std::fs::read_to_string(&document).unwrap()) {
            let output = bash(&block, dir.path());
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}:\n{block}\n{stderr}", document.display());
            count += 1;
        }
    }
    assert!(count >= 15, "only {count} blocks found");
}

#[test]
fn the_first_command_transcribes() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let first = blocks(&readme).into_iter().find(|b| b.contains("cargo run")).unwrap();
    let output = bash(&first, sandbox().path());
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", nemo_text("tdt")));
}

#[test]
fn a_command_that_fails_would_be_noticed() {
    let dir = sandbox();
    for block in
        ["conure transcribe nothing-here.wav", "cargo build", "conure info | false", "no-such-program"]
    {
        assert!(!bash(block, dir.path()).status.success(), "{block}");
    }
}

#[test]
fn every_file_pointed_to_is_there() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|t| !t.contains("://")) {
            let path = document.parent().unwrap().join(target.split('#').next().unwrap());
            assert!(path.exists(), "{} points to {target}", document.display());
        }
        // Files named in the text: `crates/...`, `docs/...` with an extension, without placeholders.
        let named = text.split('`').skip(1).step_by(2).filter(|n| {
            ["crates/", "docs/", "scripts/", "tests/", "xtask/", "samples/"].iter().any(|p| n.starts_with(p))
                && !n.contains(['X', '*', ' '])
        });
        for name in named {
            assert!(root().join(name).exists(), "{} names {name}", document.display());
        }
    }
}

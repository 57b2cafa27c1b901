//! What the tests of the program share.
#![allow(dead_code, clippy::unwrap_used)]

use assert_cmd::Command;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The clip of the README, 7.4 s.
pub fn speech() -> PathBuf {
    root().join("samples/speech.wav")
}

/// The program, in an environment without options of its own.
pub fn conure() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conure"));
    for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("CONURE_") || n.starts_with("PARAKEET_"))
    {
        command.env_remove(name);
    }
    command.timeout(std::time::Duration::from_secs(120));
    command
}

/// What a run printed, and how it ended.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs it to its end.
pub fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs `conure` with these arguments.
pub fn conure_with<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    run(conure().args(args))
}

/// What NeMo makes of the clip of the README with the embedded model and this head.
pub fn nemo_text(head: &str) -> String {
    let path = root().join("tests/data/audio/nemo_hypotheses.json");
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    json["files"]["real/librispeech_speech.wav"][head]["text"].as_str().unwrap().to_owned()
}

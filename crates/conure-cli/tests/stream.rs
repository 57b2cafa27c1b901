//! `conure transcribe --stream`: words from a pipe before it ends, as JSON lines and as text.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{conure, root, run, speech};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};

/// A streaming model with random weights: what it says is nonsense, but always the same.
fn model() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stream.gguf");
    let nemo = root().join("tests/data/oracle/stream_eou128.nemo");
    let ran = run(conure().args(["convert", "-q"]).arg(nemo).arg(&path));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    (folder, path)
}

/// The program with `args`, its input given `samples` and left open.
fn heard(args: &[&str], model: &Path, samples: &[u8]) -> (Child, ChildStdin) {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_conure"))
        .args(args)
        .arg("-m")
        .arg(model)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(samples).unwrap();
    stdin.flush().unwrap();
    (child, stdin)
}

#[test]
fn words_come_as_json_lines() {
    let (_folder, model) = model();
    let ran = run(conure().args(["transcribe", "--stream", "-m"]).arg(&model).arg(speech()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let events: Vec<Value> =
        ran.stdout.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
    let words: Vec<&Value> = events
        .iter()
        .filter(|e| e["event"] == "words")
        .flat_map(|e| e["words"].as_array().unwrap())
        .collect();
    assert!(words.len() > 5, "{}", ran.stdout);
    let starts: Vec<f64> = words.iter().map(|w| w["start"].as_f64().unwrap()).collect();
    assert!(starts.is_sorted() && starts.iter().all(|s| *s < 7.5), "{starts:?}");
    assert!(events.iter().any(|e| e["event"] == "partial"));
    assert!(ran.stderr.contains("times as fast as speech"), "{}", ran.stderr);

    let text = run(conure()
        .args(["transcribe", "--stream", "--no-timestamps", "-q", "-m"])
        .arg(&model)
        .arg(speech()));
    let joined: Vec<&str> = words.iter().map(|w| w["word"].as_str().unwrap()).collect();
    assert_eq!(text.stdout.split_whitespace().collect::<Vec<_>>(), joined);
    assert_eq!(text.stderr, "");
}

/// A model for whole recordings hears the last seconds again: words that may change are told as such, and those that are told as
/// complete are the text.
#[test]
fn a_model_for_recordings_streams_too() {
    let stream = |args: &[&str]| {
        let ran = run(conure().args(["transcribe", "--stream"]).args(args).arg(speech()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran
    };
    let ran = stream(&["--window", "10"]);
    let events: Vec<Value> = ran.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |kind: &str| -> Vec<Vec<Value>> {
        let wanted = events.iter().filter(|e| e["event"] == kind);
        wanted.map(|e| e["words"].as_array().unwrap().clone()).collect()
    };
    assert!(of("partial").iter().any(|words| words.len() > 1) && of("words").len() > 2, "{}", ran.stdout);
    let words: Vec<String> =
        of("words").concat().iter().map(|w| w["word"].as_str().unwrap().to_owned()).collect();
    let text = stream(&["--window", "10", "-q", "--no-timestamps"]);
    assert_eq!(text.stdout.split_whitespace().collect::<Vec<_>>(), words);
    assert!(text.stdout.contains("don't wish to see it"), "{}", text.stdout);
    assert!(ran.stderr.contains("times as fast as speech; words come up to"), "{}", ran.stderr);
}

#[test]
fn a_pipe_is_heard_before_it_ends() {
    let (_folder, model) = model();
    let samples = &std::fs::read(speech()).unwrap()[44..];
    let (mut child, stdin) =
        heard(&["transcribe", "--stream", "-q", "--raw", "s16le:16000:1", "-"], &model, samples);
    // The pipe stays open: what comes now was said without its end.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(["words", "partial"].contains(&first["event"].as_str().unwrap()), "{first}");
    drop(stdin);
    assert!(lines.map(Result::unwrap).count() > 3);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Ctrl-C ends a stream as its end does: the last words and the summary are told.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_stream_with_its_last_words() {
    let (folder, model) = model();
    let samples = &std::fs::read(speech()).unwrap()[44..];
    let clip = folder.path().join("clip.raw");
    std::fs::write(&clip, samples).unwrap();
    let raw = ["transcribe", "--stream", "--no-timestamps", "--raw", "s16le:16000:1"];
    let whole = run(conure().args(raw).arg(&clip).arg("-m").arg(&model));

    let (mut child, _stdin) = heard(&[&raw[..], &["-"]].concat(), &model, samples);
    let mut out = child.stdout.take().unwrap();
    let mut text = vec![0; 1];
    out.read_exact(&mut text).unwrap();
    // What the pipe holds is taken by then.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    out.read_to_end(&mut text).unwrap();
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{told}");
    assert!(told.contains("7.43 s of audio"), "{told}");
    assert_eq!(String::from_utf8(text).unwrap(), whole.stdout);
}

#[test]
fn what_cannot_stream_is_said_before_the_first_sound() {
    let ran = run(conure().args(["transcribe", "--stream", "-q", "--look-ahead", "1"]).arg(speech()));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("cannot be had of this model's streams"), "{}", ran.stderr);
    let two = run(conure().args(["transcribe", "--stream"]).args([speech(), speech()]));
    assert!(two.code == Some(2) && two.stderr.contains("--stream hears one input"), "{}", two.stderr);
    let alone = run(conure().args(["transcribe", "--look-ahead", "1"]).arg(speech()));
    assert_eq!(alone.code, Some(2), "{}", alone.stderr);
}

/// A file played into what stands for a microphone says what the file says; played as fast as it was spoken, it takes its
/// time, and how late the words came is told.
#[test]
fn a_played_file_is_heard_like_a_microphone() {
    let (folder, model) = model();
    let clip = folder.path().join("clip.wav");
    let wav = std::fs::read(speech()).unwrap();
    std::fs::write(&clip, &wav[..44 + 2 * 16_000]).unwrap();
    let listen =
        |args: &[&str]| run(conure().args(["listen", "-m"]).arg(&model).arg("--input").arg(&clip).args(args));
    let fast = listen(&["--pace", "fast", "--output-format", "txt"]);
    assert_eq!(fast.code, Some(0), "{}", fast.stderr);
    assert!(
        fast.stderr.contains("listening to") && fast.stderr.contains("words come up to"),
        "{}",
        fast.stderr
    );
    let stream =
        run(conure().args(["transcribe", "--stream", "--no-timestamps", "-q", "-m"]).arg(&model).arg(&clip));
    assert!(stream.stdout.split_whitespace().count() > 2, "{}", stream.stdout);
    assert_eq!(fast.stdout, stream.stdout);
    let begun = std::time::Instant::now();
    let real = listen(&["--duration", "0.5"]);
    assert_eq!(real.code, Some(0), "{}", real.stderr);
    assert!(begun.elapsed().as_secs_f64() >= 0.5);
    let events: Vec<Value> = real.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(events.iter().any(|e| e["event"] == "words"), "{}", real.stdout);
    assert!(real.stderr.contains("s after they were spoken, at most"), "{}", real.stderr);
    assert!(real.stderr.contains("the first was shown"), "{}", real.stderr);
}

/// Something that records as `arecord` does stands for it; one that fails is told of, and so is that there is none.
#[cfg(unix)]
#[test]
fn a_recorder_is_heard() {
    let (folder, model) = model();
    let wav = std::fs::read(speech()).unwrap();
    std::fs::write(folder.path().join("raw"), &wav[44..44 + 2 * 16_000]).unwrap();
    let script = folder.path().join("arecord");
    let listen = |body: &str| {
        std::fs::write(&script, format!("#!/bin/sh\n{body}\n")).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, executable).unwrap();
        run(conure()
            .current_dir(folder.path())
            .env("PATH", format!("{}:/bin:/usr/bin", folder.path().display()))
            .args(["listen", "--output-format", "txt", "-m"])
            .arg(&model))
    };
    let heard = listen("[ \"$*\" = \"-q -f S16_LE -r 16000 -c 1 -t raw\" ] && exec cat raw");
    assert_eq!(heard.code, Some(0), "{}", heard.stderr);
    assert!(heard.stderr.contains("listening to the microphone"), "{}", heard.stderr);
    let clip = folder.path().join("clip.wav");
    std::fs::write(&clip, &wav[..44 + 2 * 16_000]).unwrap();
    let stream =
        run(conure().args(["transcribe", "--stream", "--no-timestamps", "-q", "-m"]).arg(&model).arg(&clip));
    assert_eq!(heard.stdout, stream.stdout);
    let failed = listen("exit 3");
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), ""), "{}", failed.stderr);
    assert!(failed.stderr.contains("arecord ended"), "{}", failed.stderr);
    let mut nowhere = conure();
    nowhere.env("PATH", "/nowhere").args(["listen", "-m"]).arg(&model);
    let none = run(&mut nowhere);
    assert!(none.code == Some(1) && none.stderr.contains("none of these recorders"), "{}", none.stderr);
}

//! `conure transcribe` of folders, manifests and many files: order, resuming, faults, and how it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Ran, conure, nemo_text, root, run, speech};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Clips of one to four words from the clip of the README, as WAV files of these names in a folder.
fn clips(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let wav = std::fs::read(speech()).unwrap();
    for (i, name) in names.iter().enumerate() {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, part(&wav, 1000 * (i % 3), 1000 * (i % 3) + 1500 + 600 * (i % 4))).unwrap();
    }
    dir
}

/// Milliseconds of a 16 kHz mono WAV file.
fn part(wav: &[u8], from: usize, to: usize) -> Vec<u8> {
    let data = &wav[44 + from * 32..44 + to * 32];
    let mut part = wav[..44].to_vec();
    part[4..8].copy_from_slice(&(36 + data.len() as u32).to_le_bytes());
    part[40..44].copy_from_slice(&(data.len() as u32).to_le_bytes());
    part.extend_from_slice(data);
    part
}

/// All files under a folder, by their paths in it.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path();
                found.insert(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

fn transcribe(args: &[&str], paths: &[&Path]) -> Ran {
    run(conure().arg("transcribe").args(args).args(paths))
}

fn text_of(path: &Path) -> String {
    let ran = transcribe(&["-q"], &[path]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

#[test]
fn a_folder_becomes_a_folder_and_a_stopped_run_goes_on() {
    let names = ["a.wav", "deep/ü b/c.wav", "deep/a.wav", "z.wav"];
    let dir = clips(&names);
    std::fs::write(dir.path().join("deep/notes.txt"), "no sound").unwrap();
    let out = dir.path().join("out");
    let go = |more: &[&str]| {
        let args = ["--recursive", "--output-format", "txt,json", "--output-dir", out.to_str().unwrap()];
        transcribe(&[&args, more].concat(), &[dir.path()])
    };
    let ran = go(&[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("4 of 4 files transcribed, 0 failed: 0."), "{}", ran.stderr);
    let expected: BTreeSet<String> = names
        .iter()
        .flat_map(|n| ["txt", "json"].map(|e| format!("{}.{e}", n.strip_suffix(".wav").unwrap())))
        .collect();
    assert_eq!(files(&out), expected);
    // Each is what it is alone, times included.
    for name in names {
        let alone = transcribe(&["-q", "--output-format", "json"], &[&dir.path().join(name)]);
        let stem = name.strip_suffix(".wav").unwrap();
        assert_eq!(
            std::fs::read_to_string(out.join(format!("{stem}.json"))).unwrap(),
            alone.stdout,
            "{name}"
        );
    }
    // What is whole is passed over, what is missing or was cut off is made.
    std::fs::write(out.join("z.txt"), "kept").unwrap();
    std::fs::remove_file(out.join("deep/a.txt")).unwrap();
    std::fs::write(out.join("deep/ü b/c.json"), "{\"text\": \"ha").unwrap();
    let ran = go(&["--resume"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("2 of 4 files transcribed, 2 done before, 0 failed"), "{}", ran.stderr);
    assert_eq!(files(&out), expected);
    assert_eq!(std::fs::read_to_string(out.join("z.txt")).unwrap(), "kept");
    let again: Value = serde_json::from_slice(&std::fs::read(out.join("deep/ü b/c.json")).unwrap()).unwrap();
    assert!(again["text"].is_string());
    let ran = go(&["--resume", "-q"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}

#[test]
fn output_is_in_the_order_asked_for_and_a_fault_stops_nothing() {
    let dir = clips(&["1.wav", "2.wav", "3.wav", "4.wav", "5.wav"]);
    let at = |name: &str| dir.path().join(name);
    let texts: Vec<String> = (1..=5).map(|i| text_of(&at(&format!("{i}.wav")))).collect();
    assert!(texts.iter().collect::<BTreeSet<_>>().len() > 3, "{texts:?}");
    std::fs::write(at("bad.wav"), "These are words, not sound.").unwrap();
    let order = ["5.wav", "bad.wav", "1.wav", "gone.wav", "4.wav", "2.wav", "3.wav"].map(at);
    let paths: Vec<&Path> = order.iter().map(PathBuf::as_path).collect();
    let ran = transcribe(&[], &paths);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stdout, [4, 0, 3, 1, 2].map(|i| texts[i].as_str()).concat());
    for part in [
        "error: cannot transcribe ",
        "5 of 7 files transcribed, 2 failed: 0.",
        "times as fast as speech",
        "warning: 2 of 7 files failed:",
        "bad.wav: this is a text file",
        "gone.wav: cannot open",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    // The first of many may be a pipe.
    let wav = std::fs::read(at("2.wav")).unwrap();
    let mut command = conure();
    command.args(["transcribe", "-q", "-"]).arg(at("1.wav")).write_stdin(wav);
    let ran = run(&mut command);
    assert_eq!((ran.code, ran.stdout), (Some(0), format!("{}{}", texts[1], texts[0])), "{}", ran.stderr);
}

#[test]
fn names_that_clash_are_found_before_the_work() {
    let dir = clips(&["x/a.wav", "y/a.wav", "y/b.wav"]);
    let at = |name: &str| dir.path().join(name);
    let out = at("out");
    let args = ["-r", "-m", "not-there.gguf", "--output-dir", out.to_str().unwrap()];
    let ran = transcribe(&args, &[&at("x"), &at("y")]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("would be written to the same file"), "{}", ran.stderr);
    assert!(!out.exists());
    let ran = transcribe(&["-r", "--output-format", "srt"], &[&at("y")]);
    assert!(ran.code == Some(2) && ran.stderr.contains("srt holds one transcript"), "{}", ran.stderr);
    // Without the option a folder is no input, and what to do is said.
    let ran = transcribe(&[], &[&at("y")]);
    assert!(ran.code == Some(1) && ran.stderr.contains("--recursive"), "{}", ran.stderr);
    std::fs::create_dir(at("empty")).unwrap();
    let ran = transcribe(&["-r"], &[&at("empty")]);
    assert!(ran.code == Some(1) && ran.stderr.contains("nothing to transcribe in"), "{}", ran.stderr);
}

#[test]
fn a_manifest_is_answered_line_by_line() {
    let dir = clips(&["in/1.wav", "in/2.wav"]);
    let at = |name: &str| dir.path().join(name);
    std::fs::copy(speech(), at("in/speech.wav")).unwrap();
    let lines = [
        json!({"audio_filepath": "speech.wav", "duration": 7.435, "text": "x", "speaker": 3}),
        json!({"audio_filepath": "gone.wav", "duration": 1}),
        json!({"audio_filepath": at("in/2.wav"), "text": ""}),
        json!({"audio_filepath": "speech.wav", "offset": 2.0, "duration": 3.0}),
        json!({"audio_filepath": "1.wav"}),
    ];
    let manifest = lines.iter().map(|l| format!("{l}\n")).collect::<String>();
    std::fs::write(at("in/list.jsonl"), &manifest).unwrap();
    let ran = transcribe(&["-q", "--manifest", at("in/list.jsonl").to_str().unwrap()], &[]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let answers: Vec<Value> = ran.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), 5, "{}", ran.stdout);
    for (answer, line) in answers.iter().zip(&lines) {
        assert!(line.as_object().unwrap().iter().all(|(key, value)| answer[key] == *value), "{answer}");
        assert_ne!(answer["pred_text"].is_string(), answer["error"].is_string(), "{answer}");
    }
    assert_eq!(answers[0]["pred_text"], nemo_text("tdt"));
    assert!(answers[1]["error"].as_str().unwrap().contains("cannot open"), "{}", answers[1]);
    let cut = transcribe(&["-q", "--start", "2", "--duration", "3"], &[&speech()]);
    assert_eq!(format!("{}\n", answers[3]["pred_text"].as_str().unwrap()), cut.stdout);
    assert_eq!(format!("{}\n", answers[4]["pred_text"].as_str().unwrap()), text_of(&at("in/1.wav")));

    // Through a pipe, to a file, paths from here; with times of words; taken up again.
    let heard = at("heard.jsonl");
    let args = ["-q", "--word-timestamps", "--manifest", "-", "--output-manifest", heard.to_str().unwrap()];
    let go = |more: &[&str]| {
        run(conure()
            .arg("transcribe")
            .args(args)
            .args(more)
            .current_dir(at("in"))
            .write_stdin(manifest.clone()))
    };
    assert_eq!(go(&[]).code, Some(1));
    let written = std::fs::read_to_string(&heard).unwrap();
    let texts: Vec<Value> = written.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(texts.iter().zip(&answers).all(|(a, b)| a["pred_text"] == b["pred_text"]), "{written}");
    let words = texts[3]["words"].as_array().unwrap();
    assert!(words.iter().all(|w| (2.0..=5.0).contains(&w["start"].as_f64().unwrap())), "{words:?}");
    std::fs::copy(at("in/1.wav"), at("in/gone.wav")).unwrap();
    let ran = go(&["--resume"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let again = std::fs::read_to_string(&heard).unwrap();
    let changed: Vec<bool> = again.lines().zip(written.lines()).map(|(a, b)| a != b).collect();
    assert_eq!(changed, [false, true, false, false, false]);
    assert!(!at("heard.jsonl.part").exists());

    std::fs::write(at("bad.jsonl"), "{\"audio_filepath\": \"a\"}\nwords\n").unwrap();
    let ran = transcribe(&["--manifest", at("bad.jsonl").to_str().unwrap()], &[]);
    assert!(ran.code == Some(1) && ran.stderr.contains("line 2"), "{}", ran.stderr);
}

#[test]
fn progress_of_many_is_one_event_a_line() {
    let dir = clips(&["1.wav", "2.wav", "3.wav"]);
    let out = dir.path().join("out");
    let args = ["-q", "-r", "--progress", "json", "--output-dir", out.to_str().unwrap()];
    let ran = transcribe(&args, &[dir.path()]);
    let events: Vec<Value> =
        ran.stderr.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
    let count = |kind: &str| events.iter().filter(|e| e["event"] == kind).count();
    assert_eq!((count("start"), count("done"), count("failed")), (3, 3, 0), "{}", ran.stderr);
    let jobs: Vec<&Value> = events.iter().filter(|e| e["event"] == "job").collect();
    let fraction = |e: &Value| e["fraction"].as_f64().unwrap();
    assert!(jobs.is_sorted_by(|a, b| fraction(a) <= fraction(b)), "{jobs:?}");
    let last = jobs.last().unwrap();
    assert_eq!((last["done"].as_u64(), last["total"].as_u64(), fraction(last)), (Some(3), Some(3), 1.0));
}

/// Stopped in the middle, by a user or by the system: exit code 130, what is there is whole, and it can be gone on with.
#[cfg(unix)]
#[test]
fn a_signal_leaves_whole_outputs() {
    for signal in ["-INT", "-TERM"] {
        let names: Vec<String> = (0..200).map(|i| format!("{i:03}.wav")).collect();
        let dir = clips(&["000.wav"]);
        for name in &names[1..] {
            std::fs::hard_link(dir.path().join("000.wav"), dir.path().join(name)).unwrap();
        }
        let out = dir.path().join("out");
        let args = ["transcribe", "-q", "-r", "--output-format", "json", "--output-dir"];
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_conure"))
            .args(args)
            .args([&out, dir.path()])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        while !out.join("000.json").exists() {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let kill = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{signal}: {stderr}");
        assert!(stderr.contains("of 200 are done") && stderr.contains("--resume"), "{signal}: {stderr}");
        let done = files(&out);
        assert!(!done.is_empty() && done.len() < 200, "{signal}: {}", done.len());
        for name in &done {
            let json: Result<Value, _> = serde_json::from_slice(&std::fs::read(out.join(name)).unwrap());
            assert!(json.is_ok_and(|j| j["text"].is_string()), "{signal}: {name}");
        }
    }
}

/// What a process promises: paths of any kind, raw bytes through pipes, and how it ends.
#[test]
fn odd_paths_and_bytes_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(60);
    let names = [
        "Hölla 日本.wav".to_owned(),
        "Ho\u{308}lla NFD.wav".to_owned(),
        " two  spaces .wav".to_owned(),
        "quote ' \" and \\ backslash.wav".to_owned(),
        "-q.wav".to_owned(),
        format!("{long}/{long}/{long}/{long}/{}.wav", "y".repeat(240)),
    ];
    let wav = part(&std::fs::read(speech()).unwrap(), 0, 2000);
    for name in &names {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &wav).unwrap();
    }
    let out = dir.path().join("out");
    let ran = transcribe(&["-q", "-r", "--output-dir", out.to_str().unwrap()], &[dir.path()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let expected: BTreeSet<String> =
        names.iter().map(|n| format!("{}.txt", n.strip_suffix(".wav").unwrap())).collect();
    assert_eq!(files(&out), expected);
    let text = std::fs::read_to_string(out.join("-q.txt")).unwrap();
    let mut dashed = conure();
    dashed.current_dir(dir.path()).args(["transcribe", "-q", "--", "-q.wav"]);
    assert_eq!(run(&mut dashed).stdout, text);

    // 0x1a ends a text on some systems, and must not end sound: every second sample gets one as its low byte.
    let mut samples = wav[44..].to_vec();
    samples.iter_mut().step_by(4).for_each(|byte| *byte = 0x1a);
    let raw = dir.path().join("0x1a.raw");
    std::fs::write(&raw, &samples).unwrap();
    let args = ["transcribe", "-q", "--raw", "s16le:16000:1", "--output-format", "json"];
    let piped = run(conure().args(args).arg("-").write_stdin(samples));
    let read = run(conure().args(args).arg(&raw));
    assert_eq!((piped.code, &piped.stdout), (Some(0), &read.stdout), "{}", piped.stderr);
    let json: Value = serde_json::from_str(&piped.stdout).unwrap();
    assert_eq!(json["duration"], 2.0);
}

/// Exit codes, and what goes where: nothing is on standard output of a run that failed, and a failure is never 0.
#[test]
fn how_it_ends_is_what_happened() {
    let dir = clips(&["ok.wav"]);
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("bad.wav"), "no sound").unwrap();
    std::fs::write(at("empty.wav"), "").unwrap();
    std::fs::write(at("model.gguf"), "GGUF").unwrap();
    let oracle = root().join("tests/data/oracle/ctc80.gguf");
    let oracle = oracle.to_str().unwrap();
    let (ok, bad, empty, gone, broken) =
        (at("ok.wav"), at("bad.wav"), at("empty.wav"), at("gone.wav"), at("model.gguf"));
    let file_as_folder = format!("{ok}/out");
    for (args, code, text) in [
        (&[ok.as_str()][..], 0, true),
        (&[&ok, &ok], 0, true),
        (&[&bad], 1, false),
        (&[&empty], 1, false),
        (&[&gone], 1, false),
        (&[&gone, &bad, &empty], 1, false),
        (&[&bad, &ok], 1, true),
        (&[&ok, "-m", &broken], 1, false),
        (&[&ok, "-m", &gone], 1, false),
        (&[&ok, "--decoder", "rnnt"], 1, false),
        (&[&ok, &ok, "--decoder", "rnnt"], 1, false),
        (&[&ok, "-m", oracle, "--decoder", "tdt"], 1, false),
        (&[&ok, "--device", "nothing"], 1, false),
        (&[&ok, "--output-dir", &file_as_folder], 1, false),
        (&[&ok, "--start", "100"], 1, false),
        (&[&ok, "--no-such-option"], 2, false),
        (&[], 2, false),
        (&[&ok, "--output-format", "srt,vtt"], 2, false),
    ] {
        let ran = run(conure().arg("transcribe").args(args));
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert_eq!(!ran.stdout.is_empty(), text, "{args:?}: {}", ran.stdout);
        assert_eq!(ran.stderr.contains("error: ") || code == 2, code != 0, "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{args:?}: {}", ran.stderr);
    }
}

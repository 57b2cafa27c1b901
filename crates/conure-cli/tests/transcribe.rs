//! `conure transcribe` as a user meets it: what goes where, formats, exit codes, bad input.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Ran, conure, conure_with, nemo_text, root, run, speech};
use std::io::BufRead;
use std::path::Path;
use std::process::Stdio;

fn transcribe(args: &[&str]) -> Ran {
    let speech = speech();
    conure_with([&["transcribe", speech.to_str().unwrap()], args].concat())
}

#[test]
fn the_transcript_alone_goes_to_standard_output() {
    let ran = transcribe(&[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stdout, format!("{}\n", nemo_text("tdt")));
    for part in ["no model was named", "conure convert", "nvidia/parakeet", "on cpu", "tdt, ctc"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let quiet = transcribe(&["--quiet", "--decoder", "ctc"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
    assert_eq!(quiet.stdout, format!("{}\n", nemo_text("ctc")));
}

#[test]
fn every_format_is_what_it_says() {
    let json = transcribe(&["--output-format", "json", "--tokens", "-q"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["text"], nemo_text("tdt"));
    assert_eq!((json["decoder"].as_str(), json["device"].as_str()), (Some("tdt"), Some("cpu")));
    let words = json["segments"][0]["words"].as_array().unwrap();
    assert!(words.len() > 5 && words[0]["start"].as_f64().unwrap() < words[1]["end"].as_f64().unwrap());
    assert!(json["tokens"][0]["frame"].is_u64() && json["tokens"][0]["piece"].is_string());
    for (format, start, part) in [
        ("srt", "1\n00:00:0", " --> 00:00:0"),
        ("vtt", "WEBVTT\n\n", "00:00:0"),
        ("tsv", "start\tend\ttext\n", "\t"),
        ("csv", "start,end,text\n", ","),
    ] {
        let ran = transcribe(&["--output_format", format, "-q"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stdout.starts_with(start) && ran.stdout.contains(part), "{format}: {}", ran.stdout);
    }
    let words = transcribe(&["--word-timestamps", "-q"]);
    assert_eq!(words.stdout.lines().count(), nemo_text("tdt").split(' ').count(), "{}", words.stdout);
    assert!(words.stdout.starts_with("[00:00:0"), "{}", words.stdout);
}

#[test]
fn a_file_that_fails_does_not_stop_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("not audio.txt");
    std::fs::write(&text, "These are words, not sound.").unwrap();
    let empty = dir.path().join("empty.wav");
    std::fs::write(&empty, "").unwrap();
    let paths = [Path::new("not-there.wav"), &text, &empty, dir.path(), &speech()].map(Path::to_path_buf);
    let ran = run(conure().arg("transcribe").args(&paths));
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stdout, format!("{}\n", nemo_text("tdt")));
    for part in [
        "error: cannot transcribe not-there.wav\n  because: cannot open",
        "this is a text file",
        "empty (0 bytes)",
        "this is a directory",
        "4 of 5 files failed",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

#[test]
fn a_file_without_sound_is_no_failure_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let wav = std::fs::read(speech()).unwrap();
    let mut header = wav[..44].to_vec();
    header[40..44].fill(0);
    header[4..8].copy_from_slice(&36u32.to_le_bytes());
    let path = dir.path().join("header.wav");
    std::fs::write(&path, header).unwrap();
    let ran = run(conure().arg("transcribe").arg(&path));
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("no words in 0.00 s"), "{}", ran.stderr);
}

#[test]
fn a_damaged_file_gives_its_good_part_and_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let wav = std::fs::read(speech()).unwrap();
    let path = dir.path().join("cut.wav");
    std::fs::write(&path, &wav[..wav.len() * 6 / 10]).unwrap();
    let ran = run(conure().args(["transcribe", "-q"]).arg(&path));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.split(' ').count() >= 3, "{}", ran.stdout);
    assert!(ran.stderr.starts_with("warning: ") && ran.stderr.contains("cut.wav"), "{}", ran.stderr);
    let strict = run(conure().args(["transcribe", "-q", "--strict"]).arg(&path));
    assert_eq!((strict.code, strict.stdout.as_str()), (Some(1), ""));
}

#[test]
fn pipes_and_raw_samples_give_the_same_text() {
    let wav = std::fs::read(speech()).unwrap();
    let expected = format!("{}\n", nemo_text("tdt"));
    let piped = run(conure().args(["transcribe", "-", "-q"]).write_stdin(wav.clone()));
    assert_eq!((piped.code, &piped.stdout), (Some(0), &expected), "{}", piped.stderr);
    let raw = ["transcribe", "-", "-q", "--raw", "s16le:16000:1"];
    let raw = run(conure().args(raw).write_stdin(&wav[44..]));
    assert_eq!((raw.code, &raw.stdout), (Some(0), &expected), "{}", raw.stderr);
    let none = run(conure().args(["transcribe", "-"]).write_stdin(""));
    assert_eq!((none.code, none.stdout.as_str()), (Some(1), ""));
    assert!(none.stderr.contains("standard input"), "{}", none.stderr);
}

#[test]
fn a_folder_gets_a_file_per_input_and_format() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("ä b.wav"), dir.path().join("two.flac"));
    std::fs::copy(speech(), &one).unwrap();
    std::fs::copy(speech(), &two).unwrap();
    let out = dir.path().join("out/deep");
    let mut command = conure();
    command.arg("transcribe").args([&one, &two]).arg("--output-dir").arg(&out);
    let ran = run(command.args(["--output-format", "txt,json", "--quiet"]));
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", ""));
    let mut names: Vec<String> =
        std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["two.json", "two.txt", "ä b.json", "ä b.txt"]);
    assert_eq!(std::fs::read_to_string(out.join("ä b.txt")).unwrap(), format!("{}\n", nemo_text("tdt")));
}

#[test]
fn a_part_of_a_file_keeps_the_times_of_the_file() {
    let ran = transcribe(&["--start", "0:02", "--duration", "3", "--output-format", "json", "-q"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let words = json["segments"][0]["words"].as_array().unwrap();
    let time = |w: &serde_json::Value, key: &str| w[key].as_f64().unwrap();
    assert!(words.len() < nemo_text("tdt").split(' ').count());
    assert!(
        words.iter().all(|w| (2.0..=5.0).contains(&time(w, "start")) && time(w, "end") <= 5.0),
        "{words:?}"
    );
    let past = transcribe(&["--start", "60"]);
    assert_eq!((past.code, past.stdout.as_str()), (Some(1), ""));
    assert!(past.stderr.contains("nothing starts at 60"), "{}", past.stderr);
}

#[test]
fn what_cannot_be_had_is_an_error_that_says_what_can() {
    for (args, parts) in [
        (&["--device", "cuda:0"][..], &["cannot use the device", "cpu"][..]),
        (&["--decoder", "rnnt"], &["no rnnt decoder", "tdt, ctc"]),
        (&["--language", "de"], &["language", "\"de\""]),
        (&["--channel", "3"], &["channel"]),
        (&["-m", "not-there.gguf"], &["cannot load the model not-there.gguf", "try: "]),
        (&["-m", "Cargo.toml"], &["cannot load the model Cargo.toml", "because: "]),
    ] {
        let ran = transcribe(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{args:?} {}", ran.stderr);
        for part in parts {
            assert!(ran.stderr.contains(part), "{args:?} {part}: {}", ran.stderr);
        }
    }
    let nemo = root().join("tests/data/oracle/ctc80.nemo");
    let ran = transcribe(&["-m", nemo.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("convert it first: conure convert"), "{}", ran.stderr);
}

/// Two who speak in turn, each on a channel: each says what it says alone, in the order of their turns.
#[test]
fn a_speaker_on_each_channel() {
    let dir = tempfile::tempdir().unwrap();
    let wav = std::fs::read(speech()).unwrap();
    let samples: Vec<[u8; 2]> = wav[44..].chunks_exact(2).map(|s| [s[0], s[1]]).collect();
    let turn = 60_000;
    let write = |name: &str, channels: u16, data: Vec<u8>| {
        let mut file = wav[..44].to_vec();
        file[4..8].copy_from_slice(&(36 + data.len() as u32).to_le_bytes());
        file[22..24].copy_from_slice(&channels.to_le_bytes());
        file[28..32].copy_from_slice(&(32_000 * u32::from(channels)).to_le_bytes());
        file[32..34].copy_from_slice(&(2 * channels).to_le_bytes());
        file[40..44].copy_from_slice(&(data.len() as u32).to_le_bytes());
        file.extend(data);
        let path = dir.path().join(name);
        std::fs::write(&path, file).unwrap();
        path
    };
    let (quiet, own) = ([0u8, 0], |i: usize, first: bool| (i < turn) == first);
    let channel = |first: bool| {
        let keep = move |(i, s): (usize, &[u8; 2])| if own(i, first) { *s } else { quiet };
        samples.iter().enumerate().map(keep).collect::<Vec<[u8; 2]>>()
    };
    let (left, right) = (channel(true), channel(false));
    let both = write("both.wav", 2, left.iter().zip(&right).flat_map(|(l, r)| [*l, *r]).flatten().collect());
    let alone = [("left.wav", left), ("right.wav", right)].map(|(name, channel)| {
        let path = write(name, 1, channel.into_iter().flatten().collect());
        conure_with(["transcribe", "-q", path.to_str().unwrap()]).stdout.trim().to_owned()
    });
    assert!(alone.iter().all(|text| text.split(' ').count() > 2), "{alone:?}");
    let speakers = |format: &str| {
        let both = both.to_str().unwrap();
        let ran = conure_with(["transcribe", "-q", "--speakers", "channel", "--output-format", format, both]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    assert_eq!(speakers("txt"), format!("Speaker 1: {}\nSpeaker 2: {}\n", alone[0], alone[1]));
    let json: serde_json::Value = serde_json::from_str(&speakers("json")).unwrap();
    let who: Vec<_> = json["segments"].as_array().unwrap().iter().map(|s| s["speaker"].as_u64()).collect();
    assert_eq!(who, [Some(0), Some(1)]);
    let vtt = speakers("vtt");
    assert!(vtt.contains("\n<v Speaker 1>") && vtt.contains("\n<v Speaker 2>"), "{vtt}");
    let piped = run(conure().args(["transcribe", "--speakers", "channel", "-"]).write_stdin(wav.clone()));
    assert!(piped.code == Some(1) && piped.stderr.contains("write it to a file first"), "{}", piped.stderr);
}

#[test]
fn the_environment_sets_options() {
    let with = |name: &str, value: &str| run(conure().env(name, value).arg("transcribe").arg(speech()));
    for name in ["CONURE_DEVICE", "PARAKEET_DEVICE"] {
        let ran = with(name, "cuda:7");
        let said = format!("\"cuda:7\" (from {name})");
        assert!(ran.code == Some(1) && ran.stderr.contains(&said), "{name}: {}", ran.stderr);
    }
    let ran = with("CONURE_QUIET", "1");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let ran = with("CONURE_OUTPUT_FORMAT", "vtt");
    assert!(ran.stdout.starts_with("WEBVTT"), "{}", ran.stdout);
    assert_eq!(with("CONURE_THREADS", "none").code, Some(2));
    // What is typed is meant, what is set may be old.
    let both = |name: &str, flags: &[&str]| {
        run(conure().env(name, "1").args(["transcribe", "-q"]).args(flags).arg(speech()))
    };
    let plain = both("CONURE_TIMESTAMPS", &["--no-timestamps"]);
    assert_eq!((plain.code, plain.stdout), (Some(0), format!("{}\n", nemo_text("tdt"))), "{}", plain.stderr);
    let timed = both("CONURE_NO_TIMESTAMPS", &["--timestamps"]);
    assert!(timed.code == Some(0) && timed.stdout.starts_with("[00:"), "{} {}", timed.stdout, timed.stderr);
    let words = both("CONURE_MAX_WORDS", &["--word_timestamps"]);
    assert_eq!(words.code, Some(0), "{}", words.stderr);
    assert_eq!(both("CONURE_TIMESTAMPS", &["--timestamps", "--no-timestamps"]).code, Some(2));
    let ran = run(conure().env("CONURE_MODEL", "").args(["transcribe", "-q"]).arg(speech()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn progress_as_json_is_one_event_a_line() {
    let ran = transcribe(&["-q", "--progress", "json"]);
    let events: Vec<serde_json::Value> =
        ran.stderr.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
    assert_eq!(events.first().unwrap()["event"], "start");
    let (last, between) = events[1..].split_last().unwrap();
    assert!(last["event"] == "done" && last["seconds"].as_f64().unwrap() > 7.0, "{last}");
    assert!(between.iter().all(|e| e["event"] == "progress" && e["file"] == last["file"]), "{between:?}");
    let number = |e: &serde_json::Value, key: &str| e[key].as_f64().unwrap();
    assert!(between.is_sorted_by(|a, b| number(a, "fraction") <= number(b, "fraction")), "{between:?}");
    assert_eq!((between[0]["stage"].as_str(), between[0]["duration"].as_f64()), (Some("reading"), None));
    let end = between.last().unwrap();
    assert_eq!((end["stage"].as_str(), number(end, "fraction")), (Some("decoding"), 1.0), "{end}");
    assert_eq!((number(end, "seconds"), number(end, "duration")), (7.435, 7.435), "{end}");
}

#[test]
fn mistakes_on_the_command_line_are_exit_code_2() {
    for args in [
        &[][..],
        &["transcribe"],
        &["transcribe", "a.wav", "--output-format", "pdf"],
        &["transcribe", "a.wav", "b.wav", "--output-format", "srt"],
        &["transcribe", "a.wav", "--threads", "0"],
        &["transcribe", "a.wav", "--raw", "s16"],
        &["transcribe", "a.wav", "a.wav", "--output-dir", "never-made"],
        &["convert", "a.nemo"],
        &["convert", "a.nemo", "."],
        &["capture", "embedded"],
        &["nonsense"],
    ] {
        let ran = conure_with(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.is_empty() && !ran.stderr.contains("panicked"), "{args:?}: {}", ran.stderr);
    }
    assert!(!Path::new("never-made").exists());
}

/// The program itself, for tests that need its pipes.
fn spawn(args: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_conure"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let speech = speech();
    let mut child = spawn(&["transcribe", "-q", speech.to_str().unwrap()]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let speech = speech();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = spawn(&["transcribe", "-q", speech.to_str().unwrap()]);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"));
}

/// A limit on the size of files is an error like a full disk, and leaves nothing behind.
#[cfg(target_os = "linux")]
#[test]
fn a_file_size_limit_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let limited = "ulimit -f 1; exec \"$0\" transcribe -q \"$1\" --tokens --output-format json -o \"$2\"";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_conure")]).arg(speech()).arg(&out);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("too large"), "{said}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
}

/// A program that waits for audio that never comes, on a pipe that stays open, ends at once, its progress told.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_130() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for input in ["-", fifo.to_str().unwrap()] {
        let mut child = spawn(&["transcribe", input, "-q", "--progress", "json"]).spawn().unwrap();
        let _pipe = child.stdin.take();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
        // The first line says that the model is loaded and the file begun.
        assert!(lines.next().unwrap().unwrap().contains("start"), "{input}");
        std::thread::sleep(std::time::Duration::from_millis(100));
        let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let started = std::time::Instant::now();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{input}");
        assert!(
            started.elapsed() < std::time::Duration::from_millis(1500),
            "{input}: {:?}",
            started.elapsed()
        );
        let last = lines.last().unwrap().unwrap();
        assert!(last.contains("failed") && last.contains("interrupted"), "{input}: {last}");
    }
}

/// A terminal as standard input, where `script` (util-linux) is there to make one.
#[cfg(target_os = "linux")]
#[test]
fn nobody_types_audio() {
    let line = format!("{} transcribe {} -", env!("CARGO_BIN_EXE_conure"), speech().display());
    let script = std::process::Command::new("script").args(["-qec", &line, "/dev/null"]).output();
    let Ok(output) = script else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("standard input is a terminal") && text.contains("conure transcribe -"), "{text}");
}

//! `cargo xtask long`: a long recording of known content through the program, and what became of it.
//!
//! The clips of `tests/data/audio` one after the other, in an order and with pauses that a seed decides, are one WAV file; a
//! clip's words are those nearest to where it was put. The same clips alone are what the long recording is held to.

use crate::process::{self, cargo};
use crate::root;
use crate::wer::{Clip, clips, word_errors};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const RATE: usize = 16_000;
/// Pauses between clips, in seconds.
const PAUSES: Range<f64> = 0.3..3.0;
/// Longer clips are left out: they are long recordings themselves.
const LONGEST_CLIP: usize = 60 * RATE;
/// The recording that the long one is held to, in minutes.
const SHORT: f64 = 10.0;

/// What is held to in the end.
const MOST_WER: f64 = 1.1;
const MOST_MEMORY: f64 = 1.3;
const MOST_SLOWER: f64 = 1.1;

struct Options {
    minutes: f64,
    model: Option<PathBuf>,
    program: Option<PathBuf>,
    stream: bool,
    passed_on: Vec<String>,
}

/// A clip with its samples and what is made of it alone.
struct Known {
    clip: Clip,
    samples: Vec<u8>,
    alone: String,
}

/// A recording on disk, and which clip is where in it, in seconds.
struct Made {
    path: PathBuf,
    seconds: f64,
    places: Vec<(usize, Range<f64>)>,
}

/// What became of a recording.
struct Outcome {
    clips: usize,
    silent: usize,
    words: usize,
    errors: usize,
    errors_alone: usize,
    doubled: usize,
    peak_kib: u64,
    wall: Duration,
    seconds: f64,
}

/// `cargo xtask long [--minutes N] [--model MODEL.gguf] [--program CONURE] [--stream] [-- OPTIONS...]`.
///
/// # Errors
/// Clips or a program that cannot be had; a figure that is not what it should be.
pub fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            process::run(cargo().args(["build", "--release", "-p", "conure-cli"]))?;
            root().join("target/release/conure")
        }
    };
    let folder = root().join("target/long");
    std::fs::create_dir_all(&folder)?;
    let mut known = known()?;
    if options.stream {
        let made = make(&folder, &known, options.minutes)?;
        return crate::live::run(&program, options.model.as_deref(), &made.path);
    }
    alone(&program, &options, &folder, &mut known)?;
    let mut rows = Vec::new();
    for minutes in [SHORT, options.minutes] {
        let made = make(&folder, &known, minutes)?;
        rows.push(measure(&program, &options, &folder, &known, &made)?);
    }
    print!("{}", as_markdown(&rows));
    let [short, long] = &rows[..] else { bail!("two recordings are measured") };
    judge(short, long)
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options =
        Options { minutes: 120.0, model: None, program: None, stream: false, passed_on: Vec::new() };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let mut value = || rest.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--minutes" => options.minutes = value()?.parse().context("--minutes takes a number")?,
            "--program" => options.program = Some(value()?.into()),
            "--model" => options.model = Some(value()?.into()),
            "--stream" => options.stream = true,
            "--" => options.passed_on.extend(rest.by_ref().cloned()),
            other => bail!("`cargo xtask long` does not know {other}"),
        }
    }
    Ok(options)
}

/// The clips with their samples.
fn known() -> Result<Vec<Known>> {
    let mut known = Vec::new();
    for clip in clips()? {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-i"]).arg(&clip.path);
        let output = ffmpeg.args(["-f", "s16le", "-ac", "1", "-ar", &RATE.to_string(), "-"]).output();
        let output = output.context("ffmpeg decodes the clips: `cargo xtask setup` installs it")?;
        ensure!(output.status.success(), "ffmpeg cannot read {}", clip.path.display());
        if output.stdout.len() <= 2 * LONGEST_CLIP {
            known.push(Known { clip, samples: output.stdout, alone: String::new() });
        }
    }
    Ok(known)
}

/// Runs the program; its peak of memory, and the time it took.
fn transcribe(command: &mut Command) -> Result<(u64, Duration)> {
    let begun = Instant::now();
    let mut child = command.spawn().context("cannot start the program")?;
    let status_file = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        if let Some(kib) =
            std::fs::read_to_string(&status_file).ok().and_then(|s| process::status_kib(&s, "VmHWM:"))
        {
            peak = kib;
        }
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "{} failed ({status})", process::line(command));
            return Ok((peak, begun.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn program(path: &Path, options: &Options, folder: &Path) -> Command {
    let mut command = Command::new(path);
    command.args(["transcribe", "--quiet", "--output-format", "json", "--output-dir"]).arg(folder);
    if let Some(model) = &options.model {
        command.arg("--model").arg(model);
    }
    command
}

fn json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// What the program makes of every clip by itself.
fn alone(path: &Path, options: &Options, folder: &Path, known: &mut [Known]) -> Result<()> {
    let folder = folder.join("alone");
    let mut command = program(path, options, &folder);
    for (number, k) in known.iter().enumerate() {
        let wav = folder.join(format!("{number}.wav"));
        std::fs::create_dir_all(&folder)?;
        write_wav(&wav, &[&k.samples])?;
        command.arg(wav);
    }
    transcribe(&mut command)?;
    for (number, k) in known.iter_mut().enumerate() {
        let found = json(&folder.join(format!("{number}.json")))?;
        k.alone = found["text"].as_str().context("a transcript without text")?.to_owned();
    }
    Ok(())
}

/// A WAV file of 16-bit samples.
fn write_wav(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let bytes: usize = parts.iter().map(|p| p.len()).sum();
    let size = u32::try_from(bytes).context("the recording is too long for a WAV file")?;
    let mut out = std::io::BufWriter::new(std::fs::File::create(path)?);
    out.write_all(b"RIFF")?;
    out.write_all(&(size + 36).to_le_bytes())?;
    out.write_all(b"WAVEfmt \x10\0\0\0\x01\0\x01\0")?;
    out.write_all(&(RATE as u32).to_le_bytes())?;
    out.write_all(&(2 * RATE as u32).to_le_bytes())?;
    out.write_all(b"\x02\0\x10\0data")?;
    out.write_all(&size.to_le_bytes())?;
    for part in parts {
        out.write_all(part)?;
    }
    Ok(out.flush()?)
}

/// A generator of numbers that are the same every time.
struct Seeded(u64);

impl Seeded {
    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Clips in any order, again and again, until the recording is as long as asked for.
fn make(folder: &Path, known: &[Known], minutes: f64) -> Result<Made> {
    let mut seeded = Seeded(7);
    let silence = vec![0u8; (PAUSES.end * RATE as f64) as usize * 2];
    let (mut parts, mut places, mut at): (Vec<&[u8]>, Vec<_>, usize) = (Vec::new(), Vec::new(), 0);
    let mut order = Vec::new();
    while (at as f64) < minutes * 60.0 * RATE as f64 {
        if order.is_empty() {
            order = (0..known.len()).collect();
        }
        let number = order.swap_remove((seeded.next() * order.len() as f64) as usize);
        // The same sentence again, by another voice, would be five words twice.
        let said = |(n, _): &(usize, Range<f64>)| known[*n].clip.reference == known[number].clip.reference;
        if places.iter().rev().take(4).any(said) {
            continue;
        }
        let samples = known[number].samples.len() / 2;
        places.push((number, at as f64 / RATE as f64..(at + samples) as f64 / RATE as f64));
        parts.push(&known[number].samples);
        let pause = PAUSES.start + seeded.next() * (PAUSES.end - PAUSES.start);
        let pause = (pause * RATE as f64) as usize;
        parts.push(&silence[..pause * 2]);
        at += samples + pause;
    }
    let path = folder.join(format!("{minutes:.0}min.wav"));
    write_wav(&path, &parts)?;
    Ok(Made { path, seconds: at as f64 / RATE as f64, places })
}

fn measure(path: &Path, options: &Options, folder: &Path, known: &[Known], made: &Made) -> Result<Outcome> {
    let mut command = program(path, options, folder);
    command.arg(&made.path).args(&options.passed_on);
    let (peak_kib, wall) = transcribe(&mut command)?;
    let found = json(&made.path.with_extension("json"))?;
    let words = words(&found)?;
    let heard = by_clip(&words, &made.places);
    let mut outcome = Outcome {
        clips: made.places.len(),
        silent: 0,
        words: 0,
        errors: 0,
        errors_alone: 0,
        doubled: doubled(&words),
        peak_kib,
        wall,
        seconds: made.seconds,
    };
    for ((number, span), heard) in made.places.iter().zip(&heard) {
        let Known { clip, alone, .. } = &known[*number];
        if heard.is_empty() && !alone.is_empty() {
            outcome.silent += 1;
            println!("no words from {:.1} to {:.1} s, where alone there are: {alone}", span.start, span.end);
        }
        outcome.words += clip.reference.split_whitespace().count();
        outcome.errors += word_errors(&clip.reference, heard);
        outcome.errors_alone += word_errors(&clip.reference, alone);
    }
    Ok(outcome)
}

/// The words of a transcript, and the middle of each in seconds.
fn words(transcript: &Value) -> Result<Vec<(f64, String)>> {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let mut words = Vec::new();
    for word in list(&transcript["segments"]).iter().flat_map(|s| list(&s["words"])) {
        let time = |key: &str| word[key].as_f64().with_context(|| format!("a word without {key}"));
        let text = word["word"].as_str().context("a word without text")?;
        words.push(((time("start")? + time("end")?) / 2.0, text.to_owned()));
    }
    Ok(words)
}

/// The words of each clip: those that are nearest to it.
fn by_clip(words: &[(f64, String)], places: &[(usize, Range<f64>)]) -> Vec<String> {
    let mut heard = vec![String::new(); places.len()];
    let mut at = 0;
    for (time, word) in words {
        let distance = |i: usize| (places[i].1.start - time).max(time - places[i].1.end).max(0.0);
        while at + 1 < places.len() && distance(at + 1) < distance(at) {
            at += 1;
        }
        if let Some(text) = heard.get_mut(at) {
            text.push_str(if text.is_empty() { "" } else { " " });
            text.push_str(word);
        }
    }
    heard
}

/// Sequences of five words that come again within the next twenty.
fn doubled(words: &[(f64, String)]) -> usize {
    let five: Vec<Vec<&str>> =
        words.windows(5).map(|w| w.iter().map(|(_, word)| word.as_str()).collect()).collect();
    let mut count = 0;
    for (i, sequence) in five.iter().enumerate() {
        if five[i + 1..].iter().take(20).any(|other| other == sequence) {
            count += 1;
            println!("twice near {:.1} s: {}", words[i].0, sequence.join(" "));
        }
    }
    count
}

fn as_markdown(rows: &[Outcome]) -> String {
    let mut text = String::from(
        "| minutes | clips | without words | WER % | alone | 5 words twice | peak memory, MB | RTFx |\n\
         |--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for r in rows {
        let percent = |errors: usize| 100.0 * errors as f64 / r.words.max(1) as f64;
        text.push_str(&format!(
            "| {:.0} | {} | {} | {:.2} | {:.2} | {} | {:.0} | {:.1} |\n",
            r.seconds / 60.0,
            r.clips,
            r.silent,
            percent(r.errors),
            percent(r.errors_alone),
            r.doubled,
            r.peak_kib as f64 * 1024.0 / 1e6,
            r.seconds / r.wall.as_secs_f64(),
        ));
    }
    text
}

/// Holds the figures to what long recordings promise.
fn judge(short: &Outcome, long: &Outcome) -> Result<()> {
    let speed = |r: &Outcome| r.seconds / r.wall.as_secs_f64();
    let facts: BTreeMap<&str, bool> = [
        ("no clip is without words", long.silent == 0),
        (
            "errors are at most 1.1 times those of the clips alone",
            long.errors as f64 <= MOST_WER * long.errors_alone as f64,
        ),
        ("no five words come twice", long.doubled == 0),
        (
            "memory is at most 1.3 times that of ten minutes",
            long.peak_kib as f64 <= MOST_MEMORY * short.peak_kib as f64,
        ),
        ("speed is that of ten minutes within 10 %", speed(short) <= MOST_SLOWER * speed(long)),
    ]
    .into();
    let failed: Vec<&str> = facts.iter().filter(|(_, holds)| !**holds).map(|(what, _)| *what).collect();
    ensure!(failed.is_empty(), "not so: {}", failed.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_at(list: &[(f64, &str)]) -> Vec<(f64, String)> {
        list.iter().map(|(at, word)| (*at, (*word).to_owned())).collect()
    }

    #[test]
    fn words_go_to_the_nearest_clip() {
        let places = [(0, 1.0..2.0), (1, 3.0..4.0), (2, 9.0..10.0)];
        let words = words_at(&[(0.5, "a"), (1.5, "b"), (2.4, "c"), (2.6, "d"), (5.0, "e"), (9.5, "f")]);
        assert_eq!(by_clip(&words, &places), ["a b c", "d e", "f"]);
    }

    #[test]
    fn what_comes_twice_is_counted() {
        let once: Vec<&str> = "a b c d e f g h".split(' ').collect();
        let list = |words: &[&str]| words_at(&words.iter().map(|w| (0.0, *w)).collect::<Vec<_>>());
        assert_eq!(doubled(&list(&once)), 0);
        assert_eq!(doubled(&list(&[&once[..], &once[3..8]].concat())), 1);
    }
}

//! `conure bench`.

use super::{language, language_inspect, model};
use crate::args::{BenchArgs, BenchCommand, ComputeArgs, MeasureArgs, RooflineArgs, StepArgs};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{shown, to_stdout};
use conure::{AudioOptions, Bench, RecogniseOptions, Recording, SpeechModel, Times};
use std::path::Path;
use std::time::Instant;

/// Measures what was asked for.
///
/// # Errors
/// A model or a recording that cannot be used.
pub fn run(args: &BenchArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    match &args.what {
        Some(BenchCommand::Roofline(args)) => return roofline(args),
        Some(BenchCommand::Conv(args)) => return super::bench_conv::run(args, interrupt.flag()),
        Some(BenchCommand::Step(args)) => return step(args),
        Some(BenchCommand::Startup(args)) => return super::startup::run(args),
        Some(BenchCommand::Lengths(args)) => return super::lengths::run(args, interrupt),
        None => {}
    }
    let Some(path) = &args.model else { return Err(Failure::usage("MODEL is needed")) };
    if language::is_in(path) {
        return language_inspect::bench(path, args);
    }
    let Some(audio) = &args.audio else { return Err(language_inspect::audio_needed()) };
    let begun = Instant::now();
    let model = model::load(Some(path), &args.measure.compute)?;
    let load_ms = begun.elapsed().as_secs_f64() * 1e3;
    let recording = read(&model, audio, interrupt)?;
    let mut bench = model
        .bench(&recording, &options(&args.measure, interrupt), args.runs)
        .map_err(|e| model::failed(format!("cannot recognise {}", shown(audio)), e))?;
    bench.load_ms = Some(load_ms);
    print(if args.measure.json { json(&bench)? } else { text(&bench) })
}

/// How a recording is recognised while that is measured.
pub fn options(args: &MeasureArgs, interrupt: &Interrupt) -> RecogniseOptions {
    RecogniseOptions {
        decoder: args.decoder.decoder(),
        local_attention: args.local_attention,
        cancel: Some(interrupt.flag().clone()),
        ..RecogniseOptions::default()
    }
}

/// The recording at `audio`.
///
/// # Errors
/// Why it cannot be read.
pub fn read(model: &SpeechModel, audio: &Path, interrupt: &Interrupt) -> Result<Recording, Failure> {
    let source = super::transcribe::source(audio, interrupt)?;
    model
        .read(source, &AudioOptions::default())
        .map_err(|e| model::failed(format!("cannot read {}", shown(audio)), e))
}

/// JSON on a few lines.
///
/// # Errors
/// None that can be thought of.
pub fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|json| json + "\n")
        .map_err(|e| Failure::new("cannot write JSON").because(e))
}

/// Results to standard output.
///
/// # Errors
/// If that cannot be written.
pub fn print(text: String) -> Result<(), Failure> {
    to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ())
}

/// Median and least.
pub fn times(t: &Times) -> String {
    format!("{:.2} ms (least {:.2})", t.median, t.min)
}

/// A figure that the system may not tell.
pub fn or_unknown(x: Option<f64>, unit: &str) -> String {
    x.map_or("unknown".to_owned(), |x| format!("{x:.2} {unit}"))
}

fn text(b: &Bench) -> String {
    let rows = [
        ("model", crate::output::clean(&b.model)),
        (
            "on",
            format!(
                "{} ({}, {} threads), {}, decoder {}",
                b.device, b.isa, b.threads, b.precision, b.decoder
            ),
        ),
        ("audio", format!("{:.2} s, {} tokens, {} runs after the first", b.audio_s, b.tokens, b.runs)),
        ("load", or_unknown(b.load_ms, "ms")),
        ("first run", first_run(b)),
        ("features", times(&b.features_ms)),
        ("encoder", times(&b.encoder_ms)),
        ("decoder", times(&b.decoder_ms)),
        ("total", format!("{}, {:.1} times as fast as the audio", times(&b.total_ms), b.rtfx)),
        ("processors", or_unknown(b.cpu_s, "s a run")),
        (
            "memory",
            format!("{} at most, {:.1} MB of it intermediates", or_unknown(b.peak_rss_mb, "MB"), b.arena_mb),
        ),
        (
            "encoder rate",
            format!(
                "{:.1} GFLOP/s ({:.2} GFLOP), {:.0} % of the {:.1} GFLOP/s of f32 products here",
                b.gflops,
                b.encoder_gflop,
                b.roofline_fraction * 100.0,
                b.roofline_gflops
            ),
        ),
    ];
    rows.iter().map(|(name, value)| format!("{name:<13} {value}\n")).collect()
}

fn first_run(b: &Bench) -> String {
    match b.compiled + b.cached {
        0 => format!("{:.2} ms", b.first_ms),
        _ => format!("{:.2} ms; {} parts compiled, {} from the cache", b.first_ms, b.compiled, b.cached),
    }
}

fn roofline(args: &RooflineArgs) -> Result<(), Failure> {
    let r = conure::roofline(args.threads.map(|n| model::threads(Some(n)).total()))
        .map_err(|e| Failure::new("cannot measure this machine").because(e))?;
    let rows = [
        ("f32_gflops", "products, f32 weights", r.f32, "GFLOP/s"),
        ("f16_gflops", "products, f16 weights", r.f16, "GFLOP/s"),
        ("q8_0_gflops", "products, q8_0, fast", r.q8_0, "GFLOP/s"),
        ("int8_gflops", "products, int8", r.int8, "GFLOP/s"),
        ("bandwidth_gbs", "reading memory", r.bandwidth, "GB/s"),
    ];
    if args.json {
        let map: serde_json::Map<String, serde_json::Value> =
            rows.iter().map(|(key, _, rate, _)| ((*key).to_owned(), (rate * 1e-9).into())).collect();
        return print(json(&map)?);
    }
    print(
        rows.iter()
            .map(|(_, name, rate, unit)| format!("{name:<24} {:>9.1} {unit}\n", rate * 1e-9))
            .collect(),
    )
}

/// Decoding of clips together and one by one.
fn batch(args: &StepArgs, clips: usize) -> Result<(), Failure> {
    let compute = ComputeArgs { threads: args.threads, ..ComputeArgs::default() };
    let model = model::load(Some(&args.model), &compute)?;
    let b = model
        .bench_batch(clips, args.frames, args.turns)
        .map_err(|e| model::failed(format!("cannot time the decoder of {}", shown(&args.model)), e))?;
    if args.json {
        return print(json(&b)?);
    }
    let same = if b.same { "the same tokens" } else { "OTHER tokens" };
    print(format!(
        "{} clips of {} frames, {} tokens: {:.2} ms together, {:.2} ms one by one: {:.2} times as fast, {same}\n",
        b.clips, b.frames, b.tokens, b.together_ms.median, b.alone_ms.median, b.ratio
    ))
}

fn step(args: &StepArgs) -> Result<(), Failure> {
    if let Some(clips) = args.batch {
        return batch(args, clips);
    }
    let one_thread = ComputeArgs { threads: Some(1), ..ComputeArgs::default() };
    let model = model::load(Some(&args.model), &one_thread)?;
    let times = model
        .bench_step(args.steps)
        .map_err(|e| model::failed(format!("cannot time the decoder of {}", shown(&args.model)), e))?;
    if args.json {
        return print(json(&serde_json::json!({ "steps": args.steps, "step_us": times }))?);
    }
    print(format!("{:.2} us a step (least {:.2}), of {} steps\n", times.median, times.min, args.steps))
}

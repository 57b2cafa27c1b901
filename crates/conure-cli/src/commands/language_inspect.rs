//! `conure bench`, `profile` and `graph` of language models.

use super::bench::{json, or_unknown, print, times};
use super::graph::{Form, bound};
use super::profile::{tables, write_trace};
use super::{language, megabytes, model};
use crate::args::{BenchArgs, ByArg, GraphArgs, LoadArgs, ProfileArgs};
use crate::failure::Failure;
use crate::output::{clean, shown, to_stdout};
use conure::{
    LanguageBench, LanguageLengths, LanguageLoad, LanguageModel, LanguageProfile, LoadOptions, Shares,
};
use std::path::Path;
use std::time::Instant;

/// Tokens at once in the table of memory.
const TOKENS: [usize; 4] = [1, 16, 128, 512];

/// What is said where a speech model has nothing to hear.
pub fn audio_needed() -> Failure {
    Failure::usage("AUDIO is needed: MODEL is no language model").advice("name a recording after the model")
}

/// Refuses options that language models have no use for.
fn check_audio(audio: Option<&Path>) -> Result<(), Failure> {
    match audio {
        None => Ok(()),
        Some(audio) => {
            Err(Failure::usage(format!("{} is not heard: MODEL is a language model", shown(audio))))
        }
    }
}

fn load_of(args: LoadArgs) -> LanguageLoad {
    LanguageLoad { prompt: args.prompt_tokens, tokens: args.tokens }
}

/// Times a prompt and single tokens.
///
/// # Errors
/// A model that cannot be used.
pub fn bench(path: &Path, args: &BenchArgs) -> Result<(), Failure> {
    check_audio(args.audio.as_deref())?;
    let begun = Instant::now();
    let model = language::load(path, &args.measure.compute)?;
    let load_ms = begun.elapsed().as_secs_f64() * 1e3;
    let mut bench = model
        .bench(load_of(args.load), args.runs)
        .map_err(|e| model::failed(format!("cannot time {}", shown(path)), e))?;
    bench.load_ms = Some(load_ms);
    print(if args.measure.json { json(&bench)? } else { bench_text(&bench) })
}

fn bench_text(b: &LanguageBench) -> String {
    let rows = [
        ("model", clean(&b.model)),
        ("on", format!("{} ({}, {} threads), {}", b.device, b.isa, b.threads, b.precision)),
        ("load", or_unknown(b.load_ms, "ms")),
        ("first run", format!("{:.2} ms", b.first_ms)),
        (
            "prompt",
            format!(
                "{} of {} tokens: {:.1} tokens a second",
                times(&b.prompt_ms),
                b.prompt_tokens,
                b.prompt_per_second
            ),
        ),
        (
            "token",
            format!(
                "{} of {}, {} runs after the first: {:.1} tokens a second",
                times(&b.token_ms),
                b.tokens,
                b.runs,
                b.tokens_per_second
            ),
        ),
        (
            "bandwidth",
            format!(
                "{:.1} GB/s ({:.1} MB of weights a token), {:.0} % of the {:.1} GB/s that are read here",
                b.gbs,
                b.weights_mb,
                b.bandwidth_fraction * 100.0,
                b.peak_gbs
            ),
        ),
        (
            "memory",
            format!(
                "{} at most; {:.1} MB of it intermediates; keys and values up to {:.1} MB",
                or_unknown(b.peak_rss_mb, "MB"),
                b.arena_mb,
                b.cache_mb
            ),
        ),
    ];
    rows.iter().map(|(name, value)| format!("{name:<13} {value}\n")).collect()
}

/// Shows where the time of a prompt and of single tokens goes.
///
/// # Errors
/// A model that cannot be used; a trace that cannot be written.
pub fn profile(args: &ProfileArgs) -> Result<(), Failure> {
    check_audio(args.audio.as_deref())?;
    let load = LoadOptions { profiling: true, ..language::options(&args.measure.compute)? };
    let loaded =
        LanguageModel::load_with(&args.model, &load).map_err(|e| model::not_loaded(&args.model, e))?;
    let profile = loaded
        .profile(load_of(args.load))
        .map_err(|e| model::failed(format!("cannot time {}", shown(&args.model)), e))?;
    write_trace(args.trace.as_deref(), &profile.trace)?;
    print(if args.measure.json { json(&profile)? } else { profile_text(&profile, &args.by) })
}

fn profile_text(p: &LanguageProfile, by: &[ByArg]) -> String {
    let part = |s: &Shares| tables([&s.ops, &s.layers, &s.nodes, &s.kernels, &s.device_layers], by);
    format!(
        "{} on {} ({}, {} threads)\npeak: {:.1} GFLOP/s in f32 products, {:.1} GB/s from memory\n\n\
         {} tokens at once: {:.2} ms\n{}\n{} tokens one by one: {:.2} ms\n{}",
        clean(&p.model),
        p.device,
        p.isa,
        p.threads,
        p.peak_gflops,
        p.peak_gbs,
        p.prompt_tokens,
        p.prompt_ms,
        part(&p.prompt),
        p.tokens,
        p.tokens_ms,
        part(&p.decode),
    )
}

/// Draws the graph, or prints what is asked about it.
///
/// # Errors
/// A model that cannot be loaded, an output that cannot be written.
pub fn graph(args: &GraphArgs, form: Option<(&Path, Form)>) -> Result<(), Failure> {
    let unused = [
        ("--part", args.part.is_some()),
        ("--passes", args.passes),
        ("--local-attention", args.local_attention.is_some()),
    ];
    if let Some((option, _)) = unused.into_iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!("{option} is for speech models: MODEL is a language model"))
            .advice("its one graph is built as it runs; leave the option out"));
    }
    let model = language::load(&args.model, &args.compute)?;
    let what = |e| model::failed(format!("cannot look into {}", shown(&args.model)), e);
    let mut text = String::new();
    if args.placement {
        text.push_str(&model.placement().map_err(what)?.to_string());
    }
    if args.memory {
        text.push_str(&format!("{:>12} {:>18}\n", "tokens", "intermediates"));
        let lengths = bound(args, 'T').map_or(TOKENS.to_vec(), |n| vec![n]);
        for n in lengths {
            let bytes = model.arena_bytes(n).map_err(what)?;
            text.push_str(&format!("{n:>12} {:>18}\n", megabytes(bytes as u64)));
        }
    }
    if let Some((path, form)) = form {
        let lengths =
            LanguageLengths { sequences: bound(args, 'B'), tokens: bound(args, 'T'), rows: bound(args, 'R') };
        form.write(&model.drawing(lengths, args.placement).map_err(what)?, path)?;
    }
    to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ())
}

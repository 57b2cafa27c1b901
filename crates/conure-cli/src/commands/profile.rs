//! `conure profile`.

use super::bench::{json, options, print, read};
use super::{language, language_inspect, model};
use crate::args::{ByArg, ProfileArgs};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{Inputs, save, shown};
use conure::{LoadOptions, Profile, Share, TraceEvent};
use std::path::Path;

/// Shows where the time of a run goes.
///
/// # Errors
/// A model or a recording that cannot be used; a trace that cannot be written.
pub fn run(args: &ProfileArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    if let Some(path) = &args.trace {
        let read = Inputs::default().with("the model", &args.model).and("the recording", args.audio.as_ref());
        read.spare(path, "give another name with --trace")?;
    }
    if language::is_in(&args.model) {
        return language_inspect::profile(args);
    }
    let Some(audio) = &args.audio else { return Err(language_inspect::audio_needed()) };
    let load = LoadOptions { profiling: true, ..model::options(&args.measure.compute)? };
    let model = model::load_with(Some(&args.model), &load)?;
    let recording = read(&model, audio, interrupt)?;
    let profile = model
        .profile(&recording, &options(&args.measure, interrupt))
        .map_err(|e| model::failed(format!("cannot recognise {}", shown(audio)), e))?;
    write_trace(args.trace.as_deref(), &profile.trace)?;
    print(if args.measure.json { json(&profile)? } else { text(&profile, &args.by) })
}

/// Writes the steps to a file, if one is asked for.
///
/// # Errors
/// If that cannot be written.
pub fn write_trace(path: Option<&Path>, events: &[TraceEvent]) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let trace = serde_json::json!({ "traceEvents": events, "displayTimeUnit": "ms" });
    save(path, |out| Ok(serde_json::to_writer(out, &trace)?))
}

fn text(p: &Profile, by: &[ByArg]) -> String {
    let mut text = format!(
        "{} on {} ({}, {} threads), {:.2} s of audio\n\
         features {:.2} ms, encoder {:.2} ms, decoder {:.2} ms; in steps {:.2} ms\n\
         peak: {:.1} GFLOP/s in f32 products, {:.1} GB/s from memory\n",
        crate::output::clean(&p.model),
        p.device,
        p.isa,
        p.threads,
        p.audio_s,
        p.features_ms,
        p.encoder_ms,
        p.decoder_ms,
        p.steps_ms,
        p.peak_gflops,
        p.peak_gbs,
    );
    let all = [&p.ops, &p.layers, &p.nodes, &p.kernels, &p.device_layers];
    text.push_str(&tables(all, by));
    text
}

/// The tables that are asked for, of shares by op, layer, node, kernel and layer of the device.
pub fn tables([ops, layers, nodes, kernels, device_layers]: [&Vec<Share>; 5], by: &[ByArg]) -> String {
    let mut text = String::new();
    for what in by {
        let (name, shares) = match what {
            ByArg::Op => ("op", ops),
            ByArg::Layer => ("layer", layers),
            ByArg::Node => ("node", nodes),
            ByArg::Kernel => ("device kernel", kernels),
            ByArg::DeviceLayer => ("device layer", device_layers),
        };
        // The CPU's kernels are its ops.
        if !shares.is_empty() {
            text.push_str(&table(name, shares));
        }
    }
    text
}

fn table(name: &str, shares: &[Share]) -> String {
    let width = shares.iter().map(|s| s.name.chars().count()).max().unwrap_or(0).max(name.len());
    let mut text = format!(
        "\n{name:<width$} {:>7} {:>9} {:>6} {:>8} {:>8} {:>8} {:>7} {:>8}\n",
        "calls", "ms", "share", "GFLOP", "GFLOP/s", "GB", "GB/s", "of peak"
    );
    for s in shares {
        text.push_str(&format!(
            "{:<width$} {:>7} {:>9.3} {:>5.1}% {:>8.3} {:>8.1} {:>8.4} {:>7.1} {:>7.0}%\n",
            s.name,
            s.calls,
            s.ms,
            s.share * 100.0,
            s.gflop,
            s.gflops,
            s.gb,
            s.gbs,
            s.of_peak * 100.0
        ));
    }
    text
}

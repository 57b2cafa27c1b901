//! `conure profile`.

use super::bench::{json, options, print, read};
use super::model;
use crate::args::{ByArg, ProfileArgs};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{Inputs, shown, to_file};
use conure::{LoadOptions, Profile, Share};

/// Shows where the time of a run goes.
///
/// # Errors
/// A model or a recording that cannot be used; a trace that cannot be written.
pub fn run(args: &ProfileArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    if let Some(path) = &args.trace {
        let read = Inputs::default().with("the model", &args.model).with("the recording", &args.audio);
        read.spare(path, "give another name with --trace")?;
    }
    let load = LoadOptions { profiling: true, ..model::options(&args.measure.compute)? };
    let model = model::load_with(Some(&args.model), &load)?;
    let recording = read(&model, &args.audio, interrupt)?;
    let profile = model
        .profile(&recording, &options(&args.measure, interrupt))
        .map_err(|e| model::failed(format!("cannot recognise {}", shown(&args.audio)), e))?;
    if let Some(path) = &args.trace {
        let trace = serde_json::json!({ "traceEvents": profile.trace, "displayTimeUnit": "ms" });
        to_file(path, |out| Ok(serde_json::to_writer(out, &trace)?))
            .map_err(|e| Failure::new(format!("cannot write {}", shown(path))).because(e))?;
    }
    print(if args.measure.json { json(&profile)? } else { text(&profile, &args.by) })
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
    for what in by {
        let (name, shares) = match what {
            ByArg::Op => ("op", &p.ops),
            ByArg::Layer => ("layer", &p.layers),
            ByArg::Node => ("node", &p.nodes),
            ByArg::Kernel => ("device kernel", &p.kernels),
            ByArg::DeviceLayer => ("device layer", &p.device_layers),
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

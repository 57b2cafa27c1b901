//! `conure vad`.

use super::transcribe::{input_options, source};
use crate::args::{VadArg, VadArgs};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{shown, to_stdout, warning};
use conure::{DetectOptions, Detected, LoadOptions, SpanOptions, Vad, detect_speech, load_vad};

/// How far below the beginning of speech its end lies.
const HYSTERESIS: f32 = 0.15;

/// The detector that an option names.
///
/// # Errors
/// Why its model cannot be used.
pub fn detector(arg: &VadArg) -> Result<Vad, Failure> {
    match arg {
        VadArg::Energy => Ok(Vad::Energy),
        // Its products are small: what carries them to another device costs more than they do.
        VadArg::Model(path) => {
            let options = LoadOptions { device: Some("cpu".to_owned()), ..LoadOptions::default() };
            load_vad(path, &options).map_err(|error| {
                let missing = !path.exists();
                let failure =
                    Failure::new(format!("cannot load the speech detector {}", shown(path))).because(error);
                if missing { failure.advice("say energy, or the path of a GGUF file") } else { failure }
            })
        }
    }
}

/// Says where in a recording somebody speaks.
///
/// # Errors
/// What cannot be read, a model that cannot be used.
pub fn run(args: &VadArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let vad = detector(&args.vad)?;
    let name = shown(&args.file);
    let options = DetectOptions {
        spans: SpanOptions {
            threshold: args.threshold,
            release: (args.threshold - HYSTERESIS).max(args.threshold / 2.0),
            min_speech: args.min_speech,
            min_silence: args.min_silence,
        },
        pad: args.pad,
        cancel: Some(interrupt.flag().clone()),
    };
    let found = detect_speech(&vad, source(&args.file, interrupt)?, &input_options(&args.input), &options);
    let found =
        found.map_err(|error| super::model::failed(format!("cannot search {name} for speech"), error))?;
    for text in &found.warnings {
        warning(&format!("{name}: {text}"));
    }
    let text = if args.json { as_json(args, &vad, &found)? } else { as_text(args, &found) };
    to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ())
}

fn as_text(args: &VadArgs, found: &Detected) -> String {
    if args.probabilities {
        let line =
            |(i, p): (usize, &f32)| format!("{:.3}\t{p:.4}\n", found.start + i as f64 * found.frame_seconds);
        return found.probabilities.iter().enumerate().map(line).collect();
    }
    found.spans.iter().map(|s| format!("{:.3}\t{:.3}\n", s.start, s.end)).collect()
}

fn as_json(args: &VadArgs, vad: &Vad, found: &Detected) -> Result<String, Failure> {
    let rounded = |value: f64, steps: f64| (value * steps).round() / steps;
    let segments: Vec<serde_json::Value> = found
        .spans
        .iter()
        .map(|s| serde_json::json!({ "start": rounded(s.start, 1e3), "end": rounded(s.end, 1e3) }))
        .collect();
    let mut json = serde_json::json!({
        "detector": vad.name(),
        "duration": rounded(found.duration, 1e3),
        "segments": segments,
    });
    if let Some(object) = json.as_object_mut() {
        if found.start > 0.0 {
            object.insert("start".into(), rounded(found.start, 1e3).into());
        }
        if args.probabilities {
            object.insert("frame_seconds".into(), found.frame_seconds.into());
            let list: Vec<f64> = found.probabilities.iter().map(|p| rounded(f64::from(*p), 1e4)).collect();
            object.insert("probabilities".into(), list.into());
        }
    }
    let text = serde_json::to_string_pretty(&json);
    text.map(|t| t + "\n").map_err(|e| Failure::new("cannot write what was found as JSON").because(e))
}

//! `conure quantize`.

use super::convert::writing;
use super::{megabytes, model};
use crate::args::QuantizeArgs;
use crate::failure::Failure;
use crate::inputs::recordings;
use crate::output::{Inputs, to_stdout};
use conure::{Calibration, CalibrationOptions, FileClip, ThreadBudget};
use conure_convert::{Calibrated, ConvertError, QuantiseOptions, QuantiseReport, TensorChange, quantise};
use indicatif::ProgressBar;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Stores a model's weights in a smaller type, and says what that costs.
///
/// # Errors
/// What is wrong with the input, the recordings or the output; nothing that would change.
pub fn run(args: &QuantizeArgs, cancel: &Arc<AtomicBool>) -> Result<(), Failure> {
    let budget = model::threads(args.threads);
    let clips = recordings(&args.calibrate)?;
    let read = clips.iter().fold(Inputs::default(), |read, clip| read.with("a recording", &clip.path));
    read.spare(&args.output, "give another name")?;
    let count = clips.len();
    let report = writing("quantise", &args.input, &args.output, args.quiet, cancel, |progress, bar| {
        let options = QuantiseOptions {
            target: args.dtype.into(),
            keep: args.keep.clone(),
            compatible: args.compatible,
            budget: budget.clone(),
            progress: Some(progress),
            ..QuantiseOptions::default()
        };
        if clips.is_empty() {
            return quantise(&args.input, &args.output, &options);
        }
        let failed =
            |e: conure::Error| ConvertError::Calibration { path: args.input.clone(), source: e.into() };
        let calibration = calibration(args, clips, &budget, cancel, bar).map_err(failed)?;
        let moments = |tensor: &str| {
            let found = calibration.moments(tensor);
            bar.set_message("");
            Ok(found?)
        };
        let calibrated = Some(Calibrated { recordings: count, moments: &moments });
        quantise(&args.input, &args.output, &QuantiseOptions { calibrated, ..options })
    })?;
    let text = match (args.json, args.quiet) {
        (true, _) => format!("{:#}\n", as_json(&report)),
        (false, true) => String::new(),
        (false, false) => as_text(&report),
    };
    to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ())
}

/// What the model is to hear, told on `bar`.
fn calibration(
    args: &QuantizeArgs,
    clips: Vec<FileClip>,
    budget: &ThreadBudget,
    cancel: &Arc<AtomicBool>,
    bar: &ProgressBar,
) -> Result<Calibration, conure::Error> {
    let bar = bar.clone();
    let told = move |done: usize, all: usize| bar.set_message(format!("hearing {} of {all}", done + 1));
    let options = CalibrationOptions {
        budget: budget.clone(),
        cancel: Some(cancel.clone()),
        progress: Some(Arc::new(told)),
    };
    Calibration::new(&args.input, clips, options)
}

fn as_json(report: &QuantiseReport) -> serde_json::Value {
    let tensors: Vec<_> = report
        .tensors
        .iter()
        .map(|t| {
            json!({
                "name": t.name,
                "shape": t.shape,
                "from": t.from.name(),
                "to": t.to.name(),
                "bytes_before": t.bytes_before,
                "bytes_after": t.bytes_after,
                "error": t.error,
                "products": t.products.map(|p| json!({ "nearest": p.nearest, "stored": p.stored })),
                "note": t.note,
            })
        })
        .collect();
    json!({
        "arch": report.arch,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "tensors": tensors,
    })
}

/// The tensors that changed or were meant to, then what all together take.
fn as_text(report: &QuantiseReport) -> String {
    let shown: Vec<&TensorChange> =
        report.tensors.iter().filter(|t| t.from != t.to || t.note.is_some()).collect();
    let width = shown.iter().map(|t| t.name.len()).max().unwrap_or(0);
    let calibrated = shown.iter().any(|t| t.products.is_some());
    let mut text = format!(
        "{:width$} {:>12} {:>5} {:>5} {:>10} {:>10} {:>8}{}\n",
        "tensor",
        "shape",
        "from",
        "to",
        "kB before",
        "kB after",
        "error %",
        if calibrated { format!(" {:>10} {:>10}", "nearest %", "products %") } else { String::new() }
    );
    for t in &shown {
        let shape = t.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
        let error = t.error.map_or_else(|| "-".to_owned(), |e| format!("{:.3}", 100.0 * e));
        let (from, to) = (t.from.name(), t.to.name());
        let (before, after) = (t.bytes_before as f64 / 1e3, t.bytes_after as f64 / 1e3);
        text.push_str(&format!(
            "{:width$} {shape:>12} {from:>5} {to:>5} {before:>10.1} {after:>10.1} {error:>8}",
            t.name
        ));
        match t.products {
            Some(p) => text.push_str(&format!(" {:>10.3} {:>10.3}", 100.0 * p.nearest, 100.0 * p.stored)),
            None if calibrated => text.push_str(&format!(" {:>10} {:>10}", "-", "-")),
            None => {}
        }
        if let Some(note) = &t.note {
            text.push_str(&format!("  {note}"));
        }
        text.push('\n');
    }
    let changed = report.tensors.iter().filter(|t| t.from != t.to).count();
    text.push_str(&format!(
        "{changed} of {} tensors changed: {} before, {} after ({:.0} %)\n",
        report.tensors.len(),
        megabytes(report.bytes_before),
        megabytes(report.bytes_after),
        100.0 * report.bytes_after as f64 / report.bytes_before.max(1) as f64
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use conure::DType;

    #[test]
    fn the_table_shows_what_changed_and_why_not() {
        let change = |name: &str, to, error, note: Option<&str>| TensorChange {
            name: name.into(),
            shape: vec![64, 32],
            from: DType::F32,
            to,
            bytes_before: 8192,
            bytes_after: if to == DType::F32 { 8192 } else { 2176 },
            error,
            products: None,
            note: note.map(Into::into),
        };
        let report = QuantiseReport {
            arch: "ctc".into(),
            tensors: vec![
                change("a.weight", DType::Q8_0, Some(0.0051), None),
                change("b.weight", DType::F32, None, Some("kept: b*")),
                change("c.bias", DType::F32, None, None),
            ],
            bytes_before: 30_000,
            bytes_after: 24_000,
        };
        let text = as_text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with("a.weight") && lines[1].ends_with("0.510"), "{text}");
        assert!(lines[2].contains("-  kept: b*"), "{text}");
        assert_eq!(lines[3], "1 of 3 tensors changed: 30.0 kB before, 24.0 kB after (80 %)");
        assert_eq!(as_json(&report)["tensors"][1]["note"], "kept: b*");
    }
}

//! `conure convert`.

use super::megabytes;
use crate::args::ConvertArgs;
use crate::failure::Failure;
use crate::output::{shown, to_stderr};
use conure_convert::{ConvertError, ConvertOptions, ConvertReport, OnProgress, Progress, convert};
use indicatif::ProgressBar;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Converts a model.
///
/// # Errors
/// What is wrong with the input or the output.
pub fn run(args: &ConvertArgs, cancel: &Arc<AtomicBool>) -> Result<(), Failure> {
    let report = writing("convert", &args.input, &args.output, args.quiet, cancel, |progress, _| {
        let options = ConvertOptions {
            dtype: args.dtype.into(),
            name: args.name.clone(),
            progress: Some(progress),
            ..ConvertOptions::default()
        };
        convert(&args.input, &args.output, &options)
    })?;
    if !args.quiet {
        to_stderr(&summary(&args.output, &report));
    }
    Ok(())
}

/// Does `work`, which makes `output` of `input`, under a bar, whose message it may set, and until `cancel` is set. `verb` is what it
/// does, for messages.
///
/// # Errors
/// An output that cannot be one; what `work` says.
pub(super) fn writing<T>(
    verb: &str,
    input: &Path,
    output: &Path,
    quiet: bool,
    cancel: &AtomicBool,
    work: impl FnOnce(OnProgress<'_>, &ProgressBar) -> Result<T, ConvertError>,
) -> Result<T, Failure> {
    if let Some(reason) = unusable(output) {
        return Err(Failure::usage(format!("cannot write {}", shown(output))).reason(reason));
    }
    let bar = bar(quiet);
    let told = |at: &Progress<'_>| {
        bar.set_length(at.total as u64);
        bar.set_position(at.done as u64);
        !cancel.load(Ordering::Relaxed)
    };
    let result = work(&told, &bar);
    bar.finish_and_clear();
    result.map_err(|error| match error {
        ConvertError::Cancelled => Failure::interrupted(),
        ConvertError::Calibration { .. } if cancel.load(Ordering::Relaxed) => Failure::interrupted(),
        error => Failure::new(format!("cannot {verb} {}", shown(input))).because(error),
    })
}

/// Why no file can be written there, as far as one can tell without trying.
fn unusable(output: &Path) -> Option<&'static str> {
    if output.as_os_str() == "-" {
        return Some("models go to a file, not to standard output: give its name, such as model.gguf");
    }
    if output.is_dir() {
        return Some("it is a folder: give the name of the file to write, such as model.gguf");
    }
    output.file_name().is_none().then_some("it names no file")
}

fn bar(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    crate::terminal::bar(None, "converting {bar:32} {pos}/{len} tensors {elapsed:>4} {msg}")
}

fn summary(output: &Path, report: &ConvertReport) -> String {
    let types: Vec<String> =
        report.tensors.iter().map(|(dtype, n)| format!("{n} {}", dtype.name())).collect();
    let mut text = format!(
        "{} ({}) to {}: {}, {:.1} M parameters, tensors {}",
        report.format,
        report.arch,
        shown(output),
        megabytes(report.bytes),
        report.parameters as f64 / 1e6,
        types.join(", "),
    );
    for (list, verb) in [(&report.kept, "kept as stored"), (&report.dropped, "left out")] {
        if let Some((name, reason)) = list.first() {
            let more = if list.len() > 1 { format!(" (and {} more)", list.len() - 1) } else { String::new() };
            text.push_str(&format!("\n{verb}: {name}{more}: {reason}"));
        }
    }
    text
}

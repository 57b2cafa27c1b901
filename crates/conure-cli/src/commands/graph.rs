//! `conure graph`.

use super::{language, language_inspect, megabytes, model};
use crate::args::{GraphArgs, PartArg};
use crate::failure::Failure;
use crate::output::{Inputs, save, shown, to_stdout};
use conure::{Drawing, Error, Lengths, Part, Passes, SpeechModel};
use std::path::Path;

/// Lengths of the memory table, in minutes.
const MINUTES: [usize; 4] = [1, 5, 10, 60];
/// Encoder frames to each side that its column of local attention sees: what models are trained with.
const WINDOW: usize = 128;

/// Draws a graph, or prints what is asked about it.
///
/// # Errors
/// A model that cannot be loaded, a part that it has not, an output that cannot be written.
pub fn run(args: &GraphArgs) -> Result<(), Failure> {
    let form = args.output.as_deref().map(|path| Ok::<_, Failure>((path, Form::of(path)?))).transpose()?;
    if let Some((path, _)) = form {
        Inputs::default().with("the model", &args.model).spare(path, "give another name with --output")?;
    }
    if language::is_in(&args.model) {
        return language_inspect::graph(args, form);
    }
    // Memory and placement are those of a run, which rewrites.
    let rewritten = args.passes || args.placement || args.memory || !args.compute.without_pass.is_empty();
    let passes = if rewritten { args.compute.passes()? } else { Passes::none() };
    let model = model::load_rewritten(Some(&args.model), &args.compute, passes)?;
    let part = match args.part {
        None | Some(PartArg::Encoder) => Part::Encoder,
        Some(PartArg::Predictor) => Part::Predictor,
        Some(PartArg::Joint) => Part::Joint,
    };
    if args.memory && (part != Part::Encoder || !model.recogniser().device().is_cpu()) {
        return Err(Failure::usage("--memory tells what the encoder's intermediates take on the CPU")
            .advice("leave --part and --device out"));
    }
    let what = |e: Error| model::failed(format!("cannot look into {}", shown(&args.model)), e);
    let mut text = String::new();
    if args.placement {
        text.push_str(&model.placement(part, args.local_attention).map_err(what)?.to_string());
    }
    let lengths = Lengths { frames: bound(args, 'T'), batch: bound(args, 'B') };
    if args.memory {
        let frames: Vec<usize> = match lengths.frames {
            Some(frames) => vec![frames],
            None => MINUTES.iter().map(|m| m * 60 * frames_a_second(&model)).collect(),
        };
        text.push_str(
            &memory(&model, &frames, lengths.batch.unwrap_or(1), args.local_attention.unwrap_or(WINDOW))
                .map_err(what)?,
        );
    }
    if let Some((path, form)) = form {
        let drawing = model.drawing(part, args.local_attention, lengths, args.placement).map_err(what)?;
        form.write(&drawing, path)?;
    }
    to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ())
}

/// The number that `symbol` is to have.
pub fn bound(args: &GraphArgs, symbol: char) -> Option<usize> {
    args.bind.iter().rev().find(|b| b.0 == symbol).map(|b| b.1)
}

/// How a graph is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Scalable vectors.
    Svg,
    /// For Graphviz.
    Dot,
    /// For programs.
    Json,
}

impl Form {
    fn of(path: &Path) -> Result<Form, Failure> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
        match extension.as_str() {
            "svg" => Ok(Form::Svg),
            "dot" | "gv" => Ok(Form::Dot),
            "json" => Ok(Form::Json),
            _ => Err(Failure::usage(format!("cannot tell how to draw {}", shown(path)))
                .advice("give a name that ends in .svg, .dot or .json")),
        }
    }

    /// Draws to a file.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn write(self, drawing: &Drawing, path: &Path) -> Result<(), Failure> {
        let drawn = self.of_drawing(drawing)?;
        save(path, |out| out.write_all(drawn.as_bytes()))
    }

    fn of_drawing(self, drawing: &Drawing) -> Result<String, Failure> {
        match self {
            Form::Svg => Ok(drawing.to_svg()),
            Form::Dot => Ok(drawing.to_dot()),
            Form::Json => serde_json::to_string_pretty(drawing)
                .map(|json| json + "\n")
                .map_err(|e| Failure::new("cannot write JSON").because(e)),
        }
    }
}

fn frames_a_second(model: &SpeechModel) -> usize {
    let mel = &model.info().preprocessor;
    mel.sample_rate as usize / mel.hop_length.max(1)
}

/// The table of arenas of `clips` recordings together: a row per length.
fn memory(model: &SpeechModel, frames: &[usize], clips: usize, window: usize) -> Result<String, Error> {
    let local = format!("local attention, {window}");
    let mut text =
        format!("{:>12} {:>18} {:>22} {:>20}\n", "audio", "full attention", local, "a second of it");
    for &n in frames {
        let seconds = n as f64 / frames_a_second(model) as f64;
        let [full, banded] = [None, Some(window)].map(|window| model.arena_bytes(n, clips, window));
        let banded = banded?;
        let row = [
            if seconds >= 60.0 {
                format!("{} min", to_tenth(seconds / 60.0))
            } else {
                format!("{seconds} s")
            },
            megabytes(full? as u64),
            megabytes(banded as u64),
            megabytes((banded as f64 / seconds) as u64),
        ];
        text.push_str(&format!("{:>12} {:>18} {:>22} {:>20}\n", row[0], row[1], row[2], row[3]));
    }
    Ok(text)
}

/// A number with one decimal, if it has any.
fn to_tenth(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_says_how_it_is_drawn() {
        for (name, form) in [("a.svg", Form::Svg), ("A.DOT", Form::Dot), ("x/y.json", Form::Json)] {
            assert_eq!(Form::of(Path::new(name)).unwrap(), form);
        }
        assert!(Form::of(Path::new("svg")).is_err() && Form::of(Path::new("a.png")).is_err());
    }
}

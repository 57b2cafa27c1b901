//! `conure capture`.

use super::{language, model};
use crate::args::{CaptureArgs, TextArgs, is_stdin};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{Inputs, note, shown, to_file, to_stdout, warning};
use conure::{AudioOptions, Error, RecogniseOptions, Samples, SessionOptions, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

/// Lists a model's named results, or saves those asked for.
///
/// # Errors
/// If the model or the audio cannot be used, a name is not known, or the output not be written.
pub fn run(args: &CaptureArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    if language::is_in(&args.model) {
        return of_text(args, interrupt);
    }
    if args.prompt.is_some() || args.file.is_some() {
        return Err(Failure::usage("--prompt and --file are for language models: MODEL hears recordings"));
    }
    let model = model::load(Some(&args.model), &args.compute)?;
    if args.list {
        let names = model.node_names().map_err(|e| model::failed("cannot list the names", e))?;
        return to_stdout(|out| names.iter().try_for_each(|name| writeln!(out, "{name}"))).map(|_| ());
    }
    let (Some(audio), Some(output)) = (&args.audio, &args.output) else {
        return Err(Failure::usage("AUDIO and --output are needed, or --list"));
    };
    let read = Inputs::default().with("the model", &args.model).with("the recording", audio);
    read.spare(output, "give another name with --output")?;
    let names = names(args);
    let what = format!("cannot capture from {}", shown(audio));
    let tensors = model::contained(&what, || {
        let source = super::transcribe::source(audio, interrupt)?;
        let recording = model.read(source, &AudioOptions::default()).map_err(|e| model::failed(&what, e))?;
        let samples = Samples::mono(&recording.samples, recording.sample_rate);
        let options =
            RecogniseOptions { cancel: Some(interrupt.flag().clone()), ..RecogniseOptions::default() };
        model.capture(samples, &names, &options).map_err(|e| {
            let failure = model::failed(&what, e);
            if interrupt.requested() {
                return Failure::interrupted();
            }
            failure.advice("`conure capture MODEL --list` lists the names of this model")
        })
    })?;
    keep(output, &tensors)
}

/// The same of a language model and a text.
fn of_text(args: &CaptureArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    if let Some(audio) = &args.audio {
        return Err(Failure::usage(format!("{} is not heard: MODEL is a language model", shown(audio)))
            .advice("give a text with --prompt or --file"));
    }
    let loaded = language::load(&args.model, &args.compute)?;
    if args.list {
        let names = loaded.node_names().map_err(|e| model::failed("cannot list the names", e))?;
        return to_stdout(|out| names.iter().try_for_each(|name| writeln!(out, "{name}"))).map(|_| ());
    }
    let Some(output) = &args.output else {
        return Err(Failure::usage("--output is needed, or --list"));
    };
    let read = Inputs::default().with("the model", &args.model);
    let read = if let Some(file) = &args.file { read.with("the text", file) } else { read };
    read.spare(output, "give another name with --output")?;
    let text = TextArgs { prompt: args.prompt.clone(), file: args.file.clone() };
    let (text, names, what) =
        (language::text(&text, interrupt)?, names(args), "cannot capture from the text");
    let tensors = model::contained(what, || {
        let mut session = loaded.session(&SessionOptions::default()).map_err(|e| model::failed(what, e))?;
        session.set_cancel(Some(interrupt.flag().clone()));
        let ids = loaded.tokenizer().encode(&text, false, true).map_err(conure::LanguageError::from);
        let captured = ids.and_then(|ids| session.capture(&ids, &names));
        captured.map_err(|e| {
            let failure = model::failed(what, Error::from(e));
            if interrupt.requested() {
                return Failure::interrupted();
            }
            failure.advice("`conure capture MODEL --list` lists the names of this model")
        })
    })?;
    keep(output, &tensors)
}

/// The names that are asked for, each once.
fn names(args: &CaptureArgs) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for name in &args.node {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// Writes tensors and says what they are.
fn keep(output: &Path, tensors: &[(String, Tensor)]) -> Result<(), Failure> {
    save(output, tensors)?;
    for (name, tensor) in tensors {
        note(&format!("{name}: {:?}", tensor.shape()));
        let wild = tensor.as_slice::<f32>().map_or(0, |v| v.iter().filter(|x| !x.is_finite()).count());
        if wild > 0 {
            warning(&format!("{name}: {wild} values are infinite or no numbers: the model is damaged"));
        }
    }
    Ok(())
}

fn save(output: &Path, tensors: &[(String, Tensor)]) -> Result<(), Failure> {
    let fail = || Failure::new(format!("cannot write {}", shown(output)));
    if is_stdin(output) {
        return Err(Failure::usage("safetensors go to a file: give its name with --output"));
    }
    let views = tensors
        .iter()
        .map(|(name, tensor)| {
            let view = TensorView::new(Dtype::F32, tensor.shape().to_vec(), tensor.view().bytes())?;
            Ok((name.as_str(), view))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|e| fail().because(e))?;
    let bytes = safetensors::serialize(views, None).map_err(|e| fail().because(e))?;
    to_file(output, |out| out.write_all(&bytes)).map_err(|e| fail().because(e))
}

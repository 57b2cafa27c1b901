//! `conure capture`.

use super::model;
use crate::args::{CaptureArgs, is_stdin};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{Inputs, note, shown, to_file, to_stdout, warning};
use conure::{AudioOptions, RecogniseOptions, Samples, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

/// Lists a model's named results, or saves those asked for.
///
/// # Errors
/// If the model or the audio cannot be used, a name is not known, or the output not be written.
pub fn run(args: &CaptureArgs, interrupt: &Interrupt) -> Result<(), Failure> {
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
    let mut names: Vec<&str> = Vec::new();
    for name in &args.node {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
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
    save(output, &tensors)?;
    for (name, tensor) in &tensors {
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

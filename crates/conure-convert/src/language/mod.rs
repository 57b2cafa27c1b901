//! Hugging Face folders of language models: config.json, safetensors (one file or shards), tokenizer.json or tokenizer.model.

mod config;
mod experts;
mod sentencepiece;
mod tensors;
mod tokenizer;

use crate::config::Value;
use crate::convert::{ConvertOptions, ConvertReport, Counter, default_name, encode, finish};
use crate::error::ConvertError;
use crate::hf::{CONFIG, Shards, open_shards, read_json};
use crate::quantise::{TargetType, is_language_matrix};
use conure_gguf::{GgufWriter, MetaValue};
use conure_tensor::DType;
use std::path::Path;
use tensors::Out;

/// Keys and values of a GGUF file, in order.
pub(crate) type Keys = Vec<(String, MetaValue)>;

/// Whether the folder holds a language model of a family that can be converted.
pub(crate) fn is_language(path: &Path) -> Result<bool, ConvertError> {
    let cfg = read_json(path, CONFIG)?;
    Ok(cfg.str("model_type").ok().flatten().is_some_and(|t| config::Family::named(t).is_some()))
}

/// Whether `architecture` is that of a language model that can be converted.
pub(crate) fn knows(architecture: &str) -> bool {
    config::Family::ALL.iter().any(|f| f.architecture() == architecture)
}

/// Converts the folder `input`.
///
/// # Errors
/// What is missing or cannot be expressed in GGUF, by file and key or tensor.
pub(crate) fn convert(
    input: &Path,
    output: &Path,
    options: &ConvertOptions<'_>,
) -> Result<ConvertReport, ConvertError> {
    let cfg = read_json(input, CONFIG)?;
    // Models that also see pictures keep the language model's settings in a part of their own.
    let cfg = match cfg.get("text_config") {
        Some(text @ Value::Map(_)) => text.clone(),
        _ => cfg,
    };
    let fail = |source| ConvertError::Config { path: input.into(), member: CONFIG.into(), source };
    let model = config::read(&cfg).map_err(fail)?;
    let shards = open_shards(input, str::to_owned)?;
    let (tensors, dropped) = tensors::choose(input, &model, &shards)?;
    let vocabulary = tensors.iter().find(|t| t.name == "token_embd.weight").map_or(0, |t| t.shape[0]);
    let tokenizer = tokenizer::read(input, vocabulary)?;

    let counter = Counter::new(tensors.len(), options.progress);
    let mut writer = GgufWriter::new();
    writer.meta("general.architecture", model.family.architecture());
    writer.meta("general.name", options.name.clone().unwrap_or_else(|| default_name(input)));
    for (key, text) in &options.general {
        writer.meta(key, text.as_str());
    }
    for (key, value) in model.keys.iter().chain(&tokenizer) {
        writer.meta(key, value.clone());
    }
    let mut report = ConvertReport::new("Hugging Face folder", model.family.architecture(), dropped);
    for tensor in &tensors {
        let (dtype, reason) = stored_as(tensor, options.dtype);
        report.kept.extend(reason.map(|r| (tensor.name.clone(), r)));
        report.count(dtype, &tensor.shape);
        let (counter, shards) = (&counter, &shards);
        writer.tensor_with(&tensor.name, dtype, &tensor.shape, move |out| {
            counter.step(&tensor.name)?;
            for piece in 0..tensor.pieces() {
                let bytes = match tensor.block_bytes(shards, piece)? {
                    Some(bytes) => bytes,
                    None => encode(input, &tensor.name, dtype, &tensor.values(shards, piece)?)?,
                };
                out.write_all(&bytes)?;
            }
            Ok(())
        });
    }
    report.bytes = finish(writer, output)?;
    Ok(report)
}

/// The type for a tensor, and the reason where a matrix has another than was asked for.
fn stored_as(tensor: &Out, target: TargetType) -> (DType, Option<String>) {
    let wanted = target.dtype();
    if let Some(stored) = tensor.blocks() {
        let reason = format!("it is {stored} in the checkpoint already");
        return (stored, (wanted != stored).then_some(reason));
    }
    let matrix = is_language_matrix(&tensor.name, &tensor.shape);
    let columns = match *tensor.shape {
        [_, columns] | [_, _, columns] if matrix => columns,
        _ => return (DType::F32, None),
    };
    if wanted != DType::F32 && columns % wanted.block_len() != 0 {
        let block = wanted.block_len();
        return (DType::F32, Some(format!("its rows of {columns} do not fill blocks of {block}")));
    }
    (wanted, None)
}

/// The source of a folder's tensors, under their own names.
pub(crate) type Source = Shards;

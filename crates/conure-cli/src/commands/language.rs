//! What the commands for language models share: the model, the text, the session.

use super::model;
use crate::args::{CacheArg, ComputeArgs, TextArgs, is_stdin};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{shown, warning};
use conure::{DType, LanguageModel, LoadOptions};
use std::io::Read;
use std::path::Path;

/// The most bytes of a text.
const MAX_TEXT: u64 = 1 << 30;

/// Whether a language model is at `path`. What cannot be read is none: who loads it says why.
pub fn is_in(path: &Path) -> bool {
    !model::is_embedded(Some(path)) && LanguageModel::is_in(path).unwrap_or(false)
}

/// How a language model is loaded.
///
/// # Errors
/// Options that it has no use for.
pub fn options(compute: &ComputeArgs) -> Result<LoadOptions, Failure> {
    if !compute.without_pass.is_empty() {
        return Err(Failure::usage(
            "--without-pass leaves out rewrites of speech models' graphs: MODEL is a language model, \
            whose graph is built as it runs",
        ));
    }
    model::options(compute)
}

/// The language model at `path`, with its warnings shown.
///
/// # Errors
/// Why it cannot be used.
pub fn load(path: &Path, compute: &ComputeArgs) -> Result<LanguageModel, Failure> {
    let loaded =
        LanguageModel::load_with(path, &options(compute)?).map_err(|e| model::not_loaded(path, e))?;
    loaded.info().warnings.iter().for_each(|w| warning(w));
    Ok(loaded)
}

/// The text that is given, or in the file that is named.
///
/// # Errors
/// A file that cannot be read or is not UTF-8.
pub fn text(args: &TextArgs, interrupt: &Interrupt) -> Result<String, Failure> {
    match (&args.prompt, &args.file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) => read(path, interrupt),
        (None, None) => Err(Failure::usage("--prompt or --file is needed")),
    }
}

/// The text in a file, or on standard input.
///
/// # Errors
/// A file that cannot be read or is not UTF-8.
pub fn read(path: &Path, interrupt: &Interrupt) -> Result<String, Failure> {
    let fail = || Failure::new(format!("cannot read {}", shown(path)));
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = if is_stdin(path) {
        Box::new(interrupt.waits(std::io::stdin().lock()))
    } else {
        Box::new(std::fs::File::open(path).map_err(|e| fail().because(e))?)
    };
    source.take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(|e| fail().because(e))?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(fail().reason("it is longer than 1 GiB"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        fail().reason(format!("it is not UTF-8 at byte {at}")).advice("convert it, for example with iconv")
    })
}

/// The element type that is meant.
pub fn cache(arg: CacheArg) -> DType {
    match arg {
        CacheArg::F32 => DType::F32,
        CacheArg::F16 => DType::F16,
        CacheArg::Bf16 => DType::BF16,
        CacheArg::Q8_0 => DType::Q8_0,
    }
}

//! `conure perplexity`.

use super::{language, model};
use crate::args::PerplexityArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::to_stdout;
use conure::{Error, LanguageError, SessionOptions, perplexity};
use serde_json::json;

/// Measures how well a model foresees a text.
///
/// # Errors
/// If the model or the text cannot be used, or standard output not be written.
pub fn run(args: &PerplexityArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let what = "cannot measure the perplexity";
    let text = language::read(&args.file, interrupt)?;
    let loaded = language::load(&args.model, &args.compute)?;
    let options = SessionOptions { context: Some(args.chunk.max(1)), cache: language::cache(args.cache) };
    let found = model::contained(what, || {
        let failed = |e: LanguageError| model::failed(what, Error::from(e));
        let mut session = loaded.session(&options).map_err(|e| model::failed(what, e))?;
        session.set_cancel(Some(interrupt.flag().clone()));
        let ids = loaded.tokenizer().encode(&text, false, false).map_err(|e| failed(e.into()))?;
        perplexity(&mut session, &ids, args.chunk).map_err(failed)
    })?;
    let scored = found.surprises.len();
    to_stdout(|out| {
        if args.json {
            let (perplexity, error) = (found.perplexity, found.error);
            let all =
                json!({"perplexity": perplexity, "error": error, "tokens": scored, "chunks": found.chunks});
            return writeln!(out, "{all:#}");
        }
        let (value, error, chunks) = (found.perplexity, found.error, found.chunks);
        writeln!(out, "{value:.4} +/- {error:.4} ({scored} tokens in {chunks} chunks of {})", args.chunk)
    })
    .map(|_| ())
}

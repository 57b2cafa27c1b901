//! `conure tokenize`.

use super::{language, model};
use crate::args::{ComputeArgs, TokenizeArgs};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{clean, to_stdout};
use conure::{Error, LanguageError};
use serde_json::json;

/// Shows the tokens of a text.
///
/// # Errors
/// If the model or the text cannot be used, or standard output not be written.
pub fn run(args: &TokenizeArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let text = language::text(&args.text, interrupt)?;
    let one_thread =
        ComputeArgs { threads: Some(1), device: Some("cpu".to_owned()), ..ComputeArgs::default() };
    let loaded = language::load(&args.model, &one_thread)?;
    let tokenizer = loaded.tokenizer();
    let ids = tokenizer
        .encode(&text, args.special, !args.plain)
        .map_err(|e| model::failed("cannot tokenize the text", Error::from(LanguageError::from(e))))?;
    let pieces: Vec<String> = ids.iter().map(|&id| tokenizer.piece_text(id).into_owned()).collect();
    to_stdout(|out| {
        if args.json {
            return writeln!(out, "{:#}", json!({"ids": ids, "pieces": pieces}));
        }
        let mut lines = ids.iter().zip(&pieces);
        lines.try_for_each(|(id, piece)| writeln!(out, "{id}\t{}", clean(piece).replace('\n', "\\n")))
    })
    .map(|_| ())
}

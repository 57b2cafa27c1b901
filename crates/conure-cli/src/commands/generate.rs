//! `conure generate`.

use super::{language, model};
use crate::args::{GenerateArgs, GrammarArgs, SamplingArgs};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{note, to_stdout};
use conure::{Error, Finish, GenerateOptions, Generation, Grammar, Sampling, SessionOptions, Timings};
use serde_json::json;
use std::path::Path;

/// Continues a text.
///
/// # Errors
/// If the model or the text cannot be used, or standard output not be written.
pub fn run(args: &GenerateArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let what = "cannot continue the text";
    let text = language::text(&args.text, interrupt)?;
    let grammar = grammar(&args.grammar, interrupt)?;
    let loaded = language::load(&args.model, &args.compute)?;
    let failed = |e: conure::LanguageError| model::failed(what, Error::from(e));
    let options =
        SessionOptions { context: args.context.context, cache: language::cache(args.context.cache) };
    model::contained(what, || {
        let mut session = loaded.session(&options).map_err(|e| model::failed(what, e))?;
        session.set_cancel(Some(interrupt.flag().clone()));
        let prompt = loaded.tokenizer().encode(&text, false, true).map_err(|e| failed(e.into()))?;
        let options = GenerateOptions {
            max_tokens: args.max_tokens,
            sampling: sampling(&args.sampling),
            stop: args.stop.clone(),
            ignore_end: args.ignore_eos,
            context_shift: args.context.context_shift,
            grammar: grammar.clone(),
            logprobs: args.logprobs,
        };
        let mut generation = session.generate_ids(&prompt, &options).map_err(failed)?;
        if args.json {
            return as_json(&prompt, &mut generation).map_err(failed).and_then(|json| print(&json));
        }
        show(&mut generation, interrupt)
    })
}

/// What the text must be, as the options say. A schema begins with a brace, or is a truth value; else a file has it.
fn grammar(args: &GrammarArgs, interrupt: &Interrupt) -> Result<Option<Grammar>, Failure> {
    if let Some(schema) = &args.json_schema {
        let itself = schema.trim_start().starts_with('{') || matches!(schema.trim(), "true" | "false");
        let text = if itself { schema.clone() } else { language::read(Path::new(schema), interrupt)? };
        return Ok(Some(Grammar::JsonSchema(text)));
    }
    if let Some(path) = &args.grammar {
        return Ok(Some(Grammar::Lark(language::read(path, interrupt)?)));
    }
    Ok(args.regex.clone().map(Grammar::Regex))
}

/// Shows pieces as they come. Ctrl-C ends the text.
fn show(generation: &mut Generation<'_>, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut failure = None;
    to_stdout(|out| {
        for piece in generation.by_ref() {
            match piece {
                Ok(piece) if piece.text.is_empty() => {}
                Ok(piece) => {
                    out.write_all(piece.text.as_bytes())?;
                    out.flush()?;
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        out.write_all(b"\n")
    })?;
    if interrupt.requested() {
        return Err(Failure::interrupted());
    }
    if let Some(error) = failure {
        return Err(model::failed("cannot continue the text", Error::from(error)));
    }
    if generation.finish() == Some(Finish::ContextFull) {
        note("the context is full; --context gives more room, --context-shift forgets what is old");
    }
    Ok(())
}

fn as_json(
    prompt: &[u32],
    generation: &mut Generation<'_>,
) -> Result<serde_json::Value, conure::LanguageError> {
    let (mut ids, mut text, mut logprobs) = (Vec::new(), String::new(), Vec::new());
    for piece in generation.by_ref() {
        let piece = piece?;
        ids.push(piece.id);
        text.push_str(&piece.text);
        if let Some(logprob) = piece.logprob {
            let top: Vec<_> = piece.top.iter().map(|(id, l)| json!({"id": id, "logprob": l})).collect();
            logprobs.push(json!({"id": piece.id, "logprob": logprob, "top": top}));
        }
    }
    let finish = match generation.finish() {
        Some(Finish::Length) => "length",
        Some(Finish::ContextFull) => "context_full",
        _ => "stop",
    };
    Ok(json!({
        "prompt_ids": prompt,
        "ids": ids,
        "text": text,
        "logprobs": logprobs,
        "finish": finish,
        "seed": generation.seed(),
        "timings": timings(&generation.timings()),
    }))
}

fn timings(t: &Timings) -> serde_json::Value {
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let (prompt, generate) = (t.prompt_time.as_secs_f64(), t.generate_time.as_secs_f64());
    json!({
        "prompt_tokens": t.prompt,
        "prompt_seconds": prompt,
        "prompt_tokens_per_second": rate(t.prompt, prompt),
        "generated_tokens": t.generated,
        // The first token comes with the prompt.
        "generate_seconds": generate,
        "context_shifts": t.shifts,
        "generated_tokens_per_second": rate(t.generated.saturating_sub(1), generate),
    })
}

fn print(json: &serde_json::Value) -> Result<(), Failure> {
    to_stdout(|out| writeln!(out, "{json:#}")).map(|_| ())
}

/// How tokens are chosen, as the options say.
pub fn sampling(args: &SamplingArgs) -> Sampling {
    Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        frequency_penalty: args.frequency_penalty,
        presence_penalty: args.presence_penalty,
        seed: args.seed,
        ..Sampling::default()
    }
}

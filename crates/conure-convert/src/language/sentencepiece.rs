//! tokenizer.model, SentencePiece's own file, as the `tokenizer.*` keys of a GGUF file.

use super::Keys;
use super::tokenizer::signs;
use crate::config::{ConfigError, Value};
use crate::tokenizer::{Cutting, Piece, PieceKind, TokenizerError, cutting, sentencepiece};
use conure_gguf::MetaValue;

/// The keys of the model in `bytes`, whose embedding has `rows` rows; `settings` are those of tokenizer_config.json.
pub(super) fn keys(bytes: &[u8], settings: &Value, rows: usize) -> Result<Keys, TokenizerError> {
    let (pieces, cutting) = (sentencepiece(bytes)?, cutting(bytes)?);
    let unigram = expressible(&cutting)?;
    if pieces.len() > rows {
        let reason = format!("the embedding has {rows} rows for {} pieces", pieces.len());
        return Err(TokenizerError::Piece { id: rows, reason });
    }
    // Embeddings may have rows that no token uses.
    let mut kinds: Vec<i32> = pieces.iter().map(|p| number(p.kind)).collect();
    kinds.resize(rows, number(PieceKind::Unused));
    let mut scores: Vec<f32> = pieces.iter().map(|p| p.score).collect();
    scores.resize(rows, 0.0);
    let count = pieces.len();
    let mut texts: Vec<String> = pieces.into_iter().map(|Piece { text, .. }| text).collect();
    texts.extend((count..rows).map(|i| format!("[PAD{i}]")));
    for (id, text, special) in added(settings)? {
        let (Some(slot), Some(kind)) = (texts.get_mut(id), kinds.get_mut(id)) else {
            let reason = format!("{text:?} is added, and the embedding has {rows} rows");
            return Err(TokenizerError::Piece { id, reason });
        };
        // The model's own pieces keep their texts, and the sign for what is unknown stays it.
        if id >= count {
            text.clone_into(slot);
        }
        if id >= count || *kind == number(PieceKind::Normal) {
            *kind = number(if special { PieceKind::Control } else { PieceKind::UserDefined });
        }
    }
    let mut keys: Keys = Vec::new();
    let mut put = |name: &str, value: MetaValue| keys.push((format!("tokenizer.ggml.{name}"), value));
    put("model", if unigram { "t5" } else { "llama" }.into());
    put("pre", "default".into());
    put("scores", scores.into());
    put("add_space_prefix", cutting.space_before.into());
    if unigram {
        put("remove_extra_whitespaces", cutting.single_spaces.into());
        if !cutting.charsmap.is_empty() {
            put("precompiled_charsmap", cutting.charsmap.into());
        }
    }
    signs(settings, &texts, cutting.signs, !unigram, &mut put);
    put("tokens", MetaValue::strings(&texts));
    put("token_type", kinds.into());
    Ok(keys)
}

/// Whether the model is unigram; refuses what readers of GGUF could not do.
fn expressible(cutting: &Cutting) -> Result<bool, TokenizerError> {
    let refuse = |key: &str, found: &str, expected: &str| -> TokenizerError {
        ConfigError::unexpected(key, found, expected).into()
    };
    let unigram = match cutting.model_type {
        1 => true,
        2 => false,
        other => {
            let expected = "1 (unigram) or 2 (byte-pair encoding)";
            return Err(refuse("trainer_spec.model_type", &other.to_string(), expected));
        }
    };
    if cutting.space_after {
        return Err(refuse("trainer_spec.treat_whitespace_as_suffix", "true", "false"));
    }
    if !cutting.marks_spaces {
        return Err(refuse("normalizer_spec.escape_whitespaces", "false", "true"));
    }
    if !unigram && cutting.single_spaces {
        let expected = "false: byte-pair encoding of GGUF files leaves spaces as they are";
        return Err(refuse("normalizer_spec.remove_extra_whitespaces", "true", expected));
    }
    if !unigram && !cutting.charsmap.is_empty() {
        let found = format!("{} bytes of rules", cutting.charsmap.len());
        let expected = "none: byte-pair encoding of GGUF files leaves characters as they are";
        return Err(refuse("normalizer_spec.precompiled_charsmap", &found, expected));
    }
    Ok(unigram)
}

/// Tokens that the settings add: number, text, and whether it is a sign for the model.
fn added(settings: &Value) -> Result<Vec<(usize, &str, bool)>, TokenizerError> {
    let key = "added_tokens_decoder";
    let Some(Value::Map(entries)) = settings.get(key) else { return Ok(Vec::new()) };
    let wrong = |id: &str| {
        ConfigError::unexpected(key, format!("{id:?}"), "numbers of tokens, each with its content")
    };
    let of = |(id, token): &'_ (String, Value)| -> Option<(usize, bool)> {
        Some((id.parse().ok()?, token.bool("special").ok().flatten().unwrap_or(false)))
    };
    let mut out = Vec::with_capacity(entries.len());
    for entry in entries {
        let ((id, special), Some(text)) =
            (of(entry).ok_or_else(|| wrong(&entry.0))?, entry.1.str("content")?)
        else {
            return Err(wrong(&entry.0).into());
        };
        out.push((id, text, special));
    }
    Ok(out)
}

/// `tokenizer.ggml.token_type`.
fn number(kind: PieceKind) -> i32 {
    match kind {
        PieceKind::Normal => 1,
        PieceKind::Unknown => 2,
        PieceKind::Control => 3,
        PieceKind::UserDefined => 4,
        PieceKind::Unused => 5,
        PieceKind::Byte => 6,
    }
}

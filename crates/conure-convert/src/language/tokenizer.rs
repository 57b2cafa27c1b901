//! tokenizer.json as the `tokenizer.*` keys of a GGUF file.

use super::Keys;
use super::sentencepiece;
use crate::config::{self, ConfigError, Value};
use crate::error::ConvertError;
use crate::hf::{read_file, read_json};
use crate::tokenizer::{MAX_TOKENIZER, TokenizerError, hugging_face};
use conure_gguf::MetaValue;
use std::collections::HashMap;
use std::path::Path;

const TOKENIZER: &str = "tokenizer.json";
const MODEL: &str = "tokenizer.model";
const SETTINGS: &str = "tokenizer_config.json";

/// How words are cut: a part of the pattern that tells the way apart, and its name. The first that fits.
const WAYS: [(&str, &str); 5] = [
    (r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:", "gpt-4o"),
    (r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|", "tekken"),
    (r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|", "qwen35"),
    (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|", "llama-bpe"),
    (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|", "qwen2"),
];

/// The tokenizer in `folder`, of a model whose embedding has `rows` rows: tokenizer.json, or if there is none tokenizer.model.
pub(super) fn read(folder: &Path, rows: usize) -> Result<Keys, ConvertError> {
    let json_there = folder.join(TOKENIZER).exists() || !folder.join(MODEL).exists();
    let member = if json_there { TOKENIZER } else { MODEL };
    let bytes = read_file(folder, member, MAX_TOKENIZER)?;
    let fail = |source: TokenizerError| ConvertError::Tokenizer {
        path: folder.into(),
        member: member.into(),
        source,
    };
    let settings =
        if folder.join(SETTINGS).exists() { read_json(folder, SETTINGS)? } else { Value::Map(Vec::new()) };
    let keys = if json_there {
        config::from_json(&bytes)
            .map_err(TokenizerError::from)
            .and_then(|json| of_json(&bytes, &json, &settings, rows))
    } else {
        sentencepiece::keys(&bytes, &settings, rows)
    };
    let mut keys = keys.map_err(fail)?;
    if let Some(template) = template(folder, &settings)? {
        keys.push(("tokenizer.chat_template".into(), template.as_str().into()));
    }
    Ok(keys)
}

fn of_json(bytes: &[u8], json: &Value, settings: &Value, rows: usize) -> Result<Keys, TokenizerError> {
    if json.str("model.type")?.is_some_and(|t| t != "BPE") {
        let found = json.str("model.type")?.unwrap_or_default();
        return Err(ConfigError::unexpected("model.type", format!("{found:?}"), "BPE").into());
    }
    let known = count(json)?;
    let mut texts = hugging_face(bytes, known)?;
    if known > rows {
        let reason = format!("the embedding has {rows} rows for {known} pieces");
        return Err(TokenizerError::Piece { id: rows, reason });
    }
    // Embeddings may have rows that no token uses.
    let unused = known;
    texts.extend((known..rows).map(|i| format!("[PAD{i}]")));
    let fallback = json.bool("model.byte_fallback")?.unwrap_or(false);
    let mut kinds = vec![1i32; rows];
    kinds[unused..].fill(5);
    if fallback {
        let byte = |t: &str| t.len() == 6 && t.starts_with("<0x") && t.ends_with('>');
        texts.iter().zip(&mut kinds).filter(|(t, _)| byte(t)).for_each(|(_, k)| *k = 6);
    }
    if let Some(Value::List(added)) = json.get("added_tokens") {
        for token in added {
            let (Some(id), special) = (token.u32("id")?, token.bool("special")?.unwrap_or(false)) else {
                continue;
            };
            if let Some(kind) = kinds.get_mut(id as usize) {
                *kind = if special { 3 } else { 4 };
            }
        }
    }
    if let Some(unknown) = json.str("model.unk_token").ok().flatten()
        && let Some(id) = texts.iter().position(|t| t == unknown)
    {
        kinds[id] = 2;
    }
    let merges = merges(json)?;
    let mut keys: Keys = Vec::new();
    let mut put = |name: &str, value: MetaValue| keys.push((format!("tokenizer.ggml.{name}"), value));
    if fallback {
        put("model", "llama".into());
        put("pre", "default".into());
        put("scores", scores(&texts, &merges).into());
        put("add_space_prefix", space_prefix(json).into());
    } else {
        put("model", "gpt2".into());
        put("pre", way(json)?.into());
        let lines = merges.iter().map(|(a, b)| format!("{a} {b}"));
        put("merges", MetaValue::strings(lines));
    }
    signs(settings, &texts, [None; 3], begins_with_special(json), &mut put);
    put("tokens", MetaValue::strings(&texts));
    put("token_type", kinds.into());
    Ok(keys)
}

/// Puts what begins and ends texts: the tokens that the settings name, or `known` ones of what is unknown, begins and ends; and
/// whether they are put there, `begins` where the settings do not say.
pub(super) fn signs(
    settings: &Value,
    texts: &[String],
    known: [Option<u32>; 3],
    begins: bool,
    put: &mut impl FnMut(&str, MetaValue),
) {
    let ids: HashMap<&str, u32> = texts.iter().map(String::as_str).zip(0u32..).collect();
    let names =
        [("unknown_token_id", "unk_token"), ("bos_token_id", "bos_token"), ("eos_token_id", "eos_token")];
    let found = names.map(|(_, key)| special(settings, key).and_then(|text| ids.get(text).copied()));
    let mut has_bos = false;
    for ((name, key), id) in names.into_iter().zip(found.into_iter().zip(known).map(|(a, b)| a.or(b))) {
        let Some(id) = id.filter(|&id| (id as usize) < texts.len()) else { continue };
        has_bos |= key == "bos_token";
        put(name, id.into());
    }
    let of = |key: &str| settings.bool(key).ok().flatten();
    put("add_bos_token", (has_bos && of("add_bos_token").unwrap_or(begins)).into());
    put("add_eos_token", of("add_eos_token").unwrap_or(false).into());
}

/// How many pieces there are: one more than the greatest number.
fn count(json: &Value) -> Result<usize, TokenizerError> {
    let Some(Value::Map(vocab)) = json.get("model.vocab") else {
        return Err(ConfigError::missing("model.vocab", "a map of pieces").into());
    };
    let greatest =
        vocab.iter().filter_map(|(_, id)| if let Value::Int(n) = id { Some(*n) } else { None }).max();
    let added = match json.get("added_tokens") {
        Some(Value::List(added)) => added.iter().filter_map(|t| t.u32("id").ok().flatten()).max(),
        _ => None,
    };
    let greatest = greatest.unwrap_or(-1).max(added.map_or(-1, i64::from));
    Ok(usize::try_from(greatest + 1).unwrap_or(0))
}

/// Merges as pairs: written `"a b"` or `["a", "b"]`.
fn merges(json: &Value) -> Result<Vec<(String, String)>, TokenizerError> {
    let Some(Value::List(items)) = json.get("model.merges") else {
        return Err(ConfigError::missing("model.merges", "a list of pairs").into());
    };
    let pair = |item: &Value| match item {
        Value::Str(line) => line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())),
        Value::List(two) => match two.as_slice() {
            [Value::Str(a), Value::Str(b)] => Some((a.clone(), b.clone())),
            _ => None,
        },
        _ => None,
    };
    items
        .iter()
        .map(|item| {
            let wrong = || ConfigError::unexpected("model.merges", "an entry of another form", "two pieces");
            pair(item).ok_or_else(|| wrong().into())
        })
        .collect()
}

/// Scores by which SentencePiece's encoding merges as the list of merges says: the earlier, the greater.
fn scores(texts: &[String], merges: &[(String, String)]) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, (a, b)) in merges.iter().enumerate() {
        ranks.entry([a.as_str(), b].concat()).or_insert(rank);
    }
    let none = merges.len();
    texts.iter().map(|t| -(ranks.get(t).copied().unwrap_or(none) as f32)).collect()
}

/// Whether a space is put before texts.
fn space_prefix(json: &Value) -> bool {
    fn prepends(value: &Value) -> bool {
        match value {
            Value::Map(entries) => entries.iter().any(|(key, v)| match (key.as_str(), v) {
                ("type", Value::Str(t)) => t == "Prepend",
                ("prepend_scheme", Value::Str(s)) => s != "never",
                _ => prepends(v),
            }),
            Value::List(items) => items.iter().any(prepends),
            _ => false,
        }
    }
    ["normalizer", "pre_tokenizer"].iter().filter_map(|k| json.get(k)).any(prepends)
}

/// The name of the way in which words are cut.
fn way(json: &Value) -> Result<&'static str, TokenizerError> {
    fn patterns(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Map(entries) => {
                for (key, v) in entries {
                    match (key.as_str(), v) {
                        ("Regex", Value::Str(pattern)) => out.push(pattern.clone()),
                        ("type", Value::Str(kind)) if kind == "Digits" => out.push("digits".into()),
                        ("use_regex", Value::Bool(true)) => out.push("gpt2".into()),
                        _ => patterns(v, out),
                    }
                }
            }
            Value::List(items) => items.iter().for_each(|v| patterns(v, out)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    if let Some(value) = json.get("pre_tokenizer") {
        patterns(value, &mut found);
    }
    let named = match found.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["gpt2"] => Some("gpt-2"),
        ["digits", "gpt2"] => Some("smollm"),
        [pattern] => WAYS.iter().find(|(part, _)| pattern.contains(part)).map(|(_, name)| *name),
        _ => None,
    };
    named.ok_or_else(|| {
        let found = format!("{found:?}");
        ConfigError::unexpected("pre_tokenizer", found, "a way of cutting words that is known").into()
    })
}

/// The text of a special token, which files give plain or with its properties.
fn special<'v>(settings: &'v Value, key: &str) -> Option<&'v str> {
    match settings.get(key)? {
        Value::Str(text) => Some(text),
        other => other.str("content").ok().flatten(),
    }
}

/// Whether texts begin with a special token.
fn begins_with_special(json: &Value) -> bool {
    fn first_is_special(value: &Value) -> bool {
        match value {
            Value::Map(entries) => entries.iter().any(|(key, v)| match (key.as_str(), v) {
                ("single", Value::List(parts)) => {
                    matches!(parts.first(), Some(Value::Map(m)) if m.iter().any(|(k, _)| k == "SpecialToken"))
                }
                _ => first_is_special(v),
            }),
            Value::List(items) => items.iter().any(first_is_special),
            _ => false,
        }
    }
    json.get("post_processor").is_some_and(first_is_special)
}

/// The chat template: a file of its own, or a setting.
fn template(folder: &Path, settings: &Value) -> Result<Option<String>, ConvertError> {
    const NAME: &str = "chat_template.jinja";
    if folder.join(NAME).exists() {
        let bytes = read_file(folder, NAME, 1 << 20)?;
        let bad = |_| ConvertError::Input { path: folder.join(NAME), reason: "it is not UTF-8".into() };
        return String::from_utf8(bytes).map(Some).map_err(bad);
    }
    Ok(settings.str("chat_template").ok().flatten().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(pre_tokenizer: &str) -> Value {
        config::from_json(format!(r#"{{"pre_tokenizer": {pre_tokenizer}}}"#).as_bytes()).unwrap()
    }

    #[test]
    fn ways_of_cutting_words_are_told_apart() {
        let split = |pattern: &str| {
            let pattern = pattern.replace('\\', "\\\\");
            format!(
                r#"[{{"type": "Split", "pattern": {{"Regex": "{pattern}"}}}}, {{"type": "ByteLevel", "use_regex": false}}]"#
            )
        };
        for (pre, name) in [
            (split(r"(?i:'s)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?x"), "llama-bpe"),
            (split(r"(?i:'s)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?x"), "qwen2"),
            (r#"{"type": "ByteLevel", "use_regex": true}"#.to_owned(), "gpt-2"),
            (r#"[{"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "use_regex": true}]"#.into(), "smollm"),
        ] {
            assert_eq!(way(&json(&pre)).unwrap(), name, "{pre}");
        }
        let error = way(&json(&split("x+"))).unwrap_err().to_string();
        assert!(error.contains("pre_tokenizer") && error.contains("x+"), "{error}");
    }

    #[test]
    fn scores_follow_the_order_of_merges() {
        let texts = ["a", "b", "ab", "abc", "c"].map(String::from);
        let merges = [("ab", "c"), ("a", "b")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(scores(&texts, &merges), [-2.0, -2.0, -1.0, -0.0, -2.0]);
    }
}

//! Texts that keep within a grammar: models with random weights, which would write anything, write what they must.
#![cfg(feature = "grammar")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{Finish, GenerateOptions, Grammar, LanguageModel, Sampling, SessionOptions};
use conure_convert::{ConvertOptions, convert};
use std::path::PathBuf;

/// Every text of it is short, so that no limit on tokens cuts it.
const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["fish", "sea", "old man"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
    },
    "required": ["name", "kind", "count", "tags"],
    "additionalProperties": false
}"#;

fn model(family: &str) -> LanguageModel {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/language")
        .join(format!("hf-{family}"));
    convert(&folder, &path, &ConvertOptions::default()).unwrap();
    LanguageModel::load(&path).unwrap()
}

fn options(grammar: Grammar, seed: u64) -> GenerateOptions {
    // Hot, and among all tokens: as far from a grammar as can be.
    let sampling = Sampling {
        temperature: 2.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: Some(seed),
        ..Sampling::default()
    };
    GenerateOptions { grammar: Some(grammar), sampling, ..GenerateOptions::default() }
}

fn text(model: &LanguageModel, options: &GenerateOptions) -> Result<(String, Option<Finish>), String> {
    let mut session = model.session(&SessionOptions { context: Some(600), ..Default::default() }).unwrap();
    let mut generation = session.generate("The old man", options).map_err(|e| e.to_string())?;
    let text = generation.by_ref().map(|p| p.unwrap().text).collect();
    Ok((text, generation.finish()))
}

/// SentencePiece with bytes, byte-level, and a sentencepiece vocabulary whose spaces come before words.
#[test]
fn every_text_is_what_the_schema_says() {
    for family in ["gemma3", "qwen2", "llama"] {
        let model = model(family);
        for seed in 0..12 {
            let (text, finish) = text(&model, &options(Grammar::JsonSchema(SCHEMA.into()), seed)).unwrap();
            assert_eq!(finish, Some(Finish::Stop), "{family} {seed}: {text:?}");
            let json: serde_json::Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{family} {seed}: {e}: {text:?}"));
            let object = json.as_object().unwrap();
            assert_eq!(object.len(), 4, "{text}");
            assert!(object["name"].as_str().unwrap().chars().count() <= 8, "{text}");
            assert!(["fish", "sea", "old man"].contains(&object["kind"].as_str().unwrap()), "{text}");
            assert!((0..=120).contains(&object["count"].as_i64().unwrap()), "{text}");
            let tags = object["tags"].as_array().unwrap();
            assert!(
                (1..=3).contains(&tags.len()) && tags.iter().all(serde_json::Value::is_boolean),
                "{text}"
            );
        }
    }
}

#[test]
fn every_text_is_what_a_grammar_or_an_expression_says() {
    let model = model("gemma3");
    let sum = "start: number (\"+\" number)~1..3\nnumber: /[1-9][0-9]{0,2}/";
    for seed in 0..8 {
        let (found, _) = text(&model, &options(Grammar::Lark(sum.into()), seed)).unwrap();
        let numbers: Vec<u32> = found.split('+').map(|n| n.parse().unwrap()).collect();
        assert!((2..=4).contains(&numbers.len()) && numbers.iter().all(|n| (1..1000).contains(n)), "{found}");
        let (found, finish) =
            text(&model, &options(Grammar::Regex("(ja|nein), [a-c]{3}ö".into()), seed)).unwrap();
        let rest = found.strip_prefix("ja, ").or(found.strip_prefix("nein, ")).unwrap();
        assert!(rest.ends_with('ö') && rest.chars().count() == 4, "{found}");
        assert_eq!(finish, Some(Finish::Stop));
    }
    // A limit on tokens holds, whatever is missing.
    let cut = GenerateOptions { max_tokens: Some(2), ..options(Grammar::Regex("a{50}".into()), 1) };
    let (found, finish) = text(&model, &cut).unwrap();
    assert!(found.len() < 50 && found.bytes().all(|b| b == b'a'), "{found}");
    assert_eq!(finish, Some(Finish::Length));
}

/// Several texts together keep within their own.
#[test]
fn texts_together_keep_each_within_its_own() {
    let model = model("qwen2");
    let mut batch = model.batch(2, &SessionOptions { context: Some(200), ..Default::default() }).unwrap();
    let ids = model.tokenizer().encode("The old man", false, true).unwrap();
    let patterns = ["[a-f]{6}", "[0-9]{9}", "x|y"];
    for (i, pattern) in patterns.iter().enumerate() {
        batch.add(&ids, &options(Grammar::Regex((*pattern).into()), i as u64)).unwrap();
    }
    let mut texts = [const { String::new() }; 3];
    while !batch.is_idle() {
        for piece in batch.step().unwrap() {
            texts[piece.request as usize].push_str(&piece.piece.unwrap().unwrap().text);
        }
    }
    let all =
        |text: &str, count: usize, set: &str| text.len() == count && text.chars().all(|c| set.contains(c));
    assert!(
        all(&texts[0], 6, "abcdef") && all(&texts[1], 9, "0123456789") && all(&texts[2], 1, "xy"),
        "{texts:?}"
    );
}

#[test]
fn what_is_wrong_with_a_grammar_is_said() {
    let model = model("gemma3");
    for (grammar, said) in [
        (Grammar::JsonSchema("{\"type\": ".into()), "the schema is no JSON: EOF"),
        (Grammar::JsonSchema("{\"type\": \"fish\"}".into()), "fish"),
        (Grammar::JsonSchema("{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}".into()), "minimum"),
        (Grammar::Lark("start: missing".into()), "missing"),
        (Grammar::Regex("(a".into()), "regex"),
    ] {
        let error = text(&model, &options(grammar.clone(), 0)).unwrap_err();
        assert!(
            error.starts_with("the grammar cannot be used: ") && error.contains(said),
            "{grammar:?}: {error}"
        );
    }
}

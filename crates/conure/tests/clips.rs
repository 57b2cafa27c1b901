//! Real and synthetic clips with the embedded model: what NeMo makes of each, with both heads, word for word and token
//! for token.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{AudioSource, Decoder, LoadOptions, SpeechModel, TranscribeOptions, Transcript};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/audio")).join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

fn transcribe(model: &SpeechModel, file: &str, decoder: Decoder) -> Transcript {
    // At once, as NeMo does.
    let mut options = TranscribeOptions { tokens: true, window: Some(0.0), ..Default::default() };
    options.recognise.decoder = decoder;
    model.transcribe_file(AudioSource::path(data(file)), &Default::default(), &options).unwrap()
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

/// A word of NeMo's: `[word, start, end]`, or an object with these keys.
fn nemo_word(value: &Value) -> (String, f64, f64) {
    let at = |i: usize, key: &str| if value.is_array() { value[i].clone() } else { value[key].clone() };
    (
        at(0, "word").as_str().unwrap().to_owned(),
        at(1, "start").as_f64().unwrap(),
        at(2, "end").as_f64().unwrap(),
    )
}

/// The differences between a transcript and NeMo's hypothesis, in words; none if they are equal.
fn differences(found: &Transcript, nemo: &Value) -> Vec<String> {
    let mut differences = Vec::new();
    let text = nemo["text"].as_str().unwrap();
    if found.text != text {
        differences.push(format!("text {:?} instead of {text:?}", found.text));
    }
    let tokens = found.tokens.as_ref().unwrap();
    let ids = if nemo["token_ids"].is_array() { &nemo["token_ids"] } else { &nemo["tokens"] };
    let pairs: [(&str, &Value, Vec<usize>); 3] = [
        ("ids", ids, tokens.iter().map(|t| t.id as usize).collect()),
        ("frames", &nemo["frames"], tokens.iter().map(|t| t.frame).collect()),
        ("durations", &nemo["durations"], tokens.iter().map(|t| t.duration).collect()),
    ];
    for (what, expected, found) in pairs {
        if expected.is_array() && numbers(expected) != found {
            differences.push(format!("{what} {found:?} instead of {expected}"));
        }
    }
    let words: Vec<_> = found.segments.iter().flat_map(|s| &s.words).collect();
    // NeMo gives an empty word for a lone word mark; Conure gives words only.
    let nemo_words: Vec<_> =
        nemo["words"].as_array().unwrap().iter().map(nemo_word).filter(|w| !w.0.is_empty()).collect();
    let same = words.len() == nemo_words.len()
        && words.iter().zip(&nemo_words).all(|(w, (text, start, end))| {
            let end = end.min(found.duration);
            w.word == *text && (w.start - start).abs() <= 1e-3 && (w.end - end).abs() <= 1e-3
        });
    if !same {
        differences.push(format!("words {words:?} instead of {nemo_words:?}"));
    }
    differences
}

/// Holds every clip to its hypotheses; a clip may differ only where NeMo's own decision is closer than 1e-3, and none of
/// these does, so that the list of exceptions is empty.
fn check(clips: Vec<(String, Value)>) {
    let model = SpeechModel::embedded(&LoadOptions::default()).unwrap();
    let mut wrong = Vec::new();
    for (file, nemo) in &clips {
        for (decoder, head) in [(Decoder::Tdt, "tdt"), (Decoder::Ctc, "ctc")] {
            let found = transcribe(&model, file, decoder);
            assert_eq!(found.decoder, head);
            wrong.extend(differences(&found, &nemo[head]).into_iter().map(|d| format!("{file} {head}: {d}")));
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn clips_of_all_kinds_give_what_nemo_gives() {
    let all = json("nemo_hypotheses.json");
    let files = all["files"].as_object().unwrap();
    assert_eq!(files.len(), 24);
    check(files.iter().map(|(f, v)| (f.clone(), v.clone())).collect());
}

#[test]
fn real_clips_give_what_nemo_gives() {
    let all = json("real200/results.json");
    let items = all["items"].as_array().unwrap();
    assert_eq!(items.len(), 184);
    check(items.iter().map(|i| (format!("real200/{}", i["file"].as_str().unwrap()), i.clone())).collect());
}

//! Streams against NeMo's cache-aware streaming: every chunk's encoder output, tokens, ends; and what cutting changes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{AudioSource, EndKind, SpeechModel, StreamOptions, StreamUpdate};
use conure_convert::{ConvertOptions, TargetType, convert};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Per-chunk encoder output against NeMo's: sums in another order, three layers deep.
const ENCODER: f32 = 1e-4;

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(name)
}

struct Oracle {
    model: SpeechModel,
    json: Value,
    goldens: Vec<u8>,
    _folder: tempfile::TempDir,
}

fn oracle(name: &str) -> Oracle {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours.gguf");
    let options = ConvertOptions { dtype: TargetType::F32, ..Default::default() };
    convert(&data(&format!("oracle/{name}.nemo")), &ours, &options).unwrap();
    let read = |ending: &str| std::fs::read(data(&format!("oracle/{name}.{ending}"))).unwrap();
    Oracle {
        model: SpeechModel::load(&ours).unwrap(),
        json: serde_json::from_slice(&read("json")).unwrap(),
        goldens: read("goldens.safetensors"),
        _folder: folder,
    }
}

/// A golden `[1, D, T]` as rows of D.
fn rows(goldens: &[u8], name: &str) -> (usize, Vec<f32>) {
    let file = SafeTensors::deserialize(goldens).unwrap();
    let tensor = file.tensor(name).unwrap_or_else(|_| panic!("no golden {name}"));
    let [1, d, t] = *tensor.shape() else { panic!("{name}") };
    let values: Vec<f32> =
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (d, (0..t).flat_map(|t_| (0..d).map(move |c| (t_, c))).map(|(t_, c)| values[c * t + t_]).collect())
}

fn speech() -> Vec<f32> {
    let source = AudioSource::path(data("audio/speech.wav"));
    conure::audio::read(source, 16_000, &Default::default()).unwrap().samples
}

/// Everything that a stream said, chunks and all.
fn run(model: &SpeechModel, samples: &[f32], block: usize, options: StreamOptions) -> StreamUpdate {
    let mut stream = model.stream(options).unwrap();
    let mut all = StreamUpdate::default();
    let add = |all: &mut StreamUpdate, update: StreamUpdate| {
        let before = all.words.len();
        all.words.extend(update.words);
        all.tokens.extend(update.tokens);
        all.captures.extend(update.captures);
        all.ends.extend(update.ends.into_iter().map(|mut e| {
            e.words += before;
            e
        }));
    };
    for piece in samples.chunks(block) {
        let update = stream.feed(piece).unwrap();
        add(&mut all, update);
    }
    let update = stream.finish().unwrap();
    add(&mut all, update);
    all
}

fn exact(look_ahead: usize) -> StreamOptions {
    StreamOptions {
        look_ahead: Some(look_ahead),
        exact: true,
        captures: vec!["encoder".into()],
        ..Default::default()
    }
}

fn ids(json: &Value) -> Vec<u32> {
    json["token_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

#[test]
fn chunks_and_tokens_are_those_of_nemo() {
    let oracle = oracle("stream_eou128");
    let speech = speech();
    let long: Vec<f32> = speech.iter().copied().cycle().take(320_000).collect();
    for (key, look_ahead, samples) in [
        ("stream", 1, &speech),
        ("stream_ctx0", 0, &speech),
        ("stream_ctx6", 6, &speech),
        ("stream_ctx13", 13, &speech),
        ("stream20s", 1, &long),
    ] {
        let found = run(&oracle.model, samples, 1600, exact(look_ahead));
        let nemo = &oracle.json[key];
        let chunks = nemo["chunks"].as_array().unwrap();
        assert_eq!(found.captures.len(), chunks.len(), "{key}: chunks");
        let (d, golden) = rows(&oracle.goldens, &format!("{key}.encoder_out_concat"));
        let mut at = 0;
        for (step, (_, encoder)) in found.captures.iter().enumerate() {
            assert_eq!(encoder.shape()[1], d);
            let values = encoder.as_slice::<f32>().unwrap();
            let expected = &golden[at..at + values.len()];
            let worst = values.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= ENCODER, "{key} chunk {step}: differs by {worst}");
            at += values.len();
        }
        assert_eq!(at, golden.len(), "{key}: frames");
        assert_eq!(found.tokens.iter().map(|t| t.id).collect::<Vec<_>>(), ids(nemo), "{key}: tokens");
    }
}

#[test]
fn how_a_stream_is_cut_changes_nothing() {
    let oracle = oracle("stream_eou128");
    let samples: Vec<f32> = speech().iter().copied().cycle().take(200_000).collect();
    let whole = run(&oracle.model, &samples, usize::MAX, StreamOptions::default());
    assert!(!whole.words.is_empty());
    for block in [1, 160, 997, 1600, 16_000] {
        let cut = run(&oracle.model, &samples, block, StreamOptions::default());
        assert_eq!(cut.tokens, whole.tokens, "{block}");
        assert_eq!(cut.words, whole.words, "{block}");
        assert_eq!(cut.ends, whole.ends, "{block}");
    }
}

#[test]
fn prompted_models_stream_in_their_languages() {
    let oracle = oracle("prompt128");
    let speech = speech();
    let mut checked = 0;
    for (key, language, look_ahead) in [
        ("auto", "auto", 1),
        ("en-US", "en-US", 1),
        ("de-DE", "de-DE", 1),
        ("en-US_ctx0", "en-US", 0),
        ("en-US_ctx6", "en-US", 6),
        ("en-US_ctx13", "en-US", 13),
    ] {
        let options = StreamOptions { language: Some(language.into()), ..exact(look_ahead) };
        let found = run(&oracle.model, &speech, 1600, options);
        let found: Vec<u32> = found.tokens.iter().map(|t| t.id).collect();
        assert_eq!(found, ids(&oracle.json["stream"][key]), "{key}");
        checked += 1;
    }
    assert_eq!(checked, 6);
}

#[test]
fn a_stream_gives_what_the_recording_gives() {
    let oracle = oracle("stream_eou128");
    // A whole number of chunks and not; frames of look-ahead that the recording is masked with too.
    for samples in [118_960, 100_000, 16_000, 17_333] {
        let speech = &speech()[..samples];
        let options = conure::RecogniseOptions::default();
        let clip = conure::Samples::mono(speech, 16_000);
        let whole = oracle.model.capture(clip, &["encoder"], &options).unwrap();
        let whole = whole[0].1.as_slice::<f32>().unwrap();
        let capturing = StreamOptions { captures: vec!["encoder".into()], ..Default::default() };
        let stream = run(&oracle.model, speech, 1600, capturing);
        let joined: Vec<f32> =
            stream.captures.iter().flat_map(|(_, t)| t.as_slice::<f32>().unwrap().to_vec()).collect();
        assert_eq!(joined.len(), whole.len(), "{samples}: frames");
        let worst = joined.iter().zip(whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= ENCODER, "{samples}: differs by {worst}");
    }
}

/// The text of a stream is that of the recording, within a word: nothing of the tail is lost.
#[test]
fn a_stream_reads_as_the_recording_does() {
    let oracle = oracle("prompt128");
    let speech = speech();
    for samples in [118_960, 100_000, 17_333] {
        let clip = conure::Samples::mono(&speech[..samples], 16_000);
        let whole = oracle.model.transcribe(clip, &Default::default()).unwrap();
        let stream = run(&oracle.model, &speech[..samples], 1600, StreamOptions::default());
        let stream: Vec<&str> = stream.words.iter().map(|w| w.word.as_str()).collect();
        let whole: Vec<&str> = whole.text.split_whitespace().collect();
        let common = stream.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        assert!(stream.len().max(whole.len()) <= common + 1, "{samples}: {stream:?} {whole:?}");
    }
}

#[test]
fn an_end_of_utterance_is_told_once_and_the_predictor_begins_anew() {
    let oracle = oracle("stream_eou128");
    let samples: Vec<f32> = speech().iter().copied().cycle().take(320_000).collect();
    let exact = run(&oracle.model, &samples, 1600, exact(1));
    let eou = oracle.model.recogniser().vocabulary().id("<EOU>").unwrap();
    let said = exact.tokens.iter().filter(|t| t.id == eou).count();
    let told = exact.ends.iter().filter(|e| e.kind == EndKind::Utterance).count();
    assert!(said > 0 && said == told, "{said} {told}");
    // The words before an end are complete with it, and no special token is in a word.
    assert!(exact.ends.iter().all(|e| e.words <= exact.words.len()));
    assert!(exact.words.iter().all(|w| !w.word.contains('<')), "{:?}", exact.words);
    let default = run(&oracle.model, &samples, 1600, StreamOptions::default());
    assert_ne!(default.tokens, exact.tokens, "after the first end the predictor starts again");
}

#[test]
fn what_cannot_stream_says_why() {
    let whole = SpeechModel::embedded(&Default::default()).unwrap();
    for options in [exact(1), StreamOptions { exact: true, ..Default::default() }] {
        let error = whole.stream(options).unwrap_err().to_string();
        assert!(error.contains("cannot be had of this model's streams"), "{error}");
    }
    let odd = StreamOptions { window: Some(1.0), ..Default::default() };
    let error = whole.stream(odd).unwrap_err().to_string();
    assert!(error.contains("5 to 400 s"), "{error}");
    assert!(whole.stream(Default::default()).unwrap().finish().unwrap().words.is_empty());
    let oracle = oracle("stream_eou128");
    let odd = StreamOptions { look_ahead: Some(3), ..Default::default() };
    let error = oracle.model.stream(odd).unwrap_err().to_string();
    assert!(error.contains("cannot look ahead 3 frames; it can: 0, 1, 4, 6, 9, 13"), "{error}");

    let mut stream = oracle.model.stream(Default::default()).unwrap();
    let error = stream.feed(&[0.0, f32::NAN]).unwrap_err().to_string();
    assert!(error.contains("sample 1 of the stream is NaN"), "{error}");
    stream.feed(&[0.0; 100]).unwrap();
    stream.finish().unwrap();
    assert!(stream.feed(&[0.0]).is_err() && stream.finish().is_err());
    let nothing = oracle.model.stream(Default::default()).unwrap().finish().unwrap();
    assert!(nothing.tokens.is_empty());
}

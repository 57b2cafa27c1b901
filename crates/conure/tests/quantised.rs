//! The embedded model with quantised weights: what it makes of clips against what it makes of them in f16.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{AudioSource, Decoder, LoadOptions, Precision, SpeechModel, TranscribeOptions};
use conure_convert::{QuantiseOptions, TargetType, quantise};
use std::path::{Path, PathBuf};

fn repository(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

/// Clips of three kinds of voices, and two people.
fn clips() -> Vec<PathBuf> {
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(repository("tests/data/audio/nemo_hypotheses.json")).unwrap())
            .unwrap();
    let files = json["files"].as_object().unwrap().iter();
    let short = files.filter(|(_, item)| item["set"] != "tts_long");
    short.map(|(file, _)| repository("tests/data/audio").join(file)).collect()
}

fn words(model: &SpeechModel, clip: &Path, decoder: Decoder) -> Vec<String> {
    let mut options = TranscribeOptions::default();
    options.recognise.decoder = decoder;
    let transcript = model.transcribe_file(AudioSource::path(clip), &Default::default(), &options).unwrap();
    transcript.text.split_whitespace().map(str::to_owned).collect()
}

/// Words to change, leave out or put in.
fn changes(a: &[String], b: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, word) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let change = diagonal + usize::from(word != other);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[test]
fn quantised_models_say_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let source = repository("crates/conure/model/parakeet-tiny-en-12m-tdt_ctc.gguf");
    let full = SpeechModel::embedded(&LoadOptions::default()).unwrap();
    let clips = clips();
    let mut failures = Vec::new();
    // Words that may differ, in percent: none of the transducer's and 1.5 % of CTC's for q8_0, exactly; what rounded
    // activations and fewer bits cost, as measured (1 of 236 and 1 of 239; 21 and 18) with some room.
    let (tdt, ctc) = (Decoder::Tdt, Decoder::Ctc);
    for (target, compatible, precision, heads) in [
        (TargetType::Q8_0, true, Precision::Exact, [(tdt, 0.0), (ctc, 1.5)]),
        (TargetType::Q8_0, true, Precision::Fast, [(tdt, 1.0), (ctc, 1.5)]),
        (TargetType::Q4K, false, Precision::Fast, [(tdt, 15.0), (ctc, 15.0)]),
    ] {
        let path = dir.path().join(format!("{target:?}.gguf"));
        let options = QuantiseOptions { target, compatible, ..QuantiseOptions::default() };
        quantise(&source, &path, &options).unwrap();
        let options = LoadOptions { precision, ..LoadOptions::default() };
        let model = SpeechModel::load_with(&path, &options).unwrap();
        for (decoder, allowed) in heads {
            let (mut changed, mut all) = (0, 0);
            for clip in &clips {
                let (a, b) = (words(&full, clip, decoder), words(&model, clip, decoder));
                changed += changes(&a, &b);
                all += a.len();
            }
            if 100.0 * changed as f64 / all as f64 > allowed {
                failures.push(format!("{target:?} {precision} {decoder:?}: {changed} of {all} words"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

//! Speech detection: Silero's model against onnxruntime, by level on clips, and what a caller sees of both.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{
    AudioOptions, AudioSource, DetectOptions, LoadOptions, SpeechModel, TranscribeOptions, Vad,
    detect_speech, load_vad,
};
use conure_convert::{ConvertOptions, TargetType, convert};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn root(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

/// The model of one of the package's files.
fn silero(file: &str, dtype: TargetType) -> Vad {
    let input = root("target/silero-vad/silero_vad/data").join(file);
    assert!(input.exists(), "{} is missing: `cargo xtask setup` fetches it", input.display());
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("silero.gguf");
    let report = convert(&input, &output, &ConvertOptions { dtype, ..Default::default() }).unwrap();
    assert_eq!((report.arch.as_str(), report.dropped.len()), ("silero_vad", 0));
    load_vad(&output, &LoadOptions { device: Some("cpu".into()), ..Default::default() }).unwrap()
}

const OFFICIAL: &str = "silero_vad_16k_op15.onnx";

fn goldens() -> Vec<(String, Vec<f32>)> {
    let json: Value =
        serde_json::from_slice(&std::fs::read(root("tests/data/vad/silero.json")).unwrap()).unwrap();
    let list = |v: &Value| v.as_array().unwrap().iter().map(|p| p.as_f64().unwrap() as f32).collect();
    json["clips"].as_object().unwrap().iter().map(|(path, v)| (path.clone(), list(v))).collect()
}

fn probabilities(vad: &Vad, path: &str) -> Vec<f32> {
    let source = AudioSource::path(root(path));
    detect_speech(vad, source, &Default::default(), &Default::default()).unwrap().probabilities
}

/// Sums in another order, through an LSTM of some hundred steps; f16 rounds weights to 11 bits.
#[test]
fn silero_gives_what_onnxruntime_gives() {
    for (dtype, tolerance) in [(TargetType::F32, 1e-4), (TargetType::F16, 2e-2)] {
        let vad = silero(OFFICIAL, dtype);
        for (path, expected) in goldens() {
            let found = probabilities(&vad, &path);
            assert_eq!(found.len(), expected.len(), "{path}");
            let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            println!("{path} {dtype:?}: {most:.1e}");
            assert!(most <= tolerance, "{path} {dtype:?}: {most}");
        }
    }
}

#[test]
fn blocks_of_any_size_give_the_same_probabilities() {
    let clip =
        conure::audio::read(AudioSource::path(root("samples/speech.wav")), 16_000, &Default::default());
    let samples = clip.unwrap().samples;
    for vad in [Vad::Energy, silero(OFFICIAL, TargetType::F32)] {
        let mut detector = vad.detector(16_000).unwrap();
        let mut whole = Vec::new();
        detector.push(&samples, &mut whole).unwrap();
        detector.finish(&mut whole).unwrap();
        assert_eq!(whole.len(), samples.len().div_ceil(512));
        // The same detector again: finish made it new.
        for size in [160, 997, 16_000] {
            let mut out = Vec::new();
            samples.chunks(size).for_each(|block| detector.push(block, &mut out).unwrap());
            detector.finish(&mut out).unwrap();
            // Batches of another size may be summed in another order.
            let most = whole.iter().zip(&out).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(out.len() == whole.len() && most <= 1e-5, "{} in blocks of {size}: {most}", vad.name());
        }
    }
    assert!(silero(OFFICIAL, TargetType::F32).detector(8_000).unwrap_err().to_string().contains("16000 Hz"));
}

/// Speech after silence, told from it by every detector, with times of the file.
#[test]
fn speech_is_found_where_it_is() {
    let speech =
        conure::audio::read(AudioSource::path(root("samples/speech.wav")), 16_000, &Default::default());
    let speech = speech.unwrap().samples;
    let samples = [vec![0.0; 5 * 16_000], speech.clone(), vec![0.0; 5 * 16_000]].concat();
    let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    let mut audio = AudioOptions { start: 2.0, ..Default::default() };
    audio.decode.raw = Some("f32le:16000:1".parse().unwrap());
    let end = 5.0 + speech.len() as f64 / 16_000.0;
    for vad in [
        Vad::Energy,
        silero(OFFICIAL, TargetType::F16),
        silero("silero_vad_16k.safetensors", TargetType::F32),
    ] {
        let source = || AudioSource::bytes("bytes", bytes.clone());
        let found = detect_speech(&vad, source(), &audio, &Default::default()).unwrap();
        assert!(found.start == 2.0 && (found.duration - samples.len() as f64 / 16_000.0 + 2.0).abs() < 1e-9);
        let (first, last) = (found.spans.first().unwrap(), found.spans.last().unwrap());
        assert!((4.8..6.0).contains(&first.start) && (end - 1.0..end + 0.4).contains(&last.end), "{found:?}");
        let spoken: f64 = found.spans.iter().map(|s| s.end - s.start).sum();
        assert!(spoken > 0.6 * (end - 5.0), "{} {:?}", vad.name(), found.spans);
        let cancel = Some(Arc::new(AtomicBool::new(true)));
        let options = DetectOptions { cancel, ..Default::default() };
        assert!(detect_speech(&vad, source(), &audio, &options).unwrap_err().is_cancelled());
    }
}

#[test]
fn a_transcript_can_leave_out_what_silero_calls_silence() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let options = TranscribeOptions { vad: Some(silero(OFFICIAL, TargetType::F16)), ..Default::default() };
    let source = AudioSource::path(root("samples/speech.wav"));
    let found = model.transcribe_file(source, &Default::default(), &options).unwrap();
    assert!(found.text.contains("don't wish to see it"), "{}", found.text);
}

#[test]
fn other_models_are_refused_by_name() {
    let error = load_vad(root("tests/data/oracle/ctc80.gguf"), &Default::default()).unwrap_err().to_string();
    assert!(error.contains("\"parakeet\"") && error.contains("transcribe with it"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let wrong = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        convert(&path, &folder.path().join("out.gguf"), &Default::default()).unwrap_err().to_string()
    };
    let error = wrong("a.onnx", b"\x08\x08\x12\x01x\x3a\x04\x0a\x02no");
    assert!(error.contains("silero_vad_16k_op15.onnx"), "{error}");
    let weights = std::fs::read(root("target/silero-vad/silero_vad/data").join(OFFICIAL)).unwrap();
    assert!(wrong("cut.onnx", &weights[..weights.len() / 2]).contains("damaged"));
}

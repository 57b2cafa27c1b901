//! Models rounded for what they hear.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{Calibration, CalibrationError, Error, FileClip, SpeechModel, TranscribeOptions};
use conure_convert::{Calibrated, QuantiseOptions, QuantiseReport, TargetType, quantise};
use conure_gguf::{GgufFile, GgufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

fn repository(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

fn embedded() -> PathBuf {
    repository("crates/conure/model/parakeet-tiny-en-12m-tdt_ctc.gguf")
}

fn clips() -> Vec<FileClip> {
    vec![FileClip { path: repository("samples/speech.wav"), ..FileClip::default() }]
}

fn calibrated(input: &Path, output: &Path, target: TargetType, compatible: bool) -> QuantiseReport {
    let calibration = Calibration::new(input, clips(), Default::default()).unwrap();
    let moments = |tensor: &str| calibration.moments(tensor).map_err(Into::into);
    let calibrated = Some(Calibrated { recordings: 1, moments: &moments });
    let options = QuantiseOptions { target, compatible, calibrated, ..QuantiseOptions::default() };
    quantise(input, output, &options).unwrap()
}

#[test]
fn products_change_less_and_the_file_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("small.gguf");
    let report = calibrated(&embedded(), &output, TargetType::Q4K, false);
    let mut changed = 0;
    for tensor in report.tensors.iter().filter(|t| t.to.is_quantised()) {
        changed += 1;
        // A table of rows is not multiplied with anything.
        let table = tensor.name == "decoder.prediction.embed.weight";
        assert_eq!(tensor.products.is_none(), table, "{}", tensor.name);
        let Some(products) = tensor.products else { continue };
        assert!(products.stored < 0.95 * products.nearest, "{}: {products:?}", tensor.name);
        assert!(products.stored > 0.0 && products.nearest < 0.3, "{}: {products:?}", tensor.name);
    }
    assert!(changed > 100, "{changed}");
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(file.meta().opt_u32("quantize.calibration.recordings").unwrap(), Some(1));
    // Rounded once more, it is not what was calibrated.
    let again = QuantiseOptions { target: TargetType::Q4_0, ..QuantiseOptions::default() };
    quantise(&output, &dir.path().join("again.gguf"), &again).unwrap();
    let file = GgufFile::open(dir.path().join("again.gguf")).unwrap();
    assert!(!file.meta().contains("quantize.calibration.recordings"));
    let model = SpeechModel::load(&output).unwrap();
    let clip = conure::AudioSource::path(repository("samples/speech.wav"));
    let text = model.transcribe_file(clip, &Default::default(), &TranscribeOptions::default()).unwrap().text;
    assert!(text.contains("well i don't wish to see it"), "{text}");
}

#[test]
fn models_of_one_head_are_calibrated_and_those_of_random_weights_too() {
    let dir = tempfile::tempdir().unwrap();
    for (model, compatible) in [
        ("ctc80.gguf", false),
        ("rnnt80.gguf", false),
        ("tdt128.gguf", false),
        ("stream_eou128.gguf", false),
        ("hybrid_tdt80.gguf", true),
    ] {
        let input = repository("tests/data/oracle").join(model);
        let report = calibrated(&input, &dir.path().join("small.gguf"), TargetType::Q8_0, compatible);
        let known = report.tensors.iter().filter(|t| t.products.is_some()).count();
        let stored = report.tensors.iter().filter(|t| t.to.is_quantised()).count();
        let tables =
            report.tensors.iter().filter(|t| t.to.is_quantised() && t.name.ends_with("embed.weight"));
        let tables = tables.count();
        assert_eq!(known + tables, stored, "{model}");
    }
}

#[test]
fn what_cannot_be_calibrated_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (small, silent) = (dir.path().join("small.gguf"), dir.path().join("silent.wav"));
    let fails = |path: &Path, clips| match Calibration::new(path, clips, Default::default()) {
        Ok(calibration) => calibration.moments("encoder.layers.0.feed_forward1.linear1.weight").unwrap_err(),
        Err(error) => error,
    };
    // Quantised already.
    let options = QuantiseOptions { target: TargetType::Q8_0, ..QuantiseOptions::default() };
    quantise(&embedded(), &small, &options).unwrap();
    let error = fails(&small, clips());
    assert!(matches!(&error, Error::Calibration(CalibrationError::Quantised { .. })), "{error}");
    assert!(error.to_string().contains("f32 or f16"), "{error}");
    // Nothing to hear, and too little.
    let header = |samples: u32| {
        let (bytes, rate) = (2 * samples, 16_000u32);
        let mut wav = b"RIFF".to_vec();
        wav.extend((36 + bytes).to_le_bytes());
        wav.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
        wav.extend(rate.to_le_bytes());
        wav.extend((2 * rate).to_le_bytes());
        wav.extend(b"\x02\0\x10\0data");
        wav.extend(bytes.to_le_bytes());
        wav
    };
    let mut wav = header(160_000);
    wav.resize(44 + 320_000, 0);
    std::fs::write(&silent, wav).unwrap();
    let short = FileClip {
        audio: conure::AudioOptions { duration: Some(2.0), ..Default::default() },
        ..clips().remove(0)
    };
    let silent = FileClip { path: silent, ..FileClip::default() };
    for (clips, heard) in [(vec![silent.clone()], "0.0 s"), (vec![short, silent], "2.0 s"), (vec![], "0.0 s")]
    {
        let error = fails(&embedded(), clips);
        assert!(matches!(&error, Error::Calibration(CalibrationError::TooShort { .. })), "{error}");
        assert!(error.to_string().contains(heard), "{error}");
    }
    // A language model.
    let language = dir.path().join("language.gguf");
    let mut writer = GgufWriter::new();
    writer.meta("general.architecture", "llama");
    writer.write_to(&language).unwrap();
    let error = fails(&language, clips());
    assert!(matches!(&error, Error::Calibration(CalibrationError::Language { .. })), "{error}");
    // Stopped.
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    let options = conure::CalibrationOptions {
        cancel: Some(Arc::new(AtomicBool::new(true))),
        progress: Some(Arc::new(move |done, all| sink.lock().unwrap().push((done, all)))),
        ..Default::default()
    };
    let calibration = Calibration::new(embedded(), clips(), options).unwrap();
    assert!(calibration.moments("joint.pred.weight").unwrap_err().is_cancelled());
    assert_eq!(*told.lock().unwrap(), [(0, 1)]);
    // The predictor's table is no matrix of a product.
    assert!(calibration.moments("decoder.prediction.embed.weight").unwrap().is_none());
}

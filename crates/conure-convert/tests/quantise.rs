//! GGUF files in smaller types: what is stored how, and what is refused.

// Helpers of tests may panic like tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use conure_convert::{ConvertError, Progress, QuantiseOptions, QuantiseReport, TargetType, quantise};
use conure_gguf::{GgufFile, GgufWriter};
use conure_tensor::{DType, quant};
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/oracle").join(name)
}

fn values(file: &GgufFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.shape.iter().product()];
    quant::decode(tensor.dtype, tensor.data, &mut values).unwrap();
    values
}

fn run(input: &Path, output: &Path, target: TargetType) -> Result<QuantiseReport, ConvertError> {
    quantise(input, output, &QuantiseOptions { target, ..QuantiseOptions::default() })
}

#[test]
fn every_matrix_is_stored_anew_and_the_rest_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (data("hybrid_tdt80.gguf"), dir.path().join("small.gguf"));
    let before = GgufFile::open(&input).unwrap();
    for target in TargetType::ALL.into_iter().filter(|&t| t != TargetType::F32) {
        let report = run(&input, &output, target).unwrap();
        let after = GgufFile::open(&output).unwrap();
        assert_eq!(report.bytes_after, std::fs::metadata(&output).unwrap().len());
        assert_eq!(report.bytes_before, std::fs::metadata(&input).unwrap().len());
        assert!(report.bytes_after < report.bytes_before);
        assert_eq!(after.meta().len(), before.meta().len());
        assert_eq!(report.tensors.len(), before.tensors().len());
        for t in &report.tensors {
            let (a, b) = (after.tensor(&t.name).unwrap(), before.tensor(&t.name).unwrap());
            assert_eq!((a.dtype, b.dtype), (t.to, t.from), "{}", t.name);
            assert_eq!((a.data.len() as u64, b.data.len() as u64), (t.bytes_after, t.bytes_before));
            if t.from == t.to {
                assert!(a.data == b.data && a.shape == b.shape && t.error.is_none(), "{}", t.name);
                continue;
            }
            let (x, y) = (values(&before, &t.name), values(&after, &t.name));
            let error: f64 = x.iter().zip(&y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
            let size: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            let expected = if error == 0.0 { 0.0 } else { (error / size).sqrt() };
            assert!((t.error.unwrap() - expected).abs() <= 1e-9 * expected, "{}", t.name);
            // Half a step of 1/7 of a block's largest value, of which the root mean square is at least a third.
            assert!(t.error.unwrap() < 0.15, "{} {target:?}: {:?}", t.name, t.error);
        }
        let to = |name: &str| report.tensors.iter().find(|t| t.name == name).unwrap().to;
        for name in ["encoder.layers.0.conv.depthwise_conv.weight", "encoder.layers.0.norm_out.weight"] {
            assert_eq!(to(name), DType::F32);
        }
        let lstm = "decoder.prediction.dec_rnn.lstm.weight_hh_l0";
        for name in
            [lstm, "encoder.layers.0.conv.pointwise_conv1.weight", "ctc_decoder.decoder_layers.0.weight"]
        {
            assert_ne!(to(name), DType::F32, "{name} {target:?}");
        }
        // Once more changes nothing, and says so.
        let error = run(&output, &dir.path().join("x.gguf"), target).unwrap_err();
        assert!(matches!(error, ConvertError::NothingToDo { .. }), "{error}");
    }
}

#[test]
fn a_file_type_says_what_the_file_mostly_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("labelled.gguf"), dir.path().join("small.gguf"));
    let file = GgufFile::open(data("hybrid_tdt80.gguf")).unwrap();
    let mut writer = GgufWriter::new();
    writer.copy_meta(file.meta()).unwrap();
    writer.meta("general.file_type", 0u32);
    for info in file.tensors() {
        let tensor = file.tensor(&info.name).unwrap();
        writer.tensor(&info.name, tensor.dtype, tensor.shape, tensor.data);
    }
    writer.write_to(&input).unwrap();
    for (target, expected) in [(DType::F16, 1), (DType::Q8_0, 7), (DType::Q5_1, 9), (DType::BF16, 32)] {
        let target = TargetType::ALL.into_iter().find(|t| t.dtype() == target).unwrap();
        run(&input, &output, target).unwrap();
        let written = GgufFile::open(&output).unwrap();
        assert_eq!(written.meta().opt_u32("general.file_type").unwrap(), Some(expected), "{target:?}");
    }
}

#[test]
fn patterns_compatibility_and_cancelling() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (data("hybrid_tdt80.gguf"), dir.path().join("small.gguf"));
    let options = QuantiseOptions { target: TargetType::Q8_0, ..QuantiseOptions::default() };
    let keep = |patterns: &[&str]| QuantiseOptions {
        keep: patterns.iter().map(|p| (*p).to_owned()).collect(),
        ..options.clone()
    };
    let report = quantise(&input, &output, &keep(&["joint.*", "*linear_q*"])).unwrap();
    for t in &report.tensors {
        let kept = t.name.starts_with("joint.") || t.name.contains("linear_q");
        assert!(!kept || t.from == t.to, "{}", t.name);
        assert!(t.from == t.to || t.note.is_none());
    }
    assert!(report.tensors.iter().any(|t| t.note.as_deref() == Some("kept: joint.*")));
    std::fs::remove_file(&output).unwrap();
    for (options, says) in [
        (keep(&["jiont.*"]), "jiont"),
        (keep(&["*"]), "no tensor"),
        (QuantiseOptions { target: TargetType::Q5_1, compatible: true, ..options.clone() }, "q8_0"),
    ] {
        let error = quantise(&input, &output, &options).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let stop = |at: &Progress<'_>| at.done < 3;
    let cancelled = QuantiseOptions { progress: Some(&stop), ..options.clone() };
    assert!(matches!(quantise(&input, &output, &cancelled).unwrap_err(), ConvertError::Cancelled));
    assert!(!output.exists());
    let report = quantise(&input, &output, &QuantiseOptions { compatible: true, ..options }).unwrap();
    let changed = report.tensors.iter().filter(|t| t.from != t.to);
    assert!(changed.into_iter().all(|t| !t.name.contains("pointwise") && !t.name.contains("lstm")));
}

#[test]
fn what_cannot_be_quantised_is_refused_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("text.gguf"), "not a model").unwrap();
    std::fs::write(at("empty.gguf"), "").unwrap();
    let whole = std::fs::read(data("hybrid_tdt80.gguf")).unwrap();
    std::fs::write(at("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    let mut other = GgufWriter::new();
    other.meta("general.architecture", "whisper");
    other.write_to(at("other.gguf")).unwrap();
    let nan: Vec<u8> = [f32::NAN; 64 * 64].iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut spoilt = GgufWriter::new();
    spoilt.meta("general.architecture", "parakeet");
    spoilt.tensor("joint.enc.weight", DType::F32, &[64, 64], &nan);
    spoilt.write_to(at("nan.gguf")).unwrap();
    let mut none = GgufWriter::new();
    none.meta("general.architecture", "parakeet");
    none.write_to(at("none.gguf")).unwrap();
    for (name, says) in [
        ("text.gguf", "GGUF"),
        ("empty.gguf", "empty"),
        ("cut.gguf", "cut.gguf"),
        ("other.gguf", "whisper"),
        ("nan.gguf", "joint.enc.weight"),
        ("none.gguf", "nothing to do"),
        ("absent.gguf", "absent.gguf"),
        (".", "folder"),
    ] {
        let error = run(&at(name), &at("out.gguf"), TargetType::Q8_0).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
        assert!(!at("out.gguf").exists(), "{name}");
    }
    let same = run(&at("nan.gguf"), &at("nan.gguf"), TargetType::Q8_0).unwrap_err().to_string();
    assert!(same.contains("another name"), "{same}");
}

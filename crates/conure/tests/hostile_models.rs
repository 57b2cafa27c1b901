//! Models that are damaged, incomplete or lie about themselves: each is an error that names what is wrong, at once and
//! without taking memory for what the file does not hold.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{LoadOptions, Samples, SpeechModel, TranscribeOptions};
use conure_gguf::{GgufFile, GgufWriter, MetaValue};
use conure_tensor::DType;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/oracle")).join(name)
}

/// `hybrid_tdt80` with some things changed.
#[derive(Default)]
struct Change<'a> {
    set: Vec<(&'a str, MetaValue)>,
    drop_key: Option<&'a str>,
    /// All tensors whose names begin so.
    drop_tensors: &'a [&'a str],
    /// Another shape for a tensor, of as many elements or fewer.
    reshape: Option<(&'a str, Vec<usize>)>,
    /// A number that a tensor is filled with.
    fill: Option<(&'a str, f32)>,
}

fn write(change: &Change<'_>, out: &Path) {
    let file = GgufFile::open(data("hybrid_tdt80.gguf")).unwrap();
    let (fill_name, fill_value) = change.fill.unwrap_or(("", 0.0));
    let filled = match file.tensor_info(fill_name) {
        Some(t) => fill_value.to_le_bytes().repeat(t.shape.iter().product()),
        None => Vec::new(),
    };
    let mut w = GgufWriter::new();
    if let Some(dropped) = change.drop_key {
        // Under a name that nobody reads, a key is as good as gone.
        let mut bytes = std::fs::read(data("hybrid_tdt80.gguf")).unwrap();
        let at = bytes.windows(dropped.len()).position(|w| w == dropped.as_bytes()).unwrap();
        bytes[at] = b'x';
        std::fs::write(out, bytes).unwrap();
        return;
    }
    w.copy_meta(file.meta()).unwrap();
    for (key, value) in &change.set {
        w.meta(key, value.clone());
    }
    for info in file.tensors() {
        if change.drop_tensors.iter().any(|start| info.name.starts_with(start)) {
            continue;
        }
        let t = file.tensor(&info.name).unwrap();
        match &change.reshape {
            Some((name, shape)) if *name == t.name => {
                w.tensor(t.name, t.dtype, shape, &t.data[..shape.iter().product::<usize>() * 4]);
            }
            _ if t.name == fill_name => {
                w.tensor(t.name, DType::F32, t.shape, &filled);
            }
            _ => {
                w.tensor(t.name, t.dtype, t.shape, t.data);
            }
        }
    }
    w.write_to(out).unwrap();
}

/// Loads the changed model and gives the error's text.
fn refusal(change: &Change<'_>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    write(change, &path);
    let start = Instant::now();
    let error = match SpeechModel::load(&path) {
        Ok(_) => "it loads".to_owned(),
        Err(e) => e.to_string(),
    };
    assert!(start.elapsed() < Duration::from_secs(2), "{error}: took {:?}", start.elapsed());
    assert!(error == "it loads" || error.contains("m.gguf"), "{error:?} should name the file");
    error
}

fn set(key: &str, value: impl Into<MetaValue>) -> Change<'_> {
    Change { set: vec![(key, value.into())], ..Default::default() }
}

#[test]
fn numbers_that_make_no_sense_are_refused_by_key() {
    let max = u32::MAX;
    let cases: Vec<(&str, MetaValue, &str)> = vec![
        ("parakeet.encoder.n_heads", 0u32.into(), "1 to 1024"),
        ("parakeet.encoder.n_heads", 5u32.into(), "a divisor of d_model"),
        ("parakeet.encoder.n_layers", max.into(), "1 to 1024"),
        ("parakeet.encoder.n_layers", 1024u32.into(), "missing"),
        ("parakeet.encoder.d_model", 0u32.into(), "1 to 65536"),
        ("parakeet.encoder.d_model", 65_536u32.into(), "shape"),
        ("parakeet.encoder.ff_dim", max.into(), "1 to"),
        ("parakeet.encoder.conv_kernel", 8u32.into(), "an odd number"),
        ("parakeet.encoder.feat_in", 0u32.into(), "1 to 4096"),
        ("parakeet.encoder.feat_in", 128u32.into(), "n_mels"),
        ("parakeet.encoder.subsampling_factor", 4u32.into(), "expected 8"),
        ("parakeet.encoder.subsampling_conv_channels", 1_000u32.into(), "shape"),
        ("parakeet.encoder.conv_norm_type", "group_norm".into(), "batch_norm or layer_norm"),
        ("parakeet.encoder.att_context_style", "sideways".into(), "regular or chunked_limited"),
        ("parakeet.encoder.self_attention_model", "abs_pos".into(), "rel_pos"),
        ("parakeet.preprocessor.n_mels", 0u32.into(), "1 to 4096"),
        ("parakeet.preprocessor.hop_length", 0u32.into(), "1 to 65536"),
        ("parakeet.preprocessor.hop_length", 1u32.into(), "a sixteenth of win_length"),
        ("parakeet.preprocessor.hop_length", 401u32.into(), "a sixteenth of win_length"),
        ("parakeet.preprocessor.n_fft", 513u32.into(), "an even number"),
        ("parakeet.preprocessor.n_fft", (1u32 << 30).into(), "2 to 65536"),
        ("parakeet.preprocessor.win_length", 513u32.into(), "at most n_fft"),
        ("parakeet.preprocessor.sample_rate", 0u32.into(), "1000 to"),
        ("parakeet.preprocessor.log_zero_guard", f32::NAN.into(), "finite"),
        ("parakeet.vocab_size", 7u32.into(), "as many pieces"),
        ("parakeet.vocab_size", max.into(), "1 to"),
        ("parakeet.blank_id", 0u32.into(), "vocab_size"),
        ("parakeet.joint.activation", "gelu".into(), "relu"),
        ("parakeet.preprocessor.normalize", "xer_feature".into(), "per_feature or NA"),
        ("parakeet.decoding.max_symbols", max.into(), "1 to 1000"),
        ("parakeet.decoding.max_symbols", 0u32.into(), "1 to 1000"),
        ("parakeet.decoder.pred_rnn_layers", 0u32.into(), "1 to 64"),
        ("parakeet.encoder.n_layers", 2u32.into(), "encoder.layers.2."),
        ("parakeet.tdt.durations", (&[0i32, -1, 2, 3, 4][..]).into(), "0 or more"),
        ("parakeet.tdt.durations", (&[0i32, 1][..]).into(), "shape"),
        ("parakeet.tdt.durations", (&[0i32, 1, 2, 2, 4][..]).into(), "each duration once"),
        ("parakeet.decoder.pred_hidden", 63u32.into(), "shape"),
        ("general.architecture", "llama".into(), "it is a language model"),
        ("general.architecture", "bert".into(), "run here: parakeet"),
        ("parakeet.encoder.d_model", "wide".into(), "parakeet.encoder.d_model"),
    ];
    for (key, value, expected) in cases {
        let error = refusal(&set(key, value));
        assert!(error.contains(expected), "{key}: {error:?} should say {expected:?}");
    }
}

#[test]
fn missing_parts_are_named() {
    for key in [
        "parakeet.encoder.d_model",
        "parakeet.preprocessor.n_fft",
        "parakeet.tokenizer.pieces",
        "parakeet.vocab_size",
    ] {
        let error = refusal(&Change { drop_key: Some(key), ..Default::default() });
        assert!(error.contains(key), "{error:?} should name {key}");
    }
    for tensor in [
        "encoder.pre_encode.conv.0.weight",
        "encoder.pre_encode.out.weight",
        "encoder.layers.1.self_attn.linear_q.weight",
        "encoder.layers.2.norm_out.bias",
        "decoder.prediction.embed.weight",
        "decoder.prediction.dec_rnn.lstm.weight_hh_l0",
        "joint.enc.weight",
        "joint.enc.bias",
        "joint.joint_net.2.weight",
        "joint.joint_net.2.bias",
        "encoder.pre_encode.conv.2.bias",
        "encoder.layers.1.conv.pointwise_conv2.bias",
        "ctc_decoder.decoder_layers.0.weight",
    ] {
        let error = refusal(&Change { drop_tensors: &[tensor], ..Default::default() });
        assert!(error.contains(tensor) && error.contains("missing"), "{error:?} should name {tensor}");
    }
}

#[test]
fn a_model_without_one_head_has_the_other() {
    let folder = tempfile::tempdir().unwrap();
    for (head, left) in [(&["joint.", "decoder.prediction."][..], "ctc"), (&["ctc_decoder."], "tdt")] {
        let path = folder.path().join("m.gguf");
        write(&Change { drop_tensors: head, ..Default::default() }, &path);
        let model = SpeechModel::load(&path).unwrap();
        assert_eq!(model.info().decoders, [left], "without {head:?}");
        let mut options = TranscribeOptions::default();
        options.recognise.decoder = if left == "ctc" { conure::Decoder::Tdt } else { conure::Decoder::Ctc };
        let error =
            model.transcribe(Samples::mono(&[0.0; 16_000], 16_000), &options).unwrap_err().to_string();
        assert!(error.contains(&format!("it has: {left}")), "{error}");
    }
}

#[test]
fn tensors_of_another_shape_are_named_with_both_shapes() {
    for (tensor, shape) in [
        ("encoder.layers.0.self_attn.linear_q.weight", vec![32, 64]),
        ("encoder.layers.0.self_attn.pos_bias_u", vec![2, 16]),
        ("encoder.pre_encode.conv.2.weight", vec![16, 1, 3, 3]),
        ("encoder.layers.0.conv.batch_norm.running_var", vec![32]),
        ("joint.joint_net.2.bias", vec![8]),
        ("preprocessor.featurizer.window", vec![100]),
        ("preprocessor.featurizer.fb", vec![1, 40, 257]),
    ] {
        let error = refusal(&Change { reshape: Some((tensor, shape.clone())), ..Default::default() });
        let what = tensor.rsplit('.').next().unwrap().replace("fb", "filterbank");
        assert!(error.contains(tensor) || error.contains(&what), "{error:?} should name {tensor}");
    }
}

#[test]
fn weights_that_are_no_numbers_give_an_error_and_no_text() {
    for (tensor, value) in [
        ("encoder.layers.0.self_attn.linear_q.weight", f32::NAN),
        ("encoder.layers.1.feed_forward1.linear1.weight", f32::INFINITY),
        ("joint.joint_net.2.weight", f32::NAN),
        ("joint.enc.weight", f32::NAN),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        write(&Change { fill: Some((tensor, value)), ..Default::default() }, &path);
        let model =
            SpeechModel::load_with(&path, &LoadOptions { threads: Some(1), ..Default::default() }).unwrap();
        let clip: Vec<f32> = (0..16_000).map(|i| (i as f32 * 0.05).sin() * 0.1).collect();
        let result = model.transcribe(Samples::mono(&clip, 16_000), &TranscribeOptions::default());
        let error = result.map(|t| t.text).expect_err(tensor).to_string();
        assert!(error.contains("not finite"), "{tensor} = {value}: {error}");
    }
}

#[test]
fn files_that_are_no_models_say_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(data("hybrid_tdt80.gguf")).unwrap();
    let cases: [(&str, Vec<u8>, &str); 5] = [
        ("empty", Vec::new(), ""),
        ("html", b"<!DOCTYPE html><html><body>Not found</body></html>".to_vec(), "HTML"),
        ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec(), "LFS"),
        ("cut", whole[..whole.len() * 7 / 10].to_vec(), ""),
        ("zip", b"PK\x03\x04aaaaaaaaaaaaaaaaaaaaaaaaaaaa".to_vec(), "zip"),
    ];
    for (name, bytes, expected) in cases {
        let path = folder.path().join(format!("{name}.gguf"));
        std::fs::write(&path, bytes).unwrap();
        let error = SpeechModel::load(&path).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains(name) && error.to_lowercase().contains(&expected.to_lowercase()),
            "{name}: {error}"
        );
    }
    for path in [folder.path().join("nowhere.gguf"), folder.path().to_path_buf()] {
        let error = SpeechModel::load(&path).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_with_the_list() {
    let options = LoadOptions { device: Some("cuda:0".into()), ..Default::default() };
    let error = SpeechModel::embedded(&options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("\"cuda:0\"; there are: cpu"), "{error}");
}

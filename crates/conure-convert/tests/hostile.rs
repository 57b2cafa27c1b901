//! Damaged and hostile inputs: each is refused in time, by name, and leaves nothing behind.

// Helpers of tests may panic like tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{
    Parts, TestTensor, checkpoint, checkpoint_entries, data, nemo, part, parts, tensors, unzip, zip,
};
use conure_convert::{ConvertError, ConvertOptions, TargetType, convert};
use conure_gguf::GgufFile;
use std::path::Path;
use std::time::{Duration, Instant};
use zip::CompressionMethod::{Deflated, Stored};

const MODEL: &str = "ctc80_local.nemo";
const WEIGHTS: &str = "model_weights.ckpt";

/// Converts `input`, which must fail within two seconds, name itself and leave nothing.
fn refused(input: &Path) -> ConvertError {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let started = Instant::now();
    let options = ConvertOptions { dtype: TargetType::F32, ..Default::default() };
    let e = match convert(input, &out, &options) {
        Ok(report) => panic!("{} was converted: {report:?}", input.display()),
        Err(e) => e,
    };
    assert!(started.elapsed() < Duration::from_secs(2), "{e}: {:?}", started.elapsed());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{e}: something was left behind");
    let shown = e.to_string();
    let name = input.file_name().unwrap().to_string_lossy();
    assert!(shown.contains(&*name), "{shown:?} does not name {name}");
    e
}

fn refused_bytes(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("some model.nemo");
    std::fs::write(&input, bytes).unwrap();
    refused(&input).to_string()
}

fn with(change: impl FnOnce(&mut Parts)) -> Vec<u8> {
    let mut all = parts(MODEL);
    change(&mut all);
    nemo(&all)
}

fn with_weights(change: impl FnOnce(&[u8]) -> Vec<u8>) -> Vec<u8> {
    with(|p| {
        let weights = part(p, WEIGHTS);
        *weights = change(weights);
    })
}

fn with_tensors(change: impl FnOnce(&mut Vec<TestTensor>)) -> Vec<u8> {
    with_weights(|w| {
        let mut all = tensors(w);
        change(&mut all);
        checkpoint(&all)
    })
}

fn with_yaml(from: &str, to: &str) -> Vec<u8> {
    with(|p| {
        let yaml = part(p, "model_config.yaml");
        let text = String::from_utf8(yaml.clone()).unwrap();
        assert!(text.contains(from), "{from:?}");
        *yaml = text.replacen(from, to, 1).into_bytes();
    })
}

fn replace_bytes(bytes: &mut [u8], from: &[u8], to: &[u8], times: usize) {
    assert_eq!(from.len(), to.len());
    let mut done = 0;
    for i in 0..bytes.len().saturating_sub(from.len()) {
        if done < times && bytes[i..].starts_with(from) {
            bytes[i..i + to.len()].copy_from_slice(to);
            done += 1;
        }
    }
    assert!(done > 0);
}

fn find<'a>(all: &'a mut [TestTensor], name: &str) -> &'a mut TestTensor {
    all.iter_mut().find(|t| t.name == name).unwrap()
}

/// The helpers make what `torch.save` makes: taken apart and put together, a model converts to the same file.
#[test]
fn a_model_put_together_again_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let options = ConvertOptions { name: Some("x".into()), ..Default::default() };
    let made = |name: &str, bytes: &[u8]| {
        let input = dir.path().join(name);
        std::fs::write(&input, bytes).unwrap();
        let out = input.with_extension("gguf");
        convert(&input, &out, &options).unwrap_or_else(|e| panic!("{e}"));
        std::fs::read(out).unwrap()
    };
    let want = made("a.nemo", &std::fs::read(data(MODEL)).unwrap());
    assert!(want == made("b.nemo", &with_tensors(|_| {})));
    // zipped again with deflate, as some tools do
    assert!(want == made("c.nemo", &with_weights(|w| zip(&unzip(w), Deflated))));
    // a transposed, non-contiguous tensor
    let transposed = with_tensors(|all| {
        let t = find(all, "encoder.layers.0.feed_forward1.linear1.weight");
        let (rows, columns) = (t.shape[0], t.shape[1]);
        let old = t.bytes.clone();
        for r in 0..rows {
            for c in 0..columns {
                let (to, from) = ((c * rows + r) * 4, (r * columns + c) * 4);
                t.bytes[to..to + 4].copy_from_slice(&old[from..from + 4]);
            }
        }
        t.stride = vec![1, rows];
    });
    assert!(want == made("d.nemo", &transposed));
    // a joint without dropout numbers its last layer 1; only transducers have one
    let mut all = parts("rnnt80.nemo");
    let before = made("e.nemo", &nemo(&all));
    let weights = part(&mut all, WEIGHTS);
    let mut list = tensors(weights);
    list.iter_mut().for_each(|t| t.name = t.name.replace("joint_net.2.", "joint_net.1."));
    *weights = checkpoint(&list);
    assert!(before == made("f.nemo", &nemo(&all)));
}

#[test]
fn other_element_types_become_f32() {
    let dir = tempfile::tempdir().unwrap();
    let name = "encoder.layers.0.norm_out.weight";
    for (class, bytes, want) in [
        ("HalfStorage", vec![0x00, 0x3e], 1.5f32),
        ("BFloat16Storage", vec![0xc0, 0xbf], -1.5),
        ("DoubleStorage", 0.1f64.to_le_bytes().to_vec(), 0.1),
        ("LongStorage", 7i64.to_le_bytes().to_vec(), 7.0),
    ] {
        let bytes = with_tensors(|all| {
            let t = find(all, name);
            t.class = class;
            t.bytes = bytes.repeat(64);
        });
        let input = dir.path().join(format!("{class}.nemo"));
        std::fs::write(&input, bytes).unwrap();
        let out = dir.path().join("out.gguf");
        convert(&input, &out, &ConvertOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let file = GgufFile::open(&out).unwrap();
        assert_eq!(file.tensor(name).unwrap().data[..4], want.to_le_bytes(), "{class}");
    }
}

#[test]
fn checkpoints() {
    let entries = || {
        let mut all = parts(MODEL);
        checkpoint_entries(&tensors(part(&mut all, WEIGHTS)))
    };
    let zipped = |change: &dyn Fn(&mut Parts)| {
        let mut e = entries();
        change(&mut e);
        let weights = zip(&e, Stored);
        with_weights(|_| weights)
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("`os.system`", zipped(&|e| e[0].1 = b"cos\nsystem\n(X\x0b\0\0\0touch pwnedtR.".to_vec())),
        ("too early", zipped(&|e| e[0].1.truncate(100))),
        ("has one data.pkl, this archive has 0", zipped(&|e| drop(e.remove(0)))),
        ("has one data.pkl, this archive has 2", zipped(&|e| e.push(("n/data.pkl".into(), vec![])))),
        ("`m/data/3` is missing", zipped(&|e| e.retain(|(n, _)| n != "m/data/3"))),
        ("the archive holds 1604 bytes", zipped(&|e| e[2].1.extend([0; 4]))),
        ("only little-endian", zipped(&|e| e[1].1 = b"big".to_vec())),
        ("leaves the archive", zipped(&|e| e.push(("m/../../etc/x".into(), vec![])))),
        ("leaves the archive", zipped(&|e| e.push(("/etc/x".into(), vec![])))),
        ("old format", with_weights(|_| b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec())),
        ("no PyTorch checkpoint", with_weights(|_| b"hello, this is text".to_vec())),
        ("no PyTorch checkpoint", with_weights(|_| Vec::new())),
        (
            "one name",
            with_weights(|_| {
                let mut e = entries();
                e.push(("m/data/x".into(), vec![1; 1600]));
                let mut bytes = zip(&e, Stored);
                replace_bytes(&mut bytes, b"m/data/x", b"m/data/0", 2);
                bytes
            }),
        ),
        (
            "header",
            with_weights(|_| {
                let mut bytes = zip(&entries(), Stored);
                replace_bytes(&mut bytes, b"m/data/5", b"m/data/Q", 1);
                bytes
            }),
        ),
        ("zip directory", with_weights(|w| w[..w.len() / 2].to_vec())),
        ("zip directory", with_weights(|w| w[..w.len() - 30].to_vec())),
        (
            "fifty-fold",
            with_weights(|_| {
                let mut e = entries();
                e.push(("m/data/bomb".into(), vec![0; 40 << 20]));
                zip(&e, Deflated)
            }),
        ),
        (
            "more than the 33554432",
            with_weights(|_| {
                let mut e = entries();
                e[0].1 = vec![b'N'; 33 << 20];
                zip(&e, Stored)
            }),
        ),
        // The last tensor is read last: what was written by then must not stay.
        (
            "checksum",
            with_weights(|w| {
                let mut e = unzip(w);
                let last = e.iter_mut().rfind(|(n, _)| n.contains("/data/")).unwrap();
                last.1[0] ^= 1;
                let marker = last.1.clone();
                let mut bytes = zip(&e, Stored);
                let mut damaged = marker.clone();
                damaged[0] ^= 1;
                replace_bytes(&mut bytes, &marker, &damaged, 1);
                bytes
            }),
        ),
    ];
    for (want, bytes) in cases {
        let e = refused_bytes(&bytes);
        assert!(e.contains(want), "{want:?}: {e}");
    }
    assert!(!Path::new("pwned").exists());
}

#[test]
fn tensors_and_configurations_that_disagree() {
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            "tensor `encoder.layers.1.norm_conv.bias`: it is missing",
            with_tensors(|a| a.retain(|t| t.name != "encoder.layers.1.norm_conv.bias")),
        ),
        // one output fewer than the tokenizer has pieces, and the blank
        (
            "its shape is [128, 64, 1]",
            with_tensors(|a| {
                let head = find(a, "decoder.decoder_layers.0.weight");
                head.shape[0] = 128;
                head.bytes.truncate(128 * 64 * 4);
            }),
        ),
        ("comes twice", with_tensors(|a| a.push(a[3].clone()))),
        ("[96, 320]", with_yaml("d_model: 64", "d_model: 96")),
        ("encoder.layers.2.", with_yaml("n_layers: 2", "n_layers: 3")),
        ("from 1 to 1024", with_yaml("n_layers: 2", "n_layers: 4000000000")),
        ("above 0", with_yaml("n_heads: 4", "n_heads: 0")),
        ("divisor", with_yaml("n_heads: 4", "n_heads: 5")),
        ("whole number", with_yaml("n_heads: 4", "n_heads: four")),
        ("`encoder.d_model` is missing", with_yaml("d_model: 64", "model_d: 64")),
        ("rel_pos or rel_pos_local_attn", with_yaml("rel_pos_local_attn", "abs_pos")),
        ("same window", with_yaml("- 128\n  - 128\n  att", "- 128\n  - 64\n  att")),
        ("dw_striding", with_yaml("dw_striding", "vggnet")),
        ("causal", with_yaml("conv_context_size: null", "conv_context_size: [3, 5]")),
        ("per_feature or NA", with_yaml("normalize: per_feature", "normalize: all_features")),
        ("a SentencePiece tokenizer", with_yaml("type: bpe", "type: wpe")),
        ("duplicate mapping key", with_yaml("n_heads: 4", "n_heads: 4\n  n_heads: 4")),
        ("it has no tokenizer", with(|p| p.retain(|(n, _)| n.contains("model_")))),
        ("wire type", with(|p| *part(p, "tokenizer.model") = b"<html></html>".to_vec())),
        ("it has no model_config.yaml", with(|p| p.retain(|(n, _)| !n.contains("yaml")))),
        ("it has no model_weights.ckpt", with(|p| p.retain(|(n, _)| !n.contains("ckpt")))),
        ("UTF-8", with(|p| *part(p, "model_config.yaml") = vec![0xff, 0xfe])),
        ("cannot be read", with(|p| *part(p, "model_config.yaml") = b"a: [".to_vec())),
    ];
    for (want, bytes) in cases {
        let e = refused_bytes(&bytes);
        assert!(e.contains(want), "{want:?}: {e}");
    }
}

#[test]
fn archives() {
    let whole = nemo(&parts(MODEL));
    // cut at every kind of place
    for len in [1, 100, 511, 512, 600, 4000, whole.len() / 2, whole.len() - 1024 - 600] {
        let e = refused_bytes(&whole[..len]);
        assert!(e.contains("cut off") || e.contains("neither") || e.contains("has no"), "{len}: {e}");
    }
    let link = with(|_| {});
    let mut builder = tar::Builder::new(link[..link.len() - 1024].to_vec());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "evil", "/etc/passwd").unwrap();
    assert!(refused_bytes(&builder.into_inner().unwrap()).contains("symbolic link"));
    let twice = with(|p| p.push(p[0].clone()));
    assert!(refused_bytes(&twice).contains("comes twice"));

    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), 100 << 20), &mut bomb).unwrap();
    assert!(refused_bytes(&bomb.finish().unwrap()).contains("does not shrink like that"));
    assert!(refused_bytes(&[0x1f, 0x8b, 8, 0, 0, 0]).contains("inflate"));
}

#[test]
fn what_is_no_model_is_named() {
    let cases: [(&str, &[u8]); 9] = [
        ("empty", b""),
        ("web page", b"<!DOCTYPE html><html>Not found</html>"),
        ("Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        ("bare PyTorch checkpoint", b"PK\x03\x04............"),
        (
            "bare safetensors",
            b"\x36\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        ),
        ("its dtype is missing", b"\x10\0\0\0\0\0\0\0{\"a\":{}}        "),
        ("JSON", b"{\"model_type\": \"parakeet_ctc\"}"),
        ("neither a .nemo archive", &[7; 700]),
        ("not downloaded completely", b"GGUF\x03\0\0\0"),
    ];
    for (want, bytes) in cases {
        let e = refused_bytes(bytes);
        assert!(e.contains(want), "{want:?}: {e}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(refused(dir.path()).to_string().contains("neither model_config.yaml"));
    assert!(refused(&dir.path().join("absent.nemo")).to_string().contains("cannot open it"));
    #[cfg(unix)]
    for device in ["/dev/zero", "/dev/null"] {
        assert!(refused(Path::new(device)).to_string().contains("no regular file"));
    }
    let other = dir.path().join("whisper.gguf");
    let mut writer = conure_gguf::GgufWriter::new();
    writer.meta("general.architecture", "whisper");
    writer.write_to(&other).unwrap();
    assert!(refused(&other).to_string().contains("only parakeet models"));
}

#[test]
fn hugging_face_folders() {
    type Change = fn(&Path);
    let edit = |dir: &Path, file: &str, from: &str, to: &str| {
        let path = dir.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    };
    let cases: [(&str, Change); 6] = [
        ("model.safetensors", |d| std::fs::remove_file(d.join("model.safetensors")).unwrap()),
        ("tokenizer.json", |d| std::fs::remove_file(d.join("tokenizer.json")).unwrap()),
        ("preprocessor_config.json", |d| std::fs::remove_file(d.join("processor_config.json")).unwrap()),
        ("cannot be read", |d| std::fs::write(d.join("config.json"), "[".repeat(100_000)).unwrap()),
        ("cut off", |d| {
            let path = d.join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("model_type", |d| std::fs::write(d.join("config.json"), "{\"model_type\":\"whisper\"}").unwrap()),
    ];
    let fresh = || {
        let dir = tempfile::tempdir().unwrap();
        for f in ["config.json", "model.safetensors", "tokenizer.json", "processor_config.json"] {
            std::fs::copy(data("hf-tdt").join(f), dir.path().join(f)).unwrap();
        }
        dir
    };
    for (want, change) in cases {
        let dir = fresh();
        change(dir.path());
        let e = convert(dir.path(), &dir.path().join("o.gguf"), &ConvertOptions::default())
            .unwrap_err()
            .to_string();
        assert!(e.contains(want), "{want:?}: {e}");
        assert!(!dir.path().join("o.gguf").exists());
    }
    for (want, file, from, to) in [
        ("`durations` is missing", "config.json", "\"durations\"", "\"x\""),
        ("last of the vocabulary", "config.json", "\"blank_token_id\": 128", "\"blank_token_id\": 0"),
        ("its shape is", "config.json", "\"hidden_size\": 96", "\"hidden_size\": 48"),
        ("piece 200: it is missing", "config.json", "\"vocab_size\": 129", "\"vocab_size\": 202"),
        ("mel features", "processor_config.json", "\"feature_size\": 128", "\"feature_size\": 80"),
        ("from 1 to 256", "processor_config.json", "\"n_fft\": 512", "\"n_fft\": 256"),
    ] {
        let dir = fresh();
        if to.contains("202") {
            edit(dir.path(), "config.json", "\"blank_token_id\": 128", "\"blank_token_id\": 201");
        }
        edit(dir.path(), file, from, to);
        let e = refused(dir.path()).to_string();
        assert!(e.contains(want) || (to.contains("202") && e.contains("it is missing")), "{want:?}: {e}");
    }
}

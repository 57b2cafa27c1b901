//! Our GGUF files against those of parakeet.cpp's converter, key for key and bit for bit.

// Helpers of tests may panic like tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use conure_convert::{ConvertError, ConvertOptions, Progress, TargetType, convert, mel};
use conure_gguf::GgufFile;
use conure_tensor::{DType, quant};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/oracle").join(name)
}

fn convert_as(name: &str, dtype: TargetType, dir: &Path) -> GgufFile {
    let out = dir.join(format!("{}.{dtype:?}.gguf", name.trim_end_matches(".nemo")));
    let options = ConvertOptions { dtype, ..Default::default() };
    convert(&data(name), &out, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    GgufFile::open(&out).unwrap()
}

/// Keys with type and value as text.
fn keys(file: &GgufFile) -> BTreeMap<String, String> {
    file.meta()
        .iter()
        .map(|(k, v)| {
            let items = v.as_array().map(|a| a.iter().map(|i| i.to_string()).collect::<Vec<_>>());
            (k.to_owned(), items.map_or_else(|| v.to_string(), |i| format!("{v}: {i:?}")))
        })
        .collect()
}

fn assert_same_keys(name: &str, ours: &GgufFile, theirs: &GgufFile, added: &[&str]) {
    let (mut ours, mut theirs) = (keys(ours), keys(theirs));
    for key in added {
        assert!(ours.remove(*key).is_some(), "{name}: {key} is missing");
        assert!(!theirs.contains_key(*key), "{name}: the peer has {key} too");
    }
    // The peer takes the file's name with its extension; a folder's name says nothing of the archive it came from.
    let (our_name, their_name) =
        (ours.remove("general.name").unwrap(), theirs.remove("general.name").unwrap());
    if name.ends_with(".nemo") {
        assert_eq!(our_name.replace('"', ""), their_name.replace('"', "").replace(".nemo", ""));
    }
    if name == "hf-rnnt" {
        // The folder was saved with the tokenizer of hf-tdt, not with rnnt80's.
        let other = GgufFile::open(data("tdt128.gguf")).unwrap();
        let pieces = "parakeet.tokenizer.pieces";
        assert_eq!(ours.remove(pieces), keys(&other).remove(pieces));
        theirs.remove(pieces);
    }
    assert_eq!(ours, theirs, "{name}");
}

fn assert_same_tensors(name: &str, ours: &GgufFile, theirs: &GgufFile) {
    assert_eq!(ours.tensors().len(), theirs.tensors().len(), "{name}");
    for info in theirs.tensors() {
        let (a, b) = (ours.tensor(&info.name).unwrap(), theirs.tensor(&info.name).unwrap());
        assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{name}: {}", info.name);
        // torch's vectorised cosine is not reproduced to the last bit; see `mel::hann`.
        if !name.ends_with(".nemo") && info.name == "preprocessor.featurizer.window" {
            let differ = floats(a.data).zip(floats(b.data)).filter(|(x, y)| x != y).count();
            let worst = floats(a.data).zip(floats(b.data)).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(differ <= 10 && worst <= 6e-8, "{name}: window differs in {differ} by up to {worst}");
        } else {
            assert!(a.data == b.data, "{name}: {} differs", info.name);
        }
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))
}

#[test]
fn nemo_archives_become_the_peers_files() {
    let dir = tempfile::tempdir().unwrap();
    let local: &[&str] = &[
        "parakeet.encoder.self_attention_model",
        "parakeet.encoder.att_context_left",
        "parakeet.encoder.att_context_right",
        "parakeet.encoder.att_context_style",
    ];
    for (name, added) in [
        ("ctc80", &[][..]),
        ("rnnt80", &[]),
        ("tdt128", &[]),
        ("hybrid_tdt80", &[]),
        ("stream_eou128", &[]),
        ("ctc80_local", local),
    ] {
        let theirs = GgufFile::open(data(&format!("{name}.gguf"))).unwrap();
        let name = format!("{name}.nemo");
        let ours = convert_as(&name, TargetType::F32, dir.path());
        assert_same_keys(&name, &ours, &theirs, added);
        assert_same_tensors(&name, &ours, &theirs);
        let order = |f: &GgufFile| f.tensors().iter().map(|t| t.name.clone()).collect::<Vec<_>>();
        assert_eq!(order(&ours), order(&theirs), "{name}: order");
    }
}

#[test]
fn hugging_face_folders_become_the_same_files() {
    let dir = tempfile::tempdir().unwrap();
    for (name, theirs) in [("hf-ctc", "ctc80"), ("hf-tdt", "tdt128"), ("hf-rnnt", "rnnt80")] {
        let theirs = GgufFile::open(data(&format!("{theirs}.gguf"))).unwrap();
        let ours = convert_as(name, TargetType::F32, dir.path());
        assert_same_keys(name, &ours, &theirs, &[]);
        assert_same_tensors(name, &ours, &theirs);
    }
}

#[test]
fn the_filterbank_is_nemos() {
    for (name, mels) in [("ctc80", 80), ("tdt128", 128)] {
        let file = GgufFile::open(data(&format!("{name}.gguf"))).unwrap();
        let stored = file.tensor("preprocessor.featurizer.fb").unwrap();
        let ours = mel::filterbank(16000, 512, mels);
        assert_eq!(stored.shape, [1, mels, 257]);
        for (i, (a, b)) in ours.iter().zip(floats(stored.data)).enumerate() {
            assert_eq!(a.to_bits(), b.to_bits(), "{name}: {i}: {a} {b}");
        }
    }
}

#[test]
fn the_prompt_model_keeps_its_dictionary() {
    let dir = tempfile::tempdir().unwrap();
    let ours = convert_as("prompt128.nemo", TargetType::F32, dir.path());
    let m = ours.meta();
    assert!(m.bool("parakeet.prompt.present").unwrap());
    assert_eq!(m.u32("parakeet.prompt.num_prompts").unwrap(), 8);
    let locales = ["en-US", "en", "de-DE", "de", "ja-JP", "ja", "fr-FR", "auto"];
    assert_eq!(m.str_array("parakeet.prompt.dictionary.keys").unwrap(), locales);
    assert_eq!(m.i32_array("parakeet.prompt.dictionary.values").unwrap(), [0, 0, 1, 1, 3, 3, 4, 6]);
    assert_eq!(m.str("parakeet.prompt.default_lang").unwrap(), "auto");
    assert_eq!(m.str("parakeet.arch").unwrap(), "rnnt");
    assert_eq!(m.i32_array("parakeet.streaming.chunk_size").unwrap(), [9, 16]);
    assert_eq!(ours.tensor("prompt_kernel.0.weight").unwrap().shape, [128, 72]);
    assert!(ours.tensors().iter().all(|t| !t.name.contains("num_batches_tracked")));
}

#[test]
fn smaller_types_only_on_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let full = GgufFile::open(data("tdt128.gguf")).unwrap();
    for target in [TargetType::F16, TargetType::Q8_0] {
        let small = convert_as("tdt128.nemo", target, dir.path());
        let mut counted = BTreeMap::new();
        for info in small.tensors() {
            let (a, b) = (small.tensor(&info.name).unwrap(), full.tensor(&info.name).unwrap());
            *counted.entry(a.dtype).or_insert(0) += 1;
            if a.dtype == DType::F32 {
                assert!(a.data == b.data, "{}", info.name);
            } else {
                let values: Vec<f32> = floats(b.data).collect();
                assert!(a.data == quant::encoded(target.dtype(), &values).unwrap(), "{}", info.name);
            }
        }
        // per layer: 4 feed-forward and 5 attention weights; the subsampling's output; joint.enc and joint.pred
        assert_eq!(counted[&target.dtype()], 2 * 9 + 3);
        // and from GGUF the same as from the archive
        let out = dir.path().join("again.gguf");
        let options = ConvertOptions { dtype: target, ..Default::default() };
        let report = convert(&data("tdt128.gguf"), &out, &options).unwrap();
        assert_eq!(report.tensors[&target.dtype()], 21);
        assert_same_tensors("tdt128.nemo", &GgufFile::open(&out).unwrap(), &small);
        assert_eq!(keys(&GgufFile::open(&out).unwrap()), keys(&full));
        // once more changes nothing, and says so
        let e = convert(&out, &dir.path().join("x.gguf"), &options).unwrap_err();
        assert!(matches!(e, ConvertError::NothingToDo { .. }), "{e}");
    }
}

#[test]
fn packed_and_unpacked_archives_give_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let plain = std::fs::read(data("ctc80_local.nemo")).unwrap();
    let packed = dir.path().join("ctc80_local.nemo");
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gz, &plain).unwrap();
    std::fs::write(&packed, gz.finish().unwrap()).unwrap();
    let folder = dir.path().join("unpacked");
    tar::Archive::new(&plain[..]).unpack(&folder).unwrap();
    let a = dir.path().join("a.gguf");
    let b = dir.path().join("b.gguf");
    let c = dir.path().join("c.gguf");
    let options = ConvertOptions { name: Some("x".into()), dtype: TargetType::F16, ..Default::default() };
    convert(&data("ctc80_local.nemo"), &a, &options).unwrap();
    convert(&packed, &b, &options).unwrap();
    convert(&folder, &c, &options).unwrap();
    let bytes = std::fs::read(&a).unwrap();
    assert!(bytes == std::fs::read(&b).unwrap());
    assert!(bytes == std::fs::read(&c).unwrap());
    // nothing else was left behind
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 5);
}

#[test]
fn progress_attribution_and_cancelling() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.gguf");
    std::fs::write(&out, b"before").unwrap();
    let stop = |p: &Progress<'_>| p.done < 5;
    let options = ConvertOptions { progress: Some(&stop), ..Default::default() };
    let e = convert(&data("ctc80.nemo"), &out, &options).unwrap_err();
    assert!(matches!(e, ConvertError::Cancelled), "{e}");
    assert_eq!(std::fs::read(&out).unwrap(), b"before");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);

    let seen = std::cell::RefCell::new(Vec::new());
    let watch = |p: &Progress<'_>| {
        seen.borrow_mut().push((p.done, p.total, p.tensor.to_owned()));
        true
    };
    let options = ConvertOptions {
        name: Some("mine".into()),
        general: vec![("general.license".into(), "cc0-1.0".into())],
        progress: Some(&watch),
        ..Default::default()
    };
    let report = convert(&data("ctc80.nemo"), &out, &options).unwrap();
    let file = GgufFile::open(&out).unwrap();
    assert_eq!(file.meta().str("general.name").unwrap(), "mine");
    assert_eq!(file.meta().str("general.license").unwrap(), "cc0-1.0");
    assert_eq!(seen.borrow().len(), 94);
    assert_eq!(seen.borrow()[93], (93, 94, "decoder.decoder_layers.0.bias".into()));
    assert_eq!((report.arch.as_str(), report.format), ("ctc", "NeMo archive"));
    assert_eq!(report.bytes, std::fs::metadata(&out).unwrap().len());
    assert_eq!(report.dropped.len(), 2, "{:?}", report.dropped);

    let e = convert(&out, &out, &ConvertOptions::default()).unwrap_err().to_string();
    assert!(e.contains("input and output"), "{e}");
    let options =
        ConvertOptions { general: vec![("parakeet.arch".into(), "x".into())], ..Default::default() };
    assert!(convert(&data("ctc80.nemo"), &out, &options).is_err());
}

/// Large models come in shards with an index; older ones keep the feature extractor in a file of its own.
#[test]
fn shards_and_the_old_processor_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("hf-tdt");
    std::fs::create_dir(&folder).unwrap();
    for f in ["config.json", "tokenizer.json"] {
        std::fs::copy(data("hf-tdt").join(f), folder.join(f)).unwrap();
    }
    let processor: serde_json::Value =
        serde_json::from_slice(&std::fs::read(data("hf-tdt").join("processor_config.json")).unwrap())
            .unwrap();
    std::fs::write(folder.join("preprocessor_config.json"), processor["feature_extractor"].to_string())
        .unwrap();
    let bytes = std::fs::read(data("hf-tdt").join("model.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut index = serde_json::Map::new();
    for shard in 0..3 {
        let file = format!("model-{shard}-of-3.safetensors");
        let part: Vec<_> = all
            .iter()
            .enumerate()
            .filter(|(i, _)| i % 3 == shard)
            .map(|(_, (n, t))| (n.to_owned(), t))
            .collect();
        index.extend(part.iter().map(|(n, _)| (n.clone(), file.clone().into())));
        std::fs::write(folder.join(&file), safetensors::serialize(part, None).unwrap()).unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": index });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();

    let out = dir.path().join("out.gguf");
    let options = ConvertOptions { dtype: TargetType::F32, ..Default::default() };
    convert(&folder, &out, &options).unwrap();
    let theirs = GgufFile::open(data("tdt128.gguf")).unwrap();
    let ours = GgufFile::open(&out).unwrap();
    assert_same_keys("hf-tdt", &ours, &theirs, &[]);
    assert_same_tensors("hf-tdt", &ours, &theirs);
}

/// A file that is read, in a folder or behind a link in it, is not replaced; a model that was made there before is.
#[test]
fn no_file_of_a_folder_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let hf = dir.path().join("hf");
    std::fs::create_dir(&hf).unwrap();
    for entry in std::fs::read_dir(data("hf-ctc")).unwrap().flatten() {
        std::fs::copy(entry.path(), hf.join(entry.file_name())).unwrap();
    }
    let outside = dir.path().join("real.st");
    std::fs::rename(hf.join("model.safetensors"), &outside).unwrap();
    std::os::unix::fs::symlink(&outside, hf.join("model.safetensors")).unwrap();
    let before = std::fs::read(&outside).unwrap();
    for output in [hf.join("model.safetensors"), outside.clone(), hf.join("config.json")] {
        let e = convert(&hf, &output, &ConvertOptions::default()).unwrap_err().to_string();
        assert!(e.contains("input and output"), "{}: {e}", output.display());
    }
    assert_eq!(std::fs::read(&outside).unwrap(), before);
    for _ in 0..2 {
        convert(&hf, &hf.join("model.gguf"), &ConvertOptions::default()).unwrap();
    }
}

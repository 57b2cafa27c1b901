//! Every family of language models against what Hugging Face's transformers computes: tiny models with random weights,
//! converted here, at once and token by token. `scripts/make_language_goldens.py` made them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{DType, DeviceForms, LanguageModel, LanguageSession, LoadOptions, SessionOptions};
use conure_convert::{ConvertOptions, TargetType, convert};
use conure_gguf::{GgufFile, GgufWriter};
use conure_tensor::quant;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

const FAMILIES: [&str; 14] = [
    "llama",
    "llama3",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "qwen35",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "phi3",
    "gemma2",
    "gemma3",
];

/// Logits are up to 6; sums of 48 products in f32, three layers of them, in another order than torch's.
const TOLERANCE: f32 = 1e-4;

fn data(family: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/language").join(format!("hf-{family}"))
}

fn model(family: &str, dir: &tempfile::TempDir, device: &str) -> LanguageModel {
    model_in(family, dir, device, DeviceForms::default())
}

fn model_in(family: &str, dir: &tempfile::TempDir, device: &str, forms: DeviceForms) -> LanguageModel {
    let path = dir.path().join(format!("{family}.gguf"));
    if !path.exists() {
        let options = ConvertOptions { dtype: TargetType::F32, ..ConvertOptions::default() };
        convert(&data(family), &path, &options).unwrap_or_else(|e| panic!("{family}: {e}"));
    }
    let options =
        LoadOptions { device: Some(device.into()), threads: Some(2), forms, ..LoadOptions::default() };
    LanguageModel::load_with(&path, &options).unwrap_or_else(|e| panic!("{family}: {e}"))
}

fn prompts(family: &str) -> Vec<(String, Vec<u32>, Vec<f32>)> {
    let folder = data(family);
    let text = std::fs::read_to_string(folder.join("goldens.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bytes = std::fs::read(folder.join("goldens.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let of = |(i, p): (usize, &serde_json::Value)| {
        let ids = p["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let logits = tensors.tensor(&format!("logits.{i}")).unwrap();
        let logits =
            logits.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        (p["text"].as_str().unwrap().to_owned(), ids, logits)
    };
    json["prompts"].as_array().unwrap().iter().enumerate().map(of).collect()
}

fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max)
}

fn session(model: &LanguageModel, cache: DType) -> LanguageSession {
    model.session(&SessionOptions { context: Some(64), cache }).unwrap()
}

#[test]
fn logits_are_those_of_transformers_at_once_and_step_by_step() {
    let dir = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        for device in ["cpu", "partial:linear,sdpa,rope", "openvino:CPU"] {
            let model = model(family, &dir, device);
            let mut session = session(&model, DType::F32);
            for (text, ids, expected) in prompts(family) {
                session.rewind(0);
                let off = worst(session.read_all(&ids).unwrap(), &expected);
                assert!(off < TOLERANCE, "{family} on {device}, {text:?} at once: off by {off}");
                session.rewind(0);
                let width = expected.len() / ids.len();
                for (i, expected) in expected.chunks_exact(width).enumerate() {
                    let off = worst(session.read(&ids[i..=i]).unwrap(), expected);
                    assert!(off < TOLERANCE, "{family} on {device}, {text:?} at token {i}: off by {off}");
                }
            }
        }
    }
}

/// What a device chooses: the tokens of the CPU, in every family, from prompts of several lengths on one compiled model, whether
/// the device keeps the cache or is given it, and on models of fixed lengths.
#[test]
fn tokens_on_openvino_are_those_of_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let options = conure::GenerateOptions {
        max_tokens: Some(12),
        sampling: conure::Sampling::greedy(),
        ignore_end: true,
        ..Default::default()
    };
    for family in FAMILIES {
        for cache in [DType::F32, DType::F16] {
            let kept = |stateful| DeviceForms { stateful: Some(stateful), ..DeviceForms::default() };
            // Prompts are read in several chunks, and chunks are padded.
            let fixed = DeviceForms { fixed: Some(true), prefill_chunk: Some(4), ..DeviceForms::default() };
            let on = [
                ("cpu", kept(false)),
                ("openvino:CPU", kept(true)),
                ("openvino:CPU", kept(false)),
                ("openvino:CPU", fixed),
            ];
            let [cpu, stateful, stateless, fixed] = on.map(|(device, forms)| {
                let model = model_in(family, &dir, device, forms);
                let mut session = session(&model, cache);
                let mut all = Vec::new();
                for (_, ids, _) in prompts(family) {
                    session.rewind(0);
                    let generated = session.generate_ids(&ids, &options).unwrap();
                    all.push(generated.map(|p| p.unwrap().id).collect::<Vec<u32>>());
                }
                all
            });
            assert_eq!(stateful, cpu, "{family}, a cache of {cache}");
            assert_eq!(stateless, cpu, "{family}, a cache of {cache} that is given");
            assert_eq!(fixed, cpu, "{family}, a cache of {cache}, fixed lengths");
        }
    }
}

#[test]
fn tokens_are_those_of_tokenizers_and_give_the_text_back() {
    let dir = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let model = model(family, &dir, "cpu");
        for (text, ids, _) in prompts(family) {
            assert_eq!(model.tokenizer().encode(&text, false, true).unwrap(), ids, "{family} {text:?}");
            assert_eq!(model.tokenizer().decode(&ids, false), text, "{family} {ids:?}");
        }
    }
}

/// A folder with some text of a configuration replaced.
fn changed(family: &str, from: &str, to: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data(family)).unwrap().map(Result::unwrap) {
        let bytes = std::fs::read(entry.path()).unwrap();
        let bytes = match entry.file_name().to_str() {
            Some("config.json") => {
                let text = String::from_utf8(bytes).unwrap();
                assert!(text.contains(from), "{family}: {from}");
                text.replacen(from, to, 1).into_bytes()
            }
            _ => bytes,
        };
        std::fs::write(dir.path().join(entry.file_name()), bytes).unwrap();
    }
    dir
}

#[test]
fn mixtures_that_cannot_be_written_are_refused_by_name() {
    for (family, from, to, said) in [
        ("qwen3moe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "norm_topk_prob"),
        ("qwen3moe", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]", "mlp_only_layers"),
        ("qwen3moe", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2", "decoder_sparse_step"),
        ("qwen3moe", "\"num_local_experts\": 6", "\"num_local_experts\": 7", "6 of 7 experts"),
        ("mixtral", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "blk.2.ffn_gate_inp.weight"),
        ("gpt-oss", "\"num_local_experts\": 5", "\"num_local_experts\": 4", "not of 4 experts"),
        ("gpt-oss-mxfp4", "\"num_local_experts\": 5", "\"num_local_experts\": 4", "not of 4 experts"),
        ("gpt-oss", "\"sliding_attention\"", "\"full_attention\"", "layer_types"),
        ("gpt-oss", "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 6.0", "swiglu_limit"),
        ("gpt-oss", "\"beta_fast\": 32.0", "\"beta_fast\": 16.0", "beta_fast"),
        ("gpt-oss", "\"sliding_window\": 4", "\"sliding_window\": null", "sliding_window"),
    ] {
        let folder = changed(family, from, to);
        let error = convert(folder.path(), &folder.path().join("x.gguf"), &ConvertOptions::default());
        let error = error.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(said), "{family} {to}: {error}");
    }
}

/// The model at `path` with every matrix in f32, of the same values.
fn widened(path: &Path, out: &Path) {
    let file = GgufFile::open(path).unwrap();
    let values: Vec<Vec<u8>> = file
        .tensors()
        .iter()
        .map(|info| {
            let t = file.tensor(&info.name).unwrap();
            let mut values = vec![0f32; t.shape.iter().product()];
            quant::decode(t.dtype, t.data, &mut values).unwrap();
            values.iter().flat_map(|v| v.to_le_bytes()).collect()
        })
        .collect();
    let mut writer = GgufWriter::new();
    writer.copy_meta(file.meta()).unwrap();
    for (info, values) in file.tensors().iter().zip(&values) {
        writer.tensor(&info.name, DType::F32, file.tensor(&info.name).unwrap().shape, values);
    }
    writer.write_to(out).unwrap();
}

/// Every matrix in another type, those of experts too; routers and norms stay.
#[test]
fn language_models_are_stored_anew() {
    let dir = tempfile::tempdir().unwrap();
    let options = conure_convert::QuantiseOptions { target: TargetType::Q8_0, ..Default::default() };
    for (family, changed) in [("mixtral", "blk.1.ffn_down_exps.weight"), ("qwen35", "blk.0.attn_qkv.weight")]
    {
        let (wide, small) = (dir.path().join(format!("{family}.gguf")), dir.path().join("small.gguf"));
        let whole = model(family, &dir, "cpu");
        let report = conure_convert::quantise(&wide, &small, &options).unwrap();
        let to = |name: &str| report.tensors.iter().find(|t| t.name == name).map(|t| t.to).unwrap();
        assert_eq!((to(changed), to("token_embd.weight")), (DType::Q8_0, DType::Q8_0), "{family}");
        for kept in ["ffn_gate_inp.weight", "ssm_conv1d.weight", "ssm_a", "_norm.weight"] {
            let wrong = report.tensors.iter().find(|t| t.name.ends_with(kept) && t.from != t.to);
            assert!(wrong.is_none(), "{family}: {wrong:?}");
        }
        let small = LanguageModel::load(&small).unwrap();
        let (_, ids, _) = prompts(family).remove(2);
        let logits = |model: &LanguageModel| session(model, DType::F32).read(&ids).unwrap().to_vec();
        let off = worst(&logits(&small), &logits(&whole));
        // Weights of deviation 0.25 in steps of about 0.005, in layers on top of each other; which experts are asked may hang on a digit.
        assert!(family == "mixtral" || off < 0.5, "{family}: off by {off}");
        let options = conure_convert::QuantiseOptions { compatible: true, ..options.clone() };
        let error =
            conure_convert::quantise(&wide, &dir.path().join("x.gguf"), &options).unwrap_err().to_string();
        assert!(error.contains("language model"), "{error}");
    }
}

/// In exact arithmetic blocks give what their values give; which experts are asked may hang on a digit, so other weights are no
/// measure of anything.
#[test]
fn experts_in_blocks_are_their_values_and_those_in_mxfp4_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    for dtype in [TargetType::Q8_0, TargetType::Iq4Nl] {
        let path = dir.path().join(format!("mixtral-{}.gguf", dtype.dtype()));
        let wide = dir.path().join("wide.gguf");
        let report =
            convert(&data("mixtral"), &path, &ConvertOptions { dtype, ..Default::default() }).unwrap();
        // Embedding, head, and in each of two layers four of attention and three of experts.
        assert_eq!((report.tensors[&dtype.dtype()], report.kept), (16, Vec::new()));
        widened(&path, &wide);
        let options = LoadOptions { threads: Some(2), ..LoadOptions::default() };
        let logits = |path: &Path, options: &LoadOptions| {
            let model = LanguageModel::load_with(path, options).unwrap();
            let (_, ids, _) = prompts("mixtral").remove(0);
            session(&model, DType::F32).read_all(&ids).unwrap().to_vec()
        };
        let off = worst(&logits(&path, &options), &logits(&wide, &options));
        assert!(off < TOLERANCE, "{}: off by {off}", dtype.dtype());
        let fast = LoadOptions { precision: conure::Precision::Fast, ..options.clone() };
        assert!(logits(&path, &fast).iter().all(|x| x.is_finite()), "{}", dtype.dtype());
    }
    let path = dir.path().join("gpt-oss.gguf");
    let options = ConvertOptions { dtype: TargetType::F32, ..Default::default() };
    let report = convert(&data("gpt-oss-mxfp4"), &path, &options).unwrap();
    assert_eq!((report.tensors[&DType::MXFP4], report.kept.len()), (6, 6));
    assert!(report.kept.iter().all(|(name, reason)| name.contains("_exps") && reason.contains("mxfp4")));
}

#[test]
fn narrower_caches_stay_near() {
    let dir = tempfile::tempdir().unwrap();
    // Heads of 16 do not fill blocks of q8_0: that is refused, not rounded.
    let gemma = model("gemma3", &dir, "cpu");
    let refused = gemma.session(&SessionOptions { context: Some(64), cache: DType::Q8_0 }).map(|_| ());
    assert!(refused.unwrap_err().to_string().contains("q8_0"));
    for (dtype, bound) in [(DType::F16, 0.02), (DType::BF16, 0.2)] {
        let mut session = session(&gemma, dtype);
        for (_, ids, expected) in prompts("gemma3") {
            session.rewind(0);
            let off = worst(session.read_all(&ids).unwrap(), &expected);
            assert!(off < bound && off > 0.0, "{dtype}: off by {off}");
        }
    }
}

#[test]
fn what_was_read_before_is_not_read_again_and_the_context_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let model = model("qwen3", &dir, "cpu");
    let (_, ids, _) = prompts("qwen3").remove(0);
    let options = conure::GenerateOptions {
        max_tokens: Some(5),
        sampling: conure::Sampling::greedy(),
        ignore_end: true,
        ..Default::default()
    };
    let mut first = session(&model, DType::F16);
    let fresh: Vec<u32> = first.generate_ids(&ids, &options).unwrap().map(|p| p.unwrap().id).collect();
    // A longer prompt that begins with what is known, then the first one again.
    let longer = [ids.as_slice(), &fresh].concat();
    let generation = first.generate_ids(&longer, &options).unwrap();
    assert_eq!(generation.timings().reused, ids.len() + 4);
    drop(generation);
    let again: Vec<u32> = first.generate_ids(&ids, &options).unwrap().map(|p| p.unwrap().id).collect();
    assert_eq!(again, fresh);

    let mut small =
        model.session(&SessionOptions { context: Some(ids.len() + 2), cache: DType::F16 }).unwrap();
    let mut generation =
        small.generate_ids(&ids, &conure::GenerateOptions { max_tokens: None, ..options }).unwrap();
    let count = generation.by_ref().map(Result::unwrap).count();
    assert_eq!((count, generation.finish()), (3, Some(conure::Finish::ContextFull)));
    drop(generation);
    let error = small.read(&ids).unwrap_err().to_string();
    assert!(error.contains("do not fit in a context of"), "{error}");
    let long: Vec<u32> = ids.iter().copied().cycle().take(100).collect();
    let error = small.generate_ids(&long, &conure::GenerateOptions::default()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("100 tokens do not fit"), "{error}");
    let error = small.read(&[9999]).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("token 9999 is outside"), "{error}");
}

/// A state that was corrected by a token cannot forget it: what is kept is read again.
#[test]
fn recurrent_layers_go_back_by_reading_again() {
    let dir = tempfile::tempdir().unwrap();
    for device in ["cpu", "openvino:CPU"] {
        let model = model("qwen35", &dir, device);
        let mut session = session(&model, DType::F32);
        let (_, ids, expected) = prompts("qwen35").remove(2);
        let width = expected.len() / ids.len();
        let logits = |i: usize| &expected[i * width..(i + 1) * width];
        for kept in [ids.len() - 1, 1, 0, 3] {
            session.rewind(0);
            session.read(&ids).unwrap();
            session.read(&[5, 6, 7]).unwrap();
            session.rewind(kept);
            assert_eq!(session.tokens(), &ids[..kept]);
            let off = worst(session.read(&ids[kept..=kept]).unwrap(), logits(kept));
            assert!(off < TOLERANCE, "{kept} kept on {device}: off by {off}");
        }
        // A prompt that continues what was read is not read again; one that goes back is, and says so.
        let options = conure::GenerateOptions { max_tokens: Some(0), ..Default::default() };
        session.rewind(0);
        session.read(&ids[..4]).unwrap();
        let reused = session.generate_ids(&ids, &options).unwrap().timings().reused;
        let again = session.generate_ids(&ids, &options).unwrap().timings().reused;
        assert_eq!((reused, again), (4, 0), "{device}");
    }
}

/// A text that goes on where its context is full is what a session writes that never read what was forgotten.
#[test]
fn a_full_context_is_shifted() {
    let dir = tempfile::tempdir().unwrap();
    for (family, keep) in [("gemma3", 1), ("llama3", 5), ("qwen35", 0), ("qwen2", 0)] {
        let model = model(family, &dir, "cpu");
        let (_, mut text, _) = prompts(family).remove(0);
        let prompt = text.clone();
        let room = SessionOptions { context: Some(prompt.len() + 6), cache: DType::F32 };
        let options = conure::GenerateOptions {
            max_tokens: Some(30),
            sampling: conure::Sampling::greedy(),
            ignore_end: true,
            context_shift: Some(keep),
            ..Default::default()
        };
        let mut session = model.session(&room).unwrap();
        let mut generation = session.generate_ids(&prompt, &options).unwrap();
        let found: Vec<u32> = generation.by_ref().map(|p| p.unwrap().id).collect();
        assert!(generation.timings().shifts >= 3, "{family}");
        drop(generation);
        let mut batch = model.batch(2, &room).unwrap();
        for _ in 0..2 {
            batch.add(&prompt, &options).unwrap();
        }
        let mut together = [const { Vec::new() }; 2];
        while !batch.is_idle() {
            for piece in batch.step().unwrap() {
                together[piece.request as usize].extend(piece.piece.unwrap().map(|p| p.id));
            }
        }
        assert_eq!(together, [found.clone(), found.clone()], "{family}");
        for (i, &id) in found.iter().enumerate() {
            let mut fresh = model.session(&room).unwrap();
            let logits = fresh.read(&text).unwrap();
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            // Sums in another order: of two that are as likely either may come.
            assert!(logits[id as usize] > best - 1e-4, "{family}, token {i}");
            if text.len() == room.context.unwrap() {
                let rest = text.split_off(keep);
                text.extend(&rest[rest.len().div_ceil(2)..]);
            }
            text.push(id);
        }
        let all = conure::GenerateOptions { context_shift: room.context, ..options };
        let error = session.generate_ids(&prompt, &all).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("what a context shift keeps"), "{error}");
    }
}

#[test]
fn texts_that_are_continued_together_are_those_that_are_continued_alone() {
    let dir = tempfile::tempdir().unwrap();
    let options = SessionOptions { context: Some(64), cache: DType::F16 };
    for (family, device) in [
        ("gemma3", "cpu"),
        ("llama3", "cpu"),
        ("gpt-oss", "cpu"),
        ("qwen2", "partial:linear,sdpa,rope"),
        ("qwen35", "cpu"),
        ("qwen35", "partial:causal_conv1d,gated_delta"),
    ] {
        let model = model(family, &dir, device);
        // Prompts and answers of several lengths, more than there are places, and one that is ended from outside.
        let requests: Vec<(Vec<u32>, conure::GenerateOptions)> = prompts(family)
            .into_iter()
            .cycle()
            .take(7)
            .enumerate()
            .map(|(i, (_, ids, _))| {
                let sampling = conure::Sampling { seed: Some(i as u64), ..Default::default() };
                let sampling = if i % 2 == 0 { conure::Sampling::greedy() } else { sampling };
                let max_tokens = Some([9, 1, 14, 0, 5, 11, 100][i]);
                let ids = ids[..ids.len() - i / 3].to_vec();
                (
                    ids,
                    conure::GenerateOptions { max_tokens, sampling, ignore_end: true, ..Default::default() },
                )
            })
            .collect();
        let mut alone = model.session(&options).unwrap();
        let mut batch = model.batch(3, &options).unwrap();
        let mut expected = Vec::new();
        for (ids, o) in &requests {
            let generation = alone.generate_ids(ids, o).unwrap();
            expected.push(generation.map(|p| p.unwrap().id).collect::<Vec<u32>>());
            assert_eq!(batch.add(ids, o).unwrap() as usize, expected.len() - 1);
        }
        let mut found = vec![Vec::new(); requests.len()];
        let mut ends = vec![None; requests.len()];
        while !batch.is_idle() {
            for piece in batch.step().unwrap() {
                let request = piece.request as usize;
                found[request].extend(piece.piece.unwrap().map(|p| p.id));
                ends[request] = ends[request].or(piece.finish);
                if request == 5 && found[5].len() == 2 {
                    assert!(batch.cancel(5) && !batch.cancel(5));
                }
            }
        }
        expected[5].truncate(2);
        assert_eq!(found, expected, "{family} on {device}");
        let full = Some(conure::Finish::ContextFull);
        let length = Some(conure::Finish::Length);
        assert_eq!(ends, [length, length, length, length, length, None, full], "{family}");
        let error = batch.add(&vec![1; 65], &requests[0].1).unwrap_err().to_string();
        assert!(error.contains("65 tokens do not fit in a context of 64"), "{error}");
    }
    let error = model("qwen2", &dir, "cpu").batch(0, &options).unwrap_err().to_string();
    assert!(error.contains("the number of texts is 0"), "{error}");
}

#[test]
fn a_token_is_read_without_allocating() {
    let dir = tempfile::tempdir().unwrap();
    for family in ["gemma2", "gemma3", "llama3", "phi3", "mixtral", "gpt-oss", "qwen35"] {
        let model = model(family, &dir, "cpu");
        let mut session = session(&model, DType::F16);
        let (_, ids, _) = prompts(family).remove(0);
        session.read(&ids).unwrap();
        // The first token after a prompt plans for one token; each thread takes its working memory once.
        (0..4).for_each(|_| session.read(&[7]).map(|_| ()).unwrap());
        let counted = allocation_counter::measure(|| session.read(&[9]).map(|_| ()).unwrap());
        assert_eq!(counted.count_total, 0, "{family}: {counted:?}");
    }
}

/// The strings of `scripts/make_tokenizer_goldens.py`.
fn strings(fragments: &[&str]) -> Vec<String> {
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..10_000)
        .map(|_| {
            let count = 1 + next() % 8;
            (0..count).map(|_| fragments[next() % fragments.len()]).collect()
        })
        .collect()
}

#[test]
fn ten_thousand_strings_give_the_tokens_of_tokenizers() {
    let dir = tempfile::tempdir().unwrap();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/language/strings.json");
    let goldens: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let fragments: Vec<&str> =
        goldens["fragments"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    let strings = strings(&fragments);
    for (family, hashes) in goldens["hashes"].as_object().unwrap() {
        let model = model(family, &dir, "cpu");
        let tokenizer = model.tokenizer();
        for (part, (texts, expected)) in strings.chunks(250).zip(hashes.as_array().unwrap()).enumerate() {
            let mut hash = 0xcbf2_9ce4_8422_2325u64;
            for text in texts {
                let ids = tokenizer.encode(text, true, false).unwrap();
                assert_eq!(tokenizer.decode(&ids, true), *text, "{family} {ids:?}");
                let mut stream = conure::TextStream::default();
                let streamed: String = ids.iter().map(|&id| stream.push(tokenizer, id)).collect();
                let (streamed, whole) = (streamed + &stream.finish(), tokenizer.decode(&ids, false));
                // Piece by piece, the space that encoding put before the text is kept: it may follow something.
                let same = streamed == whole || streamed.strip_prefix(' ') == Some(whole.as_str());
                assert!(same, "{family} {streamed:?} for {whole:?}");
                for id in ids.into_iter().map(u64::from).chain([u64::from(u32::MAX)]) {
                    hash = (hash ^ id).wrapping_mul(0x100_0000_01b3);
                }
            }
            assert_eq!(
                format!("{hash:016x}"),
                expected.as_str().unwrap(),
                "{family}, strings from {}",
                250 * part
            );
        }
    }
}

/// The folder of a model that has SentencePiece's own file, `name`, for a tokenizer.
fn with_sentencepiece(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(data("llama").join(file), dir.path().join(file)).unwrap();
    }
    let model = data("llama").with_file_name("sentencepiece").join(name).with_extension("model");
    std::fs::copy(model, dir.path().join("tokenizer.model")).unwrap();
    dir
}

/// `scripts/make_sentencepiece_goldens.py` trained these models, and hashed what SentencePiece makes of the strings.
#[test]
fn ten_thousand_strings_give_the_tokens_of_sentencepiece() {
    let goldens = |path: PathBuf| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let fragments = goldens(data("llama").with_file_name("strings.json"));
    let fragments: Vec<&str> =
        fragments["fragments"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    let strings = strings(&fragments);
    let goldens = goldens(data("llama").with_file_name("sentencepiece").join("goldens.json"));
    for (name, hashes) in goldens.as_object().unwrap() {
        let folder = with_sentencepiece(name);
        let path = folder.path().join("model.gguf");
        convert(folder.path(), &path, &ConvertOptions { dtype: TargetType::F32, ..Default::default() })
            .unwrap();
        let model = LanguageModel::load(&path).unwrap();
        let tokenizer = model.tokenizer();
        for (part, (texts, expected)) in strings.chunks(250).zip(hashes.as_array().unwrap()).enumerate() {
            let mut hash = 0xcbf2_9ce4_8422_2325u64;
            for text in texts {
                let ids = tokenizer.encode(text, true, false).unwrap();
                // Without rules nothing is lost.
                if name == "bpe" {
                    assert_eq!(tokenizer.decode(&ids, true), *text, "{name} {ids:?}");
                }
                for id in ids.into_iter().map(u64::from).chain([u64::from(u32::MAX)]) {
                    hash = (hash ^ id).wrapping_mul(0x100_0000_01b3);
                }
            }
            let at = 250 * part;
            assert_eq!(format!("{hash:016x}"), expected.as_str().unwrap(), "{name}, strings from {at}");
        }
        let unigram = name != "bpe";
        assert_eq!((tokenizer.eos(), tokenizer.adds_bos()), (Some(2), !unigram), "{name}");
    }
}

#[test]
fn sentencepiece_models_that_cannot_be_written_are_refused_by_name() {
    let folder = with_sentencepiece("bpe");
    let path = folder.path().join("tokenizer.model");
    let good = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], settings: &str| {
        std::fs::write(&path, bytes).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), settings).unwrap();
        let error = convert(folder.path(), &folder.path().join("x.gguf"), &ConvertOptions::default());
        error.map(|_| ()).unwrap_err().to_string()
    };
    // Fields after the model's own say something else; the last one counts.
    let spaces = [&good[..], &[0x1a, 2, 0x20, 1]].concat();
    assert!(refused(&spaces, "{}").contains("remove_extra_whitespaces"));
    assert!(refused(&[&good[..], &[0x1a, 3, 0x12, 1, 7]].concat(), "{}").contains("precompiled_charsmap"));
    assert!(refused(&[&good[..], &[0x12, 2, 0x18, 4]].concat(), "{}").contains("model_type"));
    assert!(refused(&good[..good.len() - 3], "{}").contains("tokenizer.model"));
    let beyond = r#"{"added_tokens_decoder": {"409": {"content": "<x>", "special": true}}}"#;
    assert!(refused(&good, beyond).contains("\"<x>\" is added, and the embedding has 409 rows"));
    let odd = r#"{"added_tokens_decoder": {"one": {"content": "<x>"}}}"#;
    assert!(refused(&good, odd).contains("added_tokens_decoder"));
    let added = r#"{"added_tokens_decoder": {"405": {"content": "<x>", "special": true}, "406": {"content": "y z"}}}"#;
    std::fs::write(&path, &good).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), added).unwrap();
    convert(folder.path(), &folder.path().join("x.gguf"), &ConvertOptions::default()).unwrap();
    let model = LanguageModel::load(folder.path().join("x.gguf")).unwrap();
    let ids = model.tokenizer().encode("a<x>y z", true, false).unwrap();
    assert_eq!(ids[ids.len() - 2..], [405, 406], "{ids:?}");
}

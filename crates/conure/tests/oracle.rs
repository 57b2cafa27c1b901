//! NeMo's own outputs on random-weight models in every real architecture, and on the trained model: tensors, tokens,
//! frames, durations, text and word times, from our conversion of the `.nemo` and from another converter's GGUF.
//!
//! Tolerances are those that right arithmetic keeps in any order of summation, and real mistakes break: see
//! tests/data/oracle/README.md for how the tensors were made.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{
    Decoder, DeviceForms, LoadOptions, Part, Passes, RecogniseOptions, Samples, SpeechModel,
    TranscribeOptions,
};
use conure_convert::{ConvertOptions, TargetType, convert};
use conure_tensor::{Bindings, Symbol, TensorView};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const LOG_MEL: f32 = 5e-4;
const LAYERS: f32 = 2e-4;
const SCORES: f32 = 5e-4;

const OPENVINO: &str = "ours, on OpenVINO";

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(name)
}

/// A model of the oracle: its JSON, its goldens, and the model itself loaded from both files.
struct Oracle {
    json: Value,
    goldens: Vec<u8>,
    models: Vec<(&'static str, SpeechModel)>,
    folder: tempfile::TempDir,
}

fn oracle(name: &str) -> Oracle {
    let mut oracle = oracle_with(name, &Passes::default());
    // The same on OpenVINO's CPU device, which computes everything itself, in f32.
    let load = LoadOptions { device: Some("openvino:CPU".into()), ..Default::default() };
    let ours = oracle.folder.path().join("ours.gguf");
    oracle.models.push((OPENVINO, SpeechModel::load_with(ours, &load).unwrap()));
    oracle
}

/// As [`oracle`], with these rewrites of the models' graphs.
fn oracle_with(name: &str, passes: &Passes) -> Oracle {
    let load = LoadOptions { passes: passes.clone(), ..Default::default() };
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours.gguf");
    let options = ConvertOptions { dtype: TargetType::F32, ..Default::default() };
    convert(&data(&format!("oracle/{name}.nemo")), &ours, &options).unwrap();
    let mut models = vec![("ours", SpeechModel::load_with(&ours, &load).unwrap())];
    // The same on a device that takes about half of the nodes, which ones differs by model: the cuts change nothing.
    let device = format!("partial:random:{}", name.bytes().map(u64::from).sum::<u64>());
    let cut = LoadOptions { device: Some(device), ..load.clone() };
    models.push(("ours, cut at random", SpeechModel::load_with(&ours, &cut).unwrap()));
    let peer = data(&format!("oracle/{name}.gguf"));
    if peer.exists() {
        models.push(("peer", SpeechModel::load_with(peer, &load).unwrap()));
    }
    let read = |ending: &str| std::fs::read(data(&format!("oracle/{name}.{ending}"))).unwrap();
    let json = serde_json::from_slice(&read("json")).unwrap();
    Oracle { json, goldens: read("goldens.safetensors"), models, folder }
}

fn speech() -> Vec<f32> {
    let source = conure::AudioSource::path(data("audio/speech.wav"));
    conure::audio::read(source, 16_000, &Default::default()).unwrap().samples
}

/// The batch of the oracle: the clip, a part of it, the clip and its beginning again.
fn batch(speech: &[f32]) -> [Vec<f32>; 3] {
    [speech.to_vec(), speech[16_000..69_333].to_vec(), [speech, &speech[..40_000]].concat()]
}

fn tiled(speech: &[f32], samples: usize) -> Vec<f32> {
    speech.iter().copied().cycle().take(samples).collect()
}

/// A golden as rows: `[B, X, T]` (channels first) transposed, item `item`.
fn golden(oracle: &Oracle, name: &str, item: usize, channels_first: bool) -> (usize, Vec<f32>) {
    let file = SafeTensors::deserialize(&oracle.goldens).unwrap();
    let tensor = file.tensor(name).unwrap_or_else(|_| panic!("no golden {name}"));
    let values: Vec<f32> =
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let [_, a, b] = *tensor.shape() else { panic!("{name}: {:?}", tensor.shape()) };
    let values = &values[item * a * b..(item + 1) * a * b];
    if !channels_first {
        return (b, values.to_vec());
    }
    (a, (0..b).flat_map(|t| (0..a).map(move |c| values[c * b + t])).collect())
}

fn assert_rows(what: &str, found: &conure::Tensor, golden: &(usize, Vec<f32>), tolerance: f32) {
    let found_rows = found.as_slice::<f32>().unwrap();
    let width = found.shape()[1];
    assert_eq!(width, golden.0, "{what}: width");
    assert!(found_rows.len() <= golden.1.len() && !found_rows.is_empty(), "{what}: {:?}", found.shape());
    let worst = found_rows
        .iter()
        .zip(&golden.1)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0f32, |m, d| if d > m || d.is_nan() { d } else { m });
    assert!(worst <= tolerance, "{what}: differs by {worst}, at most {tolerance} is right");
}

fn capture(model: &SpeechModel, samples: &[f32], names: &[&str]) -> Vec<conure::Tensor> {
    let options = RecogniseOptions::default();
    let captured = model.capture(Samples::mono(samples, 16_000), names, &options).unwrap();
    captured.into_iter().map(|(_, t)| t).collect()
}

/// Every stage of the clip, and the batch's encoder outputs item by item.
fn check_tensors(name: &str, layers: usize) {
    check_tensors_of(&oracle(name), name, layers);
}

fn check_tensors_of(oracle: &Oracle, name: &str, layers: usize) {
    let speech = speech();
    for (origin, model) in &oracle.models {
        if *origin == "peer" && name == "ctc80_local" {
            continue; // that converter's schema has no key for local attention
        }
        let layer_names: Vec<String> = (0..layers).map(|l| format!("encoder.layers.{l}")).collect();
        let mut stages: Vec<(&str, String, bool, f32)> = vec![
            ("subsampling", "speech.subsampling_out".into(), false, LAYERS),
            ("encoder.layers.0.self_attn", "speech.l0_attn_out".into(), false, LAYERS),
            ("encoder.layers.0.conv", "speech.l0_conv_out".into(), false, LAYERS),
            ("encoder", "speech.encoder_out".into(), true, LAYERS),
        ];
        let has = |golden: &str| SafeTensors::deserialize(&oracle.goldens).unwrap().tensor(golden).is_ok();
        for (l, layer) in layer_names.iter().enumerate() {
            stages.push((layer, format!("speech.layer{l}_out"), false, LAYERS));
        }
        if has("speech.ctc_logprobs") {
            stages.push(("ctc.log_probs", "speech.ctc_logprobs".into(), false, SCORES));
        }
        if has("speech.mel") {
            stages.push(("log_mel", "speech.mel".into(), true, LOG_MEL));
        }
        stages.retain(|(_, golden, ..)| has(golden));
        let names: Vec<&str> = stages.iter().map(|s| s.0).collect();
        for (found, (stage, name_of, first, tolerance)) in capture(model, &speech, &names).iter().zip(&stages)
        {
            let expected = golden(oracle, name_of, 0, *first);
            assert_rows(&format!("{name} {origin} {stage}"), found, &expected, *tolerance);
        }
        if has("batch.encoder_out") {
            for (i, clip) in batch(&speech).iter().enumerate() {
                let found = &capture(model, clip, &["encoder"])[0];
                let expected = golden(oracle, "batch.encoder_out", i, true);
                assert_rows(&format!("{name} {origin} batch {i}"), found, &expected, LAYERS);
            }
        }
    }
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

/// NeMo prints special tokens, Conure never does.
fn without_special(text: &str) -> String {
    ["⁇", "<EOU>", "<EOB>"].iter().fold(text.to_owned(), |t, s| t.replace(s, "")).split_whitespace().collect()
}

/// Holds one transcript to one hypothesis of NeMo's.
fn assert_hypothesis(what: &str, found: &conure::Transcript, nemo: &Value, ctc: bool) {
    let tokens = found.tokens.as_ref().unwrap();
    let special = ["⁇", "<EOU>", "<EOB>"].iter().any(|s| nemo["text"].as_str().unwrap().contains(s));
    if ctc {
        // NeMo's token_ids are the argmax of every frame: collapse them.
        let path = numbers(&nemo["token_ids"]);
        let blank = path.iter().copied().chain(tokens.iter().map(|t| t.id as usize)).max().unwrap();
        let mut collapsed = Vec::new();
        for (frame, &id) in path.iter().enumerate() {
            if id != blank && (frame == 0 || path[frame - 1] != id) {
                collapsed.push((id, frame));
            }
        }
        let found: Vec<(usize, usize)> = tokens.iter().map(|t| (t.id as usize, t.frame)).collect();
        assert_eq!(found, collapsed, "{what}: collapsed path");
    } else {
        assert_eq!(
            tokens.iter().map(|t| t.id as usize).collect::<Vec<_>>(),
            numbers(&nemo["token_ids"]),
            "{what}: ids"
        );
        assert_eq!(
            tokens.iter().map(|t| t.frame).collect::<Vec<_>>(),
            numbers(&nemo["frames"]),
            "{what}: frames"
        );
        if !nemo["durations"].is_null() {
            let durations: Vec<_> = tokens.iter().map(|t| t.duration).collect();
            assert_eq!(durations, numbers(&nemo["durations"]), "{what}: durations");
        }
    }
    if special {
        assert_eq!(
            without_special(&found.text),
            without_special(nemo["text"].as_str().unwrap()),
            "{what}: text"
        );
        return;
    }
    assert_eq!(found.text, nemo["text"].as_str().unwrap(), "{what}: text");
    if nemo["timestamps"].is_null() {
        return;
    }
    let words: Vec<_> = found.segments.iter().flat_map(|s| &s.words).collect();
    let nemo_words: Vec<_> = nemo["timestamps"]["word"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|w| !w["word"].as_str().unwrap().trim().is_empty())
        .collect();
    assert_eq!(words.len(), nemo_words.len(), "{what}: words");
    for (found_word, nemo) in words.iter().zip(nemo_words) {
        let time = |key: &str| (nemo[key].as_f64().unwrap() * 0.08).min(found.duration);
        assert_eq!(found_word.word, nemo["word"].as_str().unwrap().trim(), "{what}");
        let worst =
            (found_word.start - time("start_offset")).abs().max((found_word.end - time("end_offset")).abs());
        assert!(worst <= 1e-3, "{what}: {found_word:?} against {nemo}");
    }
}

/// A device that sums in another order where lengths differ: the same tokens in the same places.
fn assert_alike(what: &str, a: &conure::Transcript, b: &conure::Transcript) {
    let tokens = |t: &conure::Transcript| -> Vec<_> {
        t.tokens.iter().flatten().map(|t| (t.id, t.frame, t.duration)).collect()
    };
    assert_eq!((&a.text, tokens(a)), (&b.text, tokens(b)), "{what}");
}

fn options(decoder: Decoder) -> TranscribeOptions {
    TranscribeOptions {
        recognise: RecogniseOptions { decoder, ..Default::default() },
        tokens: true,
        ..Default::default()
    }
}

/// The heads of a model, with their names in the oracle.
fn heads(model: &SpeechModel) -> Vec<(Decoder, &'static str)> {
    let decoders = &model.info().decoders;
    let mut heads = Vec::new();
    if decoders.iter().any(|d| d != "ctc") {
        heads.push((Decoder::Auto, "rnnt"));
    }
    if decoders.iter().any(|d| d == "ctc") {
        heads.push((Decoder::Ctc, "ctc"));
    }
    heads
}

/// Tokens, frames, durations, text and words: the clip, the batch alone and together, a minute, and a short clip.
fn check_hypotheses(name: &str) {
    check_hypotheses_of(&oracle(name), name);
}

fn check_hypotheses_of(oracle: &Oracle, name: &str) {
    let speech = speech();
    let clips = batch(&speech);
    let minute = tiled(&speech, 960_000);
    for (origin, model) in &oracle.models {
        if *origin == "peer" && name == "ctc80_local" {
            continue;
        }
        for (decoder, key) in heads(model) {
            let options = options(decoder);
            let one = |clip: &[f32]| model.transcribe(Samples::mono(clip, 16_000), &options).unwrap();
            let what = format!("{name} {origin} {key}");
            let ctc = key == "ctc";
            assert_hypothesis(&format!("{what} speech"), &one(&speech), &oracle.json["speech"][key][0], ctc);
            let samples: Vec<Samples<'_>> = clips.iter().map(|c| Samples::mono(c, 16_000)).collect();
            let together = model.transcribe_batch(&samples, &options).unwrap();
            for (i, clip) in clips.iter().enumerate() {
                let alone = one(clip);
                let nemo = &oracle.json["batch_single"][key][i];
                assert_hypothesis(&format!("{what} batch {i}"), &alone, nemo, ctc);
                if *origin == OPENVINO {
                    assert_alike(&format!("{what} batch {i}: alone and in company"), &alone, &together[i]);
                } else {
                    assert_eq!(alone, together[i], "{what} batch {i}: alone and in company");
                }
            }
            assert_hypothesis(&format!("{what} minute"), &one(&minute), &oracle.json["long60"][key][0], ctc);
        }
        let short = &oracle.json["transcribe_api_short_6400_samples"];
        if let (Some(ids), [decoder, ..]) = (short["token_ids"].as_array(), heads(model).as_slice()) {
            let found = model
                .transcribe(Samples::mono(&speech[16_000..22_400], 16_000), &options(decoder.0))
                .unwrap();
            let tokens = found.tokens.as_ref().unwrap();
            assert_eq!(tokens.len(), ids.len(), "{name} short");
            assert_eq!(tokens.iter().map(|t| t.frame).collect::<Vec<_>>(), numbers(&short["frames"]));
            assert_eq!(found.text, short["text"].as_str().unwrap());
        }
    }
}

/// Nothing falls back, and what is compiled serves any length.
#[test]
fn all_of_a_model_is_one_piece_on_openvino_compiled_once() {
    let speech = speech();
    for name in ["ctc80", "rnnt80", "tdt128", "hybrid_tdt80", "stream_eou128", "ctc80_local"] {
        let oracle = oracle(name);
        let (_, model) = oracle.models.iter().find(|(origin, _)| *origin == OPENVINO).unwrap();
        let transducer = model.info().decoders.iter().any(|d| d != "ctc");
        let parts = [(Part::Encoder, true), (Part::Predictor, transducer), (Part::Joint, transducer)];
        for (part, _) in parts.iter().filter(|(_, there)| *there) {
            let placement = model.placement(*part, None).unwrap();
            assert!(placement.is_whole() && placement.pieces.len() == 1, "{name} {part:?}: {placement}");
        }
        let (decoder, _) = heads(model)[0];
        let run = |seconds: f64| {
            let samples = tiled(&speech, (seconds * 16_000.0) as usize);
            model.transcribe(Samples::mono(&samples, 16_000), &options(decoder)).unwrap();
            model.compilations().compiled
        };
        let first = run(1.0);
        let counts = [7.4, 31.0, 60.0].map(run);
        println!("{name}: {first} pieces compiled for 1 s, {counts:?} after 7.4, 31 and 60 s");
        assert_eq!(counts, [first; 3], "{name}");
    }
}

/// Models of fixed lengths, to which recordings are padded: the tokens of the CPU device, from one model for several lengths.
#[test]
fn fixed_lengths_give_the_same_tokens() {
    let speech = speech();
    for name in ["ctc80", "rnnt80", "tdt128", "hybrid_tdt80", "stream_eou128", "ctc80_local", "prompt128"] {
        let oracle = oracle_with(name, &Passes::default());
        let forms = DeviceForms { fixed: Some(true), ..DeviceForms::default() };
        let load = LoadOptions { device: Some("openvino:CPU".into()), forms, ..Default::default() };
        let fixed = SpeechModel::load_with(oracle.folder.path().join("ours.gguf"), &load).unwrap();
        let (decoder, _) = heads(&fixed)[0];
        let mut compiled = Vec::new();
        for seconds in [2.3, 1.2, 3.6, 3.1] {
            let samples = tiled(&speech, (seconds * 16_000.0) as usize);
            let [expected, found] = [&oracle.models[0].1, &fixed]
                .map(|m| m.transcribe(Samples::mono(&samples, 16_000), &options(decoder)).unwrap());
            let tokens = |t: &conure::Transcript| {
                t.tokens.iter().flatten().map(|t| (t.id, t.frame)).collect::<Vec<_>>()
            };
            assert_eq!(tokens(&found), tokens(&expected), "{name}, {seconds} s");
            assert_eq!(found.text, expected.text, "{name}, {seconds} s");
            compiled.push(fixed.compilations().compiled);
        }
        // 256 frames serve 2.3 s and 1.2 s, 384 serve 3.6 s and 3.1 s.
        assert_eq!([compiled[0], compiled[2]], [compiled[1], compiled[3]], "{name}");
        assert_eq!(compiled[2], compiled[0] + 1, "{name}: one encoder more");
    }
}

#[test]
fn tensors_ctc80() {
    check_tensors("ctc80", 2);
}

#[test]
fn tensors_rnnt80() {
    check_tensors("rnnt80", 3);
}

#[test]
fn tensors_tdt128() {
    check_tensors("tdt128", 2);
}

#[test]
fn tensors_hybrid_tdt80() {
    check_tensors("hybrid_tdt80", 3);
}

#[test]
fn tensors_stream_eou128() {
    check_tensors("stream_eou128", 3);
}

#[test]
fn tensors_ctc80_local() {
    check_tensors("ctc80_local", 2);
}

#[test]
fn hypotheses_ctc80() {
    check_hypotheses("ctc80");
}

#[test]
fn hypotheses_rnnt80() {
    check_hypotheses("rnnt80");
}

#[test]
fn hypotheses_tdt128() {
    check_hypotheses("tdt128");
}

#[test]
fn hypotheses_hybrid_tdt80() {
    check_hypotheses("hybrid_tdt80");
}

#[test]
fn hypotheses_stream_eou128() {
    check_hypotheses("stream_eou128");
}

#[test]
fn hypotheses_ctc80_local() {
    check_hypotheses("ctc80_local");
}

/// The same without any rewrite of the graphs, and without one of them at a time.
#[test]
fn parity_does_not_depend_on_passes() {
    let none = Passes::none();
    for (name, layers) in [("ctc80", 2), ("stream_eou128", 3), ("ctc80_local", 2)] {
        check_tensors_of(&oracle_with(name, &none), name, layers);
    }
    check_hypotheses_of(&oracle_with("tdt128", &none), "tdt128");
    for pass in Passes::names() {
        let passes = Passes::without(&[pass]).unwrap();
        check_tensors_of(&oracle_with("hybrid_tdt80", &passes), &format!("hybrid_tdt80 without {pass}"), 3);
    }
}

/// Local attention asked for at run time: NeMo's after `change_attention_model`.
#[test]
fn local_attention_on_a_model_trained_without() {
    for name in ["hybrid_tdt80", "ctc80_local"] {
        let oracle = oracle(name);
        let speech = speech();
        for window in [128usize, 16] {
            let key = format!("local{window}.batch.encoder_out");
            for (origin, model) in &oracle.models {
                for (i, clip) in batch(&speech).iter().enumerate() {
                    let options = RecogniseOptions { local_attention: Some(window), ..Default::default() };
                    let found = model.capture(Samples::mono(clip, 16_000), &["encoder"], &options).unwrap();
                    let what = format!("{name} {origin} window {window} item {i}");
                    assert_rows(&what, &found[0].1, &golden(&oracle, &key, i, true), LAYERS);
                }
            }
        }
    }
}

/// Predictor and joint on fixed tokens and encoder frames: the raw logits, step by step.
#[test]
fn joint_logits_on_fixed_tokens() {
    for (name, joint_key) in [
        ("rnnt80", "joint.logits"),
        ("tdt128", "joint.logits"),
        ("hybrid_tdt80", "joint.logits"),
        ("stream_eou128", "joint.logits"),
        ("prompt128", "joint.en-US.logits"),
    ] {
        let oracle = oracle(name);
        let file = SafeTensors::deserialize(&oracle.goldens).unwrap();
        let golden = file.tensor(joint_key).unwrap();
        let [_, frames, steps, width] = *golden.shape() else { panic!() };
        let golden: Vec<f32> =
            golden.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        for (origin, model) in &oracle.models {
            let language = (name == "prompt128").then(|| "en-US".to_owned());
            let options = RecogniseOptions { language, ..Default::default() };
            let enc =
                &model.capture(Samples::mono(&speech(), 16_000), &["joint.enc"], &options).unwrap()[0].1;
            for (step, pred) in predictions(model).iter().enumerate() {
                for frame in 0..frames {
                    let logits = joint(model, row(enc, 10 + frame), pred);
                    let expected = &golden[(frame * steps + step) * width..][..width];
                    let worst = logits.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst <= SCORES, "{name} {origin} frame {frame} step {step}: {worst}");
                }
            }
        }
    }
}

fn row(tensor: &conure::Tensor, index: usize) -> &[f32] {
    let width = tensor.shape()[1];
    &tensor.as_slice::<f32>().unwrap()[index * width..][..width]
}

/// The projected predictor outputs of the start and of the oracle's fixed tokens.
fn predictions(model: &SpeechModel) -> Vec<Vec<f32>> {
    let parakeet = model.recogniser().model();
    let config = parakeet.config().transducer.clone().unwrap();
    let cpu = model.recogniser().cpu().clone();
    let mut session = conure_graph::Session::new(parakeet.predictor().unwrap(), cpu).unwrap();
    let bindings = Bindings::new().with(Symbol::new("B"), 1);
    let mut states = vec![vec![0.0f32; config.pred_hidden]; 2 * config.pred_layers];
    let names: Vec<String> =
        (0..config.pred_layers).flat_map(|l| [format!("h{l}"), format!("c{l}")]).collect();
    let mut results = Vec::new();
    for id in [-1i32, 5, 17, 3, 90, 42, 11] {
        let id = [id];
        let mut inputs = vec![("token", TensorView::of(&[1], &id).unwrap())];
        for (name, state) in names.iter().zip(&states) {
            inputs.push((name.as_str(), TensorView::of(&[1, state.len()], state).unwrap()));
        }
        let outputs = session.run(&bindings, &inputs).unwrap();
        drop(inputs);
        for (name, state) in names.iter().zip(&mut states) {
            state.copy_from_slice(outputs.get(&format!("{name}_next")).unwrap().as_slice().unwrap());
        }
        results.push(outputs.get("joint.pred").unwrap().as_slice::<f32>().unwrap().to_vec());
    }
    results
}

fn joint(model: &SpeechModel, enc: &[f32], pred: &[f32]) -> Vec<f32> {
    let program = model.recogniser().model().joint().unwrap();
    let mut session = conure_graph::Session::new(program, model.recogniser().cpu().clone()).unwrap();
    let inputs = [
        ("joint.enc", TensorView::of(&[1, enc.len()], enc).unwrap()),
        ("joint.pred", TensorView::of(&[1, pred.len()], pred).unwrap()),
    ];
    let outputs = session.run(&Bindings::new().with(Symbol::new("B"), 1), &inputs).unwrap();
    outputs.get("joint.logits").unwrap().as_slice::<f32>().unwrap().to_vec()
}

/// The prompted multilingual model: the prompt stage and the text for every language.
#[test]
fn prompt128_in_every_language() {
    let oracle = oracle("prompt128");
    let speech = speech();
    let model = &oracle.models[0].1;
    let languages = oracle.json["speech"].as_object().unwrap();
    let known: BTreeSet<&str> = model.info().languages.iter().map(String::as_str).collect();
    let mut checked = 0;
    for (language, nemo) in languages.iter().filter(|(l, _)| known.contains(l.as_str())) {
        let mut options = options(Decoder::Auto);
        options.recognise.language = Some(language.clone());
        let found = model.transcribe(Samples::mono(&speech, 16_000), &options).unwrap();
        let tokens = found.tokens.as_ref().unwrap();
        assert_eq!(
            tokens.iter().map(|t| t.id as usize).collect::<Vec<_>>(),
            numbers(&nemo["token_ids"]),
            "{language}"
        );
        assert_eq!(
            tokens.iter().map(|t| t.frame).collect::<Vec<_>>(),
            numbers(&nemo["frames"]),
            "{language}"
        );
        assert_eq!(found.text, nemo["text"].as_str().unwrap(), "{language}");
        assert_eq!(found.language.as_deref(), Some(language.as_str()));
        let prompted = model
            .capture(Samples::mono(&speech, 16_000), &["prompted", "encoder"], &options.recognise)
            .unwrap();
        let key = format!("speech.{language}.prompted_out");
        assert_rows(&key, &prompted[0].1, &golden(&oracle, &key, 0, true), LAYERS);
        assert_rows("encoder", &prompted[1].1, &golden(&oracle, "speech.encoder_out", 0, true), LAYERS);
        checked += 1;
    }
    assert_eq!(checked, 4, "auto, en-US, de-DE, ja-JP");

    let mut wrong = options(Decoder::Auto);
    wrong.recognise.language = Some("xx".into());
    let error = model.transcribe(Samples::mono(&speech, 16_000), &wrong).unwrap_err().to_string();
    assert!(error.contains("\"xx\"") && error.contains("en-US"), "{error}");
}

/// The trained model, as it is embedded: f16 holds its weights exactly.
#[test]
fn tensors_of_the_trained_model() {
    let goldens = std::fs::read(data("oracle/trained.goldens.safetensors")).unwrap();
    let oracle = Oracle {
        json: Value::Null,
        goldens,
        models: vec![("embedded", SpeechModel::embedded(&LoadOptions::default()).unwrap())],
        folder: tempfile::tempdir().unwrap(),
    };
    let model = &oracle.models[0].1;
    let layers: Vec<String> = (0..12).map(|l| format!("encoder.layers.{l}")).collect();
    let mut names = vec!["log_mel", "subsampling", "encoder", "ctc.log_probs"];
    names.extend(layers.iter().map(String::as_str));
    let captured = capture(model, &speech(), &names);
    let mut expected = vec![
        (golden(&oracle, "mel", 0, true), LOG_MEL),
        (golden(&oracle, "subsampling_out", 0, false), LAYERS),
        (golden(&oracle, "encoder_out", 0, true), LAYERS),
        (golden(&oracle, "ctc_logprobs", 0, false), SCORES),
    ];
    expected.extend((0..12).map(|l| (golden(&oracle, &format!("layer{l}_out"), 0, false), LAYERS)));
    for ((name, found), (expected, tolerance)) in names.iter().zip(&captured).zip(&expected) {
        assert_rows(name, found, expected, *tolerance);
    }
}

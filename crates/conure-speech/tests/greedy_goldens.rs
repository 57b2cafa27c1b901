//! The greedy decoders, the text and the times against NeMo's own output: CTC from its recorded log-probabilities, the
//! transducers by running predictor and joint of the golden models (small, written out below) on the recorded encoder
//! output.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::collections::HashMap;
use std::path::PathBuf;

use conure_speech::decode::ctc::CtcGreedy;
use conure_speech::decode::rnnt::RnntGreedy;
use conure_speech::decode::tdt::TdtGreedy;
use conure_speech::decode::{Token, Transducer, TransducerState};
use conure_speech::timing::{Head, TimingOptions, segments, words};
use conure_text::Vocabulary;
use safetensors::SafeTensors;
use serde_json::Value;

fn read(path: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&read(path)).unwrap()
}

fn vocabulary(name: &str) -> Vocabulary {
    let all = json("text/vocabularies.json");
    Vocabulary::new(all[name].as_array().unwrap().iter().map(|p| p.as_str().unwrap()))
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

/// Tensors by name: shape and values; f32 only.
struct Tensors(HashMap<String, (Vec<usize>, Vec<f32>)>);

impl Tensors {
    fn read(path: &str) -> Self {
        let bytes = read(path);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let value = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap());
        let f32s = file.iter().filter(|(_, view)| view.dtype() == safetensors::Dtype::F32);
        Tensors(
            f32s.map(|(name, view)| {
                (name.to_owned(), (view.shape().to_vec(), view.data().chunks_exact(4).map(value).collect()))
            })
            .collect(),
        )
    }

    fn get(&self, name: &str) -> (&[usize], &[f32]) {
        let (shape, values) = self.0.get(name).unwrap_or_else(|| panic!("no tensor {name}"));
        (shape, values)
    }
}

/// Words and segments equal to NeMo's `timestamps` within 1 ms. NeMo prints special tokens inside words; a hypothesis
/// that has some is compared by its characters alone.
fn compare_times(what: &str, tokens: &[Token], head: Head, vocabulary: &Vocabulary, hypothesis: &Value) {
    let ids: Vec<u32> = tokens.iter().map(|t| t.id).collect();
    let clean = |text: &str| text.replace(" \u{2047} ", "").replace("<EOU>", "").replace("<EOB>", "");
    let solid = |text: &str| text.split_whitespace().collect::<String>();
    let text = hypothesis["text"].as_str().unwrap();
    // some of NeMo's words reach beyond the end of the clip; here they must be as NeMo gives them
    let options = TimingOptions::new(f64::MAX);
    let got = words(tokens, head, vocabulary, &options);
    if ids.iter().any(|id| vocabulary.is_special(*id)) {
        let joined: String = got.iter().map(|w| w.word.as_str()).collect();
        assert_eq!(solid(&joined), solid(&clean(text)), "{what}");
        return;
    }
    assert_eq!(vocabulary.decode(&ids), text, "{what}");
    let wanted: Vec<_> = hypothesis["timestamps"]["word"].as_array().unwrap().iter().collect();
    let wanted: Vec<_> = wanted.into_iter().filter(|w| !w["word"].as_str().unwrap().is_empty()).collect();
    let seconds = |value: &Value| value.as_u64().unwrap() as f64 * 0.08;
    assert_eq!(got.len(), wanted.len(), "{what}: number of words");
    for (got, wanted) in got.iter().zip(wanted) {
        assert_eq!(got.word, wanted["word"].as_str().unwrap(), "{what}");
        let (start, end) = (seconds(&wanted["start_offset"]), seconds(&wanted["end_offset"]));
        assert!(
            (got.start - start).abs() < 1e-3 && (got.end - end).abs() < 1e-3,
            "{what}: {got:?}, NeMo {wanted}"
        );
    }
    let wanted = hypothesis["timestamps"]["segment"].as_array().unwrap();
    let got = segments(got, &options);
    assert_eq!(got.len(), wanted.len(), "{what}: number of segments");
    for (got, wanted) in got.iter().zip(wanted) {
        assert_eq!(solid(&got.text), solid(wanted["segment"].as_str().unwrap()), "{what}");
        let (start, end) = (seconds(&wanted["start_offset"]), seconds(&wanted["end_offset"]));
        assert!(
            (got.start - start).abs() < 1e-3 && (got.end - end).abs() < 1e-3,
            "{what}: {got:?}, NeMo {wanted}"
        );
    }
}

/// Tokens of a CTC path, through the decoder.
fn ctc_tokens(path: &[usize], blank: usize) -> Vec<Token> {
    let mut scores = vec![0f32; path.len() * (blank + 1)];
    for (frame, choice) in path.iter().enumerate() {
        scores[frame * (blank + 1) + choice] = 5.0;
    }
    CtcGreedy { blank: blank as u32 }.decode(&scores, None).unwrap()
}

#[test]
fn ctc_on_recorded_log_probabilities() {
    for (name, clip) in
        [("ctc80", "speech"), ("ctc80", "batch"), ("ctc80_local", "speech"), ("hybrid_tdt80", "speech")]
    {
        let goldens = json(&format!("oracle/{name}.json"));
        let tensors = Tensors::read(&format!("oracle/{name}.goldens.safetensors"));
        let (shape, scores) = tensors.get(&format!("{clip}.ctc_logprobs"));
        let vocabulary = vocabulary(name);
        let (frames, width) = (shape[1], shape[2]);
        let lengths = numbers(&goldens[clip]["encoder_len"]);
        for (item, length) in lengths.iter().enumerate() {
            let what = format!("{name} {clip}[{item}]");
            let hypothesis = &goldens[clip]["ctc"][item];
            let valid = &scores[item * frames * width..][..length * width];
            let tokens = CtcGreedy { blank: width as u32 - 1 }.decode(valid, None).unwrap();
            let mut path = vec![width - 1; *length];
            for token in &tokens {
                path[token.frame..token.frame + token.duration].fill(token.id as usize);
                assert!((0.0..=1.0).contains(&token.confidence));
            }
            assert_eq!(path, numbers(&hypothesis["token_ids"]), "{what}");
            compare_times(&what, &tokens, Head::Ctc, &vocabulary, hypothesis);
        }
    }
}

#[test]
fn ctc_times_of_every_recorded_path() {
    let mut compared = 0;
    for name in ["ctc80", "ctc80_local", "hybrid_tdt80"] {
        let vocabulary = vocabulary(name);
        let goldens = json(&format!("oracle/{name}.json"));
        for clip in ["speech", "batch", "batch_single", "long60"] {
            for (item, hypothesis) in goldens[clip]["ctc"].as_array().into_iter().flatten().enumerate() {
                let tokens = ctc_tokens(&numbers(&hypothesis["token_ids"]), vocabulary.len());
                compare_times(&format!("{name} {clip}[{item}]"), &tokens, Head::Ctc, &vocabulary, hypothesis);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 24);
}

#[test]
fn transducer_times_of_every_recorded_hypothesis() {
    let mut compared = 0;
    for (name, head) in [
        ("rnnt80", Head::Rnnt),
        ("stream_eou128", Head::Rnnt),
        ("tdt128", Head::Tdt),
        ("hybrid_tdt80", Head::Tdt),
    ] {
        let vocabulary = vocabulary(name);
        let goldens = json(&format!("oracle/{name}.json"));
        // NeMo's batched TDT records wrong durations: each item alone
        for clip in ["speech", "batch_single", "long60"] {
            for (item, hypothesis) in goldens[clip]["rnnt"].as_array().into_iter().flatten().enumerate() {
                let tokens = recorded_tokens(hypothesis);
                compare_times(&format!("{name} {clip}[{item}]"), &tokens, head, &vocabulary, hypothesis);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 20);
}

fn recorded_tokens(hypothesis: &Value) -> Vec<Token> {
    let ids = numbers(&hypothesis["token_ids"]);
    let frames = numbers(&hypothesis["frames"]);
    let durations =
        hypothesis["durations"].as_array().map_or(vec![1; ids.len()], |_| numbers(&hypothesis["durations"]));
    assert_eq!((ids.len(), ids.len()), (frames.len(), durations.len()));
    let token = |((id, frame), duration)| Token { id: id as u32, frame, duration, confidence: 1.0 };
    ids.into_iter().zip(frames).zip(durations).map(token).collect()
}

/// Words of the trained model, as NeMo printed them.
#[test]
fn times_of_the_trained_model() {
    let vocabulary = vocabulary("trained");
    let decode = &json("oracle/trained.json")["decode"];
    let tdt = recorded_tokens(&decode["tdt"]);
    let ctc = ctc_tokens(&numbers(&decode["ctc"]["argmax_path"]), vocabulary.len());
    for (head, tokens) in [(Head::Tdt, tdt), (Head::Ctc, ctc)] {
        let got = words(&tokens, head, &vocabulary, &TimingOptions::new(7.435));
        let wanted = decode[head.name()]["words"].as_array().unwrap();
        assert_eq!(got.len(), wanted.len());
        for (got, wanted) in got.iter().zip(wanted) {
            assert_eq!(got.word, wanted[0].as_str().unwrap());
            let (start, end) = (wanted[1].as_f64().unwrap(), wanted[2].as_f64().unwrap());
            assert!(
                (got.start - start).abs() < 1e-3 && (got.end - end).abs() < 1e-3,
                "{got:?}, NeMo {wanted}"
            );
        }
    }
}

/// `out = weight x + bias`, `weight` row-major `[out, in]`.
fn linear(weight: &[f32], bias: &[f32], x: &[f32]) -> Vec<f32> {
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
    weight.chunks_exact(x.len()).zip(bias).map(|(row, b)| dot(row) + b).collect()
}

/// Predictor and joint in plain loops, with the weights of a Hugging Face checkpoint.
struct Reference {
    weights: Tensors,
    /// Projected encoder frames.
    encoder: Vec<Vec<f32>>,
    hidden: Vec<Vec<f32>>,
    cell: Vec<Vec<f32>>,
    projected: Vec<f32>,
    logits: Vec<f32>,
}

impl Reference {
    /// `frames` are rows of the encoder output.
    fn new(checkpoint: &str, frames: &[Vec<f32>]) -> Self {
        let weights = Tensors::read(&format!("oracle/{checkpoint}/model.safetensors"));
        let encoder = {
            let (weight, bias) =
                (weights.get("encoder_projector.weight").1, weights.get("encoder_projector.bias").1);
            frames.iter().map(|frame| linear(weight, bias, frame)).collect()
        };
        Reference { weights, encoder, hidden: vec![], cell: vec![], projected: vec![], logits: vec![] }
    }

    fn lstm(&mut self, layer: usize, x: &[f32]) -> Vec<f32> {
        let part = |kind: &str| self.weights.get(&format!("decoder.lstm.{kind}_l{layer}")).1;
        let input = linear(part("weight_ih"), part("bias_ih"), x);
        let state = linear(part("weight_hh"), part("bias_hh"), &self.hidden[layer]);
        let n = self.hidden[layer].len();
        let sigmoid = |v: f32| 1.0 / (1.0 + (-v).exp());
        let gate = |at: usize, i: usize| input[at * n + i] + state[at * n + i];
        for i in 0..n {
            let cell = sigmoid(gate(1, i)) * self.cell[layer][i] + sigmoid(gate(0, i)) * gate(2, i).tanh();
            self.cell[layer][i] = cell;
            self.hidden[layer][i] = sigmoid(gate(3, i)) * cell.tanh();
        }
        self.hidden[layer].clone()
    }
}

impl Transducer for Reference {
    type Error = String;

    fn predict(&mut self, token: Option<u32>) -> Result<(), String> {
        let (shape, embedding) = self.weights.get("decoder.embedding.weight");
        let n = shape[1];
        let mut x = token.map_or(vec![0.0; n], |id| embedding[id as usize * n..][..n].to_vec());
        if token.is_none() {
            let layers = (0..)
                .take_while(|l| self.weights.0.contains_key(&format!("decoder.lstm.bias_ih_l{l}")))
                .count();
            self.hidden = vec![vec![0.0; n]; layers];
            self.cell = vec![vec![0.0; n]; layers];
        }
        for layer in 0..self.hidden.len() {
            x = self.lstm(layer, &x);
        }
        let part = |kind: &str| self.weights.get(&format!("decoder.decoder_projector.{kind}")).1;
        self.projected = linear(part("weight"), part("bias"), &x);
        Ok(())
    }

    fn joint(&mut self, frame: usize) -> Result<&[f32], String> {
        let encoder = self.encoder.get(frame).ok_or(format!("frame {frame} is beyond the clip"))?;
        let x: Vec<f32> = encoder.iter().zip(&self.projected).map(|(e, p)| (e + p).max(0.0)).collect();
        self.logits =
            linear(self.weights.get("joint.head.weight").1, self.weights.get("joint.head.bias").1, &x);
        Ok(&self.logits)
    }
}

/// Item `item` of `clip.encoder_out` (`[B, D, T]`), as rows, valid frames only.
fn encoder_rows(tensors: &Tensors, clip: &str, item: usize, length: usize) -> Vec<Vec<f32>> {
    let (shape, values) = tensors.get(&format!("{clip}.encoder_out"));
    let (d, t) = (shape[1], shape[2]);
    (0..length).map(|frame| (0..d).map(|i| values[(item * d + i) * t + frame]).collect()).collect()
}

#[test]
fn transducers_give_nemos_tokens_frames_and_durations() {
    for (name, checkpoint, head) in [("tdt128", "hf-tdt", Head::Tdt), ("rnnt80", "hf-rnnt", Head::Rnnt)] {
        let vocabulary = vocabulary(name);
        let blank = vocabulary.len() as u32;
        let goldens = json(&format!("oracle/{name}.json"));
        let tensors = Tensors::read(&format!("oracle/{name}.goldens.safetensors"));
        for (clip, hypotheses) in [("speech", "speech"), ("batch", "batch_single")] {
            for (item, length) in numbers(&goldens[clip]["encoder_len"]).into_iter().enumerate() {
                let what = format!("{name} {clip}[{item}]");
                let mut model = Reference::new(checkpoint, &encoder_rows(&tensors, clip, item, length));
                let (mut state, mut tokens) = (TransducerState::default(), Vec::new());
                let max_symbols = 10;
                if head == Head::Tdt {
                    let decoder = TdtGreedy { blank, max_symbols, durations: (0..5).collect() };
                    decoder.decode(&mut model, length, &mut state, &mut tokens, None).unwrap();
                } else {
                    let decoder = RnntGreedy { blank, max_symbols };
                    decoder.decode(&mut model, length, &mut state, &mut tokens, None).unwrap();
                }
                let hypothesis = &goldens[hypotheses]["rnnt"][item];
                let facts =
                    |tokens: &[Token]| tokens.iter().map(|t| (t.id, t.frame, t.duration)).collect::<Vec<_>>();
                assert_eq!(facts(&tokens), facts(&recorded_tokens(hypothesis)), "{what}");
                assert!(tokens.iter().all(|t| (0.0..=1.0).contains(&t.confidence)));
                compare_times(&what, &tokens, head, &vocabulary, hypothesis);
            }
        }
    }
}

//! Several utterances in one stream: as many ends as there are utterances, however the stream is cut.
//!
//! The model is the streaming oracle's encoder with a predictor and a joint that are made for this: the joint says a word where
//! sound begins and `<EOU>` where it ends. It tells sound from silence by the encoder's output, and whether it has said the word by
//! the predictor's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{EndKind, Samples, SpeechModel, StreamOptions, StreamUpdate};
use conure_convert::{ConvertOptions, TargetType, convert};
use conure_gguf::{GgufFile, GgufWriter};
use conure_tensor::DType;
use std::collections::HashMap;
use std::path::Path;

/// Sound for 1.5 s and a pause, so many times: frames of 80 ms from `SOUND` to `PAUSE` of each are one or the other for sure.
fn bursts(count: usize, pause: usize) -> Vec<f32> {
    let mut state = 7u32;
    let mut samples = Vec::new();
    for _ in 0..count {
        samples.extend((0..24_000).map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            0.2 * noise + 0.3 * (i as f32 * 0.2).sin()
        }));
        samples.extend(std::iter::repeat_n(0.0, pause));
    }
    samples
}

/// The direction from silence to sound in the encoder's output, scaled so that they lie about 1 to its sides of 0, and what is to be
/// added for that.
fn direction(model: &SpeechModel, samples: &[f32], pause: usize) -> (Vec<f32>, f32) {
    let options = conure::RecogniseOptions::default();
    let captured = model.capture(Samples::mono(samples, 16_000), &["encoder"], &options).unwrap();
    let width = captured[0].1.shape()[1];
    let rows: Vec<&[f32]> = captured[0].1.as_slice::<f32>().unwrap().chunks(width).collect();
    let mean = |sound: bool| {
        let of = |frame: &usize| {
            let at = frame * 1280;
            let place = at % (24_000 + pause);
            // Half a second after a change the encoder has seen it.
            if sound { (8_000..22_000).contains(&place) } else { place > 34_000 }
        };
        let frames: Vec<usize> = (0..rows.len()).filter(of).collect();
        (0..width)
            .map(|d| frames.iter().map(|&f| rows[f][d]).sum::<f32>() / frames.len() as f32)
            .collect::<Vec<f32>>()
    };
    let (sound, silence) = (mean(true), mean(false));
    let gap: Vec<f32> = sound.iter().zip(&silence).map(|(a, b)| a - b).collect();
    let square: f32 = gap.iter().map(|g| g * g).sum();
    let middle: f32 = gap.iter().zip(sound.iter().zip(&silence)).map(|(g, (a, b))| g * (a + b) / 2.0).sum();
    (gap.iter().map(|g| g * 2.0 / square).collect(), -2.0 * middle / square)
}

/// The oracle with the tensors that make it hear utterances.
fn model(folder: &Path, pause: usize, hears_ends: bool) -> (SpeechModel, u32) {
    let (plain, ours) = (folder.join("plain.gguf"), folder.join("ours.gguf"));
    let nemo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/oracle/stream_eou128.nemo"));
    convert(nemo, &plain, &ConvertOptions { dtype: TargetType::F32, ..Default::default() }).unwrap();
    let oracle = SpeechModel::load(&plain).unwrap();
    let vocabulary = oracle.recogniser().vocabulary();
    let eou = vocabulary.id("<EOU>").unwrap() as usize;
    let word = (0..vocabulary.len() as u32).find(|id| vocabulary.starts_word(*id)).unwrap() as usize;
    let (towards, add) = direction(&oracle, &bursts(4, pause), pause);

    let file = GgufFile::open(&plain).unwrap();
    let shape = |name: &str| file.tensor_info(name).unwrap_or_else(|| panic!("no {name}")).shape.clone();
    let mut made: HashMap<&str, Vec<f32>> = HashMap::new();
    let mut set = |name: &'static str, values: &[(usize, f32)]| {
        let tensor = made.entry(name).or_insert_with(|| vec![0.0; shape(name).iter().product()]);
        values.iter().for_each(|(at, value)| tensor[*at] = *value);
    };
    let lstm = "decoder.prediction.dec_rnn.lstm";
    let hidden = 64;
    // The predictor's first value is 0.76 after the word, and 0 after anything else: gates i and o open, f shut, g the embedding.
    set("decoder.prediction.embed.weight", &[(word * hidden, 1.0)]);
    assert_eq!(shape(&format!("{lstm}.weight_ih_l0")), [4 * hidden, hidden]);
    set("decoder.prediction.dec_rnn.lstm.weight_ih_l0", &[(2 * hidden * hidden, 20.0)]);
    set("decoder.prediction.dec_rnn.lstm.weight_hh_l0", &[]);
    set("decoder.prediction.dec_rnn.lstm.bias_hh_l0", &[]);
    set("decoder.prediction.dec_rnn.lstm.bias_ih_l0", &[(0, 20.0), (hidden, -20.0), (3 * hidden, 20.0)]);
    // Two values of the joint: sound and no word yet, silence and a word.
    let row = |at: usize, sign: f32| -> Vec<(usize, f32)> {
        towards.iter().enumerate().map(|(d, v)| (at * hidden + d, 10.0 * sign * v)).collect()
    };
    set("joint.enc.weight", &[row(0, 1.0), row(1, -1.0)].concat());
    set("joint.enc.bias", &[(0, 10.0 * add - 5.0), (1, -10.0 * add - 20.0)]);
    set("joint.pred.weight", &[(0, -26.0), (hidden, 26.0)]);
    set("joint.pred.bias", &[]);
    let (outputs, blank) = (shape("joint.joint_net.2.bias")[0], vocabulary.len());
    set("joint.joint_net.2.weight", &[(word * hidden, 1.0), (eou * hidden + 1, 1.0)]);
    let bias: Vec<(usize, f32)> = (0..outputs)
        .map(|id| {
            (
                id,
                if id == blank {
                    1.0
                } else if id == word || (id == eou && hears_ends) {
                    0.0
                } else {
                    -100.0
                },
            )
        })
        .collect();
    set("joint.joint_net.2.bias", &bias);

    let bytes: HashMap<&str, Vec<u8>> =
        made.iter().map(|(n, v)| (*n, v.iter().flat_map(|x| x.to_le_bytes()).collect())).collect();
    let mut w = GgufWriter::new();
    w.copy_meta(file.meta()).unwrap();
    for info in file.tensors() {
        let t = file.tensor(&info.name).unwrap();
        w.tensor(t.name, DType::F32, t.shape, bytes.get(t.name).map_or(t.data, Vec::as_slice));
    }
    w.write_to(&ours).unwrap();
    (SpeechModel::load(&ours).unwrap(), word as u32)
}

fn hear(model: &SpeechModel, samples: &[f32], block: usize, options: StreamOptions) -> StreamUpdate {
    let mut stream = model.stream(options).unwrap();
    let mut all = StreamUpdate::default();
    let updates = samples.chunks(block).map(|piece| stream.feed(piece).unwrap()).collect::<Vec<_>>();
    for update in updates.into_iter().chain([stream.finish().unwrap()]) {
        all.words.extend(update.words);
        all.tokens.extend(update.tokens);
        all.ends.extend(update.ends);
    }
    assert!(stream.finish().is_err(), "a second end says that it is over");
    all
}

/// n utterances give n ends, in NeMo's exact mode and where the predictor begins anew, whatever pieces they come in; words and
/// ends take turns, and each end comes soon after its utterance.
#[test]
fn n_utterances_have_n_ends() {
    let folder = tempfile::tempdir().unwrap();
    let pause = 24_000;
    let (model, word) = model(folder.path(), pause, true);
    for count in [1, 5, 9] {
        let samples = bursts(count, pause);
        for (block, exact) in [(1_600, false), (1_600, true), (997, false), (160, true), (48_000, false)] {
            let options = StreamOptions { exact, ..StreamOptions::default() };
            let heard = hear(&model, &samples, block, options);
            let what = format!("{count} utterances in blocks of {block}, exact {exact}");
            let words = heard.tokens.iter().filter(|t| t.id == word).count();
            assert_eq!(
                (words, heard.words.len(), heard.ends.len()),
                (count, count, count),
                "{what}: {heard:?}"
            );
            for (i, end) in heard.ends.iter().enumerate() {
                let stopped = 1.5 * (i + 1) as f64 + 1.5 * i as f64;
                assert!(end.kind == EndKind::Utterance, "{what}");
                assert!(end.time > stopped - 0.2 && end.time < stopped + 1.0, "{what}: {end:?} {stopped}");
            }
        }
    }
}

/// A pause within a sentence, 0.7 s, is no end unless the model says so: nothing is told of it, and the predictor goes on, which here
/// has said the word already and does not say it again. One that began anew would.
#[test]
fn a_pause_alone_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (model, word) = model(folder.path(), 24_000, false);
    for exact in [false, true] {
        let options = StreamOptions { exact, ..StreamOptions::default() };
        let heard = hear(&model, &bursts(4, 11_200), 1_600, options);
        assert_eq!(heard.tokens.iter().map(|t| t.id).collect::<Vec<_>>(), [word], "exact {exact}");
        assert!(heard.ends.is_empty(), "exact {exact}: {:?}", heard.ends);
    }
}

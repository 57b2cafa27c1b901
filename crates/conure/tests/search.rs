//! Beam search, hot words and blank penalty with whole models.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{
    AudioOptions, AudioSource, Decoder, RecogniseOptions, Samples, Search, SpeechModel, TranscribeOptions,
    Transcript,
};
use std::path::PathBuf;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

fn speech(model: &SpeechModel) -> Vec<f32> {
    model.read(AudioSource::path(data("audio/speech.wav")), &AudioOptions::default()).unwrap().samples
}

fn transcribe(model: &SpeechModel, samples: &[f32], decoder: Decoder, search: Search) -> Transcript {
    let recognise = RecogniseOptions { decoder, search, ..Default::default() };
    let options = TranscribeOptions { recognise, ..Default::default() };
    model.transcribe(Samples::mono(samples, 16_000), &options).unwrap()
}

/// Two seconds each of silence, of noise at three levels, and of a constant.
fn without_speech() -> [Vec<f32>; 5] {
    let mut state = 1u32;
    let mut noise = |level: f32| -> Vec<f32> {
        (0..32_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * level
            })
            .collect()
    };
    [vec![0.0; 32_000], noise(1e-3), noise(1e-2), noise(0.1), vec![0.2; 32_000]]
}

#[test]
fn texts_come_in_order_with_words_and_a_beam_of_one_is_greedy() {
    let embedded = SpeechModel::embedded(&Default::default()).unwrap();
    let rnnt = SpeechModel::load(data("oracle/rnnt80.gguf")).unwrap();
    for (model, decoder) in [(&embedded, Decoder::Tdt), (&embedded, Decoder::Ctc), (&rnnt, Decoder::Rnnt)] {
        let samples = &speech(model)[..64_000];
        let greedy = transcribe(model, samples, decoder, Search::default());
        let one = transcribe(model, samples, decoder, Search { beam: 1, n_best: 1, ..Search::default() });
        assert_eq!(one, greedy);
        let beam = transcribe(model, samples, decoder, Search { beam: 6, n_best: 4, ..Search::default() });
        let texts = &beam.alternatives;
        assert_eq!((texts.len(), &texts[0].text), (4, &beam.text), "{decoder:?}");
        assert!(texts.is_sorted_by(|a, b| a.score >= b.score) && texts[0].score < 0.0, "{texts:?}");
        for text in texts {
            let joined: Vec<&str> = text.words.iter().map(|w| w.word.as_str()).collect();
            let solid = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(solid(&joined.concat()), solid(&text.text), "{decoder:?}");
            assert!(text.words.is_sorted_by(|a, b| a.start <= b.start && a.end <= 4.0 && b.end <= 4.0));
        }
        // The trained model is sure of most of this clip: the beam finds it too, at the same times.
        if std::ptr::eq(model, &embedded) {
            assert_eq!(beam.segments[0].words[0].word, greedy.segments[0].words[0].word, "{decoder:?}");
        }
    }
}

/// Where nothing is said, no phrase appears, however great its weight; where something is, a phrase is heard at a great one,
/// and one that was heard anyway stays.
#[test]
fn hot_words_are_heard_and_never_invented() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let samples = speech(&model);
    let words = |t: &Transcript| t.text.split_whitespace().count();
    for decoder in [Decoder::Tdt, Decoder::Ctc] {
        let plain = transcribe(&model, &samples, decoder, Search::default()).text;
        for beam in [1, 4] {
            let with = |phrase: &str, weight: f32, samples: &[f32]| {
                let hot_words = Some(model.hot_words([(phrase, weight)]).unwrap());
                transcribe(&model, samples, decoder, Search { beam, hot_words, ..Search::default() })
            };
            let mut silent = 0;
            for nothing in without_speech() {
                // The model may take noise for a word: then that word may become another.
                let heard =
                    |beam| transcribe(&model, &nothing, decoder, Search { beam, ..Search::default() });
                let said = words(&heard(1)).max(words(&heard(beam)));
                silent += usize::from(said == 0);
                for weight in [0.5, 3.0, 100.0] {
                    let heard = with("bananas", weight, &nothing);
                    let times = heard.text.matches("bananas").count();
                    assert!(times <= said, "{decoder:?} {beam} {weight}: {}", heard.text);
                    assert!(said > 0 || words(&heard) == 0, "{decoder:?} {beam}: {}", heard.text);
                }
            }
            assert!(silent >= 3, "{decoder:?} {beam}: {silent}");
            let word = plain.split(' ').next().unwrap();
            let same = with(word, 0.5, &samples).text;
            assert_eq!(same.split(' ').next(), Some(word), "{decoder:?} {beam}");
            let forced = with("bananas", 100.0, &samples).text;
            assert!(forced.contains("banana"), "{decoder:?} {beam}: {forced}");
        }
    }
}

#[test]
fn a_blank_penalty_makes_a_model_say_more_or_less() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let samples = speech(&model);
    for decoder in [Decoder::Tdt, Decoder::Ctc] {
        for beam in [1, 3] {
            let count = |blank_penalty: f32| {
                let search = Search { beam, blank_penalty, ..Search::default() };
                transcribe(&model, &samples, decoder, search).text.chars().count()
            };
            let (less, plain, more) = (count(-30.0), count(0.0), count(30.0));
            assert!(less < plain, "{decoder:?} {beam}: {less} {plain}");
            // Without blanks CTC also merges what blanks kept apart.
            assert!(decoder == Decoder::Ctc || plain < more, "{decoder:?} {beam}: {plain} {more}");
        }
    }
}

//! Clips that are hardly clips: every short length, silence, noise, constants, samples that are no numbers. Nothing
//! crashes, nothing is invented, every time lies inside the clip.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{
    AudioOptions, AudioSource, Decoder, LoadOptions, Samples, SpeechModel, TranscribeOptions, Transcript,
};
use std::path::Path;
use std::sync::LazyLock;

const RATE: u32 = 16_000;

static MODEL: LazyLock<SpeechModel> =
    LazyLock::new(|| SpeechModel::embedded(&LoadOptions::default()).unwrap());

static SPEECH: LazyLock<Vec<f32>> = LazyLock::new(|| {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav"));
    conure::audio::read(AudioSource::path(path), RATE, &AudioOptions::default()).unwrap().samples
});

fn options(decoder: Decoder) -> TranscribeOptions {
    let mut options = TranscribeOptions { tokens: true, ..Default::default() };
    options.recognise.decoder = decoder;
    options
}

fn transcribe(samples: &[f32], decoder: Decoder) -> Transcript {
    let found = MODEL.transcribe(Samples::mono(samples, RATE), &options(decoder)).unwrap();
    check(&found, samples.len());
    found
}

/// What every transcript keeps: times inside the clip and in order, confidences that are ones, words that are the text.
fn check(t: &Transcript, samples: usize) {
    let duration = samples as f64 / f64::from(RATE);
    assert!((t.duration - duration).abs() < 1e-9, "{samples} samples: {}", t.duration);
    let mut last = 0.0;
    let mut words = Vec::new();
    for segment in &t.segments {
        let (first, end) = (segment.words.first().unwrap(), segment.words.last().unwrap());
        assert_eq!((segment.start, segment.end), (first.start, end.end), "{samples} samples");
        for word in &segment.words {
            assert!(
                last <= word.start && word.start <= word.end && word.end <= duration,
                "{samples}: {word:?}"
            );
            assert!((0.0..=1.0).contains(&word.confidence), "{word:?}");
            last = word.start;
            words.push(word.word.as_str());
        }
    }
    assert_eq!(words, t.text.split_whitespace().collect::<Vec<_>>(), "{samples} samples");
    assert!(!t.text.contains(['<', '>', '\u{2047}', '\u{2581}']), "{}", t.text);
}

#[test]
fn every_short_length_works() {
    // All of the first two frames, then around every frame's edge, up to the second that clips are padded to.
    let lengths = (0..=320)
        .chain((320..2_000).step_by(37))
        .chain((1..=100).flat_map(|k| [160 * k - 1, 160 * k, 160 * k + 1]));
    for n in lengths {
        for decoder in [Decoder::Tdt, Decoder::Ctc] {
            transcribe(&SPEECH[12_000..12_000 + n], decoder);
        }
    }
}

#[test]
fn nothing_is_heard_where_nothing_is_said() {
    let seconds = 60usize;
    let n = seconds * RATE as usize;
    let mut state = 1u32;
    let mut noise = |level: f32| -> Vec<f32> {
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * level
            })
            .collect()
    };
    let clips = [
        ("zeros", vec![0.0; n]),
        ("noise at -60 dB", noise(1e-3)),
        ("a constant", vec![0.5; n]),
        ("full-scale square wave", (0..n).map(|i| if i / 40 % 2 == 0 { 1.0 } else { -1.0 }).collect()),
        ("denormals", vec![1e-40; n]),
    ];
    for (what, clip) in &clips {
        for decoder in [Decoder::Tdt, Decoder::Ctc] {
            let found = transcribe(clip, decoder);
            let words = found.text.split_whitespace().count();
            assert!(words <= 1, "{what}, {decoder:?}: {seconds} s gave {words} words: {}", found.text);
        }
    }
}

#[test]
fn samples_that_are_no_numbers_do_not_spread() {
    let mut clip = SPEECH.clone();
    for (i, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN].into_iter().enumerate() {
        clip[60_000 + 1_000 * i] = bad;
    }
    let found = transcribe(&clip, Decoder::Tdt);
    assert!(found.text.starts_with("well i don't wish to see it"), "{}", found.text);
    for wild in [3e38f32, -1e30, 1e7] {
        let mut clip = SPEECH.clone();
        clip[60_000] = wild;
        assert!(
            transcribe(&clip, Decoder::Tdt).text.starts_with("well i don't wish"),
            "one sample of {wild}"
        );
    }
    // Far beyond full scale, a recording is loud, not silent.
    let loud: Vec<f32> = SPEECH.iter().map(|s| s * 1e3).collect();
    assert!(transcribe(&loud, Decoder::Tdt).text.split_whitespace().count() > 10);
}

#[test]
fn silence_before_a_clip_moves_its_words() {
    let plain = transcribe(&SPEECH, Decoder::Tdt);
    let pad = 13 * RATE as usize;
    let found = transcribe(&[vec![0.0; pad], SPEECH.clone()].concat(), Decoder::Tdt);
    // The features are normalised over the whole clip, so that silence may change words that were doubtful; and the
    // embedded model likes to emit its first token at once, speech or not, as it does in NeMo.
    let start = |t: &Transcript, word: &str| {
        t.segments.iter().flat_map(|s| &s.words).find(|w| w.word == word).map(|w| w.start)
    };
    for word in ["away", "her", "eyes", "certainly", "very", "like"] {
        let (before, after) = (start(&plain, word), start(&found, word));
        let moved = after.zip(before).map(|(a, b)| a - b - 13.0);
        assert!(
            moved.is_some_and(|m| m.abs() <= 0.08 + 1e-9),
            "{word}: {before:?} {after:?} in {:?}",
            found.text
        );
    }
}

#[test]
fn channels_and_rates_are_asked_for_and_used() {
    let mono = transcribe(&SPEECH, Decoder::Tdt).text;
    let stereo: Vec<f32> = SPEECH.iter().flat_map(|&s| [s, s]).collect();
    let found = MODEL.transcribe(Samples::interleaved(&stereo, RATE, 2), &options(Decoder::Tdt)).unwrap();
    assert_eq!(found.text, mono);
    for (samples, expected) in [
        (Samples::interleaved(&stereo[..3], RATE, 2), "no whole number of frames"),
        (Samples::interleaved(&stereo, RATE, 0), "0 channels"),
        (Samples::mono(&stereo, 0), "0"),
        (Samples::mono(&stereo, u32::MAX), "4294967295"),
    ] {
        let error = MODEL.transcribe(samples, &options(Decoder::Tdt)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} should say {expected:?}");
    }
}

#[test]
fn a_window_wider_than_the_clip_is_the_whole_clip() {
    let full = transcribe(&SPEECH, Decoder::Tdt);
    for window in [93, 128, 100_000, usize::MAX] {
        let mut options = options(Decoder::Tdt);
        options.recognise.local_attention = Some(window);
        let found = MODEL.transcribe(Samples::mono(&SPEECH, RATE), &options).unwrap();
        assert_eq!(found.text, full.text, "window {window}");
    }
}

#[test]
fn a_part_of_a_file_has_the_times_of_the_file() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav"));
    let part = AudioOptions { start: 5.0, duration: Some(2.0), ..Default::default() };
    let t = MODEL.transcribe_file(AudioSource::path(path), &part, &options(Decoder::Tdt)).unwrap();
    assert_eq!((t.start, t.duration), (5.0, 2.0));
    assert!(!t.segments.is_empty());
    for word in t.segments.iter().flat_map(|s| &s.words) {
        assert!(5.0 <= word.start && word.start <= word.end && word.end <= 7.0, "{word:?}");
    }
    let mut srt = Vec::new();
    conure::format::write(&t, conure::format::OutputFormat::Srt, &Default::default(), &mut srt).unwrap();
    assert!(String::from_utf8(srt).unwrap().starts_with("1\n00:00:05,"));
    let past = AudioOptions { start: 8.0, ..Default::default() };
    let error = MODEL.transcribe_file(AudioSource::path(path), &past, &options(Decoder::Tdt)).unwrap_err();
    assert!(error.to_string().contains("7.4"), "{error}");
}

#[test]
fn more_threads_than_processors_are_not_made() {
    let many = LoadOptions { threads: Some(1024), ..Default::default() };
    let model = SpeechModel::embedded(&many).unwrap();
    assert!(
        model.recogniser().cpu().threads().count() <= std::thread::available_parallelism().unwrap().get()
    );
}

#[test]
fn a_cancelled_transcription_says_so_and_the_next_one_works() {
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let mut cancelled = options(Decoder::Tdt);
    cancelled.recognise.cancel = Some(flag);
    let error = MODEL.transcribe(Samples::mono(&SPEECH, RATE), &cancelled).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    transcribe(&SPEECH, Decoder::Tdt);
}

#[test]
fn many_threads_share_a_model() {
    let expected = transcribe(&SPEECH, Decoder::Tdt);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(transcribe(&SPEECH, Decoder::Tdt), expected);
                }
            });
        }
    });
}

#[test]
fn models_that_share_a_budget_share_its_workers() {
    let expected = transcribe(&SPEECH, Decoder::Tdt);
    let budget = conure::ThreadBudget::new(2).unwrap();
    let shared = LoadOptions {
        device: Some("cpu".into()),
        threads: Some(2),
        budget: budget.clone(),
        ..Default::default()
    };
    let models: Vec<SpeechModel> = (0..3).map(|_| SpeechModel::embedded(&shared).unwrap()).collect();
    std::thread::scope(|scope| {
        for i in 0..8 {
            let model = &models[i % models.len()];
            let expected = &expected;
            scope.spawn(move || {
                let found = model.transcribe(Samples::mono(&SPEECH, RATE), &options(Decoder::Tdt)).unwrap();
                assert_eq!(found.text, expected.text);
            });
        }
        // Three models and eight users: the budget has two threads, one of them the caller's.
        assert_eq!(budget.workers(), 1);
    });
    drop(models);
    assert_eq!(budget.workers(), 0);
}

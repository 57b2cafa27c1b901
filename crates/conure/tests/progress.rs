//! Progress and cancellation as a program that embeds the library sees them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{AudioSource, Error, OnProgress, Progress, Samples, SpeechModel, Stage, TranscribeOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

fn noise(seconds: usize) -> Vec<f32> {
    let mut state = 1u32;
    (0..seconds * 16_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        })
        .collect()
}

fn watched(call: impl Fn(Progress) + Send + Sync + 'static) -> TranscribeOptions {
    let mut options = TranscribeOptions::default();
    options.recognise.progress = Some(OnProgress::new(call));
    options
}

fn recorder() -> (TranscribeOptions, Arc<Mutex<Vec<Progress>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    (watched(move |p| sink.lock().unwrap().push(p)), told)
}

/// Never backwards, one end at 1, and every number what its documentation says.
fn check(told: &[Progress], total: f64) {
    assert!(told.is_sorted_by(|a, b| a.fraction <= b.fraction), "{told:?}");
    let ends = told.iter().filter(|p| p.fraction == 1.0).count();
    assert_eq!((ends, told.last().unwrap().fraction), (1, 1.0), "{told:?}");
    for p in told.iter().filter(|p| p.stage != Stage::Reading) {
        let whole = p.total.unwrap();
        assert!((whole - total).abs() < 1e-6 && (p.seconds - p.fraction * whole).abs() < 1e-9, "{p:?}");
    }
}

#[test]
fn a_file_is_watched_from_its_first_second_to_its_last() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav");
    for _ in 0..2 {
        let (options, told) = recorder();
        let transcript =
            model.transcribe_file(AudioSource::path(clip), &Default::default(), &options).unwrap();
        let told = told.lock().unwrap();
        check(&told, transcript.duration);
        let first = told[0];
        assert_eq!((first.stage, first.total, first.fraction), (Stage::Reading, None, 0.0));
        assert!(first.seconds > 0.0 && told.last().unwrap().seconds == transcript.duration);
        assert_eq!(told.last().unwrap().stage, Stage::Decoding);
    }
}

#[test]
fn samples_and_batches_are_watched_too() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let clips = [noise(2), noise(40), noise(7)];
    let (options, told) = recorder();
    model.transcribe(Samples::mono(&clips[1], 16_000), &options).unwrap();
    check(&told.lock().unwrap(), 40.0);
    let (options, told) = recorder();
    let clips = clips.each_ref().map(|c| Samples::mono(c, 16_000));
    model.transcribe_batch(&clips, &options).unwrap();
    check(&told.lock().unwrap(), 49.0);
    assert!(model.transcribe_batch(&[], &options).unwrap().is_empty());
}

#[test]
fn the_function_can_stop_the_work_in_any_stage() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let wav = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav")).unwrap();
    let long = noise(60);
    for stage in [Stage::Reading, Stage::Features, Stage::Encoding] {
        let cancel = Arc::new(AtomicBool::new(false));
        let set = cancel.clone();
        let mut options = watched(move |p| {
            assert!(p.fraction < 1.0, "it was stopped before its end");
            if p.stage == stage {
                set.store(true, Ordering::Relaxed);
            }
        });
        options.recognise.cancel = Some(cancel.clone());
        let source = AudioSource::bytes("speech.wav", wav.clone());
        // The clip is over too soon to be told of its encoding, which takes longer than a tenth of a second only here.
        let result = match stage {
            Stage::Encoding => model.transcribe(Samples::mono(&long, 16_000), &options),
            _ => model.transcribe_file(source, &Default::default(), &options),
        };
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Speech(_)) && error.is_cancelled(), "{stage}: {error}");
        // The model can be used as before, the arena of the run that was stopped too.
        cancel.store(false, Ordering::Relaxed);
        options.recognise.progress = None;
        let source = AudioSource::bytes("speech.wav", wav.clone());
        assert!(!model.transcribe_file(source, &Default::default(), &options).unwrap().text.is_empty());
    }
}

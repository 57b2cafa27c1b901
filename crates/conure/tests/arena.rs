//! How the memory of a run grows with the length of a recording.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::SpeechModel;

const MINUTE: usize = 6_000;

/// With local attention, a second more of audio costs what every second costs: nothing grows with the square of the length.
#[test]
fn local_attention_takes_the_same_memory_for_every_second() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let per_frame = |minutes: usize, window: usize| {
        let frames = minutes * MINUTE;
        model.arena_bytes(frames, 1, Some(window)).unwrap() as f64 / frames as f64
    };
    for window in [64, 128, 256] {
        let base = per_frame(10, window);
        for minutes in [20, 60, 120] {
            let ratio = per_frame(minutes, window) / base;
            assert!((ratio - 1.0).abs() < 0.05, "window {window}, {minutes} min: {ratio}");
        }
    }
    assert!(model.arena_bytes(MINUTE, 1, Some(0)).is_err());
}

/// What is told beforehand is what a run then holds.
#[test]
fn the_arena_that_is_told_is_the_one_that_is_used() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let samples = vec![0.1f32; 16_000 * 20];
    model.transcribe(conure::Samples::mono(&samples, 16_000), &Default::default()).unwrap();
    let told = model.arena_bytes(20 * 100 + 1, 1, None).unwrap();
    let held = model.recogniser().arena_bytes();
    // The predictor's and the joint's arenas are there too; each is some kilobytes.
    assert!((told..told + 100_000).contains(&held), "told {told}, held {held}");
}

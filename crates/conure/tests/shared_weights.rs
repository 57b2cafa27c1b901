//! Eight threads on one model: the same texts, and the weights in memory once. The only test of its file, so that the
//! memory of its process is its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{AudioOptions, AudioSource, SpeechModel, TranscribeOptions};
use std::sync::Barrier;

const THREADS: usize = 8;

/// The most memory that the process ever had, in bytes; `None` where the system does not say.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[test]
fn threads_share_a_model() {
    let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav");
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let recording = model.read(AudioSource::path(clip), &AudioOptions::default()).unwrap();
    let options = TranscribeOptions { tokens: true, ..Default::default() };
    let alone = model.transcribe_recording(&recording, &options).unwrap();
    let (before, arena) = (peak(), model.recogniser().arena_bytes() as u64);
    assert!(!alone.text.is_empty() && arena > 100_000);

    // All at once, twice: no thread is done before the last begins.
    let start = Barrier::new(THREADS);
    let transcripts: Vec<_> = std::thread::scope(|scope| {
        let run = || {
            start.wait();
            [(); 2].map(|()| model.transcribe_recording(&recording, &options).unwrap())
        };
        let handles: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        handles.into_iter().flat_map(|h| h.join().unwrap()).collect()
    });
    assert_eq!(transcripts.len(), 2 * THREADS);
    for transcript in &transcripts {
        assert_eq!(*transcript, alone);
    }

    let (Some(before), Some(after)) = (before, peak()) else { return };
    // Of its own each thread has a session (arena, features, the clip's frames) and the buffers of the kernels, 4 MB. Weights
    // of its own would be 24 MB more for each: there is room here for not even two of the eight.
    let held = model.recogniser().arena_bytes() as u64;
    let grown = after - before;
    let most = THREADS as u64 * (arena + (5 << 20));
    assert!(grown < most, "grew by {grown} bytes, {most} are expected at most; an arena is {arena}");
    assert!(held >= 2 * arena, "several sessions were in use: {held} bytes of arenas, {arena} for one");
}

//! Memory that is refused, request by request: a clear error, and the next run works.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{AudioSource, LoadOptions, SpeechModel, TranscribeOptions};
use conure_device::faulty::FaultyAlloc;

#[global_allocator]
static ALLOCATOR: FaultyAlloc = FaultyAlloc::new();

/// What grows with the recording or the model is larger; what a graph itself takes, and the working memory of a thread, which
/// is bounded, are smaller.
const LARGE: usize = 2 << 20;

/// The samples of a WAV file with a plain header, again and again for a minute.
fn minute_of(wav: &[u8]) -> Vec<u8> {
    let samples: Vec<u8> = wav[44..].iter().copied().cycle().take(60 * 16_000 * 2).collect();
    let mut minute = wav[..44].to_vec();
    minute[4..8].copy_from_slice(&(samples.len() as u32 + 36).to_le_bytes());
    minute[40..44].copy_from_slice(&(samples.len() as u32).to_le_bytes());
    minute.extend(samples);
    minute
}

/// One test, for there is one allocator.
#[test]
fn refused_memory_is_an_error_and_the_next_run_works() {
    let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav");
    let recording = minute_of(&std::fs::read(clip).unwrap());
    let load = || SpeechModel::embedded(&LoadOptions { threads: Some(2), ..Default::default() });
    let run = |model: &SpeechModel, recording: Vec<u8>| {
        let source = AudioSource::bytes("minute.wav", recording);
        model.transcribe_file(source, &Default::default(), &TranscribeOptions::default()).map(|t| t.text)
    };
    let expected = run(&load().unwrap(), recording.clone()).unwrap();

    // With a model loaded anew for each, so that weights are packed and arenas taken in every run.
    let mut refusals = 0;
    for n in 1.. {
        let copy = recording.clone();
        ALLOCATOR.refuse(LARGE, n);
        let result = load().map(|model| (run(&model, copy), model));
        let refused = ALLOCATOR.refused();
        ALLOCATOR.refuse(usize::MAX, 0);
        if !refused {
            break;
        }
        refusals += 1;
        let (result, model) = match result {
            Ok((result, model)) => (result, model),
            Err(error) => panic!("loading takes no large memory, and says {error}"),
        };
        match result {
            Ok(text) => assert_eq!(text, expected, "request {n}"),
            Err(error) => {
                let said = chain(&error);
                assert!(
                    said.contains("memory") || said.contains("MiB") || said.contains("bytes"),
                    "request {n}: {said}"
                );
            }
        }
        assert_eq!(run(&model, recording.clone()).unwrap(), expected, "after request {n} was refused");
    }
    assert!(refusals > 10, "only {refusals} large requests");
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

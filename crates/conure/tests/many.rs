//! Clips in company are what they are alone, and files are told one by one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{
    AudioOptions, Decoder, FileClip, FilesEvent, LoadOptions, RecogniseOptions, Samples, SpeechModel,
    TranscribeOptions, Transcript,
};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

fn speech(model: &SpeechModel) -> Vec<f32> {
    let source = conure::AudioSource::path(data("audio/speech.wav"));
    model.read(source, &AudioOptions::default()).unwrap().samples
}

/// Parts of the clip of lengths from nothing to all of it, and clips without speech.
fn clips(speech: &[f32]) -> Vec<Vec<f32>> {
    let part = |from: usize, to: usize| speech[from.min(speech.len())..to.min(speech.len())].to_vec();
    vec![
        part(0, usize::MAX),
        part(0, 1_000),
        Vec::new(),
        part(20_000, 60_000),
        vec![0.0; 40_000],
        part(50_000, 66_500),
        part(0, 16_001),
        vec![0.3; 5_000],
        part(60_000, usize::MAX),
    ]
}

/// A model of each kind of head with its decoders, on a device.
fn models(device: &str) -> [(&'static str, SpeechModel, &'static [Decoder]); 3] {
    let load = LoadOptions { device: Some(device.into()), ..Default::default() };
    let oracle = |name: &str| SpeechModel::load_with(data(&format!("oracle/{name}.gguf")), &load).unwrap();
    [
        ("embedded", SpeechModel::embedded(&load).unwrap(), &[Decoder::Tdt, Decoder::Ctc]),
        ("rnnt80", oracle("rnnt80"), &[Decoder::Rnnt]),
        ("tdt128", oracle("tdt128"), &[Decoder::Tdt]),
    ]
}

/// Holds every clip in company to what it is alone: `same` says whether two transcripts are.
fn check_neighbours(device: &str, same: impl Fn(&Transcript, &Transcript) -> bool) {
    for (name, model, decoders) in models(device) {
        let clips = clips(&speech(&model));
        for &decoder in decoders {
            let recognise = RecogniseOptions { decoder, ..Default::default() };
            let options = TranscribeOptions { recognise, tokens: true, ..Default::default() };
            let samples: Vec<Samples<'_>> = clips.iter().map(|c| Samples::mono(c, 16_000)).collect();
            let alone: Vec<_> = samples.iter().map(|s| model.transcribe(*s, &options).unwrap()).collect();
            assert!(alone[0].tokens.as_ref().unwrap().len() > 5, "{name}");
            for order in [vec![0, 1, 2, 3, 4, 5, 6, 7, 8], vec![8, 3, 0, 5], vec![2, 7, 0], vec![6, 6, 6]] {
                let group: Vec<Samples<'_>> = order.iter().map(|&i| samples[i]).collect();
                let together = model.transcribe_batch(&group, &options).unwrap();
                for (&i, found) in order.iter().zip(&together) {
                    let what = format!("{name} on {device}, {decoder:?} {order:?} clip {i}");
                    assert!(same(found, &alone[i]), "{what}: {found:?}\nalone: {:?}", alone[i]);
                }
            }
        }
    }
}

/// The same text, times and confidence to the last bit: alone, in any batch and in any order, with both decoders and with
/// a transducer of either kind.
#[test]
fn neighbours_change_nothing() {
    check_neighbours("cpu", |found, alone| found == alone);
}

/// The same text and times on OpenVINO's CPU device too, whose kernels may sum a row in another order where a batch has another
/// shape: confidence may differ by that much.
#[test]
fn neighbours_change_nothing_on_openvino() {
    let worst = std::cell::Cell::new(0.0_f32);
    check_neighbours("openvino:CPU", |found, alone| {
        let (mut found, mut alone) = (found.clone(), alone.clone());
        let off = confidences(&mut found).into_iter().zip(confidences(&mut alone));
        let off = off.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        worst.set(worst.get().max(off));
        found == alone && off <= 1e-4
    });
    println!("confidence: off by {:.1e} at the most", worst.get());
}

/// Takes the confidences out of a transcript.
fn confidences(transcript: &mut Transcript) -> Vec<f32> {
    let words = transcript.segments.iter_mut().flat_map(|s| &mut s.words).map(|w| &mut w.confidence);
    let tokens = transcript.tokens.iter_mut().flatten().map(|t| &mut t.confidence);
    words.chain(tokens).map(std::mem::take).collect()
}

#[test]
fn files_are_told_one_by_one_and_can_be_stopped() {
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    let speech = data("audio/speech.wav");
    let clip = |start: f64, duration: f64| FileClip {
        path: speech.clone(),
        audio: AudioOptions { start, duration: Some(duration), ..AudioOptions::default() },
    };
    let gone = FileClip { path: "gone.wav".into(), ..FileClip::default() };
    let files = [clip(0.0, 3.0), gone, clip(2.0, 1.0), clip(100.0, 1.0), clip(1.0, 5.0)];
    let options = TranscribeOptions::default();
    let mut told: Vec<Option<Result<conure::Transcript, conure::Error>>> =
        files.iter().map(|_| None).collect();
    let mut begun = Vec::new();
    model
        .transcribe_files(&files, &options, |event| {
            match event {
                FilesEvent::Begun(files) => begun.extend(files),
                FilesEvent::Done(i, result) => {
                    assert!(begun.contains(&i) && told[i].is_none(), "{i}");
                    told[i] = Some(*result);
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    for (i, (file, result)) in files.iter().zip(&told).enumerate() {
        let source = conure::AudioSource::path(&file.path);
        let alone = model.transcribe_file(source, &file.audio, &options);
        match (result.as_ref().unwrap(), alone) {
            (Ok(found), Ok(alone)) => assert_eq!(*found, alone, "{i}"),
            (Err(found), Err(alone)) => assert_eq!(found.to_string(), alone.to_string(), "{i}"),
            other => panic!("{i}: {other:?}"),
        }
    }
    assert!(told[1].as_ref().unwrap().is_err() && told[3].as_ref().unwrap().is_err());

    let mut count = 0;
    model
        .transcribe_files(&files, &options, |event| {
            count += usize::from(matches!(event, FilesEvent::Done(..)));
            if count == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(count, 2);

    let cancel = Arc::new(AtomicBool::new(false));
    let recognise = RecogniseOptions { cancel: Some(cancel.clone()), ..Default::default() };
    let options = TranscribeOptions { recognise, ..Default::default() };
    let error = model.transcribe_files(&files, &options, |_| {
        cancel.store(true, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    assert!(error.unwrap_err().is_cancelled());
}

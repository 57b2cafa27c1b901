//! The embedded model on the sample clip.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure::{AudioSource, Decoder, SpeechModel, TranscribeOptions};

fn clip() -> AudioSource {
    AudioSource::path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/speech.wav"))
}

#[test]
fn the_sample_is_transcribed_as_nemo_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/audio/nemo_hypotheses.json");
    let nemo: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let nemo = &nemo["files"]["real/librispeech_speech.wav"];
    let model = SpeechModel::embedded(&Default::default()).unwrap();
    for (decoder, key) in [(Decoder::Tdt, "tdt"), (Decoder::Ctc, "ctc")] {
        let mut options = TranscribeOptions { tokens: true, ..Default::default() };
        options.recognise.decoder = decoder;
        let transcript = model.transcribe_file(clip(), &Default::default(), &options).unwrap();
        assert_eq!(transcript.text, nemo[key]["text"].as_str().unwrap(), "{key}");
    }
}
